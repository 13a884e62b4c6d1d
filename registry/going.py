"""Which items of a batch must go at once, and under which request: step 5 of `registry.registration`.

Guarantees: what concerns a fenced person, or was made from something erased, goes under the request behind it; what
another token adds ends nothing, but waits for a human.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from registry import limited
from registry.batch import GONE, Batch, Line
from registry.graph import ARTIFACT, ENTRY, Parent, request_behind
from registry.item import Item
from registry.memories import may_overwrite
from registry.placing import overwrites
from registry.sets import Members
from registry.subjects import fenced


def _mark_late(batch: Batch, full: Mapping[int, Members], everyone: Members) -> None:
    """Note the limited erasure that an item belongs to: by when it was observed, or by an entry it was made of."""
    people = limited.of_people(batch.session, batch.tenant_id, everyone)
    if not people:
        return
    limits = [limit for found in people.values() for limit in found]
    wanted = {parent.number for line, _ in batch.open_lines() for parent in line.parents if parent.kind == ENTRY}
    batch.taken = taken = limited.late_entries(batch.session, batch.tenant_id, wanted, limits)
    for line, item in batch.open_lines():
        if not batch.is_own(line):
            continue
        line.requests |= {taken[one.number] for one in line.parents if one.kind == ENTRY and one.number in taken}
        if item.observed_at is None or not _brings_a_value(line, item):
            continue
        scopes = frozenset(batch.lookups.scope(name, value).hex() for name, value in item.scope.items())
        line.requests |= {
            limit.request_id
            for number in full[line.node] & people.keys()
            for limit in people[number]
            if limit.covers(item.observed_at, item.data_class.name, scopes)
        }


def _brings_a_value(line: Line, item: Item) -> bool:
    """Whether the item is new, or gets another value without a human's word."""
    known = line.known
    if known is None:
        return True
    return overwrites(known, item) and may_overwrite(known.source_type, known.verification, item.source_type)


def requests_of(batch: Batch, full: Mapping[int, Members]) -> dict[int, str]:
    """The artifacts that must go at once, each with the request behind it; carried along edges of the batch."""
    everyone = frozenset[int]().union(*full.values())
    batch.closed = fenced(batch.session, batch.tenant_id, everyone) if everyone else {}
    _mark_late(batch, full, everyone)
    found = {known.id: known.request_id or "" for known in batch.present.by_id.values() if known.status in GONE}
    if not (found or batch.closed or any(line.requests for line in batch.lines)):
        return found
    edges: dict[int, set[int]] = {}
    for line, _ in batch.open_lines():
        if line.stops:
            continue
        request = request_behind(full[line.node], batch.closed) or min(line.requests, default=None)
        if request is not None and batch.is_own(line):
            found.setdefault(line.node, request)
        for parent in line.parents:
            if parent.kind == ARTIFACT:
                edges.setdefault(parent.number, set()).add(line.node)
    waiting = deque(found)
    while waiting:
        parent_no = waiting.popleft()
        for child in edges.get(parent_no, ()):
            if child not in found:
                found[child] = found[parent_no]
                waiting.append(child)
    return found


def hold_back(batch: Batch, full: Mapping[int, Members], requests: Mapping[int, str]) -> bool:
    """Take away sources that another token names and by which an item would end; whether there were any.

    A human decides about those. Who is behind the item already changes nothing: their request knows it.
    """
    found = False
    for line, _ in batch.open_lines():
        if line.known is None or batch.is_own(line) or line.known.status in GONE or line.stops:
            continue
        present = batch.sets[line.known.set_id]
        held = {one for one in line.parents if _ends_by(batch, one, present, full, requests)}
        if not held and not line.requests:
            continue
        found = True
        line.parents -= held
        reasons = [_reason(batch, one, full, requests) for one in sorted(held)]
        request = min((reason for reason in (*reasons, *line.requests) if reason), default=None)
        line.requests.clear()
        known = line.held.get("sources", [])
        line.held = {"sources": known + [[one.kind, one.number] for one in sorted(held)], "request": request}
    return found


def _ends_by(
    batch: Batch, parent: Parent, present: Members, full: Mapping[int, Members], requests: Mapping[int, str]
) -> bool:
    """Whether what is made from this source goes at once."""
    if parent.kind == ARTIFACT and parent.number in requests:
        return True
    if parent.kind == ENTRY and parent.number in batch.taken:
        return True
    return not batch.closed.keys().isdisjoint(_behind(batch, parent, full) - present)


def _behind(batch: Batch, parent: Parent, full: Mapping[int, Members]) -> Members:
    if parent.kind == ENTRY:
        return batch.sets[batch.entry_sets[parent.number]]
    return full.get(parent.number, frozenset())


def _reason(batch: Batch, parent: Parent, full: Mapping[int, Members], requests: Mapping[int, str]) -> str | None:
    known = requests.get(parent.number) if parent.kind == ARTIFACT else batch.taken.get(parent.number)
    return known or request_behind(_behind(batch, parent, full), batch.closed)
