"""Stores: put, list, remove, and the check that really touches one. The declaration is read by `registry.stores`."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import Body as BodyOf
from fastapi import Path, Response
from pydantic import BaseModel, ConfigDict, Field

from api.auth import Anyone, Parts, Platform
from api.pagination import DEFAULT_LIMIT, Cursor, Limit, Page, paged, read_cursor
from api.requests import DryRun, make_router
from connectors.base import require_driver
from connectors.errors import ConnectorError, StoreUnreachable, Timeout, WrongCredentials
from ledger.entry import Kind
from registry import stores

router = make_router("stores")
CHECK_SECONDS = 60.0
_EXAMPLE: dict[str, Any] = {
    "kind": "sql",
    "config": {"url": "sqlite:////srv/app/app.db", "owner_field": "user_id"},
    "recipient": None,
    "country": "DE",
    "backup_retention": "P30D",
}
Spec = Annotated[dict[str, Any], BodyOf(examples=[_EXAMPLE], description="API.md §3 lists kinds and their config.")]
Name = Annotated[str, Path(examples=["app"], max_length=64)]


class StoreName(BaseModel):
    """A store and its version."""

    name: str
    version: int


class StoreView(StoreName):
    """A store as it may be shown; settings that hold secrets are named, never echoed."""

    model_config = ConfigDict(extra="allow")
    kind: str
    config: dict[str, Any]


class CheckView(BaseModel):
    """What a canary in the real store showed."""

    reachable: bool
    can_erase: bool
    level_reached: str | None
    owner_check: str = Field(examples=["enforced", "not_configured", "failed"])
    took_ms: int
    findings: list[str]


@router.put("/v1/stores/{name}", responses={201: {"description": "A new version is in force."}})
def put_store(
    name: Name, spec: Spec, acting: Platform, parts: Parts, response: Response, *, dry_run: DryRun = False
) -> StoreName:
    """Registers a store or supersedes its version; never contacts it. One whose driver is missing is refused."""
    now = parts.clock.now()
    with parts.database.transaction(acting.tenant_id) as session:
        row, created = stores.put_store(session, acting, name, spec, now, check_target=parts.check_target)
        require_driver(row.kind)
        shown = StoreName(name=row.name, version=row.version)
        if dry_run:
            session.rollback()
        elif created:
            body = {"store": row.name, "version": row.version, "kind": row.kind, "by": acting.principal}
            parts.record.announce(session, acting.tenant_id, Kind.STORE_REGISTERED, body, now)
    response.status_code = 201 if created and not dry_run else 200
    return shown


@router.get("/v1/stores")
def list_stores(acting: Anyone, parts: Parts, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> Page[StoreView]:
    """The stores in force, by name."""
    after = read_cursor(cursor, str)
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        found = stores.in_force(session, acting.tenant_id)
    names = [name for name in sorted(found) if after is None or name > after[0]]
    rows, next_cursor = paged([found[name] for name in names[: limit + 1]], limit, lambda row: (row.name,))
    return Page(items=[StoreView.model_validate(stores.view(row)) for row in rows], next_cursor=next_cursor)


@router.get("/v1/stores/{name}")
def get_store(name: Name, acting: Anyone, parts: Parts) -> StoreView:
    """One store in force."""
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        return StoreView.model_validate(stores.view(stores.get_store(session, acting.tenant_id, name)))


@router.post("/v1/stores/{name}/check")
def check_store(name: Name, acting: Platform, parts: Parts) -> CheckView:
    """Writes a canary into the store, erases it, reclaims and looks for it. What cannot be reached is a finding."""
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        row = stores.get_store(session, acting.tenant_id, name)
    started = time.monotonic()
    asked = False
    try:
        with parts.connect(row) as connector:
            asked = True
            report = connector.check(now=parts.clock.now(), deadline=CHECK_SECONDS)
    except ConnectorError as error:
        took = (time.monotonic() - started) * 1000
        return CheckView(
            # A kind that is not built, a driver that is missing and a bad configuration are found before anything is.
            reachable=asked and not isinstance(error, StoreUnreachable | Timeout | WrongCredentials),
            can_erase=False,
            level_reached=None,
            owner_check="not_configured",
            took_ms=round(took),
            findings=[str(error)],
        )
    return CheckView(
        reachable=report.reachable,
        can_erase=report.can_erase,
        level_reached=report.level_reached,
        owner_check=report.owner_check,
        took_ms=report.took_ms,
        findings=list(report.findings),
    )


@router.delete("/v1/stores/{name}", status_code=204)
def remove_store(name: Name, acting: Platform, parts: Parts) -> None:
    """Takes a store out of force; one with live artifacts stays, with their count."""
    now = parts.clock.now()
    with parts.database.transaction(acting.tenant_id) as session:
        stores.remove_store(session, acting, name)
        body = {"store": name, "removed": True, "by": acting.principal}
        parts.record.announce(session, acting.tenant_id, Kind.STORE_REGISTERED, body, now)
