"""Running the service: health, readiness, metrics, tokens, and the page of each problem type."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import SQLAlchemyError

from api import administration, migrate
from api.auth import Admin, Anyone, Parts
from api.database import DatabaseUnavailable
from api.errors import Problem
from api.pagination import DEFAULT_LIMIT, Cursor, Limit, Page, paged, read_cursor
from api.problems import PROBLEMS, page
from api.requests import Body, Instant, make_router
from api.wiring import Services
from ledger.errors import LedgerError
from registry import tenants, tokens
from registry.acting import Acting
from registry.models import Token

router = make_router("operations")
_REFUSED = (
    "nothing is stored in it: muniment verify --all says what is wrong and whose log it is; bring back what is older, "
    "the bucket or the database, and start again"
)


class NewToken(Body):
    """Whom a new token names and what it may use."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"principal": "refund-bot", "roles": ["writer"]}]})
    principal: str = Field(
        min_length=1, max_length=128, description="A person or a service; duties are separated by it."
    )
    roles: list[str] = Field(min_length=1, max_length=8)
    stores: list[str] = Field(default_factory=lambda: ["*"], max_length=1000)
    classes: list[str] = Field(default_factory=lambda: ["*"], max_length=1000)


class TokenView(BaseModel):
    """A token without its secret."""

    id: str
    principal: str
    roles: list[str]
    stores: list[str]
    classes: list[str]
    created_at: Instant
    revoked_at: Instant | None


class MintedToken(TokenView):
    """A new token with its secret, which is shown here and never again."""

    token: str


class Health(BaseModel):
    """The process answers."""

    status: str = Field(examples=["ok"])


class Readiness(BaseModel):
    """Whether the service can do its work, and what keeps it from it."""

    status: str = Field(examples=["ready"])
    not_ready: dict[str, str] = Field(examples=[{}], description="Part to reason; empty when ready.")
    refusing_logs: dict[str, str] = Field(
        default_factory=dict,
        examples=[{}],
        description="Id of each log that takes nothing, with the reason and what to do; of other tenants' all is well.",
    )


def _view(row: Token) -> TokenView:
    return TokenView(
        id=row.token_id,
        principal=row.principal,
        roles=row.roles,
        stores=row.stores,
        classes=row.classes,
        created_at=row.created_at,
        revoked_at=row.revoked_at,
    )


@router.get("/healthz")
def healthz() -> Health:
    """The process runs."""
    return Health(status="ok")


@router.get("/readyz", responses={503: {"description": "Something named in `not_ready` is missing."}})
def readyz(parts: Parts, response: Response) -> Readiness:
    """Whether database, schema, keys, object store and logs can be used.

    One tenant's log that refuses is named and keeps nobody else from being served: 503 where every log does.
    """
    reasons = not_ready(parts)
    refusing: dict[str, str] = {}
    count = 0
    if "database" not in reasons and "schema" not in reasons:
        refusing, count = _refusing(parts)
    if refusing and len(refusing) == count:
        reasons.setdefault("log", "no log takes anything: see refusing_logs")
    if reasons:
        response.status_code = 503
        response.headers["Retry-After"] = "5"
    return Readiness(status="not ready" if reasons else "ready", not_ready=reasons, refusing_logs=refusing)


def _refusing(parts: Services) -> tuple[dict[str, str], int]:
    """The logs that take nothing, by their random ids, and how many there are: no tenant's name without a token."""
    known = parts.log.refusing
    tenants_now = parts.tenants()
    reasons = {acting.log_id: known[acting.tenant_id] for acting in tenants_now if acting.tenant_id in known}
    return {log_id: f"{reason}; {_REFUSED}" for log_id, reason in reasons.items()}, len(tenants_now)


def not_ready(parts: Services) -> dict[str, str]:
    """The parts that cannot be used now, with the reason; never an address or a secret."""
    reasons: dict[str, str] = {}
    try:
        parts.database.ping()
        migrate.check(parts.database)
    except DatabaseUnavailable as error:
        return {"database": str(error)}
    except (migrate.NewerSchema, migrate.OlderSchema, migrate.UnknownSchema) as error:
        return {"schema": str(error)}
    try:
        next(iter(parts.locked.list("")), None)
    except (LedgerError, OSError) as error:
        reasons["object_store"] = type(error).__name__
    try:
        parts.keks.root.versions()
    except Exception as error:  # noqa: BLE001 - any failure of a provider means not ready
        reasons["keys"] = type(error).__name__
    try:
        if not parts.lease.is_led(parts.clock.now()):
            reasons["log"] = "no process leads the log: nothing is sequenced until one takes over"
    except SQLAlchemyError as error:
        reasons["log"] = type(error).__name__
    if parts.lease.held and not parts.timeline.is_sound:
        reasons["recovery"] = "the database is older than the record, which is being applied to it"
    return reasons


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(parts: Parts) -> Response:
    """The metrics in Prometheus' text format."""
    body, media_type = parts.telemetry.metrics_page()
    return Response(body, media_type=media_type)


@router.get("/problems/{name}", response_class=PlainTextResponse)
def problem_page(name: Annotated[str, Path(examples=["legal-hold"])]) -> str:
    """What a problem type means and what to do."""
    if name not in PROBLEMS:
        raise Problem("not-found", "no such problem type")
    return page(name)


class NewTenant(Body):
    """The name of a new tenant."""

    name: str = Field(pattern=r"^[a-z0-9-]{1,32}$", examples=["acme"])


class TenantView(BaseModel):
    """A tenant by name."""

    name: str
    created_at: Instant


class MintedTenant(BaseModel):
    """A new tenant with its first tokens, which are shown here and never again."""

    tenant: str
    tokens: dict[str, str]
    log_key: str
    certificate_key: str


class Caller(BaseModel):
    """Who a token speaks for."""

    tenant: str
    principal: str
    roles: list[str]


def _operator(acting: Admin) -> Acting:
    """The deployment's operator: an admin of the first tenant. Everybody else sees one tenant only."""
    if acting.tenant != administration.DEFAULT_TENANT:
        raise Problem("forbidden", f"tenants are administered by an admin of tenant {administration.DEFAULT_TENANT}")
    return acting


Operator = Annotated[Acting, Depends(_operator)]


@router.get("/v1/tenants")
def list_tenants(
    acting: Operator, parts: Parts, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[TenantView]:
    """The tenants of this deployment, by name."""
    del acting
    after = read_cursor(cursor, str)
    with parts.database.unscoped() as session:
        rows = [row for row in tenants.list_tenants(session) if after is None or row.name > after[0]]
    rows, next_cursor = paged(rows[: limit + 1], limit, lambda row: (row.name,))
    return Page(items=[TenantView(name=r.name, created_at=r.created_at) for r in rows], next_cursor=next_cursor)


@router.post("/v1/tenants", status_code=201)
def create_tenant(body: NewTenant, acting: Operator, parts: Parts) -> MintedTenant:
    """A new tenant with its log, keys, starter classes and tokens."""
    del acting
    made = administration.create_tenant(parts, body.name)
    return MintedTenant(
        tenant=made.tenant, tokens=made.tokens, log_key=made.log_key, certificate_key=made.certificate_key
    )


@router.get("/v1/tokens/self")
def caller(acting: Anyone) -> Caller:
    """Who the token of this request speaks for."""
    return Caller(tenant=acting.tenant, principal=acting.principal, roles=sorted(acting.roles))


@router.get("/v1/tokens")
def list_tokens(acting: Admin, parts: Parts, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> Page[TokenView]:
    """The tenant's tokens, revoked ones too, oldest first."""
    after = read_cursor(cursor, str, str)
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        rows = [row for row in tokens.list_tokens(session, acting.tenant_id) if after is None or _key(row) > after]
    rows, next_cursor = paged(rows[: limit + 1], limit, _key)
    return Page(items=[_view(row) for row in rows], next_cursor=next_cursor)


def _key(row: Token) -> tuple[str, str]:
    return row.created_at.isoformat(timespec="microseconds"), row.token_id


@router.post("/v1/tokens", status_code=201)
def mint_token(body: NewToken, acting: Admin, parts: Parts) -> MintedToken:
    """A new token; its secret is in this answer only."""
    secret, row = administration.mint_token(
        parts,
        acting.tenant_id,
        principal=body.principal,
        roles=body.roles,
        stores=body.stores,
        classes=body.classes,
    )
    return MintedToken(**_view(row).model_dump(), token=secret)


@router.delete("/v1/tokens/{token_id}", status_code=204)
def revoke_token(token_id: str, acting: Admin, parts: Parts) -> None:
    """Ends a token at once."""
    administration.revoke_token(parts, acting.tenant_id, token_id)
