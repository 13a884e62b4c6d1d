"""From an agent's files nobody registered to an erasure with evidence: `scan --register`, then a request."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.sqlite import SqliteStore

from api import cli
from tests.connectors.langgraph_beds import NoExtensions, agent
from tests.process.conftest import wait_for

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
SAID = "my sister hides the wombat-93417 from the landlord"


def found_again(path: Path) -> int:
    return sum(each.read_bytes().count(SAID.encode()) for each in path.parent.iterdir())


def say(db: sqlite3.Connection, saver: Any, thread: str, who: str, text: str) -> None:
    config = {"configurable": {"thread_id": thread, "user_id": who}}
    agent(saver).invoke({"messages": [HumanMessage(content=text)]}, config)


def approved(desk: Any, subject: str) -> str:
    """File a request and approve its plan; return where it is read."""
    made = desk.call(
        "legal", "POST", "/v1/requests",
        {"right": "erasure", "subjects": [subject], "regulation": "gdpr", "jurisdiction": "DE-BY",
         "timezone": "Europe/Berlin", "received_at": "2026-11-29T09:00:00Z", "channel": "e-mail"},
    )  # fmt: skip
    path = f"/v1/requests/{made['id']}"
    desk.call("legal", "POST", f"{path}/verify-identity",
              {"identifier": subject, "method": "login", "evidence": "session of today"})  # fmt: skip
    desk.call(
        "legal2", "POST", f"{path}/approve", {"plan_hash": desk.call("legal", "POST", f"{path}/plan")["plan_hash"]}
    )
    return path


@pytest.mark.scenario("S12")
def test_what_a_scan_found_is_registered_and_a_request_erases_it(desk: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path: Path = desk.running.settings.data.parent / "stores" / desk.tenant / "agent.db"
    path.parent.mkdir(parents=True)
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, factory=NoExtensions)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA secure_delete=OFF")
    saver, store = SqliteSaver(db), SqliteStore(db)
    saver.setup()
    store.setup()
    say(db, saver, "t-ada", "ada", SAID)
    say(db, saver, "t-ben", "ben", "a train to Leeds, please")
    say(db, saver, "t-both", "ada", "we two")
    say(db, saver, "t-both", "ben", "indeed")
    for who in ("ada", "ben"):
        store.put(("users", who), "home", {"text": f"{who}: {SAID if who == 'ada' else 'Leeds'}", "user_id": who})
    db.execute("CREATE TABLE note (id INTEGER PRIMARY KEY, user_id TEXT, body TEXT)")
    db.executemany("INSERT INTO note (user_id, body) VALUES (?, ?)", [("ada", SAID), ("ben", "tea"), (None, "?")])

    command = [
        "scan", str(path), "--register", "--name", "agent", "--class", "memory", "--json", "--url", desk.running.url,
        "--token", desk.tokens["platform"], "--writer-token", desk.tokens["writer"],
    ]  # fmt: skip
    assert cli.run(command) == 0
    told = json.loads(capsys.readouterr().out)["registered"]
    assert {each["kind"] for each in told["stores"]} == {"langgraph", "langgraph_store", "sql"}
    assert (told["artifacts"], told["not_registered_names_nobody"]) == ({"created": 7}, 1)
    assert cli.run(command) == 0
    again = json.loads(capsys.readouterr().out)["registered"]["artifacts"]
    assert again == {"exists": 7}, "registering again changes nothing"
    say(db, saver, "t-forgotten", "cy", "nobody told the registry")
    assert cli.run(command) == 0
    unknown = json.loads(capsys.readouterr().out)["registered"]["artifacts"]
    assert unknown == {"exists": 7, "created": 1}, "a thread that the registry did not know"

    request = approved(desk, "user:ada")

    # The thread of two people waits for a human; everything else of hers is gone from the files.
    def ended() -> Any:
        answer = desk.call("legal", "GET", request)
        return answer if answer["counts"].get("erased_physical") == 3 else None

    done = wait_for(ended, 60)
    assert done["waiting_for"] == {"awaiting_human": 1, "pending": 1}, "the identity key waits with it"
    assert found_again(path) == 0
    assert saver.get_tuple({"configurable": {"thread_id": "t-ada"}}) is None
    kept = saver.get_tuple({"configurable": {"thread_id": "t-ben"}})
    assert kept is not None
    assert kept.checkpoint["channel_values"]["messages"][0].content == "a train to Leeds, please"
    db.close()


def test_a_target_outside_the_operators_list_is_refused_and_nothing_is_registered(
    desk: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "app.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE note (id INTEGER PRIMARY KEY, user_id TEXT)")
        db.execute("INSERT INTO note (user_id) VALUES ('ada')")
    db.close()
    command = ["scan", str(path), "--register", "--class", "memory", "--url", desk.running.url]
    assert cli.run([*command, "--token", desk.tokens["platform"], "--writer-token", desk.tokens["writer"]]) == 1
    assert "not registered: app.db" in capsys.readouterr().out
    assert desk.call("auditor", "GET", "/v1/stores")["items"] == []
    assert cli.run([*command, "--token", desk.tokens["writer"]]) == 1
