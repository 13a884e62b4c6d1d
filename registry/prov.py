"""Lineage in two vocabularies that other tools read: W3C PROV-JSON, and OpenLineage run events.

Guarantees: pure; what comes out names artifacts, entries, classes, stores, activities and people by opaque ids only: no
place, no caller's run, no id that a caller chose for itself in OpenLineage, where it leaves the house. The same input
gives the same bytes, so that a repeated event is the same event.
Source: PROV-JSON (W3C Member Submission 24 April 2013); OpenLineage 2-0-2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid5

PREFIX = "muniment"
NAMESPACE = "urn:muniment:{log_id}:"
PRODUCER = "urn:muniment:registry:v1"
SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
FACET_SCHEMA = "urn:muniment:facet:{name}:v1"
_QUALIFIED = "prov:QUALIFIED_NAME"
_RUNS = UUID("6d756e69-6d65-5e74-8000-6f6c72756e73")
"""The name space of our run ids (RFC 9562 §5.5); any fixed UUID would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An artifact or entry as both vocabularies show it. `subjects` are opaque ids."""

    id: str
    kind: str
    data_class: str | None = None
    class_version: int | None = None
    store: str | None = None
    status: str | None = None
    activity: str | None = None
    anonymised: bool = False
    created_at: datetime | None = None
    request: str | None = None
    registered_by: str | None = None
    subjects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Edge:
    """`made` was derived from `source`."""

    source: str
    made: str


def prov_document(
    log_id: str, nodes: Sequence[Node], edges: Iterable[Edge], *, truncated_at: str | None = None
) -> dict[str, Any]:
    """A PROV-JSON document: entities, the activities that made them, who they are about, what was erased.

    Says no more than is known: when an item was registered, not when it was made; who registered it, in that role; whom
    it is about, not who answers for it. `truncated_at` is the item whose origins go further than they are shown.
    """
    known = {node.id: node for node in nodes}
    document: dict[str, Any] = {
        "prefix": {PREFIX: NAMESPACE.format(log_id=log_id), "prov": "http://www.w3.org/ns/prov#"},
        "agent": {},
    }
    relations: dict[str, dict[str, Any]] = {}
    sources: dict[str, list[str]] = {}
    for edge in sorted(set(edges), key=lambda one: (one.made, one.source)):
        sources.setdefault(edge.made, []).append(edge.source)
    for node in nodes:
        document.setdefault("entity", {})[_name(node.id)] = _entity(node)
        for person in node.subjects:
            document["agent"].setdefault(_name(f"subject/{person}"), {"prov:type": _qualified("Person")})
        if node.id in sources or node.activity is not None:
            _made(document, relations, node, [one for one in sources.get(node.id, []) if one in known])
        if node.status == "erased":
            activity = _name(f"erasure/{node.request or 'unknown'}")
            document.setdefault("activity", {}).setdefault(activity, {"prov:type": _qualified("erasure")})
            _relate(relations, "wasInvalidatedBy", {"prov:entity": _name(node.id), "prov:activity": activity})
    if truncated_at in known:
        document["entity"][_name(truncated_at)][f"{PREFIX}:truncated"] = True
    return document | relations


def _made(document: dict[str, Any], relations: dict[str, Any], node: Node, sources: Sequence[str]) -> None:
    activity = _name(f"activity/{node.id}")
    document.setdefault("activity", {})[activity] = {"prov:type": _qualified(node.activity or "derivation")}
    _relate(relations, "wasGeneratedBy", {"prov:entity": _name(node.id), "prov:activity": activity})
    if node.registered_by is not None:
        registrar = _name(f"registrar/{node.registered_by}")
        document["agent"].setdefault(registrar, {"prov:type": {"$": "prov:SoftwareAgent", "type": _QUALIFIED}})
        association = {"prov:activity": activity, "prov:agent": registrar, "prov:role": _qualified("registrar")}
        _relate(relations, "wasAssociatedWith", association)
    for source in sources:
        _relate(relations, "used", {"prov:activity": activity, "prov:entity": _name(source)})
        _relate(
            relations,
            "wasDerivedFrom",
            {"prov:generatedEntity": _name(node.id), "prov:usedEntity": _name(source), "prov:activity": activity},
        )


def _entity(node: Node) -> dict[str, Any]:
    shown: dict[str, Any] = {"prov:type": _qualified(node.kind)}
    for name in ("data_class", "class_version", "store", "status"):
        value = getattr(node, name)
        if value is not None:
            shown[f"{PREFIX}:{name}"] = value
    if node.created_at is not None:
        shown[f"{PREFIX}:registered_at"] = node.created_at.isoformat()
    if node.subjects:
        shown[f"{PREFIX}:about"] = [_qualified(f"subject/{person}") for person in node.subjects]
    if node.anonymised:
        shown[f"{PREFIX}:anonymised"] = "declared"
    return shown


def _relate(relations: dict[str, dict[str, Any]], kind: str, values: Mapping[str, Any]) -> None:
    rows = relations.setdefault(kind, {})
    rows[f"_:{kind}{len(rows) + 1}"] = dict(values)


def _name(local: str) -> str:
    return f"{PREFIX}:{local}"


def _qualified(local: str) -> dict[str, str]:
    return {"$": f"{PREFIX}:{local}", "type": _QUALIFIED}


def derivation_event(log_id: str, made: Node, sources: Sequence[Node], at: datetime) -> dict[str, Any]:
    """An OpenLineage event: one derivation, complete."""
    inputs = [_dataset(log_id, one) for one in sorted(sources, key=lambda one: one.id)]
    key = f"derive:{log_id}:{made.id}:{','.join(one.id for one in sorted(sources, key=lambda one: one.id))}"
    return _event(log_id, made.activity or "derivation", key, at, inputs=inputs, outputs=[_dataset(log_id, made)])


def erasure_event(log_id: str, erased: Node, request: str, at: datetime) -> dict[str, Any]:
    """An OpenLineage event: one copy erased. The vocabulary has no such change, so a facet of ours says it."""
    output = _dataset(log_id, erased)
    output["facets"]["lifecycleStateChange"] = {
        "_producer": PRODUCER,
        "_schemaURL": "https://openlineage.io/spec/facets/1-0-1/LifecycleStateChangeDatasetFacet.json",
        "lifecycleStateChange": "DROP",
    }
    output["facets"]["muniment_erasure"] = {
        "_producer": PRODUCER,
        "_schemaURL": FACET_SCHEMA.format(name="erasure"),
        "request": request,
    }
    key = f"erase:{log_id}:{erased.id}:{request}"
    return _event(log_id, "erasure", key, at, inputs=[], outputs=[output])


def _event(
    log_id: str, job: str, key: str, at: datetime, *, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "eventType": "COMPLETE",
        "eventTime": at.isoformat(),
        "producer": PRODUCER,
        "schemaURL": SCHEMA,
        "run": {"runId": str(uuid5(_RUNS, key))},
        "job": {"namespace": NAMESPACE.format(log_id=log_id) + "jobs", "name": job},
        "inputs": inputs,
        "outputs": outputs,
    }


def _dataset(log_id: str, node: Node) -> dict[str, Any]:
    facet = {
        "_producer": PRODUCER,
        "_schemaURL": FACET_SCHEMA.format(name="artifact"),
        "kind": node.kind,
        "data_class": node.data_class,
        "class_version": node.class_version,
        "anonymised": node.anonymised,
    }
    return {
        "namespace": NAMESPACE.format(log_id=log_id) + (node.store or "record"),
        "name": node.id,
        "facets": {"muniment_artifact": facet},
    }
