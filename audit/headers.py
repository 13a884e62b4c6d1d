"""The auditor's own strict reading of a header, several times as fast as the writer's.

Guarantees: accepts exactly the bytes that `ledger.entry.decode_header` accepts (a test holds the two together over
random and mutated bytes): the grammar stands here a second time, as a stranger would write it down from the format's
description, and the bytes are written again and compared. What a log repeats (kinds, classes, streams, object keys) is
judged once and remembered; what is new in every header is judged by one pattern. Source: the table in `ledger.entry`,
RFC 8785.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache

import msgspec

from ledger.entry import MAX_HEADER_BYTES, MAX_INT, VERSION
from ledger.errors import MalformedHeader

_NAME = r"[a-z0-9][a-z0-9_.:-]{0,127}"
_CLASS = r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}"
_OBJECT = r"(?=.{1,512}\Z)[A-Za-z0-9_-][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*"
_STREAM = r"[0-9a-f]{32}"
_RECORDER = r"(?:[0-9a-f]{2}){8,32}"
_DIGEST = r"[0-9a-f]{64}"
_UUID7 = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_INSTANT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}\.[0-9]{6}Z"
_OWN = rf"{_INSTANT}\n{_INSTANT}\n{_UUID7}(?:\n{_DIGEST})+"


class ReadPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Where one sealed part lies; the digest is lower-case hexadecimal."""

    alg: str
    len: int
    obj: str
    off: int
    role: str
    sha256: str


class ReadHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False, rename={"data_class": "class"}):
    """A header as its bytes say it; fields in the order of their names, which is that of the encoding."""

    at: str
    data_class: str
    id: str
    kind: str
    parts: tuple[ReadPart, ...]
    position: int
    previous: str
    received: str
    recorder: str | None
    seq: int | None
    sources: int
    sources_root: str | None
    stream: str
    v: int

    @property
    def previous_hash(self) -> bytes:
        """The hash of the header before, as bytes."""
        return bytes.fromhex(self.previous)


_DECODER = msgspec.json.Decoder(ReadHeader, strict=True)
_ENCODER = msgspec.json.Encoder()
_OWN_FIRST = 3
_OWN_LENGTH = 27 + 1 + 27 + 1 + 36
_DIGEST_LENGTH = 1 + 64
_own = re.compile(_OWN).fullmatch
_ids = re.compile(f"(?:{_UUID7})*").fullmatch
_instants = re.compile(f"(?:{_INSTANT})*").fullmatch
_INSTANT_CHARACTERS, _UUID7_CHARACTERS, _DIGEST_CHARACTERS = 27, 36, 64


def read_header(data: bytes) -> ReadHeader:
    """Return the header in these bytes, when they are canonical. Raises: MalformedHeader."""
    if len(data) > MAX_HEADER_BYTES:
        reason = f"{len(data)} bytes, at most {MAX_HEADER_BYTES} are allowed"
        raise MalformedHeader(reason)
    try:
        header = _DECODER.decode(data)
        form = _is_of_the_form(header)
        # The pattern holds the form, this the calendar.
        datetime.fromisoformat(header.at)
        datetime.fromisoformat(header.received)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        reason = "not of the known form"
        raise MalformedHeader(reason) from error
    if header.v != VERSION:
        reason = f"version {header.v} is unknown, this program reads {VERSION}"
        raise MalformedHeader(reason)
    if not form:
        reason = "not of the known form"
        raise MalformedHeader(reason)
    if (header.sources_root is None) != (header.sources == 0):
        reason = "sources_root is there if and only if there are sources"
        raise MalformedHeader(reason)
    if _ENCODER.encode(header) != data:
        reason = "not the canonical encoding"
        raise MalformedHeader(reason)
    return header


def read_headers(raws: Sequence[bytes]) -> list[ReadHeader] | None:
    """Return the headers in these bytes when all of them are canonical; None when one is not, or may not be.

    Judges what `read_header` judges, with one look at a column instead of one at a value: whoever gets None asks that
    for each. None of them may be empty or hold a line feed, as in a batch.
    """
    lines = b"\n".join(raws)
    try:
        headers = _DECODER.decode_lines(lines)
        if not headers or max(map(len, raws)) > MAX_HEADER_BYTES or _ENCODER.encode_lines(headers) != lines + b"\n":
            return None
        parts = [part for header in headers for part in header.parts]
        times = [header.at for header in headers]
        for at in (*times, *{header.received for header in headers}):
            datetime.fromisoformat(at)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    digests = [header.previous for header in headers]
    digests += [part.sha256 for part in parts]
    digests += [header.sources_root for header in headers if header.sources_root is not None]
    numbers = [header.position for header in headers]
    numbers += [header.sources for header in headers]
    numbers += [header.seq for header in headers if header.seq is not None]
    numbers += [part.len for part in parts]
    numbers += [part.off for part in parts]
    sound = (
        {header.v for header in headers} == {VERSION}
        and _are(_DIGEST_CHARACTERS, digests, _digests)
        and _are(_UUID7_CHARACTERS, [header.id for header in headers], _ids)
        and _are(_INSTANT_CHARACTERS, times, _instants)
        and _are(_INSTANT_CHARACTERS, [header.received for header in headers], _instants)
        and min(numbers) >= 0
        and max(numbers) <= MAX_INT
        and all((header.sources_root is None) == (header.sources == 0) for header in headers)
        and all(_repeats(*one) for one in {(part.alg, part.role, part.obj) for part in parts})
        and all(_stands_often(*one) for one in {(h.data_class, h.kind, h.stream, h.recorder) for h in headers})
    )
    return headers if sound else None


def _are(length: int, texts: Sequence[str], form: Callable[[str], object]) -> bool:
    """Whether all texts have this length, and one behind the other the form: then each of them has it."""
    return set(map(len, texts)) <= {length} and bool(form("".join(texts)))


def _digests(text: str) -> bool:
    try:
        return bytes.fromhex(text).hex() == text
    except ValueError:
        return False


def unchecked(data: bytes) -> ReadHeader:
    """Return the header in bytes that `read_header` accepted before."""
    return _DECODER.decode(data)


def _is_of_the_form(header: ReadHeader) -> bool:
    own = [header.at, header.received, header.id, header.previous]
    if header.sources_root is not None:
        own.append(header.sources_root)
    for part in header.parts:
        own.append(part.sha256)
        if not (_repeats(part.alg, part.role, part.obj) and 0 <= part.len <= MAX_INT and 0 <= part.off <= MAX_INT):
            return False
    text = "\n".join(own)
    # The length too: a value that holds a line feed must not pass for two.
    return (
        len(text) == _OWN_LENGTH + (len(own) - _OWN_FIRST) * _DIGEST_LENGTH
        and _own(text) is not None
        and _stands_often(header.data_class, header.kind, header.stream, header.recorder)
        and 0 <= header.position <= MAX_INT
        and 0 <= header.sources <= MAX_INT
        and (header.seq is None or 0 <= header.seq <= MAX_INT)
    )


@lru_cache(maxsize=16_384)
def _repeats(algorithm: str, role: str, name: str) -> bool:
    return bool(re.fullmatch(_NAME, algorithm) and re.fullmatch(_NAME, role) and re.fullmatch(_OBJECT, name))


@lru_cache(maxsize=16_384)
def _stands_often(data_class: str, kind: str, stream: str, recorder: str | None) -> bool:
    return bool(
        re.fullmatch(_CLASS, data_class)
        and re.fullmatch(_NAME, kind)
        and re.fullmatch(_STREAM, stream)
        and (recorder is None or re.fullmatch(_RECORDER, recorder))
    )
