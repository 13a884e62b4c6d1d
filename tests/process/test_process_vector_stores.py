"""One person in four stores of vectors, erased by one request over HTTP; what is in the stores' own files is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muniment.tasks import TaskRunner
from tests.connectors.contract import text_of
from tests.connectors.mem0_bed import Mem0Bed
from tests.connectors.test_connectors_chroma import ChromaBed
from tests.connectors.test_connectors_lancedb import LanceBed
from tests.connectors.test_connectors_qdrant import QdrantBed
from tests.process.conftest import wait_for
from tests.process.test_process_airline import erase

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
CLASS = {
    "state": "memory", "personal": True, "owner": "team", "description": "texts with their vectors",
    "legal_basis": "contract", "subject_types": ["user"],
    "retention": {"keep": "P90D", "from": "created", "then": "erase"},
    "erasure": {"on_request": "erase", "required": "L2"},
}  # fmt: skip
BEDS = {"lancedb": LanceBed, "chroma": ChromaBed, "qdrant": QdrantBed, "mem0": Mem0Bed}


# Where the record lies makes no difference to these stores, which are folders in both cases.
@pytest.mark.parametrize("running", ["embedded"], indirect=True)
@pytest.mark.scenario("L32", "A13", "S17")
def test_one_request_reaches_l2_in_every_store_of_vectors_and_leaves_the_others(desk: Any) -> None:
    base: Path = desk.running.settings.data.parent / "stores" / desk.tenant
    desk.call("platform", "PUT", "/v1/data-classes/vector", CLASS)
    beds: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for kind, make in BEDS.items():
        (base / kind).mkdir(parents=True)
        bed: Any = make(base / kind)
        beds[kind] = bed
        for name, owner in (("ada-0", "ada"), ("ada-1", "ada"), ("bob-0", "bob")):
            locator = dict(bed.put(name, text_of(name), owner))
            about = {"store": kind, "data_class": "vector", "locator": locator}
            rows += [{**about, "subjects": ["user:ada"]}] if owner == "ada" else []
        if kind != "lancedb":
            bed.release()
        spec = {"kind": kind, "config": {"path": str(bed.folder()), "owner_field": "user_id"}}
        desk.call("platform", "PUT", f"/v1/stores/{kind}", spec)
        check = desk.call("platform", "POST", f"/v1/stores/{kind}/check")
        assert (check["level_reached"], check["owner_check"], check["findings"]) == ("L2", "enforced", []), (
            kind,
            check,
        )
    made = desk.client("writer").artifacts(rows)
    assert {each["status"] for each in made} == {"created"}
    assert all(bed.hits(text_of("ada-0")) for bed in beds.values())

    done = erase(desk, "user:ada")

    assert done["state"] == "completed"
    assert done["counts"]["erased_physical"] == 8
    for kind, bed in beds.items():
        assert [bed.hits(text_of(name)) for name in ("ada-0", "ada-1")] == [0, 0], kind
        assert [bed.get(name) for name in ("ada-0", "ada-1", "bob-0")] == [None, None, text_of("bob-0")], kind
        if kind != "lancedb":
            bed.release()


@pytest.mark.parametrize("running", ["embedded"], indirect=True)
def test_a_store_in_an_agents_own_process_is_erased_while_it_has_it_open(desk: Any, tmp_path: Path) -> None:
    bed = LanceBed(tmp_path)
    desk.call("platform", "PUT", "/v1/data-classes/vector", CLASS)
    config = {"kind": "lancedb", "owner_field": "user_id"}
    desk.call("platform", "PUT", "/v1/stores/inside", {"kind": "agent", "config": config})
    rows = []
    for name, owner in (("ada-0", "ada"), ("bob-0", "bob")):
        locator = dict(bed.put(name, text_of(name), owner))
        rows.append({"store": "inside", "data_class": "vector", "locator": locator, "subjects": [f"user:{owner}"]})
    desk.client("writer").artifacts(rows)
    wanted = {"right": "erasure", "subjects": ["user:ada"], "regulation": "gdpr"}
    made = desk.call("legal", "POST", "/v1/requests", wanted)
    path = f"/v1/requests/{made['id']}"
    desk.call("legal", "POST", f"{path}/verify-identity", {"identifier": "user:ada", "method": "login"})
    plan = desk.call("legal", "POST", f"{path}/plan")
    desk.call("legal2", "POST", f"{path}/approve", {"plan_hash": plan["plan_hash"]})
    runner = TaskRunner(desk.client("writer"), {"inside": lambda read_only: bed.open(read_only=read_only)})
    assert wait_for(runner.run_once) == 1
    assert wait_for(runner.run_once) == 1
    assert wait_for(lambda: desk.call("legal", "GET", path)["state"] == "completed", 60)
    copies = desk.call("legal", "GET", f"{path}/copies")["items"]
    assert [copy["level"] for copy in copies if copy["store"] == "inside"] == ["L2"]
    assert bed.hits(text_of("ada-0")) == 0
    assert bed.get("bob-0") == text_of("bob-0")
