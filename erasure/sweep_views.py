"""A pass of retention as lines for the executor, as the body of its event, as its row keeps it, and as it is shown.

Guarantees: functions of values, but for the count of a run's copies; opaque ids, classes, stores, rules and counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlmodel import Session

from erasure import history
from erasure.plan import PlanCopy, instant_text
from erasure.request import CopyState
from erasure.sweep_alarm import HISTORY, alarm_of
from ledger.expiry import Found
from registry.acting import Acting
from retention.models import SweepRow
from retention.sweep import SweepItem, SweepPlan

LINES = 100
"""So many lines of a run's history are kept, behind the first."""


def planned_body(acting: Acting, plan: SweepPlan, payload: Found) -> dict[str, Any]:
    """The body of the event by which a run is planned."""
    return {
        "sweep": plan.sweep_id,
        "plan_hash": plan.hash,
        "at": instant_text(plan.at),
        "ends": {name: count.ends for name, count in plan.counts.items()},
        "brake": None if plan.brake is None else plan.brake.reason,
        "payload": {"objects": len(payload.all), "names": payload.digest},
        "by": acting.principal,
    }


def noted(counts: Mapping[str, Any], event: str, now: datetime, **detail: Any) -> dict[str, Any]:
    """A run's facts with one more line of its history; the same again in a row is counted, not listed."""
    lines = [dict(line) for line in counts.get(HISTORY, ())]
    said = {key: value for key, value in detail.items() if value is not None}
    if lines and lines[-1]["event"] == event and lines[-1].get("detail", {}) == said:
        lines[-1] |= {"times": lines[-1].get("times", 1) + 1, "last_at": instant_text(now)}
    else:
        lines.append({"at": instant_text(now), "event": event} | ({"detail": said} if said else {}))
    return {**counts, HISTORY: lines[:1] + lines[1:][-LINES:]}


def state_of(plan: SweepPlan) -> str:
    """Where a run starts from."""
    if plan.brake is not None and plan.brake.stops:
        return "stopped"
    if plan.brake is not None:
        return "awaiting_approval"
    return "executing"


def copies_of(items: Sequence[SweepItem], not_covered: Mapping[str, str | None]) -> list[PlanCopy]:
    """A pass's items as lines for the executor. `not_covered` says of each registered store why it cannot be erased."""
    lines = [_line(item) for item in items]
    covered = []
    for number, line in enumerate(lines, start=1):
        why = None
        if line.kind == "artifact":
            why = not_covered.get(line.store, "the store is not registered any more")
        state = line.state if why is None else CopyState.NOT_COVERED
        covered.append(replace(line, copy_no=number, state=state, detail=why))
    return covered


def _line(item: SweepItem) -> PlanCopy:
    regenerate = item.decision.action == "regenerate"
    return PlanCopy(
        copy_no=0,
        kind=item.kind,
        ref=item.ref,
        artifact_id=item.artifact_id,
        key_id=item.key_id,
        data_class=item.data_class,
        store=item.store,
        action=item.decision.action,
        rule=item.decision.rule,
        because=item.decision.because,
        until=item.decision.until,
        path=item.path,
        collateral=None,
        depth=item.depth,
        required=item.required,
        state=CopyState.AWAITING_EXTERNAL if regenerate else CopyState.PENDING,
    )


def summary_of(plan: SweepPlan) -> dict[str, Any]:
    """What a run's row keeps of its plan: numbers only."""
    return {
        "classes": {
            name: {"live": count.live, "ends": count.ends, "review": count.review}
            for name, count in plan.counts.items()
        },
        "ends": len(plan.ending),
        "review": len(plan.reviews),
        "kept": dict(plan.kept),
        "in_other_runs": plan.waiting,
        "aside": len(plan.aside),
        "aside_of": sorted({item.data_class for item in plan.aside}),
        "capped": plan.capped,
    }


def view_of(session: Session, row: SweepRow) -> dict[str, Any]:
    """A run as the contract shows it. Source: API §7."""
    plan = row.counts.get("plan", {})
    result = row.counts.get("result")
    payload = row.counts.get("payload", {})
    return {
        "id": row.sweep_id,
        "state": row.state,
        "at": instant_text(row.at),
        "dry_run": row.dry_run,
        "plan_hash": row.plan_hash,
        "created_by": row.created_by,
        "created_at": instant_text(row.created_at),
        "approved_by": row.approved_by,
        "finished_at": None if row.finished_at is None else instant_text(row.finished_at),
        "counts": {key: plan.get(key, 0) for key in ("ends", "review", "in_other_runs", "aside")} | (result or {}),
        "classes": plan.get("classes", {}),
        "kept": plan.get("kept", {}),
        "capped": plan.get("capped", False),
        "copies_by_state": history.counts_of(session, row.tenant_id, row.sweep_id),
        "payload_objects": payload,
        "brake": row.brake,
        "history": row.counts.get(HISTORY, []),
        "alarm": alarm_of(row.counts),
    }
