"""Inspection, inventory, coverage, the record of processing, the schema and the preview, over HTTP on real content."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from api.commands.inventory import inventory
from registry.models import StoreRow

NUMBERS = itertools.count(1)
CLASS: dict[str, Any] = {
    "state": "checkpoint", "personal": True, "owner": "team-agents", "description": "agent checkpoints",
    "categories": ["agent.state"], "subject_types": ["user", "email"], "purposes": ["support"],
    "legal_basis": "contract", "retention": {"keep": "P6M", "from": "created", "then": "erase"},
    "erasure": {"on_request": "erase"},
}  # fmt: skip


@pytest.fixture
def root(service: Any) -> Path:
    folder: Path = service.services.settings.data.parent / "stores" / "states"
    folder.mkdir(parents=True, exist_ok=True)
    platform = service.role("platform")
    assert platform.put("/v1/data-classes/state", json=CLASS).status_code in (200, 201)
    spec = {"kind": "files", "config": {"root": str(folder)}, "recipient": "Vendor Inc.", "country": "US"}
    assert platform.put("/v1/stores/states", json=spec).status_code in (200, 201)
    return folder


def put(service: Any, root: Path, content: object, subject: str = "email:ada@example.org", **more: Any) -> str:
    name = f"{next(NUMBERS)}.json"
    (root / name).write_text(json.dumps(content))
    item = {"data_class": "state", "store": "states", "locator": {"path": name}, "subjects": [subject],
            "scope": {"thread": "t"}, **more}  # fmt: skip
    [made] = service.role("writer").post("/v1/artifacts", json={"artifacts": [item]}).json()["results"]
    assert made["status"] == "created", made
    return str(made["id"])


def class_view(found: dict[str, Any], name: str = "state") -> dict[str, Any]:
    view: dict[str, Any] = next(one for one in found["classes"] if one["name"] == name)
    return view


def test_gaps_that_only_the_content_shows_are_found_in_real_files(service: Any, root: Path) -> None:
    platform = service.role("platform")
    put(service, root, {"step": 1, "ref": "entry:019e"})
    assert "body_in_checkpoint" not in class_view(platform.get("/v1/inventory").json())["gaps"]
    put(service, root, {"messages": [{"role": "user", "content": "I am Ada and my parcel from Graz is broken."}]})
    put(service, root, {"user": hashlib.sha256(b"ada@example.org").hexdigest(), "reasoning": "she sounds angry"})
    looked = platform.post("/v1/inventory:inspect", json={"sample": 10}).json()
    [mine] = [one for one in looked["looked_at"] if one["data_class"] == "state"]
    assert mine["items"] == 3
    found = platform.get("/v1/inventory").json()
    counts = class_view(found)["counts"]
    assert counts["body_in_checkpoint"] == counts["bare_hash_of_identifier"] == counts["keeps_deliberation"] == 1
    assert found["content_inspected_at"] is not None
    assert re.search(r"\bada\b", json.dumps(looked).lower()) is None
    assert "Graz" not in json.dumps(found)


def test_what_is_repaired_is_a_gap_no_longer_at_the_next_inspection(service: Any, root: Path) -> None:
    platform = service.role("platform")
    made = put(service, root, {"thinking": "hm"}, subject="user:bob")
    platform.post("/v1/inventory:inspect", json={})
    before = class_view(platform.get("/v1/inventory").json())["counts"]["keeps_deliberation"]
    number = next(NUMBERS) - 1
    (root / f"{number}.json").write_text("{}")
    platform.post("/v1/inventory:inspect", json={})
    after = class_view(platform.get("/v1/inventory").json())["counts"].get("keeps_deliberation", 0)
    assert (before - after, made != "") == (1, True)


def test_a_store_that_cannot_be_read_is_named(service: Any, root: Path) -> None:
    platform = service.role("platform")
    put(service, root, {})
    away = root.with_name("away")
    root.rename(away)
    try:
        looked = platform.post("/v1/inventory:inspect", json={}).json()
    finally:
        away.rename(root)
    assert [one["store"] for one in looked["not_looked_at"]] == ["states"]


@pytest.mark.scenario("A22")
def test_a_class_in_a_store_that_nothing_erases_fails_the_check_and_is_not_covered(service: Any, root: Path) -> None:
    platform = service.role("platform")
    put(service, root, {})
    # A row that a newer version wrote: no version refuses to declare only what it has not.
    tenants = {one.tenant: one.tenant_id for one in service.services.tenants()}
    with service.services.database.transaction(tenants["default"]) as session:
        session.merge(
            StoreRow(
                tenant_id=tenants["default"], name="scrolls", version=1, kind="parchment", config={}, about={},
                created_at=service.services.clock.now(), created_by="newer",
            )
        )  # fmt: skip
    put(service, root, {}, store="scrolls", locator={"shelf": "7"})
    found = service.role("auditor").get("/v1/audit/coverage").json()
    stores = {one["name"]: one for one in found["stores"]}
    assert (stores["states"]["examined"], stores["states"]["level"]) == (True, "L2")
    assert stores["states"]["residual"]["backup_retention"] == "not stated"
    assert (stores["scrolls"]["examined"], stores["scrolls"]["items"]) == (False, 1)
    why = "stores of kind parchment are not built in this version"
    assert {"store": "scrolls", "because": why} in found["not_covered"]
    assert class_view(found)["items"] >= 2
    assert found["subjects"]["propagation_pending"] == 0
    assert "no_eraser" in class_view(platform.get("/v1/inventory").json())["gaps"]
    arguments = ["--url", service.url, "--token", service.tokens["platform"]]
    assert CliRunner().invoke(inventory, arguments, standalone_mode=False).return_value == 1


def test_a_declared_anonymisation_is_a_statement_in_the_coverage(service: Any, root: Path) -> None:
    platform = service.role("platform")
    open_class = {**CLASS, "state": "record", "personal": False}
    assert platform.put("/v1/data-classes/counts", json=open_class).status_code in (200, 201)
    source = put(service, root, {}, subject="user:cleo")
    said = {"kind": "count", "anonymisation": {"basis": "counts over 50 people", "method": "count"}}
    item = {"data_class": "counts", "store": "states", "locator": {"path": "counts.json"}, "sources": [source],
            "activity": said}  # fmt: skip
    [made] = service.role("writer").post("/v1/artifacts", json={"artifacts": [item]}).json()["results"]
    assert made["status"] == "created", made
    shown = service.role("writer").get(f"/v1/artifacts/{made['id']}").json()
    assert (shown["anonymised"], shown["subjects"], shown["sources"]) == (True, [], [source])
    found = service.role("auditor").get("/v1/audit/coverage").json()["declared_anonymous"]
    assert [(one["data_class"], one["items"]) for one in found] == [("counts", 1)]
    refused = {**item, "locator": {"path": "x"}, "data_class": "state"}
    wrong = [refused, {**item, "locator": {"path": "y"}, "activity": {"kind": "count", "anonymisation": {}}}]
    results = service.role("writer").post("/v1/artifacts", json={"artifacts": wrong}).json()["results"]
    assert [one["status"] for one in results] == ["rejected", "rejected"]


def test_the_record_of_processing_has_what_article_30_asks_or_lists_it_as_missing(service: Any, root: Path) -> None:
    put(service, root, {})
    before = service.role("auditor").get("/v1/audit/processing-record").json()
    assert {"field": "controller.name", "article": "30(1)(a)"} in before["missing"]
    spec = {"name": "Example GmbH", "contact": "privacy@example.org", "timezone": "Europe/Berlin"}
    assert service.role("platform").put("/v1/settings/controller", json=spec).status_code == 200
    found = service.role("auditor").get("/v1/audit/processing-record").json()
    assert found["controller"]["name"] == "Example GmbH"
    assert not [one for one in found["missing"] if one["field"].startswith("controller.")]
    [mine] = [one for one in found["activities"] if one["data_class"] == "state"]
    assert (mine["purposes"], mine["legal_basis"], mine["recipients"]) == (["support"], "contract", ["Vendor Inc."])
    assert mine["transfers"] == [{"recipient": "Vendor Inc.", "country": "US", "store": "states"}]
    assert (mine["erasure"]["keep"], mine["subject_categories"]) == ("P6M", ["user", "email"])
    assert found["security_measures"]


def test_the_schema_of_declarations_is_published(service: Any) -> None:
    found = service.role("writer").get("/v1/data-classes:schema").json()
    assert found["title"] == "Muniment data class"
    assert found["properties"]["retention"]["required"] == ["keep", "from", "then"]


def test_a_preview_names_what_a_change_would_make_due_under_every_clock(service: Any, root: Path) -> None:
    platform = service.role("platform")
    waits = {**CLASS, "retention": {"keep": "P6M", "from": "event:case.closed", "latest": "P5Y", "then": "erase"}}
    assert platform.put("/v1/data-classes/state2", json=waits).status_code == 201
    done = put(service, root, {}, data_class="state2", scope={"case": "c1"})
    put(service, root, {}, data_class="state2", scope={"case": "c2"})
    event = {"name": "case.closed", "key": {"case": "c1"}, "at": "2026-10-01T00:00:00Z"}
    assert service.role("legal").post("/v1/events", json=event).status_code < 300
    same = platform.post("/v1/data-classes/state2/preview", json=waits).json()
    assert (same["changes"], same["due_now"], same["due_after"], same["newly_due"]) == ([], 0, 0, [])
    shorter = {**waits, "retention": {**waits["retention"], "keep": "P1D"}}
    found = platform.post("/v1/data-classes/state2/preview", json=shorter).json()
    assert (found["due_now"], found["due_after"], found["newly_due"]) == (0, 1, [done])
    again = {"name": "case.closed", "key": {"case": "c1"}, "at": service.services.clock.now().isoformat()}
    assert service.role("legal").post("/v1/events", json=again).status_code < 300
    assert platform.post("/v1/data-classes/state2/preview", json=shorter).json()["due_after"] == 0
    for clock in ("observed", "last_activity", "consent"):
        of_clock = {**waits, "retention": {"keep": "P1D", "from": clock, "latest": "P5Y", "then": "erase"}}
        assert platform.post("/v1/data-classes/state2/preview", json=of_clock).json()["due_after"] == 0
    assert platform.get("/v1/data-classes/state2").json()["version"] == 1


def test_the_command_prints_a_table_and_exits_1_while_there_is_a_gap(service: Any, root: Path) -> None:
    put(service, root, {"thinking": "hm"})
    arguments = ["--inspect", "--url", service.url, "--token", service.tokens["platform"]]
    done = CliRunner().invoke(inventory, arguments, standalone_mode=False)
    assert done.exception is None, done.output
    assert done.return_value == 1
    assert "team-agents" in done.output
    assert "keeps_deliberation (" in done.output
    remedies = [line.split(":")[0].strip() for line in done.output.splitlines() if line.startswith("  ")]
    assert {"no_owner", "keeps_deliberation"} <= set(remedies)
    assert remedies[0] == "no_owner", "worst first"
    as_json = CliRunner().invoke(inventory, [*arguments, "--json"], standalone_mode=False)
    assert json.loads(as_json.output)["gaps"] > 0
