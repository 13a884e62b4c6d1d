"""The OpenAPI document: what the framework knows of the routes, with an example of every body and every JSON answer.

Guarantees: an example is what this service answered, kept in `openapi_examples.json` and written anew by the test that
makes every call and holds the answers against the document. Where a route declares no more than an object, its schema
is read off the example: each member with its type or null, others allowed. No example holds a secret or a real person.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from registry.class_schema import class_schema

EXAMPLES = Path(__file__).with_name("openapi_examples.json")
JSON = "application/json"
LINES = "application/x-ndjson"
_Schemas = Mapping[str, dict[str, Any]]
_ANYTHING = frozenset({"body", "observed", "value", "said", "locator", "scope", "config", "key", "levels"})
"""Members that hold what callers declare or send: any JSON."""
_TYPES: tuple[tuple[type, str], ...] = ((bool, "boolean"), (int, "number"), (float, "number"), (str, "string"))
_PROBLEM: dict[str, Any] = {
    "title": "Problem",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "examples": ["/problems/invalid"]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
        "errors": {
            "type": "array",
            "description": "At every 422: where, by JSON pointer (RFC 6901); parameters stand below /query.",
            "items": {
                "type": "object",
                "properties": {"pointer": {"type": "string"}, "detail": {"type": "string"}},
            },
        },
    },
    "example": {
        "type": "/problems/invalid",
        "title": "The request is not valid",
        "status": 422,
        "detail": "1 field(s) are not valid",
        "instance": "urn:request:9fbfbe0eb0617131",
        "errors": [{"pointer": "/subjects/0", "detail": "required"}],
    },
}


def document(app: FastAPI) -> dict[str, Any]:
    """Returns the document of an application."""
    made = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes, tags=app.openapi_tags
    )
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    schemas["Problem"] = _PROBLEM
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    known: dict[str, Any] = json.loads(EXAMPLES.read_text(encoding="utf-8"))
    for name, operation in operations(made):
        responses = operation.get("responses", {})
        # Ours is in 4XX; the framework's shape for 422 is never sent.
        responses.pop("422", None)
        example = known.get(name, {})
        _show_request(name, operation, example, schemas)
        _share_content(responses)
        _show_responses(responses, example.get("responses", {}), schemas)
    return made


def operations(made: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the operations of a document under names such as `POST /v1/requests`."""
    for path, methods in made["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def shape_of(value: Any) -> dict[str, Any]:
    """Returns a schema that a value fits, and others like it: every member may be null or missing, or of another name.

    >>> shape_of([{"id": "a"}])
    {'type': 'array', 'items': {'type': ['object', 'null'], 'properties': {'id': {'type': ['string', 'null']}}}}
    """
    if value == {}:
        return {"type": ["object", "null"], "additionalProperties": {}}  # a map that was empty: of names unknown here
    if isinstance(value, dict):
        members = {name: {} if name in _ANYTHING else shape_of(member) for name, member in value.items()}
        return {"type": ["object", "null"], "properties": members}
    if isinstance(value, list):
        return {"type": "array", "items": _common([shape_of(item) for item in value])}
    return next(({"type": [name, "null"]} for kind, name in _TYPES if isinstance(value, kind)), {})


def _common(shapes: list[dict[str, Any]]) -> dict[str, Any]:
    if not shapes or any(shape.get("type") != shapes[0].get("type") for shape in shapes):
        return {}
    if "properties" not in shapes[0]:
        return shapes[0] if all(shape == shapes[0] for shape in shapes) else {}
    names = {name for shape in shapes for name in shape["properties"]}
    members = {
        name: _common([shape["properties"][name] for shape in shapes if name in shape["properties"]])
        for name in sorted(names)
    }
    return {"type": shapes[0]["type"], "properties": members}


def _show_request(name: str, operation: dict[str, Any], example: Mapping[str, Any], schemas: _Schemas) -> None:
    media = operation.get("requestBody", {}).get("content", {}).get(JSON)
    if media is None:
        return
    if "example" not in media:
        declared = _declared(media.get("schema", {}), schemas)
        shown = example.get("request") if declared is None else declared
        if shown is None:
            return
        media["example"] = shown
    if "/data-classes/" in name:
        media["schema"] = {key: value for key, value in class_schema().items() if not key.startswith("$")}
    media["schema"] = _told(media["schema"], media["example"], schemas)


def _declared(schema: Mapping[str, Any], schemas: _Schemas) -> Any:
    """The first example that a route's own schema gives."""
    if schema.get("examples"):
        return schema["examples"][0]
    if "$ref" in schema:
        return _declared(schemas[_name_in(schema)], schemas)
    found = (_declared(part, schemas) for part in schema.get("anyOf", ()))
    return next((one for one in found if one is not None), None)


def _share_content(responses: dict[str, Any]) -> None:
    """A route that answers 200 or 201 declares its answer once."""
    good = [response for code, response in responses.items() if code.startswith("2") and code != "204"]
    content = next((one["content"] for one in good if one.get("content")), None)
    for one in good:
        if content is not None and not one.get("content"):
            one["content"] = {media: dict(shape) for media, shape in content.items()}


def _show_responses(responses: dict[str, Any], examples: Mapping[str, Any], schemas: _Schemas) -> None:
    for code, response in responses.items():
        media = response.get("content", {}).get(JSON)
        if not code.startswith("2") or media is None or not examples:
            continue
        shown = examples.get(code, next(iter(examples.values())))
        if LINES in response["content"]:
            response["content"][LINES] = _as_lines(response["content"][LINES], shown)
        media.setdefault("example", shown)
        media["schema"] = _told(media.get("schema", {}), shown, schemas)


def _as_lines(media: Mapping[str, Any], shown: Mapping[str, Any]) -> dict[str, Any]:
    """The same answer as lines: what is said of the whole first, then an entry each."""
    head = {name: member for name, member in shown.items() if name != "entries"}
    lines = [json.dumps(one, ensure_ascii=False) + "\n" for one in (head, *shown["entries"])]
    return {"schema": {"type": "string"}, "example": "".join(lines), **media}


def _told(schema: dict[str, Any], example: Any, schemas: _Schemas) -> dict[str, Any]:
    """The schema itself where it says all there is, else one that the example completes."""
    full = _completed(schema, example, schemas)
    return schema if full == _completed(schema, None, schemas) else full


def _completed(schema: dict[str, Any], example: Any, schemas: _Schemas) -> dict[str, Any]:
    """The schema with its references put in, and every object of no known members given those of the example."""
    if "$ref" in schema:
        return _completed(schemas[_name_in(schema)], example, schemas)
    if "anyOf" in schema:
        kinds = [_completed(kind, None if kind.get("type") == "null" else example, schemas) for kind in schema["anyOf"]]
        return {**schema, "anyOf": kinds}
    if not schema:
        return {} if example is None else shape_of(example)
    if schema.get("type") == "array":
        first = example[0] if isinstance(example, list) and example else None
        return {**schema, "items": _completed(schema.get("items", {}), first, schemas)}
    if schema.get("type") != "object" or isinstance(schema.get("additionalProperties"), dict):
        return schema
    known = schema.get("properties", {})
    given = example if isinstance(example, dict) else {}
    members = {name: _completed(part, None if name in _ANYTHING else given.get(name), schemas)
               for name, part in known.items()}  # fmt: skip
    if not known or schema.get("additionalProperties") is True:
        members |= {
            name: {} if name in _ANYTHING else shape_of(part) for name, part in given.items() if name not in known
        }
    return {**schema, "properties": members} if members else schema


def _name_in(schema: Mapping[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]
