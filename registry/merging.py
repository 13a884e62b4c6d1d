"""Several names, one person: proposed by one, decided by another, undone by a split.

Guarantees: nobody becomes somebody else by one person's word (unless the tenant's approval is single); a name that is
somebody's already, who has another name of the same type, is never joined silently: the proposal says which names are
shared, and only a decision that says so joins them. Somebody whose erasure has begun is neither merged nor split. A
merge moves nothing: artifacts, keys and entries stay as they were registered, and only look-ups see one person, so
that a split is exact. A merge is not an erasure and tells nobody of one. The caller commits and announces.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from registry import restricted
from registry.acting import Acting
from registry.errors import AmbiguousSubject, Conflict, SamePrincipalDecides, UnknownMerge, UnknownSubject
from registry.identifiers import Identifier
from registry.ids import random_hex
from registry.keyed import Seals, canonical_json, chunks, hold_writer
from registry.models import Subject, SubjectIdentifier
from registry.people import expand, groups
from registry.review_models import MergeRow
from registry.subjects import LIVE, find, opaque_ids
from vault.vault import Vault

PROPOSED, DONE, REFUSED = "proposed", "done", "refused"
MERGE, SPLIT = "merge", "split"
ADDRESSES = frozenset({"email", "phone"})
"""Types of which one person may well have several; two names of any other type suggest two people."""
_LABEL = "merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """A merge or split as it stands; people under opaque ids. `shared`: names that are already somebody's."""

    id: str
    kind: str
    state: str
    subjects: tuple[str, ...]
    people: tuple[str, ...]
    shared: tuple[str, ...]
    proposed_by: str
    proposed_at: datetime
    decided_by: str | None
    decided_at: datetime | None
    numbers: tuple[int, ...] = field(repr=False)
    """The incarnations that are or would be one person, for whoever acts on it."""


def propose_merge(
    session: Session,
    vault: Vault,
    acting: Acting,
    identifiers: Sequence[Identifier],
    *,
    reason: str,
    now: datetime,
    single: bool = False,
) -> Merge:
    """The proposal that these names are one person's; the same again by another principal decides it.

    `single`: one person may decide alone. A proposal with shared names is never decided by a repeat.
    The proposer's own repeat changes nothing. Raises: UnknownSubject, Conflict.
    """
    hold_writer(session, acting.tenant_id)
    named = _known(session, vault, acting, identifiers)
    people = expand(session, acting.tenant_id, named)
    _check_live(session, acting.tenant_id, people)
    if len(named) < 2:  # noqa: PLR2004 - one name is no merge
        raise Conflict("a merge names at least two people")
    if len(set(groups(session, acting.tenant_id, named).values())) == 1:
        raise Conflict("they are one person already")
    open_row = _open_proposal(session, acting.tenant_id, named)
    if open_row is not None:
        if open_row.proposed_by == acting.principal or open_row.shared:
            return _view(session, open_row)
        return _join(session, vault, open_row, acting, now)
    row = MergeRow(
        tenant_id=acting.tenant_id,
        merge_id=f"mrg_{random_hex()}",
        kind=MERGE,
        state=PROPOSED,
        subjects=sorted(named),
        people=sorted(people),
        shared=sorted(_shared(session, acting.tenant_id, named)),
        proposed_by=acting.principal,
        proposed_at=now,
    )
    row.sealed = _seal(session, vault, row, {"reason": reason})
    session.add(row)
    session.flush()
    return _join(session, vault, row, acting, now) if single and not row.shared else _view(session, row)


def decide_merge(
    session: Session,
    vault: Vault,
    acting: Acting,
    merge_id: str,
    *,
    same_person: bool,
    comment: str,
    now: datetime,
    knows_shared: bool = False,
    single: bool = False,
) -> Merge:
    """The proposal decided; `knows_shared` says that the decision knows of the shared names.

    Raises: UnknownMerge, Conflict, SamePrincipalDecides, AmbiguousSubject.
    """
    hold_writer(session, acting.tenant_id)
    row = _load(session, acting.tenant_id, merge_id)
    if row.state != PROPOSED:
        raise Conflict(f"the proposal is {row.state}")
    if row.proposed_by == acting.principal and same_person and not single:
        raise SamePrincipalDecides
    if not same_person:
        row.state, row.decided_by, row.decided_at = REFUSED, acting.principal, now
        row.sealed = _seal(session, vault, row, {**said(session, vault, row), "comment": comment})
        session.add(row)
        session.flush()
        return _view(session, row)
    if row.shared and not knows_shared:
        raise AmbiguousSubject(len(row.shared))
    return _join(session, vault, row, acting, now, comment=comment)


def split(
    session: Session, vault: Vault, acting: Acting, identifiers: Sequence[Identifier], *, reason: str, now: datetime
) -> Merge:
    """These names told apart from everybody they were merged with; among themselves they stay one person.

    Raises: UnknownSubject, Conflict where they were not merged with anybody else.
    """
    hold_writer(session, acting.tenant_id)
    named = _known(session, vault, acting, identifiers)
    people = expand(session, acting.tenant_id, named)
    _check_live(session, acting.tenant_id, people)
    if len(set(groups(session, acting.tenant_id, named).values())) > 1:
        raise Conflict("these names belong to different people already; split them one by one")
    if people == named:
        raise Conflict("nobody else was merged with these names")
    for part in (named, people - named):
        _write(session, acting.tenant_id, part, min(part) if len(part) > 1 else None)
    restricted.mark(session, acting.tenant_id, sorted(people))
    row = MergeRow(
        tenant_id=acting.tenant_id,
        merge_id=f"mrg_{random_hex()}",
        kind=SPLIT,
        state=DONE,
        subjects=sorted(named),
        people=sorted(people),
        proposed_by=acting.principal,
        proposed_at=now,
        decided_by=acting.principal,
        decided_at=now,
    )
    row.sealed = _seal(session, vault, row, {"reason": reason})
    session.add(row)
    session.flush()
    session.expire_all()
    return _view(session, row)


def get_merge(session: Session, tenant_id: int, merge_id: str) -> Merge:
    """One merge or split. Raises: UnknownMerge."""
    return _view(session, _load(session, tenant_id, merge_id))


def list_merges(
    session: Session, tenant_id: int, *, state: str | None, limit: int, after: tuple[datetime, str] | None = None
) -> list[Merge]:
    """Merges and splits, newest first, at most `limit`, of one state where one is given."""
    query = select(MergeRow).where(MergeRow.tenant_id == tenant_id)
    if state is not None:
        query = query.where(MergeRow.state == state)
    if after is not None:
        at, merge_id = after
        older = col(MergeRow.proposed_at) < at
        query = query.where(sa.or_(older, sa.and_(col(MergeRow.proposed_at) == at, col(MergeRow.merge_id) > merge_id)))
    rows = session.exec(query.order_by(col(MergeRow.proposed_at).desc(), col(MergeRow.merge_id)).limit(limit))
    return [_view(session, row) for row in rows]


def replay(session: Session, tenant_id: int, people: Iterable[int], apart: Iterable[int]) -> None:
    """Make a person, or two of them, as an event of the record says it was decided: for a rebuild. Idempotent."""
    people, apart = frozenset(people), frozenset(apart)
    for part in (people - apart, apart):
        if part:
            _write(session, tenant_id, part, min(part) if len(part) > 1 else None)
    session.flush()  # marking reads anew what is loaded
    restricted.mark(session, tenant_id, sorted({*people, *apart}))


def check_unambiguous(session: Session, tenant_id: int, subject_nos: Iterable[int]) -> None:
    """Nothing may be erased while a human must still say whose a shared name is. Raises: AmbiguousSubject."""
    wanted = set(subject_nos)
    rows = session.exec(
        select(MergeRow).where(MergeRow.tenant_id == tenant_id, MergeRow.kind == MERGE, MergeRow.state == PROPOSED)
    )
    shared = sum(len(row.shared) for row in rows if row.shared and wanted & {*row.people, *row.subjects})
    if shared:
        raise AmbiguousSubject(shared)


def _known(session: Session, vault: Vault, acting: Acting, identifiers: Sequence[Identifier]) -> frozenset[int]:
    found = find(session, vault, acting, identifiers)
    if len(found) < len({one.text for one in identifiers}):
        raise UnknownSubject
    return frozenset(found.values())


def _check_live(session: Session, tenant_id: int, people: Iterable[int]) -> None:
    for chunk in chunks(sorted(people)):
        closed = session.scalar(
            sa.select(sa.func.count())
            .select_from(Subject)
            .where(col(Subject.tenant_id) == tenant_id, col(Subject.subject_no).in_(chunk), col(Subject.state) != LIVE)
        )
        if closed:
            raise Conflict("an erasure of one of them has begun or is through; it ends as it was approved")


def _shared(session: Session, tenant_id: int, named: Iterable[int]) -> frozenset[int]:
    """Named incarnations that are somebody's already, who is not named and has a name of a type the others have too.

    Such as one e-mail that would be on two user accounts. Several addresses of one person are no doubt.
    """
    parts = set(groups(session, tenant_id, named).values())
    types = _types(session, tenant_id, frozenset[int]().union(*parts))
    found: set[int] = set()
    for part in parts:
        unnamed = {kind for number in part - frozenset(named) for kind in types.get(number, ())}
        outside = {kind for other in parts if other != part for number in other for kind in types.get(number, ())}
        if (unnamed & outside) - ADDRESSES:
            found |= part & frozenset(named)
    return frozenset(found)


def _types(session: Session, tenant_id: int, people: Iterable[int]) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for chunk in chunks(sorted(people)):
        rows = session.execute(
            sa.select(col(SubjectIdentifier.subject_no), col(SubjectIdentifier.type)).where(
                col(SubjectIdentifier.tenant_id) == tenant_id, col(SubjectIdentifier.subject_no).in_(chunk)
            )
        )
        for subject_no, kind in rows:
            found.setdefault(subject_no, set()).add(kind)
    return found


def _open_proposal(session: Session, tenant_id: int, named: frozenset[int]) -> MergeRow | None:
    rows = session.exec(
        select(MergeRow).where(MergeRow.tenant_id == tenant_id, MergeRow.kind == MERGE, MergeRow.state == PROPOSED)
    )
    return next((row for row in rows if row.subjects == sorted(named)), None)


def _join(
    session: Session, vault: Vault, row: MergeRow, acting: Acting, now: datetime, *, comment: str | None = None
) -> Merge:
    """Make them one person. Whoever was merged with one of them meanwhile is in it too: chains collapse here."""
    people = expand(session, row.tenant_id, row.subjects)
    _check_live(session, row.tenant_id, people)
    _write(session, row.tenant_id, people, min(people))
    restricted.mark(session, row.tenant_id, sorted(people))
    row.people = sorted(people)
    row.state, row.decided_by, row.decided_at = DONE, acting.principal, now
    if comment:
        row.sealed = _seal(session, vault, row, {**said(session, vault, row), "comment": comment})
    session.add(row)
    session.flush()
    return _view(session, row)


def _write(session: Session, tenant_id: int, people: Iterable[int], person_no: int | None) -> None:
    for chunk in chunks(sorted(people)):
        session.connection().execute(
            sa.update(Subject)
            .where(col(Subject.tenant_id) == tenant_id, col(Subject.subject_no).in_(chunk))
            .values(person_no=person_no)
        )
    # Not all: the row of the merge itself is still to be written.
    for loaded in list(session.identity_map.values()):
        if isinstance(loaded, Subject):
            session.expire(loaded)


def _load(session: Session, tenant_id: int, merge_id: str) -> MergeRow:
    row = session.get(MergeRow, (tenant_id, merge_id))
    if row is None:
        raise UnknownMerge
    return row


def _about(row: MergeRow) -> list[int]:
    """With whom goes what was said; of a merge those who were named, since others may join meanwhile."""
    return row.people if row.kind == SPLIT else row.subjects


def _seal(session: Session, vault: Vault, row: MergeRow, content: dict[str, Any]) -> bytes:
    seals = Seals(session, vault, row.tenant_id)
    return seals.seal_jointly(_about(row), _LABEL, row.merge_id, canonical_json(content))


def said(session: Session, vault: Vault, row: MergeRow) -> dict[str, Any]:
    """Reason and comment; empty once a key of those they are about is gone. Raises: NotDecryptable."""
    opened = Seals(session, vault, row.tenant_id).open_jointly(_about(row), _LABEL, row.merge_id, row.sealed)
    return {} if opened is None else dict(json.loads(opened))


def _view(session: Session, row: MergeRow) -> Merge:
    ids = opaque_ids(session, row.tenant_id, {*row.subjects, *row.people, *row.shared})
    return Merge(
        id=row.merge_id,
        kind=row.kind,
        state=row.state,
        subjects=tuple(sorted(ids[number] for number in row.subjects if number in ids)),
        people=tuple(sorted(ids[number] for number in row.people if number in ids)),
        shared=tuple(sorted(ids[number] for number in row.shared if number in ids)),
        proposed_by=row.proposed_by,
        proposed_at=row.proposed_at,
        decided_by=row.decided_by,
        decided_at=row.decided_at,
        numbers=tuple(row.people),
    )
