"""Whose the items of a batch are: step 4 of `registry.registration`.

Guarantees: everybody an item names and everybody behind its sources, along edges inside the batch too, and nobody whom
an anonymisation took out; an item about too many people for its class is refused.
"""

from __future__ import annotations

from registry.batch import Batch
from registry.graph import ENTRY
from registry.item import MAX_AGGREGATED, MAX_SUBJECTS
from registry.lineage import propagate
from registry.sets import Members, members
from registry.subjects import resolve


def own_subjects(batch: Batch) -> None:
    """Resolve everybody the items name, at once; who is new is made."""
    named = {(one.type, one.value): one for _, item in batch.open_lines() for one in item.subjects}
    numbers = resolve(batch.session, batch.vault, batch.acting, list(named.values()), batch.now, seals=batch.seals)
    number_of = dict(zip(named, numbers, strict=True))
    for line, item in batch.open_lines():
        line.subjects = frozenset([number_of[one.type, one.value] for one in item.subjects])
        if line.known is None and not line.first:
            # A second line about the same new item adds its people to the first.
            first = batch.new_places[item.store, item.locator_hash]
            first.subjects |= line.subjects


def full_subjects(batch: Batch) -> dict[int, Members]:
    """Every touched artifact's subjects after this batch; lines with too many are refused."""
    if not batch.sets:
        batch.sets, batch.entry_sets = _sets_behind(batch), dict(batch.present.entries.values())
    sets, entry_sets = batch.sets, batch.entry_sets
    own: dict[int, Members] = {}
    edges: dict[int, set[int]] = {}
    for line, _ in batch.open_lines():
        start = own.get(line.node, frozenset()) | (sets[line.known.set_id] if line.known else frozenset())
        if line.known is None or batch.is_own(line):
            start |= line.subjects
        for parent in () if line.stops else line.parents:
            if parent.kind == ENTRY:
                start |= sets[entry_sets[parent.number]]
            else:
                edges.setdefault(parent.number, set()).add(line.node)
                if (known := batch.present.by_id.get(parent.number)) is not None:
                    own.setdefault(known.id, sets[known.set_id])
        own[line.node] = own.get(line.node, frozenset()) | start
    full = propagate(own, edges)
    for line, item in batch.open_lines():
        most = MAX_AGGREGATED if item.data_class.aggregate else MAX_SUBJECTS
        if len(full[line.node]) > most:
            detail = f"{len(full[line.node])} subjects behind one item, expected at most {most}"
            batch.refuse(line, "too-many-subjects", f"{detail}; an aggregate has a class that says so", "/sources")
    return full


def _sets_behind(batch: Batch) -> dict[int, Members]:
    wanted = {known.set_id for known in batch.present.by_id.values()}
    return members(batch.session, batch.tenant_id, wanted | {set_id for _, set_id in batch.present.entries.values()})
