"""Machines: what a declaration must say, and what the fold over a stream finds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry import declared, machine_rows
from registry.errors import InvalidDeclaration, UnknownMachine, UnknownStream
from registry.machines import (
    NOT_ASKED,
    TOOL_NOT_ALLOWED,
    TRANSITION_NOT_ALLOWED,
    UNKNOWN_PHASE,
    Approval,
    Event,
    Phase,
    ToolCall,
    parse_machine,
    read_event,
    step,
)

REFUND: dict[str, Any] = {
    "phases": ["identify", "task", "confirm", "wrap_up"],
    "transitions": [["identify", "task"], ["task", "confirm"], ["confirm", "wrap_up"], ["confirm", "task"]],
    "tools": {"identify": ["look_up"], "task": ["look_up", "read_order"], "confirm": ["refund"]},
}
MACHINE = parse_machine("refund", REFUND)
events = st.one_of(
    st.builds(Phase, st.none() | st.sampled_from([*MACHINE.phases, "elsewhere"])),
    st.builds(ToolCall, st.lists(st.sampled_from(["look_up", "read_order", "refund", "rm"]), max_size=2).map(tuple)),
)


def test_a_refund_outside_confirm_and_a_jump_to_the_end_are_named() -> None:
    told: list[tuple[Event, str, str | None]] = [
        (ToolCall(("look_up",)), "identify", None),
        (ToolCall(("refund",)), "identify", TOOL_NOT_ALLOWED),
        (Phase("task"), "task", None),
        (Phase("wrap_up"), "task", TRANSITION_NOT_ALLOWED),
        (Phase("lunch"), "task", UNKNOWN_PHASE),
        (Phase("confirm"), "confirm", None),
        (Phase("confirm"), "confirm", None),
        (ToolCall(("refund",)), "confirm", None),
        (ToolCall(()), "confirm", None),
        (Phase("wrap_up"), "wrap_up", None),
        (ToolCall(("look_up",)), "wrap_up", TOOL_NOT_ALLOWED),
    ]
    phase: str | None = None
    for event, after, violation in told:
        done = step(MACHINE, phase, event)
        assert (done.phase, done.violation) == (after, violation)
        phase = done.phase


ASKING = parse_machine("refund", {**REFUND, "asks": ["refund"]})


def test_each_refund_needs_an_approval_of_its_own_in_its_own_phase() -> None:
    refund = ToolCall(("refund",))
    told: list[tuple[Event, str | None]] = [
        (Phase("task"), None), (Approval(True), None), (Phase("confirm"), None), (refund, NOT_ASKED),
        (Approval(True), None), (refund, None), (refund, NOT_ASKED),
        (Approval(True), None), (Approval(False), None), (refund, NOT_ASKED),
    ]  # fmt: skip
    phase, approvals = ASKING.start, 0
    for event, violation in told:
        done = step(ASKING, phase, event, approvals=approvals)
        assert done.violation == violation, event
        phase, approvals = done.phase, done.approvals


@given(st.lists(events | st.builds(Approval, st.booleans()), max_size=40))
def test_no_more_refunds_pass_than_were_approved(told: list[Event]) -> None:
    phase, approvals, given_, passed = ASKING.start, 0, 0, 0
    for event in told:
        done = step(ASKING, phase, event, approvals=approvals)
        given_ += isinstance(event, Approval) and event.given
        if isinstance(event, ToolCall) and done.violation is None:
            passed += event.tools.count("refund")
        phase, approvals = done.phase, done.approvals
        assert approvals >= 0
        assert passed <= given_


@pytest.mark.parametrize(
    ("body", "yes"),
    [({}, True), ({"approved": True}, True), ({"approved": False}, False), ({"decision": "Approved"}, True),
     ({"decision": "rejected"}, False), ({"decision": "later"}, False), ([], True)],
)  # fmt: skip
def test_an_approval_is_a_yes_unless_it_says_otherwise(body: Any, yes: bool) -> None:
    assert read_event("approval", json.dumps(body).encode()) == Approval(yes)


@given(st.lists(events, max_size=30))
def test_a_stream_only_ever_moves_along_transitions(told: list[Event]) -> None:
    phase = MACHINE.start
    for event in told:
        done = step(MACHINE, phase, event)
        assert done.phase == phase or (phase, done.phase) in MACHINE.transitions
        if isinstance(event, ToolCall):
            assert done.phase == phase
            allowed = set(MACHINE.tools.get(phase, ()))
            assert (done.violation is None) == (set(event.tools) <= allowed)
        elif done.violation is not None:
            assert done.phase == phase
        phase = done.phase


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_no_body_breaks_the_reader(body: bytes) -> None:
    for kind in ("phase", "tool.call", "approval"):
        assert read_event(kind, body) is not None
    assert read_event("turn.user", body) is None


@pytest.mark.parametrize(
    ("body", "tools"),
    [
        ({"tool": "refund", "amount": 3}, ("refund",)),
        ({"name": "refund"}, ("refund",)),
        ({"function": {"name": "refund"}}, ("refund",)),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "a"}}, {"function": {"name": "b"}}]}, ("a", "b")),
        ({"role": "assistant", "function_call": {"name": "a"}}, ("a",)),
        ({"role": "tool", "name": "a speaker"}, ()),
        ([1], ()),
        ({"tool": 7}, ()),
    ],
)
def test_the_tool_of_a_call_is_read_as_agents_write_it(body: Any, tools: tuple[str, ...]) -> None:
    assert read_event("tool.call", json.dumps(body).encode()) == ToolCall(tools)


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ({"phases": []}, "1 to"),
        ({"phases": ["a", "a"], "transitions": [], "tools": {}}, "twice"),
        ({"transitions": [["identify", "nowhere"]]}, "two declared phases"),
        ({"transitions": [["identify", "task"]]}, "no way leads"),
        ({"tools": {"lunch": ["eat"]}}, "not declared"),
        ({"tools": {"task": "eat"}}, "list"),
        ({"tools": None}, "tools"),
        ({"colour": "red"}, "unknown field"),
        ({"asks": ["rm"]}, "out of those"),
    ],
)
def test_a_machine_that_cannot_work_is_refused(change: dict[str, Any], detail: str) -> None:
    with pytest.raises(InvalidDeclaration, match=detail):
        parse_machine("refund", {**REFUND, **change})


def test_versions_stay_and_the_newest_is_in_force(house: Any) -> None:
    with house.session() as session:
        first, made = machine_rows.put_machine(session, house.alice, "refund", REFUND, house.now)
        assert (first.version, made) == (1, True)
        assert machine_rows.put_machine(session, house.alice, "refund", REFUND, house.now)[1] is False
        wider = {**REFUND, "tools": {**REFUND["tools"], "wrap_up": ["mail"]}}
        assert machine_rows.put_machine(session, house.alice, "refund", wider, house.now)[0].version == 2
        assert machine_rows.get_machine(session, house.alice.tenant_id, "refund").tools["wrap_up"] == ("mail",)
        with pytest.raises(UnknownMachine):
            machine_rows.get_machine(session, house.alice.tenant_id + 1, "refund")


def test_a_stream_starts_in_the_first_phase_and_tells_what_it_may_do(house: Any) -> None:
    with house.session() as session:
        machine_rows.put_machine(session, house.alice, "refund", REFUND, house.now)
        spec = {"stream": "c1", "machine": "refund"}
        declared.put_stream(session, house.vault, house.alice, spec, house.now)
        declared.put_stream(session, house.vault, house.alice, {"stream": "c2"}, house.now)
        allowed = machine_rows.allowed_tools(session, house.vault, house.alice, "c1")
        assert (allowed["phase"], allowed["tools"], allowed["next"]) == ("identify", ["look_up"], ["task"])
        free = machine_rows.allowed_tools(session, house.vault, house.alice, "c2")
        assert (free["machine"], free["tools"]) == (None, None)
        with pytest.raises(UnknownStream):
            machine_rows.allowed_tools(session, house.vault, house.alice, "c3")
        assert machine_rows.stalls(session, house.alice.tenant_id, "refund") == {"identify": 1}
