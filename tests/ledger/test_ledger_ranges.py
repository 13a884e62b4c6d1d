"""Ranges say the same as a set of numbers, and many holes cost no walk over all of them."""

from __future__ import annotations

import random
import time
from itertools import pairwise

from ledger.ranges import Ranges, joined


def numbers_in(ranges: list[tuple[int, int]]) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


def test_ranges_hold_what_a_set_holds_and_neither_overlap_nor_touch() -> None:
    drawn = random.Random(7)
    for _ in range(100):
        sent = [drawn.randrange(40) for _ in range(drawn.randrange(60))]
        ranges, there = Ranges(), set[int]()
        for number in sent:
            assert ranges.add(number) is (number not in there)
            there.add(number)
        made = list(ranges)
        assert made == joined((number, number) for number in sent)
        assert numbers_in(made) == there
        assert all(last + 1 < first for (_, last), (first, _) in pairwise(made))


def test_ranges_that_lie_in_each_other_are_one() -> None:
    assert joined([(5, 9), (1, 20), (2, 3), (22, 23), (21, 21), (25, 25)]) == [(1, 23), (25, 25)]
    assert joined([]) == []


def test_numbers_that_leave_every_other_one_out_cost_no_more_each_the_more_there_are() -> None:
    """Eight thousand took six seconds: each was compared with all the others."""
    spent = time.process_time()
    ranges = Ranges()
    for number in range(0, 40_000, 2):
        ranges.add(number)
    assert time.process_time() - spent < 2
    assert len(list(ranges)) == 20_000
