"""What became of a tenant's keys, as an auditor reads it: in counts, before and after an erasure."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from ledger.entry import uuid7
from muniment.errors import ApiProblem
from tests.process.conftest import wait_for

pytestmark = pytest.mark.process


def say(desk: Any, subject: str) -> None:
    entry = {
        "id": uuid7(datetime.now(UTC)), "stream": f"conv-{subject}", "kind": "turn.user",
        "at": "2026-11-29T12:00:00Z", "data_class": "transcript", "subjects": [subject], "body": {"n": 1},
    }  # fmt: skip
    desk.call("writer", "POST", "/v1/record/entries", {"entries": [entry]})


def erase(desk: Any, subject: str) -> None:
    asked = {
        "right": "erasure", "subjects": [subject], "regulation": "gdpr", "jurisdiction": "DE",
        "timezone": "Europe/Berlin", "received_at": datetime.now(UTC).isoformat(), "channel": "e-mail",
    }  # fmt: skip
    path = f"/v1/requests/{desk.call('legal', 'POST', '/v1/requests', asked)['id']}"
    desk.call("legal", "POST", f"{path}/verify-identity", {"identifier": subject, "method": "login", "evidence": "now"})
    plan = desk.call("legal", "POST", f"{path}/plan")
    desk.call("legal2", "POST", f"{path}/approve", {"plan_hash": plan["plan_hash"]})
    wait_for(lambda: desk.call("legal", "GET", path)["state"].startswith("completed"), 60)


def test_the_history_of_keys_counts_what_was_made_and_what_went(desk: Any) -> None:
    say(desk, "user:ada")
    say(desk, "user:bob")

    def transcripts() -> dict[str, int]:
        counts = desk.call("auditor", "GET", "/v1/keys")["counts"]
        return {one["state"]: one["keys"] for one in counts if one["data_class"] == "transcript"}

    assert transcripts() == {"live": 2}
    erase(desk, "user:ada")
    assert transcripts() == {"live": 1, "destroyed": 1}
    found = desk.call("auditor", "GET", "/v1/keys")
    (gone,) = [one for one in found["counts"] if one["state"] == "destroyed" and one["data_class"] == "transcript"]
    assert gone["last_destroyed_at"] is not None
    assert {one["state"] for one in found["items"]} == {"in_use", "retired"}
    (retired,) = [one for one in found["items"] if one["state"] == "retired"]
    assert retired["destroy_after"] > retired["retired_at"]
    assert found["root"]["kind"] == "file"
    assert re.search(r"\bada\b", json.dumps(found)) is None
    seen, cursor = [], None
    while True:
        page = desk.call("auditor", "GET", f"/v1/keys?limit=1{f'&cursor={cursor}' if cursor else ''}")
        seen += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == found["items"]


def test_only_who_audits_reads_the_history_of_keys(desk: Any) -> None:
    with pytest.raises(ApiProblem) as refused:
        desk.call("writer", "GET", "/v1/keys")
    assert refused.value.status == 403
