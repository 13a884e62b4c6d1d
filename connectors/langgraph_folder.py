"""Kind `langgraph` with `folder`: threads of which each is a SQLite file of its own, as the SDK's `govern` keeps them.

Config: `{"folder": "/absolute/folder", "owner_field"?: member of the metadata}`. Locator: `{"thread_id": text}`.

Guarantees: erasing unlinks the thread's files while nobody uses it, after its own checkpoints were read for whose it
is; nothing of another thread is touched, so `reclaim` has nothing to do. From then on the saver refuses the thread, in
every process. A file that holds rows of another thread is left. L2 is shown by a scan of every file in the folder;
freed disk blocks and copies of the folder are L3 and `unknown`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from connectors import sqlite_file
from connectors.base import Deadline, FenceReport, Item, Level, Locator, Outcome, ReclaimReport, Selector
from connectors.errors import BadConfig, BadLocator, ReadOnlyConnector, StoreUnreachable
from connectors.one_by_one import OneByOne
from connectors.thread_folder import DATABASE, ThreadFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime
    from pathlib import Path

    from connectors.residue import Hits
    from connectors.sql_answers import Answer
    from connectors.sql_units import UnitConnector

_T = TypeVar("_T")
_FOREIGN = "SELECT count(*) FROM {table} WHERE thread_id <> ?"
_TABLES = ("checkpoints", "writes")
_CHECK_TABLES = (
    "CREATE TABLE writes (thread_id TEXT, type TEXT, value BLOB)",
    "CREATE TABLE checkpoints (thread_id TEXT, type TEXT, checkpoint BLOB, metadata BLOB)",
)


class ThreadFilesConnector(OneByOne):
    """Drives one folder; `open_file` gives the connector of one thread's database, read-only."""

    kind, method, freeing, fences = "langgraph", "unlink", "none: the files are gone", True
    locks = "the agent's runs of a thread while that thread is erased or its file is read"

    def __init__(
        self,
        folder: ThreadFolder,
        open_file: Callable[[Path], UnitConnector],
        *,
        owner_field: str | None,
        read_only: bool,
    ) -> None:
        super().__init__(owner_field=owner_field, read_only=read_only)
        self._folder = folder
        self._open_file = open_file
        self._freed = 0

    @override
    def place(self, locator: Locator) -> str:
        thread = locator.get("thread_id")
        if set(locator) != {"thread_id"} or not isinstance(thread, str) or not thread or "\0" in thread:
            raise BadLocator("a langgraph locator is {thread_id}, a text")
        self._folder.check()
        return thread

    @override
    def read(self, place: str, limit: Deadline) -> bytes | None:
        item = Item(copy_id="", locator={"thread_id": place})
        path = self._folder.path(place, DATABASE)
        return self._of_file(path, lambda one: dict(one.export([item], deadline=limit.left()))[""], limit)

    def _of_file(self, path: Path, what: Callable[[UnitConnector], _T], limit: Deadline) -> _T | None:
        """Return what a thread's own connector says; None of a file that is gone or in which nobody wrote yet."""
        with self._folder.alone([path], limit):
            if path.is_symlink() or not path.exists() or not path.stat().st_size:
                return None
            with self._open_file(path) as one:
                return what(one)

    @override
    def discover(self, selector: Selector, *, deadline: float) -> Iterator[dict[str, Any]]:
        limit = Deadline("discover", deadline)
        if self.owner_field is None:
            raise BadConfig("discover needs owner_field")
        for path in self._folder.files(DATABASE):
            found = self._of_file(path, lambda one: list(one.discover(selector, deadline=limit.left())), limit)
            yield from found or ()

    @override
    def locators(self, limit: Deadline) -> Iterator[dict[str, Any]]:
        for path in self._folder.files(DATABASE):
            yield from self._of_file(path, lambda one: list(one.walk(deadline=limit.left())), limit) or ()

    @override
    def capture(self, items: Sequence[Item], *, deadline: float) -> dict[str, list[bytes]]:
        limit = Deadline("capture", deadline)
        held: dict[str, list[bytes]] = {}
        own = []
        for item in items:
            path = self._folder.path(self.place(item.locator), DATABASE)
            own.append(path)
            try:
                held[item.copy_id] = self._of_file(path, _Capturing(item, limit), limit) or []
            except StoreUnreachable:
                held[item.copy_id] = []  # damaged: `erase` says so of this thread alone
        # What files of other threads hold too tells nobody apart.
        every = list(dict.fromkeys(canary for canaries in held.values() for canary in canaries))
        shared = {every[number] for number, _ in self._folder.scan(every, limit, without=own)} if every else set()
        apart = {name: [each for each in canaries if each not in shared] for name, canaries in held.items()}
        # Where everything is shared, another file is a copy of this one, and that is what has to be found.
        return {name: apart[name] or canaries for name, canaries in held.items()}

    @override
    def fence(self, scope: Locator) -> FenceReport:
        if self.read_only:
            raise ReadOnlyConnector("fence")
        thread = self.place(scope)
        with self._folder.alone([self._folder.path(thread, DATABASE)], Deadline("fence", 10)):
            self._folder.close(thread, sealed=False, keep=True)
        return FenceReport(held=True, detail="the agent's saver refuses the thread")

    @override
    def erase_one(self, item: Item, forms: frozenset[str], limit: Deadline) -> Answer:
        """1. keep everybody away; 2. read whose it is; 3. refuse it from now on; 4. unlink; 5. look again."""
        thread = self.place(item.locator)
        path = self._folder.path(thread, DATABASE)
        with self._folder.alone([path], limit):  # 1
            if not self._folder.has_files(thread):
                return Outcome.ALREADY_ABSENT, "no file of the thread"
            try:
                answer = self._judged(item, path, thread, forms, limit)  # 2
            except StoreUnreachable:
                return Outcome.FAILED, "the thread's file cannot be read, so nobody can say whose it is"
            if answer[0] is not Outcome.ERASED:
                return answer
            self._freed += self._folder.close(thread, sealed=False)  # 3, 4
            if self._folder.has_files(thread):  # 5
                return Outcome.FAILED, "a file of the thread is there again"
            return Outcome.ERASED, f"{answer[1]}; its files unlinked and looked for again"

    def _judged(self, item: Item, path: Path, thread: str, forms: frozenset[str], limit: Deadline) -> Answer:
        if (why := self._folder.elsewhere(thread)) is not None:
            return Outcome.FAILED, why
        if not path.exists() or not path.stat().st_size:
            return Outcome.ERASED, "nothing was ever written in its file"
        with sqlite_file.opened("langgraph", path, limit, write=False) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
            if not set(_TABLES) <= tables:
                return Outcome.FAILED, "the file is no database of a saver"
            if any(connection.execute(_FOREIGN.format(table=name), (thread,)).fetchone()[0] for name in _TABLES):
                return Outcome.FAILED, "the file holds rows of another thread"
        with self._open_file(path) as one:
            outcome, detail = one.judge(item, forms, limit)
        if outcome is Outcome.ALREADY_ABSENT:
            return Outcome.ERASED, "a file without rows"
        return outcome, detail.replace("deleted by name and read again", "read")

    @override
    def remove(self, place: str) -> None:
        """Take a scratch thread away, and the word that it was erased."""
        self._folder.forget(place)

    @override
    def reclaim(self, level: Level, *, now: datetime, deadline: float) -> ReclaimReport:
        self._folder.check()
        return replace(super().reclaim(level, now=now, deadline=deadline), freed_bytes=self._freed)

    @override
    def is_there(self, item: Item, limit: Deadline) -> bool:
        return self._folder.has_files(self.place(item.locator))

    @override
    def hits(self, canaries: Sequence[bytes], limit: Deadline) -> Hits:
        return self._folder.scan(canaries, limit)

    @override
    def write(self, name: str, canary: str, owner: str) -> Locator:
        path = self._folder.path(name, DATABASE)
        try:
            path.touch(mode=0o600, exist_ok=False)
        except OSError:
            raise StoreUnreachable("langgraph", "no file can be made in the folder of threads") from None
        document = json.dumps({self.owner_field or "owner": owner})
        with sqlite_file.opened("langgraph", path, Deadline("check", 10), write=True) as connection:
            for statement in _CHECK_TABLES:
                connection.execute(statement)
            connection.execute("INSERT INTO checkpoints VALUES (?, 'json', ?, ?)", (name, canary, document))
        return {"thread_id": name}

    @override
    def take_away(self, item: Item) -> None:
        self._folder.forget(self.place(item.locator))


class _Capturing:
    """Asks one item's connector what to look for later."""

    def __init__(self, item: Item, limit: Deadline) -> None:
        self._item, self._limit = item, limit

    def __call__(self, one: UnitConnector) -> list[bytes]:
        return one.capture([self._item], deadline=self._limit.left())[self._item.copy_id]
