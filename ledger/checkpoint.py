"""Signed notes and checkpoints: their bytes, and what makes one acceptable.

Guarantees: a note that parses has exactly one spelling (it is written again and compared byte for
byte), and a note that verifies carries at least one good signature by a key the caller named and none
bad by such a key. It holds no key and does no cryptography itself: `ledger.signing` does. It does not
know whether a checkpoint is consistent with an older one; `ledger.merkle` proves that.

Source: c2sp.org/signed-note, c2sp.org/tlog-checkpoint, c2sp.org/tlog-cosignature.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from hashlib import sha256
from typing import Protocol

from ledger.errors import BadSignature, MalformedNote

KEY_ID_SIZE = 4
ROOT_SIZE = 32
# Room for a hundred ML-DSA-44 cosignatures of 2,432 bytes; the format asks for 16 signatures at least.
MAX_SIGNATURES = 100
MAX_NOTE_BYTES = 512 * 1024
MAX_SIZE = (1 << 63) - 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_PRINTABLE = 0x20


class SignatureType(IntEnum):
    """What a key of a note signs with. Only appended to, never renumbered. Source: c2sp.org/signed-note."""

    ED25519 = 0x01
    ECDSA = 0x02
    COSIGNATURE_ED25519 = 0x04
    COSIGNATURE_ML_DSA_44 = 0x06


class Signer(Protocol):
    """A key that signs notes under a name."""

    @property
    def name(self) -> str:
        """The key's name; a log's own key is named like the log's origin."""

    @property
    def key_id(self) -> bytes:
        """The four bytes that tell keys of one name apart."""

    @property
    def algorithm(self) -> int:
        """The type byte, one of `SignatureType`."""

    def sign(self, message: bytes | memoryview) -> bytes:
        """Return the signature over a note's text."""


class Verifier(Protocol):
    """A public key that checks signatures of notes."""

    @property
    def name(self) -> str:
        """The key's name."""

    @property
    def key_id(self) -> bytes:
        """The four bytes that tell keys of one name apart."""

    @property
    def algorithm(self) -> int:
        """The type byte, one of `SignatureType`."""

    def verify(self, message: bytes, signature: bytes) -> None:
        """Check the signature over a note's text. Raises: BadSignature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteSignature:
    """One signature line."""

    name: str
    key_id: bytes
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedNote:
    """A text, which ends with a line feed, and its signatures in the order they stand."""

    text: str
    signatures: tuple[NoteSignature, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A tree head: whose log, how many leaves, which root. Extension lines are kept, never used."""

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationKey:
    """The parts of a vkey."""

    name: str
    key_id: bytes
    algorithm: int
    public_key: bytes


def key_id(name: str, algorithm: int, public_key: bytes) -> bytes:
    """Return the id of a key. ECDSA keys have another rule and are not supported."""
    return sha256(name.encode() + b"\n" + bytes([algorithm]) + public_key).digest()[:KEY_ID_SIZE]


def vkey(name: str, algorithm: int, public_key: bytes) -> str:
    """Return the text form of a public key, to publish and to pin. Raises: MalformedNote."""
    _require_name(name)
    return "+".join((name, key_id(name, algorithm, public_key).hex(), _base64(bytes([algorithm]) + public_key)))


def parse_vkey(text: str) -> VerificationKey:
    """Return the parts of a vkey whose key id is right. Raises: MalformedNote."""
    parts = text.split("+", 2)  # the base64 may hold further plus signs
    if len(parts) != 3:  # noqa: PLR2004 (name, id, key)
        reason = "a verifier key has the form name+id+key"
        raise MalformedNote(reason)
    name, shown_id, encoded = parts
    _require_name(name)
    raw = _unbase64(encoded)
    if len(raw) < 2:  # noqa: PLR2004 (type byte and at least one byte of key)
        reason = "the verifier key is empty"
        raise MalformedNote(reason)
    key = VerificationKey(name=name, key_id=key_id(name, raw[0], raw[1:]), algorithm=raw[0], public_key=raw[1:])
    if key.key_id.hex() != shown_id:
        reason = f"expected key id {key.key_id.hex()}, got another"
        raise MalformedNote(reason)
    return key


def format_checkpoint(origin: str, size: int, root: bytes) -> str:
    """Return the text of a checkpoint, to be signed. Raises: MalformedNote."""
    if not origin or any(ord(char) < _FIRST_PRINTABLE for char in origin):
        reason = "an origin is one non-empty line"
        raise MalformedNote(reason)
    if isinstance(size, bool) or not 0 <= size <= MAX_SIZE:
        reason = f"a size is between 0 and {MAX_SIZE}"
        raise MalformedNote(reason)
    if len(root) != ROOT_SIZE:
        reason = f"a root has {ROOT_SIZE} bytes, got {len(root)}"
        raise MalformedNote(reason)
    return f"{origin}\n{size}\n{_base64(root)}\n"


def parse_checkpoint(text: str) -> Checkpoint:
    """Return the checkpoint that a note's text holds. Raises: MalformedNote."""
    lines = text.split("\n")
    if len(lines) < 4 or lines.pop() != "":  # noqa: PLR2004 (three lines, each ended)
        reason = "a checkpoint has three lines or more, each ended by a line feed"
        raise MalformedNote(reason)
    origin, shown_size, shown_root, *extensions = lines
    if not (shown_size.isascii() and shown_size.isdigit() and len(shown_size) <= len(str(MAX_SIZE))):
        reason = "the size is not a decimal number"
        raise MalformedNote(reason)
    if "" in extensions:
        reason = "an extension line is empty"
        raise MalformedNote(reason)
    found = Checkpoint(origin=origin, size=int(shown_size), root=_unbase64(shown_root), extensions=tuple(extensions))
    rest = "".join(f"{line}\n" for line in extensions)
    if format_checkpoint(found.origin, found.size, found.root) + rest != text:
        reason = "not the canonical spelling of a checkpoint"
        raise MalformedNote(reason)
    return found


def format_note(note: SignedNote) -> bytes:
    """Return the bytes of a note. Raises: MalformedNote when it breaks a rule of the format."""
    if not note.text.endswith("\n"):
        reason = "the text does not end with a line feed"
        raise MalformedNote(reason)
    if not 1 <= len(note.signatures) <= MAX_SIGNATURES:
        reason = f"a note has 1 to {MAX_SIGNATURES} signatures, got {len(note.signatures)}"
        raise MalformedNote(reason)
    lines: list[str] = []
    for item in note.signatures:
        _require_name(item.name)
        if len(item.key_id) != KEY_ID_SIZE or not item.signature:
            reason = "a signature line has a key id of four bytes and a signature"
            raise MalformedNote(reason)
        lines.append(f"\u2014 {item.name} {_base64(item.key_id + item.signature)}\n")
    text = f"{note.text}\n{''.join(lines)}"
    if any(ord(char) < _FIRST_PRINTABLE and char != "\n" for char in text):
        reason = "the note holds a control character"
        raise MalformedNote(reason)
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        reason = "the note is not valid Unicode"
        raise MalformedNote(reason) from error
    if len(data) > MAX_NOTE_BYTES:
        reason = f"the note has {len(data)} bytes, at most {MAX_NOTE_BYTES} are read"
        raise MalformedNote(reason)
    return data


def parse_note(data: bytes) -> SignedNote:
    """Return the note in these bytes; no signature is checked. Raises: MalformedNote."""
    if len(data) > MAX_NOTE_BYTES:
        reason = f"the note has {len(data)} bytes, at most {MAX_NOTE_BYTES} are read"
        raise MalformedNote(reason)
    try:
        whole = data.decode()
    except UnicodeDecodeError as error:
        reason = "the note is not UTF-8"
        raise MalformedNote(reason) from error
    # The last empty line separates: a text may hold empty lines itself.
    text, separator, tail = whole.rpartition("\n\n")
    if not separator or not tail.endswith("\n"):
        reason = "the note has no signatures"
        raise MalformedNote(reason)
    note = SignedNote(text=text + "\n", signatures=tuple(map(_parse_signature, tail[:-1].split("\n"))))
    if format_note(note) != data:
        reason = "not the canonical spelling of a note"
        raise MalformedNote(reason)
    return note


def sign_note(text: str, signers: Sequence[Signer]) -> bytes:
    """Return a note of this text, signed by each signer in turn. Raises: MalformedNote."""
    message = _message(text)
    signatures = tuple(
        NoteSignature(name=signer.name, key_id=signer.key_id, signature=signer.sign(message)) for signer in signers
    )
    return format_note(SignedNote(text=text, signatures=signatures))


def with_signature(data: bytes, signature: NoteSignature) -> bytes:
    """Return the note with one more signature line, such as a witness's. Raises: MalformedNote."""
    note = parse_note(data)
    return format_note(SignedNote(text=note.text, signatures=(*note.signatures, signature)))


def open_note(data: bytes, verifiers: Sequence[Verifier]) -> SignedNote:
    """Return the note with only the signatures that the given keys made.

    A signature by an unknown key is dropped. One bad signature by a known key rejects the whole note.
    Raises: MalformedNote; BadSignature, also when no known key signed or two keys share an id.
    """
    known: dict[tuple[str, bytes], Verifier] = {}
    for verifier in verifiers:
        place = (verifier.name, verifier.key_id)
        if place in known:
            reason = "two of the known keys have the same name and id"
            raise BadSignature(reason, name=verifier.name)
        known[place] = verifier
    note = parse_note(data)
    message = _message(note.text)
    good: list[NoteSignature] = []
    for item in note.signatures:
        found = known.get((item.name, item.key_id))
        if found is not None:
            found.verify(message, item.signature)
            good.append(item)
    if not good:
        reason = "no known key signed this note"
        raise BadSignature(reason)
    return SignedNote(text=note.text, signatures=tuple(good))


def verify_note(data: bytes, verifiers: Sequence[Verifier]) -> str:
    """Return the text of a note that `open_note` accepts. Raises: MalformedNote, BadSignature."""
    return open_note(data, verifiers).text


def cosignature_message(message: bytes, at: datetime) -> bytes:
    """Return what a witness signs to say that it saw this checkpoint text at that second.

    Raises: MalformedNote for a naive time or one before 1970. Source: c2sp.org/tlog-cosignature.
    """
    return b"cosignature/v1\ntime %d\n" % posix_seconds(at) + message


def posix_seconds(at: datetime) -> int:
    """Return the whole seconds since 1970. Raises: MalformedNote for a naive or earlier time."""
    if at.utcoffset() is None or at < _EPOCH:
        reason = "a cosignature needs an aware time after 1970"
        raise MalformedNote(reason)
    return (at - _EPOCH) // timedelta(seconds=1)


def _parse_signature(line: str) -> NoteSignature:
    dash, _, rest = line.partition(" ")
    name, _, encoded = rest.partition(" ")
    if dash != "\u2014" or not encoded:
        reason = "a line after the text is not a signature"
        raise MalformedNote(reason)
    raw = _unbase64(encoded)
    if len(raw) <= KEY_ID_SIZE:
        reason = "a signature is too short"
        raise MalformedNote(reason)
    return NoteSignature(name=name, key_id=raw[:KEY_ID_SIZE], signature=raw[KEY_ID_SIZE:])


def _message(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        reason = "the text is not valid Unicode"
        raise MalformedNote(reason) from error


def _require_name(name: str) -> None:
    if not name or "+" in name or any(char.isspace() or ord(char) < _FIRST_PRINTABLE for char in name):
        reason = "a key name is not empty and has no space and no plus sign"
        raise MalformedNote(reason)


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def _unbase64(text: str) -> bytes:
    """Return the bytes of strict, padded base64 whose unused bits are zero."""
    try:
        data = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        reason = "not base64"
        raise MalformedNote(reason) from error
    if _base64(data) != text:
        reason = "not canonical base64"
        raise MalformedNote(reason)
    return data
