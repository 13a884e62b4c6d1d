"""The power goes: of the file store's folder only what was synced is left, and all that was said is among it.

The disk keeps what the worst one keeps: of a file the bytes that it had at its last fsync, of a folder the names that
it had at its own. A missing fsync shows in no test that kills a process.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ledger.files import FileStore

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
UNTIL = NOW + timedelta(days=30)
KEY, OTHER = "log/payload/2026-03/a", "log/payload/2026-03/b"


class Disk:
    """What would be there after a power cut, and what is looked at after each fsync."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._names: dict[Path, dict[str, int]] = {}
        self._bytes: dict[int, bytes] = {}
        self.at_each: Callable[[], None] = lambda: None

    def __call__(self, handle: int) -> None:
        """Be the store's fsync."""
        place, found = Path(f"/proc/self/fd/{handle}").readlink(), os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            self._names[place] = {item.name: item.inode() for item in os.scandir(place)}
        else:
            self._bytes[found.st_ino] = place.read_bytes()
        self.at_each()

    def left(self, key: str) -> bytes | None:
        """The bytes under a name after a power cut now; None where the name or a folder above it is not there."""
        place, inode = self.root, 0
        for name in key.split("/"):
            names = self._names.get(place, {})
            if name not in names:
                return None
            place, inode = place / name, names[name]
        return self._bytes.get(inode, b"")


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "store")


def opened(disk: Disk, *, locked: bool = True) -> FileStore:
    return FileStore(disk.root, lambda: NOW, locked=locked, fsync=disk)


@pytest.mark.scenario("L9")
def test_what_was_put_is_left_with_its_lock_and_never_without_it(disk: Disk) -> None:
    store = opened(disk)

    def look() -> None:
        for key in (KEY, OTHER):
            assert disk.left(key) in (None, b"data")
            assert disk.left(key) is None or disk.left(f".lock/{key}") == UNTIL.isoformat().encode()

    disk.at_each = look
    for key in (KEY, OTHER):
        store.put(key, b"data", lock_until=UNTIL)
        assert disk.left(key) == b"data"


def test_a_longer_lock_and_a_legal_hold_are_left_and_never_a_shorter_one(disk: Disk) -> None:
    store = opened(disk)
    store.put(KEY, b"data", lock_until=UNTIL)
    later = UNTIL + timedelta(days=1)
    locks = [one.isoformat().encode() for one in (UNTIL, later)]

    def look() -> None:
        assert disk.left(f".lock/{KEY}") in locks

    disk.at_each = look
    store.prolong(KEY, later)
    assert disk.left(f".lock/{KEY}") == locks[1]
    store.hold(KEY, on=True)
    assert disk.left(f".hold/{KEY}") == b""
    store.hold(KEY, on=False)
    assert disk.left(f".hold/{KEY}") is None


def test_objects_that_were_put_together_are_all_left(disk: Disk) -> None:
    store = opened(disk, locked=False)
    objects = [(f"log/tile/{level}/{number:03d}", bytes([number])) for level in (0, 1) for number in range(3)]
    store.put_together(objects)
    assert [disk.left(key) for key, _ in objects] == [data for _, data in objects]


def test_a_hot_object_is_the_old_or_the_new_one_and_then_the_new_one(disk: Disk) -> None:
    store = opened(disk, locked=False)
    store.replace(KEY, b"old")
    assert disk.left(KEY) == b"old"

    def look() -> None:
        assert disk.left(KEY) in (b"old", b"new")

    disk.at_each = look
    store.replace(KEY, b"new")
    assert disk.left(KEY) == b"new"


def test_what_was_deleted_does_not_come_back_and_its_lock_goes_last(disk: Disk) -> None:
    store = opened(disk)
    store.put(KEY, b"data", lock_until=UNTIL)
    store = FileStore(disk.root, lambda: UNTIL, fsync=disk)

    def look() -> None:
        assert disk.left(KEY) is None or disk.left(f".lock/{KEY}") is not None

    disk.at_each = look
    store.delete(KEY)
    assert (disk.left(KEY), disk.left(f".lock/{KEY}")) == (None, None)


def test_a_lock_that_a_crash_left_alone_does_not_come_back_over_an_object_without_one(disk: Disk) -> None:
    store = opened(disk)
    store.put(KEY, b"data", lock_until=UNTIL)
    (disk.root / KEY).unlink()
    store.put(KEY, b"other", lock_until=None)
    assert (disk.left(KEY), disk.left(f".lock/{KEY}")) == (b"other", None)
