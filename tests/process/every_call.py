"""One story that makes every call of the HTTP contract, and remembers what was sent and answered.

Not a test: `test_process_openapi` holds what is remembered here against the OpenAPI document, and writes its examples.
A new route is told here; the test says so by the route's name until it is.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from ledger.entry import uuid7

PURPOSE = {"X-Purpose": "dispute;case=7"}
NEW = "2026-06-01T10:00:00Z"
FILES: dict[str, Any] = {
    "state": "file",
    "personal": True,
    "owner": "team-cv",
    "description": "application files",
    "legal_basis": "contract",
    "retention": {"keep": "P0D", "from": "event:done", "latest": "P1Y", "then": "erase"},
    "erasure": {"on_request": "erase", "required": "L1"},
}
MACHINE: dict[str, Any] = {
    "phases": ["identify", "task", "confirm"],
    "transitions": [["identify", "task"], ["task", "confirm"]],
    "tools": {"identify": ["look_up_customer"], "task": ["look_up_order"], "confirm": ["refund"]},
    "asks": ["refund"],
}
SAME_VIEW = {
    "POST /v1/requests/{request_id}/retry": "GET /v1/requests/{request_id}",
    "POST /v1/requests/{request_id}/accept-exceptions": "GET /v1/requests/{request_id}",
    "POST /v1/requests/{request_id}/lift": "GET /v1/requests/{request_id}",
    "POST /v1/requests/{request_id}/copies/{copy}": "GET /v1/requests/{request_id}",
    "POST /v1/retention/runs/{run_id}/approve": "GET /v1/retention/runs/{run_id}",
    "POST /v1/retention/runs/{run_id}/stop": "GET /v1/retention/runs/{run_id}",
}
"""Calls that succeed only after a failure, a brake or a human's task, and the call whose view they answer with."""


class Story:
    """A tenant's desk that remembers every call under the name of its operation."""

    def __init__(self, url: str, tokens: dict[str, str], names: list[str], base: Path) -> None:
        self._client = httpx.Client(base_url=url, timeout=60)
        self._tokens = tokens
        self._patterns = [(name, _pattern(name)) for name in names]
        self._base = base
        self.calls: list[tuple[str, Any, int, Any]] = []

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def call(self, principal: str, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Make one call, which must succeed; returns its JSON, or its bytes."""
        sent = {"Authorization": f"Bearer {self._tokens[principal]}", **headers}
        answer = self._client.request(method, path, json=body, headers=sent)
        assert answer.is_success, (method, path, answer.status_code, answer.text)
        is_json = answer.content and answer.headers.get("content-type", "").startswith("application/json")
        found = answer.json() if is_json else None
        self.calls.append((self.name_of(method, path), body, answer.status_code, found))
        return answer.content if found is None else found

    def status(self, principal: str, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """Make one call whose answer is not remembered."""
        sent = {"Authorization": f"Bearer {self._tokens[principal]}", **headers}
        return self._client.request(method, path, json=body, headers=sent)

    def name_of(self, method: str, path: str) -> str:
        """The operation of a call: the one with the fewest parameters that fits."""
        wanted = f"{method} {path.partition('?')[0]}"
        found = [name for name, pattern in self._patterns if pattern.fullmatch(wanted)]
        assert found, f"no operation for {wanted}"
        return min(found, key=lambda name: name.count("{"))

    def wait(self, read: Callable[[], Any], seconds: float = 40.0) -> Any:
        """Return the first truthy value."""
        end = time.monotonic() + seconds
        while not (value := read()):
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.05)
        return value

    def root(self, name: str) -> Path:
        """A folder that stores may point at."""
        folder = self._base / "stores" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def entry(self, **more: Any) -> dict[str, Any]:
        """An entry of this person's conversation."""
        return {
            "id": uuid7(datetime.now(UTC)),
            "stream": "conv_71",
            "kind": "turn.user",
            "at": NEW,
            "data_class": "transcript",
            "subjects": ["email:ada@example.org"],
            "body": {"role": "user", "content": "Where is my refund?"},
            **more,
        }


def _pattern(name: str) -> re.Pattern[str]:
    pieces = re.split(r"\{[a-z_]+\}", name)
    tail = ".+" if name.endswith(("{path}", "{action_id}")) or "{action_id}/" in name else "[^/]+?"
    return re.compile(tail.join(re.escape(piece) for piece in pieces))


def tell(story: Story) -> None:
    """Make every call once, in an order in which each succeeds."""
    operate(story)
    declare(story)
    remember(story)
    record(story)
    know_people(story)
    keep(story)
    ask(story)
    work_for_agents(story)
    retain(story)
    look_into_everything(story)
    end(story)


def operate(story: Story) -> None:
    """Health, tenants, tokens, the controller."""
    for path in ("/healthz", "/readyz", "/metrics", "/problems/legal-hold"):
        story.call("admin", "GET", path)
    story.call("admin", "POST", "/v1/tenants", {"name": "acme"})
    story.call("admin", "GET", "/v1/tenants")
    story.call("admin", "GET", "/v1/tokens/self")
    made = story.call("admin", "POST", "/v1/tokens", {"principal": "refund-bot", "roles": ["writer"]})
    story.call("admin", "GET", "/v1/tokens")
    story.call("admin", "DELETE", f"/v1/tokens/{made['id']}")
    controller = {"name": "Example GmbH", "contact": "privacy@example.org", "timezone": "Europe/Berlin"}
    story.call("admin", "PUT", "/v1/settings/controller", controller)
    story.call("legal", "GET", "/v1/settings/controller")


def declare(story: Story) -> None:
    """Classes, stores, machines, kinds, streams, runs."""
    platform = "platform"
    story.call(platform, "GET", "/v1/data-classes:schema")
    story.call(platform, "PUT", "/v1/data-classes/cv", FILES)
    story.call(platform, "PUT", "/v1/data-classes/cv", FILES)
    story.call(
        platform, "PUT", "/v1/data-classes/paper", FILES | {"retention": FILES["retention"] | {"then": "review"}}
    )
    story.call(platform, "GET", "/v1/data-classes/cv")
    story.call(platform, "GET", "/v1/data-classes")
    story.call(platform, "POST", "/v1/data-classes/cv/preview", FILES | {"owner": "team-b"})
    files = {"kind": "files", "config": {"root": str(story.root("files"))}}
    story.call(platform, "PUT", "/v1/stores/files", files)
    story.call(platform, "PUT", "/v1/stores/files", files)
    story.call(platform, "PUT", "/v1/stores/notes", {"kind": "agent", "config": {}, "recipient": None})
    story.call(platform, "GET", "/v1/stores/files")
    story.call(platform, "GET", "/v1/stores")
    story.call(platform, "POST", "/v1/stores/files/check")
    story.call(platform, "PUT", "/v1/machines/refund", MACHINE)
    story.call(platform, "PUT", "/v1/machines/refund", MACHINE)
    story.call(platform, "PUT", "/v1/kinds/order.placed", {"description": "an order was placed"})
    story.call(platform, "PUT", "/v1/kinds/order.placed", {"description": "an order was placed"})
    story.call(platform, "GET", "/v1/kinds")
    stream = {"stream": "conv_71", "owner": "email:ada@example.org", "channel": "chat", "data_class": "transcript",
              "machine": "refund"}  # fmt: skip
    made = story.call("writer", "POST", "/v1/streams", stream)
    story.call("writer", "POST", "/v1/streams", stream)
    story.call("writer", "PATCH", f"/v1/streams/{made['id']}", {"summary_version": "s2"})
    story.call("writer", "GET", f"/v1/streams/{made['id']}")
    run = {"run": "run_482", "stream": "conv_71", "workflow": "refund", "status": "active", "step": "check"}
    made = story.call("writer", "POST", "/v1/runs", run)
    story.call("writer", "POST", "/v1/runs", run)
    story.call("writer", "PATCH", f"/v1/runs/{made['id']}", {"step": "send"})
    story.call("writer", "GET", f"/v1/runs/{made['id']}")
    story.call("writer", "POST", "/v1/streams:allowed-tools", {"stream": "conv_71"})


def remember(story: Story) -> None:
    """Artifacts, their origin and use, memories."""
    item = {"data_class": "memory", "store": "files", "locator": {"path": "a.json"}, "source_ref": "message_993",
            "subjects": ["email:ada@example.org"], "source_type": "explicit_user_statement", "confidence": 0.9,
            "verification": "user_supplied", "purposes": ["support"], "observed_at": NEW}  # fmt: skip
    story.root("files").joinpath("a.json").write_text("Ada likes trains")
    [fact] = story.call("writer", "POST", "/v1/artifacts", {"artifacts": [item]})["results"]
    derived = {"data_class": "summary", "store": "files", "locator": {"path": "b.json"}, "sources": [fact["id"]],
               "activity": {"kind": "summarise", "run": "run_482", "model": "m-1", "prompt_version": "p7"}}  # fmt: skip
    [made] = story.call("writer", "POST", "/v1/artifacts", {"artifacts": [derived]})["results"]
    path = f"/v1/artifacts/{made['id']}"
    story.call("legal", "POST", "/v1/artifacts:search", {"subject": "email:ada@example.org"})
    story.call("legal", "GET", path)
    story.call("writer", "POST", f"{path}/sources", {"sources": [fact["id"]]})
    story.call("auditor", "GET", f"{path}/lineage")
    story.call("auditor", "GET", f"/v1/artifacts/{fact['id']}/provenance")
    story.call("auditor", "GET", f"{path}/prov")
    story.call("writer", "POST", f"{path}/status", {"status": "quarantined", "reason": "looks wrong"})
    asked = {"subject": "email:ada@example.org", "purpose": "support"}
    story.call("writer", "POST", "/v1/memory:resolve", asked)
    story.call("writer", "POST", f"/v1/memory/{fact['id']}:confirm", {"source_ref": "message_1044"})
    product = {"product_ref": "orders/8812", "observed": {"status": "delivered"}}
    story.call("writer", "POST", f"/v1/memory/{fact['id']}:conflict", product)
    story.call("writer", "GET", f"/v1/memory/{fact['id']}/changes")
    story.call("writer", "POST", f"/v1/memory/{fact['id']}:forget", {"source_ref": "message_1051"})


def record(story: Story) -> None:
    """Entries, proofs, replay, the log, actions."""
    entries = [story.entry(run="run_482", agent="refund-bot", recorder="r1", seq=1, model="m-1"),
               story.entry(kind="tool.call", body={"tool": "refund", "order": 8812})]  # fmt: skip
    stored = story.call("writer", "POST", "/v1/record/entries", {"entries": entries})["results"]
    path = f"/v1/record/entries/{stored[0]['id']}"
    story.call("auditor", "GET", path, **PURPOSE)
    story.call("auditor", "GET", f"{path}/proof")
    story.call("auditor", "POST", "/v1/record:search", {"kind": "tool.call"})
    story.call("auditor", "POST", "/v1/replay", {"stream": "conv_71"}, **PURPOSE)
    story.call("auditor", "POST", "/v1/streams:messages", {"stream": "conv_71"}, **PURPOSE)
    story.wait(lambda: story.call("platform", "GET", "/v1/machines/refund/violations")["items"])
    story.call("platform", "GET", "/v1/machines/refund")
    story.call("auditor", "GET", "/v1/log/checkpoint")
    story.call("auditor", "GET", "/v1/log/tile/0/000.p/1")
    story.call("auditor", "GET", "/v1/log/consistency?from=1&to=1")
    story.call("auditor", "GET", "/v1/log/keys")
    story.call("admin", "POST", "/v1/log/keys", {"use": "certificate"})
    story.call("auditor", "GET", "/v1/keys")
    story.call("auditor", "GET", "/v1/log/anchors")
    story.call("admin", "POST", "/v1/log/anchors")
    action = {"action_id": "role-14/app-0093/invite", "kind": "mail.send", "stream": "conv_71", "lease": "PT5M"}
    story.call("writer", "POST", "/v1/actions", action)
    story.call("writer", "POST", "/v1/actions", action)
    outcome = {"state": "succeeded", "provider_ref": "msg_8812"}
    story.call("writer", "POST", f"/v1/actions/{action['action_id']}/outcome", outcome)
    story.call("writer", "GET", f"/v1/actions/{action['action_id']}")


def know_people(story: Story) -> None:
    """What is held about people; merges, splits, reviews."""
    for number, name in enumerate(("user:eve", "email:eve@example.org", "user:fay", "email:home@example.org")):
        place = {"data_class": "cv", "store": "files", "locator": {"path": f"p{number}"}, "subjects": [name]}
        story.call("writer", "POST", "/v1/artifacts", {"artifacts": [place]})
    story.call("legal", "POST", "/v1/subjects:lookup", {"subjects": ["email:ada@example.org"]})
    story.call("legal", "POST", "/v1/subjects:copies", {"subjects": ["email:ada@example.org"]})
    wanted = {"subjects": ["user:eve", "email:eve@example.org"], "reason": "one account"}
    story.call("legal", "POST", "/v1/subjects:merge", wanted)
    merged = story.call("legal2", "POST", "/v1/subjects:merge", wanted)
    other = {"subjects": ["user:fay", "email:home@example.org"], "reason": "one household"}
    doubt = story.call("legal", "POST", "/v1/subjects:merge", other)
    story.call("legal", "GET", "/v1/subjects/merges")
    decision = {"decision": "different_people", "comment": "a family address"}
    story.call("legal2", "POST", f"/v1/subjects/merges/{doubt['id']}", decision)
    story.call("legal", "GET", "/v1/scope-reviews")
    review = story.call("legal", "GET", f"/v1/scope-reviews/{merged['scope_review']}")
    lines = {line["artifact"]: "keep" for line in review["list"]}
    story.call("legal", "POST", f"/v1/scope-reviews/{review['id']}", {"decisions": lines, "comment": "fine"})
    story.call("legal", "POST", "/v1/subjects:split", {"subjects": ["user:eve"], "reason": "it was a mistake"})
    change = {"subject": "user:fay", "change": "role", "detail": "left the sales team"}
    story.call("legal", "POST", "/v1/subjects:scope-change", change)


def keep(story: Story) -> None:
    """One token's wish to change another's item, decided by a human."""
    extra = story.call("admin", "POST", "/v1/tokens", {"principal": "other-bot", "roles": ["writer"]})
    item = {"data_class": "cv", "store": "files", "locator": {"path": "p0"}, "sources": [],
            "subjects": ["user:gus"]}  # fmt: skip
    headers = {"Authorization": f"Bearer {extra['token']}"}
    story.status("writer", "POST", "/v1/artifacts", {"artifacts": [item]}, **headers)
    found = story.call("legal", "GET", "/v1/registration-reviews")["items"]
    for review in found[:1]:
        path = f"/v1/registration-reviews/{review['id']}"
        story.call("legal", "POST", path, {"decision": "refuse", "reason": "the summary was written by hand"})


def ask(story: Story) -> None:
    """Requests, from receipt to certificate, and every other thing that can be done to one."""
    body = {"right": "erasure", "subjects": ["email:ada@example.org"], "regulation": "gdpr", "jurisdiction": "DE-BY",
            "timezone": "Europe/Berlin", "channel": "e-mail"}  # fmt: skip
    made = story.call("legal", "POST", "/v1/requests", body)
    path = f"/v1/requests/{made['id']}"
    check = {"identifier": "email:ada@example.org", "method": "login", "evidence": "session 8812"}
    story.call("legal", "POST", f"{path}/verify-identity", check)
    story.call("legal", "POST", f"{path}/pause", {"reason": "clarification"})
    story.call("legal", "POST", f"{path}/resume")
    story.call("legal", "POST", f"{path}/extend", {"reason": "many stores"})
    story.call("legal", "POST", f"{path}/plan")
    plan = story.call("legal", "GET", f"{path}/plan")
    story.call("legal2", "POST", f"{path}/approve", {"plan_hash": plan["hash"]})
    story.wait(lambda: story.status("legal", "GET", path).json()["state"].startswith("completed"))
    story.call("legal", "GET", path)
    story.call("legal", "GET", f"{path}/copies")
    story.call("legal", "GET", f"{path}/report", Accept="application/json")
    story.call("legal", "GET", f"{path}/letter", Accept="text/plain")
    story.call("legal", "GET", f"{path}/events")
    notice = {"kind": "answered", "channel": "e-mail", "sent_at": datetime.now(UTC).isoformat()}
    story.call("legal", "POST", f"{path}/notices", notice)
    story.call("legal", "GET", "/v1/requests")
    story.call("legal", "POST", "/v1/requests:search", {"subject": "email:ada@example.org"})
    story.call("legal", "POST", "/v1/subjects:reopen", {"subject": "email:ada@example.org", "basis": "new contract"})
    for action, said in (("refuse", {"ground": "manifestly_unfounded"}), ("cancel", None)):
        other = story.call("legal", "POST", "/v1/requests", body | {"subjects": [f"user:{action}"]})
        story.call("legal", "POST", f"/v1/requests/{other['id']}/{action}", said)
    export(story)


def export(story: Story) -> None:
    """An access request and its package."""
    story.call("writer", "POST", "/v1/record/entries", {"entries": [story.entry(stream="own", subjects=["user:kim"])]})
    body = {"right": "access", "subjects": ["user:kim"], "regulation": "gdpr"}
    path = f"/v1/requests/{story.call('legal', 'POST', '/v1/requests', body)['id']}"
    story.call("legal", "POST", f"{path}/verify-identity", {"identifier": "user:kim", "method": "login"})
    story.call("legal", "POST", f"{path}/plan")
    plan = story.call("legal", "GET", f"{path}/plan")
    story.call("legal2", "POST", f"{path}/approve", {"plan_hash": plan["hash"]})
    story.wait(lambda: story.status("legal", "GET", path).json()["state"].startswith("completed"))
    story.call("legal", "GET", f"{path}/export")


def work_for_agents(story: Story) -> None:
    """A task for a store in an agent's own process."""
    item = {"data_class": "cv", "store": "notes", "locator": {"id": "n1"}, "subjects": ["user:lea"]}
    [made] = story.call("writer", "POST", "/v1/artifacts", {"artifacts": [item]})["results"]
    assert made["status"] == "created", made
    body = {"right": "erasure", "subjects": ["user:lea"], "regulation": "gdpr"}
    path = f"/v1/requests/{story.call('legal', 'POST', '/v1/requests', body)['id']}"
    story.call("legal", "POST", f"{path}/verify-identity", {"identifier": "user:lea", "method": "login"})
    story.call("legal", "POST", f"{path}/plan")
    plan = story.call("legal", "GET", f"{path}/plan")
    story.call("legal2", "POST", f"{path}/approve", {"plan_hash": plan["hash"]})
    claim = {"stores": ["notes"], "limit": 10, "lease_s": 300}
    ready = story.wait(lambda: story.status("writer", "POST", "/v1/connector-tasks:claim", claim).json()["tasks"])
    answer = {"claim": ready[0]["claim"], "results": [{"copy": ready[0]["items"][0]["copy"], "outcome": "erased"}]}
    story.call("writer", "POST", f"/v1/connector-tasks/{ready[0]['id']}", answer)
    story.wait(lambda: story.call("writer", "POST", "/v1/connector-tasks:claim", claim)["tasks"])


def retain(story: Story) -> None:
    """Events, what is due, runs, holds, reviews, and why."""
    for name, data_class in (("c1", "cv"), ("c2", "paper"), ("c3", "cv")):
        story.root("files").joinpath(f"{name}.txt").write_text("an application")
        item = {"data_class": data_class, "store": "files", "locator": {"path": f"{name}.txt"},
                "subjects": [f"user:{name}"], "scope": {"case": name}}  # fmt: skip
        [made] = story.call("writer", "POST", "/v1/artifacts", {"artifacts": [item]})["results"]
        assert made["status"] == "created", made
        story.call("legal", "POST", "/v1/decide", {"artifact": made["id"], "trigger": "request"})
    held = {"name": "acme-2026", "matter": "Acme v. us", "reason": "letter of 4 May",
            "selector": {"subjects": ["user:c3"]}}  # fmt: skip
    hold = story.call("legal", "POST", "/v1/holds", held)
    for name in ("c1", "c2"):
        told = {"name": "done", "key": {"case": name}, "at": datetime.now(UTC).isoformat()}
        story.call("legal", "POST", "/v1/events", told)
    story.call("legal", "GET", "/v1/retention/due")
    story.call("legal", "POST", "/v1/retention/runs", {"dry_run": True})
    run = story.call("legal", "POST", "/v1/retention/runs", {"dry_run": False})
    path = f"/v1/retention/runs/{run['id']}"
    story.wait(lambda: story.status("legal", "GET", path).json()["state"] == "completed")
    for place in ("/v1/retention/runs", path, f"{path}/report", "/v1/holds"):
        story.call("legal", "GET", place)
    consent(story)
    [waiting] = story.wait(lambda: story.call("legal", "GET", "/v1/dispositions")["items"])
    story.call("legal", "POST", f"/v1/dispositions/{waiting['id']}", {"decision": "erase", "comment": "not needed"})
    story.call("legal", "POST", f"/v1/holds/{hold['id']}/release")


def consent(story: Story) -> None:
    """What a person consents to, and takes back."""
    voice = FILES | {"retention": {"keep": "P30D", "from": "consent", "latest": "P2Y", "then": "erase"}}
    story.call("platform", "PUT", "/v1/data-classes/voice", voice)
    given = {"subject": "user:c3", "data_classes": ["voice"], "given_at": NEW, "words": "notice of 4 May, version 3"}
    made = story.call("legal", "POST", "/v1/consents", given)
    story.call("legal", "POST", "/v1/consents:search", {"subject": "user:c3"})
    story.call("legal", "POST", f"/v1/consents/{made['id']}/withdraw", {})


def look_into_everything(story: Story) -> None:
    """The inventory and what an auditor asks."""
    story.call("platform", "POST", "/v1/inventory:inspect", {"sample": 5})
    for path in ("/v1/inventory", "/v1/audit/coverage", "/v1/audit/processing-record", "/v1/audit/log"):
        story.call("auditor", "GET", path)
    started = story.call("auditor", "POST", "/v1/audit/verifications", {})
    path = f"/v1/audit/verifications/{started['id']}"
    story.wait(lambda: story.call("auditor", "GET", path)["state"] == "done")


def end(story: Story) -> None:
    """What is taken out of force."""
    spare = {"kind": "files", "config": {"root": str(story.root("spare"))}}
    story.call("platform", "PUT", "/v1/stores/spare", spare)
    story.call("platform", "DELETE", "/v1/stores/spare")
    story.call("platform", "PUT", "/v1/data-classes/spare", FILES)
    story.call("platform", "DELETE", "/v1/data-classes/spare")
