"""What a database's own catalog says of a table: columns, unique keys, children that reference it.

Guarantees: SQL is built only from names that the catalog returned, quoted by the dialect; a locator whose columns are
not exactly one unique key is refused, so that it names one row or none. Read once per connector and table; a foreign
key added later is still caught, by the database itself, when it refuses the delete.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from connectors.errors import BadLocator
from connectors.sql_keys import Place, foreign_keys, unique_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sqlalchemy.engine.reflection import Inspector

Scalar = str | int
Key = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table of the catalog; `quoted` is safe to put into SQL."""

    schema: str | None
    name: str
    quoted: str
    columns: Mapping[str, sa.types.TypeEngine[Any]] = field(repr=False)
    keys: frozenset[frozenset[str]]
    primary: tuple[str, ...]
    """The columns that name a row: the primary key, else the first unique key, else nothing."""

    @cached_property
    def named(self) -> frozenset[tuple[str, ...]]:
        """Return the unique keys, each with its columns in order."""
        return frozenset(tuple(sorted(key)) for key in self.keys)

    @cached_property
    def texts(self) -> frozenset[str]:
        """Return the columns of text."""
        return frozenset(name for name, kind in self.columns.items() if isinstance(kind, sa.String))

    @cached_property
    def compared(self) -> frozenset[str]:
        """Return the columns whose values the database writes as Python does: without padding or fractions."""
        return frozenset(
            name
            for name, kind in self.columns.items()
            if isinstance(kind, sa.String | sa.Integer | sa.Uuid) and not isinstance(kind, sa.CHAR)
        )

    @cached_property
    def label(self) -> str:
        """Return the name for details and reports."""
        return f"{self.schema}.{self.name}" if self.schema else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A foreign key that points at a table: whose rows, by which columns, and what the database does on delete."""

    table: Table
    columns: tuple[str, ...]
    parent_columns: tuple[str, ...]
    on_delete: str
    """CASCADE, SET NULL, SET DEFAULT, RESTRICT or NO ACTION."""

    @property
    def blocks(self) -> bool:
        """Tell whether the database refuses to delete a parent that has such rows."""
        return self.on_delete in {"NO ACTION", "RESTRICT"}


class Catalog:
    """The catalog of one connection."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._inspector: Inspector = sa.inspect(connection)
        self._quote = connection.dialect.identifier_preparer
        self._is_sqlite = connection.dialect.name == "sqlite"
        self._tables: dict[tuple[str | None, str], Table] = {}
        self._written: dict[str, Table] = {}
        self._unique: dict[Place, list[tuple[str, ...]]] = {}
        self._children: dict[tuple[str | None, str], tuple[Child, ...]] | None = None

    def quote(self, name: str) -> str:
        """Return an identifier quoted for this database, and with percent signs doubled where its driver needs that."""
        return self._quote.quote_identifier(name)

    def schemas(self) -> list[str | None]:
        """Return every schema that may hold an application's tables."""
        if self._is_sqlite:
            return [None]
        return [
            name for name in self._inspector.get_schema_names() if not name.startswith(("pg_", "information_schema"))
        ]

    def tables(self) -> list[Table]:
        """Return every base table."""
        return [
            self.table(name if schema is None else f"{schema}.{name}")
            for schema in self.schemas()
            for name in self._inspector.get_table_names(schema=schema)
        ]

    def table(self, written: object) -> Table:
        """Return the table of a locator, written `table` or `schema.table`. Raises: BadLocator."""
        if not isinstance(written, str) or not written:
            raise BadLocator("table is a name")
        if (known := self._written.get(written)) is not None:
            return known
        return self._written.setdefault(written, self.at(*self._find(written)))

    def at(self, schema: str | None, name: str) -> Table:
        """Return a table that is there."""
        if (schema, name) not in self._tables:
            self._tables[schema, name] = self._reflect(schema, name)
        return self._tables[schema, name]

    def written(self, table: Table) -> list[str]:
        """Return every way in which a locator may write this table's name."""
        default = None if self._is_sqlite else self._inspector.default_schema_name
        names = [table.label] if table.schema not in (None, default) else [table.name]
        return names if table.schema is None else list(dict.fromkeys([*names, f"{table.schema}.{table.name}"]))

    def _find(self, written: str) -> tuple[str | None, str]:
        """Match the written name with the catalog, so that a dot inside a name cannot mislead. Raises: BadLocator."""
        found = self._candidates(written)
        if not found:
            # It may have been created since the catalog was read.
            self._inspector.clear_cache()
            found = self._candidates(written)
        if len(found) != 1:
            raise BadLocator("there is no such table" if not found else "the table name is ambiguous")
        return found[0]

    def _candidates(self, written: str) -> list[tuple[str | None, str]]:
        schema, dot, name = written.partition(".")
        if self._is_sqlite:
            candidates = [written, name] if dot and schema == "main" else [written]
            return [(None, each) for each in candidates if each in self._inspector.get_table_names()]
        if "\0" in written or any("\ud800" <= letter <= "\udfff" for letter in written):
            return []  # no name of a table, and nothing that the server could be asked for
        places = [(str(self._inspector.default_schema_name), written), *([(schema, name)] if dot else [])]
        found = unique_keys(self._connection, places)
        self._unique |= found
        return list(found)

    def _reflect(self, schema: str | None, name: str) -> Table:
        columns = {column["name"]: column["type"] for column in self._inspector.get_columns(name, schema=schema)}
        keys = self._reflected_unique(name) if schema is None else self._unique_of(schema, name)
        quoted = self.quote(name) if schema is None else f"{self.quote(schema)}.{self.quote(name)}"
        return Table(
            schema=schema,
            name=name,
            quoted=quoted,
            columns=columns,
            keys=frozenset(frozenset(key) for key in keys),
            primary=keys[0] if keys else (),
        )

    def _unique_of(self, schema: str, name: str) -> list[tuple[str, ...]]:
        if (schema, name) not in self._unique:
            self._unique |= unique_keys(self._connection, [(schema, name)])
        return self._unique.get((schema, name), [])

    def _reflected_unique(self, name: str) -> list[tuple[str, ...]]:
        keys = [tuple(self._inspector.get_pk_constraint(name)["constrained_columns"])]
        keys += [tuple(each["column_names"]) for each in self._inspector.get_unique_constraints(name)]
        for index in self._inspector.get_indexes(name):
            partial = any(key.endswith("_where") for key in index.get("dialect_options", {}))
            if index["unique"] and not partial and not index.get("expressions"):
                keys.append(tuple(each for each in index["column_names"] if each is not None))
        return [key for key in keys if key]

    def children(self, table: Table) -> tuple[Child, ...]:
        """Return every foreign key that points at the table."""
        if self._children is None:
            self._children = self._read_children()
        return self._children.get(self._identity(table.schema, table.name), ())

    def _identity(self, schema: str | None, name: str) -> tuple[str | None, str]:
        return (schema, name.casefold()) if self._is_sqlite else (schema, name)

    def _read_children(self) -> dict[tuple[str | None, str], tuple[Child, ...]]:
        found: dict[tuple[str | None, str], tuple[Child, ...]] = {}
        for target, child in self._pragma_keys() if self._is_sqlite else self._reflected_keys():
            found[target] = (*found.get(target, ()), child)
        return found

    def _reflected_keys(self) -> Iterator[tuple[tuple[str | None, str], Child]]:
        for key in foreign_keys(self._connection):
            child = Child(
                table=self.at(*key.child),
                columns=key.columns,
                parent_columns=key.parent_columns,
                on_delete=key.on_delete,
            )
            yield key.parent, child

    def _pragma_keys(self) -> Iterator[tuple[tuple[str | None, str], Child]]:
        """Yield what SQLite itself enforces; reflection reads the action only of keys written as table constraints."""
        for table in self.tables():
            rows = self._connection.exec_driver_sql(f"PRAGMA foreign_key_list({table.quoted})").fetchall()
            for number in dict.fromkeys(row[0] for row in rows):
                parts = sorted((row for row in rows if row[0] == number), key=lambda row: row[1])
                target, action = parts[0][2], parts[0][6]
                named = tuple(row[4] for row in parts)
                if None in named:
                    # `REFERENCES parent` without columns means the parent's primary key.
                    known = [each for each in self.tables() if each.name.casefold() == target.casefold()]
                    named = known[0].primary if known else ()
                columns = tuple(row[3] for row in parts)
                child = Child(table=table, columns=columns, parent_columns=named, on_delete=str(action).upper())
                if named:
                    yield self._identity(None, target), child


def key_of(table: Table, locator: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[Scalar, ...]]:
    """Return the key columns, sorted, and the values of a locator. Raises: BadLocator."""
    key = locator.get("key")
    if len(locator) != 2 or "table" not in locator or not isinstance(key, dict) or not key:  # noqa: PLR2004 -- table, key
        raise BadLocator("an sql locator is {table, key: {column: value}}")
    if len(key) == 1:
        # The usual key, which is looked at ten thousand times an erasure.
        ((column, value),) = key.items()
        if type(value) is str and column in table.texts and (column,) in table.named and "\0" not in value:
            return (column,), (value,)
    columns = tuple(sorted(key, key=str)) if len(key) > 1 else tuple(key)
    if columns not in table.named:
        if not table.keys:
            raise BadLocator("the table has no unique key, so no row of it can be named")
        if not set(key) <= set(table.columns):
            raise BadLocator("a key column is not in the table")
        raise BadLocator("the key columns are not exactly one unique key of the table")
    for column in columns:
        _check_value(table.columns[column], key[column])
    return columns, tuple([key[column] for column in columns])


def _check_value(kind: sa.types.TypeEngine[Any], value: object) -> None:
    """Refuse what a cast would bend until it names another row: 1.5, true for 1, null. Raises: BadLocator."""
    is_truth = isinstance(kind, sa.Boolean)
    if isinstance(value, bool) != is_truth or not isinstance(value, str | int):
        raise BadLocator("key values are texts or whole numbers, true or false for truth columns")
    if isinstance(value, str) and "\0" in value:
        raise BadLocator("a key value holds a zero byte")
    if isinstance(kind, sa.Integer) and isinstance(value, str) and not value.lstrip("-").isdigit():
        raise BadLocator("the value of a whole-number key is no number")
    if isinstance(kind, sa.String) and not isinstance(value, str):
        raise BadLocator("the value of a text key is no text")


def owner_column(table: Table, owner_field: str | None) -> str | None:
    """Return the column that says whose row it is, None when none is configured. Raises: BadLocator."""
    if owner_field is None:
        return None
    if owner_field not in table.columns:
        raise BadLocator("the table has no owner_field column, so ownership cannot be checked")
    return owner_field


def placeholders(rows: int, columns: Sequence[str]) -> str:
    """Return `(m, m), (m, m)` for a VALUES list of rows with these parameter marks."""
    return ", ".join(["(" + ", ".join(columns) + ")"] * rows)
