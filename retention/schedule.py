"""When items of a class end: its rules as values, its clock as dates, the longest anything can be kept.

Guarantees: pure. The civil calendar counts (`registry.duration`); a clock that waits for an event is capped by
`latest`; what happened several times counts from the last. A key of the record opens one person's month of a class, so
its clock starts with the month's last instant. Not decided here: what happens to an item; that is `retention.decide`.

    >>> from datetime import UTC, datetime
    >>> month_end("2026-02").isoformat()
    '2026-02-28T23:59:59.999999+00:00'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal, cast

from registry.declaration import DataClass
from registry.duration import Duration
from registry.ends import Dates
from retention.decide import Item, Rules, class_end, own_end

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LONGEST_MONTH = timedelta(days=31)
_MONTHS_A_YEAR = 12
RECORD_STATE = "record"
"""The state of classes whose content lies in the record under keys of a month."""
OWN_DATES = ("created", "observed")
"""Clocks that start with a date that an item has from the beginning."""
_NO_EVENTS: Mapping[str, datetime | None] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A class in force as retention needs it: its rules, the level its copies must reach, the event it waits for."""

    name: str
    version: int
    state: str
    required: str
    keep: Duration
    latest: Duration | None
    ceiling: Duration | None
    event: str | None
    rules: Rules = field(repr=False)


def schedule_of(spec: DataClass) -> Schedule:
    """The schedule of a declared class."""
    return Schedule(
        name=spec.name,
        version=spec.version,
        state=spec.state,
        required=spec.required,
        keep=spec.keep,
        latest=spec.latest,
        ceiling=None if spec.ceiling is None else spec.ceiling.keep,
        event=spec.event,
        rules=rules_of(spec),
    )


def rules_of(spec: DataClass) -> Rules:
    """The class as the one decision reads it."""
    floor, until = spec.floor, spec.until
    # The declaration accepts exactly the words that the rules know, so the casts below state what was checked there.
    return Rules(
        name=spec.name,
        keep=spec.keep,
        starts=spec.keep_from,
        latest=spec.latest,
        then=cast("Literal['erase', 'review']", spec.then),
        floor_for=None if floor is None else floor.keep,
        floor_basis=None if floor is None else floor.basis,
        floor_covers="content" if floor is not None and floor.covers == "content" else "skeleton",
        ceiling_for=None if spec.ceiling is None else spec.ceiling.keep,
        ceiling_basis=None if spec.ceiling is None else spec.ceiling.basis,
        on_request=cast("Literal['erase', 'regenerate', 'retain']", spec.on_request),
        exempt_basis=spec.basis,
        exempt_for=until if isinstance(until, Duration) else None,
        exempt_until=until if isinstance(until, datetime) else None,
        derived=cast("Literal['cascade', 'regenerate', 'keep_if_other_sources', 'review']", spec.derived_default),
        may_outlive_source=spec.may_outlive_source,
        half_life=None if spec.decay is None else spec.decay.half_life.upper_bound(),
        expire_below=0.0 if spec.decay is None else spec.decay.expire_below,
    )


def ends_at(
    spec: DataClass,
    dates: Dates,
    events: Mapping[str, datetime | None] = _NO_EVENTS,
    *,
    consent_until: datetime | None = None,
) -> datetime | None:
    """When the class or the item itself ends it, the earlier; the hint that sweeps look up, never a decision."""
    item = Item(
        item_id=0,
        data_class=spec.name,
        created=dates.created,
        observed=dates.observed,
        last_activity=dates.last_activity,
        consent_until=consent_until,
        events=events,
        expires_at=dates.expires,
        confidence=dates.confidence,
        confirmed=dates.confirmed,
    )
    rules = rules_of(spec)
    ends = (own_end(item, rules), class_end(item, rules))
    return min((end for end in ends if end is not None), default=None)


@lru_cache(maxsize=1_024)
def newest_start(keep: Duration, end: datetime) -> datetime:
    """The newest instant whose civil end under `keep` is at or before `end`; found by halving, since months differ."""
    low = max(0, (end - _EPOCH - keep.upper_bound()) // _MICROSECOND)
    high = max(low, (end - _EPOCH) // _MICROSECOND) if keep.years or keep.months else low
    while low < high:
        middle = (low + high + 1) // 2
        if keep.add_to(_EPOCH + timedelta(microseconds=middle)) <= end:
            low = middle
        else:
            high = middle - 1
    return _EPOCH + timedelta(microseconds=low)


def month_end(month: str) -> datetime:
    """The last microsecond of a month `YYYY-MM` in UTC."""
    year, number = int(month[:4]), int(month[5:])
    following = datetime(year + number // _MONTHS_A_YEAR, number % _MONTHS_A_YEAR + 1, 1, tzinfo=UTC)
    return following - _MICROSECOND


def month_of(at: datetime) -> str:
    """The month `YYYY-MM` of an instant in UTC, as keys are named."""
    return f"{at.astimezone(UTC):%Y-%m}"


def maximum_age(schedule: Schedule, *, sweep_every: timedelta) -> timedelta | None:
    """The longest an item can exist from its creation or observation: what a notice may promise. None: no promise.

    Longest civil length of `keep`, or of `latest` where the clock waits for something; plus the month that a record key
    covers, plus the wait for the next sweep. What ends in a review ends by its ceiling at the latest; without one there
    is no promise, since a person may extend. Holds, restrictions, duties and a store that refuses keep an item longer.
    """
    longest = schedule.keep if schedule.rules.starts in OWN_DATES else schedule.latest
    if schedule.rules.then == "review":
        longest = schedule.ceiling  # which is no shorter than either, in any class
    if longest is None:
        return None
    key_period = _LONGEST_MONTH if schedule.state == RECORD_STATE else timedelta()
    return longest.upper_bound() + key_period + sweep_every
