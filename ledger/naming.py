"""Which batches name a payload object, where the index does not say.

Guarantees: every batch in the bucket that may name the object is asked: those whose entries came around the time at
which the object was written, whatever order a clock that stepped left them in, and those that the index does not know;
where it lacks an entry, all from there on. One that cannot be read is an error, never a batch that does not name it.
"""

from __future__ import annotations

from array import array
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
from ledger.models import EntryRow, microseconds
from ledger.objects import ObjectStore

AROUND = timedelta(minutes=30)
"""How far the clocks of two processes, and a flush and its entries, can lie apart."""
PAGE = 50_000
"""Entries of the index that one statement reads."""

NamesIn = Callable[[int], Collection[str]]
"""Says which objects the batch that begins with an index names."""


class _Spans:
    """The batches that the index knows, in order, and when the first and the last entry of each came: 24 bytes each."""

    def __init__(self) -> None:
        self._firsts, self._earliest, self._latest = array("q"), array("q"), array("q")

    @property
    def last(self) -> int | None:
        """The first index of the last one."""
        return self._firsts[-1] if self._firsts else None

    def take(self, first: int, earliest: datetime, latest: datetime) -> None:
        """Add a batch, or what else is known of the last one."""
        if first != self.last:
            self._firsts.append(first)
            self._earliest.append(microseconds(earliest))
            self._latest.append(microseconds(latest))
            return
        self._earliest[-1] = min(self._earliest[-1], microseconds(earliest))
        self._latest[-1] = max(self._latest[-1], microseconds(latest))

    def drop_last(self) -> None:
        """Take the last one away, if there is any."""
        del self._firsts[-1:], self._earliest[-1:], self._latest[-1:]

    def around(self, at: datetime) -> list[int]:
        """The first indexes of the batches of that time."""
        low, high = microseconds(at - AROUND), microseconds(at + AROUND)
        spans = zip(self._firsts, self._earliest, self._latest, strict=True)
        return [first for first, earliest, latest in spans if earliest <= high and latest >= low]


class _Times(NamedTuple):
    """The batches that the index knows, in order, and by name of object those that it does not."""

    spans: _Spans
    named_behind: Mapping[str, Sequence[int]]


class Naming:
    """The batches of one log during one look at its objects; the times of all of them are read once."""

    def __init__(
        self, locked: ObjectStore, transactions: Transactions, tenant_id: int, log_id: str, *, page: int = PAGE
    ) -> None:
        """`page`: how many entries of the index one statement reads."""
        self._locked = locked
        self._transactions = transactions
        self._tenant_id = tenant_id
        self._log_id = log_id
        self._page = page
        self._times: _Times | None = None

    def batches(self, name: str, names_in: NamesIn) -> list[int]:
        """The first indexes of the batches that name an object. Raises: what `names_in` and the store raise."""
        if self._times is None:
            spans = self._spans()
            # Only both together say which batches may name it.
            self._times = _Times(spans, self._named_behind(spans.last, names_in))
        written = uuid7_time(name.rpartition("/")[2])
        near = [first for first in self._times.spans.around(written) if name in names_in(first)]
        return [*near, *self._times.named_behind.get(name, ())]

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

    def _spans(self) -> _Spans:
        """The batches that the index knows whole, up to the first entry that it lacks, read a page of it at a time."""
        made, end = _Spans(), 0
        while self._take_page(made, end):
            end += self._page
        # Nothing says that the index has all of the last one.
        made.drop_last()
        return made

    def _take_page(self, made: _Spans, start: int) -> bool:
        """Add the batches of a page; False where it is not full: behind it nothing is known for sure."""
        idx, received = col(EntryRow.idx), col(EntryRow.received)
        query = (
            sa.select(
                col(EntryRow.batch_first), sa.func.min(received), sa.func.max(received), sa.func.count(),
                sa.func.max(idx),
            )
            .where(col(EntryRow.tenant_id) == self._tenant_id, idx >= start, idx < start + self._page)
            .group_by(col(EntryRow.batch_first))
            .order_by(col(EntryRow.batch_first))
        )  # fmt: skip
        with self._transactions(self._tenant_id, write=False) as session:
            rows = session.execute(query).all()
        end = start
        for first, earliest, latest, count, last in rows:
            if last - count + 1 != end or first not in (end, made.last):
                return False
            made.take(first, earliest, latest)
            end += count
        return end == start + self._page


__all__ = ["Naming"]
