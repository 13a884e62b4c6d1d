"""How soon what was acknowledged is under a signed checkpoint, and how long an acknowledgement takes on S3.

Two services of their own, in turn in each round, driven over HTTP by callers that post calls of 100 entries:

- embedded      SQLite and files; the aim: a checkpoint in the bucket ≤ 1.5 s after the last acknowledgement
- servers       PostgreSQL and S3 with Object Lock, two processes on one log; the aim: ≤ 12 s, and the 99th percentile
                of an acknowledgement ≤ 2 × the flush interval (5 s)

A checkpoint counts from the moment its object lies in the bucket, written by the service's own job: nobody asks for it.
Run: `python -m bench.checkpoint [--rounds N] [--seconds N] [--callers N]`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from audit.reader import FolderReader, Reader
from bench.ingest import entries_of, free_port, process
from infra.services import postgres, seaweedfs
from ledger.s3 import open_s3
from muniment.registry import Client

CALL = 100
FLUSH_SECONDS = 5.0
AIMS = {"embedded": 1.5, "servers": 12.0}


@dataclass
class Served:
    """A running service: where it listens, a writer's token, and its bucket."""

    name: str
    ports: Sequence[int]
    token: str
    log_id: str
    bucket: Reader
    acknowledged: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def signed(self) -> int:
        """The size of the newest checkpoint in the bucket."""
        last = ""
        for key in self.bucket.list(f"{self.log_id}/checkpoint/"):
            last = key
        return int(last.rpartition("/")[2]) if last else 0

    def load(self, seconds: float, callers: int) -> int:
        """Let callers post for some seconds; returns the size of the log at the last acknowledgement."""
        ends, top, lock = time.monotonic() + seconds, 0, threading.Lock()

        def call(number: int) -> None:
            nonlocal top
            generator = random.Random(number)
            client = Client(f"http://127.0.0.1:{self.ports[number % len(self.ports)]}", self.token, timeout=60)
            while time.monotonic() < ends:
                entries = entries_of(CALL, generator)
                begun = time.perf_counter()
                results = client.request("POST", "/v1/record/entries", {"entries": entries})["results"]
                took = time.perf_counter() - begun
                with lock:
                    self.acknowledged.append(took)
                    top = max(top, 1 + max(int(one["index"]) for one in results))
            client.close()

        threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return top

    def round(self, seconds: float, callers: int) -> None:
        """Measure one round."""
        size = self.load(seconds, callers)
        begun = time.perf_counter()
        while self.signed() < size:
            time.sleep(0.02)
        self.waits.append(time.perf_counter() - begun)


def initialise(data: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Make a data folder; returns what `muniment init` printed."""
    program = str(Path(sys.executable).with_name("muniment"))
    made = subprocess.run(
        [program, "init", "--data", str(data), "--json"],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    found: dict[str, Any] = json.loads(made.stdout)
    return found


@contextlib.contextmanager
def serving(data: Path) -> Iterator[int]:
    """Run a server on a folder; yields its port."""
    program, port = str(Path(sys.executable).with_name("muniment")), free_port()
    with process([program, "serve", "--data", str(data), "--port", str(port)], port):
        yield port


@contextlib.contextmanager
def embedded(folder: Path) -> Iterator[Served]:
    """Yield a service on embedded stores."""
    made = initialise(folder / "embedded", {})
    with serving(folder / "embedded") as port:
        yield Served(
            name="embedded",
            ports=[port],
            token=made["tokens"]["writer"],
            log_id=made["log_key"].split("+")[0].rpartition("/")[2],
            bucket=FolderReader(folder / "embedded" / "objects"),
        )


@contextlib.contextmanager
def servers(folder: Path) -> Iterator[Served]:
    """Yield two processes on one PostgreSQL and one S3."""
    postgres.DATABASE_SETTINGS.update({"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"})
    with contextlib.ExitStack() as stack:
        s3 = stack.enter_context(seaweedfs.running(folder / "s3"))
        url = postgres.create_database(stack.enter_context(postgres.running(folder / "postgres")), "record")
        name = secrets.token_hex(4)
        settings = {
            "AWS_ACCESS_KEY_ID": s3.access_key,
            "AWS_SECRET_ACCESS_KEY": s3.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
            "MUNIMENT_DATABASE_URL": url,
            "MUNIMENT_OBJECT_STORE": f"s3://locked-{name}/m",
            "MUNIMENT_HOT_STORE": f"s3://hot-{name}/m",
            "MUNIMENT_S3_ENDPOINT_URL": s3.endpoint,
            "MUNIMENT_KMS": f"file://{folder}/keys",
            "MUNIMENT_LOCK_UNIT": "second",
        }
        os.environ.update(settings)
        client = boto3.client(
            "s3", endpoint_url=s3.endpoint, config=Config(request_checksum_calculation="when_required")
        )
        client.create_bucket(Bucket=f"locked-{name}", ObjectLockEnabledForBucket=True)
        client.create_bucket(Bucket=f"hot-{name}")
        client.close()
        made, _ = (initialise(folder / f"server-{number}", settings) for number in range(2))
        ports = [stack.enter_context(serving(folder / f"server-{number}")) for number in range(2)]
        bucket = open_s3(settings["MUNIMENT_OBJECT_STORE"], endpoint_url=s3.endpoint, locked=True)
        stack.callback(bucket.close)
        yield Served(
            name="servers",
            ports=ports,
            token=made["tokens"]["writer"],
            log_id=made["log_key"].split("+")[0].rpartition("/")[2],
            bucket=bucket,
        )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--callers", type=int, default=8)
    chosen = parser.parse_args()
    os.umask(0o077)
    # The embedded service starts first: the other's settings stand in the environment.
    with (
        tempfile.TemporaryDirectory(prefix="muniment-bench-") as name,
        embedded(Path(name)) as one,
        servers(Path(name)) as two,
    ):
        for _ in range(chosen.rounds):
            for served in (one, two):
                served.round(chosen.seconds, chosen.callers)
        print(f"{chosen.rounds} rounds of {chosen.seconds:.0f} s, {chosen.callers} callers, calls of {CALL}")
        for served in (one, two):
            report(served)


def report(served: Served) -> None:
    """Print the figures of one service."""
    aim = AIMS[served.name]
    middle, longest = statistics.median(served.waits), max(served.waits)
    print(
        f"{served.name}: checkpoint {middle:.2f} s after the last acknowledgement (longest {longest:.2f} s), "
        f"{middle / aim:.2f} × the aim of {aim} s; load {os.getloadavg()[0]:.1f}"
    )
    tail = percentile(served.acknowledged, 0.99)
    print(
        f"  acknowledgement: median {statistics.median(served.acknowledged) * 1000:.0f} ms, p99 {tail * 1000:.0f} ms, "
        f"{tail / (2 * FLUSH_SECONDS):.3f} × two flush intervals ({len(served.acknowledged)} calls)"
    )


if __name__ == "__main__":
    main()
