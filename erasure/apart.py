"""What the desk is told when people are told apart, or a request is cancelled: whose request nobody works on any more.

Guarantees: the record and the request's history are told in the transaction of the change. Nobody's request is opened,
planned or carried out by it. Not here: which they are (`erasure.left_alone`), who may tell people apart
(`registry.merging`).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlmodel import Session, col, select

from erasure import history
from erasure.left_alone import EVENT, is_left_alone
from erasure.models import RequestRow
from erasure.parts import Parts
from erasure.plan import instant_text
from erasure.request import State
from ledger.entry import Kind
from registry.acting import Acting


def tell_of_duplicates(session: Session, parts: Parts, acting: Acting, people: Iterable[int], now: datetime) -> int:
    """Tell the record, and their histories, which duplicates about any of these people are left alone now."""
    about = frozenset(people)
    rows = session.exec(
        select(RequestRow)
        .where(RequestRow.tenant_id == acting.tenant_id, RequestRow.state == State.DUPLICATE.value)
        .order_by(col(RequestRow.request_id))
    )
    told = 0
    for row in rows:
        if about.isdisjoint(row.subjects) or not is_left_alone(session, row):
            continue
        if any(line.event == EVENT for line in history.events_of(session, row.tenant_id, row.request_id)):
            continue
        body = {"request": row.request_id, "state": row.state, "event": EVENT, "of": row.duplicate_of}
        entry_id = parts.record.announce(session, acting.tenant_id, Kind.REQUEST_STATE, body, now)
        detail = {"of": row.duplicate_of, "received_at": instant_text(row.received_at)}
        history.add_event(session, row, event=EVENT, actor=acting.principal, now=now, detail=detail, entry_id=entry_id)
        told += 1
    return told
