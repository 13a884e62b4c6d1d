"""What a plan costs before any store is asked, about a person with 1,000 copies in a registry of any size.

On a registry that `bench.registry --keep DIR` filled and measured, so that the person is in it, it prints in
milliseconds, as medians and as the most: selecting what the plan is made from, deciding each copy, and the canonical
form with its hash. Nothing is written. What a plan takes beside that is the stores' own time: each is asked for the
canaries of its copies where something looks for them later, which does not depend on the registry.
Run: `python -m bench.plan --keep DIR [--url URL] [--rounds N]`; wanted is at most 50 ms at 1 and at 10 million.
"""

from __future__ import annotations

import argparse
import statistics
import time
from datetime import timedelta
from pathlib import Path

import sqlalchemy as sa
from sqlmodel import Session, col

from api.database import Database
from bench.registry import COPIES, LEVELS, NOW, ROOTS
from erasure.plan import build
from erasure.selector import ERASING, select_subjects
from registry import bulk
from registry.models import Artifact, SubjectSetMember, Tenant
from retention.decide import Claim

EXPECTED = ROOTS + (COPIES - ROOTS) // LEVELS * LEVELS
GOAL_MS = 50.0


def person_of(session: Session) -> tuple[int, int]:
    """The tenant, and the person whose copies are scattered over the registry."""
    tenant = session.scalars(sa.select(col(Tenant.id)).where(col(Tenant.name) == "bench")).one()
    newest = session.scalars(
        sa.select(col(Artifact.set_id))
        .where(col(Artifact.tenant_id) == tenant, col(Artifact.given_id).like("art\\_wanted%\\_0\\_0", escape="\\"))
        .order_by(col(Artifact.id).desc())
    ).first()
    who = session.scalars(sa.select(col(SubjectSetMember.subject_no)).where(col(SubjectSetMember.set_id) == newest))
    return tenant, who.one()


def one(session: Session, tenant_id: int, person: int) -> tuple[float, float, float]:
    """The seconds of the three steps of one plan."""
    people = frozenset((person,))
    claim = Claim("req_bench", ERASING, people, NOW, NOW + timedelta(days=30))
    begun = time.perf_counter()
    with bulk.without_collector():
        given = select_subjects(session, tenant_id, people, owner="req_bench", claim=claim, now=NOW)
        selected = time.perf_counter()
        plan = build(given)
    built = time.perf_counter()
    assert plan.hash  # noqa: S101 - what is measured
    hashed = time.perf_counter()
    found = sum(copy.kind == "artifact" and copy.action == "erase" for copy in plan.copies)
    if found != EXPECTED:
        message = f"expected {EXPECTED} copies, got {found}"
        raise RuntimeError(message)
    return selected - begun, built - selected, hashed - built


def main() -> None:
    """Print a line for a registry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, required=True, help="The folder of a registry that `bench.registry` kept.")
    parser.add_argument("--url", help="Its PostgreSQL database, where it lies in one.")
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    database = Database(given.url or f"sqlite:///{given.keep}/registry.db")
    with Session(database.engine) as session:
        tenant, person = person_of(session)
        size = session.scalar(sa.select(sa.func.count()).select_from(Artifact)) or 0
        rounds = [one(session, tenant, person) for _ in range(given.rounds)]
    database.close()
    select, decide, digest = (1e3 * statistics.median(step) for step in zip(*rounds, strict=True))
    whole = [1e3 * sum(steps) for steps in rounds]
    print(
        f"a plan of {EXPECTED} copies among {size:,}: select {select:.1f} ms, decide {decide:.1f} ms, "
        f"hash {digest:.1f} ms, altogether {statistics.median(whole):.1f} ms, at most {max(whole):.1f} ms, "
        f"the first time {whole[0]:.1f} ms (wanted ≤ {GOAL_MS:.0f})"
    )


if __name__ == "__main__":
    main()
