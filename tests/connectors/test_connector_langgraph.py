from __future__ import annotations

import secrets
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest
from langchain_core.messages import HumanMessage

from connectors.base import Item, Level, Outcome, Selector
from connectors.errors import BadConfig, BadLocator, ReadOnlyConnector, StoreUnreachable
from connectors.sql_units import UnitConnector
from tests.connectors.contract import BEN, MIA, NOW, OF_PROCESSES, Contract, captured, erase, fill, text_of
from tests.connectors.langgraph_beds import PostgresThreads, SqliteThreads, ThreadBed, agent


@pytest.fixture
def sqlite_bed(tmp_path: Path) -> Iterator[SqliteThreads]:
    made = SqliteThreads(tmp_path)
    yield made
    made.close()


@pytest.fixture
def postgres_bed(server: Any) -> Iterator[PostgresThreads]:
    made = PostgresThreads(server)
    yield made
    made.close()


class TestSqliteSaver(Contract):
    holds = "langgraph, SQLite"

    @pytest.fixture
    def bed(self, sqlite_bed: SqliteThreads) -> SqliteThreads:
        return sqlite_bed


@pytest.mark.postgres
class TestPostgresSaver(Contract):
    holds = "langgraph, PostgreSQL"
    slow: ClassVar = OF_PROCESSES

    @pytest.fixture
    def bed(self, postgres_bed: PostgresThreads) -> PostgresThreads:
        return postgres_bed


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def bed(request: pytest.FixtureRequest) -> ThreadBed:
    """Both savers in turn, for what has to hold on each."""
    made = request.getfixturevalue(f"{request.param}_bed")
    assert isinstance(made, ThreadBed)
    return made


def config_of(name: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": name, **more}}


def counted(bed: ThreadBed, name: str) -> int:
    """Count the rows of a thread in every table that has threads."""
    tables = ("writes", "checkpoints")
    mark = "?"
    if isinstance(bed, PostgresThreads):
        tables, mark = ("checkpoint_writes", "checkpoint_blobs", "checkpoints"), "%s"  # type: ignore[assignment]
    return sum(bed.run(f"SELECT count(*) FROM {t} WHERE thread_id = {mark}", name)[0][0] for t in tables)


def thread(name: str) -> Item:
    return Item(copy_id=name, locator={"thread_id": name})


def wiped(bed: ThreadBed, items: list[Item], who: str = MIA) -> list[tuple[Level | None, bool | None]]:
    """Erase, reclaim and verify, and return what was found."""
    with bed.open() as connector:
        held = captured(connector, items)
        assert {r.outcome for r in erase(connector, held, who)} == {Outcome.ERASED}
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    with bed.open(read_only=True) as verifier:
        found = verifier.verify(held, Level.L2, deadline=30, reclaimed=report)
    return [(finding.level, finding.present) for finding in found]


def test_sqlite_delete_thread_leaves_the_text_in_log_and_file_until_ours(sqlite_bed: SqliteThreads) -> None:
    # Recipe 2.1: two threads of four turns each, write-ahead log, secure_delete off as upstream builds it.
    for turn in range(4):
        sqlite_bed.put("t-alice", f"turn {turn}: {text_of('alice')}", "mia")
        sqlite_bed.put("t-bob", f"turn {turn}: {text_of('bob')}", BEN)
    with sqlite_bed.open() as connector:
        items = captured(connector, [thread("t-alice")])
    sqlite_bed.saver.delete_thread("t-alice")
    assert counted(sqlite_bed, "t-alice") == 0
    assert sqlite_bed.hits(text_of("alice")) > 0
    sqlite_bed.run("PRAGMA wal_checkpoint(TRUNCATE)")
    assert sqlite_bed.files.path.read_bytes().count(text_of("alice").encode()) > 0
    with sqlite_bed.open() as connector:
        assert erase(connector, items)[0].outcome is Outcome.ALREADY_ABSENT
        with sqlite_bed.open(read_only=True) as verifier:
            before = verifier.verify(items, Level.L2, deadline=30)[0]
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    assert (before.level, before.present) == (Level.L1, True)
    assert report.level is Level.L2
    assert sqlite_bed.hits(text_of("alice")) == 0
    assert sqlite_bed.hits(text_of("bob")) > 0
    assert len(list(sqlite_bed.saver.list(config_of("t-bob")))) == 4 * 3


@pytest.mark.postgres
def test_postgres_delete_thread_and_vacuum_leave_the_text_until_ours(postgres_bed: PostgresThreads) -> None:
    # Recipe 2.2, with a value that is too long for its row and does not compress.
    noise = " ".join(secrets.token_hex(16) for _ in range(1200))
    postgres_bed.put("t-alice", f"{text_of('alice')} {noise}", "mia")
    # Somebody else's rows behind hers keep VACUUM from giving whole pages back.
    postgres_bed.put("t-bob", text_of("bob"), BEN)
    postgres_bed.put("t-bob", f"{text_of('bob')} {secrets.token_hex(20_000)}", BEN)
    assert postgres_bed.run("SELECT reltoastrelid <> 0 FROM pg_class WHERE relname = 'checkpoint_blobs'") == [(True,)]
    with postgres_bed.open() as connector:
        items = captured(connector, [thread("t-alice")])
    postgres_bed.saver.delete_thread("t-alice")
    assert counted(postgres_bed, "t-alice") == 0
    tail = noise[-40:]
    assert postgres_bed.hits(tail) > 0
    for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
        postgres_bed.run(f"VACUUM {table}")
    left = postgres_bed.hits(text_of("alice")) + postgres_bed.hits(tail)
    with postgres_bed.open() as connector:
        erase(connector, items)
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
        with postgres_bed.open(read_only=True) as verifier:
            finding = verifier.verify(items, Level.L2, deadline=30, reclaimed=report)[0]
    assert left > 0
    assert (report.level, report.residual_until) == (Level.L2, "unknown")
    assert (finding.level, finding.present) == (Level.L2, False)
    assert postgres_bed.hits(text_of("alice")) + postgres_bed.hits(tail) == 0
    assert postgres_bed.get("t-bob") == text_of("bob")


def test_late_writes_of_an_erased_thread_are_seen_and_erased(bed: ThreadBed) -> None:
    # Recipe 2.10: the saver itself does not show the row that a delayed put_writes leaves.
    bed.put("mia-0", text_of("mia-0"), "mia")
    late = bed.saver.get_tuple(config_of("mia-0")).config  # type: ignore[union-attr]
    item = thread("mia-0")
    with bed.open() as connector:
        erase(connector, [item])
    bed.saver.put_writes(late, [("messages", f"late: {text_of('mia-0')}")], "task-1")
    assert bed.saver.get_tuple(config_of("mia-0")) is None
    with bed.open(read_only=True) as verifier:
        finding = verifier.verify([item], Level.L2, deadline=30)[0]
    assert (finding.level, finding.present) == (None, True)
    assert "late or orphan" in finding.how
    assert wiped(bed, [item]) == [(Level.L2, False)]
    assert counted(bed, "mia-0") == 0
    assert bed.hits(text_of("mia-0")) == 0


@pytest.mark.postgres
@pytest.mark.scenario("S2")
def test_writes_and_blobs_that_somebody_elses_delete_left_go_and_each_kind_is_said(
    postgres_bed: PostgresThreads,
) -> None:
    bed = postgres_bed
    for name in ("mia-0", "mia-1", "ben-0"):
        bed.put(name, text_of(name), name.partition("-")[0])
    bed.run("DELETE FROM checkpoints WHERE thread_id = 'mia-1'")
    kinds = ("checkpoint_writes", "checkpoint_blobs", "checkpoints")
    with bed.open() as connector:
        whole, partly = erase(connector, [thread("mia-0"), thread("mia-1")])
    assert (whole.outcome, partly.outcome) == (Outcome.ERASED, Outcome.ERASED)
    assert [kind in whole.detail for kind in kinds] == [True, True, True]
    assert [f"of {kind}" in partly.detail for kind in kinds] == [True, True, False]
    for kind in kinds:
        assert {row[0] for row in bed.run(f"SELECT DISTINCT thread_id FROM {kind}")} == {"ben-0"}


@pytest.mark.postgres
def test_a_server_that_ended_every_connection_between_batches_ends_the_same(postgres_bed: PostgresThreads) -> None:
    """As a restart does: the first call says that the server broke off, the next goes on from what was committed."""
    bed = postgres_bed
    mine, others = fill(bed)
    with bed.open() as connector:
        items = captured(connector, mine)
        erase(connector, items[:3])
        ended = bed.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'muniment' AND pid <> pg_backend_pid()"
        )
        with pytest.raises(StoreUnreachable, match="broke off"):
            erase(connector, items)
        again = erase(connector, items)
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    assert (bool(ended), [each.outcome for each in again]) == (
        True, [Outcome.ALREADY_ABSENT] * 3 + [Outcome.ERASED] * (len(items) - 3)
    )  # fmt: skip
    with bed.open(read_only=True) as verifier:
        seen = verifier.verify(items, Level.L2, deadline=30, reclaimed=report)
    assert {(each.level, each.present) for each in seen} == {(Level.L2, False)}
    assert [bed.get(item.copy_id) for item in others] == [text_of(item.copy_id) for item in others]


def test_a_late_put_that_brings_the_thread_back_is_present_again(bed: ThreadBed) -> None:
    bed.put("mia-0", text_of("mia-0"), "mia")
    old = bed.saver.get_tuple(config_of("mia-0"))
    assert old is not None
    with bed.open() as connector:
        erase(connector, [thread("mia-0")])
    bed.saver.put(old.config, old.checkpoint, old.metadata, {})
    with bed.open(read_only=True) as verifier:
        assert verifier.verify([thread("mia-0")], Level.L1, deadline=30)[0].present is True
    assert wiped(bed, [thread("mia-0")]) == [(Level.L2, False)]


def late(bed: ThreadBed, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Write to the thread right after each of the first commits, as an agent that runs meanwhile does."""
    real = UnitConnector._round
    left = [times]

    def spoiled(self: UnitConnector, *given: Any) -> Any:
        answers = real(self, *given)
        if left[0]:
            left[0] -= 1
            config = config_of("mia-0", checkpoint_ns="", checkpoint_id=f"late-{left[0]}")
            bed.saver.put_writes(config, [("messages", "written late")], "task")
        return answers

    monkeypatch.setattr(UnitConnector, "_round", spoiled)


def test_rows_written_while_a_thread_is_erased_go_too(bed: ThreadBed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed.put("mia-0", text_of("mia-0"), "mia")
    late(bed, monkeypatch, 2)
    with bed.open() as connector:
        assert erase(connector, [thread("mia-0")])[0].outcome is Outcome.ERASED
    assert counted(bed, "mia-0") == 0


def test_a_thread_that_is_written_all_the_time_is_not_called_erased(
    bed: ThreadBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.put("mia-0", text_of("mia-0"), "mia")
    late(bed, monkeypatch, 99)
    with bed.open() as connector:
        receipt = erase(connector, [thread("mia-0")])[0]
    assert (receipt.outcome, receipt.level) == (Outcome.FAILED, None)
    assert "written again" in receipt.detail


@pytest.mark.scenario("S4")
def test_forks_and_subgraphs_go_with_the_thread(bed: ThreadBed) -> None:
    bed.put("mia-0", text_of("mia-0"), "mia")
    graph = agent(bed.saver)
    first = list(bed.saver.list(config_of("mia-0")))[-1].config
    said = HumanMessage(content="in a fork: the key lies under the third stone")
    fork = {"configurable": {**first["configurable"], "user_id": "mia"}}
    graph.update_state(fork, {"messages": [said]}, as_node="answer")
    inner = bed.saver.get_tuple(config_of("mia-0"))
    assert inner is not None
    config = config_of("mia-0", checkpoint_ns="inner:1", user_id="mia")
    bed.saver.put(config, {**inner.checkpoint, "id": str(uuid.uuid4())}, inner.metadata, {})
    assert bed.hits("the key lies under the third stone") > 0
    assert wiped(bed, [thread("mia-0")]) == [(Level.L2, False)]
    assert bed.hits("the key lies under the third stone") == 0
    assert counted(bed, "mia-0") == 0


def test_a_thread_of_two_people_is_left_untouched_and_said_to_be(bed: ThreadBed) -> None:
    bed.put("both", text_of("both"), "mia")
    bed.put("both", "and I am Ben", BEN)
    before = counted(bed, "both")
    with bed.open() as connector:
        assert {"thread_id": "both"} in list(connector.discover(Selector(identifiers=(MIA,)), deadline=10))
        receipt = erase(connector, [thread("both")])[0]
    assert (receipt.outcome, receipt.detail) == (Outcome.OWNER_MISMATCH, "the thread names somebody else too")
    assert counted(bed, "both") == before


def test_a_thread_that_names_no_owner_is_left_untouched(bed: ThreadBed) -> None:
    agent(bed.saver).invoke({"messages": [HumanMessage(content="hello")]}, config_of("nobody"))
    with bed.open() as connector:
        receipt = erase(connector, [thread("nobody")])[0]
    assert (receipt.outcome, receipt.detail) == (Outcome.OWNER_MISMATCH, "the thread names no owner")
    assert counted(bed, "nobody") > 0
    with bed.open(owner=False) as connector:
        assert erase(connector, [thread("nobody")])[0].outcome is Outcome.ERASED


def test_thread_ids_are_compared_whole_and_as_they_are_written(bed: ThreadBed) -> None:
    names = ["t", "t1", "T1", "t%", "t_", "t' OR '1'='1"]
    for name in names:
        bed.put(name, text_of(name), "mia")
    assert wiped(bed, [thread("t_"), thread("t%")]) == [(Level.L2, False)] * 2
    assert [bed.get(name) is None for name in names] == [False, False, False, True, True, False]


def test_metadata_that_langgraph_copies_goes_with_the_thread(bed: ThreadBed) -> None:
    config = {**config_of("mia-0", user_id="mia"), "metadata": {"email": "mia.li.17@example.com"}}
    agent(bed.saver).invoke({"messages": [HumanMessage(content="hello there, it is me")]}, config)
    assert bed.hits("mia.li.17@example.com") > 0
    with bed.open() as connector:
        assert b"mia.li.17@example.com" in connector.capture([thread("mia-0")], deadline=10)["mia-0"]
    assert wiped(bed, [thread("mia-0")]) == [(Level.L2, False)]
    assert bed.hits("mia.li.17@example.com") == 0


def test_nothing_is_unpickled_and_a_pickled_thread_still_goes(bed: ThreadBed, tmp_path: Path) -> None:
    bomb, marker = b"cposix\nsystem\n(S'touch %s'\ntR.", tmp_path / "it ran"
    value = bomb % str(marker).encode() + b"the secret in a pickle"
    bed.put("mia-0", text_of("mia-0"), "mia")
    if isinstance(bed, PostgresThreads):
        bed.run("UPDATE checkpoint_blobs SET type = 'pickle', blob = %s WHERE channel = 'messages'", value)
    else:
        bed.run("UPDATE writes SET type = 'pickle', value = ? WHERE channel = 'messages'", value)
    with bed.open() as connector:
        assert any(
            b"the secret in a pickle" in each for each in connector.capture([thread("mia-0")], deadline=9)["mia-0"]
        )
        assert b"base64" in (dict(connector.export([thread("mia-0")], deadline=9))["mia-0"] or b"")
    assert wiped(bed, [thread("mia-0")]) == [(Level.L2, False)]
    assert not marker.exists()
    assert bed.hits("the secret in a pickle") == 0


def test_a_database_without_the_savers_tables_proves_no_absence(bed: ThreadBed) -> None:
    bed.run("DROP TABLE checkpoints")
    with bed.open() as connector:
        receipt = erase(connector, [thread("mia-0")])[0]
        assert (receipt.outcome, receipt.level) == (Outcome.FAILED, None)
        with pytest.raises(BadLocator, match="no such table"):
            connector.check_locator({"thread_id": "mia-0"})
        finding = connector.verify([thread("mia-0")], Level.L1, deadline=10)[0]
        assert (finding.level, finding.present) == (None, None)
        report = connector.check(now=NOW, deadline=10)
    assert (report.reachable, report.can_erase, report.level_reached) == (True, False, None)


def test_discover_pages_through_many_threads(bed: ThreadBed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.sql_units._PAGE", 3)
    for n in range(10):
        bed.put(f"mia-{n}", "hello", "mia" if n % 2 else MIA)
        bed.put(f"ben-{n}", "hello", BEN)
    with bed.open() as connector:
        found = [each["thread_id"] for each in connector.discover(Selector(identifiers=(MIA,)), deadline=10)]
    assert found == [f"mia-{n}" for n in range(10)]


def test_texts_that_others_also_said_are_no_canaries(bed: ThreadBed) -> None:
    for name, owner in (("mia-0", "mia"), ("ben-0", BEN)):
        bed.put(name, "you are a helpful assistant", owner)
    bed.put("mia-0", text_of("mia-0"), "mia")
    with bed.open() as connector:
        held = connector.capture([thread("mia-0")], deadline=10)["mia-0"]
    assert text_of("mia-0").encode() in held
    assert b"you are a helpful assistant" not in held
    assert not any(b"langchain" in each for each in held)


@pytest.mark.scenario("B1")
def test_with_the_fence_the_database_refuses_late_writes_of_an_erased_thread(bed: ThreadBed) -> None:
    bed.put("mia-0", text_of("mia-0"), "mia")
    old = bed.saver.get_tuple(config_of("mia-0"))
    assert old is not None
    with bed.open(fence="triggers") as connector:
        assert connector.capabilities().fence
        assert erase(connector, [thread("mia-0")])[0].outcome is Outcome.ERASED
        assert erase(connector, [thread("mia-0")])[0].outcome is Outcome.ALREADY_ABSENT
    for write in (
        lambda: bed.saver.put_writes(old.config, [("messages", "late")], "task"),
        lambda: bed.saver.put_writes(old.config, [("__error__", "late")], "task"),
        lambda: bed.saver.put(old.config, old.checkpoint, old.metadata, {}),
        lambda: bed.saver.put(old.config, old.checkpoint, old.metadata, old.checkpoint["channel_versions"]),
        lambda: bed.put("mia-0", "hello again", "mia"),
    ):
        with pytest.raises((sqlite3.IntegrityError, psycopg.errors.CheckViolation), match="this was erased"):
            write()
    assert counted(bed, "mia-0") == 0
    with bed.open(read_only=True) as verifier:
        assert verifier.verify([thread("mia-0")], Level.L1, deadline=10)[0].present is False
    bed.put("mia-00", "another thread", "mia")
    bed.put("ben-0", text_of("ben-0"), BEN)
    assert (bed.get("mia-00"), bed.get("ben-0")) == ("another thread", text_of("ben-0"))


def test_a_fence_asked_for_before_holds_and_one_not_configured_is_not_claimed(bed: ThreadBed) -> None:
    with bed.open() as connector:
        assert connector.fence({"thread_id": "mia-0"}).held is False
    bed.put("before", "the tables are in use", "mia")
    with bed.open(fence="triggers") as connector:
        assert connector.fence({"thread_id": "mia-0"}).held is True
        assert connector.fence({"thread_id": "mia-0"}).held is True
    with pytest.raises((sqlite3.IntegrityError, psycopg.errors.CheckViolation)):
        bed.put("mia-0", text_of("mia-0"), "mia")
    with bed.open(fence="triggers", read_only=True) as connector, pytest.raises(ReadOnlyConnector):
        connector.fence({"thread_id": "mia-0"})
    with pytest.raises(BadConfig, match="fence"):
        bed.open(fence="walls")


def test_somebody_elses_thread_is_not_fenced_by_a_refused_erasure(bed: ThreadBed) -> None:
    bed.put("ben-0", text_of("ben-0"), BEN)
    with bed.open(fence="triggers") as connector:
        assert erase(connector, [thread("ben-0")])[0].outcome is Outcome.OWNER_MISMATCH
    bed.put("ben-0", "still here", BEN)
    assert bed.get("ben-0") == text_of("ben-0")


@pytest.mark.postgres
def test_the_fence_holds_for_a_role_that_cannot_read_it(postgres_bed: PostgresThreads) -> None:
    postgres_bed.put("mia-0", text_of("mia-0"), "mia")
    role = postgres_bed.database.role().replace("postgresql+psycopg", "postgresql")
    with postgres_bed.open(fence="triggers") as connector:
        erase(connector, [thread("mia-0")])
    columns = "thread_id, checkpoint_id, task_id, idx, channel, blob"
    insert = f"INSERT INTO checkpoint_writes ({columns}) VALUES (%s, 'c', 't', 0, 'm', '')".encode()
    with psycopg.connect(role, autocommit=True) as application:
        with pytest.raises(psycopg.errors.CheckViolation):
            application.execute(insert, ("mia-0",))
        application.execute(insert, ("mia-1",))
