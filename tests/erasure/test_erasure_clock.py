"""The legal clock of a request at the desk: pauses and an extension in either order."""

from __future__ import annotations

from datetime import timedelta
from typing import Any


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
