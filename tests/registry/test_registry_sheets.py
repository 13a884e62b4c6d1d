"""A sheet says of a call what its entries say one by one, and what is sealed of it opens as what was sent."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.entry import Part, decode_header, uuid7, with_place
from registry.drafting import parsed_item
from registry.entries import MalformedEntry
from registry.keyed import Lookups
from registry.sheets import Content, Digests, SealOrder, Shape, ShapedHeader, Sheet, read_sheet, seal_sheet, spoken_for
from tests.registry.conftest import House
from vault.envelope import context, entry_of, in_entry, unseal
from vault.errors import NotDecryptable
from vault.packing import pack, unpack

NOW = datetime(2026, 11, 30, tzinfo=UTC)
KEYS = [b"\x01" * 32, b"\x02" * 32]


def entry(number: int, **more: Any) -> dict[str, Any]:
    made = {
        "id": uuid7(NOW, number.to_bytes(10, "big")),
        "stream": f"conv_{number % 3}",
        "kind": "turn.user",
        "at": "2026-11-29T12:00:00Z",
        "data_class": "transcript",
        "subjects": [f"user:u{number % 3}"],
        "body": {"n": number},
    }
    return {name: value for name, value in {**made, **more}.items() if value is not ...}


def part_at(name: str, offset: int, length: int) -> Part:
    return Part(role="", algorithm="", length=length, sha256=b"", object=name, offset=offset)


def shaped(*roles: str) -> ShapedHeader:
    return ShapedHeader("turn.user", "transcript", None, "a" * 32, 0, None, "c2sp-chunked-aes256gcm", roles)


def taken(*entries: dict[str, Any] | bytes, lines: bool = False) -> tuple[Sheet, list[Content]]:
    raws = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in entries]
    data = b"\n".join(raws) if lines else b'{"entries": [' + b",".join(raws) + b"]}"
    found = read_sheet(data, lines=lines, most=100)
    assert found is not None
    return found


ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["phase", "tool.call", "turn.user"]),
        "actor": st.sampled_from(["user:u1", "somebody"]),
        "agent": st.sampled_from(["a", "b"]),
        "run": st.just("run"),
        "recorder": st.just("r"),
        "seq": st.integers(0, 9),
        "subjects": st.sampled_from([[], ["user:u1"], ["user:u1", "user:u2"]]),
        "sources": st.sampled_from([[], [uuid7(NOW, bytes(10))]]),
        "at": st.sampled_from(["2026-11-29T12:00:00+01:00", "2020-01-01T00:00:00Z", "yesterday"]),
        "body": st.sampled_from([{"a": 1}, [2**70], "text", {"phase": "confirm"}]),
        "stream": st.sampled_from(["one", "two", ""]),
    },
)


@given(st.lists(ENTRIES, min_size=1, max_size=8), st.booleans())
def test_a_sheet_says_what_each_entry_says(more: list[dict[str, Any]], lines: bool) -> None:
    raws = [json.dumps(entry(number, **one)).encode() for number, one in enumerate(more)]
    sheet, contents = taken(*raws, lines=lines)
    assert sheet.count == len(raws)
    refused = {one.number: one for one in sheet.refused}
    place = 0
    for number, raw in enumerate(raws):
        alone = parsed_item(number, raw)
        if alone.parsed is None:
            one = refused.pop(number)
            assert (one.entry_id, one.problem) == (alone.entry_id, alone.problem)
            continue
        parsed = alone.parsed
        saying = sheet.sayings[sheet.says[place]]
        assert sheet.numbers[place] == number
        assert (sheet.ats[place], sheet.seqs[place]) == (parsed.at, parsed.sent.seq)
        assert (place in sheet.odd) == parsed.noncanonical
        assert (place in sheet.heard) == (parsed.sent.kind in ("phase", "tool.call"))
        assert contents[place] == Content(
            sheet.says[place], sheet.ids[place], parsed.at, parsed.sent.seq, raw, [one.data for one in parsed.parts]
        )
        spoken = spoken_for(saying, sheet.ids[place])
        parsed.sent.at, parsed.sent.seq, parsed.sent.body = spoken.at, spoken.seq, spoken.body
        assert spoken == parsed.sent
        place += 1
    assert not refused
    assert len(set(sheet.sayings)) == len(sheet.sayings)


def test_parts_are_said_without_their_bytes() -> None:
    parts = [
        {"name": "shown", "body": {"secret": "x"}, "subjects": ["user:u2"], "pinned": True},
        {"name": "file", "blob": base64.b64encode(b"secret").decode(), "data_class": "other"},
    ]
    sheet, (content,) = taken(entry(1, body=..., parts=parts))
    (saying,) = sheet.sayings
    assert [(one.name, one.form, one.subjects, one.data_class, one.pinned) for one in saying.parts] == [
        ("shown", "json", ("user:u2",), None, True),
        ("file", "blob", None, "other", False),
    ]
    assert content.parts == [b'{"secret": "x"}', b"secret"]
    assert "secret" not in repr(sheet)
    spoken = spoken_for(saying, sheet.ids[0])
    assert [(one.name, one.subjects, one.data_class) for one in spoken.parts or ()] == [
        ("shown", ["user:u2"], None),
        ("file", None, "other"),
    ]


def test_a_call_that_cannot_be_taken_apart_or_is_too_long_has_no_sheet() -> None:
    with pytest.raises(MalformedEntry):
        read_sheet(b'{"entries": [', lines=False, most=9)
    data = json.dumps({"entries": [entry(1), entry(2)]}).encode()
    assert read_sheet(data, lines=False, most=1) is None
    assert read_sheet(data, lines=False, most=2) is not None


def test_what_is_sealed_opens_as_what_was_sent_under_the_key_of_its_place() -> None:
    sheet, contents = taken(entry(1), entry(2, actor="somebody"), entry(3, kind="unknown"))
    entered = in_entry(b"", "part.0"), in_entry(b"", "actor"), in_entry(b"", "skeleton")
    facts = pack(b'{"agent":"a"}')
    shapes = [
        Shape(((0, entered[0]), (1, entered[2])), None, facts, shaped("part.0", "skeleton")),
        Shape(
            ((0, entered[0]), (0, entered[1]), (1, entered[2])),
            b"somebody",
            facts,
            shaped("part.0", "actor", "skeleton"),
        ),
        None,
    ]
    assert sheet.says == [0, 1, 2]
    order = SealOrder("7", "log", NOW, b"k" * 32, KEYS, shapes)
    sealed = seal_sheet(contents, order)
    assert sealed.hashes == [sha256(one).digest() for one in sealed.ciphertexts]
    opened = [
        (0, 0, "part.0", contents[0].parts[0]),
        (1, 0, "skeleton", b'{"agent":"a"}'),
        (0, 1, "part.0", contents[1].parts[0]),
        (0, 1, "actor", b"somebody"),
        (1, 1, "skeleton", b'{"agent":"a"}'),
    ]
    assert len(sealed.ciphertexts) == len(opened)
    for ciphertext, (key, number, role, data) in zip(sealed.ciphertexts, opened, strict=True):
        bound = context("7", "log", sheet.ids[number], role)
        assert bound == in_entry(entry_of("7", "log", sheet.ids[number]), role)
        assert unpack(unseal(KEYS[key], ciphertext, bound)) == data
    assert len(sealed.digests) == 2
    for number, stem in enumerate(sealed.stems):
        start = 2 * number
        ciphertexts = sealed.ciphertexts[start : start + len(stem) - 2]
        places = [part_at(f"payload/{at}", at, len(one)) for at, one in enumerate(ciphertexts)]
        header = decode_header(with_place(stem, places, 9, b"p" * 32))
        assert (header.id, header.at, header.received) == (sheet.ids[number], sheet.ats[number], NOW)
        assert [(one.length, one.sha256, one.object, one.offset) for one in header.parts] == [
            (len(one), sha256(one).digest(), f"payload/{at}", at) for at, one in enumerate(ciphertexts)
        ]


def test_an_order_for_other_parts_than_were_sent_seals_nothing() -> None:
    _, contents = taken(entry(1))
    short = Shape(((0, in_entry(b"", "skeleton")),), None, pack(b"{}"), shaped("skeleton"))
    for shape, keys, problem in ((short, KEYS, ValueError), (short, [b"short"], (ValueError, NotDecryptable))):
        with pytest.raises(problem):
            seal_sheet(contents, SealOrder("7", "log", NOW, b"k", keys, [shape]))


def test_a_repeat_has_the_digest_that_the_record_has_always_had(house: House) -> None:
    lookups = Lookups(house.vault, house.alice.tenant_id)
    assert Digests(lookups.key).of("id", b"raw") == lookups.of("entry", "id", b"raw")[:16]
