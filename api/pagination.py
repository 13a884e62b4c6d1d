"""Pages of a list: `?limit=` and `?cursor=`, stable while others insert.

Guarantees: a page starts after the last key of the page before (keyset), so nothing is skipped or shown twice whatever
is inserted in between. A cursor holds ids only, no name of anybody, and one that is not ours is refused.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from fastapi import Query
from pydantic import BaseModel

from api.errors import Problem
from api.requests import Whole
from ledger.entry import format_instant, parse_instant
from ledger.errors import MalformedHeader

Item = TypeVar("Item")
Key = int | str | datetime
Limit = Annotated[Whole, Query(ge=1, le=1000, description="Items per page.")]
Cursor = Annotated[str | None, Query(max_length=512, description="`next_cursor` of the page before.")]
DEFAULT_LIMIT = 50
_BEYOND = 2**63
"""Whole numbers of a database have 64 bits."""


class Page(BaseModel, Generic[Item]):
    """One page of a list."""

    items: list[Item]
    next_cursor: str | None = None


def write_cursor(*key: Key) -> str:
    """The opaque text for "after this key"."""
    plain = [format_instant(part) if isinstance(part, datetime) else part for part in key]
    return base64.urlsafe_b64encode(msgspec.json.encode(plain)).rstrip(b"=").decode()


def read_cursor(cursor: str | None, *kinds: type, pointer: str = "/query/cursor") -> tuple[Any, ...] | None:
    """The key a cursor stands for, each part of the given kind; None for the first page. `pointer` is where it was.

    Raises:
        Problem: `bad-cursor`.
    """
    if cursor is None:
        return None
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        key = msgspec.json.decode(raw, type=list)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise _bad(pointer) from None
    if len(key) != len(kinds):
        raise _bad(pointer)
    return tuple(_part(part, kind, pointer) for part, kind in zip(key, kinds, strict=True))


def _part(part: object, kind: type, pointer: str) -> Any:
    """One part as its kind, and as a database can be asked for it. Raises: Problem."""
    if kind is datetime and isinstance(part, str):
        try:
            return parse_instant(part)
        except MalformedHeader:
            raise _bad(pointer) from None
    if type(part) is not kind or (isinstance(part, str) and "\0" in part):
        raise _bad(pointer)
    if isinstance(part, int) and not -_BEYOND <= part < _BEYOND:
        raise _bad(pointer)
    return part


def _bad(pointer: str) -> Problem:
    detail = "not a cursor of ours"
    return Problem("bad-cursor", errors=[{"pointer": pointer, "detail": detail}])


def paged(rows: Sequence[Item], limit: int, key: Callable[[Item], tuple[Key, ...]]) -> tuple[list[Item], str | None]:
    """Splits `limit + 1` fetched rows into a page and the cursor of the next, None at the end."""
    page = list(rows[:limit])
    return page, write_cursor(*key(page[-1])) if len(rows) > limit else None
