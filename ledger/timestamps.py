"""RFC 3161 time stamps over checkpoints: asks an authority, and believes its token only by the pinned certificate.

Guarantees: what is accepted is a token over exactly these bytes, with our nonce, by the pinned authority; what else an
answer may be is told in `ledger.tokens`. Whoever has the token and the pinned certificate checks it with
`openssl ts -verify` as well.
It says that a head existed at that time. An authority remembers nothing, so it never says that there is no other head:
only a witness does.

Source: RFC 3161 §2.4.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from urllib.parse import urlsplit

from ledger.der import OCTETS, OID, SEQUENCE, der, integer
from ledger.errors import AnchorUnavailable, BadSignature, MalformedAnchor
from ledger.tokens import SHA256_OID, check_answer
from ledger.witness import exchange

_BOOLEAN_TRUE = b"\x01\x01\xff"
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampAddress:
    """Where an authority listens, and the SHA-256 of the certificate that its tokens must lead to."""

    secure: bool
    host: str
    port: int
    path: str
    fingerprint: bytes

    @property
    def shown(self) -> str:
        """The address, as settings write it, without the fingerprint."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tsa+http{'s' if self.secure else ''}://{host}:{self.port}{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamped:
    """An answer whose token was believed, and the time in it."""

    answer: bytes
    at: datetime


def parse_timestamp(text: str) -> TimestampAddress:
    """Return the authority in `tsa+http[s]://host[:port][/path]#SHA256`. Raises: MalformedAnchor."""
    address, _, pinned = text.partition("#")
    fingerprint = pinned.replace(":", "").lower()
    try:
        parts = urlsplit(address.removeprefix("tsa+"))
        port = parts.port
    except ValueError as error:
        raise MalformedAnchor("the address of the time stamp authority is not a URL") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise MalformedAnchor("expected tsa+http://host:port/path#SHA256, without user and query")
    if _FINGERPRINT.fullmatch(fingerprint) is None:
        raise MalformedAnchor("after # stands the SHA-256 fingerprint of the authority's certificate, in hexadecimal")
    secure = parts.scheme == "https"
    return TimestampAddress(
        secure=secure,
        host=parts.hostname,
        port=port or (443 if secure else 80),
        path=parts.path or "/",
        fingerprint=bytes.fromhex(fingerprint),
    )


def stamp(authority: TimestampAddress, data: bytes) -> Stamped:
    """Return a believed token over `data`. Raises: AnchorUnavailable."""
    nonce = secrets.randbits(63)
    status, answer = exchange(authority, authority.path, query(data, nonce), "application/timestamp-query")
    if status != 200:  # noqa: PLR2004 (the status itself)
        raise AnchorUnavailable(f"the time stamp authority answered status {status}")
    try:
        at = check_answer(answer, data, authority.fingerprint, nonce=nonce)
    except BadSignature as error:
        raise AnchorUnavailable(f"the answer is no time stamp by the pinned certificate ({error.reason})") from error
    return Stamped(answer=answer, at=at)


def query(data: bytes, nonce: int) -> bytes:
    """Return a request for a time stamp over `data`, with the certificates. Source: RFC 3161 §2.4.1."""
    algorithm = der(SEQUENCE, der(OID, SHA256_OID) + b"\x05\x00")
    imprint = der(SEQUENCE, algorithm + der(OCTETS, sha256(data).digest()))
    return der(SEQUENCE, integer(1) + imprint + integer(nonce) + _BOOLEAN_TRUE)
