"""What was said of an artifact comes back as it was said, from both forms it was ever written in."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry import details
from registry.details import Details
from registry.keyed import canonical_json

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
NAMED = st.dictionaries(TEXTS, TEXTS, max_size=3)
PLACES = st.dictionaries(TEXTS, TEXTS | st.integers() | st.dictionaries(TEXTS, st.integers(), max_size=2), min_size=1)
SAID = st.fixed_dictionaries(
    {"locator": PLACES},
    optional={
        "scope": NAMED,
        "activity": NAMED,
        "versions": NAMED,
        "source_ref": TEXTS,
        "purposes": st.lists(TEXTS, max_size=3),
        "anonymisation": NAMED,
        "after_action": TEXTS,
        "reason": TEXTS,
    },
)


@given(SAID)
@settings(max_examples=100, deadline=None)
def test_what_was_said_is_read_and_so_is_the_former_form(said: dict[str, Any]) -> None:
    there = {name: value for name, value in said.items() if value}
    assert details.read(details.write(said)) == there
    assert details.read(canonical_json(there)) == there


def test_a_place_alone_takes_one_step_of_what_is_sealed() -> None:
    place = {"table": "memories", "key": {"id": 10_000_000}}
    assert len(details.write({"locator": place, "scope": {}, "purposes": []})) < 32


def test_one_and_the_text_one_stay_apart() -> None:
    one, text = ({"table": "m", "key": {"id": value}} for value in (1, "1"))
    assert details.write({"locator": one}) != details.write({"locator": text})


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**64, 2**70, -(2**63) - 1])
def test_long_integers_are_kept(number: int) -> None:
    said = {"locator": {"key": number}, "purposes": ["support"]}
    assert details.read(details.write(said)) == said


def test_a_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        details.write({"locator": {"key": "a"}, "scope": {"case": "\ud800"}})


def test_as_a_value_absent_members_are_empty() -> None:
    place = {"key": "k"}
    assert details.details_of(details.write({"locator": place, "after_action": "a1"})) == Details(
        locator=place, after_action="a1"
    )
    assert details.details_of(details.write({"locator": place, "purposes": ["x"]})).purposes == ("x",)
