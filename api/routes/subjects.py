"""People: what is held about them, each copy with its end, and a new start after an erasure.

Guarantees: people are named in bodies only; no answer repeats a name or gives one for an opaque id.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Depends
from pydantic import BaseModel, ConfigDict, Field

from api.auth import Desk, Parts, require
from api.pagination import DEFAULT_LIMIT, Cursor, Limit, read_cursor, write_cursor
from api.requests import Body, Instant, make_router
from registry import artifacts, classes, subjects
from registry.acting import Acting
from registry.identifiers import parse_subject, parse_subjects
from retention.copies import copy_ends

router = make_router("subjects")
Subjects = Annotated[list[str], Field(min_length=1, max_length=100, examples=[["email:ada@example.org"]])]
Opener = Annotated[Acting, Depends(require("writer", "legal"))]


class People(Body):
    """Names of one or more people."""

    subjects: Subjects


class NewStart(Body):
    """Somebody who was erased and is back."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"subject": "email:ada@example.org", "basis": "contract"}]}
    )
    subject: str
    basis: str = Field(min_length=1, max_length=500, description="Why data about them may be written again; sealed.")


class Count(BaseModel):
    """How many live items of one class in one store."""

    data_class: str
    store: str
    count: int


class Counts(BaseModel):
    """What is held; zero when nobody by that name is known."""

    known: int
    counts: list[Count]


class Copy(BaseModel):
    """One copy: where, what, until when and what ends it."""

    artifact: str
    store: str
    data_class: str
    status: str
    ends_at: Instant | None
    ends_at_is_cap: bool = Field(description="True: its clock has not started; the date is the latest it may have.")
    starts: str | None = Field(description="What starts its clock: created, observed, …, event:<name>.")
    clock: Literal["running", "waiting"]
    rule: str | None
    deleted_by: str


class Copies(BaseModel):
    """A page of copies."""

    items: list[Copy]
    next_cursor: str | None = None


class Incarnation(BaseModel):
    """A person's present incarnation, opaque."""

    id: str
    incarnation: int
    state: str


@router.post("/v1/subjects:lookup")
def lookup(body: People, acting: Desk, parts: Parts) -> Counts:
    """How many live items there are per class and store; makes nobody known."""
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        found = subjects.find_people(session, parts.vault, acting, parse_subjects(body.subjects))
        people = set(found.values())
        counts = subjects.counts(session, acting.tenant_id, frozenset[int]().union(*people))
    return Counts(known=len(people), counts=[Count.model_validate(one) for one in counts])


@router.post("/v1/subjects:copies")
def copies(body: People, acting: Desk, parts: Parts, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> Copies:
    """Every copy with its store, class, end, rule, and what deletes it."""
    after = read_cursor(cursor, int)
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        found = subjects.find(session, parts.vault, acting, parse_subjects(body.subjects))
        rows = artifacts.artifacts_of(session, acting.tenant_id, set(found.values()))
        waiting = [row for row in rows if after is None or row.id > after[0]]
        page = waiting[:limit]
        ends = copy_ends(session, acting.tenant_id, page)
        known = classes.in_force(session, acting.tenant_id)
    items = [
        Copy(
            artifact=artifacts.public_name(row),
            store=row.store,
            data_class=row.data_class,
            status=row.status,
            ends_at=ends[row.id].ends_at,
            ends_at_is_cap=ends[row.id].cap,
            starts=ends[row.id].starts,
            clock=ends[row.id].clock,
            rule=ends[row.id].rule,
            deleted_by=_deleted_by(known[row.data_class].then if row.data_class in known else None),
        )
        for row in page
    ]
    return Copies(items=items, next_cursor=write_cursor(page[-1].id) if len(waiting) > limit else None)


def _deleted_by(then: str | None) -> str:
    if then is None:
        return "nothing: its class is no longer in force"
    return "a person's disposition" if then == "review" else "the retention sweep"


@router.post("/v1/subjects:reopen", status_code=201)
def reopen(body: NewStart, acting: Opener, parts: Parts) -> Incarnation:
    """A new incarnation of somebody who was erased; it inherits nothing."""
    with parts.database.transaction(acting.tenant_id) as session:
        row = subjects.reopen(
            session, parts.vault, acting, parse_subject(body.subject), basis=body.basis, now=parts.clock.now()
        )
        return Incarnation(id=row.subject_id, incarnation=row.incarnation, state=row.state)
