"""What an erasure costs beside the deletes that it makes. Ratios, not absolute figures.

A person has N rows in a table of a store. Measured, on SQLite and with `--postgres` on PostgreSQL (service and store,
written durably):
  native         one statement that deletes N rows by a list of keys in one transaction, right before each erasure and
                 with rows of its own;
  plain          deletes by key of an application, each in its own transaction, nothing decided or written down: what
                 `limits.md` calls one by one; 500, scaled; with what one of them, mostly its commit, takes;
  one by one     the product shape for 500 copies of another person, one copy a batch and a commit each, scaled;
  product shape  lock, decide, erase, read again, receipts, state, in batches (`erasure.dispatch`), of a plan;
  whole request  from approval to the interim certificate, with the bytes freed and looked for, keys and all;
  stores         what of the plan, and of the whole request, the store's own connector took;
  queue          what of the whole request is no step of the work: looking for what is due, leases, whose turn it is; of
                 renewals, which a thread makes beside the work, their processor time; besides that all their time, most
                 of which is waiting until the work lets another thread run;
  memory         the most that Python held while it planned, and in the whole request.
`--rows` puts the person's rows among those of others, as the goals have it (a million): each row of a kilobyte, each of
the person's on a page of its own. The class then asks for L1 only, since the other levels read the whole table.
PostgreSQL is asked for a checkpoint before each run, so that each finds its pages as an erasure finds them, untouched
since the last one; `--warm` leaves that out, which favours the single statement. Times are medians of `--rounds`, each
with another person, and the first ratio has its lowest and highest beside it. With `--sizes 1000,10000` it prints
the cost of a copy at each size: flat is linear. `--five` measures 50 copies in five embedded stores instead.
`--plan L2` measures planning alone, of copies that are to be shown gone from the store's files: what each copy held is
then told from what the rest of the table holds (`connectors.residue`).
Run: `python -m bench.erasure [--sizes 2000,10000] [--postgres] [--rows N] [--warm] [--rounds N] [--memory] [--five]`
or with `[--plan LEVEL]`
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import sqlite3
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
import sqlalchemy as sa

from api import administration, folder, migrate
from api.settings import load
from api.wiring import Services, build
from bench.stores import DURABLE
from connectors.base import Connector
from erasure import dispatch, leases, worker
from erasure.desk import Desk
from erasure.parts import Parts, Tenant
from erasure.planning import Planner
from erasure.reader import Reader
from infra.services import postgres
from registry import artifacts
from registry.acting import Acting
from registry.classes import STARTER_CLASSES, put_class
from registry.models import StoreRow
from registry.stores import put_store

PERSON, OTHER = "user:many", "user:few"
BATCH = 1_000
SINGLY = 500
VERBS = ("capture", "erase", "await_done", "reclaim", "verify")


@dataclass(slots=True)
class Times:
    """Seconds, and bytes of memory."""

    native: float = 0.0
    plain: float = 0.0
    singly: float = 0.0
    plan: float = 0.0
    plan_stores: float = 0.0
    dispatched: float = 0.0
    whole: float = 0.0
    stores: float = 0.0
    queue: float = 0.0
    queue_waiting: float = 0.0
    plan_peak: int = 0
    peak: int = 0


class Clocks:
    """Seconds spent in methods and functions, by name, over all threads."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.spent: dict[str, float] = {}

    def watch(self, owner: Any, name: str, label: str, clock: Callable[[], float] = time.perf_counter) -> None:
        """Count what this method or function of `owner` takes from now on, by that clock, until the stack ends."""
        inner = getattr(owner, name)
        self.spent.setdefault(label, 0.0)

        def timed(*given: Any, **named: Any) -> Any:
            begun = clock()
            try:
                return inner(*given, **named)
            finally:
                self.spent[label] += clock() - begun

        setattr(owner, name, timed)
        self._stack.callback(setattr, owner, name, inner)

    def before(self, owner: Any, name: str, act: Callable[[], None]) -> None:
        """Do something before each call of this method, outside its time, until the stack ends."""
        inner = getattr(owner, name)

        def prepared(*given: Any, **named: Any) -> Any:
            act()
            return inner(*given, **named)

        setattr(owner, name, prepared)
        self._stack.callback(setattr, owner, name, inner)


class Bench:
    """A service and a store."""

    def __init__(self, base: Path, make_url: Callable[[], str] | None, *, warm: bool = False) -> None:
        self.base = base
        self.warm = warm
        self.sets = 0
        self.gap = 0
        (base / "stores").mkdir()
        self.url = f"sqlite:///{base}/stores/app.db" if make_url is None else make_url()
        more: dict[str, Any] = {} if make_url is None else {"database_url": make_url()}
        allowed = f"file:{base}/stores/**,sqlite:{base}/stores/**,127.0.0.1:*,localhost:*"
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

    def keys(self, count: int, owner: str) -> list[str]:
        """The keys of a set of rows that is nobody's yet: among those of strangers, or made now where there are none.

        From now on they are `owner`'s: no row is written again for that where it lies among others.
        """
        self.sets += 1
        keys = [f"c{place * self.gap + self.sets:07d}" for place in range(count)]
        if not self.gap:
            keys = [f"s{self.sets}-{place:07d}" for place in range(count)]
            with self.connect() as db:
                rows = [(key, owner, f"text of {key}: a remark of forty characters") for key in keys]
                mark = self.mark
                db.cursor().executemany(f"INSERT INTO note VALUES ({mark}, {mark}, {mark})", rows)  # noqa: S608 - a mark
        return keys

    @property
    def mark(self) -> str:
        """How the store's driver marks a value."""
        return "?" if self.url.startswith("sqlite") else "%s"

    def register(self, keys: Sequence[str], owner: str) -> None:
        """Let the service know of the owner's rows."""
        now = self.services.clock.now()
        for start in range(0, len(keys), BATCH):
            items = [
                {"data_class": "memory", "store": "app", "subjects": [owner],
                 "locator": {"table": "note", "key": {"id": key}}}
                for key in keys[start : start + BATCH]
            ]  # fmt: skip
            with self.services.database.transaction(self.tenant.tenant_id) as session:
                artifacts.register(session, self.services.vault, self.acting("w"), items, now)

    def even(self) -> None:
        """Let the next run find every page as after a checkpoint, which PostgreSQL then writes whole at first."""
        if self.warm or self.url.startswith("sqlite"):
            return
        with self.connect() as db:
            db.autocommit = True
            db.execute("CHECKPOINT")

    def delete(self, keys: list[str], *, singly: bool) -> float:
        """Seconds that deleting the rows takes an application."""
        self.even()
        with self.connect() as db:
            on_sqlite = self.url.startswith("sqlite")
            if on_sqlite:
                db.execute("PRAGMA synchronous = FULL")
            started = time.perf_counter()
            if singly:
                for key in keys:
                    db.execute(f"DELETE FROM note WHERE id = {self.mark}", (key,))  # noqa: S608 - a mark
                    db.commit()
            elif on_sqlite:
                listed = "DELETE FROM note WHERE id IN (SELECT value FROM json_each(?))"
                db.execute(listed, (json.dumps(keys),))
            else:
                db.execute("DELETE FROM note WHERE id = ANY(%s)", (keys,))
            db.commit()
            return time.perf_counter() - started

    def add(self, store: str, kind: str, config: dict[str, Any], locators: list[dict[str, Any]]) -> None:
        """One more store, and the person's items in it."""
        now = self.services.clock.now()
        items = [{"data_class": "memory", "store": store, "subjects": [PERSON], "locator": place} for place in locators]
        with self.services.database.transaction(self.tenant.tenant_id) as session:
            spec = {"kind": kind, "config": config}
            put_store(session, self.acting("p"), store, spec, now, check_target=lambda *_: None)
            artifacts.register(session, self.services.vault, self.acting("w"), items, now)

    def level(self, required: str) -> None:
        """Let the class ask for another level."""
        now = self.services.clock.now()
        with self.services.database.transaction(self.tenant.tenant_id) as session:
            spec = {**STARTER_CLASSES["memory"], "erasure": {"on_request": "erase", "required": required}}
            put_class(session, self.acting("p"), "memory", spec, now)

    def strangers(self, rows: int, count: int, owners: Mapping[int, str]) -> None:
        """Rows of a kilobyte each; of every so many, some wait to be the rows of a set (`keys`), others never are.

        `owners`: whose the rows of a set are, by its number.
        """
        self.gap = rows // count
        made = (
            (f"c{number:07d}", owners.get(number % self.gap, "user:other"), _text(number)) for number in range(rows)
        )
        with self.connect() as db:
            if self.url.startswith("sqlite"):
                db.executemany("INSERT INTO note VALUES (?, ?, ?)", made)
                return
            with db.cursor().copy("COPY note FROM STDIN") as copy:
                for row in made:
                    copy.write_row(row)
            db.execute("ANALYZE note")

    def ask(self, parts: Parts, owner: str) -> str:
        """A verified request of a person."""
        desk, now = Desk(parts), self.services.clock.now
        spec = {"right": "erasure", "subjects": [owner], "regulation": "gdpr", "jurisdiction": "DE-BY",
                "timezone": "Europe/Berlin"}  # fmt: skip
        request = str(desk.create(self.acting("ann"), spec, now())["id"])
        desk.verify_identity(self.acting("ann"), request, identifier=owner, method="m", evidence=None, now=now())
        return request

    def erase(self, times: Times, owner: str = PERSON, *, memory: bool = False, singly: bool = False) -> None:
        """A whole request, measured; `singly` sends one copy at a time."""
        with ExitStack() as stack:
            if singly:
                stack.callback(setattr, dispatch, "_MOST_AT_ONCE", dispatch._MOST_AT_ONCE)  # noqa: SLF001 - what is measured
                dispatch._MOST_AT_ONCE = 1  # noqa: SLF001 - as above
            self._erase(times, owner, Clocks(stack), memory=memory, singly=singly)

    def _erase(self, times: Times, owner: str, clocks: Clocks, *, memory: bool, singly: bool) -> None:
        now = self.services.clock.now

        def connect(store: StoreRow, read_only: bool) -> Connector:  # noqa: FBT001 - the form of `Parts.connect`
            connector = self.services.erasure.connect(store, read_only)
            if singly and not read_only:
                able = replace(connector.capabilities(), batch_size=1)
                setattr(connector, "capabilities", lambda: able)  # noqa: B010 - a method of one object
            for verb in VERBS:
                clocks.watch(connector, verb, "stores")
            return connector

        parts = replace(self.services.erasure, connect=connect)
        planner, request = Planner(parts), self.ask(parts, owner)
        if memory:
            tracemalloc.start()
        started = time.perf_counter()
        planner.plan(self.acting("ann"), request, now())
        times.plan, times.plan_stores = time.perf_counter() - started, clocks.spent.get("stores", 0.0)
        if memory:
            times.plan_peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.reset_peak()
        clocks.watch(dispatch.Dispatch, "_erase_store", "dispatched")
        clocks.before(dispatch.Dispatch, "_erase_store", self.even)
        clocks.watch(worker, "run_due", "due")
        for name in ("execute", "confirm", "_complete"):
            clocks.watch(worker, name, "steps")
        clocks.watch(dispatch.Dispatch, "run", "dispatch")
        for name in ("_complete_captures", "_side_by_side"):
            clocks.watch(dispatch.Dispatch, name, "waited")
        clocks.watch(leases.Lease, "renew", "leases", time.thread_time)
        clocks.watch(leases.Lease, "renew", "renewed")
        started = time.perf_counter()
        plan_hash = Reader(parts).plan_view(self.acting("ann"), request)["hash"]
        planner.approve(self.acting("carol"), request, plan_hash, now())
        worker.run_due(parts, self.tenant, now())
        times.whole = time.perf_counter() - started
        spent = clocks.spent
        times.dispatched, times.stores = spent["dispatched"], spent.get("stores", 0.0) - times.plan_stores
        beside = spent["due"] - spent["steps"] + spent["dispatch"] - spent["waited"]
        times.queue, times.queue_waiting = beside + spent["leases"], beside + spent["renewed"]
        state = Reader(parts).get(self.acting("ann"), request)["state"]
        if state != "completed":
            message = f"the request is {state}"
            raise RuntimeError(message)
        if memory:
            times.peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()


def measure(
    make_url: Callable[[], str] | None, count: int, *, rows: int, memory: bool, warm: bool, rounds: int
) -> list[Times]:
    """The times of each round at one size, in one service."""
    with tempfile.TemporaryDirectory(prefix="muniment-bench-") as name:
        bench = Bench(Path(name), make_url, warm=warm)
        people = [PERSON, *(f"{PERSON}{number}" for number in range(1, rounds))]
        few = min(count, SINGLY)
        if rows:
            owners = dict(enumerate([*people, OTHER], start=1))
            if rows // count <= len(owners) + rounds + 1:
                message = f"{rows} rows are too few for {rounds} rounds of {count} copies"
                raise SystemExit(message)
            bench.strangers(rows, count, owners)
            bench.level("L1")
        for owner, wanted in (*((person, count) for person in people), (OTHER, few)):
            bench.register(bench.keys(wanted, owner), owner)
        plain = bench.delete(bench.keys(few, PERSON), singly=True) * count / few
        once = Times()
        if not memory:
            bench.erase(once, OTHER, singly=True)
        made = []
        for person in people:
            native = bench.delete(bench.keys(count, person), singly=False)
            times = Times(native=native, plain=plain, singly=once.dispatched * count / few)
            bench.erase(times, person, memory=memory)
            made.append(times)
        bench.services.close()
        return made


def middle(made: Sequence[Times]) -> Times:
    """The median of each time."""
    names = [one.name for one in fields(Times)]
    return Times(**{name: median(getattr(times, name) for times in made) for name in names})


def planned(make_url: Callable[[], str] | None, count: int, *, rows: int, level: str) -> float:
    """The seconds that a plan takes of copies that must reach a level."""
    with tempfile.TemporaryDirectory(prefix="muniment-bench-") as name:
        bench = Bench(Path(name), make_url)
        if rows:
            bench.strangers(rows, count, {1: PERSON})
        bench.level(level)
        bench.register(bench.keys(count, PERSON), PERSON)
        request, planner = bench.ask(bench.services.erasure, PERSON), Planner(bench.services.erasure)
        started = time.perf_counter()
        planner.plan(bench.acting("ann"), request, bench.services.clock.now())
        taken = time.perf_counter() - started
        bench.services.close()
        return taken


def five() -> Times:
    """50 copies in five embedded stores: files, and four databases."""
    with tempfile.TemporaryDirectory(prefix="muniment-bench-") as name:
        bench, times = Bench(Path(name), None), Times()
        bench.register(bench.keys(10, PERSON), PERSON)
        for number in range(3):
            path = bench.base / "stores" / f"more{number}.db"
            with closing(sqlite3.connect(path)) as db:
                db.execute("CREATE TABLE note (id TEXT PRIMARY KEY, owner TEXT, text TEXT)")
                kept = [(f"m{place}", PERSON, f"more {number}: remark {place} of somebody") for place in range(10)]
                db.executemany("INSERT INTO note VALUES (?, ?, ?)", kept)
                db.commit()
            places = [{"table": "note", "key": {"id": f"m{place}"}} for place in range(10)]
            bench.add(f"more{number}", "sql", {"url": f"sqlite:///{path}", "owner_field": "owner"}, places)
        files = bench.base / "stores" / "files"
        files.mkdir()
        for place in range(10):
            (files / f"{place}.txt").write_text(f"text {place} of somebody who leaves")
        bench.add("files", "files", {"root": str(files)}, [{"path": f"{place}.txt"} for place in range(10)])
        bench.erase(times)
        bench.services.close()
        return times


def _text(number: int) -> str:
    """A kilobyte that no other row holds, in words."""
    letters = hashlib.shake_128(number.to_bytes(4, "big")).hexdigest(400)
    return " ".join(letters[start : start + 8] for start in range(0, len(letters), 8))


def _database(url: str, numbers: Iterator[int]) -> str:
    return postgres.create_database(url, f"bench_{next(numbers)}")


@contextmanager
def _service(given: argparse.Namespace) -> Iterator[Callable[[], str] | None]:
    """What makes databases on a PostgreSQL of its own; nothing where all lies on SQLite."""
    if not given.postgres:
        yield None
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="muniment-bench-")))
        url = stack.enter_context(postgres.running(folder, settings=DURABLE))
        yield partial(_database, url, itertools.count())


def _at(count: int, given: argparse.Namespace) -> list[Times]:
    with _service(given) as make_url:
        return measure(make_url, count, rows=given.rows, memory=given.memory, warm=given.warm, rounds=given.rounds)


def main() -> None:
    """Print a line a size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="2000,10000")
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--rows", type=int, default=0, help="Rows of others in the table.")
    parser.add_argument("--warm", action="store_true", help="No checkpoint before each run.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", action="store_true", help="Trace memory; the times are then of no use.")
    parser.add_argument("--five", action="store_true", help="50 copies over five embedded stores.")
    parser.add_argument("--plan", metavar="LEVEL", help="Planning alone, of copies that must reach this level.")
    given = parser.parse_args()
    if given.five:
        print(f"50 copies in 5 stores: from approval to the interim certificate {five().whole:.2f} s (goal 2 s)")
        return
    for count in (int(size) for size in given.sizes.split(",")):
        if given.plan:
            with _service(given) as make_url:
                taken = planned(make_url, count, rows=given.rows, level=given.plan)
            print(f"{count:>7} copies, {given.rows:,} rows of others: planned for {given.plan} in {taken:.1f} s")
            continue
        made = _at(count, given)
        times, beside = middle(made), sorted(one.native / one.dispatched for one in made)
        shares = sorted(100 * one.queue / one.stores for one in made)
        print(
            f"{count:>7} copies: native {times.native:.3f} s, plain {times.plain:.2f} s "
            f"({1e3 * times.plain / count:.2f} ms each), "
            f"one by one {times.singly:.2f} s, plan {times.plan:.2f} s (stores {times.plan_stores:.2f} s), "
            f"product shape {times.dispatched:.3f} s = {median(beside):.3f} x native "
            f"[{beside[0]:.3f}..{beside[-1]:.3f}], "
            f"{times.plain / times.dispatched:.1f} x plain, {times.singly / times.dispatched:.1f} x one by one; "
            f"whole request {times.whole:.2f} s "
            f"({1e3 * times.whole / count:.2f} ms a copy; stores {times.stores:.2f} s, queue {times.queue:.3f} s = "
            f"{median(shares):.1f} % of them [{shares[0]:.1f}..{shares[-1]:.1f}], "
            f"{100 * times.queue_waiting / times.stores:.1f} % with what renewals waited)"
            + (
                f", peak {times.plan_peak / 2**20:.0f} MiB planning and {times.peak / 2**20:.0f} MiB after it"
                if given.memory
                else ""
            )
        )


if __name__ == "__main__":
    main()
