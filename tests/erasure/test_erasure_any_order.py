"""Any sequence of calls over the real service, with people, holds, late data and lying stores in between.

What `test_erasure_explorer` shows of the pure rules is shown here of the service: desk, planner, worker, registry,
vault, record and stores are the real ones, and the truth is what lies in the stores. Invariants, after every call:
 1. nothing is `completed` with a copy that is open, failed, unverified, not covered, or still in its store;
 2. of a person's erasures at most one is planned and not over;
 3. what a hold is on stays in its store;
 4. what nobody approved stays in its store.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlmodel import col, select

from connectors.memory import Faults
from erasure.errors import ErasureError
from erasure.history import fact_of
from erasure.models import CopyRow, RequestRow
from erasure.request import CONTENDING, State, is_settled
from erasure.worker import run_due
from registry.artifacts import find_artifacts
from registry.errors import RegistryError
from retention.models import HoldRow
from tests.erasure.conftest import ADA, BOB

PEOPLE = (ADA, BOB)
DESK = ("ann", "ben", "carol", "dan")
FAULTS = (
    Faults(), Faults(unreachable=True), Faults(reclaim_does_nothing=True), Faults(fail_after=frozenset({1})),
    Faults(keeps=frozenset({"k1", "k3"})), Faults(refuses=frozenset({"k2"})), Faults(search_returns=frozenset({"k1"})),
)  # fmt: skip
REFUSED = (ErasureError, RegistryError)


class Calls:
    """Random calls by a seed; what they were is kept, so that a broken invariant comes with its way."""

    def __init__(self, world: Any, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.store = world.memory_store("odd")
        self.way: list[str] = []
        self.names: dict[str, str] = {}
        self.places: dict[str, Callable[[], bool]] = {}
        """What is held about somebody: by the artifact's name, whether its store still has it."""
        self.held: dict[str, list[str]] = {}
        self.number = 0

    def run(self, count: int) -> None:
        """That many calls, each checked."""
        for _ in range(4):
            self.note()
        self.ask()
        for _ in range(count):
            call = self.random.choice(self.calls())
            self.way.append(call.__name__)
            try:
                call()
            except REFUSED as error:
                self.way[-1] += f": {type(error).__name__}"
            self.check()

    def calls(self) -> list[Callable[[], None]]:
        """What may come next; what brings a request on comes more often than what disturbs it."""
        onward = [self.verify, self.plan, self.plan, self.approve, self.approve, self.work, self.work, self.work]
        desk = [self.ask, self.pause, self.resume, self.resume, self.retry, self.accept, self.settle, self.settle]
        seldom = [self.cancel] if self.is_likely(0.2) else []
        return [*onward, *onward, *desk, *seldom, self.note, self.hold, self.release, self.mislead, self.wait]

    # ── the desk ──────────────────────────────────────────────────────────────────────────────────────────────

    def requests(self, *states: State) -> list[RequestRow]:
        with self.world.parts.transactions(self.world.tenant.tenant_id, write=False) as session:
            query = select(RequestRow).where(col(RequestRow.state).in_(states)) if states else select(RequestRow)
            return list(session.exec(query.order_by(col(RequestRow.request_no))))

    def one(self, *states: State) -> str:
        """A request, mostly one in a state in which the call makes sense."""
        rows = self.requests(*states) if self.is_likely(0.9) else self.requests()
        return self.random.choice(rows or self.requests()).request_id

    def is_likely(self, share: float) -> bool:
        return self.random.random() < share

    def by(self) -> Any:
        return self.world.acting(self.random.choice(DESK))

    def ask(self) -> None:
        person = self.random.choice(PEOPLE)
        spec = {"right": "erasure", "subjects": [person], "regulation": "gdpr", "timezone": "UTC"}
        self.names[str(self.world.desk.create(self.by(), spec, self.world.now)["id"])] = person

    def verify(self) -> None:
        request = self.one(State.RECEIVED)
        person = self.names[request] if self.is_likely(0.9) else self.random.choice(PEOPLE)
        self.world.desk.verify_identity(
            self.by(), request, identifier=person, method="passport", evidence=None, now=self.world.now
        )

    def plan(self) -> None:
        self.world.planner.plan(self.by(), self.one(State.VERIFIED, State.PLANNED), self.world.now)

    def approve(self) -> None:
        request = self.one(State.PLANNED)
        given = self.world.reader.plan_view(self.by(), request)["hash"]
        self.world.planner.approve(self.by(), request, given if self.is_likely(0.9) else "0" * 64, self.world.now)

    def cancel(self) -> None:
        self.world.desk.cancel(self.by(), self.one(), now=self.world.now)

    def pause(self) -> None:
        self.world.desk.pause(self.by(), self.one(), reason="identity", now=self.world.now)

    def resume(self) -> None:
        paused = [row.request_id for row in self.requests() if "paused_at" in row.details]
        self.world.desk.resume(self.by(), self.random.choice(paused or [self.one()]), now=self.world.now)

    def retry(self) -> None:
        self.world.desk.retry(self.by(), self.one(State.PARTIALLY_FAILED), now=self.world.now)

    def accept(self) -> None:
        request = self.one(State.PARTIALLY_FAILED)
        self.world.desk.accept_exceptions(self.by(), request, reason="it is what it is", now=self.world.now)

    def settle(self) -> None:
        request = self.one(State.EXECUTING, State.VERIFYING, State.PARTIALLY_FAILED)
        copies = self.world.rows(request)
        asked = [copy for copy in copies if copy.state in {"awaiting_human", "failed", "unreachable"}]
        number = self.random.choice(asked or copies).copy_no if copies else 1
        outcome = self.random.choice(["erase", "erased", "retained", "failed", "retry"])
        self.world.desk.settle_copy(self.by(), request, number, outcome=outcome, comment="seen", now=self.world.now)

    # ── everybody else ────────────────────────────────────────────────────────────────────────────────────────

    def work(self) -> None:
        self.world.now += timedelta(minutes=self.random.choice([1, 10, 60]))
        run_due(self.world.parts, self.world.tenant, self.world.now)

    def wait(self) -> None:
        self.world.now += timedelta(days=2)

    def note(self) -> None:
        """New data: a row, a file that is about both, or something in the store that may lie."""
        self.number += 1
        person, key = self.random.choice(PEOPLE), f"k{self.number}"
        words = f"words {self.number} of {person}, as said on a rainy day"
        match self.random.choice(["row", "file", "odd", "odd"]):
            case "row":
                name = self.world.note(key, words, owner=person)
                self.places[name] = lambda: self.has_row(key)
            case "file":
                name = self.world.file(f"{key}.txt", words, subjects=PEOPLE)
                self.places[name] = (self.world.files / f"{key}.txt").exists
            case _:
                name = self.world.keep_in_memory("odd", key, words, owner=person)
                self.places[name] = lambda: key in self.store.rows

    def has_row(self, key: str) -> bool:
        with sqlite3.connect(self.world.database_file) as db:
            return db.execute("SELECT 1 FROM note WHERE id = ?", (key,)).fetchone() is not None

    def hold(self) -> None:
        there = [name for name, is_there in self.places.items() if is_there() and not self.going(name)]
        if not there:
            return
        name, hold = self.random.choice(there), f"hold_{len(self.way)}"
        with self.world.parts.transactions(self.world.tenant.tenant_id) as session:
            number = find_artifacts(session, self.world.tenant.tenant_id, [name])[name].id
            session.add(
                HoldRow(
                    tenant_id=self.world.tenant.tenant_id, hold_id=hold, name="case", artifacts=[number],
                    created_by="eve", created_at=self.world.now,
                )
            )  # fmt: skip
        self.held.setdefault(name, []).append(hold)

    def going(self, name: str) -> bool:
        """Whether a store was asked already: a hold comes too late then, and says so."""
        with self.world.parts.transactions(self.world.tenant.tenant_id, write=False) as session:
            found = session.exec(select(CopyRow.attempts).where(CopyRow.ref == name)).all()
        return any(found)

    def release(self) -> None:
        if not self.held:
            return
        name = self.random.choice(sorted(self.held))
        with self.world.parts.transactions(self.world.tenant.tenant_id) as session:
            for row in session.exec(select(HoldRow).where(col(HoldRow.hold_id).in_(self.held.pop(name)))):
                row.released_at, row.released_by = self.world.now, "dan"
                session.add(row)

    def mislead(self) -> None:
        self.world.faults["odd"] = self.random.choice(FAULTS)

    # ── the invariants ────────────────────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        rows = self.requests()
        for row in rows:
            if row.state in (State.COMPLETED, State.COMPLETED_WITH_RETAINED):
                self.check_end(row)
        active = [row for row in rows if row.state in CONTENDING - {State.VERIFIED} and len(row.subjects) == 1]
        for person in {row.subjects[0] for row in active}:
            assert sum(row.subjects == [person] for row in active) == 1, ("2", self.way)
        for name in self.held:
            assert self.places[name](), ("3", name, self.way)
        with self.world.parts.transactions(self.world.tenant.tenant_id, write=False) as session:
            planned = set(
                session.exec(
                    select(CopyRow.ref).join(RequestRow, col(RequestRow.request_id) == col(CopyRow.owner)).where(
                        col(RequestRow.fence_at).is_not(None)
                    )
                )
            )  # fmt: skip
        for name, is_there in self.places.items():
            assert name in planned or is_there(), ("4", name, self.way)

    def check_end(self, row: RequestRow) -> None:
        copies = self.world.rows(row.request_id)
        kept = {copy.ref for copy in copies if copy.state == "retained"}
        assert copies, ("1", self.way)
        assert all(copy.ref in kept or is_settled(fact_of(copy)) for copy in copies), ("1", self.way)
        assert row.state != State.COMPLETED or not kept, ("1", self.way)
        left = [copy.ref for copy in copies if copy.ref in self.places and copy.ref not in kept]
        assert not [name for name in left if self.places[name]()], ("1: in its store", self.way)


def played(world: Any, seed: int, count: int) -> set[str]:
    calls = Calls(world, seed)
    calls.run(count)
    return {row.state for row in calls.requests()}


def test_no_sequence_of_calls_breaks_an_invariant(world: Any) -> None:
    assert played(world, 3, 40)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_sequence_of_calls_breaks_an_invariant_at_full_length(make_world: Callable[[str], Any]) -> None:
    seen: set[str] = set()
    for seed in range(20):
        seen |= played(make_world(str(seed)), seed, 100)
    assert seen >= {"completed", "completed_with_retained", "partially_failed", "cancelled", "duplicate", "executing"}
