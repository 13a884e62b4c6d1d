"""What every kind does with a canary of its own: try to erase it for somebody else, erase it, free it, look for it.

Guarantees: the level of the report is the one that `verify` reached on a canary that this call wrote, here and now.
Writes and removes nothing else: the kind makes the scratch place and takes it away.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from connectors.base import CheckReport, Level, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from connectors.base import Connector, Deadline, Item

OwnerCheck = Literal["enforced", "not_configured", "failed"]
MINE, FOREIGN = "check:self", "check:other"
"""The owner of the canary, and somebody who is not."""


def try_out(connector: Connector, item: Item, limit: Deadline, now: datetime) -> CheckReport:
    """Erase, free and look for the canary, which names `MINE` as its owner. Raises: ConnectorError."""
    if not item.canaries:
        held = connector.capture([item], deadline=limit.left())[item.copy_id]
        item = replace(item, canaries=tuple(held))
    owner: OwnerCheck = "not_configured"
    if connector.capabilities().owner_check:
        foreign = connector.erase([item], owner_identifiers=[FOREIGN], now=now, deadline=limit.left())[0]
        owner = "enforced" if foreign.outcome is Outcome.OWNER_MISMATCH else "failed"
    erased = connector.erase([item], owner_identifiers=[MINE], now=now, deadline=limit.left())[0]
    freed = connector.reclaim(Level.L2, now=now, deadline=limit.left())
    finding = connector.verify([item], Level.L2, deadline=limit.left(), reclaimed=freed)[0]
    problems = [] if erased.outcome is Outcome.ERASED else [erased.detail]
    if freed.level < Level.L2:
        problems.append(freed.detail)
    if finding.present or (finding.present is None and freed.level >= Level.L2):
        problems.append(finding.could_not_check or f"the canary is still there: {finding.how}")
    return check_report(
        limit,
        now,
        reachable=True,
        can_erase=erased.outcome is Outcome.ERASED,
        level=finding.level,
        owner=owner,
        problems=problems,
    )


def check_report(
    limit: Deadline,
    now: datetime,
    *,
    reachable: bool,
    problems: Sequence[str],
    can_erase: bool = False,
    level: Level | None = None,
    owner: OwnerCheck = "not_configured",
) -> CheckReport:
    """Return the report of a check that ends now."""
    return CheckReport(
        reachable=reachable,
        can_erase=can_erase,
        level_reached=level,
        owner_check=owner,
        took_ms=int(limit.spent() * 1000),
        findings=tuple(problems),
        checked_at=now,
    )
