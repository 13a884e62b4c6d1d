"""The recorder's spool: a bounded, crash-safe queue of records in a folder.

Guarantees: what `append` returned a number for outlives a `kill -9` of the process; numbers only grow, over
restarts too; damage is reported, never skipped in silence; the folder never holds more than `max_bytes` of
segments, and what did not fit is counted in the folder itself; one process, one spool (flock). A segment is
unlinked as soon as all its records are acknowledged, and `trim` gives up the file in use too, once it is drained:
the spool is a place of personal data. Unlinking does not overwrite disk blocks.

Does not guarantee anything over a power cut for records younger than the kernel's write-back.

Threads may share a spool. A fork may not: the child calls `abandon` and opens a folder of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from muniment.errors import SpoolClosed, SpoolFull, SpoolLocked
from muniment.frames import HEADER_BYTES, MAGIC, Damage, frame_header, frames_from, read_frame, scan
from muniment.segment import DATA_START, Segment
from muniment.spool_state import StateFile

_SEGMENT_NAME = re.compile(r"seg-(\d{20})")
_LOCK_WAIT_SECONDS = 1.0
# The server takes 16 MiB a request; a record must fit one with its envelope.
MAX_RECORD_BYTES = 15 << 20


class Record(NamedTuple):
    """One spooled record and its number."""

    seq: int
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRange:
    """Where in which segment bytes could not be read."""

    segment: str
    damage: Damage


class Spool:
    """A queue on disk; `append` at one end, `read` and `acknowledge` at the other."""

    def __init__(self, folder: Path, *, max_bytes: int = 256 << 20, segment_bytes: int = 4 << 20) -> None:
        """Open or make the folder and recover what it holds.

        Raises: SpoolLocked if another recorder holds it; OSError if it cannot be made.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self.damages: list[DamagedRange] = []
        self.torn_tails = 0
        self._lock_fd = _hold(folder)
        self._max_bytes = max_bytes
        self._segment_bytes = min(segment_bytes, max_bytes // 2)
        self._lock = threading.Lock()
        self._closed = False
        self._refuses = False
        self.on_rotate: Callable[[], object] | None = None
        self._spare: Segment | None = None
        self._active: Segment | None = None
        self._full: deque[Segment] = deque()
        self._read_segment: Segment | None = None
        self._read_offset = DATA_START
        self._state_file = StateFile(folder / "state")
        self._state = self._state_file.load()
        self._next = self._state.next_seq
        self._pending = 0
        self._recover()

    # ---- writing -------------------------------------------------------------------------------------------

    def append(self, payload: bytes, stamp: bytes | None = None) -> int:
        """Return the number the record got; once returned, the record outlives this process.

        `stamp` is a bytes format that takes the number; the result is put in front of the payload.

        Raises: SpoolFull (dropped and counted; the number is used up, so the gap shows), SpoolClosed.
        """
        # A signal handler that records while this thread is inside would wait for itself for ever.
        if not self._lock.acquire(timeout=_LOCK_WAIT_SECONDS):
            raise SpoolFull("busy")
        try:
            if self._closed or self._refuses:
                raise SpoolClosed
            seq = self._next
            self._next = seq + 1
            data = payload if stamp is None else stamp % seq + payload
            needed = HEADER_BYTES + len(data)
            segment = self._active
            if segment is None or segment.end + needed > segment.size:
                segment = self._rotate(seq, needed)
            offset = segment.end
            try:
                segment.write(offset + HEADER_BYTES, data)
                segment.write(offset, frame_header(seq, data))
            except OSError as error:
                raise self._drop("disk") from error
            segment.end = offset + needed
            segment.last_seq = seq
            self._pending += 1
            return seq
        finally:
            self._lock.release()

    def _rotate(self, seq: int, needed: int) -> Segment:
        """Make a segment with room the active one. The lock is held."""
        if needed > MAX_RECORD_BYTES:
            raise self._drop("too_large")
        size = max(self._segment_bytes, DATA_START + needed)
        segment, self._spare = self._spare, None
        if segment is not None and segment.size < size:
            segment.remove()
            segment = None
        if segment is None and self._bytes() + size > self._max_bytes:
            raise self._drop("bound")
        try:
            segment = segment or Segment.create(self.folder / "spare", size)
            segment.start(self.folder / f"seg-{seq:020d}", seq)
        except OSError as error:
            if segment is not None:
                segment.remove()
            raise self._drop("disk") from error
        if self._active is not None:
            self._full.append(self._active)
        self._active = segment
        if self.on_rotate is not None:
            self.on_rotate()
        return segment

    def _drop(self, reason: str) -> SpoolFull:
        self._state = self._state.with_drop(self._next)
        with contextlib.suppress(OSError):  # counted in memory at least, and saved with the next change
            self._state_file.save(self._state)
        return SpoolFull(reason)

    def prepare(self) -> None:
        """Make the next segment ready ahead of need, so that `append` need not; called beside the hot path."""
        with self._lock:
            active = self._active
            is_needed = active is None or active.end * 2 > active.size
            if not (is_needed and self._takes_spare()):
                return
        path = self.folder / "next"
        try:
            segment = Segment.create(path, self._segment_bytes)
        except OSError:
            return  # append meets the same error and counts it
        with self._lock:
            # Meanwhile append may have made one itself, or the spool may be at its bound or closed.
            if self._takes_spare():
                self._spare = segment
                return
        segment.remove()

    def _takes_spare(self) -> bool:
        has_place = self._spare is None and not self._closed
        return has_place and self._bytes() + self._segment_bytes <= self._max_bytes

    # ---- reading -------------------------------------------------------------------------------------------

    def read(self, max_records: int, max_bytes: int) -> list[Record]:
        """Return the next records in order, at least one if there is any, and move on past them.

        One reading thread only. What was read and not acknowledged comes again after a restart.
        """
        records: list[Record] = []
        room = max_bytes
        while len(records) < max_records:
            place = self._place()
            if place is None:
                break
            segment, end = place
            window = segment.read(self._read_offset, min(end - self._read_offset, HEADER_BYTES + room))
            moved = False
            for found in frames_from(window, 0):
                if len(records) == max_records:
                    break
                moved = True
                self._read_offset += HEADER_BYTES + len(found.payload)
                if found.seq > self._state.acknowledged:
                    records.append(Record(found.seq, found.payload))
                    room -= len(found.payload)
            if moved:
                continue
            if records and _claims_more_than(window):
                break
            self._read_past(segment, end, records)
        return records

    def _place(self) -> tuple[Segment, int] | None:
        """Return the segment to read from and its end, or None if everything was read."""
        while True:
            segment = self._read_segment
            with self._lock:
                if segment is None:
                    segment = self._read_segment = self._full[0] if self._full else self._active
                    self._read_offset = DATA_START
                if segment is None or (self._read_offset >= segment.end and segment is self._active):
                    return None
                if self._read_offset < segment.end:
                    return segment, segment.end
            following = self._following(segment)
            if following is None:
                return None  # the last of an earlier run; what is appended next starts a new one
            self._read_segment = following
            self._read_offset = DATA_START

    def _read_past(self, segment: Segment, end: int, records: list[Record]) -> None:
        """Take one record larger than the window, or step over damage and report it."""
        offset = self._read_offset
        data = segment.read(offset, end - offset)
        found = read_frame(data, 0)
        if found is None:
            rest = scan(data)
            length = rest.damages[0].length if rest.damages and rest.frames else end - offset
            self._report(segment, Damage(offset=offset, length=length))
            self._read_offset = offset + length
            return
        self._read_offset = offset + found.end
        if found.seq > self._state.acknowledged:
            records.append(Record(found.seq, found.payload))

    def _following(self, segment: Segment) -> Segment | None:
        with self._lock:
            for index, full in enumerate(self._full):
                if full is segment:
                    return self._full[index + 1] if index + 1 < len(self._full) else self._active
        return None

    def acknowledge(self, seq: int) -> None:
        """Note that every record up to `seq` is in the log, and unlink the segments that hold no other."""
        with self._lock:
            if self._closed or seq <= self._state.acknowledged:
                return
            self._state = self._state.with_acknowledged(seq, self._next)
            self._state_file.save(self._state)
            done = []
            while self._full and self._full[0].last_seq <= seq:
                done.append(self._full.popleft())
        for segment in done:
            if segment is self._read_segment:
                self._read_segment = None
            segment.remove()

    def settle(self, count: int) -> None:
        """Take `count` records off the number still pending."""
        with self._lock:
            self._pending = max(0, self._pending - count)

    def trim(self) -> None:
        """Give up the file in use if it was read to its end, so that no acknowledged byte stays behind.

        Call it only while nothing that was read is unacknowledged. Numbers used up by drops and by damage count
        as acknowledged then.
        """
        with self._lock:
            active = self._active
            if self._closed or self._full or (active is None and self._state.acknowledged == self._next - 1):
                return
            if active is not None and (self._read_segment is not active or self._read_offset < active.end):
                return
            self._active = self._read_segment = None
            self._pending = 0
            self._state = self._state.with_acknowledged(self._next - 1, self._next)
            self._state_file.save(self._state)
        if active is not None:
            active.remove()

    # ---- state ---------------------------------------------------------------------------------------------

    @property
    def acknowledged(self) -> int:
        """The number up to which everything is acknowledged."""
        return self._state.acknowledged

    @property
    def last_seq(self) -> int:
        """The last number given out, to a record or to a drop."""
        return self._next - 1

    @property
    def pending(self) -> int:
        """Records written and not yet settled."""
        return self._pending

    @property
    def dropped(self) -> int:
        """Records dropped since the folder was made."""
        return self._state.dropped

    @property
    def unreported_drops(self) -> int:
        """Records dropped that no entry of the record tells of yet."""
        return self._state.unreported

    def drops_reported(self, count: int) -> None:
        """Note that an entry telling of `count` drops was appended."""
        with self._lock:
            self._state = self._state.with_reported(count)
            self._state_file.save(self._state)

    def has_room(self, length: int) -> bool:
        """Whether a record of `length` bytes would fit now."""
        with self._lock:
            if self._closed:
                return False
            if (self._active is not None and self._active.fits(HEADER_BYTES + length)) or self._spare is not None:
                return True
            return self._bytes() + max(self._segment_bytes, DATA_START + HEADER_BYTES + length) <= self._max_bytes

    def count_lost(self) -> None:
        """Count one record that was read and then could be kept nowhere, as a drop."""
        with self._lock:
            self._drop("held")

    def bytes_used(self) -> int:
        """Bytes of all segments, the prepared one included."""
        with self._lock:
            return self._bytes()

    def _bytes(self) -> int:
        held = [*self._full, self._active, self._spare]
        return sum(segment.size for segment in held if segment is not None)

    def refuse(self) -> None:
        """Take no more records; reading and acknowledging go on."""
        self._refuses = True

    def close(self) -> None:
        """Let go of everything; what is not acknowledged stays for the next opening."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._state = self._state.with_acknowledged(self._state.acknowledged, self._next)
            self._state_file.save(self._state)
            if self._spare is not None:
                self._spare.remove()
            for segment in (*self._full, self._active):
                if segment is not None:
                    segment.close()
            self._state_file.close()
            os.close(self._lock_fd)

    def abandon(self) -> None:
        """In a forked child: let go of the parent's spool without touching it."""
        self._closed = True
        self._lock = threading.Lock()  # the parent's threads may have held the old one at the fork
        # The lock belongs to the open file, which the parent still has: closing our copy does not free it, but
        # keeping it would keep the folder locked after the parent has gone.
        held = [*self._full, self._active, self._spare, self._state_file]
        for each in held:
            if each is not None:
                with contextlib.suppress(OSError):
                    each.close()
        with contextlib.suppress(OSError):
            os.close(self._lock_fd)

    # ---- recovery ------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Read what an earlier run left: the same frames, never appended to again."""
        for leftover in ("spare", "next"):
            (self.folder / leftover).unlink(missing_ok=True)
        names = sorted(path for path in self.folder.iterdir() if _SEGMENT_NAME.fullmatch(path.name) and path.is_file())
        for path in names:
            segment = Segment.adopt(path)
            found = scan(segment.read(0, segment.size), DATA_START)
            if not segment.header_is_sound():
                self._report(segment, Damage(offset=0, length=DATA_START))
            for damage in found.damages:
                self._report(segment, damage)
            self.torn_tails += found.torn
            segment.end = found.end
            first = int(path.name.removeprefix("seg-"))
            # A damaged tail hides numbers that were given out: leave room for as many as it may hold.
            hidden = sum(1 + damage.length // HEADER_BYTES for damage in found.damages)
            segment.last_seq = found.frames[-1].seq if found.frames else first - 1
            self._next = max(self._next, segment.last_seq + 1 + hidden)
            unsent = sum(1 for frame in found.frames if frame.seq > self._state.acknowledged)
            self._pending += unsent
            if unsent:
                self._full.append(segment)
            else:
                segment.remove()

    def _report(self, segment: Segment, damage: Damage) -> None:
        found = DamagedRange(segment=segment.path.name, damage=damage)
        if found not in self.damages:
            self.damages.append(found)


def _claims_more_than(window: bytes) -> bool:
    """Whether a record starts here that the window is too short for."""
    if not window.startswith(MAGIC) or len(window) < HEADER_BYTES:
        return window.startswith(MAGIC)
    return HEADER_BYTES + int.from_bytes(window[4:8], "little") > len(window)


def _hold(folder: Path) -> int:
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise SpoolLocked(str(folder)) from error
    return fd
