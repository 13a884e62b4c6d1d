"""Which batches name a payload object, where the index does not say.

Guarantees: every batch in the bucket that may name the object is asked: those whose entries came around the time at
which the object was written, whatever order a clock that stepped left them in, and those that the index does not know;
all of them where the index lacks an entry. One that cannot be read is an error, never a batch that does not name it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa
from sqlmodel import col

from ledger.batches import batch_key, parse_batch_key
from ledger.entry import uuid7_time
from ledger.errors import MalformedBatch
from ledger.head import Transactions
from ledger.models import EntryRow
from ledger.objects import ObjectStore

AROUND = timedelta(minutes=30)
"""How far the clocks of two processes, and a flush and its entries, can lie apart."""

NamesIn = Callable[[int], Collection[str]]
"""Says which objects the batch that begins with an index names."""


class _Span(NamedTuple):
    """A batch and when its first and its last entry came."""

    first: int
    earliest: datetime
    latest: datetime


class _Times(NamedTuple):
    """The batches that the index knows, in order, and by name of object those that it does not."""

    spans: Sequence[_Span]
    named_behind: Mapping[str, Sequence[int]]


class Naming:
    """The batches of one log during one look at its objects; the times of all of them are read once."""

    def __init__(self, locked: ObjectStore, transactions: Transactions, tenant_id: int, log_id: str) -> None:
        self._locked = locked
        self._transactions = transactions
        self._tenant_id = tenant_id
        self._log_id = log_id
        self._times: _Times | None = None

    def batches(self, name: str, names_in: NamesIn) -> list[int]:
        """The first indexes of the batches that name an object. Raises: what `names_in` and the store raise."""
        if self._times is None:
            spans = self._spans()
            # Only both together say which batches may name it.
            self._times = _Times(spans, self._named_behind(spans[-1].first if spans else None, names_in))
        written = uuid7_time(name.rpartition("/")[2])
        near = [one.first for one in self._times.spans if one.earliest - AROUND <= written <= one.latest + AROUND]
        return [*(first for first in near if name in names_in(first)), *self._times.named_behind.get(name, ())]

    def _named_behind(self, last: int | None, names_in: NamesIn) -> Mapping[str, Sequence[int]]:
        """What is named by the batches in the bucket behind the last that the index knows; by all where it is none."""
        named: defaultdict[str, list[int]] = defaultdict(list)
        after = None if last is None else f"{self._log_id}/{batch_key(last)}"
        for key in self._locked.list(f"{self._log_id}/batch/", after=after):
            try:
                first = parse_batch_key(key.removeprefix(f"{self._log_id}/"))
            except MalformedBatch:
                continue  # no batch by its name; `muniment verify` names it
            for name in names_in(first):
                named[name].append(first)
        return named

    def _spans(self) -> list[_Span]:
        """The batches that the index knows, in order, and when their entries came; none where it lacks an entry."""
        received = col(EntryRow.received)
        with self._transactions(self._tenant_id, write=False) as session:
            rows = session.execute(
                sa.select(
                    col(EntryRow.batch_first), sa.func.min(received), sa.func.max(received), sa.func.count(),
                    sa.func.max(col(EntryRow.idx)),
                )
                .where(col(EntryRow.tenant_id) == self._tenant_id)
                .group_by(col(EntryRow.batch_first))
                .order_by(col(EntryRow.batch_first))
            ).all()  # fmt: skip
        end = 0
        for first, _, _, count, last in rows:
            if (first, last) != (end, end + count - 1):
                return []
            end += count
        return [_Span(*row[:3]) for row in rows]


__all__ = ["Naming"]
