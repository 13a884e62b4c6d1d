"""How keys go: the steps of a destruction, each of which can be run again after a crash.

Order of one destruction, as erasure runs it (DESIGN §4); the caller commits after each step::

    1 mark_keys        nothing new is sealed under the keys, and no process starts to hold them in memory
    2 delete_wrapped   the rows lose their bytes and stay as tombstones
    3 rotate_groups    the groups' live rows are wrapped under a new epoch of the key-encryption key
    4                  (the caller writes the groups' rows to the unlocked store and reads them back)
    5 destroy_due_keks after the grace, the old epoch is destroyed: no backup of the rows opens any more
    6 prove_destroyed  an instance that holds nothing tries to open what was destroyed, and must fail

A crash after 2 leaves a tombstone: the key reads as destroyed at once and for ever. A crash in 3 leaves both epochs
in use, each row saying its own. A crash in 5 between file and row is healed by the next call, which finds the same
date. Which keys must go, and whether they may, is decided elsewhere.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, RowMapping, Table
from sqlmodel import Session

from vault import rows
from vault.errors import KekDestroyed, KeyUnknown, VaultError
from vault.keks import KekStore
from vault.models import KeyState
from vault.rewrapping import rewrap
from vault.rows import PartId
from vault.transaction import pending

_PREPARED = 64
"""Groups whose next key-encryption keys are made before the first of them turns."""
_MANY, _TOGETHER = 4, 8
"""So many are made in threads, and so many of them at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RotatedGroup:
    """One group's turn to a new epoch: rows wrapped anew, and when the old key-encryption key may go."""

    group_no: int
    old_epoch: int
    new_epoch: int
    rewrapped: int
    destroy_after: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateReport:
    """Groups that turned, and groups that had nothing destroyed under their present epoch."""

    rotated: tuple[RotatedGroup, ...]
    skipped: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiredEpoch:
    """A former epoch of a group; ``destroyed_at`` is None until its key-encryption key is gone."""

    group_no: int
    epoch: int
    destroy_after: datetime
    destroyed_at: datetime | None


def mark_keys(session: Session, tenant_id: int, key_ids: Iterable[str], request: str) -> int:
    """Step 1. Mark live keys as being destroyed; return how many changed."""
    db = rows.connection(session)
    values = {"state": KeyState.DESTROYING, "request": request}
    return rows.set_keys(db, tenant_id, key_ids, [KeyState.LIVE], values)


def delete_wrapped(session: Session, tenant_id: int, key_ids: Sequence[str], now: datetime, request: str) -> int:
    """Step 2. Take the bytes from the rows and leave tombstones; return how many changed.

    Raises KeyUnknown for a key without a row: its tombstone has to be brought back first (restore_rows), otherwise
    the same key could be made again.
    """
    db = rows.connection(session)
    known = rows.keys_by_id(db, tenant_id, key_ids)
    for key_id in key_ids:
        if key_id not in known:
            raise KeyUnknown(key_id)
    values = {"wrapped": None, "state": KeyState.DESTROYED, "destroyed_at": now, "request": request}
    not_yet = [KeyState.LIVE, KeyState.DESTROYING, KeyState.LOST]
    return rows.set_keys(db, tenant_id, key_ids, not_yet, values)


def drop_parts(session: Session, tenant_id: int, parts: Sequence[PartId], now: datetime, request: str) -> int:
    """Step 2 for part keys whose ground ended; return how many changed."""
    db = rows.connection(session)
    values = {"wrapped": None, "state": KeyState.DESTROYED, "destroyed_at": now, "request": request}
    return rows.set_parts(db, tenant_id, sorted(set(parts)), values)


def rotate_groups(
    session: Session,
    keks: KekStore,
    tenant_id: int,
    groups: Iterable[int],
    *,
    now: datetime,
    grace: timedelta,
    force: bool,
) -> RotateReport:
    """Step 3. Turn the groups in which something was destroyed under the present epoch (all of them with ``force``).

    Run again after its commit it finds nothing to do; run again after a crash before it, it uses the key-encryption
    key that was already made.
    """
    db = rows.connection(session)
    rotated: list[RotatedGroup] = []
    skipped: list[int] = []
    wanted = sorted(set(groups))
    for start in range(0, len(wanted), _PREPARED):
        turning: list[RowMapping] = []
        for group_no in wanted[start : start + _PREPARED]:
            group = rows.locked_group(db, tenant_id, group_no)
            if group is None:
                raise VaultError(f"tenant {tenant_id} has no key group {group_no}")
            if force or rows.destroyed_at_epoch(db, tenant_id, group_no, group["epoch"]):
                turning.append(group)
            else:
                skipped.append(group_no)
        for group, new in zip(turning, _next_epochs(keks, tenant_id, turning), strict=True):
            rotated.append(_rotate(db, keks, tenant_id, group, new=new, now=now, grace=grace))
            pending(session).groups.add((group["group_no"], group["epoch"]))
    return RotateReport(rotated=tuple(rotated), skipped=tuple(skipped))


def _rotate(
    db: Connection, keks: KekStore, tenant_id: int, group: RowMapping, *, new: int, now: datetime, grace: timedelta
) -> RotatedGroup:
    group_no, old = group["group_no"], group["epoch"]
    count = sum(_rewrap(db, keks, table, tenant_id, group_no, new=new) for table in (rows.KEYS, rows.PARTS))
    rows.set_epoch(db, tenant_id, group_no, new)
    retired = {"tenant_id": tenant_id, "group_no": group_no, "retired_at": now, "destroy_after": now + grace}
    # Epochs between the two were made and destroyed in a future this database does not know (it was restored).
    rows.insert_missing(db, rows.RETIRED, [{**retired, "epoch": epoch} for epoch in range(old, new)])
    return RotatedGroup(group_no=group_no, old_epoch=old, new_epoch=new, rewrapped=count, destroy_after=now + grace)


def _next_epochs(keks: KekStore, tenant_id: int, groups: Sequence[RowMapping]) -> Iterator[int]:
    """Make the next key-encryption key of each group, several at a time: each waits for its disk or its root alone.

    Who asks for the next one wraps keys meanwhile. One that cannot be made ends the caller's transaction, as any error
    does; those that were made are found by the next run.
    """

    def made(group: RowMapping) -> int:
        return _next_epoch(keks, tenant_id, group["group_no"], group["epoch"])

    if len(groups) < _MANY:
        yield from map(made, groups)
        return
    with ThreadPoolExecutor(_TOGETHER) as pool:
        yield from pool.map(made, groups)


def _next_epoch(keks: KekStore, tenant_id: int, group_no: int, epoch: int) -> int:
    while True:
        epoch += 1
        try:
            keks.create(str(tenant_id), group_no, epoch)
        except KekDestroyed:
            continue
        return epoch


def _rewrap(db: Connection, keks: KekStore, table: Table, tenant_id: int, group_no: int, *, new: int) -> int:
    tenant = str(tenant_id)
    kek = keks.get(tenant, group_no, new)
    count = 0
    # Nearly always one epoch; a crash in a rotation leaves two.
    for old, found in rows.rows_to_rewrap(db, table, tenant_id, group_no, new).items():
        made = rewrap(keks.get(tenant, group_no, old), kek, found.bindings, found.wrapped, new)
        changes = [(*place, wrapped) for place, wrapped in zip(found.places, made, strict=True)]
        rows.write_rewrapped(db, table, changes, tenant_id=tenant_id, old=old, new=new)
        count += len(changes)
    return count


def due_keks(session: Session, tenant_id: int, now: datetime) -> list[RetiredEpoch]:
    """Return the former epochs that step 5 would destroy now, for the event that has to be in the record first."""
    db = rows.connection(session)
    return [
        _retired(row)
        for row in rows.due(db, tenant_id, now)
        if not rows.carried(db, tenant_id, row["group_no"], row["epoch"])
    ]


def destroy_due_keks(session: Session, keks: KekStore, tenant_id: int, now: datetime) -> list[RetiredEpoch]:
    """Step 5. Destroy the key-encryption keys whose grace is over and that no row is wrapped under; return them.

    A key file that came back with a restored folder after its epoch was destroyed is destroyed again.
    Raises VaultError if the rotation that retired an epoch is not committed yet: rolled back, its rows would be lost.
    """
    db = rows.connection(session)
    tenant = str(tenant_id)
    unsure = pending(session).groups
    gone = []
    for epoch in due_keks(session, tenant_id, now):
        if (epoch.group_no, epoch.epoch) in unsure:
            raise VaultError("commit the rotation before destroying the key-encryption keys it retired")
        destroyed_at = keks.destroy(tenant, epoch.group_no, epoch.epoch, now)
        rows.set_kek_destroyed(db, tenant_id, epoch.group_no, epoch.epoch, destroyed_at)
        gone.append(
            RetiredEpoch(
                group_no=epoch.group_no,
                epoch=epoch.epoch,
                destroy_after=epoch.destroy_after,
                destroyed_at=destroyed_at,
            )
        )
    _destroy_revived(db, keks, tenant_id, now)
    return gone


def _destroy_revived(db: Connection, keks: KekStore, tenant_id: int, now: datetime) -> None:
    files = {(status.group_no, status.epoch) for status in keks.epochs(str(tenant_id)) if status.destroyed_at is None}
    for row in rows.retired_of(db, tenant_id, {group_no for group_no, _ in files}):
        place = (row["group_no"], row["epoch"])
        if place in files and row["destroyed_at"] is not None and not rows.carried(db, tenant_id, *place):
            keks.destroy(str(tenant_id), *place, now)


def _retired(row: RowMapping) -> RetiredEpoch:
    return RetiredEpoch(
        group_no=row["group_no"],
        epoch=row["epoch"],
        destroy_after=row["destroy_after"],
        destroyed_at=row["destroyed_at"],
    )
