"""SQLite files: how to connect, reclaim and look at the bytes.

Guarantees of `reclaim` at L2: full-text indexes were merged (`sqlite_index`), then the database was rewritten by VACUUM
and the write-ahead log truncated, with no reader left that made the checkpoint busy; otherwise the level stays L1, and
`look` shows nothing above it: a page that was reused in part holds half a text, which no search finds. Source:
reference/store-recipes.md §2.1: the order is DELETE, VACUUM, wal_checkpoint(TRUNCATE), and `secure_delete` at delete
time does not clean what earlier rebalancing freed. Does not know about backups, and not about blocks the file system
freed.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import sqlalchemy as sa
from typing_extensions import override

from connectors.base import Level, ReclaimReport, Residue
from connectors.errors import BadConfig, ConnectorError, StoreUnreachable, Timeout, WrongCredentials
from connectors.residue import Hits, Needles
from connectors.sql_database import Bytes, Database, Refused
from connectors.sqlite_index import DISAGREES, forget, indexes_of, mend

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from connectors.base import Deadline
    from connectors.sql_catalog import Key, Table

FILES = (("", "database"), ("-wal", "write-ahead log"), ("-journal", "rollback journal"))
_VACUUMED = "vacuumed"
_STEPS = 10_000
"""Virtual machine steps between two looks at the clock; well under a millisecond."""


class SqliteDatabase(Database):
    """One SQLite file; never created by us."""

    kind = "sql"
    locks = "other writers wait during erase (short) and reclaim (VACUUM: a full rewrite, twice the disk space)"
    row_lock = ""
    # The write lock is taken first: a read lock that is upgraded later can fail in a way no waiting solves.
    begin = "BEGIN IMMEDIATE"
    at_once = None

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        if not path.startswith("/"):
            raise BadConfig("url names an SQLite file by its absolute path")
        if options:
            raise BadConfig(f"unknown setting {', '.join(sorted(options))}")
        self._path = path

    @override
    def connect(self, limit: Deadline, *, read_only: bool) -> sa.Connection:
        limit.check()
        address = f"file:{quote(self._path)}?mode={'ro' if read_only else 'rw'}"

        def open_file() -> sqlite3.Connection:
            raw = sqlite3.connect(address, uri=True, timeout=limit.left(), check_same_thread=False)
            raw.isolation_level = None
            # Text that is no UTF-8 keeps its bytes instead of failing the read.
            raw.text_factory = lambda text: text.decode(errors="surrogateescape")
            raw.execute("PRAGMA foreign_keys=ON")
            raw.execute("PRAGMA trusted_schema=OFF")
            if not read_only:
                raw.execute("PRAGMA secure_delete=ON")
                # With less, a power cut may bring a rollback journal back, and with it what was said to be gone.
                raw.execute("PRAGMA synchronous=EXTRA")
                if indexes_of(raw):
                    # The application's triggers keep its full-text indexes, which older versions of SQLite do not call
                    # innocuous: the delete would fail. No function of ours and no extension is there to be called.
                    raw.execute("PRAGMA trusted_schema=ON")
            raw.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            return raw

        engine = sa.create_engine("sqlite://", creator=open_file, poolclass=sa.pool.NullPool)
        try:
            return engine.connect()
        except sa.exc.DBAPIError as error:
            raise self._unopened(error) from None

    def _unopened(self, error: sa.exc.DBAPIError) -> ConnectorError:
        name = getattr(error.orig, "sqlite_errorname", "")
        if name in {"SQLITE_NOTADB", "SQLITE_CORRUPT"}:
            return StoreUnreachable("sql", "the file is no SQLite database")
        if name == "SQLITE_PERM" or (Path(self._path).exists() and not os.access(self._path, os.R_OK)):
            return WrongCredentials("sql", "the file may not be opened")
        return StoreUnreachable("sql", "the SQLite file cannot be opened")

    @override
    def arm(self, connection: sa.Connection, limit: Deadline) -> None:
        limit.check()
        raw = _raw(connection)
        raw.set_progress_handler(lambda: int(limit.is_over()), _STEPS)
        raw.execute(f"PRAGMA busy_timeout={max(1, int(limit.left() * 1000))}")

    @override
    def marks(self, table: Table, columns: Sequence[str], connection: sa.Connection) -> list[str]:
        return ["?"] * len(columns)

    @override
    def listed(self, marks: Sequence[str], keys: Sequence[Key]) -> tuple[str, tuple[Any, ...]]:
        if len(marks) == 1:
            return "SELECT key, value FROM json_each(?)", (json.dumps([value for (value,) in keys]),)
        values = ", ".join(f"json_extract(value, '$[{number}]')" for number in range(len(marks)))
        return f"SELECT key, {values} FROM json_each(?)", (json.dumps(keys),)

    @override
    def among(self, columns: Sequence[str], marks: Sequence[str], keys: Sequence[Key]) -> tuple[str, tuple[Any, ...]]:
        query, parameters = self.listed(marks, keys)
        return f"({', '.join(columns)}) IN ({query.replace('key, ', '', 1)})", parameters

    @override
    def explain(self, error: sa.exc.DBAPIError, limit: Deadline) -> ConnectorError | Refused:
        name = getattr(error.orig, "sqlite_errorname", "")
        if name.startswith(("SQLITE_BUSY", "SQLITE_INTERRUPT", "SQLITE_LOCKED")):
            return limit.error()
        if name.startswith("SQLITE_READONLY"):
            return WrongCredentials("sql", "the file or its folder may not be written")
        if name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_NOTADB", "SQLITE_CORRUPT")):
            return StoreUnreachable("sql", "the SQLite file cannot be read or written")
        if name.startswith("SQLITE_FULL"):
            return StoreUnreachable("sql", "the disk is full")
        return Refused(f"the database refused ({name or 'unknown reason'})")

    @override
    def guard(self, connection: sa.Connection, limit: Deadline) -> AbstractContextManager[None]:
        # Everything runs in this process, under the progress handler.
        return nullcontext()

    @override
    def hides_rows(self, connection: sa.Connection, table: Table) -> bool:
        return False

    @override
    def changed(self, connection: sa.Connection) -> list[tuple[str, str]]:
        return []  # the file is rewritten in whole

    @override
    def reclaim(
        self, connection: sa.Connection, tables: Mapping[str, Table], level: Level, now: datetime, limit: Deadline
    ) -> ReclaimReport:
        if level <= Level.L1:
            return _report(Level.L1, "nothing was reclaimed", "none")
        method = "VACUUM, wal_checkpoint(TRUNCATE)"
        size = self._size()
        try:
            self.arm(connection, limit)
            if connection.exec_driver_sql("PRAGMA journal_mode").scalar() != "wal":
                # A persistent journal keeps the pages from before; this mode deletes the file.
                connection.exec_driver_sql("PRAGMA journal_mode=DELETE")
            problems = forget(_raw(connection), [table.name for table in tables.values()])
            if DISAGREES in problems:
                # VACUUM may number rows anew, and such an index could not be mended afterwards.
                return _report(Level.L1, f"not rewritten: {DISAGREES}", method)
            connection.exec_driver_sql("VACUUM")
            mend(_raw(connection))
            while True:
                busy = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                if busy is not None and busy[0] == 0:
                    break
                if limit.is_over():
                    return _report(Level.L1, "a reader holds an old snapshot: the log could not be truncated", method)
                time.sleep(min(0.05, limit.left()))
        except (sa.exc.DBAPIError, sqlite3.Error) as error:
            said = error if isinstance(error, sa.exc.DBAPIError) else sa.exc.DBAPIError("", None, error)
            problem = self.explain(said, limit)
            if isinstance(problem, Refused):
                return _report(Level.L1, f"VACUUM was refused: {problem.reason}", method)
            if isinstance(problem, Timeout):
                return _report(Level.L1, "another connection held the database until the deadline", method)
            raise problem from None
        freed = max(0, size - self._size())
        if problems:
            return replace(_report(Level.L1, "; ".join(problems), method), freed_bytes=freed)
        detail = "file rewritten, log truncated; backups and freed disk blocks were not looked at"
        return replace(_report(Level.L2, detail, method, {_VACUUMED: "1"}), freed_bytes=freed)

    def _size(self) -> int:
        files = [Path(self._path + end) for end, _ in FILES]
        return sum(file.stat().st_size for file in files if file.exists())

    @override
    def look(
        self,
        connection: sa.Connection,
        tables: Sequence[Table],
        canaries: Sequence[bytes],
        reclaimed: ReclaimReport | None,
        limit: Deadline,
    ) -> Bytes:
        is_rewritten = reclaimed is not None and _VACUUMED in reclaimed.evidence
        why = None if is_rewritten else "the file was not rewritten after the erasure, so parts of it may lie in pages"
        if canaries:
            found = {number for _, hits in self._scan(canaries, limit) for number, _ in hits}
            return Bytes(found=frozenset(found), how="byte scan of database, log and journal", could_not_check=why)
        if why is not None:
            return Bytes(found=frozenset(), how="none", could_not_check=why)
        free = connection.exec_driver_sql("PRAGMA freelist_count").scalar()
        beside = sum(Path(self._path + end).stat().st_size for end, _ in FILES[1:] if Path(self._path + end).exists())
        if free or beside:
            why = "no canary was captured, and the file was written to since it was rewritten"
            return Bytes(found=frozenset(), how="structure", could_not_check=why)
        return Bytes(found=frozenset(), how="structure: rewritten, no free pages, empty log and journal")

    @override
    def residue(
        self, connection: sa.Connection, tables: Sequence[Table], canaries: Sequence[bytes], limit: Deadline
    ) -> list[Residue]:
        return [
            Residue(where=label, count=count, encoding=encoding, canary=number)
            for label, hits in self._scan(canaries, limit)
            for (number, encoding), count in hits.items()
        ]

    def _scan(self, canaries: Sequence[bytes], limit: Deadline) -> list[tuple[str, Hits]]:
        wanted = Needles(canaries)
        found = []
        for end, label in FILES:
            try:
                with Path(self._path + end).open("rb") as stream:
                    found.append((label, wanted.count(stream, limit)))
            except FileNotFoundError:
                continue
        return found


def _raw(connection: sa.Connection) -> sqlite3.Connection:
    raw = connection.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)  # noqa: S101 -- narrows for the type checker; connect() made it
    return raw


def _report(level: Level, detail: str, method: str, evidence: dict[str, str] | None = None) -> ReclaimReport:
    residual: Literal["unknown"] = "unknown"
    return ReclaimReport(level=level, residual_until=residual, detail=detail, method=method, evidence=evidence or {})
