"""A tick is taken once, a failing job ends nothing, the worker wakes at once, pages are opaque."""

import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlmodel import select

from api import telemetry
from api.clock import Clock
from api.database import Database
from api.errors import Problem
from api.jobs import LOOK_EVERY, Job, Jobs, fire_time
from api.pagination import paged, read_cursor, write_cursor
from retention.models import TickRow
from tests import schema

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    schema.bring(database)
    yield database
    database.close()


def jobs_of(database: Database, log: StringIO | None = None) -> Jobs:
    return Jobs(database, Clock(), telemetry.build(stream=log or StringIO()))


def test_two_schedulers_do_a_shared_tick_once(database: Database) -> None:
    done: list[datetime] = []
    both = [jobs_of(database) for _ in range(2)]
    for jobs in both:
        jobs.add(Job(name="sweep", every=timedelta(days=1), run=done.append))
    assert [jobs.tick("sweep") for jobs in both] == [True, False]
    assert len(done) == 1


def test_an_unshared_job_runs_in_every_process(database: Database) -> None:
    done: list[datetime] = []
    for jobs in (jobs_of(database), jobs_of(database)):
        jobs.add(Job(name="outbox", every=MINUTE, run=done.append, shared=False))
        assert jobs.tick("outbox")
    assert len(done) == 2


def test_a_failing_job_is_logged_without_its_text_and_ends_nothing(database: Database) -> None:
    log = StringIO()
    jobs = jobs_of(database, log)

    def fail(_: datetime) -> int:
        raise RuntimeError("kowalski")

    jobs.add(Job(name="bad", every=MINUTE, run=fail, shared=False))
    jobs.add_work(fail)
    assert not jobs.tick("bad")
    assert jobs.work_once() == 0
    assert '"error": "RuntimeError"' in log.getvalue()
    assert "kowalski" not in log.getvalue()


def test_the_worker_wakes_at_once_and_works_until_nothing_is_left(database: Database) -> None:
    jobs = jobs_of(database)
    waiting = [3]
    empty = threading.Event()

    def work(_: datetime) -> int:
        if waiting[0] == 0:
            return 0
        waiting[0] -= 1
        if waiting[0] == 0:
            empty.set()
        return 1

    jobs.add_work(work)
    jobs.start(scheduler=False)
    assert empty.wait(5)
    empty.clear()
    waiting[0] = 2
    jobs.wake()
    assert empty.wait(1.5)
    jobs.stop()


def test_a_name_is_registered_once(database: Database) -> None:
    jobs = jobs_of(database)
    job = Job(name="a", every=MINUTE, run=lambda _: None)
    jobs.add(job)
    with pytest.raises(ValueError, match="twice"):
        jobs.add(job)


@given(
    st.integers(0, 4_000_000_000_000_000).map(lambda number: EPOCH + timedelta(microseconds=number)),
    st.integers(1, 100_000).map(lambda seconds: timedelta(seconds=seconds)),
)
def test_a_fire_time_is_at_or_before_now_and_within_one_period(now: datetime, every: timedelta) -> None:
    fire = fire_time(now, every)
    assert fire <= now < fire + every
    assert fire_time(fire, every) == fire


def test_the_clock_moves_forward_only() -> None:
    clock = Clock()
    before = clock.now()
    assert clock.move(timedelta(days=200)) >= before + timedelta(days=200)
    with pytest.raises(ValueError, match="forward"):
        clock.move(-timedelta(seconds=1))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True).map(sorted), st.integers(1, 7))
def test_pages_are_the_list_in_pieces(values: list[int], limit: int) -> None:
    seen: list[int] = []
    cursor = None
    while True:
        after = read_cursor(cursor, int)
        rows = [value for value in values if after is None or value > after[0]]
        page, cursor = paged(rows[: limit + 1], limit, lambda value: (value,))
        seen += page
        if cursor is None:
            break
    assert seen == values


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "!!!!",
        "WzFd",
        "WyJhIiwxXQ",
        "W10",
        "bnVsbA",
        "é",
        write_cursor(1, "a", "b"),
        write_cursor(2**63, "a"),
        write_cursor(-(2**63) - 1, "a"),
        write_cursor(1, "a\0"),
    ],
)
def test_a_cursor_that_is_not_ours_is_refused(text: str) -> None:
    with pytest.raises(Problem) as refused:
        read_cursor(text, int, str)
    assert refused.value.name == "bad-cursor"


@given(st.integers(-(2**63), 2**63 - 1), st.text().filter(lambda text: "\0" not in text))
def test_a_cursor_comes_back_as_it_went(number: int, name: str) -> None:
    assert read_cursor(write_cursor(number, name), int, str) == (number, name)


def test_what_the_alarm_clock_says_goes_into_our_log_as_information_and_nowhere_else(
    database: Database, capfd: pytest.CaptureFixture[str]
) -> None:
    """A tick that comes while the last one still runs is left out, which is no warning to anybody."""
    log = StringIO()
    jobs = jobs_of(database, log)
    jobs.add(Job(name="slow", every=timedelta(milliseconds=20), run=lambda _: time.sleep(0.3), shared=False))
    jobs.start(worker=False)
    end = time.monotonic() + 10
    while "maximum number of running instances" not in log.getvalue() and time.monotonic() < end:
        time.sleep(0.02)
    jobs.stop()
    said = [json.loads(line) for line in log.getvalue().splitlines() if "running instances" in line]
    assert said
    assert {(one["event"], one["level"], one["library"]) for one in said} == {
        ("scheduler", "info", "apscheduler.scheduler")
    }
    assert capfd.readouterr() == ("", "")
    assert not any(isinstance(one, telemetry.Forwarded) for one in logging.getLogger("apscheduler").handlers)


def test_a_log_that_nobody_reads_any_more_ends_no_work(database: Database) -> None:
    class Broken(StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    # The worker said what failed, could not say it, and was gone; the service went on without it.
    jobs = jobs_of(database, Broken())
    jobs.add_work(lambda _: 1 // 0)
    assert jobs.work_once() == 0


def test_durations_are_counted_in_buckets_of_seconds() -> None:
    made = telemetry.build(stream=StringIO())
    made.requests.record(0.03, {"http.route": "/v1/tokens"})
    page = made.metrics_page()[0].decode()
    made.close()
    buckets = [float(one) for one in re.findall(r'http_server_request_duration_seconds_bucket\{.*le="([0-9.]+)"', page)]
    assert buckets[:4] == [0.005, 0.01, 0.025, 0.05]
    assert buckets[-1] == 10.0


def test_a_process_that_may_not_takes_no_tick_from_the_one_that_may(database: Database) -> None:
    """The tick of a shared job was taken by whoever came first, also by a process that did not lead: nothing ran."""
    done: list[str] = []
    follower, leader = jobs_of(database), jobs_of(database)
    follower.add(Job(name="answers", every=MINUTE, run=lambda _: done.append("follower"), may=lambda: False))
    leader.add(Job(name="answers", every=MINUTE, run=lambda _: done.append("leader"), may=lambda: True))
    assert not follower.tick("answers")
    assert leader.tick("answers")
    assert done == ["leader"]


def test_a_tick_that_failed_is_given_back_and_one_that_was_done_is_not_done_again(database: Database) -> None:
    tries: list[datetime] = []

    def fail_once(now: datetime) -> None:
        tries.append(now)
        if len(tries) == 1:
            raise RuntimeError

    one, other = jobs_of(database), jobs_of(database)
    for jobs in (one, other):
        jobs.add(Job(name="daily", every=timedelta(days=1), run=fail_once))
    assert [one.tick("daily"), other.tick("daily"), one.tick("daily"), other.tick("daily")] == [
        False, True, False, False,
    ]  # fmt: skip
    with database.shared() as session:
        [row] = session.exec(select(TickRow)).all()
    assert (row.owner, row.done_at is not None) == (other.owner, True)


def test_a_tick_missed_while_nothing_ran_is_made_up_for_once(database: Database) -> None:
    clock = Clock()
    done: list[datetime] = []
    jobs = Jobs(database, clock, telemetry.build(stream=StringIO()))
    jobs.add(Job(name="daily", every=timedelta(days=1), run=done.append))
    assert jobs.tick("daily")
    clock.move(timedelta(days=4))
    assert [jobs.tick("daily"), jobs.tick("daily")] == [True, False]
    assert len(done) == 2


def test_a_daily_job_is_looked_for_every_few_minutes_so_that_restarts_cannot_starve_it(database: Database) -> None:
    jobs = jobs_of(database)
    jobs.add(Job(name="daily", every=timedelta(days=1), run=lambda _: None))
    jobs.add(Job(name="own", every=timedelta(hours=2), run=lambda _: None, shared=False))
    jobs.start(worker=False)
    scheduler = jobs._scheduler
    assert scheduler is not None
    periods = {job.id: job.trigger.interval for job in scheduler.get_jobs()}
    jobs.stop()
    assert periods == {"daily": LOOK_EVERY, "own": timedelta(hours=2)}
