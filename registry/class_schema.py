"""The JSON Schema of a data class's declaration, for editors and checks before anything is sent.

Guarantees: made from the words and patterns that the parser itself uses (`registry.declaration`), so that the two
cannot drift apart: whatever the parser accepts fits the schema. The other way round the parser says more: rules over
several fields, and what is not built, stand there with their reasons. Source: JSON Schema 2020-12.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from registry.declaration import CLOCKS, EVENT, LEVELS, ROLES, STATES, SUBJECT_TYPE
from registry.reading import CODE

SCHEMA_ID = "urn:muniment:schema:data-class:v1"
_TIME = r"(?:T(?=[0-9])(?:[0-9]{1,6}H)?(?:[0-9]{1,7}M)?(?:[0-9]{1,9}S)?)?"
DURATION = r"^P(?=[0-9]|T[0-9])(?:[0-9]{1,5}Y)?(?:[0-9]{1,5}M)?(?:[0-9]{1,5}W)?(?:[0-9]{1,6}D)?" + _TIME + "$"


def class_schema() -> dict[str, Any]:
    """The schema of one declaration."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "Muniment data class",
        "type": "object",
        "additionalProperties": False,
        "required": ["state", "personal", "owner", "description", "legal_basis", "retention", "erasure"],
        "properties": {
            "state": _words(STATES),
            "personal": {"type": "boolean"},
            "owner": _text("The one team that answers for the class."),
            "description": _text("What it is, in words that stand on a certificate."),
            "legal_basis": _text("GDPR Art. 6."),
            "categories": _codes(CODE.pattern),
            "subject_types": _codes(SUBJECT_TYPE.pattern),
            "purposes": _codes(CODE.pattern),
            "requires_sources": _or_null({"type": "boolean"}),
            "aggregate": _or_null({"type": "boolean"}),
            "retention": _retention(),
            "erasure": _erasure(),
            "derived": _derived(),
            "access": _object({"roles": _or_null({"type": "array", "items": _words(ROLES)}),
                               "purposes": _codes(CODE.pattern)}),
            "session": _object({"idle": _duration(), "resume_within": _duration(), "expire": _duration()},
                               required=("idle", "resume_within", "expire")),
            "decay": _object({"half_life": _duration(), "reconfirm_below": _share(), "expire_below": _share()},
                             required=("half_life", "reconfirm_below", "expire_below")),
            "write": _object({"cites_turn": _or_null({"type": "boolean"}),
                              "follows_action": _or_null({"type": "boolean"})}),
            "schema": {"type": ["object", "string", "null"]},
            "key_scope": {"type": "null", "description": "Not built: keys are per subject, class and month."},
            "content": _or_null(_words(("expected", "none"))),
            "update_authority": _or_null(_words(("append-only", "owner", "subject"))),
            "replay": _or_null(_words(("exact", "state", "none"))),
            "immutability": _or_null(_words(("governance", "compliance", "none"))),
        },
    }  # fmt: skip


def _retention() -> dict[str, Any]:
    floor = {"for": _duration(), "basis": _text("The law."), "covers": _words(("content", "skeleton"))}
    ceiling = {"for": _duration(), "basis": _text("Who promised it where.")}
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["keep", "from", "then"],
        "properties": {
            "keep": _duration(),
            "from": {"anyOf": [_words(CLOCKS), {"type": "string", "pattern": f"^{EVENT.pattern}$"}]},
            "latest": _or_null(_duration()),
            "lock": _or_null(_duration()),
            "then": _words(("erase", "review")),
            "floor": _object(floor, required=("for", "basis", "covers")),
            "ceiling": _object(ceiling, required=("for", "basis")),
        },
        "if": {"properties": {"from": {"enum": ["created", "observed"]}}},
        "else": {"required": ["latest"], "properties": {"latest": _duration()}},
    }


def _erasure() -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["on_request"],
        "properties": {
            "on_request": _words(("erase", "regenerate", "retain")),
            "required": _or_null(_words(LEVELS)),
            "basis": _or_null({"type": "string"}),
            "until": _or_null({"type": "string", "description": "A date, an RFC 3339 time, or a duration."}),
        },
        "if": {"properties": {"on_request": {"const": "retain"}}},
        "then": {"required": ["basis", "until"], "properties": {"basis": _text("The ground."),
                                                                "until": {"type": "string"}}},
    }  # fmt: skip


def _derived() -> dict[str, Any]:
    callback = {"url": {"type": "string", "maxLength": 2048}, "secret": {"type": "string", "pattern": "^(env|file):"},
                "deadline": _duration()}  # fmt: skip
    return _object(
        {
            "default": _or_null(_words(("cascade", "regenerate", "keep_if_other_sources", "review"))),
            "may_outlive_source": _or_null({"type": "boolean"}),
            "callback": _object(callback, required=("url", "secret", "deadline")),
        }
    )


def _object(properties: Mapping[str, Any], *, required: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "type": ["object", "null"],
        "additionalProperties": False,
        "required": list(required),
        "properties": dict(properties),
    }


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [dict(schema), {"type": "null"}]}


def _words(words: Sequence[str]) -> dict[str, Any]:
    return {"type": "string", "enum": list(words)}


def _codes(pattern: str) -> dict[str, Any]:
    return _or_null({"type": "array", "items": {"type": "string", "pattern": f"^(?:{pattern})$"}})


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "description": description}


def _duration() -> dict[str, Any]:
    return {"type": "string", "pattern": DURATION, "description": "ISO 8601: P90D, P6M, PT30M."}


def _share() -> dict[str, Any]:
    return {"type": "number", "minimum": 0, "maximum": 1}
