"""The service's clock: the machine's, moved by a fixed offset that only tests and the demo set.

Guarantees: aware UTC, never backwards within one process even if the machine's clock is set back. Does not guarantee
that the machine is right: `api.clock_check` compares it with others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta


def _machine() -> datetime:
    return datetime.now(UTC)


class Clock:
    """Returns now; `move` shifts it for tests and the demo. `machine` reads the machine's clock, aware UTC."""

    def __init__(self, offset: timedelta = timedelta(0), *, machine: Callable[[], datetime] = _machine) -> None:
        self._lock = threading.Lock()
        self._machine = machine
        self._offset = offset
        self._last = datetime.min.replace(tzinfo=UTC)

    @property
    def offset(self) -> timedelta:
        """How far this clock is ahead of the machine's."""
        return self._offset

    def now(self) -> datetime:
        """The present instant, aware UTC, to the microsecond."""
        with self._lock:
            self._last = max(self._last, self._machine() + self._offset)
            return self._last

    def move(self, by: timedelta) -> datetime:
        """Moves the clock forward by `by` and returns the new now; backwards is refused, keys may be gone already."""
        if by < timedelta(0):
            message = f"the clock only moves forward, got {by}"
            raise ValueError(message)
        with self._lock:
            self._offset += by
        return self.now()
