"""Kinds of entries that a platform team registers beside the shipped ones."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Response
from pydantic import BaseModel, Field
from sqlmodel import select

from api.auth import Anyone, Parts, Platform
from api.errors import Problem
from api.pagination import DEFAULT_LIMIT, Cursor, Limit, Page, paged, read_cursor
from api.requests import Body, Instant, make_router
from ledger.entry import SYSTEM_KINDS, USER_KINDS
from registry.models import KindRow

router = make_router("kinds")
Name = Annotated[str, Path(pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$", max_length=64, examples=["order.placed"])]


class KindSpec(Body):
    """What the kind is for."""

    description: str = Field("", max_length=500, examples=["an order was placed with a supplier"])


class KindView(BaseModel):
    """A registered or shipped kind."""

    name: str
    description: str
    shipped: bool
    created_at: Instant | None = None


@router.put("/v1/kinds/{name}", responses={201: {"description": "The kind is new."}})
def put_kind(name: Name, body: KindSpec, acting: Platform, parts: Parts, response: Response) -> KindView:
    """Registers a kind; a shipped one or one of the service's own is refused."""
    if name in USER_KINDS or name in SYSTEM_KINDS:
        raise Problem("conflict", f"kind {name} is shipped and keeps its meaning")
    now = parts.clock.now()
    with parts.database.transaction(acting.tenant_id) as session:
        row = session.get(KindRow, (acting.tenant_id, name))
        response.status_code = 201 if row is None else 200
        row = row or KindRow(tenant_id=acting.tenant_id, name=name, created_at=now)
        row.description = body.description
        session.add(row)
    return KindView(name=name, description=row.description, shipped=False, created_at=row.created_at)


@router.get("/v1/kinds")
def list_kinds(acting: Anyone, parts: Parts, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> Page[KindView]:
    """Every kind that entries may have, shipped ones first, each group by name."""
    after = read_cursor(cursor, int, str)
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        rows = session.exec(select(KindRow).where(KindRow.tenant_id == acting.tenant_id)).all()
    shipped = [KindView(name=kind, description="", shipped=True) for kind in sorted(USER_KINDS)]
    own = [KindView(name=r.name, description=r.description, shipped=False, created_at=r.created_at) for r in rows]
    # Sorted here: a database's own order of texts may be another one than that of the keys in a cursor.
    waiting = [one for one in sorted(shipped + own, key=_key) if after is None or _key(one) > after]
    items, following = paged(waiting[: limit + 1], limit, _key)
    return Page(items=items, next_cursor=following)


def _key(one: KindView) -> tuple[int, str]:
    return 0 if one.shipped else 1, one.name
