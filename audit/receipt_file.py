"""The answers that a caller kept, and the notes of the log in them.

A file holds one answer to `POST /v1/record/entries`, its `receipt` alone, or the bare note; or many of these, one JSON
value a line, as the SDK keeps them. Guarantees: a receipt that is read has exactly one spelling; what cannot be read
is said line by line and hides no other line. Signed is the note only: which id stood at which index is the answer's
word. Pure; opens no signature (`audit.receipts` does).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from audit.errors import BadReceipts
from ledger.checkpoint import MAX_SIZE, parse_note
from ledger.errors import MalformedNote

_FIRST_LINE = "muniment-receipt/v1"
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TEXT = re.compile(
    rf"{_FIRST_LINE}\n(?P<origin>muniment/[^\n]+)\n(?P<first>0|[1-9][0-9]{{0,18}})\n(?P<count>[1-9][0-9]{{0,18}})\n"
    r"(?P<digest>[0-9a-f]{64})\n(?P<at>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z)\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a note says: `count` entries from `first` on are stored, the last batch of them has this SHA-256."""

    origin: str
    first: int
    count: int
    digest: bytes
    at: str

    @property
    def end(self) -> int:
        """The index after the last entry."""
        return self.first + self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer: its line in the file, its notes, and which entry it says stands where. `fault`: why it has none."""

    line: int
    notes: tuple[bytes, ...] = ()
    entries: tuple[tuple[str, int], ...] = ()
    fault: str | None = None


def parse_receipt(text: str) -> Receipt:
    """Return the receipt in a note's text. Raises: MalformedNote."""
    found = _TEXT.fullmatch(text)
    if found is None or int(found["first"]) + int(found["count"]) > MAX_SIZE:
        reason = "not the text of a receipt"
        raise MalformedNote(reason)
    return Receipt(
        origin=found["origin"],
        first=int(found["first"]),
        count=int(found["count"]),
        digest=bytes.fromhex(found["digest"]),
        at=found["at"],
    )


def read_answers(data: bytes) -> list[Answer]:
    """Return the answers of a file that acknowledge something, or cannot be read. Raises: BadReceipts for none."""
    found = [one for one in _answers(data) if one.notes or one.entries or one.fault]
    if not found:
        raise BadReceipts("it holds no receipt; keep the answers of POST /v1/record/entries")
    return found


def origin_of(answer: Answer) -> str | None:
    """Return the name of the log that an answer's first receipt says it is of, before anything is checked."""
    for note in answer.notes[:1]:
        with suppress(MalformedNote):
            return parse_receipt(parse_note(note).text).origin
    return None


def _answers(data: bytes) -> Iterator[Answer]:
    if data.startswith(_FIRST_LINE.encode()):
        yield Answer(line=1, notes=(data,))
        return
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError):
        lines: Sequence[bytes] = data.split(b"\n")
    else:
        yield _answer(1, whole)
        return
    for line, raw in enumerate(lines, start=1):
        if not raw.strip():
            continue
        try:
            yield _answer(line, json.loads(raw))
        except (ValueError, RecursionError):
            last = line == len(lines)
            yield Answer(line=line, fault="cut short, and says nothing" if last else "no JSON, so no receipt is in it")


def _answer(line: int, value: Any) -> Answer:
    said = value
    entries: tuple[tuple[str, int], ...] = ()
    if isinstance(value, dict) and "note" not in value:
        said = value.get("receipt")
        found = _entries(value.get("results", []))
        if found is None or "receipt" not in value:
            return Answer(line=line, fault="no answer of the record, so no receipt is in it")
        entries = found
    notes = _notes(said)
    if notes is None:
        return Answer(line=line, fault="its receipt is not of the form that the record gives")
    return Answer(line=line, notes=tuple(note.encode("utf-8", "replace") for note in notes), entries=entries)


def _notes(said: Any) -> list[str] | None:
    """The notes in the `receipt` of an answer: one, and those of later flushes; none where nothing was new."""
    if said is None:
        return []
    if isinstance(said, dict):
        later = said.get("later", [])
        said = [said.get("note"), *later] if isinstance(later, list) else None
    elif isinstance(said, str):
        said = [said]
    is_list = isinstance(said, list) and all(isinstance(note, str) for note in said)
    return said if is_list else None


def _entries(results: Any) -> tuple[tuple[str, int], ...] | None:
    if not isinstance(results, list):
        return None
    found: list[tuple[str, int]] = []
    for one in results:
        if not isinstance(one, dict):
            return None
        entry_id, index = one.get("id"), one.get("index")
        if index is None:
            continue  # rejected or suppressed: nothing of it was stored
        if not isinstance(entry_id, str) or _ID.fullmatch(entry_id) is None:
            return None
        if type(index) is not int or not 0 <= index < MAX_SIZE:
            return None
        found.append((entry_id, index))
    return tuple(found)
