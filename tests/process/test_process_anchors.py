"""A whole service with a witness and an auditor's file: anchored, rotated, revoked, rewritten, checked from outside."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api import administration, folder, migrate
from api.settings import load
from api.wiring import Services, build
from audit.proof import verify_entry
from ledger.anchors import ANCHORED, REFUSED
from ledger.checkpoint import format_checkpoint, open_note, parse_checkpoint, parse_note, sign_note
from ledger.entry import Kind
from ledger.signing import Ed25519Signer, verifier_from_vkey
from muniment.errors import ApiProblem
from muniment.registry import Client
from tests import forked, schema

REPOSITORY = Path(__file__).resolve().parents[2]
WITNESS = REPOSITORY / "infra" / "witness.py"
_numbers = itertools.count()


class Place:
    """One data folder, its services in this process, an auditor's file and a witness in a process of its own."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.file = base / "auditor.notes"
        self.process: forked.Piped | None = None
        key = base / "witness.key"
        made = self._run(str(WITNESS), "--key", str(key), "--new-key", "witness.example/one")
        self.witness_vkey = made.stdout.strip()
        self.services = self.open()
        self.made = administration.create_tenant(self.services, "default")
        folder.mark_initialised(base / "data")
        self.origin = self.made.log_key.partition("+")[0]
        self.watch(self.made.log_key)

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments], check=True, capture_output=True, text=True, timeout=60, cwd=REPOSITORY
        )

    def open(self, anchors: str = "") -> Services:
        folder.make(self.base / "data")
        services = build(load(self.base / "data", anchors=anchors))
        if migrate.current(services.database) is None:
            schema.bring(services.database)
        services.lease.take(services.clock.now(), force=True)
        return services

    def watch(self, *vkeys: str) -> None:
        """Start the witness by its command, for these keys of the log; the services use it."""
        self.end_witness()
        command = ["witness", "--key", str(self.base / "witness.key"), "--state", str(self.base / "witness")]
        command += ["--port", "0"]
        for vkey in vkeys:
            command += ["--origin", f"{self.origin}={vkey}"]
        self.process = forked.Piped(*command)
        assert self.process.stdout.readline().strip() == f"witness {self.witness_vkey}"
        port = int(self.process.stdout.readline().rpartition(":")[2])
        self.anchors = f"file:{self.file},witness+http://127.0.0.1:{port}#{self.witness_vkey}"
        self.services.close()
        self.services = self.open(self.anchors)

    def end_witness(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(20) == 0
            self.process.stdout.close()
            self.process = None

    def grow(self, count: int = 1) -> None:
        (acting,) = self.services.tenants()
        now = self.services.clock.now()
        self.services.record.ship_outbox(acting.tenant_id, now)
        for _ in range(count):
            body = {"number": next(_numbers)}
            self.services.record.event(acting.tenant_id, Kind.TOKEN_MINTED, body, now)

    def offer(self) -> list[tuple[str, int]]:
        (acting,) = self.services.tenants()
        states = self.services.anchoring.offer(acting.tenant_id, self.services.clock.now())
        return [(state.state, state.size) for state in states]

    def muniment(self, *arguments: str, **settings: str) -> tuple[int, Any, str]:
        """Run a command on the folder, which no service holds; returns code, JSON and stderr."""
        env = {**os.environ, **{f"MUNIMENT_{name.upper()}": value for name, value in settings.items()}}
        done = forked.run(*arguments, "--data", str(self.base / "data"), "--json", env=env)
        assert done.stdout or done.stderr
        return done.returncode, json.loads(done.stdout or "null"), done.stderr

    def close(self) -> None:
        self.services.close()
        self.end_witness()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    os.umask(0o077)
    made = Place(tmp_path)
    yield made
    made.close()


pytestmark = pytest.mark.process


def test_every_checkpoint_reaches_witness_and_file_by_job_and_by_command(place: Place) -> None:
    place.services.heal()  # as every start does; only a log that was brought up to date is offered
    place.grow(3)
    place.services.jobs.tick("anchors")
    (acting,) = place.services.tenants()
    states = place.services.anchoring.states(acting.log_id)
    assert [state.state for state in states] == [ANCHORED, ANCHORED]
    assert b"muniment_anchor_offers" in place.services.telemetry.metrics_page()[0]
    place.grow(1)
    place.services.close()
    code, said, _ = place.muniment("anchor", anchors=place.anchors)
    assert code == 0
    assert said["statement"] == ""
    assert {item["state"] for item in said["items"]} == {ANCHORED}
    assert {item["size"] for item in said["items"]} == {states[0].size + 1}
    assert "#" not in said["items"][1]["anchor"]
    for arguments, settings in (
        (("--witness", place.witness_vkey), {}),
        ((), {"anchors": place.anchors}),
    ):
        code, said, _ = place.muniment("verify", "--key", place.made.log_key, *arguments, **settings)
        assert (code, said["verdict"], said["anchored"]) == (0, "sound", True)
        assert any("witness witness.example/one cosigned" in note for note in said["logs"][0]["notes"])
    code, said, _ = place.muniment("verify", "--key", place.made.log_key)
    assert (code, said["anchored"]) == (0, False)
    code, said, _ = place.muniment("anchor")
    assert (code, said) == (2, {"items": [], "statement": "unanchored: trusts the operator"})
    code, _, line = place.muniment("anchor", anchors="ftp://x")
    assert (code, line.count("\n")) == (2, 1)
    assert "ANCHORS" in line


@pytest.mark.scenario("L3")
def test_a_log_rewritten_by_its_operator_is_refused_and_found_by_the_auditor(place: Place, tmp_path: Path) -> None:
    place.grow(4)
    assert {state for state, _ in place.offer()} == {ANCHORED}
    kept = tmp_path / "kept.note"
    (acting,) = place.services.tenants()
    kept.write_bytes(place.services.log.publish(acting.tenant_id, place.services.clock.now()))
    data, keys = place.base / "data", place.base / "data.keys"
    pinned = ("--key", place.made.log_key, "--since", str(kept))
    code, said, _ = place.muniment("verify", *pinned)
    assert (code, said["verdict"], said["anchored"]) == (0, "sound", True)

    # The operator has every key: he takes the log back to its first entry and tells another story under the same name.
    place.services.close()
    objects = data / "objects" / acting.log_id
    hot = data / "hot" / acting.log_id
    for path in (objects, hot):
        shutil.rmtree(path)
    place.services = place.open(place.anchors)
    with place.services.database.transaction(acting.tenant_id) as session:
        for table in ("entry", "part_places"):
            session.connection().exec_driver_sql(f"DELETE FROM {table}")
        session.connection().exec_driver_sql("UPDATE log_stream SET position=0")
        session.connection().exec_driver_sql(
            "UPDATE log_state SET size=0, batch_first=NULL, batch_count=0, batch_digest=x'', previous=zeroblob(32),"
            " checkpoint_size=0, checkpoint_digest=x''"
        )
    place.services.close()
    place.services = place.open(place.anchors)
    for more, word in ((3, "rolled back"), (4, "forked")):
        place.grow(more)
        states = place.services.anchoring.offer(acting.tenant_id, place.services.clock.now())
        assert [state.state for state in states] == [REFUSED, REFUSED]
        assert all(word in state.detail for state in states)
    assert keys.is_dir()
    code, said, _ = place.muniment("verify", *pinned)
    assert (code, said["verdict"], said["anchored"]) == (1, "forked", False)
    code, said, _ = place.muniment("verify", "--key", place.made.log_key)
    assert (code, said["verdict"]) == (0, "sound"), [
        one["detail"] for one in said["findings"]
    ]  # which is why the note must be kept, or anchored


@pytest.mark.slow
def test_a_key_is_rotated_with_overlap_and_the_old_pin_still_verifies_everything(place: Place) -> None:
    place.grow(2)
    assert {state for state, _ in place.offer()} == {ANCHORED}
    place.services.close()
    code, said, _ = place.muniment("key", "rotate", "log")
    assert code == 0
    assert said["old"] == [place.made.log_key]
    assert not said["revoked"]
    place.services = place.open(place.anchors)
    place.grow(1)
    assert {state for state, _ in place.offer()} == {ANCHORED}  # the witness knows the old key only
    (acting,) = place.services.tenants()
    note = place.services.log.publish(acting.tenant_id, place.services.clock.now())
    assert len(parse_note(note).signatures) == 2
    for vkey in (place.made.log_key, said["vkey"]):
        assert parse_checkpoint(open_note(note, [verifier_from_vkey(vkey)]).text).size == said["size"] + 2
    place.services.close()
    for vkey in (place.made.log_key, said["vkey"]):
        code, found, _ = place.muniment("verify", "--key", vkey)
        assert (code, found["verdict"]) == (0, "sound"), found
    place.services = place.open()


@pytest.mark.scenario("L3")
@pytest.mark.slow
def test_a_rotation_is_an_entry_that_the_new_key_vouches_for(place: Place) -> None:
    place.grow(2)
    place.services.close()
    code, said, line = place.muniment("key", "rotate", "log", "--revoke")
    assert code == 0, line
    place.services = place.open(place.anchors)
    (acting,) = place.services.tenants()
    evidence = place.services.record.evidence(acting.tenant_id, [said["entry"]], place.services.clock.now())
    (entry,) = evidence.entries
    note = evidence.checkpoint.encode()
    header = verify_entry(entry.header, index=entry.index, inclusion=entry.inclusion, note=note, vkey=said["vkey"])
    assert header.kind == Kind.KEY_ROTATED
    assert entry.index >= said["size"]
    assert place.services.record.log_vkey(acting.tenant_id) == said["vkey"]
    assert [item.key_id for item in parse_note(note).signatures] == [verifier_from_vkey(said["vkey"]).key_id]


@pytest.mark.scenario("L3")
@pytest.mark.slow
def test_a_checkpoint_that_only_the_revoked_key_signed_fails_verification(place: Place) -> None:
    place.grow(3)
    place.services.close()
    code, said, _ = place.muniment("key", "rotate", "log", "--revoke")
    assert code == 0
    for vkey in (place.made.log_key, said["vkey"]):
        code, found, _ = place.muniment("verify", "--key", vkey)
        assert (code, found["verdict"]) == (0, "sound"), found
    # The thief of the old key signs the true tree again, at the newest size; who holds the bucket puts it there.
    place.services = place.open()
    (acting,) = place.services.tenants()
    note = place.services.log.publish(acting.tenant_id, place.services.clock.now())
    old = Ed25519Signer.from_seed(place.origin, place.services.keks.signing_seed(place.origin))
    size = parse_checkpoint(parse_note(note).text).size
    place.services.close()
    (stored,) = (place.base / "data" / "objects" / acting.log_id / "checkpoint").rglob(f"{size:020d}*")
    target = stored if stored.is_file() else next(path for path in stored.rglob("*") if path.is_file())
    target.chmod(0o600)
    content = target.read_bytes()
    assert note in content
    target.write_bytes(content.replace(note, sign_note(parse_note(note).text, [old])))
    for vkey in (place.made.log_key, said["vkey"]):
        code, found, _ = place.muniment("verify", "--key", vkey)
        assert (code, found["verdict"]) == (1, "altered"), found
        assert any("revoked" in finding["detail"] for finding in found["findings"])
    target.write_bytes(content)
    place.services = place.open()


@pytest.mark.slow
def test_a_certificate_key_is_rotated_and_the_old_one_stays_in_the_list(place: Place) -> None:
    place.grow(1)
    place.services.close()
    code, said, _ = place.muniment("key", "rotate", "certificate")
    assert code == 0
    assert said["old"] == [place.made.certificate_key]
    place.services = place.open()
    (acting,) = place.services.tenants()
    signer = place.services.certificate_signer(acting.log_id)
    assert signer.vkey == said["vkey"] != place.made.certificate_key
    keys = place.services.certificate_keys(acting.log_id)
    assert [(key.vkey, key.state) for key in keys] == [(place.made.certificate_key, "ended"), (said["vkey"], "active")]
    note = sign_note(format_checkpoint("x", 1, bytes(32)), [signer])
    assert len(open_note(note, [verifier_from_vkey(key.vkey) for key in keys]).signatures) == 1


@pytest.mark.slow
def test_a_rotation_without_its_entry_is_finished_by_the_next_try(place: Place) -> None:
    place.grow(1)
    (acting,) = place.services.tenants()
    place.services.log.rotate_key(acting.tenant_id, place.services.clock.now())  # and the process dies here
    place.services.close()
    code, said, _ = place.muniment("key", "rotate", "log")
    assert code == 0
    place.services = place.open()
    assert [key.vkey for key in place.services.log.keys(acting.tenant_id)] == [place.made.log_key, said["vkey"]]
    place.services.close()
    code, again, _ = place.muniment("key", "rotate", "log")
    assert code == 0
    assert again["old"] == [place.made.log_key, said["vkey"]]
    place.services = place.open()


def test_over_http_only_an_admin_rotates_and_everybody_reads(running: Any, desk: Any) -> None:
    desk.call("writer", "GET", "/v1/tokens/self")
    listed = desk.call("auditor", "GET", "/v1/log/keys")["items"]
    assert [(item["use"], item["vkey"], item["state"]) for item in listed] == [
        ("log", desk.log_key, "active"),
        ("certificate", desk.certificate_key, "active"),
    ]
    for principal in ("auditor", "writer", "legal", "platform"):
        with pytest.raises(ApiProblem) as refused:
            desk.call(principal, "POST", "/v1/log/keys", {"use": "log"})
        assert refused.value.status == 403
    made = desk.call("admin", "POST", "/v1/log/keys", {"use": "log", "revoke": True})
    assert made["old"] == [desk.log_key]
    certificate = desk.call("admin", "POST", "/v1/log/keys", {"use": "certificate"})
    listed = desk.call("auditor", "GET", "/v1/log/keys")["items"]
    assert [(item["use"], item["vkey"], item["state"]) for item in listed] == [
        ("log", made["vkey"], "active"),
        ("log", desk.log_key, "revoked"),
        ("certificate", certificate["vkey"], "active"),
        ("certificate", desk.certificate_key, "ended"),
    ]
    assert listed[1]["until_size"] == made["size"]
    with Client(running.url, desk.tokens["auditor"], timeout=60) as client:
        assert client.request("GET", "/v1/log/anchors") == {
            "items": [],
            "statement": "unanchored: trusts the operator",
            "next_cursor": None,
        }
    with pytest.raises(ApiProblem) as refused:
        desk.call("admin", "POST", "/v1/log/keys", {"use": "root"})
    assert refused.value.status == 422
