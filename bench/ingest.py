"""What taking entries into the record costs over HTTP, beside a server that only inserts the same JSON into a table.

In one run, in turn, the same bodies of about 1 KB in calls of 1,000, over four connections, built beforehand:

- muniment      `muniment serve` on embedded stores with everything on: token, fences, sealing, dictionary compression,
                skeleton, Object Lock files, signed receipts, fsync
- plain-http    the same web stack: JSON in, one multi-row INSERT into a PostgreSQL table, committed; the aim is ≥ 1.0 ×
- postgres      `executemany` of the same rows from this process, no HTTP
- sqlite        the same into SQLite with WAL and synchronous=FULL

Prints medians over the rounds, and the ratio to `plain-http` within each round: absolute figures do not carry over to
another machine. With `--before N` both servers hold N entries already; the aim after 400,000 is ≥ 0.8 ×.
Run: `python -m bench.ingest [--entries N] [--call N] [--rounds N] [--connections N] [--before N]`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool

from infra.services import postgres
from ledger.entry import uuid7

TABLE = "CREATE TABLE plain (id uuid PRIMARY KEY, stream text, at timestamptz, body text)"
_WORDS = [f"{number:x}{word}" for number in range(40) for word in ("order", "refund", "ticket", "policy", "invoice")]


def entries_of(count: int, generator: random.Random) -> list[dict[str, Any]]:
    """Return entries with a body of about 1 KB, in 20 streams of as many people."""
    made = []
    for number in range(count):
        now = datetime.now(UTC)
        text = " ".join(generator.choice(_WORDS) for _ in range(115))
        made.append(
            {
                "id": uuid7(now),
                "stream": f"conv_{number % 20}",
                "kind": "turn.user",
                "at": now.isoformat(),
                "data_class": "transcript",
                "subjects": [f"user:u{number % 20}"],
                "body": {"role": "user", "content": text, "turn": number},
            }
        )
    return made


Take = Callable[[Sequence[Sequence[dict[str, Any]]]], float]
"""Takes calls of entries and returns the seconds that it took."""


class Poster:
    """A few connections that post calls at the same time and insist on success."""

    def __init__(self, port: int, path: str, token: str | None = None, *, connections: int) -> None:
        self._port, self._path, self._count = port, path, connections
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def __call__(self, calls: Sequence[Sequence[dict[str, Any]]]) -> float:
        """Post calls and return the seconds that it took."""
        waiting = iter([msgspec.json.encode({"entries": entries}) for entries in calls])
        taking = threading.Lock()

        def post() -> None:
            # Anew for each round: a server closes what was idle while others had their turn.
            connection = HTTPConnection("127.0.0.1", self._port, timeout=300)
            while True:
                with taking:
                    body = next(waiting, None)
                if body is None:
                    connection.close()
                    return
                connection.request("POST", self._path, body, self._headers)
                answer = connection.getresponse()
                said = answer.read()
                if answer.status != 200 or b'"rejected"' in said:
                    message = f"{self._path} answered {answer.status}: {said[:300]!r}"
                    raise SystemExit(message)

        begun = time.perf_counter()
        with ThreadPoolExecutor(self._count) as pool:
            for done in [pool.submit(post) for _ in range(self._count)]:
                done.result()
        return time.perf_counter() - begun


def rows_of(entries: Sequence[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Return the rows of a plain table."""
    return [(one["id"], one["stream"], one["at"], msgspec.json.encode(one["body"]).decode()) for one in entries]


def insert_into_postgres(connection: psycopg.Connection[Any], rows: Sequence[tuple[str, ...]]) -> None:
    """Insert rows with one multi-row statement and commit."""
    values = ",".join(["(%s,%s,%s,%s)"] * len(rows))
    connection.execute(f"INSERT INTO plain VALUES {values}", [value for row in rows for value in row])  # noqa: S608 - placeholders only
    connection.commit()


def plain_server(url: str, port: int) -> None:
    """Serve the yardstick: the same web stack, which inserts what it gets."""
    mine = threading.local()
    app = FastAPI()

    def store(body: bytes) -> bytes:
        entries = msgspec.json.decode(body)["entries"]
        if not hasattr(mine, "connection"):
            mine.connection = psycopg.connect(url)
        insert_into_postgres(mine.connection, rows_of(entries))
        return msgspec.json.encode({"results": [{"id": one["id"], "status": "stored"} for one in entries]})

    @app.post("/plain")
    async def plain(request: Request) -> Response:
        return Response(await run_in_threadpool(store, await request.body()), media_type="application/json")

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
        return port


@contextlib.contextmanager
def process(command: Sequence[str], port: int) -> Iterator[None]:
    """Run a server until the block ends."""
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if started.poll() is not None or time.monotonic() > deadline:
                message = f"{command[:3]} did not start"
                raise SystemExit(message)
            time.sleep(0.05)
        yield
    finally:
        started.terminate()
        started.wait()


@contextlib.contextmanager
def contenders(folder: Path, connections: int) -> Iterator[dict[str, Take]]:
    """Yield what takes calls of entries, by name."""
    program = str(Path(sys.executable).with_name("muniment"))
    data, mine, plain = str(folder / "data"), free_port(), free_port()
    made = subprocess.run(
        [program, "init", "--data", data, "--json"], check=True, capture_output=True, text=True, cwd=folder
    )
    token = json.loads(made.stdout)["tokens"]["writer"]
    # The tests' server spares itself the disk; a yardstick must not.
    postgres.DATABASE_SETTINGS.update({"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"})
    with contextlib.ExitStack() as stack:
        url = postgres.create_database(stack.enter_context(postgres.running(folder / "postgres")), "ingest")
        url = url.replace("postgresql+psycopg://", "postgresql://")
        direct = stack.enter_context(psycopg.connect(url))
        direct.execute(TABLE)
        direct.execute(TABLE.replace("plain", "direct"))
        direct.commit()
        lite = stack.enter_context(contextlib.closing(sqlite3.connect(folder / "plain.db")))
        lite.execute("PRAGMA journal_mode=WAL")
        lite.execute("PRAGMA synchronous=FULL")
        lite.execute(TABLE)

        def into_postgres(calls: Sequence[Sequence[dict[str, Any]]]) -> float:
            begun = time.perf_counter()
            for entries in calls:
                with direct.cursor() as cursor:
                    cursor.executemany("INSERT INTO direct VALUES (%s,%s,%s,%s)", rows_of(entries))
                direct.commit()
            return time.perf_counter() - begun

        def into_sqlite(calls: Sequence[Sequence[dict[str, Any]]]) -> float:
            begun = time.perf_counter()
            for entries in calls:
                lite.executemany("INSERT INTO plain VALUES (?,?,?,?)", rows_of(entries))
                lite.commit()
            return time.perf_counter() - begun

        stack.enter_context(process([program, "serve", "--data", data, "--port", str(mine)], mine))
        stack.enter_context(process([sys.executable, __file__, "--plain-server", url, str(plain)], plain))
        yield {
            "muniment": Poster(mine, "/v1/record/entries", token, connections=connections),
            "plain-http": Poster(plain, "/plain", connections=connections),
            "postgres": into_postgres,
            "sqlite": into_sqlite,
        }


def measure(folder: Path, *, entries: int, call: int, rounds: int, connections: int, before: int) -> None:
    """Run the rounds and print the table."""
    generator = random.Random(1)
    rates: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {}
    with contenders(folder, connections) as taking:
        for take in taking.values():
            take([entries_of(call, generator)])
        for _ in range(0, before, 20 * call):
            calls = [entries_of(call, generator) for _ in range(20)]
            for name in ("muniment", "plain-http"):
                taking[name](calls)
        for number in range(rounds):
            calls = [entries_of(call, generator) for _ in range(max(1, entries // call // rounds))]
            order = list(taking.items())
            order = order[number % len(order) :] + order[: number % len(order)]
            seconds = {name: take(calls) for name, take in order}
            for name, took in seconds.items():
                rates.setdefault(name, []).append(len(calls) * call / took)
                ratios.setdefault(name, []).append(seconds["plain-http"] / took)
    behind = f" behind {before}" if before else ""
    print(
        f"{entries} entries of 1 KB{behind} in calls of {call} over {connections} connections, {rounds} rounds, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    for name, found in rates.items():
        middle, ratio = statistics.median(found), statistics.median(ratios[name])
        print(f"{name:<11} {middle:>9,.0f} entries/s   {ratio:.2f} × plain-http")
    first, last = rates["muniment"][0], rates["muniment"][-1]
    print(f"last round at {last / first:.2f} of the first (muniment)")


def main() -> None:
    """Measure, or be the yardstick's server."""
    if sys.argv[1:2] == ["--plain-server"]:
        plain_server(sys.argv[2], int(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--entries", type=int, default=40_000)
    parser.add_argument("--call", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--before", type=int, default=0, metavar="N", help="entries that are there already")
    chosen = parser.parse_args()
    # PostgreSQL refuses folders that only root may enter, and a RAM disk would spare both sides the fsync.
    with tempfile.TemporaryDirectory(prefix="muniment-bench-") as folder:
        measure(Path(folder), **vars(chosen))


if __name__ == "__main__":
    main()
