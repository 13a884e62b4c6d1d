"""This machine's clock against one that other machines share: the database's on PostgreSQL, else the bucket's.

Guarantees: what is compared is the machine's clock, without the offset of tests; a process that waits while its machine
was set back counts as ahead. None where there is no other clock (SQLite and a folder on the same machine) or it did not
answer. Decides nothing: a pass of retention stops where the clocks are apart (`retention.sweep.clock_brake`), and every
process says so itself.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from api.clock import Clock
from api.database import Database
from api.jobs import Job, Jobs
from api.telemetry import Telemetry
from retention.sweep import Brakes

LOOK_EVERY = timedelta(minutes=1)
AWS = "https://s3.amazonaws.com"
"""Where a bucket lies whose endpoint is not set."""
_HTTP_SECONDS = 5.0


def apart(database: Database, clock: Clock, bucket: str | None) -> timedelta | None:
    """How far the machine is ahead of the shared clock; negative where it is behind. `bucket` is its endpoint."""
    before = clock.now()
    try:
        shared = _database_time(database) if not database.on_sqlite else _bucket_time(bucket)
    except (SQLAlchemyError, OSError, httpx.HTTPError, ValueError, KeyError):
        return None
    if shared is None:
        return None
    after = clock.now()
    # The answer was made at some instant between the two; what lies between them is nobody's fault.
    ours = max(before, min(after, shared + clock.offset))
    return ours - clock.offset - shared


def bucket_time(endpoint: str) -> datetime:
    """What time it is at a bucket's endpoint, to half a second. Raises: OSError, HTTPError, ValueError, KeyError."""
    answer = httpx.head(endpoint, timeout=_HTTP_SECONDS)
    # The header has whole seconds; half of one is the fairest guess.
    return parsedate_to_datetime(answer.headers["Date"]) + timedelta(milliseconds=500)


def _bucket_time(endpoint: str | None) -> datetime | None:
    return None if endpoint is None else bucket_time(endpoint)


def _database_time(database: Database) -> datetime:
    with database.shared(write=False) as session:
        shared: datetime = session.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
    return shared.astimezone(UTC)


def register_clock_check(jobs: Jobs, measure: Callable[[], timedelta | None], telemetry: Telemetry) -> None:
    """Adds the job by which each process names its own wrong clock, as long as it is wrong."""
    gauge = telemetry.meter.create_gauge(
        "muniment.clock.apart", unit="s", description="How far this machine's clock is ahead of the shared one"
    )

    def look(_now: datetime) -> Any:
        found = measure()
        if found is None:
            return
        gauge.set(found.total_seconds())
        if abs(found) > Brakes().apart:
            telemetry.log.error(
                "the clock is wrong", seconds_ahead=round(found.total_seconds(), 1),
                todo="set this machine's clock (NTP), or the database's or bucket's if that one is wrong; until they "
                "agree no pass of retention of this process removes anything",
            )  # fmt: skip

    jobs.add(Job(name="clock", every=LOOK_EVERY, run=look, shared=False))
