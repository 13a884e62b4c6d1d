"""Artifacts found by their public ids, shown without places or free text, and opened in batches.

Guarantees: what `views` returns names people by opaque ids only; `open_details` is the one way to a readable place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger.models import EntryRow
from registry import classes
from registry.batch import LABEL
from registry.declaration import DataClass
from registry.details import Details, details_of
from registry.ends import dates_of, fades_at
from registry.errors import UnknownArtifact
from registry.graph import ARTIFACT, ENTRY, Parent, parents_of
from registry.ids import artifact_name
from registry.item import GIVEN_ID, OWN_ID
from registry.keyed import Seals, chunks
from registry.models import Artifact
from registry.sets import members
from registry.subjects import opaque_ids
from vault.vault import Vault


def find_artifact(session: Session, tenant_id: int, public_id: str) -> Artifact:
    """The artifact of a public id. Raises: UnknownArtifact."""
    found = find_artifacts(session, tenant_id, (public_id,))
    if public_id not in found:
        raise UnknownArtifact(public_id if GIVEN_ID.fullmatch(public_id) else "")
    return found[public_id]


def lock_artifact(session: Session, tenant_id: int, public_id: str) -> Artifact:
    """The same as it is now, for a change of it: nobody else decides about it until the transaction ends.

    Raises: UnknownArtifact.
    """
    row = find_artifact(session, tenant_id, public_id)
    session.refresh(row, with_for_update=True)
    return row


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


def get_artifact(session: Session, tenant_id: int, public_id: str) -> dict[str, Any]:
    """One artifact as the API shows it. Raises: UnknownArtifact."""
    return views(session, tenant_id, [find_artifact(session, tenant_id, public_id)])[0]


def views(session: Session, tenant_id: int, rows: Sequence[Artifact]) -> list[dict[str, Any]]:
    """Artifacts as the API shows them: people as opaque ids, no place, no free text."""
    sets = members(session, tenant_id, {row.set_id for row in rows})
    people = opaque_ids(session, tenant_id, {number for row in rows for number in sets[row.set_id]})
    parents = parents_of(session, tenant_id, [row.id for row in rows])
    names = parent_names(session, tenant_id, {parent for found in parents.values() for parent in found})
    known = classes.in_force(session, tenant_id)
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
            "anonymised": row.anonymised,
            "source_type": row.source_type,
            "verification": row.verification,
            "confidence": row.confidence,
            "created_at": row.created_at,
            "observed_at": row.observed_at,
            "confirmed_at": row.confirmed_at,
            "expires_at": row.expires_at,
            "ends_at": None if row.status == "erased" else row.ends_at,
            "rule": _rule(row, known.get(row.data_class)),
            "request": row.request_id,
        }
        for row in rows
    ]


def public_name(row: Artifact) -> str:
    """The public id of an artifact."""
    return row.given_id or artifact_name(row.id)


def _rule(row: Artifact, rules: DataClass | None) -> str:
    """What ends it, as `retention.decide` names it: its own end is the one it was given, or that it has faded."""
    if row.ends_at is None or row.status == "erased":
        return "none"
    faded = None if rules is None else fades_at(rules, dates_of(row))
    return "item_expiry" if row.ends_at in (row.expires_at, faded) else "class_retention"


def parent_names(session: Session, tenant_id: int, parents: Iterable[Parent]) -> dict[Parent, str]:
    """The public name of each node: an artifact's id, or `entry:<uuid>`."""
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
            found[row.id] = details_of(opened)
    return found
