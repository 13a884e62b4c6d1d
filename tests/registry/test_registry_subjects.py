"""People: names, incarnations, fences, forgetting."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlmodel import Session

from registry import subjects
from registry.errors import MalformedSubject, SubjectNotErased, UnknownSubject
from registry.identifiers import parse_subject
from registry.keyed import Lookups, Seals
from registry.models import Subject, SubjectIdentifier
from registry.sets import intern_set, intern_sets, members, sets_of
from vault.errors import NotDecryptable


@pytest.mark.parametrize(
    "text",
    ["", ":", "user", "user:", "User:x", "1u:x", "us er:x", ":x", "user:" + "x" * 513, "user:a*", "user:100%",
     "user:a\nb", "user:a\0b", "user:a\u200bb", "user:\ud800", "user:   ", "email:ada", "email:@x.org",
     "email:a@", "email:a b@x.org", "email:a@b@c.org", "phone:call me", "phone:+", "phone:12", 5, None, ["user:x"],
     "email:p\u0430ypal@example.org", "email:ada@\u0435xample.org"],
)  # fmt: skip
def test_a_malformed_or_look_alike_name_is_refused_without_repeating_it(text: Any) -> None:
    with pytest.raises(MalformedSubject) as refused:
        parse_subject(text)
    value = str(text).partition(":")[2].strip()
    assert len(value) < 4 or value not in str(refused.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("email:Ada@Example.org", "email:ada@example.ORG"),
        ("email:ada@example.org.", "email:ada@example.org"),
        ("email:\uff41da@example.org", "email:ada@example.org"),
        ("email:a@b\u00fccher.example", "email:a@xn--bcher-kva.example"),
        ("email:Wei\u00df@Stra\u1e9ee.example", "email:wei\u00df@xn--strae-oqa.example"),
        ("email:a@b\uff61example", "email:a@b.example"),
        ("phone:+44 20 7946-0000", "phone:00442079460000"),
        ("phone:+44 (0)20 79460000", "phone:+442079460000"),
        ("phone:(0)20 7946 0000", "phone:020 7946 0000"),
        ("user:caf\u00e9", "user:cafe\u0301"),
    ],
)
def test_one_name_written_differently_is_one_name(one: str, other: str) -> None:
    assert parse_subject(one) == parse_subject(other)
    assert parse_subject(one).given == one.partition(":")[2]


def test_other_names_stay_apart() -> None:
    assert parse_subject("user:ada") != parse_subject("user:Ada")
    assert parse_subject("user:a@b.org") != parse_subject("email:a@b.org")
    # Folding case would write both with ss, and erase one of them for the other.
    assert parse_subject("email:wei\u00df@x.example") != parse_subject("email:weiss@x.example")
    assert parse_subject("email:a@stra\u00dfe.example") != parse_subject("email:a@strasse.example")
    assert parse_subject("phone:555(0)1234") != parse_subject("phone:5551234"), "no country's code stands before it"
    # A whole label in another script is somebody's real name; only a mixture within one label is a trick.
    assert parse_subject("email:\u0438\u0432\u0430\u043d@example.org").value.startswith("\u0438")


@given(
    st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=40).filter(
        lambda s: not set(s) & {"*", "%"}
    )
)
def test_normalising_twice_changes_nothing(value: str) -> None:
    for kind in ("user", "email", "phone"):
        try:
            once = parse_subject(f"{kind}:{value}")
            twice = parse_subject(f"{kind}:{once.value}")
        except MalformedSubject:
            continue
        assert twice.value == once.value
        assert unicodedata.is_normalized("NFC", once.value)


def resolve(house: Any, session: Session, *texts: str, acting: Any = None) -> list[int]:
    names = [parse_subject(text) for text in texts]
    return subjects.resolve(session, house.vault, acting or house.alice, names, house.now)


def test_a_name_is_resolved_to_the_same_person_every_time(house: Any) -> None:
    with house.session() as session:
        first = resolve(house, session, "user:ada", "email:ada@example.org", "user:ada")
        session.commit()
    with house.session() as session:
        again = resolve(house, session, "email:ADA@example.org", "user:ada")
    assert first[0] == first[2]
    assert again == [first[1], first[0]]


def test_finding_makes_nobody(house: Any) -> None:
    with house.session() as session:
        found = subjects.find(session, house.vault, house.alice, [parse_subject("user:nobody")])
        assert found == {}
        assert session.execute(sa.select(sa.func.count()).select_from(Subject)).scalar() == 0


def test_two_tenants_with_the_same_name_share_nothing(house: Any) -> None:
    bob = house.tenant("bob")
    with house.session() as session:
        ours = resolve(house, session, "user:ada")
        theirs = resolve(house, session, "user:ada", acting=bob)
        ada = parse_subject("user:ada")
        assert ours != theirs
        assert subjects.lookup_of(house.vault, house.alice.tenant_id, ada) != subjects.lookup_of(
            house.vault, bob.tenant_id, ada
        )
        assert subjects.fence(session, bob.tenant_id, ours, "req_1", house.now) == 0
        assert subjects.fenced(session, house.alice.tenant_id, ours) == {}


def test_no_readable_name_lies_in_the_database(house: Any) -> None:
    with house.session() as session:
        resolve(house, session, "email:ada.lovelace@example.org")
        session.commit()
    for path in house.folder.glob("muniment.db*"):
        assert b"lovelace" not in path.read_bytes()


def test_a_name_is_read_back_normalised_and_as_it_was_written(house: Any) -> None:
    with house.session() as session:
        numbers = resolve(house, session, "email:Ada@Example.org")
        names = subjects.names_of(session, house.vault, house.alice.tenant_id, numbers)
    assert [(name.text, name.given) for name in names[numbers[0]]] == [
        ("email:ada@example.org", "email:Ada@Example.org")
    ]


def test_a_fence_closes_an_incarnation_and_only_its_request_lifts_it(house: Any) -> None:
    tenant = house.alice.tenant_id
    with house.session() as session:
        ada, bea = resolve(house, session, "user:ada", "user:bea")
        assert subjects.fence(session, tenant, [ada], "req_1", house.now) == 1
        assert subjects.fence(session, tenant, [ada], "req_2", house.now) == 0
        fence = subjects.fenced(session, tenant, [ada, bea])
        assert fence.keys() == {ada}
        assert (fence[ada].request_id, fence[ada].at, fence[ada].erased) == ("req_1", house.now, False)
        assert subjects.lift_fence(session, tenant, [ada], "req_2") == 0
        assert subjects.lift_fence(session, tenant, [ada], "req_1") == 1
        assert subjects.fenced(session, tenant, [ada]) == {}


def test_after_forgetting_the_name_is_recognised_but_cannot_be_read(house: Any) -> None:
    tenant = house.alice.tenant_id
    with house.session() as session:
        [ada] = resolve(house, session, "user:ada")
        subjects.fence(session, tenant, [ada], "req_1", house.now)
        subjects.forget_identifiers(session, tenant, ada, "req_1", house.now)
        subjects.forget_identifiers(session, tenant, ada, "req_1", house.now)
        assert resolve(house, session, "user:ada") == [ada]
        assert subjects.fenced(session, tenant, [ada])[ada].erased
        assert subjects.names_of(session, house.vault, tenant, [ada]) == {ada: []}
        row = session.execute(sa.select(SubjectIdentifier)).scalar_one()
        assert row.sealed is None


def test_who_ended_is_nobody_any_more_and_who_is_fenced_does_not_end(house: Any) -> None:
    tenant = house.alice.tenant_id
    with house.session() as session:
        ada, bea = resolve(house, session, "user:ada", "user:bea")
        subjects.fence(session, tenant, [bea], "req_1", house.now)
        for _ in range(2):
            subjects.end(session, tenant, [ada, bea], "swp_1", house.now)
        assert subjects.ended(session, tenant, [ada, bea]) == {ada}
        assert subjects.fenced(session, tenant, [ada, bea]).keys() == {bea}, "nobody asked for anything about Ada"
        assert len(subjects.names_of(session, house.vault, tenant, [bea])[bea]) == 1
        assert subjects.find(session, house.vault, house.alice, [parse_subject("user:ada")]) == {}
        [new] = resolve(house, session, "user:ada")
        assert new not in (ada, bea)


def test_who_returns_is_a_new_incarnation_that_inherits_nothing(house: Any) -> None:
    tenant = house.alice.tenant_id
    name = parse_subject("user:ada")
    with house.session() as session:
        with pytest.raises(UnknownSubject):
            subjects.reopen(session, house.vault, house.alice, name, basis="new contract", now=house.now)
        [ada] = resolve(house, session, "user:ada")
        with pytest.raises(SubjectNotErased):
            subjects.reopen(session, house.vault, house.alice, name, basis="new contract", now=house.now)
        former_id = subjects.public_id(session, tenant, ada)
        subjects.forget_identifiers(session, tenant, ada, "req_1", house.now)
        later = house.now.replace(year=2027)
        new = subjects.reopen(session, house.vault, house.alice, name, basis="new contract", now=later)
        assert (new.incarnation, new.state) == (2, "live")
        assert new.subject_id != former_id
        assert resolve(house, session, "user:ada") == [new.subject_no]
        assert sets_of(session, tenant, [new.subject_no]) == frozenset()
        assert subjects.opened_at(session, tenant, [ada, new.subject_no]) == {new.subject_no: later}


def test_sealed_values_are_bound_to_their_holder_label_and_name(house: Any) -> None:
    tenant = house.alice.tenant_id
    with house.session() as session:
        [ada] = resolve(house, session, "user:ada")
        sealed = subjects.seal_for(session, house.vault, tenant, ada, label="note", name="1", data=b"x")
        opened = subjects.unseal_for(session, house.vault, tenant, ada, label="note", name="1", sealed=sealed)
        assert opened == b"x"
        seals = Seals(session, house.vault, tenant)
        for label, name in (("other", "1"), ("note", "2")):
            with pytest.raises(NotDecryptable):
                seals.open(ada, label, name, sealed)


def test_lookups_of_other_labels_and_framings_differ(house: Any) -> None:
    lookups = Lookups(house.vault, house.alice.tenant_id)
    values = {lookups.of("a", "bc"), lookups.of("ab", "c"), lookups.of("a", "b", "c"), lookups.of("a", "", "bc"),
              lookups.scope("role", "x"), lookups.subject("role", "x")}  # fmt: skip
    assert len(values) == 6


def test_equal_sets_have_one_number_and_the_empty_one_is_zero(house: Any) -> None:
    tenant = house.alice.tenant_id
    with house.session() as session:
        one, two, empty = frozenset({1, 2}), frozenset({2, 3}), frozenset[int]()
        numbers = intern_sets(session, tenant, [one, two, empty, one], house.now)
        assert numbers[empty] == 0
        assert intern_set(session, tenant, [2, 1], house.now) == numbers[one]
        assert members(session, tenant, [*numbers.values()]) == {numbers[one]: one, numbers[two]: two, 0: empty}
        assert sets_of(session, tenant, [2]) == {numbers[one], numbers[two]}
        assert sets_of(session, tenant, [3]) == {numbers[two]}


def test_sets_of_many_people_are_interned_in_few_statements(house: Any) -> None:
    statements: list[str] = []
    sa.event.listen(house.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    with house.session() as session:
        intern_sets(session, house.alice.tenant_id, [frozenset({n, n + 1}) for n in range(1000)], house.now)
    assert len(statements) <= 8
