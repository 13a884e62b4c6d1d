"""Kind `mem0` where its memories lie in a folder of Chroma: the same contract, and what is only there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

from connectors.base import Connector, Item, Level, Outcome, Selector, open_connector
from connectors.errors import ModeNotBuilt, StoreUnreachable
from connectors.scanning.plain import reach_of
from connectors.scanning.scan import scan
from tests.connectors.contract import BEN, MIA, NOW, OF_PROCESSES, Contract, captured, erase, oracle, text_of
from tests.connectors.mem0_bed import HISTORY, MESSAGES, Mem0Bed, uid
from tests.connectors.test_connectors_chroma import ChromaBed
from tests.connectors.vector_beds import vector_of


class _Vectors(ChromaBed):
    """mem0's client of Chroma: a collection of memories and one of entities."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.running = None
        with self.client() as client:
            for name in ("mem0", "mem0_entities"):
                client.create_collection(name, embedding_function=None)

    @contextmanager
    def of(self, name: str) -> Iterator[Any]:
        with self.client() as client:
            yield client.get_collection(name, embedding_function=None)


class Mem0OverChroma(Mem0Bed):
    def __init__(self, folder: Path) -> None:
        self.path = folder / "mem0"
        self.path.mkdir()
        self.vectors = _Vectors(self.path / "chroma")
        self.run(HISTORY)
        self.run(MESSAGES)

    def release(self) -> None:
        self.vectors.release()

    def write(self, collection: str, identity: str, text: str, payload: Mapping[str, Any]) -> None:
        with self.vectors.of(collection) as records:
            records.add(ids=[identity], embeddings=[vector_of(text)], metadatas=[dict(payload)])

    def payloads(self, collection: str) -> list[dict[str, Any]]:
        with self.vectors.of(collection) as records:
            return list(records.get()["metadatas"])

    def get(self, name: str) -> str | None:
        with self.vectors.of("mem0") as records:
            found = records.get(ids=[uid(name)])["metadatas"]
        return str(found[0]["data"]) if found else None

    def vectors_of(self, name: str) -> object:
        with self.vectors.of("mem0") as records:
            found = records.get(ids=[uid(name)], include=["metadatas", "embeddings"])
        return (found["metadatas"], [list(map(float, each)) for each in found["embeddings"]]) if found["ids"] else None

    def nearest(self, text: str) -> list[str]:
        with self.vectors.of("mem0") as records:
            found: list[str] = records.query(query_embeddings=[vector_of(text)], n_results=100)["ids"][0]
        return found

    def config(self, **more: object) -> dict[str, Any]:
        return {"path": str(self.path), "vector_store": "chroma", **more}

    def open(self, *, read_only: bool = False, owner: bool = True) -> Connector:
        self.release()
        config = self.config(**({"owner_field": "user_id"} if owner else {}))
        return open_connector("mem0", config, secrets=str, read_only=read_only)

    def wrong(self) -> Connector:
        self.release()
        return open_connector("mem0", self.config(path=str(self.path.parent), owner_field="user_id"), secrets=str)

    def source(self) -> str:
        self.release()
        return (
            "from connectors.base import open_connector\n"
            f"connector = open_connector('mem0', {self.config(owner_field='user_id')!r}, secrets=str)"
        )

    def own_delete(self, name: str) -> None:
        text = self.get(name)
        with self.vectors.of("mem0") as records:
            records.delete(ids=[uid(name)])
        self.event(name, text, None, "DELETE")


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Mem0OverChroma]:
    made = Mem0OverChroma(tmp_path)
    yield made
    made.release()


class TestMem0OverChroma(Contract):
    holds = "mem0, folder with Chroma"
    slow: ClassVar = OF_PROCESSES


def test_all_four_places_go_and_an_entity_of_two_keeps_its_other_link(bed: Mem0OverChroma) -> None:
    for n in range(23):
        bed.remember(f"mia-{n}", text_of(f"mia-{n}"), turn=f"raw words of mia number {n}", user_id="mia")
    bed.remember("ben-0", text_of("ben-0"), turn="raw words of ben", user_id=BEN)
    bed.link("Blackthorn Row of mia", ["mia-0", "mia-1"], user_id="mia")
    bed.link("a harbour of both", ["mia-1", "ben-0"])
    with bed.open() as connector:
        found = list(connector.discover(Selector(identifiers=(MIA,)), deadline=30))
        items = captured(connector, [Item(copy_id=str(n), locator=each) for n, each in enumerate(found)])
    assert len(items) == 23
    bed.own_delete("mia-1")
    words = ("raw words of mia number 22", "Blackthorn Row of mia", text_of("mia-1"))
    assert all(bed.hits(word) for word in words)
    with bed.open() as connector:
        assert {receipt.outcome for receipt in erase(connector, items)} == {Outcome.ERASED}
        with bed.open(read_only=True) as verifier:
            before = verifier.verify(items, Level.L2, deadline=60)
        freed = connector.reclaim(Level.L2, now=NOW, deadline=60)
    assert all(each.level is Level.L1 and each.present is not False for each in before)
    assert freed.level is Level.L2
    with bed.open(read_only=True) as verifier:
        seen = verifier.verify(items, Level.L2, deadline=60, reclaimed=freed)
    assert {(each.level, each.present) for each in seen} == {(Level.L2, False)}
    assert [bed.hits(word) for word in words] == [0, 0, 0]
    assert bed.entities() == {"a harbour of both": [uid("ben-0")]}
    assert bed.get("ben-0") == text_of("ben-0")


def test_a_vector_that_only_an_index_holds_is_found(bed: Mem0OverChroma) -> None:
    bed.remember("mia-0", text_of("mia-0"), user_id="mia")
    settings = {"hnsw:sync_threshold": 3, "hnsw:batch_size": 3, "hnsw:space": "cosine"}
    with bed.vectors.client() as client:
        records = client.create_collection("agents", metadata=settings, embedding_function=None)
        # A stray copy at another length, which no byte scan finds.
        vectors = [[each * 3 for each in vector_of(text_of("mia-0"))], *(vector_of(f"other {n}") for n in range(9))]
        records.add(ids=[str(n) for n in range(10)], embeddings=vectors, metadatas=[{"a": 1}] * 10)
        records.query(query_embeddings=[vector_of("x")], n_results=1)
    with bed.open() as connector:
        items = captured(connector, [Item(copy_id="c", locator={"memory_id": uid("mia-0")})])
        erase(connector, items)
        found = connector.residue(items[0].canaries, deadline=30)
    assert oracle([bed.path], text_of("mia-0")) > 0
    assert "vector index" in {each.where for each in found}


def test_a_folder_with_no_chroma_or_two_is_no_absence(bed: Mem0OverChroma, tmp_path: Path) -> None:
    bed.remember("mia-0", text_of("mia-0"), user_id="mia")
    item = Item(copy_id="c", locator={"memory_id": uid("mia-0")})
    bed.release()
    (bed.path / "second").mkdir()
    (bed.path / "second" / "chroma.sqlite3").touch()
    with bed.open() as connector, pytest.raises(StoreUnreachable, match="2 folders of Chroma"):
        erase(connector, [item])
    (bed.path / "second" / "chroma.sqlite3").unlink()
    (bed.path / "chroma").rename(tmp_path / "away")
    with bed.open() as connector, pytest.raises(StoreUnreachable, match="0 folders of Chroma"):
        erase(connector, [item])
    with pytest.raises(ModeNotBuilt):
        open_connector("mem0", bed.config(url="http://h"), secrets=str)


def test_a_scan_hands_out_memories_and_not_records_of_chroma(bed: Mem0OverChroma) -> None:
    bed.remember("mia-0", text_of("mia-0"), user_id="mia")
    bed.remember("ben-0", text_of("ben-0"), user_id="ben")
    bed.link("an entity", ["mia-0"], user_id="mia")
    bed.release()
    given: list[tuple[str, Any]] = []
    found = scan(str(bed.path), now=datetime.now(UTC), deadline=60, sink=lambda place, item: given.append(
        (place.what, dict(item.locator))
    ))  # fmt: skip
    places = {place.what: place for place in found.places}
    assert set(places) == {"mem0-chroma", "mem0-history"}
    assert sorted(given, key=str) == sorted(
        [("mem0-chroma", {"memory_id": uid(name)}) for name in ("mia-0", "ben-0")], key=str
    )
    for place in places.values():
        assert (place.kind, reach_of(place).level) == ("mem0", "L2")
        assert place.config == {"path": str(bed.path), "vector_store": "chroma"}
    with open_connector("mem0", places["mem0-chroma"].store_config(), secrets=str, read_only=True) as connector:
        assert len(list(connector.discover(Selector(identifiers=(MIA,)), deadline=10))) == 1
