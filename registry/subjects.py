"""People: resolved from the names callers use to random incarnations, fenced, forgotten, opened again.

Guarantees: a name is found by its keyed look-up alone; its readable form lies sealed under the person's identity key
and is gone with it. After an erasure the look-up stays, so that a later write about that name is recognised and joins
the erasure; a person who returns is a new incarnation that inherits nothing. The caller commits.
Each name is an incarnation of its own; which of them are one person is `registry.merging`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
import sqlalchemy.orm
from sqlmodel import Session, col, select

from registry import bulk
from registry.acting import Acting
from registry.errors import SubjectNotErased, UnknownSubject
from registry.identifiers import Identifier, parse_subject
from registry.ids import new_id, random_hex
from registry.keyed import IDENTITY_CLASS, NO_MONTH, Lookups, Seals, canonical_json, chunks, hold_writer
from registry.models import Artifact, Subject, SubjectIdentifier
from registry.people import expand, groups
from registry.sets import intern_set, intern_sets, members, sets_of
from vault.vault import Vault
from vault.wrapping import KeyHandle

__all__ = [
    "Fence",
    "Identifier",
    "SubjectName",
    "counts",
    "end",
    "ended",
    "fence",
    "fenced",
    "find",
    "find_people",
    "forget_identifiers",
    "identity_key",
    "intern_set",
    "intern_sets",
    "lift_fence",
    "lookup_of",
    "members",
    "names_of",
    "opaque_ids",
    "opened_at",
    "parse_subject",
    "public_id",
    "reopen",
    "resolve",
    "seal_for",
    "sets_of",
    "unseal_for",
]  # fmt: skip

LIVE, FENCED, ERASED, ENDED = "live", "fenced", "erased", "ended"
"""`ended`: retention left nothing of the person, who was not erased: whoever has the name next is somebody new."""
_LABEL = "identifier"
_FENCED = (
    "SELECT subject_no, request_id, COALESCE(fenced_at, erased_at, created_at), state FROM subject "
    "WHERE tenant_id = ? AND state NOT IN (?, ?) AND subject_no"
)
_ENDED = "SELECT subject_no FROM subject WHERE tenant_id = ? AND state = ? AND subject_no"
_BY_NAME = "SELECT lookup, subject_no FROM subject_identifier WHERE tenant_id = ? AND lookup"
_INCARNATIONS = "SELECT subject_no, incarnation, state FROM subject WHERE tenant_id = ? AND subject_no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Which request stands before an incarnation, and since when; `erased` once its erasure is through."""

    request_id: str
    at: datetime
    erased: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectName:
    """A readable name of a person: normalised, and as it was first written."""

    type: str
    text: str = field(repr=False)
    given: str = field(repr=False)


def lookup_of(vault: Vault, tenant_id: int, identifier: Identifier) -> bytes:
    """The keyed look-up of a name."""
    return Lookups(vault, tenant_id).subject(identifier.type, identifier.value)


def resolve(
    session: Session,
    vault: Vault,
    acting: Acting,
    identifiers: Sequence[Identifier],
    now: datetime,
    *,
    seals: Seals | None = None,
) -> list[int]:
    """The newest incarnation behind each name, in order; made where nobody has that name any more.

    An erased person is returned as such: ask `fenced` before writing about anybody. `seals` are those of a batch that
    has waited for other writers before, with `hold_writer`; they keep the keys of whom it makes.
    """
    lookups = Lookups(vault, acting.tenant_id)
    hashes = [lookups.subject(one.type, one.value) for one in identifiers]
    known = _newest(session, acting.tenant_id, hashes)
    if any(lookup not in known or known[lookup].ended for lookup in hashes):
        if seals is None:
            hold_writer(session, acting.tenant_id)
            known = _newest(session, acting.tenant_id, hashes)
        new = {
            lookup: one
            for lookup, one in zip(hashes, identifiers, strict=True)
            if lookup not in known or known[lookup].ended
        }
        former = {lookup: known[lookup].incarnation for lookup in new if lookup in known}
        seals = seals or Seals(session, vault, acting.tenant_id)
        made = _make(session, acting.tenant_id, lookups, seals, wanted=new, now=now, former=former)
        return [made[lookup] if lookup in made else known[lookup].number for lookup in hashes]
    return [known[lookup].number for lookup in hashes]


def find(session: Session, vault: Vault, acting: Acting, identifiers: Sequence[Identifier]) -> dict[str, int]:
    """The newest incarnation of those names that are known, by normalised `type:value`; makes nobody."""
    lookups = Lookups(vault, acting.tenant_id)
    hashes = {one.text: lookups.subject(one.type, one.value) for one in identifiers}
    known = _newest(session, acting.tenant_id, list(hashes.values()))
    return {text: known[lookup].number for text, lookup in hashes.items() if lookup in known}


def find_people(
    session: Session, vault: Vault, acting: Acting, identifiers: Sequence[Identifier]
) -> dict[str, frozenset[int]]:
    """The same with everybody who is one person with each, by normalised `type:value`."""
    found = find(session, vault, acting, identifiers)
    parts = groups(session, acting.tenant_id, found.values())
    return {text: parts[number] for text, number in found.items()}


def names_of(
    session: Session, vault: Vault, tenant_id: int, subject_nos: Iterable[int]
) -> dict[int, list[SubjectName]]:
    """The readable names of each person; nobody's list holds what was forgotten."""
    wanted = sorted(set(subject_nos))
    seals = Seals(session, vault, tenant_id)
    seals.load(wanted)
    names: dict[int, list[SubjectName]] = {subject_no: [] for subject_no in wanted}
    for chunk in chunks(wanted):
        rows = session.exec(
            select(SubjectIdentifier).where(
                col(SubjectIdentifier.tenant_id) == tenant_id, col(SubjectIdentifier.subject_no).in_(chunk)
            )
        )
        for row in rows:
            opened = seals.open(row.subject_no, _LABEL, row.lookup.hex(), row.sealed)
            if opened is not None:
                value = json.loads(opened)
                names[row.subject_no].append(
                    SubjectName(
                        type=row.type, text=f"{row.type}:{value['value']}", given=f"{row.type}:{value['given']}"
                    )
                )
    return names


def opaque_ids(session: Session, tenant_id: int, subject_nos: Iterable[int]) -> dict[int, str]:
    """The random public id of each incarnation."""
    found: dict[int, str] = {}
    for chunk in chunks(sorted(set(subject_nos))):
        rows = session.execute(
            sa.select(col(Subject.subject_no), col(Subject.subject_id)).where(
                col(Subject.tenant_id) == tenant_id, col(Subject.subject_no).in_(chunk)
            )
        )
        found.update((row.subject_no, row.subject_id) for row in rows)
    return found


def public_id(session: Session, tenant_id: int, subject_no: int) -> str:
    """The random public id of one incarnation. Raises: UnknownSubject."""
    found = opaque_ids(session, tenant_id, (subject_no,))
    if subject_no not in found:
        raise UnknownSubject
    return found[subject_no]


def opened_at(session: Session, tenant_id: int, subject_nos: Iterable[int]) -> dict[int, datetime]:
    """Since when each later incarnation exists: what was said before belongs to an erased one.

    First incarnations are left out; they have no erasure before them, so that old conversations can be imported.
    """
    found: dict[int, datetime] = {}
    for chunk in chunks(sorted(set(subject_nos))):
        rows = session.execute(
            sa.select(col(Subject.subject_no), col(Subject.created_at)).where(
                col(Subject.tenant_id) == tenant_id, col(Subject.subject_no).in_(chunk), col(Subject.incarnation) > 1
            )
        )
        found.update((row.subject_no, row.created_at) for row in rows)
    return found


def identity_key(session: Session, vault: Vault, tenant_id: int, subject_no: int) -> KeyHandle:
    """The key under which a person's names and locators are sealed. Raises: KeyDestroyed, KeyFenced."""
    return vault.key_for(session, tenant_id, subject_no, IDENTITY_CLASS, NO_MONTH)


def seal_for(
    session: Session, vault: Vault, tenant_id: int, subject_no: int, *, label: str, name: str, data: bytes
) -> bytes:
    """The data sealed under a person's identity key (0: the tenant's), bound to label and name. Raises: SealRefused."""
    return Seals(session, vault, tenant_id).seal(subject_no, label, name, data)


def unseal_for(
    session: Session, vault: Vault, tenant_id: int, subject_no: int, *, label: str, name: str, sealed: bytes | None
) -> bytes | None:
    """What `seal_for` was given; None once the key is gone. Raises: NotDecryptable when it was altered."""
    return Seals(session, vault, tenant_id).open(subject_no, label, name, sealed)


def fence(session: Session, tenant_id: int, subject_nos: Iterable[int], request_id: str, at: datetime) -> int:
    """Close incarnations to new data under a request; the number newly closed. The others stay as they are."""
    closed = session.connection().execute(
        sa.update(Subject)
        .where(
            col(Subject.tenant_id) == tenant_id,
            col(Subject.subject_no).in_(sorted(set(subject_nos))),
            col(Subject.state) == LIVE,
        )
        .values(state=FENCED, request_id=request_id, fenced_at=at)
    )
    session.expire_all()
    return closed.rowcount


def lift_fence(session: Session, tenant_id: int, subject_nos: Iterable[int], request_id: str) -> int:
    """Open what this request fenced and did not erase; the number opened."""
    opened = session.connection().execute(
        sa.update(Subject)
        .where(
            col(Subject.tenant_id) == tenant_id,
            col(Subject.subject_no).in_(sorted(set(subject_nos))),
            col(Subject.state) == FENCED,
            col(Subject.request_id) == request_id,
        )
        .values(state=LIVE, request_id=None, fenced_at=None)
    )
    session.expire_all()
    return opened.rowcount


def fenced(session: Session, tenant_id: int, subject_nos: Iterable[int]) -> dict[int, Fence]:
    """Those of the incarnations that are fenced or erased, with the request that did it."""
    found: dict[int, Fence] = {}
    for subject_no, request_id, at, state in bulk.select_in(
        session, _FENCED, (tenant_id, LIVE, ENDED), sorted(set(subject_nos)), "int8"
    ):
        since = bulk.moment(at)
        if since is not None:
            found[subject_no] = Fence(request_id=request_id or "", at=since, erased=state == ERASED)
    return found


def forget_identifiers(session: Session, tenant_id: int, subject_no: int, request_id: str, now: datetime) -> None:
    """Remove every readable name of a person and mark the incarnation erased; the keyed look-ups stay. Idempotent."""
    connection = session.connection()
    connection.execute(
        sa.update(SubjectIdentifier)
        .where(col(SubjectIdentifier.tenant_id) == tenant_id, col(SubjectIdentifier.subject_no) == subject_no)
        .values(sealed=None)
    )
    connection.execute(
        sa.update(Subject)
        .where(col(Subject.tenant_id) == tenant_id, col(Subject.subject_no) == subject_no, col(Subject.state) != ERASED)
        .values(state=ERASED, request_id=request_id, erased_at=now)
    )
    session.expire_all()


def end(session: Session, tenant_id: int, subject_nos: Iterable[int], sweep_id: str, now: datetime) -> None:
    """Remove the names of people of whom nothing is left, so that whoever has one next is somebody new. Idempotent.

    A look-up under which somebody else was erased stays, since late copies of that erasure are recognised by it.
    """
    connection = session.connection()
    for chunk in chunks(sorted(set(subject_nos))):
        # Whom somebody fences meanwhile is waited for, and left to that erasure.
        still = sa.select(col(Subject.subject_no)).where(
            col(Subject.tenant_id) == tenant_id, col(Subject.subject_no).in_(chunk), col(Subject.state) == LIVE
        )
        some = list(connection.execute(still.with_for_update()).scalars())
        mine = (col(SubjectIdentifier.tenant_id) == tenant_id, col(SubjectIdentifier.subject_no).in_(some))
        other = sa.orm.aliased(SubjectIdentifier)
        shared = sa.exists(
            sa.select(sa.literal(1)).where(
                col(other.tenant_id) == tenant_id,
                col(other.lookup) == col(SubjectIdentifier.lookup),
                col(other.subject_no) != col(SubjectIdentifier.subject_no),
            )
        )
        connection.execute(sa.delete(SubjectIdentifier).where(*mine, ~shared))
        connection.execute(sa.update(SubjectIdentifier).where(*mine).values(sealed=None))
        connection.execute(
            sa.update(Subject)
            .where(col(Subject.tenant_id) == tenant_id, col(Subject.subject_no).in_(some))
            .values(state=ENDED, request_id=sweep_id, erased_at=now)
        )
    session.expire_all()


def ended(session: Session, tenant_id: int, subject_nos: Iterable[int]) -> frozenset[int]:
    """Those of the incarnations that ended: what still names them was on its way, and belongs to somebody new."""
    rows = bulk.select_in(session, _ENDED, (tenant_id, ENDED), sorted(set(subject_nos)), "int8")
    return frozenset(number for (number,) in rows)


def reopen(
    session: Session, vault: Vault, acting: Acting, identifier: Identifier, *, basis: str, now: datetime
) -> Subject:
    """A new incarnation of somebody who was erased and has returned; it inherits nothing but the name.

    `basis` (why data about that name may be written again) is sealed with it. Raises: UnknownSubject, SubjectNotErased.
    """
    hold_writer(session, acting.tenant_id)
    lookups = Lookups(vault, acting.tenant_id)
    lookup = lookups.subject(identifier.type, identifier.value)
    known = _newest(session, acting.tenant_id, [lookup])
    if lookup not in known:
        raise UnknownSubject
    former = session.get_one(Subject, (acting.tenant_id, known[lookup].number))
    if former.state != ERASED:
        raise SubjectNotErased(former.state)
    made = _make(
        session,
        acting.tenant_id,
        lookups,
        Seals(session, vault, acting.tenant_id),
        wanted={lookup: identifier},
        now=now,
        former={lookup: former.incarnation},
        basis=basis,
    )
    return session.get_one(Subject, (acting.tenant_id, made[lookup]))


def counts(session: Session, tenant_id: int, subject_nos: Iterable[int]) -> list[dict[str, object]]:
    """How many artifacts that are not erased concern these people, per class and store."""
    totals: dict[tuple[str, str], int] = {}
    for chunk in chunks(sorted(sets_of(session, tenant_id, expand(session, tenant_id, subject_nos)))):
        rows = session.execute(
            sa.select(col(Artifact.data_class), col(Artifact.store), sa.func.count().label("n"))
            .where(
                col(Artifact.tenant_id) == tenant_id,
                col(Artifact.set_id).in_(chunk),
                col(Artifact.status) != ERASED,
            )
            .group_by(col(Artifact.data_class), col(Artifact.store))
        )
        for row in rows:
            key = (row.data_class, row.store)
            totals[key] = totals.get(key, 0) + row.n
    return [{"data_class": name, "store": store, "count": n} for (name, store), n in sorted(totals.items())]


class _Named(NamedTuple):
    incarnation: int
    number: int
    state: str

    @property
    def ended(self) -> bool:
        return self.state == ENDED


def _newest(session: Session, tenant_id: int, hashes: Sequence[bytes]) -> dict[bytes, _Named]:
    # One after the other: joined, PostgreSQL would rather read everybody than look for hundreds.
    named = list(bulk.select_in(session, _BY_NAME, (tenant_id,), sorted(set(hashes)), "bytea"))
    numbers = sorted({number for _, number in named})
    found = {
        number: _Named(incarnation, number, state)
        for number, incarnation, state in bulk.select_in(session, _INCARNATIONS, (tenant_id,), numbers, "int8")
    }
    newest: dict[bytes, _Named] = {}
    for lookup, number in named:
        one = found[number]
        if lookup not in newest or one > newest[lookup]:
            newest[lookup] = one
    return newest


def _make(
    session: Session,
    tenant_id: int,
    lookups: Lookups,
    seals: Seals,
    *,
    wanted: dict[bytes, Identifier],
    now: datetime,
    former: Mapping[bytes, int],
    basis: str | None = None,
) -> dict[bytes, int]:
    """Insert new incarnations with their identity keys, after the `former` ones; the caller holds the writer's lock."""
    if not wanted:
        return {}
    made = {lookup: new_id(now) for lookup in wanted}
    at = bulk.instant(now)
    bulk.insert(
        session,
        Subject,
        ("tenant_id", "subject_no", "subject_id", "incarnation", "state", "created_at"),
        [
            (tenant_id, subject_no, random_hex(), former.get(lookup, 0) + 1, LIVE, at)
            for lookup, subject_no in made.items()
        ],
    )
    seals.prepare(made.values())
    rows = []
    for lookup, one in wanted.items():
        content = {"value": one.value, "given": one.given, **({"basis": basis} if basis else {})}
        sealed = seals.seal(made[lookup], _LABEL, lookup.hex(), canonical_json(content))
        rows.append((tenant_id, lookup, made[lookup], lookups.version, one.type, sealed))
    names = ("tenant_id", "lookup", "subject_no", "key_version", "type", "sealed")
    bulk.insert(session, SubjectIdentifier, names, rows)
    return made
