"""Places on SQL servers and files: LangGraph's savers and stores, pgvector, rows with foreign keys."""

from __future__ import annotations

import json
import sqlite3
import struct
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Annotated, Any, TypedDict

import psycopg
from psycopg.rows import dict_row
from typing_extensions import override

from bench.forget.bed import DIMENSIONS, Person, Record, Role, embed, joint_text, vector_of
from bench.forget.places import OWNER, Ground, Place, Store, parts_of

ANALYZE = "ANALYZE"
"""Every server's autovacuum does that sooner or later: it copies values of rows into the planner's statistics."""


class _NoExtensions(sqlite3.Connection):
    """For Pythons built without loadable extensions: LangGraph's store wants one only for its search by vector."""

    def enable_load_extension(self, enabled: bool, /) -> None:  # noqa: FBT001 - sqlite3's signature
        """Does nothing."""

    def load_extension(self, *path: object, **more: object) -> None:
        """Does nothing."""


def graph_of(saver: Any) -> Any:
    """An agent of one step, as an application has it."""
    from langchain_core.messages import AIMessage, AnyMessage
    from langgraph.graph import START, StateGraph
    from langgraph.graph.message import add_messages

    state: Any = TypedDict("state", {"messages": Annotated[list[AnyMessage], add_messages]})
    graph = StateGraph(state)
    graph.add_node("answer", lambda held: {"messages": [AIMessage(content=f"noted, {len(held['messages'])}")]})
    graph.add_edge(START, "answer")
    return graph.compile(checkpointer=saver)


class LangGraph(Place):
    """Threads, long-term memories with vectors, and a table of cached answers in one database.

    One thread is a conversation of two people; it is judged by itself (see `score`).
    """

    mark = "?"

    @abstractmethod
    def opened(self) -> AbstractContextManager[tuple[Any, Any, Any]]:
        """The application's connection, saver and store."""

    @abstractmethod
    def url(self) -> str:
        """The address for erasers."""

    @override
    def fill(self, everybody: Sequence[Person]) -> None:
        from langchain_core.messages import HumanMessage

        with self.opened() as (db, saver, store):
            saver.setup()
            store.setup()
            db.execute(f"CREATE TABLE answers (id TEXT PRIMARY KEY, {OWNER} TEXT, body TEXT)")
            graph = graph_of(saver)
            for person in everybody:
                for said in person.said:
                    config = {"configurable": {"thread_id": said.name, OWNER: person.id}}
                    graph.invoke({"messages": [HumanMessage(content=said.text)]}, config)
                    self.add("text", said.name, [person], said.text, {"thread_id": said.name}, store=self._of("thread"))
                    name = f"{said.name}-summary"
                    store.put(("memories", "notes"), name, {"text": said.summary, OWNER: person.id})
                    self.add("summary", name, [person], said.summary,
                             {"namespace": ["memories", "notes"], "key": name}, store=self._of("memory"),
                             vectors=(tuple(vector_of(said.summary)),), made_of=said.name)  # fmt: skip
                    name = f"{said.name}-cache"
                    db.execute(f"INSERT INTO answers VALUES ({', '.join([self.mark] * 3)})",  # noqa: S608
                               (name, person.id, said.cache))  # fmt: skip
                    self.add("cache", name, [person], said.cache, {"table": "answers", "key": {"id": name}},
                             store=self._of("rows"), made_of=said.name)  # fmt: skip
            if everybody:
                self._joint(graph, everybody[:2])
        self.stores = [
            Store(name=self._of("thread"), kind="langgraph", config={"url": self.url(), "owner_field": OWNER}),
            Store(name=self._of("memory"), kind="langgraph_store", config={"url": self.url(), "owner_field": OWNER}),
            Store(name=self._of("rows"), kind="sql", config={"url": self.url(), "owner_field": OWNER}),
        ]

    def _of(self, what: str) -> str:
        return f"{self.name}-{what}"

    def _joint(self, graph: Any, both: Sequence[Person]) -> None:
        from langchain_core.messages import HumanMessage

        text, _ = joint_text(self.ground.seed, self.name)
        name = f"{self.name}-joint"
        for person, words in zip(both, (text, "indeed"), strict=True):
            config = {"configurable": {"thread_id": name, OWNER: person.id}}
            graph.invoke({"messages": [HumanMessage(content=words)]}, config)
        self.add("joint", name, both, text, {"thread_id": name}, store=self._of("thread"))

    @override
    def read(self) -> dict[str, str]:
        found: dict[str, str] = {}
        with self.opened() as (db, saver, store):
            for record in self.records:
                if record.store == self._of("thread"):
                    held = saver.get_tuple({"configurable": {"thread_id": record.where["thread_id"]}})
                    if held is not None:
                        found[record.name] = str(held.checkpoint["channel_values"]["messages"][0].content)
                elif record.store == self._of("memory"):
                    value = store.get(("memories", "notes"), record.where["key"])
                    if value is not None:
                        found[record.name] = str(value.value["text"])
            for row in db.execute("SELECT id, body FROM answers"):
                key, body = row.values() if isinstance(row, dict) else row
                found[key] = body
        return found

    @override
    def native_delete(self, records: Sequence[Record]) -> None:
        with self.opened() as (db, saver, store):
            for record in records:
                if record.store == self._of("thread"):
                    saver.delete_thread(record.where["thread_id"])
                elif record.store == self._of("memory"):
                    store.delete(("memories", "notes"), record.where["key"])
            db.execute(f"DELETE FROM answers WHERE {OWNER} = {self.mark}", (records[0].people[0],))  # noqa: S608


class LangGraphSqlite(LangGraph):
    """In one SQLite file, in WAL mode, by a build that does not clean what it deletes, as upstream's."""

    name, title = "langgraph-sqlite", "LangGraph on SQLite (threads, memories)"

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.path = self.folder / "agent.db"
        self.scanned = [str(self.path)]

    @override
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    @override
    @contextmanager
    def opened(self) -> Iterator[tuple[Any, Any, Any]]:
        from langgraph.checkpoint.sqlite import SqliteSaver
        from langgraph.store.sqlite import SqliteStore

        db = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None, factory=_NoExtensions)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA secure_delete=OFF")
        index: Any = {"dims": DIMENSIONS, "embed": embed, "text_fields": ["text"]}
        try:
            yield db, SqliteSaver(db), SqliteStore(db, index=index)
        finally:
            db.close()


class LangGraphPostgres(LangGraph):
    """In one PostgreSQL database, memories with pgvector."""

    name, title = "langgraph-postgres", "LangGraph on PostgreSQL (threads, memories)"
    mark = "%s"

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.address = ground.postgres("forget_langgraph")
        self.scanned = [self.address]

    @override
    def fill(self, everybody: Sequence[Person]) -> None:
        super().fill(everybody)
        with self.opened() as (db, _, _):
            db.execute(ANALYZE)

    @override
    def url(self) -> str:
        return self.address

    @override
    @contextmanager
    def opened(self) -> Iterator[tuple[Any, Any, Any]]:
        from langgraph.checkpoint.postgres import PostgresSaver
        from langgraph.store.postgres import PostgresStore

        index: Any = {"dims": DIMENSIONS, "embed": embed, "fields": ["text"], "distance_type": "cosine"}
        db: Any = psycopg.connect(self.address, autocommit=True, prepare_threshold=0, row_factory=dict_row)
        try:
            yield db, PostgresSaver(db), PostgresStore(db, index=index)
        finally:
            db.close()

    @override
    def question(self) -> dict[str, Any]:
        return {"postgres": self.address}


class Rows(Place):
    """A PostgreSQL database of an application, through plain SQL."""

    database = ""

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.address = ground.postgres(self.database)
        self.scanned = [self.address]

    def run(self, statement: str, *values: object) -> list[Any]:
        """Runs one statement in a transaction of its own."""
        with psycopg.connect(self.address, autocommit=True) as db:
            cursor = db.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    @override
    def question(self) -> dict[str, Any]:
        return {"postgres": self.address}


class Pgvector(Rows):
    """A table of texts with embeddings and a cosine HNSW index."""

    name, title, database = "pgvector", "pgvector (cosine HNSW)", "forget_pgvector"

    @override
    def fill(self, everybody: Sequence[Person]) -> None:
        self.run("CREATE EXTENSION IF NOT EXISTS vector")
        self.run(f"CREATE TABLE notes (id text PRIMARY KEY, {OWNER} text, body text, embedding vector({DIMENSIONS}))")
        self.run("CREATE INDEX notes_hnsw ON notes USING hnsw (embedding vector_cosine_ops)")
        for person in everybody:
            for role, name, text, origin in parts_of(person):
                vector = vector_of(text)
                self.run("INSERT INTO notes VALUES (%s, %s, %s, %s)", name, person.id, text, str(vector))
                where = {"collection": "notes", "id": name}
                self.add(role, name, [person], text, where, vectors=(tuple(vector),), made_of=origin)
        self.run(ANALYZE)
        self.stores = [Store(name=self.name, kind="pgvector", config={"url": self.address, "owner_field": OWNER})]

    @override
    def read(self) -> dict[str, str]:
        return dict(self.run("SELECT id, body FROM notes"))

    @override
    def native_delete(self, records: Sequence[Record]) -> None:
        self.run(f"DELETE FROM notes WHERE {OWNER} = %s", records[0].people[0])  # noqa: S608


class Postgres(Rows):
    """People, their messages and documents of 19 KB, which the server compresses; foreign keys between them."""

    name, title, database = "postgres", "PostgreSQL (foreign keys, 19 KB values)", "forget_rows"
    tables = ("answer", "summary", "document", "message", "person")

    @override
    def fill(self, everybody: Sequence[Person]) -> None:
        self.run(f"CREATE TABLE person (id text PRIMARY KEY, {OWNER} text, profile jsonb)")
        self.run(
            f"CREATE TABLE message (id text PRIMARY KEY, {OWNER} text, person text REFERENCES person, body text,"
            " embedding bytea)"
        )
        for table in ("document", "summary", "answer"):
            self.run(f"CREATE TABLE {table} (id text PRIMARY KEY, {OWNER} text, of text REFERENCES message, body text)")
        for person in everybody:
            profile = json.dumps({"first": person.said[0].text})
            self.run("INSERT INTO person VALUES (%s, %s, %s)", person.id, person.id, profile)
            key = {"table": "person", "key": {"id": person.id}}
            self.add("identity", person.id, [person], "", key)
            for said in person.said:
                self._row("message", "text", said.name, said.text, person=person, origin=person.id, vector=said.vector)
                self._row("document", "text", f"{said.name}-document", said.long, person=person, origin=said.name)
                self._row("summary", "summary", f"{said.name}-summary", said.summary, person=person, origin=said.name)
                self._row("answer", "cache", f"{said.name}-cache", said.cache, person=person, origin=said.name)
        self.run(ANALYZE)
        config = {"url": self.address, "owner_field": OWNER, "children": "delete"}
        self.stores = [Store(name=self.name, kind="sql", config=config)]

    def _row(
        self,
        table: str,
        role: Role,
        name: str,
        text: str,
        *,
        person: Person,
        origin: str,
        vector: list[float] | None = None,
    ) -> None:
        values: list[object] = [name, person.id, origin, text]
        vectors: tuple[tuple[float, ...], ...] = ()
        if vector is not None:
            values.append(struct.pack(f"<{len(vector)}f", *vector))
            vectors = (tuple(vector),)
        self.run(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(values))})", *values)  # noqa: S608
        made_of = origin if table != "message" else None
        self.add(role, name, [person], text, {"table": table, "key": {"id": name}}, vectors=vectors, made_of=made_of)

    @override
    def read(self) -> dict[str, str]:
        found = dict(self.run("SELECT id, profile::text FROM person"))
        for table in self.tables[:-1]:
            found |= dict(self.run(f"SELECT id, body FROM {table}"))  # noqa: S608
        return found

    @override
    def native_delete(self, records: Sequence[Record]) -> None:
        for table in self.tables:
            self.run(f"DELETE FROM {table} WHERE {OWNER} = %s", records[0].people[0])  # noqa: S608
