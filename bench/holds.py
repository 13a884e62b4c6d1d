"""What a hold on the root of many copies costs a transaction that decides (ADR 35).

Measured, on SQLite and with `--postgres` on PostgreSQL: the facts and the decision of one batch of items, as the
dispatch of a delete makes them in its own transaction, with a hold on an item from which N others were made, each of
the batch and of others. Flat is what N does not show in.
Run: `python -m bench.holds [--sizes 100,10000,100000] [--postgres]`
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import sqlalchemy as sa
from sqlmodel import col

from bench.erasure import Bench, _database
from bench.retention import fill, row_of, settle
from erasure.plan import redecide
from erasure.selector import select_artifacts
from infra.services import postgres
from registry.ids import first_id
from registry.models import Artifact, Derivation
from retention.models import HoldRow

BATCH = 500


def deciding(bench: Bench, copies: int) -> tuple[float, float]:
    """Seconds that a batch of held copies takes, and one of items that have nothing to do with the hold."""
    now, tenant_id = bench.services.clock.now(), bench.tenant.tenant_id
    root = first_id(now)
    database = bench.services.database
    with database.transaction(tenant_id) as session:
        for model in (Artifact, Derivation, HoldRow):
            session.connection().execute(sa.delete(model).where(col(model.tenant_id) == tenant_id))
    fill(bench, row_of(tenant_id, 0, now, now), 1 + copies + BATCH)
    with database.transaction(tenant_id) as session:
        session.connection().execute(
            sa.insert(Derivation).from_select(
                ["tenant_id", "child", "parent_kind", "parent"],
                sa.select(sa.literal(tenant_id), col(Artifact.id), sa.literal("a"), sa.literal(root)).where(
                    col(Artifact.tenant_id) == tenant_id, col(Artifact.id) > root, col(Artifact.id) <= root + copies
                ),
            )
        )
        session.add(
            HoldRow(
                tenant_id=tenant_id, hold_id="hold_bench", name="bench", artifacts=[root], created_by="ann",
                created_at=now,
            )
        )  # fmt: skip
        session.flush()
    settle(bench)
    held = range(root + 1, root + 1 + min(BATCH, copies))
    free = range(root + 1 + copies, root + 1 + copies + BATCH)
    found = []
    for ids, kept in ((held, True), (free, False)):
        best, lines = 60.0, {}
        for _ in range(3):
            started = time.perf_counter()
            with database.transaction(tenant_id) as session:
                lines = redecide(select_artifacts(session, tenant_id, ids, owner="swp_bench", claim=None, now=now))
            best = min(best, time.perf_counter() - started)
        if {line.rule == "hold" for line in lines.values()} != {kept}:
            message = f"expected {'every' if kept else 'no'} item to be held"
            raise RuntimeError(message)
        found.append(best)
    return found[0], found[1]


def measure(make_url: Callable[[], str] | None, sizes: list[int]) -> None:
    """Print what one database shows."""
    with tempfile.TemporaryDirectory(prefix="muniment-bench-") as name:
        bench = Bench(Path(name), make_url)
        for size in sizes:
            held, free = deciding(bench, size)
            print(
                f"hold on the root of {size} copies: a batch of {min(BATCH, size)} of them {1e3 * held:.0f} ms, "
                f"of {BATCH} others {1e3 * free:.0f} ms"
            )
        bench.services.close()


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="500,10000,100000")
    parser.add_argument("--postgres", action="store_true")
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    if given.postgres:
        with tempfile.TemporaryDirectory(prefix="muniment-bench-") as name, postgres.running(Path(name)) as url:
            measure(partial(_database, url, itertools.count()), sizes)
    else:
        measure(None, sizes)


if __name__ == "__main__":
    main()
