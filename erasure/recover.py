"""After a restore of our own database: what the record decided takes effect again before anything is served.

A database that is older than the record (a restored backup, a failover, a crash between a batch and its commit):

 1. Note in the unlocked store from where on the record was not applied; a crash below begins again from there.
 2. Rows that the unlocked store holds and the database lacks, entries of the batches, fences, holds, tokens and
    destroyed keys of the record (`registry.rebuild`).
 3. Each erasure that was approved since is open again under its own id: its request's row is made anew where it is
    lost, and whatever came back alive is in its plan, but for what a human decided to keep. A fence without an approval
    is lifted. A request that was called off since is over, whatever the backup was about to do for it.
 4. Carry these requests out, as far as the stores answer now. What a store does not answer stays open, not forgotten.
 5. Remove the note.

Guarantees: without the log nothing is healed and the caller serves nothing; running it again changes nothing. Not
here: who may run it, stores that were restored (`erasure.revived`), registered copies that only the lost days knew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from connectors.errors import ConnectorError
from erasure import history
from erasure.additions import addendum
from erasure.errors import LogMissing
from erasure.models import CopyRow, RequestRow, RequestSubject
from erasure.parts import Parts, Tenant
from erasure.plan import build
from erasure.planning import request_seal
from erasure.request import DONE, FINAL, CopyState, Right, State
from erasure.revived import begin_again, carry_out, tell_lines
from erasure.selector import select_subjects
from erasure.standing import claim_of
from erasure.work import BY_HAND
from ledger.batches import batch_key
from ledger.behind import Behind, note, noted, settle
from ledger.entry import Kind
from ledger.errors import ObjectMissing
from ledger.models import EntryRow, LogState
from ledger.objects import HotStore, ObjectStore
from registry import artifacts, limited, subjects
from registry.decided import Decided, kept_by_hand
from registry.errors import RegistryError
from registry.ids import new_id
from registry.keyed import chunks
from registry.models import Artifact, Subject
from registry.rebuild import Rebuild
from registry.sets import members

MARGIN = timedelta(minutes=1)
"""Rows are written with the time of the call that made them; none is younger than its entries by more."""
_WALK_CHUNK = 2_000
_WORKER = "recovery"
_UNREACHED = (ConnectorError, RegistryError, OSError)


@dataclass(slots=True, kw_only=True)
class Healed:
    """What a database lacked of the record, and what was done about it."""

    tenant: str
    behind: int = 0
    """How many entries the record had beyond the database."""
    rows: int = 0
    keys: int = 0
    decisions: int = 0
    fenced: int = 0
    holds: int = 0
    destroyed: int = 0
    requests: dict[str, str] = field(default_factory=dict)
    """Erasures that were opened again, with the state they reached."""
    faults: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What recovery works with beside the desk's parts."""

    parts: Parts
    rebuild: Rebuild
    locked: ObjectStore
    hot: HotStore


def heal(recovery: Recovery, tenant: Tenant, now: datetime) -> Healed | None:
    """Bring the tenant's database to where the record is; None where it was there already.

    Raises: LogMissing, LogForked, LogRolledBack, JournalUnreadable, and what stores and database raise.
    """
    parts = recovery.parts
    size = _position(recovery, tenant)
    begun = noted(recovery.hot, tenant.log_id)
    if begun is not None:
        size = min(size, begun.size)
    elif not _is_behind(recovery, tenant):
        return None
    since = _written_until(recovery, tenant, size)
    if begun is not None and begun.since is not None:
        since = min(since, begun.since)
    note(recovery.hot, tenant.log_id, Behind(size=size, since=since))  # 1
    made = recovery.rebuild.catch_up(  # 2
        tenant.tenant_id, tenant.log_id, size=size, since=since, now=now, grace=parts.kek_grace
    )
    # The database may have been copied between the event of a hold and its row: nothing is carried out before it is in.
    recovery.rebuild.finish_holds(tenant.tenant_id, tenant.log_id, now)
    healed = Healed(
        tenant=tenant.name, behind=made.entries - size, rows=made.rows, keys=made.keys, decisions=made.events,
        fenced=made.fenced, holds=made.holds, destroyed=made.destroyed, faults=made.faults, lost=made.lost,
    )  # fmt: skip
    opened = []
    _note_ends(parts, tenant, made.decided, now)
    for case in _cases(made.decided):  # 3
        alive = _reapply(parts, tenant, case, now)
        if alive is None:
            healed.lost.append(f"what the erasure {case.request} was limited to: file it again")
        elif alive:
            opened.append(case.request)
    if parts.certificates is not None:
        # What was issued stands: a certificate of the work done again is a newer one, which names the one before.
        parts.certificates.restore(tenant.tenant_id, tenant.log_id, now)
    for request_id in opened:  # 4
        healed.requests[request_id] = carry_out(parts, tenant, request_id, now)
    settle(recovery.hot, tenant.log_id)  # 5
    return healed


def _position(recovery: Recovery, tenant: Tenant) -> int:
    """How many entries the database knows."""
    with recovery.parts.transactions(tenant.tenant_id, write=False) as session:
        state = session.get(LogState, tenant.tenant_id)
        if state is None:
            raise LogMissing(tenant.name, "the database has no head of this log")
        size, batch = state.size, state.batch_first
    if batch is not None:
        try:
            recovery.locked.head(f"{tenant.log_id}/{batch_key(batch)}")
        except ObjectMissing as error:
            raise LogMissing(tenant.name, f"its batch {batch} is not in the object store") from error
    return size


def _written_until(recovery: Recovery, tenant: Tenant, size: int) -> datetime:
    """Until when a database of that many entries was written."""
    with recovery.parts.transactions(tenant.tenant_id, write=False) as session:
        last = session.get(EntryRow, (tenant.tenant_id, size - 1)) if size else None
        first = session.scalar(
            sa.select(sa.func.min(col(Subject.created_at))).where(col(Subject.tenant_id) == tenant.tenant_id)
        )
    since = last.received if last is not None else first
    return (since or datetime.fromtimestamp(86_400, tz=UTC)) - MARGIN


def _is_behind(recovery: Recovery, tenant: Tenant) -> bool:
    """Whether the bucket has a batch that the database has not indexed."""
    with recovery.parts.transactions(tenant.tenant_id, write=False) as session:
        state = session.get(LogState, tenant.tenant_id)
        first = None if state is None else state.batch_first
    after = None if first is None else f"{tenant.log_id}/{batch_key(first)}"
    return next(iter(recovery.locked.list(f"{tenant.log_id}/batch/", after=after)), None) is not None


# ── erasures that the database does not remember ──────────────────────────────────────────────────────────────────


@dataclass(slots=True, kw_only=True)
class _Case:
    """What the record says of one request since the database stopped."""

    request: str
    received: Decided | None = None
    planned: Decided | None = None
    fence: Decided | None = None
    approved: Decided | None = None
    ended: State | None = None
    kept: set[str] = field(default_factory=set)
    """Copies that a human decided to keep."""


def _cases(decided: Iterable[Decided]) -> list[_Case]:
    """The erasures that were fenced, in the order of their fences."""
    found: dict[str, _Case] = {}
    for event in decided:
        request = event.body.get("request")
        if not isinstance(request, str):
            continue
        case = found.setdefault(request, _Case(request=request))
        match event.kind:
            case Kind.REQUEST_RECEIVED:
                case.received = event
            case Kind.REQUEST_PLANNED:
                case.planned = event
            case Kind.FENCE_SET:
                case.fence, case.approved = event, None
            case Kind.FENCE_LIFTED:
                case.fence = None
            case Kind.REQUEST_APPROVED:
                case.approved = event
            case Kind.CERTIFICATE_ISSUED | Kind.REQUEST_STATE:
                state = event.body.get("state")
                case.ended = State(state) if state in DONE | FINAL else None
            case Kind.COPY_STATE:
                case.kept |= {ref} if (ref := kept_by_hand(event)) is not None else set()
            case _:
                pass
    return [case for case in found.values() if case.fence is not None]


def _note_ends(parts: Parts, tenant: Tenant, decided: Iterable[Decided], now: datetime) -> None:
    """Tell on its own timeline that a request was called off: it is not carried out (`registry.decided`)."""
    ends = {
        str(event.body.get("request")): event
        for event in decided
        if event.kind is Kind.REQUEST_STATE and event.body.get("state") in FINAL
    }
    with parts.transactions(tenant.tenant_id) as session:
        for request_id, event in ends.items():
            row = session.get(RequestRow, (tenant.tenant_id, request_id))
            if row is not None:
                detail = {"state": row.state, "why": "the database was older than the record"}
                history.add_event(
                    session, row, event="reapplied", actor=_WORKER, now=now, detail=detail, entry_id=event.entry_id
                )


def _reapply(parts: Parts, tenant: Tenant, case: _Case, now: datetime) -> bool | None:
    """Whether the request is open again: something of it is alive in this database.

    None for one whose limit stood only in the lost rows: it is never taken for more than was approved.
    """
    with parts.transactions(tenant.tenant_id) as session:
        numbers = _numbers(session, tenant.tenant_id, case.fence)
        if case.approved is None or case.ended in FINAL:
            # A fence without an approval, or of a request that was cancelled later, closes nobody.
            subjects.lift_fence(session, tenant.tenant_id, numbers, case.request)
            limited.open_again(session, tenant.tenant_id, case.request)
            return False
        row = session.get(RequestRow, (tenant.tenant_id, case.request), with_for_update=True)
        is_new = row is None
        if row is None:
            limits = _limits(session, parts, tenant.tenant_id, case, numbers)
            if limits is None:
                return None
            row = _made_again(session, parts, tenant, case, numbers, limits, now)
        row.subjects = numbers
        _approve(row, case, case.approved, now)
        session.add(row)
        session.flush()
        alive = _plan_again(session, row, case.kept, now)
        if not alive and (is_new or row.state in DONE):
            if is_new:
                row.state = case.ended or State.COMPLETED
                row.completed_at = row.completed_at or case.approved.at
            return False
        row.state = State.EXECUTING
        row.completed_at = row.final_due_at = None
        dropped = {"final_issued", "destructive"}
        row.details = {name: value for name, value in row.details.items() if name not in dropped}
        why = "the database was older than the record"
        entry_id = tell_lines(session, parts, row, now, why=why)
        detail = {"state": row.state, "why": why, "copies": alive}
        history.add_event(session, row, event="reapplied", actor=_WORKER, now=now, detail=detail, entry_id=entry_id)
        return True


def _made_again(  # noqa: PLR0917 - called once
    session: Session, parts: Parts, tenant: Tenant, case: _Case, numbers: list[int],
    limits: Mapping[str, Any], now: datetime,
) -> RequestRow:  # fmt: skip
    """The row of a request that only the record remembers; what the person said is lost, their names are not yet."""
    said: Mapping[str, Any] = {} if case.received is None else case.received.body
    at = now if case.fence is None else case.fence.at
    row = RequestRow(
        tenant_id=tenant.tenant_id,
        request_id=case.request,
        request_no=new_id(now),
        right=str(said.get("right", Right.ERASURE)),
        regulation=str(said.get("regulation", "gdpr")),
        jurisdiction=said.get("jurisdiction"),
        timezone=str(said.get("timezone") or "UTC"),
        state=State.EXECUTING,
        subjects=numbers,
        received_at=_instant(said.get("received_at"), at),
        due_at=_instant(said.get("due_at"), at),
        created_by=_WORKER,
        created_at=now,
    )
    row.details = dict(limits)
    found = subjects.names_of(session, parts.vault, tenant.tenant_id, numbers)
    names = {name.text: name.given for group in found.values() for name in group}
    row.sealed = request_seal(session, parts, row).seal(
        "said",
        {
            "subjects": [{"text": text, "given": given} for text, given in sorted(names.items())],
            "channel": "", "note": None, "corrections": None, "identity": [],
            "names": sorted({*names, *names.values()}),
        },
    )  # fmt: skip
    session.add(row)
    session.flush()
    for text in sorted(names):
        lookup = subjects.lookup_of(parts.vault, tenant.tenant_id, subjects.parse_subject(text))
        session.merge(RequestSubject(tenant_id=tenant.tenant_id, lookup=lookup, request_id=case.request))
    if case.received is not None:
        history.add_event(
            session, row, event="received", actor=_WORKER, now=case.received.at, entry_id=case.received.entry_id
        )
    return row


def _approve(row: RequestRow, case: _Case, approved: Decided, now: datetime) -> None:
    """Plan, fence and approval as the record has them: a certificate of the work done again leans on these events."""
    facts = {"approved_entry": approved.entry_id, "approval": str(approved.body.get("approval", "dual"))}
    if case.planned is not None:
        facts["planned_entry"] = case.planned.entry_id
    if case.fence is not None:
        facts["fence_entry"] = case.fence.entry_id
    row.details = {**row.details, **facts}
    row.fence_at = case.fence.at if case.fence is not None else now
    row.plan_hash = approved.body.get("plan_hash")
    line = {
        "by": str(approved.body.get("by", "")), "at": str(approved.body.get("at", approved.at.isoformat())),
        "plan_hash": row.plan_hash, "entry": approved.entry_id,
    }  # fmt: skip
    # An approval of a plan that was sent back counts for nothing.
    row.approvals = [*(one for one in row.approvals if one.get("plan_hash") == row.plan_hash), line]


def _plan_again(session: Session, row: RequestRow, kept: Collection[str], now: datetime) -> int:
    """Put everything of the request that is alive here into its plan, to be done again; how many lines wait.

    What a second person approved was everything of these persons; nothing here needs another approval. What a human
    decided to keep, before the copy of the database was made or after, stays.
    """
    given = select_subjects(
        session, row.tenant_id, frozenset(row.subjects), owner=row.request_id, claim=claim_of(row), now=now
    )
    fresh = build(given)
    if not row.details.get("plan"):
        row.details = {
            **row.details,
            "plan": {
                "not_covered": [dict(line) for line in fresh.not_covered],
                "coverage": [dict(line) for line in fresh.coverage],
                "collateral": dict(fresh.collateral),
            },
        }
    copies = history.copies_of(session, row.tenant_id, row.request_id)
    alive = {line.ref: line for line in fresh.copies}
    for copy in copies:
        line = alive.get(history.ref_of(copy))
        if line is not None and not _is_kept(copy):
            begin_again(copy, line.state)
            session.add(copy)
    more = addendum([history.plan_copy_of(copy) for copy in copies], fresh)
    history.put_copies(session, row.tenant_id, row.request_id, more.added, {})
    session.flush()
    by_hand = set()
    for copy in history.copies_of(session, row.tenant_id, row.request_id):
        if _is_kept(copy) or history.ref_of(copy) in kept:
            copy.state, copy.method, copy.level, copy.verified_at = CopyState.RETAINED, BY_HAND, None, None
            session.add(copy)
            by_hand.add(history.ref_of(copy))
    waiting = [line for line in fresh.copies if line.state != CopyState.RETAINED and line.ref not in by_hand]
    return len(waiting)


def _is_kept(copy: CopyRow) -> bool:
    return copy.state == CopyState.RETAINED and copy.method == BY_HAND


def _limits(
    session: Session, parts: Parts, tenant_id: int, case: _Case, people: Collection[int]
) -> dict[str, Any] | None:
    """To what a request is limited, as its row keeps it; None where the record does not say it, or not any more."""
    body = {} if case.fence is None else case.fence.body
    if "subjects" in body:
        return {}
    if "artifacts" in body:
        return {"artifacts": sorted(row.id for row in _forgotten(session, tenant_id, body))}
    if "data_classes" in body:
        return {"data_classes": list(body["data_classes"])}
    scopes = None
    if "limit" in body:
        scopes = limited.scopes_in(session, parts.vault, tenant_id, people, case.request, body["limit"])
    return None if scopes is None else {"scopes": scopes}


def _forgotten(session: Session, tenant_id: int, body: Mapping[str, Any]) -> list[Artifact]:
    return list(artifacts.find_artifacts(session, tenant_id, body.get("artifacts", ())).values())


def _numbers(session: Session, tenant_id: int, fence: Decided | None) -> list[int]:
    """The persons of a fence: named whole, within limits, or by what they wanted forgotten."""
    body = {} if fence is None else fence.body
    opaque = sorted({*body.get("subjects", ()), *body.get("persons", ())})
    found: set[int] = set()
    for chunk in chunks(opaque):
        found.update(
            session.exec(
                select(Subject.subject_no).where(Subject.tenant_id == tenant_id, col(Subject.subject_id).in_(chunk))
            )
        )
    sets = {row.own_set_id for row in _forgotten(session, tenant_id, body)}
    return sorted(found.union(*members(session, tenant_id, sets).values()))


def _instant(text: object, otherwise: datetime) -> datetime:
    return datetime.fromisoformat(text) if isinstance(text, str) else otherwise
