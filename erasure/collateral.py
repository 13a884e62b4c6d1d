"""What others would lose by a line of a plan: how many they are, and a number that stands for who they are.

Guarantees: functions of values. As many others as were shown, but not the same ones, are more than was shown: whoever
approves or releases a copy decides about the people in it, not about their number. The number is of one database: it
says nobody's name, and goes into no view, no document and no plan's hash. It stands for all of them together, so that
fewer others, and people who were merged since, are asked about anew too: it cannot be told from it that no stranger is
among them. It is kept of artifacts and of single parts of the record; keys of the record, whose parts may be about many
circles of others, are compared by how many parts and people there are. Not here: what becomes of a copy of which more
was found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from retention.decide import DESTRUCTIVE

WHOM = "whom"
"""Under which name a row keeps the number. Rows from before it are compared by their counts alone."""
_UNUSED_BITS = 11
"""Of 64: a JSON number holds 53 exactly (RFC 8785)."""


def of_others(others: Iterable[int]) -> dict[str, int] | None:
    """What these other people would lose by one item; None where there are none."""
    named = sorted(set(others))
    return {"subjects": len(named), WHOM: _number_of(named)} if named else None


def _number_of(people: Iterable[int]) -> int:
    digest = hashlib.blake2b(b"".join(number.to_bytes(8, "big", signed=True) for number in people), digest_size=8)
    return int.from_bytes(digest.digest(), "big") >> _UNUSED_BITS


def exceeds(found: Mapping[str, int] | None, shown: Mapping[str, int] | None) -> bool:
    """Whether more of others, or of other people, is concerned than what was shown to whoever approved it."""
    found, shown = found or {}, shown or {}
    if any(count > shown.get(name, 0) for name, count in found.items() if name != WHOM):
        return True
    return WHOM in found and WHOM in shown and found[WHOM] != shown[WHOM]


def was_shown(copy_action: str, collateral: Mapping[str, int] | None) -> Mapping[str, int] | None:
    """What others lose by the approved plan: nothing by a copy that it kept, however many that copy is about."""
    return collateral if copy_action in DESTRUCTIVE else None


def view_of(collateral: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The counts alone, as views and documents say them."""
    return None if collateral is None else {name: count for name, count in collateral.items() if name != WHOM}
