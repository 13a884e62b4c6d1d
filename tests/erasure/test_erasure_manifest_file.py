"""A manifest in pieces is the JSON that it always was, and what is kept of each copy says what was said of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erasure.manifest_file import Listing, json_bytes, pieces
from erasure.package_file import Fate, Fates
from erasure.request import CopyState

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_ITEMS = st.lists(st.dictionaries(st.text(), _VALUES, max_size=3), max_size=4)


@given(first=_VALUES, listed=_ITEMS, last=_VALUES)
def test_a_manifest_in_pieces_has_the_bytes_of_one_that_is_written_whole(
    first: Any, listed: list[dict[str, Any]], last: Any
) -> None:
    with Listing() as listing:
        for item in listed:
            listing.append(item)
        made = b"".join(pieces({"first": first, "listed": listing, "last": last}))
    whole = {"first": first, "listed": listed, "last": last}
    assert made == json.dumps(whole, ensure_ascii=False, indent=2).encode() == json_bytes(whole)


def test_a_long_list_lies_in_a_file_and_may_go_on_after_it_was_read() -> None:
    items = [{"copy": number, "detail": "a line\nof text " + "é" * 500} for number in range(1_500)]
    with Listing() as listing:
        for item in items[:-1]:
            listing.append(item)
        assert len(list(listing.pieces())) > 2
        listing.append(items[-1])
        assert json.loads(b"".join(pieces({"items": listing}))) == {"items": items}


def test_the_last_word_on_a_copy_holds_and_nothing_is_known_of_the_others() -> None:
    fates = Fates()
    fates.settle(7, CopyState.EXPORTED, None, "json")
    fates.settle(3, CopyState.UNREACHABLE, "the store did not answer")
    fates.settle(4, CopyState.EXPORTED, None, "json")
    fates.settle(3, CopyState.EXPORTED, None, "txt")
    known = {number: fates.get(number) for number in range(10) if fates.get(number) is not None}
    exported = Fate(CopyState.EXPORTED, None, "json")
    assert known == {3: exported._replace(suffix="txt"), 4: exported, 7: exported}
    assert fates.get(100_000) is None


@pytest.mark.parametrize("state", [CopyState.WITHHELD, CopyState.ALREADY_ABSENT])
def test_a_copy_without_a_file_of_its_own_has_none(state: CopyState) -> None:
    fates = Fates()
    fates.settle(1, state, "why")
    assert fates.get(1) == Fate(state, "why", None)
