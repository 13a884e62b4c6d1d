"""What each of the five rights that destroy nothing would do, copy by copy, gathered from registry and stores.

Guarantees: reads only. Which copies go into an export is `erasure.export`, which come under a restriction
`erasure.restrict`, what a correction touches `erasure.rectify`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure import rectifying, restrict
from erasure.export import ClassTerms, plan_export
from erasure.facts import ArtifactFacts, PlanInput
from erasure.models import RequestRow, RequestSubject
from erasure.parts import Parts
from erasure.plan import Plan
from erasure.request import Right
from erasure.sealed import RequestSeal
from erasure.selector import streams_within
from ledger.models import EntryRow
from registry import classes, subjects
from registry.declaration import DataClass
from registry.identifiers import parse_subject
from registry.keyed import chunks
from registry.memories import is_inferred
from registry.models import Artifact


def plan_of(parts: Parts, row: RequestRow, given: PlanInput, now: datetime) -> Plan:
    """The plan of a request for another right than erasure; a rectification reads the stores for it."""
    right = Right(row.right)
    with parts.transactions(row.tenant_id, write=False) as session:
        terms = terms_of(session, row.tenant_id)
        if right in (Right.ACCESS, Right.PORTABILITY):
            return plan_export(
                given,
                right,
                terms,
                inferred=_inferred(session, row.tenant_id, given) if right is Right.PORTABILITY else frozenset(),
                past=past_requests(session, parts, row),
                inside=_inside(session, row.tenant_id, given),
            )
        if right in restrict.RESTRICTING:
            return restrict.plan_restriction(given, right, terms)
        said = seal_of(session, parts, row).open("said", row.sealed)
    return rectifying.plan(parts, row.tenant_id, given, said.get("corrections") or {}, now)


def terms_of(session: Session, tenant_id: int) -> dict[str, ClassTerms]:
    """What a person is told about each class in force."""
    return {name: _terms(spec) for name, spec in classes.in_force(session, tenant_id).items()}


def _terms(spec: DataClass) -> ClassTerms:
    kept: Mapping[str, Any] = spec.spec.get("retention", {})
    period = f"{kept.get('keep')} from {spec.keep_from}"
    if spec.latest is not None:
        period += f", at the latest {kept.get('latest')} from created"
    if spec.ceiling is not None:
        period += f", never longer than {spec.ceiling.keep} from created ({spec.ceiling.basis})"
    return ClassTerms(
        name=spec.name,
        description=spec.description,
        legal_basis=spec.legal_basis,
        purposes=spec.purposes or spec.access_purposes,
        categories=spec.categories,
        storage_period=period,
    )


def past_requests(session: Session, parts: Parts, row: RequestRow) -> list[str]:
    """The requests that name this request's verified identifiers, itself included; itself once its words are gone."""
    if row.sealed is None:
        return [row.request_id]
    said = seal_of(session, parts, row).open("said", row.sealed)
    verified = sorted({line["subject"] for line in said.get("identity", [])})
    lookups = [
        subjects.lookup_of(parts.vault, row.tenant_id, parse_subject(said["subjects"][place]["text"]))
        for place in verified
    ]
    found = session.exec(
        select(RequestSubject.request_id).where(
            RequestSubject.tenant_id == row.tenant_id, col(RequestSubject.lookup).in_(lookups)
        )
    ).all()
    return sorted(set(found))


def _inferred(session: Session, tenant_id: int, given: PlanInput) -> frozenset[int]:
    """The artifacts of which it was said that a model concluded or wrote them."""
    found: set[int] = set()
    facts = given.artifacts
    ids = facts.ids if isinstance(facts, ArtifactFacts) else [fact.artifact_id for fact in facts]
    for chunk in chunks(ids):
        rows = session.execute(
            sa.select(col(Artifact.id), col(Artifact.source_type)).where(
                col(Artifact.tenant_id) == tenant_id, col(Artifact.id).in_(list(chunk))
            )
        )
        found.update(row.id for row in rows if is_inferred(row.source_type))
    return frozenset(found)


def _inside(session: Session, tenant_id: int, given: PlanInput) -> frozenset[int] | None:
    """Which of the shared entries lie in the conversation that the request is limited to."""
    streams = streams_within(session, tenant_id, given.claim)
    if streams is None:
        return None
    wanted = sorted({part.entry_idx for key in given.keys for part in key.parts})
    found: set[int] = set()
    for chunk in chunks(wanted):
        found.update(
            session.scalars(
                sa.select(col(EntryRow.idx)).where(
                    col(EntryRow.tenant_id) == tenant_id,
                    col(EntryRow.idx).in_(chunk),
                    col(EntryRow.stream_no).in_(sorted(streams)),
                )
            )
        )
    return frozenset(found)


def seal_of(session: Session, parts: Parts, row: RequestRow) -> RequestSeal:
    """The seal of what a person said in a request."""
    return RequestSeal(session, parts.vault, row.tenant_id, owner=row.request_id, key_no=row.request_no)
