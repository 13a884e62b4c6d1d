"""What a store refuses pass after pass is set aside and named, and is in nobody's way until somebody decides."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Self

import pytest

from connectors.base import Outcome, Receipt
from erasure.deadlines import near
from erasure.sweep_copies import Sweeps
from registry.inventory import inventory
from registry.playback import read_entries
from registry.record import entry_row
from registry.stores import put_store
from retention import dispositions
from retention.explain import explain
from retention.quarantine import gaps
from retention.sweep import Brakes
from tests.retention.conftest import BOB

HOUR = timedelta(hours=1)
pytestmark = pytest.mark.parametrize("house", ["sqlite"], indirect=True)


def refuses(house: Any, *keys: str) -> None:
    """The store keeps these rows, whoever asks."""
    with sqlite3.connect(house.file) as db:
        for key in keys:
            db.execute(
                f"CREATE TRIGGER bad_{key} BEFORE DELETE ON note WHEN old.id = '{key}' "
                "BEGIN SELECT RAISE(ABORT, 'no'); END"
            )


def mended(house: Any, *keys: str) -> None:
    with sqlite3.connect(house.file) as db:
        for key in keys:
            db.execute(f"DROP TRIGGER bad_{key}")


def once(house: Any, *, cap: int = 50_000, probe: int = 100) -> None:
    """Each pass tries an item once, so that a test needs no waits between attempts."""
    house.parts = replace(house.parts, max_attempts=1)
    house.sweeps = Sweeps(house.parts, brakes=Brakes(jump=timedelta(days=10_000), share=1, cap=cap, probe=probe))


def passes(house: Any, number: int) -> list[dict[str, Any]]:
    found = []
    for _ in range(number):
        run = house.sweep()
        found.append(house.sweeps.report(house.acting(), run["id"]))
        house.now += HOUR
    return found


def in_quarantine(house: Any) -> list[dict[str, Any]]:
    with house.transaction(write=False) as session:
        rows = dispositions.dispositions(session, house.tenant_id, house.now, state="quarantined")
    return [view for _, view in rows]


def decide(house: Any, name: str, **spec: Any) -> dict[str, Any]:
    with house.transaction() as session:
        return dispositions.decide_disposition(
            session, house.services.vault, house.services.record, house.acting("bea"), disposition_id=name,
            spec={"comment": "the trigger is gone", **spec}, now=house.now,
        )  # fmt: skip


@pytest.fixture
def bad(house: Any) -> dict[str, str]:
    """Three due items, of which the store refuses one, after three passes."""
    house.plain("note")
    ids = {key: house.note(key, "note") for key in "abc"}
    refuses(house, "b")
    once(house)
    house.now += timedelta(days=100)
    first, second, third = passes(house, 3)
    assert [one["counts"]["quarantined"] for one in (first, second, third)] == [0, 0, 1]
    assert house.rows() == {"b"}, "the rest went in the first pass"
    return ids


def test_an_item_that_fails_in_three_passes_is_set_aside_and_named_everywhere(house: Any, bad: dict[str, str]) -> None:
    [report] = passes(house, 1)
    assert (report["counts"]["ends"], report["counts"]["aside"]) == (0, 1), "nobody sends it again"
    [named] = report["quarantine"]
    assert (named["artifact"], named["store"], named["attempts"]) == (bad["b"], "app", 3)
    assert named["detail"] == "the database refused (SQLITE_CONSTRAINT_TRIGGER)"
    assert "1 items are past their date and in quarantine" in report["alarm"]
    with house.transaction(write=False) as session:
        said = explain(
            session, house.tenant_id, house.desk, artifact=bad["b"], entry=None, trigger="retention", at=house.now
        )
        shown = inventory(session, house.tenant_id, house.now, quarantined=gaps(session, house.tenant_id))
        dates = [(one.what, one.ref) for one in near(session, house.tenant_id, house.now)]
    assert said["action"] == "erase", "the decision is the same as ever"
    assert [(step["rule"], step["result"]) for step in said["because"]][-1] == ("quarantine", "not_sent")
    assert named["disposition"] in said["because"][-1]["detail"]
    [note] = [one for one in shown["classes"] if one["name"] == "note"]
    assert note["counts"]["quarantined"] == 1
    assert dates == [("quarantine", named["disposition"])]


def test_a_person_lets_it_go_and_the_next_pass_tries_it_again(house: Any, bad: dict[str, str]) -> None:
    [waiting] = in_quarantine(house)
    mended(house, "b")
    passes(house, 1)
    assert house.rows() == {"b"}, "mended is not decided"
    decided = decide(house, waiting["id"], decision="erase")
    assert (decided["state"], decided["decided_by"]) == ("erase", "bea")
    [report] = passes(house, 1)
    assert house.rows() == set()
    assert report["quarantine"] == []
    assert report["alarm"] is None


def test_an_item_that_was_let_go_and_fails_again_has_three_passes_again(house: Any, bad: dict[str, str]) -> None:
    [waiting] = in_quarantine(house)
    decide(house, waiting["id"], decision="erase")
    reports = passes(house, 3)
    assert [one["counts"]["quarantined"] for one in reports] == [0, 0, 1]
    [again] = in_quarantine(house)
    assert again["id"] != waiting["id"]


def test_a_kept_item_leaves_quarantine_until_its_new_date(house: Any, bad: dict[str, str]) -> None:
    [waiting] = in_quarantine(house)
    decide(house, waiting["id"], decision="extend", until=(house.now + timedelta(days=5)).isoformat())
    mended(house, "b")
    passes(house, 1)
    assert house.rows() == {"b"}
    house.now += timedelta(days=5)
    passes(house, 1)
    assert house.rows() == set()


@pytest.mark.parametrize("change", ["store", "class"])
def test_what_changed_is_tried_again_without_anybody(house: Any, bad: dict[str, str], change: str) -> None:
    mended(house, "b")
    if change == "store":
        with house.transaction() as session:
            config = {"url": f"sqlite:///{house.file}", "owner_field": "owner"}
            spec = {"kind": "sql", "config": config, "recipient": "Host Ltd"}
            put_store(session, house.acting(), "app", spec, house.now, check_target=lambda *_: None)
    else:
        house.plain("note", retention={"keep": "P80D", "from": "created", "then": "erase"})
    passes(house, 1)
    assert house.rows() == set()
    assert in_quarantine(house) == []


def test_what_was_made_from_it_ends_without_it(house: Any, bad: dict[str, str]) -> None:
    house.plain("long", retention={"keep": "P7Y", "from": "created", "then": "erase"})
    house.note("made", "long", sources=[bad["b"]])
    passes(house, 1)
    assert house.rows() == {"b"}


def test_a_hold_on_it_is_a_hold(house: Any, bad: dict[str, str]) -> None:
    spec = {"name": "n", "matter": "m", "reason": "r", "selector": {"artifacts": [bad["b"]]}}
    house.holds.place(house.acting(), spec, house.now)
    [report] = passes(house, 1)
    assert report["kept"] == {"hold": 1}
    assert report["counts"]["aside"] == 0


def test_a_store_that_gives_nothing_up_is_at_fault_itself_and_others_have_their_turn(house: Any) -> None:
    """All of its items were past their date first, and took every place of every pass."""
    other = house.file.with_name("other.db")
    other.write_bytes(house.file.read_bytes())
    with house.transaction() as session:
        config = {"url": f"sqlite:///{other}", "owner_field": "owner"}
        put_store(
            session, house.acting(), "other", {"kind": "sql", "config": config}, house.now, check_target=lambda *_: None
        )
    house.plain("note")
    for number in range(30):
        house.note(f"x{number}", "note", store="other")
    with sqlite3.connect(other) as db:
        db.execute("INSERT INTO note SELECT 'x' || value, 'email:ada@example.org', 'said' FROM json_each(?)",
                   [str([*range(30)])])  # fmt: skip
        db.execute("CREATE TRIGGER none BEFORE DELETE ON note BEGIN SELECT RAISE(ABORT, 'no'); END")
    house.now += timedelta(days=1)
    house.note("late", "note")
    once(house, cap=25, probe=2)
    house.now += timedelta(days=100)
    first, second, third, fourth = passes(house, 4)
    assert (first["counts"]["ends"], first["counts"]["removed"]) == (25, 0)
    assert "other: nothing could be removed there" in first["alarm"]
    assert "late" not in house.rows()
    assert (second["counts"]["ends"], second["counts"]["removed"]) == (3, 1), "two are asked for, and the other's turn"
    assert second["kept"] == {"store_at_fault": 28}
    assert in_quarantine(house) == [], "no item of it is to blame"
    assert (third["kept"], fourth["kept"]) == ({"store_at_fault": 28}, {"store_at_fault": 28})
    with sqlite3.connect(other) as db:
        db.execute("DROP TRIGGER none")
    passes(house, 3)
    with sqlite3.connect(other) as db:
        assert db.execute("SELECT count(*) FROM note").fetchone() == (0,)


class Locking:
    """A store that keeps everything locked until an instant, as a bucket with Object Lock does."""

    def __init__(self, inner: Any, until: datetime) -> None:
        self._inner, self._until = inner, until

    def erase(self, items: Sequence[Any], *, now: datetime, **more: Any) -> Any:
        if now >= self._until:
            return self._inner.erase(items, now=now, **more)
        return [
            Receipt(copy_id=item.copy_id, outcome=Outcome.LOCKED, level=None, method="delete",
                    detail=f"locked until {self._until.isoformat()}", at=now)
            for item in items
        ]  # fmt: skip

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._inner.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_what_its_store_keeps_locked_goes_by_itself_when_the_lock_is_over(house: Any) -> None:
    house.plain("note")
    house.note("a", "note")
    house.now += timedelta(days=100)
    connect, until = house.parts.connect, house.now + 6 * HOUR
    house.parts = replace(house.parts, connect=lambda store, read_only: Locking(connect(store, read_only), until))
    house.sweeps = Sweeps(house.parts, brakes=Brakes(jump=timedelta(days=10_000)))
    reports = passes(house, 6)
    assert [one["counts"]["failed"] for one in reports] == [1] * 6
    assert "next run tries again" in reports[0]["alarm"] or "none was removed" in reports[0]["alarm"]
    assert in_quarantine(house) == [], "nobody has to decide what a date decides"
    passes(house, 1)
    assert house.rows() == set()


def test_a_record_key_that_cannot_go_without_what_must_stay_is_set_aside_and_named_with_the_reason(house: Any) -> None:
    """A held part that nobody can read cannot be given a key of its own, so that its data key stays in each pass."""
    house.plain("talk", state="record", retention={"keep": "P30D", "from": "created", "then": "erase"})
    kept = house.say("one", "what must stay", "talk")
    house.say("two", "what may go", "talk", owner=BOB)
    spec = {"name": "n", "matter": "m", "reason": "r", "selector": {"scope": {"conversation": "one"}}}
    house.holds.place(house.acting("ann"), spec, house.now)
    house.say("three", "under the same key", "talk")
    back = damaged(house, kept)
    whole = house.services.erasure
    house.parts = replace(house.parts, part_keys=whole.part_keys, keep_part_rows=whole.keep_part_rows)
    once(house)
    house.now += timedelta(days=70)
    reports = passes(house, 4)
    assert [one["counts"]["quarantined"] for one in reports[:3]] == [0, 0, 1]
    assert (reports[0]["counts"]["removed"], reports[3]["counts"]["aside"]) == (1, 1), "the other person's key went"
    [named] = reports[3]["quarantine"]
    assert (named["store"], named["attempts"]) == ("vault", 3)
    assert named["detail"].startswith("a part that must stay cannot be kept")
    [waits] = in_quarantine(house)
    assert waits["key"] == named["key"]
    back()
    decide(house, waits["id"], decision="erase")
    [report] = passes(house, 1)
    assert report["counts"]["removed"] == 1
    assert in_quarantine(house) == []


def damaged(house: Any, entry_id: str) -> Callable[[], None]:
    """Take away the object in which an entry's content lies; returns what puts it back."""
    with house.transaction(write=False) as session:
        row = entry_row(session, house.tenant_id, entry_id)
        assert row is not None
        [found] = read_entries(session, house.services.vault, house.services.log, house.tenant_id, [row])
    names = {part.object for part in found.header.parts}
    away = {name: house.services.settings.data / "objects" / house.log_id / name for name in names}
    for name, file in away.items():
        file.rename(house.file.with_name(name.replace("/", "-")))

    def back() -> None:
        for name, file in away.items():
            house.file.with_name(name.replace("/", "-")).rename(file)

    return back
