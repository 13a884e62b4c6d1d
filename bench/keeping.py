"""What it costs to take one conversation from under a key that opens many: keys of their own for all other parts.

One embedded service; a person's month is filled through the product's own write path, a tenth of it in the conversation
that goes. Then a request about that conversation is carried out, and timed:

- keeping       parts a second: found, read, derived, wrapped, kept, written to the unlocked store and read back;
                the aim is ≥ 20,000
- the request   from approval to its certificate, in all

Absolute figures do not carry over to another machine. Run: `python bench/keeping.py [--entries N]`.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from sqlmodel import func, select

# The programs beside this one are named like our packages; the repository comes first.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from api import administration, folder, migrate  # noqa: E402
from api.settings import load  # noqa: E402
from api.wiring import Services, build  # noqa: E402
from erasure.desk import Desk  # noqa: E402
from erasure.keeping import Keeping  # noqa: E402
from erasure.models import RequestRow  # noqa: E402
from erasure.parts import Tenant  # noqa: E402
from erasure.planning import Planner  # noqa: E402
from erasure.worker import run_due  # noqa: E402
from ledger.entry import uuid7  # noqa: E402
from registry.acting import Acting  # noqa: E402
from vault.models import PartKey  # noqa: E402

CALL = 1_000
PERSON = "user:a_busy_one"
GOING = "conversation_0"


def fill(services: Services, acting: Acting, entries: int) -> None:
    """Append entries of one person in ten conversations."""
    for start in range(0, entries, CALL):
        now = services.clock.now()
        raw = [
            msgspec.json.encode(
                {
                    "id": uuid7(now), "stream": f"conversation_{number % 10}", "kind": "turn.user",
                    "at": now.isoformat(), "data_class": "transcript", "subjects": [PERSON],
                    "body": {"content": f"turn {number} " + os.urandom(300).hex()},
                }
            )
            for number in range(start, min(start + CALL, entries))
        ]  # fmt: skip
        services.record.append(acting, raw, now)


def approved(services: Services, acting: Acting, second: Acting) -> str:
    """Return a request about one conversation, approved."""
    desk, planner = Desk(services.erasure), Planner(services.erasure)
    spec = {"right": "erasure", "subjects": [PERSON], "regulation": "gdpr", "scope": {"conversation": GOING}}
    request = str(desk.create(acting, spec, services.clock.now())["id"])
    desk.verify_identity(
        acting, request, identifier=PERSON, method="login", evidence=None, now=services.clock.now()
    )  # fmt: skip
    plan = planner.plan(acting, request, services.clock.now())
    planner.approve(second, request, plan["plan_hash"], services.clock.now())
    return request


def main(arguments: Sequence[str] | None = None) -> None:
    """Fill, erase one conversation, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--profile", action="store_true", help="say where the time of keeping goes")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as base:
        settings = load(Path(base) / "data")
        folder.make(settings.data)
        services = build(settings)
        migrate.upgrade(services.database)
        services.lease.take(services.clock.now(), force=True)
        administration.create_tenant(services, "bench")
        [acting] = services.tenants()
        fill(services, acting, given.entries)
        request = approved(services, acting, replace(acting, principal="second"))
        times: list[tuple[float, float]] = []
        real = Keeping.give
        profile = cProfile.Profile()

        def timed(self: Keeping, key_ids: Sequence[str]) -> dict[str, str]:
            begun, used = time.perf_counter(), time.process_time()
            if given.profile:
                profile.enable()
            found = real(self, key_ids)
            profile.disable()
            times.append((time.perf_counter() - begun, time.process_time() - used))
            return found

        Keeping.give = timed  # type: ignore[method-assign]  # only to read the clock around it
        tenant = Tenant(tenant_id=acting.tenant_id, name=acting.tenant, log_id=acting.log_id)
        begun = time.perf_counter()
        run_due(services.erasure, tenant, datetime.now(UTC))
        whole = time.perf_counter() - begun
        with services.database.transaction(acting.tenant_id, write=False) as session:
            state = session.get_one(RequestRow, (acting.tenant_id, request)).state
            kept = session.exec(select(func.count()).select_from(PartKey)).one()
        clock, used = (sum(column) for column in zip(*times, strict=True))
        print(f"keeping: {kept:,} parts, {kept / clock:,.0f} a second by the clock, {kept / used:,.0f} a second of")
        print(f"  processor time (aim 20,000); the request is {state}, {whole:.2f} s after the worker's start")
        if given.profile:
            pstats.Stats(profile).sort_stats("cumulative").print_stats(60)
        services.close()


if __name__ == "__main__":
    main()
