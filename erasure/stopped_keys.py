"""Which keys that the record announced as going must stay all the same, when nobody is left to decide it by a plan.

A rebuilt database may lack the request or the pass that announced them. What only its plan would tell is not asked:
the announcement was decided by it. What may have come since is: holds in force, and restrictions younger than the
announcement.

Guarantees: a key stays whole when a hold is about all it seals, or about a part that nothing else opens; an identity
key stays with any of its person's keys. Decides nothing else, opens nothing and changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure.models import RequestRow
from erasure.persons import people_of
from erasure.plan import IDENTITY
from erasure.sealed import REQUEST_CLASS
from erasure.standing import Standing, standing
from registry.keyed import chunks
from registry.people import expand
from retention.decide import Item, decide
from retention.parts import (
    PartPlace,
    RecordPart,
    data_keys_of,
    joint_places,
    load_parts,
    places_in,
    places_of,
    places_within,
    streams_of,
)
from vault.models import DataKey, KeyState, PartKey

_STOPS = frozenset({"hold", "restriction"})


def stopped_keys(session: Session, tenant_id: int, announced: Mapping[str, datetime]) -> set[str]:
    """Those of these data keys and parts, by their ids and with when it was said that they go, that must not go."""
    known = standing(session, tenant_id)
    if not known.holds and not known.restrictions:
        return set()
    rows: list[DataKey] = []
    for chunk in chunks(sorted(name for name in announced if "/" not in name)):
        rows += session.exec(select(DataKey).where(DataKey.tenant_id == tenant_id, col(DataKey.key_id).in_(chunk)))
    named = places_of(session, tenant_id, [name for name in announced if "/" in name])
    under = _places_under(session, tenant_id, rows, known)
    loaded = load_parts(session, tenant_id, {*named, *(place for places in under.values() for place in places)})
    classes = {key_id: key.data_class for key_id, key in data_keys_of(session, tenant_id, loaded).items()}
    own = _with_own_keys(session, tenant_id, loaded)

    def stays(place: PartPlace, at: datetime) -> bool:
        part = loaded.get(place)
        return part is not None and _is_stopped(_part_item(part, classes, at), known, at)

    found = {ref for place, ref in named.items() if stays(place, announced[ref])}
    for row in rows:
        at = announced[row.key_id]
        if _is_stopped(_key_item(session, row, at), known, at) or any(
            stays(place, at) for place in under[row.key_id] - own
        ):
            found.add(row.key_id)
    people = {row.subject_id for row in rows if row.key_id in found and row.data_class != REQUEST_CLASS}
    return found | {row.key_id for row in rows if row.data_class == IDENTITY and row.subject_id in people}


def _is_stopped(item: Item, known: Standing, at: datetime) -> bool:
    younger = [one for one in known.restrictions if one.since > at]
    return decide(item, None, known.holds, younger, (), at).rule in _STOPS


def _key_item(session: Session, row: DataKey, at: datetime) -> Item:
    """A key as a whole; a request's own key is about whom the request is about, as `erasure.footprint` has it."""
    people = frozenset({row.subject_id})
    if row.data_class == REQUEST_CLASS:
        query = select(RequestRow).where(RequestRow.tenant_id == row.tenant_id, RequestRow.request_no == row.subject_id)
        request = session.exec(query).first()
        people = frozenset() if request is None else people_of(session, request)
    elif row.subject_id:
        people = expand(session, row.tenant_id, people)
    return Item(item_id=0, data_class=row.data_class, created=at, subjects=people, own_subjects=people)


def _part_item(part: RecordPart, classes: Mapping[str, str], at: datetime) -> Item:
    data_class = next((classes[key_id] for key_id in part.key_ids if key_id in classes), "")
    return Item(
        item_id=0, data_class=data_class, created=at, subjects=part.subjects, own_subjects=part.subjects,
        scopes=part.scopes, entry=part.idx,
    )  # fmt: skip


def _places_under(session: Session, tenant_id: int, rows: list[DataKey], known: Standing) -> dict[str, set[PartPlace]]:
    """The parts under each key about which a hold or a restriction may say something else than about the key."""
    ids = [row.key_id for row in rows]
    scopes = frozenset[str]().union(
        *(hold.scopes for hold in known.holds), *(one.scopes or () for one in known.restrictions)
    )
    entries = frozenset[int]().union(*(hold.entries for hold in known.holds))
    found: dict[str, set[PartPlace]] = defaultdict(set)
    for some in (
        joint_places(session, tenant_id, ids),
        places_within(session, tenant_id, ids, streams_of(session, tenant_id, scopes)) if scopes else {},
        places_in(session, tenant_id, ids, entries),
    ):
        for key_id, places in some.items():
            found[key_id] |= places
    return found


def _with_own_keys(session: Session, tenant_id: int, loaded: Mapping[PartPlace, RecordPart]) -> set[PartPlace]:
    """Those of these parts that have a key of their own, or had one that went: no data key decides about them."""
    found: set[PartPlace] = set()
    for chunk in chunks(sorted({idx for idx, _ in loaded})):
        query = sa.select(col(PartKey.idx), col(PartKey.part)).where(
            col(PartKey.tenant_id) == tenant_id,
            col(PartKey.idx).in_(chunk),
            col(PartKey.state).in_([KeyState.LIVE.value, KeyState.DESTROYED.value]),
        )
        found.update((idx, part) for idx, part in session.execute(query))
    return found
