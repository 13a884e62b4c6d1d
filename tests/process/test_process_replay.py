"""Replay through HTTP: exact, proven, withheld where the purpose does not reach, by pages, as text."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from ledger.entry import decode_header, uuid7
from muniment.errors import ApiProblem

pytestmark = pytest.mark.process
PURPOSE = "dispute;case=7"


def say(desk: Any, stream: str, *bodies: Any, **more: Any) -> list[str]:
    entries = [
        {
            "id": uuid7(datetime.now(UTC)), "stream": stream, "kind": "turn.user", "at": "2026-11-29T12:00:00Z",
            "data_class": "transcript", "subjects": ["user:u"], "body": body, **more,
        }
        for body in bodies
    ]  # fmt: skip
    results = desk.call("writer", "POST", "/v1/record/entries", {"entries": entries})["results"]
    assert {one["status"] for one in results} == {"stored"}
    return [entry["id"] for entry in entries]


def replay(desk: Any, **body: Any) -> Any:
    return desk.call("auditor", "POST", "/v1/replay", body, purpose=PURPOSE)


def test_a_stream_is_replayed_in_order_and_proven_against_one_checkpoint(desk: Any) -> None:
    ids = say(desk, "conv", {"n": 0}, {"n": 1}, {"n": 2}, run="run_1", model="m-1", actor="u")
    say(desk, "other", {"n": 9})
    found = replay(desk, stream="conv")
    assert [entry["id"] for entry in found["entries"]] == ids
    assert [entry["body"]["n"] for entry in found["entries"]] == [0, 1, 2]
    assert {entry["integrity"] for entry in found["entries"]} == {"verified"}
    assert found["complete"] is True
    assert found["entries"][0]["model"] == "m-1"
    assert "muniment/" in found["checkpoint"]


def test_pages_join_to_the_whole(desk: Any) -> None:
    ids = say(desk, "conv", *({"n": number} for number in range(7)))
    seen, cursor = [], None
    while True:
        page = replay(desk, stream="conv", limit=3, **({"cursor": cursor} if cursor else {}))
        seen += [entry["id"] for entry in page["entries"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
        assert page["complete"] is False
    assert seen == ids


def test_what_the_purpose_does_not_reach_is_withheld_and_said_so(desk: Any) -> None:
    spec = {
        "state": "record", "personal": True, "owner": "o", "description": "d", "legal_basis": "contract",
        "retention": {"keep": "P90D", "from": "created", "then": "erase"}, "erasure": {"on_request": "erase"},
        "access": {"roles": ["legal"], "purposes": ["fraud"]},
    }  # fmt: skip
    desk.call("platform", "PUT", "/v1/data-classes/secret_notes", spec)
    say(desk, "conv", {"open": True})
    say(desk, "conv", {"closed": True}, data_class="secret_notes")
    found = replay(desk, stream="conv")
    assert [entry["integrity"] for entry in found["entries"]] == ["verified", "withheld"]
    assert "closed" not in json.dumps(found["entries"][1])
    fraud = desk.call("legal", "POST", "/v1/replay", {"stream": "conv"}, purpose="fraud")
    assert [entry["integrity"] for entry in fraud["entries"]] == ["withheld", "verified"]


def test_a_transcript_as_lines_and_as_a_page_that_loads_nothing(desk: Any) -> None:
    say(desk, "conv", {"text": "<script>alert(1)</script>"})
    client = desk.client("auditor")
    body = json.dumps({"stream": "conv"}).encode()
    headers = {"Content-Type": "application/json", "X-Purpose": PURPOSE}
    lines = client.send("POST", "/v1/replay", body, {**headers, "Accept": "application/x-ndjson"}).body.splitlines()
    assert len(lines) == 2
    assert json.loads(lines[1])["body"]["text"].startswith("<script>")
    answer = client.send("POST", "/v1/replay", body, {**headers, "Accept": "text/html"})
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.headers["x-content-type-options"] == "nosniff"
    page = answer.body
    plain = {**headers, "Accept": "application/json, text/html;q=0"}
    assert client.send("POST", "/v1/replay", body, plain).headers["content-type"] == "application/json"
    assert b"<script>alert" not in page
    assert b"http" not in page.split(b"<body")[0]


def test_an_unknown_stream_is_unknown(desk: Any) -> None:
    with pytest.raises(ApiProblem) as refused:
        replay(desk, stream="never")
    assert refused.value.status == 404


def test_a_stream_as_it_was_at_a_size_and_at_an_instant(desk: Any) -> None:
    first = say(desk, "conv", {"n": 0})
    size = replay(desk, stream="conv")["entries"][0]["index"] + 1
    between = datetime.now(UTC).isoformat()
    say(desk, "conv", {"n": 1})
    assert [entry["id"] for entry in replay(desk, stream="conv", size=size)["entries"]] == first
    assert [entry["id"] for entry in replay(desk, stream="conv", at=between)["entries"]] == first


def test_damage_in_the_bucket_is_named_by_entry(desk: Any, running: Any) -> None:
    if running.settings.objects.startswith("s3://"):
        pytest.skip("the bytes of a real bucket are altered through its hostile operator in the audit tests")
    say(desk, "conv", {"n": "will be altered"})
    say(desk, "conv", {"n": "will be removed"})
    log = running.services.log
    tenant = next(one for one in running.services.tenants() if one.tenant == desk.tenant)
    places = [entry["index"] for entry in replay(desk, stream="conv")["entries"]]
    keys = [decode_header(raw).parts[0].object for raw in log.headers(tenant.tenant_id, places)]
    altered, removed = (running.settings.data / "objects" / tenant.log_id / key for key in keys)
    altered.chmod(0o600)
    data = bytearray(altered.read_bytes())
    data[80] ^= 1
    altered.write_bytes(bytes(data))
    removed.unlink()
    found = replay(desk, stream="conv")
    assert [entry["integrity"] for entry in found["entries"]] == ["altered", "missing"]
    assert found["complete"] is False


def test_a_hole_in_a_recorders_numbers_is_a_gap_only_if_no_stream_holds_them(desk: Any) -> None:
    numbers = {"conv": (1, 2, 5, 6, 9), "other": (3, 4)}
    for stream, found in numbers.items():
        for seq in found:
            say(desk, stream, {"n": seq}, recorder="r1", seq=seq)
    found = replay(desk, stream="conv")
    assert [(gap["kind"], gap["from"], gap["to"]) for gap in found["gaps"]] == [("recorder", 7, 8)]
    assert [(hole["from"], hole["to"]) for hole in found["seq_holes"]] == [(3, 4)]
    assert found["complete"] is False
    # Spooled entries that arrive late close the gap.
    say(desk, "other", {"n": 8}, recorder="r1", seq=8)
    assert [(gap["from"], gap["to"]) for gap in replay(desk, stream="conv")["gaps"]] == [(7, 8)]
    say(desk, "third", {"n": 7}, recorder="r1", seq=7)
    found = replay(desk, stream="conv")
    assert (found["gaps"], found["complete"]) == ([], True)
    assert replay(desk, stream="other")["complete"] is True


def test_a_recorder_that_used_to_send_heartbeats_and_stopped_is_told_as_silent(desk: Any) -> None:
    beats = [0, 10, 20, 30, 40, 50, 600, 610]
    say(desk, "conv", {"n": 0}, recorder="r1", seq=100, at="2026-11-29T12:00:01Z")
    for seq, second in enumerate(beats):
        at = f"2026-11-29T12:{second // 60:02}:{second % 60:02}Z"
        say(
            desk, "recorder:r1", {"recorded": seq}, kind="recorder.heartbeat", data_class="skeleton", recorder="r1",
            seq=101 + seq, at=at, subjects=[],
        )  # fmt: skip
    say(desk, "conv", {"n": 1}, recorder="r1", seq=109, at="2026-11-29T12:11:00Z")
    found = replay(desk, stream="conv")
    assert found["complete"] is True
    (silence,) = found["silences"]
    assert (silence["since"], silence["until"], silence["usual_seconds"]) == (
        "2026-11-29T12:00:50.000000Z",
        "2026-11-29T12:10:00.000000Z",
        10.0,
    )
    say(desk, "quiet", {"n": 2}, recorder="r2", seq=1)
    assert replay(desk, stream="quiet")["silences"] == []
