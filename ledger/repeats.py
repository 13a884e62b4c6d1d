"""Whether an entry is in the log already, where a row of the index is not to be believed alone.

Guarantees: `duplicate` is answered for a row whose keyed digest is that of what was sent: it binds the entry's id, and
nobody makes it who has the database alone. Another digest is an id conflict only where the record has that id in that
place. An id that this process sequenced lately is not stored for the second time because its row was changed or taken
away. Rows that are not what the record says are written anew, a batch at a time, as a rebuild writes them.

Of an id about which row and record disagree, where what would set it right is gone, nothing is claimed: it is
`damaged`, and stops no other.

Not here: an id whose row was changed, and that nobody here remembers: its repeat is stored again, and `muniment verify
--all` names the row before, both entries after. Of more than `ASKED` batches in one flush the rows are believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ledger.batches import Batch
from ledger.draft import Draft
from ledger.entry import Header, decode_header
from ledger.errors import MalformedBatch, MalformedHeader, ObjectMissing, RecordDamaged
from ledger.index import IndexLine
from ledger.models import EntryRow

HELD = 16_384
"""Ids that are remembered of one log at least, and twice as many at most: about three megabytes."""
ASKED = 16
"""Batches that are read again for one flush at most: each is two requests to a store, and others wait meanwhile."""

Known = Mapping[str, EntryRow]
BatchWith = Callable[[int, int | None], tuple[Batch, bytes]]
"""Returns the batch that holds an index, and its bytes; it may begin where is said."""
LinesOf = Callable[[Batch, bytes, Sequence[Header]], Sequence[IndexLine]]
"""Returns what the unlocked store knows of the entries of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What the rows of a batch should say; without `lines` only what the headers tell."""

    first: int
    headers: Sequence[Header]
    lines: Sequence[IndexLine] | None

    def digest_at(self, idx: int) -> bytes | None:
        """The keyed digest of an entry, where it is known beside the index."""
        return None if self.lines is None else self.lines[idx - self.first].digest


class Lately:
    """Which ids this process sequenced of one log, and where. Only the holder of the head's lock uses it."""

    def __init__(self) -> None:
        self._young: dict[str, int] = {}
        self._old: dict[str, int] = {}

    def note(self, first: int, headers: Sequence[Header]) -> None:
        """Remember the entries of a batch."""
        self._young.update(zip([header.id for header in headers], range(first, first + len(headers)), strict=True))
        if len(self._young) > HELD:
            self._old, self._young = self._young, {}

    def places(self, entry_ids: Iterable[str]) -> dict[str, int]:
        """Return where those of these ids stand that are remembered."""
        found: dict[str, int] = {}
        for held in (self._old, self._young):
            found.update((entry_id, held[entry_id]) for entry_id in held.keys() & entry_ids)
        return found


def doubts(drafts: Sequence[Draft], there: Known, lately: Lately) -> dict[str, int]:
    """Return the ids that the record is to be asked about, and at which index."""
    asked = {entry_id: idx for entry_id, idx in lately.places({draft.entry_id for draft in drafts}).items()
             if entry_id not in there}  # fmt: skip
    if there:
        asked |= {
            draft.entry_id: there[draft.entry_id].idx
            for draft in drafts
            if draft.entry_id in there and there[draft.entry_id].digest != draft.digest
        }
    return asked


class Anew:
    """Reads again the batches that doubtful rows tell of."""

    def __init__(self, batch_with: BatchWith, lines_of: LinesOf) -> None:
        self._batch_with = batch_with
        self._lines_of = lines_of
        self._read: list[Rows] = []

    def false(self, asked: Mapping[str, int], there: Known) -> tuple[list[Rows], frozenset[str]]:
        """Return the batches of which a row asked for says something else than the record, and the ids nobody can tell.

        Raises: RecordDamaged for an entry that is not where this process put it, and what the stores raise.
        """
        found: list[Rows] = []
        untold: set[str] = set()
        for entry_id, idx in asked.items():
            row = there.get(entry_id)
            held = self._held(idx, row)
            if held is None:
                # Of a batch that cannot be read the row is believed; where there is none, nobody knows.
                untold |= {entry_id} if row is None else set()
                continue
            is_here = held.headers[idx - held.first].id == entry_id
            if row is None and not is_here:
                raise RecordDamaged("altered", f"the record has another entry at {idx} than this process put there")
            if row is not None and is_here and row.digest == (held.digest_at(idx) or row.digest):
                continue
            if held.lines is None:
                untold.add(entry_id)
            elif held not in found:
                found.append(held)
        return found, frozenset(untold)

    def _held(self, idx: int, row: EntryRow | None) -> Rows | None:
        """The batch with an index; None where it cannot be read, or a row is to be believed as it is."""
        for held in self._read:
            if held.first <= idx < held.first + len(held.headers):
                return held
        if row is not None and len(self._read) >= ASKED:
            return None
        try:
            batch, data = self._batch_with(idx, None if row is None else row.batch_first)
            headers = [decode_header(raw) for raw in batch.headers]
        except (ObjectMissing, MalformedBatch, MalformedHeader):
            return None  # the batch is damaged: `muniment verify` names it, and it stops nobody else's entries
        try:
            lines: Sequence[IndexLine] | None = self._lines_of(batch, data, headers)
        except (ObjectMissing, msgspec.MsgspecError):
            lines = None
        self._read.append(Rows(first=batch.first, headers=headers, lines=lines))
        return self._read[-1]
