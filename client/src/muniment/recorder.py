"""`Recorder`: records what an agent says and does, without ever being in its way.

`record` encodes the entry once, copies it into the spool and returns: microseconds, no network, no wait, no
exception. What was recorded outlives a `kill -9` of the process. What cannot be recorded is counted (`stats`), and
the first of each kind is logged to the logger `muniment`; drops are told in the record itself, as a
`recorder.heartbeat` entry with their count, once there is room again. A background thread ships; a server that is
down or refuses costs disk up to the bound, nothing else.

    recorder = Recorder("http://127.0.0.1:8080", token, spool="/var/lib/agent/spool", data_class="transcript")
    with subject("user:1", conversation="c1"):
        recorder.record(kind="turn.user", body={"text": "hello"})

The spool is a place of personal data: register it as a store. Entries leave it when the server has them; `purge`
empties what was refused. After a fork the child records into a folder of its own inside the spool, under a recorder
id of its own; the parent ships what a child leaves.
"""

from __future__ import annotations

import atexit
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from muniment.context import current_scope
from muniment.delivery import Verdict
from muniment.errors import BadRecord, SpoolClosed, SpoolFull, SpoolLocked
from muniment.held import Parked, Refused
from muniment.ids import Stamper, time_text
from muniment.receipts import ReceiptFile
from muniment.shipper import PARKED, REFUSED, OncePerKind, Shipper, new_child_folder
from muniment.spool import Spool
from muniment.transport import Transport

_STAMP = b'{"seq":%d,'
_RANDOM = re.compile(r"[0-9a-f]{8}")
_CHILD_TRIES = 5
_TELLING_BYTES = 4096
HEARTBEAT_KIND = "recorder.heartbeat"


class _Entry(msgspec.Struct, omit_defaults=True):
    """An entry as sent; `seq` is put in front when the spool has given its number. Source: API.md §5."""

    id: str
    stream: str
    kind: str
    at: str
    data_class: str
    recorder: str
    subjects: Sequence[str] = ()
    actor: str | None = None
    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    run: str | None = None
    agent: str | None = None
    model: str | None = None
    prompt_version: str | None = None
    policy: str | None = None
    sources: Sequence[str] = ()
    parts: Sequence[Mapping[str, object]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushResult:
    """Entries the server has, those still on this disk (parked ones too), and those it refused for good."""

    acknowledged: int
    pending: int
    refused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderStats:
    """Counts since the recorder was opened; `dropped`, `pending` and `parked` are of the spool folder."""

    recorder: str
    recorded: int
    acknowledged: int
    duplicates: int
    suppressed: int
    refused: int
    parked: int
    pending: int
    dropped: int
    damaged: int
    spool_bytes: int
    errors: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """What a recorder was opened with; a forked child opens its own with the same."""

    url: str
    token: str
    folder: Path
    name: str
    data_class: str
    agent: str | None
    max_bytes: int
    segment_bytes: int
    linger_seconds: float
    park_retry_seconds: float
    heartbeat_seconds: float | None
    heartbeat_class: str
    timeout_seconds: float
    on_receipt: Callable[[Any], None] | None
    receipts: Path | None


class Recorder:
    """Records entries; shareable between threads and asyncio tasks."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        spool: str | os.PathLike[str],
        name: str = "r1",
        data_class: str = "transcript",
        agent: str | None = None,
        max_bytes: int = 256 << 20,
        segment_bytes: int = 4 << 20,
        linger: float = 0.25,
        park_retry: float = 30.0,
        heartbeat: float | timedelta | None = None,
        heartbeat_class: str = "skeleton",
        timeout: float = 30.0,
        on_receipt: Callable[[Any], None] | None = None,
        receipts: str | os.PathLike[str] | None = None,
    ) -> None:
        """Open the spool and start shipping; times are seconds. The server need not be up.

        `data_class` and `agent` are used where `record` names none; `heartbeat_class` is the class, without
        personal data, of the entries about the recorder itself; `on_receipt` is called in the shipping thread.
        `receipts` names a file to which each receipt of the server is appended, for `muniment verify --receipt`.

        Raises: SpoolLocked where another recorder has the folder, OSError, BadAddress, BadToken.
        """
        seconds = heartbeat.total_seconds() if isinstance(heartbeat, timedelta) else heartbeat
        self._options = _Options(
            url=url, token=token, folder=Path(spool), name=name, data_class=data_class, agent=agent,
            max_bytes=max_bytes, segment_bytes=segment_bytes, linger_seconds=linger, park_retry_seconds=park_retry,
            heartbeat_seconds=seconds, heartbeat_class=heartbeat_class, timeout_seconds=timeout,
            on_receipt=on_receipt, receipts=None if receipts is None else Path(receipts),
        )  # fmt: skip
        self._closed = False
        self._forked = False
        self._fork_lock = threading.Lock()
        self._open(self._options.folder, adopts=True)
        _live.add(self)

    def _open(self, folder: Path, *, adopts: bool) -> None:
        options = self._options
        transport = Transport(options.url, options.token, timeout_seconds=options.timeout_seconds)
        self._spool = Spool(folder, max_bytes=options.max_bytes, segment_bytes=options.segment_bytes)
        self._id = _recorder_id(folder, options.name)
        self._stamper = Stamper()
        self._encoder = msgspec.json.Encoder(enc_hook=_to_json)
        self._faults = OncePerKind()
        self._recorded = 0
        self._damages_told = 0
        self._heartbeat_due = 0.0
        held = options.max_bytes // 4
        parked = Parked(folder / PARKED, held)
        self._parked = parked
        self._shipper = Shipper(
            self._spool, transport, parked, Refused(folder / REFUSED, held),
            linger_seconds=options.linger_seconds, park_retry_seconds=options.park_retry_seconds,
            before_turn=self._tell_about_myself, on_receipt=options.on_receipt, adopts=adopts,
            receipts=None if options.receipts is None else ReceiptFile(options.receipts),
        )  # fmt: skip
        if self._spool.damages:
            self._faults.note("spool.damaged", f"{len(self._spool.damages)} ranges of the spool cannot be read")
        self._spool.prepare()
        self._shipper.start()

    @property
    def id(self) -> str:
        """The recorder's id: its name and a random part kept in the spool folder."""
        return self._id

    def record(
        self,
        *,
        kind: str,
        stream: str | None = None,
        body: object = msgspec.UNSET,
        data_class: str | None = None,
        subjects: Sequence[str] = (),
        actor: str | None = None,
        run: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        prompt_version: str | None = None,
        policy: str | None = None,
        sources: Sequence[str] = (),
        parts: Sequence[Mapping[str, Any]] | None = None,
        at: datetime | str | None = None,
    ) -> str:
        """Return the entry's id (UUIDv7) once it is safe on this disk, or an empty string if it was dropped.

        `body` is anything JSON can say, or bytes that are JSON text, which are kept as they are. Stream, subjects
        and run are taken from `with subject(...)` where not given. Never blocks, never raises.
        """
        try:
            if self._forked:
                self._reopen_in_child()
            scope = current_scope()
            entry_id, now = self._stamper.stamp()
            stream = stream or scope.conversation
            if not stream:
                raise BadRecord("no_stream")  # noqa: TRY301 (one place counts every fault)
            if isinstance(subjects, str):
                subjects = (subjects,)
            entry = _Entry(
                entry_id, stream, kind, now if at is None else _time(at), data_class or self._options.data_class,
                self._id, subjects or scope.subjects, actor, msgspec.UNSET, run or scope.run,
                agent or self._options.agent, model, prompt_version, policy, sources,
            )  # fmt: skip
            if body is not msgspec.UNSET:
                entry.body = self._raw(body)
            if parts is not None:
                entry.parts = [self._part(part) for part in parts]
            elif body is msgspec.UNSET:
                raise BadRecord("no_body")  # noqa: TRY301 (as above)
            self._spool.append(self._encoder.encode(entry)[1:], _STAMP)
        except Exception as error:
            self._count(error)
            return ""
        self._recorded += 1
        return entry_id

    def _raw(self, body: object) -> msgspec.Raw:
        if isinstance(body, bytes | bytearray | memoryview | msgspec.Raw):
            return _json_text(bytes(body))
        return msgspec.Raw(self._encoder.encode(body))

    def _part(self, part: Mapping[str, Any]) -> dict[str, Any]:
        made = dict(part)
        if "body" in made:
            made["body"] = self._raw(made["body"])
        return made

    def _count(self, error: Exception) -> None:
        if isinstance(error, SpoolFull):
            self._faults.note(f"dropped.{error.reason}", "records are dropped and counted")
        elif isinstance(error, BadRecord):
            self._faults.note(f"record.{error.fault}", "a call of record() is not an entry")
        elif isinstance(error, SpoolClosed):
            self._faults.note("record.closed", "record() was called on a closed recorder")
        else:
            self._faults.note(f"record.{type(error).__name__}", "a record could not be encoded or written")

    # ---- what the recorder says about itself, in the shipping thread ----------------------------------------

    def _tell_about_myself(self) -> None:
        """Record a heartbeat if it is due, and drops or damage at once."""
        drops = self._spool.unreported_drops
        damages = len(self._spool.damages)
        options = self._options
        beat = options.heartbeat_seconds is not None and time.monotonic() >= self._heartbeat_due
        if not (beat or drops or damages > self._damages_told) or not self._spool.has_room(_TELLING_BYTES):
            return
        body = {
            "recorded": self._recorded, "acknowledged": self._shipper.counts[Verdict.STORED],
            "pending": self._spool.pending, "parked": len(self._parked),
            "refused": self._shipper.counts[Verdict.REFUSE], "dropped": drops, "dropped_ever": self._spool.dropped,
            "damaged_ranges": damages, "errors": dict(self._faults.counts), "last_seq": self._spool.last_seq,
        }  # fmt: skip
        entry_id, now = self._stamper.stamp()
        entry = _Entry(
            entry_id, f"recorder:{self._id}", HEARTBEAT_KIND, now, options.heartbeat_class, self._id,
            body=msgspec.Raw(self._encoder.encode(body)),
        )  # fmt: skip
        try:
            self._spool.append(self._encoder.encode(entry)[1:], _STAMP)
        except SpoolFull:
            return  # another thread took the room; told with the others later
        if drops:
            self._spool.drops_reported(drops)
        self._damages_told = damages
        if options.heartbeat_seconds is not None:
            self._heartbeat_due = time.monotonic() + options.heartbeat_seconds

    # ---- life ----------------------------------------------------------------------------------------------

    def flush(self, timeout: float = 10.0) -> FlushResult:
        """Wait, at most `timeout` seconds, until what was recorded before is settled; parked entries are tried."""
        if not self._closed and not self._forked:
            self._shipper.flush(timeout)
        return self._result()

    def close(self, timeout: float = 10.0) -> FlushResult:
        """Flush within `timeout` and let go of the folder; what is pending stays there for the next opening."""
        if self._closed:
            return self._result()
        if not self._forked:
            self._shipper.flush(timeout)
        result = self._result()
        self._closed = True
        _live.discard(self)
        if not self._forked:
            self._spool.refuse()
            self._shipper.stop(min(max(timeout, 1.0), 5.0))
        return result

    def stats(self) -> RecorderStats:
        """Return the counts of now."""
        counts = self._shipper.counts
        return RecorderStats(
            recorder=self._id,
            recorded=self._recorded,
            acknowledged=_acknowledged(counts),
            duplicates=counts[Verdict.DUPLICATE],
            suppressed=counts[Verdict.SUPPRESSED],
            refused=counts[Verdict.REFUSE],
            parked=len(self._parked),
            pending=self._spool.pending,
            dropped=self._spool.dropped,
            damaged=len(self._spool.damages),
            spool_bytes=self._spool.bytes_used(),
            errors={**self._faults.counts, **self._shipper.faults.counts},
        )

    def purge(self, subject: str) -> int:
        """Remove parked and refused entries that name `subject`; return how many went. Raises: OSError.

        Entries still on their way are not touched: flush first, the server's fence then decides.
        """
        return self._shipper.purge_held(subject)

    def _result(self) -> FlushResult:
        counts = self._shipper.counts
        return FlushResult(
            acknowledged=_acknowledged(counts),
            pending=self._spool.pending + len(self._parked),
            refused=counts[Verdict.REFUSE],
        )

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Name the recorder, never its token."""
        return f"<Recorder {self._id}>"

    # ---- fork ----------------------------------------------------------------------------------------------

    def _forget_parent(self) -> None:
        """In a forked child, before anything else runs: touch nothing of the parent's."""
        self._spool.abandon()
        self._fork_lock = threading.Lock()
        self._forked = not self._closed

    def _reopen_in_child(self) -> None:
        with self._fork_lock:
            if self._forked:
                self._open_beside_parent()
                self._forked = False

    def _open_beside_parent(self) -> None:
        """Open a folder of this process; another one when the parent took the empty one over before it was locked."""
        for left in reversed(range(_CHILD_TRIES)):
            try:
                self._open(new_child_folder(self._options.folder), adopts=False)
            except (SpoolLocked, FileNotFoundError):
                if not left:
                    raise
            else:
                return


def _acknowledged(counts: Mapping[Verdict, int]) -> int:
    return counts[Verdict.STORED] + counts[Verdict.DUPLICATE] + counts[Verdict.SUPPRESSED]


def _recorder_id(folder: Path, name: str) -> str:
    """Return the id kept in the folder, made at the first opening: sequence numbers count per recorder."""
    path = folder / "recorder"
    if path.is_file():
        kept = path.read_bytes().decode(errors="replace")
        # What a power cut left of the file is no id.
        if kept.startswith(f"{name}-") and _RANDOM.fullmatch(kept.removeprefix(f"{name}-")):
            return kept
    made = f"{name}-{os.urandom(4).hex()}"
    temporary = folder / "recorder.new"
    temporary.write_bytes(made.encode())
    temporary.chmod(0o600)
    temporary.replace(path)
    return made


def _time(at: datetime | str) -> str:
    if isinstance(at, str):
        return at
    if at.tzinfo is None:
        raise BadRecord("naive_time")
    return time_text(at)


def _json_text(text: bytes) -> msgspec.Raw:
    """Return the bytes as they are, once it is sure that they are one JSON value: a batch must stay readable."""
    str(text, "utf-8")
    msgspec.json.decode(text, type=msgspec.Raw)
    return msgspec.Raw(text)


def _to_json(value: object) -> object:
    """Return what a pydantic model says of itself; anything else unknown is a fault, never a guess by repr()."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise BadRecord("not_json")


_live: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for recorder in list(_live):
        recorder._forget_parent()  # noqa: SLF001 (this module's own class)


def _at_exit() -> None:
    for recorder in list(_live):
        recorder.close(timeout=2.0)


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
