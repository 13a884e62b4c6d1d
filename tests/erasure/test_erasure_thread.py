"""One request from receipt to certificate, over real stores."""

from __future__ import annotations

import json
import re
import sqlite3
from typing import Any

import pytest

from erasure.report_check import check


def test_a_person_goes_from_two_stores_and_the_record_and_nobody_else_does(world: Any) -> None:
    source = world.note("n1", "Ada Lovelace wrote about her rash on Tuesday")
    world.note("n2", "Bob likes sailing in the harbour", owner="user:bob_7")
    derived = world.file("ada.txt", "Summary: Ada Lovelace complains about a rash", subjects=(), sources=(source,))
    world.file("bob.txt", "Summary: Bob sails in the harbour", subjects=("user:bob_7",))
    assert world.say("my address is 12 Byron Lane, Nottingham") == "stored"
    request = world.ask()
    planned = world.plan(request)
    assert planned["state"] == "planned"
    view = world.reader.plan_view(world.acting(), request)
    assert [copy.get("artifact") for copy in view["copies"][:2]] == [derived, source]
    world.approve(request)
    world.work()
    assert world.state(request) == "completed", world.reader.copies(world.acting(), request)
    assert set(world.copy_states(request).values()) == {"erased_physical", "key_destroyed"}
    assert not (world.files / "ada.txt").exists()
    assert (world.files / "bob.txt").exists()
    with sqlite3.connect(world.database_file) as db:
        assert db.execute("SELECT id FROM note").fetchall() == [("n2",)]
    assert world.bytes_left("Ada Lovelace", "Byron Lane", "ada@example.org") == []


def test_the_interim_certificate_checks_offline(world: Any) -> None:
    world.note("n1", "Ada Lovelace wrote about her rash on Tuesday")
    world.say("my address is 12 Byron Lane, Nottingham")
    request = world.erase()
    report = world.reader.certificate(world.acting(), request)
    proven = check(report, world.certificate_key, world.log_key)
    assert any("pinned log key" in line for line in proven)
    body = json.loads(report)["certificate"]
    assert (body["version"], body["state"]) == ("interim", "completed")
    assert re.search(r"\bada\b", report.decode().lower().replace("adapt", "")) is None


@pytest.mark.parametrize("subject", ["email:nobody@example.org"])
def test_a_request_about_nobody_ends_with_a_statement_and_no_certificate(world: Any, subject: str) -> None:
    request = world.ask(subject)
    view = world.plan(request)
    assert view["state"] == "no_match"
    assert "no certificate" in view["statement"]["text"]
