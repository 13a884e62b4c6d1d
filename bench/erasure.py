"""What an erasure costs beside the deletes that it makes. Ratios, not absolute figures.

A person has N rows in a table of a store. Measured, on SQLite and with `--postgres` on PostgreSQL (service and store):
  native         one `DELETE … WHERE id IN (…)` of all N rows in one transaction;
  one by one     N deletes by key, each in its own transaction;
  product shape  lock, decide, erase, read again, receipts, state, in batches (`erasure.dispatch`), of a plan;
  whole request  from approval to the interim certificate, with the bytes freed and looked for, keys and all;
  memory         the most that Python held during the whole request.
With `--sizes 1000,10000` it also prints the cost of a copy at each size: flat is linear.
Run: `python -m bench.erasure [--sizes 2000,10000] [--postgres]`
"""

from __future__ import annotations

import argparse
import itertools
import sqlite3
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa

from api import administration, folder, migrate
from api.settings import load
from api.wiring import Services, build
from erasure import dispatch
from erasure.desk import Desk
from erasure.parts import Tenant
from erasure.planning import Planner
from erasure.reader import Reader
from erasure.worker import run_due
from infra.services import postgres
from registry import artifacts
from registry.acting import Acting
from registry.stores import put_store

PERSON = "user:many"
BATCH = 1_000


@dataclass(slots=True)
class Times:
    """Seconds."""

    native: float = 0.0
    singly: float = 0.0
    plan: float = 0.0
    dispatched: float = 0.0
    whole: float = 0.0
    peak: int = 0


class Bench:
    """A service and a store."""

    def __init__(self, base: Path, make_url: Callable[[], str] | None) -> None:
        self.base = base
        (base / "stores").mkdir()
        self.url = f"sqlite:///{base}/stores/app.db" if make_url is None else make_url()
        more: dict[str, Any] = {} if make_url is None else {"database_url": make_url()}
        allowed = f"sqlite:{base}/stores/**,127.0.0.1:*,localhost:*"
        settings = load(base / "data", allow_targets=allowed, kek_grace=timedelta(0), **more)
        folder.make(settings.data)
        self.services: Services = build(settings)
        migrate.upgrade(self.services.database)
        self.services.lease.take(self.services.clock.now(), force=True)
        self.services.heal()
        made = administration.create_tenant(self.services, "bench")
        row = next(one for one in self.services.tenants() if one.tenant == made.tenant)
        self.tenant = Tenant(tenant_id=row.tenant_id, name=row.tenant, log_id=row.log_id)
        with self.services.database.transaction(row.tenant_id) as session:
            store = {"kind": "sql", "config": {"url": self._address(), "owner_field": "owner"}}
            put_store(session, self.acting("p"), "app", store, self.services.clock.now(), check_target=lambda *_: None)
        with self.connect() as db:
            db.execute("CREATE TABLE note (id TEXT PRIMARY KEY, owner TEXT, text TEXT)")

    def _address(self) -> str:
        """The store's address; one with a password stands in a file that only the tenant's stores read."""
        if self.url.startswith("sqlite"):
            return self.url
        path = self.services.settings.secrets_folder / "bench" / "url"
        path.parent.mkdir(parents=True, mode=0o700)
        path.write_text(self.url)
        path.chmod(0o600)
        return "file:url"

    def acting(self, principal: str) -> Acting:
        """Somebody with every right."""
        return Acting(
            tenant_id=self.tenant.tenant_id, tenant=self.tenant.name, log_id=self.tenant.log_id, principal=principal,
            token_id=principal, roles=frozenset({"writer", "legal", "platform"}), stores=("*",), classes=("*",),
        )  # fmt: skip

    @contextmanager
    def connect(self) -> Iterator[Any]:
        """A connection of the application to its own store."""
        if self.url.startswith("sqlite"):
            db: Any = sqlite3.connect(self.url.removeprefix("sqlite:///"))
        else:
            address = sa.make_url(self.url).set(drivername="postgresql")
            db = psycopg.connect(address.render_as_string(hide_password=False))
        try:
            yield db
            db.commit()
        finally:
            db.close()

    def fill(self, count: int, prefix: str, *, register: bool) -> list[str]:
        """The keys of new rows of the person."""
        mark = "?" if self.url.startswith("sqlite") else "%s"
        keys = [f"{prefix}{number:07d}" for number in range(count)]
        with self.connect() as db:
            rows = [(key, PERSON, f"text of {key}: a remark of forty characters") for key in keys]
            db.cursor().executemany(f"INSERT INTO note VALUES ({mark}, {mark}, {mark})", rows)  # noqa: S608 - a mark
        now = self.services.clock.now()
        for start in range(0, count if register else 0, BATCH):
            items = [
                {"data_class": "memory", "store": "app", "subjects": [PERSON],
                 "locator": {"table": "note", "key": {"id": key}}}
                for key in keys[start : start + BATCH]
            ]  # fmt: skip
            with self.services.database.transaction(self.tenant.tenant_id) as session:
                artifacts.register(session, self.services.vault, self.acting("w"), items, now)
        return keys

    def delete(self, keys: list[str], *, singly: bool) -> float:
        """Seconds that deleting the rows takes an application."""
        mark = "?" if self.url.startswith("sqlite") else "%s"
        started = time.perf_counter()
        with self.connect() as db:
            if self.url.startswith("sqlite"):
                db.execute("PRAGMA synchronous = FULL")
            if singly:
                for key in keys:
                    db.execute(f"DELETE FROM note WHERE id = {mark}", (key,))  # noqa: S608 - a mark
                    db.commit()
            else:
                # A temporary list is what every database takes at this length.
                db.execute("CREATE TEMPORARY TABLE going (id TEXT PRIMARY KEY)")
                db.cursor().executemany(f"INSERT INTO going VALUES ({mark})", [(key,) for key in keys])  # noqa: S608
                db.execute("DELETE FROM note WHERE id IN (SELECT id FROM going)")
        return time.perf_counter() - started

    def erase(self, times: Times, *, memory: bool) -> None:
        """A whole request, measured."""
        parts, now = self.services.erasure, self.services.clock.now
        desk, planner = Desk(parts), Planner(parts)
        spec = {"right": "erasure", "subjects": [PERSON], "regulation": "gdpr", "jurisdiction": "DE-BY",
                "timezone": "Europe/Berlin"}  # fmt: skip
        request = str(desk.create(self.acting("ann"), spec, now())["id"])
        desk.verify_identity(self.acting("ann"), request, identifier=PERSON, method="m", evidence=None, now=now())
        started = time.perf_counter()
        planner.plan(self.acting("ann"), request, now())
        times.plan = time.perf_counter() - started
        if memory:
            tracemalloc.start()
        inner = dispatch.Dispatch._erase_store  # noqa: SLF001 - the step that is measured

        def timed(self_: Any, *given: Any) -> None:
            begun = time.perf_counter()
            inner(self_, *given)
            times.dispatched += time.perf_counter() - begun

        dispatch.Dispatch._erase_store = timed  # type: ignore[assignment,method-assign]  # noqa: SLF001 - as above
        try:
            started = time.perf_counter()
            plan_hash = Reader(parts).plan_view(self.acting("ann"), request)["hash"]
            planner.approve(self.acting("carol"), request, plan_hash, now())
            run_due(parts, self.tenant, now())
            times.whole = time.perf_counter() - started
        finally:
            dispatch.Dispatch._erase_store = inner  # type: ignore[method-assign]  # noqa: SLF001 - as above
        state = Reader(parts).get(self.acting("ann"), request)["state"]
        if state != "completed":
            message = f"the request is {state}"
            raise RuntimeError(message)
        if memory:
            times.peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()


def measure(make_url: Callable[[], str] | None, count: int, *, memory: bool) -> Times:
    """The times at one size, in a service of its own."""
    with tempfile.TemporaryDirectory(prefix="muniment-bench-") as name:
        bench = Bench(Path(name), make_url)
        times = Times()
        few = min(count, 500)
        times.native = min(bench.delete(bench.fill(count, "n", register=False), singly=False) for _ in range(3))
        times.singly = bench.delete(bench.fill(few, "s", register=False), singly=True) * count / few
        bench.fill(count, "c", register=True)
        bench.erase(times, memory=memory)
        bench.services.close()
        return times


def _database(url: str, numbers: Iterator[int]) -> str:
    return postgres.create_database(url, f"bench_{next(numbers)}")


def main() -> None:
    """Print a line a size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="2000,10000")
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--memory", action="store_true", help="Trace memory; the times are then of no use.")
    given = parser.parse_args()
    for count in (int(size) for size in given.sizes.split(",")):
        if given.postgres:
            with tempfile.TemporaryDirectory(prefix="muniment-bench-") as name, postgres.running(Path(name)) as url:
                numbers = itertools.count()
                made = partial(_database, url, numbers)
                times = measure(made, count, memory=given.memory)
        else:
            times = measure(None, count, memory=given.memory)
        print(
            f"{count:>7} copies: native {times.native:.3f} s, one by one {times.singly:.2f} s, "
            f"plan {times.plan:.2f} s, "
            f"product shape {times.dispatched:.2f} s = {times.native / times.dispatched:.3f} x native, "
            f"{times.singly / times.dispatched:.1f} x one by one; whole request {times.whole:.2f} s "
            f"({1e3 * times.whole / count:.2f} ms a copy), peak {times.peak / 2**20:.0f} MiB"
        )


if __name__ == "__main__":
    main()
