"""Parts of the record that may meet another fate than the data key that seals them, and those with keys of their own.

Guarantees: index look-ups in chunks only, so that a look costs what it finds. A part is about everybody whose key seals
it, and lies in the conversation of its stream. Its clock is its key's, except that floors count from its own receipt.
Opens nothing and decides nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from uuid import UUID

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger import index
from ledger.models import EntryRow, PartPlaces, PartRef
from registry.keyed import NOBODY, chunks
from registry.limited import scopes_of
from registry.models import ScopeKey, StreamRow
from vault.models import DataKey, KeyState, PartKey

_LAST_MONTH = "9999-12"
_STRETCHES = 100
"""Stretches of the record whose keys are read together."""
PartPlace = tuple[int, int]
"""Where a part stands: the entry's place in the log, and its number in the entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPart:
    """A part, everybody it is about, the keyed look-ups of its conversation, and the keys that seal it."""

    entry_id: str
    idx: int
    part: int
    key_ids: tuple[str, ...]
    subjects: frozenset[int]
    scopes: frozenset[str]
    received: datetime

    @property
    def ref(self) -> str:
        """The id by which plans name it."""
        return part_ref(self.entry_id, self.part)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRow:
    """A part with a key of its own, and the data key that went first."""

    place: PartPlace
    key_id: str
    ref: str


def part_ref(entry_id: str, part: int) -> str:
    """The id of one part of an entry, as lines of a plan name it."""
    return f"{entry_id}/{part}"


def split_ref(ref: str) -> tuple[str, int]:
    """Entry id and number of a part's id."""
    entry_id, _, number = ref.partition("/")
    return entry_id, int(number or 0)


def load_parts(session: Session, tenant_id: int, places: Iterable[PartPlace]) -> dict[PartPlace, RecordPart]:
    """These parts; those that are not in the log or that no key seals are left out."""
    wanted = set(places)
    indexes = sorted({idx for idx, _ in wanted})
    entries = {}
    sealed: dict[PartPlace, dict[str, int]] = defaultdict(dict)
    for chunk in chunks(indexes):
        rows = session.execute(
            sa.select(col(EntryRow.idx), col(EntryRow.entry_id), col(EntryRow.stream_no), col(EntryRow.received)).where(
                col(EntryRow.tenant_id) == tenant_id, col(EntryRow.idx).in_(chunk)
            )
        )
        entries.update({row.idx: row for row in rows})
    refs = [ref for ref in index.refs_of(session, tenant_id, indexes) if ref[:2] in wanted]
    people = _subjects_of(session, tenant_id, {key_id for _, _, key_id in refs})
    for idx, number, key_id in refs:
        if key_id in people:
            sealed[idx, number][key_id] = people[key_id]
    scopes = scopes_of(session, tenant_id, [row.stream_no for row in entries.values()])
    return {
        (idx, number): RecordPart(
            entry_id=str(UUID(bytes=entries[idx].entry_id)),
            idx=idx,
            part=number,
            key_ids=tuple(sorted(keys)),
            subjects=frozenset(keys.values()) - {NOBODY},
            scopes=scopes.get(entries[idx].stream_no, frozenset()),
            received=entries[idx].received,
        )
        for (idx, number), keys in sorted(sealed.items())
        if idx in entries
    }


def joint_places(session: Session, tenant_id: int, key_ids: Collection[str]) -> dict[str, set[PartPlace]]:
    """The parts that more than one key seals, by the keys asked for."""
    wanted = set(key_ids)
    stretches: set[tuple[int, int]] = set()
    for chunk in chunks(sorted(wanted)):
        mine = sa.select(col(PartPlaces.start), col(PartPlaces.part)).where(
            col(PartPlaces.tenant_id) == tenant_id, col(PartPlaces.key_id).in_(chunk)
        )
        stretches.update((start, part) for start, part in session.execute(mine))
    found: dict[str, set[PartPlace]] = defaultdict(set)
    for starts in index.chunks(sorted({start for start, _ in stretches}), _STRETCHES):
        rows = session.execute(
            sa.select(col(PartPlaces.start), col(PartPlaces.part), col(PartPlaces.key_id), col(PartPlaces.places))
            .where(col(PartPlaces.tenant_id) == tenant_id, col(PartPlaces.start).in_(starts))
            .order_by(col(PartPlaces.start), col(PartPlaces.part))
        )
        for (start, part), keys in groupby(rows, key=lambda row: (row.start, row.part)):
            sealed = (
                [(row.key_id, index.unpack_places(row.places)) for row in keys] if (start, part) in stretches else []
            )
            times = Counter(place for _, places in sealed for place in places)
            for key_id, places in sealed:
                if key_id in wanted:
                    joint = {(start + place, part) for place in places if times[place] > 1}
                    if joint:
                        found[key_id] |= joint
    return found


def _subjects_of(session: Session, tenant_id: int, key_ids: Collection[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for chunk in chunks(sorted(key_ids)):
        query = sa.select(col(DataKey.key_id), col(DataKey.subject_id)).where(
            col(DataKey.tenant_id) == tenant_id, col(DataKey.key_id).in_(chunk)
        )
        found.update((key_id, subject) for key_id, subject in session.execute(query))
    return found


def streams_of(session: Session, tenant_id: int, scopes: Collection[str]) -> frozenset[int]:
    """The streams of these keyed look-ups: by their own names, and by the scope they declare."""
    lookups = [bytes.fromhex(scope) for scope in sorted(scopes)]
    found: set[int] = set()
    for chunk in chunks(lookups):
        declared = sa.select(col(ScopeKey.item)).where(
            col(ScopeKey.tenant_id) == tenant_id, col(ScopeKey.kind) == "s", col(ScopeKey.lookup).in_(chunk)
        )
        named = sa.select(col(StreamRow.stream_no)).where(
            col(StreamRow.tenant_id) == tenant_id, col(StreamRow.lookup).in_(chunk)
        )
        found.update(session.scalars(declared))
        found.update(session.scalars(named))
    return frozenset(found)


def places_within(
    session: Session, tenant_id: int, key_ids: Collection[str], streams: Collection[int] | None = None
) -> dict[str, set[PartPlace]]:
    """The parts under each of these keys; with `streams`, those of these streams only."""
    found: dict[str, set[PartPlace]] = defaultdict(set)
    for chunk in chunks(sorted(key_ids) if streams is None or streams else []):
        query = sa.select(col(PartRef.key_id), col(PartRef.idx), col(PartRef.part)).where(
            col(PartRef.tenant_id) == tenant_id, col(PartRef.key_id).in_(chunk)
        )
        if streams is not None:
            query = query.join(
                EntryRow,
                sa.and_(col(EntryRow.tenant_id) == col(PartRef.tenant_id), col(EntryRow.idx) == col(PartRef.idx)),
            ).where(col(EntryRow.stream_no).in_(sorted(streams)))
        for key_id, idx, part in session.execute(query):
            found[key_id].add((idx, part))
    return found


def places_in(
    session: Session, tenant_id: int, key_ids: Collection[str], entries: Collection[int]
) -> dict[str, set[PartPlace]]:
    """The parts of these entries that these keys seal, by key."""
    wanted = set(key_ids)
    found: dict[str, set[PartPlace]] = defaultdict(set)
    for idx, part, key_id in index.refs_of(session, tenant_id, entries):
        if key_id in wanted:
            found[key_id].add((idx, part))
    return found


def count_parts(session: Session, tenant_id: int, key_ids: Collection[str]) -> dict[str, int]:
    """How many parts each of these keys seals."""
    found: dict[str, int] = {}
    for chunk in chunks(sorted(key_ids)):
        rows = session.execute(
            sa.select(col(PartRef.key_id), sa.func.count())
            .where(col(PartRef.tenant_id) == tenant_id, col(PartRef.key_id).in_(chunk))
            .group_by(col(PartRef.key_id))
        )
        found.update({str(row[0]): int(row[1]) for row in rows})
    return found


def first_received(session: Session, tenant_id: int, key_ids: Collection[str]) -> dict[str, datetime]:
    """When the first entry under each of these keys was received."""
    found: dict[str, datetime] = {}
    for chunk in chunks(sorted(key_ids)):
        first = (
            sa.select(col(PartRef.key_id).label("key_id"), sa.func.min(col(PartRef.idx)).label("idx"))
            .where(col(PartRef.tenant_id) == tenant_id, col(PartRef.key_id).in_(chunk))
            .group_by(col(PartRef.key_id))
            .subquery()
        )
        rows = session.execute(
            sa.select(first.c.key_id, col(EntryRow.received)).join(
                EntryRow, sa.and_(col(EntryRow.tenant_id) == tenant_id, col(EntryRow.idx) == first.c.idx)
            )
        )
        found.update({str(row[0]): row[1] for row in rows})
    return found


def kept_places(session: Session, tenant_id: int, subjects: Collection[int]) -> dict[PartPlace, str]:
    """The parts about these persons that have a live key of their own, each with the data key that went first."""
    keys: list[str] = []
    for chunk in chunks(sorted(subjects)):
        query = sa.select(col(DataKey.key_id)).where(
            col(DataKey.tenant_id) == tenant_id, col(DataKey.subject_id).in_(chunk)
        )
        keys += session.scalars(query)
    found: dict[PartPlace, str] = {}
    # By their keys, not in one statement: without statistics SQLite then reads the parts of the whole tenant.
    for some in chunks(sorted(keys)):
        rows = session.execute(
            sa.select(col(PartKey.idx), col(PartKey.part), col(PartKey.key_id))
            .join(
                PartRef,
                sa.and_(
                    col(PartRef.tenant_id) == col(PartKey.tenant_id),
                    col(PartRef.idx) == col(PartKey.idx),
                    col(PartRef.part) == col(PartKey.part),
                ),
            )
            .where(
                col(PartKey.state) == KeyState.LIVE.value,
                col(PartRef.tenant_id) == tenant_id,
                col(PartRef.key_id).in_(some),
            )
        )
        found.update({(row[0], row[1]): row[2] for row in rows})
    return found


def places_of(session: Session, tenant_id: int, refs: Iterable[str]) -> dict[PartPlace, str]:
    """Where the parts of these ids stand, with their ids; unknown ones are left out."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for ref in refs:
        entry_id, number = split_ref(ref)
        numbers[entry_id].add(number)
    found: dict[PartPlace, str] = {}
    for chunk in chunks(sorted(numbers)):
        rows = session.execute(
            sa.select(col(EntryRow.entry_id), col(EntryRow.idx)).where(
                col(EntryRow.tenant_id) == tenant_id,
                col(EntryRow.entry_id).in_([UUID(entry_id).bytes for entry_id in chunk]),
            )
        )
        for raw, idx in rows:
            entry_id = str(UUID(bytes=raw))
            found.update({(idx, number): part_ref(entry_id, number) for number in numbers[entry_id]})
    return found


def data_keys_of(session: Session, tenant_id: int, parts: Mapping[PartPlace, RecordPart]) -> dict[str, DataKey]:
    """The rows of every data key that seals one of these parts, destroyed ones included."""
    ids = sorted({key_id for part in parts.values() for key_id in part.key_ids})
    found: dict[str, DataKey] = {}
    for chunk in chunks(ids):
        rows = session.exec(select(DataKey).where(DataKey.tenant_id == tenant_id, col(DataKey.key_id).in_(chunk)))
        found.update({row.key_id: row for row in rows})
    return found


def destroyed_keys(session: Session, tenant_id: int, ref: str) -> list[str]:
    """The destroyed data keys of one part: it opened with all of them together, or with a key of its own."""
    places = places_of(session, tenant_id, [ref])
    rows = data_keys_of(session, tenant_id, load_parts(session, tenant_id, places))
    return sorted(key_id for key_id, row in rows.items() if row.state == KeyState.DESTROYED.value)


def any_kept(session: Session, tenant_id: int) -> bool:
    """Whether any part has a live key of its own."""
    query = sa.select(sa.literal(1)).where(
        col(PartKey.tenant_id) == tenant_id,
        col(PartKey.destroyed_at).is_(None),
        col(PartKey.state) == KeyState.LIVE.value,
    )
    return session.scalars(query.limit(1)).first() is not None


def every_kept(
    session: Session, tenant_id: int, data_classes: Collection[str], *, batch: int
) -> Iterator[list[KeptRow]]:
    """All parts with live keys of their own whose data key went and is of these classes, in the order of their ids."""
    for name in data_classes if any_kept(session, tenant_id) else ():
        after = ""
        while True:
            rows = due_kept(session, tenant_id, name, _LAST_MONTH, after=after, limit=batch)
            yield rows
            if len(rows) < batch:
                break
            after = rows[-1].ref


def due_kept(session: Session, tenant_id: int, data_class: str, month: str, *, after: str, limit: int) -> list[KeptRow]:
    """Parts with live keys of their own whose data key went and is of this class and at most that month.

    In the order of their ids, behind one of them.
    """
    entry_id, number = split_ref(after) if after else ("", -1)
    here = sa.tuple_(col(PartKey.entry_id), col(PartKey.part)) > sa.tuple_(sa.literal(entry_id), sa.literal(number))
    rows = session.execute(
        sa.select(col(PartKey.idx), col(PartKey.part), col(PartKey.key_id), col(PartKey.entry_id))
        .join(
            DataKey,
            sa.and_(col(DataKey.tenant_id) == col(PartKey.tenant_id), col(DataKey.key_id) == col(PartKey.key_id)),
        )
        .where(
            col(PartKey.tenant_id) == tenant_id,
            col(PartKey.state) == KeyState.LIVE.value,
            col(DataKey.data_class) == data_class,
            col(DataKey.month) <= month,
            col(DataKey.state) == KeyState.DESTROYED.value,
            here,
        )
        .order_by(col(PartKey.entry_id), col(PartKey.part))
        .limit(limit)
    ).all()
    return [
        KeptRow(place=(idx, number), key_id=key_id, ref=part_ref(entry_id, number))
        for idx, number, key_id, entry_id in rows
    ]
