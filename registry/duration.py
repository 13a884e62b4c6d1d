"""ISO 8601 durations with calendar months: parsed, written, compared, and added to an instant.

Guarantees: `P1M` after 31 January is the last day of February, as people and Reg. 1182/71 count; whole units only.
Does not decide working days or time zones of a legal date; those are `retention.calendar`.

    >>> from datetime import UTC, datetime
    >>> Duration.parse("P1M").add_to(datetime(2026, 1, 31, tzinfo=UTC)).date().isoformat()
    '2026-02-28'
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from registry.errors import MalformedDuration

_PATTERN = re.compile(
    r"P(?=\d|T\d)(?:(\d{1,5})Y)?(?:(\d{1,5})M)?(?:(\d{1,5})W)?(?:(\d{1,6})D)?"
    r"(?:T(?=\d)(?:(\d{1,6})H)?(?:(\d{1,7})M)?(?:(\d{1,9})S)?)?",
    re.ASCII,
)
_MONTHS = 12
# The most days that n consecutive calendar months can have, n = 0 … 11.
_MOST_DAYS = (0, 31, 62, 92, 123, 153, 184, 215, 245, 276, 306, 337)
LAST_INSTANT = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """A length of civil time; weeks are kept as days, hours and minutes as seconds."""

    years: int = 0
    months: int = 0
    days: int = 0
    seconds: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """The duration that an ISO 8601 text names. Raises: MalformedDuration."""
        match = _PATTERN.fullmatch(text) if len(text) <= 64 else None  # noqa: PLR2004 - no honest duration is longer
        if match is None:
            raise MalformedDuration("expected ISO 8601 such as P90D, P6M, P1Y or PT30M, in whole units")
        years, months, weeks, days, hours, minutes, seconds = (int(group or 0) for group in match.groups())
        return cls(years=years, months=months, days=days + 7 * weeks, seconds=seconds + 60 * minutes + 3600 * hours)

    def __str__(self) -> str:
        hours, rest = divmod(self.seconds, 3600)
        minutes, seconds = divmod(rest, 60)
        date = "".join(f"{n}{unit}" for n, unit in ((self.years, "Y"), (self.months, "M"), (self.days, "D")) if n)
        time = "".join(f"{n}{unit}" for n, unit in ((hours, "H"), (minutes, "M"), (seconds, "S")) if n)
        if not date and not time:
            return "P0D"
        return f"P{date}T{time}" if time else f"P{date}"

    def add_to(self, instant: datetime) -> datetime:
        """The instant this much later on the calendar of `instant`'s own zone; clamped to the month's last day.

        What would lie after the year 9999 is the last instant there is.
        """
        months = instant.year * _MONTHS + instant.month - 1 + self.years * _MONTHS + self.months
        year, month = divmod(months, _MONTHS)
        if year > LAST_INSTANT.year:
            return LAST_INSTANT
        day = min(instant.day, calendar.monthrange(year, month + 1)[1])
        try:
            return instant.replace(year=year, month=month + 1, day=day) + timedelta(
                days=self.days, seconds=self.seconds
            )
        except OverflowError:
            return LAST_INSTANT

    def upper_bound(self) -> timedelta:
        """The longest this can last, wherever on the calendar it starts."""
        years, months = divmod(self.years * _MONTHS + self.months, _MONTHS)
        leap_days = (years + 3) // 4
        return timedelta(days=365 * years + leap_days + _MOST_DAYS[months] + self.days, seconds=self.seconds)

    def exceeds(self, other: Duration) -> bool:
        """Whether this may last longer than `other`, compared by their upper bounds."""
        return self.upper_bound() > other.upper_bound()

    def is_zero(self) -> bool:
        """Whether nothing is added at all."""
        return self == Duration()
