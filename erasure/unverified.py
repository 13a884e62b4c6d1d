"""Requests of which no identifier is ever verified: after a term they are refused, and so their words end.

Guarantees: only a request that nobody verified is refused here, by the same move and on the ground that the desk has
for it, told in the record and in its history; whose person was not told stays an answer that is due
(`erasure.deadlines`). The term counts from the date by which an answer is due, whether or not the clock stands still:
a person who was asked who they are, and never said it, would keep it standing for ever. Destroys nothing: the sealed
words end like those of any refused request, behind `retention.decide` (`erasure.footprint`).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure import history
from erasure.desk import facts_of
from erasure.models import RequestRow
from erasure.parts import Parts
from erasure.request import Move, State, move
from ledger.entry import Kind
from ledger.models import Instant

GROUND = "identity_not_verified"
_UNVERIFIED = (State.RECEIVED.value, State.IDENTITY_PENDING.value)
_ACTOR = "worker"


def ends_at(row: RequestRow, term: timedelta) -> datetime:
    """From when on a request that nobody verified is refused."""
    return (row.extended_until or row.due_at) + term


def unverified(session: Session, tenant_id: int, *, due_before: datetime) -> Iterator[RequestRow]:
    """The requests that nobody verified and whose first date lies before that instant, the oldest date first."""
    query = select(RequestRow).where(
        RequestRow.tenant_id == tenant_id,
        col(RequestRow.state).in_(_UNVERIFIED),
        col(RequestRow.due_at) <= sa.literal(due_before, Instant()),
    )
    yield from session.exec(query.order_by(col(RequestRow.due_at), col(RequestRow.request_id)))


def refuse_unverified(parts: Parts, tenant_id: int, now: datetime) -> int:
    """Refuse the requests of a tenant that nobody verified within the term; returns how many."""
    term = parts.unverified_term
    with parts.transactions(tenant_id, write=False) as session:
        rows = unverified(session, tenant_id, due_before=now - term)
        found = [row.request_id for row in rows if ends_at(row, term) <= now]
    return sum(_refuse(parts, tenant_id, request_id, now) for request_id in found)


def _refuse(parts: Parts, tenant_id: int, request_id: str, now: datetime) -> bool:
    with parts.transactions(tenant_id) as session:
        row = history.load(session, tenant_id, request_id, lock=True)
        if row.state not in _UNVERIFIED or ends_at(row, parts.unverified_term) > now:
            return False  # verified, extended or ended since it was found
        row.state = move(State(row.state), Move.REFUSE, facts_of(row, _ACTOR, now, ground=GROUND))
        row.details = {**row.details, "ground": GROUND}
        session.add(row)
        detail = {"ground": GROUND, "because": "nobody verified an identifier within the term"}
        body = {"request": request_id, "state": row.state, "event": "refused", **detail}
        entry_id = parts.record.announce(session, tenant_id, Kind.REQUEST_STATE, body, now)
        history.add_event(
            session,
            row,
            event="refused",
            actor=_ACTOR,
            now=now,
            detail={"state": row.state, **detail},
            entry_id=entry_id,
        )
        return True
