"""What the database knows of the time: when passes were made and entries received, by whichever process did it.

Guarantees: reads in the caller's transaction. Instants from a time when a clock was ahead count until a second person
approves a run that says so (`disown`); then those that were known by then count no more, and later ones do.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col

from ledger.models import EntryRow, Instant, LogState
from retention.models import SweepRow
from retention.sweep import Instants

DISOWNED = "clock"
"""The fact of an approved run with what was dated later and counts no more: `runs` by id, entries up to `size`."""
_APPROVED = 50


def instants(session: Session, tenant_id: int, *, apart: timedelta | None = None) -> Instants:
    """What else says what time it is; `apart` was measured by the caller."""
    runs, size = _disowned(session, tenant_id)
    return Instants(last=last_pass(session, tenant_id, runs), newest=_newest(session, tenant_id, size), apart=apart)


def last_pass(session: Session, tenant_id: int, without: frozenset[str] = frozenset()) -> datetime | None:
    """When the newest pass that was not stopped was made; dry runs do not count."""
    return session.scalars(
        sa.select(col(SweepRow.created_at))
        .where(
            col(SweepRow.tenant_id) == tenant_id,
            col(SweepRow.dry_run).is_(False),
            col(SweepRow.state) != "stopped",
            col(SweepRow.sweep_id).not_in(sorted(without)),
        )
        .order_by(col(SweepRow.created_at).desc())
        .limit(1)
    ).first()


def disown(session: Session, row: SweepRow) -> dict[str, Any]:
    """What is dated after this run and known by now, to be kept as its fact."""
    runs = session.scalars(
        sa.select(col(SweepRow.sweep_id)).where(
            col(SweepRow.tenant_id) == row.tenant_id,
            col(SweepRow.created_at) > sa.literal(row.created_at, Instant()),
        )
    )
    state = session.get(LogState, row.tenant_id)
    return {"runs": sorted(runs), "size": 0 if state is None else state.size}


def _disowned(session: Session, tenant_id: int) -> tuple[frozenset[str], int]:
    found = session.scalars(
        sa.select(col(SweepRow.counts))
        .where(col(SweepRow.tenant_id) == tenant_id, col(SweepRow.approved_by).is_not(None))
        .order_by(col(SweepRow.created_at).desc())
        .limit(_APPROVED)
    )
    facts = [counts[DISOWNED] for counts in found if DISOWNED in counts]
    return frozenset(name for fact in facts for name in fact["runs"]), max((fact["size"] for fact in facts), default=0)


def _newest(session: Session, tenant_id: int, disowned: int) -> datetime | None:
    state = session.get(LogState, tenant_id)
    if state is None or state.size <= disowned:
        return None
    query = sa.select(col(EntryRow.received)).where(
        col(EntryRow.tenant_id) == tenant_id, col(EntryRow.idx) == state.size - 1
    )
    return session.scalars(query).first()
