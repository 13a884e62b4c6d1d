"""kill -9 at each row of the crash table, at the very call: what the dead server left is taken up, once and whole.

`strace` kills the server as it enters the call that makes an object or a write durable: it is there, nobody was told.
Half the rows in `make test`, all at full length.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from audit.findings import Verdict
from audit.reader import FolderReader
from audit.verify import verify
from ledger.batches import decode_batch
from ledger.entry import decode_header
from ledger.tiles import TILE_WIDTH
from muniment.errors import ApiProblem, TransportError
from muniment.registry import Client
from tests.process.serving import Child, Nursery
from tests.process.test_process_record import entry

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

ROWS = [
    pytest.param("objects/{log}/payload/none", "fsync", id="payload stored, in no batch"),
    pytest.param("hot/{log}/index", "fsync", id="lines stored, in no batch", marks=pytest.mark.slow),
    pytest.param("objects/{log}/batch", "fsync", id="batch stored, no index rows"),
    pytest.param("muniment.db-wal", "pwrite64", id="index rows not committed", marks=pytest.mark.slow),
    pytest.param("hot/{log}/tile/0", "fsync", id="between tiles"),
    pytest.param("objects/{log}/checkpoint", "fsync", id="checkpoint stored, pointer old", marks=pytest.mark.slow),
    pytest.param("hot/{log}", "fsync", id="pointer set, nobody told", marks=pytest.mark.slow),
]


class Server:
    """A service with more than one tile of entries, that can be killed and started again."""

    def __init__(self, base: Path) -> None:
        self.data, self.trace, self.nursery = base / "data", base / "trace", Nursery(base)
        made = self.nursery.run(["init", "--data", str(self.data), "--json"])
        made.wait(60)
        self.made: dict[str, Any] = json.loads(made.out.read_text().splitlines()[0])
        self.log_id = str(self.made["log_key"]).split("+")[0].rpartition("/")[2]
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.child = self.start()

    def start(self) -> Child:
        self.child = self.nursery.run(["serve", "--data", str(self.data), "--port", str(self.port)])
        assert self.child.wait_ready(), self.child.out.read_text()[-2000:]
        return self.child

    def client(self, principal: str) -> Client:
        return Client(f"http://127.0.0.1:{self.port}", self.made["tokens"][principal], timeout=30)

    def send(self, entries: list[dict[str, Any]]) -> list[tuple[str, int]]:
        with closing(self.client("writer")) as writer:
            results = writer.request("POST", "/v1/record/entries", {"entries": entries})["results"]
        return [(one["status"], one["index"]) for one in results]

    def publish(self) -> None:
        with closing(self.client("auditor")) as auditor:
            auditor.send("GET", "/v1/log/checkpoint")

    def die_at(self, place: str, call: str) -> subprocess.Popen[bytes]:
        """Have the server killed when it next enters a call about a file or folder of its own."""
        path = self.data / place.format(log=self.log_id)
        assert path.exists(), path
        tracer = subprocess.Popen(
            ["strace", "-f", "-q", "-o", str(self.trace), "-P", str(path), "-e", f"trace={call}",
             "-e", f"inject={call}:signal=KILL:when=1", "-p", str(self.child.pid)],
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(0.5)
        # What the server does by itself may have come to the call already.
        assert tracer.poll() is None or not self.child.alive, "strace may not attach here"
        return tracer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed, which kills a server at a call")
    made = Server(tmp_path)
    yield made
    made.nursery.close()


@pytest.mark.scenario("L9", "L17", "L20", "L28")
@pytest.mark.parametrize(("place", "call"), ROWS)
def test_a_server_killed_at_a_row_of_the_table_is_taken_up_where_it_was(server: Server, place: str, call: str) -> None:
    first, second = ([entry(stream=f"s{number % 3}") for number in range(TILE_WIDTH + 20)] for _ in range(2))
    told = dict(zip([one["id"] for one in first], [index for _, index in server.send(first)], strict=True))
    server.publish()
    tracer = server.die_at(place, call)
    end = time.monotonic() + 20
    while server.child.alive:
        with suppress(ApiProblem, TransportError, OSError):
            # Who was told goes on with others.
            told |= dict(zip([one["id"] for one in second], [index for _, index in server.send(second)], strict=True))
            server.publish()
        assert time.monotonic() < end, "the server never came to the call"
    tracer.wait(20)
    assert f"{call}(" in server.trace.read_text()
    assert "killed by SIGKILL" in server.trace.read_text()
    server.start()
    again = server.send(second)
    assert {status for status, _ in again} <= {"stored", "duplicate"}
    told |= {one["id"]: told.get(one["id"], index) for one, (_, index) in zip(second, again, strict=True)}
    assert [told[one["id"]] for one in second] == [index for _, index in again], "told once, told for ever"
    server.publish()
    ids: list[str] = []
    reader = FolderReader(server.data / "objects")
    for key in reader.list(f"{server.log_id}/batch/"):
        ids += [decode_header(raw).id for raw in decode_batch(reader.get(key)).headers]
    assert len(set(ids)) == len(ids)
    assert {entry_id: ids.index(entry_id) for entry_id in told} == told
    report = verify(reader, log_id=server.log_id, keys=[server.made["log_key"]], hot=FolderReader(server.data / "hot"))
    assert report.verdict is Verdict.SOUND, report.findings[:3]
    assert report.signed_size == len(ids)
