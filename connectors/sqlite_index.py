"""What SQLite keeps of a deleted row beside the row: words in full-text indexes, sampled keys for its planner.

Guarantees: after `forget` without problems, indexes hold words of rows that are there and of nobody else, and no key of
the named tables is a sample. An index that cannot be compared with its rows is a problem in words, never passed over.
A row deleted from a full-text table leaves its words in the older segments until these are merged, in pieces that no
search for the whole text finds. `mend` comes after VACUUM, which numbers the rows of a table without any key anew: an
index that knew them by number is built anew then. Source: SQLite's documentation of FTS5 §6, FTS3 §6, VACUUM,
fileformat2 §2.6.
"""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

DISAGREES = "a full-text index does not agree with the table of its rows: have the application rebuild it"
_OPAQUE = "a full-text index without content may hold words that nobody deleted from it"
_UNMERGED = "a full-text index could not be merged"
_KIND = re.compile(r"\bUSING\s+[\"`\[]?(fts[345])\b", re.IGNORECASE)
_CONTENT = re.compile(r"\bcontent\s*=\s*('[^']*'|\"[^\"]*\"|[^\s,)]*)", re.IGNORECASE)
_CHECKS = {"fts5": (", rank", "'integrity-check', 1"), "fts4": ("", "'integrity-check'")}
"""How each kind compares its words with a table of another name; `fts3` knows no other table."""
_STOPPED = ("SQLITE_BUSY", "SQLITE_INTERRUPT", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_READONLY")


def forget(connection: sqlite3.Connection, tables: Iterable[str]) -> list[str]:
    """Merge every full-text index, drop the planner's samples of these tables; return what could not be done.

    Raises: sqlite3.Error where the database could not be worked on at all.
    """
    if connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'sqlite_stat4'").fetchone()[0]:
        connection.executemany("DELETE FROM sqlite_stat4 WHERE tbl = ?", [(table,) for table in tables])
    problems: dict[str, None] = {}
    for name, kind, made in indexes_of(connection):
        if not _tell(connection, name, "'optimize'"):
            problems[_UNMERGED] = None
        elif _content(made) == "":
            problems[_OPAQUE] = None
        elif not _agrees(connection, name, kind, made):
            problems[DISAGREES] = None
    return list(problems)


def mend(connection: sqlite3.Connection) -> None:
    """Build anew every index that agreed with its table before VACUUM and does not now. Raises: sqlite3.Error."""
    for name, kind, made in indexes_of(connection):
        if _content(made) and not _agrees(connection, name, kind, made):
            _tell(connection, name, "'rebuild'")


def indexes_of(connection: sqlite3.Connection) -> list[tuple[str, str, str]]:
    """Return name, kind and declaration of every full-text index. Raises: sqlite3.Error."""
    found = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND rootpage = 0").fetchall()
    return [(name, kind[1].lower(), made) for name, made in found if (kind := _KIND.search(made))]


def _content(made: str) -> str | None:
    """Return the other table that holds an index's rows; empty where none does, None where it does itself."""
    found = _CONTENT.search(made)
    return None if found is None else found[1].strip("'\"")


def _agrees(connection: sqlite3.Connection, name: str, kind: str, made: str) -> bool:
    if not _content(made) or kind not in _CHECKS:
        return True
    column, values = _CHECKS[kind]
    return _tell(connection, name, values, column)


def _tell(connection: sqlite3.Connection, name: str, values: str, column: str = "") -> bool:
    """Give an index a command; False where it refused, which an index that is damaged does too."""
    quoted = '"' + name.replace('"', '""') + '"'
    try:
        connection.execute(f"INSERT INTO {quoted} ({quoted}{column}) VALUES ({values})")
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorname", "").startswith(_STOPPED):
            raise
        return False
    return True
