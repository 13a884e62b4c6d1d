"""From stored entries to the exact exchange: a pure fold, with a verdict per entry and every hole explained.

Guarantees: the bodies are the bytes that arrived; what cannot be shown says why, and never looks like an empty turn. A
transcript is `complete` only when it is whole and has no hole that nothing explains: positions of the stream without
gap, and as many entries as `stream.closed` counts. Erased and expired content is an explained hole. A recorder counts
over all its streams, so a hole in its sequence inside one stream is shown, and is a gap only when `elsewhere` says that
no other stream holds what is missing; a repeat is reported and never refused.

Reads nothing and opens nothing: `unseal` is given, and who may see what is decided there.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from typing import Any

import msgspec

from audit.findings import Integrity, worst_integrity
from audit.keys import log_key, open_checkpoint
from audit.proof import included
from ledger.checkpoint import Checkpoint
from ledger.entry import Header, Kind, decode_header, format_instant
from ledger.errors import BadProof, MalformedHeader

_EXPLAINED = frozenset(
    {Integrity.VERIFIED, Integrity.UNANCHORED, Integrity.ERASED, Integrity.EXPIRED, Integrity.WITHHELD}
)
_BODY = "body"
_FACTS = ("agent", "model", "prompt_version", "policy", "actor", "run", "sources", "versions")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """One entry as the store has it.

    `ciphertexts` run like the header's parts, None for one that is not there; without the list, `unseal` compares them
    itself. `inclusion` is its path to the transcript's checkpoint, None while it is not under one. Of an entry without
    a header, `lost` says what became of it and why, and `named` is the id under which it was looked for.
    """

    index: int
    header: bytes
    lost: tuple[Integrity, str] | None = None
    named: str | None = None
    ciphertexts: Sequence[bytes | None] | None = None
    inclusion: Sequence[bytes] | None = None
    noncanonical: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """One part as `unseal` gives it: its bytes, or the state that says why not. `form` is `json` or `blob`."""

    name: str
    form: str = "json"
    data_class: str | None = None
    state: Integrity = Integrity.VERIFIED
    data: bytes | None = field(default=None, repr=False)
    because: str | None = None
    role: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsealed:
    """What is inside an entry: its parts, and the facts of its skeleton that name nobody."""

    parts: Sequence[Content]
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A hole that nothing explains: `kind` is `position`, `recorder` or `closed`; numbers from `first` to `last`.

    A position that stands there twice is one as well, of kind `repeated`: the stream never had it so.
    """

    kind: str
    first: int
    last: int
    recorder: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """A number that a recorder used more than once, and the entries that carry it."""

    recorder: str
    seq: int
    entries: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One entry of the transcript. `header` is None when its bytes are no header, and `named` then says which."""

    index: int
    header: Header | None
    parts: Sequence[Content]
    facts: Mapping[str, Any]
    integrity: Integrity
    because: str | None
    noncanonical: bool
    named: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The exchange of one stream."""

    stream: str
    complete: bool
    gaps: tuple[Gap, ...]
    seq_holes: tuple[Gap, ...]
    repeats: tuple[Repeat, ...]
    note: bytes | None
    entries: tuple[Replayed, ...]


Unseal = Callable[[StoredEntry, Header], Unsealed]
Elsewhere = Callable[[str, int, int], int]
"""How many of a recorder's numbers from `first` to `last` other streams hold."""


def fold(
    stream: str,
    entries: Sequence[StoredEntry],
    unseal: Unseal,
    *,
    note: bytes | None = None,
    vkey: str | None = None,
    stream_id: str | None = None,
    after: int = -1,
    next_position: int | None = None,
    whole: bool = True,
    elsewhere: Elsewhere | None = None,
) -> Transcript:
    """Return the transcript of entries in order of their position, those behind position `after`.

    `note` is a checkpoint that covers them, signed by `vkey`; without one every entry is `unanchored`. `stream_id` is
    the random id their headers must carry. `next_position` is where the stream goes on. `whole`: nothing was left out
    behind the last one on purpose.
    Raises: MalformedNote, BadSignature for a checkpoint that the log's key did not sign; BadPin.
    """
    checkpoint = None
    if note is not None and vkey is not None:
        key = log_key(vkey)
        checkpoint = open_checkpoint(note, [key], key.name)
    replayed = [_replayed(entry, unseal, checkpoint, stream_id) for entry in entries]
    gaps = [*_position_gaps(replayed, after, next_position if whole else None), *_closed_gaps(replayed, after)]
    holes, repeats = _recorders(replayed)
    if elsewhere is not None:
        certain = [hole for hole in holes if _unexplained(hole, elsewhere)]
        gaps.extend(certain)
        holes = [hole for hole in holes if hole not in certain]
    explained = all(one.integrity in _EXPLAINED for one in replayed)
    return Transcript(
        stream=stream,
        complete=whole and not gaps and explained and after < 0,
        gaps=tuple(gaps),
        seq_holes=tuple(holes),
        repeats=tuple(repeats),
        note=note,
        entries=tuple(replayed),
    )


def _replayed(entry: StoredEntry, unseal: Unseal, checkpoint: Checkpoint | None, stream_id: str | None) -> Replayed:
    state, because = Integrity.VERIFIED, None
    if entry.lost is not None:
        return _refused(entry, None, entry.lost[1], state=entry.lost[0])
    try:
        header = decode_header(entry.header)
        if stream_id is not None and header.stream != stream_id:
            return _refused(entry, header, "the header belongs to another stream")
        if checkpoint is None or entry.inclusion is None:
            state, because = Integrity.UNANCHORED, "no signed checkpoint covers it yet"
        else:
            included(entry.header, index=entry.index, inclusion=entry.inclusion, checkpoint=checkpoint)
    except MalformedHeader as error:
        return _refused(entry, None, f"the header is not what the log writes ({error.reason})")
    except BadProof:
        return _refused(entry, decode_header(entry.header), "the entry is not in the tree that was signed")
    unsealed = unseal(entry, header)
    parts = [_checked(entry, header, content) for content in unsealed.parts]
    # Content that is gone on purpose outweighs a missing anchor; damage outweighs both.
    worst = worst_integrity([state, *(part.state for part in parts)])
    reasons = [part.because for part in parts if part.state is worst and part.because]
    return Replayed(
        index=entry.index,
        header=header,
        parts=parts,
        facts=unsealed.facts,
        integrity=worst,
        because=reasons[0] if reasons else (because if worst is state else None),
        noncanonical=entry.noncanonical,
    )


def _refused(
    entry: StoredEntry, header: Header | None, because: str, *, state: Integrity = Integrity.ALTERED
) -> Replayed:
    """Nothing is shown of an entry that is not the one that was signed."""
    return Replayed(
        index=entry.index,
        header=header,
        parts=(),
        facts={},
        integrity=state,
        because=because,
        noncanonical=entry.noncanonical,
        named=entry.named,
    )


def _checked(entry: StoredEntry, header: Header, content: Content) -> Content:
    """Compare a part's stored bytes with the header before anything of it is shown."""
    if entry.ciphertexts is None or content.role is None:
        return content
    for part, ciphertext in zip(header.parts, entry.ciphertexts, strict=True):
        if part.role != content.role:
            continue
        if ciphertext is None:
            if content.state in (Integrity.ERASED, Integrity.EXPIRED):
                return content
            return _without(content, Integrity.MISSING, "the payload object is gone")
        if len(ciphertext) != part.length or sha256(ciphertext).digest() != part.sha256:
            return _without(content, Integrity.ALTERED, "the stored bytes have not the digest in the header")
        return content
    return _without(content, Integrity.ALTERED, "the header knows no such part")


def _without(content: Content, state: Integrity, because: str) -> Content:
    return Content(name=content.name, form=content.form, data_class=content.data_class, state=state, because=because)


def _position_gaps(entries: Sequence[Replayed], after: int, next_position: int | None) -> list[Gap]:
    gaps = []
    seen: set[int] = set()
    expected = after + 1
    for one in entries:
        if one.header is None:
            # Its place is not readable, but it is there: it stands where the next number should.
            expected += 1
            continue
        position = one.header.position
        if position > expected:
            gaps.append(Gap(kind="position", first=expected, last=position - 1))
        elif position in seen:
            gaps.append(Gap(kind="repeated", first=position, last=position))
        seen.add(position)
        expected = max(expected, position + 1)
    if next_position is not None and next_position > expected:
        gaps.append(Gap(kind="position", first=expected, last=next_position - 1))
    return gaps


def _closed_gaps(entries: Sequence[Replayed], after: int) -> list[Gap]:
    """Compare what `stream.closed` counts, the entries before it, with what is there; some count itself too."""
    if after >= 0:
        return []
    gaps = []
    for seen, one in enumerate(entries):
        if one.header is None or one.header.kind != Kind.STREAM_CLOSED:
            continue
        count = _count_in(one)
        if count is not None and count > seen + 1:
            gaps.append(Gap(kind="closed", first=seen, last=count - 1))
    return gaps


def _count_in(one: Replayed) -> int | None:
    body = next((part.data for part in one.parts if part.name == _BODY and part.data is not None), None)
    if body is None:
        return None
    try:
        count = msgspec.json.decode(body).get("count")
    except (msgspec.MsgspecError, AttributeError, UnicodeDecodeError, RecursionError):
        return None
    return count if isinstance(count, int) and not isinstance(count, bool) else None


def _recorders(entries: Sequence[Replayed]) -> tuple[list[Gap], list[Repeat]]:
    seen: dict[str, dict[int, list[str]]] = {}
    for one in entries:
        header = one.header
        if header is not None and header.recorder is not None and header.seq is not None:
            seen.setdefault(header.recorder, {}).setdefault(header.seq, []).append(header.id)
    holes: list[Gap] = []
    repeats: list[Repeat] = []
    for recorder, numbers in seen.items():
        ordered = sorted(numbers)
        for left, right in pairwise(ordered):
            if right > left + 1:
                holes.append(Gap(kind="recorder", first=left + 1, last=right - 1, recorder=recorder))
        repeats.extend(
            Repeat(recorder=recorder, seq=seq, entries=tuple(ids)) for seq, ids in numbers.items() if len(ids) > 1
        )
    return holes, repeats


def _unexplained(hole: Gap, elsewhere: Elsewhere) -> bool:
    return hole.recorder is not None and elsewhere(hole.recorder, hole.first, hole.last) < hole.last - hole.first + 1


# ── the contract's JSON (API.md §5) ──


def transcript_json(transcript: Transcript) -> dict[str, Any]:
    """Return the JSON of a transcript; bodies are `msgspec.Raw`, so encode it with msgspec."""
    return {
        "stream": transcript.stream,
        "complete": transcript.complete,
        "gaps": [_gap_json(gap) for gap in transcript.gaps],
        "seq_holes": [_gap_json(gap) for gap in transcript.seq_holes],
        "repeats": [
            {"recorder": one.recorder, "seq": one.seq, "entries": list(one.entries)} for one in transcript.repeats
        ],
        "checkpoint": None if transcript.note is None else transcript.note.decode(),
        "entries": [entry_json(one) for one in transcript.entries],
    }


def entry_json(one: Replayed) -> dict[str, Any]:
    """Return the JSON of one entry of a transcript."""
    made: dict[str, Any] = {"index": one.index, "integrity": one.integrity.value}
    if one.because:
        made["because"] = one.because
    if one.header is None and one.named is not None:
        made["id"] = one.named
    if one.header is not None:
        made |= {
            "id": one.header.id,
            "position": one.header.position,
            "kind": one.header.kind,
            "at": format_instant(one.header.at),
            "received": format_instant(one.header.received),
            "data_class": one.header.data_class,
        }
    made |= {name: one.facts[name] for name in _FACTS if one.facts.get(name)}
    if len(one.parts) == 1 and one.parts[0].name == _BODY:
        made |= _content_json(one.parts[0], noncanonical=one.noncanonical)
    elif one.parts:
        made["parts"] = [
            {
                "name": part.name,
                "data_class": part.data_class,
                "integrity": part.state.value,
                **({"because": part.because} if part.because else {}),
                **_content_json(part, noncanonical=one.noncanonical),
            }
            for part in one.parts
        ]
    return made


def _content_json(part: Content, *, noncanonical: bool) -> dict[str, Any]:
    if part.data is None:
        return {}
    if part.form == "blob":
        return {"blob": base64.b64encode(part.data).decode()}
    if noncanonical:
        return {"body_raw": base64.b64encode(part.data).decode()}
    return {_BODY: msgspec.Raw(part.data)}


def _gap_json(gap: Gap) -> dict[str, Any]:
    made: dict[str, Any] = {"kind": gap.kind, "from": gap.first, "to": gap.last}
    return made if gap.recorder is None else {**made, "recorder": gap.recorder}
