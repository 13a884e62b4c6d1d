"""Two people at one desk at the same moment, on PostgreSQL, where both transactions really run at once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from erasure.errors import IllegalMove, StalePlan
from tests import schema
from tests.erasure.conftest import ADA, World

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
ROUNDS = 2


@pytest.fixture
def world(make_postgres_database: Callable[..., str], tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, make_postgres_database(schema.prepare))
    yield made
    made.close()


def together(*acts: Callable[[], Any]) -> list[Any]:
    """What each of these returned or raised, begun at the same moment."""
    gate = threading.Barrier(len(acts))

    def begin(act: Callable[[], Any]) -> Any:
        gate.wait()
        try:
            return act()
        except (IllegalMove, StalePlan) as refusal:
            return refusal

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(begin, acts))


def test_of_two_requests_planned_at_once_one_goes_on_and_the_other_is_its_duplicate(world: World) -> None:
    for number in range(ROUNDS):
        person = f"user:many_{number}"
        world.note(f"n{number}", "a remark of somebody", person)
        requests = together(lambda: world.ask(person), lambda: world.ask(person))  # noqa: B023 - called in this round
        together(*(lambda request=request: world.plan(request) for request in requests))
        states = {request: world.state(request) for request in requests}
        assert sorted(states.values()) == ["duplicate", "planned"]
        first, second = sorted(requests, key=lambda request: states[request] == "duplicate")
        assert world.reader.get(world.acting(), second)["duplicate_of"] == first
        world.approve(first)
        world.work(2)
        assert (world.state(first), world.state(second)) == ("completed", "duplicate")


def test_of_two_approvals_at_once_one_counts(world: World) -> None:
    world.note("n1", "Ada in the database", ADA)
    request = world.ask(ADA)
    world.plan(request)
    answers = together(lambda: world.approve(request, "carol"), lambda: world.approve(request, "dora"))
    assert Counter(type(answer) for answer in answers) == Counter([dict, IllegalMove])
    assert len(world.reader.get(world.acting(), request)["approvals"]) == 1
    world.work(2)
    assert world.state(request) == "completed"


def test_of_approval_and_cancellation_at_once_one_takes_effect(world: World) -> None:
    for number in range(ROUNDS):
        person = f"user:torn_{number}"
        world.note(f"t{number}", "a remark of somebody", person)
        request = world.ask(person)
        world.plan(request)
        together(
            lambda: world.approve(request, "carol"),  # noqa: B023 - called in this round
            lambda: world.desk.cancel(world.acting("ann"), request, now=world.now),  # noqa: B023 - as above
        )
        # Approved first, it may still be cancelled; cancelled first, it is never approved.
        assert world.state(request) == "cancelled"
        world.work(1)
        assert world.state(request) == "cancelled"
        assert set(world.copy_states(request).values()) == {"pending"}
