"""Keys of single parts, derived from the data keys that seal them and the bytes that are stored, before those keys go.

Guarantees: what it returns opens the stored ciphertext, checked by its commitment; a part that cannot be given such a
key is named with the reason, never left out. Reads only. Not here: which parts must stay, and keeping the keys
(`vault.parts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlmodel import Session

from ledger.entry import Part, part_at
from ledger.errors import MalformedHeader, ObjectHidden, ObjectMissing, RecordDamaged
from ledger.log import Log
from vault.envelope import context, joint_prk, part_key_of
from vault.errors import VaultError
from vault.vault import Vault

PartPlace = tuple[int, int]
"""Where a part stands: the entry's place in the log, and its number in the entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartUnderKeys:
    """A part of the record and every data key that seals it."""

    idx: int
    part: int
    entry_id: str
    key_ids: tuple[str, ...]

    @property
    def place(self) -> PartPlace:
        """Index and number."""
        return self.idx, self.part


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """Keys that open one part each; `ended`: parts that nobody can open already; `faults`: why there is no key."""

    keys: dict[PartPlace, bytes] = field(default_factory=dict, repr=False)
    ended: set[PartPlace] = field(default_factory=set)
    faults: dict[PartPlace, str] = field(default_factory=dict)


def part_keys(session: Session, vault: Vault, log: Log, tenant_id: int, parts: Sequence[PartUnderKeys]) -> Derived:
    """Return the keys of these parts. Raises: what the store and the database raise when they are down."""
    made = Derived()
    if not parts:
        return made
    log_id = log.head(tenant_id).log_id
    reading = vault.try_open_keys(session, tenant_id, {key_id for part in parts for key_id in part.key_ids})
    open_parts = []
    for part in parts:
        if any(key_id in reading.destroyed for key_id in part.key_ids):
            made.ended.add(part.place)
        else:
            open_parts.append(part)
    indexes = sorted({part.idx for part in open_parts})
    # What a header says of a part is not believed: only a key that opens the stored bytes is returned.
    headers, lost = _headers(log, tenant_id, indexes)
    places: dict[PartPlace, Part] = {}
    for part in open_parts:
        if part.idx in lost:
            made.faults[part.place] = f"its header cannot be read: {lost[part.idx]}"
            continue
        try:
            places[part.place] = part_at(headers[part.idx], part.part)
        except MalformedHeader as error:
            made.faults[part.place] = f"its header does not say where it is: {error.reason}"
    stored = log.payloads(tenant_id, places.values())
    prks: dict[tuple[str, ...], bytes] = {}
    tenant = str(tenant_id)
    for part in sorted((part for part in open_parts if part.place in places), key=lambda one: one.place):
        place = places[part.place]
        if part.key_ids not in prks:
            prks[part.key_ids] = joint_prk({key_id: reading.opened[key_id] for key_id in part.key_ids})
        bound = context(tenant, log_id, part.entry_id, place.role)
        try:
            made.keys[part.place] = part_key_of(prks[part.key_ids], stored.read(place), bound)
        except ObjectMissing:
            made.faults[part.place] = "its payload object is gone"
        except ObjectHidden:
            made.faults[part.place] = "a delete marker lies over its payload object"
        except VaultError as error:
            made.faults[part.place] = f"its stored bytes do not open: {type(error).__name__}"
    return made


def _headers(log: Log, tenant_id: int, indexes: Sequence[int]) -> tuple[dict[int, bytes], dict[int, str]]:
    """The headers by their index, and why one cannot be read: a damaged batch is no fault of the others."""
    found: dict[int, bytes] = {}
    lost: dict[int, str] = {}
    for idx, one in zip(indexes, log.try_headers(tenant_id, indexes), strict=True):
        if isinstance(one, RecordDamaged):
            lost[idx] = one.detail
        else:
            found[idx] = one
    return found, lost
