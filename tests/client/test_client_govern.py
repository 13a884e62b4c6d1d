"""`govern`: LangGraph over one file a thread and over sealed values, as an application uses it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypedDict

import aiosqlite
import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

from muniment.context import subject
from muniment.errors import KeyMissing, SealBroken, SubjectMissing, ThreadErased, ThreadUnnamed
from muniment.integrations.langgraph import GovernedSaver, govern
from muniment.thread_folder import ThreadFolder

SAID = "I moved to 17 Blackthorn Row"


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def answer(state: State) -> dict[str, Any]:
    return {"messages": [AIMessage(content=f"noted, {len(state['messages'])}")]}


def ask(state: State) -> dict[str, Any]:
    return {"messages": [AIMessage(content=f"approved by {interrupt('may I?')}")]}


def app(saver: Any, step: Any = answer) -> Any:
    graph = StateGraph(State)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    return graph.compile(checkpointer=saver)


def config_of(thread: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, **more}}


def said(text: str) -> Any:
    return {"messages": [HumanMessage(content=text)]}


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "app.db", check_same_thread=False)) as made:
        yield made


@pytest.fixture(params=["one-file-a-thread", "sealed", "sealed in memory"])
def saver(request: pytest.FixtureRequest, tmp_path: Path, connection: sqlite3.Connection) -> GovernedSaver:
    if request.param == "one-file-a-thread":
        return govern(storage="one-file-a-thread", folder=tmp_path / "threads")
    inner: Any = SqliteSaver(connection) if request.param == "sealed" else InMemorySaver()
    return govern(inner, storage="sealed", folder=tmp_path / "keys")


def test_a_graph_goes_on_where_it_was_and_shows_its_history(saver: GovernedSaver) -> None:
    config = config_of("t", user_id="mia")
    for turn in range(3):
        app(saver).invoke(said(f"{SAID}, {turn}"), config)
    state = app(saver).get_state(config)
    assert [each.content for each in state.values["messages"]][::2] == [f"{SAID}, {turn}" for turn in range(3)]
    history = list(app(saver).get_state_history(config))
    assert len(history) == 9
    forked = app(saver).update_state(history[3].config, said("another way"))
    assert app(saver).get_state(forked).values["messages"][-1].content == "another way"
    assert app(saver).get_state(config_of("another")).values == {}


def test_an_interrupted_run_is_resumed(saver: GovernedSaver) -> None:
    config = config_of("t", user_id="mia")
    stopped = app(saver, ask).invoke(said(SAID), config)
    assert stopped["__interrupt__"][0].value == "may I?"
    done = app(saver, ask).invoke(Command(resume="Ben"), config)
    assert done["messages"][-1].content == "approved by Ben"


def test_threads_are_listed_by_what_the_metadata_says_sealed_or_not(saver: GovernedSaver) -> None:
    for name, who in (("a", "mia"), ("b", "ben"), ("c", "mia")):
        app(saver).invoke(said(SAID), config_of(name, user_id=who))
    found = list(saver.list(None, filter={"user_id": "mia"}))
    assert {each.config["configurable"]["thread_id"] for each in found} == {"a", "c"}
    assert len(found) == 6
    assert len(list(saver.list(None, filter={"user_id": "mia", "source": "input"}))) == 2
    assert len(list(saver.list(None, filter={"user_id": "mia"}, limit=2))) == 2
    assert len(list(saver.list(config_of("b"), limit=1))) == 1


def test_a_thread_begins_only_with_somebody_it_belongs_to(saver: GovernedSaver) -> None:
    with pytest.raises(SubjectMissing, match=r"configurable\.user_id"):
        app(saver).invoke(said(SAID), config_of("t"))
    assert list(saver.list(None)) == []
    with subject("user:mia"):
        app(saver).invoke(said(SAID), config_of("t"))
    app(saver).invoke(said("and on"), config_of("t"))
    assert len(list(saver.list(config_of("t")))) == 6


def test_whose_a_thread_is_may_come_from_a_path_or_a_function(tmp_path: Path) -> None:
    def of(config: Any) -> str | None:
        return str(config["metadata"]["account"]) if "account" in config.get("metadata", {}) else None

    places: tuple[Any, ...] = ("configurable.owner.id", of)
    for number, where in enumerate(places):
        saver = govern(storage="one-file-a-thread", folder=tmp_path / str(number), subject_from=where)
        config = {**config_of("t", owner={"id": "mia"}), "metadata": {"account": "mia"}}
        app(saver).invoke(said(SAID), config)
        member = "id" if number == 0 else "subject_from"
        (path,) = (tmp_path / str(number)).glob("*.db")
        with closing(sqlite3.connect(path)) as file:
            found = file.execute(f"SELECT json_extract(CAST(metadata AS TEXT), '$.{member}') FROM checkpoints")
            assert set(found) == {("mia",)}
    with pytest.raises(ValueError, match="subject_from"):
        govern(storage="one-file-a-thread", folder=tmp_path, subject_from="")


def test_a_file_is_one_persons_and_a_key_may_name_several(tmp_path: Path) -> None:
    with subject("user:mia", "user:ben"):
        with pytest.raises(SubjectMissing, match="several"):
            app(govern(storage="one-file-a-thread", folder=tmp_path / "f")).invoke(said(SAID), config_of("t"))
        app(govern(InMemorySaver(), storage="sealed", folder=tmp_path / "k")).invoke(said(SAID), config_of("t"))
    app(govern(InMemorySaver(), storage="sealed", folder=tmp_path / "k")).invoke(
        said(SAID), config_of("t", user_id="eva")
    )
    key = ThreadFolder(tmp_path / "k").key("t")
    assert key is not None
    assert key.owners == ("user:mia", "user:ben", "eva")


def test_nothing_that_was_said_lies_open_where_values_are_sealed(
    tmp_path: Path, connection: sqlite3.Connection
) -> None:
    saver = govern(SqliteSaver(connection), storage="sealed", folder=tmp_path / "keys")
    config: Any = {
        **config_of("t", user_id="mia", note="calls from 555-0142"),
        "metadata": {"mail": "mia.li@example.com"},
    }
    app(saver, ask).invoke(said(SAID), config)
    app(saver, ask).invoke(Command(resume="Benedict"), config)
    bytes_ = b"".join(path.read_bytes() for path in tmp_path.glob("app.db*"))
    for text in (SAID, "may I?", "Benedict", "555-0142", "mia.li", "mia", "user_id"):
        assert text.encode() not in bytes_
    newest = saver.get_tuple(config)
    assert newest is not None
    assert newest.metadata["mail"] == "mia.li@example.com"  # type: ignore[typeddict-item] # of the application
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "keys").glob("*.key")} == {0o600}


@pytest.mark.scenario("S7")
def test_an_altered_moved_or_unsealed_value_is_never_returned(tmp_path: Path, connection: sqlite3.Connection) -> None:
    saver = govern(SqliteSaver(connection), storage="sealed", folder=tmp_path / "keys")
    config = config_of("t", user_id="mia")
    app(saver).invoke(said(SAID), config)
    (good,) = connection.execute("SELECT value FROM writes WHERE channel = 'messages' ORDER BY rowid").fetchone()
    plain_kind, plain = saver.serde.dumps_typed([HumanMessage(content="forged")])
    for kind, value in (
        ("bytes", good[:-1] + bytes([good[-1] ^ 1])),
        ("bytes", good[:9] + bytes(16) + good[25:]),
        ("bytes", good[:20]),
        (plain_kind, plain),
    ):
        connection.execute("UPDATE writes SET type = ?, value = ? WHERE channel = 'messages'", (kind, value))
        with pytest.raises(SealBroken):
            list(saver.list(config))
    connection.execute("DELETE FROM writes")
    connection.execute("UPDATE checkpoints SET metadata = json_set(CAST(metadata AS TEXT), '$.muniment_sealed', '?')")
    with pytest.raises(SealBroken):
        saver.get_tuple(config)


@pytest.mark.scenario("S7")
@pytest.mark.parametrize(
    "move",
    [
        pytest.param("UPDATE writes SET value = {of} WHERE channel = 'messages' AND thread_id = 't'", id="thread"),
        pytest.param("UPDATE writes SET channel = 'x' WHERE channel = 'messages' AND thread_id = 't'", id="channel"),
        pytest.param("UPDATE writes SET task_id = 'x' || task_id WHERE thread_id = 't'", id="task"),
        pytest.param(
            "UPDATE OR REPLACE writes SET checkpoint_id = (SELECT max(checkpoint_id) FROM checkpoints"
            " WHERE thread_id = 't') WHERE thread_id = 't'",
            id="checkpoint",
        ),
        pytest.param(
            "UPDATE checkpoints SET metadata = (SELECT metadata FROM checkpoints AS c WHERE c.thread_id = 't'"
            " AND c.checkpoint_id <> checkpoints.checkpoint_id) WHERE thread_id = 't'",
            id="metadata of another checkpoint",
        ),
        pytest.param(
            "UPDATE checkpoints SET checkpoint = (SELECT c.checkpoint FROM checkpoints AS c WHERE c.thread_id = 'u'"
            " ORDER BY c.checkpoint_id DESC LIMIT 1) WHERE thread_id = 't'",
            id="checkpoint of another thread",
        ),
    ],
)
def test_a_row_that_was_moved_within_or_between_threads_fails_loudly(
    tmp_path: Path, connection: sqlite3.Connection, move: str
) -> None:
    saver = govern(SqliteSaver(connection), storage="sealed", folder=tmp_path / "keys")
    for name in ("t", "u"):
        app(saver).invoke(said(f"{SAID}, {name}"), config_of(name, user_id="mia"))
    other = "(SELECT w.value FROM writes AS w WHERE w.thread_id = 'u' AND w.channel = 'messages' LIMIT 1)"
    assert connection.execute(move.format(of=other)).rowcount > 0
    with pytest.raises(SealBroken):
        list(saver.list(config_of("t")))
    assert len(list(saver.list(config_of("u")))) == 3


def test_without_its_key_nothing_is_read_and_a_damaged_key_is_no_new_one(tmp_path: Path) -> None:
    inner = InMemorySaver()
    saver = govern(inner, storage="sealed", folder=tmp_path / "keys")
    config = config_of("t", user_id="mia")
    app(saver).invoke(said(SAID), config)
    (file,) = (tmp_path / "keys").glob("*.key")
    kept = file.read_bytes()
    file.write_bytes(kept[:-10])
    for attempt in (lambda: saver.get_tuple(config), lambda: app(saver).invoke(said(SAID), config)):
        with pytest.raises(KeyMissing):
            attempt()
    file.unlink()
    with pytest.raises(KeyMissing):
        saver.get_tuple(config)
    with pytest.raises(KeyMissing):
        list(saver.list(None))
    file.write_bytes(kept)
    assert saver.get_tuple(config) is not None
    # In another folder, which has another secret, the thread has no key either.
    with pytest.raises(KeyMissing):
        govern(inner, storage="sealed", folder=tmp_path / "other").get_tuple(config)
    (tmp_path / "keys" / "secret").write_bytes(b"short")
    with pytest.raises(KeyMissing):
        ThreadFolder(tmp_path / "keys")


def test_an_asynchronous_saver_is_sealed_as_well(tmp_path: Path) -> None:
    def stored() -> bytes:
        return b"".join(path.read_bytes() for path in tmp_path.glob("app.db*"))

    async def run() -> None:
        async with aiosqlite.connect(tmp_path / "app.db") as connection:
            saver = govern(AsyncSqliteSaver(connection), storage="sealed", folder=tmp_path / "keys")
            config = config_of("t", user_id="mia")
            for _ in range(2):
                await app(saver).ainvoke(said(SAID), config)
            state = await app(saver).aget_state(config)
            assert state.values["messages"][0].content == SAID
            assert len([each async for each in saver.alist(None, filter={"user_id": "mia"})]) == 6
            assert SAID.encode() not in stored()
            ThreadFolder(tmp_path / "keys").path("t", ".gone").touch()
            with pytest.raises(ThreadErased):
                await app(saver).ainvoke(said("late"), config)
            assert [each async for each in saver.alist(None)] == []
            await app(saver).ainvoke(said(SAID), config_of("u", user_id="mia"))
            await saver.adelete_thread("u")
            assert await saver.aget_tuple(config_of("u")) is None

    asyncio.run(run())


def test_one_file_a_thread_runs_under_asyncio(tmp_path: Path) -> None:
    saver = govern(storage="one-file-a-thread", folder=tmp_path / "threads")

    async def run() -> list[Any]:
        turns = [app(saver).ainvoke(said(SAID), config_of(f"t{n}", user_id="mia")) for n in range(4)]
        found = await asyncio.gather(*turns)
        await saver.adelete_thread("t0")
        assert len([each async for each in saver.alist(None)]) == 9
        return found

    assert [len(each["messages"]) for each in asyncio.run(run())] == [2] * 4


def test_writers_of_one_thread_at_once_lose_nothing(saver: GovernedSaver) -> None:
    faults: list[Exception] = []

    def write(number: int) -> None:
        try:
            app(saver).invoke(said(f"{SAID}, {number}"), config_of(f"t{number % 2}", user_id=f"u{number}"))
        except Exception as fault:  # noqa: BLE001 -- whatever it is, the test has to see it
            faults.append(fault)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert faults == []
    assert len(list(saver.list(None))) == 18


def test_writers_that_meet_a_thread_at_once_make_one_folder_and_one_key(tmp_path: Path) -> None:
    def make(number: int) -> bytes:
        return ThreadFolder(tmp_path / "keys").make_key("t", (f"u{number}",), from_the_start=True).key

    # Each opens its own handles, which is what tells writers apart for flock: threads meet as processes do.
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(make, range(8)))
    assert len(keys) == 1
    key = ThreadFolder(tmp_path / "keys").key("t")
    assert key is not None
    assert sorted(key.owners) == [f"u{number}" for number in range(8)]
    assert not list((tmp_path / "keys").glob("*.new"))


@pytest.mark.parametrize("name", ["", "a\0b", "half \ud83d"])
def test_a_thread_that_nobody_could_ask_to_erase_does_not_begin(saver: GovernedSaver, name: str) -> None:
    with pytest.raises(ThreadUnnamed):
        app(saver).invoke(said(SAID), config_of(name, user_id="mia"))
    assert list(saver.list(None)) == []


def test_a_thread_is_deleted_only_while_nobody_writes_in_it(saver: GovernedSaver) -> None:
    """Else what is written meanwhile lies under a key that is gone, and the thread can neither be read nor go on."""
    app(saver).invoke(said(SAID), config_of("t", user_id="mia"))
    deleting = threading.Thread(target=saver.delete_thread, args=("t",))
    with saver._folder.using("t"):
        deleting.start()
        deleting.join(0.1)
        assert deleting.is_alive()
        assert saver._folder.path("t", saver.end).exists()
    deleting.join(10)
    assert not deleting.is_alive()
    assert saver.get_tuple(config_of("t")) is None
    assert len(app(saver).invoke(said(SAID), config_of("t", user_id="mia"))["messages"]) == 2


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    wrong: Any = "plain"
    with pytest.raises(ValueError, match="give it no checkpointer"):
        govern(InMemorySaver(), storage="one-file-a-thread", folder=tmp_path)
    with pytest.raises(ValueError, match="give it one"):
        govern(storage="sealed", folder=tmp_path)
    with pytest.raises(ValueError, match="storage is"):
        govern(InMemorySaver(), storage=wrong, folder=tmp_path)
    with pytest.raises(NotImplementedError):
        govern(InMemorySaver(), storage="sealed", folder=tmp_path).copy_thread("a", "b")
