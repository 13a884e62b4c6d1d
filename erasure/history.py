"""Rows of requests, their history and their copies: read, locked, written, shown.

Guarantees: a change of state and its line of history share the caller's transaction. Views show opaque ids, counts and
dates only; what a person said stays sealed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure.collateral import view_of as view_of_others
from erasure.copies import Outline, put_copies
from erasure.errors import UnknownRequest
from erasure.models import CopyRow, RequestEvent, RequestRow
from erasure.overlaps import IDENTIFIERS, warnings_of
from erasure.plan import PlanCopy, instant_text
from erasure.recipients import TELL_BY, recipients_of
from erasure.request import FINAL, WAITING, CopyFact, CopyState, State
from registry.cones import pending_about
from retention.decide import Because

__all__ = ["Outline", "put_copies"]
PROCESSES = "processes"
"""The fact, and the member of `waiting_for`, that counts processes which may still hold a destroyed key."""


def load(session: Session, tenant_id: int, request_id: str, *, lock: bool = False) -> RequestRow:
    """The request's row, locked against other writers where asked. Raises: UnknownRequest."""
    row = session.get(RequestRow, (tenant_id, request_id), with_for_update=True if lock else None)
    if row is None:
        raise UnknownRequest("request", request_id)
    return row


def add_event(
    session: Session,
    row: RequestRow,
    *,
    event: str,
    actor: str,
    now: datetime,
    detail: Mapping[str, Any] | None = None,
    entry_id: str | None = None,
) -> None:
    """One more line of the request's history. `detail` holds codes, counts and ids only."""
    last = session.scalar(
        sa.select(sa.func.max(RequestEvent.n)).where(
            col(RequestEvent.tenant_id) == row.tenant_id, col(RequestEvent.request_id) == row.request_id
        )
    )
    session.add(
        RequestEvent(
            tenant_id=row.tenant_id,
            request_id=row.request_id,
            n=(last or 0) + 1,
            at=now,
            event=event,
            actor=actor,
            detail=dict(detail or {}),
            entry_id=entry_id,
        )
    )
    session.flush()


def events_of(session: Session, tenant_id: int, request_id: str) -> list[RequestEvent]:
    """The history in its order."""
    return list(
        session.exec(
            select(RequestEvent)
            .where(RequestEvent.tenant_id == tenant_id, RequestEvent.request_id == request_id)
            .order_by(col(RequestEvent.n))
        )
    )


def outdated(session: Session, row: RequestRow) -> tuple[str, ...]:
    """What a plan no longer covered when it was to be approved; nothing where the last plan was not sent back."""
    if row.plan_hash is not None or row.state != State.PLANNED:
        return ()
    back = [event for event in events_of(session, row.tenant_id, row.request_id) if event.event == "plan_outdated"]
    return tuple(back[-1].detail["new"]) if back else ()


def copies_of(
    session: Session, tenant_id: int, owner: str, *states: str, kind: str | None = None, data_class: str | None = None
) -> list[CopyRow]:
    """The copies of a request or sweep in their order, all or those in some states."""
    query = select(CopyRow).where(CopyRow.tenant_id == tenant_id, CopyRow.owner == owner)
    if states:
        query = query.where(col(CopyRow.state).in_(states))
    if kind is not None:
        query = query.where(CopyRow.kind == kind)
    if data_class is not None:
        query = query.where(CopyRow.data_class == data_class)
    return list(session.exec(query.order_by(col(CopyRow.copy_no))))


def counts_of(session: Session, tenant_id: int, owner: str) -> dict[str, int]:
    """How many copies stand in each state."""
    rows = session.execute(
        sa.select(col(CopyRow.state), sa.func.count())
        .where(col(CopyRow.tenant_id) == tenant_id, col(CopyRow.owner) == owner)
        .group_by(col(CopyRow.state))
    )
    return {str(row[0]): int(row[1]) for row in sorted(tuple(row) for row in rows)}


def fact_of(row: CopyRow | Outline) -> CopyFact:
    """What completion must know about a copy."""
    return CopyFact(
        copy_no=row.copy_no,
        state=row.state,
        required=row.required,
        level=row.level,
        key_state=row.key_state,
        verified=row.verified_at is not None,
    )


def numbered(lines: Sequence[PlanCopy], *, after: int) -> list[PlanCopy]:
    """The lines with numbers behind the last one that is taken."""
    return [replace(copy, copy_no=after + place) for place, copy in enumerate(lines, start=1)]


def drop_copies(session: Session, tenant_id: int, owner: str) -> None:
    """Remove the lines of a plan that is being replaced; never called after approval."""
    session.flush()  # expiring would drop what the caller changed and did not write yet
    session.connection().execute(
        sa.delete(CopyRow).where(col(CopyRow.tenant_id) == tenant_id, col(CopyRow.owner) == owner)
    )
    session.expire_all()


def plan_copy_of(row: CopyRow) -> PlanCopy:
    """The plan's line that a row was made from."""
    return PlanCopy(
        copy_no=row.copy_no,
        kind=row.kind,
        ref=ref_of(row),
        artifact_id=row.artifact_id,
        key_id=row.key_id,
        entry_idx=row.entry_idx,
        data_class=row.data_class,
        store=row.store,
        action=row.action,
        rule=row.rule,
        because=becauses_of(row),
        until=row.until,
        path=tuple(row.path),
        collateral=row.collateral,
        depth=row.depth,
        required=row.required,
        state=row.state,
        detail=row.detail,
    )


class _Reasoned(Protocol):
    @property
    def because(self) -> list[dict[str, Any]]: ...


def becauses_of(row: _Reasoned) -> tuple[Because, ...]:
    """The reasons of a copy's action, as they were decided."""
    return tuple(Because(reason["rule"], reason["result"], reason["detail"]) for reason in row.because)


def ref_of(row: CopyRow) -> str:
    """The public id of a copy as it was planned: an artifact's name, a key's or an entry's id."""
    return row.ref


def view_of(session: Session, row: RequestRow) -> dict[str, Any]:
    """The request as the contract shows it. Source: API §6."""
    counts = counts_of(session, row.tenant_id, row.request_id)
    view: dict[str, Any] = {
        "id": row.request_id,
        "state": row.state,
        "right": row.right,
        "regulation": row.regulation,
        "jurisdiction": row.jurisdiction,
        "timezone": row.timezone,
        "received_at": instant_text(row.received_at),
        "due_at": instant_text(row.extended_until or row.due_at),
        "acknowledge_by": _text(row.acknowledge_by),
        "extended": row.extended_until is not None,
        "answered_at": _text(row.answered_at),
        "completed_at": _text(row.completed_at),
        "final_due_at": _text(row.final_due_at),
        "plan_hash": row.plan_hash,
        "duplicate_of": row.duplicate_of,
        "created_by": row.created_by,
        "approvals": row.approvals,
        "paused": "paused_at" in row.details,
        "identifiers": dict(zip(("verified", "of"), row.details.get(IDENTIFIERS, (None, None)), strict=True)),
        "counts": counts,
        # A request that ended without its copies waits for none of them any more.
        "waiting_for": {} if row.state in FINAL else {s: count for s, count in counts.items() if s in WAITING},
        "history": [
            {
                "at": instant_text(line.at),
                "event": line.event,
                "actor": line.actor,
                "detail": line.detail,
                "entry": line.entry_id,
            }
            for line in events_of(session, row.tenant_id, row.request_id)
        ],
    }
    if row.state in (State.EXECUTING, State.VERIFYING) and (
        cones := pending_about(session, row.tenant_id, row.subjects)
    ):
        view["waiting_for"]["propagation"] = cones
    if row.state == State.EXECUTING and (behind := row.details.get(PROCESSES)):
        view["waiting_for"][PROCESSES] = behind
    if found := warnings_of(session, row):
        view["warnings"] = found
    if told := recipients_of(session, row):
        view["recipients"] = [one.as_json() for one in told]
        view["tell_recipients_by"] = row.details.get(TELL_BY)
    if "statement" in row.details:
        view["statement"] = row.details["statement"]
    return view


def copy_view(row: CopyRow) -> dict[str, Any]:
    """A copy as the contract shows it. Source: API §6."""
    return {
        "copy": row.copy_no,
        row.kind: ref_of(row),
        "data_class": row.data_class,
        "store": row.store,
        "action": row.action,
        "rule": row.rule,
        "because": [reason._asdict() for reason in becauses_of(row)],
        "until": _text(row.until),
        "path": list(row.path),
        "collateral": view_of_others(row.collateral),
        "state": row.state,
        "waiting_since": _text(row.started_at) if row.state == CopyState.AWAITING_EXTERNAL else None,
        "level": row.level,
        "key_state": row.key_state,
        "required": row.required,
        "residual_until": row.residual_until,
        "attempts": row.attempts,
        "detail": row.detail,
        "verified_at": _text(row.verified_at),
        "evidence": [entry for entry in (row.evidence, row.verify_evidence) if entry],
    }


def _text(at: datetime | None) -> str | None:
    return None if at is None else instant_text(at)
