"""Interned sets of subjects: whose an item is, as one number.

Guarantees: equal sets have one number, made once; set 0 is the empty one. All sets of a person are one index range, so
finding a person's items costs what the person has, whatever the size of the registry. The caller commits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType

from sqlmodel import Session

from registry import bulk
from registry.ids import new_id
from registry.keyed import hold_writer
from registry.models import SubjectSet, SubjectSetMember

EMPTY_SET = 0
Members = frozenset[int]
_MEMBERS = "SELECT set_id, subject_no FROM subject_set_member WHERE tenant_id = ? AND set_id"
_SETS = "SELECT set_id FROM subject_set_member WHERE tenant_id = ? AND subject_no"
_BY_DIGEST = "SELECT digest, set_id FROM subject_set WHERE tenant_id = ? AND digest"


def intern_sets(
    session: Session,
    tenant_id: int,
    sets: Iterable[Members],
    now: datetime,
    *,
    known: Mapping[Members, int] = MappingProxyType({}),
    held: bool = False,
) -> dict[Members, int]:
    """The number of each set, made where it is new; one look-up for all but those that are `known`.

    `held`: the caller has waited for other writers before, with `hold_writer`.
    """
    given = {members: known[members] for members in set(sets) if members in known}
    wanted = {_digest(members): members for members in set(sets) if members and members not in known}
    numbers = _known(session, tenant_id, wanted)
    if missing := [digest for digest in wanted if digest not in numbers]:
        if not held:
            hold_writer(session, tenant_id)
            # Between the look-up and the lock another writer may have made them.
            numbers |= _known(session, tenant_id, missing)
        made = {digest: new_id(now) for digest in missing if digest not in numbers}
        if made:
            rows = [(tenant_id, number, digest, len(wanted[digest])) for digest, number in made.items()]
            bulk.insert(session, SubjectSet, ("tenant_id", "set_id", "digest", "size"), rows)
            bulk.insert(
                session,
                SubjectSetMember,
                ("tenant_id", "subject_no", "set_id"),
                [
                    (tenant_id, subject_no, number)
                    for digest, number in made.items()
                    for subject_no in sorted(wanted[digest])
                ],
            )
            numbers |= made
    return {frozenset(): EMPTY_SET, **given, **{members: numbers[digest] for digest, members in wanted.items()}}


def intern_set(session: Session, tenant_id: int, members: Iterable[int], now: datetime) -> int:
    """The number of one set."""
    wanted = frozenset(members)
    return intern_sets(session, tenant_id, (wanted,), now)[wanted]


def members(session: Session, tenant_id: int, set_ids: Iterable[int]) -> dict[int, Members]:
    """The subjects of each set; the empty set for number 0."""
    wanted = sorted(set(set_ids))
    found: dict[int, set[int]] = {set_id: set() for set_id in wanted}
    asked = [set_id for set_id in wanted if set_id != EMPTY_SET]
    for set_id, subject_no in bulk.select_in(session, _MEMBERS, (tenant_id,), asked, "int8"):
        found[set_id].add(subject_no)
    return {set_id: frozenset(subjects) for set_id, subjects in found.items()}


def sets_of(session: Session, tenant_id: int, subject_nos: Iterable[int]) -> frozenset[int]:
    """The numbers of all sets in which at least one of the subjects is."""
    rows = bulk.select_in(session, _SETS, (tenant_id,), sorted(set(subject_nos)), "int8")
    return frozenset(set_id for (set_id,) in rows)


def _digest(subjects: Members) -> bytes:
    return hashlib.sha256(b"".join(number.to_bytes(8, "big") for number in sorted(subjects))).digest()


def _known(session: Session, tenant_id: int, digests: Iterable[bytes]) -> dict[bytes, int]:
    return dict(bulk.select_in(session, _BY_DIGEST, (tenant_id,), sorted(digests), "bytea"))
