"""Cut connections whose server does not answer in time; one thread for all of a process, started on first use.

Guarantees: a socket that is watched is shut down at its limit, which wakes whoever reads from it; none is touched once
its block has been left. A thread for each call would cost more than a small statement.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Watch:
    """The watched sockets: when each is cut, and its descriptor."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.watched: dict[object, tuple[float, int]] = {}
        self.thread: threading.Thread | None = None
        self.wakes = math.inf

    def run(self) -> None:
        """Cut what is late, for ever."""
        with self.changed:
            while True:
                now = time.monotonic()
                for token, (until, handle) in list(self.watched.items()):
                    if until <= now:
                        del self.watched[token]
                        _cut(handle)
                # What is left before its limit wakes nobody: the next look finds nothing to do.
                self.wakes = min((until for until, _ in self.watched.values()), default=math.inf)
                self.changed.wait(None if self.wakes == math.inf else max(0.0, self.wakes - now))


_watch = _Watch()


def _after_fork() -> None:
    global _watch  # noqa: PLW0603 -- the thread stays in the parent, whose sockets are not ours to cut
    _watch = _Watch()


os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def cut_after(handle: int, seconds: float) -> Iterator[None]:
    """Shut the socket of a descriptor down when the block takes longer."""
    watch, token, until = _watch, object(), time.monotonic() + seconds
    with watch.changed:
        watch.watched[token] = (until, handle)
        if watch.thread is None:
            watch.thread = threading.Thread(target=watch.run, name="muniment-watch", daemon=True)
            watch.thread.start()
        elif until < watch.wakes:
            watch.wakes = until
            watch.changed.notify()
    try:
        yield
    finally:
        with watch.changed:
            watch.watched.pop(token, None)


def _cut(handle: int) -> None:
    # A copy of the descriptor: shutting it down wakes the reader, and closing it closes only the copy.
    try:
        with socket.socket(fileno=socket.dup(handle)) as copy:
            copy.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # closed or broken meanwhile: nobody reads from it
