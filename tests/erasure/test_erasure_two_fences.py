"""Two erasures of one person under way at once: whom both closed stays closed until both are called off."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from typing import Any

import pytest

from erasure.recover import heal
from tests.erasure.test_erasure_restored import copied, shipped

CCPA = {"regulation": "ccpa", "jurisdiction": "US-CA", "timezone": "America/Los_Angeles"}


def two(world: Any) -> tuple[str, str]:
    """One request under each regulation, both approved; neither is a duplicate of the other."""
    first, second = world.ask(), world.ask(**CCPA)
    for request in (first, second):
        world.plan(request)
    for request in (first, second):
        world.approve(request)
    return first, second


def notes(world: Any) -> list[str]:
    with sqlite3.connect(world.database_file) as db:
        return [key for (key,) in db.execute("SELECT id FROM note ORDER BY id")]


@pytest.mark.parametrize("cancelled", [0, 1])
def test_who_cancels_one_of_two_opens_nobody_whom_the_other_closed(world: Any, cancelled: int) -> None:
    # The first fence stood for both and went with its request: what came then was in no plan, and its names were gone.
    world.note("n1", "Ada wrote this")
    requests = two(world)
    world.note("n2", "and this came while both were waiting")
    world.desk.cancel(world.acting(), requests[cancelled], now=world.now)
    assert world.say("late words of Ada") == "suppressed"
    world.note("n3", "and this after one was cancelled")
    world.work()
    other = requests[1 - cancelled]
    assert world.state(other) == "completed"
    assert notes(world) == []
    assert len([state for state in world.copy_states(other).values() if state == "erased_physical"]) == 3


def test_who_cancels_both_opens_everybody_again(world: Any) -> None:
    world.note("n1", "Ada wrote this")
    requests = two(world)
    late = world.note("n2", "and this came while both were waiting")
    for request in requests:
        world.desk.cancel(world.acting(), request, now=world.now)
    assert world.say("words of Ada") == "stored"
    world.work()
    assert notes(world) == ["n1", "n2"]
    again = world.erase()
    assert late in world.copy_states(again)


def test_of_two_that_name_one_person_together_the_other_persons_are_opened(world: Any) -> None:
    bob = "user:bob_7"
    world.note("n1", "Ada wrote this")
    world.note("n2", "Bob wrote this", owner=bob)
    both, ada = world.ask("email:ada@example.org", bob), world.ask(**CCPA)
    for request in (both, ada):
        world.plan(request)
    for request in (both, ada):
        world.approve(request)
    late = world.note("n3", "Bob wrote this later", owner=bob)
    world.desk.cancel(world.acting(), both, now=world.now)
    assert world.say("words of Bob", subjects=[bob], stream="conv_2") == "stored"
    assert world.say("words of Ada") == "suppressed"
    world.work()
    assert world.state(ada) == "completed"
    assert notes(world) == ["n2", "n3"]
    assert late not in world.copy_states(ada)


@pytest.mark.parametrize("known", [True, False])
def test_a_restored_database_keeps_closed_whom_the_other_erasure_closed(world: Any, *, known: bool) -> None:
    database, kept = world.base / "data" / "muniment.db", world.base / "yesterday.db"
    world.note("n1", "Ada wrote this")
    if not known:
        shipped(world)
        copied(database, kept)
    first, second = two(world)
    if known:
        shipped(world)
        copied(database, kept)
    world.desk.cancel(world.acting(), first, now=world.now)
    shipped(world)
    world.services.database.engine.dispose()
    copied(kept, database)
    assert heal(replace(world.services.recovery, parts=world.parts), world.tenant, world.now) is not None
    assert world.say("late words of Ada") == "suppressed"
    world.work()
    assert world.state(second) == "completed"
    assert notes(world) == []
