"""Rows of one table by unique key: select, delete, and treat the rows that reference them.

Guarantees: one statement for many keys; nothing is deleted that was not selected by its key in the same transaction;
rows of other tables that would stop the delete are counted, and deleted only when asked, by their own keys, after the
same ownership check. Transactions are begun and ended by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from connectors.base import is_one_of
from connectors.errors import BadLocator
from connectors.residue import Needles
from connectors.sql_catalog import Catalog, Child, Key, Table, owner_column, placeholders
from connectors.sql_database import Database, Refused, is_plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from connectors.base import Deadline

_DEPTH = 16
"""Foreign keys are followed this deep; a longer chain is refused."""

_PAGE = 2000
"""Rows that are held in memory at once while a table is read."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Keys of one table, all by the same columns; an item's number is its position."""

    table: Table
    columns: tuple[str, ...]
    keys: tuple[Key, ...]

    @cached_property
    def is_plain(self) -> bool:
        """Whether all keys are texts and whole numbers."""
        return is_plain(self.keys)

    def only(self, numbers: Sequence[int]) -> Batch:
        """Return the batch of these items, which are in order."""
        if len(numbers) == len(self.keys):
            return self
        return Batch(table=self.table, columns=self.columns, keys=tuple(self.keys[number] for number in numbers))


class Look(NamedTuple):
    """What one look at the rows of a batch showed."""

    rows: int
    may_be_hidden: bool
    may_change_others: bool
    """Whether a delete of these rows may have changed another table: by a trigger, say."""


class Rows:
    """Statements on one open connection."""

    def __init__(self, database: Database, connection: sa.Connection, catalog: Catalog) -> None:
        self._database = database
        self._connection = connection
        self._catalog = catalog

    def select(self, batch: Batch, wanted: Sequence[str], *, lock: bool = False) -> list[tuple[int, Key]]:
        """Return (item number, values of the wanted columns) of every row that is there."""
        quote = self._catalog.quote
        names = [f"k{number}" for number in range(len(batch.columns))]
        listed, parameters = self._listed(batch)
        join = " AND ".join(f"t.{quote(column)} = w.{name}" for column, name in zip(batch.columns, names, strict=True))
        columns = ", ".join(["w.n", *(f"t.{quote(column)}" for column in wanted)])
        rows = self._connection.exec_driver_sql(
            f"WITH w (n, {', '.join(names)}) AS ({listed})"
            f" SELECT {columns} FROM w JOIN {batch.table.quoted} AS t ON {join}"
            + (self._database.row_lock if lock else ""),
            parameters,
        )
        return [(row[0], tuple(row[1:])) for row in rows.fetchall()]

    def _listed(self, batch: Batch) -> tuple[str, tuple[Any, ...]]:
        """Return a query of the batch's keys with their positions, and its parameters."""
        marks = self._database.marks(batch.table, batch.columns, self._connection)
        if batch.is_plain:
            return self._database.listed(marks, batch.keys)
        values = ", ".join(f"({number}, {', '.join(marks)})" for number in range(len(batch.keys)))
        return f"VALUES {values}", tuple(value for key in batch.keys for value in key)

    def page(self, table: Table, owner: str, forms: Sequence[str], after: Key | None, *, limit: int) -> list[Key]:
        """Return the next keys of the rows of an owner, in key order."""
        quote = self._catalog.quote
        column = quote(owner) if isinstance(table.columns[owner], sa.String) else f"CAST({quote(owner)} AS TEXT)"
        keys = ", ".join(quote(name) for name in table.primary)
        later, values = "", tuple(forms)
        if after is not None:
            marks = self._database.marks(table, table.primary, self._connection)
            later, values = f" AND ({keys}) > ({', '.join(marks)})", (*values, *after)
        mark = "?" if self._connection.dialect.paramstyle == "qmark" else "%s"
        rows = self._connection.exec_driver_sql(
            f"SELECT {keys} FROM {table.quoted} WHERE {column} IN ({', '.join([mark] * len(forms))}){later}"
            f" ORDER BY {keys} LIMIT {limit:d}",
            values,
        )
        return [tuple(row) for row in rows]

    def after(self, table: Table, after: Key | None, *, limit: int) -> list[dict[str, Any]]:
        """Return the values of all unique keys of the next rows, in the order of the table's own key."""
        quote = self._catalog.quote
        keys = ", ".join(quote(name) for name in table.primary)
        names = sorted({name for key in table.keys for name in key} | set(table.primary))
        later, values = "", ()
        if after is not None:
            marks = self._database.marks(table, table.primary, self._connection)
            later, values = f" WHERE ({keys}) > ({', '.join(marks)})", after
        rows = self._connection.exec_driver_sql(
            f"SELECT {', '.join(quote(name) for name in names)} FROM {table.quoted}{later}"
            f" ORDER BY {keys} LIMIT {limit:d}",
            values,
        )
        return [dict(zip(names, row, strict=True)) for row in rows]

    def shared(
        self, batches: Sequence[Batch], candidates: Sequence[bytes], limit: Deadline, *, owner: str | None = None
    ) -> set[int]:
        """Return which candidates other rows of the table hold as well, so that they tell nobody apart.

        A row without a value in the column `owner` is nobody's, so it excuses nothing: the same words there may well be
        a copy that nobody registered. Reads the whole table once, in pages by key. Raises: Timeout.
        """
        table = batches[0].table
        if not candidates or not table.primary:
            return set()
        own = {values for batch in batches for _, values in self.select(batch, table.primary)}
        wanted = Needles(candidates)
        return {number for number, _ in wanted.count_chunks(self._others(table, own, limit, owner), limit)}

    def _others(self, table: Table, own: set[Key], limit: Deadline, owner: str | None) -> Iterator[bytes]:
        quote = self._catalog.quote
        somebodys = ""
        if owner is not None and owner in table.columns:
            somebodys = f" AND t.{quote(owner)} IS NOT NULL AND CAST(t.{quote(owner)} AS TEXT) <> ''"
        keys = ", ".join(f"t.{quote(name)}" for name in table.primary)
        columns = ", ".join(f"CAST(t.{quote(name)} AS TEXT)" for name in table.columns)
        marks = self._database.marks(table, table.primary, self._connection)
        after: Key | None = None
        while True:
            self._database.arm(self._connection, limit)
            later = f" WHERE ({keys}) > ({', '.join(marks)})" if after is not None else " WHERE 1 = 1"
            rows = self._connection.exec_driver_sql(
                f"SELECT {keys}, {columns} FROM {table.quoted} AS t{later}{somebodys} ORDER BY {keys} LIMIT {_PAGE}",
                after or (),
            ).fetchall()
            width = len(table.primary)
            texts = [text for row in rows if tuple(row[:width]) not in own for text in row[width:] if text is not None]
            yield b"\0".join(_encoded(text) for text in texts) + b"\0"
            if len(rows) < _PAGE:
                return
            after = tuple(rows[-1][:width])

    def look(self, batch: Batch, *, is_settled: bool = False) -> Look:
        """Return how many rows of a plain batch are there, and what that is worth, in one round trip.

        `is_settled`: their delete was committed. The first who then walks the index to them marks them in it, page by
        page, and PostgreSQL logs each page in whole where it keeps checksums, which takes longer than the look. Of two
        lists it makes a bitmap, which marks nothing.
        """
        size = len(batch.keys)
        half = size // 2 if is_settled and len(batch.columns) == 1 else 0
        lists = [self._among(batch.only(part)) for part in (range(half), range(half, size)) if part]
        condition = " OR ".join(each for each, _ in lists)
        parameters = [value for _, values in lists for value in values]
        counted = f"SELECT count(*) FROM {batch.table.quoted} WHERE {condition}"
        found = self._connection.exec_driver_sql(
            str(self._database.at_once).replace("{counted}", counted),
            (*parameters, batch.table.quoted.replace("%%", "%")),
        ).one()
        return Look(*found)

    def _among(self, batch: Batch) -> tuple[str, tuple[Any, ...]]:
        marks = self._database.marks(batch.table, batch.columns, self._connection)
        quoted = [self._catalog.quote(column) for column in batch.columns]
        return self._database.among(quoted, marks, batch.keys)

    def delete_owned(self, batch: Batch, owner: str | None, forms: frozenset[str]) -> list[int]:
        """Delete the rows of a plain batch that name one of these owners; return the number of each that went.

        One statement locks, compares and deletes: a row that somebody changes meanwhile is compared as it is then.
        """
        quote = self._catalog.quote
        names = [f"k{number}" for number in range(len(batch.columns))]
        listed, parameters = self._listed(batch)
        where = " AND ".join(f"t.{quote(column)} = w.{name}" for column, name in zip(batch.columns, names, strict=True))
        if owner is not None:
            where += f' AND CAST(t.{quote(owner)} AS text) COLLATE "C" = ANY (%s::text[])'
            parameters = (*parameters, sorted(forms))
        rows = self._connection.exec_driver_sql(
            f"WITH w (n, {', '.join(names)}) AS ({listed}) DELETE FROM {batch.table.quoted} AS t USING w"
            f" WHERE {where} RETURNING w.n",
            parameters,
        )
        return list(rows.scalars().all())

    def delete(self, batch: Batch) -> int:
        """Delete the rows of the batch and return how many the database says it deleted."""
        if batch.is_plain:
            condition, parameters = self._among(batch)
        else:
            marks = self._database.marks(batch.table, batch.columns, self._connection)
            quoted = [self._catalog.quote(column) for column in batch.columns]
            condition = f"({', '.join(quoted)}) IN (VALUES {placeholders(len(batch.keys), marks)})"
            parameters = tuple(value for key in batch.keys for value in key)
        return self._connection.exec_driver_sql(
            f"DELETE FROM {batch.table.quoted} WHERE {condition}", parameters
        ).rowcount

    def update(self, batch: Batch, values: Mapping[str, Any]) -> int:
        """Set columns of the one row of the batch and return how many rows the database says it changed."""
        quote = self._catalog.quote
        names = tuple(values)
        assigned = ", ".join(
            f"{quote(name)} = {mark}"
            for name, mark in zip(names, self._database.marks(batch.table, names, self._connection), strict=True)
        )
        marks = self._database.marks(batch.table, batch.columns, self._connection)
        keyed = " AND ".join(f"{quote(name)} = {mark}" for name, mark in zip(batch.columns, marks, strict=True))
        return self._connection.exec_driver_sql(
            f"UPDATE {batch.table.quoted} SET {assigned} WHERE {keyed}", (*values.values(), *batch.keys[0])
        ).rowcount

    def referencing(self, batch: Batch, child: Child) -> dict[int, list[Key]]:
        """Return the keys of child rows by item number, empty keys where the child table has none.

        A row of the batch itself is not its own obstacle.
        """
        parents = self.select(batch, child.parent_columns)
        by_parent: dict[Key, int] = {values: number for number, values in parents if None not in values}
        if not by_parent:
            return {}
        marks = self._database.marks(child.table, child.columns, self._connection)
        quoted = [self._catalog.quote(column) for column in (*child.columns, *child.table.primary)]
        referring = ", ".join(quoted[: len(child.columns)])
        rows = self._connection.exec_driver_sql(
            f"SELECT {', '.join(quoted)} FROM {child.table.quoted}"
            f" WHERE ({referring}) IN (VALUES {placeholders(len(by_parent), marks)})",
            tuple(value for key in by_parent for value in key),
        )
        own = self._own_keys(batch, child)
        found: dict[int, list[Key]] = {}
        for row in rows:
            parent, key = tuple(row[: len(child.columns)]), tuple(row[len(child.columns) :])
            if key not in own:
                found.setdefault(by_parent[parent], []).append(key)
        return found

    def _own_keys(self, batch: Batch, child: Child) -> set[Key]:
        if child.table.label != batch.table.label or not child.table.primary:
            return set()
        return {values for _, values in self.select(batch, child.table.primary)}

    def delete_children(
        self, batch: Batch, owner_field: str | None, forms: frozenset[str], *, depth: int = 0
    ) -> dict[str, int]:
        """Delete what stops the batch from being deleted, deepest first; return counts by table. Raises: Refused."""
        if depth >= _DEPTH:
            raise Refused("the chain of referencing rows is too long")
        counts: dict[str, int] = {}
        for child in self._catalog.children(batch.table):
            keys = [key for found in self.referencing(batch, child).values() for key in found]
            if not keys or child.on_delete in {"SET NULL", "SET DEFAULT"}:
                continue
            if not child.table.primary:
                raise Refused(f"rows of {child.table.label} reference the row and have no unique key")
            below = Batch(table=child.table, columns=child.table.primary, keys=tuple(keys))
            self._check_owner(below, owner_field, forms)
            for label, number in self.delete_children(below, owner_field, forms, depth=depth + 1).items():
                counts[label] = counts.get(label, 0) + number
            counts[child.table.label] = counts.get(child.table.label, 0) + self.delete(below)
        return counts

    def _check_owner(self, batch: Batch, owner_field: str | None, forms: frozenset[str]) -> None:
        """Pass when the rows name the same owner, or their table names none at all. Raises: Refused."""
        try:
            column = owner_column(batch.table, owner_field)
        except BadLocator:
            # A table of details (order lines) belongs to the row it references.
            return
        if column is None:
            return
        if any(not is_one_of(owner, forms) for _, (owner,) in self.select(batch, [column], lock=True)):
            raise Refused(f"a referencing row of {batch.table.label} names another owner")


def _encoded(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode(errors="surrogateescape")
