"""What erasing in a store costs beside the store's own statement: ratios, not absolute figures.

10,000 items of a person among as many of others. Measured in turns, on SQLite, PostgreSQL and Redis:
  native   one statement that deletes all of them by key, in one transaction;
  ours     `erase` in batches of 500 with owners compared and read again, then `verify` at L1 by another connector that
           cannot write, in batches of 500 as well.
Prints the ratio native : ours of the medians and of processor time, and the parts of ours. Exit 1 when a store is below
its goal: PostgreSQL 0.45, Redis 0.5, SQLite 0.6. Run: `python -m bench.stores [--items N] [--rounds N] [--store S]`.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sqlite3
import statistics
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from typing_extensions import override

from connectors.base import Connector, Item, Level, Outcome, open_connector
from infra.services import postgres, redis

BATCH = 500
OWNER = "user:mia"
GOALS = {"sqlite": 0.6, "postgres": 0.45, "redis": 0.5}


class Store(ABC):
    """One store with rows of two people."""

    kind = "sql"

    @abstractmethod
    def fill(self, keys: Sequence[str], owner: str) -> None:
        """Writes a row for each key."""

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Deletes all of them as the store's documents say."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The config of its connector."""

    def locator(self, key: str) -> dict[str, Any]:
        """Where a row lies."""
        return {"table": "note", "key": {"id": key}}

    def settle(self) -> None:  # noqa: B027 - a store may need nothing
        """Frees what was deleted, so that every round finds the same store."""

    def open(self, *, read_only: bool) -> Connector:
        """A connector."""
        return open_connector(self.kind, self.config(), secrets=str, read_only=read_only)


def _text(key: str) -> str:
    return f"text of {key}: a remark of some forty characters, as people make them"


class Sqlite(Store):
    """A file with a log, as applications have it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "app.db"
        with closing(self._db()) as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("CREATE TABLE note (id TEXT PRIMARY KEY, owner TEXT, body TEXT)")

    def _db(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, isolation_level=None)
        db.execute("PRAGMA synchronous=FULL")
        return db

    @override
    def fill(self, keys: Sequence[str], owner: str) -> None:
        with closing(self._db()) as db:
            db.execute("BEGIN")
            db.executemany("INSERT INTO note VALUES (?, ?, ?)", [(key, owner, _text(key)) for key in keys])
            db.execute("COMMIT")

    @override
    def delete(self, keys: Sequence[str]) -> None:
        with closing(self._db()) as db:
            db.execute("DELETE FROM note WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(list(keys)),))

    @override
    def settle(self) -> None:
        with closing(self._db()) as db:
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @override
    def config(self) -> dict[str, Any]:
        return {"url": f"sqlite:///{self._path}", "owner_field": "owner"}


class Postgres(Store):
    """A table of a server."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._db: Any = psycopg.connect(url.replace("postgresql+psycopg://", "postgresql://"), autocommit=True)
        self._db.execute("CREATE TABLE note (id text PRIMARY KEY, owner text, body text)")

    @override
    def fill(self, keys: Sequence[str], owner: str) -> None:
        with self._db.cursor().copy("COPY note FROM STDIN") as copy:
            for key in keys:
                copy.write_row((key, owner, _text(key)))

    @override
    def delete(self, keys: Sequence[str]) -> None:
        self._db.execute("DELETE FROM note WHERE id = ANY(%s)", (list(keys),))

    @override
    def settle(self) -> None:
        self._db.execute("VACUUM (FULL, ANALYZE) note")

    @override
    def config(self) -> dict[str, Any]:
        return {"url": self._url, "owner_field": "owner"}


class Redis(Store):
    """Keys of JSON, with an append-only file."""

    kind = "redis"

    def __init__(self, url: str) -> None:
        import redis as driver

        self._url = url
        self._client: Any = driver.Redis.from_url(url)

    @override
    def fill(self, keys: Sequence[str], owner: str) -> None:
        for start in range(0, len(keys), 1000):
            self._client.mset({k: json.dumps({"owner": owner, "text": _text(k)}) for k in keys[start : start + 1000]})

    @override
    def delete(self, keys: Sequence[str]) -> None:
        self._client.unlink(*keys)

    @override
    def config(self) -> dict[str, Any]:
        return {"url": self._url, "owner_field": "owner"}

    @override
    def locator(self, key: str) -> dict[str, Any]:
        return {"key": key}


def _ours(store: Store, keys: Sequence[str]) -> tuple[float, float]:
    """Seconds of erase and of verify. Raises: RuntimeError where not everything was erased and shown absent."""
    items = [Item(copy_id=key, locator=store.locator(key)) for key in keys]
    batches = [items[start : start + BATCH] for start in range(0, len(items), BATCH)]
    started = time.perf_counter()
    with store.open(read_only=False) as eraser:
        now = datetime.now(UTC)
        receipts = [
            receipt
            for batch in batches
            for receipt in eraser.erase(batch, owner_identifiers=[OWNER], now=now, deadline=120)
        ]
    erased = time.perf_counter()
    with store.open(read_only=True) as verifier:
        findings = [one for batch in batches for one in verifier.verify(batch, Level.L1, deadline=120)]
    verified = time.perf_counter()
    if {receipt.outcome for receipt in receipts} != {Outcome.ERASED} or any(
        one.present is not False for one in findings
    ):
        message = "not everything was erased and shown absent"
        raise RuntimeError(message)
    return erased - started, verified - erased


def measure(name: str, store: Store, count: int, rounds: int) -> float:
    """Prints a line and returns the ratio of the medians."""
    store.fill([f"other-{number:07d}" for number in range(count)], "user:ben")
    natives, erases, verifies = [], [], []
    for turn in range(rounds):
        for is_native in (True, False) if turn % 2 else (False, True):
            keys = [f"{'n' if is_native else 'o'}{turn}-{number:07d}" for number in range(count)]
            store.fill(keys, OWNER)
            store.settle()
            if is_native:
                started = time.perf_counter()
                store.delete(keys)
                natives.append(time.perf_counter() - started)
            else:
                erase, verify = _ours(store, keys)
                erases.append(erase)
                verifies.append(verify)
    native, erase, verify = (statistics.median(each) for each in (natives, erases, verifies))
    best = min(natives) / min(one + other for one, other in zip(erases, verifies, strict=True))
    ratio = native / (erase + verify)
    print(
        f"{name:<9} {count} items: native {1e3 * native:6.0f} ms, erase {1e3 * erase:6.0f} ms,"
        f" verify {1e3 * verify:6.0f} ms = {ratio:.2f} of native (quickest rounds {best:.2f}); goal {GOALS[name]}"
    )
    return ratio


def main() -> int:
    """Prints a line a store; 1 where one is below its goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store", choices=GOALS, action="append")
    parser.add_argument("--profile", action="store_true", help="Print where the time of ours goes, of one round.")
    given = parser.parse_args()
    wanted = given.store or list(GOALS)
    bad = 0
    with ExitStack() as stack:
        for name in wanted:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="muniment-bench-")))
            store: Store = (
                Sqlite(folder) if name == "sqlite"
                else Postgres(stack.enter_context(postgres.running(folder))) if name == "postgres"
                else Redis(stack.enter_context(redis.running(folder)).url)
            )  # fmt: skip
            if given.profile:
                keys = [f"p{number:07d}" for number in range(given.items)]
                store.fill(keys, OWNER)
                profile = cProfile.Profile()
                profile.runcall(_ours, store, keys)
                pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(25)
            else:
                bad += measure(name, store, given.items, given.rounds) < GOALS[name]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
