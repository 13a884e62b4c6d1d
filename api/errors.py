"""From every error to one answer: RFC 9457 `application/problem+json`.

Guarantees: this is the only place where an error of ours gets an HTTP status: a class says `problem = "legal-hold"` (a
name of `api.problems`), optionally `hint`, and nothing of HTTP. No answer repeats what the caller sent, no answer shows
our internals: an error nobody named is 500 with the request's id. Source: RFC 9457, RFC 6901 (pointers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import sqlalchemy as sa
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from api.problems import GENERIC, PROBLEMS
from connectors.errors import ConnectorError, KindNotBuilt, KindUnknown, StoreUnreachable, Timeout
from ledger import errors as ledger_errors
from vault import errors as vault_errors

MEDIA_TYPE = "application/problem+json"
_TOKEN_ADVICE = {"WWW-Authenticate": 'Bearer realm="muniment"'}
# Errors of packages that know nothing of problems; the first match wins.
_FOREIGN: tuple[tuple[type[Exception], str], ...] = (
    (ledger_errors.IdConflict, "id-conflict"),
    (ledger_errors.StoreUnavailable, "unavailable"),
    (ledger_errors.StoreDenied, "unavailable"),
    (ledger_errors.LockNotEnforced, "unavailable"),
    (ledger_errors.NotLeader, "unavailable"),
    (ledger_errors.LogForked, "read-only"),
    (ledger_errors.LogRolledBack, "read-only"),
    (vault_errors.KeyDestroyed, "erased"),
    (vault_errors.KeyFenced, "erased"),
    (vault_errors.TooLarge, "too-large"),
    (vault_errors.RootUnavailable, "unavailable"),
    (KindUnknown, "bad-store"),
    (KindNotBuilt, "not-built"),
    (StoreUnreachable, "unavailable"),
    (Timeout, "unavailable"),
    (ConnectorError, "bad-store"),
    (sa.exc.OperationalError, "unavailable"),
    (sa.exc.TimeoutError, "unavailable"),
)


_CONTENDED = frozenset({"23505", "40001", "40P01"})
"""Two transactions made the same row, or one would have waited for the other for ever: either may be run again.
Source: PostgreSQL manual, appendix A (unique_violation, serialization_failure, deadlock_detected)."""
_USUAL_PLACES = {
    "unknown-class": "/data_class",
    "unknown-store": "/store",
    "unknown-kind": "/kind",
    "unknown-source": "/sources",
    "unknown-regulation": "/regulation",
    "unknown-timezone": "/timezone",
    "unknown-jurisdiction": "/jurisdiction",
    "unknown-ground": "/ground",
    "target-not-allowed": "/config",
    "malformed-duration": "/lease",
    "no-subject": "/subjects",
    "too-many-subjects": "/subjects",
    "bad-locator": "/locator",
    "bad-cursor": "/query/cursor",
}
"""Where a 422 stands that does not say so itself; the only places from which each of them comes."""


class Problem(Exception):
    """An answer other than success. `name` is a documented type; `extra` are further members of the answer."""

    def __init__(
        self,
        name: str,
        detail: str = "",
        *,
        errors: Sequence[Mapping[str, str]] = (),
        extra: Mapping[str, Any] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name
        self.detail = detail
        self.errors = list(errors)
        self.extra = dict(extra or {})
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A problem as it goes out."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def problem_of(error: BaseException) -> Problem:
    """Returns the problem an error stands for; `internal` for what nobody named, without its text."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException) and isinstance(error.__cause__, Problem):
        # The framework wraps what `StrictRequest.json` raises.
        return error.__cause__
    if isinstance(error, HTTPException):
        return Problem(GENERIC.get(error.status_code, "internal"), _framework_detail(error))
    name = getattr(error, "problem", None)
    if isinstance(name, str) and name in PROBLEMS:
        hint = getattr(error, "hint", "")
        detail = f"{error}; {hint}" if hint else str(error)
        return Problem(name, detail, errors=_places(error, name), extra=_members(error))
    if isinstance(error, sa.exc.DBAPIError) and getattr(error.orig, "sqlstate", None) in _CONTENDED:
        return Problem("contended")
    for kind, foreign in _FOREIGN:
        if isinstance(error, kind):
            quiet = isinstance(error, sa.exc.SQLAlchemyError)
            return Problem(foreign, "the database does not answer" if quiet else str(error))
    return Problem("internal", "the fault is logged under the request id")


def _places(error: BaseException, name: str) -> list[dict[str, str]]:
    """Where in the body, by JSON pointer: what the error says of itself, else where a problem of its kind stands."""
    faults = getattr(error, "faults", ())
    if faults:
        return [{"pointer": fault.pointer, "detail": fault.detail} for fault in faults]
    pointer = getattr(error, "pointer", None)
    if pointer is None and PROBLEMS[name].status == 422:  # noqa: PLR2004 - the status itself
        pointer = _USUAL_PLACES.get(name, "")
    return [] if pointer is None else [{"pointer": pointer, "detail": getattr(error, "detail", None) or str(error)}]


def _members(error: BaseException) -> dict[str, Any]:
    """Fields the contract puts into an answer: the request that erased it, and its certificate."""
    values = {"request": getattr(error, "request_id", None), "certificate": getattr(error, "certificate", None)}
    return {name: value for name, value in values.items() if isinstance(value, str)}


def _framework_detail(error: HTTPException) -> str:
    if error.status_code == 404:  # noqa: PLR2004 - the status itself
        return "no such path; /openapi.json lists them"
    return "" if error.status_code >= 500 else str(error.detail)  # noqa: PLR2004 - a class of statuses


def _invalid(error: RequestValidationError) -> Problem:
    errors = []
    for item in error.errors():
        if item["type"] == "json_invalid":
            return Problem("malformed", f"not JSON at byte {item['loc'][-1]}")
        where, *path = item["loc"]
        # A key of an object the caller made up may be personal data; the names of our own fields are not.
        pointer = "".join(f"/{_escape(part)}" for part in path)
        # RFC 6901 throughout; what is no member of the body stands below the part of the request it is in.
        errors.append({"pointer": pointer if where == "body" else f"/{where}{pointer}", "detail": _sentence(item)})
    return Problem("invalid", f"{len(errors)} field(s) are not valid", errors=errors)


def _escape(part: object) -> str:
    text = str(part).replace("~", "~0").replace("/", "~1")
    return text if len(text) <= 64 else f"{text[:16]}…"  # noqa: PLR2004 - our own names are shorter


def _sentence(item: Mapping[str, Any]) -> str:
    if item["type"] == "extra_forbidden":
        return "unknown field"
    if item["type"] == "missing":
        return "required"
    # Pydantic's own messages state the rule; a `value_error` is a sentence of ours. Neither repeats the value, except
    # these types, whose text quotes what was sent.
    if item["type"].startswith(("datetime", "date_", "time_", "uuid", "url")):
        return f"not a valid value: {item['type'].replace('_', ' ')}"
    return str(item["msg"]).removeprefix("Value error, ")


def answer_of(problem: Problem, *, instance: str | None = None) -> Answer:
    """Returns status, JSON bytes and headers of a problem; `instance` is the request's id."""
    kind = PROBLEMS[problem.name]
    members: dict[str, Any] = {
        "type": f"/problems/{problem.name}",
        "title": kind.title,
        "status": kind.status,
        "detail": problem.detail or kind.advice,
        **problem.extra,
    }
    if problem.errors or kind.status == 422:  # noqa: PLR2004 - API §0: what is invalid says where
        whole = {"pointer": _USUAL_PLACES.get(problem.name, ""), "detail": members["detail"]}
        members["errors"] = problem.errors or [whole]
    if instance:
        members["instance"] = f"urn:request:{instance}"
    headers = dict(_TOKEN_ADVICE) if kind.status == 401 else {}  # noqa: PLR2004 - the status itself
    seconds = problem.retry_after_s if problem.retry_after_s is not None else kind.retry_after_s
    if seconds is not None:
        headers["Retry-After"] = str(seconds)
    return Answer(status=kind.status, body=msgspec.json.encode(members), headers=headers)


def response_of(error: BaseException, *, instance: str | None = None) -> Response:
    """Returns the HTTP answer to an error."""
    answer = answer_of(problem_of(error), instance=instance)
    return Response(answer.body, answer.status, headers=answer.headers, media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Makes the framework's own refusals problems too. Ours are answered in `api.requests` and, last, in telemetry."""

    async def handle(request: Request, error: Exception) -> Response:
        return response_of(error, instance=request.scope.get("request_id"))

    app.add_exception_handler(RequestValidationError, handle)
    app.add_exception_handler(HTTPException, handle)
    app.add_exception_handler(Problem, handle)
