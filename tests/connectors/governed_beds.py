"""Threads as `govern` keeps them, as beds of the contract: one file a thread, and sealed over both savers."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver

from connectors.base import Connector, open_connector
from muniment.errors import ThreadErased
from muniment.integrations.langgraph import GovernedSaver, govern
from muniment.thread_folder import ThreadFolder
from tests.connectors.beds import oracle, shut_out
from tests.connectors.langgraph_beds import Database, Files, ThreadBed


def in_use(folder: Path, thread: str) -> Callable[[], None]:
    """Hold a thread as an agent in the middle of a call does; return what lets it go."""
    path = ThreadFolder(folder).path(thread, ".gone")
    stream = (folder / "locks" / path.name[:2]).open("a")
    fcntl.flock(stream, fcntl.LOCK_SH)
    return stream.close


class Governed(ThreadBed):
    keys: Path
    """The folder of the threads or of their keys."""

    def path(self, name: str, end: str) -> Path:
        """Return where a file of a thread lies."""
        assert isinstance(self.saver, GovernedSaver)
        return self.saver._folder.path(name, end)

    def whole(self, name: str) -> object:
        try:
            return super().whole(name)
        except ThreadErased:
            return None

    def other_name(self, file: Path) -> Callable[[], None]:
        """Give a file another name elsewhere: unlinking the one would leave what is under the other."""
        other = self.keys.parent / "elsewhere"
        os.link(file, other)
        return other.unlink

    def folder(self) -> Path:
        return self.keys

    def stranger(self) -> AbstractContextManager[str]:
        return shut_out(self.keys, self.source())

    def get(self, name: str) -> str | None:
        try:
            return super().get(name)
        except ThreadErased:
            return None


class OneFileAThread(Governed):
    def __init__(self, folder: Path) -> None:
        self.keys = folder / "threads"
        self.url = ""
        self.saver = govern(storage="one-file-a-thread", folder=self.keys)

    def refuse(self, name: str) -> Callable[[], None]:
        return self.other_name(self.path(name, ".db"))

    def restart(self) -> None:
        self.saver = govern(storage="one-file-a-thread", folder=self.keys)

    def config(self, **more: Any) -> dict[str, Any]:
        return {"folder": str(self.keys), **more}

    def run(self, statement: str, *values: object) -> list[Any]:
        """Ask every file."""
        found: list[Any] = []
        for path in sorted(self.keys.glob("*.db")):
            with closing(sqlite3.connect(path)) as connection:
                found += connection.execute(statement, values).fetchall()
        return found

    def hits(self, canary: str) -> int:
        return oracle([self.keys], canary)

    def hit_bytes_remain_after_own_delete(self) -> bool:
        return False

    def block(self) -> Callable[[], None]:
        return in_use(self.keys, "mia-0")

    def wrong(self) -> Connector:
        (self.keys.parent / "other").mkdir()
        config = {"folder": str(self.keys.parent / "other"), "owner_field": "user_id"}
        return open_connector(self.kind, config, secrets=str)

    def close(self) -> None:
        """Nothing is open between calls."""


class Sealed(Governed):
    def refuse(self, name: str) -> Callable[[], None]:
        return self.other_name(self.path(name, ".key"))

    def config(self, **more: Any) -> dict[str, Any]:
        return {"url": self.url, "keys": str(self.keys), **more}

    def block(self) -> Callable[[], None]:
        return in_use(self.keys, "mia-0")

    def hit_bytes_remain_after_own_delete(self) -> bool:
        return False

    def wrong(self) -> Connector:
        (self.keys.parent / "other").mkdir()
        config = self.config(keys=str(self.keys.parent / "other"), owner_field="user_id")
        return open_connector(self.kind, config, secrets=str)

    def seal(self, inner: BaseCheckpointSaver[Any], folder: Path) -> None:
        self.keys = folder / "keys"
        self.inner = inner
        self.saver = govern(inner, storage="sealed", folder=self.keys)


class SealedSqlite(Sealed):
    def __init__(self, folder: Path) -> None:
        self.files = Files(folder)
        self.url, self.run = self.files.url, self.files.run
        self.seal(SqliteSaver(self.files.connection), folder)
        self.inner.setup()  # type: ignore[attr-defined] # SqliteSaver has it

    def restart(self) -> None:
        self.seal(SqliteSaver(self.files.reopen()), self.keys.parent)

    def hits(self, canary: str) -> int:
        return self.files.found_by_oracle(canary) + oracle([self.keys], canary)

    def close(self) -> None:
        self.files.connection.close()


class SealedPostgres(Sealed):
    serves = True

    def __init__(self, server: Any, folder: Path) -> None:
        self.database = Database(server)
        self.url, self.run = self.database.url, self.database.run
        self.seal(PostgresSaver(self.database.connection), folder)
        self.inner.setup()  # type: ignore[attr-defined] # PostgresSaver has it

    def restart(self) -> None:
        self.seal(PostgresSaver(self.database.reopen()), self.keys.parent)

    def hits(self, canary: str) -> int:
        return self.database.hits(canary.encode()) + oracle([self.keys], canary)

    def close(self) -> None:
        self.database.close()
