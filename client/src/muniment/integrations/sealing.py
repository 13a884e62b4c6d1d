"""Sealing of single values under a thread's key; needs `cryptography` (`pip install muniment[sealed]`).

Layout of a sealed value, shared with `connectors/thread_folder.py` of the service: `muniment1` | place 16 | nonce 12 |
AES-256-GCM(type and payload as the framework's serializer writes them, place as associated data). `place` is the head
of a SHA-256 over where the value stands, so that one cannot be put in another's place.

Guarantees: what was altered, moved or sealed under another key raises `SealBroken` and is never returned.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Protocol

from muniment.errors import SealBroken

MAGIC = b"muniment1"
_PLACE, _NONCE = 16, 12


class Serializer(Protocol):
    """What a LangGraph saver turns values into bytes with."""

    def dumps_typed(self, obj: Any, /) -> tuple[str, bytes]:
        """Return the type and the bytes of a value."""

    def loads_typed(self, data: tuple[str, bytes], /) -> Any:
        """Return the value."""


def place_of(*where: object) -> bytes:
    """Return what binds a value to its place."""
    return hashlib.sha256(json.dumps([str(each) for each in where]).encode()).digest()[:_PLACE]


def is_sealed(value: object) -> bool:
    """Tell whether a stored value says that it is sealed."""
    return isinstance(value, bytes) and value.startswith(MAGIC)


def seal(serde: Serializer, key: bytes, value: Any, place: bytes) -> bytes:
    """Return the value, sealed."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    kind, payload = serde.dumps_typed(value)
    nonce = os.urandom(_NONCE)
    plaintext = kind.encode() + b"\0" + payload
    return MAGIC + place + nonce + AESGCM(key).encrypt(nonce, plaintext, place)


def unseal(serde: Serializer, key: bytes, sealed: bytes, place: bytes) -> Any:
    """Return the value. Raises: SealBroken."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    start = len(MAGIC) + _PLACE
    if not is_sealed(sealed) or sealed[len(MAGIC) : start] != place:
        raise SealBroken
    try:
        opened = AESGCM(key).decrypt(sealed[start : start + _NONCE], sealed[start + _NONCE :], place)
    except (InvalidTag, ValueError):
        raise SealBroken from None
    kind, _, payload = opened.partition(b"\0")
    return serde.loads_typed((kind.decode(), payload))
