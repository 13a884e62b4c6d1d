"""The HTTP service: its routers, the layers around them, and the OpenAPI document.

Guarantees: every route is listed here, once; the outermost layer answers whatever goes wrong inside. The order of the
layers is: request log, body limits, routes (strict JSON, idempotency, errors).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from fastapi import FastAPI

from api import errors, openapi
from api.limits import BodyLimits
from api.telemetry import RequestLog
from api.wiring import Services

VERSION = "1.0"
ROUTERS = (
    "operations",
    "classes",
    "stores",
    "connector_tasks",
    "artifacts",
    "registration_reviews",
    "memory",
    "subjects",
    "merging",
    "inventory",
    "streams",
    "machines",
    "kinds",
    "controller",
    "record",
    "replay",
    "log",
    "actions",
    "requests",
    "retention",
    "audit",
)
"""The modules of `api.routes`, in the order of the documentation."""

_DESCRIPTION = """A provable record of what AI agents did, and erasure with evidence.

Every error is `application/problem+json` (RFC 9457); its `type` is a page of this service. Writes accept
`Idempotency-Key`. Reads of content need `X-Purpose`. Lists take `limit` and `cursor`."""


def create_app(services: Services) -> FastAPI:
    """Returns the application over built services; its lifespan neither starts nor ends them."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.ready = True
        yield
        app.state.ready = False

    app = FastAPI(
        title="Muniment",
        version=VERSION,
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.services = services
    for name in ROUTERS:
        app.include_router(import_module(f"api.routes.{name}").router)
    errors.install(app)
    app.add_middleware(BodyLimits)
    app.add_middleware(RequestLog, telemetry=services.telemetry)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]  # the framework's documented way
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = openapi.document(app)
    return app.openapi_schema
