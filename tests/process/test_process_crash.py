"""kill -9 of a real server under load, again and again: nothing acknowledged is lost, nothing is there twice.

Twenty times in `make test`, 300 at full length. The server is killed at random times, during its start, when a named
object appears in its folders, and (where strace may attach) on entering the nth fsync, link, rename or database write
of a thread. Callers go on all the while and send what was not acknowledged again, under the same ids.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from audit.findings import Verdict
from audit.reader import FolderReader
from audit.verify import verify
from ledger.batches import decode_batch
from ledger.entry import decode_header, uuid7
from ledger.storing import ASIDE
from muniment.errors import ApiProblem, TransportError
from muniment.registry import Client
from tests.process.serving import Child, Nursery

pytestmark = pytest.mark.process
_OBJECTS = ("objects/{log}/payload", "hot/{log}/index", "objects/{log}/batch", "objects/{log}/checkpoint")
_CALLS = ("link,linkat", "fsync,fdatasync", "pwrite64", "rename,renameat,renameat2")


@dataclass
class Campaign:
    """A data folder, its server and those who call it."""

    folder: Path
    nursery: Nursery
    made: dict[str, Any]
    port: int
    random: random.Random
    server: Child | None = None
    acknowledged: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    killed: Counter[str] = field(default_factory=Counter)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log_id(self) -> str:
        name: str = self.made["log_key"].split("+")[0]
        return name.removeprefix("muniment/")

    def start(self) -> Child:
        self.server = self.nursery.run(["serve", "--data", str(self.folder), "--port", str(self.port)])
        return self.server

    def write(self, number: int) -> None:
        """Post call after call until told to stop; each is repeated until it is acknowledged."""
        client = Client(self.url, self.made["tokens"]["writer"], timeout=20)
        count = calls = 0
        while not self.stopping.is_set():
            # A call with many entries stores its payload while the batch is made; one comes to every writer soon.
            size = ASIDE + 10 if calls % 15 == 5 + number else 1 + count % 7
            entries = [self.entry(f"writer-{number}", count + offset) for offset in range(size)]
            count += len(entries)
            calls += 1
            self.post(client, entries)
        client.close()

    @staticmethod
    def entry(stream: str, number: int) -> dict[str, Any]:
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

    def post(self, client: Client, entries: list[dict[str, Any]]) -> None:
        while True:
            try:
                results = client.request("POST", "/v1/record/entries", {"entries": entries})["results"]
            except (TransportError, OSError):
                time.sleep(0.01)
                continue
            except ApiProblem as problem:
                if problem.status != 503:
                    self.faults.append(f"{problem.status} {problem}")
                    return
                time.sleep(0.02)
                continue
            for sent, result in zip(entries, results, strict=True):
                if result["status"] not in ("stored", "duplicate") or result["id"] != sent["id"]:
                    self.faults.append(str(result))
                    return
                self.acknowledged[result["id"]] = result["index"]
            return

    def ask_for_checkpoints(self) -> None:
        client = Client(self.url, self.made["tokens"]["auditor"], timeout=20)
        while not self.stopping.is_set():
            with contextlib.suppress(TransportError, ApiProblem, OSError):
                client.send("GET", "/v1/log/checkpoint")
            time.sleep(0.05)
        client.close()

    # ── ways to die ──

    def die_by_surprise(self) -> str:
        assert self.server is not None
        time.sleep(self.random.uniform(0.01, 0.4))
        self.server.kill()
        return "at a random time"

    def die_while_starting(self) -> str:
        assert self.server is not None
        self.server.kill()
        self.server.wait()
        child = self.start()
        time.sleep(self.random.uniform(0.0, 0.6))
        child.kill()
        return "while starting"

    def die_at_object(self, template: str) -> str:
        assert self.server is not None
        folder = self.folder / template.format(log=self.log_id)
        before = _newest(folder)
        end = time.monotonic() + 3
        while time.monotonic() < end and _newest(folder) == before:
            pass
        self.server.kill()
        return f"at a new {folder.name}"

    def die_at_call(self, names: str) -> str:
        assert self.server is not None
        nth = self.random.randint(1, 6)
        inject = ["-e", f"trace={names}", "-e", f"inject={names}:signal=KILL:when={nth}"]
        tracer = subprocess.Popen(
            ["strace", "-f", "-q", "-o", "/dev/null", *inject, "-p", str(self.server.pid)], stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + 4
        while self.server.alive and time.monotonic() < end and tracer.poll() is None:
            time.sleep(0.01)
        reached = not self.server.alive
        self.server.kill()
        tracer.kill()
        tracer.wait()
        return f"on entering {names.partition(',')[0]}" if reached else "at a random time"

    def ways(self) -> list[Callable[[], str]]:
        found: list[Callable[[], str]] = [self.die_by_surprise, self.die_while_starting]
        found += [lambda name=name: self.die_at_object(name) for name in _OBJECTS]  # type: ignore[misc]  # bound early
        if shutil.which("strace"):
            found += [lambda names=names: self.die_at_call(names) for names in _CALLS]  # type: ignore[misc]  # as above
        return found


def _newest(folder: Path) -> str:
    """The last name below a folder: keys sort by time or by index."""
    name = ""
    with contextlib.suppress(FileNotFoundError):
        while True:
            names = [item.name for item in os.scandir(folder) if not item.name.startswith(".")]
            if not names:
                return name
            name = max(names)
            folder /= name
            if not folder.is_dir():
                return name
    return name


@pytest.fixture
def campaign(tmp_path: Path) -> Iterator[Campaign]:
    nursery = Nursery(tmp_path)
    made = nursery.run(["init", "--data", str(tmp_path / "data"), "--json"])
    made.wait(60)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    begun = Campaign(
        folder=tmp_path / "data",
        nursery=nursery,
        made=json.loads(made.out.read_text().splitlines()[0]),
        port=port,
        random=random.Random(20261129),
    )
    yield begun
    begun.stopping.set()
    nursery.close()


@pytest.mark.scenario("L9", "L17", "L28", "L34", "L37", "L39")
@pytest.mark.timeout(1800)
def test_a_server_killed_again_and_again_under_load_loses_nothing_and_doubles_nothing(
    campaign: Campaign, full_length: bool
) -> None:
    kills, enough = (300, 10) if full_length else (20, 0)
    campaign.start().wait_ready()
    threads = [threading.Thread(target=campaign.write, args=(number,), daemon=True) for number in range(4)]
    threads.append(threading.Thread(target=campaign.ask_for_checkpoints, daemon=True))
    for thread in threads:
        thread.start()
    # Before the first checkpoint nothing says what the log should be, and an audit says so.
    first = campaign.folder / f"objects/{campaign.log_id}/checkpoint"
    _wait(lambda: len(campaign.acknowledged) > 0 and first.is_dir())
    ways = campaign.ways()
    for number in range(kills):
        known = len(campaign.acknowledged)
        campaign.killed[ways[number % len(ways)]()] += 1
        assert campaign.server is not None
        campaign.server.wait()
        _require_sound(campaign)
        assert campaign.start().wait_ready(), campaign.server.out.read_text()[-2000:]
        _wait(lambda known=known: len(campaign.acknowledged) > known + enough or bool(campaign.faults))  # type: ignore[misc]
        assert not campaign.faults, campaign.faults[:3]
    campaign.stopping.set()
    for thread in threads:
        thread.join(30)
    _require_sound(campaign, hot=True)
    _require_readable(campaign)
    print(dict(campaign.killed), len(campaign.acknowledged))
    assert len(campaign.killed) >= 5
    assert not campaign.faults


def _wait(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "the callers wait in vain"
        time.sleep(0.005)


def _require_sound(campaign: Campaign, *, hot: bool = False) -> None:
    """The folder as the dead server left it: every acknowledged entry has its index, no id is there twice."""
    acknowledged = dict(campaign.acknowledged)
    reader = FolderReader(campaign.folder / "objects")
    indexes: dict[str, int] = {}
    for key in reader.list(f"{campaign.log_id}/batch/"):
        batch = decode_batch(reader.get(key))
        assert batch.first == len(indexes)
        for offset, raw in enumerate(batch.headers):
            entry_id = decode_header(raw).id
            assert entry_id not in indexes
            indexes[entry_id] = batch.first + offset
    assert {entry_id: indexes.get(entry_id) for entry_id in acknowledged} == acknowledged
    report = verify(
        reader,
        log_id=campaign.log_id,
        keys=[campaign.made["log_key"]],
        hot=FolderReader(campaign.folder / "hot") if hot else None,
    )
    assert report.verdict is Verdict.SOUND, report.findings[:3]


def _require_readable(campaign: Campaign) -> None:
    client = Client(campaign.url, campaign.made["tokens"]["auditor"], timeout=20)
    for entry_id in campaign.random.sample(sorted(campaign.acknowledged), 20):
        answer = client.send("GET", f"/v1/record/entries/{entry_id}", None, {"X-Purpose": "dispute;case=1"})
        found = json.loads(answer.body)
        assert found["index"] == campaign.acknowledged[entry_id]
        assert '"pad":"xxx' in json.dumps(found, separators=(",", ":"))
        proof = client.request("GET", f"/v1/record/entries/{entry_id}/proof")
        assert proof["index"] == campaign.acknowledged[entry_id]
    client.close()
