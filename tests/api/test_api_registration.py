"""Bad items over HTTP: each has a result of its own, the rest of its batch is stored; reviews are decided there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muniment.registry import Client  # the SDK, as agents send it

CLASS: dict[str, Any] = {
    "state": "memory",
    "personal": True,
    "owner": "team-agents",
    "description": "what agents remember",
    "legal_basis": "contract",
    "subject_types": ["user", "email"],
    "retention": {"keep": "P6M", "from": "created", "then": "erase"},
    "erasure": {"on_request": "erase"},
}
BASE = {"data_class": "recalled", "store": "cellar", "subjects": ["user:ada"]}


def root_of(service: Any) -> Path:
    folder: Path = service.services.settings.data.parent / "stores" / "cellar"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def desk(service: Any) -> Any:
    for tokens in (service.tokens, service.other):
        platform = service.client(tokens["platform"])
        assert platform.put("/v1/data-classes/recalled", json=CLASS).status_code in (200, 201)
        spec = {"kind": "files", "config": {"root": str(root_of(service))}}
        assert platform.put("/v1/stores/cellar", json=spec).status_code in (200, 201)
    return service


def item(path: str, **more: Any) -> dict[str, Any]:
    made = {**BASE, "locator": {"path": path}, **more}
    return {name: value for name, value in made.items() if value is not None}


def post(desk: Any, *items: Any, token: str | None = None) -> list[dict[str, Any]]:
    client = desk.client(token or desk.tokens["writer"])
    answer = client.post("/v1/artifacts", json={"artifacts": list(items)})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["results"]
    return found


SELF = {"store": "cellar", "locator": {"path": "bad"}}
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "made from itself": ({"sources": [SELF]}, "invalid", "/sources/0"),
    "an unknown source": ({"sources": ["art_nobody_knows"]}, "unknown-source", "/sources/0"),
    "an unknown entry": ({"sources": ["entry:019e2c1d-7a5b-7c60-8000-00000000ffff"]}, "unknown-source", "/sources/0"),
    "an unknown class": ({"data_class": "nothing"}, "unknown-class", "/data_class"),
    "a table's place in a store of files": (
        {"locator": {"table": "t", "key": {"id": 1}}}, "bad-locator", "/locator",
    ),
    "a place outside the root": ({"locator": {"path": "../bad"}}, "bad-locator", "/locator"),
    "confidence 1.2": ({"confidence": 1.2}, "invalid", "/confidence"),
    "an end before it was seen": (
        {"observed_at": "2026-02-02T00:00:00Z", "expires_at": "2026-02-01T00:00:00Z"}, "invalid", "/expires_at",
    ),
    "a type of person that the class does not list": ({"subjects": ["phone:+491701234567"]}, "invalid", "/subjects/0"),
    "a place of a mebibyte": ({"locator": {"path": "x" * 2**20}}, "bad-locator", "/locator"),
    "an address with a look-alike letter": (
        {"subjects": ["email:p\u0430ypal@example.org"]}, "malformed-subject", "/subjects/0",
    ),
    "an empty person": ({"subjects": [""]}, "malformed-subject", "/subjects/0"),
    "a person without a name": ({"subjects": ["user:"]}, "malformed-subject", "/subjects/0"),
    "nobody at all": ({"subjects": []}, "no-subject", "/subjects"),
    "an unknown member": ({"colour": "vermilion"}, "invalid", "/colour"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_bad_item_is_named_with_its_place_and_the_others_are_stored(desk: Any, case: str) -> None:
    more, problem, pointer = CASES[case]
    mark = case.replace(" ", "-")
    before, bad, after = post(desk, item(f"{mark}-1"), item("bad", **more), item(f"{mark}-2"))
    assert (before["status"], bad["status"], after["status"]) == ("created", "rejected", "created")
    told = bad["problem"]
    assert told["type"] == f"/problems/{problem}"
    assert [one["pointer"].lstrip("#") for one in told["errors"]] == [pointer]
    assert len(told["detail"]) > 10
    assert desk.client().get(told["type"]).status_code == 200, "every problem has a page"
    for said in ("p\u0430ypal", "xxxx", "+4917", "vermilion"):
        assert said not in str(bad)
    ids = [one["id"] for one in (before, after)]
    assert [desk.role("writer").get(f"/v1/artifacts/{one}").json()["status"] for one in ids] == ["live", "live"]


def test_a_source_in_another_tenant_is_unknown(desk: Any) -> None:
    [theirs] = post(desk, item("theirs"), token=desk.other["writer"])
    bad, by_place, good = post(
        desk,
        item("bad", sources=[theirs["id"]]),
        item("bad", sources=[{"store": "cellar", "locator": {"path": "theirs"}}]),
        item("mine"),
    )
    assert [one["status"] for one in (bad, by_place, good)] == ["rejected", "rejected", "created"]
    assert {one["problem"]["type"] for one in (bad, by_place)} == {"/problems/unknown-source"}
    assert desk.client(desk.other["writer"]).get(f"/v1/artifacts/{theirs['id']}").json()["sources"] == []


def test_a_class_is_not_deleted_under_live_artifacts_and_its_items_stay_good(desk: Any) -> None:
    post(desk, item("lives"))
    answer = desk.role("platform").delete("/v1/data-classes/recalled")
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/class-in-use")
    assert "live" in answer.json()["detail"]
    assert post(desk, item("lives too"))[0]["status"] == "created"


def test_a_second_persons_word_decides_what_another_token_wanted(desk: Any) -> None:
    admin = desk.role("admin")
    bot = admin.post("/v1/tokens", json={"principal": "bot", "roles": ["writer", "legal"]}).json()
    [mine] = post(desk, item("reviewed"))
    with Client(desk.url, bot["token"]) as client:
        repeat = item("reviewed", expires_at="2031-01-01T00:00:00Z")
        [asked] = client.request("POST", "/v1/artifacts", {"artifacts": [repeat]})["results"]
    assert (asked["status"], asked["id"]) == ("review", mine["id"])
    found = desk.role("auditor").get("/v1/registration-reviews").json()["items"]
    [review] = [one for one in found if one["artifact"] == mine["id"]]
    assert (review["asked_by"], review["wanted"]) == (["bot"], {"expires_at": "2031-01-01T00:00:00+00:00"})
    path = f"/v1/registration-reviews/{review['id']}"
    word = {"decision": "accept", "reason": "the consent ends then"}
    assert desk.role("platform").post(path, json=word).status_code == 403
    itself = desk.client(bot["token"]).post(path, json=word)
    assert (itself.status_code, itself.json()["type"]) == (403, "/problems/separate-duties")
    assert desk.client(desk.other["legal"]).post(path, json=word).status_code == 404
    assert desk.role("legal").post(path, json=word).json()["decision"] == "accepted"
    assert desk.role("legal").post(path, json=word).status_code == 409
    shown = desk.role("legal").get(f"/v1/artifacts/{mine['id']}").json()
    assert shown["expires_at"].startswith("2031-01-01")
    everything = desk.role("legal").get("/v1/registration-reviews?state=all&limit=1000").json()["items"]
    assert review["id"] in {one["id"] for one in everything}
    assert review["id"] not in {one["id"] for one in desk.role("legal").get("/v1/registration-reviews").json()["items"]}
