"""Requests of which no identifier is ever verified: after a term they are refused, and so their words end.

Guarantees: only a request that nobody verified is refused here, by the move and on the ground that the desk has
for it, told in the record and in its history; whose person was not told stays an answer that is due
(`erasure.deadlines`). The term counts from the date by which an answer is due, whether or not the clock stands still:
a person who was asked who they are, and never said it, would keep it standing for ever. None is refused before the
record and its history have named the date for `NOTICE`: one that is past its term when this is first asked, after an
upgrade, an outage or a shorter term, gets that time from then on. Destroys nothing: the sealed words end like those of
any refused request, behind `retention.decide` (`erasure.footprint`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure import history
from erasure.desk import Desk
from erasure.models import RequestRow
from erasure.parts import Parts
from erasure.plan import instant_text
from erasure.request import State
from ledger.entry import Kind
from ledger.models import Instant
from registry.acting import Acting

GROUND = "identity_not_verified"
NOTICE = timedelta(days=7)
"""How long the date is named before it comes, at the least."""
_NAMED = "unverified_named"
"""The event that names it, and under which name a request keeps when that was."""
_UNVERIFIED = (State.RECEIVED.value, State.IDENTITY_PENDING.value)
_ACTOR = "worker"


def ends_at(row: RequestRow, term: timedelta, now: datetime) -> datetime:
    """From when on a request that nobody verified is refused; of one that was not named yet, at the earliest."""
    named_at = datetime.fromisoformat(row.details[_NAMED]) if _NAMED in row.details else now
    return max((row.extended_until or row.due_at) + term, named_at + NOTICE)


def unverified(session: Session, tenant_id: int, *, due_before: datetime) -> Iterator[RequestRow]:
    """The requests that nobody verified and whose first date lies before that instant, the oldest date first."""
    query = select(RequestRow).where(
        RequestRow.tenant_id == tenant_id,
        col(RequestRow.state).in_(_UNVERIFIED),
        col(RequestRow.due_at) <= sa.literal(due_before, Instant()),
    )
    yield from session.exec(query.order_by(col(RequestRow.due_at), col(RequestRow.request_id)))


def refuse_unverified(parts: Parts, acting: Acting, now: datetime) -> int:
    """Refuse the requests of a tenant that nobody verified within the term, and name those that are next.

    Returns how many were refused.
    """
    worker, term = replace(acting, principal=_ACTOR), parts.unverified_term
    with parts.transactions(acting.tenant_id, write=False) as session:
        rows = unverified(session, acting.tenant_id, due_before=now + NOTICE - term)
        found = [row.request_id for row in rows if _is_next(row, term, now)]
    return sum(_refuse_or_name(parts, worker, request_id, now) for request_id in found)


def _is_next(row: RequestRow, term: timedelta, now: datetime) -> bool:
    """Whether it is to be refused, or to be named and was not."""
    ends = ends_at(row, term, now)
    return ends <= now or (_NAMED not in row.details and ends <= now + NOTICE)


def _refuse_or_name(parts: Parts, worker: Acting, request_id: str, now: datetime) -> bool:
    """Whether it was refused."""
    with parts.transactions(worker.tenant_id) as session:
        row = history.load(session, worker.tenant_id, request_id, lock=True)
        if row.state not in _UNVERIFIED or not _is_next(row, parts.unverified_term, now):
            return False  # verified, extended, named or ended since it was found
        if _NAMED not in row.details:
            _name(parts, session, row, now)
            return False
        because = "nobody verified an identifier within the term"
        Desk(parts).refuse_row(session, row, worker, ground=GROUND, because=because, now=now)
        return True


def _name(parts: Parts, session: Session, row: RequestRow, now: datetime) -> None:
    row.details = {**row.details, _NAMED: instant_text(now)}
    session.add(row)
    detail = {"state": row.state, "refused_at": instant_text(ends_at(row, parts.unverified_term, now))}
    body = {"request": row.request_id, "event": _NAMED, **detail}
    entry_id = parts.record.announce(session, row.tenant_id, Kind.REQUEST_STATE, body, now)
    history.add_event(session, row, event=_NAMED, actor=_ACTOR, now=now, detail=detail, entry_id=entry_id)
