"""What a correction does to one copy: set its fields, ask a human, quarantine what an agent remembers, or nothing.

Guarantees: pure. A field is set only where the store can, the copy has it and, where the person said what is wrong,
reads so now. Whatever holds the wrong value in another form, or was made from a corrected copy, is given to a human;
a memory is quarantined until somebody confirms it. Source: GDPR Art. 5(1)(d), 16.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from erasure.request import CopyState

CORRECT, QUARANTINE, REVIEW = "correct", "quarantine", "review"
Corrections = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is to be done with a copy and where its line starts from; None in its place: the copy is not concerned."""

    action: str
    state: CopyState
    detail: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict, repr=False)


def judge(
    content: bytes, corrections: Corrections, *, is_memory: bool, can_set: bool, made_from_corrected: bool
) -> Verdict | None:
    """What the corrections do to a copy with this content."""
    values = values_for(content, corrections) if can_set else {}
    if values and not is_memory:
        return Verdict(action=CORRECT, state=CopyState.PENDING, values=values)
    holds = bool(values) or mentions(content, corrections)
    if is_memory and (holds or made_from_corrected or not _names_wrong(corrections)):
        return Verdict(action=QUARANTINE, state=CopyState.PENDING)
    if holds:
        return Verdict(action=REVIEW, state=CopyState.AWAITING_HUMAN, detail="holds what is wrong; no field can be set")
    if made_from_corrected:
        return Verdict(action=REVIEW, state=CopyState.AWAITING_HUMAN, detail="made from a copy that is corrected")
    return None


def values_for(content: bytes, corrections: Corrections) -> dict[str, Any]:
    """The fields of a row that are to be set: it has them, and they do not read as asked yet."""
    try:
        row = json.loads(content)
    except ValueError:
        return {}
    if not isinstance(row, Mapping):
        return {}
    found = {}
    for name, change in corrections.items():
        if name not in row or row[name] == change["to"]:
            continue
        if "from" not in change or _same(row[name], change["from"]):
            found[name] = change["to"]
    return found


def mentions(content: bytes, corrections: Corrections) -> bool:
    """Whether a value that the person calls wrong stands anywhere in the content, also as escaped JSON."""
    for change in corrections.values():
        wrong = change.get("from")
        if wrong is None or not str(wrong):
            continue
        forms = {str(wrong).encode(), json.dumps(str(wrong))[1:-1].encode()}
        if any(form in content for form in forms):
            return True
    return False


def _names_wrong(corrections: Corrections) -> bool:
    return all(change.get("from") is not None for change in corrections.values())


def _same(one: object, other: object) -> bool:
    return one == other or str(one) == str(other)
