"""What is read of copies beforehand: all that anything looks for later, and not more."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.memory import Faults
from erasure.sealed import Capture
from erasure.work import captures_of, load_work

SAID = "Ada is allergic to Kontrastmittel 4711"
CALLBACK = {"url": "http://127.0.0.1:9/anew", "secret": "env:MUNIMENT_SECRET_ACME_OWNER", "deadline": "P7D"}


def captured(world: Any, request: str) -> dict[str, Capture]:
    """The captures of a plan, by the ids of their artifacts."""
    rows = [row for row in world.rows(request) if row.artifact_id is not None]
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        found = captures_of(session, world.parts, load_work(session, world.tenant.tenant_id, request), rows)
    return {row.ref: found[row.copy_no] for row in rows}


@pytest.mark.parametrize(("required", "looks"), [("key", False), ("L1", False), ("L2", True)])
def test_a_store_is_asked_what_a_copy_held_where_its_files_are_looked_at(
    world: Any, required: str, looks: bool
) -> None:
    world.classes({"note": {"erasure": {"on_request": "erase", "required": required}}})
    note = world.note("n1", SAID)
    request = world.ask()
    world.plan(request)
    found = captured(world, request)[note]
    assert found.locator == {"table": "note", "key": {"id": "n1"}}
    assert found.captured
    assert (SAID.encode() in found.canaries) is looks
    world.approve(request)
    world.work()
    assert world.state(request) == "completed"
    assert next(row.level for row in world.rows(request) if row.ref == note) == ("L2" if looks else "L1")


def test_a_store_that_looks_for_what_a_copy_held_at_every_level_is_asked_at_every_level(world: Any) -> None:
    world.classes({"note": {"erasure": {"on_request": "erase", "required": "L1"}}})
    world.memory_store("vectors")
    note = world.keep_in_memory("vectors", "v1", SAID)
    request = world.ask()
    world.plan(request)
    assert captured(world, request)[note].canaries


def test_what_something_new_has_to_be_free_of_is_read_at_every_level(world: Any) -> None:
    world.classes(
        {
            "note": {"erasure": {"on_request": "erase", "required": "L1"}},
            "summary": {"derived": {"default": "regenerate", "callback": CALLBACK}},
        }
    )
    one, two = world.note("n1", SAID), world.note("n2", "Bob sails in the harbour", owner="user:bob_7")
    both = world.file("both.txt", f"Both: {SAID}; Bob sails", subjects=(), sources=[one, two])
    world.change(call=lambda *_: world.file("anew.txt", f"Bob sails, and {SAID}", subjects=(), sources=[two]))
    request = world.ask()
    world.plan(request)
    assert SAID.encode() in captured(world, request)[one].canaries
    world.approve(request)
    world.work()
    assert "still holds" in next(row.detail for row in world.rows(request) if row.ref == both)


def test_a_copy_of_a_silent_store_is_read_before_it_goes_as_far_as_something_looks_for_it(world: Any) -> None:
    world.classes({"note": {"erasure": {"on_request": "erase", "required": "L1"}}})
    note, cv = world.note("n1", SAID), world.file("cv.txt", f"CV of Ada: {SAID}")
    connect = world.parts.connect
    world.change(connect=_away)
    request = world.ask()
    world.plan(request)
    assert not any(one.captured for one in captured(world, request).values())
    world.change(connect=connect)
    world.approve(request)
    world.work()
    assert world.state(request) == "completed"
    found = captured(world, request)
    assert found[note].captured
    assert not found[note].canaries
    assert found[cv].canaries


def test_a_store_that_only_erases_is_let_do_so(world: Any) -> None:
    world.classes({"note": {"erasure": {"on_request": "erase", "required": "L1"}}})
    world.memory_store("deaf", Faults(hangs=frozenset({"capture"})))
    world.change(store_seconds=0.2)
    notes = [world.keep_in_memory("deaf", f"d{number}", f"{SAID}, {number}") for number in range(3)]
    request = world.ask()
    world.plan(request)
    world.approve(request)
    world.work()
    assert world.state(request) == "completed"
    assert {row.attempts for row in world.rows(request) if row.ref in notes} == {1}
    assert not any(captured(world, request)[note].captured for note in notes)
    assert not world.bytes_left(SAID)


def _away(*_: Any) -> Any:
    message = "the store is away"
    raise OSError(message)
