"""After an erasure: what a name still finds. `docs/trust.md` says it in words; its table is held here line by line."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from ledger.entry import uuid7
from tests.process.test_process_rebuild import erase, replay, say

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
WHO = "user:ada"
LISTED = {"id", "index", "position", "kind", "data_class", "class_version", "at", "received"}


def found(desk: Any, **conditions: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = desk.call("auditor", "POST", "/v1/record:search", conditions)["items"]
    return items


def asked(desk: Any, path: str, **body: Any) -> Any:
    return desk.call("legal", "POST", path, body)


def test_a_name_that_was_erased_finds_headers_and_the_request_and_nothing_else(desk: Any) -> None:
    gone = say(desk, "ada", "it was me", "again")
    assert asked(desk, "/v1/subjects:lookup", subjects=[WHO])["counts"]
    request = erase(desk, "ada")

    for conditions in ({"subject": WHO}, {"run": "run_ada"}):
        headers = found(desk, **conditions)
        assert [one["id"] for one in headers] == gone
        assert {member for one in headers for member in one} == LISTED
    assert [(one["id"], one["integrity"], "body" in one) for one in replay(desk, "conv_ada")] == [
        (entry, "erased", False) for entry in gone
    ]
    assert [one["id"] for one in asked(desk, "/v1/requests:search", subject=WHO)["items"]] == [request]

    assert asked(desk, "/v1/subjects:lookup", subjects=[WHO]) == {"known": 1, "counts": []}
    assert asked(desk, "/v1/subjects:copies", subjects=[WHO])["items"] == []
    assert asked(desk, "/v1/artifacts:search", subject=WHO)["items"] == []
    # What is listed without the name bears none.
    assert "ada" not in json.dumps([found(desk, kind="turn.user"), replay(desk, "conv_ada")])


def test_the_look_up_keeps_what_comes_late_out_and_a_person_who_returns_inherits_nothing(desk: Any) -> None:
    gone = say(desk, "ada", "it was me")
    erase(desk, "ada")
    now = datetime.now(UTC)
    late = {
        "id": uuid7(now), "stream": "conv_late", "kind": "turn.user", "at": now.isoformat(),
        "data_class": "transcript", "subjects": [WHO], "body": {"text": "still me"},
    }  # fmt: skip
    [result] = desk.call("writer", "POST", "/v1/record/entries", {"entries": [late]})["results"]
    assert result["status"] == "suppressed"
    assert [one["id"] for one in found(desk, subject=WHO)] == gone

    assert asked(desk, "/v1/subjects:reopen", subject=WHO, basis="new contract")["incarnation"] == 2
    assert found(desk, subject=WHO) == []
    again = say(desk, "ada", "hello", stream="conv_back")
    assert [one["id"] for one in found(desk, subject=WHO)] == again
