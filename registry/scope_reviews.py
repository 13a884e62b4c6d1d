"""What somebody's data may still be used for: reviewed after a transfer, a merge or a change of role.

Guarantees: a review has an owner, a deadline and the list of every live copy about the person at that moment, worst
first where it is used by agents; it is closed only when each line is decided; a decision to quarantine or revoke takes
effect on the copy at once. What was said of the change goes with the person's identity key. Nothing is erased here. The
caller commits and announces.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from registry import classes
from registry.acting import Acting
from registry.artifacts import artifacts_of, by_numbers, find_artifacts, public_name
from registry.errors import Conflict, UnknownArtifact, UnknownReview
from registry.ids import random_hex
from registry.keyed import Seals, canonical_json
from registry.models import Artifact
from registry.people import expand
from registry.review_models import ScopeReviewItem, ScopeReviewRow
from vault.vault import Vault

TERM = timedelta(days=30)
"""How long a review may stay open where nobody says otherwise."""
KEEP = "keep"
DECISIONS: Mapping[str, str | None] = {KEEP: None, "quarantine": "quarantined", "revoke": "revoked"}
"""What each decision makes of a live copy."""
_STANDING = ("live", "quarantined", "revoked")
_LABEL = "scope review"


def open_review(
    session: Session,
    vault: Vault,
    acting: Acting,
    subject_nos: Iterable[int],
    *,
    change: str,
    detail: str,
    now: datetime,
    owner: str | None = None,
    due_at: datetime | None = None,
) -> dict[str, Any]:
    """The review opened; its list is what lies there now. Raises: Conflict for a deadline that has passed."""
    if due_at is not None and due_at <= now:
        raise Conflict("the deadline lies in the past")
    people = sorted(expand(session, acting.tenant_id, subject_nos))
    row = ScopeReviewRow(
        tenant_id=acting.tenant_id,
        review_id=f"scr_{random_hex()}",
        change=change,
        subjects=people,
        owner=owner or acting.principal,
        opened_by=acting.principal,
        opened_at=now,
        due_at=due_at or now + TERM,
    )
    seals = Seals(session, vault, acting.tenant_id)
    row.sealed = seals.seal_jointly(people, _LABEL, row.review_id, canonical_json({"detail": detail}))
    listed = [one for one in artifacts_of(session, acting.tenant_id, people) if one.status in _STANDING]
    if not listed:
        row.closed_at, row.closed_by = now, acting.principal
    session.add(row)
    session.flush()
    if listed:
        session.connection().execute(
            sa.insert(ScopeReviewItem),
            [
                {"tenant_id": acting.tenant_id, "review_id": row.review_id, "artifact_id": one.id, "decision": None}
                for one in listed
            ],
        )
    return view(session, vault, row, now)


def decide(
    session: Session, vault: Vault, acting: Acting, review_id: str, decisions: Mapping[str, str], *, comment: str,
    now: datetime,
) -> dict[str, Any]:  # fmt: skip
    """The review with these lines decided; closed with the last of them.

    Raises: UnknownReview, UnknownArtifact, Conflict.
    """
    row = _load(session, acting.tenant_id, review_id)
    if row.closed_at is not None:
        raise Conflict("the review is closed")
    named = find_artifacts(session, acting.tenant_id, decisions)
    for name, decision in decisions.items():
        item = session.get(ScopeReviewItem, (acting.tenant_id, review_id, named[name].id)) if name in named else None
        if item is None:
            raise UnknownArtifact
        status = DECISIONS[decision]
        session.refresh(named[name], with_for_update=True)
        if status is not None and named[name].status in _STANDING:
            named[name].status = status
            session.add(named[name])
        item.decision, item.decided_by, item.decided_at = decision, acting.principal, now
        session.add(item)
    said = _said(session, vault, row)
    said.setdefault("comments", []).append(comment)
    seals = Seals(session, vault, acting.tenant_id)
    row.sealed = seals.seal_jointly(row.subjects, _LABEL, review_id, canonical_json(said))
    session.flush()
    if not _open_items(session, acting.tenant_id, review_id):
        row.closed_at, row.closed_by = now, acting.principal
    session.add(row)
    session.flush()
    return view(session, vault, row, now)


def get_review(session: Session, vault: Vault, tenant_id: int, review_id: str, now: datetime) -> dict[str, Any]:
    """One review with its list. Raises: UnknownReview."""
    return view(session, vault, _load(session, tenant_id, review_id), now)


def list_reviews(
    session: Session, tenant_id: int, now: datetime, *, open_only: bool, limit: int, after: str | None = None
) -> list[dict[str, Any]]:
    """Reviews by id without their lists, at most `limit`; each says whether it is overdue."""
    query = select(ScopeReviewRow).where(ScopeReviewRow.tenant_id == tenant_id)
    if open_only:
        query = query.where(col(ScopeReviewRow.closed_at).is_(None))
    if after is not None:
        query = query.where(ScopeReviewRow.review_id > after)
    rows = session.exec(query.order_by(col(ScopeReviewRow.review_id)).limit(limit))
    return [_head(session, row, now) for row in rows]


def view(session: Session, vault: Vault, row: ScopeReviewRow, now: datetime) -> dict[str, Any]:
    """A review with what was said of it, and its list: what agents use first, then by class and id."""
    items = session.exec(
        select(ScopeReviewItem).where(
            ScopeReviewItem.tenant_id == row.tenant_id, ScopeReviewItem.review_id == row.review_id
        )
    ).all()
    copies = by_numbers(session, row.tenant_id, [item.artifact_id for item in items])
    known = classes.in_force(session, row.tenant_id)

    def rank(artifact: Artifact) -> tuple[bool, str, int]:
        spec = known.get(artifact.data_class)
        return (spec is None or spec.state not in ("memory", "working", "checkpoint"), artifact.data_class, artifact.id)

    lines = []
    decided = {item.artifact_id: item for item in items}
    for artifact in sorted(copies.values(), key=rank):
        spec = known.get(artifact.data_class)
        lines.append(
            {
                "artifact": public_name(artifact),
                "data_class": artifact.data_class,
                "class_owner": None if spec is None else spec.owner,
                "purposes": [] if spec is None else list(spec.purposes),
                "store": artifact.store,
                "status": artifact.status,
                "decision": decided[artifact.id].decision,
            }
        )
    said = _said(session, vault, row)
    told = {"detail": said.get("detail"), "comments": said.get("comments", [])}
    return {**_head(session, row, now), **told, "list": lines}


def _head(session: Session, row: ScopeReviewRow, now: datetime) -> dict[str, Any]:
    waiting = _open_items(session, row.tenant_id, row.review_id)
    return {
        "id": row.review_id,
        "change": row.change,
        "owner": row.owner,
        "opened_by": row.opened_by,
        "opened_at": row.opened_at,
        "due_at": row.due_at,
        "open": waiting,
        "overdue": row.closed_at is None and row.due_at < now,
        "closed_at": row.closed_at,
        "closed_by": row.closed_by,
    }


def _open_items(session: Session, tenant_id: int, review_id: str) -> int:
    """How many lines nobody decided whose copy is still there."""
    found = session.scalar(
        sa.select(sa.func.count())
        .select_from(ScopeReviewItem)
        .join(
            Artifact,
            sa.and_(
                col(Artifact.tenant_id) == col(ScopeReviewItem.tenant_id),
                col(Artifact.id) == col(ScopeReviewItem.artifact_id),
            ),
        )
        .where(
            col(ScopeReviewItem.tenant_id) == tenant_id,
            col(ScopeReviewItem.review_id) == review_id,
            col(ScopeReviewItem.decision).is_(None),
            col(Artifact.status) != "erased",
        )
    )
    return int(found or 0)


def _load(session: Session, tenant_id: int, review_id: str) -> ScopeReviewRow:
    row = session.get(ScopeReviewRow, (tenant_id, review_id))
    if row is None:
        raise UnknownReview
    return row


def _said(session: Session, vault: Vault, row: ScopeReviewRow) -> dict[str, Any]:
    opened = Seals(session, vault, row.tenant_id).open_jointly(row.subjects, _LABEL, row.review_id, row.sealed)
    return {} if opened is None else dict(json.loads(opened))
