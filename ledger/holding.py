"""Legal holds on payload objects: set, lifted and remembered, and their locks prolonged while they last.

Guarantees: the store is told first and the row written after it, both again after a crash, so that what is noted as
held is held. Which objects concern whom is not known here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlmodel import Session, col

from ledger.batches import batch_key, decode_batch
from ledger.errors import LedgerError, ObjectMissing
from ledger.expiry import parts_of
from ledger.head import Transactions
from ledger.index import chunks
from ledger.models import Instant, LogState, PayloadRow
from ledger.objects import HoldingStore, ObjectStore

AHEAD = timedelta(days=31)
"""A lock that ends within this time is prolonged by as much, so that it never ends under a hold."""


class Holding:
    """Holds payload objects of every log of one deployment."""

    def __init__(self, locked: ObjectStore, transactions: Transactions) -> None:
        self._locked = locked
        self._transactions = transactions

    @property
    def can_hold(self) -> bool:
        """Whether the store has legal holds."""
        return isinstance(self._locked, HoldingStore)

    def objects_with(self, tenant_id: int, wanted: Mapping[int, Collection[tuple[int, int]]]) -> set[str]:
        """The names of the objects in which any of these (index, part number) lie, by their batches."""
        log_id = self._log_id(tenant_id)
        found: set[str] = set()
        for first, parts in sorted(wanted.items()):
            for name, sealed in parts_of(decode_batch(self._locked.get(f"{log_id}/{batch_key(first)}"))).items():
                if any((part.idx, part.number) in parts for part in sealed):
                    found.add(name)
        return found

    def held_between(self, session: Session, tenant_id: int, start: int, end: int) -> set[str]:
        """The names that are noted as held, of batches from one index to before another."""
        query = sa.select(col(PayloadRow.name)).where(
            col(PayloadRow.tenant_id) == tenant_id,
            col(PayloadRow.held).is_(True),
            col(PayloadRow.batch_first) >= start,
            col(PayloadRow.batch_first) < end,
        )
        return set(session.scalars(query))

    def is_holding(self, session: Session, tenant_id: int) -> bool:
        """Whether any object is noted as held."""
        query = sa.select(col(PayloadRow.name)).where(
            col(PayloadRow.tenant_id) == tenant_id, col(PayloadRow.held).is_(True)
        )
        return session.scalars(query.limit(1)).first() is not None

    def set(self, tenant_id: int, names: Collection[str], *, on: bool) -> int:
        """Hold these objects or let them go; how many are there. Raises: what the store raises."""
        store, log_id, done = self._locked, self._log_id(tenant_id), []
        if not isinstance(store, HoldingStore):
            return 0
        for name in sorted(names):
            try:
                store.hold(f"{log_id}/{name}", on=on)
            except ObjectMissing:
                continue
            finally:
                done.append(name)
        with self._transactions(tenant_id) as session:
            for some in chunks(done):
                session.connection().execute(
                    sa.update(PayloadRow)
                    .where(col(PayloadRow.tenant_id) == tenant_id, col(PayloadRow.name).in_(some))
                    .values(held=on)
                )
        return len(done)

    def prolong(self, tenant_id: int, now: datetime, *, limit: int = 1_000) -> int:
        """Prolong the locks of held objects that would end soon; how many. One that cannot be comes again."""
        store, log_id = self._locked, self._log_id(tenant_id)
        if not isinstance(store, HoldingStore):
            return 0
        with self._transactions(tenant_id, write=False) as session:
            query = sa.select(col(PayloadRow.name)).where(
                col(PayloadRow.tenant_id) == tenant_id,
                col(PayloadRow.held).is_(True),
                col(PayloadRow.deleted_at).is_(None),
                col(PayloadRow.until) <= sa.literal(now + AHEAD, Instant()),
                # A lock that is over cannot be taken up again; the legal hold keeps the object.
                col(PayloadRow.until) > sa.literal(now, Instant()),
            )
            names = sorted(set(session.scalars(query.limit(limit))))
        done = 0
        for name in names:
            until = now + 2 * AHEAD
            try:
                store.prolong(f"{log_id}/{name}", until)
            except LedgerError:
                continue
            with self._transactions(tenant_id) as session:
                session.connection().execute(
                    sa.update(PayloadRow)
                    .where(col(PayloadRow.tenant_id) == tenant_id, col(PayloadRow.name) == name)
                    .values(until=until)
                )
            done += 1
        return done

    def _log_id(self, tenant_id: int) -> str:
        with self._transactions(tenant_id, write=False) as session:
            state = session.get(LogState, tenant_id)
        if state is None:
            raise ObjectMissing("log_state")
        return state.log_id
