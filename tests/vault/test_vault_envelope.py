import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from vault import envelope
from vault.envelope import (
    CHUNK_BYTES,
    context,
    derive_part_key,
    joint_prk,
    part_key_of,
    seal,
    seal_small,
    unseal,
    unseal_small,
    unseal_with_part_key,
)
from vault.errors import CommitmentMismatch, NotDecryptable

KEY = bytes(range(32))
HERE = context("acme", "log-1", "0190b0a4-0000-7000-8000-000000000001", 0)
SEALED_CHUNK = CHUNK_BYTES + 16


@pytest.fixture
def published(shared_folder: Path) -> dict[str, Any]:
    vectors = json.loads((shared_folder / "reference" / "merkle_vectors.json").read_text())
    found: dict[str, Any] = vectors["chunked_encryption_cobblestone256_ours"]
    return found


def plaintext_of(length: int) -> bytes:
    """The vectors' plaintexts: one greeting, otherwise the letter x."""
    return b"hello, subject" if length == 14 else b"x" * length


def test_the_published_vectors_open_to_the_plaintext_they_state(published: dict[str, Any]) -> None:
    prk, where = bytes.fromhex(published["key_hex"]), bytes.fromhex(published["context_hex"])
    salt = bytes.fromhex(published["salt_hex"])
    whole = [case for case in published["cases"] if "ciphertext_hex" in case]
    assert whole
    for case in whole:
        sealed = bytes.fromhex(case["ciphertext_hex"])
        plain = unseal(prk, sealed, where)
        assert hashlib.sha256(plain).hexdigest() == case["plaintext_sha256"]
        assert seal(prk, plain, where, salt=salt) == sealed


def test_the_published_ciphertexts_are_reproduced_at_every_chunk_border(published: dict[str, Any]) -> None:
    prk, where = bytes.fromhex(published["key_hex"]), bytes.fromhex(published["context_hex"])
    salt = bytes.fromhex(published["salt_hex"])
    assert {case["plaintext_len"] for case in published["cases"]} >= {0, CHUNK_BYTES - 1, CHUNK_BYTES}
    for case in published["cases"]:
        plain = plaintext_of(case["plaintext_len"])
        sealed = seal(prk, plain, where, salt=salt)
        assert hashlib.sha256(plain).hexdigest() == case["plaintext_sha256"]
        assert len(sealed) == case["ciphertext_len"]
        assert hashlib.sha256(sealed).hexdigest() == case["ciphertext_sha256"]
        assert unseal(prk, sealed, where) == plain


def naive_part_key(prk: bytes, salt: bytes, where: bytes) -> bytes:
    """HKDF-Expand of RFC 5869 §2.3, written out."""
    info = b"c2sp.org/chunked-encryption@v1+AEAD_AES_256_GCM\x00" + salt + where
    first = hmac.digest(prk, info + b"\x01", "sha512")
    return (first + hmac.digest(prk, first + info + b"\x02", "sha512"))[:76]


def naive_seal(prk: bytes, plain: bytes, where: bytes, salt: bytes) -> bytes:
    okm = naive_part_key(prk, salt, where)
    out = salt + okm[44:]
    number = 0
    while True:
        chunk = plain[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
        nonce = bytes(a ^ b for a, b in zip(okm[32:44], number.to_bytes(12, "big"), strict=True))
        out += AESGCM(okm[:32]).encrypt(nonce, chunk, None)
        number += 1
        if len(chunk) < CHUNK_BYTES:
            return out


@pytest.mark.parametrize("length", [0, 1, 1000, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_sealing_equals_the_construction_written_out_naively(length: int) -> None:
    plain = bytes(i % 251 for i in range(length))
    salt = bytes(24)
    assert derive_part_key(KEY, salt, HERE) == naive_part_key(KEY, salt, HERE)
    assert seal(KEY, plain, HERE, salt=salt) == naive_seal(KEY, plain, HERE, salt)


@given(st.binary(max_size=200), st.binary(min_size=32, max_size=32))
def test_what_was_sealed_opens_with_its_key_and_with_its_part_key(plain: bytes, key: bytes) -> None:
    sealed = seal(key, plain, HERE)
    assert len(sealed) == len(plain) + 72
    assert unseal(key, sealed, HERE) == plain
    assert unseal_with_part_key(part_key_of(key, sealed, HERE), sealed) == plain


def test_two_sealings_of_the_same_bytes_differ() -> None:
    assert seal(KEY, b"same", HERE) != seal(KEY, b"same", HERE)


@pytest.mark.parametrize("bit", [0, 7])
def test_every_flipped_byte_is_refused(bit: int) -> None:
    sealed = seal(KEY, b"the quick brown fox", HERE)
    for position in range(len(sealed)):
        broken = bytearray(sealed)
        broken[position] ^= 1 << bit
        with pytest.raises(NotDecryptable):
            unseal(KEY, bytes(broken), HERE)


def test_every_shortened_or_extended_ciphertext_is_refused() -> None:
    sealed = seal(KEY, b"the quick brown fox", HERE)
    for length in range(len(sealed)):
        with pytest.raises(NotDecryptable):
            unseal(KEY, sealed[:length], HERE)
    for tail in (b"\0", bytes(16), sealed, bytes(SEALED_CHUNK)):
        with pytest.raises(NotDecryptable):
            unseal(KEY, sealed + tail, HERE)


def chunks(sealed: bytes) -> list[bytes]:
    body = sealed[56:]
    return [body[start : start + SEALED_CHUNK] for start in range(0, len(body), SEALED_CHUNK)]


def test_dropped_swapped_repeated_and_inserted_chunks_are_refused() -> None:
    sealed = seal(KEY, bytes(3 * CHUNK_BYTES), HERE)
    head, parts = sealed[:56], chunks(sealed)
    assert len(parts) == 4
    for broken in (
        parts[:-1],
        parts[1:],
        [parts[1], parts[0], *parts[2:]],
        [parts[0], *parts],
        [*parts, parts[-1]],
        [parts[0], parts[1], parts[3]],
        [],
    ):
        with pytest.raises(NotDecryptable):
            unseal(KEY, head + b"".join(broken), HERE)


def test_the_commitment_is_compared_before_anything_is_decrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = seal(KEY, b"x", HERE)

    class Forbidden:
        def __init__(self, key: bytes) -> None:
            raise AssertionError("decryption was tried")

    monkeypatch.setattr(envelope, "AESGCM", Forbidden)
    with pytest.raises(CommitmentMismatch):
        unseal(bytes(32), sealed, HERE)
    with pytest.raises(CommitmentMismatch):
        unseal_with_part_key(bytes(76), sealed)


@pytest.mark.parametrize(
    "elsewhere",
    [
        context("other", "log-1", "0190b0a4-0000-7000-8000-000000000001", 0),
        context("acme", "log-2", "0190b0a4-0000-7000-8000-000000000001", 0),
        context("acme", "log-1", "0190b0a4-0000-7000-8000-000000000002", 0),
        context("acme", "log-1", "0190b0a4-0000-7000-8000-000000000001", 1),
    ],
)
def test_a_ciphertext_does_not_open_in_another_place(elsewhere: bytes) -> None:
    sealed = seal(KEY, b"x", HERE)
    with pytest.raises(CommitmentMismatch):
        unseal(KEY, sealed, elsewhere)
    with pytest.raises(CommitmentMismatch):
        part_key_of(KEY, sealed, elsewhere)


@given(st.lists(st.text(max_size=4), min_size=4, max_size=4), st.lists(st.text(max_size=4), min_size=4, max_size=4))
def test_two_places_never_share_their_context(first: list[str], second: list[str]) -> None:
    equal = context(first[0], first[1], first[2], first[3]) == context(second[0], second[1], second[2], second[3])
    assert equal == (first == second)


def test_a_part_key_opens_its_own_ciphertext_only() -> None:
    one, two = seal(KEY, b"one", HERE), seal(KEY, b"two", HERE)
    with pytest.raises(CommitmentMismatch):
        unseal_with_part_key(part_key_of(KEY, one, HERE), two)


def test_keys_salts_and_part_keys_of_a_wrong_size_are_refused_by_a_named_error() -> None:
    sealed = seal(KEY, b"x", HERE)
    with pytest.raises(NotDecryptable):
        seal(b"short", b"x", HERE)
    with pytest.raises(NotDecryptable):
        seal(KEY, b"x", HERE, salt=b"short")
    with pytest.raises(NotDecryptable):
        unseal_with_part_key(bytes(75), sealed)
    with pytest.raises(NotDecryptable):
        joint_prk({})
    with pytest.raises(NotDecryptable):
        joint_prk({"a": b"short", "b": KEY})


KEYS = {"aa" * 16: bytes([1]) * 32, "bb" * 16: bytes([2]) * 32, "cc" * 16: bytes([3]) * 32}


def test_a_joint_key_needs_every_key_and_forgets_their_order() -> None:
    whole = joint_prk(KEYS)
    assert whole == joint_prk(dict(reversed(KEYS.items())))
    for missing in KEYS:
        assert joint_prk({name: key for name, key in KEYS.items() if name != missing}) != whole
    swapped = dict(zip(KEYS, reversed(KEYS.values()), strict=True))
    assert joint_prk(swapped) != whole
    assert whole not in KEYS.values()


def test_a_joint_key_of_one_is_that_key() -> None:
    assert joint_prk({"aa" * 16: KEY}) == KEY


@given(st.binary(max_size=300))
@settings(max_examples=50)
def test_small_values_open_and_show_their_length_only_in_steps(value: bytes) -> None:
    sealed = seal_small(KEY, value, tenant="acme", label="identifier", name="r1")
    assert unseal_small(KEY, sealed, tenant="acme", label="identifier", name="r1") == value
    assert (len(sealed) - 72) % 32 == 0
    for tenant, label, name in (("b", "identifier", "r1"), ("acme", "locator", "r1"), ("acme", "identifier", "r2")):
        with pytest.raises(CommitmentMismatch):
            unseal_small(KEY, sealed, tenant=tenant, label=label, name=name)


@pytest.mark.parametrize("padded", [b"", b"\0\0\0\x05abc", b"\0\0\0\x01a" + b"\x01" * 27, b"\0\0\0\x01a"])
def test_a_small_value_padded_otherwise_is_refused(padded: bytes) -> None:
    sealed = seal(KEY, padded, context("acme", "small/identifier", "r1", "value"))
    with pytest.raises(NotDecryptable):
        unseal_small(KEY, sealed, tenant="acme", label="identifier", name="r1")


def test_sealing_a_kilobyte_stays_off_the_critical_path() -> None:
    plain, rounds = bytes(1024), 2000
    best = min(_timed(plain, rounds) for _ in range(5))
    # The measured cost is 5 µs; the bound leaves room for a loaded machine, not for a second derivation per chunk.
    assert best / rounds < 60e-6


def _timed(plain: bytes, rounds: int) -> float:
    start = time.perf_counter()
    for _ in range(rounds):
        seal(KEY, plain, HERE)
    return time.perf_counter() - start
