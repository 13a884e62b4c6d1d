"""RFC 3161 time stamp tokens: whether an answer stamps exactly these bytes, and by whose certificate.

Guarantees: pure. What is accepted is a token over these bytes, signed by a certificate for time stamping that was valid
then and is the pinned one or was issued, through the token's own certificates, by the pinned one (`ledger.issuers`).
Anything else is refused by `BadSignature`, whatever it is. Revocation is not looked up. Some bytes of an answer say
nothing and are under no signature (a status text, a certificate that nobody needs): a change there is not seen here.

Source: RFC 3161 (protocol), RFC 5652 §5 (signed data), RFC 5035 (the certificate named in the token).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha1, sha256, sha384, sha512

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from ledger.der import CONTEXT_0, INTEGER, OCTETS, OID, SEQUENCE, SET, TIME, der, inside, items, two
from ledger.errors import BadSignature
from ledger.issuers import MALFORMED, leads_to, may_stamp

SHA256_OID = bytes.fromhex("608648016503040201")
"""The identifier of SHA-256, without tag and length."""
_SIGNED_DATA = bytes.fromhex("2a864886f70d010702")
_TST_INFO = bytes.fromhex("2a864886f70d0109100104")
_CONTENT_TYPE = bytes.fromhex("2a864886f70d010903")
_MESSAGE_DIGEST = bytes.fromhex("2a864886f70d010904")
_CERTIFICATE_V1, _CERTIFICATE_V2 = (
    bytes.fromhex("2a864886f70d010910020c"), bytes.fromhex("2a864886f70d010910022f")
)  # fmt: skip
_HASHES: dict[bytes, tuple[type[hashes.HashAlgorithm], str]] = {
    SHA256_OID: (hashes.SHA256, "sha256"),
    bytes.fromhex("608648016503040202"): (hashes.SHA384, "sha384"),
    bytes.fromhex("608648016503040203"): (hashes.SHA512, "sha512"),
}
_DIGESTS = {"sha256": sha256, "sha384": sha384, "sha512": sha512}
_GRANTED = (0, 1)
_MAX_CERTIFICATES = 16
"""How many certificates a token may carry: following their issuers must end soon whatever they are."""
_GENERALIZED = re.compile(rb"([0-9]{14})(\.[0-9]+)?Z")
_NO_TOKEN = (IndexError, StopIteration, OverflowError, TypeError, UnsupportedAlgorithm, *MALFORMED)


def check_answer(answer: bytes, data: bytes, fingerprint: bytes | None, *, nonce: int | None = None) -> datetime:
    """Return the time of a token over `data` that leads to the pinned certificate.

    Without a fingerprint whoever signed is believed to be an authority, which proves nothing to anybody: only that the
    bytes still fit each other. Raises: BadSignature, for whatever these bytes are instead.
    """
    try:
        return _check(answer, data, fingerprint, nonce)
    except _NO_TOKEN as error:
        raise BadSignature("the answer is not a time stamp token") from error


def _check(answer: bytes, data: bytes, fingerprint: bytes | None, nonce: int | None) -> datetime:
    status, token = two(inside(answer, SEQUENCE))
    if int.from_bytes(next(items(inside(status, SEQUENCE)))[1], "big") not in _GRANTED:
        raise BadSignature("the authority refused")
    kind, wrapped = two(inside(token, SEQUENCE))
    _require(inside(kind, OID) == _SIGNED_DATA, "not signed data")
    fields = list(items(inside(inside(wrapped, CONTEXT_0), SEQUENCE)))
    content = inside(fields[2][2], SEQUENCE)
    content_kind, content_wrapped = two(content)
    _require(inside(content_kind, OID) == _TST_INFO, "not the content of a time stamp")
    info = inside(inside(content_wrapped, CONTEXT_0), OCTETS)
    certificates = [
        x509.load_der_x509_certificate(raw)
        for tag, inner, _ in fields[3:-1]
        if tag == CONTEXT_0
        for _, _, raw in items(inner)
    ]
    _require(len(certificates) <= _MAX_CERTIFICATES, f"it carries more than {_MAX_CERTIFICATES} certificates")
    at = _read_info(info, data, nonce)
    (signer,) = [raw for _, _, raw in items(inside(fields[-1][2], SET))]
    leaf = _check_signer(signer, info, certificates)
    _require(may_stamp(leaf), "the certificate is not for time stamping")
    _require(leaf.not_valid_before_utc <= at <= leaf.not_valid_after_utc, "the certificate was not valid then")
    if fingerprint is not None:
        leads = leads_to(leaf, certificates, fingerprint, at)
        _require(leads, "the certificate is not the pinned one, nor issued by it as an issuer may")
    return at


def _read_info(info: bytes, data: bytes, nonce: int | None) -> datetime:
    """Return the time in a TSTInfo that is about this data. Source: RFC 3161 §2.4.2."""
    fields = list(items(inside(info, SEQUENCE)))
    algorithm, imprint = two(fields[2][1])
    _require(next(items(inside(algorithm, SEQUENCE)))[1] == SHA256_OID, "the imprint is not SHA-256")
    _require(inside(imprint, OCTETS) == sha256(data).digest(), "the token is about other bytes")
    tag, text, _ = fields[4]
    match = _GENERALIZED.fullmatch(text)
    _require(tag == TIME and match is not None, "the time is not a time")
    assert match is not None  # noqa: S101 (for the type checker; the line before raises)
    at = datetime.strptime(match[1].decode(), "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    if nonce is not None:
        given = [int.from_bytes(value, "big") for tag, value, _ in fields[5:] if tag == INTEGER]
        _require(given == [nonce], "the nonce is another one")
    return at


def _check_signer(signer: bytes, info: bytes, certificates: Sequence[x509.Certificate]) -> x509.Certificate:
    """Return the certificate that signed, when its signature is good. Source: RFC 5652 §5.3 and §5.4."""
    fields = list(items(inside(signer, SEQUENCE)))
    issuer, serial = two(inside(fields[1][2], SEQUENCE))
    number = int.from_bytes(inside(serial, INTEGER), "big", signed=True)
    named = [one for one in certificates if one.serial_number == number and one.issuer.public_bytes() == issuer]
    _require(len(named) == 1, "the token does not carry the certificate that signed it")
    algorithm = _HASHES.get(next(items(inside(fields[2][2], SEQUENCE)))[1])
    _require(algorithm is not None and fields[3][0] == CONTEXT_0, "the digest or the form is not supported")
    assert algorithm is not None  # noqa: S101 (for the type checker; the line before raises)
    attributes = _attributes(fields[3][1])
    _require(attributes.get(_CONTENT_TYPE) == der(OID, _TST_INFO), "the signature is about another content")
    digest = _DIGESTS[algorithm[1]](info).digest()
    _require(attributes.get(_MESSAGE_DIGEST) == der(OCTETS, digest), "the content was changed")
    signer_der = named[0].public_bytes(Encoding.DER)
    told = attributes.get(_CERTIFICATE_V2) or attributes.get(_CERTIFICATE_V1) or b""
    hashed = [make(signer_der).digest() for make in (sha256, sha384, sha512)] + [
        sha1(signer_der, usedforsecurity=False).digest()
    ]
    _require(any(one in told for one in hashed), "the token names another certificate than it carries")
    # The attributes are signed as a SET, though they stand as [0]. Source: RFC 5652 §5.4.
    _verify(named[0], fields[5][1], bytes([SET]) + fields[3][2][1:], algorithm[0]())
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


def _attributes(data: bytes) -> dict[bytes, bytes]:
    """Return the one value of each attribute by its name."""
    found: dict[bytes, bytes] = {}
    for _, attribute, _ in items(data):
        name, values = two(attribute)
        found[inside(name, OID)] = inside(values, SET)
    return found


def _require(holds: bool, reason: str) -> None:  # noqa: FBT001 (it reads as a sentence)
    if not holds:
        raise BadSignature(reason)
