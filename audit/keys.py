"""The auditor's own check of signatures: a vkey to something that verifies notes.

Guarantees: only Ed25519 keys of C2SP type 0x01 count as a log's key; any other type is refused by name. Shares no code
with what signs, on purpose (DESIGN §10). Source: c2sp.org/signed-note, RFC 8032.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from audit.errors import BadPin
from ledger.checkpoint import Checkpoint, SignatureType, parse_checkpoint, parse_vkey, verify_note
from ledger.errors import BadSignature, MalformedNote

_PUBLIC_KEY_SIZE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class LogKey:
    """A pinned public key of a log; a `ledger.checkpoint.Verifier`."""

    name: str
    key_id: bytes
    algorithm: int
    public_key: Ed25519PublicKey

    def verify(self, message: bytes, signature: bytes) -> None:
        """Check the signature over a note's text. Raises: BadSignature."""
        try:
            self.public_key.verify(signature, message)
        except InvalidSignature as error:
            reason = f"the signature by {self.name} does not fit the text"
            raise BadSignature(reason, name=self.name) from error


def log_key(vkey: str) -> LogKey:
    """Return the verifier of a log's vkey. Raises: BadPin for what is no Ed25519 vkey of type 0x01."""
    try:
        parts = parse_vkey(vkey.strip())
    except MalformedNote as error:
        raise BadPin(f"the key is not a C2SP vkey ({error.reason})") from error
    if parts.algorithm != SignatureType.ED25519 or len(parts.public_key) != _PUBLIC_KEY_SIZE:
        raise BadPin(f"a log's key has type 0x01 (Ed25519), got 0x{parts.algorithm:02x}")
    return LogKey(
        name=parts.name,
        key_id=parts.key_id,
        algorithm=parts.algorithm,
        public_key=Ed25519PublicKey.from_public_bytes(parts.public_key),
    )


def open_checkpoint(note: bytes, keys: Sequence[LogKey], origin: str) -> Checkpoint:
    """Return the checkpoint of this origin that one of the keys signed.

    Raises: MalformedNote; BadSignature, also when it is the checkpoint of another log.
    """
    checkpoint = parse_checkpoint(verify_note(note, keys))
    if checkpoint.origin != origin:
        reason = "the checkpoint is one of another log"
        raise BadSignature(reason, name=checkpoint.origin)
    return checkpoint
