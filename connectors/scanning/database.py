"""Databases as recognisers read them: tables, columns, keys, and rows that stream.

Guarantees: nothing is written; every fault of a driver becomes `Unreadable`, with words that hold no value. Queries are
built of quoted names of the schema and of parameters. SQLite files are opened by `scanning.opening`.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from typing_extensions import override

if TYPE_CHECKING:
    from pathlib import Path

    from connectors.base import Deadline

_STEPS = 20_000
_BATCH = 2_000
_LONGEST_VALUE = 256 << 20


class Unreadable(Exception):
    """Something of a store could not be read; the message says why without any value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table: columns by lower-case name, declared types, and the columns of its primary key."""

    name: str
    columns: dict[str, str]
    types: dict[str, str]
    key: tuple[str, ...]

    def has(self, *names: str) -> bool:
        """Tell whether all these columns are there."""
        return all(name in self.columns for name in names)


class Database(ABC):
    """One open database. `tables` are its own tables, by name."""

    tables: dict[str, Table]

    @abstractmethod
    def rows(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]:
        """Yield rows in bounded memory; parameters are `?`. Raises: Unreadable."""

    @abstractmethod
    def text(self, expression: str) -> str:
        """Return SQL for a JSON or text value as text."""

    @abstractmethod
    def length(self, expression: str) -> str:
        """Return SQL for the bytes of a value."""

    @abstractmethod
    def holds(self, expression: str, kind: str) -> str:
        """Return SQL that tells whether a value of a declared type holds the parameter `?`, given as text."""

    def batches(self, query: str, *values: object) -> Iterator[list[tuple[Any, ...]]]:
        """Yield rows some thousands at a time, for tables of many small rows; texts may come as bytes.

        Raises: Unreadable.
        """
        rows = self.rows(query, *values)
        while batch := list(islice(rows, _BATCH)):
            yield batch

    def scalar(self, query: str, *values: object) -> Any:
        """Return the first value of the first row, None without one. Raises: Unreadable."""
        return next(iter(self.rows(query, *values)), (None,))[0]

    def count(self, query: str, *values: object) -> int:
        """Return a number. Raises: Unreadable."""
        return int(self.scalar(query, *values) or 0)

    def has(self, *tables: str) -> bool:
        """Tell whether all these tables are there."""
        return all(name in self.tables for name in tables)

    @staticmethod
    def quoted(name: str) -> str:
        """Return a name of the schema as SQL writes it."""
        return '"' + name.replace('"', '""') + '"'

    def from_(self, table: str) -> str:
        """Return a table's name for FROM."""
        return self.quoted(table)


class SqliteReader(Database):
    """A connection to a file that was opened so that nothing in its folder changes."""

    def __init__(self, connection: sqlite3.Connection, limit: Deadline) -> None:
        self._connection = connection
        self._limit = limit
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute("PRAGMA cell_size_check=ON")
        connection.execute("PRAGMA temp_store=MEMORY")
        connection.execute("PRAGMA cache_size=-16000")
        connection.set_progress_handler(lambda: int(limit.is_over()), _STEPS)
        self.tables = {}
        self.hidden = 0
        names = [row[0] for row in self.rows("SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0")]
        for name in names:
            if not name.startswith("sqlite_"):
                self._add(name)

    def _add(self, name: str) -> None:
        try:
            found = list(self.rows(f"PRAGMA table_info({self.quoted(name)})"))
        except Unreadable:
            self.hidden += 1
            return
        columns = {str(row[1]).lower(): str(row[1]) for row in found}
        types = {str(row[1]): str(row[2]).lower() for row in found}
        key = tuple(str(row[1]) for row in sorted((row for row in found if row[5]), key=lambda row: int(row[5])))
        self.tables[name] = Table(name=name, columns=columns, types=types, key=key)

    @override
    def rows(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]:
        return chain.from_iterable(self._fetched(_text, query, values))

    @override
    def batches(self, query: str, *values: object) -> Iterator[list[tuple[Any, ...]]]:
        return self._fetched(bytes, query, values)

    def _fetched(
        self, texts: Callable[[bytes], object], query: str, values: Sequence[object]
    ) -> Iterator[list[tuple[Any, ...]]]:
        try:
            cursor = self._connection.execute(query, values)
            while True:
                # Looked at with every fetch; another query may run between two of ours.
                self._connection.text_factory = texts
                if not (batch := cursor.fetchmany(_BATCH)):
                    return
                yield batch
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise Unreadable(_sqlite_words(error, self._limit)) from None

    @override
    def text(self, expression: str) -> str:
        return f"CAST({expression} AS TEXT)"

    @override
    def length(self, expression: str) -> str:
        return f"coalesce(length(CAST({expression} AS BLOB)), 0)"

    @override
    def holds(self, expression: str, kind: str) -> str:
        return f"coalesce(instr(CAST({expression} AS BLOB), CAST(? AS BLOB)), 0) > 0"


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def _sqlite_words(error: Exception, limit: Deadline) -> str:
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    if name.startswith("SQLITE_INTERRUPT") and limit.is_over():
        return "the time limit was reached"
    words = {
        "SQLITE_CORRUPT": "pages are damaged",
        "SQLITE_NOTADB": "the file is no SQLite database, or is encrypted",
        "SQLITE_IOERR": "the file could not be read",
        "SQLITE_TOOBIG": "a value is too long to be read",
        "SQLITE_CANTOPEN": "the file could not be opened",
    }
    return next((text for start, text in words.items() if name.startswith(start)), f"SQLite says {name}")


class PostgresReader(Database):
    """A read-only transaction of one snapshot in a PostgreSQL database."""

    def __init__(self, connection: Any, limit: Deadline, error: type[Exception]) -> None:
        self._connection = connection
        self._limit = limit
        self._error = error
        self._cursors = 0
        self.tables = {}
        self.schemas: dict[str, str] = {}
        query = """
            SELECT n.nspname, c.relname, a.attname, format_type(a.atttypid, NULL),
                   coalesce(array_position(i.indkey::int2[], a.attnum), -1)
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
            LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
            WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND has_table_privilege(c.oid, 'SELECT')
              AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
            ORDER BY n.nspname <> current_schema(), n.nspname, c.relname, a.attnum"""
        found: dict[tuple[str, str], list[tuple[str, str, int]]] = {}
        for schema, table, column, kind, position in self.rows(query):
            found.setdefault((schema, table), []).append((column, kind, position))
        for (schema, table), columns in found.items():
            name = table if table not in self.tables else f"{schema}.{table}"
            self.schemas[name] = schema
            key = sorted((position, column) for column, _, position in columns if position >= 0)
            self.tables[name] = Table(
                name=name,
                columns={column.lower(): column for column, _, _ in columns},
                types={column: kind for column, kind, _ in columns},
                key=tuple(column for _, column in key),
            )

    @override
    def from_(self, table: str) -> str:
        schema = self.schemas[table]
        return f"{self.quoted(schema)}.{self.quoted(table.removeprefix(f'{schema}.'))}"

    @override
    def rows(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]:
        if self._limit.is_over():
            raise Unreadable("the time limit was reached")
        self._cursors += 1
        name = f"muniment_scan_{self._cursors}"
        try:
            with self._connection.transaction(), self._connection.cursor(name=name) as cursor:
                cursor.itersize = _BATCH
                cursor.execute(query.replace("%", "%%").replace("?", "%s"), values)
                for row in cursor:
                    yield row
                    if self._limit.is_over():
                        raise Unreadable("the time limit was reached")
        except self._error as error:
            state = getattr(error, "sqlstate", None) or type(error).__name__
            raise Unreadable(f"the server refused ({state})") from None

    @override
    def text(self, expression: str) -> str:
        return f"({expression})::text"

    @override
    def length(self, expression: str) -> str:
        return f"coalesce(pg_column_size({expression}), 0)"

    @override
    def holds(self, expression: str, kind: str) -> str:
        if kind == "bytea":
            return f"coalesce(position(convert_to(?, 'UTF8') in {expression}) > 0, false)"
        return f"coalesce(position(? in {expression}::text) > 0, false)"


def label_of(path: Path, root: Path) -> str:
    """Return a file's place below the target, or its name where it is the target."""
    return path.name if path == root else str(path.relative_to(root))
