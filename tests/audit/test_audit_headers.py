"""The auditor's reading of a header accepts exactly what the ledger's does."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from audit.corruptions import Copy
from audit.headers import read_header, read_headers
from ledger.entry import decode_header, encode_header
from ledger.errors import MalformedHeader


def accepted(raw: bytes) -> bool:
    try:
        read_header(raw)
    except MalformedHeader:
        return False
    return True


def accepted_by_the_ledger(raw: bytes) -> bool:
    try:
        decode_header(raw)
    except MalformedHeader:
        return False
    return True


def changed(raw: bytes, data: st.DataObject) -> bytes:
    made = bytearray(raw)
    at = data.draw(st.integers(0, len(made) - 1))
    made[at : at + data.draw(st.integers(0, 2))] = data.draw(
        st.sampled_from([b"", b"0", b"-", b" ", b'"', b",", b"}", b"\xff", b"A", b"null", b"1e2"])
    )
    return bytes(made)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_many_headers_are_read_at_once_just_when_each_could_be_read_alone(small_log: Copy, data: st.DataObject) -> None:
    raws = [encode_header(header) for header in small_log.history.headers[:6]]
    assert read_headers(raws) == [read_header(raw) for raw in raws]
    at = data.draw(st.integers(0, 5))
    raws[at] = changed(raws[at], data)
    if raws[at] and b"\n" not in raws[at]:
        assert (read_headers(raws) is not None) == all(map(accepted, raws))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("v", b"2"),
        ("position", b"-1"),
        ("position", b"9007199254740992"),
        ("sources", b"1"),
        ("at", b'"2026-02-30T12:00:00.000000Z"'),
        ("received", b'"2026-03-01T24:00:00.000000Z"'),
        ("previous", b'"' + b"A" * 64 + b'"'),
        ("previous", b'"' + b"0" * 63 + b'"'),
        ("id", b'"019cacb9-9b00-4000-8000-000000000000"'),
        ("stream", b'"' + b"0" * 31 + b'"'),
        ("kind", b'"Turn.user"'),
        ("class", b'"tran script"'),
    ],
)
def test_one_wrong_value_among_many_headers_is_seen(small_log: Copy, field: str, value: bytes) -> None:
    raws = [encode_header(header) for header in small_log.history.headers[:4]]
    pattern = rb'(?<="' + field.encode() + rb'":)("[^"]*"|[0-9]+)'
    raws[2], count = re.subn(pattern, lambda _match: value, raws[2], count=1)
    assert count == 1
    assert not accepted(raws[2])
    assert read_headers(raws) is None


def test_a_value_may_not_reach_into_its_neighbour(small_log: Copy) -> None:
    # Two columns that are right together only: one id too short, the next one longer by what it lacks.
    first, second = (encode_header(header) for header in small_log.history.headers[:2])
    ids = [header.id for header in small_log.history.headers[:2]]
    shifted = [
        first.replace(ids[0].encode(), ids[0][:-1].encode()),
        second.replace(ids[1].encode(), (ids[0][-1] + ids[1]).encode()),
    ]
    assert read_headers(shifted) is None


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_both_readers_agree_on_every_mutated_header(small_log: Copy, data: st.DataObject) -> None:
    raw = bytearray(encode_header(data.draw(st.sampled_from(small_log.history.headers))))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b"0", b"9", b" ", b"A", b"\xff", b"\n"])
        )
    assert accepted(bytes(raw)) == accepted_by_the_ledger(bytes(raw))


FIELDS = {
    rb'"at":"[^"]*"': [b'"at":"2026-02-30T12:00:00.000000Z"', b'"at":"2026-02-28T24:00:00.000000Z"', b'"at":null'],
    rb'"seq":\d+': [b'"seq":null', b'"seq":-1', b'"seq":1.0', b'"seq":1e3', b'"seq":9007199254740991', b'"seq":true'],
    rb'"position":\d+': [b'"position":9007199254740992', b'"position":00', b'"position":null'],
    rb'"recorder":"[^"]*"': [b'"recorder":null', b'"recorder":"AB"', b'"recorder":"abab\\u0061babababababab"'],
    rb'"previous":"[^"]*"': [
        b'"previous":"' + b"0" * 64 + b"\\n" + b"0" * 64 + b'"', b'"previous":""', b'"previous":"' + b"0" * 63 + b'"',
        b'"previous":"' + b"0" * 63 + b'\\n"', b'"previous":"' + b"A" * 64 + b'"',
    ],
    rb'"sha256":"[^"]*"': [
        b'"sha256":"' + b"0" * 64 + b"\\n" + b"0" * 64 + b'"', b'"sha256":"\\n"', b'"sha256":"' + b"0" * 65 + b'"',
    ],
    rb'"received":"[^"]*"': [
        b'"received":"2026-02-28T12:00:00.000000Z\\n2026-02-28T12:00:00.000000Z"',
        b'"received":"0000-01-01T00:00:00.000000Z"',
    ],
    rb'"len":\d+': [b'"len":-1', b'"len":9007199254740992', b'"len":true'],
    rb'"sources":0': [b'"sources":1'],
    rb'"sources_root":null': [b'"sources_root":"' + b"0" * 64 + b'"'],
    rb'"v":1': [b'"v":2', b'"v":1,"v":1', b'"v":1,"w":1', b'"v":"1"'],
    rb'"obj":"[^"]*"': [b'"obj":"../x"', b'"obj":"a//b"', b'"obj":"' + b"a" * 513 + b'"', b'"obj":"a\\n"'],
    rb'"kind":"[^"]*"': [b'"kind":""', b'"kind":"A"', b'"kind":"note\\n"', b'"kind":"' + b"a" * 129 + b'"'],
    rb'"class":"[^"]*"': [b'"class":"Ab"', b'"class":" "'],
    rb'"stream":"[^"]*"': [b'"stream":"' + b"A" * 32 + b'"', b'"stream":"' + b"f" * 32 + b'"'],
    rb'"id":"[^"]*"': [b'"id":"019ca945-0a00-49fe-bcaf-000000000000"'],
}  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "value"), [(pattern, value) for pattern, values in FIELDS.items() for value in values], ids=repr
)
def test_both_readers_agree_on_every_odd_value(small_log: Copy, pattern: bytes, value: bytes) -> None:
    raw, count = re.subn(pattern, lambda _match: value, encode_header(small_log.history.headers[3]), count=1)
    assert count == 1
    assert accepted(raw) == accepted_by_the_ledger(raw)


def test_a_header_is_read_alike_by_both(small_log: Copy) -> None:
    for header in small_log.history.headers:
        raw = encode_header(replace(header, sources_count=2, sources_root=bytes(32), recorder=None, seq=None))
        read, known = read_header(raw), decode_header(raw)
        assert (read.id, read.kind, read.position, read.stream) == (known.id, known.kind, known.position, known.stream)
        assert read.previous_hash == known.previous
        assert [(part.obj, part.off, part.len, part.sha256) for part in read.parts] == [
            (part.object, part.offset, part.length, part.sha256.hex()) for part in known.parts
        ]
