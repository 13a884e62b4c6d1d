"""mem0's history database: old texts of memories, and each scope's last raw turns; its memories in PostgreSQL.

Source: store-recipes.md §2.6; mem0ai 2.2.1 (vector_stores/pgvector.py).

Guarantees: says what `delete_all` leaves here, which is everything: history rows keep the text, a DELETE row repeats
it, and `messages` is not touched at all. The memories themselves lie in a vector store, which is a place of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connectors.scanning.database import Database, Table, Unreadable
from connectors.scanning.langgraph import fields_of
from connectors.scanning.look import Look, time_of
from connectors.scanning.report import DryRun, Place
from connectors.scanning.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SCOPE_OWNERS = ("user_id", "actor_id")
_ENTITIES = "_entities"
_LINKS = "linked_memory_ids"
_MOST_COMPARED = 500_000
"""Ids of memories that are held in memory, to tell which entities have lost all of theirs."""


def is_mem0(db: Database) -> bool:
    """Tell whether the tables are mem0's."""
    return db.has("history", "messages") and (
        db.tables["history"].has("memory_id", "old_memory", "new_memory", "event")
        and db.tables["messages"].has("session_scope", "content")
    )


def scan_mem0(db: Database, look: Look, label: str, config: Mapping[str, Any]) -> Place:
    """Return what history and messages hold."""
    folder = str(config.get("url", "")).removeprefix("sqlite:///").rpartition("/")[0]
    has_chroma = any(found for where in ("", "*/") for found in Path(folder).glob(f"{where}chroma.sqlite3"))
    place = Place(
        what="mem0-history",
        label=label,
        kind="mem0",
        config={"path": folder} | ({"vector_store": "chroma"} if has_chroma else {}),
        data_class="memory",
        ages=look.ages(),
        registrable=False,
    )
    asked = [0, 0]
    for name, scan in (("history", _history), ("messages", _messages)):
        place.parts[name] = 0
        try:
            scan(db, look, place, asked)
        except Unreadable as error:
            place.unread.append(f"{name} after {place.parts[name]} rows: {error}")
    if look.subject is not None:
        place.dry_run = DryRun(items=asked[0], mentions=asked[1])
    if place.parts["messages"]:
        place.leaves.append(f"{place.parts['messages']} raw turns in messages: delete_all does not touch the table")
    if place.parts["history"]:
        place.leaves.append(
            "every text a memory ever had, in history; a delete writes the deleted text there once more"
        )
    return place


def _history(db: Database, look: Look, place: Place, asked: list[int]) -> None:
    deleted: set[str] = set()
    texts: dict[str, int] = {}
    wanted = look.text()
    query = "SELECT memory_id, old_memory, new_memory, event, created_at FROM history"
    for memory, old, new, event, created in db.rows(query):
        place.parts["history"] += 1
        place.rows += 1
        held = f"{old or ''}\0{new or ''}"
        place.bytes += len(held) - 1
        place.ages.add(time_of(created))
        if str(event).upper() == "DELETE":
            deleted.add(str(memory))
        if len(held) > 1:
            texts[str(memory)] = texts.get(str(memory), 0) + 1
        asked[1] += wanted is not None and wanted in held
    why = "their memories were deleted, and their texts lie here; the vector store no longer says whose they were"
    place.orphan("history rows of deleted memories", sum(texts.get(name, 0) for name in deleted), why)


def _messages(db: Database, look: Look, place: Place, asked: list[int]) -> None:
    threads = Threads(look)
    wanted = look.text()
    for scope, content, created in db.rows("SELECT session_scope, content, created_at FROM messages"):
        place.parts["messages"] += 1
        place.rows += 1
        place.bytes += len(content or "")
        place.ages.add(time_of(created))
        pairs = dict(part.split("=", 1) for part in str(scope).split("&") if "=" in part)
        owner = next((pairs[name] for name in _SCOPE_OWNERS if name in pairs), None)
        if owner is None:
            place.nobody += 1
        else:
            place.people.add([owner])
            place.owner_fields["session_scope"] += 1
        threads.add(str(scope), ("session_scope", owner) if owner else None)
        theirs = owner is not None and look.is_subject(owner)
        asked[0] += theirs
        asked[1] += wanted is not None and not theirs and wanted in str(content)
    place.threads = len(threads)


def memory_tables(db: Database) -> list[str]:
    """Return the tables that are collections of mem0's in PostgreSQL: id, vector and payload, and nothing else."""
    return sorted(
        name
        for name, table in db.tables.items()
        if set(table.columns) == {"id", "vector", "payload"}
        and table.key == (table.columns["id"],)
        and _kind(table, "vector").startswith("vector")
        and _kind(table, "payload") == "jsonb"
    )


def _kind(table: Table, column: str) -> str:
    return table.types.get(table.columns[column], "").rpartition(".")[2]


def scan_memories(db: Database, look: Look, label: str, config: Mapping[str, Any], names: Sequence[str]) -> Place:
    """Return what memories and entities hold; their history is a file beside the agent, which no database names."""
    place = Place(
        what="mem0-postgres", label=label, kind="mem0", config={**config, "vector_store": "pgvector"},
        data_class="memory", ages=look.ages(), registrable=False,
        needs="this address and, as path, the folder of history.db, which keeps every text a memory ever had",
    )  # fmt: skip
    asked = [0, 0]
    known = _Known()
    for name in sorted(names, key=lambda name: (name.endswith(_ENTITIES), name)):
        place.parts[name] = 0
        try:
            _collection(db, look, place, (name, known), asked)
        except Unreadable as error:
            known.ids = None
            place.unread.append(f"{name} after {place.parts[name]} rows: {error}")
    if look.subject is not None:
        place.dry_run = DryRun(items=asked[0], mentions=asked[1])
    place.leaves.append("entities that nobody opened before the delete, and in history.db every text a memory ever had")
    return place


@dataclass(slots=True)
class _Known:
    """The ids of memories; None once there are too many to compare, or some could not be read."""

    ids: set[str] | None = field(default_factory=set)


def _collection(db: Database, look: Look, place: Place, table: tuple[str, _Known], asked: list[int]) -> None:
    """Read one table, memories before entities."""
    name, known = table
    is_entities = name.endswith(_ENTITIES)
    wanted, lost = look.text(), 0
    for identity, text in db.rows(f"SELECT {db.text('id')}, {db.text('payload')} FROM {db.from_(name)}"):
        place.parts[name] += 1
        place.rows += 1
        place.bytes += len(text or "")
        payload = fields_of(text) or {}
        place.ages.add(time_of(payload.get("created_at")))
        owner = look.owner_in(payload)
        if owner is None:
            place.nobody += 1
        else:
            place.people.add([owner[1]])
            place.owner_fields[owner[0]] += 1
        theirs = owner is not None and look.is_subject(owner[1])
        asked[0] += theirs
        asked[1] += wanted is not None and not theirs and wanted in str(text)
        if is_entities and known.ids is not None:
            links = payload.get(_LINKS)
            lost += isinstance(links, list) and not any(str(each) in known.ids for each in links)
        elif known.ids is not None:
            known.ids.add(str(identity))
            known.ids = known.ids if len(known.ids) <= _MOST_COMPARED else None
    if is_entities:
        place.orphan("entities of deleted memories", lost, "mem0 takes their links away only where they were open")
