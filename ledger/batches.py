"""The batch object: the only place where the order of the log is written down.

Guarantees: every byte of a batch object is covered by the object itself: the envelope is written again and compared,
and names its own digest and that of the frame behind it, which is bounded before it is opened. A batch names the one
before it by key, count and digest, so a batch cannot be exchanged, dropped or moved without the next one showing it,
and it names the last checkpoint before it. The first index stands in the key, so two writers that want one index want
one key, and create-only storage lets one of them win. It does not look into headers and stores nothing.

Layout: `envelope LF frame`. The frame is one zstd frame, without dictionary and with its content's size, over the
headers joined by LF, which no header holds. The encoding is append-only. Version 3 of the envelope is RFC 8785 JSON
with these keys, all always present, digests in base64 (version 1, which held the headers as base64, and version 2,
without `envelope`, are still read):

    bytes              length of the headers joined by LF, in bytes
    checkpoint_digest  SHA-256 of the last note before, or null
    checkpoint_size    its tree size, or 0
    count              number of headers
    envelope           SHA-256 of the envelope without this member
    fence              the writer's fencing number
    first              index of the first header
    frame              SHA-256 of the frame
    log                id of the log
    previous_count     headers in the batch before
    previous_digest    SHA-256 of that object, or null
    previous_key       its key, or null
    v                  3

`envelope` is for the newest batch, which no other one names yet: a changed byte of it is noticed at once. Who writes
the whole object anew is noticed by the signed root, and by the batch and the checkpoint that come next.

Source: RFC 8878 (zstd), RFC 8785 (canonical JSON), ADR 28.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from hashlib import sha256

import msgspec
import zstandard

from ledger import batches_v1
from ledger.errors import LogForked, MalformedBatch

VERSION = 3
_UNSEALED = 2
DIGEST_SIZE = 32
MAX_INT = (1 << 53) - 1
MAX_HEADER_BYTES = 16 * 1024
MAX_HEADERS_BYTES = 64 * 1024 * 1024
"""The most bytes of headers in a batch, after decompression."""
MAX_ENVELOPE_BYTES = 4 * 1024
PREFIX = "batch/"
_LINE = b"\n"
_LEVEL = 1  # higher ones gain nothing: most of what is left are digests

_LOG_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,255}")
_KEY = re.compile(r"batch/([0-9]{20})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Headers that follow each other in the log, and what came before them."""

    version: int = VERSION
    log_id: str
    first: int
    count: int
    previous_key: str | None
    previous_count: int
    previous_digest: bytes | None
    checkpoint_size: int
    checkpoint_digest: bytes | None
    fence: int
    headers: tuple[bytes, ...]

    @property
    def key(self) -> str:
        """The object key below the log's prefix."""
        return batch_key(self.first)

    @property
    def end(self) -> int:
        """The index of the first header of the batch after this one."""
        return self.first + self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What a batch says of itself: its headers left out, their frame named by length and digest."""

    count: int
    size: int
    frame_digest: bytes
    batch: Batch


# The fields stand in the order of their names, which is the order RFC 8785 asks for.
class _Wire(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    rename={"log_id": "log", "size": "bytes"},
):
    size: int
    checkpoint_digest: bytes | None
    checkpoint_size: int
    count: int
    envelope: bytes | None = None
    fence: int
    first: int
    frame: bytes
    log_id: str
    previous_count: int
    previous_digest: bytes | None
    previous_key: str | None
    v: int


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Wire, strict=True)


def batch_key(first: int) -> str:
    """Return the key of the batch that starts at this index; keys sort like indexes."""
    return f"{PREFIX}{_count(first, 'first'):020d}"


def parse_batch_key(key: str) -> int:
    """Return the first index that a batch's key names. Raises: MalformedBatch."""
    found = _KEY.fullmatch(key)
    if found is None or not key.isascii():
        reason = "not the key of a batch"
        raise MalformedBatch(reason)
    return _count(int(found[1]), "first")


def batch_digest(data: bytes) -> bytes:
    """Return the SHA-256 of a batch's bytes, which the next batch names."""
    return sha256(data).digest()


def encode_batch(batch: Batch) -> bytes:
    """Return the bytes of a batch object. Raises: MalformedBatch naming what is wrong."""
    _check(batch)
    if batch.version != VERSION:
        reason = f"version {batch.version} is read, and written no more"
        raise MalformedBatch(reason)
    if not batch.headers or batch.count != len(batch.headers):
        reason = f"expected {batch.count} headers and at least one, got {len(batch.headers)}"
        raise MalformedBatch(reason)
    for header in batch.headers:
        _header(header)
    plain = _LINE.join(batch.headers)
    if len(plain) > MAX_HEADERS_BYTES:
        reason = f"{len(plain)} bytes of headers, at most {MAX_HEADERS_BYTES} are allowed"
        raise MalformedBatch(reason)
    frame = zstandard.ZstdCompressor(level=_LEVEL).compress(plain)
    return _text(batch, len(plain), sha256(frame).digest()) + _LINE + frame


def open_envelope(data: bytes) -> Envelope:
    """Return what stands before the frame, when it is exactly what `encode_batch` writes; the frame is not looked at.

    Raises: MalformedBatch.
    """
    text, found, _ = data[:MAX_ENVELOPE_BYTES].partition(_LINE)
    try:
        wire = _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reason = "the envelope is not JSON of the known form"
        raise MalformedBatch(reason) from error
    batch = Batch(
        version=wire.v,
        log_id=wire.log_id,
        first=wire.first,
        count=wire.count,
        previous_key=wire.previous_key,
        previous_count=wire.previous_count,
        previous_digest=wire.previous_digest,
        checkpoint_size=wire.checkpoint_size,
        checkpoint_digest=wire.checkpoint_digest,
        fence=wire.fence,
        headers=(),
    )
    _check(batch)
    _digest(wire.frame, "frame")
    if not found or _text(batch, wire.size, wire.frame) != text:
        reason = "the envelope is not the canonical encoding, or not the one that its own digest names"
        raise MalformedBatch(reason)
    if not batch.count <= _count(wire.size, "bytes") <= MAX_HEADERS_BYTES:
        reason = f"{wire.size} bytes of headers, at most {MAX_HEADERS_BYTES} are allowed"
        raise MalformedBatch(reason)
    return Envelope(count=wire.count, size=wire.size, frame_digest=wire.frame, batch=batch)


def open_frame(data: bytes) -> tuple[bytes, ...]:
    """Return the headers in the frame of a batch object, whatever its envelope says. Raises: MalformedBatch."""
    frame = data[data.find(_LINE) + 1 :] if _LINE in data[:MAX_ENVELOPE_BYTES] else b""
    try:
        if zstandard.get_frame_parameters(frame).content_size > MAX_HEADERS_BYTES:
            reason = f"the frame states more than {MAX_HEADERS_BYTES} bytes, or no size"
            raise MalformedBatch(reason)
        plain = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        reason = "the frame of the headers cannot be opened"
        raise MalformedBatch(reason) from error
    return tuple(plain.split(_LINE))


def salvage_headers(data: bytes) -> tuple[bytes | None, ...]:
    """Return the headers of a damaged batch of version 1, None in place of a damaged one; nothing for any other bytes.

    Of a later one `open_frame` gives all headers or none.
    """
    found = batches_v1.salvage(data)
    return tuple(raw if raw and len(raw) <= MAX_HEADER_BYTES and _LINE not in raw else None for raw in found)


def decode_batch(data: bytes) -> Batch:
    """Return the batch in these bytes, when they are exactly what `encode_batch` wrote.

    Raises: MalformedBatch.
    """
    if data.startswith(batches_v1.START):
        return _of_version_1(data)
    envelope = open_envelope(data)
    if sha256(memoryview(data)[data.index(_LINE) + 1 :]).digest() != envelope.frame_digest:
        reason = "the frame of the headers is not the one that the envelope names"
        raise MalformedBatch(reason)
    headers = open_frame(data)
    if len(headers) != envelope.count or sum(map(len, headers)) + len(headers) - 1 != envelope.size:
        reason = f"expected {envelope.count} headers of {envelope.size} bytes, got {len(headers)}"
        raise MalformedBatch(reason)
    if not all(headers) or max(map(len, headers)) > MAX_HEADER_BYTES:
        reason = f"a header has 1 to {MAX_HEADER_BYTES} bytes"
        raise MalformedBatch(reason)
    return replace(envelope.batch, headers=headers)


def _of_version_1(data: bytes) -> Batch:
    wire = batches_v1.read(data)
    batch = Batch(
        log_id=wire.log_id,
        first=wire.first,
        count=wire.count,
        previous_key=wire.previous_key,
        previous_count=wire.previous_count,
        previous_digest=wire.previous_digest,
        checkpoint_size=wire.checkpoint_size,
        checkpoint_digest=wire.checkpoint_digest,
        fence=wire.fence,
        headers=wire.headers,
    )
    _check(batch)
    for header in batch.headers:
        _header(header)
    return batch


def verify_follows(batch: Batch, previous: Batch | None, previous_digest: bytes | None) -> None:
    """Check that `batch` continues exactly the batch before it; `None` is before the first one.

    `previous_digest` is the `batch_digest` of the stored bytes of `previous`. Raises: LogForked.
    """
    if previous is None:
        if batch.previous_key is not None:
            detail = f"{batch.key} names {batch.previous_key} before it, which is not there"
            raise LogForked(detail, size=batch.first)
        return
    if batch.log_id != previous.log_id:
        detail = f"{batch.key} belongs to another log than the batch before it"
        raise LogForked(detail, size=batch.first)
    named = (batch.previous_key, batch.previous_count, batch.previous_digest)
    if batch.first != previous.end or named != (previous.key, previous.count, previous_digest):
        detail = f"{batch.key} does not continue {previous.key} with {previous.count} entries"
        raise LogForked(detail, size=batch.first)
    if batch.fence < previous.fence or batch.checkpoint_size < previous.checkpoint_size:
        detail = f"the fence or the checkpoint of {batch.key} is older than that of the batch before it"
        raise LogForked(detail, size=batch.first)


def _text(batch: Batch, size: int, frame_digest: bytes) -> bytes:
    """Return the envelope; since version 3 with the digest of its other members among them."""
    wire = _Wire(
        size=size,
        checkpoint_digest=batch.checkpoint_digest,
        checkpoint_size=batch.checkpoint_size,
        count=batch.count,
        fence=batch.fence,
        first=batch.first,
        frame=frame_digest,
        log_id=batch.log_id,
        previous_count=batch.previous_count,
        previous_digest=batch.previous_digest,
        previous_key=batch.previous_key,
        v=batch.version,
    )
    text = _ENCODER.encode(wire)
    if batch.version == _UNSEALED:
        return text
    return _ENCODER.encode(msgspec.structs.replace(wire, envelope=sha256(text).digest()))


def _check(batch: Batch) -> None:
    if isinstance(batch.version, bool) or batch.version not in (_UNSEALED, VERSION):
        reason = f"version {batch.version!r} is unknown, this program writes {VERSION}"
        raise MalformedBatch(reason)
    _log_id(batch.log_id)
    _count(batch.first, "first")
    _count(batch.fence, "fence")
    if not _count(batch.count, "count"):
        reason = "a batch has at least one header"
        raise MalformedBatch(reason)
    _count(batch.end, "end")
    _check_previous(batch)
    _check_checkpoint(batch)


def _check_previous(batch: Batch) -> None:
    _count(batch.previous_count, "previous_count")
    if batch.first == 0:
        if batch.previous_key is not None or batch.previous_count or batch.previous_digest is not None:
            reason = "nothing comes before the first batch"
            raise MalformedBatch(reason)
        return
    if not 0 < batch.previous_count <= batch.first:
        reason = f"the batch before index {batch.first} cannot have {batch.previous_count} headers"
        raise MalformedBatch(reason)
    if batch.previous_key != batch_key(batch.first - batch.previous_count):
        reason = "the key and the count of the batch before do not fit each other"
        raise MalformedBatch(reason)
    _digest(batch.previous_digest, "previous_digest")


def _check_checkpoint(batch: Batch) -> None:
    if _count(batch.checkpoint_size, "checkpoint_size") > batch.first:
        reason = f"a checkpoint of size {batch.checkpoint_size} is not before index {batch.first}"
        raise MalformedBatch(reason)
    if batch.checkpoint_size:
        _digest(batch.checkpoint_digest, "checkpoint_digest")
    elif batch.checkpoint_digest is not None:
        reason = "a checkpoint has a size"
        raise MalformedBatch(reason)


def _log_id(value: object) -> None:
    if not isinstance(value, str) or _LOG_ID.fullmatch(value) is None:
        reason = "the id of the log has not the expected form"
        raise MalformedBatch(reason)


def _header(value: object) -> None:
    if not isinstance(value, bytes) or not 0 < len(value) <= MAX_HEADER_BYTES or _LINE in value:
        reason = f"a header has 1 to {MAX_HEADER_BYTES} bytes and no line feed"
        raise MalformedBatch(reason)


def _count(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_INT:
        reason = f"{field} is not a whole number from 0 to {MAX_INT}"
        raise MalformedBatch(reason)
    return value


def _digest(value: object, field: str) -> None:
    if not isinstance(value, bytes) or len(value) != DIGEST_SIZE:
        reason = f"{field} is not {DIGEST_SIZE} bytes"
        raise MalformedBatch(reason)
