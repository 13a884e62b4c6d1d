"""Which late copies belong to which erasures under way: to the one behind the fence, and to every other of the person.

Guarantees: reads in the caller's transaction. A copy that is registered about a closed person is marked for the request
behind the fence; an erasure under another law, or a limited one, that is under way too has to see it gone as well
before it may say that it is complete. Not here: the marks (`registry.going`), and how a copy joins (`erasure.worker`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure.fences import UNDER_WAY, is_limited
from erasure.models import CopyRow, RequestRow
from erasure.request import Right
from registry import limited
from registry.artifacts import LateCopy
from registry.keyed import chunks
from registry.models import Artifact
from registry.people import expand
from registry.sets import members, sets_of


def planned(owner: sa.SQLColumnExpression[str | None]) -> sa.ColumnElement[bool]:
    """Whether an artifact has a line in the plan of that request."""
    line = sa.select(col(CopyRow.copy_no)).where(
        col(CopyRow.tenant_id) == col(Artifact.tenant_id),
        col(CopyRow.artifact_id) == col(Artifact.id),
        # Of no index: without statistics PostgreSQL otherwise reads all copies of the request for each artifact.
        col(CopyRow.owner).concat("") == owner,
    )
    return line.exists()


def joins(session: Session, tenant_id: int, late: Sequence[LateCopy]) -> dict[str, list[int]]:
    """Which of these late copies join which requests, by the requests' ids."""
    found: dict[str, set[int]] = {}
    for copy in late:
        found.setdefault(copy.request_id, set()).add(copy.artifact_id)
    if not late:
        return {}
    about = _people_of(session, tenant_id, [copy.artifact_id for copy in late])
    under_way = select(RequestRow).where(
        RequestRow.tenant_id == tenant_id,
        RequestRow.right == Right.ERASURE.value,
        col(RequestRow.state).in_([state.value for state in UNDER_WAY]),
    )
    for row in session.exec(under_way):
        mine = expand(session, tenant_id, row.subjects)
        theirs = [number for number, people in about.items() if not people.isdisjoint(mine)]
        found.setdefault(row.request_id, set()).update(_within(session, row, theirs))
    return {request_id: sorted(numbers) for request_id, numbers in sorted(found.items()) if numbers}


def _people_of(session: Session, tenant_id: int, artifact_ids: Collection[int]) -> dict[int, frozenset[int]]:
    sets: dict[int, int] = {}
    for some in chunks(sorted(artifact_ids)):
        query = sa.select(col(Artifact.id), col(Artifact.set_id)).where(
            col(Artifact.tenant_id) == tenant_id, col(Artifact.id).in_(some)
        )
        sets.update((number, set_id) for number, set_id in session.execute(query))
    about = members(session, tenant_id, sets.values())
    return {number: about[set_id] for number, set_id in sets.items()}


def _within(session: Session, row: RequestRow, artifact_ids: Sequence[int]) -> Collection[int]:
    """Those of these late copies of the persons that the request asks for at all."""
    if not is_limited(row) or not artifact_ids:
        return artifact_ids
    return limited.late_artifacts(session, row.tenant_id, artifact_ids, request_id=row.request_id)


def unjoined(session: Session, row: RequestRow) -> list[int]:
    """The late copies that an erasure under way has to see gone, and that its plan does not have."""
    found: list[int] = []
    lacking = ~planned(sa.literal(row.request_id))
    for some in chunks(sorted(sets_of(session, row.tenant_id, expand(session, row.tenant_id, row.subjects)))):
        query = sa.select(col(Artifact.id)).where(
            col(Artifact.tenant_id) == row.tenant_id,
            col(Artifact.status) == sa.literal_column("'erasing'"),
            col(Artifact.set_id).in_(some),
            lacking,
        )
        found += session.scalars(query)
    return sorted(_within(session, row, found))
