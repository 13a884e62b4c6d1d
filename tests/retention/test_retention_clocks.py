"""A machine whose clock is wrong removes nothing and says so, whether it is ahead, behind, or was ahead before."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from io import StringIO
from typing import Any

import pytest
from sqlmodel import select

from api import telemetry
from api.clock import Clock
from api.clock_check import apart, register_clock_check
from api.jobs import Jobs
from erasure.sweep_copies import Sweeps
from registry.acting import Acting
from registry.declared import put_stream
from retention.models import EventRow
from retention.sweep import Brakes

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


def machine(house: Any, ahead: timedelta) -> Clock:
    """The clock of another machine: as far ahead of the right time as said."""
    return Clock(house.services.clock.offset, machine=lambda: datetime.now(UTC) + ahead)


def system(house: Any) -> Acting:
    return Acting.system(tenant_id=house.tenant_id, tenant="acme", log_id=house.log_id)


@pytest.mark.parametrize("house", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
@pytest.mark.parametrize("ahead", [10 * MINUTE, 3 * DAY, -10 * MINUTE])
def test_of_two_machines_only_the_one_whose_clock_agrees_with_the_database_removes(
    house: Any, ahead: timedelta
) -> None:
    """Three days ahead is less than the jump that asks for a word: it removed what had three days left."""
    house.plain("note")
    house.note("a", "note")
    house.now += 100 * DAY
    wrong, right = machine(house, ahead), machine(house, timedelta(0))
    runs = {}
    for name, clock in (("wrong", wrong), ("right", right)):
        parts = replace(house.parts, apart=partial(apart, house.services.database, clock, None))
        sweeps = Sweeps(parts, brakes=Brakes(jump=timedelta(days=10_000)))
        runs[name] = sweeps.start(system(house), house.now)
        sweeps.run_due(house.tenant_id, house.now)
        assert house.rows() == ({"a"} if name == "wrong" else set())
    assert (runs["wrong"]["state"], runs["wrong"]["brake"]["reason"]) == ("stopped", "clock_apart")
    assert "NTP" in runs["wrong"]["brake"]["todo"]
    assert runs["right"]["brake"] is None


@pytest.mark.parametrize("house", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_each_process_names_its_own_wrong_clock_as_long_as_it_is_wrong(house: Any) -> None:
    log = StringIO()
    told = telemetry.build(stream=log)
    database = house.services.database
    for ahead in (timedelta(0), -5 * MINUTE):
        jobs = Jobs(database, house.services.clock, told)
        clock = machine(house, ahead)
        register_clock_check(jobs, partial(apart, database, clock, None), told)
        assert jobs.tick("clock")
    [line] = [json.loads(line) for line in log.getvalue().splitlines()]
    assert (line["event"], line["level"]) == ("the clock is wrong", "error")
    assert -301 < line["seconds_ahead"] < -200, "what the answer took counts for nobody"
    assert line["todo"]
    assert "muniment_clock_apart" in told.metrics_page()[0].decode()
    told.close()


@pytest.mark.parametrize("house", ["sqlite"], indirect=True)
def test_one_machine_alone_has_no_other_clock_and_one_that_does_not_answer_is_none(house: Any) -> None:
    clock = machine(house, 3 * DAY)
    assert apart(house.services.database, clock, None) is None
    assert apart(house.services.database, clock, "http://127.0.0.1:1") is None


@pytest.mark.parametrize("house", ["sqlite"], indirect=True)
def test_a_clock_that_was_set_back_while_nothing_ran_is_seen_by_the_newest_entry(house: Any) -> None:
    house.plain("note")
    house.note("a", "note")
    house.now += 100 * DAY
    house.say("chat", "something")
    house.now -= 5 * DAY
    run = house.sweeps.start(system(house), house.now)
    assert (run["state"], run["brake"]["reason"]) == ("stopped", "clock_back")
    assert "newest entry of the record" in run["brake"]["detail"]
    assert house.rows() == {"a"}


@pytest.mark.parametrize("house", ["sqlite"], indirect=True)
def test_a_wrong_clock_ends_no_session(house: Any) -> None:
    """Sessions were ended, and their clocks started, before the pass looked at its own clock."""
    house.plain("chat", session={"idle": "PT1H", "resume_within": "P1D", "expire": "P4D"})
    house.plain("scratch", retention={"keep": "P1D", "from": "event:session.expired", "latest": "P1Y", "then": "erase"})
    with house.transaction() as session:
        put_stream(session, house.services.vault, house.acting(), {"stream": "one", "data_class": "chat"}, house.now)
    house.sweeps = Sweeps(replace(house.parts, apart=lambda: 5 * DAY), brakes=Brakes())
    house.sweeps.start(system(house), house.now + 5 * DAY)
    assert events(house) == 0
    house.sweeps = Sweeps(replace(house.parts, apart=lambda: timedelta(0)), brakes=Brakes())
    house.sweeps.start(system(house), house.now + 6 * DAY)
    assert events(house) > 0


def events(house: Any) -> int:
    with house.transaction(write=False) as session:
        return len(session.exec(select(EventRow)).all())


@pytest.mark.parametrize("house", ["sqlite"], indirect=True)
def test_after_a_clock_was_years_ahead_a_second_person_lets_passes_go_on(house: Any) -> None:
    """Nothing would have ended until the wrong date had come."""
    house.plain("note")
    house.note("a", "note")
    right = house.now
    sweeps = Sweeps(house.parts, brakes=Brakes(jump=timedelta(days=10_000), share=1))
    for _ in range(2):
        house.now += 5_000 * DAY
        house.note(f"later {house.now:%Y}", "note")
        sweeps.start(system(house), house.now)
    house.say("chat", "from the future")
    house.now = right + 100 * DAY
    assert sweeps.start(system(house), house.now)["state"] == "stopped"
    asked = sweeps.start(house.acting("ann"), house.now)
    assert (asked["state"], asked["brake"]["reason"]) == ("awaiting_approval", "clock_was_ahead")
    sweeps.approve(house.acting("bea"), asked["id"], house.now)
    sweeps.run_due(house.tenant_id, house.now)
    assert "a" not in house.rows()
    house.note("b", "note")
    for hours in (1, 2):
        house.say("chat", "right again")
        run = sweeps.start(system(house), house.now + timedelta(hours=hours))
        assert run["brake"] is None
    back = sweeps.start(system(house), house.now)
    assert back["brake"]["reason"] == "clock_back", "what came after the approval counts"
