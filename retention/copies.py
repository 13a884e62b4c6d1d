"""Each copy with its end, told truthfully: whether its clock runs, and whether the date is a rule's or only a cap.

Guarantees: reads in the caller's transaction; worked out from the class in force and the events that happened, never
from the hint by which sweeps find items. It is what the rules say now, not a decision: holds, requests and restrictions
are asked when an end comes (`retention.decide`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlmodel import Session

from registry import classes
from registry.models import Artifact
from retention.consents import CLOCK, until_of
from retention.decide import Item, class_end, own_end
from retention.events import ARTIFACT_KIND, happened, scopes_of
from retention.schedule import rules_of

Clock = Literal["running", "waiting"]
_WAITING_CLOCKS = frozenset({CLOCK})


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyEnd:
    """When a copy ends by rule. `cap`: its clock has not started, and the date is only the latest it may have."""

    ends_at: datetime | None
    rule: str
    starts: str | None
    clock: Clock
    cap: bool


def copy_ends(session: Session, tenant_id: int, rows: Sequence[Artifact]) -> dict[int, CopyEnd]:
    """The end of each of these artifacts, by id."""
    known = classes.in_force(session, tenant_id)
    scopes = scopes_of(session, tenant_id, ARTIFACT_KIND, [row.id for row in rows])
    wanted = {
        row.id: (spec.event, scopes.get(row.id, frozenset()))
        for row in rows
        if (spec := known.get(row.data_class)) is not None and spec.event is not None
    }
    events = happened(session, tenant_id, wanted)
    consents = until_of(session, tenant_id, rows, [name for name, one in known.items() if one.keep_from == CLOCK])
    found: dict[int, CopyEnd] = {}
    for row in rows:
        spec = known.get(row.data_class)
        if spec is None:
            found[row.id] = CopyEnd(ends_at=row.expires_at, rule="none", starts=None, clock="waiting", cap=False)
            continue
        item = Item(
            item_id=row.id,
            data_class=row.data_class,
            created=row.created_at,
            observed=row.observed_at,
            last_activity=row.last_activity_at,
            expires_at=row.expires_at,
            consent_until=consents.get(row.id),
            events=events.get(row.id, {}),
            scopes=scopes.get(row.id, frozenset()),
            confidence=row.confidence,
            confirmed=row.confirmed_at,
        )
        rules = rules_of(spec)
        end, mine = class_end(item, rules), own_end(item, rules)
        waits = (spec.event is not None and row.id not in events) or (
            spec.keep_from in _WAITING_CLOCKS and row.id not in consents
        )
        own = mine is not None and (end is None or mine <= end)
        found[row.id] = CopyEnd(
            ends_at=mine if own else end,
            rule="item_expiry" if own else "class_retention",
            starts=spec.keep_from,
            clock="waiting" if waits else "running",
            cap=waits and not own,
        )
    return found
