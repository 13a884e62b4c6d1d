"""What a recorder sends: the strict envelope of an entry, with its bodies kept as the bytes that arrived.

Guarantees: a body is never serialised again. What is odd inside a body (duplicate keys, numbers that not every reader
holds, lone surrogates) is kept and flagged `noncanonical`; what is odd in the envelope refuses that one item with a
problem that names the field, never its value. Not here: who may write, which class exists, sealing.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import msgspec

from ledger.entry import require_uuid7
from ledger.errors import MalformedHeader
from registry.lenient import Unsplittable, elements, has_unique_keys, members
from registry.reading import RFC3339

BODY, JSON, BLOB = "body", "json", "blob"
"""The name of an entry's only part, where it has one; the forms of a part."""
MAX_DEPTH = 200
MAX_SOURCES = 10_000
MAX_PARTS = 64
"""With the parts that the service adds, this many fill a header nearly to its limit whatever their lengths are."""

_MAX_NAME = 512
_MAX_INT = 2**53
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_MEMBER = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)
_SHOWN = 64
_PART_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")


class MalformedEntry(Exception):
    """One item of a batch is refused. `pointer` names the field; the message never repeats its value.

    `entry_id` is the item's id where it could be read, so that the answer says which one it is about.
    """

    problem = "invalid-entry"

    def __init__(
        self, detail: str, *, pointer: str = "", problem: str = "invalid-entry", entry_id: str | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.pointer = pointer
        self.problem = problem
        self.entry_id = entry_id


class PartIn(msgspec.Struct, forbid_unknown_fields=True):
    """One part as sent; exactly one of `body` and `blob`."""

    name: str
    subjects: list[str] | None = None
    data_class: str | None = None
    body: msgspec.Raw = msgspec.Raw()
    blob: str | None = None
    pinned: bool | None = None


class EntryIn(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One entry as sent (API §5), its fields in the order in which our recorder writes them.

    What is not said is not written either, so most entries are written again as they came.
    """

    seq: int | None = None
    id: str
    stream: str
    kind: str
    at: str
    data_class: str
    recorder: str | None = None
    subjects: list[str] = []
    actor: str | None = None
    body: msgspec.Raw = msgspec.Raw()
    run: str | None = None
    agent: str | None = None
    model: str | None = None
    prompt_version: str | None = None
    policy: str | None = None
    sources: list[str] = []
    parts: list[PartIn] | None = None


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    entries: msgspec.Raw


class ParsedPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part with its bytes. `form` is `json` or `blob`; `subjects` None means the entry's."""

    name: str
    form: str
    data: bytes
    subjects: tuple[str, ...] | None
    data_class: str | None
    pinned: bool
    noncanonical: bool


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """A well-formed entry."""

    sent: EntryIn
    raw: bytes
    at: datetime
    parts: tuple[ParsedPart, ...]

    @property
    def noncanonical(self) -> bool:
        """Whether a body is kept that not every reader understands alike."""
        return any([part.noncanonical for part in self.parts])  # noqa: C419 - there is nearly always one


_BATCH = msgspec.json.Decoder(_Batch)
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_HEAD = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"entries"[ \t\r\n]*:[ \t\r\n]*')
_DECODE = msgspec.json.Decoder().decode
_ENCODE = msgspec.json.Encoder().encode
_DIGITS = bytes(ord("0" if chr(byte) in "0123456789" else " ") for byte in range(256))
_LONG = b"0" * 16
_ENTRY = msgspec.json.Decoder(EntryIn)
_TEXT_FIELDS = ("stream", "actor", "run", "agent", "recorder", "model", "prompt_version", "policy")
_TEXTS = attrgetter(*_TEXT_FIELDS)


def split_batch(data: bytes) -> list[bytes]:
    """Return the items of a `{"entries": […]}` body, as sent.

    Raises: MalformedEntry, `malformed` for what is no JSON and `invalid` with the field for JSON of another shape.
    """
    try:
        items = bytes(_BATCH.decode(data).entries)
        head = _HEAD.match(data)
        # A parser keeps the last of two equal keys, and the entries under the first would vanish without an answer.
        if head is None or data[head.end() + len(items) :].strip(b" \t\r\n") != b"}":
            raise MalformedEntry("“entries” stands twice", problem="malformed")
        return _items(items)
    except msgspec.ValidationError as error:
        raise _refused(error, "invalid") from error
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        # One odd body must not take the others with it: split without judging, each item is judged by itself.
        try:
            found = members(data)
            for name in sorted(found.keys() - {"entries"}):
                raise MalformedEntry("unknown field", pointer=_below("", name), problem="invalid") from None
            if "entries" in found:
                return list(elements(found["entries"]))
        except Unsplittable:
            pass
        raise MalformedEntry("the body is not JSON of the form {“entries”: […]}", problem="malformed") from None


def _items(data: bytes) -> list[bytes]:
    try:
        return [bytes(raw) for raw in _ITEMS.decode(data)]
    except msgspec.ValidationError as error:
        raise _refused(error, "invalid", "/entries") from error


def split_lines(data: bytes) -> list[bytes]:
    """Return the non-empty lines of an NDJSON body, as sent."""
    return [line for line in data.split(b"\n") if line.strip()]


def parse_entry(raw: bytes) -> Parsed:
    """Return the entry in these bytes. Raises: MalformedEntry naming the field, never its value."""
    try:
        return _usual(raw) or _parse_entry(raw)
    except MalformedEntry as error:
        error.entry_id = _id_of(raw)
        raise


def _id_of(raw: bytes) -> str | None:
    """The id of an entry that is refused, if it has the form of one; whatever else stands there is not repeated."""
    try:
        found = _DECODE(members(raw)["id"])
    except (Unsplittable, KeyError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, str) and _UUID.fullmatch(found) else None


def _usual(raw: bytes) -> Parsed | None:
    """Return an entry of one body whose bytes are those that we would write; None for any other, odd or not.

    Equal bytes say at once what is asked piece by piece of others: valid UTF-8, no key twice, no other spelling.
    """
    try:
        sent = _ENTRY.decode(raw)
        if sent.parts is not None or _ENCODE(sent) != raw:
            return None
        body = bytes(sent.body)
        if (
            not body
            or body.count(b"[") + body.count(b"{") > MAX_DEPTH
            or b"\\u" in body
            or _LONG in body.translate(_DIGITS)
            or _ENCODE(_DECODE(body)) != body
        ):
            return None
        require_uuid7(sent.id)
    except (msgspec.MsgspecError, MalformedHeader, RecursionError, UnicodeError):
        return None
    _require_text(sent)
    part = ParsedPart(name=BODY, form=JSON, data=body, subjects=None, data_class=None, pinned=False, noncanonical=False)
    return Parsed(sent=sent, raw=raw, at=parse_instant(sent.at, "/at"), parts=(part,))


def _parse_entry(raw: bytes) -> Parsed:
    try:
        raw.decode("utf-8")
        sent = _ENTRY.decode(raw)
        if not has_unique_keys(raw):
            raise MalformedEntry("a key of the envelope stands twice")
    except UnicodeDecodeError as error:
        raise MalformedEntry("the entry is not valid UTF-8") from error
    except RecursionError as error:
        raise MalformedEntry(f"the entry is nested deeper than {MAX_DEPTH}") from error
    except msgspec.ValidationError as error:
        raise _refused(error) from error
    except msgspec.DecodeError:
        sent = _decode_around(raw)
    try:
        require_uuid7(sent.id)
    except MalformedHeader as error:
        raise MalformedEntry("id is not a UUIDv7 in lower case", pointer="/id") from error
    _require_text(sent)
    return Parsed(sent=sent, raw=raw, at=parse_instant(sent.at, "/at"), parts=_parts(sent))


def _refused(error: msgspec.ValidationError, problem: str = "invalid-entry", above: str = "") -> MalformedEntry:
    """The refusal with its place as RFC 6901 has it; the decoder says `$.parts[0].name`."""
    detail, _, path = str(error).partition(" - at `$")
    pointer = above + path.rstrip("`").replace(".", "/").replace("[", "/").replace("]", "")
    if named := _MEMBER.fullmatch(detail):
        kind, name = named.groups()
        return MalformedEntry("unknown field" if kind == "contains unknown" else "required",
                              pointer=_below(pointer, name), problem=problem)  # fmt: skip
    return MalformedEntry(detail, pointer=pointer, problem=problem)


def _below(pointer: str, name: str) -> str:
    """The pointer of a member; a name longer than any of ours is cut, half a character is `?`. Source: RFC 6901 §3."""
    shown = (name if len(name) <= _SHOWN else f"{name[:16]}…").encode(errors="replace").decode()
    return f"{pointer}/{shown.replace('~', '~0').replace('/', '~1')}"


def _decode_around(raw: bytes) -> EntryIn:
    """Return an entry whose bodies a strict parser refuses: the envelope strictly, the bodies as they are."""
    try:
        found = members(raw)
        bodies = {"": found.pop("body")} if "body" in found else {}
        parts = [members(part) for part in elements(found["parts"])] if "parts" in found else []
        for number, part in enumerate(parts):
            if "body" in part:
                bodies[str(number)] = part.pop("body")
        if parts:
            found["parts"] = b"[" + b",".join(_object(part) for part in parts) + b"]"
        sent = _ENTRY.decode(_object(found))
    except msgspec.ValidationError as error:
        raise _refused(error) from error
    except (Unsplittable, msgspec.DecodeError) as error:
        raise MalformedEntry("the entry is not JSON") from error
    for where, body in bodies.items():
        try:
            json.loads(body)
        except (ValueError, RecursionError) as error:
            raise MalformedEntry("a body is not JSON, not even for a lenient reader", pointer="/body") from error
        if where:
            (sent.parts or [])[int(where)].body = msgspec.Raw(body)
        else:
            sent.body = msgspec.Raw(body)
    return sent


def _object(found: dict[str, bytes]) -> bytes:
    return b"{" + b",".join(json.dumps(key).encode() + b":" + value for key, value in found.items()) + b"}"


def parse_instant(text: str, pointer: str) -> datetime:
    """Return an RFC 3339 instant with a zone, in UTC. Raises: MalformedEntry."""
    if RFC3339.fullmatch(text) is None:
        raise MalformedEntry("not an RFC 3339 time with a zone, such as 2026-01-31T12:00:00Z", pointer=pointer)
    try:
        at = datetime.fromisoformat(text.upper())
        return at if at.tzinfo is UTC else at.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise MalformedEntry("not a time of the calendar", pointer=pointer) from error


def is_noncanonical(body: bytes) -> bool:
    """Whether readers may disagree about a JSON body: duplicate keys, numbers beyond a double, lone surrogates, NaN."""
    if b"\\u" not in body and _LONG not in body.translate(_DIGITS):
        try:
            # What a strict parser reads and writes again as it came has no key twice and no number that readers
            # hold differently; only other spellings need the slow way.
            if _ENCODE(_DECODE(body)) == body:
                return False
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            pass
    odd = False

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal odd
        made = dict(items)
        odd = odd or len(made) != len(items)
        return made

    def integer(text: str) -> int:
        nonlocal odd
        odd = odd or len(text) > 17 or abs(int(text)) >= _MAX_INT  # noqa: PLR2004 (digits of 2**53 and a sign)
        return 0

    def real(text: str) -> float:
        nonlocal odd
        odd = odd or not math.isfinite(float(text))
        return 0.0

    def constant(_: str) -> float:
        nonlocal odd
        odd = True
        return 0.0

    try:
        value = json.loads(body, object_pairs_hook=pairs, parse_int=integer, parse_float=real, parse_constant=constant)
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):
        return True
    return odd


def depth_of(body: bytes) -> int:
    """Return an upper bound of the nesting of a JSON text; exact when it is over `MAX_DEPTH`."""
    bound = body.count(b"[") + body.count(b"{")
    if bound <= MAX_DEPTH:
        return bound
    depth = deepest = 0
    in_string = escaped = False
    for byte in body:
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:  # noqa: PLR2004 (backslash)
                escaped = True
            elif byte == 0x22:  # noqa: PLR2004 (quote)
                in_string = False
        elif byte == 0x22:  # noqa: PLR2004
            in_string = True
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


def _require_text(sent: EntryIn) -> None:
    texts = _TEXTS(sent)
    if "" in texts or max(map(len, filter(None, texts))) > _MAX_NAME:
        field = next(
            name for name, text in zip(_TEXT_FIELDS, texts, strict=True) if text == "" or len(text or "") > _MAX_NAME
        )
        raise MalformedEntry(f"{field} has 1 to {_MAX_NAME} characters", pointer=f"/{field}")
    if len(sent.sources) > MAX_SOURCES:
        raise MalformedEntry(f"at most {MAX_SOURCES} sources, got {len(sent.sources)}", pointer="/sources")
    for number, source in enumerate(sent.sources):
        try:
            require_uuid7(source)
        except MalformedHeader as error:
            raise MalformedEntry("a source is the UUIDv7 of an entry", pointer=f"/sources/{number}") from error
    if sent.seq is not None and not 0 <= sent.seq < _MAX_INT:
        raise MalformedEntry("seq is a whole number from 0 below 2**53", pointer="/seq")


def _parts(sent: EntryIn) -> tuple[ParsedPart, ...]:
    body = bytes(sent.body)
    if body and sent.parts is not None:
        raise MalformedEntry("an entry has body or parts, not both", pointer="/parts")
    if body:
        return (_json_part(BODY, body, "/body"),)
    if not sent.parts:
        raise MalformedEntry("an entry needs body or parts", pointer="/body")
    if len(sent.parts) > MAX_PARTS:
        raise MalformedEntry(f"at most {MAX_PARTS} parts, got {len(sent.parts)}", pointer="/parts")
    names = [part.name for part in sent.parts]
    if len(set(names)) != len(names):
        raise MalformedEntry("two parts have one name", pointer="/parts")
    return tuple(_part(part, f"/parts/{number}") for number, part in enumerate(sent.parts))


def _part(part: PartIn, pointer: str) -> ParsedPart:
    body = bytes(part.body)
    if bool(body) == (part.blob is not None):
        raise MalformedEntry("a part has exactly one of body and blob", pointer=pointer)
    if _PART_NAME.fullmatch(part.name) is None:
        raise MalformedEntry("a part's name is 1 to 128 letters, digits and _ . : -", pointer=pointer)
    if part.blob is not None:
        try:
            data = base64.b64decode(part.blob, validate=True)
        except (binascii.Error, ValueError) as error:
            raise MalformedEntry("blob is not base64", pointer=pointer) from error
    else:
        return _json_part(part.name, body, pointer, part)
    return _whole_part(part.name, BLOB, data, part, noncanonical=False)


def _json_part(name: str, body: bytes, pointer: str, part: PartIn | None = None) -> ParsedPart:
    if depth_of(body) > MAX_DEPTH:
        raise MalformedEntry(f"the body is nested deeper than {MAX_DEPTH}", pointer=pointer)
    return _whole_part(name, JSON, body, part, noncanonical=is_noncanonical(body))


def _whole_part(name: str, form: str, data: bytes, part: PartIn | None, *, noncanonical: bool) -> ParsedPart:
    return ParsedPart(
        name=name,
        form=form,
        data=data,
        subjects=None if part is None or part.subjects is None else tuple(part.subjects),
        data_class=None if part is None else part.data_class,
        pinned=part is not None and bool(part.pinned),
        noncanonical=noncanonical,
    )


def unique(values: Sequence[str]) -> tuple[str, ...]:
    """Return the values without repeats, in their first order."""
    return tuple(dict.fromkeys(values))
