"""The clock of retention: a pass of every tenant when the last one is an hour ago, and the work of running passes.

Guarantees: only the process that leads the log starts passes, and each look is a unique tick, so two schedulers do it
once; after a standstill there is one pass, not one for every hour missed. A pass that waits or stopped is logged with
what to do, and so is one that ended with an alarm. One tenant's failure does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from api.jobs import Job, Jobs
from erasure.legal_holds import LegalHolds
from erasure.parts import Parts
from erasure.sweep_copies import Sweeps
from registry.acting import Acting

LOOK_EVERY = timedelta(minutes=5)


def register_sweeps(
    jobs: Jobs,
    parts: Callable[[], Parts],
    tenants: Callable[[], Iterable[Acting]],
    *,
    leads: Callable[[], bool],
    log: Any,
) -> None:
    """Adds the job that starts passes and the work that carries them on."""

    def start(now: datetime) -> None:
        if not leads():
            return
        sweeps = Sweeps(parts())

        def one(acting: Acting) -> int:
            if not sweeps.is_time(acting.tenant_id, now):
                return 0
            run = sweeps.start(acting, now)
            if run["brake"] is not None:
                log.warning(
                    "retention waits", run=run["id"], state=run["state"], reason=run["brake"]["reason"],
                    todo=run["brake"]["todo"],
                )  # fmt: skip
            elif run["state"] == "completed" and run["alarm"] is not None:
                log.error("retention alarm", run=run["id"], alarm=run["alarm"])
            return 1

        if _each(tenants(), one):
            jobs.wake()

    def work(now: datetime) -> int:
        if not leads():
            return 0
        sweeps = Sweeps(parts())

        def hear(run: str, alarm: str) -> None:
            log.error("retention alarm", run=run, alarm=alarm)

        return _each(tenants(), lambda acting: sweeps.run_due(acting.tenant_id, now, worker=jobs.owner, hear=hear))

    jobs.add(Job(name="retention", every=LOOK_EVERY, run=start, may=leads))
    jobs.add_work(work)


def register_holds(
    jobs: Jobs, parts: Callable[[], Parts], tenants: Callable[[], Iterable[Acting]], *, leads: Callable[[], bool]
) -> None:
    """Adds the work that carries holds into stores: at once when they change, and every few minutes for what came."""
    seen: dict[int, tuple[str, datetime]] = {}

    def work(now: datetime) -> int:
        if not leads():
            return 0
        holds = LegalHolds(parts())

        def one(acting: Acting) -> int:
            mark = holds.mark(acting.tenant_id)
            if (known := seen.get(acting.tenant_id)) and known[0] == mark and known[1] + LOOK_EVERY > now:
                return 0
            # What fails is tried again with the next look, not at every turn of the worker.
            seen[acting.tenant_id] = (mark, now)
            done = holds.run(acting.tenant_id, now)
            if done:
                del seen[acting.tenant_id]
            return done

        return _each(tenants(), one)

    jobs.add_work(work)


def _each(tenants: Iterable[Acting], do: Callable[[Acting], int]) -> int:
    done, failures = 0, []
    for acting in tenants:
        try:
            done += do(acting)
        except Exception as error:  # noqa: BLE001 - raised below, after the others had their turn
            failures.append(error)
    if failures:
        raise failures[0]
    return done
