"""Flushes at the edge: headers for more than one batch, and every call to a store broken once, reads as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from hashlib import sha256
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa
from msgspec import structs

from ledger import placing
from ledger.batches import MAX_HEADERS_BYTES, batch_digest, decode_batch, verify_follows
from ledger.checkpoint import parse_note, verify_note
from ledger.draft import Appended, Draft, PlacedState, SealedPart
from ledger.entry import MAX_HEADER_BYTES, MAX_INT, Header, Part, decode_header, encode_header, uuid7
from ledger.errors import CheckpointPending, StoreUnavailable
from ledger.models import EntryRow
from ledger.objects import ObjectInfo
from ledger.signing import verifier_from_vkey
from registry.entries import MAX_PARTS
from registry.sealing import ALGORITHM
from tests.ledger.test_ledger_log import LOG_ID, NOW, TENANT, Bench, _require_sound, bench, draft

__all__ = ["bench"]


def large(number: int, parts: int) -> Draft:
    """A draft whose header is as large as its parts make it; they hold nothing."""
    one = SealedPart(role="part.0", algorithm=ALGORITHM, ciphertext=b"", lock_until=None, key_ids=())
    return structs.replace(
        draft(number),
        kind="k" * 128,
        data_class="c" * 128,
        parts=tuple(structs.replace(one, role=f"part.{place}") for place in range(parts)),
        subjects=((),) * parts,
        digest=number.to_bytes(16, "big"),
    )


def batches(made: Bench) -> list[tuple[bytes, int]]:
    """The bytes of every batch and how many bytes its headers have; each continues the one before."""
    keys = list(made.locked.list(f"{LOG_ID}/batch/"))
    raws = [made.locked.get(key) for key in keys]
    decoded = [decode_batch(raw) for raw in raws]
    for (before, raw), (after, _) in pairwise(zip(decoded, raws, strict=True)):
        verify_follows(after, before, batch_digest(raw))
    return [(raw, sum(map(len, one.headers))) for raw, one in zip(raws, decoded, strict=True)]


def receipt_fields(made: Bench, appended: Appended) -> list[str]:
    """The lines of a call's receipt, once its signature is good."""
    assert appended.receipt is not None
    note = appended.receipt.encode()
    verify_note(note, [verifier_from_vkey(made.log.vkey(TENANT))])
    return parse_note(note).text.splitlines()


def test_the_most_parts_that_an_entry_may_have_fill_a_header_and_never_overflow_it() -> None:
    part = Part(
        role="part.00", algorithm=ALGORITHM, length=10**10, sha256=b"x" * 32, object=f"payload/2026-03/{uuid7(NOW)}",
        offset=10**10,
    )  # fmt: skip
    header = Header(
        id=uuid7(NOW),
        kind="k" * 128,
        data_class="c" * 128,
        at=NOW,
        received=NOW,
        recorder="ab" * 32,
        seq=MAX_INT,
        stream="ab" * 16,
        position=MAX_INT,
        previous=b"x" * 32,
        sources_count=10_000,
        sources_root=b"y" * 32,
        parts=(part,) * MAX_PARTS + (structs.replace(part, role="actor"), structs.replace(part, role="skeleton")),
    )
    assert MAX_HEADER_BYTES * 0.9 < len(encode_header(header)) <= MAX_HEADER_BYTES


def test_headers_for_three_batches_are_stored_in_three_under_one_receipt(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts = [large(number, 20) for number in range(25)]
    monkeypatch.setattr(placing, "MAX_HEADERS_BYTES", 50_000)
    appended = bench.log.append(TENANT, drafts, now=NOW)
    assert [one.index for one in appended.placed] == list(range(25))
    assert {one.state for one in appended.placed} == {PlacedState.STORED}
    stored = batches(bench)
    assert len(stored) == 3
    assert all(size <= 50_000 for _, size in stored)
    assert receipt_fields(bench, appended)[2:5] == ["0", "25", sha256(stored[-1][0]).hexdigest()]
    _require_sound(bench, 25)
    bench.reopen()
    again = bench.log.append(TENANT, drafts, now=NOW).placed
    assert [(one.index, one.state) for one in again] == [(number, PlacedState.DUPLICATE) for number in range(25)]


@pytest.mark.parametrize("when", ["fail_before", "fail_after"])
def test_a_flush_that_breaks_between_its_batches_loses_nothing_and_doubles_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(placing, "MAX_HEADERS_BYTES", 50_000)
    # One call writes a payload object and three batches, and each of them breaks once.
    for round_number, nth in enumerate(range(4)):
        drafts = [large(100 * round_number + number, 20) for number in range(25)]
        getattr(bench.locked, when)(nth)
        with pytest.raises(StoreUnavailable):
            bench.log.append(TENANT, drafts, now=NOW)
        bench.locked.fail_before(10**9)
        bench.locked.fail_after(10**9)
        placed = bench.log.append(TENANT, drafts, now=NOW).placed
        assert [one.index for one in placed] == list(range(25 * round_number, 25 * (round_number + 1)))
    _require_sound(bench, 100)


@pytest.mark.slow
def test_ten_thousand_of_the_largest_headers_are_one_call_and_no_batch_is_too_large(bench: Bench) -> None:
    drafts = [large(number, 66) for number in range(10_000)]
    appended = bench.log.append(TENANT, drafts, now=NOW)
    assert [one.index for one in appended.placed] == list(range(10_000))
    stored = batches(bench)
    assert len(stored) == 3
    assert sum(size for _, size in stored) > 2 * MAX_HEADERS_BYTES
    first = decode_header(decode_batch(stored[0][0]).headers[0])
    assert len(first.parts) == 66
    assert receipt_fields(bench, appended)[2:4] == ["0", "10000"]


class Breaking:
    """A store whose nth call fails before or after it is done; a listing fails at its first key."""

    def __init__(self, inner: Any, calls: list[int]) -> None:
        self._inner = inner
        self._calls = calls  # calls so far, the one that fails, whether before it is done

    def _call(self, do: Callable[[], Any]) -> Any:
        number = self._calls[0]
        self._calls[0] += 1
        if number == self._calls[1] and self._calls[2]:
            raise StoreUnavailable("broken before")
        found = do()
        if number == self._calls[1]:
            raise StoreUnavailable("broken after")
        return found

    def put(self, key: str, data: bytes | memoryview, *, lock_until: datetime | None) -> None:
        self._call(lambda: self._inner.put(key, data, lock_until=lock_until))

    def replace(self, key: str, data: bytes) -> None:
        self._call(lambda: self._inner.replace(key, data))

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        found: bytes = self._call(lambda: self._inner.get(key, offset=offset, length=length))
        return found

    def head(self, key: str) -> ObjectInfo:
        found: ObjectInfo = self._call(lambda: self._inner.head(key))
        return found

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        found: list[str] = self._call(lambda: list(self._inner.list(prefix, after)))
        yield from found

    def delete(self, key: str) -> None:
        self._call(lambda: self._inner.delete(key))


@pytest.mark.scenario("L39")
@pytest.mark.parametrize("before", [True, False])
def test_every_call_to_both_stores_breaks_once_and_nothing_is_lost_or_doubled(bench: Bench, before: bool) -> None:
    """Start, append, publish, prove, over a tile's edge; after the failure the process goes on, then starts again."""
    calls = [0, -1, int(before)]
    locked, hot = bench.locked, bench.hot
    nth, stored = 0, 0
    while True:
        drafts = [draft(number) for number in range(stored, stored + 40)]
        bench.locked, bench.hot = Breaking(locked, calls), Breaking(hot, calls)
        calls[0], calls[1] = 0, nth
        bench.reopen()
        fell = False
        for step in (
            lambda drafts=drafts: bench.log.append(TENANT, drafts, now=NOW),
            lambda: bench.log.publish(TENANT, NOW),
            lambda stored=stored: bench.log.proof(TENANT, stored, NOW),
        ):
            try:
                step()
            except StoreUnavailable:
                fell = True
            except CheckpointPending:
                assert fell  # nothing to prove: the append did not come to its batch
        calls[1] = -1
        placed = bench.log.append(TENANT, drafts, now=NOW).placed
        assert [one.index for one in placed] == list(range(stored, stored + 40))
        bench.locked, bench.hot = locked, hot
        bench.reopen()
        stored += 40
        _require_sound(bench, stored)
        if not fell and nth >= calls[0]:
            break
        nth += 1
    assert nth >= 8


@pytest.mark.scenario("L13")
def test_an_index_that_cannot_be_read_is_an_error_and_never_an_entry_not_seen_yet(bench: Bench) -> None:
    first = bench.log.append(TENANT, [draft(0)], now=NOW).placed[0]
    table = EntryRow.__tablename__
    with bench.engine.begin() as connection:
        connection.execute(sa.text(f"ALTER TABLE {table} RENAME TO out_of_reach"))
    writes = bench.locked.writes
    with pytest.raises(sa.exc.OperationalError):
        bench.log.append(TENANT, [draft(0)], now=NOW)
    assert bench.locked.writes == writes
    with bench.engine.begin() as connection:
        connection.execute(sa.text(f"ALTER TABLE out_of_reach RENAME TO {table}"))
    again = bench.log.append(TENANT, [draft(0)], now=NOW).placed[0]
    assert (again.state, again.index) == (PlacedState.DUPLICATE, first.index)
    _require_sound(bench, 1)
