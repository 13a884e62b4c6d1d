"""Surrogate ids: time-ordered 63-bit integers made in the process, the same on every database.

Guarantees: unique with the primary key as arbiter; ascending within a process, so that index pages fill in order; two
processes differ in their low 12 random bits, so that they do not meet within a millisecond. Not secret, and to be
guessed: they never leave the service except as `art_…` ids inside one tenant, and nobody may give an item such an id.
"""

from __future__ import annotations

import os
import secrets
import threading
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_RANDOM_BITS = 22
_PROCESS_BITS = 12
_lock = threading.Lock()
_last = 0
_process = secrets.randbits(_PROCESS_BITS)


def new_id(now: datetime) -> int:
    """A new surrogate: 41 bits of milliseconds since 2020, 10 that count, 12 of the process; it only ever grows.

    More than 1,024 in a millisecond run ahead into the next.
    """
    global _last  # noqa: PLW0603 - one counter a process is the point
    with _lock:
        candidate = ((now - _EPOCH) // _MILLISECOND) << _RANDOM_BITS | _process
        if candidate <= _last:
            candidate = ((_last >> _PROCESS_BITS) + 1) << _PROCESS_BITS | _process
        _last = candidate
        return candidate


def go_past(number: int) -> None:
    """Let every later surrogate of this process be greater than one that another process made."""
    global _last  # noqa: PLW0603 - as above
    with _lock:
        _last = max(_last, number)


def _another_process() -> None:
    global _process  # noqa: PLW0603 - as above
    _process = secrets.randbits(_PROCESS_BITS)


os.register_at_fork(after_in_child=_another_process)


def first_id(at: datetime) -> int:
    """The smallest surrogate that can have been made at an instant; 0 before there were any."""
    return max((at - _EPOCH) // _MILLISECOND, 0) << _RANDOM_BITS


def random_hex() -> str:
    """32 hexadecimal characters of randomness: the opaque id of a subject, a stream, a run, a recorder."""
    return secrets.token_hex(16)


def artifact_name(artifact_id: int) -> str:
    """The public name of an artifact that was registered without a name of its own."""
    return f"art_{artifact_id:016x}"
