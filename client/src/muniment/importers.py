"""Readers of real chat logs: files in, entries ready for `POST /v1/record/entries` out.

Guarantees: bodies are the bytes of the file, cut out and never written again; order is the file's; the same file
read twice gives the same ids, so importing twice stores nothing twice; unless told to skip, a file with a bad line
gives no entry at all; JSONL is read line by line in bounded memory. Errors name line and field, never a value.

Ids are UUIDv7: the time of the message, else of the conversation, else the `epoch` given, else the file's own time;
the rest is an HMAC of stream and position under `id_key`, because a bare digest of personal data can be found by
trying. Touching a file that states no time changes its ids: give `epoch` then. A conversation without a name gets one
made of the file's name, its line and all of its bytes, so that two conversations never become one stream.

Shapes: JSONL with `messages` (OpenAI style), JSONL of single messages, an array of dialogues (`original`, as ABCD
has, or `messages`), SWE-agent `.traj`, an object of profiles by user id. OTLP is refused by name.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from muniment.errors import ImportFault
from muniment.ids import time_text, uuid7_from
from muniment.shapes import (
    MAX_DOCUMENT_BYTES,
    Unit,
    pieces_of,
    raw_object,
    read_array,
    read_lines,
    read_object,
    refuse_otlp,
    shape_of,
    subject_at,
    text_at,
    time_of,
)

ImportedEntry = dict[str, Any]
"""An entry; its `body` is a `msgspec.Raw`, so encode it with msgspec (`encode_entry`)."""

_MIN_KEY_BYTES = 16
_STREAM_FIELDS = ("conversation_id", "convo_id", "thread_id", "session_id", "instance_id")
_MAX_BATCH_ENTRIES = 1000
_MAX_BATCH_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """What every entry of one file has in common."""

    path: Path
    data_class: str
    subject_field: str | None
    stream_field: str | None
    subject_type: str
    id_key: bytes
    epoch: datetime


def read_entries(
    path: Path,
    *,
    data_class: str,
    subject_field: str | None,
    id_key: bytes,
    stream_field: str | None = None,
    subject_type: str = "user",
    epoch: datetime | None = None,
    skip_bad: bool = False,
    on_bad: Callable[[ImportFault], None] | None = None,
) -> Iterator[ImportedEntry]:
    """Yield the entries of a file, in order.

    `subject_field` and `stream_field` are dotted paths inside a conversation (or a message, where each line is one);
    a subject value `type:value` is used as it is, another gets `subject_type`. Without `subject_field` entries have
    no subject. `id_key` is at least 16 secret bytes, the same at each import. With `skip_bad` a bad line is handed
    to `on_bad` and left out; without, the whole file is checked before the first entry comes.

    Raises: ImportFault, UnsupportedShape, OSError, ValueError for a short key or an epoch without a zone.
    """
    if len(id_key) < _MIN_KEY_BYTES:
        raise ValueError(f"id_key must have at least {_MIN_KEY_BYTES} bytes, got {len(id_key)}")
    if epoch is not None and epoch.tzinfo is None:
        raise ValueError("epoch must have a time zone")
    stated = epoch or datetime.fromtimestamp(int(path.stat().st_mtime), UTC)
    reader = _Reader(
        path=path,
        data_class=data_class,
        subject_field=subject_field,
        stream_field=stream_field,
        subject_type=subject_type,
        id_key=id_key,
        epoch=stated,
    )
    if skip_bad:
        yield from _entries(reader, on_bad or _ignore)
        return
    for _ in _entries(reader, _refuse):
        pass  # the whole file first: nothing of it is sent if a part of it is bad
    yield from _entries(reader, _refuse)


def encode_entry(entry: ImportedEntry) -> bytes:
    """Return the entry as JSON, its body byte for byte."""
    return msgspec.json.encode(entry)


def batches(
    entries: Iterator[ImportedEntry], *, max_entries: int = _MAX_BATCH_ENTRIES, max_bytes: int = _MAX_BATCH_BYTES
) -> Iterator[tuple[list[str], bytes]]:
    """Yield the ids and the request body (`{"entries": […]}`) of one post after the other."""
    ids: list[str] = []
    encoded: list[bytes] = []
    size = 0
    for entry in entries:
        data = encode_entry(entry)
        if encoded and (len(encoded) == max_entries or size + len(data) > max_bytes):
            yield ids, b'{"entries":[' + b",".join(encoded) + b"]}"
            ids, encoded, size = [], [], 0
        ids.append(entry["id"])
        encoded.append(data)
        size += len(data)
    if encoded:
        yield ids, b'{"entries":[' + b",".join(encoded) + b"]}"


def _refuse(fault: ImportFault) -> None:
    raise fault


def _ignore(fault: ImportFault) -> None:
    """Leave the bad line out."""


def _entries(reader: _Reader, on_bad: Callable[[ImportFault], None]) -> Iterator[ImportedEntry]:
    for unit in _units(reader.path):
        if isinstance(unit, ImportFault):
            on_bad(unit)
            continue
        try:
            # All of a conversation or none of it, also when bad ones are skipped.
            made = list(_unit_entries(reader, unit))
        except ImportFault as fault:
            on_bad(fault)
            continue
        yield from made


def _units(path: Path) -> Iterator[Unit | ImportFault]:
    shape = shape_of(path)
    if shape == "lines":
        yield from read_lines(path)
    elif shape == "array":
        yield from read_array(path)
    else:
        yield from read_object(path)


def _unit_entries(reader: _Reader, unit: Unit) -> Iterator[ImportedEntry]:
    """Yield the entries of one conversation, message or profile."""
    members = raw_object(unit.raw, unit.line)
    if unit.key is None:
        refuse_otlp(members)
    subjects, stream = _subjects_and_stream(reader, unit, members)
    moment = time_of(members, unit.line) or reader.epoch
    for position, piece in enumerate(pieces_of(unit, members)):
        # A line that is one message shares its stream with other lines, so its place is its line.
        place = unit.line if unit.is_message else position
        at = piece.at or moment
        entry: ImportedEntry = {
            "id": _entry_id(reader, stream, place, at),
            "stream": stream,
            "kind": piece.kind,
            "at": time_text(at),
            "data_class": reader.data_class,
            "body": piece.body,
        }
        if subjects:
            entry["subjects"] = subjects
        if piece.model is not None:
            entry["model"] = piece.model
        yield entry


def _subjects_and_stream(reader: _Reader, unit: Unit, members: dict[str, msgspec.Raw]) -> tuple[list[str], str]:
    if unit.key is not None:
        # A profile: its key is the person, and the stream's name must not be.
        subject = subject_at(unit.key, reader.subject_type, unit.line, None)
        return [subject], f"profile-{_keyed(reader, b'profile', unit.key.encode()).hex()[:24]}"
    subjects: list[str] = []
    if reader.subject_field is not None:
        value = text_at(members, reader.subject_field, unit.line)
        subjects = [subject_at(value, reader.subject_type, unit.line, reader.subject_field)]
    if reader.stream_field is not None:
        return subjects, text_at(members, reader.stream_field, unit.line)
    for field in _STREAM_FIELDS:
        if field in members:
            return subjects, text_at(members, field, unit.line)
    if unit.is_message:
        raise ImportFault("each line is one message, so name the field that says its stream", line=unit.line)
    place = f"{reader.path.name}\0{unit.line}\0".encode() + unit.raw
    return subjects, f"import-{_keyed(reader, b'stream', place).hex()[:24]}"


def _keyed(reader: _Reader, purpose: bytes, data: bytes) -> bytes:
    return hmac.digest(reader.id_key, b"muniment-import/v1\0" + purpose + b"\0" + data, hashlib.sha256)


def _entry_id(reader: _Reader, stream: str, position: int, at: datetime) -> str:
    """Return the id of the entry at a place of a stream; ids of one millisecond sort by position."""
    digest = _keyed(reader, b"entry", f"{position}\0{stream}".encode())
    milliseconds = int(at.timestamp() * 1000)
    return uuid7_from(max(0, milliseconds), min(position, 0xFFF), int.from_bytes(digest[:8], "big"))


__all__ = ["MAX_DOCUMENT_BYTES", "ImportedEntry", "batches", "encode_entry", "read_entries"]
