"""How a request reaches its route: strict JSON, idempotent writes, every error of ours answered once.

Guarantees: JSON is RFC 8259 and nothing more (no NaN, no lone surrogates, no whole number of more than 64 bits, no
nesting over `MAX_DEPTH`), so that whatever is kept of it can be written again in every form that is kept;
no object has two members of one name, and no text with NUL reaches a database. A query parameter that nobody declared
is refused like an unknown field, and so is a member of a body where the route takes none. No type is guessed: a boolean
is `true` or `false`, a number is no text, a time is RFC 3339 with a zone. What a path names in a form that no name of
ours has is unknown (404).
Routers of ours use `route_class=Route`; a route that needs the exact bytes reads `request.body()` and is not parsed
here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer
from starlette.concurrency import run_in_threadpool

from api import idempotency
from api.auth import acting_of, bearer_of
from api.errors import Problem, response_of
from ledger.entry import format_instant
from registry.errors import Unknown
from registry.reading import parse_instant

_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_NUL = b"\\u0000"
_TWICE = "an object has two members of one name"
_IN_THREAD_BYTES = 256 * 1024
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_LONG = re.compile(rb"[0-9]{19}")
_BEYOND = 2**63
MAX_DEPTH = 100
"""How deep lists and objects may lie in each other. Bodies of entries are not read here; they may be 200 deep."""
_TOO_DEEP = f"nested more than {MAX_DEPTH} deep"
_PARAMETER = re.compile(r"[A-Za-z_]{1,32}")
"""What is named again in a refusal; anything else could be somebody's data."""


class Body(BaseModel):
    """The base of every request's schema: unknown fields are refused, numbers are finite, nothing is converted."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


def _time(value: Any) -> datetime:
    at = parse_instant(value)
    if at is None:
        message = "expected an RFC 3339 time with a zone from 1970 to 2999, such as 2026-01-31T12:00:00Z"
        raise ValueError(message)
    return at


def _flag(value: Any) -> bool:
    if value not in ("true", "false") and not isinstance(value, bool):
        message = "expected true or false"
        raise ValueError(message)
    return value in ("true", True)


def _whole(value: Any) -> int:
    if not isinstance(value, bool) and isinstance(value, int):
        return value
    if not isinstance(value, str) or _INTEGER.fullmatch(value) is None:
        message = "expected a whole number in digits"
        raise ValueError(message)
    return int(value)


Time = Annotated[datetime, BeforeValidator(_time)]
"""A time as it comes in, of a body or a query."""

Flag = Annotated[bool, BeforeValidator(_flag)]
"""A boolean of a query."""

Whole = Annotated[int, BeforeValidator(_whole)]
"""A whole number of a path or a query."""

Instant = Annotated[datetime, PlainSerializer(format_instant, return_type=str, when_used="json-unless-none")]
"""An instant as it goes out: UTC with microseconds, also where they are zero. Source: API §0."""

DryRun = Annotated[
    Flag, Query(description="Judge the declaration as a real one and say which version it would be; change nothing.")
]


class StrictRequest(Request):
    """A request whose JSON is parsed strictly."""

    async def json(self) -> Any:
        """The parsed body. Raises json.JSONDecodeError (which the framework knows) or Problem."""
        if not hasattr(self, "_strict"):
            body = await self.body()
            # A large one is parsed beside the loop, which others wait for.
            big = len(body) > _IN_THREAD_BYTES
            self._strict = await run_in_threadpool(parse_json, body) if big else parse_json(body)
        return self._strict


def parse_json(body: bytes) -> Any:
    """Returns the value of strict JSON.

    Raises:
        Problem: `malformed` with the place, for two equal names or endless nesting, or `invalid` for text that holds
            NUL and for a whole number of more than 64 bits.
    """
    try:
        value = msgspec.json.decode(body)
        _refuse_unfit(body, value)
        _refuse_twice(body, value)
    except msgspec.DecodeError as error:
        raise Problem("malformed", _place(str(error))) from None
    except RecursionError:
        raise Problem("malformed", _TOO_DEEP) from None
    if _NUL in body and "\0" in json.dumps(value, ensure_ascii=False).replace("\\u0000", "\0"):
        raise Problem("invalid", "text holds the character NUL")
    return value


def _refuse_unfit(body: bytes, value: Any) -> None:
    """Refuse what no copy of it could hold: endless nesting, and whole numbers that no database has."""
    is_long = _LONG.search(body) is not None
    if not is_long and body.count(b"{") + body.count(b"[") <= MAX_DEPTH:
        return
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        if is_long and any(type(one) is int and not -_BEYOND <= one < _BEYOND for one in level):
            raise Problem("invalid", "a whole number has more than 64 bits")
        within = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        if not within:
            return
        level = [one for several in within for one in several]
    raise Problem("malformed", _TOO_DEEP)


def _refuse_twice(body: bytes, value: Any) -> None:
    """Refuse what readers disagree about: a parser keeps one of two equal names and drops the other."""
    if msgspec.json.encode(value) == body:
        return  # what is written again as it came has lost nothing
    # Numbers are not made: those of thousands of digits cost much, and the value is there already.
    json.loads(body.decode(), object_pairs_hook=_once_each, parse_int=len, parse_float=len)


def _once_each(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        raise Problem("malformed", _TWICE)


def _place(message: str) -> str:
    """The decoder's message names a byte and a rule; it never quotes the body."""
    return message if len(message) <= 200 else "not JSON"  # noqa: PLR2004 - a line


class Route(APIRoute):
    """A route of ours."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The framework's handler between strictness, idempotency and our errors."""
        inner = super().get_route_handler()
        fields = get_flat_params(self.dependant)
        known = frozenset(one.alias for one in fields if isinstance(one.field_info, params.Query))
        bodiless = self.body_field is None and "requestBody" not in (self.openapi_extra or {})

        async def handle(request: Request) -> Response:
            strict = StrictRequest(request.scope, request.receive)
            try:
                _refuse_nul(request.path_params.values())
                if request.url.query and request.url.path.startswith("/v1/"):
                    _refuse_unknown(request.query_params, known)
                if bodiless and request.method in _WRITES and await strict.body():
                    _refuse_members(await strict.json())
                return await _once(strict, inner)
            except Exception as error:
                answer = response_of(_located(error, request), instance=request.scope.get("request_id"))
                if answer.status_code == 500:  # noqa: PLR2004 - nobody named it: telemetry logs and answers
                    raise
                return answer

        return handle


def _located(error: Exception, request: Request) -> Exception:
    """What the path names and nobody knows is 404; the same name in a body stays what its own problem says."""
    if isinstance(error, RequestValidationError):
        foreign = [str(item["loc"][-1]) for item in error.errors() if item["loc"][0] == "path"]
        if foreign:
            return Problem("not-found", f"no such {foreign[0]}: not of the form of our names")
    if isinstance(error, Unknown) and error.name and error.name in request.path_params.values():
        return Problem("not-found", f"{error}; {error.hint}" if error.hint else str(error))
    return error


def _refuse_unknown(given: Iterable[str], known: frozenset[str]) -> None:
    """Refuse what no parameter is called: `previw=false` must not be read as no `preview` at all. Raises: Problem."""
    unknown = [name for name in dict.fromkeys(given) if name not in known]
    if not unknown:
        return
    detail = f"no such query parameter; expected {', '.join(sorted(known)) or 'none'}"
    names = [name if _PARAMETER.fullmatch(name) else "" for name in unknown]
    raise Problem("invalid", detail, errors=[{"pointer": f"/query/{name}", "detail": detail} for name in names])


def _refuse_nul(named: Iterable[object]) -> None:
    """Refuse a path's name before a database, which may hold no such text, is asked for it. Raises: Problem."""
    if any("\0" in part for part in named if isinstance(part, str)):
        raise Problem("not-found", "no name or id of ours holds the character NUL")


def _refuse_members(body: Any) -> None:
    """Refuse a body where the route takes none; an empty object says nothing and passes. Raises: Problem."""
    if body == {}:
        return
    names = [name if _PARAMETER.fullmatch(name) else "" for name in body] if isinstance(body, dict) else None
    errors = [{"pointer": "", "detail": "this route takes no body"}]
    if names is not None:
        errors = [{"pointer": f"/{name}" if name else "", "detail": "unknown field"} for name in names]
    raise Problem("invalid", "this route takes no body, or an empty object", errors=errors)


async def _once(request: StrictRequest, inner: Callable[[Request], Coroutine[Any, Any, Response]]) -> Response:
    key = request.headers.get("idempotency-key")
    if key is None or request.method not in _WRITES:
        return await inner(request)
    parts = request.app.state.services
    acting = await run_in_threadpool(acting_of, request, parts)
    target = f"{request.method} {request.url.path}?{request.url.query}"
    body = await request.body()
    attempt = idempotency.attempt_of(
        tenant_id=acting.tenant_id, token=bearer_of(request), target=target, key=key, body=body
    )
    begun = parts.clock.now()
    kept = await run_in_threadpool(idempotency.begin, parts.database, attempt, begun)
    if kept is not None:
        headers = {"idempotency-replayed": "true"}
        return Response(kept.body, kept.status, media_type=kept.media_type, headers=headers)
    answer = idempotency.Kept(status=500, media_type="", body=b"")
    try:
        try:
            response = await inner(request)
        except Exception as error:
            response = response_of(_located(error, request), instance=request.scope.get("request_id"))
            if response.status_code == 500:  # noqa: PLR2004 - see Route
                raise
        if isinstance(response.body, bytes):
            answer = idempotency.Kept(
                status=response.status_code,
                media_type=response.headers.get("content-type", "application/json"),
                body=response.body,
            )
    finally:
        await run_in_threadpool(idempotency.finish, parts.database, attempt, answer, begun)
    return response


def make_router(tag: str) -> APIRouter:
    """A router of ours under one heading of the OpenAPI document."""
    return APIRouter(tags=[tag], route_class=Route, responses=_responses())


def _responses() -> dict[int | str, dict[str, Any]]:
    shape = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        "4XX": {"description": "Refused; `type` names a page under `/problems/`.", "content": shape},
        "5XX": {"description": "Not done; try again after `Retry-After`.", "content": shape},
    }
