"""Step 3 and 4 of an execution: the stores, leaves first, in batches, each store within its time.

Guarantees: a copy is decided again in the transaction that marks it `running`; no transaction is open while a store is
asked. One store's failure, slowness or refusal touches its own copies only. What the store did and we did not write
down is done again and found `already_absent`. Nothing here says that bytes are gone: that is `erasure.confirm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any

from sqlmodel import col, select

from connectors.base import Connector, Item, Level, Outcome, Receipt, ReclaimReport
from connectors.errors import ConnectorError
from erasure import captures, history
from erasure.captures import Wanted
from erasure.history import ref_of
from erasure.models import CopyRow
from erasure.parts import Parts
from erasure.request import GONE, CopyState
from erasure.work import captures_of, failed, is_ready, load_work, may_go, owners_of, report_fact
from ledger.entry import Kind
from registry import stores
from registry.errors import RegistryError
from registry.models import StoreRow

_ENDS = {
    Outcome.ERASED: CopyState.ERASED_LOGICAL,
    Outcome.ALREADY_ABSENT: CopyState.ALREADY_ABSENT,
    Outcome.OWNER_MISMATCH: CopyState.AWAITING_HUMAN,
    Outcome.LOCKED: CopyState.FAILED,
}
_UNREACHED = (ConnectorError, RegistryError, OSError)


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

    def run(self) -> None:
        """Erase what is ready, then free its bytes. Raises nothing that a store did."""
        self._complete_captures()
        with self._parts.transactions(self._tenant_id, write=False) as session:
            self._stores = stores.in_force(session, self._tenant_id)
            ready = [copy for copy in self._artifacts(session, CopyState.PENDING) if is_ready(copy, self._now)]
            order = sorted({(-copy.depth, copy.store) for copy in ready})
            numbers: dict[tuple[int, str], list[int]] = {}
            for copy in ready:
                numbers.setdefault((-copy.depth, copy.store), []).append(copy.copy_no)
        with ExitStack() as stack:
            # Depth before store: a copy goes before what it was made from, wherever the two lie.
            for place in order:
                self._erase_store(stack, place[1], numbers[place])
            for name in sorted(self._needing_reclaim()):
                self._reclaim(stack, name)

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
            except (*_UNREACHED, KeyError):
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
            batch = numbers[start : start + size]
            if name in self._down:
                return
            self._erase_batch(connector, name, batch)

    def _erase_batch(self, connector: Connector, name: str, numbers: Sequence[int]) -> None:
        with self._parts.transactions(self._tenant_id) as session:
            work = load_work(session, self._tenant_id, self._owner)
            rows = self._locked(session, numbers)
            ready = [copy for copy in rows if copy.state == CopyState.PENDING]
            going = may_go(session, work, ready, self._now)
            found = captures_of(session, self._parts, work, going)
            owners = owners_of(session, self._parts, work, going)
            items = []
            for copy in going:
                copy.attempts += 1
                copy.started_at = self._now
                if copy.copy_no in found:
                    copy.state = CopyState.RUNNING
                    items.append(found[copy.copy_no].item(copy.copy_no))
                else:
                    copy.state, copy.detail = CopyState.FAILED, "where it lies is not known any more"
                session.add(copy)
        if not items:
            return
        try:
            receipts = connector.erase(
                items, owner_identifiers=owners, now=self._now, deadline=self._parts.store_seconds
            )
        except _UNREACHED as error:
            self._down.add(name)
            self._record_silence([int(item.copy_id) for item in items], type(error).__name__)
            return
        self._record(name, receipts)

    def _record(self, name: str, receipts: Sequence[Receipt]) -> None:
        by_number = {int(receipt.copy_id): receipt for receipt in receipts}
        with self._parts.transactions(self._tenant_id) as session:
            rows = self._locked(session, sorted(by_number))
            for copy in rows:
                receipt = by_number[copy.copy_no]
                copy.method, copy.detail = receipt.method, receipt.detail
                copy.finished_at, copy.verified_at = receipt.at, None
                copy.level = receipt.level.value if receipt.level is not None else None
                if receipt.outcome in _ENDS:
                    copy.state = _ENDS[receipt.outcome]
                    session.add(copy)
                else:
                    failed(session, copy, self._parts, detail=receipt.detail, end=CopyState.FAILED)
                if copy.state in GONE:
                    self._treated.setdefault(name, set()).add(copy.copy_no)
            self._announce(session, rows)

    def _announce(self, session: Any, rows: Sequence[CopyRow]) -> None:
        lines = [{"copy": copy.copy_no, "state": copy.state, "level": copy.level} for copy in rows]
        if not lines:
            return
        body = {"owner": self._owner, "copies": lines}
        entry_id = self._parts.record.announce(session, self._tenant_id, Kind.COPY_ERASED, body, self._now)
        for copy in rows:
            copy.evidence = entry_id
            session.add(copy)

    def _record_silence(self, numbers: Sequence[int], detail: str) -> None:
        """The store did not answer: nothing is known about these copies, so they are tried again."""
        with self._parts.transactions(self._tenant_id) as session:
            for copy in self._locked(session, numbers):
                if copy.state == CopyState.PENDING:
                    copy.attempts += 1
                    copy.started_at = self._now
                failed(session, copy, self._parts, detail=detail, end=CopyState.UNREACHABLE)

    def _needing_reclaim(self) -> set[str]:
        with self._parts.transactions(self._tenant_id, write=False) as session:
            work = load_work(session, self._tenant_id, self._owner)
            reports = work.facts().get("reclaim", {})
            return {
                copy.store
                for copy in self._artifacts(session, *sorted(GONE))
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
        report = self._free(connector, items, owners, wanted)
        if report is None:
            self._down.add(name)
            return
        fact = report_fact(report, self._now)
        with self._parts.transactions(self._tenant_id) as session:
            work = load_work(session, self._tenant_id, self._owner, lock=True)
            work.put_facts(session, reclaim={**work.facts().get("reclaim", {}), name: fact})
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
                connector.erase(batch, owner_identifiers=owners, now=self._now, deadline=limit)
            if not connector.await_done(deadline=limit):
                return None
            return connector.reclaim(wanted, now=self._now, deadline=limit)
        except _UNREACHED:
            return None

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
