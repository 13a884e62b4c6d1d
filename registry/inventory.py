"""The inventory: every class and store with the gaps that its real rows show, worst first.

Guarantees: each gap is counted over live artifacts, declared streams and stores of the tenant, not over declarations
alone; a class without one clear owner stands at the top. Nothing personal is read.
What only the content shows (body_in_checkpoint, keeps_deliberation, large_prompt_snapshot, bare_hash_of_identifier) is
taken from the newest inspection (`api.inspecting`), with its date. Source: DESIGN §5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from connectors.base import why_not_built
from ledger.models import EntryRow, LogStream
from registry import classes, stores
from registry.classes import UNASSIGNED
from registry.declaration import DataClass
from registry.duration import Duration
from registry.gaps import GAPS
from registry.item import MAX_SUBJECTS
from registry.models import Artifact, ContentFinding, Derivation, ScopeKey, StoreRow, StreamRow, SubjectSet

LevelOf = Callable[[StoreRow], str | None]
"""Up to which level a store's connector can erase, None where there is none."""

_ERASED_IN_PROCESS = "agent"


@dataclass(slots=True, kw_only=True)
class _Seen:
    """What the rows of one class show."""

    live: int = 0
    scoped: int = 0
    oldest: datetime | None = None
    stores: set[str] = field(default_factory=set)
    gaps: Counter[str] = field(default_factory=Counter)


def inventory(
    session: Session,
    tenant_id: int,
    now: datetime,
    *,
    level_of: LevelOf = lambda _: None,
    quarantined: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Any]:
    """Classes and stores with their gaps, as API §2 shows them; `counts` says how many items each gap has.

    `quarantined` is how many items of each class retention could not end and set aside.
    """
    declared = classes.in_force(session, tenant_id)
    placed = stores.in_force(session, tenant_id)
    seen = {name: _Seen() for name in declared}
    _count_artifacts(session, tenant_id, seen)
    _count_scoped(session, tenant_id, seen)
    _count_entries(session, tenant_id, seen)
    _count_gaps(session, tenant_id, now, declared, seen)
    _count_streams(session, tenant_id, seen)
    _count_crowds(session, tenant_id, declared, seen)
    inspected = _add_inspected(session, tenant_id, seen)
    for name in seen.keys() & quarantined.keys():
        seen[name].gaps["quarantined"] = quarantined[name]
    for name, data_class in declared.items():
        _judge(data_class, placed, seen[name])
    shown = [_class_view(declared[name], found) for name, found in seen.items()]
    shown_stores = [_store_view(row, declared, seen, level_of) for row in placed.values()]
    for views in (shown, shown_stores):
        views.sort(key=lambda view: (_rank(view["gaps"]), -len(view["gaps"]), view["name"]))
    return {
        "classes": shown,
        "stores": shown_stores,
        "gaps": sum(len(view["gaps"]) for view in (*shown, *shown_stores)),
        "content_inspected_at": inspected,
    }


def _rank(gaps: list[str]) -> int:
    return min((GAPS.index(gap) for gap in gaps), default=len(GAPS))


def _count_artifacts(session: Session, tenant_id: int, seen: Mapping[str, _Seen]) -> None:
    rows = session.execute(
        sa.select(
            col(Artifact.data_class),
            col(Artifact.store),
            sa.func.count().label("n"),
            sa.type_coerce(sa.func.min(col(Artifact.created_at)), Artifact.__table__.c.created_at.type),  # type: ignore[attr-defined] # SQLModel types no table
        )
        .where(col(Artifact.tenant_id) == tenant_id, col(Artifact.status) != "erased")
        .group_by(col(Artifact.data_class), col(Artifact.store))
    )
    for name, store, count, oldest in rows:
        if name in seen:
            found = seen[name]
            found.live += count
            found.stores.add(store)
            found.oldest = oldest if found.oldest is None else min(found.oldest, oldest)


def _count_scoped(session: Session, tenant_id: int, seen: Mapping[str, _Seen]) -> None:
    """Items that say what they belong to, so that events, holds and limited requests find them by it."""
    rows = session.execute(
        sa.select(col(Artifact.data_class), sa.func.count().label("n"))
        .where(col(Artifact.tenant_id) == tenant_id, col(Artifact.status) != "erased", _has_scope())
        .group_by(col(Artifact.data_class))
    )
    for name, count in rows:
        if name in seen:
            seen[name].scoped = count


def _has_scope() -> sa.ColumnElement[bool]:
    return sa.exists().where(
        col(ScopeKey.tenant_id) == col(Artifact.tenant_id),
        col(ScopeKey.kind) == "a",
        col(ScopeKey.item) == col(Artifact.id),
    )


def _count_entries(session: Session, tenant_id: int, seen: Mapping[str, _Seen]) -> None:
    rows = session.execute(
        sa.select(
            col(EntryRow.data_class),
            sa.func.count().label("n"),
            sa.type_coerce(sa.func.min(col(EntryRow.received)), EntryRow.__table__.c.received.type),  # type: ignore[attr-defined] # SQLModel types no table
        )
        .where(col(EntryRow.tenant_id) == tenant_id)
        .group_by(col(EntryRow.data_class))
    )
    for name, count, oldest in rows:
        if name in seen:
            found = seen[name]
            found.live += count
            found.oldest = oldest if found.oldest is None else min(found.oldest, oldest)


def _count_gaps(
    session: Session, tenant_id: int, now: datetime, declared: Mapping[str, DataClass], seen: Mapping[str, _Seen]
) -> None:
    """One grouped count per kind of gap."""
    no_parent = ~sa.exists().where(
        col(Derivation.tenant_id) == col(Artifact.tenant_id), col(Derivation.child) == col(Artifact.id)
    )
    of_state: dict[str, list[str]] = {}
    for name, data_class in declared.items():
        of_state.setdefault(data_class.state, []).append(name)
    summarises = sa.or_(
        col(Artifact.data_class) == "summary", col(Artifact.activity)["kind"].as_string().like("summar%")
    )
    conditions: dict[str, list[sa.ColumnElement[bool]]] = {
        "no_retention": [col(Artifact.ends_at).is_(None)],
        "over_retained": [col(Artifact.ends_at) < now],
        "memory_without_source": [
            col(Artifact.data_class).in_(of_state.get("memory", [])), no_parent, col(Artifact.source_type).is_(None),
        ],
        "summary_without_source": [summarises, no_parent],
        "unscoped_thread": [col(Artifact.data_class).in_(of_state.get("checkpoint", [])), ~_has_scope()],
    }  # fmt: skip
    for gap, condition in conditions.items():
        rows = session.execute(
            sa.select(col(Artifact.data_class), sa.func.count().label("n"))
            .where(col(Artifact.tenant_id) == tenant_id, col(Artifact.status) == "live", *condition)
            .group_by(col(Artifact.data_class))
        )
        for name, count in rows:
            if name in seen:
                seen[name].gaps[gap] += count


def _count_streams(session: Session, tenant_id: int, seen: Mapping[str, _Seen]) -> None:
    recorded = sa.exists().where(
        col(LogStream.tenant_id) == col(StreamRow.tenant_id), col(LogStream.stream_id) == col(StreamRow.stream_id)
    )
    rows = session.execute(
        sa.select(col(StreamRow.data_class), sa.func.count().label("n"))
        .where(col(StreamRow.tenant_id) == tenant_id, ~recorded)
        .group_by(col(StreamRow.data_class))
    )
    for name, count in rows:
        if name in seen:
            seen[name].gaps["stream_not_recorded"] += count


def _count_crowds(
    session: Session, tenant_id: int, declared: Mapping[str, DataClass], seen: Mapping[str, _Seen]
) -> None:
    """Items behind which stand more people than one may have whose class is no aggregate: by late sources."""
    rows = session.execute(
        sa.select(col(Artifact.data_class), sa.func.count().label("n"))
        .join(
            SubjectSet,
            sa.and_(
                col(SubjectSet.tenant_id) == col(Artifact.tenant_id), col(SubjectSet.set_id) == col(Artifact.set_id)
            ),
        )
        .where(
            col(Artifact.tenant_id) == tenant_id, col(SubjectSet.size) > MAX_SUBJECTS, col(Artifact.status) == "live"
        )
        .group_by(col(Artifact.data_class))
    )
    for name, count in rows:
        if name in seen and not declared[name].aggregate:
            seen[name].gaps["aggregate_undeclared"] += count


def _add_inspected(session: Session, tenant_id: int, seen: Mapping[str, _Seen]) -> datetime | None:
    """Gaps that the newest inspection saw in content; when it looked last."""
    newest: datetime | None = None
    for row in session.exec(select(ContentFinding).where(ContentFinding.tenant_id == tenant_id)):
        newest = row.at if newest is None else max(newest, row.at)
        if row.found and row.data_class in seen and row.gap in GAPS:
            seen[row.data_class].gaps[row.gap] += row.found
    return newest


def _judge(data_class: DataClass, placed: Mapping[str, StoreRow], found: _Seen) -> None:
    """Gaps of a class that its declaration shows together with where its items lie."""
    if data_class.owner == UNASSIGNED:
        found.gaps["no_owner"] += 1
    for name in sorted(found.stores):
        store = placed.get(name)
        if store is None or not _has_eraser(store):
            found.gaps["no_eraser"] += 1
            found.gaps["no_verifier"] += 1
        if store is not None and _keeps_longer(store, data_class):
            found.gaps["provider_keeps_longer"] += 1


def _has_eraser(store: StoreRow) -> bool:
    return store.config.get("enabled") is not False and (
        store.kind == _ERASED_IN_PROCESS or why_not_built(store.kind, store.config) is None
    )


def _keeps_longer(store: StoreRow, data_class: DataClass) -> bool:
    kept = store.about.get("provider_retention")
    if kept is None:
        return False
    return kept == "unknown" or Duration.parse(kept).exceeds(data_class.latest or data_class.keep)


def _class_view(data_class: DataClass, found: _Seen) -> dict[str, Any]:
    gaps = sorted((gap for gap, count in found.gaps.items() if count), key=GAPS.index)
    return {
        "name": data_class.name,
        "version": data_class.version,
        "owner": None if data_class.owner == UNASSIGNED else data_class.owner,
        "state": data_class.state,
        "live": found.live,
        "oldest": found.oldest,
        "scope": {
            "personal": data_class.personal,
            "subject_types": list(data_class.subject_types),
            "purposes": list(data_class.purposes),
            "scoped": found.scoped,
        },
        "update_authority": data_class.update_authority,
        "replay": data_class.replay,
        "keep": str(data_class.keep),
        "from": data_class.keep_from,
        "gaps": gaps,
        "counts": {gap: found.gaps[gap] for gap in gaps},
    }


def _store_view(
    row: StoreRow, declared: Mapping[str, DataClass], seen: Mapping[str, _Seen], level_of: LevelOf
) -> dict[str, Any]:
    gaps = [] if _has_eraser(row) else ["no_eraser", "no_verifier"]
    if any(_keeps_longer(row, declared[name]) for name, found in seen.items() if row.name in found.stores):
        gaps.append("provider_keeps_longer")
    return {"name": row.name, "kind": row.kind, "level": level_of(row), "gaps": gaps}
