"""The public tiles of the tree, compared with what the batches give.

Guarantees: every full tile under a good checkpoint is there with exactly the bytes that the batches give; a tile beyond
the end of the log says that the log was longer once. Tiles are a cache that `rebuild` makes again: a wrong one is a
fault, but never the only copy of anything. Partial tiles are made on request and not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from audit.findings import Findings, Verdict
from audit.reader import Reader
from ledger.errors import MalformedTilePath, ObjectHidden, ObjectMissing, StoreDenied, StoreUnavailable
from ledger.tiles import TILE_HEIGHT, TILE_WIDTH, parse_tile_path, tile_bytes, tile_path

_REBUILD = "tiles are made again from the batches: muniment rebuild"


@dataclass(slots=True, kw_only=True)
class TileCheck:
    """Follows the growing tree; `reader` is the unlocked store."""

    reader: Reader
    prefix: str
    findings: Findings
    _tails: list[list[bytes]] = field(default_factory=lambda: [[]])
    _made: list[int] = field(default_factory=lambda: [0])
    _pending: list[tuple[int, str, bytes]] = field(default_factory=list)

    def grow(self, rows: Sequence[Sequence[bytes]]) -> None:
        """Take the next complete subtrees of the tree, by level, as `Frontier.append_many` gives them."""
        for level in range(-(-len(rows) // TILE_HEIGHT)):
            if level == len(self._tails):
                self._tails.append([])
                self._made.append(0)
            tail = self._tails[level]
            tail += rows[level * TILE_HEIGHT]
            while len(tail) >= TILE_WIDTH:
                full, tail[:] = tail[:TILE_WIDTH], tail[TILE_WIDTH:]
                number = self._made[level]
                self._made[level] += 1
                end = (number + 1) << (TILE_HEIGHT * (level + 1))
                self._pending.append((end, tile_path(level, number), tile_bytes(full)))

    def settle(self, size: int) -> None:
        """Compare the tiles that a good checkpoint of this size covers."""
        due = [item for item in self._pending if item[0] <= size]
        self._pending = [item for item in self._pending if item[0] > size]
        for end, path, wanted in due:
            self._compare(end, path, wanted)

    def beyond(self, size: int) -> None:
        """Look for tiles of a longer log than this one."""
        folder = f"{self.prefix}tile/0/"
        last = None
        try:
            for key in self.reader.list(folder):
                tile = parse_tile_path(key.removeprefix(self.prefix))
                if tile.is_full:
                    last = max(last or 0, tile.n)
        except MalformedTilePath:
            self.findings.add(Verdict.ALTERED, f"an object that is no tile lies among them; {_REBUILD}", object=folder)
        except (StoreUnavailable, StoreDenied) as error:
            self.findings.add(Verdict.UNREADABLE, f"tiles could not be listed: {error.detail}", object=folder)
        if last is not None and (last + 1) * TILE_WIDTH > size:
            detail = (
                f"the unlocked store holds tiles of a log of {(last + 1) * TILE_WIDTH} entries or more, the bucket has "
                f"{size}: entries were taken away after they were signed"
            )
            self.findings.add(Verdict.ROLLED_BACK, detail, object=f"{self.prefix}{tile_path(0, last)}", index=size)

    def _compare(self, end: int, path: str, wanted: bytes) -> None:
        key = f"{self.prefix}{path}"
        try:
            found = self.reader.get(key)
        except ObjectMissing:
            self.findings.add(Verdict.MISSING, f"a full tile is missing; {_REBUILD}", object=key, index=None)
            return
        except ObjectHidden:
            self.findings.add(Verdict.HIDDEN, f"a delete marker lies over a tile; {_REBUILD}", object=key)
            return
        except (StoreUnavailable, StoreDenied) as error:
            self.findings.add(Verdict.UNREADABLE, f"could not be read: {error.detail}", object=key)
            return
        if found == wanted:
            return
        index = None
        if path.startswith("tile/0/"):
            first = end - TILE_WIDTH
            pairs = range(0, len(wanted), len(wanted) // TILE_WIDTH)
            width = len(wanted) // TILE_WIDTH
            index = next(
                (first + at // width for at in pairs if found[at : at + width] != wanted[at : at + width]), None
            )
        self.findings.add(
            Verdict.ALTERED, f"the tile has other hashes than the batches; {_REBUILD}", object=key, index=index
        )
