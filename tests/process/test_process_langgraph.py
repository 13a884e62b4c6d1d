"""Threads and long-term memories, erased by a request over HTTP: SQLite when embedded, PostgreSQL on servers."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore
from psycopg.rows import dict_row

from tests.connectors.langgraph_beds import NoExtensions, agent, embed
from tests.process.conftest import wait_for
from tests.process.test_process_airline import erase

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
ADA = "user:ada"
SAID = "my sister hides the wombat-93417 from the landlord"
INDEX: Any = {"dims": 16, "embed": embed, "text_fields": ["text"], "fields": ["text"]}


def as_class(desk: Any) -> None:
    desk.call("platform", "PUT", "/v1/data-classes/agent_state", {
        "state": "checkpoint", "personal": True, "owner": "team", "description": "threads and memories of an agent",
        "legal_basis": "contract", "subject_types": ["user"],
        "retention": {"keep": "P90D", "from": "created", "then": "erase"},
        "erasure": {"on_request": "erase", "required": "L2"},
    })  # fmt: skip


def opened(desk: Any, request: pytest.FixtureRequest) -> tuple[Any, Any, Any, str]:
    """Return the application's connection, saver, store, and the address that Muniment is given."""
    base: Path = desk.running.settings.data.parent / "stores" / desk.tenant
    base.mkdir(parents=True)
    if desk.running.settings.on_postgres:
        url: str = request.getfixturevalue("make_postgres_database")()
        plain = url.replace("postgresql+psycopg", "postgresql")
        db = psycopg.connect(plain, autocommit=True, prepare_threshold=0, row_factory=dict_row)
        return db, PostgresSaver(db), PostgresStore(db, index=INDEX), secret(desk, url)
    lite = sqlite3.connect(base / "agent.db", check_same_thread=False, isolation_level=None, factory=NoExtensions)
    lite.execute("PRAGMA journal_mode=WAL")
    lite.execute("PRAGMA secure_delete=OFF")
    return lite, SqliteSaver(lite), SqliteStore(lite, index=INDEX), f"sqlite:///{base}/agent.db"


def secret(desk: Any, url: str) -> str:
    folder = desk.running.settings.secrets_folder / desk.tenant
    folder.mkdir(parents=True, mode=0o700)
    (folder / "agent-url").write_text(url)
    (folder / "agent-url").chmod(0o600)
    return "file:agent-url"


def left(db: Any, desk: Any) -> int:
    """Count what was said in the bytes of the file, or in every table's file of the server."""
    if isinstance(db, sqlite3.Connection):
        folder: Path = desk.running.settings.data.parent / "stores" / desk.tenant
        return sum(path.read_bytes().count(SAID.encode()) for path in folder.iterdir())
    db.execute("CHECKPOINT")
    rows = db.execute(
        "SELECT pg_read_binary_file(pg_relation_filepath(oid), 0, 100000000, true) AS content FROM pg_class"
        " WHERE relkind IN ('r', 't', 'i') AND relnamespace::regnamespace::text IN ('public', 'pg_toast')"
        " AND oid >= 16384"
    ).fetchall()
    return sum(bytes(row["content"] or b"").count(SAID.encode()) for row in rows)


def test_a_persons_threads_and_memories_are_erased_to_l2_and_the_others_run_on(
    desk: Any, request: pytest.FixtureRequest
) -> None:
    as_class(desk)
    db, saver, store, url = opened(desk, request)
    saver.setup()
    store.setup()
    graph = agent(saver)
    for name, who, text in (("t-ada", "ada", SAID), ("t-bob", "bob", "a train to Leeds, please")):
        config = {"configurable": {"thread_id": name, "user_id": who}}
        graph.invoke({"messages": [HumanMessage(content=text)]}, config)
        store.put(("users", who), "home", {"text": text, "user_id": who})
    for name in ("langgraph", "langgraph_store"):
        spec = {"kind": name, "config": {"url": url, "owner_field": "user_id"}}
        desk.call("platform", "PUT", f"/v1/stores/{name}", spec)
        check = desk.call("platform", "POST", f"/v1/stores/{name}/check")
        assert (check["level_reached"], check["owner_check"]) == ("L2", "enforced"), check
    about = {"subjects": [ADA], "data_class": "agent_state"}
    thread: dict[str, Any] = {"store": "langgraph", "locator": {"thread_id": "t-ada"}}
    home: dict[str, Any] = {"store": "langgraph_store", "locator": {"namespace": ["users", "ada"], "key": "home"}}
    made = desk.client("writer").artifacts(
        [{**about, **thread}, {**about, **home, "sources": [thread], "activity": {"kind": "extract"}}]
    )
    assert {each["status"] for each in made} == {"created"}
    assert left(db, desk) > 0

    done = erase(desk, ADA)

    assert done["state"] == "completed"
    assert done["counts"]["erased_physical"] == 2
    assert left(db, desk) == 0
    assert saver.get_tuple({"configurable": {"thread_id": "t-ada"}}) is None
    assert store.get(("users", "ada"), "home") is None
    said = graph.invoke({"messages": [HumanMessage(content="and back")]}, {"configurable": {"thread_id": "t-bob"}})
    assert said["messages"][0].content == "a train to Leeds, please"
    assert store.get(("users", "bob"), "home").value["text"] == "a train to Leeds, please"
    db.close()


@pytest.mark.scenario("D10")
def test_retention_takes_a_chain_of_checkpoints_whole_or_not_at_all(desk: Any, request: pytest.FixtureRequest) -> None:
    """A date in the middle of a thread takes nothing of it: what ends is the thread, with its last word."""
    desk.call("platform", "PUT", "/v1/data-classes/agent_state", {
        "state": "checkpoint", "personal": True, "owner": "team", "description": "threads of an agent",
        "legal_basis": "contract", "subject_types": ["user"], "erasure": {"on_request": "erase", "required": "L1"},
        "retention": {"keep": "P1D", "from": "observed", "latest": "P1Y", "then": "erase"},
    })  # fmt: skip
    db, saver, _, url = opened(desk, request)
    saver.setup()
    graph = agent(saver)
    for name in ("t-long", "t-other"):
        for n in range(3):
            graph.invoke({"messages": [HumanMessage(content=f"word {n}")]}, {"configurable": {"thread_id": name}})
    desk.call("platform", "PUT", "/v1/stores/langgraph", {"kind": "langgraph", "config": {"url": url}})
    now = desk.running.services.clock.now()

    def chain(name: str) -> list[str]:
        return [
            one.config["configurable"]["checkpoint_id"] for one in saver.list({"configurable": {"thread_id": name}})
        ]

    def rows(name: str) -> int:
        tables = ("checkpoints", "writes") if isinstance(db, sqlite3.Connection) else (
            "checkpoints", "checkpoint_writes", "checkpoint_blobs",
        )  # fmt: skip
        mark = "?" if isinstance(db, sqlite3.Connection) else "%s"
        found = 0
        for table in tables:
            row = db.execute(f"SELECT COUNT(*) AS n FROM {table} WHERE thread_id = {mark}", (name,)).fetchone()
            found += row[0] if isinstance(row, tuple) else row["n"]
        return found

    def register(name: str, last_word: timedelta, **more: Any) -> str:
        item = {"data_class": "agent_state", "store": "langgraph", "locator": {"thread_id": name, **more},
                "subjects": [ADA], "observed_at": (now - last_word).isoformat()}  # fmt: skip
        [made] = desk.client("writer").artifacts([item])
        return str(made["status"])

    assert register("t-long", timedelta(hours=23)) == "created"
    assert register("t-other", timedelta(days=3)) == "created"
    assert register("t-long", timedelta(days=3), checkpoint_id=chain("t-long")[-1]) == "rejected", (
        "half a chain is no item"
    )
    before = chain("t-long"), rows("t-long")
    assert len(before[0]) > 3
    made = desk.call("legal", "POST", "/v1/retention/runs", {"dry_run": False})
    if made["state"] == "awaiting_approval":
        desk.call("legal2", "POST", f"/v1/retention/runs/{made['id']}/approve")
    wait_for(lambda: rows("t-other") == 0)
    assert chain("t-other") == []
    assert saver.get_tuple({"configurable": {"thread_id": "t-other"}}) is None
    assert (chain("t-long"), rows("t-long")) == before
    said = graph.invoke({"messages": [HumanMessage(content="more")]}, {"configurable": {"thread_id": "t-long"}})
    assert said["messages"][0].content == "word 0"
    db.close()
