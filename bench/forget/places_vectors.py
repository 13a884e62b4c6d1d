"""Places that keep vectors in a folder: Chroma, Qdrant's local mode, LanceDB, mem0."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
import uuid
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from typing_extensions import override

from bench.forget.bed import DIMENSIONS, Person, Record, vector_of
from bench.forget.places import OWNER, Ground, Place, Store, parts_of


class Vectors(Place):
    """Texts, summaries and cached answers as records with a vector each."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.stores = [Store(name=self.name, kind=self.name, config={"path": str(self.folder), "owner_field": OWNER})]
        self.scanned = [str(self.folder)]

    def key(self, name: str) -> str:
        """The id of a record in the store."""
        return name

    @abstractmethod
    def write(self, rows: Sequence[tuple[str, str, str]]) -> None:
        """Writes ids, owners and texts with the texts' vectors."""

    @override
    def fill(self, everybody: Sequence[Person]) -> None:
        rows = []
        for person in everybody:
            for role, name, text, origin in parts_of(person):
                rows.append((self.key(name), person.id, text))
                where = {"collection": "notes", "id": self.key(name)}
                self.add(role, name, [person], text, where, vectors=(tuple(vector_of(text)),), made_of=origin)
        self.write(rows)


class Chroma(Vectors):
    """Chroma, embedded."""

    name, title = "chroma", "Chroma (folder)"

    @contextmanager
    def collection(self) -> Iterator[Any]:
        """The collection, in a client that is stopped afterwards."""
        import chromadb
        from chromadb.api.shared_system_client import SharedSystemClient
        from chromadb.config import Settings

        client: Any = chromadb.PersistentClient(self.folder, settings=Settings(anonymized_telemetry=False))
        try:
            yield client.get_or_create_collection("notes", embedding_function=None, metadata={"hnsw:space": "cosine"})
        finally:
            client._system.stop()  # noqa: SLF001 - there is no public way to give the files up
            SharedSystemClient.clear_system_cache()
            end = time.monotonic() + 10
            while self._open_here() and time.monotonic() < end:
                time.sleep(0.01)

    def _open_here(self) -> bool:
        database = str(self.folder / "chroma.sqlite3")
        handles = Path("/proc/self/fd")
        return handles.exists() and any(os.path.realpath(each) == database for each in handles.iterdir())

    @override
    def write(self, rows: Sequence[tuple[str, str, str]]) -> None:
        with self.collection() as notes:
            if rows:
                notes.add(
                    ids=[key for key, _, _ in rows],
                    documents=[text for _, _, text in rows],
                    metadatas=[{OWNER: owner} for _, owner, _ in rows],
                    embeddings=[vector_of(text) for _, _, text in rows],
                )

    @override
    def read(self) -> dict[str, str]:
        with self.collection() as notes:
            found = notes.get()
        return dict(zip(found["ids"], found["documents"], strict=True))

    @override
    def native_delete(self, records: Sequence[Record]) -> None:
        with self.collection() as notes:
            notes.delete(where={OWNER: records[0].people[0]})


class Qdrant(Vectors):
    """Qdrant in its local mode."""

    name, title = "qdrant", "Qdrant (local mode)"

    @contextmanager
    def client(self) -> Iterator[Any]:
        """A client that is closed afterwards."""
        from qdrant_client import QdrantClient, models

        client = QdrantClient(path=str(self.folder))
        try:
            if not client.collection_exists("notes"):
                config = models.VectorParams(size=DIMENSIONS, distance=models.Distance.COSINE)
                client.create_collection("notes", vectors_config=config)
            yield client
        finally:
            client.close()

    @override
    def key(self, name: str) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, name))

    @override
    def write(self, rows: Sequence[tuple[str, str, str]]) -> None:
        from qdrant_client import models

        points = [
            models.PointStruct(id=key, vector=vector_of(text), payload={"text": text, OWNER: owner})
            for key, owner, text in rows
        ]
        with self.client() as client:
            if points:
                client.upsert("notes", points)

    @override
    def read(self) -> dict[str, str]:
        with self.client() as client:
            points, _ = client.scroll("notes", limit=10_000)
        names = {self.key(record.name): record.name for record in self.records}
        return {names[str(point.id)]: point.payload["text"] for point in points}

    @override
    def native_delete(self, records: Sequence[Record]) -> None:
        from qdrant_client import models

        whose = models.FieldCondition(key=OWNER, match=models.MatchValue(value=records[0].people[0]))
        with self.client() as client:
            client.delete("notes", points_selector=models.FilterSelector(filter=models.Filter(must=[whose])))


class Lance(Vectors):
    """LanceDB in a folder."""

    name, title = "lancedb", "LanceDB (folder)"

    def table(self) -> Any:
        """The table, made when it is not there."""
        import lancedb
        import pyarrow as pa

        database = lancedb.connect(self.folder)
        if "notes" in database.list_tables().tables:
            return database.open_table("notes")
        columns = [("id", pa.string()), ("text", pa.string()), (OWNER, pa.string())]
        schema = pa.schema([*columns, ("vector", pa.list_(pa.float32(), DIMENSIONS))])
        return database.create_table("notes", schema=schema)

    @override
    def write(self, rows: Sequence[tuple[str, str, str]]) -> None:
        table = self.table()
        if rows:
            table.add([{"id": key, "text": text, OWNER: owner, "vector": vector_of(text)} for key, owner, text in rows])

    @override
    def read(self) -> dict[str, str]:
        rows = self.table().search().limit(10_000).to_list()
        return {row["id"]: row["text"] for row in rows}

    @override
    def native_delete(self, records: Sequence[Record]) -> None:
        self.table().delete(f"{OWNER} = '{records[0].people[0]}'")

    @override
    def question(self) -> dict[str, Any]:
        return {"files": [str(self.folder)], "lance": str(self.folder)}


HISTORY = (
    "CREATE TABLE IF NOT EXISTS history (id TEXT PRIMARY KEY, memory_id TEXT, old_memory TEXT, new_memory TEXT,"
    " event TEXT, created_at DATETIME, updated_at DATETIME, is_deleted INTEGER, actor_id TEXT, role TEXT)"
)
MESSAGES = (
    "CREATE TABLE IF NOT EXISTS messages (id TEXT PRIMARY KEY, session_scope TEXT, role TEXT, content TEXT,"
    " name TEXT, created_at DATETIME)"
)


class Mem0(Place):
    """A folder as mem0 2.2.1 leaves it, with its history and the raw turns; more memories than its default page."""

    name, title = "mem0", "mem0 (24 memories, history, turns)"
    texts = 24
    kept_turns = 10

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.stores = [Store(name="mem0", kind="mem0", config={"path": str(self.folder), "owner_field": OWNER})]
        self.scanned = [str(self.folder)]
        self.note = "written by mem0's tables and Qdrant's client, not by mem0ai, which is in no lock file of ours"

    @contextmanager
    def client(self) -> Iterator[Any]:
        """The client inside the application's mem0."""
        from qdrant_client import QdrantClient, models

        client = QdrantClient(path=str(self.folder / "qdrant"))
        try:
            for name in ("mem0", "mem0_entities"):
                if not client.collection_exists(name):
                    config = models.VectorParams(size=DIMENSIONS, distance=models.Distance.COSINE)
                    client.create_collection(name, vectors_config=config)
            yield client
        finally:
            client.close()

    def run(self, statement: str, *values: object) -> None:
        """Runs a statement on the history; upstream builds of SQLite do not clean what is deleted."""
        with closing(sqlite3.connect(self.folder / "history.db", isolation_level=None)) as db:
            db.execute("PRAGMA secure_delete=OFF")
            db.execute("PRAGMA synchronous=OFF")
            db.execute(statement, values)

    def key(self, name: str) -> str:
        """The id of a memory."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, name))

    @override
    def fill(self, everybody: Sequence[Person]) -> None:
        from qdrant_client import models

        self.run(HISTORY)
        self.run(MESSAGES)
        points, entities = [], []
        for person in everybody:
            for each, said in enumerate(person.said):
                self.add("text", said.name, [person], said.text, {"memory_id": self.key(said.name)},
                         vectors=(tuple(said.vector),))  # fmt: skip
                points.append(models.PointStruct(id=self.key(said.name), vector=said.vector,
                                                 payload=_payload(said.text, person)))  # fmt: skip
                self._event(said.name, None, said.text, "ADD")
                if each >= len(person.said) - self.kept_turns:
                    self.run("INSERT INTO messages VALUES (?, ?, 'user', ?, NULL, ?)", str(uuid.uuid4()),
                             f"{OWNER}={person.id}", f"I said: {said.text}", _now())  # fmt: skip
            about = f"the friend of {person.id}"
            payload = {"data": about, "entity_type": "PROPER", OWNER: person.id,
                       "linked_memory_ids": [self.key(said.name) for said in person.said[:3]]}  # fmt: skip
            entities.append(models.PointStruct(id=self.key(about), vector=vector_of(about), payload=payload))
        with self.client() as client:
            if points:
                client.upsert("mem0", points)
                client.upsert("mem0_entities", entities)

    def _event(self, name: str, old: str | None, new: str | None, kind: str) -> None:
        self.run("INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)", str(uuid.uuid4()), self.key(name),
                 old, new, kind, _now(), _now(), int(kind == "DELETE"))  # fmt: skip

    @override
    def read(self) -> dict[str, str]:
        with self.client() as client:
            points, _ = client.scroll("mem0", limit=10_000)
        names = {self.key(record.name): record.name for record in self.records}
        return {names[str(point.id)]: point.payload["data"] for point in points}

    def native_delete(self, records: Sequence[Record]) -> None:
        """What `delete_all` does where no entity store was opened: every memory, and its text once more in history."""
        texts = self.read()
        with self.client() as client:
            client.delete("mem0", points_selector=[self.key(record.name) for record in records])
        for record in records:
            self._event(record.name, texts[record.name], None, "DELETE")


def _payload(text: str, person: Person) -> dict[str, Any]:
    digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    return {OWNER: person.id, "data": text, "hash": digest, "text_lemmatized": text, "created_at": _now(),
            "updated_at": _now()}  # fmt: skip


def _now() -> str:
    return datetime.now(UTC).isoformat()
