"""What a verdict on memories is made from, loaded for many at once.

Guarantees: every look-up is by an index and for all memories of a call together; places are found by their keyed
look-up only. Decides nothing: that is `registry.memories`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from registry import bulk, stores
from registry.acting import Acting
from registry.artifact_rows import open_details
from registry.declaration import DataClass
from registry.details import Details
from registry.graph import ARTIFACT, parents_of
from registry.keyed import Lookups, chunks
from registry.locators import MalformedLocator, canonical_locator, kind_of_places, normal_locator
from registry.memories import Memory
from registry.models import Artifact, RestrictionRow, Tombstone
from registry.people import groups
from registry.sets import Members, members, sets_of
from registry.subjects import fenced
from vault.vault import Vault

MAX_MEMORIES = 1_000
_STATUSES = "SELECT id, status FROM artifact WHERE tenant_id = ? AND id"
_TAINTS = ("revoked", "quarantined")
"""What a source can be so that nothing made from it is usable, worst first. An erased source has its own rules: what
was allowed to outlive it is not worse for it."""
Place = tuple[str, bytes]
"""A store, and the keyed look-up of a place in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What is loaded about the memories of one call, each look-up for all of them."""

    people: Members
    sets: Mapping[int, Members]
    details: Mapping[int, Details]
    taints: Mapping[int, str]
    sourced: frozenset[int]
    fenced: frozenset[int]
    restricted: frozenset[int]


def memories_of(session: Session, acting: Acting, rules: Mapping[str, DataClass], people: Members) -> list[Artifact]:
    """The newest memories of a person in the classes that the token may use, newest first."""
    names = sorted(name for name, one in rules.items() if one.state == "memory" and acting.may_use_class(name))
    found: list[Artifact] = []
    for chunk in chunks(sorted(sets_of(session, acting.tenant_id, people))):
        found += session.exec(
            select(Artifact)
            .where(
                Artifact.tenant_id == acting.tenant_id,
                col(Artifact.set_id).in_(chunk),
                col(Artifact.data_class).in_(names),
                Artifact.status != "erased",
            )
            .order_by((col(Artifact.id) + 0).desc())  # a bare id would make the planner walk the whole tenant
            .limit(MAX_MEMORIES)
        )
    return sorted(found, key=lambda row: row.id, reverse=True)[:MAX_MEMORIES]


def places_of(session: Session, vault: Vault, acting: Acting, named: Sequence[Any]) -> dict[int, Place | None]:
    """The natural key of each named place by its position among all; None where it names no place."""
    known = stores.in_force(session, acting.tenant_id)
    lookups = Lookups(vault, acting.tenant_id)
    found: dict[int, Place | None] = {}
    for number, one in enumerate(named):
        store = known.get(one["store"]) if isinstance(one, Mapping) and isinstance(one.get("store"), str) else None
        if store is None or set(one) != {"store", "locator"}:
            found[number] = None
            continue
        try:
            place = canonical_locator(normal_locator(kind_of_places(store.kind, store.config), one["locator"]))
        except MalformedLocator:
            found[number] = None
            continue
        found[number] = (store.name, lookups.locator(store.name, place))
    return found


def at_places(session: Session, tenant_id: int, places: Iterable[Place]) -> dict[Place, Artifact]:
    """The artifacts at these places."""
    found: dict[Place, Artifact] = {}
    for store, hashes in _by_store(places).items():
        for chunk in chunks(hashes):
            for row in session.exec(
                select(Artifact).where(
                    Artifact.tenant_id == tenant_id, Artifact.store == store, col(Artifact.locator_hash).in_(chunk)
                )
            ):
                found[store, row.locator_hash] = row
    return found


def buried(session: Session, tenant_id: int, places: Iterable[Place | None]) -> frozenset[Place]:
    """Those of the places where something was erased."""
    found: set[Place] = set()
    for store, hashes in _by_store(place for place in places if place is not None).items():
        for chunk in chunks(hashes):
            query = sa.select(col(Tombstone.locator_hash)).where(
                col(Tombstone.tenant_id) == tenant_id,
                col(Tombstone.store) == store,
                col(Tombstone.locator_hash).in_(chunk),
            )
            found.update((store, locator_hash) for locator_hash in session.execute(query).scalars())
    return frozenset(found)


def _by_store(places: Iterable[Place]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for store, locator_hash in sorted(places):
        found.setdefault(store, []).append(locator_hash)
    return found


def load_around(session: Session, vault: Vault, tenant_id: int, rows: Sequence[Artifact], people: Members) -> Around:
    """What surrounds these memories; `people` is everybody who is the person asked about."""
    sets = members(session, tenant_id, {row.set_id for row in rows})
    everyone = frozenset[int]().union(*sets.values())
    taints, sourced = _taints(session, tenant_id, [row.id for row in rows])
    details = open_details(session, vault, tenant_id, rows)
    lookups = Lookups(vault, tenant_id)
    scopes = {
        number: frozenset(lookups.scope(name, value).hex() for name, value in said.scope.items())
        for number, said in details.items()
    }
    return Around(
        people=people,
        sets=sets,
        details=details,
        taints=taints,
        sourced=sourced,
        fenced=frozenset(fenced(session, tenant_id, everyone)),
        restricted=_restricted(session, tenant_id, rows, sets, scopes),
    )


def memory_of(row: Artifact, around: Around, rules: Mapping[str, DataClass]) -> Memory:
    """A memory as it is judged."""
    details = around.details.get(row.id)
    subjects = around.sets[row.set_id]
    return Memory(
        status=row.status,
        rules=rules.get(row.data_class),
        about=not subjects.isdisjoint(around.people),
        fenced=not subjects.isdisjoint(around.fenced),
        restricted=row.id in around.restricted,
        tainted=around.taints.get(row.id),
        scope=details.scope if details is not None else {},
        purposes=details.purposes if details is not None else (),
        source_type=row.source_type,
        has_source=row.id in around.sourced,
        verification=row.verification,
        confidence=row.confidence,
        observed_at=row.observed_at,
        confirmed_at=row.confirmed_at,
        created_at=row.created_at,
        expires_at=row.expires_at,
        ends_at=row.ends_at,
    )


def _taints(session: Session, tenant_id: int, ids: Sequence[int]) -> tuple[dict[int, str], frozenset[int]]:
    """The worst status among all that each memory was made from, and which memories name a source at all.

    Level by level upwards; usually a memory cites an entry, and one look-up is all.
    """
    seen: dict[int, set[int]] = {number: {number} for number in ids}
    frontier: dict[int, set[int]] = {number: {number} for number in ids}
    above: dict[int, set[int]] = {}
    sourced: frozenset[int] | None = None
    while frontier:
        parents = parents_of(session, tenant_id, {one for found in frontier.values() for one in found})
        sourced = frozenset(parents) & frozenset(ids) if sourced is None else sourced
        grown: dict[int, set[int]] = {}
        for memory, numbers in frontier.items():
            next_up = {up.number for one in numbers for up in parents.get(one, ()) if up.kind == ARTIFACT}
            if fresh := next_up - seen[memory]:
                seen[memory] |= fresh
                above.setdefault(memory, set()).update(fresh)
                grown[memory] = fresh
        frontier = grown
    statuses = _bad_statuses(session, tenant_id, {one for found in above.values() for one in found})
    taints = {}
    for memory, numbers in above.items():
        worst = sorted({statuses[one] for one in numbers if one in statuses}, key=_TAINTS.index)
        if worst:
            taints[memory] = worst[0]
    return taints, sourced or frozenset()


def _bad_statuses(session: Session, tenant_id: int, numbers: Iterable[int]) -> dict[int, str]:
    rows = bulk.select_in(session, _STATUSES, (tenant_id,), sorted(numbers), "int8")
    return {number: status for number, status in rows if status in _TAINTS}


def _restricted(
    session: Session,
    tenant_id: int,
    rows: Sequence[Artifact],
    sets: Mapping[int, Members],
    scopes: Mapping[int, frozenset[str]],
) -> frozenset[int]:
    """Which of these may only be stored: for all of a person's data, or for the classes and scopes of a restriction.

    A restriction of one name of a person holds for all of their merged names.
    """
    one_person = groups(session, tenant_id, frozenset[int]().union(*sets.values()))
    in_force: dict[int, list[RestrictionRow]] = {}
    for chunk in chunks(sorted(frozenset[int]().union(*one_person.values()))):
        for one in session.exec(
            select(RestrictionRow).where(
                RestrictionRow.tenant_id == tenant_id,
                col(RestrictionRow.subject_no).in_(chunk),
                col(RestrictionRow.ended_at).is_(None),
            )
        ):
            in_force.setdefault(one.subject_no, []).append(one)
    if not in_force:
        return frozenset()
    return frozenset(
        row.id
        for row in rows
        for number in sets[row.set_id]
        for name in one_person[number]
        for one in in_force.get(name, ())
        if _covers(one, row, scopes.get(row.id, frozenset()))
    )


def _covers(one: RestrictionRow, row: Artifact, scopes: frozenset[str]) -> bool:
    return (one.data_classes is None or row.data_class in one.data_classes) and (
        one.scopes is None or not scopes.isdisjoint(one.scopes)
    )
