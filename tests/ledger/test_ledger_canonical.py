from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.canonical import dumps


class Colour(StrEnum):
    RED = "red"


scalars = (
    st.none() | st.booleans() | st.integers(-(2**54), 2**54) | st.floats() | st.text() | st.sampled_from(list(Colour))
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner)
)


def result(encode: Any, value: Any) -> bytes | str:
    try:
        return bytes(encode(value))
    except rfc8785.CanonicalizationError as error:
        return type(error).__name__


@settings(max_examples=25, deadline=None)
@given(values)
def test_the_bytes_and_the_refusals_are_those_of_the_reference(value: Any) -> None:
    assert result(dumps, value) == result(rfc8785.dumps, value)


@pytest.mark.parametrize(
    "value",
    [
        {"\u20ac": 1, "\U0001f600": 2, "\ufb33": 3, "a": 4},
        {"b": [1.0, 1e21, -0.0], "a": 2**53 - 1},
        {"text": '\x00\x1f\x7f\u2028"\\/\b\f\n\r\t é 😀'},
        "\ud800",
        2**53,
        {1: "a name that is no text"},
        {"a": {"b": {1, 2}}},
        float("nan"),
        True,
    ],
)
def test_a_value_at_the_edge_is_treated_as_the_reference_treats_it(value: Any) -> None:
    assert result(dumps, value) == result(rfc8785.dumps, value)
