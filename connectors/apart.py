"""A batch that a store refuses, done in halves, so that what it keeps fails alone.

Guarantees: an answer for everything that was given. What a store took before it refused is looked for again by the same
work, so it ends as `already_absent` and never as done twice. Where the store refuses everything its error is raised, as
from one call. Does not decide what the work is, and not how often a caller comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, TypeVar

from connectors.base import Outcome
from connectors.errors import StoreUnreachable

if TYPE_CHECKING:
    from connectors.base import Deadline
    from connectors.sql_answers import Answer

Name = TypeVar("Name", bound=Hashable)
MOST_REFUSED = 32
"""So many refusals in a row are the store's, not those of single items."""
_UNREACHED = Outcome.FAILED, "not reached before the deadline"


def done_apart(
    names: Sequence[Name], work: Callable[[Sequence[Name]], dict[Name, Answer]], limit: Deadline
) -> dict[Name, Answer]:
    """Return what the work answered for each. Raises: StoreUnreachable where all of it was refused, what `work` raises.

    Example: of 500 records that a trigger keeps one of, 499 are erased and one is `failed`, after some twenty calls.
    """
    answers: dict[Name, Answer] = {}
    waiting = [list(names)]
    told: StoreUnreachable | None = None
    kept, in_a_row = 0, 0
    while waiting:
        part = waiting.pop()
        if limit.is_over():
            answers |= dict.fromkeys(part, _UNREACHED)
            continue
        try:
            answers |= work(part)
            in_a_row = 0
        except StoreUnreachable as refused:
            told, in_a_row = refused, in_a_row + 1
            if len(part) == 1 or in_a_row >= MOST_REFUSED:
                answers |= dict.fromkeys(part, (Outcome.FAILED, refused.detail))
                kept += len(part)
            else:
                half = len(part) // 2
                waiting += [part[half:], part[:half]]
    if told is not None and kept == len(answers):
        raise told
    return answers
