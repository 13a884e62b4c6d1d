from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retention import calendar
from retention.errors import UnknownJurisdiction, UnknownRegulation, UnknownTimezone

BERLIN = ZoneInfo("Europe/Berlin")


def received(text: str, zone: str = "Europe/Berlin") -> datetime:
    return datetime.fromisoformat(text + "T12:00:00").replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


@pytest.mark.parametrize(
    ("receipt", "due"),
    [
        ("2026-01-31", "2026-03-02"),  # Saturday 02-28 moves to Monday
        ("2026-08-31", "2026-09-30"),  # the month has no 31st
        ("2026-03-05", "2026-04-07"),  # Easter Sunday, then a holiday
        ("2026-05-12", "2026-06-12"),
        ("2028-01-29", "2028-02-29"),  # a leap day
        ("2027-01-29", "2027-03-01"),  # none that year: Sunday 02-28
        ("2028-02-29", "2028-03-29"),  # by the date number, not by the month's last day
        ("2026-11-26", "2026-12-28"),  # Saturday and 2nd day of Christmas, then a Sunday
        ("2026-12-31", "2027-02-01"),  # the last day of January is a Sunday
    ],
)
def test_an_answer_is_due_one_calendar_month_after_receipt(receipt: str, due: str) -> None:
    found = calendar.deadlines("gdpr", received(receipt), timezone="Europe/Berlin", jurisdiction="DE-BY")
    assert found.due_at.astimezone(BERLIN).date() == date.fromisoformat(due)


def test_an_extension_counts_three_months_from_receipt_not_two_from_the_first_date() -> None:
    found = calendar.deadlines("gdpr", received("2025-11-30"), timezone="Europe/Berlin", jurisdiction="DE-BY")
    assert found.extended_due_at.astimezone(BERLIN).date() == date(2026, 3, 2)


def test_a_date_ends_with_the_last_microsecond_of_the_local_day() -> None:
    found = calendar.deadlines("gdpr", received("2026-06-10"), timezone="Europe/Berlin", jurisdiction="DE-BY")
    assert found.due_at == datetime(2026, 7, 10, 21, 59, 59, 999999, tzinfo=UTC)


def test_receipt_late_in_the_evening_counts_by_the_local_day_of_the_person() -> None:
    late = datetime(2026, 6, 9, 23, 30, tzinfo=UTC)  # already the tenth in Berlin
    found = calendar.deadlines("gdpr", late, timezone="Europe/Berlin", jurisdiction=None)
    assert found.due_at.astimezone(BERLIN).date() == date(2026, 7, 10)


def test_ccpa_counts_calendar_days_for_the_answer_and_business_days_for_the_acknowledgement() -> None:
    when = received("2026-11-20", "America/Los_Angeles")
    found = calendar.deadlines("ccpa", when, timezone="America/Los_Angeles", jurisdiction="US-CA")
    zone = ZoneInfo("America/Los_Angeles")
    assert found.due_at.astimezone(zone).date() == date(2027, 1, 4)
    assert found.extended_due_at.astimezone(zone).date() == date(2027, 2, 18)
    assert found.acknowledge_by is not None
    # Ten business days after Friday 20 November, over Thanksgiving and the day after it, a holiday in California.
    assert found.acknowledge_by.astimezone(zone).date() == date(2026, 12, 8)


def test_45_days_are_days_of_the_calendar_also_where_the_clocks_change_between() -> None:
    zone = ZoneInfo("America/Los_Angeles")
    for receipt, due, ends in (
        ("2026-02-20", date(2026, 4, 6), datetime(2026, 4, 7, 6, 59, 59, 999999, tzinfo=UTC)),  # PST to PDT
        (
            "2026-10-01",
            date(2026, 11, 15),
            datetime(2026, 11, 16, 7, 59, 59, 999999, tzinfo=UTC),
        ),  # a Sunday, PST again
    ):
        found = calendar.deadlines(
            "ccpa", received(receipt, str(zone)), timezone="America/Los_Angeles", jurisdiction="US-CA"
        )
        assert found.due_at.astimezone(zone).date() == due
        assert found.due_at == ends


def test_gdpr_sets_no_date_for_an_acknowledgement() -> None:
    found = calendar.deadlines("gdpr", received("2026-06-10"), timezone="Europe/Berlin", jurisdiction="DE")
    assert found.acknowledge_by is None


def test_the_night_in_which_clocks_change_ends_a_day_at_its_local_midnight() -> None:
    spring = calendar.end_of_day(date(2026, 3, 28), BERLIN)
    autumn = calendar.end_of_day(date(2026, 10, 25), BERLIN)
    assert spring == datetime(2026, 3, 28, 22, 59, 59, 999999, tzinfo=UTC)
    assert autumn == datetime(2026, 10, 25, 22, 59, 59, 999999, tzinfo=UTC)


def test_a_pause_moves_the_date_by_whole_days_and_to_a_working_day() -> None:
    due = calendar.end_of_day(date(2026, 7, 10), BERLIN)
    moved = calendar.paused_due_at(due, timedelta(hours=30), timezone="Europe/Berlin", jurisdiction="DE-BY")
    assert moved.astimezone(BERLIN).date() == date(2026, 7, 13)  # a day later is a Saturday
    for less in (timedelta(), timedelta(hours=23), timedelta(hours=-30)):
        assert calendar.paused_due_at(due, less, timezone="Europe/Berlin", jurisdiction="DE-BY") == due


def test_holidays_of_the_subdivision_count() -> None:
    corpus_christi = date(2026, 6, 4)
    assert not calendar.is_working_day(corpus_christi, "DE-BY")
    assert calendar.is_working_day(corpus_christi, "DE-BE")
    assert calendar.is_working_day(corpus_christi, None)


def test_unknown_names_are_refused_by_name() -> None:
    with pytest.raises(UnknownJurisdiction, match="XX-YY"):
        calendar.deadlines("gdpr", received("2026-06-10"), timezone="Europe/Berlin", jurisdiction="XX-YY")
    with pytest.raises(UnknownJurisdiction, match="DE-ZZ"):
        calendar.deadlines("gdpr", received("2026-06-10"), timezone="Europe/Berlin", jurisdiction="DE-ZZ")
    with pytest.raises(UnknownTimezone):
        calendar.deadlines("gdpr", received("2026-06-10"), timezone="Mars/Base", jurisdiction=None)
    with pytest.raises(UnknownTimezone):
        calendar.deadlines("gdpr", received("2026-06-10"), timezone="../etc/passwd", jurisdiction=None)
    with pytest.raises(UnknownRegulation):
        calendar.deadlines("lgpd", received("2026-06-10"), timezone="Europe/Berlin", jurisdiction=None)


@given(st.dates(date(1990, 1, 1), date(2080, 1, 1)), st.integers(0, 24))
def test_a_month_never_skips_a_month_and_keeps_the_date_number_where_it_exists(day: date, months: int) -> None:
    later = calendar.add_months(day, months)
    assert (later.year * 12 + later.month) - (day.year * 12 + day.month) == months
    assert later.day <= day.day
    assert later.day == day.day or (later + timedelta(days=1)).day == 1


@given(st.datetimes(datetime(2000, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_every_due_date_is_a_working_day_after_receipt_and_extensions_come_later(when: datetime) -> None:
    found = calendar.deadlines("gdpr", when, timezone="Europe/Berlin", jurisdiction="DE-BY")
    due = found.due_at.astimezone(BERLIN).date()
    assert calendar.is_working_day(due, "DE-BY")
    assert when < found.due_at < found.extended_due_at
