"""RFC 3161 time stamps over checkpoints: asks an authority, and believes its token only by the pinned certificate.

Guarantees: what is accepted is a token over exactly these bytes, with our nonce, signed by a certificate for time
stamping that was valid then and is the pinned one or was issued, through the token's own certificates, by the pinned
one. Whoever has the token and the pinned certificate checks it with `openssl ts -verify` as well.
It says that a head existed at that time. An authority remembers nothing, so it never says that there is no other head:
only a witness does. Revocation is not looked up.

Source: RFC 3161 (protocol), RFC 5652 §5 (signed data), RFC 5035 (the certificate named in the token).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha1, sha256, sha384, sha512
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from ledger.errors import AnchorUnavailable, BadSignature, MalformedAnchor
from ledger.witness import exchange

_INTEGER, _OCTETS, _OID, _SEQUENCE, _SET, _TIME = 0x02, 0x04, 0x06, 0x30, 0x31, 0x18
_CONTEXT_0, _BOOLEAN_TRUE = 0xA0, b"\x01\x01\xff"
_SIGNED_DATA = bytes.fromhex("2a864886f70d010702")
_TST_INFO = bytes.fromhex("2a864886f70d0109100104")
_CONTENT_TYPE = bytes.fromhex("2a864886f70d010903")
_MESSAGE_DIGEST = bytes.fromhex("2a864886f70d010904")
_CERTIFICATE_V1, _CERTIFICATE_V2 = (
    bytes.fromhex("2a864886f70d010910020c"), bytes.fromhex("2a864886f70d010910022f")
)  # fmt: skip
_SHA256 = bytes.fromhex("608648016503040201")
_HASHES: dict[bytes, tuple[type[hashes.HashAlgorithm], str]] = {
    _SHA256: (hashes.SHA256, "sha256"),
    bytes.fromhex("608648016503040202"): (hashes.SHA384, "sha384"),
    bytes.fromhex("608648016503040203"): (hashes.SHA512, "sha512"),
}
_DIGESTS = {"sha256": sha256, "sha384": sha384, "sha512": sha512}
_GRANTED = (0, 1)
_MAX_ISSUERS = 4
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_GENERALIZED = re.compile(rb"([0-9]{14})(\.[0-9]+)?Z")


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
    algorithm = _der(_SEQUENCE, _der(_OID, _SHA256) + b"\x05\x00")
    imprint = _der(_SEQUENCE, algorithm + _der(_OCTETS, sha256(data).digest()))
    return _der(_SEQUENCE, _integer(1) + imprint + _integer(nonce) + _BOOLEAN_TRUE)


def check_answer(answer: bytes, data: bytes, fingerprint: bytes, *, nonce: int | None = None) -> datetime:
    """Return the time of a token over `data` that leads to the pinned certificate. Raises: BadSignature."""
    try:
        return _check(answer, data, fingerprint, nonce)
    except (IndexError, StopIteration, ValueError, OverflowError, x509.ExtensionNotFound) as error:
        raise BadSignature("the answer is not a time stamp token") from error


def _check(answer: bytes, data: bytes, fingerprint: bytes, nonce: int | None) -> datetime:
    status, token = _two(_inside(answer, _SEQUENCE))
    if int.from_bytes(next(_items(_inside(status, _SEQUENCE)))[1], "big") not in _GRANTED:
        raise BadSignature("the authority refused")
    kind, wrapped = _two(_inside(token, _SEQUENCE))
    _require(_inside(kind, _OID) == _SIGNED_DATA, "not signed data")
    fields = list(_items(_inside(_inside(wrapped, _CONTEXT_0), _SEQUENCE)))
    content = _inside(fields[2][2], _SEQUENCE)
    content_kind, content_wrapped = _two(content)
    _require(_inside(content_kind, _OID) == _TST_INFO, "not the content of a time stamp")
    info = _inside(_inside(content_wrapped, _CONTEXT_0), _OCTETS)
    certificates = [
        x509.load_der_x509_certificate(raw)
        for tag, inner, _ in fields[3:-1]
        if tag == _CONTEXT_0
        for _, _, raw in _items(inner)
    ]
    at = _read_info(info, data, nonce)
    (signer,) = [raw for _, _, raw in _items(_inside(fields[-1][2], _SET))]
    leaf = _check_signer(signer, info, certificates)
    usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    _require(ExtendedKeyUsageOID.TIME_STAMPING in usage, "the certificate is not for time stamping")
    _require(leaf.not_valid_before_utc <= at <= leaf.not_valid_after_utc, "the certificate was not valid then")
    _require(_leads_to(leaf, certificates, fingerprint), "the certificate is not the pinned one, nor issued by it")
    return at


def _read_info(info: bytes, data: bytes, nonce: int | None) -> datetime:
    """Return the time in a TSTInfo that is about this data. Source: RFC 3161 §2.4.2."""
    fields = list(_items(_inside(info, _SEQUENCE)))
    algorithm, imprint = _two(fields[2][1])
    _require(next(_items(_inside(algorithm, _SEQUENCE)))[1] == _SHA256, "the imprint is not SHA-256")
    _require(_inside(imprint, _OCTETS) == sha256(data).digest(), "the token is about other bytes")
    tag, text, _ = fields[4]
    match = _GENERALIZED.fullmatch(text)
    _require(tag == _TIME and match is not None, "the time is not a time")
    assert match is not None  # noqa: S101 (for the type checker; the line before raises)
    at = datetime.strptime(match[1].decode(), "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    if nonce is not None:
        given = [int.from_bytes(value, "big") for tag, value, _ in fields[5:] if tag == _INTEGER]
        _require(given == [nonce], "the nonce is another one")
    return at


def _check_signer(signer: bytes, info: bytes, certificates: Sequence[x509.Certificate]) -> x509.Certificate:
    """Return the certificate that signed, when its signature is good. Source: RFC 5652 §5.3 and §5.4."""
    fields = list(_items(_inside(signer, _SEQUENCE)))
    issuer, serial = _two(_inside(fields[1][2], _SEQUENCE))
    number = int.from_bytes(_inside(serial, _INTEGER), "big", signed=True)
    named = [one for one in certificates if one.serial_number == number and one.issuer.public_bytes() == issuer]
    _require(len(named) == 1, "the token does not carry the certificate that signed it")
    algorithm = _HASHES.get(next(_items(_inside(fields[2][2], _SEQUENCE)))[1])
    _require(algorithm is not None and fields[3][0] == _CONTEXT_0, "the digest or the form is not supported")
    assert algorithm is not None  # noqa: S101 (for the type checker; the line before raises)
    attributes = _attributes(fields[3][1])
    _require(attributes.get(_CONTENT_TYPE) == _der(_OID, _TST_INFO), "the signature is about another content")
    digest = _DIGESTS[algorithm[1]](info).digest()
    _require(attributes.get(_MESSAGE_DIGEST) == _der(_OCTETS, digest), "the content was changed")
    der = named[0].public_bytes(Encoding.DER)
    told = attributes.get(_CERTIFICATE_V2) or attributes.get(_CERTIFICATE_V1) or b""
    hashed = [make(der).digest() for make in (sha256, sha384, sha512)] + [sha1(der, usedforsecurity=False).digest()]
    _require(any(one in told for one in hashed), "the token names another certificate than it carries")
    # The attributes are signed as a SET, though they stand as [0]. Source: RFC 5652 §5.4.
    _verify(named[0], fields[5][1], bytes([_SET]) + fields[3][2][1:], algorithm[0]())
    return named[0]


def _verify(certificate: x509.Certificate, signature: bytes, message: bytes, algorithm: hashes.HashAlgorithm) -> None:
    key = certificate.public_key()
    try:
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, message, padding.PKCS1v15(), algorithm)
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, message, ec.ECDSA(algorithm))
        elif isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, message)
        else:
            raise BadSignature("the kind of its key is not supported")
    except InvalidSignature as error:
        raise BadSignature("the signature is wrong") from error


def _leads_to(leaf: x509.Certificate, others: Sequence[x509.Certificate], fingerprint: bytes) -> bool:
    """Whether the leaf, or an issuer of it among the others, is the pinned certificate."""
    here = leaf
    for _ in range(_MAX_ISSUERS):
        if here.fingerprint(hashes.SHA256()) == fingerprint:
            return True
        for candidate in others:
            try:
                here.verify_directly_issued_by(candidate)
            except (ValueError, TypeError, InvalidSignature):
                continue
            if candidate != here:
                here = candidate
                break
        else:
            return False
    return False


def _attributes(data: bytes) -> dict[bytes, bytes]:
    """Return the one value of each attribute by its name."""
    found: dict[bytes, bytes] = {}
    for _, attribute, _ in _items(data):
        name, values = _two(attribute)
        found[_inside(name, _OID)] = _inside(values, _SET)
    return found


def _require(holds: bool, reason: str) -> None:  # noqa: FBT001 (it reads as a sentence)
    if not holds:
        raise BadSignature(reason)


# ── DER: definite lengths only. Source: X.690 §8 and §10 ──

_LONG = 0x80


def _items(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield tag, content and whole bytes of each value in a row. Raises: ValueError, IndexError."""
    at = 0
    while at < len(data):
        tag, size, start = data[at], data[at + 1], at + 2
        if size == _LONG:
            message = "a length is not given"
            raise ValueError(message)
        if size & _LONG:
            count = size & 0x7F
            size, start = int.from_bytes(data[start : start + count], "big"), start + count
        if start + size > len(data):
            message = "a value is longer than what holds it"
            raise ValueError(message)
        yield tag, data[start : start + size], data[at : start + size]
        at = start + size


def _inside(data: bytes, tag: int) -> bytes:
    """Return the content of exactly one value of this tag. Raises: ValueError."""
    ((found, content, _),) = _items(data)
    if found != tag:
        message = f"expected a value of tag {tag:#x}, got {found:#x}"
        raise ValueError(message)
    return content


def _two(data: bytes) -> tuple[bytes, bytes]:
    """Return the first two values in a row, whole. Raises: ValueError when there are fewer."""
    found = [whole for _, _, whole in _items(data)]
    return found[0], found[1]


def _der(tag: int, content: bytes) -> bytes:
    if len(content) < _LONG:
        return bytes([tag, len(content)]) + content
    size = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes([tag, _LONG | len(size)]) + size + content


def _integer(value: int) -> bytes:
    return _der(_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big"))
