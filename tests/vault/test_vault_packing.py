import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from vault import packing
from vault.dictionaries import build
from vault.errors import MalformedPlaintext, TooLarge
from vault.packing import MAX_BODY_BYTES, digest_of, pack, pack_many, padded_size, unpack

DICTIONARY = Path(packing.__file__).parent / "dictionaries" / "v1.zstd-dictionary"


@given(st.binary(max_size=3000))
def test_a_body_comes_back_byte_for_byte(body: bytes) -> None:
    packed = pack(body)
    assert unpack(packed) == body
    assert hashlib.sha256(body).digest() == digest_of(packed)
    # Without a decompressor: the digest stands before the frame, or the body as it is.
    assert packed[1:33] == digest_of(packed) if packed[0] == 1 else packed[5 : 5 + len(body)] == body


def test_short_and_incompressible_bodies_are_kept_as_they_are_when_that_is_shorter() -> None:
    noise = os.urandom(4_000)
    assert pack(b"{}") == b"\x02\0\0\0\x02{}\0"
    assert pack(b'{"model":"m-1","agent":"desk"}') == b'\x02\0\0\0\x1e{"model":"m-1","agent":"desk"}'.ljust(40, b"\0")
    assert (pack(noise)[0], len(pack(noise))) == (2, 4_096)
    assert pack(b'{"role":"user","content":"' + b"where is my order? " * 20 + b'"}')[0] == 1


def test_bodies_kept_as_they_are_tell_their_size_in_steps_of_eight_bytes_at_least() -> None:
    sizes = {len(pack(bytes(range(128, 128 + size)))) for size in range(1, 60)}
    assert sizes == {8, 16, 24, 32, 40, 48, 56, 64}


@given(st.lists(st.binary(max_size=300), max_size=12))
def test_many_bodies_are_packed_as_each_would_be_alone(bodies: list[bytes]) -> None:
    assert pack_many(bodies) == [pack(body) for body in bodies]


@pytest.mark.parametrize("count", [199, 200, 999])
def test_so_many_bodies_that_two_cores_take_them_keep_their_order(count: int) -> None:
    bodies = [b'{"n":%d,"text":"%s"}' % (number, b"ab" * (number % 50)) for number in range(count)]
    assert pack_many(bodies) == [pack(body) for body in bodies]


@given(st.lists(st.integers(min_value=0, max_value=9_000), max_size=8))
def test_bodies_of_sizes_that_are_searched_differently_keep_their_order(sizes: list[int]) -> None:
    bodies = [(b"%d where is my order, please? " % size * 400)[:size] for size in sizes]
    packed = pack_many(bodies)
    assert packed == [pack(body) for body in bodies]
    assert [unpack(one) for one in packed] == bodies


def test_a_message_of_a_few_hundred_bytes_gets_no_longer_than_by_zstd_alone() -> None:
    # With the dictionary at level 3 it was 5 % longer: what was found in the dictionary hid what stands in the text.
    text = (Path(build.__file__).parent.parent / "packing.py").read_text(encoding="utf-8")
    bodies = [json.dumps({"role": "user", "content": text[at : at + 700]}).encode() for at in range(0, 7_000, 700)]
    alone = sum(len(zstandard.ZstdCompressor(level=3).compress(body)) for body in bodies)
    assert sum(int.from_bytes(pack(body)[33:37], "big") for body in bodies) < 0.95 * alone


def test_one_body_over_the_limit_stops_the_many_before_any_is_packed() -> None:
    with pytest.raises(TooLarge):
        pack_many([b"x", bytes(MAX_BODY_BYTES + 1)])


@given(st.integers(min_value=37, max_value=2**26))
def test_padding_costs_at_most_twelve_per_cent(size: int) -> None:
    assert size <= padded_size(size) <= size * 1.12


def test_padding_leaves_few_sizes_to_tell_apart() -> None:
    steps = {padded_size(size) for size in range(1, 2**16)}
    assert len(steps) < 400
    assert all(padded_size(step) == step for step in steps)


def test_every_flipped_bit_around_a_body_kept_as_it_is_is_refused() -> None:
    # The body itself is held by the seal around it, and by the digest of whoever binds it.
    packed = pack(b'{"run":"7"}')
    for position in [*range(5), *range(16, len(packed))]:
        for bit in range(8):
            broken = bytearray(packed)
            broken[position] ^= 1 << bit
            with pytest.raises(MalformedPlaintext):
                unpack(bytes(broken))


def test_every_flipped_byte_of_a_packed_body_is_refused() -> None:
    packed = pack(json.dumps({"role": "user", "content": "where is my order? " * 9}).encode())
    assert packed[0] == 1
    for position in range(len(packed)):
        broken = bytearray(packed)
        broken[position] ^= 0x01
        with pytest.raises(MalformedPlaintext):
            unpack(bytes(broken))


def test_shortened_and_extended_packed_bodies_are_refused() -> None:
    packed = pack(b'{"a":1}')
    for broken in (packed[:-1], packed + b"\0", packed + bytes(64), b"", packed[:4]):
        with pytest.raises(MalformedPlaintext):
            unpack(broken)
        with pytest.raises(MalformedPlaintext):
            digest_of(broken)


def forged(frame: bytes, body: bytes) -> bytes:
    head = b"\x01" + hashlib.sha256(body).digest() + len(frame).to_bytes(4, "big")
    return (head + frame).ljust(padded_size(len(head) + len(frame)), b"\0")


def dictionary() -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(DICTIONARY.read_bytes())


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = bytes(MAX_BODY_BYTES + 1)
    frame = zstandard.ZstdCompressor(dict_data=dictionary(), write_dict_id=False).compress(bomb)
    assert len(frame) < 10_000
    with pytest.raises(MalformedPlaintext, match="larger than"):
        unpack(forged(frame, bomb))
    for body in (bytes(11), bytes(100)):
        with pytest.raises(MalformedPlaintext, match="larger than 10 bytes"):
            unpack(pack(body), max_size=10)
    assert unpack(pack(bytes(10)), max_size=10) == bytes(10)


def test_a_frame_that_hides_its_size_is_refused() -> None:
    unsized = zstandard.ZstdCompressor(dict_data=dictionary(), write_content_size=False, write_dict_id=False)
    with pytest.raises(MalformedPlaintext, match="no size"):
        unpack(forged(unsized.compress(b"x" * 100), b"x" * 100))


def test_a_frame_with_bytes_after_it_or_another_body_is_refused() -> None:
    frame = zstandard.ZstdCompressor(dict_data=dictionary(), write_dict_id=False).compress(b"body")
    assert unpack(forged(frame, b"body")) == b"body"
    with pytest.raises(MalformedPlaintext):
        unpack(forged(frame + frame, b"body"))
    with pytest.raises(MalformedPlaintext):
        unpack(forged(frame, b"another body"))


def test_a_body_over_the_limit_is_refused_with_both_sizes() -> None:
    with pytest.raises(TooLarge) as refused:
        pack(bytes(MAX_BODY_BYTES + 1))
    assert (refused.value.size, refused.value.limit) == (MAX_BODY_BYTES + 1, MAX_BODY_BYTES)


def test_the_largest_incompressible_body_still_fits() -> None:
    body = os.urandom(1 << 20)
    assert unpack(pack(body)) == body


def test_threads_do_not_share_a_compressor() -> None:
    bodies = [
        json.dumps({"n": number, "text": "please confirm the order " * (number % 9)}).encode() for number in range(400)
    ]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda body: unpack(pack(body)), bodies)) == bodies


def test_the_dictionary_is_the_published_one_and_never_changes() -> None:
    # Changing these bytes makes every record sealed with version 1 unreadable: add a version instead.
    data = DICTIONARY.read_bytes()
    assert len(data) == build.SIZE
    assert hashlib.sha256(data).hexdigest() == "261203cfed39ceab424094d438b87bd4273fc0f6baa11abe31ef7f9b1123f0a2"


def test_the_dictionary_comes_from_made_up_samples_alone() -> None:
    first, again = list(build.samples()), list(build.samples())
    assert first == again
    # Windows that lie across the border of two copied segments are the only ones the script did not write.
    corpus = b"\n".join(first)
    content = DICTIONARY.read_bytes()[512:]
    windows = [content[start : start + 16] for start in range(0, len(content) - 16, 8)]
    assert sum(window in corpus for window in windows) > len(windows) * 0.9


def test_the_dictionary_halves_a_typical_event() -> None:
    body = json.dumps(
        {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function"}]}
    ).encode()
    plain = len(zstandard.ZstdCompressor(level=3).compress(body))
    assert int.from_bytes(pack(body)[33:37], "big") < plain / 2
