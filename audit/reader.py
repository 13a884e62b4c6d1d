"""What an audit needs from storage: three methods, all of them reading.

Every store of `ledger.objects` satisfies `Reader`. `FolderReader` reads the folder of a file store without making,
locking or cleaning anything, so that a verification may run beside the server or over a read-only copy of the disk.
It does not know what an object means.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ledger.errors import LedgerError, ObjectHidden, ObjectMissing, StoreDenied, StoreUnavailable
from ledger.objects import ObjectInfo, check_key, check_prefix

_DENIED = frozenset({errno.EACCES, errno.EPERM})
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})


class Reader(Protocol):
    """A store of objects, read only. Each method may raise StoreUnavailable and StoreDenied."""

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return the bytes or a range of them. Raises: ObjectMissing, ObjectHidden."""

    def head(self, key: str) -> ObjectInfo:
        """Return size and versions, also of what is hidden. Raises: ObjectMissing."""

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Yield the keys below a prefix that sort after `after`, in byte order."""


class FolderReader:
    """The objects in a folder that a file store writes to."""

    def __init__(self, root: Path) -> None:
        """Take the folder; a missing one shows as missing objects."""
        self._root = root

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return the bytes. Raises: see `Reader`."""
        with _translated(key):
            handle = os.open(self._root / check_key(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(handle, "rb") as file:
                if offset:
                    file.seek(offset)
                return file.read() if length is None else file.read(length)

    def head(self, key: str) -> ObjectInfo:
        """Return the size; a file has one version and nothing lies over it. Raises: see `Reader`."""
        path = self._root / check_key(key)
        with _translated(key):
            found = path.stat(follow_symlinks=False)
            if not path.is_file():
                raise ObjectMissing(key)
        return ObjectInfo(size=found.st_size, locked_until=None, mode=None, hidden=False, versions=1)

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Yield keys in byte order. Raises: see `Reader`."""
        check_prefix(prefix)
        folder, _, _ = prefix.rpartition("/")
        return self._walk(f"{folder}/" if folder else "", prefix, after or "")

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[str]:
        try:
            with _translated(folder), os.scandir(self._root / folder) as found:
                # A folder sorts by its name with the slash, as the keys in it do.
                names = sorted(
                    f"{folder}{item.name}{'/' if item.is_dir(follow_symlinks=False) else ''}"
                    for item in found
                    if not item.name.startswith(".")
                )
        except ObjectMissing:
            return
        for name in names:
            if name.endswith("/"):
                # "~" sorts after every character of a key.
                if (name.startswith(prefix) or prefix.startswith(name)) and name + "~" > after:
                    yield from self._walk(name, prefix, after)
            elif name.startswith(prefix) and name > after:
                yield name


def uncovered(reader: Reader, key: str) -> ObjectInfo:
    """Return what is known of an object over which nothing lies. Raises: ObjectHidden, and see `Reader`."""
    info = reader.head(key)
    if info.hidden or info.versions > 1:
        raise ObjectHidden(key)
    return info


def whole(reader: Reader, key: str) -> bytes:
    """Return the bytes of an object over which nothing lies. Raises: ObjectHidden, and see `Reader`."""
    uncovered(reader, key)
    return reader.get(key)


@contextmanager
def _translated(key: str) -> Iterator[None]:
    """Turn an error of the operating system into one of the ledger's; its text may hold paths and is dropped."""
    try:
        yield
    except LedgerError:
        raise
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "an unknown error")
        if error.errno in _ABSENT:
            raise ObjectMissing(key) from error
        if error.errno in _DENIED:
            raise StoreDenied(name) from error
        raise StoreUnavailable(name) from error
