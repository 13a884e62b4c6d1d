"""The published JSON Schema of data classes and the parser never disagree in the dangerous direction."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.class_schema import class_schema
from registry.classes import STARTER_CLASSES
from registry.declaration import parse_class
from registry.errors import InvalidDeclaration

FULL: dict[str, Any] = {
    "state": "memory",
    "personal": True,
    "owner": "team-support",
    "description": "what people said",
    "categories": ["user.content"],
    "subject_types": ["user", "email"],
    "purposes": ["support"],
    "legal_basis": "contract",
    "retention": {
        "keep": "P90D", "from": "event:role.closed", "latest": "P1Y", "lock": "P30D", "then": "erase",
        "floor": {"for": "P6M", "basis": "AI Act 26(6)", "covers": "skeleton"},
        "ceiling": {"for": "P2Y", "basis": "notice of 2026, 4"},
    },
    "erasure": {"on_request": "retain", "required": "L2", "basis": "Art. 17(3)(b)", "until": "2030-01-01"},
    "derived": {
        "default": "regenerate", "may_outlive_source": False,
        "callback": {"url": "https://example.org/x", "secret": "env:S", "deadline": "P7D"},
    },
    "access": {"roles": ["auditor"], "purposes": ["dispute"]},
    "key_scope": None,
    "requires_sources": False,
    "session": {"idle": "PT30M", "resume_within": "PT10M", "expire": "P7D"},
    "decay": {"half_life": "P180D", "reconfirm_below": 0.6, "expire_below": 0.2},
    "write": {"cites_turn": True},
    "schema": {"type": "object"},
    "update_authority": "append-only",
    "replay": "exact",
    "immutability": "governance",
}  # fmt: skip
JUNK = [None, True, 0, -1, 1.5, "", "x", "P90D", "P1", "event:", "event:a", [], ["a"], [1], {}, {"x": 1}, "erase", "L9"]
VALIDATOR = jsonschema.Draft202012Validator(class_schema())


def paths(value: Any, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(value, dict):
        return [prefix]
    return [prefix, *(path for name, inner in value.items() for path in paths(inner, (*prefix, name)))]


def changed(spec: dict[str, Any], path: tuple[str, ...], how: object) -> dict[str, Any]:
    made = copy.deepcopy(spec)
    inner: Any = made
    for name in path[:-1]:
        inner = inner.get(name)
        if not isinstance(inner, dict):
            return made
    if how == "remove":
        inner.pop(path[-1], None)
    elif how == "unknown":
        inner["no_such_field"] = 1
    else:
        inner[path[-1]] = how
    return made


def accepted(spec: Any) -> bool:
    try:
        parse_class("c", spec)
    except InvalidDeclaration:
        return False
    return True


def test_the_schema_is_one_and_takes_what_the_parser_takes() -> None:
    jsonschema.Draft202012Validator.check_schema(class_schema())
    assert accepted(FULL)
    for spec in (FULL, *STARTER_CLASSES.values()):
        VALIDATOR.validate(spec)


@given(
    changes=st.lists(
        st.tuples(
            st.sampled_from([path for path in paths(FULL) if path]),
            st.one_of(st.sampled_from(JUNK), st.just("remove"), st.just("unknown")),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_whatever_the_parser_accepts_fits_the_schema(changes: list[tuple[tuple[str, ...], object]]) -> None:
    spec = FULL
    for path, how in changes:
        spec = changed(spec, path, how)
    if accepted(spec):
        VALIDATOR.validate(spec)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("owner",), "remove"), (("retention", "keep"), "90 days"), (("retention", "then"), "keep"),
        (("retention", "latest"), "remove"), (("erasure", "basis"), "remove"), (("erasure", "required"), "L9"),
        (("state",), "thought"), (("decay", "half_life"), "remove"), (("retention", "keep"), "unknown"),
        (("owner",), "unknown"), (("subject_types",), ["User"]), (("key_scope",), "conversation"),
        (("access", "roles"), ["king"]), (("derived", "callback", "secret"), "plain"),
    ],
)  # fmt: skip
def test_what_the_parser_refuses_by_field_the_schema_refuses_too(path: tuple[str, ...], value: object) -> None:
    spec = changed(FULL, path, value)
    assert not accepted(spec)
    assert list(VALIDATOR.iter_errors(spec))
