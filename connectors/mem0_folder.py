"""A folder of mem0: its history database, and its collections, in a folder of Qdrant or Chroma or in PostgreSQL.

Guarantees: what a memory is lies in four places, and `traces` finds all of them by the memory's id: its point, the
events of its history (each with the old and the new text, a deletion too), entities that link to it, and, by the scope
of the point, the raw turns that mem0 keeps. Scopes are compared whole, as mem0 writes them.
Source: mem0ai 2.2.1 (memory/storage.py, memory/main.py); reference/store-recipes.md §2.6.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from connectors.base import MEM0_ELSEWHERE
from connectors.errors import BadLocator, StoreUnreachable, WrongCredentials
from connectors.qdrant import Points, locked
from connectors.sqlite_file import opened

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from connectors.base import Deadline
    from connectors.mem0_chroma import Collections
    from connectors.mem0_tables import Tables
    from connectors.vector_store import Point, PointId

TURNS = "messages/"
"""How a locator names the raw turns of a scope instead of a memory: `messages/user_id=mia`."""
HISTORY = "history.db"
_ENTITIES = "_entities"
_LINKS = "linked_memory_ids"
_SCOPE = ("agent_id", "run_id", "user_id")
_TABLES = {"history": {"memory_id", "old_memory", "new_memory"}, "messages": {"session_scope", "content"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One point, and where it lies."""

    store: Points | Tables | Collections
    collection: str
    point: Point


@dataclass(slots=True, kw_only=True)
class Traces:
    """Everything that is there under one memory's id."""

    points: list[Place] = field(default_factory=list)
    links: list[Place] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.points or self.links or self.events)

    @property
    def scopes(self) -> set[str]:
        """Return the scopes of the raw turns that the memory was made of."""
        return {scope_of(place.point.payload) for place in self.points} - {""}


class Mem0Folder:
    """What lies in one folder, for the length of one call."""

    def __init__(
        self, path: Path, owner: Callable[[Point], str | None], limit: Deadline, *, own: tuple[Path, str] | None = None,
        tables: Tables | Collections | None = None,
    ) -> None:  # fmt: skip
        self._path = path
        self._limit = limit
        self._own = own
        self.folders: list[Path] = []
        self._stores: list[Points | Tables | Collections] = []
        if tables is not None:
            self._stores.append(tables)
            return
        try:
            inside = [path, *sorted(each for each in path.iterdir() if each.is_dir())]
            self.folders = [each for each in inside if _is_qdrant(each)]
        except PermissionError:
            raise WrongCredentials("mem0", "the folder, or one in it, may not be read") from None
        except OSError:
            raise StoreUnreachable("mem0", "there is no such folder") from None
        if not self.folders:
            why = "no folder of Qdrant's local mode lies in it or directly below it"
            raise StoreUnreachable("mem0", f"{why}; {MEM0_ELSEWHERE}")
        self._stores += [
            Points(each, own[1] if own is not None and own[0] == each else None, owner, limit) for each in self.folders
        ]

    def alone(self) -> AbstractContextManager[object]:
        """Hold the lock of every collection folder, where there is one.

        Raises: StoreUnreachable, WrongCredentials, Timeout.
        """
        stack = ExitStack()
        for folder in self.folders:
            stack.enter_context(locked(folder, self._limit))
        return stack

    def history(self, *, write: bool) -> AbstractContextManager[sqlite3.Connection]:
        """Open the history database. Raises: StoreUnreachable, WrongCredentials, Timeout."""
        return opened("mem0", self._path / HISTORY, self._limit, write=write)

    def check(self) -> None:
        """Pass where the tables are mem0's. Raises: StoreUnreachable."""
        with self.history(write=False) as connection:
            for table, columns in _TABLES.items():
                there = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
                if not columns <= there:
                    raise StoreUnreachable("mem0", "the history database has not the tables of mem0")
        self.collections()

    def collections(self) -> list[tuple[Points | Tables | Collections, str]]:
        """Return every collection. Raises: StoreUnreachable, WrongCredentials."""
        return [(store, name) for store in self._stores for name in store.collections()]

    def memories(self) -> Iterator[Place]:
        """Yield every point that is a memory."""
        yield from self._places(entities=False)

    def entities(self) -> Iterator[Place]:
        """Yield every entity."""
        yield from self._places(entities=True)

    def _places(self, *, entities: bool) -> Iterator[Place]:
        for store, name in self.collections():
            if name.endswith(_ENTITIES) is entities:
                for page in store.pages(name):
                    yield from (Place(store=store, collection=name, point=point) for point in page)

    def traces(self, ids: Sequence[str]) -> dict[str, Traces]:
        """Return what there is of each id; of every one an answer. Raises: StoreUnreachable, Timeout."""
        found = {identity: Traces() for identity in ids}
        for store, name in self.collections():
            if not name.endswith(_ENTITIES):
                for identity, points in store.read(name, ids).items():
                    found[str(identity)].points += [Place(store=store, collection=name, point=each) for each in points]
        for place in self.entities():
            for identity in links_of(place.point):
                if identity in found:
                    found[identity].links.append(place)
        with self.history(write=False) as connection:
            columns = [row[1] for row in connection.execute("PRAGMA table_info(history)")]
            named = columns.index("memory_id")
            for start in range(0, len(ids), 500):
                part = list(ids[start : start + 500])
                marks = ", ".join("?" * len(part))
                for row in connection.execute(f"SELECT * FROM history WHERE memory_id IN ({marks})", part):
                    found[row[named]].events.append(dict(zip(columns, row, strict=True)))
        return found

    def remembered(self) -> Iterator[str]:
        """Yield every id that the history has events of."""
        with self.history(write=False) as connection:
            rows = connection.execute("SELECT DISTINCT memory_id FROM history WHERE memory_id IS NOT NULL").fetchall()
        yield from (str(row[0]) for row in rows)

    def turns(self) -> dict[str, list[dict[str, Any]]]:
        """Return the raw turns by scope; mem0 keeps ten of each."""
        found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        with self.history(write=False) as connection:
            columns = [row[1] for row in connection.execute("PRAGMA table_info(messages)")]
            for row in connection.execute("SELECT * FROM messages ORDER BY rowid"):
                turn = dict(zip(columns, row, strict=True))
                found[str(turn["session_scope"] or "")].append(turn)
        return dict(found)

    def forget(self, connection: sqlite3.Connection, ids: Sequence[str], scopes: Sequence[str]) -> None:
        """Delete the history of these ids and the turns of these scopes, in one transaction."""
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("DELETE FROM history WHERE memory_id = ?", [(each,) for each in ids])
        connection.executemany(
            "DELETE FROM messages WHERE coalesce(session_scope, '') = ?", [(each,) for each in scopes]
        )
        connection.execute("COMMIT")

    @staticmethod
    def unlink(entities: Iterable[Place], ids: frozenset[str]) -> None:
        """Take ids out of entities; one goes with its last link."""
        for store, collection, places in _grouped(entities):
            left = {place.point.id: [each for each in links_of(place.point) if each not in ids] for place in places}
            kept = [place.point for place in places if left[place.point.id]]
            store.change_payloads(collection, {point.id: {**point.payload, _LINKS: left[point.id]} for point in kept})
            store.delete(collection, [identity for identity, links in left.items() if not links], None)

    @staticmethod
    def delete(points: Iterable[Place], owners: frozenset[str] | None) -> None:
        """Delete points, where `owners` is given only such that name one of them."""
        for store, collection, places in _grouped(points):
            store.delete(collection, [place.point.id for place in places], owners)


def _grouped(places: Iterable[Place]) -> Iterator[tuple[Points | Tables | Collections, str, list[Place]]]:
    """Yield the places of each collection, each once."""
    found: defaultdict[tuple[int, str], dict[PointId, Place]] = defaultdict(dict)
    for place in places:
        found[id(place.store), place.collection][place.point.id] = place
    for (_, collection), members in found.items():
        several = list(members.values())
        yield several[0].store, collection, several


def links_of(entity: Point) -> list[str]:
    """Return the ids of the memories that an entity links to."""
    links = entity.payload.get(_LINKS) if isinstance(entity.payload, Mapping) else None
    return [str(each) for each in links] if isinstance(links, list) else []


def scope_of(payload: object) -> str:
    """Return the scope that mem0 files the turns of such a memory under; "" for none."""
    if not isinstance(payload, Mapping):
        return ""
    return "&".join(f"{name}={_escaped(payload[name])}" for name in _SCOPE if payload.get(name))


def member_of(scope: str, name: str) -> str | None:
    """Return a scope's member of this name, as it was before it was escaped."""
    for part in scope.split("&"):
        key, _, value = part.partition("=")
        if key == name:
            return value.replace("%3D", "=").replace("%26", "&").replace("%25", "%")
    return None


def identified(given: object) -> str:
    """Return a memory's id in its one spelling, or the name of a scope's turns. Raises: BadLocator."""
    if isinstance(given, str) and given.startswith(TURNS) and "\0" not in given:
        return given
    try:
        return str(UUID(str(given))) if isinstance(given, str) else _refused()
    except ValueError:
        return _refused()


def _refused() -> str:
    raise BadLocator("memory_id is a UUID, or messages/ and a scope")


def _escaped(value: object) -> str:
    return str(value).replace("%", "%25").replace("&", "%26").replace("=", "%3D")


def _is_qdrant(folder: Path) -> bool:
    try:
        described = json.loads((folder / "meta.json").read_bytes())
    except PermissionError:
        raise
    except (OSError, ValueError):
        return False
    return isinstance(described, dict) and "collections" in described
