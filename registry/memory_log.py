"""The change log of memories: what happened to each, kept first in a row and then in the record.

Guarantees: a change and its row share the caller's transaction; the row already has the ids of its entries, so that
shipping it twice stores it once. The entries stand in a stream of the memory's own, `memory:<artifact>`, sealed under
the keys of its people, and name the entries the memory was made from. Once they are in the record, the row keeps only
codes. Not here: what may change (`registry.memories`, `registry.memory_use`).

A crash between the transaction and the shipping leaves a row that the next shipping takes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger.entry import Kind, uuid7
from ledger.head import Transactions
from ledger.models import EntryRow
from registry.acting import Acting
from registry.graph import ENTRY, parents_of
from registry.ids import artifact_name, new_id
from registry.keyed import Seals, canonical_json, chunks
from registry.models import Artifact, MemoryChange
from registry.record import AppendResult
from registry.sets import members
from registry.streams import streams_for
from vault.vault import Vault

LABEL = "memory-change"
BATCH = 500
_GONE = ("erasing", "erased")
_KINDS = {"conflict": Kind.MEMORY_CONFLICT}
"""Every other change is a write of the memory."""


class Appends(Protocol):
    """The record, as far as the change log needs it."""

    def append(self, acting: Acting, entries: Sequence[bytes], now: datetime) -> AppendResult:
        """Store entries and answer each."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What happened. `detail` is codes and dates; each of `bodies` becomes an entry."""

    change: str
    by: str
    bodies: tuple[Mapping[str, Any], ...]
    detail: Mapping[str, Any]


def stream_of(name: str) -> str:
    """The stream in which the changes of a memory stand."""
    return f"memory:{name}"


def facts_of(row: Artifact) -> dict[str, Any]:
    """What of a memory's value and standing may be told; never the value."""
    return {
        "digest": None if row.digest is None else row.digest.hex(),
        "source_type": row.source_type,
        "verification": row.verification,
        "confidence": row.confidence,
        "observed_at": None if row.observed_at is None else row.observed_at.isoformat(),
    }


def overwritten(before: Mapping[str, Any], after: Mapping[str, Any], by: str) -> Change:
    """Another value at the place of a memory."""
    codes = {"before": before["source_type"], "after": after["source_type"]}
    return Change(change="overwritten", by=by, bodies=({"before": before, "after": after},), detail=codes)


def note(session: Session, vault: Vault, row: Artifact, change: Change, now: datetime) -> MemoryChange:
    """The row of a change, in the transaction that makes it."""
    name = row.given_id or artifact_name(row.id)
    number = new_id(now)
    cited = cited_entries(session, row.tenant_id, [row.id]).get(row.id, [])
    common = {"memory": name, "change": change.change, "by": change.by, "sources": cited}
    content = {"bodies": [{**common, **body} for body in change.bodies]}
    seals = Seals(session, vault, row.tenant_id)
    made = MemoryChange(
        tenant_id=row.tenant_id,
        id=number,
        artifact_id=row.id,
        change=change.change,
        by=change.by,
        at=now,
        detail=dict(change.detail),
        holder_no=row.holder_no,
        sealed=seals.seal(row.holder_no, LABEL, str(number), canonical_json(content)),
        entries=[uuid7(now) for _ in change.bodies],
    )
    session.add(made)
    session.flush()
    return made


def changes_of(session: Session, tenant_id: int, row: Artifact) -> list[dict[str, Any]]:
    """Every change of a memory in order, from its registration to its end; who made it, and its entries."""
    cited = cited_entries(session, tenant_id, [row.id]).get(row.id, [])
    born = {"change": "registered", "by": row.registered_by, "at": row.created_at, "sources": cited, "entries": []}
    lines: list[dict[str, Any]] = [born]
    rows = session.exec(
        select(MemoryChange)
        .where(MemoryChange.tenant_id == tenant_id, MemoryChange.artifact_id == row.id)
        .order_by(col(MemoryChange.id))
    )
    for one in rows:
        line = {"change": one.change, "by": one.by, "at": one.at, **one.detail}
        lines.append({**line, "entries": list(one.entries), "recorded": one.recorded})
    if row.status in _GONE:
        lines.append({"change": row.status, "by": row.request_id, "at": None, "entries": []})
    return lines


def cited_entries(session: Session, tenant_id: int, artifact_ids: Sequence[int]) -> dict[int, list[str]]:
    """The entries of the record that each artifact was directly made from."""
    parents = parents_of(session, tenant_id, artifact_ids)
    wanted = {one.number for found in parents.values() for one in found if one.kind == ENTRY}
    names: dict[int, str] = {}
    for chunk in chunks(sorted(wanted)):
        rows = session.execute(
            sa.select(col(EntryRow.idx), col(EntryRow.entry_id)).where(
                col(EntryRow.tenant_id) == tenant_id, col(EntryRow.idx).in_(chunk)
            )
        )
        names.update((idx, str(UUID(bytes=entry_id))) for idx, entry_id in rows)
    return {
        child: [names[one.number] for one in sorted(found) if one.kind == ENTRY and one.number in names]
        for child, found in parents.items()
    }


def ship(record: Appends, transactions: Transactions, vault: Vault, acting: Acting, now: datetime) -> int:
    """Put what waits into the record; how many changes. Run again after a crash: the same ids, so nothing twice."""
    shipped = 0
    while True:
        with transactions(acting.tenant_id) as session:
            rows = list(
                session.exec(
                    select(MemoryChange)
                    .where(MemoryChange.tenant_id == acting.tenant_id, col(MemoryChange.recorded).is_(False))
                    .order_by(col(MemoryChange.id))
                    .limit(BATCH)
                )
            )
            drafts = _drafts(session, vault, acting, rows, now)
            numbers = [row.id for row in rows]
        if not numbers:
            return shipped
        sent = [raw for raws in drafts.values() for raw in raws]
        results = iter(record.append(acting, sent, now).results if sent else ())
        refused: dict[int, list[str]] = {}
        for number, raws in drafts.items():
            states = [next(results)["status"] for _ in raws]
            refused[number] = [state for state in states if state not in ("stored", "duplicate")]
        with transactions(acting.tenant_id) as session:
            for number in numbers:
                _settle(session, acting.tenant_id, number, recorded=number in drafts and not refused[number])
        shipped += len(numbers)


def _drafts(
    session: Session, vault: Vault, acting: Acting, rows: Sequence[MemoryChange], now: datetime
) -> dict[int, list[bytes]]:
    """The entries of each change, as bytes that are the same at every attempt; changes of what is gone have none."""
    memories = {
        one.id: one
        for chunk in chunks(sorted({row.artifact_id for row in rows}))
        for one in session.exec(
            select(Artifact).where(Artifact.tenant_id == acting.tenant_id, col(Artifact.id).in_(chunk))
        )
    }
    seals = Seals(session, vault, acting.tenant_id)
    seals.load(row.holder_no for row in rows)
    sets = members(session, acting.tenant_id, {one.set_id for one in memories.values()})
    people: dict[str, frozenset[int]] = {}
    found: dict[int, list[bytes]] = {}
    for row in rows:
        memory = memories[row.artifact_id]
        opened = seals.open(row.holder_no, LABEL, str(row.id), row.sealed)
        if opened is None or memory.status in _GONE:
            continue
        stream = stream_of(memory.given_id or artifact_name(memory.id))
        people[stream] = sets[memory.set_id]
        found[row.id] = [
            canonical_json(
                {
                    "id": entry_id,
                    "stream": stream,
                    "kind": _KINDS.get(row.change, Kind.MEMORY_WRITE).value,
                    "at": row.at.isoformat(timespec="microseconds"),
                    "data_class": memory.data_class,
                    "body": body,
                }
            )
            for entry_id, body in zip(row.entries, json.loads(opened)["bodies"], strict=True)
        ]
    if people:
        streams_for(session, vault, acting, people, now)
    return found


def _settle(session: Session, tenant_id: int, number: int, *, recorded: bool) -> None:
    """The row without its content: it is in the record, or nobody may read it any more."""
    row = session.get_one(MemoryChange, (tenant_id, number), with_for_update=True)
    row.recorded, row.sealed = True, None
    if not recorded:
        row.entries = []
        row.detail = {**row.detail, "not_recorded": True}
    session.add(row)
