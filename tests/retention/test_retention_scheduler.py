"""The clock of a service in two processes: each job once per fire time, once after a standstill, and its effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import col, select

from api.jobs import LOOK_EVERY, fire_time
from api.wiring import Services, build
from erasure.desk import Desk
from erasure.footprint import ENDED
from erasure.models import CertificateRow, RequestRow
from erasure.planning import Planner
from erasure.reader import Reader
from ledger.models import LogState
from registry.acting import SYSTEM_PRINCIPAL
from retention.models import SweepRow, TickRow
from tests import schema
from tests.retention.conftest import House

ADA = "email:ada@example.org"
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ONCE = ("retention", "deadlines", "patrol", "footprints", "answers", "snapshots", "roots")
"""Jobs whose tick is a unique row: sweeps, alarms, patrol, own footprint, answers, snapshots, epochs of roots."""
LEADER = ("lease", "outbox", "checkpoints", "anchors", "journal", "certificates")
"""Jobs that every process ticks and the one that leads does."""

pytestmark = pytest.mark.postgres


class Pair:
    """Two processes of one service: one database, one folder, two schedulers, of which one leads."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.both: tuple[Services, Services] = (house.services, build(house.services.settings))
        self.both[1].clock.move(house.services.clock.now() - self.both[1].clock.now())
        self.ran: list[Counter[tuple[str, Any]]] = [Counter(), Counter()]
        self.both[0].heal_first()

    def pass_time(self, by: timedelta) -> None:
        """Both machines' clocks go on, and each scheduler looks at every job, as its alarm clock does."""
        for services in self.both:
            services.clock.move(by)
        self.house.now = self.both[0].clock.now()
        for number, services in enumerate(self.both):
            for name in (*LEADER, *ONCE):
                job = services.jobs._jobs[name]
                now = services.clock.now()
                if services.jobs.tick(name) and job.shared:
                    self.ran[number][name, fire_time(now, job.every)] += 1
        for services in self.both:
            while services.jobs.work_once():
                continue

    def hand_over(self) -> None:
        """The first process ends; the other one leads from its next tick on."""
        self.both[0].lease.give_up(self.both[0].clock.now())
        assert self.both[1].lead(self.both[1].clock.now())

    def fires(self, name: str) -> Counter[Any]:
        """How often the job ran for each fire time, over both."""
        found: Counter[Any] = Counter()
        for one in self.ran:
            found.update({fire: number for (job, fire), number in one.items() if job == name})
        return found


@pytest.fixture
def pair(tmp_path: Path, make_postgres_database: Callable[..., str]) -> Iterator[Pair]:
    house = House(
        tmp_path,
        make_postgres_database(schema.prepare),
        anchors=f"file:{tmp_path}/anchor.txt",
        approval="single",
        kek_grace=timedelta(0),
    )
    pair = Pair(house)
    yield pair
    for services in reversed(pair.both):
        services.close()


def erasure_of_ada(house: House, services: Services) -> str:
    """An approved erasure; the workers carry it on."""
    spec = {"right": "erasure", "subjects": [ADA], "regulation": "gdpr", "jurisdiction": "DE-BY",
            "timezone": "Europe/Berlin"}  # fmt: skip
    parts = services.erasure
    desk, now = Desk(parts), services.clock.now()
    request = str(desk.create(house.acting("ann"), spec, now)["id"])
    desk.verify_identity(house.acting("ann"), request, identifier=ADA, method="m", evidence=None, now=now)
    Planner(parts).plan(house.acting("ann"), request, now)
    Planner(parts).approve(house.acting("bea"), request, Reader(parts).plan_view(house.acting(), request)["hash"], now)
    return request


@pytest.mark.slow
def test_every_job_runs_once_per_fire_time_over_two_processes_and_once_after_a_standstill(
    pair: Pair, tmp_path: Path
) -> None:
    house, step = pair.house, HOUR
    house.plain("note", retention={"keep": "PT12H", "from": "created", "then": "erase"})
    house.note("ada", "note")
    house.note("bob", "note", owner="email:bob@example.org")
    request = erasure_of_ada(house, pair.both[0])
    began = house.now
    while house.now < began + 13 * HOUR:
        pair.pass_time(step)
    assert house.rows() == set(), "the request's row by the request, the other by the pass of its hour"
    pair.hand_over()
    while house.now < began + 26 * HOUR:
        pair.pass_time(step)
    for name in ONCE:
        every = pair.both[0].jobs._jobs[name].every
        expected = {fire_time(began + number * step, every) for number in range(1, (house.now - began) // step + 1)}
        assert pair.fires(name) == Counter(expected), name
    assert all(any(job == "retention" for job, _ in ran) for ran in pair.ran), "each of them led for a time"
    assert passes(pair) == len({fire_time(began + number * step, HOUR) for number in range(1, 27 * (HOUR // step))})

    before = passes(pair)
    pair.pass_time(9 * DAY)
    after = {name: sum(pair.fires(name).values()) for name in ONCE}
    pair.pass_time(timedelta(seconds=1))
    assert {name: sum(pair.fires(name).values()) for name in ONCE} == after, "what was missed is made up for once"
    assert passes(pair) == before + 1, "one pass, not one for every hour missed"
    assert certificates(pair, request) == ["interim"], "a root that opens an old epoch is left until its month is over"
    pair.pass_time(32 * DAY)
    assert certificates(pair, request) == ["interim", "final"], "the root turned, and all was looked at again, once"
    pair.pass_time(32 * DAY)
    for _ in range(2):  # a head is signed at the look after what it covers was written
        pair.pass_time(timedelta(seconds=20))
    with house.transaction(write=False) as session:
        state = session.get_one(LogState, house.tenant_id)
        assert state.checkpoint_size == state.size, "signed"
        ended = session.get_one(RequestRow, (house.tenant_id, request))
        assert ended.sealed is None, "the request's own footprint ended"
        runs = session.exec(select(SweepRow).where(SweepRow.created_at < house.now - 2 * DAY)).all()
        waits = [run for run in runs if run.state == "awaiting_approval"]
        assert [(run.brake or {})["reason"] for run in waits] == ["clock_jump"], "after so long somebody is asked"
        assert all(ENDED in run.counts for run in runs if run not in waits), "and those of the passes ended"
        ticks = session.exec(select(TickRow)).all()
    assert {tick.job for tick in ticks if tick.done_at is None} == set()
    shown = (tmp_path / "anchor.txt").read_text("utf-8").splitlines()
    assert str(state.checkpoint_size) in shown, "and offered to the anchor"


def passes(pair: Pair) -> int:
    """How many passes the service itself made."""
    with pair.house.transaction(write=False) as session:
        return len(session.exec(select(SweepRow).where(SweepRow.created_by == SYSTEM_PRINCIPAL)).all())


def certificates(pair: Pair, request: str) -> list[str]:
    with pair.house.transaction(write=False) as session:
        rows = session.exec(
            select(CertificateRow).where(CertificateRow.request_id == request).order_by(col(CertificateRow.number))
        )
        return [row.version for row in rows]


def test_the_alarm_clock_looks_at_every_job_often_enough(pair: Pair) -> None:
    """APScheduler rings at the job's own period, and every few minutes for one that may have been missed."""
    services = pair.both[1]
    services.jobs.start(worker=False)
    clock = services.jobs._scheduler
    assert clock is not None
    rings = {job.id: job.trigger.interval for job in clock.get_jobs()}
    services.jobs.stop()
    assert set(rings) == set(services.jobs.names)
    assert {*ONCE, *LEADER} <= set(rings)
    for name, every in rings.items():
        job = services.jobs._jobs[name]
        assert every == (min(job.every, LOOK_EVERY) if job.shared else job.every), name
