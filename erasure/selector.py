"""Loads what a plan needs about some people: artifacts, edges, keys, shared parts, rules, holds, restrictions.

Guarantees: every look-up is by an index and in chunks, so that its cost follows the person's copies and not the size
of the registry. One selector serves requests, their second run after the fence, and the decision inside the transaction
that dispatches a delete. Opens nothing and decides nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure.plan import ArtifactFact, KeyFact, PartFact, PlanInput, SourceFact
from erasure.standing import Standing, standing
from ledger.models import EntryRow, PartRef
from registry.ids import artifact_name
from registry.keyed import IDENTITY_CLASS, chunks
from registry.models import Artifact, Derivation, ScopeKey, StreamRow
from registry.sets import members, sets_of
from retention.decide import Claim, Item
from retention.models import EventRow
from retention.stops import holds_in_force
from vault.models import DataKey, KeyState

GONE = "erased"
_NO_CLASSES = frozenset({IDENTITY_CLASS})


def select_subjects(
    session: Session,
    tenant_id: int,
    subjects: frozenset[int],
    *,
    owner: str,
    claim: Claim | None,
    now: datetime,
    rules: Standing | None = None,
) -> PlanInput:
    """Everything a plan about these people is made from."""
    keys = _within(session, tenant_id, _keys(session, tenant_id, subjects, now), claim)
    sets = sorted(sets_of(session, tenant_id, subjects))
    rows: list[Artifact] = []
    for chunk in chunks(sets):
        rows += session.exec(
            select(Artifact).where(
                Artifact.tenant_id == tenant_id, col(Artifact.set_id).in_(chunk), col(Artifact.status) != GONE
            )
        )
    return _input(
        session, tenant_id, rows, subjects=subjects, keys=keys, owner=owner, claim=claim, now=now, rules=rules
    )


def select_artifacts(
    session: Session,
    tenant_id: int,
    artifact_ids: Iterable[int],
    *,
    owner: str,
    claim: Claim | None,
    now: datetime,
    subjects: frozenset[int] = frozenset(),
    key_ids: Iterable[str] = (),
    rules: Standing | None = None,
) -> PlanInput:
    """The same for given artifacts and keys: sweeps, late copies, and the decision at the moment of dispatch."""
    rows: list[Artifact] = []
    for chunk in chunks(sorted(set(artifact_ids))):
        rows += session.exec(select(Artifact).where(Artifact.tenant_id == tenant_id, col(Artifact.id).in_(chunk)))
    found: list[DataKey] = []
    for some in chunks(sorted(set(key_ids))):
        found += session.exec(select(DataKey).where(DataKey.tenant_id == tenant_id, col(DataKey.key_id).in_(some)))
    keys = _within(session, tenant_id, _key_facts(session, tenant_id, found, subjects, now), claim)
    return _input(
        session, tenant_id, rows, subjects=subjects, keys=keys, owner=owner, claim=claim, now=now, rules=rules
    )


def _input(
    session: Session,
    tenant_id: int,
    rows: Sequence[Artifact],
    *,
    subjects: frozenset[int],
    keys: Sequence[KeyFact],
    owner: str,
    claim: Claim | None,
    now: datetime,
    rules: Standing | None,
) -> PlanInput:
    known = rules or standing(session, tenant_id)
    return PlanInput(
        owner=owner,
        subjects=subjects,
        claim=claim,
        artifacts=_artifacts(session, tenant_id, rows, subjects, known, claim=claim),
        keys=keys,
        classes=known.classes,
        stores=known.stores,
        holds=known.holds,
        restrictions=known.restrictions,
        claims=known.claims,
        now=now,
    )


def _artifacts(
    session: Session,
    tenant_id: int,
    rows: Sequence[Artifact],
    subjects: frozenset[int],
    known: Standing,
    *,
    claim: Claim | None,
) -> list[ArtifactFact]:
    people = members(session, tenant_id, {number for row in rows for number in (row.set_id, row.own_set_id)})
    ids = [row.id for row in rows]
    sources = _sources(session, tenant_id, ids, subjects, claim)
    scopes = _scopes(session, tenant_id, "a", ids)
    clocks = {name: fact.rules.starts for name, fact in known.classes.items()}
    waiting = {
        row.id: (clocks[row.data_class].removeprefix("event:"), scopes.get(row.id, frozenset()))
        for row in rows
        if clocks.get(row.data_class, "").startswith("event:")
    }
    events = _events(session, tenant_id, waiting)
    facts = []
    for row in rows:
        store = known.stores.get(row.store)
        facts.append(
            ArtifactFact(
                artifact_id=row.id,
                name=row.given_id or artifact_name(row.id),
                store=row.store,
                item=Item(
                    item_id=row.id,
                    data_class=row.data_class,
                    created=row.created_at,
                    subjects=people.get(row.set_id, frozenset()),
                    own_subjects=people.get(row.own_set_id, frozenset()),
                    observed=row.observed_at,
                    last_activity=row.last_activity_at,
                    expires_at=row.expires_at,
                    events=events.get(row.id, {}),
                    scopes=scopes.get(row.id, frozenset()),
                ),
                sources=tuple(sources.get(row.id, ())),
                asserted_by=None if store is not None and store.checks_owner else row.registered_by,
            )
        )
    return facts


def _sources(
    session: Session, tenant_id: int, ids: Sequence[int], subjects: frozenset[int], claim: Claim | None
) -> dict[int, list[SourceFact]]:
    edges: list[tuple[int, str, int]] = []
    for chunk in chunks(ids):
        found = session.execute(
            sa.select(col(Derivation.child), col(Derivation.parent_kind), col(Derivation.parent)).where(
                col(Derivation.tenant_id) == tenant_id, col(Derivation.child).in_(chunk)
            )
        )
        edges += [tuple(row) for row in found]
    parents = _parents(session, tenant_id, sorted({ref for _, kind, ref in edges if kind == "a"}))
    entries = _entries(session, tenant_id, sorted({ref for _, kind, ref in edges if kind == "e"}), subjects, claim)
    sources: dict[int, list[SourceFact]] = defaultdict(list)
    for child, kind, ref in sorted(edges):
        source = (parents if kind == "a" else entries).get(ref)
        if source is not None:
            sources[child].append(source)
    return sources


def _parents(session: Session, tenant_id: int, ids: Sequence[int]) -> dict[int, SourceFact]:
    found: dict[int, SourceFact] = {}
    for chunk in chunks(ids):
        rows = session.execute(
            sa.select(col(Artifact.id), col(Artifact.given_id), col(Artifact.status), col(Artifact.ends_at)).where(
                col(Artifact.tenant_id) == tenant_id, col(Artifact.id).in_(chunk)
            )
        )
        for ref, given, status, ends in rows:
            found[ref] = SourceFact(kind="a", ref=ref, name=given or artifact_name(ref), status=status, ends_at=ends)
    return found


def _entries(
    session: Session, tenant_id: int, ids: Sequence[int], subjects: frozenset[int], claim: Claim | None
) -> dict[int, SourceFact]:
    rows: list[Any] = []
    for chunk in chunks(ids):
        rows += session.execute(
            sa.select(
                col(EntryRow.idx),
                col(EntryRow.entry_id),
                col(EntryRow.set_id),
                col(EntryRow.data_class),
                col(EntryRow.stream_no),
            ).where(col(EntryRow.tenant_id) == tenant_id, col(EntryRow.idx).in_(chunk))
        )
    people = members(session, tenant_id, {row.set_id for row in rows})
    streams = streams_within(session, tenant_id, claim)
    return {
        row.idx: SourceFact(
            kind="e",
            ref=row.idx,
            name=f"entry:{UUID(bytes=row.entry_id)}",
            status="live",
            about_subjects=not people.get(row.set_id, frozenset()).isdisjoint(subjects)
            and (streams is None or row.stream_no in streams)
            and (claim is None or claim.data_classes is None or row.data_class in claim.data_classes),
        )
        for row in rows
    }


def streams_within(session: Session, tenant_id: int, claim: Claim | None) -> frozenset[int] | None:
    """The streams of the conversation that a request is limited to; None where it is not limited to one."""
    if claim is None or claim.scopes is None:
        return None
    lookups = [bytes.fromhex(scope) for scope in sorted(claim.scopes)]
    declared = session.scalars(
        sa.select(col(ScopeKey.item)).where(
            col(ScopeKey.tenant_id) == tenant_id, col(ScopeKey.kind) == "s", col(ScopeKey.lookup).in_(lookups)
        )
    ).all()
    named = session.scalars(
        sa.select(col(StreamRow.stream_no)).where(
            col(StreamRow.tenant_id) == tenant_id, col(StreamRow.lookup).in_(lookups)
        )
    ).all()
    return frozenset((*declared, *named))


def _within(session: Session, tenant_id: int, keys: list[KeyFact], claim: Claim | None) -> list[KeyFact]:
    """Keys that know whether they seal anything of the request's conversation, and how much beside it."""
    streams = streams_within(session, tenant_id, claim)
    if claim is None or claim.scopes is None or streams is None:
        return keys
    inside: dict[str, int] = {}
    entries: dict[str, int] = {}
    for chunk in chunks([key.key_id for key in keys]):
        rows = session.execute(
            sa.select(
                col(PartRef.key_id),
                sa.func.count(sa.distinct(col(PartRef.idx))),
                sa.func.count(sa.distinct(sa.case((col(EntryRow.stream_no).in_(sorted(streams)), col(PartRef.idx))))),
            )
            .join(
                EntryRow,
                sa.and_(col(EntryRow.tenant_id) == col(PartRef.tenant_id), col(EntryRow.idx) == col(PartRef.idx)),
            )
            .where(col(PartRef.tenant_id) == tenant_id, col(PartRef.key_id).in_(chunk))
            .group_by(col(PartRef.key_id))
        )
        for key_id, total, within in rows:
            entries[key_id], inside[key_id] = total, within
    return [
        replace(
            key,
            item=replace(key.item, scopes=claim.scopes if inside.get(key.key_id) else frozenset()),
            outside=entries.get(key.key_id, 0) - inside.get(key.key_id, 0),
        )
        for key in keys
    ]


def _scopes(session: Session, tenant_id: int, kind: str, items: Sequence[int]) -> dict[int, frozenset[str]]:
    found: dict[int, set[str]] = defaultdict(set)
    for chunk in chunks(items):
        rows = session.execute(
            sa.select(col(ScopeKey.item), col(ScopeKey.lookup)).where(
                col(ScopeKey.tenant_id) == tenant_id, col(ScopeKey.kind) == kind, col(ScopeKey.item).in_(chunk)
            )
        )
        for item, lookup in rows:
            found[item].add(lookup.hex())
    return {item: frozenset(lookups) for item, lookups in found.items()}


def _keys(session: Session, tenant_id: int, subjects: frozenset[int], now: datetime) -> list[KeyFact]:
    rows: list[DataKey] = []
    for chunk in chunks(sorted(subjects)):
        rows += session.exec(
            select(DataKey).where(
                DataKey.tenant_id == tenant_id,
                col(DataKey.subject_id).in_(chunk),
                col(DataKey.state) != KeyState.DESTROYED.value,
            )
        )
    return _key_facts(session, tenant_id, rows, subjects, now)


def _key_facts(
    session: Session, tenant_id: int, rows: Sequence[DataKey], subjects: frozenset[int], now: datetime
) -> list[KeyFact]:
    ids = sorted(row.key_id for row in rows)
    joint = _joint_parts(session, tenant_id, ids)
    held = _held_parts(session, tenant_id, ids)
    facts = []
    for row in sorted(rows, key=lambda row: row.key_id):
        person = frozenset({row.subject_id})
        shared = joint.get(row.key_id, [])
        others = {other for part in shared for other in part.item.subjects} - subjects
        facts.append(
            KeyFact(
                key_id=row.key_id,
                month=row.month,
                item=Item(
                    item_id=0,
                    data_class=row.data_class,
                    created=_last_use(row, now),
                    subjects=person,
                    own_subjects=person,
                ),
                joint_parts=len(shared),
                joint_subjects=len(others),
                parts=(*shared, *held.get(row.key_id, ())),
            )
        )
    return facts


def _last_use(row: DataKey, now: datetime) -> datetime:
    """The latest instant at which something can have been sealed under a month's key: floors count from there."""
    if row.data_class in _NO_CLASSES or row.month[:4] == "0000":
        return row.created_at
    first = datetime.fromisoformat(f"{row.month}-01T00:00:00+00:00")
    end = (first + timedelta(days=32)).replace(day=1) - timedelta(microseconds=1)
    return min(end, max(now, row.created_at))


def _joint_parts(session: Session, tenant_id: int, key_ids: Sequence[str]) -> dict[str, list[PartFact]]:
    """Parts that more than one key seals, with everybody they are about."""
    mine, other = sa.orm.aliased(PartRef), sa.orm.aliased(PartRef)
    found: dict[str, dict[tuple[int, int], set[int]]] = defaultdict(lambda: defaultdict(set))
    for chunk in chunks(key_ids):
        rows = session.execute(
            sa.select(col(mine.key_id), col(mine.idx), col(mine.part), col(DataKey.subject_id))
            .join(
                other,
                sa.and_(
                    col(other.tenant_id) == col(mine.tenant_id),
                    col(other.idx) == col(mine.idx),
                    col(other.part) == col(mine.part),
                    col(other.key_id) != col(mine.key_id),
                ),
            )
            .join(
                DataKey,
                sa.and_(col(DataKey.tenant_id) == col(other.tenant_id), col(DataKey.key_id) == col(other.key_id)),
            )
            .where(col(mine.tenant_id) == tenant_id, col(mine.key_id).in_(chunk))
        )
        for key_id, idx, part, subject in rows:
            found[key_id][idx, part].add(subject)
    entries = _entry_rows(session, tenant_id, {idx for parts in found.values() for idx, _ in parts})
    return {
        key_id: [
            PartFact(
                entry_id=str(UUID(bytes=entries[idx].entry_id)),
                entry_idx=idx,
                part=part,
                item=Item(
                    item_id=0,
                    data_class=entries[idx].data_class,
                    created=entries[idx].received,
                    subjects=frozenset(people),
                ),
            )
            for (idx, part), people in sorted(parts.items())
            if idx in entries
        ]
        for key_id, parts in found.items()
    }


def _held_parts(session: Session, tenant_id: int, key_ids: Sequence[str]) -> dict[str, list[PartFact]]:
    """Parts in streams that a hold selects by scope."""
    scopes = sorted({scope for hold in holds_in_force(session, tenant_id) for scope in hold.scopes})
    found: dict[str, list[PartFact]] = defaultdict(list)
    if not scopes:
        return found
    for chunk in chunks(key_ids):
        rows = session.execute(
            sa.select(col(PartRef.key_id), col(PartRef.part), EntryRow, col(ScopeKey.lookup))
            .join(
                EntryRow,
                sa.and_(col(EntryRow.tenant_id) == col(PartRef.tenant_id), col(EntryRow.idx) == col(PartRef.idx)),
            )
            .join(
                ScopeKey,
                sa.and_(
                    col(ScopeKey.tenant_id) == col(EntryRow.tenant_id),
                    col(ScopeKey.kind) == "s",
                    col(ScopeKey.item) == col(EntryRow.stream_no),
                ),
            )
            .where(
                col(PartRef.tenant_id) == tenant_id,
                col(PartRef.key_id).in_(chunk),
                col(ScopeKey.lookup).in_([bytes.fromhex(scope) for scope in scopes]),
            )
        )
        for key_id, part, entry, lookup in rows:
            item = Item(
                item_id=0, data_class=entry.data_class, created=entry.received, scopes=frozenset({lookup.hex()})
            )
            found[key_id].append(
                PartFact(entry_id=str(UUID(bytes=entry.entry_id)), entry_idx=entry.idx, part=part, item=item)
            )
    return found


def _events(
    session: Session, tenant_id: int, wanted: Mapping[int, tuple[str, frozenset[str]]]
) -> dict[int, dict[str, datetime | None]]:
    """The events that started the clock of each item: those of the class's name with one of the item's scope keys."""
    names = sorted({name for name, _ in wanted.values()})
    if not names:
        return {}
    lookups = sorted({bytes.fromhex(scope) for _, scopes in wanted.values() for scope in scopes})
    happened: dict[tuple[str, str], datetime] = {}
    for chunk in chunks(lookups):
        rows = session.execute(
            sa.select(col(EventRow.name), col(EventRow.lookup), sa.func.max(col(EventRow.at)))
            .where(col(EventRow.tenant_id) == tenant_id, col(EventRow.name).in_(names), col(EventRow.lookup).in_(chunk))
            .group_by(col(EventRow.name), col(EventRow.lookup))
        )
        happened.update({(name, lookup.hex()): at for name, lookup, at in rows})
    return {
        item: {scope: happened[name, scope] for scope in scopes if (name, scope) in happened}
        for item, (name, scopes) in wanted.items()
    }


def _entry_rows(session: Session, tenant_id: int, indexes: Iterable[int]) -> dict[int, EntryRow]:
    found: dict[int, EntryRow] = {}
    for chunk in chunks(sorted(set(indexes))):
        for row in session.exec(select(EntryRow).where(EntryRow.tenant_id == tenant_id, col(EntryRow.idx).in_(chunk))):
            found[row.idx] = row
    return found
