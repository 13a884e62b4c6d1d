"""Which artifact each item of a batch is, and what it was made from: step 3 of `registry.registration`.

Guarantees: the same (store, locator) is the same artifact; an unknown source, a source that was refused itself, an item
made from itself and a memory before its turn or its product write are refused, each alone; so is a value
with people in the place of one that was anonymised.
"""

from __future__ import annotations

from collections import deque

from registry.batch import Batch, Line
from registry.graph import ARTIFACT, ENTRY, Parent
from registry.ids import new_id
from registry.item import OWN_ID, Item, Source
from registry.keyed import NOBODY
from registry.present import Known


def place(batch: Batch) -> None:
    """Decide for each line which artifact it is: one that exists, one that an earlier line makes, or a new one."""
    for line, item in batch.open_lines():
        place = (item.store, item.locator_hash)
        known = batch.present.by_place.get(place)
        earlier = batch.new_places.get(place)
        holder = batch.named(item.given_id) if item.given_id is not None else None
        if holder is not None and holder not in {known and known.id, earlier and earlier.node}:
            batch.refuse(line, "id-conflict", "the id belongs to an artifact at another place", "/id")
        elif holder is None and item.given_id is not None and OWN_ID.fullmatch(item.given_id):
            # Who could give out an id of ours beforehand would stand in for whatever gets it later.
            detail = "an id of this form is made by the service, and names nothing here yet"
            batch.refuse(line, "id-conflict", detail, "/id")
        elif known is not None and item.anonymised and not known.anonymised:
            detail = "what is registered here has people; an anonymised output has a place of its own"
            batch.refuse(line, "conflict", detail, "/activity")
        elif known is not None and known.anonymised and not item.anonymised and overwrites(known, item):
            # Nobody stands behind the item: another value at its place would bring people who are found nowhere.
            detail = "what is registered here was anonymised; a value that is not has a place of its own"
            batch.refuse(line, "conflict", detail, "/activity")
        elif known is not None:
            line.known, line.node = known, known.id
        elif earlier is not None:
            line.node = earlier.node
        else:
            line.node, line.first = new_id(batch.now), True
            batch.new_places[place] = line
            if item.given_id is not None:
                batch.new_given[item.given_id] = line


def overwrites(known: Known, item: Item) -> bool:
    """Whether the same place of a memory now holds another value than the one registered."""
    return item.data_class.state == "memory" and known.digest is not None and item.digest not in (None, known.digest)


def connect(batch: Batch) -> None:
    """Resolve every source; refuse lines with an unknown one, or that derive from themselves."""
    for line, item in batch.open_lines():
        for number, source in enumerate(item.sources):
            parent = _parent(batch, line, source)
            if parent is None:
                batch.refuse(line, "unknown-source", "no such source is registered or recorded here",
                             f"/sources/{number}")  # fmt: skip
                break
            if parent.number == line.node and parent.kind == ARTIFACT:
                batch.refuse(line, "invalid", "an artifact cannot be made from itself", f"/sources/{number}")
                break
            if parent.number != NOBODY or parent.kind == ENTRY:
                line.parents.add(parent)
        if line.result is None:
            _check_write(batch, line, item)


def _check_write(batch: Batch, line: Line, item: Item) -> None:
    """A memory comes last: after the turn it cites, and after the product write it tells of."""
    if item.after_action is not None and item.after_action not in batch.present.succeeded:
        detail = "the product write it follows has not succeeded; a memory before it records a false history"
        batch.refuse(line, "action-not-succeeded", detail, "/after_action")
        return
    write = item.data_class.write
    if write is not None and write.cites_turn:
        cited = {parent.number for parent in line.parents if parent.kind == ENTRY}
        if cited.isdisjoint(batch.present.turns):
            detail = "missing: a memory of this class cites a turn of the record (entry:<uuid>)"
            batch.refuse(line, "unknown-source", detail, "/sources")


def _parent(batch: Batch, line: Line, source: Source) -> Parent | None:
    """The node of a source; number 0 for a place whose artifact was erased, which leaves only its tombstone."""
    if isinstance(source.key, bytes):
        entry = batch.present.entries.get(source.key)
        return None if entry is None else Parent(ENTRY, entry[0])
    if isinstance(source.key, str):
        number = batch.named(source.key)
        return None if number is None else Parent(ARTIFACT, number)
    known, earlier = batch.present.by_place.get(source.key), batch.new_places.get(source.key)
    if known is not None or earlier is not None:
        return Parent(ARTIFACT, known.id if known is not None else earlier.node if earlier is not None else 0)
    if source.key in batch.present.tombs:
        line.requests.add(batch.present.tombs[source.key])
        return Parent(ARTIFACT, NOBODY)
    return None


def refuse_dependants(batch: Batch) -> None:
    """What was to be made from an item that this batch refused has no source either.

    Several lines may speak of one new item: it is lost when all of them are refused, else the first that is left
    makes it.
    """
    open_lines: dict[int, int] = {line.node: 0 for line in batch.lines if line.first}
    below: dict[int, list[Line]] = {}
    for line, _ in batch.open_lines():
        if line.node in open_lines:
            open_lines[line.node] += 1
        for parent in line.parents:
            if parent.kind == ARTIFACT:
                below.setdefault(parent.number, []).append(line)
    lost = deque(node for node, count in open_lines.items() if count == 0)
    while lost:
        for line in below.get(lost.popleft(), ()):
            if line.result is None:
                batch.refuse(line, "unknown-source", "a source in this batch was refused itself", "/sources")
                if line.node in open_lines:
                    open_lines[line.node] -= 1
                    if open_lines[line.node] == 0:
                        lost.append(line.node)
    for line, item in batch.open_lines():
        place = (item.store, item.locator_hash)
        if line.known is None and batch.new_places[place].result is not None:
            batch.new_places[place].first = False
            batch.new_places[place], line.first = line, True


def find_stops(batch: Batch) -> None:
    """Note at which lines the people of the sources do not go on."""
    for line, item in batch.open_lines():
        maker = line.item if line.first else None
        if line.known is None and not line.first:
            maker = batch.new_places[item.store, item.locator_hash].item
        line.stops = bool(line.known.anonymised) if line.known else maker is not None and maker.anonymised
