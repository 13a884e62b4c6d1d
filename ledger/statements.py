"""Many rows in few statements, for what takes thousands of items at a time.

Guarantees: the same rows as the same statements of SQLAlchemy would write or find, without a look at each value's type
and without a statement made anew for each number of values; PostgreSQL gets one array a column, SQLite one prepared
statement. Values are in the form of the database: instants are microseconds, JSON is text. Pending objects of the
session are written first. Texts of statements are constants of ours; what a caller sent is only ever a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, SQLModel

_TOGETHER = 500
"""Rows of one INSERT on SQLite: of the widest table, 15,000 of the 32,766 values that a statement takes."""
_MOST = 1_000
"""Values of one IN list on SQLite, which takes 32,766."""
_STEP = 50
_TYPES: tuple[tuple[type[sa.types.TypeEngine[Any]], str], ...] = (
    (sa.BigInteger, "int8"),
    (sa.Integer, "int4"),
    (sa.Boolean, "bool"),
    (sa.Float, "float8"),
    (sa.JSON, "json"),
    (sa.LargeBinary, "bytea"),
    (sa.String, "text"),
)


def insert(
    session: Session,
    model: type[SQLModel],
    names: tuple[str, ...],
    rows: Sequence[tuple[Any, ...]],
    *,
    conflict: str = "",
) -> None:
    """Write rows, each the values of these columns in this order; columns that are not named stay NULL.

    `conflict` is what follows ON CONFLICT, if anything; then no two of the rows may meet in it.
    """
    if not rows:
        return
    session.flush()
    db = session.connection()
    table: sa.Table = model.__table__  # type: ignore[attr-defined] # SQLModel types no table
    behind = f" ON CONFLICT {conflict}" if conflict else ""
    if db.dialect.name == "postgresql":
        columns = zip(*rows, strict=True)
        arrays = tuple(array(db, _type_of(table, name), column) for name, column in zip(names, columns, strict=True))
        db.exec_driver_sql(_insert_arrays(table, names) + behind, arrays)
        return
    # Each run of a statement lets other threads have the interpreter, which this one then waits for: a thousand rows
    # with a statement each would wait a thousand times where others are busy.
    whole = len(rows) - len(rows) % _TOGETHER
    for start in range(0, whole, _TOGETHER):
        values = tuple([value for row in rows[start : start + _TOGETHER] for value in row])
        db.exec_driver_sql(_insert_values(table, names, _TOGETHER) + behind, values)
    if whole < len(rows):
        db.exec_driver_sql(_insert_values(table, names, 1) + behind, list(rows[whole:]))


def select(session: Session, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The rows of a query with a `?` for each of these values."""
    session.flush()
    db = session.connection()
    text = query.replace("?", "%s") if db.dialect.name == "postgresql" else query
    return _rows(db, text, tuple(values))


def select_in(
    session: Session, head: str, known: Sequence[Any], values: Sequence[Any], kind: str
) -> Iterator[tuple[Any, ...]]:
    """The rows of a query that ends in the column whose value is one of these; `kind` is the values' type.

    `head` has a `?` for each of `known`, the values that come before.
    """
    if not values:
        return
    session.flush()
    db = session.connection()
    if db.dialect.name == "postgresql":
        query = head.replace("?", "%s")
        if len(values) == 1:  # one value is planned once, a list anew each time
            yield from _rows(db, f"{query} = %s::{kind}", (*known, values[0]))
        else:
            yield from _rows(db, f"{query} = ANY(%s::{kind}[])", (*known, array(db, kind, values)))
        return
    for start in range(0, len(values), _MOST):
        some = values[start : start + _MOST]
        # One text for many numbers of values, so that the driver has it prepared: the last one stands there again.
        length = 1 if len(some) == 1 else -(-len(some) // _STEP) * _STEP
        padding = (some[-1],) * (length - len(some))
        yield from _rows(db, f"{head} IN ({','.join('?' * length)})", (*known, *some, *padding))


def array(db: sa.Connection, kind: str, values: Sequence[Any]) -> object:
    """A column's values as the value of one `?` on PostgreSQL."""
    from ledger import arrays  # noqa: PLC0415 - PostgreSQL's driver is imported only where it is used

    arrays.accept(db)
    return arrays.packed(kind, values)


def _rows(db: sa.Connection, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The rows as the driver makes them: SQLAlchemy's own would cost more than many a look-up."""
    result = db.exec_driver_sql(query, values)
    try:
        return list(result.cursor.fetchall())
    finally:
        result.close()


@lru_cache(maxsize=64)
def _insert_values(table: sa.Table, names: tuple[str, ...], count: int) -> str:
    values = ", ".join([f"({', '.join('?' * len(names))})"] * count)
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES {values}"  # noqa: S608 - names of ours


@lru_cache(maxsize=64)
def _insert_arrays(table: sa.Table, names: tuple[str, ...]) -> str:
    arrays = ", ".join(f"%s::{_type_of(table, name)}[]" for name in names)
    return f"INSERT INTO {table.name} ({', '.join(names)}) SELECT * FROM unnest({arrays})"  # noqa: S608 - names of ours


@lru_cache(maxsize=256)
def _type_of(table: sa.Table, name: str) -> str:
    plain: sa.types.TypeEngine[Any] = table.c[name].type
    if isinstance(plain, sa.types.TypeDecorator):
        plain = plain.impl_instance
    return next(name for kind, name in _TYPES if isinstance(plain, kind))
