"""Restriction and objection: kept and nothing else, against sweeps too, until lifted after the person was told."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest

from erasure.errors import IllegalMove, LiftingNotTold, UnknownGround
from erasure.standing import standing
from erasure.sweep_copies import Sweeps
from ledger.entry import Kind
from registry import restricted as restricted_rows
from registry import subjects
from registry.identifiers import parse_subject
from registry.merging import propose_merge, split
from registry.models import Subject
from registry.record import entry_row
from retention.decide import Restriction
from tests.erasure.conftest import ADA, BOB, World


def asked(world: World, right: str, person: str = ADA, **more: object) -> str:
    request = world.ask(person, **{"right": right, **more})
    world.plan(request)
    return request


def restricted(world: World, person: str = ADA, **more: object) -> str:
    request = asked(world, "restriction", person, **more)
    world.approve(request)
    world.work(1)
    return request


def in_force(world: World) -> tuple[Restriction, ...]:
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        return standing(session, world.tenant.tenant_id).restrictions


def marked(world: World, person: str = ADA) -> str | None:
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        number = subjects.find(session, world.services.vault, world.acting(), [parse_subject(person)])[person]
        return session.get_one(Subject, (world.tenant.tenant_id, number)).restricted_by


def tell(world: World, request: str) -> None:
    world.desk.notice(
        world.acting(), request, kind="restriction_lifting", channel="post", sent_at=world.now, now=world.now
    )


def sweep(world: World) -> None:
    sweeps = Sweeps(world.parts)
    sweeps.start(world.acting("system"), world.now)
    sweeps.run_due(world.tenant.tenant_id, world.now, worker="w")


def test_a_restriction_comes_into_force_with_approval_and_marks_the_person(world: World) -> None:
    note = world.note("n1", "text")
    request = asked(world, "restriction")
    assert in_force(world) == ()
    world.work(1)
    assert in_force(world) == ()
    world.approve(request)
    world.work(1)
    assert world.state(request) == "completed"
    assert [one.request_id for one in in_force(world)] == [request]
    assert marked(world) == request
    assert world.copy_states(request)[note] == "restricted"


def test_a_sweep_keeps_what_is_restricted_and_takes_the_rest(world: World) -> None:
    world.note("n1", "of ada")
    world.note("n2", "of bob", owner=BOB)
    world.say("of ada in the record")
    restricted(world)
    world.now += timedelta(days=200)
    sweep(world)
    assert world.bytes_left("of bob") == []
    assert world.bytes_left("of ada")


def test_a_restriction_of_one_class_restricts_that_class_only(world: World) -> None:
    world.note("n1", "a note of ada")
    world.file("cv.txt", "the cv of ada")
    restricted(world, scope={"data_classes": ["note"]})
    world.now += timedelta(days=200)
    sweep(world)
    assert world.bytes_left("a note of ada")
    assert world.bytes_left("the cv of ada") == []


def test_a_later_erasure_of_the_same_person_ends_it_and_that_of_another_does_not(world: World) -> None:
    shared = world.file("both.txt", "ada and bob", subjects=[ADA, BOB])
    restricted(world)
    world.now += timedelta(days=1)
    other = world.erase(BOB)
    assert world.state(other) == "completed_with_retained"
    assert world.copy_states(other)[shared] == "retained"
    own = world.erase(ADA)
    assert world.state(own) == "completed"
    assert world.bytes_left("ada and bob") == []


def test_it_is_lifted_only_after_the_person_was_told(world: World) -> None:
    world.note("n1", "of ada")
    request = restricted(world)
    with pytest.raises(LiftingNotTold):
        world.desk.lift(world.acting(), request, reason="verified", now=world.now)
    assert in_force(world)
    tell(world, request)
    view = world.desk.lift(world.acting(), request, reason="verified", now=world.now)
    assert view["history"][-1]["event"] == "restriction_lifted"
    assert in_force(world) == ()
    assert marked(world) is None
    with pytest.raises(IllegalMove, match="restricts nobody"):
        world.desk.lift(world.acting(), request, reason="again", now=world.now)
    world.now += timedelta(days=200)
    sweep(world)
    assert world.bytes_left("of ada") == []


def test_a_notice_of_lifting_where_nothing_is_restricted_is_refused(world: World) -> None:
    request = asked(world, "restriction")
    with pytest.raises(IllegalMove, match="restricts nobody"):
        tell(world, request)


def test_two_restrictions_are_lifted_one_by_one(world: World) -> None:
    world.note("n1", "text")
    first = restricted(world)
    second = restricted(world, scope={"data_classes": ["note"]})
    assert len(in_force(world)) == 2
    tell(world, first)
    world.desk.lift(world.acting(), first, reason="done", now=world.now)
    assert [one.request_id for one in in_force(world)] == [second]
    assert marked(world) == second


def test_an_objection_restricts_from_its_plan_until_it_is_decided(world: World) -> None:
    world.classes({"score": {"legal_basis": "legitimate interest"}})
    world.note("n1", "on contract")
    (world.files / "s.txt").write_text("score")
    score = world.register({"data_class": "score", "store": "cvs", "locator": {"path": "s.txt"}, "subjects": [ADA]})[0]
    request = asked(world, "objection")
    assert [one.request_id for one in in_force(world)] == [request]
    assert score in world.copy_states(request)
    assert len([name for name in world.copy_states(request) if name.startswith("art_")]) == 1
    with pytest.raises(IllegalMove, match="not decided"):
        world.desk.lift(world.acting(), request, reason="no", now=world.now)
    world.approve(request)
    world.work(1)
    assert world.state(request) == "completed"
    assert [one.request_id for one in in_force(world)] == [request]


def test_a_refused_objection_stays_restricted_until_the_person_was_told(world: World) -> None:
    world.note("n1", "text")
    request = asked(world, "objection")
    with pytest.raises(UnknownGround):
        world.desk.refuse(world.acting(), request, ground="because", now=world.now)
    world.desk.refuse(world.acting(), request, ground="compelling_grounds", now=world.now)
    assert in_force(world)
    with pytest.raises(LiftingNotTold):
        world.desk.lift(world.acting(), request, reason="refused", now=world.now)
    tell(world, request)
    world.desk.lift(world.acting(), request, reason="refused", now=world.now)
    assert in_force(world) == ()


def test_an_objection_that_was_withdrawn_ends_its_restriction_after_the_notice(world: World) -> None:
    world.note("n1", "text")
    request = asked(world, "objection")
    with pytest.raises(LiftingNotTold):
        world.desk.cancel(world.acting(), request, now=world.now)
    assert world.state(request) == "planned"
    tell(world, request)
    world.desk.cancel(world.acting(), request, now=world.now)
    assert in_force(world) == ()
    assert world.state(request) == "cancelled"


def test_setting_and_lifting_are_entries_of_the_record(world: World) -> None:
    world.note("n1", "text")
    request = restricted(world)
    tell(world, request)
    world.desk.lift(world.acting(), request, reason="done", now=world.now)
    world.services.record.ship_outbox(world.tenant.tenant_id, world.now)
    from sqlmodel import select

    from ledger.models import EntryRow

    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        kinds = list(session.exec(select(EntryRow.kind).order_by(EntryRow.idx)))  # type: ignore[arg-type]  # a column
    assert kinds.index(Kind.RESTRICTION_SET) < kinds.index(Kind.RESTRICTION_LIFTED)


def test_a_restored_database_is_told_of_its_restrictions_again_by_the_record(world: World) -> None:
    from sqlmodel import delete, select

    from ledger.models import EntryRow
    from registry.models import RestrictionRow

    world.note("n1", "text")
    request = restricted(world)
    with world.parts.transactions(world.tenant.tenant_id) as session:
        rows = session.exec(select(EntryRow).where(EntryRow.kind == Kind.RESTRICTION_SET.value)).all()
        assert world.parts.read is not None
        data = world.parts.read(session, world.tenant.tenant_id, rows)[0].parts[0].data
        body = json.loads(data or b"")
        session.exec(delete(RestrictionRow))
    assert (
        re.search(r"\bada\b", json.dumps({name: value for name, value in body.items() if name != "subjects"})) is None
    )
    assert in_force(world) == ()
    with world.parts.transactions(world.tenant.tenant_id) as session:
        assert restricted_rows.set_again(session, world.tenant.tenant_id, body, world.now) == 1
        assert restricted_rows.set_again(session, world.tenant.tenant_id, body, world.now) == 0
    assert [one.request_id for one in in_force(world)] == [request]
    assert marked(world) == request
    with world.parts.transactions(world.tenant.tenant_id) as session:
        assert restricted_rows.lifted_again(session, world.tenant.tenant_id, {"request": request}, world.now) == 1
    assert in_force(world) == ()


def test_a_restriction_holds_under_names_that_were_merged_since_and_not_under_those_told_apart(
    world: World,
) -> None:
    # Sweeps kept it, and everybody went on reading and using what lay under the other name.
    phone = "phone:+441234567"
    world.note("n1", "text")
    spoken = world.say_as("said on the telephone", subjects=(phone,), stream="call_1")
    request = restricted(world)
    names = [parse_subject(one) for one in (ADA, phone)]
    with world.parts.transactions(world.tenant.tenant_id) as session:
        for principal in ("ann", "carol"):
            propose_merge(session, world.services.vault, world.acting(principal), names, reason="one", now=world.now)
    assert (marked(world), marked(world, phone)) == (request, request)

    def closed() -> list[str]:
        with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
            row = entry_row(session, world.tenant.tenant_id, spoken)
            assert row is not None
            return list(restricted_rows.closed_entries(session, world.tenant.tenant_id, [row], "support").values())

    assert closed() == [request]
    with world.parts.transactions(world.tenant.tenant_id) as session:
        split(session, world.services.vault, world.acting(), names[1:], reason="not hers", now=world.now)
    assert (marked(world), marked(world, phone)) == (request, None)
    assert closed() == []
