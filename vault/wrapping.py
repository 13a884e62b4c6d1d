"""How a key is wrapped under a group's key-encryption key. Pure: bytes in, bytes out.

A wrap uses a key of its own, expanded from the key-encryption key, 16 random bytes and everything the wrapped key
belongs to: tenant, key id, subject, class, month, scope, group, epoch. So a wrapped key copied into another row, or
a row altered in any of those columns, does not open. Layout: format 1 | salt 16 | AES-256-GCM of the key.
"""

import hmac
import os
import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from vault.errors import NotDecryptable

FORMAT = b"\x01"
SALT_BYTES = 16
SEALED = 1 + SALT_BYTES
EPOCH_BYTES = 4
LABEL = b"muniment/wrap/v1\x00"
NONCE = bytes(12)  # Every wrap has its own key, so the nonce never repeats under one key.


class KeySpec(NamedTuple):
    """What a data key is for. ``scope`` is a random id of ours or empty, ``month`` the month of receipt, YYYY-MM."""

    subject_id: int
    data_class: str
    month: str
    scope: str = ""


class KeyHandle(NamedTuple):
    """An opened data key; its bytes never show in a log or a traceback."""

    key_id: str
    key32: bytes

    def __repr__(self) -> str:
        """Its id only."""
        return f"KeyHandle(key_id={self.key_id!r})"


def data_key_binding(tenant_id: int, key_id: str, spec: KeySpec, group_no: int, epoch: int) -> bytes:
    """Return the bytes that bind a wrapped data key to its row."""
    (made,) = data_key_bindings(
        tenant_id, group_no, epoch, [(key_id, spec.subject_id, spec.data_class, spec.month, spec.scope)]
    )
    return made


def data_key_bindings(
    tenant_id: int, group_no: int, epoch: int, rows: Iterable[tuple[str, int, str, str, str]]
) -> list[bytes]:
    """Return `data_key_binding` of many rows of one group: key id, subject, class, month, scope."""
    start = b"data\x00" + struct.pack(">QQ", tenant_id, group_no)
    end = epoch.to_bytes(EPOCH_BYTES, "big")
    pack, raw = struct.Struct(">Q16s").pack, bytes.fromhex
    return [
        start + pack(subject_id, raw(key_id)) + _texts(data_class, month, scope) + end
        for key_id, subject_id, data_class, month, scope in rows
    ]


def part_key_binding(tenant_id: int, entry_id: str, part: int, group_no: int, epoch: int) -> bytes:
    """Return the bytes that bind a wrapped part key to its row."""
    fixed = struct.pack(">QQI", tenant_id, group_no, part)
    return b"part\x00" + fixed + _texts(entry_id) + epoch.to_bytes(EPOCH_BYTES, "big")


def at_epoch(binding: bytes, epoch: int) -> bytes:
    """Return the binding of the same row under another epoch."""
    return binding[:-EPOCH_BYTES] + epoch.to_bytes(EPOCH_BYTES, "big")


def wrap(kek32: bytes, binding: bytes, plaintext: bytes, *, salt: bytes | None = None) -> bytes:
    """Return the wrapped key: 33 bytes longer. ``salt`` (16 random bytes) may be drawn by the caller for many."""
    salt = os.urandom(SALT_BYTES) if salt is None else salt
    return FORMAT + salt + AESGCM(_once(kek32, salt, binding)).encrypt(NONCE, plaintext, None)


def unwrap(kek32: bytes, binding: bytes, wrapped: bytes) -> bytes:
    """Return the key. Raises NotDecryptable: another key-encryption key, another row, or altered bytes."""
    if wrapped[:1] != FORMAT:
        raise NotDecryptable("a wrapped key has an unknown format")
    try:
        return AESGCM(_once(kek32, wrapped[1:SEALED], binding)).decrypt(NONCE, wrapped[SEALED:], None)
    except (InvalidTag, ValueError) as error:
        raise NotDecryptable("a wrapped key does not open under its key-encryption key and row") from error


def _once(kek32: bytes, salt: bytes, binding: bytes) -> bytes:
    # HKDF-Expand-SHA256 of one block is this HMAC with the counter byte 1 (RFC 5869 §2.3); rotation does millions.
    return hmac.digest(kek32, LABEL + salt + binding + b"\x01", "sha256")


@lru_cache(maxsize=1024)
def _texts(*values: str) -> bytes:
    joined = b""
    for value in values:
        encoded = value.encode()
        joined += len(encoded).to_bytes(4, "big") + encoded
    return joined
