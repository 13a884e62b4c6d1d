"""A request limited to a conversation or to classes: only that goes, and the person's next words find a key."""

from __future__ import annotations

import json
import sqlite3
from datetime import timedelta
from typing import Any

import pytest

from api.wiring import all_tables
from erasure.errors import InvalidRequest, ReportNotReady
from erasure.letters import Asked, write
from erasure.rendering.letter import plain
from ledger.entry import uuid7
from registry.journal import Journal
from registry.record import Record
from tests.erasure.conftest import ADA, BOB, World


def erased(world: World, **scope: Any) -> str:
    request = world.ask(ADA, scope=scope)
    world.plan(request)
    world.approve(request)
    world.work()
    return request


def said(world: World, text: str, *, stream: str) -> str:
    return world.say_as(text, stream=stream)


def scoped(world: World, name: str, text: str, conversation: str) -> str:
    (world.files / name).write_text(text)
    item = {"data_class": "summary", "store": "cvs", "locator": {"path": name}, "subjects": [ADA]}
    return world.register({**item, "scope": {"conversation": conversation}})[0]


def append(world: World, text: str, *, at: Any, stream: str = "conv_1", data_class: str = "transcript") -> str:
    entry = {
        "id": uuid7(world.now), "stream": stream, "kind": "turn.user", "at": at.isoformat(), "data_class": data_class,
        "subjects": [ADA], "body": {"content": text},
    }  # fmt: skip
    result = world.services.record.append(world.acting("writer"), [json.dumps(entry).encode()], world.now)
    return str(result.results[0]["status"])


def test_an_erasure_of_one_class_leaves_the_others_and_the_identity(world: World) -> None:
    gone = world.note("n1", "text of n1")
    kept = world.file("cv.txt", "the cv")
    world.say("the words stay")
    request = erased(world, data_classes=["note"])
    assert world.state(request) == "completed"
    assert world.copy_states(request) == {gone: "erased_physical"}
    assert world.bytes_left("text of n1") == []
    assert (world.files / "cv.txt").exists()
    assert kept not in world.copy_states(request)
    assert world.say("and more words") == "stored"


@pytest.mark.parametrize("scope", [{"data_classes": ["summary"]}, {"conversation": "never held"}])
def test_a_limited_request_of_which_nothing_is_held_ends_with_a_statement(world: World, scope: dict[str, Any]) -> None:
    # It was planned without a copy, approved, and stood in `verifying` for ever: no move led out of there.
    kept = world.note("n1", "text of n1")
    world.say("the words stay")
    request = world.ask(ADA, scope=scope)
    view = world.plan(request)
    assert view["state"] == "no_match"
    assert view["statement"]["text"].startswith("nothing of what the request is limited to is held")
    world.work(1)
    with pytest.raises(ReportNotReady):
        world.reader.certificate(world.acting(), request)
    for language, word in (("en", "hold nothing of it"), ("de", "haben nichts davon")):
        letter = plain(write(world.parts, world.acting(), request, Asked(language=language), world.now))
        assert word in letter
        assert "know nobody" not in letter
    whole = world.erase()
    assert world.copy_states(whole)[kept] == "erased_physical", "what was held elsewhere was known all the time"


def test_after_a_limited_erasure_new_words_are_taken_in_and_late_ones_are_not(world: World) -> None:
    assert world.say("old words") == "stored"
    before = world.now
    request = erased(world, data_classes=["transcript"])
    assert world.state(request) == "completed"
    assert list(world.copy_states(request).values()) == ["key_destroyed"]
    assert append(world, "sent late", at=before) == "suppressed"
    assert append(world, "new words", at=world.now) == "stored"
    assert append(world, "a late decision", at=before, data_class="decision") == "stored"
    again = erased(world, data_classes=["transcript"])
    assert world.state(again) == "completed"
    assert append(world, "newer words", at=world.now) == "stored"
    whole = world.erase()
    assert world.state(whole) == "completed"
    assert append(world, "after the end", at=world.now) == "suppressed"


def test_words_whose_key_closes_on_their_way_are_sealed_under_the_next_and_have_a_receipt_of_their_own(
    world: World,
) -> None:
    world.say("old words")

    class Meanwhile(Journal):
        """Erases the person's earlier words once, between the sealing of new ones and their place in the log."""

        first = True

        def before(self, *given: Any) -> None:
            super().before(*given)
            if self.first:
                self.first = False
                assert world.state(erased(world, data_classes=["transcript"])) == "completed"

    parts = world.services
    record = Record(
        vault=parts.vault,
        log=parts.log,
        transactions=parts.database.transaction,
        journal=Meanwhile(vault=parts.vault, transactions=parts.database.transaction, hot=parts.hot, tables=all_tables),
    )
    at = (world.now + timedelta(minutes=4)).isoformat()  # after the erasure: welcome
    sent = [
        {"id": uuid7(world.now), "stream": "conv_1", "kind": "turn.user", "at": at,
         "data_class": "transcript", "subjects": [who], "body": {"content": "new words"}}
        for who in (ADA, BOB)
    ]  # fmt: skip
    answer = record.append(world.acting("writer"), [json.dumps(one).encode() for one in sent], world.now)
    assert [result["status"] for result in answer.results] == ["stored", "stored"]
    assert answer.receipt is not None
    [again] = answer.receipt["later"]
    ada, bob = (result["index"] for result in answer.results)
    # The note names the log, the first index and how many entries the flush took.
    assert [note.splitlines()[2:4] for note in (answer.receipt["note"], again)] == [[str(bob), "1"], [str(ada), "1"]]


def test_an_erasure_of_a_conversation_takes_its_artifacts_and_its_record_alone(world: World) -> None:
    world.say("first conversation", stream="conv_1")
    inside = scoped(world, "in.txt", "made in the first", "conv_1")
    derived = world.file("sum.txt", "summary of it", sources=[inside], subjects=[])
    outside = scoped(world, "out.txt", "made in the second", "conv_2")
    request = erased(world, conversation="conv_1")
    assert world.state(request) == "completed"
    states = world.copy_states(request)
    assert states[inside] == "erased_physical"
    assert states[derived] == "erased_physical"
    assert outside not in states
    assert (world.files / "out.txt").exists()
    assert "key_destroyed" in states.values()
    assert append(world, "late", at=world.now - timedelta(days=1), stream="conv_1") == "suppressed"
    assert append(world, "elsewhere", at=world.now - timedelta(days=1), stream="conv_2") == "stored"


def test_an_erasure_of_one_conversation_takes_it_from_under_a_key_that_opens_others(world: World) -> None:
    gone, kept = said(world, "first conversation", stream="conv_1"), said(world, "second", stream="conv_2")
    inside = scoped(world, "in.txt", "made in the first", "conv_1")
    request = erased(world, conversation="conv_1")
    assert world.state(request) == "completed"
    states = world.copy_states(request)
    assert states[inside] == "erased_physical"
    [key] = [copy for copy in world.reader.copies(world.acting(), request) if "key" in copy]
    assert key["state"] == "key_destroyed"
    assert key["detail"] is None or "1 entries outside" in key["detail"]
    assert world.read(gone).erased
    assert [part.destroyed.request for part in world.read(gone).parts if part.destroyed] == [request]
    assert world.text_of(kept) == "second"
    assert set(states) == {inside, key["key"]}  # nobody asked for the others, so they are no copies of this request


def test_what_merely_comes_due_is_not_taken_along_by_a_limited_request(world: World) -> None:
    world.note("n1", "due")
    world.now += timedelta(days=100)
    fresh = world.file("new.txt", "new")
    request = world.ask(ADA, scope={"data_classes": ["summary"]})
    world.plan(request)
    assert list(world.copy_states(request)) == [fresh]


def test_a_cancelled_limited_erasure_lets_late_words_in_again(world: World) -> None:
    world.say("old words")
    before = world.now
    request = world.ask(ADA, scope={"data_classes": ["transcript"]})
    world.plan(request)
    world.approve(request)
    assert append(world, "late", at=before) == "suppressed"
    world.desk.cancel(world.acting(), request, now=world.now)
    assert append(world, "late again", at=before) == "stored"


@pytest.mark.scenario("D5")
def test_a_limited_request_is_a_duplicate_of_a_whole_one_and_not_the_other_way_round(world: World) -> None:
    world.note("n1", "text")
    limited = world.ask(ADA, scope={"data_classes": ["note"]})
    whole = world.ask(ADA)
    assert (world.state(limited), world.state(whole)) == ("verified", "verified")
    world.plan(whole)
    world.plan(limited)
    assert (world.state(limited), world.state(whole)) == ("duplicate", "planned")
    wider = world.ask(ADA, scope={"data_classes": ["note", "summary"]})
    assert world.state(wider) == "duplicate"


@pytest.mark.parametrize(
    ("scope", "pointer"),
    [
        ({}, "/scope"),
        ({"conversation": "a", "data_classes": ["note"]}, "/scope"),
        ({"conversation": ""}, "/scope/conversation"),
        ({"data_classes": []}, "/scope/data_classes"),
        ({"data_classes": ["nothing_like_it"]}, "/scope/data_classes/0"),
        ({"everything": True}, "/scope"),
    ],
)
def test_a_scope_that_says_nothing_or_too_much_is_refused_with_its_field(
    world: World, scope: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        world.ask(ADA, scope=scope)
    assert refused.value.pointer == pointer


def test_the_name_of_a_conversation_is_not_kept_in_clear(world: World) -> None:
    world.say("words", stream="conv_with_a_name")
    world.ask(ADA, scope={"conversation": "conv_with_a_name"})
    assert world.bytes_left("conv_with_a_name") == []


def test_a_limited_request_of_one_person_leaves_a_shared_item_of_another_scope(world: World) -> None:
    shared = world.file("both.txt", "ada and bob", subjects=[ADA, BOB])
    gone = world.note("n1", "ada's note")
    request = erased(world, data_classes=["note"])
    assert world.copy_states(request) == {gone: "erased_physical"}
    assert shared not in world.copy_states(request)


def test_a_late_artifact_joins_the_limited_erasure_it_belongs_to_and_a_new_one_is_welcome(world: World) -> None:
    world.note("n1", "the first note")
    before = world.now
    request = erased(world, data_classes=["note"])
    with sqlite3.connect(world.database_file) as db:
        db.executemany("INSERT INTO note VALUES (?, ?, ?)", [("n2", ADA, "a late note"), ("n3", ADA, "a new note")])
    item = {"data_class": "note", "store": "db", "subjects": [ADA]}
    late, new = world.register(
        {**item, "locator": {"table": "note", "key": {"id": "n2"}}, "observed_at": before.isoformat()},
        {**item, "locator": {"table": "note", "key": {"id": "n3"}}, "observed_at": world.now.isoformat()},
    )
    world.work()
    assert world.state(request) == "completed"
    assert world.copy_states(request)[late] == "erased_physical"
    assert new not in world.copy_states(request)
    assert world.bytes_left("a late note") == []
    assert world.bytes_left("a new note")


def test_what_is_made_of_an_erased_conversation_later_joins_its_erasure(world: World) -> None:
    entry = {
        "id": uuid7(world.now), "stream": "conv_1", "kind": "turn.user", "at": world.now.isoformat(),
        "data_class": "transcript", "subjects": [ADA], "body": {"content": "the words"},
    }  # fmt: skip
    world.services.record.append(world.acting("writer"), [json.dumps(entry).encode()], world.now)
    request = erased(world, conversation="conv_1")
    assert world.state(request) == "completed"
    summary = world.file("late.txt", "a summary of the words", subjects=[], sources=[f"entry:{entry['id']}"])
    world.work()
    assert world.copy_states(request)[summary] == "erased_physical"
    assert not (world.files / "late.txt").exists()
