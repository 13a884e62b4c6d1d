"""Other processes read and seal as this one does, and whatever becomes of them, the caller can do it itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ledger.entry import uuid7
from registry import preparing as preparing_module
from registry.preparing import LEAST_BYTES, Preparing, Taken
from registry.sheets import SealedSheet, SealOrder, Shape, ShapedHeader, read_sheet
from tests.forking import fork
from vault.envelope import context, in_entry, unseal
from vault.packing import pack, unpack

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="without shared memory there is no process")
NOW = datetime(2026, 11, 30, tzinfo=UTC)
KEY = bytes(range(100, 132))
SEARCHED = 8 * 1024 * 1024
"""Of the shared memory: more than any call here needs."""
PARTS = ((0, in_entry(b"", "part.0")), (0, in_entry(b"", "skeleton")))


def call(count: int = 100, text: str = "x", **more: Any) -> bytes:
    entries = [
        {
            "id": uuid7(NOW), "stream": f"s{number % 2}", "kind": "turn.user", "at": NOW.isoformat(),
            "data_class": "transcript", "subjects": ["user:1"], "body": {"n": number, "text": text * 800}, **more,
        }
        for number in range(count)
    ]  # fmt: skip
    return json.dumps({"entries": entries}).encode()


def order(tenant: str, taken: Taken, key: bytes = KEY) -> SealOrder:
    roles = ("part.0", "skeleton")
    header = ShapedHeader("turn.user", "transcript", None, "a" * 32, 0, None, "c2sp-chunked-aes256gcm", roles)
    shape = Shape(PARTS, None, pack(b"{}"), header)
    return SealOrder(tenant, "log", NOW, b"d", [key], [shape] * len(taken.sheet.sayings))


@contextmanager
def preparing(**more: Any) -> Iterator[Preparing]:
    made = Preparing(**{"count": 1, "most": 10_000, "again_seconds": 0.0, **more})
    made.start()
    try:
        yield made
    finally:
        made.close()


def wait_for(read: Callable[[], Any], seconds: float = 20.0) -> Any:
    end = time.monotonic() + seconds
    while not (value := read()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
    return value


def taken_by(made: Preparing, data: bytes) -> Taken:
    """The call as another process read it, once there is one."""
    taken: Taken = wait_for(lambda: made.take(data, lines=False))
    return taken


def is_gone(pid: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def bodies(sealed: SealedSheet | None, taken: Taken, tenant: str, key: bytes = KEY) -> list[dict[str, Any]]:
    assert sealed is not None
    return [
        json.loads(unpack(unseal(key, sealed.ciphertexts[2 * place], context(tenant, "log", entry_id, "part.0"))))
        for place, entry_id in enumerate(taken.sheet.ids)
    ]


def test_a_call_is_read_and_sealed_as_here() -> None:
    with preparing() as made:
        data = call()
        with taken_by(made, data) as taken:
            found = read_sheet(data, lines=False, most=10_000)
            assert found is not None
            assert taken.sheet == found[0]
            sealed = taken.seal(order("7", taken))
            assert [body["n"] for body in bodies(sealed, taken, "7")] == list(range(100))
            assert taken.seal(order("7", taken)) is None, "a call is sealed once"


def test_what_is_small_malformed_or_too_much_is_left_to_the_caller() -> None:
    with preparing(most=120) as made:
        with taken_by(made, call()):
            pass
        assert made.take(call(10), lines=False) is None
        assert len(call(10)) < LEAST_BYTES
        assert made.take(call(200), lines=False) is None
        assert made.take(call()[:-1], lines=False) is None
        with taken_by(made, call()) as taken:
            assert taken.seal(order("7", taken, key=b"short")) is None
        with taken_by(made, call()) as taken:
            assert bodies(taken.seal(order("7", taken)), taken, "7"), "it is the same process still"
        (pid,) = made.pids
        assert not is_gone(pid)
    with preparing(count=0) as made:
        assert made.take(call(), lines=False) is None
        assert made.pids == []


def test_calls_of_two_tenants_through_one_process_keep_their_keys_and_places_apart() -> None:
    keys = {"1": bytes([1]) * 32, "2": bytes([2]) * 32}
    with preparing() as made, taken_by(made, call(text="a")) as one, taken_by(made, call(text="b")) as two:
        for taken, tenant, text in ((two, "2", "b"), (one, "1", "a")):
            sealed = taken.seal(order(tenant, taken, keys[tenant]))
            assert {body["text"][0] for body in bodies(sealed, taken, tenant, keys[tenant])} == {text}


def test_many_callers_at_once_each_get_their_own() -> None:
    faults: list[str] = []

    def ask(made: Preparing, number: int) -> None:
        text = "abcdef"[number]
        for _ in range(5):
            with taken_by(made, call(text=text)) as taken:
                sealed = taken.seal(order(text, taken))
                if {body["text"][0] for body in bodies(sealed, taken, text)} != {text}:
                    faults.append(text)

    with preparing(count=2) as made:
        threads = [threading.Thread(target=ask, args=(made, number)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(made.pids) == 2
    assert faults == []


@pytest.mark.parametrize("when", ["read", "seal"])
def test_a_process_that_was_killed_is_told_of_and_another_takes_its_place(when: str) -> None:
    told: list[str] = []
    with preparing(told=told.append) as made:
        taken = taken_by(made, call())
        (pid,) = made.pids
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: is_gone(pid))
        lost = made.take(call(), lines=False) if when == "read" else taken.seal(order("7", taken))
        assert lost is None
        assert len(told) == 1
        with taken_by(made, call()) as again:
            assert bodies(again.seal(order("7", again)), again, "7")
        assert made.pids != [pid]
        assert taken.seal(order("7", taken)) is None, "the other process does not know that call"
        assert len(told) == 1


def test_a_process_that_never_answers_is_given_up_and_none_is_started_for_a_while() -> None:
    told: list[str] = []
    with preparing(told=told.append, patience_seconds=0.2, again_seconds=60.0) as made:
        taken_by(made, call())
        (pid,) = made.pids
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        assert made.take(call(), lines=False) is None
        assert time.monotonic() - began < 10
        assert told == ["TimeoutError"]
        assert is_gone(pid)
        assert made.take(call(), lines=False) is None
        assert made.pids == []


def test_a_call_that_a_process_does_not_know_is_no_fault_of_it() -> None:
    told: list[str] = []
    with preparing(told=told.append) as made:
        with taken_by(made, call()) as taken:
            pass
        assert taken.seal(order("7", taken)) is None, "what was let go of is forgotten there"
        assert told == []
        assert taken_by(made, call()).sheet.count == 100


def test_neither_a_key_nor_what_was_sent_nor_who_it_names_stays_in_the_shared_memory() -> None:
    """A text would have stood there until the next call, whoever was erased meanwhile."""
    with preparing() as made:
        heard = call(text="spoken", kind="phase", subjects=["user:somebody"])
        with taken_by(made, heard) as taken:
            area = taken._helper._area
            assert area is not None
            assert b"spoken" in next(iter(taken.sheet.heard.values()))
            assert area.find(b"spoken", 0, SEARCHED) == area.find(b"somebody", 0, SEARCHED) == -1
            assert taken.seal(order("7", taken)) is not None
            assert area.find(KEY, 0, SEARCHED) == -1
        with taken_by(made, call()) as taken:
            assert taken.seal(order("7", taken, key=KEY + b"too long")) is None
            assert area.find(KEY, 0, SEARCHED) == -1


def test_it_writes_no_core_and_is_told_nothing_by_its_command_line_or_environment() -> None:
    with preparing() as made:
        taken_by(made, call())
        (pid,) = made.pids
        limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
        (core,) = [line.split() for line in limits if line.startswith("Max core file size")]
        assert core[4:6] == ["0", "0"]
        assert "registry.preparing" in Path(f"/proc/{pid}/cmdline").read_text()
        assert Path(f"/proc/{pid}/environ").read_bytes() == b""


def test_where_no_process_can_be_started_the_caller_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with preparing(told=told.append, again_seconds=60.0) as made:
        assert made.take(call(), lines=False) is None
        assert made.take(call(), lines=False) is None
        assert told == ["FileNotFoundError"]
        assert made.pids == []


def test_none_is_left_when_this_process_closes_it_or_is_killed() -> None:
    with preparing(count=2) as made:
        taken_by(made, call())
        pids = made.pids
        assert len(pids) == 2
    assert all(is_gone(pid) for pid in pids)
    assert made.take(call(), lines=False) is None, "none is started any more"

    program = (
        "import sys, time; from registry.preparing import Preparing; made = Preparing(count=2, most=9); made.start(); "
        "print(*made.pids, flush=True); time.sleep(60)"
    )
    root = str(Path(__file__).resolve().parents[2])
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=root) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.kill()
        try:
            wait_for(lambda: all(is_gone(pid) for pid in pids))
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


OPEN = Path("/proc/self/fd")
HOSTILE = """
import os, struct, sys
frame = struct.Struct("<cQQ")
os.write(1, b"\\x06")
while len(asked := os.read(0, frame.size)) == frame.size:
    kind, number, size = frame.unpack(asked)
    {answer}
"""


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        pytest.param("os.write(1, frame.pack(b'y', number + 1, 1))", "EOFError", id="of another call"),
        pytest.param("os.write(1, frame.pack(b'y', number, 1 << 40))", "EOFError", id="larger than the memory"),
        pytest.param("os.write(1, frame.pack(b'y', number, 0))", "DecodeError", id="empty"),
        pytest.param("os.write(1, frame.pack(b'y', number, size))", "ValidationError", id="what was asked"),
        pytest.param("os.write(1, frame.pack(b'y', number, 9)[:9]); break", "EOFError", id="cut off"),
        pytest.param("os.write(1, frame.pack(b'y', number, 9)[:9])", "TimeoutError", id="cut off and silent"),
        pytest.param("os.write(1, frame.pack(b'n', number - 1, 0) * 2)", "EOFError", id="one that comes too late"),
        pytest.param("os.close(1); import time; time.sleep(9)", "EOFError", id="none, and it lives"),
    ],
)
def test_a_process_that_answers_wrongly_is_given_up_and_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch, answer: str, told: str
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(preparing_module, "_MAIN", HOSTILE.format(answer=answer).replace("{", "{{").replace("}", "}}"))
    open_before = len(list(OPEN.iterdir()))
    with preparing(told=heard.append, patience_seconds=0.2) as made:
        pids = [wait_for(lambda: made.pids)[0]]
        for times in (1, 2, 3):
            while len(heard) < times:
                assert made.take(call(), lines=False) is None
                time.sleep(0.01)
            pids += made.pids
        assert heard == [told] * 3
        assert made.take(b"x" * LEAST_BYTES, lines=False) is None
    assert all(is_gone(pid) for pid in pids)
    assert len(list(OPEN.iterdir())) == open_before


def test_a_fork_of_this_process_asks_none_and_disturbs_no_answer() -> None:
    with preparing() as made, taken_by(made, call()) as taken:
        child = fork()
        if not child:
            os._exit(0 if made.take(call(), lines=False) is None and taken.seal(order("7", taken)) is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert bodies(taken.seal(order("7", taken)), taken, "7")
