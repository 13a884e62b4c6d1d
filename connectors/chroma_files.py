"""A folder of Chroma, read without Chroma: its database, its queue of writes and the files of its vector indexes.

Guarantees: reading opens the database so that it cannot be written and touches no other file; nothing is unpickled (the
index's table of ids is read by `pickled`). The vectors of an index are decoded element by element, those marked as
deleted too, because cosine collections keep them at length one and no byte form of the vector is in the file.
Only the schema of the migrations in `KNOWN` is read; a folder of another version is refused, not guessed at.
Source: chromadb 1.5.9 (chromadb/migrations; hnswlib's header); reference/store-recipes.md §2.4.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from connectors.directions import alike
from connectors.errors import StoreUnreachable
from connectors.pickled import read_pickle
from connectors.sqlite_file import opened
from connectors.vector_store import Point, PointId

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from connectors.base import Deadline

KNOWN = {"embeddings_queue": 2, "metadb": 6, "sysdb": 10}
"""The newest migration of each part whose tables are known here."""
DATABASE = "chroma.sqlite3"
DEFAULT = ("default_tenant", "default_database")
DOCUMENT = "chroma:document"
_SEGMENT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HANDLES = Path("/proc/self/fd")
_ADD, _UPDATE, _UPSERT, _DELETE = range(4)
"""What a row of the queue does."""
_HEADER = struct.Struct("<i6Q")
"""hnswlib: version, offset of level 0, room, elements, bytes an element, offset of its label, offset of its vector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """One collection as the database has it."""

    name: str
    """As a locator writes it: with tenant and database in front where these are not the default."""
    own: str
    uid: str
    tenant: str
    database: str
    rows: str
    """The segment of rows."""
    vectors: str
    """The segment of vectors, and its folder."""

    @property
    def topic_end(self) -> str:
        """Return how the topic of its queue ends."""
        return f"/{self.uid}"


@dataclass(slots=True)
class _Pending:
    """What the queue says of an id: the last vector, and what was not applied to the rows yet."""

    vector: bytes | None = None
    operations: list[tuple[int, str | None]] = field(default_factory=list)


class Folder:
    """The files of one Chroma folder."""

    def __init__(self, path: Path, limit: Deadline) -> None:
        self.path = path
        self._limit = limit
        self._indexes: dict[str, Index] = {}

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open the database so that it cannot be written. Raises: StoreUnreachable, WrongCredentials, Timeout."""
        with self._opened(write=False) as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Open the database to write; statements stop at the deadline. Raises: as `reading`."""
        with self._opened(write=True) as connection:
            yield connection

    @contextmanager
    def _opened(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        _only_here(self.path / DATABASE)
        with opened("chroma", self.path / DATABASE, self._limit, write=write) as connection:
            known = dict(connection.execute("SELECT dir, max(version) FROM migrations GROUP BY dir").fetchall())
            if known != KNOWN:
                raise StoreUnreachable("chroma", "the folder is of another version of Chroma")
            yield connection

    def collections(self) -> dict[str, Collection]:
        """Return every collection of every database, by the name of its locator."""
        with self.reading() as connection:
            rows = connection.execute(
                "SELECT c.name, c.id, d.tenant_id, d.name, r.id, v.id FROM collections c"
                " JOIN databases d ON d.id = c.database_id"
                " JOIN segments r ON r.collection = c.id AND r.scope = 'METADATA'"
                " JOIN segments v ON v.collection = c.id AND v.scope = 'VECTOR' ORDER BY c.id"
            ).fetchall()
        if any(_SEGMENT.fullmatch(row[-1]) is None for row in rows):
            raise StoreUnreachable("chroma", "a segment has no id that can be a folder's name")
        found = {}
        for own, uid, tenant, database, row_segment, vector_segment in rows:
            name = own if (tenant, database) == DEFAULT else f"{tenant}/{database}/{own}"
            found[name] = Collection(
                name=name, own=own, uid=uid, tenant=tenant, database=database, rows=row_segment, vectors=vector_segment
            )
        return found

    def points(self, collection: Collection, ids: Sequence[str]) -> dict[PointId, Point]:
        """Return the points of these ids, also such that the queue holds alone."""
        marks = ", ".join("?" * len(ids))
        with self.reading() as connection:
            rows = dict(
                connection.execute(
                    f"SELECT id, embedding_id FROM embeddings WHERE segment_id = ? AND embedding_id IN ({marks})",
                    (collection.rows, *ids),
                ).fetchall()
            )
            return self._points(connection, collection, rows, ids)

    def pages(self, collection: Collection, size: int) -> Iterator[dict[PointId, Point]]:
        """Yield all points of a collection in pages; what only the queue holds comes last."""
        after, seen = -1, 0
        while True:
            self._limit.check()
            with self.reading() as connection:
                rows = dict(
                    connection.execute(
                        "SELECT id, embedding_id FROM embeddings WHERE segment_id = ? AND id > ? ORDER BY id LIMIT ?",
                        (collection.rows, after, size),
                    ).fetchall()
                )
                if rows:
                    page = self._points(connection, collection, rows, list(rows.values()))
                else:
                    late = sorted(self._late(connection, collection))
                    page = self._points(connection, collection, {}, late)
            seen += len(page)
            yield page
            if not rows:
                return
            after = max(rows)

    def _late(self, connection: sqlite3.Connection, collection: Collection) -> set[str]:
        """Return ids that are in the queue and in no row yet."""
        return {
            row[0]
            for row in connection.execute(
                "SELECT DISTINCT id FROM embeddings_queue q WHERE substr(topic, -37) = ? AND seq_id > coalesce((SELECT"
                " seq_id FROM max_seq_id WHERE segment_id = ?), -1) AND NOT EXISTS (SELECT 1 FROM embeddings e"
                " WHERE e.segment_id = ? AND e.embedding_id = q.id)",
                (collection.topic_end, collection.rows, collection.rows),
            )
        }

    def _points(
        self, connection: sqlite3.Connection, collection: Collection, rows: Mapping[int, str], ids: Sequence[str]
    ) -> dict[PointId, Point]:
        payloads: dict[str, dict[str, Any]] = {identity: {} for identity in rows.values()}
        marks = ", ".join("?" * len(rows))
        for table, is_list in (("embedding_metadata", False), ("embedding_metadata_array", True)):
            for number, key, *values in connection.execute(
                f"SELECT id, key, string_value, int_value, float_value, bool_value FROM {table}"
                f" WHERE id IN ({marks}) ORDER BY rowid",
                list(rows),
            ):
                value = _value(*values)
                payload = payloads[rows[number]]
                if is_list:
                    payload.setdefault(key, []).append(value)
                else:
                    payload[key] = value
        waiting = self._pending(connection, collection, ids)
        for identity, pending in waiting.items():
            _apply(payloads, identity, pending)
        index = self.index(collection.vectors)
        found: dict[PointId, Point] = {}
        for identity, payload in payloads.items():
            packed = waiting[identity].vector if identity in waiting else None
            vector = index.vector(identity) if packed is None else tuple(struct.unpack(f"<{len(packed) // 4}f", packed))
            found[identity] = Point(id=identity, payload=payload, vectors=() if vector is None else (vector,))
        return found

    def index(self, segment: str) -> Index:
        """Return the vectors of a segment as they were when this folder was first asked."""
        if segment not in self._indexes:
            self._indexes[segment] = Index.of(self.path / segment)
        return self._indexes[segment]

    @staticmethod
    def _pending(connection: sqlite3.Connection, collection: Collection, ids: Sequence[str]) -> dict[str, _Pending]:
        applied = connection.execute(
            "SELECT seq_id FROM max_seq_id WHERE segment_id = ?", (collection.rows,)
        ).fetchone()
        last = -1 if applied is None else int(applied[0])
        found: defaultdict[str, _Pending] = defaultdict(_Pending)
        for seq, operation, identity, vector, metadata in connection.execute(
            "SELECT seq_id, operation, id, vector, metadata FROM embeddings_queue WHERE substr(topic, -37) = ?"
            f" AND id IN ({', '.join('?' * len(ids))}) ORDER BY seq_id",
            (collection.topic_end, *ids),
        ):
            found[identity].vector = vector if vector is not None and operation != _DELETE else found[identity].vector
            if seq > last:
                found[identity].operations.append((operation, metadata))
        return found

    def state(self, connection: sqlite3.Connection, collection: Collection) -> tuple[Any, ...]:
        """Return what changes with every write of a collection."""
        ends = connection.execute(
            "SELECT (SELECT max(seq_id) FROM embeddings_queue WHERE substr(topic, -37) = ?),"
            " (SELECT seq_id FROM max_seq_id WHERE segment_id = ?),"
            " (SELECT count(*) FROM embeddings WHERE segment_id = ?)",
            (collection.topic_end, collection.rows, collection.rows),
        ).fetchone()
        return tuple(ends)

    def segments(self) -> frozenset[str]:
        """Return the segments that the database knows."""
        with self.reading() as connection:
            return frozenset(row[0] for row in connection.execute("SELECT id FROM segments"))


class Index:
    """The vectors in one segment's folder: of ids, and of all elements whether or not anything names them."""

    def __init__(self, elements: NDArray[np.float32], lengths: NDArray[np.float32], places: Mapping[str, int]) -> None:
        self._elements = elements
        self._lengths = lengths
        self._places = places

    @classmethod
    def of(cls, folder: Path) -> Index:
        """Read a folder; what is not there, or was caught in the middle of a write, is empty."""
        nothing: NDArray[np.float32] = np.zeros((0, 0), "<f4")
        try:
            header = (folder / "header.bin").read_bytes()
            _, _, _, count, size, label_at, vector_at = _HEADER.unpack_from(header)
            with (folder / "data_level0.bin").open("rb") as stream:
                data = np.frombuffer(stream.read(count * size), np.uint8).reshape(count, size)
            lengths = np.frombuffer((folder / "length.bin").read_bytes()[: count * 4], "<f4")
            labels = np.ascontiguousarray(data[:, label_at : label_at + 8]).view("<u8").reshape(count)
            elements = np.ascontiguousarray(data[:, vector_at:label_at]).view("<f4")
        except (OSError, struct.error, ValueError):
            return cls(nothing, nothing, {})
        try:
            table = read_pickle((folder / "index_metadata.pickle").read_bytes())
            ids = table["id_to_label"]
        except (OSError, ValueError, KeyError, TypeError):
            ids = {}
        rows = {int(label): number for number, label in enumerate(labels)}
        return cls(elements, lengths, {name: rows[label] for name, label in ids.items() if label in rows})

    @property
    def ids(self) -> frozenset[str]:
        """Return the ids that the index still names."""
        return frozenset(self._places)

    @property
    def unnamed(self) -> int:
        """Return how many elements there are that no id names: those marked as deleted."""
        return len(self._elements) - len(set(self._places.values()))

    def vector(self, identity: str) -> tuple[float, ...] | None:
        """Return the vector of an id, at its length before it was put to length one."""
        place = self._places.get(identity)
        if place is None:
            return None
        numbers = self._elements[place].astype("<f8")
        length = float(self._lengths[place]) if place < len(self._lengths) else 0.0
        is_unit = abs(float(np.linalg.norm(numbers)) - 1) < 1e-3  # noqa: PLR2004 -- far above float32's error
        return tuple(np.asarray(numbers * (length if is_unit and length else 1.0), "<f4").tolist())

    def find(self, canaries: Sequence[bytes]) -> dict[int, int]:
        """Return how many elements run in the direction of each canary, by its number."""
        return alike(self._elements, canaries) if len(self._elements) else {}


def _only_here(database: Path) -> None:
    """Pass where this process has not opened the file otherwise. Raises: StoreUnreachable.

    Locks of SQLite are the process's: closing our copy's file would take those of an engine in this process away. Only
    where an application runs can there be one: the service never loads it.
    """
    if "chromadb_rust_bindings" not in sys.modules:
        return
    try:
        wanted = database.stat()
        handles = list(_HANDLES.iterdir())
    except OSError:
        # No such file, which opening it says better; or a system that does not tell.
        return
    for handle in handles:
        try:
            status = handle.stat()
        except OSError:
            continue
        if (status.st_dev, status.st_ino) == (wanted.st_dev, wanted.st_ino):
            raise StoreUnreachable("chroma", "a client in this very process has the folder open: close it meanwhile")


def blank_unused(folder: Path) -> None:
    """Overwrite the room of an index that holds no element yet, of a segment that nobody else has opened.

    hnswlib writes its whole buffer, and what was never filled holds whatever the process had in that memory before:
    after a rebuild, the vectors of the erased. A test shows it.
    """
    try:
        _, _, _, count, size, _, _ = _HEADER.unpack_from((folder / "header.bin").read_bytes())
    except (FileNotFoundError, struct.error):
        return
    for name, used in (("data_level0.bin", count * size), ("length.bin", count * 4)):
        with (folder / name).open("r+b") as stream:
            length = stream.seek(0, os.SEEK_END)
            stream.seek(used)
            stream.write(bytes(max(0, length - used)))
            stream.flush()
            os.fsync(stream.fileno())


def _value(text: str | None, whole: int | None, number: float | None, flag: int | None) -> Any:
    if flag is not None:
        return bool(flag)
    return next((each for each in (text, whole, number) if each is not None), None)


def _apply(payloads: dict[str, dict[str, Any]], identity: str, pending: _Pending) -> None:
    """Do to the payloads what the queue has not been done yet."""
    for operation, metadata in pending.operations:
        if operation == _DELETE:
            payloads.pop(identity, None)
        elif operation in {_ADD, _UPSERT} or identity in payloads:
            try:
                said = json.loads(metadata or "{}")
            except ValueError:
                said = {}
            payloads.setdefault(identity, {}).update(said if isinstance(said, dict) else {})
