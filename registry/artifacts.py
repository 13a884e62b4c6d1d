"""Artifacts: the verbs over them, gathered; searching, marking, resealing and burying stand here.

Guarantees: a status is never set over `erased`; what was buried keeps its number, its edges and its dates and nothing
else, and its place is free again. Registering is `registry.registration`, origins are `registry.origins`, reading is
`registry.artifact_rows`. The caller commits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from registry import bulk, details
from registry.acting import Acting
from registry.artifact_rows import (
    by_numbers,
    find_artifact,
    find_artifacts,
    get_artifact,
    lock_artifact,
    open_details,
    public_name,
    views,
)
from registry.batch import LABEL
from registry.details import Details
from registry.ends import Dates, EndsAt, default_ends_at
from registry.errors import Conflict, OutsideTokenScope
from registry.graph import ARTIFACT
from registry.identifiers import parse_subject
from registry.keyed import Lookups, Seals, chunks
from registry.models import Artifact, ScopeKey, SubjectSetMember, Tombstone
from registry.origins import add_sources, confidence_now, lineage, provenance
from registry.people import expand
from registry.reading import Faults, Reader
from registry.registration import register
from registry.sets import sets_of
from registry.subjects import find_people
from vault.vault import Vault

__all__ = [
    "Dates", "Details", "EndsAt", "LateCopy", "add_sources", "artifacts_of", "bury", "by_numbers", "confidence_now",
    "default_ends_at", "find_artifact", "find_artifacts", "get_artifact", "ids_of",
    "late_copies", "lineage", "mark_status",
    "open_details", "provenance", "public_name", "register", "reseal", "search", "set_use", "views",
]  # fmt: skip

# CROSS JOIN keeps SQLite's planner, which has no statistics, to the one good order; PostgreSQL finds it by itself.
_THEIRS = (
    "subject_set_member CROSS JOIN artifact WHERE artifact.tenant_id = subject_set_member.tenant_id "
    "AND artifact.set_id = subject_set_member.set_id AND artifact.status <> 'erased' "
    "AND subject_set_member.tenant_id = ? AND subject_set_member.subject_no"
)
_ALL_THEIRS = (
    "subject AS named LEFT JOIN subject AS same "
    "ON same.tenant_id = named.tenant_id AND same.person_no = named.person_no "
    "JOIN subject_set_member ON subject_set_member.tenant_id = named.tenant_id "
    "AND subject_set_member.subject_no = COALESCE(same.subject_no, named.subject_no) "
    "JOIN artifact ON artifact.tenant_id = named.tenant_id AND artifact.set_id = subject_set_member.set_id "
    "AND artifact.status <> 'erased' WHERE named.tenant_id = ? AND named.subject_no"
)
"""The same with everybody who is one person with somebody named, for PostgreSQL."""
STATUSES = ("live", "erasing", "erased", "retained", "quarantined", "revoked")
_OPAQUE = re.compile(r"art_(?:[0-9a-f-]{16,60}|[0-9A-HJKMNP-TV-Z]{26})")
"""Given ids that look random; any other may spell a name and goes with the content."""
_EMPTY = (
    "UPDATE artifact SET locator_hash = 'buried'::bytea || int8send(id), sealed = NULL, digest = NULL, "
    "status = 'erased', given_id = CASE WHEN id = ANY(%s::int8[]) THEN NULL ELSE given_id END, request_id = %s "
    "WHERE tenant_id = %s AND id = ANY(%s::int8[])"
)
_USES = {"quarantined": "quarantined", "revoked": "revoked", "active": "live", "verified": "live"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LateCopy:
    """An artifact marked for removal, and the request that it joins."""

    artifact_id: int
    request_id: str


def artifacts_of(session: Session, tenant_id: int, subject_nos: Iterable[int]) -> list[Artifact]:
    """Every artifact that concerns one of these people, under any of their merged names, and is not erased.

    One index look-up, whatever the size of the registry.
    """
    found: list[Artifact] = []
    for chunk in chunks(sorted(sets_of(session, tenant_id, expand(session, tenant_id, subject_nos)))):
        found += session.exec(
            select(Artifact).where(
                Artifact.tenant_id == tenant_id, col(Artifact.set_id).in_(chunk), Artifact.status != "erased"
            )
        )
    return sorted(found, key=lambda row: row.id)


def ids_of(session: Session, tenant_id: int, subject_nos: Iterable[int]) -> list[int]:
    """The ids of what `artifacts_of` returns, without reading the rows."""
    named = sorted(set(subject_nos))
    if session.get_bind().dialect.name == "postgresql":  # one round trip, merged names and all
        return sorted(bulk.gather(session, "artifact.id", _ALL_THEIRS, (tenant_id,), named, kind="int8"))
    everybody = sorted(expand(session, tenant_id, named))
    return sorted(bulk.gather(session, "artifact.id", _THEIRS, (tenant_id,), everybody, kind="int8"))


def late_copies(
    session: Session, tenant_id: int, *, but: sa.ColumnElement[bool] | None = None, limit: int = 1_000
) -> list[LateCopy]:
    """Artifacts marked for removal under a request, oldest first: the erasure side joins them to it.

    `but` leaves out those that it has already: a large request must not stand before the late copies of another.
    """
    found = session.execute(
        sa.select(col(Artifact.id), col(Artifact.request_id))
        .where(
            col(Artifact.tenant_id) == tenant_id,
            col(Artifact.status) == sa.literal_column("'erasing'"),
            sa.true() if but is None else ~but,
        )
        .order_by(col(Artifact.id))
        .limit(limit)
    )
    return [LateCopy(artifact_id=artifact_id, request_id=request_id or "") for artifact_id, request_id in found]


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
        people = find_people(session, vault, acting, (identifier,))
        sets = sa.select(col(SubjectSetMember.set_id)).where(
            col(SubjectSetMember.tenant_id) == acting.tenant_id,
            col(SubjectSetMember.subject_no).in_(sorted(people.get(identifier.text, ()))),
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


def set_use(session: Session, vault: Vault, acting: Acting, public_id: str, status: str, *, reason: str) -> Artifact:
    """Quarantine, revoke, verify or reactivate an item; the reason is sealed with it. Source: API §4.

    Raises: UnknownArtifact; Conflict where its end is decided already, or for a status that nobody may set.
    """
    row = lock_artifact(session, acting.tenant_id, public_id)
    if status not in _USES:
        message = f"expected one of {', '.join(_USES)}"
        raise Conflict(message)
    if row.status not in _USES.values():
        message = f"the artifact is {row.status}"
        raise Conflict(message)
    if not acting.may_use_store(row.store):
        raise OutsideTokenScope("store", row.store)
    if not acting.may_use_class(row.data_class):
        raise OutsideTokenScope("class", row.data_class)
    row.status = _USES[status]
    if status == "verified":
        row.verification = "verified"
    seals = Seals(session, vault, acting.tenant_id)
    opened = seals.open(row.holder_no, LABEL, str(row.id), row.sealed)
    if opened is not None and reason:
        content = {**details.read(opened), "reason": reason}
        row.sealed = seals.seal(row.holder_no, LABEL, str(row.id), details.write(content))
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
    session.flush()
    db = session.connection()
    buried = 0
    for chunk in chunks(sorted(set(artifact_ids))):
        query = sa.select(
            col(Artifact.id), col(Artifact.store), col(Artifact.locator_hash), col(Artifact.given_id)
        ).where(col(Artifact.tenant_id) == tenant_id, col(Artifact.id).in_(chunk), col(Artifact.status) != "erased")
        rows = db.execute(query.with_for_update()).all()
        if not rows:
            continue
        _put_tombstones(session, tenant_id, rows, request_id, now)
        _empty_rows(db, tenant_id, rows, request_id)
        db.execute(
            sa.delete(ScopeKey).where(
                col(ScopeKey.tenant_id) == tenant_id,
                col(ScopeKey.kind) == ARTIFACT,
                col(ScopeKey.item).in_([row.id for row in rows]),
            )
        )
        buried += len(rows)
    if buried:
        session.expire_all()
    return buried


def _put_tombstones(session: Session, tenant_id: int, rows: Sequence[Any], request_id: str, now: datetime) -> None:
    names = ("tenant_id", "store", "locator_hash", "request_id", "at", "artifact_id")
    values = [
        (tenant_id, row.store, row.locator_hash, request_id, bulk.instant(now), row.id)
        for row in sorted(rows, key=lambda row: (row.store, row.locator_hash))
    ]
    newest = ", ".join(f"{name} = excluded.{name}" for name in names[3:])
    # A place that held something erased earlier: the latest erasure is the one a revived copy belongs to.
    bulk.insert(session, Tombstone, names, values, conflict=f"(tenant_id, store, locator_hash) DO UPDATE SET {newest}")


def _empty_rows(db: sa.Connection, tenant_id: int, rows: Sequence[Any], request_id: str) -> None:
    named = [row.id for row in rows if row.given_id is not None and not _OPAQUE.fullmatch(row.given_id)]
    if db.dialect.name == "postgresql":
        # At once: without statistics it may look for a row by itself through an index of all the tenant's rows.
        db.exec_driver_sql(_EMPTY, (named, request_id, tenant_id, [row.id for row in rows]))
        return
    gone = set(named)
    statement = (
        sa.update(Artifact)
        .where(col(Artifact.tenant_id) == tenant_id, col(Artifact.id) == sa.bindparam("at_id"))
        .values(
            locator_hash=sa.bindparam("to_hash"), given_id=sa.bindparam("to_given"), sealed=None, digest=None,
            status="erased", request_id=request_id,
        )
    )  # fmt: skip
    lines = [
        {
            "at_id": row.id,
            "to_hash": b"buried" + row.id.to_bytes(8, "big"),
            "to_given": None if row.id in gone else row.given_id,
        }
        for row in rows
    ]
    db.execute(statement, lines)
