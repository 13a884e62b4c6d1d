"""Streams, runs and recorders: a caller's names mapped to the random ids that stand in headers.

Guarantees: a name is found by its keyed look-up; its readable form and all a caller declares in free form lie sealed
under the identity key of the stream's first person (the tenant's own where there is none), so both go with that key.
Get-or-create is one look-up per batch and safe against other writers. The caller commits.
What callers declare of streams and runs is `registry.declared`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from registry.acting import Acting
from registry.errors import UnknownRun, UnknownStream
from registry.ids import new_id, random_hex
from registry.keyed import NOBODY, Lookups, Seals, canonical_json, chunks, hold_writer
from registry.models import RecorderRow, RunRow, StreamRow
from registry.sets import intern_sets, members
from registry.subjects import fenced
from vault.vault import Vault

NAME_LIMIT = 512
STREAM, RUN = "stream", "run"
NAME_KEY, DECLARED = "name", "declared"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRef:
    """A stream as a batch uses it. `closed` are those of its members that are fenced or erased."""

    stream_no: int
    stream_id: str
    set_id: int
    members: tuple[int, ...]
    closed: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRef:
    """A run as a batch uses it."""

    run_no: int
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What a caller called a stream or run and declared of it, opened; None once it was forgotten."""

    name: str | None = field(repr=False)
    declared: Mapping[str, Any] = field(repr=False)


def streams_for(
    session: Session,
    vault: Vault,
    acting: Acting,
    people: Mapping[str, Collection[int]],
    now: datetime,
    *,
    data_class: Mapping[str, str] | None = None,
) -> dict[str, StreamRef]:
    """Each named stream, made where it is new; its people grow by those given, its activity is now.

    `data_class` names the class of a stream that has none yet.
    """
    tenant_id = acting.tenant_id
    lookups = Lookups(vault, tenant_id)
    hashes = {lookups.of(STREAM, name): name for name in people}
    rows = _streams(session, tenant_id, hashes)
    if len(rows) < len(hashes):
        hold_writer(session, tenant_id)
        rows = _streams(session, tenant_id, hashes)
    former = members(session, tenant_id, {row.set_id for row in rows.values()})
    everyone = {
        lookup: frozenset(people[name]) | (former[rows[lookup].set_id] if lookup in rows else frozenset())
        for lookup, name in hashes.items()
    }
    sets = intern_sets(session, tenant_id, everyone.values(), now)
    named = frozenset[int]().union(*everyone.values())
    closed = frozenset(fenced(session, tenant_id, named))
    seals = Seals(session, vault, tenant_id)
    found: dict[str, StreamRef] = {}
    new = {lookup for lookup in hashes if lookup not in rows}
    seals.prepare({min(everyone[lookup] - closed, default=NOBODY) for lookup in new})
    for lookup, name in hashes.items():
        row = rows.get(lookup)
        if row is None:
            holder = seals.holder(sorted(everyone[lookup] - closed))
            stream_id = random_hex()
            row = StreamRow(
                tenant_id=tenant_id,
                stream_no=new_id(now),
                lookup=lookup,
                stream_id=stream_id,
                sealed=seal_content(seals, holder, STREAM, stream_id, {NAME_KEY: name}),
                holder_no=holder,
                created_at=now,
                last_activity_at=now,
            )
        row.set_id = sets[everyone[lookup]]
        row.data_class = row.data_class or (data_class or {}).get(name)
        row.last_activity_at = max(now, row.last_activity_at)
        session.add(row)
        found[name] = _ref(row, everyone[lookup], closed)
    session.flush()
    return found


def _ref(row: StreamRow, everyone: frozenset[int], closed: frozenset[int]) -> StreamRef:
    return StreamRef(
        stream_no=row.stream_no,
        stream_id=row.stream_id,
        set_id=row.set_id,
        members=tuple(sorted(everyone)),
        closed=everyone & closed,
    )


def runs_for(
    session: Session, vault: Vault, acting: Acting, people: Mapping[str, Collection[int]], now: datetime
) -> dict[str, RunRef]:
    """Each named run, made where it is new; its name is sealed for the first of the people given."""
    tenant_id = acting.tenant_id
    lookups = Lookups(vault, tenant_id)
    hashes = {lookups.of(RUN, name): name for name in people}
    rows = runs_at(session, tenant_id, hashes)
    if len(rows) < len(hashes):
        hold_writer(session, tenant_id)
        rows = runs_at(session, tenant_id, hashes)
        new = {lookup: frozenset(people[name]) for lookup, name in hashes.items() if lookup not in rows}
        named = frozenset[int]().union(*new.values())
        closed = frozenset(fenced(session, tenant_id, named))
        seals = Seals(session, vault, tenant_id)
        seals.prepare({min(owners - closed, default=NOBODY) for owners in new.values()})
        for lookup, owners in new.items():
            holder = seals.holder(sorted(owners - closed))
            run_id = random_hex()
            rows[lookup] = RunRow(
                tenant_id=tenant_id,
                run_no=new_id(now),
                lookup=lookup,
                run_id=run_id,
                sealed=seal_content(seals, holder, RUN, run_id, {NAME_KEY: hashes[lookup]}),
                holder_no=holder,
                created_at=now,
            )
            session.add(rows[lookup])
        session.flush()
    return {name: RunRef(run_no=rows[lookup].run_no, run_id=rows[lookup].run_id) for lookup, name in hashes.items()}


def recorders_for(session: Session, vault: Vault, acting: Acting, names: Collection[str]) -> dict[str, str]:
    """The random id of each recorder, made where it is new. A recorder is a program: its name is kept nowhere."""
    tenant_id = acting.tenant_id
    lookups = Lookups(vault, tenant_id)
    hashes = {lookups.of("recorder", name): name for name in names}
    rows = _recorders(session, tenant_id, hashes)
    if len(rows) < len(hashes):
        hold_writer(session, tenant_id)
        rows = _recorders(session, tenant_id, hashes)
        for lookup in hashes:
            if lookup not in rows:
                rows[lookup] = RecorderRow(tenant_id=tenant_id, lookup=lookup, recorder_id=random_hex())
                session.add(rows[lookup])
        session.flush()
    return {name: rows[lookup].recorder_id for lookup, name in hashes.items()}


def find_streams(session: Session, vault: Vault, tenant_id: int, names: Sequence[str]) -> dict[str, StreamRow]:
    """The rows of those named streams that exist; makes none."""
    lookups = Lookups(vault, tenant_id)
    hashes = {lookups.of(STREAM, name): name for name in names}
    return {hashes[lookup]: row for lookup, row in _streams(session, tenant_id, hashes).items()}


def stream_by_id(session: Session, tenant_id: int, stream_id: str) -> StreamRow:
    """The stream of an opaque id. Raises: UnknownStream."""
    row = session.exec(
        select(StreamRow).where(StreamRow.tenant_id == tenant_id, StreamRow.stream_id == stream_id)
    ).first()
    if row is None:
        raise UnknownStream
    return row


def run_by_id(session: Session, tenant_id: int, run_id: str) -> RunRow:
    """The run of an opaque id. Raises: UnknownRun."""
    row = session.exec(select(RunRow).where(RunRow.tenant_id == tenant_id, RunRow.run_id == run_id)).first()
    if row is None:
        raise UnknownRun
    return row


def open_names(session: Session, vault: Vault, tenant_id: int, rows: Sequence[StreamRow | RunRow]) -> dict[str, Names]:
    """What callers called these streams or runs and declared of them, by opaque id."""
    seals = Seals(session, vault, tenant_id)
    seals.load(row.holder_no for row in rows)
    found = {}
    for row in rows:
        label, opaque = (STREAM, row.stream_id) if isinstance(row, StreamRow) else (RUN, row.run_id)
        content = open_content(seals, row.holder_no, label, opaque, row.sealed)
        found[opaque] = Names(name=content.get(NAME_KEY), declared=content.get(DECLARED, {}))
    return found


def forget_names(session: Session, tenant_id: int, subject_nos: Iterable[int]) -> int:
    """Remove the sealed names and declarations that were held for these people; the number removed. Idempotent."""
    removed = 0
    for some in chunks(sorted(set(subject_nos))):
        for model in (StreamRow, RunRow):
            done = session.connection().execute(
                sa.update(model)
                .where(
                    col(model.tenant_id) == tenant_id, col(model.holder_no).in_(some), col(model.sealed).is_not(None)
                )
                .values(sealed=None)
            )
            removed += done.rowcount
    session.expire_all()
    return removed


def seal_content(seals: Seals, holder: int, label: str, opaque: str, content: Mapping[str, Any]) -> bytes:
    """The sealed name and declaration of a stream or run."""
    return seals.seal(holder, label, opaque, canonical_json(content))


def open_content(seals: Seals, holder: int, label: str, opaque: str, sealed: bytes | None) -> dict[str, Any]:
    """What was sealed, empty once it was forgotten."""
    opened = seals.open(holder, label, opaque, sealed)
    return {} if opened is None else dict(json.loads(opened))


def _streams(session: Session, tenant_id: int, hashes: Mapping[bytes, str]) -> dict[bytes, StreamRow]:
    found: dict[bytes, StreamRow] = {}
    for chunk in chunks(sorted(hashes)):
        query = select(StreamRow).where(col(StreamRow.tenant_id) == tenant_id, col(StreamRow.lookup).in_(chunk))
        found.update((row.lookup, row) for row in session.exec(query))
    return found


def runs_at(session: Session, tenant_id: int, hashes: Mapping[bytes, str]) -> dict[bytes, RunRow]:
    """The runs of these look-ups that exist."""
    found: dict[bytes, RunRow] = {}
    for chunk in chunks(sorted(hashes)):
        query = select(RunRow).where(col(RunRow.tenant_id) == tenant_id, col(RunRow.lookup).in_(chunk))
        found.update((row.lookup, row) for row in session.exec(query))
    return found


def _recorders(session: Session, tenant_id: int, hashes: Mapping[bytes, str]) -> dict[bytes, RecorderRow]:
    found: dict[bytes, RecorderRow] = {}
    for chunk in chunks(sorted(hashes)):
        query = select(RecorderRow).where(col(RecorderRow.tenant_id) == tenant_id, col(RecorderRow.lookup).in_(chunk))
        found.update((row.lookup, row) for row in session.exec(query))
    return found
