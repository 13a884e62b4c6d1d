"""What a hold's end sets free: each item it keeps, and what else ends with them, as the next pass would decide it.

Guarantees: reads only. Artifacts, whole keys of the record, and parts that outlived their data keys are decided without
the hold and with everything else that is in force, sources before what was made from them, as in a pass. What no hold
names but was kept because its source was is shown with the rule `source_end`. Counts are complete; at most `LISTED`
lines are given. Not here: names of people of whom nothing is left then, which a later pass ends; a hold that is placed
in between, which wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger.entry import format_instant
from registry.artifacts import by_numbers
from registry.graph import children_of
from registry.keyed import NO_MONTH, chunks
from registry.models import Artifact
from registry.people import expand
from retention.decide import DESTRUCTIVE, Decision, Hold
from retention.due import schedules_in_force
from retention.events import ENDED
from retention.holding import conditions_of, is_held
from retention.items import Candidate, load_artifacts, load_kept, load_keys
from retention.parts import every_kept
from retention.schedule import Schedule
from retention.stops import Desk, Resumed, Stops
from retention.sweep import decisions_about, is_due
from vault.models import OPENING, DataKey

LISTED = 10_000
"""How many items an answer lists; the counts are complete."""
_BATCH = 5_000


@dataclass(slots=True, kw_only=True)
class _Freed:
    """What was decided so far. What is due has the last word: its source may be in a later batch than itself."""

    erased: frozenset[str]
    """What a request that waited takes up again: due whatever its class says."""
    kept: dict[str, int] = field(default_factory=lambda: {"artifact": 0, "key": 0, "entry": 0})
    due: set[str] = field(default_factory=set)
    lines: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, one: Candidate, decision: Decision) -> None:
        if one.ref in self.erased:
            decision = Decision("erase", "request", None, decision.because)
        due = is_due(decision)
        if due:
            self.due.add(one.ref)
        elif one.ref in self.due:
            return
        if one.ref in self.lines or len(self.lines) < LISTED:
            self.lines[one.ref] = _line(one, decision, due=due)

    def answer(self) -> dict[str, Any]:
        listed = sorted(self.lines.values(), key=lambda line: (not line["due"], line["until"] or "9999", line["id"]))
        return {
            "items": self.kept["artifact"],
            "keys": self.kept["key"],
            "entries": self.kept["entry"],
            "due": len(self.due),
            "becomes_due": listed,
        }


def freed_by_release(session: Session, tenant_id: int, desk: Desk, hold: Hold, now: datetime) -> dict[str, Any]:
    """Everything the hold keeps, with what happens to it once the hold is gone, and the requests that go on then."""
    stops = desk.stops(session, tenant_id)
    stops = replace(stops, holds=[one for one in stops.holds if one.hold_id != hold.hold_id])
    schedules = schedules_in_force(session, tenant_id)
    resumed = desk.deferred(session, tenant_id, hold.hold_id, now)
    found = _Freed(
        erased=frozenset(copy.ref for copies in resumed.values() for copy in copies if copy.then == "erased")
    )
    for rows in _artifacts(session, tenant_id, hold):
        named = load_artifacts(session, tenant_id, rows, schedules)
        found.kept["artifact"] += len(named)
        _add_artifacts(session, tenant_id, named, schedules, stops, now, found)
    for batch in (*_keys(session, tenant_id, hold, schedules), *_parts(session, tenant_id, hold, schedules)):
        for one, decision in decisions_about(batch, schedules, stops, now):
            found.kept[one.kind] += 1
            found.add(one, decision)
    return {**found.answer(), "requests": [_resumes(name, copies) for name, copies in sorted(resumed.items())]}


def _add_artifacts(  # noqa: PLR0917 - what a decision reads
    session: Session,
    tenant_id: int,
    named: Sequence[Candidate],
    schedules: Mapping[str, Schedule],
    stops: Stops,
    now: datetime,
    found: _Freed,
) -> None:
    """Decide a batch together with what was made from those of it that end, level by level, as a pass does."""
    every = list(named)
    known = mine = frozenset(one.artifact_id for one in named)
    looked: set[int] = set()
    while True:
        decided = list(decisions_about(every, schedules, stops, now))
        ending = {
            one.artifact_id
            for one, decision in decided
            if decision.action in DESTRUCTIVE and one.artifact_id is not None
        }
        made = children_of(session, tenant_id, ending - looked)
        looked |= ending
        fresh = {child for some in made.values() for child in some} - known
        if not fresh:
            break
        known |= fresh
        live = [row for row in by_numbers(session, tenant_id, fresh).values() if row.status not in ENDED]
        every += load_artifacts(session, tenant_id, live, schedules)
    for one, decision in decided:
        if one.artifact_id in mine or (is_due(decision) and decision.rule == "source_end"):
            found.add(one, decision)


def _artifacts(session: Session, tenant_id: int, hold: Hold) -> Iterator[list[Artifact]]:
    """The artifacts a hold names, each once, in batches."""
    seen: set[int] = set()
    for condition in conditions_of(session, tenant_id, hold):
        after = 0
        while True:
            rows = session.exec(
                select(Artifact)
                .where(
                    Artifact.tenant_id == tenant_id,
                    col(Artifact.status) != "erased",
                    col(Artifact.id) > after,
                    condition,
                )
                .order_by(col(Artifact.id))
                .limit(_BATCH)
            ).all()
            yield [row for row in rows if row.id not in seen]
            seen.update(row.id for row in rows)
            if len(rows) < _BATCH:
                break
            after = rows[-1].id


def _keys(session: Session, tenant_id: int, hold: Hold, schedules: Mapping[str, Schedule]) -> Iterator[list[Candidate]]:
    """Whole keys of the record that a hold keeps: of its persons and of its classes."""
    conditions: list[sa.ColumnElement[bool]] = [
        col(DataKey.subject_id).in_(some) for some in chunks(sorted(expand(session, tenant_id, hold.subjects)))
    ]
    if hold.data_classes:
        conditions.append(col(DataKey.data_class).in_(sorted(hold.data_classes)))
    seen: set[str] = set()
    for condition in conditions:
        after = ""
        while True:
            query = (
                select(DataKey)
                .where(
                    DataKey.tenant_id == tenant_id,
                    col(DataKey.month) != NO_MONTH,
                    col(DataKey.state).in_(OPENING),
                    col(DataKey.data_class).in_(sorted(schedules)),
                    col(DataKey.key_id) > after,
                    condition,
                )
                .order_by(col(DataKey.key_id))
                .limit(_BATCH)
            )
            rows = session.exec(query).all()
            yield load_keys(session, tenant_id, [row for row in rows if row.key_id not in seen], schedules)
            seen.update(row.key_id for row in rows)
            if len(rows) < _BATCH:
                break
            after = rows[-1].key_id


def _parts(
    session: Session, tenant_id: int, hold: Hold, schedules: Mapping[str, Schedule]
) -> Iterator[list[Candidate]]:
    """Parts with keys of their own that a hold keeps: their data keys went before."""
    for rows in every_kept(session, tenant_id, sorted(schedules), batch=_BATCH):
        yield [one for one in load_kept(session, tenant_id, rows, schedules) if is_held(one.item, (hold,))]


def _resumes(request_id: str, copies: Sequence[Resumed]) -> dict[str, Any]:
    """What a request that waited does the moment the hold ends: how much at once, how much a human is asked about."""
    return {
        "request": request_id,
        "copies": [copy.ref for copy in copies],
        "erased_at_once": sum(copy.then == "erased" for copy in copies),
        "awaiting_human": sum(copy.then == "awaiting_human" for copy in copies),
        "retained": sum(copy.then == "retained" for copy in copies),
        "details": [
            {"copy": copy.ref, "then": copy.then, "rule": copy.rule, "collateral": copy.collateral} for copy in copies
        ],
    }


def _line(one: Candidate, decision: Decision, *, due: bool) -> dict[str, Any]:
    return {
        "id": one.ref,
        "kind": one.kind,
        "data_class": one.data_class,
        "store": one.store,
        "due": due,
        "action": decision.action,
        "rule": decision.rule,
        "until": None if decision.until is None else format_instant(decision.until),
    }
