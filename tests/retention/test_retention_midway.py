"""A pass under way: holds that come while it sends, items that break in it, and what it must find of one person."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from io import StringIO
from typing import Any, Self

import pytest

from api import telemetry
from api.jobs import Jobs
from api.sweeping import register_sweeps
from erasure.desk import Desk
from erasure.planning import Planner
from erasure.reader import Reader
from erasure.sweep_copies import Sweeps
from retention.decide import decide
from retention.due import every_due, schedules_in_force
from retention.sweep import Brakes, decided, is_due

ADA = "email:ada@example.org"
BOB = "email:bob@example.org"
CAROL = "email:carol@example.org"
pytestmark = pytest.mark.parametrize("house", ["sqlite"], indirect=True)


class Between:
    """A connector that lets something happen the first time it is asked to erase, before it does."""

    def __init__(self, inner: Any, happens: Callable[[], None]) -> None:
        self._inner, self._happens = inner, happens

    def erase(self, items: Sequence[Any], **more: Any) -> Any:
        self._happens()
        return self._inner.erase(items, **more)

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._inner.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def interrupted(house: Any, happens: Callable[[], None]) -> None:
    """From now on, something happens while the first deletion is on its way to its store."""
    connect, waiting = house.parts.connect, [happens]
    house.parts = replace(
        house.parts,
        connect=lambda store, read_only: Between(
            connect(store, read_only), lambda: waiting.pop()() if waiting else None
        ),
    )
    house.sweeps = Sweeps(house.parts, brakes=Brakes(jump=timedelta(days=10_000)))


def test_a_hold_that_comes_while_a_pass_sends_wins_and_names_what_was_sent(house: Any) -> None:
    house.plain("note")
    first = house.note("first", "note")
    made = house.note("made", "note", sources=[first])
    house.note("others", "note", BOB)
    house.now += timedelta(days=100)
    placed: list[dict[str, Any]] = []
    spec = {"name": "n", "matter": "m", "reason": "r", "selector": {"subjects": [ADA]}}
    interrupted(house, lambda: placed.append(house.holds.place(house.acting(), spec, house.now)))
    run = house.sweep()
    assert [hold["too_late"] for hold in placed] == [[made]], "leaves go first, and this one was on its way"
    assert house.rows() == {"first"}
    assert run["counts"]["retained"] == 1


def test_one_bad_item_fails_and_is_told_and_the_rest_of_its_batch_ends(house: Any) -> None:
    house.plain("note")
    ids = {key: house.note(key, "note") for key in "abc"}
    with sqlite3.connect(house.file) as db:
        db.execute("CREATE TRIGGER bad BEFORE DELETE ON note WHEN old.id = 'b' BEGIN SELECT RAISE(ABORT, 'no'); END")
    house.now += timedelta(days=100)
    run = house.sweeps.start(house.acting(), house.now)
    for _ in range(8):
        house.sweeps.run_due(house.tenant_id, house.now)
        house.now += timedelta(minutes=30)
    assert house.rows() == {"b"}
    report = house.sweeps.report(house.acting(), run["id"])
    assert report["state"] == "completed"
    assert report["failed"] == [ids["b"]]
    assert report["counts"]["removed"] == 2
    with sqlite3.connect(house.file) as db:
        db.execute("DROP TRIGGER bad")
    house.now += timedelta(hours=2)
    house.sweep()
    assert house.rows() == set()


@pytest.mark.scenario("E2")
def test_a_class_of_which_nothing_ends_pass_after_pass_is_named_aloud_although_others_end(house: Any) -> None:
    for name in ("stuck", "note"):
        house.plain(name)
    house.note("b", "stuck")
    for key in "1234":
        house.note(key, "note")
        house.now += timedelta(hours=2)
    with sqlite3.connect(house.file) as db:
        db.execute("CREATE TRIGGER bad BEFORE DELETE ON note WHEN old.id = 'b' BEGIN SELECT RAISE(ABORT, 'no'); END")
    house.parts = replace(house.parts, max_attempts=1)
    log = StringIO()
    told = telemetry.build(stream=log)
    jobs = Jobs(house.services.database, house.services.clock, told)
    register_sweeps(jobs, lambda: house.parts, lambda: [house.acting()], leads=lambda: True, log=told.log)
    start, work = jobs._jobs["retention"].run, jobs._works[-1]
    house.now += timedelta(days=90) - timedelta(hours=8)
    alarms = []
    for _ in range(4):
        start(house.now)
        work(house.now)
        alarms.append([json.loads(line) for line in log.getvalue().splitlines() if "retention alarm" in line][-1:])
        house.now += timedelta(hours=2)
    told.close()
    assert house.rows() == {"b"}, "the others ended, one in each pass"
    said = [(one["level"], "stuck (" in one["alarm"], "next run tries again" in one["alarm"]) for [one] in alarms]
    assert said == [("error", False, True)] * 2 + [("error", True, False)] * 2
    assert "stuck (4 passes)" in alarms[-1][0]["alarm"]


@pytest.mark.scenario("E9")
@pytest.mark.parametrize("by", ["artifacts", "entries"])
def test_a_hold_on_an_item_goes_with_its_copies(house: Any, by: str) -> None:
    house.plain("note")
    house.plain("talk", state="record")
    house.plain("brief", retention={"keep": "P10D", "from": "created", "then": "erase"})
    first = house.note("first", "note") if by == "artifacts" else house.say("chat", "I live in Lima", "talk")
    spec = {"name": "n", "matter": "m", "reason": "r", "selector": {by: [first]}}
    early = house.note("early", "brief", sources=[first if by == "artifacts" else f"entry:{first}"])
    placed = house.holds.place(house.acting("ann"), spec, house.now)
    assert placed["items"] == (2 if by == "artifacts" else 1)
    house.note("copy of copy", "brief", sources=[early])
    house.note("other", "brief")
    house.now += timedelta(days=20)
    assert house.sweep()["kept"] == {"hold": 2}
    assert house.rows() == {"first", "early", "copy of copy"} - (set() if by == "artifacts" else {"first"})
    preview = house.holds.release(house.acting("bea"), placed["id"], preview=True, now=house.now)
    assert preview["due"] == 2
    house.holds.release(house.acting("bea"), placed["id"], preview=False, now=house.now)
    house.now += timedelta(hours=1)
    house.sweep()
    assert not house.rows() & {"early", "copy of copy"}


def due_of(house: Any, at: datetime) -> set[str]:
    """What a pass would end at that time."""
    found = set()
    with house.transaction(write=False) as session:
        schedules = schedules_in_force(session, house.tenant_id)
        for batch in every_due(session, house.tenant_id, schedules, before=at):
            for one in batch:
                rules = schedules[one.data_class].rules
                if is_due(decide(decided(one), rules, (), (), (), at)):
                    found.add(one.ref)
    return found


@pytest.mark.scenario("E7")
def test_whatever_an_erasure_of_a_person_plans_a_pass_finds_when_its_time_is_over(house: Any) -> None:
    waits = {"from": "event:case.closed", "latest": "P2Y", "keep": "P1M", "then": "erase"}
    house.plain("note")
    house.plain("case", retention=waits)
    house.plain("spoken", state="record")
    house.plain("told", state="record", retention=waits)
    house.plain("voice", retention={**waits, "from": "consent"})
    house.plain("seen", retention={"keep": "P3M", "from": "last_activity", "latest": "P1Y", "then": "review"})
    sources = [house.note(name, name, scope={"role": "r"}) for name in ("note", "case", "voice", "seen")]
    house.note("made", "note", BOB, sources=sources)
    house.note("of an entry", "case", BOB, sources=[f"entry:{house.say('chat', 'I live in Lima', 'spoken')}"])
    house.say("chat", "and I moved", "told")
    house.note("others", "note", BOB)
    desk = Desk(house.parts)
    spec = {"right": "erasure", "subjects": [ADA], "regulation": "gdpr", "jurisdiction": "DE-BY",
            "timezone": "Europe/Berlin"}  # fmt: skip
    request = str(desk.create(house.acting("ann"), spec, house.now)["id"])
    desk.verify_identity(house.acting("ann"), request, identifier=ADA, method="m", evidence=None, now=house.now)
    Planner(house.parts).plan(house.acting("ann"), request, house.now)
    copies = Reader(house.parts).copies(house.acting(), request)
    planned = {str(copy.get("artifact") or copy.get("key")): copy["data_class"] for copy in copies}
    found = due_of(house, house.now + timedelta(days=800))
    left = sorted(name for ref, name in planned.items() if ref not in found)
    assert left == ["identity"], "names go by themselves, when nothing is left of their person (`erasure.departed`)"
    assert sorted(set(planned.values())) == sorted({"identity", "note", "case", "spoken", "told", "voice", "seen"})
    assert not planned.keys() & due_of(house, house.now)


def test_a_pass_takes_no_more_than_its_cap_says_so_and_the_next_one_goes_on(house: Any) -> None:
    house.plain("note")
    for number in range(7):
        house.note(str(number), "note")
    house.now += timedelta(days=100)
    house.sweeps = Sweeps(house.parts, brakes=Brakes(jump=timedelta(days=10_000), share=1, cap=3))
    found = []
    for _ in range(3):
        run = house.sweep()
        found.append((run["counts"]["removed"], run["capped"], len(house.rows())))
        house.now += timedelta(hours=1)
    assert found == [(3, True, 4), (3, True, 1), (1, False, 0)]
