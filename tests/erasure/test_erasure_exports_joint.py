"""A package with what is about others too: they find it, it never goes out to more people than a human saw."""

from __future__ import annotations

import zipfile
from datetime import timedelta
from io import BytesIO
from typing import Any

import pytest

from erasure import answers, exporting
from erasure.earlier_packages import name_everybody
from erasure.exporting import _Making  # the pass of a worker that is overtaken in its middle
from erasure.handout import open_export
from erasure.package_people import NAMELESS, TOO_MANY
from erasure.packages import STORE
from erasure.sweep_copies import Sweeps
from erasure.worker import advance
from registry import subjects
from registry.acting import Acting
from registry.identifiers import parse_subject
from retention.sweep import Brakes
from tests.erasure.conftest import ADA, BOB, World

CARL = "user:carl_9"
SECRET = "the vault opens with 4711"


def waiting(world: World, request: str) -> list[dict[str, Any]]:
    return world.reader.copies(world.acting(), request, state="awaiting_human")


def settle(world: World, request: str, copy: dict[str, Any], outcome: str = "release") -> None:
    world.desk.settle_copy(
        world.acting("carol"), request, copy["copy"], outcome=outcome, comment="weighed", now=world.now
    )


def asked(world: World) -> str:
    """An approved request for access that waits for a human."""
    request = world.ask(right="access")
    world.plan(request)
    world.approve(request)
    world.work(1)
    assert waiting(world, request)
    return request


def text_of(world: World, request: str) -> str:
    """Every word of the package as it is handed out now."""
    handout = open_export(world.parts, world.acting(), request, world.now)
    archive = zipfile.ZipFile(BytesIO(b"".join(handout.pieces)))
    return "".join(archive.read(name).decode() for name in archive.namelist())


def given(world: World) -> str:
    """Ada's package with what Bob said, released by a human."""
    request = asked(world)
    for copy in waiting(world, request):
        settle(world, request, copy)
    world.work(2)
    assert world.state(request) == "completed"
    assert SECRET in text_of(world, request)
    return request


@pytest.mark.parametrize("kind", ["artifact", "entry"])
def test_whoever_is_in_somebody_elses_package_takes_it_along_with_their_erasure(world: World, kind: str) -> None:
    # Bob had a certificate that all was gone, and his words lay in our own folder for another month.
    world.note("n1", "ada's own")
    if kind == "artifact":
        world.file("both.txt", SECRET, subjects=[ADA, BOB])
    else:
        world.say(SECRET, subjects=[ADA, BOB])
    request = given(world)
    erasure = world.ask(BOB)
    world.plan(erasure)
    plan = world.reader.plan_view(world.acting(), erasure)
    package = next(copy for copy in plan["copies"] if copy["store"] == STORE)
    assert package["collateral"] == {"subjects": 1}, "whoever approves it sees that Ada loses it too"
    world.approve(erasure)
    world.work()
    assert world.state(erasure) == "completed"
    assert SECRET not in text_of(world, request)
    assert not list(world.parts.exports.rglob("*.zip"))  # type: ignore[union-attr]  # this world has a folder


@pytest.mark.parametrize("erased_before", [False, True])
def test_a_package_from_before_packages_named_everybody_is_found_or_ends(
    world: World, monkeypatch: pytest.MonkeyPatch, *, erased_before: bool
) -> None:
    world.note("n1", "ada's own")
    world.file("both.txt", SECRET, subjects=[ADA, BOB])
    with monkeypatch.context() as before:
        before.setattr(exporting, "others_of", lambda *_: {})
        request = given(world)
    system = Acting.system(tenant_id=world.tenant.tenant_id, tenant=world.tenant.name, log_id=world.tenant.log_id)
    erasure = world.ask(BOB)
    if erased_before:
        world.plan(erasure)
        world.approve(erasure)
        world.work()
    assert name_everybody(world.parts, system, world.now) == 1
    assert name_everybody(world.parts, system, world.now) == 0
    if erased_before:
        sweeps = Sweeps(world.parts, brakes=Brakes(share=1.0, jump=timedelta(days=10_000)))
        world.now += timedelta(minutes=1)
        sweeps.start(world.acting(), world.now)
        sweeps.run_due(world.tenant.tenant_id, world.now)
    else:
        world.plan(erasure)
        plan = world.reader.plan_view(world.acting(), erasure)
        assert {copy["store"] for copy in plan["copies"]} >= {STORE}
        world.approve(erasure)
        world.work()
    assert world.state(erasure) == "completed"
    assert not list(world.parts.exports.rglob("*.zip"))  # type: ignore[union-attr]  # this world has a folder
    assert SECRET not in text_of(world, request)


def test_neither_of_them_is_given_a_package_of_both(world: World) -> None:
    world.note("n1", "ada's own secret")
    world.file("both.txt", SECRET, subjects=[ADA, BOB])
    given(world)
    for person in (ADA, BOB):
        request = world.ask(person, right="access")
        world.plan(request)
        copies = world.reader.copies(world.acting(), request)
        [package] = [copy for copy in copies if copy["store"] == STORE]
        assert (package["state"], package["collateral"]) == ("withheld", {"subjects": 1})
        assert "about other persons too" in package["detail"]


def test_what_is_about_more_people_than_the_human_saw_is_asked_about_again(world: World) -> None:
    # Between the release of one copy and that of the last, the first had become about somebody nobody had thought of.
    first = world.file("both.txt", SECRET, subjects=[ADA, BOB])
    world.file("both2.txt", "ada and bob, again", subjects=[ADA, BOB])
    request = asked(world)
    one, two = sorted(waiting(world, request), key=lambda copy: copy["artifact"] != first)
    settle(world, request, one)
    place = {"data_class": "summary", "store": "cvs", "locator": {"path": "both.txt"}, "subjects": [ADA, BOB]}
    world.register({**place, "sources": [world.note("c1", "a word of carl", owner=CARL)]})
    settle(world, request, two, "withhold")
    world.work(2)
    assert world.state(request) == "executing"
    [again] = waiting(world, request)
    assert (again["artifact"], again["collateral"]) == (first, {"subjects": 2})
    settle(world, request, again)
    world.work(2)
    assert world.state(request) == "completed"
    assert SECRET in text_of(world, request)


def test_what_was_released_before_somebody_elses_erasure_was_approved_does_not_go_out(world: World) -> None:
    world.note("n1", "ada's own")
    world.file("both.txt", SECRET, subjects=[ADA, BOB])
    world.say(SECRET, subjects=[ADA, BOB])
    request = asked(world)
    for copy in waiting(world, request):
        settle(world, request, copy)
    erasure = world.ask(BOB)
    world.plan(erasure)
    world.approve(erasure)
    answers.carry_on(world.parts, world.tenant, request, world.now)
    assert world.state(request) == "completed"
    text = text_of(world, request)
    assert "ada's own" in text
    assert SECRET not in text


@pytest.mark.parametrize("kind", ["artifact", "entry"])
@pytest.mark.parametrize("overtaken_by", ["approval", "whole erasure"])
def test_a_package_that_somebody_elses_erasure_overtakes_is_made_anew_without_them(
    world: World, monkeypatch: pytest.MonkeyPatch, overtaken_by: str, kind: str
) -> None:
    # With Bob's names gone it was kept as about Ada alone: his words went out for a month behind his certificate.
    world.note("n1", "ada's own")
    if kind == "artifact":
        world.file("both.txt", SECRET, subjects=[ADA, BOB])
    else:
        world.say(SECRET, subjects=[ADA, BOB])
    request = asked(world)
    for copy in waiting(world, request):
        settle(world, request, copy)
    erasure = world.ask(BOB)
    world.plan(erasure)
    made = _Making._manifest

    def overtaken(self: _Making, package: Any) -> None:
        made(self, package)
        world.approve(erasure)
        for _ in range(8 if overtaken_by == "whole erasure" else 0):
            advance(world.parts, world.tenant, erasure, world.now)
            world.now += timedelta(minutes=1)

    with monkeypatch.context() as patched:
        patched.setattr(_Making, "_manifest", overtaken)
        answers.carry_on(world.parts, world.tenant, request, world.now)
    assert world.state(request) == "executing"
    assert not list(world.parts.exports.rglob("*.zip"))  # type: ignore[union-attr]  # this world has a folder
    assert world.state(erasure) == ("completed" if overtaken_by == "whole erasure" else "approved")
    world.work()
    assert (world.state(request), world.state(erasure)) == ("completed", "completed")
    text = text_of(world, request)
    assert "ada's own" in text
    assert SECRET not in text


def test_what_is_about_somebody_whom_no_name_leads_to_any_more_goes_into_no_package(world: World) -> None:
    world.note("n1", "ada's own")
    world.file("both.txt", SECRET, subjects=[ADA, BOB])
    request = asked(world)
    for copy in waiting(world, request):
        settle(world, request, copy)
    tenant = world.tenant.tenant_id
    with world.parts.transactions(tenant) as session:
        people = subjects.find(session, world.services.vault, world.acting(), [parse_subject(BOB)])
        subjects.end(session, tenant, people.values(), "swp_1", world.now)
    world.work(2)
    assert world.state(request) == "completed"
    text = text_of(world, request)
    assert "ada's own" in text
    assert SECRET not in text
    [left] = world.reader.copies(world.acting(), request, state="withheld")
    assert left["detail"] == NAMELESS


def test_what_is_about_more_people_than_can_be_named_is_left_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("erasure.package_people._MOST", 1)
    world.file("both.txt", "ada and bob", subjects=[ADA, BOB])
    world.file("three.txt", SECRET, subjects=[ADA, BOB, CARL])
    request = asked(world)
    for copy in waiting(world, request):
        settle(world, request, copy)
    world.work(2)
    assert world.state(request) == "completed"
    assert SECRET not in text_of(world, request)
    [left] = world.reader.copies(world.acting(), request, state="withheld")
    assert left["detail"] == TOO_MANY


def test_what_is_about_somebody_else_than_the_human_saw_is_asked_about_again(world: World) -> None:
    # As many others as before were no reason to ask: carl's words went out by a decision about bob's.
    first = world.file("both.txt", SECRET, subjects=[ADA, BOB])
    world.file("both2.txt", "ada and bob, again", subjects=[ADA, BOB])
    request = asked(world)
    one, two = sorted(waiting(world, request), key=lambda copy: copy["artifact"] != first)
    settle(world, request, one)
    world.note("c1", "a word of carl", owner=CARL)
    world.now_about(first, ADA, CARL)
    settle(world, request, two)
    world.work(2)
    [again] = waiting(world, request)
    assert (again["artifact"], again["collateral"]) == (first, {"subjects": 1})
    settle(world, request, again, "withhold")
    world.work(2)
    assert world.state(request) == "completed"
    text = text_of(world, request)
    assert "ada and bob, again" in text
    assert SECRET not in text
