"""Small key files that are created once, whole, and destroyed for good.

Guarantees: a file is visible only with all its bytes on disk; creating never overwrites; destroying overwrites the
bytes in place before the name goes. Does not guarantee that a copy-on-write file system, a solid-state disk's spare
blocks or a snapshot forgot the old bytes: that is why key files are wrapped by a root that turns monthly.
"""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vault.errors import RootUnavailable

_FILE_MODE = 0o600
_FOLDER_MODE = 0o700
_OTHERS = 0o077


def private_folder(folder: Path) -> Path:
    """Return the folder, made durably with mode 0700 if missing. Raises RootUnavailable if others may read it."""
    _make(folder)
    mode = folder.stat().st_mode
    if mode & _OTHERS:
        raise RootUnavailable(f"a key folder has mode {mode & 0o777:04o}, expected 0700; run chmod 0700 on it")
    return folder


def create_once(path: Path, data: bytes) -> bool:
    """Write ``data`` durably under a new name and return True; return False, changing nothing, if the name exists.

    That name is durable too then, whoever made it: it may have been a moment ago.
    """
    temporary = _write_temporary(path, data)
    try:
        # link(2) is atomic and, unlike rename, refuses an existing name.
        os.link(temporary, path)
        made = True
    except FileExistsError:
        made = False
    finally:
        temporary.unlink()
    sync_folder(path.parent)
    return made


def replace(path: Path, data: bytes) -> None:
    """Put ``data`` in place of the file's bytes; a crash leaves either all old or all new bytes."""
    old = os.open(path, os.O_WRONLY)
    try:
        _write_temporary(path, data).rename(path)
        sync_folder(path.parent)
        # The old bytes have no name any more and are overwritten through the descriptor that still holds them.
        _overwrite(old)
    finally:
        os.close(old)


def destroy_file(path: Path) -> None:
    """Overwrite and remove the file, durably; a missing file is fine, so this can be run again after a crash."""
    # A writer that was killed may have left its temporary, which holds the same bytes or newer ones of this name.
    for name in (path, *path.parent.glob(f".{path.name}.*.new")):
        try:
            descriptor = os.open(name, os.O_WRONLY)
        except FileNotFoundError:
            continue
        try:
            _overwrite(descriptor)
        finally:
            os.close(descriptor)
        name.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the folder's names durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make(folder: Path) -> None:
    if folder.is_dir():
        return
    _make(folder.parent)
    folder.mkdir(mode=_FOLDER_MODE, exist_ok=True)
    sync_folder(folder.parent)


@contextmanager
def folder_lock(folder: Path, *, exclusive: bool) -> Iterator[None]:
    """Hold the folder's lock over all processes; shared for reading and creating, exclusive for turning the root."""
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, _FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _write_temporary(path: Path, data: bytes) -> Path:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return temporary


def _overwrite(descriptor: int) -> None:
    size = os.fstat(descriptor).st_size
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(secrets.token_bytes(size))
    os.fsync(descriptor)
