"""What no careful caller sends, over HTTP: kept and flagged, or refused by itself; its neighbours are stored.

Each test counts the log before and after: what was refused left nothing in it.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ledger.entry import MAX_HEADER_BYTES, decode_header, sources_root, uuid7
from muniment.errors import ApiProblem
from registry.entries import MAX_PARTS
from tests.process.test_process_record import PURPOSE, entry, post

pytestmark = pytest.mark.process
LOCKED_CLASS = {
    "state": "conversation",
    "personal": True,
    "owner": "ops",
    "description": "turns under a lock",
    "legal_basis": "legitimate_interest",
    "retention": {"keep": "P1Y", "from": "created", "lock": "P90D", "then": "erase"},
    "erasure": {"on_request": "erase"},
}


def stored(desk: Any) -> int:
    """How many of the tests' own entries are in the log: all are of one class."""
    return len(desk.call("auditor", "POST", "/v1/record:search", {"data_class": "transcript"})["items"])


def header_of(desk: Any, entry_id: str) -> Any:
    return decode_header(
        base64.b64decode(desk.call("auditor", "GET", f"/v1/record/entries/{entry_id}/proof")["header"])
    )


def send_items(desk: Any, *items: bytes) -> list[dict[str, Any]]:
    """Post items as the bytes that they are; returns their results."""
    raw = b'{"entries": [' + b",".join(items) + b"]}"
    answer = desk.client("writer").send("POST", "/v1/record/entries", raw, {"Content-Type": "application/json"})
    results: list[dict[str, Any]] = json.loads(answer.body)["results"]
    return results


def with_field(name: str, value: bytes) -> bytes:
    """An entry with one more member at its end, whatever its bytes are."""
    made = {key: found for key, found in entry(recorder="r").items() if key != name or name == "id"}
    return json.dumps(made).encode()[:-1] + b', "' + name.encode() + b'": ' + value + b"}"


ODD: list[tuple[str, bytes]] = [
    ("seq", b"1.0"),
    ("seq", b"1e3"),
    ("seq", b"1e400"),
    ("seq", b"NaN"),
    ("seq", b"-Infinity"),
    ("seq", b"true"),
    ("seq", b"-1"),
    ("seq", b"9007199254740992"),
    ("seq", b"123456789012345678901234567890"),
    ("id", b'"01a22987-0f40-77cc-b1d9-1b5f5a282c26"'),
    ("stream", b'"\\ud800"'),
    ("agent", b'"\\udfff"'),
    ("subjects", b'["user:\\ud800"]'),
    ("subjects", b'["user:\\u0000"]'),
    ("subjects", b'{"user": "user_18"}'),
    ("stream", b"[" * 10_000 + b"]" * 10_000),
    ("body", b"[" * 10_000 + b"]" * 10_000),
    ("body", b'{"a":' * 201 + b"1" + b"}" * 201),
    ("body", b"{'a': 1}"),
    ("at", b'"9999-12-31T23:59:59Z"'),
    ("at", b'"9999-12-31T23:59:59-05:00"'),
    ("at", b'"0001-01-01T00:00:00+05:00"'),
    ("at", b'"2026-02-30T00:00:00Z"'),
    ("at", b"1764460800"),
    ("agent", b'"' + b"a" * 20_000 + b'"'),
]


def test_odd_envelopes_are_refused_one_by_one_and_leave_nothing(desk: Any) -> None:
    items = [item for field, value in ODD for item in (with_field(field, value), json.dumps(entry()).encode())]
    results = send_items(desk, *items)
    for (field, value), bad, good in zip(ODD, results[::2], results[1::2], strict=True):
        assert (bad["status"], good["status"]) == ("rejected", "stored"), (field, value[:40], bad)
        assert bad["problem"]["type"] in ("/problems/invalid-entry", "/problems/malformed-subject")
        assert len(json.dumps(bad["problem"])) < 500
    assert [good["index"] for good in results[1::2]] == list(range(results[1]["index"], results[1]["index"] + len(ODD)))
    assert stored(desk) == len(ODD)


def test_a_body_of_many_levels_or_kinds_of_numbers_is_kept_to_the_byte(desk: Any) -> None:
    deep = b"[" * 200 + b"]" * 200
    for body, odd in (
        (deep, False),
        (b"-0.0", False),
        (b"9007199254740993", True),
        (b"1e-400", False),
        (b"1E400", True),
    ):
        sent = entry(body=...)
        raw = json.dumps(sent).encode()[:-1] + b', "body": ' + body + b"}"
        assert send_items(desk, raw)[0]["status"] == "stored"
        read = desk.client("auditor").send("GET", f"/v1/record/entries/{sent['id']}", None, {"X-Purpose": PURPOSE}).body
        found = json.loads(read)
        assert found["noncanonical"] is odd
        assert base64.b64decode(found["body_raw"]) == body if odd else body in read


NO_BATCH = [
    b'{"entries": [], "entries": []}',
    b'{"entries": [%s], "\\u0065ntries": []}' % json.dumps(entry()).encode(),
    b'{"entries": [%s, {"body": [1, 2}]}' % json.dumps(entry()).encode(),
    b'{"entries": [{}], "more": 1}',
    b"[]",
    b'{"entries": {}}',
    b'{"entries": [1, 2',
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"entries": NaN}',
    b'{"\\ud800": 1}',
    b"",
]


def test_a_body_that_is_no_batch_is_refused_whole(desk: Any) -> None:
    for raw in NO_BATCH:
        with pytest.raises(ApiProblem) as refused:
            desk.client("writer").send("POST", "/v1/record/entries", raw, {"Content-Type": "application/json"})
        assert refused.value.status in (400, 413, 422), raw[:40]
        assert refused.value.type in ("/problems/malformed", "/problems/invalid"), raw[:40]
    assert stored(desk) == 0


def parts(count: int) -> list[dict[str, Any]]:
    return [{"name": f"p{number}", "body": number} for number in range(count)]


def test_as_many_parts_as_a_header_holds_are_stored_and_one_more_is_refused(desk: Any) -> None:
    most, more = entry(body=..., parts=parts(MAX_PARTS)), entry(body=..., parts=parts(MAX_PARTS + 1))
    results = post(desk, entry(), more, most, entry())
    assert [result["status"] for result in results] == ["stored", "rejected", "stored", "stored"]
    assert results[1]["problem"]["errors"][0]["pointer"] == "/parts"
    proof = desk.call("auditor", "GET", f"/v1/record/entries/{most['id']}/proof")
    header = base64.b64decode(proof["header"])
    assert len(header) <= MAX_HEADER_BYTES
    assert len(decode_header(header).parts) == MAX_PARTS + 1
    read = desk.call("auditor", "GET", f"/v1/record/entries/{most['id']}", purpose=PURPOSE)
    assert [part["body"] for part in read["parts"]] == list(range(MAX_PARTS))


def test_ten_thousand_sources_are_one_root_in_the_header(desk: Any) -> None:
    sources = [uuid7(datetime.now(UTC)) for _ in range(10_000)]
    sent = entry(sources=sources)
    results = post(desk, sent, entry(sources=[*sources, sources[0]]), entry())
    assert [result["status"] for result in results] == ["stored", "rejected", "stored"]
    header = header_of(desk, sent["id"])
    assert (header.sources_count, header.sources_root) == (10_000, sources_root(sources))


def test_claimed_times_years_off_are_kept_beside_the_time_of_receipt(desk: Any) -> None:
    """A lock counts from the later of both times: never from a date in the past, never from one decades ahead."""
    now = datetime.now(UTC)
    desk.call("platform", "PUT", "/v1/data-classes/locked-turns", LOCKED_CLASS)
    for at in (datetime(1971, 1, 1, tzinfo=UTC), now - timedelta(days=3650), now + timedelta(days=366)):
        sent = entry(at=at.isoformat(), data_class="locked-turns")
        (result,) = post(desk, sent)
        assert result["status"] == "stored", result
        header = header_of(desk, sent["id"])
        assert header.at == at
        assert abs(header.received - now) < timedelta(minutes=2)
        end = max(header.received, at) + timedelta(days=90)
        assert {part.object.split("/")[1] for part in header.parts if part.role == "part.0"} == {f"{end:%Y-%m}"}
    (refused,) = post(desk, entry(at=(now + timedelta(days=740)).isoformat(), data_class="locked-turns"))
    assert (refused["status"], refused["problem"]["errors"][0]["pointer"]) == ("rejected", "/at")
