"""Sealing of one part: C2SP chunked-encryption with AES-256-GCM, over a plaintext that binds its own digest.

Pure: bytes in, bytes out. Guarantees that a ciphertext opens only under its key and its context, whole and
unaltered, and that its key commitment is checked before anything is decrypted. Does not know whose key it is.

Layout of a ciphertext (Source: c2sp.org/chunked-encryption, "AEAD_AES_256_GCM" with SHA-512)::

    salt 24 | commitment 32 | chunk | chunk | ... | last chunk
    okm 76 = HKDF-Expand-SHA512(prk, "c2sp.org/chunked-encryption@v1+AEAD_AES_256_GCM" 00 salt context)
           = key 32 | base nonce 12 | commitment 32
    chunk i = AES-256-GCM(key, base nonce XOR i, 16384 bytes of plaintext), no associated data
    the last chunk holds fewer than 16384 bytes and may be empty, so a cut at a chunk's border is seen

The 76 derived bytes are the *part key*: they open this ciphertext and no other.

Example::

    ciphertext = seal(key, pack(body), context("acme", log_id, entry_id, 0))
    body = unpack(unseal(key, ciphertext, context("acme", log_id, entry_id, 0)))
"""

import hmac
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from vault.errors import CommitmentMismatch, NotDecryptable

KEY_BYTES = 32
SALT_BYTES = 24
NONCE_BYTES = 12
COMMITMENT_BYTES = 32
PART_KEY_BYTES = KEY_BYTES + NONCE_BYTES + COMMITMENT_BYTES
TAG_BYTES = 16
CHUNK_BYTES = 16 * 1024
HEADER_BYTES = SALT_BYTES + COMMITMENT_BYTES
INFO_LABEL = b"c2sp.org/chunked-encryption@v1+AEAD_AES_256_GCM\x00"
_JOINT_LABEL = b"muniment/joint-prk/v1\x00"
_SMALL_STEP = 32


def context(tenant: str, log_id: str, entry_id: str, part: int | str) -> bytes:
    """Return the bytes that bind a ciphertext to one place: four fields, each after its length (4 bytes, big-endian).

    ``part`` is the part's number, or a label for sealed values that are no part of an entry.
    """
    return in_entry(entry_of(tenant, log_id, entry_id), part)


def entry_of(tenant: str, log_id: str, entry_id: str) -> bytes:
    """Return how the contexts of all parts of one entry begin."""
    return _of_log(tenant, log_id) + _field(entry_id.encode())


def contexts(tenant: str, log_id: str, entry_ids: Iterable[str], part: int | str) -> Iterator[bytes]:
    """Yield the context of the same part of each of these entries."""
    before, after = _of_log(tenant, log_id), _of_part(str(part))
    for entry_id in entry_ids:
        name = entry_id.encode()
        yield before + len(name).to_bytes(4, "big") + name + after


def in_entry(entry: bytes, part: int | str) -> bytes:
    """Return the context of a part, from how the contexts of its entry begin."""
    return entry + _of_part(str(part))


def _field(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


@lru_cache(maxsize=1024)
def _of_log(tenant: str, log_id: str) -> bytes:
    return _field(tenant.encode()) + _field(log_id.encode())


@lru_cache(maxsize=1024)
def _of_part(part: str) -> bytes:
    return _field(part.encode())


def derive_part_key(prk32: bytes, salt24: bytes, context: bytes) -> bytes:
    """Return the 76 bytes that open one ciphertext: key 32, base nonce 12, commitment 32."""
    if len(prk32) != KEY_BYTES:
        raise NotDecryptable(f"a key has {KEY_BYTES} bytes, got {len(prk32)}")
    if len(salt24) != SALT_BYTES:
        raise NotDecryptable(f"a salt has {SALT_BYTES} bytes, got {len(salt24)}")
    return HKDFExpand(SHA512(), PART_KEY_BYTES, INFO_LABEL + salt24 + context).derive(prk32)


def seal(prk: bytes, plaintext: bytes, context: bytes, *, salt: bytes | None = None) -> bytes:
    """Return the ciphertext of ``plaintext``, 72 bytes longer below 16 KiB and 16 more for each full chunk.

    ``salt`` is a fresh one of a caller that seals many, or of a published vector; else one is drawn.
    """
    salt = os.urandom(SALT_BYTES) if salt is None else salt
    part_key = derive_part_key(prk, salt, context)
    cipher = AESGCM(part_key[:KEY_BYTES])
    if len(plaintext) < CHUNK_BYTES:  # one chunk, whose nonce is the base nonce: nearly every part
        chunk = cipher.encrypt(part_key[KEY_BYTES:-COMMITMENT_BYTES], plaintext, None)
        return salt + part_key[-COMMITMENT_BYTES:] + chunk
    base = int.from_bytes(part_key[KEY_BYTES : KEY_BYTES + NONCE_BYTES], "big")
    pieces = [salt, part_key[-COMMITMENT_BYTES:]]
    for number, start in enumerate(range(0, len(plaintext) + 1, CHUNK_BYTES)):
        nonce = (base ^ number).to_bytes(NONCE_BYTES, "big")
        pieces.append(cipher.encrypt(nonce, plaintext[start : start + CHUNK_BYTES], None))
    return b"".join(pieces)


def unseal(prk: bytes, ciphertext: bytes, context: bytes) -> bytes:
    """Return the plaintext. Raises CommitmentMismatch (wrong key or context) and NotDecryptable (altered)."""
    return unseal_with_part_key(derive_part_key(prk, _salt_of(ciphertext), context), ciphertext)


def part_key_of(prk: bytes, ciphertext: bytes, context: bytes) -> bytes:
    """Return the part key of an existing ciphertext, checked against its commitment.

    Raises CommitmentMismatch, so that a part that must stay is never kept with a key that does not open it.
    """
    part_key = derive_part_key(prk, _salt_of(ciphertext), context)
    _check_commitment(part_key, ciphertext)
    return part_key


def unseal_with_part_key(part_key76: bytes, ciphertext: bytes) -> bytes:
    """Return the plaintext of the one ciphertext this part key belongs to.

    Raises CommitmentMismatch and NotDecryptable.
    """
    if len(part_key76) != PART_KEY_BYTES:
        raise NotDecryptable(f"a part key has {PART_KEY_BYTES} bytes, got {len(part_key76)}")
    _salt_of(ciphertext)
    _check_commitment(part_key76, ciphertext)
    cipher = AESGCM(part_key76[:KEY_BYTES])
    base = int.from_bytes(part_key76[KEY_BYTES : KEY_BYTES + NONCE_BYTES], "big")
    sealed_chunk = CHUNK_BYTES + TAG_BYTES
    full, last = divmod(len(ciphertext) - HEADER_BYTES, sealed_chunk)
    if last < TAG_BYTES:
        raise NotDecryptable("the ciphertext is truncated: it does not end with a short chunk")
    plain = []
    for number in range(full + 1):
        start = HEADER_BYTES + number * sealed_chunk
        nonce = (base ^ number).to_bytes(NONCE_BYTES, "big")
        try:
            plain.append(cipher.decrypt(nonce, ciphertext[start : start + sealed_chunk], None))
        except InvalidTag as error:
            raise NotDecryptable(f"chunk {number} of {full + 1} is altered or out of order") from error
    return b"".join(plain)


def joint_prk(keys: Mapping[str, bytes]) -> bytes:
    """Return the key of a part that belongs to several subjects: lose any one of ``keys`` and it is gone.

    ``keys`` maps key id to key. HKDF-SHA-512 over the distinct keys sorted by key id, with label, count and ids.
    One key alone is used as it is, so that callers need not tell the cases apart.
    """
    if not keys:
        raise NotDecryptable("a joint key needs at least one key")
    ordered = sorted(keys.items())
    if any(len(key) != KEY_BYTES for _, key in ordered):
        raise NotDecryptable(f"every key of a joint key has {KEY_BYTES} bytes")
    if len(ordered) == 1:
        return ordered[0][1]
    names = b"".join(len(name).to_bytes(4, "big") + name for name in (key_id.encode() for key_id, _ in ordered))
    info = _JOINT_LABEL + len(ordered).to_bytes(4, "big") + names
    return HKDF(SHA512(), KEY_BYTES, None, info).derive(b"".join(key for _, key in ordered))


def seal_small(prk: bytes, plaintext: bytes, *, tenant: str, label: str, name: str) -> bytes:
    """Return the ciphertext of an identifier or locator, its length hidden in steps of 32 bytes.

    ``label`` says what kind of value it is, ``name`` which one (a row's random id); both are bound.
    """
    padded = len(plaintext).to_bytes(4, "big") + plaintext
    padded += bytes(-len(padded) % _SMALL_STEP)
    return seal(prk, padded, context(tenant, f"small/{label}", name, "value"))


def unseal_small(prk: bytes, ciphertext: bytes, *, tenant: str, label: str, name: str) -> bytes:
    """Return what seal_small was given. Raises CommitmentMismatch and NotDecryptable."""
    padded = unseal(prk, ciphertext, context(tenant, f"small/{label}", name, "value"))
    size = int.from_bytes(padded[:4], "big")
    value = padded[4 : 4 + size]
    if len(value) != size or any(padded[4 + size :]) or len(padded) != 4 + size + -(4 + size) % _SMALL_STEP:
        raise NotDecryptable("the sealed value is not padded as this version pads")
    return value


def _salt_of(ciphertext: bytes) -> bytes:
    if len(ciphertext) < HEADER_BYTES + TAG_BYTES:
        raise NotDecryptable(f"a ciphertext has at least {HEADER_BYTES + TAG_BYTES} bytes, got {len(ciphertext)}")
    return ciphertext[:SALT_BYTES]


def _check_commitment(part_key: bytes, ciphertext: bytes) -> None:
    # Before any decryption: GCM alone lets one ciphertext open under two keys to two plaintexts.
    if not hmac.compare_digest(part_key[-COMMITMENT_BYTES:], ciphertext[SALT_BYTES:HEADER_BYTES]):
        raise CommitmentMismatch
