"""Rows for payload objects of batches that were indexed before objects had rows, made once from the batches.

Guarantees: every batch that is indexed is looked at once, in order, a bounded number in a call, from where the last
call ended; a batch that has rows is not read. One that is not indexed yet gets its rows together with its index, from
the writer, and never here: rows that are there already would keep the writer from indexing it. New rows are to be
looked into, since keys may have gone before they were there. A damaged batch is passed over: an object that only it
names has no row, cannot be judged, and stays. Deletes nothing and reads no payload.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice

import sqlalchemy as sa
from sqlmodel import Session, col

from ledger.batches import batch_key, decode_batch, parse_batch_key
from ledger.entry import decode_header
from ledger.errors import LedgerError, MalformedBatch, StoreDenied, StoreUnavailable
from ledger.head import Transactions
from ledger.models import LogState, PayloadRow, PayloadWalk
from ledger.objects import ObjectStore
from ledger.payload_names import rows_of

FILLED = "filled"
"""The walk over the batches."""
LISTED = 200_000
"""How many batches one call lists at most."""
READ = 2_000
"""How many batches one call reads, with a page more at most."""
_PAGE = 500


def fill(locked: ObjectStore, transactions: Transactions, tenant_id: int, log_id: str, *, read: int = READ) -> bool:
    """Make the rows that are missing; whether all indexed batches were looked at. Raises: StoreUnavailable, …."""
    with transactions(tenant_id, write=False) as session:
        walk = session.get(PayloadWalk, (tenant_id, FILLED))
        if walk is not None and walk.ended:
            return True
        place = "" if walk is None else walk.place
        size = indexed_size(session, tenant_id)
    keys = locked.list(f"{log_id}/batch/", after=f"{log_id}/{place}" if place else None)
    listed = done = 0
    ended = False
    while not ended and listed < LISTED and done < read:
        page = list(islice(keys, _PAGE))
        listed += len(page)
        firsts = [first for first in _firsts(page, log_id) if first < size]
        ended = len(page) < _PAGE or any(first >= size for first in _firsts(page, log_id))
        for first in _without_rows(transactions, tenant_id, firsts):
            _fill_batch(locked, transactions, tenant_id, f"{log_id}/{batch_key(first)}")
            done += 1
        place = batch_key(firsts[-1]) if firsts else place
    with transactions(tenant_id) as session:
        walk = session.get(PayloadWalk, (tenant_id, FILLED)) or PayloadWalk(tenant_id=tenant_id, what=FILLED)
        walk.place, walk.ended = place, ended
        session.add(walk)
    return ended


def indexed_size(session: Session, tenant_id: int) -> int:
    """How many entries the index has: batches beyond have no rows of any kind yet."""
    state = session.get(LogState, tenant_id)
    return 0 if state is None else state.size


def _firsts(keys: Sequence[str], log_id: str) -> Iterator[int]:
    for key in keys:
        with suppress(MalformedBatch):  # no batch; `muniment verify` names it
            yield parse_batch_key(key.removeprefix(f"{log_id}/"))


def _without_rows(transactions: Transactions, tenant_id: int, firsts: Sequence[int]) -> list[int]:
    with transactions(tenant_id, write=False) as session:
        query = sa.select(col(PayloadRow.batch_first)).where(
            col(PayloadRow.tenant_id) == tenant_id, col(PayloadRow.batch_first).in_(firsts)
        )
        known = set(session.scalars(query))
    return [first for first in firsts if first not in known]


def _fill_batch(locked: ObjectStore, transactions: Transactions, tenant_id: int, key: str) -> None:
    try:
        batch = decode_batch(locked.get(key))
        rows = rows_of(tenant_id, batch.first, [decode_header(raw) for raw in batch.headers])
    except (StoreUnavailable, StoreDenied):
        raise
    except LedgerError:
        return
    if rows:
        with transactions(tenant_id) as session:
            # The index may have been made meanwhile: its rows are the same.
            there = set(session.scalars(sa.select(col(PayloadRow.name)).where(
                col(PayloadRow.tenant_id) == tenant_id, col(PayloadRow.batch_first) == batch.first
            )))  # fmt: skip
            new = [{**row, "dirty": True} for row in rows if row["name"] not in there]
            if new:
                session.connection().execute(sa.insert(PayloadRow), new)
