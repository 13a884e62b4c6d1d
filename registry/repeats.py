"""What a batch says again of items that are there: step 6 of `registry.registration`.

Guarantees: a repeat changes nothing but by the token that registered the item, and then says what; another token only
adds sources, as claims; what a human must decide becomes a review.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import col

from ledger.entry import format_instant
from registry import memory_log
from registry.batch import GONE, LABEL, Batch, Line, erased
from registry.claims import REVIEW_LABEL, Edge, note_claims, open_review, settle_claims
from registry.declaration import DataClass
from registry.ends import CONSENT, leaves_hold
from registry.graph import INLINE, Parent, full_sets, mark_erasing, mark_fenced, parents_of, spread, write_sets
from registry.ids import artifact_name
from registry.item import Item
from registry.memories import may_overwrite
from registry.models import Artifact
from registry.new_rows import insert_edges, rekey_scopes
from registry.placing import overwrites
from registry.present import Known
from registry.sets import Members, intern_sets, members


def write_repeats(batch: Batch, full: Mapping[int, Members], requests: Mapping[int, str]) -> None:
    """Lines whose artifact exists, before this batch or since an earlier line of it."""
    repeats = [(line, item) for line, item in batch.open_lines() if not line.first]
    edges: dict[int, set[Parent]] = {}
    for line, item in repeats:
        edges.setdefault(line.node, set()).update(line.parents)
        name = line.known.name if line.known is not None else _name_of_new(batch, item)
        if line.node in requests:
            line.result = erased(name, requests[line.node])
        elif line.known is None or not (wanted := _changes(batch, line, item)):
            line.result = {"id": name, "status": "exists"}
        elif batch.is_own(line) and not _needs_a_human(batch, line.known, item):
            told = _apply(batch, line, line.known, item)
            line.result = {"id": name, "status": "changed" if "data_class" in told else "exists"}
            line.result |= {"changed": told} if told else {}
        else:
            _ask(batch, line, item, wanted)
            line.result = {"id": name, "status": "review"}
    present = parents_of(batch.session, batch.tenant_id, edges)
    insert_edges(batch, edges, present)
    _note_claims(batch, repeats, present)
    known = {line.node: line.known for line, _ in repeats if line.known is not None}
    former = full_sets(batch.session, batch.tenant_id, known)
    grown = {node: full[node] for node in known if full[node] != former[node]}
    write_sets(batch.session, batch.tenant_id, grown, batch.now)
    changed = spread(batch.session, batch.tenant_id, grown, batch.now, limit=INLINE)
    ours = {node for node, one in known.items() if one.registered_by == batch.acting.token_id}
    mark_erasing(batch.session, batch.tenant_id, {node: requests[node] for node in ours if node in requests})
    mark_fenced(batch.session, batch.tenant_id, changed)
    batch.session.expire_all()


def _ask(batch: Batch, line: Line, item: Item, wanted: Mapping[str, Any]) -> None:
    """Let a human decide; what is said of a value that waits is kept, sealed, so that it goes with the value."""
    row = open_review(batch.session, batch.tenant_id, line.node, wanted, batch.acting.token_id, now=batch.now)
    if row is None or "overwrite" not in wanted:
        return
    holder = batch.session.get_one(Artifact, (batch.tenant_id, line.node)).holder_no
    if batch.seals.can(holder):
        row.sealed = batch.seals.seal(holder, REVIEW_LABEL, str(row.id), item.details)
        batch.session.add(row)
        batch.session.flush()


def _note_claims(batch: Batch, repeats: Sequence[tuple[Line, Item]], present: Mapping[int, set[Parent]]) -> None:
    """Sources that another token adds are claims; those that the item's own token names are not any more."""
    claimed: set[Edge] = set()
    settled: set[Edge] = set()
    for line, _ in repeats:
        if line.known is None:
            continue
        known = present.get(line.node, set())
        edges = {Edge(line.node, one.kind, one.number) for one in line.parents}
        old = {Edge(line.node, one.kind, one.number) for one in known}
        if batch.is_own(line):
            settled |= edges & old
        else:
            claimed |= edges - old
    note_claims(batch.session, batch.tenant_id, claimed, batch.acting.token_id, batch.now)
    settle_claims(batch.session, batch.tenant_id, settled)


def _name_of_new(batch: Batch, item: Item) -> str:
    line = batch.new_places[item.store, item.locator_hash]
    given = line.item.given_id if line.item is not None else None
    return given or artifact_name(line.node)


def _changes(batch: Batch, line: Line, item: Item) -> dict[str, Any]:
    """What a repeat would change of an existing artifact, other than adding sources."""
    known = line.known
    if known is None:
        return {}
    wanted: dict[str, Any] = dict(line.held)
    if overwrites(known, item):
        wanted["overwrite"] = {
            "source_type": item.source_type,
            "verification": item.verification,
            "confidence": item.confidence,
            "digest": None if item.digest is None else item.digest.hex(),
            "observed_at": None if item.observed_at is None else item.observed_at.isoformat(),
        }
    if item.data_class.name != known.data_class:
        wanted["data_class"] = item.data_class.name
    if new := line.subjects - batch.sets[known.set_id]:
        wanted["subjects"] = sorted(new)
    if item.expires_at is not None and (known.dates.expires is None or item.expires_at < known.dates.expires):
        wanted["expires_at"] = item.expires_at.isoformat()
    return wanted


def _needs_a_human(batch: Batch, known: Known, item: Item) -> bool:
    """What the item's own token may not do alone.

    An inference never takes the place of a statement by being newer; another class never ends an item earlier, nor
    keeps it from being erased, nor takes it out of a hold.
    """
    if overwrites(known, item) and not may_overwrite(known.source_type, known.verification, item.source_type):
        return True
    if item.data_class.name == known.data_class:
        return False
    former = batch.classes.get(known.data_class)
    if former is None or _is_weaker(item.data_class, former):
        return True
    if leaves_hold(batch.held, known.data_class, item.data_class.name):
        return True
    end, was = _end_as(batch, known, item, item.data_class), _end_as(batch, known, None, former)
    return end is not None and (was is None or end < was)


def _end_as(batch: Batch, known: Known, item: Item | None, data_class: DataClass) -> datetime | None:
    """The end that an existing item has in a class, with the dates that a repeat brings, and its value's if new."""
    dates = known.dates
    if item is not None:
        earliest = _earliest(dates.expires, item.expires_at)
        dates = replace(dates, observed=item.observed_at or dates.observed, expires=earliest)
        if overwrites(known, item):
            dates = replace(dates, confidence=item.confidence, confirmed=None)
    return batch.ends_at(data_class, dates)


def _overwrite(batch: Batch, line: Line, item: Item) -> None:
    """Another value at the place of a memory: what stood there before goes into its change log."""
    named = (batch.tenant_id, line.node)
    row = batch.session.get_one(Artifact, named, with_for_update=True, populate_existing=True)
    if row.status in GONE:  # since it was looked at: what is buried stays empty
        return
    before = memory_log.facts_of(row)
    row.digest, row.source_type, row.verification = item.digest, item.source_type, item.verification
    row.confidence, row.observed_at, row.confirmed_at = item.confidence, item.observed_at, None
    row.activity = None if item.activity is None else {"kind": item.activity}
    row.sealed = batch.seals.seal(row.holder_no, LABEL, str(row.id), item.details)
    rekey_scopes(batch.session, batch.lookups, row, item.scope)
    after = memory_log.facts_of(row)
    change = memory_log.overwritten(before, after, batch.acting.principal)
    batch.session.add(row)
    memory_log.note(batch.session, batch.vault, row, change, batch.now)


def _apply(batch: Batch, line: Line, known: Known, item: Item) -> dict[str, Any]:
    """Correct an item as the token that registered it: add people, change class or value, end it earlier.

    Returns what is different now, old and new, so that nobody changes an item without being told.
    """
    if overwrites(known, item):
        _overwrite(batch, line, item)
    own = members(batch.session, batch.tenant_id, (known.own_set_id,))[known.own_set_id] | line.subjects
    dates = known.dates
    ends = _end_as(batch, known, item, item.data_class)
    batch.session.connection().execute(
        sa.update(Artifact)
        .where(col(Artifact.tenant_id) == batch.tenant_id, col(Artifact.id) == known.id)
        .values(
            data_class=item.data_class.name,
            class_version=item.data_class.version,
            own_set_id=intern_sets(batch.session, batch.tenant_id, (own,), batch.now)[own],
            expires_at=_earliest(dates.expires, item.expires_at),
            observed_at=item.observed_at or dates.observed,
            ends_at=None if item.data_class.keep_from == CONSENT else ends,
        )
    )
    former = batch.classes.get(known.data_class)
    was = None if former is None else _end_as(batch, known, None, former)
    changed: dict[str, Any] = {}
    if item.data_class.name != known.data_class:
        changed["data_class"] = {"old": known.data_class, "new": item.data_class.name}
    if ends != was:
        changed["ends_at"] = {"old": _text(was), "new": _text(ends)}
    if new := line.subjects - batch.sets[known.set_id]:
        changed["subjects"] = {"added": len(new)}
    return changed


def _earliest(*instants: datetime | None) -> datetime | None:
    return min((at for at in instants if at is not None), default=None)


def _text(at: datetime | None) -> str | None:
    return None if at is None else format_instant(at)


def _is_weaker(new: DataClass, former: DataClass) -> bool:
    """Whether a class lets an erasure reach less than another: it retains on request, or asks for a lower level."""
    order = {"L1": 1, "L2": 2, "L3": 3, "key": 3}
    lower = order.get(new.required, 0) < order.get(former.required, 0)
    return lower or (new.on_request == "retain" and former.on_request != "retain")
