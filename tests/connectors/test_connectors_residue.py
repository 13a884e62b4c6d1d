import base64
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.base import Deadline
from connectors.errors import Timeout
from connectors.residue import MIN_CANARY, Needles, encodings, samples


def count(canary: bytes, hay: bytes) -> dict[str, int]:
    return {name: n for (_, name), n in Needles([canary]).count(io.BytesIO(hay), Deadline("scan", 20)).items()}


CANARY = "Mia \u00c9lise Li, mia.li@example.com"


@pytest.mark.parametrize(
    "form",
    [
        CANARY.encode(),
        CANARY.lower().encode(),
        CANARY.upper().encode(),
        CANARY.encode("utf-16-le"),
        CANARY.encode("utf-16-be"),
        json.dumps({"a": CANARY}).encode(),
        json.dumps({"a": json.dumps(CANARY)}).encode(),
        CANARY.encode().hex().encode(),
        *(base64.b64encode(b"#" * shift + CANARY.encode() + b"tail") for shift in range(3)),
        *(base64.urlsafe_b64encode(b"#" * shift + CANARY.encode()) for shift in range(3)),
    ],
)
def test_every_plain_encoding_of_a_canary_is_found(form: bytes) -> None:
    assert count(CANARY.encode(), b"x" * 13 + form + b"y" * 7)


@given(
    needle=st.binary(min_size=1, max_size=40),
    before=st.binary(max_size=30),
    between=st.binary(max_size=9),
    sizes=st.lists(st.integers(1, 17), min_size=1, max_size=5),
)
def test_each_occurrence_is_counted_once_wherever_chunks_break(
    needle: bytes, before: bytes, between: bytes, sizes: list[int]
) -> None:
    hay = before + needle + between + needle
    chunks, start, turn = [], 0, 0
    while start < len(hay):
        size = sizes[turn % len(sizes)]
        chunks.append(hay[start : start + size])
        start, turn = start + size, turn + 1
    found = Needles([needle]).count_chunks(chunks, Deadline("scan", 20))
    for name, form in encodings(needle).items():
        naive = sum(hay.startswith(form, at) for at in range(len(hay)))
        assert found[(0, name)] == naive


@given(
    needles=st.lists(st.text("ab", min_size=1, max_size=24), min_size=1, max_size=12),
    order=st.lists(st.integers(0, 11), max_size=8),
    size=st.integers(1, 50),
)
def test_needles_that_look_alike_are_each_counted(needles: list[str], order: list[int], size: int) -> None:
    hay = "".join(needles[number % len(needles)] for number in order).encode()
    chunks = [hay[start : start + size] for start in range(0, len(hay), size)]
    found = Needles([needle.encode() for needle in needles]).count_chunks(chunks, Deadline("scan", 20))
    for number, needle in enumerate(needles):
        for name, form in encodings(needle.encode()).items():
            assert found[number, name] == sum(hay.startswith(form, at) for at in range(len(hay)))


def test_a_neighbour_whose_text_begins_and_ends_alike_is_no_hit() -> None:
    texts = [f"a remark of somebody, number {n:05d}, as people make them when they write".encode() for n in range(400)]
    found = Needles(texts[:300]).count_chunks([b"\0".join(texts[290:])], Deadline("scan", 20))
    assert found == {(number, "utf-8"): 1 for number in range(290, 300)}


@given(st.text(min_size=1, max_size=400))
def test_samples_of_a_text_are_pieces_of_it_and_long_enough_to_tell_apart(text: str) -> None:
    value = text.encode()
    pieces = samples(value)
    assert bool(pieces) == (len(value) >= MIN_CANARY)
    for piece in pieces:
        assert piece in value
        assert len(piece) >= MIN_CANARY


def test_thousands_of_canaries_cost_one_pass() -> None:
    canaries = [f"person-{n:06d}@example.com".encode() for n in range(3000)]
    hay = b"nothing to see here " * 50_000 + canaries[1234] + b"." * 99
    found = Needles(canaries).count(io.BytesIO(hay), Deadline("scan", 20))
    assert found[(1234, "utf-8")] == 1
    assert {number for number, _ in found} == {1234}


def test_a_scan_stops_at_its_deadline() -> None:
    with pytest.raises(Timeout) as stopped:
        Needles([b"12345678"]).count(io.BytesIO(b"x" * 100), Deadline("scan", 0))
    assert stopped.value.operation == "scan"
