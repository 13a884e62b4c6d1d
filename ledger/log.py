"""The one writer of a tenant's log.

The order of writes, and what a crash between two of them leaves (ADR 0006; crash table of the ledger's tests):

 1. Group what waits, drop known duplicates and fenced parts. Nothing is written yet.
 2. PUT one payload object per lock month. Crash after it: orphan ciphertext under its lock; the retry makes another.
 3. Write the index lines to the unlocked store, under the batch's first index and digest, so that a writer that loses
    the race cannot replace the winner's. Crash: a small orphan without content.
 4. PUT `batch/<first>` if nobody has it. From here on the entries are in the log. Crash: `open_head` indexes them.
 5. Commit the SQL index and the head in one transaction. Crash: the retry answers `duplicate` with the same index.
 6. Answer every waiting caller with a receipt signed once for the flush.
 7. `publish`, later: full tiles, then the checkpoint after a consistency proof from the one before.

Guarantees: an acknowledged entry is in the bucket; none is stored twice, no index used twice. Not here: what parts
mean, who may write, keys.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256

from sqlmodel import Session

from ledger import index
from ledger.batches import Batch, batch_key, decode_batch, encode_batch
from ledger.checkpoint import format_checkpoint, sign_note
from ledger.draft import Appended, Draft, Placed, PlacedState, SealedPart
from ledger.entry import Header, Part, encode_header, header_hash, uuid7
from ledger.errors import LogForked, NotLeader, ObjectExists
from ledger.head import Head, LogParts, checkpoint_key, index_key, open_head, read_checkpoint, save
from ledger.keyring import KeyWindow, change_key
from ledger.lease import Lease
from ledger.merkle import consistency_proof, inclusion_proof, root_of, verify_consistency
from ledger.models import LogState

FLUSH_BYTES = 4 * 1024 * 1024
_FLUSH_ENTRIES = 10_000
_TRIES = 3

Admit = Callable[[Session, Sequence[Draft]], Sequence[frozenset[int]]]
"""Says, for each draft, which of its part numbers a fence closes now. All of them: the entry is not stored."""


@dataclass(slots=True, kw_only=True)
class _Waiting:
    drafts: Sequence[Draft]
    answer: Appended | None = None
    problem: BaseException | None = None
    done: bool = False


@dataclass(slots=True, kw_only=True)
class _Queue:
    lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: list[_Waiting] = field(default_factory=list)


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
    """All logs of one deployment, behind one lease."""

    def __init__(self, parts: LogParts, lease: Lease) -> None:
        self._parts = parts
        self._lease = lease
        self._heads: dict[int, Head] = {}
        self._queues: dict[int, _Queue] = {}
        self._lock = threading.Lock()

    @staticmethod
    def create(session: Session, tenant_id: int, log_id: str) -> str:
        """Make the head row of a new log, in the caller's transaction; returns the log's origin."""
        origin = f"muniment/{log_id}"
        session.add(LogState(tenant_id=tenant_id, log_id=log_id, origin=origin))
        return origin

    def vkey(self, tenant_id: int) -> str:
        """Return the public key of a tenant's log, to pin: the newest that signed the newest checkpoint."""
        head = self.head(tenant_id)
        signed = [window.vkey for window in head.keys if window.covers(head.checkpoint_size)]
        return signed[-1] if signed else head.signers[-1].vkey

    def keys(self, tenant_id: int) -> tuple[KeyWindow, ...]:
        """Return every key the log had, oldest first, with the sizes it may sign."""
        return self.head(tenant_id).keys

    def rotate_key(self, tenant_id: int, now: datetime, *, revoke: bool = False) -> bytes:
        """Give the log its next key; returns the signed note of the change.

        The newest checkpoint is signed by the keys before, the next one by the new key too (with `revoke` by it alone).
        Raises: NotLeader, LogForked, SigningKeyMissing, and what the store raises.
        """
        with self.entered(tenant_id) as head:
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
            head.become(open_head(self._parts, tenant_id))
        return note

    def head(self, tenant_id: int) -> Head:
        """Return the tenant's head, opened and caught up at its first use. Raises: NotLeader, LogForked."""
        self._lease.check()
        with self._lock:
            head = self._heads.get(tenant_id)
            if head is None:
                head = self._heads[tenant_id] = open_head(self._parts, tenant_id)
            return head

    def forget_heads(self) -> None:
        """Take up every log afresh at its next use, after the lease changed hands or the database was restored."""
        with self._lock:
            for head in self._heads.values():
                head.stale = True

    @contextmanager
    def entered(self, tenant_id: int) -> Iterator[Head]:
        """Hold the tenant's head, opened afresh if the last use of it failed."""
        head = self.head(tenant_id)
        with head.lock:
            if head.stale:
                head.become(open_head(self._parts, tenant_id))
            yield head

    def append(self, tenant_id: int, drafts: Sequence[Draft], *, now: datetime, admit: Admit | None = None) -> Appended:
        """Sequence drafts and return their places; waits for the flush they are part of.

        Callers that arrive during a flush share the next one. Raises: NotLeader, LogForked, StoreUnavailable, …; then
        nothing is promised and the same drafts may be sent again.
        """
        with self._lock:
            queue = self._queues.setdefault(tenant_id, _Queue())
        mine = _Waiting(drafts=drafts)
        with queue.lock:
            queue.waiting.append(mine)
        with self.entered(tenant_id) as head:
            if not mine.done:
                self._lead(head, queue, now, admit)
        if mine.problem is not None:
            raise mine.problem
        if mine.answer is None:
            raise NotLeader("the flush ended without an answer")
        return mine.answer

    def publish(self, tenant_id: int, now: datetime, *, at_least: int = 0) -> bytes:
        """Integrate what is stored and return the newest signed checkpoint over all of it; nothing for an empty log.

        `at_least` asks for a size the log must have. Raises: LogForked and goes read-only on a contradiction.
        """
        with self.entered(tenant_id) as head:
            if head.size == head.checkpoint_size:
                return head.checkpoint_note
            if head.size < at_least:
                raise LogForked(f"expected a log of at least {at_least} entries, it has {head.size}", size=head.size)
            head.require_writable()
            self._lease.check()
            return self._publish(head, now)

    def proof(self, tenant_id: int, idx: int, now: datetime) -> Proof:
        """Return the proof of one entry against a checkpoint that covers it."""
        return self.proofs(tenant_id, [idx], now)[0]

    def proofs(self, tenant_id: int, indexes: Sequence[int], now: datetime) -> list[Proof]:
        """Return the proofs of entries, all against one checkpoint of one tree, which is extended over them first."""
        with self.entered(tenant_id) as head:
            if indexes and max(indexes) >= head.checkpoint_size:
                self.publish(tenant_id, now, at_least=max(indexes) + 1)
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
        """Return the stored header bytes of entries, in the order asked."""
        head = self.head(tenant_id)
        with self._parts.transactions(tenant_id, write=False) as session:
            rows = {row.idx: row.batch_first for row in index.rows(session, tenant_id, indexes)}
        batches = {
            first: decode_batch(self._parts.locked.get(head.key(batch_key(first)))) for first in set(rows.values())
        }
        return [batches[rows[idx]].headers[idx - rows[idx]] for idx in indexes]

    def ciphertext(self, tenant_id: int, part: Part) -> bytes:
        """Return one part's bytes from its payload object; not checked against the header."""
        head = self.head(tenant_id)
        return self._parts.locked.get(head.key(part.object), offset=part.offset, length=part.length)

    def _lead(self, head: Head, queue: _Queue, now: datetime, admit: Admit | None) -> None:
        with queue.lock:
            group, queue.waiting = _fit(queue.waiting)
        try:
            answers = self._flush(head, [waiting.drafts for waiting in group], now, admit)
        except BaseException as problem:  # noqa: BLE001 - told to every waiting caller, and raised by each
            for waiting in group:
                waiting.problem, waiting.done = problem, True
            # The batch may be in the bucket although we failed: the next use opens the log afresh and catches up.
            head.stale = True
            return
        for waiting, answer in zip(group, answers, strict=True):
            waiting.answer, waiting.done = answer, True

    def _flush(
        self, head: Head, calls: Sequence[Sequence[Draft]], now: datetime, admit: Admit | None
    ) -> list[Appended]:
        """Do steps 1 to 6 for the calls of one flush."""
        drafts = [draft for call in calls for draft in call]
        places: dict[int, tuple[str, int]] = {}
        for _ in range(_TRIES):
            head.require_writable()
            fence = self._lease.check()
            placed, fresh = self._admit(head, drafts, admit)  # 1
            receipt = None
            if fresh:
                self._put_payload(head, fresh, places, now)  # 2
                receipt = self._sequence(head, fresh, places, placed, fence=fence, now=now)  # 3, 4, 5
            if receipt is not None or not fresh:
                break
            # Another writer has this index: take its batches in, then sequence behind them. The payload stays.
            head.become(open_head(self._parts, head.tenant_id))
        else:
            raise NotLeader("another writer keeps winning this log's end")
        return [Appended(placed=[_answer(placed, draft) for draft in call], receipt=receipt) for call in calls]

    def _admit(
        self, head: Head, drafts: Sequence[Draft], admit: Admit | None
    ) -> tuple[dict[tuple[str, bytes], Placed], list[tuple[Draft, frozenset[int]]]]:
        placed: dict[tuple[str, bytes], Placed] = {}
        fresh: list[tuple[Draft, frozenset[int]]] = []
        with self._parts.transactions(head.tenant_id, write=False) as session:
            there = index.known(session, head.tenant_id, (draft.entry_id for draft in drafts))
            closed = admit(session, drafts) if admit else [frozenset[int]()] * len(drafts)
        first_of: dict[str, Draft] = {}
        for draft, dropped in zip(drafts, closed, strict=True):
            row, earlier = there.get(draft.entry_id), first_of.get(draft.entry_id)
            key = (draft.entry_id, draft.digest)
            if row is not None:
                same = row.digest == draft.digest
                state = PlacedState.DUPLICATE if same else PlacedState.CONFLICT
                placed[key] = Placed(entry_id=draft.entry_id, state=state, index=row.idx if same else None)
            elif earlier is not None:
                if earlier.digest != draft.digest:
                    placed[key] = Placed(entry_id=draft.entry_id, state=PlacedState.CONFLICT, index=None)
            elif draft.parts and len(dropped) >= _personal(draft) and dropped:
                placed[key] = Placed(
                    entry_id=draft.entry_id, state=PlacedState.SUPPRESSED, index=None, dropped=tuple(sorted(dropped))
                )
            else:
                first_of[draft.entry_id] = draft
                fresh.append((draft, dropped))
        return placed, fresh

    def _put_payload(
        self,
        head: Head,
        fresh: Sequence[tuple[Draft, frozenset[int]]],
        places: dict[int, tuple[str, int]],
        now: datetime,
    ) -> None:
        """Store one object per lock end; notes the place of each part, which is known by the identity of its value."""
        objects: dict[datetime | None, tuple[str, bytearray]] = {}
        for draft, dropped in fresh:
            for number, part in enumerate(draft.parts):
                if number in dropped or id(part) in places:
                    continue
                month = "none" if part.lock_until is None else f"{part.lock_until - timedelta(microseconds=1):%Y-%m}"
                key, data = objects.setdefault(part.lock_until, (f"payload/{month}/{uuid7(now)}", bytearray()))
                places[id(part)] = (key, len(data))
                data += part.ciphertext
        for until, (key, data) in objects.items():
            self._parts.locked.put(head.key(key), bytes(data), lock_until=until)

    def _sequence(
        self,
        head: Head,
        fresh: Sequence[tuple[Draft, frozenset[int]]],
        places: dict[int, tuple[str, int]],
        placed: dict[tuple[str, bytes], Placed],
        *,
        fence: int,
        now: datetime,
    ) -> str | None:
        """Give the drafts their places; None when another writer has the log's next index."""
        headers = self._headers(head, fresh, places)
        raws, leaves = _chain(head.previous, headers)
        batch = _batch_of(head, raws, fence)
        data = encode_batch(batch)
        lines = [_line(draft, dropped) for draft, dropped in fresh]
        key = head.key(index_key(batch.first, sha256(data).digest()))
        self._parts.hot.replace(key, index.encode_lines(lines))  # 3
        if not self._put_batch(head, batch, data, now):  # 4
            return None
        with self._parts.transactions(head.tenant_id) as session:  # 5
            index.insert(session, head.tenant_id, batch.first, headers, lines)
            head.took(batch, sha256(data).digest(), leaves)
            save(session, head)
        for offset, ((draft, dropped), leaf) in enumerate(zip(fresh, leaves, strict=True)):
            placed[draft.entry_id, draft.digest] = Placed(
                entry_id=draft.entry_id,
                state=PlacedState.STORED,
                index=batch.first + offset,
                leaf=leaf,
                dropped=tuple(sorted(dropped)),
            )
        return _receipt(head, batch, data, now)  # 6

    def _put_batch(self, head: Head, batch: Batch, data: bytes, now: datetime) -> bool:
        key = head.key(batch_key(batch.first))
        try:
            self._parts.locked.put(key, data, lock_until=self._parts.lock_end(now))
        except ObjectExists:
            return self._parts.locked.get(key) == data
        return True

    def _headers(
        self, head: Head, fresh: Sequence[tuple[Draft, frozenset[int]]], places: dict[int, tuple[str, int]]
    ) -> list[Header]:
        with self._parts.transactions(head.tenant_id, write=False) as session:
            next_position = index.positions(session, head.tenant_id, (draft.stream_no for draft, _ in fresh))
        headers = []
        for draft, dropped in fresh:
            position = next_position.get(draft.stream_no, 0)
            next_position[draft.stream_no] = position + 1
            headers.append(_header(draft, dropped, places, position))
        return headers

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
    size = count = 0
    for number, one in enumerate(waiting):
        size += sum(len(part.ciphertext) for draft in one.drafts for part in draft.parts)
        count += len(one.drafts)
        if number and (size > FLUSH_BYTES or count > _FLUSH_ENTRIES):
            return waiting[:number], waiting[number:]
    return waiting, []


def _personal(draft: Draft) -> int:
    """The number of parts that hold somebody's data."""
    return sum(1 for subjects in draft.subjects if subjects)


def _answer(placed: dict[tuple[str, bytes], Placed], draft: Draft) -> Placed:
    return placed[draft.entry_id, draft.digest]


def _header(draft: Draft, dropped: frozenset[int], places: dict[int, tuple[str, int]], position: int) -> Header:
    return Header(
        id=draft.entry_id,
        kind=draft.kind,
        data_class=draft.data_class,
        at=draft.at,
        received=draft.received,
        recorder=draft.recorder,
        seq=draft.seq,
        stream=draft.stream_id,
        position=position,
        previous=bytes(32),
        sources_count=draft.sources_count,
        sources_root=draft.sources_root,
        parts=tuple(_part(part, *places[id(part)]) for number, part in enumerate(draft.parts) if number not in dropped),
    )


def _part(part: SealedPart, key: str, offset: int) -> Part:
    return Part(
        role=part.role,
        algorithm=part.algorithm,
        length=len(part.ciphertext),
        sha256=sha256(part.ciphertext).digest(),
        object=key,
        offset=offset,
    )


def _chain(previous: bytes, headers: list[Header]) -> tuple[list[bytes], list[bytes]]:
    """Set each header's previous hash, in place of the list; returns the bytes and the leaf hashes."""
    raws: list[bytes] = []
    leaves: list[bytes] = []
    for number, header in enumerate(headers):
        chained = _with_previous(header, previous)
        headers[number] = chained
        raw = encode_header(chained)
        previous = header_hash(raw)
        raws.append(raw)
        leaves.append(previous)
    return raws, leaves


def _with_previous(header: Header, previous: bytes) -> Header:
    return Header(
        id=header.id,
        kind=header.kind,
        data_class=header.data_class,
        at=header.at,
        received=header.received,
        recorder=header.recorder,
        seq=header.seq,
        stream=header.stream,
        position=header.position,
        previous=previous,
        sources_count=header.sources_count,
        sources_root=header.sources_root,
        parts=header.parts,
    )


def _line(draft: Draft, dropped: frozenset[int]) -> index.IndexLine:
    return index.IndexLine(
        entry_id=draft.entry_id,
        class_version=draft.class_version,
        stream_no=draft.stream_no,
        run_no=draft.run_no,
        set_id=draft.set_id,
        digest=draft.digest,
        noncanonical=draft.noncanonical,
        key_ids=tuple(part.key_ids for number, part in enumerate(draft.parts) if number not in dropped),
    )


def _batch_of(head: Head, raws: Sequence[bytes], fence: int) -> Batch:
    return Batch(
        log_id=head.log_id,
        first=head.size,
        count=len(raws),
        previous_key=None if head.batch_first is None else batch_key(head.batch_first),
        previous_count=head.batch_count,
        previous_digest=head.batch_digest or None,
        checkpoint_size=head.checkpoint_size,
        checkpoint_digest=head.checkpoint_digest or None,
        fence=fence,
        headers=tuple(raws),
    )


def _receipt(head: Head, batch: Batch, data: bytes, now: datetime) -> str:
    """Return a signed note over a flush: it commits to every header of the batch."""
    text = (
        f"muniment-receipt/v1\n{head.origin}\n{batch.first}\n{batch.count}\n"
        f"{sha256(data).hexdigest()}\n{now:%Y-%m-%dT%H:%M:%S.%fZ}\n"
    )
    return sign_note(text, head.signers).decode()
