"""The recruiting table and the classes of a support agent, ten simulated years, against a model with a calendar.

Every day is a pass. Holds, restrictions, erasure requests, access requests, events and consents come at random; every
item must end on the very day that the model names, which knows the table by heart and nothing of `retention`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from registry.declaration import parse_class
from retention.decide import Claim, Hold, Item, Restriction
from retention.items import Candidate
from retention.schedule import Schedule, schedule_of
from retention.stops import Stops
from retention.sweep import plan_items

T0 = datetime(2030, 1, 31, 9, tzinfo=UTC)
DAY = timedelta(days=1)
YEARS_10 = 3653
RECRUITING = Path(__file__).resolve().parents[2] / "examples" / "recruiting" / "classes.yaml"
_BASE = {"personal": True, "owner": "support", "description": "made up", "legal_basis": "contract"}
SUPPORT: dict[str, dict[str, Any]] = {
    "transcript": {
        **_BASE, "state": "conversation", "retention": {"keep": "P90D", "from": "created", "then": "erase"},
        "erasure": {"on_request": "erase", "required": "L2"},
    },
    "refund_decision": {
        **_BASE, "state": "conversation",
        "retention": {"keep": "P7Y", "from": "created", "then": "erase",
                      "floor": {"for": "P7Y", "basis": "tax law", "covers": "content"}},
        "erasure": {"on_request": "retain", "basis": "tax law", "until": "P7Y", "required": "L2"},
    },
    "voice": {
        **_BASE, "state": "conversation",
        "retention": {"keep": "P0D", "from": "consent", "latest": "P3Y", "then": "erase"},
        "erasure": {"on_request": "erase", "required": "L2"},
    },
    "complaint": {
        **_BASE, "state": "conversation",
        "retention": {"keep": "P6M", "from": "event:role.closed", "latest": "P18M", "then": "review",
                      "ceiling": {"for": "P24M", "basis": "notice to applicants"}},
        "erasure": {"on_request": "erase", "required": "L2"},
    },
    "agent_log": {
        **_BASE, "state": "conversation",
        "retention": {"keep": "P2Y", "from": "created", "then": "erase",
                      "floor": {"for": "P6M", "basis": "AI Act 26(6)", "covers": "skeleton"}},
        "erasure": {"on_request": "erase", "required": "L2"},
    },
}  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """A line of the table as a person would write it down: lengths in months and days.

    A ceiling stands where a person reviews: nobody does here, so that things end by it.
    """

    clock: str
    keep: tuple[int, int]
    latest: tuple[int, int] | None = None
    floor: tuple[int, int] | None = None
    ceiling: tuple[int, int] | None = None


TABLE = {
    "cv_prompt": Rule("step.returned", (0, 0), (0, 1)),
    "cv_file": Rule("role.closed", (6, 0), (18, 0)),
    "screening": Rule("role.closed", (6, 0), (18, 0)),
    "verdict": Rule("role.closed", (6, 0), (18, 0)),
    "invite": Rule("role.closed", (0, 0), (12, 0)),
    "earlier_applications": Rule("role.closed", (6, 0), (18, 0)),
    "overrides": Rule("rubric.changed", (0, 0), (24, 0)),
    "screening_record": Rule("created", (6, 0)),
    "transcript": Rule("created", (0, 90)),
    "refund_decision": Rule("created", (84, 0), floor=(84, 0)),
    "voice": Rule("consent", (0, 0), (36, 0)),
    "complaint": Rule("role.closed", (6, 0), (18, 0), ceiling=(24, 0)),
    "agent_log": Rule("created", (24, 0)),
}


@dataclass(frozen=True)
class Thing:
    """One item: when it came, whose it is, which role and rubric and step it belongs to."""

    number: int
    name: str
    born: int
    who: int
    keys: Mapping[str, str]


@dataclass
class Span:
    """Something that lasts from a day on: a hold, a restriction, a request."""

    start: int
    end: int
    who: int = 0
    name: str = ""
    key: str = ""


@dataclass
class World:
    """What happened, by day."""

    things: list[Thing]
    events: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    consents: list[Span] = field(default_factory=list)
    holds: list[Span] = field(default_factory=list)
    restrictions: list[Span] = field(default_factory=list)
    erasures: list[Span] = field(default_factory=list)
    exports: list[Span] = field(default_factory=list)


def later(at: datetime, length: tuple[int, int]) -> datetime:
    """The civil calendar, done by hand: the same day number, or the last day there is."""
    total = at.year * 12 + at.month - 1 + length[0]
    year, month = divmod(total, 12)
    for day in range(at.day, 0, -1):
        try:
            return at.replace(year=year, month=month + 1, day=day) + length[1] * DAY
        except ValueError:
            continue
    raise AssertionError


def on(day: int) -> datetime:
    return T0 + day * DAY


# ── the model ─────────────────────────────────────────────────────────────────────────────────────────────────────


def end_of(thing: Thing, world: World, day: int) -> datetime | None:
    """When the table ends it, as far as is known on that day."""
    rule = TABLE[thing.name]
    if rule.ceiling is not None:
        return later(on(thing.born), rule.ceiling)
    ends = [] if rule.latest is None else [later(on(thing.born), rule.latest)]
    if rule.clock == "created":
        ends.append(later(on(thing.born), rule.keep))
    elif rule.clock == "consent":
        mine = [one for one in world.consents if one.who == thing.who and one.start <= day]
        if mine and all(one.end <= day for one in mine):
            ends.append(later(on(max(one.end for one in mine)), rule.keep))
    else:
        happened = [
            when for key in thing.keys.values() for when in world.events.get((rule.clock, key), ()) if when <= day
        ]
        if happened:
            ends.append(later(on(max(happened)), rule.keep))
    return min(ends, default=None)


def held(thing: Thing, one: Span) -> bool:
    return (
        (one.who == thing.who and one.who > 0)
        or one.name == thing.name
        or (bool(one.key) and one.key in thing.keys.values())
    )


def goes(thing: Thing, world: World, day: int) -> bool:
    """Whether it goes on that day."""
    if any(one.start <= day < one.end and held(thing, one) for one in world.holds):
        return False
    asked = [one for one in world.erasures if one.who == thing.who and one.start <= day < one.end]
    for one in world.restrictions:
        if one.who == thing.who and one.start <= day < one.end and not any(ask.start > one.start for ask in asked):
            return False
    rule = TABLE[thing.name]
    floored = rule.floor is not None and on(day) < later(on(thing.born), rule.floor)
    if asked:
        return not floored
    end = end_of(thing, world, day)
    if end is None or end > on(day) or floored:
        return False
    return not any(one.who == thing.who and one.start <= day <= one.end for one in world.exports)


def model(world: World) -> dict[int, int]:
    """The day on which each thing goes."""
    gone: dict[int, int] = {}
    for thing in world.things:
        day = next((day for day in range(thing.born, YEARS_10) if goes(thing, world, day)), None)
        if day is not None:
            gone[thing.number] = day
    return gone


# ── the product ───────────────────────────────────────────────────────────────────────────────────────────────────


def schedules() -> dict[str, Schedule]:
    declared = {**yaml.safe_load(RECRUITING.read_text("utf-8")), **SUPPORT}
    assert set(declared) == set(TABLE)
    return {name: schedule_of(parse_class(name, spec)) for name, spec in declared.items()}


def stops_on(world: World, day: int) -> Stops:
    def of(spans: Iterable[Span]) -> list[tuple[int, Span]]:
        return [(number, one) for number, one in enumerate(spans) if one.start <= day < one.end]

    return Stops(
        holds=[
            Hold(
                f"hold {number}",
                frozenset({one.who} - {0}),
                frozenset({one.name} - {""}),
                frozenset({one.key} - {""}),
            )
            for number, one in of(world.holds)
        ],
        restrictions=[Restriction(f"req r{number}", one.who, on(one.start)) for number, one in of(world.restrictions)],
        claims=[
            *(
                Claim(f"req e{number}", "erasure", frozenset({one.who}), on(one.start), on(one.end))
                for number, one in of(world.erasures)
            ),
            *(
                Claim(f"req a{number}", "access", frozenset({one.who}), on(one.start), on(one.end))
                for number, one in enumerate(world.exports)
                if one.start <= day
            ),
        ],
    )


def candidate(thing: Thing, world: World, day: int) -> Candidate:
    rule = TABLE[thing.name]
    events: dict[str, datetime | None] = {}
    for key in thing.keys.values():
        happened = [when for when in world.events.get((rule.clock, key), ()) if when <= day]
        if happened:
            events[key] = on(max(happened))
    mine = [one for one in world.consents if one.who == thing.who and one.start <= day]
    ended = [one for one in mine if one.end <= day]
    until = on(max(one.end for one in ended)) if rule.clock == "consent" and mine and len(mine) == len(ended) else None
    people = frozenset({thing.who})
    item = Item(
        item_id=thing.number,
        data_class=thing.name,
        created=on(thing.born),
        subjects=people,
        own_subjects=people,
        consent_until=until,
        events=events,
        scopes=frozenset(thing.keys.values()),
    )
    return Candidate(
        kind="artifact",
        ref=f"art_{thing.number}",
        artifact_id=thing.number,
        data_class=thing.name,
        store="db",
        item=item,
    )


def product(world: World) -> dict[int, int]:
    """The day on which a pass ends each thing, a pass every day."""
    known, gone = schedules(), {}
    for day in range(YEARS_10):
        living = [candidate(one, world, day) for one in world.things if one.born <= day and one.number not in gone]
        for line in plan_items(living, known, stops_on(world, day), on(day)) if living else ():
            assert line.artifact_id is not None
            assert line.ends or TABLE[line.data_class].ceiling, "nobody is asked in vain"
            if line.ends:
                gone[line.artifact_id] = day
    return gone


def random_world(seed: int, count: int) -> World:
    chance = random.Random(seed)
    roles, rubrics = [f"role-{number}" for number in range(6)], ["rubric-1", "rubric-2"]
    world = World(things=[])
    for number in range(1, count + 1):
        name = chance.choice(sorted(TABLE))
        keys = {"role": chance.choice(roles), "rubric": chance.choice(rubrics), "step": f"step-{number}"}
        world.things.append(Thing(number, name, chance.randrange(2600), chance.randrange(1, 7), keys))
    for role in roles:
        world.events["role.closed", role] = sorted(chance.randrange(3400) for _ in range(chance.randrange(3)))
    for rubric in rubrics:
        world.events["rubric.changed", rubric] = sorted(chance.randrange(3400) for _ in range(3))
    for thing in world.things:
        if thing.name == "cv_prompt" and chance.random() < 0.8:
            world.events["step.returned", thing.keys["step"]] = [thing.born + chance.randrange(3)]

    def span(most: int, **more: Any) -> Span:
        start = chance.randrange(3400)
        return Span(start, start + chance.randrange(1, most), **more)

    for _ in range(8):
        world.consents.append(span(900, who=chance.randrange(1, 7)))
        world.restrictions.append(span(300, who=chance.randrange(1, 7)))
        world.exports.append(span(90, who=chance.randrange(1, 7)))
        world.erasures.append(span(60, who=chance.randrange(1, 7)))
    for kind in range(9):
        selector = {"who": chance.randrange(1, 7)} if kind % 3 == 0 else {"name": chance.choice(sorted(TABLE))}
        world.holds.append(span(400, **(selector if kind % 3 < 2 else {"key": chance.choice(roles)})))
    return world


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_every_item_ends_on_the_day_that_the_table_says(seed: int, full_length: bool) -> None:
    """Ten years, a pass every day: about ten seconds for all three worlds."""
    world = random_world(seed, 150 if full_length else 40)
    expected, found = model(world), product(world)
    assert found == expected
    assert len(found) > len(world.things) * 0.7, "most of them end within the ten years"
    late = sum(1 for thing in world.things if found.get(thing.number, 0) - thing.born > 400)
    assert late, "and some of them late"


def test_the_model_and_the_classes_speak_of_the_same_table() -> None:
    for name, one in schedules().items():
        rule = TABLE[name]
        assert one.rules.starts.removeprefix("event:") == rule.clock, name
        at = datetime(2031, 1, 31, 9, tzinfo=UTC)
        assert one.keep.add_to(at) == later(at, rule.keep), name
        assert (None if one.latest is None else one.latest.add_to(at)) == (
            None if rule.latest is None else later(at, rule.latest)
        ), name
