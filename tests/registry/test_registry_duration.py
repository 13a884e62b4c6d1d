"""Durations: parsed, written, added, compared."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.duration import LAST_INSTANT, Duration
from registry.errors import MalformedDuration

durations = st.builds(
    Duration,
    years=st.integers(0, 50),
    months=st.integers(0, 50),
    days=st.integers(0, 5000),
    seconds=st.integers(0, 10**6),
)
instants = st.datetimes(min_value=datetime(1999, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - the zone is given


@pytest.mark.parametrize(
    ("start", "text", "end"),
    [
        ("2026-01-31", "P1M", "2026-02-28"),
        ("2024-01-31", "P1M", "2024-02-29"),
        ("2024-02-29", "P1Y", "2025-02-28"),
        ("2026-08-31", "P1M", "2026-09-30"),
        ("2025-11-30", "P3M", "2026-02-28"),
        ("2026-12-15", "P6M", "2027-06-15"),
        ("2026-01-01", "P2W", "2026-01-15"),
        ("2026-01-01", "P0D", "2026-01-01"),
    ],
)
def test_months_are_counted_on_the_calendar_and_end_with_the_month(start: str, text: str, end: str) -> None:
    begin = datetime.fromisoformat(start).replace(tzinfo=UTC)
    assert Duration.parse(text).add_to(begin).date().isoformat() == end


@pytest.mark.parametrize(
    "text",
    ["", "P", "PT", "P1", "1D", "P1DT", "P-1D", "P1.5D", "P1D ", "p1d", "P1H", "PT1D", "P1D1M", "\u0661", "P\u0661D",
     "P" + "9" * 100 + "D"],
)  # fmt: skip
def test_anything_but_whole_iso_units_is_refused(text: str) -> None:
    with pytest.raises(MalformedDuration):
        Duration.parse(text)


@given(durations)
def test_what_is_written_is_parsed_as_the_same(duration: Duration) -> None:
    assert Duration.parse(str(duration)) == duration


@given(durations, instants)
def test_no_duration_lasts_longer_than_its_upper_bound(duration: Duration, start: datetime) -> None:
    assert duration.add_to(start) - start <= duration.upper_bound()


def test_the_same_length_in_other_units_does_not_exceed_itself() -> None:
    year, months = Duration.parse("P1Y"), Duration.parse("P12M")
    assert not year.exceeds(months)
    assert not months.exceeds(year)
    assert Duration.parse("P32D").exceeds(Duration.parse("P1M"))
    assert not Duration.parse("P31D").exceeds(Duration.parse("P1M"))


def test_an_end_past_the_calendar_is_its_last_instant() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert Duration.parse("P99999Y").add_to(now) == LAST_INSTANT
    assert Duration.parse("P7973Y999999D").add_to(now) == LAST_INSTANT
    assert Duration.parse("PT15M").add_to(now) - now == timedelta(minutes=15)
