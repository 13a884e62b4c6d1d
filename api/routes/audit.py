"""What an auditor asks the service about itself: its own events, and verifications of the whole record.

Guarantees: nothing here writes to the record; a verification runs in a thread of its own, so that it never holds up
erasures, and its report is kept in the unlocked store, where every process finds it. A run that died with its process
says so instead of running for ever. Not built: access log, bundles and checks.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
from fastapi import Path as PathOf
from fastapi import Response
from pydantic import ConfigDict, Field

from api.answers import Row
from api.auth import Auditor, Parts
from api.errors import Problem
from api.pagination import DEFAULT_LIMIT, Cursor, Limit, read_cursor, write_cursor
from api.requests import Body, make_router
from api.verification import KnownLog, authorities_of, verify_log, witnesses_of
from api.wiring import Services
from audit.errors import BadPin
from audit.findings import report_json
from audit.keys import log_key
from audit.verify import Options
from ledger.entry import format_instant, parse_instant
from ledger.errors import LedgerError, ObjectMissing
from ledger.models import LogState
from registry.acting import Acting
from registry.ids import random_hex
from registry.playback import ReadEntry, entry_name, read_entries, stream_rows

router = make_router("audit")

SYSTEM_STREAM = 0
SILENT = timedelta(minutes=2)
"""A run that has not said for so long how far it is has died with its process."""
AT_ONCE = 2
"""So many verifications of one tenant in one process: each reads the whole record."""
_BEAT = timedelta(seconds=10)
VerificationId = Annotated[str, PathOf(pattern=r"^[0-9a-f]{32}$")]


class Verification(Body):
    """What to verify; nothing given: every byte, against the service's own key."""

    key: str | None = Field(default=None, max_length=1024, description="The log's vkey that you pinned.")
    since: str | None = Field(default=None, max_length=65536, description="A checkpoint that you kept, as it was.")
    sample: int | None = Field(default=None, ge=1, description="Look into the content of so many entries only.")
    model_config = ConfigDict(json_schema_extra={"examples": [{"sample": 1000}, {}]})


@router.get("/v1/audit/log")
def own_events(acting: Auditor, parts: Parts, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> Response:
    """The service's own events, in order: ids, counts and digests, nobody's content."""
    after = read_cursor(cursor, int)
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        rows = stream_rows(
            session,
            acting.tenant_id,
            SYSTEM_STREAM,
            size=None,
            after=-1 if after is None else after[0],
            limit=limit + 1,
        )
        entries = read_entries(session, parts.vault, parts.log, acting.tenant_id, rows[:limit], damaged_too=True)
    more = write_cursor(rows[limit - 1].position) if len(rows) > limit else None
    answer = {"items": [_event(entry) for entry in entries], "next_cursor": more}
    return Response(msgspec.json.encode(answer), media_type="application/json")


@router.post("/v1/audit/verifications", status_code=202)
def start_verification(body: Verification, acting: Auditor, parts: Parts) -> Row:
    """Starts a verification of the tenant's whole log; poll the answer's `id`."""
    if body.key is not None:
        try:
            log_key(body.key)
        except BadPin as error:
            raise Problem("invalid", error.detail, errors=[{"pointer": "/key", "detail": error.detail}]) from error
    running = f"muniment-verification-{acting.log_id}"
    if sum(one.name == running for one in threading.enumerate()) >= AT_ONCE:
        raise Problem(
            "too-many-requests", f"{AT_ONCE} verifications run already; wait for one of them", retry_after_s=5
        )
    now = parts.clock.now()
    name = random_hex()
    state: dict[str, Any] = {"id": name, "state": "running", "started_at": format_instant(now)}
    _keep(parts, acting, state, now)
    run = threading.Thread(target=_run, args=(parts, acting, body, state), name=running, daemon=True)
    run.start()
    return _shown(state)


@router.get("/v1/audit/verifications/{verification_id}")
def read_verification(verification_id: VerificationId, acting: Auditor, parts: Parts) -> Row:
    """A verification: `running` with how far it is, `done` with the report of `muniment verify --json`, or `lost`."""
    try:
        state: dict[str, Any] = json.loads(parts.hot.get(_key(acting, verification_id)))
    except ObjectMissing:
        raise Problem("not-found", "no such verification in this tenant") from None
    if state["state"] == "running" and parts.clock.now() - parse_instant(state["seen_at"]) > SILENT:
        state |= {"state": "lost", "detail": "the process that ran it ended; start another one"}
    return _shown(state)


def _run(parts: Services, acting: Acting, body: Verification, state: dict[str, Any]) -> None:
    """Verify, and keep what came of it; whatever fails is said, never left as running."""
    try:
        with parts.database.transaction(acting.tenant_id, write=False) as session:
            known = session.get(LogState, acting.tenant_id)
            size = 0 if known is None else known.size
        log = KnownLog(tenant_id=acting.tenant_id, tenant=acting.tenant, log_id=acting.log_id, size=size)
        since = None if body.since is None else body.since.encode()
        report = verify_log(
            log,
            bucket=parts.locked,
            hot=parts.hot,
            keys=[body.key or parts.log.vkey(acting.tenant_id)],
            certificate_keys=[parts.certificate_signer_of(acting.log_id, 0).vkey],
            options=Options(
                since=since,
                witnesses=witnesses_of(parts.settings),
                authorities=authorities_of(parts.settings),
                sample=body.sample,
                known_size=size,
            ),
            sessions=lambda tenant_id: parts.database.transaction(tenant_id, write=False),
            progress=_beating(parts, acting, state, size),
        )
        state |= {"state": "done", "report": report_json(report)}
    except (BadPin, LedgerError) as error:
        state |= {"state": "failed", "detail": str(error)}
    except Exception as error:  # noqa: BLE001 - the run must not stay "running"
        state |= {"state": "failed", "detail": type(error).__name__}
        # Not `exception`: a trace may hold values of somebody.
        parts.telemetry.log.error("verification failed", error=type(error).__qualname__)  # noqa: TRY400
    now = parts.clock.now()
    _keep(parts, acting, {**state, "finished_at": format_instant(now)}, now)


def _beating(parts: Services, acting: Acting, state: dict[str, Any], size: int) -> Callable[[int], None]:
    last = parts.clock.now()

    def beat(done: int) -> None:
        nonlocal last
        now = parts.clock.now()
        if now - last >= _BEAT:
            last = now
            _keep(parts, acting, {**state, "done": done, "of": max(done, size)}, now)

    return beat


def _keep(parts: Services, acting: Acting, state: dict[str, Any], now: datetime) -> None:
    data = json.dumps({**state, "seen_at": format_instant(now)}).encode()
    parts.hot.replace(_key(acting, state["id"]), data)


def _key(acting: Acting, name: str) -> str:
    return f"verification/{acting.log_id}/{name}"


def _shown(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name != "seen_at"}


def _event(entry: ReadEntry) -> dict[str, Any]:
    content = entry.parts[0] if entry.parts else None
    shown: dict[str, Any] = {
        "id": entry_name(entry.row),
        "index": entry.row.idx,
        "position": entry.row.position,
        "kind": entry.row.kind,
        "at": format_instant(entry.row.at),
        "integrity": entry.damage.state if entry.damage else "missing" if content is None else content.state,
    }
    if content is not None and content.data is not None:
        shown["body"] = msgspec.Raw(content.data)
    return shown
