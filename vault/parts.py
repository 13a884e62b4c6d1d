"""Part keys: what opens one part when the data key it was sealed under has to go and the part has to stay.

Each has a ground and an end. They live in the same groups as data keys, so that the same turn of an epoch makes a
destroyed one unreadable in every backup. Whether a part must stay is decided elsewhere.
"""

import hmac
from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import Connection
from sqlmodel import Session

from vault import rows
from vault.envelope import PART_KEY_BYTES
from vault.errors import KeyDestroyed, KeyUnknown, NotDecryptable
from vault.keks import KekStore
from vault.models import KeyState
from vault.opening import slot_kek
from vault.rows import AnyRow, PartId, binding_of
from vault.wrapping import unwrap, wrap


def keep_part(
    session: Session,
    keks: KekStore,
    tenant_id: int,
    part: PartId,
    part_key: bytes,
    *,
    ground: str,
    until: datetime | None,
    now: datetime,
) -> None:
    """Keep one part's key; a part already kept gets the new ground and end.

    Raises KeyDestroyed if its part key was destroyed, NotDecryptable if another key is already kept for it.
    """
    if len(part_key) != PART_KEY_BYTES:
        raise NotDecryptable(f"a part key has {PART_KEY_BYTES} bytes, got {len(part_key)}")
    db = rows.connection(session)
    if _reground(db, keks, tenant_id, part, part_key, ground=ground, until=until):
        return
    [slots] = rows.take_slots(db, tenant_id, 1)
    row: dict[str, Any] = {
        "tenant_id": tenant_id,
        "entry_id": part[0],
        "part": part[1],
        "group_no": slots.group_no,
        "epoch": slots.epoch,
    }
    wrapped = wrap(slot_kek(keks, tenant_id, slots), binding_of(rows.PARTS, row), part_key)
    row |= {"wrapped": wrapped, "ground": ground, "until": until, "created_at": now, "state": KeyState.LIVE}
    if not rows.insert_missing(db, rows.PARTS, [row]):
        # Another process kept it first.
        rows.give_back(db, tenant_id, slots.group_no, 1)
        _reground(db, keks, tenant_id, part, part_key, ground=ground, until=until)


def open_part(session: Session, keks: KekStore, tenant_id: int, part: PartId) -> bytes:
    """Return the part key. Raises KeyUnknown if none is kept, KeyDestroyed if it was destroyed."""
    found = rows.parts_by_id(rows.connection(session), tenant_id, [part])
    if part not in found:
        raise KeyUnknown(f"{part[0]}/{part[1]}")
    return _open(keks, found[part])


def open_parts(session: Session, keks: KekStore, tenant_id: int, parts: Collection[PartId]) -> dict[PartId, bytes]:
    """Return the part keys that are kept for these parts; the others are left out."""
    found = rows.parts_by_id(rows.connection(session), tenant_id, parts)
    return {part: _open(keks, row) for part, row in found.items() if row["wrapped"] is not None}


def _reground(
    db: Connection,
    keks: KekStore,
    tenant_id: int,
    part: PartId,
    part_key: bytes,
    *,
    ground: str,
    until: datetime | None,
) -> bool:
    row = rows.parts_by_id(db, tenant_id, [part]).get(part)
    if row is None:
        return False
    if not hmac.compare_digest(_open(keks, row), part_key):
        raise NotDecryptable(f"another key is already kept for part {part[1]} of entry {part[0]}")
    rows.set_parts(db, tenant_id, [part], {"ground": ground, "until": until})
    return True


def _open(keks: KekStore, row: AnyRow) -> bytes:
    if row["wrapped"] is None:
        raise KeyDestroyed(f"{row['entry_id']}/{row['part']}", row["destroyed_at"], row["request"])
    kek = keks.get(str(row["tenant_id"]), row["group_no"], row["epoch"])
    return unwrap(kek, binding_of(rows.PARTS, row), row["wrapped"])
