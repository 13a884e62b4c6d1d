"""The auditor's own strict reading of a header, several times as fast as the writer's.

Guarantees: accepts exactly the bytes that `ledger.entry.decode_header` accepts (a test holds the two together over
random and mutated bytes): the grammar stands here a second time, as a stranger would write it down from the format's
description, and the bytes are written again and compared. Source: the table in `ledger.entry`, RFC 8785.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from ledger.entry import MAX_HEADER_BYTES, MAX_INT, VERSION
from ledger.errors import MalformedHeader

# `\A` and `\Z` because these patterns are searched for, not matched.
_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT)]
_Name = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9][a-z0-9_.:-]{0,127}\Z")]
_Class = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}\Z")]
_Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_Stream = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
_Recorder = Annotated[str, msgspec.Meta(pattern=r"\A(?:[0-9a-f]{2}){8,32}\Z")]
_Uuid7 = Annotated[
    str, msgspec.Meta(pattern=r"\A[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z")
]
_Instant = Annotated[
    str, msgspec.Meta(pattern=r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}\.[0-9]{6}Z\Z")
]
_Object = Annotated[
    str,
    msgspec.Meta(max_length=512, pattern=r"\A[A-Za-z0-9_-][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*\Z"),
]


class ReadPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Where one sealed part lies; the digest is lower-case hexadecimal."""

    alg: _Name
    len: _Count
    obj: _Object
    off: _Count
    role: _Name
    sha256: _Digest


class ReadHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False, rename={"data_class": "class"}):
    """A header as its bytes say it; fields in the order of their names, which is that of the encoding."""

    at: _Instant
    data_class: _Class
    id: _Uuid7
    kind: _Name
    parts: tuple[ReadPart, ...]
    position: _Count
    previous: _Digest
    received: _Instant
    recorder: _Recorder | None
    seq: _Count | None
    sources: _Count
    sources_root: _Digest | None
    stream: _Stream
    v: int

    @property
    def previous_hash(self) -> bytes:
        """The hash of the header before, as bytes."""
        return bytes.fromhex(self.previous)


_DECODER = msgspec.json.Decoder(ReadHeader, strict=True)
_ENCODER = msgspec.json.Encoder()


def read_header(data: bytes) -> ReadHeader:
    """Return the header in these bytes, when they are canonical. Raises: MalformedHeader."""
    if len(data) > MAX_HEADER_BYTES:
        reason = f"{len(data)} bytes, at most {MAX_HEADER_BYTES} are allowed"
        raise MalformedHeader(reason)
    try:
        header = _DECODER.decode(data)
        # The patterns hold the form, this the calendar.
        datetime.fromisoformat(header.at)
        datetime.fromisoformat(header.received)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        reason = "not of the known form"
        raise MalformedHeader(reason) from error
    if header.v != VERSION:
        reason = f"version {header.v} is unknown, this program reads {VERSION}"
        raise MalformedHeader(reason)
    if (header.sources_root is None) != (header.sources == 0):
        reason = "sources_root is there if and only if there are sources"
        raise MalformedHeader(reason)
    if _ENCODER.encode(header) != data:
        reason = "not the canonical encoding"
        raise MalformedHeader(reason)
    return header
