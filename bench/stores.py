"""What erasing in a store costs beside the store's own statement: ratios, not absolute figures.

The bed is that of the goals: a million rows of about a kilobyte, 10,000 of each person, scattered over the whole store,
written durably. Measured in turns, each on a person of its own, on SQLite, PostgreSQL and Redis:
  native   one statement that deletes all of a person's rows by key, in one transaction, without asking whose they are:
           DELETE on SQLite and PostgreSQL, UNLINK on Redis; on a connection that it opens;
  warm     the same on a connection that deleted somebody before and stays open, as one out of an application's pool: a
           new process of PostgreSQL first has to map every page that it touches, which is a quarter of its time;
  ours     `erase` in batches of 500 with owners compared and read again, then `verify` at L1 by another connector that
           cannot write, in batches of 500 as well; opening both, and what they read of the catalog, counts.
Prints the ratio native : ours of the medians and of the quickest rounds, the ratio to a warm one, and the parts of
ours; for Redis also without an owner, since comparing it there means reading every value, which no native statement and
none of the goals did. Exit 1 when a store is below its goal: PostgreSQL 0.45, Redis 0.5, SQLite 0.6. With fewer
`--rows` the native statement finds what it deletes close together.
Run: `python -m bench.stores [--rows N] [--items N] [--rounds N] [--store S]`.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
import redis as driver
from typing_extensions import override

from connectors.base import Connector, Item, Level, Outcome, open_connector
from infra.services import postgres, redis

BATCH = 500
GOALS = {"sqlite": 0.6, "postgres": 0.45, "redis": 0.5}
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "shared_buffers": "256MB"}
Row = tuple[str, str, str]
"""Key, owner, text."""
Delete = Callable[[Sequence[str]], object]
"""Deletes rows by key."""


class Store(ABC):
    """One store with rows of many people."""

    kind = "sql"

    @abstractmethod
    def fill(self, rows: Iterator[Row]) -> None:
        """Writes the rows."""

    @abstractmethod
    def native(self) -> AbstractContextManager[Delete]:
        """Opens a connection and gives what deletes on it, as the store's documents say."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The config of its connector, without the owner."""

    def locator(self, key: str) -> dict[str, Any]:
        """Where a row lies."""
        return {"table": "note", "key": {"id": key}}

    def settle(self) -> None:  # noqa: B027 - a store may need nothing
        """Writes what waits to be written, so that every turn begins alike."""

    def open(self, *, owner_field: str | None, read_only: bool) -> Connector:
        """A connector."""
        owned = {} if owner_field is None else {"owner_field": owner_field}
        return open_connector(self.kind, {**self.config(), **owned}, secrets=str, read_only=read_only)


class Sqlite(Store):
    """A file with a log, as applications have it; every commit reaches the disk, and deleted bytes are overwritten."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "app.db"
        with closing(self._db()) as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("CREATE TABLE note (id TEXT PRIMARY KEY, owner TEXT, body TEXT)")

    def _db(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, isolation_level=None)
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA secure_delete=ON")
        return db

    @override
    def fill(self, rows: Iterator[Row]) -> None:
        with closing(self._db()) as db:
            db.execute("PRAGMA synchronous=OFF")
            db.execute("BEGIN")
            db.executemany("INSERT INTO note VALUES (?, ?, ?)", rows)
            db.execute("COMMIT")

    @override
    @contextmanager
    def native(self) -> Iterator[Delete]:
        statement = "DELETE FROM note WHERE id IN (SELECT value FROM json_each(?))"
        with closing(self._db()) as db:
            yield lambda keys: db.execute(statement, (json.dumps(list(keys)),))

    @override
    def settle(self) -> None:
        with closing(self._db()) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @override
    def config(self) -> dict[str, Any]:
        return {"url": f"sqlite:///{self._path}"}


class Postgres(Store):
    """A table of a server that writes durably."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._db: Any = self._open()
        self._db.execute("CREATE TABLE note (id text PRIMARY KEY, owner text, body text)")

    def _open(self) -> psycopg.Connection:
        return psycopg.connect(self._url.replace("postgresql+psycopg://", "postgresql://"), autocommit=True)

    @override
    def fill(self, rows: Iterator[Row]) -> None:
        with self._db.cursor().copy("COPY note FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        self._db.execute("VACUUM ANALYZE note")

    @override
    @contextmanager
    def native(self) -> Iterator[Delete]:
        with closing(self._open()) as db:
            yield lambda keys: db.execute("DELETE FROM note WHERE id = ANY(%s)", (list(keys),))

    @override
    def settle(self) -> None:
        self._db.execute("CHECKPOINT")

    @override
    def config(self) -> dict[str, Any]:
        return {"url": self._url}


class Redis(Store):
    """Keys of JSON, with an append-only file."""

    kind = "redis"

    def __init__(self, url: str) -> None:
        self._url = url

    @override
    def fill(self, rows: Iterator[Row]) -> None:
        with closing(driver.Redis.from_url(self._url)) as client:
            while part := list(islice(rows, 1000)):
                client.mset({key: json.dumps({"owner": owner, "text": text}) for key, owner, text in part})

    @override
    @contextmanager
    def native(self) -> Iterator[Delete]:
        with closing(driver.Redis.from_url(self._url)) as client:
            yield lambda keys: client.unlink(*keys)

    @override
    def config(self) -> dict[str, Any]:
        return {"url": self._url}

    @override
    def locator(self, key: str) -> dict[str, Any]:
        return {"key": key}


class People:
    """Who owns which key: as many rows each, in no order."""

    def __init__(self, rows: int, items: int) -> None:
        self._owners = [number % max(1, rows // items) for number in range(rows)]
        random.Random(6).shuffle(self._owners)
        self._next = 0

    def rows(
        self, letters: str = "a remark of somebody, as people make them, some twelve words long; "
    ) -> Iterator[Row]:
        """All rows, in the order of their keys."""
        text = letters * 15
        for number, owner in enumerate(self._owners):
            yield f"note-{number:09d}", f"user:{owner}", f"{number} {text[number % 60 :][:900]}"

    def next(self) -> tuple[str, list[str]]:
        """Somebody who was not named before, and the keys. Raises: ValueError where nobody is left."""
        owner, self._next = self._next, self._next + 1
        keys = [f"note-{number:09d}" for number, each in enumerate(self._owners) if each == owner]
        if not keys:
            message = "not enough people: more --rows, or fewer --rounds"
            raise ValueError(message)
        return f"user:{owner}", keys


def _ours(store: Store, owner: str, keys: Sequence[str], owner_field: str | None = "owner") -> tuple[float, float]:
    """Seconds of erase and of verify. Raises: RuntimeError where not everything was erased and shown absent."""
    items = [Item(copy_id=key, locator=store.locator(key)) for key in keys]
    batches = [items[start : start + BATCH] for start in range(0, len(items), BATCH)]
    started = time.perf_counter()
    with store.open(owner_field=owner_field, read_only=False) as eraser:
        now = datetime.now(UTC)
        receipts = [
            receipt
            for batch in batches
            for receipt in eraser.erase(batch, owner_identifiers=[owner], now=now, deadline=120)
        ]
    erased = time.perf_counter()
    with store.open(owner_field=owner_field, read_only=True) as verifier:
        findings = [one for batch in batches for one in verifier.verify(batch, Level.L1, deadline=120)]
    verified = time.perf_counter()
    if {receipt.outcome for receipt in receipts} != {Outcome.ERASED} or any(
        one.present is not False for one in findings
    ):
        message = "not everything was erased and shown absent"
        raise RuntimeError(message)
    return erased - started, verified - erased


def measure(name: str, store: Store, people: People, rounds: int, owner_field: str | None) -> float:
    """Prints a line and returns the ratio of the medians."""
    natives, warms, erases, verifies = [], [], [], []
    with store.native() as warm:
        _, keys = people.next()
        warm(keys)
        for turn in range(rounds):
            for what in ("native", "warm", "ours") if turn % 2 else ("ours", "native", "warm"):
                owner, keys = people.next()
                store.settle()
                started = time.perf_counter()
                if what == "native":
                    with store.native() as cold:
                        cold(keys)
                    natives.append(time.perf_counter() - started)
                elif what == "warm":
                    warm(keys)
                    warms.append(time.perf_counter() - started)
                else:
                    erase, verify = _ours(store, owner, keys, owner_field)
                    erases.append(erase)
                    verifies.append(verify)
    ours = [one + other for one, other in zip(erases, verifies, strict=True)]
    native, kept, erase, verify = (1e3 * statistics.median(each) for each in (natives, warms, erases, verifies))
    ratio = native / (erase + verify)
    label = name if owner_field is not None else f"{name}, no owner"
    print(
        f"{label:<16} {len(keys)} items: native {native:5.0f} ms, warm {kept:5.0f} ms, erase {erase:5.0f} ms,"
        f" verify {verify:5.0f} ms = {ratio:.2f} of native (quickest rounds {min(natives) / min(ours):.2f}),"
        f" {kept / (erase + verify):.2f} of warm; goal {GOALS[name]}"
    )
    return ratio


def _profile(store: Store, people: People) -> None:
    _ours(store, *people.next())  # imports are no part of it
    profile = cProfile.Profile()
    owner, keys = people.next()
    profile.runcall(_ours, store, owner, keys)
    pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(25)


def main() -> int:
    """Prints a line a store; 1 where one is below its goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store", choices=GOALS, action="append")
    parser.add_argument("--profile", action="store_true", help="Print where the time of ours goes, of one round.")
    given = parser.parse_args()
    bad = 0
    for name in given.store or list(GOALS):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="muniment-bench-")))
            store: Store = (
                Sqlite(folder) if name == "sqlite"
                else Postgres(stack.enter_context(postgres.running(folder, settings=DURABLE))) if name == "postgres"
                else Redis(stack.enter_context(redis.running(folder, settings={"save": '""'})).url)
            )  # fmt: skip
            people = People(given.rows, given.items)
            store.fill(people.rows())
            if given.profile:
                _profile(store, people)
                continue
            bad += measure(name, store, people, given.rounds, "owner") < GOALS[name]
            if name == "redis":
                measure(name, store, people, given.rounds, None)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
