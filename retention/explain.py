"""Says what would happen to one item and why, and lists what is due: the same decision that a pass makes, without one.

Guarantees: reads only; opaque ids, names of classes, stores and rules, dates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlmodel import Session

from ledger.entry import format_instant
from registry.artifacts import by_numbers, find_artifact
from registry.errors import Fault, InvalidDeclaration, UnknownArtifact
from registry.graph import ARTIFACT
from retention.decide import Claim, Decision, ceiling, decide
from retention.due import Place, due, schedules_in_force
from retention.errors import NothingLeft, NotKnown
from retention.items import Candidate, load_artifacts, load_entry
from retention.key_clocks import entry_states
from retention.quarantine import aside
from retention.schedule import Schedule
from retention.stops import Desk, Stops
from retention.sweep import decided, decision_about, is_due

REQUEST = "request"
MAX_SOURCES = 10_000
GONE = "erased"


def explain(
    session: Session,
    tenant_id: int,
    desk: Desk,
    *,
    artifact: str | None,
    entry: str | None,
    trigger: str,
    at: datetime,
) -> dict[str, Any]:
    """The decision about an artifact or an entry at an instant.

    With the trigger `request` it is asked as if all of the item's people asked for erasure at that instant.

    Raises: InvalidDeclaration, UnknownArtifact, NotKnown, NothingLeft.
    """
    if (artifact is None) == (entry is None):
        raise InvalidDeclaration("decision", [Fault(pointer="", detail="expected either artifact or entry")])
    schedules = schedules_in_force(session, tenant_id)
    one: Candidate | None
    if artifact is not None:
        row = find_artifact(session, tenant_id, artifact)
        if row.status == GONE:
            raise UnknownArtifact(artifact)
        [one] = load_artifacts(session, tenant_id, [row], schedules)
    else:
        one = load_entry(session, tenant_id, entry or "", schedules)
        if one is None:
            raise NotKnown("entry", "")
        if one.item.entry is not None and entry_states(session, tenant_id, [one.item.entry]):
            raise NothingLeft(one.ref)
    sources = () if one.artifact_id is None else sources_of(session, tenant_id, one, schedules)
    stops = desk.stops(
        session, tenant_id, [each.artifact_id for each in (one, *sources) if each.artifact_id is not None]
    )
    claims = list(stops.claims)
    if trigger == REQUEST:
        claims.append(Claim(REQUEST, "erasure", one.item.subjects, at, at))
    decision = decision_about(one, sources, schedules, replace(stops, claims=claims), at)
    waits = [*_without_review(one, schedules, decision), *_quarantine(session, tenant_id, desk, one)]
    return {
        "action": decision.action,
        "rule": decision.rule,
        "until": decision.until,
        "because": [*(reason._asdict() for reason in decision.because), *waits],
    }


def _without_review(one: Candidate, schedules: Mapping[str, Schedule], decision: Decision) -> list[dict[str, str]]:
    """When the item ends although nobody reviews it."""
    rules = schedules[one.data_class].rules if decision.action == "review" else None
    most = None if rules is None else ceiling(one.item.created, rules)
    if rules is None or most is None:
        return []
    detail = f"{rules.name} ceiling: {rules.ceiling_basis}: without a review at {format_instant(most)}"
    return [{"rule": "class_retention", "result": "erase", "detail": detail}]


def _quarantine(session: Session, tenant_id: int, desk: Desk, one: Candidate) -> list[dict[str, str]]:
    """That passes leave the item alone until somebody decides, although its time is over."""
    found = [each for each in aside(session, tenant_id) if each.artifact_id == one.artifact_id is not None]
    return [
        {
            "rule": "quarantine",
            "result": "not_sent",
            "detail": f"{each.disposition_id} since {format_instant(each.since)}: "
            f"{desk.last_answer(session, tenant_id, each.artifact_id or 0) or 'no answer was kept'}",
        }
        for each in found
    ]


def sources_of(session: Session, tenant_id: int, one: Candidate, schedules: Mapping[str, Schedule]) -> list[Candidate]:
    """What an artifact was made from, however far up, level by level, at most `MAX_SOURCES` of them."""
    found: dict[int, Candidate] = {}
    frontier = {source.number for source in one.sources if source.kind == ARTIFACT}
    while frontier and len(found) < MAX_SOURCES:
        rows = by_numbers(session, tenant_id, frontier).values()
        loaded = load_artifacts(session, tenant_id, list(rows), schedules)
        found.update({each.artifact_id: each for each in loaded if each.artifact_id is not None})
        frontier = {source.number for each in loaded for source in each.sources if source.kind == ARTIFACT}
        frontier -= found.keys() | {one.artifact_id or 0}
    return list(found.values())


def list_due(
    session: Session, tenant_id: int, desk: Desk, *, before: datetime, limit: int, place: Place | None
) -> tuple[list[dict[str, Any]], Place | None]:
    """Items that would end or be reviewed at an instant, about `limit` of them, and where the list goes on."""
    schedules = schedules_in_force(session, tenant_id)
    lines: list[dict[str, Any]] = []
    following = place or Place()
    while len(lines) < limit:
        batch = due(session, tenant_id, schedules, before=before, limit=limit - len(lines), place=following)
        numbers = [one.artifact_id for one in batch.candidates if one.artifact_id is not None]
        stops = desk.stops(session, tenant_id, numbers) if batch.candidates else Stops()
        for one in batch.candidates:
            schedule = schedules.get(one.data_class)
            rules = None if schedule is None else schedule.rules
            decision = decide(decided(one), rules, stops.holds, stops.restrictions, stops.claims, before)
            if is_due(decision):
                lines.append(_line(one, decision))
        if batch.following is None:
            return lines, None
        following = batch.following
    return lines, following


def _line(one: Candidate, decision: Decision) -> dict[str, Any]:
    return {
        "id": one.ref,
        "kind": one.kind,
        "data_class": one.data_class,
        "store": one.store,
        "ends_at": decision.until,
        "action": decision.action,
        "rule": decision.rule,
    }
