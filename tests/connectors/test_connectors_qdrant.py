from __future__ import annotations

import base64
import json
import pickle
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

import pytest

from connectors.base import Connector, Item, Level, Outcome, Selector, open_connector
from connectors.errors import BadConfig, ModeNotBuilt, StoreUnreachable
from tests.connectors.beds import FolderBed
from tests.connectors.contract import BEN, MIA, NOW, Contract, captured, erase, fill, oracle, text_of
from tests.connectors.vector_beds import DIMENSIONS, near, vector_of
from tests.lazily import Lazily

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

qdrant, models = Lazily("qdrant_client"), Lazily("qdrant_client.models")


def uid(name: str) -> str:
    return str(uuid5(NAMESPACE_URL, name))


def doubles(text: str) -> bytes:
    """The head of the text's vector as a pickle has it."""
    return b"".join(b"G" + struct.pack(">d", number) for number in vector_of(text)[:8])


class QdrantBed(FolderBed):
    def __init__(self, folder: Path) -> None:
        self.path = folder / "vectors"
        self.running: QdrantClient | None = None
        with self.client() as client:
            client.create_collection(
                "notes", vectors_config=models.VectorParams(size=DIMENSIONS, distance=models.Distance.DOT)
            )
        with closing(sqlite3.connect(self.file)) as connection:
            # Debian builds SQLite so that this is the default; the wheels of Python and others do not.
            self.cleans_itself = bool(connection.execute("PRAGMA secure_delete").fetchone()[0])

    @property
    def file(self) -> Path:
        return self.path / "collection" / "notes" / "storage.sqlite"

    @contextmanager
    def client(self) -> Iterator[QdrantClient]:
        """The application's client; it has the folder for itself until `release`."""
        if self.running is None:
            self.running = qdrant.QdrantClient(path=str(self.path))
        yield self.running

    def release(self) -> None:
        if self.running is not None:
            self.running.close()
            self.running = None

    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        point = models.PointStruct(id=uid(name), vector=vector_of(text), payload={"text": text, "user_id": owner})
        with self.client() as client:
            client.upsert("notes", [point])
        return {"collection": "notes", "id": uid(name)}

    def get(self, name: str) -> str | None:
        with self.client() as client:
            found = client.retrieve("notes", [uid(name)])
        return (found[0].payload or {})["text"] if found else None

    def whole(self, name: str) -> object:
        with self.client() as client:
            found = client.retrieve("notes", [uid(name)], with_payload=True, with_vectors=True)
        return found[0].model_dump() if found else None

    def refuse(self, name: str) -> Callable[[], None]:
        self.release()
        key = uid(name).encode()
        with closing(sqlite3.connect(self.file, isolation_level=None)) as connection:
            rows = [row for row, blob in connection.execute("SELECT rowid, point FROM points") if key in blob]
            connection.execute(
                f"CREATE TRIGGER refused BEFORE DELETE ON points WHEN old.rowid = {rows[0]}"
                " BEGIN SELECT RAISE(ABORT, 'kept by its owner'); END"
            )

        def release() -> None:
            self.release()
            with closing(sqlite3.connect(self.file, isolation_level=None)) as connection:
                connection.execute("DROP TRIGGER refused")

        return release

    def near(self, text: str) -> list[str]:
        names = {uid(f"{who}-{number}"): f"{who}-{number}" for who in ("mia", "ben") for number in range(50)}
        return [names[str(identity)] for identity, _ in self.scored(text)]

    def scored(self, text: str) -> list[tuple[Any, float]]:
        with self.client() as client:
            found = client.query_points("notes", query=vector_of(text), limit=50).points
        return [(point.id, point.score) for point in found]

    def open(self, *, read_only: bool = False, owner: bool = True) -> Connector:
        self.release()
        config = {"path": str(self.path)} | ({"owner_field": "user_id"} if owner else {})
        return open_connector("qdrant", config, secrets=str, read_only=read_only)

    def hits(self, canary: str) -> int:
        self.release()
        return oracle([self.path], canary)

    def block(self) -> Callable[[], None]:
        self.release()
        held: QdrantClient = qdrant.QdrantClient(path=str(self.path))
        return held.close

    def hostile(self) -> list[Mapping[str, Any]]:
        return [
            {"collection": "notes", "id": "mia-0"},
            {"collection": "notes", "id": -1},
            {"collection": "notes", "id": 2**64},
            {"collection": "notes"},
            {"collection": "../collection/notes", "id": uid("mia-0")},
            {"collection": "notes", "id": [uid("mia-0")]},
            {"collection": "notes", "id": None},
            {"collection": "notes", "id": True},
            {"collection": "notes", "id": uid("mia-0"), "filter": {}},
        ]

    def wrong(self) -> Connector:
        return open_connector("qdrant", {"path": str(self.path.parent), "owner_field": "user_id"}, secrets=str)

    def source(self) -> str:
        config = {"path": str(self.path), "owner_field": "user_id"}
        return (
            f"from connectors.base import open_connector\nconnector = open_connector('qdrant', {config!r}, secrets=str)"
        )

    def own_delete(self, name: str) -> None:
        with self.client() as client:
            client.delete("notes", points_selector=[uid(name)])

    def hit_bytes_remain_after_own_delete(self) -> bool:
        return not self.cleans_itself


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[QdrantBed]:
    made = QdrantBed(tmp_path)
    yield made
    made.release()


class TestQdrant(Contract):
    holds = "qdrant, folder"


def wiped(bed: QdrantBed, items: list[Item]) -> list[tuple[Level | None, bool | None]]:
    with bed.open() as connector:
        assert {receipt.outcome for receipt in erase(connector, items)} <= {Outcome.ERASED, Outcome.ALREADY_ABSENT}
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    with bed.open(read_only=True) as verifier:
        return [(f.level, f.present) for f in verifier.verify(items, Level.L2, deadline=30, reclaimed=report)]


@pytest.mark.scenario("L32")
def test_free_pages_keep_text_and_vector_until_ours_rewrites_the_file(bed: QdrantBed) -> None:
    names = [f"mia-{number}" for number in range(3)]
    mine = []
    for name in names:
        mine.append(Item(copy_id=name, locator=bed.put(name, text_of(name), "mia")))
        for number in range(5):
            bed.put(f"ben-{number}-{name}", text_of(f"ben-{number}-{name}"), BEN)
    with bed.open() as connector:
        items = captured(connector, mine)
    gone, texts = {uid(name) for name in names}, [text_of(name).encode() for name in names]
    neighbours = [each for each in bed.scored(text_of("ben-3-mia-1")) if each[0] not in gone]
    bed.release()
    # What Qdrant's delete does in a process whose SQLite does not overwrite what it frees.
    with closing(sqlite3.connect(bed.file, isolation_level=None)) as connection:
        connection.execute("PRAGMA secure_delete=OFF")
        rows = [(row, blob) for row, blob in connection.execute("SELECT rowid, point FROM points")]
        freed = [(row,) for row, blob in rows if any(b"\x8c" + bytes([len(text)]) + text in blob for text in texts)]
        assert len(freed) == len(names)
        connection.executemany("DELETE FROM points WHERE rowid = ?", freed)
    assert [bed.get(name) for name in names] == [None] * len(names)
    left = [number for number, name in enumerate(names) if bed.file.read_bytes().count(text_of(name).encode())]
    assert left
    assert bed.hits(text_of(names[left[0]])) > 0
    assert any(doubles(text_of(name)) in bed.file.read_bytes() for name in names)
    with bed.open(read_only=True) as verifier:
        by_vector = [piece for item in items for piece in item.canaries if piece.startswith(b"G")]
        assert {residue.where for residue in verifier.residue(by_vector, deadline=30)} == {"collection files"}
        seen = verifier.verify(items, Level.L2, deadline=30)
    assert {(seen[number].level, seen[number].present) for number in left} == {(Level.L1, True)}
    assert not any(finding.present is False for finding in seen)
    assert wiped(bed, items) == [(Level.L2, False)] * len(items)
    assert [bed.hits(text_of(name)) for name in names] == [0] * len(names)
    assert not any(doubles(text_of(name)) in bed.file.read_bytes() for name in names)
    # Scores are compared whole: nothing of the neighbours moved.
    assert bed.scored(text_of("ben-3-mia-1")) == neighbours
    assert neighbours[0][0] == uid("ben-3-mia-1")


@pytest.mark.scenario("A17", "S20")
def test_an_application_that_has_the_folder_open_is_named_and_nothing_is_claimed(bed: QdrantBed) -> None:
    mine, _ = fill(bed, 1)
    with bed.open() as connector, bed.client() as application:
        # It answers from its memory, and would write from it.
        with pytest.raises(StoreUnreachable, match="an application has the folder open"):
            erase(connector, mine)
        with pytest.raises(StoreUnreachable, match="an application has the folder open"):
            connector.reclaim(Level.L2, now=NOW, deadline=5)
        assert application.count("notes").count == 2
    bed.release()
    assert wiped(bed, mine) == [(Level.L2, False)]


def test_ids_are_numbers_and_uuids_in_any_spelling(bed: QdrantBed) -> None:
    with bed.client() as client:
        points = [
            models.PointStruct(id=each, vector=vector_of(str(each)), payload={"user_id": "mia"})
            for each in (1, 2**40, 2**63, uid("a"))
        ]
        client.upsert("notes", points)
    spelled = [1, 2**40, 2**63, uid("a").upper().replace("-", "")]
    items = [Item(copy_id=str(each), locator={"collection": "notes", "id": each}) for each in spelled]
    with bed.open() as connector:
        assert {receipt.outcome for receipt in erase(connector, items)} == {Outcome.ERASED}
        assert {receipt.outcome for receipt in erase(connector, items)} == {Outcome.ALREADY_ABSENT}
    with bed.client() as client:
        assert client.count("notes").count == 0


def test_rows_that_older_clients_left_for_one_id_go_together(bed: QdrantBed) -> None:
    bed.put("mia-0", text_of("mia-0"), "mia")
    with closing(sqlite3.connect(bed.file, isolation_level=None)) as connection:
        # Another spelling of the UUID was another row before qdrant-client 1.19.
        (blob,) = connection.execute("SELECT point FROM points").fetchone()
        key = b"\x80\x03X" + struct.pack("<I", 36) + uid("mia-0").upper().encode() + b"q\x00."
        connection.execute("INSERT INTO points VALUES (?, ?)", (base64.b64encode(key).decode(), blob))
    assert wiped(bed, [Item(copy_id="c", locator={"collection": "notes", "id": uid("mia-0")})]) == [(Level.L2, False)]
    with closing(sqlite3.connect(bed.file)) as connection:
        assert connection.execute("SELECT count(*) FROM points").fetchone() == (0,)


def test_named_multiple_and_sparse_vectors_are_looked_for(bed: QdrantBed) -> None:
    several = [vector_of("one")[:6], vector_of("two")[:6]]
    with bed.client() as client:
        client.create_collection(
            "mixed",
            vectors_config={
                "text": models.VectorParams(size=8, distance=models.Distance.DOT),
                "parts": models.VectorParams(
                    size=6,
                    distance=models.Distance.DOT,
                    multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
                ),
            },
            sparse_vectors_config={"words": models.SparseVectorParams()},
        )
        words = models.SparseVector(indices=[3, 9, 12, 40], values=[0.25, 0.5, 0.125, 0.75])
        vector: Any = {"text": vector_of("whole")[:8], "parts": several, "words": words}
        client.upsert("mixed", [models.PointStruct(id=1, vector=vector, payload={"user_id": "mia"})])
    item = Item(copy_id="c", locator={"collection": "mixed", "id": 1})
    with bed.open(read_only=True) as connector:
        held = connector.capture([item], deadline=10)["c"]
        exported = json.loads(dict(connector.export([item], deadline=10))["c"] or b"")
    for numbers in (vector_of("whole")[:8], *several, [0.25, 0.5, 0.125, 0.75]):
        assert b"".join(b"G" + struct.pack(">d", number) for number in numbers) in held
    assert near(exported["vectors"][0], vector_of("whole")[:8])
    assert len(exported["vectors"]) == 4


def test_nothing_a_pickle_says_is_run(bed: QdrantBed, tmp_path: Path) -> None:
    bed.put("ben-0", text_of("ben-0"), BEN)
    witness = tmp_path / "witness"
    evil = f"cos\nmkdir\n(S'{witness}'\ntR.".encode()
    with closing(sqlite3.connect(bed.file, isolation_level=None)) as connection:
        connection.execute("UPDATE points SET point = ?", (evil,))
    with bed.open() as connector, pytest.raises(StoreUnreachable, match="cannot be read"):
        connector.capture([Item(copy_id="c", locator={"collection": "notes", "id": uid("ben-0")})], deadline=10)
    assert not witness.exists()
    # The witness shows up where somebody does unpickle it.
    pickle.loads(evil)  # noqa: S301 -- our own bytes, to show that the trap works
    assert witness.exists()


def test_a_collection_outside_the_folder_is_refused(bed: QdrantBed, tmp_path: Path) -> None:
    fill(bed, 1)
    shutil.copytree(bed.file.parent, tmp_path / "elsewhere")
    described = json.loads((bed.path / "meta.json").read_text())
    described["collections"]["../../elsewhere"] = described["collections"]["notes"]
    (bed.path / "meta.json").write_text(json.dumps(described))
    item = Item(copy_id="c", locator={"collection": "../../elsewhere", "id": uid("mia-0")})
    with bed.open() as connector, pytest.raises(StoreUnreachable, match="outside the folder"):
        erase(connector, [item])


def test_owners_inside_members_are_reached_by_dots(bed: QdrantBed) -> None:
    with bed.client() as client:
        for number, owner in enumerate(("mia", "ben"), start=1):
            payload = {"page_content": f"text {number}", "metadata": {"user_id": owner}}
            client.upsert("notes", [models.PointStruct(id=number, vector=vector_of(owner), payload=payload)])
    config = {"path": str(bed.path), "owner_field": "metadata.user_id"}
    items = [Item(copy_id=str(number), locator={"collection": "notes", "id": number}) for number in (1, 2)]
    bed.release()
    with open_connector("qdrant", config, secrets=str) as connector:
        found = list(connector.discover(Selector(identifiers=(MIA,)), deadline=10))
        assert found == [{"collection": "notes", "id": 1}]
        assert len(list(connector.walk(deadline=10))) == 2
        outcomes = [receipt.outcome for receipt in erase(connector, items)]
        assert connector.check(now=NOW, deadline=30).owner_check == "enforced"
    assert outcomes == [Outcome.ERASED, Outcome.OWNER_MISMATCH]


def test_looking_changes_no_file(bed: QdrantBed) -> None:
    items, _ = fill(bed, 2)

    def state() -> dict[str, tuple[int, bytes]]:
        files = [file for file in bed.path.rglob("*") if file.is_file()]
        return {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in files}

    before = state()
    with bed.open(read_only=True) as connector:
        items = captured(connector, items)
        connector.verify(items, Level.L2, deadline=30)
        list(connector.export(items, deadline=30))
        connector.residue([b"anything at all"], deadline=30)
    assert state() == before


def test_a_collection_that_is_gone_meanwhile_was_not_rewritten(bed: QdrantBed) -> None:
    item = Item(copy_id="c", locator=bed.put("mia-0", text_of("mia-0"), "mia"))
    with bed.open() as connector:
        erase(connector, [item])
        with bed.client() as client:
            client.delete_collection("notes")
        bed.release()
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    assert report.evidence == {}, "nothing of that name was rewritten, and one of that name may come again"


def test_check_leaves_no_folder_behind(bed: QdrantBed) -> None:
    with bed.open() as connector:
        assert connector.check(now=NOW, deadline=30).findings == ()
    assert [folder.name for folder in (bed.path / "collection").iterdir()] == ["notes"]


def test_a_server_is_refused_by_name_and_so_are_bad_settings(tmp_path: Path) -> None:
    with pytest.raises(ModeNotBuilt, match="kind http with recipe qdrant"):
        open_connector("qdrant", {"url": "http://localhost:6333"}, secrets=str)
    for config in ({}, {"path": "relative"}, {"path": str(tmp_path), "surprise": 1}):
        with pytest.raises(BadConfig):
            open_connector("qdrant", config, secrets=str)
    with open_connector("qdrant", {"path": str(tmp_path / "missing")}, secrets=str) as connector:
        with pytest.raises(StoreUnreachable):
            erase(connector, [Item(copy_id="c", locator={"collection": "t", "id": 1})])
        assert connector.check(now=NOW, deadline=5).reachable is False
    assert not (tmp_path / "missing").exists()
