"""Which form of an answer a caller asked for, by `Accept`.

Guarantees: the best of the offered types by quality, then by the order of the offer; no header means the first.
Source: RFC 9110 §12.5.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import Request

from api.errors import Problem


def wanted(request: Request, offered: Sequence[str]) -> str:
    """The media type to answer with. Raises Problem `not-acceptable`."""
    header = request.headers.get("accept", "*/*")
    ranges = [_range(one) for one in header.split(",") if one.strip()]
    best, quality = "", 0.0
    for kind in offered:
        # The most specific range that fits decides for a type.
        fitting = max((one for one in ranges if _fits(one[0], kind)), key=lambda one: _weight(one[0]), default=None)
        if fitting is not None and fitting[1] > quality:
            best, quality = kind, fitting[1]
    if not best:
        raise Problem("not-acceptable", f"it is there as {', '.join(offered)}")
    return best


def _range(text: str) -> tuple[str, float]:
    name, *parameters = (part.strip() for part in text.split(";"))
    quality = next((one[2:] for one in parameters if one.lower().startswith("q=")), "1")
    try:
        return name.lower(), min(max(float(quality), 0.0), 1.0)
    except ValueError:
        return name.lower(), 0.0


def _fits(pattern: str, kind: str) -> bool:
    return pattern in ("*/*", kind) or (pattern.endswith("/*") and kind.startswith(pattern[:-1]))


def _weight(pattern: str) -> int:
    return 0 if pattern == "*/*" else 1 if pattern.endswith("/*") else 2
