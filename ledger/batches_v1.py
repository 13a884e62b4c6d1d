"""Reads batch objects of version 1: RFC 8785 JSON that holds the headers as base64. Writes none.

Guarantees: returns a batch only for exactly the bytes that version 1 wrote (they are made again and compared). Kept
because a log is read for years after its format was replaced; the rules of the envelope are those of `ledger.batches`.
"""

from __future__ import annotations

import msgspec

from ledger.errors import MalformedBatch

START = b'{"checkpoint_digest"'
"""What every object of version 1 starts with, and none of a later one."""
MAX_BYTES = 64 * 1024 * 1024


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
