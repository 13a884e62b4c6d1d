"""A file of checkpoint notes that an auditor owns: one note after the other, each followed by an empty line.

Guarantees: the file only grows, by whole notes: one append under a lock, synced before it counts. A torn tail (a kill
or a full disk in the middle of a write) is left where it is and closed by an empty line; readers skip it. Before
anything is written the newest note in the file is compared with the log's tree: a log that is shorter than it, or has
another root at its size, is refused. Several logs may share a file. Does not keep others from cutting the file: its
owner does.

Example: `tail` of a file → text, empty line, signature lines, empty line, text, ….
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ledger.checkpoint import Checkpoint
from ledger.errors import AnchorRefused, AnchorUnavailable, BadSignature, MalformedNote
from ledger.keyring import KeyWindow, open_checkpoint

_TAIL = 256 * 1024
_END = b"\n\n"
_DASH = "— ".encode()


def append_notes(
    path: str,
    *,
    keys: Sequence[KeyWindow],
    origin: str,
    size: int,
    root_at: Callable[[int], bytes],
    newer: Callable[[int], Sequence[tuple[int, bytes]]],
) -> int:
    """Append the notes that `newer` gives above the file's own size; returns the size that the file then has.

    Raises: AnchorRefused when the file has seen another or a longer history, AnchorUnavailable for all else.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise AnchorUnavailable("the path is not a regular file")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            last, is_whole = _newest(descriptor, keys, origin)
            if last is not None:
                _require_extended(last, size, root_at)
            have = last.size if last is not None else 0
            notes = newer(have)
            if notes:
                _append(descriptor, [note for _, note in notes], is_whole=is_whole)
                have = notes[-1][0]
            _sync(Path(path).parent)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise AnchorUnavailable(f"the file cannot be written ({error.strerror or type(error).__name__})") from error
    return have


def read_notes(data: bytes) -> Iterator[bytes]:
    """Yield what stands between two empty lines like a note, in the order of the file; pieces are skipped."""
    text = b""
    for block in data.split(_END):
        if block.startswith(_DASH):
            yield text + _END + block.rstrip(b"\n") + b"\n"
            text = b""
        else:
            text = block.lstrip(b"\n")


def _newest(descriptor: int, keys: Sequence[KeyWindow], origin: str) -> tuple[Checkpoint | None, bool]:
    """Return the last checkpoint of this log near the file's end, and whether the file ends with a whole note."""
    length = os.fstat(descriptor).st_size
    data = os.pread(descriptor, _TAIL, max(0, length - _TAIL))
    found: Checkpoint | None = None
    for note in read_notes(data):
        try:
            checkpoint = open_checkpoint(note, keys)
        except (MalformedNote, BadSignature):
            continue  # another log's, a torn one, or somebody else's text
        if checkpoint.origin == origin and (found is None or checkpoint.size >= found.size):
            found = checkpoint
    return found, not length or data.endswith(_END)


def _require_extended(last: Checkpoint, size: int, root_at: Callable[[int], bytes]) -> None:
    if last.size > size:
        raise AnchorRefused(f"the file has size {last.size}, this log has {size}: it is rolled back", size=last.size)
    if root_at(last.size) != last.root:
        raise AnchorRefused(f"the file has another root of size {last.size}: the log is forked", size=last.size)


def _append(descriptor: int, notes: Sequence[bytes], *, is_whole: bool) -> None:
    data = (b"" if is_whole else _END) + b"".join(note + b"\n" for note in notes)
    while data:
        data = data[os.write(descriptor, data) :]
    os.fsync(descriptor)


def _sync(folder: Path) -> None:
    """Make a newly created file durable under its name."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
