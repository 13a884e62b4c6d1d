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
from registry import tenants, tokens
from registry.acting import Acting
from registry.classes import STARTER_CLASSES, put_class
from registry.errors import NameTaken
from registry.models import Token

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
        known = {tenant.id: tenant.name for tenant in tenants.list_tenants(session)}
    if name in known.values():
        raise NameTaken("tenant", name)

    def is_taken(number: int) -> bool:
        # On PostgreSQL the session that makes a tenant sees no other; keys of a lost database may lie in the folder.
        return number in known or services.keks.knows(str(number))

    secrets: dict[str, str] = {}
    with services.database.founding() as session:
        tenant = tenants.create_tenant(session, name, now, is_taken=is_taken)
        acting = Acting.system(tenant_id=tenant.id, tenant=tenant.name, log_id=tenant.log_id)
        Log.create(session, tenant.id, tenant.log_id)
        for class_name, spec in STARTER_CLASSES.items():
            put_class(session, acting, class_name, spec, now)
        for principal, role in FIRST_TOKENS.items():
            secrets[principal], _ = tokens.mint(session, tenant.id, principal, [role], now=now)
        services.record.announce(session, tenant.id, Kind.TENANT_CREATED, {"tokens": len(secrets)}, now)
    return NewTenant(
        tenant=acting.tenant,
        tokens=secrets,
        log_key=services.log.vkey(acting.tenant_id),
        certificate_key=services.certificate_signer(acting.log_id).vkey,
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
    """Returns the secret, to be shown once, and the token's row. Raises InvalidDeclaration.

    1. Make the row and take it back: it is valid, and its id is known. 2. Store the event. 3. Keep the row. A crash
    after 2 leaves an event about a token that nobody has.
    """
    now = services.clock.now()
    with services.database.transaction(tenant_id) as session:
        secret, row = tokens.mint(session, tenant_id, principal, roles, stores=stores, classes=classes, now=now)
        values = row.model_dump()
        session.rollback()
    services.record.event(tenant_id, Kind.TOKEN_MINTED, {"token": values["token_id"], "roles": values["roles"]}, now)
    with services.database.transaction(tenant_id) as session:
        kept = Token(**values)
        session.add(kept)
    return secret, kept


def revoke_token(services: Services, tenant_id: int, token_id: str) -> None:
    """Ends a token at once; the entry of the record follows. Raises UnknownToken."""
    now = services.clock.now()
    with services.database.transaction(tenant_id) as session:
        tokens.revoke(session, tenant_id, token_id, now)
        services.record.announce(session, tenant_id, Kind.TOKEN_REVOKED, {"token": token_id}, now)
