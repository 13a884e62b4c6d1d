"""`muniment doctor` and the look at every start: sound installations pass, each fault is named with what to do."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from api import administration, examination, folder
from api.commands.examining import examine
from api.commands.failures import explain
from api.settings import Settings, load
from api.wiring import Services, StoreRefused, build
from ledger.entry import uuid7
from ledger.errors import ObjectLocked
from ledger.models import LogLease
from ledger.objects import Attack
from tests import schema

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]


def say(desk: Any) -> None:
    entry = {
        "id": uuid7(datetime.now(UTC)), "stream": "conv", "kind": "turn.user", "at": datetime.now(UTC).isoformat(),
        "data_class": "transcript", "subjects": ["user:ada"], "recorder": "rec_1", "body": {"text": "a"},
    }  # fmt: skip
    results = desk.call("writer", "POST", "/v1/record/entries", {"entries": [entry]})["results"]
    assert results[0]["status"] == "stored"


def by_name(found: list[examination.Finding]) -> dict[str, list[examination.Finding]]:
    named: dict[str, list[examination.Finding]] = {}
    for finding in found:
        named.setdefault(finding.what, []).append(finding)
    return named


def verdicts(found: list[examination.Finding], what: str) -> set[str]:
    return {finding.verdict for finding in by_name(found)[what]}


def number_of(running: Any, desk: Any) -> int:
    services: Services = running.services
    return next(acting.tenant_id for acting in services.tenants() if acting.tenant == desk.tenant)


@pytest.mark.scenario("E12")
@pytest.mark.scenario("L19")
@pytest.mark.scenario("L23")
def test_a_sound_installation_withstands_the_attacks_while_it_serves(desk: Any, running: Any) -> None:
    say(desk)
    folder.mark_initialised(running.settings.data)
    running.services.journal.snapshot(number_of(running, desk), running.services.clock.now())
    found = examine(running.settings, desk.tenant)
    bad = [finding for finding in found if finding.verdict in ("wrong", "unknown")]
    # The servers' variant runs with locks of seconds, which is for tests only, and says so.
    assert [finding.what for finding in bad] == (["clock"] if running.settings.lock_unit == "second" else [])
    for what in ("object lock", "unlocked store", "lease", f"{desk.tenant}: orphans", "keys", "schema"):
        assert verdicts(found, what) == {"fine"}, by_name(found)[what]
    assert verdicts(found, f"{desk.tenant}: rows for a rebuild") == {"fine"}
    assert verdicts(found, "anchors") == {"weak"}
    assert verdicts(found, f"{desk.tenant}: spools") == {"weak"}
    assert verdicts(found, f"{desk.tenant}: controller") == {"weak"}
    assert any("s away" in finding.detail for finding in by_name(found)["clock"])


def test_what_crashes_left_is_counted_and_what_is_in_flight_is_not(desk: Any, running: Any) -> None:
    say(desk)
    folder.mark_initialised(running.settings.data)
    services = running.services
    log_id = str(desk.log_key).partition("+")[0].rpartition("/")[2]
    now = services.clock.now()
    services.locked.put(f"{log_id}/payload/none/{uuid7(now - timedelta(hours=1))}", b"left", lock_until=None)
    services.locked.put(f"{log_id}/payload/none/{uuid7(now)}", b"in flight", lock_until=None)
    services.locked.put(f"{log_id}/payload/none/readme", b"somebody else's", lock_until=None)
    services.hot.replace(f"{log_id}/index/{0:020d}-0123456789abcdef", b"lost the race")
    services.hot.replace(f"{log_id}/rows/{uuid7(now)}", b"garbage")
    found = by_name(examine(running.settings, desk.tenant))
    orphans = found[f"{desk.tenant}: orphans"][0]
    assert orphans.verdict == "weak"
    assert orphans.detail.startswith("1 payload objects (4 bytes of ciphertext) and 1 index objects")
    (foreign,) = found[f"{desk.tenant}: foreign names"]
    assert (foreign.verdict, foreign.detail[:9]) == ("weak", "1 objects")
    assert f"{log_id}/payload/none/readme" in foreign.detail
    rows = found[f"{desk.tenant}: rows for a rebuild"]
    assert any(one.verdict == "wrong" and one.detail.startswith("1 objects do not open") for one in rows)


def test_a_lease_that_ran_out_and_a_read_only_log_are_faults(desk: Any, running: Any) -> None:
    from sqlmodel import select

    from ledger.models import LogState

    say(desk)
    folder.mark_initialised(running.settings.data)
    number = number_of(running, desk)
    running.services.jobs.stop()
    with running.services.database.shared() as session:
        for row in session.exec(select(LogLease)):
            row.until = running.services.clock.now() - timedelta(minutes=2)
            session.add(row)
    with running.services.database.transaction(number) as session:
        state = session.get_one(LogState, number)
        state.read_only = "two histories"
        session.add(state)
    found = examine(running.settings, desk.tenant)
    assert verdicts(found, "lease") == {"wrong"}
    assert verdicts(found, f"{desk.tenant}: log") == {"wrong"}
    running.stop()
    running.start()


def initialised(base: Path, **more: Any) -> Settings:
    settings = load(base / "data", **more)
    folder.make(settings.data)
    services = build(settings)
    schema.bring(services.database)
    services.lease.take(services.clock.now(), force=True)
    administration.create_tenant(services, "default")
    services.close()
    folder.mark_initialised(settings.data)
    return settings


def test_folders_open_to_others_keys_in_the_data_and_no_keys_are_faults(tmp_path: Path) -> None:
    settings = initialised(tmp_path)
    keys = tmp_path / "data.keys"
    assert {finding.verdict for finding in examine(settings)} <= {"fine", "weak"}
    assert verdicts(examine(settings), "keys beside data") == {"weak"}
    settings.data.chmod(0o750)
    assert verdicts(examine(settings), "data folder") == {"wrong"}
    settings.data.chmod(0o700)
    file = next(path for path in keys.rglob("*") if path.is_file())
    file.chmod(0o644)
    assert verdicts(examine(settings), "keys") == {"wrong"}
    file.chmod(0o600)
    inside = settings.data / "keys"
    shutil.copytree(keys, inside)
    inside.chmod(0o700)
    assert verdicts(examine(settings.model_copy(update={"kms": f"file://{inside}"})), "keys") == {"wrong"}
    shutil.rmtree(keys)
    assert verdicts(examine(settings), "keys") == {"wrong"}
    assert not keys.exists()


def test_a_rebuild_that_did_not_end_and_a_full_disk_are_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = initialised(tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1024))
    assert verdicts(examine(settings), "disk") == {"wrong"}
    folder.mark_rebuilding(settings.data)
    assert verdicts(examine(settings), "data folder") == {"wrong"}


@pytest.mark.scenario("L23")
def test_a_store_that_gives_way_under_an_attack_is_a_fault(tmp_path: Path) -> None:
    settings = initialised(tmp_path)
    services = build(settings)

    def attacks(key: str) -> list[Attack]:
        def shorten() -> None:
            (settings.data / "objects" / ".lock" / key).unlink()

        def resist() -> None:
            raise ObjectLocked(key, None)

        return [Attack(name="another way", attempt=resist), Attack(name="a shorter lock is refused", attempt=shorten)]

    services.locked.attacks = attacks  # type: ignore[attr-defined]
    found = [finding for finding in examination.look_at_stores(services) if finding.what == "object lock"]
    services.close()
    assert {finding.verdict for finding in found} == {"wrong"}
    assert any("a shorter lock is refused: the store did it" in finding.detail for finding in found)


# ── the look at every start, on real buckets ──────────────────────────────────────────────────────────────────────


@pytest.fixture
def make_bucket(s3_service: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_service.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_service.secret_key)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")

    def make(*, lock: bool = False, versions: bool = False) -> str:
        s3 = boto3.client(
            "s3", endpoint_url=s3_service.endpoint, config=Config(request_checksum_calculation="when_required")
        )
        name = f"b{secrets.token_hex(5)}"
        s3.create_bucket(Bucket=name, ObjectLockEnabledForBucket=lock)
        if versions:
            s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        s3.close()
        return f"s3://{name}/m"

    return make


def refusal(settings: Settings) -> str:
    folder.make(settings.data)
    with pytest.raises(StoreRefused) as refused:
        build(settings).check_stores()
    line, code = explain(refused.value)
    assert code == 2
    assert "\n" not in line
    return line


@pytest.mark.s3
@pytest.mark.scenario("E12")
@pytest.mark.scenario("L19")
def test_a_start_is_refused_in_one_line_that_says_what_to_do(
    tmp_path: Path, s3_service: Any, make_bucket: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = {"s3_endpoint_url": s3_service.endpoint, "lock_unit": "second"}
    locked, hot = make_bucket(lock=True), make_bucket()
    good = load(tmp_path / "good", object_store=locked, hot_store=hot, **endpoint)
    folder.make(good.data)
    services = build(good)
    services.check_stores()
    services.close()

    line = refusal(load(tmp_path / "a", object_store=make_bucket(), hot_store=hot, **endpoint))
    assert "OBJECT_STORE" in line
    assert "Object Lock" in line
    line = refusal(load(tmp_path / "b", object_store=locked, hot_store=make_bucket(versions=True), **endpoint))
    assert "HOT_STORE" in line
    line = refusal(load(tmp_path / "c", object_store="s3://no-such-bucket/m", hot_store=hot, **endpoint))
    assert "bucket" in line
    line = refusal(
        load(
            tmp_path / "d", object_store=locked, hot_store=hot, s3_endpoint_url="http://127.0.0.1:9", lock_unit="second"
        )
    )
    assert "S3_ENDPOINT_URL" in line
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    line = refusal(load(tmp_path / "e", object_store=locked, hot_store=hot, **endpoint))
    assert "credentials" in line
    assert "not-the-secret" not in line


def test_findings_are_one_json_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from api.cli import run

    settings = initialised(tmp_path)
    assert run(["doctor", "--data", str(settings.data), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "sound"
    assert {"what", "verdict", "detail"} == set(found["findings"][0])
    assert run(["doctor", "--data", str(tmp_path / "nowhere"), "--json"]) == 2
