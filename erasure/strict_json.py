"""Reads JSON that somebody signed over its canonical bytes, however a library wrote it out again.

Guarantees: one text has one reading. UTF-8 without a mark at its start; a member named twice, a number with a fraction
or an exponent, and what is no JSON at all are refused, because two readers could take them differently. White space,
the order of members and escapes are no part of what was signed: `canonical` gives the bytes that were.
Source: RFC 8259 §4 and §6, RFC 8785.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import rfc8785

from erasure.errors import ReportError


class _Refused(ValueError):
    """One of the things that two readers could take differently."""


def parse(data: bytes) -> Any:
    """The value of a JSON text. Raises: ReportError."""
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_once, parse_float=_whole, parse_constant=_number_only
        )
    except _Refused as error:
        raise ReportError("", str(error)) from error
    except (ValueError, RecursionError) as error:
        raise ReportError("", "not JSON: no certificate, or a damaged one") from error


def canonical(value: Any) -> bytes:
    """The RFC 8785 bytes of a value. Raises: ReportError."""
    try:
        return bytes(rfc8785.dumps(value))
    except (ValueError, RecursionError, rfc8785.CanonicalizationError) as error:
        raise ReportError("", "not JSON that can be signed") from error


def _once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        message = "a member is named twice"
        raise _Refused(message)
    return found


def _whole(_text: str) -> NoReturn:
    message = "a number is not whole: a certificate holds none"
    raise _Refused(message)


def _number_only(_text: str) -> NoReturn:
    message = "NaN and infinity are no JSON"
    raise _Refused(message)
