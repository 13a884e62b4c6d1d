"""«Forget this»: a person's own request for one memory and all that was made from it, in one call.

Forgetting, in order:
 1. read the memory, whose it is and what was made from it; decide each copy (`erasure.plan.build`);
 2. capture what later steps need, outside transactions;
 3. put plan, fence and approval into the record (binding);
 4. one transaction: the request with its plan, approved; from its commit on no verdict lets the memory be used.
A crash before 4 leaves events without effect, and the same call again makes others. The worker does the rest, by the
same code as any erasure, to the same certificate.

Guarantees: it is approved by the person's own word, which an agent passes on, and by nobody else; so it reaches only
what is plainly theirs. A copy that is also about others, or that another token registered and this memory does not
explain alone, waits for a human and is out of use meanwhile. Holds, restrictions, floors and exemptions stand as in
every erasure. No key is destroyed and no person fenced: the record of what was said is another request. Source: GDPR
Art. 17(1), DESIGN §5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlmodel import Session

from erasure import captures, history
from erasure.certificate import scope_of
from erasure.errors import InvalidRequest
from erasure.facts import ArtifactFact, PlanInput
from erasure.models import RequestRow, RequestSubject
from erasure.parts import Parts
from erasure.plan import Plan, PlanCopy, build, instant_text
from erasure.planning import request_seal, wanted_of
from erasure.request import CopyState, Facts, Move, Right, State, move
from erasure.sealed import Capture
from erasure.selector import select_artifacts
from erasure.standing import claim_of
from ledger.entry import Kind
from registry import artifacts, classes, subjects
from registry.acting import Acting
from registry.artifact_rows import by_numbers, public_name
from registry.graph import children_of
from registry.identifiers import Identifier, parse_subject
from registry.ids import new_id, random_hex
from registry.memory_use import check_said, require_memory
from registry.models import Artifact, Tenant
from registry.people import expand
from registry.sets import members
from registry.subjects import SubjectName
from retention.calendar import deadlines

THE_PERSON = "subject"
"""The mode of approval: nobody's but the person's own word."""
MAX_CONE = 10_000
_GONE = ("erasing", "erased")
_SAID = "said to the agent"
_CALIFORNIA = ("US", "US-CA")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """One call, read and decided; nothing is written yet."""

    row: RequestRow
    memory: str
    plan: Plan
    identifier: Identifier
    names: tuple[str, ...]
    found: Mapping[str, Capture]


class Forgetting:
    """The verb of API §4."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def forget(
        self, acting: Acting, public_id: str, *, subject: str | None, source_ref: str | None, now: datetime
    ) -> dict[str, Any]:
        """The request that forgets it, approved; the one that does so already where there is one.

        Raises: UnknownArtifact, NotAMemory, OutsideTokenScope, InvalidRequest, InvalidDeclaration.
        """
        check_said("source_ref", source_ref)
        with self._parts.transactions(acting.tenant_id, write=False) as session:  # 1
            root, _ = require_memory(session, acting, public_id)
            if root.status in _GONE:
                return {"request": root.request_id, "artifact": public_name(root), "status": root.status}
            wish = self._read(session, acting, root, subject=subject, now=now)
        found = captures.capture(self._parts, acting.tenant_id, wanted_of(wish.plan.copies))  # 2
        wish = replace(wish, found=found)
        details = self._say(acting, wish, now)  # 3
        with self._parts.transactions(acting.tenant_id) as session:  # 4
            root, _ = require_memory(session, acting, public_id)
            if root.status in _GONE:
                return {"request": root.request_id, "artifact": public_name(root), "status": root.status}
            self._write(session, acting, wish, details, source_ref=source_ref, now=now)
            view = history.view_of(session, wish.row)
        return {"request": wish.row.request_id, "artifact": wish.memory, "status": "erasing", **view}

    # ── 1. read and decide ────────────────────────────────────────────────────────────────────────────────────

    def _read(self, session: Session, acting: Acting, root: Artifact, *, subject: str | None, now: datetime) -> _Wish:
        people = _who_asks(session, self._parts, acting, root, subject)
        known = subjects.names_of(session, self._parts.vault, acting.tenant_id, people)
        texts = sorted({text for names in known.values() for name in names for text in (name.text, name.given)})
        identifier = parse_subject(subject) if subject is not None else _name_of(known)
        cone = _cone(session, acting.tenant_id, root, people)
        row = _request(session, acting, root, cone, people, now=now)
        given = select_artifacts(
            session, acting.tenant_id, cone, owner=row.request_id, claim=claim_of(row), now=now, subjects=people
        )
        plan = _for_humans(session, acting, root, given, build(given))
        return _Wish(row=row, memory=public_name(root), plan=plan, identifier=identifier, names=tuple(texts), found={})

    # ── 3. say it ─────────────────────────────────────────────────────────────────────────────────────────────

    def _say(self, acting: Acting, wish: _Wish, now: datetime) -> dict[str, Any]:
        """Plan, fence and approval in the record; what the request keeps of them."""
        request, plan = wish.row.request_id, wish.plan
        states: dict[str, int] = {}
        for copy in plan.copies:
            states[copy.state] = states.get(copy.state, 0) + 1
        planned = {"request": request, "plan_hash": plan.hash, "copies": len(plan.copies), "states": states}
        going = sorted(
            copy.ref for copy in plan.copies if copy.state in (CopyState.PENDING, CopyState.AWAITING_EXTERNAL)
        )
        fence = {"request": request, "artifacts": going}
        approval = {
            "request": request,
            "plan_hash": plan.hash,
            "by": heard_by(acting),
            "approval": THE_PERSON,
            "at": instant_text(now),
            "through": acting.principal,
        }
        record = self._parts.record
        planned_entry = record.event(acting.tenant_id, Kind.REQUEST_PLANNED, planned, now)
        fence_entry = record.event(acting.tenant_id, Kind.FENCE_SET, fence, now)
        approved_entry = record.event(acting.tenant_id, Kind.REQUEST_APPROVED, approval, now)
        return {
            "planned_entry": planned_entry,
            "fence_entry": fence_entry,
            "approved_entry": approved_entry,
            "approval": THE_PERSON,
            "plan": {
                "not_covered": [],
                "coverage": _coverage(plan),
                "collateral": dict(plan.collateral),
            },
        }

    # ── 4. write ──────────────────────────────────────────────────────────────────────────────────────────────

    def _write(
        self,
        session: Session,
        acting: Acting,
        wish: _Wish,
        details: Mapping[str, Any],
        *,
        source_ref: str | None,
        now: datetime,
    ) -> None:
        row, plan = wish.row, wish.plan
        at = instant_text(now)
        given = {"text": wish.identifier.text, "given": wish.identifier.given}
        identity = {"subject": 0, "method": _SAID, "evidence": source_ref, "by": acting.principal, "at": at}
        said = {
            "subjects": [given],
            "channel": "agent",
            "note": None,
            "corrections": None,
            "identity": [identity],
            "names": list(wish.names),
        }
        row.details = {**row.details, **details}
        row.plan_hash, row.fence_at = plan.hash, now
        approved = {"by": heard_by(acting), "at": at, "plan_hash": plan.hash, "entry": details["approved_entry"]}
        row.approvals = [approved]
        facts = Facts(
            actor=THE_PERSON,
            now=now,
            created_by=row.created_by,
            identity_by=frozenset(row.identity_by),
            approval=self._parts.approval,
            plan_hash=plan.hash,
            given_hash=plan.hash,
        )
        session.add(row)
        session.flush()
        lookup = subjects.lookup_of(self._parts.vault, acting.tenant_id, wish.identifier)
        session.add(RequestSubject(tenant_id=row.tenant_id, lookup=lookup, request_id=row.request_id))
        seal = request_seal(session, self._parts, row)
        row.sealed = seal.seal("said", said)
        sealed = {ref: seal.seal_capture(capture, ref) for ref, capture in wish.found.items()}
        history.put_copies(session, row.tenant_id, row.request_id, plan.copies, sealed)
        self._tell(session, acting, row, details, now)
        row.state = move(move(State.VERIFIED, Move.PLAN, facts), Move.APPROVE, facts)
        session.add(row)
        session.flush()  # marking expires what is not written yet
        _out_of_use(session, row, plan.copies)

    def _tell(
        self, session: Session, acting: Acting, row: RequestRow, details: Mapping[str, Any], now: datetime
    ) -> None:
        """The lines of the request's history, each with its event."""
        received = {
            "request": row.request_id,
            "right": row.right,
            "regulation": row.regulation,
            "received_at": instant_text(row.received_at),
            "due_at": instant_text(row.due_at),
            "subjects": 1,
            "scope": scope_of(row.details),
        }
        identity = {"request": row.request_id, "identifier": 0, "of": 1, "verified": 1}
        announce = self._parts.record.announce
        entries = (
            ("received", announce(session, row.tenant_id, Kind.REQUEST_RECEIVED, received, now), acting.principal),
            ("identity", announce(session, row.tenant_id, Kind.REQUEST_IDENTITY, identity, now), acting.principal),
            ("planned", details["planned_entry"], acting.principal),
            ("approved", details["approved_entry"], heard_by(acting)),
        )
        for event, entry_id, actor in entries:
            history.add_event(
                session, row, event=event, actor=actor, now=now, detail={"plan_hash": row.plan_hash}, entry_id=entry_id
            )


def heard_by(acting: Acting) -> str:
    """Who approves, as approvals and certificates print it: the person, as far as whoever heard it says so.

    That the person said it is stated by the caller and proven by nothing; so the caller's name stands beside it.
    """
    return f"{THE_PERSON} through {acting.principal}"


def _who_asks(session: Session, parts: Parts, acting: Acting, root: Artifact, subject: str | None) -> frozenset[int]:
    """Everybody who is the person that asks. Raises: InvalidRequest."""
    about = members(session, acting.tenant_id, (root.set_id,))[root.set_id]
    if subject is not None:
        identifier = parse_subject(subject)
        people = subjects.find_people(session, parts.vault, acting, (identifier,)).get(identifier.text, frozenset())
        if about.isdisjoint(people):
            raise InvalidRequest("/subject", "the memory is not about this person")
        return frozenset(people)
    if not about:
        raise InvalidRequest("/subject", "the memory is about nobody; its class's retention ends it")
    people = expand(session, acting.tenant_id, sorted(about)[:1])
    if not about <= people:
        raise InvalidRequest("/subject", "the memory is about several people; name the one who asks")
    return people


def _name_of(known: Mapping[int, Sequence[SubjectName]]) -> Identifier:
    texts = sorted(name.text for names in known.values() for name in names)
    if not texts:
        raise InvalidRequest("/subject", "no readable name of this person is left; name the one who asks")
    return parse_subject(texts[0])


def _cone(session: Session, tenant_id: int, root: Artifact, people: frozenset[int]) -> list[int]:
    """The memory and everything made from it that is about the person, level by level. Raises: InvalidRequest."""
    seen, frontier = {root.id}, {root.id}
    while frontier:
        below = {child for found in children_of(session, tenant_id, frontier).values() for child in found} - seen
        rows = by_numbers(session, tenant_id, below)
        sets = members(session, tenant_id, {row.set_id for row in rows.values()})
        frontier = {
            row.id for row in rows.values() if row.status != "erased" and not sets[row.set_id].isdisjoint(people)
        }
        seen |= frontier
        if len(seen) > MAX_CONE:
            raise InvalidRequest("", f"more than {MAX_CONE} copies were made from it; send an erasure request instead")
    return sorted(seen)


def _request(
    session: Session, acting: Acting, root: Artifact, cone: Sequence[int], people: frozenset[int], *, now: datetime
) -> RequestRow:
    """The request, not yet in the session."""
    tenant = session.get(Tenant, acting.tenant_id)
    controller = {} if tenant is None else tenant.controller
    timezone, jurisdiction = str(controller.get("timezone") or "UTC"), controller.get("jurisdiction")
    regulation = "ccpa" if jurisdiction in _CALIFORNIA else "gdpr"
    dates = deadlines(regulation, now, timezone=timezone, jurisdiction=jurisdiction)
    return RequestRow(
        tenant_id=acting.tenant_id,
        request_id=f"req_{random_hex()}",
        request_no=new_id(now),
        right=Right.ERASURE,
        regulation=regulation,
        jurisdiction=jurisdiction,
        timezone=timezone,
        state=State.VERIFIED,
        subjects=sorted(people),
        received_at=now,
        due_at=dates.due_at,
        acknowledge_by=dates.acknowledge_by,
        created_by=acting.principal,
        identity_by=[acting.principal],
        details={"artifacts": list(cone), "roots": [root.id]},
        created_at=now,
    )


def _for_humans(session: Session, acting: Acting, root: Artifact, given: PlanInput, plan: Plan) -> Plan:
    """The plan with what the person alone cannot decide left to a human."""
    rows = by_numbers(session, acting.tenant_id, [fact.artifact_id for fact in given.artifacts])
    facts = {fact.artifact_id: fact for fact in given.artifacts}
    personal = {name for name, one in classes.in_force(session, acting.tenant_id).items() if one.personal}
    cone = frozenset(rows)
    tokens = {root.registered_by, acting.token_id}
    lines = []
    for line in plan.copies:
        why = None
        if line.state == CopyState.PENDING and line.artifact_id is not None:
            row = rows[line.artifact_id]
            foreign = row.registered_by not in tokens and not _explained(
                facts[row.id], cone, row.data_class in personal
            )
            if line.collateral is not None:
                why = "also about others: a human decides"
            elif foreign:
                why = "registered by another token, and not from this memory alone: a human decides"
        lines.append(line if why is None else replace(line, state=CopyState.AWAITING_HUMAN, detail=why))
    return replace(plan, copies=tuple(lines))


def _explained(fact: ArtifactFact, cone: frozenset[int], personal: bool) -> bool:  # noqa: FBT001 - one of three facts
    """Whether it is about the person only because it was made from what is forgotten."""
    return (
        personal
        and not fact.item.own_subjects
        and all(source.kind == "a" and source.ref in cone for source in fact.sources)
    )


def _coverage(plan: Plan) -> list[dict[str, str]]:
    """Only what the request reaches was looked at, and it says so of everything else."""
    reached = {copy.store for copy in plan.copies} | {copy.data_class for copy in plan.copies}
    return [
        {**line, "examined": "yes", "why": "the memory and what was made from it"}
        if line["name"] in reached
        else {**line, "examined": "no", "why": "the person asked to forget one memory"}
        for line in plan.coverage
    ]


def _out_of_use(session: Session, row: RequestRow, copies: Sequence[PlanCopy]) -> None:
    """From here on no verdict lets any of it be used."""
    ids = {state: [copy.artifact_id for copy in copies if copy.state == state and copy.artifact_id is not None]
           for state in (CopyState.PENDING, CopyState.AWAITING_EXTERNAL, CopyState.AWAITING_HUMAN)}  # fmt: skip
    going = ids[CopyState.PENDING] + ids[CopyState.AWAITING_EXTERNAL]
    artifacts.mark_status(session, row.tenant_id, going, "erasing", request_id=row.request_id)
    waiting = by_numbers(session, row.tenant_id, ids[CopyState.AWAITING_HUMAN])
    live = [one.id for one in waiting.values() if one.status == "live"]
    artifacts.mark_status(session, row.tenant_id, live, "quarantined", request_id=row.request_id)
