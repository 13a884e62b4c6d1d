"""What agents remember, over HTTP and on both kinds of servers: asked for, confirmed, contradicted, forgotten."""

from __future__ import annotations

import json
import sqlite3
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select

from erasure import report_check
from ledger.entry import Kind, uuid7
from ledger.models import OutboxRow
from muniment.errors import ApiProblem
from registry.classes import STARTER_CLASSES
from tests import forked

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]
PURPOSE = "dispute;case=7"
ADA = "user:ada"
CLASS = {
    **STARTER_CLASSES["memory"],
    "purposes": ["support", "dispute"],
    "access": {"roles": ["auditor"], "purposes": ["dispute"]},
    "erasure": {"on_request": "erase", "required": "L2"},
}
FORGOTTEN = "prefers receipts by carrier pigeon, wombat-93417"
DERIVED = "summary of: carrier pigeon, wombat-93417"


class Agent:
    """One agent with a database of its own and a stream with Ada."""

    def __init__(self, desk: Any) -> None:
        self.desk = desk
        self.base: Path = desk.running.settings.data.parent / "stores" / desk.tenant
        self.base.mkdir(parents=True)
        self.file = self.base / "agent.db"
        with sqlite3.connect(self.file) as db:
            db.execute("CREATE TABLE memory (id INTEGER PRIMARY KEY, owner TEXT, value TEXT)")
        db.close()
        desk.call("platform", "PUT", "/v1/data-classes/preference", CLASS)
        config = {"url": f"sqlite:///{self.file}", "owner_field": "owner"}
        desk.call("platform", "PUT", "/v1/stores/agent", {"kind": "sql", "config": config})
        self.turn = self.say("I prefer receipts by e-mail.")

    def say(self, text: str, *, stream: str = "conv_1", kind: str = "turn.user", body: Any = None) -> str:
        """Record a turn; its id."""
        entry = {
            "id": uuid7(datetime.now(UTC)),
            "stream": stream,
            "kind": kind,
            "at": datetime.now(UTC).isoformat(),
            "data_class": "transcript",
            "subjects": [ADA],
            "body": body or {"role": "user", "content": text},
        }
        answer = self.desk.call("writer", "POST", "/v1/record/entries", {"entries": [entry]})
        assert answer["results"][0]["status"] == "stored", answer
        return str(entry["id"])

    def remember(self, number: int, value: str = "by e-mail", **more: Any) -> dict[str, Any]:
        """Write a row and register it as a memory; the result."""
        with sqlite3.connect(self.file) as db:
            db.execute("INSERT OR REPLACE INTO memory VALUES (?, ?, ?)", (number, ADA, value))
        db.close()
        item = {
            "data_class": "preference",
            "store": "agent",
            "locator": self.place(number),
            "subjects": [ADA],
            "sources": [f"entry:{self.turn}"],
            "source_type": "explicit_user_statement",
            "source_ref": "message_993",
            "verification": "user_supplied",
            "confidence": 0.9,
            "observed_at": datetime.now(UTC).isoformat(),
            "purposes": ["support"],
            "scope": {"conversation": "conv_1"},
        } | more
        item = {name: member for name, member in item.items() if member is not None}
        result: dict[str, Any] = self.desk.call("writer", "POST", "/v1/artifacts", {"artifacts": [item]})["results"][0]
        return result

    @staticmethod
    def place(number: int) -> dict[str, Any]:
        """Where a memory lies."""
        return {"table": "memory", "key": {"id": number}}

    def ask(self, **more: Any) -> dict[str | None, Any]:
        """The verdicts on Ada's memories by id."""
        body = {"subject": ADA, "purpose": "support", "scope": {"conversation": "conv_1"}, **more}
        answer = self.desk.call("writer", "POST", "/v1/memory:resolve", body)
        return {line["artifact"]: line for line in answer["memories"]}

    def reads(self) -> list[str]:
        """The events that tell of reads of content, which share the transaction of the read."""
        services = self.desk.running.services
        tenant_id = next(one.tenant_id for one in services.tenants() if one.tenant == self.desk.tenant)
        with services.database.transaction(tenant_id, write=False) as session:
            query = select(OutboxRow.entry_id).where(
                OutboxRow.tenant_id == tenant_id, OutboxRow.kind == Kind.CONTENT_READ.value
            )
            return list(session.exec(query))

    def changes(self, memory: str) -> list[Any]:
        """The bodies in a memory's own stream, as an auditor replays them."""
        replayed = self.desk.call("auditor", "POST", "/v1/replay", {"stream": f"memory:{memory}"}, purpose=PURPOSE)
        return [entry["body"] for entry in replayed["entries"]]


@pytest.fixture
def agent(desk: Any) -> Agent:
    return Agent(desk)


def test_a_memory_is_usable_for_its_person_purpose_scope_and_time_only(agent: Agent) -> None:
    memory = agent.remember(1)["id"]
    assert agent.ask()[memory]["verdict"] == "usable"
    assert agent.ask()[memory]["confidence_now"] == pytest.approx(0.9, abs=0.01)
    assert agent.ask(purpose="dispute")[memory]["verdict"] == "wrong_purpose"
    assert agent.ask(scope={"conversation": "conv_2"})[memory]["verdict"] == "out_of_scope"
    assert agent.ask(scope=None)[memory]["verdict"] == "out_of_scope"
    other = agent.ask(subject="user:bob", artifacts=[memory])
    assert other[memory]["verdict"] == "out_of_scope"
    by_place = agent.ask(artifacts=[{"store": "agent", "locator": agent.place(1)}, "art_nobody_knows_0001"])
    assert by_place[memory]["verdict"] == "usable"
    assert by_place[None]["verdict"] == "out_of_scope"
    inferred = agent.remember(2, source_type="model_inference", verification=None)["id"]
    assert agent.ask()[inferred]["verdict"] == "ask_user"
    old = (datetime.now(UTC) - timedelta(days=200)).isoformat()
    aged = agent.remember(3, observed_at=old)["id"]
    assert agent.ask()[aged]["verdict"] == "reconfirm"
    assert agent.ask(subject="user:never_seen") == {}


def test_what_the_person_confirms_is_usable_again_and_cites_the_turn(agent: Agent) -> None:
    memory = agent.remember(1, source_type="model_inference", verification=None)["id"]
    said = agent.say("Yes, that is right.")
    view = agent.desk.call("writer", "POST", f"/v1/memory/{memory}:confirm", {"source_ref": f"entry:{said}"})
    assert view["confidence_now"] == 1.0
    assert agent.ask()[memory]["verdict"] == "usable"
    told = agent.desk.call("auditor", "GET", f"/v1/artifacts/{memory}/provenance")
    assert told["verification"] == "user_confirmed"
    assert told["source_type"] == "model_inference"
    assert {line["entry"] for line in told["chain"] if "entry" in line} == {agent.turn, said}
    assert agent.changes(memory)[0]["change"] == "confirmed"
    log = agent.desk.call("auditor", "GET", f"/v1/memory/{memory}/changes")["items"]
    assert [line["change"] for line in log] == ["registered", "confirmed"]
    assert log[1]["entries"] == view["entries"]


def test_where_a_fact_came_from_is_told_with_the_very_turns_and_what_they_said(agent: Agent) -> None:
    summary = {"kind": "summarise", "model": "m-1", "prompt_version": "p7"}
    base = agent.remember(1)["id"]
    memory = agent.remember(2, subjects=None, sources=[base], activity=summary)["id"]
    path = f"/v1/artifacts/{memory}/provenance"
    told = agent.desk.call("writer", "GET", path)
    assert [line.get("artifact") or line.get("entry") for line in told["chain"]] == [memory, base, agent.turn]
    assert told["chain"][0]["activity"] == summary
    turn = told["chain"][-1]
    assert (turn["position"], turn["kind"], turn["data_class"]) == (0, "turn.user", "transcript")
    assert {"body", "integrity", "parts"}.isdisjoint(turn)
    replayed = agent.desk.call("auditor", "POST", "/v1/replay", {"stream": "conv_1"}, purpose=PURPOSE)
    [said] = [entry for entry in replayed["entries"] if entry["id"] == agent.turn]
    before = len(agent.reads())
    read = agent.desk.call("auditor", "GET", path, purpose=PURPOSE)["chain"][-1]
    assert (read["body"], read["integrity"]) == (said["body"], "verified")
    assert len(agent.reads()) == before + 1, "reading content is an entry itself"
    entry = agent.desk.call("auditor", "GET", f"/v1/record/entries/{agent.turn}", purpose=PURPOSE)
    assert (read["index"], read["stream"], read["position"]) == (said["index"], entry["stream_id"], entry["position"])
    proof = agent.desk.call("auditor", "GET", f"/v1/record/entries/{read['entry']}/proof")
    assert proof["index"] == read["index"]
    reader = agent.desk.tokens["auditor"]
    words = ["explain", memory, "--purpose", PURPOSE, "--url", agent.desk.running.url, "--token", reader]
    shown = forked.run(*words)
    assert shown.returncode == 0, shown.stderr
    assert f"  from {memory} by summarise (model m-1, prompt_version p7)\n  from {base}\n" in shown.stdout
    assert "    verified: " in shown.stdout
    assert "I prefer receipts by e-mail." in shown.stdout


def test_what_a_turn_said_is_read_with_the_right_role_and_purpose_only(agent: Agent) -> None:
    path = f"/v1/artifacts/{agent.remember(1)['id']}/provenance"
    for principal in ("writer", "platform"):
        with pytest.raises(ApiProblem) as refused:
            agent.desk.call(principal, "GET", path, purpose=PURPOSE)
        assert refused.value.status == 403
    with pytest.raises(ApiProblem) as refused:
        agent.desk.call("auditor", "GET", path, purpose="No Code")
    assert refused.value.status == 403
    before = len(agent.reads())
    turn = agent.desk.call("auditor", "GET", path, purpose="marketing")["chain"][-1]
    assert (turn["integrity"], "body" in turn) == ("withheld", False)
    assert len(agent.reads()) == before


@pytest.mark.scenario("S19")
@pytest.mark.scenario("S49")
def test_the_product_wins_the_memory_is_quarantined_and_both_sides_are_recorded(agent: Agent) -> None:
    memory = agent.remember(1)["id"]
    newer = agent.remember(2, sources=[f"entry:{agent.say('Rather by letter.')}"])["id"]
    view = agent.desk.call(
        "writer",
        "POST",
        f"/v1/memory/{memory}:conflict",
        {"product_ref": "settings/ada", "observed": {"receipts": "by letter"}},
    )
    assert view["status"] == "quarantined"
    assert agent.ask()[memory]["verdict"] == "quarantined"
    assert agent.ask()[newer]["verdict"] == "usable"
    remembered, seen = agent.changes(memory)
    assert (remembered["side"], seen["side"]) == ("memory", "product")
    assert remembered["source_ref"] == "message_993"
    assert remembered["sources"] == [agent.turn]
    assert seen["observed"] == {"receipts": "by letter"}
    with pytest.raises(ApiProblem) as refused:
        agent.desk.call("writer", "POST", f"/v1/memory/{memory}:confirm", {"source_ref": "m"})
    assert refused.value.status == 409
    agent.desk.call("platform", "POST", f"/v1/artifacts/{memory}/status", {"status": "revoked", "reason": "wrong"})
    assert agent.ask()[memory]["verdict"] == "revoked"
    log = agent.desk.call("auditor", "GET", f"/v1/memory/{memory}/changes")["items"]
    assert [line["change"] for line in log] == ["registered", "conflict", "status"]
    assert log[0]["sources"] == [agent.turn]
    assert log[2]["by"] != log[1]["by"]
    for one in (memory, newer):
        told = agent.desk.call("auditor", "GET", f"/v1/artifacts/{one}/provenance")
        assert told["observed_at"] is not None
        assert [line for line in told["chain"] if "entry" in line]


@pytest.mark.scenario("S47")
def test_an_overwrite_is_recorded_and_an_inference_never_takes_a_statements_place(agent: Agent) -> None:
    memory = agent.remember(1, digest="a" * 64)["id"]
    assert agent.remember(1, digest="b" * 64)["status"] == "exists"
    [change] = agent.changes(memory)
    assert change["change"] == "overwritten"
    assert change["before"]["source_type"] == "explicit_user_statement"
    assert change["before"]["digest"] != change["after"]["digest"]
    assert change["sources"] == [agent.turn]
    refused = agent.remember(1, digest="c" * 64, source_type="model_inference", verification=None)
    assert refused["status"] == "review"
    assert len(agent.changes(memory)) == 1
    assert agent.ask()[memory]["source_type"] == "explicit_user_statement"


def test_forget_this_is_one_call_that_ends_the_memory_and_what_was_made_from_it(agent: Agent) -> None:
    desk = agent.desk
    memory = agent.remember(1, FORGOTTEN)["id"]
    kept = agent.remember(2, "something else")["id"]
    derived = agent.remember(3, DERIVED, subjects=None, sources=[memory], source_ref=None)["id"]
    answer = desk.call("writer", "POST", f"/v1/memory/{memory}:forget", {"source_ref": "message_1051"})
    request = answer["request"]
    verdicts = agent.ask(artifacts=[memory, derived, kept])
    assert verdicts[memory]["verdict"] == "erased"
    assert verdicts[derived]["verdict"] == "erased"
    assert verdicts[kept]["verdict"] == "usable"
    again = desk.call("writer", "POST", f"/v1/memory/{memory}:forget")
    assert again["request"] == request
    state = wait_until_done(desk, request)
    assert state["state"] == "completed"
    assert state["approvals"][0]["by"] == "subject through writer"
    with sqlite3.connect(agent.file) as db:
        assert [row[0] for row in db.execute("SELECT id FROM memory ORDER BY id")] == [2]
    db.close()
    raw = b"".join(file.read_bytes() for file in agent.base.iterdir())
    assert b"wombat-93417" not in raw
    report = desk.client("legal").send("GET", f"/v1/requests/{request}/report", None, {"Accept": "application/json"})
    report_check.check(report.body, desk.certificate_key, desk.log_key)
    certificate = json.loads(report.body)["certificate"]
    assert {copy["id"] for copy in certificate["copies"]} == {memory, derived}
    assert certificate["approval"] == "subject"
    for kind, begins in (("text/html", b"<!"), ("application/pdf", b"%PDF")):
        page = desk.client("legal").send("GET", f"/v1/requests/{request}/report", None, {"Accept": kind}).body
        assert page.lower().startswith(begins.lower())
    letter = desk.client("legal").send("GET", f"/v1/requests/{request}/letter", None, {"Accept": "text/plain"})
    assert letter.status == 200
    examined = {line["name"]: line["examined"] for line in certificate["coverage"]}
    assert examined["agent"] == "yes"
    assert examined["transcript"] == "no"
    # The person is not erased: what is said next is taken in, and what they said before is still there.
    agent.say("Something new.")
    read = desk.client("auditor").send("GET", f"/v1/record/entries/{agent.turn}", None, {"X-Purpose": PURPOSE})
    assert read.status == 200
    log = desk.call("auditor", "GET", f"/v1/memory/{memory}/changes")["items"]
    assert log[-1] == {"change": "erased", "by": request, "at": None, "entries": []}
    # An erasure of the whole person later is no duplicate of what was limited to one memory.
    body = {"right": "erasure", "subjects": [ADA], "regulation": "gdpr"}
    whole = desk.call("legal", "POST", "/v1/requests", body)["id"]
    desk.call("legal", "POST", f"/v1/requests/{whole}/verify-identity", {"identifier": ADA, "method": "login"})
    assert desk.call("legal", "POST", f"/v1/requests/{whole}/plan")["state"] == "planned"


def test_what_is_also_about_others_waits_for_a_human_and_is_out_of_use(agent: Agent) -> None:
    joint = agent.remember(1, subjects=[ADA, "user:bob"])["id"]
    with pytest.raises(ApiProblem) as refused:
        agent.desk.call("writer", "POST", f"/v1/memory/{joint}:forget")
    assert refused.value.status == 422
    answer = agent.desk.call("writer", "POST", f"/v1/memory/{joint}:forget", {"subject": ADA})
    assert answer["waiting_for"] == {"awaiting_human": 1}
    assert agent.ask()[joint]["verdict"] == "quarantined"
    agent.desk.call(
        "legal2",
        "POST",
        f"/v1/requests/{answer['request']}/copies/1",
        {"outcome": "erase", "comment": "Bob agrees"},
    )
    assert wait_until_done(agent.desk, answer["request"])["state"] == "completed"


def test_an_agent_uses_all_of_it_through_the_client(agent: Agent) -> None:
    client = agent.desk.client("writer")
    first, second = agent.remember(1)["id"], agent.remember(2)["id"]
    scope = {"conversation": "conv_1"}
    assert {line["verdict"] for line in client.memories(ADA, purpose="support", scope=scope)} == {"usable"}
    assert client.confirm_memory(first, source_ref="message_7")["verification"] == "user_confirmed"
    assert client.contradict_memory(second, product_ref="p/1", observed=None)["status"] == "quarantined"
    request = client.forget_memory(first, source_ref="message_8")
    assert request.startswith("req_")
    named = client.memories(ADA, purpose="support", scope=scope, artifacts=[first, second])
    assert [line["verdict"] for line in named] == ["erased", "quarantined"]


def test_a_hold_beats_the_wish_to_be_forgotten(agent: Agent) -> None:
    memory = agent.remember(1)["id"]
    agent.desk.call(
        "legal", "POST", "/v1/holds", {"name": "case", "matter": "m", "reason": "r", "selector": {"subjects": [ADA]}}
    )
    answer = agent.desk.call("writer", "POST", f"/v1/memory/{memory}:forget")
    done = wait_until_done(agent.desk, answer["request"])
    assert done["state"] == "completed_with_retained"
    assert agent.ask()[memory]["verdict"] == "restricted"


def wait_until_done(desk: Any, request: str) -> dict[str, Any]:
    """The request once nothing works on it any more."""
    end = time.monotonic() + 60
    while True:
        view: dict[str, Any] = desk.call("legal", "GET", f"/v1/requests/{request}")
        if view["state"].startswith(("completed", "partially")):
            return view
        assert time.monotonic() < end, view
        time.sleep(0.1)
