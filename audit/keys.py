"""The auditor's own check of signatures: a vkey to something that verifies notes.

A key of a log that was rotated has a window, the tree sizes it may sign: written behind the vkey as ` 0-40` or ` 41-`.

Guarantees: only Ed25519 keys of C2SP type 0x01 count as a log's key; any other type is refused by name. Shares no code
with what signs, on purpose (DESIGN §10). Source: c2sp.org/signed-note, RFC 8032.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from audit.errors import BadPin
from ledger.checkpoint import Checkpoint, SignatureType, open_note, parse_checkpoint, parse_vkey
from ledger.errors import BadSignature, MalformedNote

_PUBLIC_KEY_SIZE = 32
_TIME_SIZE = 8
_COSIGNATURE_SIZE = 72
_WINDOW = re.compile(r"([0-9]{1,19})-([0-9]{1,19})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogKey:
    """A pinned public key of a log; a `ledger.checkpoint.Verifier`."""

    name: str
    key_id: bytes
    algorithm: int
    public_key: Ed25519PublicKey
    from_size: int = 0
    until_size: int | None = None

    def covers(self, size: int) -> bool:
        """Whether the key may sign a tree of this size."""
        return self.from_size <= size and (self.until_size is None or size <= self.until_size)

    def verify(self, message: bytes, signature: bytes) -> None:
        """Check the signature over a note's text. Raises: BadSignature."""
        try:
            self.public_key.verify(signature, message)
        except InvalidSignature as error:
            reason = f"the signature by {self.name} does not fit the text"
            raise BadSignature(reason, name=self.name) from error


def log_key(vkey: str) -> LogKey:
    """Return the verifier of a log's vkey, with its window where one stands behind it.

    Raises: BadPin for what is no Ed25519 vkey of type 0x01.
    """
    text, _, shown = vkey.strip().partition(" ")
    window = _WINDOW.fullmatch(shown)
    if shown and window is None:
        raise BadPin("behind the key stands no window of sizes such as 0-40")
    try:
        parts = parse_vkey(text)
    except MalformedNote as error:
        raise BadPin(f"the key is not a C2SP vkey ({error.reason})") from error
    if parts.algorithm != SignatureType.ED25519 or len(parts.public_key) != _PUBLIC_KEY_SIZE:
        raise BadPin(f"a log's key has type 0x01 (Ed25519), got 0x{parts.algorithm:02x}")
    return LogKey(
        name=parts.name,
        key_id=parts.key_id,
        algorithm=parts.algorithm,
        public_key=Ed25519PublicKey.from_public_bytes(parts.public_key),
        from_size=int(window[1]) if window else 0,
        until_size=int(window[2]) if window and window[2] else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessKey:
    """A pinned public key of a witness; a `ledger.checkpoint.Verifier` of cosignatures."""

    name: str
    key_id: bytes
    algorithm: int
    public_key: Ed25519PublicKey

    def verify(self, message: bytes, signature: bytes) -> None:
        """Check the cosignature and the second inside it. Raises: BadSignature. Source: c2sp.org/tlog-cosignature."""
        if len(signature) != _COSIGNATURE_SIZE:
            raise BadSignature(f"a cosignature has {_COSIGNATURE_SIZE} bytes, got {len(signature)}", name=self.name)
        second = int.from_bytes(signature[:_TIME_SIZE], "big")
        try:
            self.public_key.verify(signature[_TIME_SIZE:], b"cosignature/v1\ntime %d\n" % second + message)
        except InvalidSignature as error:
            raise BadSignature(f"the cosignature by {self.name} does not fit the text", name=self.name) from error


def witness_key(vkey: str) -> WitnessKey:
    """Return the verifier of a witness's vkey. Raises: BadPin for what is no Ed25519 cosignature vkey (type 0x04)."""
    try:
        parts = parse_vkey(vkey.strip())
    except MalformedNote as error:
        raise BadPin(f"the witness's key is not a C2SP vkey ({error.reason})") from error
    if parts.algorithm != SignatureType.COSIGNATURE_ED25519 or len(parts.public_key) != _PUBLIC_KEY_SIZE:
        raise BadPin(f"a witness's key has type 0x04 (Ed25519 cosignature), got 0x{parts.algorithm:02x}")
    return WitnessKey(
        name=parts.name,
        key_id=parts.key_id,
        algorithm=parts.algorithm,
        public_key=Ed25519PublicKey.from_public_bytes(parts.public_key),
    )


def open_checkpoint(note: bytes, keys: Sequence[LogKey], origin: str) -> Checkpoint:
    """Return the checkpoint of this origin that one of the keys signed within its window.

    The order of keys and of signatures decides nothing. Raises: MalformedNote; BadSignature, also when it is the
    checkpoint of another log, or of a size after the end of every key that signed it.
    """
    signed = open_note(note, keys)
    checkpoint = parse_checkpoint(signed.text)
    if checkpoint.origin != origin:
        reason = "the checkpoint is one of another log"
        raise BadSignature(reason, name=checkpoint.origin)
    by = {(one.name, one.key_id) for one in signed.signatures}
    if not any(key.covers(checkpoint.size) for key in keys if (key.name, key.key_id) in by):
        reason = f"size {checkpoint.size} is signed only by a key that was revoked or replaced for such sizes"
        raise BadSignature(reason, name=checkpoint.origin)
    return checkpoint
