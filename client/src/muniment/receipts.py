"""A file of what the server acknowledged: its signed receipts, kept by the one to whom they were given.

Each line is one JSON object with the `receipt` of an answer and, in `results`, the ids and indexes it was about;
`muniment verify --receipt FILE` checks them against the log. Guarantees: a line is on the disk before the entries it is
about leave the spool; lines are only ever appended, whole, by several processes at once too. Nothing personal stands
in it. Not here: a bound. A line has about 400 bytes and 60 an entry; who keeps them moves the file away when it is
large, and the next line begins a new one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from muniment.delivery import BatchAnswer


class _Placed(msgspec.Struct):
    id: str
    index: msgspec.Raw


class _Line(msgspec.Struct):
    receipt: msgspec.Raw
    results: Sequence[_Placed]


class ReceiptFile:
    """Appends receipts to one file."""

    def __init__(self, path: Path) -> None:
        """Take the path; the file is made with the first receipt."""
        self._path = path

    def keep(self, answer: BatchAnswer) -> None:
        """Append what an answer acknowledges and signs; nothing for one without a receipt. Raises: OSError."""
        if msgspec.json.decode(answer.receipt) is None:
            return
        placed = [_Placed(one.id, one.index) for one in answer.results if bytes(one.index) != b"null"]
        self._append(msgspec.json.encode(_Line(answer.receipt, placed)) + b"\n")

    def _append(self, line: bytes) -> None:
        is_new = not self._path.exists()
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # What a crash or a full disk left of a line must not spoil the next one.
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            if os.write(descriptor, line) < len(line):
                raise OSError("the receipt was written in part")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            self._sync_folder()

    def _sync_folder(self) -> None:
        descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
