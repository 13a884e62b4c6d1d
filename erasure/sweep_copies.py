"""Passes of retention as work for the one executor: opened, approved, executed, confirmed, reported.

Opening a pass, in order:
 0. compare the clock with others and with what was dated before: where they disagree the pass stops here;
 1. work out end dates that a changed class made wrong, in batches;
 2. gather and decide in one reading transaction (`retention.gather`), then capture what later steps need, outside;
 3. put the plan's hash and counts into the record (binding);
 4. one transaction: the run, its copies with sealed captures, the items that wait for a human.
A crash after 3 leaves an event without effect; the next pass plans again.

A pass also deletes payload objects of the record that no key opens (`erasure.payload_expiry`), before its copies.

Guarantees: a pass uses the same decision, executor and verifier as a request; each copy is decided again in the
transaction that dispatches it, so that a hold placed in the middle wins. A pass with a brake sends nothing before
another principal approved it. What failed is live again and tried by the next pass; what failed in several while the
rest went is put in quarantine (`erasure.setbacks`). Eligible items and none removed is an alarm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure import captures, departed, history
from erasure.confirm import confirm
from erasure.execute import execute
from erasure.freed import freed_of
from erasure.history import fact_of
from erasure.leases import Lease, leased
from erasure.models import CopyRow
from erasure.parts import Parts
from erasure.payload_expiry import SWEEP_EVERY, PayloadEnd, result_of
from erasure.payload_expiry import summary_of as payload_summary
from erasure.plan import PlanCopy
from erasure.planning import wanted_of
from erasure.regenerate import regenerate
from erasure.request import BROKEN, GONE, CopyState, is_settled
from erasure.request_desk import OPEN_RUNS, RequestDesk
from erasure.sealed import SWEEP_KEY, Capture, RequestSeal
from erasure.setbacks import AT_FAULT, at_fault_before, failing, stores_at_fault
from erasure.setbacks import view_of as setbacks_of
from erasure.standing import standing
from erasure.sweep_alarm import FAILED, alarm_of, without_end, without_end_before
from erasure.sweep_views import copies_of, noted, planned_body, state_of, summary_of, view_of
from erasure.work import BY_HAND, load_work
from ledger import expiry
from ledger.entry import Kind
from ledger.expiry import Found
from ledger.models import Instant
from registry import artifacts, stores
from registry.acting import SYSTEM_PRINCIPAL, Acting
from registry.ids import random_hex
from registry.keyed import chunks, hold_writer
from retention import dispositions, quarantine
from retention.due import refresh_hints, refresh_new, refresh_undated, schedules_in_force
from retention.errors import NotKnown, NotOpen, SecondPersonNeeded
from retention.events import expire_sessions, write_hints
from retention.gather import Gathered, Gathering
from retention.instants import DISOWNED, disown, instants
from retention.key_clocks import mark_children, refresh_keys
from retention.models import SweepRow
from retention.schedule import maximum_age
from retention.sweep import Brake, Brakes, SweepPlan, clock_brake

_ROUNDS = 8


class Sweeps:
    """The verbs of API §7 about runs."""

    def __init__(self, parts: Parts, *, brakes: Brakes | None = None, every: timedelta = SWEEP_EVERY) -> None:
        self._parts = parts
        self._brakes = brakes or Brakes()
        self._every = every
        self._desk = RequestDesk()
        self._payload = PayloadEnd(parts.payload, parts.transactions)

    def start(
        self, acting: Acting, now: datetime, *, at: datetime | None = None, dry_run: bool = False
    ) -> dict[str, Any]:
        """The run: planned only with `dry_run`, else executing, waiting for approval, or completed with nothing to do.

        The caller checks that `at` is later than `now` only for a dry run.
        """
        sweep_id = f"swp_{random_hex()}"
        by_hand = acting.principal != SYSTEM_PRINCIPAL
        apart = None if self._parts.apart is None else self._parts.apart()
        with self._parts.transactions(acting.tenant_id, write=False) as session:  # 0
            seen = instants(session, acting.tenant_id, apart=apart)
        wrong = clock_brake(self._brakes, seen, now=now, by_hand=by_hand)
        if wrong is not None and wrong.stops and not dry_run:
            return self._stopped(acting, sweep_id, wrong, now)
        people = self._refresh(acting, now)  # 1
        self._payload.refresh(acting.tenant_id, now)
        with self._parts.transactions(acting.tenant_id, write=False) as session:  # 2
            at_fault = at_fault_before(session, acting.tenant_id)
            look = Gathering(session, acting.tenant_id, self._desk, at or now, at_fault=at_fault)
            also = departed.items_of(session, acting.tenant_id, people, look.stops, at or now)
            gathered = look.run(sweep_id, self._brakes, seen, now=now, also=also, by_hand=by_hand)
            known = stores.in_force(session, acting.tenant_id)
            missing = {name: fact.not_covered for name, fact in standing(session, acting.tenant_id).stores.items()}
        plan = gathered.plan
        lines = copies_of(plan.ending, {name: missing.get(name) for name in known})
        payload = self._payload.plan(acting.tenant_id, now)
        if dry_run:
            return self._write(acting, gathered, lines, {}, now, state="planned", payload=payload)
        state = state_of(plan)
        found = captures.capture(self._parts, acting.tenant_id, wanted_of(lines)) if state == "executing" else {}
        self._parts.record.event(
            acting.tenant_id, Kind.RETENTION_PLANNED, planned_body(acting, plan, payload), now
        )  # 3
        return self._write(acting, gathered, lines, found, now, state=state, payload=payload)  # 4

    def _stopped(self, acting: Acting, sweep_id: str, brake: Brake, now: datetime) -> dict[str, Any]:
        """A run that looked at nothing, so that nobody's clock of a session or an event was moved by a wrong one."""
        plan = SweepPlan(sweep_id=sweep_id, at=now, items=(), counts={}, kept={}, waiting=0, capped=False, brake=brake)
        self._parts.record.event(acting.tenant_id, Kind.RETENTION_PLANNED, planned_body(acting, plan, Found()), now)
        return self._write(acting, Gathered(plan=plan, moved={}), (), {}, now, state="stopped", payload=Found())

    def approve(self, acting: Acting, sweep_id: str, now: datetime) -> dict[str, Any]:
        """The run that waited, executing. Raises: NotKnown, NotOpen, SecondPersonNeeded."""
        with self._parts.transactions(acting.tenant_id, write=False) as session:
            row = self._load(session, acting.tenant_id, sweep_id)
            if row.state != "awaiting_approval":
                raise NotOpen("run", sweep_id, row.state, "approved")
            if self._parts.approval != "single" and acting.principal == row.created_by:
                raise SecondPersonNeeded("approve the run", "start")
            plan_hash = row.plan_hash
        body = {"sweep": sweep_id, "plan_hash": plan_hash, "by": acting.principal, "approval": self._parts.approval}
        self._parts.record.event(acting.tenant_id, Kind.RETENTION_APPROVED, body, now)
        with self._parts.transactions(acting.tenant_id) as session:
            row = self._load(session, acting.tenant_id, sweep_id, lock=True)
            if row.state != "awaiting_approval":
                raise NotOpen("run", sweep_id, row.state, "approved")
            row.state, row.approved_by = "executing", acting.principal
            row.counts = noted(row.counts, "approved", now, by=acting.principal)
            if row.brake is not None and row.brake["reason"] == "clock_was_ahead":
                row.counts = {**row.counts, DISOWNED: disown(session, row)}
            session.add(row)
            return view_of(session, row)

    def stop(self, acting: Acting, sweep_id: str, now: datetime) -> dict[str, Any]:
        """The run that waited, ended without having sent anything; the next pass looks again.

        Raises: NotKnown, NotOpen.
        """
        with self._parts.transactions(acting.tenant_id) as session:
            row = self._load(session, acting.tenant_id, sweep_id, lock=True)
            if row.state != "awaiting_approval":
                raise NotOpen("run", sweep_id, row.state, "stopped")
            history.drop_copies(session, acting.tenant_id, sweep_id)
            expiry.release(session, acting.tenant_id, sweep_id)
            row.state, row.finished_at = "stopped", now
            row.counts = noted(row.counts, "stopped", now, by=acting.principal)
            session.add(row)
            body = {"sweep": sweep_id, "stopped_by": acting.principal}
            self._parts.record.announce(session, acting.tenant_id, Kind.RETENTION_RAN, body, now)
            return view_of(session, row)

    def get(self, acting: Acting, sweep_id: str) -> dict[str, Any]:
        """The run as it stands. Raises: NotKnown."""
        with self._parts.transactions(acting.tenant_id, write=False) as session:
            return view_of(session, self._load(session, acting.tenant_id, sweep_id))

    def runs(self, acting: Acting, *, after: str = "", limit: int = 50) -> list[dict[str, Any]]:
        """Runs in the order of their ids."""
        query = select(SweepRow).where(SweepRow.tenant_id == acting.tenant_id, SweepRow.sweep_id > after)
        with self._parts.transactions(acting.tenant_id, write=False) as session:
            return [
                view_of(session, row) for row in session.exec(query.order_by(col(SweepRow.sweep_id)).limit(limit)).all()
            ]

    def report(self, acting: Acting, sweep_id: str) -> dict[str, Any]:
        """The run with every copy's end, what failed, what stores freed, each class's longest life, and the alarm."""
        with self._parts.transactions(acting.tenant_id, write=False) as session:
            row = self._load(session, acting.tenant_id, sweep_id)
            schedules = schedules_in_force(session, acting.tenant_id)
            copies = history.copies_of(session, acting.tenant_id, sweep_id)
            return {
                **view_of(session, row),
                "copies": [history.copy_view(copy) for copy in copies],
                "failed": [copy.ref for copy in copies if copy.state in BROKEN],
                "quarantine": setbacks_of(session, acting.tenant_id, quarantine.aside(session, acting.tenant_id)),
                "reclaimed": freed_of(copies, load_work(session, acting.tenant_id, sweep_id).facts()),
                "maximum_age_days": {
                    name: None if most is None else -(-most // timedelta(days=1))
                    for name, one in sorted(schedules.items())
                    for most in (maximum_age(one, sweep_every=self._every),)
                },
            }

    def run_due(
        self, tenant_id: int, now: datetime, *, worker: str = "worker", hear: Callable[[str, str], None] | None = None
    ) -> int:
        """Bring every run that may go as far as it goes now; how many were worked on.

        `hear` is told the id and the alarm of each run that ended with one.
        """
        with self._parts.transactions(tenant_id, write=False) as session:
            waiting = list(
                session.scalars(
                    sa.select(col(SweepRow.sweep_id))
                    .where(col(SweepRow.tenant_id) == tenant_id, col(SweepRow.state).in_(("executing", "verifying")))
                    .order_by(col(SweepRow.created_at))
                )
            )
        done, failures = 0, []
        for sweep_id in waiting:
            try:
                with leased(self._parts, tenant_id, sweep_id, worker, now) as lease:
                    if lease is not None and self._advance(tenant_id, sweep_id, self._parts.instant(now), lease):
                        done += 1
                        self._tell(tenant_id, sweep_id, hear)
            except Exception as error:  # noqa: BLE001 - raised below, after the others had their turn
                failures.append(error)
                self._failed(tenant_id, sweep_id, now, error)
        if failures:
            raise failures[0]
        return done

    def _failed(self, tenant_id: int, sweep_id: str, now: datetime, error: Exception) -> None:
        """Note that the run broke off; the kind of the error only, since its text may hold data."""
        # Where the database is what failed, the log has it.
        with suppress(sa.exc.SQLAlchemyError), self._parts.transactions(tenant_id) as session:
            row = self._load(session, tenant_id, sweep_id, lock=True)
            row.counts = noted(row.counts, FAILED, self._parts.instant(now), error=type(error).__qualname__)
            session.add(row)

    def is_time(self, tenant_id: int, now: datetime) -> bool:
        """Whether the last pass, or the last attempt at one, is long enough ago."""
        with self._parts.transactions(tenant_id, write=False) as session:
            recent = session.scalars(
                sa.select(col(SweepRow.sweep_id))
                .where(
                    col(SweepRow.tenant_id) == tenant_id,
                    col(SweepRow.dry_run).is_(False),
                    col(SweepRow.created_at) > sa.literal(now - self._every, Instant()),
                    col(SweepRow.created_at) <= sa.literal(now, Instant()),
                )
                .limit(1)
            ).first()
            return recent is None

    def _tell(self, tenant_id: int, sweep_id: str, hear: Callable[[str, str], None] | None) -> None:
        """Say the alarm of a run that ended, to who listens."""
        if hear is None:
            return
        with self._parts.transactions(tenant_id, write=False) as session:
            alarm = alarm_of(self._load(session, tenant_id, sweep_id).counts)
        if alarm is not None:
            hear(sweep_id, alarm)

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────────

    def _refresh(self, acting: Acting, now: datetime) -> list[int]:
        """Bring end dates up to now; the people whom this pass asks whether anything of them is left."""
        tenant_id = acting.tenant_id
        more = True
        while more:
            with self._parts.transactions(tenant_id) as session:
                more = expire_sessions(session, self._parts.vault, acting, now)
        after: int | None = 0
        while after is not None:
            with self._parts.transactions(tenant_id) as session:
                after = refresh_hints(session, tenant_id, after=after)
        more = True
        while more:
            with self._parts.transactions(tenant_id) as session:
                more = refresh_undated(session, tenant_id)
        with self._parts.transactions(tenant_id) as session:
            quarantine.let_go(session, self._parts.vault, tenant_id, now)
            mark_children(session, tenant_id, now)
        more = True
        while more:
            with self._parts.transactions(tenant_id) as session:
                more = refresh_keys(session, tenant_id, schedules_in_force(session, tenant_id), now)
        more = True
        while more:
            with self._parts.transactions(tenant_id) as session:
                more = refresh_new(session, tenant_id, now)
        with self._parts.transactions(tenant_id) as session:
            return departed.next_people(session, tenant_id, now)

    def _write(
        self,
        acting: Acting,
        gathered: Gathered,
        lines: Sequence[PlanCopy],
        found: Mapping[str, Capture],
        now: datetime,
        *,
        state: str,
        payload: Found,
    ) -> dict[str, Any]:
        plan = gathered.plan
        with self._parts.transactions(acting.tenant_id) as session:
            hold_writer(session, acting.tenant_id)
            free = self._still_free(session, acting.tenant_id, lines)
            if state == "executing" and not free and not payload.all:
                state = "completed"
            row = SweepRow(
                tenant_id=acting.tenant_id,
                sweep_id=plan.sweep_id,
                state=state,
                at=plan.at,
                dry_run=state == "planned",
                plan_hash=plan.hash,
                counts=noted(
                    {"plan": summary_of(plan), "payload": payload_summary(payload)},
                    "planned",
                    now,
                    by=acting.principal,
                    brake=None if plan.brake is None else plan.brake.reason,
                ),
                brake=None if plan.brake is None else plan.brake.as_json(),
                created_by=acting.principal,
                created_at=now,
                finished_at=now if state in ("planned", "completed", "stopped") else None,
            )
            session.add(row)
            session.flush()
            if state in OPEN_RUNS:
                self._put_copies(session, acting.tenant_id, plan, free, found)
            if state in (*OPEN_RUNS, "completed"):
                expiry.claim(session, acting.tenant_id, payload, plan.sweep_id)
                dispositions.open_reviews(session, acting.tenant_id, plan.reviews, now)
                write_hints(session, acting.tenant_id, gathered.moved)
            return view_of(session, row)

    def _still_free(self, session: Session, tenant_id: int, lines: Sequence[PlanCopy]) -> list[PlanCopy]:
        """Without what another run took since the plan was made."""
        busy = self._desk.busy(
            session,
            tenant_id,
            [line.artifact_id for line in lines if line.artifact_id is not None],
            [line.ref for line in lines if line.artifact_id is None],
        )
        return [line for line in lines if line.artifact_id not in busy and line.ref not in busy]

    def _put_copies(
        self,
        session: Session,
        tenant_id: int,
        plan: SweepPlan,
        lines: Sequence[PlanCopy],
        found: Mapping[str, Capture],
    ) -> None:
        seal = RequestSeal(session, self._parts.vault, tenant_id, owner=plan.sweep_id, key_no=SWEEP_KEY)
        sealed = {ref: seal.seal_capture(capture, ref) for ref, capture in found.items()}
        history.put_copies(session, tenant_id, plan.sweep_id, lines, sealed)
        by_hand = {item.ref for item in plan.items if item.by_hand}
        for chunk in chunks(sorted(line.copy_no for line in lines if line.ref in by_hand)):
            # The executor lets a copy go although its class says «review» when a human said so.
            session.connection().execute(
                sa.update(CopyRow)
                .where(
                    col(CopyRow.tenant_id) == tenant_id,
                    col(CopyRow.owner) == plan.sweep_id,
                    col(CopyRow.copy_no).in_(chunk),
                )
                .values(method=BY_HAND)
            )

    def _load(self, session: Session, tenant_id: int, sweep_id: str, *, lock: bool = False) -> SweepRow:
        row = session.get(SweepRow, (tenant_id, sweep_id), with_for_update=True if lock else None)
        if row is None:
            raise NotKnown("run", sweep_id if sweep_id.startswith("swp_") else "")
        return row

    def _advance(self, tenant_id: int, sweep_id: str, now: datetime, lease: Lease) -> int:
        self._carry_out(tenant_id, sweep_id, now)
        for _ in range(_ROUNDS):
            if not lease.is_mine:
                return 0
            regenerate(self._parts, tenant_id, sweep_id, self._parts.instant(now))
            if not execute(self._parts, tenant_id, sweep_id, now).ready_to_confirm:
                return 0  # an attempt waits for its time; the worker comes back
            confirm(self._parts, tenant_id, sweep_id, now)
            if self._finish(tenant_id, sweep_id, now):
                return 1
        return 0

    def _carry_out(self, tenant_id: int, sweep_id: str, now: datetime) -> None:
        """Delete the objects that the run claimed, and keep why some could not be: what was claimed comes once."""
        reasons = self._payload.carry_out(tenant_id, sweep_id, now).reasons
        if reasons:
            with self._parts.transactions(tenant_id) as session:
                row = self._load(session, tenant_id, sweep_id, lock=True)
                row.counts = {**row.counts, "payload": {**row.counts.get("payload", {}), "reasons": reasons}}
                session.add(row)

    def _finish(self, tenant_id: int, sweep_id: str, now: datetime) -> bool:
        """Whether the run is completed: nothing of it is pending any more."""
        with self._parts.transactions(tenant_id) as session:
            row = self._load(session, tenant_id, sweep_id, lock=True)
            copies = history.copies_of(session, tenant_id, sweep_id)
            tried = [copy for copy in copies if copy.attempts < self._parts.max_attempts]
            if any(copy.state in (CopyState.PENDING, CopyState.RUNNING) for copy in tried):
                return False
            gone = [copy for copy in copies if copy.state in GONE]
            again = [copy for copy in copies if copy.state not in GONE and copy.state != CopyState.RETAINED]
            artifacts.mark_status(session, tenant_id, _numbers(again), "live")
            keys = [copy.key_id for copy in gone if copy.key_id is not None]
            dispositions.close_gone(session, tenant_id, _numbers(gone), keys)
            row = self._load(session, tenant_id, sweep_id, lock=True)
            proven = sum(is_settled(fact_of(copy)) for copy in gone)
            result = {"removed": len(gone), "verified": proven, "retained": 0, "failed": 0}
            for copy in copies:
                if copy.state == CopyState.RETAINED:
                    result["retained"] += 1
                elif copy.state not in GONE:
                    result["failed"] += 1
            objects = result_of(session, tenant_id, sweep_id)
            at_fault = stores_at_fault(copies, at_fault_before(session, tenant_id))
            bad = failing(session, row, copies, at_fault, tries=self._parts.max_attempts)
            result["quarantined"] = quarantine.set_aside(session, self._parts.vault, tenant_id, bad, now)
            row.counts = {
                **row.counts,
                "result": result,
                "payload": {**row.counts.get("payload", {}), **objects},
                "without_end": without_end(
                    copies, without_end_before(session, row), aside=row.counts.get("plan", {}).get("aside_of", ())
                ),
                AT_FAULT: at_fault,
            }
            row.counts = noted(row.counts, "completed", now, removed=result["removed"], failed=result["failed"])
            row.state, row.finished_at = "completed", now
            session.add(row)
            body = {"sweep": sweep_id, "plan_hash": row.plan_hash, **result, "payload": objects}
            self._parts.record.announce(session, tenant_id, Kind.RETENTION_RAN, body, now)
            return True


def _numbers(copies: Iterable[CopyRow]) -> list[int]:
    return [copy.artifact_id for copy in copies if copy.artifact_id is not None]
