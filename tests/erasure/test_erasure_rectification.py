"""Rectification: fields set where stores can, humans asked elsewhere, memories quarantined, the record added to."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.commands.watching import plan_lines
from connectors.errors import StoreUnreachable
from erasure.errors import InvalidRequest
from erasure.rectify import judge, mentions, values_for
from erasure.request import CopyState
from registry import artifacts
from tests.erasure.conftest import ADA, World

STREET = {"text": {"from": "Old Street 1", "to": "New Street 2"}}


def corrected(world: World, corrections: dict[str, Any], **more: Any) -> str:
    request = world.ask(ADA, right="rectification", corrections=corrections, **more)
    world.plan(request)
    world.approve(request)
    world.work(2)
    return request


def rows(world: World) -> dict[str, str]:
    with sqlite3.connect(world.database_file) as db:
        return dict(db.execute("SELECT id, text FROM note").fetchall())


def status(world: World, name: str) -> str:
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        return artifacts.find_artifact(session, world.tenant.tenant_id, name).status


def memory(world: World, name: str, text: str, **more: Any) -> str:
    (world.files / name).write_text(text)
    item = {"data_class": "memory", "store": "cvs", "locator": {"path": name}, "subjects": [ADA]}
    return world.register({**item, "observed_at": world.now.isoformat(), **more})[0]


def test_a_wrong_field_is_set_where_it_reads_as_the_person_says_and_nowhere_else(world: World) -> None:
    wrong = world.note("n1", "Old Street 1")
    world.note("n2", "something else")
    request = corrected(world, STREET)
    assert world.state(request) == "completed"
    assert rows(world) == {"n1": "New Street 2", "n2": "something else"}
    assert world.copy_states(request) == {wrong: "corrected"}


@pytest.mark.parametrize("field", ["text", "telephone"])
def test_a_correction_for_which_no_copy_was_found_says_so_in_request_and_plan(world: World, field: str) -> None:
    """Its empty plan went to approval and on to «completed» as if somebody had been corrected."""
    world.note("n1", "Elsewhere 3")
    request = world.ask(ADA, right="rectification", corrections={field: STREET["text"]})
    assert "warnings" not in world.reader.get(world.acting(), request), "before anybody looked"
    planned = world.plan(request)
    plan = world.reader.plan_view(world.acting(), request)
    assert plan["copies"] == []
    for shown in (planned, plan, world.reader.get(world.acting(), request)):
        assert [(one["code"], one["request"]) for one in shown["warnings"]] == [("nothing_to_correct", request)]
    assert any("nothing will be changed in any store" in line for line in plan_lines(plan, right="rectification"))
    assert world.approve(request)["state"] == "approved", "the desk may still have it so, and be told of it"


def test_a_correction_with_a_copy_to_correct_warns_of_nothing(world: World) -> None:
    world.note("n1", "Old Street 1")
    request = world.ask(ADA, right="rectification", corrections=STREET)
    assert "warnings" not in world.plan(request)
    assert world.reader.plan_view(world.acting(), request)["warnings"] == []


def test_an_owner_who_is_somebody_else_by_now_is_not_written_over(world: World) -> None:
    world.note("n1", "Old Street 1")
    request = world.ask(ADA, right="rectification", corrections=STREET)
    world.plan(request)
    with sqlite3.connect(world.database_file) as db:
        db.execute("UPDATE note SET owner = 'user:somebody'")
    world.approve(request)
    world.work(8)
    assert rows(world) == {"n1": "Old Street 1"}
    assert world.state(request) == "partially_failed"


def test_what_holds_the_wrong_value_in_free_text_is_given_to_a_human(world: World) -> None:
    letter = world.file("letter.txt", "she lives at Old Street 1, she says")
    world.file("other.txt", "nothing of it")
    request = corrected(world, STREET)
    assert world.state(request) == "executing"
    assert world.copy_states(request) == {letter: "awaiting_human"}
    with pytest.raises(InvalidRequest, match="corrected, unchanged"):
        world.desk.settle_copy(world.acting(), request, 1, outcome="erased", comment="no", now=world.now)
    world.desk.settle_copy(world.acting(), request, 1, outcome="corrected", comment="by hand", now=world.now)
    world.work(1)
    assert world.state(request) == "completed"


def test_what_was_made_from_a_corrected_copy_goes_to_a_human_and_memories_are_quarantined(world: World) -> None:
    wrong = world.note("n1", "Old Street 1")
    summary = world.file("sum.txt", "she lives in the old town", sources=[wrong])
    remembered = memory(world, "m1.txt", "prefers letters to Old Street 1")
    derived = memory(world, "m2.txt", "is from the old town", sources=[wrong])
    other = memory(world, "m3.txt", "likes tea")
    request = corrected(world, STREET)
    assert world.copy_states(request) == {
        wrong: "corrected", summary: "awaiting_human", remembered: "corrected", derived: "corrected",
    }  # fmt: skip
    assert (status(world, remembered), status(world, derived)) == ("quarantined", "quarantined")
    assert status(world, other) == "live"


def test_a_correction_is_kept_in_the_record_once_beside_what_was_said(world: World) -> None:
    world.say("I live at Old Street 1")
    world.note("n1", "Old Street 1")
    request = corrected(world, STREET)
    world.work(2)
    from sqlmodel import select

    from ledger.models import EntryRow

    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        found = session.exec(select(EntryRow).where(EntryRow.stream_no != 0)).all()
        assert world.parts.read is not None
        read = world.parts.read(session, world.tenant.tenant_id, found)
    bodies = [json.loads(entry.parts[0].data or b"") for entry in read]
    assert bodies[0] == {"content": "I live at Old Street 1"}
    assert bodies[1:] == [{"correction": STREET, "request": request}]


def test_the_correction_itself_is_nowhere_in_clear_but_in_the_corrected_store(world: World) -> None:
    world.note("n1", "Old Street 1")
    corrected(world, STREET)
    left = world.bytes_left("New Street 2")
    assert left
    assert all(hit.startswith("stores/") for hit in left)


def test_a_correction_of_a_limited_scope_leaves_other_classes(world: World) -> None:
    world.note("n1", "Old Street 1")
    world.file("letter.txt", "Old Street 1")
    request = corrected(world, STREET, scope={"data_classes": ["note"]})
    assert world.state(request) == "completed"


@pytest.mark.parametrize(
    "corrections", [None, {}, {"a b": "x"}, {"text": {"from": "x"}}, {"text": ["x"]}, {"text": {"to": {"deep": 1}}}]
)
def test_corrections_that_say_nothing_are_refused(world: World, corrections: Any) -> None:
    more = {} if corrections is None else {"corrections": corrections}
    with pytest.raises(InvalidRequest, match="/corrections"):
        world.ask(ADA, right="rectification", **more)


def test_a_field_without_the_wrong_value_is_set_wherever_the_row_has_it() -> None:
    content = json.dumps({"email": "old@x", "name": "Ada"}).encode()
    assert values_for(content, {"email": {"to": "new@x"}, "phone": {"to": "1"}}) == {"email": "new@x"}
    assert values_for(content, {"email": {"to": "old@x"}}) == {}
    assert values_for(b"no json", {"email": {"to": "new@x"}}) == {}
    assert values_for(b"[1]", {"email": {"to": "new@x"}}) == {}


@given(st.text(min_size=1, max_size=20), st.text(max_size=10), st.text(max_size=10))
def test_a_wrong_value_is_found_in_plain_text_and_in_escaped_json(wrong: str, before: str, after: str) -> None:
    change = {"text": {"from": wrong, "to": "x"}}
    text = before + wrong + after
    try:
        plain = text.encode()
    except UnicodeEncodeError:
        return
    assert mentions(plain, change)
    assert mentions(json.dumps({"t": text}).encode(), change)


def test_a_store_that_cannot_set_fields_makes_a_task_for_a_human() -> None:
    content = json.dumps({"text": "Old Street 1"}).encode()
    verdict = judge(content, STREET, is_memory=False, can_set=False, made_from_corrected=False)
    assert verdict is not None
    assert verdict.state == CopyState.AWAITING_HUMAN
    assert judge(b"fine", STREET, is_memory=False, can_set=True, made_from_corrected=False) is None


def test_a_store_that_could_not_be_read_is_named_and_after_a_retry_given_to_a_human(world: World) -> None:
    world.memory_store("odd")
    lost = world.keep_in_memory("odd", "k1", "Old Street 1")

    def refuse(store: Any, read_only: bool) -> Any:
        if store.name == "odd":
            raise StoreUnreachable("refused")
        return world.connect(store, read_only)

    world.change(connect=refuse)
    request = corrected(world, STREET)
    assert world.state(request) == "partially_failed"
    assert world.copy_states(request) == {lost: "unreachable"}
    world.desk.retry(world.acting(), request, now=world.now)
    world.work(1)
    assert world.copy_states(request) == {lost: "awaiting_human"}
    world.desk.settle_copy(world.acting(), request, 1, outcome="unchanged", comment="nothing of it", now=world.now)
    world.work(1)
    assert world.state(request) == "completed"
