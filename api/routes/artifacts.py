"""Artifacts: register, read, search, sources, lineage, provenance, use. All rules are in `registry`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from fastapi import Depends, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from sqlmodel import Session

from api.answers import Open, Row, with_instants
from api.auth import Anyone, Desk, Parts, Purpose, Writer, purpose_of, require
from api.errors import Problem
from api.lineage_feed import LATE
from api.pagination import DEFAULT_LIMIT, Cursor, Limit, read_cursor, write_cursor
from api.requests import Body, Whole, make_router
from api.routes.memory import ship_changes
from api.routes.record import READERS, audit_read, turn_view, visible
from api.wiring import Services
from ledger import index
from registry import artifacts, memory_use
from registry.acting import Acting
from registry.lineage_out import note_late, prov_of
from registry.playback import ReadEntry, entry_name, read_entries
from registry.restricted import closed_entries
from retention.stops import held_classes

router = make_router("artifacts")
MAX_ARTIFACTS = 5000
Id = Annotated[str, Path(examples=["art_019e2c1d7a5b4c60"], max_length=64)]
User = Annotated[Acting, Depends(require("writer", "platform"))]
_ARTIFACT: dict[str, Any] = {
    "data_class": "summary",
    "store": "vectors",
    "locator": {"collection": "mem", "id": "42"},
    "subjects": ["user:user_18"],
    "sources": ["entry:019e2c1d-7a5b-7c60-8000-000000000001"],
    "activity": {"kind": "summarise", "run": "run_482", "model": "m-1", "prompt_version": "p7"},
    "scope": {"conversation": "conv_71"},
    "observed_at": "2026-05-04T10:00:00Z",
    "source_type": "explicit_user_statement",
    "confidence": 0.9,
}


Item = Annotated[Any, WithJsonSchema({"type": "object", "additionalProperties": True})]
"""Judged with the others of its batch, so that one which is no object is refused alone."""


class Registration(Body):
    """Artifacts to register; each is judged for itself."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"artifacts": [_ARTIFACT]}]})
    artifacts: list[Item] = Field(min_length=1, max_length=MAX_ARTIFACTS)


class Registered(Open):
    """What became of one item."""

    id: str | None = None
    status: Literal["created", "exists", "changed", "rejected", "erased", "review"]


class Results(BaseModel):
    """One result per item, in order."""

    results: list[Row]


class ArtifactView(Open):
    """An artifact; people under opaque ids, no place, no free text."""

    id: str
    status: str


class Artifacts(BaseModel):
    """A page of artifacts."""

    items: list[Row]
    next_cursor: str | None = None


class Search(Body):
    """Which artifacts; all given filters must hold."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"subject": "user:user_18", "status": "live"}]})
    subject: str | None = None
    data_class: str | None = None
    store: str | None = None
    status: str | None = None
    scope: dict[str, str] | None = None


class Sources(Body):
    """Late sources of an artifact."""

    sources: list[Any] = Field(min_length=1, max_length=10_000, examples=[["art_019e2c1d7a5b4c60"]])


class Use(Body):
    """Whether an artifact may be used, and why that changes."""

    status: Literal["quarantined", "verified", "revoked", "active"]
    reason: str = Field(min_length=1, max_length=2000, description="Sealed with the artifact.")


@router.post("/v1/artifacts")
def register(body: Registration, acting: Writer, parts: Parts) -> Results:
    """Registers up to 5,000 artifacts; never reads the store. The same place is the same artifact."""
    now = parts.clock.now()
    with parts.database.transaction(acting.tenant_id) as session:
        held = held_classes(session, acting.tenant_id)
        results = artifacts.register(session, parts.vault, acting, body.artifacts, now, held=held)
        late = [one["id"] for one in results if one["status"] in ("exists", "changed")]
        if late and parts.settings.openlineage:
            note_late(session, acting.tenant_id, LATE, late, now)
    if any(result["status"] in ("exists", "changed") for result in results):
        ship_changes(parts, acting, now)  # a memory may have taken another's place
    if any(result["status"] == "erased" for result in results):
        parts.jobs.wake()  # late copies join the request that erased their person or source
    return Results(results=results)


@router.post("/v1/artifacts:search")
def search(body: Search, acting: Desk, parts: Parts, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> Artifacts:
    """Artifacts by person, class, store, status or scope, in order of registration."""
    after = read_cursor(cursor, int)
    filters = body.model_dump(exclude_none=True)
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        items, last = artifacts.search(
            session, parts.vault, acting, filters, limit=limit, after=after[0] if after else 0
        )
    return Artifacts(items=items, next_cursor=None if last is None else write_cursor(last))


@router.get("/v1/artifacts/{artifact}")
def get_artifact(artifact: Id, acting: Anyone, parts: Parts) -> ArtifactView:
    """One artifact."""
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        return ArtifactView.model_validate(artifacts.get_artifact(session, acting.tenant_id, artifact))


@router.post("/v1/artifacts/{artifact}/sources")
def add_sources(artifact: Id, body: Sources, acting: Writer, parts: Parts) -> Row:
    """Adds late sources; their people reach the artifact and everything made from it at once."""
    with parts.database.transaction(acting.tenant_id) as session:
        now = parts.clock.now()
        if parts.settings.openlineage:
            note_late(session, acting.tenant_id, LATE, [artifact], now)
        return artifacts.add_sources(session, parts.vault, acting, artifact, body.sources, now=now)


@router.get("/v1/artifacts/{artifact}/lineage")
def get_lineage(
    *,
    artifact: Id,
    acting: Anyone,
    parts: Parts,
    direction: Literal["up", "down"] = "up",
    depth: Annotated[Whole, Query(ge=1, le=100)] = 10,
    limit: Limit = 1000,
    cursor: Cursor = None,
) -> Row:
    """What it was made from (`up`) or what was made from it (`down`), level by level, by pages of nodes."""
    after = read_cursor(cursor, int, str, int)
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        found = artifacts.lineage(
            session,
            acting.tenant_id,
            artifact,
            direction=direction,
            depth=depth,
            limit=limit,
            after=None if after is None else (after[0], after[1], after[2]),
        )
    following = found.pop("next")
    return {**found, "next_cursor": None if following is None else write_cursor(*following)}


@router.get("/v1/artifacts/{artifact}/provenance", responses={200: {"content": {"application/json": {}}}})
def get_provenance(request: Request, artifact: Id, acting: Anyone, parts: Parts) -> Response:
    """Where a remembered fact came from, down to the turns of the record.

    With `X-Purpose`, for an auditor or the legal desk, also what was said in those turns, as far as their classes allow
    that purpose: an audited read like any other.
    """
    purpose = purpose_of(request) if "x-purpose" in request.headers else None
    if purpose is not None and not acting.has_role(*READERS):
        raise Problem("forbidden", f"reading content needs one of the roles {', '.join(READERS)}")
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        found = artifacts.provenance(session, parts.vault, acting, artifact, parts.clock.now())
        read = [] if purpose is None else _turns(session, parts, acting, purpose, found["chain"])
    if purpose is not None:
        audit_read(parts, acting, purpose, read)
        said = {entry_name(entry.row): turn_view(entry) for entry in read}
        found["chain"] = [{**line, **said.get(line.get("entry", ""), {})} for line in found["chain"]]
    return Response(msgspec.json.encode(with_instants(found)), media_type="application/json")


def _turns(
    session: Session, parts: Services, acting: Acting, purpose: Purpose, chain: list[dict[str, Any]]
) -> list[ReadEntry]:
    """The entries of a chain, opened as far as this reader may for this purpose."""
    rows = list(index.known(session, acting.tenant_id, [line["entry"] for line in chain if "entry" in line]).values())
    return read_entries(
        session,
        parts.vault,
        parts.log,
        acting.tenant_id,
        sorted(rows, key=lambda row: row.idx),
        may_see=visible(session, acting, purpose),
        closed=closed_entries(session, acting.tenant_id, rows, purpose.code),
        damaged_too=True,
    )


@router.get("/v1/artifacts/{artifact}/prov")
def get_prov(
    *,
    artifact: Id,
    acting: Anyone,
    parts: Parts,
    depth: Annotated[Whole, Query(ge=1, le=100)] = 10,
    limit: Limit = 1000,
) -> Row:
    """Where it came from, as W3C PROV-JSON; people under opaque ids, what was erased as invalidated."""
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        return prov_of(session, acting, artifact, depth=depth, limit=limit)


@router.post("/v1/artifacts/{artifact}/status")
def set_status(artifact: Id, body: Use, acting: User, parts: Parts) -> ArtifactView:
    """Quarantines, revokes, verifies or reactivates an artifact; the reason is sealed with it."""
    now = parts.clock.now()
    with parts.database.transaction(acting.tenant_id) as session:
        memory_use.change_status(session, parts.vault, acting, artifact, body.status, reason=body.reason, now=now)
        view = ArtifactView.model_validate(artifacts.get_artifact(session, acting.tenant_id, artifact))
    ship_changes(parts, acting, now)
    return view
