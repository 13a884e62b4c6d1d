"""The auditor's own routes: the service's events, and verifications of the whole record."""

import threading
import time
from typing import Any

import pytest

from api.routes.audit import AT_ONCE


def waited_for(client: Any, path: str) -> dict[str, Any]:
    """Polls a verification until it is not running any more."""
    for _ in range(600):
        found: dict[str, Any] = client.get(path).json()
        if found["state"] != "running":
            return found
        time.sleep(0.05)
    pytest.fail("the verification went on running")


@pytest.fixture
def audited(service: Any) -> Any:
    """A service whose events are in its log, under a signed head."""
    acting = service.services.tenants()[0]
    for number in range(3):
        body = {"principal": f"p{number}", "roles": ["auditor"], "stores": ["*"], "classes": ["*"]}
        assert service.role("admin").post("/v1/tokens", json=body).status_code in (200, 201)
    service.services.record.ship_outbox(acting.tenant_id, service.services.clock.now())
    service.services.log.publish(acting.tenant_id, service.services.clock.now())
    return service


def test_the_services_own_events_are_listed_in_order_by_pages(audited: Any) -> None:
    auditor = audited.role("auditor")
    whole = auditor.get("/v1/audit/log?limit=1000").json()
    assert [item["position"] for item in whole["items"]] == list(range(len(whole["items"])))
    assert {"tenant.created", "token.minted"} <= {item["kind"] for item in whole["items"]}
    assert all(item["integrity"] == "verified" and isinstance(item["body"], dict) for item in whole["items"])
    found: list[Any] = []
    cursor: Any = ""
    while cursor is not None:
        page = auditor.get(f"/v1/audit/log?limit=2{cursor and '&cursor=' + cursor}").json()
        found += page["items"]
        cursor = page["next_cursor"]
    assert found == whole["items"]


def test_a_verification_runs_beside_the_service_and_keeps_its_report(audited: Any) -> None:
    auditor = audited.role("auditor")
    started = auditor.post("/v1/audit/verifications", json={"key": audited.made.log_key})
    assert (started.status_code, started.json()["state"]) == (202, "running")
    path = f"/v1/audit/verifications/{started.json()['id']}"
    found = waited_for(auditor, path)
    assert found["state"] == "done", found
    assert found["report"]["verdict"] == "sound", found
    assert found["report"]["size"] == found["report"]["checked"] >= 4
    assert auditor.get(path).json() == found


def test_a_sample_and_a_kept_head_are_taken_over_http(audited: Any) -> None:
    auditor = audited.role("auditor")
    head = auditor.get("/v1/log/checkpoint").text
    started = auditor.post("/v1/audit/verifications", json={"sample": 2, "since": head}).json()
    found = waited_for(auditor, f"/v1/audit/verifications/{started['id']}")
    assert found["report"]["verdict"].startswith("sampled 2 of ")
    assert found["report"]["anchored"] is True
    started = auditor.post("/v1/audit/verifications", json={"since": "no note"}).json()
    assert waited_for(auditor, f"/v1/audit/verifications/{started['id']}")["state"] == "failed"


def test_only_an_auditor_of_this_tenant_sees_them(audited: Any) -> None:
    started = audited.role("auditor").post("/v1/audit/verifications", json={}).json()
    path = f"/v1/audit/verifications/{started['id']}"
    for role in ("writer", "platform", "admin"):
        client = audited.role(role)
        assert client.get("/v1/audit/log").status_code == 403
        assert client.post("/v1/audit/verifications", json={}).status_code == 403
        assert client.get(path).status_code == 403
    other = audited.client(audited.other["auditor"])
    assert other.get(path).status_code == 404
    assert audited.client().get("/v1/audit/log").status_code == 401
    waited_for(audited.role("auditor"), path)


def test_what_is_asked_wrongly_is_refused(audited: Any) -> None:
    auditor = audited.role("auditor")
    assert auditor.post("/v1/audit/verifications", json={"key": "none"}).status_code == 422
    assert auditor.post("/v1/audit/verifications", json={"sample": 0}).status_code == 422
    assert auditor.post("/v1/audit/verifications", json={"all": True}).status_code == 422
    assert auditor.get("/v1/audit/verifications/not-an-id").status_code == 404
    assert auditor.get(f"/v1/audit/verifications/{'0' * 32}").status_code == 404


def test_more_verifications_at_once_than_a_process_bears_are_429(audited: Any) -> None:
    # Each reads the whole record in a thread of its own: one auditor's token could keep a server from all else.
    auditor, end = audited.role("auditor"), threading.Event()
    name = f"muniment-verification-{audited.services.tenants()[0].log_id}"
    busy = [threading.Thread(target=end.wait, name=name, daemon=True) for _ in range(AT_ONCE)]
    for one in busy:
        one.start()
    refused = auditor.post("/v1/audit/verifications", json={})
    end.set()
    for one in busy:
        one.join()
    assert (refused.status_code, refused.json()["type"]) == (429, "/problems/too-many-requests")
    assert int(refused.headers["retry-after"]) > 0
    taken = auditor.post("/v1/audit/verifications", json={})
    assert taken.status_code == 202
    waited_for(auditor, f"/v1/audit/verifications/{taken.json()['id']}")
