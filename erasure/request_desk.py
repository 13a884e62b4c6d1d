"""What retention must know of requests and of open runs: what stops it, what was sent, what waits for a hold.

Guarantees: reads in the caller's transaction, so that a decision made there sees what was committed before. Implements
`retention.stops.Desk`; requests live above that package.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure.collateral import view_of
from erasure.copies import of as copies_of
from erasure.models import CopyRow, RequestRow
from erasure.packages import holds_about
from erasure.plan import IDENTITY, redecide
from erasure.request import BROKEN, WAITING, CopyState, State
from erasure.setbacks import last_answer
from erasure.standing import standing
from erasure.work import BY_HAND, PART, Work, facts_now, is_unseen, load_work
from registry.keyed import chunks
from retention.decide import DESTRUCTIVE
from retention.models import SweepRow
from retention.stops import Resumed, Stops

OPEN_RUNS = ("awaiting_approval", "executing", "verifying")
"""States of runs that have copies in their plan."""
_UNSENT = (CopyState.PENDING, CopyState.RETAINED, CopyState.AWAITING_HUMAN, CopyState.NOT_COVERED)


class RequestDesk:
    """What retention must know of requests and open runs. Implements `retention.stops.Desk`."""

    def stops(self, session: Session, tenant_id: int, about: Collection[int] | None = None) -> Stops:
        """Holds, restrictions and open exports as they are in this transaction; see `retention.stops.Desk`."""
        known = standing(session, tenant_id)
        holds = holds_about(session, tenant_id, known.holds, about)
        return Stops(holds=holds, restrictions=known.restrictions, claims=known.claims)

    def sent(self, session: Session, tenant_id: int, artifact_ids: Collection[int]) -> list[str]:
        """Public ids of artifacts whose delete was sent."""
        found: set[str] = set()
        for chunk in chunks(sorted(set(artifact_ids))):
            found.update(
                session.scalars(
                    sa.select(col(CopyRow.ref)).where(
                        col(CopyRow.tenant_id) == tenant_id,
                        col(CopyRow.artifact_id).in_(chunk),
                        col(CopyRow.state).not_in(_UNSENT),
                    )
                )
            )
        return sorted(found)

    def busy(
        self, session: Session, tenant_id: int, artifact_ids: Collection[int], key_ids: Collection[str]
    ) -> frozenset[int | str]:
        """Artifacts, keys and parts (by their ids) in the plan of an open run."""
        owners = list(
            session.scalars(
                sa.select(col(SweepRow.sweep_id)).where(
                    col(SweepRow.tenant_id) == tenant_id, col(SweepRow.state).in_(OPEN_RUNS)
                )
            )
        )
        if not owners:
            return frozenset()
        found: set[int | str] = set()
        mine = sa.and_(col(CopyRow.tenant_id) == tenant_id, col(CopyRow.owner).in_(owners))
        for chunk in chunks(sorted(set(artifact_ids))):
            query = sa.select(col(CopyRow.artifact_id)).where(mine, col(CopyRow.artifact_id).in_(chunk))
            found.update(number for number in session.scalars(query) if number is not None)
        for some in chunks(sorted(set(key_ids))):
            query_keys = sa.select(col(CopyRow.ref)).where(
                mine, col(CopyRow.kind).in_(("key", PART)), col(CopyRow.ref).in_(some)
            )
            found.update(session.scalars(query_keys))
        return frozenset(found)

    def deferred(
        self, session: Session, tenant_id: int, hold_id: str, now: datetime
    ) -> Mapping[str, Sequence[Resumed]]:
        """Requests that left copies to a hold, and what becomes of these when it ends, by the rules of now."""
        rows = session.exec(
            select(CopyRow)
            .join(
                RequestRow,
                sa.and_(
                    col(RequestRow.tenant_id) == col(CopyRow.tenant_id),
                    col(RequestRow.request_id) == col(CopyRow.owner),
                ),
            )
            .where(
                col(CopyRow.tenant_id) == tenant_id,
                col(CopyRow.state) == CopyState.RETAINED.value,
                col(CopyRow.rule) == "hold",
                col(RequestRow.state).in_((State.COMPLETED_WITH_RETAINED, State.EXECUTING, State.VERIFYING)),
            )
            .order_by(col(CopyRow.owner), col(CopyRow.copy_no))
        )
        waiting: dict[str, list[CopyRow]] = {}
        for copy in rows:
            if any(reason["detail"] == hold_id for reason in copy.because):
                waiting.setdefault(copy.owner, []).append(copy)
        return {
            owner: _resumed(session, load_work(session, tenant_id, owner), copies, hold_id, now)
            for owner, copies in waiting.items()
        }

    def last_answer(self, session: Session, tenant_id: int, artifact_id: int) -> str | None:
        """What its store answered when a pass last failed to end it."""
        return last_answer(session, tenant_id, artifact_id)


def _resumed(session: Session, work: Work, copies: Sequence[CopyRow], hold_id: str, now: datetime) -> list[Resumed]:
    """Each copy as it is decided without the hold; the identity key too, where nothing needs it any more then."""
    keys = [copy for copy in _identity_of(session, work) if copy not in copies]
    given = facts_now(session, work, [*copies, *keys], now)
    lines = redecide(replace(given, holds=[hold for hold in given.holds if hold.hold_id != hold_id]))
    found = []
    for copy in copies:
        line = lines.get(copy.ref)
        if line is None or copy.method == BY_HAND:
            continue
        then = "erased" if line.action in DESTRUCTIVE else "retained"
        if line.action == "review" or is_unseen(copy, line):
            then = "awaiting_human"
        found.append(Resumed(ref=copy.ref, then=then, rule=line.rule, collateral=view_of(line.collateral)))
    going = {one.ref for one in found if one.then == "erased"}
    if _needing_identity(session, work) <= going:
        ending = ((key.ref, lines[key.ref]) for key in keys if key.ref in lines)
        found += [
            Resumed(ref=ref, then="erased", rule=line.rule, collateral=None)
            for ref, line in ending
            if line.action in DESTRUCTIVE
        ]
    return found


def _identity_of(session: Session, work: Work) -> list[CopyRow]:
    """The identity keys that stay while copies of the request do."""
    query = select(CopyRow).where(
        copies_of(work.tenant_id, work.owner),
        col(CopyRow.data_class) == IDENTITY,
        col(CopyRow.state) == CopyState.RETAINED.value,
    )
    return list(session.exec(query.order_by(col(CopyRow.copy_no))))


def _needing_identity(session: Session, work: Work) -> set[str]:
    """What is not gone and is found by the identity key alone."""
    query = sa.select(col(CopyRow.ref)).where(
        copies_of(work.tenant_id, work.owner),
        col(CopyRow.data_class) != IDENTITY,
        col(CopyRow.state).in_([state.value for state in (*WAITING, *BROKEN, CopyState.RETAINED)]),
    )
    return set(session.scalars(query))
