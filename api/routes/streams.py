"""Streams and runs: what agents declare of a conversation and of one execution. Read by `registry.declared`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import Body as BodyOf
from fastapi import Response
from pydantic import BaseModel, Field
from sqlmodel import Session

from api.auth import Anyone, Parts, Writer
from api.requests import Instant, make_router
from registry import declared, streams
from registry.acting import Acting
from registry.models import RunRow, StreamRow
from registry.sessions import Lifecycle

router = make_router("streams and runs")
StreamSpec = Annotated[
    dict[str, Any],
    BodyOf(examples=[{"stream": "conv_71", "owner": "user:user_18", "channel": "chat", "data_class": "transcript"}]),
]
StreamChange = Annotated[dict[str, Any], BodyOf(examples=[{"provider_refs": ["resp_2"], "summary_version": "s2"}])]
RunSpec = Annotated[
    dict[str, Any],
    BodyOf(
        examples=[{"run": "run_482", "stream": "conv_71", "workflow": "refund", "status": "active", "step": "check"}]
    ),
]

RunChange = Annotated[dict[str, Any], BodyOf(examples=[{"status": "waiting", "step": "approval"}])]


class StreamView(BaseModel):
    """A stream under its opaque id; the name the caller gave is not repeated."""

    id: str
    data_class: str | None
    created_at: Instant
    last_activity_at: Instant
    lifecycle: Lifecycle = Field(description="By the timers of its class.")
    machine: str | None = None
    phase: str | None = None
    provider_generation: int = Field(0, description="How many provider conversations it has had.")


class RunView(BaseModel):
    """A run under its opaque id."""

    id: str
    status: str | None
    because: str | None = Field(None, description="Why the status is another than the one declared.")
    created_at: Instant
    ended_at: Instant | None


def _stream(session: Session, acting: Acting, row: StreamRow, now: datetime) -> StreamView:
    return StreamView(
        id=row.stream_id,
        data_class=row.data_class,
        created_at=row.created_at,
        last_activity_at=row.last_activity_at,
        lifecycle=declared.lifecycles(session, acting.tenant_id, [row], now)[row.stream_no],
        machine=row.machine,
        phase=row.phase,
        provider_generation=row.declared.get("provider_generation", 0),
    )


def _run(row: RunRow) -> RunView:
    return RunView(
        id=row.run_id,
        status=row.status,
        because=row.declared.get("because"),
        created_at=row.created_at,
        ended_at=row.ended_at,
    )


@router.post("/v1/streams", responses={201: {"description": "The stream is new."}})
def put_stream(spec: StreamSpec, acting: Writer, parts: Parts, response: Response) -> StreamView:
    """Declares a stream; the same name again adds to it."""
    with parts.database.transaction(acting.tenant_id) as session:
        row, created = declared.put_stream(session, parts.vault, acting, spec, parts.clock.now())
        response.status_code = 201 if created else 200
        return _stream(session, acting, row, parts.clock.now())


@router.patch("/v1/streams/{stream_id}")
def patch_stream(stream_id: str, spec: StreamChange, acting: Writer, parts: Parts) -> StreamView:
    """Changes some declared fields; `stream_id` is the opaque id of the POST."""
    with parts.database.transaction(acting.tenant_id) as session:
        row = declared.patch_stream(session, parts.vault, acting, stream_id, spec, now=parts.clock.now())
        return _stream(session, acting, row, parts.clock.now())


@router.get("/v1/streams/{stream_id}")
def get_stream(stream_id: str, acting: Anyone, parts: Parts) -> StreamView:
    """A stream: where it stands by the timers of its class, and in its machine."""
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        return _stream(session, acting, streams.stream_by_id(session, acting.tenant_id, stream_id), parts.clock.now())


@router.post("/v1/runs", responses={201: {"description": "The run is new."}})
def put_run(spec: RunSpec, acting: Writer, parts: Parts, response: Response) -> RunView:
    """Declares a run; the same name again adds to it."""
    with parts.database.transaction(acting.tenant_id) as session:
        row, created = declared.put_run(session, parts.vault, acting, spec, parts.clock.now())
        response.status_code = 201 if created else 200
        return _run(row)


@router.patch("/v1/runs/{run_id}")
def patch_run(run_id: str, spec: RunChange, acting: Writer, parts: Parts) -> RunView:
    """Changes some declared fields; `run_id` is the opaque id of the POST."""
    with parts.database.transaction(acting.tenant_id) as session:
        return _run(declared.patch_run(session, parts.vault, acting, run_id, spec, now=parts.clock.now()))


@router.get("/v1/runs/{run_id}")
def get_run(run_id: str, acting: Anyone, parts: Parts) -> RunView:
    """A run: `requires_recovery` where it has no checkpoint to go on from."""
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        return _run(streams.run_by_id(session, acting.tenant_id, run_id))
