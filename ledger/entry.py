"""The header of an entry: the public commitment to one thing that happened, and its exact bytes.

Guarantees: a header has one byte string and a byte string at most one header. `decode_header` writes
what it read again and compares, so nothing a lenient parser would forgive gets through: floats,
duplicate or unknown keys, escapes, white space. A header holds no caller's identifier of a person, no
key id and no digest of plaintext. It does not look inside parts, and it does not know whether a kind is
registered or a claimed time is true.

The encoding is append-only: a new field is a new version, a field never changes its meaning.
Version 1 is RFC 8785 JSON with these keys, all always present:

    at            when it happened, as the recorder claims        class         data class
    id            entry id, UUIDv7                                 kind          kind of entry
    parts         [{alg, len, obj, off, role, sha256}]             position      place in the stream, from 0
    previous      hash of the header before it in the log          received      when the service got it
    recorder      random id of the recorder, or null               seq           the recorder's count, or null
    sources       number of source entries                         sources_root  their Merkle root, or null
    stream        random id of the stream                          v             1

Source: RFC 8785 (canonical JSON), RFC 9562 §5.7 (UUIDv7), RFC 6962 §2.1 (hashes).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache

import msgspec

from ledger.errors import MalformedHeader
from ledger.merkle import HASH_SIZE, leaf_hash, root

VERSION = 1
MAX_HEADER_BYTES = 16 * 1024
MAX_INT = (1 << 53) - 1
NO_PREVIOUS = bytes(HASH_SIZE)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RANDOM_SIZE = 10
_MAX_MILLISECONDS = (1 << 48) - 1
_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_LAST_UUID7 = "e677d21f-dbff"
"""How the UUIDv7 of the last millisecond begins that is in the calendar."""
_INSTANT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
_INSTANT_LENGTH = len("YYYY-MM-DDTHH:MM:SS.ffffff")
_NAME = re.compile(r"[a-z0-9][a-z0-9_.:-]{0,127}")
_DATA_CLASS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_STREAM = re.compile(r"[0-9a-f]{32}")
_RECORDER = re.compile(r"(?:[0-9a-f]{2}){8,32}")
_OBJECT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")
_MAX_OBJECT_KEY = 512


class Kind(StrEnum):
    """The kinds the product ships, named `subject.action`. Only appended to; tenants register others."""

    TURN_USER = "turn.user"
    TURN_ASSISTANT = "turn.assistant"
    TURN_SYSTEM = "turn.system"
    MODEL_REQUEST = "model.request"
    TOOL_CALL = "tool.call"
    TOOL_RESULT = "tool.result"
    DECISION = "decision"
    APPROVAL = "approval"
    SUMMARY = "summary"
    PHASE = "phase"
    PROMPT = "prompt"
    MEMORY_WRITE = "memory.write"
    STREAM_CLOSED = "stream.closed"
    RECORDER_HEARTBEAT = "recorder.heartbeat"
    NOTE = "note"

    SYSTEM_GENESIS = "system.genesis"
    CLASS_REGISTERED = "class.registered"
    STORE_REGISTERED = "store.registered"
    TOKEN_MINTED = "token.minted"  # noqa: S105 (the name of an event)
    TOKEN_REVOKED = "token.revoked"  # noqa: S105 (the name of an event)
    REQUEST_RECEIVED = "request.received"
    REQUEST_IDENTITY = "request.identity"
    REQUEST_PLANNED = "request.planned"
    REQUEST_APPROVED = "request.approved"
    REQUEST_STATE = "request.state"
    REQUEST_NOTICE = "request.notice"
    FENCE_SET = "fence.set"
    FENCE_LIFTED = "fence.lifted"
    KEY_DESTROYING = "key.destroying"
    KEY_DESTROYED = "key.destroyed"
    KEK_DESTROYED = "kek.destroyed"
    COPY_ERASED = "copy.erased"
    COPY_VERIFIED = "copy.verified"
    COPY_STATE = "copy.state"
    CERTIFICATE_ISSUED = "certificate.issued"
    HOLD_PLACED = "hold.placed"
    HOLD_RELEASED = "hold.released"
    RETENTION_PLANNED = "retention.planned"
    RETENTION_APPROVED = "retention.approved"
    RETENTION_RAN = "retention.ran"
    DISPOSITION_DECIDED = "disposition.decided"
    CONTENT_READ = "content.read"
    SUBJECT_MERGED = "subject.merged"
    SUBJECT_SPLIT = "subject.split"
    SCOPE_REVIEW = "scope.review"
    TENANT_CREATED = "tenant.created"
    KEY_ROTATED = "key.rotated"
    RESTRICTION_SET = "restriction.set"
    RESTRICTION_LIFTED = "restriction.lifted"
    EXPORT_MADE = "export.made"
    CORRECTION_MADE = "correction.made"
    PART_KEPT = "part.kept"

    MEMORY_CONFLICT = "memory.conflict"
    MACHINE_REGISTERED = "machine.registered"
    MACHINE_VIOLATED = "machine.violated"
    REGISTRATION_DECIDED = "registration.decided"
    CONSENT_GIVEN = "consent.given"
    CONSENT_WITHDRAWN = "consent.withdrawn"
    KEY_ROTATING = "key.rotating"


USER_KINDS = frozenset(
    {
        Kind.TURN_USER,
        Kind.TURN_ASSISTANT,
        Kind.TURN_SYSTEM,
        Kind.MODEL_REQUEST,
        Kind.TOOL_CALL,
        Kind.TOOL_RESULT,
        Kind.DECISION,
        Kind.APPROVAL,
        Kind.SUMMARY,
        Kind.PHASE,
        Kind.PROMPT,
        Kind.MEMORY_WRITE,
        Kind.STREAM_CLOSED,
        Kind.RECORDER_HEARTBEAT,
        Kind.NOTE,
        Kind.MEMORY_CONFLICT,
    }
)
"""What a writer may post without registering a kind."""

SYSTEM_KINDS = frozenset(Kind) - USER_KINDS
"""What only the service itself writes, into a system stream. A writer that posts one is refused."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Where one sealed part lies: digest and length of its ciphertext, object below the log's prefix, offset."""

    role: str
    algorithm: str
    length: int
    sha256: bytes
    object: str
    offset: int


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What the log commits to about one entry. Times are aware UTC; see the module for each field."""

    version: int = VERSION
    id: str
    kind: str
    data_class: str
    at: datetime
    received: datetime
    recorder: str | None
    seq: int | None
    stream: str
    position: int
    previous: bytes
    sources_count: int
    sources_root: bytes | None
    parts: tuple[Part, ...]


# The fields stand in the order of their names, which is the order RFC 8785 asks for.
class _WirePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    alg: str
    len: int
    obj: str
    off: int
    role: str
    sha256: str


class _WireHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"data_class": "class"}):
    at: str
    data_class: str
    id: str
    kind: str
    parts: tuple[_WirePart, ...]
    position: int
    previous: str
    received: str
    recorder: str | None
    seq: int | None
    sources: int
    sources_root: str | None
    stream: str
    v: int


_DECODER = msgspec.json.Decoder(_WireHeader, strict=True)


def encode_header(header: Header) -> bytes:
    """Return the canonical bytes of a header. Raises: MalformedHeader naming the field that is wrong."""
    position, previous = header.position, header.previous
    if type(position) is not int or not 0 <= position <= MAX_INT:
        _count(position, "position")
    if type(previous) is not bytes or len(previous) != HASH_SIZE:
        _digest(previous, "previous")
    for part in header.parts:
        offset = part.offset
        if type(offset) is not int or not 0 <= offset <= MAX_INT:
            _count(offset, "off")
        _require_object(part.object)
    return with_place(stem_of(header), header.parts, position, previous)


def stem_of(header: Header) -> tuple[str, ...]:
    """Return a header's text but for what the log sets: of each part where it lies, then position and previous hash.

    Those of `header` do not matter. `with_place` makes the header's bytes of it. Raises: MalformedHeader.
    """
    if type(header.version) is not int or header.version != VERSION:
        reason = f"version {header.version!r} is unknown, this program writes {VERSION}"
        raise MalformedHeader(reason)
    if (header.sources_root is None) != (header.sources_count == 0):
        reason = "sources_root is there if and only if there are sources"
        raise MalformedHeader(reason)
    # None of these texts holds what JSON escapes, so the canonical form is their bytes between the keys in order. A
    # thousand headers are written at once: what they share is judged once, the rest without a call for each value.
    named, kind, received, end = _around(header.data_class, header.kind, header.recorder, header.stream)
    seq, count = header.seq, header.sources_count
    if type(header.id) is not str or _UUID7.fullmatch(header.id) is None:
        _text(header.id, _UUID7, "id")
    text = f'{{"at":"{format_instant(header.at)}{named}{header.id}{kind}'
    stem: list[str] = []
    comma = ""
    for part in header.parts:
        length, digest = part.length, part.sha256
        if type(length) is not int or not 0 <= length <= MAX_INT:
            _count(length, "len")
        if type(digest) is not bytes or len(digest) != HASH_SIZE:
            _digest(digest, "sha256")
        start, last = _part_form(part.algorithm, part.role)
        stem.append(f"{text}{comma}{start}{length},")
        text, comma = f'{last}{digest.hex()}"}}', ","
    sources = "null" if header.sources_root is None else f'"{_digest(header.sources_root, "sources_root")}"'
    stem.append(f"{text}],")
    stem.append(
        f',"received":"{_received(header.received)}{received}{"null" if seq is None else _count(seq, "seq")},"sources":'
        f'{_count(count, "sources")},"sources_root":{sources}{end}'
    )
    return tuple(stem)


def with_place(stem: tuple[str, ...], parts: Sequence[Part], position: int, previous: bytes) -> bytes:
    """Return the bytes that `encode_header` makes of a header with this stem, these places and this position.

    Raises: MalformedHeader; the places are those of the log itself, and are not checked.
    """
    pieces: list[str] = []
    for before, part in zip(stem[:-2], parts, strict=True):
        pieces.append(f'{before}"obj":"{part.object}","off":{part.offset}')
    pieces.append(f'{stem[-2]}"position":{position},"previous":"{previous.hex()}"{stem[-1]}')
    data = "".join(pieces).encode("ascii")
    if len(data) > MAX_HEADER_BYTES:
        reason = f"{len(data)} bytes, at most {MAX_HEADER_BYTES} are allowed"
        raise MalformedHeader(reason)
    return data


def decode_header(data: bytes) -> Header:
    """Return the header in these bytes, when they are exactly what `encode_header` writes.

    Raises: MalformedHeader.
    """
    if len(data) > MAX_HEADER_BYTES:
        reason = f"{len(data)} bytes, at most {MAX_HEADER_BYTES} are allowed"
        raise MalformedHeader(reason)
    try:
        wire = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reason = "not JSON of the known form"
        raise MalformedHeader(reason) from error
    header = Header(
        version=wire.v,
        id=wire.id,
        kind=wire.kind,
        data_class=wire.data_class,
        at=parse_instant(wire.at),
        received=parse_instant(wire.received),
        recorder=wire.recorder,
        seq=wire.seq,
        stream=wire.stream,
        position=wire.position,
        previous=_unhex(wire.previous, "previous"),
        sources_count=wire.sources,
        sources_root=None if wire.sources_root is None else _unhex(wire.sources_root, "sources_root"),
        parts=tuple(_part_of(part) for part in wire.parts),
    )
    if encode_header(header) != data:
        reason = "not the canonical encoding"
        raise MalformedHeader(reason)
    return header


def _part_of(part: _WirePart) -> Part:
    return Part(
        role=part.role,
        algorithm=part.alg,
        length=part.len,
        sha256=_unhex(part.sha256, "sha256"),
        object=part.obj,
        offset=part.off,
    )


def part_at(data: bytes, number: int) -> Part:
    """Return one part of a header that was checked when it was stored: a fraction of the work, no check of its own.

    For readers that check the part's bytes by other means. Raises: MalformedHeader, also where it has no such part.
    """
    try:
        wire = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reason = "not JSON of the known form"
        raise MalformedHeader(reason) from error
    if not 0 <= number < len(wire.parts):
        reason = f"part {number} is not among its {len(wire.parts)} parts"
        raise MalformedHeader(reason)
    return _part_of(wire.parts[number])


def header_hash(data: bytes) -> bytes:
    """Return the leaf hash of a header's bytes; the next header names it as `previous`."""
    return leaf_hash(data)


def sources_root(ids: Sequence[str]) -> bytes:
    """Return the Merkle root over source ids in the order given; each leaf is the id's UTF-8 bytes.

    Raises: MalformedHeader for no ids, since a header without sources has no root.
    """
    if not ids:
        reason = "no sources have no root"
        raise MalformedHeader(reason)
    return root(leaf_hash(source.encode()) for source in ids)


def format_instant(at: datetime) -> str:
    """Return `YYYY-MM-DDTHH:MM:SS.ffffffZ`. Raises: MalformedHeader unless the time is aware UTC."""
    if at.tzinfo is not UTC and at.utcoffset() != timedelta(0):
        reason = "a time is not aware UTC"
        raise MalformedHeader(reason)
    return at.isoformat(timespec="microseconds")[:_INSTANT_LENGTH] + "Z"


def parse_instant(text: str) -> datetime:
    """Return the aware UTC time of exactly that form. Raises: MalformedHeader."""
    if _INSTANT.fullmatch(text) is None:
        reason = "a time has not the form YYYY-MM-DDTHH:MM:SS.ffffffZ"
        raise MalformedHeader(reason)
    try:
        return datetime.fromisoformat(text[:-1]).replace(tzinfo=UTC)
    except ValueError as error:
        reason = "a time is not in the calendar"
        raise MalformedHeader(reason) from error


def uuid7(now: datetime, random: bytes | None = None) -> str:
    """Return a UUIDv7 of this millisecond, in canonical lower case.

    `random` is ten bytes, fresh ones by default; 74 of their 80 bits are used.
    Raises: MalformedHeader for a naive time, one before 1970, or too few bytes. Source: RFC 9562 §5.7.
    """
    if now.utcoffset() is None:
        reason = "a time is not aware"
        raise MalformedHeader(reason)
    milliseconds = (now - _EPOCH) // timedelta(milliseconds=1)
    noise = os.urandom(_RANDOM_SIZE) if random is None else random
    if not 0 <= milliseconds <= _MAX_MILLISECONDS or len(noise) != _RANDOM_SIZE:
        reason = f"a UUIDv7 needs a time after 1970 and {_RANDOM_SIZE} random bytes"
        raise MalformedHeader(reason)
    bits = int.from_bytes(noise, "big")
    value = milliseconds << 80 | 7 << 76 | (bits >> 62 & 0xFFF) << 64 | 2 << 62 | bits & ((1 << 62) - 1)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def require_uuid7(entry_id: str) -> None:
    """Check what `uuid7_time` checks, without the time. Raises: MalformedHeader."""
    if _UUID7.fullmatch(entry_id) is None or entry_id[:13] > _LAST_UUID7:
        uuid7_time(entry_id)


def uuid7_time(entry_id: str) -> datetime:
    """Return the millisecond inside a UUIDv7. Raises: MalformedHeader when it is not a canonical one."""
    text = _text(entry_id, _UUID7, "id")
    try:
        return _EPOCH + timedelta(milliseconds=int(text[:8] + text[9:13], 16))
    except OverflowError as error:
        reason = "the time in the id is not in the calendar"
        raise MalformedHeader(reason) from error


@lru_cache(maxsize=4096)
def _around(data_class: str, kind: str, recorder: str | None, stream: str) -> tuple[str, str, str, str]:
    """Return what stands around the values of a header that are its own: a batch repeats these four."""
    sender = "null" if recorder is None else f'"{_text(recorder, _RECORDER, "recorder")}"'
    return (
        f'","class":"{_text(data_class, _DATA_CLASS, "class")}","id":"',
        f'","kind":"{_text(kind, _NAME, "kind")}","parts":[',
        f'","recorder":{sender},"seq":',
        f',"stream":"{_text(stream, _STREAM, "stream")}","v":{VERSION}}}',
    )


@lru_cache(maxsize=4096)
def _part_form(algorithm: str, role: str) -> tuple[str, str]:
    """Return what stands around the numbers and the place of a part, remembered: most parts of a batch share it."""
    return (
        f'{{"alg":"{_text(algorithm, _NAME, "alg")}","len":',
        f',"role":"{_text(role, _NAME, "role")}","sha256":"',
    )


@lru_cache(maxsize=4096)
def _require_object(key: str) -> None:
    """Check the name of an object, remembered: a batch names few. Raises: MalformedHeader."""
    if len(key) > _MAX_OBJECT_KEY:
        reason = "an object key is too long"
        raise MalformedHeader(reason)
    _text(key, _OBJECT, "obj")


def _text(value: object, form: re.Pattern[str], field: str) -> str:
    if not isinstance(value, str) or form.fullmatch(value) is None:
        reason = f"{field} has not the expected form"
        raise MalformedHeader(reason)
    # A plain string: an encoder may treat an enum member otherwise.
    return str(value)


@lru_cache(maxsize=256)
def _received(at: datetime) -> str:
    """Return what `format_instant` does, remembered: what comes in one call was received at one time."""
    return format_instant(at)


def _count(value: object, field: str) -> int:
    if type(value) is not int or not 0 <= value <= MAX_INT:
        reason = f"{field} is not a whole number from 0 to {MAX_INT}"
        raise MalformedHeader(reason)
    return value


def _digest(value: object, field: str) -> str:
    if not isinstance(value, bytes) or len(value) != HASH_SIZE:
        reason = f"{field} is not {HASH_SIZE} bytes"
        raise MalformedHeader(reason)
    return value.hex()


def _unhex(text: str, field: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        reason = f"{field} is not hexadecimal"
        raise MalformedHeader(reason) from error
