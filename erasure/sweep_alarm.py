"""What an operator must hear of a pass: due items of which none was removed, once or several times in a row.

Guarantees: pure, but for the look at the pass before; classes and counts only. Who says it aloud is `api.sweeping`.
Source: DESIGN §9.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col

from erasure.models import CopyRow
from erasure.payload_expiry import alarm_of as payload_alarm
from erasure.request import GONE, CopyState
from retention.models import SweepRow

HISTORY = "history"
"""The fact of a run that lists what happened to it."""
FAILED = "failed"
SEVERAL = 3
"""After so many passes in a row in which nothing of a class was removed although items were due, the class is named."""


def without_end(copies: Iterable[CopyRow], before: Mapping[str, int], *, aside: Iterable[str] = ()) -> dict[str, int]:
    """The classes of which something was due and nothing was removed, each with the number of passes in a row.

    `aside` are classes with something in quarantine, which is due and is not sent.
    """
    due, removed = set(aside), set[str]()
    for copy in copies:
        if copy.state in GONE:
            removed.add(copy.data_class)
        elif copy.state != CopyState.RETAINED:
            due.add(copy.data_class)
    return {name: before.get(name, 0) + 1 for name in sorted(due - removed)}


def without_end_before(session: Session, row: SweepRow) -> dict[str, int]:
    """The same of the last completed pass before this one."""
    query = (
        sa.select(col(SweepRow.counts))
        .where(
            col(SweepRow.tenant_id) == row.tenant_id,
            col(SweepRow.state) == "completed",
            col(SweepRow.dry_run).is_(False),
            col(SweepRow.created_at) < row.created_at,
        )
        .order_by(col(SweepRow.created_at).desc())
        .limit(1)
    )
    counts = session.scalars(query).first()
    return dict((counts or {}).get("without_end", {}))


def alarm_of(counts: Mapping[str, Any]) -> str | None:
    """What the operator must hear: eligible items of which none was removed, or some that failed."""
    plan, result, payload = counts.get("plan", {}), counts.get("result"), counts.get("payload", {})
    last = (counts.get(HISTORY) or [{}])[-1]
    if last.get("event") == FAILED:
        return (
            f"the pass broke off {last.get('times', 1)} times in a row ({last['detail']['error']}), last at "
            f"{last.get('last_at', last['at'])}; it goes on by itself, and the service's log says where it broke off"
        )
    if result is None:  # nothing was, or is yet, to be removed; what cannot be judged is told all the same
        return _joined(payload_alarm({"unclear": payload.get("unclear", 0)}), _aside(plan.get("aside", 0)))
    aside = _aside(plan.get("aside", 0) + result.get("quarantined", 0))
    return _joined(_of_result(counts, plan, result), payload_alarm(payload), aside)


def _aside(number: int) -> str | None:
    if not number:
        return None
    return (
        f"{number} items are past their date and in quarantine, because their stores refused them pass after pass; the "
        "report names each with the answer: mend what is wrong, then decide each (muniment retention reviews "
        "--quarantined, retention decide)"
    )


def _joined(*said: str | None) -> str | None:
    return "; ".join(one for one in said if one) or None


def _of_result(counts: Mapping[str, Any], plan: Mapping[str, Any], result: Mapping[str, Any]) -> str | None:
    if counts.get("stores_at_fault"):
        return (
            f"{', '.join(counts['stores_at_fault'])}: nothing could be removed there, {result['failed']} items failed; "
            "the next passes ask for a few only until one goes: mend the store or its credentials"
        )
    stuck = {name: number for name, number in counts.get("without_end", {}).items() if number >= SEVERAL}
    if stuck:
        named = ", ".join(f"{name} ({number} passes)" for name, number in sorted(stuck.items()))
        return (
            f"items are due and none was removed, pass after pass: {named}; the report names each copy and what its "
            "store answered: mend the store or its credentials, or close the class's store if it is gone"
        )
    if plan.get("ends") and not result["removed"]:
        return f"{plan['ends']} items were to end and none was removed; the report names each"
    if result["failed"]:
        return f"{result['failed']} items could not be removed; the next run tries again"
    return None
