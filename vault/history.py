"""What became of a tenant's keys, in counts: by class, month and state, and by epoch. Names nobody, opens nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Session, col, select

from vault.models import DataKey, KeyGroup, PartKey, RetiredKek

PART_KEYS = "part"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCount:
    """Keys of one class, month and state; `month` is 0000-00 where a key belongs to none."""

    kind: str
    data_class: str
    month: str
    state: str
    keys: int
    first_at: datetime
    last_destroyed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFact:
    """One epoch of a key group: in use, or retired, with the date from which its key goes and when it went."""

    group_no: int
    epoch: int
    state: str
    retired_at: datetime | None = None
    destroy_after: datetime | None = None
    destroyed_at: datetime | None = None


def key_counts(session: Session, tenant_id: int) -> list[KeyCount]:
    """Return how many keys there are and were; data keys by class and month, part keys by their ground's state."""
    created, gone = sa.func.min(DataKey.created_at), sa.func.max(DataKey.destroyed_at)
    columns = (col(DataKey.data_class), col(DataKey.month), col(DataKey.state))
    query = sa.select(*columns, sa.func.count(), created, gone).where(col(DataKey.tenant_id) == tenant_id)
    found = [
        KeyCount(
            kind="data", data_class=row[0], month=row[1], state=row[2], keys=row[3], first_at=row[4],
            last_destroyed_at=row[5],
        )
        for row in session.execute(query.group_by(*columns).order_by(*columns))
    ]  # fmt: skip
    created, gone = sa.func.min(PartKey.created_at), sa.func.max(PartKey.destroyed_at)
    parts = sa.select(col(PartKey.state), sa.func.count(), created, gone).where(col(PartKey.tenant_id) == tenant_id)
    found += [
        KeyCount(
            kind=PART_KEYS, data_class="", month="", state=row[0], keys=row[1], first_at=row[2],
            last_destroyed_at=row[3],
        )
        for row in session.execute(parts.group_by(col(PartKey.state)).order_by(col(PartKey.state)))
    ]  # fmt: skip
    return found


def epoch_facts(session: Session, tenant_id: int, *, after: tuple[int, int], limit: int) -> list[EpochFact]:
    """Return epochs by group and number, behind a place: the one in use of each group, and those before it."""
    here = sa.tuple_(col(RetiredKek.group_no), col(RetiredKek.epoch)) > sa.tuple_(*map(sa.literal, after))
    retired = session.exec(
        select(RetiredKek)
        .where(RetiredKek.tenant_id == tenant_id, here)
        .order_by(col(RetiredKek.group_no), col(RetiredKek.epoch))
        .limit(limit)
    ).all()
    there = sa.tuple_(col(KeyGroup.group_no), col(KeyGroup.epoch)) > sa.tuple_(*map(sa.literal, after))
    groups = session.exec(
        select(KeyGroup).where(KeyGroup.tenant_id == tenant_id, there).order_by(col(KeyGroup.group_no)).limit(limit)
    ).all()
    found = [EpochFact(group_no=group.group_no, epoch=group.epoch, state="in_use") for group in groups]
    found += [
        EpochFact(
            group_no=row.group_no,
            epoch=row.epoch,
            state="retired" if row.destroyed_at is None else "destroyed",
            retired_at=row.retired_at,
            destroy_after=row.destroy_after,
            destroyed_at=row.destroyed_at,
        )
        for row in retired
    ]
    return sorted(found, key=lambda one: (one.group_no, one.epoch))[:limit]
