"""A column's values as one PostgreSQL array, in the server's binary form.

Guarantees: the server reads the same values as from a list, which the driver would write as text, element by element,
each looked through for what to quote. Types are those of our tables. Values are not checked: the server refuses what
does not fit. Source: PostgreSQL 15, src/backend/utils/adt/arrayfuncs.c, array_recv: number of dimensions, whether there
are NULLs, the element's type, then length and lower bound of each dimension, then length and bytes of each element.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Any, Final

import sqlalchemy as sa
from psycopg.adapt import Dumper
from psycopg.pq import Format

_HEAD = struct.Struct(">iiIii")
_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)
_READY = "muniment_arrays"


class Array:
    """The values, ready to be sent; `array_oid` is the array's type in the server's catalogue."""

    __slots__ = ("array_oid", "data")

    def __init__(self, array_oid: int, data: bytes) -> None:
        self.array_oid = array_oid
        self.data = data


def packed(kind: str, values: Sequence[Any]) -> Array:
    """Values of one of our types as an array. Raises: KeyError for another type."""
    oid, array_oid, body = _KINDS[kind]
    has_null = None in values
    head = _HEAD.pack(1, has_null, oid, len(values), 1) if values else _HEAD.pack(0, 0, oid, 0, 0)[:12]
    if not has_null:
        return Array(array_oid, head + body(values))
    return Array(array_oid, head + b"".join([_NULL if value is None else body((value,)) for value in values]))


def accept(db: sa.Connection) -> None:
    """Have the connection's driver take `Array` as a parameter, once for as long as it is connected."""
    if _READY not in db.info:
        driver: Any = db.connection.driver_connection
        for dumper in _DUMPERS:
            driver.adapters.register_dumper(Array, dumper)
        db.info[_READY] = True


class _Dumper(Dumper):
    format = Format.BINARY

    def get_key(self, obj: Any, _format: Any) -> Any:
        return (type(self), obj.array_oid)

    def upgrade(self, obj: Any, _format: Any) -> _Dumper:
        found = type(self)(self.cls)
        found.oid = obj.array_oid
        return found

    def dump(self, obj: Any) -> bytes:
        data: bytes = obj.data
        return data


_DUMPERS: Final = (_Dumper,)


def _numbers(form: str, size: int) -> Callable[[Sequence[Any]], bytes]:
    def body(values: Sequence[Any]) -> bytes:
        return struct.pack(">" + f"i{form}" * len(values), *chain.from_iterable(zip(repeat(size), values)))

    return body


def _blobs(values: Sequence[bytes]) -> bytes:
    pack = _LENGTH.pack
    return b"".join([piece for value in values for piece in (pack(len(value)), value)])


def _texts(values: Sequence[str]) -> bytes:
    return _blobs([value.encode() for value in values])


# Types and those of their arrays. Source: PostgreSQL 15, src/include/catalog/pg_type.dat.
_KINDS: Final[dict[str, tuple[int, int, Callable[[Sequence[Any]], bytes]]]] = {
    "int8": (20, 1016, _numbers("q", 8)),
    "int4": (23, 1007, _numbers("i", 4)),
    "bool": (16, 1000, _numbers("?", 1)),
    "float8": (701, 1022, _numbers("d", 8)),
    "json": (114, 199, _texts),
    "bytea": (17, 1001, _blobs),
    "text": (25, 1009, _texts),
}
