"""Looks for what was erased, as another actor than the one that erased it.

Guarantees: connectors of its own, opened read-only; items from the sealed captures of the plan, never from the
executor's query; keys tried by a vault that holds nothing. A copy counts only when its absence was shown at the level
its class requires; «could not check» is never an absence, and what is found sends the copy back. It erases nothing.

How independent it is, as certificates print it: other code and, where the store has them, other credentials than the
eraser; the same process and the same party.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col, select

from connectors.agent import AGENT
from connectors.base import Connector, Finding, Level, ReclaimReport
from erasure import copies, history, place, tasks
from erasure.models import CopyRow, RequestRow
from erasure.parts import Parts
from erasure.regenerate import ANEW
from erasure.request import GONE, MAYBE_OURS, CopyState
from erasure.work import PART, captures_of, end_of_try, failed, load_work, report_of
from ledger.entry import Kind
from ledger.models import Instant
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
_TRIED_AGAIN = "absent when it was tried again"
_LATE = "the store took the deletion and has not done it by its deadline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """How many copies were shown to be gone, and how many were found or could not be checked."""

    verified: int = 0
    sent_back: int = 0
    asked: int = 0
    """Stores in an agent's process whose second look is outstanding."""
    unseen: tuple[str, ...] = ()
    """Stores that could not be looked at again: what was shown of them once is not shown anew."""


class _Asked(NamedTuple):
    copy_no: int
    required: str


class _Captured(NamedTuple):
    copy_no: int
    ref: str
    sealed: bytes | None


class _Looked(NamedTuple):
    """What a finding about a copy is judged by."""

    copy_no: int
    store: str
    required: str
    state: str
    level: str | None
    key_state: str | None
    method: str | None
    attempts: int
    started_at: datetime | None
    finished_at: datetime | None
    verified_at: datetime | None
    verified_how: str | None
    detail: str | None


def confirm(
    parts: Parts, tenant_id: int, owner: str, now: datetime, *, again: bool = False, last: bool = False
) -> Confirmed:
    """Verify what is not verified yet; `again` looks at everything that counts as gone, for the quiet period.

    `last`: what nobody can look at again this time either is given up as unreachable.
    """
    run = _Confirmation(parts, tenant_id, owner, now, again=again, last=last)
    return run.run()


class _Confirmation:
    def __init__(self, parts: Parts, tenant_id: int, owner: str, now: datetime, *, again: bool, last: bool) -> None:
        self._parts = parts
        self._tenant_id = tenant_id
        self._owner = owner
        self._now = now
        self._again = again
        self._last = last
        self._unseen: set[str] = set()

    def run(self) -> Confirmed:
        """Stores first, then keys."""
        with self._parts.transactions(self._tenant_id, write=False) as session:
            known = stores.in_force(session, self._tenant_id)
            wanted = sa.select(col(CopyRow.store)).where(self._wanted("artifact")).distinct()
            names = sorted({*session.scalars(wanted), *self._waiting_in(session)})
        embedded = [name for name in names if name in known and known[name].kind == AGENT]
        names = [name for name in names if name not in embedded]
        asked = sum(self._ask(name) for name in embedded)
        verified = sent_back = 0
        with ThreadPoolExecutor(max_workers=_STORES_AT_ONCE, thread_name_prefix="confirm") as pool:
            for good, bad in pool.map(lambda name: self._store(known.get(name), name), names):
                verified, sent_back = verified + good, sent_back + bad
        good, bad = self._keys()
        return Confirmed(verified=verified + good, sent_back=sent_back + bad, asked=asked,
                         unseen=tuple(sorted(self._unseen)))  # fmt: skip

    def _ask(self, name: str) -> bool:
        """Have a store looked at where it lies; True while the answer is outstanding."""
        with self._parts.transactions(self._tenant_id) as session:
            rows = self._rows(session, sa.and_(self._wanted("artifact"), col(CopyRow.store) == name))
            work = load_work(session, self._tenant_id, self._owner)
            return tasks.ask(session, self._parts, work, store=name, copies=rows, now=self._now, again=self._again)

    def _wanted(self, kind: str) -> sa.ColumnElement[bool]:
        """What counts as gone and is not verified yet, or is looked at again."""
        gone = copies.of(self._tenant_id, self._owner, *sorted(GONE), kind=kind)
        unseen = col(CopyRow.verified_at).is_(None)
        if not self._again:
            return sa.and_(gone, unseen)
        # Where a copy lay is forgotten with the request's traces; it was looked for twice before that.
        return gone if kind in ("key", PART) else sa.and_(gone, sa.or_(unseen, col(CopyRow.sealed).is_not(None)))

    def _accepted(self) -> sa.ColumnElement[bool]:
        """What a store took to delete and had not done when it was last looked at."""
        waiting = copies.of(self._tenant_id, self._owner, CopyState.AWAITING_EXTERNAL)
        return sa.and_(sa.literal(not self._again), waiting, col(CopyRow.level) == Level.L0.value)

    def _in(self, name: str) -> sa.ColumnElement[bool]:
        """What is looked at in a store: what counts as gone, and what the store took and does later."""
        return sa.and_(sa.or_(self._wanted("artifact"), self._accepted()), col(CopyRow.store) == name)

    @staticmethod
    def _rows(session: Session, where: sa.ColumnElement[bool]) -> list[CopyRow]:
        return list(session.exec(select(CopyRow).where(where).order_by(col(CopyRow.copy_no))))

    def _store(self, store: StoreRow | None, name: str) -> tuple[int, int]:
        """Look in batches, each written down before the next: the numbers of all of them are what is held at once."""
        by_level: dict[Level, list[int]] = {}
        with self._parts.transactions(self._tenant_id, write=False) as session:
            work = load_work(session, self._tenant_id, self._owner)
            report = report_of(work.facts().get("reclaim", {}).get(name))
            for number, required in copies.read(session, _Asked, self._in(name)):
                by_level.setdefault(copies.level_of(required), []).append(number)
        good = bad = 0
        with ExitStack() as stack:
            connector = self._opened(stack, store)
            size = copies.CHUNK if connector is None else connector.capabilities().batch_size
            for level, numbers in sorted(by_level.items()):
                for start in range(0, len(numbers), size):
                    some = numbers[start : start + size]
                    findings = None if connector is None else self._look(connector, some, level, report)
                    if findings is None:
                        # What was seen before the store fell silent still counts; the rest is asked again.
                        connector, findings = None, {}
                    shown, back = self._write(name, some, findings)
                    good, bad = good + shown, bad + back
        return good, bad

    def _opened(self, stack: ExitStack, store: StoreRow | None) -> Connector | None:
        if store is None:
            return None
        try:
            connector = self._parts.connect(store, True)
        except Exception:  # noqa: BLE001 - whatever a driver raises leaves its own store's copies unseen only
            return None
        stack.callback(_close, connector)
        return connector

    def _look(
        self, connector: Connector, numbers: Sequence[int], level: Level, report: ReclaimReport | None
    ) -> dict[int, Finding] | None:
        """What the store shows of these copies, as far as it is known where they lay; None where it does not answer."""
        with self._parts.transactions(self._tenant_id, write=False) as session:
            work = load_work(session, self._tenant_id, self._owner)
            where = copies.among(session, self._tenant_id, self._owner, numbers)
            found = captures_of(session, self._parts, work, copies.read(session, _Captured, where))
        items = [capture.item(number) for number, capture in found.items()]
        try:
            seen = connector.verify(items, level, deadline=self._parts.store_seconds, reclaimed=report) if items else []
        except Exception:  # noqa: BLE001 - as above
            return None
        return {int(finding.copy_id): finding for finding in seen}

    def _write(self, name: str, numbers: Sequence[int], findings: Mapping[int, Finding]) -> tuple[int, int]:
        """How many of these copies were shown to be gone, and how many were not."""
        with self._parts.transactions(self._tenant_id) as session:
            asked = copies.among(session, self._tenant_id, self._owner, numbers)
            rows = copies.read(session, _Looked, sa.and_(asked, self._in(name)), lock=True)
            # One instant for all that was looked at together.
            at = self._parts.instant(self._now, *{copy.finished_at for copy in rows})
            if any(is_accepted(copy) for copy in rows):
                work = load_work(session, self._tenant_id, self._owner, lock=True)
                work.put_facts(session, looked={**work.facts().get("looked", {}), name: at.isoformat()})
            changes: dict[int, dict[str, Any]] = {}
            good: list[_Looked] = []
            for copy in rows:
                finding = findings.get(copy.copy_no)
                if is_accepted(copy) and (finding is None or finding.present):
                    changes[copy.copy_no] = self._wait_on(session, copy)
                    continue
                changes[copy.copy_no] = change = self._judged(copy, finding, at)
                if change.get("verified_at") is not None:
                    good.append(copy)
            for start in range(0, len(good), copies.CHUNK):
                chunk = good[start : start + copies.CHUNK]
                lines = [
                    {
                        "copy": copy.copy_no,
                        "state": changes[copy.copy_no].get("state", copy.state),
                        "level": changes[copy.copy_no]["level"],
                        "key": copy.key_state,
                    }
                    for copy in chunk
                ]
                entry_id = self._tell(session, lines)
                for copy in chunk:
                    changes[copy.copy_no]["verify_evidence"] = entry_id
            copies.write(session, self._tenant_id, self._owner, changes)
        return len(good), len(rows) - len(good)

    def _judged(self, copy: _Looked, finding: Finding | None, at: datetime) -> dict[str, Any]:
        """What changes by a look: absence at the required level counts, everything else sends back or gives up."""
        if finding is None and self._again and copy.verified_at is not None:
            self._unseen.add(copy.store)
            detail = "nobody could look at it again after the quiet period"
            return {"state": CopyState.UNREACHABLE.value, "verified_at": None, "detail": detail} if self._last else {}
        if finding is None:
            change: dict[str, Any] = {"attempts": copy.attempts + 1}
            if copy.attempts + 1 >= self._parts.max_attempts and copy.verified_at is None:
                detail = "nobody could look whether it is gone"
                change |= {"state": CopyState.UNREACHABLE.value, "detail": detail}
            return change
        level = None if finding.level is None else finding.level.value
        if finding.present is False and finding.level is not None and finding.level >= copies.level_of(copy.required):
            change = {"level": level, "verified_at": at, "verified_how": finding.how, "detail": None}
            if copy.state == CopyState.ALREADY_ABSENT:
                change["verified_how"] = _as_absent(copy, finding.how)
            else:
                physical = finding.level >= Level.L2
                change["state"] = (CopyState.ERASED_PHYSICAL if physical else CopyState.ERASED_LOGICAL).value
            if (copy.method or "").startswith(ANEW):
                change["state"] = CopyState.REGENERATED.value
            return change
        seen = f"found again by {finding.how}" if finding.present else (finding.could_not_check or "not shown absent")
        state = end_of_try(copy.attempts, self._parts, CopyState.FAILED)
        return {"level": level, "verified_at": None, "state": state.value, "detail": seen}

    def _waiting_in(self, session: Session) -> set[str]:
        """The stores that took a deletion and that it is time to look at again."""
        since = sa.func.max(sa.func.coalesce(col(CopyRow.started_at), sa.literal(self._now, Instant())))
        waiting = session.execute(
            sa.select(col(CopyRow.store), sa.type_coerce(since, Instant()))
            .where(self._accepted())
            .group_by(col(CopyRow.store))
        ).all()
        if not waiting:
            return set()
        looked = load_work(session, self._tenant_id, self._owner).facts().get("looked", {})
        due = set()
        for store, last_start in waiting:
            pause = min(_LOOK_AGAIN[1], max(_LOOK_AGAIN[0], (self._now - last_start) / _SLOWER))
            last = looked.get(store)
            if last is None or self._now >= datetime.fromisoformat(last) + pause:
                due.add(store)
        return due

    def _wait_on(self, session: Session, copy: _Looked) -> dict[str, Any]:
        """The store has not done it yet: wait on, or give it up at the deadline, which is told once."""
        if copy.started_at is None or self._now < copy.started_at + self._parts.agent_term:
            return {}
        detail: dict[str, Any] = {"store": copy.store, "copies": 1, "copy": copy.copy_no}
        body = {"owner": self._owner, "state": CopyState.UNREACHABLE.value, "overdue": True, **detail}
        at = self._parts.instant(self._now)
        entry_id = self._parts.record.announce(session, self._tenant_id, Kind.COPY_STATE, body, at)
        row = session.get(RequestRow, (self._tenant_id, self._owner))
        if row is not None:
            history.add_event(
                session, row, event="store_overdue", actor="worker", now=at, detail=detail, entry_id=entry_id
            )
        return {"state": CopyState.UNREACHABLE.value, "verified_at": None, "detail": _LATE}

    def _keys(self) -> tuple[int, int]:
        good: list[CopyRow] = []
        sent_back = 0
        with self._parts.transactions(self._tenant_id) as session:
            rows = (*self._rows(session, self._wanted("key")), *self._rows(session, self._wanted(PART)))
            for copy in rows:
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
        for start in range(0, len(rows), copies.CHUNK):
            chunk = rows[start : start + copies.CHUNK]
            lines: list[dict[str, Any]] = [
                {"copy": copy.copy_no, "state": copy.state, "level": copy.level, "key": copy.key_state}
                for copy in chunk
            ]
            with session.no_autoflush:  # each row is written once, with its evidence
                entry_id = self._tell(session, lines)
            for copy in chunk:
                copy.verify_evidence = entry_id
                session.add(copy)

    def _tell(self, session: Session, lines: Sequence[Mapping[str, Any]]) -> str:
        body = {"owner": self._owner, "copies": list(lines)}
        at = self._parts.instant(self._now)
        return self._parts.record.announce(session, self._tenant_id, Kind.COPY_VERIFIED, body, at)


def _as_absent(copy: _Looked, how: str) -> str:
    """How an absence was seen; of what was tried before, no look is said to have been the first one."""
    earlier = copy.verified_how or copy.detail or ""
    if not (copy.method or "").endswith(MAYBE_OURS):
        return place.as_absent(how, earlier)
    return place.as_absent(how, earlier.replace(_TRIED_AGAIN, place.FIRST_LOOK)).replace(place.FIRST_LOOK, _TRIED_AGAIN)


def _close(connector: Connector) -> None:
    with suppress(Exception):  # it was looked at; a store that fails now hides nothing
        connector.close()


def is_accepted(copy: CopyRow | _Looked) -> bool:
    """Whether the store took the deletion of a copy and had not done it when it was last looked at."""
    return copy.state == CopyState.AWAITING_EXTERNAL and copy.level == Level.L0.value
