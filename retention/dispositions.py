"""Dispositions: items whose class ends in a review wait here for a human's word, which is kept.

Guarantees: an item waits once; every decision has a comment (sealed under the tenant's own key) and an entry in the
record. Erase: the next pass ends it, by the same decision and the same executor as everything else, so that a hold
still wins. Extend: it stays until a date, then it is reviewed again. Reclassify: another class's rules, from now on.
Items in quarantine (`retention.quarantine`) are decided in the same way. The caller commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger.entry import Kind
from registry import classes
from registry.acting import Acting
from registry.artifacts import by_numbers, public_name
from registry.ends import dates_of, leaves_hold
from registry.errors import HeldInItsClass, UnknownClass
from registry.ids import new_id
from registry.keyed import NOBODY, Seals, canonical_json, chunks
from registry.models import Artifact
from registry.reading import Faults, Reader
from retention.consents import CLOCK, until_of
from retention.errors import NotKnown, NotOpen
from retention.events import ARTIFACT_KIND, ENDED, happened, scopes_of, write_hints
from retention.items import VAULT
from retention.models import DispositionRow
from retention.schedule import ends_at, month_end
from retention.stops import EventRecord, held_classes
from retention.sweep import SweepItem
from vault.models import OPENING, DataKey
from vault.vault import Vault

LABEL = "disposition"
DEADLINE = timedelta(days=30)
"""By when an item is decided about; by its ceiling where that comes first, since it ends then."""
OPEN, ERASE, EXTENDED, RECLASSIFIED, GONE = "open", "erase", "extended", "reclassified", "gone"
QUARANTINED, RELEASED = "quarantined", "released"
WAITING = (OPEN, QUARANTINED)
"""States in which a human is asked; of what is in quarantine «erase» means that the next pass tries it again."""
_LIVE = (OPEN, ERASE, QUARANTINED)
NO_ARTIFACT = 0
"""Stands for the artifact where a record key waits."""
_STATES = {"erase": ERASE, "extend": EXTENDED, "reclassify": RECLASSIFIED}


def open_reviews(session: Session, tenant_id: int, items: Sequence[SweepItem], now: datetime) -> int:
    """Let items wait for a human that do not wait yet; how many.

    A part that outlived its data key waits for nobody: what a human decided of the key is carried out on it as well.
    """
    waiting = [item for item in items if item.artifact_id is not None or item.key_id is not None]
    known = _waiting(session, tenant_id, waiting)
    rows = [
        {
            "tenant_id": tenant_id,
            "id": new_id(now),
            "artifact_id": item.artifact_id or NO_ARTIFACT,
            "key_id": item.key_id,
            "data_class": item.data_class,
            "rule": item.decision.rule,
            "state": OPEN,
            "opened_at": now,
            "due_at": min(now + DEADLINE, item.ceiling or now + DEADLINE),
        }
        for item in waiting
        if (item.artifact_id or item.key_id) not in known
    ]
    if rows:
        session.connection().execute(sa.insert(DispositionRow), rows)
    return len(rows)


def _waiting(session: Session, tenant_id: int, items: Sequence[SweepItem]) -> set[int | str | None]:
    """Those of these artifacts and keys that wait for a human already, or for the next pass after one said «erase»."""
    column: Any
    found: set[int | str | None] = set()
    artifacts = sorted({item.artifact_id for item in items if item.artifact_id is not None})
    keys = sorted({item.key_id for item in items if item.key_id is not None})
    for column, values in ((col(DispositionRow.artifact_id), artifacts), (col(DispositionRow.key_id), keys)):
        for chunk in chunks(values):
            query = sa.select(column).where(
                col(DispositionRow.tenant_id) == tenant_id, column.in_(chunk), col(DispositionRow.state).in_(_LIVE)
            )
            found.update(session.scalars(query))
    return found


def close_gone(session: Session, tenant_id: int, artifact_ids: Sequence[int], key_ids: Sequence[str] = ()) -> None:
    """Nothing waits any more for items that are gone."""
    wanted: tuple[tuple[Any, list[Any]], ...] = (
        (col(DispositionRow.artifact_id), sorted(set(artifact_ids))),
        (col(DispositionRow.key_id), sorted(set(key_ids))),
    )
    for column, values in wanted:
        for chunk in chunks(values):
            session.connection().execute(
                sa.update(DispositionRow)
                .where(
                    col(DispositionRow.tenant_id) == tenant_id, column.in_(chunk), col(DispositionRow.state).in_(_LIVE)
                )
                .values(state=GONE)
            )


def dispositions(
    session: Session, tenant_id: int, now: datetime, *, state: str = OPEN, after: int = 0, limit: int = 50
) -> list[tuple[int, dict[str, Any]]]:
    """Items in a state of review, in the order in which they came to it, each with its number for the next page."""
    there = sa.or_(col(Artifact.status).not_in(ENDED), col(DataKey.state).in_(OPENING))
    rows = session.execute(
        sa.select(DispositionRow, Artifact)
        .outerjoin(
            Artifact,
            sa.and_(
                col(Artifact.tenant_id) == col(DispositionRow.tenant_id),
                col(Artifact.id) == col(DispositionRow.artifact_id),
            ),
        )
        .outerjoin(
            DataKey,
            sa.and_(
                col(DataKey.tenant_id) == col(DispositionRow.tenant_id),
                col(DataKey.key_id) == col(DispositionRow.key_id),
            ),
        )
        .where(
            col(DispositionRow.tenant_id) == tenant_id,
            col(DispositionRow.state) == state,
            col(DispositionRow.id) > after,
            there if state in WAITING else sa.true(),
        )
        .order_by(col(DispositionRow.id))
        .limit(limit)
    ).all()
    return [(row.id, view_of(row, artifact, now)) for row, artifact in rows]


def decide_disposition(
    session: Session,
    vault: Vault,
    record: EventRecord,
    acting: Acting,
    *,
    disposition_id: str,
    spec: Mapping[str, Any],
    now: datetime,
) -> dict[str, Any]:
    """The disposition as decided. Raises: InvalidDeclaration, UnknownClass, HeldInItsClass, NotKnown, NotOpen."""
    decision, until, data_class, comment = _parsed(spec, now)
    row = _load(session, acting.tenant_id, disposition_id)
    artifact = by_numbers(session, acting.tenant_id, (row.artifact_id,)).get(row.artifact_id)
    if row.state not in WAITING or not _is_there(session, row, artifact):
        raise NotOpen("disposition", disposition_id, row.state if row.state not in WAITING else GONE, "decided")
    if until is not None:
        _refuse_beyond_ceiling(session, row, artifact, until)
    if artifact is None:
        _refuse_reclassified_key(data_class)
    elif data_class is not None:
        _reclassify(session, acting.tenant_id, artifact, data_class)
    elif until is not None:
        write_hints(session, acting.tenant_id, {artifact.id: until})
    body = {
        "disposition": disposition_id,
        **_named(row, artifact),
        "decision": decision,
        "until": None if until is None else until.isoformat(),
        "data_class": data_class,
        "by": acting.principal,
    }
    row = _load(session, acting.tenant_id, disposition_id)
    row.entry_id = record.announce(session, acting.tenant_id, Kind.DISPOSITION_DECIDED, body, now)
    row.state, row.kept_until = _STATES[decision], until
    row.decided_by, row.decided_at = acting.principal, now
    seals = Seals(session, vault, acting.tenant_id)
    row.sealed = seals.seal(NOBODY, LABEL, str(row.id), canonical_json({"comment": comment}))
    session.add(row)
    session.flush()
    return view_of(row, artifact, now)


def _is_there(session: Session, row: DispositionRow, artifact: Artifact | None) -> bool:
    """Whether the item still exists."""
    if row.key_id is None:
        return artifact is not None and artifact.status not in ENDED
    key = session.get(DataKey, (row.tenant_id, row.key_id))
    return key is not None and key.state in OPENING


def _named(row: DispositionRow, artifact: Artifact | None) -> dict[str, Any]:
    """What the item is called: an artifact's public name, or a record key's id."""
    return {"key": row.key_id} if artifact is None else {"artifact": public_name(artifact)}


def _refuse_reclassified_key(data_class: str | None) -> None:
    """What was recorded stays under the class whose key sealed it. Raises: InvalidDeclaration."""
    if data_class is not None:
        faults = Faults("disposition")
        faults.add("/decision", "a record key stays in its class; erase or extend it")
        faults.raise_any()


def _refuse_beyond_ceiling(session: Session, row: DispositionRow, artifact: Artifact | None, until: datetime) -> None:
    """Nobody extends past what the class promises at most. Raises: InvalidDeclaration."""
    name = row.data_class if artifact is None else artifact.data_class
    spec = classes.in_force(session, row.tenant_id).get(name)
    if spec is None or spec.ceiling is None:
        return
    key = None if row.key_id is None else session.get(DataKey, (row.tenant_id, row.key_id))
    created = artifact.created_at if artifact is not None else None if key is None else month_end(key.month)
    most = None if created is None else spec.ceiling.keep.add_to(created)
    if most is not None and until > most:
        faults = Faults("disposition")
        faults.add("/until", f"lies behind the ceiling of {name}, {most.isoformat()} ({spec.ceiling.basis})")
        faults.raise_any()


def view_of(row: DispositionRow, artifact: Artifact | None, now: datetime) -> dict[str, Any]:
    """A disposition as the contract shows it: of an artifact, or of a record key."""
    return {
        "id": f"dsp_{row.id:016x}",
        **_named(row, artifact),
        "data_class": row.data_class if artifact is None else artifact.data_class,
        "store": VAULT if artifact is None else artifact.store,
        "rule": row.rule,
        "state": row.state,
        "opened_at": row.opened_at,
        "due_at": row.due_at,
        "overdue": row.state in WAITING and row.due_at < now,
        "kept_until": row.kept_until,
        "decided_by": row.decided_by,
        "decided_at": row.decided_at,
        "entry": row.entry_id,
    }


def _parsed(spec: Mapping[str, Any], now: datetime) -> tuple[str, datetime | None, str | None, str]:
    faults = Faults("disposition")
    top = Reader(spec, faults)
    decision = top.choice("decision", tuple(_STATES), required="what becomes of the item")
    comment = top.text("comment", required="why; whoever audits the decision reads it")
    until = top.instant("until")
    data_class = top.text("data_class", limit=64) or None
    top.done()
    if decision == "extend" and (until is None or until <= now):
        top.add("until", "an extension has an end, which lies after now")
    if decision != "extend" and until is not None:
        top.add("until", "only an extension has an end")
    if (decision == "reclassify") != (data_class is not None):
        top.add("data_class", "named exactly when the item is reclassified")
    faults.raise_any()
    return decision, until, data_class, comment


def _load(session: Session, tenant_id: int, disposition_id: str) -> DispositionRow:
    number = disposition_id.removeprefix("dsp_")
    try:
        wanted = int(number, 16)
    except ValueError:
        raise NotKnown("disposition", "") from None
    query = select(DispositionRow).where(DispositionRow.tenant_id == tenant_id, DispositionRow.id == wanted)
    row = session.exec(query.with_for_update()).first() if 0 <= wanted < 2**63 else None
    if row is None:
        raise NotKnown("disposition", disposition_id if wanted < 2**63 else "")
    return row


def _reclassify(session: Session, tenant_id: int, artifact: Artifact, data_class: str) -> None:
    spec = classes.in_force(session, tenant_id).get(data_class)
    if spec is None:
        raise UnknownClass(data_class)
    if leaves_hold(held_classes(session, tenant_id), artifact.data_class, spec.name):
        raise HeldInItsClass(artifact.data_class, spec.name)
    artifact.data_class, artifact.class_version = spec.name, spec.version
    session.add(artifact)
    session.flush()
    scopes = scopes_of(session, tenant_id, ARTIFACT_KIND, [artifact.id]).get(artifact.id, frozenset())
    events = {} if spec.event is None else happened(session, tenant_id, {artifact.id: (spec.event, scopes)})
    consents = until_of(session, tenant_id, [artifact], [spec.name] if spec.keep_from == CLOCK else [])
    end = ends_at(spec, dates_of(artifact), events.get(artifact.id, {}), consent_until=consents.get(artifact.id))
    write_hints(session, tenant_id, {artifact.id: end})
