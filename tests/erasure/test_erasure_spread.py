"""One thing about a person that lies in several places: what public systems forgot when they deleted one of them."""

from __future__ import annotations

import itertools
import sqlite3
from datetime import timedelta
from typing import Any

import pytest

from connectors.memory import Faults
from ledger.errors import LedgerError
from registry import artifacts

ADA = "email:ada@example.org"
BOB = "user:bob_7"
SAID = "Ada prefers the ground floor"


def in_memory(store: str, key: str, **more: Any) -> dict[str, Any]:
    return {"data_class": "note", "store": store, "locator": {"table": "t", "key": {"id": key}}, **more}


@pytest.fixture
def places(world: Any) -> tuple[Any, dict[str, str]]:
    """One memory in a vector store, in a graph and in a history table; the graph refuses to delete."""
    for name, faults in (("vectors", None), ("graph", Faults(refuses=frozenset({"m1"}))), ("history", None)):
        world.memory_store(name, faults)
    return world, {name: world.keep_in_memory(name, "m1", SAID) for name in ("vectors", "graph", "history")}


@pytest.mark.scenario("A1")
def test_a_memory_in_three_stores_is_not_gone_while_one_of_them_keeps_it(places: tuple[Any, dict[str, str]]) -> None:
    world, copies = places
    request = world.erase()
    states = world.copy_states(request)
    assert states[copies["graph"]] == "failed"
    assert states[copies["vectors"]] == states[copies["history"]] == "erased_physical"
    assert world.state(request) == "partially_failed"
    assert [name for name, store in world.memory.items() if store.rows] == ["graph"]
    world.faults.clear()
    world.desk.retry(world.acting("ann"), request, now=world.now)
    world.work()
    assert world.state(request) == "completed"
    assert not any(store.rows or store.freed for store in world.memory.values())


@pytest.mark.scenario("A15")
def test_a_file_its_chunks_and_its_own_collection_go_together(world: Any) -> None:
    upload = world.file("upload.txt", SAID)
    world.memory_store("knowledge")
    world.memory_store("per-file")
    made = [("knowledge", "c1"), ("knowledge", "c2"), ("per-file", "f1")]
    for store, key in made:
        world.memory[store].put(key, f"{key}: {SAID}".encode())
    # Whoever chunks a file names the file, and nobody: people travel with derivation.
    copies = world.register(*(in_memory(store, key, sources=[upload]) for store, key in made))
    other = world.file("other.txt", "about somebody else", subjects=[BOB])
    request = world.erase()
    states = world.copy_states(request)
    assert {states[copy] for copy in (upload, *copies)} == {"erased_physical"}
    assert other not in states
    assert world.state(request) == "completed"
    assert not world.bytes_left(SAID)
    assert not world.memory["knowledge"].rows
    assert not world.memory["per-file"].rows


@pytest.mark.scenario("S38", "A19")
def test_what_hangs_on_a_conversation_goes_with_it(world: Any) -> None:
    said = world.say_as("here is my passport")
    upload = world.file("passport.png", "bytes of a passport of Ada", subjects=[], sources=[f"entry:{said}"])
    world.memory_store("runs")
    world.memory["runs"].put("ckpt", b"state with a passport of Ada")
    (checkpoint,) = world.register(in_memory("runs", "ckpt", sources=[upload]))
    request = world.erase()
    states = world.copy_states(request)
    assert states[upload] == states[checkpoint] == "erased_physical"
    assert world.text_of(said) is None
    assert not world.bytes_left("passport of Ada")
    assert not world.memory["runs"].rows


@pytest.mark.scenario("S22")
def test_a_summary_of_an_erased_fact_does_not_outlive_it(world: Any) -> None:
    fact = world.note("1", SAID)
    summary = world.file("entity.txt", f"About the guest: {SAID}.", subjects=[], sources=[fact])
    request = world.erase()
    assert world.copy_states(request)[summary] == "erased_physical"
    assert not (world.files / "entity.txt").exists()
    assert not world.bytes_left(SAID)


@pytest.mark.scenario("A8", "S21")
def test_a_copy_without_a_person_and_without_a_source_is_refused(world: Any) -> None:
    world.memory_store("graph")
    with world.parts.transactions(world.tenant.tenant_id) as session:
        (result,) = artifacts.register(
            session, world.services.vault, world.acting("writer"), [in_memory("graph", "entity")], world.now
        )
    assert result["status"] == "rejected"
    assert result["problem"]["type"].endswith("no-subject")


@pytest.mark.scenario("S21", "S39", "A8")
@pytest.mark.parametrize("where", ["the same table", "another table"])
def test_an_unregistered_row_with_the_same_words_keeps_the_request_open(world: Any, where: str) -> None:
    """Nobody registered the copy, so no plan can name it; a scan of the store's own bytes finds it all the same."""
    kept = world.note("1", SAID)
    with sqlite3.connect(world.database_file) as db:
        if where == "another table":
            db.execute("CREATE TABLE kv (k TEXT, v TEXT)")
            db.execute("INSERT INTO kv VALUES ('content', ?)", (SAID,))
        else:
            db.execute("INSERT INTO note VALUES ('orphan', NULL, ?)", (SAID,))
    request = world.erase()
    assert world.bytes_left(SAID)
    assert world.state(request) != "completed"
    assert world.copy_states(request)[kept] != "erased_physical"
    with sqlite3.connect(world.database_file) as db:
        db.execute("DROP TABLE kv" if where == "another table" else "DELETE FROM note WHERE id = 'orphan'")
    world.desk.retry(world.acting("ann"), request, now=world.now)
    world.work()
    assert world.state(request) == "completed"
    assert not world.bytes_left(SAID)


@pytest.mark.scenario("C14", "S42")
def test_of_a_shared_conversation_one_persons_turns_go_and_the_others_stay_readable(world: Any) -> None:
    hers = world.say_as("it hurts on the left", (ADA,), "group")
    his = world.say_as("have you seen a doctor", (BOB,), "group")
    request = world.erase(ADA)
    assert world.state(request) == "completed"
    assert world.text_of(hers) is None
    assert world.text_of(his) == "have you seen a doctor"
    log = world.services.log
    world.services.log.publish(world.tenant.tenant_id, world.now)
    for entry in (hers, his):
        index = world.read(entry).row.idx
        assert log.proof(world.tenant.tenant_id, index, world.now).inclusion is not None
    assert not world.bytes_left("it hurts on the left")


@pytest.mark.scenario("D3")
def test_what_keeps_the_service_from_working_stands_on_the_requests_timeline_and_its_end_too(world: Any) -> None:
    world.note("1", SAID)
    request = world.ask()
    world.plan(request)
    world.approve(request)
    world.note("2", "another note")
    batches = world.services.settings.data / "objects" / world.tenant.log_id / "batch"
    away = batches.rename(batches.with_name("gone"))
    batches.write_bytes(b"not a folder")  # no event of the record can be written, so nothing may be destroyed
    raised = []
    for _ in range(3):
        with pytest.raises(LedgerError) as failed:
            world.work(1)
        raised.append(failed.type.__name__)
    assert world.state(request) in ("approved", "executing")
    batches.unlink()
    away.rename(batches)
    world.work()
    assert world.state(request) == "completed"
    lines = world.reader.get(world.acting(), request)["history"]
    told = [(line["event"], line["detail"]) for line in lines if line["event"].startswith("work_")]
    reasons = [name for name, _ in itertools.groupby(raised)]
    assert len(reasons) < len(raised), "the same reason is told once"
    assert told == [*(("work_failed", {"error": name}) for name in reasons), ("work_goes_on", {})]
    assert SAID not in str(lines)


@pytest.mark.scenario("D3")
def test_a_worker_that_cannot_work_says_why_on_the_requests_own_timeline(world: Any) -> None:
    world.memory_store("cache", Faults(unreachable=True))
    copy = world.keep_in_memory("cache", "k", SAID)
    request = world.ask()
    world.plan(request)
    world.approve(request)
    world.work(2)
    shown = [one for one in world.reader.copies(world.acting(), request) if one.get("artifact") == copy]
    assert shown[0]["state"] not in ("erased_physical", "erased_logical", "done")
    assert "StoreUnreachable" in shown[0]["detail"] or "unreachable" in shown[0]["detail"]
    world.now += timedelta(days=2)
    world.work()
    assert world.state(request) == "partially_failed"
    assert world.reader.get(world.acting(), request)["waiting_for"] is not None
