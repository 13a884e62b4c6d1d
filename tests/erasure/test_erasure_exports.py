"""Access and portability: everything the registry counts, nothing about others, in a package that is a copy itself."""

from __future__ import annotations

import json
import sqlite3
import time
import zipfile
from collections.abc import Callable
from datetime import timedelta
from io import BytesIO
from typing import Any

import pytest

from erasure.errors import ExportNotReady, IllegalMove, InvalidRequest
from erasure.export import SOMEBODY_ELSES
from erasure.exporting import _Making  # a pass of a worker that is killed in its middle
from erasure.footprint import end_footprints
from erasure.handout import EXPIRED, JOINT, open_export
from erasure.packages import STORE
from erasure.request_desk import RequestDesk
from erasure.sweep_copies import Sweeps
from registry import subjects
from registry.errors import NotBuilt
from registry.identifiers import parse_subject
from retention.holds import Holds
from tests.erasure.conftest import ADA, BOB, World


def ready(world: World, *people: str, **more: Any) -> str:
    """A planned and approved request."""
    request = world.ask(*people, **{"right": "access", **more})
    world.plan(request)
    world.approve(request)
    return request


def answered(world: World, *people: str, **more: Any) -> str:
    request = ready(world, *people, **more)
    world.work(2)
    return request


def package(world: World, request: str) -> zipfile.ZipFile:
    handout = open_export(world.parts, world.acting(), request, world.now)
    data = b"".join(handout.pieces)
    assert len(data) == handout.size
    return zipfile.ZipFile(BytesIO(data))


def manifest(archive: zipfile.ZipFile) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(archive.read("manifest.json"))
    return found


def registered(world: World, person: str = ADA) -> dict[tuple[str, str], int]:
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        numbers = subjects.find(session, world.services.vault, world.acting(), [parse_subject(person)])
        counts = subjects.counts(session, world.tenant.tenant_id, numbers.values())
    return {(str(one["data_class"]), str(one["store"])): int(str(one["count"])) for one in counts}


def test_an_export_holds_what_the_registry_counts_with_the_terms_of_each_class(world: World) -> None:
    for number in range(3):
        world.note(f"n{number}", f"note {number} of ada")
    world.file("cv.txt", "the cv of ada")
    world.note("b1", "a note of bob", owner=BOB)
    world.say("hello, I am ada")
    request = ready(world)
    expected = registered(world)
    world.work(2)
    assert world.state(request) == "completed"
    archive = package(world, request)
    assert archive.testzip() is None
    told = manifest(archive)
    assert {(line["data_class"], line["store"]): line["registered"] for line in told["counts"]} == expected
    assert {line["exported"] for line in told["counts"]} == {1, 3}
    contents = [archive.read(name).decode() for name in archive.namelist() if name.startswith("artifacts/")]
    assert sorted(json.loads(text)["text"] for text in contents if text.startswith("{")) == [
        f"note {number} of ada" for number in range(3)
    ]
    assert "the cv of ada" in contents
    assert not any("bob" in text for text in contents)
    lines = [json.loads(line) for line in archive.read("record/transcript.jsonl").splitlines()]
    assert [line["parts"][0]["content"] for line in lines] == [{"content": "hello, I am ada"}]
    assert told["record"] == [
        {"data_class": "transcript", "registered": 1, "exported": 1, "withheld": 0, "absent": 0, "failed": 0}
    ]
    note = next(terms for terms in told["classes"] if terms["data_class"] == "note")
    assert note["storage_period"] == "P90D from created"
    assert {"purposes", "categories", "recipients", "storage_period", "sources", "legal_basis"} <= note.keys()


def test_a_package_lists_the_names_by_which_the_person_is_known_and_nobody_elses(world: World) -> None:
    # We hold them, and whoever asked what we hold was not told (GDPR Art. 15(3)).
    world.note("n1", "only ada")
    world.note("b1", "a note of bob", owner=BOB)
    for scope, is_there in ((None, True), ({"data_classes": ["note"]}, False)):
        request = answered(world, **({} if scope is None else {"scope": scope}))
        archive = package(world, request)
        assert ("names.json" in archive.namelist()) is is_there
        tops = {name.partition("/")[0] for name in archive.namelist()} - {"README.txt"}
        told = archive.read("README.txt").decode().splitlines()[2:]
        assert {line.split()[0].rstrip("/") for line in told} == tops, "and the text says what is there"
        if is_there:
            assert json.loads(archive.read("names.json")) == [ADA]


def test_every_file_of_a_package_has_its_digest_in_the_manifest(world: World) -> None:
    import hashlib

    world.note("n1", "a note")
    world.say("words")
    archive = package(world, answered(world))
    told = {line["path"]: line for line in manifest(archive)["files"]}
    assert told.keys() == set(archive.namelist()) - {"manifest.json"}
    for name, line in told.items():
        assert hashlib.sha256(archive.read(name)).hexdigest() == line["sha256"]


def test_what_is_about_others_waits_for_a_human_and_the_choice_is_told_the_record(world: World) -> None:
    world.note("n1", "only ada")
    shared = world.file("both.txt", "ada and bob quarrelled", subjects=[ADA, BOB])
    kept = world.file("both2.txt", "bob told ada a secret", subjects=[ADA, BOB])
    world.say("ada and bob agreed", subjects=[ADA, BOB])
    world.say("bob alone", subjects=[BOB], stream="conv_2")
    request = ready(world)
    world.work(2)
    assert world.state(request) == "executing"
    view = world.reader.get(world.acting(), request)
    assert view["waiting_for"]["awaiting_human"] == 3
    with pytest.raises(ExportNotReady):
        open_export(world.parts, world.acting(), request, world.now)
    copies = {
        str(copy.get("artifact") or copy.get("entry") or copy.get("key")): copy
        for copy in world.reader.copies(world.acting(), request)
    }
    entry = next(copy for name, copy in copies.items() if "/" in name)
    for copy, outcome in ((copies[shared], "release"), (copies[kept], "withhold"), (entry, "withhold")):
        world.desk.settle_copy(
            world.acting("carol"), request, copy["copy"], outcome=outcome, comment="weighed", now=world.now
        )
    world.work(2)
    assert world.state(request) == "completed"
    archive = package(world, request)
    text = "".join(archive.read(name).decode() for name in archive.namelist())
    assert "quarrelled" in text
    assert "secret" not in text
    assert "agreed" not in text
    assert "bob alone" not in text
    told = manifest(archive)
    line = next(line for line in told["counts"] if line["data_class"] == "summary")
    assert (line["registered"], line["exported"], line["withheld"]) == (2, 1, 1)
    events = [line["event"] for line in world.reader.get(world.acting(), request)["history"]]
    assert events.count("copy_settled") == 3


def settled(world: World, request: str, outcome: str) -> tuple[str, str]:
    """The one copy that waits for a human, with why, after the human's word on it."""
    [copy] = [one for one in world.reader.copies(world.acting(), request) if one["state"] == "awaiting_human"]
    world.desk.settle_copy(
        world.acting("carol"), request, copy["copy"], outcome=outcome, comment="weighed", now=world.now
    )
    return copy["artifact"], copy["detail"]


def test_what_became_somebody_elses_since_the_plan_waits_for_a_human_too(world: World) -> None:
    # It went out with the rest: whose an item was, was asked when it was planned and never again.
    world.note("n1", "only ada")
    passed_on = world.note("n2", "bob has this desk by now")
    joint = world.file("j.txt", "ada alone, at first")
    request = ready(world)
    with sqlite3.connect(world.database_file) as db:
        db.execute("UPDATE note SET owner = ? WHERE id = 'n2'", (BOB,))
    place = {"data_class": "summary", "store": "cvs", "locator": {"path": "j.txt"}}
    world.register({**place, "subjects": [ADA], "sources": [world.note("b1", "a word of bob", owner=BOB)]})
    world.work(2)
    assert settled(world, request, "withhold") == (joint, "about other persons too (GDPR Art. 15(4))")
    world.work(2)
    with pytest.raises(ExportNotReady):
        open_export(world.parts, world.acting(), request, world.now)
    assert settled(world, request, "release") == (passed_on, SOMEBODY_ELSES)
    world.work(2)
    assert world.state(request) == "completed"
    archive = package(world, request)
    text = "".join(archive.read(name).decode() for name in archive.namelist())
    assert "only ada" in text
    assert "bob has this desk" in text, "a human released it"
    assert "at first" not in text


def test_an_access_request_cannot_be_settled_with_the_words_of_an_erasure(world: World) -> None:
    world.file("both.txt", "ada and bob", subjects=[ADA, BOB])
    request = ready(world)
    number = world.reader.copies(world.acting(), request, state="awaiting_human")[0]["copy"]
    with pytest.raises(InvalidRequest, match="release, withhold"):
        world.desk.settle_copy(world.acting(), request, number, outcome="erased", comment="no", now=world.now)


def test_portability_takes_what_was_provided_on_contract_and_leaves_the_rest_out_with_its_reason(world: World) -> None:
    world.classes({"score": {"legal_basis": "legitimate interest"}})
    world.note("n1", "provided by ada")
    derived = world.file("sum.txt", "derived from the note", sources=[world.note("n2", "another")])
    with_basis = world.register(
        {"data_class": "score", "store": "cvs", "locator": {"path": "score.txt"}, "subjects": [ADA]}
    )
    (world.files / "score.txt").write_text("score 7")
    request = answered(world, right="portability")
    told = manifest(package(world, request))
    assert world.state(request) == "completed"
    states = {copy["id"]: (copy["state"], copy["detail"]) for copy in told["copies"] if copy["kind"] == "artifact"}
    assert states[derived] == ("withheld", "inferred or derived, neither provided nor observed")
    assert states[with_basis[0]] == ("withheld", "not processed on consent or a contract")
    assert sum(state == "exported" for state, _ in states.values()) == 2


@pytest.mark.scenario("F3")
def test_an_export_includes_past_requests_and_erasure_strips_the_identity_from_them(world: World) -> None:
    world.note("n1", "text")
    first = world.ask(right="restriction", note="stop using my data", channel="post")
    request = answered(world)
    archive = package(world, request)
    asked = {one["id"]: one for one in json.loads(archive.read("requests.json"))}
    assert asked.keys() == {first, request}
    assert asked[first]["said"] == {"subjects": [ADA], "channel": "post", "note": "stop using my data"}
    world.desk.cancel(world.acting(), first, now=world.now)
    erased = world.erase()
    assert world.state(erased) == "completed"
    after = answered(world)
    asked = {one["id"]: one for one in json.loads(package(world, after).read("requests.json"))}
    assert {first, request, erased} <= asked.keys()
    assert "ada@example.org" not in json.dumps(asked)
    assert asked[erased]["state"] == "completed"


def test_what_two_people_asked_together_is_given_to_neither_alone(world: World) -> None:
    # Each got the other's name, and what the other had said.
    world.note("n1", "ada's own")
    world.note("n2", "bob's own", owner=BOB)
    together = world.ask(ADA, BOB, right="restriction", note="bob is moving to 12 Byron Lane")
    request = ready(world)
    world.work()
    [asked] = [one for one in json.loads(package(world, request).read("requests.json")) if one["id"] == together]
    assert asked["said"] == JOINT
    assert asked["state"] == "verified"


@pytest.mark.scenario("F4")
def test_after_an_erasure_the_export_is_a_valid_empty_package_that_names_the_certificate(world: World) -> None:
    world.note("n1", "text")
    world.say("words")
    erased = world.erase()
    request = answered(world)
    assert world.state(request) == "completed"
    archive = package(world, request)
    told = manifest(archive)
    assert told["is_empty"]
    assert told["counts"] == []
    assert told["record"] == []
    assert [(line["request"], line["version"]) for line in told["certificates_of_erasure"]] == [(erased, "interim")]
    assert "erased" in told["note"]


def test_an_export_is_a_copy_of_its_class_and_is_erased_like_any_other(world: World) -> None:
    world.note("n1", "the canary of ada")
    request = answered(world)
    assert registered(world)["export", STORE] == 1
    folder = world.services.exports_folder
    assert len(list(folder.rglob("*.zip"))) == 1
    erased = world.erase()
    assert world.state(erased) == "completed"
    assert list(folder.rglob("*.zip")) == []
    assert any(copy["store"] == STORE for copy in world.reader.copies(world.acting(), erased))
    assert manifest(package(world, request))["is_empty"]


def sweep_now(world: World) -> None:
    sweeps = Sweeps(world.parts)
    sweeps.start(world.acting("system"), world.now)
    sweeps.run_due(world.tenant.tenant_id, world.now, worker="w")


def test_an_export_expires_and_is_then_a_package_that_says_what_it_lacks(world: World) -> None:
    world.note("n1", "the canary of ada")
    request = answered(world)
    world.now += timedelta(days=31)
    sweep_now(world)
    assert list(world.services.exports_folder.rglob("*.zip")) == []
    told = manifest(package(world, request))
    assert not told["is_empty"], "what was in it is still held"
    assert {line["state"] for line in told["copies"] if line["kind"] != "request"} == {"withheld"}
    assert {line["detail"] for line in told["copies"] if line["kind"] != "request"} == {EXPIRED}
    assert "expired" in told["note"]


@pytest.mark.scenario("E9")
def test_a_hold_on_a_person_keeps_the_package_of_their_data_past_its_date(world: World) -> None:
    world.note("n1", "the canary of ada")
    answered(world)
    holds = Holds(
        vault=world.services.vault, record=world.services.record, transactions=world.parts.transactions,
        desk=RequestDesk(), approval="single",
    )  # fmt: skip
    spec = {"name": "n", "matter": "m", "reason": "r", "selector": {"subjects": [ADA]}}
    placed = holds.place(world.acting(), spec, world.now)
    world.now += timedelta(days=31)
    sweep_now(world)
    assert len(list(world.services.exports_folder.rglob("*.zip"))) == 1
    holds.release(world.acting(), placed["id"], preview=False, now=world.now)
    world.now += timedelta(hours=1)
    sweep_now(world)
    assert list(world.services.exports_folder.rglob("*.zip")) == []


@pytest.mark.scenario("E9")
@pytest.mark.parametrize("by", ["artifacts", "entries", "data_classes", "scope"])
def test_a_hold_on_what_lies_in_a_package_keeps_the_package(world: World, by: str) -> None:
    """One on the person did; one on a single copy let the package go, which may be the last place of it."""
    note = world.note("n1", "the canary of ada")
    said = world.say_as("what ada said", stream="conv_1")
    answered(world)
    world.note("n2", "came after the package")
    selectors: dict[str, dict[str, Any]] = {
        "artifacts": {"artifacts": [note]},
        "entries": {"entries": [said]},
        "data_classes": {"data_classes": ["note"]},
        "scope": {"scope": {"conversation": "conv_1"}},
    }
    holds = Holds(
        vault=world.services.vault, record=world.services.record, transactions=world.parts.transactions,
        desk=RequestDesk(), approval="single",
    )  # fmt: skip
    placed = holds.place(
        world.acting(), {"name": "n", "matter": "m", "reason": "r", "selector": selectors[by]}, world.now
    )
    assert placed["items"] == {"artifacts": 2, "entries": 1, "data_classes": 3, "scope": 1}[by], "the package as well"
    world.now += timedelta(days=31)
    sweep_now(world)
    assert len(list(world.services.exports_folder.rglob("*.zip"))) == 1
    preview = holds.release(world.acting(), placed["id"], preview=True, now=world.now)
    assert ("export", True) in {(one["data_class"], one["due"]) for one in preview["becomes_due"]}
    holds.release(world.acting(), placed["id"], preview=False, now=world.now)
    world.now += timedelta(hours=1)
    sweep_now(world)
    assert list(world.services.exports_folder.rglob("*.zip")) == []


def test_a_hold_on_something_else_lets_a_package_go(world: World) -> None:
    world.note("n1", "the canary of ada")
    answered(world)
    later = world.note("n2", "came after the package")
    holds = Holds(
        vault=world.services.vault, record=world.services.record, transactions=world.parts.transactions,
        desk=RequestDesk(), approval="single",
    )  # fmt: skip
    spec = {"name": "n", "matter": "m", "reason": "r", "selector": {"artifacts": [later]}}
    assert holds.place(world.acting(), spec, world.now)["items"] == 1
    world.now += timedelta(days=31)
    sweep_now(world)
    assert list(world.services.exports_folder.rglob("*.zip")) == []


def test_a_second_export_does_not_carry_the_first_inside(world: World) -> None:
    world.note("n1", "text")
    answered(world)
    world.now += timedelta(days=1)
    told = manifest(package(world, answered(world)))
    line = next(line for line in told["counts"] if line["data_class"] == "export")
    assert (line["registered"], line["withheld"], line["exported"]) == (1, 1, 0)


def test_a_store_that_stays_silent_is_named_and_the_request_is_not_complete(world: World) -> None:
    world.memory_store("odd")
    world.note("n1", "text")
    world.keep_in_memory("odd", "k1", "in a silent store")
    request = ready(world)
    world.change(connect=refusing(world, "odd"))
    world.work(12)
    assert world.state(request) == "partially_failed"
    assert "unreachable" in world.copy_states(request).values()
    with pytest.raises(ExportNotReady):
        open_export(world.parts, world.acting(), request, world.now)
    world.change(connect=world.connect)
    world.desk.retry(world.acting(), request, now=world.now)
    world.work(2)
    assert world.state(request) == "completed"
    assert "in a silent store" in "".join(
        package(world, request).read(name).decode() for name in package(world, request).namelist()
    )


def refusing(world: World, name: str) -> Any:
    from connectors.errors import StoreUnreachable

    def connect(store: Any, read_only: bool) -> Any:
        if store.name == name:
            raise StoreUnreachable("refused")
        return world.connect(store, read_only)

    return connect


def test_a_person_whose_erasure_was_approved_meanwhile_leaves_no_package_behind(world: World) -> None:
    world.note("n1", "text")
    access = ready(world)
    erasure = world.ask()
    world.plan(erasure)
    world.approve(erasure)
    world.work(4)
    assert world.state(access) == "completed"
    assert list(world.services.exports_folder.rglob("*.zip")) == []
    assert manifest(package(world, access))["is_empty"]


def test_an_access_request_sets_no_fence_and_has_no_certificate_of_erasure(world: World) -> None:
    world.note("n1", "text")
    request = answered(world)
    assert world.say("still talking") == "stored"
    with pytest.raises(IllegalMove, match="erasure"):
        world.reader.certificate(world.acting(), request)


def test_nothing_is_exported_before_a_second_person_approved(world: World) -> None:
    world.note("n1", "text")
    request = world.ask(right="access")
    world.plan(request)
    world.work(2)
    assert world.state(request) == "planned"
    with pytest.raises(ExportNotReady):
        open_export(world.parts, world.acting(), request, world.now)


def test_an_export_limited_to_a_conversation_holds_that_conversation_only(world: World) -> None:
    world.say("in the first", stream="conv_1")
    world.say("in the second", stream="conv_2")
    world.note("n1", "outside")
    (world.files / "in.txt").write_text("inside by its scope")
    item = {"data_class": "summary", "store": "cvs", "locator": {"path": "in.txt"}, "subjects": [ADA]}
    world.register({**item, "scope": {"conversation": "conv_1"}})
    request = answered(world, scope={"conversation": "conv_1"})
    archive = package(world, request)
    text = "".join(archive.read(name).decode() for name in archive.namelist())
    assert "in the first" in text
    assert "inside by its scope" in text
    assert "in the second" not in text
    assert "outside" not in text


def test_a_large_export_needs_no_more_memory_than_its_largest_item(world: World) -> None:
    import secrets
    import tracemalloc

    text = secrets.token_hex(128 * 1024)
    for number in range(60):
        world.file(f"f{number}.txt", text)
    request = ready(world)
    tracemalloc.start()
    world.work(1)
    handout = open_export(world.parts, world.acting(), request, world.now)
    total = sum(len(piece) for piece in handout.pieces)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert world.state(request) == "completed"
    assert total == handout.size
    assert total > 7_000_000
    assert peak < 6_000_000


@pytest.mark.scenario("D4")
def test_a_paused_request_stays_paused_whatever_is_configured_meanwhile(world: World) -> None:
    world.file("both.txt", "ada and bob", subjects=[ADA, BOB])
    request = ready(world)
    world.work(2)
    before = world.reader.get(world.acting(), request)
    assert (before["state"], before["waiting_for"]["awaiting_human"]) == ("executing", 1)
    world.desk.pause(world.acting(), request, reason="clarification", now=world.now)
    world.now += timedelta(days=10)
    world.classes({"note": {"description": "edited"}})
    world.store("db", "sql", {"url": f"sqlite:///{world.database_file}", "owner_field": "owner"}, recipient="x")
    world.work(3)
    after = world.reader.get(world.acting(), request)
    assert after["paused"]
    assert (after["state"], after["waiting_for"], after["due_at"]) == (
        before["state"], before["waiting_for"], before["due_at"],
    )  # fmt: skip
    world.desk.resume(world.acting(), request, now=world.now)
    assert world.reader.get(world.acting(), request)["due_at"] > before["due_at"]


def test_a_package_with_exceptions_that_a_second_person_accepted_names_what_is_missing(world: World) -> None:
    world.note("n1", "text")
    world.memory_store("odd")
    missing = world.keep_in_memory("odd", "k1", "in a silent store")
    request = ready(world)
    world.change(connect=refusing(world, "odd"))
    world.work(12)
    assert world.copy_states(request)[missing] == "unreachable"
    world.desk.accept_exceptions(world.acting("dan"), request, reason="asked the vendor", now=world.now)
    world.work(1)
    assert world.state(request) == "completed_with_exceptions"
    told = manifest(package(world, request))
    line = next(line for line in told["counts"] if line["store"] == "odd")
    assert (line["registered"], line["failed"], line["exported"]) == (1, 1, 0)


def test_long_after_its_words_are_gone_a_request_still_says_what_its_package_lacks(
    world: World,
) -> None:
    world.note("n1", "text")
    request = answered(world)
    world.now += timedelta(days=40)
    sweep_now(world)
    assert end_footprints(world.parts, world.tenant.tenant_id, world.now) >= 1
    archive = package(world, request)
    assert not manifest(archive)["is_empty"]
    assert json.loads(archive.read("requests.json"))[0]["id"] == request


@pytest.mark.scenario("A23")
@pytest.mark.parametrize(
    "erasure",
    [
        {"on_request": "erase", "required": "L2"},
        {"on_request": "erase", "required": "key"},
        {"on_request": "retain", "required": "L2", "basis": "tax law", "until": "P10Y"},
    ],
)
def test_what_is_exported_never_depends_on_how_something_is_erased(world: World, erasure: dict[str, str]) -> None:
    retention = {"keep": "P20Y", "from": "created", "then": "erase"}
    world.classes({"note": {"erasure": erasure, "retention": retention}})
    world.note("n1", "the text in full")
    archive = package(world, answered(world))
    name = next(name for name in archive.namelist() if name.startswith("artifacts/note/"))
    assert json.loads(archive.read(name)) == {"id": "n1", "owner": ADA, "text": "the text in full"}


@pytest.mark.scenario("A23")
def test_a_class_that_asks_for_anonymising_is_refused_by_name(world: World) -> None:
    with pytest.raises(NotBuilt, match="anonymis"):
        world.classes({"note": {"erasure": {"on_request": "anonymise", "required": "L2"}}})


@pytest.mark.scenario("D6")
@pytest.mark.parametrize("right", ["access", "erasure"])
def test_a_store_that_was_registered_after_a_failure_is_in_the_retry(world: World, right: str) -> None:
    world.memory_store("odd")
    world.keep_in_memory("odd", "k1", "in a silent store")
    request = ready(world, right=right)
    world.change(connect=refusing(world, "odd"))
    world.work(12)
    assert world.state(request) == "partially_failed"
    world.memory_store("later")
    added = world.keep_in_memory("later", "k2", "in a store of later")
    world.change(connect=world.connect)
    if world.state(request) == "partially_failed":
        world.desk.retry(world.acting(), request, now=world.now)
    world.work(6)
    assert world.state(request) == "completed"
    assert world.copy_states(request)[added] == ("exported" if right == "access" else "erased_physical")


@pytest.mark.slow
def test_an_export_takes_time_in_proportion_to_the_copies(
    make_world: Callable[[str], World], full_length: bool
) -> None:
    sizes = (2_000, 10_000) if full_length else (200, 1_000)
    spent = [processor_seconds(make_world(f"n{size}"), size) for size in sizes]
    assert spent[1] < spent[0] * 5 * 2


def processor_seconds(world: World, size: int) -> float:
    with sqlite3.connect(world.database_file) as db:
        db.executemany("INSERT INTO note VALUES (?, ?, ?)", [(f"k{n}", ADA, f"text {n}") for n in range(size)])
    item = {"data_class": "note", "store": "db", "subjects": [ADA]}
    for start in range(0, size, 500):
        rows = range(start, min(start + 500, size))
        world.register(*({**item, "locator": {"table": "note", "key": {"id": f"k{n}"}}} for n in rows))
    request = world.ask(right="access")
    began = time.process_time()
    world.plan(request)
    world.approve(request)
    world.work(1)
    spent = time.process_time() - began
    assert world.state(request) == "completed"
    assert manifest(package(world, request))["counts"][0]["exported"] == size
    return spent


def test_what_a_crashed_pass_left_is_removed_and_made_anew(world: World) -> None:
    world.note("n1", "text")
    cancelled, request = world.ask(right="portability"), ready(world)
    world.desk.cancel(world.acting(), cancelled, now=world.now)
    folder = world.services.exports_folder / str(world.tenant.tenant_id)
    folder.mkdir(parents=True)
    for name in (cancelled, request):
        (folder / f".{name}.part").write_text("half a package")
    world.work(2)
    assert world.state(request) == "completed"
    assert [file.name for file in folder.iterdir()] == [f"{request}-1.zip"]


@pytest.mark.parametrize("step", ["_manifest", "_keep"])
def test_a_pass_that_breaks_off_leaves_nothing_that_an_erasure_does_not_find(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    # Half a package stayed in the folder, of which no registry knew: its person's erasure was certified beside it.
    world.note("n1", "what Ada asked to see")
    request = ready(world)

    def killed(*_: Any) -> None:
        raise SystemExit(9)

    with monkeypatch.context() as patched:
        patched.setattr(_Making, step, killed)
        with pytest.raises(SystemExit):
            world.work(1)
    assert list((world.services.exports_folder / str(world.tenant.tenant_id)).iterdir()) == []
    world.work(2)
    assert world.state(request) == "completed"
    archive = package(world, request)
    assert any(b"what Ada asked to see" in archive.read(name) for name in archive.namelist())
