"""Step 4 of an execution: the stores side by side, leaves first, in batches, each store within its time.

Each store has a thread of its own, which opens the connector, uses it and closes it. Before a copy goes, whatever was
made from it has gone from the other stores, or these were waited for as long as one call to a store may take. A store
whose thread shows no progress for twice that time is given up: its copies count as unreachable for now.

Guarantees: a copy is decided again in the transaction that marks it `running`; no transaction is open while a store is
asked. One store's failure, slowness or refusal touches its own copies only. What the store did and we did not write
down is done again and found `already_absent`. Nothing here says that bytes are gone: that is `erasure.confirm`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col, select

from connectors.agent import AGENT
from connectors.base import Connector, Item, Level, Outcome, Receipt, ReclaimReport
from erasure import captures, copies, tasks
from erasure.captures import Wanted
from erasure.models import CopyRow
from erasure.parts import Parts
from erasure.plan import redecide
from erasure.regenerate import ANEW
from erasure.request import GONE, CopyState
from erasure.work import (
    Work,
    captures_of,
    end_of_try,
    going_now,
    is_ready,
    joined,
    load_work,
    owners_of,
    report_fact,
    sort_out,
)
from ledger.entry import Kind
from registry import bulk, stores
from registry.models import StoreRow

_ENDS = {
    Outcome.ERASED: CopyState.ERASED_LOGICAL,
    Outcome.ALREADY_ABSENT: CopyState.ALREADY_ABSENT,
    Outcome.OWNER_MISMATCH: CopyState.AWAITING_HUMAN,
    Outcome.LOCKED: CopyState.FAILED,
    Outcome.ACCEPTED: CopyState.AWAITING_EXTERNAL,
}
_GRACE_SECONDS = 5.0
_QUICK_SECONDS = 0.5
"""How old a decision may be when a further batch is sent by it."""
_MOST_AT_ONCE = 2_000
"""Copies that are decided and marked at once where a store answers quickly; what it is asked at once is its own."""
_LOOK_SECONDS = 0.5


class _Going(NamedTuple):
    """What it takes to decide about a copy once more, to erase it, and to write down the answer."""

    copy_no: int
    kind: str
    ref: str
    artifact_id: int | None
    key_id: str | None
    sealed: bytes | None
    method: str | None
    attempts: int


class _Sent(NamedTuple):
    """Copies that one transaction marked as running: by number where each lies, and how it stood before."""

    items: dict[int, Item]
    before: dict[int, _Going]
    owners: tuple[str, ...]
    at: datetime
    unread: frozenset[int] = frozenset()
    """Copies that wait on: what their store holds of them is not read yet."""


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
        self._treated: dict[str, set[int]] = {}
        self._asked: set[int] = set()
        self._stores: dict[str, StoreRow] = {}
        self._seen: dict[str, float] = {}
        self._failures: list[BaseException] = []

    def run(self) -> None:
        """Erase what is ready, then free its bytes. Raises what our own database raised, nothing that a store did."""
        self._complete_captures(col(CopyRow.sealed).is_(None))
        places: dict[str, dict[int, list[int]]] = {}
        with self._parts.transactions(self._tenant_id, write=False) as session:
            self._stores = stores.in_force(session, self._tenant_id)
            for page in copies.pages(session, _Waiting, self._of(CopyState.PENDING)):
                for copy in page:
                    if is_ready(copy, self._now):
                        places.setdefault(copy.store, {}).setdefault(copy.depth, []).append(copy.copy_no)
        for name in self._needing_reclaim() - places.keys():
            places[name] = {}
        for name in [name for name in places if name in self._stores and self._stores[name].kind == AGENT]:
            # Done in the agent's process, reclaim included; here the copies only begin to wait.
            numbers = [number for level in places.pop(name).values() for number in level]
            tasks.hand_out(self._parts, self._tenant_id, self._owner, store=name, numbers=numbers, now=self._now)
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
        if self._failures:
            raise self._failures[0]

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
        size = connector.capabilities().batch_size
        at_once = size
        left = list(numbers)
        while left and name not in self._down:
            begun = time.monotonic()
            some, left = left[:at_once], left[at_once:]
            again, unread = self._erase_some(connector, name, some, size)
            left = [*again, *left]
            if unread:
                # All that is left at once: a store tells what one copy holds from what the others hold as well.
                with self._parts.transactions(self._tenant_id, write=False) as session:
                    where = self._among(session, left)
                self._complete_captures(where, name)
                self._asked.update(left)
            quick = time.monotonic() - begun < _QUICK_SECONDS
            at_once = min(2 * at_once, max(size, _MOST_AT_ONCE)) if quick else size

    def _erase_some(
        self, connector: Connector, name: str, numbers: Sequence[int], size: int
    ) -> tuple[list[int], frozenset[int]]:
        """Decide about these copies and mark them in one transaction; erase them in batches, each written down.

        Returns those that were not sent and are decided anew, since their decision grew old meanwhile, or, and these
        once more by themselves, since what they hold has to be read first.
        """
        # Never around a call to a store: one that does not come back would leave the process without its collector.
        with bulk.without_collector(), self._parts.transactions(self._tenant_id) as session:
            work = load_work(session, self._tenant_id, self._owner)
            sent = self._send(session, work, numbers, self._parts.instant(self._now))
        decided = time.monotonic()
        items, unread = list(sent.items.values()), sent.unread
        for start in range(0, len(items), size):
            if start and time.monotonic() - decided > _QUICK_SECONDS:
                return [*self._put_off([int(item.copy_id) for item in items[start:]]), *unread], unread
            self._seen[name] = time.monotonic()
            at, limit = self._parts.instant(self._now, sent.at), self._parts.store_seconds
            batch = items[start : start + size]
            try:
                receipts = connector.erase(batch, owner_identifiers=sent.owners, now=at, deadline=limit)
            except Exception as error:  # noqa: BLE001 - as above: its copies were tried, the other stores go on
                self._down.add(name)
                self._record_silence([int(item.copy_id) for item in items[start:]], type(error).__name__)
                return [], frozenset()
            if name in self._down:
                return [], frozenset()
            # At once: of what is not written down, a worker that takes over can only say that it was absent.
            self._record(name, sent, receipts)
        return sorted(unread), unread

    def _put_off(self, numbers: list[int]) -> list[int]:
        """Copies that were marked and not sent, as they were before."""
        with self._parts.transactions(self._tenant_id) as session:
            mine = sa.and_(self._among(session, numbers), col(CopyRow.state) == CopyState.RUNNING.value)
            copies.update(session, mine, state=CopyState.PENDING.value, attempts=col(CopyRow.attempts) - 1)
        return numbers

    def _send(self, session: Session, work: Work, numbers: Sequence[int], at: datetime) -> _Sent:
        """Mark those of these copies as running that may go by what is committed now."""
        waiting = sa.and_(self._among(session, numbers), col(CopyRow.state) == CopyState.PENDING.value)
        ready = copies.read(session, _Going, waiting)
        plain, given = going_now(session, work, ready, self._now)
        going = [copy for copy in ready if copy.ref in plain]
        if len(going) < len(ready):
            asked = self._locked(session, [copy.copy_no for copy in ready if copy.ref not in plain])
            may = {copy.copy_no for copy in sort_out(session, [c for c in asked if _waits(c)], redecide(given))}
            going = [copy for copy in ready if copy.ref in plain or copy.copy_no in may]
        if not going:
            return _Sent({}, {}, (), at)
        found = captures_of(session, self._parts, work, going)
        unread = frozenset(n for n, capture in found.items() if not capture.captured and n not in self._asked)
        if unread:
            going = [copy for copy in going if copy.copy_no not in unread]
            found = {number: capture for number, capture in found.items() if number not in unread}
        if not going:
            return _Sent({}, {}, (), at, unread)
        owners = owners_of(session, self._parts, work, going)
        tried: dict[str, Any] = {"started_at": at, "attempts": col(CopyRow.attempts) + 1}
        if lost := [copy.copy_no for copy in going if copy.copy_no not in found]:
            where = sa.and_(self._among(session, lost), col(CopyRow.state) == CopyState.PENDING.value)
            detail = "where it lies is not known any more"
            copies.update(session, where, state=CopyState.FAILED.value, detail=detail, **tried)
        if not found:
            return _Sent({}, {}, (), at, unread)
        where = sa.and_(self._among(session, found), col(CopyRow.state) == CopyState.PENDING.value)
        if copies.update(session, where, state=CopyState.RUNNING.value, **tried) < len(found):
            # Somebody settled one meanwhile: what is sent is what is marked.
            mine = sa.and_(self._among(session, found), col(CopyRow.state) == CopyState.RUNNING.value)
            marked = {copy.copy_no for copy in copies.read(session, _Number, mine)}
            found = {number: capture for number, capture in found.items() if number in marked}
        items = {number: capture.item(number) for number, capture in found.items()}
        return _Sent(items, {copy.copy_no: copy for copy in going}, owners, at, unread)

    def _record(self, name: str, sent: _Sent, receipts: Sequence[Receipt]) -> None:
        """Write down what the store answered: one entry of the record, and one statement for all that ended alike."""
        if not receipts:
            return
        # One instant for all that the store answered at once.
        finished = self._parts.instant(self._now, sent.at, *{one.at for one in receipts})
        alike: dict[tuple[str, str | None, str | None, str], list[int]] = {}
        lines: list[dict[str, Any]] = []
        for receipt in receipts:
            number = int(receipt.copy_id)
            before = sent.before[number]
            tried = before.attempts + 1
            state = _ENDS.get(receipt.outcome) or end_of_try(tried, self._parts, CopyState.FAILED)
            level = receipt.level.value if receipt.level is not None else None
            key = (_method(before.method, receipt), receipt.detail, level, state.value)
            alike.setdefault(key, []).append(number)
            lines.append({"copy": number, "state": state.value, "level": level})
            if state in GONE:
                self._treated.setdefault(name, set()).add(number)
        body = {"owner": self._owner, "copies": lines}
        with bulk.without_collector(), self._parts.transactions(self._tenant_id) as session:
            at = self._parts.instant(self._now)
            entry_id = self._parts.record.announce(session, self._tenant_id, Kind.COPY_ERASED, body, at)
            for (method, detail, level, end), numbers in alike.items():
                copies.update(
                    session, self._among(session, numbers), method=method, detail=detail, finished_at=finished,
                    verified_at=None, level=level, state=end, evidence=entry_id,
                )  # fmt: skip

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
            asked = sa.and_(self._unverified(), col(CopyRow.required).in_((Level.L2.value, Level.L3.value)))
            names = session.scalars(sa.select(col(CopyRow.store)).where(asked).distinct())
            return {name for name in names if name not in reports or name in self._treated}

    def _unverified(self) -> sa.ColumnElement[bool]:
        return sa.and_(self._of(*sorted(GONE)), col(CopyRow.verified_at).is_(None))

    def _reclaim(self, stack: ExitStack, name: str) -> None:
        connector = self._connector(stack, name)
        if connector is None:
            return
        here = sa.and_(self._unverified(), col(CopyRow.store) == name)
        treated = self._treated.get(name, set())
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
                some = copies.read(session, _Going, self._among(session, numbers[start : start + size]))
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

    def _locked(self, session: Session, numbers: Sequence[int]) -> list[CopyRow]:
        found: list[CopyRow] = []
        for start in range(0, len(numbers), copies.CHUNK):
            where = self._among(session, numbers[start : start + copies.CHUNK])
            found += session.exec(select(CopyRow).where(where).order_by(col(CopyRow.copy_no)).with_for_update())
        return found


def _waits(copy: CopyRow) -> bool:
    return copy.state == CopyState.PENDING


def _method(before: str | None, receipt: Receipt) -> str:
    """How it was erased; a copy that has a successor goes on naming it."""
    if before is None or not before.startswith(ANEW):
        return receipt.method
    return f"{before.partition(';')[0]}; {receipt.method}"
