"""Retention: events, what is due, runs, holds, dispositions, and why. Rules are in `retention`, work in `erasure`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import Depends, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from api.answers import Open, Row
from api.auth import Desk, Legal, Parts, require
from api.errors import Problem
from api.pagination import DEFAULT_LIMIT, Cursor, Limit, Page, paged, read_cursor, write_cursor
from api.requests import Body, Flag, Instant, Time, make_router
from api.wiring import Services
from erasure.request_desk import RequestDesk
from erasure.sweep_copies import Sweeps
from ledger.entry import format_instant
from registry.acting import Acting
from retention import dispositions
from retention.consenting import consents_about, record_consent, withdraw_consent
from retention.due import PHASES, Place
from retention.events import record_event
from retention.explain import explain, list_due
from retention.holds import Holds

router = make_router("retention and holds")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
RunId = Annotated[str, Path(examples=["swp_019e2c1d7a5b4c60"], max_length=64)]
HoldId = Annotated[str, Path(examples=["hold_019e2c1d7a5b4c60"], max_length=64)]
DispositionId = Annotated[str, Path(examples=["dsp_019e2c1d7a5b4c60"], max_length=64)]
ConsentId = Annotated[str, Path(examples=["cns_019e2c1d7a5b4c60"], max_length=64)]
Reporter = Annotated[Acting, Depends(require("legal", "platform", "writer"))]
Recorder = Annotated[Acting, Depends(require("legal", "writer"))]


class EventBody(Body):
    """Something happened that starts clocks."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "role.closed", "key": {"role": "role-14"}, "at": "2026-05-04T10:00:00Z"}]
        }
    )
    name: str = Field(max_length=64)
    key: dict[str, str]
    at: Time
    subject: str | None = Field(default=None, max_length=600)


class EventView(BaseModel):
    """The event as it was kept; `items` are those whose end it moved at once."""

    id: str
    name: str
    at: Instant
    items: int


class RunBody(Body):
    """A run; with `dry_run` it only counts, also for a later instant."""

    dry_run: bool = False
    at: Time | None = None


class HoldBody(Body):
    """A hold: what it is for, why, and what it keeps."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "acme-2026",
                    "matter": "Acme v. us",
                    "reason": "letter of 4 May",
                    "selector": {"data_classes": ["transcript"]},
                }
            ]
        }
    )
    name: str
    matter: str
    reason: str
    selector: dict[str, Any]


class ConsentBody(Body):
    """What a person consented to; without classes or scope it covers all of either."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "subject": "email:ada@example.org",
                    "data_classes": ["voice"],
                    "given_at": "2026-05-04T10:00:00Z",
                    "until": "2027-05-04T10:00:00Z",
                    "words": "notice of 4 May, version 3: recordings for quality, for a year",
                }
            ]
        }
    )
    subject: str = Field(max_length=600)
    data_classes: list[str] | None = None
    scope: dict[str, str] | None = None
    given_at: Time | None = None
    until: Time | None = None
    words: str


class Whose(Body):
    """A person by one name; never in a URL."""

    subject: str = Field(max_length=600, examples=["email:ada@example.org"])


class WithdrawalBody(Body):
    """When the person took it back; now without it."""

    at: Time | None = None


class DispositionBody(Body):
    """A human's word on an item under review."""

    decision: Literal["erase", "extend", "reclassify"]
    until: Time | None = None
    data_class: str | None = None
    comment: str


class DecideBody(Body):
    """Which item, when, and whether retention or a person asks."""

    artifact: str | None = Field(default=None, max_length=64)
    entry: str | None = Field(default=None, max_length=64)
    at: Time | None = None
    trigger: Literal["retention", "request"] = "retention"


class Decided(BaseModel):
    """The decision and every rule that was looked at."""

    action: Literal["keep", "restrict", "erase", "regenerate", "review"]
    rule: str
    until: Instant | None
    because: list[Row]


def _sweeps(parts: Services) -> Sweeps:
    return Sweeps(parts.erasure)


def _holds(parts: Services) -> Holds:
    return Holds(
        vault=parts.vault,
        record=parts.record,
        transactions=parts.database.transaction,
        desk=RequestDesk(),
        approval=parts.settings.approval,
    )


@router.post("/v1/events", status_code=201)
def post_event(body: EventBody, acting: Reporter, parts: Parts) -> EventView:
    """Records a named event with one key; the same again is the same event."""
    now = parts.clock.now()
    with parts.database.transaction(acting.tenant_id) as session:
        found = record_event(
            session, parts.vault, acting, body.name, body.key, at=body.at, subject=body.subject, now=now
        )
    return EventView(id=f"evt_{found.event_id:016x}", name=found.name, at=found.at, items=found.items)


@router.get("/v1/retention/due")
def get_due(
    acting: Desk,
    parts: Parts,
    before: Annotated[Time | None, Query(description="Due by then; now without it.")] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[Row]:
    """What ends, or comes to review, by its own date as the rules stand now; a dry run counts what goes with it too."""
    at = before or parts.clock.now()
    place = _read_place(cursor)
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        lines, following = list_due(session, acting.tenant_id, RequestDesk(), before=at, limit=limit, place=place)
    return Page(items=lines, next_cursor=None if following is None else _write_place(following))


def _write_place(place: Place) -> str:
    micros = -1 if place.at is None else (place.at - _EPOCH) // _MICROSECOND
    return write_cursor(place.phase, place.group, micros, place.number, place.key)


def _read_place(cursor: str | None) -> Place | None:
    key = read_cursor(cursor, str, str, int, int, str)
    if key is None:
        return None
    phase, group, micros, number, last = key
    try:
        at = None if micros < 0 else _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise Problem("bad-cursor") from None
    if phase not in PHASES or abs(number) >= 2**63:
        raise Problem("bad-cursor")
    return Place(phase=phase, group=group, at=at, number=number, key=last)


@router.post("/v1/retention/runs", responses={202: {"description": "The run executes or waits; poll it."}})
def post_run(body: RunBody, acting: Legal, parts: Parts, response: Response) -> Open:
    """Starts a pass of retention. A brake leaves it `awaiting_approval`, with what to do."""
    now = parts.clock.now()
    if body.at is not None and body.at > now and not body.dry_run:
        detail = "later than now: only a dry run looks into the future"
        raise Problem("invalid", detail, errors=[{"pointer": "/at", "detail": detail}])
    run = _sweeps(parts).start(acting, now, at=body.at, dry_run=body.dry_run)
    parts.jobs.wake()
    response.status_code = 202 if run["state"] in ("executing", "awaiting_approval") else 200
    return Open.model_validate(run)


@router.get("/v1/retention/runs")
def list_runs(acting: Desk, parts: Parts, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> Page[Row]:
    """Runs by id."""
    after = read_cursor(cursor, str)
    rows = _sweeps(parts).runs(acting, after="" if after is None else after[0], limit=limit + 1)
    page, following = paged(rows, limit, lambda run: (run["id"],))
    return Page(items=page, next_cursor=following)


@router.get("/v1/retention/runs/{run_id}")
def get_run(run_id: RunId, acting: Desk, parts: Parts) -> Open:
    """A run as it stands."""
    return Open.model_validate(_sweeps(parts).get(acting, run_id))


@router.get("/v1/retention/runs/{run_id}/report")
def get_report(run_id: RunId, acting: Desk, parts: Parts) -> Open:
    """A run with each copy's end, what failed, the alarm, and how old a class's items can get at most."""
    return Open.model_validate(_sweeps(parts).report(acting, run_id))


@router.post("/v1/retention/runs/{run_id}/approve")
def approve_run(run_id: RunId, acting: Legal, parts: Parts) -> Open:
    """Lets a run go on that a brake stopped; another principal than the one who started it."""
    run = _sweeps(parts).approve(acting, run_id, parts.clock.now())
    parts.jobs.wake()
    return Open.model_validate(run)


@router.post("/v1/retention/runs/{run_id}/stop")
def stop_run(run_id: RunId, acting: Legal, parts: Parts) -> Open:
    """Ends a run that waits for approval; its items are looked at again by the next one."""
    return Open.model_validate(_sweeps(parts).stop(acting, run_id, parts.clock.now()))


@router.post("/v1/holds", status_code=201)
def place_hold(body: HoldBody, acting: Legal, parts: Parts) -> Open:
    """Places a hold; `too_late` lists what had already been sent to its store, and what it names by id that is gone.

    A hold that keeps nothing now is placed for what comes later, and has a `warning` that says why; so has one on
    somebody who was erased.
    """
    return Open.model_validate(_holds(parts).place(acting, body.model_dump(), parts.clock.now()))


@router.get("/v1/holds")
def list_holds(
    acting: Desk,
    parts: Parts,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
    *,
    released: Flag | None = None,
) -> Page[Row]:
    """Holds by id, in force or released.

    Of conversations with more than 200 entries `entries` is what was found in the first of them, and
    `entries_at_least` is true.
    """
    after = read_cursor(cursor, str)
    rows = _holds(parts).holds(acting, released=released, after="" if after is None else after[0], limit=limit + 1)
    page, following = paged(rows, limit, lambda hold: (hold["id"],))
    return Page(items=page, next_cursor=following)


@router.post("/v1/holds/{hold_id}/release")
def release_hold(hold_id: HoldId, acting: Legal, parts: Parts, *, preview: Flag = True) -> Open:
    """Shows exactly what becomes due; with `preview=false` another principal than the creator ends the hold."""
    found = _holds(parts).release(acting, hold_id, preview=preview, now=parts.clock.now())
    if not preview:
        parts.jobs.wake()
    return Open.model_validate(found)


@router.get("/v1/dispositions")
def list_dispositions(
    acting: Legal,
    parts: Parts,
    state: Literal["open", "quarantined", "erase", "extended", "reclassified", "released", "gone"] = "open",
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[Row]:
    """Items whose class ends in a review, or that passes set aside (`quarantined`), oldest first."""
    after = read_cursor(cursor, int)
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        rows = dispositions.dispositions(
            session,
            acting.tenant_id,
            parts.clock.now(),
            state=state,
            after=0 if after is None else after[0],
            limit=limit + 1,
        )
    page, following = paged(rows, limit, lambda row: (row[0],))
    return Page(items=[view for _, view in page], next_cursor=following)


@router.post("/v1/dispositions/{disposition_id}")
def decide_disposition(disposition_id: DispositionId, body: DispositionBody, acting: Legal, parts: Parts) -> Open:
    """Erases with the next run (out of quarantine: tries again), keeps until a date, or gives it another class."""
    spec = body.model_dump(mode="json", exclude_none=True)
    with parts.database.transaction(acting.tenant_id) as session:
        found = dispositions.decide_disposition(
            session, parts.vault, parts.record, acting, disposition_id=disposition_id, spec=spec, now=parts.clock.now()
        )
    return Open.model_validate(found)


@router.post("/v1/decide")
def decide(body: DecideBody, acting: Desk, parts: Parts) -> Decided:
    """What would happen to one item, by which rule, until when."""
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        found = explain(
            session,
            acting.tenant_id,
            RequestDesk(),
            artifact=body.artifact,
            entry=body.entry,
            trigger=body.trigger,
            at=body.at or parts.clock.now(),
        )
    return Decided.model_validate(found)


@router.post("/v1/consents", status_code=201)
def post_consent(body: ConsentBody, acting: Recorder, parts: Parts) -> Open:
    """Records what a person consented to: the clock of classes that keep data as long as consent covers it."""
    spec = body.model_dump(mode="json", exclude_none=True)
    with parts.database.transaction(acting.tenant_id) as session:
        found = record_consent(session, parts.vault, parts.record, acting, spec, parts.clock.now())
    return Open.model_validate(found)


@router.post("/v1/consents:search")
def search_consents(
    body: Whose, acting: Desk, parts: Parts, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[Row]:
    """Every consent of a person, oldest first, with its words."""
    after = read_cursor(cursor, str, str)
    with parts.database.transaction(acting.tenant_id) as session:
        found = consents_about(session, parts.vault, acting, body.subject, parts.clock.now())
    waiting = [one for one in found if after is None or _consent_key(one) > after]
    page, following = paged(waiting[: limit + 1], limit, _consent_key)
    return Page(items=page, next_cursor=following)


def _consent_key(one: dict[str, Any]) -> tuple[str, str]:
    return format_instant(one["given_at"]), one["id"]


@router.post("/v1/consents/{consent_id}/withdraw")
def post_withdrawal(consent_id: ConsentId, body: WithdrawalBody, acting: Recorder, parts: Parts) -> Open:
    """Ends a consent from an instant on; what it covered ends by its class, with the next run."""
    now = parts.clock.now()
    with parts.database.transaction(acting.tenant_id) as session:
        found = withdraw_consent(session, parts.record, acting, consent_id, at=body.at or now, now=now)
    return Open.model_validate(found)
