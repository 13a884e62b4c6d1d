"""What lies under a key of Redis: its parts, named ones of hashes, sets and streams, and whose a part is.

Guarantees: parts are read in pages, so memory does not grow with the key; only commands that read are sent. `run` sends
one command and returns the reply as it was sent. A stream entry names its owner in a field, or in the JSON object of
its only one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_PAGE = 500
NAMED = frozenset({b"hash", b"zset", b"set", b"stream"})
"""Types whose parts have names."""
Run = Callable[..., Any]
Part = tuple[bytes | None, list[bytes]]
"""A named part of a key, None for the key itself, and the byte strings it holds."""


def parts(run: Run, key: bytes, kind: bytes) -> Iterator[Part]:
    """Yield each named part of a key with what it holds; for strings and lists the values, without a name."""
    if kind == b"string":
        value = run("GET", key)
        yield from [] if value is None else [(None, [value])]
    elif kind == b"list":
        start = 0
        while values := run("LRANGE", key, start, start + _PAGE - 1):
            yield from ((None, [value]) for value in values)
            start += _PAGE
    elif kind == b"stream":
        after = b"-"
        while entries := run("XRANGE", key, after, "+", "COUNT", _PAGE):
            yield from ((name, flat(fields)) for name, fields in entries)
            after = b"(" + entries[-1][0]
    elif kind in {b"hash", b"set", b"zset"}:
        yield from _scanned(run, key, kind)


def _scanned(run: Run, key: bytes, kind: bytes) -> Iterator[Part]:
    verb = {b"hash": "HSCAN", b"set": "SSCAN", b"zset": "ZSCAN"}[kind]
    cursor: Any = b"0"
    while True:
        cursor, page = run(verb, key, cursor, "COUNT", _PAGE)
        found = flat(page)
        if kind == b"hash":
            yield from ((name, [value]) for name, value in zip(found[::2], found[1::2], strict=True))
        else:
            names = found if kind == b"set" else found[::2]
            yield from ((name, [name]) for name in names)
        if int(cursor) == 0:
            return


def part(run: Run, key: bytes, field: bytes, kind: bytes) -> Part | None:
    """Return one named part of a key, None where it is absent."""
    if kind == b"hash":
        value = run("HGET", key, field)
        return None if value is None else (field, [value])
    if kind == b"zset":
        return None if run("ZSCORE", key, field) is None else (field, [field])
    if kind == b"set":
        return (field, [field]) if run("SISMEMBER", key, field) else None
    if kind == b"stream" and is_entry_id(field):
        found = run("XRANGE", key, field, field)
        return (field, flat(found[0][1])) if found else None
    return None


def document_in(value: bytes) -> dict[str, Any] | None:
    """Return the JSON object that a value is, as the script in the server reads it; None for anything else."""
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def owner_in(value: bytes, owner_field: str) -> str | None:
    """Return whom a JSON value names."""
    named = (document_in(value) or {}).get(owner_field)
    return str(named) if isinstance(named, str | int) and not isinstance(named, bool) else None


def entry_owner(values: Sequence[bytes], owner_field: str) -> str | None:
    """Return whom a stream entry of these fields and values names."""
    for name, value in zip(values[::2], values[1::2], strict=False):
        if name == owner_field.encode():
            return value.decode(errors="replace")
    return owner_in(values[1], owner_field) if len(values) == 2 else None  # noqa: PLR2004 -- one field


def is_entry_id(field: bytes) -> bool:
    """Tell whether a name is the whole id of a stream entry, milliseconds and a number."""
    time, _, number = field.partition(b"-")
    return time.isdigit() and number.isdigit()


def flat(answer: Any) -> list[Any]:
    """Return a reply of names and values as the flat list that it is."""
    return list(answer or ())
