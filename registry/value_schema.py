"""The schema of a value: what a class says a memory or a summary looks like, and whether one does.

Guarantees: pure; a schema that passes can be checked in bounded time and memory and never asks the network: references
stay inside it, none leads back to itself, patterns are refused because one of them can stall the gate. A refusal names
the place in the schema, never a value or a key of what was sent. Nothing of the value is kept.
Source: JSON Schema 2020-12.

    >>> check_value(compile_schema({"type": "object", "required": ["likes"]}), {})
    'the value breaks the schema of its class at /required'
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jsonschema
from jsonschema.protocols import Validator
from referencing import Registry

MAX_SCHEMA_BYTES = 16_384
MAX_VALUE_BYTES = 16_384
MAX_DEPTH = 32
MAX_NODES = 2_000
MAX_STEPS = 10_000
"""Subschemas that one value can meet once each, references followed; beyond it a small text can cost minutes."""
MAX_WORK = 200_000
"""Steps for one value as a whole: those of its schema, for each of its members."""
DIGEST = "summary-digest/v1"
"""The shipped schema of summaries, which a class may name instead of writing its own."""
_REFUSED = ("pattern", "patternProperties", "$dynamicRef", "$recursiveRef", "unevaluatedProperties",
            "unevaluatedItems")  # fmt: skip
_MAPS = ("properties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_TEXTS = {"type": "array", "items": {"type": "string", "minLength": 1}}
SHIPPED: Mapping[str, Mapping[str, Any]] = {
    DIGEST: {
        "type": "object",
        "required": ["goal", "facts", "decisions", "open", "covers", "dropped", "pinned"],
        "additionalProperties": False,
        "properties": {
            "goal": {"type": "string"},
            "facts": _TEXTS,
            "decisions": _TEXTS,
            "open": _TEXTS,
            "covers": {**_TEXTS, "minItems": 1},
            "dropped": {"type": "array"},
            "pinned": {"type": "array"},
        },
    }
}
"""Schemas by name: recent turns compressed into structure, never prose on prose. `covers` names the turns."""


class UnusableSchema(Exception):
    """A schema that is none, or that this service will not check. `place` is a pointer into it."""

    def __init__(self, place: str, detail: str, *, built: bool = True) -> None:
        super().__init__(f"{place or '/'}: {detail}")
        self.place = place
        self.detail = detail
        self.built = built


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """A schema that can be checked, and what that costs for each member of a value."""

    validator: Validator
    steps: int


def compile_schema(schema: object) -> ValueSchema:
    """What checks values against a schema, or of a shipped one by its name. Raises: UnusableSchema."""
    if isinstance(schema, str):
        if schema not in SHIPPED:
            raise UnusableSchema("", f"expected a JSON Schema or one of {', '.join(SHIPPED)}")
        schema = SHIPPED[schema]
    if not isinstance(schema, Mapping):
        raise UnusableSchema("", "expected a JSON Schema as an object")
    try:
        text = json.dumps(schema, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise UnusableSchema("", "expected plain JSON") from None
    if len(text) > MAX_SCHEMA_BYTES:
        raise UnusableSchema("", f"{len(text)} bytes, expected at most {MAX_SCHEMA_BYTES}")
    return _compiled(text)


def check_value(schema: ValueSchema, value: Any) -> str | None:
    """Why a value does not fit, None where it does. Never repeats any of it."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return "expected plain JSON"
    if len(text) > MAX_VALUE_BYTES:
        return f"{len(text)} bytes of JSON, expected at most {MAX_VALUE_BYTES}; keep the value in its store"
    deepest, nodes = _measure(value)
    if deepest > MAX_DEPTH:
        return f"nested deeper than {MAX_DEPTH}"
    if nodes > MAX_NODES or nodes * schema.steps > MAX_WORK:
        return f"{nodes} members are too many to check against the schema of its class"
    error = next(iter(schema.validator.iter_errors(value)), None)
    if error is None:
        return None
    place = "".join(f"/{part}" for part in error.absolute_schema_path if not isinstance(part, int))
    return f"the value breaks the schema of its class at {place}"


@lru_cache(maxsize=256)
def _compiled(text: str) -> ValueSchema:
    schema = json.loads(text)
    steps = _Cost(schema).of(schema, "")
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        place = "".join(f"/{part}" for part in error.absolute_path)
        raise UnusableSchema(place, "not a JSON Schema of draft 2020-12") from None
    # An empty registry: without one the library would fetch references from the network.
    return ValueSchema(jsonschema.Draft202012Validator(schema, registry=Registry()), steps)


def _measure(value: object) -> tuple[int, int]:
    """How deep a value is nested, and how many members it has in all; counting ends where it is too deep."""
    deepest, nodes, waiting = 0, 0, [(value, 1)]
    while waiting:
        one, depth = waiting.pop()
        deepest, nodes = max(deepest, depth), nodes + 1
        if depth > MAX_DEPTH:
            break
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        waiting.extend((each, depth + 1) for each in inner)
    return deepest, nodes


class _Cost:
    """Counts the subschemas that one value can meet; refuses what is not bounded."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[str, int] = {}
        self._open: set[str] = set()

    def of(self, schema: Any, place: str, depth: int = 0) -> int:
        if isinstance(schema, bool):
            return 1
        if not isinstance(schema, dict):
            raise UnusableSchema(place, "expected a schema: an object, true or false")
        if depth > MAX_DEPTH:
            raise UnusableSchema(place, f"nested deeper than {MAX_DEPTH}")
        for name in _REFUSED:
            if name in schema:
                raise UnusableSchema(
                    f"{place}/{name}",
                    f"{name} is not built: use enum, const, format, maxLength or additionalProperties",
                    built=False,
                )
        total = 1
        for name, inner in self._inner(schema, place):
            total += self.of(inner, name, depth + 1)
            if total > MAX_STEPS:
                raise UnusableSchema(place, f"costs more than {MAX_STEPS} steps a value")
        if "$ref" in schema:
            total += self._followed(schema["$ref"], place, depth)
        return total

    def _inner(self, schema: Mapping[str, Any], place: str) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = [(f"{place}/{name}", schema[name]) for name in _ONE if name in schema]
        for name in _LISTS:
            if isinstance(schema.get(name), list):
                found += [(f"{place}/{name}/{number}", one) for number, one in enumerate(schema[name])]
        for name in _MAPS:
            if isinstance(schema.get(name), dict):
                found += [(f"{place}/{name}/{key}", one) for key, one in schema[name].items()]
        return found

    def _followed(self, reference: Any, place: str, depth: int) -> int:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise UnusableSchema(f"{place}/$ref", "a reference stays inside the schema: #/…")
        if reference in self._open:
            raise UnusableSchema(f"{place}/$ref", "a schema that contains itself is not built", built=False)
        if reference not in self._known:
            self._open.add(reference)
            self._known[reference] = self.of(self._target(reference, place), reference.removeprefix("#"), depth + 1)
            self._open.discard(reference)
        cost = self._known[reference]
        if cost > MAX_STEPS:
            raise UnusableSchema(place, f"costs more than {MAX_STEPS} steps a value")
        return cost

    def _target(self, reference: str, place: str) -> Any:
        found: Any = self._root
        for part in reference.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, dict) and key in found:
                found = found[key]
            else:
                raise UnusableSchema(f"{place}/$ref", "points at nothing in the schema")
        return found
