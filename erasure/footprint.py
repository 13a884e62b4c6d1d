"""The end of a request's and of a sweep's own traces: what was said and captured goes with its key.

Guarantees: 30 days after the final certificate (for a request that has none: after its end) the request's key is
destroyed like any other, behind `retention.decide`: a legal hold on the person or the class `request` stops it, and so
does a restriction that the request put in force. A sweep's captures end a day after the sweep. What stays is a skeleton
that names nobody: right, dates, states, counts, plan, certificate; it tells for more than 24 months what was asked and
done (11 CCR 7101). Each step can be run again after a crash.

 1. Say in the record which key goes (binding).
 2. In one transaction: decide again, delete the wrapped key, the sealed words and captures, the look-ups by name, and
    turn the key's group to a new epoch.
 3. Keep the turned group in the unlocked store, and empty the database's own log of old pages.
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure import history, restrict
from erasure.execute import let_go
from erasure.models import CertificateRow, CopyRow, RequestEvent, RequestRow, RequestSubject
from erasure.package_file import remove_unfinished
from erasure.package_names import take_from_ended
from erasure.parts import Parts
from erasure.request import DONE, FINAL, Right
from erasure.sealed import REQUEST_CLASS, SWEEP_KEY
from erasure.work import load_work
from ledger.entry import Kind
from registry.duration import Duration
from retention.decide import DESTRUCTIVE, Item, Rules, decide
from retention.models import SweepRow
from retention.stops import holds_in_force, keep_holds_out

KEPT_FOR = Duration.parse("P30D")
"""How long the words of a request outlive its end. Source: DESIGN §7."""
ENDED = "footprint_ended_at"
_REQUEST = Rules(name=REQUEST_CLASS, keep=KEPT_FOR, starts="created")
_SWEEP = Rules(name=REQUEST_CLASS, keep=Duration.parse("P1D"), starts="created")
_WORKER = "worker"
_EVENT = "footprint_ended"


def end_footprints(parts: Parts, tenant_id: int, now: datetime) -> int:
    """End the traces of every request and sweep of a tenant whose time is over; returns how many.

    What processes that died left in the folder of packages goes too (`erasure.package_names`).
    """
    with parts.transactions(tenant_id, write=False) as session:
        requests = [row.request_id for row in _requests(session, tenant_id) if _may_end(session, row, now)]
        sweeps = _sweeps(session, tenant_id, now)
    for owner in (*requests, *sweeps):
        _end(parts, tenant_id, owner, now)
    if requests or sweeps:
        parts.truncate_log()
    if parts.exports is not None:
        remove_unfinished(parts.exports / str(tenant_id))
    take_from_ended(parts, tenant_id)
    return len(requests) + len(sweeps)


def _requests(session: Session, tenant_id: int) -> list[RequestRow]:
    """Ended requests that still hold something sealed."""
    query = select(RequestRow).where(
        RequestRow.tenant_id == tenant_id,
        col(RequestRow.sealed).is_not(None),
        col(RequestRow.state).in_(sorted(DONE | FINAL)),
    )
    return list(session.exec(query.order_by(col(RequestRow.request_id))))


def _sweeps(session: Session, tenant_id: int, now: datetime) -> list[str]:
    """Finished sweeps whose captures are over and were not ended yet."""
    query = select(SweepRow).where(SweepRow.tenant_id == tenant_id, col(SweepRow.finished_at) <= now)
    rows = session.exec(query.order_by(col(SweepRow.sweep_id))).all()
    return [row.sweep_id for row in rows if ENDED not in row.counts and _sweep_may_end(session, row, now)]


def _may_end(session: Session, row: RequestRow, now: datetime) -> bool:
    ended = ended_at(session, row)
    if ended is None:
        return False
    if restrict.is_in_force(session, row):
        return False
    return _decided(session, row.tenant_id, _REQUEST, frozenset(row.subjects), ended, now)


def _sweep_may_end(session: Session, row: SweepRow, now: datetime) -> bool:
    if row.finished_at is None:
        return False
    return _decided(session, row.tenant_id, _SWEEP, frozenset(), row.finished_at, now)


def _decided(  # noqa: PLR0917 - the values of one decision
    session: Session, tenant_id: int, rules: Rules, people: frozenset[int], ended: datetime, now: datetime
) -> bool:
    keep_holds_out(session, tenant_id)
    item = Item(item_id=-1, data_class=REQUEST_CLASS, created=ended, subjects=people, own_subjects=people)
    return decide(item, rules, holds_in_force(session, tenant_id), (), (), now).action in DESTRUCTIVE


def ended_at(session: Session, row: RequestRow) -> datetime | None:
    """Since when nothing more is expected of a request; None while something is."""
    if row.state in FINAL or row.right != Right.ERASURE:
        query = sa.select(sa.func.max(col(RequestEvent.at))).where(
            col(RequestEvent.tenant_id) == row.tenant_id,
            col(RequestEvent.request_id) == row.request_id,
            col(RequestEvent.event) != _EVENT,
        )
        found: datetime | None = session.scalar(query)
        return found
    if not row.details.get("final_issued"):
        return None
    issued: datetime | None = session.scalar(
        sa.select(sa.func.max(col(CertificateRow.issued_at))).where(
            col(CertificateRow.tenant_id) == row.tenant_id,
            col(CertificateRow.request_id) == row.request_id,
            col(CertificateRow.version) == "final",
        )
    )
    return issued


def _end(parts: Parts, tenant_id: int, owner: str, now: datetime) -> None:
    with parts.transactions(tenant_id, write=False) as session:
        keys = _keys(session, parts, tenant_id, owner)
    parts.record.event(tenant_id, Kind.KEY_DESTROYING, {"owner": owner, "keys": keys}, now)  # 1
    with parts.transactions(tenant_id) as session:  # 2
        row = _still_due(session, tenant_id, owner, now)
        if row is None:
            # A hold came, or the request was reopened. Without this a rebuild would take the announcement for done.
            nothing = {"owner": owner, "keys": []}
            parts.record.announce(session, tenant_id, Kind.KEY_DESTROYED, nothing, now)
            return
        turned = let_go(parts, session, tenant_id, keys, owner=owner, now=now)
        mine = (col(CopyRow.tenant_id) == tenant_id, col(CopyRow.owner) == owner)
        session.connection().execute(sa.update(CopyRow).where(*mine).values(sealed=None))
        entry_id = parts.record.announce(session, tenant_id, Kind.KEY_DESTROYED, {"owner": owner, "keys": keys}, now)
        if isinstance(row, SweepRow):
            row.counts = {**row.counts, ENDED: now.isoformat()}
            session.add(row)
        else:
            _empty(session, row, now)
            history.add_event(session, row, event=_EVENT, actor=_WORKER, now=now, entry_id=entry_id)
    parts.vault.evict(keys)
    # The worker destroys the old epoch when its grace is over, and keeps the groups again before it does: a crash here
    # is healed then.
    parts.keep_groups(tenant_id, turned, now)  # 3


def _still_due(session: Session, tenant_id: int, owner: str, now: datetime) -> RequestRow | SweepRow | None:
    row = load_work(session, tenant_id, owner, lock=True).row
    if isinstance(row, SweepRow):
        return row if _sweep_may_end(session, row, now) else None
    return row if row.state in DONE | FINAL and _may_end(session, row, now) else None


def _keys(session: Session, parts: Parts, tenant_id: int, owner: str) -> list[str]:
    row = load_work(session, tenant_id, owner).row
    number, scope = (row.request_no, None) if isinstance(row, RequestRow) else (SWEEP_KEY, owner)
    return sorted(
        key.key_id
        for key in parts.vault.keys_of(session, tenant_id, [number])
        if key.spec.data_class == REQUEST_CLASS and scope in (None, key.spec.scope) and key.destroyed_at is None
    )


def _empty(session: Session, row: RequestRow, now: datetime) -> None:
    """What the person said, and every way to find the request by a name."""
    row.sealed = None
    row.details = {**row.details, ENDED: now.isoformat(), "footprints": row.details.get("footprints", 0) + 1}
    session.add(row)
    named = (col(RequestSubject.tenant_id) == row.tenant_id, col(RequestSubject.request_id) == row.request_id)
    session.connection().execute(sa.delete(RequestSubject).where(*named))
