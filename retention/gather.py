"""Gathers what one pass of retention looks at, and makes its plan.

Guarantees: reads only. Everything past its date is looked at, batch by batch, until as much would end as one pass may
take; what an open run has already is left to it. What was made from something that ends is loaded level by level.
What is in quarantine, and all but a few items of a store that gave nothing up in the pass before, is looked at for the
sake of what was made from it, is counted, and takes no place of others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlmodel import Session

from registry.artifacts import by_numbers
from registry.classes import live_items
from registry.graph import children_of
from retention.decide import DESTRUCTIVE, decide
from retention.due import BATCH, every_due, schedules_in_force
from retention.events import ENDED
from retention.items import PART, Candidate, load_artifacts
from retention.quarantine import aside
from retention.schedule import Schedule
from retention.stops import Desk, Stops
from retention.sweep import Brakes, ClassCount, Instants, SweepItem, SweepPlan, brake_of, decided, is_due, plan_items

COUNTED = 1_000_000
"""How much is counted for a brake at the least before the count may end."""
AT_FAULT = "store_at_fault"
"""What keeps items past their date whose store is asked for a few of them only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """A pass's plan, and better dates of items that were found by an outdated one."""

    plan: SweepPlan
    moved: Mapping[int, datetime]


class Gathering:
    """One look at what is due at an instant, in one transaction."""

    def __init__(
        self, session: Session, tenant_id: int, desk: Desk, at: datetime, *, at_fault: Collection[str] = ()
    ) -> None:
        """`at_fault` are stores that gave nothing up in the pass before."""
        self._session = session
        self._tenant_id = tenant_id
        self._desk = desk
        self._at = at
        self._schedules: Mapping[str, Schedule] = schedules_in_force(session, tenant_id)
        self._stops: Stops = desk.stops(session, tenant_id, ())
        self._kept: Counter[str] = Counter()
        self._moved: dict[int, datetime] = {}
        self._waiting = 0
        self._at_fault = frozenset(at_fault)
        self._aside = {one.artifact_id or one.key_id for one in aside(session, tenant_id)}

    @property
    def stops(self) -> Stops:
        """What keeps items past their date, with holds as they were placed."""
        return self._stops

    def _stops_about(self, candidates: Iterable[Candidate]) -> Stops:
        """The same with those of the candidates that were made from what a hold names."""
        return self._desk.stops(
            self._session, self._tenant_id, [one.artifact_id for one in candidates if one.artifact_id is not None]
        )

    def run(
        self,
        sweep_id: str,
        brakes: Brakes,
        seen: Instants,
        *,
        now: datetime,
        batch: int = BATCH,
        also: Sequence[SweepItem] = (),
        by_hand: bool = False,
    ) -> Gathered:
        """The plan of a pass, made `now`, by a person if `by_hand`. It is capped when there is more than one may take.

        `seen` is what else says what time it is. `also` are keys that were found and decided elsewhere; they come last.
        """
        first, capped = self._first(brakes.cap, batch)
        every = self._with_derived(first)
        lines = plan_items(every, self._schedules, self._stops_about(every), self._at)
        found = self._served([line for line in lines if not self._is_aside(line)], brakes.probe)
        busy = self._desk.busy(self._session, self._tenant_id, (), [item.ref for item in also]) if also else frozenset()
        items = (*found, *(item for item in also if item.ref not in busy))
        counts = counts_of(self._session, self._tenant_id, items)
        # The brake is about what is due, not about what one pass takes of it: else a rule that empties a class passes
        # in pieces, by the cap or by the instants that a person gives.
        all_due = self._all_due(counts, brakes, max(self._at, now), batch) if capped or self._at < now else counts
        plan = SweepPlan(
            sweep_id=sweep_id,
            at=self._at,
            items=items,
            counts=counts,
            kept=dict(self._kept),
            waiting=self._waiting,
            capped=capped,
            brake=brake_of(all_due, brakes, seen, now=now, by_hand=by_hand),
            aside=tuple(line for line in lines if self._is_aside(line)),
        )
        return Gathered(plan=plan, moved=self._moved)

    def _first(self, cap: int, batch: int) -> tuple[list[Candidate], bool]:
        chosen: dict[str, Candidate] = {}
        beside: dict[str, Candidate] = {}
        for found in every_due(self._session, self._tenant_id, self._schedules, before=self._at, batch=batch):
            free = self._free(found, count=True)
            if not free:
                continue
            stops = self._stops_about(free)
            for one in free:
                schedule = self._schedules.get(one.data_class)
                rules = None if schedule is None else schedule.rules
                decision = decide(decided(one), rules, stops.holds, stops.restrictions, stops.claims, self._at)
                if is_due(decision):
                    # Beside the cap, so that what does not go is in nobody's way; as much of it, to stay in bounds.
                    waits = self._is_aside(one) or one.store in self._at_fault
                    if not waits or len(beside) < cap:
                        (beside if waits else chosen)[one.ref] = one
                    else:
                        self._kept[AT_FAULT] += 1
                    continue
                self._kept[decision.rule] += 1
                if one.artifact_id is not None and decision.until is not None and decision.until > self._at:
                    self._moved[one.artifact_id] = decision.until
            if len(chosen) >= cap:
                return [*list(chosen.values())[:cap], *beside.values()], True
        return [*chosen.values(), *beside.values()], False

    def _all_due(
        self, counts: Mapping[str, ClassCount], brakes: Brakes, until: datetime, batch: int
    ) -> Mapping[str, ClassCount]:
        """The counts of a pass with everything that is due by an instant, whoever takes it.

        Where a class is far over the brake's share it is counted no further: `ends` is then the least it can be.
        """
        if brakes.share >= 1:
            return counts
        ends: Counter[str] = Counter()
        live: dict[str, int] = {name: count.live for name, count in counts.items()}
        for found in every_due(self._session, self._tenant_id, self._schedules, before=until, batch=batch):
            free = self._free(found)
            stops = self._stops_about(free)
            for one in free:
                schedule = self._schedules.get(one.data_class)
                rules = None if schedule is None else schedule.rules
                decision = decide(decided(one), rules, stops.holds, stops.restrictions, stops.claims, until)
                if one.kind != PART and (decision.action in DESTRUCTIVE or (one.erase_by_hand and is_due(decision))):
                    ends[one.data_class] += 1
            for name in ends.keys() - live.keys():
                live[name] = live_items(self._session, self._tenant_id, name)
            if ends.total() >= COUNTED and any(ends[name] > brakes.share * live[name] for name in ends):
                break
        return {
            name: ClassCount(
                live=live[name],
                ends=max(ends[name], counts[name].ends if name in counts else 0),
                review=counts[name].review if name in counts else 0,
            )
            for name in sorted(live)
        }

    def _is_aside(self, one: Candidate | SweepItem) -> bool:
        """Whether it is in quarantine."""
        return bool(self._aside) and (one.artifact_id or one.key_id) in self._aside

    def _served(self, lines: Sequence[SweepItem], probe: int) -> list[SweepItem]:
        """The lines without what a store at fault is not asked for now."""
        asked: Counter[str] = Counter()
        found = []
        for line in lines:
            if line.ends and line.store in self._at_fault:
                asked[line.store] += 1
                if asked[line.store] > probe:
                    self._kept[AT_FAULT] += 1
                    continue
            found.append(line)
        return found

    def _free(self, candidates: Sequence[Candidate], *, count: bool = False) -> list[Candidate]:
        """Those that no open run has in its plan."""
        if not candidates:
            return []
        artifact_ids = [one.artifact_id for one in candidates if one.artifact_id is not None]
        key_ids = [one.key_id or one.ref for one in candidates if one.artifact_id is None]
        busy = self._desk.busy(self._session, self._tenant_id, artifact_ids, key_ids)
        self._waiting += len(busy) if count else 0
        return [one for one in candidates if one.artifact_id not in busy and (one.key_id or one.ref) not in busy]

    def _with_derived(self, first: Sequence[Candidate]) -> list[Candidate]:
        """The candidates and, level by level, what was made from those that end."""
        found = {one.ref: one for one in first}
        looked = {one.artifact_id for one in first if one.artifact_id is not None}
        frontier = set(looked)
        while frontier:
            made = children_of(self._session, self._tenant_id, frontier)
            children = {child for some in made.values() for child in some} - looked
            looked |= children
            rows = by_numbers(self._session, self._tenant_id, children).values()
            live = [row for row in rows if row.status not in ENDED]
            loaded = self._free(load_artifacts(self._session, self._tenant_id, live, self._schedules))
            found.update({one.ref: one for one in loaded})
            lines = plan_items(list(found.values()), self._schedules, self._stops_about(found.values()), self._at)
            ending = {line.artifact_id for line in lines if line.ends}
            frontier = {one.artifact_id for one in loaded if one.artifact_id is not None and one.artifact_id in ending}
        return list(found.values())


def counts_of(session: Session, tenant_id: int, items: Sequence[SweepItem]) -> dict[str, ClassCount]:
    """Per class: how much is live, how much would end, how much waits for a human.

    Parts with keys of their own count as one: what they were part of was counted when their data key went.
    """
    ends: Counter[str] = Counter(item.data_class for item in items if item.ends and item.kind != PART)
    ends.update({item.data_class for item in items if item.ends and item.kind == PART})
    review: Counter[str] = Counter(item.data_class for item in items if not item.ends)
    return {
        name: ClassCount(live=live_items(session, tenant_id, name), ends=ends[name], review=review[name])
        for name in sorted(ends.keys() | review.keys())
    }
