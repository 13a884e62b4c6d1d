"""Data classes: what is refused and why, and how versions come about."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from registry.classes import STARTER_CLASSES, diff, get_class, in_force, parse_class, put_class, remove_class
from registry.duration import Duration
from registry.errors import ClassInUse, InvalidDeclaration, NotBuilt, UnknownClass

FULL: dict[str, Any] = {
    "state": "record", "personal": True, "owner": "team-support", "description": "support transcripts",
    "categories": ["user.content"], "subject_types": ["user", "email"], "purposes": ["support", "dispute"],
    "legal_basis": "contract",
    "retention": {"keep": "P90D", "from": "created", "latest": None, "lock": "P30D", "then": "erase",
                  "floor": {"for": "P6M", "basis": "AI Act 26(6)", "covers": "skeleton"}},
    "erasure": {"on_request": "erase", "required": "L2", "basis": None, "until": None},
    "derived": {"default": "cascade", "may_outlive_source": False, "callback": None},
    "access": {"roles": ["auditor"], "purposes": ["dispute"]}, "key_scope": None, "requires_sources": False,
    "session": {"idle": "PT30M", "resume_within": "PT10M", "expire": "P7D"},
    "update_authority": "append-only", "replay": "exact", "immutability": "governance",
}  # fmt: skip
GONE = object()


def changed(path: str, value: Any) -> dict[str, Any]:
    spec: dict[str, Any] = copy.deepcopy(FULL)
    *folders, name = path.split(".")
    inner = spec
    for folder in folders:
        inner = inner[folder]
    if value is GONE:
        del inner[name]
    else:
        inner[name] = value
    return spec


def faults_of(spec: Any) -> set[str]:
    with pytest.raises(InvalidDeclaration) as refused:
        parse_class("support", spec)
    assert all(fault.detail for fault in refused.value.faults)
    return {fault.pointer for fault in refused.value.faults}


def test_the_example_of_the_contract_is_accepted_and_filled_in() -> None:
    made = parse_class("support", FULL, version=3)
    assert (made.version, made.keep, made.keep_from, made.required) == (3, Duration(days=90), "created", "L2")
    assert made.floor is not None
    assert made.floor.covers == "skeleton"
    assert made.session is not None
    assert made.event is None


def test_absent_fields_get_the_defaults_of_the_contract() -> None:
    minimal = {name: FULL[name] for name in ("state", "personal", "owner", "description", "legal_basis")}
    minimal |= {"retention": {"keep": "P1D", "from": "created", "then": "erase"}, "erasure": {"on_request": "erase"}}
    made = parse_class("support", minimal)
    assert (made.derived_default, made.required, made.lock, made.callback) == ("cascade", "L2", None, None)


@pytest.mark.parametrize(
    ("path", "value", "pointer"),
    [
        ("state", GONE, "/state"), ("state", "diary", "/state"), ("personal", GONE, "/personal"),
        ("personal", "yes", "/personal"), ("owner", GONE, "/owner"), ("owner", "  ", "/owner"), ("owner", 3, "/owner"),
        ("description", GONE, "/description"), ("legal_basis", None, "/legal_basis"),
        ("retention", GONE, "/retention"), ("retention", [], "/retention"),
        ("retention.keep", GONE, "/retention/keep"), ("retention.keep", "90 days", "/retention/keep"),
        ("retention.keep", 90, "/retention/keep"), ("retention.from", GONE, "/retention/from"),
        ("retention.from", "sunrise", "/retention/from"), ("retention.from", "event:", "/retention/from"),
        ("retention.from", "last_activity", "/retention/latest"), ("retention.from", "consent", "/retention/latest"),
        ("retention.from", "event:role.closed", "/retention/latest"), ("retention.then", GONE, "/retention/then"),
        ("retention.then", "archive", "/retention/then"), ("retention.lock", "P91D", "/retention/lock"),
        ("retention.latest", "P1D", "/retention/latest"),
        ("retention.floor", {"for": "P1Y", "basis": "tax", "covers": "content"}, "/retention/floor/for"),
        ("retention.floor", {"for": "P1D", "covers": "content"}, "/retention/floor/basis"),
        ("retention.floor", {"for": "P1D", "basis": "tax"}, "/retention/floor/covers"),
        ("retention.ceiling", {"for": "P1Y"}, "/retention/ceiling/basis"),
        ("retention.ceiling", {"basis": "notice"}, "/retention/ceiling/for"),
        ("retention.ceiling", {"for": "P89D", "basis": "notice"}, "/retention/ceiling/for"),
        ("erasure", GONE, "/erasure"), ("erasure.on_request", GONE, "/erasure/on_request"),
        ("erasure.on_request", "forget", "/erasure/on_request"), ("erasure.required", "L9", "/erasure/required"),
        ("erasure.on_request", "retain", "/erasure/basis"), ("erasure.until", "some day", "/erasure/until"),
        ("derived.default", "maybe", "/derived/default"), ("derived.default", "regenerate", "/derived/callback"),
        ("derived.callback", {"url": "http://evil.example/x", "secret": "env:A", "deadline": "P1D"},
         "/derived/callback/url"),
        ("derived.callback", {"url": "https://a.example/x", "secret": "hunter2", "deadline": "P1D"},
         "/derived/callback/secret"),
        ("access.roles", ["king"], "/access/roles"), ("session", {"idle": "PT1M"}, "/session/expire"),
        ("content", "some", "/content"), ("update_authority", "anybody", "/update_authority"),
        ("replay", "roughly", "/replay"),
        ("immutability", "yes", "/immutability"), ("requires_sources", 1, "/requires_sources"),
        ("decay", {"half_life": "P1D", "reconfirm_below": 0.5, "expire_below": 0.1}, "/decay"),
        ("subject_types", ["User!"], "/subject_types"), ("colour", "red", "/colour"),
        ("retention.colour", "red", "/retention/colour"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_refused_at_its_place(path: str, value: Any, pointer: str) -> None:
    assert pointer in faults_of(changed(path, value))


@pytest.mark.parametrize("junk", [None, [], "class", 3])
def test_what_is_no_object_is_refused(junk: Any) -> None:
    assert "" in faults_of(junk)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("masking", {"fields": ["email"]}), ("anonymise", True), ("redact", ["email"]), ("joint", "all"),
        ("key_scope", "conversation"), ("schema", {"pattern": "a+"}),
        ("erasure.redact", ["a"]), ("erasure.masking", "hash"), ("erasure.on_request", "anonymise"),
        ("erasure.on_request", "redact"), ("derived.joint", "any"),
    ],
)  # fmt: skip
@pytest.mark.scenario("C3")
def test_what_is_not_built_is_refused_by_name(path: str, value: Any) -> None:
    with pytest.raises(NotBuilt) as refused:
        parse_class("support", changed(path, value))
    assert refused.value.problem == "not-built"
    assert refused.value.faults[0].pointer == "/" + path.replace(".", "/")


@pytest.mark.parametrize(
    ("retention", "erasure", "pointer", "says"),
    [
        ({"floor": {"for": "P80D", "basis": "tax", "covers": "content"}, "keep": "P80D", "lock": None}, {},
         "/retention/ceiling/for", "shorter than the floor (tax)"),
        ({}, {}, "/retention/ceiling/for", "shorter than keep"),
        ({"keep": "P30D", "latest": "P90D"}, {}, "/retention/ceiling/for", "shorter than latest"),
        ({"keep": "P60D", "then": "review"}, {}, "/retention/ceiling/for", "time for the review"),
        ({"keep": "P30D", "latest": "P60D", "from": "event:x", "then": "review"}, {}, "/retention/ceiling/for",
         "time for the review"),
        ({"keep": "P30D"}, {"on_request": "retain", "basis": "claims", "until": "P61D"}, "/erasure/until",
         "ends there"),
    ],
)  # fmt: skip
def test_a_ceiling_leaves_room_for_what_the_class_promises_to_keep(
    retention: dict[str, Any], erasure: dict[str, Any], pointer: str, says: str
) -> None:
    spec = copy.deepcopy(FULL)
    spec["retention"] |= {"ceiling": {"for": "P60D", "basis": "notice of 2026"}, **retention}
    spec["erasure"] |= erasure
    with pytest.raises(InvalidDeclaration) as refused:
        parse_class("support", spec)
    assert [fault.pointer for fault in refused.value.faults] == [pointer]
    assert says in refused.value.faults[0].detail


def test_an_aggregate_ends_by_a_humans_decision_only() -> None:
    with pytest.raises(InvalidDeclaration) as refused:
        parse_class("weights", changed("aggregate", True))
    assert [fault.pointer for fault in refused.value.faults] == ["/derived/default"]
    assert parse_class("weights", {**changed("aggregate", True), "derived": {"default": "review"}}).aggregate


def test_all_faults_are_named_at_once() -> None:
    assert {"/state", "/owner", "/retention", "/erasure", "/legal_basis", "/description"} <= faults_of({})


def test_no_refusal_repeats_what_was_sent() -> None:
    canary = "ada.lovelace@example.org"
    for spec in (
        changed("owner", [canary]),
        changed("state", canary),
        {**FULL, canary: 1},
        changed("purposes", [canary]),
    ):
        with pytest.raises(InvalidDeclaration) as refused:
            parse_class("support", spec)
        assert canary not in str(refused.value)


def test_every_starter_class_is_a_valid_declaration() -> None:
    expected = {"transcript", "tool", "decision", "summary", "embedding", "memory", "checkpoint", "export", "skeleton"}
    assert set(STARTER_CLASSES) == expected
    for name, spec in STARTER_CLASSES.items():
        parse_class(name, spec)


@pytest.mark.parametrize("name", ["", "Support", "a b", "x" * 65, "1st", "ä"])
def test_a_name_that_could_not_stand_in_a_header_is_refused(name: str) -> None:
    with pytest.raises(InvalidDeclaration):
        parse_class(name, FULL)


def test_the_same_declaration_again_makes_no_version(house: Any) -> None:
    with house.session() as session:
        first, made = put_class(session, house.alice, "support", FULL, house.now)
        again, made_again = put_class(session, house.alice, "support", copy.deepcopy(FULL), house.now)
        without_nulls = {**FULL, "erasure": {"on_request": "erase", "required": "L2"}}
        third, made_third = put_class(session, house.alice, "support", without_nulls, house.now)
    assert (first.version, made, again.version, made_again) == (1, True, 1, False)
    assert (third.version, made_third) == (1, False)


def test_a_changed_declaration_supersedes_and_the_old_version_stays_readable(house: Any) -> None:
    with house.session() as session:
        put_class(session, house.alice, "support", FULL, house.now)
        newer, made = put_class(session, house.alice, "support", changed("retention.keep", "P60D"), house.now)
        assert (newer.version, made) == (2, True)
        assert in_force(session, house.alice.tenant_id)["support"].keep == Duration(days=60)
        assert get_class(session, house.alice.tenant_id, "support", 1).keep == Duration(days=90)
        with pytest.raises(UnknownClass):
            get_class(session, house.alice.tenant_id, "support", 3)


def test_a_class_with_live_items_is_neither_removed_nor_made_impersonal(house: Any) -> None:
    house.register([house.item(1)])
    impersonal = {**STARTER_CLASSES["memory"], "personal": False}
    with house.session() as session:
        with pytest.raises(ClassInUse) as refused:
            remove_class(session, house.alice, "memory")
        assert refused.value.live == 1
        with pytest.raises(ClassInUse):
            put_class(session, house.alice, "memory", impersonal, house.now)
        longer = copy.deepcopy(STARTER_CLASSES["memory"])
        longer["retention"]["keep"] = "P2Y"
        assert put_class(session, house.alice, "memory", longer, house.now)[1]


def test_a_removed_class_is_out_of_force_and_may_come_back_as_a_new_version(house: Any) -> None:
    with house.session() as session:
        remove_class(session, house.alice, "export")
        assert "export" not in in_force(session, house.alice.tenant_id)
        with pytest.raises(UnknownClass):
            get_class(session, house.alice.tenant_id, "export")
        with pytest.raises(UnknownClass):
            remove_class(session, house.alice, "export")
        back, made = put_class(session, house.alice, "export", STARTER_CLASSES["export"], house.now)
    assert (back.version, made) == (2, True)


def test_a_difference_names_each_changed_field_with_both_values() -> None:
    old = parse_class("support", FULL)
    new = parse_class("support", changed("retention.keep", "P60D"), version=2)
    assert diff(old, new) == ['~ retention.keep: "P90D" -> "P60D"']
    assert diff(None, new)[0] == "+ data class support"
    assert diff(old, old) == []


@pytest.mark.parametrize(("one", "other"), [
    ({"const": None}, {}), ({"properties": {}}, {}), ({"const": 1}, {"const": "1"}), ({"const": 1}, {"const": True}),
])  # fmt: skip
def test_a_change_of_a_schema_is_a_version_and_a_line(house: Any, one: dict[str, Any], other: dict[str, Any]) -> None:
    # Null is a value there: a schema that took it away again was answered with the version before.
    memory = STARTER_CLASSES["memory"]
    first, second = ({**memory, "schema": {"type": "object", **schema}} for schema in (one, other))
    with house.session() as session:
        old, _ = put_class(session, house.alice, "memory", first, house.now)
        new, _ = put_class(session, house.alice, "memory", second, house.now)
        again, _ = put_class(session, house.alice, "memory", second, house.now)
    assert (new.version, again.version) == (old.version + 1, new.version)
    assert len(diff(old, new)) == 1
