"""What a batch of a registration finds there already: the artifacts at its places, its sources, entries, tombstones.

Guarantees: one look-up for all values of a kind; of sources only what a batch needs of them is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col

from ledger.actions import ActionState, is_ours
from ledger.models import ActionRow
from registry import bulk
from registry.ends import Dates, Instants, dates_of
from registry.ids import artifact_name
from registry.item import OWN_ID
from registry.keyed import RowDigests, chunks

TURN = "turn."
"""How the kinds of turns begin."""
_READ = (
    "id", "given_id", "data_class", "set_id", "own_set_id", "status", "registered_by", "expires_at", "created_at",
    "observed_at", "last_activity_at", "confirmed_at", "confidence", "request_id", "anonymised", "digest",
    "source_type", "verification", "store", "locator_hash",
)  # fmt: skip
_KNOWN = f"SELECT {', '.join(_READ)} FROM artifact WHERE tenant_id = ? AND"  # noqa: S608 - names of ours
_BEHIND = "SELECT id, given_id, set_id, status, request_id FROM artifact WHERE tenant_id = ? AND"
_TOMBS = "SELECT locator_hash, request_id FROM tombstone WHERE tenant_id = ? AND store = ? AND locator_hash"
_ENTRIES = "SELECT entry_id, idx, set_id, kind FROM entry WHERE tenant_id = ? AND entry_id"


class Behind(NamedTuple):
    """What a batch needs of an artifact that it names as a source, as `_BEHIND` brings it."""

    id: int
    given_id: str | None
    set_id: int
    status: str
    request_id: str | None


class _KnownRow(NamedTuple):
    id: int
    given_id: str | None
    data_class: str
    set_id: int
    own_set_id: int
    status: str
    registered_by: str
    expires_us: int | None
    created_us: int
    observed_us: int | None
    last_activity_us: int | None
    confirmed_us: int | None
    confidence: float | None
    request_id: str | None
    anonymised: bool | int
    digest: bytes | None
    source_type: str | None
    verification: str | None
    store: str
    locator_hash: bytes


class Known(Instants, _KnownRow):
    """What a batch needs of an artifact that lies at a place it names, as `_READ` brings it."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """Its public id."""
        return self.given_id or artifact_name(self.id)

    @property
    def dates(self) -> Dates:
        """The instants from which its end is counted."""
        return dates_of(self)


class Present:
    """What is there, as it was loaded."""

    def __init__(self, session: Session, tenant_id: int) -> None:
        self.session = session
        self.tenant_id = tenant_id
        self.by_place: dict[tuple[str, bytes], Known] = {}
        self.by_id: dict[int, Behind | Known] = {}
        self.by_name: dict[str, int] = {}
        """What a public id names."""
        self.entries: dict[bytes, tuple[int, int]] = {}
        """Index and set of each entry."""
        self.turns: set[int] = set()
        """Which of the entries are turns."""
        self.succeeded: set[bytes] = set()
        """Product writes that succeeded, by look-up."""
        self.tombs: dict[tuple[str, bytes], str] = {}
        """Under which request what lay at a place was erased."""

    def load(self, places: Mapping[str, Iterable[bytes]], names: Iterable[str]) -> None:
        """Load the artifacts at these places or of these ids."""
        for store, hashes in places.items():
            wanted_places = sorted(hashes)
            for row in bulk.select_in(
                self.session, f"{_KNOWN} store = ? AND locator_hash", (self.tenant_id, store), wanted_places, "bytea"
            ):
                known = Known._make(row)
                self.by_place[known.store, known.locator_hash] = known
                self._keep(known)
            tombs = bulk.select_in(self.session, _TOMBS, (self.tenant_id, store), wanted_places, "bytea")
            self.tombs.update(((store, locator_hash), request_id) for locator_hash, request_id in tombs)
        own = {name: int(match[1], 16) for name in names if (match := OWN_ID.fullmatch(name))}
        numbers = sorted({number for number in own.values() if number < 2**63} - self.by_id.keys())
        for row in bulk.select_in(self.session, f"{_BEHIND} id", (self.tenant_id,), numbers, "int8"):
            self._keep(Behind._make(row))
        for name, number in own.items():
            found = self.by_id.get(number)
            if found is not None and found.given_id is None:
                self.by_name[name] = number
        # What has the form of an id of ours may still be one that a caller gave.
        missing = sorted(set(names) - self.by_name.keys())
        for row in bulk.select_in(self.session, f"{_BEHIND} given_id", (self.tenant_id,), missing, "text"):
            self._keep(Behind._make(row))

    def _keep(self, known: Behind | Known) -> None:
        self.by_id[known.id] = known
        if known.given_id is not None:
            self.by_name[known.given_id] = known.id

    def load_entries(self, entries: Iterable[bytes]) -> None:
        """Load these entries of the record."""
        rows = bulk.select_in(self.session, _ENTRIES, (self.tenant_id,), sorted(entries), "bytea")
        for entry_id, idx, set_id, kind in rows:
            self.entries[entry_id] = (idx, set_id)
            if kind.startswith(TURN):
                self.turns.add(idx)

    def load_actions(self, lookups: Iterable[bytes], digests: RowDigests) -> None:
        """Load which of these product writes succeeded, as this service wrote it."""
        for chunk in chunks(sorted(lookups)):
            query = sa.select(ActionRow).where(
                col(ActionRow.tenant_id) == self.tenant_id,
                col(ActionRow.lookup).in_(chunk),
                col(ActionRow.state) == ActionState.SUCCEEDED.value,
            )
            self.succeeded.update(row.lookup for row in self.session.scalars(query) if is_ours(row, digests))
