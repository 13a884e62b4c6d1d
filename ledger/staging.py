"""How a process without the lease hands sealed entries to the one that has it, and learns what became of them.

 1. The process stores the payload objects. Crash: orphan ciphertext; the retry makes another.
 2. It commits one `staged` row (drafts without ciphertext, the places of their parts) and a knock. Crash: the entries
    are placed although nobody waits; the retry answers `duplicate`.
 3. The lease holder takes rows in the order of their ids into its next flush. Crash: the next holder does, and what is
    in a batch already is answered `duplicate`.
 4. The answer is written in the transaction of the index, and the drafts are emptied. Crash before: as in 3.
 5. The process reads its answer and deletes the row; one that nobody reads is deleted by a later flush.

Guarantees: a row is content-free; staging promises nothing to anybody, only an answer does. A row bears a keyed digest,
over its drafts and then over its answer: nothing is sequenced, and no answer believed, that somebody wrote who has the
database alone. Not here: the lease, the order of writes inside a flush (`ledger.flush`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import msgspec
import sqlalchemy as sa
from msgspec import structs
from sqlmodel import Session, col

from ledger.draft import Appended, Draft
from ledger.entry import Part, uuid7
from ledger.errors import LedgerError, LogForked, LogRolledBack, RecordDamaged
from ledger.models import LogKnock, StagedRow
from ledger.placing import Stored
from ledger.row_digests import RowDigests

STAGED = "staged"
CHECKPOINT = "checkpoint"
KEPT = timedelta(minutes=1)
"""How long an answer waits for a process that may have died."""

_DRAFTS, _ANSWER = "staged-drafts", "staged-answer"
_ROWS = 64
_KNOCKS = 500
TICK_SECONDS = 0.05
_AFTER_FAILURE_SECONDS = 0.5

_Wire = list[tuple[Draft, tuple[Part, ...]]]


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    """Append-only: new fields at the end, with a default."""

    appended: Appended | None
    refused: str | None = None
    unreadable: bool = False
    damaged: Literal["altered", "missing", "hidden"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedCall:
    """One row: drafts whose ciphertext is empty because it lies in the bucket, at these places."""

    staged_id: str
    drafts: Sequence[Draft]
    stored: Stored


def put(
    session: Session,
    tenant_id: int,
    drafts: Sequence[Draft],
    stored: Mapping[int, Part],
    now: datetime,
    *,
    digests: RowDigests,
) -> str:
    """Write drafts whose parts are all stored, and knock; returns the row's id."""
    wire: _Wire = [
        (
            structs.replace(
                draft, parts=tuple(structs.replace(part, ciphertext=b"") for part in draft.parts), stem=None
            ),
            tuple(stored[id(part)] for part in draft.parts),
        )
        for draft in drafts
    ]
    staged_id = uuid7(now)
    row = StagedRow(
        tenant_id=tenant_id, staged_id=staged_id, entries=len(drafts), drafts=msgspec.msgpack.encode(wire), at=now
    )
    row.row_digest = digests.of(_DRAFTS, *_said_by(row))
    session.add(row)
    knock(session, tenant_id, STAGED, now)
    return staged_id


def knock(session: Session, tenant_id: int, wants: str, now: datetime) -> None:
    """Tell the lease holder, once this is committed, that a log has something to do."""
    session.add(LogKnock(knock_id=uuid7(now), log_tenant=tenant_id, wants=wants))


def knocks(session: Session) -> list[LogKnock]:
    """Return the oldest knocks that nobody has answered, of every log before more of one that is not served."""
    place = sa.func.row_number().over(partition_by=col(LogKnock.log_tenant), order_by=col(LogKnock.knock_id))
    numbered = sa.select(LogKnock, place.label("place")).subquery()
    knock = sa.orm.aliased(LogKnock, numbered)
    query = sa.select(knock).order_by(numbered.c.place, numbered.c.knock_id).limit(_KNOCKS)
    return list(session.scalars(query))


def forget_knocks(session: Session, knock_ids: Sequence[str]) -> None:
    """Delete knocks whose work is done."""
    session.execute(sa.delete(LogKnock).where(col(LogKnock.knock_id).in_(knock_ids)))


def waiting(
    session: Session, tenant_id: int, *, entries: int, digests: RowDigests
) -> tuple[list[StagedCall], list[str]]:
    """Return what waits to be placed, oldest first, about `entries` of them and always at least one row.

    And the ids of rows that no process of ours wrote as they stand, or that this program cannot read: they must stop
    nobody else.
    """
    unanswered = (col(StagedRow.tenant_id) == tenant_id) & col(StagedRow.answer).is_(None)
    query = sa.select(StagedRow).where(unanswered).order_by(col(StagedRow.staged_id)).limit(_ROWS)
    found: list[StagedCall] = []
    unreadable: list[str] = []
    count = 0
    for row in session.scalars(query):
        count += row.entries
        if found and count > entries:
            break
        try:
            found.append(_decode(row, digests))
        except StagedUnreadable:
            unreadable.append(row.staged_id)
    return found, unreadable


def is_waiting(session: Session, tenant_id: int, staged_id: str) -> bool:
    """Return whether a row is still to be placed."""
    this = (col(StagedRow.tenant_id) == tenant_id) & (col(StagedRow.staged_id) == staged_id)
    return session.scalar(sa.select(sa.exists().where(this, col(StagedRow.answer).is_(None)))) is True


def answer(
    session: Session, tenant_id: int, answers: Mapping[str, Appended], now: datetime, *, digests: RowDigests
) -> None:
    """Write what became of staged rows, in the transaction that made it so; drop answers that nobody came for."""
    for staged_id, appended in answers.items():
        _settle(session, tenant_id, staged_id, _Answer(appended=appended), now, digests=digests)
    old = (col(StagedRow.tenant_id) == tenant_id) & (col(StagedRow.answered_at) < now - KEPT)
    session.execute(sa.delete(StagedRow).where(old))


def refuse(
    session: Session,
    tenant_id: int,
    problem: LogForked | LogRolledBack | RecordDamaged,
    now: datetime,
    *,
    digests: RowDigests,
) -> None:
    """Tell everybody who waits why this log takes nothing."""
    refused = _Answer(appended=None, refused=str(problem))
    if isinstance(problem, RecordDamaged):
        refused = _Answer(appended=None, refused=problem.detail, damaged=problem.state)
    unanswered = (col(StagedRow.tenant_id) == tenant_id) & col(StagedRow.answer).is_(None)
    for staged_id in session.scalars(sa.select(col(StagedRow.staged_id)).where(unanswered)):
        _settle(session, tenant_id, staged_id, refused, now, digests=digests)


def refuse_unreadable(
    session: Session, tenant_id: int, staged_ids: Sequence[str], now: datetime, *, digests: RowDigests
) -> None:
    """Tell those who wait for these rows that this program cannot read them."""
    for staged_id in staged_ids:
        _settle(session, tenant_id, staged_id, _Answer(appended=None, unreadable=True), now, digests=digests)


def answer_of(session: Session, tenant_id: int, staged_id: str, *, digests: RowDigests) -> Appended | None:
    """Return what became of a row; None while it waits.

    Raises: LogForked when the log takes nothing any more, RecordDamaged while it is damaged, StagedUnreadable.
    """
    this = (col(StagedRow.tenant_id) == tenant_id) & (col(StagedRow.staged_id) == staged_id)
    row = session.execute(sa.select(col(StagedRow.answer), col(StagedRow.row_digest)).where(this)).one_or_none()
    if row is None or row.answer is None:
        return None
    data = row.answer
    if not digests.fits(row.row_digest, _ANSWER, staged_id, data):
        raise StagedUnreadable(staged_id)
    found = msgspec.msgpack.decode(data, type=_Answer)
    if found.unreadable:
        raise StagedUnreadable(staged_id)
    if found.damaged is not None:
        raise RecordDamaged(found.damaged, found.refused or "")
    if found.appended is None:
        raise LogForked(found.refused or "the log takes nothing any more")
    return found.appended


def forget(session: Session, tenant_id: int, staged_id: str) -> None:
    """Delete a row whose answer was read."""
    this = (col(StagedRow.tenant_id) == tenant_id) & (col(StagedRow.staged_id) == staged_id)
    session.execute(sa.delete(StagedRow).where(this))


def _settle(
    session: Session, tenant_id: int, staged_id: str, settled: _Answer, now: datetime, *, digests: RowDigests
) -> None:
    this = (col(StagedRow.tenant_id) == tenant_id) & (col(StagedRow.staged_id) == staged_id)
    data = msgspec.msgpack.encode(settled)
    digest = digests.of(_ANSWER, staged_id, data)
    values = {"drafts": b"", "answer": data, "answered_at": now, "row_digest": digest}
    session.execute(sa.update(StagedRow).where(this).values(**values))


def _said_by(row: StagedRow) -> tuple[str, str, bytes]:
    return row.staged_id, str(row.entries), row.drafts


def _decode(row: StagedRow, digests: RowDigests) -> StagedCall:
    if not digests.fits(row.row_digest, _DRAFTS, *_said_by(row)):
        raise StagedUnreadable(row.staged_id)
    try:
        wire = msgspec.msgpack.decode(row.drafts, type=_Wire)
        stored = {id(part): place for draft, places in wire for part, place in zip(draft.parts, places, strict=True)}
    except (msgspec.MsgspecError, ValueError) as error:
        raise StagedUnreadable(row.staged_id) from error
    return StagedCall(staged_id=row.staged_id, drafts=[draft for draft, _ in wire], stored=stored)


class StagedUnreadable(LedgerError):
    """A staged row is not of a form this program knows, or not as a process of ours wrote it: nothing in it counts.

    So it is for a minute while processes of two versions run. Whether an answer that is not believed was one nobody
    knows: the same entries again are a duplicate then.
    """

    problem = "unavailable"
    hint = "nothing is acknowledged; send the same again"

    def __init__(self, staged_id: str) -> None:
        """Keep the row's id."""
        super().__init__(f"staged row {staged_id} is not as this version writes it, or was changed in the database")
        self.staged_id = staged_id


class Clerk:
    """The thread that answers knocks while its process holds the lease."""

    def __init__(
        self,
        serve: Callable[[datetime], int],
        clock: Callable[[], datetime],
        *,
        failed: Callable[[Exception], None],
    ) -> None:
        """Take what one round does, the clock, and who is told of a round that failed (it is tried again)."""
        self._serve = serve
        self._clock = clock
        self._failed = failed
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="muniment-clerk", daemon=True)
            self._thread.start()

    def stop(self, *, seconds: float = 10.0) -> None:
        """End the thread after the round it is in."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(seconds)
            self._thread = None

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            try:
                pause = 0.0 if self._serve(self._clock()) else TICK_SECONDS
            except Exception as error:  # noqa: BLE001 - told; a store that is away for a minute must not end the thread
                self._failed(error)
                pause = _AFTER_FAILURE_SECONDS
