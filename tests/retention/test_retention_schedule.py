"""The pure part: calendars of classes, the plan of a pass, its brakes, and an independent model day by day."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.declaration import parse_class
from registry.duration import Duration
from registry.ends import Dates
from retention.decide import Claim, Hold, Item, Restriction
from retention.due import due_month
from retention.holding import is_held
from retention.items import Candidate, Source
from retention.schedule import Schedule, ends_at, maximum_age, month_end, newest_start, schedule_of
from retention.stops import Stops
from retention.sweep import Brakes, ClassCount, Instants, brake_of, clock_brake, plan_items

T0 = datetime(2026, 1, 31, 9, tzinfo=UTC)
DAY = timedelta(days=1)
RECRUITING = Path(__file__).resolve().parents[2] / "examples" / "recruiting" / "classes.yaml"


def spec(keep: str, starts: str = "created", latest: str | None = None, **more: Any) -> dict[str, Any]:
    retention = {"keep": keep, "from": starts, "then": more.pop("then", "erase"), "latest": latest}
    if "floor" in more:
        retention["floor"] = more.pop("floor")
    return {
        "state": "conversation", "personal": True, "owner": "team", "description": "made up",
        "legal_basis": "contract", "retention": retention,
        "erasure": {"on_request": "erase", "required": "L2"}, **more,
    }  # fmt: skip


def a_schedule(name: str, declared: Mapping[str, Any]) -> Schedule:
    return schedule_of(parse_class(name, declared))


# ── calendars ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("keep", "starts", "latest", "dates", "events", "expected"),
    [
        ("P1M", "created", None, Dates(created=T0), {}, "2026-02-28T09:00"),
        ("P0D", "created", None, Dates(created=T0), {}, "2026-01-31T09:00"),
        ("P1M", "observed", None, Dates(created=T0, observed=T0 - 31 * DAY), {}, "2026-01-31T09:00"),
        ("P1M", "observed", None, Dates(created=T0), {}, "2026-02-28T09:00"),
        ("P1M", "last_activity", "P1Y", Dates(created=T0, last_activity=T0 + 28 * DAY), {}, "2026-03-28T09:00"),
        ("P6M", "event:role.closed", "P18M", Dates(created=T0), {}, "2027-07-31T09:00"),
        ("P6M", "event:role.closed", "P18M", Dates(created=T0), {"r": T0 + DAY}, "2026-08-01T09:00"),
        ("P6M", "event:role.closed", "P18M", Dates(created=T0), {"r": T0 + DAY, "s": T0 + 2 * DAY}, "2026-08-02T09:00"),
        ("P6M", "event:role.closed", "P18M", Dates(created=T0), {"r": T0 + 600 * DAY}, "2027-07-31T09:00"),
        ("P0D", "event:step.returned", "P1D", Dates(created=T0), {"run": T0}, "2026-01-31T09:00"),
        ("P1Y", "created", None, Dates(created=T0, expires=T0 + DAY), {}, "2026-02-01T09:00"),
        ("P1M", "consent", "P2Y", Dates(created=T0), {}, "2028-01-31T09:00"),
    ],
)
def test_a_class_ends_its_items_by_the_civil_calendar(
    keep: str, starts: str, latest: str | None, dates: Dates, events: dict[str, datetime | None], expected: str
) -> None:
    one = parse_class("note", spec(keep, starts, latest))
    assert ends_at(one, dates, events) == datetime.fromisoformat(f"{expected}:00+00:00")


def test_consent_that_is_withdrawn_ends_the_item_by_its_class() -> None:
    one = parse_class("voice", spec("P0D", "consent", "P2Y"))
    assert ends_at(one, Dates(created=T0), consent_until=T0 + DAY) == T0 + DAY


@given(
    keep=st.builds(
        Duration, years=st.integers(0, 8), months=st.integers(0, 30), days=st.integers(0, 400),
        seconds=st.integers(0, 90_000),
    ),
    end=st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - given the zone
)  # fmt: skip
def test_the_newest_start_is_the_last_instant_whose_end_has_come(keep: Duration, end: datetime) -> None:
    start = newest_start(keep, end)
    assert keep.add_to(start) <= end
    assert keep.add_to(start + timedelta(microseconds=1)) > end


@given(
    at=st.datetimes(datetime(2020, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - given the zone
    keep=st.sampled_from(["P0D", "P1D", "P90D", "P1M", "P6M", "P7Y"]),
    latest=st.sampled_from([None, "P7Y", "P8Y"]),
    starts=st.sampled_from(["created", "event:done"]),
    reviewed=st.booleans(),
)
def test_a_month_of_the_record_is_due_exactly_when_its_last_instant_is(
    at: datetime, keep: str, latest: str | None, starts: str, reviewed: bool
) -> None:
    declared = spec(keep, starts, "P7Y" if starts != "created" else latest)
    if reviewed:
        declared["retention"] |= {"then": "review", "ceiling": {"for": "P9Y", "basis": "notice"}}
    schedule = a_schedule("record", declared)
    found = due_month(schedule, at)
    assert found is not None
    period = schedule.keep if starts == "created" else schedule.latest
    assert period is not None
    due = [month for month in _months(2010, 2062) if period.add_to(month_end(month)) <= at]
    assert found == max(due)


def _months(first: int, last: int) -> list[str]:
    return [f"{year}-{month:02d}" for year in range(first, last) for month in range(1, 13)]


@pytest.mark.scenario("E14")
def test_the_printed_maximum_covers_month_lengths_the_key_s_month_and_the_wait_for_a_pass() -> None:
    lag = timedelta(hours=1)
    plain = a_schedule("note", spec("P90D"))
    assert maximum_age(plain, sweep_every=lag) == timedelta(days=90, hours=1)
    record = a_schedule("record", {**spec("P90D"), "state": "record"})
    most = maximum_age(record, sweep_every=lag)
    assert most == timedelta(days=121, hours=1)
    for day in range(366):
        said = datetime(2027, 7, 1, tzinfo=UTC) + day * DAY
        gone = record.keep.add_to(month_end(f"{said:%Y-%m}")) + lag
        assert gone - said <= most


def test_the_printed_maximum_counts_the_cap_of_what_waits_and_promises_nothing_for_a_person() -> None:
    def most(keep: str, starts: str, latest: str | None, ceiling: str | None = None, **more: Any) -> timedelta | None:
        declared = spec(keep, starts, latest, **more)
        if ceiling is not None:
            declared["retention"]["ceiling"] = {"for": ceiling, "basis": "notice"}
        return maximum_age(a_schedule("note", declared), sweep_every=timedelta(hours=1))

    hour = timedelta(hours=1)
    assert most("P0D", "consent", "P300D") == 300 * DAY + hour
    assert most("P9D", "last_activity", "P300D", "P400D") == 300 * DAY + hour
    assert most("P9D", "created", None, then="review") is None
    assert most("P9D", "created", None, "P30D", then="review") == 30 * DAY + hour


def test_the_recruiting_table_is_the_one_of_practice(shared_folder: Path) -> None:
    table = {name: parse_class(name, one) for name, one in yaml.safe_load(RECRUITING.read_text("utf-8")).items()}
    closed = {"role": T0 + 10 * DAY}
    half_a_year = datetime(2026, 8, 10, 9, tzinfo=UTC)
    created = Dates(created=T0)
    for name in ("cv_file", "screening", "verdict", "earlier_applications"):
        assert ends_at(table[name], created, closed) == half_a_year, name
    assert ends_at(table["invite"], created, closed) == closed["role"]
    assert ends_at(table["cv_prompt"], created, {"step": T0}) == T0
    assert ends_at(table["overrides"], created, {"rubric": T0 + DAY}) == T0 + DAY
    assert all(one.latest is not None for one in table.values() if one.event is not None), "no clock waits for ever"
    practice = (shared_folder / "reference" / "practice.md").read_text("utf-8")
    rows = [row.split("|")[1:-1] for row in practice.splitlines() if row.startswith("| ") and row.count("|") == 5]
    found = [(state.strip(), until.strip()) for _, state, _, until in rows[1:]]
    role = "role closed + 6 months"
    assert found == [
        ("working", "the step returns"), ("file", role), ("checkpoint", role), ("checkpoint", role),
        ("checkpoint", "the role closes"), ("memory", "6 months after each role"), ("memory", "the next rubric change"),
    ]  # fmt: skip
    names = ("cv_prompt", "cv_file", "screening", "verdict", "invite", "earlier_applications", "overrides")
    assert [table[name].state for name in names] == [state for state, _ in found]
    assert set(table) == {*names, "screening_record"}, "the table, and the record beside it"


# ── plans and brakes ──────────────────────────────────────────────────────────────────────────────────────────────

NOTE = a_schedule("note", spec("P90D"))
LONG = a_schedule("long", spec("P7Y"))
OTHERS = a_schedule("others", {**spec("P7Y"), "derived": {"default": "keep_if_other_sources"}})
ALL = {one.name: one for one in (NOTE, LONG, OTHERS)}
LATER = T0 + 100 * DAY


def a_candidate(number: int, data_class: str = "note", *sources: int, **item: Any) -> Candidate:
    return Candidate(
        kind="artifact",
        ref=f"art_{number}",
        artifact_id=number,
        data_class=data_class,
        store="db",
        item=Item(item_id=number, data_class=data_class, **({"created": T0} | item)),
        sources=tuple(
            Source(kind="a", number=one, name=f"art_{one}", status="live", ends_at=T0 + 90 * DAY) for one in sources
        ),
    )


def refs(items: list[Candidate], stops: Stops | None = None, now: datetime = LATER) -> list[str]:
    return [line.ref for line in plan_items(items, ALL, stops or Stops(), now)]


def test_what_was_made_from_something_goes_before_it_and_with_it() -> None:
    items = [a_candidate(1), a_candidate(2, "long", 1), a_candidate(3, "long", 2)]
    assert refs(items) == ["art_3", "art_2", "art_1"]
    assert plan_items(items, ALL, Stops(), LATER)[0].path == ("art_1", "art_2")


def test_a_source_that_stays_after_all_keeps_what_was_made_from_it() -> None:
    """The date in a source's row is a hint: its class was lengthened, so nothing ends."""
    assert refs([a_candidate(1, "long"), a_candidate(2, "long", 1)]) == []


def test_an_item_with_another_source_stays_until_the_last_one_ends() -> None:
    other = a_candidate(4, "long")
    child = replace(
        a_candidate(3, "others", 1),
        sources=(
            Source(kind="a", number=1, name="art_1", status="live", ends_at=None),
            Source(kind="a", number=4, name="art_4", status="live", ends_at=None),
        ),
    )
    assert refs([a_candidate(1), other, child]) == ["art_1"]
    assert refs([a_candidate(1), replace(other, data_class="note"), child]) == ["art_3", "art_1", "art_4"]


def test_derivation_cycles_end_together_and_do_not_hang() -> None:
    assert set(refs([a_candidate(1, "note", 2), a_candidate(2, "note", 1)])) == {"art_1", "art_2"}


@pytest.mark.parametrize("kind", ["subjects", "data_classes", "scopes", "artifacts"])
def test_each_selector_of_a_hold_holds_exactly_what_it_names(kind: str) -> None:
    item = Item(item_id=7, data_class="note", created=T0, subjects=frozenset({1}), scopes=frozenset({"aa"}))
    values: dict[str, set[Any]] = {"subjects": {1}, "data_classes": {"note"}, "scopes": {"aa"}, "artifacts": {7}}
    others: dict[str, set[Any]] = {"subjects": {2}, "data_classes": {"long"}, "scopes": {"bb"}, "artifacts": {8}}
    assert is_held(item, [Hold("h", **{kind: frozenset(values[kind])})])
    assert not is_held(item, [Hold("h", **{name: frozenset(one) for name, one in others.items()})])
    assert not is_held(item, [])


@pytest.mark.parametrize(
    ("counts", "last", "reason"),
    [
        ({"note": ClassCount(live=100, ends=50)}, T0, "share"),
        ({"note": ClassCount(live=100, ends=49)}, T0, None),
        ({"note": ClassCount(live=250, ends=50)}, T0, None),
        ({"note": ClassCount(live=249, ends=50)}, T0, "share"),
        ({"note": ClassCount(live=9, ends=1), "long": ClassCount(live=60, ends=60)}, T0, "share"),
        ({"note": ClassCount(live=100, ends=1)}, T0 - 7 * DAY, None),
        ({"note": ClassCount(live=100, ends=1)}, T0 - 8 * DAY, "clock_jump"),
        ({}, T0 - 8 * DAY, None),
        ({"note": ClassCount(live=100, review=90)}, T0 - 8 * DAY, None),
        ({}, T0 + DAY, "clock_back"),
        ({"note": ClassCount(live=100, ends=1)}, None, None),
    ],
)
def test_a_pass_is_braked_for_its_share_and_for_its_clock(
    counts: dict[str, ClassCount], last: datetime | None, reason: str | None
) -> None:
    brake = brake_of(counts, Brakes(), Instants(last=last), now=T0)
    assert (None if brake is None else brake.reason) == reason
    assert brake is None or (brake.todo and brake.stops == (reason == "clock_back"))


@pytest.mark.parametrize(
    ("seen", "by_hand", "reason"),
    [
        (Instants(apart=timedelta(minutes=2)), False, None),
        (Instants(apart=timedelta(minutes=2, seconds=1)), False, "clock_apart"),
        (Instants(apart=timedelta(minutes=-3)), False, "clock_apart"),
        (Instants(apart=timedelta(minutes=-3)), True, "clock_apart"),
        (Instants(newest=T0 + timedelta(minutes=2)), False, None),
        (Instants(newest=T0 + timedelta(minutes=3)), False, "clock_back"),
        (Instants(newest=T0 + timedelta(minutes=3)), True, "clock_was_ahead"),
        (Instants(last=T0 + DAY), True, "clock_was_ahead"),
        (Instants(last=T0 - DAY, newest=T0 - DAY, apart=timedelta(0)), False, None),
    ],
)
def test_a_clock_that_disagrees_with_another_or_with_what_was_dated_before_decides_nothing(
    seen: Instants, by_hand: bool, reason: str | None
) -> None:
    brake = clock_brake(Brakes(), seen, now=T0, by_hand=by_hand)
    assert (None if brake is None else brake.reason) == reason
    assert brake is None or (brake.todo and brake.stops == (reason != "clock_was_ahead"))


# ── ten years, day by day, against a naive model ──────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Life:
    """One item's life as the naive model knows it: days since T0."""

    born: int
    keep: int
    latest: int | None
    event: int | None
    by_event: bool
    floor: int
    expires: int | None
    subject: int
    source: int | None


lives = st.builds(
    Life,
    born=st.integers(0, 1500),
    keep=st.integers(0, 900),
    latest=st.integers(901, 1500),
    event=st.none() | st.integers(0, 3000),
    by_event=st.booleans(),
    floor=st.sampled_from([0, 0, 300]),
    expires=st.none() | st.integers(1501, 2500),
    subject=st.integers(1, 3),
    source=st.none() | st.integers(0, 3),
)
spans = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3000), st.integers(0, 1000)), max_size=3)


def naive_ends(life: list[Life], holds: list[tuple[int, int, int]], restrictions: list[tuple[int, int, int]],
               exports: list[tuple[int, int, int]], days: int) -> list[int | None]:  # fmt: skip
    """On which day each item goes, found by asking each day again; written without `retention`."""
    gone: list[int | None] = [None] * len(life)
    dues = []
    for one in life:
        due = one.born + one.latest if one.by_event and one.latest is not None else one.born + one.keep
        if one.by_event and one.event is not None:
            due = min(due, one.event + one.keep)
        dues.append(due if one.expires is None else min(due, one.expires))
    for day in range(days):
        for number, one in enumerate(life):
            if gone[number] is not None or day < one.born:
                continue
            due = dues[number]
            if one.by_event and one.event is not None and day < one.event:
                # What has not happened yet is not known: until then the cap alone counts.
                due = one.born + (one.latest or 0)
                due = due if one.expires is None else min(due, one.expires)
            source_gone = one.source is not None and one.source < number and gone[one.source] is not None
            wanted = day >= due or source_gone
            held = any(who == one.subject and start <= day < start + length for who, start, length in holds)
            restricted = any(
                who == one.subject and start <= day < start + length for who, start, length in restrictions
            )
            exporting = any(who == one.subject and start <= day <= start + length for who, start, length in exports)
            floored = day < one.born + one.floor
            if wanted and not held and not restricted and not exporting and not floored:
                gone[number] = day
    return gone


def simulated_ends(life: list[Life], holds: list[tuple[int, int, int]], restrictions: list[tuple[int, int, int]],
                   exports: list[tuple[int, int, int]], days: int) -> list[int | None]:  # fmt: skip
    """The same by `plan_items`, day by day."""
    schedules = {}
    for number, one in enumerate(life):
        more = {"floor": {"for": f"P{one.floor}D", "basis": "law", "covers": "content"}} if one.floor else {}
        keep = max(one.keep, one.floor)
        starts, latest = ("event:done", f"P{one.latest}D") if one.by_event else ("created", None)
        schedules[f"c{number}"] = a_schedule(f"c{number}", spec(f"P{keep}D", starts, latest, **more))
    gone: list[int | None] = [None] * len(life)
    changes = sorted(
        {day for one in life for day in (one.born, one.born + one.floor, one.born + one.keep, one.born + one.floor,
                                         one.born + (one.latest or 0), one.expires or 0, one.event or 0,
                                         (one.event or 0) + max(one.keep, one.floor),
                                         one.born + max(one.keep, one.floor))}
        | {day for _, start, length in (*holds, *restrictions, *exports) for day in (start, start + length,
                                                                                   start + length + 1)}
    )  # fmt: skip
    # Between two changes nothing can happen, save that what derives follows its source a day later at most.
    for day in sorted({day + more for day in changes for more in range(5) if day + more < days}):
        at = T0 + day * DAY
        stops = Stops(
            holds=[
                Hold(f"h{index}", frozenset({who}))
                for index, (who, start, length) in enumerate(holds)
                if start <= day < start + length
            ],
            restrictions=[
                Restriction(f"r{index}", who, T0)
                for index, (who, start, length) in enumerate(restrictions)
                if start <= day < start + length
            ],
            claims=[
                Claim(f"q{index}", "access", frozenset({who}), T0, T0 + (start + length) * DAY)
                for index, (who, start, length) in enumerate(exports)
                if start <= day
            ],
        )
        living = []
        for number, one in enumerate(life):
            if gone[number] is not None or day < one.born:
                continue
            sources: tuple[Source, ...] = ()
            if one.source is not None and one.source < number:
                status = "live" if gone[one.source] is None else "erased"
                sources = (Source(kind="a", number=one.source, name=f"art_{one.source}", status=status, ends_at=None),)
            happened = one.by_event and one.event is not None and one.event <= day
            item = Item(
                item_id=number,
                data_class=f"c{number}",
                created=T0 + one.born * DAY,
                subjects=frozenset({one.subject}),
                own_subjects=frozenset({one.subject}),
                events={"k": T0 + (one.event or 0) * DAY} if happened else {},
                expires_at=None if one.expires is None else T0 + one.expires * DAY,
            )
            living.append(
                Candidate(
                    kind="artifact", ref=f"art_{number}", artifact_id=number, data_class=f"c{number}", store="db",
                    item=item, sources=sources,
                )
            )  # fmt: skip
        for line in plan_items(living, schedules, stops, at):
            assert line.artifact_id is not None
            gone[line.artifact_id] = day
    return gone


@settings(max_examples=60, deadline=None)
@given(life=st.lists(lives, min_size=1, max_size=5), holds=spans, restrictions=spans, exports=spans)
def test_every_item_ends_on_the_day_a_naive_model_says(
    life: list[Life],
    holds: list[tuple[int, int, int]],
    restrictions: list[tuple[int, int, int]],
    exports: list[tuple[int, int, int]],
) -> None:
    """The plan looks at the days on which something changes; the model at each of ten years' days."""
    # The model's classes keep at least as long as their floor, as the declaration demands.
    life = [replace(one, keep=max(one.keep, one.floor)) for one in life]
    days = 3650
    model = naive_ends(life, holds, restrictions, exports, days)
    assert simulated_ends(life, holds, restrictions, exports, days) == model


@pytest.mark.parametrize("stop", ["holds", "restrictions", "exports"])
def test_what_was_made_from_something_kept_past_its_date_does_not_go_before_it(stop: str) -> None:
    """Found by the model: a source that a stop kept counted as ended on its date, and took its copies with it."""
    source = Life(born=0, keep=0, latest=901, event=None, by_event=False, floor=0, expires=None, subject=2, source=None)
    made = replace(source, keep=20, subject=1, source=0)
    stops: dict[str, list[tuple[int, int, int]]] = {"holds": [], "restrictions": [], "exports": [], stop: [(2, 0, 9)]}
    expected = naive_ends([source, made], **stops, days=60)
    assert simulated_ends([source, made], **stops, days=60) == expected
    assert expected[0] is not None
    assert expected[0] >= 9
    assert expected[1] == expected[0]


@pytest.mark.slow
def test_a_plan_of_fifty_thousand_items_takes_seconds() -> None:
    items = [a_candidate(number, "note" if number % 2 else "long") for number in range(50_000)]
    started = time.monotonic()
    assert len(refs(items)) == 25_000
    assert time.monotonic() - started < 20
