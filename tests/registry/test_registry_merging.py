"""Many names, one person: merged by two principals, told apart again, never against an erasure."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlmodel import Session, select

from registry import artifacts, merging, scope_reviews, subjects
from registry.errors import AmbiguousSubject, Conflict, SamePrincipalDecides, UnknownMerge, UnknownSubject
from registry.identifiers import parse_subject
from registry.keyed import NOBODY, Seals
from registry.merging import Merge, check_unambiguous
from registry.models import Artifact, Subject
from registry.people import expand, groups
from registry.review_models import MergeRow, ScopeReviewRow
from registry.subjects import fence, forget_identifiers
from vault.errors import NotDecryptable


def names(*texts: str) -> list[Any]:
    return [parse_subject(text) for text in texts]


def number(house: Any, session: Session, text: str) -> int:
    return subjects.find(session, house.vault, house.alice, names(text))[text]


def second(house: Any) -> Any:
    return replace(house.alice, principal="second-person")


def propose(house: Any, session: Session, *texts: str, by: Any = None) -> Merge:
    acting = by or house.alice
    return merging.propose_merge(session, house.vault, acting, names(*texts), reason="same passport", now=house.now)


def join(house: Any, session: Session, *texts: str) -> Merge:
    propose(house, session, *texts)
    return propose(house, session, *texts, by=second(house))


def known(house: Any, *texts: str) -> None:
    house.register([house.item(place, subjects=[text]) for place, text in enumerate(texts, start=1)])


def copies(house: Any, session: Session, text: str) -> int:
    return len(artifacts.artifacts_of(session, house.alice.tenant_id, [number(house, session, text)]))


def test_one_persons_word_merges_nobody_and_a_second_persons_does(house: Any) -> None:
    known(house, "user:ada", "email:ada@example.org")
    with house.session() as session:
        first = propose(house, session, "user:ada", "email:ada@example.org")
        assert first.state == "proposed"
        assert propose(house, session, "email:ada@example.org", "user:ada") == first
        assert copies(house, session, "user:ada") == 1
        done = propose(house, session, "user:ada", "email:ada@example.org", by=second(house))
        assert (done.id, done.state, done.decided_by) == (first.id, "done", "second-person")
        assert copies(house, session, "user:ada") == copies(house, session, "email:ada@example.org") == 2
        assert merging.get_merge(session, house.alice.tenant_id, done.id) == done
        assert merging.list_merges(session, house.alice.tenant_id, state="done", limit=10) == [done]


def test_the_proposer_cannot_decide_unless_the_tenant_has_one_person_only(house: Any) -> None:
    known(house, "user:ada", "user:ida")
    with house.session() as session:
        first = propose(house, session, "user:ada", "user:ida")

        def decide(**more: Any) -> Merge:
            return merging.decide_merge(
                session, house.vault, house.alice, first.id, same_person=True, comment="c", now=house.now, **more
            )

        with pytest.raises(SamePrincipalDecides):
            decide()
        assert decide(single=True).state == "done"
        with pytest.raises(Conflict):
            decide(single=True)


def test_a_refused_proposal_changes_nobody(house: Any) -> None:
    known(house, "user:ada", "user:ida")
    with house.session() as session:
        first = propose(house, session, "user:ada", "user:ida")
        refused = merging.decide_merge(
            session, house.vault, second(house), first.id, same_person=False, comment="twins", now=house.now
        )
        assert refused.state == "refused"
        assert copies(house, session, "user:ada") == 1
        with pytest.raises(UnknownMerge):
            merging.get_merge(session, house.alice.tenant_id, "mrg_unknown")


def test_chains_of_aliases_collapse_and_are_found_from_any_end(house: Any) -> None:
    texts = [
        f"{kind}:{value}" for kind, value in (("user", "a"), ("email", "a@x.org"), ("phone", "+441"), ("crm", "9"))
    ]
    house.register([house.item(1, subjects=texts[:1])])
    known(house, *texts)
    with house.session() as session:
        join(house, session, texts[0], texts[1])
        join(house, session, texts[2], texts[3])
        join(house, session, texts[1], texts[2])
        everybody = frozenset(number(house, session, text) for text in texts)
        for text in texts:
            assert expand(session, house.alice.tenant_id, [number(house, session, text)]) == everybody
        rows = session.exec(select(Subject).where(Subject.tenant_id == house.alice.tenant_id)).all()
        assert {row.person_no for row in rows if row.subject_no in everybody} == {min(everybody)}


def test_one_email_on_two_people_stops_for_a_human(house: Any) -> None:
    known(house, "user:ada", "user:bob", "email:home@example.org")
    with house.session() as session:
        join(house, session, "user:ada", "email:home@example.org")
        doubt = propose(house, session, "user:bob", "email:home@example.org")
        assert doubt.shared == (subjects.public_id(session, house.alice.tenant_id,
                                                   number(house, session, "email:home@example.org")),)  # fmt: skip
        assert propose(house, session, "user:bob", "email:home@example.org", by=second(house)).state == "proposed"
        assert copies(house, session, "user:bob") == 1
        for text in ("user:ada", "user:bob", "email:home@example.org"):
            with pytest.raises(AmbiguousSubject):
                check_unambiguous(session, house.alice.tenant_id, [number(house, session, text)])

        def decide(**more: Any) -> Merge:
            return merging.decide_merge(
                session, house.vault, second(house), doubt.id, same_person=True, comment="c", now=house.now, **more
            )

        with pytest.raises(AmbiguousSubject):
            decide()
        assert decide(knows_shared=True).state == "done"
        check_unambiguous(session, house.alice.tenant_id, [number(house, session, "user:ada")])
        assert copies(house, session, "user:bob") == 3


def test_two_emails_of_one_user_are_no_doubt(house: Any) -> None:
    known(house, "user:ada", "email:a@example.org", "email:b@example.org")
    with house.session() as session:
        join(house, session, "user:ada", "email:a@example.org")
        assert propose(house, session, "user:ada", "email:b@example.org").shared == ()


def test_a_split_gives_everybody_back_exactly_what_was_theirs(house: Any) -> None:
    known(house, "user:ada", "user:bob", "email:x@example.org")
    with house.session() as session:
        join(house, session, "user:ada", "email:x@example.org")
        before = {text: copies(house, session, text) for text in ("user:ada", "user:bob")}
        join(house, session, "user:ada", "user:bob")
        assert copies(house, session, "user:bob") == 3
        done = merging.split(session, house.vault, house.alice, names("user:bob"), reason="twins", now=house.now)
        assert (done.kind, done.state, len(done.people)) == ("split", "done", 3)
        assert {text: copies(house, session, text) for text in ("user:ada", "user:bob")} == before
        with pytest.raises(Conflict, match="nobody else"):
            merging.split(session, house.vault, house.alice, names("user:bob"), reason="r", now=house.now)
        with pytest.raises(Conflict, match="different people"):
            merging.split(session, house.vault, house.alice, names("user:bob", "user:ada"), reason="r", now=house.now)


def test_who_is_fenced_or_erased_is_neither_merged_nor_split(house: Any) -> None:
    known(house, "user:ada", "user:bob")
    tenant = house.alice.tenant_id
    with house.session() as session:
        ada = number(house, session, "user:ada")
        fence(session, tenant, [ada], "req_1", house.now)
        with pytest.raises(Conflict, match="erasure"):
            propose(house, session, "user:ada", "user:bob")
        forget_identifiers(session, tenant, ada, "req_1", house.now)
        with pytest.raises(Conflict, match="erasure"):
            propose(house, session, "user:ada", "user:bob")
        fresh = subjects.reopen(session, house.vault, house.alice, names("user:ada")[0], basis="b", now=house.now)
        assert propose(house, session, "user:ada", "user:bob").state == "proposed"
        assert fresh.person_no is None


def test_a_fence_between_proposal_and_decision_stops_the_merge(house: Any) -> None:
    known(house, "user:ada", "user:bob")
    with house.session() as session:
        propose(house, session, "user:ada", "user:bob")
        fence(session, house.alice.tenant_id, [number(house, session, "user:bob")], "req_1", house.now)
        with pytest.raises(Conflict, match="erasure"):
            propose(house, session, "user:ada", "user:bob", by=second(house))


def test_unknown_names_single_names_and_finished_merges_are_refused(house: Any) -> None:
    known(house, "user:ada", "user:bob")
    with house.session() as session:
        with pytest.raises(UnknownSubject):
            propose(house, session, "user:ada", "user:nobody")
        with pytest.raises(Conflict, match="at least two"):
            propose(house, session, "user:ada", "user:ada")
        join(house, session, "user:ada", "user:bob")
        with pytest.raises(Conflict, match="already"):
            propose(house, session, "user:ada", "user:bob")


def test_no_reason_or_comment_is_readable_in_the_database(house: Any) -> None:
    known(house, "user:ada", "user:bob")
    with house.session() as session:
        join(house, session, "user:ada", "user:bob")
        scope_reviews.open_review(session, house.vault, house.alice, [number(house, session, "user:ada")],
                                  change="transfer", detail="moved to Graz", now=house.now)  # fmt: skip
        session.commit()
    for path in house.folder.rglob("*.db*"):
        data = path.read_bytes()
        assert b"same passport" not in data
        assert b"Graz" not in data


def test_another_tenants_names_are_unknown_and_untouched(house: Any) -> None:
    known(house, "user:ada", "user:bob")
    bob = house.tenant("bob")
    house.register([house.item(1, subjects=["user:ada"])], bob)
    with house.session() as session:
        done = join(house, session, "user:ada", "user:bob")
        assert merging.list_merges(session, bob.tenant_id, state=None, limit=10) == []
        with pytest.raises(UnknownMerge):
            merging.get_merge(session, bob.tenant_id, done.id)
        theirs = subjects.find(session, house.vault, bob, names("user:ada"))["user:ada"]
        assert len(artifacts.artifacts_of(session, bob.tenant_id, [theirs])) == 1


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=12))
def test_merged_people_are_the_components_of_the_merges(make_house: Any, pairs: list[tuple[int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        house = make_house(Path(folder))
        _check_components(house, pairs)
        house.engine.dispose()


def _check_components(house: Any, pairs: list[tuple[int, int]]) -> None:
    texts = [f"user:{letter}" for letter in "abcdefgh"]
    known(house, *texts)
    parent = list(range(8))

    def root(node: int) -> int:
        while parent[node] != node:
            node = parent[node]
        return node

    with house.session() as session:
        numbers = [number(house, session, text) for text in texts]
        for left, right in pairs:
            if root(left) == root(right):
                continue
            first = propose(house, session, texts[left], texts[right])
            merging.decide_merge(
                session, house.vault, second(house), first.id, same_person=True, knows_shared=True, comment="c",
                now=house.now,
            )  # fmt: skip
            parent[root(left)] = root(right)
        found = groups(session, house.alice.tenant_id, numbers)
        for place, one in enumerate(numbers):
            assert found[one] == {numbers[other] for other in range(8) if root(other) == root(place)}


def test_a_rebuild_makes_the_same_people_from_what_the_record_says(house: Any) -> None:
    known(house, "user:a", "email:a@example.org", "user:b")
    tenant = house.alice.tenant_id
    with house.session() as session:
        first = join(house, session, "user:a", "email:a@example.org")
        second_one = join(house, session, "user:a", "user:b")
        apart = merging.split(session, house.vault, house.alice, names("user:b"), reason="r", now=house.now)
        numbers = [number(house, session, text) for text in ("user:a", "email:a@example.org", "user:b")]
        wanted = groups(session, tenant, numbers)
        for row in session.exec(select(Subject)):
            row.person_no = None
        session.flush()
        for people, split_off in ((first.numbers, ()), (second_one.numbers, ()), (apart.numbers, numbers[2:])):
            merging.replay(session, tenant, people, split_off)
        assert groups(session, tenant, numbers) == wanted


def test_a_scope_change_opens_a_review_with_owner_deadline_and_list(house: Any) -> None:
    house.register([house.item(1), house.item(2, data_class="export"), house.item(3)])
    with house.session() as session:
        ada = number(house, session, "user:ada")
        opened = scope_reviews.open_review(
            session, house.vault, house.alice, [ada], change="role", detail="left sales", now=house.now, owner="dpo"
        )
        assert (opened["owner"], opened["due_at"], opened["open"]) == ("dpo", house.now + timedelta(days=30), 3)
        assert [line["data_class"] for line in opened["list"]] == ["memory", "memory", "export"]
        later = house.now + timedelta(days=31)
        assert scope_reviews.get_review(session, house.vault, house.alice.tenant_id, opened["id"], later)["overdue"]
        lines = [line["artifact"] for line in opened["list"]]
        half = scope_reviews.decide(
            session, house.vault, house.alice, opened["id"], {lines[0]: "revoke"}, comment="old role", now=house.now
        )
        assert (half["open"], half["closed_at"]) == (2, None)
        assert artifacts.find_artifact(session, house.alice.tenant_id, lines[0]).status == "revoked"
        artifacts.mark_status(session, house.alice.tenant_id, [_id(house, session, lines[1])], "erasing")
        whole = scope_reviews.decide(
            session, house.vault, house.alice, opened["id"], {lines[1]: "keep", lines[2]: "quarantine"}, comment="c",
            now=house.now,
        )  # fmt: skip
        assert whole["closed_at"] == house.now
        assert artifacts.find_artifact(session, house.alice.tenant_id, lines[2]).status == "quarantined"
        assert scope_reviews.list_reviews(session, house.alice.tenant_id, later, open_only=True, limit=10) == []
        with pytest.raises(Conflict, match="closed"):
            scope_reviews.decide(
                session, house.vault, house.alice, opened["id"], {lines[0]: "keep"}, comment="c", now=house.now
            )


def _id(house: Any, session: Session, name: str) -> int:
    row: Artifact = artifacts.find_artifact(session, house.alice.tenant_id, name)
    return row.id


def lose(house: Any, session: Session, *texts: str) -> None:
    """Destroy the identity keys of these people, as their erasure does."""
    tenant = house.alice.tenant_id
    people = [number(house, session, text) for text in texts]
    keys = [one.key_id for one in house.vault.keys_of(session, tenant, people)]
    house.vault.mark_destroying(session, tenant, keys, request="req_1")
    assert house.vault.delete_wrapped(session, tenant, keys, now=house.now, request="req_1") == len(people)


def test_what_was_said_of_a_change_goes_with_the_first_of_its_people(house: Any) -> None:
    known(house, "user:ada", "user:eve", "user:fay")
    tenant = house.alice.tenant_id
    with house.session() as session:
        one = propose(house, session, "user:ada", "user:eve")
        refused = merging.decide_merge(
            session, house.vault, house.alice, one.id, same_person=False, comment="twins", now=house.now
        )
        ada = number(house, session, "user:ada")
        opened = scope_reviews.open_review(
            session, house.vault, house.alice, [ada], change="transfer", detail="ada went to sales", now=house.now
        )
        assert opened["detail"] == "ada went to sales"
        session.commit()
        row = session.get_one(MergeRow, (tenant, refused.id))
        assert merging.said(session, house.vault, row) == {"reason": "same passport", "comment": "twins"}
        lose(house, session, "user:ada")
        session.commit()
        assert merging.said(session, house.vault, row) == {}
        review = scope_reviews.get_review(session, house.vault, tenant, opened["id"], house.now)
        assert (review["detail"], review["comments"], review["open"]) == (None, [], 1)
        sealed = session.get_one(ScopeReviewRow, (tenant, opened["id"])).sealed
        seals = Seals(session, house.vault, tenant)
        assert seals.can(NOBODY)
        with pytest.raises(NotDecryptable):
            seals.open(NOBODY, "scope review", opened["id"], sealed)
        # Nothing of another person hangs on it, and a comment that comes later is read again.
        later = scope_reviews.decide(
            session, house.vault, house.alice, opened["id"], {opened["list"][0]["artifact"]: "keep"}, comment="late",
            now=house.now,
        )  # fmt: skip
        assert (later["detail"], later["comments"]) == (None, ["late"])


def test_what_was_said_goes_with_somebody_whose_erasure_had_begun_when_more_was_said(house: Any) -> None:
    # Behind the fence ada's key was passed over, and all of it lay under eve's alone from then on.
    known(house, "user:ada", "user:eve")
    tenant = house.alice.tenant_id
    with house.session() as session:
        one = propose(house, session, "user:ada", "user:eve")
        ada, eve = number(house, session, "user:ada"), number(house, session, "user:eve")
        review = scope_reviews.open_review(
            session, house.vault, house.alice, [ada, eve], change="transfer", detail="ada is ill", now=house.now
        )
        subjects.fence(session, tenant, [ada], "req_1", house.now)
        house.vault.fence_subject(session, tenant, ada, now=house.now, request="req_1")
        session.commit()
        merging.decide_merge(
            session, house.vault, house.alice, one.id, same_person=False, comment="twins", now=house.now
        )
        names = [line["artifact"] for line in review["list"]]
        decided = scope_reviews.decide(
            session, house.vault, house.alice, review["id"], {names[0]: "keep"}, comment="ada said so", now=house.now
        )
        assert decided["detail"] == "ada is ill", "it is there until the key goes"
        session.commit()
        lose(house, session, "user:ada")
        session.commit()
        assert merging.said(session, house.vault, session.get_one(MergeRow, (tenant, one.id))) == {}
        left = scope_reviews.get_review(session, house.vault, tenant, review["id"], house.now)
        assert (left["detail"], left["comments"]) == (None, [])


def test_what_was_said_is_read_when_others_joined_meanwhile_and_not_when_it_was_altered(house: Any) -> None:
    known(house, "user:ada", "user:eve", "user:fay")
    tenant = house.alice.tenant_id
    with house.session() as session:
        first = propose(house, session, "user:ada", "user:eve")
        join(house, session, "user:eve", "user:fay")
        merging.decide_merge(
            session, house.vault, second(house), first.id, same_person=True, comment="seen", now=house.now,
            knows_shared=True,
        )  # fmt: skip
        row = session.get_one(MergeRow, (tenant, first.id))
        assert len(row.people) == 3
        assert merging.said(session, house.vault, row) == {"reason": "same passport", "comment": "seen"}
        row.sealed = bytes(row.sealed[:-1]) + bytes([row.sealed[-1] ^ 1])
        with pytest.raises(NotDecryptable):
            merging.said(session, house.vault, row)
