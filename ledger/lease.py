"""Who may sequence: one row with a fencing number, taken for five seconds at a time.

Guarantees: `check` passes only while this process's own clock says that the lease it last wrote has not run out; the
number grows with every change of hands. On PostgreSQL the row's end is judged by the database's clock, so a process
whose clock is wrong neither keeps nor steals the lease. It does not guarantee that two processes never believe they
lead: the conditional PUT of the batch does that. Embedded, the data folder's file lock is the lease and
`take(force=True)` only counts the number up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlmodel import Session

from ledger.errors import NotLeader
from ledger.models import LogLease

_NAME = "sequencer"
TERM = timedelta(seconds=5)
_MARGIN_SECONDS = 1.0
RENEWED_SECONDS = 1.0
"""How often a leader renews it: several tries before it ends."""


class Lease:
    """This process's claim on the sequencer. `owner` is a random id of the process."""

    def __init__(self, *, owner: str, sessions: Callable[[], AbstractContextManager[Session]]) -> None:
        self._owner = owner
        self._sessions = sessions
        self._lock = threading.Lock()
        self._good_until = 0.0
        self._forced = False
        self._fence = 0

    @property
    def fence(self) -> int:
        """The fencing number of the lease now held; 0 before the first."""
        return self._fence

    @property
    def held(self) -> bool:
        """Whether this process may sequence now."""
        return bool(self._fence) and (self._forced or time.monotonic() < self._good_until)

    def take(self, now: datetime, *, force: bool = False) -> bool:
        """Take or renew the lease; says whether it is held. `force` is for the holder of the data folder's lock."""
        started = time.monotonic()
        try:
            with self._lock, self._sessions() as session:
                now = _clock(session, now)
                row = session.get(LogLease, _NAME, with_for_update=True)
                if row is None:
                    row = LogLease(name=_NAME, owner=self._owner, until=now + TERM, fence=1)
                elif row.owner == self._owner:
                    row.until = now + TERM
                elif force or row.until <= now:
                    row.owner, row.until, row.fence = self._owner, now + TERM, row.fence + 1
                else:
                    return False
                session.add(row)
                session.flush()
                fence = row.fence
        except sa.exc.IntegrityError:
            # Two processes made the first row at once: the other one was faster.
            return False
        # Only now: until the row is committed nothing was taken.
        self._fence = fence
        self._forced = self._forced or force
        self._good_until = started + TERM.total_seconds() - _MARGIN_SECONDS
        return True

    @contextmanager
    def kept(self, clock: Callable[[], datetime]) -> Iterator[None]:
        """Renew the lease while the block runs, which may take longer than a term; `check` tells who lost it."""
        done = threading.Event()

        def renew() -> None:
            while not done.wait(RENEWED_SECONDS) and self.held:
                with suppress(sa.exc.SQLAlchemyError):  # the next time, or the lease ends
                    self.take(clock())

        thread = threading.Thread(target=renew, name="muniment-lease", daemon=True)
        if not self._forced:
            thread.start()
        try:
            yield
        finally:
            done.set()
            if thread.is_alive():
                thread.join()

    def check(self) -> int:
        """Return the fencing number while the lease is good. Raises: NotLeader."""
        if self.held:
            return self._fence
        raise NotLeader

    def outrank(self, fence: int) -> int:
        """Return a number above `fence`, which a batch already carries: the database is older than the bucket.

        Raises: NotLeader when the row says that another process leads, which then wrote that batch.
        """
        with self._lock, self._sessions() as session:
            row = session.get(LogLease, _NAME, with_for_update=True)
            if row is None or row.owner != self._owner:
                self._good_until, self._forced = 0.0, False
                raise NotLeader
            row.fence = max(row.fence, fence) + 1
            session.add(row)
            session.flush()
            fence = row.fence
        self._fence = fence
        return fence

    @contextmanager
    def pinned(self, fence: int) -> Iterator[None]:
        """Keep every other process from taking the lease while the block runs, however long that takes.

        For what must not be written behind the back of a successor. Others wait for the row meanwhile; if this process
        ends, its database connection does too and lets them go on. Raises: NotLeader when the lease is not that of
        `fence` any more.
        """
        with self._lock, self._sessions() as session:
            row = session.get(LogLease, _NAME, with_for_update=True)
            if row is None or (row.owner, row.fence) != (self._owner, fence):
                raise NotLeader
            yield

    def is_led(self, now: datetime) -> bool:
        """Return whether some process leads, so that a post would be sequenced."""
        if self.held:
            return True
        with self._sessions() as session:
            row = session.get(LogLease, _NAME)
            return row is not None and row.until > _clock(session, now)

    def give_up(self, now: datetime) -> None:
        """Let another process take over at once."""
        self._good_until = 0.0
        self._forced = False
        with self._lock, self._sessions() as session:
            row = session.get(LogLease, _NAME, with_for_update=True)
            if row is not None and row.owner == self._owner:
                row.until = _clock(session, now)
                session.add(row)


def _clock(session: Session, now: datetime) -> datetime:
    """The clock that all processes share, where there is one; else the caller's."""
    if session.get_bind().dialect.name != "postgresql":
        return now
    shared: datetime = session.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
    return shared
