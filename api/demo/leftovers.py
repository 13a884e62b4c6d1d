"""Folders that demonstrations left which were killed in the middle.

Guarantees: a folder is removed only when its demonstration began here under this user, did not end, and its process is
gone: the mark it leaves is locked by the process, and the system drops that lock however the process dies. What a
demonstration leaves on purpose has no mark. Nothing is followed out of the folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "muniment-demo-"
MARK = "unfinished"


@contextmanager
def unfinished(folder: Path) -> Iterator[None]:
    """Keep the mark in a folder while its demonstration runs; it goes when the block ends without an error."""
    mark, draft = folder / MARK, folder / f".{MARK}"
    with draft.open("w", encoding="ascii") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.write(f"{os.getpid()}\n")
        stream.flush()
        draft.rename(mark)  # it has its name only once it is locked
        yield
        mark.unlink()


def removed_from(parent: Path) -> int:
    """Remove what killed demonstrations left in a folder of temporary files; return how many there were."""
    return sum(_removed(folder) for folder in sorted(parent.glob(f"{PREFIX}*")))


def _removed(folder: Path) -> bool:
    try:
        about = folder.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
            return False
        descriptor = os.open(folder / MARK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    with os.fdopen(descriptor, "w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()
