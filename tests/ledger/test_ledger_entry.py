"""The header: one byte string each, nothing lenient, and the ids and times inside it."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ledger import entry, merkle
from ledger.entry import Header, Kind, Part
from ledger.errors import MalformedHeader

NOW = datetime(2026, 3, 1, 12, 0, 0, 250_001, tzinfo=UTC)

digests = st.binary(min_size=32, max_size=32)
counts = st.integers(0, entry.MAX_INT)
names = st.from_regex(r"[a-z0-9][a-z0-9_.:-]{0,20}", fullmatch=True)
instants = st.datetimes(timezones=st.just(UTC))
ids = st.builds(
    entry.uuid7,
    st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(9999, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    st.binary(min_size=10, max_size=10),
)
parts = st.builds(
    Part,
    role=names,
    algorithm=names,
    length=counts,
    sha256=digests,
    object=st.from_regex(r"payload/[0-9]{4}-[0-9]{2}/[a-z0-9]{26}", fullmatch=True),
    offset=counts,
)
headers = st.builds(
    Header,
    id=ids,
    kind=names | st.sampled_from(Kind),
    data_class=names,
    at=instants,
    received=instants,
    recorder=st.none() | st.from_regex(r"[0-9a-f]{32}", fullmatch=True),
    seq=st.none() | counts,
    stream=st.from_regex(r"[0-9a-f]{32}", fullmatch=True),
    position=counts,
    previous=digests,
    sources_count=st.just(0),
    sources_root=st.none(),
    parts=st.lists(parts, max_size=5).map(tuple),
)
sourced = st.builds(
    lambda header, count, root: replace(header, sources_count=count, sources_root=root),
    headers,
    st.integers(1, entry.MAX_INT),
    digests,
)


def example(**changes: Any) -> Header:
    part = Part(role="body", algorithm="c2sp-chunked-v1", length=99, sha256=bytes(32), object="payload/a", offset=7)
    header = Header(
        id="019cacb9-9b00-7000-8000-000000000000",
        kind=Kind.TOOL_CALL,
        data_class="transcript",
        at=NOW,
        received=NOW,
        recorder="ab" * 16,
        seq=12,
        stream="cd" * 16,
        position=3,
        previous=entry.NO_PREVIOUS,
        sources_count=1,
        sources_root=bytes(32),
        parts=(part,),
    )
    return replace(header, **changes)


def test_the_bytes_of_version_one_never_change() -> None:
    expected = (
        '{"at":"2026-03-01T12:00:00.250001Z","class":"transcript","id":"019cacb9-9b00-7000-8000-000000000000",'
        '"kind":"tool.call","parts":[{"alg":"c2sp-chunked-v1","len":99,"obj":"payload/a","off":7,"role":"body",'
        f'"sha256":"{"0" * 64}"}}],"position":3,"previous":"{"0" * 64}","received":"2026-03-01T12:00:00.250001Z",'
        f'"recorder":"{"ab" * 16}","seq":12,"sources":1,"sources_root":"{"0" * 64}","stream":"{"cd" * 16}","v":1}}'
    )
    assert entry.encode_header(example()).decode() == expected


@given(header=headers | sourced, others=st.data())
def test_a_stem_with_its_places_is_the_header(header: Header, others: st.DataObject) -> None:
    places = [others.draw(st.tuples(st.just(f"payload/{n}"), counts)) for n in range(len(header.parts))]
    elsewhere = tuple(
        replace(part, object=name, offset=at) for part, (name, at) in zip(header.parts, places, strict=True)
    )
    position, previous = others.draw(counts), others.draw(digests)
    wanted = entry.encode_header(replace(header, parts=elsewhere, position=position, previous=previous))
    assert entry.with_place(entry.stem_of(header), elsewhere, position, previous) == wanted


def test_a_stem_is_refused_as_its_header_is_and_so_is_one_that_grows_too_long() -> None:
    with pytest.raises(MalformedHeader):
        entry.stem_of(example(kind="Not A Kind"))
    stem = entry.stem_of(example())
    (part,) = example().parts
    with pytest.raises(MalformedHeader, match="at most"):
        entry.with_place(stem, [replace(part, object="x" * entry.MAX_HEADER_BYTES)], 0, bytes(32))
    with pytest.raises(ValueError, match="zip"):
        entry.with_place(stem, [], 0, bytes(32))


@given(header=headers | sourced)
def test_headers_read_back_and_are_canonical_json(header: Header) -> None:
    data = entry.encode_header(header)
    assert entry.decode_header(data) == header
    assert data.isascii()
    assert rfc8785.dumps(json.loads(data)) == data
    assert entry.header_hash(data) == merkle.leaf_hash(data)


@given(header=headers, data=st.data())
def test_a_changed_byte_is_refused_or_is_another_header(header: Header, data: st.DataObject) -> None:
    encoded = bytearray(entry.encode_header(header))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        read = entry.decode_header(bytes(encoded))
    except MalformedHeader:
        return
    assert read != header
    assert entry.encode_header(read) == bytes(encoded)


GOOD = entry.encode_header(example()).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        GOOD + " ",
        GOOD + "\n",
        " " + GOOD,
        GOOD.replace('":', '": ', 1),
        GOOD.replace('"seq":12', '"seq":12.0'),
        GOOD.replace('"seq":12', '"seq":1.2e1'),
        GOOD.replace('"seq":12', '"seq":012'),
        GOOD.replace('"seq":12', '"seq":-0'),
        GOOD.replace('"seq":12', '"seq":-1'),
        GOOD.replace('"seq":12', '"seq":NaN'),
        GOOD.replace('"seq":12', '"seq":Infinity'),
        GOOD.replace('"seq":12', '"seq":1e400'),
        GOOD.replace('"seq":12', '"seq":9007199254740992'),
        GOOD.replace('"seq":12', '"seq":99999999999999999999999999'),
        GOOD.replace('"seq":12', '"seq":true'),
        GOOD.replace('"seq":12', '"seq":"12"'),
        GOOD.replace('"seq":12', '"seq":' + "[" * 5_000 + "]" * 5_000),
        GOOD.replace('"seq":12,', ""),
        GOOD.replace('"seq":12,', '"seq":12,"seq":12,'),
        GOOD.replace('"seq":12,', '"seq":11,"seq":12,'),
        GOOD.replace('"v":1', '"v":1,"w":1'),
        GOOD.replace('"v":1', '"v":2'),
        GOOD.replace('"v":1', '"v":0'),
        GOOD.replace('"v":1', '"v":true'),
        GOOD.replace('"sources":1', '"sources":0'),
        GOOD.replace("transcript", "\\u0074ranscript"),
        GOOD.replace("transcript", "\\ud800"),
        GOOD.replace("transcript", "transcr\u00efpt"),
        GOOD.replace("transcript", "tran\\nscript"),
        GOOD.replace('"ab', '"AB'),
        GOOD.replace("250001Z", "250001+00:00"),
        GOOD.replace(".250001Z", "Z"),
        GOOD.replace(".250001Z", ".2500010Z"),
        GOOD.replace("2026-03-01", "2026-02-30"),
        GOOD.replace("12:00:00", "12:00:60"),
        GOOD.replace("-7000-", "-4000-"),
        GOOD.replace("-8000-", "-c000-"),
        GOOD.replace("019cacb9", "019CACB9"),
        GOOD.replace("payload/a", "../a"),
        GOOD.replace("payload/a", "/payload/a"),
        GOOD.replace("payload/a", "payload//a"),
        GOOD.replace('"role":"body"', '"role":""'),
        GOOD.replace('"role":"body",', '"role":"body","size":1,'),
        GOOD.replace('"len":99', '"len":"99"'),
        '{"v":1,' + GOOD[1:].replace(',"v":1', ""),
    ],
)
def test_whatever_is_not_the_canonical_encoding_is_refused(text: str) -> None:
    assert text != GOOD
    with pytest.raises(MalformedHeader):
        entry.decode_header(text.encode())


@pytest.mark.parametrize("data", [b"\xff\xfe", b"\xef\xbb\xbf" + GOOD.encode(), GOOD.encode("utf-16"), b"\x00"])
def test_bytes_that_are_not_utf8_json_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedHeader):
        entry.decode_header(data)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"version": True},
        {"id": "x"},
        {"id": "019CACB9-9b00-7000-8000-000000000000"},
        {"id": "019cacb9-9b00-7000-8000-000000000000\n"},
        {"kind": ""},
        {"kind": "Tool.Call"},
        {"kind": None},
        {"data_class": "two words"},
        {"at": NOW.replace(tzinfo=None)},
        {"at": NOW.astimezone(timezone(timedelta(hours=1)))},
        {"received": NOW.replace(tzinfo=None)},
        {"recorder": "r1"},
        {"seq": -1},
        {"seq": True},
        {"seq": 1.0},
        {"seq": 1 << 53},
        {"stream": "conv_71"},
        {"stream": "CD" * 16},
        {"position": False},
        {"previous": bytes(31)},
        {"previous": "00" * 32},
        {"sources_count": 0},
        {"sources_root": None},
        {"sources_root": bytes(33)},
    ],
)
def test_values_that_break_a_rule_are_never_encoded(changes: dict[str, Any]) -> None:
    with pytest.raises(MalformedHeader):
        entry.encode_header(example(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"role": ""},
        {"algorithm": "\u00e9"},
        {"length": True},
        {"length": -1},
        {"offset": 1 << 53},
        {"sha256": bytes(20)},
        {"object": ""},
        {"object": "a/../b"},
        {"object": "a" * 513},
    ],
)
def test_parts_that_break_a_rule_are_never_encoded(changes: dict[str, Any]) -> None:
    header = example()
    with pytest.raises(MalformedHeader):
        entry.encode_header(replace(header, parts=(replace(header.parts[0], **changes),)))


def test_a_header_over_sixteen_kibibytes_is_refused_both_ways() -> None:
    header = example()
    with pytest.raises(MalformedHeader, match="16384"):
        entry.encode_header(replace(header, parts=header.parts * 130))
    with pytest.raises(MalformedHeader, match="16384"):
        entry.decode_header(b" " * 16_385)


@pytest.mark.scenario("L38")
def test_an_error_never_repeats_the_value() -> None:
    with pytest.raises(MalformedHeader) as caught:
        entry.encode_header(example(stream="ada@example.org"))
    assert re.search(r"\bada\b", str(caught.value)) is None


@given(
    at=st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(9999, 12, 31), timezones=st.just(UTC)),  # noqa: DTZ001
    noise=st.binary(min_size=10, max_size=10),
)
def test_a_uuid7_is_one_and_keeps_its_millisecond(at: datetime, noise: bytes) -> None:
    made = entry.uuid7(at, noise)
    parsed = UUID(made)
    assert str(parsed) == made
    assert parsed.version == 7
    assert parsed.variant == "specified in RFC 4122"
    assert entry.uuid7_time(made) == at.replace(microsecond=at.microsecond // 1000 * 1000)


def test_the_uuid7_of_the_rfc_is_made() -> None:
    at = datetime.fromtimestamp(0x017F22E279B0 // 1000, tz=UTC) + timedelta(milliseconds=0x017F22E279B0 % 1000)
    noise = ((0xCC3 << 62) | 0x18C4DC0C0C07398F).to_bytes(10, "big")
    assert entry.uuid7(at, noise) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


def test_uuid7s_differ_by_chance_and_sort_by_time() -> None:
    assert entry.uuid7(NOW) != entry.uuid7(NOW)
    assert entry.uuid7(NOW) < entry.uuid7(NOW + timedelta(milliseconds=1))


def test_a_uuid7_needs_an_aware_time_after_1970_and_ten_bytes() -> None:
    for at, noise in ((NOW.replace(tzinfo=None), None), (datetime(1969, 1, 1, tzinfo=UTC), None), (NOW, b"short")):
        with pytest.raises(MalformedHeader):
            entry.uuid7(at, noise)
    for bad in ("", "not-an-id", "019cacb9-9b00-4000-8000-000000000000", "ffffffff-ffff-7000-8000-000000000000"):
        with pytest.raises(MalformedHeader):
            entry.uuid7_time(bad)


def test_the_root_of_sources_depends_on_their_order() -> None:
    first, second = "019cacb9-9b00-7000-8000-000000000000", "art_2"
    one = merkle.node_hash(merkle.leaf_hash(first.encode()), merkle.leaf_hash(second.encode()))
    assert entry.sources_root([first, second]) == one
    assert entry.sources_root([second, first]) != one
    with pytest.raises(MalformedHeader):
        entry.sources_root([])


def test_every_kind_is_for_users_or_for_the_system_and_well_named() -> None:
    assert frozenset(Kind) == entry.USER_KINDS | entry.SYSTEM_KINDS
    assert not entry.USER_KINDS & entry.SYSTEM_KINDS
    assert all(re.fullmatch(r"[a-z]+(\.[a-z]+)?", kind) for kind in Kind)
    assert len(entry.USER_KINDS) == 16


@pytest.mark.parametrize("number", [-1, 1, 2**40])
def test_a_part_that_a_header_does_not_have_is_a_named_error(number: int) -> None:
    raw = GOOD.encode()
    assert [entry.part_at(raw, 0)] == list(entry.decode_header(raw).parts)
    with pytest.raises(MalformedHeader, match="among its 1 parts"):
        entry.part_at(raw, number)
