"""Who is calling, and may this role do that: bearer tokens to `registry.acting.Acting`, roles, purposes of reading.

Guarantees: the tenant comes from the token and from nowhere else; a token is looked up by its hash and compared in
constant time (`registry.tokens`); neither it nor its hash is ever logged. An auditor's token never writes, because no
writing route lists that role. Does not decide about separate duties: those are by principal, in `erasure`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from api.errors import Problem
from api.wiring import Services
from registry.acting import Acting
from registry.tokens import authenticate

_PURPOSE = re.compile(r"([a-z][a-z0-9_.-]{0,63})(?:;case=([A-Za-z0-9_.:-]{1,128}))?")
_bearer = HTTPBearer(auto_error=False, description="A token of `muniment init` or `muniment token create`.")


def services(request: Request) -> Services:
    """The parts of this service."""
    found: Services = request.app.state.services
    return found


Parts = Annotated[Services, Depends(services)]


def bearer_of(request: Request) -> str:
    """The token of the Authorization header. Raises Problem `unauthorized`."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Problem("unauthorized", "send Authorization: Bearer <token>")
    return token.strip()


def acting_of(request: Request, parts: Services) -> Acting:
    """The principal behind the request's token, looked up once a request. Raises NotAuthenticated or Problem."""
    known: Acting | None = request.scope.get("acting")
    if known is not None:
        return known
    token = bearer_of(request)
    with parts.database.unscoped() as session:
        acting = authenticate(session, token)
    request.scope["acting"] = acting
    return acting


def require(*roles: str) -> Callable[..., Acting]:
    """A dependency that lets in a token with one of `roles` and returns who acts."""

    def dependency(request: Request, parts: Parts, _shown: Annotated[object, Security(_bearer)] = None) -> Acting:
        acting = acting_of(request, parts)
        if not acting.has_role(*roles):
            raise Problem("forbidden", f"this needs one of the roles {', '.join(sorted(roles))}")
        return acting

    return dependency


Writer = Annotated[Acting, Depends(require("writer"))]
Platform = Annotated[Acting, Depends(require("platform"))]
Legal = Annotated[Acting, Depends(require("legal"))]
Auditor = Annotated[Acting, Depends(require("auditor"))]
Admin = Annotated[Acting, Depends(require("admin"))]
Desk = Annotated[Acting, Depends(require("platform", "legal", "auditor"))]
Anyone = Annotated[Acting, Depends(require("writer", "platform", "legal", "auditor", "admin"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """Why content is read: a code, and the case it belongs to."""

    code: str
    case: str | None = None


def purpose_of(request: Request) -> Purpose:
    """The purpose of a read of content, from `X-Purpose: <code>[;case=<id>]`. Raises Problem `purpose-required`."""
    match = _PURPOSE.fullmatch(request.headers.get("x-purpose", "").replace(" ", ""))
    if match is None:
        raise Problem("purpose-required")
    return Purpose(code=match[1], case=match[2])


ReadPurpose = Annotated[Purpose, Depends(purpose_of)]
