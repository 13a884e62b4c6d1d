"""What one token wanted to change of another's registered item: listed, and decided by a human."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

from api.auth import Desk, Legal, Parts
from api.pagination import DEFAULT_LIMIT, Cursor, Limit, read_cursor, write_cursor
from api.requests import Body, Instant, make_router
from ledger.entry import Kind
from registry import repeat_reviews
from retention.stops import held_classes

router = make_router("artifacts")
ReviewId = Annotated[str, Path(pattern=r"^rev_[0-9a-f]{16}$", examples=["rev_" + "0" * 16])]


class Decision(Body):
    """A human's word on it."""

    decision: Literal["accept", "refuse"]
    reason: str = Field(min_length=1, max_length=2000, description="Sealed.")
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"decision": "refuse", "reason": "the summary was written by hand"}]}
    )


class RegistrationReview(BaseModel):
    """What was wanted of which item, and by whom; people and sources under opaque ids."""

    id: str
    artifact: str | None
    wanted: dict[str, Any]
    asked_by: list[str]
    asked_at: Instant
    decision: str | None
    decided_by: str | None
    decided_at: Instant | None


class RegistrationReviews(BaseModel):
    """A page of reviews."""

    items: list[RegistrationReview]
    next_cursor: str | None = None


@router.get("/v1/registration-reviews")
def list_registration_reviews(
    acting: Desk,
    parts: Parts,
    state: Literal["open", "all"] = "open",
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> RegistrationReviews:
    """What tokens wanted to change of items that another one registered, oldest first."""
    after = read_cursor(cursor, int)
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        items, last = repeat_reviews.reviews(
            session, acting.tenant_id, open_only=state == "open", limit=limit, after=after[0] if after else 0
        )
    shown = [RegistrationReview.model_validate(one) for one in items]
    return RegistrationReviews(items=shown, next_cursor=None if last is None else write_cursor(last))


@router.post("/v1/registration-reviews/{registration_review_id}")
def decide_registration_review(
    registration_review_id: ReviewId, body: Decision, acting: Legal, parts: Parts
) -> RegistrationReview:
    """Accepts or refuses the change; who asked for it cannot. An item that has to go then joins its request."""
    now = parts.clock.now()
    with parts.database.transaction(acting.tenant_id) as session:
        found = repeat_reviews.decide_review(
            session,
            parts.vault,
            acting,
            registration_review_id,
            body.decision,
            reason=body.reason,
            now=now,
            held=held_classes(session, acting.tenant_id),
        )
        event = {
            "review": registration_review_id,
            "artifact": found["artifact"],
            "decision": found["decision"],
            "changes": sorted(set(found["wanted"]) - {"request"}),
            "by": acting.principal,
        }
        parts.record.announce(session, acting.tenant_id, Kind.REGISTRATION_DECIDED, event, now)
    parts.jobs.wake()
    return RegistrationReview.model_validate(found)
