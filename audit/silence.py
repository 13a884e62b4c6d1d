"""Whether a recorder that used to send heartbeats fell silent: what it would have said then, nobody can know.

Guarantees: the usual pause is the median of the last heartbeats' own pauses, so no setting of the agent is trusted; a
pause counts as silence when it is more than three times as long, and only once three pauses are known. A recorder that
never sends heartbeats is never called silent. Heartbeats that arrive late count by the time they claim. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from ledger.entry import format_instant

FACTOR = 3
_NEEDED = 3
_REMEMBERED = 31
_SHORTEST = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """No heartbeat between the two; `until` is None while it lasts. `every` is the pause that was usual before."""

    recorder: str
    since: datetime
    until: datetime | None
    every: timedelta


@dataclass(slots=True, kw_only=True)
class Pulse:
    """One recorder's heartbeats as they come; remembers a few pauses only."""

    recorder: str
    last: datetime | None = None
    _pauses: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def beat(self, at: datetime) -> Silence | None:
        """Take the next heartbeat; return the silence that it ends, if there was one."""
        if self.last is None or at <= self.last:
            self.last = at if self.last is None else self.last
            return None
        silence = self._silence(at, ended=True)
        if silence is None:
            self._pauses.append((at - self.last).total_seconds())
        self.last = at
        return silence

    def now(self, now: datetime) -> Silence | None:
        """Return the silence that lasts at this instant, if there is one."""
        return None if self.last is None else self._silence(now, ended=False)

    def _silence(self, at: datetime, *, ended: bool) -> Silence | None:
        if self.last is None or len(self._pauses) < _NEEDED:
            return None
        every = max(timedelta(seconds=median(self._pauses)), _SHORTEST)
        if at - self.last <= FACTOR * every:
            return None
        return Silence(recorder=self.recorder, since=self.last, until=at if ended else None, every=every)


def silences(recorder: str, beats: Iterable[datetime], *, now: datetime | None = None) -> list[Silence]:
    """Return every silence between heartbeats, and with `now` the one that still lasts."""
    pulse = Pulse(recorder=recorder)
    found = [silence for at in sorted(beats) if (silence := pulse.beat(at)) is not None]
    if now is not None and (open_one := pulse.now(now)) is not None:
        found.append(open_one)
    return found


def silence_json(silence: Silence) -> dict[str, Any]:
    """Return the JSON of a silence; times in UTC."""
    return {
        "recorder": silence.recorder,
        "since": format_instant(silence.since),
        "until": None if silence.until is None else format_instant(silence.until),
        "usual_seconds": round(silence.every.total_seconds(), 3),
    }
