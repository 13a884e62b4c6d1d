"""Kind `langgraph` with `folder`: threads of which each is a SQLite file of its own, as the SDK's `govern` keeps them.

Config: `{"folder": "/absolute/folder", "owner_field"?: member of the metadata}`. Locator: `{"thread_id": text}`.

Guarantees: erasing unlinks the thread's files while nobody uses it, after its own checkpoints were read for whose it
is; nothing of another thread is touched, so `reclaim` has nothing to do. From then on the saver refuses the thread, in
every process. A file that holds rows of another thread is left. L2 is shown by a scan of every file in the folder;
freed disk blocks and copies of the folder are L3 and `unknown`.
"""

from __future__ import annotations

import json
import secrets
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from connectors import sqlite_file
from connectors.base import (
    Capabilities,
    CheckReport,
    Connector,
    Deadline,
    FenceReport,
    Finding,
    Item,
    Level,
    Locator,
    Outcome,
    Receipt,
    ReclaimReport,
    Residue,
    Selector,
    owner_forms,
)
from connectors.checking import check_report, try_out
from connectors.errors import BadConfig, BadLocator, ConnectorError, ReadOnlyConnector, StoreUnreachable, Timeout
from connectors.thread_folder import DATABASE, ThreadFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime
    from pathlib import Path

    from connectors.sql_answers import Answer
    from connectors.sql_units import UnitConnector

_T = TypeVar("_T")
BATCH = 100
_FOREIGN = "SELECT count(*) FROM {table} WHERE thread_id <> ?"
_TABLES = ("checkpoints", "writes")
_CHECK_TABLES = (
    "CREATE TABLE writes (thread_id TEXT, type TEXT, value BLOB)",
    "CREATE TABLE checkpoints (thread_id TEXT, type TEXT, checkpoint BLOB, metadata BLOB)",
)


class ThreadFilesConnector(Connector):
    """Drives one folder; `open_file` gives the connector of one thread's database, read-only."""

    def __init__(
        self,
        folder: ThreadFolder,
        open_file: Callable[[Path], UnitConnector],
        *,
        owner_field: str | None,
        read_only: bool,
    ) -> None:
        self._folder = folder
        self._open_file = open_file
        self._owner_field = owner_field
        self._read_only = read_only
        self._freed = 0

    @override
    def capabilities(self) -> Capabilities:
        return Capabilities(
            kind="langgraph",
            erase_level=Level.L1,
            reclaim_level=Level.L2,
            verify_level=Level.L2,
            batch_size=BATCH,
            locks="the agent's runs of a thread while that thread is erased or its file is read",
            fence=True,
            search=False,
            owner_check=self._owner_field is not None,
            discover=self._owner_field is not None,
            read_only=self._read_only,
        )

    @override
    def check_locator(self, locator: Locator) -> None:
        _thread(locator)
        self._folder.check()

    @override
    def discover(self, selector: Selector, *, deadline: float) -> Iterator[dict[str, Any]]:
        limit = Deadline("discover", deadline)
        if self._owner_field is None:
            raise BadConfig("discover needs owner_field")
        for path in self._folder.files(DATABASE):
            with self._folder.alone([path], limit):
                found = self._read(path, lambda one: list(one.discover(selector, deadline=limit.left())))
            yield from found or ()

    @override
    def walk(self, *, deadline: float) -> Iterator[dict[str, Any]]:
        limit = Deadline("walk", deadline)
        for path in self._folder.files(DATABASE):
            with self._folder.alone([path], limit):
                found = self._read(path, lambda one: list(one.walk(deadline=limit.left())))
            yield from found or ()

    def _read(self, path: Path, what: Callable[[UnitConnector], _T]) -> _T | None:
        """Return what a thread's own connector says; None of a file that is gone or in which nobody wrote yet."""
        if path.is_symlink() or not path.exists() or not path.stat().st_size:
            return None
        with self._open_file(path) as one:
            return what(one)

    @override
    def capture(self, items: Sequence[Item], *, deadline: float) -> dict[str, list[bytes]]:
        limit = Deadline("capture", deadline)
        held: dict[str, list[bytes]] = {}
        own = []
        for item in items:
            path = self._folder.path(_thread(item.locator), DATABASE)
            own.append(path)
            with self._folder.alone([path], limit):
                held[item.copy_id] = self._read(path, partial(_captured, item=item, limit=limit)) or []
        # What files of other threads hold too tells nobody apart.
        every = list(dict.fromkeys(canary for canaries in held.values() for canary in canaries))
        shared = {every[number] for number, _ in self._folder.scan(every, limit, without=own)} if every else set()
        return {name: [each for each in canaries if each not in shared] for name, canaries in held.items()}

    @override
    def export(self, items: Sequence[Item], *, deadline: float) -> Iterator[tuple[str, bytes | None]]:
        limit = Deadline("export", deadline)
        for item in items:
            path = self._folder.path(_thread(item.locator), DATABASE)
            with self._folder.alone([path], limit):
                content = self._read(path, partial(_exported, item=item, limit=limit))
            yield item.copy_id, content

    @override
    def fence(self, scope: Locator) -> FenceReport:
        if self._read_only:
            raise ReadOnlyConnector("fence")
        thread = _thread(scope)
        with self._folder.alone([self._folder.path(thread, DATABASE)], Deadline("fence", 10)):
            self._folder.close(thread, sealed=False, keep=True)
        return FenceReport(held=True, detail="the agent's saver refuses the thread")

    @override
    def erase(
        self, items: Sequence[Item], *, owner_identifiers: Sequence[str], now: datetime, deadline: float
    ) -> list[Receipt]:
        if self._read_only:
            raise ReadOnlyConnector("erase")
        limit = Deadline("erase", deadline)
        forms = owner_forms(owner_identifiers)
        self._folder.check()
        receipts = []
        for item in items:
            outcome, detail = self._erase(item, forms, limit)
            reached = Level.L1 if outcome in {Outcome.ERASED, Outcome.ALREADY_ABSENT} else None
            at = now + timedelta(seconds=limit.spent())
            receipts.append(
                Receipt(copy_id=item.copy_id, outcome=outcome, level=reached, method="unlink", detail=detail, at=at)
            )
        return receipts

    def _erase(self, item: Item, forms: frozenset[str], limit: Deadline) -> Answer:
        """1. keep everybody away; 2. read whose it is; 3. refuse it from now on; 4. unlink; 5. look again."""
        try:
            thread = _thread(item.locator)
            path = self._folder.path(thread, DATABASE)
            with self._folder.alone([path], limit):  # 1
                if not self._folder.has_files(thread):
                    return Outcome.ALREADY_ABSENT, "no file of the thread"
                answer = self._judged(item, path, thread, forms, limit)  # 2
                if answer[0] is not Outcome.ERASED:
                    return answer
                self._freed += self._folder.close(thread, sealed=False)  # 3, 4
                if self._folder.has_files(thread):  # 5
                    return Outcome.FAILED, "a file of the thread is there again"
                return Outcome.ERASED, f"{answer[1]}; its files unlinked and looked for again"
        except BadLocator as bad:
            return Outcome.FAILED, bad.detail
        except Timeout:
            return Outcome.FAILED, "the thread was in use until the deadline"
        except OSError:
            return Outcome.FAILED, "its files could not be unlinked"

    def _judged(self, item: Item, path: Path, thread: str, forms: frozenset[str], limit: Deadline) -> Answer:
        if path.is_symlink():
            return Outcome.FAILED, "the file is a symbolic link"
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
    def await_done(self, *, deadline: float) -> bool:
        return True

    @override
    def reclaim(self, level: Level, *, now: datetime, deadline: float) -> ReclaimReport:
        if self._read_only:
            raise ReadOnlyConnector("reclaim")
        self._folder.check()
        return ReclaimReport(
            level=min(level, Level.L2),
            residual_until="unknown",
            detail="files of other threads were not touched; freed disk blocks and copies were not looked at",
            method="none: the files are gone",
            freed_bytes=self._freed,
        )

    @override
    def verify(
        self, items: Sequence[Item], level: Level, *, deadline: float, reclaimed: ReclaimReport | None = None
    ) -> list[Finding]:
        limit = Deadline("verify", deadline)
        findings = [self._by_name(item) for item in items]
        absent = [item for item, each in zip(items, findings, strict=True) if each.present is False]
        pairs = [(item.copy_id, canary) for item in absent for canary in item.canaries] if level >= Level.L2 else []
        hits = self._folder.scan([canary for _, canary in pairs], limit) if pairs else {}
        dirty = {pairs[number][0] for number, _ in hits}
        return [
            each if level <= Level.L1 or each.present is not False else self._in_files(each, level, dirty)
            for each in findings
        ]

    def _by_name(self, item: Item) -> Finding:
        how = "files of the thread looked for by name"
        try:
            if self._folder.has_files(_thread(item.locator)):
                return Finding(copy_id=item.copy_id, level=None, present=True, how=how)
        except BadLocator as bad:
            return Finding(copy_id=item.copy_id, level=None, present=None, how="none", could_not_check=bad.detail)
        return Finding(copy_id=item.copy_id, level=Level.L1, present=False, how=how)

    @staticmethod
    def _in_files(found: Finding, level: Level, dirty: set[str]) -> Finding:
        how = f"{found.how}; byte scan of every file in the folder"
        if found.copy_id in dirty:
            return Finding(copy_id=found.copy_id, level=Level.L1, present=True, how=how)
        if level is Level.L3:
            why = "disk blocks and copies of the folder cannot be read here"
            return Finding(copy_id=found.copy_id, level=Level.L2, present=None, how=how, could_not_check=why)
        return Finding(copy_id=found.copy_id, level=Level.L2, present=False, how=how)

    @override
    def residue(self, canaries: Sequence[bytes], *, deadline: float) -> list[Residue]:
        hits = self._folder.scan(canaries, Deadline("residue", deadline)) if canaries else {}
        return [
            Residue(where="files of threads", count=count, encoding=form, canary=number)
            for (number, form), count in hits.items()
        ]

    @override
    def check(self, *, now: datetime, deadline: float) -> CheckReport:
        limit = Deadline("check", deadline)
        thread, canary = f"muniment-check-{secrets.token_hex(8)}", f"muniment canary {secrets.token_hex(16)}"
        item = Item(copy_id="check", locator={"thread_id": thread}, canaries=(canary.encode(),))
        try:
            path = self._folder.path(thread, DATABASE)
            self._write_canary(path, thread, canary, limit)
            return try_out(self, item, limit, now)
        except ConnectorError as problem:
            reachable = not isinstance(problem, StoreUnreachable | Timeout)
            return check_report(limit, now, reachable=reachable, problems=[str(problem)])
        finally:
            self._take_away(thread)

    def _write_canary(self, path: Path, thread: str, canary: str, limit: Deadline) -> None:
        try:
            path.touch(mode=0o600, exist_ok=False)
        except OSError:
            raise StoreUnreachable("langgraph", "no file can be made in the folder of threads") from None
        owner = json.dumps({self._owner_field or "owner": "check:self"})
        with sqlite_file.opened("langgraph", path, limit, write=True) as connection:
            for statement in _CHECK_TABLES:
                connection.execute(statement)
            connection.execute("INSERT INTO checkpoints VALUES (?, 'json', ?, ?)", (thread, canary, owner))

    def _take_away(self, thread: str) -> None:
        """Remove the scratch thread, and the word that it was erased."""
        try:
            self._folder.forget(thread)
        except (ConnectorError, OSError):
            return

    @override
    def close(self) -> None:
        """Nothing is held open between calls."""


def _thread(locator: Locator) -> str:
    """Return the thread of a locator. Raises: BadLocator."""
    thread = locator.get("thread_id")
    if set(locator) != {"thread_id"} or not isinstance(thread, str) or not thread or "\0" in thread:
        raise BadLocator("a langgraph locator is {thread_id}, a text")
    return thread


def _captured(one: UnitConnector, *, item: Item, limit: Deadline) -> list[bytes]:
    return one.capture([item], deadline=limit.left())[item.copy_id]


def _exported(one: UnitConnector, *, item: Item, limit: Deadline) -> bytes | None:
    return dict(one.export([item], deadline=limit.left()))[item.copy_id]
