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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlmodel import col, select

from connectors.agent import AGENT
from connectors.base import Connector, Item, Level, Outcome, Receipt, ReclaimReport
from connectors.errors import ConnectorError
from erasure import captures, history, tasks
from erasure.captures import Wanted
from erasure.history import ref_of
from erasure.models import CopyRow
from erasure.parts import Parts
from erasure.regenerate import ANEW
from erasure.request import GONE, CopyState
from erasure.work import captures_of, end_of_try, failed, is_ready, joined, load_work, may_go, owners_of, report_fact
from ledger.entry import Kind
from registry import stores
from registry.models import StoreRow

_ENDS = {
    Outcome.ERASED: CopyState.ERASED_LOGICAL,
    Outcome.ALREADY_ABSENT: CopyState.ALREADY_ABSENT,
    Outcome.OWNER_MISMATCH: CopyState.AWAITING_HUMAN,
    Outcome.LOCKED: CopyState.FAILED,
    Outcome.ACCEPTED: CopyState.AWAITING_EXTERNAL,
}
_GRACE_SECONDS = 5.0
_LOOK_SECONDS = 0.5


class _Tried(NamedTuple):
    """What an answer of a store needs of a copy's row."""

    copy_no: int
    method: str | None
    attempts: int
    started_at: datetime | None


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
        self._stores: dict[str, StoreRow] = {}
        self._seen: dict[str, float] = {}
        self._failures: list[BaseException] = []

    def run(self) -> None:
        """Erase what is ready, then free its bytes. Raises what our own database raised, nothing that a store did."""
        self._complete_captures()
        places: dict[str, dict[int, list[int]]] = {}
        with self._parts.transactions(self._tenant_id, write=False) as session:
            self._stores = stores.in_force(session, self._tenant_id)
            waiting = history.outlines_of(session, self._tenant_id, self._owner, CopyState.PENDING, kind="artifact")
            for copy in waiting:
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
        """Everything about one store, in its own thread."""
        try:
            with ExitStack() as stack:
                # Depth before store: a copy goes before what it was made from, wherever the two lie.
                for depth in sorted(levels, reverse=True):
                    order.wait(name, depth)
                    self._erase_store(stack, name, levels[depth])
                    order.done(name, depth)
                order.done(name)
                if name in self._needing_reclaim():
                    self._reclaim(stack, name)
        except (ConnectorError, OSError):
            self._down.add(name)  # closing it failed: what it did is written down
        except BaseException as error:  # noqa: BLE001 - raised by run, in the thread that asked
            self._failures.append(error)
        finally:
            order.done(name)

    def _await(self, name: str, thread: threading.Thread, order: _Order) -> None:
        """Wait for a store's thread while it gets on."""
        patience = 2 * self._parts.store_seconds + _GRACE_SECONDS
        while thread.is_alive():
            thread.join(min(_LOOK_SECONDS, patience))
            if thread.is_alive() and time.monotonic() - self._seen[name] > patience:
                self._down.add(name)
                order.done(name)
                with self._parts.transactions(self._tenant_id) as session:
                    stuck = [copy.copy_no for copy in self._artifacts(session, CopyState.RUNNING) if copy.store == name]
                self._record_silence(stuck, "the store does not come back")
                return

    def _artifacts(self, session: Any, *states: str) -> list[CopyRow]:
        return [
            copy
            for copy in history.copies_of(session, self._tenant_id, self._owner, *states)
            if copy.kind == "artifact"
        ]

    def _complete_captures(self) -> None:
        """Additions after the fence, and copies whose store was silent while planning, are captured now."""
        with self._parts.transactions(self._tenant_id, write=False) as session:
            work = load_work(session, self._tenant_id, self._owner)
            pending = self._artifacts(session, CopyState.PENDING)
            known = captures_of(session, self._parts, work, pending)
            missing = [
                Wanted(ref=ref_of(copy), artifact_id=copy.artifact_id or 0, store=copy.store, built=True)
                for copy in pending
                if copy.copy_no not in known or not known[copy.copy_no].captured
            ]
        if not missing:
            return
        found = captures.capture(self._parts, self._tenant_id, missing)
        with self._parts.transactions(self._tenant_id) as session:
            work = load_work(session, self._tenant_id, self._owner)
            seal = work.seal(session, self._parts)
            for copy in self._artifacts(session, CopyState.PENDING):
                ref = ref_of(copy)
                if ref in found and (copy.sealed is None or found[ref].captured):
                    copy.sealed = seal.seal_capture(found[ref], ref)
                    session.add(copy)

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
        for start in range(0, len(numbers), size):
            if name in self._down:
                return
            self._seen[name] = time.monotonic()
            self._erase_batch(connector, name, numbers[start : start + size])

    def _erase_batch(self, connector: Connector, name: str, numbers: Sequence[int]) -> None:
        with self._parts.transactions(self._tenant_id) as session:
            work = load_work(session, self._tenant_id, self._owner)
            rows = self._locked(session, numbers)
            ready = [copy for copy in rows if copy.state == CopyState.PENDING]
            going = may_go(session, work, ready, self._now)
            found = captures_of(session, self._parts, work, going)
            owners = owners_of(session, self._parts, work, going)
            at = self._parts.instant(self._now)
            items = [found[copy.copy_no].item(copy.copy_no) for copy in going if copy.copy_no in found]
            running = {"state": CopyState.RUNNING.value, "started_at": at}
            lost = {**running, "state": CopyState.FAILED.value, "detail": "where it lies is not known any more"}
            changes = {
                copy.copy_no: {**(running if copy.copy_no in found else lost), "attempts": copy.attempts + 1}
                for copy in going
            }
            session.flush()
            history.set_copies(session, self._tenant_id, self._owner, changes)
        if not items:
            return
        try:
            receipts = connector.erase(items, owner_identifiers=owners, now=at, deadline=self._parts.store_seconds)
        except Exception as error:  # noqa: BLE001 - as above: its copies were tried, the other stores go on
            self._down.add(name)
            self._record_silence([int(item.copy_id) for item in items], type(error).__name__)
            return
        if name not in self._down:
            self._record(name, receipts)

    def _record(self, name: str, receipts: Sequence[Receipt]) -> None:
        by_number = {int(receipt.copy_id): receipt for receipt in receipts}
        with self._parts.transactions(self._tenant_id) as session:
            changes: dict[int, dict[str, Any]] = {}
            rows = self._tried(session, sorted(by_number))
            # One instant for all that the store answered at once.
            finished = self._parts.instant(
                self._now, *(one.at for one in receipts), *(copy.started_at for copy in rows)
            )
            for copy in rows:
                receipt = by_number[copy.copy_no]
                state = _ENDS.get(receipt.outcome) or end_of_try(copy.attempts, self._parts, CopyState.FAILED)
                changes[copy.copy_no] = {
                    "method": _method(copy.method, receipt),
                    "detail": receipt.detail,
                    "finished_at": finished,
                    "verified_at": None,
                    "level": receipt.level.value if receipt.level is not None else None,
                    "state": state.value,
                }
                if state in GONE:
                    self._treated.setdefault(name, set()).add(copy.copy_no)
            if not changes:
                return
            lines = [
                {"copy": number, "state": change["state"], "level": change["level"]}
                for number, change in changes.items()
            ]
            body = {"owner": self._owner, "copies": lines}
            at = self._parts.instant(self._now)
            entry_id = self._parts.record.announce(session, self._tenant_id, Kind.COPY_ERASED, body, at)
            told = {number: {**change, "evidence": entry_id} for number, change in changes.items()}
            history.set_copies(session, self._tenant_id, self._owner, told)

    def _record_silence(self, numbers: Sequence[int], detail: str) -> None:
        """The store did not answer: nothing is known about these copies, so they are tried again."""
        with self._parts.transactions(self._tenant_id) as session:
            for copy in self._locked(session, numbers):
                if copy.state == CopyState.PENDING:
                    copy.attempts += 1
                    copy.started_at = self._parts.instant(self._now)
                elif copy.state != CopyState.RUNNING:
                    continue  # its answer came after all, or somebody settled it
                failed(session, copy, self._parts, detail=detail, end=CopyState.UNREACHABLE)

    def _needing_reclaim(self) -> set[str]:
        with self._parts.transactions(self._tenant_id, write=False) as session:
            work = load_work(session, self._tenant_id, self._owner)
            reports = work.facts().get("reclaim", {})
            return {
                copy.store
                for copy in history.outlines_of(session, self._tenant_id, self._owner, *sorted(GONE), kind="artifact")
                if copy.verified_at is None
                and copy.required in (Level.L2, Level.L3)
                and (copy.store not in reports or copy.store in self._treated)
            }

    def _reclaim(self, stack: ExitStack, name: str) -> None:
        connector = self._connector(stack, name)
        if connector is None:
            return
        with self._parts.transactions(self._tenant_id, write=False) as session:
            work = load_work(session, self._tenant_id, self._owner)
            gone = [
                copy
                for copy in self._artifacts(session, *sorted(GONE))
                if copy.store == name and copy.verified_at is None
            ]
            earlier = [copy for copy in gone if copy.copy_no not in self._treated.get(name, set())]
            found = captures_of(session, self._parts, work, earlier)
            owners = owners_of(session, self._parts, work, earlier)
            wanted = max((Level(copy.required) for copy in gone if copy.required != "key"), default=Level.L1)
        items = [found[copy.copy_no].item(copy.copy_no) for copy in earlier if copy.copy_no in found]
        self._seen[name] = time.monotonic()
        report = self._free(connector, items, owners, wanted)
        if report is None or name in self._down:
            self._down.add(name)
            return
        fact = report_fact(report, self._parts.instant(self._now))
        with self._parts.transactions(self._tenant_id) as session:
            work = load_work(session, self._tenant_id, self._owner, lock=True)
            known = work.facts().get("reclaim", {})
            work.put_facts(session, reclaim={**known, name: joined(fact, known.get(name))})
            for copy in self._locked(session, [copy.copy_no for copy in gone]):
                copy.residual_until = fact["residual_until"]
                session.add(copy)

    def _free(
        self, connector: Connector, reminders: Sequence[Item], owners: Sequence[str], wanted: Level
    ) -> ReclaimReport | None:
        """The report of a reclaim, None where the store did not do it in time.

        `reminders` are copies that an earlier worker erased: asked again, the connector treats what they left as well.
        """
        limit = self._parts.store_seconds
        try:
            size = connector.capabilities().batch_size
            for start in range(0, len(reminders), size):
                batch = reminders[start : start + size]
                connector.erase(batch, owner_identifiers=owners, now=self._parts.instant(self._now), deadline=limit)
            if not connector.await_done(deadline=limit):
                return None
            return connector.reclaim(wanted, now=self._parts.instant(self._now), deadline=limit)
        except Exception:  # noqa: BLE001 - as above
            return None

    def _tried(self, session: Any, numbers: Sequence[int]) -> list[_Tried]:
        """What an answer is written to, locked; a row without the rest of it."""
        found: list[_Tried] = []
        for start in range(0, len(numbers), history.INSERT_CHUNK):
            query = sa.select(*(col(getattr(CopyRow, name)) for name in _Tried._fields)).where(
                col(CopyRow.tenant_id) == self._tenant_id,
                col(CopyRow.owner) == self._owner,
                col(CopyRow.copy_no).in_(numbers[start : start + history.INSERT_CHUNK]),
            )
            rows = session.execute(query.order_by(col(CopyRow.copy_no)).with_for_update())
            found += [_Tried(*row) for row in rows]
        return found

    def _locked(self, session: Any, numbers: Sequence[int]) -> list[CopyRow]:
        found: list[CopyRow] = []
        for start in range(0, len(numbers), history.INSERT_CHUNK):
            query = select(CopyRow).where(
                CopyRow.tenant_id == self._tenant_id,
                CopyRow.owner == self._owner,
                col(CopyRow.copy_no).in_(numbers[start : start + history.INSERT_CHUNK]),
            )
            found += session.exec(query.order_by(col(CopyRow.copy_no)).with_for_update())
        return found


def _method(before: str | None, receipt: Receipt) -> str:
    """How it was erased; a copy that has a successor goes on naming it."""
    if before is None or not before.startswith(ANEW):
        return receipt.method
    return f"{before.partition(';')[0]}; {receipt.method}"
