"""Entry ids and times, made cheaply on the hot path.

Ids are UUIDv7 (RFC 9562 §5.7): unique, ordered by the millisecond, not secret. A generator is reseeded after a fork.
"""

from __future__ import annotations

import os
import random
import time
from datetime import UTC, datetime

_LOW_62 = (1 << 62) - 1


def uuid7_from(milliseconds: int, rand_a: int, rand_b: int) -> str:
    """Return the UUIDv7 of a Unix time in milliseconds, 12 and 62 further bits. Source: RFC 9562 §5.7."""
    value = (milliseconds & ((1 << 48) - 1)) << 80 | 0x7 << 76 | (rand_a & 0xFFF) << 64 | 0b10 << 62 | rand_b & _LOW_62
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class Stamper:
    """Makes ids and the time of now."""

    def __init__(self) -> None:
        """Seed from the system."""
        # Not os.urandom for each id: that call gives the GIL away, and a busy process makes us wait for it.
        self._random = random.Random(os.urandom(32))  # noqa: S311 (ids are unique, not secret)
        self._second = -1
        self._prefix = ""

    def stamp(self) -> tuple[str, str]:
        """Return a fresh id and the present time, RFC 3339 in UTC with microseconds."""
        now = time.time_ns()
        bits = self._random.getrandbits(74)
        return uuid7_from(now // 1_000_000, bits >> 62, bits), self._text(now)

    def _text(self, now: int) -> str:
        second, rest = divmod(now, 1_000_000_000)
        prefix = self._prefix
        if second != self._second:
            prefix = self._prefix = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._second = second
        return f"{prefix}.{rest // 1000:06d}Z"


def time_text(at: datetime) -> str:
    """Return an aware time as RFC 3339 in UTC with microseconds."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
