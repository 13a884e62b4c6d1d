"""A fence inside a database: names that were erased, and triggers that refuse to insert rows under them again.

Guarantees: once `install` has returned and a name stands in the fence table, an insert of a row with that name fails in
the application, whatever connection or library it uses. The name is written in the transaction that deletes, so no
committed deletion is unfenced. An insert that PostgreSQL began before that commit may still land; looking finds it.

Costs: one table and one trigger a table (on PostgreSQL also one function) in the application's schema, made on first
use; names stay there, readable, for as long as the fence is to hold. Lifting it is deleting the name's row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sqlalchemy as sa

    from connectors.sql_catalog import Catalog, Key, Table

MESSAGE = "muniment: this was erased and is not written again"


class SqlFence:
    """The fence of one kind in one database."""

    def __init__(self, connection: sa.Connection, catalog: Catalog, kind: str, columns: Sequence[str]) -> None:
        self._connection = connection
        self._quote = catalog.quote
        self._name = f"muniment_fence_{kind}"
        self._columns = [catalog.quote(column) for column in columns]
        self._is_sqlite = connection.dialect.name == "sqlite"

    def install(self, tables: Sequence[Table]) -> None:
        """Make the fence table and the triggers where they are missing. Raises: DBAPIError."""
        run = self._connection.exec_driver_sql
        typed = ", ".join(f"{column} TEXT NOT NULL" for column in self._columns)
        fence = self._fence(tables[-1])
        same = " AND ".join(f"f.{column} = NEW.{column}" for column in self._columns)
        if self._is_sqlite:
            run(f"CREATE TABLE IF NOT EXISTS {fence} ({typed}, PRIMARY KEY ({', '.join(self._columns)}))")
            for table in tables:
                run(
                    f"CREATE TRIGGER IF NOT EXISTS {self._quote(f'{self._name}_{table.name}')} BEFORE INSERT ON"
                    f" {table.quoted} WHEN EXISTS (SELECT 1 FROM {fence} AS f WHERE {same})"
                    f" BEGIN SELECT RAISE(ABORT, '{MESSAGE}'); END"
                )
            return
        missing = [table for table in tables if not self._has_trigger(table)]
        if not missing:
            return
        run(f"CREATE TABLE IF NOT EXISTS {fence} ({typed}, PRIMARY KEY ({', '.join(self._columns)}))")
        # The application's role need not read the fence: the function runs with the rights of whoever made it.
        run(
            f"CREATE OR REPLACE FUNCTION {fence}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER"
            " SET search_path = pg_catalog AS $body$ BEGIN"
            f" IF EXISTS (SELECT 1 FROM {fence} AS f WHERE {same}) THEN"
            f" RAISE EXCEPTION '{MESSAGE}' USING ERRCODE = 'check_violation'; END IF; RETURN NEW; END $body$"
        )
        for table in missing:
            run(
                f"CREATE OR REPLACE TRIGGER {self._name} BEFORE INSERT ON {table.quoted}"
                f" FOR EACH ROW EXECUTE FUNCTION {fence}()"
            )

    def add(self, root: Table, keys: Sequence[Key]) -> None:
        """Write these names into the fence, within the caller's transaction. Raises: DBAPIError."""
        mark = "?" if self._is_sqlite else "%s"
        for key in keys:
            self._connection.exec_driver_sql(
                f"INSERT INTO {self._fence(root)} VALUES ({', '.join([mark] * len(key))}) ON CONFLICT DO NOTHING", key
            )

    def _fence(self, root: Table) -> str:
        return self._name if root.schema is None else f"{self._quote(root.schema)}.{self._name}"

    def _has_trigger(self, table: Table) -> bool:
        found = self._connection.exec_driver_sql(
            "SELECT count(*) FROM pg_catalog.pg_trigger"
            " WHERE tgrelid = %s::regclass AND tgname = %s AND tgenabled <> 'D'",
            (table.quoted.replace("%%", "%"), self._name),
        ).scalar()
        return bool(found)
