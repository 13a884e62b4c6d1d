"""What is in force for everybody: classes as rules, stores, holds, restrictions, open requests for an export.

Guarantees: read in the caller's transaction, so that a decision made there sees every hold that was committed before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlmodel import Session, col, select

from connectors.base import why_not_built
from erasure.facts import ClassFact, StoreFact
from erasure.models import RequestRow
from erasure.request import OPEN, Right
from registry import classes as registered
from registry import stores
from registry.declaration import DataClass
from registry.models import RestrictionRow, StoreRow
from registry.people import groups
from retention.decide import Claim, Hold, Restriction
from retention.schedule import rules_of
from retention.stops import holds_in_force


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What is in force now, whoever is asked about: rules, stores, holds, restrictions, open requests."""

    classes: Mapping[str, ClassFact]
    stores: Mapping[str, StoreFact]
    holds: tuple[Hold, ...]
    restrictions: tuple[Restriction, ...]
    claims: tuple[Claim, ...]


def standing(session: Session, tenant_id: int) -> Standing:
    """The tenant's rules and stops as they are in this transaction; holds as they were placed."""
    return Standing(
        classes={name: class_fact(spec) for name, spec in registered.in_force(session, tenant_id).items()},
        stores={name: store_fact(row) for name, row in stores.in_force(session, tenant_id).items()},
        holds=holds_in_force(session, tenant_id),
        restrictions=_restrictions(session, tenant_id),
        claims=_claims(session, tenant_id),
    )


def claim_of(row: RequestRow) -> Claim:
    """A request as decisions see it. Its limits are kept in `details`."""
    wanted, scopes = row.details.get("data_classes"), row.details.get("scopes")
    artifacts = row.details.get("artifacts")
    return Claim(
        row.request_id,
        row.right,
        frozenset(row.subjects),
        row.received_at,
        None if "paused_at" in row.details else row.extended_until or row.due_at,
        None if wanted is None else frozenset(wanted),
        None if scopes is None else frozenset(scopes),
        None if artifacts is None else frozenset(artifacts),
        frozenset(row.details.get("roots", ())),
    )


def class_fact(spec: DataClass) -> ClassFact:
    """A declared class as rules."""
    return ClassFact(name=spec.name, version=spec.version, required=spec.required, rules=rules_of(spec))


def store_fact(row: StoreRow) -> StoreFact:
    """A registered store, and whether this version can erase there."""
    reason = why_not_built(row.kind, row.config)
    if row.config.get("enabled") is False:
        reason = "the store is disabled"
    return StoreFact(name=row.name, kind=row.kind, not_covered=reason, checks_owner=bool(row.config.get("owner_field")))


def _restrictions(session: Session, tenant_id: int) -> tuple[Restriction, ...]:
    rows = session.exec(
        select(RestrictionRow).where(RestrictionRow.tenant_id == tenant_id, col(RestrictionRow.ended_at).is_(None))
    ).all()
    one_person = groups(session, tenant_id, {row.subject_no for row in rows})
    return tuple(
        Restriction(
            row.request_id,
            subject_no,
            row.since,
            None if row.data_classes is None else frozenset(row.data_classes),
            None if row.scopes is None else frozenset(row.scopes),
        )
        for row in rows
        for subject_no in sorted(one_person[row.subject_no])
    )


def _claims(session: Session, tenant_id: int) -> tuple[Claim, ...]:
    """Open requests for an export: retention waits for them."""
    rows = session.exec(
        select(RequestRow).where(
            RequestRow.tenant_id == tenant_id,
            col(RequestRow.right).in_((Right.ACCESS, Right.PORTABILITY)),
            col(RequestRow.state).in_(sorted(OPEN)),
            col(RequestRow.answered_at).is_(None),
        )
    )
    return tuple(claim_of(row) for row in rows if row.subjects)
