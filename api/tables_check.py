"""Whether the tables that the record is written by say what it says: head, streams, recorders, objects, announcements.

Guarantees: reads only. The record is the truth: a row of these tables that was changed, added or taken away is named by
its table, where a batch, a checkpoint or another row proves what it should be. What came while it reads is left out:
what has to agree is read by one statement, which both databases answer as of one instant.

Not proven by anything, and so believed: numbers of a recorder that were taken for suppressed, which leave no trace in
the record on purpose; an object that is to be asked for later than its lock ends, which the next pass of expiry sets
right by what the store says; who leads, which is no promise to anybody.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlmodel import Session

from audit.findings import Findings, Verdict
from audit.reader import Reader
from ledger.batches import Batch, batch_key, decode_batch
from ledger.entry import Kind, header_hash
from ledger.errors import LedgerError, MalformedBatch, ObjectMissing
from ledger.head import checkpoint_key
from ledger.index import IndexLine
from ledger.models import microseconds
from ledger.payload_names import is_ours, lock_end_of
from ledger.payload_rows import FILLED
from ledger.ranges import Range, Ranges

_ADVICE = "the record stands; muniment rebuild makes the table anew"
_STATE = (
    "log_id", "origin", "size", "batch_first", "batch_count", "batch_digest", "previous", "fence", "checkpoint_size",
    "checkpoint_digest",
)  # fmt: skip
_OF_BATCH = ("size", "batch_count", "batch_digest", "previous", "fence")
_STATE_ROW = sa.text(f"SELECT {', '.join(_STATE)} FROM log_state WHERE tenant_id = :t")  # noqa: S608 (names of ours)
_STREAMS = sa.text("SELECT stream_id, stream_no, position FROM log_stream WHERE tenant_id = :t")
_STREAM = sa.text(
    "SELECT s.position, (SELECT MAX(e.position) FROM entry e WHERE e.tenant_id = :t AND e.stream_no = s.stream_no "
    "AND e.idx >= :end) FROM log_stream s WHERE s.tenant_id = :t AND s.stream_id = :s"
)
_BEATEN = sa.text("SELECT DISTINCT stream_no FROM entry WHERE tenant_id = :t AND idx >= :end AND kind = :beat")
_RANGES = sa.text("SELECT recorder_id, first, last FROM recorder_range WHERE tenant_id = :t ORDER BY first")
_BEATS = sa.text("SELECT recorder_id, stream_no FROM recorder_beat WHERE tenant_id = :t")
_OBJECTS = sa.text(
    "SELECT name, batch_first, until, deleted_at FROM payload_object "
    "WHERE tenant_id = :t AND batch_first >= :first AND batch_first < :end"
)
_ARE_FILLED = sa.text("SELECT ended FROM payload_walk WHERE tenant_id = :t AND what = :what")
_ANNOUNCED = sa.text(
    "SELECT idx, n, entry_id, kind FROM outbox WHERE tenant_id = :t AND idx >= :first AND idx < :end ORDER BY idx, n"
)
_OPEN = sa.text(
    "SELECT n FROM outbox WHERE tenant_id = :t AND (idx IS NULL OR (idx >= :end AND idx < "
    "(SELECT size FROM log_state WHERE tenant_id = :t)))"
)
_COUNTED = sa.text(
    "SELECT outbox_counter, (SELECT MAX(n) FROM outbox WHERE tenant_id = :t), "
    "(SELECT MAX(last) FROM recorder_range WHERE tenant_id = :t AND recorder_id = :own) "
    "FROM log_state WHERE tenant_id = :t"
)


class PartPlace(msgspec.Struct, frozen=True):
    """The object that a part of a header lies in."""

    obj: str


class SeenHeader(msgspec.Struct, frozen=True, rename={"data_class": "class"}):
    """What tables repeat of a header."""

    id: str
    kind: str
    data_class: str
    at: str
    received: str
    position: int
    stream: str
    recorder: str | None
    seq: int | None
    parts: tuple[PartPlace, ...]


@dataclass(slots=True, kw_only=True)
class TablesCheck:
    """Follows the batches of one log in their order, then compares the tables; findings go to `found`."""

    tenant_id: int
    log_id: str
    bucket: Reader
    found: Findings
    _next: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    """Of each stream its next position and, where a line told it, its number."""
    _numbers: dict[str, Ranges] = field(default_factory=dict)
    _beats: set[tuple[str, int]] = field(default_factory=set)
    _end: int = 0
    _is_whole: bool = True

    def passed_over(self) -> None:
        """Note that a batch could not be read: what only all of them tell is not compared."""
        self._is_whole = False

    def batch(
        self, session: Session, batch: Batch, headers: Sequence[SeenHeader], lines: Sequence[IndexLine] | None
    ) -> None:  # fmt: skip
        """Compare what rows say of this batch, and remember what others should say."""
        self._end = batch.end
        for number, header in enumerate(headers):
            stream_no = None if lines is None else lines[number].stream_no
            self._next[header.stream] = (header.position + 1, stream_no)
            if header.recorder is None:
                continue
            if header.seq is not None:
                self._count(header.recorder, header.seq, header.id, batch.first + number)
            if header.kind == Kind.RECORDER_HEARTBEAT and stream_no is not None:
                self._beats.add((header.recorder, stream_no))
        span = {"t": self.tenant_id, "first": batch.first, "end": batch.end}
        self._announced(session, headers, span)
        self._objects(session, headers, span)

    def end(self, session: Session) -> None:
        """Compare what stands in one row for many batches."""
        state = session.execute(_STATE_ROW, {"t": self.tenant_id}).mappings().first()
        if state is None:
            self.found.add(Verdict.MISSING, f"the database knows no head of this log; {_ADVICE}", object="log_state")
            return
        wrong = list(self._wrong_in(dict(state)))
        if wrong:
            detail = f"the head in the database says another {', '.join(wrong)} than the record; {_ADVICE}"
            self.found.add(Verdict.ALTERED, detail, object="log_state")
        self._ranges(session)
        self._numbering(session)
        if self._is_whole:
            self._streams(session)
            self._heartbeats(session)

    def _count(self, recorder: str, seq: int, entry_id: str, idx: int) -> None:
        numbers = self._numbers.get(recorder)
        if numbers is None:
            numbers = self._numbers[recorder] = Ranges()
        if not numbers.add(seq) and recorder == self.log_id:
            detail = f"the announcement {seq} of the service stands in the record twice"
            self.found.add(Verdict.ALTERED, detail, object="outbox", entry=entry_id, index=idx)

    def _wrong_in(self, state: dict[str, Any]) -> Iterator[str]:
        if state["log_id"] != self.log_id:
            yield "log_id"
        if state["origin"] != f"muniment/{self.log_id}":
            yield "origin"
        yield from self._wrong_about_batch(state)
        if state["checkpoint_size"]:
            try:
                note = self.bucket.get(f"{self.log_id}/{checkpoint_key(state['checkpoint_size'])}")
            except (LedgerError, ValueError):
                yield "checkpoint_size"
            else:
                if sha256(note).digest() != state["checkpoint_digest"]:
                    yield "checkpoint_digest"

    def _wrong_about_batch(self, state: dict[str, Any]) -> Iterator[str]:
        if state["batch_first"] is None:
            yield from ("size",) if state["size"] else ()
            return
        try:
            data = self.bucket.get(f"{self.log_id}/{batch_key(state['batch_first'])}")
            batch = decode_batch(data)
        except ObjectMissing:
            yield "batch_first"
            return
        except (LedgerError, MalformedBatch):
            return  # the record's own check named it, or it cannot be asked
        said = (batch.end, batch.count, sha256(data).digest(), header_hash(batch.headers[-1]), batch.fence)
        yield from (name for name, value in zip(_OF_BATCH, said, strict=True) if state[name] != value)

    def _streams(self, session: Session) -> None:
        rows = {row[0]: (row[1], row[2]) for row in session.execute(_STREAMS, {"t": self.tenant_id}).all()}
        for stream_id, (position, stream_no) in self._next.items():
            row = rows.pop(stream_id, None)
            if row is None:
                detail = f"no row tells where the stream {stream_id} goes on; {_ADVICE}"
                self.found.add(Verdict.MISSING, detail, object="log_stream")
            elif stream_no not in (None, row[0]) or (row[1] != position and not self._went_on(session, stream_id)):
                detail = f"the row of the stream {stream_id} says another place or number than the record; {_ADVICE}"
                self.found.add(Verdict.ALTERED, detail, object="log_stream")
        for stream_id in rows:
            if not self._went_on(session, stream_id):
                detail = f"a row tells of a stream {stream_id} that the record does not know; {_ADVICE}"
                self.found.add(Verdict.ALTERED, detail, object="log_stream")

    def _went_on(self, session: Session, stream_id: str) -> bool:
        """Whether entries that came meanwhile account for where a stream stands."""
        row = session.execute(_STREAM, {"t": self.tenant_id, "end": self._end, "s": stream_id}).first()
        return row is not None and row[1] is not None and row[0] == row[1] + 1

    def _ranges(self, session: Session) -> None:
        held: dict[str, tuple[list[int], list[int]]] = {}
        for recorder, first, last in session.execute(_RANGES, {"t": self.tenant_id}):
            firsts, reached = held.setdefault(recorder, ([], []))
            firsts.append(first)
            # The furthest end of a row that begins here or before: rows that overlap may lie behind each other.
            reached.append(max(last, reached[-1]) if reached else last)
        for recorder, numbers in self._numbers.items():
            firsts, reached = held.get(recorder, ([], []))
            if all((at := bisect_right(firsts, first)) and last <= reached[at - 1] for first, last in numbers):
                continue
            detail = f"numbers of the recorder {recorder} that are in the record are not in the table; {_ADVICE}"
            self.found.add(Verdict.ALTERED, detail, object="recorder_range")

    def _heartbeats(self, session: Session) -> None:
        rows = {(row[0], row[1]) for row in session.execute(_BEATS, {"t": self.tenant_id})}
        asked = {"t": self.tenant_id, "end": self._end, "beat": Kind.RECORDER_HEARTBEAT.value}
        later = set(session.scalars(_BEATEN, asked)) if rows - self._beats else set()
        for recorder, _ in self._beats - rows:
            detail = f"no row tells where the heartbeats of {recorder} stand; {_ADVICE}"
            self.found.add(Verdict.MISSING, detail, object="recorder_beat")
        for recorder, stream_no in rows - self._beats:
            if stream_no not in later:
                detail = f"a row tells of heartbeats of {recorder} that the record does not have; {_ADVICE}"
                self.found.add(Verdict.ALTERED, detail, object="recorder_beat")

    def _objects(self, session: Session, headers: Sequence[SeenHeader], span: dict[str, int]) -> None:
        wanted = {part.obj for header in headers for part in header.parts if is_ours(part.obj)}
        rows = [tuple(row) for row in session.execute(_OBJECTS, span)]
        if not rows and not session.scalar(_ARE_FILLED, {"t": self.tenant_id, "what": FILLED}):
            return  # batches from before objects had rows get theirs one after the other
        first = span["first"]
        for name in sorted(wanted - {name for name, batch_first, _, _ in rows if batch_first == first}):
            detail = f"no row tells of the object {name}, which is never deleted without one; {_ADVICE}"
            self.found.add(Verdict.MISSING, detail, object="payload_object", index=first)
        for name, batch_first, until, deleted_at in rows:
            end = lock_end_of(name) if name in wanted else None
            if name not in wanted or batch_first != first:
                detail = f"a row says that this batch names {name}, which it does not; {_ADVICE}"
            elif end is not None and (until is None or until < microseconds(end)):
                detail = f"a row says that the lock of {name} ends earlier than its name says; {_ADVICE}"
            elif deleted_at is not None and self._is_there(name):
                detail = f"a row says that {name} was deleted, and it is there; {_ADVICE}"
            else:
                continue
            self.found.add(Verdict.ALTERED, detail, object="payload_object", index=first)

    def _is_there(self, name: str) -> bool:
        try:
            self.bucket.head(f"{self.log_id}/{name}")
        except LedgerError:
            return False
        return True

    def _announced(self, session: Session, headers: Sequence[SeenHeader], span: dict[str, int]) -> None:
        for idx, number, entry_id, kind in session.execute(_ANNOUNCED, span):
            header = headers[idx - span["first"]]
            said = header.seq if header.recorder == self.log_id else number
            if (header.id, header.kind, said) != (entry_id, kind, number):
                detail = f"the announcement {number} is said to stand here, where the record has another entry"
                self.found.add(Verdict.ALTERED, detail, object="outbox", entry=header.id, index=idx)

    def _numbering(self, session: Session) -> None:
        """Each number up to the counter stands in the record, or waits in the outbox."""
        counter, in_rows, in_record = session.execute(_COUNTED, {"t": self.tenant_id, "own": self.log_id}).one()
        newest = max(in_rows or 0, in_record or 0)
        waiting = set(session.scalars(_OPEN, {"t": self.tenant_id, "end": self._end}))
        if newest and counter != newest:
            detail = f"the counter of announcements stands at {counter}, the newest one is {newest}"
            self.found.add(Verdict.ALTERED, detail, object="log_state")
        own = self._numbers.get(self.log_id)
        if own is None or not self._is_whole:
            return
        for first, last in _between(list(own), newest):
            # A hole that is larger than what waits has a first number that does not, whatever somebody wrote there.
            lost = next((number for number in range(first, last + 1) if number not in waiting), None)
            if lost is not None:
                detail = f"announcements from number {lost} on, up to {last}, are not in the record nor on their way"
                self.found.add(Verdict.MISSING, detail, object="outbox")


def _between(ranges: Sequence[Range], end: int) -> Iterator[tuple[int, int]]:
    """The holes between ranges, and the one behind them up to `end`."""
    for number, (_, last) in enumerate(ranges, start=1):
        following = ranges[number][0] - 1 if number < len(ranges) else end
        if following > last:
            yield last + 1, following
