"""The data folder as one process's own: its lock, and where the running server can be found.

Guarantees: at most one process serves a folder; the lock is the kernel's and ends with the process, however it ends.
`run/server.json` tells other commands the address; a file left by a crash is recognised by the free lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_TRIES = 5
_PAUSE_S = 0.02


class FolderMissing(Exception):
    """The data folder does not exist or was never initialised."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"no data folder at {folder}: run muniment init --data {folder}")
        self.folder = folder


class FolderLocked(Exception):
    """Another process serves this folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder} is in use by another muniment process: stop it, or use another --data")
        self.folder = folder


class NotAFolder(Exception):
    """A file stands where the data folder is to be."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder} is not a folder and cannot hold the data: name another with --data")
        self.folder = folder


class ServerNotRunning(Exception):
    """Nothing serves this folder now."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"no server runs on {folder}: start it with muniment serve --data {folder}")
        self.folder = folder


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlace:
    """Where a server listens."""

    url: str
    pid: int


def _lock_path(folder: Path) -> Path:
    return folder / "run" / "lock"


def is_initialised(folder: Path) -> bool:
    """Whether `muniment init` ran here to its end."""
    return (folder / "run" / "initialised").exists()


def mark_initialised(folder: Path) -> None:
    """Notes that everything is in place; written last."""
    (folder / "run" / "initialised").write_text("1\n", encoding="ascii")


def is_rebuilding(folder: Path) -> bool:
    """Whether a rebuild was begun here and did not end: nothing may be served."""
    return (folder / "run" / "rebuilding").exists()


def mark_rebuilding(folder: Path) -> None:
    """Notes durably that a rebuild has begun; the note stays until `mark_rebuilt`."""
    place = folder / "run"
    with (place / "rebuilding").open("w", encoding="ascii") as file:
        file.write("1\n")
        os.fsync(file.fileno())
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def mark_rebuilt(folder: Path) -> None:
    """Notes that a rebuild came to its end."""
    (folder / "run" / "rebuilding").unlink(missing_ok=True)


def make(folder: Path) -> None:
    """Makes the data folder, readable by its owner only. Raises NotAFolder."""
    try:
        (folder / "run").mkdir(mode=0o700, parents=True, exist_ok=True)
    except (NotADirectoryError, FileExistsError):
        raise NotAFolder(folder) from None
    folder.chmod(0o700)


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Holds the folder for this process. Raises FolderMissing or FolderLocked."""
    if not (folder / "run").is_dir():
        raise FolderMissing(folder)
    descriptor = os.open(_lock_path(folder), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, folder: Path) -> None:
    """Takes the lock; who only asks whether somebody serves (`is_locked`) has it for a moment. Raises FolderLocked."""
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not left:
                raise FolderLocked(folder) from None
            time.sleep(_PAUSE_S)
        else:
            return


def is_locked(folder: Path) -> bool:
    """Whether some process serves the folder now."""
    try:
        with lock(folder):
            return False
    except FolderLocked:
        return True


@contextmanager
def announced(folder: Path, url: str) -> Iterator[None]:
    """Tells other commands the server's address while the block runs."""
    path = folder / "run" / "server.json"
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps({"url": url, "pid": os.getpid()}), encoding="utf-8")
    temporary.replace(path)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            path.unlink()


def running_server(folder: Path) -> ServerPlace:
    """Where the folder's server listens. Raises FolderMissing or ServerNotRunning."""
    if not (folder / "run").is_dir():
        raise FolderMissing(folder)
    try:
        found = json.loads((folder / "run" / "server.json").read_text(encoding="utf-8"))
        place = ServerPlace(url=str(found["url"]), pid=int(found["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise ServerNotRunning(folder) from None
    if not is_locked(folder):
        raise ServerNotRunning(folder)
    return place
