"""Sources that another token named for an item: claims, which let people travel and nothing be removed.

Guarantees: a claim brings its people to the item, so that a person's copies are found; it never brings somebody whose
erasure has begun, and it never ends the item. Where it would, a human decides (`registry.repeat_reviews`). The token
that registered the item makes a claim its own by naming the same source. Source: DESIGN §5, «Nobody deletes another's
data by registering it». The caller commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col, select

from registry.ids import new_id
from registry.keyed import chunks
from registry.models import ClaimedSource
from registry.review_models import ReviewRow


class Edge(NamedTuple):
    """From an item to what it was made from."""

    child: int
    kind: str
    parent: int


def claims_of(session: Session, tenant_id: int, children: Iterable[int]) -> frozenset[Edge]:
    """The edges of these items that are claims; most have none."""
    found: set[Edge] = set()
    for chunk in chunks(sorted(set(children))):
        rows = session.execute(
            sa.select(col(ClaimedSource.child), col(ClaimedSource.parent_kind), col(ClaimedSource.parent)).where(
                col(ClaimedSource.tenant_id) == tenant_id, col(ClaimedSource.child).in_(chunk)
            )
        )
        found.update(Edge(*row) for row in rows)
    return frozenset(found)


def note_claims(session: Session, tenant_id: int, edges: Iterable[Edge], token_id: str, now: datetime) -> None:
    """Keep who claimed these edges, which are new."""
    rows = [
        {
            "tenant_id": tenant_id,
            "child": one.child,
            "parent_kind": one.kind,
            "parent": one.parent,
            "token_id": token_id,
            "at": now,
        }
        for one in sorted(set(edges))
    ]
    if rows:
        session.connection().execute(sa.insert(ClaimedSource), rows)


def settle_claims(session: Session, tenant_id: int, edges: Iterable[Edge]) -> None:
    """Make claims plain sources: the item's own token named them, or a human accepted them."""
    wanted = set(edges)
    for edge in wanted & claims_of(session, tenant_id, {one.child for one in wanted}):
        session.connection().execute(
            sa.delete(ClaimedSource).where(
                col(ClaimedSource.tenant_id) == tenant_id,
                col(ClaimedSource.child) == edge.child,
                col(ClaimedSource.parent_kind) == edge.kind,
                col(ClaimedSource.parent) == edge.parent,
            )
        )


REVIEW_LABEL = "registration review"
"""Under which what was said in a review is sealed: of the value that waits, then why it was decided so."""


def open_review(
    session: Session, tenant_id: int, artifact_id: int, wanted: Mapping[str, Any], token_id: str, *, now: datetime
) -> ReviewRow | None:
    """Let a human decide; the same question about an item is asked once while it is open: None for a repeat."""
    asked = session.exec(
        select(ReviewRow).where(
            ReviewRow.tenant_id == tenant_id,
            ReviewRow.artifact_id == artifact_id,
            ReviewRow.token_id == token_id,
            col(ReviewRow.decision).is_(None),
        )
    )
    if any(row.wanted == dict(wanted) for row in asked):
        return None
    row = ReviewRow(
        tenant_id=tenant_id,
        id=new_id(now),
        artifact_id=artifact_id,
        wanted=dict(wanted),
        token_id=token_id,
        at=now,
    )
    session.add(row)
    session.flush()
    return row
