"""Copies on their way to a quick store: decided some ahead, written down while it is asked for more."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlmodel import select

from connectors.memory import Faults, MemoryConnector
from erasure.request import MAYBE_OURS
from erasure.request_desk import RequestDesk
from erasure.scribe import Scribe
from ledger.models import OutboxRow
from retention.holds import Holds
from tests.erasure.conftest import ADA, World

MANY = 40


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of two copies, of which eight are decided at once; no decision grows old by how busy the machine is."""
    monkeypatch.setattr("erasure.dispatch._MOST_AT_ONCE", 8)
    monkeypatch.setattr("erasure.dispatch._QUICK_SECONDS", 60.0)
    able = MemoryConnector.capabilities
    monkeypatch.setattr(MemoryConnector, "capabilities", lambda self: replace(able(self), batch_size=2))


def approved(world: World, faults: Faults | None = None) -> str:
    """A request about many copies in one store, ready to be worked on."""
    world.classes({"note": {"erasure": {"on_request": "erase", "required": "L1"}}})
    world.memory_store("many", faults)
    keys = [f"k{number:02}" for number in range(MANY)]
    for key in keys:
        world.memory["many"].put(key, f"remark {key} of Ada".encode(), owner=ADA)
    world.register(
        *({"data_class": "note", "store": "many", "locator": {"table": "t", "key": {"id": key}}, "subjects": [ADA]}
          for key in keys)
    )  # fmt: skip
    request = world.ask()
    world.plan(request)
    world.approve(request)
    return request


def before_each(monkeypatch: pytest.MonkeyPatch, happens: Callable[[int], None]) -> None:
    """Let something happen at each call to a store, by its number from 1, before it does what it is asked."""
    erase, calls = MemoryConnector.erase, [0]

    def erased(self: MemoryConnector, items: Sequence[Any], **more: Any) -> Any:
        calls[0] += 1
        happens(calls[0])
        return erase(self, items, **more)

    monkeypatch.setattr(MemoryConnector, "erase", erased)


def gone(world: World, request: str) -> set[str]:
    """The public ids of the copies that were erased."""
    return {row.ref for row in world.rows(request) if row.state == "erased_logical"}


@pytest.mark.parametrize("call", [1, 2, 4, 6, 9])
def test_a_hold_keeps_every_copy_that_was_not_marked_before_it_and_names_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    request = approved(world)
    parts = world.parts
    holds = Holds(vault=parts.vault, record=parts.record, transactions=parts.transactions, desk=RequestDesk())
    spec = {"name": "n", "matter": "m", "reason": "r", "selector": {"subjects": [ADA]}}
    placed: list[dict[str, Any]] = []
    before_each(
        monkeypatch, lambda n: placed.append(holds.place(world.acting(), spec, world.now)) if n == call else None
    )
    world.work(2)
    [hold] = placed
    assert set(hold["too_late"]) == gone(world, request)
    states = [row.state for row in world.rows(request) if row.kind == "artifact"]
    assert sorted(set(states)) == ["erased_logical", "retained"]
    assert len(world.memory["many"].rows) == states.count("retained")


def test_what_a_store_answered_is_in_the_record_copy_by_copy_with_its_evidence(world: World) -> None:
    request = approved(world)
    world.work(1)
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        said = session.exec(select(OutboxRow).where(OutboxRow.kind == "copy.erased")).all()
    rows = {row.copy_no: row for row in world.rows(request) if row.kind == "artifact"}
    lines: dict[int, tuple[str, str, str]] = {}
    for event in said:
        body = json.loads(event.body)
        assert json.dumps(body, sort_keys=True, separators=(",", ":")).encode() == event.body, "canonical"
        assert body["owner"] == request
        for line in body["copies"]:
            assert line["copy"] not in lines, "one receipt a copy"
            lines[line["copy"]] = (line["state"], line["level"], event.entry_id)
    assert lines == {number: ("erased_logical", "L1", row.evidence) for number, row in rows.items()}
    assert len(lines) == MANY


def test_copies_of_one_batch_that_end_otherwise_are_told_apart(world: World) -> None:
    request = approved(world, Faults(refuses=frozenset({"k03", "k04", "k20"})))
    world.work(1)
    rows = [row for row in world.rows(request) if row.kind == "artifact"]
    waiting = [row for row in rows if row.state == "pending"]
    assert (len(waiting), {row.attempts for row in waiting}) == (3, {1})
    assert {row.method for row in rows if row.state == "erased_logical"} != {None}
    assert set(world.memory["many"].rows) == {"k03", "k04", "k20"}


def test_of_a_store_that_breaks_off_only_those_count_as_tried_that_it_was_asked_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = approved(world)

    def breaks(call: int) -> None:
        if call == 5:  # the second batch of the third decision, while a fourth was made ahead
            message = "the store went away"
            raise OSError(message)

    before_each(monkeypatch, breaks)
    world.work(1)
    rows = [row for row in world.rows(request) if row.kind == "artifact"]
    assert {row.state for row in rows} == {"erased_logical", "pending"}
    assert sum(row.attempts for row in rows) < MANY
    assert {row.attempts for row in rows if row.state == "erased_logical"} == {1}
    world.work()
    assert world.state(request) == "completed"


def test_what_a_lost_answer_may_have_erased_is_not_said_to_have_been_absent_before(world: World) -> None:
    # «Absent at the first look» was said of copies that a worker which died had erased: nobody had looked before that.
    request = approved(world, Faults(fail_after=frozenset({2})))
    world.memory["many"].delete("k39")
    world.work(1)
    world.faults.clear()
    world.work()
    assert world.state(request) == "completed"
    for days in (0, 2):  # the quiet period looks again
        world.now += timedelta(days=days)
        world.services.keks.turn(world.now, force=True)
        world.work(2)
        said = json.loads(world.reader.certificate(world.acting(), request))["certificate"]
        assert said["version"] == ("final" if days else "interim")
        absent = [copy for copy in said["copies"] if copy["state"] == "already_absent"]
        assert sorted(copy["attempts"] for copy in absent) == [1, 2, 2]
        for copy in absent:
            is_lost = copy["attempts"] == 2
            assert copy["method"].endswith(MAYBE_OURS) is is_lost
            looked = "absent when it was tried again" if is_lost else "absent at the first look"
            assert f"; {looked}, beside others of the same plan" in copy["verified_how"]


def test_copies_whose_decision_grew_old_while_the_store_was_slow_are_decided_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = approved(world)
    old = [0.5]
    monkeypatch.setattr("erasure.dispatch._QUICK_SECONDS", 0.5)
    clock = time.monotonic
    monkeypatch.setattr("erasure.dispatch.time.monotonic", lambda: clock() + old[0])

    def slow(call: int) -> None:
        if call in {4, 7, 8}:
            old[0] += 1.0

    before_each(monkeypatch, slow)
    world.work(1)
    rows = [row for row in world.rows(request) if row.kind == "artifact"]
    assert {(row.state, row.attempts) for row in rows} == {("erased_logical", 1)}


def fails() -> None:
    message = "no space left"
    raise OSError(message)


def test_a_scribe_does_what_it_is_given_in_order_and_nothing_after_a_failure() -> None:
    done: list[str] = []
    with Scribe("one") as scribe:
        assert scribe.do(lambda: threading.current_thread().name).result() == "one"
        for name in "abc":
            scribe.do(partial(done.append, name))
    assert done == ["a", "b", "c"]
    scribe = Scribe("two")
    scribe.__enter__()
    scribe.do(fails)
    late = scribe.do(partial(done.append, "late"))
    with pytest.raises(OSError, match="no space left"):
        scribe.__exit__(None, None, None)
    assert isinstance(late.exception(), OSError)
    assert done == ["a", "b", "c"]


def test_what_ends_a_scribes_block_is_not_hidden_by_what_failed_there() -> None:
    def ends(scribe: Scribe) -> None:
        with scribe:
            raise KeyError(str(scribe.do(fails).exception()))

    with pytest.raises(KeyError, match="no space left"):
        ends(Scribe("one"))
