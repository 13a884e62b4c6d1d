"""A ceiling is the age behind which only the law and the person keep an item: through the database, pass by pass."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlmodel import select

from api.preview import due_under, ending_under, newly_due
from erasure.payload_expiry import sealed_until
from registry.classes import in_force
from registry.declaration import Ceiling
from registry.duration import Duration
from registry.errors import InvalidDeclaration
from registry.playback import read_entries
from registry.record import entry_row
from retention import dispositions
from retention.explain import explain
from retention.schedule import month_end
from tests.retention.conftest import START
from vault.models import DataKey

CAPPED = {
    "keep": "P30D", "from": "created", "then": "review", "ceiling": {"for": "P1Y", "basis": "notice of 2040, 4"},
}  # fmt: skip
END = datetime(2041, 6, 1, 9, tzinfo=UTC)


def waiting(house: Any) -> list[str]:
    with house.transaction(write=False) as session:
        return [view["id"] for _, view in dispositions.dispositions(session, house.tenant_id, house.now)]


def decide(house: Any, name: str, **spec: Any) -> dict[str, Any]:
    with house.transaction() as session:
        return dispositions.decide_disposition(
            session, house.services.vault, house.services.record, house.acting("bea"), disposition_id=name,
            spec={"comment": "looked at it", **spec}, now=house.now,
        )  # fmt: skip


def why(house: Any, artifact: str) -> tuple[str, datetime | None, str]:
    with house.transaction(write=False) as session:
        found = explain(
            session, house.tenant_id, house.desk, artifact=artifact, entry=None, trigger="retention", at=house.now
        )
    return found["action"], found["until"], found["because"][0]["detail"]


def test_an_item_that_nobody_reviews_ends_at_its_ceiling_and_no_extension_goes_behind_it(house: Any) -> None:
    house.plain("paper", retention=CAPPED)
    left, extended = house.note("left", "paper"), house.note("extended", "paper")
    house.now = START + timedelta(days=40)
    house.sweep()
    with house.transaction(write=False) as session:
        found = explain(
            session, house.tenant_id, house.desk, artifact=left, entry=None, trigger="retention", at=house.now
        )
    assert (found["action"], found["because"][1]["detail"]) == (
        "review", "paper ceiling: notice of 2040, 4: without a review at 2041-06-01T09:00:00.000000Z",
    )  # fmt: skip
    [_, second] = waiting(house)
    with pytest.raises(InvalidDeclaration) as refused:
        decide(house, second, decision="extend", until=(END + timedelta(seconds=1)).isoformat())
    [fault] = refused.value.faults
    assert fault.pointer == "/until"
    assert END.isoformat() in fault.detail
    assert "notice of 2040, 4" in fault.detail
    decide(house, second, decision="extend", until=END.isoformat())
    assert why(house, extended) == ("keep", END, "paper ceiling: notice of 2040, 4")
    house.now = END - timedelta(seconds=1)
    house.sweep()
    assert house.rows() == {"left", "extended"}
    house.now = END
    assert why(house, left) == ("erase", END, "paper ceiling: notice of 2040, 4")
    assert house.sweep()["counts"]["removed"] == 2
    assert house.rows() == set()
    assert waiting(house) == [], "nobody is asked about what is gone"


def test_a_hold_keeps_an_item_behind_its_ceiling_and_the_release_ends_it(house: Any) -> None:
    house.plain("paper", retention=CAPPED)
    name = house.note("held", "paper")
    spec = {"name": "n", "matter": "m", "reason": "r", "selector": {"artifacts": [name]}}
    placed = house.holds.place(house.acting("ann"), spec, house.now)
    house.now = END + timedelta(days=400)
    house.sweep()
    assert house.rows() == {"held"}
    preview = house.holds.release(house.acting("bea"), placed["id"], preview=True, now=house.now)
    assert [line["id"] for line in preview["becomes_due"]] == [name]
    house.holds.release(house.acting("bea"), placed["id"], preview=False, now=house.now)
    house.sweep()
    assert house.rows() == set()


def test_a_month_of_the_record_ends_at_its_ceiling_whoever_was_to_review_it(house: Any) -> None:
    house.plain("talk", state="record", retention=CAPPED)
    entry = house.say("one", "something", "talk")

    def opens() -> bool:
        with house.transaction(write=False) as session:
            row = entry_row(session, house.tenant_id, entry)
            assert row is not None
            [found] = read_entries(session, house.services.vault, house.services.log, house.tenant_id, [row])
        return found.parts[0].data is not None

    house.now = datetime(2041, 6, 30, 12, tzinfo=UTC)
    house.sweep()
    assert opens(), "the last entry of the month may be a day younger"
    house.now += timedelta(days=1)
    house.sweep()
    assert not opens()


def test_sealed_bytes_that_a_person_decides_about_have_a_date_by_their_ceiling_only(house: Any) -> None:
    """The date of the clock was printed, although a review may be late and an extension may follow."""
    without = {name: value for name, value in CAPPED.items() if name != "ceiling"}
    house.plain("talk", state="record", retention=without)
    house.say("one", "something", "talk")

    def until() -> Any:
        with house.transaction(write=False) as session:
            key_ids = session.scalars(select(DataKey.key_id).where(DataKey.data_class == "talk")).all()
            return sealed_until(session, house.tenant_id, key_ids, lag=timedelta(hours=2))

    assert until() == "unknown"
    house.plain("talk", state="record", retention={**CAPPED, "ceiling": {"for": "P30Y", "basis": "notice"}})
    assert until() == Duration.parse("P30Y").add_to(month_end("2040-06")) + timedelta(hours=2)


def test_a_new_ceiling_shows_what_it_would_end_and_ends_it(house: Any) -> None:
    without = {name: value for name, value in CAPPED.items() if name != "ceiling"}
    house.plain("paper", retention=without)
    house.plain("talk", state="record", retention=without)
    name = house.note("old", "paper")
    house.say("one", "something", "talk")
    house.now = START + timedelta(days=100)
    house.note("young", "paper")
    house.now = START + timedelta(days=200)
    house.sweep()
    with house.transaction(write=False) as session:
        for data_class, due, new in (("paper", 2, [name]), ("talk", 1, [])):
            known = in_force(session, house.tenant_id)[data_class]
            wanted = replace(known, ceiling=Ceiling(keep=Duration.parse("P150D"), basis="notice"))
            assert due_under(session, house.tenant_id, known, house.now) == due
            assert due_under(session, house.tenant_id, wanted, house.now) == due
            assert ending_under(session, house.tenant_id, known, house.now) == 0
            assert ending_under(session, house.tenant_id, wanted, house.now) == 1
            assert newly_due(session, house.tenant_id, known, wanted, house.now) == new
    house.plain("paper", retention={**without, "ceiling": {"for": "P150D", "basis": "notice"}})
    house.sweep()
    assert house.rows() == {"young"}


def test_a_review_is_asked_for_by_the_ceiling_where_that_comes_before_its_deadline(house: Any) -> None:
    house.plain("paper", retention={**CAPPED, "ceiling": {"for": "P40D", "basis": "notice"}})
    house.note("a", "paper")
    house.now = START + timedelta(days=31)
    house.sweep()
    with house.transaction(write=False) as session:
        [(_, one)] = dispositions.dispositions(session, house.tenant_id, house.now)
    assert one["due_at"] == START + timedelta(days=40)


def test_a_ceiling_that_would_empty_a_queue_at_once_waits_for_a_second_person(house: Any) -> None:
    without = {name: value for name, value in CAPPED.items() if name != "ceiling"}
    house.plain("paper", retention=without)
    for number in range(60):
        house.note(str(number), "paper")
    house.now = START + timedelta(days=200)
    assert house.sweep()["counts"]["review"] == 60
    house.plain("paper", retention={**without, "ceiling": {"for": "P150D", "basis": "notice"}})
    run = house.sweep("ann")
    assert (run["state"], run["brake"]["reason"], len(house.rows())) == ("awaiting_approval", "share", 60)
    house.sweeps.approve(house.acting("bea"), run["id"], house.now)
    house.sweeps.run_due(house.tenant_id, house.now)
    assert house.rows() == set()
