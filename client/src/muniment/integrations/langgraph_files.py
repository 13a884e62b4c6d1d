"""`storage="one-file-a-thread"`: LangGraph's own SQLite saver, with a database file for each thread.

Guarantees: a file is open only within a call and under the thread's lock, so nothing of an erased thread is kept open
or written again; one call at a time, since SQLite refuses two that open a fresh file at once, whatever they would wait.
Costs the opening of a file for each call.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple, get_checkpoint_metadata
from langgraph.checkpoint.sqlite import SqliteSaver
from typing_extensions import override

from muniment.errors import KeyMissing, SubjectMissing, ThreadErased
from muniment.integrations.langgraph_saver import GovernedSaver, thread_of
from muniment.thread_register import Told

_WHOSE = """
SELECT DISTINCT thread_id, json_extract(CAST(metadata AS TEXT), ?) FROM checkpoints
WHERE json_valid(CAST(metadata AS TEXT))
"""


class ThreadFiles(GovernedSaver):
    """Each thread in a SQLite file of its own, opened for each call by LangGraph's own saver."""

    end = ".db"

    @override
    def read_told(self, path: Path) -> Told | None:
        member = f'$."{self._whose.member}"'
        with self._folder.using_file(path, alone=True):
            if not path.exists() or not path.stat().st_size:
                return None
            try:
                with closing(sqlite3.connect(path, timeout=30)) as connection:
                    rows = connection.execute(_WHOSE, (member,)).fetchall()
            except sqlite3.Error:
                raise KeyMissing from None
        named = {thread: None for thread, _ in rows if self._folder.path(thread, self.end) == path}
        owners = tuple(dict.fromkeys(str(who) for thread, who in rows if thread in named and who is not None))
        return Told(next(iter(named)), owners) if owners else None

    @contextmanager
    def _saver(self, path: Path) -> Iterator[SqliteSaver]:
        with closing(sqlite3.connect(path, check_same_thread=False, timeout=30)) as connection:
            yield SqliteSaver(connection, serde=self.serde)

    @contextmanager
    def _existing(self, thread: str) -> Iterator[SqliteSaver | None]:
        path = self._folder.path(thread, ".db")
        with self._folder.using(thread, alone=True):
            if not path.exists():
                yield None
                return
            with self._saver(path) as saver:
                yield saver

    @contextmanager
    def _writing(self, config: Any) -> Iterator[tuple[SqliteSaver, tuple[str, ...]]]:
        """Give the thread's saver and whom the config names. Raises: SubjectMissing, ThreadErased."""
        thread, owners = thread_of(config), self._whose.of(config)
        path = self._folder.path(thread, ".db")
        if len(owners) > 1:
            raise SubjectMissing(self._whose.where, "a file is one person's, and several are named")
        with self._folder.using(thread, alone=True):
            if not path.exists():
                if not owners:
                    raise SubjectMissing(self._whose.where, "nobody is named")
                path.touch(mode=0o600)
            with self._saver(path) as saver:
                yield saver, owners

    @override
    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        with self._existing(thread_of(config)) as saver:
            return None if saver is None else saver.get_tuple(config)

    @override
    def list(
        self, config: Any, *, filter: dict[str, Any] | None = None, before: Any = None, limit: int | None = None
    ) -> Iterator[CheckpointTuple]:
        # A thread is read whole before the first is given out, so that nobody waits for whoever stops in between.
        if config is not None and "thread_id" in config.get("configurable", {}):
            with self._existing(thread_of(config)) as saver:
                found = [] if saver is None else [*saver.list(config, filter=filter, before=before, limit=limit)]
        else:
            found = []
            for path in self._folder.threads(".db"):
                found += self._all(path, config, filter, before, limit)
            found.sort(key=lambda each: each.checkpoint["id"], reverse=True)
        yield from found[:limit]

    def _all(self, path: Path, *asked: Any) -> Sequence[CheckpointTuple]:
        """Return what one file holds; nothing where its thread was erased meanwhile."""
        config, wanted, before, limit = asked
        try:
            with self._folder.using_file(path, alone=True):
                if not path.exists():
                    return []
                with self._saver(path) as saver:
                    return [*saver.list(config, filter=wanted, before=before, limit=limit)]
        except ThreadErased:
            return []

    @override
    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        with self._writing(config) as (saver, owners):
            if owners and self._whose.member not in get_checkpoint_metadata(config, metadata):
                metadata = {**metadata, self._whose.member: owners[0]}
            stored = saver.put(config, checkpoint, metadata, new_versions)
        self._notice(config)  # checkpoints say whose the file is; of writes alone nobody could be told
        return stored

    @override
    def put_writes(self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        with self._writing(config) as (saver, _):
            saver.put_writes(config, writes, task_id, task_path)

    @override
    def delete_thread(self, thread_id: str) -> None:
        with self._folder.using(thread_id, alone=True):
            self._folder.forget(thread_id)

    @override
    def get_next_version(self, current: Any, channel: None) -> Any:
        return SqliteSaver.get_next_version(self, current, channel)  # type: ignore[arg-type] # it asks nothing of self

    @override
    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.get_tuple, config)

    @override
    async def alist(
        self, config: Any, *, filter: dict[str, Any] | None = None, before: Any = None, limit: int | None = None
    ) -> AsyncIterator[CheckpointTuple]:
        listed = self.list(config, filter=filter, before=before, limit=limit)
        for each in await asyncio.to_thread(list, listed):
            yield each

    @override
    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    @override
    async def aput_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    @override
    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.delete_thread, thread_id)
