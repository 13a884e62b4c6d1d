"""What a value of a class looks like: schemas that are bounded, values that fit, refusals that show nothing."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.classes import STARTER_CLASSES, parse_class
from registry.errors import InvalidDeclaration, NotBuilt
from registry.value_schema import DIGEST, MAX_SCHEMA_BYTES, UnusableSchema, check_value, compile_schema

PREFERENCE = {
    "type": "object",
    "required": ["topic", "likes"],
    "additionalProperties": False,
    "properties": {"topic": {"enum": ["receipts", "seats"]}, "likes": {"$ref": "#/$defs/text"}},
    "$defs": {"text": {"type": "string", "maxLength": 40}},
}
CANARY = "wombat-4711"
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def test_a_value_fits_or_the_place_in_the_schema_says_why() -> None:
    validator = compile_schema(PREFERENCE)
    assert check_value(validator, {"topic": "seats", "likes": "window"}) is None
    for bad, place in [
        ({"topic": "seats"}, "/required"),
        ({"topic": "mood", "likes": "x"}, "/properties/topic/enum"),
        ({"topic": "seats", "likes": "x" * 41}, "/properties/likes"),
        ({"topic": "seats", "likes": "x", CANARY: CANARY}, "/additionalProperties"),
        ([], "/type"),
    ]:
        fault = check_value(validator, bad)
        assert fault is not None
        assert place in fault
        assert CANARY not in fault


@given(json_values)
def test_a_refusal_is_a_text_or_nothing_whatever_is_sent(value: Any) -> None:
    fault = check_value(compile_schema(PREFERENCE), value)
    fits = isinstance(value, dict) and set(value) == {"topic", "likes"}
    assert (fault is None) <= fits


def test_the_shipped_digest_wants_structure_and_the_turns_it_covers() -> None:
    digest: dict[str, Any] = {
        "goal": "refund", "facts": ["charged twice"], "decisions": [], "open": ["amount"], "covers": ["e1"],
        "dropped": [], "pinned": ["30 EUR"],
    }  # fmt: skip
    validator = compile_schema(DIGEST)
    assert check_value(validator, digest) is None
    assert check_value(validator, "The user wants a refund.") is not None
    assert check_value(validator, {**digest, "covers": []}) is not None
    with pytest.raises(UnusableSchema, match=DIGEST):
        compile_schema("summary/v9")


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"$ref": "https://example.org/schema.json"}, "stays inside"),
        ({"$ref": "#/$defs/none"}, "points at nothing"),
        ({"$ref": "#"}, "contains itself"),
        ({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}, "contains itself"),
        ({"properties": {"x": {"pattern": "(a+)+$"}}}, "pattern is not built"),
        ({"type": "wombat"}, "not a JSON Schema"),
        ({"properties": {"x": 5}}, "expected a schema"),
        ({"description": "x" * MAX_SCHEMA_BYTES}, "bytes"),
        (["object"], "expected a JSON Schema"),
    ],
)
def test_schemas_that_are_unbounded_or_none_are_refused(schema: Any, place: str) -> None:
    with pytest.raises(UnusableSchema, match=place):
        compile_schema(schema)


def test_a_small_schema_cannot_cost_minutes() -> None:
    levels: dict[str, Any] = {f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 6} for n in range(10)}
    levels["l10"] = {"type": "string"}
    begun = time.process_time()
    with pytest.raises(UnusableSchema, match="steps"):
        compile_schema({"$defs": levels, "$ref": "#/$defs/l0"})
    assert time.process_time() - begun < 1


def test_nothing_is_ever_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    validator = compile_schema({"$id": "https://example.org/root", "properties": {"x": {"$ref": "#/$defs/y"}},
                                "$defs": {"y": {"type": "string"}}})  # fmt: skip
    assert check_value(validator, {"x": 1}) is not None


def test_deep_and_large_values_are_refused_before_they_are_checked() -> None:
    validator = compile_schema({})
    deep: Any = []
    for _ in range(40):
        deep = [deep]
    assert "deeper" in str(check_value(validator, deep))
    assert "bytes" in str(check_value(validator, "x" * 20_000))
    assert "members" in str(check_value(validator, [1] * 5_000))
    wide = compile_schema({"items": {"anyOf": [{"const": n} for n in range(500)]}})
    assert "members" in str(check_value(wide, ["x"] * 500))
    assert check_value(validator, float("nan")) == "expected plain JSON"


def test_only_memories_and_summaries_have_schemas_and_only_memories_are_written_after_something() -> None:
    memory, tool = STARTER_CLASSES["memory"], STARTER_CLASSES["tool"]
    one = parse_class("memory", {**memory, "schema": PREFERENCE, "write": {"cites_turn": True}})
    assert one.schema == PREFERENCE
    assert one.write is not None
    assert (one.write.cites_turn, one.write.follows_action) == (True, False)
    assert parse_class("summary", {**STARTER_CLASSES["summary"], "schema": DIGEST}).schema == DIGEST
    faulty: list[dict[str, Any]] = [{"schema": {}}, {"write": {"cites_turn": True}}]
    for wrong in faulty:
        with pytest.raises(InvalidDeclaration):
            parse_class("tool", {**tool, **wrong})
    with pytest.raises(NotBuilt, match="pattern"):
        parse_class("memory", {**memory, "schema": {"pattern": "a"}})
    with pytest.raises(InvalidDeclaration, match="/schema"):
        parse_class("memory", {**memory, "schema": {"type": "wombat"}})
