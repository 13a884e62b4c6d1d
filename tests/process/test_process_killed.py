"""A process that was killed may hold destroyed keys: who waits for it says so, and who knows it is dead does not wait.

Embedded, the folder's lock proves that no other process lives; on PostgreSQL nobody can know before two bounds passed.
"""

from __future__ import annotations

import json
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from api.commands.watching import waiting_for
from muniment.errors import TransportError
from muniment.registry import Client
from tests.process.conftest import Desk, Running, wait_for
from tests.process.serving import Nursery
from vault.models import KeyProcess

pytestmark = pytest.mark.process
SUBJECT = "user:killed"
SOON = 30.0
"""Seconds; two bounds of the caches are 120."""


def record(writer: Client) -> None:
    entry = {
        "id": "018f0000-0000-7000-8000-00000000dead", "stream": "killed", "kind": "turn.user",
        "at": datetime.now(UTC).isoformat(), "data_class": "transcript", "subjects": [SUBJECT],
        "body": {"text": "hello"},
    }  # fmt: skip
    (result,) = writer.request("POST", "/v1/record/entries", {"entries": [entry]})["results"]
    assert result["status"] == "stored", result


def approve(legal: Client, second: Client) -> str:
    asked = {
        "right": "erasure", "subjects": [SUBJECT], "regulation": "gdpr", "jurisdiction": "DE",
        "timezone": "Europe/Berlin", "received_at": datetime.now(UTC).isoformat(), "channel": "e-mail",
    }  # fmt: skip
    path = f"/v1/requests/{legal.request('POST', '/v1/requests', asked)['id']}"
    known = {"identifier": SUBJECT, "method": "login", "evidence": "session of today"}
    legal.request("POST", f"{path}/verify-identity", known)
    planned = legal.request("POST", f"{path}/plan")
    second.request("POST", f"{path}/approve", {"plan_hash": planned["plan_hash"]})
    return path


def leave_a_row(running: Running) -> None:
    """The row of a process that was killed: it has emptied its caches up to some destruction, and no further."""
    with running.services.database.shared(write=True) as session:
        session.add(KeyProcess(process_id="killed", applied=0, at=datetime.now(UTC)))


def test_a_request_names_the_process_that_it_waits_for(desk: Desk) -> None:
    record(desk.client("writer"))
    leave_a_row(desk.running)
    legal = desk.client("legal")
    path = approve(legal, desk.client("legal2"))

    def named() -> dict[str, Any] | None:
        view: dict[str, Any] = legal.request("GET", path)
        assert view["state"] in ("approved", "executing"), view
        return view if view["waiting_for"].get("processes") else None

    view = wait_for(named)
    assert view["waiting_for"] == {"pending": 1, "processes": 1} or view["waiting_for"] == {"processes": 1}
    assert "1 of the service's processes to let go of destroyed keys" in waiting_for(view)
    desk.running.stop()
    desk.running.start()
    legal = desk.client("legal")
    if not desk.running.services.database.on_sqlite:
        time.sleep(2.0)
        assert wait_for(named)["waiting_for"]["processes"] == 1, "another process may live elsewhere"
        with desk.running.services.database.shared(write=True) as session:
            session.delete(session.get_one(KeyProcess, "killed"))
    done = wait_for(lambda: (v := legal.request("GET", path))["state"] == "completed" and v, SOON)
    assert done["waiting_for"] == {}


def test_an_erasure_goes_on_at_once_after_the_server_was_killed_and_started_again(tmp_path: Path) -> None:
    nursery = Nursery(tmp_path)
    try:
        made = nursery.run(["init", "--data", str(tmp_path / "data"), "--json"])
        made.wait(60)
        tokens = json.loads(made.out.read_text().splitlines()[0])["tokens"]
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        serve = ["serve", "--data", str(tmp_path / "data"), "--port", str(port)]
        server = nursery.run(serve)
        url = server.wait_ready()
        assert url is not None
        writer, legal, second = (Client(url, tokens[name]) for name in ("writer", "legal", "legal2"))
        record(writer)
        path = approve(legal, second)
        server.kill()
        server.wait()
        began = time.monotonic()
        assert nursery.run(serve).wait_ready() == url

        def ended() -> bool:
            try:
                return bool(legal.request("GET", path)["state"] == "completed")
            except TransportError:
                return False

        wait_for(ended, SOON)
        assert time.monotonic() - began < SOON
        for client in (writer, legal, second):
            client.close()
    finally:
        nursery.close()
