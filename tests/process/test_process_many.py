"""Many server processes on one log: PostgreSQL and S3, callers at all of them, and the process that leads dies.

Two processes and 8 callers in `make test`; 8 and 64, with the process that leads killed 24 times, at full length.
"""

from __future__ import annotations

import itertools
import json
import secrets
import signal
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
import sqlalchemy as sa
from botocore.config import Config

from audit.findings import Verdict
from audit.verify import verify
from ledger.batches import decode_batch
from ledger.checkpoint import parse_checkpoint, verify_note
from ledger.entry import decode_header, uuid7
from ledger.merkle import verify_inclusion
from ledger.s3 import S3Store, open_s3
from ledger.signing import verifier_from_vkey
from muniment.errors import ApiProblem, TransportError
from muniment.registry import Client
from tests.process.serving import Child, Nursery

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.s3, pytest.mark.timeout(900)]

# The database itself notes which process takes the lease: each connection carries its process's number.
_NOTE_LEADERS = """
CREATE TABLE leader (at timestamptz NOT NULL DEFAULT clock_timestamp(), fence bigint NOT NULL, server text NOT NULL);
CREATE FUNCTION note_leader() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF TG_OP = 'INSERT' OR NEW.fence > OLD.fence THEN
    INSERT INTO public.leader (fence, server) VALUES (NEW.fence, current_setting('muniment.server'));
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER note_leader AFTER INSERT OR UPDATE ON log_lease FOR EACH ROW EXECUTE FUNCTION note_leader();
"""


@dataclass
class Fleet:
    """Server processes with a folder each, over one database, one bucket and one key folder."""

    base: Path
    nursery: Nursery
    made: dict[str, Any]
    engine: sa.Engine
    locked: S3Store
    ports: list[int]
    servers: list[Child] = field(default_factory=list)
    acknowledged: dict[str, int] = field(default_factory=dict)
    sent: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    faults: list[str] = field(default_factory=list)
    slowest: float = 0.0

    @property
    def log_id(self) -> str:
        name: str = self.made["log_key"].split("+")[0]
        return name.removeprefix("muniment/")

    def url(self, number: int) -> str:
        return f"http://127.0.0.1:{self.ports[number]}"

    def client(self, number: int, principal: str = "writer") -> Client:
        return Client(self.url(number), self.made["tokens"][principal], timeout=180)

    def start(self, number: int) -> Child:
        return self.nursery.run(
            ["serve", "--data", str(self.base / f"data-{number}"), "--port", str(self.ports[number])],
            {"PGOPTIONS": f"-c muniment.server={number}"},
        )

    def leader(self) -> int:
        """The number of the process that took the lease last."""
        with self.engine.connect() as connection:
            query = sa.text("SELECT server FROM leader ORDER BY fence DESC LIMIT 1")
            return int(connection.execute(query).scalar_one())

    def fence(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(sa.text("SELECT fence FROM log_lease")).scalar_one())

    def is_ready(self, number: int) -> bool:
        client = self.client(number)
        try:
            client.request("GET", "/readyz")
        except (ApiProblem, TransportError):
            return False
        finally:
            client.close()
        return True

    def write(self, writer: int, calls: int | None, stopping: threading.Event) -> None:
        """Post in one stream, call after call, each repeated at the next process until it is acknowledged."""
        clients = [self.client((writer + offset) % len(self.ports)) for offset in range(len(self.ports))]
        stream = f"writer-{writer}"
        for number in itertools.count():
            if stopping.is_set() or number == calls:
                break
            entries = [_entry(stream, number) for _ in range(1 + number % 3)]
            self.sent[stream] += [entry["id"] for entry in entries]
            begun = time.monotonic()
            if not self._post(clients, entries):
                return
            self.slowest = max(self.slowest, time.monotonic() - begun)
        for client in clients:
            client.close()

    def _post(self, clients: list[Client], entries: list[dict[str, Any]]) -> bool:
        for client in itertools.cycle(clients):
            try:
                results = client.request("POST", "/v1/record/entries", {"entries": entries})["results"]
            except (TransportError, OSError):
                time.sleep(0.02)
                continue
            except ApiProblem as problem:
                if problem.status == 503:
                    time.sleep(0.05)
                    continue
                self.faults.append(f"{problem.status} {problem}")
                return False
            if any(result["status"] not in ("stored", "duplicate") for result in results):
                self.faults.append(json.dumps(results[0]))
                return False
            self.acknowledged |= {result["id"]: result["index"] for result in results}
            return True
        return False

    def check(self) -> None:
        """One unbroken log: no acknowledged entry lost, none twice, every stream in its caller's order."""
        ids: list[str] = []
        positions: dict[str, list[str]] = defaultdict(list)
        for key in self.locked.list(f"{self.log_id}/batch/"):
            batch = decode_batch(self.locked.get(key))
            assert batch.first == len(ids)
            for raw in batch.headers:
                header = decode_header(raw)
                assert header.position == len(positions[header.stream])
                positions[header.stream].append(header.id)
                ids.append(header.id)
        assert len(set(ids)) == len(ids)
        places = {entry_id: index for index, entry_id in enumerate(ids)}
        assert {entry_id: places.get(entry_id) for entry_id in self.acknowledged} == self.acknowledged
        ordered = {tuple(found) for found in positions.values()}
        for stream, sent in self.sent.items():
            assert tuple(sent) in ordered, stream
        report = verify(self.locked, log_id=self.log_id, keys=[self.made["log_key"]])
        assert report.verdict is Verdict.SOUND, report.findings[:3]


def _entry(stream: str, number: int) -> dict[str, Any]:
    now = datetime.now(UTC)
    return {
        "id": uuid7(now),
        "stream": stream,
        "kind": "turn.user",
        "at": now.isoformat(),
        "data_class": "transcript",
        "subjects": [f"user:{stream}"],
        "body": {"n": number, "pad": "x" * 300},
    }


def _wait(holds: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.fixture
def fleet(
    tmp_path: Path, s3_service: Any, postgres_database: str, monkeypatch: pytest.MonkeyPatch, full_length: bool
) -> Iterator[Fleet]:
    name, count = secrets.token_hex(4), 8 if full_length else 2
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_service.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_service.secret_key)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3 = boto3.client(
        "s3", endpoint_url=s3_service.endpoint, config=Config(request_checksum_calculation="when_required")
    )
    s3.create_bucket(Bucket=f"locked-{name}", ObjectLockEnabledForBucket=True)
    s3.create_bucket(Bucket=f"hot-{name}")
    s3.close()
    settings = {
        "MUNIMENT_DATABASE_URL": postgres_database,
        "MUNIMENT_OBJECT_STORE": f"s3://locked-{name}/m",
        "MUNIMENT_HOT_STORE": f"s3://hot-{name}/m",
        "MUNIMENT_S3_ENDPOINT_URL": s3_service.endpoint,
        "MUNIMENT_KMS": f"file://{tmp_path}/keys",
        "MUNIMENT_LOCK_UNIT": "second",
    }
    nursery = Nursery(tmp_path, settings)
    answers = []
    for number in range(count):
        made = nursery.run(["init", "--data", str(tmp_path / f"data-{number}"), "--json"])
        made.wait()
        answers.append(made.out.read_text())
    ports = []
    for _ in range(count):
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports.append(free.getsockname()[1])
    engine = sa.create_engine(postgres_database)
    with engine.begin() as connection:
        connection.execute(sa.text(_NOTE_LEADERS))
    begun = Fleet(
        base=tmp_path,
        nursery=nursery,
        made=json.loads(answers[0].splitlines()[0]),
        engine=engine,
        locked=open_s3(settings["MUNIMENT_OBJECT_STORE"], endpoint_url=s3_service.endpoint, locked=True),
        ports=ports,
    )
    for number in range(count):
        begun.servers.append(begun.start(number))
        assert begun.servers[-1].wait_ready(), begun.servers[-1].out.read_text()[-3000:]
    yield begun
    nursery.close()
    begun.locked.close()
    engine.dispose()


@pytest.mark.scenario("L7", "L8", "L21", "L34")
@pytest.mark.timeout(1800)
def test_the_leading_process_is_killed_and_stopped_under_load_and_the_log_stays_one(
    fleet: Fleet, full_length: bool
) -> None:
    stopping = threading.Event()
    writers = [
        threading.Thread(target=fleet.write, args=(number, None, stopping), daemon=True)
        for number in range(64 if full_length else 8)
    ]
    for writer in writers:
        writer.start()
    _wait(lambda: len(fleet.acknowledged) > 20)
    assert all(fleet.is_ready(number) for number in range(len(fleet.servers)))
    for _ in range(24 if full_length else 1):
        fence, leader = fleet.fence(), fleet.leader()
        fleet.servers[leader].kill()
        fleet.servers[leader].wait()
        begun = time.monotonic()
        _wait(lambda fence=fence: fleet.fence() > fence, 20)  # type: ignore[misc]  # bound early
        assert time.monotonic() - begun < 9
        assert fleet.leader() != leader
        fleet.servers[leader] = fleet.start(leader)
        assert fleet.servers[leader].wait_ready()
        known = len(fleet.acknowledged)
        _wait(lambda known=known: len(fleet.acknowledged) > known + 20 or bool(fleet.faults))  # type: ignore[misc]
        assert not fleet.faults, fleet.faults[:3]
    # The leader is stopped longer than a lease lasts: it wakes up believing that it leads.
    for _ in range(4 if full_length else 1):
        fence, leader = fleet.fence(), fleet.leader()
        fleet.servers[leader].kill(signal.SIGSTOP)
        _wait(lambda fence=fence: fleet.fence() > fence, 20)  # type: ignore[misc]  # bound early
        fleet.servers[leader].kill(signal.SIGCONT)
        assert fleet.leader() != leader
    known = len(fleet.acknowledged)
    _wait(lambda: len(fleet.acknowledged) > known + 20 or bool(fleet.faults))
    stopping.set()
    for writer in writers:
        writer.join(60)
    print(len(fleet.acknowledged), "acknowledged, fence", fleet.fence(), f"slowest {fleet.slowest:.1f} s")
    assert not fleet.faults, fleet.faults[:3]
    with closing(fleet.client(0, "auditor")) as auditor:
        _patiently(lambda: auditor.send("GET", "/v1/log/checkpoint"))
    fleet.check()


@pytest.mark.slow
def test_every_process_answers_and_proves_whichever_leads(fleet: Fleet) -> None:
    for number in range(len(fleet.servers)):
        entry = _entry("conv", number)
        with closing(fleet.client(number)) as writer:
            (result,) = writer.request("POST", "/v1/record/entries", {"entries": [entry]})["results"]
        assert result["status"] == "stored"
        for asked in range(len(fleet.servers)):
            with closing(fleet.client(asked, "auditor")) as auditor:
                _require_proven(fleet, auditor, entry["id"], result["index"])


def _require_proven(fleet: Fleet, auditor: Client, entry_id: str, index: int) -> None:
    verifier = verifier_from_vkey(fleet.made["log_key"])
    proof = _patiently(lambda: auditor.request("GET", f"/v1/record/entries/{entry_id}/proof"))
    head = parse_checkpoint(verify_note(proof["checkpoint"].encode(), [verifier]))
    path = [bytes.fromhex(node) for node in proof["inclusion"]]
    verify_inclusion(index, head.size, bytes.fromhex(proof["leaf_hash"]), path, head.root)
    raw = auditor.send("GET", f"/v1/record/entries/{entry_id}", None, {"X-Purpose": "dispute;case=1"}).body
    assert json.loads(raw)["index"] == index
    note = _patiently(lambda: auditor.send("GET", "/v1/log/checkpoint")).body
    assert parse_checkpoint(verify_note(note, [verifier])).size > index


def _patiently(ask: Callable[[], Any]) -> Any:
    """Ask again as `Retry-After` says while the checkpoint is being extended."""
    for _ in range(30):
        try:
            return ask()
        except ApiProblem as problem:
            if problem.status != 503:
                raise
            time.sleep(1)
    return ask()


def _erase(fleet: Fleet, subject: str) -> tuple[str, Client]:
    """Take a request up to its approval, at process 0."""
    desk, second = fleet.client(0, "legal"), fleet.client(0, "legal2")
    asked = {
        "right": "erasure",
        "subjects": [subject],
        "regulation": "gdpr",
        "jurisdiction": "DE",
        "timezone": "Europe/Berlin",
        "received_at": datetime.now(UTC).isoformat(),
        "channel": "e-mail",
    }
    path = f"/v1/requests/{desk.request('POST', '/v1/requests', asked)['id']}"
    known = {"identifier": subject, "method": "login", "evidence": "session of today"}
    desk.request("POST", f"{path}/verify-identity", known)
    planned = desk.request("POST", f"{path}/plan")
    second.request("POST", f"{path}/approve", {"plan_hash": planned["plan_hash"]})
    second.close()
    return path, desk


def _status(auditor: Client, entry_id: str) -> int:
    try:
        auditor.send("GET", f"/v1/record/entries/{entry_id}", None, {"X-Purpose": "dispute;case=1"})
    except ApiProblem as problem:
        return problem.status
    return 200


@pytest.mark.slow
@pytest.mark.scenario("L31")
def test_an_erased_entry_is_gone_from_the_warm_cache_of_every_process(fleet: Fleet) -> None:
    entry = _entry("ada", 1)
    with closing(fleet.client(0)) as writer:
        (result,) = writer.request("POST", "/v1/record/entries", {"entries": [entry]})["results"]
    assert result["status"] == "stored"
    auditors = [fleet.client(number, "auditor") for number in range(len(fleet.servers))]
    assert [_status(auditor, entry["id"]) for auditor in auditors] == [200] * len(auditors)
    path, desk = _erase(fleet, "user:ada")
    destroyed = completed = None
    begun = time.monotonic()
    while completed is None:
        assert time.monotonic() - begun < 60, desk.request("GET", path)
        answers = {_status(auditor, entry["id"]) for auditor in auditors}
        state = desk.request("GET", path)["state"]
        now = time.monotonic()
        destroyed = now if destroyed is None and 410 in answers else destroyed
        completed = now if state.startswith("completed") else None
    # Once the request is through no process serves it from memory, long before a cached key ends by itself.
    assert [_status(auditor, entry["id"]) for auditor in auditors] == [410] * len(auditors)
    assert destroyed is not None
    print(f"all processes empty {completed - destroyed:.1f} s after the first one")
    assert completed - destroyed < 30
    with fleet.engine.connect() as connection:
        behind = connection.execute(
            sa.text("SELECT count(*) FROM vault_process WHERE applied < (SELECT counter FROM vault_cache_fence)")
        ).scalar_one()
    assert behind == 0
    for client in (desk, *auditors):
        client.close()
