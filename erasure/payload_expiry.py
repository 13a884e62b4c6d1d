"""Physical deletion of the record's payload objects in a pass of retention: what no key opens, its lock being over.

Guarantees: a part counts as gone only when a key of it is destroyed and no key of its own keeps it; a key that is
merely lost, or about to go, keeps its object. What becomes due is found by the keys destroyed since the last look, so
the work grows with them and not with the record. The deletion itself is `ledger.expiry`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import sqlalchemy as sa
from sqlmodel import Session, col

from ledger import expiry, index
from ledger.expiry import Carried, Expiry, Found, StoredPart
from ledger.head import Transactions
from registry import classes
from registry.declaration import DataClass
from registry.drafting import lock_end
from registry.keyed import NO_MONTH, chunks
from retention.decide import Item, ceiling, class_end
from retention.schedule import RECORD_STATE, month_end, rules_of
from vault.models import DataKey, KeyState, PartKey

SWEEP_EVERY = timedelta(hours=1)
"""How often passes are made."""
CAP = 5_000
"""How many objects one pass deletes at most."""
KEYS = "keys"
OVERLAP = timedelta(hours=2)
"""A destruction is dated at its beginning and committed later: so far back each look starts again."""
Unknown = Literal["unknown"]
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


def parts_gone(session: Session, tenant_id: int, parts: Sequence[StoredPart]) -> set[tuple[int, int]]:
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
    return {
        "planned": len(found.all),
        "orphans": len(found.orphans),
        "unclear": len(found.unclear),
        "capped": found.capped,
        "deleted": 0,
        "bytes": 0,
    }


def alarm_of(payload: Mapping[str, Any]) -> str | None:
    """What the operator must hear about the objects of a run that ended; None where all went as planned."""
    said = []
    left = payload.get("planned", 0) - payload.get("deleted", 0)
    if left > 0:
        why = "".join(f"; {name}: {reason}" for name, reason in sorted(payload.get("reasons", {}).items()))
        said.append(f"{left} payload objects that no key opens could not be deleted; the next run tries again{why}")
    if payload.get("unclear", 0):
        said.append(
            f"{payload['unclear']} payload objects stay, because a batch that names them, or may name them, is "
            "damaged; muniment verify names it"
        )
    return "; ".join(said) or None


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


def sealed_until(
    session: Session, tenant_id: int, key_ids: Sequence[str], *, lag: timedelta
) -> datetime | Unknown | None:
    """The latest instant at which the sealed bytes of these keys are deleted; None where they seal none.

    A part shares its object with others of its time, so the object stays until the last of their keys has ended by its
    class as well; a hold on somebody else's part can keep it longer. `lag` is the wait for the passes that do it.
    """
    months: set[str] = set()
    for some in chunks(sorted(set(key_ids))):
        keys = sa.select(col(DataKey.month)).where(
            col(DataKey.tenant_id) == tenant_id, col(DataKey.key_id).in_(some), col(DataKey.month) != NO_MONTH
        )
        months.update(session.scalars(keys))
        kept = sa.select(col(PartKey.until)).where(
            col(PartKey.tenant_id) == tenant_id,
            col(PartKey.key_id).in_(some),
            col(PartKey.state) == KeyState.LIVE.value,
        )
        if set(session.scalars(kept)):
            return "unknown"
    if not months:
        return None
    ends = [
        end
        for spec in classes.in_force(session, tenant_id).values()
        if spec.state == RECORD_STATE
        for end in _ends_of(spec, months)
    ]
    known = [end for end in ends if end is not None]
    return max(known) + lag if known and len(known) == len(ends) else "unknown"


def _ends_of(spec: DataClass, months: Collection[str]) -> Iterator[datetime | None]:
    rules = rules_of(spec)
    for month in months:
        at = month_end(month)
        # What a key's clock waits for may come at any time, so only the cap is sure; what a person decides, only the
        # ceiling.
        most = ceiling(at, rules)
        waits = rules.starts in ("last_activity", "consent") or spec.event is not None
        if spec.then == "review":
            yield most
        elif waits:
            yield min(
                (end for end in (most, None if spec.latest is None else spec.latest.add_to(at)) if end is not None),
                default=None,
            )
        else:
            yield class_end(Item(item_id=0, data_class=spec.name, created=at), rules)
        if spec.floor is not None:
            yield spec.floor.keep.add_to(at)
        if spec.lock is not None:
            yield lock_end(spec, at, at)
