"""Copies that came back: with a restored store, or with a database that remembers them as alive.

The places of a store are compared with the tombstones. What lies at the place of something erased, and is not
registered as something new, is the copy that was erased: it is erased again, under the request that asked for it.

Guarantees: a store is read and never changed here; the erasure goes the way of every erasure, with its decision, its
owner check and its confirmation. A store that cannot list its places, or does not answer, is named as not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from connectors.base import Connector, Item
from connectors.errors import ConnectorError
from erasure import captures, history
from erasure.errors import UnknownRequest
from erasure.leases import leased
from erasure.models import CopyRow, RequestRow
from erasure.parts import Parts, Tenant
from erasure.request import GONE, CopyState, State
from erasure.sealed import Capture
from erasure.work import PART, load_work
from erasure.worker import advance
from ledger.entry import Kind
from registry import artifacts, stores
from registry.errors import RegistryError, TargetNotAllowed
from registry.ids import random_hex
from registry.keyed import Lookups, chunks
from registry.locators import MalformedLocator, canonical_locator, kind_of_places, normal_locator
from registry.models import Artifact, StoreRow, Tombstone
from retention.models import SweepRow

WALK_SECONDS = 3600.0
"""The time limit of a walk through one store."""
_WALK_CHUNK = 2_000
_WORKER = "recovery"
_UNREACHED = (ConnectorError, RegistryError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Revived:
    """Something that lies where an erased item lay. `owner` is the request or sweep that erased it."""

    store: str
    owner: str
    artifact_id: int | None
    locator: Mapping[str, Any] = field(repr=False)


@dataclass(slots=True, kw_only=True)
class Looked:
    """One store after the look for revived copies; `unchecked` says why nobody could look, and what to do."""

    store: str
    places: int = 0
    tombstones: int = 0
    revived: int = 0
    unowned: int = 0
    """Revived copies whose request is not known here any more: somebody has to decide about them."""
    unchecked: str | None = None
    requests: dict[str, str] = field(default_factory=dict)


def look_for_revived(
    parts: Parts, tenant: Tenant, now: datetime, *, only: str | None = None, seconds: float = WALK_SECONDS
) -> list[Looked]:
    """Find and take back what came alive again in each store, or in one. Raises: UnknownRequest for an unknown store.

    `seconds` bounds the walk through one store.
    """
    with parts.transactions(tenant.tenant_id, write=False) as session:
        known = stores.in_force(session, tenant.tenant_id)
        counted: dict[str, int] = {
            str(name): int(count)
            for name, count in session.execute(
                sa.select(col(Tombstone.store), sa.func.count())
                .where(col(Tombstone.tenant_id) == tenant.tenant_id)
                .group_by(col(Tombstone.store))
            )
        }
    if only is not None and only not in known:
        raise UnknownRequest("store", only)
    looked = []
    for name in sorted(known if only is None else [only]):
        one = Looked(store=name, tombstones=counted.get(name, 0))
        looked.append(one)
        if not one.tombstones:
            continue  # nothing was ever erased there, so nothing can have come back
        try:
            found = _revived_in(parts, tenant, known[name], one, seconds)
        except (*_UNREACHED,) as error:
            one.unchecked = _why(error)
            continue
        _take_back(parts, tenant, known[name], found, one, now)
    for owner in sorted({owner for one in looked for owner in one.requests if not owner.startswith("swp_")}):
        state = carry_out(parts, tenant, owner, now)
        for one in looked:
            if owner in one.requests:
                one.requests[owner] = state
    return looked


def _why(error: Exception) -> str:
    """Why a store could not be looked at: a refusal of ours with what to do, anything else by its kind alone.

    What a driver says may name rows and people, and this line is shown and kept in logs.
    """
    if isinstance(error, TargetNotAllowed):
        return f"{error}: {error.hint}"
    return type(error).__name__


def _places(parts: Parts, store: StoreRow, seconds: float = WALK_SECONDS) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Every place of a store by its keyed name. Raises what the connector raises."""
    lookups = Lookups(parts.vault, store.tenant_id)
    with parts.connect(store, True) as connector:
        for place in connector.walk(deadline=seconds):
            try:
                normal = normal_locator(kind_of_places(store.kind, store.config), place)
                yield lookups.locator(store.name, canonical_locator(normal)), normal
            except MalformedLocator:
                continue  # no item can be registered there


def _revived_in(parts: Parts, tenant: Tenant, store: StoreRow, one: Looked, seconds: float) -> list[Revived]:
    found: list[Revived] = []
    places = _places(parts, store, seconds)
    while page := dict(islice(places, _WALK_CHUNK)):
        one.places += len(page)
        with parts.transactions(tenant.tenant_id, write=False) as session:
            for chunk in chunks(sorted(page)):
                here = (col(Artifact.tenant_id) == tenant.tenant_id, col(Artifact.store) == store.name)
                # Something new may lie where something was erased; then it is registered.
                registered = set(
                    session.scalars(
                        sa.select(col(Artifact.locator_hash)).where(*here, col(Artifact.locator_hash).in_(chunk))
                    )
                )
                tombs = session.exec(
                    select(Tombstone).where(
                        Tombstone.tenant_id == tenant.tenant_id,
                        Tombstone.store == store.name,
                        col(Tombstone.locator_hash).in_(chunk),
                    )
                )
                found += [
                    Revived(
                        store=store.name, owner=tomb.request_id, artifact_id=tomb.artifact_id,
                        locator=page[tomb.locator_hash],
                    )
                    for tomb in tombs
                    if tomb.locator_hash not in registered
                ]  # fmt: skip
    return found


def _take_back(  # noqa: PLR0917 - called once
    parts: Parts, tenant: Tenant, store: StoreRow, found: Sequence[Revived], one: Looked, now: datetime
) -> None:
    one.revived = len(found)
    if not found:
        return
    with parts.connect(store, True) as connector:
        held = _canaries(connector, found, parts.store_seconds)
    by_owner: dict[str, list[int]] = {}
    for number, item in enumerate(found):
        by_owner.setdefault(item.owner, []).append(number)
    for owner, numbers in sorted(by_owner.items()):
        mine = [(found[number], held.get(number, ())) for number in numbers]
        taken = _open_again(parts, tenant, owner, mine, now)
        one.unowned += len(mine) - taken
        if taken:
            one.requests[owner] = "open"


def _canaries(connector: Connector, found: Sequence[Revived], seconds: float) -> dict[int, tuple[bytes, ...]]:
    items = [Item(copy_id=str(number), locator=item.locator) for number, item in enumerate(found)]
    held: dict[int, tuple[bytes, ...]] = {}
    for start in range(0, len(items), captures.CAPTURE_CHUNK):
        try:
            got = connector.capture(items[start : start + captures.CAPTURE_CHUNK], deadline=seconds)
        except ConnectorError:
            continue  # captured again before the erasure
        held |= {int(copy_id): tuple(pieces) for copy_id, pieces in got.items()}
    return held


def _open_again(
    parts: Parts,
    tenant: Tenant,
    owner: str,
    items: Sequence[tuple[Revived, tuple[bytes, ...]]],
    now: datetime,
) -> int:
    """Put revived copies back into the plan that erased them; how many had a line there."""
    with parts.transactions(tenant.tenant_id) as session:
        try:
            work = load_work(session, tenant.tenant_id, owner, lock=True)
        except UnknownRequest:
            return 0
        seal = work.seal(session, parts)
        lines = {
            copy.artifact_id: copy
            for copy in history.copies_of(session, tenant.tenant_id, owner)
            if copy.artifact_id is not None and copy.state in (*GONE, CopyState.FAILED, CopyState.UNREACHABLE)
        }
        numbers = []
        for item, canaries in items:
            copy = None if item.artifact_id is None else lines.get(item.artifact_id)
            if copy is None:
                continue
            begin_again(copy, CopyState.PENDING)
            copy.detail = "it came back"
            capture = Capture(item.locator, canaries, captured=bool(canaries))
            copy.sealed = seal.seal_capture(capture, history.ref_of(copy))
            session.add(copy)
            numbers.append(copy.copy_no)
        if not numbers:
            return 0
        body = {"owner": owner, "copies": [{"copy": number, "state": "revived"} for number in sorted(numbers)]}
        entry_id = parts.record.announce(session, tenant.tenant_id, Kind.COPY_STATE, body, now)
        work.put_facts(session, reclaim={k: v for k, v in work.facts().get("reclaim", {}).items() if k != item.store})
        row = work.row
        if isinstance(row, SweepRow):
            row.state, row.finished_at = "executing", None
            session.add(row)
            return len(numbers)
        row.state = State.EXECUTING
        row.completed_at = row.final_due_at = None
        row.details = {name: value for name, value in row.details.items() if name != "final_issued"}
        session.add(row)
        history.add_event(
            session, row, event="revived", actor=_WORKER, now=now,
            detail={"state": row.state, "store": items[0][0].store, "copies": len(numbers)}, entry_id=entry_id,
        )  # fmt: skip
        return len(numbers)


def begin_again(copy: CopyRow, state: str) -> None:
    """Let a copy start anew: what was shown about it does not hold for what came back."""
    copy.state, copy.attempts, copy.level, copy.detail = state, 0, None, None
    copy.started_at = copy.finished_at = copy.verified_at = None
    if copy.kind in ("key", PART):
        copy.key_state = "live"


def tell_lines(session: Session, parts: Parts, row: RequestRow, now: datetime, *, why: str) -> str:
    """Tell the record how many lines the plan has now; the entry.

    After a restore these are not the lines that were approved: some are gone with the lost days, some came back. A
    certificate of the work done again shows this event for their number (`erasure.report_check`).
    """
    lines = sum(history.counts_of(session, row.tenant_id, row.request_id).values())
    body = {"request": row.request_id, "state": row.state, "why": why, "lines": lines}
    entry_id = parts.record.announce(session, row.tenant_id, Kind.REQUEST_STATE, body, now)
    row.details = {**row.details, "addenda": [*row.details.get("addenda", []), entry_id]}
    session.add(row)
    return entry_id


def carry_out(parts: Parts, tenant: Tenant, request_id: str, now: datetime) -> str:
    """Bring an open request as far as it goes now; returns where it stands."""
    # A name of this call's own: another process that recovers at the same time is somebody else.
    with leased(parts, tenant.tenant_id, request_id, f"{_WORKER}-{random_hex()}", now) as lease:
        if lease is None:
            return "worked on by another process"
        find_lost_places(parts, tenant, request_id, now)
        if not _anything_left(parts, tenant, request_id, now):
            return State.COMPLETED.value
        return advance(parts, tenant, request_id, now, lease=lease).value


def _anything_left(parts: Parts, tenant: Tenant, request_id: str, now: datetime) -> bool:
    """Whether the request still has a line; else it ends: its keys are gone and its stores do not hold its places.

    It gets no new certificate, since nothing was erased that one could speak of; the one of its time still holds.
    """
    with parts.transactions(tenant.tenant_id) as session:
        if history.counts_of(session, tenant.tenant_id, request_id):
            return True
        row = history.load(session, tenant.tenant_id, request_id, lock=True)
        row.state, row.completed_at = State.COMPLETED, now
        row.details = {**row.details, "final_issued": True}
        session.add(row)
        body = {"request": request_id, "state": row.state, "why": "nothing of it is left here or in its stores"}
        entry_id = parts.record.announce(session, tenant.tenant_id, Kind.REQUEST_STATE, body, now)
        history.add_event(
            session, row, event="nothing_left", actor=_WORKER, now=now, detail={"state": row.state}, entry_id=entry_id
        )
        return False


def find_lost_places(parts: Parts, tenant: Tenant, request_id: str, now: datetime) -> int:
    """Look in the stores for copies whose place cannot be read any more, because its key went; how many are settled.

    Found ones get their place back for the erasure. What a whole walk of its store did not show is not there: it is
    buried, since nothing is left of it that could be erased or verified by name.
    """
    with parts.transactions(tenant.tenant_id, write=False) as session:
        known = stores.in_force(session, tenant.tenant_id)
        copies = [
            copy
            for copy in history.copies_of(session, tenant.tenant_id, request_id, CopyState.PENDING)
            if copy.artifact_id is not None and copy.sealed is None
        ]
        rows = artifacts.by_numbers(session, tenant.tenant_id, [copy.artifact_id or 0 for copy in copies])
        readable = artifacts.open_details(session, parts.vault, tenant.tenant_id, list(rows.values()))
    lost = [copy for copy in copies if copy.artifact_id not in readable and copy.artifact_id in rows]
    settled = 0
    for name in sorted({copy.store for copy in lost} & known.keys()):
        mine = {rows[copy.artifact_id or 0].locator_hash: copy for copy in lost if copy.store == name}
        try:
            found = {hashed: place for hashed, place in _places(parts, known[name]) if hashed in mine}
        except (*_UNREACHED,):
            continue  # its copies stay in the plan and fail there, for a human to see
        gone = [copy for hashed, copy in mine.items() if hashed not in found]
        with parts.transactions(tenant.tenant_id) as session:
            seal = load_work(session, tenant.tenant_id, request_id).seal(session, parts)
            for hashed, place in found.items():
                copy = session.get_one(CopyRow, (tenant.tenant_id, request_id, mine[hashed].copy_no))
                copy.sealed = seal.seal_capture(Capture(place), history.ref_of(copy))
                session.add(copy)
            session.execute(
                sa.delete(CopyRow).where(
                    col(CopyRow.tenant_id) == tenant.tenant_id,
                    col(CopyRow.owner) == request_id,
                    col(CopyRow.copy_no).in_([copy.copy_no for copy in gone]),
                )
            )
            artifacts.bury(session, tenant.tenant_id, [copy.artifact_id or 0 for copy in gone], request_id, now)
            body = {"request": request_id, "store": name, "absent": len(gone), "found": len(found)}
            row = history.load(session, tenant.tenant_id, request_id, lock=True)
            entry_id = parts.record.announce(session, tenant.tenant_id, Kind.COPY_STATE, body, now)
            if gone:
                tell_lines(session, parts, row, now, why="a whole walk of their store did not show them")
            history.add_event(
                session, row, event="places_searched", actor=_WORKER, now=now,
                detail={"store": name, "absent": len(gone), "found": len(found)}, entry_id=entry_id,
            )  # fmt: skip
        settled += len(mine)
    return settled
