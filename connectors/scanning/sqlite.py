"""One SQLite file: which products' tables lie in it, and what the file itself keeps of what was deleted.

Guarantees: every table is some place's or is named as not read; what SQLite cannot read is said, table by table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connectors.scanning import chroma, langgraph, mem0, phoenix, qdrant
from connectors.scanning.database import SqliteReader, Unreadable
from connectors.scanning.opening import Opened, open_sqlite
from connectors.scanning.report import Place, Setting
from connectors.scanning.tables import scan_tables

if TYPE_CHECKING:
    from connectors.scanning.database import Database
    from connectors.scanning.look import Look

_BOOKKEEPING = re.compile(r"(?:.*_)?(?:migrations?|alembic_version|schema_version|muniment_fence.*)", re.IGNORECASE)
_SHADOW = re.compile(r"(.+)_(?:data|idx|content|docsize|config|segments|segdir|stat|node|parent|rowid)")
_CHROMA = frozenset({
    "acquire_write", "collection_metadata", "segment_metadata", "tenants", "databases", "collections",
    "maintenance_log", "segments", "embeddings", "embedding_metadata", "embedding_metadata_array", "max_seq_id",
    "embeddings_queue", "embeddings_queue_config",
})  # fmt: skip


def scan_file(path: Path, look: Look, label: str) -> tuple[list[Place], list[str]]:
    """Return the places in a file, and what could not be read of it."""
    try:
        with open_sqlite(path, look.limit) as opened:
            places = list(_places(opened, path, look, label))
            unread = [] if not opened.reader.hidden else [f"{label}: {opened.reader.hidden} tables could not be read"]
            if not opened.facts.pages_whole:
                unread.append(f"{label}: the file is shorter than it says")
        for place in places:
            _file(opened, place)
            if len(places) == 1 and not place.bytes:
                place.bytes = path.stat().st_size
    except Unreadable as error:
        return [], [f"{label}: {error}"]
    return places, unread


def _places(opened: Opened, path: Path, look: Look, label: str) -> Iterator[Place]:
    db = opened.reader
    # The file as the operator named it: temporary copies are read, never registered.
    config = {"url": f"sqlite:///{path.resolve()}"}
    rest = set(db.tables)
    if chroma.is_chroma(db):
        rest -= _CHROMA
        yield chroma.scan_chroma(db, path.parent, look, label)
    yield from products(db, look, label, config, rest)
    names = sorted(name for name in rest if not _is_bookkeeping(name, db))
    if names:
        yield scan_tables(db, look, label, names, config)


def products(db: Database, look: Look, label: str, config: dict[str, Any], rest: set[str]) -> Iterator[Place]:
    """Yield the known products in a database and take their tables out of `rest`."""
    known: tuple[tuple[Callable[[Database], bool], tuple[str, ...], Callable[..., Place]], ...] = (
        (langgraph.is_saver, langgraph.SAVER_TABLES, langgraph.scan_saver),
        (langgraph.is_store, langgraph.STORE_TABLES, langgraph.scan_store),
        (mem0.is_mem0, ("history", "messages"), mem0.scan_mem0),
        (phoenix.is_phoenix, phoenix.TABLES, phoenix.scan_phoenix),
    )
    for recognises, tables, scan in known:
        if recognises(db):
            rest -= set(tables)
            yield scan(db, look, label, config)
    if memories := mem0.memory_tables(db):
        rest -= set(memories)
        yield mem0.scan_memories(db, look, label, config, memories)


def is_bookkeeping_name(name: str) -> bool:
    """Tell whether a table's name is that of a list of migrations, or of our own fence."""
    return _BOOKKEEPING.fullmatch(name) is not None


def _is_bookkeeping(name: str, db: SqliteReader) -> bool:
    """Tell whether a table is a migration's, or one that a full-text or spatial index keeps for itself."""
    if is_bookkeeping_name(name):
        return True
    shadow = _SHADOW.fullmatch(name)
    if shadow is None:
        return False
    owner = shadow.group(1)
    try:
        return bool(
            db.count("SELECT count(*) FROM sqlite_schema WHERE name = ? AND sql LIKE 'CREATE VIRTUAL TABLE%'", owner)
        )
    except Unreadable:
        return False


def points_of(path: Path, look: Look, place: Place, collection: str, label: str) -> None:
    """Add one collection of a local Qdrant to its place."""
    try:
        with open_sqlite(path, look.limit) as opened:
            if not qdrant.is_points(opened.reader):
                place.unread.append(f"collection {collection}: the file holds no points")
                return
            qdrant.scan_points(opened.reader, look, place, collection)
        _file(opened, place)
    except Unreadable as error:
        place.unread.append(f"{label}: {error}")


def _file(opened: Opened, place: Place) -> None:
    """Add what the file itself says: journal, log, free pages."""
    facts = opened.facts
    place.notes += [note for note in opened.notes if note not in place.notes]
    mode = "wal" if facts.is_wal else "rollback journal"
    size = facts.log_bytes or facts.journal_bytes
    why = f"{size} bytes of it lie beside the file and keep earlier contents" if size else "it is empty now"
    settings = [Setting(name="journal_mode", value=mode, dangerous=size > 0, why=why)]
    if facts.free_pages:
        why = f"{facts.free_with_data} of them still hold what was deleted; only VACUUM clears them"
        settings.append(
            Setting(name="free pages", value=str(facts.free_pages), dangerous=facts.free_with_data > 0, why=why)
        )
    value = "was off" if facts.free_with_data else "not kept in the file"
    why = (
        "deleted data lies in free pages, so whoever deleted it had it off"
        if facts.free_with_data
        else "each program sets it for itself: off in SQLite as published and in most Python wheels"
    )
    settings.append(Setting(name="secure_delete", value=value, dangerous=facts.free_with_data > 0, why=why))
    place.settings += [setting for setting in settings if setting not in place.settings]
    line = "free pages and the log of the file, which keep what is deleted until VACUUM and wal_checkpoint(TRUNCATE)"
    if line not in place.leaves:
        place.leaves.append(line)
