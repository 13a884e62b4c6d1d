"""Which processes have emptied their key caches since keys were destroyed (DESIGN §4, "Destruction").

A counter grows in the transaction that takes keys from their rows. Every process that can hold keys beats once a
second: it reads the counter, empties its caches if it grew, and only then writes the number into its row. Who destroyed
goes on when every live process has written the new number.

Guarantees: a process whose row has the number holds no key from before it: what was read before the caches were emptied
is not put into them after (`vault.cache`), and after the commit the rows have nothing to read. A process that does not
answer is waited for until two cache bounds after the destruction, since by then its caches have run out by themselves;
one that cannot reach the database empties them at once. Does not wait itself: `behind` is asked again, and says for how
many it waits. Who starts and knows that it is the only process waits for none that was killed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import sqlalchemy as sa
from sqlmodel import Session, col, select

from vault.models import CacheFence, KeyProcess

BEAT_SECONDS = 1.0
BOUNDS = 2
_NAME = "caches"
_WRITE_EVERY = timedelta(seconds=10)
_FORGET_AFTER = timedelta(minutes=10)
"""A process that is silent for so long counts as dead; what it might hold runs out by itself within a bound."""


class Sessions(Protocol):
    """Opens a transaction over the tables of no tenant."""

    def __call__(self, *, write: bool) -> AbstractContextManager[Session]:
        """Yield a session; commit at the end if `write`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The counter after a destruction, and when that was."""

    counter: int
    at: datetime

    def as_json(self) -> list[Any]:
        """Return it as it is kept beside a request."""
        return [self.counter, self.at.isoformat()]

    @classmethod
    def of_json(cls, value: list[Any]) -> Fence:
        """Return what `as_json` made."""
        return cls(counter=int(value[0]), at=datetime.fromisoformat(value[1]))


def raise_fence(session: Session, now: datetime) -> Fence:
    """Count one destruction, in its own transaction: who reads the new number reads rows without bytes."""
    at = _clock(session, now)
    changed = session.execute(
        sa.update(CacheFence).where(col(CacheFence.name) == _NAME).values(counter=CacheFence.counter + 1)
    )
    if not changed.rowcount:  # type: ignore[attr-defined]  # a CursorResult, since this is an UPDATE
        # Two first destructions at once: one fails on the primary key and runs again.
        session.add(CacheFence(name=_NAME, counter=1))
        session.flush()
    return Fence(counter=_counter(session), at=at)


class Watch:
    """This process's row. `evict` empties every cache of keys; `bound` is the longest a key stays in one."""

    def __init__(
        self,
        *,
        process_id: str,
        sessions: Sessions,
        evict: Callable[[], None],
        bound: timedelta,
        clock: Callable[[], datetime],
    ) -> None:
        """`sessions` opens a transaction over the tables of no tenant."""
        self._process_id = process_id
        self._sessions = sessions
        self._evict = evict
        self._bound = bound
        self._clock = clock
        self._lock = threading.Lock()
        self._applied = -1
        self._written: datetime | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def beat(self) -> int:
        """Empty the caches if keys were destroyed since the last beat, and say so; returns the number applied."""
        with self._lock:
            try:
                return self._beat()
            except Exception:
                # Nobody can tell us what was destroyed, so nothing is held.
                self._evict()
                raise

    def _beat(self) -> int:
        with self._sessions(write=False) as session:
            now, counter = _clock(session, self._clock()), _counter(session)
        if counter == self._applied and self._written is not None and now < self._written + _WRITE_EVERY:
            return counter
        if counter != self._applied:
            self._evict()
        with self._sessions(write=True) as session:
            row = session.get(KeyProcess, self._process_id)
            if row is None:
                row = KeyProcess(process_id=self._process_id, applied=counter, at=now)
            row.applied, row.at = counter, now
            session.add(row)
            session.execute(sa.delete(KeyProcess).where(col(KeyProcess.at) < now - _FORGET_AFTER))
        # Only now: until the row is committed nobody counts on it.
        self._applied, self._written = counter, now
        return counter

    def cleared(self, fence: Fence) -> bool:
        """Whether no live process can hold a key from before `fence`; this process's own caches are emptied first."""
        return self.behind(fence) == 0

    def behind(self, fence: Fence) -> int:
        """How many processes may still hold a key from before `fence`; this process's own caches are emptied first."""
        self.beat()
        with self._sessions(write=False) as session:
            now = _clock(session, self._clock())
            others = sa.select(sa.func.count()).where(
                col(KeyProcess.applied) < fence.counter, col(KeyProcess.process_id) != self._process_id
            )
            count = int(session.execute(others).scalar_one())
        return 0 if now >= fence.at + BOUNDS * self._bound else count

    def start(self, *, sole: bool = False) -> None:
        """Beat now, so that no key is held before the row is there, and then once a second in a thread.

        `sole` says that no other process lives: rows are then left by processes that were killed, and go at once.
        """
        if sole:
            with self._sessions(write=True) as session:
                session.execute(sa.delete(KeyProcess).where(col(KeyProcess.process_id) != self._process_id))
        self.beat()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="muniment-watch", daemon=True)
            self._thread.start()

    def stop(self, *, seconds: float = 5.0) -> None:
        """End the thread, empty the caches and take the row away, so that nobody waits for this process."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(seconds)
            self._thread = None
        self._evict()
        with self._sessions(write=True) as session:
            session.execute(sa.delete(KeyProcess).where(col(KeyProcess.process_id) == self._process_id))

    def _run(self) -> None:
        while not self._stopping.wait(BEAT_SECONDS):
            try:
                self.beat()
            except Exception:  # noqa: BLE001, S112 - the caches are empty; the next beat tries again
                continue


def _counter(session: Session) -> int:
    return session.exec(select(CacheFence.counter).where(CacheFence.name == _NAME)).first() or 0


def _clock(session: Session, now: datetime) -> datetime:
    """The clock that all processes share, where there is one; else the caller's."""
    if session.get_bind().dialect.name != "postgresql":
        return now
    shared: datetime = session.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
    return shared.astimezone(UTC)
