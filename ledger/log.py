"""All logs of a deployment: appending to them, signing them, reading from them.

Under the lease this process is the one writer (`ledger.flush`, with the order of writes); without it, a process that
may stage stores the payload and waits for the holder (`ledger.handover`). It then reads from the newest checkpoint and
writes nothing else.

Guarantees: an acknowledged entry is in the bucket; none is stored twice, no index used twice, however many processes
believe they lead. Not here: what parts mean, who may write, keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime

from sqlmodel import Session

from ledger import index, staging
from ledger.draft import Appended, Draft
from ledger.entry import Part, header_hash
from ledger.errors import CheckpointPending, LogForked, LogRolledBack, NotLeader, RecordDamaged
from ledger.flush import Flush
from ledger.handover import Handover
from ledger.head import Head, LogParts
from ledger.heads import Heads
from ledger.keyring import KeyWindow, change_key
from ledger.lease import Lease
from ledger.lookup import Found, headers_at
from ledger.merkle import consistency_proof, inclusion_proof
from ledger.models import LogState
from ledger.payloads import Payloads
from ledger.placing import Stored
from ledger.row_digests import DigestsOf
from ledger.turns import FLUSH_ENTRIES, Admit, Call, Turns


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
    """All logs of one deployment, behind one lease.

    With `stages` a process without it hands over, under these digests, instead of refusing.
    """

    def __init__(self, parts: LogParts, lease: Lease, *, stages: DigestsOf | None = None) -> None:
        self._parts = parts
        self._lease = lease
        self._stages = stages
        self._guard: Callable[[int], Admit] | None = None
        self._turns = Turns()
        self._heads = Heads(parts, lease)
        self._flush = Flush(parts, self._heads, stages=stages)
        self._handover = None if stages is None else Handover(parts, self._heads, lease, stages, self.serve)

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
        return self._heads.refusing

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
        To revoke, append an entry first: once the newest batch is this leader's, one that a former leader is still
        putting finds its index taken, and gives no receipt by the revoked key.
        Raises: NotLeader, also to revoke behind a batch of another leader; LogForked, SigningKeyMissing, and what the
        store raises.
        """
        with self._heads.leading(tenant_id) as head:
            if revoke and head.fence != self._lease.check():
                raise NotLeader("the newest batch is another leader's: append an entry, then revoke")
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
                # A successor would sign on without the new key, which `revoke` makes a fault of its log for ever.
                pinned=self._lease.pinned(head.under),
            )
            self._heads.reopen(head)
        return note

    def head(self, tenant_id: int) -> Head:
        """Return the tenant's head: the log's end while this process leads, else one to read from.

        It is opened at its first use and may be old; `entered` brings it up to date. Raises: LogForked, LogRolledBack.
        """
        return self._heads.head(tenant_id)

    def forget_heads(self) -> None:
        """Take up every log afresh at its next use, after the database was restored."""
        self._heads.forget()

    @contextmanager
    def entered(self, tenant_id: int) -> Iterator[Head]:
        """Hold the tenant's head, up to date, to read from its tree."""
        with self._heads.entered(tenant_id) as head:
            yield head

    def append(self, tenant_id: int, drafts: Sequence[Draft], *, now: datetime, admit: Admit | None = None) -> Appended:
        """Sequence drafts and return their places; waits for the flush they are part of.

        Callers that arrive during a flush share the next one. Raises: NotLeader, LogForked, StoreUnavailable, …; then
        nothing is promised and the same drafts may be sent again.
        """

        def place(calls: Sequence[Call]) -> list[Appended]:
            return self._place(tenant_id, calls, now)

        return self._turns.take(tenant_id, Call(drafts=drafts, admit=admit), place)

    def serve(self, now: datetime) -> int:
        """Do what other processes knocked for, if this one leads; returns how many knocks were answered.

        Raises: what the first failing log raises, after the others had their turn; its knocks stay.
        """
        if self._stages is None or not self._lease.held:
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
        if self._handover is not None and not self._lease.held:
            return self._handover.await_checkpoint(tenant_id, now, at_least)
        with self._heads.leading(tenant_id) as head:
            if head.size == head.checkpoint_size:
                return head.checkpoint_note
            if head.size < at_least:
                raise LogForked(f"expected a log of at least {at_least} entries, it has {head.size}", size=head.size)
            head.require_writable()
            self._heads.require_rank(head)
            try:
                return self._flush.publish(head, now)
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
        for tenant_id in self._heads.grown():
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
        return headers_at(self._heads.reader_of(head), head.log_id, batch_of, indexes)

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

    # ── what this process sequences, and for whom ──

    def _place(self, tenant_id: int, calls: Sequence[Call], now: datetime) -> list[Appended]:
        stored: Stored = {}
        try:
            try:
                return self._lead(tenant_id, calls, stored, now)
            except NotLeader:
                if self._handover is None:
                    raise
                if self._handover.takes_over(now):
                    with suppress(NotLeader):  # another process was faster still
                        return self._lead(tenant_id, calls, stored, now)
                answers = self._handover.stage(tenant_id, calls, stored, now)
                self._heads.met(tenant_id, None)
                return answers
        except (LogForked, LogRolledBack, RecordDamaged) as problem:
            self._heads.met(tenant_id, str(problem))
            raise

    def _lead(self, tenant_id: int, calls: Sequence[Call], stored: Stored, now: datetime) -> list[Appended]:
        """Place calls, and behind them what other processes staged; returns the answers to the calls alone."""
        with self._heads.leading(tenant_id) as head:
            try:
                staged = self._staged(tenant_id, calls, stored, now)
                return self._flush.place(head, [*calls, *staged], stored, now)[: len(calls)]
            except BaseException:
                # The batch may be in the bucket although we failed: the next use opens the log afresh and catches up.
                head.stale = True
                raise

    def _staged(self, tenant_id: int, calls: Sequence[Call], stored: Stored, now: datetime) -> list[Call]:
        room = FLUSH_ENTRIES - sum(len(call.drafts) for call in calls)
        if self._stages is None or (calls and room <= 0):
            return []
        digests = self._stages(tenant_id)
        while True:
            with self._parts.transactions(tenant_id, write=False) as session:
                found, unreadable = staging.waiting(session, tenant_id, entries=room, digests=digests)
            if unreadable:
                with self._parts.transactions(tenant_id) as session:
                    staging.refuse_unreadable(session, tenant_id, unreadable, now, digests=digests)
            # Behind many that are refused others may wait, and nobody would knock for them again.
            if found or not unreadable:
                break
        admit = None if self._guard is None else self._guard(tenant_id)
        for one in found:
            stored.update(one.stored)
        return [Call(drafts=one.drafts, admit=admit, staged_id=one.staged_id) for one in found]

    def _serve_one(self, tenant_id: int, wants: set[str], now: datetime) -> None:
        try:
            if staging.STAGED in wants:
                while self._drain(tenant_id, now):
                    pass
            if staging.CHECKPOINT in wants:
                self.publish(tenant_id, now)
        except (LogForked, LogRolledBack, RecordDamaged) as error:
            if self._stages is None:
                raise
            with self._parts.transactions(tenant_id) as session:
                staging.refuse(session, tenant_id, error, now, digests=self._stages(tenant_id))

    def _drain(self, tenant_id: int, now: datetime) -> int:
        with self._heads.leading(tenant_id) as head:
            stored: Stored = {}
            calls = self._staged(tenant_id, [], stored, now)
            if calls:
                try:
                    self._flush.place(head, calls, stored, now)
                except BaseException:
                    head.stale = True
                    raise
        return len(calls)
