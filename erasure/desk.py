"""The legal desk: what people do to a request, and what they see of it.

Guarantees: every verb goes through `erasure.request.move`, writes its line of history in the same transaction and tells
the record. What a person said is sealed before it is stored. Approval and planning are in `erasure.planning`; nothing
here destroys anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure import copies, history, recipients, restrict
from erasure.apart import tell_of_duplicates
from erasure.certificate import scope_of
from erasure.errors import IllegalMove, InvalidRequest, UnknownRequest
from erasure.fences import lift_fence
from erasure.intake import Intake, parse
from erasure.left_alone import extent_of
from erasure.models import CopyRow, RequestRow, RequestSubject
from erasure.overlaps import IDENTIFIERS
from erasure.parts import Parts
from erasure.persons import name_people, named_of
from erasure.plan import instant_text
from erasure.request import (
    CONTENDING,
    FINAL,
    NOTICE_KINDS,
    OPEN,
    CopyState,
    Facts,
    Move,
    Right,
    Rival,
    State,
    check_second_person,
    is_duplicate,
    move,
)
from erasure.sealed import RequestSeal
from ledger.entry import Kind
from registry import classes as registered
from registry import subjects
from registry.acting import Acting
from registry.errors import MalformedSubject
from registry.identifiers import parse_subject
from registry.ids import new_id, random_hex
from registry.keyed import Lookups
from registry.models import Tenant as TenantRow
from retention.calendar import deadlines, paused_due_at

_ERASING = {
    "erase": CopyState.PENDING,
    "erased": CopyState.ERASED_LOGICAL,
    "retained": CopyState.RETAINED,
    "failed": CopyState.FAILED,
}
_EXPORTING = {"release": CopyState.PENDING, "withhold": CopyState.WITHHELD, "failed": CopyState.FAILED}
_CORRECTING = {
    "corrected": CopyState.CORRECTED,
    "unchanged": CopyState.UNCHANGED,
    "failed": CopyState.FAILED,
}
_SETTLEMENTS = {
    Right.ERASURE: _ERASING,
    Right.ACCESS: _EXPORTING,
    Right.PORTABILITY: _EXPORTING,
    Right.RECTIFICATION: _CORRECTING,
}
"""What a human can say of a copy, by right; `erased` is a claim that `confirm` still has to see."""
_STOOD = "stood_seconds"
"""How long the clock stood still, each time: both dates are later by the whole days of their sum."""
_BROKEN = (CopyState.FAILED, CopyState.UNREACHABLE, CopyState.NOT_COVERED)


class Desk:
    """The verbs of API §6 but plan and approve."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def create(self, acting: Acting, spec: Mapping[str, Any], now: datetime) -> dict[str, Any]:
        """The new request, whether or not anybody is known. Raises: InvalidRequest, NotBuilt, calendar errors."""
        with self._parts.transactions(acting.tenant_id) as session:
            tenant = session.get(TenantRow, acting.tenant_id)
            controller = {} if tenant is None else tenant.controller
            intake = parse(
                spec,
                now,
                timezone=str(controller.get("timezone") or "UTC"),
                jurisdiction=controller.get("jurisdiction"),
            )
            row = RequestRow(
                tenant_id=acting.tenant_id,
                request_id=f"req_{random_hex()}",
                request_no=new_id(now),
                right=intake.right,
                regulation=intake.regulation,
                jurisdiction=intake.jurisdiction,
                timezone=intake.timezone,
                state=State.RECEIVED,
                received_at=intake.received_at,
                due_at=intake.dates.due_at,
                acknowledge_by=intake.dates.acknowledge_by,
                created_by=acting.principal,
                created_at=now,
            )
            said = {
                "subjects": [{"text": one.text, "given": one.given} for one in intake.identifiers],
                "channel": intake.channel,
                "note": intake.note,
                "corrections": intake.corrections or None,
                "conversation": intake.conversation,
                "identity": [],
            }
            row.details = {**self._limits(session, acting, intake), IDENTIFIERS: [0, len(intake.identifiers)]}
            row.sealed = self._seal(session, row).seal("said", said)
            session.add(row)
            for one in intake.identifiers:
                lookup = subjects.lookup_of(self._parts.vault, acting.tenant_id, one)
                session.add(RequestSubject(tenant_id=acting.tenant_id, lookup=lookup, request_id=row.request_id))
            session.flush()
            body = {
                "request": row.request_id,
                "right": row.right,
                "regulation": row.regulation,
                "received_at": instant_text(row.received_at),
                "due_at": instant_text(row.due_at),
                "jurisdiction": row.jurisdiction,
                "timezone": row.timezone,
                "subjects": len(intake.identifiers),
                "scope": scope_of(row.details),
            }
            self._tell(session, row, acting, now, event="received", kind=Kind.REQUEST_RECEIVED, body=body)
            return history.view_of(session, row)

    def verify_identity(
        self, acting: Acting, request_id: str, *, identifier: str, method: str, evidence: str | None, now: datetime
    ) -> dict[str, Any]:
        """The request after one of its identifiers was checked; unverified ones stay out of every plan."""
        with self._parts.transactions(acting.tenant_id) as session:
            row = history.load(session, acting.tenant_id, request_id, lock=True)
            seal = self._seal(session, row)
            said = seal.open("said", row.sealed)
            texts = [one["text"] for one in said["subjects"]]
            try:
                wanted = parse_subject(identifier)
            except MalformedSubject as error:
                raise InvalidRequest("/identifier", error.detail) from error
            if wanted.text not in texts:
                raise InvalidRequest("/identifier", "the request does not name this identifier")
            state = move(State(row.state), Move.VERIFY, self._facts(row, acting, now))
            number = texts.index(wanted.text)
            said["identity"].append(
                {"subject": number, "method": method, "evidence": evidence, "by": acting.principal,
                 "at": instant_text(now)}
            )  # fmt: skip
            row.sealed = seal.seal("said", said)
            verified = sorted({line["subject"] for line in said["identity"]})
            known = subjects.find(
                session, self._parts.vault, acting, [parse_subject(texts[place]) for place in verified]
            )
            name_people(session, row, known.values())
            row.identity_by = sorted({*row.identity_by, acting.principal})
            row.details = {**row.details, IDENTIFIERS: [len(verified), len(texts)]}
            row.plan_hash = None
            row.state = state
            body = {"request": request_id, "identifier": number, "of": len(texts), "verified": len(verified)}
            self._tell(session, row, acting, now, event="identity", kind=Kind.REQUEST_IDENTITY, body=body)
            if len(verified) == len(texts):
                self.find_duplicate(session, row, acting, now)
            return history.view_of(session, row)

    def name_anew(self, session: Session, row: RequestRow, acting: Acting) -> None:
        """Look again for the verified names that meant nobody when they were checked: somebody may have them by now."""
        if row.sealed is None:
            return
        said = self._seal(session, row).open("said", row.sealed)
        verified = sorted({line["subject"] for line in said["identity"]})
        named = named_of(row)
        if len(named) < len(verified):
            names = [parse_subject(said["subjects"][place]["text"]) for place in verified]
            known = subjects.find(session, self._parts.vault, acting, names)
            name_people(session, row, {*named, *known.values()})

    def find_duplicate(
        self,
        session: Session,
        row: RequestRow,
        acting: Acting,
        now: datetime,
        *,
        when: Literal["verified", "selected", "recorded"] = "verified",
    ) -> bool:
        """Whether the request asks for nothing beyond another verified one; it then ends as its duplicate.

        `when` this is asked: of its names alone, once something was found that it is about, or with its plan in the
        record. Raises: IllegalMove, but for `recorded`, where it also asks under names that nobody verified, which
        would end with it unseen.
        """
        standing = sorted(CONTENDING | {State.COMPLETED_WITH_RETAINED})
        fences = {fence.request_id for fence in subjects.fenced(session, row.tenant_id, row.subjects).values()}
        rows = session.exec(
            select(RequestRow).where(
                RequestRow.tenant_id == row.tenant_id,
                RequestRow.right == row.right,
                sa.or_(col(RequestRow.state).in_(standing), col(RequestRow.request_id).in_(sorted(fences))),
                RequestRow.request_id != row.request_id,
            )
        )
        for other in rows:
            if is_duplicate(_rival(session, row), _rival(session, other), something_left=when != "verified"):
                verified, of = row.details.get(IDENTIFIERS, (0, 0))
                if verified < of and when != "recorded":
                    why = f"{other.request_id} asks for what was verified of it: verify its other names, or cancel it"
                    raise IllegalMove(row.state, Move.PLAN, why)
                row.state = move(State(row.state), Move.FIND_DUPLICATE, self._facts(row, acting, now))
                row.duplicate_of = other.request_id
                self._state(session, row, acting, now, event="duplicate", detail={"of": other.request_id})
                return True
        return False

    def refuse(self, acting: Acting, request_id: str, *, ground: str, now: datetime) -> dict[str, Any]:
        """The request refused on a ground of its regulation."""
        with self._parts.transactions(acting.tenant_id) as session:
            row = history.load(session, acting.tenant_id, request_id, lock=True)
            self.refuse_row(session, row, acting, ground=ground, now=now)
            return history.view_of(session, row)

    def refuse_row(
        self,
        session: Session,
        row: RequestRow,
        acting: Acting,
        *,
        ground: str,
        now: datetime,
        because: str | None = None,
    ) -> None:
        """Refuse a request in the caller's transaction, with its row locked. `because` is told beside the ground."""
        row.state = move(State(row.state), Move.REFUSE, self._facts(row, acting, now, ground=ground))
        row.details = {**row.details, "ground": ground}
        detail = {"ground": ground} | ({} if because is None else {"because": because})
        self._state(session, row, acting, now, event="refused", detail=detail)
        tell_of_duplicates(session, self._parts, acting, row.subjects, now)

    def extend(self, acting: Acting, request_id: str, *, reason: str, now: datetime) -> dict[str, Any]:
        """The request with its second date, later by what its clock stood still.

        Raises: TooLate after the first date, IllegalMove for a second time.
        """
        with self._parts.transactions(acting.tenant_id) as session:
            row = history.load(session, acting.tenant_id, request_id, lock=True)
            move(State(row.state), Move.EXTEND, self._facts(row, acting, now))
            until = row.extended_until = _date(row, extended=True)
            self._note(session, row, acting, now, name="extend", text=reason)
            self._state(session, row, acting, now, event="extended", detail={"due_at": instant_text(until)})
            return history.view_of(session, row)

    def pause(self, acting: Acting, request_id: str, *, reason: str, now: datetime) -> dict[str, Any]:
        """The request with a clock that stands still, for a reason of its regulation. Raises: ClockCannotPause."""
        with self._parts.transactions(acting.tenant_id) as session:
            row = history.load(session, acting.tenant_id, request_id, lock=True)
            row.state = move(State(row.state), Move.PAUSE, self._facts(row, acting, now, ground=reason))
            row.details = {**row.details, "paused_at": instant_text(now), "pause_reason": reason}
            self._state(session, row, acting, now, event="paused", detail={"reason": reason})
            return history.view_of(session, row)

    def resume(self, acting: Acting, request_id: str, *, now: datetime) -> dict[str, Any]:
        """The request with its clock running again, later by the days it stood still in all."""
        with self._parts.transactions(acting.tenant_id) as session:
            row = history.load(session, acting.tenant_id, request_id, lock=True)
            row.state = move(State(row.state), Move.RESUME, self._facts(row, acting, now))
            details = dict(row.details)
            stood = now - datetime.fromisoformat(details.pop("paused_at"))
            details.pop("pause_reason", None)
            row.details = {**details, _STOOD: [*details.get(_STOOD, ()), stood.total_seconds()]}
            if row.extended_until is None:
                moved = row.due_at = max(row.due_at, _date(row))
            else:
                moved = row.extended_until = max(row.extended_until, _date(row, extended=True))
            self._state(session, row, acting, now, event="resumed", detail={"due_at": instant_text(moved)})
            return history.view_of(session, row)

    def cancel(self, acting: Acting, request_id: str, *, now: datetime) -> dict[str, Any]:
        """The request cancelled, its fence lifted. Raises: TooLate after the first destructive step."""
        with self._parts.transactions(acting.tenant_id) as session:
            row = history.load(session, acting.tenant_id, request_id, lock=True)
            row.state = move(State(row.state), Move.CANCEL, self._facts(row, acting, now))
            session.add(row)
            session.flush()
            self._end_restriction(session, row, now)
            if lift_fence(session, row):
                self._parts.record.announce(session, acting.tenant_id, Kind.FENCE_LIFTED, {"request": request_id}, now)
            row.fence_at = None
            self._state(session, row, acting, now, event="cancelled", detail={})
            tell_of_duplicates(session, self._parts, acting, row.subjects, now)
            return history.view_of(session, row)

    def lift(self, acting: Acting, request_id: str, *, reason: str, now: datetime) -> dict[str, Any]:
        """The request after its restriction was lifted. Raises: IllegalMove, LiftingNotTold."""
        with self._parts.transactions(acting.tenant_id) as session:
            row = history.load(session, acting.tenant_id, request_id, lock=True)
            if row.state in OPEN and row.right == Right.OBJECTION:
                raise IllegalMove(row.state, "be lifted", "the objection is not decided; approve, refuse or cancel it")
            if not self._end_restriction(session, row, now):
                raise IllegalMove(row.state, "be lifted", "it restricts nobody")
            self._note(session, row, acting, now, name="lift", text=reason)
            self._state(session, row, acting, now, event="restriction_lifted", detail={})
            return history.view_of(session, row)

    def _end_restriction(self, session: Session, row: RequestRow, now: datetime) -> bool:
        session.add(row)
        session.flush()
        if not restrict.end(session, row, now):
            return False
        self._parts.record.announce(session, row.tenant_id, Kind.RESTRICTION_LIFTED, {"request": row.request_id}, now)
        return True

    def retry(self, acting: Acting, request_id: str, *, now: datetime) -> dict[str, Any]:
        """The request executing again, with everything that failed pending and its attempts counted anew.

        How many were made before stays in the request's history and in the record.
        """
        with self._parts.transactions(acting.tenant_id) as session:
            row = history.load(session, acting.tenant_id, request_id, lock=True)
            row.state = move(State(row.state), Move.RETRY, self._facts(row, acting, now))
            broken = copies.of(acting.tenant_id, request_id, *_BROKEN)
            made = session.scalar(sa.select(sa.func.sum(col(CopyRow.attempts))).where(broken)) or 0
            count = copies.update(session, broken, state=CopyState.PENDING.value, attempts=0, detail=None)
            self._state(session, row, acting, now, event="retried", detail={"copies": count, "attempts": int(made)})
            return history.view_of(session, row)

    def accept_exceptions(self, acting: Acting, request_id: str, *, reason: str, now: datetime) -> dict[str, Any]:
        """The request ended with what failed, accepted by a second person with a reason."""
        with self._parts.transactions(acting.tenant_id) as session:
            row = history.load(session, acting.tenant_id, request_id, lock=True)
            row.state = move(State(row.state), Move.ACCEPT_EXCEPTIONS, self._facts(row, acting, now))
            broken = history.copies_of(session, acting.tenant_id, request_id, *_BROKEN)
            accepted = {"by": acting.principal, "at": instant_text(now), "copies": [copy.copy_no for copy in broken]}
            row.details = {**row.details, "exceptions": accepted}
            row.completed_at = now
            self._note(session, row, acting, now, name="exceptions", text=reason)
            self._state(session, row, acting, now, event="exceptions_accepted", detail={"copies": len(broken)})
            return history.view_of(session, row)

    def settle_copy(
        self, acting: Acting, request_id: str, copy_no: int, *, outcome: str, comment: str, now: datetime
    ) -> dict[str, Any]:
        """A copy after a human's word on it; what can be said depends on the right."""
        with self._parts.transactions(acting.tenant_id) as session:
            row = history.load(session, acting.tenant_id, request_id, lock=True)
            if row.state in FINAL:
                raise IllegalMove(row.state, "have its copies settled")
            if outcome == "retry":
                return self._retry_copy(session, row, acting, copy_no, comment=comment, now=now)
            allowed = _SETTLEMENTS.get(Right(row.right), {})
            if outcome not in allowed:
                raise InvalidRequest("/outcome", f"expected one of {', '.join(allowed)}")
            copy = session.get(CopyRow, (acting.tenant_id, request_id, copy_no), with_for_update=True)
            if copy is None:
                raise UnknownRequest("copy", str(copy_no))
            if copy.state not in (CopyState.AWAITING_HUMAN, CopyState.AWAITING_EXTERNAL):
                raise IllegalMove(copy.state, "be settled by hand")
            if outcome in ("erase", "erased") and copy.collateral:
                # What others lose is approved by somebody else than who asked for it. Source: DESIGN §7.
                check_second_person("erase what is also about others", self._facts(row, acting, now))
            copy.state, copy.level, copy.verified_at = allowed[outcome], None, None
            copy.method, copy.detail = "by hand", f"settled by {acting.principal}"
            if copy.state == CopyState.PENDING and row.right == Right.ERASURE and copy.collateral:
                copy.action = "erase"  # what others lose by it was seen; more of it would be asked about again
            session.add(copy)
            self._note(session, row, acting, now, name=f"copy/{copy_no}", text=comment)
            detail = {"copy": copy_no, "state": copy.state}
            # By its id a restored database finds the line again; its number may be another one there.
            body = {"request": request_id, **detail, "ref": copy.ref}
            self._tell(session, row, acting, now, event="copy_settled", kind=Kind.COPY_STATE, body=body, detail=detail)
            return history.copy_view(copy)

    def _retry_copy(
        self, session: Session, row: RequestRow, acting: Acting, copy_no: int, *, comment: str, now: datetime
    ) -> dict[str, Any]:
        """One copy that failed, pending with its attempts counted anew; the others stay as they are.

        How many were made before, and how the last one ended, stays in the request's history and in the record.
        """
        copy = session.get(CopyRow, (acting.tenant_id, row.request_id, copy_no), with_for_update=True)
        if copy is None:
            raise UnknownRequest("copy", str(copy_no))
        if copy.state not in _BROKEN:
            raise IllegalMove(copy.state, "be retried")
        if row.state not in (State.EXECUTING, State.VERIFYING):
            row.state = move(State(row.state), Move.RETRY, self._facts(row, acting, now))
        before = {"copy": copy_no, "attempts": copy.attempts, "was": copy.state}
        copy.state, copy.attempts, copy.detail = CopyState.PENDING, 0, None
        session.add(copy)
        self._note(session, row, acting, now, name=f"copy/{copy_no}", text=comment)
        self._state(session, row, acting, now, event="copy_retried", detail=before)
        return history.copy_view(copy)

    def notice(
        self,
        acting: Acting,
        request_id: str,
        *,
        kind: str,
        channel: str,
        sent_at: datetime,
        now: datetime,
        recipient: str | None = None,
        answer: str | None = None,
    ) -> dict[str, Any]:
        """The request after the person, or a recipient, was told something.

        `answered` stops the legal clock, and so does `refused` of a request that was. Source: GDPR Art. 12(3) and (4).

        `recipient` and `answer` go with the kinds of `erasure.recipients`. Raises: InvalidRequest, IllegalMove.
        """
        if kind not in (*NOTICE_KINDS, *recipients.ANSWERS):
            raise InvalidRequest("/kind", f"expected one of {', '.join((*NOTICE_KINDS, *recipients.ANSWERS))}")
        with self._parts.transactions(acting.tenant_id) as session:
            row = history.load(session, acting.tenant_id, request_id, lock=True)
            if not row.received_at <= sent_at <= now:
                raise InvalidRequest("/sent_at", "lies before receipt or in the future")
            if kind in recipients.ANSWERS:
                stores = recipients.note(session, row, kind=kind, recipient=recipient, answer=answer, at=sent_at)
                detail = {"kind": kind, "sent_at": instant_text(sent_at), "stores": list(stores), "answer": answer}
                return self._noticed(session, row, acting, now, event="recipient", channel=channel, detail=detail)
            if recipient is not None or answer is not None:
                raise InvalidRequest("/recipient", "only a notice to a recipient names one")
            answers = kind == "answered" or (kind == "refused" and row.state == State.REFUSED)
            if answers and row.answered_at is None:
                row.answered_at = sent_at
            if kind == "restriction_lifting":
                if not restrict.is_in_force(session, row):
                    raise IllegalMove(row.state, "announce the lifting of a restriction", "it restricts nobody")
                row.details = {**row.details, "lifting_told_at": instant_text(sent_at)}
            session.add(row)
            detail = {"kind": kind, "sent_at": instant_text(sent_at)}
            return self._noticed(session, row, acting, now, event="notice", channel=channel, detail=detail)

    def _noticed(
        self,
        session: Session,
        row: RequestRow,
        acting: Acting,
        now: datetime,
        *,
        event: str,
        channel: str,
        detail: dict[str, Any],
    ) -> dict[str, Any]:
        self._note(session, row, acting, now, name=f"notice/{detail['kind']}", text=channel)
        body = {"request": row.request_id, **detail}
        self._tell(session, row, acting, now, event=event, kind=Kind.REQUEST_NOTICE, body=body, detail=detail)
        return history.view_of(session, row)

    def _limits(self, session: Session, acting: Acting, intake: Intake) -> dict[str, Any]:
        """A request's scope as it is kept: names of classes, keyed look-ups of a conversation."""
        if intake.data_classes is not None:
            known = registered.in_force(session, acting.tenant_id)
            for place, name in enumerate(intake.data_classes):
                if name not in known:
                    raise InvalidRequest(f"/scope/data_classes/{place}", "no data class of that name is in force")
            return {"data_classes": list(intake.data_classes)}
        if intake.conversation is not None:
            lookups = Lookups(self._parts.vault, acting.tenant_id)
            # An artifact says it in its scope, a stream there or by its own name.
            declared = lookups.scope("conversation", intake.conversation)
            return {"scopes": sorted({declared.hex(), lookups.of("stream", intake.conversation).hex()})}
        return {}

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────────

    def _facts(self, row: RequestRow, acting: Acting, now: datetime, *, ground: str = "") -> Facts:
        return facts_of(row, acting.principal, now, approval=self._parts.approval, ground=ground)

    def _seal(self, session: Session, row: RequestRow) -> RequestSeal:
        return RequestSeal(session, self._parts.vault, row.tenant_id, owner=row.request_id, key_no=row.request_no)

    def _note(self, session: Session, row: RequestRow, acting: Acting, now: datetime, *, name: str, text: str) -> None:
        """Keep free text beside what the person said, under the same key."""
        seal = self._seal(session, row)
        said = seal.open("said", row.sealed)
        said.setdefault("notes", []).append(
            {"name": name, "text": text, "by": acting.principal, "at": instant_text(now)}
        )
        row.sealed = seal.seal("said", said)
        session.add(row)

    def _state(
        self, session: Session, row: RequestRow, acting: Acting, now: datetime, *, event: str, detail: dict[str, Any]
    ) -> None:
        body = {"request": row.request_id, "state": row.state, "event": event, **detail}
        self._tell(session, row, acting, now, event=event, kind=Kind.REQUEST_STATE, body=body, detail=detail)

    def _tell(
        self,
        session: Session,
        row: RequestRow,
        acting: Acting,
        now: datetime,
        *,
        event: str,
        kind: Kind,
        body: Mapping[str, Any],
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        session.add(row)
        entry_id = self._parts.record.announce(session, row.tenant_id, kind, body, now)
        history.add_event(
            session,
            row,
            event=event,
            actor=acting.principal,
            now=now,
            detail={"state": row.state, **(detail or {})},
            entry_id=entry_id,
        )


def facts_of(
    row: RequestRow, actor: str, now: datetime, *, approval: str = "dual", ground: str = "", given_hash: str = ""
) -> Facts:
    """What the rules of moves need of a row."""
    return Facts(
        actor=actor,
        now=now,
        created_by=row.created_by,
        identity_by=frozenset(row.identity_by),
        approval=approval,
        approved_by=frozenset(str(line["by"]) for line in row.approvals),
        regulation=row.regulation,
        due_at=row.due_at,
        extended_until=row.extended_until,
        paused="paused_at" in row.details,
        destructive=bool(row.details.get("destructive")),
        plan_hash=row.plan_hash,
        given_hash=given_hash,
        ground=ground,
    )


def _date(row: RequestRow, *, extended: bool = False) -> datetime:
    """The first or the second date, later by what the clock stood still."""
    zone, place = row.timezone, row.jurisdiction
    dates = deadlines(row.regulation, row.received_at, timezone=zone, jurisdiction=place)
    stood = timedelta(seconds=sum(row.details.get(_STOOD, ())))
    date = dates.extended_due_at if extended else dates.due_at
    return paused_due_at(date, stood, timezone=zone, jurisdiction=place) if stood else date


def _rival(session: Session, row: RequestRow) -> Rival:
    return Rival(number=row.request_no, state=State(row.state), extent=extent_of(session, row))
