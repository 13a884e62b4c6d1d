"""Registered stores as versioned rows: put, read, remove.

Guarantees: no secret is kept, only references (`env:`, `file:`) within the tenant's own; registering never contacts the
store; a store that points outside the operator's list is refused by the `check_target` passed in; one with live
artifacts is neither removed nor turned into another kind. The caller commits and announces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import sqlalchemy as sa
from sqlmodel import Session, col, select

from connectors.base import MEM0_ELSEWHERE, MEM0_VECTORS
from connectors.http_recipe import shipped
from registry.acting import Acting
from registry.errors import StoreInUse, UnknownStore
from registry.models import Artifact, StoreRow
from registry.reading import NAME, Faults, Reader

CheckTarget = Callable[[str, Mapping[str, Any]], None]
"""Returns when the operator allows what a kind's configuration points at. Raises: TargetNotAllowed."""

_VECTOR = (("path", "url"), frozenset({"path", "url", "api_key", "owner_field"}))
_CONFIG: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {
    "sql": (
        ("url",),
        frozenset({"url", "owner_field", "children", "statement_timeout", "wal_retention"}),
    ),
    "pgvector": (("url",), frozenset({"url", "owner_field", "statement_timeout", "wal_retention"})),
    "redis": (("url",), frozenset({"url", "owner_field"})),
    "s3": (
        ("bucket",),
        frozenset({"bucket", "endpoint_url", "region", "access_key", "secret_key", "owner_field", "legal_holds"}),
    ),
    "files": (("root",), frozenset({"root", "owner_field", "hard_links"})),
    "qdrant": _VECTOR,
    "chroma": _VECTOR,
    "lancedb": _VECTOR,
    "langgraph": (
        ("url", "folder"),
        frozenset({"url", "folder", "keys", "owner_field", "fence", "statement_timeout", "wal_retention"}),
    ),
    "langgraph_store": (("url",), frozenset({"url", "owner_field", "statement_timeout", "wal_retention"})),
    "mem0": (
        ("path", "url"),
        frozenset({"path", "url", "api_key", "owner_field", "vector_store", "statement_timeout", "wal_retention"}),
    ),
    "http": (("url",), frozenset({"url", "recipe", "secret", "owner_field", "scope"})),
    "agent": ((), frozenset({"kind", "owner_field"})),
}
"""Per kind: of which one must be there, and which settings exist. Source: API §3."""
KINDS = tuple(_CONFIG)
_ALONE = frozenset({"qdrant", "chroma", "lancedb", "mem0"})
_SECRET_SETTINGS = frozenset({"api_key", "secret", "access_key", "secret_key", "password", "token"})
_SECONDS = frozenset({"statement_timeout", "wal_retention"})
_ABOUT = ("recipient", "country", "backup_retention", "log_retention", "cache_ttl", "provider_retention")
_REFERENCE = re.compile(r"env:[A-Z0-9_]{1,200}|file:[A-Za-z0-9][A-Za-z0-9_./-]{0,255}")
_COUNTRY = re.compile(r"[A-Z]{2}")


def put_store(
    session: Session, acting: Acting, name: str, spec: object, now: datetime, *, check_target: CheckTarget
) -> tuple[StoreRow, bool]:
    """The store in force after the declaration, and whether a version was made.

    Raises: InvalidDeclaration with every fault, TargetNotAllowed; StoreInUse when live artifacts forbid another kind.
    """
    kind, config, about = parse_store(acting.tenant, name, spec)
    check_target(kind, config)
    row = _newest(session, acting.tenant_id, name)
    if row is not None and not row.removed:
        if (row.kind, row.config, row.about) == (kind, config, about):
            return row, False
        if row.kind != kind and (live := live_artifacts(session, acting.tenant_id, name)):
            raise StoreInUse(name, live, "a change of its kind")
    made = StoreRow(
        tenant_id=acting.tenant_id,
        name=name,
        version=1 if row is None else row.version + 1,
        kind=kind,
        config=config,
        about=about,
        created_at=now,
        created_by=acting.principal,
    )
    session.add(made)
    session.flush()
    return made, True


def parse_store(tenant: str, name: str, spec: object) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Kind, configuration and what is known about a store. Raises: InvalidDeclaration."""
    faults = Faults(f"store {name if NAME.fullmatch(name) else '?'}")
    if not NAME.fullmatch(name):
        faults.add("/name", f"expected {NAME.pattern}")
    top = Reader(spec, faults)
    kind = top.choice("kind", KINDS, required="which connector drives it")
    config = top.inner("config")
    if config is None and kind:
        top.add("config", "missing: without it nothing can be erased there")
    about = _about(top)
    top.done()
    values = _config(kind, config, tenant) if config is not None and kind else {}
    faults.raise_any()
    return kind, values, about


def in_force(session: Session, tenant_id: int) -> dict[str, StoreRow]:
    """The stores of the tenant as they are now, by name."""
    newest = (
        select(StoreRow.name, sa.func.max(StoreRow.version).label("version"))
        .where(StoreRow.tenant_id == tenant_id)
        .group_by(col(StoreRow.name))
        .subquery()
    )
    rows = session.exec(
        select(StoreRow)
        .join(newest, sa.and_(newest.c.name == StoreRow.name, newest.c.version == StoreRow.version))
        .where(StoreRow.tenant_id == tenant_id, col(StoreRow.removed).is_(False))
        .order_by(col(StoreRow.name))
    )
    return {row.name: row for row in rows}


def get_store(session: Session, tenant_id: int, name: str) -> StoreRow:
    """The store in force of that name. Raises: UnknownStore."""
    row = _newest(session, tenant_id, name)
    if row is None or row.removed:
        raise UnknownStore(name)
    return row


def remove_store(session: Session, acting: Acting, name: str) -> None:
    """Take a store out of force. Raises: UnknownStore; StoreInUse with the number of live artifacts."""
    row = get_store(session, acting.tenant_id, name)
    if live := live_artifacts(session, acting.tenant_id, name):
        raise StoreInUse(name, live)
    row.removed = True
    session.add(row)
    session.flush()


def live_artifacts(session: Session, tenant_id: int, name: str) -> int:
    """How many artifacts in the store are not gone."""
    count = session.scalar(
        sa.select(sa.func.count())
        .select_from(Artifact)
        .where(col(Artifact.tenant_id) == tenant_id, col(Artifact.store) == name, col(Artifact.status) != "erased")
    )
    return int(count or 0)


def view(row: StoreRow) -> dict[str, Any]:
    """The store as it may be shown: settings that hold references to secrets are named, never echoed."""
    shown = {
        setting: "(secret)" if isinstance(value, str) and _REFERENCE.fullmatch(value) else value
        for setting, value in row.config.items()
    }
    return {"name": row.name, "version": row.version, "kind": row.kind, "config": shown, **_absent_as_null(row.about)}


def secret_prefix(tenant: str) -> str:
    """The prefix of a tenant's variables; `-` becomes `__`, so that no tenant's prefix begins another's."""
    return f"MUNIMENT_SECRET_{tenant.upper().replace('-', '__')}_"


def _absent_as_null(about: Mapping[str, Any]) -> dict[str, Any]:
    return {name: about.get(name) for name in _ABOUT}


def _about(top: Reader) -> dict[str, Any]:
    about: dict[str, Any] = {"recipient": top.text("recipient", limit=256) or None}
    about["country"] = top.code("country", pattern=_COUNTRY)
    for name in ("backup_retention", "log_retention", "cache_ttl", "provider_retention"):
        if top.fields.get(name) == "unknown":
            about[name] = top.raw(name)
        else:
            duration = top.duration(name)
            about[name] = None if duration is None else str(duration)
    return {name: value for name, value in about.items() if value is not None}


def _config(kind: str, reader: Reader, tenant: str) -> dict[str, Any]:
    required, known = _CONFIG[kind]
    values: dict[str, Any] = {}
    for name in sorted(known):
        value = reader.raw(name)
        if value is not None:
            values[name] = value
            _check_setting(reader, name, value, tenant)
    reader.done()
    present = [name for name in required if name in values]
    if required and not present:
        reader.add(required[0], f"missing: kind {kind} needs {' or '.join(required)}")
    if _is_mem0_in_postgres(kind, values):
        # The folder of the history, and the database of the memories.
        for name in required:
            if name not in values:
                reader.add(name, f"missing: mem0 over pgvector needs {' and '.join(required)}")
    elif kind in _ALONE and len(present) > 1:
        reader.add("", f"expected one of {' and '.join(required)}, not both")
    _check_kind(kind, values, reader)
    return values


def _is_mem0_in_postgres(kind: str, values: Mapping[str, Any]) -> bool:
    return kind == "mem0" and values.get("vector_store") == "pgvector"


def _check_setting(reader: Reader, name: str, value: object, tenant: str) -> None:
    if name in _SECONDS and isinstance(value, int) and not isinstance(value, bool):
        return
    if not isinstance(value, str) or not value.strip():
        reader.add(name, f"expected a text{' or a whole number of seconds' if name in _SECONDS else ''}")
        return
    if any(ord(sign) < 32 for sign in value) or len(value) > 2048:  # noqa: PLR2004
        reader.add(name, "expected at most 2048 characters without control characters")
    elif value.startswith(("env:", "file:")) and not value.startswith("file:/"):
        _check_reference(reader, name, value, tenant)
    elif name in _SECRET_SETTINGS:
        reader.add(name, "a secret stands here; give a reference env:… or file:… instead, the value is never kept")
    elif name.endswith("url") and _has_password(value):
        reader.add(name, "the address holds a password; put the whole address behind env:… or file:…")


def _check_reference(reader: Reader, name: str, value: str, tenant: str) -> None:
    prefix = secret_prefix(tenant)
    variable = value.removeprefix("env:")
    if not _REFERENCE.fullmatch(value) or ".." in value.split("/"):
        reader.add(name, "expected env:NAME or file:NAME below the tenant's secrets folder")
    elif value.startswith("env:") and not re.fullmatch(re.escape(prefix) + r"[A-Z0-9][A-Z0-9_]*", variable):
        reader.add(name, f"this tenant's variables are named {prefix}…")


def _has_password(address: str) -> bool:
    try:
        parts = urlsplit(address)
    except ValueError:
        return True
    return parts.password is not None or any(name.endswith("password") for name, _ in parse_qsl(parts.query))


_SCHEMES = {
    "sql": ("sqlite:////", "sqlite+pysqlite:////", "postgresql://", "postgresql+psycopg://"),
    "langgraph": ("sqlite:////", "postgresql://", "postgresql+psycopg://"),
    "langgraph_store": ("sqlite:////", "postgresql://", "postgresql+psycopg://"),
    "pgvector": ("postgresql://", "postgresql+psycopg://"),
    "redis": ("redis://", "rediss://"),
    "http": ("https://", "http://"),
    "qdrant": ("https://", "http://"),
    "chroma": ("https://", "http://"),
    "lancedb": ("https://", "http://", "s3://"),
    "mem0": ("https://", "http://"),
}
_CHOICES = {("files", "hard_links"): ("refuse", "erase_all"), ("sql", "children"): ("refuse", "delete"),
            ("langgraph", "fence"): ("none", "triggers"), ("s3", "legal_holds"): ("ours", "shared"),
            ("agent", "kind"): KINDS}  # fmt: skip


def _check_threads(values: Mapping[str, Any], reader: Reader) -> None:
    if "folder" in values and (unfit := values.keys() - {"folder", "owner_field"}):
        reader.add(min(unfit), "a folder of threads stands for itself; only owner_field goes with it")
    elif "keys" in values and "url" not in values:
        reader.add("url", "missing: a folder of keys stands beside the database that it opens")
    elif {"keys", "fence"} <= values.keys():
        reader.add("fence", "a folder of keys is a fence by itself")


def _check_address(kind: str, values: Mapping[str, Any], reader: Reader) -> None:
    url = values.get("url")
    if isinstance(url, str) and not url.startswith(("env:", "file:")) and kind in _SCHEMES:
        schemes = _SCHEMES["pgvector" if _is_mem0_in_postgres(kind, values) else kind]
        if not url.startswith(schemes):
            reader.add("url", f"expected an address that starts with {', '.join(schemes)}")
        elif url.startswith("sqlite") and (unfit := {"statement_timeout", "wal_retention"} & values.keys()):
            reader.add(min(unfit), "a setting of PostgreSQL; SQLite has none like it")


def _check_kind(kind: str, values: Mapping[str, Any], reader: Reader) -> None:
    _check_address(kind, values, reader)
    for name in ("root", "path", "folder", "keys"):
        path = values.get(name)
        if isinstance(path, str) and (not path.startswith("/") or "\0" in path):
            reader.add(name, "expected an absolute path")
    for (of_kind, name), choices in _CHOICES.items():
        if kind == of_kind and name in values and values[name] not in choices:
            reader.add(name, f"expected one of {', '.join(choices)}")
    if kind == "langgraph":
        _check_threads(values, reader)
    if kind == "mem0" and values.get("vector_store", MEM0_VECTORS[0]) not in MEM0_VECTORS:
        reader.add("vector_store", MEM0_ELSEWHERE)
    elif kind == "mem0" and not _is_mem0_in_postgres(kind, values):
        for name in sorted(_SECONDS & values.keys()):
            reader.add(name, "a setting of PostgreSQL; Qdrant's local mode has none like it")
    recipe = values.get("recipe")
    if recipe is not None and not str(recipe).startswith(("env:", "file:")) and recipe not in shipped():
        reader.add("recipe", f"expected one of {', '.join(shipped())}, or file:… with one of your own")


def _newest(session: Session, tenant_id: int, name: str) -> StoreRow | None:
    return session.exec(
        select(StoreRow)
        .where(StoreRow.tenant_id == tenant_id, StoreRow.name == name)
        .order_by(sa.desc("version"))
        .limit(1)
    ).first()
