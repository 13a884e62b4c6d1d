"""Merges, splits, scope reviews, truthful ends of copies and PROV-JSON over HTTP."""

from __future__ import annotations

import itertools
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

NUMBERS = itertools.count(1)
CLASS: dict[str, Any] = {
    "state": "file",
    "personal": True,
    "owner": "team-cv",
    "description": "application files",
    "legal_basis": "contract",
    "retention": {"keep": "P6M", "from": "event:role.closed", "latest": "P2Y", "then": "erase"},
    "erasure": {"on_request": "erase"},
}


@pytest.fixture
def desk(service: Any) -> Any:
    folder: Path = service.services.settings.data.parent / "stores" / "cv"
    folder.mkdir(parents=True, exist_ok=True)
    platform = service.role("platform")
    assert platform.put("/v1/data-classes/cv", json=CLASS).status_code in (200, 201)
    spec = {"kind": "files", "config": {"root": str(folder)}}
    assert platform.put("/v1/stores/cvs", json=spec).status_code in (200, 201)
    return service


def register(desk: Any, *subjects: str, **more: Any) -> list[str]:
    items = [
        {"data_class": "cv", "store": "cvs", "locator": {"path": f"{next(NUMBERS)}.pdf"}, "subjects": [one], **more}
        for one in subjects
    ]
    results = desk.role("writer").post("/v1/artifacts", json={"artifacts": items}).json()["results"]
    return [one["id"] for one in results]


def test_a_merge_needs_a_second_person_and_opens_a_scope_review(desk: Any) -> None:
    register(desk, "user:ada", "email:ada@example.org")
    legal, second = desk.role("legal"), desk.role("legal2")
    body = {"subjects": ["user:ada", "email:ada@example.org"], "reason": "one passport"}
    proposed = legal.post("/v1/subjects:merge", json=body)
    assert (proposed.status_code, proposed.json()["state"]) == (202, "proposed")
    assert legal.post("/v1/subjects:merge", json=body).json()["id"] == proposed.json()["id"]
    decide = {"decision": "same_person", "comment": "c"}
    own = legal.post(f"/v1/subjects/merges/{proposed.json()['id']}", json=decide)
    assert (own.status_code, own.json()["type"]) == (403, "/problems/separate-duties")
    done = second.post("/v1/subjects:merge", json=body)
    assert (done.status_code, done.json()["state"]) == (200, "done")
    assert re.search(r"\bada\b", done.text) is None
    known = legal.post("/v1/subjects:lookup", json={"subjects": body["subjects"]}).json()
    assert (known["known"], known["counts"][0]["count"]) == (1, 2)
    review = legal.get(f"/v1/scope-reviews/{done.json()['scope_review']}").json()
    assert (review["change"], review["open"], len(review["list"])) == ("merge", 2, 2)
    lines = {line["artifact"]: "keep" for line in review["list"]}
    closed = legal.post(f"/v1/scope-reviews/{review['id']}", json={"decisions": lines, "comment": "fine"}).json()
    assert (closed["open"], closed["closed_at"] is None) == (0, False)
    assert [one["id"] for one in legal.get("/v1/subjects/merges?state=done").json()["items"]] == [done.json()["id"]]
    assert legal.post("/v1/subjects:split", json={"subjects": ["user:ada"], "reason": "no"}).status_code == 200
    assert legal.post("/v1/subjects:lookup", json={"subjects": body["subjects"]}).json()["known"] == 2


@pytest.mark.parametrize("change", ["transfer", "merge", "role"])
def test_a_change_opens_a_review_with_its_owner_deadline_and_list(desk: Any, change: str) -> None:
    name = f"user:{change}_{next(NUMBERS)}"
    made = register(desk, name, name)
    register(desk, "user:bystander")
    legal, auditor = desk.role("legal"), desk.role("auditor")
    told = {"subject": name, "change": change, "detail": "left the sales team", "owner": "team-cv",
            "due_at": "2099-01-01T00:00:00Z"}  # fmt: skip
    refused = legal.post("/v1/subjects:scope-change", json=told | {"due_at": "2001-01-01T00:00:00Z"})
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/conflict")
    answer = legal.post("/v1/subjects:scope-change", json=told)
    opened = answer.json()
    assert answer.status_code == 201
    assert (opened["change"], opened["owner"], opened["due_at"]) == (change, "team-cv", "2099-01-01T00:00:00.000000Z")
    assert (opened["opened_by"], opened["detail"], opened["comments"]) == ("legal", "left the sales team", [])
    assert [(line["artifact"], line["class_owner"], line["store"], line["status"], line["decision"])
            for line in opened["list"]] == [(one, "team-cv", "cvs", "live", None) for one in made]  # fmt: skip
    path = f"/v1/scope-reviews/{opened['id']}"
    assert auditor.get(path).json() == opened
    assert opened["id"] in [one["id"] for one in auditor.get("/v1/scope-reviews").json()["items"]]
    first = legal.post(path, json={"decisions": {made[0]: "quarantine"}, "comment": "of the old role"}).json()
    assert (first["open"], first["closed_at"], first["comments"]) == (1, None, ["of the old role"])
    done = legal.post(path, json={"decisions": {made[1]: "keep"}, "comment": "needed"}).json()
    assert (done["open"], done["closed_by"], done["comments"]) == (0, "legal", ["of the old role", "needed"])
    assert desk.role("platform").get(f"/v1/artifacts/{made[0]}").json()["status"] == "quarantined"
    assert opened["id"] not in [one["id"] for one in auditor.get("/v1/scope-reviews").json()["items"]]


def test_a_review_has_thirty_days_and_is_of_who_opened_it_where_nobody_is_named(desk: Any) -> None:
    register(desk, "user:gil")
    told = {"subject": "user:gil", "change": "role", "detail": ""}
    opened = desk.role("legal").post("/v1/subjects:scope-change", json=told).json()
    days = datetime.fromisoformat(opened["due_at"]) - datetime.fromisoformat(opened["opened_at"])
    assert (opened["owner"], days) == ("legal", timedelta(days=30))


def test_a_shared_name_is_joined_only_by_who_says_so(desk: Any) -> None:
    register(desk, "user:eve", "user:fay", "email:home@example.org")
    legal, second = desk.role("legal"), desk.role("legal2")
    for client in (legal, second):
        client.post("/v1/subjects:merge", json={"subjects": ["user:eve", "email:home@example.org"], "reason": "r"})
    body = {"subjects": ["user:fay", "email:home@example.org"], "reason": "r"}
    doubt = legal.post("/v1/subjects:merge", json=body).json()
    assert len(doubt["shared"]) == 1
    assert second.post("/v1/subjects:merge", json=body).status_code == 202
    path = f"/v1/subjects/merges/{doubt['id']}"
    refused = second.post(path, json={"decision": "same_person", "comment": "c"})
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/ambiguous-subject")
    refuse = {"decision": "different_people", "comment": "a family address"}
    assert second.post(path, json=refuse).json()["state"] == "refused"


def test_unknown_names_and_ids_are_404(desk: Any) -> None:
    legal = desk.role("legal")
    assert legal.post("/v1/subjects:merge", json={"subjects": ["user:q1", "user:q2"], "reason": "r"}).status_code == 404
    assert legal.post("/v1/subjects:scope-change", json={"subject": "user:q1", "change": "role", "detail": ""}
                      ).status_code == 404  # fmt: skip
    assert legal.get("/v1/scope-reviews/scr_" + "0" * 32).status_code == 404
    assert legal.post("/v1/subjects/merges/mrg_" + "0" * 32, json={"decision": "same_person", "comment": "c"}
                      ).status_code == 404  # fmt: skip


def test_a_copy_whose_clock_waits_shows_its_cap_as_a_cap(desk: Any) -> None:
    register(desk, "user:gus", scope={"role": "r1"})
    legal = desk.role("legal")
    [waits] = legal.post("/v1/subjects:copies", json={"subjects": ["user:gus"]}).json()["items"]
    assert (waits["clock"], waits["ends_at_is_cap"], waits["starts"]) == ("waiting", True, "event:role.closed")
    assert waits["ends_at"] is not None
    event = {"name": "role.closed", "key": {"role": "r1"}, "at": "2026-01-01T00:00:00Z"}
    assert legal.post("/v1/events", json=event).status_code < 300
    [runs] = legal.post("/v1/subjects:copies", json={"subjects": ["user:gus"]}).json()["items"]
    assert (runs["clock"], runs["ends_at_is_cap"], runs["ends_at"]) == ("running", False, "2026-07-01T00:00:00.000000Z")
    register(desk, "user:hal", expires_at="2027-01-01T00:00:00Z")
    [own] = legal.post("/v1/subjects:copies", json={"subjects": ["user:hal"]}).json()["items"]
    assert (own["rule"], own["ends_at_is_cap"]) == ("item_expiry", False)


def test_an_artifacts_origin_is_prov_json_of_the_w3c(desk: Any) -> None:
    [root] = register(desk, "user:ivy")
    item = {"data_class": "cv", "store": "cvs", "locator": {"path": "ivy.json"}, "sources": [root],
            "activity": {"kind": "summarise", "run": "run_of_ivy"}}  # fmt: skip
    [made] = desk.role("writer").post("/v1/artifacts", json={"artifacts": [item]}).json()["results"]
    document = desk.role("auditor").get(f"/v1/artifacts/{made['id']}/prov").json()
    _check_prov(document)
    assert set(document["entity"]) == {f"muniment:{root}", f"muniment:{made['id']}"}
    [derived] = document["wasDerivedFrom"].values()
    assert (derived["prov:generatedEntity"], derived["prov:usedEntity"]) == (
        f"muniment:{made['id']}",
        f"muniment:{root}",
    )
    people = [name for name, agent in document["agent"].items() if agent["prov:type"]["$"] == "muniment:Person"]
    for entity in document["entity"].values():
        assert [one["$"] for one in entity["muniment:about"]] == people
        assert "muniment:truncated" not in entity
    assert "ivy" not in str(document)


def test_prov_json_says_of_each_item_who_registered_it_and_where_it_was_cut(desk: Any) -> None:
    # Everything above was said to be made by whoever registered the item that was asked for, when it was registered.
    [root] = register(desk, "user:jon")
    [middle] = register(desk, "user:jon", locator={"path": "jon2.json"}, sources=[root])
    token = {"principal": "second-agent", "roles": ["writer"], "stores": ["*"], "classes": ["*"]}
    secret = desk.role("admin").post("/v1/tokens", json=token).json()["token"]
    item = {"data_class": "cv", "store": "cvs", "locator": {"path": "jon3.json"}, "sources": [middle]}
    answer = desk.role("writer").post(
        "/v1/artifacts", json={"artifacts": [item]}, headers={"Authorization": f"Bearer {secret}"}
    )
    made = answer.json()["results"][0]["id"]
    document = desk.role("auditor").get(f"/v1/artifacts/{made}/prov").json()
    _check_prov(document)
    by = {one["prov:activity"]: one["prov:agent"] for one in document["wasAssociatedWith"].values()}
    assert by.keys() == {f"muniment:activity/{made}", f"muniment:activity/{middle}"}
    assert len(set(by.values())) == 2
    assert "prov:endTime" not in str(document)
    cut = desk.role("auditor").get(f"/v1/artifacts/{made}/prov?depth=1").json()
    _check_prov(cut)
    assert cut["entity"][f"muniment:{made}"]["muniment:truncated"] is True


REFERENCES = {
    "wasGeneratedBy": {"prov:entity": "entity", "prov:activity": "activity"},
    "used": {"prov:entity": "entity", "prov:activity": "activity"},
    "wasAssociatedWith": {"prov:activity": "activity", "prov:agent": "agent"},
    "wasInvalidatedBy": {"prov:entity": "entity", "prov:activity": "activity"},
    "wasDerivedFrom": {"prov:generatedEntity": "entity", "prov:usedEntity": "entity", "prov:activity": "activity"},
}


def _check_prov(document: dict[str, Any]) -> None:
    """Every relation is one of PROV-JSON, and names only what the document declares under a declared prefix."""
    assert set(document) <= {"prefix", "entity", "activity", "agent", *REFERENCES}
    assert set(document["prefix"]) == {"muniment", "prov"}
    for kind, fields in REFERENCES.items():
        for relation in document.get(kind, {}).values():
            named = {name: value for name, value in relation.items() if name != "prov:role"}
            assert set(named) <= set(fields)
            assert all(value in document[fields[name]] for name, value in named.items())


def test_whoever_is_joined_or_told_apart_has_their_items_dated_by_the_consents_that_count_now(desk: Any) -> None:
    platform, legal, second = desk.role("platform"), desk.role("legal"), desk.role("legal2")
    retention = {"keep": "P0D", "from": "consent", "latest": "P2Y", "then": "erase"}
    assert platform.put("/v1/data-classes/voice", json={**CLASS, "retention": retention}).status_code == 201
    [item] = register(desk, "user:kim", data_class="voice")
    register(desk, "user:kim2")
    given = legal.post("/v1/consents", json={"subject": "user:kim2", "words": "notice 3"}).json()
    ended = legal.post(f"/v1/consents/{given['id']}/withdraw", json={}).json()["ends_at"]

    def ends() -> str:
        return str(desk.role("writer").get(f"/v1/artifacts/{item}").json()["ends_at"])

    before = ends()
    assert before > ended
    body = {"subjects": ["user:kim", "user:kim2"], "reason": "r"}
    assert [one.post("/v1/subjects:merge", json=body).json()["state"] for one in (legal, second)] == [
        "proposed",
        "done",
    ]
    assert ends() == ended
    assert legal.post("/v1/subjects:split", json={"subjects": ["user:kim2"], "reason": "no"}).status_code == 200
    assert ends() == before
