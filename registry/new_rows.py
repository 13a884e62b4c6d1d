"""The rows of what a batch makes: step 6 of `registry.registration`.

Guarantees: all that is readable of an item is sealed under the identity key of one of its people, never of somebody
fenced; an item ends when its class says, or earlier when it says so itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col

from registry import bulk, working
from registry.batch import LABEL, Batch, Line, erased
from registry.ends import Dates
from registry.graph import ARTIFACT, Parent
from registry.ids import artifact_name
from registry.item import Item
from registry.keyed import NOBODY, Lookups
from registry.models import Artifact, Derivation, ScopeKey
from registry.sets import Members, intern_sets

_COLUMNS = (
    "tenant_id", "id", "given_id", "data_class", "class_version", "store", "locator_hash", "sealed", "holder_no",
    "set_id", "own_set_id", "status", "request_id", "anonymised", "activity", "source_type", "verification",
    "confidence", "digest", "created_at", "observed_at", "expires_at", "ends_at", "registered_by",
)  # fmt: skip
_SPARSE = frozenset({"given_id", "request_id", "activity", "source_type", "verification", "confidence", "digest",
                     "observed_at", "expires_at", "ends_at"})  # fmt: skip
"""Columns that many batches leave empty."""
_SCOPE_COLUMNS = ("tenant_id", "lookup", "kind", "item")


def write_new(batch: Batch, full: Mapping[int, Members], requests: Mapping[int, str]) -> None:
    """Write the artifacts that this batch makes, each with its people, keys of scope and edges."""
    new = [(line, item) for line, item in batch.open_lines() if line.first]
    wanted = [full[line.node] for line, _ in new] + [line.subjects for line, _ in new]
    known = {people: number for number, people in batch.sets.items()}
    numbers = intern_sets(batch.session, batch.tenant_id, wanted, batch.now, known=known, held=True)
    firsts = [min(line.subjects or full[line.node], default=NOBODY) for line, _ in new]
    batch.seals.prepare(set(firsts) - batch.closed.keys())
    rows, scope_rows = [], []
    for (line, item), first in zip(new, firsts, strict=True):
        holder = first
        if first in batch.closed or not batch.seals.can(first):
            holder = batch.seals.holder(_holders(batch, line, full[line.node]))
        sealed = batch.seals.seal(holder, LABEL, str(line.node), item.details)
        request = requests.get(line.node)
        status = "live" if request is None else "erasing"
        people = (holder, numbers[full[line.node]], numbers[line.subjects])
        rows.append(_row(batch, line.node, item, sealed, people, (status, request)))
        if item.scope or item.run is not None:
            scope_rows += _scope_rows(batch, line.node, item)
        name = item.given_id or artifact_name(line.node)
        line.result = {"id": name, "status": "created"} if request is None else erased(name, request)
    batch.opened = None
    bulk.insert(batch.session, Artifact, *_without_empty(_COLUMNS, rows))
    bulk.insert(batch.session, ScopeKey, _SCOPE_COLUMNS, scope_rows)
    insert_edges(batch, {line.node: line.parents for line, _ in new}, {})


def _holders(batch: Batch, line: Line, full: Members) -> list[int]:
    """Under whose identity key an item is sealed: its own people before its sources', never somebody fenced."""
    return [*sorted(line.subjects - batch.closed.keys()), *sorted(full - line.subjects - batch.closed.keys())]


def _row(  # noqa: PLR0917 - what the columns hold, called once an item
    batch: Batch,
    artifact_id: int,
    item: Item,
    sealed: bytes,
    people: tuple[int, int, int],
    standing: tuple[str, str | None],
) -> tuple[Any, ...]:
    """The values of `_COLUMNS`; `people` are the holder, the set and the own set, `standing` status and request."""
    expires = _expires(batch, item) if batch.over else item.expires_at
    rules = item.data_class
    return (
        batch.tenant_id, artifact_id, item.given_id, rules.name, rules.version, item.store, item.locator_hash,
        sealed, *people, *standing, item.anonymised, _activity(item.activity), item.source_type,
        item.verification, item.confidence, item.digest, batch.created, bulk.instant(item.observed_at),
        bulk.instant(expires), _end(batch, item, expires), batch.acting.token_id,
    )  # fmt: skip


def _expires(batch: Batch, item: Item) -> datetime | None:
    """Its own end; working state ends with its run."""
    over = batch.over.get(item.run) if item.run is not None and item.data_class.state == working.WORKING else None
    return min((at for at in (item.expires_at, over) if at is not None), default=None)


def _end(batch: Batch, item: Item, expires: datetime | None) -> int | None:
    """As it stands in the column."""
    rules = item.data_class
    faith = None if rules.decay is None else item.confidence
    if item.observed_at is not None or expires is not None or faith is not None:
        dates = Dates(created=batch.now, observed=item.observed_at, expires=expires, confidence=faith)
        return bulk.instant(batch.ends_at(rules, dates))
    if rules.name not in batch.plain_ends:
        batch.plain_ends[rules.name] = bulk.instant(batch.ends_at(rules, Dates(created=batch.now)))
    return batch.plain_ends[rules.name]


def _scope_rows(batch: Batch, artifact_id: int, item: Item) -> list[tuple[Any, ...]]:
    scope = set(item.scope.items())
    if item.run is not None and item.data_class.state == working.WORKING:
        scope.add((working.SCOPE, item.run))  # beside what the caller's own scope may call a run
    return [(batch.tenant_id, batch.lookups.scope(name, value), ARTIFACT, artifact_id) for name, value in scope]


def rekey_scopes(session: Session, lookups: Lookups, row: Artifact, scope: Mapping[str, str]) -> None:
    """Let an item be found by the scopes of the value that lies there now, and by no others."""
    session.connection().execute(
        sa.delete(ScopeKey).where(
            col(ScopeKey.tenant_id) == row.tenant_id, col(ScopeKey.kind) == ARTIFACT, col(ScopeKey.item) == row.id
        )
    )
    rows = [(row.tenant_id, lookups.scope(name, value), ARTIFACT, row.id) for name, value in scope.items()]
    bulk.insert(session, ScopeKey, _SCOPE_COLUMNS, rows)


def insert_edges(batch: Batch, wanted: Mapping[int, set[Parent]], present: Mapping[int, set[Parent]]) -> None:
    """Write the edges of these children that are not present."""
    rows = [
        (batch.tenant_id, child, parent.kind, parent.number)
        for child, parents in wanted.items()
        for parent in sorted(parents - present.get(child, set()))
    ]
    bulk.insert(batch.session, Derivation, ("tenant_id", "child", "parent_kind", "parent"), rows)


def _without_empty(
    names: tuple[str, ...], rows: Sequence[tuple[Any, ...]]
) -> tuple[tuple[str, ...], Sequence[tuple[Any, ...]]]:
    """The same without columns that are NULL in all rows: a driver pays for each value."""
    if not rows:
        return names, rows
    filled = [
        number
        for number, name in enumerate(names)
        if name not in _SPARSE or any(row[number] is not None for row in rows)
    ]
    of_row = itemgetter(*filled)
    return tuple(names[number] for number in filled), [of_row(row) for row in rows]


@lru_cache(maxsize=256)
def _activity(kind: str | None) -> str | None:
    return None if kind is None else json.dumps({"kind": kind})
