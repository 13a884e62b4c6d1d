"""Which certificates lead to a pinned one: only through issuers that were allowed to issue them, and at that time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ledger.issuers import leads_to, may_stamp

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
KEYS = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("root", "middle", "leaf", "other")}
AUTHORITY = x509.BasicConstraints(ca=True, path_length=None)
STAMPS = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING])
_USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


def usage(**on: bool) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: on.get(name, False) for name in _USAGES})


def issued(
    name: str, by: str, *extensions: tuple[Any, bool], start: datetime = NOW, days: int = 30
) -> x509.Certificate:
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, by)]))
        .public_key(KEYS[name].public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - timedelta(days=1))
        .not_valid_after(start + timedelta(days=days))
    )
    for extension, critical in extensions:
        made = made.add_extension(extension, critical=critical)
    return made.sign(KEYS[by], hashes.SHA256())


ROOT = issued("root", "root", (AUTHORITY, True))
LEAF = issued("leaf", "middle", (STAMPS, True))


def leads(middle: x509.Certificate, *more: x509.Certificate, root: x509.Certificate = ROOT) -> bool:
    return leads_to(LEAF, [*more, middle, root], root.fingerprint(hashes.SHA256()), NOW + timedelta(hours=1))


def test_a_leaf_leads_to_itself_and_to_every_issuer_that_may_issue_it() -> None:
    middle = issued("middle", "root", (AUTHORITY, True), (usage(key_cert_sign=True), True))
    for pinned in (LEAF, middle, ROOT):
        assert leads_to(LEAF, [middle, ROOT], pinned.fingerprint(hashes.SHA256()), NOW)
    assert not leads_to(LEAF, [middle], ROOT.fingerprint(hashes.SHA256()), NOW)
    assert not leads_to(LEAF, [middle, ROOT], bytes(32), NOW)


@pytest.mark.parametrize(
    "middle",
    [
        pytest.param(issued("middle", "root"), id="no basic constraints"),
        pytest.param(issued("middle", "root", (x509.BasicConstraints(ca=False, path_length=None), True)), id="no ca"),
        pytest.param(
            issued("middle", "root", (AUTHORITY, True), (usage(digital_signature=True), True)), id="no key_cert_sign"
        ),
        pytest.param(issued("middle", "root", (AUTHORITY, True), start=NOW - timedelta(days=99)), id="over"),
        pytest.param(issued("middle", "root", (AUTHORITY, True), start=NOW + timedelta(days=9)), id="not yet"),
        pytest.param(
            issued(
                "middle", "root", (AUTHORITY, True),
                (x509.NameConstraints(permitted_subtrees=[x509.DNSName("a")], excluded_subtrees=None), True),
            ),
            id="a critical extension that is not judged",
        ),
    ],
)  # fmt: skip
def test_what_is_no_issuer_at_that_time_leads_nowhere(middle: x509.Certificate) -> None:
    assert not leads(middle)
    # The same key with a certificate that may issue: found whatever stands before it in the token.
    assert leads(middle, issued("middle", "root", (AUTHORITY, True)))
    assert leads(issued("middle", "root", (AUTHORITY, True)), middle)


def test_an_issuer_has_no_more_issuers_below_it_than_it_allows() -> None:
    middle = issued("middle", "root", (x509.BasicConstraints(ca=True, path_length=0), True))
    for length, allowed in ((0, False), (1, True)):
        root = issued("root", "root", (x509.BasicConstraints(ca=True, path_length=length), True))
        assert leads(middle, root=root) is allowed


def test_certificates_that_issue_each_other_end() -> None:
    first = issued("middle", "other", (AUTHORITY, True))
    second = issued("other", "middle", (AUTHORITY, True))
    assert not leads_to(LEAF, [first, second] * 8, bytes(32), NOW)


def test_a_certificate_stamps_only_for_that_purpose_and_with_a_key_that_signs() -> None:
    assert may_stamp(LEAF)
    assert may_stamp(issued("leaf", "root", (STAMPS, True), (usage(content_commitment=True), True)))
    assert not may_stamp(issued("leaf", "root", (STAMPS, True), (usage(key_agreement=True), True)))
    assert not may_stamp(issued("leaf", "root", (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), True)))
    with pytest.raises(x509.ExtensionNotFound):
        may_stamp(issued("leaf", "root"))
