"""The work behind a plan, of a request and of a sweep alike: whose it is, its captures, its facts.

Guarantees: the tables are the truth. A copy that a dead worker left `running` is `pending` again; every change of a
copy is written with the state it leaves, so that a step that runs twice does the second time nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from sqlmodel import Session

from connectors.base import Level, ReclaimReport
from erasure.alike import ended_by
from erasure.collateral import exceeds, was_shown
from erasure.errors import UnknownRequest
from erasure.facts import PlanInput
from erasure.models import CopyRow, RequestRow
from erasure.parts import Parts
from erasure.plan import PlanCopy, going_plainly, redecide
from erasure.request import CopyState
from erasure.sealed import SWEEP_KEY, Capture, RequestSeal
from erasure.selector import select_artifacts
from erasure.standing import claim_of, standing
from registry import bulk, decided, subjects
from registry.sets import members
from retention.decide import DESTRUCTIVE
from retention.models import SweepRow
from retention.stops import keep_holds_out

BACKOFF = timedelta(seconds=5)
"""The wait after a first failed attempt; it doubles with each further one."""
BY_HAND = decided.BY_HAND
COLLATERAL_UNSEEN = "about other persons too, which the approved plan did not show as erased: somebody has to decide"
_SETS = "SELECT set_id FROM artifact WHERE tenant_id = ? AND id"
PART = "entry"
"""The kind of copies that are one part of the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A request's or a sweep's work inside one transaction; `row` is the table's row."""

    tenant_id: int
    owner: str
    row: RequestRow | SweepRow

    @property
    def is_request(self) -> bool:
        """Whether a person asked for it."""
        return isinstance(self.row, RequestRow)

    @property
    def people(self) -> frozenset[int]:
        """The persons of a request; a sweep has none."""
        return frozenset(self.row.subjects) if isinstance(self.row, RequestRow) else frozenset()

    def facts(self) -> dict[str, Any]:
        """What was learned on the way: reports of reclaims, groups that turned."""
        return dict(self.row.details if isinstance(self.row, RequestRow) else self.row.counts)

    def put_facts(self, session: Session, **facts: Any) -> None:
        """Keep facts beside the row."""
        if isinstance(self.row, RequestRow):
            self.row.details = {**self.row.details, **facts}
        else:
            self.row.counts = {**self.row.counts, **facts}
        session.add(self.row)

    def seal(self, session: Session, parts: Parts) -> RequestSeal:
        """The seal of the captures."""
        key_no = self.row.request_no if isinstance(self.row, RequestRow) else SWEEP_KEY
        return RequestSeal(session, parts.vault, self.tenant_id, owner=self.owner, key_no=key_no)


def load_work(session: Session, tenant_id: int, owner: str, *, lock: bool = False) -> Work:
    """The work of that owner. Raises: UnknownRequest."""
    wait = True if lock else None
    row: RequestRow | SweepRow | None = session.get(RequestRow, (tenant_id, owner), with_for_update=wait)
    if row is None:
        row = session.get(SweepRow, (tenant_id, owner), with_for_update=wait)
    if row is not None:
        return Work(tenant_id=tenant_id, owner=owner, row=row)
    raise UnknownRequest("request or sweep", owner)


class _Line(Protocol):
    """A copy as far as it says of what it is a copy."""

    @property
    def kind(self) -> str: ...
    @property
    def ref(self) -> str: ...
    @property
    def artifact_id(self) -> int | None: ...
    @property
    def key_id(self) -> str | None: ...


class _Sealed(Protocol):
    """A copy as far as its capture is concerned."""

    @property
    def copy_no(self) -> int: ...
    @property
    def ref(self) -> str: ...
    @property
    def sealed(self) -> bytes | None: ...


def facts_now(session: Session, work: Work, copies: Sequence[_Line], now: datetime) -> PlanInput:
    """What decides about these copies, with the rules, holds and requests of this transaction.

    Until its end no hold is placed, so that one that comes finds what was dispatched by this.
    """
    keep_holds_out(session, work.tenant_id)
    claim = claim_of(work.row) if isinstance(work.row, RequestRow) else None
    return select_artifacts(
        session,
        work.tenant_id,
        [copy.artifact_id for copy in copies if copy.artifact_id is not None],
        owner=work.owner,
        claim=claim,
        now=now,
        subjects=work.people,
        key_ids=[copy.key_id for copy in copies if copy.key_id is not None],
        parts=[copy.ref for copy in copies if copy.kind == PART],
    )


def lines_now(session: Session, work: Work, copies: Sequence[_Line], now: datetime) -> dict[str, PlanCopy]:
    """Each copy as it would be decided now."""
    return redecide(facts_now(session, work, copies, now))


def may_go(session: Session, work: Work, copies: Sequence[CopyRow], now: datetime) -> list[CopyRow]:
    """Those copies that still may be destroyed; the others are marked as what the decision says now.

    Called in the transaction that dispatches the delete, so that a hold that was committed before always wins.
    """
    return sort_out(session, copies, lines_now(session, work, copies, now))


def sort_out(session: Session, copies: Sequence[CopyRow], lines: Mapping[str, PlanCopy]) -> list[CopyRow]:
    """Those copies that may go by these lines; the others are marked as what the lines say."""
    going: list[CopyRow] = []
    staying: list[CopyRow] = []
    for copy in copies:
        line = lines.get(copy.ref)
        (going if line is None or goes(copy, line) else staying).append(copy)
    mark_staying(session, staying, lines)
    return going


def goes(copy: CopyRow, line: PlanCopy) -> bool:
    """Whether a copy may go by its line of now; one without a line has no row in the registry that speaks for it."""
    if is_unseen(copy, line):
        return False
    return line.action in DESTRUCTIVE or (line.action == "review" and copy.method == BY_HAND)


def going_alike(session: Session, work: Work, copies: Sequence[_Line], now: datetime) -> set[int]:
    """Those of these artifacts, by number, that a request ends by what they have in common with others.

    What decides is what is in force in this transaction, in which no hold is placed until its end. What is not among
    them is not decided: see `going_now`.
    """
    if not isinstance(work.row, RequestRow):
        return set()
    keep_holds_out(session, work.tenant_id)
    numbers = [copy.artifact_id for copy in copies if copy.artifact_id is not None]
    known = standing(session, work.tenant_id)
    return ended_by(session, work.tenant_id, numbers, claim=claim_of(work.row), known=known, now=now)


def going_now(session: Session, work: Work, copies: Sequence[_Line], now: datetime) -> tuple[set[str], PlanInput]:
    """Which of these artifacts go whatever their own rows say, and what that was decided by.

    So go those that go by class or request while nobody else loses anything by it, and those without a row in the
    registry, where nothing speaks for them. What is not among them is not decided: see `sort_out`.
    """
    given = facts_now(session, work, copies, now)
    known = {fact.name for fact in given.artifacts}
    plain = going_plainly(given)
    return {copy.ref for copy in copies if copy.ref in plain or copy.ref not in known}, given


def mark_staying(session: Session, copies: Sequence[CopyRow], lines: Mapping[str, PlanCopy]) -> None:
    """Mark copies that may not go as what these lines say of them."""
    for copy in copies:
        line = lines[copy.ref]
        if is_unseen(copy, line):
            ask_human(session, copy, line)
        else:
            keep(session, copy, line)


def is_unseen(copy: CopyRow, line: PlanCopy) -> bool:
    """Whether erasing the copy would take from others what nobody approved: the plan kept it, or it grew since."""
    return line.action in DESTRUCTIVE and exceeds(line.collateral, was_shown(copy.action, copy.collateral))


def ask_human(session: Session, copy: CopyRow, line: PlanCopy) -> None:
    """The copy waits for a second person, who sees what others would lose by it. Source: DESIGN §7."""
    copy.state, copy.rule, copy.until = CopyState.AWAITING_HUMAN, line.rule, line.until
    copy.because = [reason._asdict() for reason in line.because]
    copy.action, copy.detail = "review", COLLATERAL_UNSEEN
    copy.collateral = None if line.collateral is None else dict(line.collateral)
    session.add(copy)


def keep(session: Session, copy: CopyRow, line: PlanCopy) -> None:
    """The copy stays, by the rule that now says so."""
    copy.state = CopyState.AWAITING_HUMAN if line.action == "review" else CopyState.RETAINED
    copy.action, copy.rule, copy.until = line.action, line.rule, line.until
    copy.because = [reason._asdict() for reason in line.because]
    copy.detail = line.detail
    copy.collateral = None if line.collateral is None else dict(line.collateral)
    session.add(copy)


class _Timed(Protocol):
    """A copy as far as its turn is concerned."""

    @property
    def state(self) -> str: ...
    @property
    def attempts(self) -> int: ...
    @property
    def started_at(self) -> datetime | None: ...


def is_ready(copy: _Timed, now: datetime) -> bool:
    """Whether a pending copy may be tried now: at once, or after its wait."""
    if copy.state != CopyState.PENDING:
        return False
    return is_due(copy.attempts, copy.started_at, now)


def is_due(attempts: int, started_at: datetime | None, now: datetime) -> bool:
    """Whether the wait after so many attempts, the last of them begun then, is over."""
    return attempts == 0 or started_at is None or now >= started_at + BACKOFF * (1 << (attempts - 1))


def end_of_try(attempts: int, parts: Parts, end: CopyState) -> CopyState:
    """The state after an attempt that did not succeed."""
    return end if attempts >= parts.max_attempts else CopyState.PENDING


def failed(session: Session, copy: CopyRow, parts: Parts, *, detail: str, end: CopyState) -> None:
    """An attempt that did not succeed: pending again, or `end` when there were enough."""
    copy.state, copy.detail = end_of_try(copy.attempts, parts, end), detail
    session.add(copy)


def captures_of(session: Session, parts: Parts, work: Work, copies: Iterable[_Sealed]) -> dict[int, Capture]:
    """The opened captures by copy number; copies without one are left out."""
    known = [(copy.copy_no, copy.ref, copy.sealed) for copy in copies if copy.sealed is not None]
    opened = work.seal(session, parts).open_captures([(ref, sealed) for _, ref, sealed in known])
    return {number: capture for (number, _, _), capture in zip(known, opened, strict=True)}


def owners_of(session: Session, parts: Parts, work: Work, copies: Sequence[_Line]) -> tuple[str, ...]:
    """The names under which a store may hold these copies: a request's plan names them, a sweep looks them up.

    So does a request whose words have ended while something was kept: the identity key still opens the names then.
    """
    if isinstance(work.row, RequestRow):
        said = work.seal(session, parts).open("said", work.row.sealed)
        if "names" in said:
            return tuple(said["names"])
        people = work.people
    else:
        ids = [copy.artifact_id for copy in copies if copy.artifact_id]
        sets = {set_id for (set_id,) in bulk.select_in(session, _SETS, (work.tenant_id,), ids, "int8")}
        people = frozenset[int]().union(*members(session, work.tenant_id, sets).values())
    names = subjects.names_of(session, parts.vault, work.tenant_id, people)
    return tuple(sorted({text for found in names.values() for name in found for text in (name.text, name.given)}))


def report_fact(report: ReclaimReport, now: datetime) -> dict[str, Any]:
    """A reclaim's report as it is kept."""
    until = report.residual_until
    return {
        "level": report.level.value,
        "residual_until": until.isoformat() if isinstance(until, datetime) else until,
        "detail": report.detail,
        "method": report.method,
        "evidence": dict(report.evidence),
        "freed_bytes": report.freed_bytes,
        "at": now.isoformat(),
    }


def joined(fact: dict[str, Any], earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    """A reclaim's fact with what an earlier one of the same store showed and this one had no reason to treat again.

    Only where both reached the files: after one that did not, nothing from before stands for the whole store. Bytes
    that were freed add up.
    """
    freed = [each for each in (fact.get("freed_bytes"), (earlier or {}).get("freed_bytes")) if each is not None]
    fact = {**fact, "freed_bytes": sum(freed)} if freed else fact
    if earlier is None or min(Level(earlier["level"]), Level(fact["level"])) < Level.L2:
        return fact
    return {**fact, "evidence": {**earlier["evidence"], **fact["evidence"]}}


def report_of(fact: Mapping[str, Any] | None) -> ReclaimReport | None:
    """The report that was kept."""
    if fact is None:
        return None
    until = fact["residual_until"]
    return ReclaimReport(
        level=Level(fact["level"]),
        residual_until=until if until is None or until == "unknown" else datetime.fromisoformat(until),
        detail=fact["detail"],
        method=fact["method"],
        evidence=fact["evidence"],
    )
