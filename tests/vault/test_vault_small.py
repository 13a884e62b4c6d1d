"""Small values of rows: bound to key and row, padded, read in both forms, and every byte of them covered."""

import hmac

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from vault import envelope
from vault.envelope import context
from vault.errors import NotDecryptable
from vault.small import seal_value, unseal_value

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
ROW = {"tenant": "19566", "label": "artifact", "name": "815916279538508364"}
SALT = bytes(range(100, 112))


@given(st.binary(max_size=300))
@settings(max_examples=50, deadline=None)
def test_a_value_opens_and_shows_its_length_only_in_steps(value: bytes) -> None:
    sealed = seal_value(KEY, value, **ROW)
    assert unseal_value(KEY, sealed, **ROW) == value
    assert len(sealed) == 28 + 32 * (len(value) // 32 + 1)


@pytest.mark.parametrize("other", [{"tenant": "2"}, {"label": "identifier"}, {"name": "815916279538508365"}])
def test_a_value_copied_into_another_row_does_not_open(other: dict[str, str]) -> None:
    sealed = seal_value(KEY, b"value", **ROW)
    with pytest.raises(NotDecryptable, match="key and row"):
        unseal_value(KEY, sealed, **{**ROW, **other})


def test_fields_that_join_alike_are_not_the_same_row() -> None:
    sealed = seal_value(KEY, b"value", tenant="1", label="ab", name="c")
    with pytest.raises(NotDecryptable):
        unseal_value(KEY, sealed, tenant="1", label="a", name="bc")


def test_every_altered_byte_is_seen_and_so_is_another_key() -> None:
    sealed = seal_value(KEY, b"value", **ROW)
    for at in range(len(sealed)):
        altered = sealed[:at] + bytes((sealed[at] ^ 1,)) + sealed[at + 1 :]
        with pytest.raises(NotDecryptable):
            unseal_value(KEY, altered, **ROW)
    with pytest.raises(NotDecryptable):
        unseal_value(OTHER, sealed, **ROW)
    with pytest.raises(NotDecryptable, match="32 bytes"):
        unseal_value(KEY[:-1], sealed, **ROW)


@pytest.mark.parametrize("length", [0, 1, 27, 28, 29, 40, 59, 61, 71, 72])
def test_a_value_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(NotDecryptable):
        unseal_value(KEY, bytes(length), **ROW)


def test_the_form_is_what_its_docstring_says() -> None:
    bound = context("19566", "small/artifact", "815916279538508364", "value")
    key = hmac.digest(KEY, b"muniment/small/v2\0" + SALT + bound + b"\1", "sha256")
    padded = b"value" + b"\x80" + bytes(26)
    assert unseal_value(KEY, SALT + AESGCM(key).encrypt(bytes(12), padded, None), **ROW) == b"value"


@pytest.mark.parametrize(
    "padded", [b"", bytes(32), b"value" + bytes(27), b"v\x80" + bytes(29) + b"\1", b"\x80" + bytes(63)]
)
def test_a_value_padded_otherwise_is_refused(padded: bytes) -> None:
    bound = context("19566", "small/artifact", "815916279538508364", "value")
    key = hmac.digest(KEY, b"muniment/small/v2\0" + SALT + bound + b"\1", "sha256")
    with pytest.raises(NotDecryptable):
        unseal_value(KEY, SALT + AESGCM(key).encrypt(bytes(12), padded, None), **ROW)


@pytest.mark.parametrize("value", [b"", b"value", bytes(28), b"\x80" * 100])
def test_what_was_sealed_in_the_former_form_opens(value: bytes) -> None:
    sealed = envelope.seal_small(KEY, value, **ROW)
    assert unseal_value(KEY, sealed, **ROW) == value
    with pytest.raises(NotDecryptable):
        unseal_value(OTHER, sealed, **ROW)


def test_equal_values_of_one_row_do_not_look_alike() -> None:
    assert seal_value(KEY, b"value", **ROW) != seal_value(KEY, b"value", **ROW)
