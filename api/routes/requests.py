"""The legal desk over HTTP: requests from receipt to certificate.

The verbs are in `erasure.desk`, `planning`, `reader` and `letters`.

Guarantees: free text and identifiers travel in bodies and are sealed at once; approval wakes the worker; a certificate
is served as the bytes that were signed. Progress is also a stream of server-sent events.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import IO, Annotated, Any, Literal

from fastapi import Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from api.answers import Row
from api.auth import Legal, Parts, bearer_of, require
from api.negotiation import wanted
from api.pagination import DEFAULT_LIMIT, Cursor, Limit, paged, read_cursor
from api.requests import Body, Time, Whole, make_router
from erasure.desk import Desk
from erasure.handout import open_export
from erasure.letters import Asked, write
from erasure.planning import Planner
from erasure.reader import Reader
from erasure.rendering import paper
from erasure.rendering.letter import plain
from erasure.request import DONE, CopyState, Right, State
from erasure.signed_file import SignedFile
from registry.acting import Acting
from registry.errors import NotAuthenticated
from registry.tokens import authenticate

router = make_router("requests")
Watcher = Annotated[Acting, Depends(require("legal", "auditor"))]
LetterKind = Literal[
    "acknowledgement", "extension", "refusal", "no_match", "restriction_lifting", "answer", "recipients"
]  # fmt: skip
_PIECE = 1 << 16
_HTML = "text/html; charset=utf-8"
_EVENT_SECONDS = 0.5
_EVENTS_END_SECONDS = 600.0
_ENDED = frozenset(str(state) for state in DONE) | {"no_match", "refused", "cancelled", "duplicate", "partially_failed"}


class NewRequest(Body):
    """What a person asks for, as the desk received it."""

    right: Literal["erasure", "access", "portability", "rectification", "restriction", "objection"]
    subjects: list[str] = Field(min_length=1, max_length=100)
    scope: dict[str, Any] | None = None
    regulation: Literal["gdpr", "ccpa"]
    jurisdiction: str | None = Field(default=None, pattern=r"^[A-Z]{2}(-[A-Z0-9]{1,3})?$")
    timezone: str | None = Field(default=None, max_length=64)
    received_at: Time | None = None
    channel: str | None = Field(default=None, max_length=200)
    corrections: dict[str, Any] | None = None
    note: str | None = Field(default=None, max_length=10_000)
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "right": "erasure",
                    "subjects": ["email:ada@example.org"],
                    "regulation": "gdpr",
                    "jurisdiction": "DE-BY",
                    "timezone": "Europe/Berlin",
                    "received_at": "2026-11-29T09:00:00Z",
                    "channel": "e-mail",
                }
            ]
        }
    )


class Identity(Body):
    """How one identifier of the request was checked."""

    identifier: str = Field(min_length=3, max_length=600)
    method: str = Field(min_length=1, max_length=200)
    evidence: str | None = Field(default=None, max_length=10_000)
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"identifier": "email:ada@example.org", "method": "login", "evidence": "…"}]}
    )


class Approval(Body):
    """Which plan is approved."""

    plan_hash: str = Field(pattern=r"^[0-9a-f]{64}$")
    model_config = ConfigDict(json_schema_extra={"examples": [{"plan_hash": "0" * 64}]})


class Refusal(Body):
    """On which ground of the regulation."""

    ground: str = Field(min_length=1, max_length=100)
    model_config = ConfigDict(json_schema_extra={"examples": [{"ground": "manifestly_unfounded"}]})


class Reason(Body):
    """Why, in the desk's words or as a code of the regulation; sealed."""

    reason: str = Field(min_length=1, max_length=10_000)
    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "clarification"}]})


class Settlement(Body):
    """What a human says of a copy."""

    outcome: Literal[
        "erase", "erased", "retained", "failed", "release", "withhold", "corrected", "unchanged", "retry"
    ]  # fmt: skip
    evidence: str | None = Field(default=None, max_length=10_000)
    comment: str = Field(min_length=1, max_length=10_000)
    model_config = ConfigDict(json_schema_extra={"examples": [{"outcome": "erased", "comment": "done by the vendor"}]})


class Notice(Body):
    """What the person was told, how and when; or a recipient, and what it answered (GDPR Art. 19)."""

    kind: Literal[
        "acknowledged", "extended", "refused", "answered", "restriction_lifting",
        "recipient_told", "recipient_answered", "recipient_not_told",
    ]  # fmt: skip
    channel: str = Field(min_length=1, max_length=200)
    sent_at: Time
    recipient: str | None = Field(default=None, min_length=1, max_length=256)
    answer: Literal["done", "nothing_held", "refused", "impossible", "disproportionate"] | None = None
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"kind": "answered", "channel": "e-mail", "sent_at": "2026-12-01T10:00:00Z"}]}
    )


class Subject(Body):
    """A person by one name."""

    subject: str = Field(min_length=3, max_length=600)
    model_config = ConfigDict(json_schema_extra={"examples": [{"subject": "email:ada@example.org"}]})


def _desk(parts: Parts) -> Desk:
    return Desk(parts.erasure)


@router.post("/v1/requests", status_code=201)
def create(body: NewRequest, acting: Legal, parts: Parts) -> Row:
    """Takes a request in, whether or not anybody by that name is known; says until when it must be answered."""
    spec = {name: value for name, value in body.model_dump().items() if value is not None}
    return _desk(parts).create(acting, spec, parts.clock.now())


@router.get("/v1/requests")
def requests(
    acting: Watcher,
    parts: Parts,
    *,
    state: State | None = None,
    right: Right | None = None,
    due_before: Time | None = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Row:
    """Requests by state, right and date."""
    after = read_cursor(cursor, str)
    found = Reader(parts.erasure).requests(
        acting,
        state=state,
        right=right,
        due_before=due_before,
        after=None if after is None else after[0],
        limit=limit + 1,
    )
    items, following = paged(found, limit, lambda row: (row["id"],))
    return {"items": items, "next_cursor": following}


@router.post("/v1/requests:search")
def search(body: Subject, acting: Watcher, parts: Parts, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> Row:
    """Requests that name a person."""
    after = read_cursor(cursor, str)
    found = Reader(parts.erasure).search(
        acting, body.subject, after=None if after is None else after[0], limit=limit + 1
    )
    items, following = paged(found, limit, lambda row: (row["id"],))
    return {"items": items, "next_cursor": following}


@router.get("/v1/requests/{request_id}")
def read(request_id: str, acting: Watcher, parts: Parts) -> Row:
    """A request with the counts of its copies and its history."""
    return Reader(parts.erasure).get(acting, request_id)


@router.post("/v1/requests/{request_id}/verify-identity")
def verify_identity(request_id: str, body: Identity, acting: Legal, parts: Parts) -> Row:
    """Notes that one identifier was checked; unverified ones stay out of the selector."""
    return _desk(parts).verify_identity(
        acting,
        request_id,
        identifier=body.identifier,
        method=body.method,
        evidence=body.evidence,
        now=parts.clock.now(),
    )


@router.post("/v1/requests/{request_id}/plan")
def plan(request_id: str, acting: Legal, parts: Parts) -> Row:
    """Freezes what would happen, copy by copy; nothing is touched. Nobody known: `no_match`."""
    return Planner(parts.erasure).plan(acting, request_id, parts.clock.now())


@router.get("/v1/requests/{request_id}/plan", response_model=Row)
def read_plan(request_id: str, acting: Watcher, parts: Parts) -> StreamingResponse:
    """The frozen plan."""
    file = Reader(parts.erasure).plan_file(acting, request_id)
    return StreamingResponse(_pieces(file), media_type="application/json")


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while piece := file.read(_PIECE):
            yield piece


@router.post("/v1/requests/{request_id}/approve")
def approve(request_id: str, body: Approval, acting: Legal, parts: Parts) -> Row:
    """Approves exactly one plan, as another person than its creator and checker; sets the fence; work begins."""
    view = Planner(parts.erasure).approve(acting, request_id, body.plan_hash, parts.clock.now())
    parts.jobs.wake()
    return view


@router.post("/v1/requests/{request_id}/refuse")
def refuse(request_id: str, body: Refusal, acting: Legal, parts: Parts) -> Row:
    """Refuses on a ground of the regulation."""
    return _desk(parts).refuse(acting, request_id, ground=body.ground, now=parts.clock.now())


@router.post("/v1/requests/{request_id}/extend")
def extend(request_id: str, body: Reason, acting: Legal, parts: Parts) -> Row:
    """Extends the answer's date once, before it has passed."""
    return _desk(parts).extend(acting, request_id, reason=body.reason, now=parts.clock.now())


@router.post("/v1/requests/{request_id}/pause")
def pause(request_id: str, body: Reason, acting: Legal, parts: Parts) -> Row:
    """Stops the legal clock for a reason of the regulation."""
    return _desk(parts).pause(acting, request_id, reason=body.reason, now=parts.clock.now())


@router.post("/v1/requests/{request_id}/resume")
def resume(request_id: str, acting: Legal, parts: Parts) -> Row:
    """Lets the legal clock run again."""
    return _desk(parts).resume(acting, request_id, now=parts.clock.now())


@router.post("/v1/requests/{request_id}/cancel")
def cancel(request_id: str, acting: Legal, parts: Parts) -> Row:
    """Cancels before the first destructive step."""
    return _desk(parts).cancel(acting, request_id, now=parts.clock.now())


@router.post("/v1/requests/{request_id}/retry")
def retry(request_id: str, acting: Legal, parts: Parts) -> Row:
    """Tries what failed again, with its attempts counted anew."""
    view = _desk(parts).retry(acting, request_id, now=parts.clock.now())
    parts.jobs.wake()
    return view


@router.post("/v1/requests/{request_id}/accept-exceptions")
def accept_exceptions(request_id: str, body: Reason, acting: Legal, parts: Parts) -> Row:
    """Ends with what failed, accepted by a second person with a reason."""
    view = _desk(parts).accept_exceptions(acting, request_id, reason=body.reason, now=parts.clock.now())
    parts.jobs.wake()
    return view


@router.get("/v1/requests/{request_id}/copies")
def copies(
    request_id: str,
    acting: Watcher,
    parts: Parts,
    *,
    state: CopyState | None = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Row:
    """The copies of the plan with their state, level and evidence."""
    after = read_cursor(cursor, int)
    found = Reader(parts.erasure).copies(
        acting, request_id, state=state, after=0 if after is None else after[0], limit=limit + 1
    )
    items, following = paged(found, limit, lambda row: (row["copy"],))
    return {"items": items, "next_cursor": following}


@router.post("/v1/requests/{request_id}/copies/{copy}")
def settle(request_id: str, copy: Whole, body: Settlement, acting: Legal, parts: Parts) -> Row:
    """A human's word on a copy that waits for one; what is said to be erased is still looked for."""
    comment = body.comment if body.evidence is None else f"{body.comment}\n{body.evidence}"
    view = _desk(parts).settle_copy(
        acting, request_id, copy, outcome=body.outcome, comment=comment, now=parts.clock.now()
    )
    parts.jobs.wake()
    return view


@router.post("/v1/requests/{request_id}/notices")
def notice(request_id: str, body: Notice, acting: Legal, parts: Parts) -> Row:
    """Notes what the person, or a recipient, was told; `answered` stops the legal clock."""
    return _desk(parts).notice(
        acting,
        request_id,
        kind=body.kind,
        channel=body.channel,
        sent_at=body.sent_at,
        now=parts.clock.now(),
        recipient=body.recipient,
        answer=body.answer,
    )


@router.get(
    "/v1/requests/{request_id}/report",
    response_class=Response,
    responses={
        200: {
            "content": {"application/json": {}, "text/html": {}, "application/pdf": {}},
            "description": "The certificate as it was signed, or a paper that carries it.",
        }
    },
)
def report(
    request_id: str,
    request: Request,
    acting: Watcher,
    parts: Parts,
    version: Annotated[Literal["interim", "final"] | None, Query()] = None,
) -> Response:
    """The newest certificate, or that of a version; `final` before its date is 409 with that date."""
    form = wanted(request, ("application/json", "text/html", "application/pdf"))
    signed = Reader(parts.erasure).certificate_file(acting, request_id, version)
    if form == "application/json":
        return _streamed(signed, "application/json", {"Vary": "Accept"})
    with signed:
        if form == "text/html":
            return _streamed(paper.html_file(signed.view()), _HTML, _page_headers(request_id))
        return _streamed(paper.pdf_file(signed.view()), "application/pdf", _pdf_headers(request_id))


@router.get(
    "/v1/requests/{request_id}/letter",
    response_class=Response,
    responses={
        200: {
            "content": {"text/html": {}, "application/pdf": {}, "text/plain": {}},
            "description": "A letter to the person; the answer opens the certificate's commitments.",
        }
    },
)
def letter(
    request_id: str,
    request: Request,
    acting: Legal,
    parts: Parts,
    *,
    kind: Annotated[LetterKind | None, Query()] = None,
    language: Annotated[Literal["en", "de"] | None, Query()] = None,
) -> Response:
    """The letter that the request's state calls for, or one of a kind; reading it is an entry of the record."""
    form = wanted(request, ("text/html", "application/pdf", "text/plain"))
    asked = Asked(kind=kind, language=language)
    written = write(parts.erasure, acting, request_id, asked, parts.clock.now())
    if form == "text/html":
        return Response(paper.letter_html(written), media_type=_HTML, headers=_page_headers(request_id))
    if form == "application/pdf":
        headers = _pdf_headers(f"{request_id}-letter")
        return Response(paper.letter_pdf(written), media_type="application/pdf", headers=headers)
    headers = {"Vary": "Accept", "Cache-Control": "no-store"}
    return Response(plain(written), media_type="text/plain; charset=utf-8", headers=headers)


def _streamed(file: SignedFile, media_type: str, headers: Mapping[str, str]) -> StreamingResponse:
    sized = {**headers, "Content-Length": str(file.size)}
    return StreamingResponse(_sent(file), media_type=media_type, headers=sized)


def _sent(file: SignedFile) -> Iterator[bytes]:
    with file:
        yield from file.pieces(_PIECE)


def _page_headers(name: str) -> dict[str, str]:
    return {
        "Content-Security-Policy": f"{paper.policy()}; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
        "Content-Disposition": f'inline; filename="{_file_name(name)}.html"',
        "Vary": "Accept",
    }


def _pdf_headers(name: str) -> dict[str, str]:
    return {
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
        "Content-Disposition": f'inline; filename="{_file_name(name)}.pdf"',
        "Vary": "Accept",
    }


def _file_name(name: str) -> str:
    return "".join(char for char in name if char.isalnum() or char in "_-")


@router.get(
    "/v1/requests/{request_id}/export",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/zip": {}}, "description": "The package, with its manifest."}},
)
def export(request_id: str, acting: Legal, parts: Parts) -> StreamingResponse:
    """The package of an access or portability request; once it is erased or expired, an empty one that says so."""
    package = open_export(parts.erasure, acting, request_id, parts.clock.now())
    headers = {
        "content-disposition": f'attachment; filename="{package.name}"',
        "content-length": str(package.size),
        "cache-control": "no-store",
    }
    return StreamingResponse(package.pieces, media_type="application/zip", headers=headers)


@router.post("/v1/requests/{request_id}/lift")
def lift(request_id: str, body: Reason, acting: Legal, parts: Parts) -> Row:
    """Lifts a restriction, after the person was told (notice `restriction_lifting`)."""
    return _desk(parts).lift(acting, request_id, reason=body.reason, now=parts.clock.now())


@router.get("/v1/requests/{request_id}/events", response_class=StreamingResponse)
def events(request: Request, request_id: str, acting: Watcher, parts: Parts) -> StreamingResponse:
    """Progress as server-sent events: state and counts at each change, until the request has ended."""
    reader = Reader(parts.erasure)
    first, token = reader.get(acting, request_id), bearer_of(request)

    async def lines() -> AsyncIterator[str]:
        # Waits hold no thread: all threads are few, and many may watch.
        last, view, end = "", first, time.monotonic() + _EVENTS_END_SECONDS
        while True:
            told = json.dumps({name: view[name] for name in ("id", "state", "counts", "waiting_for")})
            if told != last:
                yield f"event: progress\ndata: {told}\n\n"
                last = told
            if view["state"] in _ENDED or time.monotonic() > end:
                return
            await asyncio.sleep(_EVENT_SECONDS)
            try:
                view = await run_in_threadpool(look)
            except NotAuthenticated:
                return

    def look() -> Row:
        """Looks again, as whoever still may: the token can be revoked while it watches."""
        with parts.database.unscoped() as session:
            authenticate(session, token)
        return reader.get(acting, request_id)

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"cache-control": "no-store"})
