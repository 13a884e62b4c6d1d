"""Rows of a plan's copies: read as narrow as a step needs, written as sets, always by ranges of their numbers.

Guarantees: what a step over many copies reads is neither a whole row nor an object that the session watches; what
changes alike is written by one statement, however many copies it is. The caller's transaction is the only one. Nothing
here decides anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlmodel import Session, col

from connectors.base import Level
from erasure.models import CopyRow
from erasure.plan import PlanCopy

CHUNK = 1_000
"""Copies that one statement inserts, or one step holds with all that belongs to them."""
_Shape = TypeVar("_Shape", bound=NamedTuple)
_number = col(CopyRow.copy_no)


class Outline(NamedTuple):
    """What steps over all copies of a plan look at: no capture, no reasons, no text."""

    copy_no: int
    kind: str
    artifact_id: int | None
    key_id: str | None
    data_class: str
    store: str
    depth: int
    state: str
    required: str
    level: str | None
    key_state: str | None
    attempts: int
    started_at: datetime | None
    verified_at: datetime | None


def level_of(required: str) -> Level:
    """The level to show; a class that asks for the key alone still has its copies read once by the store's API."""
    return Level.L1 if required == "key" else Level(required)


def of(tenant_id: int, owner: str, *states: str, kind: str | None = None) -> sa.ColumnElement[bool]:
    """The condition for copies of a request or sweep, all or those in some states."""
    found = [col(CopyRow.tenant_id) == tenant_id, col(CopyRow.owner) == owner]
    if states:
        found.append(col(CopyRow.state).in_(states))
    if kind is not None:
        found.append(col(CopyRow.kind) == kind)
    return sa.and_(*found)


def among(session: Session, tenant_id: int, owner: str, numbers: Collection[int]) -> sa.ColumnElement[bool]:
    """The condition for copies of these numbers, at least one.

    Always a range of the primary key: with statistics of smaller plans PostgreSQL takes an index that narrows nothing
    for a list of numbers, and reads the whole plan again for each part of it.
    """
    first, last = min(numbers), max(numbers)
    mine = sa.and_(of(tenant_id, owner), _number.between(first, last))
    if last - first + 1 == len(numbers):
        return mine
    # One value however many numbers; as a sum it narrows what the range finds and leads to no other index.
    if session.get_bind().dialect.name == "postgresql":
        given = sa.bindparam("numbers", list(numbers), type_=ARRAY(sa.Integer), unique=True)
        return sa.and_(mine, (_number + 0) == sa.any_(given))
    listed = sa.func.json_each(sa.bindparam("numbers", json.dumps(list(numbers)), unique=True)).table_valued("value")
    return sa.and_(mine, (_number + 0).in_(sa.select(listed.c.value)))


def read(session: Session, shape: type[_Shape], where: sa.ColumnElement[bool], *, lock: bool = False) -> list[_Shape]:
    """The copies of a condition in their order, as far as the fields of `shape` name their columns."""
    session.flush()
    query = sa.select(*(col(getattr(CopyRow, name)) for name in shape._fields)).where(where).order_by(_number)
    rows = session.execute(query.with_for_update() if lock else query)
    return [shape._make(row) for row in rows]


def pages(
    session: Session, shape: type[_Shape], where: sa.ColumnElement[bool], *, size: int = CHUNK
) -> Iterator[list[_Shape]]:
    """`read` in pieces, for steps that keep little of each; the first field of `shape` is the copy's number."""
    session.flush()
    query = sa.select(*(col(getattr(CopyRow, name)) for name in shape._fields)).where(where).order_by(_number)
    after = 0
    while True:
        rows = session.execute(query.where(_number > after).limit(size)).all()
        if rows:
            yield [shape._make(row) for row in rows]
            after = rows[-1][0]
        if len(rows) < size:
            return


def states_of(session: Session, where: sa.ColumnElement[bool]) -> frozenset[str]:
    """The states in which copies of a condition stand."""
    session.flush()
    return frozenset(session.execute(sa.select(col(CopyRow.state)).where(where).distinct()).scalars())


def update(session: Session, where: sa.ColumnElement[bool], **values: Any) -> int:
    """Write the same to all copies of a condition; how many.

    Objects of these rows that the session holds are not changed with it: the caller holds none.
    """
    session.flush()
    return session.connection().execute(sa.update(CopyRow).where(where).values(**values)).rowcount


def write(session: Session, tenant_id: int, owner: str, changes: Mapping[int, Mapping[str, Any]]) -> None:
    """Write new values to copies by number: one statement for all that change alike, as most of a batch do."""
    alike: dict[tuple[tuple[str, Any], ...], list[int]] = {}
    for number, values in changes.items():
        if values:
            alike.setdefault(tuple(values.items()), []).append(number)
    for values_of, numbers in alike.items():
        update(session, among(session, tenant_id, owner, numbers), **dict(values_of))


def put_copies(
    session: Session,
    tenant_id: int,
    owner: str,
    copies: Iterable[PlanCopy],
    sealed: Mapping[str, bytes] | Callable[[PlanCopy], bytes | None],
) -> None:
    """Insert lines of a plan; `sealed` are the captures by public id, or give that of a line."""
    rows: list[dict[str, Any]] = []
    for copy in copies:
        rows.append(_row(tenant_id, owner, copy, sealed(copy) if callable(sealed) else sealed.get(copy.ref)))
        if len(rows) == CHUNK:
            session.connection().execute(sa.insert(CopyRow), rows)
            rows = []
    if rows:
        session.connection().execute(sa.insert(CopyRow), rows)


def _row(tenant_id: int, owner: str, copy: PlanCopy, sealed: bytes | None) -> dict[str, Any]:
    return {
        "tenant_id": tenant_id,
        "owner": owner,
        "copy_no": copy.copy_no,
        "kind": copy.kind,
        "ref": copy.ref,
        "artifact_id": copy.artifact_id,
        "key_id": copy.key_id,
        "entry_idx": copy.entry_idx,
        "data_class": copy.data_class,
        "store": copy.store,
        "action": copy.action,
        "rule": copy.rule,
        "because": [reason._asdict() for reason in copy.because],
        "until": copy.until,
        "path": list(copy.path),
        "collateral": None if copy.collateral is None else dict(copy.collateral),
        "depth": copy.depth,
        "required": copy.required,
        "sealed": sealed,
        "state": copy.state,
        "key_state": "live" if copy.required == "key" and copy.kind != "artifact" else None,
        "detail": copy.detail,
        "attempts": 0,
    }
