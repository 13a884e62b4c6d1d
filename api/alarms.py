"""What the service says of itself without being asked: dates that come near, and whether the record is still sound.

Guarantees: opaque ids, dates and verdicts only. A deadline is named at each look until it is met; a record that is not
sound is an error at each look. A patrol hashes the whole chain, judges every certificate and key change, and reads the
sealed bytes of a sample that cannot be foreseen; `muniment verify` reads all of them. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any

from sqlmodel import Session

from api.database import Database
from api.kept_check import check_kept, known_certificates
from api.telemetry import Telemetry
from api.verification import KnownLog, part_states
from audit.findings import Report
from audit.verify import Options, verify
from erasure.deadlines import WHAT, near, todo_of
from ledger.keyring import KeyWindow
from ledger.log import Log
from ledger.models import LogState
from ledger.objects import HotStore, ObjectStore
from registry.acting import Acting

DEADLINES_EVERY = timedelta(hours=1)
PATROL_EVERY = timedelta(days=1)
PATROL_SAMPLE = 500
"""Entries whose sealed bytes one patrol reads; the chain, the tree and the heads are checked in whole."""
SOUND = "sound"


def deadline_alarms(
    database: Database, telemetry: Telemetry, unverified_term: timedelta
) -> Callable[[int, datetime], None]:
    """Returns what names the near and missed dates of one tenant."""
    gauge = telemetry.meter.create_gauge(
        "muniment.deadlines",
        description="Answers, confirmations, recipients to tell, reviews, passes, unverified requests near their date",
    )

    def look(tenant_id: int, now: datetime) -> None:
        with database.transaction(tenant_id, write=False) as session:
            found = near(session, tenant_id, now, unverified_term=unverified_term)
        counts: dict[tuple[str, str], int] = {}
        for one in found:
            say = telemetry.log.error if one.is_over else telemetry.log.warning
            say(
                "a date was missed" if one.is_over else "a date is near", what=one.what, item=one.ref,
                due_at=one.due_at.isoformat(), days_left=one.days_left, todo=todo_of(one),
            )  # fmt: skip
            key = (one.what, "missed" if one.is_over else "near")
            counts[key] = counts.get(key, 0) + 1
        for what in WHAT:
            for state in ("near", "missed"):
                gauge.set(counts.get((what, state), 0), {"tenant": str(tenant_id), "what": what, "state": state})

    return look


def patrol(
    database: Database,
    telemetry: Telemetry,
    log: Log,
    *,
    locked: ObjectStore,
    hot: HotStore,
    certificate_keys: Callable[[str], Sequence[KeyWindow]],
    seed: int | None = None,
) -> Callable[[Acting], Report | None]:
    """Returns what verifies one tenant's record and certificates; None of a log that has nothing signed yet.

    `certificate_keys` gives the keys that ever signed those of a log. `seed` is for tests.
    """

    def sessions(tenant_id: int) -> AbstractContextManager[Session]:
        return database.transaction(tenant_id, write=False)

    verdicts = telemetry.meter.create_counter("muniment.patrol.verdicts", description="Verdicts of patrols")

    def look(acting: Acting) -> Report | None:
        with database.transaction(acting.tenant_id, write=False) as session:
            state = session.get(LogState, acting.tenant_id)
            if state is None or not state.checkpoint_size:
                return None
            known = KnownLog(
                tenant_id=acting.tenant_id, tenant=acting.tenant, log_id=acting.log_id, size=state.checkpoint_size
            )
        keys = [window.pin for window in log.keys(acting.tenant_id)]
        report = verify(
            locked,
            log_id=known.log_id,
            keys=keys,
            options=Options(sample=PATROL_SAMPLE, known_size=known.size, seed=seed),
            hot=hot,
            part_states=part_states(sessions, acting.tenant_id),
        )
        report = check_kept(
            report,
            bucket=locked,
            hot=hot,
            keys=keys,
            certificate_keys=[window.pin for window in certificate_keys(known.log_id)],
            known=known_certificates(sessions, acting.tenant_id),
        )
        verdicts.add(1, {"verdict": report.verdict.value})
        if report.verdict.value != SOUND:
            findings: list[dict[str, Any]] = [
                {"verdict": one.verdict.value, "object": one.object, "index": one.index} for one in report.findings[:20]
            ]
            telemetry.log.error(
                "the record is not sound", tenant=acting.tenant, verdict=report.verdict.value, findings=findings,
                todo="run muniment verify, keep the bucket as it is, and compare with your last checkpoint",
            )  # fmt: skip
        return report

    return look
