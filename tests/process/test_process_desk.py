"""The legal desk from a terminal: what is shown before somebody says yes, and what is said instead of waiting."""

from __future__ import annotations

import json
import sqlite3
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.cli import run
from api.commands.verify import verify_command
from muniment.errors import ApiProblem
from tests.process.conftest import wait_for

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]
ADA, BOB = "email:ada@example.org", "user:bob"
NOTE = {
    "state": "record", "personal": True, "owner": "team", "description": "notes of support", "legal_basis": "contract",
    "retention": {"keep": "P90D", "from": "created", "then": "erase"},
    "erasure": {"on_request": "erase", "required": "L2"},
}  # fmt: skip


class Office:
    """One tenant with notes, and its desk's terminal."""

    def __init__(self, desk: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.desk, self.capsys, self.patch = desk, capsys, monkeypatch
        base: Path = desk.running.settings.data.parent / "stores" / desk.tenant
        base.mkdir(parents=True)
        self.file = base / "app.db"
        with sqlite3.connect(self.file) as db:
            db.execute("CREATE TABLE note (id TEXT PRIMARY KEY, owner TEXT, text TEXT)")
        desk.call("platform", "PUT", "/v1/data-classes/note", NOTE)
        store = {"kind": "sql", "config": {"url": f"sqlite:///{self.file}", "owner_field": "owner"}}
        desk.call("platform", "PUT", "/v1/stores/notes", store)

    def note(self, key: str, *subjects: str) -> str:
        with sqlite3.connect(self.file) as db:
            db.execute("INSERT INTO note VALUES (?, ?, ?)", (key, subjects[0], f"text of {key}"))
        item = {"data_class": "note", "store": "notes", "locator": {"table": "note", "key": {"id": key}}}
        return str(self.desk.client("writer").artifacts([{**item, "subjects": list(subjects)}])[0]["id"])

    def types(self, principal: str, *arguments: str) -> tuple[int, str, str]:
        """A command as this principal types it: exit code, what is printed, what is said beside it."""
        self.patch.setenv("MUNIMENT_TOKEN", self.desk.tokens[principal])
        self.capsys.readouterr()
        code = run([*arguments, "--url", self.desk.running.url])
        told = self.capsys.readouterr()
        return code, told.out, told.err

    def json(self, principal: str, *arguments: str) -> Any:
        code, out, err = self.types(principal, *arguments, "--json")
        assert code == 0, err
        return json.loads(out)


@pytest.fixture
def office(desk: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Office:
    return Office(desk, capsys, monkeypatch)


def test_an_approval_that_takes_something_from_others_is_given_by_name(office: Office, tmp_path: Path) -> None:
    office.note("n1", ADA)
    office.note("n2", ADA, BOB)
    code, out, _ = office.types("legal", "request", "erase", "--subject", ADA, "--identity", "login")
    assert code == 0
    assert "collateral: 1 of these is also about 1 other person" in out
    assert "next: another person approves it: muniment approve req_" in out
    request = next(word for word in out.split() if word.startswith("req_")).rstrip(":")
    code, out, err = office.types("legal2", "approve", request)
    assert code == 2
    assert "also about 1 other person" in out
    assert "--accept-collateral" in err
    assert office.desk.call("legal", "GET", f"/v1/requests/{request}")["state"] == "planned"
    code, out, err = office.types("legal2", "approve", request, "--accept-collateral", "--watch")
    assert (code, out.splitlines()[-2]) == (0, f"request {request}: completed"), err
    assert out.splitlines()[-1].startswith(f"next: muniment report {request} -o certificate.pdf")
    certificate = json.loads(office.desk.client("legal").send("GET", f"/v1/requests/{request}/report").body)
    found = [copy["collateral"] for copy in certificate["certificate"]["copies"] if copy["collateral"]]
    assert {"subjects": 1} in found
    code, _, err = office.types("legal", "report", request, "-o", str(tmp_path / "c.html"))
    assert code == 0
    assert "nobody has said who the controller is" in err
    assert "also about other people" in (tmp_path / "c.html").read_text()
    office.json("platform", "controller", "set", "--name", "Beispiel GmbH", "--contact", "privacy@beispiel.example")
    code, _, err = office.types("legal", "letter", request, "-o", str(tmp_path / "l.txt"))
    assert (code, err) == (0, "")
    assert "Beispiel GmbH" in (tmp_path / "l.txt").read_text()


def test_watching_ends_where_only_somebody_can_go_on_and_says_for_what(office: Office) -> None:
    office.note("n1", ADA)
    code, out, err = office.types("legal", "request", "erase", "--subject", ADA, "--watch")
    assert code == 2
    assert "waits for the check of who asks; somebody has to act" in err
    assert "next: check who asks, then note it: muniment request verify-identity req_" in out
    request = next(word for word in out.split() if word.startswith("req_")).rstrip(":")
    code, out, _ = office.types("legal", "request", "verify-identity", request, "--subject", ADA, "--method", "login")
    assert code == 0
    assert f"next: muniment request plan {request}" in out
    code, out, _ = office.types("legal", "request", "plan", request)
    assert code == 0
    assert "note in notes" in out
    assert office.json("legal", "request", "list", "--state", "planned")["items"][0]["id"] == request
    code, out, _ = office.types("legal", "request", "cancel", request)
    assert code == 0
    assert "cancelled" in out


def test_watching_a_copy_that_waits_for_a_human_says_so_and_ends(office: Office) -> None:
    office.desk.call("platform", "PUT", "/v1/data-classes/model", {**NOTE, "derived": {"default": "review"}})
    source = office.note("n1", ADA)
    with sqlite3.connect(office.file) as db:
        db.execute("INSERT INTO note VALUES ('m1', ?, 'weights')", (ADA,))
    item = {"data_class": "model", "store": "notes", "locator": {"table": "note", "key": {"id": "m1"}}}
    office.desk.client("writer").artifacts([{**item, "sources": [source]}])
    request = office.json("legal", "request", "erasure", "--subject", ADA, "--identity", "login")["id"]
    code, out, err = office.types("legal2", "approve", request, "--watch")
    assert code == 2
    assert "waits for 1 awaiting_human" in err
    assert "somebody has to act" in err
    assert f"muniment request settle {request}" in out
    code, out, _ = office.types("legal", "request", "show", request)
    (line,) = [line for line in out.splitlines() if "awaiting_human, model in notes" in line]
    number = line.split()[1].rstrip(":")
    code, out, _ = office.types("legal2", "request", "settle", request, number, "erase", "--comment", "trained anew")
    assert code == 0

    def ended() -> bool:
        found = office.desk.call("legal", "GET", f"/v1/requests/{request}")
        return bool(found["state"] == "completed")

    wait_for(ended)


def test_a_hold_is_placed_listed_previewed_and_released_from_a_terminal(office: Office) -> None:
    office.note("n1", ADA)
    kept = office.note("n2", ADA, BOB)
    placed = office.json(
        "legal", "hold", "place", "--name", "acme", "--matter", "Acme v. us", "--reason", "letter", "--artifact", kept
    )
    assert [one["id"] for one in office.json("legal", "hold", "list")["items"]] == [placed["id"]]
    request = office.json("legal", "request", "erase", "--subject", ADA, "--identity", "login")["id"]
    code, out, _ = office.types("legal2", "approve", request, "--watch")
    assert code == 0
    assert f"kept by a legal hold {placed['id']}" in out, "the plan says why something stays"
    code, out, _ = office.types("legal", "request", "show", request)
    assert f"kept by a legal hold {placed['id']}, no end date" in out
    code, out, _ = office.types("legal", "hold", "release", placed["id"])
    assert code == 0
    assert "not released" in out
    assert f"request {request}: 0 erased at once, 1 wait for a human" in out
    assert f"{kept}: awaiting_human, also about 1 others" in out
    code, _, _ = office.types("legal", "hold", "release", placed["id"], "--yes")
    assert code == 1, "who placed it does not release it"
    assert office.json("legal2", "hold", "release", placed["id"], "--yes")["released"] is True

    def waits() -> bool:
        found = office.desk.call("legal", "GET", f"/v1/requests/{request}")
        return bool(found["waiting_for"].get("awaiting_human"))

    wait_for(waits)
    assert office.types("legal", "request", "settle", request, "every", "erase", "--comment", "x")[0] == 2
    code, _, err = office.types("legal", "request", "settle", request, "all", "erase", "--comment", "bob agreed")
    assert code == 1, "who filed the request does not decide what others lose"
    assert "refused (403)" in err
    code, out, _ = office.types("legal2", "request", "settle", request, "all", "erase", "--comment", "bob agreed")
    assert (code, out.count("pending")) == (0, 1)


def test_approving_names_the_open_request_for_access_that_it_empties(office: Office) -> None:
    office.note("n1", ADA)
    access = office.json("legal", "request", "access", "--subject", ADA, "--identity", "login")["id"]
    code, out, _ = office.types("legal", "request", "erase", "--subject", ADA, "--identity", "login")
    assert code == 0
    assert "warning: the same person's request for access" in out
    assert access in out


def test_a_plan_that_no_longer_covers_what_is_there_is_refused_until_it_is_planned_again(office: Office) -> None:
    office.note("n1", ADA)
    request = office.json("legal", "request", "erase", "--subject", ADA, "--identity", "login")["id"]
    path = f"/v1/requests/{request}"
    read = {"plan_hash": office.desk.call("legal2", "GET", f"{path}/plan")["hash"]}
    office.note("n2", ADA, BOB)
    client = office.desk.client("legal2")
    for _ in range(2):
        with pytest.raises(ApiProblem) as refused:
            client.request("POST", f"{path}/approve", read)
        assert (refused.value.status, refused.value.type) == (409, "/problems/stale-plan")
        assert "note in notes: about others too" in refused.value.detail
        assert refused.value.detail.endswith("plan it again")
    state = office.desk.call("legal", "GET", path)
    assert (state["state"], state["plan_hash"], state["history"][-1]["event"]) == ("planned", None, "plan_outdated")
    code, _, err = office.types("legal2", "approve", request)
    assert code == 1
    assert "about others too" in err
    assert err.splitlines()[-1] == f"next: muniment request plan {request}"
    code, out, _ = office.types("legal", "request", "plan", request)
    assert code == 0, out
    code, out, err = office.types("legal2", "approve", request, "--accept-collateral")
    assert code == 0, err


def test_a_run_that_waits_is_approved_and_reviews_are_listed_from_a_terminal(office: Office) -> None:
    run_id = office.json("legal", "retention", "run")["id"]
    code, _, err = office.types("legal2", "retention", "approve", run_id)
    assert code == 1
    assert "refused (409)" in err, "it did not wait for anybody"
    assert office.json("legal", "retention", "reviews") == {"items": []}
    assert run_id in [one["id"] for one in office.json("legal", "retention", "runs")["items"]]
    code, out, err = office.types("legal", "retention", "report", run_id)
    assert code == 0, err
    assert out.startswith(f"run {run_id}: completed\n  ends: 0")
    assert "  transcript: at most 122 days old\n" in out, "90 days, the month of its key, and the wait for a run"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/holds?relesed=true"),
        ("POST", "/v1/holds/hold_00000000000000000000000000000000/release?previw=false"),
        ("GET", "/v1/requests?stat=planned"),
        ("GET", "/v1/tokens/self?x=1"),
        ("GET", "/v1/inventory?limt=3"),
    ],
)
def test_a_misspelt_query_parameter_is_refused_by_name(office: Office, method: str, path: str) -> None:
    with pytest.raises(ApiProblem) as refused:
        office.desk.call("legal", method, path)
    assert refused.value.status == 422
    name = path.partition("?")[2].partition("=")[0]
    assert name in str(refused.value.errors)


def test_a_log_key_copied_off_a_page_is_the_key_for_verify_too() -> None:
    key = "acme/log+0a1b2c3d+AdfgB0cKv0Yf2l7m0n9o8p7q6r5s4t3u2v1w0x9y8z7A"
    copied = f" {key[:20]}\n{key[20:]}\u200b"
    parsed = verify_command.make_context("verify", ["--key", copied, "--witness", copied, "--witness", key]).params
    assert (parsed["key"], parsed["witnesses"]) == (key, (key, key))


def test_many_may_watch_a_request_and_a_token_that_ends_sees_no_more(desk: Any) -> None:
    # Each watcher kept one of the few threads for ten minutes, also when it had gone: the service answered nobody.
    body = {"right": "erasure", "subjects": [ADA], "regulation": "gdpr"}
    path = f"/v1/requests/{desk.call('legal', 'POST', '/v1/requests', body)['id']}/events"
    minted = desk.call("admin", "POST", "/v1/tokens", {"principal": "watcher", "roles": ["auditor"]})
    headers = {"Authorization": f"Bearer {minted['token']}"}
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=desk.running.url, headers=headers, timeout=10))
        told = [stack.enter_context(client.stream("GET", path)).iter_lines() for _ in range(45)]
        assert all(next(lines) == "event: progress" for lines in told)
        assert client.get("/healthz").status_code == 200
        desk.call("admin", "DELETE", f"/v1/tokens/{minted['id']}")
        assert all("received" in "".join(lines) for lines in told), "they end, with the one state there was"


@pytest.mark.parametrize("running", ["embedded"], indirect=True)
def test_what_is_due_and_why_is_read_from_a_terminal(office: Office) -> None:
    note = office.note("n1", ADA)
    assert office.types("legal", "retention", "due")[:2] == (0, "nothing is due\n")
    later = (office.desk.running.services.clock.now() + timedelta(days=100)).isoformat()
    code, out, err = office.types("legal", "retention", "due", "--before", later)
    assert code == 0, err
    [line] = out.splitlines()
    end = office.desk.call("writer", "GET", f"/v1/artifacts/{note}")["ends_at"]
    assert line.split() == [end, "note", "notes", "erase", "class_retention", note]
    assert office.json("legal", "retention", "due", "--before", later, "--limit", "1")["more"] is False
    code, out, err = office.types("legal", "retention", "explain", note, "--at", later)
    assert code == 0, err
    assert out.startswith("erase by rule class_retention")
    assert office.types("legal", "retention", "explain", note)[1].startswith(
        f"keep by rule class_retention until {end}"
    )
    dry = office.json("legal", "retention", "run", "--dry-run", "--at", later)
    assert (dry["counts"]["ends"], dry["dry_run"]) == (1, True)
    assert office.desk.call("writer", "GET", f"/v1/artifacts/{note}")["status"] == "live"
