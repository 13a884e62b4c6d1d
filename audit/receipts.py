"""Whether what a log acknowledged still stands in it: the receipts that its callers kept, against the bucket.

 1. Open each receipt with the log's keys, each within its window. What none of them signed says nothing of this log.
 2. List the checkpoints, then the batches, in this order: a log that grows meanwhile is never called short.
 3. Read the batches from the first on, as far as the receipts and one good checkpoint behind them reach; grow the tree.
 4. Place each receipt: its last batch has the digest that it signs, and each batch of its flush names the one before.
    As a batch names its predecessor, a good receipt commits to every entry before it too.
 5. Of each entry that the answer names, compare the id with the header that stands at its index.

Guarantees: `covered` means that the batches give the root that a checkpoint signs; no cache and no database is asked.
A receipt that contradicts the log is a proven fault of whoever signed both; a receipt that cannot be opened never is.
Not here: the content of entries, and whether the rest of the log is sound (`audit.verify`): receipts that all stand are
called `acknowledged`, never `sound`. Nothing is decrypted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from audit.findings import Finding, Verdict, worst
from audit.headers import read_header, read_headers
from audit.keys import LogKey, log_key, open_checkpoint
from audit.reader import Reader, uncovered, whole
from audit.receipt_file import Answer, Receipt, parse_receipt
from ledger.batches import batch_digest, batch_key, decode_batch, parse_batch_key
from ledger.checkpoint import Checkpoint, open_note
from ledger.errors import (
    BadSignature,
    MalformedBatch,
    MalformedHeader,
    MalformedNote,
    ObjectHidden,
    ObjectMissing,
    StoreDenied,
    StoreUnavailable,
)
from ledger.merkle import Frontier, leaf_hashes

_CHECKPOINTS, _BATCHES = "checkpoint/", "batch/"
_TRIED = 20
"""So many checkpoints that cannot be used are named; then there is none."""
ACKNOWLEDGED, FOUND = "acknowledged", "found"
_VERIFY = "muniment verify says what became of the log"
_HIDDEN = "a delete marker or a second version lies over its batch; remove it, the first version is kept"
_STOLEN = "; its key signs no more: if it was stolen, the thief may have made this receipt"


class Standing(StrEnum):
    """What a receipt comes to."""

    COVERED = "covered"
    STORED = "stored"
    LOST = "lost"
    REPLACED = "replaced"
    DAMAGED = "damaged"
    HIDDEN = "hidden"
    DIFFERS = "differs"
    REFUSED = "refused"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One note of an answer, or (`receipt` is None) what stands in the answer and is under no note."""

    line: int
    standing: Standing
    verdict: Verdict = Verdict.SOUND
    detail: str = ""
    receipt: Receipt | None = None
    object: str | None = None
    entry: str | None = None
    index: int | None = None

    def finding(self) -> Finding | None:
        """Return what is wrong; None for nothing."""
        if self.verdict is Verdict.SOUND:
            return None
        detail = f"receipt in line {self.line}: {self.detail}"
        return Finding(verdict=self.verdict, object=self.object, entry=self.entry, index=self.index, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptReport:
    """What the receipts of one log come to.

    `size`: as far as the batches were read. `covered_size`: that of the checkpoint which they agree with.
    """

    log_id: str
    checked: tuple[Checked, ...]
    size: int = 0
    covered_size: int = 0
    beside: tuple[Finding, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong, of receipts and of what they needed."""
        return (*(one for one in map(Checked.finding, self.checked) if one is not None), *self.beside)

    @property
    def verdict(self) -> Verdict:
        """The worst of it."""
        return worst(finding.verdict for finding in self.findings)

    @property
    def counts(self) -> Counter[Standing]:
        """How many receipts stand how."""
        return Counter(one.standing for one in self.checked)

    @property
    def unsigned(self) -> int:
        """How many answers bear no receipt, and what they name was found: nothing that the log signed says so."""
        return sum(one.receipt is None and one.verdict is Verdict.SOUND for one in self.checked)


def word_of(reports: Sequence[ReceiptReport]) -> str:
    """Return what the receipts of several logs come to: a fault, else `acknowledged`, or `found` where none is."""
    verdict = worst(report.verdict for report in reports)
    if verdict is not Verdict.SOUND:
        return verdict.value
    is_signed = any(one.receipt is not None for report in reports for one in report.checked)
    return ACKNOWLEDGED if is_signed else FOUND


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """One batch as it lies there; `fault` when it cannot be read, and then nothing else is known of it."""

    key: str
    first: int
    end: int | None = None
    digest: bytes = b""
    previous: bytes | None = None
    fault: Verdict | None = None
    detail: str = ""


@dataclass(slots=True, kw_only=True)
class _Walk:
    """The batches that were read, the ids at the wanted indexes, and the tree as far as nothing is missing."""

    wanted: frozenset[int]
    checkpoint: Checkpoint | None
    segments: list[_Segment] = field(default_factory=list)
    ids: dict[int, str] = field(default_factory=dict)
    tree: Frontier = field(default_factory=Frontier)

    @property
    def size(self) -> int:
        """The end of the last batch; its first index, where its end is not known."""
        last = self.segments[-1] if self.segments else None
        return 0 if last is None else last.first if last.end is None else last.end

    def holding(self, index: int) -> tuple[_Segment | None, int]:
        """Return the batch that holds an index, or None, and the place in the list behind it."""
        place = bisect_right(self.segments, index, key=lambda one: one.first)
        found = self.segments[place - 1] if place else None
        if found is not None and found.end is not None and found.end <= index:
            found = None
        return found, place

    def is_chained(self, size: int) -> bool:
        """Whether each batch below a size names the digest of the one before it."""
        return all(
            before.fault is None and after.previous == before.digest
            for before, after in pairwise(self.segments)
            if after.first < size
        )


_Opened = list[tuple[Answer, list[tuple[Receipt, bool]]]]
"""Answers with those of their receipts that a key of the log signed, and whether that key signs no more."""


def check_receipts(
    reader: Reader,
    *,
    log_id: str,
    keys: Sequence[str],
    answers: Sequence[Answer],
    progress: Callable[[int], None] | None = None,
) -> ReceiptReport:
    """Return what the receipts in these answers come to in the log of this bucket.

    `keys` are all vkeys of the log, each with its window where it has one. `progress` is told how many entries of the
    log were read. Raises: BadPin for no usable key; StoreUnavailable, StoreDenied when the bucket cannot be listed.
    """
    return _Check(reader, log_id, [log_key(text) for text in dict.fromkeys(keys)]).run(answers, progress)


class _Check:
    def __init__(self, reader: Reader, log_id: str, keys: Sequence[LogKey]) -> None:
        self._reader, self._keys = reader, keys
        self._log_id, self._prefix = log_id, f"{log_id}/"
        self._origin = f"muniment/{log_id}"
        self._checked: list[Checked] = []
        self._beside: list[Finding] = []

    def run(self, answers: Sequence[Answer], progress: Callable[[int], None] | None) -> ReceiptReport:
        opened = self._open(answers)  # 1
        target = max((receipt.end for _, receipts in opened for receipt, _ in receipts), default=0)
        wanted = frozenset(index for answer, _ in opened for _, index in answer.entries)
        target = max(target, max(wanted, default=-1) + 1)
        walk = _Walk(wanted=wanted, checkpoint=self._checkpoint(target) if target else None)  # 2
        if target:
            self._read(walk, target, progress)  # 3
        covered = self._covered(walk)
        for answer, receipts in opened:
            for receipt, has_ended in receipts:
                self._checked.append(self._place(walk, answer, receipt, covered, has_ended=has_ended))  # 4, 5
            self._loose(walk, answer, receipts, covered)
        checked = tuple(sorted(self._checked, key=lambda one: one.line))
        beside = tuple(self._beside)
        return ReceiptReport(log_id=self._log_id, checked=checked, size=walk.size, covered_size=covered, beside=beside)

    # ── 1. receipts ──

    def _open(self, answers: Sequence[Answer]) -> _Opened:
        opened: _Opened = []
        for answer in answers:
            found: list[tuple[Receipt, bool]] = []
            if answer.fault is not None:
                self._refuse(answer, answer.fault)
            for note in answer.notes:
                try:
                    found.append(self._signed(note))
                except MalformedNote as error:
                    self._refuse(answer, f"it is no receipt ({error.reason})")
                except BadSignature as error:
                    self._refuse(answer, error.reason if error.name else "it was signed by no key of this log")
            if found or not answer.notes:
                opened.append((answer, found))
        return opened

    def _signed(self, note: bytes) -> tuple[Receipt, bool]:
        """The receipt in a note, and whether all keys that signed it within their windows sign no more."""
        signed = open_note(note, self._keys)
        receipt = parse_receipt(signed.text)
        if receipt.origin != self._origin:
            raise BadSignature("it is of another log than its key", name=receipt.origin)
        by = {(one.name, one.key_id) for one in signed.signatures}
        good = [key for key in self._keys if (key.name, key.key_id) in by and key.covers(receipt.end)]
        if not good:
            reason = f"its entries end at {receipt.end}, and only a key signed it that was revoked or replaced before"
            raise BadSignature(reason, name=receipt.origin)
        return receipt, all(key.until_size is not None for key in good)

    def _refuse(self, answer: Answer, detail: str) -> None:
        self._checked.append(
            Checked(line=answer.line, standing=Standing.REFUSED, verdict=Verdict.UNREADABLE, detail=detail)
        )

    # ── 2. and 3. the log ──

    def _checkpoint(self, target: int) -> Checkpoint | None:
        """The smallest checkpoint that covers everything asked for, else the largest there is."""
        prefix = f"{self._prefix}{_CHECKPOINTS}"
        sizes = [int(key[len(prefix) :]) for key in self._reader.list(prefix) if key[len(prefix) :].isdecimal()]
        best_first = [*(one for one in sizes if one >= target), *(one for one in reversed(sizes) if one < target)]
        for size in best_first[:_TRIED]:
            key = f"{prefix}{size:020d}"
            try:
                checkpoint = open_checkpoint(whole(self._reader, key), self._keys, self._origin)
            except (MalformedNote, BadSignature, ObjectHidden, ObjectMissing) as error:
                self._note(Verdict.UNREADABLE, f"this checkpoint could not be used ({error}); {_VERIFY}", key)
                continue
            if checkpoint.size == size:
                return checkpoint
            self._note(Verdict.ALTERED, f"its key stands for size {size}, it says {checkpoint.size}; {_VERIFY}", key)
        return None

    def _note(self, verdict: Verdict, detail: str, key: str, index: int | None = None) -> None:
        self._beside.append(Finding(verdict=verdict, detail=detail, object=key, index=index))

    def _read(self, walk: _Walk, target: int, progress: Callable[[int], None] | None) -> None:
        enough = max(target, 0 if walk.checkpoint is None else walk.checkpoint.size)
        for key, first in self._batches():
            if first >= enough:
                # One more: it names the digest of the last one that is looked at.
                walk.segments.append(self._segment(walk, key, first))
                return
            walk.segments.append(self._segment(walk, key, first))
            if progress is not None:
                progress(min(walk.size, enough))

    def _batches(self) -> Iterator[tuple[str, int]]:
        prefix = f"{self._prefix}{_BATCHES}"
        for key in self._reader.list(prefix):
            try:
                yield key, parse_batch_key(key.removeprefix(self._prefix))
            except MalformedBatch:
                continue  # no batch's name: nothing that a receipt could mean

    def _segment(self, walk: _Walk, key: str, first: int) -> _Segment:
        try:
            data = whole(self._reader, key)
            batch = decode_batch(data)
            if (batch.first, batch.log_id) != (first, self._log_id):
                detail = "its batch was put in the place of another"
                return _Segment(key=key, first=first, fault=Verdict.ALTERED, detail=detail)
            named = [at for at in range(first, batch.end) if at in walk.wanted] if walk.wanted else []
            raws = [batch.headers[at - first] for at in named]
            headers = read_headers(raws) or [read_header(raw) for raw in raws]
            walk.ids.update((at, header.id) for at, header in zip(named, headers, strict=True))
        except ObjectHidden:
            return _Segment(key=key, first=first, fault=Verdict.HIDDEN, detail=_HIDDEN)
        except (StoreUnavailable, StoreDenied) as error:
            detail = f"its batch could not be read: {error.detail}"
            return _Segment(key=key, first=first, fault=Verdict.UNREADABLE, detail=detail)
        except (MalformedBatch, MalformedHeader, ObjectMissing) as error:
            detail = f"its batch is not what was stored ({error})"
            return _Segment(key=key, first=first, fault=Verdict.ALTERED, detail=detail)
        if walk.tree.size == first:
            room = len(batch.headers) if walk.checkpoint is None else walk.checkpoint.size - first
            walk.tree.append_many(leaf_hashes(batch.headers[: max(room, 0)]))
        return _Segment(key=key, first=first, end=batch.end, digest=batch_digest(data), previous=batch.previous_digest)

    def _covered(self, walk: _Walk) -> int:
        """The size up to which the batches are under a signature of the log; says why, where it is none."""
        checkpoint = walk.checkpoint
        if checkpoint is None:
            return 0
        key = f"{self._prefix}{_CHECKPOINTS}{checkpoint.size:020d}"
        if walk.tree.size < checkpoint.size:
            self._hole(walk, key)
            return 0
        if walk.tree.root() == checkpoint.root:
            return checkpoint.size
        # A chain that holds with a root that was never signed was written by whoever writes batches.
        verdict = Verdict.FORKED if walk.is_chained(checkpoint.size) else Verdict.ALTERED
        self._note(verdict, f"the batches up to it do not give the root that it signs; {_VERIFY}", key, checkpoint.size)
        return 0

    def _hole(self, walk: _Walk, checkpoint_key: str) -> None:
        """Say why the tree does not reach a checkpoint: the first batch behind its end is damaged, or is not there."""
        at = walk.tree.size
        segment, _ = walk.holding(at)
        if segment is not None and segment.fault is not None:
            self._note(segment.fault, segment.detail, segment.key, at)
            return
        verdict = Verdict.ROLLED_BACK if walk.size <= at else Verdict.MISSING
        detail = f"{checkpoint_key} signs entry {at}, and it is not there; {_VERIFY}"
        key = f"{self._prefix}{batch_key(at)}"
        verdict, detail = self._unlisted(key) or (verdict, detail)
        self._note(verdict, detail, key, at)

    def _unlisted(self, key: str) -> tuple[Verdict, str] | None:
        """Why a batch is not in the listing; None when it is not there at all."""
        try:
            uncovered(self._reader, key)
        except ObjectHidden:
            return Verdict.HIDDEN, _HIDDEN
        except ObjectMissing:
            return None
        except (StoreUnavailable, StoreDenied) as error:
            return Verdict.UNREADABLE, f"its batch could not be read: {error.detail}"
        return Verdict.UNREADABLE, "its batch was not there when the log was listed, and is now; check again"

    # ── 4. and 5. where receipts stand ──

    def _place(self, walk: _Walk, answer: Answer, receipt: Receipt, covered: int, *, has_ended: bool) -> Checked:
        found = self._standing(walk, receipt)
        if found is not None:
            standing, verdict, detail, key = found
            more = _STOLEN if has_ended and verdict is not Verdict.UNREADABLE else ""
            return Checked(
                line=answer.line,
                standing=standing,
                verdict=verdict,
                detail=f"entries {receipt.first} to {receipt.end - 1}, acknowledged at {receipt.at}: {detail}{more}",
                receipt=receipt,
                object=key,
                index=receipt.first,
            )
        for entry_id, index in answer.entries:
            if receipt.first <= index < receipt.end and walk.ids.get(index) != entry_id:
                return _differs(answer, entry_id, index, walk, receipt)
        standing = Standing.COVERED if receipt.end <= covered else Standing.STORED
        return Checked(line=answer.line, standing=standing, receipt=receipt)

    def _standing(self, walk: _Walk, receipt: Receipt) -> tuple[Standing, Verdict, str, str] | None:
        """What is wrong with the batches of a receipt; None when they are the ones that it signs."""
        end, digest = receipt.end, receipt.digest
        if not walk.segments and walk.checkpoint is None:
            detail = f"nothing of this log is there: a wrong place, or all of it is gone; {_VERIFY}"
            return Standing.UNREADABLE, Verdict.UNREADABLE, detail, f"{self._prefix}{_BATCHES}"
        while end > receipt.first:
            segment, place = walk.holding(end - 1)
            if segment is None:
                return self._absent(walk, end - 1, place)
            if segment.fault is not None:
                return _STANDING_OF[segment.fault], segment.fault, segment.detail, segment.key
            if (segment.end, segment.digest) != (end, digest) or segment.first < receipt.first:
                return self._another(walk, segment, place, digest)
            end, digest = segment.first, segment.previous or b""
        return None

    def _absent(self, walk: _Walk, index: int, place: int) -> tuple[Standing, Verdict, str, str]:
        before = walk.segments[place - 1] if place else None
        start = 0 if before is None or before.end is None else before.end
        key = f"{self._prefix}{batch_key(start)}"
        found = self._unlisted(key)
        if found is not None:
            return _STANDING_OF[found[0]], *found, key
        if place < len(walk.segments):
            return Standing.LOST, Verdict.MISSING, f"the log lost them: entry {index} is not there", key
        return Standing.LOST, Verdict.ROLLED_BACK, f"the log lost them: it ends at {start} now", key

    def _another(self, walk: _Walk, segment: _Segment, place: int, digest: bytes) -> tuple[Standing, Verdict, str, str]:
        following = walk.segments[place] if place < len(walk.segments) else None
        if segment.digest != digest and following is not None and following.previous == digest:
            detail = "its batch is not what was stored: the one behind it still names the digest of the receipt"
            return Standing.DAMAGED, Verdict.ALTERED, detail, segment.key
        detail = "other entries stand there: the log signed two histories"
        return Standing.REPLACED, Verdict.FORKED, detail, segment.key

    def _loose(self, walk: _Walk, answer: Answer, receipts: Sequence[tuple[Receipt, bool]], covered: int) -> None:
        """Compare what the answer says and no receipt signs: what had been stored by an earlier call."""
        loose = [
            (entry_id, index)
            for entry_id, index in answer.entries
            if not any(one.first <= index < one.end for one, _ in receipts)
        ]
        for entry_id, index in loose:
            if walk.ids.get(index) != entry_id:
                self._checked.append(_differs(answer, entry_id, index, walk, None))
                return
        if loose and not receipts:
            standing = Standing.COVERED if max(index for _, index in loose) < covered else Standing.STORED
            self._checked.append(Checked(line=answer.line, standing=standing))


_STANDING_OF = {
    Verdict.HIDDEN: Standing.HIDDEN,
    Verdict.UNREADABLE: Standing.UNREADABLE,
    Verdict.ALTERED: Standing.DAMAGED,
}


def _differs(answer: Answer, entry_id: str, index: int, walk: _Walk, receipt: Receipt | None) -> Checked:
    """What the answer says of an entry is not so, and nobody signed it: it was changed, or was wrong when given."""
    stands = walk.ids.get(index)
    there = "nothing" if stands is None else f"entry {stands}"
    detail = f"the answer names entry {entry_id} at {index}, where {there} stands; this part of an answer is not signed"
    return Checked(
        line=answer.line,
        standing=Standing.DIFFERS,
        verdict=Verdict.UNREADABLE,
        detail=detail,
        receipt=receipt,
        entry=entry_id,
        index=index,
    )
