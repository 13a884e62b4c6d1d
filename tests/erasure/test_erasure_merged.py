"""Erasing somebody with many names, a name in doubt, people still on their way down, and what is told outside."""

from __future__ import annotations

import io
import json
import re
import sqlite3
import zipfile
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlmodel import col, select

from api.lineage_feed import Feed, FileSink, SinkFailed
from erasure.apart import tell_of_duplicates
from erasure.deadlines import near
from erasure.errors import IllegalMove
from erasure.handout import APART, open_export
from erasure.letters import Asked, write
from erasure.rendering.letter import plain
from erasure.worker import advance
from ledger.entry import Kind
from ledger.models import EntryRow, OutboxRow
from registry import artifacts, cones, lineage_out, merging, origins
from registry.errors import AmbiguousSubject, Conflict
from registry.identifiers import parse_subject
from registry.sets import members
from retention.models import HoldRow

ADA, PHONE, BOB = "email:ada@example.org", "phone:+441234567", "user:bob"


def merge(world: Any, *texts: str, by: Sequence[str] = ("ann", "carol"), **more: Any) -> str:
    found = ""
    with world.parts.transactions(world.tenant.tenant_id) as session:
        for principal in by:
            done = merging.propose_merge(
                session, world.services.vault, world.acting(principal), [parse_subject(one) for one in texts],
                reason="seen", now=world.now, **more,
            )  # fmt: skip
            found = done.id
    return found


def kinds(world: Any) -> set[str]:
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        stored = session.exec(select(EntryRow.kind).where(EntryRow.tenant_id == world.tenant.tenant_id)).all()
        waiting = session.exec(select(OutboxRow.kind).where(OutboxRow.tenant_id == world.tenant.tenant_id)).all()
    return {*stored, *waiting}


def test_whoever_asks_under_one_name_is_erased_under_all_of_them(world: Any) -> None:
    first = world.note("1", "Ada by mail")
    second = world.note("2", "Ada by phone", owner=PHONE)
    other = world.note("3", "Bob", owner=BOB)
    merge(world, ADA, PHONE)
    request = world.erase(ADA)
    assert world.state(request) == "completed", world.reader.copies(world.acting(), request)
    states = world.copy_states(request)
    assert (states[first], states[second]) == ("erased_physical", "erased_physical")
    assert other not in states
    assert not world.bytes_left("Ada by mail", "Ada by phone")


@pytest.mark.scenario("C11")
def test_a_merge_is_no_erasure_and_tells_nobody_of_one(world: Any) -> None:
    world.note("1", "Ada")
    world.note("2", "Ada too", owner=PHONE)
    before = kinds(world)
    merge(world, ADA, PHONE)
    told = kinds(world) - before
    assert not {kind for kind in told if kind.startswith(("request.", "copy.", "key.", "fence.", "certificate."))}
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        found = artifacts.search(session, world.services.vault, world.acting(), {"subject": ADA})[0]
    assert {one["status"] for one in found} == {"live"}


def test_people_merged_between_plan_and_approval_need_a_new_plan(world: Any) -> None:
    world.note("1", "Ada")
    second = world.note("2", "Ada too", owner=PHONE)
    request = world.ask(ADA)
    world.plan(request)
    merge(world, ADA, PHONE)
    with pytest.raises(IllegalMove, match="merged"):
        world.approve(request)
    world.plan(request)
    world.approve(request)
    assert second in world.copy_states(request)
    with pytest.raises(Conflict, match="erasure"):
        merge(world, ADA, BOB) if world.note("3", "Bob", owner=BOB) else None


def split(world: Any, text: str) -> None:
    with world.parts.transactions(world.tenant.tenant_id) as session:
        merging.split(
            session, world.services.vault, world.acting("ann"), [parse_subject(text)], reason="no", now=world.now
        )


def test_whoever_is_told_apart_before_the_approval_is_in_no_plan_any_more(world: Any) -> None:
    # The plan was approved as it was, and planned anew it held them still.
    world.note("1", "Ada")
    others = world.note("2", "Bob", owner=BOB)
    merge(world, ADA, BOB)
    request, copy = world.ask(ADA), world.ask(ADA, right="access")
    for one in (request, copy):
        world.plan(one)
        assert others in world.copy_states(one)
    split(world, BOB)
    for one in (request, copy):
        with pytest.raises(IllegalMove, match="told apart"):
            world.approve(one)
        world.plan(one)
        assert others not in world.copy_states(one)
        world.approve(one)
    world.work()
    assert (world.state(request), world.state(copy)) == ("completed", "completed")
    with sqlite3.connect(world.database_file) as db:
        assert db.execute("SELECT id FROM note").fetchall() == [("2",)]


@pytest.mark.scenario("D5")
def test_whoever_is_told_apart_has_a_request_of_their_own(world: Any) -> None:
    # It became a duplicate of the other person's, which does not do their work any more.
    world.note("1", "Ada")
    world.note("2", "Bob", owner=BOB)
    merge(world, ADA, BOB)
    hers = world.ask(ADA)
    world.plan(hers)
    split(world, BOB)
    his = world.ask(BOB)
    assert world.state(his) == "verified"
    for one in (hers, his):
        world.plan(one)
        world.approve(one)
    world.work()
    assert (world.state(hers), world.state(his)) == ("completed", "completed")
    with sqlite3.connect(world.database_file) as db:
        assert db.execute("SELECT id FROM note").fetchall() == []


def test_whoever_is_told_apart_after_the_approval_is_left_out(world: Any) -> None:
    world.classes({"mail": {}})
    own = world.note("1", "Ada")
    others = world.note("2", "Bob", owner=BOB)
    merge(world, ADA, BOB)
    limited = world.ask(ADA, scope={"data_classes": ["note"]})
    copy = world.ask(ADA, right="access")
    for one in (limited, copy):
        world.plan(one)
        world.approve(one)
    split(world, BOB)
    advance(world.parts, world.tenant, copy, world.now)
    assert (world.copy_states(copy)[own], world.copy_states(copy)[others]) == ("exported", "withheld")
    world.work()
    assert world.state(limited) == "completed_with_retained"
    assert world.copy_states(limited)[others] == "retained"
    with sqlite3.connect(world.database_file) as db:
        assert db.execute("SELECT id FROM note").fetchall() == [("2",)]


def test_a_package_with_data_of_somebody_told_apart_is_not_handed_out_any_more(world: Any) -> None:
    world.note("1", "Ada")
    world.note("2", "what Bob wrote", owner=BOB)
    merge(world, ADA, BOB)
    copy = world.ask(ADA, right="access")
    world.plan(copy)
    world.approve(copy)
    world.work()

    def handed_out() -> str:
        data = b"".join(open_export(world.parts, world.acting(), copy, world.now).pieces)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return "".join(archive.read(name).decode() for name in archive.namelist())

    assert "what Bob wrote" in handed_out()
    split(world, BOB)
    told = handed_out()
    assert "what Bob wrote" not in told
    assert APART in told


def test_who_was_merged_stays_in_a_request_that_is_opened_again(world: Any) -> None:
    world.note("1", "Ada")
    world.note("2", "Ada too", owner=PHONE)
    merge(world, ADA, PHONE)
    request = world.erase(ADA)
    late = world.note("3", "a late word", owner=PHONE)
    world.work()
    assert world.state(request) == "completed"
    assert world.copy_states(request)[late] == "erased_physical"


def test_nothing_is_planned_while_a_name_may_be_two_peoples(world: Any) -> None:
    world.note("1", "Ada")
    world.note("2", "user of hers", owner="user:ada")
    world.note("3", "Bob", owner=BOB)
    merge(world, ADA, "user:ada")
    doubt = merge(world, ADA, BOB, by=("ann",))
    request = world.ask(ADA)
    with pytest.raises(AmbiguousSubject):
        world.plan(request)
    with world.parts.transactions(world.tenant.tenant_id) as session:
        merging.decide_merge(
            session, world.services.vault, world.acting("carol"), doubt, same_person=False, comment="no", now=world.now
        )
    world.plan(request)
    world.approve(request)
    world.work()
    assert world.state(request) == "completed"
    assert world.bytes_left("Bob")


def test_a_hold_on_one_name_holds_what_lies_under_the_other(world: Any) -> None:
    world.note("1", "Ada")
    second = world.note("2", "Ada too", owner=PHONE)
    merge(world, ADA, PHONE)
    with world.parts.transactions(world.tenant.tenant_id) as session:
        [row] = artifacts.find_artifacts(session, world.tenant.tenant_id, [second]).values()
        number = members(session, world.tenant.tenant_id, [row.set_id])[row.set_id]
        session.add(
            HoldRow(
                tenant_id=world.tenant.tenant_id,
                hold_id="hold_1",
                name="case",
                subjects=sorted(number),
                created_by="x",
                created_at=world.now,
            )
        )
    request = world.erase(ADA)
    assert set(world.copy_states(request).values()) == {"retained"}


def test_a_request_does_not_complete_while_people_are_on_their_way_down(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origins, "INLINE", 0)
    root = world.file("root.txt", "Bob's root", subjects=[BOB])
    middle = world.file("middle.txt", "made of it", subjects=[], sources=[root])
    leaf = world.file("leaf.txt", "Ada's words in a leaf", subjects=[], sources=[middle])
    source = world.note("1", "Ada's words")
    with world.parts.transactions(world.tenant.tenant_id) as session:
        origins.add_sources(session, world.services.vault, world.acting("writer"), root, [source], now=world.now)
        assert cones.pending(session, world.tenant.tenant_id).cones == 1
    request = world.ask(ADA)
    world.plan(request)
    world.approve(request)
    world.work()
    shown = world.reader.get(world.acting(), request)
    assert (shown["state"], shown["waiting_for"]) == ("verifying", {"propagation": 1})
    assert leaf not in world.copy_states(request)
    with world.parts.transactions(world.tenant.tenant_id) as session:
        while cones.propagate_pending(session, world.tenant.tenant_id, world.now, limit=1):
            pass
    world.work()
    # What came late is Bob's too, which nobody had seen: a second person decides.
    waiting = world.reader.copies(world.acting(), request, state="awaiting_human")
    assert leaf in [copy["artifact"] for copy in waiting]
    for copy in waiting:
        world.desk.settle_copy(
            world.acting("carol"), request, copy["copy"], outcome="erase", comment="seen", now=world.now
        )
    world.work()
    assert world.copy_states(request)[leaf] == "erased_physical"
    assert world.state(request) == "completed"
    assert not world.bytes_left("Ada's words")


def test_lineage_is_told_once_for_each_derivation_and_each_erased_copy(world: Any) -> None:
    out = world.base / "lineage.jsonl"
    feed = Feed(sink=FileSink(out), transactions=world.parts.transactions, vault=world.services.vault,
                log=world.services.log)  # fmt: skip
    tenant = world.tenant.tenant_id
    root = world.note("1", "Ada's words")
    made = world.file("made.txt", "of Ada's words", subjects=[], sources=[root])
    feed.run(tenant, world.now)
    assert feed.run(tenant, world.now) == 0
    [told] = [json.loads(line) for line in out.read_text().splitlines()]
    assert (told["eventType"], len(told["inputs"]), len(told["outputs"])) == ("COMPLETE", 1, 1)
    late = world.note("2", "more of her")
    with world.parts.transactions(tenant) as session:
        lineage_out.note_late(session, tenant, "openlineage.late", [made], world.now)
        origins.add_sources(session, world.services.vault, world.acting("writer"), made, [late], now=world.now)
    feed.run(tenant, world.now)
    events = [json.loads(line) for line in out.read_text().splitlines()]
    assert [len(one["inputs"]) for one in events] == [1, 2]
    request = world.erase()
    assert world.state(request) == "completed"
    world.services.record.ship_outbox(tenant, world.now)
    feed.run(tenant, world.now)
    erased = [json.loads(line) for line in out.read_text().splitlines()][2:]
    assert {one["job"]["name"] for one in erased} == {"erasure"}
    assert {one["outputs"][0]["facets"]["muniment_erasure"]["request"] for one in erased} == {request}
    assert len({one["run"]["runId"] for one in erased}) == 3
    text = out.read_text()
    assert not any(word in text for word in ("ada@", "Ada", "note/", "made.txt", "acme"))
    with world.parts.transactions(tenant, write=False) as session:
        document = lineage_out.prov_of(session, world.acting(), made, depth=5, limit=100)
    assert len(document["wasInvalidatedBy"]) == 3
    assert len(document["wasDerivedFrom"]) == 2
    assert re.search(r"\bada\b", json.dumps(document)) is None


def test_a_sink_that_refuses_gets_the_events_again(world: Any) -> None:
    class Refusing:
        def send(self, events: Sequence[dict[str, Any]]) -> None:
            del events
            raise SinkFailed("refused")

    root = world.note("1", "Ada's words")
    world.file("made.txt", "x", subjects=[], sources=[root])
    common = {"transactions": world.parts.transactions, "vault": world.services.vault, "log": world.services.log}
    for _ in range(2):
        with pytest.raises(SinkFailed):
            Feed(sink=Refusing(), **common).run(world.tenant.tenant_id, world.now)
    out = world.base / "lineage.jsonl"
    assert Feed(sink=FileSink(out), **common).run(world.tenant.tenant_id, world.now) == 1
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        assert session.exec(select(EntryRow.idx).where(col(EntryRow.kind) == Kind.COPY_ERASED.value)).first() is None


def test_whose_request_ended_as_the_duplicate_of_somebody_else_is_named_until_it_is_filed_again(world: Any) -> None:
    """Nobody worked on what the second person had asked for, and nobody was told, when the merge was undone."""
    world.note("1", "Ada")
    world.note("2", "Bob", owner=BOB)
    merge(world, ADA, BOB)
    received = world.now
    first, second = world.ask(ADA), world.ask(BOB)
    assert world.state(second) == "duplicate"
    due = world.reader.get(world.acting(), second)["due_at"]
    assert "warnings" not in world.reader.get(world.acting(), second)

    def told() -> int:
        with world.parts.transactions(world.tenant.tenant_id) as session:
            done = merging.split(
                session, world.services.vault, world.acting(), [parse_subject(BOB)], reason="twins", now=world.now
            )
            return tell_of_duplicates(session, world.parts, world.acting(), done.numbers, world.now)

    world.now += timedelta(days=3)
    assert told() == 1
    view = world.reader.get(world.acting(), second)
    assert (view["state"], view["history"][-1]["event"]) == ("duplicate", "left_alone")
    [warning] = view["warnings"]
    assert (warning["code"], warning["due_at"]) == ("left_alone", due)
    [listed] = world.reader.requests(world.acting(), state="duplicate")
    assert listed["warnings"] == [warning]

    def alarms() -> set[str]:
        late = world.now + timedelta(days=27)
        with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
            return {one.ref for one in near(session, world.tenant.tenant_id, late) if one.what == "answer"}

    assert alarms() == {first, second}
    again = world.ask(BOB, received_at=received.isoformat())
    view = world.reader.get(world.acting(), again)
    assert (view["state"], view["due_at"]) == ("verified", due), "the time runs from the day on which it came in"
    assert "warnings" not in world.reader.get(world.acting(), second)
    assert alarms() == {first, again}


def test_a_duplicate_of_what_was_cancelled_is_named_until_its_answer_is_noted(world: Any) -> None:
    world.note("1", "Ada")
    first = world.ask(ADA)
    second = world.ask(ADA)
    assert world.state(second) == "duplicate"
    world.desk.cancel(world.acting(), first, now=world.now)
    view = world.reader.get(world.acting(), second)
    assert view["history"][-1]["event"] == "left_alone"
    assert [line["code"] for line in view["warnings"]] == ["left_alone"]
    world.desk.notice(world.acting(), second, kind="answered", channel="phone", sent_at=world.now, now=world.now)
    assert "warnings" not in world.reader.get(world.acting(), second)


@pytest.mark.parametrize(("ground", "is_named"), [("identity_not_verified", True), ("excessive", False)])
def test_a_duplicate_of_what_a_stranger_sent_is_not_answered_by_that_refusal(
    world: Any, ground: str, *, is_named: bool
) -> None:
    # A hostile request that came first took the real one with it: refused as a stranger's, it answered both.
    world.note("1", "Ada")
    strangers = world.ask(ADA)
    real = world.ask(ADA)
    assert world.state(real) == "duplicate"
    world.desk.refuse(world.acting(), strangers, ground=ground, now=world.now)
    view = world.reader.get(world.acting(), real)
    assert [line["code"] for line in view.get("warnings", ())] == (["left_alone"] if is_named else [])
    assert (view["history"][-1]["event"] == "left_alone") is is_named
    again = world.ask(ADA)
    assert world.state(again) == "verified"
    assert "warnings" not in world.reader.get(world.acting(), real)


def test_names_that_nobody_verified_are_counted_until_the_approval_and_after(world: Any) -> None:
    # Of three names one was shown; the request was completed, and nowhere stood that two had been left out.
    world.note("1", "Ada")
    world.note("2", "Ada at work", owner="user:ada_2")
    spec = {"right": "erasure", "subjects": [ADA, "user:ada_2", "phone:+49301234567"], "regulation": "gdpr"}
    request = world.desk.create(world.acting(), spec, world.now)["id"]
    assert "warnings" not in world.reader.get(world.acting(), request)
    world.verify(request)
    [warning] = world.verify(request, "user:ada_2")["warnings"]
    assert (warning["code"], warning["detail"][:29]) == ("names_unverified", "1 of its 3 identifiers was no")
    world.plan(request)
    assert world.approve(request)["history"][-1]["detail"]["warned_of"] == [request]
    world.work()
    view = world.reader.get(world.acting(), request)
    assert (view["state"], view["identifiers"]) == ("completed", {"verified": 2, "of": 3})
    assert "warnings" not in view
    for language, words in (("en", "Names that were not shown to be yours"), ("de", "nicht als Ihre nachgewiesen")):
        letter = plain(write(world.parts, world.acting(), request, Asked(language=language), world.now))
        assert words in letter
        assert "- +49301234567" in letter, "the name is named, so that the person knows which"


def test_a_request_is_no_duplicate_while_a_name_of_it_is_not_verified(world: Any) -> None:
    # Planned with one of its two names, it ended as the duplicate of a request for that one; the other was never seen.
    world.note("1", "Ada")
    world.note("2", "Ada at work", owner="user:ada_2")
    first = world.ask(ADA)
    spec = {"right": "erasure", "subjects": [ADA, "user:ada_2"], "regulation": "gdpr"}
    request = world.desk.create(world.acting(), spec, world.now)["id"]
    assert world.verify(request)["state"] == "verified"
    with pytest.raises(IllegalMove, match=f"{first} asks for what was verified of it"):
        world.plan(request)
    assert world.state(request) == "verified"
    world.verify(request, "user:ada_2")
    world.plan(request)
    world.approve(request)
    world.work()
    assert sorted(world.copy_states(request).values()).count("erased_physical") == 2


def test_a_letter_is_in_the_language_of_its_country_whichever_code_names_it(world: Any) -> None:
    # Chile had German letters: its code begins like that of Switzerland.
    for jurisdiction, word in (
        ("CHL", "Dear Sir"),
        ("CH-ZH", "Sehr geehrte"),
        ("AUT", "Sehr geehrte"),
        ("US-CA", "Dear Sir"),
    ):
        request = world.ask(jurisdiction=jurisdiction)
        letter = plain(write(world.parts, world.acting(), request, Asked(), world.now))
        assert word in letter
        world.desk.cancel(world.acting(), request, now=world.now)


def test_an_answer_that_is_noted_before_anybody_worked_on_it_is_shown_as_that(world: Any) -> None:
    world.note("1", "Ada")
    request = world.ask(ADA)
    world.desk.notice(world.acting(), request, kind="answered", channel="phone", sent_at=world.now, now=world.now)
    [warning] = world.reader.get(world.acting(), request)["warnings"]
    assert (warning["code"], warning["state"]) == ("answered_unworked", "verified")
    world.plan(request)
    world.approve(request)
    assert "warnings" not in world.reader.get(world.acting(), request)
