"""The record through HTTP, on embedded and on real servers."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pytest

from ledger.checkpoint import parse_checkpoint, verify_note
from ledger.entry import decode_header, header_hash, uuid7
from ledger.merkle import verify_consistency, verify_inclusion
from ledger.signing import verifier_from_vkey
from muniment.errors import ApiProblem

pytestmark = pytest.mark.process
PURPOSE = "dispute;case=7"


def entry(stream: str = "conv_1", body: Any = None, **more: Any) -> dict[str, Any]:
    made = {
        "id": uuid7(datetime.now(UTC)),
        "stream": stream,
        "kind": "turn.user",
        "at": "2026-11-29T12:00:00+01:00",
        "data_class": "transcript",
        "subjects": ["user:user_18"],
        "body": body if body is not None else {"role": "user", "content": "Where is my refund?"},
    }
    made.update(more)
    return {name: value for name, value in made.items() if value is not ...}


def post(desk: Any, *entries: dict[str, Any], principal: str = "writer") -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = desk.call(principal, "POST", "/v1/record/entries", {"entries": list(entries)})[
        "results"
    ]
    return results


def test_an_entry_is_stored_sequenced_and_read_back_to_the_byte(desk: Any) -> None:
    body = b'{"role":  "user","content":"Gr\\u00fc\xc3\x9fe","n":1.50}'
    sent = entry(body=...)
    raw = json.dumps({"entries": [sent]}).encode()[:-3] + b',"body":' + body + b"}]}"
    answer = desk.client("writer").send("POST", "/v1/record/entries", raw, {"Content-Type": "application/json"})
    stored = json.loads(answer.body)
    assert stored["results"][0]["status"] == "stored"
    assert "muniment-receipt/v1" in stored["receipt"]["note"]
    read = desk.client("auditor").send("GET", f"/v1/record/entries/{sent['id']}", None, {"X-Purpose": PURPOSE})
    assert body in read.body
    assert json.loads(read.body)["index"] == stored["results"][0]["index"]


@pytest.mark.scenario("L6")
def test_a_proof_leads_from_the_header_to_a_checkpoint_of_the_pinned_key(desk: Any) -> None:
    sent = [entry() for _ in range(5)]
    post(desk, *sent)
    for one in sent:
        proof = desk.call("auditor", "GET", f"/v1/record/entries/{one['id']}/proof")
        header = base64.b64decode(proof["header"])
        assert decode_header(header).id == one["id"]
        assert header_hash(header).hex() == proof["leaf_hash"]
        head = parse_checkpoint(verify_note(proof["checkpoint"].encode(), [verifier_from_vkey(desk.log_key)]))
        assert head.size == proof["tree_size"]
        path = [bytes.fromhex(node) for node in proof["inclusion"]]
        verify_inclusion(proof["index"], head.size, header_hash(header), path, head.root)


def test_two_checkpoints_are_joined_by_a_consistency_proof(desk: Any) -> None:
    def head() -> Any:
        note = desk.client("auditor").send("GET", "/v1/log/checkpoint").body
        return parse_checkpoint(verify_note(note, [verifier_from_vkey(desk.log_key)]))

    post(desk, entry())
    old = head()
    post(desk, *[entry() for _ in range(300)])
    new = head()
    assert new.size >= old.size + 300
    proof = desk.call("auditor", "GET", f"/v1/log/consistency?from={old.size}&to={new.size}")["consistency"]
    verify_consistency(old.size, new.size, [bytes.fromhex(node) for node in proof], old.root, new.root)
    tile = desk.client("auditor").send("GET", "/v1/log/tile/0/000").body
    assert len(tile) == 256 * 32


def test_a_repeat_is_a_duplicate_and_other_content_is_an_id_conflict(desk: Any) -> None:
    sent = entry()
    first = post(desk, sent)[0]
    assert post(desk, sent)[0] == {"id": sent["id"], "status": "duplicate", "index": first["index"]}
    other = post(desk, sent | {"body": {"role": "user", "content": "something else"}})[0]
    assert other["status"] == "rejected"
    assert other["problem"]["type"] == "/problems/id-conflict"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"data_class": "nowhere"}, "unknown-class"),
        ({"kind": "made.up"}, "unknown-kind"),
        ({"kind": "key.destroyed"}, "unknown-kind"),
        ({"subjects": []}, "no-subject"),
        ({"subjects": ["nobody"]}, "malformed-subject"),
        ({"subjects": ["user:*"]}, "malformed-subject"),
        ({"id": "not-an-id"}, "invalid-entry"),
        ({"at": "2026-11-29T12:00:00"}, "invalid-entry"),
        ({"at": "yesterday"}, "invalid-entry"),
        ({"extra": 1}, "invalid-entry"),
        ({"body": ...}, "invalid-entry"),
        ({"seq": 1.5}, "invalid-entry"),
        ({"seq": 2**53}, "invalid-entry"),
        ({"sources": ["01a22987-0f40-77cc-b1d9-1b5f5a282c26"] * 10_001}, "invalid-entry"),
        ({"sources": ["x"]}, "invalid-entry"),
        ({"body": ..., "parts": []}, "invalid-entry"),
        ({"body": ..., "parts": [{"name": "a", "blob": "%%%"}]}, "invalid-entry"),
    ],
    ids=str,
)
def test_a_bad_item_is_refused_with_its_reason_and_the_others_are_stored(
    desk: Any, change: dict[str, Any], problem: str
) -> None:
    bad = {name: value for name, value in (entry(stream="own") | change).items() if value is not ...}
    results = post(desk, entry(), bad, entry())
    assert [result["status"] for result in results] == ["stored", "rejected", "stored"]
    assert results[1]["problem"]["type"] == f"/problems/{problem}"
    assert "user_18" not in json.dumps(results[1]["problem"])


def test_odd_bodies_are_kept_as_they_are_and_flagged(desk: Any) -> None:
    for odd in (b'{"a":1,"a":2}', b'{"n":123456789012345678901234567890}', b'"\\ud800"', b'{"x":1e400}', b'{"x": NaN}'):
        sent = entry(body=...)
        raw = json.dumps({"entries": [sent]}).encode()[:-3] + b',"body":' + odd + b"}]}"
        answer = desk.client("writer").send("POST", "/v1/record/entries", raw, {"Content-Type": "application/json"})
        assert json.loads(answer.body)["results"][0]["status"] == "stored", odd
        read = desk.call("auditor", "GET", f"/v1/record/entries/{sent['id']}", purpose=PURPOSE)
        assert read["noncanonical"] is True
        assert base64.b64decode(read["body_raw"]) == odd


def test_lines_that_are_not_utf_8_are_refused_one_by_one(desk: Any) -> None:
    good = json.dumps(entry()).encode()
    bad = json.dumps(entry()).encode().replace(b"refund", b"ref\xff\xfend")
    answer = desk.client("writer").send(
        "POST", "/v1/record/entries", good + b"\n" + bad + b"\n", {"Content-Type": "application/x-ndjson"}
    )
    assert [one["status"] for one in json.loads(answer.body)["results"]] == ["stored", "rejected"]


def test_too_many_entries_and_too_many_bytes_are_refused_whole(desk: Any) -> None:
    with pytest.raises(ApiProblem) as many:
        desk.call("writer", "POST", "/v1/record/entries", {"entries": [{}] * 10_001})
    assert (many.value.status, many.value.type) == (413, "/problems/too-large")
    with pytest.raises(ApiProblem) as large:
        desk.call("writer", "POST", "/v1/record/entries", {"entries": [entry(body="x" * (20 * 1024 * 1024))]})
    assert large.value.status == 413


def test_reading_needs_a_role_and_a_purpose_the_class_allows_and_becomes_an_entry(desk: Any) -> None:
    sent = entry()
    post(desk, sent)
    path = f"/v1/record/entries/{sent['id']}"
    for principal, purpose, status in (
        ("writer", PURPOSE, 403),
        ("platform", PURPOSE, 403),
        ("auditor", None, 403),
        ("auditor", "curiosity", 403),
        ("auditor", "Not a code!", 403),
    ):
        with pytest.raises(ApiProblem) as refused:
            desk.call(principal, "GET", path, purpose=purpose)
        assert refused.value.status == status
    before = desk.running.services.log.head(desk.running.services.tenants()[0].tenant_id)
    assert before is not None
    desk.call("auditor", "GET", path, purpose=PURPOSE)
    services = desk.running.services
    tenant = next(one for one in services.tenants() if one.tenant == desk.tenant)
    services.record.ship_outbox(tenant.tenant_id, services.clock.now())
    head = services.log.head(tenant.tenant_id)
    last = decode_header(services.log.headers(tenant.tenant_id, [head.size - 1])[0])
    assert last.kind == "content.read"


def test_another_tenant_neither_sees_nor_disturbs_an_entry(running: Any, desk: Any) -> None:
    from tests.process.conftest import new_desk

    other = new_desk(running)
    sent = entry()
    post(desk, sent)
    for path in (f"/v1/record/entries/{sent['id']}/proof", f"/v1/record/entries/{sent['id']}"):
        with pytest.raises(ApiProblem) as refused:
            other.call("auditor", "GET", path, purpose=PURPOSE)
        assert refused.value.status == 404
    stored = post(other, sent)[0]
    assert stored["status"] == "stored"
    assert (
        desk.call("auditor", "POST", "/v1/record:search", {"subject": "user:user_18"})["items"][0]["id"] == sent["id"]
    )
    other.close()


def test_search_finds_by_kind_class_subject_run_and_time_by_pages(desk: Any) -> None:
    post(desk, *[entry(subjects=[f"user:u{number % 3}"], run=f"run_{number % 2}") for number in range(9)])
    post(desk, entry(kind="note", at="2026-12-24T00:00:00Z"))

    def count(limit: int = 1000, **conditions: Any) -> int:
        page = desk.call("auditor", "POST", f"/v1/record:search?limit={limit}", conditions)
        found = len(page["items"])
        while page["next_cursor"]:
            page = desk.call(
                "auditor", "POST", f"/v1/record:search?limit={limit}&cursor={page['next_cursor']}", conditions
            )
            found += len(page["items"])
        return found

    assert count(subject="user:u1") == 3
    assert count(run="run_0", limit=2) == 5
    assert count(kind="note") == 1
    assert count(since="2026-12-01T00:00:00Z") == 1
    assert count(subject="user:nobody") == 0
    assert count(limit=3) == 10


def test_an_entry_without_subjects_takes_those_of_its_stream(desk: Any) -> None:
    post(desk, entry(stream="conv_9"))
    later = entry(stream="conv_9", subjects=...)
    assert post(desk, later)[0]["status"] == "stored"
    found = desk.call("auditor", "POST", "/v1/record:search", {"subject": "user:user_18"})["items"]
    assert later["id"] in [one["id"] for one in found]


@pytest.mark.scenario("L33")
def test_parts_of_several_people_and_blobs_come_back_as_they_were_sent(desk: Any) -> None:
    blob = bytes(range(256))
    sent = entry(
        body=...,
        subjects=["user:a"],
        parts=[
            {"name": "question", "subjects": ["user:a"], "body": {"text": "a asks"}},
            {"name": "answer", "subjects": ["user:b"], "body": {"text": "b answers"}},
            {"name": "voice", "subjects": ["user:a", "user:b"], "blob": base64.b64encode(blob).decode()},
        ],
    )
    assert post(desk, sent)[0]["status"] == "stored"
    read = desk.call("auditor", "GET", f"/v1/record/entries/{sent['id']}", purpose=PURPOSE)
    parts = {part["name"]: part for part in read["parts"]}
    assert parts["answer"]["body"] == {"text": "b answers"}
    assert base64.b64decode(parts["voice"]["blob"]) == blob


@pytest.mark.scenario("L34")
def test_many_writers_at_once_lose_nothing_and_share_no_index(desk: Any) -> None:
    from muniment.registry import Client

    def write(number: int) -> list[int]:
        with Client(desk.running.url, desk.tokens["writer"]) as client:
            answer = client.request(
                "POST", "/v1/record/entries", {"entries": [entry(stream=f"s{number}") for _ in range(10)]}
            )
            return [one["index"] for one in answer["results"]]

    with ThreadPoolExecutor(8) as pool:
        indexes = [index for found in pool.map(write, range(16)) for index in found]
    assert len(set(indexes)) == 160


@pytest.mark.scenario("L38")
def test_nothing_readable_of_an_entry_lies_in_any_file_of_the_service(desk: Any, running: Any) -> None:
    canary = f"Kanarienvogel-{sha256(desk.tenant.encode()).hexdigest()[:12]}"
    post(
        desk,
        entry(
            stream=f"stream of {canary}",
            run=f"run of {canary}",
            actor=f"{canary}",
            subjects=[f"name:{canary}"],
            recorder=f"recorder {canary}",
            body={"text": canary},
        ),
    )
    base = running.settings.data.parent
    hits = [path for path in base.rglob("*") if path.is_file() and canary.encode() in path.read_bytes()]
    assert hits == []


def test_an_action_is_claimed_once_and_an_unknown_outcome_is_never_safe(desk: Any) -> None:
    digest = sha256(b"refund 12.00").hexdigest()
    wanted = {"action_id": "role-14/app-1/invite", "kind": "mail.send", "lease": "PT0S", "proposal_digest": digest}
    assert desk.client("writer").send("POST", "/v1/actions", json.dumps(wanted).encode(),
                                      {"Content-Type": "application/json"}).status == 201  # fmt: skip
    assert desk.call("writer", "GET", "/v1/actions/role-14/app-1/invite")["retry"] == "ask_provider"
    assert desk.call("writer", "POST", "/v1/actions", wanted)["state"] == "unknown"
    with pytest.raises(ApiProblem) as changed:
        desk.call("writer", "POST", "/v1/actions", wanted | {"proposal_digest": sha256(b"refund 99").hexdigest()})
    assert changed.value.status == 409
    done = {"state": "succeeded", "provider_ref": "msg_1"}
    assert desk.call("writer", "POST", "/v1/actions/role-14/app-1/invite/outcome", done)["retry"] == "unsafe"
    with pytest.raises(ApiProblem) as settled:
        desk.call("writer", "POST", "/v1/actions/role-14/app-1/invite/outcome", {"state": "failed"})
    assert settled.value.status == 409
    with pytest.raises(ApiProblem) as unknown:
        desk.call("writer", "GET", "/v1/actions/never")
    assert unknown.value.status == 404
