"""Wrapped rows as bytes for the unlocked store, and back: what a lost or old database is repaired from.

Guarantees equal bytes for equal rows, and that bringing rows back never undoes a destruction. Holds nothing that
opens without the key-encryption keys, which are elsewhere. The format is append-only: fields are only added, with
a new ``format``. Encoding: JSON with the fields in the order below, bytes as base64, instants in UTC.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, RowMapping, Table, and_, update
from sqlmodel import Session

from vault import rows
from vault.errors import KekDestroyed, MalformedSnapshot
from vault.keks import KekStore
from vault.models import KeyState
from vault.rows import AnyRow, PartId, binding_of
from vault.transaction import pending
from vault.wrapping import unwrap


class _Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key_id: str
    subject_id: int
    data_class: str
    month: str
    scope: str
    group_no: int
    epoch: int
    wrapped: bytes | None
    created_at: datetime
    state: Literal["live", "destroying", "destroyed", "lost"]
    destroyed_at: datetime | None
    request: str | None


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    entry_id: str
    part: int
    idx: int
    key_id: str
    group_no: int
    epoch: int
    wrapped: bytes | None
    ground: str
    until: datetime | None
    created_at: datetime
    state: Literal["live", "destroyed", "lost"]
    destroyed_at: datetime | None
    request: str | None


class _Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    group_no: int
    epoch: int
    size: int


class _Retired(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    group_no: int
    epoch: int
    retired_at: datetime
    destroy_after: datetime
    destroyed_at: datetime | None


class _Snapshot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: Literal["muniment-key-rows/v1"]
    tenant_id: int
    keys: list[_Key]
    parts: list[_Part]
    groups: list[_Group]
    retired: list[_Retired]


@dataclass(slots=True, kw_only=True)
class RestoreReport:
    """What became of a snapshot's rows.

    ``lost``: their key-encryption key is destroyed. ``conflicts``: another key was made meanwhile for the same
    subject, class, month and scope; the row in the database stands.
    """

    restored: int = 0
    kept: int = 0
    lost: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)


def snapshot(session: Session, tenant_id: int, key_ids: Iterable[str], parts: Collection[PartId]) -> bytes:
    """Return these rows, their groups and former epochs as canonical bytes."""
    db = rows.connection(session)
    keys = rows.keys_by_id(db, tenant_id, key_ids)
    part_rows = rows.parts_by_id(db, tenant_id, parts)
    return _encode(db, tenant_id, [keys[key_id] for key_id in sorted(keys)], [part_rows[p] for p in sorted(part_rows)])


def snapshot_group(session: Session, tenant_id: int, group_no: int) -> bytes:
    """Return every row of a group that has bytes, after a rotation."""
    db = rows.connection(session)
    keys = rows.wrapped_rows(db, rows.KEYS, tenant_id, group_no)
    parts = rows.wrapped_rows(db, rows.PARTS, tenant_id, group_no)
    by_id = sorted(keys, key=lambda row: str(row["key_id"]))
    return _encode(db, tenant_id, by_id, sorted(parts, key=lambda row: (row["entry_id"], row["part"])))


def snapshot_rows_of(data: bytes, tenant_id: int) -> list[AnyRow]:
    """Return the data-key rows in a snapshot. Raises MalformedSnapshot."""
    return [_row(tenant_id, key) for key in _decode(data, tenant_id).keys]


def restore(session: Session, keks: KekStore, tenant_id: int, data: bytes) -> RestoreReport:
    """Bring a snapshot's rows back and say what became of each; running it again changes nothing.

    A tombstone is never undone, a row goes only forward in its epoch, and a row whose bytes open nothing any more
    comes back as ``lost``. Raises MalformedSnapshot, NotDecryptable for a row that was altered, and KekUnknown where
    the key folder is incomplete: that is a reason to stop, not to lose the row.
    """
    found = _decode(data, tenant_id)
    db = rows.connection(session)
    report = RestoreReport()
    for group in found.groups:
        _restore_group(db, tenant_id, group)
    retired = [{"tenant_id": tenant_id, **msgspec.structs.asdict(item)} for item in found.retired]
    for item in retired:
        rows.insert_missing(db, rows.RETIRED, [item])
    there = rows.keys_by_id(db, tenant_id, [key.key_id for key in found.keys])
    for key in found.keys:
        pending(session).keys.add(key.key_id)
        present, name = there.get(key.key_id), {"key_id": key.key_id}
        _restore_row(db, keks, rows.KEYS, _row(tenant_id, key), present=present, name=name, report=report)
    kept = rows.parts_by_id(db, tenant_id, [(part.entry_id, part.part) for part in found.parts])
    for part in found.parts:
        _restore_row(
            db,
            keks,
            rows.PARTS,
            _row(tenant_id, part),
            present=kept.get((part.entry_id, part.part)),
            name={"entry_id": part.entry_id, "part": part.part},
            report=report,
        )
    return report


def _restore_row(
    db: Connection,
    keks: KekStore,
    table: Table,
    row: AnyRow,
    *,
    present: RowMapping | None,
    name: dict[str, Any],
    report: RestoreReport,
) -> None:
    label = "/".join(str(value) for value in name.values())
    wanted = dict(row)
    if row["wrapped"] is not None and not _opens(keks, table, row):
        wanted |= {"wrapped": None, "state": KeyState.LOST}
    if wanted["state"] == KeyState.LOST:
        report.lost.append(label)
    if present is None:
        if rows.insert_missing(db, table, [wanted]):
            report.restored += 1
        else:
            report.conflicts.append(label)
    elif _supersedes(wanted, present):
        if present["state"] == KeyState.DESTROYING and wanted["state"] == KeyState.LIVE:
            wanted |= {"state": KeyState.DESTROYING, "request": present["request"]}
        here = and_(table.c.tenant_id == row["tenant_id"], *(table.c[key] == value for key, value in name.items()))
        db.execute(update(table).where(here).values(**wanted))
        report.restored += 1
    else:
        report.kept += 1


def _supersedes(wanted: dict[str, Any], present: RowMapping) -> bool:
    if present["state"] == KeyState.DESTROYED or wanted["state"] == KeyState.LOST:
        return False
    if wanted["state"] == KeyState.DESTROYED:
        return True
    return bool(present["state"] == KeyState.LOST or wanted["epoch"] > present["epoch"])


def _restore_group(db: Connection, tenant_id: int, group: _Group) -> None:
    values = {"tenant_id": tenant_id, **msgspec.structs.asdict(group)}
    if rows.insert_missing(db, rows.GROUPS, [values]):
        return
    present = rows.locked_group(db, tenant_id, group.group_no)
    if present is not None and present["epoch"] < group.epoch:
        rows.set_epoch(db, tenant_id, group.group_no, group.epoch)


def _opens(keks: KekStore, table: Table, row: AnyRow) -> bool:
    try:
        kek = keks.get(str(row["tenant_id"]), row["group_no"], row["epoch"])
    except KekDestroyed:
        return False
    unwrap(kek, binding_of(table, row), row["wrapped"])
    return True


def _encode(db: Connection, tenant_id: int, keys: Collection[RowMapping], parts: Collection[RowMapping]) -> bytes:
    numbers = {row["group_no"] for row in (*keys, *parts)}
    groups = rows.groups_by_number(db, tenant_id, numbers)
    shown = _Snapshot(
        format="muniment-key-rows/v1",
        tenant_id=tenant_id,
        keys=[_Key(**_without_tenant(row)) for row in keys],
        parts=[_Part(**_without_tenant(row)) for row in parts],
        groups=[_Group(**_without_tenant(groups[number])) for number in sorted(groups)],
        retired=[_Retired(**_without_tenant(row)) for row in rows.retired_of(db, tenant_id, numbers)],
    )
    return msgspec.json.encode(shown)


def _decode(data: bytes, tenant_id: int) -> _Snapshot:
    try:
        found = msgspec.json.decode(data, type=_Snapshot)
    except msgspec.MsgspecError as error:
        raise MalformedSnapshot("a snapshot of key rows cannot be read") from error
    if found.tenant_id != tenant_id:
        raise MalformedSnapshot(f"the snapshot is of tenant {found.tenant_id}, expected {tenant_id}")
    return found


def _row(tenant_id: int, item: _Key | _Part) -> AnyRow:
    return {"tenant_id": tenant_id, **msgspec.structs.asdict(item)}


def _without_tenant(row: RowMapping) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "tenant_id"}
