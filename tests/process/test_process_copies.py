"""What is held about a person: registered copies and the record, each with its end and what ends it, page by page."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from ledger.entry import uuid7
from tests.process.conftest import Desk
from tests.process.test_process_keeping import WHO, hold, request, until

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
CLASSES: dict[str, dict[str, Any]] = {
    "talk": {"keep": "P2M", "from": "created", "then": "erase"},
    "case": {"keep": "P1M", "from": "event:case.closed", "latest": "P1Y", "then": "review"},
}


def months_on(at: datetime, months: int) -> str:
    """The month that many after the one of `at`."""
    number = at.year * 12 + at.month - 1 + months
    return f"{number // 12:04d}-{number % 12 + 1:02d}"


def prepare(desk: Desk) -> list[str]:
    """Two classes of the record with clocks of their own, a store with two copies, and entries about two people."""
    root = desk.running.settings.data.parent / "stores" / desk.tenant
    root.mkdir(parents=True)
    for name, retention in CLASSES.items():
        spec = {
            "state": "record", "personal": True, "owner": "team", "description": name, "legal_basis": "contract",
            "retention": retention, "erasure": {"on_request": "erase"},
        }  # fmt: skip
        desk.call("platform", "PUT", f"/v1/data-classes/{name}", spec)
    note = {
        "state": "file", "personal": True, "owner": "team", "description": "notes", "legal_basis": "contract",
        "retention": {"keep": "P6M", "from": "created", "then": "erase"}, "erasure": {"on_request": "erase"},
    }  # fmt: skip
    desk.call("platform", "PUT", "/v1/data-classes/note", note)
    desk.call("platform", "PUT", "/v1/stores/notes", {"kind": "files", "config": {"root": str(root)}})
    made = []
    for number in range(2):
        (root / f"{number}.txt").write_text("a note")
        made.append({"data_class": "note", "store": "notes", "locator": {"path": f"{number}.txt"}, "subjects": [WHO]})
    desk.call("writer", "POST", "/v1/artifacts", {"artifacts": made})
    desk.call("writer", "POST", "/v1/streams", {"stream": "c1", "owner": WHO, "data_class": "case",
                                                "scope": {"case": "1"}})  # fmt: skip
    entries = [
        {"id": uuid7(datetime.now(UTC)), "stream": stream, "kind": "turn.user", "at": datetime.now(UTC).isoformat(),
         "data_class": data_class, "subjects": [who], "body": {"text": f"said {number}"}}
        for number, (stream, data_class, who) in enumerate(
            [*[("t1", "talk", WHO)] * 2, ("t2", "talk", WHO), ("c1", "case", WHO), ("o", "talk", "user:x")]
        )
    ]  # fmt: skip
    results = desk.call("writer", "POST", "/v1/record/entries", {"entries": entries})["results"]
    assert {one["status"] for one in results} == {"stored"}, results
    return [str(one["id"]) for one in results]


def copies(desk: Desk, limit: int = 1000) -> list[dict[str, Any]]:
    """Every copy, by pages of so many."""
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = desk.call("auditor", "POST", f"/v1/subjects:copies?limit={limit}{cursor}", {"subjects": [WHO]})
        found += page["items"]
        if page["next_cursor"] is None:
            return found
        assert len(page["items"]) == limit
        cursor = f"&cursor={page['next_cursor']}"


def counted(desk: Desk) -> dict[tuple[str, str], int]:
    looked = desk.call("legal", "POST", "/v1/subjects:lookup", {"subjects": [WHO]})["counts"]
    return {(one["data_class"], one["store"]): one["count"] for one in looked}


def test_what_the_record_holds_of_a_person_is_among_the_copies_with_its_end(desk: Desk) -> None:
    said = prepare(desk)
    assert counted(desk) == {("note", "notes"): 2, ("case", "vault"): 1, ("talk", "vault"): 1}
    whole = copies(desk)
    for limit in (1, 2, 3, 4):
        assert copies(desk, limit) == whole
    assert [one["store"] for one in whole] == ["notes", "notes", "vault", "vault"]
    assert all(one["artifact"] and not one["key"] and not one["entries"] for one in whole[:2])
    record = {one["data_class"]: one for one in whole[2:]}
    talk, case = record["talk"], record["case"]
    planned = {key["key"] for key in planned_keys(desk)}
    assert {talk["key"], case["key"]} <= planned, "by the names that plans have for them"
    now = datetime.now(UTC)
    assert (talk["entries"], talk["rule"], talk["starts"]) == (3, "class_retention", "created")
    assert (talk["clock"], talk["ends_at_is_cap"], talk["deleted_by"]) == ("running", False, "the retention sweep")
    assert months_on(now, 2) == talk["ends_at"][:7], "two months after the end of the month"
    assert (case["entries"], case["clock"], case["ends_at_is_cap"]) == (1, "waiting", True)
    assert (case["starts"], case["deleted_by"]) == ("event:case.closed", "a person's disposition")
    event = {"name": "case.closed", "key": {"case": "1"}, "at": datetime.now(UTC).isoformat()}
    desk.call("writer", "POST", "/v1/events", event)
    [ended] = [one for one in copies(desk) if one["data_class"] == "case"]
    assert (ended["clock"], ended["ends_at_is_cap"]) == ("running", False)
    assert months_on(now, 1) == ended["ends_at"][:7]
    assert ended["ends_at"] < case["ends_at"]
    hold(desk, entries=[said[1]])
    until(desk, request(desk), "completed_with_retained")
    [kept] = [one for one in copies(desk) if one["store"] == "vault"]
    assert kept["entry"].startswith(f"{said[1]}/")
    assert (kept["key"], kept["artifact"], kept["status"], kept["data_class"]) == (None, None, "retained", "talk")
    assert kept["ends_at"] == talk["ends_at"]
    assert counted(desk) == {("talk", "vault"): 1}


def planned_keys(desk: Desk) -> list[dict[str, Any]]:
    """The keys in a plan to erase the same person, which is then withdrawn."""
    made = desk.call("legal", "POST", "/v1/requests", {"right": "erasure", "subjects": [WHO], "regulation": "gdpr"})
    path = f"/v1/requests/{made['id']}"
    desk.call("legal", "POST", f"{path}/verify-identity", {"identifier": WHO, "method": "login", "evidence": "s"})
    desk.call("legal", "POST", f"{path}/plan")
    plan = desk.call("legal", "GET", f"{path}/plan")
    desk.call("legal", "POST", f"{path}/cancel")
    return [one for one in plan["copies"] if "key" in one]
