"""The envelope is strict, the body is kept: what a recorder may send and what comes of it."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry import entries
from registry.entries import MalformedEntry, depth_of, is_noncanonical, parse_entry, split_batch
from registry.lenient import Unsplittable, elements, has_unique_keys, members

ENVELOPE = (
    b'{"id":"01a22987-0f40-77cc-b1d9-1b5f5a282c26","stream":"s","kind":"note","at":"2026-01-01T00:00:00Z",'
    b'"data_class":"transcript","body":'
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON, st.sampled_from([None, 1]), st.booleans())
def test_any_json_body_is_kept_to_the_byte(value: Any, indent: int | None, ascii_only: bool) -> None:
    body = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    if body != body.decode("utf-8", "replace").encode():
        return
    parsed = parse_entry(ENVELOPE + body + b"}")
    assert parsed.parts[0].data == body


@pytest.mark.parametrize(
    "body",
    [b'{"a":1,"a":1}', b"[NaN]", b'"\\udfff"', b"1e999", b"9007199254740993", b"-Infinity", b'[{"k":{"x":1,"x":2}}]'],
)
def test_odd_bodies_are_flagged_and_kept(body: bytes) -> None:
    parsed = parse_entry(ENVELOPE + body + b"}")
    assert parsed.parts[0].data == body
    assert parsed.noncanonical
    assert split_batch(b'{"entries": [' + ENVELOPE + body + b"}, 1]}")[0] == ENVELOPE + body + b"}"


@pytest.mark.parametrize("body", [b"{", b'{"a"}', b"[1,]", b"nope", b'"unfinished', b"{'a':1}", b""])
def test_what_nobody_reads_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedEntry):
        parse_entry(ENVELOPE + body + b"}")


@pytest.mark.parametrize("nesting", [201, 10_000, 200_000])
def test_bodies_nested_too_deep_are_refused(nesting: int) -> None:
    with pytest.raises(MalformedEntry, match="nested deeper"):
        parse_entry(ENVELOPE + b"[" * nesting + b"]" * nesting + b"}")


def test_a_body_nested_as_deep_as_allowed_is_kept() -> None:
    body = b"[" * 200 + b"]" * 200
    assert parse_entry(ENVELOPE + body + b"}").parts[0].data == body
    assert depth_of(b'["[[[", "\\"[["]' + b" " * 300) == 4 or depth_of(b'["' + b"[" * 300 + b'"]') == 1


@pytest.mark.parametrize("twice", [b',"kind":"note"', b', "body" : {}', b',"\\u0062ody":1'])
def test_a_key_that_stands_twice_in_the_envelope_is_refused(twice: bytes) -> None:
    with pytest.raises(MalformedEntry, match="twice"):
        parse_entry(ENVELOPE + b"{}" + twice + b"}")


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=5), st.sampled_from([None, 2]))
def test_splitting_gives_back_the_exact_members(value: dict[str, Any], indent: int | None) -> None:
    data = json.dumps(value, indent=indent).encode()
    found = members(data)
    assert {key: json.loads(raw) for key, raw in found.items()} == value
    assert all(raw in data for raw in found.values())
    assert has_unique_keys(data)


@given(st.lists(JSON, max_size=5))
def test_splitting_gives_back_the_exact_elements(value: list[Any]) -> None:
    assert [json.loads(raw) for raw in elements(json.dumps(value).encode())] == value


@given(st.binary(max_size=40))
def test_splitting_anything_ends_in_slices_or_in_a_refusal(data: bytes) -> None:
    with contextlib.suppress(Unsplittable):
        members(data)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers()), max_size=4), st.sampled_from(["", " "]))
def test_keys_that_stand_twice_are_always_seen(pairs: list[tuple[str, int]], space: str) -> None:
    text = "{" + ",".join(f'{space}"{key}":{space}{value}' for key, value in pairs) + "}"
    assert has_unique_keys(text.encode()) == (len({key for key, _ in pairs}) == len(pairs))


def test_ordinary_bodies_are_not_flagged() -> None:
    assert not is_noncanonical(b'{"a": [1, 2.5, -3e10, "\\u00fc\xc3\xbc", null, true], "b": 9007199254740991}')


_SPELT = st.sampled_from(
    [
        b'{"a":1}', b'{"a":1,"a":2}', b'{ "a":1}', b'"x"', b"[]", b"null", b"12345678901234567890", b'{"a":1.50}',
        b"NaN", b'{"a":"\\u00e9"}', b'{"a":"\xc3\xa9"}', b'{"a":"\xff"}', b'{"a":"\xed\xa0\x80"}',
        b"[" * 201 + b"]" * 201, b"",
    ]
)  # fmt: skip
_MORE = st.sampled_from(
    [b"", b',"actor":"a"', b',"actor":null', b',"actor":""', b',"subjects":[]', b',"seq":1', b',"seq":9007199254740992',
     b',"stream":"t"', b',"run":"r" ', b',"other":1', b',"parts":null', b',"sources":["x"]', b',"agent":"\\u0041"']
)  # fmt: skip


@given(_SPELT, _MORE, st.sampled_from([b"", b" ", b"x"]), st.sampled_from([b"019", b"01A"]))
def test_an_entry_is_read_alike_whether_it_is_written_as_we_would_write_it_or_not(
    body: bytes, more: bytes, behind: bytes, start: bytes
) -> None:
    """Equal bytes spare the usual entry the questions that others are asked, and change no answer."""
    usual = b'{"id":"' + start + b'0b0a4-0000-7000-8000-000000000001","stream":"s","kind":"note",'
    raw = usual + b'"at":"2026-03-01T12:00:00.5Z","data_class":"c","subjects":["user:u"],"body":' + body + more
    raw += b"}" + behind
    try:
        slow: object = entries._parse_entry(raw)
    except MalformedEntry as error:
        slow = (error.detail, error.pointer, error.problem)
    try:
        quick: object = entries.parse_entry(raw)
    except MalformedEntry as error:
        quick = (error.detail, error.pointer, error.problem)
    assert quick == slow


def test_the_usual_entry_is_read_the_quick_way() -> None:
    raw = (
        b'{"id":"0190b0a4-0000-7000-8000-000000000001","stream":"s","kind":"note","at":"2026-03-01T12:00:00+00:00",'
        b'"data_class":"c","subjects":["user:u"],"actor":"a","body":{"x":[1,"\xc3\xa9"]},"agent":"b"}'
    )
    found = entries._usual(raw)
    assert found is not None
    assert found == parse_entry(raw) == entries._parse_entry(raw)
    assert not found.noncanonical
