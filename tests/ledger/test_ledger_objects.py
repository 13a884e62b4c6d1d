"""The probe catches stores that break a promise, and the fake is as strict as the real thing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ledger.errors import (
    LockNotEnforced,
    ObjectExists,
    ObjectHidden,
    ObjectLocked,
    ObjectMissing,
    StoreUnavailable,
)
from ledger.memory_objects import MemoryStore
from ledger.objects import ObjectInfo, probe, require_kept

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
UNTIL = NOW + timedelta(days=1)


class Overwriting(MemoryStore):
    """Ignores If-None-Match, as Ceph 16.2 does on a versioned bucket."""

    def put(self, key: str, data: bytes | memoryview, *, lock_until: datetime | None) -> None:
        try:
            super().put(key, data, lock_until=lock_until)
        except ObjectExists:
            self.overwrite(key, data)


class Unlocking(MemoryStore):
    """Takes lock dates and drops them."""

    def put(self, key: str, data: bytes | memoryview, *, lock_until: datetime | None) -> None:
        super().put(key, data, lock_until=None)


class Deleting(MemoryStore):
    """Keeps the date and deletes all the same."""

    def delete(self, key: str) -> None:
        self.vanish(key)


class Shortening(MemoryStore):
    """Lets a lock be shortened, as moto does."""

    def retain(self, key: str, until: datetime | None, mode: str | None) -> None:
        self._objects[key].versions[0].until = until


class Marking(MemoryStore):
    """Answers a delete with a delete marker and calls that refused."""

    def delete(self, key: str) -> None:
        self.hide(key)
        raise ObjectLocked(key, None)


class Corrupting(MemoryStore):
    """Reads other bytes back."""

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        return super().get(key, offset=offset, length=length) + b"\x00"


class Dateless(MemoryStore):
    """Does not show its lock."""

    def head(self, key: str) -> ObjectInfo:
        info = super().head(key)
        return ObjectInfo(size=info.size, locked_until=None, mode=None, hidden=False, versions=1)


@pytest.mark.scenario("L23")
@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (Overwriting, "one wins"),
        (Unlocking, "the lock date is read back"),
        (Deleting, "delete is refused"),
        (Shortening, "a shorter lock is refused"),
        (Marking, "unchanged at the end"),
        (Corrupting, "unchanged at the end"),
        (Dateless, "the lock date is read back"),
    ],
)
def test_the_probe_names_the_promise_that_a_store_breaks(kind: type[MemoryStore], named: str) -> None:
    findings = probe(kind(lambda: NOW), NOW)
    broken = [finding.check for finding in findings if not finding.kept]
    assert any(named in check for check in broken)
    with pytest.raises(LockNotEnforced, match=named):
        require_kept(findings)


def test_a_store_without_lock_fails_the_probe_for_locked_stores() -> None:
    with pytest.raises(LockNotEnforced):
        require_kept(probe(MemoryStore(lambda: NOW, locked=False), NOW))


def test_no_findings_are_not_a_pass() -> None:
    with pytest.raises(LockNotEnforced):
        require_kept(())


@pytest.mark.scenario("L23")
def test_the_fake_refuses_shorter_and_weaker_locks_and_takes_longer_ones() -> None:
    store = MemoryStore(lambda: NOW)
    store.put("a", b"data", lock_until=UNTIL)
    for until, mode in ((UNTIL - timedelta(seconds=1), "COMPLIANCE"), (UNTIL, "GOVERNANCE"), (None, None)):
        with pytest.raises(ObjectLocked):
            store.retain("a", until, mode)
    store.retain("a", UNTIL + timedelta(days=1), "COMPLIANCE")
    assert store.head("a").locked_until == UNTIL + timedelta(days=1)


def test_what_lies_over_an_object_is_reported_and_the_first_version_described() -> None:
    store = MemoryStore(lambda: NOW)
    store.put("a", b"data", lock_until=UNTIL)
    store.overwrite("a", b"second version")
    info = store.head("a")
    assert (info.hidden, info.versions, info.size, info.locked_until) == (True, 2, 4, UNTIL)
    store.put("b", b"data", lock_until=UNTIL)
    store.hide("b")
    assert store.head("b").hidden
    assert list(store.list("")) == ["a"]
    with pytest.raises(ObjectHidden):
        store.get("b")
    store.put("b", b"again", lock_until=None)
    assert store.head("b").hidden
    with pytest.raises(ObjectLocked):
        store.delete("b")


def test_a_hostile_operator_can_alter_and_remove() -> None:
    store = MemoryStore(lambda: NOW)
    store.put("a", b"data", lock_until=UNTIL)
    store.alter("a", b"date")
    assert store.get("a") == b"date"
    store.vanish("a")
    with pytest.raises(ObjectMissing):
        store.get("a")


def test_failures_happen_before_or_after_the_write_they_were_asked_for() -> None:
    store = MemoryStore(lambda: NOW, locked=False)
    store.fail_before(1)
    store.put("a", b"1", lock_until=None)
    with pytest.raises(StoreUnavailable):
        store.put("b", b"1", lock_until=None)
    assert list(store.list("")) == ["a"]
    store.fail_after(0)
    with pytest.raises(StoreUnavailable):
        store.put("b", b"1", lock_until=None)
    assert list(store.list("")) == ["a", "b"]
    store.fail_before(0)
    with pytest.raises(StoreUnavailable):
        store.replace("a", b"2")
    assert store.get("a") == b"1"
    store.fail_after(0)
    with pytest.raises(StoreUnavailable):
        store.delete("a")
    assert list(store.list("")) == ["b"]
    store.put("c", b"1", lock_until=None)
    assert store.writes == 6
