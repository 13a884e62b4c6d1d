"""What a body may be: at most 16 MiB, of a known type, UTF-8.

Guarantees: nothing beyond the limit is read, and of a sender whose token nobody knows not more than `UNKNOWN_BYTES`; a
refused body reaches no route. Bodies are buffered here once, so that a route never waits for a slow sender while it
holds anything. Does not parse: `api.requests` does.
"""

from __future__ import annotations

import asyncio

from sqlalchemy.exc import OperationalError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.auth import acting_of
from api.errors import Problem, response_of
from registry.errors import NotAuthenticated

MAX_BODY_BYTES = 16 * 1024 * 1024
UNKNOWN_BYTES = 64 * 1024
"""So much is held for anybody; many senders of whole bodies could fill the memory of a process."""
SILENT_SECONDS = 60.0
_WITH_BODY = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_TYPES = ("application/json", "application/x-ndjson")


class BodyLimits:
    """ASGI middleware: reads the whole body within the limits, then calls the service."""

    def __init__(self, app: ASGIApp, max_bytes: int = MAX_BODY_BYTES, silent_seconds: float = SILENT_SECONDS) -> None:
        self._app = app
        self._max = max_bytes
        self._silent = silent_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes one request through, or answers 400, 401, 413 or 415."""
        if scope["type"] != "http" or scope["method"] not in _WITH_BODY:
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(scope, receive)
        except (Problem, NotAuthenticated, OperationalError) as error:
            await response_of(error, instance=scope.get("request_id"))(scope, receive, send)
            return
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > self._max:
            raise Problem("too-large", f"the body is {int(declared)} bytes, at most {self._max} are read")
        pieces, size, more, known = [], 0, True, False
        while more:
            message = await self._next(receive)
            if message["type"] == "http.disconnect":
                raise Problem("malformed", "the body ended early")
            piece = message.get("body", b"")
            size += len(piece)
            if size > self._max:
                raise Problem("too-large", f"the body is larger than {self._max} bytes")
            if size > UNKNOWN_BYTES and not known:
                await run_in_threadpool(acting_of, Request(scope), scope["app"].state.services)
                known = True
            pieces.append(piece)
            more = message.get("more_body", False)
        body = b"".join(pieces)
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Problem("unsupported-media-type", "send the body as it is, without Content-Encoding")
        _check(body, headers.get(b"content-type", b"").decode("latin-1"))
        return body

    async def _next(self, receive: Receive) -> Message:
        try:
            return await asyncio.wait_for(receive(), self._silent)
        except TimeoutError:
            raise Problem("malformed", f"nothing of the body came for {self._silent:.0f} seconds") from None


def _check(body: bytes, content_type: str) -> None:
    if not body:
        return
    kind, _, parameters = content_type.lower().partition(";")
    if kind.strip() not in _TYPES:
        raise Problem("unsupported-media-type", f"send one of {', '.join(_TYPES)}")
    charset = parameters.partition("charset=")[2].strip().strip('"')
    if charset and charset not in ("utf-8", "utf8"):
        raise Problem("unsupported-media-type", "send UTF-8")
    if kind.strip() == "application/x-ndjson":
        return  # judged line by line: one bad line does not refuse the others
    if not body.isascii():
        try:
            body.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Problem("malformed", f"not UTF-8 at byte {error.start}") from None
