"""Two worker processes on one PostgreSQL: the one that erases is killed, and the other goes on from the tables."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.process.test_process_many import Fleet, _erase, fleet

pytestmark = [
    pytest.mark.process, pytest.mark.postgres, pytest.mark.s3, pytest.mark.slow, pytest.mark.timeout(600)
]  # fmt: skip
__all__ = ["fleet"]
TAKEN_OVER_SECONDS = 20.0


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the servers may erase in; asked for before the fleet starts."""
    (tmp_path / "stores" / "files").mkdir(parents=True)
    monkeypatch.setenv("MUNIMENT_ALLOW_TARGETS", f"file:{tmp_path}/stores/**")
    return tmp_path / "stores" / "files"


def states(running: Fleet) -> dict[str, int]:
    query = "SELECT state, count(*) FROM copy WHERE kind = 'artifact' GROUP BY state"
    with running.engine.connect() as connection:
        return {str(state): int(count) for state, count in connection.execute(sa.text(query))}


def treated(running: Fleet) -> int:
    return sum(count for state, count in states(running).items() if state not in ("pending", "running"))


@pytest.mark.scenario("D1")
@pytest.mark.scenario("S40")
def test_a_killed_workers_copies_are_taken_over_and_every_one_goes(
    stores: Path, fleet: Fleet, full_length: bool
) -> None:
    count = 10_000 if full_length else 3_000
    fleet.servers[1].kill()
    fleet.servers[1].wait()
    platform, writer = fleet.client(0, "platform"), fleet.client(0)
    platform.request("PUT", "/v1/stores/files", {"kind": "files", "config": {"root": str(stores)}})
    for start in range(0, count, 1_000):
        made: list[dict[str, Any]] = []
        for number in range(start, min(start + 1_000, count)):
            (stores / f"{number}.txt").write_text(f"remark {number} of somebody who leaves")
            made.append(
                {"data_class": "memory", "store": "files", "subjects": ["user:many"],
                 "locator": {"path": f"{number}.txt"}}
            )  # fmt: skip
        results = writer.request("POST", "/v1/artifacts", {"artifacts": made})["results"]
        assert {one["status"] for one in results} == {"created"}
    # The other one is there, and stands still until the first has erased something and is killed.
    fleet.servers[1] = fleet.start(1)
    assert fleet.servers[1].wait_ready()
    fleet.servers[1].kill(signal.SIGSTOP)
    path, first_desk = _erase(fleet, "user:many")
    for client in (platform, writer, first_desk):
        client.close()
    end = time.monotonic() + 120
    while not treated(fleet):
        assert time.monotonic() < end, states(fleet)
        time.sleep(0.01)
    fleet.servers[0].kill(signal.SIGKILL)
    fleet.servers[0].wait()
    fleet.servers[1].kill(signal.SIGCONT)
    killed, before = time.monotonic(), treated(fleet)
    assert before < count, "it was through before it could be killed"
    while treated(fleet) <= before:
        assert time.monotonic() - killed < TAKEN_OVER_SECONDS + 5, states(fleet)
        time.sleep(0.05)
    assert time.monotonic() - killed <= TAKEN_OVER_SECONDS
    desk = fleet.client(1, "legal")
    end = time.monotonic() + 300
    while not (view := desk.request("GET", path))["state"].startswith("completed"):
        assert time.monotonic() < end, (view, states(fleet))
        time.sleep(0.2)
    assert list(stores.iterdir()) == []
    assert states(fleet) == {"erased_physical": count} or sum(states(fleet).values()) == count
    report = desk.request("GET", f"{path}/report")["certificate"]
    desk.close()
    assert len([copy for copy in report["copies"] if copy["store"] == "files"]) == count
