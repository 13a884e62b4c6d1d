"""The sealed parts of batches, compared in other processes while this one follows the chain of headers.

Guarantees: what a helper process says is what `audit.payload` says, about the very batch that this process judged: its
digest is compared, so a store that answers two readers differently is found. Results are collected whole before
anything is concluded; a helper that dies makes the verification fail, never pass. At most a few batches are under way.
Started by `spawn`: a helper opens its own readers, and shares no connection with this process.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass

from audit.findings import Finding, Findings, Verdict
from audit.headers import unchecked
from audit.payload import Counts, Gap, PartStates, PayloadCheck
from audit.reader import Reader
from ledger.batches import batch_digest, decode_batch
from ledger.errors import LedgerError

AHEAD = 4
"""How many batches wait for each helper at the most."""

Opener = Callable[[], tuple[Reader, PartStates | None]]
"""Opens, in another process, a reader of the bucket and what says whose keys are gone. Must be picklable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A batch that was read and judged, and which of its entries to look into; None is all of them."""

    key: str
    first: int
    digest: bytes
    offsets: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the parts of one batch came to."""

    counts: Counts
    gaps: Mapping[str, Gap]
    kept: Sequence[Finding]
    verdicts: Counter[Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    reader: Reader
    states: PartStates | None
    prefix: str
    everything: bool


_BENCH: list[_Bench] = []


class Helpers:
    """A few processes that compare parts; `collect` folds what they found into a check and its findings."""

    def __init__(self, pool: ProcessPoolExecutor, into: PayloadCheck, ahead: int) -> None:
        self._pool, self._into, self._ahead = pool, into, ahead
        self._waiting: deque[Future[Outcome]] = deque()

    def check(self, task: Task) -> None:
        """Hand over one batch; waits when too many are under way."""
        try:
            self._waiting.append(self._pool.submit(_check, task))
        except BrokenProcessPool:
            self._ended(task.key, task.first)
        while len(self._waiting) > self._ahead:
            self._take(self._waiting.popleft())

    def collect(self) -> None:
        """Wait for all that was handed over."""
        while self._waiting:
            self._take(self._waiting.popleft())

    def _take(self, future: Future[Outcome]) -> None:
        check = self._into
        try:
            outcome = future.result()
        except BrokenProcessPool:
            self._ended()
            return
        check.counts.checked += outcome.counts.checked
        check.counts.erased += outcome.counts.erased
        check.counts.expired += outcome.counts.expired
        for key, gap in outcome.gaps.items():
            check.cover(key, gap)
        check.findings.take(outcome.kept, outcome.verdicts)

    def _ended(self, key: str | None = None, first: int | None = None) -> None:
        """Say that a batch was not compared: its helper, or the one that would have been, is not there any more."""
        detail = "a helper process ended before it was done, so parts were not compared; run it in one process"
        self._into.findings.add(Verdict.UNREADABLE, detail, object=key, index=first)


@contextmanager
def helpers(opener: Opener, into: PayloadCheck, count: int) -> Iterator[Helpers]:
    """Yield `count` helper processes; they end with the block."""
    pool = ProcessPoolExecutor(
        max_workers=count,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_open,
        initargs=(opener, into.prefix, into.everything),
    )
    try:
        yield Helpers(pool, into, AHEAD * count)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _open(opener: Opener, prefix: str, everything: bool) -> None:  # noqa: FBT001 - called by the pool
    reader, states = opener()
    _BENCH[:] = [_Bench(reader=reader, states=states, prefix=prefix, everything=everything)]


def _check(task: Task) -> Outcome:
    (bench,) = _BENCH
    check = PayloadCheck(
        reader=bench.reader,
        prefix=bench.prefix,
        findings=Findings(),
        states=bench.states,
        everything=bench.everything,
    )
    try:
        data = bench.reader.get(task.key)
    except LedgerError as error:
        check.findings.add(
            Verdict.UNREADABLE, f"could not be read a second time: {error}", object=task.key, index=task.first
        )
    else:
        if batch_digest(data) == task.digest:
            raws = decode_batch(data).headers
            offsets = range(len(raws)) if task.offsets is None else task.offsets
            entries = ((task.first + offset, unchecked(raws[offset])) for offset in offsets)
            check.check(task.first, task.first + len(raws), entries)
        else:
            detail = "the store answered two readers with different bytes of one batch; look at it from elsewhere"
            check.findings.add(Verdict.ALTERED, detail, object=task.key, index=task.first)
    return Outcome(
        counts=check.counts,
        gaps=check.gaps,
        kept=tuple(check.findings.kept),
        verdicts=check.findings.counts,
    )
