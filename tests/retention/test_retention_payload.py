"""The record's payload objects: gone when their lock is over and no key is left, never before; headers stay."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlmodel import col, delete, select, update

from api.verification import part_states
from audit.findings import Report
from audit.verify import verify
from erasure.payload_expiry import PayloadEnd
from erasure.sweep_copies import Sweeps
from ledger import expiry, payload_rows
from ledger.entry import Kind, decode_header, uuid7
from ledger.errors import ObjectMissing, StoreUnavailable
from ledger.expiry import Expiry
from ledger.models import EntryRow, LogState, PartPlaces, PayloadRow, PayloadWalk
from registry.playback import read_entries
from retention.sweep import Brakes
from vault.models import DataKey, KeyState, PartKey

ADA = "email:ada@example.org"
BOB = "email:bob@example.org"
LOCKED = {
    "state": "record",
    "retention": {"keep": "P2M", "from": "created", "then": "erase", "lock": "P1M"},
}
JUNE_LOCK = "payload/2040-07/"
"""Where parts of June lie that are locked for a month: to the end of July."""


@pytest.fixture
def locked(house: Any) -> Any:
    """A house with a class of the record that is locked for a month and kept for two."""
    house.plain("spoken", **LOCKED)
    house.plain("free", state="record", retention={"keep": "P1Y", "from": "created", "then": "erase"})
    return house


def objects(house: Any, prefix: str = "payload/") -> list[str]:
    names = house.services.locked.list(f"{house.log_id}/{prefix}")
    return [name.removeprefix(f"{house.log_id}/") for name in names]


def rows(house: Any) -> list[PayloadRow]:
    with house.transaction(write=False) as session:
        return list(session.exec(select(PayloadRow).order_by(col(PayloadRow.name))))


def audited(house: Any) -> Report:
    """What an auditor makes of the log, with the database's word about keys."""
    house.services.log.publish(house.tenant_id, house.now)
    return verify(
        house.services.locked,
        log_id=house.log_id,
        keys=[house.services.log.vkey(house.tenant_id)],
        hot=house.services.hot,
        part_states=part_states(lambda _tenant: house.transaction(write=False), house.tenant_id),
    )


def read(house: Any, entry_id: str) -> Any:
    with house.transaction(write=False) as session:
        rows = [row for row in session.exec(select(EntryRow)) if entry_id.replace("-", "") == row.entry_id.hex()]
        [found] = read_entries(session, house.services.vault, house.services.log, house.tenant_id, rows)
        return found


def move(house: Any, year: int, month: int, day: int, hour: int = 0) -> None:
    """Move the tests' clock, and that of the store."""
    house.now = datetime(year, month, day, hour, tzinfo=UTC)
    house.services.clock.move(house.now - house.services.clock.now())


def destroy(house: Any, data_class: str, request: str = "req_by_hand") -> list[str]:
    """Destroy the keys of a class as a person's erasure does, without one."""
    with house.transaction() as session:
        keys = [row.key_id for row in session.exec(select(DataKey).where(DataKey.data_class == data_class))]
        house.services.vault.mark_destroying(session, house.tenant_id, keys, request=request)
        house.services.vault.delete_wrapped(session, house.tenant_id, keys, now=house.now, request=request)
    return keys


def test_an_object_goes_with_the_first_pass_after_its_lock_and_its_keys_and_its_headers_stay(locked: Any) -> None:
    house = locked
    said = house.say("chat", "I live in Lima", "spoken")
    other = house.say("chat", "a screening", "free")
    [name] = objects(house, JUNE_LOCK)
    move(house, 2040, 9, 2)
    nothing = {"planned": 0, "orphans": 0, "unclear": 0, "capped": False, "deleted": 0, "bytes": 0}
    assert house.sweep()["payload_objects"] == nothing
    assert objects(house, JUNE_LOCK) == [name], "the keys went in this pass, after it had looked"
    house.now += timedelta(hours=1)
    run = house.sweep()
    assert run["payload_objects"]["deleted"] == run["payload_objects"]["planned"] == 1
    assert run["payload_objects"]["bytes"] > 0
    assert (run["state"], run["alarm"]) == ("completed", None)
    assert objects(house, JUNE_LOCK) == []
    report = audited(house)
    assert report.findings == ()
    assert (report.expired, report.erased) == (1, 0)
    assert [part.state for part in read(house, said).parts] == ["expired"]
    assert [part.state for part in read(house, other).parts] == ["verified"]
    proof = house.services.log.proof(house.tenant_id, read(house, said).row.idx, house.now)
    assert decode_header(proof.header).id == said


def test_an_erased_object_waits_for_the_end_of_its_lock(locked: Any) -> None:
    house = locked
    said = house.say("chat", "I live in Lima", "spoken")
    [name] = objects(house, JUNE_LOCK)
    destroy(house, "spoken")
    for month, day, hour in ((6, 20, 0), (7, 31, 23)):
        move(house, 2040, month, day, hour)
        assert house.sweep()["payload_objects"]["planned"] == 0
        assert objects(house, JUNE_LOCK) == [name]
    move(house, 2040, 8, 1)
    assert house.sweep()["payload_objects"]["deleted"] == 1
    assert objects(house, JUNE_LOCK) == []
    assert (audited(house).erased, audited(house).findings) == (1, ())
    assert [part.state for part in read(house, said).parts] == ["erased"]


def test_content_beside_a_skeleton_is_only_bytes_that_nothing_opens_until_that_ends_too(locked: Any) -> None:
    """ADR 30: without a lock both lie in one object, and the object has a live key as long as the skeleton has."""
    house = locked
    said = house.say("chat", "I live in Lima", "free")
    [name] = {part.object for part in read(house, said).header.parts}
    move(house, 2041, 7, 2)
    for _ in range(2):
        house.sweep()
        house.now += timedelta(hours=1)
    assert name in objects(house)
    assert [part.state for part in read(house, said).parts] == ["expired"]
    with house.transaction(write=False) as session:
        keys = session.exec(select(DataKey).where(col(DataKey.data_class).in_(("free", "skeleton")))).all()
    assert {(key.data_class, key.state, key.wrapped is None) for key in keys if key.month == "2040-06"} == {
        ("free", KeyState.DESTROYED, True), ("skeleton", KeyState.LIVE, False),
    }  # fmt: skip
    report = audited(house)
    assert (report.findings, report.expired) == ((), 1)
    move(house, 2047, 7, 2)
    for _ in range(2):
        house.sweep()
        house.now += timedelta(hours=1)
    assert name not in objects(house)
    assert read(house, said).header.id == said


def test_one_live_key_keeps_an_object(locked: Any) -> None:
    house = locked
    house.services.record.append(house.acting(), [entry(house, owner) for owner in (ADA, BOB)], house.now)
    [name] = objects(house, JUNE_LOCK)
    with house.transaction() as session:
        keys = [row.key_id for row in session.exec(select(DataKey).where(DataKey.data_class == "spoken"))]
        assert len(keys) == 2
        house.services.vault.mark_destroying(session, house.tenant_id, keys[:1], request="req_one")
        house.services.vault.delete_wrapped(session, house.tenant_id, keys[:1], now=house.now, request="req_one")
        # The other one is only about to go, which is no destruction.
        house.services.vault.mark_destroying(session, house.tenant_id, keys[1:], request="req_two")
    move(house, 2040, 8, 20)
    assert house.sweep()["payload_objects"]["planned"] == 0
    assert objects(house, JUNE_LOCK) == [name]
    assert not any(row.dirty for row in rows(house) if row.name == name), "it was looked into once"
    with house.transaction() as session:
        house.services.vault.delete_wrapped(session, house.tenant_id, keys[1:], now=house.now, request="req_two")
    house.now += timedelta(hours=1)
    assert house.sweep()["payload_objects"]["deleted"] == 1
    assert objects(house, JUNE_LOCK) == []


def test_a_lost_key_and_an_unknown_one_keep_an_object(locked: Any) -> None:
    house = locked
    house.say("chat", "I live in Lima", "spoken")
    house.say("chat", "me too", "spoken", BOB)
    names = objects(house, JUNE_LOCK)
    assert len(names) == 2
    keys = destroy(house, "spoken")
    with house.transaction() as session:
        session.exec(update(DataKey).where(col(DataKey.key_id) == keys[0]).values(state=KeyState.LOST))
        session.exec(update(PartPlaces).where(col(PartPlaces.key_id) == keys[1]).values(key_id="unheard-of"))
        expiry.mark(session, house.tenant_id, {row.batch_first for row in session.exec(select(EntryRow))})
    move(house, 2040, 8, 20)
    assert house.sweep()["payload_objects"]["planned"] == 0
    assert objects(house, JUNE_LOCK) == names


def test_a_part_with_a_key_of_its_own_keeps_its_object_until_that_one_ends(locked: Any) -> None:
    house = locked
    said = house.say("chat", "I live in Lima", "spoken")
    found = read(house, said)
    part = next(part for part in found.header.parts if part.role == "part.0")
    number = found.header.parts.index(part)
    with house.transaction() as session:
        session.add(
            PartKey(
                tenant_id=house.tenant_id,
                entry_id=said,
                part=number,
                idx=found.row.idx,
                key_id="the-data-key",
                group_no=0,
                epoch=0,
                wrapped=b"wrapped",
                ground="hold",
                created_at=house.now,
                state=KeyState.LIVE,
            )
        )
    destroy(house, "spoken")
    move(house, 2040, 8, 20)
    assert house.sweep()["payload_objects"]["planned"] == 0
    assert len(objects(house, JUNE_LOCK)) == 1
    move(house, 2040, 9, 2)
    with house.transaction() as session:
        house.services.vault.drop_parts(session, house.tenant_id, [(said, number)], now=house.now, request="swp_x")
    assert house.sweep()["payload_objects"]["deleted"] == 1
    assert objects(house, JUNE_LOCK) == []


def entry(house: Any, owner: str, data_class: str = "spoken", number: int = 0) -> bytes:
    said = {
        "id": uuid7(house.now + timedelta(milliseconds=number)),
        "stream": "chat",
        "kind": "note",
        "at": house.now.isoformat(),
        "data_class": data_class,
        "subjects": [owner],
        "body": {"text": f"said by {owner}"},
    }
    return json.dumps(said).encode()


def orphan(house: Any, folder: str, at: datetime, until: datetime | None = None) -> str:
    """What a crash between the payload object and its batch leaves."""
    name = f"payload/{folder}/{uuid7(at)}"
    house.services.locked.put(f"{house.log_id}/{name}", b"sealed", lock_until=until)
    return name


def test_an_object_that_no_batch_names_goes_when_its_lock_is_over_and_nothing_can_name_it_any_more(house: Any) -> None:
    house.say("chat", "something")
    free = orphan(house, "none", house.now)
    under_lock = orphan(house, "2040-07", house.now, datetime(2040, 8, 1, tzinfo=UTC))
    house.now += timedelta(hours=23)
    assert house.sweep()["payload_objects"]["planned"] == 0, "its batch may still be on its way"
    house.now += timedelta(hours=2)
    young = orphan(house, "none", house.now)
    run = house.sweep()
    assert (run["payload_objects"]["planned"], run["payload_objects"]["orphans"]) == (1, 1)
    assert {free, young, under_lock} & set(objects(house)) == {young, under_lock}
    move(house, 2040, 7, 20)
    house.sweep()
    assert {young, under_lock} & set(objects(house)) == {under_lock}
    move(house, 2040, 8, 3)
    assert house.sweep()["payload_objects"]["deleted"] == 1
    assert under_lock not in objects(house)


def test_an_object_is_no_orphan_while_a_batch_in_the_bucket_names_it_whatever_the_index_says(house: Any) -> None:
    house.say("chat", "something")
    before = objects(house)
    lose_rows(house)
    house.now += timedelta(days=3)
    run = house.sweep()
    assert run["payload_objects"]["planned"] == 0
    assert [name for name in before if name not in objects(house)] == []


def test_a_lock_that_the_store_holds_longer_than_the_name_says_is_kept(locked: Any) -> None:
    house = locked
    house.say("chat", "I live in Lima", "spoken")
    [name] = objects(house, JUNE_LOCK)
    destroy(house, "spoken")
    lock = house.services.settings.data / "objects" / ".lock" / house.log_id / name
    lock.write_text("2040-09-15T00:00:00+00:00")
    move(house, 2040, 8, 20)
    run = house.sweep()
    assert (run["payload_objects"]["planned"], run["payload_objects"]["deleted"]) == (1, 0)
    assert run["alarm"] == "1 payload objects that no key opens could not be deleted; the next run tries again"
    assert objects(house, JUNE_LOCK) == [name]
    house.now += timedelta(hours=1)
    assert house.sweep()["payload_objects"]["planned"] == 0, "it comes again when the lock is over"
    move(house, 2040, 9, 15)
    assert house.sweep()["payload_objects"]["deleted"] == 1


class Failing:
    """The store, whose delete fails before or after it took effect."""

    def __init__(self, inner: Any, *, after: bool) -> None:
        self._inner, self._after, self.failures = inner, after, 1

    def delete(self, key: str) -> None:
        if self.failures and not self._after:
            self.failures -= 1
            raise StoreUnavailable("as asked")
        self._inner.delete(key)
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("the answer was lost, as asked")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("after", [False, True])
def test_a_delete_that_fails_or_loses_its_answer_is_done_by_the_next_pass(locked: Any, after: bool) -> None:
    house = locked
    house.say("chat", "one", "spoken")
    house.say("chat", "two", "spoken", BOB)
    destroy(house, "spoken")
    move(house, 2040, 8, 20)
    store = Failing(house.services.locked, after=after)
    parts = replace(house.parts, payload=Expiry(store, house.parts.transactions, house.parts.payload._gone))
    house.sweeps = Sweeps(parts, brakes=Brakes(jump=timedelta(days=10_000)))
    run = house.sweep()
    assert (run["payload_objects"]["planned"], run["payload_objects"]["deleted"]) == (2, 1), "one fails, the other goes"
    [reason] = run["payload_objects"]["reasons"].values()
    assert "as asked" in reason
    assert run["alarm"].endswith(reason)
    house.now += timedelta(hours=1)
    assert house.sweep()["payload_objects"]["deleted"] == 1
    assert objects(house, JUNE_LOCK) == []
    assert house.sweep()["payload_objects"]["planned"] == 0


def test_a_crash_between_deleting_and_saying_so_is_healed_by_running_again(locked: Any) -> None:
    house = locked
    house.say("chat", "one", "spoken")
    destroy(house, "spoken")
    move(house, 2040, 8, 20)
    run = house.sweeps.start(house.acting(), house.now)
    [name] = objects(house, JUNE_LOCK)
    house.services.locked.delete(f"{house.log_id}/{name}")
    house.sweeps.run_due(house.tenant_id, house.now)
    done = house.sweeps.get(house.acting(), run["id"])
    assert (done["state"], done["payload_objects"]["deleted"], done["alarm"]) == ("completed", 1, None)


def test_a_key_that_turns_out_live_between_plan_and_delete_keeps_the_object(locked: Any) -> None:
    house = locked
    house.say("chat", "one", "spoken")
    keys = destroy(house, "spoken")
    move(house, 2040, 8, 20)
    run = house.sweeps.start(house.acting(), house.now)
    with house.transaction() as session:
        session.exec(update(DataKey).where(col(DataKey.key_id).in_(keys)).values(state=KeyState.LIVE))
    house.sweeps.run_due(house.tenant_id, house.now)
    assert house.sweeps.get(house.acting(), run["id"])["payload_objects"]["deleted"] == 0
    assert len(objects(house, JUNE_LOCK)) == 1


def test_a_pass_is_capped_and_the_next_one_goes_on(locked: Any) -> None:
    house = locked
    for number in range(3):
        house.say("chat", f"line {number}", "spoken")
    destroy(house, "spoken")
    move(house, 2040, 8, 20)
    house.sweeps._payload = PayloadEnd(house.parts.payload, house.parts.transactions, cap=2)
    first = house.sweep()["payload_objects"]
    assert (first["planned"], first["capped"]) == (2, True)
    assert len(objects(house, JUNE_LOCK)) == 1
    house.now += timedelta(hours=1)
    last = house.sweep()["payload_objects"]
    assert (last["deleted"], last["capped"]) == (1, False)


def test_a_dry_run_counts_and_deletes_nothing(locked: Any) -> None:
    house = locked
    house.say("chat", "one", "spoken")
    destroy(house, "spoken")
    move(house, 2040, 8, 20)
    run = house.sweep(dry_run=True)
    assert (run["state"], run["payload_objects"]["planned"]) == ("planned", 1)
    assert len(objects(house, JUNE_LOCK)) == 1
    assert house.sweep()["payload_objects"]["deleted"] == 1


def test_the_record_says_what_goes_before_it_goes(locked: Any) -> None:
    house = locked
    house.say("chat", "one", "spoken")
    destroy(house, "spoken")
    move(house, 2040, 8, 20)
    [name] = objects(house, JUNE_LOCK)
    house.sweeps.start(house.acting(), house.now)
    assert name in objects(house)
    with house.transaction(write=False) as session:
        planned = [row for row in session.exec(select(EntryRow)) if row.kind == "retention.planned"]
        [found] = read_entries(session, house.services.vault, house.services.log, house.tenant_id, planned)
    body = json.loads(found.parts[0].data or b"")
    assert body["payload"] == {"objects": 1, "names": expiry.Found(names=(name,)).digest}


def test_nothing_is_deleted_of_a_log_that_contradicts_itself(locked: Any) -> None:
    house = locked
    house.say("chat", "one", "spoken")
    destroy(house, "spoken")
    move(house, 2040, 8, 20)
    with house.transaction() as session:
        session.exec(update(LogState).values(read_only="a second history"))
    assert house.parts.payload.plan(house.tenant_id, house.now, cap=10) == expiry.Found()
    assert len(objects(house, JUNE_LOCK)) == 1


def test_an_object_that_vanished_although_its_key_lives_is_still_missing(locked: Any) -> None:
    house = locked
    said = house.say("chat", "one", "spoken")
    [name] = objects(house, JUNE_LOCK)
    (house.services.settings.data / "objects" / house.log_id / name).unlink()
    with pytest.raises(ObjectMissing):
        house.services.locked.get(f"{house.log_id}/{name}")
    assert [part.state for part in read(house, said).parts] == ["missing"]
    assert [finding.verdict.value for finding in audited(house).findings] == ["missing"]


def test_an_announcement_that_waited_longer_than_its_months_key_still_gets_into_the_record(house: Any) -> None:
    """The outbox stood still for ever: the key of an event's own month had ended when the clock jumped."""
    house.services.record.ship_outbox(house.tenant_id, house.now)
    with house.transaction() as session:
        house.services.record.announce(session, house.tenant_id, Kind.RETENTION_RAN, {"sweep": "swp_x"}, house.now)
    move(house, 2048, 6, 1)
    house.sweep()
    with house.transaction(write=False) as session:
        old = session.exec(select(DataKey).where(DataKey.data_class == "skeleton", DataKey.month == "2040-06")).one()
        assert old.state == KeyState.DESTROYED
    assert house.services.record.ship_outbox(house.tenant_id, house.now) > 0
    assert house.services.record.ship_outbox(house.tenant_id, house.now) == 0


def lose_rows(house: Any) -> None:
    """The index loses what it knows of objects, after the walk that would make it again is through."""
    house.sweep()
    with house.transaction() as session:
        assert session.get_one(PayloadWalk, (house.tenant_id, payload_rows.FILLED)).ended
        session.exec(delete(PayloadRow))
        session.exec(delete(PayloadWalk).where(col(PayloadWalk.what) != payload_rows.FILLED))


@pytest.mark.parametrize("lacks", [None, 0, 7])
def test_an_object_that_was_written_around_steps_of_the_clock_is_no_orphan_either(
    house: Any, lacks: int | None
) -> None:
    """The batches are not in the order of their times then, and the search for the one that names it relied on that."""
    for days in (0, 366, -366, -3, 3):
        house.now += timedelta(days=days)
        for number in range(3):
            house.say("chat", f"after {days} {number}")
    left = orphan(house, "none", house.now)
    before = objects(house)
    lose_rows(house)
    with house.transaction() as session:
        session.exec(delete(EntryRow).where(col(EntryRow.idx) == lacks))
    house.services.locked.put(f"{house.log_id}/batch/{'x' * 90}", b"no batch", lock_until=None)
    house.now += timedelta(days=3)
    assert house.sweep()["payload_objects"]["orphans"] == 1
    move(house, 2042, 8, 3)
    house.sweep()
    assert [name for name in before if name not in objects(house)] == [left]
