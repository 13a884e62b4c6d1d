"""The payload of a large flush is stored while its batch is made, and no batch names what is not stored yet."""

from __future__ import annotations

import threading
from datetime import datetime

import pytest

from ledger.batches import decode_batch
from ledger.draft import PlacedState
from ledger.entry import decode_header
from ledger.errors import NotLeader, StoreUnavailable
from ledger.placing import Stored
from ledger.storing import ASIDE, Put, storing
from tests.ledger.test_ledger_log import LOG_ID, NOW, TENANT, Bench, _require_sound, bench, draft

__all__ = ["bench"]

SECONDS = 20.0


def remembering(kept: dict[str, bytes]) -> Put:
    def put(name: str, data: bytes, until: datetime | None) -> None:
        assert until is not None
        kept[name] = data

    return put


@pytest.mark.parametrize("count", [1, ASIDE - 1, ASIDE, ASIDE + 50])
def test_every_part_lies_where_it_is_said_to_lie(count: int) -> None:
    drafts = [draft(number) for number in range(count)]
    kept: dict[str, bytes] = {}
    stored: Stored = {}
    with storing(remembering(kept), [(one, frozenset()) for one in drafts], stored, NOW) as (places, is_stored):
        is_stored()
        told = dict(places)
    assert told == stored
    for one in drafts:
        place = stored[id(one.parts[0])]
        assert kept[place.object][place.offset : place.offset + place.length] == one.parts[0].ciphertext


def test_the_batch_of_a_large_flush_waits_for_its_payload(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    put, index_stored = bench.locked.put, threading.Event()
    replace = bench.hot.replace
    order: list[str] = []

    def slow(key: str, data: bytes, *, lock_until: datetime | None) -> None:
        if "/payload/" in key:
            # The lines of the index go meanwhile: without that this would wait for ever.
            assert index_stored.wait(SECONDS)
        order.append(key.split("/")[1])
        put(key, data, lock_until=lock_until)

    def told(key: str, data: bytes) -> None:
        replace(key, data)
        index_stored.set()

    monkeypatch.setattr(bench.locked, "put", slow)
    monkeypatch.setattr(bench.hot, "replace", told)
    placed = bench.log.append(TENANT, [draft(number) for number in range(ASIDE)], now=NOW).placed
    assert [one.index for one in placed] == list(range(ASIDE))
    assert order == ["payload", "batch"]
    _require_sound(bench, ASIDE)


def test_a_large_flush_whose_payload_is_not_stored_stores_no_batch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts = [draft(number) for number in range(ASIDE)]
    with monkeypatch.context() as patch:

        def away(key: str, data: bytes, *, lock_until: datetime | None) -> None:
            raise StoreUnavailable("away")

        patch.setattr(bench.locked, "put", away)
        with pytest.raises(StoreUnavailable, match="away"):
            bench.log.append(TENANT, drafts, now=NOW)
    assert list(bench.locked.list(f"{LOG_ID}/")) == []
    placed = bench.log.append(TENANT, drafts, now=NOW).placed
    assert {one.state for one in placed} == {PlacedState.STORED}
    _require_sound(bench, ASIDE)


def test_what_is_stored_is_known_when_the_flush_ends_for_another_reason() -> None:
    """Whoever lost the lease meanwhile hands over what lies in the bucket, and stores none of it twice."""
    kept: dict[str, bytes] = {}
    stored: Stored = {}
    fresh = [(draft(number), frozenset[int]()) for number in range(ASIDE)]
    with pytest.raises(NotLeader), storing(remembering(kept), fresh, stored, NOW):
        raise NotLeader("another process leads")
    assert len(stored) == ASIDE
    with storing(remembering(kept), fresh, stored, NOW) as (_, is_stored):
        is_stored()
    assert len(kept) == 1


def test_a_flush_of_several_batches_names_only_what_is_stored(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.placing.MAX_HEADERS_BYTES", 50_000)
    put = bench.locked.put

    def checked(key: str, data: bytes, *, lock_until: datetime | None) -> None:
        if "/batch/" in key:
            named = {part.object for raw in decode_batch(data).headers for part in decode_header(raw).parts}
            for name in named:
                assert bench.locked.head(f"{LOG_ID}/{name}")
        put(key, data, lock_until=lock_until)

    monkeypatch.setattr(bench.locked, "put", checked)
    bench.log.append(TENANT, [draft(number) for number in range(2 * ASIDE)], now=NOW)
    assert len(list(bench.locked.list(f"{LOG_ID}/batch/"))) > 2
    _require_sound(bench, 2 * ASIDE)
