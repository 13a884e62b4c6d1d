"""The lines of an export as they stand when it is made: what is new joins them, what became somebody else's stays out.

Guarantees: the counts are the registry's when this returns; what is about others by now, and was not when it was
planned, waits for a human, and so does what is about others than the human saw who released it; what was planned
of somebody who is told apart from the person by now is left out. In one transaction, page by page. Not here: what goes
into an export (`erasure.export`), and its file (`erasure.exporting`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple

from sqlmodel import Session

from erasure import answer_plans, copies, history
from erasure.additions import Approved, Lookup, addendum
from erasure.collateral import exceeds
from erasure.package_people import leave_out_who_goes, others_of
from erasure.parts import Parts
from erasure.persons import leave_out_strangers
from erasure.plan import Plan
from erasure.request import CopyState
from erasure.selector import select_subjects
from erasure.standing import claim_of
from erasure.work import BY_HAND
from ledger.entry import Kind

_MAY_GO_OUT = (CopyState.PENDING.value, CopyState.EXPORTED.value, CopyState.AWAITING_HUMAN.value)
_STRANGER = {"state": CopyState.WITHHELD.value, "detail": "of somebody who is told apart from the person by now"}


class _Line(NamedTuple):
    copy_no: int
    kind: str
    ref: str
    artifact_id: int | None
    method: str | None
    collateral: dict[str, Any] | None


def bring_up_to_date(parts: Parts, tenant_id: int, request_id: str, now: datetime) -> bool:
    """Select once more and put down what is new; whether nothing waits for a human. Raises: what the database does."""
    with parts.transactions(tenant_id) as session:
        row = history.load(session, tenant_id, request_id, lock=True)
        told_apart = leave_out_strangers(session, row)
        people = frozenset(row.subjects)
        given = select_subjects(session, tenant_id, people, owner=request_id, claim=claim_of(row), now=now)
    fresh = answer_plans.plan_of(parts, row, given, now)
    del given
    with parts.transactions(tenant_id) as session:
        _ask_about(session, tenant_id, request_id, fresh)
        if told_apart:
            _withhold_of_others(session, tenant_id, request_id, fresh)
        pages = copies.pages(session, Approved, copies.of(tenant_id, request_id))
        more = addendum(chain.from_iterable(pages), fresh).added
        if more:
            history.put_copies(session, tenant_id, request_id, more, {})
            body = {"request": request_id, "addendum": [copy.ref for copy in more]}
            parts.record.announce(session, tenant_id, Kind.REQUEST_STATE, body, now)
        others = others_of(session, tenant_id, request_id, people)
        leave_out_who_goes(session, parts.vault, tenant_id, request_id, others)
        return CopyState.AWAITING_HUMAN not in copies.states_of(session, copies.of(tenant_id, request_id))


def _ask_about(session: Session, tenant_id: int, request_id: str, fresh: Plan) -> None:
    """What is about others by now, and was not when it was planned, waits for a human."""
    asked = {(line.kind, line.ref): line for line in fresh.copies if line.state == CopyState.AWAITING_HUMAN}
    if not asked:
        return
    where = copies.of(tenant_id, request_id, CopyState.PENDING, CopyState.EXPORTED)
    for page in copies.pages(session, _Line, where):
        alike: dict[tuple[str | None, tuple[tuple[str, int], ...] | None], list[int]] = {}
        for copy in page:
            line = asked.get((copy.kind, copy.ref))
            # Whoever released it saw certain others in it; of more, or of somebody else, they are asked again.
            if line is not None and (copy.method != BY_HAND or exceeds(line.collateral, copy.collateral)):
                alike.setdefault((line.detail, _frozen(line.collateral)), []).append(copy.copy_no)
        for (detail, others), numbers in alike.items():
            copies.update(
                session,
                copies.among(session, tenant_id, request_id, numbers),
                state=CopyState.AWAITING_HUMAN.value,
                detail=detail,
                collateral=None if others is None else dict(others),
            )


def _frozen(collateral: Mapping[str, int] | None) -> tuple[tuple[str, int], ...] | None:
    return None if collateral is None else tuple(collateral.items())


def _withhold_of_others(session: Session, tenant_id: int, request_id: str, fresh: Plan) -> None:
    """Leave out what was planned of somebody who is told apart from the person by now."""
    mine = Lookup(fresh.copies)
    for page in copies.pages(session, _Line, copies.of(tenant_id, request_id, *_MAY_GO_OUT)):
        strangers = {copy.copy_no: _STRANGER for copy in page if not mine.has(copy)}
        copies.write(session, tenant_id, request_id, strangers)
