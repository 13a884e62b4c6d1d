"""What one token may change of an item that another token registered: nothing that ends it, before a human says so."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlmodel import col, select

from ledger.models import EntryRow
from registry import artifacts, classes, cones, limited, memory_use, repeat_reviews, subjects
from registry.errors import Conflict, OutsideTokenScope, SamePrincipalDecides, UnknownRegistrationReview
from registry.identifiers import parse_subject
from registry.keyed import Lookups
from registry.models import Artifact, ClaimedSource, Derivation
from registry.registration import MAX_VALUES
from registry.review_models import ReviewRow
from registry.sets import intern_set
from retention import decide, items
from retention.schedule import rules_of

ENTRY = "0198c0de-0000-7000-8000-000000000001"


def place(number: int) -> dict[str, Any]:
    return {"store": "app", "locator": {"table": "memories", "key": {"id": number}}}


def show(house: Any, public_id: str) -> dict[str, Any]:
    with house.session() as session:
        return artifacts.get_artifact(session, house.alice.tenant_id, public_id)


def fence(house: Any, text: str, request: str = "req_1") -> int:
    with house.session() as session:
        [number] = subjects.resolve(session, house.vault, house.alice, [parse_subject(text)], house.now)
        subjects.fence(session, house.alice.tenant_id, [number], request, house.now)
        session.commit()
    return int(number)


def bury(house: Any, public_id: str) -> None:
    with house.session() as session:
        row = artifacts.find_artifact(session, house.alice.tenant_id, public_id)
        artifacts.bury(session, house.alice.tenant_id, [row.id], "req_1", house.now)
        session.commit()


def entry_about(house: Any, text: str) -> str:
    with house.session() as session:
        numbers = subjects.resolve(session, house.vault, house.alice, [parse_subject(text)], house.now)
        session.add(
            EntryRow(
                tenant_id=house.alice.tenant_id, idx=7, entry_id=UUID(ENTRY).bytes, batch_first=0, stream_no=1,
                position=0, kind="turn.user", data_class="transcript", class_version=1,
                set_id=intern_set(session, house.alice.tenant_id, numbers, house.now), at=house.now,
                received=house.now, digest=b"",
            )
        )  # fmt: skip
        session.commit()
    return f"entry:{ENTRY}"


def ending_source(house: Any, kind: str) -> Any:
    """A source by which what is made from it goes at once; what names it."""
    if kind == "erased":
        [made] = house.register([house.item(90, subjects=["user:eve"])])
        bury(house, made["id"])
        return made["id"]
    if kind == "erased place":
        [made] = house.register([house.item(90, subjects=["user:eve"])])
        bury(house, made["id"])
        return place(90)
    if kind == "fenced person":
        [made] = house.register([house.item(90, subjects=["user:eve"])])
        fence(house, "user:eve")
        return made["id"]
    if kind == "turn of a fenced person":
        name = entry_about(house, "user:eve")
        fence(house, "user:eve")
        return name
    assert kind == "turn that a limited erasure took"
    name = entry_about(house, "user:eve")
    with house.session() as session:
        people = subjects.resolve(session, house.vault, house.alice, [parse_subject("user:eve")], house.now)
        limited.close(session, house.alice.tenant_id, people, "req_1", house.now + timedelta(hours=1),
                      data_classes=["transcript"], scopes=None)  # fmt: skip
        session.commit()
    return name


KINDS = ["erased", "erased place", "fenced person", "turn of a fenced person", "turn that a limited erasure took"]


def waiting(house: Any) -> list[dict[str, Any]]:
    with house.session() as session:
        found, _ = repeat_reviews.reviews(session, house.alice.tenant_id)
    return found


def decide_it(house: Any, acting: Any, review: str, decision: str) -> dict[str, Any]:
    with house.session() as session:
        found = repeat_reviews.decide_review(
            session, house.vault, acting, review, decision, reason="looked at both", now=house.now
        )
        session.commit()
    return found


# A late source is an item or an entry: at an erased place nothing lies any more that could be one.
@pytest.mark.parametrize(
    ("kind", "by"),
    [
        (kind, by)
        for kind in KINDS
        for by in ("repeat", "late source", "chain in one batch")
        if (kind, by) != ("erased place", "late source")
    ],
)
def test_no_source_that_another_token_names_ends_an_item(house: Any, kind: str, by: str) -> None:
    other = house.other_token(house.alice)
    mine, below = house.register([house.item(1), house.item(2, subjects=None, sources=[place(1)])])
    source = ending_source(house, kind)
    before = show(house, mine["id"])
    if by == "repeat":
        [result] = house.register([house.item(1, sources=[source])], other)
        assert (result["status"], result["id"]) == ("review", mine["id"])
    elif by == "chain in one batch":
        between, result = house.register(
            [house.item(50, subjects=["user:x"], sources=[source]), house.item(1, sources=[place(50)])], other
        )
        assert (between["status"], result["status"]) == ("erased", "review")
    else:
        with house.session() as session:
            shown = artifacts.add_sources(session, house.vault, other, mine["id"], [source], now=house.now)
            session.commit()
        assert shown["review"] == [source]
    assert show(house, mine["id"]) == before
    assert show(house, below["id"])["status"] == "live"
    [review] = waiting(house)
    assert (review["artifact"], review["asked_by"], review["decision"]) == (mine["id"], ["other-agent"], None)
    assert review["wanted"]["request"] == "req_1"
    with house.session() as session:
        assert {one.request_id for one in artifacts.late_copies(session, house.alice.tenant_id)} <= {"req_1"}
        numbers = {one.artifact_id for one in artifacts.late_copies(session, house.alice.tenant_id)}
        assert int(mine["id"][4:], 16) not in numbers


@pytest.mark.parametrize("kind", KINDS)
def test_the_items_own_token_may_say_so(house: Any, kind: str) -> None:
    [mine] = house.register([house.item(1)])
    source = ending_source(house, kind)
    [result] = house.register([house.item(1, sources=[source])])
    assert (result["status"], result["request"]) == ("erased", "req_1")
    assert show(house, mine["id"])["status"] == "erasing"


def test_harmless_sources_of_the_same_repeat_are_added(house: Any) -> None:
    other = house.other_token(house.alice)
    mine, good = house.register([house.item(1), house.item(3, subjects=["user:bea"])])
    source = ending_source(house, "fenced person")
    [result] = house.register([house.item(1, sources=[source, good["id"]])], other)
    shown = show(house, mine["id"])
    assert (result["status"], shown["sources"], len(shown["subjects"])) == ("review", [good["id"]], 2)


def test_a_repeat_that_says_nothing_new_of_a_fenced_persons_item_marks_nothing(house: Any) -> None:
    other = house.other_token(house.alice)
    [mine] = house.register([house.item(1)])
    fence(house, "user:ada")
    [result] = house.register([house.item(1)], other)
    assert (result["status"], show(house, mine["id"])["status"], waiting(house)) == ("exists", "live", [])
    [own] = house.register([house.item(1)])
    assert (own["status"], show(house, mine["id"])["status"]) == ("erased", "erasing")


def test_an_accepted_source_ends_the_item_under_the_request_behind_it(house: Any) -> None:
    other = house.other_token(house.alice)
    mine, below = house.register([house.item(1), house.item(2, subjects=None, sources=[place(1)])])
    source = ending_source(house, "fenced person")
    house.register([house.item(1, sources=[source])], other)
    house.register([house.item(1, sources=[source])], other)
    [review] = waiting(house)
    with pytest.raises(SamePrincipalDecides):
        decide_it(house, other, review["id"], "accept")
    found = decide_it(house, house.alice, review["id"], "accept")
    assert (found["decision"], found["decided_by"], found["wanted"]["sources"]) == (
        "accepted", "alice-agent", [source],
    )  # fmt: skip
    for one in (mine, below):
        assert (show(house, one["id"])["status"], show(house, one["id"])["request"]) == ("erasing", "req_1")
    assert waiting(house) == []
    with pytest.raises(Conflict):
        decide_it(house, house.alice, review["id"], "refuse")
    with house.session() as session:
        assert b"looked at both" not in session.execute(sa.select(col(ReviewRow.sealed))).scalar_one()


def test_a_refused_source_leaves_nothing(house: Any) -> None:
    other = house.other_token(house.alice)
    [mine] = house.register([house.item(1)])
    source = ending_source(house, "erased")
    house.register([house.item(1, sources=[source])], other)
    [review] = waiting(house)
    assert decide_it(house, house.alice, review["id"], "refuse")["decision"] == "refused"
    shown = show(house, mine["id"])
    assert (shown["status"], shown["sources"]) == ("live", [])


def test_an_accepted_change_of_people_class_and_end_is_made(house: Any) -> None:
    other = house.other_token(house.alice)
    [mine] = house.register([house.item(1)])
    end = house.now + timedelta(days=3)
    [result] = house.register(
        [house.item(1, subjects=["user:eve"], data_class="transcript", expires_at=end.isoformat())], other
    )
    assert result["status"] == "review"
    [review] = waiting(house)
    assert set(review["wanted"]) == {"subjects", "data_class", "expires_at"}
    decide_it(house, house.alice, review["id"], "accept")
    shown = show(house, mine["id"])
    assert (shown["data_class"], shown["ends_at"], len(shown["subjects"])) == ("transcript", end, 2)


def test_an_accepted_value_takes_the_place_of_the_one_before_and_both_are_kept(house: Any) -> None:
    other = house.other_token(house.alice)
    said = {"source_type": "explicit_user_statement"}
    [mine] = house.register([house.item(1, digest="a" * 64, confidence=0.9, **said)])
    [result] = house.register([house.item(1, digest="b" * 64, confidence=0.4, **said)], other)
    assert result["status"] == "review"
    [review] = waiting(house)
    decide_it(house, house.alice, review["id"], "accept")
    fades = house.now + timedelta(days=180)
    assert abs(show(house, mine["id"])["ends_at"] - fades) < timedelta(hours=1), "one half-life takes 0.4 to 0.2"
    with house.session() as session:
        lines = memory_use.changes(session, house.alice, mine["id"])
    assert [line["change"] for line in lines] == ["registered", "overwritten"]
    [same] = house.register([house.item(1, digest="b" * 64, **said)])
    assert (same["status"], waiting(house)) == ("exists", [])


def test_nothing_is_decided_about_what_is_gone_or_unknown(house: Any) -> None:
    other = house.other_token(house.alice)
    [mine] = house.register([house.item(1)])
    house.register([house.item(1, subjects=["user:eve"])], other)
    [review] = waiting(house)
    bury(house, mine["id"])
    assert decide_it(house, house.alice, review["id"], "accept")["decision"] == "gone"
    for name in ("rev_ffffffffffffffff", "rev_0000000000000001", "rev_zz"):
        with pytest.raises(UnknownRegistrationReview):
            decide_it(house, house.alice, name, "accept")
    bob = house.tenant("bob")
    with pytest.raises(UnknownRegistrationReview):
        decide_it(house, bob, review["id"], "accept")


def claimed(house: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """An item of one token that another one says was made from an item of its own."""
    other = house.other_token(house.alice)
    [mine] = house.register([house.item(1)])
    [theirs] = house.register([house.item(7, subjects=["user:bea"])], other)
    [result] = house.register([house.item(1, sources=[theirs["id"]])], other)
    assert result["status"] == "exists"
    assert len(show(house, mine["id"])["subjects"]) == 2
    return other, mine, theirs


@pytest.mark.parametrize("how", ["at once", "by the queue", "by the reconciler"])
def test_no_fenced_person_arrives_by_a_claim_that_was_there_before(
    house: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, mine, theirs = claimed(house)
    [eves] = house.register([house.item(8, subjects=["user:eve"])])
    fence(house, "user:eve")
    before = show(house, mine["id"])
    if how == "by the queue":
        monkeypatch.setattr("registry.repeats.INLINE", 0)
    if how == "by the reconciler":
        with house.session() as session:
            row = artifacts.find_artifact(session, house.alice.tenant_id, theirs["id"])
            eve = artifacts.find_artifact(session, house.alice.tenant_id, eves["id"])
            row.set_id = row.own_set_id = eve.set_id
            session.add(row)
            session.commit()
            cones.reconcile(session, house.alice.tenant_id, house.now)
            cones.reconcile(session, house.alice.tenant_id, house.now)
            session.commit()
    else:
        house.register([house.item(7, subjects=["user:bea"], sources=[eves["id"]])], other)
        with house.session() as session:
            while cones.propagate_pending(session, house.alice.tenant_id, house.now):
                session.commit()
        assert show(house, theirs["id"])["status"] == "erasing"
    assert show(house, mine["id"]) == before
    [review] = waiting(house)
    assert (review["artifact"], review["asked_by"]) == (mine["id"], ["other-agent"])
    if how != "by the reconciler":
        decide_it(house, house.alice, review["id"], "accept")
        assert show(house, mine["id"])["status"] == "erasing"


def test_a_refused_claim_is_no_source_any_more(house: Any) -> None:
    other, mine, _ = claimed(house)
    [eves] = house.register([house.item(8, subjects=["user:eve"])])
    fence(house, "user:eve")
    house.register([house.item(7, subjects=["user:bea"], sources=[eves["id"]])], other)
    [review] = waiting(house)
    decide_it(house, house.alice, review["id"], "refuse")
    assert (show(house, mine["id"])["sources"], show(house, mine["id"])["status"]) == ([], "live")
    with house.session() as session:
        assert session.execute(sa.select(ClaimedSource)).first() is None
        cones.reconcile(session, house.alice.tenant_id, house.now)
        session.commit()
    assert waiting(house) == []


def test_an_own_growth_does_not_end_an_item_for_a_person_it_was_about_before(house: Any) -> None:
    """A person who came by a claim and was fenced since: the plan of their request decides, not a later source."""
    _, mine, _ = claimed(house)
    fence(house, "user:bea")
    [more] = house.register([house.item(9, subjects=["user:cleo"])])
    with house.session() as session:
        artifacts.add_sources(session, house.vault, house.alice, mine["id"], [more["id"]], now=house.now)
        session.commit()
    assert show(house, mine["id"])["status"] == "live"


def ends_of(house: Any, public_id: str) -> list[items.Source]:
    with house.session() as session:
        row = artifacts.find_artifact(session, house.alice.tenant_id, public_id)
        [found] = items.load_artifacts(session, house.alice.tenant_id, [row], {})
    return list(found.sources)


def test_a_claimed_source_that_ends_does_not_end_what_it_is_claimed_for(house: Any) -> None:
    other, mine, theirs = claimed(house)
    soon = house.now + timedelta(minutes=1)
    house.register([house.item(7, subjects=["user:bea"], expires_at=soon.isoformat())], other)
    [source] = ends_of(house, mine["id"])
    assert (source.status, source.ends_at, source.name) == ("live", None, theirs["id"])
    bury(house, theirs["id"])
    [source] = ends_of(house, mine["id"])
    assert source.status == "live"
    with house.session() as session:
        rules = rules_of(classes.get_class(session, house.alice.tenant_id, "memory"))
    made = decide.Item(item_id=1, data_class="memory", created=house.now)
    for status, action in ((source.status, "keep"), ("erased", "erase")):
        item = replace(made, sources=(decide.SourceEnd(status, source.ends_at),))
        assert decide.decide(item, rules, [], [], [], house.now + timedelta(days=1)).action == action


def test_a_claim_that_the_items_own_token_repeats_is_a_source_like_any_other(house: Any) -> None:
    other, mine, theirs = claimed(house)
    house.register([house.item(1, sources=[theirs["id"]])])
    soon = house.now + timedelta(minutes=1)
    house.register([house.item(7, subjects=["user:bea"], expires_at=soon.isoformat())], other)
    [source] = ends_of(house, mine["id"])
    assert (source.ends_at, source.kind) == (soon, "a")
    with house.session() as session:
        assert session.execute(sa.select(ClaimedSource)).first() is None
        assert session.execute(sa.select(sa.func.count()).select_from(Derivation)).scalar() == 1


def test_another_token_confirms_no_memory_by_a_turn_that_would_end_it(house: Any) -> None:
    other = house.other_token(house.alice)
    [mine] = house.register([house.item(1)])
    source = ending_source(house, "turn of a fenced person")
    with house.session() as session, pytest.raises(Conflict):
        memory_use.confirm(session, house.vault, other, mine["id"], source_ref=source, now=house.now)
    assert show(house, mine["id"])["status"] == "live"


def test_a_token_changes_nothing_of_a_class_it_does_not_carry(house: Any) -> None:
    narrow = house.other_token(house.alice, stores=["app"], classes=["summary"])
    mine, more = house.register([house.item(1), house.item(2)])
    with house.session() as session:
        with pytest.raises(OutsideTokenScope):
            artifacts.set_use(session, house.vault, narrow, mine["id"], "revoked", reason="no")
        with pytest.raises(OutsideTokenScope):
            artifacts.add_sources(session, house.vault, narrow, mine["id"], [more["id"]], now=house.now)


def test_a_repeat_of_another_token_changes_no_column_of_an_item(house: Any) -> None:
    """Whatever a repeat says: the row of somebody else's item stays as it was, but for whose it is by its sources."""
    other = house.other_token(house.alice)
    [mine] = house.register([house.item(1, id="art_mine", digest="a" * 64, confidence=0.4)])
    before = _row(house)
    said = {
        "id": "art_other", "digest": "b" * 64, "confidence": 1.0, "source_type": "inferred", "verification": "verified",
        "observed_at": "2026-02-01T00:00:00Z", "expires_at": "2026-03-02T00:00:00Z", "subjects": ["user:eve"],
        "scope": {"conversation": "x"}, "purposes": ["ads"], "source_ref": "m1", "activity": {"kind": "summarise"},
        "versions": {"policy": "p9"}, "data_class": "summary",
    }  # fmt: skip
    for name, value in said.items():
        [result] = house.register([house.item(1, **{name: value})], other)
        assert result["status"] in {"exists", "review", "rejected"}, name
        assert _row(house) == before, name
    assert mine["id"] == "art_mine"


def _row(house: Any) -> tuple[Any, ...]:
    with house.session() as session:
        return tuple(session.execute(sa.select(Artifact.__table__)).one())  # type: ignore[attr-defined] # SQLModel types no table


def found_by_scope(house: Any, conversation: str) -> list[str]:
    with house.session() as session:
        filters = {"scope": {"conversation": conversation}}
        return [one["id"] for one in artifacts.search(session, house.vault, house.alice, filters)[0]]


def origin_of(house: Any, name: str) -> dict[str, Any]:
    with house.session() as session:
        return artifacts.provenance(session, house.vault, house.alice, name, house.now)


def value(house: Any, digit: str, **more: Any) -> dict[str, Any]:
    said = {"source_type": "explicit_user_statement", "source_ref": f"message_{digit}"}
    scope = {"conversation": f"conv_{digit}"}
    made: dict[str, Any] = house.item(1, digest=digit * 64, scope=scope, **(said | more))
    return made


def test_a_new_value_is_found_by_its_own_scope_and_no_longer_by_the_former(house: Any) -> None:
    # An erasure of conv_2 missed the memory of what was said there, since its place was first filled in conv_1.
    [mine] = house.register([value(house, "1", activity={"kind": "extract"})])
    house.register([value(house, "2")])
    assert (found_by_scope(house, "conv_1"), found_by_scope(house, "conv_2")) == ([], [mine["id"]])
    assert show(house, mine["id"])["activity"] is None, "nobody said how the second was made"


def test_an_accepted_value_brings_its_own_origin_and_scope(house: Any) -> None:
    # It was shown with the turn, the purposes and the scope of the value that it replaced.
    other = house.other_token(house.alice)
    [mine] = house.register([value(house, "1", purposes=["support"])])
    house.register([value(house, "2", activity={"kind": "extract", "model": "m-2"})], other)
    assert (origin_of(house, mine["id"])["source_ref"], found_by_scope(house, "conv_2")) == ("message_1", [])
    decide_it(house, house.alice, waiting(house)[0]["id"], "accept")
    origin = origin_of(house, mine["id"])
    assert (origin["source_ref"], origin["chain"][0]["activity"]["model"]) == ("message_2", "m-2")
    assert (found_by_scope(house, "conv_1"), found_by_scope(house, "conv_2")) == ([], [mine["id"]])


def test_an_accepted_value_of_which_nothing_was_kept_has_no_origin_rather_than_a_false_one(house: Any) -> None:
    other = house.other_token(house.alice)
    [mine] = house.register([value(house, "1")])
    house.register([value(house, "2")], other)
    with house.session() as session:
        session.exec(select(ReviewRow)).one().sealed = None  # as rows of earlier versions are
        session.commit()
    decide_it(house, house.alice, waiting(house)[0]["id"], "accept")
    assert origin_of(house, mine["id"])["source_ref"] is None
    assert (found_by_scope(house, "conv_1"), found_by_scope(house, "conv_2")) == ([], [])


def test_what_was_anonymised_is_not_overwritten_by_what_is_not(house: Any) -> None:
    # The people of the second value's sources would have been found nowhere.
    with house.session() as session:
        spec = classes.STARTER_CLASSES["memory"] | {"personal": False}
        classes.put_class(session, house.alice, "lesson", spec, house.now)
        session.commit()
    [source] = house.register([house.item(2)])
    clean = {"kind": "count", "anonymisation": {"basis": "k ≥ 50", "method": "counts"}}
    said = {"data_class": "lesson", "subjects": None, "sources": [source["id"]]}
    [first] = house.register([value(house, "1", activity=clean, **said)])
    [over] = house.register([value(house, "2", activity={"kind": "copy"}, **said)])
    [again] = house.register([value(house, "3", activity=clean, **said)])
    assert first["status"] == "created"
    assert (over["status"], over["problem"]["type"]) == ("rejected", "/problems/conflict")
    assert again["status"] == "exists"


@pytest.mark.parametrize(("digit", "source_type", "status"), [
    ("2", "explicit_user_statement", "erased"), ("2", "inferred", "review"), ("3", "explicit_user_statement", "exists"),
])  # fmt: skip
def test_a_late_value_from_an_erased_conversation_goes_like_a_late_copy(
    house: Any, digit: str, source_type: str, status: str
) -> None:
    # It stayed, since the place itself was registered before the conversation was erased.
    house.register([value(house, "1")])
    with house.session() as session:
        people = subjects.resolve(session, house.vault, house.alice, [parse_subject("user:ada")], house.now)
        scope = Lookups(house.vault, house.alice.tenant_id).scope("conversation", "conv_2").hex()
        limited.close(session, house.alice.tenant_id, people, "req_1", house.now, data_classes=None, scopes=[scope])
        session.commit()
    before = (house.now - timedelta(hours=1)).isoformat()
    [result] = house.register([value(house, digit, observed_at=before, source_type=source_type)])
    assert result["status"] == status


@pytest.mark.parametrize("alone", [True, False])
def test_what_is_said_twice_of_a_place_counts_alike_in_one_batch_and_in_several(house: Any, alone: bool) -> None:
    # In one batch the first line won: an earlier end, another value and another class were answered `exists` and lost.
    end = house.now + timedelta(days=3)
    said = {"source_type": "explicit_user_statement"}
    items = [
        house.item(1), house.item(2, digest="a" * 64, **said), house.item(3),
        house.item(1, expires_at=end.isoformat()), house.item(2, digest="b" * 64, **said),
        house.item(3, data_class="transcript", subjects=["user:eve"]), house.item(2, digest="c" * 64, **said),
        house.item(4, subjects=None, sources=[place(1)]),
    ]  # fmt: skip
    results = [one for item in items for one in house.register([item])] if alone else house.register(items)
    assert [one["status"] for one in results] == [*["created"] * 3, "exists", "exists", "review", "exists", "created"]
    assert [one["id"] for one in results[3:7]] == [results[number]["id"] for number in (0, 1, 2, 1)]
    assert show(house, results[0]["id"])["ends_at"] == end
    with house.session() as session:
        changes = memory_use.changes(session, house.alice, results[1]["id"])
    assert [one["change"] for one in changes] == ["registered", "overwritten", "overwritten"]
    assert len(waiting(house)) == 1


def test_too_many_values_of_one_place_in_one_batch_are_refused_by_themselves(house: Any) -> None:
    values = [house.item(1, digest=f"{number:064x}") for number in range(MAX_VALUES + 2)]
    results = house.register([*values, house.item(2)])
    assert [one["status"] for one in results] == [
        "created", *["exists"] * (MAX_VALUES - 1), *["rejected"] * 2, "created"
    ]  # fmt: skip
