"""Ends a work at one of its commits, as a crash of the process would."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlmodel import Session


class Crash(Exception):
    """The work ends here."""


def count_commits(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> int:
    """How many transactions a work commits."""
    count = 0
    real = Session.commit

    def counted(self: Session) -> None:
        nonlocal count
        count += 1
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "commit", counted)
        work()
    return count


def break_commit(patch: pytest.MonkeyPatch, number: int, *, after: bool, end: Callable[[], None] | None = None) -> None:
    """Let the commit of this number be the last thing that happens, or not happen; `end` instead of `Crash`."""
    count = 0
    real = Session.commit

    def broken(self: Session) -> None:
        nonlocal count
        count += 1
        if count == number:
            if after:
                real(self)
            if end is not None:
                end()
            raise Crash(str(number))
        real(self)

    patch.setattr(Session, "commit", broken)
