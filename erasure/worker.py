"""Wakes what is due: execution, confirmation, certificates, the end of holds, the quiet period, late copies.

Guarantees: a request is worked on by one worker at a time, by a lease in its row; a worker that dies loses it and
another goes on from the tables. Each call does what can be done now and returns; nothing waits inside. One request's
failure does not stop the others: the first error is raised after all had their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure import copies, history
from erasure.additions import Approved, addendum
from erasure.answers import carry_on
from erasure.confirm import confirm
from erasure.desk import facts_of
from erasure.execute import destroy_due_keks, execute, pending_work
from erasure.issue import issue, state_of
from erasure.leases import Lease, leased
from erasure.models import CopyRow, RequestRow
from erasure.parts import Parts, Tenant
from erasure.plan import IDENTITY, PlanCopy, build
from erasure.regenerate import regenerate
from erasure.request import DONE, WAITING, CopyState, Move, Right, State, move
from erasure.selector import select_artifacts
from erasure.standing import claim_of
from erasure.tasks import late_tasks, overdue
from erasure.work import BY_HAND, COLLATERAL_UNSEEN, PART, lines_now, load_work
from ledger.entry import Kind
from ledger.models import Instant
from registry import artifacts
from registry.cones import pending_about
from registry.models import Artifact
from retention.decide import DESTRUCTIVE
from retention.parts import split_ref
from retention.stops import holds_in_force

FINAL_RETRY = timedelta(days=1)
PART_LAG = timedelta(days=1)
"""How long a part may outlive the date to which a duty kept it, when another of its request went within that time."""
LATE_AT_ONCE = 1_000
"""Late copies that one pass puts into their requests' plans."""
AGENT_RETRY = timedelta(seconds=30)
"""Until it is looked again whether an agent's process has answered."""
_ACTIVE = (State.APPROVED, State.EXECUTING, State.VERIFYING)
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
    """Do everything that is due for a tenant; returns how many requests were worked on."""
    if _is_quiet(parts, tenant, now):
        return 0
    overdue(parts, tenant, now)
    _join_late_copies(parts, tenant, now)
    _wake_ended_holds(parts, tenant, now)
    done, failures = 0, []
    for request_id in _due(parts, tenant, now):
        try:
            with leased(parts, tenant.tenant_id, request_id, worker, now) as lease:
                if lease is None:
                    continue
                advance(parts, tenant, request_id, parts.instant(now), lease=lease)
                _told(parts, tenant, request_id, None, now)
                done += 1
        except Exception as error:  # noqa: BLE001 - raised below, after the others had their turn
            failures.append(error)
            with suppress(Exception):  # what keeps the work from being done may keep this from being told
                _told(parts, tenant, request_id, error, now)
    destroy_due_keks(parts, tenant.tenant_id, now)
    for request_id in _uncertified(parts, tenant):
        issue(parts, tenant, request_id, now, version="interim", state=State.COMPLETED_WITH_EXCEPTIONS)
    for request_id in _final_due(parts, tenant, now):
        try:
            finish(parts, tenant, request_id, now)
            done += 1
        except Exception as error:  # noqa: BLE001 - as above
            failures.append(error)
    if failures:
        raise failures[0]
    return done


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


def _is_quiet(parts: Parts, tenant: Tenant, now: datetime) -> bool:
    """Whether nothing of the tenant can be due: one look, since every process asks every other second."""
    tenant_id = tenant.tenant_id
    mine = col(RequestRow.tenant_id) == tenant_id
    requests = sa.or_(
        col(RequestRow.state).in_((*_ACTIVE, State.COMPLETED_WITH_RETAINED)),
        sa.and_(col(RequestRow.state).in_(sorted(DONE)), col(RequestRow.final_due_at) <= sa.literal(now, Instant())),
        sa.and_(col(RequestRow.state) == State.COMPLETED_WITH_EXCEPTIONS, col(RequestRow.final_due_at).is_(None)),
    )
    with parts.transactions(tenant_id, write=False) as session:
        looks: tuple[Callable[[], Any], ...] = (
            lambda: session.execute(sa.select(col(RequestRow.request_id)).where(mine, requests).limit(1)).first(),
            lambda: session.execute(late_tasks(tenant_id, now).limit(1)).first(),
            lambda: _late_copies(session, tenant_id),
            lambda: parts.vault.due_keks(session, tenant_id, now),
        )
        return not any(look() for look in looks)


def advance(parts: Parts, tenant: Tenant, request_id: str, now: datetime, *, lease: Lease | None = None) -> State:
    """Bring one approved request as far as it goes now: execute, confirm, complete. Returns its state."""
    stands = _look(parts, tenant, request_id)
    if stands.right is not Right.ERASURE:
        return carry_on(parts, tenant, request_id, now)
    for _ in range(_MAX_ROUNDS):
        if (lease is not None and not lease.is_mine) or stands.is_paused:
            break
        if stands.state in (State.EXECUTING, State.VERIFYING):
            regenerate(parts, tenant.tenant_id, request_id, parts.instant(now))
        if stands.state in (State.APPROVED, State.EXECUTING):
            goes_on = execute(parts, tenant.tenant_id, request_id, now).ready_to_confirm
        elif stands.state is State.VERIFYING:
            confirm(parts, tenant.tenant_id, request_id, now)
            goes_on = _complete(parts, tenant, request_id, now)
        else:
            break
        stands = _look(parts, tenant, request_id)
        if not goes_on:
            break
    return stands.state


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


def _look(parts: Parts, tenant: Tenant, request_id: str) -> _Stands:
    with parts.transactions(tenant.tenant_id, write=False) as session:
        row = history.load(session, tenant.tenant_id, request_id)
        return _Stands(Right(row.right), State(row.state), "paused_at" in row.details)


def _due(parts: Parts, tenant: Tenant, now: datetime) -> list[str]:
    """Requests that an advance may move: approved ones, others with work that is ready or unverified; none on pause."""
    with parts.transactions(tenant.tenant_id, write=False) as session:
        rows = session.exec(
            select(RequestRow)
            .where(RequestRow.tenant_id == tenant.tenant_id, col(RequestRow.state).in_(_ACTIVE))
            .order_by(col(RequestRow.due_at), col(RequestRow.request_id))
        ).all()
        return [row.request_id for row in rows if "paused_at" not in row.details and _may_move(session, row, now)]


def _may_move(session: Session, row: RequestRow, now: datetime) -> bool:
    """A request that is being executed is left alone while its next attempt is not due."""
    if row.state != State.EXECUTING or pending_work(session, row.tenant_id, row.request_id, now):
        return True
    still = copies.of(row.tenant_id, row.request_id, CopyState.PENDING, CopyState.RUNNING)
    return not copies.states_of(session, still)


def _final_due(parts: Parts, tenant: Tenant, now: datetime) -> list[str]:
    with parts.transactions(tenant.tenant_id, write=False) as session:
        rows = session.exec(
            select(RequestRow).where(
                RequestRow.tenant_id == tenant.tenant_id,
                col(RequestRow.state).in_(sorted(DONE)),
                col(RequestRow.final_due_at) <= now,
            )
        )
        return [row.request_id for row in rows if not row.details.get("final_issued")]


def _uncertified(parts: Parts, tenant: Tenant) -> list[str]:
    """Requests that a person ended with exceptions, which have no certificate of that yet."""
    with parts.transactions(tenant.tenant_id, write=False) as session:
        rows = session.exec(
            select(RequestRow).where(
                RequestRow.tenant_id == tenant.tenant_id,
                RequestRow.right == Right.ERASURE,
                RequestRow.state == State.COMPLETED_WITH_EXCEPTIONS,
                col(RequestRow.final_due_at).is_(None),
            )
        )
        return [row.request_id for row in rows if not row.details.get("final_issued")]


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
    """Items registered about a fenced person join the request that fenced them, as a logged addendum."""
    with parts.transactions(tenant.tenant_id) as session:
        by_request: dict[str, list[int]] = {}
        for late in _late_copies(session, tenant.tenant_id):
            by_request.setdefault(late.request_id, []).append(late.artifact_id)
        for request_id, ids in sorted(by_request.items()):
            row = session.get(RequestRow, (tenant.tenant_id, request_id), with_for_update=True)
            if row is not None and State(row.state) in (*_ACTIVE, *DONE, State.PARTIALLY_FAILED):
                _join(session, parts, row, ids, now)


def _late_copies(session: Session, tenant_id: int) -> list[artifacts.LateCopy]:
    """Artifacts marked for removal under a request whose plan does not have them."""
    planned = sa.select(col(CopyRow.copy_no)).where(
        col(CopyRow.tenant_id) == col(Artifact.tenant_id),
        col(CopyRow.artifact_id) == col(Artifact.id),
        # Of no index: without statistics PostgreSQL otherwise reads all copies of the request for each artifact.
        col(CopyRow.owner).concat("") == col(Artifact.request_id),
    )
    return artifacts.late_copies(session, tenant_id, but=planned.exists(), limit=LATE_AT_ONCE)


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
    history.put_copies(session, row.tenant_id, row.request_id, [_unseen(copy) for copy in more.added], {})
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
    if State(row.state) not in _ACTIVE:
        _reopen(session, parts, row, now, why="late copies")
