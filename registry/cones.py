"""People on their way down: the queue of cones that a late source did not reach at once, and the reconciler.

Guarantees: a cone stays in the queue until the last item below it has its people, in the transaction that gave them to
it, so that a crash repeats a step and never skips one; while a cone about somebody is pending, nobody may say that all
their copies are known (`pending_about`). The reconciler walks every artifact and compares its people with its own and
its sources'; what is missing is given at once and counted, what is too much is counted and left, because taking people
away is a human's decision. The caller commits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger.models import Instant
from registry.claims import Edge, claims_of
from registry.graph import contest, full_sets, mark_fenced, parents_of, people_behind, queue, spread, write_sets
from registry.keyed import chunks, hold_writer
from registry.models import Artifact, PendingCone, Watermark
from registry.sets import Members, members, sets_of
from registry.subjects import fenced

BATCH = 2_000
RECONCILER = "reconciler"
_GONE = "erased"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """The queue: how many cones wait, and since when the oldest."""

    cones: int
    since: datetime | None


def pending(session: Session, tenant_id: int) -> Pending:
    """The queue of a tenant."""
    row = session.execute(
        sa.select(sa.func.count(), sa.type_coerce(sa.func.min(col(PendingCone.at)), Instant())).where(
            col(PendingCone.tenant_id) == tenant_id
        )
    ).one()
    return Pending(cones=row[0], since=row[1])


def pending_about(session: Session, tenant_id: int, subject_nos: Iterable[int]) -> int:
    """How many cones that wait concern one of these people."""
    waiting = session.scalars(
        sa.select(col(PendingCone.artifact_id)).where(col(PendingCone.tenant_id) == tenant_id).limit(BATCH + 1)
    ).all()
    if not waiting:
        return 0
    if len(waiting) > BATCH:
        return len(waiting)  # a queue that long is not looked through: it concerns everybody until it is shorter
    theirs = sets_of(session, tenant_id, subject_nos)
    found = 0
    for chunk in chunks(sorted(set(waiting))):
        rows = session.scalars(
            sa.select(col(Artifact.set_id)).where(col(Artifact.tenant_id) == tenant_id, col(Artifact.id).in_(chunk))
        )
        found += sum(set_id in theirs for set_id in rows)
    return found


def propagate_pending(session: Session, tenant_id: int, now: datetime, *, limit: int = BATCH) -> int:
    """Carry people further down, about `limit` items of the oldest cones; how many cones were taken, 0 when none wait.

    A crash before the commit leaves the queue as it was.
    """
    if not pending(session, tenant_id).cones:
        return 0
    hold_writer(session, tenant_id)
    rows = session.exec(
        select(PendingCone).where(PendingCone.tenant_id == tenant_id).order_by(col(PendingCone.id)).limit(limit)
    ).all()
    grown = full_sets(session, tenant_id, {row.artifact_id for row in rows})
    for row in rows:
        session.delete(row)
    session.flush()
    changed = spread(session, tenant_id, grown, now, limit=limit)
    mark_fenced(session, tenant_id, changed)
    session.expire_all()
    return len(rows)


def reconcile(session: Session, tenant_id: int, now: datetime, *, limit: int = BATCH) -> Mapping[str, Any]:
    """Compare the next artifacts with their sources; counts of this round and whether it ended a walk.

    Starts again at the beginning after the last artifact. Source: DESIGN §5.
    """
    hold_writer(session, tenant_id)
    mark = session.get(Watermark, (tenant_id, RECONCILER)) or Watermark(tenant_id=tenant_id, name=RECONCILER, at=now)
    rows = session.exec(
        select(Artifact)
        .where(Artifact.tenant_id == tenant_id, col(Artifact.id) > mark.position, Artifact.status != _GONE)
        .order_by(col(Artifact.id))
        .limit(limit)
    ).all()
    expected = _expected(session, tenant_id, rows)
    certain = _without_closed_claims(session, tenant_id, rows, expected, now)
    stored = members(session, tenant_id, {row.set_id for row in rows})
    stored_of = {row.id: stored[row.set_id] for row in rows}
    missing = {row.id: stored_of[row.id] | certain[row.id] for row in rows if certain[row.id] - stored_of[row.id]}
    if missing:
        write_sets(session, tenant_id, missing, now)
        gained = {number: people - stored_of[number] for number, people in missing.items()}
        mark_fenced(session, tenant_id, gained)
        queue(session, tenant_id, missing, now)
        # What seemed too much below an item that had too little is looked at again.
        expected = _expected(session, tenant_id, rows)
    beyond = sum(bool(stored[row.set_id] - expected[row.id]) for row in rows)
    ended = len(rows) < limit
    known = dict(mark.details)
    counts = {name: known.get(name, 0) for name in ("checked", "healed", "beyond")}
    counts = {
        "checked": counts["checked"] + len(rows),
        "healed": counts["healed"] + len(missing),
        "beyond": counts["beyond"] + beyond,
    }
    mark.position = 0 if ended else rows[-1].id
    mark.details = {"last": {**counts, "ended_at": now.isoformat()}} if ended else {**known, **counts}
    mark.at = now
    session.add(mark)
    session.flush()
    session.expire_all()
    return {**counts, "ended": ended}


def _expected(
    session: Session, tenant_id: int, rows: Iterable[Artifact], *, without: Collection[Edge] = ()
) -> dict[int, Members]:
    """Whose each artifact should be: its own people and its sources', unless it was declared anonymised."""
    listed = list(rows)
    parents = parents_of(session, tenant_id, [row.id for row in listed if not row.anonymised])
    if without:
        parents = {
            child: {one for one in found if Edge(child, one.kind, one.number) not in without}
            for child, found in parents.items()
        }
    behind = people_behind(session, tenant_id, {one for found in parents.values() for one in found})
    own = members(session, tenant_id, {row.own_set_id for row in listed})
    return {
        row.id: own[row.own_set_id].union(*(behind.get(one, frozenset()) for one in parents.get(row.id, ())))
        for row in listed
    }


def _without_closed_claims(
    session: Session, tenant_id: int, rows: Sequence[Artifact], expected: Mapping[int, Members], now: datetime
) -> Mapping[int, Members]:
    """The same without fenced people who are there only because another token says so; a human is asked about those."""
    claims = claims_of(session, tenant_id, [row.id for row in rows if not row.anonymised])
    if not claims:
        return expected
    plain = _expected(session, tenant_id, rows, without=claims)
    closed = fenced(session, tenant_id, frozenset[int]().union(*expected.values()))
    stored = members(session, tenant_id, {row.set_id for row in rows})
    held = {row.id: (expected[row.id] - plain[row.id] - stored[row.set_id]) & closed.keys() for row in rows}
    for edge in claims:
        if held[edge.child]:
            contest(session, tenant_id, {edge: held[edge.child]}, closed, now)
    return {number: people - held[number] for number, people in expected.items()}
