"""What somebody who plans or approves an erasure has to know: the same person's requests that it would empty.

Guarantees: reads only, and stops nothing. Retention waits for an open export (`retention.decide`, step 5); an erasure
that a person asked for does not, so whoever approves it is told which of their requests it takes the answer from.
"""

from __future__ import annotations

from typing import Any

from sqlmodel import Session, col, select

from erasure.models import RequestRow
from erasure.plan import instant_text
from erasure.request import DONE, OPEN, Right

_EXPORTS = (Right.ACCESS, Right.PORTABILITY)


def warnings_of(session: Session, row: RequestRow) -> list[dict[str, Any]]:
    """One line for each request for an export, of one of the persons of an open erasure, that was not answered yet."""
    if row.right != Right.ERASURE or row.state not in OPEN or not row.subjects:
        return []
    people = set(row.subjects)
    others = session.exec(
        select(RequestRow)
        .where(
            RequestRow.tenant_id == row.tenant_id,
            col(RequestRow.right).in_(_EXPORTS),
            col(RequestRow.state).in_(sorted(OPEN | DONE)),
            col(RequestRow.answered_at).is_(None),
        )
        .order_by(col(RequestRow.due_at), col(RequestRow.request_id))
    )
    return [_line(other) for other in others if not people.isdisjoint(other.subjects)]


def _line(other: RequestRow) -> dict[str, Any]:
    due = other.extended_until or other.due_at
    stands = "its package is not noted as handed over" if other.state in DONE else f"it is {other.state}"
    return {
        "code": "access_pending",
        "request": other.request_id,
        "right": other.right,
        "state": other.state,
        "due_at": instant_text(due),
        "detail": (
            f"the same person's request for {other.right} {other.request_id} is not answered ({stands}, due "
            f"{due:%Y-%m-%d}): its package will lack what is erased; answer it first, or approve knowingly"
        ),
    }
