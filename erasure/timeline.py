"""Notices a database that went back in time, as a failover to an older copy does, and stops the work that met it.

Guarantees: every transaction opened through it reads how much of the log the database knows, before anything else; less
than this process saw committed before means that decisions are missing, and the transaction ends with
`DatabaseWentBack`. Until `trust` is called, after the record was applied again, `is_sound` is False. What was written
and announced but is in no batch yet is not noticed; that is at most a second of announcements.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlmodel import Session, col

from ledger.errors import DatabaseWentBack
from ledger.head import Transactions
from ledger.models import LogState


class Timeline:
    """One process's memory of how far each tenant's database was."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._seen: dict[int, int] = {}
        self._lock = threading.Lock()
        self._sound = False

    @property
    def is_sound(self) -> bool:
        """Whether the record was applied to this database, and it did not go back since."""
        return self._sound

    def trust(self) -> None:
        """The database is where the record is; called after recovery."""
        with self._lock:
            self._seen.clear()
            self._sound = True

    def doubt(self) -> None:
        """The database went back: nothing is worked on until the record was applied again."""
        self._sound = False

    @contextmanager
    def noticing(self, tenant_id: int, *, write: bool = True) -> Iterator[Session]:
        """Yield a plain transaction, for the log, which finds out by itself; what it finds is known here at once.

        Otherwise the log would take its own batches in again and nothing would be left by which anybody else could see
        that decisions are missing. Raises: what the caller's block raises.
        """
        try:
            with self._transactions(tenant_id, write=write) as session:
                yield session
        except DatabaseWentBack:
            self.doubt()
            raise

    @contextmanager
    def transaction(self, tenant_id: int, *, write: bool = True) -> Iterator[Session]:
        """Yield a transaction of a tenant on a database that did not go back. Raises: DatabaseWentBack."""
        # Read before the transaction begins: whatever was known by now is committed, so the transaction must see it.
        known = self._seen.get(tenant_id, 0)
        with self._transactions(tenant_id, write=write) as session:
            query = sa.select(col(LogState.size)).where(col(LogState.tenant_id) == tenant_id)
            size = session.execute(query).scalar()
            if size is not None and size < known:
                self.doubt()
                raise DatabaseWentBack(expected=known, got=size)
            with self._lock:
                self._seen[tenant_id] = max(self._seen.get(tenant_id, 0), size or 0)
            yield session
