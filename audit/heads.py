"""The signed heads of a log: every checkpoint in the bucket, what batches and pins say about them.

Guarantees: each checkpoint is opened once, with the pinned keys only; its key, its size and its origin must agree. A
head counts as good only when the tree built from the batches has its root. The list of checkpoints is taken before that
of the batches, so a log that grows meanwhile is never called short. Does not build the tree.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from audit.chain import RESTORE
from audit.findings import Findings, Verdict
from audit.keys import LogKey, WitnessKey, open_checkpoint
from audit.reader import Reader, whole
from ledger.checkpoint import Checkpoint, open_note, parse_note
from ledger.errors import BadSignature, MalformedNote, ObjectHidden, ObjectMissing, StoreDenied, StoreUnavailable

_PREFIX = "checkpoint/"
_KEY = re.compile(r"[0-9]{20}")
_ANCHORS = "anchor/"
_ANCHOR = re.compile(r"([0-9]{20})-([0-9a-f]{8})(?:-[0-9a-f]{16})?")
_REMEMBERED = 4096
PINNED = "the pinned checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A signed size and root, and where it came from: an object key, or `PINNED`.

    `is_pinned`: somebody outside the operator's reach vouches for it, the auditor himself or the named witness.
    """

    source: str
    checkpoint: Checkpoint
    is_pinned: bool = False
    witness: str | None = None


@dataclass(slots=True, kw_only=True)
class Heads:
    """Hands out the heads in order of their size, and keeps the book of those that did not fit.

    `good_size` is the largest that fitted, `stored_size` the largest of those that lie in the bucket.
    """

    reader: Reader
    prefix: str
    keys: Sequence[LogKey]
    origin: str
    findings: Findings
    witnesses: Sequence[WitnessKey] = ()
    keys_are_all: bool = False
    cosigned: dict[str, int] = field(default_factory=dict)
    good_size: int = 0
    stored_size: int = 0
    anchored: bool = False
    signed: int = 0
    mismatched: list[Head] = field(default_factory=list)
    _waiting: dict[int, list[Head]] = field(default_factory=dict)
    _digests: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    _foreign: list[tuple[str, int]] = field(default_factory=list)
    _lost: set[int] = field(default_factory=set)
    _listing: Iterator[str] | None = None
    _ahead: tuple[str, int] | None = None

    def start(self) -> None:
        """Begin the listing. Raises: StoreUnavailable, StoreDenied."""
        self._listing = self.reader.list(f"{self.prefix}{_PREFIX}")
        self._step()

    def pin(self, checkpoint: Checkpoint) -> None:
        """Wait for the auditor's own head too."""
        self._wait(Head(source=PINNED, checkpoint=checkpoint, is_pinned=True))

    def take_anchors(self) -> None:
        """Wait for every head that a pinned witness cosigned: who wrote the log anew has not its key.

        Raises: StoreUnavailable, StoreDenied.
        """
        by_id = {witness.key_id.hex(): witness for witness in self.witnesses}
        for key in self.reader.list(f"{self.prefix}{_ANCHORS}") if by_id and self.keys else ():
            match = _ANCHOR.fullmatch(key.removeprefix(f"{self.prefix}{_ANCHORS}"))
            witness = by_id.get(match[2]) if match is not None else None
            if match is None or witness is None:
                continue  # another witness's: whoever pinned it can judge
            try:
                note = whole(self.reader, key)
                open_note(note, [witness])
                checkpoint = open_checkpoint(note, self.keys, self.origin)
            except ObjectHidden:
                self.findings.add(Verdict.HIDDEN, "a delete marker or a second version lies over it", object=key)
            except (MalformedNote, BadSignature, ObjectMissing) as error:
                detail = f"this is not what the witness {witness.name} cosigned ({error}); {RESTORE}"
                self.findings.add(Verdict.ALTERED, detail, object=key)
            else:
                if checkpoint.size != int(match[1]):
                    detail = f"the key stands for size {int(match[1])}, the note says {checkpoint.size}; {RESTORE}"
                    self.findings.add(Verdict.ALTERED, detail, object=key)
                self._wait(Head(source=key, checkpoint=checkpoint, is_pinned=True, witness=witness.name))

    def sizes(self, low: int, high: int) -> list[int]:
        """Return the sizes above `low`, up to `high`, at which a root is wanted; opens the checkpoints up to there."""
        while self._ahead is not None and self._ahead[1] <= high:
            self._open(*self._ahead)
            self._step()
        return sorted(size for size in self._waiting if low < size <= high)

    def compare(self, size: int, root: bytes) -> None:
        """Compare the heads of this size with the root of the tree."""
        for head in self._waiting.pop(size, ()):
            if head.checkpoint.root != root:
                self.mismatched.append(head)
                continue
            self.good_size = max(self.good_size, size)
            if not head.is_pinned:
                self.stored_size = max(self.stored_size, size)
            self.anchored = self.anchored or head.is_pinned
            if head.witness is not None:
                self.cosigned[head.witness] = max(self.cosigned.get(head.witness, 0), size)

    def roots_of(self, size: int) -> list[bytes]:
        """Return the signed roots of a size that are still to be compared."""
        return [head.checkpoint.root for head in self._waiting.get(size, ())]

    def beyond(self, size: int) -> list[Head]:
        """Return the heads of sizes that the log has not reached, opening what is left of the listing."""
        while self._ahead is not None:
            self._open(*self._ahead)
            self._step()
        return [head for at in sorted(self._waiting) if at > size for head in self._waiting[at]]

    def left_over(self, size: int) -> int:
        """Return how many heads up to this size were never compared."""
        return sum(len(heads) for at, heads in self._waiting.items() if at <= size)

    def named(self, size: int, digest: bytes | None, batch: str, index: int) -> None:
        """Check that the checkpoint a batch names is there, byte for byte."""
        if size == 0 or digest is None:
            return
        self.sizes(size, size)
        key = f"{self.prefix}{_PREFIX}{size:020d}"
        found = self._digests.get(size)
        if found is None:
            self._open(key, size, named_by=batch)
            found = self._digests.get(size)
        if found is not None and found != digest:
            detail = f"these are not the bytes of the checkpoint that {batch} names; {RESTORE}"
            self.findings.add(Verdict.ALTERED, detail, object=key, index=index)
            self._digests[size] = digest

    def foreign(self, *, keys_are_known: bool) -> None:
        """Report the checkpoints that no pinned key signed: all of them means that this is another log."""
        if not keys_are_known:
            for key, _ in self._foreign:
                detail = "no key that could be followed signed this checkpoint: a change of the log's keys is damaged"
                self.findings.add(Verdict.UNREADABLE, detail, object=key)
            return
        if self._foreign and not self.signed:
            key, size = self._foreign[0]
            detail = (
                f"none of the {len(self._foreign)} checkpoints was signed by the key that was pinned: this is another "
                "log under the same name; ask for the log whose key you pinned"
            )
            self.findings.add(Verdict.FORKED, detail, object=key, index=size - 1 if size else None)
            return
        for key, _ in self._foreign:
            self.findings.add(Verdict.ALTERED, f"no pinned key signed this checkpoint; {RESTORE}", object=key)

    def _step(self) -> None:
        self._ahead = None
        if self._listing is None:
            return
        for key in self._listing:
            name = key.removeprefix(f"{self.prefix}{_PREFIX}")
            if _KEY.fullmatch(name):
                self._ahead = (key, int(name))
                return
            self.findings.add(Verdict.ALTERED, "an object that is no checkpoint lies among them", object=key)

    def _wait(self, head: Head) -> None:
        self._waiting.setdefault(head.checkpoint.size, []).append(head)

    def _open(self, key: str, size: int, *, named_by: str | None = None) -> None:
        if size in self._digests or size in self._lost:
            return
        self._lost.add(size)
        try:
            note = whole(self.reader, key)
        except ObjectHidden:
            detail = "a delete marker or a second version lies over the checkpoint; remove it, the first one is kept"
            self.findings.add(Verdict.HIDDEN, detail, object=key)
            return
        except ObjectMissing:
            detail = f"{named_by or 'the listing'} names this checkpoint, and it is missing; {RESTORE}"
            self.findings.add(Verdict.MISSING, detail, object=key)
            return
        except (StoreUnavailable, StoreDenied) as error:
            self.findings.add(Verdict.UNREADABLE, f"could not be read: {error.detail}", object=key)
            return
        self._lost.discard(size)
        self._digests[size] = sha256(note).digest()
        if len(self._digests) > _REMEMBERED:
            self._digests.popitem(last=False)
        self._read(key, size, note)

    def _read(self, key: str, size: int, note: bytes) -> None:
        if not self.keys:
            return
        try:
            checkpoint = open_checkpoint(note, self.keys, self.origin)
        except MalformedNote as error:
            self.findings.add(Verdict.ALTERED, f"not a checkpoint ({error.reason}); {RESTORE}", object=key)
            return
        except BadSignature as error:
            if error.name:
                self.findings.add(Verdict.ALTERED, f"{error.reason}; {RESTORE}", object=key)
            else:
                self._foreign.append((key, size))
            return
        if checkpoint.size != size:
            detail = f"the key stands for size {size}, the checkpoint says {checkpoint.size}: it was moved; {RESTORE}"
            self.findings.add(Verdict.ALTERED, detail, object=key)
            return
        self.signed += 1
        self._wait(Head(source=key, checkpoint=checkpoint))
        if not self._has_its_lines(note, size):
            detail = f"the lines of this checkpoint are not one by each key that signed then; {RESTORE}"
            self.findings.add(Verdict.ALTERED, detail, object=key)

    def _has_its_lines(self, note: bytes, size: int) -> bool:
        """Whether each line bears the log's name and, where all its keys are at hand, each that signed then has one.

        A reader of notes passes over a line by nobody it knows; in the bucket it is a changed byte of one of two.
        """
        lines = parse_note(note).signatures
        signed = sorted(line.key_id for line in lines)
        wanted = sorted(key.key_id for key in self.keys if key.covers(size)) if self.keys_are_all else signed
        return signed == wanted and all(line.name == self.origin for line in lines)
