"""Classes, stores, artifacts, subjects, streams and the inventory over HTTP."""

import re
from pathlib import Path
from typing import Any

import pytest

CLASS: dict[str, Any] = {
    "state": "file",
    "personal": True,
    "owner": "team-cv",
    "description": "application files",
    "legal_basis": "contract",
    "retention": {"keep": "P6M", "from": "created", "then": "erase"},
    "erasure": {"on_request": "erase"},
}


def root_of(service: Any) -> Path:
    folder: Path = service.services.settings.data.parent / "stores" / "cv"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def desk(service: Any) -> Any:
    platform = service.role("platform")
    assert platform.put("/v1/data-classes/cv", json=CLASS).status_code in (200, 201)
    spec = {"kind": "files", "config": {"root": str(root_of(service))}}
    assert platform.put("/v1/stores/cvs", json=spec).status_code in (200, 201)
    return service


def test_a_class_is_versioned_and_the_same_again_changes_nothing(desk: Any) -> None:
    platform = desk.role("platform")
    first = platform.put("/v1/data-classes/notes", json=CLASS)
    assert (first.status_code, first.json()["version"]) == (201, 1)
    again = platform.put("/v1/data-classes/notes", json=CLASS)
    assert (again.status_code, again.json()["version"]) == (200, 1)
    changed = platform.put("/v1/data-classes/notes", json=CLASS | {"owner": "team-b"})
    assert (changed.status_code, changed.json()["version"]) == (201, 2)
    assert platform.get("/v1/data-classes/notes?version=1").json()["owner"] == "team-cv"
    assert platform.delete("/v1/data-classes/notes").status_code == 204
    assert platform.get("/v1/data-classes/notes").status_code == 404


def test_a_preview_changes_nothing_and_counts_what_would_be_due(desk: Any) -> None:
    platform = desk.role("platform")
    shorter = CLASS | {"retention": {"keep": "P1D", "from": "created", "then": "erase"}}
    found = platform.post("/v1/data-classes/cv/preview", json=shorter).json()
    assert any("P1D" in line for line in found["changes"])
    assert found["due_after"] == 0
    assert platform.get("/v1/data-classes/cv").json()["retention"]["keep"] == "P6M"


def test_the_starter_classes_are_there_and_listed_by_pages(desk: Any) -> None:
    names: list[str] = []
    cursor = ""
    while True:
        page = desk.role("auditor").get(f"/v1/data-classes?limit=3{cursor}").json()
        names += [item["name"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    starters = {"transcript", "tool", "decision", "summary", "embedding", "memory", "checkpoint", "export", "skeleton"}
    assert set(names) >= starters
    assert names == sorted(set(names))


def test_a_store_is_checked_with_a_canary_and_unreachable_is_a_finding(desk: Any) -> None:
    platform = desk.role("platform")
    found = platform.post("/v1/stores/cvs/check").json()
    assert found["reachable"], found
    assert found["can_erase"]
    assert found["level_reached"] == "L2"
    gone = {"kind": "files", "config": {"root": str(root_of(desk).parent / "missing")}}
    assert platform.put("/v1/stores/gone", json=gone).status_code == 201
    answer = platform.post("/v1/stores/gone/check")
    assert answer.status_code == 200
    assert not answer.json()["can_erase"]
    assert str(root_of(desk).parent) not in str(answer.json()["findings"])


def test_artifacts_are_judged_one_by_one_and_found_by_person(desk: Any) -> None:
    writer = desk.role("writer")
    items: list[Any] = [
        {"data_class": "cv", "store": "cvs", "locator": {"path": "ada.pdf"}, "subjects": ["email:ada@example.org"]},
        {"data_class": "nothing", "store": "cvs", "locator": {"path": "x"}, "subjects": ["user:1"]},
        {"data_class": "cv", "store": "nowhere", "locator": {"path": "x"}, "subjects": ["user:1"]},
        {"data_class": "cv", "store": "cvs", "locator": {"path": "nobody.pdf"}},
        {"data_class": "cv", "store": "cvs", "locator": {"path": "star.pdf"}, "subjects": ["user:*"]},
        None,
        "art_1",
        [],
    ]
    results = writer.post("/v1/artifacts", json={"artifacts": items}).json()["results"]
    assert [result["status"] for result in results] == ["created", *["rejected"] * 7]
    assert [result["problem"]["detail"] for result in results[5:]] == ["expected an object"] * 3
    again = writer.post("/v1/artifacts", json={"artifacts": items[:1]}).json()["results"]
    assert again == [{**again[0], "id": results[0]["id"], "status": "exists"}]
    legal = desk.role("legal")
    found = legal.post("/v1/artifacts:search", json={"subject": "email:ADA@example.org"}).json()["items"]
    assert [item["id"] for item in found] == [results[0]["id"]]
    assert re.search(r"\bada\b", str(found)) is None
    counts = legal.post("/v1/subjects:lookup", json={"subjects": ["email:ada@example.org"]}).json()
    assert counts == {"known": 1, "counts": [{"data_class": "cv", "store": "cvs", "count": 1}]}
    copies = legal.post("/v1/subjects:copies", json={"subjects": ["email:ada@example.org"]}).json()["items"]
    assert copies[0]["deleted_by"] == "the retention sweep"
    assert copies[0]["ends_at"] is not None


def test_lineage_goes_both_ways_and_people_travel(desk: Any) -> None:
    writer = desk.role("writer")
    base = {"data_class": "cv", "store": "cvs"}
    cv = {**base, "locator": {"path": "bo.pdf"}, "subjects": ["user:bo"]}
    parent = writer.post("/v1/artifacts", json={"artifacts": [cv]}).json()["results"][0]["id"]
    child_spec = {**base, "locator": {"path": "bo.json"}, "sources": [parent]}
    child = writer.post("/v1/artifacts", json={"artifacts": [child_spec]}).json()["results"][0]["id"]
    up = writer.get(f"/v1/artifacts/{child}/lineage?direction=up").json()
    assert {node["id"] for node in up["nodes"]} == {parent, child}
    down = writer.get(f"/v1/artifacts/{parent}/lineage?direction=down").json()
    assert {node["id"] for node in down["nodes"]} == {parent, child}
    first = writer.get(f"/v1/artifacts/{child}/lineage?limit=1").json()
    assert ([node["id"] for node in first["nodes"]], first["truncated"]) == ([child], True)
    rest = writer.get(f"/v1/artifacts/{child}/lineage?limit=1&cursor={first['next_cursor']}").json()
    assert ([node["id"] for node in rest["nodes"]], rest["next_cursor"]) == ([parent], None)
    assert writer.get(f"/v1/artifacts/{child}/lineage?cursor=bm8").status_code == 422
    found = desk.role("legal").post("/v1/artifacts:search", json={"subject": "user:bo"}).json()["items"]
    assert {item["id"] for item in found} == {parent, child}
    assert writer.get(f"/v1/artifacts/{child}/provenance").status_code == 200
    late = {**base, "locator": {"path": "late.json"}, "subjects": ["user:cy"]}
    other = writer.post("/v1/artifacts", json={"artifacts": [late]}).json()["results"][0]["id"]
    assert writer.post(f"/v1/artifacts/{parent}/sources", json={"sources": [other]}).status_code == 200
    found = desk.role("legal").post("/v1/artifacts:search", json={"subject": "user:cy"}).json()["items"]
    assert {item["id"] for item in found} == {parent, child, other}


def test_another_tenants_artifact_is_unknown(desk: Any) -> None:
    item = {"data_class": "cv", "store": "cvs", "locator": {"path": "dee.pdf"}, "subjects": ["user:dee"]}
    known = desk.role("writer").post("/v1/artifacts", json={"artifacts": [item]}).json()["results"][0]["id"]
    other = desk.client(desk.other["writer"])
    assert other.get(f"/v1/artifacts/{known}").status_code == 404
    seen = desk.client(desk.other["legal"]).post("/v1/subjects:lookup", json={"subjects": ["user:dee"]}).json()
    assert seen == {"known": 0, "counts": []}


def test_too_many_artifacts_are_refused_whole(desk: Any) -> None:
    answer = desk.role("writer").post("/v1/artifacts", json={"artifacts": [{}] * 5001})
    assert answer.status_code == 422


@pytest.mark.parametrize("subject", ["", "ada", "User:1", "user:", "user:a%b", "user:" + "x" * 513, "user:a\u0007"])
def test_a_malformed_subject_is_422_and_not_repeated(desk: Any, subject: str) -> None:
    answer = desk.role("legal").post("/v1/subjects:lookup", json={"subjects": [subject]})
    assert answer.status_code == 422
    assert answer.json()["type"] == "/problems/malformed-subject"


def test_a_stream_is_declared_and_its_name_is_nowhere_in_the_answer(desk: Any) -> None:
    writer = desk.role("writer")
    spec = {"stream": "conv_ada", "owner": "user:ada", "channel": "chat", "data_class": "cv"}
    made = writer.post("/v1/streams", json=spec)
    assert made.status_code == 201
    assert re.search(r"\bada\b", made.text) is None
    assert writer.post("/v1/streams", json=spec).status_code == 200
    stream = made.json()["id"]
    assert writer.patch(f"/v1/streams/{stream}", json={"channel": "mail"}).status_code == 200
    assert writer.patch("/v1/streams/" + "0" * 32, json={"channel": "mail"}).status_code == 404
    run = writer.post("/v1/runs", json={"run": "r1", "stream": "conv_ada", "status": "active"})
    assert run.status_code == 201
    assert writer.patch(f"/v1/runs/{run.json()['id']}", json={"status": "completed"}).json()["ended_at"]


def test_the_inventory_counts_gaps_and_puts_the_worst_first(desk: Any) -> None:
    found = desk.role("auditor").get("/v1/inventory").json()
    assert {item["name"] for item in found["classes"]} >= {"cv", "transcript"}
    assert {item["name"] for item in found["stores"]} >= {"cvs"}
    assert found["gaps"] >= 0


def test_the_controller_is_kept_and_a_wrong_zone_refused(desk: Any) -> None:
    spec = {"name": "Example GmbH", "contact": "privacy@example.org", "timezone": "Europe/Berlin"}
    assert desk.role("platform").put("/v1/settings/controller", json=spec).status_code == 200
    assert desk.role("legal").get("/v1/settings/controller").json()["timezone"] == "Europe/Berlin"
    bad = desk.role("platform").put("/v1/settings/controller", json=spec | {"timezone": "Mars/Olympus"})
    assert bad.status_code == 422


def test_shipped_kinds_keep_their_meaning(desk: Any) -> None:
    assert desk.role("platform").put("/v1/kinds/tool.call", json={}).status_code == 409
    assert desk.role("platform").put("/v1/kinds/order.placed", json={"description": "x"}).status_code in (200, 201)


def test_the_document_describes_problems_and_gives_examples(desk: Any) -> None:
    document = desk.client().get("/openapi.json").json()
    assert "Problem" in document["components"]["schemas"]
    assert "HTTPValidationError" not in document["components"]["schemas"]
    writes = [operation for path in document["paths"].values() for name, operation in path.items() if name == "put"]
    assert all("4XX" in operation["responses"] for operation in writes)
