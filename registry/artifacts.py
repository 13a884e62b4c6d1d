"""Artifacts after registration: found, shown, explained, marked, resealed, buried.

Guarantees: what leaves here names people by opaque ids only; readable places and free text are opened in batches, only
by `open_details` and `provenance`; what was buried keeps its graph and its number and nothing else. Writing new items
is `registry.registration`. The caller commits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger.models import EntryRow
from registry import classes, stores
from registry.acting import Acting
from registry.declaration import DataClass
from registry.errors import Conflict, OutsideTokenScope, RejectedSources, UnknownArtifact
from registry.graph import (
    ARTIFACT,
    ENTRY,
    Parent,
    children_of,
    full_sets,
    mark_erasing,
    mark_fenced,
    parents_of,
    spread,
    write_sets,
)
from registry.identifiers import parse_subject
from registry.ids import artifact_name
from registry.item import GIVEN_ID, MAX_SUBJECTS, OWN_ID, Context, ItemRejected, Source, read_sources
from registry.keyed import Lookups, Seals, canonical_json, chunks, hold_writer
from registry.models import Artifact, Derivation, ScopeKey, SubjectSetMember, Tombstone
from registry.reading import Faults, Reader
from registry.registration import LABEL, Dates, EndsAt, default_ends_at, register
from registry.sets import members, sets_of
from registry.subjects import find, opaque_ids
from vault.vault import Vault

__all__ = [
    "Dates", "Details", "EndsAt", "LateCopy", "add_sources", "artifacts_of", "bury", "default_ends_at", "find_artifact",
    "find_artifacts", "get_artifact", "late_copies", "lineage", "mark_status", "open_details", "provenance", "register",
    "reseal", "search", "set_use", "views",
]  # fmt: skip

STATUSES = ("live", "erasing", "erased", "retained", "quarantined", "revoked")
_OPAQUE = re.compile(r"art_(?:[0-9a-f-]{16,60}|[0-9A-HJKMNP-TV-Z]{26})")
"""Given ids that look random; any other may spell a name and goes with the content."""
_USES = {"quarantined": "quarantined", "revoked": "revoked", "active": "live", "verified": "live"}
_MAX_NODES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What a caller said of an artifact in free form, opened. None for what was forgotten."""

    locator: Mapping[str, Any] = field(repr=False)
    scope: Mapping[str, str] = field(default_factory=dict, repr=False)
    activity: Mapping[str, str] = field(default_factory=dict, repr=False)
    versions: Mapping[str, str] = field(default_factory=dict, repr=False)
    source_ref: str | None = field(default=None, repr=False)
    purposes: tuple[str, ...] = ()
    reason: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LateCopy:
    """An artifact marked for removal, and the request that it joins."""

    artifact_id: int
    request_id: str


# ── finding ───────────────────────────────────────────────────────────────────────────────────────────────────────


def find_artifact(session: Session, tenant_id: int, public_id: str) -> Artifact:
    """The artifact of a public id. Raises: UnknownArtifact."""
    found = find_artifacts(session, tenant_id, (public_id,))
    if public_id not in found:
        raise UnknownArtifact(public_id if GIVEN_ID.fullmatch(public_id) else "")
    return found[public_id]


def find_artifacts(session: Session, tenant_id: int, public_ids: Iterable[str]) -> dict[str, Artifact]:
    """The artifacts of those public ids that exist: the ids given at registration, and our own."""
    wanted = sorted({name for name in public_ids if GIVEN_ID.fullmatch(name)})
    found: dict[str, Artifact] = {}
    for chunk in chunks(wanted):
        for row in session.exec(
            select(Artifact).where(Artifact.tenant_id == tenant_id, col(Artifact.given_id).in_(chunk))
        ):
            found[str(row.given_id)] = row
    numbers = {int(match[1], 16): name for name in wanted if name not in found and (match := OWN_ID.fullmatch(name))}
    for row in by_numbers(session, tenant_id, [number for number in numbers if number < 2**63]).values():
        found[numbers[row.id]] = row
    return found


def by_numbers(session: Session, tenant_id: int, numbers: Iterable[int]) -> dict[int, Artifact]:
    """The artifacts of these surrogates."""
    found: dict[int, Artifact] = {}
    for chunk in chunks(sorted(set(numbers))):
        for row in session.exec(select(Artifact).where(Artifact.tenant_id == tenant_id, col(Artifact.id).in_(chunk))):
            found[row.id] = row
    return found


def artifacts_of(session: Session, tenant_id: int, subject_nos: Iterable[int]) -> list[Artifact]:
    """Every artifact that concerns one of these people and is not erased: one index look-up, whatever the size."""
    found: list[Artifact] = []
    for chunk in chunks(sorted(sets_of(session, tenant_id, subject_nos))):
        found += session.exec(
            select(Artifact).where(
                Artifact.tenant_id == tenant_id, col(Artifact.set_id).in_(chunk), Artifact.status != "erased"
            )
        )
    return sorted(found, key=lambda row: row.id)


def late_copies(session: Session, tenant_id: int, limit: int = 1000) -> list[LateCopy]:
    """Artifacts marked for removal under a request, oldest first: the erasure side joins them to it."""
    rows = session.exec(
        select(Artifact)
        .where(Artifact.tenant_id == tenant_id, col(Artifact.status) == sa.literal_column("'erasing'"))
        .order_by(col(Artifact.id))
        .limit(limit)
    )
    return [LateCopy(artifact_id=row.id, request_id=row.request_id or "") for row in rows]


def search(
    session: Session,
    vault: Vault,
    acting: Acting,
    filters: Mapping[str, Any],
    *,
    limit: int = 50,
    after: int = 0,
) -> tuple[list[dict[str, Any]], int | None]:
    """Views of matching artifacts in order of registration, and where the next page starts. Source: API §4.

    Raises: MalformedSubject, InvalidDeclaration for unknown filters.
    """
    faults = Faults("search")
    reader = Reader(filters, faults)
    query = select(Artifact).where(Artifact.tenant_id == acting.tenant_id, col(Artifact.id) > after)
    if (text := reader.raw("subject")) is not None:
        identifier = parse_subject(text)
        people = find(session, vault, acting, (identifier,))
        sets = sa.select(col(SubjectSetMember.set_id)).where(
            col(SubjectSetMember.tenant_id) == acting.tenant_id,
            col(SubjectSetMember.subject_no) == people.get(identifier.text, -1),
        )
        query = query.where(col(Artifact.set_id).in_(sets))
    for name, column in (("data_class", Artifact.data_class), ("store", Artifact.store)):
        if value := reader.text(name, limit=64):
            query = query.where(col(column) == value)
    if status := reader.choice("status", STATUSES):
        query = query.where(col(Artifact.status) == status)
    for lookup in _scope_lookups(reader, Lookups(vault, acting.tenant_id)):
        items = sa.select(col(ScopeKey.item)).where(
            col(ScopeKey.tenant_id) == acting.tenant_id, col(ScopeKey.lookup) == lookup, col(ScopeKey.kind) == ARTIFACT
        )
        query = query.where(col(Artifact.id).in_(items))
    reader.done()
    faults.raise_any()
    rows = list(session.exec(query.order_by(col(Artifact.id)).limit(limit + 1)))
    page = rows[:limit]
    return views(session, acting.tenant_id, page), page[-1].id if len(rows) > limit and page else None


def _scope_lookups(reader: Reader, lookups: Lookups) -> list[bytes]:
    scope = reader.raw("scope")
    if scope is None:
        return []
    if not isinstance(scope, Mapping) or not all(isinstance(value, str) for value in scope.values()):
        reader.add("scope", "expected an object of names and texts")
        return []
    return [lookups.scope(str(name), value) for name, value in scope.items()]


# ── showing ───────────────────────────────────────────────────────────────────────────────────────────────────────


def get_artifact(session: Session, tenant_id: int, public_id: str) -> dict[str, Any]:
    """One artifact as the API shows it. Raises: UnknownArtifact."""
    return views(session, tenant_id, [find_artifact(session, tenant_id, public_id)])[0]


def views(session: Session, tenant_id: int, rows: Sequence[Artifact]) -> list[dict[str, Any]]:
    """Artifacts as the API shows them: people as opaque ids, no place, no free text."""
    sets = members(session, tenant_id, {row.set_id for row in rows})
    people = opaque_ids(session, tenant_id, {number for row in rows for number in sets[row.set_id]})
    parents = parents_of(session, tenant_id, [row.id for row in rows])
    names = _names(session, tenant_id, {parent for found in parents.values() for parent in found})
    return [
        {
            "id": public_name(row),
            "data_class": row.data_class,
            "class_version": row.class_version,
            "store": row.store,
            "status": row.status,
            "subjects": sorted(people[number] for number in sets[row.set_id] if number in people),
            "sources": sorted(names[parent] for parent in parents.get(row.id, ()) if parent in names),
            "activity": (row.activity or {}).get("kind"),
            "source_type": row.source_type,
            "verification": row.verification,
            "confidence": row.confidence,
            "created_at": row.created_at,
            "observed_at": row.observed_at,
            "expires_at": row.expires_at,
            "ends_at": None if row.status == "erased" else row.ends_at,
            "rule": _rule(row),
            "request": row.request_id,
        }
        for row in rows
    ]


def public_name(row: Artifact) -> str:
    """The public id of an artifact."""
    return row.given_id or artifact_name(row.id)


def _rule(row: Artifact) -> str:
    if row.ends_at is None or row.status == "erased":
        return "none"
    return "item_expiry" if row.ends_at == row.expires_at else "class_retention"


def _names(session: Session, tenant_id: int, parents: Iterable[Parent]) -> dict[Parent, str]:
    wanted = list(parents)
    artifacts = by_numbers(session, tenant_id, [parent.number for parent in wanted if parent.kind == ARTIFACT])
    entries = _entries(session, tenant_id, [parent.number for parent in wanted if parent.kind == ENTRY])
    found = {Parent(ARTIFACT, number): public_name(row) for number, row in artifacts.items()}
    return found | {Parent(ENTRY, number): f"entry:{entry_id}" for number, entry_id in entries.items()}


def _entries(session: Session, tenant_id: int, indexes: Iterable[int]) -> dict[int, str]:
    found: dict[int, str] = {}
    for chunk in chunks(sorted(set(indexes))):
        rows = session.execute(
            sa.select(col(EntryRow.idx), col(EntryRow.entry_id)).where(
                col(EntryRow.tenant_id) == tenant_id, col(EntryRow.idx).in_(chunk)
            )
        )
        found.update((row.idx, str(UUID(bytes=row.entry_id))) for row in rows)
    return found


def open_details(session: Session, vault: Vault, tenant_id: int, rows: Sequence[Artifact]) -> dict[int, Details]:
    """What callers said of these artifacts, opened in one go; those whose content was forgotten are left out.

    Raises: NotDecryptable when a row was altered.
    """
    seals = Seals(session, vault, tenant_id)
    seals.load(row.holder_no for row in rows if row.sealed is not None)
    found: dict[int, Details] = {}
    for row in rows:
        opened = seals.open(row.holder_no, LABEL, str(row.id), row.sealed)
        if opened is not None:
            content = json.loads(opened)
            found[row.id] = Details(**{**content, "purposes": tuple(content.get("purposes", ()))})
    return found


# ── sources and lineage ───────────────────────────────────────────────────────────────────────────────────────────


def add_sources(
    session: Session, vault: Vault, acting: Acting, public_id: str, sources: Sequence[Any], *, now: datetime
) -> dict[str, Any]:
    """The artifact with late sources added; their people reach it and everything made from it.

    Raises: UnknownArtifact, RejectedSources, OutsideTokenScope.
    """
    tenant_id = acting.tenant_id
    hold_writer(session, tenant_id)
    row = find_artifact(session, tenant_id, public_id)
    if not acting.may_use_store(row.store):
        raise OutsideTokenScope("store", row.store)
    parents = _resolve_sources(session, vault, acting, row, sources)
    present = parents_of(session, tenant_id, (row.id,)).get(row.id, set())
    new = [
        {"tenant_id": tenant_id, "child": row.id, "parent_kind": parent.kind, "parent": parent.number}
        for parent in sorted(parents - present)
    ]
    if new:
        session.connection().execute(sa.insert(Derivation), new)
    behind = full_sets(session, tenant_id, [parent.number for parent in parents if parent.kind == ARTIFACT])
    entry_sets = _entry_sets(session, tenant_id, [parent.number for parent in parents if parent.kind == ENTRY])
    former = full_sets(session, tenant_id, (row.id,))[row.id]
    full = former.union(*behind.values(), *entry_sets)
    if len(full) > MAX_SUBJECTS:
        raise RejectedSources(public_name(row), f"{len(full)} subjects behind one item, at most {MAX_SUBJECTS}")
    if full != former:
        write_sets(session, tenant_id, {row.id: full}, now)
        changed = spread(session, tenant_id, {row.id: full}, now)
        mark_fenced(session, tenant_id, {row.id: full, **changed})
    gone = [one for one in by_numbers(session, tenant_id, behind).values() if one.status in {"erasing", "erased"}]
    mark_erasing(session, tenant_id, {row.id: gone[0].request_id or ""} if gone else {})
    session.expire_all()
    return get_artifact(session, tenant_id, public_id)


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


def _entry_sets(session: Session, tenant_id: int, indexes: Iterable[int]) -> list[frozenset[int]]:
    numbers: set[int] = set()
    for chunk in chunks(sorted(set(indexes))):
        query = sa.select(col(EntryRow.set_id)).where(
            col(EntryRow.tenant_id) == tenant_id, col(EntryRow.idx).in_(chunk)
        )
        numbers.update(session.execute(query).scalars())
    return list(members(session, tenant_id, numbers).values())


def lineage(
    session: Session, tenant_id: int, public_id: str, *, direction: str = "up", depth: int = 10, limit: int = 1000
) -> dict[str, Any]:
    """The graph above (`up`: sources) or below (`down`: what was made from it), level by level. Source: API §4.

    Raises: UnknownArtifact.
    """
    root = Parent(ARTIFACT, find_artifact(session, tenant_id, public_id).id)
    nodes, edges = [root], set[tuple[Parent, Parent]]()
    seen, frontier, truncated = {root}, [root], False
    limit = min(limit, _MAX_NODES)
    for level in range(depth + 1):
        numbers = [node.number for node in frontier if node.kind == ARTIFACT]
        step = _level(session, tenant_id, numbers, direction)
        if level == depth:
            truncated = truncated or any(step.values())
            break
        frontier = []
        for number in numbers:
            for other in sorted(step.get(number, ())):
                if other not in seen and len(seen) >= limit:
                    truncated = True
                    continue
                here = Parent(ARTIFACT, number)
                edges.add((other, here) if direction == "up" else (here, other))
                if other not in seen:
                    seen.add(other)
                    nodes.append(other)
                    frontier.append(other)
        if not frontier:
            break
    return _graph_view(session, tenant_id, nodes, edges, truncated=truncated)


def _level(session: Session, tenant_id: int, numbers: Sequence[int], direction: str) -> dict[int, set[Parent]]:
    if direction == "up":
        return parents_of(session, tenant_id, numbers)
    below = children_of(session, tenant_id, numbers)
    return {number: {Parent(ARTIFACT, child) for child in found} for number, found in below.items()}


def _graph_view(
    session: Session, tenant_id: int, nodes: Sequence[Parent], edges: set[tuple[Parent, Parent]], *, truncated: bool
) -> dict[str, Any]:
    names = _names(session, tenant_id, nodes)
    rows = by_numbers(session, tenant_id, [node.number for node in nodes if node.kind == ARTIFACT])
    shown: list[dict[str, Any]] = []
    for node in nodes:
        if node.kind == ENTRY:
            shown.append({"id": names.get(node, f"entry:{node.number}"), "kind": "entry"})
        elif (row := rows.get(node.number)) is not None:
            view = {"data_class": row.data_class, "store": row.store, "status": row.status}
            shown.append({"id": public_name(row), "kind": "artifact", **view})
    activities = {number: (row.activity or {}).get("kind") for number, row in rows.items()}
    listed = [
        {"from": names[source], "to": names[made], "activity": activities.get(made.number)}
        for source, made in sorted(edges)
        if source in names and made in names
    ]
    return {"nodes": shown, "edges": listed, "truncated": truncated}


def provenance(
    session: Session, vault: Vault, acting: Acting, public_id: str, now: datetime, *, depth: int = 10
) -> dict[str, Any]:
    """Where a remembered fact came from: type, reference, time, verification, and the chain behind it. Source: API §4.

    Raises: UnknownArtifact.
    """
    row = find_artifact(session, acting.tenant_id, public_id)
    graph = lineage(session, acting.tenant_id, public_id, direction="up", depth=depth)
    above = find_artifacts(
        session, acting.tenant_id, [node["id"] for node in graph["nodes"] if node["kind"] == "artifact"]
    )
    opened = open_details(session, vault, acting.tenant_id, list(above.values()))
    details = opened.get(row.id)
    chain: list[dict[str, Any]] = []
    for node in graph["nodes"]:
        if node["kind"] == "entry":
            chain.append({"entry": node["id"].removeprefix("entry:"), "activity": None})
            continue
        one = above[node["id"]]
        said = opened.get(one.id)
        activity = {"kind": (one.activity or {}).get("kind"), **(dict(said.activity) if said else {})}
        chain.append({"artifact": node["id"], "activity": activity})
    return {
        "source_type": row.source_type,
        "source_ref": details.source_ref if details else None,
        "observed_at": row.observed_at,
        "verification": row.verification,
        "confidence_now": confidence_now(row, classes.in_force(session, acting.tenant_id).get(row.data_class), now),
        "versions": dict(details.versions) if details else {},
        "chain": chain,
        "truncated": graph["truncated"],
    }


def confidence_now(row: Artifact, data_class: DataClass | None, now: datetime) -> float | None:
    """Confidence after its class's decay: halved with every half-life since it was observed."""
    if row.confidence is None or data_class is None or data_class.decay is None:
        return row.confidence
    age = now - (row.observed_at or row.created_at)
    halvings = max(age / data_class.decay.half_life.upper_bound(), 0.0)
    return round(float(row.confidence * 0.5**halvings), 6)


# ── changing ──────────────────────────────────────────────────────────────────────────────────────────────────────


def set_use(session: Session, vault: Vault, acting: Acting, public_id: str, status: str, *, reason: str) -> Artifact:
    """Quarantine, revoke, verify or reactivate an item; the reason is sealed with it. Source: API §4.

    Raises: UnknownArtifact; Conflict where its end is decided already, or for a status that nobody may set.
    """
    row = find_artifact(session, acting.tenant_id, public_id)
    if status not in _USES:
        message = f"expected one of {', '.join(_USES)}"
        raise Conflict(message)
    if row.status not in _USES.values():
        message = f"the artifact is {row.status}"
        raise Conflict(message)
    if not acting.may_use_store(row.store):
        raise OutsideTokenScope("store", row.store)
    row.status = _USES[status]
    if status == "verified":
        row.verification = "verified"
    seals = Seals(session, vault, acting.tenant_id)
    opened = seals.open(row.holder_no, LABEL, str(row.id), row.sealed)
    if opened is not None and reason:
        content = {**json.loads(opened), "reason": reason}
        row.sealed = seals.seal(row.holder_no, LABEL, str(row.id), canonical_json(content))
    session.add(row)
    session.flush()
    return row


def mark_status(
    session: Session, tenant_id: int, artifact_ids: Iterable[int], status: str, *, request_id: str | None = None
) -> int:
    """Set the status of artifacts that are not erased; how many. `erased` is set by `bury` alone. Raises: Conflict."""
    if status not in STATUSES or status == "erased":
        message = f"status {status!r} cannot be set; erased is set when the row is buried"
        raise Conflict(message)
    changed = 0
    for chunk in chunks(sorted(set(artifact_ids))):
        done = session.connection().execute(
            sa.update(Artifact)
            .where(col(Artifact.tenant_id) == tenant_id, col(Artifact.id).in_(chunk), col(Artifact.status) != "erased")
            .values(status=status, request_id=request_id)
        )
        changed += done.rowcount
    session.expire_all()
    return changed


def reseal(session: Session, vault: Vault, tenant_id: int, artifact_ids: Iterable[int], holder_no: int) -> int:
    """Seal the details of artifacts that must stay under another holder's key, before the present one's goes; how many.

    Idempotent. Raises: SealRefused where the new holder has no usable key.
    """
    rows = [
        row
        for row in by_numbers(session, tenant_id, artifact_ids).values()
        if row.sealed is not None and row.holder_no != holder_no
    ]
    seals = Seals(session, vault, tenant_id)
    seals.load({row.holder_no for row in rows})
    changed = 0
    for row in rows:
        opened = seals.open(row.holder_no, LABEL, str(row.id), row.sealed)
        if opened is None:
            continue
        row.sealed = seals.seal(holder_no, LABEL, str(row.id), opened)
        row.holder_no = holder_no
        session.add(row)
        changed += 1
    session.flush()
    return changed


def bury(session: Session, tenant_id: int, artifact_ids: Iterable[int], request_id: str, now: datetime) -> int:
    """Forget what was erased; how many. Its place becomes a tombstone and is free for a new item. Idempotent.

    What stays: number, class, store, edges, subjects as numbers, dates. An id that may spell a name goes too.
    """
    rows = [row for row in by_numbers(session, tenant_id, artifact_ids).values() if row.status != "erased"]
    for row in rows:
        session.merge(
            Tombstone(
                tenant_id=tenant_id, store=row.store, locator_hash=row.locator_hash, request_id=request_id, at=now
            )
        )
        row.locator_hash = b"buried" + row.id.to_bytes(8, "big")
        row.sealed = row.digest = None
        row.given_id = row.given_id if row.given_id is not None and _OPAQUE.fullmatch(row.given_id) else None
        row.status = "erased"
        row.request_id = request_id
        session.add(row)
    session.flush()
    for chunk in chunks([row.id for row in rows]):
        session.connection().execute(
            sa.delete(ScopeKey).where(
                col(ScopeKey.tenant_id) == tenant_id, col(ScopeKey.kind) == ARTIFACT, col(ScopeKey.item).in_(chunk)
            )
        )
    return len(rows)
