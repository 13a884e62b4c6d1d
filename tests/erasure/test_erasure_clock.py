"""The legal clock of a request at the desk: pauses and an extension in either order."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from erasure.errors import TooLate
from erasure.sweep_copies import Sweeps
from retention.sweep import Brakes


def test_a_pause_moves_the_second_date_as_well_whichever_comes_first(world: Any) -> None:
    # An extension after a pause of 100 days gave a date before the one it was to extend.
    desk, ann = world.desk, world.acting("ann")
    paused_first, extended_first = world.ask(), world.ask("user:bob_7")
    assert desk.extend(ann, extended_first, reason="many systems", now=world.now)["due_at"][:10] == "2026-09-01"
    for request in (paused_first, extended_first):
        desk.pause(ann, request, reason="identity", now=world.now)
    world.now += timedelta(days=100)
    assert desk.resume(ann, paused_first, now=world.now)["due_at"][:10] == "2026-10-09"
    dates = {
        desk.extend(ann, paused_first, reason="many systems", now=world.now)["due_at"],
        desk.resume(ann, extended_first, now=world.now)["due_at"],
    }
    assert dates == {"2026-12-10T22:59:59.999999Z"}
    # Between the first and the second date the clock can stand still again.
    world.now += timedelta(days=40)
    assert desk.pause(ann, paused_first, reason="clarification", now=world.now)["paused"]


def test_any_number_of_short_pauses_moves_a_date_by_the_days_they_last_together(world: Any) -> None:
    # Each of them was a day: a clerk could put an answer off for ever, a second at a time.
    desk, ann = world.desk, world.acting("ann")
    request, first = world.ask(), "2026-07-01"
    for hours, due in (
        (1, first),
        (12, first),
        (1, first),
        (9, first),
        (1, "2026-07-02"),
        (47, "2026-07-03"),
        (1, "2026-07-06"),
    ):
        desk.pause(ann, request, reason="identity", now=world.now)
        world.now += timedelta(hours=hours)
        assert desk.resume(ann, request, now=world.now)["due_at"][:10] == due


def test_retention_waits_for_an_export_whose_clock_stands_still_and_no_longer(world: Any) -> None:
    # It waited to the date from before the pause, and ended what the person had asked to see.
    desk, ann, sweeps = world.desk, world.acting("ann"), Sweeps(world.parts, brakes=Brakes())
    world.note("n1", "what Ada asks to see")
    world.now += timedelta(days=55)
    request = world.ask(right="access")
    desk.pause(ann, request, reason="clarification", now=world.now)
    world.now += timedelta(days=50)
    assert sweeps.start(ann, world.now)["counts"]["ends"] == 0
    desk.resume(ann, request, now=world.now)
    assert sweeps.start(ann, world.now)["counts"]["ends"] == 0
    world.now += timedelta(days=40)
    assert sweeps.start(ann, world.now)["counts"]["ends"] == 1


def test_a_clock_that_waits_for_an_identity_that_was_shown_says_so(world: Any) -> None:
    # Nobody works on a request that is paused: approved and forgotten, it was neither carried out nor named.
    desk, ann = world.desk, world.acting("ann")
    world.note("n1", "a note")
    spec = {"right": "erasure", "subjects": ["email:ada@example.org"], "regulation": "gdpr"}
    request = desk.create(ann, spec, world.now)["id"]
    assert "warnings" not in desk.pause(ann, request, reason="identity", now=world.now)
    [warning] = world.verify(request)["warnings"]
    assert (warning["code"], warning["request"]) == ("standing_still", request)
    assert "warnings" not in desk.resume(ann, request, now=world.now)
    assert "warnings" not in desk.pause(ann, request, reason="clarification", now=world.now)


@pytest.mark.parametrize(("late", "day"), [(False, "2027-01-29"), (True, None)])
def test_a_ccpa_date_is_extended_up_to_its_last_moment_where_the_person_is(
    world: Any, *, late: bool, day: str | None
) -> None:
    """45 days from 31 October 2026, over the end of summer time: to the end of 15 December in Los Angeles."""
    zone = ZoneInfo("America/Los_Angeles")
    world.now = datetime(2026, 10, 31, 23, 30, tzinfo=zone)
    request = world.ask(regulation="ccpa", jurisdiction="US-CA", timezone="America/Los_Angeles")
    world.now = datetime(2026, 12, 15, 23, 59, 59, tzinfo=zone) + timedelta(seconds=late)
    if day is None:
        with pytest.raises(TooLate, match="first date"):
            world.desk.extend(world.acting("ann"), request, reason="many systems", now=world.now)
        return
    due = world.desk.extend(world.acting("ann"), request, reason="many systems", now=world.now)["due_at"]
    assert datetime.fromisoformat(due).astimezone(zone).date().isoformat() == day
    [warning] = world.reader.get(world.acting(), request)["warnings"]
    assert "2026-12-15" in warning["detail"], "the day there, which was over in UTC"


def test_requests_are_found_by_the_date_that_they_show(world: Any) -> None:
    # An extended one was found by its first date, and listed with its second, which lies behind the one asked for.
    ann = world.acting("ann")
    plain, extended = world.ask(), world.ask("user:bob_7")
    due = datetime.fromisoformat(world.desk.extend(ann, extended, reason="many systems", now=world.now)["due_at"])
    found = [row["id"] for row in world.reader.requests(ann, due_before=due)]
    assert found == [plain]
    later = {row["id"] for row in world.reader.requests(ann, due_before=due + timedelta(seconds=1))}
    assert later == {plain, extended}
