"""Finds where JSON values begin and end without judging them, for bodies that a strict parser would not give back.

Guarantees: slices are exact; keys of the objects it opens are unique or `Unsplittable` is raised. It accepts whatever
stands between the brackets: whether a body is JSON that anybody reads is asked of Python's lenient reader afterwards.
Only the envelope is opened, never a body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import msgspec

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\]}\[{\":]+")
_SPACE = re.compile(rb"[ \t\r\n]*")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_PAIRS = json.JSONDecoder(object_pairs_hook=list)


class Unsplittable(ValueError):
    """The text around the values is not that of a JSON object or array, or a key stands twice."""


def members(data: bytes) -> dict[str, bytes]:
    """Return the exact bytes of each member of a JSON object. Raises: Unsplittable."""
    found: dict[str, bytes] = {}
    at = _open(data, b"{")
    if data[at : at + 1] == b"}":
        _require_end(data, at + 1)
        return found
    while True:
        match = _STRING.match(data, at)
        if match is None:
            raise Unsplittable("a key is missing")
        key = _key(match[0])
        at = _space(data, match.end())
        if data[at : at + 1] != b":":
            raise Unsplittable("a colon is missing")
        at = _space(data, at + 1)
        end = _value_end(data, at)
        if key in found:
            raise Unsplittable("a key stands twice")
        found[key] = data[at:end]
        at = _space(data, end)
        if data[at : at + 1] == b"}":
            _require_end(data, at + 1)
            return found
        if data[at : at + 1] != b",":
            raise Unsplittable("a comma is missing")
        at = _space(data, at + 1)


def elements(data: bytes) -> Iterator[bytes]:
    """Yield the exact bytes of each element of a JSON array. Raises: Unsplittable."""
    at = _open(data, b"[")
    if data[at : at + 1] == b"]":
        _require_end(data, at + 1)
        return
    while True:
        end = _value_end(data, at)
        yield data[at:end]
        at = _space(data, end)
        if data[at : at + 1] == b"]":
            _require_end(data, at + 1)
            return
        if data[at : at + 1] != b",":
            raise Unsplittable("a comma is missing")
        at = _space(data, at + 1)


def has_unique_keys(data: bytes) -> bool:
    """Whether no key stands twice at the top of an object that a strict parser accepted.

    A strict parser keeps the last of two equal keys, so bytes that belong to no member it gave are white space or the
    other one; only then the members are counted by a reader that keeps both, and where that one gives up (a number of
    thousands of digits) the object is split.
    """
    given = _OBJECT.decode(data)
    # Two quotes, a colon and a comma or the closing brace for each; a key that is not ASCII only takes the slow way.
    accounted = 1 + 4 * len(given) + sum(map(len, given)) + sum([len(bytes(value)) for value in given.values()])
    if accounted == len(data):
        return True
    try:
        return len(_PAIRS.decode(data.decode("utf-8"))) == len(given)
    except (ValueError, RecursionError):
        pass
    try:
        members(data)
    except Unsplittable:
        return False
    return True


def _value_end(data: bytes, at: int) -> int:
    first = data[at : at + 1]
    if first == b'"':
        match = _STRING.match(data, at)
        if match is None:
            raise Unsplittable("a text does not end")
        return match.end()
    if first in (b"{", b"["):
        depth = 0
        for match in _TOKEN.finditer(data, at):
            token = match[0]
            if token in (b"{", b"["):
                depth += 1
            elif token in (b"}", b"]"):
                depth -= 1
                if not depth:
                    return match.end()
        raise Unsplittable("a bracket does not close")
    match = _SCALAR.match(data, at)
    if match is None:
        raise Unsplittable("a value is missing")
    return match.end()


def _open(data: bytes, bracket: bytes) -> int:
    at = _space(data, 0)
    if data[at : at + 1] != bracket:
        raise Unsplittable(f"expected {bracket.decode()}")
    return _space(data, at + 1)


def _space(data: bytes, at: int) -> int:
    match = _SPACE.match(data, at)
    return match.end() if match is not None else at


def _require_end(data: bytes, at: int) -> None:
    if _space(data, at) != len(data):
        raise Unsplittable("something follows the end")


def _key(token: bytes) -> str:
    try:
        return str(json.loads(token))
    except ValueError as error:
        raise Unsplittable("a key is not a text") from error
