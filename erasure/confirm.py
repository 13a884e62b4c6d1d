"""Looks for what was erased, as another actor than the one that erased it.

Guarantees: connectors of its own, opened read-only; items from the sealed captures of the plan, never from the
executor's query; keys tried by a vault that holds nothing. A copy counts only when its absence was shown at the level
its class requires; «could not check» is never an absence, and what is found sends the copy back. It erases nothing.

How independent it is, as certificates print it: other code and, where the store has them, other credentials than the
eraser; the same process and the same party.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlmodel import Session

from connectors.agent import AGENT
from connectors.base import Finding, Item, Level
from erasure import history, tasks
from erasure.models import CopyRow, RequestRow
from erasure.parts import Parts
from erasure.regenerate import ANEW
from erasure.request import GONE, CopyState
from erasure.work import PART, captures_of, failed, load_work, report_of
from ledger.entry import Kind
from registry import stores
from registry.models import StoreRow
from retention.parts import destroyed_keys, split_ref
from vault.errors import DestructionUnproven, VaultError
from vault.rows import PartId

INDEPENDENCE = {
    "code": "another module than the eraser, by ids captured before the erasure",
    "credentials": "read-only where the store has them",
    "process": "the same process",
    "party": "the same party",
}
_STORES_AT_ONCE = 8
_LOOK_AGAIN = (timedelta(seconds=30), timedelta(hours=1))
"""How often it is looked whether a store has done what it took: at first, and after a day or more."""
_SLOWER = 24
_LATE = "the store took the deletion and has not done it by its deadline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """How many copies were shown to be gone, and how many were found or could not be checked."""

    verified: int = 0
    sent_back: int = 0
    asked: int = 0
    """Stores in an agent's process whose second look is outstanding."""


def confirm(parts: Parts, tenant_id: int, owner: str, now: datetime, *, again: bool = False) -> Confirmed:
    """Verify what is not verified yet; `again` looks at everything that counts as gone, for the quiet period."""
    run = _Confirmation(parts, tenant_id, owner, now, again=again)
    return run.run()


class _Confirmation:
    def __init__(self, parts: Parts, tenant_id: int, owner: str, now: datetime, *, again: bool) -> None:
        self._parts = parts
        self._tenant_id = tenant_id
        self._owner = owner
        self._now = now
        self._again = again

    def run(self) -> Confirmed:
        """Stores first, then keys."""
        with self._parts.transactions(self._tenant_id, write=False) as session:
            known = stores.in_force(session, self._tenant_id)
            names = sorted({copy.store for copy in self._wanted(session, "artifact")} | self._waiting_in(session))
        embedded = [name for name in names if name in known and known[name].kind == AGENT]
        names = [name for name in names if name not in embedded]
        asked = sum(self._ask(name) for name in embedded)
        verified = sent_back = 0
        with ThreadPoolExecutor(max_workers=_STORES_AT_ONCE, thread_name_prefix="confirm") as pool:
            for good, bad in pool.map(lambda name: self._store(known.get(name), name), names):
                verified, sent_back = verified + good, sent_back + bad
        good, bad = self._keys()
        return Confirmed(verified=verified + good, sent_back=sent_back + bad, asked=asked)

    def _ask(self, name: str) -> bool:
        """Have a store looked at where it lies; True while the answer is outstanding."""
        with self._parts.transactions(self._tenant_id) as session:
            copies = [copy for copy in self._wanted(session, "artifact") if copy.store == name]
            work = load_work(session, self._tenant_id, self._owner)
            return tasks.ask(session, self._parts, work, store=name, copies=copies, now=self._now, again=self._again)

    def _wanted(self, session: Session, kind: str) -> list[CopyRow]:
        rows = history.copies_of(session, self._tenant_id, self._owner, *sorted(GONE))
        return [copy for copy in rows if copy.kind == kind and (copy.verified_at is None or self._looks_again(copy))]

    def _looks_again(self, copy: CopyRow) -> bool:
        # Where a copy lay is forgotten with the request's traces; it was looked for twice before that.
        return self._again and (copy.kind in ("key", PART) or copy.sealed is not None)

    def _store(self, store: StoreRow | None, name: str) -> tuple[int, int]:
        with self._parts.transactions(self._tenant_id, write=False) as session:
            work = load_work(session, self._tenant_id, self._owner)
            report = report_of(work.facts().get("reclaim", {}).get(name))
            copies = self._copies_in(session, name)
            found = captures_of(session, self._parts, work, copies)
        by_level: dict[Level, list[Item]] = {}
        for copy in copies:
            if copy.copy_no in found:
                by_level.setdefault(_level_of(copy), []).append(found[copy.copy_no].item(copy.copy_no))
        findings: dict[int, Finding] = {}
        try:
            if store is not None:
                with self._parts.connect(store, True) as connector:
                    for level, items in sorted(by_level.items()):
                        size = connector.capabilities().batch_size
                        for start in range(0, len(items), size):
                            batch = items[start : start + size]
                            seen = connector.verify(batch, level, deadline=self._parts.store_seconds, reclaimed=report)
                            findings |= {int(finding.copy_id): finding for finding in seen}
        except Exception:  # noqa: BLE001, S110 - whatever a driver raises leaves its own store's copies unseen only
            # What was seen before the store fell silent still counts; the rest is asked again.
            pass
        return self._write(name, [copy.copy_no for copy in copies], findings)

    def _write(self, name: str, numbers: Sequence[int], findings: dict[int, Finding]) -> tuple[int, int]:
        good: list[CopyRow] = []
        sent_back = 0
        with self._parts.transactions(self._tenant_id) as session:
            rows = {copy.copy_no: copy for copy in self._copies_in(session, name)}
            if any(is_accepted(copy) for copy in rows.values()):
                work = load_work(session, self._tenant_id, self._owner, lock=True)
                looked = {**work.facts().get("looked", {}), name: self._parts.instant(self._now).isoformat()}
                work.put_facts(session, looked=looked)
            for number in numbers:
                copy = rows.get(number)
                if copy is None:
                    continue
                if self._accept(session, copy, findings.get(number)):
                    good.append(copy)
                else:
                    sent_back += 1
            self._announce(session, good)
        return len(good), sent_back

    def _accept(self, session: Session, copy: CopyRow, finding: Finding | None) -> bool:
        """Whether absence was shown at the required level; otherwise the copy is sent back or given up."""
        session.add(copy)
        if is_accepted(copy) and (finding is None or finding.present):
            self._wait_on(session, copy)
            return False
        if finding is None:
            copy.attempts += 1
            if copy.attempts >= self._parts.max_attempts and copy.verified_at is None:
                copy.state, copy.detail = CopyState.UNREACHABLE, "nobody could look whether it is gone"
            return False
        copy.level = None if finding.level is None else finding.level.value
        if finding.present is False and finding.level is not None and finding.level >= _level_of(copy):
            copy.verified_at, copy.verified_how = self._parts.instant(self._now, copy.finished_at), finding.how
            copy.detail = None
            if copy.state != CopyState.ALREADY_ABSENT:
                physical = finding.level >= Level.L2
                copy.state = CopyState.ERASED_PHYSICAL if physical else CopyState.ERASED_LOGICAL
            if (copy.method or "").startswith(ANEW):
                copy.state = CopyState.REGENERATED
            return True
        copy.verified_at = None
        seen = f"found again by {finding.how}" if finding.present else (finding.could_not_check or "not shown absent")
        failed(session, copy, self._parts, detail=seen, end=CopyState.FAILED)
        return False

    def _copies_in(self, session: Session, name: str) -> list[CopyRow]:
        """What is looked at in a store: what counts as gone, and what the store took and does later."""
        copies = [copy for copy in self._wanted(session, "artifact") if copy.store == name]
        return copies + [copy for copy in self._accepted(session) if copy.store == name]

    def _accepted(self, session: Session) -> list[CopyRow]:
        if self._again:
            return []
        waiting = history.copies_of(session, self._tenant_id, self._owner, CopyState.AWAITING_EXTERNAL)
        return [copy for copy in waiting if is_accepted(copy)]

    def _waiting_in(self, session: Session) -> set[str]:
        """The stores that took a deletion and that it is time to look at again."""
        waiting = self._accepted(session)
        if not waiting:
            return set()
        looked = load_work(session, self._tenant_id, self._owner).facts().get("looked", {})
        due = set()
        for copy in waiting:
            since = copy.started_at or self._now
            pause = min(_LOOK_AGAIN[1], max(_LOOK_AGAIN[0], (self._now - since) / _SLOWER))
            last = looked.get(copy.store)
            if last is None or self._now >= datetime.fromisoformat(last) + pause:
                due.add(copy.store)
        return due

    def _wait_on(self, session: Session, copy: CopyRow) -> None:
        """The store has not done it yet: wait on, or give it up at the deadline, which is told once."""
        if copy.started_at is None or self._now < copy.started_at + self._parts.agent_term:
            return
        copy.state, copy.verified_at, copy.detail = CopyState.UNREACHABLE, None, _LATE
        detail: dict[str, Any] = {"store": copy.store, "copies": 1, "copy": copy.copy_no}
        body = {"owner": self._owner, "state": CopyState.UNREACHABLE.value, "overdue": True, **detail}
        at = self._parts.instant(self._now)
        entry_id = self._parts.record.announce(session, self._tenant_id, Kind.COPY_STATE, body, at)
        row = session.get(RequestRow, (self._tenant_id, self._owner))
        if row is not None:
            history.add_event(
                session, row, event="store_overdue", actor="worker", now=at, detail=detail, entry_id=entry_id
            )

    def _keys(self) -> tuple[int, int]:
        good: list[CopyRow] = []
        sent_back = 0
        with self._parts.transactions(self._tenant_id) as session:
            for copy in (*self._wanted(session, "key"), *self._wanted(session, PART)):
                session.add(copy)
                try:
                    keys, names = self._prove(session, copy)
                except VaultError as error:
                    copy.verified_at, copy.key_state = None, "live"
                    failed(session, copy, self._parts, detail=type(error).__name__, end=CopyState.FAILED)
                    sent_back += 1
                    continue
                final = self._parts.vault.final_at(session, self._tenant_id, keys, names)
                copy.key_state = "destroyed" if final is None else "final"
                copy.verified_at = self._parts.instant(self._now, copy.finished_at)
                copy.verified_how = "a reader that holds no key and must fetch each anew could not open it"
                good.append(copy)
            self._announce(session, good)
        return len(good), sent_back

    def _prove(self, session: Session, copy: CopyRow) -> tuple[list[str], list[PartId]]:
        """Return the key or part key that was shown to be gone; for a part, that of its data keys which is.

        Raises: VaultError where one still opens.
        """
        if copy.kind != PART:
            self._parts.vault.prove_destroyed(session, self._tenant_id, [copy.key_id or ""])
            return [copy.key_id or ""], []
        gone, names = destroyed_keys(session, self._tenant_id, copy.ref), [split_ref(copy.ref)]
        if not gone:
            raise DestructionUnproven(copy.ref, "none of its data keys was destroyed")
        self._parts.vault.prove_destroyed(session, self._tenant_id, gone)
        if not self._parts.vault.part_infos(session, self._tenant_id, names):
            return gone, []  # it never had a key of its own
        self._parts.vault.prove_parts_destroyed(session, self._tenant_id, names)
        return gone, names

    def _announce(self, session: Session, rows: Sequence[CopyRow]) -> None:
        for start in range(0, len(rows), history.INSERT_CHUNK):
            chunk = rows[start : start + history.INSERT_CHUNK]
            lines: list[dict[str, Any]] = [
                {"copy": copy.copy_no, "state": copy.state, "level": copy.level, "key": copy.key_state}
                for copy in chunk
            ]
            body = {"owner": self._owner, "copies": lines}
            at = self._parts.instant(self._now)
            with session.no_autoflush:  # each row is written once, with its evidence
                entry_id = self._parts.record.announce(session, self._tenant_id, Kind.COPY_VERIFIED, body, at)
            for copy in chunk:
                copy.verify_evidence = entry_id
                session.add(copy)


def is_accepted(copy: CopyRow) -> bool:
    """Whether the store took the deletion of a copy and had not done it when it was last looked at."""
    return copy.state == CopyState.AWAITING_EXTERNAL and copy.level == Level.L0.value


def _level_of(copy: CopyRow) -> Level:
    """The level to show; a class that asks for the key alone still has its copies read once by the store's API."""
    return Level.L1 if copy.required == "key" else Level(copy.required)
