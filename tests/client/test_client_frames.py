"""Framing: whatever was written whole is read back, and whatever was damaged is reported."""

from hypothesis import given
from hypothesis import strategies as st

from muniment.frames import HEADER_BYTES, MAGIC, checksum, frame, frame_header, read_frame, scan

json_like = st.binary(max_size=200).map(lambda data: data.replace(MAGIC, b""))
payloads = st.lists(json_like, max_size=8)


@given(payloads, st.integers(1, 1 << 40), st.integers(0, 64))
def test_what_was_framed_is_read_back_in_order(bodies: list[bytes], first: int, zeros: int) -> None:
    data = b"".join(frame(first + number, body) for number, body in enumerate(bodies)) + bytes(zeros)
    found = scan(data)
    assert [(item.seq, item.payload) for item in found.frames] == [(first + n, b) for n, b in enumerate(bodies)]
    assert found.damages == []
    assert not found.torn
    assert found.end == len(data) - zeros


@given(st.lists(json_like, min_size=1, max_size=6), st.data())
def test_a_tail_cut_while_its_payload_was_written_is_torn_and_costs_no_earlier_record(
    bodies: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(frame(number, body) for number, body in enumerate(bodies))
    body = data.draw(st.binary(min_size=1, max_size=50).filter(lambda each: each.strip(b"\0") and MAGIC not in each))
    # The payload is copied first, the header last: this is what a kill between the two leaves.
    torn = bytes(HEADER_BYTES) + body
    found = scan(whole + torn + bytes(32))
    assert [item.payload for item in found.frames] == bodies
    assert found.torn
    assert found.damages == []


@given(st.lists(st.binary(min_size=1, max_size=60), min_size=3, max_size=8), st.data())
def test_a_flipped_bit_before_the_last_record_is_reported_and_never_changes_what_is_read(
    bodies: list[bytes], data: st.DataObject
) -> None:
    bodies = [body.replace(MAGIC, b"x") or b"x" for body in bodies]
    frames = [frame(number, body) for number, body in enumerate(bodies)]
    damaged_one = data.draw(st.integers(0, len(frames) - 2))
    start = sum(map(len, frames[:damaged_one]))
    bit = data.draw(st.integers(0, len(frames[damaged_one]) * 8 - 1))
    whole = bytearray(b"".join(frames))
    whole[start + bit // 8] ^= 1 << bit % 8
    found = scan(bytes(whole) + bytes(16))
    expected = [(number, body) for number, body in enumerate(bodies) if number != damaged_one]
    assert [(item.seq, item.payload) for item in found.frames] == expected
    assert [damage.offset for damage in found.damages] == [start]
    assert found.damages[0].length == len(frames[damaged_one])


def test_a_whole_header_over_a_wrong_payload_at_the_end_is_damage_and_not_a_torn_tail() -> None:
    found = scan(frame(1, b"kept") + frame_header(2, b"what was meant") + b"what is there!")
    assert [item.payload for item in found.frames] == [b"kept"]
    assert not found.torn
    assert len(found.damages) == 1


def test_the_number_of_a_record_is_covered_by_its_checksum() -> None:
    data = bytearray(frame(7, b"body"))
    data[12] ^= 1
    assert read_frame(bytes(data), 0) is None


@given(st.binary(max_size=20_000), st.integers(0, 1 << 63))
def test_the_checksum_does_not_depend_on_how_it_is_cut(body: bytes, seq: int) -> None:
    import zlib

    assert checksum(seq, body) == zlib.crc32(body, (seq ^ (seq >> 32)) & 0xFFFFFFFF)
