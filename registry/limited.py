"""Limited fences: what was said before an erasure that was limited to a class or a conversation stays out.

Guarantees: the person's later words pass; words from before the approval, sent late, are dropped within the limit and
nowhere else. An artifact is late by the time at which it was observed, or by an entry that it was made of. Not here:
the fence of a whole person (`registry.subjects`).
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger.models import EntryRow
from registry.keyed import Seals, canonical_json, chunks
from registry.models import Artifact, Derivation, LimitedFence, ScopeKey, StreamRow
from registry.sets import members
from vault.errors import NotDecryptable
from vault.vault import Vault

_SCOPES = "fence_scopes"
"""The label under which the limits of a request are sealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limited fence: until when, and within which classes or scopes (None: not limited by this)."""

    request_id: str
    at: datetime
    data_classes: frozenset[str] | None
    scopes: frozenset[str] | None

    def covers(self, at: datetime, data_class: str, scopes: frozenset[str]) -> bool:
        """Whether something of that time, class and scope belongs to what was erased."""
        return (
            at <= self.at
            and (self.data_classes is None or data_class in self.data_classes)
            and (self.scopes is None or not self.scopes.isdisjoint(scopes))
        )


def of_people(session: Session, tenant_id: int, subject_nos: Iterable[int]) -> dict[int, list[Limit]]:
    """The limited fences of each of these people; most have none."""
    found: dict[int, list[Limit]] = {}
    anybody = session.exec(select(LimitedFence.subject_no).where(LimitedFence.tenant_id == tenant_id).limit(1)).first()
    for chunk in chunks(sorted(set(subject_nos))) if anybody is not None else ():
        rows = session.exec(
            select(LimitedFence).where(LimitedFence.tenant_id == tenant_id, col(LimitedFence.subject_no).in_(chunk))
        )
        for row in rows:
            limit = Limit(
                request_id=row.request_id,
                at=row.at,
                data_classes=None if row.data_classes is None else frozenset(row.data_classes),
                scopes=None if row.scopes is None else frozenset(row.scopes),
            )
            found.setdefault(row.subject_no, []).append(limit)
    return found


def scopes_of(session: Session, tenant_id: int, stream_nos: Iterable[int]) -> dict[int, frozenset[str]]:
    """Keyed look-ups of each stream's own name and of the scope it declares, in hexadecimal."""
    found: dict[int, set[str]] = {}
    for chunk in chunks(sorted(set(stream_nos))):
        named = sa.select(col(StreamRow.stream_no), col(StreamRow.lookup)).where(
            col(StreamRow.tenant_id) == tenant_id, col(StreamRow.stream_no).in_(chunk)
        )
        declared = sa.select(col(ScopeKey.item), col(ScopeKey.lookup)).where(
            col(ScopeKey.tenant_id) == tenant_id, col(ScopeKey.kind) == "s", col(ScopeKey.item).in_(chunk)
        )
        for query in (named, declared):
            for stream_no, lookup in session.execute(query):
                found.setdefault(stream_no, set()).add(lookup.hex())
    return {stream_no: frozenset(scopes) for stream_no, scopes in found.items()}


def closes(limits: Sequence[Limit], at: datetime, data_class: str, scopes: frozenset[str]) -> bool:
    """Whether words of that time and class, in a stream of these scopes, belong to what was erased."""
    return any(limit.covers(at, data_class, scopes) for limit in limits)


def late_entries(session: Session, tenant_id: int, indexes: Iterable[int], limits: Sequence[Limit]) -> dict[int, str]:
    """Those of these entries that a limited erasure took, each with its request: what is made of them goes too."""
    found: dict[int, str] = {}
    for chunk in chunks(sorted(set(indexes)) if limits else []):
        rows = session.execute(
            sa.select(col(EntryRow.idx), col(EntryRow.at), col(EntryRow.data_class), col(EntryRow.stream_no)).where(
                col(EntryRow.tenant_id) == tenant_id, col(EntryRow.idx).in_(chunk)
            )
        ).all()
        scopes = scopes_of(session, tenant_id, [row.stream_no for row in rows])
        for row in rows:
            for limit in limits:
                if limit.covers(row.at, row.data_class, scopes.get(row.stream_no, frozenset())):
                    found[row.idx] = limit.request_id
    return found


def late_artifacts(
    session: Session, tenant_id: int, artifact_ids: Iterable[int], *, request_id: str | None = None
) -> dict[int, str]:
    """Those of these artifacts that a limited erasure took, each with its request: this one's alone where it is named.

    As at their registration: by when an item was observed, by an entry that it was made of, or by another of them.
    """
    items = _items(session, tenant_id, artifact_ids)
    sets = members(session, tenant_id, {item.set_id for item in items.values()})
    limits: dict[str, dict[int, list[Limit]]] = {}
    for number, some in of_people(session, tenant_id, frozenset[int]().union(*sets.values())).items():
        for limit in some:
            if request_id in {None, limit.request_id}:
                limits.setdefault(limit.request_id, {}).setdefault(number, []).append(limit)
    found: dict[int, str] = {}
    if not limits:
        return found
    scopes, parents = _scopes(session, tenant_id, sorted(items)), _parents(session, tenant_id, items)
    entries = {parent for some in parents.values() for kind, parent in some if kind == "e"}
    for request, theirs in sorted(limits.items()):
        taken = late_entries(session, tenant_id, entries, [limit for some in theirs.values() for limit in some])
        for number, item in items.items():
            mine = [limit for who in sets[item.set_id] for limit in theirs.get(who, ())]
            made_of_it = any(kind == "e" and parent in taken for kind, parent in parents.get(number, ()))
            where = scopes.get(number, frozenset())
            is_late = item.observed_at is not None and closes(mine, item.observed_at, item.data_class, where)
            if mine and (made_of_it or is_late):
                found.setdefault(number, request)
    return _with_what_is_made_of_them(found, parents)


class _Item(NamedTuple):
    """An artifact as far as a limit says anything of it."""

    id: int
    set_id: int
    data_class: str
    observed_at: datetime | None


def _items(session: Session, tenant_id: int, artifact_ids: Iterable[int]) -> dict[int, _Item]:
    found: dict[int, _Item] = {}
    for chunk in chunks(sorted(set(artifact_ids))):
        rows = session.execute(
            sa.select(*(col(getattr(Artifact, name)) for name in _Item._fields)).where(
                col(Artifact.tenant_id) == tenant_id, col(Artifact.id).in_(chunk)
            )
        )
        found.update((row.id, _Item._make(row)) for row in rows)
    return found


def _scopes(session: Session, tenant_id: int, artifact_ids: Sequence[int]) -> dict[int, frozenset[str]]:
    found: dict[int, set[str]] = {}
    for chunk in chunks(artifact_ids):
        rows = session.execute(
            sa.select(col(ScopeKey.item), col(ScopeKey.lookup)).where(
                col(ScopeKey.tenant_id) == tenant_id, col(ScopeKey.kind) == "a", col(ScopeKey.item).in_(chunk)
            )
        )
        for number, lookup in rows:
            found.setdefault(number, set()).add(lookup.hex())
    return {number: frozenset(scopes) for number, scopes in found.items()}


def _parents(session: Session, tenant_id: int, artifact_ids: Iterable[int]) -> dict[int, list[tuple[str, int]]]:
    found: dict[int, list[tuple[str, int]]] = {}
    for chunk in chunks(sorted(artifact_ids)):
        rows = session.execute(
            sa.select(col(Derivation.child), col(Derivation.parent_kind), col(Derivation.parent)).where(
                col(Derivation.tenant_id) == tenant_id, col(Derivation.child).in_(chunk)
            )
        )
        for child, kind, parent in rows:
            found.setdefault(child, []).append((kind, parent))
    return found


def _with_what_is_made_of_them(
    found: dict[int, str], parents: Mapping[int, Sequence[tuple[str, int]]]
) -> dict[int, str]:
    made: dict[int, list[int]] = {}
    for child, some in parents.items():
        for kind, parent in some:
            if kind == "a":
                made.setdefault(parent, []).append(child)
    waiting = sorted(found)
    while waiting:
        parent = waiting.pop()
        for child in made.get(parent, ()):
            if child not in found:
                found[child] = found[parent]
                waiting.append(child)
    return found


def close(
    session: Session,
    tenant_id: int,
    subject_nos: Iterable[int],
    request_id: str,
    at: datetime,
    *,
    data_classes: Sequence[str] | None,
    scopes: Sequence[str] | None,
) -> None:
    """Set the limited fence of a request for each person; the caller commits."""
    for subject_no in sorted(set(subject_nos)):
        session.merge(
            LimitedFence(
                tenant_id=tenant_id,
                request_id=request_id,
                subject_no=subject_no,
                at=at,
                data_classes=None if data_classes is None else list(data_classes),
                scopes=None if scopes is None else list(scopes),
            )
        )
    session.flush()


def seal_scopes(  # noqa: PLR0917 - whose, of which request, and what
    session: Session, vault: Vault, tenant_id: int, subject_nos: Iterable[int], request_id: str, scopes: Sequence[str]
) -> str:
    """To which keyed look-ups a request is limited, as its fence's event tells it: base64, and gone with the persons.

    Raises: SealRefused where nobody's key can seal.
    """
    said = canonical_json({"scopes": sorted(scopes)})
    return b64encode(Seals(session, vault, tenant_id).seal_jointly(subject_nos, _SCOPES, request_id, said)).decode()


def scopes_in(  # noqa: PLR0917 - as above
    session: Session, vault: Vault, tenant_id: int, subject_nos: Iterable[int], request_id: str, sealed: str
) -> list[str] | None:
    """What `seal_scopes` sealed; None where it does not open any more, or was not sealed for these persons."""
    try:
        said = Seals(session, vault, tenant_id).open_jointly(subject_nos, _SCOPES, request_id, b64decode(sealed))
    except (NotDecryptable, ValueError):
        return None
    return None if said is None else [str(one) for one in json.loads(said)["scopes"]]


def open_again(session: Session, tenant_id: int, request_id: str) -> int:
    """Remove a request's limited fences; how many."""
    done = session.connection().execute(
        sa.delete(LimitedFence).where(
            col(LimitedFence.tenant_id) == tenant_id, col(LimitedFence.request_id) == request_id
        )
    )
    session.expire_all()
    return done.rowcount
