"""What agents' frameworks write into byte columns, as plain values: msgpack and JSON, and text runs of anything else.

Guarantees: nothing is unpickled, imported or built because the bytes say so; a msgpack extension (which names a class)
stays a name beside plain values. What cannot be read (pickle, encrypted) still yields the texts that lie open in it.
Does not tell whether a value is complete: an encrypted one yields nothing, and then nothing is claimed of its text.

    >>> list(texts(plain(msgspec.msgpack.encode({"messages": ["I moved"]}), "msgpack")))
    ['I moved']
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

_RUN = re.compile(rb"(?:[\x20-\x7e\n\t]|[\xc3-\xf4][\x80-\xbf]{1,3}){8,}")
"""Readable UTF-8 of at least eight characters."""
_NAMED = 2
"""A framework's extension begins with the module and the name of a class."""
_DEPTH = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """An object of a class, as it was written: its name, which is nobody's data, and its plain content."""

    name: str
    content: Any


def plain(value: object, kind: str | None = None) -> Any:
    """Return a column's value as plain data; bytes that are neither msgpack nor JSON are returned as they are.

    `kind` is what the framework wrote beside the value: "msgpack", "json", "null", or anything else.
    """
    if isinstance(value, memoryview):
        value = bytes(value)
    try:
        if isinstance(value, bytes) and kind == "msgpack":
            return _opened(msgspec.msgpack.decode(value), 0)
        if isinstance(value, bytes) and kind in {None, "json"} and value[:1] in {b"{", b"[", b'"'}:
            return json.loads(value)
        if isinstance(value, str) and value[:1] in {"{", "["}:
            return json.loads(value)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return value
    return value


def _opened(value: Any, depth: int) -> Any:
    """Open the extensions below a value. Raises: ValueError where they are nested deeper than any framework writes."""
    if depth > _DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(value, msgspec.msgpack.Ext):
        inner = _opened(msgspec.msgpack.decode(value.data), depth + 1)
        if isinstance(inner, list) and len(inner) >= _NAMED and all(isinstance(name, str) for name in inner[:_NAMED]):
            return Made(name=".".join(inner[:_NAMED]), content=inner[_NAMED:])
        return inner
    if isinstance(value, dict):
        return {name: _opened(each, depth + 1) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_opened(each, depth + 1) for each in value]
    return value


def texts(value: Any) -> Iterator[str | bytes]:
    """Yield the texts of a plain value, without names of members and classes; of bytes, the readable runs."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, bytes):
            yield from _RUN.findall(each)
        elif isinstance(each, Made):
            waiting.append(each.content)
        elif isinstance(each, Mapping):
            waiting += each.values()
        elif isinstance(each, list | tuple):
            waiting += each


def shown(value: Any, depth: int = 0) -> Any:
    """Return a plain value as JSON can hold it, for an export that a person reads; the deepest levels as one text."""
    if depth > _DEPTH and not isinstance(value, bytes | memoryview):
        return str(value)
    if isinstance(value, Made):
        return {"type": value.name, "content": shown(value.content, depth + 1)}
    if isinstance(value, Mapping):
        return {str(name): shown(each, depth + 1) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [shown(each, depth + 1) for each in value]
    if isinstance(value, bytes | memoryview):
        return {"base64": base64.b64encode(bytes(value)).decode()}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)
