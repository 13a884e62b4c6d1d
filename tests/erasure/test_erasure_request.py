from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erasure.errors import ClockCannotPause, IllegalMove, SeparateDuties, StalePlan, TooLate, UnknownGround
from erasure.request import (
    BROKEN,
    CONTENDING,
    DONE,
    FINAL,
    GONE,
    LEGAL,
    WAITING,
    Completion,
    CopyFact,
    CopyState,
    Extent,
    Facts,
    Move,
    Rival,
    State,
    answer,
    completion,
    is_contained,
    is_duplicate,
    is_settled,
    move,
)

NOW = datetime(2026, 6, 1, tzinfo=UTC)
FACTS = Facts(
    actor="carol",
    now=NOW,
    created_by="ann",
    identity_by=frozenset({"bob"}),
    due_at=NOW + timedelta(days=9),
    plan_hash="ab",
    given_hash="ab",
    ground="excessive",
)


@pytest.mark.parametrize(("state", "what"), list(product(State, Move)))
def test_every_move_is_either_in_the_table_or_refused_with_both_names(state: State, what: Move) -> None:
    if what in (Move.EXTEND, Move.PAUSE, Move.RESUME):
        return
    if (state, what) in LEGAL:
        assert move(state, what, FACTS) == LEGAL[state, what]
    else:
        with pytest.raises(IllegalMove, match=f"{state.value} cannot {what.value}"):
            move(state, what, FACTS)


@pytest.mark.scenario("D5")
@pytest.mark.parametrize("state", sorted(FINAL))
def test_what_ended_without_work_never_comes_back_to_life(state: State) -> None:
    assert not any(source == state for source, _ in LEGAL)


def test_the_creator_and_the_identity_checker_cannot_approve_whatever_token_they_hold() -> None:
    for actor in ("ann", "bob"):
        with pytest.raises(SeparateDuties):
            move(State.PLANNED, Move.APPROVE, replace(FACTS, actor=actor))
    assert move(State.PLANNED, Move.APPROVE, FACTS) == State.APPROVED


def test_a_team_of_one_approves_its_own_request_only_by_the_setting() -> None:
    alone = replace(FACTS, actor="ann", approval="single")
    assert move(State.PLANNED, Move.APPROVE, alone) == State.APPROVED


@pytest.mark.parametrize("given", ["", "ac", "AB"])
def test_a_plan_that_changed_is_not_approved(given: str) -> None:
    with pytest.raises(StalePlan):
        move(State.PLANNED, Move.APPROVE, replace(FACTS, given_hash=given))
    with pytest.raises(StalePlan):
        move(State.PLANNED, Move.APPROVE, replace(FACTS, plan_hash=None, given_hash=given))


def test_exceptions_are_accepted_by_a_person_who_did_nothing_before() -> None:
    for actor in ("ann", "bob", "dan"):
        with pytest.raises(SeparateDuties):
            move(
                State.PARTIALLY_FAILED,
                Move.ACCEPT_EXCEPTIONS,
                replace(FACTS, actor=actor, approved_by=frozenset({"dan"})),
            )
    assert move(State.PARTIALLY_FAILED, Move.ACCEPT_EXCEPTIONS, FACTS) == State.COMPLETED_WITH_EXCEPTIONS


def test_an_extension_comes_once_and_before_the_first_date() -> None:
    assert move(State.PLANNED, Move.EXTEND, FACTS) == State.PLANNED
    with pytest.raises(TooLate):
        move(State.PLANNED, Move.EXTEND, replace(FACTS, now=NOW + timedelta(days=10)))
    with pytest.raises(IllegalMove):
        move(State.PLANNED, Move.EXTEND, replace(FACTS, extended_until=NOW + timedelta(days=60)))
    with pytest.raises(IllegalMove):
        move(State.COMPLETED, Move.EXTEND, FACTS)


def test_a_ccpa_clock_never_stands_still() -> None:
    with pytest.raises(ClockCannotPause, match="nothing"):
        move(State.VERIFIED, Move.PAUSE, replace(FACTS, regulation="ccpa", ground="identity"))


def test_a_gdpr_clock_stands_still_for_a_reason_of_the_law_only() -> None:
    waiting = replace(FACTS, ground="identity")
    assert move(State.IDENTITY_PENDING, Move.PAUSE, waiting) == State.IDENTITY_PENDING
    with pytest.raises(ClockCannotPause):
        move(State.IDENTITY_PENDING, Move.PAUSE, replace(FACTS, ground="busy"))
    with pytest.raises(IllegalMove):
        move(State.IDENTITY_PENDING, Move.PAUSE, replace(waiting, paused=True))
    with pytest.raises(TooLate):
        move(State.IDENTITY_PENDING, Move.PAUSE, replace(waiting, now=NOW + timedelta(days=10)))
    # After an extension it is the second date that has not passed.
    extended = replace(waiting, now=NOW + timedelta(days=10), extended_until=NOW + timedelta(days=60))
    assert move(State.IDENTITY_PENDING, Move.PAUSE, extended) == State.IDENTITY_PENDING
    with pytest.raises(IllegalMove):
        move(State.IDENTITY_PENDING, Move.RESUME, waiting)
    assert move(State.IDENTITY_PENDING, Move.RESUME, replace(waiting, paused=True)) == State.IDENTITY_PENDING


def test_a_request_is_cancelled_only_before_the_first_destructive_step() -> None:
    assert move(State.EXECUTING, Move.CANCEL, FACTS) == State.CANCELLED
    with pytest.raises(TooLate):
        move(State.EXECUTING, Move.CANCEL, replace(FACTS, destructive=True))


def test_a_refusal_has_a_ground_of_its_regulation() -> None:
    assert move(State.RECEIVED, Move.REFUSE, FACTS) == State.REFUSED
    with pytest.raises(UnknownGround):
        move(State.RECEIVED, Move.REFUSE, replace(FACTS, ground="do not want to"))
    with pytest.raises(UnknownGround):
        move(State.RECEIVED, Move.REFUSE, replace(FACTS, ground="public_health", regulation="ccpa"))


def copy(state: str, **more: object) -> CopyFact:
    base = CopyFact(copy_no=1, state=state, required="L2", level="L2", verified=True)
    return replace(base, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("copies", "expected"),
    [
        ([copy("erased_physical")], State.COMPLETED),
        ([copy("already_absent")], State.COMPLETED),
        ([copy("key_destroyed", required="key", level=None, key_state="destroyed")], State.COMPLETED),
        ([copy("erased_logical", required="L1", level="L1")], State.COMPLETED),
        ([copy("erased_logical", required="key", level="L1")], State.COMPLETED),  # it waited for a key that none has
        ([copy("erased_physical"), copy("retained")], State.COMPLETED_WITH_RETAINED),
        ([copy("erased_physical"), copy("failed")], State.PARTIALLY_FAILED),
        ([copy("erased_physical"), copy("unreachable")], State.PARTIALLY_FAILED),
        ([copy("erased_physical"), copy("not_covered")], State.PARTIALLY_FAILED),
        ([copy("retained"), copy("failed")], State.PARTIALLY_FAILED),
        ([copy("erased_physical", verified=False)], None),
        ([copy("erased_physical", level="L1")], None),
        ([copy("erased_logical", level=None)], None),
        ([copy("key_destroyed", required="key", key_state="live")], None),
        ([copy("erased_logical", required="key", level="L1", key_state="live")], None),
        ([copy("erased_logical", required="key", level="L0")], None),
        ([copy("erased_logical", required="key", level=None)], None),
        ([copy("failed"), copy("awaiting_human")], None),
        ([copy("skipped")], None),
        ([], None),
    ],
)
def test_completion_follows_from_the_copies(copies: list[CopyFact], expected: State | None) -> None:
    assert completion(copies).state == expected


def test_what_is_waited_for_is_counted_by_state() -> None:
    found = completion([copy("awaiting_external"), copy("awaiting_external"), copy("pending"), copy("failed")])
    assert found == Completion(state=None, waiting_for={"awaiting_external": 2, "pending": 1}, broken=(1,))


_copies = st.lists(
    st.builds(
        CopyFact,
        copy_no=st.integers(1, 99),
        state=st.sampled_from([*CopyState, "skipped", "disabled"]),
        required=st.sampled_from(["L1", "L2", "L3", "key"]),
        level=st.none() | st.sampled_from(["L0", "L1", "L2", "L3"]),
        key_state=st.none() | st.sampled_from(["live", "destroyed", "final"]),
        verified=st.booleans(),
    ),
    max_size=6,
)


@pytest.mark.scenario("C10")
@given(_copies)
def test_nothing_open_failed_unverified_or_not_covered_is_ever_completed(copies: list[CopyFact]) -> None:
    found = completion(copies)
    if found.state == State.COMPLETED:
        assert copies
        assert all(is_settled(item) for item in copies)
        assert all(item.state in GONE and item.verified for item in copies)
    if found.state == State.COMPLETED_WITH_RETAINED:
        assert all(is_settled(item) or item.state == "retained" for item in copies)
    if found.state == State.PARTIALLY_FAILED:
        assert any(item.state in BROKEN for item in copies)
        assert not any(item.state in WAITING for item in copies)


@given(st.lists(st.tuples(st.sampled_from(list(Move)), st.sampled_from(["ann", "bob", "carol"]), _copies), max_size=25))
def test_no_sequence_of_moves_reaches_an_end_without_approval_and_settled_copies(
    steps: list[tuple[Move, str, list[CopyFact]]],
) -> None:
    state, approved, destructive = State.RECEIVED, False, False
    for what, actor, copies in steps:
        try:
            if what is Move.COMPLETE:
                found = completion(copies).state if state is State.VERIFYING else None
                if found is None:
                    continue
                assert found != State.COMPLETED or all(is_settled(item) for item in copies)
                state = found
            else:
                facts = replace(FACTS, actor=actor, destructive=destructive)
                state = move(state, what, facts)
        except (IllegalMove, SeparateDuties, StalePlan, TooLate, ClockCannotPause, UnknownGround):
            continue
        approved = (approved or what is Move.APPROVE) and state is not State.PLANNED
        destructive = destructive or state is State.EXECUTING
        if state in (State.EXECUTING, State.VERIFYING, State.PARTIALLY_FAILED, *DONE):
            assert approved


ALL = Extent(subjects=frozenset({1, 2}), right="erasure", regulation="gdpr")


@pytest.mark.parametrize(
    ("later", "contained"),
    [
        (ALL, True),
        (replace(ALL, subjects=frozenset({1})), True),
        (replace(ALL, subjects=frozenset({1, 3})), False),
        (replace(ALL, subjects=frozenset()), False),
        (replace(ALL, regulation="ccpa"), False),
        (replace(ALL, right="access"), False),
        (replace(ALL, data_classes=frozenset({"note"})), True),
    ],
)
def test_a_duplicate_asks_for_no_more_than_the_first(later: Extent, contained: bool) -> None:
    assert is_contained(later, ALL) is contained


def test_a_request_for_everything_is_no_duplicate_of_one_for_a_scope() -> None:
    narrow = replace(ALL, data_classes=frozenset({"note"}))
    assert not is_contained(ALL, narrow)
    assert is_contained(narrow, narrow)
    assert not is_contained(replace(narrow, data_classes=frozenset({"note", "mail"})), narrow)


EARLIER = Rival(number=1, state=State.VERIFIED, extent=ALL)
LATER = Rival(number=2, state=State.VERIFIED, extent=ALL)


@pytest.mark.parametrize(
    ("this", "other", "left", "is_one"),
    [
        # Of two that are verified and not planned the later one is, and never both.
        (LATER, EARLIER, False, True),
        (EARLIER, LATER, False, False),
        # What is further does the work, whoever came first.
        *((EARLIER, replace(LATER, state=state), False, True) for state in CONTENDING - {State.VERIFIED}),
        # A hostile request that nobody verified swallows nothing, and neither does one that ended without work.
        *((LATER, replace(EARLIER, state=state), False, False) for state in (State.RECEIVED, State.IDENTITY_PENDING)),
        *((LATER, replace(EARLIER, state=state), True, False) for state in FINAL),
        # An erasure that ended goes on only where something of it is left.
        (LATER, replace(EARLIER, state=State.COMPLETED_WITH_RETAINED), False, True),
        (LATER, replace(EARLIER, state=State.COMPLETED), True, True),
        (LATER, replace(EARLIER, state=State.COMPLETED), False, False),
        (LATER, replace(EARLIER, state=State.COMPLETED_WITH_EXCEPTIONS), True, False),
        # It asks for more, or under another regulation.
        (replace(LATER, extent=replace(ALL, subjects=frozenset({1, 3}))), EARLIER, True, False),
        (replace(LATER, extent=replace(ALL, regulation="ccpa")), EARLIER, True, False),
    ],
)
def test_of_two_requests_for_the_same_one_does_the_work(this: Rival, other: Rival, *, left: bool, is_one: bool) -> None:
    assert is_duplicate(this, other, something_left=left) is is_one


@pytest.mark.parametrize("right", ["access", "restriction"])
def test_only_an_erasure_goes_on_after_its_end(right: str) -> None:
    again = replace(ALL, right=right)
    ended = Rival(number=1, state=State.COMPLETED_WITH_RETAINED, extent=again)
    assert not is_duplicate(Rival(number=2, state=State.VERIFIED, extent=again), ended, something_left=True)


def test_an_erasure_within_limits_set_no_fence_and_does_nothing_after_its_end() -> None:
    narrow = replace(ALL, data_classes=frozenset({"note"}))
    ended = Rival(number=1, state=State.COMPLETED_WITH_RETAINED, extent=narrow)
    assert not is_duplicate(Rival(number=2, state=State.VERIFIED, extent=narrow), ended, something_left=True)


@pytest.mark.parametrize(
    ("states", "end"),
    [
        ([], State.COMPLETED),
        (["exported", "withheld"], State.COMPLETED),
        (["restricted", "corrected", "unchanged", "already_absent"], State.COMPLETED),
        (["exported", "failed"], State.PARTIALLY_FAILED),
        (["exported", "unreachable"], State.PARTIALLY_FAILED),
        (["exported", "not_covered"], State.PARTIALLY_FAILED),
        (["exported", "awaiting_human"], None),
        (["failed", "pending"], None),
        # How an erasure ends is no answer to any other right.
        *(([state], None) for state in ("erased_physical", "key_destroyed", "regenerated", "retained")),
    ],
)
def test_what_answers_a_right_that_destroys_nothing(states: list[str], end: State | None) -> None:
    copies = [CopyFact(copy_no=number, state=state, required="L1") for number, state in enumerate(states)]
    assert answer(copies).state is end


FROM: dict[Move, str] = {
    Move.ASK_IDENTITY: "received",
    Move.VERIFY: "received identity_pending verified planned",
    Move.PLAN: "verified planned",
    Move.FIND_NOBODY: "verified planned",
    Move.REFUSE: "received identity_pending verified planned",
    Move.CANCEL: "received identity_pending verified planned approved executing",
    Move.FIND_DUPLICATE: "received identity_pending verified",
    Move.APPROVE: "planned",
    Move.REPLAN: "approved",
    Move.START: "approved",
    Move.CONFIRM: "executing",
    Move.REOPEN: "verifying completed completed_with_retained completed_with_exceptions partially_failed",
    Move.RETRY: "partially_failed",
    Move.ACCEPT_EXCEPTIONS: "partially_failed",
    Move.COMPLETE: "",
}
"""From which states each move leads, written out by hand beside the table: a state more or less in it is seen."""


def test_each_move_leads_from_the_states_that_the_contract_names() -> None:
    assert {what: {state for state, one in LEGAL if one is what} for what in FROM} == {
        what: {State(name) for name in names.split()} for what, names in FROM.items()
    }
    assert set(Move) - FROM.keys() == {Move.EXTEND, Move.PAUSE, Move.RESUME}
