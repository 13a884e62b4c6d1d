"""Many parts, few requests, the same bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import payloads
from ledger.entry import Part
from ledger.errors import ObjectMissing
from ledger.payloads import GAP_BYTES, RUN_BYTES, Payloads

OBJECTS = {"a": bytes(range(256)) * 2048, "b": bytes(reversed(range(256))) * 64}


def part(key: str, offset: int, length: int) -> Part:
    return Part(role="part.0", algorithm="x", length=length, sha256=bytes(32), object=key, offset=offset)


class Counting:
    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def __call__(self, key: str, offset: int, length: int) -> bytes:
        self.calls.append((key, offset, length))
        if key not in OBJECTS:
            raise ObjectMissing(key)
        return OBJECTS[key][offset : offset + length]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 600_000), st.integers(0, 100_000)), max_size=30),
    st.randoms(use_true_random=False),
)
def test_each_part_reads_as_with_a_request_of_its_own(places: list[tuple[str, int, int]], rng: object) -> None:
    parts = [part(*place) for place in places]
    reader = Payloads(parts, Counting())
    rng.shuffle(parts)  # type: ignore[attr-defined]
    for one in parts:
        assert reader.read(one) == OBJECTS[one.object][one.offset : one.offset + one.length]


def test_neighbours_come_in_one_request_and_strangers_in_their_own() -> None:
    fetch = Counting()
    near = [part("a", number * 100, 100) for number in range(50)]
    far = part("a", 5000 + GAP_BYTES + 1, 10)
    reader = Payloads([*near, far], fetch)
    for one in [*near, far]:
        reader.read(one)
    assert fetch.calls == [("a", 0, 5000), ("a", far.offset, 10)]


def test_a_range_and_what_is_held_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "RUN_BYTES", 1000)
    fetch = Counting()
    parts = [part("a", number * 400, 400) for number in range(40)]
    reader = Payloads(parts, fetch)
    for one in parts:
        reader.read(one)
    assert all(length <= 1000 for _, _, length in fetch.calls)
    assert len(fetch.calls) == 20
    assert len(reader._held) <= payloads.HELD


def test_a_part_larger_than_a_range_still_comes_whole() -> None:
    fetch = Counting()
    one = part("a", 0, RUN_BYTES + 7)
    assert Payloads([one], fetch).read(one) == OBJECTS["a"]


def test_a_missing_object_is_said_for_each_of_its_parts() -> None:
    parts = [part("gone", 0, 5), part("gone", 5, 5)]
    reader = Payloads(parts, Counting())
    for one in parts:
        with pytest.raises(ObjectMissing):
            reader.read(one)
