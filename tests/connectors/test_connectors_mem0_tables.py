"""Kind `mem0` where its memories lie in PostgreSQL: the same contract as over Qdrant, and what is only there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from connectors.base import Connector, Item, Level, Outcome, Selector, open_connector
from connectors.errors import BadConfig, StoreUnreachable
from tests.connectors.contract import BEN, MIA, NOW, OF_PROCESSES, Contract, captured, erase, oracle, text_of
from tests.connectors.langgraph_beds import Database
from tests.connectors.mem0_bed import HISTORY, MESSAGES, Mem0Bed, uid
from tests.connectors.vector_beds import DIMENSIONS, vector_of

pytestmark = pytest.mark.postgres


class Tables:
    """What mem0's own library does to its tables, by the names that the other bed calls."""

    def __init__(self, database: Database) -> None:
        self.run = database.run

    def make(self, name: str) -> None:
        self.run(f"CREATE TABLE {name} (id uuid PRIMARY KEY, vector vector({DIMENSIONS}), payload jsonb)")
        self.run(f"CREATE INDEX {name}_hnsw_idx ON {name} USING hnsw (vector vector_cosine_ops)")
        self.run(
            f"CREATE INDEX {name}_text_lemmatized_idx ON {name}"
            " USING gin (to_tsvector('simple', payload->>'text_lemmatized'))"
        )

    def put(self, name: str, identity: str, text: str, payload: Mapping[str, Any]) -> None:
        self.run(f"INSERT INTO {name} VALUES (%s, %s, %s)", identity, str(list(vector_of(text))), json.dumps(payload))


class TablesBed(Mem0Bed):
    serves = True

    def __init__(self, folder: Path, server: Any) -> None:
        self.database = Database(server)
        self.database.run("CREATE EXTENSION vector")
        self.tables = Tables(self.database)
        self.path = folder / "mem0"
        self.path.mkdir()
        self.running = None
        self.run(HISTORY)
        self.run(MESSAGES)
        for name in ("mem0", "mem0_entities"):
            self.tables.make(name)

    def write(self, collection: str, identity: str, text: str, payload: Mapping[str, Any]) -> None:
        self.tables.put(collection, identity, text, payload)

    def payloads(self, collection: str) -> list[dict[str, Any]]:
        return [row[0] for row in self.tables.run(f"SELECT payload FROM {collection}")]

    def get(self, name: str) -> str | None:
        found = self.tables.run("SELECT payload->>'data' FROM mem0 WHERE id = %s", uid(name))
        return found[0][0] if found else None

    def vectors_of(self, name: str) -> object:
        return self.tables.run("SELECT * FROM mem0 WHERE id = %s", uid(name)) or None

    def nearest(self, text: str) -> list[str]:
        query = f"SELECT id::text FROM mem0 ORDER BY vector <=> '{list(vector_of(text))}' LIMIT 100"
        return [row[0] for row in self.tables.run(query)]

    def restart(self) -> None:
        self.database.reopen()

    @contextmanager
    def stranger(self) -> Iterator[str]:
        yield self.source(url=self.database.unknown())

    def config(self, **more: object) -> dict[str, Any]:
        return {"path": str(self.path), "vector_store": "pgvector", "url": self.database.url, **more}

    def open(self, *, read_only: bool = False, owner: bool = True, **more: object) -> Connector:
        config = self.config(**({"owner_field": "user_id"} if owner else {}), **more)
        return open_connector("mem0", config, secrets=str, read_only=read_only)

    def hits(self, canary: str) -> int:
        return oracle([self.path], canary) + self.database.hits(canary.encode())

    def wrong(self) -> Connector:
        self.tables.run("ALTER TABLE mem0 ENABLE ROW LEVEL SECURITY")
        return open_connector("mem0", {**self.config(owner_field="user_id"), "url": self.database.role()}, secrets=str)

    def source(self, **more: object) -> str:
        config = {**self.config(owner_field="user_id"), **more}
        return (
            f"from connectors.base import open_connector\nconnector = open_connector('mem0', {config!r}, secrets=str)"
        )

    def own_delete(self, name: str) -> None:
        text = self.get(name)
        self.tables.run("DELETE FROM mem0 WHERE id = %s", uid(name))
        self.event(name, text, None, "DELETE")


@pytest.fixture
def bed(tmp_path: Path, server: Any) -> Iterator[TablesBed]:
    made = TablesBed(tmp_path, server)
    yield made
    made.database.close()


class TestMem0Tables(Contract):
    holds = "mem0, folder and PostgreSQL"
    slow: ClassVar = OF_PROCESSES


def items_of(*names: str) -> list[Item]:
    return [Item(copy_id=name, locator={"memory_id": uid(name)}) for name in names]


def test_mem0s_delete_writes_the_text_once_more_and_ours_takes_all_four_places(bed: TablesBed) -> None:
    for n in range(23):
        bed.remember(f"mia-{n}", text_of(f"mia-{n}"), turn=f"raw words of mia number {n}", user_id="mia")
    bed.remember("ben-0", text_of("ben-0"), turn="raw words of ben", user_id=BEN)
    bed.event("mia-1", "I lived at 9 Oldcastle Lane", text_of("mia-1"), "UPDATE")
    bed.link("Blackthorn Row of mia", ["mia-0", "mia-1"], user_id="mia")
    bed.link("a harbour of both", ["mia-1", "ben-0"])
    with bed.open() as connector:
        found = list(connector.discover(Selector(identifiers=(MIA,)), deadline=30))
        items = captured(connector, [Item(copy_id=str(n), locator=each) for n, each in enumerate(found)])
    assert len(items) == 23
    bed.own_delete("mia-1")
    words = ("raw words of mia number 22", "I lived at 9 Oldcastle Lane", "Blackthorn Row of mia", text_of("mia-1"))
    assert all(bed.hits(word) for word in words)
    with bed.open(wal_retention="P7D") as connector:
        assert {receipt.outcome for receipt in erase(connector, items)} == {Outcome.ERASED}
        freed = connector.reclaim(Level.L2, now=NOW, deadline=30)
    assert (freed.level, freed.residual_until) == (Level.L2, NOW + timedelta(days=7))
    with bed.open(read_only=True) as verifier:
        seen = verifier.verify(items, Level.L2, deadline=30, reclaimed=freed)
        assert {(each.level, each.present) for each in seen} == {(Level.L2, False)}
        assert {each.present for each in verifier.verify(items, Level.L2, deadline=30)} == {None}
    assert [bed.hits(word) for word in words] == [0, 0, 0, 0]
    assert bed.entities() == {"a harbour of both": [uid("ben-0")]}
    assert bed.get("ben-0") == text_of("ben-0")
    assert bed.hits("raw words of ben") > 0


def test_a_copy_in_another_table_is_found_and_no_l2(bed: TablesBed) -> None:
    bed.remember("mia-0", text_of("mia-0"), user_id="mia")
    bed.tables.run("CREATE TABLE answers (id int PRIMARY KEY, said text)")
    bed.tables.run("INSERT INTO answers VALUES (1, %s)", f"cached: {text_of('mia-0')}")
    with bed.open() as connector:
        items = captured(connector, items_of("mia-0"))
        erase(connector, items)
        freed = connector.reclaim(Level.L2, now=NOW, deadline=30)
        assert connector.verify(items, Level.L2, deadline=30, reclaimed=freed)[0].present is True
        assert "rows of public.answers" in {each.where for each in connector.residue(items[0].canaries, deadline=30)}


def test_a_database_without_a_table_of_mem0s_columns_is_no_absence(bed: TablesBed) -> None:
    bed.tables.run("ALTER TABLE mem0 ADD COLUMN note text")
    bed.tables.run("ALTER TABLE mem0_entities RENAME COLUMN vector TO embedding")
    with bed.open() as connector:
        with pytest.raises(StoreUnreachable):
            erase(connector, items_of("mia-0"))
        assert connector.check(now=NOW, deadline=10).reachable is False


def test_every_collection_is_looked_into_and_no_table_of_another_shape(bed: TablesBed) -> None:
    bed.remember("mia-0", text_of("mia-0"), user_id="mia")
    bed.remember("ben-0", text_of("ben-0"), user_id=BEN)
    bed.tables.make("agents")
    bed.write("agents", uid("mia-1"), text_of("mia-1"), {"data": text_of("mia-1"), "user_id": "mia"})
    # The same id in two collections, of which one names somebody else: nothing of it goes.
    bed.write("agents", uid("ben-0"), text_of("ben-0"), {"data": text_of("ben-0"), "user_id": "mia"})
    bed.tables.run("CREATE TABLE notes (id uuid PRIMARY KEY, vector vector(3), payload jsonb, more text)")
    bed.tables.run("INSERT INTO notes VALUES (%s, '[1,2,3]', '{\"user_id\": \"mia\"}', '')", uid("mia-0"))
    with bed.open() as connector:
        given = erase(connector, items_of("mia-0", "mia-1", "ben-0"))
    assert [r.outcome for r in given] == [Outcome.ERASED, Outcome.ERASED, Outcome.OWNER_MISMATCH]
    assert [len(bed.payloads(name)) for name in ("mem0", "agents", "notes")] == [1, 1, 1]


@pytest.mark.parametrize(
    "config",
    [
        {"path": "/a", "vector_store": "pgvector"},
        {"path": "/a", "vector_store": "pgvector", "url": "sqlite:////a.db"},
        {"path": "/a", "vector_store": "pgvector", "url": "postgresql://h/d", "collection": "mem0"},
        {"vector_store": "pgvector", "url": "postgresql://h/d"},
        {"path": "/a", "wal_retention": "P7D"},
    ],
)
def test_incomplete_configurations_are_refused(config: Mapping[str, Any]) -> None:
    with pytest.raises(BadConfig):
        open_connector("mem0", config, secrets=str)
