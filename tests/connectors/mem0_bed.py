"""A folder as mem0 2.2.1 writes it: Qdrant's own client for the collections, mem0's tables for the rest.

`test_connectors_mem0_real.py` compares it with a folder that the library itself wrote.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid4, uuid5

from connectors.base import Connector, open_connector
from tests.connectors.beds import FolderBed, oracle, text_of
from tests.connectors.vector_beds import DIMENSIONS, vector_of
from tests.lazily import Lazily

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

qdrant, models = Lazily("qdrant_client"), Lazily("qdrant_client.models")

HISTORY = (
    "CREATE TABLE history (id TEXT PRIMARY KEY, memory_id TEXT, old_memory TEXT, new_memory TEXT, event TEXT,"
    " created_at DATETIME, updated_at DATETIME, is_deleted INTEGER, actor_id TEXT, role TEXT)"
)
MESSAGES = (
    "CREATE TABLE messages (id TEXT PRIMARY KEY, session_scope TEXT, role TEXT, content TEXT, name TEXT,"
    " created_at DATETIME)"
)
KEPT_TURNS = 10


def uid(name: str) -> str:
    return str(uuid5(NAMESPACE_URL, name))


def scope_of(members: Mapping[str, str]) -> str:
    escaped = {key: quote(each, safe=" ~!@#$^*()+[]{}|;:',./<>?-_") for key, each in members.items()}
    return "&".join(f"{key}={escaped[key]}" for key in ("agent_id", "run_id", "user_id") if key in escaped)


class Mem0Bed(FolderBed):
    def __init__(self, folder: Path) -> None:
        self.path = folder / "mem0"
        self.path.mkdir()
        self.running: QdrantClient | None = None
        self.run(HISTORY)
        self.run(MESSAGES)
        with self.client() as client:
            for name in ("mem0", "mem0_entities"):
                client.create_collection(
                    name,
                    vectors_config=models.VectorParams(size=DIMENSIONS, distance=models.Distance.COSINE),
                    sparse_vectors_config={"bm25": models.SparseVectorParams(modifier=models.Modifier.IDF)},
                )

    @contextmanager
    def client(self) -> Iterator[QdrantClient]:
        """The client inside the application's mem0; it has the folder for itself until `release`."""
        if self.running is None:
            self.running = qdrant.QdrantClient(path=str(self.path / "qdrant"))
        yield self.running

    def release(self) -> None:
        if self.running is not None:
            self.running.close()
            self.running = None

    def run(self, statement: str, *values: object) -> list[Any]:
        with closing(sqlite3.connect(self.path / "history.db", isolation_level=None, timeout=5)) as connection:
            connection.execute("PRAGMA secure_delete=OFF")
            connection.execute("PRAGMA synchronous=OFF")
            return connection.execute(statement, values).fetchall()

    def remember(self, name: str, text: str, turn: str = "", **scope: str) -> str:
        """What `Memory.add` leaves: a point, an event, and the raw turn, of which the last ten of a scope are kept."""
        now = datetime.now(UTC).isoformat()
        payload: dict[str, Any] = {
            **scope,
            "data": text,
            "text_lemmatized": text,
            "hash": hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(),
            "created_at": now,
            "updated_at": now,
        }
        self.write("mem0", uid(name), text, payload)
        self.event(name, None, text, "ADD")
        filed, said = scope_of(scope), turn or f"I said: {text}"
        self.run("INSERT INTO messages VALUES (?, ?, 'user', ?, NULL, ?)", str(uuid4()), filed, said, now)
        self.run(
            "DELETE FROM messages WHERE session_scope = ? AND id NOT IN"
            " (SELECT id FROM messages WHERE session_scope = ? ORDER BY created_at DESC LIMIT ?)",
            filed, filed, KEPT_TURNS,
        )  # fmt: skip
        return uid(name)

    def event(self, name: str, old: str | None, new: str | None, kind: str) -> None:
        now = datetime.now(UTC).isoformat()
        self.run(
            "INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)",
            str(uuid4()), uid(name), old, new, kind, now, now, int(kind == "DELETE"),
        )  # fmt: skip

    def link(self, entity: str, names: Sequence[str], **scope: str) -> str:
        payload = {"data": entity, "entity_type": "PROPER", "linked_memory_ids": [uid(each) for each in names], **scope}
        self.write("mem0_entities", uid(entity), entity, payload)
        return uid(entity)

    def write(self, collection: str, identity: str, text: str, payload: Mapping[str, Any]) -> None:
        """What mem0 has its vector store write."""
        point = models.PointStruct(id=identity, vector={"": vector_of(text)}, payload=dict(payload))
        with self.client() as client:
            client.upsert(collection, [point])

    def payloads(self, collection: str) -> list[dict[str, Any]]:
        with self.client() as client:
            points, _ = client.scroll(collection, limit=1000)
        return [point.payload or {} for point in points]

    def entities(self) -> dict[str, list[str]]:
        payloads = self.payloads("mem0_entities")
        return {payload["data"]: payload["linked_memory_ids"] for payload in payloads}

    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        return {"memory_id": self.remember(name, text, user_id=owner)}

    def get(self, name: str) -> str | None:
        with self.client() as client:
            found = client.retrieve("mem0", [uid(name)])
        return (found[0].payload or {})["data"] if found else None

    def vectors_of(self, name: str) -> object:
        self.release()  # Qdrant answers with other numbers in the process that wrote a vector of a cosine collection
        with self.client() as client:
            found = client.retrieve("mem0", [uid(name)], with_payload=True, with_vectors=True)
        return found[0].model_dump() if found else None

    def whole(self, name: str) -> object:
        """The memory with its vector, its history, and the raw turn of it."""
        point = self.vectors_of(name)
        history = self.run("SELECT * FROM history WHERE memory_id = ?", uid(name))
        turns = self.run("SELECT * FROM messages WHERE content = ?", f"I said: {text_of(name)}")
        return point and (point, history, turns)

    def near(self, text: str) -> list[str]:
        names = {uid(f"{who}-{number}"): f"{who}-{number}" for who in ("mia", "ben") for number in range(50)}
        return [names[each] for each in self.nearest(text)]

    def nearest(self, text: str) -> list[str]:
        with self.client() as client:
            found = client.query_points("mem0", query=vector_of(text), limit=100).points
        return [str(point.id) for point in found]

    def refuse(self, name: str) -> Callable[[], None]:
        """Let mem0's history, which goes first, keep what it tells of one memory."""
        self.run(
            f"CREATE TRIGGER refused BEFORE DELETE ON history WHEN old.memory_id = '{uid(name)}'"
            " BEGIN SELECT RAISE(ABORT, 'kept by its owner'); END"
        )

        def release() -> None:
            self.run("DROP TRIGGER refused")

        return release

    def open(self, *, read_only: bool = False, owner: bool = True) -> Connector:
        self.release()
        config = {"path": str(self.path)} | ({"owner_field": "user_id"} if owner else {})
        return open_connector("mem0", config, secrets=str, read_only=read_only)

    def hits(self, canary: str) -> int:
        self.release()
        return oracle([self.path], canary)

    def block(self) -> Callable[[], None]:
        self.release()
        other = sqlite3.connect(self.path / "history.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        return other.close

    def hostile(self) -> list[Mapping[str, Any]]:
        return [
            {"memory_id": "mia-0"},
            {"memory_id": 7},
            {"memory_id": None},
            {"memory_id": [uid("mia-0")]},
            {"memory_id": ""},
            {"memory_id": uid("mia-0"), "user_id": "mia"},
            {"memory_id": "%"},
            {},
            {"collection": "mem0", "id": uid("mia-0")},
        ]

    def wrong(self) -> Connector:
        return open_connector("mem0", {"path": str(self.path.parent), "owner_field": "user_id"}, secrets=str)

    def source(self) -> str:
        config = {"path": str(self.path), "owner_field": "user_id"}
        return (
            f"from connectors.base import open_connector\nconnector = open_connector('mem0', {config!r}, secrets=str)"
        )

    def own_delete(self, name: str) -> None:
        """What `Memory.delete` does where no entity store was opened in its process."""
        text = self.get(name)
        with self.client() as client:
            client.delete("mem0", points_selector=[uid(name)])
        self.event(name, text, None, "DELETE")
