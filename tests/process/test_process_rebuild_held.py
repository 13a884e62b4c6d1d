"""A hold that came between the announcement of a destruction and the loss of the database wins over the rebuild.

Embedded and on servers.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlmodel import col, select

from ledger.entry import Kind, uuid7
from registry.keyed import IDENTITY_CLASS
from tests.process.conftest import wait_for
from tests.process.test_process_rebuild import (
    lose_database,
    own,
    read,
    rebuild,
    refused,
    say,
    serving_again,
    ship,
    tenant_id,
)
from vault.models import DataKey

__all__ = ["serving_again"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


def together(desk: Any, *people: str) -> str:
    """One text about several people."""
    entry = {
        "id": uuid7(datetime.now(UTC)), "stream": "conv_together", "kind": "turn.user",
        "at": datetime.now(UTC).isoformat(), "data_class": "transcript",
        "subjects": [f"user:{person}" for person in people], "body": {"text": "of us both"},
    }  # fmt: skip
    [result] = desk.call("writer", "POST", "/v1/record/entries", {"entries": [entry]})["results"]
    assert result["status"] == "stored"
    return str(entry["id"])


def announce(running: Any, desk: Any) -> None:
    """Every key of a person is said to go, and the process ends before anything of it is done."""
    services, tenant = running.services, tenant_id(running, desk)
    with services.database.transaction(tenant, write=False) as session:
        query = select(DataKey.key_id).where(
            DataKey.tenant_id == tenant, col(DataKey.data_class).in_(["transcript", IDENTITY_CLASS])
        )
        keys = sorted(session.exec(query))
    body = {"owner": "req_00000000000000000000000000000001", "keys": keys}
    services.record.event(tenant, Kind.KEY_DESTROYING, body, services.clock.now())


def place(desk: Any, **selector: Any) -> str:
    spec = {"name": "suit", "matter": "m", "reason": "r", "selector": selector}
    return str(desk.call("legal", "POST", "/v1/holds", spec)["id"])


def test_what_was_announced_as_going_stays_under_a_hold_and_goes_without_one(desk: Any, running: Any) -> None:
    """The log said that the keys go, then a hold came, then the database was lost: the rebuild let them all go."""
    [person], [named] = say(desk, "person", "held whole"), say(desk, "named", "held by its id")
    [talk] = say(desk, "talker", "held with its conversation", stream="conv_held")
    [released], [gone] = say(desk, "released", "held once"), say(desk, "gone", "held by nothing")
    shared, apart = together(desk, "leaving", "witness"), together(desk, "leaving", "other")
    announce(running, desk)
    place(desk, subjects=["user:person"])
    place(desk, entries=[named])
    place(desk, scope={"conversation": "conv_held"})
    place(desk, subjects=["user:witness"])
    over = place(desk, subjects=["user:released"])
    desk.call("legal2", "POST", f"/v1/holds/{over}/release?preview=false")
    ship(running, desk)
    running.stop()
    lose_database(running)

    report = own(rebuild(running), desk)
    assert report["verify"] == "sound"
    assert any("a hold or a restriction" in line for line in report["lost"]), report["lost"]
    running.start()
    kept = {entry: json.loads(read(desk, entry))["body"]["text"] for entry in (person, named, talk, shared)}
    assert kept[person] == "held whole"
    assert kept[shared] == "of us both"
    assert refused(desk, gone) == 410
    assert refused(desk, released) == 410
    assert refused(desk, apart) == 410
    # The name of whoever is held is still known: a later request finds its data.
    assert desk.call("legal", "POST", "/v1/subjects:lookup", {"subjects": ["user:person"]})["known"] == 1


@pytest.mark.slow
def test_a_restriction_younger_than_the_announcement_keeps_what_was_to_go(desk: Any, running: Any) -> None:
    [kept], [gone] = say(desk, "disputing", "is that true?"), say(desk, "gone", "held by nothing")
    announce(running, desk)
    made = desk.call("legal", "POST", "/v1/requests",
                     {"right": "restriction", "subjects": ["user:disputing"], "regulation": "gdpr"})  # fmt: skip
    path = f"/v1/requests/{made['id']}"
    identity = {"identifier": "user:disputing", "method": "login", "evidence": "session"}
    desk.call("legal", "POST", f"{path}/verify-identity", identity)
    plan = desk.call("legal", "POST", f"{path}/plan")
    desk.call("legal2", "POST", f"{path}/approve", {"plan_hash": plan["plan_hash"]})
    wait_for(lambda: desk.call("legal", "GET", path)["state"].startswith("completed"), 60)
    ship(running, desk)
    running.stop()
    lose_database(running)

    rebuild(running)
    running.start()
    assert json.loads(read(desk, kept))["body"]["text"] == "is that true?"
    assert refused(desk, gone) == 410
