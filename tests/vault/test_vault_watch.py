"""Every process empties its caches after a destruction, and who destroyed knows when all have."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlmodel import Session

from tests.vault.conftest import TENANT, World
from vault.errors import KeyDestroyed
from vault.vault import Vault
from vault.watch import Fence, Watch, raise_fence

BOUND = timedelta(seconds=60)


class Process:
    """One process: its vault and its watch."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.reachable = True
        self.vault: Vault = world.vault()
        self.watch = Watch(
            process_id=name, sessions=self._sessions, evict=self.vault.evict_all, bound=BOUND, clock=world.clock
        )

    @contextmanager
    def _sessions(self, *, write: bool) -> Iterator[Session]:
        del write
        if not self.reachable:
            raise OSError("the database does not answer")
        with self.world.transaction() as session:
            yield session

    def read(self, key_id: str) -> bytes:
        with self.world.transaction() as session:
            return self.vault.open_keys(session, TENANT, [key_id])[key_id]


def _made(process: Process) -> str:
    with process.world.transaction() as session:
        return process.vault.key_for(session, TENANT, 1, "transcript", "2026-05").key_id


def _destroy(process: Process, key_id: str) -> Fence:
    world = process.world
    with world.transaction() as session:
        process.vault.mark_destroying(session, TENANT, [key_id], request="r")
        process.vault.delete_wrapped(session, TENANT, [key_id], now=world.clock(), request="r")
        fence = raise_fence(session, world.clock())
    process.vault.evict([key_id])
    return fence


@pytest.mark.scenario("L31")
def test_a_warm_cache_of_another_process_is_empty_once_it_has_applied_the_fence(any_world: World) -> None:
    one, two = Process(any_world, "one"), Process(any_world, "two")
    one.watch.beat()
    two.watch.beat()
    key_id = _made(one)
    assert two.read(key_id) == one.read(key_id)
    fence = _destroy(one, key_id)
    # The second process still serves from memory: exactly what the execution has to wait for.
    assert two.read(key_id)
    assert not one.watch.cleared(fence)
    two.watch.beat()
    assert one.watch.cleared(fence)
    for process in (one, two):
        with pytest.raises(KeyDestroyed):
            process.read(key_id)


def test_one_process_alone_goes_on_at_once(world: World) -> None:
    one = Process(world, "one")
    one.watch.beat()
    assert one.watch.cleared(_destroy(one, _made(one)))


def test_a_process_that_does_not_answer_is_waited_for_two_bounds_and_no_longer(world: World) -> None:
    one, two = Process(world, "one"), Process(world, "two")
    one.watch.beat()
    two.watch.beat()
    key_id = _made(one)
    two.read(key_id)
    fence = _destroy(one, key_id)
    world.clock.advance(2 * BOUND - timedelta(seconds=1))
    assert not one.watch.cleared(fence)
    world.clock.advance(timedelta(seconds=1))
    assert one.watch.cleared(fence)
    with pytest.raises(KeyDestroyed):
        two.read(key_id)


def test_a_process_that_ended_is_not_waited_for(world: World) -> None:
    one, two = Process(world, "one"), Process(world, "two")
    one.watch.beat()
    two.watch.start()
    key_id = _made(one)
    two.read(key_id)
    two.watch.stop()
    with pytest.raises(KeyDestroyed):
        two.read(_fenced(one, key_id))
    assert one.watch.cleared(_destroy(one, key_id))


def test_the_processes_that_are_waited_for_are_counted(any_world: World) -> None:
    one, two, three = (Process(any_world, name) for name in ("one", "two", "three"))
    for process in (one, two, three):
        process.watch.beat()
    fence = _destroy(one, _made(one))
    assert one.watch.behind(fence) == 2
    two.watch.beat()
    assert one.watch.behind(fence) == 1
    three.watch.beat()
    assert one.watch.behind(fence) == 0


def test_who_starts_as_the_only_process_does_not_wait_for_the_killed(world: World) -> None:
    killed = Process(world, "killed")
    killed.watch.beat()
    alone, beside = Process(world, "alone"), Process(world, "beside")
    beside.watch.beat()
    fence = _destroy(beside, _made(beside))
    assert beside.watch.behind(fence) == 1, "who may have others beside it waits"
    alone.watch.start(sole=True)
    assert alone.watch.behind(fence) == 0
    with world.transaction() as session:
        again = raise_fence(session, world.clock())
    assert alone.watch.cleared(again)
    alone.watch.stop()


def _fenced(process: Process, key_id: str) -> str:
    _destroy(process, key_id)
    return key_id


def test_a_process_without_a_database_holds_nothing(world: World) -> None:
    one, two = Process(world, "one"), Process(world, "two")
    two.watch.beat()
    key_id = _made(one)
    two.read(key_id)
    fence = _destroy(one, key_id)
    two.reachable = False
    with pytest.raises(OSError, match="does not answer"):
        two.watch.beat()
    with pytest.raises(KeyDestroyed):
        two.read(key_id)
    assert not one.watch.cleared(fence)


def test_a_new_process_starts_at_the_present_number(world: World) -> None:
    one = Process(world, "one")
    one.watch.beat()
    fence = _destroy(one, _made(one))
    late = Process(world, "late")
    assert late.watch.beat() == fence.counter
    assert one.watch.cleared(fence)


def test_every_destruction_counts_once_also_side_by_side(any_world: World) -> None:
    with any_world.transaction() as session:
        raise_fence(session, any_world.clock())
    seen: list[int] = []

    def destroy() -> None:
        for _ in range(5):
            with any_world.transaction() as session:
                seen.append(raise_fence(session, any_world.clock()).counter)

    threads = [threading.Thread(target=destroy) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(2, 22))


def test_a_fence_is_kept_beside_a_request_as_it_was(world: World) -> None:
    fence = Fence(counter=3, at=world.clock())
    assert Fence.of_json(fence.as_json()) == fence
