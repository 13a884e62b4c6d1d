"""What the registry tells other lineage tools: the graph of one artifact, and derivations since the last time.

Guarantees: reads in bounded batches from a watermark that the caller stores in the same transaction in which it notes
that the events left the house: an event may come twice, with the same run id, and is never lost. Off unless the
operator names a sink (`api.lineage_feed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col

from registry.acting import Acting
from registry.artifact_rows import by_numbers, find_artifact, find_artifacts, parent_names
from registry.graph import ARTIFACT, Parent, parents_of
from registry.ids import artifact_name
from registry.models import Artifact, Watermark
from registry.origins import lineage
from registry.prov import Edge, Node, derivation_event, erasure_event, prov_document
from registry.sets import members
from registry.subjects import opaque_ids

MAX_LATE = 10_000


def prov_of(session: Session, acting: Acting, public_id: str, *, depth: int, limit: int) -> dict[str, Any]:
    """PROV-JSON of everything an artifact was made from. Raises: UnknownArtifact."""
    tenant_id = acting.tenant_id
    find_artifact(session, tenant_id, public_id)
    graph = lineage(session, tenant_id, public_id, direction="up", depth=depth, limit=limit)
    rows = find_artifacts(session, tenant_id, [one["id"] for one in graph["nodes"] if one["kind"] == "artifact"])
    sets = members(session, tenant_id, {row.set_id for row in rows.values()})
    people = opaque_ids(session, tenant_id, {number for found in sets.values() for number in found})
    nodes = []
    for one in graph["nodes"]:
        row = rows.get(one["id"])
        if row is None:
            nodes.append(Node(id=one["id"], kind="entry"))
            continue
        about = tuple(sorted(people[number] for number in sets[row.set_id] if number in people))
        nodes.append(_node(row, one["id"], subjects=about))
    edges = [Edge(one["from"], one["to"]) for one in graph["edges"]]
    return prov_document(acting.log_id, nodes, edges, truncated_at=public_id if graph["truncated"] else None)


def derivations_after(
    session: Session, tenant_id: int, log_id: str, position: int, *, limit: int
) -> tuple[list[dict[str, Any]], int]:
    """Events of the next derived artifacts after a surrogate, and the surrogate up to which was looked."""
    ids = session.scalars(
        sa.select(col(Artifact.id))
        .where(col(Artifact.tenant_id) == tenant_id, col(Artifact.id) > position)
        .order_by(col(Artifact.id))
        .limit(limit)
    ).all()
    return derivations_of(session, tenant_id, log_id, ids), ids[-1] if ids else position


def derivations_of(session: Session, tenant_id: int, log_id: str, artifact_ids: Sequence[int]) -> list[dict[str, Any]]:
    """One event for each of these artifacts that has sources."""
    parents = parents_of(session, tenant_id, artifact_ids)
    named = parent_names(session, tenant_id, {one for found in parents.values() for one in found})
    numbers = {one.number for found in parents.values() for one in found if one.kind == ARTIFACT}
    rows = by_numbers(session, tenant_id, {*parents, *numbers})
    events = []
    for number in sorted(parents):
        sources = [_source(one, rows, named) for one in sorted(parents[number])]
        present = [one for one in sources if one is not None]
        if number in rows and present:
            made = rows[number]
            events.append(derivation_event(log_id, _node(made, artifact_name(number)), present, made.created_at))
    return events


def erasures_of(
    session: Session, tenant_id: int, log_id: str, artifact_ids: Iterable[int], *, request: str, at: datetime
) -> list[dict[str, Any]]:
    """One event for each of these artifacts, erased under a request or pass."""
    rows = by_numbers(session, tenant_id, artifact_ids)
    return [
        erasure_event(log_id, _node(row, artifact_name(number)), request, at) for number, row in sorted(rows.items())
    ]


def watermark(session: Session, tenant_id: int, name: str, now: datetime) -> Watermark:
    """How far a feed has come; to be changed and added by the caller."""
    return session.get(Watermark, (tenant_id, name)) or Watermark(tenant_id=tenant_id, name=name, at=now)


def note_late(session: Session, tenant_id: int, name: str, public_ids: Iterable[str], now: datetime) -> None:
    """Remember artifacts that got sources after they were told of, to tell of them again."""
    numbers = [row.id for row in find_artifacts(session, tenant_id, public_ids).values()]
    if not numbers:
        return
    mark = watermark(session, tenant_id, name, now)
    waiting = sorted({*mark.details.get("waiting", []), *numbers})
    mark.details, mark.at = {"waiting": waiting[-MAX_LATE:]}, now
    session.add(mark)
    session.flush()


def _source(one: Parent, rows: Mapping[int, Artifact], named: Mapping[Parent, str]) -> Node | None:
    if one.kind == ARTIFACT:
        row = rows.get(one.number)
        return None if row is None else _node(row, artifact_name(row.id))
    return Node(id=named[one], kind="entry") if one in named else None


def _node(row: Artifact, name: str, *, subjects: tuple[str, ...] = ()) -> Node:
    return Node(
        id=name,
        kind="artifact",
        data_class=row.data_class,
        class_version=row.class_version,
        store=row.store,
        status=row.status,
        activity=(row.activity or {}).get("kind"),
        anonymised=row.anonymised,
        created_at=row.created_at,
        request=row.request_id,
        registered_by=row.registered_by,
        subjects=subjects,
    )
