from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from connectors.base import Item, Level, Outcome, Selector, open_connector
from connectors.errors import BadConfig, ModeNotBuilt, StoreUnreachable
from tests.connectors.contract import BEN, MIA, NOW, Contract, captured, erase, text_of
from tests.connectors.mem0_bed import Mem0Bed, uid
from tests.connectors.vector_beds import vector_of


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Mem0Bed]:
    made = Mem0Bed(tmp_path)
    yield made
    made.release()


class TestMem0(Contract):
    holds = "mem0, folder"


def items_of(*names: str) -> list[Item]:
    return [Item(copy_id=name, locator={"memory_id": name if "/" in name else uid(name)}) for name in names]


def wiped(bed: Mem0Bed, items: Sequence[Item], who: str = MIA) -> list[tuple[Level | None, bool | None]]:
    with bed.open() as connector:
        outcomes = {receipt.outcome for receipt in erase(connector, list(items), who)}
        assert outcomes <= {Outcome.ERASED, Outcome.ALREADY_ABSENT}
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    with bed.open(read_only=True) as verifier:
        return [(f.level, f.present) for f in verifier.verify(items, Level.L2, deadline=30, reclaimed=report)]


@pytest.mark.scenario("S17", "L32")
def test_mem0s_delete_writes_the_text_once_more_and_ours_takes_all_four_places(bed: Mem0Bed) -> None:
    for n in range(3):
        bed.remember(f"mia-{n}", text_of(f"mia-{n}"), turn=f"raw words of mia number {n}", user_id="mia")
        bed.remember(f"ben-{n}", text_of(f"ben-{n}"), turn=f"raw words of ben number {n}", user_id=BEN)
    bed.event("mia-1", "I lived at 9 Oldcastle Lane", text_of("mia-1"), "UPDATE")
    bed.link("Blackthorn Row of mia", ["mia-0", "mia-1", "mia-2"], user_id="mia")
    bed.link("Blackthorn Row of ben", ["ben-0"], user_id=BEN)
    items = items_of("mia-0", "mia-1", "mia-2")
    with bed.open() as connector:
        items = captured(connector, items)
    words = ("raw words of mia number 1", "I lived at 9 Oldcastle Lane", "Blackthorn Row of mia", text_of("mia-1"))
    for name in ("mia-0", "mia-1", "mia-2"):
        bed.own_delete(name)
    # Gone from mem0's own answers, and written down once more.
    assert bed.get("mia-1") is None
    assert (text_of("mia-1"),) in bed.run("SELECT old_memory FROM history WHERE event = 'DELETE'")
    assert all(bed.hits(word) for word in words)
    with bed.open(read_only=True) as verifier:
        seen = verifier.verify(items, Level.L1, deadline=30)
        assert {residue.where for residue in verifier.residue(items[1].canaries, deadline=30)} == {
            "history",
            "collection files",
        }
    assert {(f.level, f.present) for f in seen} == {(None, True)}
    assert wiped(bed, items) == [(Level.L2, False)] * 3
    assert [bed.hits(word) for word in words] == [0] * 4
    assert sorted(bed.run("SELECT DISTINCT memory_id FROM history")) == sorted((uid(f"ben-{n}"),) for n in range(3))
    assert bed.run("SELECT DISTINCT session_scope FROM messages") == [("user_id=user:ben",)]
    assert bed.entities() == {"Blackthorn Row of ben": [uid("ben-0")]}
    assert [bed.get(f"ben-{n}") for n in range(3)] == [text_of(f"ben-{n}") for n in range(3)]
    assert bed.run("SELECT count(*) FROM history") == [(3,)]


@pytest.mark.scenario("S16", "A4")
def test_more_than_twenty_memories_are_found_and_none_by_search_afterwards(bed: Mem0Bed) -> None:
    names = [f"mia-{n}" for n in range(25)]
    for n, name in enumerate(names):
        expires = {"expiration_date": "2020-01-01"} if n % 5 == 0 else {}
        bed.remember(name, text_of(name), user_id="mia", **expires)
    bed.remember("ben-0", text_of("ben-0"), user_id=BEN)
    with bed.open() as connector:
        found = list(connector.discover(Selector(identifiers=(MIA,)), deadline=30))
    assert len(found) == 25
    items = [Item(copy_id=str(n), locator=locator) for n, locator in enumerate(found)]
    with bed.open() as connector:
        items = captured(connector, items)
    assert wiped(bed, items) == [(Level.L2, False)] * 25
    with bed.client() as client:
        for name in names[:3]:
            near = client.query_points("mem0", query=vector_of(text_of(name)), limit=5).points
            assert [(point.payload or {})["user_id"] for point in near] == [BEN]
    assert bed.run("SELECT count(*) FROM messages") == [(1,)]


def test_an_entity_that_others_need_loses_its_link_and_stays(bed: Mem0Bed) -> None:
    for name in ("mia-0", "mia-1"):
        bed.remember(name, text_of(name), user_id="mia")
    bed.link("the sea", ["mia-0", "mia-1"], user_id="mia")
    bed.link("the hills", ["mia-0"], user_id="mia")
    assert wiped(bed, items_of("mia-0")) == [(Level.L2, False)]
    assert bed.entities() == {"the sea": [uid("mia-1")]}
    with bed.client() as client:
        # Read by Qdrant's own client, found by its vector: the row was written back whole.
        near = client.query_points("mem0_entities", query=vector_of("the sea"), limit=1).points[0]
    assert (near.payload or {})["entity_type"] == "PROPER"
    assert near.score == pytest.approx(1.0, abs=1e-5)
    assert bed.get("mia-1") == text_of("mia-1")
    assert wiped(bed, items_of("mia-1")) == [(Level.L2, False)]
    assert bed.entities() == {}


def test_turns_of_a_scope_that_several_people_share_are_left_and_said(bed: Mem0Bed) -> None:
    bed.remember("mia-0", text_of("mia-0"), turn="mia told the agent a secret", agent_id="a1", person="mia")
    bed.remember("ben-0", text_of("ben-0"), turn="ben told the agent another", agent_id="a1", person="ben")
    config = {"path": str(bed.path), "owner_field": "person"}
    bed.release()
    with open_connector("mem0", config, secrets=str) as connector:
        items = captured(connector, items_of("mia-0"))
        receipt = erase(connector, items)[0]
        assert receipt.outcome is Outcome.ERASED
        assert "raw turns of a scope that is not the owner's alone were left" in receipt.detail
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
        finding = connector.verify(items, Level.L2, deadline=30, reclaimed=report)[0]
        # Her words are among them, so nobody says that she is gone.
        assert (finding.level, finding.present) == (Level.L1, True)
        assert erase(connector, items_of("messages/agent_id=a1"))[0].outcome is Outcome.OWNER_MISMATCH
    assert bed.run("SELECT count(*) FROM messages") == [(2,)]
    assert bed.get("ben-0") == text_of("ben-0")


def test_turns_of_a_scope_of_one_person_go_by_their_memories_or_by_name(bed: Mem0Bed) -> None:
    bed.remember("mia-0", text_of("mia-0"), turn="said to the agent", agent_id="a1", person="mia")
    bed.remember("mia-1", text_of("mia-1"), turn="said in a run", user_id="lu=cia", run_id="r=1&2%")
    config = {"path": str(bed.path), "owner_field": "person"}
    bed.release()
    with open_connector("mem0", config, secrets=str) as connector:
        assert erase(connector, items_of("mia-0"))[0].outcome is Outcome.ERASED
    assert bed.run("SELECT content FROM messages") == [("said in a run",)]
    bed.own_delete("mia-1")
    scope = "messages/run_id=r%3D1%262%25&user_id=lu%3Dcia"
    with bed.open() as connector:
        found = list(connector.discover(Selector(identifiers=("user:lu=cia",)), deadline=10))
        assert found == [{"memory_id": scope}]
        assert erase(connector, items_of(scope))[0].outcome is Outcome.OWNER_MISMATCH
        assert erase(connector, items_of(scope), "user:lu=cia")[0].outcome is Outcome.ERASED
        assert erase(connector, items_of(scope), "user:lu=cia")[0].outcome is Outcome.ALREADY_ABSENT
    assert bed.run("SELECT count(*) FROM messages") == [(0,)]


def test_what_mem0_deleted_is_found_by_its_entities_and_by_walking(bed: Mem0Bed) -> None:
    bed.remember("mia-0", text_of("mia-0"), user_id="mia")
    bed.link("the sea", ["mia-0"], user_id="mia")
    bed.own_delete("mia-0")
    with bed.open(read_only=True) as connector:
        found = list(connector.discover(Selector(identifiers=(MIA,)), deadline=10))
        assert found == [{"memory_id": uid("mia-0")}, {"memory_id": "messages/user_id=mia"}]
        assert list(connector.walk(deadline=10)) == found
    with bed.open() as connector:
        receipt = erase(connector, items_of("mia-0"), BEN)[0]
        assert receipt.outcome is Outcome.OWNER_MISMATCH
        receipt = erase(connector, items_of("mia-0"))[0]
    assert receipt.detail.startswith("what mem0's delete left")
    assert bed.run("SELECT count(*) FROM messages") == [(0,)]
    assert bed.entities() == {}


def test_users_are_compared_whole_and_case_counts(bed: Mem0Bed) -> None:
    people = ["mia", "Mia", "mia2", "m%", "mia&agent_id=a"]
    for person in people:
        bed.remember(person, f"memory of {person}", user_id=person)
    with bed.open() as connector:
        found = list(connector.discover(Selector(identifiers=(MIA,)), deadline=10))
        assert found == [{"memory_id": uid("mia")}]
        outcomes = [receipt.outcome for receipt in erase(connector, items_of(*people))]
    assert outcomes == [Outcome.ERASED, *[Outcome.OWNER_MISMATCH] * 4]
    assert [bed.get(person) is None for person in people] == [True, False, False, False, False]


def test_an_export_holds_all_four_places(bed: Mem0Bed) -> None:
    bed.remember("mia-0", text_of("mia-0"), turn="the raw words", user_id="mia")
    bed.link("the sea", ["mia-0"], user_id="mia")
    with bed.open(read_only=True) as connector:
        content = dict(connector.export(items_of("mia-0", "messages/user_id=mia", "nobody"), deadline=10))
    memory = json.loads(content["mia-0"] or b"")
    assert memory["memory"][0]["data"] == text_of("mia-0")
    assert memory["history"][0]["event"] == "ADD"
    assert memory["entities"][0]["data"] == "the sea"
    assert json.loads(content["messages/user_id=mia"] or b"")["messages"][0]["content"] == "the raw words"
    assert content["nobody"] is None


def test_without_an_owner_turns_go_only_with_the_last_memory_of_their_scope(bed: Mem0Bed) -> None:
    for name in ("mia-0", "mia-1"):
        bed.remember(name, text_of(name), user_id="mia")
    with bed.open(owner=False) as connector:
        assert "were left" in erase(connector, items_of("mia-0"))[0].detail
        assert bed.run("SELECT count(*) FROM messages") == [(2,)]
        assert "were left" not in erase(connector, items_of("mia-1"))[0].detail
    assert bed.run("SELECT count(*) FROM messages") == [(0,)]


def test_an_application_that_has_mem0_open_is_named(bed: Mem0Bed) -> None:
    bed.remember("mia-0", text_of("mia-0"), user_id="mia")
    with bed.open() as connector, bed.client() as application:
        with pytest.raises(StoreUnreachable, match="an application has the folder open"):
            erase(connector, items_of("mia-0"))
        assert application.count("mem0").count == 1
    assert bed.run("SELECT count(*) FROM history") == [(1,)]


def test_looking_changes_no_file(bed: Mem0Bed) -> None:
    bed.remember("mia-0", text_of("mia-0"), user_id="mia")
    bed.release()

    def state() -> dict[str, tuple[int, bytes]]:
        files = [file for file in bed.path.rglob("*") if file.is_file()]
        return {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in files}

    before = state()
    with bed.open(read_only=True) as connector:
        items = captured(connector, items_of("mia-0"))
        connector.verify(items, Level.L2, deadline=30)
        list(connector.export(items, deadline=30))
        list(connector.walk(deadline=30))
    assert state() == before


def test_folders_that_are_not_mem0s_are_named_errors(tmp_path: Path) -> None:
    with pytest.raises(ModeNotBuilt, match="'url'"):
        open_connector("mem0", {"url": "https://api.example.org"}, secrets=str)
    for config in ({}, {"path": "relative"}, {"path": str(tmp_path), "surprise": 1}):
        with pytest.raises(BadConfig):
            open_connector("mem0", config, secrets=str)
    with pytest.raises(BadConfig, match="over a folder of Chroma"):
        open_connector("mem0", {"path": str(tmp_path), "vector_store": "faiss"}, secrets=str)
    open_connector("mem0", {"path": str(tmp_path), "vector_store": "qdrant"}, secrets=str).close()
    (tmp_path / "empty").mkdir()
    (tmp_path / "chroma").mkdir()
    (tmp_path / "chroma" / "chroma.sqlite3").touch()
    foreign = tmp_path / "foreign"
    (foreign / "qdrant").mkdir(parents=True)
    (foreign / "qdrant" / "meta.json").write_text('{"collections": {}}')
    sqlite3.connect(foreign / "history.db").execute("CREATE TABLE history (id TEXT)").connection.close()
    for name in ("missing", "empty", "chroma", "foreign"):
        with open_connector("mem0", {"path": str(tmp_path / name)}, secrets=str) as connector:
            with pytest.raises(StoreUnreachable):
                erase(connector, items_of("mia-0"))
            assert connector.check(now=NOW, deadline=5).reachable is False
