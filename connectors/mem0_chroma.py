"""mem0's collections in a folder of Chroma: read from its files, changed by Chroma's engine.

Guarantees: every collection of the folder is looked into. Owners are a condition of the delete itself. `reclaim` copies
the collections and rewrites the database as kind `chroma` does, and `look` finds vectors in indexes that a byte scan
does not see. Source: mem0ai 2.2.1 (vector_stores/chroma.py), store-recipes.md §2.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from connectors.base import Level, Residue
from connectors.chroma import ChromaConnector, Records, mark
from connectors.chroma_engine import engine
from connectors.chroma_files import DATABASE, DEFAULT
from connectors.errors import StoreUnreachable, WrongCredentials
from connectors.sql_database import Bytes
from connectors.vector_store import VectorConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from connectors.base import Deadline, ReclaimReport
    from connectors.vector_store import Point, PointId

_AS_VECTOR = "float32, any length"
_UNPROVEN = "a collection was not copied since, so its indexes may keep memories"


def chroma_below(path: Path) -> Path:
    """Return the one folder of Chroma in a folder or directly below it. Raises: StoreUnreachable."""
    try:
        inside = [path, *sorted(each for each in path.iterdir() if each.is_dir() and not each.is_symlink())]
        found = [each for each in inside if (each / DATABASE).is_file()]
    except PermissionError:
        raise WrongCredentials("mem0", "the folder, or one in it, may not be read") from None
    except OSError:
        raise StoreUnreachable("mem0", "there is no such folder") from None
    if len(found) != 1:
        raise StoreUnreachable("mem0", f"{len(found)} folders of Chroma lie in it or directly below it, not one")
    return found[0]


class Collections(Records):
    """The collections of one folder, for the length of one call; `own` alone where it is given."""

    def __init__(self, path: Path, owner_field: str | None, limit: Deadline, *, own: str | None) -> None:
        super().__init__(path, owner_field, limit)
        self._connector = ChromaConnector(VectorConfig(path=path, owner_field=owner_field), path, read_only=False)
        self._own = own

    @override
    def collections(self) -> list[str]:
        return [name for name in super().collections() if self._own in (None, name)]

    def change_payloads(self, collection: str, changes: Mapping[PointId, Mapping[str, Any]]) -> None:
        """Give records other metadata and leave the rest of them as it is. Raises: StoreUnreachable."""
        place = self._known[collection]
        if changes:
            with engine(self._path, self._limit) as running:
                running.call(
                    "update",
                    place.uid,
                    [str(identity) for identity in changes],
                    [dict(payload) for payload in changes.values()],
                    place.tenant,
                    place.database,
                )

    def reclaim(self, level: Level, now: datetime) -> ReclaimReport:
        """Copy the collections, remove what is left of them and rewrite the database."""
        return self._connector.renew(self.collections(), self._limit)

    def look(self, canaries: Sequence[bytes], reclaimed: ReclaimReport | None) -> Bytes:
        """Look for canaries in every file, and for vectors in every index."""
        evidence = {} if reclaimed is None else reclaimed.evidence
        is_proven = all(mark(name) in evidence for name in self.collections())
        found = {number for _, hits in self._connector.scan(canaries, self._limit) for number, _ in hits}
        how = "vectors of every index compared"
        return Bytes(found=frozenset(found), how=how, could_not_check=None if is_proven else _UNPROVEN)

    def residue(self, canaries: Sequence[bytes]) -> list[Residue]:
        """Return the vectors that indexes hold; bytes of files are looked for with those of the history."""
        return [
            Residue(where="vector index", count=count, encoding=form, canary=number)
            for _, hits in self._connector.scan(canaries, self._limit)
            for (number, form), count in hits.items()
            if form == _AS_VECTOR
        ]

    def make(self, name: str, point: Point) -> None:
        """Make a collection with one record, and one that stays."""
        vector = list(point.vectors[0])
        records = {
            "ids": [str(point.id), "00000000-0000-4000-8000-000000000000"],
            "vectors": [vector, [1.0] * len(vector)],
            "metadatas": [dict(point.payload), None], "documents": [None, None], "uris": None,
        }  # fmt: skip
        with engine(self._path, self._limit) as running:
            running.call("add", running.call("make", name, *DEFAULT), records, *DEFAULT)

    def drop(self, name: str) -> None:
        """Remove a collection that `make` made."""
        self._connector.remove(name, self._limit)
