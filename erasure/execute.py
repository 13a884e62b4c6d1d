"""Executes an approved plan, of a request or of a sweep. Every step can be run again, after a crash anywhere.

 1. Begin: the request is `executing`; what a dead worker left running is tried again; what stayed is decided again.
 2. Close the persons' keys for sealing and mark the request destructive: from here it cannot be cancelled.
 3. Record keys: give parts that stay keys of their own (`erasure.keeping`); put into the record which keys go (binds),
    then decide each again and delete it, in one transaction. Keys of parts whose ground to stay has ended go alike.
 4. Stores, leaves first, in batches; then free the bytes (`erasure.dispatch`). What was absent there is gone only where
    something shows that it is the right place (`erasure.place`).
 5. Bury what is gone: registry rows without their sealed places, tombstones.
 6. The identity key, when nothing else waits for it: readable names, stream names, the key. In a sweep those of people
    of whom nothing is left (`erasure.departed`).
 7. Turn the touched key groups to a new epoch; old epochs end after their grace.
 8. Hand over to `erasure.confirm`, once every live process has emptied its caches of the keys that went.

A crash after any commit leaves rows that say what is done; the next run starts at 1 and does only the rest. A crash
between the event of 3 or 6 and its transaction leaves an event without effect, and the next run makes another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col

from erasure import copies, departed, history
from erasure.desk import facts_of
from erasure.dispatch import Dispatch
from erasure.fences import is_limited
from erasure.keeping import Keeping, list_kept, sealed_still, staying, uncovered
from erasure.models import CopyRow, RequestRow
from erasure.parts import Parts
from erasure.persons import leave_out_strangers
from erasure.place import look_at_places
from erasure.plan import IDENTITY, redecide
from erasure.request import BROKEN, GONE, WAITING, CopyState, Move, State, move
from erasure.work import (
    BY_HAND,
    PART,
    Work,
    ask_human,
    end_of_try,
    facts_now,
    failed,
    is_due,
    is_unseen,
    lines_now,
    load_work,
    may_go,
    sort_out,
)
from ledger.entry import Kind
from registry import artifacts, streams, subjects
from retention.decide import DESTRUCTIVE
from retention.models import SweepRow
from retention.parts import split_ref
from vault.watch import Fence

_WORKER = "worker"
_EVENT_CHUNK = 1_000
_KEEPING_ROUNDS = 3
"""How often a key is looked at again whose parts changed while they were given keys of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Whether everything that could be done now was done; False while something waits for another attempt."""

    ready_to_confirm: bool
    row: RequestRow | SweepRow | None = None
    """The work's row as the last step left it; None where there was nothing left to do."""
    asks_anew: bool = True
    """Whether a copy may wait for its successor."""


def execute(parts: Parts, tenant_id: int, owner: str, now: datetime) -> Outcome:
    """Do what is left of the plan. Raises: UnknownRequest, IllegalMove, and what log and database raise."""
    run = _Execution(parts, tenant_id, owner, now)
    if not run.begin() or not run.close_keys():  # 1, 2
        return Outcome(ready_to_confirm=True)
    run.destroy_record_keys()  # 3
    run.destroy_part_keys()
    Dispatch(parts, tenant_id, owner, now).run()  # 4
    look_at_places(parts, tenant_id, owner, now)
    run.bury()  # 5
    run.destroy_identity()  # 6
    run.rotate()  # 7
    return run.hand_over()  # 8


class _Tried(NamedTuple):
    copy_no: int
    attempts: int


class _Numbered(NamedTuple):
    copy_no: int
    artifact_id: int | None


class _Execution:
    def __init__(self, parts: Parts, tenant_id: int, owner: str, now: datetime) -> None:
        self._parts = parts
        self._tenant_id = tenant_id
        self._owner = owner
        self._now = now

    def begin(self) -> bool:
        """Step 1. False when the request is past execution already."""
        with self._parts.transactions(self._tenant_id) as session:
            work = load_work(session, self._tenant_id, self._owner, lock=True)
            if isinstance(work.row, RequestRow):
                if work.row.state == State.APPROVED:
                    work.row.state = move(State(work.row.state), Move.START, facts_of(work.row, _WORKER, self._now))
                    self._note(session, work.row, "executing")
                if work.row.state != State.EXECUTING:
                    return False
                leave_out_strangers(session, work.row)
            # A copy at which every worker dies is given up like one that its store refuses each time.
            why = "a worker ended while it was being erased"
            left = copies.read(session, _Tried, copies.of(self._tenant_id, self._owner, CopyState.RUNNING))
            ends = {copy.copy_no: end_of_try(copy.attempts, self._parts, CopyState.UNREACHABLE) for copy in left}
            changes = {number: {"state": state.value, "detail": why} for number, state in ends.items()}
            copies.write(session, self._tenant_id, self._owner, changes)
            retained = history.copies_of(session, self._tenant_id, self._owner, CopyState.RETAINED)
            kept = [copy for copy in retained if copy.method != BY_HAND]
            self._decide_retained(session, work, kept)
            session.flush()
            for live in self._artifacts(session, CopyState.PENDING):
                artifacts.mark_status(session, self._tenant_id, live, "erasing", request_id=self._owner)
            return True

    def _artifacts(self, session: Session, *states: str) -> Iterator[list[int]]:
        """The artifacts behind the copies in these states, page by page."""
        where = copies.of(self._tenant_id, self._owner, *states, kind="artifact")
        for page in copies.pages(session, _Numbered, where):
            yield [copy.artifact_id for copy in page if copy.artifact_id is not None]

    def _decide_retained(self, session: Session, work: Work, copies: Sequence[CopyRow]) -> None:
        """A hold that was released, a floor that ended: the copy is pending again, under the same request.

        One that is about others too waits for a second person: the plan that was approved kept it.
        """
        lines = lines_now(session, work, copies, self._now) if copies else {}
        for copy in copies:
            line = lines.get(history.ref_of(copy))
            if line is None:
                continue
            if is_unseen(copy, line):
                ask_human(session, copy, line)
                continue
            copy.collateral = None if line.collateral is None else dict(line.collateral)
            session.add(copy)
            if line.action in DESTRUCTIVE:
                copy.state, copy.action, copy.rule, copy.until = CopyState.PENDING, line.action, line.rule, line.until
                copy.because = [reason._asdict() for reason in line.because]
                copy.detail = None
                session.add(copy)

    def close_keys(self) -> bool:
        """Step 2. From this commit on the vault makes no key of these persons, and this process gives none out.

        False, and nothing done, when the request was cancelled since it began: here it is decided which came first.
        """
        with self._parts.transactions(self._tenant_id) as session:
            work = load_work(session, self._tenant_id, self._owner, lock=True)
            if isinstance(work.row, RequestRow) and work.row.state != State.EXECUTING:
                return False
            if work.facts().get("destructive"):
                return True
            whole = isinstance(work.row, RequestRow) and not is_limited(work.row)
            for subject_no in sorted(work.people) if whole else ():
                self._parts.vault.fence_subject(
                    session, self._tenant_id, subject_no, now=self._now, request=self._owner
                )
            work.put_facts(session, destructive=True)
        if whole:
            self._parts.vault.evict_all()  # another thread may have read a row before the commit
        return True

    def destroy_record_keys(self) -> None:
        """Step 3."""
        with self._parts.transactions(self._tenant_id, write=False) as session:
            wanted = [copy.key_id for copy in self._pending_keys(session) if copy.data_class != IDENTITY]
        keeping = Keeping(self._parts, self._tenant_id, self._owner, self._now)
        for start in range(0, len(wanted), _EVENT_CHUNK):
            chunk = [key_id for key_id in wanted[start : start + _EVENT_CHUNK] if key_id is not None]
            self._close(chunk)
            for _ in range(_KEEPING_ROUNDS):
                faults = keeping.give(chunk)
                self._give_up(faults)
                if not self._destroy([key_id for key_id in chunk if key_id not in faults]):
                    break

    def _close(self, key_ids: Sequence[str]) -> None:
        """Keys that a limited request takes from under other conversations seal nothing new while that is going on.

        A request about a whole person has closed the person; a sweep's keys are of months that are over.
        """
        with self._parts.transactions(self._tenant_id) as session:
            work = load_work(session, self._tenant_id, self._owner, lock=True)
            if not (isinstance(work.row, RequestRow) and is_limited(work.row)):
                return
            if self._parts.vault.mark_destroying(session, self._tenant_id, key_ids, request=self._owner):
                at = self._parts.instant(self._now)
                work.put_facts(session, key_fence=self._parts.raise_fence(session, at).as_json())
        self._parts.vault.evict(key_ids)

    def _give_up(self, faults: Mapping[str, str]) -> None:
        """Keys under which a part that must stay cannot be kept: they stay, and say why."""
        if not faults:
            return
        with self._parts.transactions(self._tenant_id) as session:
            load_work(session, self._tenant_id, self._owner, lock=True)
            for copy in self._pending_keys(session):
                why = faults.get(copy.key_id or "")
                if why is not None:
                    copy.attempts, copy.started_at = copy.attempts + 1, self._parts.instant(self._now)
                    failed(session, copy, self._parts, detail=why, end=CopyState.FAILED)

    def _destroy(self, chunk: Sequence[str], *, of_departed: bool = False) -> bool:
        """Say which keys go, then let go of those that still may, in one transaction.

        True when a key was left because a part under it must stay and came, or was held, after the last look.
        """
        if not chunk:
            return False
        body = {"owner": self._owner, "keys": list(chunk)}
        entry_id = self._parts.record.event(self._tenant_id, Kind.KEY_DESTROYING, body, self._now)
        with self._parts.transactions(self._tenant_id) as session:
            work = load_work(session, self._tenant_id, self._owner, lock=True)
            if of_departed:
                departed.close(session, self._tenant_id)
            rows = [copy for copy in self._pending_keys(session) if copy.key_id in set(chunk)]
            given = facts_now(session, work, rows, self._now)
            going = sort_out(session, rows, redecide(given))
            found = staying(given, [copy.key_id for copy in going if copy.key_id is not None])
            left = uncovered(session, work, found, [copy.key_id for copy in going if copy.key_id is not None])
            going = [copy for copy in going if copy.key_id not in left]
            ids = [copy.key_id for copy in going if copy.key_id is not None]
            self._parts.vault.mark_destroying(session, self._tenant_id, ids, request=self._owner)
            self._parts.vault.delete_wrapped(session, self._tenant_id, ids, now=self._now, request=self._owner)
            if of_departed:
                departed.end(session, self._parts.vault, self._tenant_id, ids, self._owner, self._now)
            at = self._parts.instant(self._now)
            self._mark_gone(session, going, entry_id, at, method="wrapped key deleted")
            list_kept(session, self._parts, work, found, ids, self._now)
            if ids:
                work.put_facts(session, key_fence=self._parts.raise_fence(session, at).as_json())
            done = {"owner": self._owner, "keys": sorted(ids)}
            self._parts.record.announce(session, self._tenant_id, Kind.KEY_DESTROYED, done, self._now)
        # Another thread may have read a row before the commit.
        self._parts.vault.evict(chunk)
        return bool(left)

    def _mark_gone(
        self, session: Session, copies: Sequence[CopyRow], entry_id: str, at: datetime, *, method: str
    ) -> None:
        for copy in copies:
            copy.state, copy.key_state, copy.verified_at = CopyState.KEY_DESTROYED, "destroyed", None
            copy.method, copy.evidence, copy.detail = method, entry_id, None
            copy.started_at = copy.finished_at = at
            copy.attempts += 1
            session.add(copy)

    def destroy_part_keys(self) -> None:
        """Step 3 for parts that outlived their data key and have no ground to stay any more."""
        with self._parts.transactions(self._tenant_id, write=False) as session:
            wanted = [copy.ref for copy in self._pending_parts(session)]
        for start in range(0, len(wanted), _EVENT_CHUNK):
            chunk = wanted[start : start + _EVENT_CHUNK]
            body = {"owner": self._owner, "keys": [], "parts": chunk}
            entry_id = self._parts.record.event(self._tenant_id, Kind.KEY_DESTROYING, body, self._now)
            with self._parts.transactions(self._tenant_id) as session:
                work = load_work(session, self._tenant_id, self._owner, lock=True)
                rows = [copy for copy in self._pending_parts(session) if copy.ref in set(chunk)]
                going = may_go(session, work, rows, self._now)
                open_still = sealed_still(session, self._tenant_id, [copy.ref for copy in going])
                for copy in going:
                    if copy.ref in open_still:
                        copy.attempts, copy.started_at = copy.attempts + 1, self._parts.instant(self._now)
                        why = "its data key is still there"
                        failed(session, copy, self._parts, detail=why, end=CopyState.FAILED)
                going = [copy for copy in going if copy.ref not in open_still]
                names = [split_ref(copy.ref) for copy in going]
                self._parts.vault.drop_parts(session, self._tenant_id, names, now=self._now, request=self._owner)
                at = self._parts.instant(self._now)
                self._mark_gone(session, going, entry_id, at, method="wrapped part key deleted")
                done = {"owner": self._owner, "keys": [], "parts": sorted(copy.ref for copy in going)}
                self._parts.record.announce(session, self._tenant_id, Kind.KEY_DESTROYED, done, self._now)

    def _pending_parts(self, session: Session) -> list[CopyRow]:
        return history.copies_of(session, self._tenant_id, self._owner, CopyState.PENDING, kind=PART)

    def _pending_keys(self, session: Session) -> list[CopyRow]:
        return history.copies_of(session, self._tenant_id, self._owner, CopyState.PENDING, kind="key")

    def bury(self) -> None:
        """Step 5. Rows of what is gone lose their sealed places; a tombstone finds a revived copy."""
        with self._parts.transactions(self._tenant_id) as session:
            for gone in self._artifacts(session, *sorted(GONE)):
                artifacts.bury(session, self._tenant_id, gone, self._owner, self._now)
            for kept in self._artifacts(session, CopyState.RETAINED):
                artifacts.mark_status(session, self._tenant_id, kept, "retained", request_id=self._owner)

    def destroy_identity(self) -> None:
        """Step 6. Last of all: while anything waits or failed, the identity key still opens where it lies.

        A sweep's are of people of whom nothing is left; that is looked at again in the transaction that lets them go.
        """
        with self._parts.transactions(self._tenant_id, write=False) as session:
            is_request = load_work(session, self._tenant_id, self._owner).is_request
            named = [copy for copy in self._pending_keys(session) if copy.data_class == IDENTITY]
            departing = [copy.key_id for copy in named if copy.key_id is not None]
        if not is_request:
            for start in range(0, len(departing), _EVENT_CHUNK):
                self._destroy(departing[start : start + _EVENT_CHUNK], of_departed=True)
            return
        with self._parts.transactions(self._tenant_id) as session:
            load_work(session, self._tenant_id, self._owner, lock=True)
            mine = copies.of(self._tenant_id, self._owner)
            others = copies.states_of(session, sa.and_(mine, col(CopyRow.data_class) != IDENTITY))
            keys = history.copies_of(session, self._tenant_id, self._owner, data_class=IDENTITY)
            open_keys = [copy for copy in keys if copy.state in (*WAITING, *BROKEN)]
            state = _identity_state(others)
            for copy in open_keys:
                copy.state = state
                copy.detail = None if state == CopyState.PENDING else "needed by copies that are not gone"
                session.add(copy)
            may = state == CopyState.PENDING and others.isdisjoint(WAITING)
            wanted = [copy.key_id for copy in open_keys if copy.key_id is not None] if may else []
        for start in range(0, len(wanted), _EVENT_CHUNK):
            self._destroy(wanted[start : start + _EVENT_CHUNK])
        self._forget()

    def _forget(self) -> None:
        """Readable names and stream names go once every identity key is gone; asked at every run, so a crash heals."""
        with self._parts.transactions(self._tenant_id) as session:
            work = load_work(session, self._tenant_id, self._owner, lock=True)
            keys = history.copies_of(session, self._tenant_id, self._owner, data_class=IDENTITY)
            if not keys or any(copy.state != CopyState.KEY_DESTROYED for copy in keys):
                return
            streams.forget_names(session, self._tenant_id, work.people)
            for subject_no in sorted(work.people):
                subjects.forget_identifiers(session, self._tenant_id, subject_no, self._owner, self._now)

    def rotate(self) -> None:
        """Step 7. Groups in which something was destroyed get a new epoch; the others are passed over."""
        with self._parts.transactions(self._tenant_id) as session:
            rows = history.copies_of(session, self._tenant_id, self._owner, CopyState.KEY_DESTROYED)
            ids = [copy.key_id for copy in rows if copy.key_id is not None]
            names = [split_ref(copy.ref) for copy in rows if copy.kind == PART]
            groups = self._parts.vault.groups_of(session, self._tenant_id, ids, names)
            report = self._parts.vault.rotate_groups(session, self._tenant_id, groups, self._now, self._parts.kek_grace)
            if report.rotated:
                work = load_work(session, self._tenant_id, self._owner, lock=True)
                last = max(group.destroy_after for group in report.rotated)
                known = work.facts().get("kek_due")
                due = last.isoformat() if known is None else max(last.isoformat(), known)
                work.put_facts(session, kek_due=due)
        self._parts.keep_groups(self._tenant_id, [group.group_no for group in report.rotated], self._now)
        destroy_due_keks(self._parts, self._tenant_id, self._now)
        self._parts.truncate_log()

    def hand_over(self) -> Outcome:
        """Step 8. Ready when no further attempt could change anything, and no process holds a destroyed key."""
        if not self._caches_cleared():
            return Outcome(ready_to_confirm=False)
        with self._parts.transactions(self._tenant_id) as session:
            work = load_work(session, self._tenant_id, self._owner, lock=True)
            elsewhere = CopyState.AWAITING_EXTERNAL
            still = copies.of(self._tenant_id, self._owner, CopyState.PENDING, CopyState.RUNNING, elsewhere)
            tried_less = sa.and_(col(CopyRow.state) != elsewhere, col(CopyRow.attempts) < self._parts.max_attempts)
            is_asked = sa.and_(col(CopyRow.state) == elsewhere, col(CopyRow.action) == "regenerate")
            wanted = sa.and_(still, col(CopyRow.data_class) != IDENTITY, sa.or_(tried_less, is_asked))
            waiting = copies.states_of(session, wanted)
            if not waiting <= {elsewhere}:
                return Outcome(ready_to_confirm=False)
            if isinstance(work.row, RequestRow) and work.row.state == State.EXECUTING:
                work.row.state = move(State(work.row.state), Move.CONFIRM, facts_of(work.row, _WORKER, self._now))
                self._note(session, work.row, "verifying")
            return Outcome(ready_to_confirm=True, row=work.row, asks_anew=bool(waiting))

    def _caches_cleared(self) -> bool:
        with self._parts.transactions(self._tenant_id, write=False) as session:
            facts = load_work(session, self._tenant_id, self._owner).facts()
        behind = self._parts.behind(Fence.of_json(facts["key_fence"])) if "key_fence" in facts else 0
        if behind != facts.get(history.PROCESSES, 0):
            # Whoever asks is told what the request waits for.
            with self._parts.transactions(self._tenant_id) as session:
                work = load_work(session, self._tenant_id, self._owner, lock=True)
                work.put_facts(session, **{history.PROCESSES: behind})
        return behind == 0

    def _note(self, session: Session, row: RequestRow, event: str) -> None:
        session.add(row)
        body: dict[str, Any] = {"request": row.request_id, "state": row.state}
        entry_id = self._parts.record.announce(session, self._tenant_id, Kind.REQUEST_STATE, body, self._now)
        history.add_event(
            session,
            row,
            event=event,
            actor=_WORKER,
            now=self._now,
            detail={"state": row.state},
            entry_id=entry_id,
        )


def _identity_state(others: frozenset[str]) -> CopyState:
    """What becomes of the identity key: pending while it may still go, else as far as the states of what needs it."""
    if not others.isdisjoint(WAITING):
        return CopyState.PENDING
    if not others.isdisjoint(BROKEN):
        return CopyState.FAILED
    if CopyState.RETAINED in others:
        return CopyState.RETAINED
    return CopyState.PENDING


def destroy_due_keks(parts: Parts, tenant_id: int, now: datetime) -> int:
    """Destroy the former epochs whose grace is over, said in the record first; returns how many."""
    with parts.transactions(tenant_id, write=False) as session:
        due = parts.vault.due_keks(session, tenant_id, now)
    if not due:
        return 0
    # What was written before the rotation opens under these epochs only, and a crash may have come after its commit.
    parts.keep_groups(tenant_id, sorted({epoch.group_no for epoch in due}), now)
    body = {"epochs": [{"group": epoch.group_no, "epoch": epoch.epoch} for epoch in due]}
    parts.record.event(tenant_id, Kind.KEK_DESTROYED, body, now)
    with parts.transactions(tenant_id) as session:
        return len(parts.vault.destroy_due_keks(session, tenant_id, now))


def let_go(
    parts: Parts, session: Session, tenant_id: int, keys: Sequence[str], *, owner: str, now: datetime
) -> list[int]:
    """Delete a request's or sweep's own keys and turn their groups, in the transaction of the decision that allows it.

    Returns the groups that turned: once committed, the caller keeps them and evicts the keys.
    """
    parts.vault.mark_destroying(session, tenant_id, keys, request=owner)
    parts.vault.delete_wrapped(session, tenant_id, keys, now=now, request=owner)
    groups = parts.vault.groups_of(session, tenant_id, keys)
    report = parts.vault.rotate_groups(session, tenant_id, groups, now, parts.kek_grace)
    return [group.group_no for group in report.rotated]


def pending_work(session: Session, tenant_id: int, owner: str, now: datetime) -> bool:
    """Whether an execution would find something to do now."""
    at_once = sa.or_(
        col(CopyRow.state) == CopyState.RUNNING.value, col(CopyRow.attempts) == 0, col(CopyRow.started_at).is_(None)
    )
    mine = copies.of(tenant_id, owner, CopyState.PENDING, CopyState.RUNNING)
    if session.execute(sa.select(col(CopyRow.copy_no)).where(mine, at_once).limit(1)).first() is not None:
        return True
    # Of those that were tried equally often, the first is ready first: asked every other second, of however many.
    waits = session.execute(
        sa.select(col(CopyRow.attempts), sa.func.min(col(CopyRow.started_at)))
        .where(copies.of(tenant_id, owner, CopyState.PENDING))
        .group_by(col(CopyRow.attempts))
    )
    return any(is_due(attempts, first, now) for attempts, first in waits)
