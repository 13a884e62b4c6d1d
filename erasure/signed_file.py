"""A signed certificate as a file without a name: a megabyte in memory, more of it on disk.

Guarantees: what is read in pieces and what is looked at in place are the same bytes. A large one is looked at through
the pages of its file, which the system takes back whenever it needs them; nothing here copies it whole but `read`. The
file ends with its last reader, or with the process. Not here: what it says, and whether that holds.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import IO

PIECE = 1 << 20
"""Bytes that are in memory at once: of what is read, and of what waits for a file to be worth it."""
Readable = bytes | memoryview


class SignedFile(AbstractContextManager["SignedFile"]):
    """The bytes of a file from a place on. Whoever has it closes it."""

    def __init__(self, file: IO[bytes], start: int = 0) -> None:
        """Take over the file, which is written to no more."""
        self._file, self._start = file, start
        self.size = file.seek(0, os.SEEK_END) - start

    @classmethod
    def of(cls, pieces: Iterable[Readable]) -> SignedFile:
        """A file of these pieces, one after the other."""
        file = unnamed()
        try:
            for piece in pieces:
                file.write(piece)
        except BaseException:
            file.close()
            raise
        return cls(file)

    def pieces(self, size: int = PIECE) -> Iterator[bytes]:
        """The bytes in pieces, from the first one on."""
        self._file.seek(self._start)
        while piece := self._file.read(size):
            yield piece

    def read(self) -> bytes:
        """All of it: for the few who need it in memory, and for small ones."""
        self._file.seek(self._start)
        return self._file.read()

    def sha256(self) -> str:
        """The SHA-256 of all of it, in hexadecimal digits."""
        digest = sha256()
        for piece in self.pieces():
            digest.update(piece)
        return digest.hexdigest()

    def view(self) -> memoryview:
        """All of it in place. What was taken of it stays readable when the file is closed."""
        return looked_at(self._file, self._start)

    def close(self) -> None:
        """Give the file back."""
        self._file.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def unnamed(folder: Path | None = None) -> IO[bytes]:
    """A file without a name that is written to disk once it is larger than a piece, to that of a folder or any."""
    return tempfile.SpooledTemporaryFile(max_size=PIECE, dir=None if folder is None else str(folder))


def looked_at(file: IO[bytes], start: int = 0) -> memoryview:
    """A file's bytes from a place on, without a copy where there are many."""
    size = file.seek(0, os.SEEK_END)
    if size <= PIECE:
        file.seek(start)
        return memoryview(file.read())
    file.flush()
    return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))[start:]
