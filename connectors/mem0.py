"""Kind `mem0`: memories of mem0's open-source library, with their history, entities and raw turns.

Config: `{"path": absolute folder, "owner_field"?: member of the memory's payload, as user_id, "vector_store"?:
"qdrant" | "chroma" | "pgvector"}`. The folder holds `history.db` and, in itself or directly below, the folder of
Qdrant's local mode, mem0's default, or with "chroma" that of Chroma. With "pgvector" the memories lie in PostgreSQL:
`{"url": "postgresql+psycopg://…", "wal_retention"?, "statement_timeout"?}` beside the folder of the history.
Locator: `{"memory_id"}`; `messages/` and a scope names the raw turns of a scope alone.

Guarantees, beyond the contract of `base`: every memory is found, not the first twenty; expired ones too. With a memory
go its history (mem0's own delete writes the deleted text there once more), links of entities and entities without any
other link, and the raw turns of its scope, where that scope is the owner's alone. Turns of a scope that several people
share are left, said in the receipt, and keep being found by `verify`. Leaves first, the point last, so a crash leaves
the memory's owner readable. Over Qdrant under the folder's lock: an application has to close its client meanwhile.
Works without mem0's package. Not covered: other vector stores behind mem0, graphs, log files, mem0's telemetry.
Source: reference/store-recipes.md §2.6.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from typing_extensions import override

from connectors.apart import done_apart
from connectors.base import (
    MEM0_ELSEWHERE,
    MEM0_VECTORS,
    Capabilities,
    CheckReport,
    Connector,
    Deadline,
    FenceReport,
    Finding,
    Item,
    Level,
    Locator,
    Outcome,
    Receipt,
    ReclaimReport,
    Residue,
    Selector,
    owner_forms,
)
from connectors.checking import check_report, try_out
from connectors.errors import (
    BadConfig,
    BadLocator,
    ConnectorError,
    DriverMissing,
    ReadOnlyConnector,
    StoreUnreachable,
)
from connectors.mem0_folder import (
    HISTORY,
    TURNS,
    Mem0Folder,
    Place,
    Traces,
    identified,
    links_of,
    member_of,
    scope_of,
)
from connectors.own_files import files_below
from connectors.qdrant import Points, pickled_forms, remove_collection, write_collection
from connectors.residue import Hits, Needles, samples
from connectors.serialized import shown
from connectors.sql_answers import Answer
from connectors.sqlite_file import rewrite
from connectors.vector_store import Point, VectorConfig, owner_named, payload_texts, report, vector_config
from connectors.vectors import forms

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from connectors.mem0_chroma import Collections
    from connectors.mem0_tables import Link, Tables

BATCH = 500
_CANARIES = 64
_METHOD = "VACUUM of the history and of every collection"
_EVIDENCE = {"mem0": "vacuumed"}
_READ_BY_OTHERS = "another process reads the history: its log stays"
_LOCKS = "the folder: no process may have mem0 open while memories are erased and freed"
_UNPROVEN = "the files were not rewritten, so free pages may hold memories"
_BACKUPS = "logs, snapshots and backups of the folder cannot be read here"


def open_store(config: Mapping[str, Any], *, read_only: bool) -> Mem0Connector:
    """Return the connector of a folder. Raises: BadConfig, DriverMissing."""
    vectors = config.get("vector_store", MEM0_VECTORS[0])
    if vectors not in MEM0_VECTORS:
        raise BadConfig(MEM0_ELSEWHERE)
    elsewhere = {"url", "wal_retention", "statement_timeout"} if vectors == "pgvector" else set()
    own = {name: value for name, value in config.items() if name != "vector_store" and name not in elsewhere}
    read = vector_config(own)
    if read.path is None:
        raise BadConfig("path is missing")
    link = None
    if vectors == "pgvector":
        link = _link({name: config[name] for name in elsewhere & set(config)})
    return Mem0Connector(read, read.path, link, read_only=read_only, is_chroma=vectors == "chroma")


def _link(config: Mapping[str, Any]) -> Link:
    """Return the way to mem0's tables. Raises: BadConfig, DriverMissing."""
    try:
        # Imported here, so that mem0 over Qdrant needs no driver of PostgreSQL.
        from connectors.mem0_tables import Link
        from connectors.sql import open_database
        from connectors.sql_postgres import PostgresDatabase
    except ModuleNotFoundError as missing:
        raise DriverMissing("mem0", "psycopg[binary]") from missing
    database = open_database(config)
    if not isinstance(database, PostgresDatabase):
        raise BadConfig("url is of postgresql+psycopg://")
    return Link(database)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What an erasure found, and what is to go: ids of memories and scopes of turns."""

    traces: Mapping[str, Traces]
    turns: Mapping[str, Sequence[Mapping[str, Any]]]
    wanted: list[str]
    scopes: list[str]
    shared: frozenset[str]
    """Memories of which the turns stay, because their scope is not the owner's alone."""


class Mem0Connector(Connector):
    """Drives one folder."""

    def __init__(
        self, config: VectorConfig, path: Path, link: Link | None, *, read_only: bool, is_chroma: bool = False
    ) -> None:
        self._owner_field = config.owner_field
        self._path = path
        self._link = link
        self._is_chroma = is_chroma
        self._read_only = read_only
        self._own: tuple[Path, str] | None = None

    def _folder(self, limit: Deadline) -> Mem0Folder:
        folder = Mem0Folder(self._path, self._owner, limit, own=self._own, tables=self._tables(limit))
        folder.check()
        return folder

    def _tables(self, limit: Deadline) -> Tables | Collections | None:
        """Return mem0's collections where its memories lie in PostgreSQL or in Chroma."""
        if self._is_chroma:
            return self._chroma(limit)
        if self._link is None:
            return None
        # The module is there: the link is made of it.
        from connectors.mem0_tables import Tables

        return Tables(self._link, self._owner, limit)

    def _chroma(self, limit: Deadline) -> Collections:
        try:
            from connectors.mem0_chroma import Collections, chroma_below
        except ModuleNotFoundError as missing:
            raise DriverMissing("mem0", "muniment-server[chroma]") from missing
        own = None if self._own is None else self._own[1]
        return Collections(chroma_below(self._path), self._owner_field, limit, own=own)

    def _owner(self, point: Point) -> str | None:
        return owner_named(point.payload, str(self._owner_field))

    @override
    def capabilities(self) -> Capabilities:
        owner = self._owner_field is not None
        return Capabilities(
            kind="mem0", erase_level=Level.L1, reclaim_level=Level.L2, verify_level=Level.L2, batch_size=BATCH,
            locks=self._locks(),
            fence=False, search=False, owner_check=owner, discover=owner, read_only=self._read_only,
        )  # fmt: skip

    def _locks(self) -> str:
        if self._is_chroma:
            return "the history and Chroma's database while they are rewritten; other processes open collections anew"
        return _LOCKS if self._link is None else f"the history; {self._link.database.locks}"

    @override
    def check_locator(self, locator: Locator) -> None:
        _named(locator)
        self._folder(Deadline("check_locator", 10))

    @override
    def discover(self, selector: Selector, *, deadline: float) -> Iterator[dict[str, Any]]:
        if self._owner_field is None:
            raise BadConfig("discover needs owner_field")
        limit = Deadline("discover", deadline)
        wanted, seen, filed = owner_forms(selector.identifiers), set(), set()
        folder = self._folder(limit)
        for place in folder.memories():
            limit.check()
            if self._owner(place.point) in wanted:
                seen.add(str(place.point.id))
                filed.add(scope_of(place.point.payload))
        for place in folder.entities():
            # What mem0 deleted keeps its entities, where they were not open in that process.
            if self._owner(place.point) in wanted:
                seen |= set(links_of(place.point))
        # Turns go with the memories of their scope; where there is none any more they are named.
        alone = set(folder.turns()) - filed
        seen |= {f"{TURNS}{scope}" for scope in alone if member_of(scope, self._owner_field) in wanted}
        yield from ({"memory_id": identity} for identity in sorted(seen))

    @override
    def walk(self, *, deadline: float) -> Iterator[dict[str, Any]]:
        folder = self._folder(Deadline("walk", deadline))
        seen = {str(place.point.id) for place in folder.memories()} | set(folder.remembered())
        seen |= {identity for place in folder.entities() for identity in links_of(place.point)}
        seen |= {f"{TURNS}{scope}" for scope in folder.turns()}
        yield from ({"memory_id": identity} for identity in sorted(seen))

    @override
    def capture(self, items: Sequence[Item], *, deadline: float) -> dict[str, list[bytes]]:
        limit = Deadline("capture", deadline)
        folder = self._folder(limit)
        names = {item.copy_id: _named(item.locator) for item in items}
        ids = frozenset(name for name in names.values() if not name.startswith(TURNS))
        traces, turns = folder.traces(sorted(ids)), folder.turns()
        candidates: list[tuple[str, bytes, tuple[bytes, ...]]] = []
        for copy, name in names.items():
            pieces = dict.fromkeys(self._pieces(name, traces.get(name), turns, ids))
            candidates += [(copy, *piece) for piece in pieces]
        scopes = {name.removeprefix(TURNS) for name in names.values() if name.startswith(TURNS)}
        scopes |= {scope for each in traces.values() for scope in each.scopes}
        stays = self._staying(folder, ids, {scope: each for scope, each in turns.items() if scope not in scopes})
        shared = {number for number, _ in Needles([probe for _, probe, _ in candidates]).count_chunks(stays, limit)}
        held: dict[str, list[bytes]] = {item.copy_id: [] for item in items}
        for number, (copy, _, canaries) in enumerate(candidates):
            if number not in shared and len(held[copy]) < _CANARIES:
                held[copy] += canaries
        return held

    def _pieces(
        self, name: str, traces: Traces | None, turns: Mapping[str, Sequence[Mapping[str, Any]]], ids: frozenset[str]
    ) -> Iterator[tuple[bytes, tuple[bytes, ...]]]:
        """Yield what to look for: vectors, then texts of the memory, its history, its entities and its turns."""
        scopes = {name.removeprefix(TURNS)} if traces is None else traces.scopes
        going = [] if traces is None else [*traces.points, *(each for each in traces.links if _goes(each, ids))]
        contents: list[object] = [each.get("content") for scope in scopes for each in turns.get(scope, ())]
        for place in going:
            contents.append({name: each for name, each in place.point.payload.items() if name != self._owner_field})
            for vector in place.point.vectors:
                if found := forms(vector):
                    yield found[0], (*found, *pickled_forms(vector))
        if traces is not None:
            contents += [[event["old_memory"], event["new_memory"]] for event in traces.events]
        pieces = {piece for content in contents for text in payload_texts(content) for piece in samples(text)}
        # Ids and scopes are places, not content: they stay in other rows for other reasons.
        pieces -= {each.encode() for each in (*ids, *scopes)}
        for piece in sorted(pieces, key=lambda piece: (-len(piece), piece)):
            yield piece, (piece,)

    @staticmethod
    def _staying(
        folder: Mem0Folder, ids: frozenset[str], turns: Mapping[str, Sequence[Mapping[str, Any]]]
    ) -> Iterator[bytes]:
        """Yield the content of everything that stays."""
        for place in folder.memories():
            if str(place.point.id) not in ids:
                yield from place.point.content()
        for place in folder.entities():
            if not _goes(place, ids):
                yield from place.point.content()
        others = [identity for identity in folder.remembered() if identity not in ids]
        for start in range(0, len(others), BATCH):
            for traces in folder.traces(others[start : start + BATCH]).values():
                for event in traces.events:
                    yield from (piece + b"\0" for piece in payload_texts([event["old_memory"], event["new_memory"]]))
        for each in turns.values():
            yield from (piece + b"\0" for turn in each for piece in payload_texts(turn.get("content")))

    @override
    def export(self, items: Sequence[Item], *, deadline: float) -> Iterator[tuple[str, bytes | None]]:
        limit = Deadline("export", deadline)
        folder = self._folder(limit)
        turns = folder.turns()
        for item in items:
            limit.check()
            name = _named(item.locator)
            content: dict[str, Any] = {}
            if name.startswith(TURNS):
                content = {"messages": turns.get(name.removeprefix(TURNS), [])}
            elif traces := folder.traces([name])[name]:
                content = {
                    "memory": [place.point.payload for place in traces.points],
                    "history": traces.events,
                    "entities": [place.point.payload for place in traces.links],
                }
            found = any(content.values())
            yield item.copy_id, json.dumps(shown(content), ensure_ascii=False).encode() if found else None

    @override
    def fence(self, scope: Locator) -> FenceReport:
        return FenceReport(held=False, detail="mem0 cannot refuse writes of a scope; late memories are looked for")

    @override
    def erase(
        self, items: Sequence[Item], *, owner_identifiers: Sequence[str], now: datetime, deadline: float
    ) -> list[Receipt]:
        if self._read_only:
            raise ReadOnlyConnector("erase")
        limit = Deadline("erase", deadline)
        wanted = owner_forms(owner_identifiers)
        names: dict[int, str] = {}
        answers: dict[int, Answer] = {}
        for number, item in enumerate(items):
            try:
                names[number] = _named(item.locator)
            except BadLocator as bad:
                answers[number] = Outcome.FAILED, bad.detail
        folder = self._folder(limit)
        with folder.alone():
            unique = list(dict.fromkeys(names.values()))
            for start in range(0, len(unique), BATCH):
                part = unique[start : start + BATCH]
                if limit.is_over():
                    given: dict[str, Answer] = dict.fromkeys(part, (Outcome.FAILED, "not reached before the deadline"))
                else:
                    given = done_apart(part, partial(self._erase_in, folder, wanted=wanted), limit)
                answers |= {number: given[name] for number, name in names.items() if name in given}
        at = now + timedelta(seconds=limit.spent())
        return [_receipt(item, answers[number], at) for number, item in enumerate(items)]

    def _erase_in(self, folder: Mem0Folder, names: Sequence[str], wanted: frozenset[str]) -> dict[str, Answer]:
        """1. find and judge; 2. turns and history; 3. entities; 4. points; 5. look again. Raises: ConnectorError."""
        ids = [name for name in names if not name.startswith(TURNS)]
        traces, turns = folder.traces(ids), folder.turns()
        answers = {name: self._judge(traces[name], wanted) for name in ids}
        for name in names:
            if name.startswith(TURNS):
                answers[name] = self._judge_turns(name.removeprefix(TURNS), turns, wanted)
        work = self._work(folder, answers, traces, turns, wanted)  # 1
        if not work.wanted and not work.scopes:
            return answers
        with folder.history(write=True) as connection:
            folder.forget(connection, work.wanted, work.scopes)  # 2
        folder.unlink((link for name in work.wanted for link in traces[name].links), frozenset(work.wanted))  # 3
        points = (place for name in work.wanted for place in traces[name].points)
        folder.delete(points, None if self._owner_field is None else wanted)  # 4
        again, left = folder.traces(work.wanted), folder.turns()  # 5
        for name, (outcome, detail) in list(answers.items()):
            if outcome is Outcome.ERASED and (again.get(name) or name.removeprefix(TURNS) in left):
                answers[name] = Outcome.FAILED, "there when read again: written while it was erased"
            elif name in work.shared:
                answers[name] = outcome, f"{detail}; raw turns of a scope that is not the owner's alone were left"
        return answers

    def _work(
        self, folder: Mem0Folder, answers: Mapping[str, Answer], traces: Mapping[str, Traces],
        turns: Mapping[str, Sequence[Mapping[str, Any]]], wanted: frozenset[str],
    ) -> _Work:  # fmt: skip
        going = [name for name, (outcome, _) in answers.items() if outcome is Outcome.ERASED]
        ids = [name for name in going if not name.startswith(TURNS)]
        scopes = {name.removeprefix(TURNS) for name in going if name.startswith(TURNS)}
        owned = self._owned(folder, {name: traces[name] for name in ids}, frozenset(turns), wanted)
        shared = set()
        for name in ids:
            scopes |= traces[name].scopes & owned
            shared |= {name} if (traces[name].scopes & set(turns)) - owned else set()
            if not traces[name].points and self._owner_field is not None:
                # mem0 deleted the point, and with it the only word of the scope: those that name the owner go.
                scopes |= {scope for scope in owned if member_of(scope, self._owner_field) in wanted}
        return _Work(traces=traces, turns=turns, wanted=ids, scopes=sorted(scopes), shared=frozenset(shared))

    def _owned(
        self, folder: Mem0Folder, traces: Mapping[str, Traces], filed: frozenset[str], wanted: frozenset[str]
    ) -> set[str]:
        """Return the scopes of turns that are one person's: they name the owner, or all of their memories do."""
        asked = {scope for each in traces.values() for scope in each.scopes} & filed
        named: dict[str, str | None] = {}
        if self._owner_field is not None:
            named = {scope: member_of(scope, self._owner_field) for scope in filed}
        doubtful = {scope for scope in asked if named.get(scope) is None}
        strangers = set()
        for place in folder.memories() if doubtful else ():
            scope = scope_of(place.point.payload)
            is_hers = str(place.point.id) in traces if self._owner_field is None else self._owner(place.point) in wanted
            if scope in doubtful and not is_hers:
                strangers.add(scope)
        return {scope for scope, owner in named.items() if owner in wanted} | (doubtful - strangers)

    def _judge(self, traces: Traces, wanted: frozenset[str]) -> Answer:
        if not traces:
            return Outcome.ALREADY_ABSENT, "no point, event or link of the memory"
        counted = f"{len(traces.points)} points, {len(traces.events)} events, links of {len(traces.links)} entities"
        if self._owner_field is None:
            return Outcome.ERASED, f"deleted by id and read again: {counted}"
        people = {self._owner(place.point) for place in traces.points}
        if people - wanted:
            return Outcome.OWNER_MISMATCH, "the memory names another owner, or none"
        linked = {self._owner(place.point) for place in traces.links} - {None}
        if not traces.points and linked - wanted:
            return Outcome.OWNER_MISMATCH, "entities of the memory name another owner"
        if not traces.points:
            return Outcome.ERASED, f"what mem0's delete left, deleted by id and read again: {counted}"
        return Outcome.ERASED, f"deleted by id and read again: {counted}"

    def _judge_turns(self, scope: str, turns: Mapping[str, Sequence[Any]], wanted: frozenset[str]) -> Answer:
        if scope not in turns:
            return Outcome.ALREADY_ABSENT, "no raw turn of the scope"
        if self._owner_field is not None and member_of(scope, self._owner_field) not in wanted:
            return Outcome.OWNER_MISMATCH, "the scope names another owner, or none"
        return Outcome.ERASED, f"{len(turns[scope])} raw turns deleted by scope and read again"

    @override
    def await_done(self, *, deadline: float) -> bool:
        return True

    @override
    def reclaim(self, level: Level, *, now: datetime, deadline: float) -> ReclaimReport:
        if self._read_only:
            raise ReadOnlyConnector("reclaim")
        if level <= Level.L1:
            return report(Level.L1, "nothing was reclaimed", "none")
        limit = Deadline("reclaim", deadline)
        folder = self._folder(limit)
        with folder.alone():
            with folder.history(write=True) as connection:
                is_whole = rewrite(connection)
            tables = self._tables(limit)
            if tables is not None:
                return _joined(tables.reclaim(level, now), is_whole=is_whole)
            collections = folder.collections()
            for store, name in collections:
                is_whole = isinstance(store, Points) and store.vacuum(name) and is_whole
        if not is_whole:
            return report(Level.L1, _READ_BY_OTHERS, _METHOD)
        detail = f"the history and {len(collections)} collections rewritten; disk blocks and copies were not looked at"
        return report(Level.L2, detail, _METHOD, _EVIDENCE)

    @override
    def verify(
        self, items: Sequence[Item], level: Level, *, deadline: float, reclaimed: ReclaimReport | None = None
    ) -> list[Finding]:
        limit = Deadline("verify", deadline)
        folder = self._folder(limit)
        names = [_named(item.locator) for item in items]
        traces, turns = folder.traces([name for name in names if not name.startswith(TURNS)]), folder.turns()
        pairs = [(number, canary) for number, item in enumerate(items) for canary in item.canaries]
        canaries = [canary for _, canary in pairs]
        dirty: set[int] = set()
        if level >= Level.L2:
            dirty = {pairs[number][0] for _, found in self._hits(canaries, limit) for number, _ in found}
        is_freed = reclaimed is not None and "mem0" in reclaimed.evidence
        why, how = None if is_freed else _UNPROVEN, "bytes of every file scanned"
        if level >= Level.L2 and (tables := self._tables(limit)) is not None:
            seen = tables.look(canaries, reclaimed)
            dirty |= {pairs[number][0] for number in seen.found}
            why, how = why or seen.could_not_check, f"{how}; {seen.how}"
        findings = []
        for number, (item, name) in enumerate(zip(items, names, strict=True)):
            is_present = bool(traces.get(name)) or name.removeprefix(TURNS) in turns
            findings.append(_finding(item, level, how, why, is_present=is_present, is_dirty=number in dirty))
        return findings

    @override
    def residue(self, canaries: Sequence[bytes], *, deadline: float) -> list[Residue]:
        limit = Deadline("residue", deadline)
        self._folder(limit)
        found = [
            Residue(where=where, count=count, encoding=encoding, canary=number)
            for where, hits in self._hits(canaries, limit)
            for (number, encoding), count in sorted(hits.items())
        ]
        tables = self._tables(limit)
        return found + tables.residue(canaries) if tables is not None and canaries else found

    def _hits(self, canaries: Sequence[bytes], limit: Deadline) -> list[tuple[str, Hits]]:
        """Return the hits in every file below the folder. Raises: Timeout, StoreUnreachable."""
        wanted = Needles(canaries)
        areas: dict[str, Hits] = {}
        for file in files_below("mem0", self._path):
            kinds = {HISTORY: "history", "storage.sqlite": "collection files"}
            area = next((said for name, said in kinds.items() if file.name.startswith(name)), "other files")
            try:
                with file.open("rb") as stream:
                    areas[area] = areas.get(area, Counter()) + wanted.count(stream, limit)
            except FileNotFoundError:
                continue
            except OSError:
                raise StoreUnreachable("mem0", "a file cannot be read") from None
        return [(area, hits) for area, hits in areas.items() if hits]

    @override
    def check(self, *, now: datetime, deadline: float) -> CheckReport:
        limit = Deadline("check", deadline)
        try:
            with self._scratch(limit) as item:
                return try_out(self, item, limit, now)
        except ConnectorError as problem:
            return check_report(limit, now, reachable=False, problems=[str(problem)])

    @contextmanager
    def _scratch(self, limit: Deadline) -> Iterator[Item]:
        """Give a memory of our own, with history and turns; remove what is left of it at the end."""
        folder = self._folder(limit)
        name, identity, text = f"muniment-check-{secrets.token_hex(8)}", str(uuid4()), secrets.token_hex(16)
        payload = {"data": f"muniment canary {text}", "user_id": "check:self"}
        payload |= {} if self._owner_field is None else {self._owner_field: "check:self"}
        vector = tuple(secrets.randbelow(2000) / 1000 - 1 for _ in range(16))
        home, tables = (folder.folders or [self._path])[0], self._tables(limit)
        try:
            with folder.alone():
                point = Point(id=identity, payload=payload, vectors=(vector,))
                if tables is None:
                    write_collection(home, name, point)
                else:
                    tables.make(name, point)
                self._own = home, name
                with folder.history(write=True) as connection:
                    _write_traces(connection, identity, payload["data"], scope_of(payload))
            yield Item(copy_id="check", locator={"memory_id": identity})
        finally:
            self._own = None
            if tables is None:
                remove_collection(home, name)
            else:
                tables.drop(name)
            with folder.history(write=True) as connection:
                folder.forget(connection, [identity], [])

    @override
    def close(self) -> None:
        if self._link is not None:
            self._link.close()


def _named(locator: Locator) -> str:
    if set(locator) != {"memory_id"}:
        raise BadLocator("a mem0 locator is {memory_id}")
    return identified(locator["memory_id"])


def _goes(entity: Place, ids: frozenset[str]) -> bool:
    return set(links_of(entity.point)) <= ids


def _write_traces(connection: sqlite3.Connection, identity: str, text: str, scope: str) -> None:
    connection.execute(
        "INSERT INTO history (id, memory_id, new_memory, event, is_deleted) VALUES (?, ?, ?, 'ADD', 0)",
        (str(uuid4()), identity, text),
    )
    connection.execute(
        "INSERT INTO messages (id, session_scope, role, content) VALUES (?, ?, 'user', ?)", (str(uuid4()), scope, text)
    )


def _receipt(item: Item, answer: Answer, at: datetime) -> Receipt:
    outcome, detail = answer
    level = Level.L1 if outcome in {Outcome.ERASED, Outcome.ALREADY_ABSENT} else None
    method = "delete by id in collection, entities, history and turns"
    return Receipt(copy_id=item.copy_id, outcome=outcome, level=level, method=method, detail=detail, at=at)


def _finding(
    item: Item, level: Level, looked: str, could_not_check: str | None, *, is_present: bool, is_dirty: bool
) -> Finding:
    how = "looked up by id among points, entities, events and turns"
    if is_present:
        return Finding(copy_id=item.copy_id, level=None, present=True, how=how)
    if level <= Level.L1:
        return Finding(copy_id=item.copy_id, level=Level.L1, present=False, how=how)
    how = f"{how}; {looked}"
    if is_dirty:
        return Finding(copy_id=item.copy_id, level=Level.L1, present=True, how=how)
    if could_not_check is not None:
        return Finding(copy_id=item.copy_id, level=Level.L1, present=None, how=how, could_not_check=could_not_check)
    if level is Level.L3:
        return Finding(copy_id=item.copy_id, level=Level.L2, present=None, how=how, could_not_check=_BACKUPS)
    return Finding(copy_id=item.copy_id, level=Level.L2, present=False, how=how)


def _joined(tables: ReclaimReport, *, is_whole: bool) -> ReclaimReport:
    """Return what was reached in the vector store and in the history together."""
    method = f"VACUUM of the history; {tables.method}"
    if not is_whole:
        return replace(tables, level=Level.L1, detail=f"{_READ_BY_OTHERS}; {tables.detail}", method=method)
    detail = f"the history rewritten; {tables.detail}"
    return replace(tables, detail=detail, method=method, evidence={**tables.evidence, **_EVIDENCE})
