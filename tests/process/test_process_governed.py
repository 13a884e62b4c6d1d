"""Threads that `govern` keeps and tells the service of by itself: used once, found, erased, gone."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from muniment.errors import ThreadErased
from muniment.integrations.langgraph import GovernedSaver, Registering, govern
from tests.connectors.contract import oracle
from tests.connectors.langgraph_beds import agent
from tests.forking import fork
from tests.process.conftest import wait_for
from tests.process.test_process_airline import erase
from tests.process.test_process_langgraph import SAID, as_class

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
SHAPES = ["one-file-a-thread", "sealed"]


class Agent:
    """An agent's saver over a folder that the service may erase in."""

    def __init__(self, desk: Any, storage: Any, base: Path) -> None:
        self.desk, self.storage, self.base, self.folder = desk, storage, base, base / "threads"
        base.mkdir(parents=True, exist_ok=True)

    def as_store(self) -> None:
        where = (
            {"folder": str(self.folder)}
            if self.storage == "one-file-a-thread"
            else {"url": f"sqlite:///{self.base}/agent.db", "keys": str(self.folder)}
        )
        spec = {"kind": "langgraph", "config": {**where, "owner_field": "user_id"}}
        self.desk.call("platform", "PUT", "/v1/stores/threads", spec)

    def registering(self, **more: Any) -> Registering:
        told = {"url": self.desk.running.url, "token": self.desk.tokens["writer"], "store": "threads"}
        return Registering(**{**told, "data_class": "agent_state", **more})

    @contextmanager
    def saver(self, **more: Any) -> Iterator[GovernedSaver]:
        with closing(sqlite3.connect(self.base / "agent.db", check_same_thread=False)) as connection:
            inner = None if self.storage == "one-file-a-thread" else SqliteSaver(connection)
            made = govern(inner, storage=self.storage, folder=self.folder, register=self.registering(**more))
            assert made.register is not None
            try:
                yield made
            finally:
                made.register.close(timeout=0)

    def copies(self, subject: str) -> list[dict[str, Any]]:
        page = self.desk.call("auditor", "POST", "/v1/subjects:copies", {"subjects": [subject]})
        return [each for each in page["items"] if each["status"] == "live"]


@pytest.fixture(params=SHAPES)
def run(request: pytest.FixtureRequest, desk: Any) -> Agent:
    as_class(desk)
    return Agent(desk, request.param, desk.running.settings.data.parent / "stores" / desk.tenant)


def say(saver: GovernedSaver, thread: str, text: str, who: str) -> Any:
    config: Any = {"configurable": {"thread_id": thread, "user_id": who}}
    return agent(saver).invoke({"messages": [HumanMessage(content=text)]}, config)


def told(saver: GovernedSaver) -> dict[str, Any]:
    assert saver.register is not None
    assert saver.register.flush(30) == 0, saver.register.stats()
    return saver.register.stats()


def test_a_thread_that_was_used_once_is_found_and_erased_with_its_key(run: Agent) -> None:
    with run.saver() as saver:
        say(saver, "first", "to make the tables", "bob")
        run.as_store()
        say(saver, "t-ada", SAID, "ada")
        assert told(saver)["errors"] in ({}, {"register.rejected.unknown-store": 1})
        [copy] = run.copies("user:ada")
        assert (copy["store"], copy["data_class"]) == ("threads", "agent_state")
        kept = saver._folder.path("t-ada", saver.end)
        assert "ada" not in kept.with_suffix(".told").read_text()

        done = erase(run.desk, "user:ada")

        assert (done["state"], done["counts"]["erased_physical"]) == ("completed", 1)
        assert [path.suffix for path in run.folder.glob(f"{kept.stem}.*")] == [".gone"]
        assert oracle([run.base], SAID) == 0
        assert run.copies("user:ada") == []
        with pytest.raises(ThreadErased):
            say(saver, "t-ada", "late", "ada")
        assert len(say(saver, "first", "and on", "bob")["messages"]) == 4
        assert len(run.copies("user:bob")) == 1


def in_a_child(work: Callable[[], None]) -> int:
    """Run this in a process of its own, for half a minute at most; return how it ended."""
    child = fork()
    if not child:
        try:
            signal.alarm(30)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_killed_before_the_service_heard_of_a_thread_the_next_process_tells_it(run: Agent) -> None:
    def use_it_once_and_die() -> None:
        with run.saver(url="http://127.0.0.1:9") as saver:
            say(saver, "t-ada", SAID, "ada")
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_child(use_it_once_and_die) == -signal.SIGKILL
    run.as_store()
    assert run.copies("user:ada") == []
    with run.saver() as saver:
        assert told(saver) == {"registered": 1, "pending": 0, "errors": {}}
        assert len(run.copies("user:ada")) == 1
    # Nothing is told twice, by no process that comes later.
    with run.saver() as saver:
        assert told(saver)["registered"] == 0


def test_a_service_that_refuses_or_is_away_stops_no_run_and_hears_of_it_later(run: Agent) -> None:
    with run.saver(url="http://127.0.0.1:9") as saver:
        started = time.monotonic()
        say(saver, "t-ada", SAID, "ada")
        assert time.monotonic() - started < 5
        assert saver.register is not None
        assert saver.register.flush(0.5) == 1
        assert saver.register.stats()["errors"].keys() == {"register.no_answer"}
    with run.saver(token="no-such-token") as saver:
        assert saver.register is not None
        wait_for(lambda: saver.register.stats()["errors"] == {"register.401": 1})  # type: ignore[union-attr] # above
        say(saver, "t-ada", "and on", "ada")
    with run.saver(retry_seconds=0.2) as saver:
        assert saver.register is not None
        wait_for(lambda: saver.register.stats()["errors"])  # type: ignore[union-attr] # above
        assert saver.register.stats()["errors"].keys() == {"register.rejected.unknown-store"}
        run.as_store()
        wait_for(lambda: run.copies("user:ada"))
        assert told(saver)["registered"] == 1


def test_somebody_else_who_speaks_in_a_thread_is_told_of_too(run: Agent) -> None:
    with run.saver() as saver:
        say(saver, "t", SAID, "ada")
        run.as_store()
        told(saver)
        say(saver, "t", "and me", "bob")
        say(saver, "t", "again", "bob")
        assert told(saver)["registered"] == 2
    assert [len(run.copies(who)) for who in ("user:ada", "user:bob")] == [1, 1]


def test_an_asynchronous_run_is_told_of_too(run: Agent) -> None:
    async def ask(inner: Any) -> None:
        saver = govern(inner, storage=run.storage, folder=run.folder, register=run.registering())
        assert saver.register is not None
        try:
            config: Any = {"configurable": {"thread_id": "t-ada", "user_id": "ada"}}
            await agent(saver).ainvoke({"messages": [HumanMessage(content=SAID)]}, config)
            assert (await asyncio.to_thread(told, saver))["registered"] == 1
        finally:
            saver.register.close(timeout=0)

    async def over_sqlite() -> None:
        if run.storage == "one-file-a-thread":
            await ask(None)
            return
        async with aiosqlite.connect(run.base / "agent.db") as connection:
            await ask(AsyncSqliteSaver(connection))

    run.as_store()
    asyncio.run(over_sqlite())
    assert len(run.copies("user:ada")) == 1


def test_a_forked_process_tells_of_its_own_threads(run: Agent) -> None:
    if run.storage == "sealed":
        pytest.skip("SQLite forbids one connection in two processes")
    with run.saver() as saver:
        say(saver, "t-ada", SAID, "ada")
        run.as_store()
        told(saver)

        def use_another() -> None:
            say(saver, "t-bob", SAID, "bob")
            told(saver)

        assert in_a_child(use_another) == 0
    assert [len(run.copies(who)) for who in ("user:ada", "user:bob")] == [1, 1]
