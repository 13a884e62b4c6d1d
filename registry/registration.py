"""Registers a batch of artifacts: the gate through which every copy comes into the registry.

Guarantees: one bad item never stops the others; the same (store, locator) is the same artifact, so a repeat changes
nothing; an item's subjects are its own and all its sources', stored with it; nobody changes another token's item except
by adding sources, and no source that another token names ends an item (`registry.claims`); what was made from something
erased, or concerns a fenced person, is registered and marked for removal under the request that stands behind it. All
SQL is batched. The caller commits.

1. Parse each item and look up its place (`item`).       4. Subjects: own, of sources, along edges inside (`whose`).
2. Load what exists there and the sources (`present`).   5. Fences: what must go at once, under whom (`going`).
3. Place and connect, or refuse (`placing`).             6. Write what is new (`new_rows`), then `repeats`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col

from registry import bulk, classes, stores, working
from registry.acting import Acting
from registry.batch import Batch, Line, rejected
from registry.ends import EndsAt, HeldClasses, default_ends_at
from registry.errors import Fault, InvalidDeclaration
from registry.going import hold_back, requests_of
from registry.ids import go_past
from registry.item import AHEAD, Context, Item, ItemRejected, Source, given_id_of, parse_item
from registry.keyed import RowDigests, hold_writer
from registry.models import Artifact
from registry.new_rows import write_new
from registry.placing import connect, find_stops, place, refuse_dependants
from registry.repeats import write_repeats
from registry.whose import full_subjects, own_subjects
from vault.vault import Vault

MAX_ITEMS = 5_000
MAX_VALUES = 8
"""How often one batch may say something else of the same place: each time is another walk through the tables."""
_ASIDE: dict[str, Any] = {"status": "aside"}
"""Stands where the result of a later run will be."""


def register(
    session: Session,
    vault: Vault,
    acting: Acting,
    items: Sequence[object],
    now: datetime,
    *,
    ends_at: EndsAt = default_ends_at,
    held: HeldClasses = (),
) -> list[dict[str, Any]]:
    """One result per item, in order: `id`, `status`, and `problem` or `request` where there is one. Source: API §4.

    What a hold keeps for its class waits for a human before it comes into another one; `held` are those classes.

    Raises: InvalidDeclaration for a batch that is too long.
    """
    if len(items) > MAX_ITEMS:
        detail = f"{len(items)} items, expected at most {MAX_ITEMS}"
        raise InvalidDeclaration("batch", [Fault(pointer="/artifacts", detail=detail)])
    results: list[dict[str, Any]] = [{} for _ in items]
    waiting: Sequence[int] = range(len(items))
    with bulk.without_collector():
        # What the batch made is gone before the collector wakes up, so that it has nothing to walk.
        for left in reversed(range(MAX_VALUES)):
            batch = Batch(session, vault, acting, now, ends_at=ends_at, held=held)
            found, otherwise = _run(batch, [items[number] for number in waiting], last=not left)
            for number, result in zip(waiting, found, strict=True):
                results[number] = result
            waiting = [waiting[number] for number in otherwise]
            if not waiting:
                break
    return results


def _run(batch: Batch, items: Sequence[object], *, last: bool) -> tuple[list[dict[str, Any]], list[int]]:
    """The results, and the numbers of those items that say otherwise of a place than an earlier one: for the next run.

    They speak of an item that exists by then, as if they came in a batch of their own.
    """
    hold_writer(batch.session, batch.tenant_id)
    _go_past_others(batch)
    _parse(batch, items)  # 1
    otherwise = _put_aside(batch, last=last)
    _load(batch)  # 2
    place(batch)  # 3
    connect(batch)
    refuse_dependants(batch)
    find_stops(batch)
    own_subjects(batch)  # 4
    full = full_subjects(batch)
    requests = requests_of(batch, full)  # 5
    while hold_back(batch, full, requests):
        full = full_subjects(batch)
        requests = requests_of(batch, full)
    write_new(batch, full, requests)  # 6
    write_repeats(batch, full, requests)
    results = [line.result or rejected("internal", "the item was not looked at", "") for line in batch.lines]
    return results, otherwise


def _put_aside(batch: Batch, *, last: bool) -> list[int]:
    """Take the lines that would change what an earlier line of the batch registers out of it; which they are."""
    firsts: dict[tuple[str, bytes], Item] = {}
    found: list[int] = []
    for number, line in enumerate(batch.lines):
        item = line.item
        if item is None:
            continue
        first = firsts.setdefault((item.store, item.locator_hash), item)
        if first is item or not _says_otherwise(first, item):
            continue
        if last:
            detail = f"more than {MAX_VALUES} values of one place in one batch; send the newest alone"
            batch.refuse(line, "conflict", detail, "/locator")
            continue
        line.result = _ASIDE
        found.append(number)
    batch.opened = None
    return found


def _says_otherwise(first: Item, item: Item) -> bool:
    """Whether it names another class or value for the same place, or an earlier end. More people join the first."""
    return (
        item.data_class.name != first.data_class.name
        or item.digest not in {None, first.digest}
        or (item.expires_at is not None and (first.expires_at is None or item.expires_at < first.expires_at))
    )


def _go_past_others(batch: Batch) -> None:
    """Have greater numbers than all that is committed, so that who reads on from a number misses nothing.

    The writer's lock is held until the commit; on SQLite one process writes, whose numbers only grow.
    """
    if batch.session.get_bind().dialect.name == "postgresql":
        query = sa.select(sa.func.max(col(Artifact.id))).where(col(Artifact.tenant_id) == batch.tenant_id)
        go_past(batch.session.scalar(query) or 0)


def _parse(batch: Batch, items: Sequence[object]) -> None:
    batch.classes = classes.in_force(batch.session, batch.tenant_id)
    context = Context(
        acting=batch.acting,
        classes=batch.classes,
        stores=stores.in_force(batch.session, batch.tenant_id),
        lookups=batch.lookups,
        seen_by=batch.now + AHEAD,
    )
    for raw in items:
        line = Line()
        try:
            line.item = parse_item(raw, context)
        except ItemRejected as error:
            line.result = rejected(error.problem, error.detail, error.pointer, given_id_of(raw))
        batch.lines.append(line)


def _load(batch: Batch) -> None:
    places: dict[str, set[bytes]] = {}
    names: set[str] = set()
    entries: set[bytes] = set()
    for _, item in batch.open_lines():
        places.setdefault(item.store, set()).add(item.locator_hash)
        if item.given_id is not None:
            names.add(item.given_id)
        for source in item.sources:
            _sort_source(source, places, names, entries)
    batch.present.load(places, names)
    batch.present.load_entries(entries)
    runs = {one.run for _, one in batch.open_lines() if one.run is not None and one.data_class.state == working.WORKING}
    batch.over = working.ended_runs(batch.session, batch.vault, batch.tenant_id, runs) if runs else {}
    writes = {item.after_action for _, item in batch.open_lines() if item.after_action is not None}
    if writes:
        batch.present.load_actions(writes, RowDigests(batch.vault, batch.tenant_id))


def _sort_source(source: Source, places: dict[str, set[bytes]], names: set[str], entries: set[bytes]) -> None:
    if isinstance(source.key, bytes):
        entries.add(source.key)
    elif isinstance(source.key, str):
        names.add(source.key)
    else:
        places.setdefault(source.key[0], set()).add(source.key[1])
