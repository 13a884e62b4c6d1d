"""One pass of retention: what ends now, by which rule, and whether that is too much to happen without a person's word.

Guarantees: everything is decided by `retention.decide`. What was made from an item that ends is looked at in the same
pass, roots before leaves, so that a source's end reaches what derives from it at once. A pass that would remove
suspiciously much of a class, or whose clock jumped, waits for approval; one whose clock went back stops. Destroys
nothing and sends nothing: the plan is a value, `erasure.sweep_copies` executes it. Source: DESIGN §6 and §9.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal

import rfc8785

from registry.graph import ARTIFACT
from registry.keyed import IDENTITY_CLASS
from registry.lineage import depths
from retention.decide import DESTRUCTIVE, Decision, Item, SourceEnd, ceiling, decide
from retention.decide import ends_at as item_end
from retention.items import Candidate, Source
from retention.schedule import Schedule
from retention.stops import Stops

SCHEMA = "muniment-sweep/v1"
KEY_LEVEL = "key"
DEFAULT_LEVEL = "L2"
MAX_PATH = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Brakes:
    """When a pass waits for a person.

    When it would end more than `share` of a class's live items and at least `at_least` of them, or when the clock moved
    more than `jump` since the pass before. `cap` bounds one pass; the rest is the next one's. `probe` bounds it for a
    store that gave nothing up in the pass before. `apart` is how far this machine's clock may be from another one.
    """

    share: float = 0.2
    at_least: int = 50
    jump: timedelta = timedelta(days=7)
    cap: int = 50_000
    probe: int = 100
    apart: timedelta = timedelta(minutes=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepItem:
    """One item that ends, or waits for a human. `path` names what it was made from; leaves have the largest depth."""

    kind: Literal["artifact", "entry", "key"]
    ref: str
    artifact_id: int | None
    key_id: str | None
    data_class: str
    store: str
    decision: Decision
    path: tuple[str, ...]
    depth: int
    required: str
    by_hand: bool = False
    ceiling: datetime | None = None
    """When it ends whatever a human says, None where its class has no ceiling."""

    @property
    def ends(self) -> bool:
        """Whether the pass ends it without asking: destructive by rule, or decided by a human in a review."""
        return self.decision.action in DESTRUCTIVE or self.by_hand


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCount:
    """What a pass means for one class."""

    live: int
    ends: int = 0
    review: int = 0

    @property
    def share(self) -> float:
        """The part of the class's live items that would end."""
        return self.ends / self.live if self.live else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Brake:
    """Why a pass does not run by itself. `stop`: not even with an approval."""

    reason: Literal["share", "clock_jump", "clock_back", "clock_apart", "clock_was_ahead"]
    detail: str
    classes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    todo: str = ""

    @property
    def stops(self) -> bool:
        """Whether no approval can let the pass go on."""
        return self.reason in ("clock_back", "clock_apart")

    def as_json(self) -> dict[str, Any]:
        """The brake as rows, events and answers carry it."""
        return {"reason": self.reason, "detail": self.detail, "classes": dict(self.classes), "todo": self.todo}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """A frozen pass. `kept` counts what is past its date and stays, by the rule that keeps it.

    `aside` is in quarantine: past its date, named, and not sent.
    """

    sweep_id: str
    at: datetime
    items: tuple[SweepItem, ...]
    counts: Mapping[str, ClassCount]
    kept: Mapping[str, int]
    waiting: int
    capped: bool
    brake: Brake | None
    aside: tuple[SweepItem, ...] = ()

    @property
    def ending(self) -> tuple[SweepItem, ...]:
        """The items that the pass ends."""
        return tuple(item for item in self.items if item.ends)

    @property
    def reviews(self) -> tuple[SweepItem, ...]:
        """The items that wait for a human's word."""
        return tuple(item for item in self.items if not item.ends)

    @property
    def hash(self) -> str:
        """Hexadecimal SHA-256 over the RFC 8785 bytes: opaque ids, classes, stores and rules only."""
        lines: list[Any] = [
            [item.kind, item.ref, item.data_class, item.store, item.decision.action, item.decision.rule, item.by_hand]
            for item in self.items
        ]
        return hashlib.sha256(
            rfc8785.dumps({"schema": SCHEMA, "sweep": self.sweep_id, "at": self.at.isoformat(), "items": lines})
        ).hexdigest()


def decided(one: Candidate) -> Item:
    """The candidate's item with its sources as they stand in the database."""
    return replace(one.item, sources=tuple(SourceEnd(source.status, source.ends_at) for source in one.sources))


def is_due(decision: Decision) -> bool:
    """Whether something happens to the item now."""
    return decision.action in DESTRUCTIVE or decision.action == "review"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """A candidate as a pass decides it: with its sources as they stand in this pass."""

    one: Candidate
    item: Item
    decision: Decision
    depth: int

    @property
    def ends(self) -> bool:
        return self.decision.action in DESTRUCTIVE or self.by_hand

    @property
    def by_hand(self) -> bool:
        return self.one.erase_by_hand and self.decision.action == "review"


def plan_items(
    candidates: Iterable[Candidate], schedules: Mapping[str, Schedule], stops: Stops, now: datetime
) -> list[SweepItem]:
    """What happens to each candidate, roots first; leaves out what stays. Pure."""
    all_of_them = list(candidates)
    known = {one.artifact_id: one for one in all_of_them if one.artifact_id is not None}
    lines: list[SweepItem] = []
    for looked in _look(all_of_them, known, schedules, stops, now):
        if is_due(looked.decision):
            path = _path(looked.one, known) if looked.one.artifact_id is not None else ()
            lines.append(_line(looked, schedules.get(looked.one.data_class), path))
    return sorted(lines, key=lambda line: (line.kind == "key", -line.depth, line.store, line.ref))


def decision_about(
    one: Candidate, sources: Iterable[Candidate], schedules: Mapping[str, Schedule], stops: Stops, now: datetime
) -> Decision:
    """What a pass would say of one candidate, with everything it was made from, however far up. Pure."""
    known = {each.artifact_id: each for each in (*sources, one) if each.artifact_id is not None}
    everything = [*known.values()] if one.artifact_id is not None else [*known.values(), one]
    for looked in _look(everything, known, schedules, stops, now):
        if looked.one is one:
            return looked.decision
    raise AssertionError  # the candidate is among those looked at


def decisions_about(
    candidates: Iterable[Candidate], schedules: Mapping[str, Schedule], stops: Stops, now: datetime
) -> Iterator[tuple[Candidate, Decision]]:
    """What a pass would say of each, roots first; what a human said of it in a review counts as said. Pure."""
    all_of_them = list(candidates)
    known = {one.artifact_id: one for one in all_of_them if one.artifact_id is not None}
    for looked in _look(all_of_them, known, schedules, stops, now):
        yield looked.one, looked.decision._replace(action="erase") if looked.by_hand else looked.decision


def _look(
    candidates: Sequence[Candidate],
    known: Mapping[int, Candidate],
    schedules: Mapping[str, Schedule],
    stops: Stops,
    now: datetime,
) -> Iterator[_Looked]:
    """Decide each, roots before leaves, so that what becomes of a source is known when what it led to is looked at."""
    edges: dict[int, set[int]] = {}
    for number, one in known.items():
        for source in one.sources:
            if source.kind == ARTIFACT and source.number in known:
                edges.setdefault(source.number, set()).add(number)
    depth = depths(known, edges)
    ending: set[int] = set()
    ends: dict[int, datetime | None] = {}
    for number in sorted(known, key=lambda number: (depth[number], number)):
        one = known[number]
        schedule = schedules.get(one.data_class)
        # Retention lets a class with a basis of its own outlive what it was made from; a person's request does not.
        bound = frozenset() if schedule is not None and schedule.rules.may_outlive_source else ending
        item = replace(one.item, sources=tuple(_source_end(source, bound, ends) for source in one.sources))
        looked = _Looked(one=one, item=item, decision=_decision(one, item, schedule, stops, now), depth=depth[number])
        if schedule is not None:
            end = item_end(item, schedule.rules)
            # What a hold, a restriction, a floor or an open access request keeps past its date has not ended: what was
            # made from it goes with it, not before it.
            ends[number] = None if end is not None and end <= now and not looked.ends else end
        if looked.ends:
            ending.add(number)
        yield looked
    for one in candidates:
        if one.artifact_id is None:
            decision = _decision(one, one.item, schedules.get(one.data_class), stops, now)
            yield _Looked(one=one, item=one.item, decision=decision, depth=0)


def _source_end(source: Source, ending: AbstractSet[int], ends: Mapping[int, datetime | None]) -> SourceEnd:
    if source.kind != ARTIFACT:
        return SourceEnd(source.status, source.ends_at)
    # A source that this pass looked at has its end worked out. Any other is live as long as its row says so: it is past
    # no date, or a stop keeps it past its date, and then what was made from it stays as well.
    return SourceEnd(source.status, ends.get(source.number), source.number in ending)


def _decision(one: Candidate, item: Item, schedule: Schedule | None, stops: Stops, now: datetime) -> Decision:
    rules = None if schedule is None else schedule.rules
    decision = decide(item, rules, stops.holds, stops.restrictions, stops.claims, now)
    if one.kind != "artifact" and decision.action == "regenerate":
        # What was recorded is not made anew: a class that regenerates its copies still loses its record.
        return decision._replace(action="erase")
    return decision


def _line(looked: _Looked, schedule: Schedule | None, path: tuple[str, ...]) -> SweepItem:
    one = looked.one
    return SweepItem(
        kind=one.kind,
        ref=one.ref,
        artifact_id=one.artifact_id,
        key_id=one.key_id,
        data_class=one.data_class,
        store=one.store,
        decision=looked.decision,
        path=path,
        depth=looked.depth,
        required=KEY_LEVEL if one.kind != "artifact" else DEFAULT_LEVEL if schedule is None else schedule.required,
        by_hand=looked.by_hand,
        ceiling=None if schedule is None else ceiling(looked.item.created, schedule.rules),
    )


def _path(one: Candidate, known: Mapping[int, Candidate]) -> tuple[str, ...]:
    """Public ids from a root to the item's direct source, along first sources."""
    path: list[str] = []
    seen = {one.artifact_id}
    current: Candidate | None = one
    while current is not None and current.sources and len(path) < MAX_PATH:
        source = current.sources[0]
        if source.kind == ARTIFACT and source.number in seen:
            break
        path.append(source.name)
        seen.add(source.number)
        current = known.get(source.number) if source.kind == ARTIFACT else None
    return tuple(reversed(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Instants:
    """What else says what time it is: when the pass before was made, when the record's newest entry was received.

    `apart` is how far this machine's clock is ahead of one that others share; None where there is none.
    """

    last: datetime | None = None
    newest: datetime | None = None
    apart: timedelta | None = None


def clock_brake(brakes: Brakes, seen: Instants, *, now: datetime, by_hand: bool = False) -> Brake | None:
    """Why nothing can be decided by this clock; None where it agrees with what is known. Pure.

    A pass that a person began while a clock was ahead before waits for a second person instead of being stopped: else
    nothing would end until the wrong date has come.
    """
    if seen.apart is not None and abs(seen.apart) > brakes.apart:
        return Brake(
            reason="clock_apart",
            detail=f"this machine's clock is {abs(seen.apart).total_seconds():.0f} s "
            f"{'ahead of' if seen.apart > timedelta(0) else 'behind'} the one that is shared with other machines",
            todo="set this machine's clock (NTP), or the database's or store's if that one is wrong; until they agree "
            "no pass of this machine removes anything",
        )
    earlier = [
        f"{what} at {at.isoformat()}"
        for what, at, grace in (
            ("the pass before was", seen.last, timedelta(0)),
            ("the newest entry of the record was received", seen.newest, brakes.apart),
        )
        if at is not None and now < at - grace
    ]
    if not earlier:
        return None
    detail = f"the clock shows {now.isoformat()}, {' and '.join(earlier)}"
    if by_hand:
        return Brake(
            reason="clock_was_ahead",
            detail=detail,
            todo="compare the clock; if it is right now and was wrong before, a second person approves the run, and "
            "what was dated later is not counted on any more",
        )
    return Brake(
        reason="clock_back",
        detail=detail,
        todo="set the clock right; while it is behind, nothing is removed; if it is right and was ahead before, start "
        "a run by hand, which a second person approves",
    )


def brake_of(
    counts: Mapping[str, ClassCount], brakes: Brakes, seen: Instants, *, now: datetime, by_hand: bool = False
) -> Brake | None:
    """Why the pass must not run by itself; None where it may. Pure."""
    ending, last = sum(count.ends for count in counts.values()), seen.last
    wrong = clock_brake(brakes, seen, now=now, by_hand=by_hand)
    if wrong is not None:
        return wrong
    if last is not None and ending and now - last > brakes.jump:
        return Brake(
            reason="clock_jump",
            detail=f"the clock moved {(now - last).days} days since the pass before, at {last.isoformat()}",
            classes=_by_class(counts, lambda count: count.ends > 0),
            todo="compare the clock; if it is right (the service stood still), a second person approves the run",
        )
    # Names of people of whom nothing is left go with what ended before, which had its own brake.
    owned = {name: count for name, count in counts.items() if name != IDENTITY_CLASS}
    too_much = _by_class(owned, lambda count: count.ends >= brakes.at_least and count.share > brakes.share)
    if too_much:
        return Brake(
            reason="share",
            detail=f"more than {brakes.share:.0%} of the live items of {', '.join(sorted(too_much))} would end",
            classes=too_much,
            todo="look at the plan; if it is what was meant (a role closed, a rule was shortened), a second person "
            "approves the run",
        )
    return None


def _by_class(counts: Mapping[str, ClassCount], chosen: Callable[[ClassCount], bool]) -> dict[str, dict[str, int]]:
    return {name: {"ends": count.ends, "live": count.live} for name, count in sorted(counts.items()) if chosen(count)}
