"""Work that nobody waits for: clock ticks and the request worker, both threads of this process.

Guarantees: the tables hold the truth and these threads only wake it: a missed tick or a lost wake-up delays work and
never loses it. A tick of a shared job is a unique row (job, fire time), so two schedulers do it once; it is looked for
every few minutes, so that one that was missed while nothing ran is made up for, once, and one that a process could not
take (it does not lead) is left to another. A job that fails gives its tick back, is logged and runs again at the next
look; it never ends its thread. APScheduler is only the alarm clock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from apscheduler.schedulers.background import BackgroundScheduler
from sqlmodel import col

from api.clock import Clock
from api.database import Database
from api.telemetry import Forwarded, Telemetry, forward, places
from registry.ids import random_hex
from retention.models import TickRow

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TICKS_KEPT = timedelta(days=2)
LOOK_EVERY = timedelta(minutes=5)
"""How often a shared job looks whether its tick is taken: at most so late a missed one is made up for."""
WORKER_POLL_S = 2.0
_LIBRARY = "apscheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Something to do again and again. `shared`: once over all processes, taken by its tick.

    `may` says whether this process can do it now; while it cannot, no tick is taken.
    """

    name: str
    every: timedelta
    run: Callable[[datetime], Any]
    shared: bool = True
    may: Callable[[], bool] | None = None


def fire_time(now: datetime, every: timedelta) -> datetime:
    """The newest instant at or before `now` that is a whole number of periods after 1970: the same on every machine."""
    return _EPOCH + (now - _EPOCH) // every * every


class Jobs:
    """The jobs of one process, registered by name; `start` makes the threads, `stop` ends them."""

    def __init__(self, database: Database, clock: Clock, telemetry: Telemetry) -> None:
        self._database = database
        self._clock = clock
        self._telemetry = telemetry
        self._owner = random_hex()
        self._jobs: dict[str, Job] = {}
        self._works: list[Callable[[datetime], int]] = []
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._worker: threading.Thread | None = None
        self._scheduler: BackgroundScheduler | None = None
        self._forwarded: Forwarded | None = None
        self._runs = telemetry.meter.create_counter("muniment.job.runs", description="Ticks of jobs by outcome")

    def add(self, job: Job) -> None:
        """Registers a job under its name. Raises ValueError when the name is taken."""
        if job.name in self._jobs:
            message = f"job {job.name} is registered twice"
            raise ValueError(message)
        self._jobs[job.name] = job

    def add_work(self, work: Callable[[datetime], int]) -> None:
        """Registers what the worker does: it returns how much it did, and is called again until it returns 0."""
        self._works.append(work)

    def wake(self) -> None:
        """Tells the worker that there may be something to do; returns at once."""
        self._wake.set()

    @property
    def owner(self) -> str:
        """The random name of this process, as it stands in leases."""
        return self._owner

    @property
    def names(self) -> list[str]:
        """The registered jobs."""
        return sorted(self._jobs)

    def start(self, *, scheduler: bool = True, worker: bool = True) -> None:
        """Starts the asked threads."""
        if scheduler and self._scheduler is None:
            self._scheduler = BackgroundScheduler(timezone=UTC, job_defaults={"coalesce": True, "max_instances": 1})
            for job in self._jobs.values():
                every = min(job.every, LOOK_EVERY) if job.shared else job.every
                self._scheduler.add_job(
                    self.tick, "interval", args=[job.name], seconds=every.total_seconds(), id=job.name
                )
            self._forwarded = forward(_LIBRARY, "scheduler", self._telemetry.log)
            self._scheduler.start()
        if worker and self._worker is None:
            self._worker = threading.Thread(target=self._work, name="muniment-worker", daemon=True)
            self._worker.start()

    def stop(self, *, seconds: float = 10.0) -> None:
        """Ends the threads; what runs may finish within `seconds`."""
        self._stopping.set()
        self._wake.set()
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=True)
            self._scheduler = None
        if self._forwarded is not None:
            logging.getLogger(_LIBRARY).removeHandler(self._forwarded)
            self._forwarded = None
        if self._worker is not None:
            self._worker.join(seconds)
            self._worker = None

    def tick(self, name: str) -> bool:
        """Runs a job now, unless it may not or its tick is taken; returns whether it ran and succeeded."""
        job = self._jobs[name]
        now = self._clock.now()
        taken = False
        try:
            if job.may is not None and not job.may():
                return False
            taken = job.shared and self._take(job, now)
            if job.shared and not taken:
                return False
            job.run(now)
            if taken:
                self._done(job, now)
        except Exception as error:  # noqa: BLE001 - a job's failure must not end the clock
            self._failed(name, error)
            if taken:
                self._give_back(job, now)
            return False
        self._runs.add(1, {"job": name, "outcome": "done"})
        return True

    def work_once(self) -> int:
        """Does what is due now and returns how much that was; errors are logged and count as nothing."""
        done = 0
        for work in self._works:
            try:
                done += work(self._clock.now())
            except Exception as error:  # noqa: BLE001 - as in tick
                self._failed("worker", error)
        return done

    def _failed(self, name: str, error: Exception) -> None:
        self._runs.add(1, {"job": name, "outcome": "failed"})
        self._telemetry.log.error("job failed", job=name, error=type(error).__qualname__, places=places(error))

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            while self.work_once() and not self._stopping.is_set():
                pass
            self._wake.wait(WORKER_POLL_S)

    def _done(self, job: Job, now: datetime) -> None:
        with self._database.shared() as session:
            session.execute(sa.update(TickRow).where(self._mine(job, now)).values(done_at=self._clock.now()))

    def _give_back(self, job: Job, now: datetime) -> None:
        """Let the next look, of any process, try again. Where the database is what failed, the next period does."""
        with suppress(sa.exc.SQLAlchemyError), self._database.shared() as session:
            session.execute(sa.delete(TickRow).where(self._mine(job, now)))

    def _mine(self, job: Job, now: datetime) -> sa.ColumnElement[bool]:
        return sa.and_(
            col(TickRow.job) == job.name,
            col(TickRow.fire_time) == fire_time(now, job.every),
            col(TickRow.owner) == self._owner,
        )

    def _take(self, job: Job, now: datetime) -> bool:
        fire = fire_time(now, job.every)
        row = {"job": job.name, "fire_time": fire, "owner": self._owner}
        try:
            with self._database.shared() as session:
                old = (col(TickRow.job) == job.name) & (col(TickRow.fire_time) < now - TICKS_KEPT)
                session.execute(sa.delete(TickRow).where(old))
                session.execute(sa.insert(TickRow).values(**row))
        except sa.exc.IntegrityError:
            return False
        return True
