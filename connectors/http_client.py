"""Requests to one vendor's API: pinned to the address that its name had first, bounded in bytes, time and attempts.

Guarantees: no redirect is followed, no cookie kept, no proxy of the environment used; the certificate is that of the
name. A name that leads to this machine or to a link-local address (where clouds answer with credentials) is refused
unless the configuration says that address itself. A secret goes out over TLS, or to a local or private address. Every
request ends by its deadline, also against a server that sends one byte a second. `repr` and errors hold no secret, path
or answer. Not for several threads at once.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import msgspec
from typing_extensions import override

from connectors.errors import BadConfig, StoreUnreachable, WrongCredentials

if TYPE_CHECKING:
    from connectors.base import Deadline

KIND = "http"
_LARGEST = 8 << 20
_CHUNK = 64 << 10
_CONNECT_SECONDS = 10.0
_ATTEMPTS = 4
_AGAIN = frozenset({409, 425, 429, 500, 502, 503, 504})
"""Worth another attempt: every request of a recipe may be sent twice."""
_WAIT_SECONDS = 0.2
_LONGEST_WAIT = 30.0
_REFUSED = frozenset({401, 403})
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the vendor said; header names are in lower case."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def is_success(self) -> bool:
        """Whether the status is one of success, which says nothing about what was done."""
        return 200 <= self.status < 300  # noqa: PLR2004 -- RFC 9110 §15.3

    def json(self) -> Any:
        """Return the body as JSON, None where it is none."""
        try:
            return msgspec.json.decode(self.body) if self.body else None
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return None


class _Pinned(http.client.HTTPConnection):
    """A connection to one address, whatever the name leads to by now."""

    def __init__(self, host: str, port: int, address: str, context: ssl.SSLContext | None) -> None:
        super().__init__(host, port, timeout=_CONNECT_SECONDS)
        self._address = address
        self._context = context

    @override
    def connect(self) -> None:
        made = socket.create_connection((self._address, self.port), self.timeout)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = made if self._context is None else self._context.wrap_socket(made, server_hostname=self.host)


class HttpClient:
    """One vendor's API under one set of headers."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        """Take the base address. Raises: BadConfig."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise BadConfig("url cannot be read") from None
        if parts.scheme not in _PORTS or not parts.hostname or parts.query or parts.fragment or parts.username:
            raise BadConfig("url is an http or https address without query and user")
        self._host = parts.hostname
        self._port = port or _PORTS[parts.scheme]
        self._prefix = parts.path.rstrip("/")
        self._context = ssl.create_default_context() if parts.scheme == "https" else None
        self._headers = {"Accept": "application/json", "User-Agent": "muniment", **headers}
        self._address: str | None = None
        self._connection: _Pinned | None = None

    def __repr__(self) -> str:
        """Return nothing that a log should not hold."""
        return "HttpClient()"

    def send(
        self,
        method: str,
        path: str,
        limit: Deadline,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        once: bool = False,
    ) -> Answer:
        """Return the answer to one request, tried again where the vendor asks for patience, unless only `once`.

        Raises: Timeout, StoreUnreachable (also for redirects and oversized answers), WrongCredentials.
        """
        target = self._prefix + path + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else msgspec.json.encode(body)
        for attempt in range(1, 1 if once else _ATTEMPTS):
            try:
                answer = self._once(method, target, data, limit)
            except (OSError, http.client.HTTPException):
                self.close()
                limit.check()
                self._wait(_WAIT_SECONDS * attempt, limit)
                continue
            if answer.status not in _AGAIN:
                return self._judged(answer)
            self._wait(max(_wanted_wait(answer), _WAIT_SECONDS * attempt), limit)
        try:
            return self._judged(self._once(method, target, data, limit))
        except (OSError, http.client.HTTPException):
            self.close()
            limit.check()
            raise StoreUnreachable(KIND, "the vendor does not answer") from None

    @staticmethod
    def _judged(answer: Answer) -> Answer:
        if answer.status in _REFUSED:
            raise WrongCredentials(KIND, "the vendor refused the credentials or what they may do")
        if 300 <= answer.status < 400:  # noqa: PLR2004 -- RFC 9110 §15.4
            raise StoreUnreachable(KIND, "the vendor answers with a redirect, which is not followed")
        return answer

    @staticmethod
    def _wait(seconds: float, limit: Deadline) -> None:
        if seconds >= limit.left():
            raise limit.error()
        time.sleep(min(seconds, _LONGEST_WAIT))

    def _once(self, method: str, target: str, data: bytes | None, limit: Deadline) -> Answer:
        connection = self._open(limit)
        headers = {**self._headers, **({"Content-Type": "application/json"} if data is not None else {})}
        # A server that drips bytes would reset every time-out of the socket; this ends the connection under it.
        watch = threading.Timer(limit.left(), _shut, (connection,))
        watch.daemon = True
        watch.start()
        try:
            connection.timeout = min(_CONNECT_SECONDS, max(0.01, limit.left()))
            if connection.sock is not None:
                connection.sock.settimeout(max(0.01, limit.left()))
            connection.request(method, target, data, headers)
            if connection.sock is not None:
                connection.sock.settimeout(max(0.01, limit.left()))
            response = connection.getresponse()
            body = self._read(response)
        finally:
            watch.cancel()
        if response.will_close:
            self.close()
        return Answer(
            status=response.status,
            headers={name.lower(): value for name, value in response.getheaders()},
            body=body,
        )

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        pieces = bytearray()
        while piece := response.read(_CHUNK):
            pieces += piece
            if len(pieces) > _LARGEST:
                self.close()
                raise StoreUnreachable(KIND, f"an answer is larger than {_LARGEST} bytes")
        return bytes(pieces)

    def _open(self, limit: Deadline) -> _Pinned:
        if self._connection is None:
            if self._address is None:
                self._address = self._resolved()
            if limit.is_over():
                raise limit.error()
            self._connection = _Pinned(self._host, self._port, self._address, self._context)
        return self._connection

    def _resolved(self) -> str:
        """Return the address of the name, once for the life of this client. Raises: StoreUnreachable, BadConfig."""
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError:
            raise StoreUnreachable(KIND, "the vendor's name leads nowhere") from None
        address = ipaddress.ip_address(str(found[0][4][0]).partition("%")[0])
        said = self._host.lower() in {str(address), "localhost"}
        if not said and (
            address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast
        ):
            raise BadConfig("the vendor's name leads to this machine or to a link-local address")
        if self._context is None and address.is_global:
            raise BadConfig("url is http: a secret goes to a public address over https only")
        return str(address)

    def close(self) -> None:
        """Give up the connection; the next request opens another one to the same address."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _shut(connection: _Pinned) -> None:
    with contextlib.suppress(OSError, AttributeError):
        connection.sock.shutdown(socket.SHUT_RDWR)


def _wanted_wait(answer: Answer) -> float:
    """Return the seconds that a Retry-After of whole seconds asks for. Source: RFC 9110 §10.2.3."""
    text = answer.headers.get("retry-after", "").strip()
    return float(text[:6]) if text.isascii() and text.isdigit() else 0.0
