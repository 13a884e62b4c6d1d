"""Loads what a plan needs about some people: artifacts, edges, keys, shared parts, rules, holds, restrictions.

Guarantees: every look-up is by an index and in chunks, so that its cost follows the person's copies and not the size
of the registry. One selector serves requests, their second run after the fence, and the decision inside the transaction
that dispatches a delete. Opens nothing and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure import departed
from erasure.artifact_facts import ROWS, Row, facts_of, rows_of, streams_within
from erasure.facts import ArtifactFacts, KeyFact, PartFact, PlanInput
from erasure.packages import holds_about
from erasure.standing import Standing, standing
from ledger.models import EntryRow, PartRef
from registry.keyed import IDENTITY_CLASS, chunks
from registry.sets import sets_of
from retention.decide import Claim, Item, kept_until
from retention.key_clocks import NO_CLOCK, KeyClock, clocks_of
from retention.parts import (
    PartPlace,
    RecordPart,
    count_parts,
    data_keys_of,
    first_received,
    joint_places,
    kept_places,
    load_parts,
    places_in,
    places_of,
    places_within,
    streams_of,
)
from vault.models import DataKey, KeyState

__all__ = ["streams_within"]
GONE = "erased"
ERASING = "erasure"
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
    known = rules or standing(session, tenant_id)
    keys = _within(session, tenant_id, _keys(session, tenant_id, subjects, now, known=known, claim=claim), claim)
    places = {} if claim is None or claim.right != ERASING else kept_places(session, tenant_id, subjects)
    sets = sorted(sets_of(session, tenant_id, subjects))
    rows = rows_of(session, f"{ROWS} AND status <> ? AND set_id", (tenant_id, GONE), sets)
    return _input(
        session, tenant_id, rows, subjects=subjects, keys=keys, owner=owner, claim=claim, now=now, known=known,
        kept=_parts(session, tenant_id, places, now, known, claim),
    )  # fmt: skip


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
    parts: Iterable[str] = (),
    rules: Standing | None = None,
) -> PlanInput:
    """The same for given artifacts, keys and parts: sweeps, late copies, and the decision at the moment of dispatch."""
    known = rules or standing(session, tenant_id)
    rows = rows_of(session, f"{ROWS} AND id", (tenant_id,), sorted(set(artifact_ids)))
    found: list[DataKey] = []
    for some in chunks(sorted(set(key_ids))):
        found += session.exec(select(DataKey).where(DataKey.tenant_id == tenant_id, col(DataKey.key_id).in_(some)))
    facts = _key_facts(session, tenant_id, found, subjects, now, known=known, claim=claim)
    return _input(
        session, tenant_id, rows, subjects=subjects, keys=_within(session, tenant_id, facts, claim), owner=owner,
        claim=claim, now=now, known=known,
        kept=_parts(session, tenant_id, places_of(session, tenant_id, parts), now, known, claim),
    )  # fmt: skip


def _input(
    session: Session,
    tenant_id: int,
    rows: Iterable[Row],
    *,
    subjects: frozenset[int],
    keys: Sequence[KeyFact],
    owner: str,
    claim: Claim | None,
    now: datetime,
    known: Standing,
    kept: Sequence[PartFact],
) -> PlanInput:
    artifacts = facts_of(session, tenant_id, rows, subjects, known, claim=claim)
    ids = artifacts.ids if isinstance(artifacts, ArtifactFacts) else [fact.artifact_id for fact in artifacts]
    return PlanInput(
        owner=owner,
        subjects=subjects,
        claim=claim,
        artifacts=artifacts,
        keys=keys,
        kept=kept,
        classes=known.classes,
        stores=known.stores,
        holds=holds_about(session, tenant_id, known.holds, ids),
        restrictions=known.restrictions,
        claims=known.claims,
        now=now,
    )


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


def _keys(
    session: Session,
    tenant_id: int,
    subjects: frozenset[int],
    now: datetime,
    *,
    known: Standing,
    claim: Claim | None,
) -> list[KeyFact]:
    rows: list[DataKey] = []
    for chunk in chunks(sorted(subjects)):
        rows += session.exec(
            select(DataKey).where(
                DataKey.tenant_id == tenant_id,
                col(DataKey.subject_id).in_(chunk),
                col(DataKey.state) != KeyState.DESTROYED.value,
            )
        )
    return _key_facts(session, tenant_id, rows, subjects, now, known=known, claim=claim)


def _key_facts(
    session: Session,
    tenant_id: int,
    rows: Sequence[DataKey],
    subjects: frozenset[int],
    now: datetime,
    *,
    known: Standing,
    claim: Claim | None,
) -> list[KeyFact]:
    """Keys, with those parts under each that may meet another fate: shared ones, those that a scope or date tells."""
    ids = sorted(row.key_id for row in rows)
    joint = joint_places(session, tenant_id, ids)
    told: set[str] = set()
    if claim is None or claim.right == ERASING:
        told = told.union(
            *(hold.scopes for hold in known.holds),
            *(restriction.scopes or () for restriction in known.restrictions),
            *(export.scopes or () for export in known.claims),
        )
    scoped = places_within(session, tenant_id, ids, streams_of(session, tenant_id, told)) if told else {}
    single = places_in(session, tenant_id, ids, {entry for hold in known.holds for entry in hold.entries})
    dated = places_within(session, tenant_id, _with_ended_floors(session, tenant_id, rows, now, known, claim))
    none: set[PartPlace] = set()
    some = {key_id: none.union(*(found.get(key_id, none) for found in (joint, scoped, single))) for key_id in ids}
    every = {key_id: places | dated.get(key_id, set()) for key_id, places in some.items()}
    loaded = load_parts(session, tenant_id, {place for places in every.values() for place in places})
    totals = count_parts(session, tenant_id, [key_id for key_id, places in every.items() if places])
    clocks = _clocks(session, tenant_id, rows, known, claim)
    named = [row.subject_id for row in rows if row.data_class == IDENTITY_CLASS] if claim is None else []
    staying = departed.left(session, tenant_id, named, now) if named else frozenset()
    facts = []
    for row in sorted(rows, key=lambda row: row.key_id):
        item = _key_item(row, now, clocks.get(row.key_id, NO_CLOCK))
        if claim is None and row.data_class == IDENTITY_CLASS:
            item = departed.identity_item(row, is_left=row.subject_id in staying)
        parts = {
            place: _part_fact(loaded[place], item, claim) for place in sorted(every[row.key_id]) if place in loaded
        }
        shared = [place for place in joint.get(row.key_id, ()) if place in loaded]
        others = {other for place in shared for other in loaded[place].subjects} - subjects
        facts.append(
            KeyFact(
                key_id=row.key_id,
                month=row.month,
                item=item,
                joint_parts=len(shared),
                joint_subjects=len(others),
                parts=tuple(fact for place, fact in parts.items() if place in some[row.key_id]),
                dated=tuple(parts.values()) if row.key_id in dated else (),
                total=totals.get(row.key_id, 0),
            )
        )
    return facts


def _clocks(
    session: Session, tenant_id: int, rows: Sequence[DataKey], known: Standing, claim: Claim | None
) -> dict[str, KeyClock]:
    """What the keys' clocks wait for; a person's request does not wait."""
    if claim is not None and claim.right == ERASING:
        return {}
    return clocks_of(session, tenant_id, rows, {name: fact.rules.starts for name, fact in known.classes.items()})


def _key_item(row: DataKey, now: datetime, clock: KeyClock) -> Item:
    person = frozenset({row.subject_id})
    return Item(
        item_id=0,
        data_class=row.data_class,
        created=_last_use(row, now),
        subjects=person,
        own_subjects=person,
        consent_until=clock.consent_until,
        events=clock.events,
    )


def _part_fact(part: RecordPart, of_key: Item, claim: Claim | None) -> PartFact:
    """A part as decisions see it: about everybody whose key seals it, and as old as it is where a person asks."""
    item = replace(
        of_key,
        created=of_key.created if claim is None else part.received,
        subjects=part.subjects,
        own_subjects=part.subjects,
        scopes=part.scopes,
        entry=part.idx,
    )
    return PartFact(entry_id=part.entry_id, entry_idx=part.idx, part=part.part, item=item, key_ids=part.key_ids)


def _with_ended_floors(  # noqa: PLR0917 - what one look needs
    session: Session, tenant_id: int, rows: Sequence[DataKey], now: datetime, known: Standing, claim: Claim | None
) -> list[str]:
    """Keys that a floor or exemption keeps, and under which something is old enough to go before the rest."""
    if claim is None or claim.right != ERASING:
        return []
    waiting = {}
    for row in rows:
        fact = known.classes.get(row.data_class)
        end = None if fact is None else kept_until(_last_use(row, now), fact.rules)
        if fact is not None and end is not None and end > now:
            waiting[row.key_id] = fact.rules
    found = []
    for key_id, first in first_received(session, tenant_id, waiting).items():
        end = kept_until(first, waiting[key_id])
        if end is not None and end <= now:
            found.append(key_id)
    return found


def _parts(  # noqa: PLR0917 - what one look needs
    session: Session,
    tenant_id: int,
    places: Iterable[PartPlace],
    now: datetime,
    known: Standing,
    claim: Claim | None,
) -> list[PartFact]:
    """Parts as items of their own: each with the clock of the key that sealed it, destroyed or not."""
    loaded = load_parts(session, tenant_id, places)
    rows = data_keys_of(session, tenant_id, loaded)
    clocks = _clocks(session, tenant_id, list(rows.values()), known, claim)
    return [
        _part_fact(part, _key_item(rows[part.key_ids[0]], now, clocks.get(part.key_ids[0], NO_CLOCK)), claim)
        for part in loaded.values()
        if part.key_ids and part.key_ids[0] in rows
    ]


def _last_use(row: DataKey, now: datetime) -> datetime:
    """The latest instant at which something can have been sealed under a month's key: floors count from there."""
    if row.data_class in _NO_CLASSES or row.month[:4] == "0000":
        return row.created_at
    first = datetime.fromisoformat(f"{row.month}-01T00:00:00+00:00")
    end = (first + timedelta(days=32)).replace(day=1) - timedelta(microseconds=1)
    return min(end, max(now, row.created_at))
