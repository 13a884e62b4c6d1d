"""Payload objects among damage: what is damaged or is not ours stays and is told, and everything else goes on."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import col, delete, select

from ledger import expiry, payload_later, payload_rows
from ledger.batches import batch_key
from ledger.entry import uuid7
from ledger.expiry import ORPHAN
from ledger.models import LogState, PayloadRow, PayloadWalk
from ledger.payload_names import is_ours
from tests.retention.test_retention_payload import BOB, JUNE_LOCK, destroy, locked, move, objects, orphan, read, rows

__all__ = ["locked"]
pytestmark = pytest.mark.parametrize("house", ["sqlite"], indirect=True)


def batch_file(house: Any, entry_id: str) -> Path:
    first = read(house, entry_id).row.batch_first
    return Path(house.services.settings.data / "objects" / house.log_id / batch_key(first))


def damage(path: Path) -> bytes:
    """Change a byte of a file; what it was."""
    before = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    return before


def forget_rows(house: Any) -> None:
    """Leave the database as it was before objects had rows."""
    with house.transaction() as session:
        session.exec(delete(PayloadRow))
        session.exec(delete(PayloadWalk))


def test_one_damaged_batch_keeps_its_objects_and_no_others_and_is_told(locked: Any) -> None:
    """It once ended every pass of the tenant, so that nothing of it was ever deleted again."""
    house = locked
    first, second = house.say("chat", "one", "spoken"), house.say("chat", "two", "spoken", BOB)
    names = {one: read(house, one).header.parts[0].object for one in (first, second)}
    path = batch_file(house, first)
    before = damage(path)
    destroy(house, "spoken")
    move(house, 2040, 8, 20)
    run = house.sweep()
    assert objects(house, JUNE_LOCK) == [names[first]]
    # That of the content, and that of the skeleton.
    assert (run["payload_objects"]["deleted"], run["payload_objects"]["unclear"]) == (1, 2)
    assert "a batch that names them" in run["alarm"]
    assert "a batch that names them" in house.sweep()["alarm"], "it is told as long as it lasts"
    path.write_bytes(before)
    assert house.sweep()["payload_objects"]["deleted"] == 1
    assert objects(house, JUNE_LOCK) == []


def test_a_name_that_is_not_ours_is_never_deleted_and_stops_nothing(locked: Any) -> None:
    house = locked
    house.say("chat", "one", "spoken")
    other = uuid7(house.now)
    foreign = [
        f"payload/2040-07/{name}" for name in ("0readme", f"sub/{other}", f"{other}.bak", other.upper(), "x" * 90)
    ]
    assert not any(is_ours(name) for name in foreign)
    for name in [*foreign, f"payload/odd/{other}"]:
        house.services.locked.put(f"{house.log_id}/{name}", b"not ours", lock_until=None)
    left = orphan(house, "2040-07", house.now)
    with house.transaction() as session:
        # As an earlier version noted one.
        session.add(PayloadRow(tenant_id=house.tenant_id, name=foreign[1], batch_first=ORPHAN, dirty=True))
    destroy(house, "spoken")
    move(house, 2040, 8, 20)
    run = house.sweep()
    assert (run["payload_objects"]["deleted"], run["payload_objects"]["orphans"], run["alarm"]) == (2, 1, None)
    assert left not in objects(house)
    assert set(objects(house, JUNE_LOCK)) == set(foreign)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(True, id="keys go before the rows come"),
        pytest.param(False, id="keys go after", marks=pytest.mark.slow),
    ],
)
def test_objects_from_before_there_were_rows_are_deleted_too(locked: Any, *, before: bool) -> None:
    house = locked
    entries = [house.say("chat", f"line {number}", "spoken") for number in range(3)]
    whole = {(row.name, row.batch_first) for row in rows(house)}
    forget_rows(house)
    if before:
        destroy(house, "spoken")
    house.sweep()
    assert {(row.name, row.batch_first) for row in rows(house)} >= whole
    if not before:
        destroy(house, "spoken")
    assert len(objects(house, JUNE_LOCK)) == len(entries)
    move(house, 2040, 8, 20)
    assert house.sweep()["payload_objects"]["deleted"] == len(entries)
    assert objects(house, JUNE_LOCK) == []


def test_rows_are_made_a_bounded_number_of_batches_at_a_time_and_go_on_where_it_ended(
    locked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = locked
    monkeypatch.setattr(payload_rows, "_PAGE", 1)
    for number in range(3):
        house.say("chat", f"line {number}", "spoken")
    whole = {(row.name, row.batch_first) for row in rows(house)}
    forget_rows(house)
    house.services.locked.put(f"{house.log_id}/batch/{'x' * 90}", b"no batch", lock_until=None)
    made = []
    while not payload_rows.fill(house.services.locked, house.parts.transactions, house.tenant_id, house.log_id, read=1):
        made.append(len(rows(house)))
    assert sorted(set(made)) == made
    assert len(made) >= 3
    assert {(row.name, row.batch_first) for row in rows(house)} == whole


def test_a_batch_that_is_not_indexed_yet_gets_no_rows_but_from_its_writer(locked: Any) -> None:
    """Rows that were there already would keep the writer from ever indexing the batch."""
    house = locked
    house.say("chat", "one", "spoken")
    last = house.say("chat", "two", "spoken", BOB)
    destroy(house, "spoken")
    first = read(house, last).row.batch_first
    name = read(house, last).header.parts[0].object
    forget_rows(house)
    with house.transaction() as session:
        state = session.get(LogState, house.tenant_id)
        whole, state.size = state.size, first
        session.add(state)
    house.now += timedelta(days=80)
    house.services.clock.move(timedelta(days=80))
    assert house.parts.payload.mark(house.tenant_id, house.now) > 0
    assert name not in house.parts.payload.plan(house.tenant_id, house.now, cap=10).all
    assert max(row.batch_first for row in rows(house)) < first
    with house.transaction() as session:
        session.get(LogState, house.tenant_id).size = whole
        expiry.mark(session, house.tenant_id, [ORPHAN])
    assert name in house.parts.payload.plan(house.tenant_id, house.now, cap=10).all


def test_an_object_whose_batch_was_damaged_while_rows_were_made_is_judged_when_that_is_whole(locked: Any) -> None:
    house = locked
    said = house.say("chat", "one", "spoken")
    forget_rows(house)
    destroy(house, "spoken")
    path = batch_file(house, said)
    before = damage(path)
    move(house, 2040, 8, 20)
    assert house.sweep()["payload_objects"]["unclear"] == 2
    assert len(objects(house, JUNE_LOCK)) == 1
    path.write_bytes(before)
    assert house.sweep()["payload_objects"]["deleted"] == 1
    assert objects(house, JUNE_LOCK) == []


def test_an_object_that_two_batches_name_is_counted_once(locked: Any) -> None:
    house = locked
    house.say("chat", "one", "spoken")
    with house.transaction() as session:
        for name, size, first in (("payload/none/a", 7, 1), ("payload/none/a", 7, 2), ("payload/none/b", 5, 2)):
            row = PayloadRow(tenant_id=house.tenant_id, name=name, batch_first=first, size=size, owner="swp_x")
            row.deleted_at = house.now
            session.add(row)
    with house.transaction(write=False) as session:
        assert expiry.deleted_by(session, house.tenant_id, "swp_x") == (2, 12)
        assert len(session.exec(select(PayloadRow).where(col(PayloadRow.owner) == "swp_x")).all()) == 3


def test_an_object_whose_row_names_a_batch_that_does_not_name_it_stays(locked: Any) -> None:
    """Nothing of it is in that batch, and that nothing has a key left would be true of nothing."""
    house = locked
    alive, gone = house.say("chat", "one", "spoken"), house.say("chat", "two", "free")
    [name] = {part.object for part in read(house, alive).header.parts if JUNE_LOCK in part.object}
    destroy(house, "free")
    with house.transaction() as session:
        [row] = session.exec(select(PayloadRow).where(PayloadRow.name == name))
        row.batch_first, row.dirty = read(house, gone).row.batch_first, True
        session.add(row)
    move(house, 2040, 8, 20)
    house.sweep()
    assert name in objects(house)
    assert [part.state for part in read(house, alive).parts] == ["verified"]


def test_a_row_that_asks_for_an_object_in_a_hundred_years_delays_nothing(
    locked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes stayed for ever, and nothing was said: a later date is what a longer lock looks like."""
    house = locked
    monkeypatch.setattr(payload_later, "LOOKED_AT", 1)
    said = house.say("chat", "one", "spoken")
    names = {part.object for part in read(house, said).header.parts if JUNE_LOCK in part.object}
    names |= {orphan(house, folder, house.now) for folder in ("2040-07", "none")}
    destroy(house, "spoken")
    move(house, 2040, 8, 20)
    # Noted by what a pass does first, and not deleted yet.
    assert house.parts.payload.mark(house.tenant_id, house.now) == len(names) - 1
    with house.transaction() as session:
        late = session.exec(select(PayloadRow).where(col(PayloadRow.name).in_(names))).all()
        assert len(late) == len(names)
        for row in late:
            row.until, row.dirty = house.now + timedelta(days=36_500), True
            session.add(row)
    passes = 0
    while names & set(objects(house)):
        passes += 1
        assert passes <= len(names)
        house.sweep()


def test_a_store_that_keeps_an_object_longer_is_asked_and_nothing_is_written(locked: Any) -> None:
    house = locked
    name = read(house, house.say("chat", "one", "spoken")).header.parts[0].object
    destroy(house, "spoken")
    lock = house.services.settings.data / "objects" / ".lock" / house.log_id / name
    lock.write_text("2040-09-15T00:00:00+00:00")
    move(house, 2040, 8, 20)
    house.sweep()
    when = [row.until for row in rows(house) if row.name == name]
    house.now += timedelta(hours=1)
    asked = payload_later.hasten(
        house.services.locked, house.parts.transactions, house.tenant_id, house.log_id, house.now
    )
    assert (asked, [row.until for row in rows(house) if row.name == name]) == (0, when)
