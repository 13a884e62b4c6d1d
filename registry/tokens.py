"""Bearer tokens: who a caller is, in which tenant, with which roles, stores and classes.

Guarantees: only the SHA-256 of 256 random bits is kept, so the database opens nothing; the secret is shown once; a
revoked token is refused at once. No two principals differ in case alone, since duties are separated by them: one person
would be two. The caller commits, and records `token.minted` before the secret is handed out.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Session, col, select

from registry.acting import EVERYTHING, ROLES, Acting
from registry.errors import Fault, InvalidDeclaration, NotAuthenticated, UnknownToken
from registry.models import Tenant, Token
from registry.reading import NAME

PREFIX = "mun_"
_ID_BYTES = 8
"""Of a token's public id, which stands in every row that it registers."""
_SECRET = re.compile(r"mun_[A-Za-z0-9_-]{43}")
_PRINCIPAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@:/-]{0,127}")


def mint(
    session: Session,
    tenant_id: int,
    principal: str,
    roles: Collection[str],
    *,
    stores: Sequence[str] = (EVERYTHING,),
    classes: Sequence[str] = (EVERYTHING,),
    now: datetime,
) -> tuple[str, Token]:
    """The secret, shown this once, and the token. Raises: InvalidDeclaration."""
    faults = []
    if not _PRINCIPAL.fullmatch(principal):
        faults.append(Fault(pointer="/principal", detail=f"expected {_PRINCIPAL.pattern}"))
    if not roles or not set(roles) <= ROLES:
        faults.append(Fault(pointer="/roles", detail=f"expected some of {', '.join(sorted(ROLES))}"))
    for pointer, names in (("/stores", stores), ("/classes", classes)):
        if not all(name == EVERYTHING or NAME.fullmatch(name) for name in names):
            faults.append(Fault(pointer=pointer, detail="expected names, or * for all"))
    if not faults and _is_spelt_otherwise(session, tenant_id, principal):
        faults.append(Fault(pointer="/principal", detail="differs in case alone from a principal that has tokens"))
    if faults:
        raise InvalidDeclaration("token", faults)
    secret = PREFIX + secrets.token_urlsafe(32)
    token = Token(
        tenant_id=tenant_id,
        token_id=secrets.token_hex(_ID_BYTES),
        secret_hash=_hash(secret),
        principal=principal,
        roles=sorted(set(roles)),
        stores=list(dict.fromkeys(stores)),
        classes=list(dict.fromkeys(classes)),
        created_at=now,
    )
    session.add(token)
    session.flush()
    return secret, token


def authenticate(session: Session, secret: str) -> Acting:
    """Who the secret speaks for. Works in a session without a tenant. Raises: NotAuthenticated.

    The look-up is by hash, so its timing says nothing about the secret; the hashes are compared again in constant time.
    """
    if not _SECRET.fullmatch(secret):
        raise NotAuthenticated
    wanted = _hash(secret)
    found = session.exec(
        select(Token, Tenant).join(Tenant, col(Tenant.id) == col(Token.tenant_id)).where(Token.secret_hash == wanted)
    ).first()
    if found is None:
        raise NotAuthenticated
    token, tenant = found
    # Whatever time it bears: another process's clock may be ahead of ours.
    if not hmac.compare_digest(token.secret_hash, wanted) or token.revoked_at is not None:
        raise NotAuthenticated
    return Acting(
        tenant_id=tenant.id,
        tenant=tenant.name,
        log_id=tenant.log_id,
        principal=token.principal,
        token_id=token.token_id,
        roles=frozenset(token.roles),
        stores=tuple(token.stores),
        classes=tuple(token.classes),
    )


def revoke(session: Session, tenant_id: int, token_id: str, now: datetime) -> Token:
    """The token, refused from now on. Raises: UnknownToken, also where it was revoked before."""
    token = session.get(Token, (tenant_id, token_id), with_for_update=True)
    if token is None or token.revoked_at is not None:
        raise UnknownToken
    token.revoked_at = now
    session.add(token)
    session.flush()
    return token


def list_tokens(session: Session, tenant_id: int) -> list[Token]:
    """The tenant's tokens, oldest first, revoked ones included; none can be turned back into its secret."""
    return list(
        session.exec(
            select(Token).where(Token.tenant_id == tenant_id).order_by(col(Token.created_at), col(Token.token_id))
        )
    )


def _is_spelt_otherwise(session: Session, tenant_id: int, principal: str) -> bool:
    """Whether there is a principal that is this one but for the case of its letters, revoked tokens included."""
    alike = sa.func.lower(col(Token.principal)) == principal.lower()
    query = sa.select(sa.literal(1)).where(col(Token.tenant_id) == tenant_id, alike, col(Token.principal) != principal)
    return session.scalars(query.limit(1)).first() is not None


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
