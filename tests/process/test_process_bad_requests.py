"""What a hostile person, a clerk alone and one in a hurry may try with a request, over HTTP: refused by name."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ledger.entry import uuid7
from muniment.errors import ApiProblem
from muniment.registry import Client
from tests.process.conftest import wait_for

pytestmark = pytest.mark.process
PERSON, OTHER = "user:mallory", "user:victim"


def ask(desk: Any, *subjects: str, by: str = "legal", **more: Any) -> str:
    spec = {
        "right": "erasure", "subjects": list(subjects or (PERSON,)), "regulation": "gdpr", "jurisdiction": "DE",
        "timezone": "Europe/Berlin", **more,
    }  # fmt: skip
    return f"/v1/requests/{desk.call(by, 'POST', '/v1/requests', spec)['id']}"


def verify(desk: Any, path: str, subject: str = PERSON, by: str = "legal") -> Any:
    check = {"identifier": subject, "method": "passport", "evidence": "seen"}
    return desk.call(by, "POST", f"{path}/verify-identity", check)


def planned(desk: Any, *subjects: str) -> tuple[str, str]:
    path = ask(desk, *subjects)
    for subject in subjects or (PERSON,):
        verify(desk, path, subject)
    return path, desk.call("legal", "POST", f"{path}/plan")["plan_hash"]


def say(desk: Any, subject: str = PERSON) -> str:
    entry = uuid7(datetime.now(UTC))
    line = {
        "id": entry, "stream": f"conv_{subject}", "kind": "turn.user", "at": datetime.now(UTC).isoformat(),
        "data_class": "transcript", "subjects": [subject], "body": {"text": "hello"},
    }  # fmt: skip
    [result] = desk.call("writer", "POST", "/v1/record/entries", {"entries": [line]})["results"]
    assert result["status"] == "stored"
    return entry


def is_readable(desk: Any, entry: str) -> bool:
    headers = {"X-Purpose": "dispute;case=7"}
    try:
        desk.client("auditor").send("GET", f"/v1/record/entries/{entry}", None, headers)
    except ApiProblem as problem:
        return problem.status != 410
    return True


def refused(desk: Any, by: str, path: str, body: object = None) -> tuple[int, str]:
    with pytest.raises(ApiProblem) as caught:
        desk.call(by, "POST", path, body)
    return caught.value.status, caught.value.type.rpartition("/")[2]


def test_a_plan_is_approved_by_its_hash_and_by_a_second_person_only(desk: Any) -> None:
    entry = say(desk)
    path, hash_ = planned(desk)
    creator = desk.call("legal", "GET", path)["created_by"]
    # Another token of the same person is the same person.
    desk.tokens["again"] = desk.call("admin", "POST", "/v1/tokens", {"principal": creator, "roles": ["legal"]})["token"]
    for by in ("legal", "again"):
        assert refused(desk, by, f"{path}/approve", {"plan_hash": hash_}) == (403, "separate-duties")
    assert refused(desk, "writer", f"{path}/approve", {"plan_hash": hash_})[0] == 403
    assert refused(desk, "legal2", f"{path}/approve", {"plan_hash": "0" * 64}) == (409, "stale-plan")
    # Who checks the identity is no second person either; and what was approved before is not what stands now.
    verify(desk, path, by="legal2")
    assert refused(desk, "legal2", f"{path}/approve", {"plan_hash": hash_}) in {
        (403, "separate-duties"), (409, "stale-plan")
    }  # fmt: skip
    fresh = desk.call("legal", "POST", f"{path}/plan")["plan_hash"]
    assert refused(desk, "legal2", f"{path}/approve", {"plan_hash": fresh}) == (403, "separate-duties")
    assert is_readable(desk, entry)


def test_what_names_nobody_or_everybody_is_no_request(desk: Any) -> None:
    spec = {"right": "erasure", "regulation": "gdpr"}
    for subjects in ([], [""], ["user:"], ["user:*"], ["user:%"], [":x"], ["user:a\u0000b"], [PERSON] * 101, "user:a"):
        assert refused(desk, "legal", "/v1/requests", {**spec, "subjects": subjects})[0] == 422, subjects
    assert desk.call("legal", "GET", "/v1/requests")["items"] == []


def test_somebody_nobody_knows_gets_a_statement_and_no_certificate(desk: Any) -> None:
    say(desk, OTHER)
    path = ask(desk)
    verify(desk, path)
    done = desk.call("legal", "POST", f"{path}/plan")
    assert (done["state"], done["plan_hash"]) == ("no_match", None)
    assert done["statement"]["stores"] is not None
    with pytest.raises(ApiProblem) as caught:
        desk.call("legal", "GET", f"{path}/report")
    assert caught.value.status in (404, 409)


def test_an_extension_comes_before_the_first_date_and_once(desk: Any) -> None:
    late = ask(desk, received_at=(datetime.now(UTC) - timedelta(days=70)).isoformat())
    assert refused(desk, "legal", f"{late}/extend", {"reason": "many stores"}) == (409, "too-late")
    soon = ask(desk, OTHER)
    first = desk.call("legal", "GET", soon)["due_at"]
    assert desk.call("legal", "POST", f"{soon}/extend", {"reason": "many stores"})["due_at"] > first
    assert refused(desk, "legal", f"{soon}/extend", {"reason": "more"})[0] == 409
    california = ask(desk, "user:dana", regulation="ccpa", jurisdiction="US-CA", timezone="America/Los_Angeles")
    assert refused(desk, "legal", f"{california}/pause", {"reason": "identity"}) == (409, "clock-cannot-pause")


def test_after_the_first_destructive_step_nothing_is_cancelled(desk: Any) -> None:
    entry = say(desk)
    path, hash_ = planned(desk)
    desk.call("legal2", "POST", f"{path}/approve", {"plan_hash": hash_})
    wait_for(lambda: desk.call("legal", "GET", path)["state"] == "completed")
    assert refused(desk, "legal", f"{path}/cancel")[0] == 409
    assert not is_readable(desk, entry)
    # And what is over is not taken up again by anybody.
    assert refused(desk, "legal", f"{path}/plan")[0] == 409
    assert refused(desk, "legal2", f"{path}/approve", {"plan_hash": hash_})[0] == 409


def test_of_two_requests_at_once_one_does_the_work(desk: Any) -> None:
    say(desk)
    paths = [ask(desk) for _ in range(4)]

    def go_on(path: str) -> None:
        with Client(desk.running.url, desk.tokens["legal"], timeout=60) as client, suppress(ApiProblem):
            check = {"identifier": PERSON, "method": "passport", "evidence": "seen"}
            client.request("POST", f"{path}/verify-identity", check)
            client.request("POST", f"{path}/plan")

    threads = [threading.Thread(target=go_on, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    views = [desk.call("legal", "GET", path) for path in paths]
    assert sorted(view["state"] for view in views) == ["duplicate", "duplicate", "duplicate", "planned"]
    [first] = [view["id"] for view in views if view["state"] == "planned"]
    # A duplicate of a duplicate leads to the one that does the work as well.
    of = {view["id"]: view["duplicate_of"] for view in views}
    for view in views:
        last = view["id"]
        while of[last] is not None:
            last = of[last]
        assert last == first


def test_a_hostile_request_neither_swallows_a_real_one_nor_reaches_whom_it_was_not_shown_to_be(
    desk: Any,
) -> None:
    file = Path(desk.running.settings.data).parent / "stores" / f"{desk.tenant}.db"
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE note (id TEXT PRIMARY KEY, owner TEXT)")
        db.executemany("INSERT INTO note VALUES (?, ?)", [("m", PERSON), ("v", OTHER)])
    config = {"url": f"sqlite:///{file}", "owner_field": "owner"}
    desk.call("platform", "PUT", "/v1/stores/notes", {"kind": "sql", "config": config})
    made = [
        {"data_class": "memory", "store": "notes", "locator": {"table": "note", "key": {"id": key}}, "subjects": [name]}
        for key, name in (("m", PERSON), ("v", OTHER))
    ]
    desk.call("writer", "POST", "/v1/artifacts", {"artifacts": made})
    theirs = say(desk, OTHER)
    # The impostor asks in both names, and is shown to be one of them.
    hostile = ask(desk, PERSON, OTHER)
    verify(desk, hostile)
    real = ask(desk, OTHER)
    assert verify(desk, real, OTHER)["state"] == "verified", "an unverified name swallows nothing"
    hash_ = desk.call("legal", "POST", f"{hostile}/plan")["plan_hash"]
    desk.call("legal2", "POST", f"{hostile}/approve", {"plan_hash": hash_})
    wait_for(lambda: desk.call("legal", "GET", hostile)["state"] == "completed")
    assert is_readable(desk, theirs)
    with sqlite3.connect(file) as db:
        assert db.execute("SELECT id FROM note").fetchall() == [("v",)]
    # A copy of the data for the impostor holds nothing of the other either.
    copy = ask(desk, PERSON, OTHER, right="access")
    verify(desk, copy)
    plan = desk.call("legal", "POST", f"{copy}/plan")
    lines = desk.call("legal", "GET", f"{copy}/plan")["copies"] if plan["state"] == "planned" else []
    assert not [line for line in lines if line["data_class"] in ("memory", "transcript")]
