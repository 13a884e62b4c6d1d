"""Replay over HTTP: a stream as it was said and done, with a verdict per entry, as JSON, NDJSON or a page.

Guarantees: the checkpoint is extended over what is returned before it is returned; every read of content becomes an
entry itself. The fold is `audit.replay`, which shares only the ledger's format with the code that wrote the record.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Request, Response
from pydantic import ConfigDict, Field
from sqlmodel import Session

from api.auth import Parts, Purpose, ReadPurpose, require
from api.errors import Problem
from api.negotiation import wanted
from api.pagination import read_cursor, write_cursor
from api.requests import Body, Time, make_router
from api.routes.record import NDJSON, READERS, Reader, audit_read, visible
from api.wiring import Services
from audit.findings import Integrity
from audit.render import html_page
from audit.replay import Content, StoredEntry, Transcript, Unsealed, fold, transcript_json
from audit.resume import messages_of
from audit.silence import silence_json, silences
from ledger import index, recorders
from ledger.models import LogStream
from registry import playback, streams
from registry.acting import Acting
from registry.models import StreamRow
from registry.playback import ReadEntry, entry_name, read_entries
from registry.restricted import closed_entries

router = make_router("record")
Resumer = Annotated[Acting, Depends(require("writer", *READERS))]
MAX_WHOLE = 100_000
_PAGE = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; form-action 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
}
"""Of a page that holds what others said: a browser runs and fetches nothing, whatever it finds in it."""
AROUND = timedelta(days=1)
"""How far before and after a stream its recorders' heartbeats are looked at, to know their usual pause."""


_LINES = {
    "schema": {
        "type": "string",
        "description": "The JSON form line by line: first an object of all its members but `entries`, then an entry a "
        "line; a body that holds line feeds is base64 in `body_raw`.",
    }
}


class Replay(Body):
    """A stream by the caller's name, as it was at an instant or a tree size, whole or by pages."""

    stream: str = Field(min_length=1, max_length=512)
    at: Time | None = None
    size: int | None = Field(default=None, ge=0)
    limit: int | None = Field(default=None, ge=1, le=10_000)
    cursor: str | None = None
    model_config = ConfigDict(json_schema_extra={"examples": [{"stream": "conv_71"}]})


class Messages(Body):
    """A stream by the caller's name."""

    stream: str = Field(min_length=1, max_length=512)
    model_config = ConfigDict(json_schema_extra={"examples": [{"stream": "conv_71"}]})


@router.post(
    "/v1/replay",
    response_class=Response,
    responses={200: {"content": {"application/json": {}, NDJSON: _LINES, "text/html": {}}}},
)
def replay(body: Replay, request: Request, acting: Reader, parts: Parts, purpose: ReadPurpose) -> Response:
    """The exact exchange of one stream with its proof state; `Accept` chooses JSON, NDJSON or HTML."""
    form = wanted(request, ("application/json", NDJSON, "text/html"))
    transcript, cursor, read, silent = replayed(parts, acting, purpose, body)
    audit_read(parts, acting, purpose, read)
    view = transcript_json(transcript)
    view["next_cursor"] = cursor
    view["silences"] = silent
    headers = {"Cache-Control": "no-store", "Vary": "Accept"}
    if form == "text/html":
        plain = msgspec.json.decode(msgspec.json.encode(view))
        return Response(html_page(plain), media_type="text/html", headers=headers | _PAGE)
    if form == NDJSON:
        entries = view.pop("entries")
        lines = [msgspec.json.encode(view), *(msgspec.json.encode(_one_line(entry)) for entry in entries)]
        return Response(b"\n".join(lines) + b"\n", media_type=NDJSON, headers=headers)
    return Response(msgspec.json.encode(view), media_type="application/json", headers=headers)


@router.post("/v1/streams:messages", response_class=Response, responses={200: {"content": {"application/json": {}}}})
def messages(body: Messages, acting: Resumer, parts: Parts, purpose: ReadPurpose) -> Response:
    """What is retained of an exchange, to begin a new conversation with a provider that lost the old one.

    For roles that the class of the words lets read them for that purpose; each call is a read of content in the record.
    Then declare the new conversation with `PATCH /v1/streams/{id}`: it stands under the same stream.
    """
    transcript, _, read, _ = replayed(parts, acting, purpose, Replay(stream=body.stream))
    audit_read(parts, acting, purpose, read)
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        row = _stream(session, parts, acting, body.stream)
        standing = {"id": row.stream_id, "provider_generation": row.declared.get("provider_generation", 0)}
    return Response(msgspec.json.encode(standing | messages_of(transcript)), media_type="application/json")


def replayed(
    parts: Services, acting: Acting, purpose: Purpose, body: Replay
) -> tuple[Transcript, str | None, list[ReadEntry], list[dict[str, Any]]]:
    """Fold a stream: the transcript, where its next page starts, the entries that were opened, and silences."""
    tenant_id = acting.tenant_id
    after = read_cursor(body.cursor, int, pointer="/cursor")
    start = -1 if after is None else after[0]
    with parts.database.transaction(tenant_id, write=False) as session:
        stream = _stream(session, parts, acting, body.stream)
        state = index.state_of(session, tenant_id)
        known = 0 if state is None else state.size
        if body.size is not None and body.size > known:
            # What was cut at a size of the future would look whole, and be another exchange tomorrow.
            where = [{"pointer": "/size", "detail": f"the log has {known} entries"}]
            raise Problem("invalid", "the log was never that large", errors=where)
        limit = MAX_WHOLE if body.limit is None else body.limit
        rows = playback.stream_rows(session, tenant_id, stream.stream_no, size=body.size, after=start, limit=limit + 1)
        if body.at is not None:
            rows = [row for row in rows if row.received <= body.at]
        if body.limit is None and len(rows) > MAX_WHOLE:
            raise Problem("too-large", f"the stream has more than {MAX_WHOLE} entries; read it by pages with limit")
        page, more = rows[:limit], len(rows) > limit
        head = session.get(LogStream, (tenant_id, stream.stream_no))
        may_see = visible(session, acting, purpose)
        closed = closed_entries(session, tenant_id, page, purpose.code)
        entries = read_entries(
            session, parts.vault, parts.log, tenant_id, page, may_see=may_see, closed=closed, damaged_too=True
        )
    whole = [entry.row.idx for entry in entries if entry.damage is None]
    proofs = parts.log.proofs(tenant_id, whole, parts.clock.now()) if whole else []
    by_index = {entry.row.idx: entry for entry in entries}
    paths = {proof.index: proof.inclusion for proof in proofs}
    stored = [
        StoredEntry(
            index=entry.row.idx,
            header=entry.raw_header,
            inclusion=paths.get(entry.row.idx),
            noncanonical=entry.row.noncanonical,
            lost=None if entry.damage is None else (Integrity(entry.damage.state), entry.damage.detail),
            named=entry_name(entry.row),
        )
        for entry in entries
    ]
    in_part = more or body.at is not None or body.size is not None
    with parts.database.transaction(tenant_id, write=False) as session:
        transcript = fold(
            body.stream,
            stored,
            lambda entry, _header: _unsealed(by_index[entry.index]),
            note=proofs[0].checkpoint.encode() if proofs else None,
            vkey=parts.log.vkey(tenant_id) if proofs else None,
            stream_id=stream.stream_id,
            after=start,
            next_position=None if head is None or in_part else head.position,
            whole=not more,
            elsewhere=partial(recorders.held, session, tenant_id),
        )
        silent = _silences(session, tenant_id, transcript)
    cursor = write_cursor(page[-1].position) if more else None
    return transcript, cursor, entries, silent


def _silences(session: Session, tenant_id: int, transcript: Transcript) -> list[dict[str, Any]]:
    """When the recorders of this stream, of those that send heartbeats, said nothing during it."""
    headers = [one.header for one in transcript.entries if one.header is not None]
    if not headers:
        return []
    first, last = min(one.at for one in headers), max(one.at for one in headers)
    found = []
    for recorder in sorted({one.recorder for one in headers if one.recorder is not None}):
        beats = recorders.beats(session, tenant_id, recorder, since=first - AROUND, until=last + AROUND)
        found += [silence for silence in silences(recorder, beats) if silence.until is None or silence.until > first]
    return [silence_json(silence) for silence in found if silence.since < last]


def _stream(session: Session, parts: Services, acting: Acting, name: str) -> StreamRow:
    found = streams.find_streams(session, parts.vault, acting.tenant_id, [name]).get(name)
    if found is None:
        raise Problem("unknown-stream", "no stream of that name in this tenant")
    return found


def _unsealed(entry: ReadEntry) -> Unsealed:
    facts = {name: value for name, value in entry.skeleton.items() if name != "parts"}
    if entry.actor is not None:
        facts["actor"] = entry.actor
    return Unsealed(
        parts=[
            Content(
                name=part.name,
                form=part.form,
                data_class=part.data_class,
                state=Integrity(part.state),
                data=part.data,
                because=part.because,
            )
            for part in entry.parts
        ],
        facts=facts,
    )


def _one_line(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry that fits one line: a body that holds line feeds goes as base64."""
    body = entry.get("body")
    if isinstance(body, msgspec.Raw) and b"\n" in bytes(body):
        return {**{k: v for k, v in entry.items() if k != "body"}, "body_raw": base64.b64encode(bytes(body)).decode()}
    return dict(entry)
