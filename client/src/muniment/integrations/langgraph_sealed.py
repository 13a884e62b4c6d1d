"""`storage="sealed"`: any saver, behind a seal under a key of the thread.

Guarantees: the inner saver sees ids, versions, names of channels and tasks, and nothing else that is not sealed; of the
metadata only what LangGraph itself writes. A value opens only in its place. A thread whose key was made before anything
of it was stored accepts no unsealed value. `copy_thread` and `delete_for_runs` are not offered: a copy would be under
another thread's key.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, get_checkpoint_metadata
from typing_extensions import override

from muniment.errors import KeyMissing, SealBroken, SubjectMissing, ThreadErased
from muniment.integrations.langgraph_saver import GovernedSaver, Whose, thread_of
from muniment.integrations.sealing import is_sealed, place_of, seal, unseal
from muniment.thread_folder import Key, ThreadFolder
from muniment.thread_register import Told

_OPEN = frozenset({"source", "step", "parents", "run_id", "counters_since_delta_snapshot"})
"""Members of the metadata that LangGraph itself writes and reads; none says what somebody said."""
_SEALED = "muniment_sealed"
_WAIT = 0.01
_MISSING = object()


class SealedSaver(GovernedSaver):
    """Seals before the inner saver stores, opens after it reads."""

    end = ".key"

    def __init__(self, inner: BaseCheckpointSaver[Any], folder: ThreadFolder, whose: Whose) -> None:
        super().__init__(folder, whose, serde=inner.serde)
        self._inner = inner

    @override
    def read_told(self, path: Path) -> Told | None:
        with self._folder.using_file(path):
            key = self._folder.key_at(path)
        return None if key is None else Told(key.thread, key.owners)

    def __getattr__(self, name: str) -> Any:
        """Return what only the inner saver has, such as `setup`."""
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)

    @property
    @override
    def config_specs(self) -> list[Any]:
        return list(self._inner.config_specs)

    @override
    def get_next_version(self, current: Any, channel: None) -> Any:
        return self._inner.get_next_version(current, channel)

    # What is stored

    def _key_for(self, config: Any) -> Key | None:
        """Return the key to write with, None where one has to be made. Raises: SubjectMissing, KeyMissing."""
        thread, owners = thread_of(config), self._whose.of(config)
        key = self._folder.key(thread)
        if key is not None:
            return self._folder.add_owners(thread, owners) if set(owners) - set(key.owners) else key
        if not owners:
            raise SubjectMissing(self._whose.where, "nobody is named")
        return None

    def _made(self, config: Any, *, is_new: bool) -> Key:
        return self._folder.make_key(thread_of(config), self._whose.of(config), from_the_start=is_new)

    def _sealed_checkpoint(self, key: Key, config: Any, checkpoint: Any, metadata: Any) -> tuple[Any, Any, Any]:
        """Return config, checkpoint and metadata as the inner saver may see them."""
        told = config["configurable"]
        space, versions = told.get("checkpoint_ns", ""), checkpoint["channel_versions"]
        values = {
            channel: None if value is None else self._seal(key, value, "value", space, channel, versions.get(channel))
            for channel, value in checkpoint["channel_values"].items()
        }
        every = get_checkpoint_metadata(config, metadata)
        kept = {name: value for name, value in every.items() if name in _OPEN}
        if rest := {name: value for name, value in every.items() if name not in _OPEN}:
            kept[_SEALED] = b64encode(self._seal(key, rest, "metadata", space, checkpoint["id"])).decode()
        return self._bare(config), {**checkpoint, "channel_values": values}, kept

    def _sealed_writes(self, key: Key, config: Any, writes: Sequence[tuple[str, Any]], task: str) -> list[Any]:
        told = config["configurable"]
        where = ("write", told.get("checkpoint_ns", ""), told["checkpoint_id"], task)
        return [(channel, self._seal(key, value, *where, channel)) for channel, value in writes]

    def _seal(self, key: Key, value: Any, *where: object) -> bytes:
        return seal(self.serde, key.key, value, place_of(key.thread, *where))

    @staticmethod
    def _bare(config: Any) -> Any:
        """Return the config with ids alone: savers copy everything else into the metadata."""
        told = config["configurable"]
        return {"configurable": {n: told[n] for n in ("thread_id", "checkpoint_ns", "checkpoint_id") if n in told}}

    # What is read

    def _opened(self, found: CheckpointTuple) -> CheckpointTuple:
        """Return what was sealed. Raises: KeyMissing, SealBroken."""
        told = found.config["configurable"]
        key = self._folder.key(thread_of(found.config))
        space, name = told.get("checkpoint_ns", ""), told["checkpoint_id"]
        versions = found.checkpoint["channel_versions"]
        values = {
            channel: self._open(key, value, "value", space, channel, versions.get(channel))
            for channel, value in found.checkpoint["channel_values"].items()
        }
        writes = [
            (task, channel, self._open(key, value, "write", space, name, task, channel))
            for task, channel, value in found.pending_writes or []
        ]
        metadata: Any = dict(found.metadata)
        if _SEALED in metadata:
            try:
                sealed = b64decode(metadata.pop(_SEALED), validate=True)
            except (ValueError, TypeError):
                raise SealBroken from None
            metadata |= self._open(key, sealed, "metadata", space, name)
        checkpoint: Any = {**found.checkpoint, "channel_values": values}
        return found._replace(checkpoint=checkpoint, metadata=metadata, pending_writes=writes)

    def _open(self, key: Key | None, value: Any, *where: object) -> Any:
        if value is None:
            return None
        if is_sealed(value):
            if key is None:
                raise KeyMissing
            return unseal(self.serde, key.key, value, place_of(key.thread, *where))
        if key is not None and key.from_the_start:
            raise SealBroken
        return value

    def _listed(self, found: list[CheckpointTuple], wanted: dict[str, Any], limit: int | None) -> list[CheckpointTuple]:
        """Open what was listed, but for threads that were erased, and choose by what was sealed."""
        opened = []
        for each in found:
            try:
                with self._folder.using(thread_of(each.config)):
                    one = self._opened(each)
            except ThreadErased:
                continue
            metadata: Any = one.metadata
            if all(metadata.get(name, _MISSING) == value for name, value in wanted.items()):
                opened.append(one)
        return opened[:limit]

    # As a saver has it

    @override
    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        with self._folder.using(thread_of(config)):
            found = self._inner.get_tuple(self._bare(config))
            return None if found is None else self._opened(found)

    @override
    def list(
        self, config: Any, *, filter: dict[str, Any] | None = None, before: Any = None, limit: int | None = None
    ) -> Iterator[CheckpointTuple]:
        plain, sealed = _split(filter)
        some = None if sealed else limit
        asked: Any = None if config is None else self._bare(config)
        yield from self._listed([*self._inner.list(asked, filter=plain, before=before, limit=some)], sealed, limit)

    @override
    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        with self._folder.using(thread_of(config)):
            key = self._key_for(config) or self._made(config, is_new=self._is_new(config))
            stored = self._inner.put(*self._sealed_checkpoint(key, config, checkpoint, metadata), new_versions)
        self._notice(config)
        return stored

    @override
    def put_writes(self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        with self._folder.using(thread_of(config)):
            key = self._key_for(config) or self._made(config, is_new=self._is_new(config))
            sealed = self._sealed_writes(key, config, writes, task_id)
            self._inner.put_writes(self._bare(config), sealed, task_id, task_path)
        self._notice(config)

    def _is_new(self, config: Any) -> bool:
        asked: Any = {"configurable": {"thread_id": thread_of(config)}}
        return next(iter(self._inner.list(asked, limit=1)), None) is None

    @override
    def delete_thread(self, thread_id: str) -> None:
        # Alone: what is written meanwhile would be sealed under the key that goes.
        with self._folder.using(thread_id, alone=True):
            self._folder.forget(thread_id)
            self._inner.delete_thread(thread_id)

    @override
    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        if strategy == "delete":
            for thread in thread_ids:
                self.delete_thread(thread)
            return
        # One at a time: an erasure that waits for one thread must not be waited for while another is held.
        for thread in thread_ids:
            with self._folder.using(thread):
                self._inner.prune([thread], strategy=strategy)

    # The same, for an inner saver that is asynchronous

    @asynccontextmanager
    async def _using(self, thread: str, *, alone: bool = False) -> AsyncIterator[None]:
        """Hold the thread without stopping the loop while it is erased. Raises: ThreadErased."""
        with ExitStack() as held:
            while True:
                try:
                    held.enter_context(self._folder.using(thread, wait=False, alone=alone))
                    break
                except BlockingIOError:
                    await asyncio.sleep(_WAIT)
            yield

    @override
    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        async with self._using(thread_of(config)):
            found = await self._inner.aget_tuple(self._bare(config))
            return None if found is None else self._opened(found)

    @override
    async def alist(
        self, config: Any, *, filter: dict[str, Any] | None = None, before: Any = None, limit: int | None = None
    ) -> AsyncIterator[CheckpointTuple]:
        plain, sealed = _split(filter)
        some = None if sealed else limit
        asked: Any = None if config is None else self._bare(config)
        found = [each async for each in self._inner.alist(asked, filter=plain, before=before, limit=some)]
        for each in await asyncio.to_thread(self._listed, found, sealed, limit):
            yield each

    @override
    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        async with self._using(thread_of(config)):
            key = self._key_for(config) or self._made(config, is_new=await self._ais_new(config))
            stored = await self._inner.aput(*self._sealed_checkpoint(key, config, checkpoint, metadata), new_versions)
        self._notice(config)
        return stored

    @override
    async def aput_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        async with self._using(thread_of(config)):
            key = self._key_for(config) or self._made(config, is_new=await self._ais_new(config))
            sealed = self._sealed_writes(key, config, writes, task_id)
            await self._inner.aput_writes(self._bare(config), sealed, task_id, task_path)
        self._notice(config)

    async def _ais_new(self, config: Any) -> bool:
        asked: Any = {"configurable": {"thread_id": thread_of(config)}}
        return not [each async for each in self._inner.alist(asked, limit=1)]

    @override
    async def adelete_thread(self, thread_id: str) -> None:
        async with self._using(thread_id, alone=True):
            self._folder.forget(thread_id)
            await self._inner.adelete_thread(thread_id)


def _split(wanted: dict[str, Any] | None) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return what the inner saver can choose by, and what only an opened value can answer."""
    plain = {name: value for name, value in (wanted or {}).items() if name in _OPEN}
    return plain or None, {name: value for name, value in (wanted or {}).items() if name not in _OPEN}
