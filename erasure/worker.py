"""Wakes what is due: execution, confirmation, certificates, the end of holds, the quiet period, late copies.

Guarantees: a request is worked on by one worker at a time, by a lease in its row; a worker that dies loses it and
another goes on from the tables. Each call does what can be done now and returns; nothing waits inside. One request's
failure does not stop the others: the first error is raised after all had their turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure import copies, due, history, late
from erasure.additions import Approved, addendum
from erasure.answers import carry_on
from erasure.captures import sealed_places
from erasure.confirm import confirm
from erasure.desk import facts_of
from erasure.due import Due
from erasure.execute import destroy_due_keks, execute
from erasure.fences import UNDER_WAY
from erasure.issue import issue, state_of
from erasure.leases import Lease, leased
from erasure.models import CopyRow, RequestRow
from erasure.parts import Parts, Tenant
from erasure.plan import IDENTITY, PlanCopy, build
from erasure.regenerate import regenerate
from erasure.request import DONE, WAITING, CopyState, Move, Right, State, move
from erasure.sealed import RequestSeal
from erasure.selector import select_artifacts
from erasure.standing import claim_of
from erasure.tasks import overdue
from erasure.work import BY_HAND, COLLATERAL_UNSEEN, PART, lines_now, load_work
from ledger.entry import Kind
from registry.cones import pending_about
from retention.decide import DESTRUCTIVE
from retention.parts import split_ref
from retention.stops import holds_in_force

FINAL_RETRY = timedelta(days=1)
PART_LAG = timedelta(days=1)
"""How long a part may outlive the date to which a duty kept it, when another of its request went within that time."""
AGENT_RETRY = timedelta(seconds=30)
"""Until it is looked again whether an agent's process has answered."""
_MAX_ROUNDS = 8
_WORKER = "worker"
_DATED = "dated_parts_at"
_LOOK_AGAIN = timedelta(hours=1)
"""Until a store that was silent at the end of the quiet period is asked again."""
_SILENT = "silent_since"
"""Since when a request's final certificate waits for stores that cannot be looked at again."""
_STOPPED = "stopped_by"
"""Under which name a request keeps the kind of error that its last attempt ended with."""


def run_due(parts: Parts, tenant: Tenant, now: datetime, *, worker: str = "worker") -> int:
    """Do everything that is due for a tenant; returns how many requests got on.

    One that was worked on and stands where it stood waits for somebody, or for its next attempt: it is none of them.
    Where one got on, more may be due at once, and who asks again finds it.
    """
    tenant_id = tenant.tenant_id
    with parts.transactions(tenant_id, write=False) as session:
        found = due.look(session, parts.vault, tenant_id, now)
    if not any(found):
        return 0
    done, failures = 0, []
    for request_id in _after_changes(parts, tenant, found, now):
        try:
            with leased(parts, tenant_id, request_id, worker, now) as lease:
                if lease is None:
                    continue
                before = _stands_of(lease.request)
                carry(parts, tenant, request_id, parts.instant(now), before, lease)
            after = _stands_of(lease.request)
            if after.stopped_by is not None:
                _told(parts, tenant, request_id, None, now)
            done += after.state is not before.state
        except Exception as error:  # noqa: BLE001 - raised below, after the others had their turn
            failures.append(error)
            with suppress(Exception):  # what keeps the work from being done may keep this from being told
                _told(parts, tenant, request_id, error, now)
    if found.is_ending:
        with parts.transactions(tenant_id, write=False) as session:  # the work before may have taken long
            found = due.look_at_ends(session, parts.vault, tenant_id, now)
    if found.has_keks:
        destroy_due_keks(parts, tenant_id, now)
    for request_id in found.uncertified:
        issue(parts, tenant, request_id, now, version="interim", state=State.COMPLETED_WITH_EXCEPTIONS)
    for request_id in found.final:
        try:
            done += finish(parts, tenant, request_id, now)
        except Exception as error:  # noqa: BLE001 - as above
            failures.append(error)
    if failures:
        raise failures[0]
    return done


def _after_changes(parts: Parts, tenant: Tenant, found: Due, now: datetime) -> tuple[str, ...]:
    """The requests to be worked on, once those that others' silence, late copies or ended holds move were moved."""
    if not (found.has_late_tasks or found.has_late_copies or found.may_wake):
        return found.requests
    if found.has_late_tasks:
        overdue(parts, tenant, now)
    if found.has_late_copies:
        _join_late_copies(parts, tenant, now)
    if found.may_wake:
        _wake_ended_holds(parts, tenant, now)
    with parts.transactions(tenant.tenant_id, write=False) as session:
        return due.requests(session, tenant.tenant_id, now)


def _told(parts: Parts, tenant: Tenant, request_id: str, error: Exception | None, now: datetime) -> None:
    """Tell on the request's own timeline what keeps it from being worked on, once for each reason, and when it is over.

    The kind of error only: its words may hold what a store said.
    """
    reason = None if error is None else type(error).__name__
    with parts.transactions(tenant.tenant_id, write=False) as session:
        if history.load(session, tenant.tenant_id, request_id).details.get(_STOPPED) == reason:
            return
    with parts.transactions(tenant.tenant_id) as session:
        row = history.load(session, tenant.tenant_id, request_id, lock=True)
        kept = {name: value for name, value in row.details.items() if name != _STOPPED}
        row.details = kept if reason is None else {**kept, _STOPPED: reason}
        session.add(row)
        detail = {} if reason is None else {"error": reason}
        event = "work_goes_on" if reason is None else "work_failed"
        history.add_event(session, row, event=event, actor=_WORKER, now=now, detail=detail)


def advance(parts: Parts, tenant: Tenant, request_id: str, now: datetime, *, lease: Lease | None = None) -> State:
    """Bring one approved request as far as it goes now: execute, confirm, complete. Returns its state."""
    carry(parts, tenant, request_id, now, _look(parts, tenant, request_id), lease)
    return _look(parts, tenant, request_id).state


def carry(  # noqa: PLR0917 - the values of one step
    parts: Parts, tenant: Tenant, request_id: str, now: datetime, stands: _Stands, lease: Lease | None
) -> None:
    """`advance` from how the request stands, as its lease's row or a look said."""
    if stands.right is not Right.ERASURE:
        carry_on(parts, tenant, request_id, now)
        return
    for _ in range(_MAX_ROUNDS):
        if (lease is not None and not lease.is_mine) or stands.is_paused:
            return
        if stands.asks_anew and stands.state in (State.EXECUTING, State.VERIFYING):
            regenerate(parts, tenant.tenant_id, request_id, parts.instant(now))
        if stands.state in (State.APPROVED, State.EXECUTING):
            outcome = execute(parts, tenant.tenant_id, request_id, now)
            if not outcome.ready_to_confirm:
                return
            if isinstance(outcome.row, RequestRow):
                stands = _stands_of(outcome.row)._replace(asks_anew=outcome.asks_anew)
                continue
        elif stands.state is State.VERIFYING:
            confirm(parts, tenant.tenant_id, request_id, now)
            if not _complete(parts, tenant, request_id, now):
                return
        else:
            return
        stands = _look(parts, tenant, request_id)


def finish(parts: Parts, tenant: Tenant, request_id: str, now: datetime) -> bool:
    """The end of the quiet period: look at everything again, then the final certificate. True once it is issued.

    A copy that is found again returns the request to `executing`, and so does one at which nobody could look for as
    long as an agent's answer is waited for. The certificate waits until every root that could open a destroyed
    key-encryption key is gone.
    """
    with parts.transactions(tenant.tenant_id, write=False) as session:
        silent = history.load(session, tenant.tenant_id, request_id).details.get(_SILENT)
    last = silent is not None and now >= datetime.fromisoformat(silent) + parts.agent_term
    found = confirm(parts, tenant.tenant_id, request_id, now, again=True, last=last)
    with parts.transactions(tenant.tenant_id) as session:
        row = history.load(session, tenant.tenant_id, request_id, lock=True)
        if pending_about(session, tenant.tenant_id, row.subjects):
            return False
        if found.asked:
            row.final_due_at = now + AGENT_RETRY
            session.add(row)
            return False
        if found.unseen and not last:
            _wait_for(session, row, found.unseen, now)
            return False
        row.details = {name: value for name, value in row.details.items() if name != _SILENT}
        session.add(row)
        state = state_of(session, row)
        if state is None or state is State.PARTIALLY_FAILED:
            why = "nobody could look again" if found.unseen else "found in the quiet period"
            _reopen(session, parts, row, now, why=why)
            return False
        gone = history.copies_of(session, tenant.tenant_id, request_id, CopyState.KEY_DESTROYED)
        keys = [copy.key_id for copy in gone if copy.key_id is not None]
        names = [split_ref(copy.ref) for copy in gone if copy.kind == PART]
        names = sorted(parts.vault.part_infos(session, tenant.tenant_id, names))
        if (keys or names) and parts.vault.final_at(session, tenant.tenant_id, keys, names) is None:
            row.final_due_at = now + FINAL_RETRY
            session.add(row)
            return False
    return issue(parts, tenant, request_id, now, version="final", state=state) is not None


def _wait_for(session: Session, row: RequestRow, silent: Sequence[str], now: datetime) -> None:
    """Put the final certificate off: what a store does not show again is not shown. Told once."""
    row.final_due_at = now + _LOOK_AGAIN
    if _SILENT not in row.details:
        row.details = {**row.details, _SILENT: now.isoformat()}
        history.add_event(session, row, event="look_waits", actor=_WORKER, now=now, detail={"stores": list(silent)})
    session.add(row)


def _complete(parts: Parts, tenant: Tenant, request_id: str, now: datetime) -> bool:
    """Whether another round may bring more: True after a move back to execution."""
    with parts.transactions(tenant.tenant_id) as session:
        row = history.load(session, tenant.tenant_id, request_id, lock=True)
        if pending_about(session, tenant.tenant_id, row.subjects):
            return False  # a late source's people have not reached everything below it: copies may still join
        if missing := late.unjoined(session, row):
            _join(session, parts, row, missing, now)
        if _needs_execution(session, tenant.tenant_id, request_id):
            _reopen(session, parts, row, now, why="copies are not shown to be gone")
            return True
        state = state_of(session, row)
        if state is None:
            return False
        if state is State.PARTIALLY_FAILED:
            row.state = state
            session.add(row)
            body = {"request": request_id, "state": state.value}
            entry_id = parts.record.announce(session, tenant.tenant_id, Kind.REQUEST_STATE, body, now)
            history.add_event(
                session, row, event="partially_failed", actor=_WORKER, now=now, detail={"state": state.value},
                entry_id=entry_id,
            )  # fmt: skip
            return False
    issue(parts, tenant, request_id, now, version="interim", state=state)
    return False


def _needs_execution(session: Session, tenant_id: int, request_id: str) -> bool:
    """Whether something is to be erased; the identity key alone waits until nothing else waits for a person."""
    mine, identity = copies.of(tenant_id, request_id), col(CopyRow.data_class) == IDENTITY
    others = copies.states_of(session, sa.and_(mine, ~identity))
    if not others.isdisjoint((CopyState.PENDING, CopyState.RUNNING)):
        return True
    return others.isdisjoint(WAITING) and CopyState.PENDING in copies.states_of(session, sa.and_(mine, identity))


def _reopen(session: Session, parts: Parts, row: RequestRow, now: datetime, *, why: str) -> None:
    row.state = move(State(row.state), Move.REOPEN, facts_of(row, _WORKER, now))
    row.completed_at = row.final_due_at = None
    session.add(row)
    body = {"request": row.request_id, "state": row.state, "why": why}
    entry_id = parts.record.announce(session, row.tenant_id, Kind.REQUEST_STATE, body, now)
    history.add_event(
        session,
        row,
        event="reopened",
        actor=_WORKER,
        now=now,
        detail={"state": row.state, "why": why},
        entry_id=entry_id,
    )


class _Stands(NamedTuple):
    """How a request stands between two steps."""

    right: Right
    state: State
    is_paused: bool
    stopped_by: str | None
    asks_anew: bool = True
    """Whether a copy may wait for its successor."""


def _stands_of(row: RequestRow) -> _Stands:
    return _Stands(Right(row.right), State(row.state), "paused_at" in row.details, row.details.get(_STOPPED))


def _look(parts: Parts, tenant: Tenant, request_id: str) -> _Stands:
    with parts.transactions(tenant.tenant_id, write=False) as session:
        return _stands_of(history.load(session, tenant.tenant_id, request_id))


def _wake_ended_holds(parts: Parts, tenant: Tenant, now: datetime) -> None:
    """What was retained and may go now: the request goes on under its own id and date."""
    with parts.transactions(tenant.tenant_id) as session:
        rows = session.exec(
            select(RequestRow).where(
                RequestRow.tenant_id == tenant.tenant_id, RequestRow.state == State.COMPLETED_WITH_RETAINED
            )
        ).all()
        known = holds_in_force(session, tenant.tenant_id) if rows else ()
        holds = frozenset(hold.hold_id for hold in known)
        for row in rows:
            work = load_work(session, tenant.tenant_id, row.request_id, lock=True)
            kept = history.copies_of(session, tenant.tenant_id, row.request_id, CopyState.RETAINED)
            # What a human decided to keep is not decided again by a rule.
            asked = [copy for copy in kept if copy.data_class != IDENTITY and copy.method != BY_HAND]
            asked = [copy for copy in asked if not _plainly_stays(copy, row, holds, now)]
            lines = lines_now(session, work, asked, now) if asked else {}
            if any(line.action in DESTRUCTIVE for line in lines.values()):
                row.details = {key: value for key, value in row.details.items() if key != "final_issued"}
                if any(copy.kind == PART and copy.until is not None for copy in asked):
                    row.details = {**row.details, _DATED: now.isoformat()}
                _reopen(session, parts, row, now, why="a ground to retain has ended")


def _plainly_stays(copy: CopyRow, row: RequestRow, holds: frozenset[str], now: datetime) -> bool:
    """Whether a part stays without a look at all its facts: thousands may wait for one hold or for days of one month.

    Parts that end by date are let go once a day, so that a month's request is not opened for each of its moments.
    """
    if copy.kind != PART:
        return False
    if copy.until is None:
        return any(reason.detail in holds for reason in history.becauses_of(copy) if reason.rule == "hold")
    last = row.details.get(_DATED)
    return copy.until > now or (last is not None and now < datetime.fromisoformat(last) + PART_LAG)


def _join_late_copies(parts: Parts, tenant: Tenant, now: datetime) -> None:
    """Items registered about a fenced person join every erasure that has to see them gone, as a logged addendum."""
    with parts.transactions(tenant.tenant_id) as session:
        found = due.late_copies(session, tenant.tenant_id)
        for request_id, ids in late.joins(session, tenant.tenant_id, found).items():
            row = session.get(RequestRow, (tenant.tenant_id, request_id), with_for_update=True)
            if row is not None and State(row.state) in (*UNDER_WAY, *DONE, State.PARTIALLY_FAILED):
                _join(session, parts, row, ids, now)


def _unseen(line: PlanCopy) -> PlanCopy:
    """A line that nobody saw before: what is about others too waits for a second person."""
    if line.collateral is None or line.state not in (CopyState.PENDING, CopyState.AWAITING_EXTERNAL):
        return line
    return replace(line, state=CopyState.AWAITING_HUMAN, action="review", detail=COLLATERAL_UNSEEN)


def _join(session: Session, parts: Parts, row: RequestRow, ids: list[int], now: datetime) -> None:
    known = set(
        session.exec(
            select(CopyRow.artifact_id).where(CopyRow.tenant_id == row.tenant_id, CopyRow.owner == row.request_id)
        )
    )
    new = [artifact_id for artifact_id in ids if artifact_id not in known]
    if not new:
        return
    if "artifacts" in row.details:
        row.details = {**row.details, "artifacts": sorted({*row.details["artifacts"], *new})}
    given = select_artifacts(
        session,
        row.tenant_id,
        new,
        owner=row.request_id,
        claim=claim_of(row),
        now=now,
        subjects=frozenset(row.subjects),
    )
    approved = copies.read(session, Approved, copies.of(row.tenant_id, row.request_id))
    more = addendum(approved, build(given))
    seal = RequestSeal(session, parts.vault, row.tenant_id, owner=row.request_id, key_no=row.request_no)
    places = sealed_places(session, parts, row.tenant_id, seal, more.added)
    history.put_copies(session, row.tenant_id, row.request_id, [_unseen(copy) for copy in more.added], places)
    body = {"request": row.request_id, "addendum": [copy.ref for copy in more.added], "late": True}
    entry_id = parts.record.announce(session, row.tenant_id, Kind.REQUEST_STATE, body, now)
    details = {key: value for key, value in row.details.items() if key != "final_issued"}
    row.details = {**details, "addenda": [*details.get("addenda", []), entry_id]}
    session.add(row)
    history.add_event(
        session,
        row,
        event="late_copies",
        actor=_WORKER,
        now=now,
        detail={"copies": len(more.added)},
        entry_id=entry_id,
    )
    if State(row.state) not in UNDER_WAY:
        _reopen(session, parts, row, now, why="late copies")
