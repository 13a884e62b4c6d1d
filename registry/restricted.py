"""What may only be stored (GDPR Art. 18): entries whose content is not opened for ordinary purposes.

Guarantees: a restriction in force closes the content about its person to every reader but for the purposes that the law
names: consent, legal claims, the protection of somebody else, an important public interest. Headers stay readable and
provable. A restored database is told of its restrictions again by their events. Not here: sweeps and erasures
(`retention.decide`), memories (`registry.memory_use`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger.models import EntryRow
from registry.keyed import chunks
from registry.limited import scopes_of
from registry.models import RestrictionRow, Subject
from registry.people import groups
from registry.sets import members

EXEMPT_PURPOSES = frozenset({"consent", "dispute", "legal_claims", "protection", "public_interest"})
"""Purposes for which restricted data may still be processed. Source: GDPR Art. 18(2)."""


def closed_entries(session: Session, tenant_id: int, rows: Sequence[EntryRow], purpose: str) -> dict[int, str]:
    """By index of the entries that are not opened for this purpose: the request that restricts them."""
    if purpose in EXEMPT_PURPOSES or not rows:
        return {}
    people = members(session, tenant_id, {row.set_id for row in rows})
    one_person = groups(session, tenant_id, frozenset[int]().union(*people.values()))
    everyone = frozenset[int]().union(*one_person.values())
    found: dict[int, list[RestrictionRow]] = {}
    for chunk in chunks(sorted(everyone)):
        query = select(RestrictionRow).where(
            RestrictionRow.tenant_id == tenant_id,
            col(RestrictionRow.subject_no).in_(chunk),
            col(RestrictionRow.ended_at).is_(None),
        )
        for one in session.exec(query):
            found.setdefault(one.subject_no, []).append(one)
    if not found:
        return {}
    scopes = scopes_of(session, tenant_id, {row.stream_no for row in rows})
    closed: dict[int, str] = {}
    for row in rows:
        named = people.get(row.set_id, frozenset())
        for number in sorted(frozenset[int]().union(*(one_person[one] for one in named)) & found.keys()):
            for one in found[number]:
                if _covers(one, row, scopes.get(row.stream_no, frozenset())):
                    closed[row.idx] = one.request_id
    return closed


def _covers(one: RestrictionRow, row: EntryRow, scopes: frozenset[str]) -> bool:
    return (one.data_classes is None or row.data_class in one.data_classes) and (
        one.scopes is None or not scopes.isdisjoint(one.scopes)
    )


def set_again(session: Session, tenant_id: int, body: Mapping[str, Any], at: datetime) -> int:
    """Put a restriction in force from its event in the record, where a restored database lacks it; how many people."""
    wanted = list(body["subjects"])
    numbers = session.scalars(
        sa.select(col(Subject.subject_no)).where(
            col(Subject.tenant_id) == tenant_id, col(Subject.subject_id).in_(wanted)
        )
    ).all()
    made = 0
    for subject_no in sorted(numbers):
        if session.get(RestrictionRow, (tenant_id, body["request"], subject_no)) is None:
            since = datetime.fromisoformat(body["since"]) if "since" in body else at
            session.add(
                RestrictionRow(tenant_id=tenant_id, request_id=body["request"], subject_no=subject_no, since=since)
            )
            made += 1
    session.flush()
    mark(session, tenant_id, list(numbers))
    return made


def lifted_again(session: Session, tenant_id: int, body: Mapping[str, Any], at: datetime) -> int:
    """Lift what a later event of the record lifted; how many people."""
    rows = session.exec(
        select(RestrictionRow).where(
            RestrictionRow.tenant_id == tenant_id,
            RestrictionRow.request_id == body["request"],
            col(RestrictionRow.ended_at).is_(None),
        )
    ).all()
    for one in rows:
        one.ended_at = at
        session.add(one)
    session.flush()
    mark(session, tenant_id, [one.subject_no for one in rows])
    return len(rows)


def mark(session: Session, tenant_id: int, subject_nos: Sequence[int]) -> None:
    """Keep on each person which request restricts them: any one in force, so that readers need one look.

    Under whichever name it was asked for: called where a restriction begins or ends, and where people are merged.
    """
    for group in sorted({tuple(sorted(group)) for group in groups(session, tenant_id, subject_nos).values()}):
        name = session.scalar(
            sa.select(sa.func.min(col(RestrictionRow.request_id))).where(
                col(RestrictionRow.tenant_id) == tenant_id,
                col(RestrictionRow.subject_no).in_(group),
                col(RestrictionRow.ended_at).is_(None),
            )
        )
        session.connection().execute(
            sa.update(Subject)
            .where(col(Subject.tenant_id) == tenant_id, col(Subject.subject_no).in_(group))
            .values(restricted_by=name)
        )
    session.expire_all()
