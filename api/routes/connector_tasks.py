"""Tasks for stores in an agent's process: claimed and answered by the SDK there. The rules are in `erasure.tasks`.

Guarantees: a token reaches only tasks of stores that it carries; what an agent writes of its own words is not kept.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, Field, field_validator

from api.auth import Parts, Writer
from api.requests import Body, Instant, make_router
from connectors.base import Level, Outcome
from erasure import tasks
from registry.reading import parse_instant

router = make_router("connector tasks")
TaskId = Annotated[str, Path(examples=["ctk_1"], max_length=40)]
# By their names, which JSON has no other way to write.
NamedOutcome = Annotated[Outcome, Field(strict=False)]
NamedLevel = Annotated[Level, Field(strict=False)]


class ClaimSpec(Body):
    """Which stores this process holds, and for how long it wants the tasks for itself."""

    stores: list[str] = Field(min_length=1, max_length=64, examples=[["memories"]])
    limit: int = Field(10, ge=1, le=50)
    lease_s: int = Field(300, ge=10, le=3600)


class TaskItem(BaseModel):
    """One copy: where it lies, and what it held, each base64."""

    copy_no: int = Field(alias="copy", serialization_alias="copy")
    locator: dict[str, Any]
    canaries: list[str]


class Task(BaseModel):
    """Work for one store. `owners` are the names under which its items may be the person's."""

    id: str
    store: str
    work: str = Field(examples=["erase", "verify"])
    level: str
    owners: list[str]
    items: list[TaskItem]
    reclaimed: dict[str, Any] | None
    claim: str
    lease_until: Instant
    due_at: Instant


class Tasks(BaseModel):
    """The tasks handed out now."""

    tasks: list[Task]


class TaskResult(Body):
    """What is stated about one copy; `outcome` answers an erase, `present` and `level` a look."""

    copy_no: int = Field(alias="copy", ge=0)
    outcome: NamedOutcome | None = None
    level: NamedLevel | None = None
    present: bool | None = None
    canaries: list[str] = Field(default_factory=list, max_length=64)


class Reclaim(Body):
    """What the connector there said of its reclaim; words are not kept."""

    level: NamedLevel
    residual_until: str | None = Field(None, max_length=40, examples=["unknown"])
    evidence: dict[str, str] = Field(default_factory=dict, max_length=16)

    @field_validator("residual_until")
    @classmethod
    def _is_a_date(cls, value: str | None) -> str | None:
        if value in (None, "unknown"):
            return value
        at = parse_instant(value)
        if at is None:
            message = "expected unknown, or an RFC 3339 time with a zone"
            raise ValueError(message)
        return at.isoformat()


class AnswerSpec(Body):
    """The answer to a task, under the claim with which it was handed out."""

    claim: str = Field(max_length=64)
    results: list[TaskResult] = Field(max_length=1000)
    reclaim: Reclaim | None = None


class Settled(BaseModel):
    """Whether the answer counted: one that comes again, or after its time, changes nothing."""

    id: str
    status: str = Field(examples=["settled", "already_settled"])


@router.post("/v1/connector-tasks:claim")
def claim_tasks(spec: ClaimSpec, acting: Writer, parts: Parts) -> Tasks:
    """Hands out what is open in these stores, for `lease_s` seconds to this process alone."""
    now = parts.clock.now()
    given = tasks.claim(
        parts.erasure, acting, spec.stores, limit=spec.limit, lease=timedelta(seconds=spec.lease_s), now=now
    )
    return Tasks.model_validate({"tasks": given})


@router.post("/v1/connector-tasks/{task_id}")
def answer_task(task_id: TaskId, spec: AnswerSpec, acting: Writer, parts: Parts) -> Settled:
    """Takes what the agent's process states about a task's copies; another task looks at them again."""
    results = [
        tasks.Result(
            copy=line.copy_no,
            outcome=line.outcome,
            level=line.level,
            present=line.present,
            canaries=tasks.canaries_of(line.canaries),
        )
        for line in spec.results
    ]
    reclaim = None if spec.reclaim is None else spec.reclaim.model_dump(mode="json")
    status = tasks.settle(
        parts.erasure, acting, task_id, claim=spec.claim, results=results, reclaim=reclaim, now=parts.clock.now()
    )
    parts.jobs.wake()
    return Settled(id=task_id, status=status)
