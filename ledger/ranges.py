"""Sets of whole numbers as ranges that neither overlap nor touch: what is known of a recorder's numbers.

Pure. Guarantees: a number costs a search among the ranges, not a walk over them, however many holes there are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

Range = tuple[int, int]
"""The first and the last number, both of them in it."""


class Ranges:
    """Numbers that come one after the other, mostly in their order."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __iter__(self) -> Iterator[Range]:
        """Yield the ranges in their order."""
        return zip(self._firsts, self._lasts, strict=True)

    def add(self, number: int) -> bool:
        """Take a number in; False where it was there."""
        at = bisect_right(self._firsts, number)
        if at and number <= self._lasts[at - 1]:
            return False
        goes_on = at > 0 and self._lasts[at - 1] == number - 1
        leads_on = at < len(self._firsts) and self._firsts[at] == number + 1
        if goes_on and leads_on:
            del self._firsts[at], self._lasts[at - 1]
        elif goes_on:
            self._lasts[at - 1] = number
        elif leads_on:
            self._firsts[at] = number
        else:
            self._firsts.insert(at, number)
            self._lasts.insert(at, number)
        return True


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges over the same numbers, in their order; those that overlap or touch are one."""
    made: list[Range] = []
    for first, last in sorted(ranges):
        if made and first <= made[-1][1] + 1:
            made[-1] = (made[-1][0], max(made[-1][1], last))
        else:
            made.append((first, last))
    return made
