"""Sealed captures of a plan on their way from the stores to the tables: a megabyte in memory, the rest in a file.

Guarantees: what is in the file is ciphertext under the request's key; the file has no name and ends with its spool, or
with the process. Not here: what is captured, and when it is stored.
"""

from __future__ import annotations

import tempfile
from array import array
from contextlib import AbstractContextManager
from types import TracebackType
from typing import IO

_IN_MEMORY = 1 << 20


class Spool(AbstractContextManager["Spool"]):
    """Byte strings by number; each is put once, and got as often as somebody asks."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - ends with the spool
        self._end = 0
        self._starts, self._sizes = array("Q"), array("I")

    def put(self, number: int, data: bytes) -> None:
        """Keep the bytes of a number, which are at least one."""
        missing = number + 1 - len(self._starts)
        if missing > 0:
            self._starts.extend([0] * missing)
            self._sizes.extend([0] * missing)
        self._starts[number], self._sizes[number] = self._end, len(data)
        self._file.seek(self._end)
        self._file.write(data)
        self._end += len(data)

    def get(self, number: int) -> bytes | None:
        """The bytes of a number, None where nothing was put."""
        if number >= len(self._sizes) or not self._sizes[number]:
            return None
        self._file.seek(self._starts[number])
        return self._file.read(self._sizes[number])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
