"""An agent with the SDK: its words survive its own death and the server's, and arrive once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from muniment import Recorder
from tests.process.conftest import wait_for

pytestmark = pytest.mark.process
PURPOSE = "dispute;case=agent"

AGENT = """
import sys
from muniment import Recorder, subject
recorder = Recorder(sys.argv[1], sys.argv[2], spool=sys.argv[3], name="agent-1", linger=3600)
with subject("user:kept", conversation="conv_spool"):
    for number in range(int(sys.argv[4])):
        assert recorder.record(kind="turn.user", body={"n": number})
print("recorded", flush=True)
import time
time.sleep(600)
"""


def replayed(desk: Any, stream: str) -> list[Any]:
    entries: list[Any] = desk.call("auditor", "POST", "/v1/replay", {"stream": stream}, purpose=PURPOSE)["entries"]
    return entries


def test_what_an_agent_recorded_before_it_was_killed_is_stored_once_by_the_next_one(desk: Any, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, desk.running.url, desk.tokens["writer"], str(spool), "300"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert agent.stdout is not None
    assert agent.stdout.readline() == "recorded\n"
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    agent.stdout.close()
    with Recorder(desk.running.url, desk.tokens["writer"], spool=spool, name="agent-1") as recorder:
        result = recorder.flush(timeout=60)
        assert (result.pending, result.refused) == (0, 0)
    assert [entry["body"]["n"] for entry in replayed(desk, "conv_spool")] == list(range(300))
    assert not any(b'"n":299' in path.read_bytes() for path in spool.rglob("*") if path.is_file())


def test_an_agent_records_while_the_server_is_away_and_nothing_is_lost_or_doubled(running: Any, tmp_path: Path) -> None:
    from tests.process.conftest import new_desk

    desk = new_desk(running)
    recorder = Recorder(running.url, desk.tokens["writer"], spool=tmp_path / "spool", linger=0.01, timeout=5)
    for number in range(50):
        recorder.record(kind="turn.user", stream="conv", subjects=["user:u"], body={"n": number})
    assert recorder.flush(timeout=30).pending == 0
    port = running._socket.getsockname()[1]
    running.stop()
    started = time.perf_counter()
    for number in range(50, 150):
        recorder.record(kind="turn.user", stream="conv", subjects=["user:u"], body={"n": number})
    assert time.perf_counter() - started < 1, "recording never waits for the server"
    running.start(port=port)
    assert wait_for(lambda: recorder.flush(timeout=5).pending == 0, 60)
    recorder.close()
    assert [entry["body"]["n"] for entry in replayed(desk, "conv")] == list(range(150))
    desk.close()


def test_an_entry_of_a_class_that_does_not_exist_yet_waits_for_it(desk: Any, tmp_path: Path) -> None:
    spec = {
        "state": "record", "personal": True, "owner": "o", "description": "d", "legal_basis": "contract",
        "retention": {"keep": "P90D", "from": "created", "then": "erase"}, "erasure": {"on_request": "erase"},
        "access": {"roles": ["auditor"], "purposes": ["dispute"]},
    }  # fmt: skip
    with Recorder(desk.running.url, desk.tokens["writer"], spool=tmp_path / "spool", park_retry=0.2) as recorder:
        recorder.record(kind="note", stream="conv", data_class="later", subjects=["user:u"], body={"n": 1})
        assert recorder.flush(timeout=2).pending == 1
        desk.call("platform", "PUT", "/v1/data-classes/later", spec)
        assert wait_for(lambda: recorder.flush(timeout=2).pending == 0, 30)
    assert [entry["body"]["n"] for entry in replayed(desk, "conv")] == [1]
