"""What registering and finding copies costs, beside the least a database could ask for. Ratios, not absolute figures.

Fills a registry with artifacts (1.3 people and one to three recent sources each, batches of 1,000, one transaction
each) and prints, from rounds run in turn:
  registration   artifacts/s through `registry.registration` against a plain batched INSERT of the same artifact rows
                 into a table with the same indexes and as many rows, whose pages lie as far apart;
  ids            finding the ids of a person's 1,000 scattered copies against a recursive CTE from their roots;
  selector       what a plan about that person is made from, in milliseconds;
  bytes          of the tables and indexes of an artifact, one edge and its people.
Of more than 200,000 artifacts 100,000 are registered, the others copied in the database (`bench.growing`).
On SQLite times are processor times (all work is in this process), on PostgreSQL they are elapsed times, or with
`--processor` those of this process and of the server's together, which other load on the machine leaves alone.
A round whose yardstick is over 1.5 times its own median is dropped.
Run: `python -m bench.registry [--artifacts N] [--grow-to N] [--postgres [--processor]]`; wanted are 1 and 10 million.
Filling takes longer than measuring: `--keep DIR --fill-only` fills a registry that later calls with `--keep DIR` find,
measure and grow, and each compares itself with the smallest one that was measured there. On PostgreSQL such a registry
lies in the empty database that `--url` names.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, SQLModel, col

from api.database import Database
from bench.growing import grow, refill
from erasure.selector import select_subjects
from infra.services import postgres
from registry.acting import Acting
from registry.artifacts import ids_of
from registry.classes import STARTER_CLASSES, put_class
from registry.models import Artifact, Tenant
from registry.registration import register
from registry.stores import put_store
from registry.tenants import create_tenant
from vault.keks import KekStore
from vault.providers import FileRoot
from vault.vault import Vault

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
BATCH = 1_000
ROOTS, COPIES, LEVELS = 20, 1_000, 5
PLAIN = "plain_artifact"
REGISTERED, MOST_REGISTERED = 100_000, 200_000
STATE = "bench.json"
SECOND, DERIVED = 0.3, 0.55
# CROSS JOIN keeps SQLite's planner to the one good order; PostgreSQL finds it by itself.
WALK = sa.text(
    "WITH RECURSIVE seen(id) AS (SELECT id FROM artifact WHERE tenant_id = :tenant AND id IN :roots "
    "UNION SELECT derivation.child FROM seen CROSS JOIN derivation WHERE derivation.tenant_id = :tenant "
    "AND derivation.parent_kind = 'a' AND derivation.parent = seen.id) SELECT id FROM seen"
).bindparams(sa.bindparam("roots", expanding=True))
Clock = Callable[[], float]


class Bench:
    """One registry with one tenant."""

    def __init__(self, folder: Path, url: str, *, processor: bool = False) -> None:
        self.folder = folder
        self.database = Database(url)
        self.vault = Vault(
            KekStore(folder / "keys", FileRoot(folder / "root", clock=lambda: datetime.now(UTC))),
            clock=lambda: datetime.now(UTC),
        )
        SQLModel.metadata.create_all(self.database.engine)
        plain = Artifact.__table__.to_metadata(sa.MetaData(), name=PLAIN)  # type: ignore[attr-defined] # SQLModel types no table
        for index in plain.indexes:
            index.name = f"plain_{index.name}"
        plain.metadata.create_all(self.database.engine)
        self.plain = plain
        with Session(self.database.engine) as session:
            known = session.scalars(sa.select(Tenant).where(col(Tenant.name) == "bench")).one_or_none()
            tenant = known or create_tenant(session, "bench", NOW)
            self.acting = Acting.system(tenant_id=tenant.id, tenant="bench", log_id=tenant.log_id)
            if known is None:
                put_class(session, self.acting, "memory", STARTER_CLASSES["memory"], NOW)
                config = {"kind": "sql", "config": {"url": "sqlite:////tmp/none.db"}}
                put_store(session, self.acting, "app", config, NOW, check_target=lambda *_: None)
            session.commit()
        self.random = random.Random(7)
        # In SQLite all work is this process's, so that its processor time leaves other load on the machine out.
        self.clock: Clock = time.process_time if self.database.on_sqlite else time.perf_counter
        if processor and not self.database.on_sqlite:
            with self.database.engine.connect() as connection:
                backend = connection.scalar(sa.text("SELECT pg_backend_pid()"))
            self.clock = lambda: time.process_time() + run_time(backend)
        self.made = 0
        self.copied = 0
        """Artifacts that were not registered, but are copies of those that were."""
        self.recent: dict[int, str] = {}
        self.older: dict[int, str] = {}
        self.people: list[int | None] = []
        self.newest: list[str] = []
        self.measured: dict[str, dict[str, float]] = {}
        """What was measured here before, by the number of artifacts."""
        if (folder / STATE).exists():
            self._remember(json.loads((folder / STATE).read_text()))

    def _remember(self, state: dict[str, Any]) -> None:
        self.made, self.copied, self.measured = state["made"], state["copied"], state["measured"]
        self.recent = {int(person): name for person, name in state["recent"].items()}
        self.older = {int(person): name for person, name in state["older"].items()}
        self.random = random.Random(self.made)

    def keep(self) -> None:
        """Let a later process go on where this one ends."""
        names = ("made", "copied", "measured", "recent", "older")
        (self.folder / STATE).write_text(json.dumps({name: getattr(self, name) for name in names}))

    def fill(self, artifacts: int) -> None:
        """Have about so many artifacts: some registered, the others copied from them."""
        if self.made + self.copied >= artifacts * 0.9:
            return
        wanted = artifacts if artifacts <= MOST_REGISTERED else REGISTERED
        while self.made + self.copied < wanted * 0.9:
            self.register(self.items(BATCH))
        if artifacts > max(MOST_REGISTERED, self.made + self.copied):
            self.copied = grow(self.database.engine, self.acting.tenant_id, artifacts) - self.made
        refill(self.database.engine, self.plain, Artifact.__table__)  # type: ignore[attr-defined] # SQLModel types no table
        self.settle()

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A transaction that commits at its end."""
        with Session(self.database.engine, expire_on_commit=False) as session:
            yield session
            session.commit()

    def items(self, count: int) -> list[dict[str, Any]]:
        """The next items: 1.3 people and about one edge each, as the issue has it.

        Half of them are somebody's own; half are made from one to three recent items of the same person, and every
        third of all is about a second person as well, one of a few whom the first one deals with.
        """
        found = []
        for number in range(self.made, self.made + count):
            person = self.random.randrange(max(100, (self.made + count) // 20))
            people = [person]
            if self.random.random() < SECOND:
                people.append(person ^ self.random.choice((1, 2)))
            one: dict[str, Any] = {
                "data_class": "memory", "store": "app", "locator": {"table": "m", "key": {"id": number}},
            }  # fmt: skip
            known = [self.recent[who] for who in people if who in self.recent]
            if len(known) == len(people) and self.random.random() < DERIVED:
                wanted = max(len(known), self.random.choice((1, 2, 3)))
                one["sources"] = [*known, *([self.recent_of(person)] * (wanted - len(known)))]
            else:
                one["subjects"] = [f"user:u{who}" for who in people]
            self.people.append(person if len(people) == 1 else None)
            found.append(one)
        self.made += count
        return found

    def recent_of(self, person: int) -> str:
        """An older item of a person."""
        return self.older.get(person, self.recent[person])

    def register(self, items: list[dict[str, Any]]) -> float:
        """Register a batch; seconds."""
        started = self.clock()
        with self.session() as session:
            results = register(session, self.vault, self.acting, items, NOW)
        took = self.clock() - started
        if not all(one["status"] == "created" for one in results):
            raise SystemExit(f"an item was not created: {results[0]}")
        for person, one in zip(self.people, results, strict=False):
            if person is not None:
                if person in self.recent:
                    self.older[person] = self.recent[person]
                self.recent[person] = one["id"]
        self.people = []
        self.newest = [one["id"] for one in results]
        return took

    def insert_plain(self) -> float:
        """Insert the newest batch's artifact rows again into a table with the same indexes; seconds."""
        with self.session() as session:
            numbers = [int(name.removeprefix("art_"), 16) for name in self.newest]
            rows = session.execute(sa.select(Artifact.__table__).where(col(Artifact.id).in_(numbers)))  # type: ignore[attr-defined] # as above
            values = [dict(row._mapping) for row in rows]  # noqa: SLF001 - SQLAlchemy's public name for it
        started = self.clock()
        with self.session() as session:
            session.connection().execute(sa.insert(self.plain), values)
        return self.clock() - started

    def scatter(self, person: str, copies: int) -> None:
        """A person with roots and copies over several levels, between other people's items."""
        roots = [f"art_{person}_0_{n}" for n in range(ROOTS)]
        self._place([{"id": name, "subjects": [f"user:{person}"]} for name in roots])
        level = roots
        per_level = (copies - ROOTS) // LEVELS
        for depth in range(1, LEVELS + 1):
            names = [f"art_{person}_{depth}_{n}" for n in range(per_level)]
            self._place([{"id": name, "sources": [self.random.choice(level)]} for name in names])
            level = names

    def _place(self, items: list[dict[str, Any]]) -> None:
        for start in range(0, len(items), 50):
            some = items[start : start + 50]
            for one in some:
                one |= {"data_class": "memory", "store": "app", "locator": {"table": "m", "key": {"id": one["id"]}}}
            self.register(some)  # nobody else is made from this person's copies
            self.register(self.items(200))

    def ids_by_index(self, session: Session, subject_no: int) -> int:
        """How many ids the index gives."""
        return len(ids_of(session, self.acting.tenant_id, (subject_no,)))

    def ids_by_walk(self, session: Session, roots: list[int]) -> int:
        """How many ids a recursive query from the person's roots gives."""
        found = session.execute(WALK, {"tenant": self.acting.tenant_id, "roots": roots})
        return len(found.all())

    def selected(self, session: Session, subject_no: int) -> int:
        """How many copies a plan about a person would have."""
        people = frozenset((subject_no,))
        return len(select_subjects(session, self.acting.tenant_id, people, owner="req", claim=None, now=NOW).artifacts)

    def settle(self) -> None:
        """What autovacuum does within minutes; SQLite plans without statistics."""
        if not self.database.on_sqlite:
            with self.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.execute(sa.text("VACUUM ANALYZE"))

    def bytes_each(self) -> dict[str, float]:
        """Bytes of an artifact with its people and edges, by table, indexes included."""
        tables = ("artifact", "derivation", "subject_set", "subject_set_member")
        with self.session() as session:
            if self.database.on_sqlite:
                rows = session.execute(sa.text("SELECT name, SUM(pgsize) AS n FROM dbstat GROUP BY name")).all()
                owner = {
                    row.name: row.tbl_name
                    for row in session.execute(sa.text("SELECT name, tbl_name FROM sqlite_master"))
                }
                sizes: dict[str, float] = {}
                for row in rows:
                    table = owner.get(row.name, row.name)
                    sizes[table] = sizes.get(table, 0) + row.n
            else:
                sizes = {
                    name: session.scalar(sa.text("SELECT pg_total_relation_size(:name)"), {"name": name}) or 0
                    for name in tables
                }
            count = session.scalar(sa.select(sa.func.count()).select_from(Artifact)) or 1
        return {name: sizes[name] / count for name in tables}


def run_time(process: int) -> float:
    """The seconds that a process has had a processor. Source: Linux, Documentation/scheduler/sched-stats.rst."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9


def timed(clock: Clock, call: Callable[[], int], expected: int) -> float:
    """The seconds of a call that must find that many."""
    started = clock()
    found = call()
    took = clock() - started
    if found != expected:
        raise SystemExit(f"found {found} copies, expected {expected}")
    return took


def ratios(pairs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Medians of yardstick and ours, and of their ratio, without rounds whose yardstick was disturbed."""
    middle = statistics.median(yard for yard, _ in pairs)
    kept = [(yard, ours) for yard, ours in pairs if yard <= 1.5 * middle]
    return (
        statistics.median(yard for yard, _ in kept),
        statistics.median(ours for _, ours in kept),
        statistics.median(ours / yard for yard, ours in kept),
    )


def measure(bench: Bench, rounds: int) -> dict[str, float]:
    """Measure, print; the ratios by name, and the seconds of a batch and of one search."""
    person = f"wanted{bench.made}"
    pairs = []
    for _ in range(rounds):
        items = bench.items(BATCH)
        ours = bench.register(items)
        pairs.append((bench.insert_plain(), ours))
    yard, ours, share = ratios(pairs)
    batch_s = ours
    print(
        f"registration: plain INSERT {BATCH / yard:,.0f}/s, registered {BATCH / ours:,.0f}/s, "
        f"ratio {1 / share:.2f} (wanted ≥ 0.25)"
    )
    bench.scatter(person, COPIES)
    bench.settle()
    with bench.session() as session:
        roots = session.execute(
            sa.select(col(Artifact.id), col(Artifact.set_id)).where(
                col(Artifact.given_id).like(f"art\\_{person}\\_0\\_%", escape="\\")
            )
        ).all()
        query = sa.text("SELECT subject_no FROM subject_set_member WHERE set_id = :set")
        subject_no = session.scalars(query, {"set": roots[0].set_id}).one()
    expected = ROOTS + (COPIES - ROOTS) // LEVELS * LEVELS
    numbers = [row.id for row in roots]
    with bench.session() as session:
        finds = [
            (
                timed(bench.clock, lambda: bench.ids_by_walk(session, numbers), expected),
                timed(bench.clock, lambda: bench.ids_by_index(session, subject_no), expected),
            )
            for _ in range(10 * rounds)
        ]
    yard, ours, found = ratios(finds)
    print(
        f"ids of {expected} copies among {bench.made + bench.copied:,}: recursive CTE {yard * 1000:.2f} ms, "
        f"index {ours * 1000:.2f} ms, ratio {found:.2f} (wanted ≤ 0.35)"
    )
    selected = []
    for _ in range(10 * rounds):
        with bench.session() as session:
            selected.append(timed(bench.clock, lambda: bench.selected(session, subject_no), expected))
    middle = statistics.median(selected)
    print(f"selector of a plan about them: {middle * 1000:.1f} ms, at most {max(selected) * 1000:.1f} ms")
    sizes = bench.bytes_each()
    total = sum(sizes.values())
    listed = ", ".join(f"{name} {size:.0f}" for name, size in sizes.items())
    print(f"bytes an artifact: {total:.0f} ({listed}; wanted ≤ {360 if bench.database.on_sqlite else 620})")
    return {"registration": 1 / share, "ids": found, "bytes": total, "batch_s": batch_s, "search_s": ours}


def main() -> None:
    """Run on SQLite, or on the PostgreSQL that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifacts", type=int, default=100_000)
    parser.add_argument("--grow-to", type=int, default=0, help="Measure again at this size, and compare.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--processor", action="store_true", help="On PostgreSQL processor times, of both processes.")
    parser.add_argument("--postgres", action="store_true", help="On a PostgreSQL of its own instead of SQLite.")
    parser.add_argument("--keep", type=Path, help="The folder of a registry that stays, and may be there already.")
    parser.add_argument("--url", help="The PostgreSQL database of a registry that stays.")
    parser.add_argument("--fill-only", action="store_true", help="Only have a registry of that size.")
    options = parser.parse_args()
    on_postgres = options.postgres or options.url is not None
    print(f"{options.artifacts:,} artifacts on {'PostgreSQL' if on_postgres else 'SQLite'}")
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        run(options.keep, options.url or f"sqlite:///{options.keep}/registry.db", options)
        return
    with tempfile.TemporaryDirectory(prefix="muniment-bench-") as name:
        folder = Path(name)
        if not on_postgres:
            run(folder, f"sqlite:///{folder}/registry.db", options)
            return
        folder.chmod(0o755)  # PostgreSQL does not run as root, and must get at its files
        with postgres.running(folder / "server") as url:
            run(folder, postgres.create_database(url, "bench"), options)


def run(folder: Path, url: str, options: argparse.Namespace) -> None:
    """Measure one registry, and again when it has grown."""
    bench = Bench(folder, url, processor=options.processor)
    for size in [options.artifacts, *([options.grow_to] if options.grow_to else [])]:
        bench.fill(size)
        if not options.fill_only:
            bench.measured[str(size)] = measure(bench, options.rounds)
            compare(bench, size)
        bench.keep()
    bench.database.close()


def compare(bench: Bench, size: int) -> None:
    """Print how a registry of that size does beside the smallest one that was measured."""
    smallest = min(map(int, bench.measured))
    if size == smallest:
        return
    small, large = bench.measured[str(smallest)], bench.measured[str(size)]
    speed, time_ratio = small["batch_s"] / large["batch_s"], large["search_s"] / small["search_s"]
    print(
        f"{size:,} against {smallest:,}: registration {speed:.2f} of the speed "
        f"(wanted ≥ 0.6 at 10 M against 1 M), ids {time_ratio:.2f} of the time (wanted ≤ 1.2)"
    )


if __name__ == "__main__":
    main()
