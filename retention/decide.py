"""The one decision by which anything is kept or destroyed: by sweep, request, connector or cascade.

Guarantees: a function of values and `now`; no clock, no I/O, no parsing. A legal hold beats everything. What is kept
against a wish to remove it is kept with its rule and, where there is one, its end. Nothing is removed without a rule
that says so. Not decided here: who may ask, whether a plan was approved, and to which level bytes must go.

The order (DESIGN §6), first match wins:

1. `hold`: keep, no end date.
2. `restriction` in force (GDPR Art. 18): restrict, until the same person's later erasure request.
3. `floor` of content, or `exemption` (Art. 17(3)) from a request: restrict, dated.
4. `request` for erasure: the class's rule for the person's own items, the derived rule for what was made from them.
5. `access_pending`: retention waits for the export of an open access request, at most to its due date, which is none
   while the request's clock stands still.
6. `item_expiry`: the item's own end, given or by the decay of confidence in it.
7. `class_retention`: the class's clock.
8. `source_end`: what a source's end triggers in what was derived from it.
9. `none`: no rule at all, which is an error of the inventory and never a deletion.

A floor says «keep» only when something would remove the item; until then the item's own clock is the answer. Among
retentions the longest wins, among deletions the shortest.

A ceiling is the age at which an item ends whatever its clock, a review or an extension says: part of step 7, so that a
hold, a restriction, a duty and a person's open request for a copy still keep it. An exemption ends with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, Protocol

from registry.memories import faded_at

Action = Literal["keep", "restrict", "erase", "regenerate", "review"]
Rule = Literal[
    "hold",
    "restriction",
    "floor",
    "exemption",
    "request",
    "access_pending",
    "item_expiry",
    "class_retention",
    "source_end",
    "none",
]
DESTRUCTIVE: frozenset[Action] = frozenset({"erase", "regenerate"})
"""Actions that end the bytes of an item."""
_EXPORTS = frozenset({"access", "portability"})
_ENDED = frozenset({"erased", "erasing"})


class Period(Protocol):
    """A calendar duration such as `P6M`; `registry.duration.Duration` is one."""

    def add_to(self, instant: datetime) -> datetime:
        """Return the instant that much later in the civil calendar."""
        ...


class Because(NamedTuple):
    """One rule that was looked at and what it said. `detail` holds names of classes, rules and ids only."""

    rule: Rule
    result: str
    detail: str


class SourceEnd(NamedTuple):
    """A source of a derived item: how it stands now and when it will end, None where it has no end."""

    status: str
    ends_at: datetime | None
    in_plan: bool = False
    """Whether the plan that asks would end this source as well."""


class Hold(NamedTuple):
    """A legal stop. Selectors are alternatives; empty ones select nothing."""

    hold_id: str
    subjects: frozenset[int] = frozenset()
    data_classes: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    artifacts: frozenset[int] = frozenset()
    entries: frozenset[int] = frozenset()
    """Entries of the record, by their places in the log."""


class Restriction(NamedTuple):
    """A person's right to have data stored and nothing else (GDPR Art. 18). None in a selector means «all»."""

    request_id: str
    subject: int
    since: datetime
    data_classes: frozenset[str] | None = None
    scopes: frozenset[str] | None = None


class Claim(NamedTuple):
    """An open rights request as far as items are concerned. None in a selector means «all»."""

    request_id: str
    right: str
    subjects: frozenset[int]
    at: datetime
    due_at: datetime | None
    """None while its clock stands still: the date moves on with every day of that."""
    data_classes: frozenset[str] | None = None
    scopes: frozenset[str] | None = None
    artifacts: frozenset[int] | None = None
    roots: frozenset[int] = frozenset()
    """Those of the artifacts that were named: they are the person's own, whoever they were made from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a data class in force says. `exempt_for` counts from an item's start, `exempt_until` is a fixed instant."""

    name: str
    keep: Period | None
    starts: str
    latest: Period | None = None
    then: Literal["erase", "review"] = "erase"
    floor_for: Period | None = None
    floor_basis: str | None = None
    floor_covers: Literal["content", "skeleton"] = "content"
    ceiling_for: Period | None = None
    ceiling_basis: str | None = None
    on_request: Literal["erase", "regenerate", "retain"] = "erase"
    exempt_basis: str | None = None
    exempt_for: Period | None = None
    exempt_until: datetime | None = None
    derived: Literal["cascade", "regenerate", "keep_if_other_sources", "review"] = "cascade"
    may_outlive_source: bool = False
    half_life: timedelta | None = None
    expire_below: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One artifact, part or key as the decision sees it. `own_subjects` are those it did not merely inherit."""

    item_id: int
    data_class: str
    created: datetime
    subjects: frozenset[int] = frozenset()
    own_subjects: frozenset[int] = frozenset()
    observed: datetime | None = None
    last_activity: datetime | None = None
    consent_until: datetime | None = None
    events: Mapping[str, datetime | None] = field(default_factory=dict)
    expires_at: datetime | None = None
    scopes: frozenset[str] = frozenset()
    sources: tuple[SourceEnd, ...] = ()
    entry: int | None = None
    """The place in the log of the entry that a part of the record belongs to."""
    kept_until: datetime | None = None
    """A disposition that extended the item by hand."""
    confidence: float | None = None
    confirmed: datetime | None = None


class Decision(NamedTuple):
    """What to do with an item, by which rule, until when (None: no end, or at once), and every rule looked at."""

    action: Action
    rule: Rule
    until: datetime | None
    because: tuple[Because, ...]


def decide(  # noqa: PLR0917 - the order of the design; called for every item, so no keyword overhead
    item: Item,
    rules: Rules | None,
    holds: Sequence[Hold],
    restrictions: Sequence[Restriction],
    requests: Sequence[Claim],
    now: datetime,
) -> Decision:
    """What happens to the item now. See the module for the order. Source: DESIGN §6, GDPR Art. 17(3) and 18."""
    for hold in holds:
        if _is_held(item, hold):
            return Decision("keep", "hold", None, (Because("hold", "keep", hold.hold_id),))
    erasures = [claim for claim in requests if claim.right == "erasure" and concerns(claim, item)]
    for restriction in restrictions:
        if _is_restricted(item, restriction) and not _is_lifted_by_erasure(restriction, erasures):
            return Decision(
                "restrict", "restriction", None, (Because("restriction", "restrict", restriction.request_id),)
            )
    if rules is None:
        return Decision("keep", "none", None, (Because("none", "inventory_error", item.data_class),))
    wanted = _wanted(item, rules, erasures, requests, now)
    if wanted.action in DESTRUCTIVE or wanted.action == "review":
        return _protected(item, rules, wanted, now) or wanted
    return wanted


def class_end(item: Item, rules: Rules) -> datetime | None:
    """When the class's clock ends for this item; None while it has not started and nothing caps it.

    A clock from an event, activity or consent that never comes ends `latest` after creation. Several keys of an event
    end at the last of them.
    """
    if rules.keep is None:
        return None
    start = _start(item, rules)
    end = None if start is None else rules.keep.add_to(start)
    if rules.latest is not None:
        cap = rules.latest.add_to(item.created)
        end = cap if end is None else min(end, cap)
    if end is not None and item.kept_until is not None:
        end = max(end, item.kept_until)
    most = ceiling(item.created, rules)
    if most is not None:
        end = most if end is None else min(end, most)
    return end


def ceiling(created: datetime, rules: Rules) -> datetime | None:
    """The instant that no clock, review or extension moves; None where the class has no ceiling."""
    return None if rules.ceiling_for is None else rules.ceiling_for.add_to(created)


def own_end(item: Item, rules: Rules) -> datetime | None:
    """The item's own end: the date it was given, or the instant at which confidence in it fades away; the earlier."""
    if rules.half_life is None or item.confidence is None:
        return item.expires_at
    since = item.observed or item.created
    since = since if item.confirmed is None else max(since, item.confirmed)
    faded = faded_at(item.confidence, since, rules.half_life, rules.expire_below)
    return min((end for end in (item.expires_at, faded) if end is not None), default=None)


def ends_at(item: Item, rules: Rules) -> datetime | None:
    """The earliest end by expiry, class and sources: the hint that sweeps look up, never a decision."""
    ends = [own_end(item, rules), class_end(item, rules)]
    if rules.derived == "cascade" and not rules.may_outlive_source:
        ends.extend(source.ends_at for source in item.sources)
    return min((end for end in ends if end is not None), default=None)


def _is_held(item: Item, hold: Hold) -> bool:
    return (
        item.item_id in hold.artifacts
        or item.entry in hold.entries
        or item.data_class in hold.data_classes
        or not hold.subjects.isdisjoint(item.subjects)
        or not hold.scopes.isdisjoint(item.scopes)
    )


def concerns(claim: Claim, item: Item) -> bool:
    """Whether the request asks for this item: one of its persons, and within the request's classes and scopes."""
    return (
        not claim.subjects.isdisjoint(item.subjects)
        and (claim.data_classes is None or item.data_class in claim.data_classes)
        and (claim.scopes is None or not claim.scopes.isdisjoint(item.scopes))
        and (claim.artifacts is None or item.item_id in claim.artifacts)
    )


def _is_restricted(item: Item, restriction: Restriction) -> bool:
    return (
        restriction.subject in item.subjects
        and (restriction.data_classes is None or item.data_class in restriction.data_classes)
        and (restriction.scopes is None or not restriction.scopes.isdisjoint(item.scopes))
    )


def _is_lifted_by_erasure(restriction: Restriction, erasures: Sequence[Claim]) -> bool:
    return any(restriction.subject in claim.subjects and claim.at > restriction.since for claim in erasures)


def _start(item: Item, rules: Rules) -> datetime | None:
    match rules.starts:
        case "created":
            return item.created
        case "observed":
            return item.observed or item.created
        case "last_activity":
            return item.last_activity or item.created
        case "consent":
            return item.consent_until
        case _:
            happened = list(item.events.values())
            known = [at for at in happened if at is not None]
            return max(known) if known and len(known) == len(happened) else None


def _wanted(item: Item, rules: Rules, erasures: Sequence[Claim], requests: Sequence[Claim], now: datetime) -> Decision:
    """What the rules ask for before a floor or an exemption is heard: steps 4 to 9."""
    if erasures:
        return _by_request(item, rules, erasures[0])
    end = class_end(item, rules)
    due = _due(item, rules, end, now)
    if due is None:
        return _not_due(item, rules, end)
    for claim in requests:
        is_open = claim.right in _EXPORTS and (claim.due_at is None or now <= claim.due_at)
        if is_open and concerns(claim, item):
            return Decision(
                "keep",
                "access_pending",
                claim.due_at,
                (Because("access_pending", "keep", claim.request_id), *due.because),
            )
    return due


def _by_request(item: Item, rules: Rules, claim: Claim) -> Decision:
    own = not claim.subjects.isdisjoint(item.own_subjects) or not item.sources or item.item_id in claim.roots
    if not own:
        action, detail = _derived_action(item, rules)
        return Decision(action, "request", None, (Because("request", action, f"{claim.request_id} derived:{detail}"),))
    action = "regenerate" if rules.on_request == "regenerate" else "erase"
    return Decision(action, "request", None, (Because("request", action, claim.request_id),))


def _due(item: Item, rules: Rules, end: datetime | None, now: datetime) -> Decision | None:
    """The retention rule whose time has come: the ceiling, own expiry, the class, a source; None when none has."""
    most = ceiling(item.created, rules)
    if most is not None and most <= now:
        return Decision("erase", "class_retention", most, (Because("class_retention", "erase", _ceiling_named(rules)),))
    own = own_end(item, rules)
    if own is not None and own <= now and (item.kept_until is None or item.kept_until <= now):
        return _ended(rules, "item_expiry", own)
    if end is not None and end <= now:
        return _ended(rules, "class_retention", end)
    return _by_source(item, rules, now)


def _ended(rules: Rules, rule: Rule, at: datetime) -> Decision:
    action: Action = "review" if rules.then == "review" else "erase"
    return Decision(action, rule, at, (Because(rule, action, rules.name),))


def _by_source(item: Item, rules: Rules, now: datetime) -> Decision | None:
    if not item.sources or (rules.may_outlive_source and not any(source.in_plan for source in item.sources)):
        return None
    if not any(_has_ended(source, now) for source in item.sources):
        return None
    action, detail = _derived_action(item, rules, now)
    if action == "keep":
        return None
    return Decision(action, "source_end", None, (Because("source_end", action, detail),))


def _derived_action(item: Item, rules: Rules, now: datetime | None = None) -> tuple[Action, str]:
    match rules.derived:
        case "cascade":
            return "erase", "cascade"
        case "regenerate":
            return "regenerate", "regenerate"
        case "review":
            return "review", "review"
        case _:
            others = sum(not _has_ended(source, now) for source in item.sources)
            return ("keep", f"keep_if_other_sources:{others}") if others else ("erase", "keep_if_other_sources:0")


def _has_ended(source: SourceEnd, now: datetime | None) -> bool:
    if source.in_plan or source.status in _ENDED:
        return True
    return now is not None and source.ends_at is not None and source.ends_at <= now


def _not_due(item: Item, rules: Rules, end: datetime | None) -> Decision:
    until = ends_at(item, rules)
    if until is None and end is None and rules.keep is None:
        return Decision("keep", "none", None, (Because("none", "inventory_error", item.data_class),))
    rule: Rule = "class_retention"
    if until is not None and until != end:
        rule = "item_expiry" if until == own_end(item, rules) else "source_end"
    cut = rule == "class_retention" and until is not None and until == ceiling(item.created, rules)
    return Decision("keep", rule, until, (Because(rule, "keep", _ceiling_named(rules) if cut else rules.name),))


def _ceiling_named(rules: Rules) -> str:
    return f"{rules.name} ceiling: {rules.ceiling_basis}"


def _protected(item: Item, rules: Rules, wanted: Decision, now: datetime) -> Decision | None:
    """A floor of content or an exemption that keeps what `wanted` would remove; the later end wins."""
    found: list[tuple[datetime, Rule, str]] = []
    if rules.floor_for is not None and rules.floor_covers == "content":
        until = rules.floor_for.add_to(item.created)
        if now < until:
            found.append((until, "floor", rules.floor_basis or ""))
    if wanted.rule == "request" and rules.on_request == "retain":
        until = _exempt_until(item, rules)
        if now < until:
            found.append((until, "exemption", rules.exempt_basis or ""))
    if not found:
        return None
    until, rule, basis = max(found)
    return Decision("restrict", rule, until, (Because(rule, "restrict", basis), *wanted.because))


def kept_until(created: datetime, rules: Rules) -> datetime | None:
    """Until when a duty keeps an item of that age although its person wants it gone; None where no duty does."""
    ends = []
    if rules.floor_for is not None and rules.floor_covers == "content":
        ends.append(rules.floor_for.add_to(created))
    if rules.on_request == "retain":
        ends.append(_exempt_until(Item(item_id=0, data_class=rules.name, created=created), rules))
    return max(ends, default=None)


def _exempt_until(item: Item, rules: Rules) -> datetime:
    ends = [
        *([] if rules.exempt_until is None else [rules.exempt_until]),
        *([] if rules.exempt_for is None else [rules.exempt_for.add_to(_start(item, rules) or item.created)]),
    ]
    until = max(ends, default=item.created)
    most = ceiling(item.created, rules)
    return until if most is None else min(until, most)
