"""An object store in memory that refuses whatever AWS refuses; for tests and trials, nothing is kept.

Guarantees: the contract of `ObjectStore`, with an injected clock, versions and delete markers, locks
that can be prolonged but never shortened, and failures on demand before or after a write persists.
`overwrite`, `hide`, `alter` and `vanish` are what a hostile operator does; only tests call them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ledger.errors import (
    LockNotEnforced,
    ObjectExists,
    ObjectHidden,
    ObjectLocked,
    ObjectMissing,
    StoreDenied,
    StoreUnavailable,
)
from ledger.objects import Attack, ObjectInfo, check_key, check_lock, check_prefix

_STRENGTH = {None: 0, "GOVERNANCE": 1, "COMPLIANCE": 2}


@dataclass(slots=True, kw_only=True)
class _Version:
    data: bytes
    until: datetime | None
    mode: str | None


@dataclass(slots=True)
class _Object:
    versions: list[_Version] = field(default_factory=list)
    marker: bool = False
    held: bool = False


class MemoryStore:
    """A locked store, or with `locked=False` a hot one."""

    def __init__(self, clock: Callable[[], datetime], *, locked: bool = True, mode: str = "COMPLIANCE") -> None:
        """Start empty; `clock` gives the aware time that ends locks."""
        self._clock = clock
        self._locked = locked
        self._mode = mode
        self._objects: dict[str, _Object] = {}
        self._guard = threading.RLock()
        self._fail_before: int | None = None
        self._fail_after: int | None = None
        self.writes = 0
        """How many writes were asked for, so that a crash table can cover each of them."""

    # ── the port ──

    def put(self, key: str, data: bytes | memoryview, *, lock_until: datetime | None) -> None:
        """Create the object. Raises: see `ObjectStore`."""
        check_key(key)
        check_lock(self._clock(), lock_until, locked=self._locked)
        with self._guard:
            self._before_write()
            held = self._objects.get(key)
            # Like AWS, a delete marker does not count as an object for If-None-Match.
            if held is not None and held.versions and not held.marker:
                raise ObjectExists(key)
            mode = None if lock_until is None else self._mode
            self._objects.setdefault(key, _Object()).versions.append(
                _Version(data=bytes(data), until=lock_until, mode=mode)
            )
            self._objects[key].marker = False
            self._after_write()

    def put_together(self, objects: Sequence[tuple[str, bytes]]) -> None:
        """Create the objects. Raises: see `GatheringStore`."""
        for key, data in objects:
            self.put(key, data, lock_until=None)

    def replace(self, key: str, data: bytes) -> None:
        """Create or replace the object. Raises: StoreDenied on a locked store."""
        check_key(key)
        if self._locked:
            detail = "a locked store replaces nothing"
            raise StoreDenied(detail)
        with self._guard:
            self._before_write()
            self._objects[key] = _Object([_Version(data=bytes(data), until=None, mode=None)])
            self._after_write()

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of the newest version, as S3 does. Raises: see `ObjectStore`."""
        check_key(key)
        with self._guard:
            held = self._require(key)
            if held.marker:
                raise ObjectHidden(key)
            end = None if length is None else offset + length
            return held.versions[-1].data[offset:end]

    def head(self, key: str) -> ObjectInfo:
        """Return what is known about the object. Raises: ObjectMissing."""
        check_key(key)
        with self._guard:
            held = self._require(key)
            first = held.versions[0] if held.versions else _Version(data=b"", until=None, mode=None)
            return ObjectInfo(
                size=len(first.data),
                locked_until=first.until,
                mode=first.mode,
                hidden=held.marker or len(held.versions) > 1,
                versions=len(held.versions),
                held=held.held,
            )

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Yield keys in order; hidden objects are left out, as S3 does."""
        check_prefix(prefix)
        with self._guard:
            keys = sorted(key for key, held in self._objects.items() if not held.marker)
        return (key for key in keys if key.startswith(prefix) and (after is None or key > after))

    def delete(self, key: str) -> None:
        """Remove every version. Raises: ObjectLocked."""
        check_key(key)
        with self._guard:
            self._before_write()
            if self._objects.get(key, _Object()).held:
                raise ObjectLocked(key, None)
            for version in self._objects.get(key, _Object()).versions:
                self._require_unlocked(key, version)
            self._objects.pop(key, None)
            self._after_write()

    def hold(self, key: str, *, on: bool) -> None:
        """Set or lift the legal hold. Raises: see `HoldingStore`."""
        with self._guard:
            self._before_write()
            self._require(key).held = on
            self._after_write()

    def prolong(self, key: str, until: datetime) -> None:
        """Move the end of the lock to a later date. Raises: see `HoldingStore`."""
        with self._guard:
            self._before_write()
            for version in self._require(key).versions[:1]:
                if version.until is None:
                    detail = f"object {key} was created without a lock"
                    raise LockNotEnforced(detail)
                version.until = max(version.until, until)
            self._after_write()

    # ── what the store's own interface has beyond the port ──

    def retain(self, key: str, until: datetime | None, mode: str | None) -> None:
        """Set the lock of an object: longer and stronger only. Raises: ObjectLocked, ObjectMissing."""
        with self._guard:
            first = self._require(key).versions[0]
            weaker = until is None or (first.until is not None and until < first.until)
            if self._is_locked(first) and (weaker or _STRENGTH[mode] < _STRENGTH[first.mode]):
                raise ObjectLocked(key, first.until)
            first.until, first.mode = until, mode

    def attacks(self, key: str) -> Sequence[Attack]:
        """Return what AWS refuses, for `probe`."""
        until = self.head(key).locked_until or self._clock()
        sooner = until - timedelta(minutes=1)
        return (
            Attack(name="a shorter lock is refused", attempt=lambda: self.retain(key, sooner, self._mode)),
            Attack(name="lifting the lock is refused", attempt=lambda: self.retain(key, None, None)),
        )

    # ── the hostile operator ──

    def overwrite(self, key: str, data: bytes | memoryview) -> None:
        """Put a second version over the object, as a plain PUT does on a versioned bucket."""
        with self._guard:
            self._require(key).versions.append(_Version(data=bytes(data), until=None, mode=None))

    def hide(self, key: str) -> None:
        """Lay a delete marker over the object, as a plain DELETE does on a versioned bucket."""
        with self._guard:
            self._require(key).marker = True

    def alter(self, key: str, data: bytes) -> None:
        """Change the bytes in place, as somebody with access to the disks can."""
        with self._guard:
            self._require(key).versions[0].data = data

    def vanish(self, key: str) -> None:
        """Remove the object in spite of its lock, as somebody with access to the disks can."""
        with self._guard:
            del self._objects[key]

    # ── failures ──

    def fail_before(self, writes: int) -> None:
        """Let the write after `writes` more ones fail with nothing stored."""
        self._fail_before = self.writes + writes + 1

    def fail_after(self, writes: int) -> None:
        """Let the write after `writes` more ones persist and then lose its answer."""
        self._fail_after = self.writes + writes + 1

    def _before_write(self) -> None:
        self.writes += 1
        if self._fail_before == self.writes:
            self._fail_before = None
            detail = "failed before writing, as asked"
            raise StoreUnavailable(detail)

    def _after_write(self) -> None:
        if self._fail_after == self.writes:
            self._fail_after = None
            detail = "lost the answer after writing, as asked"
            raise StoreUnavailable(detail)

    def _require(self, key: str) -> _Object:
        held = self._objects.get(key)
        if held is None:
            raise ObjectMissing(key)
        return held

    def _is_locked(self, version: _Version) -> bool:
        return version.until is not None and self._clock() < version.until

    def _require_unlocked(self, key: str, version: _Version) -> None:
        if self._is_locked(version):
            raise ObjectLocked(key, version.until)
