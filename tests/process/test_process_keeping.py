"""Items under one key with different fates, over HTTP: what must stay is read everywhere, the rest nowhere.

Embedded and on servers.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import httpx
import pytest
import sqlalchemy as sa
from botocore.config import Config
from sqlmodel import select

from ledger.entry import uuid7
from muniment.errors import ApiProblem
from tests.process.conftest import wait_for
from tests.process.test_process_rebuild import tenant_id
from vault.models import DataKey, PartKey

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
PURPOSE = "dispute;case=7"
WHO = "user:ten_items"


@pytest.fixture(autouse=True)
def without_grace(running: Any) -> Iterator[None]:
    """Old key-encryption keys go at once, so that what is left can be searched."""
    if running.settings.kek_grace:
        running.stop()
        running.start(kek_grace=timedelta(0))
    yield
    if running._server.should_exit:
        running.start()


def say(desk: Any, text: str, stream: str) -> str:
    entry = {
        "id": uuid7(datetime.now(UTC)), "stream": stream, "kind": "turn.user", "at": datetime.now(UTC).isoformat(),
        "data_class": "transcript", "subjects": [WHO], "body": {"text": text},
    }  # fmt: skip
    [result] = desk.call("writer", "POST", "/v1/record/entries", {"entries": [entry]})["results"]
    assert result["status"] == "stored", result
    return str(entry["id"])


def ten(desk: Any) -> list[str]:
    return [say(desk, f"item {number}", "held" if number == 3 else "open") for number in range(10)]


def body_of(desk: Any, entry: str) -> Any:
    """What was said, or the problem document of an entry that nobody reads any more."""
    headers = {"Authorization": f"Bearer {desk.tokens['auditor']}", "X-Purpose": PURPOSE}
    got = httpx.get(f"{desk.running.url}/v1/record/entries/{entry}", headers=headers, timeout=60)
    assert got.status_code in (200, 410), got.text
    return got.json()["body"]["text"] if got.status_code == 200 else got.json()


def request(desk: Any, right: str = "erasure", **more: Any) -> str:
    """A request as far as its approval."""
    made = desk.call("legal", "POST", "/v1/requests",
                     {"right": right, "subjects": [WHO], "regulation": "gdpr", **more})  # fmt: skip
    path = f"/v1/requests/{made['id']}"
    desk.call("legal", "POST", f"{path}/verify-identity", {"identifier": WHO, "method": "login", "evidence": "session"})
    plan = desk.call("legal", "POST", f"{path}/plan")
    desk.call("legal2", "POST", f"{path}/approve", {"plan_hash": plan["plan_hash"]})
    return str(made["id"])


def until(desk: Any, request_id: str, state: str) -> Any:
    def ended() -> Any:
        view = desk.call("legal", "GET", f"/v1/requests/{request_id}")
        return view if view["state"] == state else None

    return wait_for(ended, 60)


def hold(desk: Any, **selector: Any) -> str:
    spec = {"name": "suit", "matter": "m", "reason": "r", "selector": selector}
    return str(desk.call("legal", "POST", "/v1/holds", spec)["id"])


def keys_in(running: Any, desk: Any) -> tuple[list[DataKey], list[PartKey]]:
    tenant = tenant_id(running, desk)
    with running.services.database.transaction(tenant, write=False) as session:
        mine = select(DataKey).where(DataKey.tenant_id == tenant, DataKey.data_class == "transcript")
        return list(session.exec(mine)), list(session.exec(select(PartKey).where(PartKey.tenant_id == tenant)))


def everywhere(running: Any, needle: bytes) -> list[str]:
    """Where bytes lie: database and its log, key folder, locked and unlocked store."""
    settings = running.settings
    running.services.database.truncate_wal()
    base = settings.data.parent
    found = [str(path) for path in base.rglob("*") if path.is_file() and needle in path.read_bytes()]
    if not settings.on_postgres:
        return found
    engine = sa.create_engine(settings.database)
    with engine.connect() as connection:
        for table in sa.inspect(engine).get_table_names():
            hit = sa.text(f"SELECT count(*) FROM {table} AS t WHERE position(:needle in t::text) > 0")
            if connection.execute(hit, {"needle": needle.hex()}).scalar():
                found.append(table)
    engine.dispose()
    s3 = boto3.client("s3", endpoint_url=settings.s3_endpoint_url,
                      config=Config(request_checksum_calculation="when_required"))  # fmt: skip
    for url in (settings.objects, settings.hot):
        bucket = url.removeprefix("s3://").partition("/")[0]
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            keys = [item["Key"] for item in page.get("Contents", ())]
            found += [key for key in keys if needle in s3.get_object(Bucket=bucket, Key=key)["Body"].read()]
    s3.close()
    return found


@pytest.mark.scenario("E10")
def test_one_of_ten_items_under_a_hold_keeps_exactly_that_item_readable(desk: Any, running: Any) -> None:
    entries = ten(desk)
    [key], _ = keys_in(running, desk)
    tenant = tenant_id(running, desk)
    with running.services.database.transaction(tenant, write=False) as session:
        raw = running.services.vault.open_keys(session, tenant, [key.key_id])[key.key_id]
    assert key.wrapped is not None
    assert everywhere(running, key.wrapped), "the search finds what is there"
    hold_id = hold(desk, scope={"conversation": "held"})
    erasure = request(desk)
    due = until(desk, erasure, "completed_with_retained")["due_at"]

    bodies = [body_of(desk, entry) for entry in entries]
    assert [number for number, body in enumerate(bodies) if isinstance(body, str)] == [3]
    assert bodies[3] == "item 3"
    gone = [body for number, body in enumerate(bodies) if number != 3]
    assert {body["request"] for body in gone} == {erasure}
    assert {body.get("certificate") for body in gone} != {None}
    lines = desk.call("legal", "GET", f"/v1/requests/{erasure}/copies?state=retained")["items"]
    [kept] = [line for line in lines if "entry" in line]
    assert (kept["entry"], kept["rule"], kept["until"]) == (f"{entries[3]}/0", "hold", None)
    certificate = json.loads(desk.client("legal").send("GET", f"/v1/requests/{erasure}/report").body)["certificate"]
    assert {"copy": kept["copy"], "rule": "hold", "ground": [hold_id], "until": None} in certificate["retained"]
    assert certificate["state"] == "completed_with_retained"
    html = {"Accept": "text/html"}
    assert hold_id in desk.client("legal").send("GET", f"/v1/requests/{erasure}/report", None, html).body.decode()

    for stream, verdicts in (("held", ["verified"]), ("open", ["erased"] * 9)):
        shown = desk.call("auditor", "POST", "/v1/replay", {"stream": stream}, purpose=PURPOSE)["entries"]
        assert [entry["integrity"] for entry in shown] == verdicts
    listed = desk.call("auditor", "POST", "/v1/record:search", {"kind": "turn.user"}, purpose=PURPOSE)["items"]
    assert sorted(entry["id"] for entry in listed) == sorted(entries), "headers stay, and say nothing"

    [key], [part] = keys_in(running, desk)
    with running.services.database.transaction(tenant, write=False) as session:
        mine = running.services.vault.open_part(session, tenant, part.entry_id, part.part)
    first = part.wrapped
    assert first is not None
    assert key.wrapped is None
    assert everywhere(running, raw) == everywhere(running, mine) == []

    with pytest.raises(ApiProblem):
        desk.call("legal", "POST", f"/v1/holds/{hold_id}/release?preview=false")
    desk.call("legal2", "POST", f"/v1/holds/{hold_id}/release?preview=false")
    assert until(desk, erasure, "completed")["due_at"] == due, "under its own date"
    problem = body_of(desk, entries[3])
    assert (problem["request"], problem["type"]) == (erasure, "/problems/erased")
    [_], [part] = keys_in(running, desk)
    assert part.wrapped is None
    assert everywhere(running, mine) == everywhere(running, first) == []
    final = json.loads(desk.client("legal").send("GET", f"/v1/requests/{erasure}/report").body)["certificate"]
    assert (final["state"], final["retained"]) == ("completed", [])


def test_one_conversation_goes_and_the_others_of_its_key_are_read_exported_and_go_on(desk: Any, running: Any) -> None:
    entries = {name: [say(desk, f"{name} {number}", name) for number in range(3)] for name in ("one", "two")}
    erasure = request(desk, scope={"conversation": "one"})
    until(desk, erasure, "completed")
    assert {body_of(desk, entry)["request"] for entry in entries["one"]} == {erasure}
    assert [body_of(desk, entry) for entry in entries["two"]] == ["two 0", "two 1", "two 2"]
    entries["two"].append(say(desk, "two 3", "two"))
    assert body_of(desk, entries["two"][-1]) == "two 3"

    access = request(desk, "access")
    until(desk, access, "completed")
    package = desk.client("legal").send("GET", f"/v1/requests/{access}/export").body
    with zipfile.ZipFile(io.BytesIO(package)) as opened:
        record = opened.read("record/transcript.jsonl").decode()
    assert all(f"two {number}" in record for number in range(4))
    assert "one 0" not in record

    verdict = desk.call("auditor", "POST", "/v1/audit/verifications", {})
    found = wait_for(lambda: _done(desk, verdict["id"]), 60)
    assert (found["verdict"], found["erased"]) == ("sound", 3), found

    whole = request(desk)
    until(desk, whole, "completed")
    assert {body_of(desk, entry)["request"] for entry in entries["one"]} == {erasure}
    assert {body_of(desk, entry)["request"] for entry in entries["two"]} == {whole}
    _, parts = keys_in(running, desk)
    assert {part.wrapped for part in parts} == {None}


def _done(desk: Any, verification: str) -> Any:
    view = desk.call("auditor", "GET", f"/v1/audit/verifications/{verification}")
    return view.get("report") if view["state"] == "done" else None
