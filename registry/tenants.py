"""Tenants: the isolation roots of one deployment.

Guarantees: a name is `[a-z0-9-]{1,32}`, so it can stand in a file name and an environment prefix. The caller commits.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from datetime import datetime

from sqlmodel import Session, col, select

from registry.errors import Fault, InvalidDeclaration, NameTaken, UnknownTenant
from registry.ids import new_id, random_hex
from registry.models import Tenant

_NAME = re.compile(r"[a-z0-9-]{1,32}")
_NUMBERS = range(1_000, 2**15)
_MANY, _TRIES = 10_000, 100


def create_tenant(
    session: Session, name: str, now: datetime, *, is_taken: Callable[[int], bool] = lambda _number: False
) -> Tenant:
    """A new tenant with its random log id. Raises: InvalidDeclaration, NameTaken.

    `is_taken` says of a number that somebody had it before, in whose folder keys may lie.
    """
    if not _NAME.fullmatch(name):
        raise InvalidDeclaration("tenant", [Fault(pointer="/name", detail=f"expected {_NAME.pattern}")])
    if session.exec(select(Tenant).where(Tenant.name == name)).first() is not None:
        raise NameTaken("tenant", name)
    tenant = Tenant(id=_number(session, now, is_taken), name=name, log_id=random_hex(), created_at=now)
    session.add(tenant)
    session.flush()
    return tenant


def _number(session: Session, now: datetime, is_taken: Callable[[int], bool]) -> int:
    """A free number of at most two bytes, or a surrogate like any other where there are too many tenants for that.

    It stands in every row and every index: on SQLite, which keeps small integers small, that is a seventh of all bytes.
    """
    used = set(session.exec(select(Tenant.id)))
    for number in secrets.SystemRandom().sample(_NUMBERS, _TRIES) if len(used) < _MANY else ():
        if number not in used and not is_taken(number):
            return number
    return new_id(now)


def list_tenants(session: Session) -> list[Tenant]:
    """All tenants by name."""
    return list(session.exec(select(Tenant).order_by(col(Tenant.name))))


def get_tenant(session: Session, name: str) -> Tenant:
    """The tenant of that name. Raises: UnknownTenant."""
    tenant = session.exec(select(Tenant).where(Tenant.name == name)).first()
    if tenant is None:
        raise UnknownTenant(name if _NAME.fullmatch(name) else "")
    return tenant
