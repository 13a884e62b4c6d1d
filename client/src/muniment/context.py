"""Whom and which conversation the code that runs now is about.

`with subject("user:1", conversation="c1"):` gives every `record` inside it these subjects and this stream, unless
the call names its own. It follows `contextvars`: each thread and each asyncio task has its own; a thread started
inside the block starts without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Scope(NamedTuple):
    """The subjects and the stream in force."""

    subjects: tuple[str, ...] = ()
    conversation: str | None = None
    run: str | None = None


_NOWHERE = Scope()
_scope: ContextVar[Scope] = ContextVar("muniment_scope", default=_NOWHERE)


def current_scope() -> Scope:
    """Return what `with subject(...)` put in force here."""
    return _scope.get()


@contextmanager
def subject(*subjects: str, conversation: str | None = None, run: str | None = None) -> Iterator[Scope]:
    """Put subjects, written `type:value`, in force within the block; what is not given is taken from outside it."""
    outer = _scope.get()
    scope = Scope(subjects or outer.subjects, conversation or outer.conversation, run or outer.run)
    token = _scope.set(scope)
    try:
        yield scope
    finally:
        _scope.reset(token)
