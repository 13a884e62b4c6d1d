"""One HTTP connection to the server, by the standard library.

Follows no redirect and keeps no cookie. The token goes into one header and nowhere else. The connection is reopened
now and then, because behind several server processes one that is kept for ever sticks to one of them. Not for
several threads at once.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from muniment.errors import BadAddress, BadToken, TransportError

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping
    from http.client import HTTPConnection, HTTPResponse
    from urllib.parse import SplitResult

_MAX_ANSWER_BYTES = 64 << 20
_VISIBLE = re.compile(r"[!-~]+")
"""Signs that can stand in a line of a request: printable ASCII without a space. Source: RFC 9112 §3, RFC 6750 §2.1."""
_REOPEN_REQUESTS = 100
_REOPEN_SECONDS = 60.0
_IDLE_SECONDS = 2.0
"""Servers end connections that are silent for some seconds (uvicorn after 5); a request into one of those is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the server said; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def retry_after(self) -> float | None:
        """Seconds the server asks to wait, from either form of Retry-After. Source: RFC 9110 §10.2.3."""
        return retry_after_seconds(self.headers.get("retry-after"), time.time())


def retry_after_seconds(value: str | None, now: float) -> float | None:
    """Return the seconds meant by a Retry-After header, or None if there is none that can be read."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    from email.utils import parsedate_to_datetime

    with contextlib.suppress(ValueError, TypeError, IndexError):
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    return None


def _parts_of(url: str) -> tuple[SplitResult, int | None]:
    """Return an address in its parts, and its port. Raises: BadAddress."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise BadAddress from None
    if parts.scheme == "unix" and parts.path and not parts.netloc:
        return parts, None
    # Line breaks are looked for in what was given: the library takes them out of the parts.
    fits = _VISIBLE.fullmatch(url) and parts.scheme in {"http", "https"} and parts.hostname and port != 0
    if not fits or parts.query or parts.fragment:
        raise BadAddress
    return parts, port


class Transport:
    """Sends requests to one server under one token."""

    def __init__(self, url: str, token: str | None, *, timeout_seconds: float = 30.0) -> None:
        """Take the server's base address: `http://127.0.0.1:8080`, or `unix:/path` for a socket of this machine.

        Raises: BadAddress and BadToken, both also ValueError, for what can be no address and no token.
        """
        parts, port = _parts_of(url)
        if token is not None and not _VISIBLE.fullmatch(token):
            raise BadToken
        self._socket = parts.path if parts.scheme == "unix" else None
        self._secure = parts.scheme == "https"
        self._host = parts.hostname or "localhost"
        self._port = port
        self._prefix = "" if self._socket else parts.path.rstrip("/")
        self._token = token
        self._timeout = timeout_seconds
        self._connection: HTTPConnection | None = None
        self._requests = 0
        self._opened = 0.0
        self._used = 0.0

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request and return the answer, whatever its status.

        Raises: TransportError if none came; whether the server acted on it is unknown then.
        """
        from http.client import HTTPException

        sent = dict(headers or {})
        if self._token is not None:
            sent["Authorization"] = f"Bearer {self._token}"
        try:
            connection = self._open()
            connection.request(method, self._prefix + path, body=body, headers=sent)
            return self._read(connection.getresponse())
        except (OSError, HTTPException, ValueError) as error:
            self.close()
            raise TransportError(type(error).__name__) from error

    def _open(self) -> HTTPConnection:
        from http.client import HTTPConnection, HTTPSConnection

        now = time.monotonic()
        aged = self._requests >= _REOPEN_REQUESTS or now - self._opened > _REOPEN_SECONDS
        if aged or now - self._used > _IDLE_SECONDS:
            self.close()
        if self._connection is None:
            kind = HTTPSConnection if self._secure else HTTPConnection
            self._connection = kind(self._host, self._port, timeout=self._timeout)
            if self._socket:
                # A connection whose socket is open already does not look for a host.
                self._connection.sock = self._reach(self._socket)
            self._opened = self._used = now
            self._requests = 0
        self._requests += 1
        return self._connection

    def _reach(self, path: str) -> socket.socket:
        import socket

        reached = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        reached.settimeout(self._timeout)
        try:
            reached.connect(path)
        except OSError:
            reached.close()
            raise
        return reached

    def _read(self, response: HTTPResponse) -> Answer:
        body = response.read(_MAX_ANSWER_BYTES + 1)
        if len(body) > _MAX_ANSWER_BYTES:
            message = "answer too large"
            raise ValueError(message)
        if response.length:
            # Asked for so many bytes at most, the library takes a broken connection for the end of the answer.
            message = "answer cut short"
            raise ValueError(message)
        self._used = time.monotonic()
        headers = {name.lower(): value for name, value in response.getheaders()}
        if response.will_close:
            self.close()
        return Answer(status=response.status, headers=headers, body=body)

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
