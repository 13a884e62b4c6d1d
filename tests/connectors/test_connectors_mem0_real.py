"""mem0's own library writes the folder, and reads it afterwards; what `mem0_bed` writes is compared with it.

mem0ai needs an older protobuf than the service, so it cannot be installed beside it. The tests run where a Python with
mem0ai 2.2, psycopg[binary,pool] and chromadb is named by MUNIMENT_TEST_MEM0 (a path to its interpreter), and are
skipped, saying so, elsewhere.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from connectors.base import Item, Level, Outcome, Selector, open_connector
from tests.connectors.contract import MIA, NOW, captured, erase, oracle
from tests.connectors.langgraph_beds import Database
from tests.connectors.mem0_bed import Mem0Bed
from tests.connectors.test_connectors_mem0_tables import TablesBed
from tests.lazily import Lazily

qdrant = Lazily("qdrant_client")

PYTHON = os.environ.get("MUNIMENT_TEST_MEM0", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(PYTHON).is_file(), reason="MUNIMENT_TEST_MEM0 names no Python with mem0ai"),
]

# What a deployment has from a model is made from the text alone; everything that is written, mem0 writes.
LIBRARY = """
import hashlib, json, os, struct, sys
folder = sys.argv[1]
os.environ["MEM0_TELEMETRY"], os.environ["MEM0_DIR"] = "False", folder
import mem0.memory.main as main
from mem0 import Memory

class Embedder:
    def embed(self, text, memory_action=None):
        numbers, block = [], 0
        while len(numbers) < 24:
            digest = hashlib.sha256(f"{block} {text}".encode()).digest()
            numbers += [struct.unpack_from("<h", digest, at)[0] / 32768 for at in range(0, 32, 2)]
            block += 1
        return numbers[:24]
    def embed_batch(self, texts, memory_action=None):
        return [self.embed(text) for text in texts]

class Model:
    def generate_response(self, messages, **options):
        said = messages[-1]["content"].rpartition("fact:")[2].partition(";")[0].strip()
        return json.dumps({"memory": [{"id": "0", "text": said}]})

def entities(text):
    return [("PROPER", " ".join(word for word in text.split() if word.startswith("Z")))]

main.extract_entities = entities
main.extract_entities_batch = lambda texts, batch_size=32: [entities(text) for text in texts]
dimensions, place = {"embedding_model_dims": 24}, "".join(sys.argv[2:])
vectors = {"collection_name": "mem0"}
provider, own = ("chroma", {"path": f"{folder}/chroma"}) if place == "chroma" else (
    "pgvector", dimensions | {"connection_string": place}) if place else (
    "qdrant", dimensions | {"path": f"{folder}/qdrant", "on_disk": True})
keyed = {"provider": "openai", "config": {"api_key": "none"}}
memory = Memory.from_config({
    "vector_store": {"provider": provider, "config": vectors | own}, "history_db_path": f"{folder}/history.db",
    "llm": keyed, "embedder": keyed,
})
memory.embedding_model, memory.llm = Embedder(), Model()

def close():
    store = memory.vector_store
    {"qdrant": lambda: store.client.close(), "pgvector": lambda: store.connection_pool.close()}.get(provider, int)()
"""
WRITE = """
for n in range(23):
    said = f"hello, fact: number {n} of Zmia Blackthorn; card 4111-{n}"
    memory.add([{"role": "user", "content": said}], user_id="mia")
first = memory.get_all(filters={"user_id": "mia"}, top_k=100)["results"][0]
memory.update(first["id"], text="number 99 of Zmia Blackthorn at Zoldcastle")
memory.add([{"role": "user", "content": "hello, fact: the sea of Zben; card 4222"}], user_id="ben")
print(json.dumps(len(memory.get_all(filters={"user_id": "mia"}, top_k=100)["results"])))
close()
"""
DELETE = """
memory.delete_all(user_id="mia")
print(json.dumps(memory.get_all(filters={"user_id": "mia"}, top_k=100)["results"]))
close()
"""
READ = """
print(json.dumps([memory.get_all(filters={"user_id": user}, top_k=100)["results"] for user in ("mia", "ben")]))
near = memory.search("number 3 of Zmia Blackthorn", filters={"user_id": "mia"})["results"]
print(json.dumps([near, memory.search("the sea of Zben", filters={"user_id": "ben"})["results"]]))
memory.add([{"role": "user", "content": "hello, fact: the hills of Zben; card 4333"}], user_id="ben")
print(json.dumps(len(memory.get_all(filters={"user_id": "ben"}, top_k=100)["results"])))
close()
"""


def mem0(folder: Path, program: str, *address: str) -> list[Any]:
    done = subprocess.run(
        [PYTHON, "-c", LIBRARY + program, str(folder), *address],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line[:1] in {"[", "{"} or line.isdigit()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "real"
    made.mkdir()
    assert mem0(made, WRITE)[-1] == 23
    return made


def config_of(folder: Path, *address: str) -> dict[str, Any]:
    config = {"path": str(folder), "owner_field": "user_id"}
    if address == ("chroma",):
        return {**config, "vector_store": "chroma"}
    urls = [each.replace("postgresql://", "postgresql+psycopg://") for each in address]
    return {**config, "vector_store": "pgvector", "url": urls[0]} if urls else config


def wiped(folder: Path, items: Sequence[Item], *address: str) -> set[tuple[Level | None, bool | None]]:
    config = config_of(folder, *address)
    with open_connector("mem0", config, secrets=str) as connector:
        outcomes = {receipt.outcome for receipt in erase(connector, list(items))}
        assert outcomes <= {Outcome.ERASED, Outcome.ALREADY_ABSENT}
        report = connector.reclaim(Level.L2, now=NOW, deadline=60)
        assert report.level is Level.L2
        findings = connector.verify(items, Level.L2, deadline=60, reclaimed=report)
    return {(finding.level, finding.present) for finding in findings}


def found(folder: Path, *address: str) -> list[Item]:
    config = config_of(folder, *address)
    with open_connector("mem0", config, secrets=str, read_only=True) as connector:
        locators = list(connector.discover(Selector(identifiers=(MIA,)), deadline=60))
        items = [Item(copy_id=str(n), locator=locator) for n, locator in enumerate(locators)]
        return captured(connector, items)


@pytest.mark.scenario("S17")
def test_memories_that_the_library_wrote_are_erased_and_it_goes_on(folder: Path) -> None:
    items = found(folder)
    assert len(items) == 23
    assert oracle([folder], "Blackthorn") > 23
    assert wiped(folder, items) == {(Level.L2, False)}
    for word in ("Blackthorn", "Zoldcastle", "card 4111"):
        assert oracle([folder], word) == 0
    before, searched, after = mem0(folder, READ)
    assert [len(each) for each in before] == [0, 1]
    assert [len(each) for each in searched] == [0, 1]
    assert after == 2


def test_what_the_librarys_own_delete_leaves_is_erased(folder: Path) -> None:
    items = found(folder)
    assert mem0(folder, DELETE)[-1] == []
    # Every text is in the history once more, raw turns and entities are untouched.
    assert oracle([folder], "Blackthorn") > 23
    assert oracle([folder], "card 4111") > 0
    late = found(folder)
    assert {item.locator["memory_id"] for item in late} >= {item.locator["memory_id"] for item in items}
    assert wiped(folder, items) == {(Level.L2, False)}
    for word in ("Blackthorn", "Zoldcastle", "card 4111"):
        assert oracle([folder], word) == 0


def test_memories_that_the_library_keeps_in_chroma_are_erased_and_it_goes_on(tmp_path: Path) -> None:
    assert mem0(tmp_path, WRITE, "chroma")[-1] == 23
    items = found(tmp_path, "chroma")
    assert len(items) == 23
    assert mem0(tmp_path, DELETE, "chroma")[-1] == []
    # The library's delete leaves history, turns, entities, and in Chroma the queue of writes with every text.
    assert oracle([tmp_path], "Blackthorn") > 23
    assert oracle([tmp_path / "chroma"], "Blackthorn") > 0
    assert wiped(tmp_path, items, "chroma") == {(Level.L2, False)}
    for word in ("Blackthorn", "Zoldcastle", "card 4111"):
        assert oracle([tmp_path], word) == 0
    before, searched, after = mem0(tmp_path, READ, "chroma")
    assert [len(each) for each in (*before, *searched)] == [0, 1, 0, 1]
    assert after == 2


@pytest.mark.postgres
def test_memories_that_the_library_keeps_in_postgresql_are_erased_and_it_goes_on(tmp_path: Path, server: Any) -> None:
    database = Database(server)
    try:
        assert mem0(tmp_path, WRITE, database.uri)[-1] == 23
        items = found(tmp_path, database.uri)
        assert len(items) == 23
        assert mem0(tmp_path, DELETE, database.uri)[-1] == []
        assert database.hits(b"Blackthorn") > 0
        assert wiped(tmp_path, items, database.uri) == {(Level.L2, False)}
        for word in ("Blackthorn", "Zoldcastle", "card 4111"):
            assert oracle([tmp_path], word) + database.hits(word.encode()) == 0
        before, searched, after = mem0(tmp_path, READ, database.uri)
        assert [len(each) for each in (*before, *searched)] == [0, 1, 0, 1]
        assert after == 2
        made = TablesBed(tmp_path, server)
        shapes = (
            "SELECT table_name, column_name, udt_name FROM information_schema.columns WHERE table_schema = 'public'"
        )
        assert sorted(made.database.run(shapes)) == sorted(database.run(shapes))
        made.database.close()
    finally:
        database.close()


def test_the_bed_of_the_other_tests_is_written_alike(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    bed = Mem0Bed(tmp_path / "made")
    bed.remember("mia-0", "a text", user_id="mia")
    bed.link("an entity", ["mia-0"], user_id="mia")
    bed.release()

    def tables(place: Path) -> dict[str, list[tuple[Any, ...]]]:
        with closing(sqlite3.connect(place / "history.db")) as connection:
            return {
                name: [row[1:3] for row in connection.execute(f"PRAGMA table_info({name})")]
                for name in ("history", "messages")
            }

    def points(place: Path) -> dict[str, tuple[set[str], Any]]:
        client = qdrant.QdrantClient(path=str(place / "qdrant"))
        shown = {}
        for name in ("mem0", "mem0_entities"):
            first = client.scroll(name, limit=1, with_vectors=True)[0][0]
            settings: Any = client.get_collection(name).config.params
            dense = settings.vectors.size, settings.vectors.distance
            shown[name] = set(first.payload or {}), (dense, set(settings.sparse_vectors), type(first.vector))
        client.close()
        return shown

    assert tables(folder) == tables(bed.path)
    assert points(folder) == points(bed.path)
