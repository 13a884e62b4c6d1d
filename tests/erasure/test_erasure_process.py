"""What stores, people and crashes do to a request, over real parts."""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlmodel import Session, select

from connectors.errors import StoreUnreachable
from connectors.memory import Faults
from erasure import execute as execution
from erasure.errors import IllegalMove, ReportNotReady, SeparateDuties, StalePlan, TooLate
from erasure.execute import execute
from erasure.models import CopyRow
from erasure.planning import Planner
from erasure.report_check import check
from erasure.worker import advance, run_due
from ledger.entry import Kind
from registry import artifacts
from registry.models import Artifact, SubjectIdentifier, Tombstone
from retention.models import HoldRow, SweepRow
from tests.erasure.crashing import Crash, break_commit, count_commits
from vault.models import DataKey

TEXT = "Ada Lovelace wrote about her rash on Tuesday"


# ── stores that misbehave ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(Faults(keeps=frozenset({"a"})), id="claims and keeps"),
        pytest.param(Faults(soft_deletes=frozenset({"a"})), id="soft delete", marks=pytest.mark.scenario("A3")),
        pytest.param(Faults(search_returns=frozenset({"a"})), id="search answers", marks=pytest.mark.scenario("A4")),
        pytest.param(Faults(reclaim_does_nothing=True), id="reclaim lies", marks=pytest.mark.scenario("A13")),
        pytest.param(Faults(refuses=frozenset({"a"})), id="refuses", marks=pytest.mark.scenario("C4")),
        pytest.param(Faults(unreachable=True), id="unreachable", marks=pytest.mark.scenario("A10")),
        pytest.param(Faults(hangs=frozenset({"erase"})), id="erase hangs", marks=pytest.mark.scenario("D7")),
        pytest.param(Faults(hangs=frozenset({"verify"})), id="verify hangs"),
        pytest.param(Faults(hangs=frozenset({"reclaim"})), id="reclaim hangs"),
    ],
)
def test_a_store_that_lies_fails_or_hangs_never_lets_a_request_complete(world: Any, faults: Faults) -> None:
    world.change(store_seconds=0.05)
    world.memory_store("odd", faults)
    odd = world.keep_in_memory("odd", "a", TEXT)
    good = world.file("ada.txt", "Ada Lovelace in a file of her own")
    request = world.erase()
    assert world.state(request) == "partially_failed", world.reader.copies(world.acting(), request)
    states = world.copy_states(request)
    assert states[odd] in {"failed", "unreachable"}
    assert states[good] == "erased_physical"  # the others are not held up
    with pytest.raises(ReportNotReady):
        world.reader.certificate(world.acting(), request)


def test_after_the_store_is_repaired_a_retry_completes_the_request(world: Any) -> None:
    world.memory_store("odd", Faults(unreachable=True))
    world.keep_in_memory("odd", "a", TEXT)
    request = world.erase()
    assert world.state(request) == "partially_failed"
    world.faults.clear()
    world.desk.retry(world.acting("ann"), request, now=world.now)
    world.work()
    assert world.state(request) == "completed", world.reader.copies(world.acting(), request)


@pytest.mark.parametrize("faults", [Faults(fail_before=frozenset({1})), Faults(fail_after=frozenset({1}))])
def test_a_store_that_fails_around_its_commit_is_tried_again(world: Any, faults: Faults) -> None:
    world.memory_store("odd", faults)
    world.keep_in_memory("odd", "a", TEXT)
    request = world.ask()
    world.plan(request)
    world.approve(request)
    world.work(1)
    world.faults.clear()  # a new connector counts its calls anew
    world.work()
    assert world.state(request) == "completed"


def test_exceptions_are_accepted_by_a_second_person_and_printed(world: Any) -> None:
    world.memory_store("odd", Faults(unreachable=True))
    odd = world.keep_in_memory("odd", "a", TEXT)
    request = world.erase()
    for principal in ("ann", "carol"):
        with pytest.raises(SeparateDuties):
            world.desk.accept_exceptions(world.acting(principal), request, reason="vendor is gone", now=world.now)
    world.desk.accept_exceptions(world.acting("dan"), request, reason="vendor is gone", now=world.now)
    world.work()
    assert world.state(request) == "completed_with_exceptions"
    report = world.reader.certificate(world.acting(), request)
    check(report, world.certificate_key, world.log_key)
    assert odd.encode() in report
    assert b"vendor is gone" not in report


@pytest.mark.scenario("C1")
def test_a_copy_in_a_store_that_is_not_built_keeps_a_request_from_completing(world: Any) -> None:
    world.store("vectors", "qdrant", {"url": "http://127.0.0.1:1"})
    world.register(
        {
            "data_class": "note",
            "store": "vectors",
            "locator": {"collection": "c", "id": "1"},
            "subjects": ["email:ada@example.org"],
        }
    )
    request = world.erase()
    assert world.state(request) == "partially_failed"
    assert "not_covered" in world.copy_states(request).values()


def test_an_item_of_another_owner_waits_for_a_human_and_stays(world: Any) -> None:
    mine = world.note("n1", TEXT)
    with sqlite3.connect(world.database_file) as db:
        db.execute("UPDATE note SET owner = 'user:somebody_else'")
    request = world.erase()
    assert world.state(request) == "verifying"
    assert world.copy_states(request)[mine] == "awaiting_human"
    assert world.reader.get(world.acting(), request)["waiting_for"]["awaiting_human"] == 1
    with sqlite3.connect(world.database_file) as db:
        assert db.execute("SELECT count(*) FROM note").fetchone() == (1,)
        db.execute("DELETE FROM note")
        db.commit()
        db.execute("VACUUM")
    world.desk.settle_copy(world.acting("ann"), request, 1, outcome="erased", comment="by hand", now=world.now)
    world.work()
    assert world.state(request) in {"completed", "partially_failed"}


# ── holds, late copies, the quiet period ──────────────────────────────────────────────────────────────────────


def hold(world: Any, artifact: str) -> None:
    with world.parts.transactions(world.tenant.tenant_id) as session:
        row = session.exec(select(Artifact).where(Artifact.store == "cvs")).one()
        session.add(
            HoldRow(
                tenant_id=world.tenant.tenant_id,
                hold_id=f"hold_{artifact[-6:]}",
                name="case 7",
                artifacts=[row.id],
                created_by="dan",
                created_at=world.now,
            )
        )


def release(world: Any) -> None:
    with world.parts.transactions(world.tenant.tenant_id) as session:
        row = session.exec(select(HoldRow)).one()
        row.released_at = world.now
        session.add(row)


def test_a_held_copy_is_retained_and_goes_under_the_same_request_when_the_hold_ends(world: Any) -> None:
    world.note("n1", TEXT)
    held = world.file("ada.txt", "Ada Lovelace in a file of her own")
    hold(world, held)
    request = world.erase()
    assert world.state(request) == "completed_with_retained"
    assert world.copy_states(request)[held] == "retained"
    assert (world.files / "ada.txt").exists()
    check(world.reader.certificate(world.acting(), request), world.certificate_key, world.log_key)
    release(world)
    world.work()
    assert world.state(request) == "completed"
    assert not (world.files / "ada.txt").exists()
    check(world.reader.certificate(world.acting(), request), world.certificate_key, world.log_key)


def test_a_hold_placed_after_approval_still_wins(world: Any) -> None:
    held = world.file("ada.txt", "Ada Lovelace in a file of her own")
    request = world.ask()
    world.plan(request)
    world.approve(request)
    hold(world, held)
    world.work()
    assert (world.files / "ada.txt").exists()
    assert world.copy_states(request)[held] == "retained"
    assert world.state(request) == "completed_with_retained"


@pytest.mark.scenario("B6")
def test_a_late_copy_joins_the_request_that_closed_the_person(world: Any) -> None:
    world.note("n1", TEXT)
    request = world.erase()
    assert world.state(request) == "completed"
    (world.files / "late.txt").write_text("Ada Lovelace, written by a queue that was behind")
    item = {"data_class": "summary", "store": "cvs", "locator": {"path": "late.txt"}, "subjects": ["email:ada@example.org"]}  # fmt: skip  # noqa: E501
    with world.parts.transactions(world.tenant.tenant_id) as session:
        from registry import artifacts

        [result] = artifacts.register(session, world.services.vault, world.acting("writer"), [item], world.now)
    assert result["status"] == "erased"
    world.work()
    assert world.state(request) == "completed", world.reader.copies(world.acting(), request)
    assert not (world.files / "late.txt").exists()
    check(world.reader.certificate(world.acting(), request), world.certificate_key, world.log_key)


def test_what_is_said_about_a_fenced_person_is_not_kept(world: Any) -> None:
    world.say("my address is 12 Byron Lane, Nottingham")
    request = world.ask()
    world.plan(request)
    world.approve(request)
    assert world.say("and again, 12 Byron Lane") == "suppressed"
    world.work()
    assert world.state(request) == "completed"
    assert world.bytes_left("Byron Lane") == []


def test_the_final_certificate_comes_after_the_quiet_period_and_supersedes_the_interim_one(world: Any) -> None:
    world.note("n1", TEXT)
    request = world.erase()
    with pytest.raises(ReportNotReady) as refused:
        world.reader.certificate(world.acting(), request, "final")
    assert refused.value.due_at is not None
    world.now = refused.value.due_at
    world.services.keks.turn(world.now, force=True)
    world.work()
    final = world.reader.certificate(world.acting(), request, "final")
    check(final, world.certificate_key, world.log_key)
    assert b'"key":"final"' in final


@pytest.mark.parametrize("returns", [True, False])
def test_a_store_that_cannot_be_looked_at_again_gets_no_final_certificate(world: Any, returns: bool) -> None:
    # It got one that repeated the look of the interim certificate.
    store = world.memory_store("odd")
    world.keep_in_memory("odd", "k1", TEXT)
    world.note("n1", TEXT)
    request = world.erase()
    world.services.keks.turn(world.now + timedelta(days=2), force=True)
    world.now += timedelta(days=3)
    world.faults["odd"] = Faults(unreachable=True)
    world.work()
    view = world.reader.get(world.acting(), request)
    assert view["state"] == "completed"
    assert [line["detail"] for line in view["history"] if line["event"] == "look_waits"] == [{"stores": ["odd"]}]
    assert not [line for line in view["history"] if line["event"] == "certificate_final"]
    if returns:
        world.faults.clear()
        looked, world.now = world.now, world.now + timedelta(hours=2)
        world.work()
        final = json.loads(world.reader.certificate(world.acting(), request, "final"))["certificate"]
        assert min(line["verified_at"] for line in final["copies"]) > looked.strftime("%Y-%m-%dT%H")
        assert store.rows == {}
        return
    world.now += world.parts.agent_term
    world.work()
    assert world.state(request) == "partially_failed"
    assert "unreachable" in world.copy_states(request).values()
    world.faults.clear()
    world.desk.retry(world.acting(), request, now=world.now)
    world.work()
    assert world.state(request) == "completed"


@pytest.mark.scenario("B3")
def test_a_copy_that_returns_in_the_quiet_period_reopens_the_request(world: Any) -> None:
    world.memory_store("odd")
    world.keep_in_memory("odd", "a", TEXT)
    request = world.erase()
    assert world.state(request) == "completed"
    world.memory["odd"].put("a", TEXT.encode())  # read-repair brings it back
    world.now += timedelta(days=2)
    run_due(world.parts, world.tenant, world.now)
    assert world.state(request) == "executing"
    world.work()
    assert world.state(request) == "completed"
    assert "a" not in world.memory["odd"].rows


# ── people ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_duties_are_separate_by_principal_and_a_stale_hash_is_refused(world: Any) -> None:
    world.note("n1", TEXT)
    request = world.ask()
    world.verify(request, principal="bob")
    planned = world.plan(request)
    for principal in ("ann", "bob"):
        with pytest.raises(SeparateDuties):
            world.planner.approve(world.acting(principal), request, planned["plan_hash"], world.now)
    with pytest.raises(StalePlan):
        world.planner.approve(world.acting("carol"), request, "0" * 64, world.now)
    assert world.approve(request)["state"] == "approved"


def test_cancelling_lifts_the_fence_before_the_first_destructive_step_and_not_after(world: Any) -> None:
    world.note("n1", TEXT)
    first = world.ask()
    world.plan(first)
    world.approve(first)
    assert world.desk.cancel(world.acting("ann"), first, now=world.now)["state"] == "cancelled"
    assert world.say("I stay after all") == "stored"
    second = world.ask()
    world.plan(second)
    world.approve(second)
    execute(world.parts, world.tenant.tenant_id, second, world.now)
    with pytest.raises((TooLate, IllegalMove)):
        world.desk.cancel(world.acting("ann"), second, now=world.now)


def test_what_was_cancelled_while_its_worker_began_is_not_erased(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # The worker went on: it had looked at the state before, and never again.
    name = world.note("n1", TEXT)
    said = world.say_as("my address is 12 Byron Lane")
    request = world.ask()
    world.plan(request)
    world.approve(request)
    begin = execution._Execution.begin

    def begun(run: Any) -> bool:
        done = begin(run)
        world.desk.cancel(world.acting(), request, now=world.now)
        return done

    monkeypatch.setattr(execution._Execution, "begin", begun)
    run_due(world.parts, world.tenant, world.now)
    monkeypatch.undo()
    world.work()
    assert world.state(request) == "cancelled"
    assert world.text_of(said) == "my address is 12 Byron Lane"
    with sqlite3.connect(world.database_file) as db:
        assert db.execute("SELECT text FROM note").fetchall() == [(TEXT,)]
    assert world.say("and I stay") == "stored"
    assert set(world.copy_states(request).values()) == {"pending"}
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        assert artifacts.find_artifacts(session, world.tenant.tenant_id, [name])[name].status == "live"


def test_a_second_request_is_a_duplicate_only_once_it_is_verified(world: Any) -> None:
    world.note("n1", TEXT)
    first = world.ask()
    spec = {"right": "erasure", "subjects": ["email:ada@example.org"], "regulation": "gdpr"}
    second = world.desk.create(world.acting("eve"), spec, world.now)["id"]
    world.plan(first)
    assert world.state(first) == "planned"  # a hostile unverified one swallows nothing
    assert world.state(second) == "received"
    assert world.verify(second)["state"] == "duplicate"
    assert world.reader.get(world.acting(), second)["duplicate_of"] == first


@pytest.mark.scenario("D5")
def test_of_two_requests_the_one_that_was_planned_meanwhile_does_the_work(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both were planned, approved and certified: the stores are read between the look for rivals and the plan.
    world.note("n1", TEXT)
    spec = {"right": "erasure", "subjects": ["email:ada@example.org"], "regulation": "gdpr"}
    earlier, later = (world.desk.create(world.acting(), spec, world.now)["id"] for _ in range(2))
    world.verify(later)
    capture = Planner._capture

    def captured(planner: Planner, *given: Any) -> Any:
        monkeypatch.setattr(Planner, "_capture", capture)
        world.verify(earlier)
        assert world.plan(earlier)["state"] == "planned"
        return capture(planner, *given)

    monkeypatch.setattr(Planner, "_capture", captured)
    view = world.plan(later)
    assert (view["state"], view["duplicate_of"]) == ("duplicate", earlier)
    world.approve(earlier)
    world.work()
    assert (world.state(earlier), world.state(later)) == ("completed", "duplicate")


def test_whoever_is_first_seen_after_their_name_was_checked_is_in_the_plan(world: Any) -> None:
    # They ended as `no_match`, or their second name was left out, although their data was there.
    request = world.ask()
    name = world.note("n1", TEXT)
    assert world.plan(request)["state"] == "planned"
    assert name in world.copy_states(request)
    phone = "phone:+441234567"
    both = world.ask("user:dora", phone)
    world.note("d1", "dora's first", owner="user:dora")
    world.plan(both)
    second = world.note("d2", "dora's second", owner=phone)
    with pytest.raises(IllegalMove, match="seen first"):
        world.approve(both)
    world.plan(both)
    assert second in world.copy_states(both)
    for one in (request, both):
        world.approve(one)
    world.work()
    assert (world.state(request), world.state(both)) == ("completed", "completed")


def test_only_verified_identifiers_are_planned(world: Any) -> None:
    world.note("n1", TEXT)
    world.note("n2", "Bob likes sailing in the harbour", owner="user:bob_7")
    spec = {"right": "erasure", "subjects": ["email:ada@example.org", "user:bob_7"], "regulation": "gdpr"}
    request = world.desk.create(world.acting("ann"), spec, world.now)["id"]
    with pytest.raises(IllegalMove):
        world.plan(request)
    world.verify(request)
    world.plan(request)
    view = world.reader.plan_view(world.acting(), request)
    assert sum("artifact" in copy for copy in view["copies"]) == 1


def test_other_rights_are_received_with_the_dates_of_their_regulation(world: Any) -> None:
    world.note("n1", TEXT)
    spec = {"right": "access", "subjects": ["email:ada@example.org"], "regulation": "ccpa", "jurisdiction": "US-CA"}
    request = world.desk.create(world.acting("ann"), spec, world.now)
    assert request["acknowledge_by"] is not None
    world.verify(request["id"])
    assert world.plan(request["id"])["state"] == "planned"


def test_a_cancelled_erasure_frees_what_was_marked_and_what_came_late(world: Any) -> None:
    note = world.note("n1", TEXT)
    request = world.ask()
    world.plan(request)
    world.approve(request)
    late = world.note("n2", "Ada wrote once more")
    world.desk.cancel(world.acting(), request, now=world.now)
    assert world.state(request) == "cancelled"
    world.work(2)
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        rows = artifacts.find_artifacts(session, world.tenant.tenant_id, [note, late])
    assert {row.status for row in rows.values()} == {"live"}
    again = world.erase()
    assert world.state(again) == "completed"


@pytest.mark.scenario("D5")
def test_a_second_request_while_the_first_keeps_something_under_a_hold_is_its_duplicate(world: Any) -> None:
    held = world.file("ada.txt", "Ada Lovelace in a file of her own")
    hold(world, held)
    first = world.erase()
    assert world.state(first) == "completed_with_retained"
    second = world.ask()
    assert world.state(second) == "duplicate"
    release(world)
    world.work(4)
    assert world.state(first) == "completed"


def test_a_request_after_a_completed_erasure_to_which_a_late_copy_belongs_is_its_duplicate(world: Any) -> None:
    world.note("n1", TEXT)
    first = world.erase()
    assert world.state(first) == "completed"
    late = world.note("n2", "Ada is back in a queue")
    second = world.ask()
    world.plan(second)
    assert world.state(second) == "duplicate"
    world.work(4)
    assert world.state(first) == "completed"
    assert world.copy_states(first)[late] == "erased_physical"
    third = world.ask()
    world.plan(third)
    assert world.state(third) == "no_match"


def test_a_request_is_found_by_the_name_it_carries_and_shows_none(world: Any) -> None:
    request = world.ask(note="she called on Monday, her name is Ada")
    found = world.reader.search(world.acting(), "email:ADA@example.org")
    assert [line["id"] for line in found] == [request]
    assert re.search(r"\bada\b", str(found).lower()) is None
    assert world.bytes_left("called on Monday") == []


def test_an_addition_between_plan_and_fence_is_logged_and_another_kind_sends_the_plan_back(world: Any) -> None:
    world.note("n1", TEXT)
    request = world.ask()
    world.plan(request)
    world.note("n2", "Ada Lovelace wrote once more on Wednesday")
    assert world.approve(request)["state"] == "approved"
    world.work()
    assert world.state(request) == "completed"
    check(world.reader.certificate(world.acting(), request), world.certificate_key, world.log_key)

    world.note("n3", "Bob likes sailing in the harbour", owner="user:bob_7")
    other = world.ask("user:bob_7")
    world.plan(other)
    world.file("bob.txt", "Summary: Bob sails in the harbour", subjects=("user:bob_7",))
    with pytest.raises(StalePlan, match="summary in cvs"):
        world.approve(other)
    view = world.reader.get(world.acting(), other)
    assert (view["state"], view["plan_hash"]) == ("planned", None)


# ── the end state, and crashes on the way to it ───────────────────────────────────────────────────────────────


def test_after_completion_nothing_readable_of_the_person_is_in_the_registry(world: Any) -> None:
    artifact = world.note("n1", TEXT)
    request = world.erase()
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        row = session.exec(select(Artifact)).one()
        assert (row.status, row.sealed) == ("erased", None)
        assert all(line.sealed is None for line in session.exec(select(SubjectIdentifier)))
        assert session.exec(select(Tombstone)).one().request_id == request
        mine = [key for key in session.exec(select(DataKey)) if key.request == request]
        assert mine
        assert all(key.wrapped is None for key in mine)
    assert artifact in world.copy_states(request)


STEPS = ("begin", "close_keys", "destroy_record_keys", "bury", "destroy_identity", "rotate", "hand_over")


def fill(world: Any) -> str:
    source = world.note("n1", TEXT)
    world.file("ada.txt", "Summary: Ada Lovelace complains about a rash", subjects=(), sources=(source,))
    world.memory_store("odd")
    world.keep_in_memory("odd", "a", "Ada Lovelace in memory, quite long a text")
    world.say("my address is 12 Byron Lane, Nottingham")
    request = world.ask()
    world.plan(request)
    world.approve(request)
    return str(request)


@pytest.mark.scenario("D1")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_around_any_step_reaches_the_same_end(
    world: Any, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    request = fill(world)
    real = getattr(execution._Execution, step)

    def broken(self: Any) -> Any:
        if when == "after":
            real(self)
        raise Crash(step)

    with monkeypatch.context() as patch:
        patch.setattr(execution._Execution, step, broken)
        with pytest.raises(Crash):
            advance(world.parts, world.tenant, request, world.now)
    world.services.vault.evict_all()
    world.work()
    assert_erased(world, request)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_crash_at_any_commit_reaches_the_same_end(
    make_world: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, full_length: bool
) -> None:
    """Every transaction of a run fails once before its commit, and once after it."""
    whole = make_world("count")
    of_whole = fill(whole)
    commits = count_commits(monkeypatch, lambda: advance(whole.parts, whole.tenant, of_whole, whole.now))
    assert commits > 10
    numbers = range(1, commits + 1)
    for number in numbers if full_length else random.Random(7).sample(numbers, 3):
        for after in (False, True):
            world = make_world(f"crash-{number}-{after}")
            request = fill(world)
            with monkeypatch.context() as patch:
                break_commit(patch, number, after=after)
                with pytest.raises(Crash):
                    advance(world.parts, world.tenant, request, world.now)
            world.services.vault.evict_all()
            world.work(12)
            assert_erased(world, request)


def assert_erased(world: Any, request: str) -> None:
    assert world.state(request) == "completed", world.reader.copies(world.acting(), request)
    states = set(world.copy_states(request).values())
    assert states <= {"erased_physical", "already_absent", "key_destroyed"}
    assert not (world.files / "ada.txt").exists()
    assert world.memory["odd"].rows == {}
    assert world.bytes_left("Ada Lovelace", "Byron Lane", "ada@example.org") == []
    check(world.reader.certificate(world.acting(), request), world.certificate_key, world.log_key)


def test_a_dead_workers_lease_ends_and_another_goes_on(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    request = fill(world)
    with monkeypatch.context() as patch:
        patch.setattr("erasure.worker.carry", _raise)
        patch.setattr("erasure.leases.Lease.release", lambda *_: None)
        with pytest.raises(Crash):
            run_due(world.parts, world.tenant, world.now, worker="dead")
    assert run_due(world.parts, world.tenant, world.now, worker="other") == 0
    world.now += timedelta(seconds=16)
    run_due(world.parts, world.tenant, world.now, worker="other")
    world.work()
    assert world.state(request) == "completed"


def _raise(*_: Any, **_named: Any) -> None:
    raise Crash("carry")


# ── sweeps take the same road ─────────────────────────────────────────────────────────────────────────────────


def test_a_sweep_is_executed_and_confirmed_like_a_request(world: Any) -> None:
    from erasure import captures, history
    from erasure.confirm import confirm
    from erasure.plan import build
    from erasure.planning import wanted_of
    from erasure.selector import select_artifacts
    from erasure.work import load_work

    kept = world.file("bob.txt", "Summary: Bob sails in the harbour", subjects=("user:bob_7",))
    world.now += timedelta(days=60)
    tenant_id = world.tenant.tenant_id
    old = world.note("n1", TEXT)
    world.now += timedelta(days=45)
    with world.parts.transactions(tenant_id) as session:
        ids = [row.id for row in session.exec(select(Artifact))]
        plan = build(select_artifacts(session, tenant_id, ids, owner="sweep_1", claim=None, now=world.now))
        sweep = SweepRow(
            tenant_id=tenant_id, sweep_id="sweep_1", state="executing", at=world.now, created_by="system",
            created_at=world.now,
        )  # fmt: skip
        session.add(sweep)
    assert [copy.ref for copy in plan.copies] == [kept]
    found = captures.capture(world.parts, tenant_id, wanted_of(plan.copies))
    with world.parts.transactions(tenant_id) as session:
        seal = load_work(session, tenant_id, "sweep_1").seal(session, world.parts)
        history.put_copies(
            session, tenant_id, "sweep_1", plan.copies, {ref: seal.seal_capture(one, ref) for ref, one in found.items()}
        )
    assert execute(world.parts, tenant_id, "sweep_1", world.now).ready_to_confirm
    assert confirm(world.parts, tenant_id, "sweep_1", world.now).verified == 1
    assert not (world.files / "bob.txt").exists()
    with sqlite3.connect(world.database_file) as db:
        assert db.execute("SELECT id FROM note").fetchall() == [("n1",)]
    assert old


def test_events_of_an_erasure_name_nobody(world: Any) -> None:
    world.note("n1", TEXT)
    bodies: list[Any] = []
    real = world.services.record.event

    class Telling:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.services.record, name)

        def event(self, tenant_id: int, kind: Kind, body: Any, now: datetime) -> str:
            bodies.append(body)
            return str(real(tenant_id, kind, body, now))

        def announce(self, session: Session, tenant_id: int, kind: Kind, body: Any, now: datetime) -> str:
            bodies.append(body)
            return str(world.services.record.announce(session, tenant_id, kind, body, now))

    world.change(record=Telling())
    world.erase()
    assert len(bodies) > 5
    assert re.search(r"\bada\b", str(bodies).lower()) is None
    assert "n1" not in str(bodies)


def test_a_store_that_cannot_be_opened_is_not_fatal(world: Any) -> None:
    world.note("n1", TEXT)
    request = world.ask()
    world.plan(request)
    world.approve(request)
    real = world.parts.connect

    def closed(store: Any, read_only: bool) -> Any:
        if store.name == "db":
            raise StoreUnreachable("sql")
        return real(store, read_only)

    world.change(connect=closed)
    world.work()
    assert world.state(request) == "partially_failed"


@pytest.mark.scenario("D2")
@pytest.mark.parametrize("right", ["erasure", "access"])
def test_a_crash_while_a_plan_is_stored_leaves_none_and_the_next_one_is_executed_whole(world: Any, right: str) -> None:
    for number in range(4):
        world.note(f"n{number}", f"{TEXT} {number}")
    request = world.ask(right=right)
    sound = world.parts.transactions

    @contextmanager
    def crashing(tenant_id: int, *, write: bool = True) -> Iterator[Any]:
        with sound(tenant_id, write=write) as session:
            yield session
            if write and session.scalar(sa.select(sa.func.count()).select_from(CopyRow)):
                raise ConnectionResetError

    world.change(transactions=crashing)
    with pytest.raises(ConnectionResetError):
        world.plan(request)
    world.change(transactions=sound)
    assert world.state(request) == "verified"
    assert world.rows(request) == []
    world.plan(request)
    planned = set(world.copy_states(request))
    world.approve(request)
    world.work()
    assert world.state(request) == "completed"
    assert set(world.copy_states(request)) == planned
    assert len([name for name in planned if name.startswith("art_")]) == 4
