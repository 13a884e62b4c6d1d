"""Legal dates: when a request must be acknowledged and answered, by regulation, jurisdiction and time zone.

Guarantees: the answer depends on the values given and on nothing else (the machine's zone and clock are never read).
A date ends with the last microsecond of the local day, given in UTC. Without a jurisdiction only weekends are no
working days, which can only make a date earlier, never later. Not decided here: whether a clock is paused or stopped.

    >>> from datetime import UTC, datetime
    >>> received = datetime(2026, 1, 31, 9, 0, tzinfo=UTC)
    >>> deadlines("gdpr", received, timezone="Europe/Berlin", jurisdiction="DE-BY").due_at.isoformat()
    '2026-03-02T22:59:59.999999+00:00'
"""

from __future__ import annotations

import calendar
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import holidays

from retention.errors import UnknownJurisdiction, UnknownRegulation, UnknownTimezone

GDPR_MONTHS = 1  # Source: GDPR Art. 12(3)
GDPR_EXTENDED_MONTHS = 3  # one month and two further ones, counted from receipt. Source: GDPR Art. 12(3)
CCPA_DAYS = 45  # Source: 11 CCR 7021(b)
CCPA_EXTENDED_DAYS = 90  # Source: 11 CCR 7021(b)
CCPA_ACKNOWLEDGE_DAYS = 10  # business days. Source: 11 CCR 7021(a)
REGULATIONS = ("gdpr", "ccpa")

_SATURDAY = 5
_MONTHS_A_YEAR = 12
_MICROSECOND = timedelta(microseconds=1)
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """The dates of one request. `acknowledge_by` is None where the regulation sets none."""

    due_at: datetime
    extended_due_at: datetime
    acknowledge_by: datetime | None


def deadlines(regulation: str, received_at: datetime, *, timezone: str, jurisdiction: str | None) -> Deadlines:
    """The dates that follow from receipt, each the last microsecond of its local day in UTC.

    Raises: UnknownRegulation, UnknownTimezone, UnknownJurisdiction.
    Source: GDPR Art. 12(3) with Reg. 1182/71 Art. 3; 11 CCR 7021.
    """
    zone = _zone(timezone)
    received = received_at.astimezone(zone).date()
    if regulation == "gdpr":
        first = next_working_day(add_months(received, GDPR_MONTHS), jurisdiction)
        last = next_working_day(add_months(received, GDPR_EXTENDED_MONTHS), jurisdiction)
        return Deadlines(due_at=end_of_day(first, zone), extended_due_at=end_of_day(last, zone), acknowledge_by=None)
    if regulation == "ccpa":
        acknowledge = add_working_days(received, CCPA_ACKNOWLEDGE_DAYS, jurisdiction)
        return Deadlines(
            due_at=end_of_day(received + timedelta(days=CCPA_DAYS), zone),
            extended_due_at=end_of_day(received + timedelta(days=CCPA_EXTENDED_DAYS), zone),
            acknowledge_by=end_of_day(acknowledge, zone),
        )
    raise UnknownRegulation(regulation)


def paused_due_at(due_at: datetime, paused: timedelta, *, timezone: str, jurisdiction: str | None) -> datetime:
    """The date after the clock stood still for `paused` in all: whole days are added, then a working day is taken.

    What is less than a day moves nothing, so that no number of short pauses puts an answer off.
    """
    zone = _zone(timezone)
    days = max(paused // _DAY, 0)
    return end_of_day(next_working_day(due_at.astimezone(zone).date() + timedelta(days=days), jurisdiction), zone)


def add_months(day: date, months: int) -> date:
    """The same date number `months` later, or the last day of that month where it has no such date.

    Source: Reg. 1182/71 Art. 3(2)(c).
    """
    index = day.year * _MONTHS_A_YEAR + day.month - 1 + months
    year, month = divmod(index, _MONTHS_A_YEAR)
    return date(year, month + 1, min(day.day, calendar.monthrange(year, month + 1)[1]))


def is_working_day(day: date, jurisdiction: str | None) -> bool:
    """Whether the day is no Saturday, no Sunday and no public holiday. Raises: UnknownJurisdiction."""
    return day.weekday() < _SATURDAY and (jurisdiction is None or day not in _holidays(jurisdiction, day.year))


def next_working_day(day: date, jurisdiction: str | None) -> date:
    """The day itself or the first working day after it. Source: Reg. 1182/71 Art. 3(4)."""
    while not is_working_day(day, jurisdiction):
        day += _DAY
    return day


def add_working_days(day: date, count: int, jurisdiction: str | None) -> date:
    """The `count`-th working day after `day`, which itself is not counted."""
    for _ in range(count):
        day = next_working_day(day + _DAY, jurisdiction)
    return day


def end_of_day(day: date, zone: ZoneInfo) -> datetime:
    """The last microsecond of a local day in UTC, also where the clocks change in its night."""
    return datetime.combine(day + _DAY, time(), tzinfo=zone).astimezone(UTC) - _MICROSECOND


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UnknownTimezone(name) from error


@lru_cache(maxsize=512)
def _holidays(jurisdiction: str, year: int) -> frozenset[date]:
    country, _, subdivision = jurisdiction.partition("-")
    try:
        return frozenset(holidays.country_holidays(country, subdiv=subdivision or None, years=year))
    except (NotImplementedError, AttributeError) as error:
        raise UnknownJurisdiction(jurisdiction) from error
