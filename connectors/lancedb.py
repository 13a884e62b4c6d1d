"""Kind `lancedb`: rows of LanceDB tables in a folder.

Config: `{"path": absolute folder, "owner_field"?: column, members of members by dots}`. Locator:
`{"collection": table, "id": value of the column "id"}`. Works on the Lance format itself, without LanceDB's package and
its registry of embedding functions.

Guarantees, beyond those of `vector_store`: a deleted row is only marked, and every version keeps the files it had, so
`reclaim` rewrites each fragment with a deletion (LanceDB's own `optimize` leaves fragments with a tenth deleted or
less), trains vector indexes anew, makes a version whose log entry names nobody, and removes every earlier version. L2
is claimed when none of the earlier fragments, versions and files is left; a tag or branch that keeps one is reported,
as a hold would be. `verify` and `residue` decode every file: Lance compresses texts, so a byte scan alone is blind.
Nothing of other writers is removed: a file that belongs to no version yet keeps the level at L1 for an hour.
Source: reference/store-recipes.md §2.3.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
import time
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
from lance.file import LanceFileReader
from typing_extensions import override

from connectors.base import Deadline, Level, ReclaimReport
from connectors.directions import alike
from connectors.errors import BadConfig, BadLocator, StoreUnreachable, WrongCredentials
from connectors.own_files import files_below
from connectors.residue import Hits, Needles
from connectors.vector_store import Look, Places, Point, PointId, VectorConfig, VectorConnector, report, vector_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_END = ".lance"
_ID = "id"
_PAGE = 1000
_TRIES = 3
_UNFINISHED = timedelta(hours=1)
"""A file that belongs to no version and was not written to for this long is no write under way."""
_VECTOR_INDEX = "/lance.index.pb.VectorIndexDetails"
_REMAPPED = frozenset({"BTreeIndexDetails", "BitmapIndexDetails", "InvertedIndexDetails"})
"""Indexes that compaction writes anew from the rows that stay; shown by a test for each."""
_AREAS = {
    "data": "data files", "_indices": "index files", "_versions": "versions", "_deletions": "deletion files",
    "_transactions": "transaction log", "_refs": "tags and branches",
}  # fmt: skip
_FAULTS = (OSError, ValueError, RuntimeError)
"""What Lance raises; pyarrow's errors are among them."""


def open_store(config: Mapping[str, Any], *, read_only: bool) -> LanceConnector:
    """Return the connector of a folder of tables. Raises: BadConfig."""
    read = vector_config(config)
    if read.path is None:
        raise BadConfig("path is missing")
    return LanceConnector(read, read.path, read_only=read_only)


class LanceConnector(VectorConnector):
    """Drives the tables of one folder."""

    kind = "lancedb"
    method = "delete by id, a new version"
    locks = "nothing; reclaim waits for writers that commit, and readers of earlier versions must open the table anew"

    def __init__(self, config: VectorConfig, path: Path, *, read_only: bool) -> None:
        if config.owner_field is not None and config.owner_field.startswith("_"):
            raise BadConfig("owner_field is one of Lance's own columns")
        super().__init__(config, read_only=read_only)
        self._path = path

    @contextmanager
    def _open(self, limit: Deadline, *, read_only: bool) -> Iterator[_Tables]:
        limit.check()
        yield _Tables(self._path, self._config.owner_field, limit)

    @override
    def _free(self, collections: Sequence[str], limit: Deadline) -> ReclaimReport:
        method = "compaction of every deletion, indexes anew, earlier versions removed"
        tables = _Tables(self._path, None, limit)
        known, reached, evidence = set(tables.collections()), Level.L2, {}
        said: list[str] = []
        for name in collections:
            if name not in known:
                continue
            freed = _Freed(tables, name, limit)
            freed.run()
            said += freed.said
            if freed.why:
                reached = Level.L1
                said += freed.why
            else:
                evidence[mark(name)] = str(freed.fresh)
        detail = "; ".join(said) or "no table was touched"
        return report(
            reached, f"{detail}; freed disk blocks and copies of the folder were not looked at", method, evidence
        )

    @override
    def _look(
        self, items: Sequence[tuple[str, PointId]], canaries: Sequence[bytes], reclaimed: ReclaimReport | None,
        limit: Deadline,
    ) -> Look:  # fmt: skip
        unproven: dict[str, str] = {}
        tables = _Tables(self._path, None, limit)
        evidence = {} if reclaimed is None else reclaimed.evidence
        for name in {name for name, _ in items}:
            oldest = min(version["version"] for version in tables.open(name).versions())
            if mark(name) not in evidence:
                unproven[name] = "the table was not reclaimed, so earlier versions and indexes may keep rows"
            elif oldest < int(evidence[mark(name)]):
                unproven[name] = "a version from before the erasure is there again"
        scan = _Scan(self._path, canaries, limit)
        found = {number for _, hits in scan.run() for number, _ in hits}
        if scan.unread:
            unproven |= {name: f"{scan.unread} files cannot be decoded" for name, _ in items}
        return Look(found=frozenset(found), how="every file decoded and its bytes scanned", unproven=unproven)

    @override
    def _hits(self, canaries: Sequence[bytes], limit: Deadline) -> list[tuple[str, Hits]]:
        return _Scan(self._path, canaries, limit).run()

    @contextmanager
    def _scratch(
        self, document: Mapping[str, str], vector: Sequence[float], limit: Deadline
    ) -> Iterator[dict[str, Any]]:
        name = f"muniment-check-{secrets.token_hex(8)}"
        row: dict[str, Any] = {_ID: "canary", "vector": list(vector)}
        for key, text in document.items():
            inner = row
            *outer, last = key.split(".")
            for part in outer:
                inner = inner.setdefault(part, {})
            inner[last] = text
        _Tables(self._path, None, limit).collections()
        schema = pa.table({key: [value] for key, value in row.items() if key != "vector"}).schema
        schema = schema.append(pa.field("vector", pa.list_(pa.float32(), len(vector))))
        folder = self._path / f"{name}{_END}"
        try:
            with _refusals("write"):
                lance.write_dataset(pa.Table.from_pylist([row, {_ID: "stays"}], schema=schema), str(folder))
            yield {"collection": name, "id": "canary"}
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class _Tables(Places):
    """The tables of a folder, read and written as Lance datasets."""

    def __init__(self, path: Path, owner_field: str | None, limit: Deadline) -> None:
        self._path = path
        self._owner_field = owner_field
        self._limit = limit
        self._kinds: dict[str, pa.DataType | None] = {}

    @override
    def collections(self) -> list[str]:
        try:
            inside = [each for each in self._path.iterdir() if each.name.endswith(_END) and not each.is_symlink()]
            names = [each.name for each in inside if each.is_dir()]
        except PermissionError:
            raise WrongCredentials("lancedb", "the folder may not be read") from None
        except OSError:
            raise StoreUnreachable("lancedb", "there is no such folder") from None
        if not names:
            # A folder beside the right one looks just like that, and would prove everybody absent.
            raise StoreUnreachable("lancedb", "there is no table in the folder")
        return sorted(name.removesuffix(_END) for name in names)

    def open(self, name: str) -> lance.LanceDataset:
        """Return the newest version of a table that `collections` named. Raises: StoreUnreachable."""
        self._limit.check()
        with _refusals("read"):
            return lance.dataset(str(self._path / f"{name}{_END}"))

    @override
    def identify(self, collection: str, given: object) -> PointId:
        if collection not in self._kinds:
            schema = self.open(collection).schema
            self._kinds[collection] = schema.field(_ID).type if _ID in schema.names else None
        kind = self._kinds[collection]
        if kind is None:
            raise BadLocator("the table has no column id")
        if isinstance(given, str) and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            return given
        if isinstance(given, int) and pa.types.is_integer(kind) and -(2**63) <= given < 2**63:
            return given
        raise BadLocator("id is not of the type of the column id")

    @override
    def read(self, collection: str, ids: Sequence[PointId]) -> dict[PointId, list[Point]]:
        found: dict[PointId, list[Point]] = {}
        dataset = self.open(collection)
        with _refusals("read"):
            for batch in dataset.to_batches(filter=_among(_ID, ids)):
                for point in _points(batch):
                    found.setdefault(point.id, []).append(point)
        return found

    @override
    def pages(self, collection: str) -> Iterator[list[Point]]:
        dataset = self.open(collection)
        if _ID not in dataset.schema.names:
            return
        batches = dataset.to_batches(batch_size=_PAGE)
        while True:
            self._limit.check()
            with _refusals("read"):
                batch = next(batches, None)
            if batch is None:
                return
            yield _points(batch)

    @override
    def hides(self, collection: str, owners: frozenset[str]) -> bool:
        dataset = self.open(collection)
        if str(self._owner_field).split(".")[0] not in dataset.schema.names or not owners:
            return False
        missing = "" if _ID not in dataset.schema.names else f" AND `{_ID}` IS NULL"
        with _refusals("read"):
            return bool(dataset.count_rows(f"{self._owned(dataset, owners)}{missing}"))

    def _owned(self, dataset: lance.LanceDataset, owners: frozenset[str]) -> str:
        name = str(self._owner_field)
        parts = [name] if name in dataset.schema.names else name.split(".")
        column = ".".join(f"`{part}`" for part in parts)
        return f"CAST({column} AS string) IN ({', '.join(_quoted(form) for form in sorted(owners))})"

    @override
    def delete(self, collection: str, ids: Sequence[PointId], owners: frozenset[str] | None) -> None:
        dataset = self.open(collection)
        wanted = _among(_ID, ids)
        if owners is not None:
            wanted += f" AND {self._owned(dataset, owners)}"
        with _refusals("write"):
            dataset.delete(wanted)


class _Freed:
    """Frees one table, and tells what is left of before: `why` is empty when nothing is."""

    def __init__(self, tables: _Tables, name: str, limit: Deadline) -> None:
        self._tables = tables
        self._name = name
        self._limit = limit
        self.fresh = 0
        self.said: list[str] = []
        self.why: list[str] = []

    def run(self) -> None:
        """1. note what is there; 2. compact; 3. indexes; 4. a version that names nobody; 5. remove; 6. look."""
        dataset = self._tables.open(self._name)
        with _refusals("read"):
            before = _files(dataset)  # 1
            marked = {part.fragment_id: part.num_deletions for part in dataset.get_fragments() if part.num_deletions}
        self._again(
            lambda each: each.optimize.compact_files(
                materialize_deletions=True, materialize_deletions_threshold=0.0, defer_index_remap=False
            )
        )  # 2
        indexes = self._indexes()  # 3
        self._again(lambda each: each.delete("false"))  # 4
        dataset = self._tables.open(self._name)
        self.fresh = dataset.version
        self._clean(before)  # 5
        rows = f"{sum(marked.values())} deleted rows in {len(marked)} fragments"
        self.said.append(f"{rows} written away, {indexes} vector indexes anew")
        self._judge(before, marked)  # 6

    def _again(self, step: Any) -> None:
        """Do a step on the newest version; again where another writer came first. Raises: StoreUnreachable."""
        for attempt in range(_TRIES):
            dataset = self._tables.open(self._name)
            try:
                step(dataset)
            except _FAULTS as fault:
                if "conflict" not in str(fault).lower() or attempt == _TRIES - 1:
                    raise StoreUnreachable("lancedb", "the table cannot be written") from None
                time.sleep(min(0.1, self._limit.left()))
            else:
                return

    def _indexes(self) -> int:
        """Train vector indexes anew, so that no centre or code book knows a deleted vector; return their number."""
        dataset = self._tables.open(self._name)
        with _refusals("read"):
            kinds = [(index.name, index.type_url) for index in dataset.describe_indices()]
        vectors = [name for name, url in kinds if url == _VECTOR_INDEX]
        if vectors and dataset.count_rows():
            self._again(lambda each: each.optimize.optimize_indices(retrain=True, index_names=vectors))
        elif vectors:
            self._again(lambda each: [each.drop_index(name) for name in vectors])
        others = Counter(url.rpartition(".")[2] for _, url in kinds if url != _VECTOR_INDEX)
        for unknown in sorted(set(others) - _REMAPPED):
            self.why.append(f"an index of type {unknown} may keep values of deleted rows: drop it and build it anew")
        return len(vectors)

    def _clean(self, before: frozenset[str]) -> None:
        """Remove earlier versions and their files; files of no version only when nobody writes them any more."""
        with _refusals("write"):
            dataset = self._tables.open(self._name)
            dataset.cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
            stray = _stray(dataset, before)
            newest = max((written for _, written in stray), default=None)
            # The clock of the folder's machine wrote these times; so did it write them for everybody else's files.
            if newest is not None and datetime.now(UTC) - newest > _UNFINISHED:
                dataset.cleanup_old_versions(
                    older_than=timedelta(0), error_if_tagged_old_versions=False, delete_unverified=True
                )

    def _judge(self, before: frozenset[str], marked: Mapping[int, int]) -> None:
        with _refusals("read"):
            dataset = self._tables.open(self._name)
            kept = [each for each in dataset.versions() if each["version"] < self.fresh]
            left = [part for part in dataset.get_fragments() if part.fragment_id in marked]
            stray = _stray(dataset, before)
            names = len(dataset.tags.list()), len(dataset.branches.list())
        if kept:
            self.why.append(
                f"{len(kept)} earlier versions are kept ({names[0]} tags, {names[1]} branches): remove those first"
            )
        if left:
            self.why.append(f"{len(left)} fragments with deleted rows could not be written anew")
        if stray and not kept:
            self.why.append(
                f"{len(stray)} files belong to no version: a write under way, or broken off within the hour"
            )


class _Scan:
    """Looks for canaries in every file below the folder: in its bytes, and in what it decodes to."""

    def __init__(self, path: Path, canaries: Sequence[bytes], limit: Deadline) -> None:
        self._path = path
        self._canaries = canaries
        self._wanted = Needles(canaries)
        self._limit = limit
        self.unread = 0

    def run(self) -> list[tuple[str, Hits]]:
        """Return hits by area. Raises: Timeout, StoreUnreachable."""
        areas: dict[str, Hits] = {}
        for file in files_below("lancedb", self._path):
            parts = file.relative_to(self._path).parts
            area = _AREAS.get(parts[1] if len(parts) > 2 else "", "other files")  # noqa: PLR2004 -- table/area/file
            try:
                with file.open("rb") as stream:
                    hits = self._wanted.count(stream, self._limit)
            except FileNotFoundError:
                # Another process removed it; what it held is not in the files any more.
                continue
            except OSError:
                raise StoreUnreachable("lancedb", "a file cannot be read") from None
            if area in {"data files", "index files"}:
                # What is seen both ways is one place.
                decoded = self._decoded(file, is_index=area == "index files")
                hits = Counter({key: max(hits[key], decoded[key]) for key in {*hits, *decoded}})
            areas[area] = areas.get(area, Counter()) + hits
        return [(area, hits) for area, hits in areas.items() if hits]

    def _decoded(self, file: Path, *, is_index: bool) -> Hits:
        hits: Hits = Counter()
        try:
            for batch in LanceFileReader(str(file)).read_all(batch_size=_PAGE).to_batches():
                chunks = (piece for column in batch.columns for piece in _values(column))
                hits += self._wanted.count_chunks(chunks, self._limit)
                for column in batch.columns if is_index else ():
                    # A cosine index keeps vectors at length one, rounded its own way.
                    if pa.types.is_fixed_size_list(column.type) and pa.types.is_floating(column.type.value_type):
                        rows = np.asarray(column.flatten().to_numpy(zero_copy_only=False), dtype="<f4")
                        near = alike(rows.reshape(-1, column.type.list_size), self._canaries)
                        hits += Counter({(number, "float32, any length"): count for number, count in near.items()})
        except FileNotFoundError:
            return Counter()
        except _FAULTS:
            self.unread += 1
        return hits


def _values(column: pa.Array) -> Iterator[bytes]:
    """Yield the values of a column as bytes: texts with a break between them, numbers of vectors as float32."""
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        yield from _values(column.storage)
    elif pa.types.is_dictionary(kind):
        yield from _values(column.dictionary)
    elif pa.types.is_struct(kind):
        for child in column.flatten():
            yield from _values(child)
    elif pa.types.is_floating(kind):
        yield np.asarray(column.to_numpy(zero_copy_only=False), dtype="<f4").tobytes()
        yield b"\0"
    elif hasattr(column, "flatten") and pa.types.is_nested(kind):
        yield from _values(column.flatten())
    elif not pa.types.is_null(kind) and not pa.types.is_primitive(kind):
        for value in column.to_pylist():
            if isinstance(value, str | bytes):
                yield value if isinstance(value, bytes) else value.encode(errors="surrogatepass")
                yield b"\0"


def _points(batch: pa.RecordBatch) -> list[Point]:
    vectors = [field.name for field in batch.schema if _is_vector(field.type)]
    points = []
    # A row without an id cannot be named; `hides` tells of those that are somebody's.
    for row in (each for each in batch.to_pylist() if each[_ID] is not None):
        numbers = (row.get(name) for name in vectors)
        payload = {name: value for name, value in row.items() if name not in vectors and name != _ID}
        points.append(
            Point(id=row[_ID], payload=payload, vectors=tuple(tuple(map(float, each)) for each in numbers if each))
        )
    return points


def _is_vector(kind: pa.DataType) -> bool:
    return bool((pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind)) and pa.types.is_floating(kind.value_type))


def _among(column: str, ids: Sequence[PointId]) -> str:
    return f"`{column}` IN ({', '.join(_quoted(each) if isinstance(each, str) else str(int(each)) for each in ids)})"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def mark(name: str) -> str:
    """Return how a table is called in evidence, which names nobody."""
    return f"lancedb:{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _files(dataset: lance.LanceDataset) -> frozenset[str]:
    return frozenset(row["path"] for batch in dataset.all_files() for row in batch.to_pylist())


def _stray(dataset: lance.LanceDataset, before: frozenset[str]) -> list[tuple[str, datetime]]:
    """Return the files from before with content that no version needs, and when they were written."""
    tracked = frozenset(row["path"] for batch in dataset.tracked_files() for row in batch.to_pylist())
    return [
        (row["path"], row["last_modified"])
        for batch in dataset.all_files()
        for row in batch.to_pylist()
        if row["path"] in before
        and row["path"] not in tracked
        and row["path"].partition("/")[0] in {"data", "_indices"}
    ]


@contextmanager
def _refusals(verb: str) -> Iterator[None]:
    """Turn what Lance raises into our errors, without its text, which holds paths and values."""
    try:
        yield
    except PermissionError:
        raise WrongCredentials("lancedb", f"a table may not be {'read' if verb == 'read' else 'written'}") from None
    except _FAULTS:
        raise StoreUnreachable("lancedb", f"a table cannot be {'read' if verb == 'read' else 'written'}") from None
