"""People: what is held about them, each copy with its end, and a new start after an erasure.

Guarantees: people are named in bodies only; no answer repeats a name or gives one for an opaque id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import Depends
from pydantic import BaseModel, ConfigDict, Field

from api.auth import Desk, Parts, require
from api.pagination import DEFAULT_LIMIT, Cursor, Limit, read_cursor, write_cursor
from api.requests import Body, Instant, make_router
from registry import artifacts, classes, subjects
from registry.acting import Acting
from registry.identifiers import parse_subject, parse_subjects
from registry.models import Artifact
from retention.copies import CopyEnd, copy_ends
from retention.record_copies import BEGINNING, RecordCopy, record_copies, record_counts

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
    """How many live items of one class in one store; in the store `vault` those of the record: keys, not entries."""

    data_class: str
    store: str
    count: int


class Counts(BaseModel):
    """What is held; zero when nobody by that name is known."""

    known: int
    counts: list[Count]


class Copy(BaseModel):
    """One copy: where, what, until when and what ends it. One of `artifact`, `key` and `entry` names it."""

    artifact: str | None = Field(None, description="A registered copy.")
    key: str | None = Field(None, description="A month's key of the record: with it everything sealed under it ends.")
    entry: str | None = Field(None, description="A part of the record with a key of its own: `entry id/part`.")
    entries: int | None = Field(None, description="Of how many entries of the record the key opens something.")
    store: str = Field(description="`vault` for the record, as plans name it.")
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
        everybody = frozenset[int]().union(*people)
        counts = subjects.counts(session, acting.tenant_id, everybody)
        record = record_counts(session, acting.tenant_id, everybody)
    found_counts = [Count.model_validate(one) for one in counts]
    found_counts += [Count(data_class=name, store=store, count=count) for (name, store), count in record.items()]
    return Counts(known=len(people), counts=found_counts)


@router.post("/v1/subjects:copies")
def copies(body: People, acting: Desk, parts: Parts, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> Copies:
    """Every copy with its store, class, end, rule, and what deletes it; what the record holds comes last."""
    after = read_cursor(cursor, int, int, str) or BEGINNING
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        people = set(subjects.find(session, parts.vault, acting, parse_subjects(body.subjects)).values())
        rows = artifacts.artifacts_of(session, acting.tenant_id, people) if after[0] == 0 else []
        page = [row for row in rows if row.id > after[1]][: limit + 1]
        ends = copy_ends(session, acting.tenant_id, page)
        rest = limit + 1 - len(page)
        record = record_copies(session, acting.tenant_id, people, after=after, limit=rest) if rest else []
        known = classes.in_force(session, acting.tenant_id)
    thens = {name: spec.then for name, spec in known.items()}
    found = [((0, row.id, ""), _registered(row, ends[row.id], thens)) for row in page]
    found += [(one.place, _recorded(one, thens)) for one in record]
    more = len(found) > limit
    return Copies(
        items=[one for _, one in found[:limit]], next_cursor=write_cursor(*found[limit - 1][0]) if more else None
    )


def _registered(row: Artifact, end: CopyEnd, thens: Mapping[str, str]) -> Copy:
    return Copy(
        artifact=artifacts.public_name(row),
        store=row.store,
        data_class=row.data_class,
        status=row.status,
        deleted_by=_deleted_by(thens.get(row.data_class)),
        **_ending(end),
    )


def _recorded(found: RecordCopy, thens: Mapping[str, str]) -> Copy:
    return Copy(
        key=found.ref if found.kind == "key" else None,
        entry=found.ref if found.kind == "entry" else None,
        entries=found.entries if found.kind == "key" else None,
        store=found.store,
        data_class=found.data_class,
        status=found.status,
        deleted_by=_deleted_by(thens.get(found.data_class)),
        **_ending(found.end),
    )


def _ending(end: CopyEnd) -> dict[str, Any]:
    return {"ends_at": end.ends_at, "ends_at_is_cap": end.cap, "starts": end.starts, "clock": end.clock,
            "rule": end.rule}  # fmt: skip


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
