"""Restriction (GDPR Art. 18) and objection (Art. 21): data is kept and nothing else is done with it.

Guarantees: while one is in force `retention.decide` keeps what it covers, for sweeps and other people's requests alike;
the person's own later erasure ends it. It is lifted only after the person was told. An objection restricts from its
plan on until it is decided, and then for as long as it stands. It is in the record before it takes effect
(`body_of`), so that a restored database can be told of it again. The caller commits.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlmodel import Session, col, select

from erasure.errors import LiftingNotTold
from erasure.export import ClassTerms
from erasure.facts import PlanInput
from erasure.fences import is_limited
from erasure.models import RequestRow
from erasure.plan import IDENTITY, VAULT, Plan, PlanCopy, framed, instant_text
from erasure.request import CopyState, Right
from registry import subjects
from registry.models import RestrictionRow
from registry.restricted import mark
from retention.decide import Because, Claim, concerns

_OBJECTIONABLE = ("legitimate", "public interest", "6(1)(e)", "6(1)(f)", "marketing")
"""Words of a legal basis against which a person can object (GDPR Art. 21(1) and (2))."""
RESTRICTING = (Right.RESTRICTION, Right.OBJECTION)


def plan_restriction(given: PlanInput, right: Right, terms: Mapping[str, ClassTerms]) -> Plan:
    """A line for each copy and key that comes under the restriction; of an objection only those one can object to."""
    claim = given.claim
    if claim is None:
        message = "a restriction answers a request"
        raise ValueError(message)
    lines = [
        _line("artifact", fact.name, fact.item.data_class, fact.store, claim, artifact_id=fact.artifact_id)
        for fact in given.artifacts
        if concerns(claim, fact.item) and _is_open_to(right, fact.item.data_class, terms)
    ]
    lines += [
        _line("key", key.key_id, key.item.data_class, VAULT, claim, key_id=key.key_id)
        for key in given.keys
        if key.item.data_class != IDENTITY
        and concerns(claim, key.item)
        and _is_open_to(right, key.item.data_class, terms)
    ]
    return framed(given, lines)


def _is_open_to(right: Right, data_class: str, terms: Mapping[str, ClassTerms]) -> bool:
    if right is Right.RESTRICTION:
        return True
    known = terms.get(data_class)
    return known is None or any(word in known.legal_basis.lower() for word in _OBJECTIONABLE)


def _line(
    kind: str,
    ref: str,
    data_class: str,
    store: str,
    claim: Claim,
    *,
    artifact_id: int | None = None,
    key_id: str | None = None,
) -> PlanCopy:
    return PlanCopy(
        copy_no=0,
        kind=kind,
        ref=ref,
        artifact_id=artifact_id,
        key_id=key_id,
        data_class=data_class,
        store=store,
        action="restrict",
        rule="request",
        because=(Because("request", "restrict", claim.request_id),),
        until=None,
        path=(),
        collateral=None,
        depth=0,
        required="L1",
        state=CopyState.PENDING,
    )


def begin(session: Session, row: RequestRow) -> int:
    """Put the request's restriction in force; how many people it newly covers. Idempotent."""
    begun = 0
    for subject_no in sorted(set(row.subjects)):
        if session.get(RestrictionRow, (row.tenant_id, row.request_id, subject_no)) is not None:
            continue
        session.add(
            RestrictionRow(
                tenant_id=row.tenant_id,
                request_id=row.request_id,
                subject_no=subject_no,
                since=row.received_at,
                data_classes=row.details.get("data_classes"),
                scopes=row.details.get("scopes"),
            )
        )
        begun += 1
    session.flush()
    mark(session, row.tenant_id, row.subjects)
    return begun


def body_of(session: Session, row: RequestRow) -> dict[str, Any]:
    """What the record is told before a restriction takes effect: enough to set it again after a restore.

    A limited one is told as such and without its keyed look-ups: whoever sets it again restricts the person whole,
    which is the safe side until the request's row is there again.
    """
    ids = subjects.opaque_ids(session, row.tenant_id, row.subjects)
    return {
        "request": row.request_id,
        "subjects": sorted(ids.values()),
        "since": instant_text(row.received_at),
        "limited": is_limited(row),
    }


def has_begun(session: Session, row: RequestRow) -> bool:
    """Whether the request's restriction was put in force for everybody it names, lifted since or not."""
    return all(
        session.get(RestrictionRow, (row.tenant_id, row.request_id, subject_no)) is not None
        for subject_no in row.subjects
    )


def is_in_force(session: Session, row: RequestRow) -> bool:
    """Whether the request restricts anybody now."""
    return bool(_open_rows(session, row))


def end(session: Session, row: RequestRow, now: datetime) -> int:
    """Lift the request's restriction; how many people it covered. Raises: LiftingNotTold before the notice."""
    rows = _open_rows(session, row)
    if not rows:
        return 0
    if "lifting_told_at" not in row.details:
        raise LiftingNotTold(row.request_id)
    for one in rows:
        one.ended_at = now
        session.add(one)
    session.flush()
    mark(session, row.tenant_id, [one.subject_no for one in rows])
    return len(rows)


def _open_rows(session: Session, row: RequestRow) -> list[RestrictionRow]:
    return list(
        session.exec(
            select(RestrictionRow).where(
                RestrictionRow.tenant_id == row.tenant_id,
                RestrictionRow.request_id == row.request_id,
                col(RestrictionRow.ended_at).is_(None),
            )
        )
    )
