"""Physical deletion of the record's payload objects in a pass of retention: what no key opens, its lock being over.

Guarantees: a part counts as gone only when a key of it is destroyed and no key of its own keeps it; a key that is
merely lost, or about to go, keeps its object. What becomes due is found by the keys destroyed since the last look, so
the work grows with them and not with the record. The deletion itself is `ledger.expiry`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col

from ledger import expiry, index
from ledger.expiry import Carried, Expiry, Found, SealedPart
from ledger.head import Transactions
from registry.keyed import chunks
from vault.models import DataKey, KeyState, PartKey

CAP = 5_000
"""How many objects one pass deletes at most."""
KEYS = "keys"
OVERLAP = timedelta(hours=2)
"""A destruction is dated at its beginning and committed later: so far back each look starts again."""
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


def parts_gone(session: Session, tenant_id: int, parts: Sequence[SealedPart]) -> set[tuple[int, int]]:
    """Which of these parts no key opens any more. A joint part ends with the first of its keys."""
    keys = index.keys_of(session, tenant_id, sorted({part.idx for part in parts}))
    wanted = {key_id for part in parts for key_id in keys.get((part.idx, part.number), ())}
    destroyed: set[str] = set()
    for some in chunks(sorted(wanted)):
        query = sa.select(col(DataKey.key_id)).where(
            col(DataKey.tenant_id) == tenant_id,
            col(DataKey.key_id).in_(some),
            col(DataKey.state) == KeyState.DESTROYED.value,
        )
        destroyed.update(session.scalars(query))
    ended = [part for part in parts if not destroyed.isdisjoint(keys.get((part.idx, part.number), ()))]
    kept: set[tuple[str, int]] = set()
    for entries in chunks(sorted({part.entry_id for part in ended})):
        rows = session.execute(
            sa.select(col(PartKey.entry_id), col(PartKey.part)).where(
                col(PartKey.tenant_id) == tenant_id,
                col(PartKey.entry_id).in_(entries),
                col(PartKey.state) != KeyState.DESTROYED.value,
            )
        )
        kept.update((entry_id, number) for entry_id, number in rows)
    return {(part.idx, part.number) for part in ended if (part.entry_id, part.number) not in kept}


class PayloadEnd:
    """A pass's part in the record's objects; None of it without a store (a process that holds no record)."""

    def __init__(self, store: Expiry | None, transactions: Transactions, *, cap: int = CAP) -> None:
        self._store = store
        self._transactions = transactions
        self._cap = cap

    def refresh(self, tenant_id: int, now: datetime) -> None:
        """Have looked into what keys destroyed since the last time may have left, and what no batch names."""
        if self._store is None:
            return
        with self._transactions(tenant_id) as session:
            walk = expiry.seen(session, tenant_id, KEYS)
            since = _BEGINNING if walk.at is None else min(walk.at, now) - OVERLAP
            expiry.mark_batches(session, tenant_id, _destroyed_since(session, tenant_id, since))
            _mark_kept_parts(session, tenant_id, since)
            walk.at = now
        self._store.mark(tenant_id, now)

    def plan(self, tenant_id: int, now: datetime) -> Found:
        """What a pass would delete now."""
        return Found() if self._store is None else self._store.plan(tenant_id, now, cap=self._cap)

    def carry_out(self, tenant_id: int, sweep_id: str, now: datetime) -> Carried:
        """Delete what a pass claimed."""
        return Carried() if self._store is None else self._store.carry_out(tenant_id, sweep_id, now)


def summary_of(found: Found) -> dict[str, Any]:
    """What a run's row keeps of its plan."""
    return {"planned": len(found.all), "orphans": len(found.orphans), "capped": found.capped}


def result_of(session: Session, tenant_id: int, sweep_id: str) -> dict[str, int]:
    """What became of it."""
    count, size = expiry.deleted_by(session, tenant_id, sweep_id)
    return {"deleted": count, "bytes": size}


def _destroyed_since(session: Session, tenant_id: int, since: datetime) -> list[str]:
    query = sa.select(col(DataKey.key_id)).where(col(DataKey.tenant_id) == tenant_id, col(DataKey.destroyed_at) > since)
    return list(session.scalars(query))


def _mark_kept_parts(session: Session, tenant_id: int, since: datetime) -> None:
    """A part that had a key of its own ended with that one: its data key went long before."""
    query = sa.select(col(PartKey.entry_id)).where(
        col(PartKey.tenant_id) == tenant_id, col(PartKey.destroyed_at) > since
    )
    entries = sorted(set(session.scalars(query)))
    firsts = {row.batch_first for row in index.known(session, tenant_id, entries).values()}
    expiry.mark(session, tenant_id, firsts)
