"""The shapes of chat logs: how a file falls into conversations, and a conversation into pieces.

Pure but for reading the file. Every value stays the raw slice of the file it came from. Errors name line (or the
number of the element, from 1) and field, never a value.
"""

from __future__ import annotations

import contextlib
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from muniment.errors import ImportFault, UnsupportedShape

MAX_LINE_BYTES = 64 << 20
MAX_DOCUMENT_BYTES = 256 << 20
"""A file that is one JSON value is read whole, so it is bounded; JSONL is not."""

# API.md §6: a subject is `type:value`, the value 1 to 512 characters without `*`, `%` and control characters.
_SUBJECT = re.compile(r"[a-z][a-z0-9_]*:[^*%\x00-\x1f\x7f]{1,512}")


def is_subject(name: str) -> bool:
    """Tell whether a name is written as a subject, `type:value`."""
    return _SUBJECT.fullmatch(name) is not None


_TIME_FIELDS = ("at", "timestamp", "created_at", "create_time", "created", "time", "date")
_OTLP = frozenset({"resourceSpans", "resourceLogs", "resourceMetrics"})
_MILLISECONDS_ABOVE = 1e11  # as seconds that would be the year 5138
_ROLES = {
    "system": "turn.system",
    "developer": "turn.system",
    "user": "turn.user",
    "human": "turn.user",
    "customer": "turn.user",
    "assistant": "turn.assistant",
    "agent": "turn.assistant",
    "ai": "turn.assistant",
    "tool": "tool.result",
    "function": "tool.result",
    "action": "tool.result",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One conversation, one message, or one profile with its key."""

    raw: bytes
    line: int
    is_message: bool = False
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What becomes one entry."""

    kind: str
    body: msgspec.Raw
    at: datetime | None = None
    model: str | None = None


def shape_of(path: Path) -> str:
    """Return `lines`, `array` or `object`. Raises: UnsupportedShape for a file that is none of them."""
    with path.open("rb") as file:
        first = b""
        while not first.strip():
            first = file.readline(MAX_LINE_BYTES)
            if not first:
                raise UnsupportedShape("an empty file", "nothing to do")
        more = bool(file.readline(MAX_LINE_BYTES).strip())
    first = first.removeprefix(BOM_UTF8)
    start = first.lstrip()[:1]
    if start == b"[":
        return "array"
    if start != b"{":
        raise UnsupportedShape("a file that is not JSON", "give JSONL, a JSON array or a JSON object")
    try:
        members = raw_object(first, 1)
    except ImportFault:
        # Either an object written over several lines, or JSONL whose first line is bad.
        whole = path.suffix in {".json", ".traj"} or first.strip() == b"{"
        return "object" if whole else "lines"
    is_one = not more and not ({"messages", "original", "role"} & members.keys())
    return "object" if is_one and path.suffix not in {".jsonl", ".ndjson"} else "lines"


def read_lines(path: Path) -> Iterator[Unit | ImportFault]:
    """Yield each line of a JSONL file; empty ones are passed over."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            line = line.removeprefix(BOM_UTF8) if number == 1 else line
            if len(line) > MAX_LINE_BYTES:
                yield ImportFault(f"longer than {MAX_LINE_BYTES} bytes", line=number)
                return
            if not line.strip():
                continue
            try:
                members = raw_object(line, number)
            except ImportFault as fault:
                yield fault
                continue
            yield Unit(raw=line, line=number, is_message="messages" not in members and "role" in members)


def read_array(path: Path) -> Iterator[Unit | ImportFault]:
    """Yield each element of a JSON array; the line is the element's number, from 1."""
    try:
        elements = msgspec.json.decode(_document(path), type=list[msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ImportFault("the file is not a JSON array", line=1) from error
    for number, element in enumerate(elements, start=1):
        try:
            members = raw_object(bytes(element), number)
        except ImportFault as fault:
            yield fault
            continue
        is_message = not {"messages", "original", "history"} & members.keys() and "role" in members
        yield Unit(raw=bytes(element), line=number, is_message=is_message)


def read_object(path: Path) -> Iterator[Unit | ImportFault]:
    """Yield the one conversation of a file, or each profile of an object of profiles. Raises: UnsupportedShape."""
    data = _document(path)
    members = raw_object(data, 1)
    inner = [bytes(value) for value in members.values() if bytes(value).lstrip().startswith(b"{")]
    refuse_otlp(members, *(raw_object(value, 1) for value in inner))
    if {"messages", "original", "history"} & members.keys():
        yield Unit(raw=data, line=1)
        return
    if not all(bytes(value).lstrip().startswith(b"{") for value in members.values()):
        raise UnsupportedShape("an object of unknown members", "expected messages, history, or profiles by user id")
    for number, (key, value) in enumerate(members.items(), start=1):
        yield Unit(raw=bytes(value), line=number, key=key)


def refuse_otlp(*objects: dict[str, msgspec.Raw]) -> None:
    """Return unless one of these is telemetry. Raises: UnsupportedShape.

    Telemetry may stand below names such as `traces` and `logs`, which taken for profiles would be two persons.
    """
    if any(_OTLP & members.keys() for members in objects):
        raise UnsupportedShape("OTLP/JSON", "importing it is not built yet")


def pieces_of(unit: Unit, members: dict[str, msgspec.Raw]) -> Iterator[Piece]:
    """Yield the pieces of a unit: what stands beside the messages first, as one note, then each message."""
    if unit.key is not None:
        yield Piece(kind="note", body=_raw(unit.raw))
        return
    if unit.is_message:
        yield _message(_raw(unit.raw), unit.line)
        return
    field = next((each for each in ("messages", "history", "original") if each in members), None)
    if field is None:
        raise ImportFault("no messages, history or original dialogue here", line=unit.line)
    beside = {name: value for name, value in members.items() if name not in {field, "trajectory"}}
    if beside:
        yield Piece(kind="note", body=msgspec.Raw(msgspec.json.encode(beside)))
    for number, item in enumerate(_list(members[field], unit.line, field)):
        where = f"{field}.{number}"
        yield _turn(item, unit.line, where) if field == "original" else _message(item, unit.line, where)
    for step in _list(members["trajectory"], unit.line, "trajectory") if "trajectory" in members else []:
        yield Piece(kind="note", body=step)


def raw_object(data: bytes, line: int) -> dict[str, msgspec.Raw]:
    """Return the members of a JSON object as raw slices. Raises: ImportFault."""
    try:
        str(data, "utf-8")
        return msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ImportFault("not a JSON object in UTF-8", line=line) from error


def _value(raw: msgspec.Raw, line: int, path: str | None) -> object:
    """Return what a slice holds. Raises: ImportFault for a number or a nesting that no reader takes."""
    try:
        found: object = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise ImportFault("a number out of range, or nested without end", line=line, path=path) from error
    return found


def text_at(members: dict[str, msgspec.Raw], path: str, line: int) -> str:
    """Return the text or number at a dotted path. Raises: ImportFault."""
    found: object = members
    for name in path.split("."):
        if isinstance(found, msgspec.Raw):
            found = _value(found, line, path)
        if not isinstance(found, dict) or name not in found:
            raise ImportFault("missing", line=line, path=path)
        found = found[name]
    if isinstance(found, msgspec.Raw):
        found = _value(found, line, path)
    if isinstance(found, int) and not isinstance(found, bool):
        found = str(found)
    if not isinstance(found, str) or not found.strip():
        raise ImportFault("not a text or a whole number", line=line, path=path)
    return found


def subject_at(value: str, subject_type: str, line: int, path: str | None) -> str:
    """Return `value` as a subject, typed if it is not yet. Raises: ImportFault."""
    subject = value if is_subject(value) else f"{subject_type}:{value}"
    if not is_subject(subject):
        raise ImportFault("not usable as a subject", line=line, path=path)
    return subject


def time_of(members: dict[str, msgspec.Raw], line: int) -> datetime | None:
    """Return the time that an object states of itself, or None. Raises: ImportFault for one without a zone."""
    for name in _TIME_FIELDS:
        value = _value(members[name], line, name) if name in members else None
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            seconds = value / 1000 if value > _MILLISECONDS_ABOVE else value
            with contextlib.suppress(OverflowError, ValueError, OSError):
                return datetime.fromtimestamp(seconds, UTC)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                moment = datetime.fromisoformat(value)
                if moment.tzinfo is None:
                    raise ImportFault("a time without a zone", line=line, path=name)
                try:
                    return moment.astimezone(UTC)
                except OverflowError:
                    raise ImportFault("a time out of range", line=line, path=name) from None
    return None


def _message(item: msgspec.Raw, line: int, where: str | None = None) -> Piece:
    """Return an OpenAI-style message as a piece. Raises: ImportFault."""
    try:
        members = raw_object(bytes(item), line)
        role = _value(members["role"], line, where) if "role" in members else None
    except ImportFault as fault:
        raise ImportFault("a message that is not an object", line=line, path=where) from fault
    if not isinstance(role, str):
        raise ImportFault("a message without a role", line=line, path=where)
    kind = _ROLES.get(role, "note")
    calls = bytes(members["tool_calls"]) if "tool_calls" in members else b"null"
    called = calls not in {b"null", b"[]"} or bytes(members.get("function_call", msgspec.Raw(b"null"))) != b"null"
    if kind == "turn.assistant" and called:
        kind = "tool.call"
    model = _value(members["model"], line, where) if "model" in members else None
    return Piece(
        kind=kind, body=item, at=time_of(members, line), model=model if isinstance(model, str) and model else None
    )


def _turn(item: msgspec.Raw, line: int, where: str) -> Piece:
    """Return a `[speaker, text]` pair as a piece. Raises: ImportFault."""
    try:
        speaker, _ = msgspec.json.decode(item, type=tuple[str, str])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ImportFault("not a pair of speaker and text", line=line, path=where) from error
    return Piece(kind=_ROLES.get(speaker, "note"), body=item)


def _list(raw: msgspec.Raw, line: int, field: str) -> list[msgspec.Raw]:
    try:
        return msgspec.json.decode(raw, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ImportFault("not a list", line=line, path=field) from error


def _raw(data: bytes) -> msgspec.Raw:
    """Return the value without the white space around it."""
    return msgspec.Raw(data.strip(b" \t\r\n"))


def _document(path: Path) -> bytes:
    size = path.stat().st_size
    if size > MAX_DOCUMENT_BYTES:
        raise UnsupportedShape(f"one JSON value of {size} bytes", f"the bound is {MAX_DOCUMENT_BYTES}; give JSONL")
    return path.read_bytes().removeprefix(BOM_UTF8)
