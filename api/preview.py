"""What a class would make due now, before anybody puts it in force.

Guarantees: counts only; nothing is changed. Clocks that start with something else than an item's own dates (activity,
consent, events) are not counted here: `None`, and the reason is the class's `from`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlmodel import Session, col

from ledger.models import Instant
from registry.declaration import DataClass
from registry.duration import Duration
from registry.models import Artifact

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OWN_DATES = frozenset({"created", "observed"})


def due_under(session: Session, tenant_id: int, one: DataClass, now: datetime) -> int | None:
    """How many live artifacts of the class would have reached their end at `now`; None where that is not by dates."""
    if one.keep_from not in _OWN_DATES:
        return None
    created = col(Artifact.created_at)
    starts = created if one.keep_from == "created" else sa.func.coalesce(col(Artifact.observed_at), created)
    found = session.scalar(
        sa.select(sa.func.count())
        .select_from(Artifact)
        .where(
            col(Artifact.tenant_id) == tenant_id,
            col(Artifact.data_class) == one.name,
            col(Artifact.status) != "erased",
            starts <= sa.literal(newest_start(one.keep, now), Instant()),
        )
    )
    return int(found or 0)


def newest_start(keep: Duration, now: datetime) -> datetime:
    """The newest instant whose civil end under `keep` is at or before `now`; found by halving, since months differ."""
    low, high = 0, (now - _EPOCH) // timedelta(microseconds=1)
    while low < high:
        middle = (low + high + 1) // 2
        if keep.add_to(_EPOCH + timedelta(microseconds=middle)) <= now:
            low = middle
        else:
            high = middle - 1
    return _EPOCH + timedelta(microseconds=low)
