"""Callers of one log that arrive together: whose flush they share, and that each gets the answer to its own call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pytest

from ledger.draft import Appended, Draft, Placed, PlacedState, SealedPart
from ledger.turns import FLUSH_BYTES, FLUSH_ENTRIES, Call, Turns

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
LARGE = bytes(FLUSH_BYTES * 3 // 4)


def call(name: str, count: int = 1, content: bytes = b"") -> Call:
    part = SealedPart(role="part.0", algorithm="c2sp", ciphertext=content, lock_until=None, key_ids=())
    one = Draft(
        entry_id=name, kind="note", data_class="transcript", class_version=1, at=NOW, received=NOW, recorder=None,
        seq=None, stream_id="ab" * 16, stream_no=1, run_no=None, set_id=0, sources_count=0, sources_root=None,
        parts=(part,), subjects=((),), digest=bytes(16),
    )  # fmt: skip
    return Call(drafts=[one] * count, admit=None)


def answers(calls: Sequence[Call]) -> list[Appended]:
    return [
        Appended(placed=[Placed(entry_id=one.drafts[0].entry_id, state=PlacedState.STORED, index=0)], receipt=None)
        for one in calls
    ]


class Flushes:
    """Places calls; the first flush waits until the test lets it go on."""

    def __init__(self, failing: str | None = None) -> None:
        self.sizes: list[list[str]] = []
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self._failing = failing

    def __call__(self, calls: Sequence[Call]) -> list[Appended]:
        names = [one.drafts[0].entry_id for one in calls]
        self.sizes.append(names)
        if len(self.sizes) == 1:
            self.begun.set()
            assert self.goes_on.wait(20)
        if self._failing in names:
            raise ValueError(self._failing)
        return answers(calls)


def taken(turns: Turns, flushes: Flushes, calls: Sequence[Call]) -> dict[str, str]:
    """Have the calls wait behind a first one, in their order; what each was told."""
    told: dict[str, str] = {}

    def take(one: Call) -> Callable[[], None]:
        def run() -> None:
            name = one.drafts[0].entry_id
            try:
                told[name] = turns.take(7, one, flushes).placed[0].entry_id
            except Exception as problem:  # noqa: BLE001 - looked at by the test
                told[name] = f"{type(problem).__name__}: {problem}"

        return run

    threads = [threading.Thread(target=take(one), daemon=True) for one in (call("first"), *calls)]
    threads[0].start()
    assert flushes.begun.wait(20)
    for waiting, thread in enumerate(threads[1:], start=1):
        thread.start()
        while len(turns._queues[7].waiting) < waiting:
            pass
    flushes.goes_on.set()
    for thread in threads:
        thread.join(20)
    return told


@pytest.mark.parametrize(
    ("calls", "flushes"),
    [
        pytest.param([call("a"), call("b"), call("c")], [["first"], ["a", "b", "c"]], id="small ones share one"),
        pytest.param(
            [call("a", content=LARGE), call("b", content=LARGE), call("c")],
            [["first"], ["a"], ["b", "c"]],
            id="bytes",
        ),
        pytest.param(
            [call("a", FLUSH_ENTRIES), call("b"), call("c", FLUSH_ENTRIES - 1)],
            [["first"], ["a"], ["b", "c"]],
            id="entries",
        ),
        pytest.param([call("a", FLUSH_ENTRIES * 2), call("b")], [["first"], ["a"], ["b"]], id="a call is never parted"),
    ],
)
def test_calls_that_wait_share_a_flush_up_to_its_size(calls: list[Call], flushes: list[list[str]]) -> None:
    found = Flushes()
    told = taken(Turns(), found, calls)
    assert found.sizes == flushes
    assert told == {name: name for name in told}


def test_whoever_comes_first_to_the_turn_each_call_gets_its_own_answer() -> None:
    # One that came to it before those ahead of it placed theirs, and was itself told that nobody leads.
    turns, faults = Turns(), []

    def many(thread: int) -> None:
        for number in range(100):
            name = f"{thread}.{number}"
            try:
                found = turns.take(7, call(name, content=LARGE), answers).placed[0].entry_id
            except Exception as problem:  # noqa: BLE001 - looked at below
                found = repr(problem)
            if found != name:
                faults.append(found)

    threads = [threading.Thread(target=many, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []


def test_a_flush_that_fails_fails_those_in_it_alone() -> None:
    found = Flushes(failing="b")
    told = taken(Turns(), found, [call("a", content=LARGE), call("b", content=LARGE), call("c", content=LARGE)])
    assert told == {"first": "first", "a": "a", "b": "ValueError: b", "c": "c"}
