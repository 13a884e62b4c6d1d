"""Whether destroyed keys are beyond reach, tried and dated. Destroys nothing and believes no tombstone.

Three dates of one key: its row lost the bytes (``KeyInfo.destroyed_at``); no backup of rows opens any more, because
every epoch that ever wrapped it is destroyed (``unopenable_since``); no backup of the key folder helps either,
because every root that wrapped those epochs is gone (``final_at``).
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from sqlalchemy import Connection, Table
from sqlmodel import Session

from vault import rows, snapshot
from vault.errors import DestructionUnproven, KekUnknown, KeyUnknown, NotDecryptable
from vault.keks import KekStore
from vault.models import KeyState
from vault.rows import AnyRow, PartId, binding_of
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
        _require_destroyed(fresh, rows.KEYS, present[key_id], key_id)
    if old_rows is not None:
        _try_old_rows(db, fresh, tenant_id, set(key_ids), old_rows)


def prove_parts_destroyed(session: Session, keks: KekStore, tenant_id: int, parts: Collection[PartId]) -> None:
    """Return only if an instance that holds nothing cannot open any of the part keys.

    Raises DestructionUnproven, KeyUnknown.
    """
    fresh = keks.fresh()
    present = rows.parts_by_id(rows.connection(session), tenant_id, parts)
    for part in parts:
        label = f"{part[0]}/{part[1]}"
        if part not in present:
            raise KeyUnknown(label)
        _require_destroyed(fresh, rows.PARTS, present[part], label)


def unopenable_since(
    session: Session, keks: KekStore, tenant_id: int, key_ids: Sequence[str], parts: Collection[PartId] = ()
) -> datetime | None:
    """Return since when every epoch that wrapped one of these keys and part keys is destroyed, or None."""

    def end_of(row: AnyRow) -> datetime | None:
        statuses = keks.epochs(str(tenant_id), row["group_no"])
        ends = [status.destroyed_at for status in statuses if status.epoch <= row["epoch"]]
        known = [end for end in ends if end is not None]
        return max(known) if known and len(known) == len(ends) else None

    return _latest(session, tenant_id, key_ids, end_of, parts)


def final_at(
    session: Session, keks: KekStore, tenant_id: int, key_ids: Sequence[str], parts: Collection[PartId] = ()
) -> datetime | None:
    """Return since when every root is gone that wrapped an epoch of these keys and part keys, or None."""

    def end_of(row: AnyRow) -> datetime | None:
        return keks.final_at(str(tenant_id), row["group_no"], row["epoch"])

    return _latest(session, tenant_id, key_ids, end_of, parts)


def _try_old_rows(db: Connection, fresh: KekStore, tenant_id: int, key_ids: set[str], data: bytes) -> None:
    old = [row for row in snapshot.snapshot_rows_of(data, tenant_id) if row["key_id"] in key_ids]
    retired = rows.retired_of(db, tenant_id, {row["group_no"] for row in old})
    gone = {(row["group_no"], row["epoch"]) for row in retired if row["destroyed_at"] is not None}
    for row in old:
        if (row["group_no"], row["epoch"]) in gone and _opens(fresh, rows.KEYS, row):
            raise DestructionUnproven(row["key_id"], f"epoch {row['epoch']} of its group still opens an old row")


def _require_destroyed(fresh: KekStore, table: Table, row: AnyRow, label: str) -> None:
    if row["wrapped"] is not None:
        opens = _opens(fresh, table, row)
        raise DestructionUnproven(label, f"its row still has bytes, which {'open' if opens else 'do not open'}")
    if row["state"] != KeyState.DESTROYED:
        raise DestructionUnproven(label, f"its row is {row['state']}, not destroyed")


def _opens(fresh: KekStore, table: Table, row: AnyRow) -> bool:
    if row["wrapped"] is None:
        return False
    try:
        kek = fresh.recover(str(row["tenant_id"]), row["group_no"], row["epoch"])
        unwrap(kek, binding_of(table, row), row["wrapped"])
    except (KekUnknown, NotDecryptable):
        return False
    return True


def _latest(
    session: Session,
    tenant_id: int,
    key_ids: Sequence[str],
    end_of: Callable[[AnyRow], datetime | None],
    parts: Collection[PartId] = (),
) -> datetime | None:
    db = rows.connection(session)
    found: dict[str | PartId, AnyRow] = dict(rows.keys_by_id(db, tenant_id, key_ids).items())
    found.update(rows.parts_by_id(db, tenant_id, parts).items())
    ends = []
    for name in (*key_ids, *parts):
        if name not in found:
            raise KeyUnknown(name if isinstance(name, str) else f"{name[0]}/{name[1]}")
        end = end_of(found[name]) if found[name]["state"] == KeyState.DESTROYED else None
        if end is None:
            return None
        ends.append(end)
    return max(ends, default=None)
