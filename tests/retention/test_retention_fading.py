"""What ends because nobody confirmed it or nobody came back: memories that fade, sessions that fall silent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from registry.acting import Acting
from registry.artifacts import register
from registry.declared import put_stream
from registry.memories import confidence_at
from retention.copies import copy_ends
from retention.decide import Item, Rules, own_end

T0 = datetime(2040, 6, 1, 9, tzinfo=UTC)
DAY = timedelta(days=1)
FADES = {"half_life": "P100D", "reconfirm_below": 0.5, "expire_below": 0.2}


@given(
    confidence=st.floats(0.01, 1.0),
    below=st.floats(0.01, 0.9),
    half_life=st.integers(1, 2000).map(lambda days: timedelta(days=days)),
    confirmed=st.none() | st.integers(-500, 500),
)
@example(confidence=0.01, below=0.010000000000000002, half_life=DAY, confirmed=None)  # ended seconds later once
def test_a_memory_has_faded_exactly_when_its_verdict_says_so(
    confidence: float, below: float, half_life: timedelta, confirmed: int | None
) -> None:
    rules = Rules(name="m", keep=None, starts="created", half_life=half_life, expire_below=below)
    again = None if confirmed is None else T0 + confirmed * DAY
    item = Item(item_id=1, data_class="m", created=T0, confidence=confidence, confirmed=again)
    end = own_end(item, rules)
    assert end is not None
    start = T0 if again is None else max(T0, again)
    if confidence >= below:
        # What has faded here has faded in every verdict, and a hundred-thousandth earlier it had not.
        assert confidence_at(confidence, end - start, half_life) < below
        assert confidence_at(confidence, (end - start) - half_life / 1_000, half_life) >= below - 1e-3
    else:
        assert end == start


def test_without_a_confidence_or_a_half_life_only_the_given_date_counts() -> None:
    plain = Rules(name="m", keep=None, starts="created")
    fades = Rules(name="m", keep=None, starts="created", half_life=DAY, expire_below=0.5)
    dated = Item(item_id=1, data_class="m", created=T0, expires_at=T0 + DAY)
    assert own_end(dated, plain) == own_end(dated, fades) == T0 + DAY
    assert own_end(Item(item_id=1, data_class="m", created=T0, confidence=0.9), plain) is None
    never = Rules(name="m", keep=None, starts="created", half_life=DAY, expire_below=0.0)
    assert own_end(Item(item_id=1, data_class="m", created=T0, confidence=0.9), never) is None


def memory_class(house: Any) -> None:
    house.plain("fact", state="memory", decay=FADES, retention={"keep": "P9Y", "from": "created", "then": "erase"})


def fact(house: Any, key: str, confidence: float) -> str:
    said = {"source_type": "explicit_user_statement", "confidence": confidence, "purposes": ["support"]}
    return str(house.note(key, "fact", scope={"person": key}, observed_at=house.now.isoformat(), **said))


def test_a_memory_that_nobody_confirms_ends_when_confidence_in_it_has_faded(house: Any) -> None:
    memory_class(house)
    weak, strong = fact(house, "weak", 0.4), fact(house, "strong", 0.8)
    house.now += 99 * DAY
    house.sweep()
    assert house.rows() == {"weak", "strong"}
    house.now += 2 * DAY  # 0.4 has halved once, to 0.2
    run = house.sweep()
    assert house.rows() == {"strong"}
    assert [copy["rule"] for copy in house.sweeps.report(house.acting(), run["id"])["copies"]] == ["item_expiry"]
    with house.transaction(write=False) as session:
        end = copy_ends(session, house.tenant_id, [house.artifact(strong)])
    [told] = end.values()
    assert told.ends_at is not None
    assert (told.rule, told.ends_at.date()) == ("item_expiry", (T0 + 200 * DAY).date())
    assert weak != strong


def test_a_memory_that_is_confirmed_lives_on(house: Any) -> None:
    memory_class(house)
    public_id = fact(house, "a", 0.4)
    house.now += 99 * DAY
    house.sweep()
    with house.transaction() as session:
        row = house.artifact(public_id)
        row.confirmed_at = house.now
        session.merge(row)
    house.now += 50 * DAY
    house.sweep()
    assert house.rows() == {"a"}
    house.now += 51 * DAY
    house.sweep()
    assert house.rows() == set()


def test_a_silent_session_ends_what_waits_for_its_end(house: Any) -> None:
    house.plain("chat", session={"idle": "PT1H", "resume_within": "P1D", "expire": "P10D"})
    house.plain("scratch", retention={"keep": "P1D", "from": "event:session.expired", "latest": "P1Y", "then": "erase"})
    with house.transaction() as session:
        for name in ("one", "two"):
            spec = {"stream": name, "data_class": "chat"}
            put_stream(session, house.services.vault, house.acting(), spec, house.now)
    house.note("a", "scratch", scope={"conversation": "one"})
    house.note("b", "scratch", scope={"conversation": "two"})
    house.now += 5 * DAY
    house.sweep()
    house.say("two", "back again", "screening_record")
    house.now += 6 * DAY
    house.sweep()
    house.now += timedelta(hours=1)
    house.sweep()
    assert house.rows() == {"b"}, "one expired a day and an hour ago; two was taken up again"
    house.now += 10 * DAY
    house.sweep()
    assert house.rows() == set()


def test_an_event_that_dates_a_memory_anew_does_not_stop_its_fading(house: Any) -> None:
    retention = {"keep": "P8Y", "from": "event:role.closed", "latest": "P9Y", "then": "erase"}
    house.plain("fact", state="memory", decay=FADES, retention=retention)
    said = {"source_type": "explicit_user_statement", "confidence": 0.4, "purposes": ["support"]}
    public_id = house.note("a", "fact", scope={"role": "r"}, observed_at=house.now.isoformat(), **said)
    house.event("role.closed", role="r")
    assert abs(house.artifact(public_id).ends_at - (T0 + 100 * DAY)) < DAY


def test_the_service_itself_notices_silent_sessions(house: Any) -> None:
    house.plain("chat", session={"idle": "PT1H", "resume_within": "P1D", "expire": "P10D"})
    house.plain("scratch", retention={"keep": "P0D", "from": "event:session.expired", "latest": "P1Y", "then": "erase"})
    with house.transaction() as session:
        put_stream(session, house.services.vault, house.acting(), {"stream": "one", "data_class": "chat"}, house.now)
    house.note("a", "scratch", scope={"conversation": "one"})
    house.now += 11 * DAY
    system = Acting.system(tenant_id=house.tenant_id, tenant="acme", log_id=house.log_id)
    house.sweeps.start(system, house.now)
    house.sweeps.run_due(house.tenant_id, house.now)
    assert house.rows() == set()


def test_a_memory_that_is_overwritten_with_less_confidence_fades_by_the_new_one(house: Any) -> None:
    memory_class(house)
    said = {
        "data_class": "fact", "store": "app", "locator": {"table": "note", "key": {"id": "a"}},
        "subjects": ["email:ada@example.org"], "purposes": ["support"], "source_type": "explicit_user_statement",
    }  # fmt: skip
    house.note("a", "fact", observed_at=house.now.isoformat(), confidence=0.8, digest="1" * 64, **{
        name: value for name, value in said.items() if name in ("purposes", "source_type")
    })  # fmt: skip
    house.sweep()
    house.now += 10 * DAY
    house.sweep()  # the item is not among those that came since the last pass
    again = {**said, "observed_at": house.now.isoformat(), "confidence": 0.4, "digest": "2" * 64}
    with house.transaction() as session:
        [result] = register(session, house.services.vault, house.acting(), [again], house.now)
    assert result["status"] == "exists", result
    assert result["changed"]["ends_at"]["new"].startswith(f"{house.now + 100 * DAY:%Y-%m-%d}")
    house.now += 99 * DAY
    house.sweep()
    assert house.rows() == {"a"}
    house.now += 2 * DAY
    house.sweep()
    assert house.rows() == set()
