"""Step 4 of an execution: the stores side by side, leaves first, in batches, each store within its time.

Each store has a thread of its own, which opens the connector, uses it and closes it. Before a copy goes, whatever was
made from it has gone from the other stores, or these were waited for as long as one call to a store may take. A store
whose thread shows no progress for twice that time is given up: its copies count as unreachable for now.

Guarantees: a copy is decided again in the transaction that marks it `running`; no transaction is open while a store is
asked. One store's failure, slowness or refusal touches its own copies only. What the store did and we did not write
down is done again and found `already_absent`. Nothing here says that bytes are gone: that is `erasure.confirm`.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col

from connectors.agent import AGENT
from connectors.base import Connector, Item, Level, ReclaimReport
from erasure import captures, copies, tasks
from erasure.captures import Wanted
from erasure.models import CopyRow
from erasure.parts import Parts
from erasure.request import GONE, CopyState
from erasure.scribe import Scribe
from erasure.sending import Going, Sending, Sent
from erasure.work import (
    captures_of,
    end_of_try,
    is_ready,
    joined,
    load_work,
    owners_of,
    report_fact,
)
from registry import stores
from registry.models import StoreRow

_GRACE_SECONDS = 5.0
_QUICK_SECONDS = 0.5
"""How old a decision may be when a further batch is sent by it."""
_MOST_AT_ONCE = 2_000
"""Copies that are decided and marked at once where a store answers quickly; what it is asked at once is its own."""
_MOST_UNWRITTEN = 2
"""Batches that a store has answered and nobody has written down when it is asked for the next one."""
_LOOK_SECONDS = 0.5
_IN_FILES = (Level.L2.value, Level.L3.value)


class _Waiting(NamedTuple):
    """Where a pending copy lies, and whether it is its turn."""

    copy_no: int
    store: str
    depth: int
    state: str
    attempts: int
    started_at: datetime | None


class _Number(NamedTuple):
    copy_no: int


class _Tried(NamedTuple):
    copy_no: int
    state: str
    attempts: int


class _Uncaptured(NamedTuple):
    """What a capture needs of a copy's row."""

    copy_no: int
    ref: str
    artifact_id: int | None
    store: str
    required: str
    sealed: bytes | None


class _Beside(NamedTuple):
    """The threads beside a store's own: one decides, one writes down."""

    decides: Scribe
    writes: Scribe


class _Order:
    """Leaves first over all stores: a level of one store waits for deeper ones of the others, within its patience."""

    def __init__(self, places: Mapping[str, Mapping[int, Sequence[int]]], patience: float) -> None:
        self._waiting = {(depth, name) for name, levels in places.items() for depth in levels}
        self._changed = threading.Condition()
        self._ends = {name: time.monotonic() + patience for name in places}

    def wait(self, name: str, depth: int) -> None:
        """Return once nothing deeper is left in another store, or the store has waited long enough altogether."""
        with self._changed:
            self._changed.wait_for(
                lambda: not any(other > depth and where != name for other, where in self._waiting),
                timeout=max(0.0, self._ends[name] - time.monotonic()),
            )

    def done(self, name: str, depth: int | None = None) -> None:
        """Mark a level of a store, or all of it."""
        with self._changed:
            self._waiting = {
                (other, where) for other, where in self._waiting if where != name or depth not in (None, other)
            }
            self._changed.notify_all()


class Dispatch:
    """One pass over the stores of one request or sweep."""

    def __init__(self, parts: Parts, tenant_id: int, owner: str, now: datetime) -> None:
        self._parts = parts
        self._tenant_id = tenant_id
        self._owner = owner
        self._now = now
        self._down: set[str] = set()
        self._open: dict[str, Connector] = {}
        self._refused: set[str] = set()
        self._sending = Sending(parts, tenant_id, owner, now)
        self._written: dict[str, deque[Future[None]]] = {}
        self._stores: dict[str, StoreRow] = {}
        self._seen: dict[str, float] = {}
        self._failures: list[BaseException] = []

    def run(self) -> None:
        """Erase what is ready, then free its bytes. Raises what our own database raised, nothing that a store did."""
        self._complete_captures(col(CopyRow.sealed).is_(None))
        with self._parts.transactions(self._tenant_id, write=False) as session:
            self._stores = stores.in_force(session, self._tenant_id)
            places = self._places(session)
        for name in [name for name in places if name in self._stores and self._stores[name].kind == AGENT]:
            # Done in the agent's process, reclaim included; here the copies only begin to wait.
            numbers = [number for level in places.pop(name).values() for number in level]
            tasks.hand_out(self._parts, self._tenant_id, self._owner, store=name, numbers=numbers, now=self._now)
        self._side_by_side(places)
        if self._failures:
            raise self._failures[0]

    def _side_by_side(self, places: Mapping[str, Mapping[int, Sequence[int]]]) -> None:
        """Let each store's thread do what there is, and wait for those that get on."""
        order = _Order(places, self._parts.store_seconds)
        threads = [
            threading.Thread(target=self._work, args=(name, levels, order), name=f"erase {name}", daemon=True)
            for name, levels in sorted(places.items())
        ]
        for name, thread in zip(sorted(places), threads, strict=True):
            self._seen[name] = time.monotonic()
            thread.start()
        for name, thread in zip(sorted(places), threads, strict=True):
            self._await(name, thread, order)

    def _places(self, session: Session) -> dict[str, dict[int, list[int]]]:
        """The copies whose turn it is, by store and depth; none at a store of which only bytes are to be freed.

        One statement says both, with one line for all copies of a store and depth that were not tried yet.
        """
        store, depth, is_pending = col(CopyRow.store), col(CopyRow.depth), col(CopyRow.state) == CopyState.PENDING.value
        is_new = sa.and_(is_pending, col(CopyRow.attempts) == 0)
        is_tried = sa.and_(is_pending, col(CopyRow.attempts) > 0)
        in_files = col(CopyRow.required).in_(_IN_FILES)
        is_unfreed = sa.and_(~is_pending, in_files, col(CopyRow.verified_at).is_(None))
        # One group for each store and depth and no more: what the server sorts by is most of what this takes.
        lines = (
            sa.select(
                store,
                depth,
                sa.func.aggregate_strings(sa.case((is_new, sa.cast(col(CopyRow.copy_no), sa.Text))), ","),
                sa.func.max(sa.case((is_tried, 1), else_=0)),
                sa.func.max(sa.case((is_unfreed, 1), else_=0)),
            )
            .where(self._of(CopyState.PENDING, *sorted(GONE)))
            .group_by(store, depth)
        )
        places: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        unfreed: set[str] = set()
        tried = False
        for name, at, numbers, has_tried, has_unfreed in session.execute(lines):
            if numbers is not None:
                places[name][at] = list(map(int, numbers.split(",")))
            tried = tried or bool(has_tried)
            unfreed.update({name} if has_unfreed else ())
        again = copies.pages(session, _Waiting, sa.and_(self._of(CopyState.PENDING), is_tried)) if tried else ()
        for copy in itertools.chain.from_iterable(again):
            if is_ready(copy, self._now):
                places[copy.store][copy.depth].append(copy.copy_no)
        if unfreed:
            reports = load_work(session, self._tenant_id, self._owner).facts().get("reclaim", {})
            places |= {name: {} for name in unfreed - places.keys() - reports.keys()}
        return {name: {depth: sorted(some) for depth, some in levels.items()} for name, levels in places.items()}

    def _work(self, name: str, levels: Mapping[int, Sequence[int]], order: _Order) -> None:
        """Everything about one store, in its own thread. What is raised here is ours: the store's is caught before."""
        stack = ExitStack()
        try:
            # Depth before store: a copy goes before what it was made from, wherever the two lie.
            for depth in sorted(levels, reverse=True):
                order.wait(name, depth)
                self._erase_store(stack, name, levels[depth])
                order.done(name, depth)
            order.done(name)
            if name in self._needing_reclaim():
                self._reclaim(stack, name)
        except BaseException as error:  # noqa: BLE001 - raised by run, in the thread that asked
            self._failures.append(error)
        finally:
            order.done(name)
            try:
                stack.close()
            except Exception:  # noqa: BLE001 - a store that cannot be closed: what it did is written down
                self._down.add(name)

    def _await(self, name: str, thread: threading.Thread, order: _Order) -> None:
        """Wait for a store's thread while it gets on."""
        patience = 2 * self._parts.store_seconds + _GRACE_SECONDS
        while thread.is_alive():
            thread.join(min(_LOOK_SECONDS, patience))
            if thread.is_alive() and time.monotonic() - self._seen[name] > patience:
                self._down.add(name)
                order.done(name)
                with self._parts.transactions(self._tenant_id) as session:
                    where = sa.and_(self._of(CopyState.RUNNING), col(CopyRow.store) == name)
                    stuck = [copy.copy_no for copy in copies.read(session, _Number, where)]
                self._record_silence(stuck, "the store does not come back")
                return

    def _of(self, *states: str) -> sa.ColumnElement[bool]:
        return copies.of(self._tenant_id, self._owner, *states, kind="artifact")

    def _among(self, session: Session, numbers: Collection[int]) -> sa.ColumnElement[bool]:
        return copies.among(session, self._tenant_id, self._owner, numbers)

    def _complete_captures(self, where: sa.ColumnElement[bool], name: str | None = None) -> None:
        """Capture those copies of which not all was read: additions, and those whose store, `name`, was silent then."""
        missing: list[Wanted] = []
        numbers: dict[str, int] = {}
        placed: set[str] = set()
        with self._parts.transactions(self._tenant_id, write=False) as session:
            work = load_work(session, self._tenant_id, self._owner)
            anew = sa.and_(copies.of(self._tenant_id, self._owner), col(CopyRow.action) == "regenerate")
            compared = session.scalars(sa.select(sa.exists().where(anew))).one()
            for page in copies.pages(session, _Uncaptured, sa.and_(self._of(CopyState.PENDING), where)):
                known = captures_of(session, self._parts, work, page)
                for copy in page:
                    if copy.copy_no in known and known[copy.copy_no].captured:
                        continue
                    missing.append(
                        Wanted(
                            ref=copy.ref,
                            artifact_id=copy.artifact_id or 0,
                            store=copy.store,
                            built=True,
                            level=copies.level_of(copy.required),
                            compared=compared,
                        )
                    )
                    numbers[copy.ref] = copy.copy_no
                    if copy.sealed is not None:
                        placed.add(copy.ref)
        for start in range(0, len(missing), captures.CAPTURE_CHUNK):
            if name is not None:
                self._seen[name] = time.monotonic()
            found = captures.capture(self._parts, self._tenant_id, missing[start : start + captures.CAPTURE_CHUNK])
            with self._parts.transactions(self._tenant_id) as session:
                seal = load_work(session, self._tenant_id, self._owner).seal(session, self._parts)
                changes = {
                    numbers[ref]: {"sealed": seal.seal_capture(capture, ref)}
                    for ref, capture in found.items()
                    if capture.captured or ref not in placed
                }
                copies.write(session, self._tenant_id, self._owner, changes)

    def _connector(self, stack: ExitStack, name: str) -> Connector | None:
        if name in self._down:
            return None
        if name not in self._open:
            try:
                store = self._stores[name]
                self._open[name] = stack.enter_context(self._parts.connect(store, False))
            except Exception:  # noqa: BLE001 - whatever a driver raises is its own store's failure
                self._down.add(name)
                return None
        return self._open[name]

    def _erase_store(self, stack: ExitStack, name: str, numbers: Sequence[int]) -> None:
        connector = self._connector(stack, name)
        if connector is None:
            self._record_silence(numbers, "the store could not be opened")
            return
        with Scribe(f"erase {name}, decided") as decides, Scribe(f"erase {name}, written") as writes:
            self._erase_copies(connector, name, numbers, _Beside(decides, writes))

    def _erase_copies(self, connector: Connector, name: str, numbers: Sequence[int], beside: _Beside) -> None:
        """Have copies decided and written down while the store is asked; of a quick store, decide some ahead."""
        size = connector.capabilities().batch_size
        left, at_once, is_quick = list(numbers), size, False
        ahead: Future[Sent] | None = None
        while (left or ahead) and name not in self._down:
            begun = time.monotonic()
            may_be_old = ahead is not None
            if ahead is None:
                ahead, left = self._decided(name, left, at_once, beside)
            sent, ahead = ahead.result(), None
            if is_quick and left and not sent.unread:
                ahead, left = self._decided(name, left, at_once, beside)
            left = [*self._erase_sent(connector, name, sent, beside, size=size, may_be_old=may_be_old), *left]
            if sent.unread and name not in self._down:
                left = sorted([*sent.unread, *left])
                self._read_first(name, left)
            is_quick = time.monotonic() - begun < _QUICK_SECONDS
            at_once = min(2 * at_once, max(size, _MOST_AT_ONCE)) if is_quick else size
        if ahead is not None and name in self._refused:
            beside.decides.do(partial(self._sending.put_off, list(ahead.result().items))).result()

    def _decided(self, name: str, left: Sequence[int], at_once: int, beside: _Beside) -> tuple[Future[Sent], list[int]]:
        return beside.decides.do(partial(self._sending.decide, name, left[:at_once])), list(left[at_once:])

    def _read_first(self, name: str, numbers: Sequence[int]) -> None:
        """Read what these hold, all at once: a store tells what one copy holds from what the others hold as well."""
        with self._parts.transactions(self._tenant_id, write=False) as session:
            where = self._among(session, numbers)
        self._complete_captures(where, name)
        self._sending.asked(numbers)

    def _erase_sent(
        self, connector: Connector, name: str, sent: Sent, beside: _Beside, *, size: int, may_be_old: bool
    ) -> list[int]:
        """Erase these copies in batches, each written down while the store is asked for the next one.

        Returns those that were not sent, since their decision grew old meanwhile; they are decided anew.
        """
        items = list(sent.items.values())
        for start in range(0, len(items), size):
            if (start or may_be_old) and time.monotonic() - sent.decided > _QUICK_SECONDS:
                return beside.decides.do(partial(self._sending.put_off, _numbers(items[start:]))).result()
            self._seen[name] = time.monotonic()
            at, limit = self._parts.instant(self._now, sent.at), self._parts.store_seconds
            try:
                receipts = connector.erase(
                    items[start : start + size], owner_identifiers=sent.owners, now=at, deadline=limit
                )
            except Exception as error:  # noqa: BLE001 - as above: its copies were tried, the other stores go on
                self._down.add(name)
                self._refused.add(name)
                silence = partial(self._record_silence, _numbers(items[start:]), type(error).__name__)
                beside.writes.do(silence).result()
                return []
            if name in self._down:
                return []
            # At once: of what is not written down, a worker that takes over can only say that it was absent. The store
            # is asked for more meanwhile, and for no more than what is written then together.
            self._sending.answered(name, sent, receipts)
            waiting = self._written.setdefault(name, deque())
            waiting.append(beside.writes.do(partial(self._sending.record, name)))
            while len(waiting) > _MOST_UNWRITTEN:
                waiting.popleft().result()
        return []

    def _record_silence(self, numbers: Sequence[int], detail: str) -> None:
        """The store did not answer: nothing is known about these copies, so they are tried again."""
        if not numbers:
            return
        with self._parts.transactions(self._tenant_id) as session:
            at = self._parts.instant(self._now)
            changes: dict[int, dict[str, Any]] = {}
            # Those that are left: of the others the answer came after all, or somebody settled them.
            unsettled = col(CopyRow.state).in_((CopyState.PENDING.value, CopyState.RUNNING.value))
            where = sa.and_(self._among(session, numbers), unsettled)
            for copy in copies.read(session, _Tried, where, lock=True):
                new = copy.state == CopyState.PENDING
                state = end_of_try(copy.attempts + new, self._parts, CopyState.UNREACHABLE)
                change = {"state": state.value, "detail": detail}
                changes[copy.copy_no] = {**change, "attempts": copy.attempts + 1, "started_at": at} if new else change
            copies.write(session, self._tenant_id, self._owner, changes)

    def _needing_reclaim(self) -> set[str]:
        with self._parts.transactions(self._tenant_id, write=False) as session:
            work = load_work(session, self._tenant_id, self._owner)
            reports = work.facts().get("reclaim", {})
            asked = sa.and_(self._unverified(), col(CopyRow.required).in_(_IN_FILES))
            names = session.scalars(sa.select(col(CopyRow.store)).where(asked).distinct())
            return {name for name in names if name not in reports or name in self._sending.treated}

    def _unverified(self) -> sa.ColumnElement[bool]:
        return sa.and_(self._of(*sorted(GONE)), col(CopyRow.verified_at).is_(None))

    def _reclaim(self, stack: ExitStack, name: str) -> None:
        connector = self._connector(stack, name)
        if connector is None:
            return
        here = sa.and_(self._unverified(), col(CopyRow.store) == name)
        treated = self._sending.treated.get(name, set())
        with self._parts.transactions(self._tenant_id, write=False) as session:
            required = session.scalars(sa.select(col(CopyRow.required)).where(here).distinct())
            wanted = max((Level(level) for level in required if level != "key"), default=Level.L1)
            gone = [number for (number,) in copies.read(session, _Number, here)]
        self._seen[name] = time.monotonic()
        report = None
        if self._remind(connector, [number for number in gone if number not in treated]):
            report = self._free(connector, wanted)
        if report is None or name in self._down:
            self._down.add(name)
            return
        fact = report_fact(report, self._parts.instant(self._now))
        # In pieces, and the report last: a crash before it frees the bytes once more, and the request's own row, where
        # its worker renews the lease, is locked for a moment only.
        for start in range(0, len(gone), copies.CHUNK):
            with self._parts.transactions(self._tenant_id) as session:
                where = self._among(session, gone[start : start + copies.CHUNK])
                copies.update(session, where, residual_until=fact["residual_until"])
        with self._parts.transactions(self._tenant_id) as session:
            work = load_work(session, self._tenant_id, self._owner, lock=True)
            known = work.facts().get("reclaim", {})
            work.put_facts(session, reclaim={**known, name: joined(fact, known.get(name))})

    def _remind(self, connector: Connector, numbers: Sequence[int]) -> bool:
        """Whether the store took copies again that an earlier worker erased: it treats what they left as well."""
        size = connector.capabilities().batch_size
        for start in range(0, len(numbers), size):
            with self._parts.transactions(self._tenant_id, write=False) as session:
                work = load_work(session, self._tenant_id, self._owner)
                some = copies.read(session, Going, self._among(session, numbers[start : start + size]))
                found = captures_of(session, self._parts, work, some)
                owners = owners_of(session, self._parts, work, some)
            batch = [capture.item(number) for number, capture in found.items()]
            at, limit = self._parts.instant(self._now), self._parts.store_seconds
            try:
                connector.erase(batch, owner_identifiers=owners, now=at, deadline=limit)
            except Exception:  # noqa: BLE001 - as above
                return False
        return True

    def _free(self, connector: Connector, wanted: Level) -> ReclaimReport | None:
        """The report of a reclaim, None where the store did not do it in time."""
        limit = self._parts.store_seconds
        try:
            if not connector.await_done(deadline=limit):
                return None
            return connector.reclaim(wanted, now=self._parts.instant(self._now), deadline=limit)
        except Exception:  # noqa: BLE001 - as above
            return None


def _numbers(items: Sequence[Item]) -> list[int]:
    return [int(item.copy_id) for item in items]
