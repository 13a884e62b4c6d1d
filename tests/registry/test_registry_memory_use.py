"""Memories against a real registry: what is loaded for a verdict, and what a write must show."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlmodel import Session, select

from ledger import actions
from ledger.actions import ActionState, Claim
from ledger.entry import uuid7
from ledger.memory_objects import MemoryStore
from ledger.models import ActionRow, EntryRow
from ledger.retried import Retried
from registry import artifacts, memory_log, memory_use, subjects
from registry.classes import STARTER_CLASSES, put_class
from registry.errors import Conflict, InvalidDeclaration, MalformedSubject, MemoryGone, NotAMemory, OutsideTokenScope
from registry.identifiers import parse_subject
from registry.keyed import Lookups, RowDigests
from registry.models import Artifact, MemoryChange, RestrictionRow
from registry.review_models import ReviewRow
from registry.value_schema import DIGEST

MEMORY = STARTER_CLASSES["memory"]
SCHEMA = {"type": "object", "required": ["topic"], "properties": {"topic": {"enum": ["seat", "receipt"]}}}


def classes(house: Any, **more: Any) -> None:
    """Declare a class `careful` with these fields beside the starter's."""
    with house.session() as session:
        put_class(session, house.alice, "careful", {**MEMORY, **more}, house.now)
        session.commit()


def ask(house: Any, acting: Any = None, now: datetime | None = None, **more: Any) -> list[dict[str, Any]]:
    spec = {"subject": "user:ada", "purpose": "support", **more}
    with house.session() as session:
        return memory_use.resolve(session, house.vault, acting or house.alice, spec, now or house.now)


def verdicts(house: Any, **more: Any) -> dict[str | None, str]:
    return {line["artifact"]: line["verdict"] for line in ask(house, **more)}


def record(house: Any, kind: str, *, idx: int) -> str:
    """An entry's row of the index, as the log writes it; its id."""
    entry_id = uuid7(house.now)
    with house.session() as session:
        session.add(
            EntryRow(
                tenant_id=house.alice.tenant_id, idx=idx, entry_id=UUID(entry_id).bytes, batch_first=0, stream_no=1,
                position=idx, kind=kind, data_class="transcript", class_version=1, at=house.now, received=house.now,
                digest=b"x" * 16,
            )
        )  # fmt: skip
        session.commit()
    return entry_id


def act(house: Any, action_id: str, outcome: ActionState | None) -> None:
    """Claim an action, and report its outcome where there is one."""
    tenant = house.alice.tenant_id
    lookup = Lookups(house.vault, tenant).of("action", action_id)
    with house.session() as session:
        wanted = Claim(
            lookup=lookup, kind="refund", owner="agent", digest=None, approval=None, lease=timedelta(minutes=5)
        )
        digests = RowDigests(house.vault, tenant)
        retried = Retried(hot=MemoryStore(lambda: house.now, locked=False), log_id="log")
        actions.claim(session, tenant, wanted, house.now, digests=digests, retried=retried)
        if outcome is not None:
            actions.settle(session, tenant, lookup, outcome, lambda _row: None, now=house.now, digests=digests)
        session.commit()


def test_a_memory_cites_a_turn_where_its_class_says_so(house: Any) -> None:
    classes(house, write={"cites_turn": True})
    turn, note = record(house, "turn.user", idx=1), record(house, "note", idx=2)
    results = house.register(
        [
            house.item(1, data_class="careful", sources=[f"entry:{turn}"]),
            house.item(2, data_class="careful", sources=[f"entry:{note}"]),
            house.item(3, data_class="careful"),
            house.item(4),
        ]
    )
    assert [result["status"] for result in results] == ["created", "rejected", "rejected", "created"]
    assert "cites a turn" in results[1]["problem"]["detail"]


def test_a_memory_follows_a_product_write_that_succeeded(house: Any) -> None:
    classes(house, write={"follows_action": True})
    for name, outcome in (("a1", ActionState.SUCCEEDED), ("a2", ActionState.FAILED), ("a3", None)):
        act(house, name, outcome)
    items = [
        house.item(number, data_class="careful", after_action=name)
        for number, name in enumerate(("a1", "a2", "a3", "never-claimed", None), start=1)
    ]
    results = house.register([*items, house.item(9, after_action="a2")])
    assert [result["status"] for result in results] == ["created", *["rejected"] * 5]
    assert results[1]["problem"]["type"] == "/problems/action-not-succeeded"
    assert results[4]["problem"]["errors"][0]["pointer"] == "/after_action"
    # The same write is fine once its outcome is known; the action's id lies sealed and finds its way into the origin.
    tenant = house.alice.tenant_id
    with house.session() as session:
        lookup = Lookups(house.vault, tenant).of("action", "a3")
        digests = RowDigests(house.vault, tenant)
        succeeded = ActionState.SUCCEEDED
        actions.settle(session, tenant, lookup, succeeded, lambda _row: None, now=house.now, digests=digests)
        session.commit()
    assert house.register([items[2]])[0]["status"] == "created"


def test_a_value_is_checked_against_its_class_and_never_kept(house: Any) -> None:
    classes(house, schema=SCHEMA)
    results = house.register(
        [
            house.item(1, data_class="careful", value={"topic": "seat", "wombat": "wombat-8"}),
            house.item(2, data_class="careful", value={"topic": "wombat-9"}),
            house.item(3, data_class="careful"),
            house.item(4, value={"topic": "seat"}),
        ]
    )
    assert [result["status"] for result in results] == ["created", "rejected", "rejected", "rejected"]
    assert "wombat" not in str(results)
    assert "/properties/topic/enum" in results[1]["problem"]["detail"]
    for path in house.folder.glob("muniment.db*"):
        assert b"wombat" not in path.read_bytes()
    with house.session() as session:
        assert session.exec(select(Artifact)).one().digest is not None


@pytest.mark.parametrize("odd", ["\ud800", "x" * 20_000])
def test_what_no_json_can_hold_is_refused_by_its_place(house: Any, odd: object) -> None:
    classes(house, schema={})
    [result] = house.register([house.item(1, data_class="careful", value=odd)])
    assert result["status"] == "rejected"
    assert result["problem"]["errors"][0]["pointer"] == "/value"
    house.register([house.item(2, id="art_a")])
    with house.session() as session:
        with pytest.raises(InvalidDeclaration, match="/observed"):
            memory_use.conflict(
                session, house.vault, house.alice, "art_a", product_ref="p", observed=odd, now=house.now
            )
        with pytest.raises(InvalidDeclaration, match="/source_ref"):
            memory_use.confirm(session, house.vault, house.alice, "art_a", source_ref="\ud800", now=house.now)


def test_a_summary_is_a_digest_with_sources(house: Any) -> None:
    with house.session() as session:
        put_class(session, house.alice, "digest", {**STARTER_CLASSES["summary"], "schema": DIGEST}, house.now)
        session.commit()
    turn = record(house, "turn.user", idx=1)
    value = {"goal": "g", "facts": [], "decisions": [], "open": [], "covers": [turn], "dropped": [], "pinned": []}
    item = house.item(1, data_class="digest", sources=[f"entry:{turn}"], value=value)
    prose = {**item, "locator": {"table": "m", "key": {"id": 2}}, "value": "The user wants a refund."}
    orphan = {**item, "locator": {"table": "m", "key": {"id": 3}}, "sources": []}
    assert [result["status"] for result in house.register([item, prose, orphan])] == ["created", "rejected", "rejected"]


def test_what_was_made_from_something_quarantined_is_not_usable_at_any_depth(house: Any) -> None:
    names = ["art_source", "art_middle", "art_leaf"]
    house.register(
        [
            house.item(1, id=names[0], data_class="summary", sources=[f"entry:{record(house, 'turn.user', idx=1)}"]),
            house.item(2, id=names[1], sources=[names[0]]),
            house.item(3, id=names[2], sources=[names[1]], source_type="explicit_user_statement"),
        ]
    )
    assert verdicts(house)["art_leaf"] == "usable"
    with house.session() as session:
        memory_use.change_status(
            session, house.vault, house.alice, "art_source", "quarantined", reason="wrong", now=house.now
        )
        session.commit()
    found = verdicts(house, artifacts=names)
    assert found == {"art_source": "quarantined", "art_middle": "quarantined", "art_leaf": "quarantined"}
    with house.session() as session:
        # Only memories have a change log.
        assert session.exec(select(MemoryChange)).all() == []


def limit_to(house: Any, **values: Any) -> None:
    """Change the one restriction there is."""
    with house.session() as session:
        limit = session.exec(select(RestrictionRow)).one()
        for name, value in values.items():
            setattr(limit, name, value)
        session.add(limit)
        session.commit()


def test_a_restriction_covers_all_or_its_classes_or_scopes(house: Any) -> None:
    classes(house)
    house.register([house.item(1, id="art_a", source_type="stated"), house.item(2, id="art_b", data_class="careful",
                                                                              source_type="stated")])  # fmt: skip
    tenant = house.alice.tenant_id
    with house.session() as session:
        [ada] = subjects.resolve(session, house.vault, house.alice, [parse_subject("user:ada")], house.now)
        limit = RestrictionRow(
            tenant_id=tenant, request_id="req_1", subject_no=ada, since=house.now, data_classes=["careful"]
        )
        session.add(limit)
        session.commit()
    assert verdicts(house) == {"art_a": "usable", "art_b": "restricted"}
    limit_to(house, data_classes=None)
    assert verdicts(house) == {"art_a": "restricted", "art_b": "restricted"}
    house.register([house.item(3, id="art_c", source_type="stated", scope={"conversation": "c1"})])
    limit_to(house, scopes=[Lookups(house.vault, tenant).scope("conversation", "c1").hex()])
    assert verdicts(house, scope={"conversation": "c1"}) == {
        "art_a": "usable",
        "art_b": "usable",
        "art_c": "restricted",
    }
    limit_to(house, ended_at=house.now)
    assert verdicts(house, scope={"conversation": "c1"})["art_c"] == "usable"


def test_a_fenced_person_has_no_memories_and_nothing_is_confirmed_for_them(house: Any) -> None:
    house.register([house.item(1, id="art_a", source_type="stated")])
    tenant = house.alice.tenant_id
    with house.session() as session:
        [ada] = subjects.resolve(session, house.vault, house.alice, [parse_subject("user:ada")], house.now)
        subjects.fence(session, tenant, [ada], "req_1", house.now)
        session.commit()
    assert verdicts(house) == {"art_a": "erased"}
    with house.session() as session, pytest.raises(MemoryGone) as gone:
        memory_use.confirm(session, house.vault, house.alice, "art_a", source_ref="m", now=house.now)
    assert gone.value.request_id == "req_1"


def test_a_token_sees_and_changes_only_memories_of_its_classes(house: Any) -> None:
    classes(house)
    house.register([house.item(1, id="art_a", source_type="stated"), house.item(2, id="art_b", data_class="careful",
                                                                              source_type="stated")])  # fmt: skip
    other = house.other_token(house.alice, classes=["careful"])
    assert [line["artifact"] for line in ask(house, other)] == ["art_b"]
    [line] = ask(house, other, artifacts=["art_a"])
    assert (line["artifact"], line["verdict"], line["source_type"]) == ("art_a", "out_of_scope", None)
    with house.session() as session, pytest.raises(OutsideTokenScope):
        memory_use.confirm(session, house.vault, other, "art_a", source_ref="m", now=house.now)


def test_another_tenants_memories_are_unknown(house: Any) -> None:
    house.register([house.item(1, id="art_a", source_type="stated")])
    bob = house.tenant("bob")
    assert ask(house, bob) == []
    [line] = ask(house, bob, artifacts=["art_a"])
    assert (line["artifact"], line["verdict"]) == (None, "out_of_scope")
    [line] = ask(house, bob, artifacts=[{"store": "app", "locator": {"table": "memories", "key": {"id": 1}}}])
    assert line["artifact"] is None


def test_bad_questions_are_refused_and_strange_names_are_out_of_scope(house: Any) -> None:
    house.register([house.item(1, id="art_a", source_type="stated")])
    for bad in ({"purpose": ""}, {"scope": ["c1"]}, {"artifacts": "art_a"}, {"colour": 1}):
        with pytest.raises(InvalidDeclaration):
            ask(house, **bad)
    with pytest.raises(MalformedSubject):
        ask(house, subject="nobody")
    odd: list[Any] = ["art_a", "x", "art_' OR 1=1", {"store": "app"}, {"store": 5, "locator": {}}, 7, None,
                      {"store": "app", "locator": {"path": "/etc"}}, {"store": "nowhere", "locator": {}}]  # fmt: skip
    found = ask(house, artifacts=odd)
    assert [line["verdict"] for line in found] == ["usable", *["out_of_scope"] * (len(odd) - 1)]


def test_a_faded_memory_is_confirmed_unless_its_class_has_ended_as_well(house: Any) -> None:
    house.register([house.item(1, id="art_a", confidence=0.21, observed_at=house.now, source_type="stated")])
    with house.session() as session:
        row = session.exec(select(Artifact)).one()
        assert row.ends_at is not None
        faded = row.ends_at
        view = artifacts.get_artifact(session, house.alice.tenant_id, "art_a")
        assert (view["ends_at"], view["rule"]) == (faded, "item_expiry"), "as a pass would call it"
    assert house.now < faded < house.now + timedelta(days=30)
    [line] = ask(house, now=faded)
    assert (line["verdict"], line["because"]) == ("expired", "confidence fell below 0.2")
    with house.session() as session:
        with pytest.raises(Conflict, match="ended"):
            memory_use.confirm(
                session, house.vault, house.alice, "art_a", source_ref="m", now=faded + timedelta(days=360)
            )
        memory_use.confirm(session, house.vault, house.alice, "art_a", source_ref="m", now=faded)
        session.commit()
    assert verdicts(house, now=faded + timedelta(days=1)) == {"art_a": "usable"}


def test_confirming_starts_the_decay_anew_and_ended_memories_stay_ended(house: Any) -> None:
    house.register([house.item(1, id="art_a", confidence=0.5, source_type="inferred", observed_at=house.now)])
    later = house.now + timedelta(days=90)
    with house.session() as session:
        view = memory_use.confirm(session, house.vault, house.alice, "art_a", source_ref="m1", now=later)
        assert view["confidence_now"] == 1.0
        session.commit()
        # Half a year's half-life takes full confidence below 0.2 after 418 days: by then its class has ended.
        assert session.exec(select(Artifact)).one().ends_at == house.now + timedelta(days=365)
    [line] = ask(house, now=later + timedelta(days=180))
    assert line["confidence_now"] == pytest.approx(0.5, abs=0.01)
    assert line["verdict"] == "reconfirm"
    with house.session() as session, pytest.raises(Conflict, match="ended"):
        memory_use.confirm(
            session, house.vault, house.alice, "art_a", source_ref="m2", now=house.now + timedelta(days=400)
        )


def test_only_memories_are_confirmed_and_erased_ones_are_gone(house: Any) -> None:
    turn = record(house, "turn.user", idx=1)
    house.register([house.item(1, id="art_s", data_class="summary", sources=[f"entry:{turn}"]),
                    house.item(2, id="art_m")])  # fmt: skip
    with house.session() as session:
        with pytest.raises(NotAMemory):
            memory_use.conflict(session, house.vault, house.alice, "art_s", product_ref="p", observed=1, now=house.now)
        with pytest.raises(NotAMemory):
            memory_use.changes(session, house.alice, "art_s")
        row = session.exec(select(Artifact).where(Artifact.given_id == "art_m")).one()
        row.status, row.request_id = "erasing", "req_9"
        session.add(row)
        session.flush()
        with pytest.raises(MemoryGone) as gone:
            memory_use.confirm(session, house.vault, house.alice, "art_m", source_ref="m", now=house.now)
        assert gone.value.request_id == "req_9"


def test_an_inference_over_a_statement_waits_for_a_human_even_from_its_own_token(house: Any) -> None:
    house.register([house.item(1, id="art_a", source_type="stated", digest="a" * 64)])
    [same] = house.register([house.item(1, id="art_a", source_type="stated", digest="a" * 64)])
    [newer] = house.register([house.item(1, id="art_a", source_type="inferred", digest="b" * 64)])
    [unnamed] = house.register([house.item(1, id="art_a", digest="c" * 64)])
    assert (same["status"], newer["status"], unnamed["status"]) == ("exists", "review", "review")
    with house.session() as session:
        assert session.exec(select(Artifact)).one().source_type == "stated"
        assert len(session.exec(select(ReviewRow)).all()) == 2
        assert session.exec(select(MemoryChange)).all() == []


class Deaf:
    """A record that takes nothing."""

    def append(self, *_: object) -> Any:
        raise ConnectionError("down")


def test_a_change_that_cannot_be_recorded_now_waits_with_its_ids(house: Any) -> None:
    house.register([house.item(1, id="art_a", source_type="stated")])
    with house.session() as session:
        view = memory_use.conflict(
            session, house.vault, house.alice, "art_a", product_ref="wombat-1", observed="wombat-2", now=house.now
        )
        session.commit()

    class Opens:
        def __call__(self, tenant_id: int, *, write: bool = True) -> Any:
            return Commits(house.session())

    with pytest.raises(ConnectionError):
        memory_log.ship(Deaf(), Opens(), house.vault, house.alice, house.now)
    with house.session() as session:
        waiting = session.exec(select(MemoryChange)).one()
        assert (waiting.recorded, waiting.entries) == (False, view["entries"])
    for path in house.folder.glob("muniment.db*"):
        assert b"wombat" not in path.read_bytes()


class Commits:
    """A session that commits at its end."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> Session:
        return self._session

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._session.commit()
        self._session.close()


def test_a_product_write_whose_row_was_changed_counts_for_nothing(house: Any) -> None:
    """Who could write to the database could make a refund that failed the ground of a memory."""
    classes(house, write={"follows_action": True})
    act(house, "refund/8", ActionState.FAILED)
    with house.session() as session:
        session.execute(sa.update(ActionRow).values(state=ActionState.SUCCEEDED.value))
        session.commit()
    (result,) = house.register([house.item(1, data_class="careful", after_action="refund/8")])
    assert result["problem"]["type"] == "/problems/action-not-succeeded", result
