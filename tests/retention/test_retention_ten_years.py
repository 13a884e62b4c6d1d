"""The world of `test_retention_practice` through the whole product: ten years of registrations, events and requests.

Rows lie in a real store; holds, restrictions, access and erasure requests, consents and events are placed by the verbs
of the desk on their day; a pass and the worker run. Each row must be gone on the very day that the naive model names.
There is a pass on every day at full length; else on each day on which something happens and the day before each end.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from erasure.desk import Desk
from erasure.parts import Tenant
from erasure.planning import Planner
from erasure.reader import Reader
from erasure.sweep_copies import Sweeps
from erasure.worker import run_due
from retention.consenting import record_consent
from retention.sweep import Brakes
from tests.retention.conftest import House
from tests.retention.test_retention_practice import SUPPORT, YEARS_10, Span, Thing, World, goes, held, on, random_world

FIRST = datetime(2058, 1, 31, 9, tzinfo=UTC)
"""28 years after the world's first day: the calendar is the same, and locks lie beyond the machine's own date."""
PEOPLE = 6
SEED = 49
FOREVER = 2 * YEARS_10
MONTH = 30


def person(who: int) -> str:
    return f"email:person{who}@example.org"


def settled(world: World) -> World:
    """The world with requests as they really end: an erasure is for ever, and who comes after it is somebody new."""
    gone: dict[int, int] = {}
    erasures = []
    for one in sorted(world.erasures, key=lambda one: one.start):
        if one.who not in gone:
            gone[one.who] = one.start
            erasures.append(Span(one.start, FOREVER, one.who))

    def before(spans: list[Span]) -> list[Span]:
        return [one for one in spans if not one.who or one.start < gone.get(one.who, FOREVER)]

    things = [
        replace(one, who=one.who + PEOPLE) if one.born >= gone.get(one.who, FOREVER) else one for one in world.things
    ]
    return replace(
        world, things=things, erasures=erasures, consents=before(world.consents), holds=before(world.holds),
        restrictions=before(world.restrictions), exports=before(world.exports),
    )  # fmt: skip


class Years:
    """A house in which a world happens, day by day."""

    def __init__(self, house: House, world: World) -> None:
        self.house, self.world = house, world
        house.classes(SUPPORT)
        # Somebody of whom nothing is left loses the name, and would come back as somebody new.
        house.plain("member", retention={"keep": "P30Y", "from": "created", "then": "erase"})
        house.now = FIRST
        for who in range(1, 2 * PEOPLE + 1):
            house.note(f"member {who}", "member", owner=person(who))
        house.sweeps = Sweeps(house.parts, brakes=Brakes(jump=timedelta(days=10_000), share=1))
        self.desk = Desk(house.parts)
        self.tenant = Tenant(tenant_id=house.tenant_id, name="acme", log_id=house.log_id)
        self.month = -1
        self.open: dict[int, str] = {}
        self.gone: dict[int, int] = {}

    def day(self, day: int) -> None:
        """Everything of one day, then the pass and the worker."""
        self.house.now = FIRST + (on(day) - on(0))
        if day // MONTH != self.month:
            # What the service does each month: an old root that is gone lets final certificates out.
            self.month = day // MONTH
            self.house.services.keks.turn(self.house.now, force=True)
        self._told(day)
        self._ended(day)
        self._begun(day)
        for thing in self.world.things:
            if thing.born == day:
                self.house.note(str(thing.number), thing.name, owner=person(thing.who), scope=dict(thing.keys))
        self.house.sweep()
        self._work()
        there = self.house.rows()
        for thing in self.world.things:
            if thing.born <= day and thing.number not in self.gone and str(thing.number) not in there:
                self.gone[thing.number] = day

    def _told(self, day: int) -> None:
        """Events and consents."""
        for (name, key), days in self.world.events.items():
            if day in days:
                self.house.event(name, None, None, **{key.partition("-")[0]: key})
        for one in self.world.consents:
            if one.start == day:
                spec = {"subject": person(one.who), "data_classes": ["voice"], "words": "notice 3",
                        "until": (self.house.now + timedelta(days=one.end - day)).isoformat()}  # fmt: skip
                with self.house.transaction() as session:
                    record_consent(
                        session, self.house.services.vault, self.house.services.record, self.house.acting(), spec,
                        self.house.now,
                    )  # fmt: skip

    def _ended(self, day: int) -> None:
        """Holds are released, restrictions lifted after the person was told."""
        now, house = self.house.now, self.house
        erased = {one.who for one in self.world.erasures if one.start <= day}
        for one in self.world.holds:
            if one.end == day and id(one) in self.open:
                house.holds.release(house.acting("bea"), self.open[id(one)], preview=False, now=now)
        for one in self.world.restrictions:
            if one.end == day and one.who not in erased:
                request = self.open[id(one)]
                self.desk.notice(
                    house.acting(), request, kind="restriction_lifting", channel="post", sent_at=now, now=now
                )
                self.desk.lift(house.acting(), request, reason="verified", now=now)

    def _begun(self, day: int) -> None:
        now, house = self.house.now, self.house
        for one in self.world.holds:
            if one.start == day:
                # An item's key in the world is the value of its scope.
                selector: dict[str, Any] = (
                    {"subjects": [person(one.who)]} if one.who
                    else {"data_classes": [one.name]} if one.name
                    else {"scope": {one.key.partition("-")[0]: one.key}}
                )  # fmt: skip
                spec = {"name": "n", "matter": "m", "reason": "r", "selector": selector}
                self.open[id(one)] = house.holds.place(house.acting("ann"), spec, now)["id"]
        for right, spans in (
            ("access", self.world.exports), ("restriction", self.world.restrictions), ("erasure", self.world.erasures),
        ):  # fmt: skip
            for one in spans:
                if one.start == day:
                    self.open[id(one)] = self._request(right, one)

    def _request(self, right: str, one: Span) -> str:
        now, house = self.house.now, self.house
        spec = {"right": right, "subjects": [person(one.who)], "regulation": "gdpr", "jurisdiction": "DE-BY",
                "timezone": "Europe/Berlin"}  # fmt: skip
        made = self.desk.create(house.acting("ann"), spec, now)
        request = str(made["id"])
        self.desk.verify_identity(
            house.acting("ann"), request, identifier=person(one.who), method="m", evidence=None, now=now
        )
        if right == "access":
            # Nobody answers it: it is open until its date, which the calendar of requests says.
            due = datetime.fromisoformat(made["due_at"])
            one.end = one.start + (due - now) // timedelta(days=1)
            return request
        Planner(house.parts).plan(house.acting("ann"), request, now)
        plan_hash = Reader(house.parts).plan_view(house.acting(), request)["hash"]
        Planner(house.parts).approve(house.acting("carol"), request, plan_hash, now)
        self._work()
        return request

    def _work(self) -> None:
        """The worker, as long as there is something to do."""
        for _ in range(5):
            if not run_due(self.house.parts, self.tenant, self.house.now):
                return


def expected(world: World) -> dict[int, int]:
    """The day on which each thing goes, by the model; of the calendar it knows the dates of access requests only."""

    def end(thing: Thing) -> int | None:
        return next((day for day in range(thing.born, YEARS_10) if goes(thing, world, day)), None)

    return {thing.number: day for thing in world.things if (day := end(thing)) is not None}


def days_of(world: World) -> list[int]:
    """Every day on which something happens, or may go, or must not go yet."""
    found = {thing.born for thing in world.things} | {day for days in world.events.values() for day in days}
    for spans in (world.consents, world.holds, world.restrictions, world.erasures, world.exports):
        found |= {day for one in spans for day in (one.start, one.end)}
    for day in expected(world).values():
        found |= {day - 1, day}
    return sorted(day for day in found if 0 <= day < YEARS_10)


def lived(house: House, world: World, *, every: int = YEARS_10) -> Years:
    years, looks = Years(house, world), range(0, YEARS_10, every)
    days = sorted({*days_of(world), *looks})
    while days:
        day = days[0]
        years.day(day)
        if any(one.start == day for one in world.exports):
            days = sorted({*days_of(world), *looks})  # its date is known now
        days = [later for later in days if later > day]
    return years


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("house", ["sqlite"], indirect=True)
def test_ten_years_in_the_database_end_everything_on_its_day(house: Any, full_length: bool) -> None:
    years = lived(house, settled(random_world(11, 60)), every=1 if full_length else YEARS_10)
    assert years.gone == expected(years.world)
    assert len(years.gone) > 40


@pytest.mark.parametrize("house", ["sqlite"], indirect=True)
def test_a_few_items_of_ten_years_end_on_their_day_in_the_database(house: Any) -> None:
    world = settled(random_world(SEED, 3))
    keys = {key for thing in world.things for key in thing.keys.values()}
    people = {thing.who for thing in world.things}
    world = replace(
        world,
        events={(name, key): days for (name, key), days in world.events.items() if key in keys},
        consents=[one for one in world.consents if one.who in people][:1],
        exports=[one for one in world.exports if one.who in people][:1],
        restrictions=[one for one in world.restrictions if one.who in people][:1],
        erasures=[one for one in world.erasures if one.who in people][:1],
        holds=[one for one in world.holds if any(held(thing, one) for thing in world.things)][:1],
    )
    years = lived(house, world)
    assert years.gone == expected(world)
    assert len(years.gone) == 3
