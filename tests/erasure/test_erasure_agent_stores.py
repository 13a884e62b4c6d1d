"""What agents' own stores do to a request: late writes, graphs whose episodes went first, everybody at once."""

from __future__ import annotations

import sqlite3
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver
from sqlmodel import select

from connectors.memory import Faults
from erasure.worker import run_due
from registry.models import StoreRow
from tests.erasure.conftest import ADA, BOB

SAID = "Ada Lovelace wrote about her rash on Tuesday"


@pytest.mark.scenario("S1")
def test_a_write_that_comes_after_the_erasure_of_its_thread_is_found_recorded_and_erased_again(world: Any) -> None:
    path = world.base / "stores" / "agent.db"
    with sqlite3.connect(path, check_same_thread=False) as db:
        saver = SqliteSaver(db)
        saver.setup()
        config: Any = {"configurable": {"thread_id": "t-ada", "checkpoint_ns": ""}}
        kept: Any = saver.put(config, empty_checkpoint(), {"user_id": ADA}, {})  # type: ignore[typeddict-unknown-key]
        saver.put_writes(kept, [("messages", SAID)], "task")
        world.store("agent", "langgraph", {"url": f"sqlite:///{path}", "owner_field": "user_id"})
        (thread,) = world.register(
            {"data_class": "note", "store": "agent", "locator": {"thread_id": "t-ada"}, "subjects": [ADA]}
        )
        request = world.erase()
        assert (world.state(request), world.copy_states(request)[thread]) == ("completed", "erased_physical")
        saver.put_writes(kept, [("messages", f"{SAID}, said late")], "late")
        assert saver.get_tuple(config) is None, "the saver itself never shows it again"
        world.now += timedelta(days=2)
        run_due(world.parts, world.tenant, world.now)
        assert world.state(request) == "executing"
        world.work()
        assert (world.state(request), world.copy_states(request)[thread]) == ("completed", "erased_physical")
        assert db.execute("SELECT count(*) FROM writes").fetchone() == (0,)
    found = [each for each in world.reader.get(world.acting(), request)["history"] if each["event"] == "reopened"]
    assert [each["detail"]["why"] for each in found] == ["found in the quiet period"]
    assert found[0]["entry"], "the record has it too"
    assert not world.bytes_left(SAID)


@pytest.mark.scenario("S23")
def test_facts_of_an_episode_that_the_application_deleted_alone_go_with_its_person(world: Any) -> None:
    """A graph's own tool drops the episode and leaves the facts that were drawn from it: they point at nothing."""
    episode = world.note("episode", SAID)
    others = world.note("other", "Bob asked for tea", owner=BOB)
    world.memory_store("graph")
    for key, text in (("fact", f"about the guest: {SAID}"), ("kept", "Bob likes tea")):
        world.memory["graph"].put(key, text.encode())
    fact, kept = world.register(*(
        {"data_class": "note", "store": "graph", "locator": {"table": "t", "key": {"id": key}}, "sources": [source]}
        for key, source in (("fact", episode), ("kept", others))
    ))  # fmt: skip
    with sqlite3.connect(world.database_file) as db:
        db.execute("DELETE FROM note WHERE id = 'episode'")
    request = world.erase()
    states = world.copy_states(request)
    assert (states[episode], states[fact]) == ("already_absent", "erased_physical")
    assert kept not in states
    assert world.state(request) == "completed"
    assert set(world.memory["graph"].rows) == {"kept"}


@pytest.mark.scenario("A5")
@pytest.mark.parametrize("forgets", [True, False], ids=["every store", "all but the graph"])
def test_when_everybody_goes_what_is_left_is_counted_store_by_store(world: Any, forgets: bool) -> None:
    """A framework's own reset left the graph and said it was done: here the store that keeps something is named."""
    world.memory_store("graph", None if forgets else Faults(keeps=frozenset({"BOB"})))
    for owner, name in ((ADA, "ADA"), (BOB, "BOB")):
        world.note(name, f"{name} said {SAID}", owner=owner)
        world.file(f"{name}.txt", f"{name} wrote {SAID}", subjects=[owner])
        world.keep_in_memory("graph", name, f"{name} told {SAID}", owner=owner)
    request = world.erase(ADA, BOB)
    left: Counter[str] = Counter()
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        rows = list(session.exec(select(StoreRow).where(StoreRow.tenant_id == world.tenant.tenant_id)))
    for row in rows:
        with world.connect(row, True) as connector:
            left[row.name] += sum(1 for _ in connector.walk(deadline=10))
    assert left == Counter({"db": 0, "cvs": 0, "graph": 0 if forgets else 1})
    told: dict[str, Counter[str]] = {row.name: Counter() for row in rows}
    for copy in world.reader.copies(world.acting(), request):
        if copy.get("store") in told:
            told[copy["store"]][copy["state"]] += 1
    gone = Counter({"erased_physical": 2})
    assert (told["db"], told["cvs"]) == (gone, gone)
    assert told["graph"] == (gone if forgets else Counter({"erased_physical": 1, "failed": 1}))
    assert world.state(request) == ("completed" if forgets else "partially_failed")
