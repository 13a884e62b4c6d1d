"""The life of a rights request: its states, the legal moves between them, who may make them, and when it is done.

Guarantees: a function of values. Every move not in `LEGAL` is refused. A request is `completed` only when every copy
reached the level its class requires and was verified; nothing that is open, failed, unreachable, unverified or not
covered can be part of it. A duplicate, a refusal, a cancellation and a `no_match` never come back to life. Not decided
here: what is in a plan (`erasure.plan`) and whether an item may go (`retention.decide`).

    received ─→ identity_pending ─→ verified ⇄ planned ─→ approved ─→ executing ⇄ verifying ─→ completed
                                                                         ↑                     completed_with_retained
                                                                         └── retry, reopen ──  partially_failed
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from erasure.errors import ClockCannotPause, IllegalMove, SeparateDuties, StalePlan, TooLate, UnknownGround


class Right(StrEnum):
    """What a person can ask for. Source: GDPR Art. 15 to 21."""

    ERASURE = "erasure"
    ACCESS = "access"
    PORTABILITY = "portability"
    RECTIFICATION = "rectification"
    RESTRICTION = "restriction"
    OBJECTION = "objection"


class State(StrEnum):
    """Where a request stands. Source: API §6."""

    RECEIVED = "received"
    IDENTITY_PENDING = "identity_pending"
    VERIFIED = "verified"
    PLANNED = "planned"
    APPROVED = "approved"
    EXECUTING = "executing"
    VERIFYING = "verifying"
    COMPLETED = "completed"
    COMPLETED_WITH_RETAINED = "completed_with_retained"
    COMPLETED_WITH_EXCEPTIONS = "completed_with_exceptions"
    PARTIALLY_FAILED = "partially_failed"
    NO_MATCH = "no_match"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    DUPLICATE = "duplicate"


class Move(StrEnum):
    """What can be done to a request; the value completes «a request that is … cannot …»."""

    ASK_IDENTITY = "wait for identity"
    VERIFY = "be verified"
    PLAN = "be planned"
    FIND_NOBODY = "end without a match"
    APPROVE = "be approved"
    REPLAN = "go back to planning"
    START = "start"
    CONFIRM = "be confirmed"
    COMPLETE = "be completed"
    REOPEN = "be reopened"
    RETRY = "be retried"
    ACCEPT_EXCEPTIONS = "end with exceptions"
    REFUSE = "be refused"
    CANCEL = "be cancelled"
    FIND_DUPLICATE = "become a duplicate"
    EXTEND = "be extended"
    PAUSE = "be paused"
    RESUME = "be resumed"


class CopyState(StrEnum):
    """Where one copy of a plan stands. Source: API §6."""

    PENDING = "pending"
    RUNNING = "running"
    ERASED_LOGICAL = "erased_logical"
    ERASED_PHYSICAL = "erased_physical"
    KEY_DESTROYED = "key_destroyed"
    REGENERATED = "regenerated"
    ALREADY_ABSENT = "already_absent"
    RETAINED = "retained"
    AWAITING_EXTERNAL = "awaiting_external"
    AWAITING_HUMAN = "awaiting_human"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    NOT_COVERED = "not_covered"
    # Ends of the other five rights; no erasure ends with them.
    EXPORTED = "exported"
    WITHHELD = "withheld"
    RESTRICTED = "restricted"
    CORRECTED = "corrected"
    UNCHANGED = "unchanged"


WAITING = frozenset({CopyState.PENDING, CopyState.RUNNING, CopyState.AWAITING_EXTERNAL, CopyState.AWAITING_HUMAN})
BROKEN = frozenset({CopyState.FAILED, CopyState.UNREACHABLE, CopyState.NOT_COVERED})
GONE = frozenset(
    {
        CopyState.ERASED_LOGICAL,
        CopyState.ERASED_PHYSICAL,
        CopyState.KEY_DESTROYED,
        CopyState.REGENERATED,
        CopyState.ALREADY_ABSENT,
    }
)
ANSWERED = frozenset(
    {
        CopyState.EXPORTED,
        CopyState.WITHHELD,
        CopyState.RESTRICTED,
        CopyState.CORRECTED,
        CopyState.UNCHANGED,
        CopyState.ALREADY_ABSENT,
    }
)
"""How a copy may end for a right that destroys nothing."""
MAYBE_OURS = "an earlier attempt may have erased it"
"""What the method of an absent copy ends with that was tried before: by a worker that died before the answer, say."""
FINAL = frozenset({State.NO_MATCH, State.REFUSED, State.CANCELLED, State.DUPLICATE})
DONE = frozenset({State.COMPLETED, State.COMPLETED_WITH_RETAINED, State.COMPLETED_WITH_EXCEPTIONS})
BEFORE_APPROVAL = frozenset({State.RECEIVED, State.IDENTITY_PENDING, State.VERIFIED, State.PLANNED})
OPEN = frozenset(State) - FINAL - DONE

_S, _M = State, Move
LEGAL: Mapping[tuple[State, Move], State] = MappingProxyType(
    {
        (_S.RECEIVED, _M.ASK_IDENTITY): _S.IDENTITY_PENDING,
        **{(state, _M.VERIFY): _S.VERIFIED for state in BEFORE_APPROVAL},
        **{(state, _M.PLAN): _S.PLANNED for state in (_S.VERIFIED, _S.PLANNED)},
        **{(state, _M.FIND_NOBODY): _S.NO_MATCH for state in (_S.VERIFIED, _S.PLANNED)},
        **{(state, _M.REFUSE): _S.REFUSED for state in BEFORE_APPROVAL},
        **{(state, _M.CANCEL): _S.CANCELLED for state in (*BEFORE_APPROVAL, _S.APPROVED, _S.EXECUTING)},
        **{(state, _M.FIND_DUPLICATE): _S.DUPLICATE for state in (_S.RECEIVED, _S.IDENTITY_PENDING, _S.VERIFIED)},
        (_S.PLANNED, _M.APPROVE): _S.APPROVED,
        (_S.APPROVED, _M.REPLAN): _S.PLANNED,
        (_S.APPROVED, _M.START): _S.EXECUTING,
        (_S.EXECUTING, _M.CONFIRM): _S.VERIFYING,
        (_S.VERIFYING, _M.REOPEN): _S.EXECUTING,
        **{(state, _M.REOPEN): _S.EXECUTING for state in (*DONE, _S.PARTIALLY_FAILED)},
        (_S.PARTIALLY_FAILED, _M.RETRY): _S.EXECUTING,
        (_S.PARTIALLY_FAILED, _M.ACCEPT_EXCEPTIONS): _S.COMPLETED_WITH_EXCEPTIONS,
    }
)
"""Moves with one outcome. COMPLETE is not here: `completion` finds its outcome from the copies."""

PAUSE_REASONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        # Reasonable doubt on identity, and a request that names no data (GDPR Art. 12(6), recital 63).
        "gdpr": ("identity", "clarification"),
        # 45 days run whatever verification takes (11 CCR 7021(b)).
        "ccpa": (),
    }
)
REFUSAL_GROUNDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gdpr": (  # Source: GDPR Art. 11(2), 12(5), 17(3)(a)–(e)
            "identity_not_verified",
            "manifestly_unfounded",
            "excessive",
            "freedom_of_expression",
            "legal_obligation",
            "public_health",
            "archiving_research",
            "legal_claims",
            "outside_jurisdiction",
            "compelling_grounds",  # GDPR Art. 21(1): against an objection
        ),
        "ccpa": (  # Source: Cal. Civ. Code 1798.105(d), 1798.145; 11 CCR 7022
            "identity_not_verified",
            "manifestly_unfounded",
            "excessive",
            "exempt",
            "legal_obligation",
            "legal_claims",
            "outside_jurisdiction",
        ),
    }
)

NOTICE_KINDS = ("acknowledged", "extended", "refused", "answered", "restriction_lifting")
"""What the person is told; recipients are told what `erasure.recipients` names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a move needs to know about the request and about who makes it. Only the fields of that move are read."""

    actor: str
    now: datetime
    created_by: str = ""
    identity_by: frozenset[str] = frozenset()
    approval: str = "dual"
    approved_by: frozenset[str] = frozenset()
    regulation: str = "gdpr"
    due_at: datetime | None = None
    extended_until: datetime | None = None
    paused: bool = False
    destructive: bool = False
    plan_hash: str | None = None
    given_hash: str = ""
    ground: str = ""


def move(state: State, what: Move, facts: Facts) -> State:
    """The state after a legal move.

    Raises: IllegalMove, StalePlan, SeparateDuties, TooLate, ClockCannotPause, UnknownGround.
    """
    if what in (Move.EXTEND, Move.PAUSE, Move.RESUME):
        _check_clock(state, what, facts)
        return state
    if (state, what) not in LEGAL:
        raise IllegalMove(state, what)
    match what:
        case Move.APPROVE:
            check_second_person("approve", facts)
            if facts.plan_hash is None or facts.given_hash != facts.plan_hash:
                raise StalePlan(facts.plan_hash, facts.given_hash)
        case Move.ACCEPT_EXCEPTIONS:
            check_second_person("accept exceptions", facts)
            if facts.approval != "single" and facts.actor in facts.approved_by:
                raise SeparateDuties("accept exceptions", "approval")
        case Move.CANCEL if facts.destructive:
            raise TooLate("cancel", None, "the first destructive step was taken")
        case Move.REFUSE if facts.ground not in REFUSAL_GROUNDS[facts.regulation]:
            raise UnknownGround(facts.regulation, REFUSAL_GROUNDS[facts.regulation])
        case _:
            pass
    return LEGAL[state, what]


def check_second_person(step: str, facts: Facts) -> None:
    """Refuse a step to who created the request or checked its identity. Raises: SeparateDuties."""
    if facts.approval == "single":
        return
    if facts.actor == facts.created_by:
        raise SeparateDuties(step, "creation")
    if facts.actor in facts.identity_by:
        raise SeparateDuties(step, "identity check")


def _check_clock(state: State, what: Move, facts: Facts) -> None:
    if state not in OPEN:
        raise IllegalMove(state, what)
    if what is Move.EXTEND:
        if facts.extended_until is not None:
            raise IllegalMove(state, what, "it was extended already")
        if facts.due_at is None or facts.now > facts.due_at:
            raise TooLate("extend", facts.due_at, "notice must be given before the first date")
    elif what is Move.PAUSE:
        allowed = PAUSE_REASONS[facts.regulation]
        if facts.ground not in allowed:
            raise ClockCannotPause(facts.regulation, allowed)
        if facts.paused:
            raise IllegalMove(state, what, "it is paused already")
        ends = facts.extended_until or facts.due_at
        if ends is not None and facts.now > ends:
            raise TooLate("pause", ends, "the date has passed")
    elif not facts.paused:
        raise IllegalMove(state, what, "it is not paused")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFact:
    """What completion must know about one copy."""

    copy_no: int
    state: str
    required: str
    level: str | None = None
    key_state: str | None = None
    verified: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The state that the copies allow; None while something waits or is unverified, with what and how many."""

    state: State | None
    waiting_for: Mapping[str, int] = field(default_factory=dict)
    unverified: tuple[int, ...] = ()
    broken: tuple[int, ...] = ()


def is_settled(copy: CopyFact) -> bool:
    """Whether a copy is proven gone: an end state, verified, and at the level its class requires."""
    if copy.state not in GONE or not copy.verified:
        return False
    if copy.state == CopyState.KEY_DESTROYED or (copy.required == "key" and copy.key_state is not None):
        return copy.key_state in ("destroyed", "final")
    # What lies in a store has no key: of a class that asks for the key alone it is absent by the store's own API.
    return copy.level is not None and copy.level >= ("L1" if copy.required == "key" else copy.required)


def completion(copies: Iterable[CopyFact]) -> Completion:
    """What a request in `verifying` may become. Empty plans complete nothing: that is `no_match`, decided earlier.

    A copy that is gone but not verified, or below its level, is unverified: it never counts as done.
    """
    waiting: Counter[str] = Counter()
    broken: list[int] = []
    unverified: list[int] = []
    unknown: list[int] = []
    states: set[str] = set()
    for copy in copies:
        states.add(copy.state)
        if copy.state in WAITING:
            waiting[copy.state] += 1
        elif copy.state in BROKEN:
            broken.append(copy.copy_no)
        elif copy.state in GONE:
            if not is_settled(copy):
                unverified.append(copy.copy_no)
        elif copy.state != CopyState.RETAINED:
            unknown.append(copy.copy_no)
    if waiting or unverified or unknown or not states:
        return Completion(
            state=None, waiting_for=dict(waiting), unverified=(*unverified, *unknown), broken=tuple(broken)
        )
    if broken:
        return Completion(state=State.PARTIALLY_FAILED, broken=tuple(broken))
    if CopyState.RETAINED in states:
        return Completion(state=State.COMPLETED_WITH_RETAINED)
    return Completion(state=State.COMPLETED)


def answer(copies: Iterable[CopyFact]) -> Completion:
    """What a request for another right than erasure may become; a person of whom nothing is held is answered too.

    What waits for a human keeps it open; what failed or could not be looked at is never passed over.
    """
    waiting: Counter[str] = Counter()
    broken: list[int] = []
    unknown: list[int] = []
    for copy in copies:
        if copy.state in WAITING:
            waiting[copy.state] += 1
        elif copy.state in BROKEN:
            broken.append(copy.copy_no)
        elif copy.state not in ANSWERED:
            unknown.append(copy.copy_no)
    if waiting or unknown:
        return Completion(state=None, waiting_for=dict(waiting), unverified=tuple(unknown), broken=tuple(broken))
    return Completion(state=State.PARTIALLY_FAILED if broken else State.COMPLETED, broken=tuple(broken))


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Whom and what a request covers. None in `data_classes` or `scopes` means all."""

    subjects: frozenset[int]
    right: str
    regulation: str
    data_classes: frozenset[str] | None = None
    scopes: frozenset[str] | None = None


def is_contained(later: Extent, earlier: Extent) -> bool:
    """Whether everything the later request asks for is asked for by the earlier one, under the same regulation."""
    return (
        later.right == earlier.right
        and later.regulation == earlier.regulation
        and bool(later.subjects)
        and later.subjects <= earlier.subjects
        and _is_within(later.data_classes, earlier.data_classes)
        and _is_within(later.scopes, earlier.scopes)
    )


def _is_within(later: frozenset[str] | None, earlier: frozenset[str] | None) -> bool:
    return earlier is None or (later is not None and later <= earlier)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A request as far as another one about the same person matters. `number` grows with receipt."""

    number: int
    state: State
    extent: Extent

    @property
    def is_limited(self) -> bool:
        """Whether it asks for less than everything, and so sets no fence before the person."""
        return self.extent.data_classes is not None or self.extent.scopes is not None


CONTENDING = OPEN - {State.RECEIVED, State.IDENTITY_PENDING}
"""States of a verified request that is not over."""


def is_duplicate(this: Rival, other: Rival, *, something_left: bool = False) -> bool:
    """Whether a verified request asks for nothing beyond another one, which then does the work alone.

    Who is verified second is the duplicate; between two that are verified and not planned, the later one is. An
    erasure that ended but stands before the person with its fence goes on when a hold ends or a late copy arrives
    (`something_left`): that work is its own, under its own date.
    """
    if not is_contained(this.extent, other.extent):
        return False
    if other.state in CONTENDING:
        return other.state != State.VERIFIED or other.number < this.number
    if other.is_limited or this.extent.right != Right.ERASURE:
        return False
    return other.state == State.COMPLETED_WITH_RETAINED or (other.state == State.COMPLETED and something_left)
