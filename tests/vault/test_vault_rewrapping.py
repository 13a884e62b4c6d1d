"""Keys wrapped anew in bulk: the same as one by one, and nothing odd gets through."""

from __future__ import annotations

import os

import pytest

from vault.errors import NotDecryptable
from vault.rewrapping import rewrap
from vault.wrapping import KeySpec, at_epoch, data_key_binding, unwrap, wrap

OLD, NEW = bytes(range(32)), bytes(range(1, 33))
KEYS = [os.urandom(32) for _ in range(5)]
PLACES = [
    data_key_binding(7, f"{number:032x}", KeySpec(subject_id=number, data_class="transcript", month="2026-05"), 3, 1)
    for number in range(5)
]


def sealed() -> list[bytes]:
    return [wrap(OLD, place, key) for place, key in zip(PLACES, KEYS, strict=True)]


def test_each_key_opens_in_its_row_at_the_new_epoch_and_nowhere_else() -> None:
    made = rewrap(OLD, NEW, PLACES, sealed(), 2)
    for number, (place, wrapped) in enumerate(zip(PLACES, made, strict=True)):
        assert unwrap(NEW, at_epoch(place, 2), wrapped) == KEYS[number]
        for kek, binding in ((OLD, at_epoch(place, 2)), (NEW, place), (NEW, at_epoch(PLACES[number - 1], 2))):
            with pytest.raises(NotDecryptable):
                unwrap(kek, binding, wrapped)


def test_every_wrap_has_its_own_salt() -> None:
    same = rewrap(OLD, NEW, [PLACES[0]] * 3, [sealed()[0]] * 3, 2)
    assert len({wrapped[1:17] for wrapped in same}) == 3


@pytest.mark.parametrize("at", [0, 1, 16, 17, 64])
def test_a_damaged_key_is_refused_and_not_wrapped_again(at: int) -> None:
    broken = bytearray(sealed()[2])
    broken[at] ^= 1
    with pytest.raises(NotDecryptable):
        rewrap(OLD, NEW, PLACES[:3], [*sealed()[:2], bytes(broken)], 2)
    with pytest.raises(NotDecryptable):
        rewrap(OLD, NEW, PLACES[:1], [sealed()[0][:at]], 2)
    with pytest.raises(NotDecryptable):
        rewrap(NEW, NEW, PLACES[:1], sealed()[:1], 2)
