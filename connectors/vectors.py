"""Vectors as the byte strings a store may keep of them: float32 and float16, as given and at length one.

Guarantees: the forms are those of pgvector's heap (little-endian, as given), of its cosine indexes (little-endian, at
length one) and of its binary protocol (big-endian), so that one list of canaries is found by a byte scan and by reading
rows. Windows of twelve numbers, because long vectors are broken over pages. A vector that tells nobody apart (zeros,
one-hot) has no forms. Does not cover products of training: IVF centres, PQ codes and binary quantisation are not bytes
of the vector. Source: reference/store-recipes.md §2.7.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.base import ischema_names

KINDS = ("vector", "halfvec", "sparsevec")
"""The column types of pgvector that hold numbers."""

PROBE = 400
"""Characters of a vector's text by which another row's equal vector is told; as good as all of it."""

_WINDOW = 12
_DISTINCT = 3
"""A window with fewer different numbers, zero not counted, is found by chance."""
_LEAST = 8
"""Bytes below which a form is no canary."""


class VectorType(sa.types.UserDefinedType[str]):
    """A column of pgvector, so that the catalog can be read; its values are the texts the server writes."""

    cache_ok = True

    def __init__(self, *size: object) -> None:
        self.size = size

    def get_col_spec(self, **_: object) -> str:
        """Return the name in SQL."""
        return "vector"


class HalfVectorType(VectorType):
    """A column of 16-bit numbers."""


def teach() -> None:
    """Make SQLAlchemy know pgvector's column types; without it reading a catalog that has one warns."""
    for name in KINDS:
        ischema_names.setdefault(name, HalfVectorType if name == "halfvec" else VectorType)


def numbers_of(text: object) -> list[float]:
    """Return the numbers of a vector as pgvector writes it, of a sparse one those that are not zero; else nothing."""
    if not isinstance(text, str) or text[:1] not in {"[", "{"}:
        return []
    body = text.partition("}")[0] if text.startswith("{") else text
    parts = [part.rpartition(":")[2] for part in body.strip("[]{}").split(",") if part]
    try:
        return [float(part) for part in parts]
    except ValueError:
        return []


def forms(numbers: Sequence[float], *, half: bool = False) -> list[bytes]:
    """Return the byte strings to look for, each once, most telling first; nothing for a vector nobody can tell."""
    code = "e" if half else "f"
    found: dict[bytes, None] = {}
    stored = _rounded(numbers, code)
    length = math.sqrt(math.fsum(number * number for number in stored))
    unit = [number / length for number in stored] if length else []
    for start in _starts(stored):
        window = slice(start, start + _WINDOW)
        for order, values in (("<", stored[window]), ("<", unit[window]), (">", stored[window])):
            found[struct.pack(f"{order}{len(values)}{code}", *values)] = None
    return [form for form in found if len(form) >= _LEAST]


def _rounded(numbers: Sequence[float], code: str) -> tuple[float, ...]:
    try:
        return struct.unpack(f"<{len(numbers)}{code}", struct.pack(f"<{len(numbers)}{code}", *numbers))
    except (struct.error, OverflowError):
        return ()


def _starts(numbers: Sequence[float]) -> Iterator[int]:
    """Yield where windows begin that hold enough different numbers: at the head, in the middle, at the tail."""
    last = max(0, len(numbers) - _WINDOW)
    for start in dict.fromkeys((0, last // 2, last)):
        if len({number for number in numbers[start : start + _WINDOW] if number}) >= _DISTINCT:
            yield start


def is_vector(column: sa.types.TypeEngine[Any]) -> bool:
    """Tell whether a column of the catalog is one of pgvector's."""
    return isinstance(column, VectorType)
