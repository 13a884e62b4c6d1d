"""Chroma's folders: `chroma.sqlite3` and a folder of HNSW files a vector segment. Source: store-recipes.md §2.4.

Guarantees: the four residues of a delete are counted without Chroma: queue rows of ids that are gone, vectors marked
deleted in `data_level0.bin` (hnswlib's own mark), segment folders that no segment names, full-text rows without item.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from connectors.scanning.database import SqliteReader, Unreadable
from connectors.scanning.look import Found, Look, time_of
from connectors.scanning.opening import is_sqlite
from connectors.scanning.qdrant import ENTITIES, HISTORY, MEM0
from connectors.scanning.report import DryRun, Place, Setting

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = "chroma.sqlite3"
_DELETE = 3
"""The operation of a deletion in the queue. Source: chromadb.types.Operation."""
_HEADER = "<IQQQQQQ"
"""Chroma's header.bin: version, offset of level 0, capacity, elements, bytes of one, offsets of label and vector."""
_MARK_BYTE, _MARK = 2, 1
"""hnswlib marks a deleted element in the third byte of its links. Source: hnswlib hnswalg.h, DELETE_MARK."""
_BLOCK = 4 << 20
_SEGMENT_NAME = 36


def is_chroma(db: SqliteReader) -> bool:
    """Tell whether the tables are Chroma's."""
    return db.has("embeddings_queue", "segments", "collections", "embeddings", "embedding_metadata")


def scan_chroma(db: SqliteReader, folder: Path, look: Look, label: str) -> Place:
    """Return what a Chroma folder holds; with mem0's history in it or above it, as the memories that they are."""
    home = next((each for each in (folder, folder.parent) if is_sqlite(each / HISTORY)), None)
    place = Place(
        what="chroma" if home is None else "mem0-chroma", label=label, kind="chroma" if home is None else MEM0,
        config={"path": str((home or folder).resolve())} | ({} if home is None else {"vector_store": "chroma"}),
        data_class="memory", ages=look.ages(),
    )  # fmt: skip
    for step in (_items, _queue, _full_text, _settings):
        try:
            step(db, look, place)
        except Unreadable as error:
            place.unread.append(f"{step.__name__.strip('_').replace('_', ' ')}: {error}")
    _folders(db, folder, place)
    place.leaves.append("text in the queue until about 1,000 later writes, and in free pages after that")
    place.leaves.append("vectors in the HNSW file: a delete only marks them, and chroma vacuum does not touch it")
    return place


def _collections(db: SqliteReader) -> dict[str, str]:
    """Return segment → collection's name."""
    query = "SELECT s.id, coalesce(c.name, '') FROM segments s LEFT JOIN collections c ON c.id = s.collection"
    return {str(segment): str(name) for segment, name in db.rows(query)}


def _items(db: SqliteReader, look: Look, place: Place) -> None:
    names = look.owner_names()
    marks = ", ".join("?" for _ in names)
    value = "coalesce(m.string_value, CAST(m.int_value AS TEXT))"
    query = (
        "SELECT e.id, e.segment_id, e.embedding_id, e.created_at, m.key, m.value FROM embeddings e LEFT JOIN"
        f" (SELECT id, key, {value} AS value FROM embedding_metadata m WHERE lower(key) IN ({marks})) m"
        " ON m.id = e.id ORDER BY e.id"
    )
    collections = _collections(db)
    asked = DryRun()
    texts = _mentioning(db, look)
    for number, segment, name, created, fields in _joined(db.rows(query, *names)):
        owner = look.owner_in({key.lower(): value for key, value in fields.items()})
        at = time_of(created)
        collection = collections.get(str(segment), "")
        place.parts[collection] = place.parts.get(collection, 0) + 1
        place.rows += 1
        place.ages.add(at)
        if owner is None:
            place.nobody += 1
        else:
            place.people.add([owner[1]])
            place.owner_fields[owner[0]] += 1
        theirs = owner is not None and look.is_subject(owner[1])
        held = not theirs and number in texts
        asked = DryRun(items=asked.items + theirs, mentions=asked.mentions + held)
        if look.sink is not None and collection and not (place.kind == MEM0 and collection.endswith(ENTITIES)):
            locator = {"collection": collection, "id": str(name)} if place.kind != MEM0 else {"memory_id": str(name)}
            look.sink(place, Found(locator=locator, owners=(owner,) if owner else (), at=at))
    place.bytes += db.count("SELECT sum(length(CAST(string_value AS BLOB))) FROM embedding_metadata")
    if look.subject is not None:
        place.dry_run = asked
    lost = db.count(
        "SELECT count(*) FROM embedding_metadata m WHERE NOT EXISTS (SELECT 1 FROM embeddings e WHERE e.id = m.id)"
    )
    place.orphan("metadata without items", lost, "an item was removed and its text was not")


def _mentioning(db: SqliteReader, look: Look) -> set[int]:
    text = look.text()
    if text is None:
        return set()
    holds = db.holds("string_value", "text")
    return {int(row[0]) for row in db.rows(f"SELECT DISTINCT id FROM embedding_metadata WHERE {holds}", text)}


def _joined(rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[int, Any, Any, Any, dict[str, Any]]]:
    """Yield each item once with its fields."""
    current: tuple[int, Any, Any, Any] | None = None
    fields: dict[str, Any] = {}
    for number, segment, name, created, key, value in rows:
        if current is not None and current[0] != number:
            yield (*current, fields)
            fields = {}
        current = (int(number), segment, name, created)
        if key is not None:
            fields[str(key)] = value
    if current is not None:
        yield (*current, fields)


def _queue(db: SqliteReader, look: Look, place: Place) -> None:
    place.parts["embeddings_queue"] = db.count("SELECT count(*) FROM embeddings_queue")
    live = (
        "SELECT 1 FROM embeddings e JOIN segments s ON s.id = e.segment_id"
        " WHERE e.embedding_id = q.id AND q.topic LIKE '%' || s.collection"
    )
    rows = f"FROM embeddings_queue q WHERE q.operation <> {_DELETE} AND NOT EXISTS ({live})"
    why = "the item was deleted; its text and vector lie in the queue until later writes push them out"
    place.orphan("queue rows of deleted ids", db.count(f"SELECT count(*) {rows}"), why)
    place.bytes += db.count(
        "SELECT sum(coalesce(length(vector), 0) + coalesce(length(metadata), 0)) FROM embeddings_queue"
    )
    if look.subject is None:
        return
    own = 0
    for (text,) in db.rows(f"SELECT q.metadata {rows}"):
        try:
            fields = msgspec.json.decode(text or "{}")
        except (msgspec.MsgspecError, UnicodeError):
            continue
        owner = look.owner_in(fields) if isinstance(fields, dict) else None
        own += owner is not None and look.is_subject(owner[1])
    if own:
        place.notes.append(f"{own} queue rows of the person's deleted items still hold their text")


def _full_text(db: SqliteReader, _: Look, place: Place) -> None:
    name = "embedding_fulltext_search_content"
    if name in db.tables:
        query = f"SELECT count(*) FROM {name} f WHERE NOT EXISTS (SELECT 1 FROM embeddings e WHERE e.id = f.id)"
        place.orphan("full-text rows without items", db.count(query), "the words of an item that was deleted")


def _settings(db: SqliteReader, _: Look, place: Place) -> None:
    if "embeddings_queue_config" not in db.tables:
        return
    for (text,) in db.rows("SELECT config_json_str FROM embeddings_queue_config"):
        purges = isinstance(text, str) and '"automatically_purge":true' in text.replace(" ", "")
        why = "cut when a later write crosses sync_threshold (1,000)" if purges else "the queue is never cut"
        place.settings.append(
            Setting(name="automatically_purge", value=str(purges).lower(), dangerous=not purges, why=why)
        )


def _folders(db: SqliteReader, folder: Path, place: Place) -> None:
    try:
        known = {str(row[0]) for row in db.rows("SELECT id FROM segments")}
        found = [each for each in sorted(folder.iterdir()) if each.is_dir() and not each.is_symlink()]
    except (Unreadable, OSError) as error:
        place.unread.append(f"segment folders: {error if isinstance(error, Unreadable) else 'could not be listed'}")
        return
    lost = [each for each in found if len(each.name) == _SEGMENT_NAME and each.name not in known]
    place.orphan("unreferenced segment folders", len(lost), "a collection was deleted and its vectors were not")
    marked = 0
    for each in found:
        try:
            deleted, size = deleted_vectors(each)
        except Unreadable as error:
            place.unread.append(f"a segment's vectors: {error}")
            continue
        place.bytes += size
        marked += deleted if each.name in known else 0
    place.orphan("vectors marked deleted", marked, "they stay in data_level0.bin until the index is built anew")


def deleted_vectors(segment: Path) -> tuple[int, int]:
    """Return how many elements of a segment are marked deleted, and the bytes of its vectors. Raises: Unreadable."""
    header, vectors = segment / "header.bin", segment / "data_level0.bin"
    try:
        if not header.is_file() or not vectors.is_file():
            return 0, 0
        facts = struct.unpack_from(_HEADER, header.read_bytes()[: struct.calcsize(_HEADER)])
        _, offset, _, elements, each, _, _ = facts
        size = vectors.stat().st_size
        if not each or elements * each > size:
            raise Unreadable("header and file do not fit together")
        with vectors.open("rb") as stream:
            return _marked(stream, offset, elements, each), size
    except struct.error:
        raise Unreadable("the header is too short") from None
    except OSError as error:
        raise Unreadable((error.strerror or "could not be read").lower()) from None


def _marked(stream: BinaryIO, offset: int, elements: int, each: int) -> int:
    found, a_block = 0, max(1, _BLOCK // each)
    for start in range(0, elements, a_block):
        count = min(a_block, elements - start)
        stream.seek(start * each)
        block = stream.read(count * each)
        found += sum(byte & _MARK for byte in block[offset + _MARK_BYTE :: each])
    return found
