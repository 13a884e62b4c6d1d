"""Tells the service of each thread that `govern` keeps, so that a request for erasure finds it.

A background thread registers a thread, by store and `{"thread_id"}`, when it is first written, and again when somebody
else speaks in it. There is no queue to lose: a thread without `NAME.told` beside its file or key is still to be told,
and is found again by the next process that opens the folder, however this one ended.

Guarantees: never blocks and never raises into a run; what goes wrong is counted, the first of each kind logged without
content, and tried again. A thread is marked as told only after the service answered for it, and not once it was erased.
Registering again is harmless. Does not tell of the end of a thread that its application deleted; an erasure finds it
absent. Until told, a thread is in no plan that was made before; the store's own search (`owner_field`) may find it.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from muniment.delivery import backoff_seconds, problem_type
from muniment.errors import ApiProblem, GovernError, TransportError
from muniment.registry import Client, derive
from muniment.shapes import is_subject
from muniment.shipper import OncePerKind
from muniment.thread_folder import TOLD, ThreadFolder

_BATCH = 500
_SEEN = 100_000
"""Threads that a process remembers to have noticed; past that it looks at their marks again."""
_BATCH_AT_FAULT = frozenset({400, 413, 422})
_KNOWN = frozenset({"created", "exists", "changed", "erased", "review"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Registering:
    """Where and as what threads are registered, under a writer's token that carries the store and the class.

    Whoever is named without a type (`user_18`) becomes a subject of `subject_type`; `type:value` is taken as it is.
    """

    url: str
    token: str = field(repr=False)
    store: str
    data_class: str
    subject_type: str = "user"
    retry_seconds: float = 30.0
    """Seconds before what was rejected is tried again: its store or class may have been made meanwhile."""
    timeout_seconds: float = 10.0


class Told(NamedTuple):
    """A thread and everybody it names."""

    thread: str
    owners: tuple[str, ...]


class ThreadRegister:
    """Tells one service of the threads of one folder; shared by all threads of a process."""

    def __init__(
        self, folder: ThreadFolder, end: str, settings: Registering, read: Callable[[Path], Told | None]
    ) -> None:
        """Take the folder, the end of its files' names, and what reads whose a file is, None for nobody's yet.

        Raises: BadAddress, BadToken.
        """
        self._folder, self._end, self._settings, self._read = folder, end, settings, read
        self._faults = OncePerKind()
        self._registered = 0
        self._prepare()
        self._is_busy = True
        self._start(walks=True)
        _live.add(self)

    def _prepare(self) -> None:
        settings = self._settings
        self._client = Client(settings.url, settings.token, timeout=settings.timeout_seconds)
        self._changed = threading.Condition()
        self._pending: dict[Path, None] = {}
        self._seen: set[tuple[str, tuple[str, ...]]] = set()
        self._is_busy = self._is_closed = self._is_urgent = False
        self._failures, self._due = 0, 0.0
        self._worker: threading.Thread | None = None

    def _start(self, *, walks: bool) -> None:
        self._worker = threading.Thread(target=self._work, args=(walks,), name="muniment-threads", daemon=True)
        self._worker.start()

    # In the run's path

    def notice(self, thread: str, owners: tuple[str, ...]) -> None:
        """Note that a thread was written; microseconds, no file, no network, no exception."""
        try:
            if (thread, owners) in self._seen:
                return
            with self._changed:
                if len(self._seen) >= _SEEN:
                    self._seen.clear()
                self._seen.add((thread, owners))
                self._pending[self._folder.path(thread, self._end)] = None
                if self._worker is None:
                    self._start(walks=False)
                self._changed.notify_all()
        except Exception as fault:
            self._faults.note(f"register.{type(fault).__name__}", "a thread could not be noted for registration")

    # In the background

    def _work(self, walks: bool) -> None:  # noqa: FBT001 -- the argument of a thread
        if walks:
            self._guarded(self._find_untold)
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                while not self._is_closed and (not self._pending or self._due > time.monotonic()):
                    self._changed.wait(max(0.0, self._due - time.monotonic()) if self._pending else None)
                if self._is_closed:
                    self._client.close()
                    return
                batch = list(islice(self._pending, _BATCH))
                for path in batch:
                    del self._pending[path]
                self._is_busy, self._is_urgent = True, False
            left = self._guarded(partial(self._tell, batch), batch)
            with self._changed:
                self._pending |= dict.fromkeys(left)
                if self._is_urgent:
                    self._due = 0.0

    def _guarded(self, work: Callable[[], Sequence[Path]], otherwise: Sequence[Path] = ()) -> Sequence[Path]:
        """Return what is left to do; what nobody foresaw is counted, and all of it done again later."""
        try:
            return work()
        except Exception as fault:
            self._faults.note(f"register.{type(fault).__name__}", "threads could not be registered; tried again")
            self._put_off(None)
            return otherwise

    def _find_untold(self) -> Sequence[Path]:
        """Note every thread of the folder that the service does not know as it is."""
        for path in self._folder.threads(self._end):
            mark = self._folder.told(path)
            is_changed = self._end == ".key" and mark is not None and _changed_after(path, path.with_suffix(TOLD))
            if mark is None or is_changed or not mark.startswith(self._whereto()):
                with self._changed:
                    self._pending[path] = None
        return ()

    def _tell(self, paths: Sequence[Path]) -> Sequence[Path]:
        """Register what is not yet known; return what has to be tried again."""
        asked: list[tuple[Path, str, dict[str, Any]]] = []
        for path in paths:
            found = self._whose(path)
            if found is not None and found.owners and (mark := self._mark(found)) != self._folder.told(path):
                asked.append((path, mark, self._artifact(found)))
        return self._send(asked)

    def _send(self, asked: Sequence[tuple[Path, str, dict[str, Any]]]) -> Sequence[Path]:
        if not asked:
            return ()
        try:
            results = self._client.artifacts([artifact for _, _, artifact in asked])
        except TransportError:
            self._faults.note("register.no_answer", "the service does not answer; threads are registered later")
            self._put_off(None)
            return [path for path, _, _ in asked]
        except ApiProblem as problem:
            if problem.status in _BATCH_AT_FAULT and len(asked) > 1:
                middle = len(asked) // 2
                return [*self._send(asked[:middle]), *self._send(asked[middle:])]
            self._faults.note(f"register.{problem.status}", "the service refuses to register threads; tried again")
            self._put_off(problem.retry_after)
            return [path for path, _, _ in asked]
        self._failures = 0
        rejected = []
        for (path, mark, _), result in zip(asked, results, strict=True):
            if result.get("status") in _KNOWN:
                self._registered += 1
                with suppress(GovernError):  # erased meanwhile: nothing of it is written again
                    self._folder.tell(path, mark)
            else:
                kind = problem_type(result.get("problem"))
                self._faults.note(f"register.rejected.{kind}", "a thread was not registered; tried again")
                rejected.append(path)
        if rejected:
            self._due = time.monotonic() + self._settings.retry_seconds
        return rejected

    def _put_off(self, retry_after: float | None) -> None:
        self._failures += 1
        self._due = time.monotonic() + backoff_seconds(self._failures, retry_after)

    def _whose(self, path: Path) -> Told | None:
        try:
            return self._read(path)
        except GovernError as fault:
            if (kind := type(fault).__name__) != "ThreadErased":
                self._faults.note(f"register.{kind}", "a thread's file cannot be read, so it is not registered")
        except OSError:
            self._faults.note("register.unreadable", "a thread's file cannot be read, so it is not registered")
        return None

    def _artifact(self, found: Told) -> dict[str, Any]:
        settings = self._settings
        named = [each if is_subject(each) else f"{settings.subject_type}:{each}" for each in found.owners]
        return derive(
            data_class=settings.data_class, store=settings.store, locator={"thread_id": found.thread}, subjects=named
        )

    def _whereto(self) -> str:
        """Return the head of every mark: where and as what a thread was registered."""
        settings = self._settings
        told = json.dumps([settings.url, settings.store, settings.data_class, settings.subject_type])
        return f"{hashlib.sha256(told.encode()).hexdigest()[:16]} "

    def _mark(self, found: Told) -> str:
        """Return what stands in `NAME.told`: nothing that says who or which."""
        return self._whereto() + self._folder.path("\0".join(sorted(found.owners)), "").name

    # Life

    def flush(self, timeout: float = 10.0) -> int:
        """Wait, at most `timeout` seconds, until every thread noticed is told; return how many are not."""
        with self._changed:
            self._due = 0.0
            self._is_urgent = self._is_busy  # what is on its way now may fail, and is tried once more
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._pending and not self._is_busy, timeout)
            return len(self._pending) + self._is_busy

    def stats(self) -> dict[str, Any]:
        """Return the counts of now: `registered`, `pending`, and `errors` by kind."""
        return {
            "registered": self._registered,
            "pending": len(self._pending) + self._is_busy,
            "errors": dict(self._faults.counts),
        }

    def close(self, timeout: float = 2.0) -> None:
        """Flush within `timeout` and end; what is left is told by whoever opens the folder next."""
        self.flush(timeout)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._worker is not None:
            self._worker.join(max(timeout, 1.0))
        _live.discard(self)

    def begin_in_child(self) -> None:
        """Begin anew in a forked child, which has neither the parent's thread nor its connection, on first notice."""
        self._client.close()
        self._prepare()


def _changed_after(path: Path, mark: Path) -> bool:
    with suppress(FileNotFoundError):
        return path.stat().st_mtime_ns > mark.stat().st_mtime_ns
    return False


_live: weakref.WeakSet[ThreadRegister] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for register in list(_live):
        register.begin_in_child()


def _at_exit() -> None:
    for register in list(_live):
        register.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
