"""Rows in bulk: the same as one by one on both databases, with nothing of a value in a statement's text."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlmodel import Session, select

from registry import artifacts, bulk, ids, subjects
from registry.identifiers import parse_subject
from registry.models import Artifact, Subject, SubjectSet

NAMES = (
    "tenant_id", "id", "given_id", "data_class", "class_version", "store", "locator_hash", "sealed", "holder_no",
    "set_id", "own_set_id", "status", "anonymised", "activity", "confidence", "created_at", "expires_at",
    "registered_by",
)  # fmt: skip
AT = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


def row(tenant_id: int, number: int, *, full: bool) -> tuple[Any, ...]:
    many = ("art_x", b"\0\xff'", '{"kind": "summarise"}', 0.25, bulk.instant(AT + timedelta(days=1)))
    given_id, sealed, activity, confidence, expires = many if full else (None, None, None, None, None)
    return (
        tenant_id, number, given_id, "memo'ry\"", 2, "app", number.to_bytes(8, "big"), sealed, 0, 5, 6, "live", full,
        activity, confidence, bulk.instant(AT), expires, "token",
    )  # fmt: skip


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, make_house: Any, tmp_path: Any) -> Any:
    url = "" if request.param == "sqlite" else request.getfixturevalue("make_postgres_database")()
    built = make_house(tmp_path, url)
    yield built
    built.engine.dispose()


def test_what_is_written_in_bulk_reads_as_if_written_one_by_one(place: Any) -> None:
    tenant = place.alice.tenant_id
    with place.session() as session:
        bulk.insert(session, Artifact, NAMES, [row(tenant, 1, full=True), row(tenant, 2, full=False)])
        bulk.insert(session, Artifact, NAMES, [])
        one, two = session.exec(select(Artifact).where(Artifact.tenant_id == tenant).order_by(sa.text("id"))).all()
        assert (one.given_id, one.sealed, one.activity, one.confidence, one.anonymised) == (
            "art_x", b"\0\xff'", {"kind": "summarise"}, 0.25, True,
        )  # fmt: skip
        assert (one.created_at, one.expires_at, one.data_class) == (AT, AT + timedelta(days=1), "memo'ry\"")
        assert (two.given_id, two.sealed, two.activity, two.confidence, two.anonymised, two.expires_at) == (
            None, None, None, None, False, None,
        )  # fmt: skip


def test_rows_are_found_by_any_number_of_values_and_pending_objects_are_seen(place: Any) -> None:
    tenant = place.alice.tenant_id
    with place.session() as session:
        names = ("tenant_id", "set_id", "digest", "size")
        bulk.insert(session, SubjectSet, names, [(tenant, n, n.to_bytes(4, "big"), 1) for n in range(1, 2501)])
        head = "SELECT set_id FROM subject_set WHERE tenant_id = ? AND digest"
        wanted = [n.to_bytes(4, "big") for n in range(1, 5001, 2)]
        found = {number for (number,) in bulk.select_in(session, head, (tenant,), wanted, "bytea")}
        assert found == set(range(1, 2501, 2))
        assert list(bulk.select_in(session, head, (tenant,), [], "bytea")) == []
        session.add(Subject(tenant_id=tenant, subject_no=77, subject_id="a" * 32, created_at=AT))
        head = "SELECT created_at, state FROM subject WHERE tenant_id = ? AND subject_no"
        [(at, state)] = bulk.select_in(session, head, (tenant,), [77], "int8")
        assert (bulk.moment(at), state) == (AT, "live")
        session.rollback()


def test_numbers_are_gathered_each_once_and_none_where_there_is_none(place: Any) -> None:
    tenant = place.alice.tenant_id
    numbers = [1, 2**62, 7, 0]
    with place.session() as session:
        rows = [(tenant, n, n.to_bytes(8, "big"), n % 5) for n in numbers]
        bulk.insert(session, SubjectSet, ("tenant_id", "set_id", "digest", "size"), rows)
        for column, values, found in (
            ("set_id", [1, 4, 2, 0], set(numbers)), ("size", [1, 4, 2, 0], {n % 5 for n in numbers}),
            ("set_id", [3], set()), ("set_id", [], set()),
        ):  # fmt: skip
            where = "subject_set WHERE tenant_id = ? AND size"
            got = bulk.gather(session, column, where, (tenant,), values, kind="int4")
            assert (len(got), set(got)) == (len(found), found)
        session.rollback()


@given(st.datetimes(timezones=st.just(UTC)))
def test_an_instant_comes_back_as_it_went(at: datetime) -> None:
    assert bulk.moment(bulk.instant(at)) == at
    assert bulk.moment(bulk.instant(None)) is None


def test_ids_only_grow_and_two_processes_do_not_meet_in_a_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[set[int]] = []
    for process in (3, 4):
        monkeypatch.setattr(ids, "_process", process)
        monkeypatch.setattr(ids, "_last", 0)
        row = [ids.new_id(AT + timedelta(milliseconds=n % 2)) for n in range(5_000)]
        assert row == sorted(set(row))
        assert all(one >= ids.first_id(AT) for one in row)
        made.append(set(row))
    assert made[0].isdisjoint(made[1])


def test_a_forked_process_makes_ids_of_its_own() -> None:
    code = (
        "import os, sys; from registry import ids; before = ids._process; child = os.fork()\n"
        "if child == 0: sys.exit(int(ids._process == before))\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    # One process in 4,096 draws the number of its parent.
    assert 0 in {subprocess.run([sys.executable, "-c", code], check=False).returncode for _ in range(2)}


def test_the_collector_runs_again_after_the_last_batch_whatever_happened_in_it() -> None:
    assert gc.isenabled()
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with bulk.without_collector():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)

    def fail() -> None:
        with bulk.without_collector():
            thread.start()
            assert entered.wait(10)
            assert not gc.isenabled()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not gc.isenabled(), "another batch is still at work"
    leave.set()
    thread.join()
    assert gc.isenabled()
    gc.disable()
    try:
        with bulk.without_collector():
            pass
        assert not gc.isenabled(), "who switched it off keeps it off"
    finally:
        gc.enable()


class Ring:
    """A cycle, which only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


def test_the_collector_runs_now_and_then_while_batches_follow_each_other_without_a_gap() -> None:
    with bulk.without_collector():  # another batch, always at work
        lost = weakref.ref(Ring())
        for _ in range(10):
            assert lost() is not None
            with bulk.without_collector():
                pass
        assert lost() is None
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_session_of_another_kind_of_statement_stays_usable(place: Any) -> None:
    with place.session() as session:
        assert isinstance(session, Session)
        bulk.insert(session, SubjectSet, ("tenant_id", "set_id", "digest", "size"), [(1, 1, b"x", 1)])
        session.rollback()
        assert session.exec(select(SubjectSet).where(SubjectSet.tenant_id == 1)).all() == []


def test_the_ids_of_a_person_are_those_of_all_their_merged_names(place: Any) -> None:
    source = {"store": "app", "locator": {"table": "memories", "key": {"id": 1}}}
    made = place.register(
        [
            place.item(1, subjects=["user:ada"]),
            place.item(2, subjects=["email:ada@example.org", "user:bea"]),
            place.item(3, subjects=None, sources=[source]),
            place.item(4, subjects=["user:bea"]),
            place.item(5, subjects=["user:ada", "email:ada@example.org"]),
        ]
    )
    tenant = place.alice.tenant_id
    with place.session() as session:
        names = [parse_subject(text) for text in ("user:ada", "email:ada@example.org", "user:bea")]
        ada, mail, bea = subjects.resolve(session, place.vault, place.alice, names, place.now)
        assert len(artifacts.ids_of(session, tenant, [ada])) == 3
        for number in (ada, mail):
            session.get_one(Subject, (tenant, number)).person_no = ada
        session.flush()
        whole = [int(made[n]["id"][4:], 16) for n in (0, 1, 2, 4)]
        for asked in ([ada], [mail], [ada, mail]):
            assert artifacts.ids_of(session, tenant, asked) == sorted(whole)
            assert [row.id for row in artifacts.artifacts_of(session, tenant, asked)] == sorted(whole)
        assert len(artifacts.ids_of(session, tenant, [bea])) == 2
        artifacts.bury(session, tenant, whole[:1], "req_1", place.now)
        assert artifacts.ids_of(session, tenant, [ada]) == sorted(whole[1:])
        assert artifacts.ids_of(session, tenant, []) == []
        session.rollback()
