"""Many rows in few statements, for the gate that takes thousands of items at a time.

The statements are `ledger.statements`; here stands what the registry adds to them. Values are in the form of the
database: instants are microseconds (`instant`), JSON is text.
"""

from __future__ import annotations

import gc
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, overload

from sqlmodel import Session

from ledger.models import microseconds
from ledger.statements import array, insert, select, select_in

__all__ = ["array", "gather", "insert", "instant", "moment", "select", "select_in", "without_collector"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_collecting = threading.Lock()
_pauses = 0
_ran = True
_ended = 0
_OVERDUE, _DEEP = 10, 200
"""After so many batches that ended while others kept the collector off it runs once, and at the second goes deep."""


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


@overload
def moment(value: int) -> datetime: ...


@overload
def moment(value: int | None) -> datetime | None: ...


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
