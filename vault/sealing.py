"""Sealing of many parts at once: what `envelope.seal` makes of each, in one loop. Pure, but for the salts.

Guarantees: every ciphertext is one that `envelope.unseal` opens under its key and its context, with a fresh salt of its
own, and comes with its SHA-256; bodies are packed as `packing.pack` packs them. Keeps no key when it returns. What
depends on a key alone is derived once for all of its parts. Does not know whose key is whose.

HKDF-Expand-SHA512 of 76 bytes is two blocks of HMAC-SHA512 (RFC 5869 §2.3), whose inner and outer states after the key
are the same for all parts of the key (RFC 2104 §4): copying them halves the work.

Example::

    ((ciphertext, digest),) = seal_parts([key], [(0, context("acme", log_id, entry_id, 0), body, False)])
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import sha256, sha512
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from vault.envelope import CHUNK_BYTES, INFO_LABEL, KEY_BYTES, SALT_BYTES, seal
from vault.errors import NotDecryptable
from vault.packing import pack_many

if TYPE_CHECKING:
    from hashlib import _Hash

_BLOCK_BYTES = 128
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))


Job = tuple[int, bytes, bytes, bool]
"""One part to seal: the number of its key, its context, its body or what was packed of one before, and which it is."""

Sealed = tuple[bytes, bytes]
"""A ciphertext and its SHA-256."""


def seal_parts(keys: Sequence[bytes], jobs: Sequence[Job]) -> list[Sealed]:
    """Return what is sealed of each job, in order. Raises: TooLarge, NotDecryptable for a key of another length."""
    if any(len(key) != KEY_BYTES for key in keys):
        raise NotDecryptable(f"a key has {KEY_BYTES} bytes")
    packed = iter(pack_many([data for _, _, data, is_packed in jobs if not is_packed]))
    states = [_states(key) for key in keys]
    salts = os.urandom(SALT_BYTES * len(jobs))
    sealed: list[Sealed] = []
    at = 0
    for number, bound, data, is_packed in jobs:
        plain = data if is_packed else next(packed)
        salt = salts[at : at + SALT_BYTES]
        at += SALT_BYTES
        if len(plain) < CHUNK_BYTES:  # one chunk, whose nonce is the base nonce: nearly every part
            info = INFO_LABEL + salt + bound
            inner, outer = states[number]
            hashing, closing = inner.copy(), outer.copy()
            hashing.update(info + b"\x01")
            closing.update(hashing.digest())
            first = closing.digest()
            hashing, closing = inner.copy(), outer.copy()
            hashing.update(first + info + b"\x02")
            closing.update(hashing.digest())
            chunk = AESGCM(first[:32]).encrypt(first[32:44], plain, None)
            ciphertext = salt + first[44:] + closing.digest()[:12] + chunk
        else:
            ciphertext = seal(keys[number], plain, bound, salt=salt)
        sealed.append((ciphertext, sha256(ciphertext).digest()))
    return sealed


def _states(key: bytes) -> tuple[_Hash, _Hash]:
    """Return the inner and the outer hash of HMAC-SHA512 after the key."""
    block = key.ljust(_BLOCK_BYTES, b"\0")
    return sha512(block.translate(_INNER)), sha512(block.translate(_OUTER))
