"""The body of a large request to S3: bytes that lie in a file's pages, sent without a copy of all of them.

Guarantees: whoever reads it from its start gets the bytes of the view, each time. Not here: whether they arrived.
"""

from __future__ import annotations

import io
import os

from typing_extensions import Buffer, override


class Reading(io.RawIOBase):
    """A view as a file that is read, and read again."""

    def __init__(self, data: memoryview) -> None:
        """Take the view, which must stay as it is while it is read."""
        self._data, self._at = data, 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._data)}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, into: Buffer) -> int:
        """Fill a buffer with what comes next, and return how many bytes that was."""
        target = memoryview(into).cast("B")
        some = self._data[self._at : self._at + len(target)]
        target[: len(some)] = some
        self._at += len(some)
        return len(some)
