"""The registry's own clock: people on their way down, the reconciler, and lineage told to other tools.

Guarantees: each job takes bounded batches in transactions of its own, so that registering is never held up for long;
only the process that leads the log runs them. What the reconciler had to heal is logged as a warning, with counts.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from api.database import Database
from api.jobs import Job, Jobs
from api.lineage_feed import Feed
from api.telemetry import Telemetry
from registry import cones

PROPAGATE_EVERY = timedelta(seconds=1)
RECONCILE_EVERY = timedelta(minutes=1)
FEED_EVERY = timedelta(seconds=5)
ROUNDS = 50
"""Batches of one tick; what is left waits for the next."""
ForEach = Callable[[Callable[[int, datetime], Any]], Callable[[datetime], None]]


def register_registry_jobs(
    jobs: Jobs, database: Database, telemetry: Telemetry, for_each: ForEach, *, feed: Feed | None
) -> None:
    """Adds the jobs."""

    def propagate(tenant_id: int, now: datetime) -> None:
        for _ in range(ROUNDS):
            with database.transaction(tenant_id, write=False) as session:
                if not cones.pending(session, tenant_id).cones:
                    return
            with database.transaction(tenant_id) as session:
                cones.propagate_pending(session, tenant_id, now)

    def reconcile(tenant_id: int, now: datetime) -> None:
        with database.transaction(tenant_id) as session:
            found = cones.reconcile(session, tenant_id, now)
        if found["healed"] or found["beyond"]:
            telemetry.log.warning("subjects reconciled", **found)

    jobs.add(Job(name="propagation", every=PROPAGATE_EVERY, run=for_each(propagate), shared=False))
    jobs.add(Job(name="reconciler", every=RECONCILE_EVERY, run=for_each(reconcile), shared=False))
    if feed is not None:
        jobs.add(Job(name="openlineage", every=FEED_EVERY, run=for_each(feed.run), shared=False))
