"""What did not go in a pass although it was sent: single items that fail again and again, and stores that give nothing.

An item failed when its store answered and refused it, or still showed it: in `PASSES` of the last `LOOK_BACK` passes it
is put in quarantine (`retention.quarantine`), unless the last of them met a lock of its store, which ends by itself. A
store that gave nothing up of more than `MANY` items is itself at fault: none of its items is set aside, and the next
pass asks it for a few only. A store that does not answer says nothing about its items. A part of the record with a key
of its own is not looked for: it ends by one row of the vault, and what keeps that from going keeps all of them.
Guarantees: reads the copies of passes, which stay; opaque ids and what stores answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col

from erasure.models import CopyRow
from erasure.request import BROKEN, GONE, CopyState
from ledger.entry import format_instant
from ledger.models import Instant
from registry.keyed import chunks
from retention.items import VAULT
from retention.models import SweepRow
from retention.quarantine import Aside, Named, released_at

PASSES = 3
LOOK_BACK = 10
MANY = 20
AT_FAULT = "stores_at_fault"
"""The fact of a run that names such stores."""
_ANY = datetime.max.replace(tzinfo=UTC)
_FAILED = (CopyState.FAILED, CopyState.AWAITING_HUMAN)


def stores_at_fault(copies: Iterable[CopyRow], before: Collection[str] = ()) -> list[str]:
    """The stores of a pass that gave nothing up of more than `MANY` items, or of the few that it was asked for.

    `before` are those that were at fault in the pass before, and are asked for a few only.
    """
    broken, gave = Counter[str](), set[str]()
    for copy in copies:
        if copy.kind != "artifact":
            continue
        if copy.state in GONE:
            gave.add(copy.store)
        elif copy.state in BROKEN or (copy.state == CopyState.AWAITING_HUMAN and copy.attempts):
            broken[copy.store] += 1
    return sorted(name for name, number in broken.items() if name not in gave and (number > MANY or name in before))


def at_fault_before(session: Session, tenant_id: int) -> list[str]:
    """Those of the last completed pass."""
    counts = session.scalars(
        sa.select(col(SweepRow.counts))
        .where(col(SweepRow.tenant_id) == tenant_id, col(SweepRow.state) == "completed", ~col(SweepRow.dry_run))
        .order_by(col(SweepRow.created_at).desc())
        .limit(1)
    ).first()
    return list((counts or {}).get(AT_FAULT, ()))


def failing(
    session: Session, row: SweepRow, copies: Iterable[CopyRow], at_fault: Collection[str], *, tries: int
) -> list[Named]:
    """The items of this pass that failed in it and in enough of those before, none of which was decided since.

    One that its store keeps locked until a date failed at its first try of `tries`, and goes by itself after that date.
    """
    named = {
        copy.ref: Named(copy.artifact_id, copy.key_id, copy.data_class, copy.rule)
        for copy in copies
        if copy.state in _FAILED and copy.attempts and copy.store not in at_fault and (copy.artifact_id or copy.key_id)
        if not (copy.state == CopyState.FAILED and copy.method is not None and copy.attempts < tries)
    }
    if not named:
        return []
    passes = _passes_before(session, row.tenant_id, row.created_at, without=row.sweep_id)
    decided = released_at(session, row.tenant_id, list(named.values()))
    times = Counter[str](named.keys())
    for ref, owner in _failed_in(session, row.tenant_id, passes, sorted(named)):
        one = named[ref]
        last = decided.get(one.artifact_id or one.key_id or "")
        if last is None or passes[owner] >= last:
            times[ref] += 1
    return [named[ref] for ref in sorted(named) if times[ref] >= PASSES]


def _passes_before(session: Session, tenant_id: int, at: datetime, *, without: str = "") -> dict[str, datetime]:
    """The completed passes that end the look back at an instant, with when they were made."""
    query = (
        sa.select(col(SweepRow.sweep_id), col(SweepRow.created_at))
        .where(
            col(SweepRow.tenant_id) == tenant_id,
            col(SweepRow.state) == "completed",
            ~col(SweepRow.dry_run),
            col(SweepRow.sweep_id) != without,
            col(SweepRow.created_at) <= sa.literal(at, Instant()),
        )
        .order_by(col(SweepRow.created_at).desc())
        .limit(LOOK_BACK - 1)
    )
    return {str(row[0]): row[1] for row in session.execute(query)}


def _failed_in(session: Session, tenant_id: int, owners: Collection[str], refs: Sequence[str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for chunk in chunks(refs):
        rows = session.execute(
            sa.select(col(CopyRow.ref), col(CopyRow.owner)).where(
                col(CopyRow.tenant_id) == tenant_id,
                col(CopyRow.owner).in_(sorted(owners)),
                col(CopyRow.state).in_(_FAILED),
                col(CopyRow.attempts) > 0,
                col(CopyRow.ref).in_(chunk),
            )
        )
        found += [(ref, owner) for ref, owner in rows]
    return found


def view_of(session: Session, tenant_id: int, items: Sequence[Aside]) -> list[dict[str, Any]]:
    """Items in quarantine as reports show them: since when, by when to decide, and what the store answered last."""
    answers = _answers(session, tenant_id, {one.artifact_id or one.key_id or "": one.since for one in items})
    found = []
    for one in items:
        what = one.artifact_id or one.key_id or ""
        ref, store, detail, attempts = answers.get(what, (str(what), VAULT, None, 0))
        found.append(
            {
                "disposition": one.disposition_id,
                "key" if one.key_id is not None else "artifact": ref,
                "data_class": one.data_class,
                "store": store,
                "since": format_instant(one.since),
                "decide_by": format_instant(one.due_at),
                "attempts": attempts,
                "detail": detail,
            }
        )
    return found


def last_answer(session: Session, tenant_id: int, artifact_id: int) -> str | None:
    """What its store answered when a pass last tried it."""
    known = _answers(session, tenant_id, {artifact_id: _ANY}).get(artifact_id)
    return None if known is None else known[2]


_Answer = tuple[str, str, str | None, int]


def _answers(session: Session, tenant_id: int, items: Mapping[int | str, datetime]) -> Mapping[int | str, _Answer]:
    """Of each item, set aside at an instant: its name, its store, the last answer, and all attempts.

    Copies are found by their artifacts; those of keys in the passes that led to their being set aside.
    """
    found: dict[int | str, _Answer] = {}
    for chunk in chunks(sorted(what for what in items if isinstance(what, int))):
        _add_answers(found, session, tenant_id, col(CopyRow.artifact_id), col(CopyRow.artifact_id).in_(chunk))
    for what, since in items.items():
        if isinstance(what, str):
            owners = _passes_before(session, tenant_id, since)
            where = sa.and_(col(CopyRow.owner).in_(sorted(owners)), col(CopyRow.ref) == what)
            _add_answers(found, session, tenant_id, col(CopyRow.ref), where)
    return found


def _add_answers(
    found: dict[int | str, _Answer], session: Session, tenant_id: int, what: Any, where: sa.ColumnElement[bool]
) -> None:
    rows = session.execute(
        sa.select(what, col(CopyRow.ref), col(CopyRow.store), col(CopyRow.detail), col(CopyRow.attempts))
        .join(
            SweepRow,
            sa.and_(col(SweepRow.tenant_id) == col(CopyRow.tenant_id), col(SweepRow.sweep_id) == col(CopyRow.owner)),
        )
        .where(col(CopyRow.tenant_id) == tenant_id, where, col(CopyRow.state).in_(_FAILED))
        .order_by(col(SweepRow.created_at))
    )
    for name, ref, store, detail, attempts in rows:
        before = found.get(name)
        found[name] = (ref, store, detail, attempts + (0 if before is None else before[3]))
