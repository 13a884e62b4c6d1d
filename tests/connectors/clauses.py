"""The clauses of the contract suite, in the words of what was promised, and which test shows which of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

CLAUSES = (
    "discover",
    "export",
    "erase in batches",
    "idempotent repeat",
    "reclaim",
    "verify at each level it declares",
    "residue by an independent byte scan",
    "fence",
    "ownership check",
    "time-outs",
    "partial failure in the middle of a batch",
    "kill -9 between batches",
    "store restarted in between",
    "wrong credentials",
    "wrong scope",
    "neighbours untouched",
    "hostile locators",
    "a store tries itself out",
    "nothing said about a person",
)

Test = TypeVar("Test", bound=Callable[..., None])


def clause(*names: str) -> Callable[[Test], Test]:
    """Mark a test as one that shows these clauses."""
    assert set(names) <= set(CLAUSES), names

    def mark(test: Test) -> Test:
        test.clauses = names  # type: ignore[attr-defined] # a mark on a function
        return test

    return mark


def clauses_of(test: object) -> tuple[str, ...]:
    return tuple(getattr(test, "clauses", ()))
