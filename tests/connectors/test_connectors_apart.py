from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.apart import MOST_REFUSED, done_apart
from connectors.base import Deadline, Outcome
from connectors.errors import StoreUnreachable, WrongCredentials

Answer = tuple[Outcome, str]


class Store:
    """Takes a batch whole or not at all, and keeps some of its records."""

    def __init__(self, kept: frozenset[int]) -> None:
        self.kept, self.gone, self.calls = kept, set[int](), 0

    def erase(self, part: Sequence[int]) -> dict[int, Answer]:
        self.calls += 1
        if self.kept & set(part):
            raise StoreUnreachable("chroma", "the engine refused")
        answers = {each: (Outcome.ALREADY_ABSENT if each in self.gone else Outcome.ERASED, "") for each in part}
        self.gone |= set(part)
        return answers


@given(size=st.integers(1, 300), kept=st.sets(st.integers(0, 299), max_size=3))
def test_what_is_kept_fails_and_all_else_goes_once(size: int, kept: set[int]) -> None:
    kept &= set(range(size))
    store = Store(frozenset(kept))
    if len(kept) == size:
        with pytest.raises(StoreUnreachable):
            done_apart(range(size), store.erase, Deadline("erase", 30))
        return
    answers = done_apart(range(size), store.erase, Deadline("erase", 30))
    assert set(answers) == set(range(size))
    assert {each for each, (outcome, _) in answers.items() if outcome is Outcome.FAILED} == kept
    assert {outcome for each, (outcome, _) in answers.items() if each not in kept} == {Outcome.ERASED}
    assert store.calls <= 1 + 2 * len(kept) * size.bit_length()


def test_a_store_that_refuses_everything_is_asked_a_bounded_number_of_times_and_its_error_is_raised() -> None:
    store = Store(frozenset(range(500)))
    with pytest.raises(StoreUnreachable, match="the engine refused"):
        done_apart(range(500), store.erase, Deadline("erase", 30))
    assert store.calls <= 2 * MOST_REFUSED


def test_what_the_time_does_not_reach_is_said_and_other_errors_are_not_its_business() -> None:
    answers = done_apart([1, 2], Store(frozenset()).erase, Deadline("erase", 0))
    assert answers == dict.fromkeys([1, 2], (Outcome.FAILED, "not reached before the deadline"))

    def refused(_: Sequence[int]) -> dict[int, Answer]:
        raise WrongCredentials("mem0")

    with pytest.raises(WrongCredentials):
        done_apart([1, 2], refused, Deadline("erase", 30))
