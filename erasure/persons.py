"""Whom a request is about: everybody who is one person with a name that was verified in it, as it stands now.

Guarantees: a merge that was undone takes the other person out again, whenever that is looked at. Not here: who may
merge or tell apart (`registry.merging`), and when it has to be looked at (`erasure.planning`, `execute`, `exporting`).
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlmodel import Session

from erasure.models import RequestRow
from registry.people import expand

_NAMED = "named"
"""Under which name a request keeps whom its verified names mean, without those who are the same person."""


def name_people(session: Session, row: RequestRow, verified: Iterable[int]) -> None:
    """Put down whom the verified names of a request mean."""
    named = sorted(set(verified))
    row.details = {**row.details, _NAMED: named}
    row.subjects = sorted(expand(session, row.tenant_id, named))


def named_of(row: RequestRow) -> list[int]:
    """Whom the verified names of a request meant when they were last looked up."""
    return list(row.details.get(_NAMED, row.subjects))


def people_of(session: Session, row: RequestRow) -> frozenset[int]:
    """Everybody the request is about by the merges and splits of this transaction."""
    return expand(session, row.tenant_id, named_of(row))


def leave_out_strangers(session: Session, row: RequestRow) -> bool:
    """Take out of a request whoever was told apart since it was approved; whether there was anybody."""
    people = people_of(session, row)
    if people.issuperset(row.subjects):
        return False
    row.subjects = sorted(people.intersection(row.subjects))
    session.add(row)
    session.flush()
    return True
