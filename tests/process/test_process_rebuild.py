"""The database is lost; bucket, unlocked store and key folder are left. Embedded and on servers, over the command."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlmodel import select

from api.commands.opening import opened
from api.commands.options import CannotRun
from api.wiring import Services
from ledger.checkpoint import parse_checkpoint, verify_note
from ledger.entry import decode_header, header_hash, uuid7
from ledger.merkle import verify_consistency, verify_inclusion
from ledger.signing import verifier_from_vkey
from muniment.errors import ApiProblem
from registry.journal import complete_snapshots
from registry.models import Token
from tests import forked
from vault.models import DataKey, KeyState

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
PURPOSE = "dispute;case=7"
HOLD = {"name": "court", "matter": "a suit", "reason": "evidence", "selector": {"subjects": ["user:held"]}}


def say(desk: Any, person: str, *texts: str, stream: str | None = None) -> list[str]:
    entries: list[dict[str, Any]] = [
        {
            "id": uuid7(datetime.now(UTC)), "stream": stream or f"conv_{person}", "kind": "turn.user",
            "at": datetime.now(UTC).isoformat(), "data_class": "transcript", "subjects": [f"user:{person}"],
            "run": f"run_{person}", "recorder": "rec_1", "body": {"text": text},
        }
        for text in texts
    ]  # fmt: skip
    results = desk.call("writer", "POST", "/v1/record/entries", {"entries": entries})["results"]
    assert {one["status"] for one in results} == {"stored"}
    return [entry["id"] for entry in entries]


def read(desk: Any, entry: str) -> bytes:
    answer = desk.client("auditor").send("GET", f"/v1/record/entries/{entry}", None, {"X-Purpose": PURPOSE})
    body: bytes = answer.body
    return body


def replay(desk: Any, stream: str) -> Any:
    found = desk.call("auditor", "POST", "/v1/replay", {"stream": stream}, purpose=PURPOSE)["entries"]
    # What the answer says about the head of now is not part of the exchange.
    return [{name: value for name, value in entry.items() if name != "checkpoint"} for entry in found]


def erase(desk: Any, person: str) -> str:
    made = desk.call(
        "legal", "POST", "/v1/requests",
        {"right": "erasure", "subjects": [f"user:{person}"], "regulation": "gdpr", "jurisdiction": "DE-BY",
         "timezone": "Europe/Berlin", "received_at": datetime.now(UTC).isoformat(), "channel": "e-mail"},
    )  # fmt: skip
    path = f"/v1/requests/{made['id']}"
    desk.call("legal", "POST", f"{path}/verify-identity",
              {"identifier": f"user:{person}", "method": "login", "evidence": "session of today"})  # fmt: skip
    planned = desk.call("legal", "POST", f"{path}/plan")
    desk.call("legal2", "POST", f"{path}/approve", {"plan_hash": planned["plan_hash"]})
    end = time.monotonic() + 60
    while not desk.call("legal", "GET", path)["state"].startswith("completed"):
        assert time.monotonic() < end, desk.call("legal", "GET", path)
        time.sleep(0.1)
    return str(made["id"])


def head_of(desk: Any) -> Any:
    note = desk.client("auditor").send("GET", "/v1/log/checkpoint").body
    return parse_checkpoint(verify_note(note, [verifier_from_vkey(desk.log_key)]))


def proof_holds(desk: Any, proof: dict[str, Any], head: Any) -> None:
    raw = base64.b64decode(proof["header"])
    path = [bytes.fromhex(node) for node in proof["inclusion"]]
    verify_inclusion(proof["index"], head.size, header_hash(raw), path, head.root)
    assert decode_header(raw).id


def lose_database(running: Any) -> None:
    """The tables, their log and every connection to them are gone."""
    settings = running.settings
    if settings.on_postgres:
        engine = sa.create_engine(settings.database)
        with engine.begin() as connection:
            connection.execute(sa.text("DROP SCHEMA public CASCADE"))
            connection.execute(sa.text("CREATE SCHEMA public"))
            connection.execute(sa.text("GRANT ALL ON SCHEMA public TO PUBLIC"))
        engine.dispose()
        return
    for path in settings.data.glob("muniment.db*"):
        path.unlink()


def command(running: Any, *arguments: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    words = (*arguments, "--data", str(running.settings.data), "--json")
    return forked.run(*words, env=environment(running), timeout=seconds)


def environment(running: Any) -> dict[str, str]:
    settings = running.settings
    more = {
        "MUNIMENT_DATABASE_URL": settings.database,
        "MUNIMENT_OBJECT_STORE": settings.objects,
        "MUNIMENT_HOT_STORE": settings.hot,
        "MUNIMENT_ALLOW_TARGETS": settings.allow_targets,
        "MUNIMENT_LOCK_UNIT": settings.lock_unit,
    }
    if settings.s3_endpoint_url:
        more["MUNIMENT_S3_ENDPOINT_URL"] = settings.s3_endpoint_url
    return {**os.environ, **more}


def rebuild(running: Any) -> Any:
    done = command(running, "rebuild")
    assert done.returncode == 0, (done.stdout, done.stderr)
    return json.loads(done.stdout)


def own(report: Any, desk: Any) -> Any:
    return next(one for one in report["logs"] if one["tenant"] == desk.tenant)


@pytest.fixture(autouse=True)
def serving_again(running: Any) -> Iterator[None]:
    """A test that failed between stop and start must not fail those after it."""
    yield
    if running._server.should_exit:
        command(running, "rebuild")
        running.start()


def tenant_id(running: Any, desk: Any) -> int:
    services: Services = running.services
    return next(acting.tenant_id for acting in services.tenants() if acting.tenant == desk.tenant)


def ship(running: Any, desk: Any) -> None:
    """Wait for nothing: what was announced is in the record now, and the small tables are kept."""
    services = running.services
    services.record.ship_outbox(tenant_id(running, desk), services.clock.now())
    services.journal.changed(tenant_id(running, desk), services.clock.now())


def refused(desk: Any, entry: str) -> int:
    with pytest.raises(ApiProblem) as problem:
        read(desk, entry)
    status: int = problem.value.status
    return status


@pytest.mark.scenario("L17")
@pytest.mark.scenario("L29")
def test_all_but_the_erased_reads_as_before_and_the_record_goes_on(desk: Any, running: Any) -> None:
    kept = say(desk, "kept", "Where is my refund?", "Gr\u00fc\u00dfe")
    gone = say(desk, "gone", "my rash came back")
    say(desk, "held", "about the suit")
    desk.call("legal", "POST", "/v1/holds", HOLD)
    services = running.services
    services.journal.snapshot(tenant_id(running, desk), services.clock.now())
    request = erase(desk, "gone")
    late = say(desk, "late", "made after the snapshot")
    old_head = head_of(desk)
    proof = desk.call("auditor", "GET", f"/v1/record/entries/{kept[0]}/proof")
    bodies = {entry: read(desk, entry) for entry in (*kept, *late)}
    before = {stream: replay(desk, stream) for stream in ("conv_kept", "conv_held", "conv_late", "conv_gone")}
    ship(running, desk)
    running.stop()
    lose_database(running)

    report = own(rebuild(running), desk)
    assert report["verify"] == "sound"
    assert report["faults"] == []
    assert report["snapshot_at"] is not None
    assert report["entries"] >= old_head.size
    running.start()

    assert {entry: read(desk, entry) for entry in bodies} == bodies
    assert {stream: replay(desk, stream) for stream in before} == before
    assert refused(desk, gone[0]) == 410
    assert request in json.dumps(replay(desk, "conv_gone"))
    proof_holds(desk, proof, old_head)
    again = desk.call("writer", "POST", "/v1/record/entries", {"entries": [about("gone", "still here?")]})["results"]
    assert again[0]["status"] == "suppressed"
    more = say(desk, "kept", "and now?")
    positions = [entry["position"] for entry in replay(desk, "conv_kept")]
    assert positions == list(range(len(kept) + 1))
    new_head = head_of(desk)
    steps = desk.call("auditor", "GET", f"/v1/log/consistency?from={old_head.size}&to={new_head.size}")["consistency"]
    path = [bytes.fromhex(node) for node in steps]
    verify_consistency(old_head.size, new_head.size, path, old_head.root, new_head.root)
    assert more
    holds = desk.call("legal", "GET", "/v1/holds")["items"]
    assert [(hold["name"], hold["state"]) for hold in holds] == [("court", "in_force")]
    state = desk.call("legal", "GET", "/v1/inventory")
    assert state


def about(person: str, text: str) -> dict[str, Any]:
    return {
        "id": uuid7(datetime.now(UTC)), "stream": f"conv_{person}", "kind": "turn.user",
        "at": datetime.now(UTC).isoformat(), "data_class": "transcript", "subjects": [f"user:{person}"],
        "body": {"text": text},
    }  # fmt: skip


@pytest.mark.slow
def test_without_any_snapshot_the_record_comes_back_and_the_report_says_what_does_not(desk: Any, running: Any) -> None:
    kept = say(desk, "kept", "a")
    gone = say(desk, "gone", "b")
    erase(desk, "gone")
    desk.call("legal", "POST", "/v1/holds", HOLD)
    waiting = desk.call(
        "legal", "POST", "/v1/requests",
        {"right": "erasure", "subjects": ["user:kept"], "regulation": "gdpr", "jurisdiction": "DE-BY",
         "timezone": "Europe/Berlin", "received_at": datetime.now(UTC).isoformat(), "channel": "e-mail"},
    )  # fmt: skip
    ship(running, desk)
    running.stop()
    lose_database(running)
    for name in complete_snapshots(running.services.hot, log_of(desk)):
        for key in list(running.services.hot.list(f"{log_of(desk)}/{name}")):
            running.services.hot.delete(key)
    report = own(rebuild(running), desk)
    assert report["snapshot_at"] is None
    assert any("daily snapshot" in line for line in report["lost"])
    assert any(waiting["id"] in line for line in report["lost"])
    running.start()
    assert json.loads(read(desk, kept[0]))["body"] == {"text": "a"}
    assert refused(desk, gone[0]) == 410
    assert desk.call("legal", "GET", "/v1/holds")["items"][0]["state"] == "in_force"


def log_of(desk: Any) -> str:
    return str(desk.log_key).partition("+")[0].rpartition("/")[2]


@pytest.mark.scenario("L29")
@pytest.mark.slow
def test_old_key_files_that_come_back_open_nothing(desk: Any, running: Any, tmp_path: Path) -> None:
    keys = Path(f"{running.settings.data}.keys")
    kept = say(desk, "kept", "a")
    gone = say(desk, "gone", "b")
    shutil.copytree(keys, tmp_path / "yesterday")
    running.stop()
    running.start(kek_grace=running.settings.kek_grace * 0)
    erase(desk, "gone")
    number = tenant_id(running, desk)
    end = time.monotonic() + 30
    while not (ended := [one for one in running.services.keks.epochs(str(number)) if one.destroyed_at is not None]):
        assert time.monotonic() < end
        time.sleep(0.1)
    ship(running, desk)
    running.stop()
    lose_database(running)
    for tombstone in (keys / "kek" / str(number)).glob("group-*.gone"):
        tombstone.unlink()
    shutil.copytree(tmp_path / "yesterday", keys, dirs_exist_ok=True)

    report = own(rebuild(running), desk)
    assert report["faults"] == []
    running.start()
    assert refused(desk, gone[0]) == 410
    assert json.loads(read(desk, kept[0]))["body"] == {"text": "a"}
    with running.services.database.transaction(number, write=False) as session:
        query = select(DataKey).where(DataKey.tenant_id == number, DataKey.state == KeyState.DESTROYED.value)
        rows = session.exec(query).all()
        assert rows
        assert all(row.wrapped is None for row in rows)
    again = {(one.group_no, one.epoch): one for one in running.services.keks.epochs(str(number))}
    assert all(again[one.group_no, one.epoch].destroyed_at is not None for one in ended)


@pytest.mark.slow
def test_an_ended_token_stays_ended_and_a_live_database_is_not_written_over(desk: Any, running: Any) -> None:
    made = desk.call("admin", "POST", "/v1/tokens", {"principal": "temp", "roles": ["auditor"]})
    running.services.journal.snapshot(tenant_id(running, desk), running.services.clock.now())
    desk.call("admin", "DELETE", f"/v1/tokens/{made['id']}")
    running.services.record.ship_outbox(tenant_id(running, desk), running.services.clock.now())
    running.stop()
    done = command(running, "rebuild")
    assert done.returncode == 1
    assert "holds" in done.stderr
    assert "tenant" in done.stderr
    lose_database(running)
    rebuild(running)
    running.start()
    with running.services.database.transaction(tenant_id(running, desk), write=False) as session:
        token = session.exec(select(Token).where(Token.token_id == made["id"])).one()
        assert token.revoked_at is not None


def kill_rebuild(running: Any, delay: float) -> None:
    """Begin a rebuild and kill it so many seconds after it said that it is under way."""
    process = forked.Piped("rebuild", "--data", str(running.settings.data), env=environment(running))
    end = time.monotonic() + 60
    while not (running.settings.data / "run" / "rebuilding").exists():
        assert time.monotonic() < end
        time.sleep(0.005)
    time.sleep(delay)
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.scenario("L17")
def test_a_killed_rebuild_is_not_served_and_ends_when_run_again(desk: Any, running: Any, full_length: bool) -> None:
    kept = say(desk, "kept", *(f"text {number}" for number in range(200)))
    before = replay(desk, "conv_kept")
    ship(running, desk)
    entries = head_of(desk).size
    running.stop()
    (running.settings.data / "run" / "initialised").write_text("1\n")
    for delay in (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8) if full_length else (0.15,):
        lose_database(running)
        (running.settings.data / "run" / "rebuilding").unlink(missing_ok=True)
        kill_rebuild(running, delay)
        if (running.settings.data / "run" / "rebuilding").exists():
            with pytest.raises(CannotRun, match="did not end"), opened(running.settings.data):
                pass
            # What is killed again finds what the first one left.
            kill_rebuild(running, delay / 2)
        if not (running.settings.data / "run" / "rebuilding").exists():
            lose_database(running)
        report = own(rebuild(running), desk)
        assert (report["verify"], report["faults"], report["entries"]) == ("sound", [], entries)
    running.start()
    assert replay(desk, "conv_kept") == before
    assert len(kept) == len(before)


@pytest.mark.slow
def test_without_keys_it_says_what_is_lost_and_an_empty_database_is_not_served(desk: Any, running: Any) -> None:
    say(desk, "kept", "a")
    ship(running, desk)
    running.stop()
    lose_database(running)
    keys = Path(f"{running.settings.data}.keys")
    away = keys.with_suffix(".away")
    keys.rename(away)
    done = command(running, "rebuild")
    assert done.returncode == 2
    assert "lost for good" in done.stderr
    assert not keys.exists()
    away.rename(keys)
    (running.settings.data / "run" / "initialised").write_text("1\n")
    done = forked.run("serve", "--data", str(running.settings.data), "--port", "0", env=environment(running))
    assert done.returncode == 2
    assert "muniment rebuild" in done.stderr
    rebuild(running)
    running.start()


@pytest.mark.slow
def test_snapshots_alone_are_enough_and_old_ones_and_old_rows_are_removed(desk: Any, running: Any) -> None:
    from datetime import timedelta

    kept = say(desk, "kept", "a")
    gone = say(desk, "gone", "b")
    erase(desk, "gone")
    ship(running, desk)
    hot, journal, now = running.services.hot, running.services.journal, running.services.clock.now()
    for day in range(5):
        journal.snapshot(tenant_id(running, desk), now + timedelta(days=day + 2))
    assert not journal.snapshot_if_due(tenant_id(running, desk), now + timedelta(days=6))
    assert len(complete_snapshots(hot, log_of(desk))) == 3
    assert list(hot.list(f"{log_of(desk)}/rows/")) == []
    running.stop()
    lose_database(running)
    report = own(rebuild(running), desk)
    assert report["faults"] == []
    running.start()
    assert json.loads(read(desk, kept[0]))["body"] == {"text": "a"}
    assert refused(desk, gone[0]) == 410
