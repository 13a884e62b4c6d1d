"""Two erasures of one person under way at once: whom both closed stays closed until both are called off."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from erasure import worker
from erasure.confirm import confirm
from erasure.recover import heal
from tests import schema
from tests.erasure.conftest import World
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


def test_a_late_copy_is_seen_gone_by_each_of_two_before_it_is_complete(world: Any) -> None:
    # It joined the request behind the fence alone: while nobody worked on that, the other said that all was gone.
    world.note("n1", "Ada wrote this")
    first, second = two(world)
    late = world.note("n2", "and this came while both were waiting")
    world.desk.pause(world.acting(), first, reason="clarification", now=world.now)
    world.work()
    assert (world.state(second), world.state(first)) == ("completed", "approved")
    assert world.copy_states(second)[late] == "erased_physical"
    assert notes(world) == []
    world.desk.resume(world.acting(), first, now=world.now)
    world.work()
    assert world.state(first) == "completed"


def test_a_late_copy_that_comes_with_the_last_look_keeps_the_other_request_open(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.note("n1", "Ada wrote this")
    _, second = two(world)
    seen: list[str] = []

    def arrives(*given: Any) -> Any:
        found = confirm(*given)
        if given[2] == second and not seen:
            seen.append(world.note("n2", "this came after everything had been looked at"))
        return found

    monkeypatch.setattr(worker, "confirm", arrives)
    world.work(1)
    assert world.state(second) == "completed"
    assert world.copy_states(second)[seen[0]] == "erased_physical"
    assert notes(world) == []


def test_a_late_copy_about_two_people_waits_in_the_erasures_of_both(world: Any) -> None:
    bob = "user:bob_7"
    world.note("n1", "Ada wrote this")
    world.note("n2", "Bob wrote this", owner=bob)
    requests = [world.ask(), world.ask(bob)]
    for request in requests:
        world.plan(request)
        world.approve(request)
    late = world.file("both.txt", "ada and bob", subjects=["email:ada@example.org", bob])
    world.work()
    assert [world.copy_states(request)[late] for request in requests] == ["awaiting_human"] * 2
    assert {world.state(request) for request in requests} == {"verifying"}


def observed(world: Any, name: str, **about: Any) -> str:
    (world.files / name).write_text(name)
    item = {"data_class": "summary", "store": "cvs", "locator": {"path": name}, "subjects": ["email:ada@example.org"]}
    return str(world.register({**item, **about})[0])


def test_a_limited_erasure_gets_what_came_late_for_it_when_a_whole_one_is_cancelled(world: Any) -> None:
    # The whole one had closed the person, so its mark stood on what was the limited one's; both marks went with it.
    old = observed(world, "old.txt")
    world.note("n1", "Ada wrote this")
    before = world.now.isoformat()
    limited = world.ask(scope={"data_classes": ["summary"]}, **CCPA)
    whole = world.ask()
    for request in (limited, whole):
        world.plan(request)
        world.approve(request)
    late = observed(world, "late.txt", observed_at=before)
    made = observed(world, "made.txt", sources=[late])
    new = observed(world, "new.txt")
    world.desk.cancel(world.acting(), whole, now=world.now)
    world.work()
    assert world.state(limited) == "completed"
    assert world.copy_states(limited) == dict.fromkeys((old, late, made), "erased_physical")
    assert [path.name for path in world.files.iterdir()] == ["new.txt"]
    assert notes(world) == ["n1"]
    assert new in world.copy_states(world.erase())


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.parametrize(
    "holds",
    [
        test_a_late_copy_is_seen_gone_by_each_of_two_before_it_is_complete,
        test_a_limited_erasure_gets_what_came_late_for_it_when_a_whole_one_is_cancelled,
    ],
)
def test_on_postgresql_too(
    holds: Callable[[World], None], make_postgres_database: Callable[..., str], tmp_path: Path
) -> None:
    world = World(tmp_path, make_postgres_database(schema.prepare))
    try:
        holds(world)
    finally:
        world.close()
