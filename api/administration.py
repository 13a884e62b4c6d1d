"""Making tenants and tokens: what `init`, `tenant create` and `POST /v1/tokens` share.

Guarantees: a token's secret is returned once and kept only as a hash; that a tenant was made or a token minted or
revoked is an entry of the record. A token takes effect only after its event is stored (a binding event, DESIGN §3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from api.wiring import Services
from ledger.entry import Kind
from ledger.log import Log
from registry import tokens
from registry.acting import Acting
from registry.classes import STARTER_CLASSES, put_class
from registry.models import Token
from registry.tenants import create

DEFAULT_TENANT = "default"
FIRST_TOKENS: dict[str, str] = {
    "writer": "writer",
    "platform": "platform",
    "legal": "legal",
    "legal2": "legal",
    "auditor": "auditor",
    "admin": "admin",
}
"""Each a principal of its own with one role; two of them so that one can approve what the other asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTenant:
    """What is shown once when a tenant is made."""

    tenant: str
    tokens: dict[str, str]
    log_key: str
    certificate_key: str

    def as_json(self) -> dict[str, object]:
        """The shape of API.md §1."""
        return {
            "tenant": self.tenant,
            "tokens": self.tokens,
            "log_key": self.log_key,
            "certificate_key": self.certificate_key,
        }


def create_tenant(services: Services, name: str) -> NewTenant:
    """Makes a tenant with its log, keys, starter classes and first tokens. Raises NameTaken or InvalidDeclaration."""
    now = services.clock.now()
    with services.database.unscoped() as session:
        tenant = create(session, name, now, persist=False)
    acting = Acting.system(tenant_id=tenant.id, tenant=tenant.name, log_id=tenant.log_id)
    secrets: dict[str, str] = {}
    with services.database.transaction(tenant.id) as session:
        session.add(tenant)
        session.flush()
        Log.create(session, tenant.id, tenant.log_id)
        for class_name, spec in STARTER_CLASSES.items():
            put_class(session, acting, class_name, spec, now)
        for principal, role in FIRST_TOKENS.items():
            secrets[principal], _ = tokens.mint(
                session, tenant.id, principal=principal, roles=[role], stores=["*"], classes=["*"], now=now
            )
        services.record.announce(session, tenant.id, Kind.TENANT_CREATED, {"classes": len(STARTER_CLASSES)}, now)
    return NewTenant(
        tenant=tenant.name,
        tokens=secrets,
        log_key=services.log.vkey(tenant.id),
        certificate_key=services.certificate_signer(tenant.log_id).vkey,
    )


def mint_token(
    services: Services,
    tenant_id: int,
    *,
    principal: str,
    roles: Sequence[str],
    stores: Sequence[str],
    classes: Sequence[str],
) -> tuple[str, Token]:
    """Returns the secret, to be shown once, and the token's row. Raises InvalidDeclaration."""
    now = services.clock.now()
    tokens.check(principal=principal, roles=roles, stores=stores, classes=classes)
    services.record.event(tenant_id, Kind.TOKEN_MINTED, {"principal": principal, "roles": sorted(roles)}, now)
    with services.database.transaction(tenant_id) as session:
        return tokens.mint(
            session,
            tenant_id,
            principal=principal,
            roles=list(roles),
            stores=list(stores),
            classes=list(classes),
            now=now,
        )


def revoke_token(services: Services, tenant_id: int, token_id: str) -> None:
    """Ends a token at once; the entry of the record follows. Raises UnknownToken."""
    now = services.clock.now()
    with services.database.transaction(tenant_id) as session:
        tokens.revoke(session, tenant_id, token_id, now)
        services.record.announce(session, tenant_id, Kind.TOKEN_REVOKED, {"token": token_id}, now)
