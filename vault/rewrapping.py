"""Many keys from one key-encryption key to the next: what a rotation does a hundred thousand times. Pure.

Guarantees: the same bytes would open and come out if `vault.wrapping.unwrap` and `wrap` were called for each key, with
half the work: HMAC's two pads are made once a key-encryption key. Whose key it is, and whether it may turn, is decided
elsewhere.
"""

import os
from collections.abc import Sequence
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from vault.errors import NotDecryptable
from vault.mac import pads
from vault.wrapping import EPOCH_BYTES, FORMAT, LABEL, NONCE, SALT_BYTES, SEALED

_LAST = b"\x01"


def rewrap(
    old_kek32: bytes, new_kek32: bytes, bindings: Sequence[bytes], wrapped: Sequence[bytes], epoch: int
) -> list[bytes]:
    """Return keys wrapped anew at another epoch; each binding is that of the old one. Raises NotDecryptable."""
    old_inner, old_outer = _pads(old_kek32)
    new_inner, new_outer = _pads(new_kek32)
    end = epoch.to_bytes(EPOCH_BYTES, "big") + _LAST
    salts = os.urandom(SALT_BYTES * len(wrapped))
    made = []
    for number, (binding, sealed) in enumerate(zip(bindings, wrapped, strict=True)):
        if sealed[:1] != FORMAT:
            raise NotDecryptable("a wrapped key has an unknown format")
        once = sha256(old_outer + sha256(old_inner + sealed[1:SEALED] + binding + _LAST).digest()).digest()
        try:
            key32 = AESGCM(once).decrypt(NONCE, sealed[SEALED:], None)
        except (InvalidTag, ValueError) as error:
            raise NotDecryptable("a wrapped key does not open under its key-encryption key and row") from error
        salt = salts[number * SALT_BYTES : (number + 1) * SALT_BYTES]
        once = sha256(new_outer + sha256(new_inner + salt + binding[:-EPOCH_BYTES] + end).digest()).digest()
        made.append(FORMAT + salt + AESGCM(once).encrypt(NONCE, key32, None))
    return made


def _pads(kek32: bytes) -> tuple[bytes, bytes]:
    inner, outer = pads(kek32)
    return inner + LABEL, outer
