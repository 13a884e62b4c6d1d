"""What a class would make due now, before anybody puts it in force.

Guarantees: nothing is changed. Every clock of a copy is counted: its own dates and activity, the last of the events
that started it, the end of the consent that covered it, and the cap of those that never start; and keys of the record
by their month, those that wait for an event or a consent by their cap only. An item's own expiry counts under any
class. What waits for a person's review is due as well; what ends without one is counted apart. Holds, restrictions and
requests are not asked: they stop an end when it comes, not its being due.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger.models import Instant
from registry.declaration import DataClass
from registry.duration import Duration
from registry.ids import artifact_name
from registry.keyed import NO_MONTH, chunks
from registry.models import Artifact, ScopeKey
from registry.people import expand
from registry.sets import sets_of
from retention.consents import CLOCK, until_of
from retention.due import due_month
from retention.models import ConsentRow, EventRow
from retention.schedule import newest_start, schedule_of
from vault.models import OPENING, DataKey

SHOWN = 100
PEOPLE = 10_000
REVIEW = "review"
_ARTIFACT = "a"


def due_under(session: Session, tenant_id: int, one: DataClass, now: datetime) -> int:
    """How many live copies and record keys of the class would have reached their end at `now`."""
    return _copies(session, tenant_id, one, now, _is_due) + _keys_due(session, tenant_id, one, now)


def ending_under(session: Session, tenant_id: int, one: DataClass, now: datetime) -> int:
    """How many of them would end without a person's review."""
    return _copies(session, tenant_id, one, now, _ends) + _keys_due(session, tenant_id, one, now, unasked=True)


def newly_due(session: Session, tenant_id: int, known: DataClass | None, wanted: DataClass, now: datetime) -> list[str]:
    """The first copies, by id, that the declaration makes due, or ends unasked, and the class in force does not."""
    due, ends = _is_due(tenant_id, wanted, now), _ends(tenant_id, wanted, now)
    if known is not None:
        due = sa.and_(due, sa.not_(_is_due(tenant_id, known, now)))
        ends = sa.and_(ends, sa.not_(_ends(tenant_id, known, now)))
    query = sa.select(col(Artifact.id), col(Artifact.given_id)).where(*_of(tenant_id, wanted.name), sa.or_(due, ends))
    found = {row.id: row.given_id for row in session.execute(query.order_by(col(Artifact.id)).limit(SHOWN))}
    over = _consents_over(session, tenant_id, wanted, now)
    if known is not None:
        over -= _consents_over(session, tenant_id, known, now)
    for some in chunks(sorted(over)[:SHOWN]):
        later = sa.select(col(Artifact.id), col(Artifact.given_id)).where(
            col(Artifact.tenant_id) == tenant_id, col(Artifact.id).in_(some)
        )
        if known is not None:
            later = later.where(sa.not_(_is_due(tenant_id, known, now)))
        found.update({row.id: row.given_id for row in session.execute(later)})
    return [given or artifact_name(number) for number, given in sorted(found.items())[:SHOWN]]


def _copies(
    session: Session,
    tenant_id: int,
    one: DataClass,
    now: datetime,
    condition: Callable[[int, DataClass, datetime], sa.ColumnElement[bool]],
) -> int:
    """How many copies meet the condition, or are over because their consent is."""
    count = sa.select(sa.func.count()).select_from(Artifact).where(*_of(tenant_id, one.name))
    found = session.scalar(count.where(condition(tenant_id, one, now))) or 0
    if condition is _is_due or one.then != REVIEW:
        for some in chunks(sorted(_consents_over(session, tenant_id, one, now))):
            more = count.where(col(Artifact.id).in_(some), sa.not_(condition(tenant_id, one, now)))
            found += session.scalar(more) or 0
    return int(found)


def _consents_over(session: Session, tenant_id: int, one: DataClass, now: datetime) -> set[int]:
    """The copies whose consent ended long enough ago; of at most `PEOPLE` persons, which is more than a page shows."""
    if one.keep_from != CLOCK:
        return set()
    newest = newest_start(one.keep, now)
    last = sa.literal(newest, Instant())
    ended = sa.or_(col(ConsentRow.withdrawn_at) <= last, col(ConsentRow.until) <= last)
    query = sa.select(col(ConsentRow.subject_no)).where(col(ConsentRow.tenant_id) == tenant_id, ended)
    people = session.scalars(query.distinct().limit(PEOPLE)).all()
    found: set[int] = set()
    for some in chunks(sorted(sets_of(session, tenant_id, expand(session, tenant_id, people)))):
        rows = session.exec(select(Artifact).where(*_of(tenant_id, one.name), col(Artifact.set_id).in_(some))).all()
        until = until_of(session, tenant_id, rows, (one.name,))
        found.update(number for number, end in until.items() if end <= newest)
    return found


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
