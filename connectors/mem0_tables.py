"""mem0's collections in PostgreSQL with pgvector: tables of memories and of entities.

Guarantees: every table of mem0's columns in the first schema of the search path is a collection, whatever its name, as
the history is of all of them. No such table, and one of which row security hides rows from the role, is an error and
never an absence. Ids are compared as UUIDs, owners in the transaction that deletes, with the rows locked.
`reclaim` and `look` are those of kind `sql` on PostgreSQL: new file nodes of heap, TOAST and indexes, every table read,
files scanned where the role may. Source: mem0ai 2.2.1 (vector_stores/pgvector.py).
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import sqlalchemy as sa
from typing_extensions import override

from connectors.errors import BadLocator, StoreUnreachable
from connectors.sql_catalog import Catalog, Table
from connectors.sql_database import Bytes, Refused
from connectors.vector_store import Places, Point, PointId
from connectors.vectors import numbers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from connectors.base import Deadline, Level, ReclaimReport, Residue
    from connectors.sql_postgres import PostgresDatabase

_COLLECTIONS = """
SELECT n.nspname, c.relname FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace AND n.nspname = current_schema()
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
WHERE c.relkind IN ('r', 'p') GROUP BY 1, 2
HAVING array_agg(a.attname || ' ' || t.typname ORDER BY a.attname) = ARRAY['id uuid', 'payload jsonb', 'vector vector']
"""
_PAGE = 500


class Link:
    """The connections to one database, kept between calls: one that cannot write, and one that can."""

    def __init__(self, database: PostgresDatabase) -> None:
        self.database = database
        self._open: dict[bool, tuple[sa.Connection, Catalog]] = {}

    @contextmanager
    def opened(self, limit: Deadline, *, write: bool) -> Iterator[tuple[sa.Connection, Catalog]]:
        """Give a connection and its catalog, bounded by the limit. Raises: ConnectorError."""
        try:
            if write not in self._open:
                connection = self.database.connect(limit, read_only=not write)
                self._open[write] = connection, Catalog(connection)
            connection, catalog = self._open[write]
            with self.database.guard(connection, limit):
                self.database.arm(connection, limit)
                yield connection, catalog
        except sa.exc.DBAPIError as error:
            self.close()
            problem = self.database.explain(error, limit)
            raise (StoreUnreachable("mem0", problem.reason) if isinstance(problem, Refused) else problem) from None
        except BaseException:
            # What was begun is rolled back with the connection.
            self.close()
            raise

    def close(self) -> None:
        """Give up the connections."""
        for connection, _ in self._open.values():
            connection.invalidate()
            connection.close()
        self._open.clear()


class Tables(Places):
    """The collections of one database, for the length of one call."""

    def __init__(self, link: Link, owner: Callable[[Point], str | None], limit: Deadline) -> None:
        self._link = link
        self._owner = owner
        self._limit = limit

    @override
    def collections(self) -> list[str]:
        with self._link.opened(self._limit, write=False) as (connection, catalog):
            return sorted(self._tables(connection, catalog))

    @staticmethod
    def _tables(connection: sa.Connection, catalog: Catalog) -> dict[str, Table]:
        """Return the collections by name. Raises: StoreUnreachable where there is none."""
        found = {name: catalog.at(schema, name) for schema, name in connection.exec_driver_sql(_COLLECTIONS)}
        found = {name: table for name, table in found.items() if table.primary == ("id",)}
        if not found:
            raise StoreUnreachable("mem0", "the first schema of the search path has no table of mem0's columns")
        return found

    @contextmanager
    def _table(self, collection: str, *, write: bool) -> Iterator[tuple[sa.Connection, str]]:
        with self._link.opened(self._limit, write=write) as (connection, catalog):
            table = self._tables(connection, catalog)[collection]
            if self._link.database.hides_rows(connection, table):
                raise StoreUnreachable("mem0", "row security hides rows from this role")
            yield connection, table.quoted

    @override
    def identify(self, collection: str, given: object) -> PointId:
        try:
            return str(UUID(str(given)))
        except ValueError:
            raise BadLocator("an id of mem0 is a UUID") from None

    @override
    def read(self, collection: str, ids: Sequence[PointId]) -> dict[PointId, list[Point]]:
        with self._table(collection, write=False) as (connection, table):
            rows = connection.exec_driver_sql(
                f"SELECT id::text, payload, vector::text FROM {table} WHERE id = ANY (%s::text[]::uuid[])",
                ([str(each) for each in ids],),
            ).fetchall()
        return {row[0]: [_point(*row)] for row in rows}

    @override
    def pages(self, collection: str) -> Iterator[list[Point]]:
        after: str | None = None
        while True:
            self._limit.check()
            later, values = ("", ()) if after is None else (" WHERE id > %s::uuid", (after,))
            with self._table(collection, write=False) as (connection, table):
                rows = connection.exec_driver_sql(
                    f"SELECT id::text, payload, vector::text FROM {table}{later} ORDER BY id LIMIT {_PAGE}", values
                ).fetchall()
            if rows:
                yield [_point(*row) for row in rows]
            if len(rows) < _PAGE:
                return
            after = rows[-1][0]

    @override
    def delete(self, collection: str, ids: Sequence[PointId], owners: frozenset[str] | None) -> None:
        with self._table(collection, write=True) as (connection, table):
            run = connection.exec_driver_sql
            run("BEGIN")
            rows = run(
                f"SELECT id::text, payload FROM {table} WHERE id = ANY (%s::text[]::uuid[]) ORDER BY id FOR UPDATE",
                ([str(each) for each in ids],),
            ).fetchall()
            named = {identity: self._owner(_point(identity, payload, None)) for identity, payload in rows}
            going = [each for each, owner in named.items() if owners is None or (owner is not None and owner in owners)]
            run(f"DELETE FROM {table} WHERE id = ANY (%s::text[]::uuid[])", (going,))
            run("COMMIT")

    def change_payloads(self, collection: str, changes: Mapping[PointId, Mapping[str, Any]]) -> None:
        """Give rows other payloads and leave the rest of them as it is, all or none. Raises: StoreUnreachable."""
        with self._table(collection, write=True) as (connection, table):
            run = connection.exec_driver_sql
            run("BEGIN")
            for identity, payload in sorted(changes.items(), key=lambda each: str(each[0])):
                run(
                    f"UPDATE {table} SET payload = %s::jsonb WHERE id = %s::uuid",
                    (json.dumps(payload), str(identity)),
                )
            run("COMMIT")

    def reclaim(self, level: Level, now: datetime) -> ReclaimReport:
        """Rewrite the tables with their indexes, as kind `sql` does."""
        with self._link.opened(self._limit, write=True) as (connection, catalog):
            return self._link.database.reclaim(connection, self._tables(connection, catalog), level, now, self._limit)

    def look(self, canaries: Sequence[bytes], reclaimed: ReclaimReport | None) -> Bytes:
        """Look for canaries in every table, and in the files of ours."""
        with self._link.opened(self._limit, write=False) as (connection, catalog):
            tables = list(self._tables(connection, catalog).values())
            return self._link.database.look(connection, tables, canaries, reclaimed, self._limit)

    def residue(self, canaries: Sequence[bytes]) -> list[Residue]:
        """Return where the database still holds canaries."""
        with self._link.opened(self._limit, write=False) as (connection, catalog):
            return self._link.database.residue(connection, catalog.tables(), canaries, self._limit)

    def make(self, name: str, point: Point) -> None:
        """Make a table of mem0's columns with one row."""
        with self._link.opened(self._limit, write=True) as (connection, catalog):
            table, vector = catalog.quote(name), list(point.vectors[0])
            connection.exec_driver_sql(
                f"CREATE TABLE {table} (id uuid PRIMARY KEY, vector vector({len(vector)}), payload jsonb)"
            )
            connection.exec_driver_sql(
                f"INSERT INTO {table} VALUES (%s, %s, %s::jsonb)",
                (point.id, str(vector), json.dumps(point.payload)),
            )

    def drop(self, name: str) -> None:
        """Drop a table that `make` made."""
        with self._link.opened(self._limit, write=True) as (connection, catalog):
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {catalog.quote(name)}")


def _point(identity: str, payload: object, vector: object) -> Point:
    return Point(id=identity, payload=payload or {}, vectors=(tuple(numbers_of(vector)),) if vector else ())
