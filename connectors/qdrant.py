"""Kind `qdrant`: points of Qdrant's local mode, in a folder.

Config: `{"path": absolute folder, "owner_field"?: key of the payload, members of members by dots}`. Locator:
`{"collection", "id": whole number or UUID}`. Servers are not built: there is none to test against here.

Guarantees, beyond those of `vector_store`: the folder's own lock is held while something is deleted or freed, so an
application that has it open is never worked against: it keeps every point in its memory and would write them again.
Points are read by `pickled`, without Qdrant's client, which would unpickle them. Qdrant never vacuums, so what it
deleted stays in free pages wherever SQLite was built without secure_delete; `reclaim` vacuums. Vectors are looked for
in the form of these files too: numbers of eight bytes, each with the mark of its kind.
Source: qdrant-client 1.20.0 (local/persistence.py); reference/store-recipes.md §2.5.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import re
import secrets
import shutil
import sqlite3
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

from typing_extensions import override

from connectors.base import Deadline, Level, ReclaimReport
from connectors.errors import BadConfig, BadLocator, StoreUnreachable, WrongCredentials
from connectors.own_files import files_below
from connectors.pickled import read_pickle, write_pickle
from connectors.residue import Hits, Needles
from connectors.serialized import Made
from connectors.sqlite_file import opened, rewrite
from connectors.vector_store import Look, Places, Point, PointId, VectorConfig, VectorConnector, report, vector_config

if TYPE_CHECKING:
    from pathlib import Path

_STORAGE = "storage.sqlite"
_PAGE = 500
_PATIENCE_S = 1.0
"""How long we wait for the folder's lock: an application holds it for as long as it runs."""
_UUID = re.compile(r"(urn:uuid:)?([0-9a-fA-F]{32}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})")
_TELLING = 3
"""Numbers of a vector that tell it from others by their bytes."""
_METHOD = "VACUUM of each collection's file, log truncated"


def open_store(config: Mapping[str, Any], *, read_only: bool) -> QdrantConnector:
    """Return the connector of a folder. Raises: BadConfig."""
    read = vector_config(config)
    if read.path is None:
        raise BadConfig("path is missing")
    return QdrantConnector(read, read.path, read_only=read_only)


class QdrantConnector(VectorConnector):
    """Drives the collections of one folder."""

    kind = "qdrant"
    method = "delete by id, under the folder's lock"
    locks = "the folder: no client of Qdrant may have it open while points are erased and freed"

    def __init__(self, config: VectorConfig, path: Path, *, read_only: bool) -> None:
        super().__init__(config, read_only=read_only)
        self._path = path
        self._own: str | None = None
        """A collection of ours that Qdrant does not know."""

    @contextmanager
    def _open(self, limit: Deadline, *, read_only: bool) -> Iterator[Points]:
        points = Points(self._path, self._own, self.owner, limit)
        if read_only:
            yield points
        else:
            with locked(self._path, limit):
                yield points

    @override
    def _free(self, collections: Sequence[str], limit: Deadline) -> ReclaimReport:
        points = Points(self._path, self._own, self.owner, limit)
        known, evidence = set(points.collections()), {}
        with locked(self._path, limit):
            for name in (each for each in collections if each in known):
                if not points.vacuum(name):
                    return report(Level.L1, "another process reads a collection's file: its log stays", _METHOD)
                evidence[mark(name)] = "vacuumed"
        detail = f"{len(evidence)} files rewritten; freed disk blocks and copies were not looked at"
        return report(Level.L2, detail, _METHOD, evidence)

    @override
    def _look(
        self, items: Sequence[tuple[str, PointId]], canaries: Sequence[bytes], reclaimed: ReclaimReport | None,
        limit: Deadline,
    ) -> Look:  # fmt: skip
        evidence = {} if reclaimed is None else reclaimed.evidence
        why = "the collection's file was not rewritten, so free pages may hold points"
        unproven = {name: why for name, _ in items if mark(name) not in evidence}
        found = {number for _, hits in self._hits(canaries, limit) for number, _ in hits}
        return Look(found=frozenset(found), how="bytes of every file scanned", unproven=unproven)

    @override
    def _hits(self, canaries: Sequence[bytes], limit: Deadline) -> list[tuple[str, Hits]]:
        Points(self._path, self._own, self.owner, limit).collections()
        wanted = Needles(canaries)
        areas: dict[str, Hits] = {}
        for file in files_below("qdrant", self._path):
            area = "collection files" if file.name.startswith(_STORAGE) else "other files"
            try:
                with file.open("rb") as stream:
                    areas[area] = areas.get(area, Counter()) + wanted.count(stream, limit)
            except FileNotFoundError:
                continue
            except OSError:
                raise StoreUnreachable("qdrant", "a file cannot be read") from None
        return [(area, hits) for area, hits in areas.items() if hits]

    @override
    def _more_forms(self, vector: Sequence[float]) -> tuple[bytes, ...]:
        return pickled_forms(vector)

    @contextmanager
    def _scratch(
        self, document: Mapping[str, str], vector: Sequence[float], limit: Deadline
    ) -> Iterator[dict[str, Any]]:
        name = f"muniment-check-{secrets.token_hex(8)}"
        Points(self._path, None, self.owner, limit).collections()
        try:
            with locked(self._path, limit):
                write_collection(self._path, name, Point(id=1, payload=dict(document), vectors=(tuple(vector),)))
            self._own = name
            yield {"collection": name, "id": 1}
        finally:
            self._own = None
            remove_collection(self._path, name)


class Points(Places):
    """The collections of a folder, one SQLite file each."""

    def __init__(self, path: Path, own: str | None, owner: Callable[[Point], str | None], limit: Deadline) -> None:
        self._path = path
        self._own = own
        self._owner = owner
        self._limit = limit

    @override
    def collections(self) -> list[str]:
        try:
            names = list(json.loads((self._path / "meta.json").read_bytes())["collections"])
        except PermissionError:
            raise WrongCredentials("qdrant", "the folder may not be read") from None
        except (OSError, ValueError, KeyError, TypeError):
            raise StoreUnreachable("qdrant", "there is no folder of Qdrant's local mode") from None
        base = (self._path / "collection").resolve()
        if any(not self._file(name).resolve().is_relative_to(base) for name in names):
            raise StoreUnreachable("qdrant", "a collection lies outside the folder")
        return sorted([*names, *([] if self._own is None else [self._own])])

    def _file(self, collection: str) -> Path:
        return self._path / "collection" / collection / _STORAGE

    def _opened(self, collection: str, *, write: bool) -> AbstractContextManager[sqlite3.Connection]:
        return opened("qdrant", self._file(collection), self._limit, write=write)

    @override
    def identify(self, collection: str, given: object) -> PointId:
        if isinstance(given, int) and 0 <= given < 2**64:
            return given
        if isinstance(given, str) and _UUID.fullmatch(given):
            return str(UUID(given))
        raise BadLocator("an id of Qdrant is a whole number or a UUID")

    @override
    def read(self, collection: str, ids: Sequence[PointId]) -> dict[PointId, list[Point]]:
        with self._opened(collection, write=False) as connection:
            rows = self._rows(connection, ids)
            # Of several rows that older clients left for an id, the newest is the point; all of them are deleted.
            return {identity: [self._point(connection, max(numbers))] for identity, numbers in rows.items()}

    @override
    def pages(self, collection: str) -> Iterator[list[Point]]:
        after = -(2**63)
        while True:
            self._limit.check()
            with self._opened(collection, write=False) as connection:
                rows = connection.execute(
                    "SELECT rowid, point FROM points WHERE rowid > ? ORDER BY rowid LIMIT ?", (after, _PAGE)
                ).fetchall()
            if not rows:
                return
            yield [_opened(blob) for _, blob in rows]
            after = rows[-1][0]

    @override
    def delete(self, collection: str, ids: Sequence[PointId], owners: frozenset[str] | None) -> None:
        with self._opened(collection, write=True) as connection:
            connection.execute("BEGIN IMMEDIATE")
            for numbers in self._rows(connection, ids).values():
                points = [self._point(connection, number) for number in numbers]
                if owners is None or all(self._owner(point) in owners for point in points):
                    connection.executemany("DELETE FROM points WHERE rowid = ?", [(number,) for number in numbers])
            connection.execute("COMMIT")

    def change_payloads(self, collection: str, changes: Mapping[PointId, Mapping[str, Any]]) -> None:
        """Give points other payloads and leave the rest of them as it is, all or none. Raises: StoreUnreachable."""
        with self._opened(collection, write=True) as connection:
            connection.execute("BEGIN IMMEDIATE")
            for identity, numbers in self._rows(connection, list(changes)).items():
                for number in numbers:
                    blob = connection.execute("SELECT point FROM points WHERE rowid = ?", (number,)).fetchone()[0]
                    try:
                        read, state = state_of(blob)
                        state["payload"] = dict(changes[identity])
                        written = write_pickle(read)
                    except (ValueError, KeyError, TypeError, AttributeError):
                        raise StoreUnreachable("qdrant", "a row holds a point that cannot be written back") from None
                    connection.execute("UPDATE points SET point = ? WHERE rowid = ?", (written, number))
            connection.execute("COMMIT")

    def _rows(self, connection: sqlite3.Connection, ids: Sequence[PointId]) -> dict[PointId, list[int]]:
        """Return the rows of each id. An id's key depends on its spelling and the client's age, so all are read."""
        wanted, found = set(ids), defaultdict(list)
        for number, key in connection.execute("SELECT rowid, id FROM points"):
            identity = _identity(key)
            if identity in wanted:
                found[identity].append(number)
        return dict(found)

    @staticmethod
    def _point(connection: sqlite3.Connection, number: int) -> Point:
        return _opened(connection.execute("SELECT point FROM points WHERE rowid = ?", (number,)).fetchone()[0])

    def vacuum(self, collection: str) -> bool:
        """Rewrite a collection's file; False where another process keeps its log."""
        with self._opened(collection, write=True) as connection:
            return rewrite(connection)


def _identity(key: str) -> PointId:
    """Return the id of a row's key, UUIDs in their one spelling. Raises: StoreUnreachable."""
    try:
        read = read_pickle(base64.b64decode(key))
    except (ValueError, TypeError):
        read = None
    if isinstance(read, str):
        return str(UUID(read)) if _UUID.fullmatch(read) else read
    if isinstance(read, int):
        return read
    raise StoreUnreachable("qdrant", "a row has a key that cannot be read")


def state_of(blob: bytes) -> tuple[Any, dict[str, Any]]:
    """Return what a row holds, and the part of it that is the point. Raises: ValueError, KeyError and the like."""
    read = read_pickle(blob)
    state = read.content["state"] if isinstance(read, Made) else read
    found: dict[str, Any] = state.get("__dict__", state)
    return read, found


def _opened(blob: bytes) -> Point:
    """Return the point of a row. Raises: StoreUnreachable."""
    try:
        _, state = state_of(blob)
        identity, payload = state["id"], state.get("payload") or {}
        vectors = tuple(tuple(each) for each in _vectors(state.get("vector")))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StoreUnreachable("qdrant", "a row holds a point that cannot be read") from None
    if isinstance(identity, str) and _UUID.fullmatch(identity):
        identity = str(UUID(identity))
    return Point(id=identity, payload=payload, vectors=vectors)


def _vectors(value: Any) -> Iterator[list[float]]:
    """Yield every run of numbers: one vector, named ones, several of one name, the values of a sparse one."""
    if isinstance(value, Made):
        value = value.content.get("state", {}).get("__dict__", {}).get("values")
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _vectors(each)
    elif isinstance(value, list) and value and isinstance(value[0], list):
        for each in value:
            yield from _vectors(each)
    elif isinstance(value, list) and value:
        yield [float(number) for number in value]


def write_collection(path: Path, name: str, point: Point) -> None:
    """Make a collection that no client of the folder knows, with one point. Raises: WrongCredentials."""
    folder = path / "collection" / name
    content = {"id": point.id, "vector": list(point.vectors[0]), "payload": point.payload}
    try:
        folder.mkdir(parents=True)
        with closing(sqlite3.connect(folder / _STORAGE, isolation_level=None)) as connection:
            connection.execute("CREATE TABLE points (id TEXT PRIMARY KEY, point BLOB)")
            key = base64.b64encode(write_pickle(point.id)).decode()
            connection.execute("INSERT INTO points VALUES (?, ?)", (key, write_pickle(content)))
    except (OSError, sqlite3.Error):
        raise WrongCredentials("qdrant", "the folder may not be written") from None


def remove_collection(path: Path, name: str) -> None:
    """Remove a collection that `write_collection` made."""
    shutil.rmtree(path / "collection" / name, ignore_errors=True)


def pickled_forms(vector: Sequence[float]) -> tuple[bytes, ...]:
    """Return the byte strings that a pickle has of a vector: head, middle and tail."""
    last = max(0, len(vector) - 12)
    windows = [vector[start : start + 12] for start in dict.fromkeys((0, last // 2, last))]
    return tuple(
        b"".join(b"G" + struct.pack(">d", number) for number in window)
        for window in windows
        if len({number for number in window if number}) >= _TELLING
    )


def mark(name: str) -> str:
    """Return how a collection is called in evidence, which names nobody."""
    return f"qdrant:{hashlib.sha256(name.encode()).hexdigest()[:16]}"


@contextmanager
def locked(path: Path, limit: Deadline) -> Iterator[None]:
    """Hold the lock that every client of the folder takes. Raises: StoreUnreachable, WrongCredentials, Timeout."""
    patience = Deadline("lock", min(_PATIENCE_S, limit.left()))
    try:
        lock = (path / ".lock").open("a+")
    except PermissionError:
        raise WrongCredentials("qdrant", "the folder may not be written") from None
    except OSError:
        raise StoreUnreachable("qdrant", "there is no such folder") from None
    with lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                limit.check()
                if patience.is_over():
                    why = "an application has the folder open, and would write from its memory: close it meanwhile"
                    raise StoreUnreachable("qdrant", why) from None
                time.sleep(0.05)
        yield
