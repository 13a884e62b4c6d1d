"""What our database is told of copies on their way to a store: decided and marked, put off, answered.

Guarantees: copies are decided again in the one transaction that marks them `running`, before their store is asked; what
it answered is one entry of the record and one statement for all that ended alike, in one transaction. Each verb is a
transaction of its own. Not here: the stores (`erasure.dispatch`).
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col, select

from connectors.base import Item, Outcome, Receipt
from erasure import copies
from erasure.models import CopyRow
from erasure.packages import STORE as EXPORTS
from erasure.parts import Parts
from erasure.plan import redecide
from erasure.regenerate import ANEW
from erasure.request import GONE, MAYBE_OURS, CopyState
from erasure.work import Work, captures_of, end_of_try, going_alike, going_now, load_work, owners_of, sort_out
from ledger import canonical
from ledger.entry import Kind
from registry import bulk

_ENDS = {
    Outcome.ERASED: CopyState.ERASED_LOGICAL,
    Outcome.ALREADY_ABSENT: CopyState.ALREADY_ABSENT,
    Outcome.OWNER_MISMATCH: CopyState.AWAITING_HUMAN,
    Outcome.LOCKED: CopyState.FAILED,
    Outcome.ACCEPTED: CopyState.AWAITING_EXTERNAL,
}


class Going(NamedTuple):
    """What it takes to decide about a copy once more, to erase it, and to write down the answer."""

    copy_no: int
    kind: str
    ref: str
    artifact_id: int | None
    key_id: str | None
    sealed: bytes | None
    method: str | None
    attempts: int


class Sent(NamedTuple):
    """Copies that one transaction marked as running: by number where each lies, and how it stood before."""

    items: dict[int, Item]
    before: dict[int, Going]
    owners: tuple[str, ...]
    at: datetime
    decided: float
    """When the transaction was committed, on the clock that only goes forward."""
    unread: frozenset[int] = frozenset()
    """Copies that wait on: what their store holds of them is not read yet."""


class _End(NamedTuple):
    """How copies ended, as their rows say it."""

    method: str
    detail: str | None
    level: str | None
    state: str


class _Number(NamedTuple):
    copy_no: int


class Sending:
    """The copies of one request or sweep, on their way."""

    def __init__(self, parts: Parts, tenant_id: int, owner: str, now: datetime) -> None:
        self._parts = parts
        self._tenant_id = tenant_id
        self._owner = owner
        self._now = now
        self._asked: set[int] = set()
        self._keeping = threading.Lock()
        self._answers: dict[str, list[tuple[Sent, Sequence[Receipt]]]] = {}
        self.treated: defaultdict[str, set[int]] = defaultdict(set)
        """What each store erased, or found absent, in this pass."""

    def asked(self, numbers: Collection[int]) -> None:
        """What these copies hold was asked for: they go even where their store did not say."""
        self._asked.update(numbers)

    def decide(self, name: str, numbers: Sequence[int]) -> Sent:
        """Mark those of these copies of a store as running that may go by what is committed now."""
        with bulk.without_collector():
            with self._parts.transactions(self._tenant_id) as session:
                work = load_work(session, self._tenant_id, self._owner)
                sent = self._mark(session, work, name, numbers, self._parts.instant(self._now))
            return sent._replace(decided=time.monotonic())

    def _mark(self, session: Session, work: Work, name: str, numbers: Sequence[int], at: datetime) -> Sent:
        waiting = sa.and_(self._among(session, numbers), col(CopyRow.state) == CopyState.PENDING.value)
        ready = copies.read(session, Going, waiting)
        # A package of an export stays under a hold on what is in it, which only a look at each can tell.
        alike = set() if name == EXPORTS else going_alike(session, work, ready, self._now)
        going = [copy for copy in ready if copy.artifact_id in alike]
        if len(going) < len(ready):
            may = self._going_singly(session, work, [copy for copy in ready if copy.artifact_id not in alike])
            going = [copy for copy in ready if copy.artifact_id in alike or copy.copy_no in may]
        sent = Sent({}, {}, (), at, 0.0)
        if not going:
            return sent
        found = captures_of(session, self._parts, work, going)
        unread = frozenset(n for n, capture in found.items() if not capture.captured and n not in self._asked)
        if unread:
            sent = sent._replace(unread=unread)
            going = [copy for copy in going if copy.copy_no not in unread]
            found = {number: capture for number, capture in found.items() if number not in unread}
        if not going:
            return sent
        owners = owners_of(session, self._parts, work, going)
        tried: dict[str, Any] = {"started_at": at, "attempts": col(CopyRow.attempts) + 1}
        if lost := [copy.copy_no for copy in going if copy.copy_no not in found]:
            where = sa.and_(self._among(session, lost), col(CopyRow.state) == CopyState.PENDING.value)
            detail = "where it lies is not known any more"
            copies.update(session, where, state=CopyState.FAILED.value, detail=detail, **tried)
        if not found:
            return sent
        where = sa.and_(self._among(session, found), col(CopyRow.state) == CopyState.PENDING.value)
        if copies.update(session, where, state=CopyState.RUNNING.value, **tried) < len(found):
            # Somebody settled one meanwhile: what is sent is what is marked.
            mine = sa.and_(self._among(session, found), col(CopyRow.state) == CopyState.RUNNING.value)
            marked = {copy.copy_no for copy in copies.read(session, _Number, mine)}
            found = {number: capture for number, capture in found.items() if number in marked}
        items = {number: capture.item(number) for number, capture in found.items()}
        return sent._replace(items=items, before={copy.copy_no: copy for copy in going}, owners=owners)

    def _going_singly(self, session: Session, work: Work, some: Sequence[Going]) -> set[int]:
        """The numbers of those that go, each decided by itself; the others are marked as what the decision says."""
        plain, given = going_now(session, work, some, self._now)
        going = {copy.copy_no for copy in some if copy.ref in plain}
        if others := [copy.copy_no for copy in some if copy.ref not in plain]:
            asked = [copy for copy in self._locked(session, others) if copy.state == CopyState.PENDING]
            going.update(copy.copy_no for copy in sort_out(session, asked, redecide(given)))
        return going

    def put_off(self, numbers: Collection[int]) -> list[int]:
        """Let copies that were marked and not sent be as they were before; returns them in their order."""
        if numbers:
            with self._parts.transactions(self._tenant_id) as session:
                mine = sa.and_(self._among(session, numbers), col(CopyRow.state) == CopyState.RUNNING.value)
                copies.update(session, mine, state=CopyState.PENDING.value, attempts=col(CopyRow.attempts) - 1)
        return sorted(numbers)

    def answered(self, name: str, sent: Sent, receipts: Sequence[Receipt]) -> None:
        """Keep what the store answered until `record` writes it down."""
        with self._keeping:
            self._answers.setdefault(name, []).append((sent, receipts))

    def record(self, name: str) -> None:
        """Write down what the store answered since: one entry of the record, one statement for all that ended alike."""
        with self._keeping:
            answers = self._answers.pop(name, [])
        receipts = [receipt for _, some in answers for receipt in some]
        if not receipts:
            return
        # One instant for all that the store answered at once.
        finished = self._parts.instant(self._now, *(sent.at for sent, _ in answers), *{one.at for one in receipts})
        with bulk.without_collector():
            ends: dict[_End, list[int]] = {}
            for sent, some in answers:
                self._sort_ends(sent, some, ends)
            body = _receipts(self._owner, ends)
            with self._parts.transactions(self._tenant_id) as session:
                at = self._parts.instant(self._now)
                entry_id = self._parts.record.announce(session, self._tenant_id, Kind.COPY_ERASED, body, at)
                for end, numbers in ends.items():
                    copies.update(
                        session, self._among(session, numbers), method=end.method, detail=end.detail, level=end.level,
                        state=end.state, finished_at=finished, verified_at=None, evidence=entry_id,
                    )  # fmt: skip
        for end, numbers in ends.items():
            if end.state in GONE:
                self.treated[name].update(numbers)

    def _sort_ends(self, sent: Sent, receipts: Sequence[Receipt], ends: dict[_End, list[int]]) -> None:
        """Sort the copies by how they ended; most of a batch end alike, one after another."""
        last: tuple[Receipt, Going] | None = None
        numbers: list[int] = []
        for receipt in receipts:
            number = int(receipt.copy_id)
            before = sent.before[number]
            if last is None or not _is_alike(receipt, before, *last):
                tried = before.attempts + 1
                state = _ENDS.get(receipt.outcome) or end_of_try(tried, self._parts, CopyState.FAILED)
                level = None if receipt.level is None else receipt.level.value
                end = _End(_method(before, receipt), receipt.detail, level, state.value)
                numbers, last = ends.setdefault(end, []), (receipt, before)
            numbers.append(number)

    def _among(self, session: Session, numbers: Collection[int]) -> sa.ColumnElement[bool]:
        return copies.among(session, self._tenant_id, self._owner, numbers)

    def _locked(self, session: Session, numbers: Sequence[int]) -> list[CopyRow]:
        found: list[CopyRow] = []
        for start in range(0, len(numbers), copies.CHUNK):
            where = self._among(session, numbers[start : start + copies.CHUNK])
            found += session.exec(select(CopyRow).where(where).order_by(col(CopyRow.copy_no)).with_for_update())
        return found


def _is_alike(one: Receipt, before: Going, other: Receipt, before_other: Going) -> bool:
    return (
        one.outcome is other.outcome
        and one.level is other.level
        and one.method == other.method
        and one.detail == other.detail
        and before.method == before_other.method
        and before.attempts == before_other.attempts
    )


def _receipts(owner: str, ends: Mapping[_End, Sequence[int]]) -> bytes:
    """The receipts as canonical JSON (RFC 8785), by copy: names and states are of ours, levels too."""
    lines: list[tuple[int, str]] = []
    for end, numbers in ends.items():
        tail = canonical.dumps({"level": end.level, "state": end.state}).decode()[1:]
        lines += [(number, tail) for number in numbers]
    lines.sort()
    copied = ",".join([f'{{"copy":{number},{tail}' for number, tail in lines])
    return b'{"copies":[' + copied.encode() + b"]," + canonical.dumps({"owner": owner})[1:]


def _method(before: Going, receipt: Receipt) -> str:
    """How it was erased; a copy that has a successor goes on naming it."""
    method = receipt.method
    if receipt.outcome is Outcome.ALREADY_ABSENT and before.attempts:
        method = f"{method}; {MAYBE_OURS}"
    if before.method is None or not before.method.startswith(ANEW):
        return method
    return f"{before.method.partition(';')[0]}; {method}"
