"""Data classes as versioned rows: put, read, compare, remove.

Guarantees: versions are never changed; the same declaration again makes no new version; the highest one is in force.
A class with live items is neither removed nor turned into another kind. The caller commits and announces.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from registry import bulk
from registry.acting import Acting
from registry.declaration import DataClass, parse_class
from registry.errors import ClassInUse, UnknownClass
from registry.models import Artifact, DataClassRow
from vault.models import DataKey, KeyState

__all__ = ["STARTER_CLASSES", "DataClass", "diff", "get_class", "in_force", "parse_class", "put_class", "remove_class"]

UNASSIGNED = "unassigned-platform-team"
"""The owner of the starter classes until a team takes them; the inventory reports it as no owner."""
ENDED = ("erased",)
"""States of an artifact in which nothing is left of it."""
# A rule changes its meaning with these: whose data it is and what kind it is.
_FIXED_WHILE_LIVE = ("state", "personal")

_IN_FORCE = (
    "SELECT name, version, CAST(spec AS TEXT) FROM data_class WHERE tenant_id = ? AND NOT retired AND (name, version) "
    "IN (SELECT name, MAX(version) FROM data_class WHERE tenant_id = ? GROUP BY name) ORDER BY name"
)

_SCHEMA = "schema"


def put_class(session: Session, acting: Acting, name: str, spec: object, now: datetime) -> tuple[DataClass, bool]:
    """The class in force after the declaration, and whether a version was made.

    Raises: InvalidDeclaration, NotBuilt; ClassInUse when live items forbid the change.
    """
    wanted = parse_class(name, spec)
    row = _newest(session, acting.tenant_id, name)
    if row is not None and not row.retired:
        current = _from_row(row)
        if _canonical(current.spec) == _canonical(wanted.spec):
            return current, False
        changed = [name_ for name_ in _FIXED_WHILE_LIVE if getattr(current, name_) != getattr(wanted, name_)]
        if changed and (live := live_items(session, acting.tenant_id, name)):
            raise ClassInUse(name, live, f"a change of {' and '.join(changed)}")
    version = 1 if row is None else row.version + 1
    session.add(
        DataClassRow(
            tenant_id=acting.tenant_id,
            name=name,
            version=version,
            spec=dict(wanted.spec),
            created_at=now,
            created_by=acting.principal,
        )
    )
    session.flush()
    return parse_class(name, wanted.spec, version=version), True


def in_force(session: Session, tenant_id: int, *, state: str | None = None) -> dict[str, DataClass]:
    """The classes of the tenant as they are now, by name; with `state` those of one kind of agent data only."""
    found = {
        name: _parsed(name, spec, version)
        for name, version, spec in bulk.select(session, _IN_FORCE, (tenant_id, tenant_id))
    }
    return {name: one for name, one in found.items() if state is None or one.state == state}


def get_class(session: Session, tenant_id: int, name: str, version: int | None = None) -> DataClass:
    """One version of a class, the one in force without a number. Raises: UnknownClass."""
    if version is None:
        row = _newest(session, tenant_id, name)
        if row is not None and row.retired:
            row = None
    else:
        row = session.get(DataClassRow, (tenant_id, name, version))
    if row is None:
        raise UnknownClass(name, version)
    return _from_row(row)


def remove_class(session: Session, acting: Acting, name: str) -> None:
    """Retire a class; its versions stay readable. Raises: UnknownClass; ClassInUse with the number of live items."""
    row = _newest(session, acting.tenant_id, name)
    if row is None or row.retired:
        raise UnknownClass(name)
    if live := live_items(session, acting.tenant_id, name):
        raise ClassInUse(name, live, "removal")
    row.retired = True
    session.add(row)
    session.flush()


def live_items(session: Session, tenant_id: int, name: str) -> int:
    """How many artifacts and record keys of the class are not gone. Each key opens a person's month of the record."""
    artifacts = session.scalar(
        sa.select(sa.func.count())
        .select_from(Artifact)
        .where(
            col(Artifact.tenant_id) == tenant_id,
            col(Artifact.data_class) == name,
            col(Artifact.status).not_in(ENDED),
        )
    )
    keys = session.scalar(
        sa.select(sa.func.count())
        .select_from(DataKey)
        .where(
            col(DataKey.tenant_id) == tenant_id,
            col(DataKey.data_class) == name,
            col(DataKey.state) != KeyState.DESTROYED.value,
        )
    )
    return int(artifacts or 0) + int(keys or 0)


def diff(old: DataClass | None, new: DataClass) -> list[str]:
    """The changed fields in words, one a line, in the order of their paths."""
    before = {} if old is None else _leaves(old.spec)
    after = _leaves(new.spec)
    lines = [] if old is not None else [f"+ data class {new.name}"]
    for path in sorted(before.keys() | after.keys()):
        was, is_now = before.get(path), after.get(path)
        if was == is_now:
            continue
        if was is None:
            lines.append(f"+ {path}: {is_now}")
        elif is_now is None:
            lines.append(f"- {path}: {was}")
        else:
            lines.append(f"~ {path}: {was} -> {is_now}")
    return lines


def _newest(session: Session, tenant_id: int, name: str) -> DataClassRow | None:
    return session.exec(
        select(DataClassRow)
        .where(DataClassRow.tenant_id == tenant_id, DataClassRow.name == name)
        .order_by(sa.desc("version"))
        .limit(1)
    ).first()


def _from_row(row: DataClassRow) -> DataClass:
    return _parsed(row.name, json.dumps(row.spec), row.version)


@lru_cache(maxsize=512)
def _parsed(name: str, spec: str, version: int) -> DataClass:
    """A declaration is read once, not once a batch; what it says is the key, so that no other can take its place."""
    return parse_class(name, json.loads(spec), version=version)


def _canonical(spec: Mapping[str, Any]) -> str:
    return json.dumps(_without_nulls(spec), sort_keys=True)


def _without_nulls(value: Any) -> Any:
    """A declaration without what is absent; a JSON Schema as it is, in which null is a value like any other."""
    if isinstance(value, Mapping):
        return {
            name: member if name == _SCHEMA else _without_nulls(member)
            for name, member in value.items()
            if member is not None
        }
    return value


def _leaves(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, member in value.items():
        if isinstance(member, Mapping) and member:
            found |= _leaves(member, f"{prefix}{name}.")
        elif member is not None or prefix.startswith(f"{_SCHEMA}."):
            found[f"{prefix}{name}"] = json.dumps(member, sort_keys=True)
    return found


def _starter(
    state: str,
    description: str,
    keep: str,
    *,
    start: str = "created",
    derived: str = "cascade",
    replay: str = "none",
    authority: str = "owner",
    **more: Any,
) -> dict[str, Any]:
    return {
        "state": state,
        "personal": True,
        "owner": UNASSIGNED,
        "description": description,
        "legal_basis": "legitimate interest",
        "retention": {"keep": keep, "from": start, "then": "erase"},
        "erasure": {"on_request": "erase", "required": "L2"},
        "derived": {"default": derived},
        "update_authority": authority,
        "replay": replay,
        **more,
    }


_APPEND_ONLY: dict[str, Any] = {"authority": "append-only", "replay": "exact", "immutability": "governance"}
_READERS = {"roles": ["auditor"], "purposes": ["dispute", "audit"]}
STARTER_CLASSES: dict[str, dict[str, Any]] = {
    "transcript": _starter("record", "what was said between a person and an agent", "P90D", **_APPEND_ONLY,
                           access=_READERS),
    "tool": _starter("record", "tool calls with their arguments and results", "P90D", **_APPEND_ONLY, access=_READERS),
    "decision": _starter("record", "consequential decisions with policy and approval", "P7Y", **_APPEND_ONLY,
                         access=_READERS),
    "summary": _starter("conversation", "compressed turns of a conversation", "P90D", requires_sources=True),
    "embedding": _starter("conversation", "vectors made from text", "P90D", requires_sources=True),
    "memory": _starter("memory", "what an agent remembers of a person", "P1Y", start="observed",
                       decay={"half_life": "P180D", "reconfirm_below": 0.6, "expire_below": 0.2}),
    "checkpoint": _starter("checkpoint", "the state from which a run resumes", "P30D", replay="state"),
    "export": _starter("file", "answers to requests and evidence bundles handed out", "P30D"),
    "skeleton": {
        **_starter("record", "which agent, model, prompt and policy acted, naming nobody", "P7Y", **_APPEND_ONLY,
                   access=_READERS),
        "personal": False,
        "legal_basis": "legal obligation (AI Act 26(6))",
    },
}  # fmt: skip
"""What `init` registers. The owner is named as missing on purpose: the inventory puts such classes first."""
