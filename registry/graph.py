"""The derivation graph in SQL, read level by level, and the spread of subjects along it.

Guarantees: walks use index look-ups of many nodes at a time, never a recursive query; cycles end them; after `spread`
every descendant of a grown item has its subjects too; `mark_fenced` marks those that now concern a fenced person.
The caller commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col

from ledger.models import EntryRow
from registry import bulk
from registry.claims import Edge, claims_of, open_review
from registry.classes import in_force
from registry.ids import new_id
from registry.keyed import chunks
from registry.models import Artifact, Derivation, PendingCone
from registry.sets import Members, intern_sets, members
from registry.subjects import Fence, fenced

ARTIFACT, ENTRY = "a", "e"
_CONSENT = "consent"
INLINE = 2_000
"""How many items below a late source get its people at once; what lies further below is left to the job."""
CLAIMED = "claimed"
"""In place of a token: somebody's erasure reached an item by a claim that was there before."""
REMOVABLE = ("live", "quarantined", "revoked")
"""States in which an item is there and nobody has decided its end."""
_PARENTS = "SELECT child, parent_kind, parent FROM derivation WHERE tenant_id = ? AND child"


class Parent(NamedTuple):
    """What something was made from: an artifact by id, an entry of the record by index."""

    kind: str
    number: int


def children_of(session: Session, tenant_id: int, artifact_ids: Iterable[int]) -> dict[int, set[int]]:
    """The artifacts made directly from each of these artifacts."""
    found: dict[int, set[int]] = {}
    for chunk in chunks(sorted(set(artifact_ids))):
        rows = session.execute(
            sa.select(col(Derivation.parent), col(Derivation.child)).where(
                col(Derivation.tenant_id) == tenant_id,
                col(Derivation.parent_kind) == ARTIFACT,
                col(Derivation.parent).in_(chunk),
            )
        )
        for parent, child in rows:
            found.setdefault(parent, set()).add(child)
    return found


def made_from_entries(session: Session, tenant_id: int, entry_indexes: Iterable[int]) -> dict[int, set[int]]:
    """The artifacts made directly from each of these entries."""
    found: dict[int, set[int]] = {}
    for chunk in chunks(sorted(set(entry_indexes))):
        rows = session.execute(
            sa.select(col(Derivation.parent), col(Derivation.child)).where(
                col(Derivation.tenant_id) == tenant_id,
                col(Derivation.parent_kind) == ENTRY,
                col(Derivation.parent).in_(chunk),
            )
        )
        for parent, child in rows:
            found.setdefault(parent, set()).add(child)
    return found


def parents_of(session: Session, tenant_id: int, artifact_ids: Iterable[int]) -> dict[int, set[Parent]]:
    """What each of these artifacts was directly made from."""
    found: dict[int, set[Parent]] = {}
    for child, kind, parent in bulk.select_in(session, _PARENTS, (tenant_id,), sorted(set(artifact_ids)), "int8"):
        found.setdefault(child, set()).add(Parent(kind, parent))
    return found


def spread(
    session: Session, tenant_id: int, grown: Mapping[int, Members], now: datetime, *, limit: int | None = None
) -> dict[int, Members]:
    """Carry grown subject sets to every descendant; those that changed, with the people they gained.

    With a limit, what lies below that many changed items is left to the job: each item of the last level is put into
    the queue (`PendingCone`), from which `registry.cones` goes on. The flow stops where an anonymisation was declared,
    and for fenced people at a source that another token claimed: there a human decides.
    """
    changed: dict[int, Members] = {}
    frontier = dict(grown)
    while frontier:
        if limit is not None and len(changed) >= limit:
            queue(session, tenant_id, frontier, now)
            break
        below = children_of(session, tenant_id, frontier)
        claims = claims_of(session, tenant_id, frozenset[int]().union(*below.values()))
        closed = fenced(session, tenant_id, frozenset[int]().union(*frontier.values())) if claims else {}
        wanted: dict[int, set[int]] = {}
        for parent, children in below.items():
            for child in children:
                passing = frontier[parent]
                if passing & closed.keys() and (edge := Edge(child, ARTIFACT, parent)) in claims:
                    contest(session, tenant_id, {edge: passing}, closed, now)
                    passing -= closed.keys()
                wanted.setdefault(child, set()).update(passing)
        former = full_sets(session, tenant_id, wanted, flowing=True)
        frontier = {
            child: former[child] | subjects
            for child, subjects in wanted.items()
            if child in former and not subjects <= former[child]
        }
        write_sets(session, tenant_id, frontier, now)
        for child, subjects in frontier.items():
            changed[child] = changed.get(child, frozenset()) | (subjects - former[child])
    return changed


def contest(
    session: Session, tenant_id: int, edges: Mapping[Edge, Members], closed: Mapping[int, Fence], now: datetime
) -> None:
    """Ask a human whether these claims are true: behind each stands somebody whose erasure has begun."""
    for edge, people in edges.items():
        request = request_behind(people, closed)
        wanted = {"sources": [[edge.kind, edge.parent]], "request": request}
        open_review(session, tenant_id, edge.child, wanted, CLAIMED, now=now)


def queue(session: Session, tenant_id: int, artifact_ids: Iterable[int], now: datetime) -> None:
    """Leave what lies below these artifacts to the propagation job."""
    rows = [{"tenant_id": tenant_id, "id": new_id(now), "artifact_id": number, "at": now} for number in artifact_ids]
    if rows:
        session.connection().execute(sa.insert(PendingCone), rows)


def full_sets(
    session: Session, tenant_id: int, artifact_ids: Iterable[int], *, flowing: bool = False
) -> dict[int, Members]:
    """The subjects of each of these artifacts; with `flowing`, of those only into which people of sources flow."""
    numbers: dict[int, int] = {}
    for chunk in chunks(sorted(set(artifact_ids))):
        query = sa.select(col(Artifact.id), col(Artifact.set_id)).where(
            col(Artifact.tenant_id) == tenant_id, col(Artifact.id).in_(chunk)
        )
        rows = session.execute(query.where(col(Artifact.anonymised).is_(False)) if flowing else query)
        numbers.update((row.id, row.set_id) for row in rows)
    sets = members(session, tenant_id, numbers.values())
    return {artifact_id: sets[set_id] for artifact_id, set_id in numbers.items()}


def people_behind(session: Session, tenant_id: int, parents: Iterable[Parent]) -> dict[Parent, Members]:
    """The people of each source that is there."""
    listed = set(parents)
    made = full_sets(session, tenant_id, [one.number for one in listed if one.kind == ARTIFACT])
    numbers: dict[int, int] = {}
    for chunk in chunks(sorted(one.number for one in listed if one.kind == ENTRY)):
        query = sa.select(col(EntryRow.idx), col(EntryRow.set_id)).where(
            col(EntryRow.tenant_id) == tenant_id, col(EntryRow.idx).in_(chunk)
        )
        numbers.update((row.idx, row.set_id) for row in session.execute(query))
    sets = members(session, tenant_id, numbers.values())
    return {Parent(ARTIFACT, number): people for number, people in made.items()} | {
        Parent(ENTRY, idx): sets[set_id] for idx, set_id in numbers.items()
    }


def write_sets(session: Session, tenant_id: int, sets: Mapping[int, Members], now: datetime) -> None:
    """Give each artifact its set of subjects.

    Those of a class that waits for consent lose their end date, since it is that of the people they were about before;
    the next pass of retention gives them one.
    """
    if not sets:
        return
    waiting = sorted(name for name, one in in_force(session, tenant_id).items() if one.keep_from == _CONSENT)
    for chunk in chunks(sorted(sets)) if waiting else ():
        session.connection().execute(
            sa.update(Artifact)
            .where(
                col(Artifact.tenant_id) == tenant_id,
                col(Artifact.id).in_(chunk),
                col(Artifact.data_class).in_(waiting),
            )
            .values(ends_at=None)
        )
    numbers = intern_sets(session, tenant_id, sets.values(), now)
    session.connection().execute(
        sa.update(Artifact)
        .where(col(Artifact.tenant_id) == tenant_id, col(Artifact.id) == sa.bindparam("artifact_id"))
        .values(set_id=sa.bindparam("number")),
        [{"artifact_id": artifact_id, "number": numbers[subjects]} for artifact_id, subjects in sets.items()],
    )


def mark_fenced(session: Session, tenant_id: int, gained: Mapping[int, Members]) -> dict[int, str]:
    """Mark for removal what comes to concern a fenced person; the requests by artifact. What is decided stays.

    Only people an item gained count: of those it had before, their request has decided, or waits for a human.
    """
    everyone = frozenset[int]().union(*gained.values())
    closed = fenced(session, tenant_id, everyone) if everyone else {}
    hits = {artifact_id: request_behind(subjects, closed) for artifact_id, subjects in gained.items()}
    marked = {artifact_id: request for artifact_id, request in hits.items() if request is not None}
    mark_erasing(session, tenant_id, marked)
    return marked


def mark_erasing(session: Session, tenant_id: int, requests: Mapping[int, str]) -> None:
    """Mark artifacts for removal, each under its request."""
    under: dict[str, list[int]] = {}
    for artifact_id, request in sorted(requests.items()):
        under.setdefault(request, []).append(artifact_id)
    for request, artifact_ids in under.items():
        for chunk in chunks(artifact_ids):
            session.connection().execute(
                sa.update(Artifact)
                .where(
                    col(Artifact.tenant_id) == tenant_id,
                    col(Artifact.id).in_(chunk),
                    col(Artifact.status).in_(REMOVABLE),
                )
                .values(status="erasing", request_id=request)
            )


def request_behind(subjects: Members, closed: Mapping[int, Fence]) -> str | None:
    """The request of the earliest fence around one of the subjects, None where all are free."""
    fences = [closed[number] for number in subjects & closed.keys()]
    return min(fences, key=lambda one: one.at).request_id if fences else None
