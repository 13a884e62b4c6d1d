"""The work of `muniment restore-check`; what it guarantees is told there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from api.commands.opening import opened
from api.commands.options import CannotRun, show, waiting
from api.wiring import Services
from erasure.errors import UnknownRequest
from erasure.parts import Tenant
from erasure.recover import Healed
from erasure.request import DONE
from erasure.revived import Looked, look_for_revived
from registry.acting import Acting


def check_restored(data: Path, tenant: str | None, store: str | None, *, as_json: bool) -> int:
    """Heals the database, looks into the stores, and returns the exit code. Raises: CannotRun."""
    with opened(data) as services:
        wanted = [acting for acting in services.tenants() if tenant in (None, acting.tenant)]
        if not wanted:
            message = f"no tenant {tenant!r} in {services.settings.data}"
            raise CannotRun(message)
        with services.lease.kept(services.clock.now):
            healed = services.heal_first()
            looked = {acting.tenant: _look(services, acting, store) for acting in wanted}
    return _report(healed, looked, as_json=as_json)


def _look(services: Services, acting: Acting, store: str | None) -> list[Looked]:
    tenant = Tenant(tenant_id=acting.tenant_id, name=acting.tenant, log_id=acting.log_id)
    label = f"{acting.tenant}: looking for copies that came back"
    if not sys.stderr.isatty():
        click.echo(label, err=True)
    try:
        with waiting(label):
            return look_for_revived(services.erasure, tenant, services.clock.now(), only=store)
    except UnknownRequest as error:
        raise CannotRun(str(error)) from error


def _report(healed: Sequence[Healed], looked: dict[str, list[Looked]], *, as_json: bool) -> int:
    every = [one for found in looked.values() for one in found]
    open_again = [
        state
        for states in (*(one.requests for one in healed), *(one.requests for one in every))
        for state in states.values()
        if state not in DONE
    ]
    code = 0
    if any(one.unchecked for one in every):
        code = 2
    if open_again or any(one.unowned for one in every) or any(one.faults for one in healed):
        code = 1
    word = {0: "clean", 1: "open", 2: "not checked"}[code]
    lines = [line for one in healed for line in _healed_lines(one)] or ["the database is where the record is"]
    for tenant, found in looked.items():
        lines += [f"{tenant}: {_looked_line(one)}" for one in found]
    result: dict[str, Any] = {
        "verdict": word,
        "healed": [asdict(one) for one in healed],
        "stores": {tenant: [asdict(one) for one in found] for tenant, found in looked.items()},
    }
    show(result, as_json=as_json, lines=[*lines, word])
    return code


def _healed_lines(one: Healed) -> list[str]:
    return [
        f"{one.tenant}: the database lacked {one.behind} entries of the record, {one.rows} rows and {one.keys} keys",
        f"  applied again: {one.fenced} fences, {one.destroyed} destroyed keys, {one.holds} holds",
        *(f"  erasure {request}: {state}" for request, state in one.requests.items()),
        *(f"  fault: {line}" for line in one.faults),
        *(f"  not back: {line}" for line in one.lost),
    ]


def _looked_line(one: Looked) -> str:
    if one.unchecked is not None:
        return f"{one.store}: could not look ({one.unchecked})"
    if not one.tombstones:
        return f"{one.store}: nothing was ever erased there"
    said = f"{one.store}: {one.places} places compared with {one.tombstones} erased ones, {one.revived} came back"
    states = ", ".join(f"{request} {state}" for request, state in one.requests.items())
    return said + (f"; erased again: {states}" if states else "")
