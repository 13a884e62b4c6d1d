"""Payload objects whose row asks for them later than their name says: the store is asked, and decides.

Guarantees: a date that somebody wrote into a row delays the end of its object by `AGAIN` and the passes it takes to
come to it at most; one that the store keeps longer is asked for when the store says. A bounded number is looked at in
a call, from where the last call ended. An object that the store does not answer for is passed over, and comes again
with the next round. Deletes nothing, and reads no payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlmodel import col

from ledger.errors import LedgerError
from ledger.head import Transactions
from ledger.models import Instant, PayloadRow, PayloadWalk
from ledger.objects import ObjectStore
from ledger.payload_names import NO_LOCK, PREFIX, is_ours, lock_end_of

LATER = "later"
"""The walk over such rows."""
AGAIN = timedelta(days=1)
"""How long an object is left alone whose lock the store does not date."""
LOOKED_AT = 1_000
"""How many objects one call asks the store for at most."""


def hasten(locked: ObjectStore, transactions: Transactions, tenant_id: int, log_id: str, now: datetime) -> int:
    """Set right the dates of objects that can go sooner than their rows say; how many there were."""
    names, place = _late(transactions, tenant_id, now)
    if not names and not place:
        return 0
    found: dict[str, datetime | None] = {}
    for name, until in names:
        if not is_ours(name):
            continue  # never deleted, whatever its row says
        try:
            info = locked.head(f"{log_id}/{name}")
        except LedgerError:
            continue  # gone, or nobody can tell now
        dated = info.locked_until if info.locked_until is not None and info.locked_until > now else lock_end_of(name)
        if dated is None or dated < until:
            found[name] = dated
    with transactions(tenant_id) as session:
        for name, until_then in found.items():
            session.connection().execute(
                sa.update(PayloadRow)
                .where(col(PayloadRow.tenant_id) == tenant_id, col(PayloadRow.name) == name)
                .values(until=until_then)
            )
        walk = session.get(PayloadWalk, (tenant_id, LATER)) or PayloadWalk(tenant_id=tenant_id, what=LATER)
        walk.place = names[-1][0] if len(names) == LOOKED_AT else ""
        session.add(walk)
    return len(found)


def _late(transactions: Transactions, tenant_id: int, now: datetime) -> tuple[Sequence[tuple[str, datetime]], str]:
    """The next objects that would be looked into by now, but for what their rows say; and where the walk stood."""
    with transactions(tenant_id, write=False) as session:
        walk = session.get(PayloadWalk, (tenant_id, LATER))
        place = "" if walk is None else walk.place
        name = col(PayloadRow.name)
        query = (
            sa.select(name, sa.func.max(col(PayloadRow.until)))
            .where(
                col(PayloadRow.tenant_id) == tenant_id,
                col(PayloadRow.dirty).is_(True),
                col(PayloadRow.deleted_at).is_(None),
                col(PayloadRow.until) > sa.literal(now + AGAIN, Instant()),
                # By their names: of a month that is over, or without a lock.
                sa.or_(name < f"{PREFIX}{now:%Y-%m}/", name >= f"{PREFIX}{NO_LOCK}/"),
                name > place,
            )
            .group_by(name)
            .order_by(name)
            .limit(LOOKED_AT)
        )
        rows = [(row[0], row[1]) for row in session.execute(query)]
    return rows, place
