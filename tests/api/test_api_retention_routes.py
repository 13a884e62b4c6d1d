"""Retention over HTTP: events, what is due, runs with their brake, holds, reviews, and why."""

from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

NUMBERS = count()
CLASS: dict[str, Any] = {
    "state": "file",
    "personal": True,
    "owner": "team-cv",
    "description": "application files",
    "legal_basis": "contract",
    "retention": {"keep": "P0D", "from": "event:done", "latest": "P1Y", "then": "erase"},
    "erasure": {"on_request": "erase", "required": "L1"},
}
PAPER = CLASS | {"retention": CLASS["retention"] | {"then": "review"}}


def root_of(service: Any) -> Path:
    folder: Path = service.services.settings.data.parent / "stores" / "files"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def desk(service: Any) -> Any:
    platform = service.role("platform")
    for name, spec in {"cv": CLASS, "paper": PAPER}.items():
        assert platform.put(f"/v1/data-classes/{name}", json=spec).status_code in (200, 201)
    spec = {"kind": "files", "config": {"root": str(root_of(service))}}
    assert platform.put("/v1/stores/files", json=spec).status_code in (200, 201)
    return service


def put_file(
    desk: Any, data_class: str = "cv", subject: str = "email:ada@example.org"
) -> tuple[str, Path, dict[str, str]]:
    """A file of the store with its registration: id, path, and the key of the event that ends it."""
    number = next(NUMBERS)
    path = root_of(desk) / f"{number}.txt"
    path.write_text(f"what {subject} wrote in file {number}")
    key = {"case": f"case-{number}"}
    item = {"data_class": data_class, "store": "files", "locator": {"path": path.name}, "subjects": [subject],
            "scope": key}  # fmt: skip
    [result] = desk.role("writer").post("/v1/artifacts", json={"artifacts": [item]}).json()["results"]
    assert result["status"] == "created", result
    return result["id"], path, key


def report(desk: Any, key: dict[str, str]) -> dict[str, Any]:
    body = {"name": "done", "key": key, "at": desk.services.clock.now().isoformat()}
    answer = desk.role("writer").post("/v1/events", json=body)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def run_to_end(desk: Any) -> dict[str, Any]:
    answer = desk.role("legal").post("/v1/retention/runs", json={})
    assert answer.status_code in (200, 202), answer.text
    while desk.services.jobs.work_once():
        pass
    found: dict[str, Any] = desk.role("auditor").get(f"/v1/retention/runs/{answer.json()['id']}").json()
    return found


def test_an_event_ends_what_waited_for_it_and_the_report_shows_each_copy(desk: Any) -> None:
    name, path, key = put_file(desk)
    assert report(desk, key)["items"] == 1
    due = desk.role("legal").get("/v1/retention/due").json()["items"]
    assert [line["rule"] for line in due if line["id"] == name] == ["class_retention"]
    run = run_to_end(desk)
    assert run["state"] == "completed", run
    assert not path.exists()
    shown = desk.role("auditor").get(f"/v1/retention/runs/{run['id']}/report").json()
    assert name in [copy["artifact"] for copy in shown["copies"] if copy["state"].startswith("erased")]
    assert shown["maximum_age_days"]["cv"] == 367, "its cap in a leap year, and the wait for a pass"
    assert desk.role("auditor").get(f"/v1/artifacts/{name}").json()["status"] == "erased"


def test_a_run_in_the_future_is_only_a_dry_one(desk: Any) -> None:
    _, path, _ = put_file(desk)
    legal = desk.role("legal")
    later = (desk.services.clock.now() + timedelta(days=400)).isoformat()
    refused = legal.post("/v1/retention/runs", json={"at": later})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/at")
    dry = legal.post("/v1/retention/runs", json={"at": later, "dry_run": True})
    assert (dry.status_code, dry.json()["state"]) == (200, "planned")
    assert dry.json()["counts"]["ends"] >= 1
    assert path.exists()


def test_a_hold_keeps_a_file_until_another_person_releases_it(desk: Any) -> None:
    name, path, key = put_file(desk, subject="email:held@example.org")
    legal, second = desk.role("legal"), desk.role("legal2")
    spec = {"name": "acme", "matter": "Acme v. us", "reason": "letter",
            "selector": {"subjects": ["email:held@example.org"]}}  # fmt: skip
    placed = legal.post("/v1/holds", json=spec)
    assert placed.status_code == 201, placed.text
    hold = placed.json()
    assert (hold["items"], hold["too_late"]) == (1, [])
    report(desk, key)
    run_to_end(desk)
    assert path.exists()
    asked = legal.post("/v1/decide", json={"artifact": name, "trigger": "request"}).json()
    assert (asked["action"], asked["rule"], asked["until"]) == ("keep", "hold", None)
    preview = legal.post(f"/v1/holds/{hold['id']}/release").json()
    assert [line["id"] for line in preview["becomes_due"]] == [name]
    assert legal.post(f"/v1/holds/{hold['id']}/release?preview=false").status_code == 403
    assert second.post(f"/v1/holds/{hold['id']}/release?preview=false").json()["released"] is True
    assert legal.get("/v1/holds?released=true").json()["items"][-1]["released_by"] == "legal2"
    run_to_end(desk)
    assert not path.exists()
    assert second.post(f"/v1/holds/{hold['id']}/release?preview=false").status_code == 409


def test_no_token_takes_an_item_out_of_a_hold_on_its_class(desk: Any) -> None:
    longer = CLASS | {"retention": {"keep": "P9Y", "from": "created", "then": "erase"}}
    assert desk.role("platform").put("/v1/data-classes/longer", json=longer).status_code in (200, 201)
    name, path, key = put_file(desk)
    legal = desk.role("legal")
    spec = {"name": "acme", "matter": "m", "reason": "r", "selector": {"data_classes": ["cv"]}}
    hold = legal.post("/v1/holds", json=spec).json()["id"]
    item = {"data_class": "longer", "store": "files", "locator": {"path": path.name},
            "subjects": ["email:ada@example.org"], "scope": key}  # fmt: skip
    [asked] = desk.role("writer").post("/v1/artifacts", json={"artifacts": [item]}).json()["results"]
    assert asked["status"] == "review", "a longer class is the writer's own to choose, but for the hold"
    [review] = [one for one in legal.get("/v1/registration-reviews").json()["items"] if one["artifact"] == name]
    said = {"decision": "accept", "reason": "looked at it"}
    refused = legal.post(f"/v1/registration-reviews/{review['id']}", json=said)
    assert (refused.status_code, refused.json()["type"].rpartition("/")[2]) == (423, "legal-hold"), refused.text
    assert legal.get(f"/v1/artifacts/{name}").json()["data_class"] == "cv"
    assert desk.role("legal2").post(f"/v1/holds/{hold}/release?preview=false").status_code == 200
    assert legal.post(f"/v1/registration-reviews/{review['id']}", json=said).status_code == 200
    assert legal.get(f"/v1/artifacts/{name}").json()["data_class"] == "longer"


def test_a_braked_run_waits_for_another_person(desk: Any) -> None:
    files = [put_file(desk) for _ in range(55)]
    for _, _, key in files:
        report(desk, key)
    legal = desk.role("legal")
    run = run_to_end(desk)
    assert run["state"] == "awaiting_approval"
    assert run["brake"]["reason"] == "share"
    assert legal.post(f"/v1/retention/runs/{run['id']}/approve").json()["type"] == "/problems/separate-duties"
    assert desk.role("platform").post(f"/v1/retention/runs/{run['id']}/approve").status_code == 403
    assert desk.role("legal2").post(f"/v1/retention/runs/{run['id']}/approve").json()["state"] == "executing"
    while desk.services.jobs.work_once():
        pass
    done = legal.get(f"/v1/retention/runs/{run['id']}").json()
    assert (done["state"], done["counts"]["removed"]) == ("completed", 55)
    assert not any(path.exists() for _, path, _ in files)


def test_a_review_waits_for_a_decision_with_a_comment(desk: Any) -> None:
    name, path, key = put_file(desk, "paper")
    report(desk, key)
    run_to_end(desk)
    legal = desk.role("legal")
    [waiting] = [one for one in legal.get("/v1/dispositions").json()["items"] if one["artifact"] == name]
    assert legal.post(f"/v1/dispositions/{waiting['id']}", json={"decision": "erase"}).status_code == 422
    decided = legal.post(f"/v1/dispositions/{waiting['id']}", json={"decision": "erase", "comment": "not needed"})
    assert decided.json()["state"] == "erase"
    again = legal.post(f"/v1/dispositions/{waiting['id']}", json={"decision": "erase", "comment": "not needed"})
    assert again.status_code == 409
    run_to_end(desk)
    assert not path.exists()


def test_a_decision_names_every_rule_it_looked_at(desk: Any) -> None:
    name, _, _ = put_file(desk)
    legal = desk.role("legal")
    kept = legal.post("/v1/decide", json={"artifact": name}).json()
    assert (kept["action"], kept["rule"]) == ("keep", "class_retention")
    assert kept["because"] == [{"rule": "class_retention", "result": "keep", "detail": "cv"}]
    assert legal.post("/v1/decide", json={"artifact": name, "trigger": "request"}).json()["rule"] == "request"
    assert legal.post("/v1/decide", json={"artifact": name, "at": kept["until"]}).json()["action"] == "erase"
    assert legal.post("/v1/decide", json={}).status_code == 422
    assert legal.post("/v1/decide", json={"artifact": "art_nothing"}).status_code == 404
    assert legal.post("/v1/decide", json={"entry": "nothing"}).status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/events", {"name": "done", "key": {}, "at": "2026-01-01T00:00:00Z"}, 422),
        ("/v1/events", {"name": "done", "key": {"a": "b"}, "at": "2026-01-01T00:00:00"}, 422),
        ("/v1/events", {"name": "done", "key": {"a": "b"}, "at": "2999-01-01T00:00:00Z"}, 422),
        ("/v1/events", {"name": "done", "key": {"a": "b"}, "at": "2026-01-01T00:00:00Z", "more": 1}, 422),
        ("/v1/holds", {"name": "n", "matter": "m", "reason": "r", "selector": {}}, 422),
        ("/v1/holds", {"name": "n", "matter": "m", "reason": "r", "selector": {"subjects": ["no"]}}, 422),
        ("/v1/holds/hold_0/release", {}, 404),
        ("/v1/retention/runs/swp_0/approve", {}, 404),
        ("/v1/retention/runs", {"dry": True}, 422),
        ("/v1/dispositions/dsp_zz", {"decision": "erase", "comment": "c"}, 404),
    ],
)
def test_what_means_nothing_is_refused(desk: Any, path: str, body: dict[str, Any], status: int) -> None:
    answer = desk.role("legal").post(path, json=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_roles_and_tenants_stay_apart(desk: Any) -> None:
    name, path, key = put_file(desk)
    other = desk.client(desk.other["legal"])
    assert desk.role("writer").post("/v1/retention/runs", json={}).status_code == 403
    assert desk.role("auditor").post("/v1/holds", json={}).status_code == 403
    assert other.post("/v1/decide", json={"artifact": name}).status_code == 404
    body = {"name": "done", "key": key, "at": desk.services.clock.now().isoformat()}
    assert other.post("/v1/events", json=body).json()["items"] == 0
    assert other.get("/v1/retention/due").json()["items"] == []
    other.post("/v1/retention/runs", json={})
    while desk.services.jobs.work_once():
        pass
    assert path.exists()
    assert desk.role("writer").post("/v1/events", json=body | {"name": "unheard.of"}).status_code == 403


def test_a_consent_is_recorded_listed_withdrawn_and_ends_what_it_covered(desk: Any) -> None:
    spec = {**CLASS, "retention": {"keep": "P0D", "from": "consent", "latest": "P3Y", "then": "erase"}}
    assert desk.role("platform").put("/v1/data-classes/voice", json=spec).status_code in (200, 201)
    who = "email:cora@example.org"
    body = {"subject": who, "data_classes": ["voice"], "words": "notice of 4 May, version 3"}
    answer = desk.role("writer").post("/v1/consents", json=body)
    assert answer.status_code == 201, answer.text
    given = answer.json()
    assert "cora" not in answer.text
    _, path, _ = put_file(desk, "voice", who)
    assert run_to_end(desk)["counts"]["ends"] == 0
    shown = desk.role("legal").post("/v1/consents:search", json={"subject": who})
    assert shown.status_code == 200, shown.text
    listed = shown.json()["items"]
    assert [(one["id"], one["words"], one["withdrawn_at"]) for one in listed] == [(given["id"], body["words"], None)]
    assert desk.role("writer").post("/v1/consents:search", json={"subject": who}).status_code == 403
    withdrawn = desk.role("writer").post(f"/v1/consents/{given['id']}/withdraw", json={})
    assert withdrawn.status_code == 200, withdrawn.text
    assert withdrawn.json()["withdrawn_at"] is not None
    assert desk.role("writer").post(f"/v1/consents/{given['id']}/withdraw", json={}).status_code == 409
    assert desk.role("writer").post("/v1/consents/cns_none/withdraw", json={}).status_code == 404
    assert path.exists()
    assert run_to_end(desk)["counts"]["removed"] == 1
    assert not path.exists()


@pytest.mark.parametrize("body", [{}, {"subject": "email:a@example.org"}, {"subject": "x", "words": "w", "more": 1}])
def test_a_consent_without_its_facts_is_refused(desk: Any, body: dict[str, Any]) -> None:
    assert desk.role("writer").post("/v1/consents", json=body).status_code == 422
