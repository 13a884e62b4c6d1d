"""The work of `muniment doctor`; what it guarantees is told there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from api import settings
from api.commands.options import show
from api.examination import (
    Finding,
    look_at_choices,
    look_at_clock,
    look_at_database,
    look_at_folders,
    look_at_lease,
    look_at_room,
    look_at_stores,
    look_at_tenant,
    unknown,
    wrong,
)
from api.rows_check import look_at_actions, look_at_holds, look_at_keys
from api.settings import Settings
from api.wiring import Services, StoreRefused, build
from ledger.errors import LockNotEnforced
from vault.errors import VaultError

_CODES = {"fine": 0, "weak": 0, "wrong": 1, "unknown": 2}
_ENDS = ("data folder", "keys")
"""Without these nothing else can be looked at."""


def examine(chosen: Settings, tenant: str | None = None) -> list[Finding]:
    """Every finding, in the order a reader wants."""
    found = list(look_at_folders(chosen))
    if any(finding.what in _ENDS and finding.verdict in ("wrong", "unknown") for finding in found):
        return found
    for look in (look_at_room, look_at_database, look_at_choices):
        found += list(look(chosen))
    if any(finding.what in ("schema", "database") and finding.verdict != "fine" for finding in found):
        return found
    try:
        services = build(chosen)
    except StoreRefused as error:
        is_proven = isinstance(error.__cause__, LockNotEnforced)
        return [*found, wrong("stores", str(error)) if is_proven else unknown("stores", str(error))]
    except VaultError as error:
        return [*found, wrong("keys", f"{error}")]
    try:
        found += list(_inside(services, tenant))
    finally:
        services.close()
    return found


def _inside(services: Services, tenant: str | None) -> Iterator[Finding]:
    looks: list[Callable[[Services], Iterator[Finding]]] = [look_at_stores, look_at_clock, look_at_lease]
    for look in looks:
        yield from look(services)
    known = [acting for acting in services.tenants() if tenant in (None, acting.tenant)]
    if tenant is not None and not known:
        yield unknown("tenant", f"there is none of the name {tenant}: muniment tenant list")
    for acting in known:
        for look_at in (look_at_tenant, look_at_holds, look_at_keys, look_at_actions):
            yield from look_at(services, acting)


def examine_folder(data: Path, tenant: str | None, *, as_json: bool) -> int:
    """Prints every finding and returns the exit code. Raises: SettingRefused."""
    found = examine(settings.load(data), tenant)
    code = max((_CODES[finding.verdict] for finding in found), default=0)
    if any(finding.verdict == "wrong" for finding in found):
        code = 1
    verdict = {0: "sound", 1: "faulty", 2: "not fully checked"}[code]
    lines = [f"{finding.verdict:<8} {finding.what}: {finding.detail}" for finding in found]
    show(
        {"verdict": verdict, "findings": [asdict(finding) for finding in found]},
        as_json=as_json,
        lines=[*lines, verdict],
    )
    return code
