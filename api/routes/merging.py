"""One person under many names: merges with a second person, splits, and reviews of what their data is for.

Guarantees: people are named in bodies only and shown under opaque ids; a merge, a split and a review each leave one
event in the record, which names no one and asks nobody to erase anything.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Path, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlmodel import Session

from api.answers import Open, Row
from api.auth import Desk, Legal, Parts
from api.pagination import DEFAULT_LIMIT, Cursor, Limit, read_cursor, write_cursor
from api.requests import Body, Flag, Instant, Time, make_router
from api.wiring import Services
from erasure.apart import tell_of_duplicates
from ledger.entry import Kind
from registry import merging, scope_reviews, subjects
from registry.acting import Acting
from registry.errors import UnknownSubject
from registry.identifiers import parse_subject, parse_subjects
from retention import consenting

router = make_router("subjects")
Names = Annotated[list[str], Field(min_length=1, max_length=100, examples=[["user:user_18", "email:ada@example.org"]])]
MergeId = Annotated[str, Path(pattern=r"^mrg_[0-9a-f]{32}$", examples=["mrg_" + "0" * 32])]
ReviewId = Annotated[str, Path(pattern=r"^scr_[0-9a-f]{32}$", examples=["scr_" + "0" * 32])]


class Merging(Body):
    """Names that are said to be one person's, or different people's."""

    subjects: Names
    reason: str = Field(min_length=1, max_length=2000, description="Sealed.")


class MergeDecision(Body):
    """Another person's answer to a proposal."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"decision": "same_person", "comment": "passport seen"}]})
    decision: Literal["same_person", "different_people"]
    shared_names: bool = Field(default=False, description="True: known that a name is somebody else's already.")
    comment: str = Field(min_length=1, max_length=2000, description="Sealed.")


class ScopeChange(Body):
    """A change of what somebody's data is for."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"subject": "user:user_18", "change": "role", "detail": "left the sales team"}]}
    )
    subject: str
    change: Literal["transfer", "merge", "role"]
    detail: str = Field(max_length=2000, description="Sealed.")
    owner: str | None = Field(default=None, min_length=1, max_length=128, description="Who answers for the review.")
    due_at: Time | None = Field(default=None, description="30 days from now where it is left out.")


class Decided(Body):
    """Decisions on lines of a review."""

    decisions: dict[str, Literal["keep", "quarantine", "revoke"]] = Field(min_length=1, max_length=1000)
    comment: str = Field(min_length=1, max_length=2000, description="Sealed.")


class MergeView(BaseModel):
    """A merge or split; people under opaque ids."""

    id: str
    kind: Literal["merge", "split"]
    state: Literal["proposed", "done", "refused"]
    subjects: list[str]
    people: list[str]
    shared: list[str]
    proposed_by: str
    proposed_at: Instant
    decided_by: str | None
    decided_at: Instant | None
    scope_review: str | None = None


class Merges(BaseModel):
    """A page of merges and splits."""

    items: list[MergeView]
    next_cursor: str | None = None


class ReviewView(Open):
    """A scope review."""

    id: str
    change: str
    owner: str
    opened_by: str
    opened_at: Instant
    due_at: Instant
    open: int
    overdue: bool
    closed_at: Instant | None
    closed_by: str | None


class Reviews(BaseModel):
    """A page of scope reviews."""

    items: list[ReviewView]
    next_cursor: str | None = None


@router.post("/v1/subjects:merge", status_code=202, responses={200: {"description": "Merged."}})
def merge(body: Merging, acting: Legal, parts: Parts, response: Response) -> MergeView:
    """Proposes that these names are one person's; the same from another person merges them."""
    names = parse_subjects(body.subjects)
    with parts.database.transaction(acting.tenant_id) as session:
        done = merging.propose_merge(
            session,
            parts.vault,
            acting,
            names,
            reason=body.reason,
            now=parts.clock.now(),
            single=parts.settings.approval == "single",
        )
        shown = _announced(session, parts, acting, done)
    response.status_code = 200 if shown.state == "done" else 202
    return shown


@router.post("/v1/subjects:split")
def split(body: Merging, acting: Legal, parts: Parts) -> MergeView:
    """Tells these names apart from everybody they were merged with.

    A request that ended as a duplicate while they were one person says so from now on (`warnings`): file it again.
    """
    names = parse_subjects(body.subjects)
    now = parts.clock.now()
    with parts.database.transaction(acting.tenant_id) as session:
        done = merging.split(session, parts.vault, acting, names, reason=body.reason, now=now)
        event = {"merge": done.id, "subjects": list(done.subjects), "people": list(done.people), "by": acting.principal}
        parts.record.announce(session, acting.tenant_id, Kind.SUBJECT_SPLIT, event, now)
        consenting.renew(session, acting.tenant_id, done.numbers)
        tell_of_duplicates(session, parts.erasure, acting, done.numbers, now)
        return _merge_view(done)


@router.get("/v1/subjects/merges")
def list_merges(
    *,
    acting: Desk,
    parts: Parts,
    state: Literal["proposed", "done", "refused"] | None = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Merges:
    """Merges and splits, newest first."""
    after = read_cursor(cursor, datetime, str)
    place = None if after is None else (after[0], after[1])
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        found = merging.list_merges(session, acting.tenant_id, state=state, limit=limit + 1, after=place)
    page = found[:limit]
    more = write_cursor(page[-1].proposed_at, page[-1].id) if len(found) > limit else None
    return Merges(items=[_merge_view(one) for one in page], next_cursor=more)


@router.post("/v1/subjects/merges/{merge_id}")
def decide_merge(merge_id: MergeId, body: MergeDecision, acting: Legal, parts: Parts) -> MergeView:
    """A second person's decision; joining shared names needs `shared_names`."""
    with parts.database.transaction(acting.tenant_id) as session:
        done = merging.decide_merge(
            session,
            parts.vault,
            acting,
            merge_id,
            same_person=body.decision == "same_person",
            comment=body.comment,
            now=parts.clock.now(),
            knows_shared=body.shared_names,
            single=parts.settings.approval == "single",
        )
        return _announced(session, parts, acting, done)


@router.post("/v1/subjects:scope-change", status_code=201)
def scope_change(body: ScopeChange, acting: Legal, parts: Parts) -> ReviewView:
    """Opens a review with owner, deadline and the list of what lies there about the person."""
    name = parse_subject(body.subject)
    with parts.database.transaction(acting.tenant_id) as session:
        found = subjects.find(session, parts.vault, acting, [name])
        if not found:
            raise UnknownSubject
        opened = _open_review(
            session,
            parts,
            acting,
            list(found.values()),
            change=body.change,
            detail=body.detail,
            owner=body.owner,
            due_at=body.due_at,
        )
        return ReviewView.model_validate(opened)


@router.get("/v1/scope-reviews")
def list_reviews(
    *, acting: Desk, parts: Parts, open_only: Flag = True, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Reviews:
    """Scope reviews; each says whether it is overdue."""
    after = read_cursor(cursor, str)
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        found = scope_reviews.list_reviews(
            session,
            acting.tenant_id,
            parts.clock.now(),
            open_only=open_only,
            limit=limit + 1,
            after=after[0] if after else None,
        )
    page = [ReviewView.model_validate(one) for one in found[:limit]]
    return Reviews(items=page, next_cursor=write_cursor(page[-1].id) if len(found) > limit else None)


@router.get("/v1/scope-reviews/{review_id}")
def get_review(review_id: ReviewId, acting: Desk, parts: Parts) -> ReviewView:
    """One scope review with its list."""
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        found = scope_reviews.get_review(session, parts.vault, acting.tenant_id, review_id, parts.clock.now())
    return ReviewView.model_validate(found)


@router.post("/v1/scope-reviews/{review_id}")
def decide_review(review_id: ReviewId, body: Decided, acting: Legal, parts: Parts) -> ReviewView:
    """Decides lines of a review; with the last one it is closed."""
    now = parts.clock.now()
    with parts.database.transaction(acting.tenant_id) as session:
        found = scope_reviews.decide(
            session, parts.vault, acting, review_id, body.decisions, comment=body.comment, now=now
        )
        counts: dict[str, int] = {}
        for decision in body.decisions.values():
            counts[decision] = counts.get(decision, 0) + 1
        event = {"review": review_id, "state": "open" if found["open"] else "closed", "decided": counts}
        parts.record.announce(session, acting.tenant_id, Kind.SCOPE_REVIEW, {**event, "by": acting.principal}, now)
    return ReviewView.model_validate(found)


def _announced(session: Session, parts: Services, acting: Acting, done: merging.Merge) -> MergeView:
    """The merge; where this call completed it, its event and the scope review it opens."""
    now = parts.clock.now()
    if done.state != merging.DONE:
        return _merge_view(done)
    event: dict[str, Any] = {
        "merge": done.id,
        "people": list(done.people),
        "shared": len(done.shared),
        "proposed_by": done.proposed_by,
        "by": acting.principal,
        "approval": parts.settings.approval,
    }
    parts.record.announce(session, acting.tenant_id, Kind.SUBJECT_MERGED, event, now)
    consenting.renew(session, acting.tenant_id, done.numbers)
    review = _open_review(session, parts, acting, done.numbers, change="merge", detail=done.id)
    return _merge_view(done, review["id"])


def _open_review(
    session: Session,
    parts: Services,
    acting: Acting,
    numbers: tuple[int, ...] | list[int],
    *,
    change: str,
    detail: str,
    owner: str | None = None,
    due_at: datetime | None = None,
) -> Row:
    now = parts.clock.now()
    opened = scope_reviews.open_review(
        session, parts.vault, acting, numbers, change=change, detail=detail, now=now, owner=owner, due_at=due_at
    )
    event = {"review": opened["id"], "state": "open" if opened["open"] else "closed", "change": change,
             "copies": opened["open"], "by": acting.principal}  # fmt: skip
    parts.record.announce(session, acting.tenant_id, Kind.SCOPE_REVIEW, event, now)
    return opened


def _merge_view(one: merging.Merge, scope_review: str | None = None) -> MergeView:
    values = asdict(one)
    values.pop("numbers")
    return MergeView.model_validate({**values, "scope_review": scope_review})
