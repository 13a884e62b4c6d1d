"""Side effects that several agents, or one that crashed, want to do: one does, and nobody is told that it is safe.

Embedded and on servers.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import httpx
import pytest

from ledger.models import ActionRow
from registry.keyed import Lookups
from tests.process.conftest import wait_for
from tests.process.test_process_rebuild import tenant_id

pytestmark = pytest.mark.process
AGENTS = 8


def ask(desk: Any, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    """Send a request as an agent whose connection nobody shares; returns status and answer."""
    headers = {"Authorization": f"Bearer {desk.tokens['writer']}"}
    while True:
        got = httpx.request(method, f"{desk.running.url}{path}", json=body, headers=headers, timeout=60)
        answer: dict[str, Any] = got.json()
        # Two that made one row at once are asked to come again, as the contract lets every write be.
        if (got.status_code, answer.get("type")) != (503, "/problems/contended"):
            return got.status_code, answer
        time.sleep(0.01)


def wanted(name: str, proposal: bytes = b"refund 12.00", lease: str = "PT5M") -> dict[str, Any]:
    digest = sha256(proposal).hexdigest()
    return {"action_id": name, "kind": "refund", "lease": lease, "proposal_digest": digest}


def test_of_agents_that_claim_one_action_at_once_one_has_it(desk: Any) -> None:
    for number in range(5):
        together = threading.Barrier(AGENTS)

        def claim(_: int, number: int = number, together: threading.Barrier = together) -> tuple[int, dict[str, Any]]:
            together.wait()
            return ask(desk, "POST", "/v1/actions", wanted(f"race/{number}"))

        with ThreadPoolExecutor(AGENTS) as agents:
            answers = list(agents.map(claim, range(AGENTS)))
        assert sorted(status for status, _ in answers) == [200] * (AGENTS - 1) + [201]
        assert {(answer["state"], answer["retry"]) for _, answer in answers} == {("claimed", "unsafe")}


def test_a_lease_that_ends_without_an_outcome_is_unknown_and_nobody_gets_the_action_again(desk: Any) -> None:
    path = "/v1/actions/crashed/1"
    assert ask(desk, "POST", "/v1/actions", wanted("crashed/1", lease="PT1S"))[0] == 201
    assert ask(desk, "GET", path)[1]["retry"] == "unsafe"
    unknown = wait_for(lambda: (found := ask(desk, "GET", path)[1])["state"] == "unknown" and found, 10)
    assert unknown["retry"] == "ask_provider"
    status, again = ask(desk, "POST", "/v1/actions", wanted("crashed/1"))
    assert (status, again["state"], again["retry"]) == (200, "unknown", "ask_provider")
    # Whoever asked the provider says how it ended, however late.
    assert ask(desk, "POST", f"{path}/outcome", {"state": "failed"})[1]["retry"] == "safe"
    assert ask(desk, "POST", "/v1/actions", wanted("crashed/1", b"refund 99.00"))[0] == 409
    status, taken = ask(desk, "POST", "/v1/actions", wanted("crashed/1"))
    assert (status, taken["state"], taken["retry"]) == (201, "claimed", "unsafe")
    assert ask(desk, "POST", f"{path}/outcome", {"state": "succeeded"})[1]["retry"] == "unsafe"
    assert ask(desk, "POST", "/v1/actions", wanted("crashed/1"))[1]["state"] == "succeeded"


def test_an_action_that_somebody_changed_in_the_database_is_refused_and_another_one_is_not(
    desk: Any, running: Any
) -> None:
    """A failed refund that was made a done one, and a done one that was made safe to be done again."""
    for name, state in (("changed/1", "failed"), ("changed/2", "succeeded"), ("changed/3", "succeeded")):
        assert ask(desk, "POST", "/v1/actions", wanted(name))[0] == 201
        assert ask(desk, "POST", f"/v1/actions/{name}/outcome", {"state": state})[0] == 200
    services, tenant = running.services, tenant_id(running, desk)
    lookups = Lookups(services.vault, tenant)
    for name, state in (("changed/1", "succeeded"), ("changed/2", "failed")):
        with services.database.transaction(tenant) as session:
            session.get_one(ActionRow, (tenant, lookups.of("action", name))).state = state
        for method, path, body in (
            ("GET", f"/v1/actions/{name}", None),
            ("POST", "/v1/actions", wanted(name)),
            ("POST", f"/v1/actions/{name}/outcome", {"state": "succeeded"}),
        ):
            status, answer = ask(desk, method, path, body)
            assert (status, answer["type"]) == (409, "/problems/action-altered"), (method, path)
    assert ask(desk, "GET", "/v1/actions/changed/3")[1]["retry"] == "unsafe"
