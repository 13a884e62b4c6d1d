"""Looks into the content of a sample of every class and store for gaps that no declaration shows.

Guarantees: reads only, through connectors opened read-only and with a time limit, and never inside a transaction; the
newest items of each class in each store are looked at, and how many; content is forgotten at once, counts are kept.
That somebody looked is an entry of the record. A store that cannot be read is named with its reason, never passed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from api.wiring import Services
from connectors.base import Item
from connectors.errors import ConnectorError
from ledger.entry import Kind
from ledger.models import EntryRow
from registry import classes, stores
from registry.acting import Acting
from registry.artifacts import open_details
from registry.errors import RegistryError
from registry.inspection import gaps_in, hashes_of
from registry.keyed import canonical_json
from registry.models import Artifact, ContentFinding
from registry.playback import read_entries
from registry.sets import members
from registry.subjects import names_of

RECORD = "record"
NONE = "none"
"""The row that says that a class was looked at in a store and nothing was found."""
DEADLINE_S = 20.0


@dataclass(slots=True, kw_only=True)
class _Sample:
    """The newest items of one class in one store, and what was found in them."""

    data_class: str
    store: str
    state: str
    places: dict[str, Any] = field(default_factory=dict, repr=False)
    hashes: dict[str, frozenset[str]] = field(default_factory=dict, repr=False)
    gaps: Counter[str] = field(default_factory=Counter)
    looked_at: int = 0


def inspect(parts: Services, acting: Acting, now: datetime, *, sample: int) -> dict[str, Any]:
    """What was looked at and found, and what could not be."""
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        samples = _samples(session, parts, acting.tenant_id, sample)
        placed = stores.in_force(session, acting.tenant_id)
        of_record = _of_record(session, parts, acting.tenant_id, sample)
    failed: dict[str, str] = {}
    for name in sorted({one.store for one in samples}):
        mine = [one for one in samples if one.store == name]
        if name not in placed:
            failed[name] = "the store is not registered any more"
            continue
        try:
            with parts.connect(placed[name], read_only=True) as connector:
                for one in mine:
                    items = [Item(copy_id=copy_id, locator=place) for copy_id, place in one.places.items()]
                    for copy_id, content in connector.export(items, deadline=DEADLINE_S):
                        _look(one, copy_id, content)
        except (ConnectorError, RegistryError, OSError) as error:
            failed[name] = type(error).__name__
    looked = [*(one for one in samples if one.store not in failed), *of_record]
    with parts.database.transaction(acting.tenant_id) as session:
        _keep(session, acting.tenant_id, looked, now)
        body = {"purpose": "inventory", "by": acting.principal, "entries": sum(one.looked_at for one in of_record),
                "copies": sum(one.looked_at for one in looked if one.store != RECORD)}  # fmt: skip
        parts.record.announce(session, acting.tenant_id, Kind.CONTENT_READ, body, now)
    return {
        "looked_at": [
            {"data_class": one.data_class, "store": one.store, "items": one.looked_at, "gaps": dict(one.gaps)}
            for one in looked
        ],
        "not_looked_at": [{"store": name, "because": why} for name, why in failed.items()],
    }


def _samples(session: Session, parts: Services, tenant_id: int, sample: int) -> list[_Sample]:
    known = classes.in_force(session, tenant_id)
    pairs = session.execute(
        sa.select(col(Artifact.data_class), col(Artifact.store))
        .where(col(Artifact.tenant_id) == tenant_id, col(Artifact.status) == "live")
        .distinct()
    ).all()
    found = []
    for name, store in sorted((row.data_class, row.store) for row in pairs):
        if name not in known:
            continue
        rows = session.exec(
            select(Artifact)
            .where(
                Artifact.tenant_id == tenant_id, Artifact.data_class == name, Artifact.store == store,
                Artifact.status == "live",
            )
            .order_by(col(Artifact.id).desc())
            .limit(sample)
        ).all()  # fmt: skip
        one = _Sample(data_class=name, store=store, state=known[name].state)
        details = open_details(session, parts.vault, tenant_id, rows)
        hashes = _hashes(session, parts, tenant_id, {row.id: row.set_id for row in rows})
        for row in rows:
            if row.id not in details:
                continue
            one.places[str(row.id)] = details[row.id].locator
            one.hashes[str(row.id)] = hashes[row.id]
            said = canonical_json({"locator": details[row.id].locator, "scope": details[row.id].scope})
            one.gaps.update(gaps_in(said, state="", hashes=hashes[row.id]))
        found.append(one)
    return found


def _hashes(session: Session, parts: Services, tenant_id: int, set_of: dict[int, int]) -> dict[int, frozenset[str]]:
    people = members(session, tenant_id, set_of.values())
    names = names_of(session, parts.vault, tenant_id, {number for found in people.values() for number in found})
    of_person = {
        number: hashes_of(text for one in found for text in (one.text, one.given)) for number, found in names.items()
    }
    return {
        item: frozenset[str]().union(*(of_person[number] for number in people[set_id]))
        for item, set_id in set_of.items()
    }


def _of_record(session: Session, parts: Services, tenant_id: int, sample: int) -> list[_Sample]:
    known = classes.in_force(session, tenant_id)
    found = []
    used = (
        sa.select(col(EntryRow.data_class))
        .where(col(EntryRow.tenant_id) == tenant_id, col(EntryRow.stream_no) != 0)
        .distinct()
    )
    for name in session.scalars(used):
        if name not in known:
            continue
        rows = session.exec(
            select(EntryRow)
            .where(EntryRow.tenant_id == tenant_id, EntryRow.data_class == name, EntryRow.stream_no != 0)
            .order_by(col(EntryRow.idx).desc())
            .limit(sample)
        ).all()
        one = _Sample(data_class=name, store=RECORD, state=known[name].state)
        hashes = _hashes(session, parts, tenant_id, {row.idx: row.set_id for row in rows})
        for entry in read_entries(session, parts.vault, parts.log, tenant_id, rows):
            bodies = [part.data for part in entry.parts if part.data is not None]
            if bodies:
                one.looked_at += 1
                one.gaps.update(_union(gaps_in(body, state=one.state, hashes=hashes[entry.row.idx]) for body in bodies))
        found.append(one)
    return found


def _look(one: _Sample, copy_id: str, content: bytes | None) -> None:
    if content is None:
        return
    one.looked_at += 1
    one.gaps.update(gaps_in(content, state=one.state, hashes=one.hashes[copy_id]))


def _union(found: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*found)


def _keep(session: Session, tenant_id: int, looked: Sequence[_Sample], now: datetime) -> None:
    for one in looked:
        session.connection().execute(
            sa.delete(ContentFinding).where(
                col(ContentFinding.tenant_id) == tenant_id,
                col(ContentFinding.data_class) == one.data_class,
                col(ContentFinding.store) == one.store,
            )
        )
        for gap, count in {NONE: 0, **one.gaps}.items():
            session.add(
                ContentFinding(
                    tenant_id=tenant_id, data_class=one.data_class, store=one.store, gap=gap, found=count,
                    looked_at=one.looked_at, at=now,
                )
            )  # fmt: skip
    session.flush()
