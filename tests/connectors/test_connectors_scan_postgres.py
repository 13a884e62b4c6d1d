"""`scan` on a real PostgreSQL with LangGraph's saver and store, and on a real Redis; both are only read."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.store.postgres import PostgresStore

from connectors.base import Item, Outcome, open_connector
from connectors.scanning.plain import as_json, reach_of
from connectors.scanning.report import Scan
from connectors.scanning.scan import scan
from infra.services import redis as service
from tests.connectors.langgraph_beds import Database, agent
from tests.connectors.test_connectors_scan import only, orphans

NOW = datetime.now(UTC)


def look(target: str, **more: Any) -> Scan:
    return scan(target, now=NOW, deadline=60, **more)


@pytest.fixture
def database(server: Any) -> Iterator[Database]:
    made = Database(server)
    yield made
    made.close()


@pytest.fixture
def threads(database: Database) -> PostgresSaver:
    saver = PostgresSaver(database.connection)
    saver.setup()
    for thread, who in (("t-ada", "ada_lovelace"), ("t-ben", "ben_bitdiddle"), ("t-none", None)):
        config = {"configurable": {"thread_id": thread, **({"user_id": who} if who else {})}}
        agent(saver).invoke({"messages": [HumanMessage(content=f"{thread} speaks")]}, config)
    return saver


@pytest.mark.postgres
def test_a_savers_tables_are_recognised_and_a_read_only_transaction_reads_them(
    threads: PostgresSaver, database: Database
) -> None:
    state = "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del)::int FROM pg_stat_user_tables"
    before = database.run(state), database.run("SELECT pg_current_wal_insert_lsn()")
    found = look(database.url, subject="user:ada_lovelace")
    assert (database.run(state), database.run("SELECT pg_current_wal_insert_lsn()")) == before
    place = only(found, "langgraph-postgres")
    assert (len(place.people), place.threads, place.nobody, orphans(place)) == (2, 3, 1, {})
    assert place.parts["checkpoint_blobs"] > 0
    assert place.bytes > 0
    assert place.dry_run is not None
    assert (place.dry_run.items, place.dry_run.mentions) == (1, 0)
    assert found.could_not_read() == []


@pytest.mark.postgres
@pytest.mark.scenario("S2")
def test_blobs_and_writes_that_a_partial_delete_left_are_counted_apart(
    threads: PostgresSaver, database: Database
) -> None:
    database.run("DELETE FROM checkpoints WHERE thread_id = 't-ada'")
    place = only(look(database.url), "langgraph-postgres")
    left = {
        "writes without checkpoints": "SELECT count(*) FROM checkpoint_writes WHERE thread_id = 't-ada'",
        "blobs that no checkpoint uses": "SELECT count(*) FROM checkpoint_blobs WHERE thread_id = 't-ada'",
    }
    assert orphans(place) == {what: database.run(query)[0][0] for what, query in left.items()}
    assert all(orphans(place).values())
    assert place.threads == 2


@pytest.mark.postgres
def test_stores_and_plain_tables_of_every_schema_are_read_and_dead_rows_named(database: Database) -> None:
    store = PostgresStore(database.connection)
    store.setup()
    store.put(("users", "ada"), "home", {"text": "x"})
    database.run("CREATE SCHEMA app")
    database.run("CREATE TABLE app.store (id int PRIMARY KEY, user_id text, body bytea, created_at timestamptz)")
    database.run(
        "INSERT INTO app.store SELECT n, 'person-' || n % 3, 'about person-1', now() FROM generate_series(1, 50) n"
    )
    database.run("CREATE TABLE hidden (id int)")
    database.run("DELETE FROM app.store WHERE id < 11")
    database.run("SELECT pg_stat_force_next_flush()")
    found = look(database.url, subject="user:person-1")
    assert only(found, "langgraph-store").rows == 1
    place = only(found, "postgresql")
    assert place.parts == {"app.store": 40, "hidden": 0}
    assert (len(place.people), place.ages.as_json()["histogram"]["under a day"]) == (3, 40)
    assert place.dry_run is not None
    assert (place.dry_run.items, place.dry_run.mentions) == (13, 27)
    assert {each.name for each in place.settings} >= {"autovacuum"}


@pytest.mark.postgres
def test_a_wrong_password_or_port_is_a_named_finding_that_shows_no_secret(database: Database) -> None:
    for url in (
        "postgresql://somebody:hunter2-secret@127.0.0.1:9/none",
        database.uri.replace("postgres:@", "nobody_there:hunter2-secret@"),
    ):
        found = look(url)
        assert found.verdict() == "unreadable"
        told = json.dumps(as_json(found, names=True)) + repr(found)
        assert "hunter2" not in told
        assert "somebody" not in told


@pytest.mark.postgres
def test_a_role_that_may_not_read_is_told_so(threads: PostgresSaver, database: Database) -> None:
    database.run("CREATE ROLE scan_nobody LOGIN")
    found = look(database.uri.replace("//postgres:@", "//scan_nobody:@"))
    assert found.could_not_read() == ["the role sees no table that it may read"]
    database.run("DROP ROLE scan_nobody")


def _whose_keys_are_whose(client: Any, url: str) -> None:
    """Every item that is handed over is one that the connector erases for the person it names, and for nobody else."""
    client.flushall()
    ada, ben = json.dumps({"user_id": "ada", "n": 1}), json.dumps({"user_id": "ben", "n": 1})
    client.set("cache:1", ada)
    client.hset("session:1", mapping={"user_id": "ada", "text": "hello"})
    client.hset("all", mapping={"x": ada, "y": ben})
    client.rpush("own", ada, ada)
    client.rpush("both", ada, ben)
    client.zadd("recent", {ada: 1, ben: 2, "nobody": 3})
    client.xadd("turns", {"user_id": "ada", "text": "hello"}, id="5-1")
    client.set("plain", "no owner")
    handed: list[tuple[dict[str, str], tuple[str, ...]]] = []
    place = only(look(url, sink=lambda _, item: handed.append(
        (dict(item.locator), tuple(value for _, value in item.owners)))), "redis")  # fmt: skip
    found = {(each["key"], each.get("field")): owners for each, owners in handed}
    assert found == {
        ("cache:1", None): ("ada",), ("session:1", None): ("ada",), ("all", "x"): ("ada",), ("all", "y"): ("ben",),
        ("own", None): ("ada",), ("both", None): ("ada", "ben"), ("recent", ada): ("ada",), ("recent", ben): ("ben",),
        ("recent", "nobody"): (), ("turns", None): ("ada",), ("plain", None): (),
    }  # fmt: skip
    assert (place.rows, place.nobody, len(place.people), place.owner_field()) == (8, 1, 2, "user_id")
    items = [Item(copy_id=str(n), locator=each) for n, (each, owners) in enumerate(handed) if owners == ("ada",)]
    with open_connector("redis", place.store_config(), secrets=str) as connector:
        receipts = connector.erase(items, owner_identifiers=["user:ada"], now=NOW, deadline=30)
    assert {receipt.outcome for receipt in receipts} == {Outcome.ERASED}
    assert sorted(client.keys()) == [b"all", b"both", b"plain", b"recent"]


def test_redis_families_expiry_and_lost_writes_are_named(tmp_path: Path) -> None:
    with service.running(tmp_path) as made:
        client: Any = redis.Redis.from_url(made.url)
        client.set("checkpoint:t-1:a", "x", ex=600)
        client.set("checkpoint_write:t-1:a", "x")
        client.set("checkpoint_write:t-gone:a", "person-number-1")
        client.set("session:person-number-1", "x", ex=600)
        before = client.info("stats")["total_commands_processed"], client.lastsave(), client.dbsize()
        found = look(made.url, subject="user:person-number-1")
        after = client.info("stats")["total_commands_processed"], client.lastsave(), client.dbsize()
        _whose_keys_are_whose(client, made.url)
        client.close()
    assert (before[1:], after[0] > before[0]) == (after[1:], True)
    place = only(found, "langgraph-redis")
    assert place.parts == {"checkpoint_write": 2, "checkpoint": 1, "session": 1}
    assert (place.threads, orphans(place)) == (1, {"threads with writes and no checkpoint": 1})
    assert [each.value for each in place.settings if each.name == "ttl of checkpoint_write"] == ["2 of 2 keys without"]
    assert place.dry_run is not None
    assert place.dry_run.mentions == 1
    assert look("redis://127.0.0.1:9/0").verdict() == "unreadable"


@pytest.mark.postgres
def test_mem0s_tables_are_recognised_with_entities_whose_memories_are_gone(database: Database) -> None:
    database.run("CREATE EXTENSION vector")
    for name in ("agent_memories", "agent_memories_entities"):
        database.run(f"CREATE TABLE {name} (id uuid PRIMARY KEY, vector vector(3), payload jsonb)")
    database.run("CREATE TABLE looks_alike (id int PRIMARY KEY, vector vector(3), payload jsonb, more text)")
    memories = [str(uuid.uuid4()) for _ in range(3)]
    for number, (identity, who) in enumerate(zip(memories, ("ada_lovelace", "ada_lovelace", "ben"), strict=True)):
        payload: dict[str, Any] = {
            "data": f"memory {number}, ada_lovelace was there",
            "user_id": who,
            "created_at": NOW.isoformat(),
        }
        database.run("INSERT INTO agent_memories VALUES (%s, '[1,2,3]', %s)", identity, json.dumps(payload))
    for name, links in (("Ada", memories[:1]), ("Gone", [str(uuid.uuid4())])):
        payload = {"data": name, "user_id": "ada_lovelace", "linked_memory_ids": links}
        row = str(uuid.uuid4()), json.dumps(payload)
        database.run("INSERT INTO agent_memories_entities VALUES (%s, '[1,2,3]', %s)", *row)
    found = look(database.url, subject="user:ada_lovelace")
    place = only(found, "mem0-postgres")
    assert place.parts == {"agent_memories": 3, "agent_memories_entities": 2}
    assert (len(place.people), place.nobody, orphans(place)) == (2, 0, {"entities of deleted memories": 1})
    assert place.dry_run is not None
    assert (place.dry_run.items, place.dry_run.mentions) == (4, 1)
    assert not place.registrable
    assert "history.db" in str(reach_of(place).because)
    assert "looks_alike" in only(found, "postgresql").parts
