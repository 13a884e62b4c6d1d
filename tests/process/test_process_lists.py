"""Every list is read by pages: each item once, in one order, whatever the page's size."""

from __future__ import annotations

from typing import Any

import pytest

from muniment.errors import ApiProblem

REQUEST = {"right": "erasure", "subjects": ["email:ada@example.org"], "regulation": "gdpr"}


def pages(desk: Any, principal: str, method: str, path: str, body: object = None, *, limit: int) -> list[list[Any]]:
    """The pages of a list, read to its end."""
    found: list[list[Any]] = []
    cursor = ""
    while True:
        page = desk.call(principal, method, f"{path}?limit={limit}{cursor}", body)
        assert set(page) == {"items", "next_cursor"}
        assert len(page["items"]) <= limit
        found.append(page["items"])
        if page["next_cursor"] is None:
            return found
        assert page["items"], "a page before the last is not empty"
        cursor = f"&cursor={page['next_cursor']}"


def same_by_pages(desk: Any, principal: str, method: str, path: str, body: object = None) -> list[Any]:
    """The list at once; fails unless small pages give the same items in the same order."""
    [whole] = pages(desk, principal, method, path, body, limit=1000)
    for limit in (1, 2, len(whole)):
        small = pages(desk, principal, method, path, body, limit=limit)
        assert [item for page in small for item in page] == whole
        assert len(small) == -(-len(whole) // limit)
    return whole


def test_kinds_are_read_by_pages_and_a_new_one_disturbs_no_reader(desk: Any) -> None:
    for name in ("order.placed", "order.sent", "order_a.b", "a.b"):
        desk.call("platform", "PUT", f"/v1/kinds/{name}", {"description": name})
    whole = same_by_pages(desk, "writer", "GET", "/v1/kinds")
    assert [one["name"] for one in whole if not one["shipped"]] == ["a.b", "order.placed", "order.sent", "order_a.b"]
    first = desk.call("writer", "GET", f"/v1/kinds?limit={len(whole) - 1}")
    desk.call("platform", "PUT", "/v1/kinds/a.a", {"description": "new, and before what was read"})
    rest = desk.call("writer", "GET", f"/v1/kinds?limit=1000&cursor={first['next_cursor']}")
    assert [one["name"] for one in rest["items"]] == ["order_a.b"]


def test_requests_that_name_a_person_are_read_by_pages(desk: Any) -> None:
    made = {desk.call("legal", "POST", "/v1/requests", REQUEST | {"note": str(number)})["id"] for number in range(5)}
    desk.call("legal", "POST", "/v1/requests", REQUEST | {"subjects": ["email:somebody@example.org"]})
    whole = same_by_pages(desk, "legal", "POST", "/v1/requests:search", {"subject": "email:ada@example.org"})
    assert {one["id"] for one in whole} == made


def test_what_happened_to_a_memory_is_read_by_pages(desk: Any, tmp_path: Any) -> None:
    root = desk.running.settings.data.parent / "stores" / tmp_path.name
    desk.call("platform", "PUT", "/v1/stores/docs", {"kind": "files", "config": {"root": str(root)}})
    item = {"data_class": "memory", "store": "docs", "locator": {"path": "a"}, "subjects": ["user:a"],
            "source_type": "explicit_user_statement", "verification": "user_supplied", "confidence": 0.9,
            "purposes": ["support"], "observed_at": "2026-05-04T10:00:00Z", "source_ref": "m1"}  # fmt: skip
    [made] = desk.call("writer", "POST", "/v1/artifacts", {"artifacts": [item]})["results"]
    assert made["status"] == "created", made
    for number in range(3):
        desk.call("writer", "POST", f"/v1/memory/{made['id']}:confirm", {"source_ref": f"message_{number}"})
    whole = same_by_pages(desk, "writer", "GET", f"/v1/memory/{made['id']}/changes")
    assert [one["change"] for one in whole] == ["registered", "confirmed", "confirmed", "confirmed"]


@pytest.mark.parametrize(
    ("principal", "path", "where"),
    [
        ("legal", "/v1/requests?state=finished", "/query/state"),
        ("legal", "/v1/requests?right=oblivion", "/query/right"),
        ("legal", "/v1/requests/{request}/copies?state=gone", "/query/state"),
        ("legal", "/v1/dispositions?state=closed", "/query/state"),
        ("legal", "/v1/subjects/merges?state=maybe", "/query/state"),
        ("legal", "/v1/requests/{request}/report?version=draft", "/query/version"),
        ("legal", "/v1/requests/{request}/letter?kind=love", "/query/kind"),
    ],
)
def test_a_filter_for_what_no_item_can_be_is_422(desk: Any, principal: str, path: str, where: str) -> None:
    request = desk.call("legal", "POST", "/v1/requests", REQUEST)["id"]
    with pytest.raises(ApiProblem) as caught:
        desk.call(principal, "GET", path.format(request=request))
    assert (caught.value.status, [one["pointer"] for one in caught.value.errors]) == (422, [where])


@pytest.mark.parametrize("state", ["received", "no_match", "completed_with_exceptions"])
def test_a_filter_for_a_state_of_the_contract_is_answered(desk: Any, state: str) -> None:
    request = desk.call("legal", "POST", "/v1/requests", REQUEST)["id"]
    found = desk.call("legal", "GET", f"/v1/requests?state={state}&right=erasure")["items"]
    assert [one["id"] for one in found] == ([request] if state == "received" else [])
