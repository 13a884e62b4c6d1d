"""Who is one person: incarnations that were merged, found from any of them.

Guarantees: a merge is one number shared by all, never a chain, so that everybody is found in two look-ups whatever was
merged in which order; nothing of a person is moved by it, so a split loses nothing. Who may merge is
`registry.merging`.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from sqlmodel import Session, col

from registry.keyed import chunks
from registry.models import Subject


def expand(session: Session, tenant_id: int, subject_nos: Iterable[int]) -> frozenset[int]:
    """These incarnations and all that are one person with any of them."""
    return frozenset[int]().union(*groups(session, tenant_id, subject_nos).values())


def groups(session: Session, tenant_id: int, subject_nos: Iterable[int]) -> dict[int, frozenset[int]]:
    """For each of these incarnations everybody who is one person with it, itself included."""
    wanted = sorted(set(subject_nos))
    person_of: dict[int, int] = {}
    for chunk in chunks(wanted):
        rows = session.execute(
            sa.select(col(Subject.subject_no), col(Subject.person_no)).where(
                col(Subject.tenant_id) == tenant_id, col(Subject.subject_no).in_(chunk)
            )
        )
        # Not a condition of the query: it would tempt PostgreSQL away from the primary key.
        person_of.update((row.subject_no, row.person_no) for row in rows if row.person_no is not None)
    members: dict[int, set[int]] = {}
    for chunk in chunks(sorted(set(person_of.values()))):
        rows = session.execute(
            sa.select(col(Subject.subject_no), col(Subject.person_no)).where(
                col(Subject.tenant_id) == tenant_id, col(Subject.person_no).in_(chunk)
            )
        )
        for subject_no, person_no in rows:
            members.setdefault(person_no, set()).add(subject_no)
    return {
        number: frozenset(members[person_of[number]]) if number in person_of else frozenset({number})
        for number in wanted
    }
