"""Plan and approve: freezes what will happen, and lets a second person say yes to exactly that.

Planning, in order:
 1. read the request and select everything about its verified persons in one transaction;
 2. decide each copy (`erasure.plan.build`) and capture what later steps need, outside transactions;
 3. put the plan's hash into the record (binding), then store the lines, sealed captures and the hash together, unless
    a request for the same was planned meanwhile: then this one is its duplicate.

Approving, in order:
 1. check the state, the hash and that the approver neither created the request nor checked its identity;
 2. put fence and approval into the record (binding);
 3. in one transaction: set the fence, select once more, add what is new of the same class, store and rule as a logged
    addendum, and take effect. Anything else lifts the fence and returns the request to its desk: that is committed,
    then refused as `StalePlan`, and refused again the same way until the request was planned anew.

A crash between record and transaction leaves an event without effect; the same call again makes a new one. An approval
that 3 refuses is taken back in the record, since a restored database would carry out what stands there; and what was
said of an earlier fence is in the record before the next one.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple, overload

from sqlmodel import Session

from erasure import answer_plans, captures, copies, history, restrict
from erasure.additions import Approved, addendum
from erasure.captures import Wanted
from erasure.desk import Desk, facts_of
from erasure.errors import ErasureError, IllegalMove, StalePlan
from erasure.facts import PlanInput
from erasure.fences import fence_body, lift_fence, sealed_limit, set_fence
from erasure.models import RequestRow
from erasure.overlaps import warnings_of
from erasure.parts import Parts
from erasure.persons import people_of
from erasure.plan import Plan, PlanCopy, build, instant_text
from erasure.request import BEFORE_APPROVAL, FINAL, CopyState, Facts, Move, Right, State, move
from erasure.sealed import RequestSeal
from erasure.selector import select_subjects
from erasure.spool import Spool
from erasure.standing import claim_of
from ledger.entry import Kind
from registry import bulk, subjects
from registry.acting import Acting
from registry.errors import RegistryError
from registry.keyed import hold_writer
from registry.merging import check_unambiguous

_NOBODY = "nobody by the verified names is known"
_NOTHING = "nothing of what the request is limited to is held of the verified names"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selected:
    row: RequestRow
    given: PlanInput
    nobody: bool


class _Planned(NamedTuple):
    plan: Plan
    sealed: Spool
    names: captures.Names
    verified: list[int]
    restricts: bool


class Planner:
    """The two verbs between a verified request and its execution."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._desk = Desk(parts)

    def plan(self, acting: Acting, request_id: str, now: datetime) -> dict[str, Any]:
        """The request planned, or ended as `duplicate`, or as `no_match` where it finds nobody or nothing to erase.

        Raises: IllegalMove.
        """
        with bulk.without_collector():
            selected = self._select(acting, request_id, now)
        if selected is None:
            return self._desk_view(acting, request_id)
        if selected.nobody:
            return self._end_without_match(acting, request_id, selected.given, now, is_known=False)
        verified, people = selected.row.subjects, selected.given.subjects
        restricts = selected.row.right == Right.OBJECTION
        with Spool() as sealed:
            if selected.row.right == Right.ERASURE:
                with bulk.without_collector():
                    plan = build(selected.given)
                if plan.is_empty:  # of a request that is limited: there is nothing to approve, and nothing would end it
                    return self._end_without_match(acting, request_id, selected.given, now, is_known=True)
                del selected  # as large as the plan
                self._capture(acting.tenant_id, request_id, plan, sealed)
            else:
                # What destroys nothing finds its places again when it is carried out.
                plan = answer_plans.plan_of(self._parts, selected.row, selected.given, now)
                del selected
            names = captures.names_of(self._parts, acting.tenant_id, people)
            return self._freeze(acting, request_id, _Planned(plan, sealed, names, verified, restricts), now)

    def _freeze(self, acting: Acting, request_id: str, planned: _Planned, now: datetime) -> dict[str, Any]:
        """Step 3: the hash into the record, then all of the plan into the tables. Raises: IllegalMove."""
        plan = planned.plan
        plan_hash = plan.hash
        states: dict[str, int] = {}
        for copy in plan.copies:
            states[copy.state] = states.get(copy.state, 0) + 1
        body = {"request": request_id, "plan_hash": plan_hash, "copies": len(plan.copies), "states": states}
        entry_id = self._parts.record.event(acting.tenant_id, Kind.REQUEST_PLANNED, body, now)
        if planned.restricts:
            # Until it is decided whose reasons weigh more (GDPR Art. 18(1)(d)).
            with self._parts.transactions(acting.tenant_id, write=False) as session:
                told = restrict.body_of(session, history.load(session, acting.tenant_id, request_id))
            self._parts.record.event(acting.tenant_id, Kind.RESTRICTION_SET, told, now)
        with self._parts.transactions(acting.tenant_id) as session:
            row = history.load(session, acting.tenant_id, request_id, lock=True)
            if row.subjects != planned.verified:
                raise IllegalMove(row.state, Move.PLAN, "an identifier was verified meanwhile")
            state = move(State(row.state), Move.PLAN, facts_of(row, acting.principal, now))
            if self._was_overtaken(session, row, acting, restricts=planned.restricts, now=now):
                return history.view_of(session, row)
            row.state = state
            self._store(session, row, plan, planned.sealed, planned.names)
            row.plan_hash = plan_hash
            row.details = {**row.details, "planned_entry": entry_id}
            session.add(row)
            if planned.restricts:
                restrict.begin(session, row)
            detail = {"state": row.state, "plan_hash": plan_hash, "copies": len(plan.copies)}
            history.add_event(
                session, row, event="planned", actor=acting.principal, now=now, detail=detail, entry_id=entry_id
            )
            return history.view_of(session, row)

    def approve(self, acting: Acting, request_id: str, plan_hash: str, now: datetime) -> dict[str, Any]:
        """The request approved and fenced. Raises: StalePlan, SeparateDuties, IllegalMove."""
        with self._parts.transactions(acting.tenant_id, write=False) as session:  # 1
            row = history.load(session, acting.tenant_id, request_id)
            move(State(row.state), Move.APPROVE, self._approval(session, row, acting, plan_hash, now))
            right = row.right
            ids = subjects.opaque_ids(session, acting.tenant_id, row.subjects)
        if right != Right.ERASURE:
            return self._approve_answer(acting, request_id, plan_hash, now)
        self._parts.record.ship_outbox(acting.tenant_id, now)
        limit = None
        if row.details.get("scopes") is not None:
            with self._parts.transactions(acting.tenant_id) as session:
                limit = sealed_limit(session, self._parts.vault, row, row.details["scopes"])
        fence = fence_body(row, sorted(ids.values()), limit)
        fence_entry = self._parts.record.event(acting.tenant_id, Kind.FENCE_SET, fence, now)  # 2
        approval = {
            "request": request_id,
            "plan_hash": plan_hash,
            "by": acting.principal,
            "approval": self._parts.approval,
            "at": instant_text(now),
        }
        entry_id = self._parts.record.event(acting.tenant_id, Kind.REQUEST_APPROVED, approval, now)
        try:
            view, strange = self._apply(acting, request_id, plan_hash, fence_entry, entry_id, now)  # 3
        except (ErasureError, RegistryError):
            self._take_back(acting.tenant_id, request_id, now)
            raise
        if strange:  # refused only now: what sent it back is committed
            self._parts.record.ship_outbox(acting.tenant_id, now)
            raise StalePlan(None, plan_hash, strange)
        return view

    def _apply(  # noqa: PLR0917 - called once
        self, acting: Acting, request_id: str, plan_hash: str, fence_entry: str, entry_id: str, now: datetime
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The request fenced and approved, or what sent its plan back. Raises: what makes an approval impossible."""
        with self._parts.transactions(acting.tenant_id) as session:
            row = history.load(session, acting.tenant_id, request_id, lock=True)
            state = move(State(row.state), Move.APPROVE, self._approval(session, row, acting, plan_hash, now))
            check_unambiguous(session, acting.tenant_id, row.subjects)
            self._check_people(session, row, acting)
            set_fence(session, row, now)
            with bulk.without_collector():
                added, strange = self._look_again(session, row, now)
            if strange:
                self._send_back(session, row, acting, strange, now)
            else:
                row.fence_at = now
                facts = {"fence_entry": fence_entry, "approved_entry": entry_id, "approval": self._parts.approval}
                told = {"addendum": len(added)} | _warned(session, row)
                self._take_effect(session, row, state=state, acting=acting, facts=facts, told=told, now=now)
            return history.view_of(session, row), strange

    def _check_people(self, session: Session, row: RequestRow, acting: Acting) -> None:
        """Refuse to approve a plan about others than those who are the person by now. Raises: IllegalMove."""
        planned = frozenset(row.subjects)
        self._desk.name_anew(session, row, acting)
        if people_of(session, row) != planned:
            raise IllegalMove(row.state, Move.APPROVE, "people were merged, told apart or seen first since; plan again")

    def _take_back(self, tenant_id: int, request_id: str, now: datetime) -> None:
        """Tell the record that fence and approval did not take effect, unless those of somebody else did."""
        with self._parts.transactions(tenant_id) as session:
            row = history.load(session, tenant_id, request_id, lock=True)
            if row.state not in BEFORE_APPROVAL | FINAL:
                return
            body = {"request": request_id, "because": "the approval was refused"}
            self._parts.record.announce(session, tenant_id, Kind.FENCE_LIFTED, body, now)
        self._parts.record.ship_outbox(tenant_id, now)

    def _take_effect(
        self,
        session: Session,
        row: RequestRow,
        *,
        state: State,
        acting: Acting,
        facts: Mapping[str, Any],
        told: Mapping[str, Any],
        now: datetime,
    ) -> None:
        row.state = state
        entry_id = facts["approved_entry"]
        line = {"by": acting.principal, "at": instant_text(now), "plan_hash": row.plan_hash, "entry": entry_id}
        row.approvals = [*row.approvals, line]
        row.details = {**row.details, **facts}
        session.add(row)
        detail = {"state": row.state, "plan_hash": row.plan_hash, **told}
        history.add_event(
            session, row, event="approved", actor=acting.principal, now=now, detail=detail, entry_id=entry_id
        )

    def _approve_answer(self, acting: Acting, request_id: str, plan_hash: str, now: datetime) -> dict[str, Any]:
        """Approve what destroys nothing: no fence stands before a person who asks for their data."""
        body = {"request": request_id, "plan_hash": plan_hash, "by": acting.principal}
        body |= {"approval": self._parts.approval, "at": instant_text(now)}
        entry_id = self._parts.record.event(acting.tenant_id, Kind.REQUEST_APPROVED, body, now)
        with self._parts.transactions(acting.tenant_id) as session:
            row = history.load(session, acting.tenant_id, request_id, lock=True)
            state = move(State(row.state), Move.APPROVE, self._approval(session, row, acting, plan_hash, now))
            check_unambiguous(session, acting.tenant_id, row.subjects)
            self._check_people(session, row, acting)
            facts = {"approved_entry": entry_id}
            self._take_effect(session, row, state=state, acting=acting, facts=facts, told={}, now=now)
            return history.view_of(session, row)

    def _select(self, acting: Acting, request_id: str, now: datetime) -> _Selected | None:
        with self._parts.transactions(acting.tenant_id) as session:
            row = history.load(session, acting.tenant_id, request_id, lock=True)
            move(State(row.state), Move.PLAN, facts_of(row, acting.principal, now))
            if row.state == State.VERIFIED and self._desk.find_duplicate(session, row, acting, now):
                return None
            check_unambiguous(session, acting.tenant_id, row.subjects)
            self._desk.name_anew(session, row, acting)
            people = people_of(session, row)
            row.subjects = sorted(people)
            session.add(row)
            given = select_subjects(session, acting.tenant_id, people, owner=request_id, claim=claim_of(row), now=now)
            # Who is known has an identity key; somebody whose erasure is through has nothing left to plan.
            nobody = not (given.artifacts or given.keys) if row.right == Right.ERASURE else not people
            if (
                row.state == State.VERIFIED
                and not nobody
                and self._desk.find_duplicate(session, row, acting, now, when="selected")
            ):
                return None
            return _Selected(row=row, given=given, nobody=nobody)

    def _was_overtaken(
        self, session: Session, row: RequestRow, acting: Acting, *, restricts: bool, now: datetime
    ) -> bool:
        """Whether a request for the same was planned since the selection; one plan of a tenant is stored at a time."""
        hold_writer(session, row.tenant_id)
        if row.state != State.VERIFIED:
            return False
        if not self._desk.find_duplicate(session, row, acting, now, when="recorded"):
            return False
        if restricts:
            body = {"request": row.request_id}
            self._parts.record.announce(session, row.tenant_id, Kind.RESTRICTION_LIFTED, body, now)
        return True

    def _capture(self, tenant_id: int, request_id: str, plan: Plan, spool: Spool) -> None:
        """Read what later steps need of each copy, sealed as soon as it is read."""
        wanted = wanted_of(plan.copies)
        for found in captures.capture_in_pieces(self._parts, tenant_id, wanted):
            with bulk.without_collector(), self._parts.transactions(tenant_id) as session:
                seal = request_seal(session, self._parts, history.load(session, tenant_id, request_id))
                for place, capture in found:
                    copy = wanted.copy(place)
                    spool.put(copy.copy_no, seal.seal_capture(capture, copy.ref))

    def _store(self, session: Session, row: RequestRow, plan: Plan, spool: Spool, names: captures.Names) -> None:
        seal = request_seal(session, self._parts, row)
        said = seal.open("said", row.sealed)
        row.sealed = seal.seal("said", {**said, "names": list(names.identifiers)})
        history.drop_copies(session, row.tenant_id, row.request_id)
        history.put_copies(session, row.tenant_id, row.request_id, plan.copies, lambda copy: spool.get(copy.copy_no))
        row.details = {
            **row.details,
            "plan": {
                "not_covered": [dict(line) for line in plan.not_covered],
                "coverage": [dict(line) for line in plan.coverage],
                "collateral": dict(plan.collateral),
            },
        }

    def _look_again(
        self, session: Session, row: RequestRow, now: datetime
    ) -> tuple[tuple[PlanCopy, ...], tuple[str, ...]]:
        """What came between plan and fence: stored as an addendum, or why it needs another approval."""
        fresh = build(
            select_subjects(
                session,
                row.tenant_id,
                frozenset(row.subjects),
                owner=row.request_id,
                claim=claim_of(row),
                now=now,
            )
        )
        pages = copies.pages(session, Approved, copies.of(row.tenant_id, row.request_id))
        more = addendum(chain.from_iterable(pages), fresh)
        if more.needs_approval or not more.added:
            return (), more.needs_approval
        # What they hold is read when they are erased: no store is asked inside a transaction.
        seal = request_seal(session, self._parts, row)
        places = captures.sealed_places(session, self._parts, row.tenant_id, seal, more.added)
        history.put_copies(session, row.tenant_id, row.request_id, more.added, places)
        body = {"request": row.request_id, "addendum": [copy.ref for copy in more.added]}
        entry_id = self._parts.record.announce(session, row.tenant_id, Kind.REQUEST_STATE, body, now)
        row.details = {**row.details, "addenda": [*row.details.get("addenda", []), entry_id]}
        return more.added, ()

    def _send_back(
        self, session: Session, row: RequestRow, acting: Acting, strange: Sequence[str], now: datetime
    ) -> None:
        lift_fence(session, row)
        body = {"request": row.request_id, "because": "the plan no longer covers what is there"}
        entry_id = self._parts.record.announce(session, row.tenant_id, Kind.FENCE_LIFTED, body, now)
        row.plan_hash = None
        session.add(row)
        detail = {"state": row.state, "new": list(strange)}
        history.add_event(
            session, row, event="plan_outdated", actor=acting.principal, now=now, detail=detail, entry_id=entry_id
        )

    def _end_without_match(
        self, acting: Acting, request_id: str, given: PlanInput, now: datetime, *, is_known: bool
    ) -> dict[str, Any]:
        """The request ended with where was looked: nobody is known, or nothing is held of what it is limited to."""
        with self._parts.transactions(acting.tenant_id) as session:
            row = history.load(session, acting.tenant_id, request_id, lock=True)
            row.state = move(State(row.state), Move.FIND_NOBODY, facts_of(row, acting.principal, now))
            row.completed_at = now
            statement = {
                "at": instant_text(now),
                "known": is_known,
                "text": f"{_NOTHING if is_known else _NOBODY}; this is no certificate of erasure",
                "stores": sorted(given.stores),
                "data_classes": sorted(given.classes),
            }
            row.details = {**row.details, "statement": statement}
            session.add(row)
            body = {"request": request_id, "state": row.state, "stores": len(given.stores)}
            entry_id = self._parts.record.announce(session, acting.tenant_id, Kind.REQUEST_STATE, body, now)
            history.add_event(
                session, row, event="no_match", actor=acting.principal, now=now, detail={"state": row.state},
                entry_id=entry_id,
            )  # fmt: skip
            return history.view_of(session, row)

    def _approval(self, session: Session, row: RequestRow, acting: Acting, plan_hash: str, now: datetime) -> Facts:
        if row.plan_hash is None:
            raise StalePlan(None, plan_hash, history.outdated(session, row))
        return facts_of(row, acting.principal, now, approval=self._parts.approval, given_hash=plan_hash)

    def _desk_view(self, acting: Acting, request_id: str) -> dict[str, Any]:
        with self._parts.transactions(acting.tenant_id, write=False) as session:
            return history.view_of(session, history.load(session, acting.tenant_id, request_id))


def _warned(session: Session, row: RequestRow) -> dict[str, Any]:
    told = [line["request"] for line in warnings_of(session, row)]
    return {"warned_of": told} if told else {}


class _Wants(Sequence[Wanted]):
    """The artifacts of a plan whose places are to be captured, made when they are looked at."""

    def __init__(self, lines: Sequence[PlanCopy]) -> None:
        self._lines = lines
        self._places = array("I", (place for place, copy in enumerate(lines) if copy.artifact_id is not None))
        self._compared = any(copy.action == "regenerate" for copy in lines)

    def copy(self, place: int) -> PlanCopy:
        """The line behind one of them."""
        return self._lines[self._places[place]]

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> Wanted: ...

    @overload
    def __getitem__(self, place: slice) -> list[Wanted]: ...

    def __getitem__(self, place: int | slice) -> Wanted | list[Wanted]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        copy = self.copy(place)
        return Wanted(
            ref=copy.ref,
            artifact_id=copy.artifact_id or 0,
            store=copy.store,
            built=copy.state != "not_covered",
            goes=copy.state == CopyState.PENDING,
            level=copies.level_of(copy.required),
            compared=self._compared,
        )


def wanted_of(lines: Sequence[PlanCopy]) -> _Wants:
    """The artifacts of a plan whose places are to be captured."""
    return _Wants(lines)


def request_seal(session: Session, parts: Parts, row: RequestRow) -> RequestSeal:
    """The seal of a request."""
    return RequestSeal(session, parts.vault, row.tenant_id, owner=row.request_id, key_no=row.request_no)
