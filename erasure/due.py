"""What is due for a tenant: one look before its requests are worked on, and a smaller one before any of them ends.

Guarantees: reads in the caller's transaction and writes nothing; what is due stays due until somebody does it, so that
whoever does it looks again there. Not here: the work itself (`erasure.worker`).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col

from erasure import copies
from erasure.execute import pending_work
from erasure.fences import UNDER_WAY
from erasure.late import planned
from erasure.models import RequestRow
from erasure.request import DONE, CopyState, Right, State
from erasure.tasks import late_tasks
from ledger.models import Instant
from registry import artifacts
from registry.models import Artifact
from vault.vault import Vault

LATE_AT_ONCE = 1_000
"""Late copies that one pass puts into their requests' plans."""


class Due(NamedTuple):
    """What a worker finds to do; all of it empty or False where nothing is due."""

    requests: tuple[str, ...] = ()
    """That an advance may move, the most urgent first."""
    may_wake: bool = False
    """Whether requests wait for the end of what keeps something."""
    has_late_tasks: bool = False
    has_late_copies: bool = False
    has_keks: bool = False
    uncertified: tuple[str, ...] = ()
    """That a person ended with exceptions, and that have no certificate of that yet."""
    final: tuple[str, ...] = ()
    """Whose quiet period is over."""

    @property
    def is_ending(self) -> bool:
        """Whether a certificate is to be issued, or a key-encryption key to be destroyed."""
        return self.has_keks or bool(self.uncertified or self.final)


def look(session: Session, vault: Vault, tenant_id: int, now: datetime) -> Due:
    """Everything that is due now: four statements where nothing is, since every process asks every other second."""
    return _of_requests(session, tenant_id, now)._replace(
        has_late_tasks=session.execute(late_tasks(tenant_id, now).limit(1)).first() is not None,
        has_late_copies=bool(late_copies(session, tenant_id, limit=1)),
        has_keks=bool(vault.due_keks(session, tenant_id, now)),
    )


def look_at_ends(session: Session, vault: Vault, tenant_id: int, now: datetime) -> Due:
    """What is due of certificates and of key-encryption keys."""
    found = _of_requests(session, tenant_id, now)
    return found._replace(requests=(), has_keks=bool(vault.due_keks(session, tenant_id, now)))


def requests(session: Session, tenant_id: int, now: datetime) -> tuple[str, ...]:
    """The requests that an advance may move: approved ones, others with work that is ready or unverified."""
    return _of_requests(session, tenant_id, now).requests


class _Row(NamedTuple):
    """A request as far as it says what is due."""

    request_id: str
    right: str
    state: str
    final_due_at: datetime | None
    final_issued: str | None


def _of_requests(session: Session, tenant_id: int, now: datetime) -> Due:
    due_at, details, in_state = col(RequestRow.final_due_at), col(RequestRow.details), col(RequestRow.state)
    paused_at, issued = (details[name].as_string() for name in ("paused_at", "final_issued"))
    mine = col(RequestRow.tenant_id) == tenant_id
    # Of those that wait for an end one says that there are any; there are more of them each year.
    waiting = sa.select(col(RequestRow.request_id)).where(mine, in_state == State.COMPLETED_WITH_RETAINED).limit(1)
    is_due = sa.or_(
        sa.and_(in_state.in_(sorted(DONE)), due_at <= sa.literal(now, Instant())),
        sa.and_(in_state == State.COMPLETED_WITH_EXCEPTIONS, due_at.is_(None)),
    )
    may_be_due = sa.or_(
        sa.and_(in_state.in_(UNDER_WAY), paused_at.is_(None)),
        sa.and_(is_due, issued.is_(None)),
        col(RequestRow.request_id) == waiting.scalar_subquery(),
    )
    query = (
        sa.select(col(RequestRow.request_id), col(RequestRow.right), in_state, due_at, issued)
        .where(mine, may_be_due)
        .order_by(col(RequestRow.due_at), col(RequestRow.request_id))
    )
    rows = [_Row._make(row) for row in session.execute(query)]
    active = [row for row in rows if row.state in UNDER_WAY]
    return Due(
        requests=_ids(row for row in active if _may_move(session, tenant_id, row, now)),
        may_wake=any(row.state == State.COMPLETED_WITH_RETAINED for row in rows),
        uncertified=_ids(row for row in rows if _is_uncertified(row)),
        final=_ids(row for row in rows if _is_over(row, now)),
    )


def _ids(rows: Iterable[_Row]) -> tuple[str, ...]:
    return tuple(row.request_id for row in rows)


def _may_move(session: Session, tenant_id: int, row: _Row, now: datetime) -> bool:
    """A request that is being executed is left alone while its next attempt is not due."""
    if row.state != State.EXECUTING or pending_work(session, tenant_id, row.request_id, now):
        return True
    still = copies.of(tenant_id, row.request_id, CopyState.PENDING, CopyState.RUNNING)
    return not copies.states_of(session, still)


def _is_uncertified(row: _Row) -> bool:
    ended = row.state == State.COMPLETED_WITH_EXCEPTIONS and row.right == Right.ERASURE
    return ended and row.final_due_at is None and row.final_issued is None


def _is_over(row: _Row, now: datetime) -> bool:
    is_due = row.final_due_at is not None and row.final_due_at <= now
    return row.state in DONE and is_due and row.final_issued is None


def late_copies(session: Session, tenant_id: int, *, limit: int | None = None) -> list[artifacts.LateCopy]:
    """Artifacts marked for removal under a request whose plan does not have them."""
    has = planned(col(Artifact.request_id))
    return artifacts.late_copies(session, tenant_id, but=has, limit=limit or LATE_AT_ONCE)
