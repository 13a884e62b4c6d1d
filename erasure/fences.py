"""The fence of a request: a whole person's, or that of a scope.

Guarantees: an erasure without limits closes the incarnation; one that is limited to a conversation or to classes closes
only what was said before, within the limit, so that the person's next words find a key and a place. Whom two erasures
closed stays closed until both are called off: the fence that stood for both is handed over, to a limited erasure as
far as its limits reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure.models import RequestRow
from erasure.request import Right, State
from registry import decided, limited, subjects
from registry.keyed import chunks
from registry.models import Artifact
from registry.sets import sets_of
from vault.vault import Vault

UNDER_WAY = tuple(map(State, decided.UNDER_WAY))
"""States of an erasure that was approved and is not over: a replay of the record knows them by the same names."""


def is_limited(row: RequestRow) -> bool:
    """Whether a request asks for less than everything of its persons."""
    return not row.details.keys().isdisjoint(decided.LIMITS)


def sealed_limit(session: Session, vault: Vault, row: RequestRow, scopes: Sequence[str]) -> str:
    """To which conversation a request is limited, for the event of its fence."""
    return limited.seal_scopes(session, vault, row.tenant_id, row.subjects, row.request_id, scopes)


def fence_body(row: RequestRow, people: Sequence[str], limit: str | None = None) -> dict[str, Any]:
    """What the record is told before the fence takes effect: `subjects` are closed whole, `persons` within limits.

    `limit` is what `sealed_limit` made: a database that is older than the request learns from it how far it goes.
    """
    if not is_limited(row):
        return {"request": row.request_id, "subjects": list(people)}
    told: dict[str, Any] = {"request": row.request_id, "persons": list(people)}
    if "data_classes" in row.details:
        told["data_classes"] = row.details["data_classes"]
    if limit is not None:
        told["limit"] = limit
    return told


def set_fence(session: Session, row: RequestRow, now: datetime) -> None:
    """Close what the request is about to new data; the caller commits."""
    if is_limited(row):
        limited.close(
            session,
            row.tenant_id,
            row.subjects,
            row.request_id,
            now,
            data_classes=row.details.get("data_classes"),
            scopes=row.details.get("scopes"),
        )
    else:
        subjects.fence(session, row.tenant_id, row.subjects, row.request_id, now)


def lift_fence(session: Session, row: RequestRow) -> bool:
    """Open what the request closed and did not erase, but for whom another erasure closed too; whether it closed any.

    What was to go, and what came late and was marked for it, may be used again.
    """
    session.flush()  # what the caller changed is not lost when rows are read anew
    others = _others(session, row)
    opened = limited.open_again(session, row.tenant_id, row.request_id)
    opened += subjects.lift_fence(session, row.tenant_id, row.subjects, row.request_id)
    for other, shared, since in others:
        subjects.fence(session, row.tenant_id, shared, other, since)
        for some in chunks(sorted(sets_of(session, row.tenant_id, shared))):
            _mark(session, row, col(Artifact.set_id).in_(some), status="erasing", request_id=other)
    by_limit: dict[str, list[int]] = {}
    for number, other in limited.late_artifacts(session, row.tenant_id, _marked(session, row)).items():
        by_limit.setdefault(other, []).append(number)
    for other, numbers in sorted(by_limit.items()):
        for ids in chunks(sorted(numbers)):
            _mark(session, row, col(Artifact.id).in_(ids), status="erasing", request_id=other)
    _mark(session, row, sa.true(), status="live", request_id=None)
    session.expire_all()
    return bool(opened)


def _others(session: Session, row: RequestRow) -> list[tuple[str, list[int], datetime]]:
    """The other erasures under way that close a person of this one whole, with whom and since when."""
    query = select(RequestRow).where(
        RequestRow.tenant_id == row.tenant_id,
        RequestRow.right == Right.ERASURE.value,
        col(RequestRow.state).in_(decided.UNDER_WAY),
        RequestRow.request_id != row.request_id,
    )
    mine = set(row.subjects)
    return [
        (other.request_id, sorted(mine.intersection(other.subjects)), other.fence_at)
        for other in session.exec(query.order_by(col(RequestRow.fence_at), col(RequestRow.request_id)))
        if other.fence_at is not None and not is_limited(other) and not mine.isdisjoint(other.subjects)
    ]


def _marked(session: Session, row: RequestRow) -> list[int]:
    """The artifacts that are still marked to go under a request."""
    query = sa.select(col(Artifact.id)).where(*_of(row))
    return list(session.scalars(query))


def _of(row: RequestRow) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        col(Artifact.tenant_id) == row.tenant_id,
        col(Artifact.status) == sa.literal_column("'erasing'"),
        col(Artifact.request_id) == row.request_id,
    )


def _mark(
    session: Session, row: RequestRow, which: sa.ColumnElement[bool], *, status: str, request_id: str | None
) -> None:
    session.connection().execute(
        sa.update(Artifact).where(*_of(row), which).values(status=status, request_id=request_id)
    )
