"""Reads batch objects of version 1: RFC 8785 JSON that holds the headers as base64. Writes none.

Guarantees: returns a batch only for exactly the bytes that version 1 wrote (they are made again and compared). Of a
damaged one the headers are told apart, so that one changed byte costs one header. Kept because a log is read for years
after its format was replaced; the rules of the envelope are those of `ledger.batches`.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode

import msgspec

from ledger.errors import MalformedBatch

START = b'{"checkpoint_digest"'
"""What every object of version 1 starts with, and none of a later one."""
MAX_BYTES = 64 * 1024 * 1024
_HEADERS = re.compile(rb'"count":([0-9]{1,16}),"fence":[0-9]{1,16},"first":[0-9]{1,16},"headers":\["')
_BEHIND = b'"],"log":"'


# The fields stand in the order of their names, which is the order RFC 8785 asks for.
class WireV1(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"log_id": "log"}):
    """The members of version 1, all always present."""

    checkpoint_digest: bytes | None
    checkpoint_size: int
    count: int
    fence: int
    first: int
    headers: tuple[bytes, ...]
    log_id: str
    previous_count: int
    previous_digest: bytes | None
    previous_key: str | None
    v: int


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(WireV1, strict=True)


def read(data: bytes) -> WireV1:
    """Return the members. Raises: MalformedBatch."""
    if len(data) > MAX_BYTES:
        reason = f"{len(data)} bytes, at most {MAX_BYTES} are allowed"
        raise MalformedBatch(reason)
    try:
        wire = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reason = "not JSON of the known form"
        raise MalformedBatch(reason) from error
    if wire.v != 1 or wire.count != len(wire.headers) or _ENCODER.encode(wire) != data:
        reason = "not the canonical encoding"
        raise MalformedBatch(reason)
    return wire


def salvage(data: bytes) -> tuple[bytes | None, ...]:
    """Return the headers of a damaged object, None for a damaged one; nothing where they cannot be counted.

    What is returned need not be what was written: a changed digit of base64 is another header.
    """
    start = _HEADERS.search(data[:MAX_BYTES])
    end = -1 if start is None else data.find(_BEHIND, start.end())
    if start is None or end < 0:
        return ()
    pieces = data[start.end() : end].split(b'","')
    return tuple(map(_header, pieces)) if len(pieces) == int(start[1]) else ()


def _header(piece: bytes) -> bytes | None:
    try:
        raw = b64decode(piece, validate=True)
    except binascii.Error:
        return None
    return raw if b64encode(raw) == piece else None
