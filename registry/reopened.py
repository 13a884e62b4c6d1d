"""Which people of a call are known again after an erasure: since when, and who they were before.

Guarantees: one look-up for all of them; an incarnation inherits nothing (DESIGN §1). What follows from it for an entry
is decided elsewhere (`registry.drafting`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select

from ledger import index
from registry.models import Subject, SubjectIdentifier


def former(session: Session, tenant_id: int, reopened: Mapping[int, datetime]) -> dict[int, frozenset[int]]:
    """Return the earlier incarnations behind the names of those who were opened again."""
    if not reopened:
        return {}
    mine, other = aliased(SubjectIdentifier), aliased(SubjectIdentifier)
    found: dict[int, set[int]] = {}
    for part in index.chunks(sorted(reopened)):
        query = (
            sa.select(col(mine.subject_no), col(other.subject_no))
            .join(other, sa.and_(col(other.tenant_id) == col(mine.tenant_id), col(other.lookup) == col(mine.lookup)))
            .where(col(mine.tenant_id) == tenant_id, col(mine.subject_no).in_(part))
        )
        for now_no, former_no in session.execute(query):
            if now_no != former_no:
                found.setdefault(now_no, set()).add(former_no)
    return {number: frozenset(numbers) for number, numbers in found.items()}


def opened_at(session: Session, tenant_id: int, subject_nos: Sequence[int]) -> dict[int, datetime]:
    """Return since when those incarnations exist that follow an erased one; older data is not theirs."""
    found: dict[int, datetime] = {}
    for part in index.chunks(sorted(set(subject_nos))):
        query = select(Subject.subject_no, Subject.created_at).where(
            Subject.tenant_id == tenant_id, col(Subject.subject_no).in_(part), Subject.incarnation > 1
        )
        found.update(dict(session.exec(query).all()))
    return found
