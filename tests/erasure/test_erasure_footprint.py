"""What a request and a sweep knew goes in its time, stays under a hold, and leaves a skeleton that names nobody."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure import restrict
from erasure.deadlines import near
from erasure.footprint import ENDED, end_footprints
from erasure.history import load
from erasure.letters import Asked, write
from erasure.models import CopyRow, RequestRow, RequestSubject
from erasure.plan import instant_text
from erasure.planning import request_seal
from erasure.rendering.letter import plain
from erasure.sealed import REQUEST_CLASS
from erasure.unverified import refuse_unverified
from ledger.entry import Kind
from ledger.models import OutboxRow
from registry.models import Artifact
from retention.models import HoldRow, SweepRow
from tests.erasure.conftest import ADA, BOB
from vault.errors import KeyDestroyed
from vault.models import DataKey

MONTH = timedelta(days=30)


def end(world: Any) -> int:
    return end_footprints(world.parts, world.tenant.tenant_id, world.now)


def to_final(world: Any, request: str) -> None:
    world.now += timedelta(days=2)
    world.services.keks.turn(world.now, force=True)
    world.work()
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        assert load(session, world.tenant.tenant_id, request).details.get("final_issued")


def request_keys(session: Session, row: RequestRow) -> list[Any]:
    return list(session.exec(select(DataKey).where(DataKey.subject_id == row.request_no)))


def left(world: Any, request: str) -> dict[str, Any]:
    """What still holds or finds the person's words."""
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        row = load(session, world.tenant.tenant_id, request)
        copies = session.exec(select(CopyRow).where(CopyRow.owner == request, col(CopyRow.sealed).is_not(None)))
        names = session.exec(select(RequestSubject).where(RequestSubject.request_id == request))
        keys = [key for key in request_keys(session, row) if key.wrapped is not None]
        return {"said": row.sealed is not None, "copies": len(copies.all()), "names": len(names.all()),
                "keys": len(keys)}  # fmt: skip


NOTHING = {"said": False, "copies": 0, "names": 0, "keys": 0}


def test_the_words_go_thirty_days_after_the_final_certificate_and_not_before(world: Any) -> None:
    world.note("n1", "Ada wrote about her rash")
    request = world.erase()
    world.now += MONTH
    assert end(world) == 0, "an interim certificate ends nothing"
    to_final(world, request)
    world.now += MONTH - timedelta(hours=1)
    assert end(world) == 0
    assert left(world, request)["said"]
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        row = load(session, world.tenant.tenant_id, request)
        wrapped = request_keys(session, row)[0].wrapped
        sealed = [row.sealed, *(copy.sealed for copy in world.rows(request) if copy.sealed)]
    world.now += timedelta(hours=2)
    assert end(world) == 1
    assert left(world, request) == NOTHING
    assert end(world) == 0
    world.services.database.truncate_wal()
    files = b"".join(path.read_bytes() for path in (world.base / "data").rglob("*.db*"))
    assert not [one for one in (wrapped, *sealed) if one in files]
    with world.parts.transactions(world.tenant.tenant_id) as session:
        row = load(session, world.tenant.tenant_id, request)
        with pytest.raises(KeyDestroyed):
            world.parts.vault.key_for(session, world.tenant.tenant_id, row.request_no, REQUEST_CLASS, "0000-00")


@pytest.mark.parametrize("waits", ["for anybody", "for the person"])
def test_a_request_that_nobody_ever_verifies_is_refused_after_its_term_and_its_words_go(world: Any, waits: str) -> None:
    # It was kept sealed without an end: nothing was decided, so nothing was over.
    spec = {"right": "erasure", "subjects": [ADA], "regulation": "gdpr", "jurisdiction": "DE-BY",
            "timezone": "Europe/Berlin"}  # fmt: skip
    request = world.desk.create(world.acting(), spec, world.now)["id"]
    verified = world.ask(BOB)
    if waits == "for the person":
        world.desk.pause(world.acting(), request, reason="identity", now=world.now)
    tenant_id = world.tenant.tenant_id
    with world.parts.transactions(tenant_id, write=False) as session:
        over = load(session, tenant_id, request).due_at + world.parts.unverified_term
    world.now = over - timedelta(days=7)
    assert refuse_unverified(world.parts, world.acting(), world.now) == 0
    with world.parts.transactions(tenant_id, write=False) as session:
        named = near(session, tenant_id, world.now, unverified_term=world.parts.unverified_term)
    assert [(one.ref, one.days_left) for one in named if one.what == "unverified"] == [(request, 7)]
    world.now = over
    assert refuse_unverified(world.parts, world.acting(), world.now) == 1
    assert refuse_unverified(world.parts, world.acting(), world.now) == 0
    assert (world.state(request), world.state(verified)) == ("refused", "verified")
    told = world.reader.get(world.acting(), request)["history"][-1]
    assert (told["event"], told["actor"], told["detail"]["ground"]) == ("refused", "worker", "identity_not_verified")
    assert told["entry"] is not None
    named_first = world.reader.get(world.acting(), request)["history"][-2]
    assert (named_first["event"], named_first["detail"]["refused_at"]) == ("unverified_named", instant_text(over))
    assert "could not establish" in plain(write(world.parts, world.acting(), request, Asked(language="en"), world.now))
    with world.parts.transactions(tenant_id, write=False) as session:
        assert ("answer", request) in {(one.what, one.ref) for one in near(session, tenant_id, world.now)}
    assert end(world) == 0
    world.now += MONTH
    assert end(world) == 1
    assert left(world, request) == NOTHING


def test_a_request_long_past_its_term_is_named_for_a_week_before_it_is_refused(world: Any) -> None:
    # An upgrade, or a shorter term, refused what was older within the hour, and nobody had heard of it.
    spec = {"right": "erasure", "subjects": [ADA], "regulation": "gdpr", "jurisdiction": "DE-BY",
            "timezone": "Europe/Berlin"}  # fmt: skip
    request = world.desk.create(world.acting(), spec, world.now)["id"]
    tenant_id, term = world.tenant.tenant_id, world.parts.unverified_term
    world.now += timedelta(days=400)
    named_at = world.now
    for days in (0, 3, 6):
        world.now = named_at + timedelta(days=days)
        assert refuse_unverified(world.parts, world.acting(), world.now) == 0
        with world.parts.transactions(tenant_id, write=False) as session:
            named = near(session, tenant_id, world.now, unverified_term=term)
        assert [(one.ref, one.days_left) for one in named if one.what == "unverified"] == [(request, 7 - days)]
    events = [line["event"] for line in world.reader.get(world.acting(), request)["history"]]
    assert (world.state(request), events.count("unverified_named")) == ("received", 1)
    world.now = named_at + timedelta(days=7)
    assert refuse_unverified(world.parts, world.acting(), world.now) == 1
    assert world.state(request) == "refused"


@pytest.mark.scenario("C9")
def test_the_skeleton_stays_for_two_years_names_nobody_and_lists_every_copy_with_its_proof(world: Any) -> None:
    source = world.note("n1", "Ada wrote about her rash")
    world.file("ada.txt", "Ada's summary", subjects=(), sources=(source,))
    request = world.ask()
    world.plan(request)
    planned = {copy.ref for copy in world.rows(request)}
    world.approve(request)
    world.work()
    to_final(world, request)
    before = world.reader.certificate(world.acting(), request)
    world.now += timedelta(days=31)
    end(world)
    world.now += timedelta(days=730)
    end(world)
    view = world.reader.get(world.acting(), request)
    assert view["state"] == "completed"
    assert view["history"][-1]["event"] == "footprint_ended"
    assert "ada@" not in json.dumps(view).lower()  # random ids are hexadecimal and may hold «ada»
    assert world.reader.certificate(world.acting(), request) == before
    assert world.reader.search(world.acting(), "email:ada@example.org") == []
    copies = world.reader.copies(world.acting(), request)
    assert {copy.ref for copy in world.rows(request)} == planned
    assert len(copies) == len(planned)
    assert all(copy["verified_at"] and len(copy["evidence"]) == 2 for copy in copies)


def test_refused_cancelled_and_unmatched_requests_end_as_well(world: Any) -> None:
    nobody = world.ask("email:nobody@example.org")
    world.plan(nobody)
    refused, cancelled = world.ask("email:eve@example.org"), world.ask("email:mallory@example.org")
    world.desk.refuse(world.acting("ann"), refused, ground="excessive", now=world.now)
    world.desk.cancel(world.acting("ann"), cancelled, now=world.now)
    still_open = world.ask("email:trent@example.org")
    world.now += MONTH + timedelta(hours=1)
    assert end(world) == 3
    assert [left(world, one) for one in (nobody, refused, cancelled)] == [NOTHING] * 3
    assert left(world, still_open)["said"]


@pytest.mark.parametrize("selector", ["subjects", "data_classes"])
def test_a_legal_hold_keeps_the_words_until_it_is_released(world: Any, selector: str) -> None:
    world.note("n1", "Ada wrote about her rash")
    request = world.erase()
    to_final(world, request)
    world.now += timedelta(days=31)
    with world.parts.transactions(world.tenant.tenant_id) as session:
        people = load(session, world.tenant.tenant_id, request).subjects
        held: dict[str, Any] = {"subjects": people} if selector == "subjects" else {"data_classes": [REQUEST_CLASS]}
        blank: dict[str, Any] = {"subjects": [], "data_classes": [], "scopes": [], "artifacts": []}
        session.add(_hold(world, {**blank, **held}))
    assert end(world) == 0
    assert left(world, request)["said"]
    with world.parts.transactions(world.tenant.tenant_id) as session:
        for hold in session.exec(select(HoldRow)):
            hold.released_at = world.now
            session.add(hold)
    assert end(world) == 1
    assert left(world, request) == NOTHING


def test_a_hold_in_the_last_moment_keeps_the_words_and_the_record_says_that_nothing_went(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The announcement stood alone in the record, so a rebuild years later, the hold released, took it for done."""
    world.note("n1", "Ada wrote about her rash")
    request = world.erase()
    to_final(world, request)
    world.now += timedelta(days=31)
    say = world.parts.record.event

    def event(tenant_id: int, kind: Kind, body: dict[str, Any], now: datetime) -> str:
        entry_id = str(say(tenant_id, kind, body, now))
        if kind is Kind.KEY_DESTROYING:
            with world.parts.transactions(tenant_id) as session:
                people = load(session, tenant_id, request).subjects
                session.add(_hold(world, {"subjects": people, "data_classes": [], "scopes": [], "artifacts": []}))
        return entry_id

    with monkeypatch.context() as patch:
        patch.setattr(world.parts.record, "event", event)
        end(world)
    assert left(world, request)["said"]
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        told = session.exec(select(OutboxRow).where(OutboxRow.kind == Kind.KEY_DESTROYED)).all()
        last = max(told, key=lambda row: row.n)
    assert json.loads(last.body) == {"owner": request, "keys": []}


def _hold(world: Any, selectors: dict[str, Any]) -> HoldRow:
    return HoldRow(
        tenant_id=world.tenant.tenant_id,
        hold_id="hold_1",
        name="case",
        created_by="ann",
        created_at=world.now,
        **selectors,
    )


def test_what_was_held_goes_when_the_hold_ends_years_after_the_words(world: Any) -> None:
    # Without the words nobody knew whose row it was, so it waited for a human as if it were somebody else's.
    held = world.note("n1", "Ada wrote about her rash")
    world.file("a.txt", "Ada in a file")
    with world.parts.transactions(world.tenant.tenant_id) as session:
        row = session.exec(select(Artifact).where(Artifact.store == "db")).one()
        blank: dict[str, Any] = {"subjects": [], "data_classes": [], "scopes": []}
        session.add(_hold(world, {**blank, "artifacts": [row.id]}))
    request = world.erase()
    assert world.state(request) == "completed_with_retained"
    to_final(world, request)
    world.now += timedelta(days=700)
    assert end(world) == 1
    with world.parts.transactions(world.tenant.tenant_id) as session:
        session.exec(select(HoldRow)).one().released_at = world.now
    world.work()
    assert world.copy_states(request)[held] == "erased_physical"
    assert world.state(request) == "completed"


def test_a_late_copy_after_the_end_is_erased_and_the_new_certificate_repeats_the_commitments(world: Any) -> None:
    world.note("n1", "Ada wrote about her rash")
    request = world.erase()
    to_final(world, request)
    first = json.loads(world.reader.certificate(world.acting(), request))["certificate"]
    world.now += timedelta(days=31)
    end(world)
    source = world.rows(request)[0]
    assert source.sealed is None
    world.file("late.txt", "Ada again")
    world.work()
    states = world.copy_states(request)
    assert len(states) == len(first["copies"]) + 1
    assert world.state(request) == "completed", states
    assert not (world.files / "late.txt").exists()
    again = json.loads(world.reader.certificate(world.acting(), request))["certificate"]
    assert again["subject_commitments"] == first["subject_commitments"]
    to_final(world, request)
    assert left(world, request)["keys"] == 1, "what came later was sealed under a key of its own"
    world.now += timedelta(days=31)
    world.work(1)
    end(world)
    assert left(world, request)["keys"] == 0
    assert left(world, request)["copies"] == 0


def test_a_restriction_in_force_keeps_the_words_that_its_lifting_needs(world: Any) -> None:
    world.note("n1", "Ada wrote about her rash")
    request = world.ask(right="restriction")
    world.plan(request)
    world.approve(request)
    world.work()
    assert world.state(request) == "completed"
    world.now += timedelta(days=400)
    assert end(world) == 0
    with world.parts.transactions(world.tenant.tenant_id) as session:
        row = load(session, world.tenant.tenant_id, request)
        row.details = {**row.details, "lifting_told_at": "2026-06-01"}
        assert restrict.end(session, row, world.now) == 1
    assert end(world) == 1
    assert left(world, request) == NOTHING


class Killed(BaseException):
    """The process died here."""


@pytest.mark.parametrize("step", ["event", "mark", "rotate", "announce", "keep"])
def test_a_crash_at_any_step_reaches_the_same_end(world: Any, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    world.note("n1", "Ada wrote about her rash")
    request = world.erase()
    to_final(world, request)
    world.now += timedelta(days=31)
    places: dict[str, tuple[Any, str]] = {
        "event": (world.parts.record, "event"),
        "mark": (world.parts.vault, "mark_destroying"),
        "rotate": (world.parts.vault, "rotate_groups"),
        "announce": (world.parts.record, "announce"),
    }

    def die(*_: Any, **__: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        if step == "keep":
            world.change(keep_groups=die)
        else:
            patch.setattr(*places[step], die)
        with pytest.raises(Killed):
            end(world)
    world.change(keep_groups=world.services.journal.snapshot_groups)
    end(world)
    assert left(world, request) == NOTHING


def test_a_sweep_forgets_where_things_lay_a_day_after_it_ended(world: Any) -> None:
    from erasure.sweep_copies import Sweeps

    world.note("n1", "Ada wrote about her rash")
    world.now += timedelta(days=91)
    sweeps = Sweeps(world.parts)
    run = sweeps.start(world.acting("ann"), world.now)
    if run["state"] == "awaiting_approval":
        sweeps.approve(world.acting("carol"), run["id"], world.now)
    for _ in range(8):
        sweeps.run_due(world.tenant.tenant_id, world.now, worker="w")
        world.now += timedelta(minutes=1)
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        row = session.get(SweepRow, (world.tenant.tenant_id, run["id"]))
        assert row is not None
        assert row.state == "completed"
    assert [copy for copy in world.rows(run["id"]) if copy.sealed is not None]
    assert end(world) == 0
    world.now += timedelta(days=1)
    assert end(world) == 1
    assert [copy for copy in world.rows(run["id"]) if copy.sealed is not None] == []
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        keys = session.exec(select(DataKey).where(DataKey.scope == run["id"])).all()
        assert [key.wrapped for key in keys] == [None]


def test_what_somebody_adds_to_an_ended_request_goes_too(world: Any) -> None:
    world.note("n1", "Ada wrote about her rash")
    request = world.erase()
    to_final(world, request)
    world.now += timedelta(days=31)
    end(world)
    world.desk.notice(
        world.acting("ann"), request, kind="answered", channel="letter to Ada", sent_at=world.now, now=world.now
    )
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        row = load(session, world.tenant.tenant_id, request)
        assert ENDED in row.details
        assert "letter to Ada" in json.dumps(request_seal(session, world.parts, row).open("said", row.sealed))
    assert end(world) == 1
    assert left(world, request) == NOTHING


def test_one_statement_empties_all_captures_however_many(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        world.note(f"n{number}", f"Ada's note {number}")
    request = world.erase()
    to_final(world, request)
    world.now += timedelta(days=31)
    seen: list[str] = []
    watch: Callable[..., None] = lambda *given: seen.append(given[2])  # noqa: E731 - a listener
    sa.event.listen(world.services.database.engine, "before_cursor_execute", watch)
    end(world)
    sa.event.remove(world.services.database.engine, "before_cursor_execute", watch)
    assert sum(text.startswith("UPDATE copy") for text in seen) == 1
