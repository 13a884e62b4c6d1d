"""Reads a certificate that lies there as it was signed: strictly, list by list, and never whole.

Guarantees: what comes out is the one reading of the bytes (`erasure.strict_json`), and the bytes are the canonical form
of it (RFC 8785), each of them looked at. A certificate that some library wrote out again is not read here: None, and
`strict_json` takes it whole. Not here: whether the signature and what it says hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from erasure.errors import ReportError
from erasure.rendering.opened import ReadLines
from erasure.signed_file import Readable
from erasure.strict_json import canonical, parse
from ledger import canonical as fast

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_pieces = msgspec.json.Decoder(list[msgspec.Raw])
_LISTS = {("certificate", name) for name in ("copies", "retained", "exceptions")} | {("certificate", "log", "proofs")}
_OBJECTS = {("certificate",), ("certificate", "log")}


class _Otherwise(Exception):
    """These bytes are no canonical form, or none that is read here."""


def canonical_document(report: Readable) -> tuple[dict[str, Any], memoryview] | None:
    """The document, its long lists as `ReadLines`, and the bytes of its `certificate`; None for any other bytes."""
    try:
        data = memoryview(report)
        document = _object(data, ())
        return document, memoryview(_members.decode(data)["certificate"])
    except (_Otherwise, ReportError, msgspec.DecodeError, KeyError, RecursionError):
        return None


def _object(data: memoryview, path: tuple[str, ...]) -> dict[str, Any]:
    members = _members.decode(data)
    found: dict[str, Any] = {}
    tokens: list[bytes | memoryview] = []
    for name in sorted(members):
        if not name.isascii():
            raise _Otherwise  # RFC 8785 sorts names as UTF-16, which is the same only for these
        raw = memoryview(members[name])
        tokens += [b"," if found else b"{", canonical(name), b":", raw]
        found[name] = _value(raw, members[name], (*path, name))
    _require(data, iter([*tokens, b"}"]) if found else iter([b"{}"]))
    return found


def _value(raw: memoryview, member: msgspec.Raw, path: tuple[str, ...]) -> Any:
    if path in _OBJECTS:
        return _object(raw, path)
    if path in _LISTS:
        _require(raw, _lines(_pieces.decode(member)))
        return ReadLines(member)
    value = parse(bytes(raw))
    if canonical(value) != raw:
        raise _Otherwise
    return value


def _lines(pieces: list[msgspec.Raw]) -> Iterator[bytes | memoryview]:
    separator = b"["
    for piece in pieces:
        text = bytes(piece)
        value = parse(text)
        if not isinstance(value, dict) or fast.dumps(value) != text:
            raise _Otherwise
        yield separator
        yield text
        separator = b","
    yield b"]" if pieces else b"[]"


def _require(data: memoryview, tokens: Iterator[bytes | memoryview]) -> None:
    """Return when the data is these tokens, one after the other, and nothing else."""
    at = 0
    for token in tokens:
        if data[at : at + len(token)] != token:
            raise _Otherwise
        at += len(token)
    if at != len(data):
        raise _Otherwise
