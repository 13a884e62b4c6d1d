"""The sealed parts: are the bytes that the headers commit to really there.

Guarantees: each payload object is read once for a batch, and each part's digest is taken over a slice of it. A part
whose key is gone may be gone too: that is `erased` or `expired`, never `missing`; bytes that are there must be right
whatever became of their key. Nothing is decrypted. Whether a key is really gone is another's word (`PartStates`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate
from typing import NamedTuple

from audit.chain import RESTORE
from audit.findings import Findings, Verdict
from audit.headers import ReadHeader, ReadPart
from audit.reader import Reader, uncovered
from ledger.errors import LedgerError, ObjectHidden, ObjectMissing, StoreDenied, StoreUnavailable

WHOLE_OBJECT = 64 * 1024 * 1024
"""Objects up to this size are read in one piece; larger ones part by part, so that memory stays bounded."""
ERASED, EXPIRED = "erased", "expired"
_FEW_OBJECTS = 8
"""A flush writes an object for each lock month: of one that names more, each part is looked at for itself."""

PartStates = Callable[[int, int], Mapping[tuple[int, int], str]]
"""Says, for the entries from one index to before another, which (index, part number) is `erased` or `expired`."""


@dataclass(slots=True)
class Counts:
    """How many entries were looked into, and how many of them have a part whose key is gone."""

    checked: int = 0
    erased: int = 0
    expired: int = 0


class Gap(NamedTuple):
    """An object of which some bytes are in no part, as far as it was looked at; `covered` bytes are."""

    size: int
    covered: int


class _Wanted(NamedTuple):
    """A tuple, because there is one for every part of the log."""

    at: int
    entry: str
    part: ReadPart
    gone: bool


@dataclass(slots=True, kw_only=True)
class PayloadCheck:
    """Checks the parts of batches against a bucket; `prefix` is the log's own."""

    reader: Reader
    prefix: str
    findings: Findings
    states: PartStates | None
    everything: bool = True
    counts: Counts = field(default_factory=Counts)
    gaps: dict[str, Gap] = field(default_factory=dict)

    def check(self, first: int, end: int, entries: Iterable[tuple[int, ReadHeader]]) -> None:
        """Check the parts of these entries, all of them between two indexes."""
        gone = self.states(first, end) if self.states is not None else {}
        if not gone:
            entries = list(entries)
            if self._is_sound(entries):
                self.counts.checked += len(entries)
                return
        wanted: defaultdict[str, list[_Wanted]] = defaultdict(list)
        for index, header in entries:
            self.counts.checked += 1
            states = [gone.get((index, number)) for number in range(len(header.parts))] if gone else []
            if ERASED in states:
                self.counts.erased += 1
            elif EXPIRED in states:
                self.counts.expired += 1
            for number, part in enumerate(header.parts):
                is_gone = bool(states) and states[number] in (ERASED, EXPIRED)
                wanted[part.obj].append(_Wanted(index, header.id, part, is_gone))
        for name, parts in wanted.items():
            self._check_object(name, parts)

    def _is_sound(self, entries: Sequence[tuple[int, ReadHeader]]) -> bool:
        """Whether every part is right and, where all are looked at, lies right behind the one before it.

        Nearly always; it finds nothing and says nothing: after a False each part is looked at for itself.
        """
        parts = [part for _, header in entries for part in header.parts]
        names = {part.obj for part in parts}
        if len(names) > _FEW_OBJECTS:
            return False
        try:
            return all(self._is_sound_object(name, [part for part in parts if part.obj == name]) for name in names)
        except LedgerError:
            return False

    def _is_sound_object(self, name: str, parts: Sequence[ReadPart]) -> bool:
        data = self._whole(name)
        ends = [part.off + part.len for part in parts]
        if self.everything:
            lengths = [0, *accumulate(part.len for part in parts)]
            if lengths[1:] != ends or lengths[-1] != len(data):
                return False
        elif max(ends) > len(data):
            return False
        found = [sha256(data[part.off : end]).digest() for part, end in zip(parts, ends, strict=True)]
        return b"".join(found).hex() == "".join([part.sha256 for part in parts])

    def _whole(self, name: str) -> memoryview:
        """Return an object of which nothing is odd, not even its size. Raises: LedgerError."""
        key = f"{self.prefix}{name}"
        if not name.startswith("payload/") or uncovered(self.reader, key).size > WHOLE_OBJECT:
            raise ObjectMissing(key)
        return memoryview(self.reader.get(key))

    def _check_object(self, name: str, parts: list[_Wanted]) -> None:
        key = f"{self.prefix}{name}"
        if not name.startswith("payload/"):
            detail = "the header names an object that is no payload"
            self._add(Verdict.ALTERED, detail, key, parts[0])
            return
        try:
            info = uncovered(self.reader, key)
            if self.everything:
                self._weigh(key, info.size, parts)
            if info.size <= WHOLE_OBJECT:
                self._check_whole(key, memoryview(self.reader.get(key)), parts)
            else:
                for one in parts:
                    data = self.reader.get(key, offset=one.part.off, length=one.part.len)
                    self._check_part(key, one, memoryview(data))
        except ObjectHidden:
            detail = (
                f"a delete marker or a second version lies over {len(parts)} parts; remove it, the first one is kept"
            )
            self._add(Verdict.HIDDEN, detail, key, parts[0])
        except ObjectMissing:
            self._missing(key, parts)
        except (StoreUnavailable, StoreDenied) as error:
            detail = f"{len(parts)} parts could not be checked: {error.detail}"
            self._add(Verdict.UNREADABLE, detail, key, parts[0])

    def notes(self) -> list[str]:
        """Say what lies in payload objects and belongs to no entry; a fault is not in it, an addition would show."""
        if not self.gaps:
            return []
        loose = sum(gap.size - gap.covered for gap in self.gaps.values())
        return [
            (
                f"{loose} bytes in {len(self.gaps)} payload objects belong to no entry: a part that was "
                "repeated or dropped leaves such bytes, and so would something that was added"
            )
        ]

    def cover(self, key: str, gap: Gap) -> None:
        """Take what one batch covers of an object, beside what other batches do: a flush may be several batches."""
        before = self.gaps.pop(key, Gap(gap.size, 0))
        covered = before.covered + gap.covered
        if covered < gap.size:
            self.gaps[key] = Gap(gap.size, covered)

    def _weigh(self, key: str, size: int, parts: list[_Wanted]) -> None:
        """Count the bytes of an object that no part of this batch covers."""
        covered = at = 0
        for start, end in sorted([(part.off, part.off + part.len) for _, _, part, _ in parts]):
            if start >= at:  # nearly always: parts lie one behind the other
                covered += end - start
                at = end
            elif end > at:
                covered += end - at
                at = end
        if size > covered:
            self.cover(key, Gap(size, covered))

    def _check_whole(self, key: str, data: memoryview, parts: list[_Wanted]) -> None:
        for one in parts:
            part = one[2]
            if sha256(data[part.off : part.off + part.len]).hexdigest() != part.sha256:
                self._check_part(key, one, data[part.off : part.off + part.len])

    def _check_part(self, key: str, one: _Wanted, data: memoryview) -> None:
        if len(data) != one.part.len:
            detail = f"part {one.part.role} is cut off: expected {one.part.len} bytes, got {len(data)}; {RESTORE}"
            self._add(Verdict.ALTERED, detail, key, one)
        elif sha256(data).hexdigest() != one.part.sha256:
            detail = f"the bytes of part {one.part.role} are not those the header commits to; {RESTORE}"
            self._add(Verdict.ALTERED, detail, key, one)

    def _missing(self, key: str, parts: list[_Wanted]) -> None:
        lost = [one for one in parts if not one.gone]
        if lost:
            hint = "" if self.states is not None else " (no database was given that could say whether they were erased)"
            detail = f"{len(lost)} parts are missing and nothing says that they may be{hint}; {RESTORE}"
            self._add(Verdict.MISSING, detail, key, lost[0])

    def _add(self, verdict: Verdict, detail: str, key: str, one: _Wanted) -> None:
        self.findings.add(verdict, detail, object=key, entry=one.entry, index=one.at)
