"""Which duplicates are left alone: what does their work is somebody else's since, was cancelled, or nobody's request.

A request that was refused since nobody could tell who had sent it answers nobody who proved who they are.

A request that ended never comes back to life, so what its person asked for is filed again, with the day on which it
came in: the time for an answer runs from there (GDPR Art. 12(3)). Until a request for the same stands, the ended one
says so wherever it is shown (`erasure.overlaps`), and is named as due (`erasure.deadlines`).

Guarantees: reads only. Who is one person with whom is looked at anew each time, so that a merge made again ends it too.
"""

from __future__ import annotations

from sqlmodel import Session, col, select

from erasure.models import RequestRow
from erasure.persons import people_of
from erasure.request import FINAL, Extent, State, is_contained

EVENT = "left_alone"


def extent_of(session: Session, row: RequestRow) -> Extent:
    """What a request asks for, and about whom, by the merges and splits of this transaction."""
    classes, scopes = row.details.get("data_classes"), row.details.get("scopes")
    if "artifacts" in row.details:
        scopes = [f"artifact/{number}" for number in row.details["artifacts"]]
    return Extent(
        subjects=people_of(session, row),
        right=row.right,
        regulation=row.regulation,
        data_classes=None if classes is None else frozenset(classes),
        scopes=None if scopes is None else frozenset(scopes),
    )


def is_left_alone(session: Session, row: RequestRow) -> bool:
    """Whether an unanswered request ended as a duplicate, and nothing that stands asks for the same any more.

    Either the request that it was a duplicate of, whatever became of that, or one that came in later and is not over.
    """
    if row.state != State.DUPLICATE or row.answered_at is not None:
        return False
    mine = extent_of(session, row)
    instead = _instead(session, row)
    if not mine.subjects or (instead is not None and is_contained(mine, extent_of(session, instead))):
        return False
    later = session.exec(
        select(RequestRow).where(
            RequestRow.tenant_id == row.tenant_id,
            RequestRow.right == row.right,
            RequestRow.regulation == row.regulation,
            col(RequestRow.state).not_in(sorted(FINAL)),
            col(RequestRow.request_no) > row.request_no,
        )
    )
    return not any(is_contained(mine, extent_of(session, other)) for other in later)


def _instead(session: Session, row: RequestRow) -> RequestRow | None:
    """The request that does the work of a duplicate; None where that was called off, or came from a stranger."""
    seen = {row.request_id}
    other: RequestRow | None = row
    while other is not None and other.state == State.DUPLICATE:
        name = other.duplicate_of
        other = None if name is None or name in seen else session.get(RequestRow, (row.tenant_id, name))
        seen.add(name or "")
    if other is None or other.state == State.CANCELLED:
        return None
    is_a_strangers = other.state == State.REFUSED and other.details.get("ground") == "identity_not_verified"
    return None if is_a_strangers else other
