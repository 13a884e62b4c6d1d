"""What a second look found beyond an approved plan, and whether it takes more than whoever approved it was shown.

Guarantees: a function of values. Additions of a class, store, rule and action that the plan has already need no new
approval; what others would lose by them does. Not here: what becomes of them (`erasure.planning`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from erasure.collateral import exceeds, was_shown
from erasure.plan import Plan, PlanCopy
from retention.decide import DESTRUCTIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Addendum:
    """What a second run of the selector found beyond an approved plan."""

    added: tuple[PlanCopy, ...]
    needs_approval: tuple[str, ...]
    """Why the additions are of another kind than what was approved; empty where they are not."""


class Approved(NamedTuple):
    """A line of an approved plan, as far as additions are measured by it."""

    copy_no: int
    kind: str
    ref: str
    artifact_id: int | None
    data_class: str
    store: str
    rule: str
    action: str
    collateral: Mapping[str, int] | None


_Shape = tuple[str, str, str, str]


class _Named(Protocol):
    """What tells a line of one person's plan from every other."""

    @property
    def kind(self) -> str: ...
    @property
    def ref(self) -> str: ...
    @property
    def artifact_id(self) -> int | None: ...


class Lookup:
    """Which lines there are: eight bytes for each that is an artifact."""

    def __init__(self, lines: Iterable[_Named]) -> None:
        self._artifacts = array("q")
        self._others: set[tuple[str, str]] = set()
        for line in lines:
            if line.artifact_id is None:
                self._others.add((line.kind, line.ref))
            else:
                self._artifacts.append(line.artifact_id)
        self._artifacts = array("q", sorted(self._artifacts))

    def has(self, line: _Named) -> bool:
        """Whether a line is among them."""
        if line.artifact_id is None:
            return (line.kind, line.ref) in self._others
        place = bisect_left(self._artifacts, line.artifact_id)
        return place < len(self._artifacts) and self._artifacts[place] == line.artifact_id


class _Seen:
    """Lines that were approved, each taken in once: what they are like, which they are, and what was shown of them."""

    def __init__(self, lines: Iterable[Approved | PlanCopy]) -> None:
        self.last = 0
        self.shapes: set[_Shape] = set()
        self._shown: dict[tuple[str, str], Mapping[str, int] | None] = {}
        self._lookup = Lookup(self._noted(lines))

    def _noted(self, lines: Iterable[Approved | PlanCopy]) -> Iterator[Approved | PlanCopy]:
        for line in lines:
            self.last = max(self.last, line.copy_no)
            self.shapes.add(_shape(line))
            if line.collateral is not None:
                self._shown[line.kind, line.ref] = was_shown(line.action, line.collateral)
            yield line

    def has(self, line: PlanCopy) -> bool:
        """Whether a line is among them."""
        return self._lookup.has(line)

    def shown(self, line: PlanCopy) -> Mapping[str, int] | None:
        """What others lose by a line, as it was shown."""
        return self._shown.get((line.kind, line.ref))


def _shape(line: Approved | PlanCopy) -> _Shape:
    return line.data_class, line.store, line.rule, line.action


def addendum(approved: Iterable[Approved | PlanCopy], fresh: Plan) -> Addendum:
    """The lines that an approved plan lacks. Additions of a class, store and rule already in it need no new approval.

    What others would lose has to be shown before it is approved, so that needs one. Source: DESIGN §7.
    """
    seen = _Seen(approved)
    added: list[PlanCopy] = []
    strange: set[str] = set()
    for line in fresh.copies:
        if not seen.has(line):
            added.append(line)
            if _shape(line) not in seen.shapes and line.action != "keep":
                strange.add(f"{line.data_class} in {line.store} by {line.rule}: {line.action}")
        if line.action in DESTRUCTIVE and exceeds(line.collateral, seen.shown(line)):
            strange.add(f"{line.data_class} in {line.store}: about others too, which was not shown")
    numbered = tuple(replace(line, copy_no=seen.last + place) for place, line in enumerate(added, start=1))
    return Addendum(added=numbered, needs_approval=tuple(sorted(strange)))
