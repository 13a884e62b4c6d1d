"""Many parts sealed at once are what each part alone would be, under a salt of its own."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vault.envelope import SALT_BYTES, context, part_key_of, seal, unseal
from vault.errors import CommitmentMismatch, NotDecryptable
from vault.packing import pack, unpack
from vault.sealing import seal_parts

HERE = context("acme", "log", "entry", "part.0")
THERE = context("acme", "log", "entry", "skeleton")
KEYS = [b"\x01" * 32, b"\x02" * 32]

BODIES = st.binary(max_size=40) | st.sampled_from([b"x" * 16_347, b"\0" * 70_000, bytes(range(256)) * 200])


@given(st.lists(st.tuples(st.sampled_from((0, 1)), st.sampled_from((HERE, THERE)), BODIES, st.booleans()), max_size=6))
def test_each_part_is_what_the_envelope_makes_of_it_alone(asked: list[tuple[int, bytes, bytes, bool]]) -> None:
    jobs = [(key, bound, pack(body) if packed else body, packed) for key, bound, body, packed in asked]
    sealed = seal_parts(KEYS, jobs)
    assert len(sealed) == len(jobs)
    for (ciphertext, digest), (key, bound, body, _) in zip(sealed, asked, strict=True):
        assert digest == sha256(ciphertext).digest()
        assert unpack(unseal(KEYS[key], ciphertext, bound)) == body
        # To the byte: what is derived at once for all parts of a key is what the envelope derives for one.
        assert ciphertext == seal(KEYS[key], pack(body), bound, salt=ciphertext[:SALT_BYTES])


def test_no_two_parts_share_a_salt() -> None:
    sealed = seal_parts(KEYS, [(0, HERE, b"same", False)] * 500)
    assert len({ciphertext[:SALT_BYTES] for ciphertext, _ in sealed}) == 500


def test_a_part_opens_under_no_other_key_and_in_no_other_place() -> None:
    ((ciphertext, _),) = seal_parts(KEYS, [(1, HERE, b"text", False)])
    for key, bound in ((KEYS[0], HERE), (KEYS[1], THERE)):
        with pytest.raises(CommitmentMismatch):
            part_key_of(key, ciphertext, bound)


def test_a_key_of_another_length_seals_nothing() -> None:
    with pytest.raises(NotDecryptable, match="32 bytes"):
        seal_parts([b"short"], [(0, HERE, b"text", False)])
