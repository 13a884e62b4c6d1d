from __future__ import annotations

import contextlib
import hashlib
import shutil
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from connectors.base import Connector, Item, Level, Outcome, Selector, open_connector
from connectors.chroma_files import Index
from connectors.errors import BadConfig, BadLocator, StoreUnreachable, Timeout
from tests.connectors.beds import FolderBed
from tests.connectors.contract import BEN, MIA, NOW, ROOT, Contract, captured, erase, fill, oracle, text_of
from tests.connectors.vector_beds import DIMENSIONS, near, raw, vector_of
from tests.lazily import Lazily

chromadb, config, shared = (Lazily(f"chromadb{name}") for name in ("", ".config", ".api.shared_system_client"))
DATABASE = "chroma.sqlite3"


def is_open_here(file: Path) -> bool:
    """Whether this process has it open; another thread may close any other meanwhile."""
    for handle in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if handle.readlink() == file:
                return True
    return False


LOCK = """
import sqlite3, sys
other = sqlite3.connect(sys.argv[1], isolation_level=None)
other.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


def locked(file: Path) -> Callable[[], None]:
    """Another process that writes, until the function that is returned is called."""
    other = subprocess.Popen(
        [sys.executable, "-c", LOCK, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "locked\n"
    return lambda: (other.communicate(timeout=10), None)[1]


class ChromaBed(FolderBed):
    def __init__(self, folder: Path, **settings: Any) -> None:
        self.path = folder / "vectors"
        self.running: Any = None
        with self.client() as client:
            client.create_collection("notes", metadata=settings or None, embedding_function=None)

    @contextmanager
    def client(self) -> Iterator[Any]:
        """The application's client; it has the files open until `release`."""
        if self.running is None:
            self.running = chromadb.PersistentClient(self.path, settings=config.Settings(anonymized_telemetry=False))
        yield self.running

    def release(self) -> None:
        if self.running is not None:
            self.running._system.stop()  # there is no public way to give the files up
            shared.SharedSystemClient.clear_system_cache()
            self.running = None
            # The engine closes its files a moment later, in threads of its own.
            end = time.monotonic() + 10
            while is_open_here(self.path / DATABASE):
                assert time.monotonic() < end
                time.sleep(0.005)

    @contextmanager
    def notes(self) -> Iterator[Any]:
        with self.client() as client:
            yield client.get_collection("notes", embedding_function=None)

    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        return self.put_all({name: text}, owner)[0].locator

    def put_all(self, rows: Mapping[str, str], owner: str) -> list[Item]:
        with self.notes() as notes:
            notes.add(
                ids=list(rows),
                embeddings=[vector_of(text) for text in rows.values()],
                documents=list(rows.values()),
                metadatas=[{"user_id": owner, "stars": 4, "ratio": 0.5, "kept": True} for _ in rows],
            )
        return [Item(copy_id=name, locator={"collection": "notes", "id": name}) for name in rows]

    def get(self, name: str) -> str | None:
        with self.notes() as notes:
            found = notes.get(ids=[name])["documents"]
        return found[0] if found else None

    def all(self) -> dict[str, tuple[str, dict[str, Any], list[float]]]:
        with self.notes() as notes:
            found = notes.get(include=["documents", "metadatas", "embeddings"])
        rows = zip(found["ids"], found["documents"], found["metadatas"], found["embeddings"], strict=True)
        return {name: (text, metadata, list(map(float, vector))) for name, text, metadata, vector in rows}

    def whole(self, name: str) -> object:
        with self.notes() as notes:
            found = notes.get(ids=[name], include=["documents", "metadatas", "embeddings"])
        vectors = [list(map(float, vector)) for vector in found["embeddings"]]
        return (found["documents"], found["metadatas"], vectors) if found["ids"] else None

    def refuse(self, name: str) -> Callable[[], None]:
        """Let the queue, which every write goes through, take no deletion of this record."""
        self.release()
        self.run(
            f"CREATE TRIGGER refused BEFORE INSERT ON embeddings_queue WHEN new.id = '{name}' AND new.operation = 3"
            " BEGIN SELECT RAISE(ABORT, 'kept by its owner'); END"
        )

        def release() -> None:
            self.release()
            self.run("DROP TRIGGER refused")

        return release

    def near(self, text: str, count: int = 100) -> list[str]:
        with self.notes() as notes:
            found: list[str] = notes.query(query_embeddings=[vector_of(text)], n_results=count)["ids"][0]
        return found

    def open(self, *, read_only: bool = False, owner: bool = True) -> Connector:
        self.release()
        config = {"path": str(self.path)} | ({"owner_field": "user_id"} if owner else {})
        return open_connector("chroma", config, secrets=str, read_only=read_only)

    def hits(self, canary: str) -> int:
        self.release()
        return oracle([self.path], canary)

    def raw_hits(self, needle: bytes, pattern: str = "*") -> int:
        return sum(file.read_bytes().count(needle) for file in self.path.rglob(pattern) if file.is_file())

    def run(self, statement: str, *values: object) -> list[Any]:
        with closing(sqlite3.connect(self.path / DATABASE, isolation_level=None, timeout=5)) as connection:
            return connection.execute(statement, values).fetchall()

    def block(self) -> Callable[[], None]:
        self.release()
        return locked(self.path / DATABASE)

    def hostile(self) -> list[Mapping[str, Any]]:
        return [
            {"collection": "notes", "id": 7},
            {"collection": "notes"},
            {"collection": "../notes", "id": "mia-0"},
            {"collection": "notes' OR '1'='1", "id": "mia-0"},
            {"collection": "notes", "id": ["mia-0"]},
            {"collection": "notes", "id": None},
            {"collection": "notes", "id": True},
            {"collection": "notes", "id": "mia-0", "where": {}},
        ]

    def wrong(self) -> Connector:
        return open_connector("chroma", {"path": str(self.path.parent), "owner_field": "user_id"}, secrets=str)

    def source(self) -> str:
        config = {"path": str(self.path), "owner_field": "user_id"}
        return (
            f"from connectors.base import open_connector\nconnector = open_connector('chroma', {config!r}, secrets=str)"
        )

    def own_delete(self, name: str) -> None:
        with self.notes() as notes:
            notes.delete(ids=[name])


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[ChromaBed]:
    made = ChromaBed(tmp_path)
    yield made
    made.release()


class TestChroma(Contract):
    holds = "chroma, folder"


def wiped(bed: ChromaBed, items: Sequence[Item]) -> list[tuple[Level | None, bool | None]]:
    with bed.open() as connector:
        assert {receipt.outcome for receipt in erase(connector, list(items))} <= {
            Outcome.ERASED,
            Outcome.ALREADY_ABSENT,
        }
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    with bed.open(read_only=True) as verifier:
        return [(f.level, f.present) for f in verifier.verify(items, Level.L2, deadline=30, reclaimed=report)]


@pytest.mark.scenario("A13", "S30")
def test_a_small_collection_keeps_the_record_in_its_queue_and_ours_takes_it(bed: ChromaBed) -> None:
    bed.put_all({f"ben-{n}": text_of(f"ben-{n}") for n in range(40)}, BEN)
    items = bed.put_all({f"mia-{n}": f"{text_of(f'mia-{n}')} qzx" for n in range(3)}, "mia")
    before, nearest = bed.all(), bed.near(text_of("ben-7"), 5)
    with bed.open() as connector:
        items = captured(connector, items)
    for item in items:
        bed.own_delete(item.copy_id)
    assert bed.get("mia-1") is None
    queue = "SELECT count(*), sum(vector IS NOT NULL) FROM embeddings_queue WHERE id LIKE 'mia-%' AND operation = 0"
    assert bed.run(queue) == [(3, 3)]
    # Three letters that nobody else wrote, in the blocks of the full-text index.
    blocks = "SELECT count(*) FROM embedding_fulltext_search_data WHERE instr(block, CAST('qzx' AS BLOB)) > 0"
    assert bed.run(blocks)[0][0] > 0
    assert bed.hits(text_of("mia-1")) > 0
    assert bed.raw_hits(raw(f"{text_of('mia-1')} qzx")) > 0
    with bed.open(read_only=True) as verifier:
        seen = verifier.verify(items, Level.L2, deadline=30)
        assert "database" in {residue.where for residue in verifier.residue(items[0].canaries, deadline=30)}
    assert {(f.level, f.present) for f in seen} == {(Level.L1, True)}
    assert wiped(bed, items) == [(Level.L2, False)] * 3
    assert [bed.hits(text_of(item.copy_id)) for item in items] == [0, 0, 0]
    assert bed.raw_hits(raw(f"{text_of('mia-1')} qzx")) == 0
    assert bed.run(blocks) == [(0,)]
    assert bed.run("SELECT count(*) FROM embeddings_queue WHERE id LIKE 'mia-%'") == [(0,)]
    after = bed.all()
    assert {name: row[:2] for name, row in after.items()} == {
        name: row[:2] for name, row in before.items() if name.startswith("ben")
    }
    assert all(near(after[name][2], before[name][2]) for name in after)
    assert bed.near(text_of("ben-7"), 5) == nearest
    assert nearest[0] == "ben-7"
    assert all(name.startswith("ben") for name in bed.near(f"{text_of('mia-1')} qzx", 40))
    with bed.notes() as notes:
        assert notes.get(where_document={"$contains": "mia-"})["ids"] == []


def vacuumed(bed: ChromaBed) -> None:
    bed.release()
    program = str(Path(sys.executable).with_name("chroma"))
    done = subprocess.run([program, "vacuum", "--path", str(bed.path), "--force"], capture_output=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("space", ["cosine", pytest.param("l2", marks=pytest.mark.slow)])
@pytest.mark.scenario("A14", "S31", "L32")
def test_a_vacuum_leaves_the_vectors_in_the_index_file_and_ours_takes_them(tmp_path: Path, space: str) -> None:
    bed = ChromaBed(tmp_path, **{"hnsw:space": space, "hnsw:sync_threshold": 20, "hnsw:batch_size": 10})
    items = bed.put_all({f"mia-{n}": text_of(f"mia-{n}") for n in range(3)}, "mia")
    for start in range(0, 60, 10):
        bed.put_all({f"ben-{n}": text_of(f"ben-{n}") for n in range(start, start + 10)}, BEN)
    with bed.open() as connector:
        items = captured(connector, items)
    for item in items:
        bed.own_delete(item.copy_id)
    for start in range(60, 90, 10):
        bed.put_all({f"ben-{n}": text_of(f"ben-{n}") for n in range(start, start + 10)}, BEN)
    vacuumed(bed)
    assert bed.hits(text_of("mia-1")) == 0
    (index,) = [Index.of(folder) for folder in bed.path.iterdir() if folder.is_dir()]
    assert "mia-1" not in index.ids
    assert index.unnamed == 3
    if space == "cosine":
        # At length one, no form of the vector is there byte by byte.
        assert bed.raw_hits(raw(text_of("mia-1"))) == 0
    with bed.open(read_only=True) as verifier:
        found = verifier.residue(items[1].canaries, deadline=30)
        assert {residue.where for residue in found} == {"vector index"}
        seen = verifier.verify(items, Level.L2, deadline=30)
    assert {(f.level, f.present) for f in seen} == {(Level.L1, True)}
    before, nearest = bed.all(), bed.near(text_of("ben-7"), 5)
    assert wiped(bed, items) == [(Level.L2, False)] * 3
    with bed.open(read_only=True) as verifier:
        assert verifier.residue([canary for item in items for canary in item.canaries], deadline=30) == []
    after = bed.all()
    assert {name: row[:2] for name, row in after.items()} == {name: row[:2] for name, row in before.items()}
    assert all(near(after[name][2], before[name][2]) for name in after)
    assert bed.near(text_of("ben-7"), 5) == nearest
    assert len([folder for folder in bed.path.iterdir() if folder.is_dir()]) == 1


def test_room_of_the_new_index_that_is_not_used_yet_is_blank(bed: ChromaBed) -> None:
    # The engine writes its whole buffer; what it never filled is old memory of the process, with vectors in it.
    items, _ = fill(bed, 4)
    assert wiped(bed, items) == [(Level.L2, False)] * 4
    (folder,) = [each for each in bed.path.iterdir() if each.is_dir()]
    count, size = struct.unpack_from("<2Q", (folder / "header.bin").read_bytes(), 20)
    data = (folder / "data_level0.bin").read_bytes()
    assert len(data) > count * size
    assert not any(data[count * size :])


def test_another_collections_index_that_holds_the_vector_in_unused_room_is_copied_too(bed: ChromaBed) -> None:
    items, _ = fill(bed, 2)
    with bed.client() as client:
        made = client.create_collection("other", embedding_function=None)
        made.add(ids=["a", "b"], embeddings=[vector_of("a"), vector_of("b")], documents=["a text", "b text"])
        made.query(query_embeddings=[vector_of("a")], n_results=1)
    bed.release()
    uid, segment = bed.run(
        "SELECT c.id, s.id FROM collections c JOIN segments s ON s.collection = c.id AND s.scope = 'VECTOR'"
        " WHERE c.name = 'other'"
    )[0]
    # As the engine leaves it where one process writes both: its buffer goes to the file with what was there before.
    with (bed.path / segment / "data_level0.bin").open("r+b") as stream:
        stream.seek(-100, 2)
        stream.write(struct.pack(f"<{DIMENSIONS}f", *vector_of(text_of("mia-0"))))
    with bed.open() as connector:
        items = captured(connector, items)
    assert wiped(bed, items) == [(Level.L2, False)] * 2
    assert bed.raw_hits(raw(text_of("mia-0"))) == 0
    assert bed.run("SELECT 1 FROM collections WHERE id = ?", uid) == []
    with bed.client() as client:
        assert client.get_collection("other", embedding_function=None).get()["documents"] == ["a text", "b text"]


def test_the_folder_that_a_dropped_collection_leaves_goes_with_the_next_reclaim(tmp_path: Path) -> None:
    bed = ChromaBed(tmp_path, **{"hnsw:sync_threshold": 10, "hnsw:batch_size": 5})
    (mine,) = bed.put_all({"mia-0": text_of("mia-0")}, "mia")
    with bed.client() as client:
        old = client.create_collection("old", metadata={"hnsw:sync_threshold": 10, "hnsw:batch_size": 5})
        for n in range(30):
            old.add(ids=[f"{n}"], embeddings=[vector_of(f"old {n}")], documents=[f"old {n}"])
        client.delete_collection("old")
    assert bed.raw_hits(raw("old 3"), "data_level0.bin") == 1
    assert wiped(bed, [mine]) == [(Level.L2, False)]
    assert bed.raw_hits(raw("old 3")) == 0


APPLICATION = """
import sys, chromadb
from chromadb.config import Settings
client = chromadb.PersistentClient(sys.argv[1], settings=Settings(anonymized_telemetry=False))
handle = client.get_collection("notes", embedding_function=None)
print(len(handle.query(query_embeddings=[[1.0] * handle._model.dimension], n_results=9)["ids"][0]), flush=True)
sys.stdin.readline()
late = dict(ids=["late"], embeddings=[[0.5] * handle._model.dimension], documents=["late"])
try:
    handle.add(**late)
except chromadb.errors.NotFoundError as error:
    print(type(error).__name__, flush=True)
client.get_collection("notes", embedding_function=None).add(**late)
"""


def test_a_handle_of_another_process_fails_after_the_reclaim_and_brings_nothing_back(bed: ChromaBed) -> None:
    items, _ = fill(bed, 2)
    bed.release()
    application = subprocess.Popen(
        [sys.executable, "-c", APPLICATION, str(bed.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert application.stdout is not None
    assert application.stdout.readline() == "4\n"
    assert wiped(bed, items) == [(Level.L2, False)] * 2
    said, _ = application.communicate("\n", timeout=60)
    assert said == "NotFoundError\n"
    assert application.returncode == 0
    assert sorted(bed.all()) == ["ben-0", "ben-1", "late"]
    with bed.open(read_only=True) as verifier:
        assert [finding.present for finding in verifier.verify(items, Level.L1, deadline=10)] == [False, False]


def test_a_write_while_it_is_copied_is_not_lost(bed: ChromaBed, monkeypatch: pytest.MonkeyPatch) -> None:
    from connectors.chroma import _Rebuild

    items, _ = fill(bed, 3)
    rounds: list[int] = []
    copy = _Rebuild._copy

    def meanwhile(self: _Rebuild, *given: Any) -> Any:
        made = copy(self, *given)
        rounds.append(len(rounds))
        if len(rounds) == 1:
            bed.put("ben-late", "late row", BEN)
            bed.release()
        return made

    monkeypatch.setattr(_Rebuild, "_copy", meanwhile)
    assert wiped(bed, items) == [(Level.L2, False)] * 3
    assert len(rounds) == 2
    assert bed.get("ben-late") == "late row"
    with bed.client() as client:
        assert [each.name for each in client.list_collections()] == ["notes"]


def test_a_collection_that_is_always_written_to_stays_at_l1_and_whole(
    bed: ChromaBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    from connectors.chroma import _Rebuild

    items, _ = fill(bed, 2)
    copy = _Rebuild._copy
    written: list[str] = []

    def meanwhile(self: _Rebuild, *given: Any) -> Any:
        made = copy(self, *given)
        written.append(f"ben-late-{len(written)}")
        bed.put(written[-1], "late row", BEN)
        bed.release()
        return made

    monkeypatch.setattr(_Rebuild, "_copy", meanwhile)
    with bed.open() as connector:
        erase(connector, items)
        assert connector.reclaim(Level.L2, now=NOW, deadline=30).level is Level.L1
    assert sorted(bed.all()) == ["ben-0", "ben-1", *written]


def test_killed_before_the_copy_took_its_place_the_collection_is_whole_and_the_copy_goes(bed: ChromaBed) -> None:
    items, _ = fill(bed, 2)
    with bed.open() as connector:
        items = captured(connector, items)
        erase(connector, items[:1])
    program = (
        f"{bed.source()}\nimport os, signal\nfrom datetime import datetime, UTC\n"
        "from connectors import chroma\nfrom connectors.base import Item, Level\n"
        f"item = Item(copy_id='c', locator={dict(items[0].locator)!r})\nnow = datetime.now(UTC)\n"
        f"connector.erase([item], owner_identifiers=[{MIA!r}], now=now, deadline=30)\n"
        "chroma._Rebuild._swap = lambda *given: os.kill(os.getpid(), signal.SIGKILL)\n"
        "connector.reclaim(Level.L2, now=now, deadline=30)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert killed.returncode == -9, killed.stderr
    # The copy still holds mia-1, which is erased only now.
    assert len(bed.run("SELECT 1 FROM collections WHERE name LIKE 'muniment-copy-%'")) == 1
    assert sorted(bed.all()) == ["ben-0", "ben-1", "mia-1"]
    bed.release()
    assert wiped(bed, items) == [(Level.L2, False)] * 2
    assert bed.run("SELECT name FROM collections") == [("notes",)]
    assert bed.hits(text_of("mia-1")) == 0
    assert sorted(bed.all()) == ["ben-0", "ben-1"]


def test_settings_metadata_and_lists_survive_the_copy(tmp_path: Path) -> None:
    bed = ChromaBed(tmp_path, **{"hnsw:space": "cosine", "hnsw:M": 8, "purpose": "notes of people"})
    fill(bed, 2)
    with bed.notes() as notes:
        notes.add(
            ids=["ben-tags", "ben-bare"],
            embeddings=[vector_of("t"), vector_of("b")],
            metadatas=[{"user_id": BEN, "tags": ["sea", "hills"]}, {"user_id": BEN}],
        )
        before = notes.metadata, notes.configuration_json
    rows = bed.all()
    assert wiped(bed, [Item(copy_id="c", locator={"collection": "notes", "id": "mia-0"})]) == [(Level.L2, False)]
    with bed.notes() as notes:
        assert (notes.metadata, notes.configuration_json) == before
        assert notes.get(where_document={"$contains": "Blackthorn"})["ids"] == ["mia-1", "ben-0", "ben-1"]
        assert notes.get(where={"user_id": "mia"})["ids"] == ["mia-1"]
    after = bed.all()
    assert {name: row[:2] for name, row in after.items()} == {
        name: row[:2] for name, row in rows.items() if name != "mia-0"
    }


def test_an_embedding_function_stays_named_and_an_emptied_collection_keeps_its_dimension(bed: ChromaBed) -> None:
    with bed.client() as client:
        other = client.create_collection("other")
        other.add(ids=["a"], embeddings=[vector_of("a")], documents=["a text"], metadatas=[{"user_id": "mia"}])
        before = client.get_collection("other").configuration_json
    assert before["embedding_function"] == {"type": "known", "name": "default", "config": {}}
    assert wiped(bed, [Item(copy_id="a", locator={"collection": "other", "id": "a"})]) == [(Level.L2, False)]
    with bed.client() as client:
        other = client.get_collection("other")
        assert (other.configuration_json, other.count()) == (before, 0)
        with pytest.raises(chromadb.errors.InvalidArgumentError):
            other.add(ids=["b"], embeddings=[[1.0, 2.0]])
        other.add(ids=["b"], embeddings=[vector_of("b")], documents=["b text"])
        assert other.query(query_embeddings=[vector_of("b")], n_results=1)["ids"] == [["b"]]


def test_owners_that_are_numbers_and_other_databases_are_reached(bed: ChromaBed) -> None:
    with bed.client() as client:
        client._admin_client.create_database("second")
        client.set_database(database="second")
        other = client.create_collection("notes", embedding_function=None)
        other.add(
            ids=["a", "b"], embeddings=[vector_of("a"), vector_of("b")], metadatas=[{"user_id": 77}, {"user_id": 78}]
        )
    place = "default_tenant/second/notes"
    with bed.open() as connector:
        found = list(connector.discover(Selector(identifiers=("user:77",)), deadline=10))
        assert found == [{"collection": place, "id": "a"}]
        items = [Item(copy_id=name, locator={"collection": place, "id": name}) for name in ("a", "b")]
        assert [receipt.outcome for receipt in erase(connector, items, "user:77")] == [
            Outcome.ERASED,
            Outcome.OWNER_MISMATCH,
        ]
        assert connector.reclaim(Level.L2, now=NOW, deadline=30).level is Level.L2
        assert [each["id"] for each in connector.walk(deadline=10)] == ["b"]
    with bed.client() as client:
        client.set_database(database="second")
        assert client.get_collection("notes", embedding_function=None).get()["ids"] == ["b"]


def test_a_client_in_the_same_process_is_refused_because_locks_would_be_lost(bed: ChromaBed) -> None:
    items, _ = fill(bed, 1)
    with bed.open() as connector, bed.client() as client:
        assert client.count_collections() == 1
        with pytest.raises(StoreUnreachable, match="in this very process"):
            erase(connector, items)
        with pytest.raises(StoreUnreachable, match="in this very process"):
            connector.verify(items, Level.L1, deadline=5)
    assert bed.get("mia-0") == text_of("mia-0")


def test_the_engine_runs_in_a_process_of_its_own_and_ends_with_the_call(bed: ChromaBed) -> None:
    items, _ = fill(bed, 1)
    program = (
        f"{bed.source()}\nimport sys\nfrom datetime import datetime, UTC\nfrom connectors.base import Item, Level\n"
        f"item = Item(copy_id='c', locator={dict(items[0].locator)!r})\n"
        f"print(connector.erase([item], owner_identifiers=[{MIA!r}], now=datetime.now(UTC), deadline=30)[0].outcome)\n"
        "print(connector.reclaim(Level.L2, now=datetime.now(UTC), deadline=30).level)\n"
        "print([name for name in ('chromadb', 'chromadb_rust_bindings') if name in sys.modules])\n"
    )
    bed.release()
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["erased", "L2", "[]"], done.stderr
    assert subprocess.run(["pgrep", "-f", f"chroma_engine.py {bed.path}"], check=False).returncode == 1


def test_a_lock_taken_in_the_middle_of_a_copy_ends_it_at_the_deadline(
    bed: ChromaBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    from connectors.chroma import _Rebuild

    items, _ = fill(bed, 2)
    add = _Rebuild._add
    released: list[Callable[[], None]] = []

    def meanwhile(*given: Any) -> None:
        released.append(locked(bed.path / DATABASE))
        add(*given)

    with bed.open() as connector:
        erase(connector, items)
        with monkeypatch.context() as patch:
            patch.setattr(_Rebuild, "_add", staticmethod(meanwhile))
            started = time.monotonic()
            with pytest.raises((Timeout, StoreUnreachable)):
                connector.reclaim(Level.L2, now=NOW, deadline=2)
            assert time.monotonic() - started < 8
        for release in released:
            release()
        assert connector.reclaim(Level.L2, now=NOW, deadline=30).level is Level.L2
    assert sorted(bed.all()) == ["ben-0", "ben-1"]


def test_looking_changes_no_file(bed: ChromaBed) -> None:
    items, _ = fill(bed, 2)

    def state() -> dict[str, tuple[int, str]]:
        files = [file for file in bed.path.rglob("*") if file.is_file()]
        return {str(file): (file.stat().st_mtime_ns, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files}

    before = state()
    with bed.open(read_only=True) as connector:
        items = captured(connector, items)
        assert raw(text_of("mia-0")) in b"".join(items[0].canaries)
        connector.verify(items, Level.L2, deadline=30)
        list(connector.export(items, deadline=30))
        list(connector.discover(Selector(identifiers=(MIA,)), deadline=30))
        connector.residue([b"anything at all"], deadline=30)
    assert state() == before


def test_a_folder_of_another_version_is_refused_and_left_alone(bed: ChromaBed) -> None:
    items, _ = fill(bed, 1)
    bed.run("INSERT INTO migrations VALUES ('metadb', 7, 'later.sql', '', '')")
    with bed.open() as connector, pytest.raises(StoreUnreachable, match="another version"):
        erase(connector, items)
    bed.run("DELETE FROM migrations WHERE version = 7 AND dir = 'metadb'")
    assert bed.get("mia-0") == text_of("mia-0")


def test_names_inside_a_folder_lead_nowhere_else(bed: ChromaBed, tmp_path: Path) -> None:
    items, _ = fill(bed, 1)
    bed.release()
    bed.run("UPDATE segments SET id = '../elsewhere' WHERE scope = 'VECTOR'")
    with bed.open() as connector, pytest.raises(StoreUnreachable, match="folder's name"):
        erase(connector, items)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / DATABASE).symlink_to(bed.path / DATABASE)
    with (
        open_connector("chroma", {"path": str(tmp_path / "linked")}, secrets=str) as connector,
        pytest.raises(StoreUnreachable, match="symbolic link"),
    ):
        erase(connector, items)


def test_bad_settings_and_missing_folders_are_named_errors(tmp_path: Path) -> None:
    path = str(tmp_path)
    for config in (
        {},
        {"path": "relative"},
        {"path": path, "surprise": 1},
        {"url": "ftp://h"},
        {"path": path, "api_key": "k"},
    ):
        with pytest.raises(BadConfig):
            open_connector("chroma", config, secrets=str)
    with open_connector("chroma", {"path": str(tmp_path / "missing")}, secrets=str) as connector:
        with pytest.raises(StoreUnreachable):
            erase(connector, [Item(copy_id="c", locator={"collection": "t", "id": "1"})])
        assert connector.check(now=NOW, deadline=5).reachable is False
    assert not (tmp_path / "missing").exists()


def test_a_copy_of_the_folder_is_another_store(bed: ChromaBed, tmp_path: Path) -> None:
    items, _ = fill(bed, 1)
    shutil.copytree(bed.path, tmp_path / "copy")
    assert wiped(bed, items) == [(Level.L2, False)]
    with open_connector("chroma", {"path": str(tmp_path / "copy")}, secrets=str, read_only=True) as other:
        assert other.verify(items, Level.L1, deadline=10)[0].present is True
        with pytest.raises(BadLocator):
            other.check_locator({"collection": "other", "id": "x"})
