from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from connectors.agent import RunsElsewhere
from connectors.base import Level, Outcome, built_kinds, open_connector
from erasure import tasks
from erasure.errors import InvalidRequest, TaskNotClaimed, UnknownRequest
from erasure.tasks import Result
from registry.errors import OutsideTokenScope
from tests.erasure.conftest import ADA, World

LEASE = timedelta(minutes=5)


def embedded(world: World, *names: str) -> list[str]:
    """Registered notes in a store that only the agent's process may open."""
    world.store("memories", "agent", {"owner_field": "owner"})
    return world.register(
        *({"data_class": "note", "store": "memories", "locator": {"id": n}, "subjects": [ADA]} for n in names)
    )


def agent(world: World, *stores: str) -> Any:
    return replace(world.acting("agent"), roles=frozenset({"writer"}), stores=stores or ("memories",))


def claim(world: World, **more: Any) -> list[dict[str, Any]]:
    given = {"limit": 10, "lease": LEASE, "now": world.now, **more}
    return tasks.claim(world.parts, given.pop("acting", agent(world)), ["memories"], **given)


def settle(world: World, task: dict[str, Any], *results: Result, **more: Any) -> str:
    given = {"claim": task["claim"], "reclaim": {"level": "L2", "residual_until": "unknown", "evidence": {}}, **more}
    return tasks.settle(
        world.parts, given.pop("acting", agent(world)), task["id"], results=results, now=world.now, **given
    )


def erased(task: dict[str, Any]) -> list[Result]:
    return [Result(copy=item["copy"], outcome=Outcome.ERASED, level=Level.L1) for item in task["items"]]


def absent(task: dict[str, Any], level: Level = Level.L2) -> list[Result]:
    return [Result(copy=item["copy"], level=level, present=False) for item in task["items"]]


def states(world: World, request: str) -> set[str]:
    return {row.state for row in world.rows(request) if row.store == "memories"}


def test_a_copy_waits_with_its_age_until_it_is_erased_and_looked_at_a_second_time(world: World) -> None:
    [note] = embedded(world, "m1")
    request = world.erase()
    [copy] = [c for c in world.reader.copies(world.acting(), request) if c.get("artifact") == note]
    assert (copy["state"], copy["attempts"]) == ("awaiting_external", 1)
    assert copy["waiting_since"] is not None
    assert world.state(request) == "verifying"
    [task] = claim(world)
    assert (task["work"], task["level"], task["store"]) == ("erase", "L2", "memories")
    assert [item["locator"] for item in task["items"]] == [{"id": "m1"}]
    assert ADA in task["owners"]
    assert settle(world, task, *erased(task)) == "settled"
    assert states(world, request) == {"erased_logical"}
    world.work()
    assert world.state(request) == "verifying", "what an agent states of its own erase ends nothing"
    assert states(world, request) == {"awaiting_external"}
    [look] = claim(world)
    assert (look["work"], look["owners"], look["reclaimed"]["level"]) == ("verify", [], "L2")
    settle(world, look, *absent(look))
    world.work()
    assert world.state(request) == "completed"
    [row] = [row for row in world.rows(request) if row.store == "memories"]
    assert (row.state, row.level) == ("erased_physical", "L2")
    assert str(row.verified_how).startswith("stated by the agent's process")
    assert row.residual_until == "unknown"


def test_the_quiet_period_has_it_looked_at_once_more_before_the_final_certificate(world: World) -> None:
    embedded(world, "m1")
    request = world.erase()
    [task] = claim(world)
    settle(world, task, *erased(task))
    world.work()
    [look] = claim(world)
    settle(world, look, *absent(look))
    world.work()
    world.now += timedelta(days=2)
    world.work()
    assert "final_issued" not in str(world.reader.get(world.acting(), request)["history"])
    [again] = claim(world)
    assert again["work"] == "verify"
    settle(world, again, *absent(again))
    world.work()
    assert claim(world) == []
    assert world.state(request) == "completed"


def test_what_is_found_again_in_the_quiet_period_reopens_the_request(world: World) -> None:
    embedded(world, "m1")
    request = world.erase()
    [task] = claim(world)
    settle(world, task, *erased(task))
    world.work()
    [look] = claim(world)
    settle(world, look, *absent(look))
    world.work()
    world.now += timedelta(days=2)
    world.work()
    [again] = claim(world)
    settle(world, again, Result(copy=again["items"][0]["copy"], present=True))
    world.work()
    assert world.state(request) in {"executing", "verifying"}
    assert [task["work"] for task in claim(world)] == ["erase"]


@pytest.mark.parametrize(
    "answer",
    [
        Result(copy=0, present=True),
        Result(copy=0, present=None, level=Level.L1),
        Result(copy=0, present=False, level=Level.L1),
        None,
    ],
)
def test_an_agent_that_sees_it_again_or_cannot_look_is_given_the_work_again(
    world: World, answer: Result | None
) -> None:
    embedded(world, "m1")
    request = world.erase()
    [task] = claim(world)
    settle(world, task, *erased(task))
    world.work()
    [look] = claim(world)
    given = () if answer is None else (replace(answer, copy=look["items"][0]["copy"]),)
    settle(world, look, *given)
    world.work()
    assert states(world, request) == {"awaiting_external"}
    [again] = claim(world)
    assert again["work"] == "erase"


@pytest.mark.scenario("A10")
def test_what_an_agent_could_not_erase_is_tried_and_then_named_as_failed(world: World) -> None:
    embedded(world, "m1")
    request = world.erase()
    for _ in range(world.parts.max_attempts):
        [task] = claim(world)
        settle(world, task, Result(copy=task["items"][0]["copy"], outcome=Outcome.FAILED), reclaim=None)
        world.work()
    assert world.state(request) == "partially_failed"
    assert states(world, request) == {"failed"}


def test_a_receipt_that_comes_twice_or_late_changes_nothing(world: World) -> None:
    embedded(world, "m1", "m2")
    request = world.erase()
    [task] = claim(world)
    assert settle(world, task, *erased(task)) == "settled"
    world.work()
    before = [(row.copy_no, row.state, row.attempts, row.evidence) for row in world.rows(request)]
    failing = [Result(copy=item["copy"], outcome=Outcome.FAILED) for item in task["items"]]
    assert settle(world, task, *failing) == "already_settled"
    assert [(row.copy_no, row.state, row.attempts, row.evidence) for row in world.rows(request)] == before


def test_a_claim_that_ended_is_handed_out_again_and_either_answer_counts_once(world: World) -> None:
    embedded(world, "m1")
    world.erase()
    [first] = claim(world)
    assert claim(world) == []
    world.now += LEASE
    [second] = claim(world)
    assert (second["id"], second["claim"] != first["claim"]) == (first["id"], True)
    assert settle(world, first, *erased(first)) == "settled"
    assert settle(world, second, *erased(second)) == "already_settled"


@pytest.mark.scenario("S25", "S26")
def test_silence_until_the_deadline_is_told_once_and_the_request_does_not_end_well(world: World) -> None:
    embedded(world, "m1")
    request = world.erase()
    [task] = claim(world)
    world.now += world.parts.agent_term + timedelta(hours=1)
    world.work()
    assert world.state(request) == "partially_failed"
    assert states(world, request) == {"unreachable"}
    told = [line for line in world.reader.get(world.acting(), request)["history"] if line["event"] == "agent_overdue"]
    assert len(told) == 1
    assert told[0]["entry"]
    assert claim(world) == []
    assert settle(world, task, *erased(task)) == "settled", "a late truth about an erase is taken"
    assert states(world, request) == {"erased_logical"}


def test_a_second_look_that_comes_after_its_time_is_not_taken(world: World) -> None:
    embedded(world, "m1")
    request = world.erase()
    [task] = claim(world)
    settle(world, task, *erased(task))
    world.work()
    [look] = claim(world)
    world.now += world.parts.agent_term + timedelta(hours=1)
    world.work()
    assert settle(world, look, *absent(look)) == "already_settled"
    assert world.state(request) == "partially_failed"


def test_a_hostile_agent_reaches_and_settles_nothing_of_other_stores(world: World) -> None:
    embedded(world, "m1")
    request = world.erase()
    stranger = agent(world, "another")
    with pytest.raises(OutsideTokenScope):
        claim(world, acting=stranger)
    [task] = claim(world)
    with pytest.raises(OutsideTokenScope):
        settle(world, task, *erased(task), acting=stranger)
    with pytest.raises(TaskNotClaimed):
        settle(world, task, *erased(task), claim="0" * 32)
    with pytest.raises(UnknownRequest):
        settle(world, {**task, "id": "ctk_none"}, *erased(task))
    with pytest.raises(InvalidRequest):
        settle(world, task, Result(copy=999, outcome=Outcome.ERASED))
    assert states(world, request) == {"awaiting_external"}


def test_nothing_that_an_agent_sends_is_kept_in_words(world: World) -> None:
    embedded(world, "m1")
    request = world.erase()
    [task] = claim(world)
    canary = b"ada lives in Blackthorn Row"
    number = task["items"][0]["copy"]
    settle(world, task, Result(copy=number, outcome=Outcome.ERASED, level=Level.L2, canaries=(canary,)))
    world.work()
    [look] = claim(world)
    assert look["items"][0]["canaries"] == ["YWRhIGxpdmVzIGluIEJsYWNrdGhvcm4gUm93"]
    assert world.bytes_left("Blackthorn") == [], "what it held is sealed with the copy"
    assert world.rows(request)


def test_the_kind_itself_contacts_nothing_and_says_where_its_work_is_done() -> None:
    assert "agent" in built_kinds()
    with open_connector("agent", {"kind": "chroma"}, secrets=str) as connector:
        with pytest.raises(RunsElsewhere):
            connector.erase([], owner_identifiers=[], now=None, deadline=1)  # type: ignore[arg-type]
        report = connector.check(now=None, deadline=1)  # type: ignore[arg-type]
    assert (report.reachable, report.can_erase) == (False, False)
    assert "agent's process" in report.findings[0]
