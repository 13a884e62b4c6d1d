"""A store whose address leads to an empty place, over HTTP."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pytest

from muniment.errors import ApiProblem
from tests.process.test_process_rights import House

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


def _declare(house: House, file: Any) -> None:
    config = {"url": f"sqlite:///{file}", "owner_field": "owner"}
    store = {"kind": "sql", "config": config, "recipient": "Notes Ltd", "country": "DE"}
    house.desk.call("platform", "PUT", "/v1/stores/notes", store)


def test_an_empty_database_is_asked_about_and_no_certificate_is_issued_of_it(desk: Any) -> None:
    house = House(desk)
    for number in range(3):
        house.note(f"n{number}", f"ada moves to the blackthorn row {number}")
    house.note("b1", "bob sails in the harbour", "user:bob")
    empty = house.base / "empty.db"
    with sqlite3.connect(empty) as db:
        db.execute("CREATE TABLE note (id TEXT PRIMARY KEY, owner TEXT, text TEXT, email TEXT)")
    db.close()
    _declare(house, empty)
    path = house.ask("erasure")
    waiting = house.wait(path, "verifying")
    assert waiting["waiting_for"]["awaiting_human"] == 3
    assert [line["detail"] for line in waiting["history"] if line["event"] == "place_doubted"] == [
        {"store": "notes", "copies": 3}
    ]
    with pytest.raises(ApiProblem) as refused:
        desk.call("legal", "GET", f"{path}/report")
    assert refused.value.type == "/problems/report-not-ready"
    copies = desk.call("legal", "GET", f"{path}/copies?state=awaiting_human")["items"]
    assert {copy["detail"] for copy in copies} == {
        "nothing of what is registered was found there: is this the right place?"
    }

    _declare(house, house.file)
    for copy in copies:
        said = {"outcome": "erase", "comment": "the address is right now"}
        desk.call("legal2", "POST", f"{path}/copies/{copy['copy']}", said)
    house.wait(path, "completed")
    stated = json.loads(desk.client("legal").send("GET", f"{path}/report").body)["certificate"]
    assert [copy["state"] for copy in stated["copies"] if copy["store"] == "notes"] == ["erased_physical"] * 3
    assert b"blackthorn" not in house.file.read_bytes()
    with sqlite3.connect(house.file) as db:
        assert db.execute("SELECT id FROM note").fetchall() == [("b1",)]
    db.close()
