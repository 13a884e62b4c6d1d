"""Sealed bytes end for good, in files and in S3: when nothing opens them, their lock is over, and not before."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api.verification import part_states
from audit.findings import Report
from audit.verify import verify
from ledger.entry import uuid7
from ledger.errors import ObjectLocked

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
ADA = "email:ada@example.org"


def log_id(desk: Any) -> str:
    return str(next(acting.log_id for acting in desk.running.services.tenants() if acting.tenant == desk.tenant))


def objects(desk: Any) -> set[str]:
    services = desk.running.services
    return set(services.locked.list(f"{log_id(desk)}/payload/"))


def say(desk: Any, text: str, data_class: str) -> set[str]:
    """Record a line; returns the objects that came with it."""
    services, before = desk.running.services, objects(desk)
    acting = next(one for one in services.tenants() if one.tenant == desk.tenant)
    now = services.clock.now()
    line = {
        "id": uuid7(now), "stream": "chat", "kind": "note", "at": now.isoformat(), "data_class": data_class,
        "subjects": [ADA], "body": {"text": text},
    }  # fmt: skip
    [result] = services.record.append(acting, [json.dumps(line).encode()], now).results
    assert result["status"] == "stored", result
    return objects(desk) - before


def run(desk: Any) -> dict[str, Any]:
    """A pass as the legal desk starts it, approved by a second person where it waits."""
    from tests.process.conftest import wait_for

    made = desk.call("legal", "POST", "/v1/retention/runs", {"dry_run": False})
    if made["state"] == "awaiting_approval":
        desk.call("legal2", "POST", f"/v1/retention/runs/{made['id']}/approve")
    path = f"/v1/retention/runs/{made['id']}"
    wait_for(lambda: desk.call("legal", "GET", path)["state"] == "completed", 90)
    return dict(desk.call("legal", "GET", f"{path}/report"))


def audited(desk: Any) -> Report:
    """What an auditor makes of the log, in whichever store it lies."""
    services = desk.running.services
    tenant = next(acting for acting in services.tenants() if acting.tenant == desk.tenant)
    services.log.publish(tenant.tenant_id, services.clock.now())
    return verify(
        services.locked,
        log_id=tenant.log_id,
        keys=[desk.log_key],
        hot=services.hot,
        part_states=part_states(lambda number: services.database.transaction(number, write=False), tenant.tenant_id),
    )


def test_payload_objects_go_when_their_lock_and_their_last_key_are_over(desk: Any) -> None:
    services = desk.running.services
    desk.call("platform", "PUT", "/v1/data-classes/locked_note", {
        "state": "record", "personal": True, "owner": "team", "description": "made up", "legal_basis": "contract",
        "subject_types": ["email"], "retention": {"keep": "P2Y", "from": "created", "then": "erase", "lock": "P1M"},
        "erasure": {"on_request": "erase", "required": "L2"},
    })  # fmt: skip
    plain = say(desk, "no lock", "transcript")
    [under_lock] = [name for name in say(desk, "locked for a month", "locked_note") if "/none/" not in name]
    old = services.clock.now() - timedelta(days=2)
    orphan = f"{log_id(desk)}/payload/none/{uuid7(old)}"
    services.locked.put(orphan, b"left by a crash", lock_until=None)
    first = run(desk)
    assert first["payload_objects"]["deleted"] == 1
    assert orphan not in objects(desk)
    assert plain < objects(desk), "its keys live"

    services.clock.move(timedelta(days=8 * 365))
    assert run(desk)["counts"]["removed"] > 0
    last = run(desk)
    assert last["payload_objects"]["deleted"] > 0
    assert not plain & objects(desk)
    if desk.running.settings.on_postgres:
        # The bucket's own clock counts for a lock: ours is ahead, and what it says is not enough.
        assert under_lock in objects(desk)
        assert last["payload_objects"]["planned"] > last["payload_objects"]["deleted"]
        assert "could not be deleted" in last["alarm"]
        with pytest.raises(ObjectLocked) as refused:
            services.locked.delete(under_lock)
        assert refused.value.until is None or refused.value.until > datetime.now(UTC)
    else:
        assert under_lock not in objects(desk)
        assert last["alarm"] is None
    report = audited(desk)
    assert report.findings == ()
    assert report.expired > 0
