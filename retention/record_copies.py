"""What the record holds of people and when it ends: the keys that open their entries, and parts with keys of their own.

Guarantees: reads in the caller's transaction; ends are worked out by the rules by which sweeps find keys
(`retention.items`), never from a hint. As in `retention.copies` that is what the rules say, not a decision. Names keys
and entries by their ids only. Leaves out the key of a person's identifiers, which seals nothing of the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger.models import PartRef
from registry import classes
from registry.keyed import NO_MONTH, chunks
from registry.people import expand
from retention.copies import CopyEnd
from retention.decide import Item, Rules, class_end
from retention.items import VAULT, Candidate, load_kept, load_keys
from retention.key_clocks import waits
from retention.parts import KeptRow, data_keys_of, kept_places, load_parts, part_ref
from retention.schedule import schedule_of
from vault.models import OPENING, DataKey, KeyState

Place = tuple[int, int, str]
"""Where a copy stands in the list, for going on behind it."""
_KEY, _PART = 1, 2
BEGINNING: Place = (0, 0, "")
_NO_END = CopyEnd(ends_at=None, rule="none", starts=None, clock="waiting", cap=False)
"""Of a class that is no longer in force, as registered copies tell it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCopy:
    """A key of the record (`kind` "key"), or a part of an entry with a key of its own ("entry").

    `entries`: how many entries it opens something of.
    """

    place: Place
    kind: str
    ref: str
    data_class: str
    store: str
    status: str
    entries: int
    end: CopyEnd


def record_counts(session: Session, tenant_id: int, people: Collection[int]) -> dict[tuple[str, str], int]:
    """How many keys of the record and parts with keys of their own these persons have, by class and store."""
    everybody = expand(session, tenant_id, people)
    found = Counter(row.data_class for row in _keys(session, tenant_id, everybody))
    parts = load_parts(session, tenant_id, kept_places(session, tenant_id, everybody))
    keys = data_keys_of(session, tenant_id, parts)
    found.update(
        keys[part.key_ids[0]].data_class for part in parts.values() if part.key_ids and part.key_ids[0] in keys
    )
    return {(name, VAULT): count for name, count in sorted(found.items())}


def record_copies(
    session: Session, tenant_id: int, people: Collection[int], *, after: Place, limit: int
) -> list[RecordCopy]:
    """What the record holds of these persons, under any of their merged names, behind a place: keys, then parts."""
    everybody = expand(session, tenant_id, people)
    keys = [row for row in _keys(session, tenant_id, everybody) if (_KEY, 0, row.key_id) > after][:limit]
    kept = kept_places(session, tenant_id, everybody) if len(keys) < limit else {}
    places = [place for place in sorted(kept) if _part_place(place) > after][: limit - len(keys)]
    return [*_of_keys(session, tenant_id, keys), *_of_parts(session, tenant_id, {one: kept[one] for one in places})]


def _of_keys(session: Session, tenant_id: int, rows: Sequence[DataKey]) -> list[RecordCopy]:
    entries = _entries(session, tenant_id, [row.key_id for row in rows])
    known = {name: schedule_of(spec) for name, spec in classes.in_force(session, tenant_id).items()}
    loaded = load_keys(session, tenant_id, [row for row in rows if row.data_class in known], known)
    items = {one.ref: one for one in loaded}
    return [
        RecordCopy(
            place=(_KEY, 0, row.key_id), kind="key", ref=row.key_id, data_class=row.data_class, store=VAULT,
            status="erasing" if row.state == KeyState.DESTROYING.value else "live", entries=entries.get(row.key_id, 0),
            end=_end(items[row.key_id], known[row.data_class].rules) if row.key_id in items else _NO_END,
        )
        for row in rows
    ]  # fmt: skip


def _of_parts(session: Session, tenant_id: int, kept: dict[tuple[int, int], str]) -> list[RecordCopy]:
    parts = load_parts(session, tenant_id, kept)
    classes_of = {key_id: row.data_class for key_id, row in data_keys_of(session, tenant_id, parts).items()}
    known = {name: schedule_of(spec) for name, spec in classes.in_force(session, tenant_id).items()}
    rows = [
        KeptRow(place=place, key_id=key_id, ref=part_ref(parts[place].entry_id, place[1]))
        for place, key_id in sorted(kept.items())
        if place in parts and key_id in classes_of
    ]
    items = {
        one.ref: one
        for one in load_kept(session, tenant_id, [row for row in rows if classes_of[row.key_id] in known], known)
    }
    return [
        RecordCopy(
            place=_part_place(row.place), kind="entry", ref=row.ref,
            data_class=classes_of[row.key_id], store=VAULT, status="retained", entries=1,
            end=_end(items[row.ref], known[classes_of[row.key_id]].rules) if row.ref in items else _NO_END,
        )
        for row in rows
    ]  # fmt: skip


def _part_place(place: tuple[int, int]) -> Place:
    return _PART, place[0], f"{place[1]:09d}"


def _end(found: Candidate, rules: Rules) -> CopyEnd:
    waiting = waits(rules.starts) and not _has_started(found.item, rules)
    return CopyEnd(
        ends_at=class_end(found.item, rules),
        rule="class_retention",
        starts=rules.starts,
        clock="waiting" if waiting else "running",
        cap=waiting,
    )


def _has_started(item: Item, rules: Rules) -> bool:
    """Whether the consent has ended, or the event happened in each conversation that is sealed."""
    if not rules.starts.startswith("event:"):
        return item.consent_until is not None
    return bool(item.events) and None not in item.events.values()


def _keys(session: Session, tenant_id: int, people: Collection[int]) -> list[DataKey]:
    """The keys of these persons that open something of the record, in the order of their ids."""
    found: list[DataKey] = []
    for chunk in chunks(sorted(people)):
        found += session.exec(
            select(DataKey).where(
                DataKey.tenant_id == tenant_id,
                col(DataKey.subject_id).in_(chunk),
                col(DataKey.month) != NO_MONTH,
                col(DataKey.state).in_(OPENING),
            )
        )
    return sorted(found, key=lambda row: row.key_id)


def _entries(session: Session, tenant_id: int, key_ids: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for chunk in chunks(key_ids):
        query = (
            sa.select(col(PartRef.key_id), sa.func.count(sa.distinct(col(PartRef.idx))))
            .where(col(PartRef.tenant_id) == tenant_id, col(PartRef.key_id).in_(chunk))
            .group_by(col(PartRef.key_id))
        )
        found.update((key_id, count) for key_id, count in session.execute(query))
    return found
