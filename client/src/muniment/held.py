"""What the server refused, kept on disk beside the spool.

*Parked* entries wait for something that can still come: their data class or kind, or that the server mends what keeps
it from telling whether it has them. They are sent again, byte for byte. *Refused* entries will not be taken as they
are; they are kept with the reason for a human, one JSON line each. Both are copies of personal data on this machine:
bounded in size, mode 0600, emptied by `purge`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from muniment.frames import Frame, frame, scan


class EntrySubjects(msgspec.Struct):
    """The part of an entry that says whom it is about."""

    class Part(msgspec.Struct):
        """The same of one part."""

        subjects: list[str] = []

    id: str = ""
    subjects: list[str] = []
    parts: list[Part] = []


_decoder = msgspec.json.Decoder(EntrySubjects)


def is_about(payload: bytes, subject: str) -> bool:
    """Whether the entry names `subject`; one that cannot be read counts as naming it, so that it goes."""
    try:
        entry = _decoder.decode(payload)
    except msgspec.DecodeError:
        return True
    return subject in entry.subjects or any(subject in part.subjects for part in entry.parts)


def entry_id(payload: bytes) -> str:
    """Return the id an encoded entry carries, empty if it cannot be read."""
    try:
        return _decoder.decode(payload).id
    except msgspec.DecodeError:
        return ""


class Parked:
    """Entries that wait, in the order they were recorded."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        """Open what an earlier run left. Raises: OSError."""
        self._path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        found = scan(path.read_bytes()) if path.exists() else None
        self.damages = len(found.damages) if found else 0
        frames = list({item.payload: item for item in found.frames}.values()) if found else []
        if found and (found.torn or found.damages or len(frames) != len(found.frames)):
            _replace(path, (frame(item.seq, item.payload) for item in frames))
        self._count = len(frames)

    def __len__(self) -> int:
        """Return how many entries wait."""
        return self._count

    def add(self, seq: int, payload: bytes) -> bool:
        """Keep one entry; False, and nothing kept, if that would pass the bound. Raises: OSError."""
        data = frame(seq, payload)
        with self._lock:
            if _size(self._path) + len(data) > self._max_bytes:
                return False
            _append(self._path, data)
            self._count += 1
        return True

    def absorb(self, path: Path) -> bool:
        """Take over another such file; False if there is no room for it. Raises: OSError."""
        frames = scan(path.read_bytes()).frames if path.exists() else []
        known = {item.payload for item in self.entries()} if frames else set()
        return all(item.payload in known or self.add(item.seq, item.payload) for item in frames)

    def entries(self) -> list[Frame]:
        """Return all that wait, oldest first. Raises: OSError."""
        with self._lock:
            return scan(self._path.read_bytes()).frames if self._path.exists() else []

    def keep_only(self, wanted: Callable[[Frame], bool]) -> int:
        """Rewrite the file with the wanted ones, whole or not at all; return how many went. Raises: OSError."""
        with self._lock:
            before = scan(self._path.read_bytes()).frames if self._path.exists() else []
            after = [item for item in before if wanted(item)]
            if len(after) != len(before):
                _replace(self._path, (frame(item.seq, item.payload) for item in after))
            self._count = len(after)
        return len(before) - len(after)


class Refused:
    """Entries that will not be taken, with the reason."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        """Open what an earlier run left."""
        path.parent.mkdir(mode=0o700, exist_ok=True)
        self._path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()

    def add(self, problem: object, payload: bytes) -> bool:
        """Keep one entry with its problem; False, and nothing kept, past the bound. Raises: OSError."""
        # A body may hold line feeds between its tokens; a blank there means the same and keeps one line an entry.
        line = b'{"problem":' + msgspec.json.encode(problem) + b',"entry":' + _one_line(payload) + b"}\n"
        with self._lock:
            if _size(self._path) + len(line) > self._max_bytes:
                return False
            _append(self._path, line)
        return True

    def absorb(self, path: Path) -> bool:
        """Take over another such file; False if there is no room for it. Raises: OSError."""
        data = path.read_bytes() if path.exists() else b""
        with self._lock:
            if _size(self._path) + len(data) > self._max_bytes:
                return False
            if data:
                _append(self._path, data)
        return True

    def purge(self, subject: str) -> int:
        """Remove every entry that names `subject`, and any torn line; return how many went. Raises: OSError."""
        with self._lock:
            lines = self._path.read_bytes().splitlines(keepends=True) if self._path.exists() else []
            kept = [line for line in lines if _keeps(line, subject)]
            if len(kept) != len(lines):
                _replace(self._path, kept)
        return len(lines) - len(kept)


class _Line(msgspec.Struct):
    entry: msgspec.Raw


def _keeps(line: bytes, subject: str) -> bool:
    try:
        entry = msgspec.json.decode(line, type=_Line).entry
    except msgspec.DecodeError:
        return False
    return not is_about(bytes(entry), subject)


def _one_line(payload: bytes) -> bytes:
    return payload.replace(b"\r", b" ").replace(b"\n", b" ")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _append(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        before = os.fstat(fd).st_size
        try:
            done = 0
            while done < len(data):
                done += os.write(fd, data[done:])
        except OSError:
            os.ftruncate(fd, before)  # half an entry would hide behind the next one
            raise
    finally:
        os.close(fd)


def _replace(path: Path, pieces: Iterable[bytes]) -> None:
    temporary = path.with_name(path.name + ".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
