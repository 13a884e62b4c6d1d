from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.base import Connector, Item, Level, Outcome, Selector, open_connector
from connectors.errors import BadConfig, BadLocator
from connectors.residue import Needles
from connectors.vectors import forms, numbers_of
from tests.connectors.contract import BEN, MIA, NOW, Bed, Contract, captured, erase, fill, text_of
from tests.connectors.langgraph_beds import Database, embed, refusing

pytestmark = pytest.mark.postgres


class VectorBed(Bed):
    """A table of texts with embeddings and a cosine HNSW index, as applications make them."""

    serves = True

    def __init__(self, server: Any) -> None:
        self.database = Database(server)
        self.run = self.database.run
        self.run("CREATE EXTENSION vector")
        self.run("CREATE TABLE notes (id text PRIMARY KEY, person text, body text, embedding vector(16))")
        self.run("CREATE INDEX notes_hnsw ON notes USING hnsw (embedding vector_cosine_ops)")

    def restart(self) -> None:
        self.database.reopen()

    def refuse(self, name: str) -> Callable[[], None]:
        return refusing(self.run, "notes", f"old.id = '{name}'")

    @contextmanager
    def stranger(self) -> Iterator[str]:
        yield self.source(url=self.database.unknown())

    def whole(self, name: str) -> object:
        return self.run("SELECT * FROM notes WHERE id = %s", name)

    def near(self, text: str) -> list[str]:
        return self.nearest(text, 100)

    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        vector = str(embed([text])[0])
        self.run("INSERT INTO notes VALUES (%s, %s, %s, %s)", name, owner, text, vector)
        return {"collection": "notes", "id": name}

    def get(self, name: str) -> str | None:
        row = self.run("SELECT body FROM notes WHERE id = %s", name)
        return row[0][0] if row else None

    def nearest(self, text: str, count: int = 5) -> list[str]:
        """Return what the index finds; a plan without it would prove nothing."""
        query = f"SELECT id FROM notes ORDER BY embedding <=> '{embed([text])[0]}' LIMIT {count}"
        with psycopg.connect(self.database.uri, autocommit=True) as connection:
            connection.execute("SET enable_seqscan = off")
            connection.execute("SET hnsw.ef_search = 200")
            plan = connection.execute(f"EXPLAIN {query}".encode()).fetchall()
            assert any("notes_hnsw" in row[0] for row in plan)
            return [row[0] for row in connection.execute(query.encode()).fetchall()]

    def config(self, **more: object) -> dict[str, Any]:
        return {"url": self.database.url, **more}

    def open(self, *, read_only: bool = False, owner: bool = True, **more: object) -> Connector:
        config = self.config(**({"owner_field": "person"} if owner else {}), **more)
        return open_connector("pgvector", config, secrets=str, read_only=read_only)

    def hits(self, canary: str) -> int:
        return self.database.hits(canary.encode())

    def block(self) -> Callable[[], None]:
        return self.database.hold("SELECT * FROM notes FOR UPDATE")

    def hostile(self) -> list[Mapping[str, Any]]:
        return [
            {"collection": "notes", "id": ["mia-0"]},
            {"collection": "notes", "id": None},
            {"collection": "notes", "id": "mia-0\0"},
            {"collection": "notes"},
            {"collection": "notes; DROP TABLE notes", "id": "mia-0"},
            {"collection": "notes", "id": "mia-0", "where": "true"},
            {"table": "notes", "key": {"id": "mia-0"}},
            {"collection": "pg_catalog.pg_class", "id": "1259"},
        ]

    def wrong(self) -> Connector:
        self.run("ALTER TABLE notes ENABLE ROW LEVEL SECURITY")
        return open_connector("pgvector", {"url": self.database.role(), "owner_field": "person"}, secrets=str)

    def source(self, **more: object) -> str:
        config = self.config(owner_field="person", **more)
        return (
            "from connectors.base import open_connector\n"
            f"connector = open_connector('pgvector', {config!r}, secrets=str)"
        )

    def own_delete(self, name: str) -> None:
        self.run("DELETE FROM notes WHERE id = %s", name)


@pytest.fixture
def bed(server: Any) -> Iterator[VectorBed]:
    made = VectorBed(server)
    yield made
    made.database.close()


class TestPgvector(Contract):
    holds = "pgvector"


def as_stored(text: str) -> bytes:
    return struct.pack("<16f", *embed([text])[0])[:16]


@pytest.mark.scenario("S35")
def test_delete_and_vacuum_leave_the_heap_and_ours_leaves_neither_heap_nor_index(bed: VectorBed) -> None:
    for n in range(200):
        bed.put(f"ben-{n}", text_of(f"ben-{n}"), BEN)
    item = Item(copy_id="c", locator=bed.put("mia-0", text_of("mia-0"), "mia"))
    with bed.open() as connector:
        items = captured(connector, [item])
    normal = next(each for each in items[0].canaries if each in bed.database.relations()["notes_hnsw"])
    assert not normal.startswith(as_stored(text_of("mia-0")))
    bed.own_delete("mia-0")
    files = bed.database.relations()
    assert (files["notes"].count(as_stored(text_of("mia-0"))), files["notes_hnsw"].count(normal)) == (1, 1)
    bed.run("VACUUM notes")
    files = bed.database.relations()
    assert (files["notes"].count(as_stored(text_of("mia-0"))), files["notes_hnsw"].count(normal)) == (1, 0)
    asked = [text_of(f"ben-{n}") for n in range(0, 200, 20)]
    before = [bed.nearest(each) for each in asked]
    with bed.open() as connector:
        assert erase(connector, items)[0].outcome is Outcome.ALREADY_ABSENT
        with bed.open(read_only=True) as verifier:
            early = verifier.verify(items, Level.L2, deadline=30)[0]
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    assert (early.level, early.present) == (Level.L1, True)
    assert report.level is Level.L2
    assert "indexes: 1 of vectors built anew" in report.detail
    files = bed.database.relations()
    assert (files["notes"].count(as_stored(text_of("mia-0"))), files["notes_hnsw"].count(normal)) == (0, 0)
    with bed.open(read_only=True) as verifier:
        finding = verifier.verify(items, Level.L2, deadline=30, reclaimed=report)[0]
    assert (finding.level, finding.present) == (Level.L2, False)
    assert [len(each) for each in before] == [5] * len(asked)
    assert [bed.nearest(each) for each in asked] == before


def test_a_vector_that_another_table_still_holds_is_present(bed: VectorBed) -> None:
    item = Item(copy_id="c", locator=bed.put("mia-0", text_of("mia-0"), "mia"))
    bed.run("CREATE TABLE cached AS SELECT id, embedding FROM notes")
    bed.run("UPDATE cached SET id = 'x'")
    with bed.open() as connector:
        items = captured(connector, [item])
        erase(connector, items)
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
        finding = connector.verify(items, Level.L2, deadline=30, reclaimed=report)[0]
        found = connector.residue(items[0].canaries, deadline=30)
    assert (finding.level, finding.present) == (Level.L1, True)
    assert {residue.where for residue in found} == {"rows of public.cached"}


def test_a_vector_that_others_share_is_no_canary(bed: VectorBed) -> None:
    mine, _ = fill(bed, 1)
    bed.run("UPDATE notes SET embedding = (SELECT embedding FROM notes WHERE id = 'mia-0')")
    with bed.open() as connector:
        held = connector.capture(mine, deadline=10)["mia-0"]
    assert text_of("mia-0").encode() in held
    assert not any(each.startswith(as_stored(text_of("mia-0"))) for each in held)


def test_half_and_sparse_vectors_are_found_in_the_bytes(bed: VectorBed) -> None:
    bed.run("CREATE TABLE small (id int PRIMARY KEY, person text, h halfvec(16), s sparsevec(1000))")
    half = [n / 7 for n in range(16)]
    bed.run("INSERT INTO small VALUES (1, 'mia', %s, %s)", str(half), "{3:1.25,500:2.5,999:-3.75}/1000")
    item = Item(copy_id="c", locator={"collection": "small", "id": 1})
    with bed.open() as connector:
        items = captured(connector, [item])
        heap = bed.database.relations()["small"]
        stored = [each for each in items[0].canaries if each in heap]
        assert struct.pack("<3f", 1.25, 2.5, -3.75) in stored
        assert any(each.startswith(struct.pack("<4e", *half[:4])) for each in stored)
        erase(connector, items)
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
        finding = connector.verify(items, Level.L2, deadline=30, reclaimed=report)[0]
    assert (finding.level, finding.present) == (Level.L2, False)
    assert not any(each in bed.database.relations()["small"] for each in stored)


def test_a_long_vector_in_toast_goes_too(bed: VectorBed) -> None:
    rng = random.Random(3)
    long = [rng.uniform(-1, 1) for _ in range(1536)]
    bed.run("CREATE TABLE long (id int PRIMARY KEY, person text, embedding vector(1536))")
    bed.run("INSERT INTO long VALUES (1, 'mia', %s)", str(long))
    with bed.open() as connector:
        items = captured(connector, [Item(copy_id="c", locator={"collection": "public.long", "id": 1})])
        assert any(bed.database.hits(each) for each in items[0].canaries)
        assert {r.outcome for r in erase(connector, items)} == {Outcome.ERASED}
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
        finding = connector.verify(items, Level.L2, deadline=30, reclaimed=report)[0]
    assert (finding.level, finding.present) == (Level.L2, False)
    assert not any(bed.database.hits(each) for each in items[0].canaries)


@pytest.mark.scenario("C2")
def test_a_table_with_a_key_of_two_columns_has_no_ids(bed: VectorBed) -> None:
    bed.run("CREATE TABLE pairs (a int, b int, person text, embedding vector(3), PRIMARY KEY (a, b))")
    bed.run("INSERT INTO pairs VALUES (1, 2, 'mia', '[1,2,3]')")
    with bed.open() as connector:
        with pytest.raises(BadLocator, match="no key of one column"):
            connector.check_locator({"collection": "pairs", "id": 1})
        with pytest.raises(BadLocator, match="no single id"):
            list(connector.discover(Selector(identifiers=(MIA,)), deadline=10))


def test_only_postgresql_is_accepted() -> None:
    for config in ({"url": "sqlite:////a.db"}, {"url": "postgresql://h/d", "children": "delete"}, {}):
        with pytest.raises(BadConfig):
            open_connector("pgvector", config, secrets=str)


@pytest.mark.parametrize("flat", [[0.0] * 16, [1.0] + [0.0] * 15, [0.5] * 16, []])
def test_a_vector_that_tells_nobody_apart_has_no_forms(flat: list[float]) -> None:
    assert forms(flat) == []


@given(st.lists(st.floats(-100, 100, width=32), min_size=4, max_size=60))
def test_every_form_of_a_vector_is_found_where_a_store_writes_it(numbers: list[float]) -> None:
    found = forms(numbers)
    written = struct.pack(f"<{len(numbers)}f", *numbers) + b"--" + struct.pack(f">{len(numbers)}f", *numbers)
    assert not found or any(form in written for form in found)
    assert all(len(form) >= 8 for form in found)
    assert numbers_of(str(numbers).replace(" ", "")) == numbers
    assert not Needles(found).count_chunks([b"nothing of it"], _limit())


def _limit() -> Any:
    from connectors.base import Deadline

    return Deadline("test", 10)
