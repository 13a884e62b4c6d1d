"""All SQL of the vault, as plain statements on the caller's transaction. Opens no key and decides no policy.

The caller has set the tenant and commits. Runs alike on SQLite and PostgreSQL (READ COMMITTED).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from secrets import randbelow
from typing import Any, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    CursorResult,
    RowMapping,
    Table,
    and_,
    any_,
    bindparam,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session, SQLModel

from vault import models
from vault.errors import VaultError
from vault.models import KeyState
from vault.wrapping import KeySpec, data_key_binding, data_key_bindings, part_key_binding

GROUP_SIZE = 1_000
"""Keys of one group: as many rows are wrapped anew when one of them is destroyed."""

_CHUNK = 500  # below the number of bound values every supported SQLite accepts
_GROUP_NUMBERS = 2**31 - 1
_REWRAPPED = 1_000
"""Rows of one statement of a rotation: as many as a group has keys, far below SQLite's 32,766 bound values."""
_KEY_OF = {"vault_data_key": ("key_id",), "vault_part_key": ("entry_id", "part")}
_BOUND_BY = {
    "vault_data_key": ("key_id", "subject_id", "data_class", "month", "scope"),
    "vault_part_key": ("entry_id", "part"),
}
"""Beside tenant, group and epoch."""
_ARRAYS = {"key_id": "text", "entry_id": "text", "part": "int4", "wrapped": "bytea"}

KEYS: Table = SQLModel.metadata.tables[str(models.DataKey.__tablename__)]
PARTS: Table = SQLModel.metadata.tables[str(models.PartKey.__tablename__)]
GROUPS: Table = SQLModel.metadata.tables[str(models.KeyGroup.__tablename__)]
RETIRED: Table = SQLModel.metadata.tables[str(models.RetiredKek.__tablename__)]
FENCES: Table = SQLModel.metadata.tables[str(models.KeyFence.__tablename__)]

T = TypeVar("T")
PartId = tuple[str, int]
"""Entry id and number of a part."""
AnyRow = RowMapping | dict[str, Any]
"""A row as the database or a snapshot gives it, by column name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Room for ``count`` keys in a group; ``new`` when the group was made for them."""

    group_no: int
    epoch: int
    count: int
    new: bool


def connection(session: Session) -> Connection:
    """Return the connection of the session's transaction, with what the session still holds written first."""
    session.flush()
    return session.connection()


def spec_of(row: AnyRow) -> KeySpec:
    """Return what a row's key is for."""
    return KeySpec(subject_id=row["subject_id"], data_class=row["data_class"], month=row["month"], scope=row["scope"])


def binding_of(table: Table, row: AnyRow) -> bytes:
    """Return what the bytes of a data key's or part key's row are bound to."""
    if table is KEYS:
        return data_key_binding(row["tenant_id"], row["key_id"], spec_of(row), row["group_no"], row["epoch"])
    return part_key_binding(row["tenant_id"], row["entry_id"], row["part"], row["group_no"], row["epoch"])


def keys_by_spec(db: Connection, tenant_id: int, specs: Collection[KeySpec]) -> dict[KeySpec, RowMapping]:
    """Return the rows there are for these specs."""
    months = {spec.month for spec in specs}
    classes = {spec.data_class for spec in specs}
    found = {}
    for subjects in _chunks({spec.subject_id for spec in specs}):
        wanted = and_(_among(db, KEYS.c.subject_id, subjects), KEYS.c.month.in_(months), KEYS.c.data_class.in_(classes))
        for row in db.execute(select(KEYS).where(KEYS.c.tenant_id == tenant_id, wanted)).mappings():
            found[spec_of(row)] = row
    return {spec: found[spec] for spec in specs if spec in found}


def keys_by_id(db: Connection, tenant_id: int, key_ids: Iterable[str]) -> dict[str, RowMapping]:
    """Return the rows there are for these ids."""
    found = {}
    for chunk in _chunks(key_ids):
        statement = select(KEYS).where(KEYS.c.tenant_id == tenant_id, _among(db, KEYS.c.key_id, chunk))
        found.update({row["key_id"]: row for row in db.execute(statement).mappings()})
    return found


def keys_of_subjects(db: Connection, tenant_id: int, subject_ids: Iterable[int]) -> list[RowMapping]:
    """Return every row of these incarnations, by key id."""
    found: list[RowMapping] = []
    for chunk in _chunks(subject_ids):
        statement = select(KEYS).where(KEYS.c.tenant_id == tenant_id, KEYS.c.subject_id.in_(chunk))
        found += db.execute(statement).mappings().all()
    return sorted(found, key=lambda row: str(row["key_id"]))


def parts_by_id(db: Connection, tenant_id: int, parts: Collection[PartId]) -> dict[PartId, RowMapping]:
    """Return the rows there are for these parts."""
    found = {}
    for chunk in _chunks({entry_id for entry_id, _ in parts}):
        statement = select(PARTS).where(PARTS.c.tenant_id == tenant_id, PARTS.c.entry_id.in_(chunk))
        found.update({(row["entry_id"], row["part"]): row for row in db.execute(statement).mappings()})
    return {part: found[part] for part in parts if part in found}


def fenced(db: Connection, tenant_id: int, subject_ids: Iterable[int]) -> set[int]:
    """Return which of these incarnations are fenced."""
    found: set[int] = set()
    for chunk in _chunks(subject_ids):
        here = and_(FENCES.c.tenant_id == tenant_id, _among(db, FENCES.c.subject_id, chunk))
        found.update(db.execute(select(FENCES.c.subject_id).where(here)).scalars())
    return found


def take_slots(db: Connection, tenant_id: int, count: int) -> Iterator[Slots]:
    """Yield room for ``count`` keys in groups that have some, then in new ones.

    A group that another transaction is filling or rotating is passed over, so writers do not wait for each other.
    """
    free = (
        select(GROUPS.c.group_no, GROUPS.c.epoch, GROUPS.c.size)
        .where(GROUPS.c.tenant_id == tenant_id, GROUPS.c.size < GROUP_SIZE)
        .order_by(GROUPS.c.group_no)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    while count > 0:
        row = db.execute(free).first()
        if row is None:
            taken = min(count, GROUP_SIZE)
            group_no = 1 + randbelow(_GROUP_NUMBERS)
            values = {"tenant_id": tenant_id, "group_no": group_no, "epoch": 1, "size": taken}
            if insert_missing(db, GROUPS, [values]):
                yield Slots(group_no=group_no, epoch=1, count=taken, new=True)
                count -= taken
            continue
        taken = min(count, GROUP_SIZE - row.size)
        give_back(db, tenant_id, row.group_no, -taken)
        yield Slots(group_no=row.group_no, epoch=row.epoch, count=taken, new=False)
        count -= taken


def give_back(db: Connection, tenant_id: int, group_no: int, count: int) -> None:
    """Lower a group's count by slots that were not used."""
    here = and_(GROUPS.c.tenant_id == tenant_id, GROUPS.c.group_no == group_no)
    db.execute(update(GROUPS).where(here).values(size=GROUPS.c.size - count))


def insert_missing(db: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> Sequence[RowMapping]:
    """Insert the rows that violate no unique constraint and return their primary keys.

    A concurrent writer of the same row is waited for: once this returns, its row is there to be read.
    """
    if not rows:
        return []
    statement: postgresql.Insert | sqlite.Insert
    if db.dialect.name == "postgresql":
        statement = postgresql.insert(table).on_conflict_do_nothing()
    elif db.dialect.name == "sqlite":
        statement = sqlite.insert(table).on_conflict_do_nothing()
    else:
        raise VaultError(f"the vault runs on sqlite and postgresql, not on {db.dialect.name}")
    # Asked for by RETURNING, because a driver's row count of an INSERT is not the same everywhere.
    return db.execute(statement.returning(*table.primary_key.columns), list(rows)).mappings().all()


def insert_rows(db: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that are known to be missing."""
    if rows:
        db.execute(insert(table), list(rows))


def set_keys(
    db: Connection, tenant_id: int, key_ids: Iterable[str], states: Collection[KeyState], values: Mapping[str, Any]
) -> int:
    """Change the rows that are in one of ``states`` and return how many were."""
    changed = 0
    for chunk in _chunks(key_ids):
        here = and_(KEYS.c.tenant_id == tenant_id, KEYS.c.key_id.in_(chunk), KEYS.c.state.in_(states))
        changed += db.execute(update(KEYS).where(here).values(**values)).rowcount
    return changed


def set_parts(db: Connection, tenant_id: int, parts: Iterable[PartId], values: Mapping[str, Any]) -> int:
    """Change the rows that are not destroyed and return how many were."""
    changed = 0
    of_number: dict[int, list[str]] = {}
    for entry_id, part in parts:
        of_number.setdefault(part, []).append(entry_id)
    for number, entry_ids in sorted(of_number.items()):
        for chunk in _chunks(entry_ids):
            here = and_(PARTS.c.tenant_id == tenant_id, PARTS.c.entry_id.in_(chunk), PARTS.c.part == number)
            still = PARTS.c.state != KeyState.DESTROYED
            changed += db.execute(update(PARTS).where(here, still).values(**values)).rowcount
    return changed


def locked_group(db: Connection, tenant_id: int, group_no: int) -> RowMapping | None:
    """Return the group's row, locked until the caller commits."""
    here = and_(GROUPS.c.tenant_id == tenant_id, GROUPS.c.group_no == group_no)
    return db.execute(select(GROUPS).where(here).with_for_update()).mappings().first()


def set_epoch(db: Connection, tenant_id: int, group_no: int, epoch: int) -> None:
    """Make ``epoch`` the one new keys of the group are wrapped under."""
    here = and_(GROUPS.c.tenant_id == tenant_id, GROUPS.c.group_no == group_no)
    db.execute(update(GROUPS).where(here).values(epoch=epoch))


def wrapped_rows(db: Connection, table: Table, tenant_id: int, group_no: int) -> Sequence[RowMapping]:
    """Return the rows of a group that still have bytes."""
    here = and_(table.c.tenant_id == tenant_id, table.c.group_no == group_no, table.c.wrapped.is_not(None))
    return db.execute(select(table).where(here)).mappings().all()


@dataclass(frozen=True, slots=True)
class ToRewrap:
    """What a turn needs of the rows of one epoch. A place finds its row again: a row id on SQLite, else the key."""

    places: list[tuple[Any, ...]]
    bindings: list[bytes]
    wrapped: list[bytes]


def rows_to_rewrap(db: Connection, table: Table, tenant_id: int, group_no: int, epoch: int) -> dict[int, ToRewrap]:
    """Return the group's rows that have bytes of another epoch, by that epoch."""
    key, bound = _KEY_OF[table.name], _BOUND_BY[table.name]
    place = key if db.dialect.name == "postgresql" else ("rowid",)
    query = (
        f"SELECT epoch, wrapped, {', '.join((*bound, *place))} FROM {table.name} "  # noqa: S608 - names of ours
        "WHERE tenant_id = ? AND group_no = ? AND wrapped IS NOT NULL AND epoch <> ?"
    )
    end = 2 + len(bound)
    result = _driver(db, query, (tenant_id, group_no, epoch))
    try:
        # As the driver makes them: SQLAlchemy's own rows take longer than the cipher does.
        rows = result.cursor.fetchall()
    finally:
        result.close()
    of_epoch: dict[int, list[Any]] = {}
    for row in rows:
        of_epoch.setdefault(row[0], []).append(row)
    return {
        old: ToRewrap(
            [row[end:] for row in some],
            _bindings(table, tenant_id, group_no, old, some),
            [row[1] for row in some],
        )
        for old, some in of_epoch.items()
    }


def _bindings(table: Table, tenant_id: int, group_no: int, epoch: int, rows: Sequence[Any]) -> list[bytes]:
    if table is KEYS:
        return data_key_bindings(tenant_id, group_no, epoch, [row[2:7] for row in rows])
    return [part_key_binding(tenant_id, row[2], row[3], group_no, epoch) for row in rows]


def destroyed_at_epoch(db: Connection, tenant_id: int, group_no: int, epoch: int) -> bool:
    """Return whether a key or part key of the group was destroyed while this epoch was in use."""
    return any(_at_epoch(db, table, tenant_id, group_no, epoch, with_bytes=False) for table in (KEYS, PARTS))


def carried(db: Connection, tenant_id: int, group_no: int, epoch: int) -> bool:
    """Return whether any row is still wrapped under this epoch."""
    return any(_at_epoch(db, table, tenant_id, group_no, epoch, with_bytes=True) for table in (KEYS, PARTS))


def _at_epoch(db: Connection, table: Table, tenant_id: int, group_no: int, epoch: int, *, with_bytes: bool) -> bool:
    bytes_there = table.c.wrapped.is_not(None) if with_bytes else table.c.state == KeyState.DESTROYED
    here = and_(table.c.tenant_id == tenant_id, table.c.group_no == group_no, table.c.epoch == epoch, bytes_there)
    return bool(db.execute(select(func.count()).select_from(table).where(here)).scalar_one())


def write_rewrapped(
    db: Connection, table: Table, changes: Sequence[tuple[Any, ...]], *, tenant_id: int, old: int, new: int
) -> None:
    """Write new bytes (each behind the place of its row) to rows that still have bytes of the old epoch.

    A row destroyed meanwhile is left destroyed: that is what the conditions are for. One statement for many rows, since
    a statement for each would take longer than the cipher does.
    """
    name, key = table.name, _KEY_OF[table.name]
    still = f"{name}.tenant_id = ? AND {name}.epoch = ? AND {name}.wrapped IS NOT NULL"
    for start in range(0, len(changes), _REWRAPPED):
        some = changes[start : start + _REWRAPPED]
        values: tuple[Any, ...]
        if db.dialect.name == "postgresql":
            arrays = ", ".join(f"?::{_ARRAYS[column]}[]" for column in (*key, "wrapped"))
            source = f"unnest({arrays}) AS given({', '.join((*key, 'bytes'))})"
            same = " AND ".join(f"{name}.{column} = given.{column}" for column in key)
            values = tuple(list(column) for column in zip(*some, strict=True))
        else:
            pairs = ", ".join(["(?, ?)"] * len(some))
            source = f"(SELECT column1 AS place, column2 AS bytes FROM (VALUES {pairs})) AS given"  # noqa: S608
            same = f"{name}.rowid = given.place"
            values = tuple([value for change in some for value in change])
        statement = f"UPDATE {name} SET wrapped = given.bytes, epoch = ? FROM {source} WHERE {same} AND {still}"  # noqa: S608 - names of ours
        _driver(db, statement, (new, *values, tenant_id, old))


def _driver(db: Connection, statement: str, values: tuple[Any, ...]) -> CursorResult[Any]:
    """Run a statement with `?` for its values, none of which needs a conversion."""
    return db.exec_driver_sql(statement.replace("?", "%s") if db.dialect.name == "postgresql" else statement, values)


def retired_of(db: Connection, tenant_id: int, group_nos: Iterable[int]) -> list[RowMapping]:
    """Return the former epochs of these groups."""
    found: list[RowMapping] = []
    for chunk in _chunks(group_nos):
        statement = select(RETIRED).where(RETIRED.c.tenant_id == tenant_id, RETIRED.c.group_no.in_(chunk))
        found += db.execute(statement.order_by(RETIRED.c.group_no, RETIRED.c.epoch)).mappings().all()
    return found


def due(db: Connection, tenant_id: int, now: datetime) -> Sequence[RowMapping]:
    """Return the former epochs whose grace is over and that are not destroyed yet."""
    over = and_(RETIRED.c.destroyed_at.is_(None), RETIRED.c.destroy_after <= now)
    statement = select(RETIRED).where(RETIRED.c.tenant_id == tenant_id, over)
    return db.execute(statement.order_by(RETIRED.c.group_no, RETIRED.c.epoch)).mappings().all()


def set_kek_destroyed(db: Connection, tenant_id: int, group_no: int, epoch: int, at: datetime) -> None:
    """Record since when a former epoch is gone."""
    here = and_(RETIRED.c.tenant_id == tenant_id, RETIRED.c.group_no == group_no, RETIRED.c.epoch == epoch)
    db.execute(update(RETIRED).where(here, RETIRED.c.destroyed_at.is_(None)).values(destroyed_at=at))


def groups_by_number(db: Connection, tenant_id: int, group_nos: Iterable[int]) -> dict[int, RowMapping]:
    """Return the rows of these groups."""
    found = {}
    for chunk in _chunks(group_nos):
        statement = select(GROUPS).where(GROUPS.c.tenant_id == tenant_id, GROUPS.c.group_no.in_(chunk))
        found.update({row["group_no"]: row for row in db.execute(statement).mappings()})
    return found


def _among(db: Connection, column: Column[Any], values: Sequence[Any]) -> ColumnElement[bool]:
    """Whether a column holds one of the values; PostgreSQL gets them as one array, in one text for any number."""
    if db.dialect.name != "postgresql":
        return column.in_(values)
    return column == any_(bindparam(None, list(values), type_=postgresql.ARRAY(column.type)))


def _chunks(values: Iterable[T]) -> Iterator[list[T]]:
    # Sorted and distinct, so that statements are equal for equal sets and locks are taken in one order.
    ordered = iter(sorted(set(values)))  # type: ignore[type-var]  # ids are int, str or pairs of them
    while chunk := list(islice(ordered, _CHUNK)):
        yield chunk
