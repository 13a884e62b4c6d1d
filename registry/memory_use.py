"""Memories in use: asked for, confirmed, contradicted, taken out of use.

Guarantees: a verdict is `registry.memories.judge` over what stands in this transaction; a place that nobody registered,
and a memory outside the token's classes, are out of scope, never usable. Each change is a row of the change log in the
same transaction; who calls ships it (`registry.memory_log.ship`). Opens what was said of a memory, never the memory
itself: values stay in their stores. Forgetting is `erasure.forget`. The caller commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlmodel import Session

from registry import classes, memory_log
from registry.acting import Acting
from registry.artifact_rows import find_artifact, find_artifacts, open_details, public_name
from registry.artifacts import set_use
from registry.declaration import DataClass
from registry.ends import CONSENT, dates_of, default_ends_at, fades_at
from registry.errors import Conflict, MemoryGone, NotAMemory, OutsideTokenScope
from registry.identifiers import parse_subject
from registry.keyed import canonical_json
from registry.memories import CONFIRMED_CONFIDENCE, Asked, Judged, Verdict, judge
from registry.memory_facts import (
    MAX_MEMORIES,
    at_places,
    buried,
    load_around,
    memories_of,
    memory_of,
    places_of,
)
from registry.memory_log import Change
from registry.models import Artifact, MemoryChange
from registry.origins import add_sources, confidence_now
from registry.reading import Faults, Reader, is_list
from registry.sets import Members, members
from registry.subjects import fenced, find_people
from vault.vault import Vault

__all__ = ["MAX_MEMORIES", "change_status", "changes", "check_said", "confirm", "conflict", "require_memory", "resolve"]

MAX_OBSERVED_BYTES = 16_384
_ENTRY_PREFIX = "entry:"
_GONE = ("erasing", "erased")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """One call of `resolve`, read."""

    asked: Asked
    people: Members
    rules: Mapping[str, DataClass]
    now: datetime


def resolve(session: Session, vault: Vault, acting: Acting, spec: object, now: datetime) -> list[dict[str, Any]]:
    """Which memories may be used, each with its verdict and reason. Source: API §4.

    All memories of the person (the newest `MAX_MEMORIES`), or those named, in the order they are named.
    Raises: InvalidDeclaration, MalformedSubject.
    """
    faults = Faults("memory")
    reader = Reader(spec, faults)
    subject = parse_subject(reader.text("subject", required="whose memories these are", limit=600))
    asked = Asked(
        purpose=reader.text("purpose", required="data may be used only for what it was kept for", limit=128),
        scope=_scope(reader),
    )
    named = reader.raw("artifacts")
    if named is not None and (not is_list(named) or len(named) > MAX_MEMORIES):
        reader.add("artifacts", f"expected a list of at most {MAX_MEMORIES}")
    reader.done()
    faults.raise_any()
    people = frozenset(find_people(session, vault, acting, (subject,)).get(subject.text, ()))
    rules = classes.in_force(session, acting.tenant_id, state="memory" if named is None else None)
    question = _Question(asked=asked, people=people, rules=rules, now=now)
    if named is None:
        return _judged(session, vault, acting, memories_of(session, acting, rules, people), question)
    return _named(session, vault, acting, named, question)


def confirm(
    session: Session, vault: Vault, acting: Acting, public_id: str, *, source_ref: str, now: datetime
) -> dict[str, Any]:
    """The memory after the person said that it still holds: its confidence is full and ages from now.

    An inference stays one by its source type, and is usable by its verification. `source_ref` is where the person said
    so; `entry:<uuid>` becomes a source. What ended by its own date or by its class cannot be confirmed back to life.
    Raises: UnknownArtifact, NotAMemory, MemoryGone, OutsideTokenScope, Conflict, RejectedSources.
    """
    check_said("source_ref", source_ref)
    row, rules = _own(session, acting, public_id)
    if row.status != "live":
        raise Conflict(f"the memory is {row.status}; it is confirmed after it was taken into use again")
    fades = fades_at(rules, dates_of(row))
    unfaded = default_ends_at(rules, replace(dates_of(row), confidence=None))
    by_clock = unfaded if row.ends_at == fades else row.ends_at
    if any(at is not None and at <= now for at in (row.expires_at, by_clock)):
        raise Conflict("the memory has ended; what the person says now is a new one")
    if source_ref.startswith(_ENTRY_PREFIX):
        if "review" in add_sources(session, vault, acting, public_id, [source_ref], now=now):
            raise Conflict("what it cites is being erased, and another token registered the memory: a human decides")
        row = find_artifact(session, acting.tenant_id, public_id)
        if row.status in _GONE:
            raise MemoryGone(public_name(row), row.request_id)
    detail = {"before": row.verification, "after": "user_confirmed", "confidence": row.confidence}
    row.verification, row.confirmed_at, row.confidence = "user_confirmed", now, CONFIRMED_CONFIDENCE
    if fades is not None and row.ends_at == fades:
        # It fades later now. What waits for consent is dated by the next pass, what another clock ends stays as it was.
        row.ends_at = None if rules.keep_from == CONSENT else default_ends_at(rules, dates_of(row))
    session.add(row)
    change = Change(change="confirmed", by=acting.principal, bodies=({"source_ref": source_ref},), detail=detail)
    noted = memory_log.note(session, vault, row, change, now)
    return _view(row, rules, noted, now)


def conflict(
    session: Session,
    vault: Vault,
    acting: Acting,
    public_id: str,
    *,
    product_ref: str,
    observed: object,
    now: datetime,
) -> dict[str, Any]:
    """The memory quarantined because the product says otherwise; both sides go into the record, one entry each.

    The product wins and the person is asked. Raises: as `confirm`.
    """
    row, rules = _own(session, acting, public_id)
    check_said("observed", observed)
    check_said("product_ref", product_ref)
    opened = open_details(session, vault, acting.tenant_id, [row]).get(row.id)
    remembered = {
        "side": "memory",
        "source_type": row.source_type,
        "source_ref": None if opened is None else opened.source_ref,
        "observed_at": None if row.observed_at is None else row.observed_at.isoformat(),
        "verification": row.verification,
        "digest": None if row.digest is None else row.digest.hex(),
    }
    seen = {"side": "product", "product_ref": product_ref, "observed": observed, "observed_at": now.isoformat()}
    detail = {"before": row.status, "after": "quarantined" if row.status == "live" else row.status}
    if row.status == "live":
        row.status = "quarantined"
    session.add(row)
    change = Change(change="conflict", by=acting.principal, bodies=(remembered, seen), detail=detail)
    noted = memory_log.note(session, vault, row, change, now)
    return _view(row, rules, noted, now)


def change_status(
    session: Session, vault: Vault, acting: Acting, public_id: str, status: str, *, reason: str, now: datetime
) -> Artifact:
    """An artifact quarantined, revoked, verified or active again; of a memory it is noted in the change log.

    Raises: as `registry.artifacts.set_use`.
    """
    check_said("reason", reason)
    before = find_artifact(session, acting.tenant_id, public_id).status
    row = set_use(session, vault, acting, public_id, status, reason=reason)
    rules = classes.in_force(session, acting.tenant_id).get(row.data_class)
    if rules is not None and rules.state == "memory":
        detail = {"before": before, "after": status}
        change = Change(change="status", by=acting.principal, bodies=({**detail, "reason": reason},), detail=detail)
        memory_log.note(session, vault, row, change, now)
    return row


def changes(session: Session, acting: Acting, public_id: str) -> list[dict[str, Any]]:
    """What happened to a memory and who did it. Raises: UnknownArtifact, NotAMemory."""
    row = find_artifact(session, acting.tenant_id, public_id)
    rules = classes.in_force(session, acting.tenant_id).get(row.data_class)
    if rules is not None and rules.state != "memory":
        raise NotAMemory(public_name(row))
    return memory_log.changes_of(session, acting.tenant_id, row)


def require_memory(session: Session, acting: Acting, public_id: str) -> tuple[Artifact, DataClass]:
    """The memory of a public id, which the token may use. Raises: UnknownArtifact, NotAMemory, OutsideTokenScope."""
    row = find_artifact(session, acting.tenant_id, public_id)
    rules = classes.get_class(session, acting.tenant_id, row.data_class)
    if rules.state != "memory":
        raise NotAMemory(public_name(row))
    if not acting.may_use_class(row.data_class):
        raise OutsideTokenScope("class", row.data_class)
    if not acting.may_use_store(row.store):
        raise OutsideTokenScope("store", row.store)
    return row, rules


def _judged(
    session: Session,
    vault: Vault,
    acting: Acting,
    rows: Sequence[Artifact],
    question: _Question,
) -> list[dict[str, Any]]:
    around = load_around(session, vault, acting.tenant_id, rows, question.people)
    lines = []
    for row in rows:
        if acting.may_use_class(row.data_class):
            line = _line(row, judge(memory_of(row, around, question.rules), question.asked, question.now))
        else:
            line = _absent(Verdict.OUT_OF_SCOPE, "the token may not use memories of this class")
            line["artifact"] = public_name(row)
        lines.append(line)
    return lines


def _line(row: Artifact, judged: Judged) -> dict[str, Any]:
    return {
        "artifact": public_name(row),
        "verdict": judged.verdict.value,
        "because": judged.because,
        "confidence_now": judged.confidence_now,
        "observed_at": row.observed_at,
        "source_type": row.source_type,
        "verification": row.verification,
    }


def _named(
    session: Session,
    vault: Vault,
    acting: Acting,
    named: Sequence[Any],
    question: _Question,
) -> list[dict[str, Any]]:
    """The verdicts of named memories in their order; ids and places that nobody registered are out of scope."""
    ids = [one for one in named if isinstance(one, str)]
    rows: dict[Any, Artifact] = dict(find_artifacts(session, acting.tenant_id, ids))
    places = places_of(session, vault, acting, named)
    rows |= at_places(session, acting.tenant_id, {place for place in places.values() if place is not None})
    gone = buried(session, acting.tenant_id, {place for place in places.values() if place not in rows})
    known = list({row.id: row for row in rows.values()}.values())
    judged = _judged(session, vault, acting, known, question)
    lines = {row.id: line for row, line in zip(known, judged, strict=True)}
    found = []
    for number, one in enumerate(named):
        key = one if isinstance(one, str) else places.get(number)
        if key in rows:
            found.append(lines[rows[key].id])
        elif key in gone:
            found.append(_absent(Verdict.ERASED, "it was erased"))
        else:
            found.append(_absent(Verdict.OUT_OF_SCOPE, "nothing of that name or place is known here"))
    return found


def _absent(verdict: Verdict, because: str) -> dict[str, Any]:
    return {
        "artifact": None,
        "verdict": verdict.value,
        "because": because,
        "confidence_now": None,
        "observed_at": None,
        "source_type": None,
    }


def _own(session: Session, acting: Acting, public_id: str) -> tuple[Artifact, DataClass]:
    row, rules = require_memory(session, acting, public_id)
    session.refresh(row, with_for_update=True)  # an erasure that began meanwhile is not to be overwritten
    if row.status in _GONE:
        raise MemoryGone(public_name(row), row.request_id)
    about = members(session, acting.tenant_id, (row.set_id,))[row.set_id]
    for fence in fenced(session, acting.tenant_id, about).values():
        raise MemoryGone(public_name(row), fence.request_id)
    return row, rules


def _scope(reader: Reader) -> dict[str, str]:
    scope = reader.raw("scope")
    if scope is None:
        return {}
    if not isinstance(scope, Mapping) or not all(isinstance(value, str) for value in scope.values()):
        reader.add("scope", "expected an object of names and texts")
        return {}
    return {str(name): value for name, value in scope.items()}


def check_said(name: str, said: object) -> None:
    """Refuse what cannot be kept as JSON. Raises: InvalidDeclaration."""
    faults = Faults("memory")
    try:
        size = len(canonical_json({name: said}))
        if size > MAX_OBSERVED_BYTES:
            faults.add(f"/{name}", f"{size} bytes of JSON, at most {MAX_OBSERVED_BYTES} are kept; cite the product")
    except (UnicodeEncodeError, OverflowError, RecursionError, ValueError, TypeError):
        faults.add(f"/{name}", "expected JSON of valid Unicode, whole numbers up to 64 bits, and little depth")
    faults.raise_any()


def _view(row: Artifact, rules: DataClass, noted: MemoryChange, now: datetime) -> dict[str, Any]:
    """A memory after a change: its status, its confidence, and the entries that tell of it."""
    return {
        "artifact": public_name(row),
        "status": row.status,
        "verification": row.verification,
        "source_type": row.source_type,
        "observed_at": row.observed_at,
        "confirmed_at": row.confirmed_at,
        "confidence_now": confidence_now(row, rules, now),
        "entries": list(noted.entries),
    }
