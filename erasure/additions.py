"""What a second look found beyond an approved plan, and whether it takes more than whoever approved it was shown.

Guarantees: a function of values. Additions of a class, store, rule and action that the plan has already need no new
approval; what others would lose by them does. Not here: what becomes of them (`erasure.planning`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from erasure.plan import Plan, PlanCopy
from retention.decide import DESTRUCTIVE


def exceeds(found: Mapping[str, int] | None, shown: Mapping[str, int] | None) -> bool:
    """Whether an erasure would take more of others than what was shown to whoever approved it."""
    return any(count > (shown or {}).get(name, 0) for name, count in (found or {}).items())


def was_shown(copy_action: str, collateral: Mapping[str, int] | None) -> Mapping[str, int] | None:
    """What others lose by the approved plan: nothing by a copy that it kept, however many that copy is about."""
    return collateral if copy_action in DESTRUCTIVE else None


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
    data_class: str
    store: str
    rule: str
    action: str
    collateral: Mapping[str, int] | None


def addendum(approved: Iterable[Approved | PlanCopy], fresh: Plan) -> Addendum:
    """The lines that an approved plan lacks. Additions of a class, store and rule already in it need no new approval.

    What others would lose has to be shown before it is approved, so that needs one. Source: DESIGN §7.
    """
    lines = list(approved)
    known = {(line.kind, line.ref): line for line in lines}
    shapes = {(line.data_class, line.store, line.rule, line.action) for line in lines}
    added = [line for line in fresh.copies if (line.kind, line.ref) not in known]
    strange = sorted(
        {
            f"{line.data_class} in {line.store} by {line.rule}: {line.action}"
            for line in added
            if (line.data_class, line.store, line.rule, line.action) not in shapes and line.action != "keep"
        }
        | {
            f"{line.data_class} in {line.store}: about others too, which was not shown"
            for line in fresh.copies
            if line.action in DESTRUCTIVE and exceeds(line.collateral, _shown_of(known.get((line.kind, line.ref))))
        }
    )
    first = max((line.copy_no for line in lines), default=0) + 1
    numbered = tuple(replace(line, copy_no=first + place) for place, line in enumerate(added))
    return Addendum(added=numbered, needs_approval=tuple(strange))


def _shown_of(line: Approved | PlanCopy | None) -> Mapping[str, int] | None:
    return None if line is None else was_shown(line.action, line.collateral)
