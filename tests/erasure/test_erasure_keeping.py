"""Parts that must stay outlive their data key with keys of their own, and nothing else under it does."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlmodel import select

from api.verification import part_states
from erasure.report_check import check
from erasure.request_desk import RequestDesk
from erasure.sweep_copies import Sweeps
from erasure.worker import advance
from ledger.batches import batch_key
from ledger.entry import uuid7
from registry.errors import InvalidDeclaration
from registry.keeping import Derived
from retention.holds import ERASED_BEFORE, Holds
from retention.parts import part_ref
from tests.erasure.conftest import ADA, BOB, World
from tests.erasure.crashing import Crash, break_commit, count_commits
from vault.models import DataKey, PartKey


def holds(world: World) -> Holds:
    return Holds(
        vault=world.services.vault,
        record=world.services.record,
        transactions=world.parts.transactions,
        desk=RequestDesk(),
        approval="single",
    )


def hold(world: World, **selector: Any) -> str:
    spec = {"name": "matter 7", "matter": "a claim", "reason": "evidence", "selector": selector}
    return str(holds(world).place(world.acting(), spec, world.now)["id"])


def release(world: World, hold_id: str) -> None:
    holds(world).release(world.acting(), hold_id, preview=False, now=world.now)


def ten(world: World) -> list[str]:
    """Ten turns of one person's month, the fourth in a conversation of its own."""
    entries = [
        {
            "id": uuid7(world.now), "stream": "held" if number == 3 else "open", "kind": "turn.user",
            "at": world.now.isoformat(), "data_class": "transcript", "subjects": [ADA],
            "body": {"content": f"words number {number} of Ada"},
        }
        for number in range(10)
    ]  # fmt: skip
    sent = [json.dumps(entry).encode() for entry in entries]
    results = world.services.record.append(world.acting("writer"), sent, world.now).results
    assert {result["status"] for result in results} == {"stored"}
    return [str(entry["id"]) for entry in entries]


def erase(world: World, *subjects: str) -> str:
    request = world.ask(*subjects)
    world.plan(request)
    world.approve(request)
    world.work(3)
    return request


def keys_of(world: World) -> list[DataKey]:
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        rows = session.exec(select(DataKey).where(DataKey.data_class == "transcript", DataKey.subject_id != 0))
        return list(rows)


def part_rows(world: World) -> list[PartKey]:
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        return list(session.exec(select(PartKey)))


def part_of(world: World, request: str) -> dict[str, Any]:
    [line] = [copy for copy in world.reader.copies(world.acting(), request) if "entry" in copy]
    return dict(line)


def texts(world: World, entries: list[str]) -> list[str | None]:
    return [world.text_of(entry) for entry in entries]


# ── one of ten items under a hold ─────────────────────────────────────────────────────────────────────────────


def test_one_of_ten_items_under_a_hold_stays_readable_and_the_other_nine_do_not(world: World) -> None:
    entries = ten(world)
    hold_id = hold(world, scope={"conversation": "held"})
    request = world.ask()
    world.plan(request)
    planned = part_of(world, request)
    assert (planned["entry"], planned["action"], planned["rule"]) == (part_ref(entries[3], 0), "keep", "hold")
    world.approve(request)
    world.work(3)
    assert world.state(request) == "completed_with_retained"
    assert texts(world, entries) == [None] * 3 + ["words number 3 of Ada"] + [None] * 6
    gone = [world.read(entry).parts[0] for number, entry in enumerate(entries) if number != 3]
    assert {(part.state, part.destroyed.request if part.destroyed else None) for part in gone} == {("erased", request)}
    line = part_of(world, request)
    assert (line["entry"], line["state"], line["until"]) == (part_ref(entries[3], 0), "retained", None)
    [key] = keys_of(world)
    assert key.wrapped is None
    [row] = part_rows(world)
    assert (row.entry_id, row.ground, row.until) == (entries[3], f"hold:{hold_id}", None)
    certificate = world.reader.certificate(world.acting(), request)
    body = check(certificate, world.certificate_key, world.log_key)
    assert body is not None
    retained = {one["copy"]: one for one in certificate_of(certificate)["retained"]}
    assert retained[line["copy"]] == {"copy": line["copy"], "rule": "hold", "ground": [hold_id], "until": None}


def certificate_of(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body)["certificate"]
    return found


def test_a_hold_on_somebody_who_was_erased_says_that_it_reaches_nobody(world: World) -> None:
    # It said that it was in force. Whoever comes back is somebody new, whom it does not hold.
    world.say("I live in Lima")
    world.say("Bob lives in Rome", subjects=(BOB,))
    erase(world, ADA)
    spec = {"name": "n", "matter": "m", "reason": "r"}
    for people, keys in (([ADA], 0), ([ADA, BOB], 1)):
        placed = holds(world).place(world.acting(), {**spec, "selector": {"subjects": people}}, world.now)
        assert (placed["keys"] >= keys, placed["items"], placed["entries"]) == (True, 0, 0)
        assert placed["warning"] == ERASED_BEFORE.format(erased=1, people=len(people))
    assert "warning" not in holds(world).place(world.acting(), {**spec, "selector": {"subjects": [BOB]}}, world.now)


def test_a_hold_on_one_entry_keeps_that_entry_and_no_other(world: World) -> None:
    entries = [world.say_as(f"turn {number}") for number in range(3)]
    placed = holds(world).place(
        world.acting(),
        {"name": "m", "matter": "m", "reason": "r", "selector": {"entries": [entries[1]]}},
        world.now,
    )
    assert (placed["selector"]["entries"], placed["entries"]) == (1, 1)
    request = erase(world)
    assert world.state(request) == "completed_with_retained"
    assert texts(world, entries) == [None, "turn 1", None]
    with pytest.raises(InvalidDeclaration) as refused:
        hold(world, entries=[entries[0], "no entry"])
    assert [fault.pointer for fault in refused.value.faults] == ["/selector/entries/1"]


def test_the_held_part_goes_under_the_same_request_when_the_hold_ends(world: World) -> None:
    entries = ten(world)
    hold_id = hold(world, scope={"conversation": "held"})
    request = erase(world)
    world.work(3)
    assert world.state(request) == "completed_with_retained"
    preview = holds(world).release(world.acting(), hold_id, preview=True, now=world.now)
    [waiting] = preview["requests"]
    assert waiting["request"] == request
    assert part_ref(entries[3], 0) in str(waiting["copies"])
    release(world, hold_id)
    world.work(3)
    assert world.state(request) == "completed"
    assert texts(world, entries) == [None] * 10
    part = world.read(entries[3]).parts[0]
    assert part.destroyed is not None
    assert part.destroyed.request == request
    line = part_of(world, request)
    assert (line["state"], line["key_state"]) == ("key_destroyed", "destroyed")
    assert line["verified_at"] is not None
    assert len(line["evidence"]) == 2
    check(world.reader.certificate(world.acting(), request), world.certificate_key, world.log_key)


def test_no_byte_of_the_gone_keys_is_left_and_none_of_the_kept_one_lies_open(world: World) -> None:
    ten(world)
    world.services.database.truncate_wal()
    [key] = keys_of(world)
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        raw = world.services.vault.open_keys(session, world.tenant.tenant_id, [key.key_id])[key.key_id]
    wrapped = key.wrapped
    assert wrapped is not None
    assert found(world, wrapped), "the search finds what is there"
    hold_id = hold(world, scope={"conversation": "held"})
    erase(world)
    [row] = part_rows(world)
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        own = world.services.vault.open_part(session, world.tenant.tenant_id, row.entry_id, row.part)
    first = row.wrapped
    world.services.database.truncate_wal()
    assert found(world, raw) == found(world, own) == []
    assert found(world, wrapped, but=("hot",)) == []
    assert first is not None
    assert found(world, first)
    release(world, hold_id)
    world.work(3)
    [row] = part_rows(world)
    assert row.wrapped is None
    world.services.database.truncate_wal()
    assert found(world, own) == found(world, own[:32]) == []
    assert found(world, first, but=("hot",)) == []
    # What the unlocked store still holds is sealed, and wrapped under key-encryption keys that are gone.
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        names = [(row.entry_id, row.part)]
        assert world.services.vault.unopenable_since(session, world.tenant.tenant_id, [key.key_id], names) is not None


def found(world: World, needle: bytes, but: tuple[str, ...] = ()) -> list[str]:
    """The files that hold these bytes, but for folders of some names."""
    return [
        str(path.relative_to(world.base))
        for path in sorted(world.base.rglob("*"))
        if path.is_file() and not set(but) & set(path.relative_to(world.base).parts) and needle in path.read_bytes()
    ]


def test_a_hold_placed_after_approval_still_keeps_its_item(world: World) -> None:
    entries = ten(world)
    request = world.ask()
    world.plan(request)
    world.approve(request)
    hold(world, scope={"conversation": "held"})
    world.work(3)
    assert world.state(request) == "completed_with_retained"
    assert [number for number, text in enumerate(texts(world, entries)) if text is not None] == [3]
    line = part_of(world, request)
    assert (line["state"], line["rule"]) == ("retained", "hold")
    # The plan that was approved did not name it, so the record has an addition that does.
    check(world.reader.certificate(world.acting(), request), world.certificate_key, world.log_key)


def test_a_hold_that_comes_between_the_look_and_the_deletion_is_honoured(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = ten(world)
    request = world.ask()
    world.plan(request)
    world.approve(request)
    real = world.services.record.event
    placed: list[str] = []

    def event(tenant_id: int, kind: Any, body: Any, now: datetime) -> str:
        entry_id = real(tenant_id, kind, body, now)
        if kind.value == "key.destroying" and not placed:
            placed.append("about to be")
            placed.append(hold(world, scope={"conversation": "held"}))
        return entry_id

    monkeypatch.setattr(world.services.record, "event", event)
    world.work(3)
    assert len(placed) == 2
    assert world.state(request) == "completed_with_retained"
    assert [number for number, text in enumerate(texts(world, entries)) if text is not None] == [3]


def test_a_hold_that_ends_before_the_work_keeps_nothing(world: World) -> None:
    entries = ten(world)
    hold_id = hold(world, scope={"conversation": "held"})
    request = world.ask()
    world.plan(request)
    world.approve(request)
    release(world, hold_id)
    world.work(3)
    assert world.state(request) == "completed"
    assert texts(world, entries) == [None] * 10
    line = part_of(world, request)
    assert (line["state"], line["key_state"]) == ("key_destroyed", "destroyed")
    assert part_rows(world) == []


def test_a_key_all_of_whose_parts_are_held_stays_whole(world: World) -> None:
    entry = world.say_as("all of it is held", stream="held")
    hold_id = hold(world, scope={"conversation": "held"})
    request = erase(world)
    assert world.state(request) == "completed_with_retained"
    assert world.text_of(entry) == "all of it is held"
    assert part_rows(world) == []
    [key] = keys_of(world)
    assert key.wrapped is not None
    release(world, hold_id)
    world.work(3)
    assert world.state(request) == "completed"
    assert world.text_of(entry) is None


def test_a_part_that_cannot_be_read_keeps_its_key_and_the_request_says_why(world: World) -> None:
    entries = ten(world)
    hold_id = hold(world, scope={"conversation": "held"})
    request = world.ask()
    world.plan(request)
    world.approve(request)
    place = world.read(entries[3]).header.parts[0]
    [path] = (world.base / "data" / "objects").rglob(place.object.rsplit("/", 1)[-1])
    data = bytearray(path.read_bytes())
    data[place.offset] ^= 1
    path.chmod(0o600)
    path.write_bytes(bytes(data))
    world.work()
    assert world.state(request) == "partially_failed"
    [key] = [copy for copy in world.reader.copies(world.acting(), request) if copy.get("data_class") == "transcript"
             and "key" in copy]  # fmt: skip
    assert key["state"] == "failed"
    assert "a part that must stay cannot be kept: its stored bytes do not open" in key["detail"]
    assert world.text_of(entries[0]) == "words number 0 of Ada", "nothing is let go of on a guess"
    release(world, hold_id)
    world.now += timedelta(days=130)
    sweep(world)
    assert texts(world, entries) == [None] * 10, "retention does not wait for a request that failed"


# ── floors ────────────────────────────────────────────────────────────────────────────────────────────────────


def floored(covers: str) -> dict[str, Any]:
    return {
        "retention": {
            "keep": "P90D", "from": "created", "then": "erase",
            "floor": {"for": "P30D", "basis": "AI Act 26(6)", "covers": covers},
        }
    }  # fmt: skip


def test_what_a_floor_still_keeps_stays_to_its_own_day_and_the_rest_of_its_month_goes(world: World) -> None:
    world.classes({"duty": floored("content")})
    old = world.say_as("said on the first", data_class="duty")
    world.now += timedelta(days=20)
    young = world.say_as("said on the twenty-first", data_class="duty")
    received = world.read(young).header.received
    world.now += timedelta(days=15)
    request = erase(world)
    assert world.state(request) == "completed_with_retained"
    assert texts(world, [old, young]) == [None, "said on the twenty-first"]
    line = part_of(world, request)
    assert (line["entry"], line["rule"], line["state"]) == (part_ref(young, 0), "floor", "retained")
    assert datetime.fromisoformat(line["until"]) == received + timedelta(days=30)
    [row] = part_rows(world)
    assert (row.ground, row.until) == ("floor:AI Act 26(6)", received + timedelta(days=30))
    world.now = received + timedelta(days=30) - timedelta(minutes=1)
    world.work(1)
    assert world.text_of(young) == "said on the twenty-first"
    world.work(4)
    assert world.state(request) == "completed"
    assert texts(world, [old, young]) == [None, None]


def test_while_a_floor_keeps_all_of_a_month_its_key_stays_whole(world: World) -> None:
    world.classes({"duty": floored("content")})
    entry = world.say_as("under a duty", data_class="duty")
    request = erase(world)
    assert world.state(request) == "completed_with_retained"
    assert (world.text_of(entry), part_rows(world)) == ("under a duty", [])
    certificate = certificate_of(world.reader.certificate(world.acting(), request))
    assert {one["rule"] for one in certificate["retained"]} == {"floor"}


def test_a_floor_of_the_skeleton_keeps_no_content(world: World) -> None:
    world.classes({"duty": floored("skeleton")})
    entry = world.say_as("the content may go", data_class="duty")
    request = erase(world)
    assert world.state(request) == "completed"
    assert world.text_of(entry) is None
    # Only an open skeleton says that an entry's one part is called so.
    assert [(part.name, part.data_class) for part in world.read(entry).parts] == [("body", "duty")]


# ── joint parts ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_joint_part_takes_the_most_protective_decision_over_its_subjects(world: World) -> None:
    alone = world.say_as("Ada alone")
    both = world.say_as("Ada with Bob", subjects=(ADA, BOB))
    hold_id = hold(world, subjects=[BOB])
    request = erase(world, ADA)
    assert world.state(request) == "completed_with_retained"
    assert texts(world, [alone, both]) == [None, "Ada with Bob"]
    line = part_of(world, request)
    assert (line["entry"], line["rule"]) == (part_ref(both, 0), "hold")
    # The other person's own request goes as far: the hold is on them.
    theirs = erase(world, BOB)
    assert world.state(theirs) == "completed_with_retained"
    assert world.text_of(both) == "Ada with Bob"
    release(world, hold_id)
    world.work(2)
    # What was kept when the plans were approved is about somebody else too: a second person lets it go.
    for one in (request, theirs):
        waiting = [copy for copy in world.reader.copies(world.acting(), one) if copy["state"] == "awaiting_human"]
        assert {tuple(copy["collateral"]) for copy in waiting} <= {("subjects",), ("parts", "subjects")}
        assert part_of(world, one) in waiting
        for copy in waiting:
            settled = world.desk.settle_copy(
                world.acting("dave"), one, copy["copy"], outcome="erase", comment="seen", now=world.now
            )
            assert settled["state"] == "pending"
    world.work(3)
    assert (world.state(request), world.state(theirs)) == ("completed", "completed")
    assert texts(world, [alone, both]) == [None, None]


def test_a_joint_part_without_any_ground_to_stay_ends_with_the_first_of_its_keys(world: World) -> None:
    both = world.say_as("Ada with Bob", subjects=(ADA, BOB))
    request = erase(world, ADA)
    assert world.state(request) == "completed"
    assert world.text_of(both) is None
    assert part_rows(world) == []
    # It has ended: nothing can keep it for the other one any more, and that stands in nobody's way.
    hold(world, scope={"conversation": "conv_1"})
    assert world.state(erase(world, BOB)) in ("completed", "completed_with_retained")
    assert world.text_of(both) is None


# ── one conversation out of several ───────────────────────────────────────────────────────────────────────────


def limited(world: World, conversation: str) -> str:
    request = world.ask(ADA, scope={"conversation": conversation})
    world.plan(request)
    world.approve(request)
    world.work(3)
    return request


def test_each_conversation_goes_by_itself_and_answers_with_its_own_request(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("erasure.keeping.PAGE", 2)  # the six parts outside come in pages
    entries = {name: [world.say_as(f"{name} {n}", stream=name) for n in range(3)] for name in ("one", "two", "three")}
    requests = {name: limited(world, name) for name in ("one", "two")}
    assert {world.state(request) for request in requests.values()} == {"completed"}
    for name, request in requests.items():
        for entry in entries[name]:
            destroyed = world.read(entry).parts[0].destroyed
            assert destroyed is not None
            assert destroyed.request == request
    assert texts(world, entries["three"]) == ["three 0", "three 1", "three 2"]
    grounds = {row.ground for row in part_rows(world) if row.wrapped is not None}
    assert grounds == {f"not_in_scope:{requests['one']}"}
    whole = erase(world)
    assert world.state(whole) == "completed"
    assert texts(world, entries["three"]) == [None] * 3
    assert {row.request for row in part_rows(world)} == {requests["two"], whole}
    assert {row.wrapped for row in part_rows(world)} == {None}


def test_words_on_their_way_while_a_conversation_is_erased_are_sealed_under_the_next_key(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealed under the month's key before it is closed, and handed to the log after it is gone."""
    gone = world.say_as("the one", stream="one")
    world.say("the other", stream="two")
    request = world.ask(ADA, scope={"conversation": "one"})
    world.plan(request)
    world.approve(request)
    real = world.services.log.append
    once: list[int] = []

    def append(*given: Any, **named: Any) -> Any:
        if not once:
            once.append(1)
            world.work(4)
        return real(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(world.services.log, "append", append)
        entry = world.say_as("said meanwhile", stream="two")
    assert world.state(request) == "completed"
    assert world.text_of(entry) == "said meanwhile"
    assert world.text_of(gone) is None


def test_a_limited_erasure_that_cannot_keep_the_others_lets_nothing_go_and_retention_still_ends_the_key(
    world: World,
) -> None:
    one, two = world.say_as("the one", stream="one"), world.say_as("the other", stream="two")
    broken = world.parts
    world.change(
        part_keys=lambda _tenant_id, parts: Derived(faults={part.place: "its payload object is gone" for part in parts})
    )
    request = limited(world, "one")
    world.work(5)
    assert world.state(request) == "partially_failed"
    [key] = [copy for copy in world.reader.copies(world.acting(), request) if "key" in copy]
    assert (key["state"], key["detail"]) == (
        "failed",
        "a part that must stay cannot be kept: its payload object is gone",
    )
    assert texts(world, [one, two]) == ["the one", "the other"]
    assert world.say("sealed under the next key", stream="two") == "stored"
    world.parts = broken
    world.now += timedelta(days=130)
    sweep(world)
    assert texts(world, [one, two]) == [None, None]


def test_a_part_that_must_stay_in_a_damaged_batch_is_named_and_its_key_does_not_go(world: World) -> None:
    """The error of its batch once ended the work on the request, every time again, and no copy said why."""
    one, two, three = (world.say_as(f"the words of {name}", stream=name) for name in ("one", "two", "three"))
    first = world.read(two).row.batch_first
    path = world.base / "data" / "objects" / world.tenant.log_id / batch_key(first)
    whole = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(whole[:-1])
    request = limited(world, "one")
    world.work(5)
    path.write_bytes(whole)
    assert world.state(request) == "partially_failed"
    [key] = [copy for copy in world.reader.copies(world.acting(), request) if "key" in copy]
    assert key["state"] == "failed"
    assert key["detail"].startswith("a part that must stay cannot be kept: its header cannot be read: batch/")
    assert texts(world, [one, two, three]) == [f"the words of {name}" for name in ("one", "two", "three")]


def test_words_after_the_approval_stay_although_their_key_goes(world: World) -> None:
    before = world.say_as("before", data_class="decision")
    request = world.ask(ADA, scope={"data_classes": ["decision"]})
    world.plan(request)
    world.approve(request)
    world.now += timedelta(seconds=1)
    after = world.say_as("after", data_class="decision")
    world.work(3)
    assert world.state(request) == "completed"
    assert texts(world, [before, after]) == [None, "after"]


# ── retention ─────────────────────────────────────────────────────────────────────────────────────────────────


def sweep(world: World) -> dict[str, Any]:
    sweeps = Sweeps(world.parts)
    run = sweeps.start(world.acting(), world.now)
    if run["state"] == "awaiting_approval":
        sweeps.approve(world.acting("carol"), run["id"], world.now)
    for _ in range(4):
        sweeps.run_due(world.tenant.tenant_id, world.now)
        world.now += timedelta(minutes=1)
    return sweeps.report(world.acting(), run["id"])


def test_a_sweep_leaves_what_is_held_and_the_next_one_ends_it_after_the_hold(world: World) -> None:
    entries = ten(world)
    hold_id = hold(world, scope={"conversation": "held"})
    world.now += timedelta(days=130)
    first = sweep(world)
    assert first["state"] == "completed"
    assert texts(world, entries) == [None] * 3 + ["words number 3 of Ada"] + [None] * 6
    assert {part.state for part in world.read(entries[0]).parts} == {"expired"}
    assert first["counts"]["retained"] == 1
    world.now += timedelta(hours=2)
    second = sweep(world)
    assert (second["counts"]["ends"], second["alarm"]) == (0, None)
    assert second["kept"].get("hold") == 1
    release(world, hold_id)
    world.now += timedelta(hours=2)
    third = sweep(world)
    assert third["counts"]["removed"] == 1
    assert texts(world, entries) == [None] * 10
    assert {part.state for part in world.read(entries[3]).parts} == {"expired"}


def test_a_restricted_conversation_stays_stored_while_retention_ends_the_rest_of_its_key(world: World) -> None:
    stored, gone = world.say_as("kept for a claim", stream="one"), world.say_as("nobody needs it", stream="two")
    request = world.ask(ADA, right="restriction", scope={"conversation": "one"})
    world.plan(request)
    world.approve(request)
    world.work(2)
    world.now += timedelta(days=130)
    sweep(world)
    assert texts(world, [stored, gone]) == ["kept for a claim", None]
    [row] = part_rows(world)
    assert (row.entry_id, row.ground) == (stored, f"restriction:{request}")


def test_parts_that_a_limited_erasure_left_end_with_their_class_and_verify_says_who_ended_what(world: World) -> None:
    gone, left = world.say_as("one", stream="one"), world.say_as("two", stream="two")
    places = {name: (world.read(entry).row.idx, 0) for name, entry in (("gone", gone), ("left", left))}
    limited(world, "one")
    assert texts(world, [gone, left]) == [None, "two"]
    assert states(world, places) == {"gone": "erased", "left": None}
    world.now += timedelta(days=60)
    sweep(world)
    assert world.text_of(left) == "two"
    world.now += timedelta(days=70)
    sweep(world)
    assert world.text_of(left) is None
    assert [world.read(entry).parts[0].state for entry in (gone, left)] == ["erased", "expired"]
    assert states(world, places) == {"gone": "erased", "left": "expired"}


def states(world: World, places: dict[str, tuple[int, int]]) -> dict[str, str | None]:
    """What `muniment verify` is told of parts whose keys are gone."""
    look = part_states(lambda tenant_id: world.parts.transactions(tenant_id, write=False), world.tenant.tenant_id)
    found = look(0, 1_000_000)
    return {name: found.get(place) for name, place in places.items()}


# ── crashes ───────────────────────────────────────────────────────────────────────────────────────────────────


def prepared(world: World) -> tuple[str, list[str]]:
    entries = ten(world)
    hold(world, scope={"conversation": "held"})
    request = world.ask()
    world.plan(request)
    world.approve(request)
    return request, entries


def assert_one_stays(world: World, request: str, entries: list[str]) -> None:
    assert world.state(request) == "completed_with_retained", world.reader.copies(world.acting(), request)
    assert [number for number, text in enumerate(texts(world, entries)) if text is not None] == [3]
    assert len(part_rows(world)) == 1
    assert [key.wrapped for key in keys_of(world)] == [None]
    check(world.reader.certificate(world.acting(), request), world.certificate_key, world.log_key)


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.slow), "after"])
@pytest.mark.parametrize("port", ["part_keys", "keep_part_rows", "event"])
def test_a_crash_around_any_step_of_keeping_reaches_the_same_end(
    world: World, monkeypatch: pytest.MonkeyPatch, port: str, when: str
) -> None:
    request, entries = prepared(world)
    parts = world.parts
    real = world.services.record.event if port == "event" else getattr(parts, port)

    def broken(*given: Any) -> Any:
        if port == "event" and given[1].value not in ("part.kept", "key.destroying"):
            return real(*given)
        if when == "after":
            real(*given)
        raise Crash(port)

    with monkeypatch.context() as patch:
        if port == "event":
            patch.setattr(world.services.record, "event", broken)
        else:
            world.change(**{port: broken})
        with pytest.raises(Crash):
            advance(world.parts, world.tenant, request, world.now)
    world.parts = parts
    world.services.vault.evict_all()
    assert world.text_of(entries[3]) == "words number 3 of Ada"
    world.work(3)
    assert_one_stays(world, request, entries)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_crash_at_any_commit_keeps_exactly_the_held_part(
    make_world: Callable[[str], World], monkeypatch: pytest.MonkeyPatch, full_length: bool
) -> None:
    """Every transaction of a run fails once before its commit, and once after it."""
    whole = make_world("count")
    request, _ = prepared(whole)
    count = count_commits(monkeypatch, lambda: advance(whole.parts, whole.tenant, request, whole.now))
    assert count > 10
    for number in range(1, count + 1) if full_length else (6, 9):
        for after in (False, True):
            world = make_world(f"crash-{number}-{after}")
            request, entries = prepared(world)
            with monkeypatch.context() as patch:
                break_commit(patch, number, after=after)
                with pytest.raises(Crash):
                    advance(world.parts, world.tenant, request, world.now)
            world.services.vault.evict_all()
            assert world.text_of(entries[3]) == "words number 3 of Ada"
            world.work(12)
            assert_one_stays(world, request, entries)
