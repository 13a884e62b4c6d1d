"""Whose work something is: a lease in its row, renewed while the work goes on.

Guarantees: a request or a run of retention is worked on by one worker at a time. A worker that dies renews nothing, so
another one may take its work within `TERM`. A worker that could not renew in time (it slept, or the database was away)
finds out by `is_mine` and stops between two steps; each step can run twice anyway. Not here: what the work is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlmodel import col

from erasure.errors import UnknownRequest
from erasure.models import RequestRow
from erasure.parts import Parts
from retention.models import SweepRow

TERM = timedelta(seconds=10)
RENEW_SECONDS = 2.5
_MARGIN_SECONDS = 1.0
_Model = type[RequestRow | SweepRow]


class Lease:
    """One worker's hold on one request or run."""

    def __init__(self, parts: Parts, tenant_id: int, owner: str, worker: str, now: datetime) -> None:
        """`owner` is the id of the request or run, `worker` the random name of the process."""
        self._parts = parts
        self._tenant_id = tenant_id
        self._owner = owner
        self._worker = worker
        self._now = now
        self._began = time.monotonic()
        self._good_until = 0.0
        self._ended = threading.Event()
        self._row: RequestRow | SweepRow | None = None

    @property
    def request(self) -> RequestRow:
        """The request's row as it was when this last wrote to it: taken, renewed or let go. Raises: UnknownRequest."""
        if not isinstance(self._row, RequestRow):
            raise UnknownRequest("request", self._owner)
        return self._row

    @property
    def is_mine(self) -> bool:
        """Whether nobody else can have taken the work meanwhile."""
        return time.monotonic() < self._good_until

    def take(self) -> bool:
        """Take it if it is free or its worker's time is over; says whether that succeeded."""
        return self._hold(lambda model, now: sa.or_(col(model.lease_until).is_(None), col(model.lease_until) <= now))

    def renew(self) -> bool:
        """Hold it for another term; False when somebody else has it."""
        return self._hold(lambda model, _: self._is_owner(model))

    def release(self) -> None:
        """Let go at once, without waiting for the disk of a server.

        A server that crashes within the second may forget it: the lease then ends by its time. It forgets nothing else
        for it, since what anybody commits after this is on the disk only with this before it.
        """
        self._good_until = 0.0
        self._write(self._is_owner, waits=False, lease_owner=None, lease_until=None)

    def _instant(self) -> datetime:
        return self._parts.instant(self._now + timedelta(seconds=time.monotonic() - self._began))

    def _hold(self, may: Callable[[_Model, datetime], sa.ColumnElement[bool]]) -> bool:
        asked, now = time.monotonic(), self._instant()
        if not self._write(lambda model: may(model, now), lease_owner=self._worker, lease_until=now + TERM):
            return False
        self._good_until = asked + TERM.total_seconds() - _MARGIN_SECONDS
        return True

    def _is_owner(self, model: _Model) -> sa.ColumnElement[bool]:
        return col(model.lease_owner) == self._worker

    def _write(self, may: Callable[[_Model], sa.ColumnElement[bool]], *, waits: bool = True, **values: Any) -> bool:
        """Whether there was a row of the work of which this holds; it has these values then.

        `waits`: until it is on the disk. A lease that was taken or prolonged and then forgotten would be two workers'.
        """
        with self._parts.transactions(self._tenant_id) as session:
            on_server = session.get_bind().dialect.name == "postgresql"
            hasty = () if waits or not on_server else (sa.func.set_config("synchronous_commit", "off", True),)
            for model, name in _TABLES:
                mine = sa.and_(col(model.tenant_id) == self._tenant_id, col(getattr(model, name)) == self._owner)
                query = sa.update(model).where(mine, may(model)).values(**values).returning(model, *hasty)
                found = session.execute(query, execution_options={"synchronize_session": False}).first()
                if found is not None:
                    self._row = found[0]
                    return True
        return False

    def keep(self) -> None:
        """Renew until told to stop; a failure of the database is tried again, as long as the term lasts."""
        while not self._ended.wait(RENEW_SECONDS):
            try:
                if not self.renew():
                    self._good_until = 0.0
                    return
            except sa.exc.SQLAlchemyError:
                continue

    def stop(self) -> None:
        """End `keep`."""
        self._ended.set()


_TABLES: tuple[tuple[_Model, str], ...] = ((RequestRow, "request_id"), (SweepRow, "sweep_id"))


@contextmanager
def leased(parts: Parts, tenant_id: int, owner: str, worker: str, now: datetime) -> Iterator[Lease | None]:
    """Yield the lease of a request or run while it is renewed; None when somebody else works on it."""
    lease = Lease(parts, tenant_id, owner, worker, now)
    if not lease.take():
        yield None
        return
    keeper = threading.Thread(target=lease.keep, name="lease", daemon=True)
    keeper.start()
    try:
        yield lease
    finally:
        lease.stop()
        keeper.join()
        lease.release()


def free_all(parts: Parts, tenant_id: int) -> None:
    """Free every lease: for a process that knows it is the only one, since it holds the data folder's lock."""
    for model, _ in _TABLES:
        with parts.transactions(tenant_id) as session:
            session.connection().execute(
                sa.update(model)
                .where(col(model.tenant_id) == tenant_id, col(model.lease_owner).is_not(None))
                .values(lease_owner=None, lease_until=None)
            )
