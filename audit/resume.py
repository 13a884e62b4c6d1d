"""What an agent needs to go on with an exchange elsewhere: the messages that are retained, as they were said.

Guarantees: pure; nothing is taken that replay does not prove, and whatever is left out is named with its reason, so
that an agent never takes a gap for silence. A summary stands in for what it covers only while all of it can still be
read: one that was made from words since erased may hold them. No run is resumed from this: that needs a checkpoint.
Source: DESIGN §5, practice of lost conversations with a provider.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from audit.findings import Integrity
from audit.replay import Content, Replayed, Transcript, entry_json
from ledger.entry import Kind

ROLES: Mapping[str, str] = {
    Kind.TURN_SYSTEM: "system",
    Kind.TURN_USER: "user",
    Kind.TURN_ASSISTANT: "assistant",
    Kind.TOOL_CALL: "assistant",
    Kind.TOOL_RESULT: "tool",
}
"""The kinds of entries that are messages, and who speaks in each."""
_GONE = frozenset({Integrity.ERASED, Integrity.EXPIRED, Integrity.WITHHELD})


def messages_of(transcript: Transcript) -> dict[str, Any]:
    """The newest sound summary, the messages after what it covers, and what had to be left out.

    `complete` is false where anything that was said is missing from it. Bodies are `msgspec.Raw`.
    """
    by_id = {one.header.id: one for one in transcript.entries if one.header is not None}
    summary, covered = _summary(transcript.entries, by_id)
    messages: list[dict[str, Any]] = []
    left_out: list[dict[str, Any]] = []
    for one in transcript.entries:
        if one.header is None:
            left_out.append(_left(one))
            continue
        if one.header.kind not in ROLES or one.header.id in covered:
            continue
        if _sound(one):
            messages.append({"role": ROLES[one.header.kind], **entry_json(one)})
        if one.integrity is not Integrity.VERIFIED or any(part.state is not Integrity.VERIFIED for part in one.parts):
            left_out.append(_left(one))
    return {
        "stream": transcript.stream,
        "complete": transcript.complete and not left_out,
        "summary": None if summary is None else entry_json(summary),
        "messages": messages,
        "left_out": left_out,
    }


def _sound(one: Replayed) -> bool:
    """Whether something of it can be read, and nothing of it is damaged."""
    if one.integrity is Integrity.VERIFIED:
        return True
    states = [part.state for part in one.parts]
    return Integrity.VERIFIED in states and all(state in _GONE or state is Integrity.VERIFIED for state in states)


def _summary(entries: Sequence[Replayed], by_id: Mapping[str, Replayed]) -> tuple[Replayed | None, frozenset[str]]:
    """The last summary whose every covered entry stands in this transcript, proven and readable."""
    for one in reversed(entries):
        if one.header is None or one.header.kind != Kind.SUMMARY or one.integrity is not Integrity.VERIFIED:
            continue
        covered = _covers(one.parts)
        if covered and all(name in by_id and by_id[name].integrity is Integrity.VERIFIED for name in covered):
            return one, frozenset(covered)
    return None, frozenset()


def _covers(parts: Sequence[Content]) -> list[str]:
    """The entries that a summary says it covers; empty for one that says so in no way we can check."""
    data = parts[0].data if len(parts) == 1 else None
    if data is None:
        return []
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return []
    covers = body.get("covers") if isinstance(body, dict) else None
    if not isinstance(covers, list) or not all(isinstance(name, str) for name in covers):
        return []
    return [name.removeprefix("entry:") for name in covers]


def _left(one: Replayed) -> dict[str, Any]:
    """Which entry is missing or not whole, and why; without its content."""
    made: dict[str, Any] = {"index": one.index, "integrity": one.integrity.value}
    if one.because:
        made["because"] = one.because
    if one.header is not None:
        made |= {"id": one.header.id, "position": one.header.position, "kind": one.header.kind}
    parts = [
        {"name": part.name, "integrity": part.state.value} for part in one.parts if part.state is not Integrity.VERIFIED
    ]
    return made | ({"parts": parts} if parts else {})
