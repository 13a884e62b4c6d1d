"""The outbox: announcements on their way to the record, numbered in the transaction of the change they tell of.

Guarantees: numbers grow by one, and a change that is undone uses none. Each goes into the header of its entry, as the
count of a recorder that bears the log's own id, so the record itself shows an announcement that was left out. A number
is above every one that a row or the record bears, whatever the counter in the database says: set back, it gives none
twice. Runs in the caller's transaction. Not here: what is announced, and the shipping (`registry.record`); who
changes a row before it is shipped changes what is announced, as he could change the thing itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger import index
from ledger.entry import Header
from ledger.models import LogState, OutboxRow, RecorderRange

# As texts: a sweep announces each copy, and to put this together anew would take longer than the statement itself.
_NEXT = {
    dialect: sa.text(
        f"UPDATE log_state SET outbox_counter = 1 + {larger}(outbox_counter, "  # noqa: S608 (names of ours)
        "COALESCE((SELECT MAX(o.n) FROM outbox o WHERE o.tenant_id = :t), 0), "
        "COALESCE((SELECT MAX(r.last) FROM recorder_range r WHERE r.tenant_id = :t "
        "AND r.recorder_id = log_state.log_id), 0)) WHERE tenant_id = :t RETURNING outbox_counter"
    )
    for dialect, larger in (("sqlite", "MAX"), ("postgresql", "GREATEST"))
}
_INSERT = sa.insert(OutboxRow)
_SHIPPED = sa.text("UPDATE outbox SET idx = :idx WHERE tenant_id = :t AND n = :n")


def number_of(header: Header, log_id: str) -> int | None:
    """Return the number of the announcement that a header stands for; None for any other entry."""
    return header.seq if header.recorder == log_id else None


def put(session: Session, tenant_id: int, *, entry_id: str, kind: str, body: bytes, at: datetime) -> int | None:
    """Write an announcement under the next number and return that; None where the tenant has no log."""
    number = _next(session, tenant_id)
    if number is not None:
        row = {"tenant_id": tenant_id, "n": number, "entry_id": entry_id, "kind": kind, "body": body, "at": at}
        session.connection().execute(_INSERT, row)
    return number


def waiting(session: Session, tenant_id: int, limit: int) -> list[OutboxRow]:
    """Return the first rows that are not known to be in the record, in their order."""
    query = select(OutboxRow).where(OutboxRow.tenant_id == tenant_id, col(OutboxRow.idx).is_(None))
    return list(session.exec(query.order_by(col(OutboxRow.n)).limit(limit)))


def astray(session: Session, tenant_id: int, log_id: str, rows: Sequence[OutboxRow]) -> list[int]:
    """Return the numbers of those of these rows under which the record holds another announcement.

    So it is after a database went back in time and had announced something before it was brought up to the record.
    """
    last = session.execute(_last_in_record(tenant_id, log_id)).scalar() or 0
    behind = [row for row in rows if row.n <= last]
    there = index.known(session, tenant_id, [row.entry_id for row in behind])
    return [row.n for row in behind if row.entry_id not in there]


def renumber(session: Session, tenant_id: int, numbers: Sequence[int]) -> None:
    """Give rows that wait the next numbers, in the order given; one that another shipper renumbered or sent is passed.

    A number is taken only for a row that is held until the transaction ends: one that no row bears is a hole.
    """
    for number in numbers:
        mine = (col(OutboxRow.tenant_id) == tenant_id) & (col(OutboxRow.n) == number) & col(OutboxRow.idx).is_(None)
        if session.execute(sa.select(col(OutboxRow.n)).where(mine).with_for_update()).scalar() is not None:
            session.connection().execute(sa.update(OutboxRow).where(mine).values(n=_next(session, tenant_id)))


def shipped(session: Session, tenant_id: int, places: Mapping[int, int | None]) -> None:
    """Note at which index of the log the announcement of each number stands."""
    rows = [{"t": tenant_id, "n": number, "idx": idx} for number, idx in places.items()]
    session.connection().execute(_SHIPPED, rows)


def caught_up(session: Session, tenant_id: int, log_id: str, headers: Sequence[Header]) -> None:
    """Take in the numbers of a batch that the database did not know: the next one is behind them."""
    last = max((number for header in headers if (number := number_of(header, log_id)) is not None), default=0)
    if last:
        older = (col(LogState.tenant_id) == tenant_id) & (col(LogState.outbox_counter) < last)
        session.connection().execute(sa.update(LogState).where(older).values(outbox_counter=last))


def stand_at_record(session: Session, tenant_id: int, log_id: str) -> None:
    """Let the counter of a database that was made anew go on where the record stops, if the record has numbers.

    What waited in the lost one's outbox never got into the record; `muniment rebuild` says so.
    """
    last = session.execute(_last_in_record(tenant_id, log_id)).scalar()
    if last is not None:
        mine = col(LogState.tenant_id) == tenant_id
        session.connection().execute(sa.update(LogState).where(mine).values(outbox_counter=last))


def _last_in_record(tenant_id: int, log_id: str) -> sa.Select[Any]:
    mine = (col(RecorderRange.tenant_id) == tenant_id) & (col(RecorderRange.recorder_id) == log_id)
    return sa.select(sa.func.max(col(RecorderRange.last))).where(mine)


def _next(session: Session, tenant_id: int) -> int | None:
    connection = session.connection()
    number: int | None = connection.execute(_NEXT[connection.dialect.name], {"t": tenant_id}).scalar()
    return number
