"""Callers of one log take turns: who arrives during a flush shares the next one.

Guarantees: one caller of a log at a time places calls, its own and those of everybody who waits, in the order they
came; each gets the answer to its own, or the problem that ended the flush. Not here: what placing is, other processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sqlmodel import Session

from ledger.draft import Appended, Draft
from ledger.errors import NotLeader
from ledger.placing import weight

FLUSH_BYTES = 4 * 1024 * 1024
FLUSH_ENTRIES = 10_000

Admit = Callable[[Session, Sequence[Draft]], Sequence[frozenset[int]]]
"""Says, for each draft, which of its part numbers a fence closes now. All of them: the entry is not stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What is placed and answered together: a caller's drafts, or a staged row's."""

    drafts: Sequence[Draft]
    admit: Admit | None
    staged_id: str | None = None


@dataclass(slots=True, kw_only=True)
class _Waiting:
    call: Call
    answer: Appended | None = None
    problem: BaseException | None = None
    done: bool = False


@dataclass(slots=True, kw_only=True)
class _Queue:
    """The callers of one log in this process. The holder of `turn` places those in `waiting`."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    turn: threading.Lock = field(default_factory=threading.Lock)
    waiting: list[_Waiting] = field(default_factory=list)


class Turns:
    """The callers of every log in this process."""

    def __init__(self) -> None:
        self._queues: dict[int, _Queue] = {}
        self._lock = threading.Lock()

    def take(self, tenant_id: int, call: Call, place: Callable[[Sequence[Call]], Sequence[Appended]]) -> Appended:
        """Return the answer to a call, which `place` or that of another caller gives.

        `place` gets the calls of one flush and returns an answer to each. Raises: what it raised; NotLeader.
        """
        with self._lock:
            queue = self._queues.setdefault(tenant_id, _Queue())
        mine = _Waiting(call=call)
        with queue.lock:
            queue.waiting.append(mine)
        with queue.turn:
            # Those who wait before this caller may fill a flush of their own.
            while not mine.done:
                _place(queue, place)
        if mine.problem is not None:
            raise mine.problem
        if mine.answer is None:
            raise NotLeader("the flush ended without an answer")
        return mine.answer


def _place(queue: _Queue, place: Callable[[Sequence[Call]], Sequence[Appended]]) -> None:
    with queue.lock:
        group, queue.waiting = _fit(queue.waiting)
    try:
        answers = place([waiting.call for waiting in group])
    except BaseException as problem:  # noqa: BLE001 - told to every waiting caller, and raised by each
        for waiting in group:
            waiting.problem, waiting.done = problem, True
        return
    for waiting, answer in zip(group, answers, strict=True):
        waiting.answer, waiting.done = answer, True


def _fit(waiting: list[_Waiting]) -> tuple[list[_Waiting], list[_Waiting]]:
    """Split what waits into one flush and the rest."""
    if len(waiting) == 1:
        return waiting, []
    size = count = 0
    for number, one in enumerate(waiting):
        size += weight(one.call.drafts)
        count += len(one.call.drafts)
        if number and (size > FLUSH_BYTES or count > FLUSH_ENTRIES):
            return waiting[:number], waiting[number:]
    return waiting, []
