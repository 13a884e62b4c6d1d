"""A MAC with its key made ready: the bytes of the standard library's, whatever the key and the message."""

from __future__ import annotations

import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vault.errors import VaultError
from vault.mac import Mac


@given(key=st.binary(max_size=64), message=st.binary(max_size=300))
def test_it_is_the_hmac_of_the_standard_library(key: bytes, message: bytes) -> None:
    assert Mac(key).of(message) == hmac.digest(key, message, "sha256")


def test_a_published_vector() -> None:
    # RFC 4231 §4.3
    found = Mac(b"Jefe").of(b"what do ya want for nothing?")
    assert found.hex() == "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"


def test_a_key_longer_than_a_block_is_refused() -> None:
    with pytest.raises(VaultError):
        Mac(bytes(65))
