"""The one writer of a tenant's log.

The order of writes, and what a crash between two of them leaves (ADR 0006; crash table of the ledger's tests):

 1. Group what waits, drop known duplicates and fenced parts. Nothing is written yet.
 2. PUT one payload object per lock month. Crash after it: orphan ciphertext under its lock; the retry makes another.
    Of a large flush 3 is done meanwhile; 4 waits for both.
 3. Write the index lines to the unlocked store, under the batch's first index and digest, so that a writer that loses
    the race cannot replace the winner's. Crash: a small orphan without content.
 4. PUT `batch/<first>` if nobody has it. From here on the entries are in the log. Crash: `open_head` indexes them.
 5. Commit the SQL index, the head and the answers to staged calls in one transaction. Crash: the retry answers
    `duplicate` with the same index.
 6. Answer every waiting caller with a receipt signed once for the flush.
 7. `publish`, later: full tiles, then the checkpoint after a consistency proof from the one before.

Without the lease, a process that may stage does step 2 and then waits for the holder (`ledger.staging`); it reads from
the newest checkpoint and writes nothing else.

Guarantees: an acknowledged entry is in the bucket; none is stored twice, no index used twice, however many processes
believe they lead. Not here: what parts mean, who may write, keys.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256

import sqlalchemy as sa
from sqlmodel import Session

from ledger import index, staging
from ledger.batches import Batch, batch_key, encode_batch
from ledger.checkpoint import format_checkpoint, sign_note
from ledger.draft import Appended, Draft, Placed, PlacedState
from ledger.entry import Part, header_hash
from ledger.errors import (
    CheckpointPending,
    LogForked,
    LogRolledBack,
    NotLeader,
    ObjectExists,
    ObjectMissing,
    RecordDamaged,
)
from ledger.head import (
    Head,
    LogParts,
    checkpoint_key,
    index_key,
    open_head,
    open_reader,
    read_checkpoint,
    require_not_back,
    save,
)
from ledger.keyring import KeyWindow, change_key
from ledger.lease import Lease
from ledger.lookup import Found, headers_at
from ledger.merkle import consistency_proof, inclusion_proof, root_of, verify_consistency
from ledger.models import LogState
from ledger.payloads import Payloads
from ledger.placing import (
    Chain,
    Fresh,
    Stored,
    batch_of,
    chain,
    index_lines,
    personal,
    receipt_of,
    weight,
)
from ledger.positions import backwards, settle
from ledger.storing import Put, storing

FLUSH_BYTES = 4 * 1024 * 1024
FLUSH_ENTRIES = 10_000
STAGED_SECONDS = 20.0
"""How long a staged call waits: longer than it takes another process to find out that the holder is gone."""

CHECKPOINT_SECONDS = 3.0
_POLL_SECONDS = 0.02
_TAKEOVER_SECONDS = 1.0
_TRIES = 3

Admit = Callable[[Session, Sequence[Draft]], Sequence[frozenset[int]]]
"""Says, for each draft, which of its part numbers a fence closes now. All of them: the entry is not stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """What is placed and answered together: a caller's drafts, or a staged row's."""

    drafts: Sequence[Draft]
    admit: Admit | None
    staged_id: str | None = None


@dataclass(slots=True, kw_only=True)
class _Waiting:
    call: _Call
    answer: Appended | None = None
    problem: BaseException | None = None
    done: bool = False


@dataclass(slots=True, kw_only=True)
class _Queue:
    """The callers of one log in this process. The holder of `turn` flushes or stages for those in `waiting`."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    turn: threading.Lock = field(default_factory=threading.Lock)
    waiting: list[_Waiting] = field(default_factory=list)


_Answers = dict[tuple[str, bytes], Placed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """An entry's header, its place, and the path to a signed checkpoint."""

    index: int
    header: bytes
    leaf: bytes
    inclusion: tuple[bytes, ...]
    tree_size: int
    checkpoint: str


class Log:
    """All logs of one deployment, behind one lease. `stages`: a process without it hands over instead of refusing."""

    def __init__(self, parts: LogParts, lease: Lease, *, stages: bool = False) -> None:
        self._parts = parts
        self._lease = lease
        self._stages = stages
        self._guard: Callable[[int], Admit] | None = None
        self._heads: dict[int, Head] = {}
        self._readers: dict[int, Head] = {}
        self._queues: dict[int, _Queue] = {}
        self._refusing: dict[int, str] = {}
        self._lock = threading.Lock()

    @staticmethod
    def create(session: Session, tenant_id: int, log_id: str) -> str:
        """Make the head row of a new log, in the caller's transaction; returns the log's origin."""
        origin = f"muniment/{log_id}"
        session.add(LogState(tenant_id=tenant_id, log_id=log_id, origin=origin))
        return origin

    def guard_with(self, admit_of: Callable[[int], Admit]) -> None:
        """Set what looks at the fences of a tenant for entries that another process staged."""
        self._guard = admit_of

    @property
    def leads(self) -> bool:
        """Whether this process may sequence now."""
        return self._lease.held

    @property
    def refusing(self) -> dict[int, str]:
        """The tenants whose log takes nothing, with the reason, as this process met it last."""
        return dict(self._refusing)

    @contextmanager
    def _noting(self, tenant_id: int) -> Iterator[None]:
        try:
            yield
        except (LogForked, LogRolledBack, RecordDamaged) as error:
            self._met(tenant_id, str(error))
            raise

    def _met(self, tenant_id: int, reason: str | None) -> None:
        if reason is None:
            self._refusing.pop(tenant_id, None)
        else:
            self._refusing[tenant_id] = reason

    def vkey(self, tenant_id: int) -> str:
        """Return the public key of a tenant's log, to pin: the newest that signed the newest checkpoint."""
        with self.entered(tenant_id) as head:
            signed = [window.vkey for window in head.keys if window.covers(head.checkpoint_size)]
            return signed[-1] if signed else head.signers[-1].vkey

    def keys(self, tenant_id: int) -> tuple[KeyWindow, ...]:
        """Return every key the log had, oldest first, with the sizes it may sign."""
        with self.entered(tenant_id) as head:
            return head.keys

    def rotate_key(self, tenant_id: int, now: datetime, *, revoke: bool = False) -> bytes:
        """Give the log its next key; returns the signed note of the change.

        The newest checkpoint is signed by the keys before, the next one by the new key too (with `revoke` by it alone).
        Raises: NotLeader, LogForked, SigningKeyMissing, and what the store raises.
        """
        with self._leading(tenant_id) as head:
            self.publish(tenant_id, now)
            note = change_key(
                self._parts.locked,
                log_id=head.log_id,
                keys=head.keys,
                signer_of=lambda generation: self._parts.signer_of(head.origin, generation),
                size=head.checkpoint_size,
                revoke=revoke,
                now=now,
                lock_until=self._parts.lock_end(now),
            )
            self._reopen(head)
        return note

    def head(self, tenant_id: int) -> Head:
        """Return the tenant's head: the log's end while this process leads, else one to read from.

        It is opened at its first use and may be old; `entered` brings it up to date. Raises: LogForked, LogRolledBack.
        """
        heads, opened = (self._heads, open_head) if self._lease.held else (self._readers, open_reader)
        with self._lock:
            head = heads.get(tenant_id)
            if head is None:
                fence = self._lease.fence
                head = heads[tenant_id] = opened(self._parts, tenant_id)
                head.under = fence
            return head

    def forget_heads(self) -> None:
        """Take up every log afresh at its next use, after the database was restored."""
        with self._lock:
            self._readers.clear()
            for head in self._heads.values():
                head.stale = True

    @contextmanager
    def entered(self, tenant_id: int) -> Iterator[Head]:
        """Hold the tenant's head, up to date, to read from its tree."""
        with self._leading(tenant_id) if self._lease.held else self._reading(tenant_id) as head:
            yield head

    @contextmanager
    def _leading(self, tenant_id: int) -> Iterator[Head]:
        """Hold the end of a log, opened afresh if its last use failed or the lease changed hands in between."""
        self._lease.check()
        with self._noting(tenant_id):
            head = self.head(tenant_id)
        with head.lock:
            if head.stale or head.under != self._lease.check():
                with self._noting(tenant_id):
                    self._reopen(head)
            self._met(tenant_id, head.read_only)
            self._require_rank(head)
            yield head

    def _reopen(self, head: Head) -> None:
        fence = self._lease.check()
        head.become(open_head(self._parts, head.tenant_id))
        head.under = fence

    def _require_rank(self, head: Head) -> int:
        """Return a fencing number that is not below that of the last batch. Raises: NotLeader."""
        fence = self._lease.check()
        if fence < head.fence:
            # Either another process led since then, or the database was restored and counts anew.
            fence = head.under = self._lease.outrank(head.fence)
        return fence

    @contextmanager
    def _reading(self, tenant_id: int) -> Iterator[Head]:
        with self._parts.transactions(tenant_id, write=False) as session:
            state = index.state_of(session, tenant_id)
        if state is None:
            raise ObjectMissing("log_state")
        with self._lock:
            head = self._readers.get(tenant_id)
        if head is None or head.checkpoint_size < state.checkpoint_size:
            fresh = open_reader(self._parts, tenant_id)
            with self._lock:
                known = self._readers.get(tenant_id)
                head = fresh if known is None or known.checkpoint_size < fresh.checkpoint_size else known
                self._readers[tenant_id] = head
        with head.lock:
            yield head

    def append(self, tenant_id: int, drafts: Sequence[Draft], *, now: datetime, admit: Admit | None = None) -> Appended:
        """Sequence drafts and return their places; waits for the flush they are part of.

        Callers that arrive during a flush share the next one. Raises: NotLeader, LogForked, StoreUnavailable, …; then
        nothing is promised and the same drafts may be sent again.
        """
        with self._lock:
            queue = self._queues.setdefault(tenant_id, _Queue())
        mine = _Waiting(call=_Call(drafts=drafts, admit=admit))
        with queue.lock:
            queue.waiting.append(mine)
        with queue.turn:
            if not mine.done:
                self._take_turn(tenant_id, queue, now)
        if mine.problem is not None:
            raise mine.problem
        if mine.answer is None:
            raise NotLeader("the flush ended without an answer")
        return mine.answer

    def serve(self, now: datetime) -> int:
        """Do what other processes knocked for, if this one leads; returns how many knocks were answered.

        Raises: what the first failing log raises, after the others had their turn; its knocks stay.
        """
        if not (self._stages and self._lease.held):
            return 0
        with self._parts.transactions(0, write=False) as session:
            found = [(one.knock_id, one.log_tenant, one.wants) for one in staging.knocks(session)]
        failures: list[Exception] = []
        for tenant_id in dict.fromkeys(tenant_id for _, tenant_id, _ in found):
            mine = [(knock_id, wants) for knock_id, knocked, wants in found if knocked == tenant_id]
            try:
                self._serve_one(tenant_id, {wants for _, wants in mine}, now)
            except Exception as error:  # noqa: BLE001 - raised below, after the others had their turn
                failures.append(error)
                continue
            with self._parts.transactions(0) as session:
                staging.forget_knocks(session, [knock_id for knock_id, _ in mine])
        if failures:
            raise failures[0]
        return len(found)

    def publish(self, tenant_id: int, now: datetime, *, at_least: int = 0) -> bytes:
        """Integrate what is stored and return the newest signed checkpoint over all of it; nothing for an empty log.

        `at_least` asks for a size the log must have. Without the lease it asks the holder and waits a little. Raises:
        LogForked and goes read-only on a contradiction, CheckpointPending.
        """
        if self._stages and not self._lease.held:
            return self._await_checkpoint(tenant_id, now, at_least)
        with self._leading(tenant_id) as head:
            if head.size == head.checkpoint_size:
                return head.checkpoint_note
            if head.size < at_least:
                raise LogForked(f"expected a log of at least {at_least} entries, it has {head.size}", size=head.size)
            head.require_writable()
            self._require_rank(head)
            try:
                return self._publish(head, now)
            except LogForked:
                raise
            except BaseException:
                # Some of it may be stored: tree and checkpoint are taken up again from what is.
                head.stale = True
                raise

    def finish(self, now: datetime) -> None:
        """Sign what this process sequenced and nobody signed yet, before it ends; nothing without the lease.

        Raises: what the first failing log raises; the rest is signed by whoever leads next.
        """
        if not self._lease.held:
            return
        with self._lock:
            grown = [head.tenant_id for head in self._heads.values() if head.size > head.checkpoint_size]
        for tenant_id in grown:
            self.publish(tenant_id, now)

    def proof(self, tenant_id: int, idx: int, now: datetime) -> Proof:
        """Return the proof of one entry against a checkpoint that covers it. Raises: CheckpointPending."""
        return self.proofs(tenant_id, [idx], now)[0]

    def proofs(self, tenant_id: int, indexes: Sequence[int], now: datetime) -> list[Proof]:
        """Return the proofs of entries, all against one checkpoint of one tree, which is extended over them first."""
        needed = max(indexes) + 1 if indexes else 0
        with self.entered(tenant_id) as head:
            covered = needed <= head.checkpoint_size
        if not covered:
            self.publish(tenant_id, now, at_least=needed)
        with self.entered(tenant_id) as head:
            if needed > head.checkpoint_size:
                raise CheckpointPending(size=needed)
            note, size = head.checkpoint_note.decode(), head.checkpoint_size
            paths = [inclusion_proof(idx, size, head.tree.read) for idx in indexes]
        raws = self.headers(tenant_id, indexes)
        return [
            Proof(index=idx, header=raw, leaf=header_hash(raw), inclusion=path, tree_size=size, checkpoint=note)
            for idx, raw, path in zip(indexes, raws, paths, strict=True)
        ]

    def consistency(self, tenant_id: int, size1: int, size2: int) -> tuple[bytes, ...]:
        """Return the consistency proof between two published sizes. Raises: BadProof."""
        with self.entered(tenant_id) as head:
            return consistency_proof(size1, size2, head.tree.read)

    def headers(self, tenant_id: int, indexes: Sequence[int]) -> list[bytes]:
        """Return the stored header bytes of entries, in the order asked. Raises: RecordDamaged for a lost one."""
        found: list[bytes] = []
        for one in self.try_headers(tenant_id, indexes):
            if isinstance(one, RecordDamaged):
                raise one
            found.append(one)
        return found

    def try_headers(self, tenant_id: int, indexes: Sequence[int]) -> list[Found]:
        """Return the stored header bytes of entries, in the order asked, or what is wrong there."""
        head = self.head(tenant_id)
        with self._parts.transactions(tenant_id, write=False) as session:
            batch_of = index.batches_of(session, tenant_id, indexes)
        return headers_at(self._reader_of(head), head.log_id, batch_of, indexes)

    def payloads(self, tenant_id: int, parts: Iterable[Part]) -> Payloads:
        """Return a reader of many parts that asks the bucket for neighbours together; not checked against headers."""
        head = self.head(tenant_id)
        return Payloads(
            parts, lambda key, offset, length: self._parts.locked.get(head.key(key), offset=offset, length=length)
        )

    def ciphertext(self, tenant_id: int, part: Part) -> bytes:
        """Return one part's bytes from its payload object; not checked against the header."""
        head = self.head(tenant_id)
        return self._parts.locked.get(head.key(part.object), offset=part.offset, length=part.length)

    # ── taking turns ──

    def _take_turn(self, tenant_id: int, queue: _Queue, now: datetime) -> None:
        with queue.lock:
            group, queue.waiting = _fit(queue.waiting)
        calls = [waiting.call for waiting in group]
        stored: Stored = {}
        try:
            try:
                with self._leading(tenant_id) as head:
                    answers = self._lead(head, calls, stored, now)
            except NotLeader:
                if not self._stages:
                    raise
                answers = self._stage(tenant_id, calls, stored, now)
                self._met(tenant_id, None)
        except BaseException as problem:  # noqa: BLE001 - told to every waiting caller, and raised by each
            if isinstance(problem, LogForked | LogRolledBack):
                self._met(tenant_id, str(problem))
            for waiting in group:
                waiting.problem, waiting.done = problem, True
            return
        for waiting, answer in zip(group, answers, strict=True):
            waiting.answer, waiting.done = answer, True

    def _lead(self, head: Head, calls: Sequence[_Call], stored: Stored, now: datetime) -> list[Appended]:
        """Place calls, and behind them what other processes staged; returns the answers to the calls alone."""
        try:
            staged = self._staged(head.tenant_id, calls, stored, now)
            return self._flush(head, [*calls, *staged], stored, now)[: len(calls)]
        except BaseException:
            # The batch may be in the bucket although we failed: the next use opens the log afresh and catches up.
            head.stale = True
            raise

    def _staged(self, tenant_id: int, calls: Sequence[_Call], stored: Stored, now: datetime) -> list[_Call]:
        room = FLUSH_ENTRIES - sum(len(call.drafts) for call in calls)
        if not self._stages or (calls and room <= 0):
            return []
        with self._parts.transactions(tenant_id, write=False) as session:
            found, unreadable = staging.waiting(session, tenant_id, entries=room)
        if unreadable:
            with self._parts.transactions(tenant_id) as session:
                staging.refuse_unreadable(session, tenant_id, unreadable, now)
        admit = None if self._guard is None else self._guard(tenant_id)
        for one in found:
            stored.update(one.stored)
        return [_Call(drafts=one.drafts, admit=admit, staged_id=one.staged_id) for one in found]

    def _serve_one(self, tenant_id: int, wants: set[str], now: datetime) -> None:
        try:
            if staging.STAGED in wants:
                while self._drain(tenant_id, now):
                    pass
            if staging.CHECKPOINT in wants:
                self.publish(tenant_id, now)
        except (LogForked, LogRolledBack) as error:
            with self._parts.transactions(tenant_id) as session:
                staging.refuse(session, tenant_id, str(error), now)

    def _drain(self, tenant_id: int, now: datetime) -> int:
        with self._leading(tenant_id) as head:
            stored: Stored = {}
            calls = self._staged(tenant_id, [], stored, now)
            if calls:
                try:
                    self._flush(head, calls, stored, now)
                except BaseException:
                    head.stale = True
                    raise
        return len(calls)

    def _stage(self, tenant_id: int, calls: Sequence[_Call], stored: Stored, now: datetime) -> list[Appended]:
        """Hand calls to the lease holder and return its answers; takes the lease over when nobody holds it."""
        drafts = [draft for call in calls for draft in call.drafts]
        fresh = [(draft, frozenset[int]()) for draft in drafts]
        with storing(self._putter(self.head(tenant_id)), fresh, stored, now) as (_, is_stored):
            is_stored()
        with self._parts.transactions(tenant_id) as session:
            staged_id = staging.put(session, tenant_id, drafts, stored, now)

        def answered() -> Appended | None:
            with self._parts.transactions(tenant_id, write=False) as session:
                return staging.answer_of(session, tenant_id, staged_id)

        found = self._poll(answered, now, seconds=STAGED_SECONDS)
        if found is None:
            raise NotLeader("nobody sequenced in time what was staged")
        with self._parts.transactions(tenant_id) as session:
            staging.forget(session, tenant_id, staged_id)
        placed = iter(found.placed)
        return [Appended(placed=[next(placed) for _ in call.drafts], receipt=found.receipt) for call in calls]

    def _poll(self, read: Callable[[], Appended | None], now: datetime, *, seconds: float) -> Appended | None:
        begun = time.monotonic()
        tried = begun
        while True:
            found = read()
            elapsed = time.monotonic() - begun
            if found is not None or elapsed > seconds:
                return found
            if begun + elapsed - tried > _TAKEOVER_SECONDS:
                # Whoever waits sees to it that somebody leads; usually somebody does.
                tried = begun + elapsed
                moment = now + timedelta(seconds=elapsed)
                if self._lease.held or self._lease.take(moment):
                    self.serve(moment)
            time.sleep(_POLL_SECONDS)

    def _await_checkpoint(self, tenant_id: int, now: datetime, at_least: int) -> bytes:
        with self._parts.transactions(tenant_id, write=False) as session:
            state = index.state_of(session, tenant_id)
        if state is None:
            raise ObjectMissing("log_state")
        wanted = at_least or state.size
        if state.checkpoint_size < wanted:
            with self._parts.transactions(tenant_id) as session:
                staging.knock(session, tenant_id, staging.CHECKPOINT, now)
        end = time.monotonic() + CHECKPOINT_SECONDS
        while True:
            with self._reading(tenant_id) as head:
                if head.checkpoint_size >= wanted:
                    return head.checkpoint_note
            if time.monotonic() > end:
                raise CheckpointPending(size=wanted)
            time.sleep(_POLL_SECONDS)

    # ── one flush ──

    def _flush(self, head: Head, calls: Sequence[_Call], stored: Stored, now: datetime) -> list[Appended]:
        """Do steps 1 to 6 for the calls of one flush."""
        for _ in range(_TRIES):
            head.require_writable()
            fence = self._require_rank(head)
            placed, fresh = self._admit(head, calls)  # 1
            if not fresh:
                answers = _answers(calls, placed, None)
                self._answer_staged(head, calls, answers, now)
                return answers
            with storing(self._putter(head), fresh, stored, now) as (places, is_stored):  # 2
                done = self._sequence(head, calls, fresh, places, placed, is_stored=is_stored, fence=fence, now=now)
            if done is not None:  # 3, 4, 5, 6
                return done
            # Another writer has this index: take its batches in, then sequence behind them. The payload stays.
            self._reopen(head)
        raise NotLeader("another writer keeps winning this log's end")

    def _admit(self, head: Head, calls: Sequence[_Call]) -> tuple[_Answers, list[tuple[Draft, frozenset[int]]]]:
        placed: _Answers = {}
        fresh: list[tuple[Draft, frozenset[int]]] = []
        with self._parts.transactions(head.tenant_id, write=False) as session:
            require_not_back(session, head)
            ids = (draft.entry_id for call in calls for draft in call.drafts)
            there = index.known(session, head.tenant_id, ids)
            closed: list[frozenset[int]] = []
            for call in calls:
                closed += call.admit(session, call.drafts) if call.admit else [frozenset[int]()] * len(call.drafts)
        first_of: dict[str, Draft] = {}
        for draft, dropped in zip((draft for call in calls for draft in call.drafts), closed, strict=True):
            row, earlier = there.get(draft.entry_id), first_of.get(draft.entry_id)
            key = (draft.entry_id, draft.digest)
            if row is not None:
                same = row.digest == draft.digest
                state = PlacedState.DUPLICATE if same else PlacedState.CONFLICT
                placed[key] = Placed(entry_id=draft.entry_id, state=state, index=row.idx if same else None)
            elif earlier is not None:
                if earlier.digest != draft.digest:
                    placed[key] = Placed(entry_id=draft.entry_id, state=PlacedState.CONFLICT, index=None)
            elif dropped and draft.parts and len(dropped) >= personal(draft):
                placed[key] = Placed(
                    entry_id=draft.entry_id, state=PlacedState.SUPPRESSED, index=None, dropped=tuple(sorted(dropped))
                )
            else:
                first_of[draft.entry_id] = draft
                fresh.append((draft, dropped))
        return placed, fresh

    def _putter(self, head: Head) -> Put:
        def put(key: str, data: bytes, until: datetime | None) -> None:
            self._parts.locked.put(head.key(key), data, lock_until=until)

        return put

    def _sequence(
        self,
        head: Head,
        calls: Sequence[_Call],
        fresh: Fresh,
        stored: Mapping[int, Part],
        placed: _Answers,
        *,
        is_stored: Callable[[], None],
        fence: int,
        now: datetime,
    ) -> list[Appended] | None:
        """Give the drafts their places, in one batch unless their headers are too large for it.

        `is_stored` returns once the payload is: no batch names what is not there.
        None when another writer has the log's next index. A crash between two batches leaves entries that nobody was
        told of: the retry answers `duplicate`.
        """
        first, rest = head.size, fresh
        while True:
            made = self._chained(head, rest, stored)
            here, rest = rest[: len(made.raws)], rest[len(made.raws) :]
            batch = batch_of(head, made.raws, fence)
            data = encode_batch(batch)
            digest = sha256(data).digest()
            lines = index_lines(here)
            self._parts.hot.replace(head.key(index_key(batch.first, digest)), index.encode_lines(lines))  # 3
            is_stored()  # 2 ends before 4
            if not self._put_batch(head, batch, data, now):  # 4
                return None
            placed |= _placed(here, made, batch.first)
            # 6, sent only when 5 is committed
            answers = [] if rest else _answers(calls, placed, receipt_of(head, first, batch, data, now))
            try:
                with self._parts.transactions(head.tenant_id) as session:  # 5
                    index.insert(session, head.tenant_id, batch.first, made.headers, lines)
                    head.took(batch, digest, made.leaves)
                    save(session, head)
                    if self._stages and not rest:
                        staging.answer(session, head.tenant_id, _staged_answers(calls, answers), now)
                head.positions.moved((line.stream_no for line in lines), made.headers)
            except sa.exc.IntegrityError:
                # Another process found this batch in the bucket and indexed it first.
                return None
            if not rest:
                return answers

    def _chained(self, head: Head, fresh: Fresh, stored: Mapping[int, Part]) -> Chain:
        streams = {draft.stream_no: draft.stream_id for draft, _ in fresh}
        with self._parts.transactions(head.tenant_id, write=False) as session:
            require_not_back(session, head)
            found, doubts = head.positions.of(session, head.tenant_id, streams)
        if doubts:
            batches = backwards(self._reader_of(head), head.log_id, head.batch_first, head.batch_digest)
            with self._parts.transactions(head.tenant_id) as session:
                found |= settle(session, head.tenant_id, {number: streams[number] for number in doubts}, batches)
        return chain(fresh, stored, previous=head.previous, positions=found)

    def _reader_of(self, head: Head) -> Callable[[str], bytes]:
        return lambda key: self._parts.locked.get(head.key(key))

    def _answer_staged(self, head: Head, calls: Sequence[_Call], answers: Sequence[Appended], now: datetime) -> None:
        wanted = _staged_answers(calls, answers)
        if wanted:
            with self._parts.transactions(head.tenant_id) as session:
                staging.answer(session, head.tenant_id, wanted, now)

    def _put_batch(self, head: Head, batch: Batch, data: bytes, now: datetime) -> bool:
        key = head.key(batch_key(batch.first))
        try:
            self._parts.locked.put(key, data, lock_until=self._parts.lock_end(now))
        except ObjectExists:
            return self._parts.locked.get(key) == data
        return True

    def _publish(self, head: Head, now: datetime) -> bytes:
        old_size = head.checkpoint_size
        old_root = root_of(old_size, head.tree.read) if old_size else b""
        head.tree.append(head.unintegrated)
        head.unintegrated = []
        text = format_checkpoint(head.origin, head.tree.size, head.tree.root())
        if old_size:
            proof = consistency_proof(old_size, head.tree.size, head.tree.read)
            verify_consistency(old_size, head.tree.size, proof, old_root, head.tree.root())
        note = sign_note(text, head.signers)
        try:
            self._parts.locked.put(head.key(checkpoint_key(head.tree.size)), note, lock_until=self._parts.lock_end(now))
        except ObjectExists:
            note = self._parts.locked.get(head.key(checkpoint_key(head.tree.size)))
            if read_checkpoint(head, note).root != head.tree.root():
                head.read_only = f"the bucket holds a checkpoint of size {head.tree.size} with another root"
                with self._parts.transactions(head.tenant_id) as session:
                    save(session, head)
                raise LogForked(head.read_only, size=head.tree.size) from None
        head.checkpoint_size, head.checkpoint_note, head.checkpoint_at = head.tree.size, note, now
        head.checkpoint_digest = sha256(note).digest()
        with self._parts.transactions(head.tenant_id) as session:
            save(session, head)
        self._parts.hot.replace(head.key("checkpoint"), note)
        return note


def _fit(waiting: list[_Waiting]) -> tuple[list[_Waiting], list[_Waiting]]:
    """Split what waits into one flush and the rest."""
    if len(waiting) == 1:
        return waiting, []
    size = count = 0
    for number, one in enumerate(waiting):
        size += weight(one.call.drafts)
        count += len(one.call.drafts)
        if number and (size > FLUSH_BYTES or count > FLUSH_ENTRIES):
            return waiting[:number], waiting[number:]
    return waiting, []


def _placed(fresh: Fresh, made: Chain, first: int) -> _Answers:
    return {
        (draft.entry_id, draft.digest): Placed(
            entry_id=draft.entry_id,
            state=PlacedState.STORED,
            index=first + offset,
            leaf=leaf,
            dropped=tuple(sorted(dropped)),
        )
        for offset, ((draft, dropped), leaf) in enumerate(zip(fresh, made.leaves, strict=True))
    }


def _answers(calls: Sequence[_Call], placed: _Answers, receipt: str | None) -> list[Appended]:
    return [
        Appended(placed=[placed[draft.entry_id, draft.digest] for draft in call.drafts], receipt=receipt)
        for call in calls
    ]


def _staged_answers(calls: Sequence[_Call], answers: Sequence[Appended]) -> dict[str, Appended]:
    return {call.staged_id: found for call, found in zip(calls, answers, strict=True) if call.staged_id is not None}
