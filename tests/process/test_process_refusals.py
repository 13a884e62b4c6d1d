"""Refusals say where, in one form: `errors[]` with JSON pointers (RFC 6901), the item's id, and the right status."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from ledger.entry import uuid7
from muniment.errors import ApiProblem

# What is refused, and where, is the same on every database and store.
pytestmark = [pytest.mark.process, pytest.mark.parametrize("running", ["embedded"], indirect=True)]


def entry(**more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": uuid7(datetime.now(UTC)),
        "stream": "conv_1",
        "kind": "turn.user",
        "at": "2026-11-29T12:00:00Z",
        "data_class": "transcript",
        "subjects": ["user:user_18"],
        "body": {"role": "user", "content": "Where is my refund?"},
    }
    made.update(more)
    return {name: value for name, value in made.items() if value is not ...}


def refused(desk: Any, principal: str, method: str, path: str, body: object) -> ApiProblem:
    with pytest.raises(ApiProblem) as caught:
        desk.call(principal, method, path, body)
    return caught.value


def wait_for(done: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def pointers(problem: ApiProblem) -> list[str]:
    assert all(set(one) == {"pointer", "detail"} and one["detail"] for one in problem.errors), problem.errors
    return [one["pointer"] for one in problem.errors]


@pytest.mark.parametrize(
    ("body", "status", "where"),
    [
        ({"entries": [], "entrees": []}, 422, ["/entrees"]),
        ({"entries": [], "a/b~c": 1}, 422, ["/a~1b~0c"]),
        ({}, 422, ["/entries"]),
        ({"entries": 5}, 422, ["/entries"]),
        ([], 422, [""]),
    ],
    ids=str,
)
def test_a_batch_of_another_shape_is_422_with_the_field(desk: Any, body: object, status: int, where: list[str]) -> None:
    problem = refused(desk, "writer", "POST", "/v1/record/entries", body)
    assert (problem.status, problem.type) == (status, "/problems/invalid")
    assert pointers(problem) == where


def test_what_is_no_json_stays_400_and_an_odd_body_hides_no_unknown_field(desk: Any) -> None:
    def send(raw: bytes) -> ApiProblem:
        with pytest.raises(ApiProblem) as caught:
            desk.client("writer").send("POST", "/v1/record/entries", raw, {"Content-Type": "application/json"})
        return caught.value

    assert send(b'{"entries": [').status == 400
    odd = json.dumps({"entries": [entry(body=...)]}).encode()[:-3] + b',"body":NaN}]'
    problem = send(odd + b',"extra":1}')
    assert (problem.status, pointers(problem)) == (422, ["/extra"])


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"subjects": ["user:a", "nobody"]}, "/subjects/1"),
        ({"subjects": ["user:*"]}, "/subjects/0"),
        ({"subjects": ["user:a", 7]}, "/subjects/1"),
        ({"sources": ["01a22987-0f40-77cc-b1d9-1b5f5a282c26", "x"]}, "/sources/1"),
        ({"body": ..., "parts": [{"name": "a", "body": 1, "subjects": ["user:a", "b"]}]}, "/parts/0/subjects/1"),
        ({"body": ..., "parts": [{"name": "a", "body": 1, "colour": 2}]}, "/parts/0/colour"),
        ({"body": ..., "parts": [{"body": 1}]}, "/parts/0/name"),
        ({"colour": "red"}, "/colour"),
        ({"at": ...}, "/at"),
        ({"at": "yesterday"}, "/at"),
        ({"seq": 1.5}, "/seq"),
        ({"kind": "made.up"}, "/kind"),
        ({"data_class": "nowhere"}, "/data_class"),
        ({"body": ...}, "/body"),
    ],
    ids=str,
)
def test_a_refused_entry_keeps_its_id_and_names_its_place(desk: Any, change: dict[str, Any], pointer: str) -> None:
    sent = entry(**change)
    [result] = desk.call("writer", "POST", "/v1/record/entries", {"entries": [sent]})["results"]
    assert (result["status"], result["id"]) == ("rejected", sent["id"])
    assert [one["pointer"] for one in result["problem"]["errors"]] == [pointer]


def test_what_is_no_id_is_not_repeated(desk: Any) -> None:
    [result] = desk.call("writer", "POST", "/v1/record/entries", {"entries": [entry(id="email:ada@example.org")]})[
        "results"
    ]
    assert (result["status"], result["id"]) == ("rejected", None)
    assert "ada" not in json.dumps(result)


def test_of_two_equal_entries_in_one_call_the_second_is_a_duplicate(desk: Any) -> None:
    one, other = entry(), entry()
    results = desk.call("writer", "POST", "/v1/record/entries", {"entries": [one, one, other, one]})["results"]
    assert [result["status"] for result in results] == ["stored", "duplicate", "stored", "duplicate"]
    assert results[0]["index"] == results[1]["index"] == results[3]["index"] != results[2]["index"]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"colour": 1}, "/colour"),
        ({"locator": {}}, "/locator"),
        ({"subjects": ["user:a", "nobody"]}, "/subjects/1"),
        ({"sources": ["nothing"]}, "/sources/0"),
        ({"store": "nowhere"}, "/store"),
        ({"data_class": "nowhere"}, "/data_class"),
        ({"confidence": 2}, "/confidence"),
    ],
    ids=str,
)
def test_a_refused_artifact_keeps_its_id_and_names_its_place(
    desk: Any, tmp_path: Any, change: dict[str, Any], pointer: str
) -> None:
    root = desk.running.settings.data.parent / "stores" / tmp_path.name
    desk.call("platform", "PUT", "/v1/stores/docs", {"kind": "files", "config": {"root": str(root)}})
    item = {
        "id": "art_mine",
        "data_class": "summary",
        "store": "docs",
        "locator": {"path": "a"},
        "subjects": ["user:a"],
    }
    [result] = desk.call("writer", "POST", "/v1/artifacts", {"artifacts": [item | change]})["results"]
    assert (result["status"], result["id"]) == ("rejected", "art_mine")
    assert [one["pointer"] for one in result["problem"]["errors"]] == [pointer]


REQUEST = {"right": "erasure", "subjects": ["user:a"], "regulation": "gdpr"}


@pytest.mark.parametrize(
    ("principal", "path", "body", "where"),
    [
        ("legal", "/v1/requests", REQUEST | {"colour": 1}, "/colour"),
        ("legal", "/v1/requests", REQUEST | {"subjects": ["user:a", "nobody"]}, "/subjects/1"),
        ("legal", "/v1/requests", REQUEST | {"scope": {"city": "x"}}, "/scope"),
        ("legal", "/v1/requests", REQUEST | {"scope": {"data_classes": ["nowhere"]}}, "/scope/data_classes/0"),
        ("legal", "/v1/requests", REQUEST | {"received_at": "2999-01-01T00:00:00Z"}, "/received_at"),
        ("legal", "/v1/requests", REQUEST | {"timezone": "Mars/Olympus"}, "/timezone"),
        ("legal", "/v1/requests", REQUEST | {"jurisdiction": "ZZ"}, "/jurisdiction"),
        ("legal", "/v1/requests", REQUEST | {"right": "rectification"}, "/corrections"),
        ("legal", "/v1/requests:search", {"subject": "nobody"}, "/subject"),
        ("legal", "/v1/subjects:lookup", {"subjects": ["user:a", "nobody"]}, "/subjects/1"),
        ("legal", "/v1/subjects:copies", {"subjects": ["nobody"]}, "/subjects/0"),
        ("legal", "/v1/subjects:merge", {"subjects": ["user:a", "nobody"], "reason": "r"}, "/subjects/1"),
        ("legal", "/v1/subjects:reopen", {"subject": "nobody", "basis": "b"}, "/subject"),
        ("legal", "/v1/artifacts:search", {"subject": "nobody"}, "/subject"),
        ("auditor", "/v1/record:search", {"subject": "nobody"}, "/subject"),
        ("writer", "/v1/memory:resolve", {"subject": "nobody", "purpose": "support"}, "/subject"),
        ("writer", "/v1/actions", {"action_id": "a", "kind": "mail.send", "lease": "soon"}, "/lease"),
        ("writer", "/v1/streams", {"stream": "s", "data_class": "nowhere"}, "/data_class"),
        ("writer", "/v1/streams", {"stream": "s", "colour": 1}, "/colour"),
        ("legal", "/v1/holds", {"name": "h", "matter": "m", "reason": "r", "selector": {"subjects": ["no"]}},
         "/selector/subjects/0"),
        ("legal", "/v1/events", {"name": "role.closed", "key": {"role": "x"}, "at": "2026-05-04T10:00:00Z",
                                 "subject": "nobody"}, "/subject"),
        ("legal", "/v1/decide", {}, ""),
        ("legal", "/v1/retention/runs", {"at": "2999-01-01T00:00:00Z"}, "/at"),
        ("admin", "/v1/tokens", {"principal": "p", "roles": ["king"]}, "/roles"),
        ("admin", "/v1/tokens?limit=0", None, "/query/limit"),
        ("admin", "/v1/tokens?cursor=x", None, "/query/cursor"),
    ],
    ids=str,
)  # fmt: skip
def test_every_422_says_where_by_a_json_pointer(desk: Any, principal: str, path: str, body: object, where: str) -> None:
    problem = refused(desk, principal, "GET" if body is None else "POST", path, body)
    assert problem.status == 422
    assert pointers(problem) == [where]


def test_refusals_of_a_request_under_way_say_where_too(desk: Any) -> None:
    made = desk.call("legal", "POST", "/v1/requests", REQUEST)
    path = f"/v1/requests/{made['id']}"
    late = {"kind": "answered", "channel": "letter", "sent_at": "2999-01-01T00:00:00Z"}
    for action, body, where in (
        ("verify-identity", {"identifier": "user:other", "method": "login"}, "/identifier"),
        ("verify-identity", {"identifier": "nobody", "method": "login"}, "/identifier"),
        ("refuse", {"ground": "mood"}, "/ground"),
        ("notices", late, "/sent_at"),
        ("approve", {"plan_hash": "x"}, "/plan_hash"),
    ):
        problem = refused(desk, "legal", "POST", f"{path}/{action}", body)
        assert (problem.status, pointers(problem)) == (422, [where]), action


def test_a_cancelled_request_waits_for_nothing(desk: Any) -> None:
    desk.call("writer", "POST", "/v1/record/entries", {"entries": [entry(subjects=["user:a"])]})
    made = desk.call("legal", "POST", "/v1/requests", REQUEST)
    path = f"/v1/requests/{made['id']}"
    desk.call("legal", "POST", f"{path}/verify-identity", {"identifier": "user:a", "method": "login"})
    planned = desk.call("legal", "POST", f"{path}/plan", {})
    assert planned["waiting_for"]["pending"] >= 1
    cancelled = desk.call("legal", "POST", f"{path}/cancel", {})
    assert (cancelled["state"], cancelled["waiting_for"]) == ("cancelled", {})


def test_the_date_of_a_final_certificate_is_said_as_every_time_is(desk: Any) -> None:
    desk.call("writer", "POST", "/v1/record/entries", {"entries": [entry(subjects=["user:a"])]})
    made = desk.call("legal", "POST", "/v1/requests", REQUEST)
    path = f"/v1/requests/{made['id']}"
    desk.call("legal", "POST", f"{path}/verify-identity", {"identifier": "user:a", "method": "login"})
    desk.call("legal", "POST", f"{path}/plan", {})
    plan = desk.call("legal", "GET", f"{path}/plan")
    desk.call("legal2", "POST", f"{path}/approve", {"plan_hash": plan["hash"]})
    wait_for(lambda: desk.call("legal", "GET", path)["state"] == "completed")
    with pytest.raises(ApiProblem) as early:
        desk.call("legal", "GET", f"{path}/report?version=final")
    assert early.value.status == 409
    assert re.search(r", due \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z: ", early.value.detail), early.value.detail
