"""Classes over HTTP, from a declaration to what was made under it: versions stay, the one in force decides."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ledger.entry import uuid7

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]
CLASS: dict[str, Any] = {
    "state": "record",
    "personal": True,
    "owner": "team-agents",
    "description": "what agents note",
    "legal_basis": "contract",
    "retention": {"keep": "P6M", "from": "created", "then": "erase"},
    "erasure": {"on_request": "erase"},
    "access": {"roles": ["auditor"], "purposes": ["dispute"]},
}


@pytest.fixture
def desk(desk: Any) -> Any:
    """A tenant with one store of files."""
    folder = desk.running.settings.data.parent / "stores" / desk.tenant
    folder.mkdir(parents=True)
    desk.call("platform", "PUT", "/v1/stores/notes", {"kind": "files", "config": {"root": str(folder)}})
    return desk


def item(number: int, **more: Any) -> dict[str, Any]:
    base = {"data_class": "note", "store": "notes", "locator": {"path": f"{number}.txt"}, "subjects": ["user:ada"]}
    return {**base, **more}


def register(desk: Any, *items: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = desk.call("writer", "POST", "/v1/artifacts", {"artifacts": list(items)})["results"]
    return found


def say(desk: Any) -> int:
    """Record an entry of the class; the version that it names."""
    entry = {"id": uuid7(datetime.now(UTC)), "stream": "conv_1", "kind": "turn.user", "data_class": "note",
             "at": datetime.now(UTC).isoformat(), "subjects": ["user:ada"], "body": {"content": "x"}}  # fmt: skip
    [result] = desk.call("writer", "POST", "/v1/record/entries", {"entries": [entry]})["results"]
    assert result["status"] == "stored"
    shown = desk.call("auditor", "GET", f"/v1/record/entries/{entry['id']}", purpose="dispute")
    return int(shown["class_version"])


def test_what_is_made_names_the_version_in_force_then_and_the_one_in_force_now_decides(desk: Any) -> None:
    desk.call("platform", "PUT", "/v1/data-classes/note", CLASS)
    [first] = register(desk, item(1))
    assert say(desk) == 1
    shorter = {**CLASS, "retention": {**CLASS["retention"], "keep": "P3M"}}
    assert desk.call("platform", "PUT", "/v1/data-classes/note", shorter)["version"] == 2
    [second] = register(desk, item(2))
    assert say(desk) == 2
    views = [desk.call("platform", "GET", f"/v1/artifacts/{one['id']}") for one in (first, second)]
    assert [view["class_version"] for view in views] == [1, 2]
    asked = (datetime.now(UTC) + timedelta(days=120)).isoformat()
    for view in views:
        decided = desk.call(
            "legal", "POST", "/v1/decide", {"artifact": view["id"], "trigger": "retention", "at": asked}
        )
        assert (decided["action"], decided["rule"]) == ("erase", "class_retention"), "after three months, not six"
    listed = desk.call("platform", "GET", "/v1/data-classes/note?version=1")
    assert (listed["version"], listed["retention"]["keep"]) == (1, "P6M")


@pytest.mark.slow
def test_five_thousand_items_are_judged_one_by_one_and_ten_thousand_sources_make_one(desk: Any) -> None:
    desk.call("platform", "PUT", "/v1/data-classes/note", CLASS)
    first = register(desk, *[item(number, **({"confidence": 1.2} if number == 7 else {})) for number in range(5_000)])
    assert [one["status"] for one in first] == ["rejected" if number == 7 else "created" for number in range(5_000)]
    rest = register(desk, *[item(number) for number in range(5_000, 10_000)])
    last = register(desk, item(10_000))
    names = [one["id"] for one in (*first, *rest, *last) if one["id"] is not None]
    assert len(names) == 10_000
    [made] = register(desk, item(20_000, subjects=[], sources=names))
    assert made["status"] == "created"
    up = desk.call("platform", "GET", f"/v1/artifacts/{made['id']}/lineage?direction=up&depth=1&limit=1000")
    assert (len(up["nodes"]), up["next_cursor"] is None) == (1000, False)
    view = desk.call("platform", "GET", f"/v1/artifacts/{made['id']}")
    assert (len(view["subjects"]), len(view["sources"])) == (1, 10_000)
    down = desk.call("platform", "GET", f"/v1/artifacts/{names[0]}/lineage?direction=down")
    assert [node["id"] for node in down["nodes"]] == [names[0], made["id"]]
