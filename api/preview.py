"""What a class would make due now, before anybody puts it in force.

Guarantees: nothing is changed. Counted are an item's own dates and activity, the last of the events that
started it, and the cap of those that never start; and keys of the record by their month. Of a consent, and of what a
record key waits for, the cap is counted only: the brake of the run sees the rest. An item's own expiry counts under any
class. What waits for a person's review is due as well; what ends without one is counted apart. Holds,
restrictions and requests are not asked: they stop an end when it comes, not its being due.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Session, col

from ledger.models import Instant
from registry.declaration import DataClass
from registry.duration import Duration
from registry.ids import artifact_name
from registry.keyed import NO_MONTH
from registry.models import Artifact, ScopeKey
from retention.due import due_month
from retention.models import EventRow
from retention.schedule import newest_start, schedule_of
from vault.models import OPENING, DataKey

SHOWN = 100
REVIEW = "review"
_ARTIFACT = "a"


def due_under(session: Session, tenant_id: int, one: DataClass, now: datetime) -> int:
    """How many live copies and record keys of the class would have reached their end at `now`."""
    copies = session.scalar(
        sa.select(sa.func.count()).select_from(Artifact).where(*_of(tenant_id, one.name), _is_due(tenant_id, one, now))
    )
    return int(copies or 0) + _keys_due(session, tenant_id, one, now)


def ending_under(session: Session, tenant_id: int, one: DataClass, now: datetime) -> int:
    """How many of them would end without a person's review."""
    copies = session.scalar(
        sa.select(sa.func.count()).select_from(Artifact).where(*_of(tenant_id, one.name), _ends(tenant_id, one, now))
    )
    return int(copies or 0) + _keys_due(session, tenant_id, one, now, unasked=True)


def newly_due(session: Session, tenant_id: int, known: DataClass | None, wanted: DataClass, now: datetime) -> list[str]:
    """The first copies, by id, that the declaration makes due, or ends unasked, and the class in force does not."""
    due, ends = _is_due(tenant_id, wanted, now), _ends(tenant_id, wanted, now)
    if known is not None:
        due = sa.and_(due, sa.not_(_is_due(tenant_id, known, now)))
        ends = sa.and_(ends, sa.not_(_ends(tenant_id, known, now)))
    query = sa.select(col(Artifact.id), col(Artifact.given_id)).where(*_of(tenant_id, wanted.name), sa.or_(due, ends))
    rows = session.execute(query.order_by(col(Artifact.id)).limit(SHOWN))
    return [row.given_id or artifact_name(row.id) for row in rows]


def _of(tenant_id: int, name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        col(Artifact.tenant_id) == tenant_id,
        col(Artifact.data_class) == name,
        col(Artifact.status).in_(("live", "quarantined", "revoked")),
    )


def _is_due(tenant_id: int, one: DataClass, now: datetime) -> sa.ColumnElement[bool]:
    created = col(Artifact.created_at)
    expired = sa.func.coalesce(col(Artifact.expires_at) <= sa.literal(now, Instant()), sa.false())
    ends: list[sa.ColumnElement[bool]] = [expired]
    if one.latest is not None:
        ends.append(created <= _start(one.latest, now))
    if one.ceiling is not None:
        ends.append(created <= _start(one.ceiling.keep, now))
    newest = _start(one.keep, now)
    if one.event is not None:
        ends.append(_events_over(tenant_id, one.event, newest))
    elif one.keep_from != "consent":
        own = {"observed": col(Artifact.observed_at), "last_activity": col(Artifact.last_activity_at)}.get(
            one.keep_from
        )
        ends.append((created if own is None else sa.func.coalesce(own, created)) <= newest)
    return sa.or_(*ends)


def _ends(tenant_id: int, one: DataClass, now: datetime) -> sa.ColumnElement[bool]:
    """Whether it ends without a person's word: in a class with reviews only what is past its ceiling does."""
    if one.then != REVIEW:
        return _is_due(tenant_id, one, now)
    if one.ceiling is None:
        return sa.false()
    return col(Artifact.created_at) <= _start(one.ceiling.keep, now)


def _events_over(tenant_id: int, event: str, newest: sa.ColumnElement[datetime]) -> sa.ColumnElement[bool]:
    """Whether the class's event happened for the item, and the last time was long enough ago."""

    def happened(*conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        joined = sa.and_(
            col(EventRow.tenant_id) == col(ScopeKey.tenant_id), col(EventRow.lookup) == col(ScopeKey.lookup)
        )
        return (
            sa.select(sa.literal(1))
            .select_from(ScopeKey)
            .join(EventRow, joined)
            .where(
                col(ScopeKey.tenant_id) == tenant_id,
                col(ScopeKey.kind) == _ARTIFACT,
                col(ScopeKey.item) == col(Artifact.id),
                col(EventRow.name) == event,
                *conditions,
            )
            .correlate(Artifact)
            .exists()
        )

    return sa.and_(happened(), sa.not_(happened(col(EventRow.at) > newest)))


def _keys_due(session: Session, tenant_id: int, one: DataClass, now: datetime, *, unasked: bool = False) -> int:
    schedule = schedule_of(one)
    if unasked and one.then == REVIEW:
        if one.ceiling is None:
            return 0
        keep = one.ceiling.keep
        rules = replace(schedule.rules, keep=keep, starts="created", latest=None)
        schedule = replace(schedule, keep=keep, latest=None, rules=rules)
    month = due_month(schedule, now)
    if month is None:
        return 0
    found = session.scalar(
        sa.select(sa.func.count())
        .select_from(DataKey)
        .where(
            col(DataKey.tenant_id) == tenant_id,
            col(DataKey.data_class) == one.name,
            col(DataKey.month) <= month,
            col(DataKey.month) != NO_MONTH,
            col(DataKey.state).in_(OPENING),
        )
    )
    return int(found or 0)


def _start(keep: Duration, now: datetime) -> sa.ColumnElement[datetime]:
    return sa.literal(newest_start(keep, now), Instant())
