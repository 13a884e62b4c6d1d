"""Where artifacts come from: late sources, the graph above and below, and the chain behind a remembered fact.

Guarantees: a late source carries its people to the first items below at once, and to the rest by the queue of cones
(`registry.cones`); walks are level by level and bounded, and say
when they stopped early. The caller commits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger import index
from ledger.models import EntryRow
from registry import classes, limited, stores
from registry.acting import Acting
from registry.artifact_rows import (
    by_numbers,
    find_artifact,
    find_artifacts,
    get_artifact,
    open_details,
    parent_names,
    public_name,
)
from registry.claims import Edge, claims_of, note_claims, open_review, settle_claims
from registry.declaration import DataClass
from registry.errors import OutsideTokenScope, RejectedSources
from registry.graph import (
    ARTIFACT,
    ENTRY,
    INLINE,
    Parent,
    children_of,
    full_sets,
    mark_erasing,
    mark_fenced,
    parents_of,
    people_behind,
    request_behind,
    spread,
    write_sets,
)
from registry.item import MAX_AGGREGATED, MAX_SUBJECTS, Context, ItemRejected, Source, read_sources
from registry.keyed import Lookups, chunks, hold_writer
from registry.memories import confidence_at
from registry.models import Artifact, Derivation, StreamRow
from registry.reading import Faults, Reader
from registry.subjects import fenced
from vault.vault import Vault

_MAX_NODES = 100_000
"""How far one walk goes; a page of it is never longer than its limit."""
_GONE = ("erasing", "erased")


def add_sources(
    session: Session, vault: Vault, acting: Acting, public_id: str, sources: Sequence[Any], *, now: datetime
) -> dict[str, Any]:
    """The artifact with late sources added; their people reach it and everything made from it.

    From another token than its own, what would end it waits for a human: `review` lists those sources.
    Raises: UnknownArtifact, RejectedSources, OutsideTokenScope.
    """
    tenant_id = acting.tenant_id
    hold_writer(session, tenant_id)
    row = find_artifact(session, tenant_id, public_id)
    if not acting.may_use_store(row.store):
        raise OutsideTokenScope("store", row.store)
    if not acting.may_use_class(row.data_class):
        raise OutsideTokenScope("class", row.data_class)
    parents = _resolve_sources(session, vault, acting, row, sources)
    if row.registered_by == acting.token_id:
        attach(session, tenant_id, row, parents, now)
        return get_artifact(session, tenant_id, public_id)
    ending = _ending(session, tenant_id, row, parents)
    held = ending.keys()
    claimed = parents - held - parents_of(session, tenant_id, (row.id,)).get(row.id, set())
    connect(session, tenant_id, row, parents - held, now)
    edges = [Edge(row.id, one.kind, one.number) for one in claimed]
    note_claims(session, tenant_id, edges, acting.token_id, now)
    if not held:
        return get_artifact(session, tenant_id, public_id)
    wanted = {"sources": [[one.kind, one.number] for one in sorted(held)], "request": _request_of(ending)}
    open_review(session, tenant_id, row.id, wanted, acting.token_id, now=now)
    names = parent_names(session, tenant_id, held)
    return {**get_artifact(session, tenant_id, public_id), "review": sorted(names.values())}


def attach(session: Session, tenant_id: int, row: Artifact, parents: Collection[Parent], now: datetime) -> None:
    """Make these the item's sources, with all that follows: whose it is, and that it goes where a source is gone.

    Raises: RejectedSources.
    """
    settle_claims(session, tenant_id, [Edge(row.id, one.kind, one.number) for one in parents])
    ending = _ending(session, tenant_id, row, parents)
    connect(session, tenant_id, row, parents, now)
    if ending:
        mark_erasing(session, tenant_id, {row.id: _request_of(ending) or ""})
        session.expire_all()


def connect(session: Session, tenant_id: int, row: Artifact, parents: Collection[Parent], now: datetime) -> None:
    """Add edges and carry people along them; what comes to concern a fenced person below the item is marked.

    Raises: RejectedSources.
    """
    present = parents_of(session, tenant_id, (row.id,)).get(row.id, set())
    new = [
        {"tenant_id": tenant_id, "child": row.id, "parent_kind": parent.kind, "parent": parent.number}
        for parent in sorted(set(parents) - present)
    ]
    if new:
        session.connection().execute(sa.insert(Derivation), new)
    former = full_sets(session, tenant_id, (row.id,))[row.id]
    behind = people_behind(session, tenant_id, parents)
    full = former if row.anonymised else former.union(*behind.values())
    spec = classes.in_force(session, tenant_id).get(row.data_class)
    most = MAX_AGGREGATED if spec is not None and spec.aggregate else MAX_SUBJECTS
    if len(full) > most:
        raise RejectedSources(public_name(row), f"{len(full)} subjects behind one item, at most {most}")
    if full != former:
        write_sets(session, tenant_id, {row.id: full}, now)
        gained = spread(session, tenant_id, {row.id: full}, now, limit=INLINE)
        mark_fenced(session, tenant_id, gained)
    session.expire_all()


def _request_of(ending: Mapping[Parent, str | None]) -> str | None:
    return min((request for request in ending.values() if request), default=None)


def _ending(session: Session, tenant_id: int, row: Artifact, parents: Collection[Parent]) -> dict[Parent, str | None]:
    """The sources by which the item goes at once, each with the request behind it."""
    if row.anonymised or row.status in _GONE:
        return {}
    present = full_sets(session, tenant_id, (row.id,))[row.id]
    behind = people_behind(session, tenant_id, parents)
    closed = fenced(session, tenant_id, frozenset[int]().union(*behind.values()) - present)
    rows = by_numbers(session, tenant_id, [one.number for one in parents if one.kind == ARTIFACT])
    found: dict[Parent, str | None] = {}
    for parent in parents:
        source = rows.get(parent.number) if parent.kind == ARTIFACT else None
        if source is not None and source.status in _GONE:
            found[parent] = source.request_id
        elif behind.get(parent, frozenset()) & closed.keys():
            found[parent] = request_behind(behind[parent], closed)
    people = frozenset[int]().union(*behind.values())
    limits = [limit for found in limited.of_people(session, tenant_id, people).values() for limit in found]
    entries = [one.number for one in parents if one.kind == ENTRY]
    late = limited.late_entries(session, tenant_id, entries, limits)
    return found | {Parent(ENTRY, number): request for number, request in late.items()}


def _resolve_sources(
    session: Session, vault: Vault, acting: Acting, row: Artifact, sources: Sequence[Any]
) -> set[Parent]:
    tenant_id, name = acting.tenant_id, public_name(row)
    context = Context(
        acting=acting,
        classes={},
        stores=stores.in_force(session, tenant_id),
        lookups=Lookups(vault, tenant_id),
    )
    try:
        named = read_sources(Reader({"sources": list(sources)}, Faults("sources")), context)
    except ItemRejected as error:
        raise RejectedSources(name, f"{error.pointer}: {error.detail}") from error
    found: set[Parent] = set()
    for number, source in enumerate(named):
        parent = _find_source(session, tenant_id, source)
        if parent is None:
            raise RejectedSources(name, f"/sources/{number}: no such source is registered or recorded here")
        if parent == Parent(ARTIFACT, row.id):
            raise RejectedSources(name, f"/sources/{number}: an artifact cannot be made from itself")
        found.add(parent)
    return found


def _find_source(session: Session, tenant_id: int, source: Source) -> Parent | None:
    if isinstance(source.key, bytes):
        entry = session.exec(
            select(EntryRow.idx).where(EntryRow.tenant_id == tenant_id, EntryRow.entry_id == source.key)
        ).first()
        return None if entry is None else Parent(ENTRY, entry)
    if isinstance(source.key, str):
        artifact = find_artifacts(session, tenant_id, (source.key,)).get(source.key)
        return None if artifact is None else Parent(ARTIFACT, artifact.id)
    store, place = source.key
    number = session.exec(
        select(Artifact.id).where(
            Artifact.tenant_id == tenant_id, Artifact.store == store, Artifact.locator_hash == place
        )
    ).first()
    return None if number is None else Parent(ARTIFACT, number)


def lineage(
    session: Session,
    tenant_id: int,
    public_id: str,
    *,
    direction: str = "up",
    depth: int = 10,
    limit: int = 1000,
    after: tuple[int, str, int] | None = None,
) -> dict[str, Any]:
    """The graph above (`up`: sources) or below (`down`: what was made from it), level by level. Source: API §4.

    A page of it: the nodes after `after` in order of level and number, and the edges that lead to them from these or
    earlier ones. `next` is where the following page starts; `truncated` says that there is more, by page, by depth or
    beyond the most that is walked. Raises: UnknownArtifact.
    """
    root = Parent(ARTIFACT, find_artifact(session, tenant_id, public_id).id)
    levels, edges, deeper = _walk(session, tenant_id, root, direction, depth=depth, enough=(limit, after))
    keys = {node: (level, node.kind, node.number) for node, level in levels.items()}
    later = sorted(node for node in keys if after is None or keys[node] > after)
    later.sort(key=keys.__getitem__)
    page = later[:limit]
    shown = set(page)
    # An edge belongs to the page on which the second of its ends appears.
    listed = {edge for edge in edges if max(edge, key=keys.__getitem__) in shown}
    more = len(later) > limit
    view = _graph_view(session, tenant_id, page, listed, truncated=deeper or more)
    return {**view, "next": keys[page[-1]] if more and page else None}


def _walk(
    session: Session,
    tenant_id: int,
    root: Parent,
    direction: str,
    *,
    depth: int,
    enough: tuple[int, tuple[int, str, int] | None],
) -> tuple[dict[Parent, int], set[tuple[Parent, Parent]], bool]:
    """Each node with its level, the edges between them, and whether more lies deeper than was walked.

    Whole levels, until there is more than the wanted page.
    """
    limit, after = enough
    levels, edges, frontier = {root: 0}, set[tuple[Parent, Parent]](), [root]
    for level in range(depth + 1):
        numbers = [node.number for node in frontier if node.kind == ARTIFACT]
        step = _level(session, tenant_id, numbers, direction)
        if level == depth:
            return levels, edges, any(step.values())
        frontier = []
        for number in numbers:
            here = Parent(ARTIFACT, number)
            for other in sorted(step.get(number, ())):
                if other not in levels:
                    if len(levels) >= _MAX_NODES:
                        return levels, edges, True
                    levels[other] = level + 1
                    frontier.append(other)
                edges.add((other, here) if direction == "up" else (here, other))
        beyond = sum(after is None or (at, node.kind, node.number) > after for node, at in levels.items())
        if not frontier:
            break
        if beyond > limit:
            return levels, edges, True
    return levels, edges, False


def _level(session: Session, tenant_id: int, numbers: Sequence[int], direction: str) -> dict[int, set[Parent]]:
    if direction == "up":
        return parents_of(session, tenant_id, numbers)
    below = children_of(session, tenant_id, numbers)
    return {number: {Parent(ARTIFACT, child) for child in found} for number, found in below.items()}


def _graph_view(
    session: Session, tenant_id: int, nodes: Sequence[Parent], edges: set[tuple[Parent, Parent]], *, truncated: bool
) -> dict[str, Any]:
    ends = {node for edge in edges for node in edge}
    names = parent_names(session, tenant_id, ends | set(nodes))
    numbers = {node.number for node in ends | set(nodes) if node.kind == ARTIFACT}
    rows = by_numbers(session, tenant_id, numbers)
    shown: list[dict[str, Any]] = []
    for node in nodes:
        if node.kind == ENTRY:
            shown.append({"id": names.get(node, f"entry:{node.number}"), "kind": "entry"})
        elif (row := rows.get(node.number)) is not None:
            view = {"data_class": row.data_class, "store": row.store, "status": row.status}
            shown.append({"id": public_name(row), "kind": "artifact", **view})
    activities = {number: (row.activity or {}).get("kind") for number, row in rows.items()}
    claims = claims_of(session, tenant_id, {made.number for _, made in edges})
    listed = [
        {
            "from": names[source],
            "to": names[made],
            "activity": activities.get(made.number),
            **({"claimed": True} if Edge(made.number, source.kind, source.number) in claims else {}),
        }
        for source, made in sorted(edges)
        if source in names and made in names
    ]
    return {"nodes": shown, "edges": listed, "truncated": truncated}


def provenance(
    session: Session, vault: Vault, acting: Acting, public_id: str, now: datetime, *, depth: int = 10
) -> dict[str, Any]:
    """Where a remembered fact came from: type, reference, time, verification, and the chain behind it. Source: API §4.

    The chain ends in the turns of the record: which stream, at which position, when. What was said there is not here:
    reading content is another right, and leaves an entry. Raises: UnknownArtifact.
    """
    row = find_artifact(session, acting.tenant_id, public_id)
    graph = lineage(session, acting.tenant_id, public_id, direction="up", depth=depth)
    above = find_artifacts(
        session, acting.tenant_id, [node["id"] for node in graph["nodes"] if node["kind"] == "artifact"]
    )
    opened = open_details(session, vault, acting.tenant_id, list(above.values()))
    details = opened.get(row.id)
    turns = turns_of(
        session, acting.tenant_id, [_entry_id(node["id"]) for node in graph["nodes"] if node["kind"] == "entry"]
    )
    chain: list[dict[str, Any]] = []
    for node in graph["nodes"]:
        if node["kind"] == "entry":
            entry_id = _entry_id(node["id"])
            chain.append({"entry": entry_id, "activity": None, **turns.get(entry_id, {})})
            continue
        one = above[node["id"]]
        said = opened.get(one.id)
        activity = {"kind": (one.activity or {}).get("kind"), **(dict(said.activity) if said else {})}
        chain.append({"artifact": node["id"], "activity": activity})
    return {
        "source_type": row.source_type,
        "source_ref": details.source_ref if details else None,
        "observed_at": row.observed_at,
        "confirmed_at": row.confirmed_at,
        "after_action": details.after_action if details else None,
        "verification": row.verification,
        "confidence_now": confidence_now(row, classes.in_force(session, acting.tenant_id).get(row.data_class), now),
        "versions": dict(details.versions) if details else {},
        "chain": chain,
        "truncated": graph["truncated"],
    }


def turns_of(session: Session, tenant_id: int, entry_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Where each entry stands in the record: its stream under its opaque id, its position and index, kind and times."""
    rows = index.known(session, tenant_id, entry_ids)
    streams: dict[int, str] = {}
    for chunk in chunks(sorted({row.stream_no for row in rows.values()})):
        query = sa.select(col(StreamRow.stream_no), col(StreamRow.stream_id)).where(
            col(StreamRow.tenant_id) == tenant_id, col(StreamRow.stream_no).in_(chunk)
        )
        streams.update((row.stream_no, row.stream_id) for row in session.execute(query))
    return {
        entry_id: {
            "stream": streams.get(row.stream_no),
            "position": row.position,
            "index": row.idx,
            "kind": row.kind,
            "data_class": row.data_class,
            "at": row.at,
            "received": row.received,
        }
        for entry_id, row in rows.items()
    }


def _entry_id(name: str) -> str:
    return name.removeprefix("entry:")


def confidence_now(row: Artifact, data_class: DataClass | None, now: datetime) -> float | None:
    """Confidence after its class's decay: halved with every half-life since it was observed or last confirmed."""
    if row.confidence is None or data_class is None or data_class.decay is None:
        return row.confidence
    since = max(at for at in (row.observed_at or row.created_at, row.confirmed_at) if at is not None)
    return confidence_at(row.confidence, now - since, data_class.decay.half_life.upper_bound())
