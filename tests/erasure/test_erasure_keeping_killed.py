"""A process that is killed between the steps of keeping (SIGKILL, from outside): what must stay still opens."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from erasure.worker import advance
from tests.erasure.conftest import World
from tests.erasure.crashing import break_commit, count_commits
from tests.erasure.test_erasure_keeping import assert_one_stays, prepared

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    # Another test of this process may have imported it; the forked child never uses it.
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
]
PORTS = ("event", "part_keys", "keep_part_rows")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_in(world: World, request: str, at: Callable[[World, pytest.MonkeyPatch], None]) -> None:
    """Do the work in a process of its own, which is killed where `at` says."""

    def work() -> None:
        world.start_again()
        with pytest.MonkeyPatch.context() as patch:
            at(world, patch)
            advance(world.parts, world.tenant, request, world.now)

    world.services.close()
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    world.start_again()


def assert_nothing_is_lost(world: World, request: str, entries: list[str]) -> None:
    assert world.text_of(entries[3]) == "words number 3 of Ada"
    world.work(12)
    assert_one_stays(world, request, entries)


@pytest.mark.scenario("D2")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("port", PORTS)
def test_a_process_killed_around_any_step_of_keeping_loses_nothing(world: World, port: str, when: str) -> None:
    request, entries = prepared(world)

    def at(world: World, patch: pytest.MonkeyPatch) -> None:
        real: Any = world.services.record.event if port == "event" else getattr(world.parts, port)

        def last(*given: Any) -> Any:
            if port == "event" and given[1].value not in ("part.kept", "key.destroying"):
                return real(*given)
            if when == "after":
                real(*given)
            return kill()

        if port == "event":
            patch.setattr(world.services.record, "event", last)
        else:
            world.change(**{port: last})

    killed_in(world, request, at)
    assert_nothing_is_lost(world, request, entries)


@pytest.mark.scenario("D2")
def test_a_process_killed_at_any_commit_loses_nothing(
    make_world: Callable[[str], World], monkeypatch: pytest.MonkeyPatch, full_length: bool
) -> None:
    whole = make_world("count")
    of_whole, _ = prepared(whole)
    count = count_commits(monkeypatch, lambda: advance(whole.parts, whole.tenant, of_whole, whole.now))
    for number in range(1, count + 1) if full_length else (6, 9):
        for after in (False, True):
            world = make_world(f"killed-{number}-{after}")
            request, entries = prepared(world)
            killed_in(world, request, lambda _, patch, n=number, a=after: break_commit(patch, n, after=a, end=kill))  # type: ignore[misc]  # bound now
            assert_nothing_is_lost(world, request, entries)
