"""The keys of the log: Ed25519 signers and verifiers of notes, and witnesses' cosignatures.

Guarantees: a signer's `vkey` is the only thing an auditor needs to pin; private keys never appear in a
repr, a message or an attribute. It does not read key files, settings or the clock. Other algorithms
(KMS, ML-DSA-44) fit the same two protocols; a vkey of a type that is not built is refused by name.

Source: c2sp.org/signed-note (type 0x01), c2sp.org/tlog-cosignature (type 0x04), RFC 8032.
"""

from __future__ import annotations

from datetime import UTC, datetime

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ledger.checkpoint import (
    NoteSignature,
    SignatureType,
    Signer,
    Verifier,
    cosignature_message,
    key_id,
    parse_vkey,
    posix_seconds,
    vkey,
)
from ledger.errors import BadSignature, MalformedNote

__all__ = [
    "Ed25519CosignatureVerifier",
    "Ed25519Cosigner",
    "Ed25519Signer",
    "Ed25519Verifier",
    "Signer",
    "Verifier",
    "cosigned_at",
    "verifier_from_vkey",
]

SEED_SIZE = 32
PUBLIC_KEY_SIZE = 32
SIGNATURE_SIZE = 64
_TIME_SIZE = 8


class Ed25519Signer:
    """A log's key, type 0x01."""

    __slots__ = ("_key", "key_id", "name", "vkey")
    algorithm = int(SignatureType.ED25519)

    def __init__(self, name: str, key: Ed25519PrivateKey) -> None:
        """Take the key under this name; use `from_seed`."""
        public = key.public_key().public_bytes_raw()
        self._key = key
        self.name = name
        self.vkey = vkey(name, self.algorithm, public)
        self.key_id = key_id(name, self.algorithm, public)

    @classmethod
    def from_seed(cls, name: str, seed: bytes) -> Ed25519Signer:
        """Return the signer of a 32-byte private seed. Raises: MalformedNote."""
        return cls(name, _private_key(seed))

    def sign(self, message: bytes | memoryview) -> bytes:
        """Return the signature of 64 bytes; a view is signed in place, without a copy."""
        return self._key.sign(message)


class Ed25519Verifier:
    """The public half of a log's key, type 0x01."""

    __slots__ = ("_key", "key_id", "name")
    algorithm = int(SignatureType.ED25519)

    def __init__(self, name: str, public_key: bytes) -> None:
        """Take a public key of 32 bytes; use `from_vkey`."""
        self._key = _public_key(public_key)
        self.name = name
        self.key_id = key_id(name, self.algorithm, public_key)

    @classmethod
    def from_vkey(cls, text: str) -> Ed25519Verifier:
        """Return the verifier of a vkey of type 0x01. Raises: MalformedNote."""
        return cls(*_parts_of(text, SignatureType.ED25519))

    def verify(self, message: bytes | memoryview, signature: bytes) -> None:
        """Check the signature. Raises: BadSignature."""
        _verify(self._key, message, signature, self.name)


class Ed25519Cosigner:
    """A witness's key, type 0x04: it signs what it saw together with when."""

    __slots__ = ("_key", "key_id", "name", "vkey")
    algorithm = int(SignatureType.COSIGNATURE_ED25519)

    def __init__(self, name: str, key: Ed25519PrivateKey) -> None:
        """Take the key under this name; use `from_seed`."""
        public = key.public_key().public_bytes_raw()
        self._key = key
        self.name = name
        self.vkey = vkey(name, self.algorithm, public)
        self.key_id = key_id(name, self.algorithm, public)

    @classmethod
    def from_seed(cls, name: str, seed: bytes) -> Ed25519Cosigner:
        """Return the cosigner of a 32-byte private seed. Raises: MalformedNote."""
        return cls(name, _private_key(seed))

    def cosign(self, text: str, at: datetime) -> NoteSignature:
        """Return the line that says this witness saw the checkpoint text at that second.

        Raises: MalformedNote for a naive time or one before 1970.
        """
        signature = self._key.sign(cosignature_message(text.encode(), at))
        stamped = posix_seconds(at).to_bytes(_TIME_SIZE, "big") + signature
        return NoteSignature(name=self.name, key_id=self.key_id, signature=stamped)


class Ed25519CosignatureVerifier:
    """The public half of a witness's key, type 0x04."""

    __slots__ = ("_key", "key_id", "name", "vkey")
    algorithm = int(SignatureType.COSIGNATURE_ED25519)

    def __init__(self, name: str, public_key: bytes) -> None:
        """Take a public key of 32 bytes; use `from_vkey`."""
        self._key = _public_key(public_key)
        self.name = name
        self.key_id = key_id(name, self.algorithm, public_key)
        self.vkey = vkey(name, self.algorithm, public_key)

    @classmethod
    def from_vkey(cls, text: str) -> Ed25519CosignatureVerifier:
        """Return the verifier of a vkey of type 0x04. Raises: MalformedNote."""
        return cls(*_parts_of(text, SignatureType.COSIGNATURE_ED25519))

    def verify(self, message: bytes, signature: bytes) -> None:
        """Check the cosignature and the time inside it. Raises: BadSignature."""
        at = cosigned_at(signature, name=self.name)
        _verify(self._key, cosignature_message(message, at), signature[_TIME_SIZE:], self.name)


def cosigned_at(signature: bytes, *, name: str = "") -> datetime:
    """Return the second a witness claims in its cosignature. Raises: BadSignature."""
    if len(signature) != _TIME_SIZE + SIGNATURE_SIZE:
        reason = f"a cosignature has {_TIME_SIZE + SIGNATURE_SIZE} bytes, got {len(signature)}"
        raise BadSignature(reason, name=name)
    try:
        return datetime.fromtimestamp(int.from_bytes(signature[:_TIME_SIZE], "big"), tz=UTC)
    except (OverflowError, ValueError, OSError) as error:
        reason = "the time of the cosignature is out of range"
        raise BadSignature(reason, name=name) from error


def verifier_from_vkey(text: str) -> Verifier:
    """Return the verifier for any vkey type that is built: 0x01 and 0x04.

    Raises: MalformedNote, naming the type when it is another one.
    """
    key = parse_vkey(text)
    if key.algorithm == SignatureType.ED25519:
        return Ed25519Verifier.from_vkey(text)
    if key.algorithm == SignatureType.COSIGNATURE_ED25519:
        return Ed25519CosignatureVerifier.from_vkey(text)
    reason = f"keys of type 0x{key.algorithm:02x} are not supported"
    raise MalformedNote(reason)


def _private_key(seed: bytes) -> Ed25519PrivateKey:
    if len(seed) != SEED_SIZE:
        reason = f"a signing seed has {SEED_SIZE} bytes, got {len(seed)}"
        raise MalformedNote(reason)
    return Ed25519PrivateKey.from_private_bytes(seed)


def _public_key(raw: bytes) -> Ed25519PublicKey:
    if len(raw) != PUBLIC_KEY_SIZE:
        reason = f"an Ed25519 public key has {PUBLIC_KEY_SIZE} bytes, got {len(raw)}"
        raise MalformedNote(reason)
    return Ed25519PublicKey.from_public_bytes(raw)


def _parts_of(text: str, expected: SignatureType) -> tuple[str, bytes]:
    key = parse_vkey(text)
    if key.algorithm != expected:
        reason = f"expected a key of type 0x{expected:02x}, got 0x{key.algorithm:02x}"
        raise MalformedNote(reason)
    return key.name, key.public_key


def _verify(key: Ed25519PublicKey, message: bytes | memoryview, signature: bytes, name: str) -> None:
    try:
        key.verify(signature, message)
    except InvalidSignature as error:
        reason = f"the signature by {name} does not fit the text"
        raise BadSignature(reason, name=name) from error
