"""Whether destroyed keys are beyond reach, tried and dated. Destroys nothing and believes no tombstone.

Three dates of one key: its row lost the bytes (``KeyInfo.destroyed_at``); no backup of rows opens any more, because
every epoch that ever wrapped it is destroyed (``unopenable_since``); no backup of the key folder helps either,
because every root that wrapped those epochs is gone (``final_at``).
"""

from collections.abc import Callable, Sequence
from datetime import datetime

from sqlalchemy import Connection
from sqlmodel import Session

from vault import rows, snapshot
from vault.errors import DestructionUnproven, KekUnknown, KeyUnknown, NotDecryptable
from vault.keks import KekStore
from vault.models import KeyState
from vault.rows import AnyRow, binding_of
from vault.wrapping import unwrap


def prove_destroyed(
    session: Session, keks: KekStore, tenant_id: int, key_ids: Sequence[str], old_rows: bytes | None
) -> None:
    """Return only if an instance that holds nothing cannot open any of the keys. Raises as Vault.prove_destroyed."""
    fresh = keks.fresh()
    db = rows.connection(session)
    present = rows.keys_by_id(db, tenant_id, key_ids)
    for key_id in key_ids:
        if key_id not in present:
            raise KeyUnknown(key_id)
        if present[key_id]["wrapped"] is not None:
            opens = _opens(fresh, present[key_id])
            raise DestructionUnproven(key_id, f"its row still has bytes, which {'open' if opens else 'do not open'}")
        if present[key_id]["state"] != KeyState.DESTROYED:
            raise DestructionUnproven(key_id, f"its row is {present[key_id]['state']}, not destroyed")
    if old_rows is not None:
        _try_old_rows(db, fresh, tenant_id, set(key_ids), old_rows)


def unopenable_since(session: Session, keks: KekStore, tenant_id: int, key_ids: Sequence[str]) -> datetime | None:
    """Return since when every epoch that wrapped one of these keys is destroyed, or None."""

    def end_of(row: AnyRow) -> datetime | None:
        statuses = keks.epochs(str(tenant_id), row["group_no"])
        ends = [status.destroyed_at for status in statuses if status.epoch <= row["epoch"]]
        known = [end for end in ends if end is not None]
        return max(known) if known and len(known) == len(ends) else None

    return _latest(session, tenant_id, key_ids, end_of)


def final_at(session: Session, keks: KekStore, tenant_id: int, key_ids: Sequence[str]) -> datetime | None:
    """Return since when every root is gone that wrapped an epoch of these keys, or None."""

    def end_of(row: AnyRow) -> datetime | None:
        return keks.final_at(str(tenant_id), row["group_no"], row["epoch"])

    return _latest(session, tenant_id, key_ids, end_of)


def _try_old_rows(db: Connection, fresh: KekStore, tenant_id: int, key_ids: set[str], data: bytes) -> None:
    old = [row for row in snapshot.snapshot_rows_of(data, tenant_id) if row["key_id"] in key_ids]
    retired = rows.retired_of(db, tenant_id, {row["group_no"] for row in old})
    gone = {(row["group_no"], row["epoch"]) for row in retired if row["destroyed_at"] is not None}
    for row in old:
        if (row["group_no"], row["epoch"]) in gone and _opens(fresh, row):
            raise DestructionUnproven(row["key_id"], f"epoch {row['epoch']} of its group still opens an old row")


def _opens(fresh: KekStore, row: AnyRow) -> bool:
    if row["wrapped"] is None:
        return False
    try:
        kek = fresh.recover(str(row["tenant_id"]), row["group_no"], row["epoch"])
        unwrap(kek, binding_of(rows.KEYS, row), row["wrapped"])
    except (KekUnknown, NotDecryptable):
        return False
    return True


def _latest(
    session: Session, tenant_id: int, key_ids: Sequence[str], end_of: Callable[[AnyRow], datetime | None]
) -> datetime | None:
    found = rows.keys_by_id(rows.connection(session), tenant_id, key_ids)
    ends = []
    for key_id in key_ids:
        if key_id not in found:
            raise KeyUnknown(key_id)
        end = end_of(found[key_id]) if found[key_id]["state"] == KeyState.DESTROYED else None
        if end is None:
            return None
        ends.append(end)
    return max(ends, default=None)
