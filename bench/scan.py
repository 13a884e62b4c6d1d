"""What a scan costs: megabytes a second and peak memory, beside reading the file's bytes alone.

Writes a SQLite file of a size (default 1 GB) in three shapes and scans each in a process of its own:
  threads  LangGraph checkpoints of some kilobytes with metadata;
  rows     an application's messages of some hundred bytes: the worst case, many rows a megabyte;
  log      the same as `threads`, with a write-ahead log beside it, so that the scan works on a private copy.
Prints MB/s by processor time and by elapsed time (machines are shared), peak memory beyond that of an empty file, and
the ratio to a plain read of the file. Exit 1 when a shape is below 100 MB/s of processor time or needs over 200 MB.
Run: `python -m bench.scan [--megabytes N] [--shape S]`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LEAST_MB_S, MOST_MB = 100.0, 200.0
MEGA = 1 << 20
SHAPES = ("threads", "rows", "log")


def _checkpoints(size: int) -> Iterator[tuple[Any, ...]]:
    written = number = 0
    while written < size:
        body = os.urandom(3_000) * 2
        metadata = json.dumps(
            {"source": "loop", "step": number % 40, "user_id": f"user_{number // 40 % 5000}"}
        ).encode()
        identity = f"1f0{number:013x}-{number % 10_000:04d}"
        yield f"thread-{number // 40}", "", identity, None, "msgpack", body, metadata
        written += len(body) + len(metadata) + 120
        number += 1


def _messages(size: int) -> Iterator[tuple[Any, ...]]:
    written = number = 0
    text = "I would like to move my booking to the third of March, please. " * 3
    while written < size:
        yield f"user_{number % 50_000}", f"c{number // 20}", text[: 60 + number % 120], 1_760_000_000 + number
        written += 160
        number += 1


def write(path: Path, shape: str, size: int) -> None:
    """Writes a file of about `size` bytes."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous=OFF")
        db.execute("PRAGMA journal_mode=OFF")
        if shape == "rows":
            columns = "user_id TEXT, conversation_id TEXT, body TEXT, created_at INT"
            db.execute(f"CREATE TABLE message (id INTEGER PRIMARY KEY, {columns})")
            insert = "INSERT INTO message (user_id, conversation_id, body, created_at) VALUES (?, ?, ?, ?)"
            rows = _messages(size)
        else:
            db.execute(
                "CREATE TABLE checkpoints (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '',"
                " checkpoint_id TEXT NOT NULL, parent_checkpoint_id TEXT, type TEXT, checkpoint BLOB, metadata BLOB,"
                " PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id))"
            )
            db.execute(
                "CREATE TABLE writes (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '',"
                " checkpoint_id TEXT NOT NULL, task_id TEXT NOT NULL, idx INTEGER NOT NULL, channel TEXT NOT NULL,"
                " type TEXT, value BLOB, PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx))"
            )
            insert, rows = "INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)", _checkpoints(size)
        db.execute("BEGIN")
        db.executemany(insert, rows)
        db.execute("COMMIT")
    if shape == "log":
        # Left behind by an application that still runs: a log that holds the last transactions.
        program = (
            "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1])\n"
            "db.execute('PRAGMA journal_mode=WAL'); db.execute('PRAGMA wal_autocheckpoint=0')\n"
            "rows = [('thread-0', '', 'x', 't', n, 'm', '', bytes(4000)) for n in range(2000)]\n"
            "db.executemany('INSERT INTO writes VALUES (?,?,?,?,?,?,?,?)', rows); db.commit(); os._exit(0)"
        )
        subprocess.run([sys.executable, "-c", program, str(path)], check=True)


def one(path: str) -> dict[str, float]:
    """Scans in this process and returns seconds and peak memory."""
    from connectors.scanning.scan import scan

    started, worked = time.perf_counter(), time.process_time()
    found = scan(path, now=datetime.now(UTC), deadline=3600)
    took = {"elapsed": time.perf_counter() - started, "worked": time.process_time() - worked}
    if found.could_not_read():
        raise SystemExit("; ".join(found.could_not_read()))
    return {
        **took,
        "rows": sum(place.rows for place in found.places),
        "peak_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def _in_a_process(path: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.scan", "--one", str(path)], check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _read(path: Path) -> float:
    started = time.process_time()
    with path.open("rb") as stream:
        while stream.read(MEGA):
            pass
    return time.process_time() - started


def main() -> int:
    """Runs the shapes and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--shape", choices=SHAPES, action="append")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(one(chosen.one)))
        return 0
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty.db"
        write(empty, "threads", 1)
        base = _in_a_process(empty)["peak_kb"]
        for shape in chosen.shape or SHAPES:
            path = Path(folder) / f"{shape}.db"
            write(path, shape, chosen.megabytes * MEGA)
            size = path.stat().st_size / MEGA
            found = _in_a_process(path)
            memory = (found["peak_kb"] - base) / 1024
            speed = size / found["worked"]
            bad += speed < LEAST_MB_S or memory > MOST_MB
            print(
                f"{shape:<8} {size:7.0f} MB {found['rows']:>9.0f} rows  {speed:6.0f} MB/s worked  "
                f"{size / found['elapsed']:6.0f} MB/s elapsed  {memory:5.0f} MB more memory  "
                f"{_read(path) / found['worked']:.2f} of a plain read"
            )
            for end in ("", "-wal", "-shm"):
                Path(f"{path}{end}").unlink(missing_ok=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
