"""One flush: from calls to entries in the log; and what signs the log's end.

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

Guarantees: what an answer says is stored is in the bucket; no entry is stored twice, no index used twice, however many
processes believe they lead; nothing is signed over a contradiction. What an error leaves only a fresh look at the
bucket can tell: whoever calls marks the head as stale. Not here: who may lead, who waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256

import sqlalchemy as sa

from ledger import index, staging
from ledger.batches import Batch, batch_key, encode_batch
from ledger.checkpoint import format_checkpoint, sign_note
from ledger.draft import Appended, Draft, Placed, PlacedState
from ledger.entry import Part
from ledger.errors import LogForked, NotLeader, ObjectExists
from ledger.head import Head, LogParts, batch_with, checkpoint_key, index_key, read_checkpoint, require_not_back, save
from ledger.heads import Heads
from ledger.merkle import consistency_proof, verify_consistency
from ledger.placing import Chain, Fresh, Stored, batch_of, chain, index_lines, personal, receipt_of
from ledger.positions import backwards, settle
from ledger.repeats import Anew, Known, doubts
from ledger.row_digests import DigestsOf
from ledger.storing import storing
from ledger.turns import Call

_TRIES = 3
_Answers = dict[tuple[str, bytes], Placed]


class Flush:
    """Moves the ends of logs.

    With `stages` other processes hand calls over, and are answered in the same transaction, under these digests.
    """

    def __init__(self, parts: LogParts, heads: Heads, *, stages: DigestsOf | None) -> None:
        self._parts = parts
        self._heads = heads
        self._stages = stages

    def place(self, head: Head, calls: Sequence[Call], stored: Stored, now: datetime) -> list[Appended]:
        """Do steps 1 to 6 for the calls of one flush."""
        for _ in range(_TRIES):
            head.require_writable()
            fence = self._heads.require_rank(head)
            placed, fresh = self._admit(head, calls)  # 1
            if not fresh:
                answers = _answers(calls, placed, None)
                self._answer_staged(head, calls, answers, now)
                return answers
            with storing(self._heads.putter(head), fresh, stored, now) as (places, is_stored):  # 2
                done = self._sequence(head, calls, fresh, places, placed, is_stored=is_stored, fence=fence, now=now)
            if done is not None:  # 3, 4, 5, 6
                return done
            # Another writer has this index: take its batches in, then sequence behind them. The payload stays.
            self._heads.reopen(head)
        raise NotLeader("another writer keeps winning this log's end")

    def _admit(self, head: Head, calls: Sequence[Call]) -> tuple[_Answers, list[tuple[Draft, frozenset[int]]]]:
        placed: _Answers = {}
        fresh: list[tuple[Draft, frozenset[int]]] = []
        with self._parts.transactions(head.tenant_id, write=False) as session:
            require_not_back(session, head)
            drafts = [draft for call in calls for draft in call.drafts]
            there: Known = index.known(session, head.tenant_id, (draft.entry_id for draft in drafts))
            closed: list[frozenset[int]] = []
            for call in calls:
                closed += call.admit(session, call.drafts) if call.admit else [frozenset[int]()] * len(call.drafts)
        untold: frozenset[str] = frozenset()
        if asked := doubts(drafts, there, head.lately):
            there, untold = self._settled(head, drafts, there, asked)
        first_of: dict[str, Draft] = {}
        for draft, dropped in zip(drafts, closed, strict=True):
            row, earlier = there.get(draft.entry_id), first_of.get(draft.entry_id)
            key = (draft.entry_id, draft.digest)
            same = row is not None and row.digest == draft.digest
            if draft.entry_id in untold and not same:
                placed[key] = Placed(entry_id=draft.entry_id, state=PlacedState.DAMAGED, index=None)
            elif row is not None:
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

    def _settled(
        self, head: Head, drafts: Sequence[Draft], there: Known, asked: Mapping[str, int]
    ) -> tuple[Known, frozenset[str]]:
        """What the index knows of drafts once its doubtful rows are as the record says, and the ids nobody can tell."""
        anew = Anew(
            lambda idx, first: batch_with(self._parts, head.log_id, idx, first),
            lambda batch, data, headers: index.decode_lines(
                self._parts.hot.get(head.key(index_key(batch.first, sha256(data).digest()))),
                [header.id for header in headers],
            ),
        )
        false, untold = anew.false(asked, there)
        if not false:
            return there, untold
        with self._parts.transactions(head.tenant_id) as session:
            for rows in false:
                index.write_anew(session, head.tenant_id, rows.first, rows.headers, rows.lines or ())
            return index.known(session, head.tenant_id, (draft.entry_id for draft in drafts)), untold

    def _sequence(
        self,
        head: Head,
        calls: Sequence[Call],
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
                    if self._stages is not None and not rest:
                        staged = _staged_answers(calls, answers)
                        staging.answer(session, head.tenant_id, staged, now, digests=self._stages(head.tenant_id))
                head.positions.moved((line.stream_no for line in lines), made.headers)
                head.lately.note(batch.first, made.headers)
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
            batches = backwards(self._heads.reader_of(head), head.log_id, head.batch_first, head.batch_digest)
            with self._parts.transactions(head.tenant_id) as session:
                found |= settle(session, head.tenant_id, {number: streams[number] for number in doubts}, batches)
        return chain(fresh, stored, previous=head.previous, positions=found)

    def _answer_staged(self, head: Head, calls: Sequence[Call], answers: Sequence[Appended], now: datetime) -> None:
        wanted = _staged_answers(calls, answers)
        if wanted and self._stages is not None:
            with self._parts.transactions(head.tenant_id) as session:
                staging.answer(session, head.tenant_id, wanted, now, digests=self._stages(head.tenant_id))

    def _put_batch(self, head: Head, batch: Batch, data: bytes, now: datetime) -> bool:
        key = head.key(batch_key(batch.first))
        try:
            self._parts.locked.put(key, data, lock_until=self._parts.lock_end(now))
        except ObjectExists:
            return self._parts.locked.get(key) == data
        return True

    def publish(self, head: Head, now: datetime) -> bytes:
        """Do step 7; returns the signed checkpoint. Raises: LogForked, after which the log takes nothing."""
        old_size = head.checkpoint_size
        # The root that was signed, not the one that this tree would have had then.
        old_root = read_checkpoint(head, head.checkpoint_note).root if old_size else b""
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


def _answers(calls: Sequence[Call], placed: _Answers, receipt: str | None) -> list[Appended]:
    return [
        Appended(placed=[placed[draft.entry_id, draft.digest] for draft in call.drafts], receipt=receipt)
        for call in calls
    ]


def _staged_answers(calls: Sequence[Call], answers: Sequence[Appended]) -> dict[str, Appended]:
    return {call.staged_id: found for call, found in zip(calls, answers, strict=True) if call.staged_id is not None}
