"""Work in stores that lie in an agent's process: handed out as tasks, answered by receipts, looked at a second time.

A copy of such a store waits (`awaiting_external`) from the hand-out of its task until the answer. What an answer says
is stated, not seen: an erase counts only after a second task, to look again through a connector opened read-only, was
answered too; certificates name the actor. Silence until the deadline makes the copies `unreachable` and is announced.

Guarantees: a task goes only to tokens that carry its store, and is answered only under a claim that was handed out for
it; an answer that comes twice or too late changes nothing that is settled. No text of an agent is kept: outcomes,
levels and dates only. A copy is decided again in the transaction that hands it out, so a hold that came before wins.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from connectors.agent import BATCH
from connectors.base import Level, Outcome
from erasure import history
from erasure.copies import CHUNK, among
from erasure.errors import InvalidRequest, TaskNotClaimed, UnknownRequest
from erasure.history import ref_of
from erasure.models import ConnectorTask, CopyRow, RequestRow
from erasure.parts import Parts, Tenant
from erasure.request import GONE, CopyState
from erasure.sealed import Capture
from erasure.work import Work, captures_of, failed, joined, load_work, may_go, owners_of
from ledger.entry import Kind
from registry.acting import Acting
from registry.errors import OutsideTokenScope
from registry.ids import new_id, random_hex

LEASES = (timedelta(seconds=10), timedelta(hours=1))
_ENDS = {Outcome.ERASED: CopyState.ERASED_LOGICAL, Outcome.ALREADY_ABSENT: CopyState.ALREADY_ABSENT,
         Outcome.OWNER_MISMATCH: CopyState.AWAITING_HUMAN}  # fmt: skip
_SAID = {
    Outcome.ERASED: "stated by the agent's process: deleted and read again there",
    Outcome.ALREADY_ABSENT: "stated by the agent's process: already absent",
    Outcome.OWNER_MISMATCH: "stated by the agent's process: the item names another owner, or none",
    Outcome.LOCKED: "stated by the agent's process: the store protects the item",
    Outcome.FAILED: "stated by the agent's process: not erased",
    Outcome.ACCEPTED: "stated by the agent's process: asked for there, and not done yet",
}
_LOOKED = "stated by the agent's process in a second task, through a connector opened read-only there"
_METHOD = "the kind's connector in the agent's process"
_MOST_CANARIES, _LONGEST_CANARY = 64, 256
_MOST_FACTS, _LONGEST_FACT = 16, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What an agent states about one copy; of an erase its outcome, of a look what was found."""

    copy: int
    outcome: Outcome | None = None
    level: Level | None = None
    present: bool | None = None
    canaries: tuple[bytes, ...] = ()


def hand_out(parts: Parts, tenant_id: int, owner: str, *, store: str, numbers: Sequence[int], now: datetime) -> None:
    """Make tasks to erase what is pending there, the deepest copies first; the copies wait from now on."""
    with parts.transactions(tenant_id) as session:
        work = load_work(session, tenant_id, owner)
        ready = [copy for copy in _rows(session, tenant_id, owner, numbers) if copy.state == CopyState.PENDING]
        going = may_go(session, work, ready, now)
        found = captures_of(session, parts, work, going)
        at = parts.instant(now)
        placed = []
        for copy in sorted(going, key=lambda copy: -copy.depth):
            copy.attempts += 1
            copy.started_at = at
            session.add(copy)
            if copy.copy_no not in found:
                copy.state, copy.detail = CopyState.FAILED, "where it lies is not known any more"
                continue
            copy.state, copy.detail = CopyState.AWAITING_EXTERNAL, "waits for the agent's process"
            placed.append(copy)
        _make(session, parts, work, placed, store=store, kind="erase", at=at)


def ask(
    session: Session, parts: Parts, work: Work, *, store: str, copies: Sequence[CopyRow], now: datetime, again: bool
) -> bool:
    """Make tasks to look again; True while an answer is outstanding. In the quiet period the states stay."""
    mine = session.exec(
        select(ConnectorTask).where(
            ConnectorTask.tenant_id == work.tenant_id, ConnectorTask.owner == work.owner, ConnectorTask.store == store,
            ConnectorTask.work == "verify", ConnectorTask.again == again,
        )
    ).all()  # fmt: skip
    if again and (asked := [task for task in mine if task.created_at >= _since(work)]):
        return any(task.done_at is None and task.overdue_at is None for task in asked)
    known = [copy for copy in copies if copy.sealed is not None]
    at = parts.instant(now)
    before = {str(copy.copy_no): copy.state for copy in known}
    if not again:
        for copy in known:
            copy.state, copy.detail = CopyState.AWAITING_EXTERNAL, "waits for a second look in the agent's process"
            session.add(copy)
    _make(session, parts, work, known, store=store, kind="verify", at=at, again=again, before=before)
    return bool(known)


def _since(work: Work) -> datetime:
    """When the quiet period began; a sweep has none."""
    if not isinstance(work.row, RequestRow):
        return datetime.min.replace(tzinfo=UTC)
    return work.row.completed_at or work.row.created_at


def _make(
    session: Session,
    parts: Parts,
    work: Work,
    copies: Sequence[CopyRow],
    *,
    store: str,
    kind: Literal["erase", "verify"],
    at: datetime,
    again: bool = False,
    before: Mapping[str, str] | None = None,
) -> None:
    by_level: dict[str, list[CopyRow]] = {}
    for copy in copies:
        by_level.setdefault(Level.L1.value if copy.required == "key" else copy.required, []).append(copy)
    for level, members in by_level.items():
        for start in range(0, len(members), BATCH):
            part = [copy.copy_no for copy in members[start : start + BATCH]]
            session.add(
                ConnectorTask(
                    tenant_id=work.tenant_id,
                    task_id=f"ctk_{new_id(at)}",
                    owner=work.owner,
                    store=store,
                    work=kind,
                    level=level,
                    again=again,
                    copies=part,
                    before={name: state for name, state in (before or {}).items() if int(name) in part},
                    created_at=at,
                    due_at=at + parts.agent_term,
                )
            )


def claim(
    parts: Parts, acting: Acting, stores: Iterable[str], *, limit: int, lease: timedelta, now: datetime
) -> list[dict[str, Any]]:
    """Hand out what is open in these stores, each task under a claim of its own. Raises: OutsideTokenScope."""
    wanted = sorted(set(stores))
    for name in wanted:
        if not acting.may_use_store(name):
            raise OutsideTokenScope("store", name)
    lease = min(max(lease, LEASES[0]), LEASES[1])
    given: list[dict[str, Any]] = []
    with parts.transactions(acting.tenant_id) as session:
        tasks = session.exec(
            select(ConnectorTask)
            .where(
                ConnectorTask.tenant_id == acting.tenant_id,
                col(ConnectorTask.done_at).is_(None),
                col(ConnectorTask.overdue_at).is_(None),
                col(ConnectorTask.store).in_(wanted),
            )
            .order_by(col(ConnectorTask.created_at), col(ConnectorTask.task_id))
            .with_for_update(skip_locked=True)
        ).all()
        for task in tasks:
            if len(given) >= limit:
                break
            if task.claimed_until is not None and task.claimed_until > now:
                continue
            body = _body(session, parts, task, now)
            if body is None:
                task.done_at = now  # nothing is left of it: held, settled by hand, or forgotten
            else:
                word = random_hex()
                task.claims = [*task.claims, _digest(word)]
                task.claimed_by, task.claimed_until = acting.principal, now + lease
                given.append({**body, "claim": word, "lease_until": task.claimed_until, "due_at": task.due_at})
            session.add(task)
    return given


def _body(session: Session, parts: Parts, task: ConnectorTask, now: datetime) -> dict[str, Any] | None:
    """What the agent needs for a task: places, names of the owner, and what to look for."""
    work = load_work(session, task.tenant_id, task.owner)
    copies = _rows(session, task.tenant_id, task.owner, task.copies)
    if not task.again:
        copies = [copy for copy in copies if copy.state == CopyState.AWAITING_EXTERNAL]
    if task.work == "erase":
        copies = may_go(session, work, copies, now)
    found = captures_of(session, parts, work, copies)
    if not found:
        return None
    reported = work.facts().get("reclaim", {}).get(task.store)
    items = [
        {
            "copy": number,
            "locator": dict(capture.locator),
            "canaries": [b64encode(canary).decode() for canary in capture.canaries],
        }
        for number, capture in found.items()
    ]
    return {
        "id": task.task_id,
        "store": task.store,
        "work": task.work,
        "level": task.level,
        "owners": list(owners_of(session, parts, work, copies)) if task.work == "erase" else [],
        "items": items,
        "reclaimed": reported if task.work == "verify" else None,
    }


def settle(parts: Parts, acting: Acting, task_id: str, *, claim: str, results: Sequence[Result],
           reclaim: Mapping[str, Any] | None, now: datetime) -> str:  # fmt: skip
    """Take an answer; `settled`, or `already_settled` where the task was answered or its time is over.

    Raises: UnknownRequest, OutsideTokenScope, TaskNotClaimed; InvalidRequest for copies that are not the task's.
    """
    with parts.transactions(acting.tenant_id) as session:
        task = session.get(ConnectorTask, (acting.tenant_id, task_id), with_for_update=True)
        if task is None:
            raise UnknownRequest("connector task", task_id)
        if not acting.may_use_store(task.store):
            raise OutsideTokenScope("store", task.store)
        if _digest(claim) not in task.claims:
            raise TaskNotClaimed(task_id)
        if task.done_at is not None or (task.overdue_at is not None and task.work == "verify"):
            return "already_settled"
        if foreign := {result.copy for result in results} - set(task.copies):
            raise InvalidRequest("/results", f"{len(foreign)} copies are not of this task")
        work = load_work(session, task.tenant_id, task.owner, lock=True)
        task.done_at, task.claimed_until = parts.instant(now, task.created_at), None
        session.add(task)
        by_number = {result.copy: result for result in results}
        rows = _rows(session, task.tenant_id, task.owner, task.copies)
        if task.work == "erase":
            _take_receipts(session, parts, task, rows, by_number)
            if reclaim is not None:
                _take_reclaim(session, work, task, rows, reclaim)
        else:
            _take_findings(session, parts, task, rows, by_number)
    return "settled"


def _take_receipts(
    session: Session, parts: Parts, task: ConnectorTask, rows: Sequence[CopyRow], results: Mapping[int, Result]
) -> None:
    work = load_work(session, task.tenant_id, task.owner)
    seal = work.seal(session, parts)
    known = captures_of(session, parts, work, rows)
    told = []
    for copy in rows:
        if copy.state not in (CopyState.AWAITING_EXTERNAL, CopyState.UNREACHABLE):
            continue  # settled meanwhile: by hand, or by a later task
        result = results.get(copy.copy_no)
        outcome = Outcome.FAILED if result is None or result.outcome is None else result.outcome
        copy.method, copy.finished_at, copy.verified_at = _METHOD, task.done_at, None
        copy.level = Level.L1.value if outcome in (Outcome.ERASED, Outcome.ALREADY_ABSENT) else None
        if outcome in _ENDS:
            copy.state, copy.detail = _ENDS[outcome], _SAID[outcome]
        else:
            failed(session, copy, parts, detail=_SAID[outcome], end=CopyState.FAILED)
        if result is not None and result.canaries and copy.copy_no in known:
            capture = Capture(known[copy.copy_no].locator, _fit(result.canaries), captured=True)
            copy.sealed = seal.seal_capture(capture, ref_of(copy))
        session.add(copy)
        told.append(copy)
    _announce(session, parts, task, told, Kind.COPY_ERASED)


def _fit(canaries: Sequence[bytes]) -> tuple[bytes, ...]:
    return tuple(canary for canary in canaries[:_MOST_CANARIES] if 0 < len(canary) <= _LONGEST_CANARY)


def _take_reclaim(session: Session, work: Work, task: ConnectorTask, rows: Sequence[CopyRow],
                  reclaim: Mapping[str, Any]) -> None:  # fmt: skip
    """Keep the report as far as it is levels, dates and opaque facts."""
    until = reclaim.get("residual_until")
    evidence = {
        str(name)[:64]: str(value)[:_LONGEST_FACT]
        for name, value in list(dict(reclaim.get("evidence") or {}).items())[:_MOST_FACTS]
    }
    at = task.done_at or task.created_at
    dated = until if until in (None, "unknown") else datetime.fromisoformat(str(until)).isoformat()
    fact: dict[str, Any] = {
        "level": Level(reclaim["level"]).value,
        "residual_until": dated,
        "detail": "stated by the agent's process",
        "method": _METHOD,
        "evidence": evidence,
        "at": at.isoformat(),
    }
    known = work.facts().get("reclaim", {})
    work.put_facts(session, reclaim={**known, task.store: joined(fact, known.get(task.store))})
    for copy in rows:
        copy.residual_until = dated
        session.add(copy)


def _take_findings(session: Session, parts: Parts, task: ConnectorTask, rows: Sequence[CopyRow],
                   results: Mapping[int, Result]) -> None:  # fmt: skip
    good = []
    for copy in rows:
        if copy.state not in (GONE if task.again else (CopyState.AWAITING_EXTERNAL,)):
            continue
        session.add(copy)
        result = results.get(copy.copy_no)
        level = None if result is None else result.level
        needed = Level.L1 if copy.required == "key" else Level(copy.required)
        copy.state = CopyState(task.before.get(str(copy.copy_no), CopyState.ERASED_LOGICAL))
        if result is not None and result.present is False and level is not None and level >= needed:
            copy.level, copy.verified_how, copy.detail = level.value, _LOOKED, None
            copy.verified_at = parts.instant(task.done_at or task.created_at, copy.finished_at)
            if copy.state != CopyState.ALREADY_ABSENT:
                copy.state = CopyState.ERASED_PHYSICAL if level >= Level.L2 else CopyState.ERASED_LOGICAL
            good.append(copy)
            continue
        copy.verified_at = None
        seen = "found again" if result is not None and result.present else "not shown absent at the level it needs"
        failed(session, copy, parts, detail=f"{seen}, as the agent's process states", end=CopyState.FAILED)
    _announce(session, parts, task, good, Kind.COPY_VERIFIED)


def _announce(session: Session, parts: Parts, task: ConnectorTask, rows: Sequence[CopyRow], kind: Kind) -> None:
    if not rows:
        return
    lines: list[dict[str, Any]] = [
        {"copy": copy.copy_no, "state": copy.state, "level": copy.level, "key": copy.key_state} for copy in rows
    ]
    body = {"owner": task.owner, "stated_by": task.claimed_by, "task": task.task_id, "copies": lines}
    entry_id = parts.record.announce(session, task.tenant_id, kind, body, task.done_at or task.created_at)
    for copy in rows:
        if kind is Kind.COPY_VERIFIED:
            copy.verify_evidence = entry_id
        else:
            copy.evidence = entry_id


def late_tasks(tenant_id: int, now: datetime) -> SelectOfScalar[ConnectorTask]:
    """The tasks that nobody answered by their date, and of which nobody was told yet."""
    return select(ConnectorTask).where(
        ConnectorTask.tenant_id == tenant_id,
        col(ConnectorTask.done_at).is_(None),
        col(ConnectorTask.overdue_at).is_(None),
        col(ConnectorTask.due_at) <= now,
    )


def overdue(parts: Parts, tenant: Tenant, now: datetime) -> int:
    """Tell of the tasks whose time is over, once each, and give their copies up; returns how many tasks."""
    with parts.transactions(tenant.tenant_id) as session:
        late = session.exec(late_tasks(tenant.tenant_id, now).with_for_update()).all()
        for task in late:
            task.overdue_at = now
            session.add(task)
            waits = GONE if task.again else frozenset({CopyState.AWAITING_EXTERNAL})
            rows = [c for c in _rows(session, task.tenant_id, task.owner, task.copies) if c.state in waits]
            for copy in rows:
                copy.state, copy.verified_at = CopyState.UNREACHABLE, None
                copy.detail = "the agent's process did not answer by its deadline"
                session.add(copy)
            detail: dict[str, Any] = {"task": task.task_id, "store": task.store, "copies": len(rows)}
            body = {"owner": task.owner, "state": CopyState.UNREACHABLE.value, "overdue": True, **detail}
            entry_id = parts.record.announce(session, task.tenant_id, Kind.COPY_STATE, body, now)
            row = session.get(RequestRow, (task.tenant_id, task.owner))
            if row is not None:
                history.add_event(
                    session, row, event="agent_overdue", actor="worker", now=now, detail=detail, entry_id=entry_id
                )
        return len(late)


def canaries_of(texts: Sequence[str]) -> tuple[bytes, ...]:
    """The byte strings of an answer. Raises: InvalidRequest."""
    try:
        return tuple(b64decode(text, validate=True) for text in texts)
    except ValueError:
        raise InvalidRequest("/results/canaries", "expected base64") from None


def _rows(session: Session, tenant_id: int, owner: str, numbers: Sequence[int]) -> list[CopyRow]:
    found: list[CopyRow] = []
    for start in range(0, len(numbers), CHUNK):
        where = among(session, tenant_id, owner, numbers[start : start + CHUNK])
        found += session.exec(select(CopyRow).where(where).order_by(col(CopyRow.copy_no)).with_for_update())
    order = {number: place for place, number in enumerate(numbers)}
    return sorted(found, key=lambda copy: order[copy.copy_no])


def _digest(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()[:32]
