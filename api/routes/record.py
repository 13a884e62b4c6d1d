"""The record over HTTP: entries in, entries and proofs out, search and replay.

Guarantees: entries reach `registry.record` as the bytes that arrived; a read of content needs a role and a purpose that
its class allows, and becomes an entry itself. Proofs need no purpose: they show no content.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Request, Response
from pydantic import ConfigDict
from sqlmodel import Session, select
from starlette.concurrency import run_in_threadpool

from api.answers import Row
from api.auth import Parts, Purpose, ReadPurpose, Writer, require
from api.errors import Problem
from api.pagination import DEFAULT_LIMIT, Cursor, Limit, read_cursor, write_cursor
from api.requests import Body, Time, make_router
from api.wiring import MAX_ENTRIES, Services
from ledger import index
from ledger.entry import Kind, decode_header, uuid7_time
from ledger.errors import MalformedHeader, RecordDamaged
from ledger.models import EntryRow
from registry import classes, playback, subjects
from registry.acting import Acting
from registry.entries import MalformedEntry, split_batch, split_lines
from registry.keyed import Lookups
from registry.models import RunRow
from registry.playback import ReadEntry, ReadPart, entry_name, read_entries
from registry.restricted import closed_entries

router = make_router("record")
NDJSON = "application/x-ndjson"
READERS = ("auditor", "legal")
Reader = Annotated[Acting, Depends(require(*READERS))]
Prover = Annotated[Acting, Depends(require("auditor", "legal", "writer"))]

_ENTRY_EXAMPLE = {
    "entries": [
        {
            "id": "019ad1f0-7c00-7000-8000-000000000001",
            "stream": "conv_71",
            "kind": "turn.user",
            "at": "2026-11-29T12:00:00Z",
            "data_class": "transcript",
            "subjects": ["user:user_18"],
            "body": {"role": "user", "content": "Where is my refund?"},
        }
    ]
}
_ENTRY_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["entries"],
                    "properties": {"entries": {"type": "array", "maxItems": MAX_ENTRIES, "items": {"type": "object"}}},
                },
                "example": _ENTRY_EXAMPLE,
            },
            NDJSON: {
                "schema": {
                    "type": "string",
                    "description": f"One entry a line, each an object as in `entries` of the JSON form; at most "
                    f"{MAX_ENTRIES}. A line that is not valid is answered for itself.",
                },
                "example": "".join(json.dumps(one) + "\n" for one in _ENTRY_EXAMPLE["entries"]),
            },
        },
    }
}


class Search(Body):
    """Which entries; every given condition must hold."""

    kind: str | None = None
    data_class: str | None = None
    subject: str | None = None
    run: str | None = None
    since: Time | None = None
    until: Time | None = None
    model_config = ConfigDict(json_schema_extra={"examples": [{"kind": "tool.call", "data_class": "transcript"}]})


@router.post("/v1/record/entries", openapi_extra=_ENTRY_BODY)
async def append(request: Request, parts: Parts, acting: Writer) -> Response:
    """Stores entries; answers each: stored, duplicate, rejected or suppressed. `stored` means sealed and sequenced."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    return await run_in_threadpool(_append, parts, acting, media, body)


def _append(parts: Services, acting: Acting, media: str, body: bytes) -> Response:
    if media not in (NDJSON, "application/json", ""):
        raise Problem("unsupported-media-type", f"send application/json or {NDJSON}")
    now, lines = parts.clock.now(), media == NDJSON
    result = parts.record.append_call(acting, body, now, lines=lines)
    if result is None:
        result = parts.record.append(acting, _items(body, lines=lines), now)
    for data_class, count in result.redacted.items():
        # Somebody's instrumentation records what it was told not to; until it is found it is told here, call by call.
        parts.telemetry.log.warning(
            "content was sent that its class does not expect", data_class=data_class, parts=count
        )
    answer = {"results": result.results, "receipt": result.receipt}
    return Response(msgspec.json.encode(answer), media_type="application/json")


def _items(body: bytes, *, lines: bool) -> list[bytes]:
    """The items of a call, as they were sent."""
    try:
        items = split_lines(body) if lines else split_batch(body)
    except MalformedEntry as error:
        errors = [] if error.problem == "malformed" else [{"pointer": error.pointer, "detail": error.detail}]
        raise Problem(error.problem, error.detail, errors=errors) from error
    if len(items) > MAX_ENTRIES:
        raise Problem("too-large", f"at most {MAX_ENTRIES} entries in one call, got {len(items)}")
    return items


@router.get("/v1/record/entries/{entry_id}")
def read_entry(entry_id: str, acting: Reader, parts: Parts, purpose: ReadPurpose) -> Response:
    """One entry with its content, exact to the byte; 410 with the request once all of it is erased."""
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        row = _row(session, acting, entry_id)
        entry = read_entries(
            session,
            parts.vault,
            parts.log,
            acting.tenant_id,
            [row],
            may_see=visible(session, acting, purpose),
            closed=closed_entries(session, acting.tenant_id, [row], purpose.code),
        )[0]
    if entry.erased:
        raise erased_problem(parts, acting, entry)
    if all(part.state == "withheld" for part in entry.parts):
        raise Problem("purpose-required", "no class of this entry allows that purpose and role")
    audit_read(parts, acting, purpose, [entry])
    return Response(msgspec.json.encode(entry_view(entry)), media_type="application/json")


@router.get("/v1/record/entries/{entry_id}/proof")
def read_proof(entry_id: str, acting: Prover, parts: Parts) -> Row:
    """The entry's header and its inclusion in a signed checkpoint, which is extended over it first."""
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        idx = _row(session, acting, entry_id).idx
        state = index.state_of(session, acting.tenant_id)
        if state is None or idx >= state.size:
            raise RecordDamaged("missing", f"the index looks for the entry at {idx}, where the log has none")
    proof = parts.log.proof(acting.tenant_id, idx, parts.clock.now())
    if decode_header(proof.header).id != entry_id.lower():
        raise RecordDamaged("altered", f"the index looks for the entry at {idx}, which is another's")
    return {
        "index": proof.index,
        "header": base64.b64encode(proof.header).decode(),
        "leaf_hash": proof.leaf.hex(),
        "inclusion": [node.hex() for node in proof.inclusion],
        "tree_size": proof.tree_size,
        "checkpoint": proof.checkpoint,
    }


@router.post("/v1/record:search")
def search(body: Search, acting: Reader, parts: Parts, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> Row:
    """Entries by kind, class, subject, run and time, without content."""
    after = read_cursor(cursor, int)
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        subject_nos = _subject(session, parts, acting, body.subject)
        run_no = _run(session, parts, acting, body.run)
        if (body.subject and not subject_nos) or (body.run and run_no is None):
            return {"items": [], "next_cursor": None}
        rows = playback.search(
            session,
            acting.tenant_id,
            kind=body.kind,
            data_class=body.data_class,
            subject_nos=subject_nos,
            run_no=run_no,
            since=body.since,
            until=body.until,
            after=-1 if after is None else after[0],
            limit=limit + 1,
        )
    page = rows[:limit]
    return {
        "items": [_row_view(row) for row in page],
        "next_cursor": write_cursor(page[-1].idx) if len(rows) > limit else None,
    }


def visible(session: Session, acting: Acting, purpose: Purpose) -> frozenset[str]:
    """Return the classes whose content these roles may read for this purpose; skeletons need no other rule."""
    return frozenset(
        name
        for name, spec in classes.in_force(session, acting.tenant_id).items()
        if purpose.code in spec.access_purposes
        and (acting.has_role(*spec.access_roles) if spec.access_roles else acting.has_role("auditor"))
    )


def audit_read(parts: Services, acting: Acting, purpose: Purpose, entries: Iterable[ReadEntry]) -> None:
    """Record a read of content: by whom, why, how much; the entries read by id."""
    read = [entry for entry in entries if any(part.state == "verified" for part in entry.parts)]
    if not read:
        return
    now = parts.clock.now()
    body = {
        "principal": acting.principal,
        "purpose": purpose.code,
        "case": purpose.case,
        "entries": len(read),
        "first": entry_name(read[0].row),
        "last": entry_name(read[-1].row),
    }
    with parts.database.transaction(acting.tenant_id) as session:
        parts.record.announce(session, acting.tenant_id, Kind.CONTENT_READ, body, now)


def entry_view(entry: ReadEntry) -> dict[str, Any]:
    """Return the entry as API §5 shows it; bodies as the exact bytes."""
    header = entry.header
    view: dict[str, Any] = {
        **_row_view(entry.row),
        "position": header.position,
        "kind": header.kind,
        "data_class": header.data_class,
        "at": _time(header.at),
        "received": _time(header.received),
        "stream_id": header.stream,
        "recorder": header.recorder,
        "seq": header.seq,
        "noncanonical": entry.row.noncanonical,
        "actor": entry.actor,
    }
    for name in ("agent", "model", "prompt_version", "policy", "run", "sources"):
        if entry.skeleton.get(name):
            view[name] = entry.skeleton[name]
    view.update(content_view(entry))
    return view


def turn_view(entry: ReadEntry) -> dict[str, Any]:
    """Return what a turn said, beside where it stands; of several parts each has its own state."""
    view = content_view(entry)
    for name in ("agent", "model", "prompt_version"):
        if entry.skeleton.get(name):
            view[name] = entry.skeleton[name]
    return view


def content_view(entry: ReadEntry) -> dict[str, Any]:
    """Return `body` or `body_raw` for a single body, `parts` otherwise, and the names of parts that are erased."""
    if entry.damage is not None:
        return {"integrity": entry.damage.state, "because": entry.damage.detail}
    view: dict[str, Any] = {}
    erased = [part.name for part in entry.parts if part.state in ("erased", "expired")]
    if len(entry.parts) == 1 and entry.parts[0].name == "body":
        view["integrity"] = entry.parts[0].state
        view.update(_content(entry.parts[0], entry.row.noncanonical, "body"))
    else:
        view["parts"] = [
            {
                "name": part.name,
                "data_class": part.data_class,
                "integrity": part.state,
                **_content(part, entry.row.noncanonical, "body"),
            }
            for part in entry.parts
        ]
    if erased:
        view["erased_parts"] = erased
    return view


def erased_problem(parts: Services, acting: Acting, entry: ReadEntry) -> Problem:
    """Return the 410 of an entry whose content is gone: under which request, and its certificate once issued."""
    gone = [part.destroyed for part in entry.parts if part.destroyed is not None]
    request = next((fact.request for fact in gone if fact.request), None)
    at = next((fact.destroyed_at for fact in gone if fact.destroyed_at), None)
    return Problem(
        "erased",
        "the keys of this entry's content were destroyed; its header stays in the log",
        extra={
            "request": request,
            "erased_at": None if at is None else _time(at),
            "certificate": certificate_link(parts, acting, request),
        },
    )


def certificate_link(parts: Services, acting: Acting, request: str | None) -> str | None:
    """Return the path of the request's newest certificate, None while there is none."""
    from erasure.models import CertificateRow  # noqa: PLC0415 - only this answer needs the table

    if request is None:
        return None
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        query = select(CertificateRow.version).where(
            CertificateRow.tenant_id == acting.tenant_id, CertificateRow.request_id == request
        )
        found = session.exec(query).first()
    return None if found is None else f"/v1/requests/{request}/report"


def _content(part: ReadPart, noncanonical: bool, name: str) -> dict[str, Any]:  # noqa: FBT001 - a fact of the entry
    if part.data is None:
        return {"because": part.because} if part.because else {}
    if part.form == "blob":
        return {"blob": base64.b64encode(part.data).decode()}
    if noncanonical:
        return {f"{name}_raw": base64.b64encode(part.data).decode()}
    return {name: msgspec.Raw(part.data)}


def _row_view(row: EntryRow) -> dict[str, Any]:
    return {
        "id": entry_name(row),
        "index": row.idx,
        "position": row.position,
        "kind": row.kind,
        "data_class": row.data_class,
        "class_version": row.class_version,
        "at": _time(row.at),
        "received": _time(row.received),
    }


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S.%fZ}"


def _row(session: Session, acting: Acting, entry_id: str) -> EntryRow:
    try:
        uuid7_time(entry_id)
    except MalformedHeader:
        raise Problem("not-found", "no such entry in this tenant") from None
    row = index.known(session, acting.tenant_id, [entry_id]).get(entry_id)
    if row is None:
        raise Problem("not-found", "no such entry in this tenant")
    return row


def _subject(session: Session, parts: Services, acting: Acting, text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    found = subjects.find_people(session, parts.vault, acting, [subjects.parse_subject(text)])
    return next(iter(found.values()), frozenset())


def _run(session: Session, parts: Services, acting: Acting, name: str | None) -> int | None:
    if name is None:
        return None
    lookup = Lookups(parts.vault, acting.tenant_id).of("run", name)
    return session.exec(
        select(RunRow.run_no).where(RunRow.tenant_id == acting.tenant_id, RunRow.lookup == lookup)
    ).first()
