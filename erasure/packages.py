"""Packages of exports that hold something a hold names: they are copies of it, and stay as long as it does.

A package names no source, since it ends by its own date and not with what is in it; what went into it stands in the
copies of its request. Guarantees: reads in the caller's transaction, by index, and nothing but whether there is a
package where none is asked about; a hold keeps the package of anything it names, whether by person, class, scope,
artifact or entry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import sqlalchemy as sa
from sqlmodel import Session, col

from erasure.models import CopyRow, RequestRow
from erasure.request import CopyState, Right
from ledger import index
from ledger.models import EntryRow, Instant
from registry.ids import artifact_name
from registry.keyed import chunks
from registry.models import Artifact
from retention.decide import Hold
from retention.holding import conditions_of
from retention.parts import streams_of
from retention.stops import held_among, with_copies

STORE = "muniment.exports"
"""The store of exports: the service's own folder, registered like any other so that exports are found and erased."""


def holds_about(
    session: Session, tenant_id: int, holds: Sequence[Hold], artifact_ids: Collection[int] | None
) -> tuple[Hold, ...]:
    """The holds with what was made from what they name, packages included: all of it, or what is among these artifacts.

    Which of a few artifacts are held costs what these were made from, or what lies in them, whatever else is held.
    """
    if artifact_ids is None:
        whole = [with_copies(session, tenant_id, hold) for hold in holds]
        packages = packages_of(session, tenant_id) if holds else {}
        return tuple(_with_packages(session, tenant_id, hold, packages) for hold in whole)
    found = held_among(session, tenant_id, holds, artifact_ids)
    packages = packages_of(session, tenant_id, artifact_ids) if holds and artifact_ids else {}
    if not packages:
        return found
    inside = _inside(session, tenant_id, packages)
    return tuple(
        _with_packages(session, tenant_id, hold, packages) for hold in held_among(session, tenant_id, found, inside)
    )


def _inside(session: Session, tenant_id: int, packages: Mapping[str, int]) -> set[int]:
    """The artifacts that went into these packages."""
    query = sa.select(col(CopyRow.artifact_id)).where(
        col(CopyRow.tenant_id) == tenant_id,
        col(CopyRow.owner).in_(sorted(packages)),
        col(CopyRow.state) == CopyState.EXPORTED.value,
        col(CopyRow.artifact_id).is_not(None),
    )
    return {number for number in session.scalars(query) if number is not None}


def _with_packages(session: Session, tenant_id: int, hold: Hold, packages: Mapping[str, int]) -> Hold:
    found = {
        packages[owner]
        for condition in (_conditions(session, tenant_id, hold) if packages else ())
        for owner in session.scalars(
            sa.select(col(CopyRow.owner))
            .where(
                col(CopyRow.tenant_id) == tenant_id,
                col(CopyRow.owner).in_(sorted(packages)),
                col(CopyRow.state) == CopyState.EXPORTED.value,
                condition,
            )
            .distinct()
        )
    }
    return hold if found <= hold.artifacts else hold._replace(artifacts=hold.artifacts | found)


def _conditions(session: Session, tenant_id: int, hold: Hold) -> Iterator[sa.ColumnElement[bool]]:
    """Conditions on exported copies, any of which one that the hold names meets."""
    for condition in conditions_of(session, tenant_id, hold):
        yield col(CopyRow.artifact_id).in_(
            sa.select(col(Artifact.id)).where(col(Artifact.tenant_id) == tenant_id, condition)
        )
    if hold.data_classes:
        yield col(CopyRow.data_class).in_(sorted(hold.data_classes))
    entries = set(hold.entries)
    for streams in chunks(sorted(streams_of(session, tenant_id, hold.scopes)) if hold.scopes else []):
        within = sa.select(col(EntryRow.idx)).where(
            col(EntryRow.tenant_id) == tenant_id, col(EntryRow.stream_no).in_(streams)
        )
        entries.update(session.scalars(within))
    for keys in chunks(sorted({key_id for _, _, key_id in index.refs_of(session, tenant_id, entries)})):
        yield col(CopyRow.key_id).in_(keys)


def packages_of(session: Session, tenant_id: int, artifact_ids: Collection[int] | None = None) -> dict[str, int]:
    """The packages that are there, or those among these artifacts: their numbers by the request that they answer."""
    there = session.execute(
        sa.select(col(Artifact.id), col(Artifact.given_id), col(Artifact.created_at)).where(
            col(Artifact.tenant_id) == tenant_id, col(Artifact.store) == STORE, col(Artifact.status) != "erased"
        )
    ).all()
    rows = there
    if artifact_ids is not None:
        wanted = {row.id for row in there}.intersection(artifact_ids)
        rows = [row for row in there if row.id in wanted]
    if not rows:
        return {}
    numbers = {row.given_id or artifact_name(row.id): row.id for row in rows}
    oldest = min(row.created_at for row in rows)
    requests = session.execute(
        sa.select(col(RequestRow.request_id), col(RequestRow.details)).where(
            col(RequestRow.tenant_id) == tenant_id,
            col(RequestRow.right).in_((Right.ACCESS, Right.PORTABILITY)),
            # A package is registered no later than its request ends.
            sa.or_(
                col(RequestRow.completed_at).is_(None),
                col(RequestRow.completed_at) >= sa.literal(oldest, Instant()),
            ),
        )
    )
    named = {request: (details.get("export") or {}).get("artifact") for request, details in requests}
    return {request: numbers[name] for request, name in named.items() if name in numbers}
