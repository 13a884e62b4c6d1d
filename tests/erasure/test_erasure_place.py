"""An absence in the wrong place: a store whose address leads where nothing of what is registered lies."""

from __future__ import annotations

import json
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from connectors.memory import Faults, MemoryStore
from erasure.errors import ReportNotReady
from erasure.place import DOUBTED, FIRST_LOOK
from erasure.request import CopyState
from tests.erasure.conftest import BOB, World
from tests.erasure.test_erasure_keeping import hold, sweep
from tests.erasure.test_erasure_stores_apart import break_off

ADAS = "Ada wrote to us that she moves to the Blackthorn Row, house %d"


def empty_database(world: World) -> Path:
    """A database with the same tables, and nothing in them."""
    path = world.base / "stores" / "empty.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE note (id TEXT PRIMARY KEY, owner TEXT, text TEXT)")
    return path


def point(world: World, database: Path) -> None:
    world.now += timedelta(minutes=1)
    world.store("db", "sql", {"url": f"sqlite:///{database}", "owner_field": "owner"})


def artifacts_of(world: World, request: str) -> list[Any]:
    return [row for row in world.rows(request) if row.kind == "artifact"]


def delete_notes(world: World) -> None:
    """The application deletes Ada's rows itself."""
    with sqlite3.connect(world.database_file) as db:
        db.execute("DELETE FROM note WHERE id LIKE 'n%'")


def how_absent(world: World, request: str) -> list[str]:
    """What is said to show the place of each copy that nobody erased."""
    found = [row for row in artifacts_of(world, request) if row.state == CopyState.ALREADY_ABSENT]
    return [(row.verified_how or "").partition(FIRST_LOOK)[2].strip(",; ") for row in found]


def certificate(world: World, request: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(world.reader.certificate(world.acting(), request))["certificate"]
    return found


@pytest.mark.parametrize("others", [0, 2])
def test_a_store_in_which_nothing_registered_is_found_is_asked_about_and_erased_once_it_is_right(
    world: World, others: int
) -> None:
    for number in range(3):
        world.note(f"n{number}", ADAS % number)
    for number in range(others):
        world.note(f"b{number}", "Bob sails in the harbour", owner=BOB)
    point(world, empty_database(world))
    request = world.erase()
    rows = artifacts_of(world, request)
    assert {(row.state, row.detail, row.level) for row in rows} == {("awaiting_human", DOUBTED, None)}
    seen = world.reader.get(world.acting(), request)
    assert seen["state"] == "verifying"
    assert seen["waiting_for"] == {"awaiting_human": 3, "pending": 1}, "the identity key waits with them"
    told = [line["detail"] for line in seen["history"] if line["event"] == "place_doubted"]
    assert told == [{"store": "db", "copies": 3}]

    point(world, world.database_file)
    for row in rows:
        world.desk.settle_copy(
            world.acting("carol"), request, row.copy_no, outcome="erase", comment="the address is right now",
            now=world.now,
        )  # fmt: skip
    world.work()
    assert world.state(request) == "completed"
    assert {row.state for row in artifacts_of(world, request)} == {"erased_physical"}
    assert world.bytes_left("Blackthorn Row") == []
    with sqlite3.connect(world.database_file) as db:
        assert db.execute("SELECT count(*) FROM note").fetchone() == (others,)


def test_one_copy_alone_is_asked_about_where_the_address_is_another_than_when_it_was_registered(world: World) -> None:
    world.note("n1", ADAS % 1)
    point(world, empty_database(world))
    request = world.erase()
    assert [row.detail for row in artifacts_of(world, request)] == [DOUBTED]


def test_a_folder_beside_the_right_one_shows_nothing(world: World) -> None:
    for number in range(2):
        world.file(f"a{number}.txt", ADAS % number)
    (world.base / "stores" / "other").mkdir()
    world.now += timedelta(minutes=1)
    world.store("cvs", "files", {"root": str(world.base / "stores" / "other")})
    request = world.erase()
    assert {row.state for row in artifacts_of(world, request)} == {"awaiting_human"}
    assert len(world.bytes_left("Blackthorn Row")) == 2


def test_a_server_that_came_back_empty_after_the_plan_shows_nothing(world: World) -> None:
    world.note("n1", ADAS % 1)
    world.note("b1", "Bob sails in the harbour", owner=BOB)
    request = world.ask()
    world.plan(request)
    world.approve(request)
    with sqlite3.connect(world.database_file) as db:
        db.execute("DELETE FROM note")
    world.work()
    assert [(row.state, row.detail) for row in artifacts_of(world, request)] == [("awaiting_human", DOUBTED)]


@pytest.mark.parametrize(
    ("count", "others", "how"),
    [(3, 1, "where another registered item is"), (1, 0, "nothing else is registered there that shows the place")],
)
def test_what_the_application_deleted_itself_is_absent_and_the_certificate_says_what_shows_the_place(
    world: World, count: int, others: int, how: str
) -> None:
    for number in range(count):
        world.note(f"n{number}", ADAS % number)
    for number in range(others):
        world.note(f"b{number}", "Bob sails in the harbour", owner=BOB)
    delete_notes(world)
    request = world.erase()
    assert world.state(request) == "completed"
    assert how_absent(world, request) == [how] * count
    with pytest.raises(ReportNotReady) as early:
        world.reader.certificate(world.acting(), request, "final")
    assert early.value.due_at is not None
    world.now = early.value.due_at
    world.services.keks.turn(world.now, force=True)
    world.work()
    assert how_absent(world, request) == [how] * count, "the second look keeps what showed the place at the first"
    stated = json.loads(world.reader.certificate(world.acting(), request, "final"))["certificate"]
    copies = [copy for copy in stated["copies"] if copy["store"] == "db"]
    assert all(copy["state"] == "already_absent" and FIRST_LOOK in copy["verified_how"] for copy in copies)


def test_what_the_plan_itself_keeps_and_is_there_shows_the_place(world: World) -> None:
    for number in range(2):
        world.note(f"n{number}", ADAS % number)
    hold(world, artifacts=[world.note("kept", "Ada wrote what the court asks for")])
    delete_notes(world)
    request = world.erase()
    assert world.state(request) == "completed_with_retained"
    assert how_absent(world, request) == ["where another registered item is"] * 2


def test_what_the_plan_keeps_and_is_gone_too_is_a_reason_to_ask(world: World) -> None:
    """Also where what is absent was read while planning: all of it went at once, as where a server came back empty."""
    world.note("n0", ADAS % 0)
    hold(world, artifacts=[world.note("n1", ADAS % 1)])
    request = world.ask()
    world.plan(request)
    world.approve(request)
    delete_notes(world)
    world.work()
    assert [row.detail for row in artifacts_of(world, request) if row.state == "awaiting_human"] == [DOUBTED]


def test_what_was_read_while_planning_is_absent_when_it_goes_before_its_turn(world: World) -> None:
    """As where one store's erase takes what another one registers of the same place."""
    for number in range(3):
        world.note(f"n{number}", ADAS % number)
    request = world.ask()
    world.plan(request)
    world.approve(request)
    delete_notes(world)
    world.work()
    assert world.state(request) == "completed"
    assert how_absent(world, request) == ["where it was read while planning"] * 3


def test_what_was_read_by_an_earlier_address_shows_nothing_of_this_one(world: World) -> None:
    for number in range(3):
        world.note(f"n{number}", ADAS % number)
    request = world.ask()
    world.plan(request)
    world.approve(request)
    point(world, empty_database(world))
    world.work()
    assert [row.detail for row in artifacts_of(world, request)] == [DOUBTED] * 3


def test_what_was_erased_by_an_earlier_address_shows_nothing_of_this_one(world: World) -> None:
    """One goes where it lies; the other, locked then, is tried again where the address leads later."""
    faults = Faults(refuses=frozenset({"k2"}))
    world.memory_store("notes", faults)
    world.keep_in_memory("notes", "k1", ADAS % 1)
    world.keep_in_memory("notes", "k2", "Ada plays the cello on Sundays")
    request = world.erase()
    assert world.state(request) == "partially_failed"
    world.now += timedelta(minutes=1)
    world.store("notes", "sql", {"url": f"sqlite:///{world.base}/stores/elsewhere.db"})
    world.memory["notes"] = MemoryStore()
    world.desk.retry(world.acting("ann"), request, now=world.now)
    world.work()
    assert sorted(row.state for row in artifacts_of(world, request)) == ["awaiting_human", "erased_physical"]


def test_a_human_may_say_that_the_place_is_right(world: World) -> None:
    for number in range(2):
        world.note(f"n{number}", ADAS % number)
    delete_notes(world)
    request = world.erase()
    rows = artifacts_of(world, request)
    assert [row.state for row in rows] == ["awaiting_human"] * 2
    for row in rows:
        world.desk.settle_copy(
            world.acting("carol"), request, row.copy_no, outcome="erased", comment="they closed the account there",
            now=world.now,
        )  # fmt: skip
    world.work()
    assert world.state(request) == "completed"
    copies = [copy for copy in certificate(world, request)["copies"] if copy["store"] == "db"]
    assert [(copy["method"], copy["detail"]) for copy in copies] == [("by hand", None)] * 2


def test_a_store_that_falls_silent_while_its_place_is_looked_at_proves_nothing(world: World) -> None:
    world.memory_store("notes")
    world.keep_in_memory("notes", "k1", ADAS % 1)
    world.keep_in_memory("notes", "b1", "Bob sails in the harbour", owner=BOB)
    world.memory["notes"].delete("k1")
    request = world.ask()
    world.plan(request)
    world.approve(request)
    break_off(world, {"notes": "verify"}, ConnectionResetError())
    world.work()
    (copy,) = artifacts_of(world, request)
    assert (copy.state, copy.verified_at) == ("unreachable", None)


def test_a_sweep_counts_what_it_found_in_no_place_as_failed_and_takes_it_up_again(world: World) -> None:
    for number in range(3):
        world.note(f"n{number}", ADAS % number)
    point(world, empty_database(world))
    world.now += timedelta(days=100)
    result = sweep(world)["counts"]
    assert (result["removed"], result["verified"], result["failed"]) == (0, 0, 3)
    point(world, world.database_file)
    result = sweep(world)["counts"]
    assert (result["removed"], result["verified"], result["failed"]) == (3, 3, 0)
