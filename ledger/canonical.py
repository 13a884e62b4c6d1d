"""Canonical JSON (RFC 8785) of large values: the same bytes as `rfc8785.dumps`, which writes one value at a time.

Pure. Guarantees: what has fractions, integers beyond 2**53 or names outside ASCII goes through `rfc8785` itself, with
its errors; everything else is encoded at once, where sorting by characters and by UTF-16 is the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import rfc8785

_MOST = 2**53 - 1
_encode = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":")
).encode


def dumps(value: Any) -> bytes:
    """The canonical bytes. Raises: rfc8785.CanonicalizationError, RecursionError for a value that contains itself."""
    if not _is_plain(value):
        return bytes(rfc8785.dumps(value))
    try:
        return _encode(value).encode()
    except UnicodeEncodeError as error:
        raise rfc8785.CanonicalizationError("input contains non-UTF-8 codepoints") from error


def _is_plain(value: object) -> bool:
    if value is None or isinstance(value, str):  # enumerations of texts too
        return True
    if isinstance(value, int):
        return -_MOST <= value <= _MOST
    if type(value) is dict:
        return all(map(_is_plain_name, value)) and _are_plain(value.values())
    return type(value) in (list, tuple) and _are_plain(value)  # type: ignore[arg-type]  # one of the two


def _is_plain_name(name: object) -> bool:
    return type(name) is str and name.isascii()


def _are_plain(values: Iterable[object]) -> bool:
    # Most values are texts or nothing; the others are looked at by a call.
    return all(type(value) is str or value is None or _is_plain(value) for value in values)
