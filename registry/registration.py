"""Registers a batch of artifacts: the gate through which every copy comes into the registry.

Guarantees: one bad item never stops the others; the same (store, locator) is the same artifact, so a repeat changes
nothing; an item's subjects are its own and all its sources', stored with it; nobody changes another token's item except
by adding sources, and no source that another token names ends an item (`registry.claims`); what was made from something
erased, or concerns a fenced person, is registered and marked for removal under the request that stands behind it. All
SQL is batched. The caller commits.

1. Parse each item and look up its place.            4. Subjects: own, of sources, along edges inside the batch.
2. Load what exists at those places and the sources.  5. Fences: what must go at once, and under which request.
3. Refuse what has unknown sources or derives itself. 6. Write sets, rows, edges, scope keys; carry late edges down.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col

from ledger.entry import format_instant
from registry import bulk, classes, limited, memory_log, stores, working
from registry.acting import Acting
from registry.claims import Edge, note_claims, open_review, settle_claims
from registry.declaration import DataClass
from registry.ends import CONSENT, Dates, EndsAt, default_ends_at
from registry.errors import Fault, InvalidDeclaration
from registry.graph import (
    ARTIFACT,
    ENTRY,
    INLINE,
    Parent,
    full_sets,
    mark_erasing,
    mark_fenced,
    parents_of,
    request_behind,
    spread,
    write_sets,
)
from registry.ids import artifact_name, go_past, new_id
from registry.item import (
    MAX_AGGREGATED,
    MAX_SUBJECTS,
    OWN_ID,
    Context,
    Item,
    ItemRejected,
    Source,
    given_id_of,
    parse_item,
)
from registry.keyed import NOBODY, Lookups, Seals, hold_writer
from registry.lineage import propagate
from registry.memories import may_overwrite
from registry.models import Artifact, Derivation, ScopeKey
from registry.present import Known, Present
from registry.sets import Members, intern_sets, members
from registry.subjects import Fence, fenced, resolve
from vault.vault import Vault

MAX_ITEMS = 5_000
LABEL = "artifact"
GONE = ("erasing", "erased")
_COLUMNS = (
    "tenant_id", "id", "given_id", "data_class", "class_version", "store", "locator_hash", "sealed", "holder_no",
    "set_id", "own_set_id", "status", "request_id", "anonymised", "activity", "source_type", "verification",
    "confidence", "digest", "created_at", "observed_at", "expires_at", "ends_at", "registered_by",
)  # fmt: skip
_SPARSE = frozenset({"given_id", "request_id", "activity", "source_type", "verification", "confidence", "digest",
                     "observed_at", "expires_at", "ends_at"})  # fmt: skip
"""Columns that many batches leave empty."""


@dataclass(slots=True, kw_only=True)
class _Line:
    """One item of the batch on its way."""

    item: Item | None = None
    result: dict[str, Any] | None = None
    node: int = 0
    known: Known | None = None
    first: bool = False
    stops: bool = False
    """Whether the people of its sources do not reach its artifact."""
    parents: set[Parent] = field(default_factory=set)
    requests: set[str] = field(default_factory=set)
    held: dict[str, Any] = field(default_factory=dict)
    """What a human decides of the sources that another token named, as a review wants it."""
    subjects: Members = frozenset()


def register(
    session: Session,
    vault: Vault,
    acting: Acting,
    items: Sequence[Mapping[str, Any]],
    now: datetime,
    *,
    ends_at: EndsAt = default_ends_at,
) -> list[dict[str, Any]]:
    """One result per item, in order: `id`, `status`, and `problem` or `request` where there is one. Source: API §4.

    Raises: InvalidDeclaration for a batch that is too long.
    """
    if len(items) > MAX_ITEMS:
        detail = f"{len(items)} items, expected at most {MAX_ITEMS}"
        raise InvalidDeclaration("batch", [Fault(pointer="/artifacts", detail=detail)])
    with bulk.without_collector():
        # What the batch made is gone before the collector wakes up, so that it has nothing to walk.
        return _Registration(session, vault, acting, now, ends_at=ends_at).run(items)


class _Registration:
    def __init__(self, session: Session, vault: Vault, acting: Acting, now: datetime, *, ends_at: EndsAt) -> None:
        self.session = session
        self.vault = vault
        self.acting = acting
        self.tenant_id = acting.tenant_id
        self.now = now
        self.created = bulk.instant(now)
        self.ends_at = ends_at
        self.lookups = Lookups(vault, acting.tenant_id)
        self.seals = Seals(session, vault, acting.tenant_id)
        self.present = Present(session, acting.tenant_id)
        self.lines: list[_Line] = []
        self.opened: list[tuple[_Line, Item]] | None = None
        """What `_open` gave last, unless something was refused since."""
        self.classes: Mapping[str, DataClass] = {}
        self.new_places: dict[tuple[str, bytes], _Line] = {}
        self.new_given: dict[str, _Line] = {}
        self.sets: dict[int, Members] = {}
        self.entry_sets: dict[int, int] = {}
        self.closed: dict[int, Fence] = {}
        self.taken: dict[int, str] = {}
        self.over: Mapping[str, datetime] = {}
        """Since when the runs of working items are over."""
        self.plain_ends: dict[str, int | None] = {}
        """Ends by class of items that bring no date of their own: the same for all of a batch."""

    def run(self, items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        hold_writer(self.session, self.tenant_id)
        self._go_past_others()
        self._parse(items)
        self._load()
        self._place()
        self._connect()
        self._refuse_dependants()
        self._find_stops()
        self._own_subjects()
        full = self._full_subjects()
        requests = self._requests(full)
        while self._hold_back(full, requests):
            full = self._full_subjects()
            requests = self._requests(full)
        self._write_new(full, requests)
        self._write_repeats(full, requests)
        return [line.result or self._rejected("internal", "the item was not looked at", "") for line in self.lines]

    def _go_past_others(self) -> None:
        """Have greater numbers than all that is committed, so that who reads on from a number misses nothing.

        The writer's lock is held until the commit; on SQLite one process writes, whose numbers only grow.
        """
        if self.session.get_bind().dialect.name == "postgresql":
            query = sa.select(sa.func.max(col(Artifact.id))).where(col(Artifact.tenant_id) == self.tenant_id)
            go_past(self.session.scalar(query) or 0)

    # ── 1. parse ──────────────────────────────────────────────────────────────────────────────────────────────

    def _parse(self, items: Sequence[Mapping[str, Any]]) -> None:
        self.classes = classes.in_force(self.session, self.tenant_id)
        context = Context(
            acting=self.acting,
            classes=self.classes,
            stores=stores.in_force(self.session, self.tenant_id),
            lookups=self.lookups,
        )
        for raw in items:
            line = _Line()
            try:
                line.item = parse_item(raw, context)
            except ItemRejected as error:
                line.result = self._rejected(error.problem, error.detail, error.pointer, given_id_of(raw))
            self.lines.append(line)

    def _rejected(self, problem: str, detail: str, pointer: str, given_id: str | None = None) -> dict[str, Any]:
        title = problem.replace("-", " ")
        shown: dict[str, Any] = {"type": f"/problems/{problem}", "title": title, "detail": detail}
        shown["errors"] = [{"pointer": pointer, "detail": detail}]
        return {"id": given_id, "status": "rejected", "problem": shown}

    def _refuse(self, line: _Line, problem: str, detail: str, pointer: str) -> None:
        given = line.item.given_id if line.item is not None else None
        line.result = self._rejected(problem, detail, pointer, given)
        self.opened = None

    def _open(self) -> list[tuple[_Line, Item]]:
        """The lines that nothing speaks against so far."""
        if self.opened is None:
            self.opened = [(line, line.item) for line in self.lines if line.item is not None and line.result is None]
        return self.opened

    # ── 2. load ───────────────────────────────────────────────────────────────────────────────────────────────

    def _load(self) -> None:
        places: dict[str, set[bytes]] = {}
        names: set[str] = set()
        entries: set[bytes] = set()
        for _, item in self._open():
            places.setdefault(item.store, set()).add(item.locator_hash)
            if item.given_id is not None:
                names.add(item.given_id)
            for source in item.sources:
                _sort_source(source, places, names, entries)
        self.present.load(places, names)
        self.present.load_entries(entries)
        runs = {one.run for _, one in self._open() if one.run is not None and one.data_class.state == working.WORKING}
        self.over = working.ended_runs(self.session, self.vault, self.tenant_id, runs) if runs else {}
        self.present.load_actions({item.after_action for _, item in self._open() if item.after_action is not None})

    # ── 3. place, connect, refuse ─────────────────────────────────────────────────────────────────────────────

    def _place(self) -> None:
        """Decide for each line which artifact it is: one that exists, one that an earlier line makes, or a new one."""
        for line, item in self._open():
            place = (item.store, item.locator_hash)
            known = self.present.by_place.get(place)
            earlier = self.new_places.get(place)
            holder = self._named(item.given_id) if item.given_id is not None else None
            if holder is not None and holder not in {known and known.id, earlier and earlier.node}:
                self._refuse(line, "id-conflict", "the id belongs to an artifact at another place", "/id")
            elif holder is None and item.given_id is not None and OWN_ID.fullmatch(item.given_id):
                # Who could give out an id of ours beforehand would stand in for whatever gets it later.
                detail = "an id of this form is made by the service, and names nothing here yet"
                self._refuse(line, "id-conflict", detail, "/id")
            elif known is not None and item.anonymised and not known.anonymised:
                detail = "what is registered here has people; an anonymised output has a place of its own"
                self._refuse(line, "conflict", detail, "/activity")
            elif known is not None:
                line.known, line.node = known, known.id
            elif earlier is not None:
                line.node = earlier.node
            else:
                line.node, line.first = new_id(self.now), True
                self.new_places[place] = line
                if item.given_id is not None:
                    self.new_given[item.given_id] = line

    def _named(self, name: str) -> int | None:
        """The artifact of a public id, existing or made by this batch."""
        if (number := self.present.by_name.get(name)) is not None:
            return number
        line = self.new_given.get(name)
        return None if line is None else line.node

    def _connect(self) -> None:
        """Resolve every source; refuse lines with an unknown one, or that derive from themselves."""
        for line, item in self._open():
            for number, source in enumerate(item.sources):
                parent = self._parent(line, source)
                if parent is None:
                    self._refuse(line, "unknown-source", "no such source is registered or recorded here",
                                 f"/sources/{number}")  # fmt: skip
                    break
                if parent.number == line.node and parent.kind == ARTIFACT:
                    self._refuse(line, "invalid", "an artifact cannot be made from itself", f"/sources/{number}")
                    break
                if parent.number != NOBODY or parent.kind == ENTRY:
                    line.parents.add(parent)
            if line.result is None:
                self._check_write(line, item)

    def _check_write(self, line: _Line, item: Item) -> None:
        """A memory comes last: after the turn it cites, and after the product write it tells of."""
        if item.after_action is not None and item.after_action not in self.present.succeeded:
            detail = "the product write it follows has not succeeded; a memory before it records a false history"
            self._refuse(line, "action-not-succeeded", detail, "/after_action")
            return
        write = item.data_class.write
        if write is not None and write.cites_turn:
            cited = {parent.number for parent in line.parents if parent.kind == ENTRY}
            if cited.isdisjoint(self.present.turns):
                detail = "missing: a memory of this class cites a turn of the record (entry:<uuid>)"
                self._refuse(line, "unknown-source", detail, "/sources")

    def _parent(self, line: _Line, source: Source) -> Parent | None:
        """The node of a source; number 0 for a place whose artifact was erased, which leaves only its tombstone."""
        if isinstance(source.key, bytes):
            entry = self.present.entries.get(source.key)
            return None if entry is None else Parent(ENTRY, entry[0])
        if isinstance(source.key, str):
            number = self._named(source.key)
            return None if number is None else Parent(ARTIFACT, number)
        known, earlier = self.present.by_place.get(source.key), self.new_places.get(source.key)
        if known is not None or earlier is not None:
            return Parent(ARTIFACT, known.id if known is not None else earlier.node if earlier is not None else 0)
        if source.key in self.present.tombs:
            line.requests.add(self.present.tombs[source.key])
            return Parent(ARTIFACT, NOBODY)
        return None

    def _refuse_dependants(self) -> None:
        """What was to be made from an item that this batch refused has no source either.

        Several lines may speak of one new item: it is lost when all of them are refused, else the first that is left
        makes it.
        """
        open_lines: dict[int, int] = {line.node: 0 for line in self.lines if line.first}
        below: dict[int, list[_Line]] = {}
        for line, _ in self._open():
            if line.node in open_lines:
                open_lines[line.node] += 1
            for parent in line.parents:
                if parent.kind == ARTIFACT:
                    below.setdefault(parent.number, []).append(line)
        lost = deque(node for node, count in open_lines.items() if count == 0)
        while lost:
            for line in below.get(lost.popleft(), ()):
                if line.result is None:
                    self._refuse(line, "unknown-source", "a source in this batch was refused itself", "/sources")
                    if line.node in open_lines:
                        open_lines[line.node] -= 1
                        if open_lines[line.node] == 0:
                            lost.append(line.node)
        for line, item in self._open():
            place = (item.store, item.locator_hash)
            if line.known is None and self.new_places[place].result is not None:
                self.new_places[place].first = False
                self.new_places[place], line.first = line, True

    def _find_stops(self) -> None:
        """Note at which lines the people of the sources do not go on."""
        for line, item in self._open():
            maker = line.item if line.first else None
            if line.known is None and not line.first:
                maker = self.new_places[item.store, item.locator_hash].item
            line.stops = bool(line.known.anonymised) if line.known else maker is not None and maker.anonymised

    # ── 4. subjects ───────────────────────────────────────────────────────────────────────────────────────────

    def _own_subjects(self) -> None:
        named = {(one.type, one.value): one for _, item in self._open() for one in item.subjects}
        numbers = resolve(self.session, self.vault, self.acting, list(named.values()), self.now, seals=self.seals)
        number_of = dict(zip(named, numbers, strict=True))
        for line, item in self._open():
            line.subjects = frozenset([number_of[one.type, one.value] for one in item.subjects])
            if line.known is None and not line.first:
                # A second line about the same new item adds its people to the first.
                first = self.new_places[item.store, item.locator_hash]
                first.subjects |= line.subjects

    def _full_subjects(self) -> dict[int, Members]:
        """Every touched artifact's subjects after this batch; lines with too many are refused."""
        if not self.sets:
            self.sets, self.entry_sets = self._sets_behind(), dict(self.present.entries.values())
        sets, entry_sets = self.sets, self.entry_sets
        own: dict[int, Members] = {}
        edges: dict[int, set[int]] = {}
        for line, _ in self._open():
            start = own.get(line.node, frozenset()) | (sets[line.known.set_id] if line.known else frozenset())
            if line.known is None or self._is_own(line):
                start |= line.subjects
            for parent in () if line.stops else line.parents:
                if parent.kind == ENTRY:
                    start |= sets[entry_sets[parent.number]]
                else:
                    edges.setdefault(parent.number, set()).add(line.node)
                    if (known := self.present.by_id.get(parent.number)) is not None:
                        own.setdefault(known.id, sets[known.set_id])
            own[line.node] = own.get(line.node, frozenset()) | start
        full = propagate(own, edges)
        for line, item in self._open():
            most = MAX_AGGREGATED if item.data_class.aggregate else MAX_SUBJECTS
            if len(full[line.node]) > most:
                detail = f"{len(full[line.node])} subjects behind one item, expected at most {most}"
                self._refuse(line, "too-many-subjects", f"{detail}; an aggregate has a class that says so", "/sources")
        return full

    def _sets_behind(self) -> dict[int, Members]:
        wanted = {known.set_id for known in self.present.by_id.values()}
        return members(self.session, self.tenant_id, wanted | {set_id for _, set_id in self.present.entries.values()})

    def _is_own(self, line: _Line) -> bool:
        """Whether the line may change its artifact: it makes it, or the same token registered it."""
        return line.known is None or line.known.registered_by == self.acting.token_id

    # ── 5. fences ─────────────────────────────────────────────────────────────────────────────────────────────

    def _mark_late(self, full: Mapping[int, Members], everyone: Members) -> None:
        """Note the limited erasure that an item belongs to: by when it was observed, or by an entry it was made of."""
        people = limited.of_people(self.session, self.tenant_id, everyone)
        if not people:
            return
        limits = [limit for found in people.values() for limit in found]
        wanted = {parent.number for line, _ in self._open() for parent in line.parents if parent.kind == ENTRY}
        self.taken = taken = limited.late_entries(self.session, self.tenant_id, wanted, limits)
        for line, item in self._open():
            if not self._is_own(line):
                continue
            line.requests |= {taken[one.number] for one in line.parents if one.kind == ENTRY and one.number in taken}
            if line.known is not None or item.observed_at is None:
                continue
            scopes = frozenset(self.lookups.scope(name, value).hex() for name, value in item.scope.items())
            line.requests |= {
                limit.request_id
                for number in full[line.node] & people.keys()
                for limit in people[number]
                if limit.covers(item.observed_at, item.data_class.name, scopes)
            }

    def _requests(self, full: Mapping[int, Members]) -> dict[int, str]:
        """The artifacts that must go at once, each with the request behind it; carried along edges of the batch."""
        everyone = frozenset[int]().union(*full.values())
        self.closed = fenced(self.session, self.tenant_id, everyone) if everyone else {}
        self._mark_late(full, everyone)
        found = {known.id: known.request_id or "" for known in self.present.by_id.values() if known.status in GONE}
        if not (found or self.closed or any(line.requests for line in self.lines)):
            return found
        edges: dict[int, set[int]] = {}
        for line, _ in self._open():
            if line.stops:
                continue
            request = request_behind(full[line.node], self.closed) or min(line.requests, default=None)
            if request is not None and self._is_own(line):
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

    def _hold_back(self, full: Mapping[int, Members], requests: Mapping[int, str]) -> bool:
        """Take away sources that another token names and by which an item would end; whether there were any.

        A human decides about those. Who is behind the item already changes nothing: their request knows it.
        """
        found = False
        for line, _ in self._open():
            if line.known is None or self._is_own(line) or line.known.status in GONE or line.stops:
                continue
            present = self.sets[line.known.set_id]
            held = {one for one in line.parents if self._ends_by(one, present, full, requests)}
            if not held and not line.requests:
                continue
            found = True
            line.parents -= held
            reasons = [self._reason(one, full, requests) for one in sorted(held)]
            request = min((reason for reason in (*reasons, *line.requests) if reason), default=None)
            line.requests.clear()
            known = line.held.get("sources", [])
            line.held = {"sources": known + [[one.kind, one.number] for one in sorted(held)], "request": request}
        return found

    def _ends_by(
        self, parent: Parent, present: Members, full: Mapping[int, Members], requests: Mapping[int, str]
    ) -> bool:
        """Whether what is made from this source goes at once."""
        if parent.kind == ARTIFACT and parent.number in requests:
            return True
        if parent.kind == ENTRY and parent.number in self.taken:
            return True
        return not self.closed.keys().isdisjoint(self._behind(parent, full) - present)

    def _behind(self, parent: Parent, full: Mapping[int, Members]) -> Members:
        if parent.kind == ENTRY:
            return self.sets[self.entry_sets[parent.number]]
        return full.get(parent.number, frozenset())

    def _reason(self, parent: Parent, full: Mapping[int, Members], requests: Mapping[int, str]) -> str | None:
        known = requests.get(parent.number) if parent.kind == ARTIFACT else self.taken.get(parent.number)
        return known or request_behind(self._behind(parent, full), self.closed)

    # ── 6. write ──────────────────────────────────────────────────────────────────────────────────────────────

    def _write_new(self, full: Mapping[int, Members], requests: Mapping[int, str]) -> None:
        new = [(line, item) for line, item in self._open() if line.first]
        wanted = [full[line.node] for line, _ in new] + [line.subjects for line, _ in new]
        known = {people: number for number, people in self.sets.items()}
        numbers = intern_sets(self.session, self.tenant_id, wanted, self.now, known=known, held=True)
        firsts = [min(line.subjects or full[line.node], default=NOBODY) for line, _ in new]
        self.seals.prepare(set(firsts) - self.closed.keys())
        rows, scope_rows = [], []
        for (line, item), first in zip(new, firsts, strict=True):
            holder = first
            if first in self.closed or not self.seals.can(first):
                holder = self.seals.holder(self._holders(line, full[line.node]))
            sealed = self.seals.seal(holder, LABEL, str(line.node), item.details)
            request = requests.get(line.node)
            status = "live" if request is None else "erasing"
            people = (holder, numbers[full[line.node]], numbers[line.subjects])
            rows.append(self._row(line.node, item, sealed, people, (status, request)))
            if item.scope or item.run is not None:
                scope_rows += self._scope_rows(line.node, item)
            name = item.given_id or artifact_name(line.node)
            line.result = {"id": name, "status": "created"} if request is None else _erased(name, request)
        self.opened = None
        bulk.insert(self.session, Artifact, *_without_empty(_COLUMNS, rows))
        bulk.insert(self.session, ScopeKey, ("tenant_id", "lookup", "kind", "item"), scope_rows)
        self._insert_edges({line.node: line.parents for line, _ in new}, {})

    def _holders(self, line: _Line, full: Members) -> list[int]:
        """Under whose identity key an item is sealed: its own people before its sources', never somebody fenced."""
        return [*sorted(line.subjects - self.closed.keys()), *sorted(full - line.subjects - self.closed.keys())]

    def _row(
        self,
        artifact_id: int,
        item: Item,
        sealed: bytes,
        people: tuple[int, int, int],
        standing: tuple[str, str | None],
    ) -> tuple[Any, ...]:
        """The values of `_COLUMNS`; `people` are the holder, the set and the own set, `standing` status and request."""
        expires = self._expires(item) if self.over else item.expires_at
        rules = item.data_class
        return (
            self.tenant_id, artifact_id, item.given_id, rules.name, rules.version, item.store, item.locator_hash,
            sealed, *people, *standing, item.anonymised, _activity(item.activity), item.source_type,
            item.verification, item.confidence, item.digest, self.created, bulk.instant(item.observed_at),
            bulk.instant(expires), self._end(item, expires), self.acting.token_id,
        )  # fmt: skip

    def _expires(self, item: Item) -> datetime | None:
        """Its own end; working state ends with its run."""
        over = self.over.get(item.run) if item.run is not None and item.data_class.state == working.WORKING else None
        return min((at for at in (item.expires_at, over) if at is not None), default=None)

    def _end(self, item: Item, expires: datetime | None) -> int | None:
        """As it stands in the column."""
        rules = item.data_class
        faith = None if rules.decay is None else item.confidence
        if item.observed_at is not None or expires is not None or faith is not None:
            dates = Dates(created=self.now, observed=item.observed_at, expires=expires, confidence=faith)
            return bulk.instant(self.ends_at(rules, dates))
        if rules.name not in self.plain_ends:
            self.plain_ends[rules.name] = bulk.instant(self.ends_at(rules, Dates(created=self.now)))
        return self.plain_ends[rules.name]

    def _scope_rows(self, artifact_id: int, item: Item) -> list[tuple[Any, ...]]:
        scope = set(item.scope.items())
        if item.run is not None and item.data_class.state == working.WORKING:
            scope.add((working.SCOPE, item.run))  # beside what the caller's own scope may call a run
        return [(self.tenant_id, self.lookups.scope(name, value), ARTIFACT, artifact_id) for name, value in scope]

    def _insert_edges(self, wanted: Mapping[int, set[Parent]], present: Mapping[int, set[Parent]]) -> None:
        rows = [
            (self.tenant_id, child, parent.kind, parent.number)
            for child, parents in wanted.items()
            for parent in sorted(parents - present.get(child, set()))
        ]
        bulk.insert(self.session, Derivation, ("tenant_id", "child", "parent_kind", "parent"), rows)

    def _write_repeats(self, full: Mapping[int, Members], requests: Mapping[int, str]) -> None:
        """Lines whose artifact exists, before this batch or since an earlier line of it."""
        repeats = [(line, item) for line, item in self._open() if not line.first]
        edges: dict[int, set[Parent]] = {}
        for line, item in repeats:
            edges.setdefault(line.node, set()).update(line.parents)
            name = line.known.name if line.known is not None else self._name_of_new(item)
            if line.node in requests:
                line.result = _erased(name, requests[line.node])
            elif line.known is None or not (wanted := self._changes(line, item)):
                line.result = {"id": name, "status": "exists"}
            elif self._is_own(line) and not self._needs_a_human(line.known, item):
                told = self._apply(line, line.known, item)
                line.result = {"id": name, "status": "changed" if "data_class" in told else "exists"}
                line.result |= {"changed": told} if told else {}
            else:
                open_review(self.session, self.tenant_id, line.node, wanted, self.acting.token_id, now=self.now)
                line.result = {"id": name, "status": "review"}
        present = parents_of(self.session, self.tenant_id, edges)
        self._insert_edges(edges, present)
        self._note_claims(repeats, present)
        known = {line.node: line.known for line, _ in repeats if line.known is not None}
        former = full_sets(self.session, self.tenant_id, known)
        grown = {node: full[node] for node in known if full[node] != former[node]}
        write_sets(self.session, self.tenant_id, grown, self.now)
        changed = spread(self.session, self.tenant_id, grown, self.now, limit=INLINE)
        ours = {node for node, one in known.items() if one.registered_by == self.acting.token_id}
        mark_erasing(self.session, self.tenant_id, {node: requests[node] for node in ours if node in requests})
        mark_fenced(self.session, self.tenant_id, changed)
        self.session.expire_all()

    def _note_claims(self, repeats: Sequence[tuple[_Line, Item]], present: Mapping[int, set[Parent]]) -> None:
        """Sources that another token adds are claims; those that the item's own token names are not any more."""
        claimed: set[Edge] = set()
        settled: set[Edge] = set()
        for line, _ in repeats:
            if line.known is None:
                continue
            known = present.get(line.node, set())
            edges = {Edge(line.node, one.kind, one.number) for one in line.parents}
            old = {Edge(line.node, one.kind, one.number) for one in known}
            if self._is_own(line):
                settled |= edges & old
            else:
                claimed |= edges - old
        note_claims(self.session, self.tenant_id, claimed, self.acting.token_id, self.now)
        settle_claims(self.session, self.tenant_id, settled)

    def _name_of_new(self, item: Item) -> str:
        line = self.new_places[item.store, item.locator_hash]
        given = line.item.given_id if line.item is not None else None
        return given or artifact_name(line.node)

    def _changes(self, line: _Line, item: Item) -> dict[str, Any]:
        """What a repeat would change of an existing artifact, other than adding sources."""
        known = line.known
        if known is None:
            return {}
        wanted: dict[str, Any] = dict(line.held)
        if _overwrites(known, item):
            wanted["overwrite"] = {
                "source_type": item.source_type,
                "verification": item.verification,
                "confidence": item.confidence,
                "digest": None if item.digest is None else item.digest.hex(),
                "observed_at": None if item.observed_at is None else item.observed_at.isoformat(),
            }
        if item.data_class.name != known.data_class:
            wanted["data_class"] = item.data_class.name
        if new := line.subjects - self.sets[known.set_id]:
            wanted["subjects"] = sorted(new)
        if item.expires_at is not None and (known.dates.expires is None or item.expires_at < known.dates.expires):
            wanted["expires_at"] = item.expires_at.isoformat()
        return wanted

    def _needs_a_human(self, known: Known, item: Item) -> bool:
        """What the item's own token may not do alone.

        An inference never takes the place of a statement by being newer; another class never ends an item earlier, nor
        keeps it from being erased.
        """
        if _overwrites(known, item) and not may_overwrite(known.source_type, known.verification, item.source_type):
            return True
        if item.data_class.name == known.data_class:
            return False
        former = self.classes.get(known.data_class)
        if former is None or _is_weaker(item.data_class, former):
            return True
        end, was = self._end_as(known, item, item.data_class), self._end_as(known, None, former)
        return end is not None and (was is None or end < was)

    def _end_as(self, known: Known, item: Item | None, data_class: DataClass) -> datetime | None:
        """The end that an existing item has in a class, with the dates that a repeat brings, and its value's if new."""
        dates = known.dates
        if item is not None:
            earliest = _earliest(dates.expires, item.expires_at)
            dates = replace(dates, observed=item.observed_at or dates.observed, expires=earliest)
            if _overwrites(known, item):
                dates = replace(dates, confidence=item.confidence, confirmed=None)
        return self.ends_at(data_class, dates)

    def _overwrite(self, line: _Line, item: Item) -> None:
        """Another value at the place of a memory: what stood there before goes into its change log."""
        row = self.session.get_one(Artifact, (self.tenant_id, line.node))
        before = memory_log.facts_of(row)
        row.digest, row.source_type, row.verification = item.digest, item.source_type, item.verification
        row.confidence, row.observed_at, row.confirmed_at = item.confidence, item.observed_at, None
        row.sealed = self.seals.seal(row.holder_no, LABEL, str(row.id), item.details)
        after = memory_log.facts_of(row)
        change = memory_log.overwritten(before, after, self.acting.principal)
        self.session.add(row)
        memory_log.note(self.session, self.vault, row, change, self.now)

    def _apply(self, line: _Line, known: Known, item: Item) -> dict[str, Any]:
        """Correct an item as the token that registered it: add people, change class or value, end it earlier.

        Returns what is different now, old and new, so that nobody changes an item without being told.
        """
        if _overwrites(known, item):
            self._overwrite(line, item)
        own = members(self.session, self.tenant_id, (known.own_set_id,))[known.own_set_id] | line.subjects
        dates = known.dates
        ends = self._end_as(known, item, item.data_class)
        self.session.connection().execute(
            sa.update(Artifact)
            .where(col(Artifact.tenant_id) == self.tenant_id, col(Artifact.id) == known.id)
            .values(
                data_class=item.data_class.name,
                class_version=item.data_class.version,
                own_set_id=intern_sets(self.session, self.tenant_id, (own,), self.now)[own],
                expires_at=_earliest(dates.expires, item.expires_at),
                observed_at=item.observed_at or dates.observed,
                ends_at=None if item.data_class.keep_from == CONSENT else ends,
            )
        )
        former = self.classes.get(known.data_class)
        was = None if former is None else self._end_as(known, None, former)
        changed: dict[str, Any] = {}
        if item.data_class.name != known.data_class:
            changed["data_class"] = {"old": known.data_class, "new": item.data_class.name}
        if ends != was:
            changed["ends_at"] = {"old": _text(was), "new": _text(ends)}
        if new := line.subjects - self.sets[known.set_id]:
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


def _overwrites(known: Known, item: Item) -> bool:
    """Whether the same place of a memory now holds another value than the one registered."""
    return item.data_class.state == "memory" and known.digest is not None and item.digest not in (None, known.digest)


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


def _sort_source(source: Source, places: dict[str, set[bytes]], names: set[str], entries: set[bytes]) -> None:
    if isinstance(source.key, bytes):
        entries.add(source.key)
    elif isinstance(source.key, str):
        names.add(source.key)
    else:
        places.setdefault(source.key[0], set()).add(source.key[1])


def _erased(name: str, request: str) -> dict[str, Any]:
    return {"id": name, "status": "erased", **({"request": request} if request else {})}
