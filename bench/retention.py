"""What retention costs: a decision, finding what is due, and a sweep beside an erasure of the same items.

Measured, on SQLite and with `--postgres` on PostgreSQL (service and store):
  decisions      `decide` on items past their date, with a hold, a restriction and a request in force, time of one core;
  due            one batch of what is due with all that decisions read, and its index look-up alone, in registries of
                 two sizes, of which a batch is due: flat is what the size does not show in;
  sweep          a pass that ends N rows of a store, and an erasure of N rows of a person, from plan to proof.
Run: `python -m bench.retention [--rows 2000] [--sizes 50000,500000] [--postgres]`
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import sqlalchemy as sa
from sqlmodel import Session, col

from bench.erasure import PERSON, Bench, Times, _database
from erasure.sweep_copies import Sweeps
from infra.services import postgres
from ledger.models import Instant
from registry.duration import Duration
from registry.ids import first_id
from registry.models import Artifact
from retention.decide import Claim, Hold, Item, Restriction, Rules, decide
from retention.due import BATCH, due, schedules_in_force
from retention.events import ENDED
from retention.sweep import Brakes

NOW = datetime(2026, 6, 1, tzinfo=UTC)
AHEAD = timedelta(days=400)
_AT_ONCE = 500_000
_TEXT = "CAST(printf('%010d', id + number) AS BLOB)"
FREE = Brakes(share=1.0, jump=timedelta(days=10_000))


def decisions(count: int = 300_000) -> float:
    """Decisions a second."""
    rules = Rules(name="note", keep=Duration.parse("P90D"), starts="created")
    items = [
        Item(
            item_id=number,
            data_class="note",
            created=NOW - timedelta(days=number % 180),
            subjects=frozenset({number % 1000}),
            own_subjects=frozenset({number % 1000}),
        )
        for number in range(10_000)
    ]
    holds = [Hold("h", frozenset({1_000_001}))]
    restrictions = [Restriction("r", 1_000_002, NOW)]
    claims = [Claim("q", "access", frozenset({1_000_003}), NOW, NOW)]
    best = 0.0
    for _ in range(5):
        started = time.process_time()
        for item in itertools.islice(itertools.cycle(items), count):
            decide(item, rules, holds, restrictions, claims, NOW)
        best = max(best, count / (time.process_time() - started))
    return best


def find_due(bench: Bench, live: int) -> tuple[float, float, float]:
    """Seconds for a batch of what is due among `live` items, this process's share of them, and the look-up alone."""
    now, tenant_id = bench.services.clock.now(), bench.tenant.tenant_id
    with bench.services.database.transaction(tenant_id) as session:
        session.connection().execute(sa.delete(Artifact).where(col(Artifact.tenant_id) == tenant_id))
    for start, ends_at in ((0, now - timedelta(days=1)), (BATCH, now + timedelta(days=1))):
        fill(bench, row_of(tenant_id, start, now, ends_at), (live if start else BATCH) - start)
    settle(bench)
    whole = share = look = 60.0
    for _ in range(5):
        with bench.services.database.transaction(tenant_id, write=False) as session:
            schedules = schedules_in_force(session, tenant_id)
            started = time.perf_counter()
            _look_up(session, tenant_id, now)
            look = min(look, time.perf_counter() - started)
        with bench.services.database.transaction(tenant_id, write=False) as session:
            started, before = time.perf_counter(), time.process_time()
            found = due(session, tenant_id, schedules, before=now)
            whole = min(whole, time.perf_counter() - started)
            share = min(share, time.process_time() - before)
        if len(found.candidates) != BATCH:
            message = f"{len(found.candidates)} items are due, expected {BATCH}"
            raise RuntimeError(message)
    return whole, share, look


def settle(bench: Bench) -> None:
    """What autovacuum does within minutes, by the database's owner: the service's own role may not."""
    with bench.services.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("ANALYZE"))


def fill(bench: Bench, first: dict[str, object], count: int) -> None:
    """Insert `count` rows like the first one; the database itself counts on, so that ten millions take minutes."""
    number = "int8send(id + number)" if bench.services.database.engine.dialect.name == "postgresql" else _TEXT
    counted = {"id": "id + number", "locator_hash": number}
    names = [column.name for column in sa.inspect(Artifact).local_table.columns]
    with bench.services.database.transaction(int(str(first["tenant_id"]))) as session:
        session.connection().execute(sa.insert(Artifact), [first])
        for start in range(1, count, _AT_ONCE):
            session.connection().execute(
                sa.text(
                    "WITH RECURSIVE counting (number) AS (SELECT CAST(:start AS BIGINT) UNION ALL "  # noqa: S608 - ours
                    "SELECT number + 1 FROM counting WHERE number + 1 < :stop) "
                    f"INSERT INTO artifact ({', '.join(names)}) "
                    f"SELECT {', '.join(counted.get(name, name) for name in names)} "
                    "FROM artifact CROSS JOIN counting WHERE tenant_id = :tenant_id AND id = :id"
                ),
                {"start": start, "stop": min(start + _AT_ONCE, count)}
                | {key: first[key] for key in ("tenant_id", "id")},
            )


def row_of(tenant_id: int, number: int, now: datetime, ends_at: datetime) -> dict[str, object]:
    """The row of an item without people, a year old, that ends at an instant; `number` counts on from the first id."""
    return {
        "tenant_id": tenant_id, "id": first_id(now) + number, "data_class": "memory", "class_version": 1,
        "store": "app", "locator_hash": number.to_bytes(8, "big"), "created_at": now - timedelta(days=366),
        "ends_at": ends_at, "registered_by": "t",
        "status": "live", "set_id": 0, "own_set_id": 0, "holder_no": 0,
    }  # fmt: skip


def _look_up(session: Session, tenant_id: int, now: datetime) -> int:
    """The query by which a batch is found, without what decisions read."""
    query = (
        sa.select(col(Artifact.id), col(Artifact.ends_at))
        .where(
            col(Artifact.tenant_id) == tenant_id,
            col(Artifact.ends_at) <= sa.literal(now, Instant()),
            col(Artifact.status).not_in(ENDED),
        )
        .order_by(col(Artifact.ends_at), col(Artifact.id))
        .limit(BATCH)
    )
    return len(session.execute(query).all())


def sweep(bench: Bench, count: int) -> tuple[float, float]:
    """Items a second that a pass ends, and those that an erasure of one person does."""
    bench.register(bench.keys(count, PERSON), PERSON)
    bench.services.clock.move(AHEAD)
    now = bench.services.clock.now()
    sweeps = Sweeps(bench.services.erasure, brakes=FREE)
    started = time.perf_counter()
    run = sweeps.start(bench.acting("ann"), now)
    sweeps.run_due(bench.tenant.tenant_id, now)
    swept = time.perf_counter() - started
    found = sweeps.get(bench.acting("ann"), run["id"])
    if found["counts"].get("removed") != count:
        message = f"the pass is {found['state']}: {found['counts']}, {found['brake']}"
        raise RuntimeError(message)
    bench.register(bench.keys(count, PERSON), PERSON)
    times = Times()
    bench.erase(times)
    return count / swept, count / (times.plan + times.whole)


def measure(make_url: Callable[[], str] | None, rows: int, sizes: list[int]) -> None:
    """Print what one database shows."""
    with tempfile.TemporaryDirectory(prefix="muniment-bench-") as name:
        bench = Bench(Path(name), make_url)
        swept, erased = sweep(bench, rows)
        print(f"sweep {swept:.0f} items/s, erasure {erased:.0f} items/s: {swept / erased:.2f} x ({rows} rows)")
        for size in sizes:
            whole, share, look = find_due(bench, size)
            print(
                f"due: a batch of {BATCH} in {size} artifacts {1e3 * whole:.0f} ms with all that decisions read "
                f"({1e3 * share:.0f} ms of this processor; wanted ≤ 100), its look-up {1e3 * look:.0f} ms"
            )
        bench.services.close()


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--sizes", default="50000,500000")
    parser.add_argument("--postgres", action="store_true")
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    print(f"decide: {decisions():,.0f} decisions/s on one core")
    if given.postgres:
        with tempfile.TemporaryDirectory(prefix="muniment-bench-") as name, postgres.running(Path(name)) as url:
            measure(partial(_database, url, itertools.count()), given.rows, sizes)
    else:
        measure(None, given.rows, sizes)


if __name__ == "__main__":
    main()
