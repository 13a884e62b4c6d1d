"""How records lie in a spool file: framing, and what can be read back after a crash or damage.

Pure: bytes in, bytes out. A frame is `magic ‖ length ‖ crc32 ‖ number ‖ payload`. The writer copies the payload
first and the header last, so a process killed in between leaves bytes without a header: a *torn* tail, which was
never acknowledged and is ignored. A header whose payload does not match is *damage*: it is reported, and reading
goes on at the next frame that does match. The magic holds control characters, which JSON text never contains, so
a body cannot imitate a frame. It does not guard against an attacker who can write the file.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

MAGIC = b"\x01MR\x02"
_HEADER = struct.Struct("<4sIIQ")
HEADER_BYTES = _HEADER.size
# zlib.crc32 gives the GIL away above 5 KiB, and the caller would wait a switch interval to get it back.
_CRC_CHUNK = 4096


class Frame(NamedTuple):
    """One whole record and where the next one starts."""

    seq: int
    payload: bytes
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A range of a file that held data and cannot be read."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What a file holds: its whole frames, its damage, where writing may go on, and whether the tail was torn."""

    frames: list[Frame]
    damages: list[Damage]
    end: int
    torn: bool


def checksum(seq: int, payload: bytes) -> int:
    """Return the CRC-32 of `payload`, seeded with its number so that a changed number shows too."""
    crc = (seq ^ (seq >> 32)) & 0xFFFFFFFF
    if len(payload) <= _CRC_CHUNK:
        return zlib.crc32(payload, crc)
    view = memoryview(payload)
    for start in range(0, len(view), _CRC_CHUNK):
        crc = zlib.crc32(view[start : start + _CRC_CHUNK], crc)
    return crc


def frame_header(seq: int, payload: bytes) -> bytes:
    """Return the header to put in front of `payload`."""
    return _HEADER.pack(MAGIC, len(payload), checksum(seq, payload), seq)


def frame(seq: int, payload: bytes) -> bytes:
    """Return header and payload in one."""
    return frame_header(seq, payload) + payload


def read_frame(data: bytes, offset: int) -> Frame | None:
    """Return the whole frame at `offset`, or None if there is none."""
    body = offset + HEADER_BYTES
    if body > len(data):
        return None
    magic, length, crc, seq = _HEADER.unpack_from(data, offset)
    if magic != MAGIC or body + length > len(data):
        return None
    payload = data[body : body + length]
    if checksum(seq, payload) != crc:
        return None
    return Frame(seq, payload, body + length)


def frames_from(data: bytes, offset: int) -> Iterator[Frame]:
    """Yield the whole frames from `offset` on, up to the first place that is not one."""
    while (found := read_frame(data, offset)) is not None:
        yield found
        offset = found.end


def scan(data: bytes, offset: int = 0) -> Scan:
    """Return everything that `data` holds from `offset` on; see the module for torn and damaged."""
    frames: list[Frame] = []
    damages: list[Damage] = []
    while True:
        for found in frames_from(data, offset):
            frames.append(found)
            offset = found.end
        following = _next_frame(data, offset + 1)
        if following is None:
            break
        damages.append(Damage(offset=offset, length=following - offset))
        offset = following
    rest = data[offset:].rstrip(b"\0")
    if rest.startswith(MAGIC):
        # The header goes in last, so a header without its payload was whole once.
        damages.append(Damage(offset=offset, length=len(rest)))
        return Scan(frames=frames, damages=damages, end=offset + len(rest), torn=False)
    return Scan(frames=frames, damages=damages, end=offset, torn=bool(rest))


def _next_frame(data: bytes, offset: int) -> int | None:
    while (offset := data.find(MAGIC, offset)) >= 0:
        if read_frame(data, offset) is not None:
            return offset
        offset += 1
    return None
