"""Reports over the registry: what is covered and what is not, and the record of processing activities.

Guarantees: made from rows and declarations of this moment; no person, place or content in them. What is missing is
listed as missing, never left out: a report that looks complete is complete. Source: DESIGN §5; GDPR Art. 30(1).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from connectors.base import why_not_built
from registry import classes, stores
from registry.classes import UNASSIGNED
from registry.cones import RECONCILER, pending
from registry.declaration import DataClass
from registry.inventory import LevelOf
from registry.item import MAX_SUBJECTS
from registry.models import Artifact, ContentFinding, StoreRow, SubjectSet, Tenant, Watermark
from registry.review_models import MergeRow, ReviewRow, ScopeReviewRow

SECURITY = (
    "content sealed per person, class and month with AES-256-GCM; erasure by destruction of keys and of bytes",
    "identifiers and places kept as keyed look-ups; readable values sealed under the person's own key",
    "append-only record with signed checkpoints; every read of content is an entry of it",
    "tenant isolation by token, and by row-level security where the database is PostgreSQL",
    "roles and separate duties by principal; approval by a second person",
)
"""A general description of the measures. Source: GDPR Art. 30(1)(g), Art. 32(1)."""
_AGENT = "agent"


def coverage(session: Session, tenant_id: int, now: datetime, *, level_of: LevelOf = lambda _: None) -> dict[str, Any]:
    """Every store and class: how much lies there, up to which level it can be erased, or why it is not covered."""
    declared = classes.in_force(session, tenant_id)
    placed = stores.in_force(session, tenant_id)
    counts = _counts(session, tenant_id)
    shown = [_store(row, counts, level_of) for row in placed.values()]
    unknown = sorted({store for _, store in counts} - placed.keys())
    looked = _inspected(session, tenant_id)
    gone = sorted({name for name, _ in counts} - declared.keys())
    waiting = pending(session, tenant_id)
    mark = session.get(Watermark, (tenant_id, RECONCILER))
    return {
        "at": now,
        "stores": shown,
        "classes": [_class(one, counts, looked) for one in declared.values()],
        "not_covered": [
            *({"store": one["name"], "because": one["because"]} for one in shown if one["because"] is not None),
            *({"store": name, "because": "artifacts name it and it is not registered any more"} for name in unknown),
            *({"data_class": name, "because": "artifacts are of it and it is not in force any more"} for name in gone),
        ],
        "declared_anonymous": _declared_anonymous(session, tenant_id),
        "aggregates": _crowds(session, tenant_id),
        "subjects": {
            "propagation_pending": waiting.cones,
            "pending_since": waiting.since,
            "reconciled": None if mark is None else mark.details.get("last"),
            "registration_reviews_open": _count(session, ReviewRow, tenant_id, col(ReviewRow.decision).is_(None)),
            "merges_proposed": _count(session, MergeRow, tenant_id, col(MergeRow.state) == "proposed"),
            "scope_reviews_open": _count(session, ScopeReviewRow, tenant_id, col(ScopeReviewRow.closed_at).is_(None)),
            "scope_reviews_overdue": _count(
                session,
                ScopeReviewRow,
                tenant_id,
                col(ScopeReviewRow.closed_at).is_(None),
                col(ScopeReviewRow.due_at) < now,
            ),
        },
        "not_looked_for": "copies that nobody registered; `muniment scan` looks into a store for them",
    }


def processing_record(session: Session, tenant_id: int, now: datetime) -> dict[str, Any]:
    """The record of processing activities, a line for each class of personal data. Source: GDPR Art. 30(1)(a)-(g)."""
    tenant = session.get_one(Tenant, tenant_id)
    declared = [one for one in classes.in_force(session, tenant_id).values() if one.personal]
    placed = stores.in_force(session, tenant_id)
    counts = _counts(session, tenant_id)
    controller = tenant.controller
    activities = [_activity(one, placed, counts) for one in declared]
    missing = [
        {"field": f"controller.{name}", "article": "30(1)(a)"}
        for name in ("name", "contact")
        if not controller.get(name)
    ]
    missing += [
        {"field": f"{one['data_class']}.{name}", "article": article}
        for one in activities
        for name, article in (("purposes", "30(1)(b)"), ("subject_categories", "30(1)(c)"),
                              ("data_categories", "30(1)(c)"), ("owner", "5(2)"))
        if not one[name]
    ]  # fmt: skip
    missing += [
        {"field": f"stores.{row.name}.country", "article": "30(1)(e)"}
        for row in placed.values()
        if row.about.get("recipient") and not row.about.get("country")
    ]
    return {
        "at": now,
        "controller": {name: controller.get(name) for name in ("name", "contact", "dpo", "jurisdiction")},
        "activities": activities,
        "security_measures": list(SECURITY),
        "missing": missing,
    }


def _activity(one: DataClass, placed: Mapping[str, StoreRow], counts: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    used = sorted({store for name, store in counts if name == one.name})
    recipients = [placed[name] for name in used if name in placed and placed[name].about.get("recipient")]
    return {
        "data_class": one.name,
        "version": one.version,
        "description": one.description,
        "owner": None if one.owner == UNASSIGNED else one.owner,
        "purposes": list(one.purposes),
        "legal_basis": one.legal_basis,
        "subject_categories": list(one.subject_types),
        "data_categories": list(one.categories),
        "recipients": sorted({row.about["recipient"] for row in recipients}),
        "transfers": [
            {"recipient": row.about["recipient"], "country": row.about.get("country"), "store": row.name}
            for row in recipients
        ],
        "stores": used,
        "erasure": {
            "keep": str(one.keep),
            "from": one.keep_from,
            "latest": None if one.latest is None else str(one.latest),
            "then": one.then,
            "on_request": one.on_request,
            "floor": None
            if one.floor is None
            else {"for": str(one.floor.keep), "basis": one.floor.basis, "covers": one.floor.covers},
            "ceiling": None if one.ceiling is None else {"for": str(one.ceiling.keep), "basis": one.ceiling.basis},
        },
    }


def _store(row: StoreRow, counts: Mapping[tuple[str, str], int], level_of: LevelOf) -> dict[str, Any]:
    because = None
    if row.config.get("enabled") is False:
        because = "the store is disabled"
    elif row.kind != _AGENT:
        because = why_not_built(row.kind, row.config)
    level = None if because is not None else level_of(row)
    if because is None and level is None:
        because = "its connector cannot be opened now"
    about = {name: row.about.get(name) for name in ("recipient", "country", "backup_retention", "log_retention",
                                                    "cache_ttl", "provider_retention")}  # fmt: skip
    return {
        "name": row.name,
        "kind": row.kind,
        "examined": because is None,
        "because": because,
        "level": level,
        "owner_check": "compared" if row.config.get("owner_field") else "asserted by the token",
        "items": sum(count for (_, store), count in counts.items() if store == row.name),
        "classes": sorted(name for name, store in counts if store == row.name),
        "residual": {name: value if value is not None else "not stated" for name, value in about.items()},
    }


def _class(one: DataClass, counts: Mapping[tuple[str, str], int], looked: Mapping[str, datetime]) -> dict[str, Any]:
    return {
        "name": one.name,
        "version": one.version,
        "owner": None if one.owner == UNASSIGNED else one.owner,
        "items": sum(count for (name, _), count in counts.items() if name == one.name),
        "stores": sorted(store for name, store in counts if name == one.name),
        "required": one.required,
        "content_inspected_at": looked.get(one.name),
    }


def _counts(session: Session, tenant_id: int) -> dict[tuple[str, str], int]:
    rows = session.execute(
        sa.select(col(Artifact.data_class), col(Artifact.store), sa.func.count().label("n"))
        .where(col(Artifact.tenant_id) == tenant_id, col(Artifact.status) != "erased")
        .group_by(col(Artifact.data_class), col(Artifact.store))
    )
    return {(row.data_class, row.store): row.n for row in rows}


def _inspected(session: Session, tenant_id: int) -> dict[str, datetime]:
    found: dict[str, datetime] = {}
    for row in session.exec(select(ContentFinding).where(ContentFinding.tenant_id == tenant_id)):
        found[row.data_class] = max(row.at, found.get(row.data_class, row.at))
    return found


def _declared_anonymous(session: Session, tenant_id: int) -> list[dict[str, Any]]:
    """Artifacts whose making was declared to take people out: a statement of the token that registered them."""
    rows = session.execute(
        sa.select(col(Artifact.data_class), col(Artifact.registered_by), sa.func.count().label("n"))
        .where(
            col(Artifact.tenant_id) == tenant_id, col(Artifact.anonymised).is_(True), col(Artifact.status) != "erased"
        )
        .group_by(col(Artifact.data_class), col(Artifact.registered_by))
    )
    return [{"data_class": row.data_class, "stated_by": row.registered_by, "items": row.n} for row in rows]


def _crowds(session: Session, tenant_id: int) -> list[dict[str, Any]]:
    """Artifacts behind which stand more people than one item may have that is no aggregate."""
    rows = session.execute(
        sa.select(col(Artifact.data_class), sa.func.count().label("n"), sa.func.max(col(SubjectSet.size)).label("most"))
        .join(
            SubjectSet,
            sa.and_(
                col(SubjectSet.tenant_id) == col(Artifact.tenant_id), col(SubjectSet.set_id) == col(Artifact.set_id)
            ),
        )
        .where(
            col(Artifact.tenant_id) == tenant_id,
            col(SubjectSet.size) > MAX_SUBJECTS,
            col(Artifact.status) != "erased",
        )
        .group_by(col(Artifact.data_class))
    )
    return [{"data_class": row.data_class, "items": row.n, "most_subjects": row.most} for row in rows]


def _count(session: Session, table: Any, tenant_id: int, *conditions: sa.ColumnElement[bool]) -> int:
    query = sa.select(sa.func.count()).select_from(table).where(table.tenant_id == tenant_id, *conditions)
    return int(session.scalar(query) or 0)
