"""The other five rights over HTTP and from the command line, on both kinds of servers."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ledger.entry import uuid7
from muniment.errors import ApiProblem
from registry.classes import STARTER_CLASSES
from tests import forked

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]
ADA = "email:ada@example.org"
BOB = "user:bob"
NOTE = {
    "state": "record", "personal": True, "owner": "team", "description": "notes of support", "legal_basis": "contract",
    "purposes": ["support"], "categories": ["contact"],
    "retention": {"keep": "P90D", "from": "created", "then": "erase"},
    "erasure": {"on_request": "erase", "required": "L2"},
}  # fmt: skip


class House:
    """One tenant with a database of notes and words in the record."""

    def __init__(self, desk: Any) -> None:
        self.desk = desk
        self.base: Path = desk.running.settings.data.parent / "stores" / desk.tenant
        self.base.mkdir(parents=True)
        self.file = self.base / "app.db"
        with sqlite3.connect(self.file) as db:
            db.execute("CREATE TABLE note (id TEXT PRIMARY KEY, owner TEXT, text TEXT, email TEXT)")
        db.close()
        desk.call("platform", "PUT", "/v1/data-classes/note", NOTE)
        config = {"url": f"sqlite:///{self.file}", "owner_field": "owner"}
        store = {"kind": "sql", "config": config, "recipient": "Notes Ltd", "country": "DE"}
        desk.call("platform", "PUT", "/v1/stores/notes", store)

    def note(self, key: str, text: str, *subjects: str) -> str:
        people = subjects or (ADA,)
        with sqlite3.connect(self.file) as db:
            db.execute("INSERT INTO note VALUES (?, ?, ?, ?)", (key, people[0], text, "old@example.org"))
        db.close()
        item = {"data_class": "note", "store": "notes", "locator": {"table": "note", "key": {"id": key}}}
        results = self.desk.client("writer").artifacts([{**item, "subjects": list(people)}])
        assert results[0]["status"] == "created", results
        return str(results[0]["id"])

    def say(self, text: str, *subjects: str) -> None:
        entry = {
            "id": uuid7(datetime.now(UTC)), "stream": "conv_1", "kind": "turn.user",
            "at": datetime.now(UTC).isoformat(), "data_class": "transcript", "subjects": list(subjects or (ADA,)),
            "body": {"role": "user", "content": text},
        }  # fmt: skip
        answer = self.desk.call("writer", "POST", "/v1/record/entries", {"entries": [entry]})
        assert answer["results"][0]["status"] == "stored", answer

    def ask(self, right: str, **more: Any) -> str:
        """A request, identified and planned by one, approved by another; its path."""
        made = self.desk.call(
            "legal", "POST", "/v1/requests", {"right": right, "subjects": [ADA], "regulation": "gdpr", **more}
        )
        path = f"/v1/requests/{made['id']}"
        self.desk.call("legal", "POST", f"{path}/verify-identity", {"identifier": ADA, "method": "login"})
        plan = self.desk.call("legal", "POST", f"{path}/plan")
        self.desk.call("legal2", "POST", f"{path}/approve", {"plan_hash": plan["plan_hash"]})
        return path

    def wait(self, path: str, *states: str) -> dict[str, Any]:
        from tests.process.conftest import wait_for

        def reached() -> Any:
            found = self.desk.call("legal", "GET", path)
            return found if found["state"] in states else None

        found: dict[str, Any] = wait_for(reached, 60)
        return found

    def package(self, path: str) -> zipfile.ZipFile:
        answer = self.desk.client("legal").send("GET", f"{path}/export")
        return zipfile.ZipFile(io.BytesIO(answer.body))


def test_access_from_receipt_to_package_and_the_package_ends_with_the_person(desk: Any) -> None:
    house = House(desk)
    house.note("n1", "the first note of ada")
    shared = house.note("n2", "ada and bob together", ADA, BOB)
    house.say("I am ada")
    path = house.ask("access")
    waiting = house.wait(path, "executing")
    assert waiting["waiting_for"].get("awaiting_human") == 1
    with pytest.raises(ApiProblem) as refused:
        desk.call("legal", "GET", f"{path}/export")
    assert refused.value.type == "/problems/report-not-ready"
    copies = desk.call("legal", "GET", f"{path}/copies?state=awaiting_human")["items"]
    assert [copy["artifact"] for copy in copies] == [shared]
    settled = {"outcome": "withhold", "comment": "bob's secret weighs more"}
    desk.call("legal2", "POST", f"{path}/copies/{copies[0]['copy']}", settled)
    house.wait(path, "completed")
    archive = house.package(path)
    assert archive.testzip() is None
    manifest = json.loads(archive.read("manifest.json"))
    counts = desk.call("legal", "POST", "/v1/subjects:lookup", {"subjects": [ADA]})["counts"]
    found = {(line["data_class"], line["store"]): line["registered"] for line in manifest["counts"]}
    registered = [one for one in counts if one["data_class"] != "export" and one["store"] != "vault"]
    expected = {(one["data_class"], one["store"]): one["count"] for one in registered}
    assert found == expected
    terms = {line["data_class"]: line for line in manifest["classes"]}
    assert terms["note"]["recipients"] == [{"recipient": "Notes Ltd", "country": "DE"}]
    assert terms["note"]["purposes"] == ["support"]
    everything = "".join(archive.read(name).decode() for name in archive.namelist())
    assert "the first note of ada" in everything
    assert "I am ada" in everything
    assert "together" not in everything

    erasure = house.ask("erasure")
    assert house.wait(erasure, "completed", "partially_failed")["state"] == "completed"
    after = json.loads(house.package(path).read("manifest.json"))
    assert after["is_empty"]
    assert after["certificates_of_erasure"]
    assert list((desk.running.settings.data / "exports").rglob(f"*{path.rpartition('/')[2]}*")) == []


def test_a_restriction_is_lifted_over_http_only_after_its_notice(desk: Any) -> None:
    house = House(desk)
    note = house.note("n1", "text")
    path = house.ask("restriction")
    house.wait(path, "completed")
    explained = desk.call("legal", "POST", "/v1/decide", {"artifact": note, "trigger": "retention"})
    assert (explained["action"], explained["rule"]) == ("restrict", "restriction")
    with pytest.raises(ApiProblem) as refused:
        desk.call("legal", "POST", f"{path}/lift", {"reason": "verified"})
    assert refused.value.type == "/problems/illegal-move"
    notice = {"kind": "restriction_lifting", "channel": "post", "sent_at": datetime.now(UTC).isoformat()}
    desk.call("legal", "POST", f"{path}/notices", notice)
    desk.call("legal", "POST", f"{path}/lift", {"reason": "verified"})
    explained = desk.call("legal", "POST", "/v1/decide", {"artifact": note, "trigger": "retention"})
    assert explained["action"] == "keep"


def test_restricted_words_are_stored_and_not_read_but_for_a_dispute(desk: Any) -> None:
    house = House(desk)
    spec = {**STARTER_CLASSES["transcript"], "access": {"roles": ["auditor"], "purposes": ["dispute", "quality"]}}
    desk.call("platform", "PUT", "/v1/data-classes/transcript", spec)
    house.say("the words of ada")
    house.say("the words of bob", BOB)
    path = house.ask("restriction")
    house.wait(path, "completed")
    entries = desk.call("auditor", "POST", "/v1/replay", {"stream": "conv_1"}, purpose="quality")["entries"]
    assert [entry["integrity"] for entry in entries] == ["withheld", "verified"]
    assert path.rpartition("/")[2] in entries[0]["because"]
    assert "words of ada" not in json.dumps(entries)
    entries = desk.call("auditor", "POST", "/v1/replay", {"stream": "conv_1"}, purpose="dispute;case=7")["entries"]
    assert [entry["integrity"] for entry in entries] == ["verified", "verified"]


def test_a_rectification_from_the_command_line_sets_the_field(desk: Any) -> None:
    house = House(desk)
    house.note("n1", "text")
    done = cli(desk, "legal", "request", "rectify", "--subject", ADA, "--correct", "email=new@example.org",
               "--identity", "login")  # fmt: skip
    assert done["state"] == "planned"
    cli(desk, "legal2", "approve", done["id"], "--watch")
    house.wait(f"/v1/requests/{done['id']}", "completed")
    with sqlite3.connect(house.file) as db:
        assert db.execute("SELECT email FROM note").fetchall() == [("new@example.org",)]
    db.close()


def test_a_portability_package_is_written_by_the_command_line(desk: Any, tmp_path: Path) -> None:
    house = House(desk)
    house.note("n1", "provided by ada")
    done = cli(desk, "legal", "request", "portability", "--subject", ADA, "--data-class", "note", "--identity", "login")
    cli(desk, "legal2", "approve", done["id"], "--watch")
    house.wait(f"/v1/requests/{done['id']}", "completed")
    cli(desk, "legal", "report", done["id"], "-o", str(tmp_path / "ada.zip"))
    with zipfile.ZipFile(tmp_path / "ada.zip") as archive:
        manifest = json.loads(archive.read("manifest.json"))
        assert [line["exported"] for line in manifest["counts"]] == [1]


def cli(desk: Any, principal: str, *arguments: str) -> dict[str, Any]:
    """Run a command as a user would."""
    words = (*arguments, "--json", "--data", str(desk.running.settings.data), "--url", desk.running.url)
    done = forked.run(*words, env={**os.environ, "MUNIMENT_TOKEN": desk.tokens[principal]})
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
