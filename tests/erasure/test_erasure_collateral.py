"""What an erasure takes from others: shown before it is approved, never done silently, stated in every paper."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from typing import Any

import pytest
import rfc8785

from erasure.errors import SeparateDuties, StalePlan
from erasure.handout import open_export
from erasure.letters import Asked, write
from erasure.rendering.letter import plain
from erasure.request_desk import RequestDesk
from retention.holds import Holds
from tests.erasure.conftest import ADA, BOB, World


def holds_of(world: World) -> Holds:
    return Holds(
        vault=world.services.vault,
        record=world.services.record,
        transactions=world.parts.transactions,
        desk=RequestDesk(),
    )


def hold(world: World, *artifacts: str) -> str:
    spec = {"name": "h", "matter": "m", "reason": "r", "selector": {"artifacts": list(artifacts)}}
    return str(holds_of(world).place(world.acting("carol"), spec, world.now)["id"])


def release(world: World, hold_id: str, *, preview: bool = False) -> dict[str, Any]:
    return holds_of(world).release(world.acting("dora"), hold_id, preview=preview, now=world.now)


def certificate(world: World, request: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(world.reader.certificate(world.acting(), request))["certificate"]
    return found


def planned(world: World, request: str) -> dict[str, dict[str, Any]]:
    copies = world.reader.plan_view(world.acting(), request)["copies"]
    return {str(copy.get("artifact") or copy.get("key") or copy.get("entry")): copy for copy in copies}


def test_a_copy_that_a_hold_keeps_shows_in_the_plan_whom_its_end_would_take_it_from(world: World) -> None:
    joint = world.file("both.txt", "ada and bob", subjects=(ADA, BOB))
    mine = world.file("ada.txt", "ada alone")
    hold(world, joint, mine)
    request = world.ask()
    world.plan(request)
    copies = planned(world, request)
    assert (copies[joint]["action"], copies[joint]["collateral"]) == ("keep", {"subjects": 1})
    assert copies[mine]["collateral"] is None
    assert world.reader.plan_view(world.acting(), request)["collateral"] == {}, "nothing of others goes by this plan"


def test_whoever_approves_can_compute_the_hash_of_what_the_plan_shows(world: World) -> None:
    # The number that stands for who the others are was hashed, and is shown to nobody.
    world.file("both.txt", "ada and bob", subjects=(ADA, BOB))
    request = world.ask()
    world.plan(request)
    shown = world.reader.plan_view(world.acting(), request)
    assert [copy["collateral"] for copy in shown["copies"] if copy["collateral"]] == [{"subjects": 1}]
    members = ("copy", "artifact", "key", "entry", "data_class", "store", "action", "rule", "because", "until", "path",
               "collateral", "required")  # fmt: skip
    hashed = {
        "schema": "muniment-plan/v1",
        "owner": request,
        "copies": [{name: copy[name] for name in members if name in copy} for copy in shown["copies"]],
        "not_covered": shown["not_covered"],
        "collateral": shown["collateral"],
    }
    assert hashlib.sha256(rfc8785.dumps(hashed)).hexdigest() == shown["hash"]


def test_a_joint_copy_whose_hold_ends_waits_for_a_second_person_and_the_certificate_says_so(world: World) -> None:
    world.note("n1", "ada alone")
    joint = world.file("both.txt", "ada and bob", subjects=(ADA, BOB))
    mine = world.file("ada.txt", "ada alone too")
    stop = hold(world, joint, mine)
    request = world.erase()
    assert world.state(request) == "completed_with_retained"
    kept = {copy["id"]: copy for copy in certificate(world, request)["copies"] if copy["state"] == "retained"}
    assert kept[joint]["collateral"] == {"subjects": 1}

    shown = release(world, stop, preview=True)
    assert shown["released"] is False
    assert "preview=false" in shown["next"]
    assert [line["request"] for line in shown["requests"]] == [request]
    line = shown["requests"][0]
    assert (line["erased_at_once"], line["awaiting_human"], line["retained"]) == (1, 1, 0)
    assert {one["copy"]: (one["then"], one["collateral"]) for one in line["details"]} == {
        joint: ("awaiting_human", {"subjects": 1}),
        mine: ("erased", None),
    }
    release(world, stop)
    world.work()
    assert (world.files / "both.txt").exists(), "bob's copy went without anybody having approved it"
    assert not (world.files / "ada.txt").exists()
    view = world.reader.get(world.acting(), request)
    assert view["waiting_for"]["awaiting_human"] == 1
    (copy,) = world.reader.copies(world.acting(), request, state="awaiting_human")
    assert copy["artifact"] == joint
    assert "other persons" in copy["detail"]

    settle: dict[str, Any] = {"outcome": "erase", "comment": "bob was asked", "now": world.now}
    with pytest.raises(SeparateDuties):
        world.desk.settle_copy(world.acting("ann"), request, copy["copy"], **settle)
    world.desk.settle_copy(world.acting("carol"), request, copy["copy"], **settle)
    world.work()
    assert world.state(request) == "completed"
    assert not (world.files / "both.txt").exists()
    gone = {line["id"]: line for line in certificate(world, request)["copies"]}
    assert gone[joint]["collateral"] == {"subjects": 1}


def test_a_joint_copy_that_a_human_keeps_after_its_hold_stays(world: World) -> None:
    joint = world.file("both.txt", "ada and bob", subjects=(ADA, BOB))
    stop = hold(world, joint)
    request = world.erase()
    release(world, stop)
    world.work()
    (copy,) = world.reader.copies(world.acting(), request, state="awaiting_human")
    world.desk.settle_copy(
        world.acting("ann"), request, copy["copy"], outcome="retained", comment="bob needs it", now=world.now
    )
    world.work()
    assert world.state(request) == "completed_with_retained"
    assert (world.files / "both.txt").exists()


def test_a_second_persons_word_holds_for_what_they_saw_and_is_asked_again_for_more(world: World) -> None:
    joint = world.file("both.txt", "ada and bob", subjects=(ADA, BOB))
    stop = hold(world, joint)
    request = world.erase()
    release(world, stop)
    world.work()
    (copy,) = world.reader.copies(world.acting(), request, state="awaiting_human")
    world.desk.settle_copy(world.acting("carol"), request, copy["copy"], outcome="erase", comment="seen", now=world.now)
    place = {"data_class": "summary", "store": "cvs", "locator": {"path": "both.txt"}}
    world.register({**place, "subjects": [ADA, BOB, "user:eve"]})
    world.work()
    (copy,) = world.reader.copies(world.acting(), request, state="awaiting_human")
    assert copy["collateral"] == {"subjects": 2}
    assert (world.files / "both.txt").exists()


def test_a_second_persons_word_is_asked_again_for_as_many_others_who_are_not_the_same(world: World) -> None:
    joint = world.file("both.txt", "ada and bob", subjects=(ADA, BOB))
    world.note("n1", "eve's own", owner="user:eve")
    stop = hold(world, joint)
    request = world.erase()
    release(world, stop)
    world.work()
    (copy,) = world.reader.copies(world.acting(), request, state="awaiting_human")
    world.desk.settle_copy(world.acting("carol"), request, copy["copy"], outcome="erase", comment="seen", now=world.now)
    world.now_about(joint, ADA, "user:eve")
    world.work()
    (copy,) = world.reader.copies(world.acting(), request, state="awaiting_human")
    assert copy["collateral"] == {"subjects": 1}
    assert (world.files / "both.txt").exists(), "eve's copy went by a word about bob's"


def test_as_many_others_who_are_not_those_of_the_plan_send_it_back_at_its_approval(world: World) -> None:
    joint = world.file("both.txt", "ada and bob", subjects=(ADA, BOB))
    world.note("n1", "eve's own", owner="user:eve")
    request = world.ask()
    world.plan(request)
    world.now_about(joint, ADA, "user:eve")
    with pytest.raises(StalePlan, match="others too"):
        world.approve(request)
    assert world.state(request) == "planned"


def test_what_becomes_joint_between_plan_and_approval_goes_back_to_the_desk(world: World) -> None:
    world.file("ada.txt", "ada alone")
    request = world.ask()
    world.plan(request)
    world.file("both.txt", "ada and bob", subjects=(ADA, BOB))
    with pytest.raises(StalePlan, match="others too"):
        world.approve(request)
    assert world.state(request) == "planned"
    event = world.reader.get(world.acting(), request)["history"][-1]
    assert event["event"] == "plan_outdated"
    assert any("others too" in line for line in event["detail"]["new"])
    with pytest.raises(StalePlan, match="others too"):
        world.planner.approve(world.acting("carol"), request, "0" * 64, world.now)
    with pytest.raises(StalePlan, match="others too"):
        world.reader.plan_view(world.acting(), request)
    world.plan(request)
    assert world.approve(request)["state"] == "approved"


def test_a_copy_that_becomes_joint_after_the_approval_waits_for_a_second_person(world: World) -> None:
    world.file("ada.txt", "ada alone")
    request = world.ask()
    world.plan(request)
    world.approve(request)
    locator = {"data_class": "summary", "store": "cvs", "locator": {"path": "ada.txt"}}
    world.register({**locator, "subjects": [ADA, BOB]})
    world.work()
    assert (world.files / "ada.txt").exists()
    assert world.reader.get(world.acting(), request)["waiting_for"]["awaiting_human"] == 1


def test_a_late_joint_copy_joins_its_request_and_waits_for_a_second_person(world: World) -> None:
    source = world.file("ada.txt", "ada alone")
    request = world.erase()
    assert world.state(request) == "completed"
    (world.files / "late.txt").write_text("ada and bob, late")
    item = {"data_class": "summary", "store": "cvs", "locator": {"path": "late.txt"}, "sources": [source]}
    world.register({**item, "subjects": [BOB]})
    world.work()
    (copy,) = world.reader.copies(world.acting(), request, state="awaiting_human")
    assert copy["collateral"] == {"subjects": 1}
    assert (world.files / "late.txt").exists()


def test_the_plan_counts_how_many_others_there_are_not_how_often_they_occur(world: World) -> None:
    world.file("one.txt", "ada and bob", subjects=(ADA, BOB))
    world.file("two.txt", "ada, bob and eve", subjects=(ADA, BOB, "user:eve"))
    world.say("said to both", subjects=(ADA, BOB))
    request = world.ask()
    world.plan(request)
    found = world.reader.plan_view(world.acting(), request)["collateral"]
    assert found["subjects"] == 2
    assert found["copies"] >= 3
    assert found["parts"] == 1


def test_approving_an_erasure_names_the_same_persons_open_request_for_access(world: World) -> None:
    world.note("n1", "text")
    access = world.ask(right="access")
    world.plan(access)
    erasure = world.ask()
    assert [line["request"] for line in world.plan(erasure)["warnings"]] == [access]
    assert [line["request"] for line in world.reader.plan_view(world.acting(), erasure)["warnings"]] == [access]
    approved = world.approve(erasure)
    assert approved["warnings"][0]["code"] == "access_pending"
    assert access in approved["warnings"][0]["detail"]
    event = next(line for line in approved["history"] if line["event"] == "approved")
    assert event["detail"]["warned_of"] == [access]
    (other_way,) = world.reader.get(world.acting(), access)["warnings"]
    assert (other_way["code"], other_way["request"]) == ("erasure_pending", erasure)


def test_an_answered_access_request_and_one_of_somebody_else_are_not_warned_of(world: World) -> None:
    world.note("n1", "text")
    world.note("n2", "text", owner=BOB)
    other = world.ask(BOB, right="access")
    world.plan(other)
    mine = world.ask(right="access")
    world.plan(mine)
    world.desk.notice(world.acting("ann"), mine, kind="answered", channel="mail", sent_at=world.now, now=world.now)
    assert "warnings" not in world.plan(world.ask())


def package(world: World, request: str) -> dict[str, Any]:
    body = b"".join(open_export(world.parts, world.acting(), request, world.now).pieces)
    found: dict[str, Any] = json.loads(zipfile.ZipFile(io.BytesIO(body)).read("manifest.json"))
    return found


def test_a_package_that_an_erasure_emptied_lists_what_it_lacks(world: World) -> None:
    note = world.note("n1", "text")
    kept = world.file("kept.txt", "for the court")
    world.say("words")
    access = world.ask(right="access")
    world.plan(access)
    hold(world, kept)
    erasure = world.ask()
    world.plan(erasure)
    world.approve(erasure)
    world.work(4)
    world.approve(access)
    world.work(4)
    assert world.state(access) == "completed"
    told = package(world, access)
    lines = {copy["id"]: copy for copy in told["copies"]}
    assert lines[note]["state"] == "already_absent"
    assert lines[kept]["state"] == "withheld"
    assert told["is_empty"] is False, "something about the person is still held"
    assert {line["data_class"]: line["absent"] for line in told["counts"]} == {"note": 1, "summary": 0}


def test_the_letter_with_a_copy_of_the_data_says_what_is_not_in_it_and_why(world: World) -> None:
    world.note("n1", "text")
    world.file("both.txt", "ada and bob", subjects=(ADA, BOB))
    world.say("said to both", subjects=(ADA, BOB))
    access = world.ask(right="access")
    world.plan(access)
    world.approve(access)
    world.work(2)
    waiting = world.reader.copies(world.acting(), access, state="awaiting_human")
    assert len(waiting) == 2
    for copy in waiting:
        world.desk.settle_copy(
            world.acting("carol"), access, copy["copy"], outcome="withhold", comment="bob's", now=world.now
        )
    world.work(2)
    for language, words in (("en", ("2 copies", "other people", "15(4)")), ("de", ("2 Kopien", "anderen Personen"))):
        letter = plain(write(world.parts, world.acting(), access, Asked(language=language), world.now))
        for word in words:
            assert word in letter
