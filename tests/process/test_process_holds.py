"""A hold on one of ten files, over HTTP: nine go now, the tenth when it ends, under the same request and date."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.process.conftest import wait_for

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
GRACE = "email:grace@example.org"
CLASS = {
    "state": "file", "personal": True, "owner": "team", "description": "files", "legal_basis": "consent",
    "subject_types": ["email"], "retention": {"keep": "P90D", "from": "created", "then": "erase"},
    "erasure": {"on_request": "erase", "required": "L2"},
}  # fmt: skip


def files_of(desk: Any, count: int) -> tuple[Path, list[str]]:
    """A store with so many files of one person, registered; its folder and the public ids."""
    folder: Path = desk.running.settings.data.parent / "stores" / desk.tenant
    folder.mkdir(parents=True)
    desk.call("platform", "PUT", "/v1/stores/cvs", {"kind": "files", "config": {"root": str(folder)}})
    desk.call("platform", "PUT", "/v1/data-classes/cv", CLASS)
    items = []
    for number in range(count):
        (folder / f"{number}.txt").write_text(f"Grace Hopper, page {number}, born 9 December 1906")
        items.append({"data_class": "cv", "store": "cvs", "locator": {"path": f"{number}.txt"}, "subjects": [GRACE]})
    return folder, [made["id"] for made in desk.client("writer").artifacts(items)]


def hold(desk: Any, **selector: Any) -> dict[str, Any]:
    spec = {"name": "acme", "matter": "Acme v. us", "reason": "letter of 4 May", "selector": selector}
    return dict(desk.call("legal", "POST", "/v1/holds", spec))


def left(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.iterdir())


@pytest.mark.scenario("E10")
@pytest.mark.scenario("E13")
def test_one_of_ten_is_held_nine_go_and_the_release_takes_up_the_same_request(desk: Any) -> None:
    folder, ids = files_of(desk, 10)
    placed = hold(desk, artifacts=[ids[3]])
    assert (placed["items"], placed["too_late"]) == (1, [])
    spec = {"right": "erasure", "subjects": [GRACE], "regulation": "gdpr", "jurisdiction": "DE-BY",
            "timezone": "Europe/Berlin", "channel": "e-mail"}  # fmt: skip
    request = desk.call("legal", "POST", "/v1/requests", spec)
    path = f"/v1/requests/{request['id']}"
    check = {"identifier": GRACE, "method": "login", "evidence": "session of today"}
    desk.call("legal", "POST", f"{path}/verify-identity", check)
    desk.call("legal", "POST", f"{path}/plan")
    plan = desk.call("legal", "GET", f"{path}/plan")
    desk.call("legal2", "POST", f"{path}/approve", {"plan_hash": plan["hash"]})
    wait_for(lambda: desk.call("legal", "GET", path)["state"] == "completed_with_retained", 60)
    assert left(folder) == ["3"]
    copies = desk.call("legal", "GET", f"{path}/copies")["items"]
    kept = {copy.get("artifact"): copy["rule"] for copy in copies if copy["state"] == "retained"}
    # The name by which the person is found stays with what is kept of them.
    assert kept.pop(ids[3]) == "hold"
    assert set(kept) <= {None}

    # What a release does is shown first, item by item, and nothing happens by being shown.
    preview = desk.call("legal2", "POST", f"/v1/holds/{placed['id']}/release")
    assert [(line["id"], line["action"], line["due"]) for line in preview["becomes_due"]] == [(ids[3], "erase", True)]
    [resumed] = preview["requests"]
    assert resumed["request"] == request["id"]
    # The name too, which nothing needs any more then.
    waited = {copy.get("artifact") or copy["key"] for copy in copies if copy["state"] == "retained"}
    assert set(resumed["copies"]) == waited
    assert (resumed["erased_at_once"], len(resumed["copies"])) == (2, 2)
    assert preview["released"] is False
    assert left(folder) == ["3"]

    desk.call("legal2", "POST", f"/v1/holds/{placed['id']}/release?preview=false")
    wait_for(lambda: desk.call("legal", "GET", path)["state"] == "completed", 60)
    assert left(folder) == []
    after = desk.call("legal", "GET", path)
    assert (after["id"], after["due_at"]) == (request["id"], request["due_at"])


@pytest.mark.scenario("E13")
def test_a_release_shows_the_dates_of_what_is_not_due_yet(desk: Any) -> None:
    folder, ids = files_of(desk, 2)
    placed = hold(desk, data_classes=["cv"])
    preview = desk.call("legal2", "POST", f"/v1/holds/{placed['id']}/release?preview=true")
    assert (preview["items"], preview["due"]) == (2, 0)
    assert {line["id"] for line in preview["becomes_due"]} == set(ids)
    made = desk.running.services.clock.now()
    for line in preview["becomes_due"]:
        assert (line["due"], line["rule"]) == (False, "class_retention")
        assert line["until"][:10] == (made + timedelta(days=90)).date().isoformat()
    assert left(folder) == ["0", "1"]
