"""Whole passes over real parts: what ends, what stays, what waits, and who has to say so."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlmodel import select

from api.commands.retention import run_lines
from erasure.sweep_copies import Sweeps
from ledger.entry import Kind
from ledger.models import EntryRow
from registry.acting import Acting
from registry.errors import InvalidDeclaration
from retention import dispositions
from retention.errors import EventNotListed, NothingLeft, NotKnown, NotOpen, SecondPersonNeeded
from retention.explain import explain, list_due
from retention.sweep import Brakes
from vault.models import DataKey, KeyState

ADA = "email:ada@example.org"
BOB = "email:bob@example.org"
ROLE = {"role": "role-14"}


def test_a_closed_role_ends_its_items_six_months_later_and_the_invite_at_once(house: Any) -> None:
    house.note("cv", "cv_file", scope=ROLE)
    house.note("invite", "invite", scope=ROLE)
    house.note("other", "cv_file", scope={"role": "role-15"})
    house.now += timedelta(days=10)
    house.event("role.closed", role="role-14")
    assert house.sweep()["counts"]["removed"] == 1
    assert house.rows() == {"cv", "other"}
    house.now = datetime(2040, 12, 11, 8, 59, tzinfo=UTC)  # six months after the 11th at nine, less a minute
    assert house.sweep()["counts"]["ends"] == 0
    house.now += timedelta(minutes=1)
    run = house.sweep()
    assert run["counts"]["removed"] == run["counts"]["verified"] == 1
    assert house.rows() == {"other"}


def test_an_item_registered_after_its_event_ends_by_that_event(house: Any) -> None:
    house.event("role.closed", role="role-14")
    house.now += timedelta(days=30)
    late = house.note("late", "cv_file", scope=ROLE)
    assert house.artifact(late).ends_at > house.now + timedelta(days=300), "its date is the cap"
    house.now = datetime(2040, 12, 2, tzinfo=UTC)
    house.sweep()
    assert house.rows() == set()


def test_an_event_that_happens_again_counts_from_the_last_time(house: Any) -> None:
    house.note("cv", "cv_file", scope=ROLE)
    house.event("role.closed", role="role-14")
    house.now += timedelta(days=100)
    house.event("role.closed", role="role-14")
    house.now = datetime(2040, 12, 5, tzinfo=UTC)
    house.sweep()
    assert house.rows() == {"cv"}
    house.now = datetime(2041, 3, 10, tzinfo=UTC)
    house.sweep()
    assert house.rows() == set()


def test_an_event_that_never_comes_is_not_for_ever(house: Any) -> None:
    house.note("cv", "cv_file", scope=ROLE)
    house.now = datetime(2041, 12, 1, 9, tzinfo=UTC)
    house.sweep()
    assert house.rows() == set()


def test_an_event_of_one_person_leaves_the_others_of_the_scope_alone(house: Any) -> None:
    house.note("a", "invite", ADA, scope=ROLE)
    house.note("b", "invite", BOB, scope=ROLE)
    house.event("role.closed", subject=ADA, role="role-14")
    house.sweep()
    assert house.rows() == {"b"}


def test_a_refused_event_names_its_fault(house: Any) -> None:
    for name, key, at in (
        ("Role Closed", ROLE, house.now),
        ("role.closed", {}, house.now),
        ("role.closed", {**ROLE, "team": "x"}, house.now),
        ("role.closed", ROLE, house.now + timedelta(seconds=1)),
    ):
        with pytest.raises(InvalidDeclaration):
            house.event(name, at, **key)
    house_writer = house.acting("bot", "writer")
    from retention.events import record_event

    with house.transaction() as session, pytest.raises(EventNotListed):
        record_event(session, house.services.vault, house_writer, "unheard.of", ROLE, at=house.now, now=house.now)


def test_derived_copies_end_with_their_source_in_the_same_pass(house: Any) -> None:
    house.plain("source")
    house.plain("derived", retention={"keep": "P7Y", "from": "created", "then": "erase"})
    house.plain("own_basis", retention={"keep": "P7Y", "from": "created", "then": "erase"},
                derived={"default": "cascade", "may_outlive_source": True})  # fmt: skip
    root = house.note("root", "source")
    child = house.note("child", "derived", sources=[root])
    house.note("grandchild", "derived", sources=[child])
    house.note("kept", "own_basis", sources=[root])
    house.now += timedelta(days=91)
    run = house.sweep()
    assert house.rows() == {"kept"}
    assert run["counts"]["removed"] == 3
    report = house.sweeps.report(house.acting(), run["id"])
    assert [copy["rule"] for copy in report["copies"]] == ["source_end", "source_end", "class_retention"]


@pytest.mark.scenario("S36")
@pytest.mark.parametrize("required", ["L2", "L1"])
def test_the_report_says_what_stores_gave_back_and_warns_where_they_gave_nothing(house: Any, required: str) -> None:
    """Elsewhere a nightly job deleted rows for months while the table grew: nobody rewrote it, and nobody said so."""
    house.plain("note", erasure={"on_request": "erase", "required": required})
    for number in range(4):
        house.note(f"n{number}", "note")
    with sqlite3.connect(house.file) as db:
        db.execute("UPDATE note SET text = ?", ("a long transcript of a tool's answer " * 2000,))
    house.now += timedelta(days=91)
    run = house.sweep()
    (line,) = house.sweeps.report(house.acting(), run["id"])["reclaimed"]
    assert (line["store"], line["copies"]) == ("app", 4)
    if required == "L2":
        assert line["freed_bytes"] > 4 * 70_000
        assert "warning" not in line
    else:
        assert line["freed_bytes"] == 0
        assert "nothing was rewritten" in line["warning"]


@pytest.mark.scenario("E8")
def test_a_held_item_stays_and_ends_in_the_first_pass_after_the_release(house: Any) -> None:
    house.plain("note")
    kept, _ = house.note("a", "note"), house.note("b", "note", BOB)
    placed = house.holds.place(
        house.acting("ann"),
        {"name": "acme", "matter": "Acme v. us", "reason": "letter", "selector": {"subjects": [ADA]}},
        house.now,
    )
    assert placed["items"] == 1
    assert placed["too_late"] == []
    house.now += timedelta(days=100)
    run = house.sweep()
    assert house.rows() == {"a"}
    assert run["kept"] == {"hold": 1}
    with pytest.raises(SecondPersonNeeded):
        house.holds.release(house.acting("ann"), placed["id"], preview=False, now=house.now)
    preview = house.holds.release(house.acting("ann"), placed["id"], preview=True, now=house.now)
    assert [(line["id"], line["due"], line["rule"]) for line in preview["becomes_due"]] == [
        (kept, True, "class_retention")
    ]
    assert preview["released"] is False
    house.sweep()
    assert house.rows() == {"a"}, "a preview releases nothing"
    assert house.holds.release(house.acting("bea"), placed["id"], preview=False, now=house.now)["due"] == 1
    house.sweep()
    assert house.rows() == set()
    with pytest.raises(NotOpen):
        house.holds.release(house.acting("bea"), placed["id"], preview=False, now=house.now)


@pytest.mark.parametrize("by", ["subjects", "data_classes", "scope", "artifacts"])
def test_a_hold_by_each_selector_also_holds_what_comes_later(house: Any, by: str) -> None:
    house.plain("note")
    house.plain("free")
    first = house.note("first", "note", scope=ROLE)
    selectors: dict[str, dict[str, Any]] = {
        "subjects": {"subjects": [ADA]},
        "data_classes": {"data_classes": ["note"]},
        "scope": {"scope": ROLE},
        "artifacts": {"artifacts": [first]},
    }
    spec = {"name": "n", "matter": "m", "reason": "r", "selector": selectors[by]}
    house.holds.place(house.acting(), spec, house.now)
    house.note("later", "note", scope=ROLE)
    house.note("free", "free", BOB)
    house.now += timedelta(days=100)
    house.sweep()
    assert house.rows() == ({"first"} if by == "artifacts" else {"first", "later"})


def test_a_hold_that_comes_between_plan_and_dispatch_wins(house: Any) -> None:
    house.plain("note")
    house.note("a", "note")
    house.note("b", "note", BOB)
    house.now += timedelta(days=100)
    run = house.sweeps.start(house.acting(), house.now)
    spec = {"name": "n", "matter": "m", "reason": "r", "selector": {"subjects": [ADA]}}
    assert house.holds.place(house.acting(), spec, house.now)["too_late"] == []
    house.sweeps.run_due(house.tenant_id, house.now)
    assert house.rows() == {"a"}
    assert house.sweeps.get(house.acting(), run["id"])["counts"]["retained"] == 1


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "n", "matter": "m", "reason": "r", "selector": {}},
        {"name": "n", "matter": "m", "reason": "r"},
        {"name": "n", "matter": "m", "selector": {"subjects": [ADA]}},
        {"name": "n", "matter": "m", "reason": "r", "selector": {"data_classes": ["nothing"]}},
        {"name": "n", "matter": "m", "reason": "r", "selector": {"artifacts": ["art_nothing"]}},
        {"name": "n", "matter": "m", "reason": "r", "selector": {"subjects": ["ada*"]}},
        {"name": "n", "matter": "m", "reason": "r", "selector": {"everything": True}},
        {"name": "n", "matter": "m", "reason": "r", "selector": {"scope": {"Role": "role-14"}}},
        {"name": "n", "matter": "m", "reason": "r", "selector": {"scope": {"": "role-14"}}},
    ],
)
def test_a_hold_without_a_meaning_is_refused(house: Any, spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidDeclaration):
        house.holds.place(house.acting(), spec, house.now)
    assert house.holds.holds(house.acting()) == []


def test_the_brake_stops_a_pass_that_would_end_most_of_a_class_until_another_person_says_so(house: Any) -> None:
    house.plain("note")
    for number in range(60):
        house.note(str(number), "note")
    house.now += timedelta(days=100)
    run = house.sweep("ann")
    assert run["state"] == "awaiting_approval"
    assert run["brake"]["reason"] == "share"
    assert run["brake"]["classes"] == {"note": {"ends": 60, "live": 60}}
    share, todo = run_lines(run)[-2:]
    assert share == "  share: more than 20% of the live items of note would end"
    assert todo.startswith("  to do: look at the plan; if it is what was meant")
    assert len(house.rows()) == 60
    assert house.sweep("ann")["counts"]["in_other_runs"] == 60, "a second run leaves them to the first"
    with pytest.raises(SecondPersonNeeded):
        house.sweeps.approve(house.acting("ann"), run["id"], house.now)
    house.sweeps.approve(house.acting("bea"), run["id"], house.now)
    house.sweeps.run_due(house.tenant_id, house.now)
    done = house.sweeps.get(house.acting(), run["id"])
    assert done["state"] == "completed"
    assert done["counts"]["removed"] == done["counts"]["verified"] == 60
    assert done["alarm"] is None
    assert house.rows() == set()
    with pytest.raises(NotOpen):
        house.sweeps.approve(house.acting("bea"), run["id"], house.now)


@pytest.mark.parametrize("pieces", ["cap", "instants"])
def test_the_brake_is_about_all_that_is_due_however_small_the_pieces(house: Any, pieces: str) -> None:
    # In pieces of a sixth of the class each pass was below the share: two thirds went without a second person.
    house.plain("note", retention={"keep": "P10D", "from": "created", "then": "erase"})
    for number in range(18):
        house.note(f"n{number}", "note")
        house.now += timedelta(minutes=1)
    first, house.now = house.now - timedelta(minutes=18), house.now + timedelta(days=11)
    brakes = Brakes(jump=timedelta(days=10_000), at_least=2, cap=3 if pieces == "cap" else 50_000)
    house.sweeps = Sweeps(house.parts, brakes=brakes)
    when = {} if pieces == "cap" else {"at": first + timedelta(days=10, minutes=2)}
    run = house.sweep("ann", **when)
    assert (run["state"], run["counts"]["ends"]) == ("awaiting_approval", 3)
    assert (run["brake"]["reason"], run["brake"]["classes"]) == ("share", {"note": {"ends": 18, "live": 18}})
    assert len(house.rows()) == 18
    house.sweeps.approve(house.acting("bea"), run["id"], house.now)
    house.sweeps.run_due(house.tenant_id, house.now)
    assert len(house.rows()) == 15, "what was approved is what the plan lists"


def test_a_run_that_is_not_wanted_is_stopped_and_its_items_are_looked_at_again(house: Any) -> None:
    house.plain("note")
    for number in range(60):
        house.note(str(number), "note")
    house.now += timedelta(days=100)
    run = house.sweep("ann")
    assert house.sweeps.stop(house.acting("bea"), run["id"], house.now)["state"] == "stopped"
    assert house.sweep("ann")["state"] == "awaiting_approval"
    assert len(house.rows()) == 60


def test_a_clock_that_jumped_waits_and_one_that_went_back_stops(house: Any) -> None:
    sweeps = Sweeps(house.parts, brakes=Brakes())
    house.plain("note")
    house.note("a", "note")
    assert sweeps.start(house.acting(), house.now)["state"] == "completed"
    house.now += timedelta(days=100)
    jumped = sweeps.start(house.acting(), house.now)
    assert jumped["state"] == "awaiting_approval"
    assert jumped["brake"]["reason"] == "clock_jump"
    system = Acting.system(tenant_id=house.tenant_id, tenant="acme", log_id=house.log_id)
    back = sweeps.start(system, house.now - timedelta(days=1))
    assert back["state"] == "stopped"
    assert back["brake"]["reason"] == "clock_back"
    assert "clock" in back["brake"]["todo"]
    assert house.rows() == {"a"}


def test_a_dry_run_sees_the_future_and_changes_nothing(house: Any) -> None:
    house.plain("note")
    house.note("a", "note")
    run = house.sweep(at=house.now + timedelta(days=100), dry_run=True)
    assert run["state"] == "planned"
    assert run["counts"]["ends"] == 1
    assert run["copies_by_state"] == {}
    assert house.rows() == {"a"}
    assert house.sweep()["counts"]["ends"] == 0


@pytest.mark.scenario("E3")
def test_an_item_without_a_date_gets_its_class_s(house: Any) -> None:
    house.plain("note")
    name = house.note("a", "note")
    with house.transaction() as session:
        row = house.artifact(name)
        row.ends_at = None
        session.merge(row)
    house.now += timedelta(days=100)
    house.sweep()
    assert house.rows() == set()


def test_a_shortened_class_reaches_items_that_were_dated_under_the_old_one(house: Any) -> None:
    house.plain("note")
    house.note("a", "note")
    house.plain("note", retention={"keep": "P10D", "from": "created", "then": "erase"})
    house.now += timedelta(days=11)
    house.sweep()
    assert house.rows() == set()


def test_a_lengthened_class_keeps_items_that_were_dated_under_the_old_one(house: Any) -> None:
    house.plain("note")
    house.note("a", "note")
    house.plain("note", retention={"keep": "P1Y", "from": "created", "then": "erase"})
    house.now += timedelta(days=100)
    house.sweep()
    assert house.rows() == {"a"}
    house.now += timedelta(days=300)
    house.sweep()
    assert house.rows() == set()


def test_a_month_of_the_record_ends_when_its_last_day_has_run_out(house: Any) -> None:
    entry = house.say("thread-1", "what Ada said")
    house.now += timedelta(days=20)
    house.say("thread-1", "what Ada said later in June")
    house.now = datetime(2040, 12, 30, 23, tzinfo=UTC)
    assert house.sweep()["counts"]["ends"] == 0, "the last instant of June and six months are not over"
    assert _months(house) == {"2040-06": KeyState.LIVE.value}
    house.now = datetime(2040, 12, 31, tzinfo=UTC)
    run = house.sweep()
    assert run["counts"]["removed"] == run["counts"]["verified"] == 1
    assert _months(house) == {"2040-06": KeyState.DESTROYED.value}
    with house.transaction(write=False) as session:
        assert session.exec(select(EntryRow).where(EntryRow.data_class == "screening_record")).first() is not None
        with pytest.raises(NothingLeft):
            explain(session, house.tenant_id, house.desk, artifact=None, entry=entry, trigger="retention", at=house.now)


def test_a_held_person_s_record_keeps_its_key(house: Any) -> None:
    house.say("thread-1", "what Ada said")
    spec = {"name": "n", "matter": "m", "reason": "r", "selector": {"subjects": [ADA]}}
    assert house.holds.place(house.acting(), spec, house.now)["keys"] >= 1
    house.now = datetime(2041, 6, 1, tzinfo=UTC)
    house.sweep()
    assert _months(house) == {"2040-06": KeyState.LIVE.value}


def _months(house: Any) -> dict[str, str]:
    with house.transaction(write=False) as session:
        rows = session.exec(
            select(DataKey).where(DataKey.tenant_id == house.tenant_id, DataKey.data_class == "screening_record")
        )
        return {row.month: row.state for row in rows}


def _reviews(house: Any, state: str = "open") -> list[dict[str, Any]]:
    with house.transaction(write=False) as session:
        found = dispositions.dispositions(session, house.tenant_id, house.now, state=state)
        return [view for _, view in found]


def _decide(house: Any, name: str, **spec: Any) -> dict[str, Any]:
    with house.transaction() as session:
        return dispositions.decide_disposition(
            session,
            house.services.vault,
            house.services.record,
            house.acting("bea"),
            disposition_id=name,
            spec={"comment": "looked at it", **spec},
            now=house.now,
        )


@pytest.fixture
def reviewed(house: Any) -> Any:
    house.plain("paper", retention={"keep": "P90D", "from": "created", "then": "review"})
    house.note("paper", "paper")
    house.now += timedelta(days=91)
    run = house.sweep()
    assert (run["counts"]["ends"], run["counts"]["review"]) == (0, 1)
    assert house.rows() == {"paper"}
    return house


def test_a_review_that_says_erase_is_carried_out_by_the_next_pass(reviewed: Any) -> None:
    [waiting] = _reviews(reviewed)
    reviewed.sweep()
    assert len(_reviews(reviewed)) == 1, "an item waits once"
    assert _decide(reviewed, waiting["id"], decision="erase")["state"] == "erase"
    assert reviewed.sweep()["counts"]["removed"] == 1
    assert reviewed.rows() == set()
    assert _reviews(reviewed) == _reviews(reviewed, "erase") == []


def test_a_review_that_says_erase_still_yields_to_a_hold(reviewed: Any) -> None:
    [waiting] = _reviews(reviewed)
    _decide(reviewed, waiting["id"], decision="erase")
    spec = {"name": "n", "matter": "m", "reason": "r", "selector": {"data_classes": ["paper"]}}
    reviewed.holds.place(reviewed.acting(), spec, reviewed.now)
    reviewed.sweep()
    assert reviewed.rows() == {"paper"}


def test_an_extended_item_comes_back_to_review_when_its_time_is_over(reviewed: Any) -> None:
    [waiting] = _reviews(reviewed)
    until = reviewed.now + timedelta(days=30)
    _decide(reviewed, waiting["id"], decision="extend", until=until.isoformat())
    reviewed.now += timedelta(days=29)
    assert reviewed.sweep()["counts"]["review"] == 0
    reviewed.now += timedelta(days=2)
    assert reviewed.sweep()["counts"]["review"] == 1
    assert len(_reviews(reviewed)) == 1


def test_a_reclassified_item_follows_its_new_class(reviewed: Any) -> None:
    reviewed.plain("note")
    [waiting] = _reviews(reviewed)
    assert _decide(reviewed, waiting["id"], decision="reclassify", data_class="note")["data_class"] == "note"
    reviewed.sweep()
    assert reviewed.rows() == set()


@pytest.mark.parametrize(
    "spec",
    [
        {"decision": "extend"},
        {"decision": "extend", "until": "2020-01-01T00:00:00Z"},
        {"decision": "erase", "until": "2099-01-01T00:00:00Z"},
        {"decision": "reclassify"},
        {"decision": "erase", "comment": ""},
        {"decision": "forget"},
    ],
)
def test_a_disposition_that_says_nothing_clear_is_refused(reviewed: Any, spec: dict[str, Any]) -> None:
    [waiting] = _reviews(reviewed)
    with pytest.raises(InvalidDeclaration):
        _decide(reviewed, waiting["id"], **spec)
    assert _reviews(reviewed) == [waiting]
    with pytest.raises(NotKnown):
        _decide(reviewed, "dsp_0000000000000001", decision="erase")


def test_what_is_due_is_listed_page_by_page_once_each(house: Any) -> None:
    house.plain("note")
    names = {house.note(str(number), "note") for number in range(5)}
    names |= {house.note(f"cv-{number}", "cv_file", scope=ROLE) for number in range(3)}
    house.event("role.closed", role="role-14")
    names.add(house.note("late", "cv_file", scope=ROLE))
    house.say("thread-1", "what Ada said")
    seen: list[dict[str, Any]] = []
    place = None
    before = datetime(2041, 1, 2, tzinfo=UTC)
    for _ in range(100):
        with house.transaction(write=False) as session:
            lines, place = list_due(session, house.tenant_id, house.desk, before=before, limit=2, place=place)
        seen += lines
        if place is None:
            break
    assert {line["id"] for line in seen if line["kind"] == "artifact"} == names
    assert [line["data_class"] for line in seen if line["kind"] == "key"] == ["screening_record"]
    assert len(seen) == len(names) + 1


@pytest.mark.scenario("E2")
def test_a_store_that_does_not_answer_raises_the_alarm_and_is_tried_again(house: Any) -> None:
    house.plain("note")
    house.note("a", "note")
    house.now += timedelta(days=100)
    moved = house.file.rename(house.file.with_suffix(".away"))
    run = house.sweeps.start(house.acting(), house.now)
    for _ in range(6):
        house.sweeps.run_due(house.tenant_id, house.now)
        house.now += timedelta(minutes=2)
    failed = house.sweeps.get(house.acting(), run["id"])
    assert failed["state"] == "completed"
    assert failed["counts"]["removed"] == 0
    assert "none was removed" in failed["alarm"]
    house.file.unlink(missing_ok=True)
    moved.rename(house.file)
    assert house.sweep()["counts"]["removed"] == 1
    assert house.rows() == set()


def test_the_scheduler_starts_one_pass_an_hour(house: Any) -> None:
    assert house.sweeps.is_time(house.tenant_id, house.now)
    house.sweep()
    assert not house.sweeps.is_time(house.tenant_id, house.now + timedelta(minutes=59))
    assert house.sweeps.is_time(house.tenant_id, house.now + timedelta(hours=1))


def test_a_hold_is_readable_by_the_desk_and_by_nobody_who_reads_the_table(house: Any) -> None:
    spec = {"name": "n", "matter": "Acme against us", "reason": "a letter", "selector": {"subjects": [ADA]}}
    house.holds.place(house.acting(), spec, house.now)
    [shown] = house.holds.holds(house.acting())
    assert (shown["matter"], shown["reason"]) == ("Acme against us", "a letter")
    from retention.models import HoldRow

    with house.transaction(write=False) as session:
        row = session.exec(select(HoldRow)).one()
    assert b"Acme" not in row.sealed
    assert re.search(r"\bada\b", repr(row)) is None


# ── the decision, asked alone ─────────────────────────────────────────────────────────────────────────────────────


def asked(house: Any, *, at: datetime | None = None, **what: str) -> tuple[str, str]:
    with house.transaction(write=False) as session:
        found = explain(
            session, house.tenant_id, house.desk, artifact=what.get("artifact"), entry=what.get("entry"),
            trigger="retention", at=at or house.now,
        )  # fmt: skip
    return found["action"], found["rule"]


def test_a_copy_of_something_held_is_explained_as_a_pass_would_decide_it(house: Any) -> None:
    house.plain("note")
    house.plain("long", retention={"keep": "P7Y", "from": "created", "then": "erase"})
    root = house.note("root", "note")
    middle = house.note("middle", "long", BOB, sources=[root])
    leaf = house.note("leaf", "long", BOB, sources=[middle])
    spec = {"name": "n", "matter": "m", "reason": "r", "selector": {"artifacts": [root]}}
    placed = house.holds.place(house.acting("ann"), spec, house.now)
    house.now += timedelta(days=100)
    assert [asked(house, artifact=one)[0] for one in (root, middle, leaf)] == ["keep", "keep", "keep"]
    house.sweep()
    assert house.rows() == {"root", "middle", "leaf"}
    house.holds.release(house.acting("bea"), placed["id"], preview=False, now=house.now)
    assert [asked(house, artifact=one) for one in (root, middle, leaf)] == [
        ("erase", "class_retention"), ("erase", "source_end"), ("erase", "source_end"),
    ]  # fmt: skip
    house.sweep()
    assert house.rows() == set()


def test_a_copy_stays_while_another_of_its_sources_is_held_past_its_date(house: Any) -> None:
    """The held source counted as ended on its date, so that a copy with two sources went with the other one."""
    house.plain("note")
    house.plain("digest", retention={"keep": "P7Y", "from": "created", "then": "erase"},
                derived={"default": "keep_if_other_sources"})  # fmt: skip
    kept, gone = house.note("kept", "note"), house.note("gone", "note", BOB)
    made = house.note("made", "digest", BOB, sources=[kept, gone])
    spec = {"name": "n", "matter": "m", "reason": "r", "selector": {"artifacts": [kept]}}
    placed = house.holds.place(house.acting("ann"), spec, house.now)
    house.now += timedelta(days=100)
    assert asked(house, artifact=made)[0] == "keep"
    house.sweep()
    assert house.rows() == {"kept", "made"}
    house.holds.release(house.acting("bea"), placed["id"], preview=False, now=house.now)
    assert asked(house, artifact=made) == ("erase", "source_end")
    house.sweep()
    assert house.rows() == set()


def test_an_entry_is_explained_with_the_clock_of_its_key(house: Any) -> None:
    house.plain("case", state="record",
                retention={"keep": "P1M", "from": "event:case.closed", "latest": "P2Y", "then": "erase"})  # fmt: skip
    said = house.say("one", "something", "case")
    later = datetime(2040, 8, 2, tzinfo=UTC)
    assert asked(house, entry=said, at=later) == ("keep", "class_retention")
    house.event("case.closed", conversation="one")
    assert asked(house, entry=said, at=datetime(2040, 7, 30, tzinfo=UTC)) == ("keep", "class_retention")
    assert asked(house, entry=said, at=later) == ("erase", "class_retention")
    house.now = later
    assert house.sweep()["counts"]["removed"] == 1
    # «keep until» of words that nobody can read any more would be a claim about nothing.
    for at in (later, datetime(2040, 7, 30, tzinfo=UTC)):
        with pytest.raises(NothingLeft):
            asked(house, entry=said, at=at)


@pytest.mark.scenario("E2")
def test_dates_written_in_every_form_end_exactly_what_is_past_them(house: Any) -> None:
    """Compared as texts, `T` sorts after a space, and an offset does not count at all."""
    house.plain("note")
    house.now = datetime(2040, 6, 10, 12, tzinfo=UTC)
    forms = {
        "past-z": "2040-06-10T11:59:59Z",
        "past-east": "2040-06-10T13:59:59+02:00",
        "past-west": "2040-06-10T04:59:59-07:00",
        "past-fraction": "2040-06-10T11:59:59.999999Z",
        "later-z": "2040-06-10T12:00:01Z",
        "later-east": "2040-06-10T14:00:01+02:00",
        "later-west": "2040-06-10T05:00:01-07:00",
        "later-fraction": "2040-06-10T12:00:00.000001Z",
    }
    for name, written in forms.items():
        house.note(name, "note", expires_at=written)
    assert house.sweep()["counts"]["removed"] == 4
    assert house.rows() == {name for name in forms if name.startswith("later")}


@pytest.mark.scenario("E6")
def test_what_lies_idle_for_a_year_ends_although_nothing_new_was_written(house: Any) -> None:
    """The boundary was counted from the newest write: data that nobody touched never ended."""
    house.plain("note", retention={"keep": "P1Y", "from": "last_activity", "latest": "P3Y", "then": "erase"})
    house.plain("talk", state="record", retention={"keep": "P6M", "from": "created", "then": "erase"})
    house.note("idle", "note")
    house.say("chat", "something", "talk")
    house.now += timedelta(days=366)
    run = house.sweep()
    assert run["counts"]["removed"] == run["counts"]["verified"] == 2
    assert house.rows() == set()


class Breaking:
    """A record that cannot take what a pass announces, as often as said."""

    def __init__(self, inner: Any, times: int) -> None:
        self._inner, self.times = inner, times

    def announce(self, session: Any, tenant_id: int, kind: Kind, *more: Any) -> Any:
        if kind is Kind.COPY_ERASED and self.times:
            self.times -= 1
            message = "said by ada@example.org"
            raise RuntimeError(message)
        return self._inner.announce(session, tenant_id, kind, *more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("house", ["sqlite"], indirect=True)
def test_a_run_that_breaks_off_says_so_in_its_history_and_goes_on(house: Any) -> None:
    """Only the service's log said that a run had failed."""
    house.plain("note")
    house.note("a", "note")
    house.now += timedelta(days=100)
    house.parts = replace(house.parts, record=Breaking(house.parts.record, 2))
    house.sweeps = Sweeps(house.parts, brakes=Brakes(jump=timedelta(days=10_000)))
    run = house.sweeps.start(house.acting("ann"), house.now)["id"]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="said by"):
            house.sweeps.run_due(house.tenant_id, house.now)
        house.now += timedelta(minutes=1)
    broken = house.sweeps.get(house.acting(), run)
    assert broken["state"] == "executing"
    assert "broke off 2 times in a row (RuntimeError)" in broken["alarm"]
    house.sweeps.run_due(house.tenant_id, house.now)
    ended = house.sweeps.report(house.acting(), run)
    assert house.rows() == set()
    assert [(line["event"], line.get("times", 1)) for line in ended["history"]] == [
        ("planned", 1), ("failed", 2), ("completed", 1),
    ]  # fmt: skip
    assert ended["history"][0]["detail"] == {"by": "ann"}
    assert ended["alarm"] is None
    assert "ada@" not in repr(ended["history"])


@pytest.mark.parametrize("house", ["sqlite"], indirect=True)
def test_who_approved_and_who_stopped_a_run_stands_in_its_history(house: Any) -> None:
    house.plain("note")
    for number in range(60):
        house.note(str(number), "note")
    house.now += timedelta(days=100)
    first = house.sweep("ann")
    stopped = house.sweeps.stop(house.acting("bea"), first["id"], house.now)
    assert [line["event"] for line in stopped["history"]] == ["planned", "stopped"]
    second = house.sweep("ann")
    house.sweeps.approve(house.acting("carol"), second["id"], house.now)
    house.sweeps.run_due(house.tenant_id, house.now)
    said = house.sweeps.get(house.acting(), second["id"])["history"]
    assert [(line["event"], line["detail"].get("by")) for line in said] == [
        ("planned", "ann"), ("approved", "carol"), ("completed", None),
    ]  # fmt: skip
    assert said[0]["detail"]["brake"] == "share"
    assert said[-1]["detail"] == {"removed": 60, "failed": 0}
