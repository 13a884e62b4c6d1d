"""One person in four stores of vectors, erased by one request over HTTP; what is in the stores' own files is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.connectors.contract import text_of
from tests.connectors.mem0_bed import Mem0Bed
from tests.connectors.test_connectors_chroma import ChromaBed
from tests.connectors.test_connectors_lancedb import LanceBed
from tests.connectors.test_connectors_qdrant import QdrantBed
from tests.process.test_process_airline import erase

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
BEDS = {"lancedb": LanceBed, "chroma": ChromaBed, "qdrant": QdrantBed, "mem0": Mem0Bed}


# Where the record lies makes no difference to these stores, which are folders in both cases.
@pytest.mark.parametrize("running", ["embedded"], indirect=True)
@pytest.mark.scenario("L32", "A13", "S17")
def test_one_request_reaches_l2_in_every_store_of_vectors_and_leaves_the_others(desk: Any) -> None:
    base: Path = desk.running.settings.data.parent / "stores" / desk.tenant
    desk.call("platform", "PUT", "/v1/data-classes/vector", {
        "state": "memory", "personal": True, "owner": "team", "description": "texts with their vectors",
        "legal_basis": "contract", "subject_types": ["user"],
        "retention": {"keep": "P90D", "from": "created", "then": "erase"},
        "erasure": {"on_request": "erase", "required": "L2"},
    })  # fmt: skip
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
        spec = {"kind": kind, "config": {"path": str(bed.folder), "owner_field": "user_id"}}
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
