"""The recorder: never raises, keeps bodies exact, survives kill -9, and keeps out of a fork's way."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muniment import Recorder, subject
from muniment import recorder as recorder_module
from muniment.errors import SpoolLocked
from muniment.ids import Stamper, uuid7_from
from muniment.spool import Spool

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder(NOWHERE, "token-secret", spool=tmp_path / "spool", linger=60)
    yield made
    made.close(0)


def spooled(recorder: Recorder) -> list[dict[str, Any]]:
    """Reads the files as another process would, so the recorder's own reading position stays."""
    folder = recorder._spool.folder
    found = []
    for path in sorted(folder.glob("seg-*")):
        from muniment.frames import scan

        found += [json.loads(frame.payload) for frame in scan(path.read_bytes(), 32).frames]
    return found


def test_an_entry_has_the_fields_given_and_no_others(recorder: Recorder) -> None:
    made = recorder.record(
        kind="tool.call",
        stream="c1",
        body={"tool": "refund", "amount": 12.5},
        data_class="tool",
        subjects=["user:1"],
        actor="user_1",
        run="run_1",
        agent="bot",
        model="m-1",
        prompt_version="p7",
        policy="refund_8",
        sources=["x"],
        at=datetime(2026, 3, 1, 12, tzinfo=UTC),
    )
    assert spooled(recorder) == [
        {
            "id": made,
            "seq": 1,
            "recorder": recorder.id,
            "stream": "c1",
            "kind": "tool.call",
            "at": "2026-03-01T12:00:00.000000Z",
            "data_class": "tool",
            "subjects": ["user:1"],
            "actor": "user_1",
            "body": {"tool": "refund", "amount": 12.5},
            "run": "run_1",
            "agent": "bot",
            "model": "m-1",
            "prompt_version": "p7",
            "policy": "refund_8",
            "sources": ["x"],
        }
    ]
    assert uuid.UUID(made).version == 7
    recorder.record(kind="note", stream="c1", body=None, subjects="user:2")
    last = spooled(recorder)[-1]
    assert set(last) == {"id", "seq", "recorder", "stream", "kind", "at", "data_class", "body", "subjects"}
    assert (last["body"], last["subjects"]) == (None, ["user:2"])


def test_bytes_are_kept_as_they_are(recorder: Recorder) -> None:
    text = b'{"a": 1.50,\n "a": 123456789012345678901234567890, "\\u00e9": "\xc3\xa9"}'
    recorder.record(kind="note", stream="c1", body=text)
    recorder.record(kind="note", stream="c1", parts=[{"name": "p", "body": text}, {"name": "b", "blob": b"\x00\xff"}])
    data = next(recorder._spool.folder.glob("seg-*")).read_bytes()
    assert data.count(text) == 2
    assert spooled(recorder)[1]["parts"][1] == {"name": "b", "blob": "AP8="}


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"body": b'{"broken":'}, "record.DecodeError"),
        ({"body": b'"\xff"'}, "record.UnicodeDecodeError"),
        ({"body": {"x": object()}}, "record.not_json"),
        ({}, "record.no_body"),
        ({"body": 1, "stream": None}, "record.no_stream"),
        ({"body": 1, "at": datetime(2026, 1, 1)}, "record.naive_time"),  # noqa: DTZ001 (that is the fault)
        ({"body": "x" * (16 << 20)}, "dropped.too_large"),
    ],
)
def test_a_fault_is_counted_logged_once_and_never_raised(
    recorder: Recorder, fields: dict[str, Any], fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    call: dict[str, Any] = {"kind": "note", "stream": "c1", **fields}
    assert recorder.record(**call) == ""
    assert recorder.record(**call) == ""
    assert recorder.stats().errors == {fault: 2}
    assert len([message for message in caplog.messages if fault in message]) == 1
    assert recorder.record(kind="note", stream="c1", body=1) != ""


def test_a_body_too_deep_is_a_fault_and_not_a_crash(recorder: Recorder) -> None:
    body: list[Any] = []
    for _ in range(100_000):
        body = [body]
    assert recorder.record(kind="note", stream="c1", body=body) == ""
    while body:
        body = body[0]


def test_a_closed_recorder_counts_and_does_not_raise(tmp_path: Path) -> None:
    recorder = Recorder(NOWHERE, "t", spool=tmp_path / "s")
    recorder.close(0)
    assert recorder.record(kind="note", stream="c", body=1) == ""
    assert recorder.stats().errors["record.closed"] == 1


@pytest.mark.parametrize("left", [b"", b"\xff\xfe\x00", b"r1-", b"r1-0badf00d\nr1-", b"other-0badf00d"], ids=range(5))
def test_an_id_that_a_power_cut_left_broken_is_made_anew_and_a_whole_one_kept(tmp_path: Path, left: bytes) -> None:
    (tmp_path / "recorder").write_bytes(left)
    (tmp_path / f"seg-{9:020d}").mkdir()  # not ours, and no reason not to start
    names = []
    for _ in range(2):
        with Recorder(NOWHERE, "t", spool=tmp_path) as recorder:
            names.append(recorder.id)
            assert recorder.record(kind="note", stream="c", body=1)
            recorder.close(0)
    assert names[0] == names[1]
    assert re.fullmatch("r1-[0-9a-f]{8}", names[0])


def test_two_recorders_do_not_share_a_folder(recorder: Recorder) -> None:
    with pytest.raises(SpoolLocked):
        Recorder(NOWHERE, "t", spool=recorder._spool.folder)


def test_the_scope_gives_subjects_stream_and_run_and_an_argument_beats_it(recorder: Recorder) -> None:
    with subject("user:1", conversation="c1", run="r1"):
        recorder.record(kind="note", body=1)
        with subject("user:2"):
            recorder.record(kind="note", body=2)
        recorder.record(kind="note", body=3, stream="c9", subjects=["user:3"], run="r9")
    assert recorder.record(kind="note", body=4) == ""
    assert [(entry["subjects"], entry["stream"], entry["run"]) for entry in spooled(recorder)] == [
        (["user:1"], "c1", "r1"),
        (["user:2"], "c1", "r1"),
        (["user:3"], "c9", "r9"),
    ]


def test_each_task_has_its_own_scope(recorder: Recorder) -> None:
    async def talk(number: int) -> None:
        with subject(f"user:{number}", conversation=f"c{number}"):
            for _ in range(3):
                recorder.record(kind="note", body=number)
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(talk(number) for number in range(10)))

    asyncio.run(main())
    assert len(spooled(recorder)) == 30
    assert all(
        (entry["subjects"], entry["stream"]) == ([f"user:{entry['body']}"], f"c{entry['body']}")
        for entry in spooled(recorder)
    )


def test_threads_record_side_by_side_and_numbers_are_those_of_the_file(recorder: Recorder) -> None:
    ids: list[str] = []

    def work() -> None:
        ids.extend([recorder.record(kind="note", stream="c", body="x" * 500) for _ in range(300)])

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = spooled(recorder)
    assert [entry["seq"] for entry in entries] == list(range(1, 1801))
    assert {entry["id"] for entry in entries} == set(ids)


def test_a_signal_handler_that_records_in_the_middle_of_a_record_does_not_hang(recorder: Recorder) -> None:
    lock = recorder._spool._lock
    begun = time.monotonic()
    with lock:  # as if the handler had interrupted append
        assert recorder.record(kind="note", stream="c", body=1) == ""
    assert time.monotonic() - begun < 5
    assert recorder.stats().errors == {"dropped.busy": 1}


KILLED = """
import os, sys
from muniment import Recorder
recorder = Recorder("http://127.0.0.1:9", "t", spool=sys.argv[1], segment_bytes=1 << 16, max_bytes=1 << 26)
n = 0
while True:
    made = recorder.record(kind="note", stream="c", body={"n": n, "text": "x" * 700})
    os.write(1, made.encode() + b"\\n")
    n += 1
"""


@pytest.mark.parametrize("after", [1, 500, 4000])
def test_nothing_acknowledged_is_lost_when_the_process_is_killed(tmp_path: Path, after: int) -> None:
    folder = tmp_path / "spool"
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout as stream:
        seen = [stream.readline() for _ in range(after)]
        child.send_signal(signal.SIGKILL)
        seen += stream.readlines()
    assert child.wait() == -signal.SIGKILL
    told = [line.decode().strip() for line in seen if line.endswith(b"\n")]
    spool = Spool(folder)
    kept = [json.loads(record.payload) for record in spool.read(1 << 20, 1 << 30)]
    spool.close()
    assert spool.damages == []
    assert [entry["id"] for entry in kept][: len(told)] == told
    assert len(kept) <= len(told) + 1  # one may be written and not yet told
    assert [entry["seq"] for entry in kept] == list(range(1, len(kept) + 1))


def test_after_a_kill_everything_is_shipped_once_by_the_next_start(fault_server: Any, tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "spool")], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout as stream:
        seen = [stream.readline().decode().strip() for _ in range(300)]
        child.kill()
        seen += [line.decode().strip() for line in stream.readlines() if line.endswith(b"\n")]
    child.wait()
    with Recorder(fault_server.url, "t", spool=tmp_path / "spool", linger=0.02) as recorder:
        assert recorder.flush(10).pending == 0
    assert fault_server.order[: len(seen)] == seen


FORKING = """
import os, sys, json
from muniment import Recorder
recorder = Recorder(sys.argv[2], "t", spool=sys.argv[1], linger=0.02)
before = recorder.record(kind="note", stream="c", body="parent before")
read, write = os.pipe()
child = os.fork()
if child == 0:
    made = recorder.record(kind="note", stream="c", body="child")
    os.write(write, json.dumps([made, recorder.id, recorder.stats().recorded]).encode())
    os._exit(0)
os.waitpid(child, 0)
os.close(write)
made, child_id, recorded = json.loads(os.read(read, 4096))
after = recorder.record(kind="note", stream="c", body="parent after")
parent_id = recorder.id
recorder.close(10)
with Recorder(sys.argv[2], "t", spool=sys.argv[1], linger=0.02) as again:
    again.flush(10)
    left = [name for name in os.listdir(sys.argv[1]) if name.startswith("child-")]
print(json.dumps([before, made, after, parent_id, child_id, recorded, left]))
"""


def test_a_forked_child_records_into_its_own_folder_and_the_parent_ships_it(fault_server: Any, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(tmp_path / "spool"), fault_server.url],
        capture_output=True,
        check=True,
        timeout=60,
    )
    before, made, after, parent_id, child_id, recorded, left = json.loads(done.stdout)
    assert set(fault_server.order) == {before, made, after}
    assert parent_id != child_id
    assert recorded == 1
    assert fault_server.stored[made]["recorder"] == child_id
    assert [fault_server.stored[each]["seq"] for each in (before, made, after)] == [1, 1, 2]
    assert left == []


def test_a_child_whose_folder_was_taken_before_it_was_locked_takes_another(
    fault_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent looks for folders of children that ended, and may meet one that is only just made."""
    names = iter(["child-taken", "child-gone", "child-free"])

    def spool(folder: Path, **more: Any) -> Any:
        if folder.name == "child-gone":
            raise FileNotFoundError(folder)
        return Spool(folder, **more)

    with Recorder(fault_server.url, "t", spool=tmp_path / "spool", linger=0.02) as recorder:
        monkeypatch.setattr(recorder_module, "new_child_folder", lambda folder: folder / next(names))
        monkeypatch.setattr(recorder_module, "Spool", spool)
        recorder._shipper.stop(5)
        recorder._spool.close()
        parents = Spool(tmp_path / "spool" / "child-taken")
        recorder._forked = True  # as in a child, without the fork
        made = recorder.record(kind="note", stream="c", body="child")
        assert made
        assert recorder.flush(10).pending == 0
        assert (tmp_path / "spool" / "child-free").is_dir()
        parents.close()
    assert fault_server.order == [made]


def test_a_program_that_ends_without_closing_ships_on_its_way_out(fault_server: Any, tmp_path: Path) -> None:
    program = (
        "import sys; from muniment import Recorder; r = Recorder(sys.argv[2], 't', spool=sys.argv[1]); "
        "print(r.record(kind='note', stream='c', body=1))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "s"), fault_server.url],
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    )
    assert fault_server.order == [done.stdout.strip()]


def test_importing_the_sdk_loads_nothing_heavy() -> None:
    program = (
        "import sys; before = set(sys.modules); import muniment; "
        "print(sorted({'http.client', 'ssl', 'urllib.request', 'asyncio', 'email', 'sqlite3', 'pydantic'} "
        "& (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"


@settings(max_examples=50)
@given(st.integers(0, (1 << 48) - 1), st.integers(0, 0xFFF), st.integers(0, (1 << 62) - 1))
def test_an_id_is_a_uuid_of_version_seven_that_carries_its_time(milliseconds: int, low: int, rest: int) -> None:
    made = uuid.UUID(uuid7_from(milliseconds, low, rest))
    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert made.int >> 80 == milliseconds
    assert made.int & ((1 << 62) - 1) == rest


def test_ids_differ_and_times_are_of_now() -> None:
    stamper = Stamper()
    stamps = [stamper.stamp() for _ in range(20_000)]
    assert len({made for made, _ in stamps}) == 20_000
    moment = datetime.fromisoformat(stamps[-1][1])
    assert abs(moment.timestamp() - time.time()) < 5
