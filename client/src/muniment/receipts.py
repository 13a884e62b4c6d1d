"""A file of what the server acknowledged: its signed receipts, kept by the one to whom they were given.

Each line is one JSON object with the `receipt` of an answer and, in `results`, the ids and indexes it was about;
`muniment verify --receipt FILE` checks them against the log. Guarantees: a line that could be written is on the disk
before the entries it is about leave the spool; one that could not (OSError) holds none of them back, and is counted in
`stats().errors["receipts"]`. Lines are only appended, each begins on a line of its own, and several processes may share
the file (flock; not for file systems without). Nothing personal stands in it. Not here: a bound. A line has about 400
bytes and 60 an entry; who keeps them moves the file away when it is large, and the next line begins a new one.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from muniment.delivery import BatchAnswer

_LOCK_SECONDS = 1.0
"""A process that was stopped while it wrote must not hold up the entries of the others for longer than this."""
_LOOK_AGAIN_SECONDS = 0.005


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
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with _alone(descriptor):
                size = os.fstat(descriptor).st_size
                if not size:
                    # Before the first line, so that whoever finds one knows that the file's name is on the disk.
                    self._sync_folder()
                # What a crash or a full disk left of a line must not spoil the next one.
                elif os.pread(descriptor, 1, size - 1) != b"\n":
                    line = b"\n" + line
                _write_all(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _sync_folder(self) -> None:
        descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _alone(descriptor: int) -> Iterator[None]:
    """Hold the file's lock. Raises: OSError when another process keeps it too long, or there are no locks."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_LOOK_AGAIN_SECONDS)
    try:
        yield
    finally:
        # Closing would not end it while a forked child has the descriptor.
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
