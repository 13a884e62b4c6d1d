"""«Forget this»: what the person's own word reaches, what waits for a human, and crashes on the way."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlmodel import select

from erasure import report_check
from erasure.errors import InvalidRequest
from erasure.forget import THE_PERSON, Forgetting, heard_by
from erasure.models import CertificateRow, RequestRow
from registry import artifacts, memory_use
from registry.errors import InvalidDeclaration, NotAMemory

ADA = "email:ada@example.org"
BOB = "user:bob_7"
SECRET = "pigeon-wombat-5512"
DAY = timedelta(days=1)


class Memories:
    """Memories of one world."""

    def __init__(self, world: Any) -> None:
        self.world = world
        world.classes(
            {
                "memo": {"state": "memory"},
                "insight": {"state": "memory", "derived": {"default": "keep_if_other_sources"}},
                "manual": {"personal": False},
            }
        )

    def add(
        self,
        key: str,
        *,
        subjects: list[str] | None = None,
        sources: list[str] | None = None,
        data_class: str = "memo",
        principal: str = "writer",
        text: str = SECRET,
    ) -> dict[str, Any]:
        """A row of the store, registered by a principal; the result."""
        owner = (subjects or [ADA])[0]
        with sqlite3.connect(self.world.database_file) as db:
            db.execute("INSERT OR IGNORE INTO note VALUES (?, ?, ?)", (key, owner, text))
        item: dict[str, Any] = {
            "data_class": data_class,
            "store": "db",
            "locator": {"table": "note", "key": {"id": key}},
            "source_type": "stated",
        }
        item |= {"subjects": subjects} if subjects is not None else {}
        item |= {"sources": sources} if sources is not None else {}
        world = self.world
        with world.parts.transactions(world.tenant.tenant_id) as session:
            found: dict[str, Any] = artifacts.register(
                session, world.services.vault, world.acting(principal), [item], world.now
            )[0]
        return found

    def forget(self, memory: str, subject: str | None = None, principal: str = "writer") -> dict[str, Any]:
        world = self.world
        return Forgetting(world.parts).forget(
            world.acting(principal), memory, subject=subject, source_ref="m1", now=world.now
        )

    def verdicts(self, *names: str) -> dict[str, str]:
        world = self.world
        with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
            spec = {"subject": ADA, "purpose": "support", "artifacts": list(names)}
            lines = memory_use.resolve(session, world.services.vault, world.acting(), spec, world.now)
        return {line["artifact"]: line["verdict"] for line in lines}

    def rows(self) -> list[str]:
        """The keys left in the store."""
        with sqlite3.connect(self.world.database_file) as db:
            return [row[0] for row in db.execute("SELECT id FROM note ORDER BY id")]

    def requests(self) -> int:
        world = self.world
        with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
            return len(session.exec(select(RequestRow)).all())


@pytest.fixture
def memories(world: Any) -> Memories:
    return Memories(world)


def test_the_memory_and_its_cone_go_to_the_level_of_their_class_with_a_certificate(memories: Memories) -> None:
    world = memories.world
    root = memories.add("a", subjects=[ADA])["id"]
    below = memories.add("b", sources=[root])["id"]
    deeper = memories.add("c", sources=[below])["id"]
    other = memories.add("d", subjects=[ADA], text="something else")["id"]
    request = memories.forget(root)["request"]
    assert memories.verdicts(root, below, deeper, other) == {
        root: "erased", below: "erased", deeper: "erased", other: "usable",
    }  # fmt: skip
    world.work()
    assert world.state(request) == "completed"
    assert memories.rows() == ["d"]
    assert world.bytes_left(SECRET) == []
    body = world.reader.certificate(world.acting(), request)
    report_check.check(body, world.certificate_key, world.log_key)
    certificate = json.loads(body)["certificate"]
    assert certificate["approval"] == THE_PERSON
    assert (
        [line["by"] for line in certificate["approvals"]]
        == [heard_by(world.acting("writer"))]
        == ["subject through writer"]
    )
    assert {copy["id"] for copy in certificate["copies"]} == {root, below, deeper}
    assert [copy for copy in certificate["copies"] if copy["kind"] == "key"] == []
    world.now += 8 * DAY
    world.work(3)
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        versions = [row.version for row in session.exec(select(CertificateRow))]
    assert versions == ["interim", "final"]
    # Nobody was fenced: the next thing remembered about Ada is a memory like any other.
    again = memories.add("e", subjects=[ADA])
    assert again["status"] == "created"


def test_what_also_comes_from_elsewhere_stays_where_its_class_says_so(memories: Memories) -> None:
    root = memories.add("a", subjects=[ADA])["id"]
    other = memories.add("b", subjects=[ADA])["id"]
    both = memories.add("c", sources=[root, other], data_class="insight")["id"]
    only = memories.add("d", sources=[root], data_class="insight")["id"]
    memories.forget(root)
    memories.world.work()
    assert memories.rows() == ["b", "c"]
    assert memories.verdicts(only)[only] == "erased"
    assert both


def test_an_edge_that_another_token_adds_to_anothers_item_deletes_nothing(memories: Memories) -> None:
    world = memories.world
    theirs = memories.add("a", subjects=[ADA], principal="victim", text="likes tea, wombat-1")["id"]
    manual = memories.add("m", data_class="manual", principal="victim", text="how to make tea, wombat-2")["id"]
    bait = memories.add("b", subjects=[ADA], principal="mallory")["id"]
    # A repeat by another token may add sources, and that is all.
    assert memories.add("a", subjects=[ADA], sources=[bait], principal="mallory")["status"] == "exists"
    assert memories.add("m", sources=[bait], data_class="manual", principal="mallory")["status"] == "exists"
    view = memories.forget(bait, principal="mallory")
    assert view["waiting_for"] == {"awaiting_human": 2, "pending": 1}
    world.work()
    assert memories.rows() == ["a", "m"]
    assert world.copy_states(view["request"]) == {
        bait: "erased_physical", theirs: "awaiting_human", manual: "awaiting_human",
    }  # fmt: skip
    # What is plainly made from the bait alone goes with it, whoever registered it.
    lure = memories.add("x", subjects=[ADA], principal="agent")["id"]
    vector = memories.add("y", sources=[lure], principal="pipeline")["id"]
    memories.forget(lure, principal="agent")
    world.work()
    assert memories.verdicts(lure, vector) == {lure: "erased", vector: "erased"}
    assert memories.rows() == ["a", "m"]


def test_a_joint_memory_waits_and_a_human_settles_it(memories: Memories) -> None:
    world = memories.world
    joint = memories.add("a", subjects=[ADA, BOB])["id"]
    with pytest.raises(InvalidRequest, match="several"):
        memories.forget(joint)
    with pytest.raises(InvalidRequest, match="not about"):
        memories.forget(joint, subject="user:carl")
    view = memories.forget(joint, subject=ADA)
    world.work()
    assert world.copy_states(view["request"]) == {joint: "awaiting_human"}
    assert memories.verdicts(joint) == {joint: "quarantined"}
    world.desk.settle_copy(
        world.acting("ann"), view["request"], 1, outcome="retained", comment="Bob needs it", now=world.now
    )
    world.work()
    assert world.state(view["request"]) == "completed_with_retained"
    assert memories.rows() == ["a"]


def test_what_is_made_from_it_afterwards_joins_the_request(memories: Memories) -> None:
    world = memories.world
    root = memories.add("a", subjects=[ADA])["id"]
    request = memories.forget(root)["request"]
    late = memories.add("b", sources=[root])
    assert (late["status"], late["request"]) == ("erased", request)
    world.work()
    assert memories.rows() == []
    assert set(world.copy_states(request)) == {root, late["id"]}
    assert world.state(request) == "completed"


def test_the_same_call_again_finds_the_same_request_before_and_after(memories: Memories) -> None:
    root = memories.add("a", subjects=[ADA])["id"]
    first = memories.forget(root)["request"]
    assert memories.forget(root)["request"] == first
    memories.world.work()
    assert memories.forget(root) == {"request": first, "artifact": root, "status": "erased"}
    assert memories.requests() == 1


class Died(Exception):
    """The process ended here."""


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_a_crash_before_the_commit_leaves_no_request_and_the_next_call_makes_one(
    memories: Memories, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps 1 to 3 are the events that come first; 4 is the transaction itself."""
    world = memories.world
    root = memories.add("a", subjects=[ADA])["id"]
    record = world.services.record
    calls = 0

    def dying(real: Callable[..., str]) -> Callable[..., str]:
        def event(*args: Any) -> str:
            nonlocal calls
            done = real(*args)
            calls += 1
            if calls == step:
                raise Died
            return done

        return event

    with monkeypatch.context() as patch:
        patch.setattr(record, "event", dying(record.event))
        patch.setattr(record, "announce", dying(record.announce))
        with pytest.raises(Died):
            memories.forget(root)
    assert memories.requests() == 0
    assert memories.verdicts(root) == {root: "usable"}
    request = memories.forget(root)["request"]
    world.work()
    assert world.state(request) == "completed"
    body = world.reader.certificate(world.acting(), request)
    report_check.check(body, world.certificate_key, world.log_key)


def test_an_erasure_of_the_person_is_no_duplicate_and_takes_the_rest(memories: Memories) -> None:
    world = memories.world
    root = memories.add("a", subjects=[ADA])["id"]
    memories.add("b", subjects=[ADA])
    memories.forget(root)
    whole = world.erase(ADA)
    assert world.state(whole) == "completed"
    assert memories.rows() == []
    assert world.bytes_left(SECRET) == []


def test_only_memories_can_be_forgotten(memories: Memories) -> None:
    world = memories.world
    with pytest.raises(NotAMemory):
        memories.forget(world.note("n", "no memory"))


def test_a_reference_that_no_json_can_hold_is_refused_before_anything_is_said(memories: Memories) -> None:
    world = memories.world
    root = memories.add("a", subjects=[ADA])["id"]
    with pytest.raises(InvalidDeclaration, match="/source_ref"):
        Forgetting(world.parts).forget(world.acting("writer"), root, subject=None, source_ref="\ud800", now=world.now)
    assert memories.requests() == 0


def test_a_copy_that_goes_is_told_apart_from_those_of_the_same_person_that_stay(memories: Memories) -> None:
    """The person's name stands in both rows; the one that stays must not make the other look as if it were there."""
    world = memories.world
    gone = memories.add("a", subjects=[ADA])["id"]
    kept = memories.add("b", subjects=[ADA, BOB], sources=[gone], text="likes tea, wombat-3")["id"]
    view = memories.forget(gone)
    world.work()
    assert world.copy_states(view["request"]) == {gone: "erased_physical", kept: "awaiting_human"}
