"""Threads as `govern` keeps them: a file each, and sealed in one database. They stand beside the ten, in no score."""

from __future__ import annotations

import sqlite3
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

from typing_extensions import override

from bench.forget.bed import Person, Record, joint_text
from bench.forget.places import OWNER, Ground, Place, Store, parts_of
from bench.forget.places_rows import graph_of


class Governed(Place):
    """Every text, summary and answer a thread of its own; with `joint` one thread is a conversation of two people."""

    joint = True

    @abstractmethod
    def opened(self) -> AbstractContextManager[Any]:
        """The application's saver."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """How an eraser reaches the threads."""

    @override
    def fill(self, everybody: Sequence[Person]) -> None:
        from langchain_core.messages import HumanMessage

        with self.opened() as saver:
            graph = graph_of(saver)

            def say(thread: str, person: Person, text: str) -> None:
                config = {"configurable": {"thread_id": thread, OWNER: person.id}}
                graph.invoke({"messages": [HumanMessage(content=text)]}, config)

            for person in everybody:
                for role, name, text, origin in parts_of(person):
                    say(name, person, text)
                    self.add(role, name, [person], text, {"thread_id": name}, made_of=origin)
            if everybody and self.joint:
                text, _ = joint_text(self.ground.seed, self.name)
                name = f"{self.name}-joint"
                for person, words in zip(everybody[:2], (text, "indeed"), strict=True):
                    say(name, person, words)
                self.add("joint", name, everybody[:2], text, {"thread_id": name})
        self.stores = [Store(name=self.name, kind="langgraph", config={**self.config(), "owner_field": OWNER})]

    @override
    def read(self) -> dict[str, str]:
        from muniment.errors import ThreadErased

        found: dict[str, str] = {}
        with self.opened() as saver:
            for record in self.records:
                try:
                    held = saver.get_tuple({"configurable": {"thread_id": record.name}})
                except ThreadErased:
                    continue
                if held is not None:
                    found[record.name] = str(held.checkpoint["channel_values"]["messages"][0].content)
        return found

    @override
    def native_delete(self, records: Sequence[Record]) -> None:
        with self.opened() as saver:
            for record in records:
                saver.delete_thread(record.name)


class ThreadFiles(Governed):
    """`storage="one-file-a-thread"`."""

    name, title = "langgraph-files", "LangGraph, one file a thread"

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.threads = self.folder / "threads"
        self.scanned = [str(self.threads)]

    @override
    def config(self) -> dict[str, Any]:
        return {"folder": str(self.threads)}

    @override
    @contextmanager
    def opened(self) -> Iterator[Any]:
        from muniment.integrations.langgraph import govern

        yield govern(storage="one-file-a-thread", folder=self.threads, subject_from=f"configurable.{OWNER}")


class SealedThreads(Governed):
    """`storage="sealed"` over a SQLite file in WAL mode; what is found before is the name in the files of the keys."""

    name, title = "langgraph-sealed", "LangGraph, sealed in SQLite"
    joint = False  # so that the oracle looks for the name, the one thing that lies open

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.keys, self.path = self.folder / "keys", self.folder / "agent.db"
        self.scanned = [str(self.folder)]

    @override
    def config(self) -> dict[str, Any]:
        return {"url": f"sqlite:///{self.path}", "keys": str(self.keys)}

    @override
    @contextmanager
    def opened(self) -> Iterator[Any]:
        from langgraph.checkpoint.sqlite import SqliteSaver

        from muniment.integrations.langgraph import govern

        with closing(sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA secure_delete=OFF")
            saver = SqliteSaver(db)
            saver.setup()
            yield govern(saver, storage="sealed", folder=self.keys, subject_from=f"configurable.{OWNER}")
