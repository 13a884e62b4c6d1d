"""Seals one small value of a row: a place, a name, a reason. Pure: bytes in, bytes out.

Guarantees that a value opens only under its key and its own row, whole and unaltered, and that its length shows in
steps of 32 bytes only. Does not commit to its key, as `vault.envelope` does: whoever could make one ciphertext that two
keys open has both keys, and can write any value into the row (ADR 0036). Nothing in the log is sealed like this.

Layout: salt 12 | AES-256-GCM of the padded value, with no associated data and a key of its own::

    key = HKDF-Expand-SHA256(prk, "muniment/small/v2" 00 salt context)     one block, 32 bytes
    padded = value | 80 | 00 ... to a multiple of 32                      Source: ISO/IEC 7816-4

Values sealed before this form are 72 + 32n bytes long, those of this form 28 + 32n: the length tells them apart.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from vault import envelope
from vault.errors import NotDecryptable

SALT_BYTES = 12
"""A key is made for one row and one salt: two that meet would have to meet among the few times a row is sealed."""
OVERHEAD = SALT_BYTES + envelope.TAG_BYTES
STEP = 32
_LABEL = b"muniment/small/v2\x00"
_NONCE = bytes(12)  # Every value has its own key, so the nonce never repeats under one key.
_END = b"\x80"


def seal_value(prk: bytes, plaintext: bytes, *, tenant: str, label: str, name: str) -> bytes:
    """Return the ciphertext of a value.

    ``label`` says what kind of value it is, ``name`` which one (a row's random id); both are bound.
    """
    salt = os.urandom(SALT_BYTES)
    padded = plaintext + _END + bytes(-(len(plaintext) + 1) % STEP)
    return salt + AESGCM(_key(prk, salt, _bound(tenant, label, name))).encrypt(_NONCE, padded, None)


def unseal_value(prk: bytes, ciphertext: bytes, *, tenant: str, label: str, name: str) -> bytes:
    """Return what was sealed, in this form or the former one.

    Raises NotDecryptable: another key, another row, or altered bytes.
    """
    return unseal_values(prk, [(name, ciphertext)], tenant=tenant, label=label)[0]


def unseal_values(prk: bytes, values: Sequence[tuple[str, bytes]], *, tenant: str, label: str) -> list[bytes]:
    """Return what was sealed under these names, in their order; a plan opens thousands at once.

    Raises NotDecryptable: one of them is of another key or row, or was altered.
    """
    opened = []
    bounds = envelope.contexts(tenant, f"small/{label}", (name for name, _ in values), "value")
    for (name, ciphertext), bound in zip(values, bounds, strict=True):
        if (len(ciphertext) - OVERHEAD) % STEP:
            opened.append(envelope.unseal_small(prk, ciphertext, tenant=tenant, label=label, name=name))
            continue
        try:
            cipher = AESGCM(_key(prk, ciphertext[:SALT_BYTES], bound))
            padded = cipher.decrypt(_NONCE, ciphertext[SALT_BYTES:], None)
        except (InvalidTag, ValueError) as error:
            raise NotDecryptable("a small value does not open under its key and row") from error
        value, end, zeros = padded.rpartition(_END)
        if not end or len(zeros) >= STEP or any(zeros):
            raise NotDecryptable("a small value is not padded as it must be")
        opened.append(value)
    return opened


def _bound(tenant: str, label: str, name: str) -> bytes:
    return envelope.context(tenant, f"small/{label}", name, "value")


def _key(prk: bytes, salt: bytes, bound: bytes) -> bytes:
    # HKDF-Expand-SHA256 of one block is this HMAC with the counter byte 1 (RFC 5869 §2.3); a batch does thousands.
    if len(prk) != envelope.KEY_BYTES:
        raise NotDecryptable(f"a key has {envelope.KEY_BYTES} bytes, got {len(prk)}")
    return hmac.digest(prk, _LABEL + salt + bound + b"\x01", "sha256")
