from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from langgraph.store.sqlite import SqliteStore

from connectors.base import Item, Level, Outcome, open_connector
from tests.connectors.contract import BEN, MIA, NOW, OF_PROCESSES, Contract, captured, erase, text_of
from tests.connectors.langgraph_beds import Files, MemoryBed, PostgresMemories, SqliteMemories, embed


@pytest.fixture
def sqlite_bed(tmp_path: Path) -> Iterator[SqliteMemories]:
    made = SqliteMemories(tmp_path)
    yield made
    made.close()


@pytest.fixture
def postgres_bed(server: Any) -> Iterator[PostgresMemories]:
    made = PostgresMemories(server)
    yield made
    made.close()


class TestSqliteStore(Contract):
    holds = "langgraph_store, SQLite"

    @pytest.fixture
    def bed(self, sqlite_bed: SqliteMemories) -> SqliteMemories:
        return sqlite_bed


@pytest.mark.postgres
class TestPostgresStore(Contract):
    holds = "langgraph_store, PostgreSQL"
    slow: ClassVar = OF_PROCESSES

    @pytest.fixture
    def bed(self, postgres_bed: PostgresMemories) -> PostgresMemories:
        return postgres_bed


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def bed(request: pytest.FixtureRequest) -> MemoryBed:
    """Both stores in turn, for what has to hold on each."""
    made = request.getfixturevalue(f"{request.param}_bed")
    assert isinstance(made, MemoryBed)
    return made


def memory(*namespace: str, key: str) -> Item:
    return Item(copy_id=f"{len(namespace)}-{key}", locator={"namespace": list(namespace), "key": key})


def wiped(bed: MemoryBed, items: list[Item], who: str = MIA) -> list[tuple[Level | None, bool | None]]:
    """Erase, reclaim and verify, and return what was found."""
    with bed.open() as connector:
        held = captured(connector, items)
        assert {r.outcome for r in erase(connector, held, who)} == {Outcome.ERASED}
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    with bed.open(read_only=True) as verifier:
        found = verifier.verify(held, Level.L2, deadline=30, reclaimed=report)
    return [(finding.level, finding.present) for finding in found]


def raw(text: str) -> bytes:
    """Return the vector of a text as a store writes it."""
    return struct.pack("<16f", *embed([text])[0])


def unit(text: str) -> bytes:
    """Return the same at length one, computed as a cosine index does: in double, then rounded."""
    numbers = struct.unpack("<16f", raw(text))
    length = math.sqrt(sum(number * number for number in numbers))
    return struct.pack("<16f", *(number / length for number in numbers))


@pytest.mark.scenario("S35")
@pytest.mark.postgres
def test_postgres_delete_leaves_text_vector_and_index_entry_until_ours(postgres_bed: PostgresMemories) -> None:
    # Recipe 2.7: text in store, vector in store_vectors, normalised vector in the cosine HNSW index.
    for n in range(30):
        postgres_bed.put(f"ben-{n}", text_of(f"ben-{n}"), BEN)
    # The newest row of a page with others: VACUUM moves none over its bytes and gives no page back.
    postgres_bed.put("mia-0", text_of("mia-0"), "mia")

    def places() -> tuple[int, int, int]:
        files = postgres_bed.database.relations()
        text, vector, index = text_of("mia-0").encode(), raw(text_of("mia-0"))[:16], unit(text_of("mia-0"))[:16]
        return (
            files["store"].count(text), files["store_vectors"].count(vector),
            files["store_vectors_embedding_idx"].count(index),
        )  # fmt: skip

    assert places() == (1, 1, 1)
    with postgres_bed.open() as connector:
        items = captured(connector, [memory("users", "notes", key="mia-0")])
    postgres_bed.store.delete(postgres_bed.space, "mia-0")
    assert postgres_bed.get("mia-0") is None
    assert places() == (1, 1, 1)
    with postgres_bed.open(read_only=True) as connector:
        found = connector.residue(items[0].canaries, deadline=30)
    assert {residue.where for residue in found} == {"files of public.store", "files of public.store_vectors"}
    postgres_bed.run("VACUUM")
    assert places() == (1, 1, 0)
    neighbours = postgres_bed.store.search(postgres_bed.space, query=text_of("ben-3"), limit=5)
    with postgres_bed.open() as connector:
        erase(connector, items)
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    assert report.level is Level.L2
    assert places() == (0, 0, 0)
    with postgres_bed.open(read_only=True) as verifier:
        finding = verifier.verify(items, Level.L2, deadline=30, reclaimed=report)[0]
        assert verifier.residue(items[0].canaries, deadline=30) == []
    assert (finding.level, finding.present) == (Level.L2, False)
    after = postgres_bed.store.search(postgres_bed.space, query=text_of("ben-3"), limit=5)
    assert [(each.key, each.score) for each in after] == [(each.key, each.score) for each in neighbours]
    assert neighbours[0].key == "ben-3"


def test_sqlite_delete_leaves_the_vector_row_and_ours_takes_it(sqlite_bed: SqliteMemories) -> None:
    sqlite_bed.put("mia-0", text_of("mia-0"), "mia")
    sqlite_bed.put("ben-0", text_of("ben-0"), BEN)
    item = memory("users", "notes", key="mia-0")
    with sqlite_bed.open() as connector:
        items = captured(connector, [item])
    sqlite_bed.store.delete(sqlite_bed.space, "mia-0")
    assert sqlite_bed.get("mia-0") is None
    assert sqlite_bed.run("SELECT count(*) FROM store_vectors WHERE key = 'mia-0'") == [(1,)]
    with sqlite_bed.open(read_only=True) as verifier:
        finding = verifier.verify(items, Level.L1, deadline=10)[0]
    assert (finding.level, finding.present) == (None, True)
    assert "1 of store_vectors, late or orphan rows" in finding.how
    assert sqlite_bed.files.hits(raw(text_of("mia-0"))) > 0
    assert wiped(sqlite_bed, [item]) == [(Level.L2, False)]
    assert sqlite_bed.files.hits(raw(text_of("mia-0"))) == 0
    assert sqlite_bed.files.hits(raw(text_of("ben-0"))) > 0


def test_what_a_sweep_of_expired_memories_leaves_is_found(sqlite_bed: SqliteMemories) -> None:
    sqlite_bed.store.put(sqlite_bed.space, "mia-0", {"text": text_of("mia-0"), "user_id": "mia"}, ttl=60)
    sqlite_bed.run("UPDATE store SET expires_at = '2001-01-01 00:00:00'")
    assert isinstance(sqlite_bed.store, SqliteStore)
    assert sqlite_bed.store.sweep_ttl() == 1
    assert sqlite_bed.run("SELECT count(*) FROM store_vectors") == [(1,)]
    assert wiped(sqlite_bed, [memory("users", "notes", key="mia-0")]) == [(Level.L2, False)]
    assert sqlite_bed.run("SELECT count(*) FROM store_vectors") == [(0,)]


@pytest.mark.scenario("S8")
def test_namespaces_are_compared_whole(bed: MemoryBed) -> None:
    spaces = [("users", "alice"), ("users", "alice2"), ("users", "alice", "notes"), ("users", "Alice"), ("users", "a%")]
    for space in spaces:
        bed.store.put(space, "k", {"text": text_of(".".join(space)), "user_id": "mia"})
    bed.store.put(("users", "alice"), "k2", {"text": "stays", "user_id": "mia"})
    assert wiped(bed, [memory("users", "alice", key="k"), memory("users", "a%", key="k")]) == [(Level.L2, False)] * 2
    left = [bed.store.get(space, "k") is not None for space in spaces]
    assert left == [False, True, True, True, False]
    assert bed.store.get(("users", "alice"), "k2") is not None
    assert bed.run("SELECT count(*) FROM store_vectors") == [(4,)]


def test_a_vector_that_put_without_index_left_goes_with_the_memory(bed: MemoryBed) -> None:
    bed.put("mia-0", text_of("mia-0"), "mia")
    bed.store.put(bed.space, "mia-0", {"text": "something else now", "user_id": "mia"}, index=False)
    assert bed.run("SELECT count(*) FROM store_vectors") == [(1,)]
    assert wiped(bed, [memory("users", "notes", key="mia-0")]) == [(Level.L2, False)]
    assert bed.run("SELECT count(*) FROM store_vectors") == [(0,)]


def test_vectors_are_captured_and_equal_ones_of_others_are_not(bed: MemoryBed) -> None:
    for name, owner in (("mia-0", "mia"), ("ben-0", BEN)):
        bed.put(name, "both of us like the sea", owner)
    bed.put("mia-1", text_of("mia-1"), "mia")
    items = [memory("users", "notes", key="mia-0"), memory("users", "notes", key="mia-1")]
    with bed.open() as connector:
        held = connector.capture(items, deadline=10)
    own = [canary for canary in held["2-mia-1"] if canary[:16] == raw(text_of("mia-1"))[:16]]
    assert own
    assert not any(canary[:16] == raw("both of us like the sea")[:16] for canary in held["2-mia-0"])


def test_a_store_without_an_index_is_whole(tmp_path: Path) -> None:
    files = Files(tmp_path)
    store = SqliteStore(files.connection)
    store.setup()
    store.put(("users",), "k", {"text": text_of("mia"), "user_id": "mia"})
    with open_connector("langgraph_store", {"url": files.url, "owner_field": "user_id"}, secrets=str) as connector:
        assert erase(connector, [memory("users", key="k")])[0].outcome is Outcome.ERASED
        assert connector.check(now=NOW, deadline=30).findings == ()
    assert store.get(("users",), "k") is None
    files.connection.close()
