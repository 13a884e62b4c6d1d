"""Where an item lies, per kind of store: the shape is checked and written canonically, so one place is one artifact.

Guarantees: pure; numbers and texts stay apart (`1` is not `"1"`), a file's path is written one way only, and no error
repeats a value. Does not know whether the place exists; the connector checks that. Source: API §3.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from registry.keyed import canonical_json

LIMIT = 16_384
"""Bytes of a locator; a longer one names content, not a place."""
_VECTORS = ("pgvector", "qdrant", "chroma", "lancedb")


class MalformedLocator(Exception):
    """A locator has not the shape of its store's kind; `detail` names the member, never its value."""

    problem = "bad-locator"

    def __init__(self, detail: str) -> None:
        super().__init__(f"locator refused: {detail}")
        self.detail = detail


def normal_locator(kind: str, locator: object) -> dict[str, Any]:
    """The locator in its one written form. Raises: MalformedLocator."""
    if not isinstance(locator, Mapping) or not locator:
        raise MalformedLocator("expected an object that names one place")
    if kind == "sql":
        return _sql(locator)
    plain = {str(name): value for name, value in locator.items()}
    if kind == "files":
        return _files(plain)
    if kind == "redis":
        return _members(plain, {"key": True, "field": False})
    if kind == "s3":
        return _members(plain, {"key": True})
    if kind in _VECTORS:
        return _members(plain, {"collection": True, "id": True})
    if kind == "langgraph":
        return _members(plain, {"thread_id": True})
    if kind == "langgraph_store":
        return _namespace(plain)
    if kind == "mem0":
        return _members(plain, {"memory_id": True})
    # http and agent: the shape is that of the system behind; flat, so that it can be compared.
    return {name: _scalar(name, value) for name, value in plain.items()}


def kind_of_places(kind: str, config: Mapping[str, Any]) -> str:
    """The kind whose locators a store's items have: of a store in an agent's process, the kind that it is there."""
    behind = config.get("kind")
    return behind if kind == "agent" and isinstance(behind, str) else kind


def canonical_locator(locator: Mapping[str, Any]) -> bytes:
    """The bytes under which a place is looked up. Raises: MalformedLocator for one that is too long."""
    data = canonical_json(locator)
    if len(data) > LIMIT:
        raise MalformedLocator(f"{len(data)} bytes, expected at most {LIMIT}")
    return data


def _members(locator: Mapping[str, Any], wanted: Mapping[str, bool]) -> dict[str, Any]:
    for name in locator:
        if name not in wanted:
            raise MalformedLocator(f"unknown member, expected {', '.join(wanted)}")
    found = {}
    for name, required in wanted.items():
        if name in locator and locator[name] is not None:
            found[name] = _scalar(name, locator[name])
        elif required:
            raise MalformedLocator(f"{name} is missing")
    return found


def _scalar(name: str, value: object) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise MalformedLocator(f"{name} is not a text or an integer")
    if isinstance(value, str):
        if not value or "\0" in value:
            raise MalformedLocator(f"{name} is empty or contains a zero byte")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise MalformedLocator(f"{name} is not valid Unicode") from None
    return value


def _sql(locator: Mapping[str, Any]) -> dict[str, Any]:
    if locator.keys() != {"table", "key"}:
        raise MalformedLocator("expected table and key")
    table, key = locator["table"], locator["key"]
    if not isinstance(table, str):
        raise MalformedLocator("table is not a text")
    if not isinstance(key, Mapping) or not key:
        raise MalformedLocator("key is not an object of column: value")
    return {
        "table": _scalar("table", table),
        "key": {str(column): _scalar("a key's value", value) for column, value in sorted(key.items())},
    }


def _files(locator: Mapping[str, Any]) -> dict[str, Any]:
    """A path below the root; `lines` names the lines of a shared file that are somebody's."""
    path = locator.get("path")
    if not isinstance(path, str):
        raise MalformedLocator("path is missing or not a text")
    _scalar("path", path)
    if path.startswith("/") or ".." in path.split("/"):
        raise MalformedLocator("the path leaves the root of the store")
    normal = posixpath.normpath(path)
    if normal == "." or path.endswith("/"):
        raise MalformedLocator("the path names a folder")
    rest = {name: value for name, value in locator.items() if name != "path"}
    if not rest:
        return {"path": normal}
    if set(rest) == {"line_field", "line_value"}:
        rest = {"lines": {"field": rest["line_field"], "value": rest["line_value"]}}
    lines = rest.get("lines")
    if set(rest) != {"lines"} or not isinstance(lines, Mapping) or set(lines) != {"field", "value"}:
        raise MalformedLocator("expected path, or path and lines with field and value")
    if not isinstance(lines["field"], str):
        raise MalformedLocator("the lines' field is not a text")
    return {
        "path": normal,
        "lines": {"field": _scalar("field", lines["field"]), "value": _scalar("value", lines["value"])},
    }


def _namespace(locator: Mapping[str, Any]) -> dict[str, Any]:
    if set(locator) != {"namespace", "key"}:
        raise MalformedLocator("expected namespace and key")
    namespace = locator["namespace"]
    if not isinstance(namespace, list | tuple) or not namespace:
        raise MalformedLocator("namespace is not a list of labels")
    return {"namespace": [_scalar("a label", label) for label in namespace], "key": _scalar("key", locator["key"])}
