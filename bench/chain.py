"""What taking entries into the record costs inside one process, beside two other ways to keep a provable sequence.

In one run, in turn, the same entries with a body of about 1 KB:

- muniment       `Record.append` on embedded stores with everything on, in calls of 1,000
- trigger        PostgreSQL: each row's hash over its body and the hash before it, by a trigger, in batches of 1,000
                 rows; the aim is ≥ 3 ×
- eventsourcing  the library of that name saving one event at a time to PostgreSQL, where `--eventsourcing PYTHON`
                 names an interpreter that has it; per event, the aim is ≥ 30 ×. It is no dependency of ours: make a
                 virtual environment and install `eventsourcing[postgres]` and `psycopg-binary` there

Only the first seals, compresses and locks what it keeps; the other two keep clear text in one place.
Prints medians over the rounds and the ratios within each round.
Run: `python -m bench.chain [--entries N] [--rounds N] [--eventsourcing PYTHON]`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from api import administration, folder, migrate
from api.settings import load
from api.wiring import build
from bench.ingest import entries_of, rows_of
from infra.services import postgres

CALL = 1_000
EVENTS = 200
"""Of each call: one save at a time is slow, and its time for each event does not depend on their number."""
_TRIGGER = """
CREATE TABLE chained (n bigserial PRIMARY KEY, id uuid, stream text, at timestamptz, body text, hash bytea);
CREATE TABLE chain_head (hash bytea NOT NULL);
INSERT INTO chain_head VALUES (sha256(''));
CREATE FUNCTION chain() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE chain_head SET hash = sha256(hash || sha256(convert_to(NEW.id || NEW.stream || NEW.body, 'UTF8')))
    RETURNING hash INTO NEW.hash;
  RETURN NEW;
END $$;
CREATE TRIGGER chain BEFORE INSERT ON chained FOR EACH ROW EXECUTE FUNCTION chain();
"""
# Run by another interpreter: nothing of ours is there.
_EVENTSOURCING = """
import json, sys, time
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event


class Conversation(Aggregate):
    @event("Said")
    def say(self, body: str) -> None:
        self.said = body


bodies = json.load(sys.stdin)
app = Application(env={"PERSISTENCE_MODULE": "eventsourcing.postgres", **json.loads(sys.argv[1])})
one = Conversation()
app.save(one)
begun = time.perf_counter()
for body in bodies:
    one.say(body)
    app.save(one)
took = time.perf_counter() - begun
app.close()
print(took)
"""

Take = Callable[[Sequence[dict[str, Any]]], float]
"""Takes a call of entries and returns the seconds that it took."""


@contextlib.contextmanager
def contenders(place: Path, python: str | None) -> Iterator[dict[str, Take]]:
    """Yield what takes entries, by name."""
    data = place / "data"
    folder.make(data)
    postgres.DATABASE_SETTINGS.update({"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"})
    with contextlib.ExitStack() as stack:
        services = build(load(data))
        stack.callback(services.close)
        migrate.upgrade(services.database)
        services.lease.take(services.clock.now(), force=True)
        administration.create_tenant(services, "default")
        (acting,) = services.tenants()
        url = postgres.create_database(stack.enter_context(postgres.running(place / "postgres")), "chain")
        direct = stack.enter_context(psycopg.connect(url.replace("postgresql+psycopg://", "postgresql://")))
        direct.execute(_TRIGGER)
        direct.commit()
        where = direct.info
        events = {
            "POSTGRES_DBNAME": where.dbname,
            "POSTGRES_HOST": where.host,
            "POSTGRES_PORT": str(where.port),
            "POSTGRES_USER": where.user,
            "POSTGRES_PASSWORD": where.password,
        }

        def muniment(entries: Sequence[dict[str, Any]]) -> float:
            raw = [msgspec.json.encode(one) for one in entries]
            begun = time.perf_counter()
            services.record.append(acting, raw, services.clock.now())
            return time.perf_counter() - begun

        def trigger(entries: Sequence[dict[str, Any]]) -> float:
            rows = rows_of(entries)
            begun = time.perf_counter()
            with direct.cursor() as cursor:
                cursor.executemany("INSERT INTO chained (id, stream, at, body) VALUES (%s,%s,%s,%s)", rows)
            direct.commit()
            return time.perf_counter() - begun

        def eventsourcing(entries: Sequence[dict[str, Any]]) -> float:
            bodies = [msgspec.json.encode(one["body"]).decode() for one in entries[:EVENTS]]
            command = [python or "", "-c", _EVENTSOURCING, json.dumps(events)]
            done = subprocess.run(command, input=json.dumps(bodies).encode(), stdout=subprocess.PIPE, check=True)
            return float(done.stdout) * len(entries) / len(bodies)

        yield {"muniment": muniment, "trigger": trigger} | ({"eventsourcing": eventsourcing} if python else {})


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--eventsourcing", metavar="PYTHON", default=None)
    chosen = parser.parse_args()
    os.umask(0o077)
    generator = random.Random(1)
    rates: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="muniment-bench-") as name,
        contenders(Path(name), chosen.eventsourcing) as taking,
    ):
        for take in taking.values():
            take(entries_of(CALL, generator))
        for number in range(chosen.rounds):
            calls = [entries_of(CALL, generator) for _ in range(max(1, chosen.entries // CALL // chosen.rounds))]
            order = list(taking.items())
            order = order[number % len(order) :] + order[: number % len(order)]
            seconds = {name: sum(take(one) for one in calls) for name, take in order}
            for contender, took in seconds.items():
                rates.setdefault(contender, []).append(len(calls) * CALL / took)
                ratios.setdefault(contender, []).append(took / seconds["muniment"])
    print(f"{chosen.entries} entries of 1 KB in calls of {CALL}, {chosen.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    for contender, found in rates.items():
        middle, ratio = statistics.median(found), statistics.median(ratios[contender])
        print(f"{contender:<13} {middle:>9,.0f} entries/s   muniment takes {ratio:.2f} × as many")
    if chosen.eventsourcing is None:
        print("eventsourcing not measured: name an interpreter that has it with --eventsourcing")


if __name__ == "__main__":
    main()
