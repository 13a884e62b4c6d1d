"""The file of receipts: a line for each answer that bears one, whole, whatever was left behind by a crash."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import stat
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muniment import Recorder, receipts
from muniment.delivery import BatchAnswer
from muniment.receipts import ReceiptFile

ANSWER = b'{"results":[{"id":"a","status":"stored","index":7},{"id":"b","status":"rejected","problem":{"type":"x"}}],'
KEPT = {"receipt": {"note": "n"}, "results": [{"id": "a", "index": 7}]}


def answer(receipt: bytes = b'{"note":"n"}') -> BatchAnswer:
    return msgspec.json.decode(ANSWER + b'"receipt":' + receipt + b"}", type=BatchAnswer)


def test_what_an_answer_acknowledges_and_signs_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "receipts"
    kept = ReceiptFile(path)
    kept.keep(answer())
    kept.keep(answer(b"null"))
    kept.keep(answer())
    assert [json.loads(line) for line in path.read_text().splitlines()] == [KEPT] * 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("left", [b'{"receipt":', b'{"a":1}\n{'])
def test_a_line_that_a_crash_cut_short_spoils_no_other(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "receipts"
    path.write_bytes(left)
    ReceiptFile(path).keep(answer())
    ReceiptFile(path).keep(answer())
    assert path.read_bytes().startswith(left + b"\n")
    assert [json.loads(line) for line in path.read_text().splitlines()[-2:]] == [KEPT] * 2


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    kept = ReceiptFile(tmp_path / "receipts")
    kept.keep(answer())
    (tmp_path / "receipts").rename(tmp_path / "old")
    kept.keep(answer())
    assert (tmp_path / "receipts").read_bytes() == (tmp_path / "old").read_bytes()


def test_a_line_that_the_system_takes_in_pieces_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: whole(descriptor, bytes(data[:7])))
    ReceiptFile(tmp_path / "receipts").keep(answer())
    assert json.loads((tmp_path / "receipts").read_text()) == KEPT


def test_no_line_is_joined_to_one_that_another_process_is_still_writing(tmp_path: Path) -> None:
    path = tmp_path / "receipts"
    with path.open("ab", buffering=0) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b'{"of":')
        mine = threading.Thread(target=ReceiptFile(path).keep, args=[answer()])
        mine.start()
        mine.join(0.1)
        other.write(b'"another"}\n')
    mine.join(5)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"of": "another"}, KEPT]


def test_a_process_that_stopped_while_it_wrote_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "_LOCK_SECONDS", 0.02)
    path = tmp_path / "receipts"
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            ReceiptFile(path).keep(answer())
    assert path.read_bytes() == b""
    ReceiptFile(path).keep(answer())
    assert json.loads(path.read_text()) == KEPT


def test_a_file_that_was_made_and_got_no_line_has_its_name_brought_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "receipts"
    path.touch()  # as a process leaves it that was killed before its first line
    synced: list[bool] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    kept = ReceiptFile(path)
    kept.keep(answer())
    kept.keep(answer())
    assert synced == [True, False, False]


def test_a_recorder_keeps_the_receipt_of_every_batch_before_it_lets_go_of_it(fault_server: Any, tmp_path: Path) -> None:
    path = tmp_path / "receipts"
    with Recorder(fault_server.url, "t", spool=tmp_path / "spool", linger=0.02, receipts=path) as recorder:
        ids = [recorder.record(kind="turn.user", stream="c1", body={"n": number}) for number in range(1200)]
        assert recorder.flush(10).acknowledged == 1200
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    placed = {one["id"]: one["index"] for line in lines for one in line["results"]}
    assert placed == {entry_id: number for number, entry_id in enumerate(ids)}
    assert sum(line["receipt"]["count"] for line in lines) == 1200


def test_a_receipt_that_cannot_be_kept_holds_up_no_entry_and_is_counted(
    fault_server: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    path = tmp_path / "none" / "receipts"
    with Recorder(fault_server.url, "t", spool=tmp_path / "spool", linger=0.02, receipts=path) as recorder:
        recorder.record(kind="turn.user", stream="c1", body={"n": 1})
        assert recorder.flush(10).acknowledged == 1
        assert recorder.stats().errors["receipts"] == 1
    assert "a receipt could not be kept" in caplog.text
