"""Stores that only the agent's own process may open: erased there by the SDK, over HTTP, on both kinds of servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from connectors.base import Connector, open_connector
from muniment.errors import ApiProblem
from muniment.tasks import TaskRunner
from tests.process.conftest import wait_for

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]
ADA = "email:ada@example.org"
WORDS = "ada keeps bees in Blackthorn Row"
MEMORY = {
    "state": "record", "personal": True, "owner": "team", "description": "what an agent remembers",
    "legal_basis": "contract", "purposes": ["support"], "categories": ["contact"],
    "retention": {"keep": "P90D", "from": "created", "then": "erase"},
    "erasure": {"on_request": "erase", "required": "L2"},
}  # fmt: skip


class Embedded:
    """An agent with a folder of notes that the service is never told the place of."""

    def __init__(self, desk: Any, tmp_path: Path) -> None:
        self.desk = desk
        self.root = tmp_path / "agent"
        self.root.mkdir()
        self.opened: list[bool] = []
        desk.call("platform", "PUT", "/v1/data-classes/memory_note", MEMORY)
        desk.call(
            "platform",
            "PUT",
            "/v1/stores/memories",
            {"kind": "agent", "config": {"kind": "files", "owner_field": "owner"}},
        )

    def open(self, read_only: bool) -> Connector:
        self.opened.append(read_only)
        config = {"root": str(self.root), "owner_field": "owner"}
        return open_connector("files", config, secrets=str, read_only=read_only)

    def remember(self, name: str, owner: str = ADA) -> str:
        (self.root / f"{name}.json").write_text(json.dumps({"owner": owner, "text": WORDS}))
        item = {"data_class": "memory_note", "store": "memories", "locator": {"path": f"{name}.json"}}
        [result] = self.desk.client("writer").artifacts([{**item, "subjects": [ADA]}])
        assert result["status"] == "created", result
        return str(result["id"])

    def runner(self, principal: str = "writer") -> TaskRunner:
        return TaskRunner(self.desk.client(principal), {"memories": self.open})

    def erase(self) -> str:
        made = self.desk.call(
            "legal", "POST", "/v1/requests", {"right": "erasure", "subjects": [ADA], "regulation": "gdpr"}
        )
        path = f"/v1/requests/{made['id']}"
        self.desk.call("legal", "POST", f"{path}/verify-identity", {"identifier": ADA, "method": "login"})
        plan = self.desk.call("legal", "POST", f"{path}/plan")
        self.desk.call("legal2", "POST", f"{path}/approve", {"plan_hash": plan["plan_hash"]})
        wait_for(lambda: self.copies(path, "awaiting_external"))
        return path

    def copies(self, path: str, state: str) -> Any:
        return self.desk.call("legal", "GET", f"{path}/copies?state={state}")["items"]


def test_an_embedded_store_is_erased_in_the_agents_process_and_certified_as_stated(desk: Any, tmp_path: Path) -> None:
    agent = Embedded(desk, tmp_path)
    for name in ("n1", "n2"):
        agent.remember(name)
    (agent.root / "ben.json").write_text(json.dumps({"owner": "user:ben", "text": "ben's own"}))
    path = agent.erase()
    waiting = agent.copies(path, "awaiting_external")
    assert len(waiting) == 2
    assert all(copy["waiting_since"] for copy in waiting)
    assert desk.call("legal", "GET", path)["waiting_for"]["awaiting_external"] == 2
    assert wait_for(lambda: agent.runner().run_once()) == 1
    assert sorted(file.name for file in agent.root.iterdir()) == ["ben.json"]
    assert desk.call("legal", "GET", path)["state"] in ("executing", "verifying")
    assert wait_for(lambda: agent.runner().run_once()) == 1
    assert wait_for(lambda: desk.call("legal", "GET", path)["state"] == "completed", 60)
    assert agent.opened == [False, True], "the second look goes through a connector that cannot write"
    certificate = desk.client("legal").send("GET", f"{path}/report").body.decode()
    assert "stated by the agent's process in a second task" in certificate
    assert "Blackthorn" not in certificate
    assert agent.runner().run_once() == 0


def test_an_item_of_somebody_else_in_the_agents_store_waits_for_a_human(desk: Any, tmp_path: Path) -> None:
    agent = Embedded(desk, tmp_path)
    agent.remember("n1", owner="user:ben")
    path = agent.erase()
    assert wait_for(lambda: agent.runner().run_once()) == 1
    assert wait_for(lambda: agent.copies(path, "awaiting_human"))
    assert (agent.root / "n1.json").exists()


def test_tasks_are_for_writers_alone_and_for_nobody_who_did_not_claim_them(desk: Any, tmp_path: Path) -> None:
    agent = Embedded(desk, tmp_path)
    agent.remember("n1")
    agent.erase()
    claim = {"stores": ["memories"]}
    with pytest.raises(ApiProblem) as refused:
        desk.call("auditor", "POST", "/v1/connector-tasks:claim", claim)
    assert refused.value.status == 403
    [task] = desk.call("writer", "POST", "/v1/connector-tasks:claim", claim)["tasks"]
    answer = {"results": [{"copy": task["items"][0]["copy"], "outcome": "erased"}]}
    for body, status in (
        ({"claim": "guessed", **answer}, 409),
        ({"claim": task["claim"], "results": [{"copy": 777, "outcome": "erased"}]}, 422),
        ({"claim": task["claim"], **answer, "note": "words"}, 422),
        ({"claim": task["claim"], **answer, "reclaim": {"level": "L2", "residual_until": "soon"}}, 422),
    ):
        with pytest.raises(ApiProblem) as refused:
            desk.call("writer", "POST", f"/v1/connector-tasks/{task['id']}", body)
        assert refused.value.status == status
    body = {"claim": task["claim"], **answer}
    assert desk.call("writer", "POST", f"/v1/connector-tasks/{task['id']}", body)["status"] == "settled"
    assert desk.call("writer", "POST", f"/v1/connector-tasks/{task['id']}", body)["status"] == "already_settled"


def test_a_token_without_the_store_gets_none_of_its_tasks(desk: Any, tmp_path: Path) -> None:
    agent = Embedded(desk, tmp_path)
    agent.remember("n1")
    agent.erase()
    made = desk.call("admin", "POST", "/v1/tokens", {"principal": "stranger", "roles": ["writer"], "stores": ["other"]})
    desk.tokens["stranger"] = made["token"]
    with pytest.raises(ApiProblem) as refused:
        agent.runner("stranger").run_once()
    assert refused.value.type == "/problems/outside-token-scope"
    [task] = desk.call("writer", "POST", "/v1/connector-tasks:claim", {"stores": ["memories"]})["tasks"]
    body = {"claim": task["claim"], "results": []}
    with pytest.raises(ApiProblem) as refused:
        desk.call("stranger", "POST", f"/v1/connector-tasks/{task['id']}", body)
    assert refused.value.status == 403
