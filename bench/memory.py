"""How long `memory:resolve` takes for a person with 20 memories, in a registry of so many artifacts.

Prints median and p99 over many different persons, by the clock and by the processor (the clock counts whatever else a
shared machine does), with the look-up of the same 20 plain rows by their ids as the yardstick. Absolute figures do not
carry over to another machine; the ratio does. The target is a p99 of 10 ms at 10 million artifacts.
Of more than 200,000 memories 100,000 are registered and asked for, the others copied in the database (`bench.growing`).
`--keep DIR --fill-only` fills a registry that later calls with `--keep DIR` find and ask.
Run: `python -m bench.memory [--artifacts N] [--calls N] [--postgres URL] [--keep DIR [--fill-only]]`.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, SQLModel

import api.models
import erasure.models
import ledger.models
import retention.models
from api.database import Database
from bench.growing import grow
from registry import artifact_rows, memory_use, registration
from registry.acting import Acting
from registry.classes import STARTER_CLASSES, put_class
from registry.models import Artifact, Tenant
from registry.stores import put_store
from registry.tenants import create_tenant
from vault.keks import KekStore
from vault.providers import FileRoot
from vault.vault import Vault

PACKAGES = (api.models, erasure.models, ledger.models, retention.models)
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
EACH = 20
BATCH = 5_000
TARGET_MS = 10.0
REGISTERED, MOST_REGISTERED = 100_000, 200_000


def build(folder: Path, url: str) -> tuple[sa.Engine, Vault, Acting]:
    """Return the registry of a folder: what is there, or an empty one with one tenant, its classes and a store."""
    engine = Database(url or f"sqlite:///{folder}/registry.db").engine
    SQLModel.metadata.create_all(engine)
    vault = Vault(KekStore(folder / "keys", FileRoot(folder / "keys", clock=lambda: NOW)), clock=lambda: NOW)
    with Session(engine) as session:
        known = session.scalars(sa.select(Tenant)).one_or_none()
        tenant = known or create_tenant(session, "bench", NOW)
        acting = Acting.system(tenant_id=tenant.id, tenant="bench", log_id=tenant.log_id)
        if known is not None:
            return engine, vault, acting
        for name, spec in STARTER_CLASSES.items():
            put_class(session, acting, name, spec, NOW)
        config = {"kind": "sql", "config": {"url": f"sqlite:///{folder}/app.db"}}
        put_store(session, acting, "app", config, NOW, check_target=lambda *_: None)
        session.commit()
    return engine, vault, acting


def item(number: int) -> dict[str, Any]:
    """Return a memory of the person who has the numbers around it; every second one is made from the one before."""
    person = number // EACH
    sources = [f"art_{number - 1:020d}"] if number % 2 else []
    return {
        "id": f"art_{number:020d}",
        "data_class": "memory",
        "store": "app",
        "locator": {"table": "memories", "key": {"id": number}},
        "subjects": [f"user:{person}"],
        "sources": sources,
        "source_type": "explicit_user_statement",
        "confidence": 0.9,
        "observed_at": (NOW - timedelta(days=number % 400)).isoformat(),
        "scope": {"conversation": f"c{person}"},
        "purposes": ["support"],
    }


def fill(engine: sa.Engine, vault: Vault, acting: Acting, count: int) -> None:
    """Register so many memories."""
    for start in range(0, count, BATCH):
        with Session(engine) as session:
            items = [item(number) for number in range(start, min(start + BATCH, count))]
            results = registration.register(session, vault, acting, items, NOW)
            session.commit()
        if any(result["status"] != "created" for result in results):
            raise SystemExit(f"not registered: {results[0]}")
        if sys.stderr.isatty():
            print(f"\r{start + BATCH:,} of {count:,}", end="", file=sys.stderr)


def timed(call: Callable[[int], object], calls: int, people: int) -> tuple[list[float], list[float]]:
    """Return the times of all calls in milliseconds, sorted: by clock and by processor; each for another person."""
    clock, processor = [], []
    for number in range(calls):
        person = (number * 7919) % people
        begun, worked = time.perf_counter_ns(), time.thread_time_ns()
        call(person)
        processor.append((time.thread_time_ns() - worked) / 1e6)
        clock.append((time.perf_counter_ns() - begun) / 1e6)
    return sorted(clock), sorted(processor)


def shown(times: tuple[list[float], list[float]]) -> str:
    """Return p50 and p99 of both."""
    parts = [f"p50 {statistics.median(one):.2f} ms, p99 {one[len(one) * 99 // 100]:.2f} ms" for one in times]
    return f"{parts[0]} (processor: {parts[1]})"


def main() -> None:
    """Fill a registry, ask it, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifacts", type=int, default=100_000)
    parser.add_argument("--calls", type=int, default=1_000)
    parser.add_argument("--postgres", default="", help="an empty database instead of a SQLite file")
    parser.add_argument("--keep", type=Path, help="the folder of a registry that stays, and may be there already")
    parser.add_argument("--fill-only", action="store_true", help="only have a registry of that size")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as base:
        folder = chosen.keep or Path(base)
        folder.mkdir(parents=True, exist_ok=True)
        engine, vault, acting = build(folder, chosen.postgres)
        people = grown(engine, vault, acting, chosen.artifacts)
        if not chosen.fill_only:
            measure(engine, vault, acting, people, chosen.calls)
        engine.dispose()


def grown(engine: sa.Engine, vault: Vault, acting: Acting, artifacts: int) -> int:
    """Have a registry of about so many artifacts; how many people there are to ask for."""
    registered = artifacts if artifacts <= MOST_REGISTERED else REGISTERED
    with Session(engine) as session:
        there = session.scalar(sa.select(sa.func.count()).select_from(Artifact)) or 0
    begun = time.perf_counter()
    if not there:
        fill(engine, vault, acting, registered)
        print(f"{registered:,} memories registered in {time.perf_counter() - begun:.0f} s")
    if artifacts > max(registered, there):
        grow(engine, acting.tenant_id, artifacts)
        if engine.dialect.name == "postgresql":
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.execute(sa.text("VACUUM ANALYZE"))
    return registered // EACH


def measure(engine: sa.Engine, vault: Vault, acting: Acting, people: int, calls: int) -> None:
    """Ask for so many people, and print."""

    def resolve(person: int) -> None:
        with Session(engine) as session:
            spec = {"subject": f"user:{person}", "purpose": "support", "scope": {"conversation": f"c{person}"}}
            found = memory_use.resolve(session, vault, acting, spec, NOW)
        if len(found) != EACH:
            raise SystemExit(f"expected {EACH} verdicts, got {len(found)}")

    def rows(person: int) -> None:
        names = [f"art_{number:020d}" for number in range(person * EACH, (person + 1) * EACH)]
        with Session(engine) as session:
            artifact_rows.find_artifacts(session, acting.tenant_id, names)

    timed(resolve, 50, people)
    asked, plain = timed(resolve, calls, people), timed(rows, calls, people)
    kind = "PostgreSQL" if engine.dialect.name == "postgresql" else "SQLite"
    print(f"memory:resolve of {EACH} on {kind}: {shown(asked)}; target p99 {TARGET_MS:.0f} ms")
    print(f"the same {EACH} rows alone: {shown(plain)}")
    print(f"ratio at p50, processor: {statistics.median(asked[1]) / statistics.median(plain[1]):.1f}")


if __name__ == "__main__":
    main()
