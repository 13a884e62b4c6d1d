"""Items that passes set aside: each failed in several passes while its store served others, and waits for a human.

A quarantine is a line among the dispositions, so it has an age, a date, a reminder and a decision with a comment, which
is kept. Guarantees: what is in quarantine is not sent again by passes, is still past its date, and is named until it is
decided, gone or changed; a request of its person erases it all the same, and what was made from it ends without it. An
item whose class, store registration, dates or content changed since is tried again without a word of anybody. Not
decided here: what counts as failing (`erasure.setbacks`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col, select

from registry import classes, stores
from registry.artifacts import by_numbers
from registry.ids import new_id
from registry.keyed import NOBODY, Seals, canonical_json, chunks
from registry.models import Artifact
from retention.dispositions import GONE, LABEL, NO_ARTIFACT, QUARANTINED, RELEASED
from retention.models import DispositionRow
from vault.models import OPENING, DataKey
from vault.vault import Vault

DECIDE_BY = timedelta(days=7)
"""Its time was over before it failed, so the date is nearer than that of a review."""
GAP = "quarantined"


class Named(NamedTuple):
    """An artifact or a record key that is to be set aside. `rule` is what was to end it."""

    artifact_id: int | None
    key_id: str | None
    data_class: str
    rule: str


class Aside(NamedTuple):
    """One item in quarantine."""

    disposition_id: str
    artifact_id: int | None
    key_id: str | None
    data_class: str
    since: datetime
    due_at: datetime


def aside(session: Session, tenant_id: int) -> list[Aside]:
    """Everything in quarantine, oldest first."""
    rows = session.exec(
        select(DispositionRow)
        .where(DispositionRow.tenant_id == tenant_id, DispositionRow.state == QUARANTINED)
        .order_by(col(DispositionRow.id))
    )
    return [
        Aside(
            disposition_id=f"dsp_{row.id:016x}",
            artifact_id=row.artifact_id or None,
            key_id=row.key_id,
            data_class=row.data_class,
            since=row.opened_at,
            due_at=row.due_at,
        )
        for row in rows
    ]


def gaps(session: Session, tenant_id: int) -> dict[str, int]:
    """How many items of each class are in quarantine."""
    rows = session.execute(
        sa.select(col(DispositionRow.data_class), sa.func.count())
        .where(col(DispositionRow.tenant_id) == tenant_id, col(DispositionRow.state) == QUARANTINED)
        .group_by(col(DispositionRow.data_class))
    )
    return {str(row[0]): int(row[1]) for row in rows}


def set_aside(session: Session, vault: Vault, tenant_id: int, items: Sequence[Named], now: datetime) -> int:
    """Put items in quarantine that are not in it; how many. What they are like now is kept, to see a change."""
    known = {one.artifact_id or one.key_id for one in aside(session, tenant_id)}
    fresh = [one for one in items if (one.artifact_id or one.key_id) not in known]
    if not fresh:
        return 0
    seals = Seals(session, vault, tenant_id)
    looks = _looks(session, tenant_id, [one.artifact_id for one in fresh if one.artifact_id is not None])
    versions = _versions(session, tenant_id)
    for one in fresh:
        number = new_id(now)
        look = looks.get(one.artifact_id or 0) or versions.get(one.data_class, "")
        session.add(
            DispositionRow(
                tenant_id=tenant_id,
                id=number,
                artifact_id=one.artifact_id or NO_ARTIFACT,
                key_id=one.key_id,
                data_class=one.data_class,
                rule=one.rule,
                state=QUARANTINED,
                opened_at=now,
                due_at=now + DECIDE_BY,
                sealed=seals.seal(NOBODY, LABEL, str(number), canonical_json({"look": look})),
            )
        )
    session.flush()
    return len(fresh)


def let_go(session: Session, vault: Vault, tenant_id: int, now: datetime) -> int:
    """Close what is gone, and release what changed since it was set aside, to the next pass; how many changed."""
    rows = list(
        session.exec(
            select(DispositionRow).where(DispositionRow.tenant_id == tenant_id, DispositionRow.state == QUARANTINED)
        )
    )
    if not rows:
        return 0
    seals = Seals(session, vault, tenant_id)
    numbers = [row.artifact_id for row in rows if row.artifact_id]
    there = by_numbers(session, tenant_id, numbers)
    keys = _open_keys(session, tenant_id, [row.key_id for row in rows if row.key_id is not None])
    looks, versions = _looks(session, tenant_id, numbers), _versions(session, tenant_id)
    released = 0
    for row in rows:
        artifact = there.get(row.artifact_id)
        exists = row.key_id in keys if row.key_id is not None else artifact is not None and artifact.status != "erased"
        look = looks.get(row.artifact_id) or versions.get(row.data_class, "")
        if not exists:
            row.state = GONE
        elif seals.open(NOBODY, LABEL, str(row.id), row.sealed) != canonical_json({"look": look}):
            row.state, row.decided_at = RELEASED, now
            released += 1
        session.add(row)
    session.flush()
    return released


def released_at(session: Session, tenant_id: int, items: Sequence[Named]) -> Mapping[int | str, datetime]:
    """When each artifact or key was last decided or let go: failures from before do not count against it."""
    found: dict[int | str, datetime] = {}
    numbers = sorted({one.artifact_id for one in items if one.artifact_id is not None})
    keys = sorted({one.key_id for one in items if one.key_id is not None})
    for column, values in ((col(DispositionRow.artifact_id), numbers), (col(DispositionRow.key_id), keys)):
        for chunk in chunks(list[int | str](values)):
            rows = session.execute(
                sa.select(column, col(DispositionRow.decided_at)).where(
                    col(DispositionRow.tenant_id) == tenant_id,
                    column.in_(chunk),
                    col(DispositionRow.decided_at).is_not(None),
                )
            )
            for name, at in rows:
                found[name] = max(at, found.get(name, at))
    return found


def _looks(session: Session, tenant_id: int, numbers: Sequence[int]) -> dict[int, str]:
    """What passes read of these artifacts and of where they lie, in few characters."""
    versions = _versions(session, tenant_id)
    placed = {name: row.version for name, row in stores.in_force(session, tenant_id).items()}
    return {
        number: _look(row, versions.get(row.data_class, ""), placed.get(row.store))
        for number, row in by_numbers(session, tenant_id, numbers).items()
    }


def _look(row: Artifact, version: str, store_version: int | None) -> str:
    values = (
        row.data_class, version, row.store, store_version, row.digest, row.last_activity_at, row.confirmed_at,
        row.observed_at, row.expires_at, row.own_set_id, row.locator_hash,
    )  # fmt: skip
    return hashlib.sha256(repr(values).encode()).hexdigest()[:32]


def _versions(session: Session, tenant_id: int) -> dict[str, str]:
    return {name: str(spec.version) for name, spec in classes.in_force(session, tenant_id).items()}


def _open_keys(session: Session, tenant_id: int, key_ids: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for some in chunks(sorted(set(key_ids))):
        query = sa.select(col(DataKey.key_id)).where(
            col(DataKey.tenant_id) == tenant_id, col(DataKey.key_id).in_(some), col(DataKey.state).in_(OPENING)
        )
        found.update(session.scalars(query))
    return found
