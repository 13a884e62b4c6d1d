"""A hold and a decision to delete that meet: one of them always sees the other."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from retention import holds

ADA = "email:ada@example.org"


def test_a_hold_that_is_placed_while_a_delete_is_decided_names_it(house: Any) -> None:
    # Without waiting for each other, the decision does not see the hold and the hold does not see what it decided.
    house.plain("note")
    name = house.note("first", "note")
    house.now += timedelta(days=100)
    spec = {"name": "n", "matter": "m", "reason": "r", "selector": {"subjects": [ADA]}}
    placed: list[dict[str, Any]] = []
    hold = threading.Thread(target=lambda: placed.append(house.holds.place(house.acting(), spec, house.now)))

    def marks(_db: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: Any) -> None:
        """Between reading the holds and saying that the copy is sent: a hold comes, and has time to be placed."""
        if hold.ident is None and statement.startswith("UPDATE") and "running" in repr(parameters):
            hold.start()
            hold.join(0.5)

    engine = house.services.database.engine
    event.listen(engine, "before_cursor_execute", marks)
    try:
        run = house.sweep()
    finally:
        event.remove(engine, "before_cursor_execute", marks)
    hold.join(10)
    assert run["counts"]["removed"] == 1
    # Where the hold had to wait for the whole pass, the item was gone, and is not among what it keeps.
    [answer] = placed
    assert (answer["items"], tuple(answer["too_late"])) in {(1, (name,)), (0, ())}


def test_a_hold_names_what_nothing_is_left_of_and_keeps_the_rest(house: Any) -> None:
    # Counted as kept, an entry whose key is gone would be taken for evidence that somebody still has.
    house.plain("note", retention={"keep": "P30D", "from": "created", "then": "erase"})
    house.plain("talk", state="record", retention={"keep": "P30D", "from": "created", "then": "erase"})
    gone, said = house.note("gone", "note"), house.say("chat", "I live in Lima", "talk")
    house.now += timedelta(days=70)
    house.sweep()
    assert house.rows() == set()
    left, later = house.note("left", "note"), house.say("chat", "I live in Rome", "talk")
    spec = {"name": "n", "matter": "m", "reason": "r"}
    answer = house.holds.place(
        house.acting(), {**spec, "selector": {"artifacts": [gone, left], "entries": [said, later]}}, house.now
    )
    assert answer["too_late"] == sorted([gone, said])
    assert (answer["items"], answer["entries"]) == (1, 1)
    by_person = house.holds.place(house.acting(), {**spec, "selector": {"subjects": [ADA]}}, house.now)
    assert by_person["too_late"] == [], "only what was named one by one was asked about"


def test_a_hold_on_a_conversation_counts_the_entries_of_which_something_is_left(
    house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds, "_AT_ONCE", 1)  # a long conversation, in pages
    # It said that it kept what had been erased before, to the desk and in every list of holds.
    house.plain("talk", state="record", retention={"keep": "P30D", "from": "created", "then": "erase"})
    house.say("chat", "I live in Lima", "talk")
    house.say("other", "me too", "talk")
    house.now += timedelta(days=70)
    house.sweep()
    later = house.say("chat", "I live in Rome", "talk")
    spec = {"name": "n", "matter": "m", "reason": "r"}
    for conversation, entries, kept in (("chat", [], 1), ("chat", [later], 1), ("other", [], 0), ("other", [later], 1)):
        selector = {"scope": {"conversation": conversation}, **({"entries": entries} if entries else {})}
        placed = house.holds.place(house.acting(), {**spec, "selector": selector}, house.now)
        assert placed["entries"] == kept, (conversation, entries)
        assert placed.get("warning") == (None if kept else holds.WENT_BEFORE)


@pytest.mark.parametrize(("looked_at", "found"), [(1, (0, True)), (2, (1, True)), (3, (2, None)), (4, (2, None))])
def test_a_list_of_holds_looks_at_some_entries_of_a_long_conversation_and_says_so(
    house: Any, monkeypatch: pytest.MonkeyPatch, looked_at: int, found: tuple[int, bool | None]
) -> None:
    # It read every entry of every conversation that was held, each time that somebody looked at the holds.
    house.plain("talk", state="record", retention={"keep": "P30D", "from": "created", "then": "erase"})
    house.say("chat", "I live in Lima", "talk")
    house.now += timedelta(days=70)
    house.sweep()
    for text in ("I live in Rome", "and now in Oslo"):
        house.say("chat", text, "talk")
    spec = {"name": "n", "matter": "m", "reason": "r", "selector": {"scope": {"conversation": "chat"}}}
    assert house.holds.place(house.acting(), spec, house.now)["entries"] == 2
    monkeypatch.setattr(holds, "_LISTED", looked_at)
    [listed] = house.holds.holds(house.acting())
    assert (listed["entries"], listed.get("entries_at_least")) == found


def test_a_hold_that_keeps_nothing_is_placed_for_what_comes_and_says_why(house: Any) -> None:
    # A name with a slip in it, or a conversation that was erased before: both were answered as if something were kept.
    house.plain("talk", state="record")
    spec = {"name": "n", "matter": "m", "reason": "r", "selector": {"scope": {"conversation": "chta"}}}
    placed = house.holds.place(house.acting(), spec, house.now)
    assert (placed["items"], placed["keys"], placed["entries"]) == (0, 0, 0)
    assert placed["warning"] == holds.NOT_KNOWN
    house.say("chta", "I live in Lima", "talk")
    again = house.holds.place(house.acting(), spec, house.now)
    assert (again["entries"], "warning" in again) == (1, False)
