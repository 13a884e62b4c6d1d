"""Loads what the one decision needs of artifacts and of record keys: dates, people, scopes, events, sources.

Guarantees: index look-ups in chunks only, so that a batch costs what it holds, whatever the size of the registry.
Opens nothing and decides nothing; readable places and names stay sealed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger import index
from ledger.models import EntryRow, PartRef
from registry import bulk, limited
from registry.claims import Edge, claims_of
from registry.ends import Instants
from registry.graph import ARTIFACT, ENTRY, Parent, parents_of
from registry.ids import artifact_name
from registry.keyed import NO_MONTH, chunks
from registry.models import Artifact, StreamRow
from registry.sets import members
from retention import decide
from retention.consents import CLOCK, until_of
from retention.events import happened, scopes_of
from retention.key_clocks import NO_CLOCK, clocks_of, entry_states
from retention.parts import KeptRow, data_keys_of, load_parts
from retention.schedule import Schedule, month_end, month_of
from vault.models import DataKey

VAULT = "vault"
"""The store of keys, as plans and reports name it."""
STREAM_KIND = "s"
_REVIEWED = (
    "SELECT id, artifact_id, kept_until, state FROM disposition "
    "WHERE tenant_id = ? AND decided_at IS NOT NULL AND artifact_id"
)
_REVIEWED_KEYS = (
    "SELECT id, key_id, kept_until, state FROM disposition WHERE tenant_id = ? AND decided_at IS NOT NULL AND key_id"
)
_NEVER = datetime.max.replace(tzinfo=UTC)
_NOT_REVIEWED = (None, "")
_BY_HAND = ("erase", "gone")
"""What a human decided of a key holds for the parts of it that outlived it, too."""
CLAIM = "claim"
PART: Literal["entry"] = "entry"
"""The kind of items that are one part of the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What an item was made from, as far as its end matters."""

    kind: str
    number: int
    name: str
    status: str
    ends_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An artifact or a record key that may be due. `item.sources` is filled by the plan from `sources`."""

    kind: Literal["artifact", "entry", "key"]
    ref: str
    artifact_id: int | None = None
    key_id: str | None = None
    data_class: str
    store: str
    item: decide.Item
    sources: tuple[Source, ...] = ()
    erase_by_hand: bool = False
    """Whether a human decided in a review that it is to be erased."""


class _DatedRow(NamedTuple):
    id: int
    given_id: str | None
    data_class: str
    store: str
    set_id: int
    own_set_id: int
    confidence: float | None
    created_us: int
    observed_us: int | None
    last_activity_us: int | None
    confirmed_us: int | None
    expires_us: int | None
    ends_us: int | None


class Dated(Instants, _DatedRow):
    """What a decision reads of an artifact's row, as the database has it: ten thousand a batch, no object each."""

    __slots__ = ()


DATED = (
    "id", "given_id", "data_class", "store", "set_id", "own_set_id", "confidence", "created_at", "observed_at",
    "last_activity_at", "confirmed_at", "expires_at", "ends_at",
)  # fmt: skip
"""The columns of `Dated`, in its order."""


def load_artifacts(
    session: Session, tenant_id: int, rows: Sequence[Artifact] | Sequence[Dated], schedules: Mapping[str, Schedule]
) -> list[Candidate]:
    """The artifacts with everything their decision reads."""
    ids = [row.id for row in rows]
    people = members(session, tenant_id, {number for row in rows for number in (row.set_id, row.own_set_id)})
    scopes = scopes_of(session, tenant_id, ARTIFACT, ids)
    events = happened(
        session,
        tenant_id,
        {
            row.id: (event, scopes.get(row.id, frozenset()))
            for row in rows
            if row.data_class in schedules and (event := schedules[row.data_class].event) is not None
        },
    )
    waiting = [name for name, one in schedules.items() if one.rules.starts == CLOCK]
    consents = until_of(session, tenant_id, rows, waiting)
    sources = _sources(session, tenant_id, ids)
    reviewed = _reviewed(session, tenant_id, ids)
    return [
        Candidate(
            kind="artifact",
            ref=row.given_id or artifact_name(row.id),
            artifact_id=row.id,
            data_class=row.data_class,
            store=row.store,
            item=decide.Item(
                item_id=row.id,
                data_class=row.data_class,
                created=row.created_at,
                subjects=people[row.set_id],
                own_subjects=people[row.own_set_id],
                observed=row.observed_at,
                last_activity=row.last_activity_at,
                consent_until=consents.get(row.id),
                events=events.get(row.id, {}),
                expires_at=row.expires_at,
                scopes=scopes.get(row.id, frozenset()),
                confidence=row.confidence,
                confirmed=row.confirmed_at,
                kept_until=reviewed.get(row.id, _NOT_REVIEWED)[0],
            ),
            sources=tuple(sources.get(row.id, ())),
            erase_by_hand=reviewed.get(row.id, _NOT_REVIEWED)[1] == "erase",
        )
        for row in rows
    ]


def load_keys(
    session: Session, tenant_id: int, rows: Sequence[DataKey], schedules: Mapping[str, Schedule]
) -> list[Candidate]:
    """Record keys. Their clock starts with their month's last instant, or with what it waits for, if that is later."""
    active = [row.key_id for row in rows if schedules[row.data_class].rules.starts == "last_activity"]
    activity = last_activity(session, tenant_id, active)
    clocks = clocks_of(session, tenant_id, rows, {name: one.rules.starts for name, one in schedules.items()})
    reviewed = _reviewed_keys(session, tenant_id, [row.key_id for row in rows])
    found = []
    for row in rows:
        person = frozenset({row.subject_id}) if row.subject_id else frozenset[int]()
        end = month_end(row.month)
        last = activity.get(row.key_id)
        clock = clocks.get(row.key_id, NO_CLOCK)
        kept_until, review = reviewed.get(row.key_id, _NOT_REVIEWED)
        found.append(
            Candidate(
                kind="key",
                ref=row.key_id,
                key_id=row.key_id,
                data_class=row.data_class,
                store=VAULT,
                item=decide.Item(
                    item_id=0,
                    data_class=row.data_class,
                    created=end,
                    subjects=person,
                    own_subjects=person,
                    last_activity=None if last is None else max(last, end),
                    consent_until=clock.consent_until,
                    events=clock.events,
                    kept_until=kept_until,
                ),
                erase_by_hand=review in _BY_HAND,
            )
        )
    return found


def load_kept(
    session: Session, tenant_id: int, kept: Sequence[KeptRow], schedules: Mapping[str, Schedule]
) -> list[Candidate]:
    """Parts that outlived their data keys, each with the clock of that key, its persons and its conversation."""
    parts = load_parts(session, tenant_id, [row.place for row in kept])
    rows = data_keys_of(session, tenant_id, parts)
    of_key = {one.key_id: one for one in load_keys(session, tenant_id, list(rows.values()), schedules)}
    found = []
    for row in kept:
        part, key = parts.get(row.place), of_key.get(row.key_id)
        if part is None or key is None:
            continue
        about = part.subjects
        item = replace(key.item, subjects=about, own_subjects=about, scopes=part.scopes, entry=part.idx)
        found.append(
            Candidate(
                kind=PART, ref=row.ref, data_class=key.data_class, store=VAULT, item=item,
                erase_by_hand=key.erase_by_hand,
            )
        )  # fmt: skip
    return found


def load_entry(session: Session, tenant_id: int, entry_id: str, schedules: Mapping[str, Schedule]) -> Candidate | None:
    """One entry of the record: its content ends with its key, by that key's clock. None where there is no such entry.

    What several keys seal together ends with the first of them.
    """
    try:
        wanted = UUID(entry_id).bytes
    except ValueError:
        return None
    query = sa.select(EntryRow).where(col(EntryRow.tenant_id) == tenant_id, col(EntryRow.entry_id) == wanted)
    row = session.scalars(query).first()
    if row is None:
        return None
    people = members(session, tenant_id, (row.set_id,))[row.set_id]
    item = decide.Item(
        item_id=0,
        data_class=row.data_class,
        created=month_end(month_of(row.received)),
        subjects=people,
        own_subjects=people,
        scopes=limited.scopes_of(session, tenant_id, [row.stream_no]).get(row.stream_no, frozenset()),
        entry=row.idx,
    )
    keys = _keys_of(session, tenant_id, row)
    if row.data_class in schedules and keys:
        rules = schedules[row.data_class].rules
        clocks = [one.item for one in load_keys(session, tenant_id, keys, schedules)]
        first = min(clocks, key=lambda one: decide.class_end(one, rules) or _NEVER)
        item = replace(
            item, last_activity=first.last_activity, consent_until=first.consent_until, events=first.events,
            kept_until=first.kept_until,
        )  # fmt: skip
    return Candidate(kind=PART, ref=entry_id, data_class=row.data_class, store=VAULT, item=item)


def _keys_of(session: Session, tenant_id: int, row: EntryRow) -> list[DataKey]:
    """The keys of the entry's class that seal something of it."""
    query = select(DataKey).where(
        DataKey.tenant_id == tenant_id,
        col(DataKey.key_id).in_({key_id for _, _, key_id in index.refs_of(session, tenant_id, [row.idx])}),
        DataKey.data_class == row.data_class,
        DataKey.month != NO_MONTH,
    )
    return list(session.exec(query))


def last_activity(session: Session, tenant_id: int, key_ids: Sequence[str]) -> dict[str, datetime]:
    """When the last of the streams in which each key seals something was last active."""
    found: dict[str, datetime] = {}
    for chunk in chunks(sorted(set(key_ids))):
        rows = session.execute(
            sa.select(col(PartRef.key_id), sa.func.max(col(StreamRow.last_activity_at)))
            .join(
                EntryRow,
                sa.and_(col(EntryRow.tenant_id) == col(PartRef.tenant_id), col(EntryRow.idx) == col(PartRef.idx)),
            )
            .join(
                StreamRow,
                sa.and_(
                    col(StreamRow.tenant_id) == col(EntryRow.tenant_id),
                    col(StreamRow.stream_no) == col(EntryRow.stream_no),
                ),
            )
            .where(col(PartRef.tenant_id) == tenant_id, col(PartRef.key_id).in_(chunk))
            .group_by(col(PartRef.key_id))
        )
        found.update({key_id: at for key_id, at in rows if at is not None})
    return found


def _sources(session: Session, tenant_id: int, ids: Sequence[int]) -> dict[int, list[Source]]:
    parents = parents_of(session, tenant_id, ids)
    everyone = {parent for found in parents.values() for parent in found}
    known = _parents(session, tenant_id, [parent.number for parent in everyone if parent.kind == ARTIFACT])
    numbers = [parent.number for parent in everyone if parent.kind == ENTRY]
    known |= _entries(session, tenant_id, numbers)
    found: dict[int, list[Source]] = defaultdict(list)
    claims = claims_of(session, tenant_id, parents)
    for child, its in parents.items():
        found[child] = [
            _endless(known[parent]) if Edge(child, parent.kind, parent.number) in claims else known[parent]
            for parent in sorted(its)
            if parent in known
        ]
    return found


def _endless(source: Source) -> Source:
    """A source that only another token claims: it is there, and its end is no end of what is said to be made from it.

    Otherwise somebody could end an item that another registered by ending a source of their own.
    """
    return replace(source, kind=CLAIM, number=0, status="live", ends_at=None)


def _parents(session: Session, tenant_id: int, ids: Sequence[int]) -> dict[Parent, Source]:
    found: dict[Parent, Source] = {}
    for chunk in chunks(sorted(set(ids))):
        rows = session.execute(
            sa.select(col(Artifact.id), col(Artifact.given_id), col(Artifact.status), col(Artifact.ends_at)).where(
                col(Artifact.tenant_id) == tenant_id, col(Artifact.id).in_(chunk)
            )
        )
        for number, given, status, end in rows:
            name = given or artifact_name(number)
            found[Parent(ARTIFACT, number)] = Source(
                kind=ARTIFACT, number=number, name=name, status=status, ends_at=end
            )
    return found


def _entries(session: Session, tenant_id: int, indexes: Sequence[int]) -> dict[Parent, Source]:
    """Entries of the record as sources, ended when no content of them opens any more.

    A key that a hold or a floor keeps past its date keeps what was made from its entries. `erasure.selector` reads them
    alike, so that plan and dispatch agree.
    """
    found: dict[Parent, Source] = {}
    states = entry_states(session, tenant_id, indexes)
    for chunk in chunks(sorted(set(indexes))):
        rows = session.execute(
            sa.select(col(EntryRow.idx), col(EntryRow.entry_id)).where(
                col(EntryRow.tenant_id) == tenant_id, col(EntryRow.idx).in_(chunk)
            )
        )
        for idx, entry_id in rows:
            name = f"entry:{UUID(bytes=entry_id)}"
            status = states.get(idx, "live")
            found[Parent(ENTRY, idx)] = Source(kind=ENTRY, number=idx, name=name, status=status, ends_at=None)
    return found


def _reviewed(session: Session, tenant_id: int, ids: Sequence[int]) -> dict[int, tuple[datetime | None, str]]:
    """Until when the newest decision of a human keeps each item, and what it was."""
    rows = sorted(bulk.select_in(session, _REVIEWED, (tenant_id,), sorted(set(ids)), "int8"))
    return {artifact_id: (bulk.moment(kept_until), state) for _, artifact_id, kept_until, state in rows}


def _reviewed_keys(session: Session, tenant_id: int, ids: Sequence[str]) -> dict[str, tuple[datetime | None, str]]:
    """The same of record keys."""
    rows = sorted(bulk.select_in(session, _REVIEWED_KEYS, (tenant_id,), sorted(set(ids)), "text"))
    return {key_id: (bulk.moment(kept_until), state) for _, key_id, kept_until, state in rows}
