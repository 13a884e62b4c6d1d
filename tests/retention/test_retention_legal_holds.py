"""A hold reaches the stores: legal holds on objects of the record and on artifacts, set, kept, lifted again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import boto3
import pytest
from botocore.config import Config
from sqlmodel import col, select

from connectors.base import open_connector
from connectors.errors import StoreUnreachable
from erasure.errors import HoldNotCarried
from erasure.legal_holds import LegalHolds
from erasure.sweep_copies import Sweeps
from ledger.batches import batch_key
from ledger.errors import ObjectLocked, StoreDenied, StoreUnavailable
from ledger.holding import Holding
from ledger.models import PayloadRow
from registry import artifacts
from registry.stores import put_store
from retention.models import StoreHoldRow
from retention.sweep import Brakes

ADA = "email:ada@example.org"
BOB = "email:bob@example.org"
LOCKED = {"state": "record", "retention": {"keep": "P2M", "from": "created", "then": "erase", "lock": "P1M"}}


@pytest.fixture
def locked(house: Any) -> Any:
    """A house with a class of the record that is locked for a month and kept for two."""
    house.plain("spoken", **LOCKED)
    house.plain("other", **LOCKED)
    return house


def hold(house: Any, **selector: Any) -> str:
    spec = {"name": "acme", "matter": "Acme v. us", "reason": "letter", "selector": selector}
    return str(house.holds.place(house.acting("ann"), spec, house.now)["id"])


def release(house: Any, hold_id: str) -> None:
    house.holds.release(house.acting("bea"), hold_id, preview=False, now=house.now)


def settle(house: Any) -> int:
    """Look until everything is as it should be; how much changed."""
    changed, looks = 0, 0
    while done := LegalHolds(house.parts).run(house.tenant_id, house.now):
        changed, looks = changed + done, looks + 1
        assert looks < 50
    return changed


def held(house: Any) -> set[str]:
    """The objects under a legal hold, as the store says; compared with what the rows say."""
    store = house.services.locked
    keys = store.list(f"{house.log_id}/payload/")
    found = {key.removeprefix(f"{house.log_id}/") for key in keys if store.head(key).held}
    with house.transaction(write=False) as session:
        assert {row.name for row in session.exec(select(PayloadRow).where(col(PayloadRow.held).is_(True)))} == found
    return found


def said(house: Any, *arguments: str) -> set[str]:
    """Say something; the objects that came with it and are locked for their class."""
    before = set(house.services.locked.list(f"{house.log_id}/payload/2040-07/"))
    house.say(*arguments)
    after = set(house.services.locked.list(f"{house.log_id}/payload/2040-07/"))
    return {key.removeprefix(f"{house.log_id}/") for key in after - before}


def move(house: Any, year: int, month: int, day: int) -> None:
    house.now = datetime(year, month, day, tzinfo=UTC)
    house.services.clock.move(house.now - house.services.clock.now())


@pytest.mark.parametrize("by", ["subjects", "data_classes", "scope"])
def test_objects_with_a_held_part_are_held_and_no_others_and_let_go_at_the_release(locked: Any, by: str) -> None:
    house = locked
    mine, others = said(house, "chat", "I live in Lima", "spoken"), said(house, "talk", "me too", "other", BOB)
    selectors: dict[str, dict[str, Any]] = {
        "subjects": {"subjects": [ADA]},
        "data_classes": {"data_classes": ["spoken"]},
        "scope": {"scope": {"conversation": "chat"}},
    }
    placed = hold(house, **selectors[by])
    assert held(house) == set()
    assert settle(house) > 0
    assert mine <= held(house)
    assert not others & held(house)
    later = said(house, "chat", "and I moved", "spoken")
    settle(house)
    assert later <= held(house)
    assert settle(house) == 0, "nothing is left to do"
    release(house, placed)
    settle(house)
    assert held(house) == set()


def test_a_held_object_is_not_deleted_and_its_lock_does_not_end_before_the_hold(locked: Any) -> None:
    house = locked
    [name] = said(house, "chat", "I live in Lima", "spoken")
    placed = hold(house, subjects=[ADA])
    settle(house)
    key = f"{house.log_id}/{name}"
    for month in (7, 8, 9, 10):
        move(house, 2040, month, 25)
        settle(house)
        assert house.services.locked.head(key).locked_until > house.now, "the lock goes with the hold"
    with pytest.raises(ObjectLocked):
        house.services.locked.delete(key)
    house.sweep()
    assert house.services.locked.head(key).held
    release(house, placed)
    settle(house)
    house.sweep()
    house.now += timedelta(hours=1)
    assert house.sweep()["payload_objects"]["deleted"] == 0, "a lock that was prolonged is never shortened"
    move(house, 2041, 2, 1)
    assert house.sweep()["payload_objects"]["deleted"] == 1


def test_two_holds_on_one_object_free_it_when_the_last_one_ends(locked: Any) -> None:
    house = locked
    mine = said(house, "chat", "I live in Lima", "spoken")
    first, second = hold(house, subjects=[ADA]), hold(house, data_classes=["spoken"])
    settle(house)
    release(house, first)
    settle(house)
    assert mine <= held(house)
    release(house, second)
    settle(house)
    assert held(house) == set()


def test_without_holds_a_look_asks_nothing_of_the_record(house: Any) -> None:
    house.say("chat", "something")
    LegalHolds(house.parts).run(house.tenant_id, house.now)
    assert LegalHolds(house.parts).run(house.tenant_id, house.now) == 0
    assert held(house) == set()


class Stubborn:
    """The record's store, which takes no hold for one object, and says that it is refused or that it is away."""

    def __init__(self, inner: Any, name: str, error: type[StoreDenied | StoreUnavailable]) -> None:
        self._inner, self.name, self.error = inner, name, error

    def hold(self, key: str, *, on: bool) -> None:
        if key.endswith(self.name):
            raise self.error("as asked")
        self._inner.hold(key, on=on)

    def prolong(self, key: str, until: datetime) -> None:
        self._inner.prolong(key, until)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("house", ["sqlite"], indirect=True)
@pytest.mark.parametrize("error", [StoreDenied, pytest.param(StoreUnavailable, marks=pytest.mark.slow)])
def test_an_object_that_cannot_be_held_is_told_and_tried_again_and_keeps_no_other_from_being_held(
    locked: Any, monkeypatch: pytest.MonkeyPatch, error: type[StoreDenied | StoreUnavailable]
) -> None:
    house = locked
    monkeypatch.setattr("erasure.legal_holds.SPAN", 1)
    [first], [second] = said(house, "chat", "one", "spoken"), said(house, "chat", "two", "spoken")
    stubborn = Stubborn(house.services.locked, first, error)
    house.parts = replace(house.parts, holding=Holding(stubborn, house.parts.transactions, house.services.hot))
    hold(house, subjects=[ADA])
    for _ in range(2):
        with pytest.raises(HoldNotCarried, match=first) as told:
            settle(house)
        assert set(told.value.refused) == {first}
        with contextlib.suppress(HoldNotCarried):
            settle(house)
        assert first not in held(house)
        assert second in held(house)
    stubborn.name = "none"
    settle(house)
    assert {first, second} <= held(house)


@pytest.mark.parametrize("house", ["sqlite"], indirect=True)
def test_one_damaged_batch_has_all_its_objects_held_and_stops_neither_the_others_nor_their_locks(locked: Any) -> None:
    """Its error once ended the look, before any lock was prolonged, every time again."""
    house = locked
    [old] = said(house, "chat", "already held", "spoken")
    hold(house, subjects=[ADA])
    settle(house)
    [first], [second] = said(house, "chat", "one", "spoken"), said(house, "chat", "two", "spoken")
    with house.transaction(write=False) as session:
        query = select(PayloadRow.batch_first).where(PayloadRow.name == first)
        path = house.services.settings.data / "objects" / house.log_id / batch_key(session.exec(query).one())
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1])
    move(house, 2040, 7, 25)
    settle(house)
    assert {old, first, second} <= held(house)
    settle(house)
    locks = [house.services.locked.head(f"{house.log_id}/{name}").locked_until for name in (old, first, second)]
    assert min(locks) > datetime(2040, 8, 1, tzinfo=UTC)


@pytest.mark.parametrize("house", ["sqlite"], indirect=True)
def test_one_lock_that_cannot_be_read_ends_no_other_under_a_hold(locked: Any) -> None:
    house = locked
    [first], [second] = said(house, "chat", "one", "spoken"), said(house, "chat", "two", "spoken")
    hold(house, subjects=[ADA])
    settle(house)
    lock = house.services.settings.data / "objects" / ".lock" / house.log_id / first
    lock.write_text("2040-08-01T00:00:00+00:0?")
    move(house, 2040, 7, 25)
    settle(house)
    assert house.services.locked.head(f"{house.log_id}/{second}").locked_until > datetime(2040, 8, 1, tzinfo=UTC)
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        house.services.locked.head(f"{house.log_id}/{first}")


class Blobs:
    """A bucket with Object Lock as a registered store; `fail` lets the next connection fail."""

    def __init__(self, house: Any, service: Any, *, locked: bool) -> None:
        self.house, self.fail = house, False
        self.s3 = boto3.client(
            "s3",
            endpoint_url=service.endpoint,
            aws_access_key_id=service.access_key,
            aws_secret_access_key=service.secret_key,
            region_name="us-east-1",
            config=Config(request_checksum_calculation="when_required"),
        )
        self.bucket = f"held-{house.tenant_id}"
        self.s3.create_bucket(Bucket=self.bucket, ObjectLockEnabledForBucket=locked)
        self.config = {"bucket": self.bucket, "endpoint_url": service.endpoint}
        keys = {"access_key": service.access_key, "secret_key": service.secret_key}

        def connect(store: Any, read_only: bool) -> Any:
            if store.kind != "s3":
                return house.services.connect(store, read_only)
            if self.fail:
                raise StoreUnreachable("s3")
            return open_connector("s3", {**store.config, **keys}, secrets=str, read_only=read_only)

        house.parts = replace(house.parts, connect=connect)
        house.sweeps = Sweeps(house.parts, brakes=Brakes(jump=timedelta(days=10_000)))
        with house.transaction() as session:
            spec = {"kind": "s3", "config": {**self.config, "owner_field": "owner"}}
            put_store(session, house.acting(), "blobs", spec, house.now, check_target=lambda *_: None)

    def put(self, key: str, owner: str = ADA, data_class: str = "note") -> str:
        self.s3.put_object(Bucket=self.bucket, Key=key, Body=f"said by {owner}".encode(), Metadata={"owner": owner})
        item = {"data_class": data_class, "store": "blobs", "locator": {"key": key}, "subjects": [owner]}
        house = self.house
        with house.transaction() as session:
            [result] = artifacts.register(session, house.services.vault, house.acting(), [item], house.now)
        return str(result["id"])

    def state(self, key: str) -> str | None:
        try:
            found = self.s3.head_object(Bucket=self.bucket, Key=key)
        except self.s3.exceptions.ClientError:
            return None
        return str(found.get("ObjectLockLegalHoldStatus", "OFF"))

    def rows(self) -> list[StoreHoldRow]:
        with self.house.transaction(write=False) as session:
            return list(session.exec(select(StoreHoldRow)))


@pytest.fixture
def blobs(house: Any, s3_service: Any) -> Iterator[Blobs]:
    house.plain("note")
    made = Blobs(house, s3_service, locked=True)
    yield made
    made.s3.close()


@pytest.mark.s3
@pytest.mark.scenario("E10")
def test_one_of_ten_objects_is_held_in_its_bucket_and_nine_end(house: Any, blobs: Blobs) -> None:
    kept = blobs.put("0")
    for number in range(1, 10):
        blobs.put(str(number))
    placed = hold(house, artifacts=[kept])
    settle(house)
    assert [blobs.state(str(number)) for number in range(10)] == ["ON", *["OFF"] * 9]
    [listed] = house.holds.holds(house.acting())
    assert (listed["items"], listed["at_stores"]) == (1, {"set": 1})
    house.now += timedelta(days=100)
    assert house.sweep()["counts"]["removed"] == 9
    assert [blobs.state(str(number)) for number in range(10)] == ["ON", *[None] * 9]
    release(house, placed)
    settle(house)
    assert blobs.state("0") == "OFF"
    assert blobs.rows() == []
    assert house.sweep()["counts"]["removed"] == 1
    assert blobs.state("0") is None


@pytest.mark.s3
def test_somebody_elses_hold_in_the_bucket_is_left_alone(house: Any, blobs: Blobs) -> None:
    blobs.put("0")
    blobs.s3.put_object_legal_hold(Bucket=blobs.bucket, Key="0", LegalHold={"Status": "ON"})
    placed = hold(house, subjects=[ADA])
    settle(house)
    assert [row.versions for row in blobs.rows()] == [[]]
    release(house, placed)
    settle(house)
    assert blobs.state("0") == "ON"
    house.now += timedelta(days=100)
    run = house.sweep()
    assert run["counts"]["removed"] == 0
    assert run["alarm"] is not None


def set_by_hand(blobs: Blobs, key: str, status: Literal["ON", "OFF"], version: str | None = None) -> None:
    """What somebody else does in the bucket, to the newest version or another one."""
    newest = blobs.s3.head_object(Bucket=blobs.bucket, Key=key)["VersionId"]
    blobs.s3.put_object_legal_hold(
        Bucket=blobs.bucket, Key=key, LegalHold={"Status": status}, VersionId=version or newest
    )


@pytest.mark.s3
def test_in_a_bucket_that_others_hold_in_too_ours_is_left_until_a_person_lifts_it(house: Any, blobs: Blobs) -> None:
    with house.transaction() as session:
        spec = {"kind": "s3", "config": {**blobs.config, "owner_field": "owner", "legal_holds": "shared"}}
        put_store(session, house.acting(), "blobs", spec, house.now, check_target=lambda *_: None)
    blobs.put("0")
    placed = hold(house, subjects=[ADA])
    settle(house)
    set_by_hand(blobs, "0", "ON")  # which nobody can see
    release(house, placed)
    settle(house)
    assert blobs.state("0") == "ON"
    [row] = blobs.rows()
    assert (row.state, "lift it by hand" in row.detail) == ("left", True)
    house.now += timedelta(days=100)
    assert house.sweep()["counts"]["removed"] == 0
    set_by_hand(blobs, "0", "OFF")
    settle(house)
    assert blobs.rows() == []
    assert house.sweep()["counts"]["removed"] == 1


@pytest.mark.s3
def test_a_hold_of_somebody_else_on_another_version_leaves_ours_as_well(house: Any, blobs: Blobs) -> None:
    """Who holds a key holds what is there: the version that we held before may be meant too."""
    blobs.put("0")
    placed = hold(house, subjects=[ADA])
    settle(house)
    [first] = blobs.rows()[0].versions
    made = blobs.s3.put_object(Bucket=blobs.bucket, Key="0", Body=b"a second version", Metadata={"owner": ADA})
    set_by_hand(blobs, "0", "ON", made["VersionId"])
    release(house, placed)
    settle(house)
    assert [row.state for row in blobs.rows()] == ["left"]
    found = blobs.s3.head_object(Bucket=blobs.bucket, Key="0", VersionId=first)
    assert found["ObjectLockLegalHoldStatus"] == "ON"
    set_by_hand(blobs, "0", "OFF", made["VersionId"])
    house.now += timedelta(days=1)
    settle(house)
    assert blobs.rows() == [], "now it is ours alone again"
    found = blobs.s3.head_object(Bucket=blobs.bucket, Key="0", VersionId=first)
    assert found.get("ObjectLockLegalHoldStatus", "OFF") == "OFF"


@pytest.mark.s3
def test_a_hold_that_somebody_lifted_while_it_was_in_force_is_set_again_and_lifted_by_nobody_here(
    house: Any, blobs: Blobs
) -> None:
    blobs.put("0")
    placed = hold(house, subjects=[ADA])
    settle(house)
    set_by_hand(blobs, "0", "OFF")
    house.now += timedelta(days=1)
    settle(house)
    assert blobs.state("0") == "ON"
    [listed] = house.holds.holds(house.acting())
    assert listed["at_stores"] == {"contested": 1}
    release(house, placed)
    settle(house)
    assert (blobs.state("0"), [row.state for row in blobs.rows()]) == ("ON", ["contested"])
    set_by_hand(blobs, "0", "OFF")
    house.now += timedelta(days=1)
    settle(house)
    assert blobs.rows() == []


@pytest.mark.s3
def test_a_store_that_is_silent_at_the_release_is_asked_again(house: Any, blobs: Blobs) -> None:
    blobs.put("0")
    placed = hold(house, subjects=[ADA])
    settle(house)
    release(house, placed)
    blobs.fail = True
    LegalHolds(house.parts).run(house.tenant_id, house.now)
    assert blobs.state("0") == "ON"
    blobs.fail = False
    settle(house)
    assert blobs.state("0") == "OFF"


@pytest.mark.s3
def test_a_version_that_comes_under_a_hold_is_held_within_a_day_and_freed_with_it(house: Any, blobs: Blobs) -> None:
    blobs.put("0")
    placed = hold(house, subjects=[ADA])
    settle(house)
    blobs.s3.put_object(Bucket=blobs.bucket, Key="0", Body=b"a second version", Metadata={"owner": ADA})
    assert blobs.state("0") == "OFF"
    house.now += timedelta(days=1)
    settle(house)
    assert blobs.state("0") == "ON"
    assert [len(row.versions) for row in blobs.rows()] == [2]
    release(house, placed)
    settle(house)
    house.now += timedelta(days=100)
    assert house.sweep()["counts"]["removed"] == 1


@pytest.mark.s3
def test_a_bucket_without_object_lock_is_said_to_refuse_and_the_hold_holds_all_the_same(
    house: Any, s3_service: Any
) -> None:
    house.plain("note")
    blobs = Blobs(house, s3_service, locked=False)
    blobs.put("0")
    hold(house, subjects=[ADA])
    settle(house)
    [listed] = house.holds.holds(house.acting())
    assert listed["at_stores"] == {"refused": 1}
    house.now += timedelta(days=100)
    assert house.sweep()["kept"] == {"hold": 1}
    assert blobs.state("0") == "OFF"
    blobs.s3.close()


def forgotten(house: Any) -> None:
    """The database is as after a rebuild: it does not know which objects are held."""
    with house.transaction() as session:
        for row in session.exec(select(PayloadRow).where(col(PayloadRow.held).is_(True))):
            row.held = False
            session.add(row)


def test_a_hold_that_no_row_knows_of_is_found_by_the_pass_that_meets_it_and_lifted(locked: Any) -> None:
    """After a rebuild nothing says which objects were held: one whose hold had ended would have stayed for ever."""
    house = locked
    said(house, "chat", "I live in Lima", "spoken")
    placed = hold(house, subjects=[ADA])
    settle(house)
    release(house, placed)
    forgotten(house)
    settle(house)
    move(house, 2040, 9, 2)
    house.sweep()
    house.now += timedelta(hours=1)
    run = house.sweep()
    assert (run["payload_objects"]["planned"], run["payload_objects"]["deleted"]) == (1, 0)
    assert settle(house) > 0
    assert held(house) == set()
    house.now += timedelta(days=1, hours=1)
    assert house.sweep()["payload_objects"]["deleted"] == 1


@pytest.mark.parametrize("house", ["sqlite"], indirect=True)
@pytest.mark.parametrize("rebuilt", [False, True])
def test_somebody_elses_hold_on_an_object_of_the_record_stays_when_ours_ends(locked: Any, rebuilt: bool) -> None:
    """Every hold in the record's own bucket counted as ours, and was lifted with it."""
    house = locked
    [theirs], [ours] = said(house, "chat", "one", "spoken"), said(house, "chat", "two", "spoken")
    house.services.locked.hold(f"{house.log_id}/{theirs}", on=True)
    placed = hold(house, subjects=[ADA])
    settle(house)
    assert {theirs, ours} <= held(house)
    if rebuilt:
        forgotten(house)
        again = hold(house, data_classes=["spoken"])
        settle(house)
        release(house, again)
    release(house, placed)
    settle(house)
    store = house.services.locked
    assert [store.head(f"{house.log_id}/{name}").held for name in (theirs, ours)] == [True, False]
    move(house, 2040, 9, 2)
    run = house.sweep()
    for _ in range(2):
        settle(house)
        house.now += timedelta(days=1, hours=1)
        run = house.sweep()
    assert store.head(f"{house.log_id}/{theirs}").held, "no pass lifts or deletes it"
    assert "could not be deleted" in run["alarm"]
    assert theirs in run["alarm"]
    store.hold(f"{house.log_id}/{theirs}", on=False)
    settle(house)
    house.now += timedelta(days=1, hours=1)
    assert house.sweep()["payload_objects"]["deleted"] == 1


@pytest.mark.parametrize("house", ["sqlite"], indirect=True)
def test_a_hold_whose_mark_was_written_before_a_crash_is_ours(locked: Any) -> None:
    house = locked
    [name] = said(house, "chat", "one", "spoken")
    house.parts = replace(house.parts, holding=Holding(Stubborn(house.services.locked, name, StoreDenied),
                                                       house.parts.transactions, house.services.hot))  # fmt: skip
    placed = hold(house, subjects=[ADA])
    with pytest.raises(HoldNotCarried):
        settle(house)
    house.parts = replace(
        house.parts, holding=Holding(house.services.locked, house.parts.transactions, house.services.hot)
    )
    settle(house)
    assert name in held(house)
    release(house, placed)
    settle(house)
    assert held(house) == set()
    assert not list(house.services.hot.list(f"{house.log_id}/held/")), "and no mark is left"
