"""What somebody who plans or approves a request has to know beforehand: that it takes from others, or changes nothing.

Guarantees: reads only, and stops nothing. A correction for which no copy was found names its own request, so that an
approval is not taken for a change that nobody made. Retention waits for an open export (`retention.decide`, step 5); an
erasure that a person asked for does not, so whoever approves it is told which of their requests it takes the answer
from, and whoever makes the export, which erasure takes from it. An extension that its person was not told of within the
first date is none in law, and a clock that stands although its reason is over runs there: both are said, and so is how
many of its names nobody verified.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure import copies
from erasure.fences import UNDER_WAY
from erasure.left_alone import is_left_alone
from erasure.models import RequestEvent, RequestRow
from erasure.plan import instant_text
from erasure.rendering.blocks import local_day
from erasure.request import BEFORE_APPROVAL, DONE, OPEN, Right, State

IDENTIFIERS = "identifiers"
"""Under which name a request keeps how many of its identifiers were verified, and how many it has."""
_EXPORTS = (Right.ACCESS, Right.PORTABILITY)
_IDENTITY_OPEN = (State.RECEIVED, State.IDENTITY_PENDING)


def warnings_of(session: Session, row: RequestRow) -> list[dict[str, Any]]:
    """One line for each other request of one of its persons that this open one takes from, or that takes from it.

    A correction that was planned and has no line gets one that says so. So does a duplicate that is left alone, a
    request that was noted as answered before anybody worked on it, and one whose clock the law would read otherwise.
    """
    return [*_of_its_clock(session, row), *_of_its_names(row), *_of_its_work(session, row)]


def is_extension_told(session: Session, row: RequestRow) -> bool:
    """Whether the person was told of an extension within the first date. Source: GDPR Art. 12(3); 11 CCR 7021(b)."""
    query = sa.select(col(RequestEvent.detail)).where(
        col(RequestEvent.tenant_id) == row.tenant_id,
        col(RequestEvent.request_id) == row.request_id,
        col(RequestEvent.event) == "notice",
    )
    notices = [detail for detail in session.scalars(query) if detail["kind"] == "extended"]
    return any(datetime.fromisoformat(detail["sent_at"]) <= row.due_at for detail in notices)


def _of_its_clock(session: Session, row: RequestRow) -> list[dict[str, Any]]:
    found = []
    if row.answered_at is None and row.extended_until is not None and not is_extension_told(session, row):
        found.append(_extension_untold(row))
    is_stopped = row.state in OPEN and "paused_at" in row.details
    if is_stopped and row.details.get("pause_reason") == "identity" and row.state not in _IDENTITY_OPEN:
        found.append(_standing_still(row))
    return found


def _of_its_names(row: RequestRow) -> list[dict[str, Any]]:
    """What is asked under names that nobody showed to be the person's is done under none of them."""
    verified, of = row.details.get(IDENTIFIERS, (0, 0))
    if row.state not in (State.VERIFIED, State.PLANNED) or verified == of:
        return []
    return [_unproven(row, of - verified, of)]


def _of_its_work(session: Session, row: RequestRow) -> list[dict[str, Any]]:
    if is_left_alone(session, row):
        return [_left_alone(row)]
    if row.answered_at is not None and row.state in BEFORE_APPROVAL:
        return [_answered_already(row)]
    if row.state not in OPEN or not row.subjects:
        return []
    if row.right == Right.RECTIFICATION:
        return [] if row.plan_hash is None or _has_copies(session, row) else [_correcting_nothing(row)]
    query = select(RequestRow).where(RequestRow.tenant_id == row.tenant_id)
    if row.right == Right.ERASURE:
        query = query.where(
            col(RequestRow.right).in_(_EXPORTS),
            col(RequestRow.state).in_(sorted(OPEN | DONE)),
            col(RequestRow.answered_at).is_(None),
        )
    elif row.right in _EXPORTS:
        query = query.where(RequestRow.right == Right.ERASURE, col(RequestRow.state).in_(UNDER_WAY))
    else:
        return []
    people = set(row.subjects)
    others = session.exec(query.order_by(col(RequestRow.due_at), col(RequestRow.request_id)))
    found = [other for other in others if not people.isdisjoint(other.subjects)]
    return [_emptied(other) if row.right == Right.ERASURE else _emptying(other) for other in found]


def _has_copies(session: Session, row: RequestRow) -> bool:
    return session.scalars(sa.select(sa.exists().where(copies.of(row.tenant_id, row.request_id)))).one()


def _correcting_nothing(row: RequestRow) -> dict[str, Any]:
    return _warning(
        "nothing_to_correct",
        row,
        "no copy was found that holds what is to be corrected, so nothing will be changed in any store: compare "
        "the names of the fields, and what is said to be wrong, with what is stored",
    )


def _answered_already(row: RequestRow) -> dict[str, Any]:
    return _warning(
        "answered_unworked",
        row,
        f"it was noted as answered and is {row.state}: nothing was approved or refused, and no date is named any "
        "more. Carry it out, refuse it or cancel it",
    )


def _extension_untold(row: RequestRow) -> dict[str, Any]:
    first = local_day(row.due_at, row.timezone)
    return _warning(
        "extension_untold",
        row,
        f"no notice says that the person was told of the extension by {first}, the first date: without that, the "
        "answer is due then",
    )


def _standing_still(row: RequestRow) -> dict[str, Any]:
    return _warning(
        "standing_still",
        row,
        "its clock stands still until the person is identified, and they are: nobody works on it, and the law counts "
        "these days. Resume it",
    )


def _unproven(row: RequestRow, left: int, of: int) -> dict[str, Any]:
    return _warning(
        "names_unverified",
        row,
        f"{left} of its {of} identifiers {'was' if left == 1 else 'were'} not verified: nothing is looked for under "
        "them, and after the approval none can be added. Verify them first, or tell the person",
    )


def _left_alone(row: RequestRow) -> dict[str, Any]:
    return _warning(
        "left_alone",
        row,
        f"it ended as a duplicate of {row.duplicate_of}, which was cancelled since, or is somebody else's as it "
        f"turned out: nobody works on it. File it again with received_at {instant_text(row.received_at)}, from "
        "which the time for an answer runs, or note the answer here",
    )


def _emptying(other: RequestRow) -> dict[str, Any]:
    return _warning(
        "erasure_pending",
        other,
        f"an erasure of the same person, {other.request_id}, is {other.state}: what it erases will be missing "
        "from the package, which says so",
    )


def _emptied(other: RequestRow) -> dict[str, Any]:
    due = local_day(other.extended_until or other.due_at, other.timezone)
    stands = "its package is not noted as handed over" if other.state in DONE else f"it is {other.state}"
    return _warning(
        "access_pending",
        other,
        f"the same person's request for {other.right} {other.request_id} is not answered ({stands}, due "
        f"{due}): its package will lack what is erased; answer it first, or approve knowingly",
    )


def _warning(code: str, about: RequestRow, detail: str) -> dict[str, Any]:
    return {
        "code": code,
        "request": about.request_id,
        "right": about.right,
        "state": about.state,
        "due_at": instant_text(about.extended_until or about.due_at),
        "detail": detail,
    }
