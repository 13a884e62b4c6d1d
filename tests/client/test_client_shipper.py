"""Shipping: at least once, exact bytes, in order, whatever the server and the network do."""

import json
import logging
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muniment import Recorder
from muniment.delivery import BatchAnswer, ItemResult, Verdict, backoff_seconds, can_still_come, judge
from muniment.transport import retry_after_seconds


def open_recorder(server: Any, folder: Path, **options: Any) -> Recorder:
    return Recorder(server.url, "token-1", spool=folder / "spool", **{"linger": 0.02, **options})


def record_many(recorder: Recorder, count: int, **fields: Any) -> list[str]:
    return [recorder.record(kind="turn.user", stream="c1", body={"n": n}, **fields) for n in range(count)]


def test_what_is_recorded_arrives_once_in_order_and_with_its_number(fault_server: Any, tmp_path: Path) -> None:
    with open_recorder(fault_server, tmp_path) as recorder:
        ids = record_many(recorder, 2500)
        result = recorder.flush(10)
        assert (result.acknowledged, result.pending, result.refused) == (2500, 0, 0)
        assert fault_server.order == ids
        assert [fault_server.stored[each]["seq"] for each in ids] == list(range(1, 2501))
        assert max(fault_server.posts) <= 1000
        assert fault_server.tokens == {"Bearer token-1"}
        assert not list((tmp_path / "spool").glob("seg-*"))


@pytest.mark.scenario("L39")
@pytest.mark.parametrize("fault", ["lost", "half", "reset", "html", "500"])
def test_a_fault_delays_and_neither_loses_nor_doubles(fault_server: Any, tmp_path: Path, fault: str) -> None:
    fault_server.faults.extend([fault, fault])
    with open_recorder(fault_server, tmp_path) as recorder:
        ids = record_many(recorder, 30)
        result = recorder.flush(15)
        assert result.acknowledged == 30
        assert result.pending == 0
    assert fault_server.order == ids


def test_a_refusal_that_is_not_the_services_own_lets_go_of_nothing(fault_server: Any, tmp_path: Path) -> None:
    # A proxy, or another server at a mistyped address: entries were taken for refused, and dropped past their bound.
    fault_server.faults.extend(["page400"] * 3)
    with open_recorder(fault_server, tmp_path) as recorder:
        ids = record_many(recorder, 3)
        result = recorder.flush(15)
        assert (result.acknowledged, result.pending, result.refused) == (3, 0, 0)
        assert recorder.stats().errors["server.400"] >= 1
    assert fault_server.order == ids


def test_retry_after_is_waited_for(fault_server: Any, tmp_path: Path) -> None:
    fault_server.faults.append("503")
    with open_recorder(fault_server, tmp_path) as recorder:
        begun = time.monotonic()
        record_many(recorder, 1)
        assert recorder.flush(10).pending == 0
        assert time.monotonic() - begun >= 1.0


def test_a_wrong_token_keeps_everything_and_says_so_once(
    fault_server: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fault_server.faults.extend(["401"] * 3)
    with open_recorder(fault_server, tmp_path) as recorder, caplog.at_level(logging.ERROR, "muniment"):
        record_many(recorder, 5)
        assert recorder.flush(10).acknowledged == 5
        assert recorder.stats().errors == {"server.401": 3}
        assert sum("server.401" in message for message in caplog.messages) == 1
        assert "token-1" not in caplog.text + repr(recorder)


def test_entries_of_an_unknown_class_wait_and_arrive_when_it_exists(fault_server: Any, tmp_path: Path) -> None:
    recorder = open_recorder(fault_server, tmp_path)
    waiting = recorder.record(kind="note", stream="c1", data_class="voice", body=b'{ "exact" :\n 1.50 }')
    other = recorder.record(kind="note", stream="c1", body=1)
    result = recorder.flush(5)
    assert (result.acknowledged, result.pending, result.refused) == (1, 1, 0)
    assert fault_server.order == [other]
    recorder.close()

    again = open_recorder(fault_server, tmp_path)
    assert again.stats().parked == 1
    fault_server.classes.add("voice")
    assert again.flush(5).pending == 0
    assert fault_server.order == [other, waiting]
    assert b'"body":{ "exact" :\n 1.50 }' in fault_server.bodies[-1]
    assert again.stats().parked == 0
    again.close()


def test_a_refused_entry_is_kept_with_its_reason_and_does_not_stop_the_others(
    fault_server: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fault_server.bad_kinds.add("bogus")
    with open_recorder(fault_server, tmp_path) as recorder, caplog.at_level(logging.ERROR, "muniment"):
        recorder.record(kind="bogus", stream="c1", body={"secret": "canary"}, subjects=["user:1"])
        recorder.record(kind="bogus", stream="c1", body={"secret": "canary"}, subjects=["user:2"])
        recorder.record(kind="note", stream="c1", body=2)
        result = recorder.flush(5)
        assert (result.acknowledged, result.pending, result.refused) == (1, 0, 2)
        path = tmp_path / "spool" / "refused" / "entries.ndjson"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["problem"]["type"] for line in lines] == ["/problems/invalid"] * 2
        assert [line["entry"]["subjects"] for line in lines] == [["user:1"], ["user:2"]]
        assert len([message for message in caplog.messages if "refused" in message]) == 1
        assert "canary" not in caplog.text
        assert recorder.purge("user:1") == 1
        assert [json.loads(line)["entry"]["subjects"] for line in path.read_text().splitlines()] == [["user:2"]]


def test_purge_takes_a_person_out_of_what_is_parked(fault_server: Any, tmp_path: Path) -> None:
    with open_recorder(fault_server, tmp_path) as recorder:
        recorder.record(kind="note", stream="c1", data_class="voice", body=1, subjects=["user:1"])
        part = {"name": "p", "subjects": ["user:1"], "body": 3}
        recorder.record(kind="note", stream="c1", data_class="voice", parts=[part], subjects=["user:2"])
        recorder.record(kind="note", stream="c1", data_class="voice", body=2, subjects=["user:2"])
        assert recorder.flush(5).pending == 3
        assert recorder.purge("user:1") == 2
        assert recorder.stats().parked == 1
        assert b"user:1" not in (tmp_path / "spool" / "parked").read_bytes()


def test_one_poisonous_entry_of_a_refused_batch_is_found_and_the_rest_arrives(
    fault_server: Any, tmp_path: Path
) -> None:
    fault_server.poison = '"n":137}'
    with open_recorder(fault_server, tmp_path) as recorder:
        ids = record_many(recorder, 300)
        result = recorder.flush(10)
        assert (result.acknowledged, result.refused, result.pending) == (299, 1, 0)
    assert fault_server.order == [each for number, each in enumerate(ids) if number != 137]


def test_a_suppressed_entry_is_let_go_and_said_once_with_what_to_do(
    fault_server: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fault_server.suppressed_subjects.add("user:9")
    with open_recorder(fault_server, tmp_path) as recorder, caplog.at_level(logging.INFO, "muniment"):
        record_many(recorder, 3, subjects=["user:9"])
        assert recorder.flush(5).pending == 0
        assert recorder.stats().suppressed == 3
        assert recorder.stats().errors == {}, "nothing is wrong"
    told = [record for record in caplog.records if "erasure is in force" in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING"]
    assert "/v1/subjects:reopen" in told[0].getMessage()
    assert "user:9" not in caplog.text


def test_an_entry_of_which_only_a_part_was_taken_is_said_too(
    fault_server: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fault_server.suppressed_parts = [1]
    with open_recorder(fault_server, tmp_path) as recorder, caplog.at_level(logging.INFO, "muniment"):
        record_many(recorder, 2)
        assert recorder.flush(5).pending == 0
        assert recorder.stats().suppressed == 0
    assert sum("erasure is in force" in message for message in caplog.messages) == 1


def test_a_receipt_is_handed_over_and_a_bad_callback_harms_nothing(fault_server: Any, tmp_path: Path) -> None:
    receipts: list[Any] = []

    def keep(receipt: Any) -> None:
        receipts.append(receipt)
        raise RuntimeError

    with open_recorder(fault_server, tmp_path, on_receipt=keep) as recorder:
        record_many(recorder, 4)
        assert recorder.flush(5).acknowledged == 4
        assert sum(receipt["count"] for receipt in receipts) == 4
        assert recorder.stats().errors["on_receipt"] == len(receipts)


def test_what_a_closed_recorder_left_is_shipped_by_the_next_under_the_same_name(
    fault_server: Any, tmp_path: Path
) -> None:
    fault_server.faults.extend(["500"] * 100)
    first = open_recorder(fault_server, tmp_path)
    ids = record_many(first, 7)
    assert first.close(0.05).pending == 7
    fault_server.faults.clear()
    second = open_recorder(fault_server, tmp_path)
    assert second.id == first.id
    ids += record_many(second, 2)
    assert second.flush(10).pending == 0
    assert fault_server.order == ids
    assert [fault_server.stored[each]["seq"] for each in ids] == list(range(1, 10))
    second.close()


def test_drops_are_told_in_the_record_with_their_number(fault_server: Any, tmp_path: Path) -> None:
    fault_server.faults.extend(["500"] * 1000)
    with open_recorder(fault_server, tmp_path, max_bytes=64 << 10, segment_bytes=16 << 10) as recorder:
        recorded = [recorder.record(kind="note", stream="c1", body="x" * 2000) for _ in range(60)]
        dropped = recorded.count("")
        assert dropped > 0
        assert recorder.stats().dropped == dropped
        fault_server.faults.clear()
        deadline = time.monotonic() + 15
        while not (told := heartbeats(fault_server)) and time.monotonic() < deadline:
            recorder.flush(1)
        assert [entry["body"]["dropped"] for entry in told] == [dropped]
        assert told[0]["stream"] == f"recorder:{recorder.id}"
        assert recorder.flush(5).pending == 0
        seqs = {entry["seq"] for entry in fault_server.stored.values()}
        assert max(seqs) - len(seqs) == dropped  # the gap in the numbers is as large as the drops told


def heartbeats(server: Any) -> list[dict[str, Any]]:
    return [entry for entry in server.stored.values() if entry["kind"] == "recorder.heartbeat"]


def test_heartbeats_come_only_when_asked_for(fault_server: Any, tmp_path: Path) -> None:
    with open_recorder(fault_server, tmp_path) as quiet:
        record_many(quiet, 1)
        quiet.flush(5)
    assert heartbeats(fault_server) == []
    with open_recorder(fault_server, tmp_path, heartbeat=0.05) as recorder:
        deadline = time.monotonic() + 10
        while len(heartbeats(fault_server)) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert {entry["stream"] for entry in heartbeats(fault_server)} == {f"recorder:{recorder.id}"}
        assert "subjects" not in heartbeats(fault_server)[0]
    assert len(heartbeats(fault_server)) >= 2


def test_a_flush_ends_in_time_while_the_server_is_away(tmp_path: Path) -> None:
    recorder = Recorder("http://127.0.0.1:9", "t", spool=tmp_path / "s", linger=0.02)
    record_many(recorder, 3)
    begun = time.monotonic()
    assert recorder.flush(0.3).pending == 3
    assert time.monotonic() - begun < 2
    recorder.close(0.05)


def test_only_stored_duplicate_and_suppressed_let_go_of_an_entry() -> None:
    answer = BatchAnswer(
        [
            ItemResult("a", "stored"),
            ItemResult("b", "rejected", msgspec.Raw(b'{"type":"/problems/unknown-kind"}')),
            ItemResult("c", "rejected", msgspec.Raw(b'"/problems/id-conflict"')),
            ItemResult("d", "queued"),
        ]
    )
    verdicts = [judged.verdict for judged in judge(["c", "a", "b", "d", "e"], answer)]
    assert verdicts == [Verdict.REFUSE, Verdict.STORED, Verdict.PARK, Verdict.AGAIN, Verdict.AGAIN]


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        ({"type": "/problems/unknown-class"}, True),
        ({"type": "https://example.org/problems/unknown-kind/"}, True),
        ("unknown_data_class", True),
        ({"type": "/problems/record-damaged"}, True),
        ({"type": "/problems/id-conflict"}, False),
        ({"type": "/problems/unknown-source"}, False),
        ({}, False),
        (None, False),
    ],
)
def test_only_a_class_or_kind_or_a_record_that_is_mended_can_still_come(problem: object, expected: bool) -> None:
    assert can_still_come(problem) is expected


def test_backoff_grows_to_a_bound_and_is_never_under_what_was_asked() -> None:
    assert 0.2 <= backoff_seconds(1, None) <= 0.4
    assert all(backoff_seconds(each, None) <= 30 for each in range(100))
    assert backoff_seconds(50, None) >= 15
    assert backoff_seconds(1, 7.5) == 7.5
    assert backoff_seconds(1, 1e9) == 600


def test_retry_after_is_read_in_both_forms() -> None:
    assert retry_after_seconds("12", 0) == 12
    assert retry_after_seconds("Sun, 06 Nov 1994 08:49:37 GMT", 784111777 - 5) == 5
    assert retry_after_seconds("soon", 0) is None
    assert retry_after_seconds(None, 0) is None
