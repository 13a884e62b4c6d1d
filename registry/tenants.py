"""Tenants: the isolation roots of one deployment.

Guarantees: a name is `[a-z0-9-]{1,32}`, so it can stand in a file name and an environment prefix. The caller commits.
"""

from __future__ import annotations

import re
from datetime import datetime

from sqlmodel import Session, col, select

from registry.errors import Fault, InvalidDeclaration, NameTaken, UnknownTenant
from registry.ids import new_id, random_hex
from registry.models import Tenant

_NAME = re.compile(r"[a-z0-9-]{1,32}")


def create_tenant(session: Session, name: str, now: datetime) -> Tenant:
    """A new tenant with its random log id. Raises: InvalidDeclaration, NameTaken."""
    if not _NAME.fullmatch(name):
        raise InvalidDeclaration("tenant", [Fault(pointer="/name", detail=f"expected {_NAME.pattern}")])
    if session.exec(select(Tenant).where(Tenant.name == name)).first() is not None:
        raise NameTaken("tenant", name)
    tenant = Tenant(id=new_id(now), name=name, log_id=random_hex(), created_at=now)
    session.add(tenant)
    session.flush()
    return tenant


def list_tenants(session: Session) -> list[Tenant]:
    """All tenants by name."""
    return list(session.exec(select(Tenant).order_by(col(Tenant.name))))


def get_tenant(session: Session, name: str) -> Tenant:
    """The tenant of that name. Raises: UnknownTenant."""
    tenant = session.exec(select(Tenant).where(Tenant.name == name)).first()
    if tenant is None:
        raise UnknownTenant(name if _NAME.fullmatch(name) else "")
    return tenant
