"""Dates that come near: answers to people, confirmations, recipients, reviews, passes that wait.

What an operator must hear in time.

Guarantees: reads only; opaque ids and dates. An answer is due until the person was told, whether the work is under
way, done, refused, found nobody, or ended as a duplicate that nobody works on; a request whose
person was told, or whose clock stands still, alarms nobody. An extension counts once the person was told of it within
the first date (GDPR Art. 12(3), second sentence); until then that date is the one that is near. What a person had
forgotten by their own word was answered where they said it. Which date counts is decided when a request is received
(`retention.calendar`), not here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, get_args

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure.left_alone import EVENT, is_left_alone
from erasure.models import RequestEvent, RequestRow
from erasure.overlaps import is_extension_told
from erasure.recipients import to_be_told
from erasure.request import DONE, OPEN, State
from erasure.unverified import ends_at, unverified
from ledger.models import Instant
from retention.dispositions import OPEN as IN_REVIEW
from retention.dispositions import QUARANTINED
from retention.models import DispositionRow, SweepRow

AHEAD = timedelta(days=7)
"""From so long before its date on something is named at every look."""
LISTED = 1_000
APPROVAL = timedelta(days=7)
"""How long a pass of retention that a brake holds may wait for its approval: what it would end is past its date."""

_UNANSWERED = sorted(OPEN | DONE | {State.REFUSED, State.NO_MATCH})
"""States in which the person still has to be told. Source: GDPR Art. 12(3) and (4)."""

What = Literal["answer", "extension", "confirmation", "recipients", "review", "quarantine", "run", "unverified"]
WHAT: tuple[What, ...] = get_args(What)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """One date that is near or over. `days_left` is negative when it is over."""

    what: What
    ref: str
    due_at: datetime
    days_left: int

    @property
    def is_over(self) -> bool:
        """Whether it was missed."""
        return self.days_left < 0


def near(
    session: Session, tenant_id: int, now: datetime, *, unverified_term: timedelta | None = None
) -> list[Deadline]:
    """Every date within `AHEAD`, and every missed one, the nearest first; at most `LISTED` of a kind.

    `unverified_term`: after which requests that nobody verified are refused; None names none of these dates.
    """
    found = [*_requests(session, tenant_id, now), *_reviews(session, tenant_id, now), *_runs(session, tenant_id, now)]
    told = [(request_id, at) for request_id, at in to_be_told(session, tenant_id) if at <= now + AHEAD]
    if unverified_term is not None:
        found += _unverified(session, tenant_id, now, unverified_term)
    found += [_deadline("recipients", request_id, at, now) for request_id, at in sorted(told)[:LISTED]]
    return sorted(found, key=lambda one: (one.due_at, one.ref))


def todo_of(deadline: Deadline) -> str:
    """What to do about it."""
    return {
        "answer": "answer the person and record the notice; an extension is told before the first date",
        "extension": "tell the person of the extension and why before this first date, and record the notice",
        "confirmation": "confirm receipt to the person and record the notice",
        "recipients": "tell each recipient, or note why it cannot be told, and record the notices (GDPR Art. 19)",
        "unverified": "verify an identifier, or refuse it and tell the person: then it is refused by itself, and what "
        "it says is destroyed 30 days later",
        "run": "look at its plan and approve it as a second person, or stop it; what it would end stays until then",
        "quarantine": "mend what its store answered, then decide it: erase tries it again, extend keeps it",
        "review": "decide it: erase, extend or reclassify, with a comment",
    }[deadline.what]


def _requests(session: Session, tenant_id: int, now: datetime) -> list[Deadline]:
    limit = sa.literal(now + AHEAD, Instant())
    left_alone = sa.exists().where(
        col(RequestEvent.tenant_id) == tenant_id,
        col(RequestEvent.request_id) == col(RequestRow.request_id),
        col(RequestEvent.event) == EVENT,
    )
    query = select(RequestRow).where(
        RequestRow.tenant_id == tenant_id,
        sa.or_(
            col(RequestRow.state).in_(_UNANSWERED),
            sa.and_(col(RequestRow.state) == State.DUPLICATE.value, left_alone),
        ),
        col(RequestRow.answered_at).is_(None),
        sa.or_(col(RequestRow.due_at) <= limit, col(RequestRow.acknowledge_by) <= limit),
    )
    found = []
    for row in session.exec(query.order_by(col(RequestRow.due_at)).limit(LISTED)):
        if row.state in OPEN and "paused_at" in row.details:
            continue
        if row.state == State.DUPLICATE and not is_left_alone(session, row):
            continue  # filed again, or one person with the other once more
        if row.state not in OPEN and "roots" in row.details:
            continue  # said to an agent, which answered (`erasure.forget`)
        due_at = row.due_at if row.extended_until is None else row.extended_until
        what: What = "answer"
        if row.extended_until is not None and not is_extension_told(session, row):
            due_at, what = row.due_at, "extension" if now <= row.due_at else "answer"
        if due_at <= now + AHEAD:
            found.append(_deadline(what, row.request_id, due_at, now))
        confirm_by = row.acknowledge_by
        if confirm_by is not None and confirm_by <= now + AHEAD and not _is_confirmed(session, row):
            found.append(_deadline("confirmation", row.request_id, confirm_by, now))
    return found


def _unverified(session: Session, tenant_id: int, now: datetime, term: timedelta) -> list[Deadline]:
    rows = itertools.islice(unverified(session, tenant_id, due_before=now + AHEAD - term), LISTED)
    found = [_deadline("unverified", row.request_id, ends_at(row, term, now), now) for row in rows]
    return [one for one in found if one.due_at <= now + AHEAD]


def _is_confirmed(session: Session, row: RequestRow) -> bool:
    """Whether the person was told anything yet; the first notice says that the request arrived."""
    query = sa.select(col(RequestEvent.n)).where(
        col(RequestEvent.tenant_id) == row.tenant_id,
        col(RequestEvent.request_id) == row.request_id,
        col(RequestEvent.event) == "notice",
    )
    return session.scalars(query.limit(1)).first() is not None


def _reviews(session: Session, tenant_id: int, now: datetime) -> Sequence[Deadline]:
    query = select(DispositionRow).where(
        DispositionRow.tenant_id == tenant_id,
        col(DispositionRow.state).in_((IN_REVIEW, QUARANTINED)),
        col(DispositionRow.due_at) <= sa.literal(now + AHEAD, Instant()),
    )
    rows = session.exec(query.order_by(col(DispositionRow.id)).limit(LISTED))
    kinds: dict[str, What] = {IN_REVIEW: "review", QUARANTINED: "quarantine"}
    return [_deadline(kinds[row.state], f"dsp_{row.id:016x}", row.due_at, now) for row in rows]


def _runs(session: Session, tenant_id: int, now: datetime) -> Sequence[Deadline]:
    query = select(SweepRow).where(
        SweepRow.tenant_id == tenant_id, SweepRow.state == "awaiting_approval", col(SweepRow.dry_run).is_(False)
    )
    rows = session.exec(query.order_by(col(SweepRow.created_at)).limit(LISTED))
    return [_deadline("run", row.sweep_id, row.created_at + APPROVAL, now) for row in rows]


def _deadline(what: What, ref: str, due_at: datetime, now: datetime) -> Deadline:
    return Deadline(what=what, ref=ref, due_at=due_at, days_left=(due_at - now) // timedelta(days=1))
