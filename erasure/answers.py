"""The five rights that destroy nothing: planned, approved and carried out by the same moves as an erasure.

Guarantees: a plan is frozen and hashed, a second person approves it, every change is told the record. Nothing is
exported while a copy that is about others waits for a human; what failed is never passed over. Each step can be run
again after a crash: rows say what is done. Not here: what goes into an export (`erasure.export`), what a correction
touches (`erasure.rectify`), how long a restriction stands (`erasure.restrict`).
"""

from __future__ import annotations

from datetime import datetime
from itertools import chain

from sqlmodel import Session

from erasure import copies, exporting, history, rectifying, restrict
from erasure.desk import facts_of
from erasure.history import fact_of
from erasure.models import RequestRow
from erasure.parts import Parts, Tenant
from erasure.recipients import begin_to_tell
from erasure.request import CopyState, Move, Right, State, answer, move
from ledger.entry import Kind

_WORKER = "worker"


def carry_on(parts: Parts, tenant: Tenant, request_id: str, now: datetime) -> State:
    """Bring an approved request as far as it goes now; returns its state."""
    with parts.transactions(tenant.tenant_id) as session:
        row = history.load(session, tenant.tenant_id, request_id, lock=True)
        if row.state == State.APPROVED:
            row.state = move(State(row.state), Move.START, facts_of(row, _WORKER, now))
            _tell(session, parts, row, "executing", now)
        if row.state == State.VERIFYING:
            # A crash between the two moves at the end: the copies say the same again.
            row.state = move(State(row.state), Move.REOPEN, facts_of(row, _WORKER, now))
            session.add(row)
        if row.state != State.EXECUTING:
            return State(row.state)
        running = copies.of(tenant.tenant_id, request_id, CopyState.RUNNING)
        copies.update(session, running, state=CopyState.PENDING.value)
        right = Right(row.right)
    match right:
        case Right.ACCESS | Right.PORTABILITY:
            exporting.make(parts, tenant, request_id, now)
        case Right.RESTRICTION | Right.OBJECTION:
            _restrict(parts, tenant.tenant_id, request_id, now)
        case _:
            rectifying.apply(parts, tenant, request_id, now)
    return _finish(parts, tenant.tenant_id, request_id, now)


def _restrict(parts: Parts, tenant_id: int, request_id: str, now: datetime) -> None:
    with parts.transactions(tenant_id, write=False) as session:
        row = history.load(session, tenant_id, request_id)
        body = None if restrict.has_begun(session, row) else restrict.body_of(session, row)
    if body is not None:
        parts.record.event(tenant_id, Kind.RESTRICTION_SET, body, now)
    with parts.transactions(tenant_id) as session:
        row = history.load(session, tenant_id, request_id, lock=True)
        restrict.begin(session, row)
        copies.update(
            session,
            copies.of(tenant_id, request_id, CopyState.PENDING),
            state=CopyState.RESTRICTED.value,
            started_at=now,
            finished_at=now,
            method="kept and not processed",
            verified_at=now,
            verified_how="decided again by every sweep and request",
        )


def _finish(parts: Parts, tenant_id: int, request_id: str, now: datetime) -> State:
    with parts.transactions(tenant_id) as session:
        row = history.load(session, tenant_id, request_id, lock=True)
        if row.state != State.EXECUTING:
            return State(row.state)
        pages = copies.pages(session, copies.Outline, copies.of(tenant_id, request_id))
        found = answer(map(fact_of, chain.from_iterable(pages))).state
        if found is None:
            return State(row.state)
        row.state = move(State(row.state), Move.CONFIRM, facts_of(row, _WORKER, now))
        row.state = found
        if found is State.COMPLETED:
            row.completed_at = now
            begin_to_tell(session, row, now)
        _tell(session, parts, row, found.value, now)
        return found


def _tell(session: Session, parts: Parts, row: RequestRow, event: str, now: datetime) -> None:
    session.add(row)
    body = {"request": row.request_id, "state": row.state, "right": row.right}
    entry_id = parts.record.announce(session, row.tenant_id, Kind.REQUEST_STATE, body, now)
    history.add_event(session, row, event=event, actor=_WORKER, now=now, detail={"state": row.state}, entry_id=entry_id)
