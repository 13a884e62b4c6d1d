"""One person with very many copies: the cost of a copy does not grow with their number, a stopped work goes on."""

from __future__ import annotations

import json
import sqlite3
import time
import tracemalloc
from contextlib import closing
from typing import Any

import pytest

from erasure.worker import run_due
from registry import artifacts

pytestmark = pytest.mark.timeout(3600)
ADA = "email:ada@example.org"
CHUNK = 1_000


def fill(world: Any, count: int) -> None:
    store = world.memory_store("many")
    for start in range(0, count, CHUNK):
        items = []
        for number in range(start, min(start + CHUNK, count)):
            store.put(f"k{number}", f"remark {number} of somebody who leaves".encode(), owner=ADA)
            items.append(
                {"data_class": "note", "store": "many", "locator": {"table": "t", "key": {"id": f"k{number}"}},
                 "subjects": [ADA]}
            )  # fmt: skip
        with world.parts.transactions(world.tenant.tenant_id) as session:
            artifacts.register(session, world.services.vault, world.acting("writer"), items, world.now)


def cost(world: Any, count: int) -> tuple[float, int]:
    """Processor seconds and bytes at the most for each copy, from plan to certificate."""
    world.classes({"note": {"erasure": {"on_request": "erase", "required": "L1"}}})
    fill(world, count)
    request = world.ask()
    tracemalloc.start()
    started = time.process_time()
    world.plan(request)
    world.approve(request)
    world.work(3)
    spent = time.process_time() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert world.state(request) == "completed"
    assert world.memory["many"].rows == {}
    return spent / count, peak // count


@pytest.mark.scenario("D8")
@pytest.mark.slow
def test_the_cost_of_a_copy_does_not_grow_with_their_number(make_world: Any, full_length: bool) -> None:
    few, many = (10_000, 100_000) if full_length else (150, 600)
    time_few, bytes_few = cost(make_world("few"), few)
    time_many, bytes_many = cost(make_world("many"), many)
    # Less a copy at the larger size, since what every request costs once is shared by more.
    assert time_many < 1.5 * time_few
    assert bytes_many < 1.5 * bytes_few
    # What is in memory as a whole is the plan while it is made or shown, and the certificate's own bytes.
    assert bytes_many < (8_000 if full_length else 40_000)


def test_fifty_copies_in_five_stores_are_certified_within_two_seconds_of_their_approval(world: Any) -> None:
    for number in range(3):
        path = world.base / "stores" / f"more{number}.db"
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE note (id TEXT PRIMARY KEY, owner TEXT, text TEXT)")
            rows = [(f"m{place}", ADA, f"more {number}: remark {place} of somebody who leaves") for place in range(10)]
            db.executemany("INSERT INTO note VALUES (?, ?, ?)", rows)
            db.commit()
        world.store(f"more{number}", "sql", {"url": f"sqlite:///{path}", "owner_field": "owner"})
        world.register(
            *(
                {"data_class": "note", "store": f"more{number}", "locator": {"table": "note", "key": {"id": key}},
                 "subjects": [ADA]}
                for key, _, _ in rows
            )
        )  # fmt: skip
    for place in range(10):
        world.note(f"n{place}", f"note {place} of somebody who leaves")
        world.file(f"{place}.txt", f"cv {place} of somebody who leaves")
    request = world.ask()
    world.plan(request)
    # Of the processor, which other work on the machine does not stretch.
    started = time.process_time()
    world.approve(request)
    run_due(world.parts, world.tenant, world.now)
    spent = time.process_time() - started
    assert world.state(request) == "completed"
    copies = json.loads(world.reader.certificate(world.acting(), request))["certificate"]["copies"]
    assert len({copy["store"] for copy in copies if copy["kind"] == "artifact" and copy["verified_at"]}) == 5
    assert len([copy for copy in copies if copy["kind"] == "artifact"]) == 50
    assert spent < 2.0


@pytest.mark.scenario("D8")
@pytest.mark.scenario("D2")
def test_a_work_that_stops_in_the_middle_goes_on_where_it_was(world: Any) -> None:
    count = 1_200
    world.classes({"note": {"erasure": {"on_request": "erase", "required": "L1"}}})
    fill(world, count)
    request = world.ask()
    world.plan(request)
    world.approve(request)
    inner, calls = world.parts.connect, []

    def dying(store: Any, read_only: bool) -> Any:
        opened = inner(store, read_only)
        erase = opened.erase

        def once(items: Any, **named: Any) -> Any:
            calls.append([item.copy_id for item in items])
            if len(calls) == 2:
                raise KeyboardInterrupt
            return erase(items, **named)

        opened.erase = once
        return opened

    world.change(connect=dying)
    with pytest.raises(KeyboardInterrupt):
        run_due(world.parts, world.tenant, world.now)
    left = len(world.memory["many"].rows)
    assert 0 < left < count
    first = len(calls[0])
    world.change(connect=inner)
    world.work(3)
    assert world.state(request) == "completed"
    assert len(world.rows(request)) >= count
    assert left == count - first
