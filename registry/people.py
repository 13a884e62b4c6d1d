"""Who is one person: incarnations that were merged, found from any of them.

Guarantees: a merge is one number shared by all, never a chain, so that everybody is found in two look-ups whatever was
merged in which order; nothing of a person is moved by it, so a split loses nothing. Who may merge is
`registry.merging`.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlmodel import Session

from registry import bulk

_PERSONS = "SELECT subject_no, person_no FROM subject WHERE tenant_id = ? AND"


def expand(session: Session, tenant_id: int, subject_nos: Iterable[int]) -> frozenset[int]:
    """These incarnations and all that are one person with any of them."""
    return frozenset[int]().union(*groups(session, tenant_id, subject_nos).values())


def groups(session: Session, tenant_id: int, subject_nos: Iterable[int]) -> dict[int, frozenset[int]]:
    """For each of these incarnations everybody who is one person with it, itself included."""
    wanted = sorted(set(subject_nos))
    # Whether there is a person is no condition of the query: it would tempt PostgreSQL away from the primary key.
    rows = bulk.select_in(session, f"{_PERSONS} subject_no", (tenant_id,), wanted, "int8")
    person_of = {subject_no: person_no for subject_no, person_no in rows if person_no is not None}
    members: dict[int, set[int]] = {}
    named = sorted(set(person_of.values()))
    for subject_no, person_no in bulk.select_in(session, f"{_PERSONS} person_no", (tenant_id,), named, "int8"):
        members.setdefault(person_no, set()).add(subject_no)
    return {
        number: frozenset(members[person_of[number]]) if number in person_of else frozenset({number})
        for number in wanted
    }
