"""Data classes: put, read, preview, remove. The declaration itself is read by `registry.declaration`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body as BodyOf
from fastapi import Path, Query, Response
from pydantic import BaseModel, Field

from api.answers import Open, Row
from api.auth import Anyone, Parts, Platform
from api.pagination import DEFAULT_LIMIT, Cursor, Limit, Page, paged, read_cursor
from api.preview import due_under, ending_under, newly_due
from api.requests import DryRun, Whole, make_router
from ledger.entry import Kind
from registry import classes
from registry.class_schema import class_schema
from registry.declaration import DataClass

router = make_router("data classes")
_EXAMPLE: dict[str, Any] = {
    "state": "record",
    "personal": True,
    "owner": "team-support",
    "description": "support transcripts",
    "categories": ["user.content"],
    "subject_types": ["user", "email"],
    "purposes": ["support", "dispute"],
    "legal_basis": "contract",
    "retention": {"keep": "P90D", "from": "created", "lock": "P30D", "then": "erase"},
    "erasure": {"on_request": "erase", "required": "L2"},
    "access": {"roles": ["auditor"], "purposes": ["dispute"]},
}
Spec = Annotated[dict[str, Any], BodyOf(examples=[_EXAMPLE], description="API.md §2 lists every field.")]
Name = Annotated[str, Path(examples=["transcript"], max_length=64)]
Version = Annotated[Whole | None, Query(ge=1, le=2**31 - 1, description="The one in force without it.")]


class ClassView(Open):
    """A version of a class, with the fields it was declared with."""

    name: str
    version: int


class Preview(BaseModel):
    """What a declaration would change, without changing it."""

    changes: list[str]
    live: int
    due_now: int = Field(description="Copies and record keys past their end by the class in force.")
    due_after: int = Field(
        description="The same by the declaration; holds and requests are asked when it comes to it. Record keys that "
        "wait for an event or a consent are counted by their cap: a dry run after the change counts them."
    )
    ending_now: int = Field(description="Those of `due_now` that end without a person's review.")
    ending_after: int = Field(description="The same of `due_after`: a ceiling, or no review any more, adds to them.")
    newly_due: list[str] = Field(
        description="The first hundred copies that only the declaration makes due, or ends without a review."
    )


def _view(one: DataClass) -> ClassView:
    return ClassView.model_validate({**one.spec, "name": one.name, "version": one.version})


@router.put("/v1/data-classes/{name}", responses={201: {"description": "A new version is in force."}})
def put_class(
    name: Name, spec: Spec, acting: Platform, parts: Parts, response: Response, *, dry_run: DryRun = False
) -> ClassView:
    """Creates a class or supersedes its version; the same declaration again changes nothing."""
    now = parts.clock.now()
    _check_callback(parts, spec)
    with parts.database.transaction(acting.tenant_id) as session:
        one, created = classes.put_class(session, acting, name, spec, now)
        if dry_run:
            session.rollback()
        elif created:
            body = {"class": one.name, "version": one.version, "by": acting.principal}
            parts.record.announce(session, acting.tenant_id, Kind.CLASS_REGISTERED, body, now)
    response.status_code = 201 if created and not dry_run else 200
    return _view(one)


def _check_callback(parts: Parts, spec: dict[str, Any]) -> None:
    """A callback goes where the operator allows, as a store does; its shape is judged with the rest of the class."""
    derived = spec.get("derived")
    callback = derived.get("callback") if isinstance(derived, dict) else None
    url = callback.get("url") if isinstance(callback, dict) else None
    if isinstance(url, str):
        parts.check_target("http", {"url": url})


@router.get("/v1/data-classes:schema")
def get_schema(acting: Anyone) -> Row:
    """The JSON Schema of a declaration, for editors; the service's own check says more, with reasons."""
    del acting
    return class_schema()


@router.get("/v1/data-classes")
def list_classes(acting: Anyone, parts: Parts, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> Page[ClassView]:
    """The classes in force, by name."""
    after = read_cursor(cursor, str)
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        found = classes.in_force(session, acting.tenant_id)
    names = [name for name in sorted(found) if after is None or name > after[0]]
    rows, next_cursor = paged([found[name] for name in names[: limit + 1]], limit, lambda one: (one.name,))
    return Page(items=[_view(one) for one in rows], next_cursor=next_cursor)


@router.get("/v1/data-classes/{name}")
def get_class(name: Name, acting: Anyone, parts: Parts, version: Version = None) -> ClassView:
    """One class: the version in force, or the one asked for."""
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        return _view(classes.get_class(session, acting.tenant_id, name, version))


@router.post("/v1/data-classes/{name}/preview")
def preview_class(name: Name, spec: Spec, acting: Platform, parts: Parts) -> Preview:
    """What would change, and how many live items would be due now under it."""
    now = parts.clock.now()
    wanted = classes.parse_class(name, spec)
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        known = classes.in_force(session, acting.tenant_id).get(name)
        return Preview(
            changes=classes.diff(known, wanted),
            live=classes.live_items(session, acting.tenant_id, name),
            due_now=0 if known is None else due_under(session, acting.tenant_id, known, now),
            due_after=due_under(session, acting.tenant_id, wanted, now),
            ending_now=0 if known is None else ending_under(session, acting.tenant_id, known, now),
            ending_after=ending_under(session, acting.tenant_id, wanted, now),
            newly_due=newly_due(session, acting.tenant_id, known, wanted, now),
        )


@router.delete("/v1/data-classes/{name}", status_code=204)
def remove_class(name: Name, acting: Platform, parts: Parts) -> None:
    """Retires a class that has no live items; its versions stay readable by number."""
    now = parts.clock.now()
    with parts.database.transaction(acting.tenant_id) as session:
        classes.remove_class(session, acting, name)
        body = {"class": name, "retired": True, "by": acting.principal}
        parts.record.announce(session, acting.tenant_id, Kind.CLASS_REGISTERED, body, now)
