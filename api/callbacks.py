"""Asks the owner of a derived copy to make it anew: one signed call, to an address that the operator allows.

Guarantees: the host is on the operator's list, is resolved once, and the connection goes to that address and no other;
a name that leads to this machine or to a link-local address is refused unless it says so itself. No redirect is
followed, no proxy asked, every call is bounded as a whole, however slowly it is answered. The body holds ids only and
is signed:

    Muniment-Signature: t=<unix seconds>,v1=<hexadecimal HMAC-SHA-256 of "<t>." and the body, under the class's secret>

Answers: 200 with `{"artifact": "art_…"}`, or 202 while there is none yet; anything else is a failure that is asked
again. What the answer is worth is decided elsewhere (`erasure.regenerate`).
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ipaddress
import json
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from urllib.parse import urlsplit

from api.secrets import SecretRefused, Secrets
from erasure.errors import CallbackFailed
from erasure.parts import Call
from registry.errors import TargetNotAllowed
from registry.targets import Targets

SECONDS = 10.0
"""For one read of the answer; twice that for the whole call."""
MAX_ANSWER = 65_536
_ID_LENGTH = 256
_THIS_MACHINE = ("localhost",)


class Callbacks:
    """Makes the calls of every tenant. Implements `erasure.parts.Parts.call`."""

    def __init__(
        self,
        *,
        secrets: Secrets,
        targets: Targets,
        tenant_of: Callable[[int], str],
        now: Callable[[], datetime],
        seconds: float = SECONDS,
    ) -> None:
        self._secrets = secrets
        self._targets = targets
        self._tenant_of = tenant_of
        self._now = now
        self._seconds = seconds

    def __call__(self, tenant_id: int, call: Call) -> str | None:
        """Returns the public id of the new artifact, None where there is none yet. Raises CallbackFailed."""
        try:
            # The list and the secret may have changed since the class was registered.
            self._targets.check_url("http", call.url)
            secret = self._secrets.resolve(self._tenant_of(tenant_id), call.secret)
        except (TargetNotAllowed, SecretRefused) as error:
            raise CallbackFailed(type(error).__name__) from error
        try:
            status, body = self._post(call, signature(secret, call.body, int(self._now().timestamp())))
        except (OSError, http.client.HTTPException) as error:
            raise CallbackFailed(type(error).__name__) from error
        return _read(status, body)

    def _post(self, call: Call, signed: str) -> tuple[int, bytes]:
        parts = urlsplit(call.url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        connection = _Pinned(host, port, address_of(host, port), secure=parts.scheme == "https", seconds=self._seconds)
        # The time-out of a socket is for one read, and an answer may come byte by byte.
        watch = threading.Timer(2 * self._seconds, connection.cut)
        watch.daemon = True
        watch.start()
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            headers = {"Content-Type": "application/json", "Muniment-Signature": signed, "Connection": "close"}
            connection.request("POST", path, body=call.body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(MAX_ANSWER + 1)
        finally:
            watch.cancel()
            connection.end()


class _Pinned(http.client.HTTPConnection):
    """A connection to one address, which still names the host in the request and checks its certificate."""

    def __init__(self, host: str, port: int, address: str, *, secure: bool, seconds: float) -> None:
        super().__init__(host, port, timeout=seconds)
        self._address = address
        self._secure = secure
        self._copy: socket.socket | None = None
        if secure:
            self.default_port = 443

    def connect(self) -> None:
        """Connects to the address that was resolved, whatever the name leads to by now."""
        self.sock = socket.create_connection((self._address, self.port), self.timeout)
        self._copy = self.sock.dup()
        if self._secure:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)

    def cut(self) -> None:
        """Breaks the connection off, from another thread: whoever reads from it is told that it ended."""
        if self._copy is not None:
            with suppress(OSError):
                self._copy.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Closes everything."""
        self.close()
        if self._copy is not None:
            self._copy.close()


def address_of(host: str, port: int) -> str:
    """Returns the one address a call to the host goes to. Raises CallbackFailed, OSError."""
    address = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    found = ipaddress.ip_address(address.partition("%")[0])
    if found.is_link_local or found.is_multicast or found.is_unspecified:
        raise CallbackFailed("the host leads to an address that no service has")
    if found.is_loopback and host not in (*_THIS_MACHINE, address):
        raise CallbackFailed("the host leads to this machine")
    return address


def signature(secret: str, body: bytes, at: int) -> str:
    """Returns the header that proves who calls; `at` in seconds since 1970, so that an old call can be refused."""
    mac = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256)
    return f"t={at},v1={mac.hexdigest()}"


def _read(status: int, body: bytes) -> str | None:
    if status in (http.client.ACCEPTED, http.client.NO_CONTENT):
        return None
    if status != http.client.OK:
        raise CallbackFailed(f"answered {status}")
    if len(body) > MAX_ANSWER:
        raise CallbackFailed("the answer is too long")
    try:
        artifact = json.loads(body)["artifact"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CallbackFailed("the answer names no artifact") from None
    if not isinstance(artifact, str) or not 0 < len(artifact) <= _ID_LENGTH:
        raise CallbackFailed("the answer names no artifact")
    return artifact
