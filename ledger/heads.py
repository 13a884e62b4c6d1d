"""The ends of all logs in one process, and who may move them.

Guarantees: `leading` gives the end of a log only under the lease, opened afresh if its last use failed or the lease
changed hands in between; `entered` gives an up-to-date end to read from, with or without it. A log that was found to
contradict itself is named in `refusing`. Not here: what moves an end (`ledger.flush`), how one is opened
(`ledger.head`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from ledger import index
from ledger.errors import LogForked, LogRolledBack, ObjectMissing, RecordDamaged
from ledger.head import Head, LogParts, open_head, open_reader
from ledger.lease import Lease
from ledger.storing import Put


class Heads:
    """The ends of a deployment's logs, behind one lease."""

    def __init__(self, parts: LogParts, lease: Lease) -> None:
        self._parts = parts
        self._lease = lease
        self._heads: dict[int, Head] = {}
        self._readers: dict[int, Head] = {}
        self._refusing: dict[int, str] = {}
        self._lock = threading.Lock()

    @property
    def refusing(self) -> dict[int, str]:
        """The tenants whose log takes nothing, with the reason, as this process met it last."""
        return dict(self._refusing)

    def met(self, tenant_id: int, reason: str | None) -> None:
        """Remember why a log takes nothing, or that it takes entries."""
        if reason is None:
            self._refusing.pop(tenant_id, None)
        else:
            self._refusing[tenant_id] = reason

    @contextmanager
    def _noting(self, tenant_id: int) -> Iterator[None]:
        try:
            yield
        except (LogForked, LogRolledBack, RecordDamaged) as error:
            self.met(tenant_id, str(error))
            raise

    def head(self, tenant_id: int) -> Head:
        """Return the tenant's head: the log's end while this process leads, else one to read from.

        It is opened at its first use and may be old; `entered` brings it up to date. Raises: LogForked, LogRolledBack.
        """
        heads, opened = (self._heads, open_head) if self._lease.held else (self._readers, open_reader)
        with self._lock:
            head = heads.get(tenant_id)
            if head is None:
                fence = self._lease.fence
                head = heads[tenant_id] = opened(self._parts, tenant_id)
                head.under = fence
            return head

    def forget(self) -> None:
        """Take up every log afresh at its next use, after the database was restored."""
        with self._lock:
            self._readers.clear()
            for head in self._heads.values():
                head.stale = True

    def grown(self) -> list[int]:
        """Return the tenants whose logs have entries that no checkpoint of this process covers."""
        with self._lock:
            return [head.tenant_id for head in self._heads.values() if head.size > head.checkpoint_size]

    @contextmanager
    def entered(self, tenant_id: int) -> Iterator[Head]:
        """Hold the tenant's head, up to date, to read from its tree."""
        with self.leading(tenant_id) if self._lease.held else self.reading(tenant_id) as head:
            yield head

    @contextmanager
    def leading(self, tenant_id: int) -> Iterator[Head]:
        """Hold the end of a log, opened afresh if its last use failed or the lease changed hands in between."""
        self._lease.check()
        with self._noting(tenant_id):
            head = self.head(tenant_id)
        with head.lock:
            if head.stale or head.under != self._lease.check():
                with self._noting(tenant_id):
                    self.reopen(head)
            self.met(tenant_id, head.read_only)
            self.require_rank(head)
            yield head

    def reopen(self, head: Head) -> None:
        """Take in what others wrote behind this end; the caller holds it. Raises: NotLeader, and as `open_head`."""
        fence = self._lease.check()
        head.become(open_head(self._parts, head.tenant_id))
        head.under = fence

    def require_rank(self, head: Head) -> int:
        """Return a fencing number that is not below that of the last batch. Raises: NotLeader."""
        fence = self._lease.check()
        if fence < head.fence:
            # Either another process led since then, or the database was restored and counts anew.
            fence = head.under = self._lease.outrank(head.fence)
        return fence

    @contextmanager
    def reading(self, tenant_id: int) -> Iterator[Head]:
        """Hold the log as of the newest checkpoint that the database knows; needs no lease and writes nothing."""
        with self._parts.transactions(tenant_id, write=False) as session:
            state = index.state_of(session, tenant_id)
        if state is None:
            raise ObjectMissing("log_state")
        with self._lock:
            head = self._readers.get(tenant_id)
        if head is None or head.checkpoint_size < state.checkpoint_size:
            fresh = open_reader(self._parts, tenant_id)
            with self._lock:
                known = self._readers.get(tenant_id)
                head = fresh if known is None or known.checkpoint_size < fresh.checkpoint_size else known
                self._readers[tenant_id] = head
        with head.lock:
            yield head

    def putter(self, head: Head) -> Put:
        """Return what stores payload of a log."""

        def put(key: str, data: bytes, until: datetime | None) -> None:
            self._parts.locked.put(head.key(key), data, lock_until=until)

        return put

    def reader_of(self, head: Head) -> Callable[[str], bytes]:
        """Return what reads a log's objects from the bucket."""
        return lambda key: self._parts.locked.get(head.key(key))
