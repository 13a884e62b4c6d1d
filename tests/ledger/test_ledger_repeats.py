"""A changed row of the index stores no entry for the second time and refuses no repeat: the record decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from msgspec import structs
from sqlmodel import Session

from ledger import index
from ledger.batches import batch_key
from ledger.draft import PlacedState
from ledger.entry import decode_header
from ledger.models import RecorderBeat, RecorderRange
from ledger.repeats import ASKED, HELD, Lately
from tests.ledger.test_ledger_log import LOG_ID, NOW, TENANT, Bench, _require_sound, draft

OTHER = draft(10**6).entry_id


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    for model in (RecorderRange, RecorderBeat):
        model.metadata.tables[str(model.__tablename__)].create(made.engine, checkfirst=True)
    for start in range(0, 30, 10):
        made.log.append(TENANT, [draft(number) for number in range(start, start + 10)], now=NOW)
    yield made
    made.engine.dispose()


def change(bench: Bench, statement: str, **values: Any) -> None:
    with Session(bench.engine) as session:
        session.connection().execute(sa.text(statement), values)
        session.commit()


def rows(bench: Bench) -> list[tuple[Any, ...]]:
    with Session(bench.engine) as session:
        return [tuple(row) for row in session.connection().execute(sa.text("SELECT * FROM entry ORDER BY idx"))]


def states(bench: Bench, *numbers: int, content: bytes | None = None) -> list[tuple[PlacedState, int | None]]:
    placed = bench.log.append(TENANT, [draft(number, content=content) for number in numbers], now=NOW).placed
    return [(one.state, one.index) for one in placed]


@pytest.mark.parametrize("is_open", [True, False])
def test_a_changed_digest_refuses_no_repeat(bench: Bench, is_open: bool) -> None:
    before = rows(bench)
    change(bench, "UPDATE entry SET digest = :d WHERE idx = 12", d=b"x" * 16)
    if not is_open:
        bench.reopen()
    assert states(bench, 11, 12, 13) == [(PlacedState.DUPLICATE, idx) for idx in (11, 12, 13)]
    assert rows(bench) == before
    assert states(bench, 12, content=b"something else") == [(PlacedState.CONFLICT, None)]
    _require_sound(bench, 30)


@pytest.mark.parametrize(
    "statement", ["UPDATE entry SET entry_id = :o WHERE idx = 12", "DELETE FROM entry WHERE idx = 12 AND :o = :o"]
)
def test_a_changed_id_stores_no_repeat_for_the_second_time(bench: Bench, statement: str) -> None:
    before = rows(bench)
    change(bench, statement, o=index.raw_id(OTHER))
    assert states(bench, 12, 40) == [(PlacedState.DUPLICATE, 12), (PlacedState.STORED, 30)]
    assert rows(bench)[:30] == before
    _require_sound(bench, 31)


@pytest.mark.parametrize("is_open", [True, False])
def test_an_id_that_a_row_was_given_keeps_no_entry_out(bench: Bench, is_open: bool) -> None:
    before = rows(bench)
    change(bench, "UPDATE entry SET entry_id = :o WHERE idx = 12", o=index.raw_id(OTHER))
    if not is_open:
        bench.reopen()
    assert states(bench, 10**6) == [(PlacedState.STORED, 30)]
    assert rows(bench)[:30] == before
    assert states(bench, 12) == [(PlacedState.DUPLICATE, 12)]


def test_two_rows_that_were_given_each_others_ids_are_set_right(bench: Bench) -> None:
    before = rows(bench)
    ids = {number: index.raw_id(draft(number).entry_id) for number in (5, 25)}
    for at, to in ((5, index.raw_id(OTHER)), (25, ids[5]), (5, ids[25])):
        change(bench, "UPDATE entry SET entry_id = :o WHERE idx = :i", o=to, i=at)
    assert states(bench, 5, 25) == [(PlacedState.DUPLICATE, 5), (PlacedState.DUPLICATE, 25)]
    assert rows(bench) == before


def test_a_real_conflict_writes_nothing_anew(bench: Bench) -> None:
    before = rows(bench)
    bench.hot.fail_before(0)
    assert states(bench, *range(3), content=b"something else") == [(PlacedState.CONFLICT, None)] * 3
    assert rows(bench) == before


def test_what_cannot_be_set_right_is_told_to_its_own_caller_alone_and_a_batch_still_says_which_ids_it_has(
    bench: Bench,
) -> None:
    (line,) = [name for name in bench.hot.list(f"{LOG_ID}/index/") if f"{10:020d}" in name]
    bench.hot.replace(line, b"?")
    change(bench, "UPDATE entry SET entry_id = :o WHERE idx = 12", o=index.raw_id(OTHER))
    damaged = (PlacedState.DAMAGED, None)
    assert states(bench, 12, 14, 41) == [damaged, (PlacedState.DUPLICATE, 14), (PlacedState.STORED, 30)]
    assert states(bench, 10**6) == [damaged]
    assert bench.log.refusing == {}
    change(bench, "UPDATE entry SET entry_id = :o WHERE idx = 12", o=index.raw_id(draft(12).entry_id))
    assert states(bench, 12, 10**6) == [(PlacedState.DUPLICATE, 12), (PlacedState.STORED, 31)]
    assert states(bench, 13, content=b"something else") == [(PlacedState.CONFLICT, None)]


def test_a_batch_that_cannot_be_read_stops_no_call_whose_rows_are_there(bench: Bench) -> None:
    key = f"{LOG_ID}/{batch_key(10)}"
    bench.locked.alter(key, bench.locked.get(key)[:-1])
    assert states(bench, 13, content=b"something else") == [(PlacedState.CONFLICT, None)]
    assert states(bench, 14, 50) == [(PlacedState.DUPLICATE, 14), (PlacedState.STORED, 30)]
    change(bench, "DELETE FROM entry WHERE idx = 15")
    assert states(bench, 15, 51) == [(PlacedState.DAMAGED, None), (PlacedState.STORED, 31)]


def test_no_more_ids_are_held_than_said_and_the_newest_are(bench: Bench) -> None:
    lately = Lately()
    header = decode_header(bench.log.headers(TENANT, [0])[0])
    for first in range(0, HELD * 3, 1000):
        lately.note(first, [structs.replace(header, id=str(number)) for number in range(first, first + 1000)])
    found = lately.places({str(number) for number in range(HELD * 4)})
    assert HELD <= len(found) <= 2 * HELD + 1000
    assert sorted(found.values()) == [int(name) for name in sorted(found, key=int)]
    assert str(HELD * 3 - 1) in found
    assert "0" not in found


def test_one_flush_reads_no_more_batches_again_than_said(bench: Bench) -> None:
    for number in range(100, 100 + 2 * ASKED):
        bench.log.append(TENANT, [draft(number)], now=NOW)
    bench.reopen()
    bench.log.head(TENANT)
    reads: list[str] = []
    get = bench.locked.get

    def counted(key: str, **more: Any) -> bytes:
        reads.append(key)
        found: bytes = get(key, **more)
        return found

    bench.locked.get = counted
    assert set(states(bench, *range(100, 100 + 2 * ASKED), content=b"x")) == {(PlacedState.CONFLICT, None)}
    assert len([key for key in reads if "/batch/" in key]) == ASKED
