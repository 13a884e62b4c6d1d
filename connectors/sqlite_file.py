"""SQLite files inside other stores' folders: opened within a deadline, never made by us, errors without their text.

Guarantees: opening never creates a file; a statement stops at the deadline; nothing a schema says is run that SQLite
does not trust. `rewrite` leaves no free page and no log behind, or says that it could not.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

from connectors.errors import StoreUnreachable, WrongCredentials

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from connectors.base import Deadline

_STEPS = 10_000
"""Virtual machine steps between two looks at the clock; well under a millisecond."""


@contextmanager
def opened(kind: str, path: Path, limit: Deadline, *, write: bool) -> Iterator[sqlite3.Connection]:
    """Open a file for reading, or for writing too. Raises: StoreUnreachable, WrongCredentials, Timeout."""
    limit.check()
    try:
        if path.is_symlink():
            raise StoreUnreachable(kind, "a file of it is a symbolic link, which may lead anywhere")
    except PermissionError:
        raise WrongCredentials(kind, "the folder of a file may not be read") from None
    try:
        address = f"file:{quote(str(path))}?mode={'rw' if write else 'ro'}"
        with closing(sqlite3.connect(address, uri=True, timeout=limit.left(), isolation_level=None)) as connection:
            connection.set_progress_handler(lambda: int(limit.is_over()), _STEPS)
            connection.execute("PRAGMA trusted_schema=OFF")
            if write:
                connection.execute("PRAGMA secure_delete=ON")
                connection.execute("PRAGMA synchronous=EXTRA")
            yield connection
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_BUSY", "SQLITE_INTERRUPT", "SQLITE_LOCKED")):
            raise limit.error() from None
        if name.startswith(("SQLITE_PERM", "SQLITE_READONLY", "SQLITE_AUTH")):
            raise WrongCredentials(kind, "a file may not be read or written") from None
        raise StoreUnreachable(kind, "there is no database of it that can be read") from None


def rewrite(connection: sqlite3.Connection) -> bool:
    """Rewrite the file and empty its log; False where another process reads an older state. Raises: sqlite3.Error."""
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        # A persistent journal keeps the pages from before; this mode deletes the file.
        connection.execute("PRAGMA journal_mode=DELETE")
    connection.execute("VACUUM")
    return bool(connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)
