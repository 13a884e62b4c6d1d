"""Machines: what a stream may do in each phase, where streams stand, and what broke them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body as BodyOf
from fastapi import Depends, Path, Response
from pydantic import BaseModel, Field

from api.answers import Row
from api.auth import Parts, Platform, Writer, require
from api.pagination import DEFAULT_LIMIT, Cursor, Limit, read_cursor, write_cursor
from api.requests import Body, make_router
from ledger.entry import Kind
from registry import machine_rows
from registry.acting import Acting
from registry.machines import Machine

router = make_router("machines")
Name = Annotated[str, Path(examples=["refund"], max_length=64)]
Watcher = Annotated[Acting, Depends(require("platform", "auditor"))]
_EXAMPLE = {
    "phases": ["identify", "task", "confirm", "wrap_up"],
    "transitions": [["identify", "task"], ["task", "confirm"], ["confirm", "wrap_up"], ["confirm", "task"]],
    "tools": {"identify": ["look_up_customer"], "task": ["look_up_order"], "confirm": ["refund"]},
    "asks": ["refund"],
}
Spec = Annotated[dict[str, Any], BodyOf(examples=[_EXAMPLE])]


class MachineView(BaseModel):
    """A machine in force; `streams` says how many stand in each phase now."""

    name: str
    version: int
    phases: list[str]
    transitions: list[list[str]]
    tools: dict[str, list[str]]
    asks: list[str] = []
    streams: dict[str, int] | None = None


class WhichStream(Body):
    """A stream by the caller's name."""

    stream: str


class Allowed(BaseModel):
    """What a stream may do now; all null where it follows no machine."""

    id: str
    machine: str | None
    version: int | None
    phase: str | None
    tools: list[str] | None
    next: list[str] | None
    asks: list[str] | None = Field(description="Tools that need a human's approval for each call.")
    approvals: int | None = Field(description="Approvals given in this phase and not used yet.")


def _view(machine: Machine, streams: dict[str, int] | None = None) -> MachineView:
    return MachineView(
        name=machine.name,
        version=machine.version,
        phases=list(machine.phases),
        transitions=[list(pair) for pair in sorted(machine.transitions)],
        tools={phase: list(tools) for phase, tools in machine.tools.items()},
        asks=sorted(machine.asks),
        streams=streams,
    )


@router.put("/v1/machines/{name}", responses={201: {"description": "A new version is in force."}})
def put_machine(name: Name, spec: Spec, acting: Platform, parts: Parts, response: Response) -> MachineView:
    """Declares a machine or supersedes its version; the first phase is where a stream starts."""
    now = parts.clock.now()
    with parts.database.transaction(acting.tenant_id) as session:
        machine, created = machine_rows.put_machine(session, acting, name, spec, now)
        if created:
            body = {"machine": machine.name, "version": machine.version, "by": acting.principal}
            parts.record.announce(session, acting.tenant_id, Kind.MACHINE_REGISTERED, body, now)
    response.status_code = 201 if created else 200
    return _view(machine)


@router.get("/v1/machines/{name}")
def get_machine(name: Name, acting: Watcher, parts: Parts) -> MachineView:
    """A machine, and how many streams stand in each of its phases: where conversations stall."""
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        machine = machine_rows.get_machine(session, acting.tenant_id, name)
        return _view(machine, machine_rows.stalls(session, acting.tenant_id, name))


@router.get("/v1/machines/{name}/violations")
def machine_violations(
    name: Name, acting: Watcher, parts: Parts, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Row:
    """Entries that the machine did not allow: tools outside their phase, moves without a transition."""
    after = read_cursor(cursor, int)
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        machine_rows.get_machine(session, acting.tenant_id, name)
        items, last = machine_rows.violations(
            session, acting.tenant_id, name, limit=limit, after=after[0] if after else -1
        )
    return {"items": items, "next_cursor": None if last is None else write_cursor(last)}


@router.post("/v1/streams:allowed-tools")
def allowed_tools(body: WhichStream, acting: Writer, parts: Parts) -> Allowed:
    """Which tools the stream's machine allows now; a tool that is not in the list does not exist in this phase."""
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        return Allowed.model_validate(machine_rows.allowed_tools(session, parts.vault, acting, body.stream))
