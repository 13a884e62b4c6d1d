"""Many rows in few statements, for the gate that takes thousands of items at a time.

Guarantees: the same rows as the same statements of SQLAlchemy would write or find, without a look at each value's type
and without a statement made anew for each number of values; PostgreSQL gets one array a column, SQLite one prepared
statement. Values are in the form of the database: instants are microseconds (`instant`), JSON is text. Pending objects
of the session are written first. Texts of statements are constants of ours; what a caller sent is only ever a value.
"""

from __future__ import annotations

import gc
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, SQLModel

from ledger.models import microseconds

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST = 1_000
"""Values of one IN list on SQLite, which takes 32,766."""
_TYPES: tuple[tuple[type[sa.types.TypeEngine[Any]], str], ...] = (
    (sa.BigInteger, "int8"),
    (sa.Integer, "int4"),
    (sa.Boolean, "bool"),
    (sa.Float, "float8"),
    (sa.JSON, "json"),
    (sa.LargeBinary, "bytea"),
    (sa.String, "text"),
)
_collecting = threading.Lock()
_pauses = 0
_ran = True
_ended = 0
_OVERDUE, _DEEP = 10, 200
"""After so many batches that ended while others kept the collector off it runs once, and at the second goes deep."""


def insert(session: Session, model: type[SQLModel], names: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> None:
    """Write rows, each the values of these columns in this order; columns that are not named stay NULL."""
    if not rows:
        return
    session.flush()
    db = session.connection()
    table: sa.Table = model.__table__  # type: ignore[attr-defined] # SQLModel types no table
    if db.dialect.name == "postgresql":
        db.exec_driver_sql(_insert_arrays(table, names), tuple(list(column) for column in zip(*rows, strict=True)))
    else:
        db.exec_driver_sql(_insert_values(table, names), list(rows))


def select(session: Session, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The rows of a query with a `?` for each of these values."""
    session.flush()
    db = session.connection()
    text = query.replace("?", "%s") if db.dialect.name == "postgresql" else query
    return list(db.exec_driver_sql(text, tuple(values)).fetchall())


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
            yield from db.exec_driver_sql(f"{query} = %s::{kind}", (*known, values[0])).fetchall()
        else:
            yield from db.exec_driver_sql(f"{query} = ANY(%s::{kind}[])", (*known, list(values))).fetchall()
        return
    for start in range(0, len(values), _MOST):
        some = values[start : start + _MOST]
        query = f"{head} IN ({','.join('?' * len(some))})"
        yield from db.exec_driver_sql(query, (*known, *some)).fetchall()


def gather(
    session: Session, column: str, rest: str, known: Sequence[Any], values: Sequence[Any], *, kind: str
) -> list[int]:
    """The numbers in a column of a query, each once, as they are found; `rest` is what follows FROM, as `select_in`.

    PostgreSQL sends them as one value, 8 bytes each: a thousand rows of one number cost more to send than to find.
    """
    if session.get_bind().dialect.name != "postgresql":
        query = f"SELECT {column} FROM {rest}"  # noqa: S608 - texts of ours
        return list(dict.fromkeys(number for (number,) in select_in(session, query, known, values, kind)))
    query = f"SELECT string_agg(int8send({column}), '') FROM {rest}"  # noqa: S608 - as above
    packed = b"".join(data for (data,) in select_in(session, query, known, values, kind) if data is not None)
    return list(dict.fromkeys(struct.unpack(f">{len(packed) // 8}q", packed)))


def instant(at: datetime | None) -> int | None:
    """An instant as it stands in a column."""
    return None if at is None else microseconds(at)


def moment(value: int | None) -> datetime | None:
    """The instant of a column's value."""
    return None if value is None else _EPOCH + timedelta(microseconds=value)


@contextmanager
def without_collector() -> Iterator[None]:
    """Let the cycle collector rest while many objects without cycles are made, of which none outlives the batch.

    It would walk the whole heap of the service several times a batch to find nothing. Nests, over threads too; where
    batches follow each other without a gap, every tenth lets it run once.
    """
    global _pauses, _ran, _ended  # noqa: PLW0603 - the collector is one for the process
    with _collecting:
        if not _pauses:
            _ran = gc.isenabled()
        _pauses += 1
        gc.disable()
    try:
        yield
    finally:
        with _collecting:
            _pauses -= 1
            _ended = _ended + 1 if _pauses else 0
            ended = _ended if _ran else 0
            if _ran and not _pauses:
                gc.enable()
        if ended and ended % _OVERDUE == 0:
            gc.collect(1 if ended % _DEEP else 2)


@lru_cache(maxsize=64)
def _insert_values(table: sa.Table, names: tuple[str, ...]) -> str:
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608 - names of ours


@lru_cache(maxsize=64)
def _insert_arrays(table: sa.Table, names: tuple[str, ...]) -> str:
    arrays = ", ".join(f"%s::{_type_of(table.c[name])}[]" for name in names)
    return f"INSERT INTO {table.name} ({', '.join(names)}) SELECT * FROM unnest({arrays})"  # noqa: S608 - names of ours


def _type_of(column: sa.Column[Any]) -> str:
    plain: sa.types.TypeEngine[Any] = column.type
    if isinstance(plain, sa.types.TypeDecorator):
        plain = plain.impl_instance
    return next(name for kind, name in _TYPES if isinstance(plain, kind))
