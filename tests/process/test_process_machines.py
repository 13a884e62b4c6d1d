"""Machines, streams and runs over HTTP: phases move with the record, breaches are named, pauses are honest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlmodel import col, select

from ledger.entry import Kind, uuid7
from muniment.errors import ApiProblem
from registry import machine_rows
from registry.classes import STARTER_CLASSES
from registry.identifiers import parse_subject
from registry.streams import find_streams, open_names
from registry.subjects import find_people
from vault.models import DataKey

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]
REFUND: dict[str, Any] = {
    "phases": ["identify", "task", "confirm", "wrap_up"],
    "transitions": [["identify", "task"], ["task", "confirm"], ["confirm", "wrap_up"], ["confirm", "task"]],
    "tools": {"identify": ["look_up"], "task": ["look_up", "read_order"], "confirm": ["refund"]},
}


def entry(kind: str, body: dict[str, Any], stream: str = "conv_9") -> dict[str, Any]:
    return {
        "id": uuid7(datetime.now(UTC)),
        "stream": stream,
        "kind": kind,
        "at": datetime.now(UTC).isoformat(),
        "data_class": "transcript",
        "subjects": ["user:ada"],
        "body": body,
    }


def post(desk: Any, *entries: dict[str, Any]) -> list[str]:
    answer = desk.call("writer", "POST", "/v1/record/entries", {"entries": list(entries)})
    assert {result["status"] for result in answer["results"]} <= {"stored", "duplicate"}
    return [one["id"] for one in entries]


def allowed(desk: Any, stream: str = "conv_9") -> dict[str, Any]:
    found: dict[str, Any] = desk.call("writer", "POST", "/v1/streams:allowed-tools", {"stream": stream})
    return found


def breaches(desk: Any) -> list[tuple[str, str]]:
    found = desk.call("auditor", "GET", "/v1/machines/refund/violations")["items"]
    return [(line["entry"], line["violation"]) for line in found]


def declare(desk: Any) -> dict[str, Any]:
    desk.call("platform", "PUT", "/v1/machines/refund", REFUND)
    made: dict[str, Any] = desk.call(
        "writer", "POST", "/v1/streams", {"stream": "conv_9", "owner": "user:ada", "machine": "refund"}
    )
    return made


def test_phases_move_the_machine_and_a_tool_outside_its_phase_is_stored_and_named(desk: Any) -> None:
    stream = declare(desk)
    assert (stream["machine"], stream["phase"]) == ("refund", "identify")
    assert allowed(desk)["tools"] == ["look_up"]
    early = entry("tool.call", {"tool": "refund", "amount": 30})
    post(desk, entry("tool.call", {"tool": "look_up"}), early, entry("phase", {"value": "task"}))
    assert allowed(desk)["phase"] == "task"
    jump = entry("phase", {"value": "wrap_up"})
    post(desk, jump)
    post(desk, entry("phase", {"value": "confirm"}), entry("tool.call", {"tool": "refund", "amount": 30}))
    assert allowed(desk)["phase"] == "confirm"
    assert allowed(desk)["next"] == ["task", "wrap_up"]
    wanted = [(early["id"], "tool_not_allowed"), (jump["id"], "transition_not_allowed")]
    assert breaches(desk) == wanted
    # Sent again, an entry is a duplicate and counts once.
    post(desk, early, jump)
    assert breaches(desk) == wanted
    # What broke the machine is in the record like everything else, and an event says so.
    replayed = desk.call("auditor", "POST", "/v1/replay", {"stream": "conv_9"}, purpose="dispute")
    assert early["id"] in {line["id"] for line in replayed["entries"]}
    services = desk.running.services
    tenant = next(one for one in services.tenants() if one.tenant == desk.tenant)
    services.record.ship_outbox(tenant.tenant_id, services.clock.now())
    events = desk.call("auditor", "GET", "/v1/audit/log?limit=500")["items"]
    told = [event["body"] for event in events if event["kind"] == Kind.MACHINE_VIOLATED.value]
    assert [(body["entry"], body["violation"]) for body in told] == wanted
    shown = desk.call("platform", "GET", "/v1/machines/refund")
    assert shown["streams"] == {"confirm": 1}


@pytest.mark.scenario("S6")
def test_a_replay_that_reuses_an_approval_is_named(desk: Any) -> None:
    """The run is resumed twice from one checkpoint; the second time the human's yes comes out of a cache."""
    desk.call("platform", "PUT", "/v1/machines/refund", {**REFUND, "asks": ["refund"]})
    desk.call("writer", "POST", "/v1/streams", {"stream": "conv_9", "machine": "refund"})
    post(desk, entry("phase", {"value": "task"}), entry("phase", {"value": "confirm"}))
    assert (allowed(desk)["asks"], allowed(desk)["approvals"]) == (["refund"], 0)
    post(desk, {**entry("approval", {"approved": True}), "run": "r1"})
    assert allowed(desk)["approvals"] == 1
    post(desk, {**entry("tool.call", {"tool": "refund", "amount": 30}), "run": "r1"})
    again = {**entry("tool.call", {"tool": "refund", "amount": 30}), "run": "r2"}
    post(desk, again)
    assert breaches(desk) == [(again["id"], "approval_not_asked")]


def test_what_a_crash_left_behind_is_caught_up_in_order(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(desk)
    with monkeypatch.context() as patch:
        # The process dies after the entries are stored and before the machine has moved.
        patch.setattr(machine_rows.Follower, "follow", lambda *_, **__: None)
        early = entry("tool.call", {"tool": "read_order"})
        post(desk, early, entry("phase", {"value": "task"}), entry("tool.call", {"tool": "read_order"}))
    assert allowed(desk)["phase"] == "identify"
    post(desk, entry("phase", {"value": "confirm"}))
    assert allowed(desk)["phase"] == "confirm"
    assert breaches(desk) == [(early["id"], "tool_not_allowed")]


def test_a_machine_judges_a_stream_from_where_it_took_it(desk: Any) -> None:
    post(desk, entry("tool.call", {"tool": "refund"}))
    declare(desk)
    post(desk, entry("tool.call", {"tool": "look_up"}))
    assert breaches(desk) == []
    # A stream that follows none is left alone.
    post(desk, entry("tool.call", {"tool": "anything"}, stream="conv_10"))
    assert allowed(desk, "conv_10")["tools"] is None
    assert breaches(desk) == []


def test_machines_are_declared_by_the_platform_and_read_by_auditors(desk: Any) -> None:
    with pytest.raises(ApiProblem) as refused:
        desk.call("writer", "PUT", "/v1/machines/refund", REFUND)
    assert refused.value.status == 403
    with pytest.raises(ApiProblem) as wrong:
        desk.call("platform", "PUT", "/v1/machines/refund", {**REFUND, "transitions": []})
    assert wrong.value.status == 422
    with pytest.raises(ApiProblem) as unknown:
        desk.call("writer", "POST", "/v1/streams", {"stream": "c", "machine": "nothing"})
    assert unknown.value.status == 404
    assert desk.call("platform", "PUT", "/v1/machines/refund", REFUND)["version"] == 1
    assert desk.call("platform", "PUT", "/v1/machines/refund", REFUND)["version"] == 1
    more = {**REFUND, "tools": {**REFUND["tools"], "wrap_up": ["mail"]}}
    assert desk.call("platform", "PUT", "/v1/machines/refund", more)["version"] == 2


def test_a_run_without_a_checkpoint_requires_recovery(desk: Any) -> None:
    run = desk.call("writer", "POST", "/v1/runs", {"run": "r1", "stream": "conv_9", "status": "active"})
    assert run["status"] == "active"
    paused = desk.call("writer", "PATCH", f"/v1/runs/{run['id']}", {"status": "waiting"})
    assert paused["status"] == "requires_recovery"
    assert "checkpoint_ref" in paused["because"]
    resumed = desk.call("writer", "PATCH", f"/v1/runs/{run['id']}", {"status": "active"})
    assert resumed["status"] == "requires_recovery"
    assert desk.call("auditor", "GET", f"/v1/runs/{run['id']}")["status"] == "requires_recovery"
    given = desk.call("writer", "PATCH", f"/v1/runs/{run['id']}", {"status": "active", "checkpoint_ref": "cp_7"})
    assert (given["status"], given["because"]) == ("active", None)
    waiting = desk.call("writer", "PATCH", f"/v1/runs/{run['id']}", {"status": "waiting"})
    assert waiting["status"] == "waiting"


def test_a_lost_provider_conversation_gets_a_new_one_under_the_same_stream(desk: Any) -> None:
    first = desk.call("writer", "POST", "/v1/streams", {"stream": "c1", "provider_refs": {"openai": "thread_1"}})
    assert first["provider_generation"] == 1
    again = desk.call("writer", "PATCH", f"/v1/streams/{first['id']}", {"provider_refs": {"openai": "thread_2"}})
    assert (again["id"], again["provider_generation"]) == (first["id"], 2)
    same = desk.call("writer", "POST", "/v1/streams", {"stream": "c1", "provider_refs": {"openai": "thread_2"}})
    assert same["provider_generation"] == 2
    # Both provider threads stay known, sealed: each may still hold a copy.
    services = desk.running.services
    tenant = next(one for one in services.tenants() if one.tenant == desk.tenant)
    with services.database.transaction(tenant.tenant_id, write=False) as session:
        row = find_streams(session, services.vault, tenant.tenant_id, ["c1"])["c1"]
        declared = open_names(session, services.vault, tenant.tenant_id, [row])[row.stream_id].declared
    assert declared["provider_refs"] == {"openai": "thread_2"}
    assert declared["former_provider_refs"] == [{"openai": "thread_1"}]


def test_a_new_conversation_is_rebuilt_from_the_messages_that_are_retained(desk: Any) -> None:
    access = {"roles": ["auditor", "writer"], "purposes": ["resume", "dispute"]}
    desk.call("platform", "PUT", "/v1/data-classes/transcript", {**STARTER_CLASSES["transcript"], "access": access})
    made = desk.call("writer", "POST", "/v1/streams", {"stream": "c1", "provider_refs": {"openai": "thread_1"}})
    said = [
        entry(kind, {"content": text}, stream="c1")
        for kind, text in (
            ("turn.system", "You help with refunds."), ("turn.user", "Where is my refund?"), ("note", "not a message"),
            ("tool.call", "look_up"), ("tool.result", "charged twice"), ("turn.assistant", "It is on its way."),
        )
    ]  # fmt: skip
    ids = post(desk, *said)
    rebuilt = desk.call("writer", "POST", "/v1/streams:messages", {"stream": "c1"}, purpose="resume;case=lost")
    assert (rebuilt["id"], rebuilt["provider_generation"], rebuilt["complete"]) == (made["id"], 1, True)
    assert [one["role"] for one in rebuilt["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert [one["body"] for one in rebuilt["messages"]] == [one["body"] for one in said if one["kind"] != "note"]
    covers = {"goal": "refund", "facts": ["charged twice"], "decisions": [], "open": [], "covers": ids[1:5],
              "dropped": [], "pinned": []}  # fmt: skip
    post(desk, entry("summary", covers, stream="c1"))
    rebuilt = desk.call("writer", "POST", "/v1/streams:messages", {"stream": "c1"}, purpose="resume")
    assert rebuilt["summary"]["body"] == covers
    assert [one["id"] for one in rebuilt["messages"]] == [ids[0], ids[5]]
    # A summary that covers what nobody can show is not believed; what it stands for is told word by word.
    post(desk, entry("summary", {**covers, "covers": [uuid7(datetime.now(UTC))]}, stream="c1"))
    again = desk.call("writer", "POST", "/v1/streams:messages", {"stream": "c1"}, purpose="resume")
    assert again["summary"] == rebuilt["summary"]
    patched = desk.call("writer", "PATCH", f"/v1/streams/{made['id']}", {"provider_refs": {"openai": "thread_2"}})
    assert patched["provider_generation"] == 2
    assert desk.call("writer", "POST", "/v1/streams:messages", {"stream": "c1"}, purpose="resume")["messages"]
    other = desk.call("writer", "POST", "/v1/streams:messages", {"stream": "c1"}, purpose="marketing")
    assert (other["messages"], other["complete"]) == ([], False)
    assert {one["integrity"] for one in other["left_out"]} == {"withheld"}
    for principal, purpose, status in (("writer", None, 403), ("platform", "resume", 403)):
        with pytest.raises(ApiProblem) as refused:
            desk.call(principal, "POST", "/v1/streams:messages", {"stream": "c1"}, purpose=purpose)
        assert refused.value.status == status


def test_words_of_an_erased_person_come_back_neither_word_by_word_nor_by_a_summary(desk: Any) -> None:
    access = {"roles": ["auditor"], "purposes": ["resume"]}
    desk.call("platform", "PUT", "/v1/data-classes/transcript", {**STARTER_CLASSES["transcript"], "access": access})
    theirs = {**entry("turn.user", {"content": "wombat-93417"}, stream="c2"), "subjects": ["user:gone"]}
    others = {**entry("turn.user", {"content": "hello"}, stream="c2"), "subjects": ["user:stays"]}
    digest = {**entry("summary", {"facts": ["wombat-93417"], "covers": [theirs["id"], others["id"]]}, stream="c2"),
              "subjects": ["user:stays"]}  # fmt: skip
    post(desk, theirs, others, digest)
    read = desk.call("auditor", "POST", "/v1/streams:messages", {"stream": "c2"}, purpose="resume")
    assert (read["summary"]["id"], read["messages"]) == (digest["id"], [])
    services = desk.running.services
    tenant = next(one for one in services.tenants() if one.tenant == desk.tenant)
    with services.database.transaction(tenant.tenant_id) as session:
        found = find_people(session, services.vault, tenant, [parse_subject("user:gone")])["user:gone"]
        query = select(DataKey.key_id).where(
            DataKey.tenant_id == tenant.tenant_id,
            col(DataKey.subject_id).in_(found),
            DataKey.data_class == "transcript",
        )
        keys = list(session.exec(query))
        services.vault.mark_destroying(session, tenant.tenant_id, keys, request="req_1")
        services.vault.delete_wrapped(session, tenant.tenant_id, keys, now=services.clock.now(), request="req_1")
    read = desk.call("auditor", "POST", "/v1/streams:messages", {"stream": "c2"}, purpose="resume")
    assert "wombat" not in str(read)
    assert (read["summary"], [one["id"] for one in read["messages"]]) == (None, [others["id"]])
    [left] = read["left_out"]
    assert (left["id"], left["integrity"], read["complete"]) == (theirs["id"], "erased", False)


def test_a_stream_ages_by_its_class(desk: Any) -> None:
    session = {"idle": "PT30M", "resume_within": "PT10M", "expire": "P7D"}
    desk.call("platform", "PUT", "/v1/data-classes/chat", {**STARTER_CLASSES["transcript"], "session": session})
    made = desk.call("writer", "POST", "/v1/streams", {"stream": "c1", "data_class": "chat"})
    assert made["lifecycle"] == "active"
    services = desk.running.services
    tenant = next(one for one in services.tenants() if one.tenant == desk.tenant)
    for silence, state in ((31, "resumable"), (45, "idle"), (8 * 24 * 60, "expired")):
        with services.database.transaction(tenant.tenant_id) as transaction:
            row = find_streams(transaction, services.vault, tenant.tenant_id, ["c1"])["c1"]
            row.last_activity_at = services.clock.now() - timedelta(minutes=silence)
            transaction.add(row)
        assert desk.call("auditor", "GET", f"/v1/streams/{made['id']}")["lifecycle"] == state
    post(desk, entry("turn.user", {"content": "hello again"}, stream="c1"))
    assert desk.call("auditor", "GET", f"/v1/streams/{made['id']}")["lifecycle"] == "active"


def test_working_state_ends_with_its_run(desk: Any) -> None:
    scratch = {**STARTER_CLASSES["memory"], "state": "working", "decay": None, "schema": None, "write": None}
    desk.call("platform", "PUT", "/v1/data-classes/scratch", scratch)
    folder = desk.running.settings.data.parent / "stores" / desk.tenant
    folder.mkdir(parents=True, exist_ok=True)
    desk.call("platform", "PUT", "/v1/stores/files", {"kind": "files", "config": {"root": str(folder)}})
    run = desk.call("writer", "POST", "/v1/runs", {"run": "r9", "status": "active"})

    def register(path: str, run_name: str, data_class: str = "scratch", **more: Any) -> str:
        item = {"data_class": data_class, "store": "files", "locator": {"path": path}, "subjects": ["user:ada"],
                "activity": {"kind": "draft", "run": run_name}, **more}  # fmt: skip
        [made] = desk.call("writer", "POST", "/v1/artifacts", {"artifacts": [item]})["results"]
        assert made["status"] == "created"
        return str(made["id"])

    names = {name: register(*of) for name, of in {
        "its": ("a", "r9"), "another run's": ("b", "r8"), "a memory": ("c", "r9", "memory")}.items()}  # fmt: skip
    names["of a tool's run"] = register("e", "r9", scope={"run": "pytest-3"})

    def ends(name: str) -> Any:
        return desk.call("legal", "GET", f"/v1/artifacts/{names[name]}")

    assert all(ends(name)["expires_at"] is None for name in names)
    over = desk.call("writer", "PATCH", f"/v1/runs/{run['id']}", {"status": "completed"})
    assert ends("its")["ends_at"] == over["ended_at"]
    assert ends("of a tool's run")["ends_at"] == over["ended_at"], "what a scope calls a run hides the item's own"
    assert ends("its")["rule"] == "item_expiry"
    assert [ends(name)["expires_at"] for name in ("another run's", "a memory")] == [None, None]
    names["late"] = register("d", "r9")
    assert ends("late")["ends_at"] == over["ended_at"]
    decided = desk.call("legal", "POST", "/v1/decide", {"artifact": names["its"]})
    assert (decided["action"], decided["rule"]) == ("erase", "item_expiry")
