"""The background thread that brings spooled records to the server.

Guarantees at-least-once: an entry leaves the disk only after the server said it has it, or after it was parked or
refused into a file of its own. The same bytes under the same id are sent until then, so a lost answer stores
nothing twice. It keeps order within a recorder except for parked entries. It never touches the caller's path.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from muniment.delivery import (
    AGAIN,
    DONE,
    BatchAnswer,
    Judged,
    Verdict,
    backoff_seconds,
    judge,
    problem_type,
)
from muniment.errors import SpoolError, SpoolLocked, TransportError
from muniment.held import Parked, Refused, entry_id, is_about
from muniment.receipts import ReceiptFile
from muniment.spool import Record, Spool
from muniment.transport import Answer, Transport

log = logging.getLogger("muniment")

PARKED = "parked"
REFUSED = "refused/entries.ndjson"
"""Where in a spool folder the entries lie that the server did not take."""
_SUPPRESSED = (
    "what was said by or about a person whose erasure is in force is not stored; if the person is back, open a new "
    "incarnation: POST /v1/subjects:reopen"
)
"""Nothing is wrong then, and somebody who looks for the missing words must be able to find why."""

ENTRIES_PATH = "/v1/record/entries"
MAX_BATCH_ENTRIES = 1000
MAX_BATCH_BYTES = 4 << 20
_OK = 200
_TOO_LARGE = 413
_OURS = re.compile(r"(https?://[^/]+)?/problems/")
# The server read the batch and will not have it: one of its entries is at fault, so find out which.
_BATCH_AT_FAULT = frozenset({400, 413, 422})
_IDLE_BEFORE_TRIM_SECONDS = 1.0
_ADOPT_SECONDS = 30.0


@dataclass(slots=True)
class _Queue:
    """A spool and what was read from it and is not settled yet."""

    spool: Spool
    batch: list[Record] = field(default_factory=list)
    last_seq: int = 0
    is_own: bool = True


class OncePerKind:
    """Counts what goes wrong by kind and logs the first of each."""

    def __init__(self) -> None:
        """Start at nothing."""
        self.counts: Counter[str] = Counter()

    def note(self, kind: str, message: str, *, level: int = logging.ERROR) -> None:
        """Count one; `message` must hold no content."""
        self.counts[kind] += 1
        if self.counts[kind] == 1:
            log.log(level, "%s: %s (further ones are only counted)", kind, message)


class Shipper:
    """Ships one spool, and those that forked children left in its folder."""

    def __init__(
        self,
        spool: Spool,
        transport: Transport,
        parked: Parked,
        refused: Refused,
        *,
        linger_seconds: float,
        park_retry_seconds: float,
        before_turn: Callable[[], None],
        on_receipt: Callable[[Any], None] | None,
        receipts: ReceiptFile | None,
        adopts: bool,
    ) -> None:
        """Take what to ship and where to; `start` begins."""
        self._own = _Queue(spool)
        self._adopted: list[_Queue] = []
        self._transport = transport
        self._parked = parked
        self._refused = refused
        self._linger = linger_seconds
        self._park_retry = park_retry_seconds
        self._before_turn = before_turn
        self._on_receipt = on_receipt
        self._receipts = receipts
        self._adopts = adopts
        self.counts: Counter[Verdict] = Counter()
        self.faults = OncePerKind()
        self._notices = OncePerKind()
        self._failures = 0
        self._failed = False
        self._not_before = 0.0
        self._parked_due = 0.0
        self._adopt_due = 0.0
        self._idle_since: float | None = None
        self._asked = 0
        self._answered = 0
        self._target = 0
        self._stop = False
        self._wake = threading.Event()
        self._progress = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="muniment-shipper", daemon=True)
        spool.on_rotate = self._wake.set

    def start(self) -> None:
        """Begin shipping."""
        self._thread.start()

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until what is spooled now is settled and what is parked was tried; False if time ran out first."""
        target = self._own.spool.last_seq
        deadline = time.monotonic() + timeout_seconds
        with self._progress:
            self._asked += 1
            self._target = target
            asked = self._asked
            self._wake.set()
            while self._answered < asked or self._own.spool.acknowledged < target:
                left = deadline - time.monotonic()
                if left <= 0 or not self._thread.is_alive():
                    return False
                self._progress.wait(min(left, 0.5))
        return True

    def stop(self, timeout_seconds: float) -> bool:
        """End after the request under way, which closes the spools; False if that takes longer."""
        self._stop = True
        self._wake.set()
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    # ---- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop:
            try:
                moved = self._turn()
            except Exception as error:
                self.faults.note(f"shipper.{type(error).__name__}", "shipping failed and is tried again")
                self._fail(None)
                moved = False
            with self._progress:
                self._progress.notify_all()
            if moved or self._stop:
                continue
            wait = max(self._linger, self._not_before - time.monotonic())
            self._wake.wait(wait)
            self._wake.clear()
        for queue in (self._own, *self._adopted):
            queue.spool.close()
        self._transport.close()

    def _turn(self) -> bool:
        """Do one round; True if something was shipped and there may be more."""
        self._own.spool.prepare()
        if time.monotonic() < self._not_before:
            return False
        with self._progress:
            asked, target = self._asked, self._target
        wanted = asked > self._answered
        self._failed = False
        self._before_turn()
        self._adopt()
        moved = False
        for queue in [self._own, *self._adopted]:
            moved |= not self._failed and self._ship(queue)
        if not self._failed and not moved:
            self._tidy(at_once=wanted)
        if not self._failed and (not moved or self._own.spool.acknowledged >= target):
            if wanted:
                self._own.spool.trim()
            self._retry_parked(at_once=wanted)
            if not self._failed:
                with self._progress:
                    self._answered = max(self._answered, asked)
        return moved and not self._failed

    def _ship(self, queue: _Queue) -> bool:
        if not queue.batch:
            queue.batch = queue.spool.read(MAX_BATCH_ENTRIES, MAX_BATCH_BYTES)
            if not queue.batch:
                return False
            queue.last_seq = queue.batch[-1].seq
        judged = self._post(queue.batch)
        again = []
        for record, each in zip(queue.batch, judged, strict=True):
            if not self._settled(queue, record, each):
                again.append(record)
        queue.spool.settle(len(queue.batch) - len(again))
        queue.batch = again
        if again:
            if not self._failed:
                self._fail(None)
            return False
        queue.spool.acknowledge(queue.last_seq)
        self._idle_since = None
        return True

    def _settled(self, queue: _Queue, record: Record, judged: Judged) -> bool:
        if judged.verdict in DONE:
            self.counts[judged.verdict] += 1
            if judged.verdict is Verdict.SUPPRESSED or judged.partly:
                self._notices.note("suppressed", _SUPPRESSED, level=logging.WARNING)
            return True
        if judged.verdict is Verdict.AGAIN:
            return False
        kind = problem_type(judged.problem)
        if judged.verdict is Verdict.PARK:
            self.faults.note(f"parked.{kind}", "entries wait until their class or kind exists, or the record is mended")
            kept = self._parked.add(record.seq, record.payload)
        else:
            self.faults.note(f"refused.{kind}", "entries were refused and lie in the folder refused/")
            kept = self._refused.add(judged.problem, record.payload)
        self.counts[judged.verdict] += 1
        if not kept:
            self.faults.note("held.full", "refused entries are dropped and counted: no room to keep them")
            queue.spool.count_lost()
        return True

    def _post(self, records: Sequence[Record]) -> list[Judged]:
        """Send one batch; on a refusal of the whole, find the entries at fault by halving."""
        body = b'{"entries":[' + b",".join(record.payload for record in records) + b"]}"
        try:
            answer = self._transport.request("POST", ENTRIES_PATH, body, {"Content-Type": "application/json"})
        except TransportError as error:
            self.faults.note("server.no_answer", error.reason)
            self._fail(None)
            return [AGAIN] * len(records)
        if answer.status == _OK:
            return self._read_answer(records, answer)
        if answer.status in _BATCH_AT_FAULT:
            self._failures = 0
            if len(records) == 1:
                return [self._refusal_of(answer)]
            middle = len(records) // 2
            first = self._post(records[:middle])
            if self._failed:
                return [*first, *[AGAIN] * (len(records) - middle)]
            return [*first, *self._post(records[middle:])]
        self.faults.note(f"server.{answer.status}", "the server does not take entries; they are kept")
        self._fail(answer.retry_after)
        return [AGAIN] * len(records)

    def _refusal_of(self, answer: Answer) -> Judged:
        """Judge an entry that was refused alone: for good by the server itself or for its size, else sent again."""
        problem = _problem_of(answer)
        if answer.status == _TOO_LARGE or (isinstance(problem, dict) and _OURS.match(str(problem.get("type")))):
            return Judged(Verdict.REFUSE, problem)
        # A proxy on the way, or another server at this address: it says nothing about the entry.
        self.faults.note(f"server.{answer.status}", "who answers is not the service; entries are kept")
        self._fail(answer.retry_after)
        return AGAIN

    def _read_answer(self, records: Sequence[Record], answer: Answer) -> list[Judged]:
        try:
            parsed = msgspec.json.decode(answer.body, type=BatchAnswer)
            judged = judge([entry_id(record.payload) for record in records], parsed)
        except msgspec.DecodeError:
            self.faults.note("server.unreadable", "the answer is not one of ours; entries are kept")
            self._fail(answer.retry_after)
            return [AGAIN] * len(records)
        self._failures = 0
        if self._receipts is not None:
            try:
                self._receipts.keep(parsed)
            except OSError as error:
                # The entries are safe where they are: only the proof that they were acknowledged is not kept.
                self.faults.note("receipts", f"a receipt could not be kept ({type(error).__name__})")
        receipt = msgspec.json.decode(parsed.receipt)
        if self._on_receipt is not None and receipt is not None:
            try:
                self._on_receipt(receipt)
            except Exception as error:
                self.faults.note("on_receipt", type(error).__name__)
        return judged

    def _fail(self, retry_after: float | None) -> None:
        self._failed = True
        self._failures += 1
        self._not_before = time.monotonic() + backoff_seconds(self._failures, retry_after)

    def _retry_parked(self, *, at_once: bool) -> None:
        """Send parked entries again when it is time."""
        now = time.monotonic()
        if not len(self._parked) or (now < self._parked_due and not at_once):
            return
        self._parked_due = now + self._park_retry
        waiting = [Record(item.seq, item.payload) for item in self._parked.entries()]
        gone: set[bytes] = set()
        while waiting and not self._failed:
            batch = _fitting(waiting)
            waiting = waiting[len(batch) :]
            for record, each in zip(batch, self._post(batch), strict=True):
                if each.verdict is Verdict.PARK or not self._settled(self._own, record, each):
                    continue
                gone.add(record.payload)
        if gone:
            self._parked.keep_only(lambda item: item.payload not in gone)

    def _tidy(self, *, at_once: bool) -> None:
        """Give up drained files, at once for a flush and otherwise after a pause, so that a busy agent keeps its."""
        now = time.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        if at_once or now - self._idle_since >= _IDLE_BEFORE_TRIM_SECONDS:
            self._own.spool.trim()
        for queue in list(self._adopted):
            folder = queue.spool.folder
            queue.spool.trim()
            queue.spool.close()
            self._adopted.remove(queue)
            # What the child's server refused moves to ours; without room for it the folder stays and is tried later.
            if self._parked.absorb(folder / PARKED) and self._refused.absorb(folder / REFUSED):
                shutil.rmtree(folder, ignore_errors=True)

    def _adopt(self) -> None:
        """Take over the spools of forked children that have ended."""
        now = time.monotonic()
        if not self._adopts or now < self._adopt_due:
            return
        self._adopt_due = now + _ADOPT_SECONDS
        held = {queue.spool.folder for queue in self._adopted}
        for folder in sorted(child_folders(self._own.spool.folder)):
            if folder in held:
                continue
            try:
                self._adopted.append(_Queue(Spool(folder), is_own=False))
            except SpoolLocked:
                continue  # the child lives
            except (SpoolError, OSError) as error:
                self.faults.note("adopt", type(error).__name__)

    def purge_held(self, subject: str) -> int:
        """Remove what is parked or refused and names `subject`; return how many entries went. Raises: OSError."""
        return self._parked.keep_only(lambda item: not is_about(item.payload, subject)) + self._refused.purge(subject)


def child_folders(folder: Path) -> list[Path]:
    """Return the spool folders that forked children made inside `folder`."""
    return [path for path in folder.glob("child-*") if path.is_dir()]


def new_child_folder(folder: Path) -> Path:
    """Return the path of a folder for this forked process."""
    return folder / f"child-{os.getpid()}-{os.urandom(4).hex()}"


def _fitting(records: list[Record]) -> list[Record]:
    size = 0
    for count, record in enumerate(records[:MAX_BATCH_ENTRIES]):
        size += len(record.payload)
        if size > MAX_BATCH_BYTES and count:
            return records[:count]
    return records[:MAX_BATCH_ENTRIES]


def _problem_of(answer: Answer) -> object:
    try:
        return msgspec.json.decode(answer.body)
    except msgspec.DecodeError:
        return {"type": f"http-{answer.status}", "status": answer.status}
