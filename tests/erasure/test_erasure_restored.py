"""A certificate that is issued after our own database was restored passes its check, however old the backup was."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select

from erasure.errors import IllegalMove, StalePlan
from erasure.recover import heal
from erasure.report_check import check
from erasure.sweep_copies import Sweeps
from ledger import actions
from ledger.actions import ActionState, Claim
from ledger.entry import uuid7
from ledger.errors import DatabaseWentBack
from ledger.retried import Retried
from registry import limited
from registry.identifiers import parse_subject
from registry.keyed import RowDigests
from registry.merging import propose_merge
from registry.models import Subject, SubjectIdentifier
from retention.consenting import record_consent, withdraw_consent
from retention.models import ConsentRow
from retention.sweep import Brakes
from tests.erasure.conftest import ADA

_SLOW = pytest.mark.slow


def shipped(world: Any) -> None:
    world.services.record.ship_outbox(world.tenant.tenant_id, world.now)
    world.services.journal.changed(world.tenant.tenant_id, world.now)


def copied(source: Path, target: Path) -> None:
    with sqlite3.connect(source) as old, sqlite3.connect(target) as new:
        old.backup(new)


def consent(world: Any, name: str, **more: Any) -> str:
    with world.parts.transactions(world.tenant.tenant_id) as session:
        spec = {"subject": ADA, "data_classes": [name], "words": "version 3", **more}
        given = record_consent(session, world.services.vault, world.parts.record, world.acting(), spec, world.now)
    return str(given["id"])


def swept(world: Any) -> set[str]:
    """What is still there of the person's notes after a pass."""
    sweeps = Sweeps(world.parts, brakes=Brakes(share=1.0, jump=timedelta(days=10_000)))
    sweeps.start(world.acting(), world.now)
    sweeps.run_due(world.tenant.tenant_id, world.now)
    with sqlite3.connect(world.database_file) as db:
        return {key for (key,) in db.execute("SELECT id FROM note")}


def test_a_consent_that_was_withdrawn_after_the_backup_is_withdrawn_and_a_new_one_is_in_force(world: Any) -> None:
    database, kept = world.base / "data" / "muniment.db", world.base / "yesterday.db"
    waits = {"state": "file", "retention": {"keep": "P0D", "from": "consent", "latest": "P2Y", "then": "erase"}}
    names = ("voice", "image", "place")
    world.classes(dict.fromkeys(names, waits))
    with sqlite3.connect(world.database_file) as db:
        db.executemany("INSERT INTO note VALUES (?, ?, ?)", [(name, ADA, f"a {name} of Ada") for name in names])
    world.register(
        *(
            {"data_class": name, "store": "db", "locator": {"table": "note", "key": {"id": name}}, "subjects": [ADA]}
            for name in names
        )
    )
    old = {name: consent(world, name) for name in ("voice", "image")}
    old["place"] = consent(world, "place", until=(world.now + timedelta(days=3)).isoformat())
    assert swept(world) == {"voice", "image", "place"}
    shipped(world)
    copied(database, kept)

    world.now += timedelta(days=2)
    with world.parts.transactions(world.tenant.tenant_id) as session:
        withdraw_consent(session, world.parts.record, world.acting(), old["voice"], at=world.now - timedelta(days=1),
                         now=world.now)  # fmt: skip
    scoped = consent(world, "image", scope={"role": "r1"})
    longer = consent(world, "place")
    shipped(world)
    world.services.database.engine.dispose()
    copied(kept, database)
    healed = heal(world.services.recovery, world.tenant, world.now)
    assert healed is not None
    assert f"1 consents that must be recorded again: {scoped}" in healed.lost
    assert f"1 words of consents, which are in force: {longer}" in healed.lost
    world.now += timedelta(days=2)
    assert swept(world) == {"image", "place"}, "one was withdrawn, one has a newer consent than the backup knew"
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        rows = {row.consent_id: row for row in session.exec(select(ConsentRow))}
    assert rows[old["voice"]].withdrawn_at == world.now - timedelta(days=3)
    assert rows.keys() == {*old.values(), longer}


def test_names_that_a_pass_ended_after_the_backup_are_gone_again_and_whoever_has_them_next_is_new(world: Any) -> None:
    database, kept = world.base / "data" / "muniment.db", world.base / "yesterday.db"
    world.change(keep_groups=world.services.erasure.keep_groups)
    world.note("n1", "Ada wrote this")
    world.now += timedelta(days=91)
    assert swept(world) == set()
    shipped(world)
    copied(database, kept)
    swept(world)
    shipped(world)
    world.services.database.engine.dispose()
    copied(kept, database)
    healed = heal(world.services.recovery, world.tenant, world.now)
    assert healed is not None
    assert (healed.faults, healed.destroyed) == ([], 1)
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        assert [row.state for row in session.exec(select(Subject))] == ["ended"]
        assert session.exec(select(SubjectIdentifier)).all() == []
    world.note("n2", "Ada is back")
    assert swept(world) == {"n2"}


@pytest.mark.scenario("L29")
def test_what_the_log_took_in_by_itself_before_the_recovery_is_applied_all_the_same(world: Any) -> None:
    """Whoever appends first after a failover indexes the missing batches; what they decided must not seem applied."""
    database, kept = world.base / "data" / "muniment.db", world.base / "yesterday.db"
    world.change(kek_grace=timedelta(days=7), keep_groups=world.services.erasure.keep_groups)
    world.note("n1", "Ada wrote this")
    entry = world.say_as("good morning from Ada")
    shipped(world)
    copied(database, kept)
    request = world.ask()
    world.plan(request)
    world.approve(request)
    world.work()
    shipped(world)
    world.services.database.engine.dispose()
    copied(kept, database)
    world.services.timeline.trust()
    with pytest.raises(DatabaseWentBack):
        world.services.log.publish(world.tenant.tenant_id, world.now)
    world.services.timeline.trust()
    with world.services.log.entered(world.tenant.tenant_id):
        assert not world.services.timeline.is_sound, "the record is to be applied before anything is worked on"
    healed = heal(replace(world.services.recovery, parts=world.parts), world.tenant, world.now)
    assert healed is not None
    assert list(healed.requests) == [request]
    world.work()
    assert world.state(request) == "completed"
    assert world.text_of(entry) is None
    assert heal(world.services.recovery, world.tenant, world.now) is None


@pytest.mark.scenario("B4")
@pytest.mark.parametrize(
    "when", [pytest.param("before", marks=_SLOW), "received", pytest.param("planned", marks=_SLOW), "replanned"]
)
def test_the_certificate_of_an_erasure_that_was_done_again_passes_its_own_check(world: Any, when: str) -> None:
    # It leaned on a plan, a fence and a number of copies that the restored rows did not have, or had of another plan.
    database, kept = world.base / "data" / "muniment.db", world.base / "yesterday.db"
    world.change(kek_grace=timedelta(days=7), keep_groups=world.services.erasure.keep_groups)
    note = world.note("n1", "Ada wrote this")
    world.file("s.txt", "a summary of Ada", subjects=(), sources=[note])
    world.say("good morning from Ada")

    def backup(moment: str) -> None:
        if when == moment:
            shipped(world)
            copied(database, kept)

    backup("before")
    request = world.ask()
    backup("received")
    world.plan(request)
    backup("planned")
    if when == "replanned":
        backup("replanned")
        world.file("t.txt", "more about Ada")
        world.plan(request)
    world.approve(request)
    world.work()
    first = world.reader.certificate(world.acting(), request)
    shipped(world)
    world.services.database.engine.dispose()
    copied(kept, database)

    healed = heal(replace(world.services.recovery, parts=world.parts), world.tenant, world.now)
    assert healed is not None
    assert list(healed.requests) == [request]
    world.work()
    assert world.state(request) == "completed"
    again = world.reader.certificate(world.acting(), request)
    assert again != first
    said = check(again, world.certificate_key, world.log_key)
    assert "left to do when the record was applied to a restored database" in said[-1]


@pytest.mark.scenario("B4")
def test_an_approval_that_was_refused_in_the_last_moment_erases_nobody_after_a_restore(world: Any) -> None:
    # Fence and approval were in the record before somebody had to say whose a name is, and nothing took them back.
    database, kept = world.base / "data" / "muniment.db", world.base / "yesterday.db"
    world.note("n1", "Ada wrote this")
    world.register({"data_class": "note", "store": "db", "locator": {"table": "note", "key": {"id": "n2"}},
                    "subjects": ["user:ada"]})  # fmt: skip
    request = world.ask()
    world.plan(request)
    shipped(world)
    copied(database, kept)
    with world.parts.transactions(world.tenant.tenant_id) as session:
        names = [parse_subject(text) for text in (ADA, "user:ada")]
        for principal in ("ann", "carol"):
            propose_merge(session, world.services.vault, world.acting(principal), names, reason="one", now=world.now)
    with pytest.raises(IllegalMove, match="merged"):
        world.approve(request)
    shipped(world)
    world.services.database.engine.dispose()
    copied(kept, database)
    healed = heal(replace(world.services.recovery, parts=world.parts), world.tenant, world.now)
    assert healed is not None
    assert healed.requests == {}
    world.work()
    assert world.state(request) == "planned"
    assert "n1" in swept(world)
    assert world.say("and Ada stays") == "stored"


@pytest.mark.scenario("B4")
def test_an_erasure_whose_plan_was_sent_back_before_is_done_again_after_a_restore(world: Any) -> None:
    # The end of the first fence came into the record behind the second one, and opened it.
    database, kept = world.base / "data" / "muniment.db", world.base / "yesterday.db"
    world.change(kek_grace=timedelta(days=7), keep_groups=world.services.erasure.keep_groups)
    world.note("n1", "Ada wrote this")
    request = world.ask()
    world.plan(request)
    shipped(world)
    copied(database, kept)
    world.file("s.txt", "of another kind")
    with pytest.raises(StalePlan):
        world.approve(request)
    world.plan(request)
    world.approve(request)
    world.work()
    assert world.state(request) == "completed"
    shipped(world)
    world.services.database.engine.dispose()
    copied(kept, database)
    healed = heal(replace(world.services.recovery, parts=world.parts), world.tenant, world.now)
    assert healed is not None
    assert list(healed.requests) == [request]
    assert world.say("late words of Ada") == "suppressed"


@pytest.mark.scenario("B4")
@pytest.mark.parametrize("ended", ["cancelled", "refused"])
def test_what_was_called_off_after_the_backup_is_not_carried_out_by_it(world: Any, ended: str) -> None:
    # The backup knew of the approval, or of the plan, and of nothing that came after it.
    database, kept = world.base / "data" / "muniment.db", world.base / "yesterday.db"
    world.note("n1", "Ada wrote this")
    entry = world.say_as("good morning from Ada")
    request = world.ask()
    world.plan(request)
    if ended == "cancelled":
        world.approve(request)
    shipped(world)
    copied(database, kept)
    if ended == "cancelled":
        world.desk.cancel(world.acting(), request, now=world.now)
    else:
        world.desk.refuse(world.acting(), request, ground="excessive", now=world.now)
    shipped(world)
    world.services.database.engine.dispose()
    copied(kept, database)
    healed = heal(replace(world.services.recovery, parts=world.parts), world.tenant, world.now)
    assert healed is not None
    assert healed.requests == {}
    world.work()
    assert world.state(request) == ended
    assert world.text_of(entry) == "good morning from Ada"
    assert world.say("and Ada stays") == "stored"
    with sqlite3.connect(world.database_file) as db:
        assert db.execute("SELECT id FROM note").fetchall() == [("n1",)]


@pytest.mark.scenario("B4")
def test_what_was_paused_after_the_backup_waits_until_it_is_resumed(world: Any) -> None:
    database, kept = world.base / "data" / "muniment.db", world.base / "yesterday.db"
    world.note("n1", "Ada wrote this")
    request = world.ask()
    world.plan(request)
    world.approve(request)
    shipped(world)
    copied(database, kept)
    world.desk.pause(world.acting(), request, reason="identity", now=world.now)
    shipped(world)
    world.services.database.engine.dispose()
    copied(kept, database)
    assert heal(replace(world.services.recovery, parts=world.parts), world.tenant, world.now) is not None
    world.work()
    assert world.state(request) == "approved"
    assert world.reader.get(world.acting(), request)["paused"]
    world.desk.resume(world.acting(), request, now=world.now)
    world.work()
    assert world.state(request) == "completed"


def test_an_action_that_had_failed_in_an_older_copy_is_not_safe_to_be_done_again(world: Any) -> None:
    """It was done after the backup, and the copy would have let an agent do it for the second time."""
    database, kept = world.base / "data" / "muniment.db", world.base / "yesterday.db"
    tenant, now, wait = world.tenant.tenant_id, world.now, timedelta(minutes=5)
    digests = RowDigests(world.services.vault, tenant)
    retried = Retried(hot=world.services.hot, log_id=world.tenant.log_id)
    done, failed, left = (bytes([number]) * 32 for number in range(3))

    def act(lookup: bytes, outcome: ActionState) -> None:
        wanted = Claim(lookup=lookup, kind="refund", owner="agent", digest=None, approval=None, lease=wait)
        with world.parts.transactions(tenant) as session:
            assert actions.claim(session, tenant, wanted, now, digests=digests, retried=retried)[1]
            actions.settle(session, tenant, lookup, outcome, lambda _row: None, now=now, digests=digests)

    act(done, ActionState.SUCCEEDED)
    act(failed, ActionState.FAILED)
    act(left, ActionState.FAILED)
    world.say_as("good morning from Ada")
    shipped(world)
    copied(database, kept)
    act(failed, ActionState.SUCCEEDED)
    world.say_as("good evening from Ada")
    shipped(world)
    world.services.database.engine.dispose()
    copied(kept, database)
    healed = heal(world.services.recovery, world.tenant, world.now)
    assert healed is not None
    assert "whether 1 actions that had failed were done since: ask their providers" in healed.lost
    with world.parts.transactions(tenant, write=False) as session:
        found = [actions.find(session, tenant, lookup, digests=digests) for lookup in (done, failed, left)]
    # What nobody claimed again stays as it was: so does everything that had failed, after a crash before a commit.
    states = [ActionState.SUCCEEDED, ActionState.UNKNOWN, ActionState.FAILED]
    assert [actions.state_at(row, now) for row in found] == states
    assert heal(world.services.recovery, world.tenant, world.now) is None


@pytest.mark.parametrize("done", [True, False])
def test_an_erasure_of_one_conversation_is_done_again_from_a_backup_that_did_not_know_it(
    world: Any, *, done: bool
) -> None:
    # How far it went stood in the lost rows only: it was named as lost, and to be filed again.
    database, kept = world.base / "data" / "muniment.db", world.base / "yesterday.db"
    world.change(kek_grace=timedelta(days=7), keep_groups=world.services.erasure.keep_groups)
    gone, stays = (world.say_as(f"said in {stream}", stream=stream) for stream in ("conv_1", "conv_2"))
    for name, conversation in (("in.txt", "conv_1"), ("out.txt", "conv_2")):
        (world.files / name).write_text(name)
        item = {"data_class": "summary", "store": "cvs", "locator": {"path": name}, "subjects": [ADA]}
        world.register({**item, "scope": {"conversation": conversation}})
    shipped(world)
    copied(database, kept)
    before = world.now
    world.now += timedelta(minutes=5)
    request = world.ask(scope={"conversation": "conv_1"})
    world.plan(request)
    world.approve(request)
    if done:
        world.work()
    shipped(world)
    world.services.database.engine.dispose()
    copied(kept, database)
    healed = heal(replace(world.services.recovery, parts=world.parts), world.tenant, world.now)
    assert healed is not None
    assert (healed.lost, list(healed.requests)) == ([], [request])
    world.work()
    assert world.state(request) == "completed"
    assert (world.text_of(gone), world.text_of(stays)) == (None, "said in conv_2")
    assert [path.name for path in world.files.iterdir()] == ["out.txt"]
    report = world.reader.certificate(world.acting(), request)
    assert json.loads(report)["certificate"]["scope"] == {"of": "conversation"}
    check(report, world.certificate_key, world.log_key)
    # Its fence stands again too: what was said before, and is sent late, stays out.
    assert [said_late(world, stream, before) for stream in ("conv_1", "conv_2")] == ["suppressed", "stored"]


def said_late(world: Any, stream: str, at: Any) -> str:
    entry = {
        "id": uuid7(world.now), "stream": stream, "kind": "turn.user", "at": at.isoformat(), "data_class": "transcript",
        "subjects": [ADA], "body": {"content": "late"},
    }  # fmt: skip
    result = world.services.record.append(world.acting("writer"), [json.dumps(entry).encode()], world.now)
    return str(result.results[0]["status"])


def test_to_which_conversation_an_erasure_was_limited_opens_for_its_persons_and_goes_with_them(world: Any) -> None:
    world.note("n1", "Ada wrote this")
    vault, tenant_id = world.parts.vault, world.tenant.tenant_id
    with world.parts.transactions(tenant_id) as session:
        people = [row.subject_no for row in session.exec(select(Subject))]
        sealed = limited.seal_scopes(session, vault, tenant_id, people, "req_1", ["ab", "cd"])
        assert limited.scopes_in(session, vault, tenant_id, people, "req_1", sealed) == ["ab", "cd"]
        for request, text in (("req_2", sealed), ("req_1", sealed[:-4]), ("req_1", "no base64!")):
            assert limited.scopes_in(session, vault, tenant_id, people, request, text) is None
    world.erase()
    with world.parts.transactions(tenant_id) as session:
        assert limited.scopes_in(session, vault, tenant_id, people, "req_1", sealed) is None
