"""What a rebuilt database lacks, counted: step 6 of `registry.rebuild`. Names keys and streams by number only."""

from __future__ import annotations

import sqlalchemy as sa
from sqlmodel import Session, col

from ledger.models import EntryRow, PartPlaces
from registry.models import StreamRow
from vault.models import DataKey, KeyState, PartKey


def lost_keys(session: Session, tenant_id: int) -> list[str]:
    """Say which content nobody can read any more although nobody asked for its destruction."""
    lost = sum(
        session.scalar(
            sa.select(sa.func.count())
            .select_from(model)
            .where(col(model.tenant_id) == tenant_id, col(model.state) == KeyState.LOST.value)
        )
        or 0
        for model in (DataKey, PartKey)
    )
    absent = session.scalar(
        sa.select(sa.func.count(sa.distinct(col(PartPlaces.key_id))))
        .select_from(PartPlaces)
        .outerjoin(
            DataKey,
            sa.and_(col(DataKey.tenant_id) == col(PartPlaces.tenant_id), col(DataKey.key_id) == PartPlaces.key_id),
        )
        .where(col(PartPlaces.tenant_id) == tenant_id, col(DataKey.key_id).is_(None))
    )
    found = []
    if lost:
        found.append(
            f"{lost} keys whose key-encryption key is destroyed, without a newer wrapping in the unlocked store"
        )
    if absent:
        found.append(f"{absent} keys that the unlocked store does not hold; what they seal cannot be read")
    return found


def unnamed_streams(session: Session, tenant_id: int) -> int:
    """How many conversations of the record have no row that names them."""
    query = (
        sa.select(sa.func.count(sa.distinct(col(EntryRow.stream_no))))
        .select_from(EntryRow)
        .outerjoin(
            StreamRow,
            sa.and_(
                col(StreamRow.tenant_id) == col(EntryRow.tenant_id), col(StreamRow.stream_no) == col(EntryRow.stream_no)
            ),
        )
        .where(col(EntryRow.tenant_id) == tenant_id, col(EntryRow.stream_no) != 0, col(StreamRow.stream_no).is_(None))
    )
    return int(session.scalar(query) or 0)
