"""PostgreSQL: how to connect, reclaim and look at what tables hold.

Guarantees of `reclaim` at L2: every touched table was rewritten by VACUUM FULL with its TOAST table, shown by new file
nodes, and the server reported no dead row version that it had to keep; otherwise the level stays L1. VACUUM FULL takes
ACCESS EXCLUSIVE on one table at a time, and gives up after what is left of the deadline. The planner's samples of their
values are taken anew (`sql_statistics`), where there are any. Does not reach the write-ahead
log, replicas, archives and backups: `residual_until`. Source: reference/store-recipes.md §2.2.
"""

from __future__ import annotations

import re
import time
from contextlib import AbstractContextManager
from contextvars import ContextVar
from datetime import timedelta
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

import psycopg
import sqlalchemy as sa
from typing_extensions import override

from connectors import sql_statistics
from connectors.base import Level, ReclaimReport, Residue
from connectors.errors import BadConfig, ConnectorError, StoreUnreachable, Timeout, WrongCredentials
from connectors.residue import Hits, Needles
from connectors.sql_database import Bytes, Database, Refused
from connectors.vectors import teach
from connectors.watch import cut_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from connectors.base import Deadline
    from connectors.sql_catalog import Key, Table

_KEPT = re.compile(r"(\d+) dead row versions cannot be removed yet")
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
_REFUSED_LOGIN = re.compile(r"authentication failed|no password|does not exist|permission denied|not permitted|pg_hba")
_BLOCK = 1 << 20
_BETWEEN = "\x1f"
"""Stands in no plain key, since those are printable."""
_ARMED = "muniment: milliseconds that a statement has"
_LATE = 50
"""Milliseconds by which a statement may end after its deadline; setting a limit costs a round trip."""
_IN_A_CAST = {"character": "bpchar", "bit": "bit varying"}
"""Types of which a cast means one character, or one bit, and would cut the value short: another row, or none."""
_GRACE = 2.0
"""Seconds the server has to obey its own statement_timeout before the socket is cut."""

_FILES = """
SELECT c.oid::bigint AS oid, c.relfilenode::bigint AS node, coalesce(t.relfilenode, 0)::bigint AS toast,
       format('%%I.%%I', n.nspname, c.relname) AS name
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_class t ON t.oid = c.reltoastrelid
WHERE c.relkind IN ('r', 'm') AND c.oid IN (
  WITH RECURSIVE own AS (
  SELECT %s::regclass::oid AS oid
  UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN own ON i.inhparent = own.oid
  ) SELECT oid FROM own
)
"""
"""The files of a table, of its partitions and of tables that inherit from it: a DELETE reaches them all."""
_STATISTICS = "statistics"
"""In evidence: what file nodes the planner's statistics had before, or that no table had any."""


class PostgresDatabase(Database):
    """One PostgreSQL database."""

    kind = "sql"
    locks = "the erased rows until commit; during reclaim ACCESS EXCLUSIVE on each touched table in turn (VACUUM FULL)"
    row_lock = " FOR UPDATE OF t"
    begin = "BEGIN"
    at_once = (
        "SELECT ({counted}), row_security_active(oid),"
        " relhastriggers OR relhasrules OR relhassubclass OR relkind <> 'r'"
        " FROM pg_catalog.pg_class WHERE oid = %s::regclass"
    )

    def __init__(self, url: sa.URL, options: Mapping[str, Any]) -> None:
        unknown = set(options) - {"statement_timeout", "wal_retention"}
        if unknown:
            raise BadConfig(f"unknown setting {', '.join(sorted(unknown))}")
        self._url = url
        self._statement_timeout = _seconds("statement_timeout", options.get("statement_timeout"))
        self._wal_retention = _seconds("wal_retention", options.get("wal_retention"))
        self._types: dict[str, dict[str, str]] = {}
        teach()

    @override
    def connect(self, limit: Deadline, *, read_only: bool) -> sa.Connection:
        limit.check()
        bound = max(1, int(limit.left() * 1000))
        # What is said to be gone is on disk, also where the server is set to answer sooner and to lose a moment's work.
        settings = {
            "timezone": "UTC", "statement_timeout": bound, "lock_timeout": bound, "synchronous_commit": "on",
        }  # fmt: skip
        if read_only:
            settings["default_transaction_read_only"] = "on"
        arguments = {
            "connect_timeout": max(2, int(limit.left())),
            "options": " ".join(f"-c {name}={value}" for name, value in settings.items()),
            "client_encoding": "utf8",
            "application_name": "muniment",
        }
        engine = _engine(self._url.set(password=None).render_as_string())
        positional, named = engine.dialect.create_connect_args(self._url)
        told = _opening.set(lambda: engine.dialect.connect(*positional, **{**named, **arguments}))
        try:
            return engine.connect()
        except sa.exc.DBAPIError as error:
            raise self._unopened(error, limit) from None
        finally:
            _opening.reset(told)

    @staticmethod
    def _unopened(error: sa.exc.DBAPIError, limit: Deadline) -> ConnectorError:
        if limit.is_over() or isinstance(error.orig, psycopg.errors.ConnectionTimeout):
            return limit.error()
        if _REFUSED_LOGIN.search(str(error.orig)):
            return WrongCredentials("sql")
        return StoreUnreachable("sql", "the PostgreSQL server does not answer")

    @override
    def arm(self, connection: sa.Connection, limit: Deadline) -> None:
        limit.check()
        left = limit.left() if self._statement_timeout is None else min(limit.left(), self._statement_timeout)
        bound = max(1, int(left * 1000))
        armed = connection.info.get(_ARMED)
        if armed is not None and bound * 0.98 <= armed <= bound + _LATE:
            return
        connection.exec_driver_sql(
            f"SELECT set_config('statement_timeout', '{bound}', false), set_config('lock_timeout', '{bound}', false),"
            " set_config('synchronous_commit', 'on', false)"
        )
        # Inside a transaction it would be undone with it.
        is_kept = _raw(connection).info.transaction_status is psycopg.pq.TransactionStatus.IDLE
        connection.info[_ARMED] = bound if is_kept else None

    @override
    def guard(self, connection: sa.Connection, limit: Deadline) -> AbstractContextManager[None]:
        return cut_after(_raw(connection).pgconn.socket, limit.left() + _GRACE)

    @override
    def marks(self, table: Table, columns: Sequence[str], connection: sa.Connection) -> list[str]:
        if table.label not in self._types:
            rows = connection.exec_driver_sql(
                "SELECT attname, atttypid::regtype::text FROM pg_catalog.pg_attribute"
                " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
                (_plain(table),),
            )
            self._types[table.label] = {name: _IN_A_CAST.get(kind, kind) for name, kind in rows}
        kinds = self._types[table.label]
        return [f"CAST(%s AS {kinds[column].replace('%', '%%')})" for column in columns]

    @override
    def listed(self, marks: Sequence[str], keys: Sequence[Key]) -> tuple[str, tuple[Any, ...]]:
        names = [f"k{number}" for number in range(len(marks))]
        values = ", ".join(mark.replace("%s", f"u.{name}") for mark, name in zip(marks, names, strict=True))
        arrays = ", ".join(["%s::text[]"] * len(marks))
        columns = [_array(column) for column in zip(*keys, strict=True)]
        query = f"SELECT u.n - 1, {values} FROM unnest({arrays}) WITH ORDINALITY AS u ({', '.join(names)}, n)"
        return query, tuple(columns)

    @override
    def among(self, columns: Sequence[str], marks: Sequence[str], keys: Sequence[Key]) -> tuple[str, tuple[Any, ...]]:
        if len(marks) == 1:
            # CAST(%s AS type) becomes CAST(%s::text[] AS type[]); an index is used for that, whatever is estimated.
            return f"{columns[0]} = ANY ({marks[0].replace('%s', '%s::text[]', 1)[:-1]}[]))", (
                _array([key for (key,) in keys]),
            )
        query, parameters = self.listed(marks, keys)
        return f"({', '.join(columns)}) IN ({query.replace('u.n - 1, ', '', 1)})", parameters

    @override
    def explain(self, error: sa.exc.DBAPIError, limit: Deadline) -> ConnectorError | Refused:
        state = getattr(error.orig, "sqlstate", None) or ""
        if state in {"57014", "55P03"} or (not state and limit.is_over()):
            return limit.error()
        if state.startswith("28") or state == "42501":
            return WrongCredentials("sql", "the role may not do that")
        if state == "25006":
            return WrongCredentials("sql", "the server or role is read-only")
        if state[:2] in {"22", "23", "40", "42", "P0", "44", "55", "0A"}:
            return Refused(f"the database refused, SQLSTATE {state}")
        return StoreUnreachable("sql", f"the PostgreSQL server broke off, SQLSTATE {state or 'none'}")

    @override
    def hides_rows(self, connection: sa.Connection, table: Table) -> bool:
        return bool(connection.exec_driver_sql("SELECT row_security_active(%s::regclass)", (_plain(table),)).scalar())

    @override
    def changed(self, connection: sa.Connection) -> list[tuple[str, str]]:
        rows = connection.exec_driver_sql(
            "SELECT schemaname, relname FROM pg_catalog.pg_stat_xact_user_tables"
            " WHERE n_tup_del + n_tup_upd > 0 AND schemaname !~ '^pg_'"
        )
        return [(schema, name) for schema, name in rows]

    @override
    def reclaim(
        self, connection: sa.Connection, tables: Mapping[str, Table], level: Level, now: datetime, limit: Deadline
    ) -> ReclaimReport:
        residual: datetime | Literal["unknown"] = "unknown"
        if self._wal_retention is not None:
            residual = now + timedelta(seconds=self._wal_retention)
        if level <= Level.L1:
            return ReclaimReport(level=Level.L1, residual_until=residual, detail="nothing was reclaimed", method="none")
        evidence: dict[str, str] = {}
        problems: list[str] = []
        if connection.exec_driver_sql("SHOW track_counts").scalar() != "on":
            problems.append("track_counts is off, so what triggers changed elsewhere cannot be told")
        plain = [_plain(table) for table in tables.values()]
        size = self._size(connection, plain)
        for name in plain:
            problems += self._rewritten(connection, name, evidence, limit)
        freed = max(0, size - self._size(connection, plain))
        detail = f"{len(evidence)} tables rewritten; the write-ahead log keeps the rows for a time"
        if analysed := sql_statistics.analysed(connection, plain):
            problems += self._forget_samples(connection, analysed, evidence, limit)
            detail += "; statistics of the planner taken anew"
        evidence |= {_STATISTICS: "renewed" if analysed else "none"} if not problems else {}
        return ReclaimReport(
            level=Level.L1 if problems else Level.L2,
            residual_until=residual,
            detail="; ".join(problems) or detail,
            method="VACUUM FULL, new file nodes, no dead row version kept",
            evidence=evidence,
            freed_bytes=freed,
        )

    def _size(self, connection: sa.Connection, names: Sequence[str]) -> int:
        """Return the bytes of these tables with their TOAST tables and indexes."""
        every = {oid for name in names for oid, _, _, _ in self._files(connection, name)}
        query = "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM unnest(%s::oid[]) AS each (oid)"
        return int(connection.exec_driver_sql(query, (list(every),)).scalar() or 0)

    def _rewritten(
        self, connection: sa.Connection, plain: str, evidence: dict[str, str], limit: Deadline
    ) -> Iterator[str]:
        """Rewrite what one name leads to, noting the file nodes from before; yield what could not be."""
        for oid, node, toast, name in self._files(connection, plain):
            problem = self._rewrite(connection, (oid, node, toast), name, limit)
            if problem is None:
                evidence[f"table {oid}"] = f"{node}/{toast}"
            else:
                yield f"{name}: {problem}"

    def _forget_samples(
        self, connection: sa.Connection, tables: dict[int, str], evidence: dict[str, str], limit: Deadline
    ) -> list[str]:
        """Take statistics anew and rewrite where they lay; return what could not be done."""
        try:
            problems = sql_statistics.renew(connection, tables, lambda: self.arm(connection, limit))
        except sa.exc.DBAPIError as error:
            problem = self.explain(error, limit)
            if not isinstance(problem, Refused | Timeout):
                raise problem from None
            return ["the planner's statistics could not be taken anew, and hold values of rows"]
        for name in sql_statistics.CATALOGS:
            problems += self._rewritten(connection, name, evidence, limit)
        return problems

    @staticmethod
    def _files(connection: sa.Connection, plain: str) -> list[tuple[int, int, int, str]]:
        rows = connection.exec_driver_sql(_FILES, (plain,))
        return [(row.oid, row.node, row.toast, row.name) for row in rows]

    def _rewrite(
        self, connection: sa.Connection, before: tuple[int, int, int], name: str, limit: Deadline
    ) -> str | None:
        """Rewrite one table; return why it may still hold dead rows, None when it holds none."""
        oid, node, toast = before
        said: list[str] = []
        raw = _raw(connection)

        def listen(note: psycopg.errors.Diagnostic) -> None:
            said.append(f"{note.message_primary or ''} {note.message_detail or ''}")

        raw.add_notice_handler(listen)
        try:
            while True:
                said.clear()
                self.arm(connection, limit)
                connection.exec_driver_sql(f"VACUUM (FULL, VERBOSE) {name.replace('%', '%%')}")
                kept = [int(number) for number in _KEPT.findall(" ".join(said))]
                if not kept or not any(kept):
                    break
                if limit.left() < 1:
                    return "an open transaction or replica still needs the old rows"
                time.sleep(0.2)
        except Timeout:
            return "not rewritten before the deadline"
        except sa.exc.DBAPIError as error:
            problem = self.explain(error, limit)
            if isinstance(problem, Refused):
                return problem.reason
            if isinstance(problem, Timeout):
                return "the table is in use and was not rewritten before the deadline"
            raise problem from None
        finally:
            raw.remove_notice_handler(listen)
        after = connection.exec_driver_sql(
            "SELECT c.relfilenode::bigint, coalesce(t.relfilenode, 0)::bigint FROM pg_catalog.pg_class c"
            " LEFT JOIN pg_catalog.pg_class t ON t.oid = c.reltoastrelid WHERE c.oid = %s",
            (oid,),
        ).fetchone()
        if after is None or after[0] == node or (toast and after[1] == toast):
            return "the server did not rewrite it (not its owner?)"
        return None if kept else "the server's report could not be read (its messages are not in English)"

    @override
    def look(
        self,
        connection: sa.Connection,
        tables: Sequence[Table],
        canaries: Sequence[bytes],
        reclaimed: ReclaimReport | None,
        limit: Deadline,
    ) -> Bytes:
        found: set[int] = set()
        how = "file nodes compared"
        if canaries:
            wanted = Needles(canaries)
            every = self._base_tables(connection)
            for _, hits in self._search(connection, every, wanted, limit):
                found |= {number for number, _ in hits}
            how += ", every table read for the canaries"
            if self._may_read_files(connection):
                for name in (*(_plain(table) for table in tables), *sql_statistics.CATALOGS):
                    for _, hits in self._scan(connection, name, wanted, limit):
                        found |= {number for number, _ in hits}
                how += ", byte scan of table files"
        missing = self._not_rewritten(connection, tables, reclaimed)
        return Bytes(found=frozenset(found), how=how, could_not_check=missing)

    def _not_rewritten(
        self, connection: sa.Connection, tables: Sequence[Table], reclaimed: ReclaimReport | None
    ) -> str | None:
        """Return why the old files may still be there; a byte scan cannot say so, since TOAST compresses values."""
        evidence = reclaimed.evidence if reclaimed else {}
        catalogs = sql_statistics.CATALOGS if evidence.get(_STATISTICS) == "renewed" else ()
        for plain in (*(_plain(table) for table in tables), *catalogs):
            for oid, node, toast, name in self._files(connection, plain):
                before = evidence.get(f"table {oid}")
                if before is None:
                    return f"no rewrite of {name} is in evidence"
                old_node, old_toast = before.split("/")
                if str(node) == old_node or (toast and str(toast) == old_toast):
                    return f"{name} still has the file node from before"
        if _STATISTICS not in evidence:
            return "nothing is in evidence of what the planner's statistics hold"
        return None

    @override
    def residue(
        self, connection: sa.Connection, tables: Sequence[Table], canaries: Sequence[bytes], limit: Deadline
    ) -> list[Residue]:
        wanted = Needles(canaries)
        found = self._search(connection, self._base_tables(connection), wanted, limit)
        if self._may_read_files(connection):
            for name in (*(_plain(table) for table in tables), *sql_statistics.CATALOGS):
                found += self._scan(connection, name, wanted, limit)
        return [
            Residue(where=label, count=number_of, encoding=encoding, canary=number)
            for label, hits in found
            for (number, encoding), number_of in hits.items()
        ]

    @staticmethod
    def _base_tables(connection: sa.Connection) -> list[str]:
        rows = connection.exec_driver_sql(
            "SELECT format('%%I.%%I', n.nspname, c.relname) FROM pg_catalog.pg_class c"
            " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relkind IN ('r', 'm') AND n.nspname !~ '^(pg_|information_schema$)' ORDER BY 1"
        )
        return [row[0] for row in rows]

    def _search(
        self, connection: sa.Connection, names: Sequence[str], wanted: Needles, limit: Deadline
    ) -> list[tuple[str, Hits]]:
        """Read every live row, and the planner's samples, as the server decodes them: compressed values too."""
        found = []
        queries = [(f"rows of {name}", f"SELECT * FROM {name}") for name in names]
        for label, query in (*queries, *(("the planner's statistics", query) for query in sql_statistics.SAMPLES)):
            self.arm(connection, limit)
            try:
                with _raw(connection).cursor() as cursor:
                    statement = f"COPY ({query}) TO STDOUT (FORMAT binary)"
                    with cursor.copy(statement.encode()) as copied:
                        found.append((label, wanted.count_chunks((bytes(part) for part in copied), limit)))
            except psycopg.Error as error:
                problem = self.explain(sa.exc.DBAPIError("", None, error), limit)
                if isinstance(problem, Refused):
                    raise StoreUnreachable("sql", f"a table could not be read: {problem.reason}") from None
                raise problem from None
        return found

    @staticmethod
    def _may_read_files(connection: sa.Connection) -> bool:
        name = "pg_read_binary_file(text,bigint,bigint,boolean)"
        return bool(connection.exec_driver_sql("SELECT has_function_privilege(%s, 'EXECUTE')", (name,)).scalar())

    def _scan(self, connection: sa.Connection, plain: str, wanted: Needles, limit: Deadline) -> list[tuple[str, Hits]]:
        """Scan the files of a table, its TOAST table and their indexes, one gigabyte segment after another."""
        found = []
        for oid, _, _, name in self._files(connection, plain):
            paths = connection.exec_driver_sql(
                "WITH own AS (SELECT oid, reltoastrelid FROM pg_catalog.pg_class WHERE oid = %s),"
                " heaps AS (SELECT oid FROM own UNION SELECT reltoastrelid FROM own WHERE reltoastrelid <> 0),"
                " every AS (SELECT oid FROM heaps UNION SELECT indexrelid FROM pg_catalog.pg_index"
                " WHERE indrelid IN (SELECT oid FROM heaps))"
                " SELECT pg_relation_filepath(oid) FROM every",
                (oid,),
            ).scalars()
            for path in [each for each in paths if each]:
                pieces = self._pieces(connection, path, limit)
                found.append((f"files of {name}", wanted.count_chunks(pieces, limit)))
        return found

    def _pieces(self, connection: sa.Connection, path: str, limit: Deadline) -> Iterator[bytes]:
        for segment in count():
            for block in count():
                self.arm(connection, limit)
                piece = connection.exec_driver_sql(
                    "SELECT pg_read_binary_file(%s, %s, %s, true)",
                    (path if segment == 0 else f"{path}.{segment}", block * _BLOCK, _BLOCK),
                ).scalar()
                if piece is None:
                    return
                yield bytes(piece)
                if len(piece) < _BLOCK:
                    break


_opening: ContextVar[Callable[[], Any]] = ContextVar("how the engine that is told to connect does so")


@lru_cache(maxsize=256)
def _engine(place: str) -> sa.Engine:
    """Return the engine of a database and role, which keeps no connection and no password.

    It is kept for the statements that reflection compiles: they cost more than a small erasure. What it learns of the
    server and the role (its version, its default schema) holds until the process ends.
    """

    def opened() -> Any:
        return _opening.get()()

    return sa.create_engine(place, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT", creator=opened)


def _raw(connection: sa.Connection) -> psycopg.Connection[Any]:
    raw = connection.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)  # noqa: S101 -- narrows for the type checker; connect() made it
    return raw


def _array(values: Sequence[str | int]) -> str:
    """Return plain keys as the text of a text[]; the driver takes a list value by value. Source: manual §8.15.2."""
    joined = _BETWEEN.join(map(str, values))
    if "\\" in joined or '"' in joined:
        joined = joined.replace("\\", "\\\\").replace('"', '\\"')
    return '{"' + joined.replace(_BETWEEN, '","') + '"}'


def _plain(table: Table) -> str:
    """Return the quoted name as a value, where the driver's parameter marks do not count."""
    return table.quoted.replace("%%", "%")


def _seconds(name: str, value: object) -> float | None:
    """Return a setting in seconds, given as number or ISO 8601 duration of days and times. Raises: BadConfig."""
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is None or not any(found.groups()):
        raise BadConfig(f"{name} is a number of seconds or a duration like P7D or PT12H")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
