"""`scan` on stores that the real Chroma, Qdrant and LanceDB wrote, and on tables of mem0 and Phoenix.

mem0 and Phoenix are no dependencies of ours: their tables are made from the statements of their published schemas.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from connectors.base import Selector, open_connector
from connectors.scanning import lance as lance_files
from connectors.scanning.chroma import deleted_vectors
from connectors.scanning.look import Found
from connectors.scanning.plain import as_json
from connectors.scanning.report import Scan
from connectors.scanning.scan import scan
from tests.connectors.test_connectors_scan import fingerprint, only, orphans

NOW = datetime.now(UTC)
WHO = [f"person-number-{n}" for n in range(4)]


def look(target: Path, **more: Any) -> Scan:
    return scan(str(target), now=NOW, deadline=60, **more)


WRITERS = """
import hashlib, sys, uuid
from pathlib import Path
import chromadb, lancedb
from chromadb.config import Settings
from qdrant_client import QdrantClient, models as m

base = Path(sys.argv[1])

def embed(texts):
    return [[(each - 127) / 19 for each in hashlib.sha256(text.encode()).digest()[:16]] for text in texts]

def chroma(name, metadata):
    client = chromadb.PersistentClient(str(base / name), settings=Settings(anonymized_telemetry=False))
    made = client.create_collection("mem", embedding_function=None, metadata=metadata)
    made.add(
        ids=[f"m{n}" for n in range(150)], documents=[f"text {n}" for n in range(150)],
        embeddings=embed([f"text {n}" for n in range(150)]),
        metadatas=[{"user_id": f"person-number-{n % 4}"} for n in range(150)],
    )
    made.delete(ids=["m0", "m4", "m8"])
    return client, made

client, _ = chroma("chroma", None)
other = client.create_collection("other", embedding_function=None)
other.add(ids=["a"], documents=["x"], embeddings=embed(["a"]))
client.delete_collection("other")

client, made = chroma("marked", {"hnsw:sync_threshold": 100, "hnsw:batch_size": 50})
for start in range(2):
    ids = [f"n{start}-{n}" for n in range(200)]
    made.add(ids=ids, documents=["x"] * 200, embeddings=embed(ids), metadatas=[{"user_id": "late"}] * 200)

client = QdrantClient(path=str(base / "qdrant"))
for name, size in (("mem", 16), ("few", 2)):
    client.create_collection(name, vectors_config=m.VectorParams(size=size, distance=m.Distance.COSINE))
texts = embed([f"text {n}" for n in range(40)])
about = {"data": "x", "hash": "h", "created_at": "2020-01-01T00:00:00Z"}
client.upsert("mem", [m.PointStruct(id=n, vector=texts[n], payload={"user_id": f"person-number-{n % 4}", **about})
                      for n in range(40)])
client.upsert("few", [m.PointStruct(id="0a52e6b3-0a3c-4d8b-9c8e-0f1e2d3c4b5a", vector=[1.0, 2.0],
                                    payload={"text": "person-number-1 was here"})])
client.delete("mem", points_selector=m.PointIdsList(points=[0]))
client.close()

client = QdrantClient(path=str(base / "memories"))
for name in ("mem0", "mem0_entities"):
    client.create_collection(name, vectors_config=m.VectorParams(size=16, distance=m.Distance.COSINE))
    ids = [str(uuid.uuid5(uuid.NAMESPACE_URL, f"{name} {n}")) for n in range(8)]
    whose = [{"user_id": f"person-number-{n % 4}", **about} for n in range(8)]
    client.upsert(name, [m.PointStruct(id=ids[n], vector=texts[n], payload=whose[n])
                         for n in range(8)])
client.close()

for name in ("lance", "older"):
    db = lancedb.connect(str(base / name))
    rows = [{"id": f"m{n}", "user_id": f"person-number-{n % 4}", "vector": texts[n]} for n in range(30)]
    table = db.create_table("mem", rows)
    table.delete("id in ('m0', 'm4', 'm8')")
    if name == "lance":
        table.tags.create("before", 1)
    else:
        db.create_table("mem", table.to_arrow().slice(0, 5), mode="overwrite")
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the real drivers wrote, in a process of their own that has ended."""
    folder = tmp_path_factory.mktemp("stores")
    done = subprocess.run(
        [sys.executable, "-c", WRITERS, str(folder)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def chroma(written: Path) -> Path:
    return written / "chroma"


@pytest.fixture
def qdrant(written: Path) -> Path:
    return written / "qdrant"


@pytest.fixture
def memories(written: Path) -> Path:
    return written / "memories"


@pytest.fixture
def lance(written: Path) -> Path:
    return written / "lance"


@pytest.mark.slow
@pytest.mark.scenario("S30", "S31")
def test_chromas_deleted_ids_lie_in_the_queue_and_deleted_collections_in_their_folders(chroma: Path) -> None:
    before = fingerprint(chroma)
    found = look(chroma, subject=f"user:{WHO[0]}")
    assert fingerprint(chroma) == before
    place = only(found, "chroma")
    assert (place.rows, len(place.people), place.owner_field()) == (147, 4, "user_id")
    assert place.parts["mem"] == 147
    lost = orphans(place)
    assert lost["queue rows of deleted ids"] == 3
    assert lost["unreferenced segment folders"] == 1
    assert place.dry_run is not None
    assert place.dry_run.items == 35
    assert [note for note in place.notes if "3 queue rows of the person's deleted items" in note]
    assert found.hits is not None
    assert found.hits["utf-8"] > 0


@pytest.mark.scenario("A14", "S31")
def test_vectors_marked_deleted_in_the_index_file_are_counted(written: Path, tmp_path: Path) -> None:
    lost = orphans(only(look(written / "marked"), "chroma"))
    assert lost == {"vectors marked deleted": 3}, "the queue is clean, the index is not"
    shutil.copytree(written / "marked", tmp_path / "copy")
    (segment,) = [each for each in (tmp_path / "copy").iterdir() if each.is_dir()]
    assert deleted_vectors(segment)[0] == 3
    (segment / "data_level0.bin").write_bytes(b"\0" * 100)
    damaged = only(look(tmp_path / "copy"), "chroma")
    assert damaged.unread == ["a segment's vectors: header and file do not fit together"]


def test_a_local_qdrants_points_are_read_without_building_what_they_name(qdrant: Path) -> None:
    before = fingerprint(qdrant)
    found = look(qdrant, subject=WHO[1])
    assert fingerprint(qdrant) == before
    place = only(found, "qdrant-local")
    assert (place.parts, len(place.people), place.nobody) == ({"few": 1, "mem": 39}, 4, 1)
    assert place.ages.as_json()["histogram"]["a year and more"] == 39
    assert place.dry_run is not None
    assert (place.dry_run.items, place.dry_run.mentions) == (10, 1)
    assert [note for note in place.notes if "39 memories of mem0" in note]
    assert found.could_not_read() == []


def test_a_qdrant_point_that_would_run_code_is_a_finding(qdrant: Path, tmp_path: Path) -> None:
    shutil.copytree(qdrant, tmp_path / "q")
    with closing(sqlite3.connect(tmp_path / "q" / "collection" / "mem" / "storage.sqlite")) as db:
        db.execute("UPDATE points SET point = ? WHERE rowid = 2", (b"cos\nsystem\n(S'touch /tmp/muniment-trap'\ntR.",))
        db.execute("INSERT INTO points VALUES ('x', x'00')")
        db.commit()
    (tmp_path / "q" / "meta.json").write_text('{"collections": {"mem": {}}}')
    place = only(look(tmp_path), "qdrant-local")
    assert place.unread == ["collection mem: 2 points are no plain pickles"]
    assert orphans(place) == {"collections that meta.json does not know": 1}
    assert not Path("/tmp/muniment-trap").exists()


@pytest.mark.scenario("S32")
def test_lances_deleted_rows_are_reported_per_table_with_versions_and_tags(lance: Path) -> None:
    before = fingerprint(lance)
    found = look(lance, subject=WHO[0])
    assert fingerprint(lance) == before
    place = only(found, "lancedb")
    assert (place.parts, len(place.people)) == ({"mem": 27}, 4)
    assert orphans(place) == {"deleted rows still in fragments of mem": 3}
    settings = {each.name: each for each in place.settings}
    assert settings["versions of mem"].dangerous
    assert settings["tags of mem"].value == "1"
    assert place.dry_run is not None
    assert place.dry_run.items == 5


def test_lance_is_recognised_without_its_driver(lance: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lance", None)
    place = only(look(lance), "lancedb")
    assert orphans(place) == {"deleted rows still in fragments of mem": 3}
    assert place.rows == 27
    assert [note for note in place.notes if "needs muniment-server[lancedb]" in note]


@pytest.mark.scenario("A20")
def test_files_that_only_older_versions_of_a_table_use_are_named(written: Path) -> None:
    place = only(look(written / "older"), "lancedb")
    assert orphans(place) == {"data files of older versions of mem": 1}
    assert {each.name: each.value for each in place.settings}["versions of mem"] == "3"


@pytest.mark.parametrize(
    "data", [b"", b"LANC", b"\xff" * 200, b"\0" * 32 + (1 << 40).to_bytes(8, "little") + b"\0\0\0\0LANC"]
)
def test_a_damaged_manifest_is_a_named_finding(lance: Path, tmp_path: Path, data: bytes) -> None:
    shutil.copytree(lance, tmp_path / "l")
    newest = max((tmp_path / "l" / "mem.lance" / "_versions").glob("*.manifest"), key=lance_files._version_of)
    newest.write_bytes(data)
    assert only(look(tmp_path), "lancedb").unread


def mem0(path: Path) -> None:
    """mem0 2.2.1's tables with what is left after `delete_all` of one of two people."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript(
            "CREATE TABLE history (id TEXT PRIMARY KEY, memory_id TEXT, old_memory TEXT, new_memory TEXT, event TEXT,"
            " created_at DATETIME, updated_at DATETIME, is_deleted INTEGER, actor_id TEXT, role TEXT);"
            "CREATE TABLE messages (id TEXT PRIMARY KEY, session_scope TEXT, role TEXT, content TEXT, name TEXT,"
            " created_at DATETIME);"
        )
        rows = [
            ("1", "m1", None, "Alice Zimmer lives in Leeds", "ADD"),
            ("2", "m1", "Alice Zimmer lives in Leeds", None, "DELETE"),
            ("3", "m2", None, "Bob likes tea", "ADD"),
        ]
        db.executemany(
            "INSERT INTO history (id, memory_id, old_memory, new_memory, event, created_at)"
            " VALUES (?, ?, ?, ?, ?, '2026-01-01T00:00:00')", rows,
        )  # fmt: skip
        said = [
            ("1", "user_id=alice_z", "Hi I am Alice Zimmer"),
            ("2", "agent_id=a&user_id=bob", "tea"),
            ("3", "run_id=r", "x"),
        ]
        db.executemany(
            "INSERT INTO messages (id, session_scope, content, created_at) VALUES (?, ?, ?, '2026-01-01')", said
        )
        db.commit()


def test_mem0s_history_and_messages_keep_what_delete_all_removed(tmp_path: Path) -> None:
    mem0(tmp_path / "history.db")
    place = only(look(tmp_path, subject="user:alice_z"), "mem0-history")
    assert (len(place.people), place.threads, place.nobody) == (2, 3, 1)
    assert orphans(place) == {"history rows of deleted memories": 2}
    assert [line for line in place.leaves if line.startswith("3 raw turns in messages")]
    assert place.dry_run is not None
    assert place.dry_run.items == 1
    named = only(look(tmp_path, subject="Alice Zimmer"), "mem0-history").dry_run
    assert named is not None
    assert named.mentions == 3


def test_mem0s_vectors_and_history_beside_them_are_one_store_of_kind_mem0(memories: Path, tmp_path: Path) -> None:
    shutil.copytree(memories, tmp_path / "home" / "qdrant")
    mem0(tmp_path / "home" / "history.db")
    handed: list[Any] = []
    found = look(tmp_path, sink=lambda place, item: handed.append((place.what, item.locator)))
    place = only(found, "mem0-qdrant")
    assert (place.kind, place.config) == ("mem0", {"path": str(tmp_path / "home")})
    assert only(found, "mem0-history").config == place.config
    assert {what for what, _ in handed} == {"mem0-qdrant"}
    assert len({locator["memory_id"] for _, locator in handed}) == 8, "entities go with their memories"
    shutil.copytree(memories, tmp_path / "same")
    mem0(tmp_path / "same" / "history.db")
    assert sorted(place.what for place in look(tmp_path / "same").places) == ["mem0-history", "mem0-qdrant"]


def phoenix(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(
            "CREATE TABLE project_sessions (id INTEGER PRIMARY KEY, session_id TEXT, project_id INTEGER);"
            "CREATE TABLE traces (id INTEGER PRIMARY KEY, project_session_rowid INTEGER, trace_id TEXT);"
            "CREATE TABLE spans (id INTEGER PRIMARY KEY, trace_rowid INTEGER, span_id TEXT, attributes JSON,"
            " start_time TIMESTAMP);"
            "CREATE TABLE dataset_examples (id INTEGER PRIMARY KEY, dataset_id INTEGER, span_id INTEGER"
            " REFERENCES spans(id) ON DELETE SET NULL);"
            "CREATE TABLE dataset_example_revisions (id INTEGER PRIMARY KEY, dataset_example_id INTEGER,"
            " input JSON, output JSON, metadata JSON, revision_kind TEXT);"
            "CREATE TABLE experiment_runs (id INTEGER PRIMARY KEY, dataset_example_id INTEGER, output JSON);"
        )
        db.execute("PRAGMA foreign_keys=ON")
        db.execute("INSERT INTO project_sessions VALUES (1, 's1', 1)")
        db.execute("INSERT INTO traces VALUES (1, 1, 't1')")
        for number, who in enumerate(("alice_z", "bob_builder"), 1):
            attributes = (
                f'{{"user": {{"id": "{who}"}}, "session": {{"id": "s1"}}, "input": {{"value": "hello from {who}"}}}}'
            )
            db.execute(
                "INSERT INTO spans VALUES (?, 1, ?, ?, '2026-01-01 00:00:00')", (number, f"p{number}", attributes)
            )
        db.execute("INSERT INTO dataset_examples VALUES (1, 1, 1), (2, 1, 2)")
        revisions = [(1, 1, '"hello from alice_z"', "CREATE"), (2, 2, '"hi"', "CREATE"), (3, 2, "null", "DELETE")]
        db.executemany(
            "INSERT INTO dataset_example_revisions (id, dataset_example_id, input, revision_kind) VALUES (?, ?, ?, ?)",
            revisions,
        )
        db.execute("INSERT INTO experiment_runs VALUES (1, 1, '\"alice_z again\"')")
        db.commit()
        db.execute("DELETE FROM spans WHERE id = 1")
        db.commit()


@pytest.mark.scenario("S28", "S27")
def test_phoenix_sessions_examples_and_revisions_outlive_a_deleted_trace(tmp_path: Path) -> None:
    phoenix(tmp_path / "phoenix.db")
    place = only(look(tmp_path, subject="user:alice_z"), "phoenix")
    assert place.parts["project_sessions"] == 1
    assert orphans(place) == {"dataset examples without a span": 1, "revisions of deleted examples": 1}
    assert {line.split(",")[0] for line in place.leaves} >= {"1 sessions", "2 dataset examples", "1 experiment runs"}
    assert (len(place.people), place.threads) == (1, 1)
    assert place.dry_run is not None
    assert (place.dry_run.items, place.dry_run.mentions) == (0, 2)


def test_every_item_handed_over_is_a_place_that_its_connector_reads(
    chroma: Path, qdrant: Path, lance: Path, memories: Path, tmp_path: Path
) -> None:
    """What a scan registers is what a request erases later: the same names, and the person's items by discover."""
    for name, folder in (("c", chroma), ("q", qdrant), ("l", lance), ("m", memories)):
        shutil.copytree(folder, tmp_path / name)
    mem0(tmp_path / "m" / "history.db")
    handed: dict[str, list[Found]] = {}
    found = look(tmp_path, sink=lambda place, item: handed.setdefault(place.label, []).append(item))
    places = {place.label: place for place in found.places if place.label in handed}
    assert {place.kind for place in places.values()} == {"chroma", "qdrant", "lancedb", "mem0"}
    for label, place in places.items():
        assert place.kind is not None
        mine = [item.locator for item in handed[label] if item.owners and item.owners[0][1] == WHO[1]]
        with open_connector(place.kind, place.store_config(), secrets=str, read_only=True) as connector:
            for item in handed[label]:
                connector.check_locator(item.locator)
            listed = list(connector.discover(Selector(identifiers=(f"user:{WHO[1]}",)), deadline=60))
        assert mine
        assert sorted(map(str, mine)) == sorted(map(str, listed)), label


def test_everything_of_an_agents_folder_is_told_apart(chroma: Path, qdrant: Path, lance: Path, tmp_path: Path) -> None:
    for name, folder in (("c", chroma), ("q", qdrant), ("l", lance)):
        shutil.copytree(folder, tmp_path / "data" / name)
    mem0(tmp_path / "history.db")
    phoenix(tmp_path / "phoenix.db")
    (tmp_path / "note.md").write_text("x")
    found = look(tmp_path)
    kinds = sorted(place.what for place in found.places)
    assert kinds == ["chroma", "files", "lancedb", "mem0-history", "phoenix", "qdrant-local"]
    told = as_json(found, names=False)
    assert told["verdict"] == "findings"
    assert len(told["if_a_deletion_request_came_today"]) == 3
