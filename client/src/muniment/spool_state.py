"""What a spool knows besides its records: how far it is acknowledged, its next number, its drops.

Two slots are written in turn, each with its own checksum, so that a process killed while writing leaves the other
one. With neither readable the state starts at nothing acknowledged: records are sent again, and the server knows
their ids.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

_SLOT = struct.Struct("<QQQQQ")
_CRC = struct.Struct("<I")
_SLOT_BYTES = 64
_SLOTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolState:
    """The counters of one spool."""

    generation: int = 0
    acknowledged: int = 0
    next_seq: int = 1
    dropped: int = 0
    unreported: int = 0

    def with_acknowledged(self, seq: int, next_seq: int) -> SpoolState:
        """Return the state with everything up to `seq` acknowledged."""
        return replace(self, generation=self.generation + 1, acknowledged=seq, next_seq=next_seq)

    def with_drop(self, next_seq: int) -> SpoolState:
        """Return the state with one more record dropped."""
        return replace(
            self,
            generation=self.generation + 1,
            dropped=self.dropped + 1,
            unreported=self.unreported + 1,
            next_seq=next_seq,
        )

    def with_reported(self, count: int) -> SpoolState:
        """Return the state with `count` drops told of."""
        return replace(self, generation=self.generation + 1, unreported=max(0, self.unreported - count))


class StateFile:
    """The file the state lives in."""

    def __init__(self, path: Path) -> None:
        """Open or make it. Raises: OSError."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(self._fd).st_size < _SLOTS * _SLOT_BYTES:
            os.posix_fallocate(self._fd, 0, _SLOTS * _SLOT_BYTES)  # counting a drop must not need disk space

    def load(self) -> SpoolState:
        """Return the newest sound slot, or the empty state."""
        slots = [_parse(os.pread(self._fd, _SLOT_BYTES, index * _SLOT_BYTES)) for index in range(_SLOTS)]
        return max((slot for slot in slots if slot is not None), key=_generation, default=SpoolState())

    def save(self, state: SpoolState) -> None:
        """Write `state` over the older slot. Raises: OSError."""
        body = _SLOT.pack(state.generation, state.acknowledged, state.next_seq, state.dropped, state.unreported)
        slot = (body + _CRC.pack(zlib.crc32(body))).ljust(_SLOT_BYTES, b"\0")
        os.pwrite(self._fd, slot, state.generation % _SLOTS * _SLOT_BYTES)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)


def _generation(state: SpoolState) -> int:
    return state.generation


def _parse(data: bytes) -> SpoolState | None:
    if len(data) < _SLOT.size + _CRC.size:
        return None
    body = data[: _SLOT.size]
    (crc,) = _CRC.unpack_from(data, _SLOT.size)
    if zlib.crc32(body) != crc:
        return None
    generation, acknowledged, next_seq, dropped, unreported = _SLOT.unpack(body)
    return SpoolState(
        generation=generation, acknowledged=acknowledged, next_seq=next_seq, dropped=dropped, unreported=unreported
    )
