"""The object-store port: what the log needs from storage, and the probe that checks it is kept.

`ObjectStore` is the contract; `files.py`, `s3.py` and `memory_objects.py` keep it, and one suite of tests
holds all three to it. The log trusts two promises and nothing else: a key is created once, and a locked
object stays until its date. `probe` tries both on the live store. The port does not encrypt, does not
know what lies in an object, and has no way to lift a lock.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

from ledger.errors import LedgerError, LockNotEnforced, ObjectExists, ObjectLocked, ObjectMissing, StoreDenied

MAX_KEY = 512
PROBE_PREFIX = "probe/"
PROBE_LOCK = timedelta(hours=1)
# Stores round lock dates to whole seconds; ours are rounded up before they are sent.
LOCK_TOLERANCE = timedelta(seconds=1)

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199})*")
_RACERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """What a store knows about one object. `hidden`: a delete marker or a second version lies over it.

    Size, lock, mode and legal hold are those of the oldest version, the one that was created first.
    """

    size: int
    locked_until: datetime | None
    mode: str | None
    hidden: bool
    versions: int
    held: bool = False


class ObjectStore(Protocol):
    """A store of whole objects, each written once.

    Every method may raise StoreUnavailable (nobody knows whether a write happened: do it again, see
    `put`) and StoreDenied (a right is missing, the key is not one, a lock date is not in the future).
    Keys are ASCII as `check_key` asks; no key is a folder of another. A method returns only when its
    effect is durable. A locked store keeps what has a lock date until that date; a hot store refuses lock
    dates and has `replace` in addition.
    """

    def put(self, key: str, data: bytes | memoryview, *, lock_until: datetime | None) -> None:
        """Create the object, with its lock in the same step; `None` is no lock. A view is read in place, not copied.

        Of many callers that want one key exactly one returns. A store that retries inside `put` after
        a lost answer tells its own object from another's by its bytes. A caller that got
        StoreUnavailable puts again, and on ObjectExists compares what is there with what it wrote.
        Raises: ObjectExists; LockNotEnforced when the store has no lock or did not apply it.
        """

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return the bytes, or those from `offset` on, at most `length` of them (fewer at the end).

        Raises: ObjectMissing; ObjectHidden under a delete marker. A second version cannot be seen here:
        compare digests, and ask `head`.
        """

    def head(self, key: str) -> ObjectInfo:
        """Return size, lock and whether something lies over the object. Raises: ObjectMissing."""

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Yield the keys that start with `prefix` and sort after `after`, in byte order.

        What was there before the call is yielded; hidden objects may be left out. Order and `after`
        are relied on only inside a folder that holds no folders, as batches and checkpoints do: across
        folders AWS keeps them too, but SeaweedFS sorts by folder first.
        """

    def delete(self, key: str) -> None:
        """Remove the bytes of every version; a missing object is fine. Raises: ObjectLocked."""


@runtime_checkable
class HoldingStore(Protocol):
    """A locked store that can keep an object for as long as a matter lasts, beside its lock."""

    def hold(self, key: str, *, on: bool) -> None:
        """Set or lift the legal hold of every version: while it is set, `delete` is refused whatever the lock.

        Setting it twice is setting it once. Raises: ObjectMissing.
        """

    def prolong(self, key: str, until: datetime) -> None:
        """Move the end of the lock to a later date, of an object that has a lock; an earlier date changes nothing.

        Raises: ObjectMissing, LockNotEnforced for an object that has no lock.
        """


@runtime_checkable
class GatheringStore(Protocol):
    """A store for which many new objects at once are less work than each for itself."""

    def put_together(self, objects: Sequence[tuple[str, bytes]]) -> None:
        """Create objects without a lock, as `put` creates each; any error may leave some of them created and durable.

        Raises: ObjectExists when one of them is there.
        """


class HotStore(ObjectStore, Protocol):
    """An unlocked store, whose objects may be replaced: wrapped keys, pointers, exports."""

    def replace(self, key: str, data: bytes) -> None:
        """Create the object or take the place of the old one, whose bytes are then gone.

        A reader sees the old or the new bytes, never a mixture. Raises: StoreDenied on a locked store.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One forbidden thing that a store's own interface lets anybody try."""

    name: str
    attempt: Callable[[], None]


@runtime_checkable
class Attackable(Protocol):
    """A store that knows more ways to break a lock than the port has, so that `probe` can try them."""

    def attacks(self, key: str) -> Sequence[Attack]:
        """Return attempts on a locked object; each must raise ObjectLocked or StoreDenied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFinding:
    """One promise of the store, whether it was kept, and what was seen."""

    check: str
    kept: bool
    detail: str


def check_key(key: str) -> str:
    """Return the key, when it is relative, ASCII, and free of dots at the start of a segment.

    Raises: StoreDenied, without repeating what was given.
    """
    if len(key) > MAX_KEY or _KEY.fullmatch(key) is None:
        reason = "this is not an object key"
        raise StoreDenied(reason)
    return key


def check_prefix(prefix: str) -> str:
    """Return the prefix, when it is empty or starts like an object key. Raises: StoreDenied."""
    if prefix and not prefix.endswith("/"):
        check_key(prefix)
    elif prefix:
        check_key(prefix[:-1])
    return prefix


def check_lock(now: datetime | None, lock_until: datetime | None, *, locked: bool) -> None:
    """Check a lock date before anything is written; without `now` only its form.

    Raises: LockNotEnforced for a date on a store without lock; StoreDenied for a naive or past date.
    """
    if lock_until is None:
        return
    if not locked:
        detail = "this store has no lock, so no lock date can be kept"
        raise LockNotEnforced(detail)
    if lock_until.utcoffset() is None or (now is not None and lock_until <= now):
        detail = "a lock date is aware and in the future"
        raise StoreDenied(detail)


def probe(store: ObjectStore, now: datetime, *, locked: bool = True, attack: bool = True) -> tuple[ProbeFinding, ...]:
    """Return what the live store does with the promises the log relies on.

    `doctor` attacks; every start asks only, in a few calls: create, create again, read the lock, delete.

    It leaves one object of a few bytes under `probe/`, locked for an hour, and removes what earlier
    probes left. Raises: StoreUnavailable, StoreDenied when the store cannot be tried at all.
    """
    _remove_old_probes(store)
    key = f"{PROBE_PREFIX}{now:%Y%m%dT%H%M%S}-{secrets.token_hex(8)}"
    until = now + PROBE_LOCK if locked else None
    winner, findings = _probe_race(store, key, until, racers=_RACERS if attack else 1)
    if winner is None:
        return tuple(findings)
    findings.append(_refused("a second put is refused", lambda: store.put(key, b"x", lock_until=until), ObjectExists))
    if until is not None:
        findings.append(_lock_finding("the lock date is read back", store, key, until))
        findings.append(_refused("delete is refused under the lock", lambda: store.delete(key), ObjectLocked))
        if attack and isinstance(store, Attackable):
            findings.extend(_attack_findings(store, key))
            findings.append(_lock_finding("the lock date is the same at the end", store, key, until))
    findings.append(_bytes_finding(store, key, winner))
    if until is None:
        store.delete(key)
        findings.append(_refused("a deleted object is gone", lambda: _touch(store, key), ObjectMissing))
    return tuple(findings)


def require_kept(findings: Sequence[ProbeFinding]) -> None:
    """Return when every promise was kept. Raises: LockNotEnforced naming those that were not."""
    broken = [f"{finding.check}: {finding.detail}" for finding in findings if not finding.kept]
    if broken or not findings:
        raise LockNotEnforced("; ".join(broken) or "nothing was tried")


def _remove_old_probes(store: ObjectStore) -> None:
    for key in list(store.list(PROBE_PREFIX)):
        try:
            store.delete(key)
        except ObjectLocked:
            continue


def _probe_race(
    store: ObjectStore, key: str, until: datetime | None, *, racers: int
) -> tuple[bytes | None, list[ProbeFinding]]:
    """Return what the one winner of a race for the key wrote, and the finding about the race."""
    offered = [f"racer {number}".encode() for number in range(racers)]

    def race(data: bytes) -> bytes | None:
        try:
            store.put(key, data, lock_until=until)
        except ObjectExists:
            return None
        return data

    check = "of many that create one key one wins"
    try:
        with ThreadPoolExecutor(racers) as pool:
            winners = [data for data in pool.map(race, offered) if data is not None]
    except LockNotEnforced as error:
        return None, [ProbeFinding(check=check, kept=False, detail=error.detail)]
    finding = ProbeFinding(check=check, kept=len(winners) == 1, detail=f"{len(winners)} of {racers} won")
    return (winners[0] if winners else None), [finding]


def _refused(
    check: str, attempt: Callable[[], None], expected: type[LedgerError] | tuple[type[LedgerError], ...]
) -> ProbeFinding:
    try:
        attempt()
    except expected as error:
        return ProbeFinding(check=check, kept=True, detail=type(error).__name__)
    except LedgerError as error:
        return ProbeFinding(check=check, kept=False, detail=f"the store answered {type(error).__name__}")
    return ProbeFinding(check=check, kept=False, detail="the store did it")


def _attack_findings(store: Attackable, key: str) -> list[ProbeFinding]:
    try:
        attacks = store.attacks(key)
    except LedgerError as error:
        detail = f"the store answered {type(error).__name__}"
        return [ProbeFinding(check="the lock can be attacked", kept=False, detail=detail)]
    return [_refused(attack.name, attack.attempt, (ObjectLocked, StoreDenied)) for attack in attacks]


def _lock_finding(check: str, store: ObjectStore, key: str, until: datetime) -> ProbeFinding:
    try:
        info = store.head(key)
    except LedgerError as error:
        return ProbeFinding(check=check, kept=False, detail=f"the store answered {type(error).__name__}")
    kept = info.mode is not None and info.locked_until is not None and info.locked_until >= until - LOCK_TOLERANCE
    shown = "no date" if info.locked_until is None else info.locked_until.isoformat()
    return ProbeFinding(check=check, kept=kept, detail=f"expected {until.isoformat()}, got {info.mode} until {shown}")


def _bytes_finding(store: ObjectStore, key: str, expected: bytes) -> ProbeFinding:
    check = "the object is unchanged at the end"
    try:
        same, info = store.get(key) == expected, store.head(key)
    except LedgerError as error:
        return ProbeFinding(check=check, kept=False, detail=f"the store answered {type(error).__name__}")
    return ProbeFinding(
        check=check, kept=same and not info.hidden, detail=f"bytes equal: {same}, versions: {info.versions}"
    )


def _touch(store: ObjectStore, key: str) -> None:
    store.get(key)
