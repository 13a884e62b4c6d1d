"""Whether a certificate leads to a pinned one: by issuers that were allowed to issue it, at the time in question.

Guarantees: pure. An issuer counts only as a certification authority, with a key that may sign certificates, valid at
that time, and with no more issuers below it than it allows. A certificate with a critical extension that this program
does not judge leads nowhere. The pinned certificate itself is trusted for what it is, and held to the same rules.
Revocation is not looked up, and names are not constrained (a constraint that is critical is refused).

Source: RFC 5280 §4.2.1.3, §4.2.1.9 and §6.1, RFC 3161 §2.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID

MAX_ISSUERS = 4
"""How many issuers may stand above the certificate that signed."""
MALFORMED = (
    ValueError,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.UnsupportedGeneralNameType,
    CryptographyDeprecationWarning,
)
"""What reading a certificate may raise that is none, or none we read; the last one where warnings are errors."""
_JUDGED = frozenset({
    ExtensionOID.BASIC_CONSTRAINTS, ExtensionOID.KEY_USAGE, ExtensionOID.EXTENDED_KEY_USAGE,
    ExtensionOID.CERTIFICATE_POLICIES,
})  # fmt: skip


def may_stamp(leaf: x509.Certificate) -> bool:
    """Whether a certificate is one for time stamps, and its key one that may sign them. Raises: one of `MALFORMED`."""
    usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    if ExtendedKeyUsageOID.TIME_STAMPING not in usage.value or not _is_judged(leaf):
        return False
    keys = _key_usage(leaf)
    return keys is None or keys.digital_signature or keys.content_commitment


def leads_to(leaf: x509.Certificate, others: Sequence[x509.Certificate], fingerprint: bytes, at: datetime) -> bool:
    """Whether the leaf, or an issuer of it among the others, is the pinned certificate. `at`: aware, the time stamped.

    Every way is tried, step by step, so that a second certificate of an issuer's key cannot hide the one that counts.
    """
    # The certificates reached so far, each with how many issuers stand below it.
    reached: list[tuple[x509.Certificate, int]] = [(leaf, 0)]
    for _ in range(MAX_ISSUERS + 1):
        if any(one.fingerprint(hashes.SHA256()) == fingerprint for one, _ in reached):
            return True
        above = [
            (issuer, below + (issuer.issuer != issuer.subject))
            for issuer in others
            for below in [min((below for one, below in reached if _issued(one, issuer)), default=None)]
            if below is not None and _may_issue(issuer, below, at)
        ]
        if not above:
            return False
        reached = above
    return False


def _issued(one: x509.Certificate, issuer: x509.Certificate) -> bool:
    if one == issuer or one.issuer != issuer.subject:
        return False
    try:
        one.verify_directly_issued_by(issuer)
    except (*MALFORMED, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _may_issue(issuer: x509.Certificate, below: int, at: datetime) -> bool:
    """Whether a certificate may issue one below which `below` issuers stand."""
    try:
        basic = issuer.extensions.get_extension_for_class(x509.BasicConstraints).value
        keys = _key_usage(issuer)
        judged = _is_judged(issuer)
    except MALFORMED:
        return False
    within = basic.path_length is None or below <= basic.path_length
    valid = issuer.not_valid_before_utc <= at <= issuer.not_valid_after_utc
    return basic.ca and within and valid and judged and (keys is None or keys.key_cert_sign)


def _key_usage(one: x509.Certificate) -> x509.KeyUsage | None:
    try:
        return one.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound:
        return None


def _is_judged(one: x509.Certificate) -> bool:
    return all(not extension.critical or extension.oid in _JUDGED for extension in one.extensions)
