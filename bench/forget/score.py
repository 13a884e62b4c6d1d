"""What a claim is worth beside what the oracle found.

A false success is a claim that the bytes contradict: gone to a level at which something was still found, or absent by
the interface while the interface still gives it out. One of them, or one neighbour harmed, caps the whole score. An
eraser that does nothing and says so gets nothing and is not capped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

from bench.forget.erasers import Claim

Verdict = Literal[
    "erased, L3", "erased, L2, dated", "erased, L2", "erased, L1", "honestly not covered", "DAMAGE", "FALSE SUCCESS"
]
POINTS: Mapping[Verdict, float] = {
    "erased, L3": 1.0,
    "erased, L2, dated": 0.9,
    "erased, L2": 0.8,
    "erased, L1": 0.2,
    "honestly not covered": 0.0,
    "DAMAGE": 0.0,
    "FALSE SUCCESS": 0.0,
}
CAP = 25.0
"""The most that a run with one false success, or one neighbour harmed, may score of 100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was found of a person in one place: before, after, by interface, and what became of the neighbours."""

    before: int
    own: Sequence[Sequence[Any]]
    later: Sequence[Sequence[Any]]
    by_interface: int
    harmed: int
    joint_left: bool | None = None

    @property
    def own_hits(self) -> int:
        """Hits in the store's own files and answers."""
        return sum(int(hit[3]) for hit in self.own)

    @property
    def later_hits(self) -> int:
        """Hits in its logs."""
        return sum(int(hit[3]) for hit in self.later)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One place's line of the table."""

    place: str
    claim: Claim
    seen: Seen
    verdict: Verdict
    because: str


def judged(place: str, claim: Claim, seen: Seen) -> Result:
    """The verdict on a claim."""
    verdict, because = _verdict(claim, seen)
    return Result(place=place, claim=claim, seen=seen, verdict=verdict, because=because)


def _verdict(claim: Claim, seen: Seen) -> tuple[Verdict, str]:
    if seen.harmed:
        return "DAMAGE", f"{seen.harmed} records of others changed or gone"
    if claim.joint == "erased" and seen.joint_left:
        return "FALSE SUCCESS", "the text of two people is said to be gone and is there"
    if claim.outcome != "erased":
        return "honestly not covered", claim.note or claim.outcome
    level = claim.level or "L2"
    if seen.by_interface:
        return "FALSE SUCCESS", f"{seen.by_interface} records are still given out by the store"
    if level == "L1":
        return "erased, L1", f"{seen.own_hits} hits in its files"
    if seen.own_hits:
        return "FALSE SUCCESS", f"said {level}; {seen.own_hits} hits in its files"
    if level == "L3":
        if seen.later_hits:
            return "FALSE SUCCESS", f"said L3; {seen.later_hits} hits in its logs"
        return "erased, L3", "nothing found"
    if _is_date(claim.residual_until):
        return "erased, L2, dated", f"{seen.later_hits} hits in its logs, until {claim.residual_until}"
    return "erased, L2", f"{seen.later_hits} hits in its logs, no date"


def _is_date(text: str | None) -> bool:
    try:
        date.fromisoformat((text or "")[:10])
    except ValueError:
        return False
    return True


def total(results: Sequence[Result]) -> float:
    """The score of a run, of 100."""
    if not results:
        return 0.0
    mean = 100 * sum(POINTS[result.verdict] for result in results) / len(results)
    return min(mean, CAP) if any(result.verdict in {"FALSE SUCCESS", "DAMAGE"} for result in results) else mean
