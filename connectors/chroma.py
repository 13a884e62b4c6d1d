"""Kind `chroma`: records of Chroma's collections, in a folder or behind a server.

Config: `{"path": absolute folder}` or `{"url": "http://host:port", "api_key"?}`, `"owner_field"?`: a key of the
metadata. Locator: `{"collection", "id"}`; a collection of another database than the default one is written
`tenant/database/name`. Servers are driven by `chroma_server`.

Guarantees, beyond those of `vector_store`: reads go to the files (`chroma_files`) and change nothing; deletes go to
Chroma's own engine, with the owner as a condition. Its delete leaves the record in the queue of writes, in the
full-text index and, marked, in the vector index, so `reclaim` copies what stays into a new collection and, in one
transaction of the database that fails if anybody wrote meanwhile, puts it in the place of the old one. Unused room of
the new index, to which the engine writes old memory, is blanked before. Then folders of no segment are removed, the
full-text index is built anew and the database is vacuumed. The collection has a new inner id afterwards: a handle that
was opened before fails in its process and cannot bring the old index back. No client of Chroma may have the folder open
in this very process: see `chroma_engine`.
Source: reference/store-recipes.md §2.4.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import sqlite3
import time
from collections import Counter
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from connectors.base import Deadline, Level, ReclaimReport
from connectors.chroma_engine import Engine, engine
from connectors.chroma_files import DATABASE, DEFAULT, DOCUMENT, Collection, Folder, Index, blank_unused
from connectors.chroma_server import ChromaServerConnector, condition
from connectors.errors import BadLocator, StoreUnreachable, WrongCredentials
from connectors.own_files import files_below
from connectors.residue import Hits, Needles
from connectors.sqlite_file import rewrite
from connectors.vector_store import Look, Places, Point, PointId, VectorConfig, VectorConnector, report, vector_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

if find_spec("chromadb_rust_bindings") is None:
    # Loaded by `chroma_engine` in a process of its own only; missing it is this store's error.
    raise ModuleNotFoundError("chromadb_rust_bindings", name="chromadb_rust_bindings")

_PAGE = 500
_ROUNDS = 3
_COPY = "muniment-copy-"
_URI = "chroma:uri"
_SEGMENT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_METHOD = "copy of what stays, folders of no segment removed, full-text index built anew, VACUUM"


def open_store(config: Mapping[str, Any], *, read_only: bool) -> ChromaConnector | ChromaServerConnector:
    """Return the connector of a folder or of a server. Raises: BadConfig."""
    read = vector_config(config)
    if read.path is None:
        return ChromaServerConnector(read, read_only=read_only)
    return ChromaConnector(read, read.path, read_only=read_only)


class ChromaConnector(VectorConnector):
    """Drives the collections of one folder."""

    kind = "chroma"
    method = "delete by id and owner in Chroma's engine"
    locks = (
        "reclaim copies each collection and then holds the database (VACUUM: twice its space); afterwards other"
        " processes must open their collections anew"
    )

    def __init__(self, config: VectorConfig, path: Path, *, read_only: bool) -> None:
        super().__init__(config, read_only=read_only)
        self._path = path

    @contextmanager
    def _open(self, limit: Deadline, *, read_only: bool) -> Iterator[Records]:
        yield Records(self._path, self._config.owner_field, limit)

    @override
    def _free(self, collections: Sequence[str], limit: Deadline) -> ReclaimReport:
        return self.renew(collections, limit)

    def renew(self, collections: Sequence[str], limit: Deadline) -> ReclaimReport:
        """Copy these collections, and others that hold what was erased, and rewrite the database."""
        with _alone(self._path, limit):
            rebuild = _Rebuild(self._path, limit)
            rebuild.sweep()
            evidence: dict[str, str] = {}
            for name in [*collections, *rebuild.holding(list(self._sought), set(collections))]:
                made = rebuild.renew(name)
                if made is None:
                    return report(Level.L1, "a collection was written to whenever it was copied", _METHOD)
                evidence |= {mark(name): made}
            folders = rebuild.remove_folders()
            if not rebuild.vacuum():
                return report(Level.L1, "another process reads the database: its log stays", _METHOD)
        detail = f"{len(evidence)} collections copied, {folders} folders of no segment removed, database rewritten"
        return report(Level.L2, f"{detail}; freed disk blocks and copies were not looked at", _METHOD, evidence)

    @override
    def _look(
        self, items: Sequence[tuple[str, PointId]], canaries: Sequence[bytes], reclaimed: ReclaimReport | None,
        limit: Deadline,
    ) -> Look:  # fmt: skip
        folder = Folder(self._path, limit)
        known = folder.collections()
        evidence = {} if reclaimed is None else reclaimed.evidence
        unproven = {
            name: "the collection was not copied and the database not rewritten, so its indexes may keep records"
            for name, _ in items
            if mark(name) not in evidence
        }
        traces = set()
        with folder.reading() as connection:
            for name, identity in items:
                limit.check()
                queued = connection.execute(
                    "SELECT 1 FROM embeddings_queue WHERE id = ? AND substr(topic, -37) = ? LIMIT 1",
                    (identity, known[name].topic_end),
                ).fetchone()
                if queued is not None or identity in folder.index(known[name].vectors).ids:
                    traces.add((name, identity))
        found = {number for _, hits in self.scan(canaries, limit) for number, _ in hits}
        how = "queue and index asked for the id, vectors of every index compared, bytes of every file scanned"
        return Look(found=frozenset(found), how=how, unproven=unproven, traces=frozenset(traces))

    @override
    def _hits(self, canaries: Sequence[bytes], limit: Deadline) -> list[tuple[str, Hits]]:
        return self.scan(canaries, limit)

    def scan(self, canaries: Sequence[bytes], limit: Deadline) -> list[tuple[str, Hits]]:
        """Look through all files, those of no segment too, by their bytes and as vectors."""
        Folder(self._path, limit).collections()
        wanted = Needles(canaries)
        areas: dict[str, Hits] = {}
        for file in files_below("chroma", self._path):
            area = "database" if file.name.startswith(DATABASE) else "vector index"
            try:
                with file.open("rb") as stream:
                    hits = wanted.count(stream, limit)
            except FileNotFoundError:
                continue
            except OSError:
                raise StoreUnreachable("chroma", "a file cannot be read") from None
            if file.name == "data_level0.bin":
                alike = Index.of(file.parent).find(canaries)
                hits += Counter({(number, "float32, any length"): count for number, count in alike.items()})
            areas[area] = areas.get(area, Counter()) + hits
        return [(area, hits) for area, hits in areas.items() if hits]

    @contextmanager
    def _scratch(
        self, document: Mapping[str, str], vector: Sequence[float], limit: Deadline
    ) -> Iterator[dict[str, Any]]:
        name = f"muniment-check-{secrets.token_hex(8)}"
        folder = Folder(self._path, limit)
        folder.collections()
        try:
            with engine(self._path, limit) as running:
                others = {key: text for key, text in document.items() if key != "text"}
                records = {
                    "ids": ["canary", "stays"], "vectors": [list(vector), [1.0] * len(vector)],
                    "metadatas": [others or None, None], "documents": [document["text"], "stays"], "uris": None,
                }  # fmt: skip
                running.call("add", running.call("make", name, *DEFAULT), records, *DEFAULT)
            yield {"collection": name, "id": "canary"}
        finally:
            self.remove(name, limit)

    def remove(self, name: str, limit: Deadline) -> None:
        """Remove a collection of ours, whole."""
        with _alone(self._path, limit):
            rebuild = _Rebuild(self._path, limit)
            rebuild.drop([each for each in Folder(self._path, limit).collections().values() if each.name == name])
            rebuild.remove_folders()


class Records(Places):
    """The collections of a folder: read from its files, deleted from by Chroma's engine."""

    def __init__(self, path: Path, owner_field: str | None, limit: Deadline) -> None:
        self._path = path
        self._owner_field = owner_field
        self._limit = limit
        self._folder = Folder(path, limit)
        self._known: dict[str, Collection] = {}

    @override
    def collections(self) -> list[str]:
        self._known = self._folder.collections()
        return sorted(self._known)

    @override
    def identify(self, collection: str, given: object) -> PointId:
        if not isinstance(given, str):
            raise BadLocator("an id of Chroma is a text")
        return given

    @override
    def read(self, collection: str, ids: Sequence[PointId]) -> dict[PointId, list[Point]]:
        found = self._folder.points(self._known[collection], [str(each) for each in ids])
        return {identity: [point] for identity, point in found.items()}

    @override
    def pages(self, collection: str) -> Iterator[list[Point]]:
        for page in self._folder.pages(self._known[collection], _PAGE):
            yield list(page.values())

    @override
    def delete(self, collection: str, ids: Sequence[PointId], owners: frozenset[str] | None) -> None:
        place = self._known[collection]
        where = None if owners is None else json.dumps(condition(str(self._owner_field), owners))
        with self._folder.writing() as connection:
            # The engine is ended at the deadline, wherever it is; better that it does not begin while others write.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        with engine(self._path, self._limit) as running:
            running.call("delete", place.uid, [str(each) for each in ids], where, place.tenant, place.database)


class _Rebuild:
    """Copies collections and puts the copies in their place."""

    def __init__(self, path: Path, limit: Deadline) -> None:
        self._path = path
        self._limit = limit

    def sweep(self) -> None:
        """Remove copies that an earlier reclaim did not finish; each collection still has its own records then."""
        left = [each for each in self._folder().collections().values() if each.own.startswith(_COPY)]
        self.drop(left)

    def holding(self, canaries: Sequence[bytes], touched: set[str]) -> list[str]:
        """Return the other collections whose index files hold what was erased: old memory of who wrote them."""
        found = []
        wanted = Needles(canaries)
        for name, place in self._folder().collections().items() if canaries else ():
            folder = self._path / place.vectors
            if name in touched or not folder.is_dir():
                continue
            hits = Index.of(folder).find(canaries)
            for file in sorted(folder.iterdir()) if not hits else ():
                with file.open("rb") as stream:
                    hits |= {number: count for (number, _), count in wanted.count(stream, self._limit).items()}
            found += [name] if hits else []
        return found

    def _folder(self) -> Folder:
        return Folder(self._path, self._limit)

    def renew(self, name: str) -> str | None:
        """Put a copy in a collection's place and return its inner id; "" where there is none of this name.

        None where somebody wrote to it in every round.
        """
        for _ in range(_ROUNDS):
            folder = self._folder()
            place = folder.collections().get(name)
            if place is None:
                return ""
            copy, before = self._copy(folder, place)
            if self._swap(folder, place, copy, before):
                return copy.uid
            self.drop([copy])
        return None

    def _copy(self, folder: Folder, place: Collection) -> tuple[Collection, tuple[Any, ...]]:
        """Make a collection of the same settings with all records; return it, and the state it was made from."""
        where = place.tenant, place.database
        own = f"{_COPY}{secrets.token_hex(8)}"
        with engine(self._path, self._limit) as running:
            uid = running.call("make_like", place.own, own, *where)
            if uid is None:
                raise StoreUnreachable("chroma", "a collection's settings cannot be given to a copy")
            running.call("count", place.uid, *where)
            with folder.reading() as connection:
                before = folder.state(connection, place)
            for page in folder.pages(place, _PAGE):
                self._limit.check()
                self._add(running, uid, where, list(page.values()))
            running.call("count", uid, *where)
        copy = next(each for each in self._folder().collections().values() if each.uid == uid)
        blank_unused(self._path / copy.vectors)
        return copy, before

    @staticmethod
    def _add(running: Engine, uid: str, where: tuple[str, str], points: Sequence[Point]) -> None:
        if any(not point.vectors for point in points):
            raise StoreUnreachable("chroma", "a record's vector cannot be read")
        if points:
            records = {
                "ids": [point.id for point in points],
                "vectors": [list(point.vectors[0]) for point in points],
                "metadatas": [_metadata(point) for point in points],
                "documents": [point.payload.get(DOCUMENT) for point in points],
                "uris": [point.payload.get(_URI) for point in points],
            }
            running.call("add", uid, records, *where)

    def _swap(self, folder: Folder, place: Collection, copy: Collection, before: tuple[Any, ...]) -> bool:
        """1. see that nobody wrote; 2. remove the old records; 3. give the copy the name; all of it or nothing."""
        with folder.writing() as connection:
            connection.execute("BEGIN IMMEDIATE")
            copied = folder.state(connection, copy)[-1]
            if folder.state(connection, place) != before or copied != before[-1]:  # 1
                connection.execute("ROLLBACK")
                return False
            kept = connection.execute(
                "SELECT schema_str, dimension FROM collections WHERE id = ?", (place.uid,)
            ).fetchone()
            _remove(connection, place)  # 2
            connection.execute(
                "UPDATE collections SET name = ?, schema_str = ?, dimension = ? WHERE id = ?",
                (place.own, *kept, copy.uid),
            )  # 3
            connection.execute("COMMIT")
        return True

    def drop(self, collections: Sequence[Collection]) -> None:
        """Remove whole collections from the database."""
        for each in collections:
            with self._folder().writing() as connection:
                connection.execute("BEGIN IMMEDIATE")
                _remove(connection, each)
                connection.execute("COMMIT")

    def remove_folders(self) -> int:
        """Remove the folders of segments that the database does not know; return their number."""
        known = self._folder().segments()
        stray = [
            each for each in self._path.iterdir()
            if each.is_dir() and not each.is_symlink() and _SEGMENT.fullmatch(each.name) and each.name not in known
        ]  # fmt: skip
        for each in stray:
            shutil.rmtree(each)
        return len(stray)

    def vacuum(self) -> bool:
        """Drop what the queue holds of collections that are gone, build the full-text index anew, rewrite the file.

        False where another process reads an older state of the file.
        """
        with self._folder().writing() as connection:
            connection.execute(
                "DELETE FROM embeddings_queue WHERE substr(topic, -36) NOT IN (SELECT id FROM collections)"
            )
            connection.execute("INSERT INTO embedding_fulltext_search (embedding_fulltext_search) VALUES ('rebuild')")
            return rewrite(connection)


def _remove(connection: sqlite3.Connection, place: Collection) -> None:
    """Remove every row of a collection, within the caller's transaction."""
    rows = "SELECT id FROM embeddings WHERE segment_id = ?"
    segments = (place.rows, place.vectors)
    for statement in (
        f"DELETE FROM embedding_fulltext_search WHERE rowid IN ({rows})",
        f"DELETE FROM embedding_metadata WHERE id IN ({rows})",
        f"DELETE FROM embedding_metadata_array WHERE id IN ({rows})",
        "DELETE FROM embeddings WHERE segment_id = ?",
    ):
        connection.execute(statement, (place.rows,))
    connection.execute("DELETE FROM embeddings_queue WHERE substr(topic, -37) = ?", (place.topic_end,))
    for table, column in (("max_seq_id", "segment_id"), ("segment_metadata", "segment_id"), ("segments", "id")):
        connection.execute(f"DELETE FROM {table} WHERE {column} IN (?, ?)", segments)
    connection.execute("DELETE FROM collection_metadata WHERE collection_id = ?", (place.uid,))
    connection.execute("DELETE FROM collections WHERE id = ?", (place.uid,))


def _metadata(point: Point) -> dict[str, Any] | None:
    return {key: value for key, value in point.payload.items() if key not in {DOCUMENT, _URI}} or None


def mark(name: str) -> str:
    """Return how a collection is called in evidence, which names nobody."""
    return f"chroma:{hashlib.sha256(name.encode()).hexdigest()[:16]}"


@contextmanager
def _alone(path: Path, limit: Deadline) -> Iterator[None]:
    """Keep other workers of ours out of the folder. Raises: Timeout, StoreUnreachable, WrongCredentials."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        raise WrongCredentials("chroma", "the folder may not be read") from None
    except OSError:
        raise StoreUnreachable("chroma", "there is no such folder") from None
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                limit.check()
                time.sleep(min(0.05, limit.left()))
        yield
    finally:
        os.close(handle)
