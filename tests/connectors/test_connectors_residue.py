import base64
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.base import Deadline
from connectors.errors import Timeout
from connectors.residue import MIN_CANARY, Needles, encodings, samples

BOTH = pytest.mark.parametrize("by", ["grams", "words"])
"""With numpy and without."""


def count(canary: bytes, hay: bytes, by: Any) -> dict[str, int]:
    found = Needles([canary], by=by).count(io.BytesIO(hay), Deadline("scan", 20))
    return {name: n for (_, name), n in found.items()}


CANARY = "Mia \u00c9lise Li, mia.li@example.com"


@BOTH
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
def test_every_plain_encoding_of_a_canary_is_found(form: bytes, by: Any) -> None:
    assert count(CANARY.encode(), b"x" * 13 + form + b"y" * 7, by)


@BOTH
@given(
    needle=st.binary(min_size=1, max_size=40),
    before=st.binary(max_size=30),
    between=st.binary(max_size=9),
    sizes=st.lists(st.integers(1, 17), min_size=1, max_size=5),
)
def test_each_occurrence_is_counted_once_wherever_chunks_break(
    by: Any, needle: bytes, before: bytes, between: bytes, sizes: list[int]
) -> None:
    hay = before + needle + between + needle
    chunks, start, turn = [], 0, 0
    while start < len(hay):
        size = sizes[turn % len(sizes)]
        chunks.append(hay[start : start + size])
        start, turn = start + size, turn + 1
    found = Needles([needle], by=by).count_chunks(chunks, Deadline("scan", 20))
    for name, form in encodings(needle).items():
        naive = sum(hay.startswith(form, at) for at in range(len(hay)))
        assert found[(0, name)] == naive


@BOTH
@given(
    needles=st.lists(st.text("ab", min_size=1, max_size=24), min_size=1, max_size=12),
    order=st.lists(st.integers(0, 11), max_size=8),
    size=st.integers(1, 50),
)
def test_needles_that_look_alike_are_each_counted(by: Any, needles: list[str], order: list[int], size: int) -> None:
    hay = "".join(needles[number % len(needles)] for number in order).encode()
    chunks = [hay[start : start + size] for start in range(0, len(hay), size)]
    found = Needles([needle.encode() for needle in needles], by=by).count_chunks(chunks, Deadline("scan", 20))
    for number, needle in enumerate(needles):
        for name, form in encodings(needle.encode()).items():
            assert found[number, name] == sum(hay.startswith(form, at) for at in range(len(hay)))


@BOTH
@given(
    pieces=st.lists(st.one_of(st.binary(min_size=1, max_size=30), st.text(min_size=1, max_size=20)), max_size=6),
    shown=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 13), st.binary(max_size=9)), max_size=8),
    size=st.integers(1, 90),
)
def test_many_canaries_are_found_like_one_by_one(
    by: Any, pieces: list[str | bytes], shown: list[tuple[int, int, bytes]], size: int
) -> None:
    canaries = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    forms = [list(encodings(canary).values()) for canary in canaries] or [[b"none of them"]]
    hay = b"".join(
        forms[which % len(forms)][form % len(forms[which % len(forms)])] + other for which, form, other in shown
    )
    chunks = [hay[start : start + size] for start in range(0, len(hay), size)]
    found = Needles(canaries, by=by).count_chunks(chunks, Deadline("scan", 20))
    naive = {
        (number, name): times
        for number, canary in enumerate(canaries)
        for name, form in encodings(canary).items()
        if (times := sum(hay.startswith(form, at) for at in range(len(hay))))
    }
    assert found == naive


@BOTH
def test_a_neighbour_whose_text_begins_and_ends_alike_is_no_hit(by: Any) -> None:
    texts = [f"a remark of somebody, number {n:05d}, as people make them when they write".encode() for n in range(400)]
    found = Needles(texts[:300], by=by).count_chunks([b"\0".join(texts[290:])], Deadline("scan", 20))
    assert found == {(number, "utf-8"): 1 for number in range(290, 300)}


@given(st.text(min_size=1, max_size=400))
def test_samples_of_a_text_are_pieces_of_it_and_long_enough_to_tell_apart(text: str) -> None:
    value = text.encode()
    pieces = samples(value)
    assert bool(pieces) == (len(value) >= MIN_CANARY)
    for piece in pieces:
        assert piece in value
        assert len(piece) >= MIN_CANARY


@BOTH
def test_thousands_of_canaries_cost_one_pass(by: Any) -> None:
    canaries = [f"person-{n:06d}@example.com".encode() for n in range(3000)]
    hay = b"nothing to see here " * 50_000 + canaries[1234] + b"." * 99
    found = Needles(canaries, by=by).count(io.BytesIO(hay), Deadline("scan", 20))
    assert found[(1234, "utf-8")] == 1
    assert {number for number, _ in found} == {1234}


def test_a_canary_is_met_wherever_a_border_falls_in_it() -> None:
    canary, border = b"a canary that lies across", 1 << 20
    wanted = Needles([canary])
    for place in range(border - len(canary) - 1, border + 2, 5):
        stream = bytes(place) + canary + bytes(2 * border - place)
        assert wanted.count(io.BytesIO(stream), Deadline("scan", 20)) == {(0, "utf-8"): 1}
        assert wanted.count_chunks([stream], Deadline("scan", 20)) == {(0, "utf-8"): 1}


def test_what_a_thousand_copies_hold_alike_is_looked_for_once() -> None:
    found = Needles([b"completed"] * 1_000 + [b"something else"]).count_chunks(
        [b"completed " * 20_000], Deadline("scan", 20)
    )
    assert found == {(number, "utf-8"): 20_000 for number in range(1_000)}


def test_a_scan_stops_at_its_deadline() -> None:
    with pytest.raises(Timeout) as stopped:
        Needles([b"12345678"]).count(io.BytesIO(b"x" * 100), Deadline("scan", 0))
    assert stopped.value.operation == "scan"
