"""What the database says where a stream stands is not written into the log when it is wrong.

The rows that are believed when the next batch is made, and what a changed one can do:

- `log_state`: nothing, the newest batch is read at each start (`test_ledger_log`).
- `log_stream`, and `entry` where it says where a stream stands: nothing, tested here.
- `entry.idx` and `entry.batch_first`, from which the tree's tail is read at a start: nothing, tested here.
- `entry.entry_id` and `entry.digest`, from which a repeat is known: nothing while the process that sequenced the entry
  remembers it (`test_ledger_repeats`); later one that is sent again can be stored twice, and `verify` names the row.
- `recorder_range`: a recorder's numbers go into the headers as they were sent, the rows only say what was lost.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa
from msgspec.structs import replace
from sqlmodel import col

from ledger.batches import decode_batch
from ledger.draft import Draft
from ledger.entry import decode_header
from ledger.errors import RecordDamaged
from ledger.models import EntryRow, LogStream, RecorderRange
from ledger.positions import HELD, Positions
from tests.ledger.test_ledger_log import LOG_ID, NOW, TENANT, Bench, _require_sound, bench, draft

__all__ = ["bench"]

ID = f"{1:032x}"
STREAM = [
    *[("position", 3 ^ (1 << 8 * byte)) for byte in range(7)],
    ("position", 0),
    ("position", -1),
    *[("stream_no", 1 ^ (2 << 8 * byte)) for byte in range(7)],
    *[("stream_id", ID[:place] + "f" + ID[place + 1 :]) for place in (0, 15, 31)],
    ("tenant_id", TENANT + 1),
]
ENTRY = [
    *[("position", 2 ^ (1 << 8 * byte)) for byte in range(7)],
    *[("stream_no", 1 ^ (2 << 8 * byte)) for byte in range(7)],
    ("stream_no", 2),
    ("idx", 2**40),
    ("batch_first", 0),
    ("batch_first", 1),
    ("batch_first", 2**40),
    ("tenant_id", TENANT + 1),
]


def placed(bench: Bench) -> dict[str, list[int]]:
    """The positions of each stream, in the order of the log, as the batches say."""
    found: dict[str, list[int]] = {}
    for key in bench.locked.list(f"{LOG_ID}/batch/"):
        for header in map(decode_header, decode_batch(bench.locked.get(key)).headers):
            found.setdefault(header.stream, []).append(header.position)
    return found


def change(bench: Bench, model: type[Any], where: sa.ColumnElement[bool], **values: object) -> None:
    with bench.engine.begin() as connection:
        assert connection.execute(sa.update(model).where(where).values(**values)).rowcount == 1


def speak(bench: Bench) -> None:
    """Three entries in the first stream, the newest in a batch of its own, and two in another."""
    bench.log.append(TENANT, [draft(0), draft(1, stream=2)], now=NOW)
    bench.log.append(TENANT, [draft(2), draft(3, stream=2)], now=NOW)
    bench.log.append(TENANT, [draft(4)], now=NOW)


def require_right(bench: Bench, *, again: bool) -> None:
    if again:
        bench.reopen()
    bench.log.append(TENANT, [draft(5), draft(6, stream=2), draft(7, stream=3), draft(8)], now=NOW)
    assert placed(bench) == {ID: [0, 1, 2, 3, 4], f"{2:032x}": [0, 1, 2], f"{3:032x}": [0]}
    _require_sound(bench, 9)


@pytest.mark.parametrize("again", [True, False], ids=["started again", "running"])
@pytest.mark.parametrize(("column", "value"), STREAM)
def test_a_changed_row_of_a_stream_gives_no_entry_another_position(
    bench: Bench, column: str, value: object, again: bool
) -> None:
    """Replay of an untouched record told of a gap, or of a position twice, for ever after."""
    speak(bench)
    change(bench, LogStream, col(LogStream.stream_no) == 1, **{column: value})
    require_right(bench, again=again)
    with bench.engine.connect() as connection:
        query = sa.select(col(LogStream.stream_no), col(LogStream.stream_id), col(LogStream.position))
        rows = set(map(tuple, connection.execute(query)))
    assert {(1, ID, 5), (2, f"{2:032x}", 3), (3, f"{3:032x}", 1)} <= rows


@pytest.mark.parametrize(("column", "value"), ENTRY)
def test_a_changed_row_of_the_newest_entry_gives_no_entry_another_position(
    bench: Bench, column: str, value: object
) -> None:
    speak(bench)
    change(bench, EntryRow, col(EntryRow.idx) == 4, **{column: value})
    require_right(bench, again=True)


def test_a_row_of_a_stream_that_is_gone_is_written_as_the_batches_say(bench: Bench) -> None:
    speak(bench)
    with bench.engine.begin() as connection:
        connection.execute(sa.delete(LogStream))
    require_right(bench, again=True)


def test_a_stream_that_the_log_knows_under_another_id_gets_no_entry(bench: Bench) -> None:
    speak(bench)
    bench.reopen()
    changed = replace(draft(5), stream_id="f" * 32)
    with pytest.raises(RecordDamaged, match="stream 1 an id"):
        bench.log.append(TENANT, [changed], now=NOW)
    require_right(bench, again=False)


def test_the_numbers_of_a_recorder_go_into_the_log_as_they_were_sent(bench: Bench) -> None:
    def numbered(number: int) -> Draft:
        return replace(draft(number), recorder="ab" * 16, seq=number)

    RecorderRange.__table__.create(bench.engine, checkfirst=True)  # type: ignore[attr-defined] # SQLModel types no table
    bench.log.append(TENANT, [numbered(0), numbered(1)], now=NOW)
    change(bench, RecorderRange, col(RecorderRange.first) == 0, last=900)
    bench.log.append(TENANT, [numbered(2)], now=NOW)
    raws = [raw for key in bench.locked.list(f"{LOG_ID}/batch/") for raw in decode_batch(bench.locked.get(key)).headers]
    assert [json.loads(raw)["seq"] for raw in raws] == [0, 1, 2]


def test_no_more_streams_are_held_in_memory_than_said() -> None:
    held = Positions()
    header: Any = type("Header", (), {"position": 0})
    held.moved(range(HELD + 5), [header] * (HELD + 5))
    assert held.of(None, 0, {HELD + 4: "x"}) == ({HELD + 4: 1}, [])  # type: ignore[arg-type] # nothing is asked
    assert len(held._next) == HELD
