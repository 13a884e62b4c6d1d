"""The batch envelope: one byte string each, chained, and no byte of it is free."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
import rfc8785
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ledger import batches
from ledger.batches import Batch
from ledger.errors import LogForked, MalformedBatch

LOG = "log-5f0c"
digests = st.binary(min_size=32, max_size=32)


@st.composite
def any_batch(draw: st.DrawFn) -> Batch:
    headers = tuple(
        draw(st.lists(st.binary(min_size=1, max_size=200).filter(lambda one: b"\n" not in one), min_size=1, max_size=6))
    )
    first = draw(st.integers(0, batches.MAX_INT - 10))
    before = draw(st.integers(1, first)) if first else 0
    checkpoint = draw(st.integers(0, first))
    return Batch(
        log_id=LOG,
        first=first,
        count=len(headers),
        previous_key=batches.batch_key(first - before) if first else None,
        previous_count=before,
        previous_digest=draw(digests) if first else None,
        checkpoint_size=checkpoint,
        checkpoint_digest=draw(digests) if checkpoint else None,
        fence=draw(st.integers(0, batches.MAX_INT)),
        headers=headers,
    )


def example(**changes: Any) -> Batch:
    batch = Batch(
        log_id=LOG,
        first=7,
        count=2,
        previous_key=batches.batch_key(4),
        previous_count=3,
        previous_digest=bytes(32),
        checkpoint_size=7,
        checkpoint_digest=bytes(32),
        fence=1,
        headers=(b"one", b"two"),
    )
    return replace(batch, **changes)


FRAME = bytes.fromhex("28b52ffd20073900006f6e650a74776f")


ZEROS = "A" * 43 + "="
NAMED = b64encode(sha256(FRAME).digest())
LINE = b"\n"
# Without a digest of its own every rule of the envelope stands alone.
SECOND_VERSION = (
    f'{{"bytes":7,"checkpoint_digest":"{ZEROS}","checkpoint_size":7,"count":2,"fence":1,"first":7,'
    f'"frame":"{NAMED.decode()}","log":"log-5f0c","previous_count":3,"previous_digest":"{ZEROS}",'
    '"previous_key":"batch/00000000000000000004","v":2}'
).encode()


def test_what_version_two_wrote_is_read_for_ever() -> None:
    assert batches.decode_batch(SECOND_VERSION + LINE + FRAME) == example(version=2)


FIRST_VERSION = (
    f'{{"checkpoint_digest":"{ZEROS}","checkpoint_size":7,"count":2,"fence":1,"first":7,'
    f'"headers":["b25l","dHdv"],"log":"log-5f0c","previous_count":3,"previous_digest":"{ZEROS}",'
    '"previous_key":"batch/00000000000000000004","v":1}'
)


def test_what_version_one_wrote_is_read_for_ever() -> None:
    assert batches.decode_batch(FIRST_VERSION.encode()) == example()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("}", "}\n"),
        (",", ", "),
        ('"count":2', '"count":3'),
        ('"count":2', '"count":2,"count":2'),
        ('"fence":1', '"fence":1,"more":1'),
        ('"fence":1', '"fence":-1'),
        ("b25l", "b25"),
        ("b25l", "b2_l"),
        ('"b25l","dHdv"', '"b25l",""'),
        ("AAA=", "AAB="),
        ('"v":1', '"v":2'),
        ('"first":7', '"first":8'),
        ('"checkpoint_size":7', '"checkpoint_size":0'),
        ("[", "[" * 3_000),
    ],
)
def test_anything_else_in_version_one_is_refused(old: str, new: str) -> None:
    changed = FIRST_VERSION.replace(old, new, 1)
    assert changed != FIRST_VERSION
    with pytest.raises(MalformedBatch):
        batches.decode_batch(changed.encode())


@given(batch=any_batch())
def test_batches_read_back_and_are_canonical_json(batch: Batch) -> None:
    data = batches.encode_batch(batch)
    assert batches.decode_batch(data) == batch
    envelope, _, frame = data.partition(b"\n")
    assert rfc8785.dumps(json.loads(envelope)) == envelope
    assert zstandard.ZstdDecompressor().decompress(frame).split(b"\n") == list(batch.headers)
    assert batches.batch_digest(data) == sha256(data).digest()


@pytest.mark.scenario("L1")
@given(batch=any_batch(), data=st.data())
def test_a_changed_byte_is_refused_and_changes_the_digest(batch: Batch, data: st.DataObject) -> None:
    encoded = batches.encode_batch(batch)
    damaged = bytearray(encoded)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(MalformedBatch):
        batches.decode_batch(bytes(damaged))
    assert batches.batch_digest(bytes(damaged)) != batches.batch_digest(encoded)


def test_every_single_bit_of_a_batch_is_covered() -> None:
    encoded = batches.encode_batch(example())
    for position in range(len(encoded)):
        for bit in range(8):
            damaged = bytearray(encoded)
            damaged[position] ^= 1 << bit
            with pytest.raises(MalformedBatch):
                batches.decode_batch(bytes(damaged))


GOOD, _, GOOD_FRAME = batches.encode_batch(example()).partition(LINE)


def squeezed(plain: bytes, **how: Any) -> bytes:
    return zstandard.ZstdCompressor(**how).compress(plain)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b",", b", "),
        (b'"count":2', b'"count":2.0'),
        (b'"count":2', b'"count":3'),
        (b'"count":2', b'"count":true'),
        (b'"count":2', b'"count":2,"count":2'),
        (b'"count":2', b'"counts":2'),
        (b'"fence":1', b'"fence":1,"more":1'),
        (b'"fence":1,', b""),
        (b'"fence":1', b'"fence":-1'),
        (b'"fence":1', b'"fence":1e400'),
        (b'"fence":1', b'"fence":NaN'),
        (b'"fence":1', b'"fence":9007199254740992'),
        (NAMED, NAMED[:-1]),
        (NAMED, NAMED + b"\\n"),
        (NAMED, b"_" + NAMED[1:]),
        (NAMED, b64encode(bytes(32))),
        (b"AAA=", b"AAB="),
        (b'"v":2', b'"v":1'),
        (b'"first":7', b'"first":8'),
        (b'"bytes":7', b'"bytes":8'),
        (b'"bytes":7', b'"bytes":67108865'),
        (b'"checkpoint_size":7', b'"checkpoint_size":8'),
        (b'"checkpoint_size":7', b'"checkpoint_size":0'),
        (b"log-5f0c", b"log-5f0c\\u0000"),
        (b'{"bytes"', b"[" * 3_000 + b'{"bytes"'),
        (b'"v":2}', b'"v":2}\n'),
    ],
)
def test_whatever_is_not_the_canonical_envelope_is_refused(old: bytes, new: bytes) -> None:
    changed = SECOND_VERSION.replace(old, new)
    assert changed != SECOND_VERSION
    with pytest.raises(MalformedBatch):
        batches.decode_batch(changed + LINE + FRAME)


def test_an_envelope_of_another_digest_is_refused_also_when_nothing_names_the_batch() -> None:
    members = json.loads(GOOD)
    own = members.pop("envelope").encode()
    assert own == b64encode(sha256(rfc8785.dumps(members)).digest())
    for old, new in ((b'"fence":1', b'"fence":2'), (own, b64encode(bytes(32))), (b'"envelope":"' + own + b'",', b"")):
        changed = GOOD.replace(old, new)
        assert changed != GOOD
        with pytest.raises(MalformedBatch, match="its own digest"):
            batches.decode_batch(changed + LINE + GOOD_FRAME)


@pytest.mark.parametrize("data", [b"", b"[]", LINE, GOOD, GOOD + LINE, GOOD_FRAME, GOOD + GOOD_FRAME])
def test_what_is_no_batch_at_all_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedBatch):
        batches.decode_batch(data)
    with pytest.raises(MalformedBatch):
        batches.open_frame(data.removesuffix(GOOD_FRAME))


@pytest.mark.parametrize(
    "frame",
    [
        GOOD_FRAME + b"\0",
        GOOD_FRAME + GOOD_FRAME,
        GOOD_FRAME[:-1],
        squeezed(b"one\ntwo", write_content_size=False),
        squeezed(b"one\ntwo\n"),
        squeezed(b"one\n\ntwo"),
        squeezed(b"onetwo."),
        squeezed(bytes(batches.MAX_HEADERS_BYTES + 1)),
    ],
)
def test_a_frame_of_anything_else_is_refused_though_the_envelope_names_it(frame: bytes) -> None:
    envelope = GOOD.replace(NAMED, b64encode(sha256(frame).digest()))
    with pytest.raises(MalformedBatch):
        batches.decode_batch(envelope + LINE + frame)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"version": 4},
        {"version": True},
        {"log_id": ""},
        {"log_id": "two words"},
        {"first": -1},
        {"first": 0},
        {"first": True},
        {"first": batches.MAX_INT},
        {"count": 1},
        {"count": 0, "headers": ()},
        {"headers": (b"one", b"")},
        {"headers": (b"one", b"t\nwo")},
        {"headers": (b"one", bytes(16_385))},
        {"headers": ("one", "two")},
        {"previous_key": None},
        {"previous_key": batches.batch_key(5)},
        {"previous_count": 0},
        {"previous_count": 8},
        {"previous_digest": None},
        {"previous_digest": bytes(31)},
        {"checkpoint_size": 8},
        {"checkpoint_size": 0},
        {"checkpoint_digest": None},
        {"fence": -1},
    ],
)
def test_values_that_break_a_rule_are_never_encoded(changes: dict[str, Any]) -> None:
    with pytest.raises(MalformedBatch):
        batches.encode_batch(example(**changes))


def test_headers_over_the_cap_are_refused() -> None:
    headers = (bytes(16_384),) * 4_100
    with pytest.raises(MalformedBatch, match="67108864"):
        batches.encode_batch(example(count=len(headers), headers=headers))


@given(first=st.integers(0, batches.MAX_INT), other=st.integers(0, batches.MAX_INT))
def test_keys_read_back_and_sort_like_indexes(first: int, other: int) -> None:
    assert batches.parse_batch_key(batches.batch_key(first)) == first
    assert (batches.batch_key(first) < batches.batch_key(other)) == (first < other)


@pytest.mark.parametrize(
    "key", ["batch/1", "batch/00000000000000000001x", "Batch/00000000000000000001", "batch/" + "9" * 20, ""]
)
def test_other_keys_are_not_batches(key: str) -> None:
    with pytest.raises(MalformedBatch):
        batches.parse_batch_key(key)


def following(previous: Batch, **changes: Any) -> Batch:
    batch = Batch(
        log_id=previous.log_id,
        first=previous.end,
        count=1,
        previous_key=previous.key,
        previous_count=previous.count,
        previous_digest=batches.batch_digest(batches.encode_batch(previous)),
        checkpoint_size=previous.checkpoint_size,
        checkpoint_digest=previous.checkpoint_digest,
        fence=previous.fence,
        headers=(b"three",),
    )
    return replace(batch, **changes)


@given(previous=any_batch())
def test_a_batch_that_names_the_one_before_it_follows(previous: Batch) -> None:
    digest = batches.batch_digest(batches.encode_batch(previous))
    batches.verify_follows(following(previous), previous, digest)


@pytest.mark.scenario("L7")
@pytest.mark.parametrize(
    "changes",
    [
        {"first": 10},
        {"log_id": "other"},
        {"previous_key": batches.batch_key(4)},
        {"previous_count": 1},
        {"previous_digest": bytes(32)},
        {"fence": 0},
        {"checkpoint_size": 6},
    ],
)
def test_a_batch_that_continues_anything_else_is_a_fork(changes: dict[str, Any]) -> None:
    previous = example()
    digest = batches.batch_digest(batches.encode_batch(previous))
    with pytest.raises(LogForked):
        batches.verify_follows(following(previous, **changes), previous, digest)


def test_only_the_first_batch_follows_nothing() -> None:
    start = example(
        first=0,
        previous_key=None,
        previous_count=0,
        previous_digest=None,
        checkpoint_size=0,
        checkpoint_digest=None,
    )
    assert batches.decode_batch(batches.encode_batch(start)) == start
    batches.verify_follows(start, None, None)
    with pytest.raises(LogForked):
        batches.verify_follows(example(), None, None)
