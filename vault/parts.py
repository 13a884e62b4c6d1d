"""Part keys: what opens one part when the data key it was sealed under has to go and the part has to stay.

Each has a ground and an end. They live in the same groups as data keys, so that the same turn of an epoch makes a
destroyed one unreadable in every backup. Many are kept with few statements: a month's key may open a hundred thousand
parts. Whether a part must stay is decided elsewhere.
"""

import hmac
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
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

MAX_GROUND = 128
_SALT_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPart:
    """One part that must outlive its data key `key_id`: where it stands in the log, its key, why, and until when."""

    entry_id: str
    part: int
    idx: int
    key_id: str
    part_key: bytes = field(repr=False)
    ground: str
    until: datetime | None

    @property
    def name(self) -> PartId:
        """Entry id and number."""
        return self.entry_id, self.part


@dataclass(frozen=True, slots=True, kw_only=True)
class PartInfo:
    """What is known about a part's key without opening it."""

    entry_id: str
    part: int
    state: KeyState
    ground: str
    until: datetime | None
    destroyed_at: datetime | None
    request: str | None


def keep_parts(session: Session, keks: KekStore, tenant_id: int, parts: Sequence[KeptPart], now: datetime) -> int:
    """Keep these parts' keys; one already kept gets the new ground and end. Returns how many were not kept before.

    Raises KeyDestroyed if a part's key was destroyed, NotDecryptable if another key is already kept for it.
    """
    for part in parts:
        if len(part.part_key) != PART_KEY_BYTES:
            raise NotDecryptable(f"a part key has {PART_KEY_BYTES} bytes, got {len(part.part_key)}")
    db = rows.connection(session)
    missing = _reground(db, keks, tenant_id, parts)
    made = 0
    left = iter(missing)
    for slots in rows.take_slots(db, tenant_id, len(missing)):
        kek = slot_kek(keks, tenant_id, slots)
        some = list(islice(left, slots.count))
        wrapped = list(_wrapped(tenant_id, some, slots, kek, now))
        inserted = len(rows.insert_missing(db, rows.PARTS, wrapped))
        made += inserted
        if inserted < len(some):
            # Another process kept them first.
            rows.give_back(db, tenant_id, slots.group_no, len(some) - inserted)
            _reground(db, keks, tenant_id, some)
    return made


def open_part(session: Session, keks: KekStore, tenant_id: int, part: PartId) -> bytes:
    """Return the part key. Raises KeyUnknown if none is kept, KeyDestroyed if it was destroyed."""
    found = rows.parts_by_id(rows.connection(session), tenant_id, [part])
    if part not in found:
        raise KeyUnknown(f"{part[0]}/{part[1]}")
    return _open(keks, found[part])


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReading:
    """Part keys that opened, and why others did not; parts that never had one are in neither."""

    opened: dict[PartId, bytes] = field(repr=False)
    destroyed: dict[PartId, KeyDestroyed]


def try_open_parts(session: Session, keks: KekStore, tenant_id: int, parts: Collection[PartId]) -> PartReading:
    """Return the part keys that are kept for these parts, and those that were destroyed."""
    reading = PartReading(opened={}, destroyed={})
    for part, row in rows.parts_by_id(rows.connection(session), tenant_id, parts).items():
        try:
            reading.opened[part] = _open(keks, row)
        except KeyDestroyed as fact:
            reading.destroyed[part] = fact
    return reading


def part_infos(session: Session, tenant_id: int, parts: Collection[PartId]) -> dict[PartId, PartInfo]:
    """Return what is known about these parts' keys; those that never had one are left out."""
    found = rows.parts_by_id(rows.connection(session), tenant_id, parts)
    return {
        name: PartInfo(
            entry_id=row["entry_id"],
            part=row["part"],
            state=KeyState(row["state"]),
            ground=row["ground"],
            until=row["until"],
            destroyed_at=row["destroyed_at"],
            request=row["request"],
        )
        for name, row in found.items()
    }


def _wrapped(
    tenant_id: int, parts: Sequence[KeptPart], slots: rows.Slots, kek: bytes, now: datetime
) -> Iterator[dict[str, Any]]:
    salts = os.urandom(_SALT_BYTES * len(parts))
    for number, part in enumerate(parts):
        row: dict[str, Any] = {
            "tenant_id": tenant_id,
            "entry_id": part.entry_id,
            "part": part.part,
            "idx": part.idx,
            "key_id": part.key_id,
            "group_no": slots.group_no,
            "epoch": slots.epoch,
        }
        salt = salts[number * _SALT_BYTES : (number + 1) * _SALT_BYTES]
        row["wrapped"] = wrap(kek, binding_of(rows.PARTS, row), part.part_key, salt=salt)
        yield row | {
            "ground": part.ground[:MAX_GROUND], "until": part.until, "created_at": now, "state": KeyState.LIVE
        }  # fmt: skip


def _reground(db: Connection, keks: KekStore, tenant_id: int, parts: Sequence[KeptPart]) -> list[KeptPart]:
    """Give those that are kept already their new ground and end; return the others."""
    found = rows.parts_by_id(db, tenant_id, [part.name for part in parts])
    changed = []
    for part in parts:
        row = found.get(part.name)
        if row is None:
            continue
        if not hmac.compare_digest(_open(keks, row), part.part_key):
            raise NotDecryptable(f"another key is already kept for part {part.part} of entry {part.entry_id}")
        if (row["ground"], row["until"]) != (part.ground[:MAX_GROUND], part.until):
            changed.append(part)
    for part in changed:
        rows.set_parts(db, tenant_id, [part.name], {"ground": part.ground[:MAX_GROUND], "until": part.until})
    return [part for part in parts if part.name not in found]


def _open(keks: KekStore, row: AnyRow) -> bytes:
    if row["wrapped"] is None:
        raise KeyDestroyed(f"{row['entry_id']}/{row['part']}", row["destroyed_at"], row["request"])
    kek = keks.get(str(row["tenant_id"]), row["group_no"], row["epoch"])
    return unwrap(kek, binding_of(rows.PARTS, row), row["wrapped"])
