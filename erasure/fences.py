"""The fence of a request: a whole person's, or that of a scope.

Guarantees: an erasure without limits closes the incarnation; one that is limited to a conversation or to classes closes
only what was said before, within the limit, so that the person's next words find a key and a place.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col

from erasure.models import RequestRow
from registry import limited, subjects
from registry.models import Artifact


def is_limited(row: RequestRow) -> bool:
    """Whether a request asks for less than everything of its persons."""
    return not row.details.keys().isdisjoint(("data_classes", "scopes", "artifacts"))


def fence_body(row: RequestRow, people: Sequence[str]) -> dict[str, Any]:
    """What the record is told before the fence takes effect: `subjects` are closed whole, `persons` within limits."""
    if not is_limited(row):
        return {"request": row.request_id, "subjects": list(people)}
    told: dict[str, Any] = {"request": row.request_id, "persons": list(people)}
    if "data_classes" in row.details:
        told["data_classes"] = row.details["data_classes"]
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
    """Open what the request closed and did not erase; whether there was anything."""
    session.flush()  # what the caller changed is not lost when rows are read anew
    opened = limited.open_again(session, row.tenant_id, row.request_id)
    # What was to go, and what came late and was marked for it, may be used again.
    session.connection().execute(
        sa.update(Artifact)
        .where(
            col(Artifact.tenant_id) == row.tenant_id,
            col(Artifact.status) == sa.literal_column("'erasing'"),
            col(Artifact.request_id) == row.request_id,
        )
        .values(status="live", request_id=None)
    )
    session.expire_all()
    return bool(opened + subjects.lift_fence(session, row.tenant_id, row.subjects, row.request_id))
