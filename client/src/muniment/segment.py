"""One spool file: allocated whole, mapped into memory, written by copying.

Guarantees that bytes handed to `write` are the kernel's once it returns, so they outlive a `kill -9` of this
process; they outlive a power cut only once the kernel wrote them back. Space is allocated before mapping, because
a hole on a full disk would be a SIGBUS instead of an error. Copying into the map keeps the GIL; `os.pwrite`, the
fall-back where mapping fails, gives it away and waits for it under load.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from pathlib import Path

_HEAD = struct.Struct("<8sQ")
_MAGIC = b"MUNSPL1\n"
DATA_START = 32
"""Bytes before the first frame."""

_PAGE = mmap.PAGESIZE


class Segment:
    """A file of fixed size that frames are copied into, one writer at a time."""

    __slots__ = ("_fd", "_map", "end", "last_seq", "path", "size")

    def __init__(self, path: Path, fd: int, size: int, mapped: mmap.mmap | None) -> None:
        """Use `create` or `adopt` instead."""
        self.path = path
        self.size = size
        self.end = DATA_START
        self.last_seq = 0
        self._fd = fd
        self._map = mapped

    @classmethod
    def create(cls, path: Path, size: int) -> Segment:
        """Allocate, map and pre-fault a new file.

        Raises: OSError where the disk is full or the file cannot be made; nothing is left behind then.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        return cls(path, fd, size, _map(fd, size))

    @classmethod
    def adopt(cls, path: Path) -> Segment:
        """Open a file of an earlier run for reading; it is never written again."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return cls(path, fd, os.fstat(fd).st_size, None)

    @property
    def is_mapped(self) -> bool:
        """True where writing copies into memory."""
        return self._map is not None

    def fits(self, length: int) -> bool:
        """Whether `length` more bytes fit."""
        return self.end + length <= self.size

    def start(self, path: Path, first_seq: int) -> None:
        """Give a prepared file its name and its header."""
        self.write(0, _HEAD.pack(_MAGIC, first_seq))
        self.path.rename(path)
        self.path = path

    def write(self, offset: int, data: bytes) -> None:
        """Copy `data` to `offset`. Raises: OSError on the fall-back path only."""
        if self._map is not None:
            self._map[offset : offset + len(data)] = data
            return
        done = 0
        while done < len(data):
            done += os.pwrite(self._fd, data[done:], offset + done)

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`."""
        return os.pread(self._fd, length, offset)

    def header_is_sound(self) -> bool:
        """Whether the file says that it is one of ours, in this version."""
        return self.read(0, len(_MAGIC)) == _MAGIC

    def close(self) -> None:
        """Let go of the map and the descriptor; the file stays."""
        if self._map is not None:
            self._map.close()
            self._map = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        """Close and unlink."""
        self.close()
        self.path.unlink(missing_ok=True)


def _map(fd: int, size: int) -> mmap.mmap | None:
    """Return the map with every page faulted in, or None where this file cannot be mapped."""
    with contextlib.suppress(OSError, ValueError):
        mapped = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        # One store a page: a copy of the whole file would hold the GIL for milliseconds.
        for page in range(0, size, _PAGE):
            mapped[page] = 0
        return mapped
    return None
