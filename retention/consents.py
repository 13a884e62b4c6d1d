"""Consents: what a person allowed, for which classes and conversations, until when, and when they took it back.

Guarantees: a consent covers the items of its person whose class and scope it names (naming none covers all of either).
Of several consents of one person the last to end counts, of several persons in one item the first: what one of them
takes back, nobody else gives. An item that no consent was recorded for waits for its class's cap, because silence is
not a withdrawal.

Not here: recording and withdrawing (`retention.consenting`), whether anything may be processed, and what happens to an
item; that is `retention.decide`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from sqlmodel import Session, col, select

from registry.declaration import DataClass
from registry.ends import CONSENT, dates_of
from registry.keyed import chunks
from registry.models import Artifact
from registry.people import groups
from registry.sets import members
from retention.events import ARTIFACT_KIND, scopes_of
from retention.models import ConsentRow
from retention.schedule import ends_at

CLOCK = CONSENT


def covered_until(
    session: Session, tenant_id: int, items: Mapping[int | str, tuple[str, Iterable[int], frozenset[str]]]
) -> dict[int | str, datetime]:
    """When the consent that covers each item ended or will end, by its class, persons and scopes.

    An item without a recorded consent, or with one that has no end, is not in the answer.
    """
    wanted = {key: (name, frozenset(people), scopes) for key, (name, people, scopes) in items.items()}
    people = {number for _, some, _ in wanted.values() for number in some}
    one_person = groups(session, tenant_id, people)
    rows = _consents(session, tenant_id, {one for group in one_person.values() for one in group})
    found: dict[int | str, datetime] = {}
    for key, (name, some, scopes) in wanted.items():
        ends = [_last_end([row for one in one_person[number] for row in rows[one]], name, scopes) for number in some]
        known = [end for end in ends if end is not None]
        if known:
            found[key] = min(known)
    return found


class _Owned(Protocol):
    """An artifact, whole or what a decision reads of it."""

    @property
    def id(self) -> int: ...
    @property
    def data_class(self) -> str: ...
    @property
    def set_id(self) -> int: ...


def ended_at(row: ConsentRow) -> datetime | None:
    """When a consent ends: withdrawn, or at its own date; None while neither is known."""
    return min((end for end in (row.withdrawn_at, row.until) if end is not None), default=None)


def covers(row: ConsentRow, data_class: str, scopes: frozenset[str]) -> bool:
    """Whether a consent is about items of that class and those scopes."""
    return (not row.data_classes or data_class in row.data_classes) and (
        not row.scopes or not scopes.isdisjoint(row.scopes)
    )


def _last_end(rows: Sequence[ConsentRow], data_class: str, scopes: frozenset[str]) -> datetime | None:
    ends = [ended_at(row) for row in rows if covers(row, data_class, scopes)]
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else None


def _consents(session: Session, tenant_id: int, numbers: Iterable[int]) -> defaultdict[int, list[ConsentRow]]:
    found: defaultdict[int, list[ConsentRow]] = defaultdict(list)
    for some in chunks(sorted(numbers)):
        query = select(ConsentRow).where(ConsentRow.tenant_id == tenant_id, col(ConsentRow.subject_no).in_(some))
        for row in session.exec(query):
            found[row.subject_no].append(row)
    return found


def consent_ends(
    session: Session, tenant_id: int, rows: Sequence[Artifact], specs: Mapping[str, DataClass]
) -> dict[int, datetime | None]:
    """The end dates of artifacts whose class waits for consent, for the hint by which sweeps find them."""
    until = until_of(session, tenant_id, rows, specs)
    return {
        row.id: ends_at(
            specs[row.data_class],
            dates_of(row),
            consent_until=until.get(row.id),
        )
        for row in rows
    }


def until_of(session: Session, tenant_id: int, rows: Sequence[_Owned], names: Iterable[str]) -> dict[int, datetime]:
    """`covered_until` for those of these artifacts whose class is named."""
    wanted = frozenset(names)
    mine = [row for row in rows if row.data_class in wanted]
    if not mine:
        return {}
    people = members(session, tenant_id, {row.set_id for row in mine})
    scopes = scopes_of(session, tenant_id, ARTIFACT_KIND, [row.id for row in mine])
    found = covered_until(
        session,
        tenant_id,
        {row.id: (row.data_class, people[row.set_id], scopes.get(row.id, frozenset())) for row in mine},
    )
    return {number: end for number, end in found.items() if isinstance(number, int)}
