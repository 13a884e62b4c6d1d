"""The head of one log in memory: opened from the database and caught up with the bucket.

Guarantees: after `open_head` the database's index holds every batch that the bucket holds, the tree is that of all of
them, and nothing in the bucket contradicts it. Otherwise the head is read-only with the reason. A batch that names
another predecessor, a checkpoint that this tree does not extend, or a bucket that is behind the database stops the log
(`LogForked`, `LogRolledBack`): never sign over a contradiction. `open_reader` needs no lease and writes nothing: its
tree is that of the newest checkpoint the database knows. Source: DESIGN §3 steps 5–7, crash table of the ledger.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from itertools import islice
from time import monotonic
from typing import Protocol

import sqlalchemy as sa
from sqlmodel import Session, col

from ledger import index, outbox
from ledger.batches import Batch, batch_key, decode_batch
from ledger.behind import Behind, note
from ledger.checkpoint import Checkpoint
from ledger.entry import NO_PREVIOUS, decode_header, header_hash
from ledger.errors import (
    DatabaseWentBack,
    LogForked,
    LogRolledBack,
    MalformedBatch,
    NotLeader,
    ObjectExists,
    ObjectMissing,
    RecordDamaged,
    SigningKeyMissing,
)
from ledger.keyring import LOG, KeyWindow, NamedSigner, open_checkpoint, read_windows, signers
from ledger.merkle import root_of
from ledger.models import LogState
from ledger.objects import GatheringStore, HotStore, ObjectStore
from ledger.positions import Positions
from ledger.repeats import Lately
from ledger.tiles import TILE_WIDTH
from ledger.tree import Again, Tree, require_equal

_ANOTHER_ROOT = (
    "the checkpoint of size {size} has another root: batches were exchanged, or an upper tile in the unlocked store is "
    "damaged; muniment verify --all says which"
)
_TRIES = 3
READ_AGAIN_AFTER = 600.0
"""Seconds after which a log that led to another root is read whole again: a batch may have been put back meanwhile."""


class Transactions(Protocol):
    """Opens a database transaction of one tenant; commits at the end, rolls back on an error."""

    def __call__(self, tenant_id: int, *, write: bool = True) -> AbstractContextManager[Session]:
        """Return the transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogParts:
    """What a log is made of.

    `signer` gives the log's first key by origin; `lock_end` the end of LOG_TERM from an instant. `later_signer` gives
    the key of a generation after a rotation; without it no log of this deployment can rotate. `behind` is called when
    the database turned out to lack batches: what they decided is to be applied.
    """

    transactions: Transactions
    locked: ObjectStore
    hot: HotStore
    signer: Callable[[str], NamedSigner]
    lock_end: Callable[[datetime], datetime]
    later_signer: Callable[[str, int], NamedSigner] | None = None
    behind: Callable[[], None] = lambda: None
    forked: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Logs whose batches, all of them, led to another root than was signed: their size, and when (monotonic)."""

    def signer_of(self, origin: str, generation: int) -> NamedSigner:
        """Return the log's key of a generation. Raises: SigningKeyMissing."""
        if generation == 0:
            return self.signer(origin)
        if self.later_signer is None:
            raise SigningKeyMissing(use=LOG, generation=generation)
        return self.later_signer(origin, generation)


@dataclass(slots=True, kw_only=True)
class Head:
    """One log's end. Only the holder of `lock` changes it.

    `keys` are all keys the log ever had, `signers` those that sign now, the newest last.
    """

    tenant_id: int
    log_id: str
    origin: str
    tree: Tree
    keys: tuple[KeyWindow, ...]
    signers: tuple[NamedSigner, ...]
    lock: threading.RLock = field(default_factory=threading.RLock)
    size: int = 0
    batch_first: int | None = None
    batch_count: int = 0
    batch_digest: bytes = b""
    previous: bytes = NO_PREVIOUS
    checkpoint_size: int = 0
    checkpoint_digest: bytes = b""
    checkpoint_note: bytes = b""
    checkpoint_at: datetime | None = None
    unintegrated: list[bytes] = field(default_factory=list)
    read_only: str | None = None
    stale: bool = False
    fence: int = 0
    under: int = 0
    positions: Positions = field(default_factory=Positions)
    lately: Lately = field(default_factory=Lately)
    saved: int = 0
    """The size that the database was last seen to know."""

    def key(self, name: str) -> str:
        """Return the object key of a name below this log's prefix."""
        return f"{self.log_id}/{name}"

    def become(self, other: Head) -> None:
        """Take over a newly opened head of the same log, keeping the lock that callers wait for."""
        for name in ("tree", "size", "batch_first", "batch_count", "batch_digest", "previous", "checkpoint_size",
                     "checkpoint_digest", "checkpoint_note", "checkpoint_at", "unintegrated", "read_only", "keys",
                     "signers", "fence", "saved", "positions"):  # fmt: skip
            setattr(self, name, getattr(other, name))
        self.stale = False

    def require_writable(self) -> None:
        """Raises: LogForked when a contradiction was found earlier."""
        if self.read_only is not None:
            raise LogForked(f"the log is read-only: {self.read_only}", size=self.size)

    def took(self, batch: Batch, digest: bytes, leaves: Sequence[bytes]) -> None:
        """Move the end behind a stored batch."""
        self.size = batch.first + batch.count
        self.batch_first, self.batch_count, self.batch_digest = batch.first, batch.count, digest
        self.previous, self.fence = leaves[-1], batch.fence
        self.unintegrated.extend(leaves)


def open_head(parts: LogParts, tenant_id: int) -> Head:
    """Return the caught-up head of a tenant's log.

    Raises: ObjectMissing, LogForked, LogRolledBack, and what store and database raise.
    """
    for _ in range(_TRIES - 1):
        # Another process may index the same batch at the same time; then it is there.
        with suppress(sa.exc.IntegrityError):
            return _open_head(parts, tenant_id)
    # Or a row of the index that was changed is in its way.
    return _open_head(parts, tenant_id, clears=True)


def _open_head(parts: LogParts, tenant_id: int, *, clears: bool = False) -> Head:
    with parts.transactions(tenant_id, write=False) as session:
        state = index.state_of(session, tenant_id)
        if state is None:
            raise ObjectMissing("log_state")
        head = _from_state(parts, state, mends=True)
        last = state.batch_first
        read_only = state.read_only
    _stand_at_newest_batch(parts, head)
    catch_up(parts, head, after=last, clears=clears)
    for again in Again:
        try:
            _open_tree(parts, head, again)
            _check_newest_checkpoint(parts, head)
        except (LogForked, RecordDamaged):
            # A tile may be lost or damaged: what the batches, or the tiles below it, give decides, and mends it.
            if again is Again.EVERYTHING:
                parts.forked[head.log_id] = head.size, monotonic()
            if again is Again.EVERYTHING or (again is Again.ABOVE and _was_read_lately(parts, head)):
                raise
        else:
            break
    parts.forked.pop(head.log_id, None)
    if again is not Again.NOTHING:
        head.tree.mend()
    head.read_only = read_only
    return head


def _was_read_lately(parts: LogParts, head: Head) -> bool:
    size, at = parts.forked.get(head.log_id, (None, 0.0))
    return size == head.size and monotonic() < at + READ_AGAIN_AFTER


def open_reader(parts: LogParts, tenant_id: int) -> Head:
    """Return a head to read from: the tree of the newest checkpoint that the database knows. Writes nothing.

    Raises: ObjectMissing, LogForked, and what store and database raise.
    """
    with parts.transactions(tenant_id, write=False) as session:
        state = index.state_of(session, tenant_id)
        if state is None:
            raise ObjectMissing("log_state")
        head = _from_state(parts, state)
        head.read_only = state.read_only
    size = head.checkpoint_size
    tail = list(islice(_leaves_from(parts, head, size - size % TILE_WIDTH), size % TILE_WIDTH))
    if not size:
        head.tree.open(0, tail)
        return head
    head.checkpoint_note = parts.locked.get(head.key(checkpoint_key(size)))
    checkpoint = read_checkpoint(head, head.checkpoint_note)
    for again in (Again.NOTHING, Again.LEAVES, Again.ABOVE):
        with suppress(RecordDamaged):
            head.tree.open(size, tail, again=again)
            if (checkpoint.size, checkpoint.root) == (size, head.tree.root()):
                return head
    raise LogForked(_ANOTHER_ROOT.format(size=size), size=size)


def _stand_at_newest_batch(parts: LogParts, head: Head) -> None:
    """Take the log's end from the newest batch that the database knows, not from what its row says of it.

    The next header and the next batch name it, and nobody can take them back: a changed byte of the row would be a
    fault of the record for ever. Raises: RecordDamaged; LogRolledBack for a row that knows more than the bucket has.
    """
    if head.batch_first is None:
        return
    key = batch_key(head.batch_first)
    try:
        data = parts.locked.get(head.key(key))
        batch = decode_batch(data)
    except ObjectMissing as error:
        raise LogRolledBack(expected=head.size, got=head.batch_first) from error
    except MalformedBatch as error:
        raise RecordDamaged("altered", f"{key} is not what the log writes ({error.reason})") from error
    if (batch.log_id, batch.first) != (head.log_id, head.batch_first):
        raise RecordDamaged("altered", f"{key} holds another batch")
    if head.size > batch.end:
        raise LogRolledBack(expected=head.size, got=batch.end)
    head.size, head.batch_count, head.batch_digest = batch.end, batch.count, sha256(data).digest()
    head.previous, head.fence = header_hash(batch.headers[-1]), batch.fence


def catch_up(parts: LogParts, head: Head, *, after: int | None, clears: bool = False) -> int:
    """Index every batch that the bucket has beyond the head; returns how many entries were added.

    Before the first of them is indexed a note says from where on the record has to be applied (`ledger.behind`).
    `clears` removes rows of streams that contradict it.
    Raises: LogForked when a batch does not continue this log.
    """
    added = 0
    start = head.key(batch_key(after)) if after is not None else None
    for key in parts.locked.list(head.key("batch/"), after=start):
        data = parts.locked.get(key)
        batch, digest = decode_batch(data), sha256(data).digest()
        require_continues(head, batch)
        headers = [decode_header(raw) for raw in batch.headers]
        lines = index.decode_lines(
            parts.hot.get(head.key(index_key(batch.first, digest))), [header.id for header in headers]
        )
        leaves = [header_hash(raw) for raw in batch.headers]
        if not added and note(parts.hot, head.log_id, Behind(size=head.size)):
            parts.behind()
        with parts.transactions(head.tenant_id) as session:
            if clears:
                index.drop_strays(session, head.tenant_id, headers, lines)
            index.insert(session, head.tenant_id, batch.first, headers, lines)
            head.took(batch, digest, leaves)
            save(session, head)
            outbox.caught_up(session, head.tenant_id, head.log_id, headers)
        added += batch.count
    return added


def require_continues(head: Head, batch: Batch) -> None:
    """Check that a batch is the next one of this log. Raises: LogForked."""
    if batch.log_id != head.log_id or batch.first != head.size:
        raise LogForked(f"batch {batch.first} does not continue a log of size {head.size}", size=head.size)
    if head.batch_first is not None and (
        batch.previous_key != batch_key(head.batch_first)
        or batch.previous_count != head.batch_count
        or batch.previous_digest != head.batch_digest
    ):
        raise LogForked(f"batch {batch.first} names another predecessor", size=head.size)
    if batch.fence < head.fence:
        raise LogForked(f"batch {batch.first} was written by a process that had lost the lease", size=head.size)


def index_key(first: int, digest: bytes) -> str:
    """Return the key, in the unlocked store, of what the index knows of a batch beside its headers."""
    return f"index/{first:020d}-{digest.hex()[:16]}"


def save(session: Session, head: Head) -> None:
    """Write the head's end to the database, in the caller's transaction.

    Raises: NotLeader when the database is ahead: another process leads, and this one must not take its end back.
    DatabaseWentBack when it is behind what it knew: saving would leave a hole in its index.
    """
    state = session.get(LogState, head.tenant_id, with_for_update=True)
    if state is None:
        raise ObjectMissing("log_state")
    if state.size > head.size or state.checkpoint_size > head.checkpoint_size:
        raise NotLeader(f"the database knows a log of {state.size} entries, this process one of {head.size}")
    if state.size < head.saved:
        raise DatabaseWentBack(expected=head.saved, got=state.size)
    head.saved = head.size
    state.size, state.previous = head.size, head.previous
    state.batch_first, state.batch_count, state.batch_digest = head.batch_first, head.batch_count, head.batch_digest
    state.checkpoint_size, state.checkpoint_digest = head.checkpoint_size, head.checkpoint_digest
    state.checkpoint_at, state.fence = head.checkpoint_at, head.fence
    state.read_only = head.read_only
    session.add(state)


def require_not_back(session: Session, head: Head) -> None:
    """Check that the database knows all of the log that this process has seen it know.

    What an older copy answers about duplicates and positions would go into a batch that nobody can take back.
    Raises: DatabaseWentBack.
    """
    query = sa.select(col(LogState.size)).where(col(LogState.tenant_id) == head.tenant_id)
    size = session.execute(query).scalar() or 0
    if size < head.saved:
        raise DatabaseWentBack(expected=head.saved, got=size)


def _together(hot: GatheringStore, log_id: str) -> Callable[[Sequence[tuple[str, bytes]]], None]:
    return lambda tiles: hot.put_together([(f"{log_id}/{path}", data) for path, data in tiles])


def _from_state(parts: LogParts, state: LogState, *, mends: bool = False) -> Head:
    tenant_id, log_id, hot = state.tenant_id, state.log_id, parts.hot

    def put(path: str, data: bytes) -> None:
        try:
            hot.put(f"{log_id}/{path}", data, lock_until=None)
        except ObjectExists:
            require_equal(path, data, hot.get(f"{log_id}/{path}"))

    def leaves(number: int) -> list[bytes]:
        first = number * TILE_WIDTH
        return list(islice(_leaves(parts, tenant_id, log_id, first, first + TILE_WIDTH), TILE_WIDTH))

    def mend(path: str, data: bytes) -> None:
        hot.replace(f"{log_id}/{path}", data)

    keys = read_windows(parts.locked, log_id, LOG, parts.signer(state.origin).vkey)
    return Head(
        tenant_id=state.tenant_id,
        log_id=log_id,
        origin=state.origin,
        tree=Tree(
            put=put,
            get=lambda path: hot.get(f"{log_id}/{path}"),
            leaves=leaves,
            mend=mend if mends else _leave,
            put_together=_together(hot, log_id) if isinstance(hot, GatheringStore) else None,
        ),
        keys=keys,
        signers=signers(keys, lambda generation: parts.signer_of(state.origin, generation)),
        size=state.size,
        saved=state.size,
        batch_first=state.batch_first,
        batch_count=state.batch_count,
        batch_digest=state.batch_digest,
        previous=state.previous,
        checkpoint_size=state.checkpoint_size,
        checkpoint_digest=state.checkpoint_digest,
        checkpoint_at=state.checkpoint_at,
        fence=state.fence,
    )


def _leave(_path: str, _data: bytes) -> None:
    """Mend nothing: who only reads writes nothing."""


def _open_tree(parts: LogParts, head: Head, again: Again) -> None:
    if again is Again.EVERYTHING:
        everything = _leaves_from(parts, head, 0)
        head.tree.make_again(head.checkpoint_size, islice(everything, head.checkpoint_size))
        head.unintegrated = list(everything)
        return
    start = head.checkpoint_size - head.checkpoint_size % TILE_WIDTH
    leaves = list(_leaves_from(parts, head, start))
    tail = head.checkpoint_size - start
    head.tree.open(head.checkpoint_size, leaves[:tail], again=again)
    head.unintegrated = leaves[tail:]


def _leaves_from(parts: LogParts, head: Head, start: int) -> Iterator[bytes]:
    """Yield the leaf hashes from an index to the head's end, read from the batches."""
    return _leaves(parts, head.tenant_id, head.log_id, start, head.size)


def _leaves(parts: LogParts, tenant_id: int, log_id: str, start: int, end: int) -> Iterator[bytes]:
    """Yield the leaf hashes from an index on, up to the end of the batch before `end`, read from the batches."""
    at = start
    while at < end:
        with parts.transactions(tenant_id, write=False) as session:
            first = index.batches_of(session, tenant_id, [at]).get(at)
        batch, _ = batch_with(parts, log_id, at, first)
        yield from (header_hash(raw) for raw in batch.headers[at - batch.first :])
        at = batch.end


def batch_with(parts: LogParts, log_id: str, idx: int, first: int | None) -> tuple[Batch, bytes]:
    """Return the batch that holds an entry, and its bytes: the one that the index names, or else the bucket's.

    Raises: ObjectMissing, MalformedBatch, and what the store raises.
    """
    if first is not None:
        with suppress(ObjectMissing, MalformedBatch):
            data = parts.locked.get(f"{log_id}/{batch_key(first)}")
            batch = decode_batch(data)
            if batch.log_id == log_id and batch.first <= idx < batch.end:
                return batch, data
    last = f"{log_id}/{batch_key(idx)}"
    for key in [key for key in parts.locked.list(f"{log_id}/batch/") if key <= last][-1:]:
        data = parts.locked.get(key)
        batch = decode_batch(data)
        if batch.log_id == log_id and batch.first <= idx < batch.end:
            return batch, data
    raise ObjectMissing(f"{log_id}/batch with entry {idx}")


def _check_newest_checkpoint(parts: LogParts, head: Head) -> None:
    """Check this log against the highest checkpoint in the bucket: never sign behind it, never beside it."""
    after = head.key(checkpoint_key(head.checkpoint_size - 1)) if head.checkpoint_size else None
    newest = None
    for key in parts.locked.list(head.key("checkpoint/"), after=after):
        newest = key
    if newest is None:
        if head.checkpoint_size:
            raise LogRolledBack(expected=head.checkpoint_size, got=0)
        return
    note = parts.locked.get(newest)
    checkpoint = read_checkpoint(head, note)
    if checkpoint.size > head.size:
        raise LogRolledBack(expected=checkpoint.size, got=head.size)
    new: list[tuple[str, bytes]] = []
    if checkpoint.size > head.checkpoint_size:
        new = head.tree.grow(head.unintegrated[: checkpoint.size - head.checkpoint_size])
        head.unintegrated = head.unintegrated[checkpoint.size - head.checkpoint_size :]
    if root_of(checkpoint.size, head.tree.read) != checkpoint.root:
        raise LogForked(_ANOTHER_ROOT.format(size=checkpoint.size), size=head.size)
    head.tree.restore(new)
    head.checkpoint_size, head.checkpoint_note = checkpoint.size, note
    head.checkpoint_digest = sha256(note).digest()


def read_checkpoint(head: Head, note: bytes) -> Checkpoint:
    """Return the checkpoint that a key of this log signed in its time.

    Raises: BadSignature, MalformedNote, LogForked.
    """
    checkpoint = open_checkpoint(note, head.keys)
    if checkpoint.origin != head.origin:
        raise LogForked(f"a checkpoint of {checkpoint.origin} lies in the bucket of {head.origin}")
    return checkpoint


def checkpoint_key(size: int) -> str:
    """Return the key of the checkpoint of a size, below the log's prefix."""
    return f"checkpoint/{size:020d}"
