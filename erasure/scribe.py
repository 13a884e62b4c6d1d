"""A thread beside a store's own: it writes to our database what that thread need not wait for.

Guarantees: what it is given is done one after another, in that order; once something failed, nothing that was given
later is done, and each of those fails alike. Whoever leaves the block has seen all of it done, or the failure. It ends
with the process, whatever it waits for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar

_Result = TypeVar("_Result")


class Scribe:
    """One thread for one store; used as a block, by one thread."""

    def __init__(self, name: str) -> None:
        self._given: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def do(self, act: Callable[[], _Result]) -> Future[_Result]:
        """Have something done; its result, or what it raised, is the future's."""
        future: Future[_Result] = Future()
        self._given.put((future, act))
        return future

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait until all is done. Raises what was raised there, unless the block already ends with something."""
        self._given.put(None)
        self._thread.join()
        if error is None and self._failed is not None:
            raise self._failed

    def _work(self) -> None:
        while (given := self._given.get()) is not None:
            future, act = given
            if self._failed is None:
                try:
                    future.set_result(act())
                except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
                    self._failed = error
            if self._failed is not None:
                future.set_exception(self._failed)
