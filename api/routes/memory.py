"""Memories over HTTP: may this be used, confirm it, the product says otherwise, what happened to it, forget it.

All rules are in `registry.memories` and `erasure.forget`. A change of a memory is in the record when the call returns;
where the record is down, the change holds and is recorded by the job that waits for it.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import SQLAlchemyError

from api.answers import Open, Row
from api.auth import Anyone, Parts, Writer
from api.pagination import DEFAULT_LIMIT, Cursor, Limit, paged, read_cursor
from api.requests import Body, Instant, make_router
from api.wiring import Services
from erasure.forget import Forgetting
from ledger.errors import LedgerError
from registry import memory_log, memory_use
from registry.acting import Acting

router = make_router("memory")
Id = Annotated[str, Path(examples=["art_019e2c1d7a5b4c60"], max_length=64)]


class Resolve(Body):
    """Which memories may be used for whom and what; all of the person's, or those named by id or place."""

    subject: str = Field(min_length=3, max_length=600)
    purpose: str = Field(min_length=1, max_length=128)
    scope: dict[str, str] | None = None
    artifacts: list[Any] | None = Field(default=None, max_length=memory_use.MAX_MEMORIES)
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"subject": "user:user_18", "purpose": "support", "scope": {"conversation": "conv_71"}}]
        }
    )


class Verdict(Open):
    """Whether one memory may be used, and why. Everything but `usable` and `reconfirm` means no."""

    artifact: str | None
    verdict: str
    because: str
    confidence_now: float | None
    observed_at: Instant | None
    source_type: str | None


class Verdicts(BaseModel):
    """One verdict for each memory."""

    memories: list[Verdict]


class Confirmation(Body):
    """Where the person said that it still holds: a reference, or `entry:<uuid>` of the record."""

    source_ref: str = Field(min_length=1, max_length=512)
    model_config = ConfigDict(json_schema_extra={"examples": [{"source_ref": "message_1044"}]})


class Contradiction(Body):
    """What the product says, and where; kept in the record beside what was remembered."""

    product_ref: str = Field(min_length=1, max_length=512)
    observed: Any
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"product_ref": "orders/8812", "observed": {"status": "delivered"}}]}
    )


class Forgetting_(Body):  # noqa: N801 - the verb's class has the name; this one is seen only in the schema
    """Who asked to forget it, needed where the memory is about several; and where they said so."""

    subject: str | None = Field(default=None, min_length=3, max_length=600)
    source_ref: str | None = Field(default=None, min_length=1, max_length=512)
    model_config = ConfigDict(title="Forget", json_schema_extra={"examples": [{"source_ref": "message_1051"}]})


@router.post("/v1/memory:resolve")
def resolve_memory(body: Resolve, acting: Writer, parts: Parts) -> Verdicts:
    """Whether memories may be used now, for this person, purpose and scope."""
    spec = body.model_dump(exclude_none=True)
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        lines = memory_use.resolve(session, parts.vault, acting, spec, parts.clock.now())
    return Verdicts(memories=[Verdict.model_validate(line) for line in lines])


@router.post("/v1/memory/{artifact}:confirm")
def confirm_memory(artifact: Id, body: Confirmation, acting: Writer, parts: Parts) -> Row:
    """The person said that it still holds: confidence is full again and ages from now."""
    now = parts.clock.now()
    with parts.database.transaction(acting.tenant_id) as session:
        view = memory_use.confirm(session, parts.vault, acting, artifact, source_ref=body.source_ref, now=now)
    ship_changes(parts, acting, now)
    return view


@router.post("/v1/memory/{artifact}:conflict")
def contradict_memory(artifact: Id, body: Contradiction, acting: Writer, parts: Parts) -> Row:
    """The product says otherwise: it wins, the memory is quarantined, both sides become entries of the record."""
    now = parts.clock.now()
    with parts.database.transaction(acting.tenant_id) as session:
        view = memory_use.conflict(
            session,
            parts.vault,
            acting,
            artifact,
            product_ref=body.product_ref,
            observed=body.observed,
            now=now,
        )
    ship_changes(parts, acting, now)
    return view


@router.post("/v1/memory/{artifact}:forget", status_code=202)
def forget_memory(artifact: Id, acting: Writer, parts: Parts, body: Forgetting_ | None = None) -> Row:
    """The person's own «forget this»: a request in their name, at once, for it and all that was made from it."""
    view = Forgetting(parts.erasure).forget(
        acting,
        artifact,
        subject=None if body is None else body.subject,
        source_ref=None if body is None else body.source_ref,
        now=parts.clock.now(),
    )
    parts.jobs.wake()
    return view


@router.get("/v1/memory/{artifact}/changes")
def memory_changes(
    artifact: Id, acting: Anyone, parts: Parts, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Row:
    """What happened to a memory, who did it, and the entries that tell of it, in order."""
    after = read_cursor(cursor, int)
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        found = list(enumerate(memory_use.changes(session, acting, artifact)))
    # Changes are only ever added behind, so a place in their order stays what it is.
    waiting = [line for line in found if after is None or line[0] > after[0]]
    items, following = paged(waiting[: limit + 1], limit, lambda line: (line[0],))
    return {"items": [line for _, line in items], "next_cursor": following}


def ship_changes(parts: Services, acting: Acting, now: datetime) -> None:
    """Records what changed; what cannot be recorded now is by the job, so the answer is that of the change."""
    system = Acting.system(tenant_id=acting.tenant_id, tenant=acting.tenant, log_id=acting.log_id)
    with suppress(LedgerError, SQLAlchemyError):
        memory_log.ship(parts.record, parts.database.transaction, parts.vault, system, now)
