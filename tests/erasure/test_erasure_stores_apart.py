"""Stores side by side: a slow, dead or silent one holds up nobody; a person can pause, resume and retry one copy."""

from __future__ import annotations

import errno
import gc
import sqlite3
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from sqlmodel import Session

from api.secrets import SecretRefused
from connectors.base import Connector
from connectors.memory import Faults, MemoryConnector
from erasure.errors import IllegalMove
from erasure.models import CopyRow


def approved(world: Any) -> str:
    request = str(world.ask())
    world.plan(request)
    world.approve(request)
    return request


def by_store(world: Any, request: str) -> dict[str, CopyRow]:
    return {row.store: row for row in world.rows(request) if row.kind == "artifact"}


@pytest.mark.scenario("D7")
@pytest.mark.scenario("C7")
def test_a_hung_store_costs_its_own_time_and_the_others_are_done_meanwhile(world: Any) -> None:
    world.change(store_seconds=1.0)
    for name in ("slow", "slower"):
        world.memory_store(name)
        world.keep_in_memory(name, "k", "Ada in a store that hangs")
    world.note("n1", "Ada in the database")
    world.file("ada.txt", "Ada in a file")
    request = approved(world)
    for name in ("slow", "slower"):
        world.faults[name] = Faults(hangs=frozenset({"erase"}))
    started = time.monotonic()
    world.work(1)
    spent = time.monotonic() - started
    found = by_store(world, request)
    assert {found["db"].state, found["cvs"].state} == {"erased_logical"}
    assert {found["slow"].state, found["slower"].state} == {"pending"}
    assert spent < 2 * 1.0 + 3.0, "the two that hang were waited for at the same time"
    world.work()
    assert by_store(world, request)["slow"].state == "unreachable"
    assert world.state(request) == "partially_failed"


class Stuck(MemoryConnector):
    """A driver that breaks its promise: it never comes back."""

    def erase(self, *_: Any, **__: Any) -> Any:
        time.sleep(30)


def test_a_driver_that_never_returns_is_given_up_and_the_rest_is_done(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("erasure.dispatch._GRACE_SECONDS", 0.2)
    world.change(store_seconds=0.5)
    world.memory_store("stuck")
    world.keep_in_memory("stuck", "k", "Ada")
    world.note("n1", "Ada in the database")
    request = approved(world)
    connect = world.parts.connect

    def open_store(store: Any, read_only: bool) -> Connector:
        if store.name == "stuck" and not read_only:
            return Stuck(world.memory["stuck"], {})
        opened: Connector = connect(store, read_only)
        return opened

    world.change(connect=open_store)
    started = time.monotonic()
    world.work(1)
    assert time.monotonic() - started < 10
    found = by_store(world, request)
    assert found["db"].state == "erased_logical"
    assert (found["stuck"].state, found["stuck"].detail) == ("pending", "the store does not come back")
    assert gc.isenabled(), "a driver that is still stuck leaves the process without its collector"


def test_leaves_go_before_what_they_were_made_from_in_another_store(world: Any) -> None:
    order: list[str] = []
    connect = world.parts.connect

    def open_store(store: Any, read_only: bool) -> Connector:
        opened: Connector = connect(store, read_only)
        if not read_only:
            erase = opened.erase

            def noted(items: Any, **named: Any) -> Any:
                if store.name == "cvs":
                    time.sleep(0.5)
                order.append(store.name)
                return erase(items, **named)

            opened.erase = noted  # type: ignore[method-assign]  # watches the order of calls
        return opened

    root = world.note("n1", "Ada in the database")
    world.file("leaf.txt", "a summary of Ada", subjects=(), sources=[root])
    request = approved(world)
    world.change(connect=open_store)
    world.work()
    assert world.state(request) == "completed"
    assert order.index("cvs") < order.index("db")


@pytest.mark.scenario("D4")
def test_a_paused_request_stays_paused_whatever_comes_and_goes_on_when_resumed(world: Any) -> None:
    world.note("n1", "Ada in the database")
    request = approved(world)
    due = world.reader.get(world.acting(), request)["due_at"]
    world.desk.pause(world.acting("ann"), request, reason="clarification", now=world.now)
    world.memory_store("more")
    world.work(3)
    assert world.state(request) == "approved"
    assert by_store(world, request)["db"].state == "pending"
    view = world.reader.get(world.acting(), request)
    assert (view["paused"], view["due_at"]) == (True, due)
    world.desk.resume(world.acting("ann"), request, now=world.now)
    world.work()
    assert world.state(request) == "completed"


def test_one_copy_is_tried_again_and_the_others_stay_as_they_are(world: Any) -> None:
    for name in ("one", "two"):
        world.memory_store(name, Faults(refuses=frozenset({"k"})))
        world.keep_in_memory(name, "k", "Ada likes a long walk in the rain")
    request = approved(world)
    world.work()
    assert world.state(request) == "partially_failed"
    first, second = by_store(world, request)["one"], by_store(world, request)["two"]
    for name in ("one", "two"):
        world.faults[name] = Faults()
    world.desk.settle_copy(
        world.acting("ann"), request, first.copy_no, outcome="retry", comment="the store is back", now=world.now
    )
    world.work()
    assert by_store(world, request)["one"].state == "erased_physical"
    assert by_store(world, request)["two"].state == "failed"
    assert world.state(request) == "partially_failed"
    with pytest.raises(IllegalMove):
        world.desk.settle_copy(
            world.acting("ann"), request, first.copy_no, outcome="retry", comment="again", now=world.now
        )
    world.desk.settle_copy(
        world.acting("ann"), request, second.copy_no, outcome="retry", comment="now this", now=world.now
    )
    world.work()
    assert world.state(request) == "completed"
    lines = [line for line in world.reader.get(world.acting(), request)["history"] if line["event"] == "copy_retried"]
    # What was tried before is counted anew and not forgotten.
    tries = world.parts.max_attempts
    assert [(line["detail"]["copy"], line["detail"]["attempts"], line["detail"]["was"]) for line in lines] == [
        (first.copy_no, tries, "failed"), (second.copy_no, tries, "failed"),
    ]  # fmt: skip
    assert all(line["entry"] for line in lines)
    assert by_store(world, request)["one"].attempts == 1


def test_a_request_that_is_tried_again_remembers_how_often_it_was_tried(world: Any) -> None:
    for name in ("one", "two"):
        world.memory_store(name, Faults(refuses=frozenset({"k"})))
        world.keep_in_memory(name, "k", "Ada likes a long walk in the rain")
    request = approved(world)
    world.work()
    assert world.state(request) == "partially_failed"
    for name in ("one", "two"):
        world.faults[name] = Faults()
    world.desk.retry(world.acting("ann"), request, now=world.now)
    assert {by_store(world, request)[name].state for name in ("one", "two")} == {"pending"}
    world.work()
    assert world.state(request) == "completed"
    lines = [line for line in world.reader.get(world.acting(), request)["history"] if line["event"] == "retried"]
    broken = len(lines) and lines[0]["detail"]["copies"]
    assert broken >= 2
    assert lines[0]["detail"]["attempts"] >= 2 * world.parts.max_attempts


def test_each_step_has_its_own_instant_in_order(world: Any) -> None:
    from itertools import count

    seconds = count()
    start = world.now
    from datetime import timedelta

    world.change(clock=lambda: start + timedelta(seconds=next(seconds)))
    world.note("n1", "Ada in the database")
    world.say("I am Ada")
    request = approved(world)
    world.work()
    assert world.state(request) == "completed"
    for row in world.rows(request):
        assert row.started_at <= row.finished_at < row.verified_at
    import json

    body = json.loads(world.reader.certificate(world.acting(), request, None))["certificate"]
    assert all(copy["verified_at"] <= body["issued_at"] for copy in body["copies"])


class Killed(BaseException):
    """The process ends here."""


def break_off(world: Any, fails: dict[str, str], error: BaseException) -> None:
    """Let a call of some stores raise; `connect` is a secret that nobody can read any more."""
    connect = world.parts.connect

    def raises(*_: Any, **__: Any) -> Any:
        raise error

    def open_store(store: Any, read_only: bool) -> Connector:
        where = fails.get(store.name, "")
        if where == "connect":
            raise SecretRefused("env:GONE", "the variable is not set for the service")
        opened: Connector = connect(store, read_only)
        if where:
            setattr(opened, where, raises)
        return opened

    world.change(connect=open_store)


@pytest.mark.scenario("C7")
def test_whatever_a_driver_raises_costs_the_copies_of_its_store_and_nobody_elses(world: Any) -> None:
    # A secret that was removed ended the plan; an error that no driver should raise kept a request executing for ever.
    fails = {"unopened": "connect", "broken": "erase", "blind": "verify"}
    for name, where in fails.items():
        world.memory_store(name)
        world.keep_in_memory(name, "k", f"Ada in a store that fails to {where}")
    world.note("n1", "Ada in the database")
    break_off(world, fails, ValueError("a driver's own words"))
    request = approved(world)
    world.work()
    assert world.state(request) == "partially_failed"
    found = by_store(world, request)
    assert {name: found[name].state for name in (*fails, "db")} == {
        "unopened": "unreachable", "broken": "unreachable", "blind": "unreachable", "db": "erased_physical",
    }  # fmt: skip
    assert found["broken"].detail == "ValueError", "its kind, and none of its words"


@pytest.mark.scenario("D2")
def test_a_copy_at_which_every_worker_dies_is_given_up_and_the_rest_is_done(world: Any) -> None:
    world.memory_store("deadly")
    world.keep_in_memory("deadly", "k", "Ada where workers die")
    world.note("n1", "Ada in the database")
    request = approved(world)
    break_off(world, {"deadly": "erase"}, Killed())
    for _ in range(world.parts.max_attempts):
        with pytest.raises(Killed):
            world.work(1)
        assert by_store(world, request)["deadly"].state == "running"
        world.now += timedelta(minutes=1)
    world.work()
    found = by_store(world, request)
    assert (found["deadly"].state, found["db"].state) == ("unreachable", "erased_physical")
    assert world.state(request) == "partially_failed"


def test_a_full_disk_of_our_own_is_not_taken_for_a_store_that_is_down(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An OSError in a store's thread counted as the store's, and the work was told to go on without it."""
    world.note("n1", "Ada in the database")
    request = approved(world)
    real = Session.commit

    def commit(self: Session) -> None:
        with sqlite3.connect(world.database_file) as db:
            (left,) = db.execute("SELECT count(*) FROM note").fetchone()
        if threading.current_thread().name.startswith("erase db") and not left:
            raise OSError(errno.ENOSPC, "no space left on device")
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "commit", commit)
        with pytest.raises(OSError, match="no space left"):
            world.work(1)
    assert by_store(world, request)["db"].state == "running", "what the store did could not be written down"
    assert "work_failed" in [line["event"] for line in world.reader.get(world.acting(), request)["history"]]
    world.work()
    assert by_store(world, request)["db"].state == "already_absent"
    assert world.state(request) == "completed"
