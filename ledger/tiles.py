"""The public form of the tree: C2SP tile paths, tile bytes and entry bundles.

Guarantees: for one tree there is exactly one byte string per tile and one path per tile; a partial
tile never has the path of a full one. It does not store or fetch anything, and it does not know
whether the hashes it packs are right: a reader proves that against a checkpoint.

Source: c2sp.org/tlog-tiles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ledger.errors import MalformedTilePath
from ledger.merkle import HASH_SIZE, HashReader, node_hash

TILE_HEIGHT = 8
TILE_WIDTH = 1 << TILE_HEIGHT
MAX_LEVEL = 63
MAX_ENTRY_SIZE = 0xFFFF

_PATH = re.compile(r"tile/(entries|0|[1-9][0-9]?)/((?:x[0-9]{3}/){0,6}[0-9]{3})(?:\.p/([1-9][0-9]{0,2}))?")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Tile:
    """One tile's place: its level (`None` for an entry bundle), number and width of 1 to 256."""

    level: int | None
    n: int
    width: int = TILE_WIDTH

    @property
    def path(self) -> str:
        """The path below the log's prefix."""
        return _path("entries" if self.level is None else str(self.level), self.n, self.width)

    @property
    def is_full(self) -> bool:
        """Whether all 256 places are taken, so that the tile can never change."""
        return self.width == TILE_WIDTH


def tile_path(level: int, n: int, width: int = TILE_WIDTH) -> str:
    """Return the path of a hash tile. Raises: MalformedTilePath for values out of range."""
    if not 0 <= level <= MAX_LEVEL:
        reason = f"level {level} is not in 0..{MAX_LEVEL}"
        raise MalformedTilePath(reason)
    return _path(str(level), n, width)


def bundle_path(n: int, width: int = TILE_WIDTH) -> str:
    """Return the path of an entry bundle. Raises: MalformedTilePath for values out of range."""
    return _path("entries", n, width)


def parse_tile_path(path: str) -> Tile:
    """Return the place that a path names; exactly one spelling of each is accepted.

    Raises: MalformedTilePath.
    """
    found = _PATH.fullmatch(path)
    if found is None or not path.isascii():
        reason = "not a tile path"
        raise MalformedTilePath(reason)
    level = None if found[1] == "entries" else int(found[1])
    tile = Tile(
        level=level,
        n=int(found[2].replace("x", "").replace("/", "")),
        width=TILE_WIDTH if found[3] is None else int(found[3]),
    )
    # ".p/256" and padded numbers such as "x000/001" would be second names of one tile.
    if (level is not None and level > MAX_LEVEL) or tile.width > TILE_WIDTH or tile.path != path:
        reason = "not the canonical spelling of a tile path"
        raise MalformedTilePath(reason)
    return tile


def tiles_for(size: int) -> tuple[Tile, ...]:
    """Return every hash tile of a tree, level by level, the partial one of a level last."""
    found: list[Tile] = []
    level = 0
    while size >> (TILE_HEIGHT * level):
        full, width = divmod(size >> (TILE_HEIGHT * level), TILE_WIDTH)
        found.extend(Tile(level=level, n=n) for n in range(full))
        if width:
            found.append(Tile(level=level, n=full, width=width))
        level += 1
    return tuple(found)


def new_full_tiles(old_size: int, new_size: int) -> Iterator[Tile]:
    """Yield the hash tiles that are full in the new tree and were not in the old, lower levels first.

    Raises: MalformedTilePath when the tree shrinks.
    """
    if not 0 <= old_size <= new_size:
        reason = f"a tree cannot go from size {old_size} to size {new_size}"
        raise MalformedTilePath(reason)
    shift = TILE_HEIGHT
    while new_size >> shift:
        for n in range(old_size >> shift, new_size >> shift):
            yield Tile(level=shift // TILE_HEIGHT - 1, n=n)
        shift += TILE_HEIGHT


def tile_bytes(hashes: Sequence[bytes]) -> bytes:
    """Return the bytes of a tile of 1 to 256 hashes. Raises: MalformedTilePath."""
    if not 1 <= len(hashes) <= TILE_WIDTH or any(len(value) != HASH_SIZE for value in hashes):
        reason = "a tile holds 1 to 256 hashes of 32 bytes"
        raise MalformedTilePath(reason)
    return b"".join(hashes)


def parse_tile(data: bytes, width: int = TILE_WIDTH) -> tuple[bytes, ...]:
    """Return the hashes of a tile of exactly that width. Raises: MalformedTilePath."""
    if not 1 <= width <= TILE_WIDTH or len(data) != width * HASH_SIZE:
        reason = f"expected {width * HASH_SIZE} bytes, got {len(data)}"
        raise MalformedTilePath(reason)
    return tuple(data[at : at + HASH_SIZE] for at in range(0, len(data), HASH_SIZE))


def read_tile(tile: Tile, reader: HashReader) -> bytes:
    """Return the bytes of a hash tile, taken from a hash reader. Raises: MalformedTilePath."""
    if tile.level is None:
        reason = "an entry bundle has no hashes"
        raise MalformedTilePath(reason)
    level, first = tile.level * TILE_HEIGHT, tile.n * TILE_WIDTH
    return tile_bytes([reader(level, first + i) for i in range(tile.width)])


def entry_bundle(entries: Sequence[bytes]) -> bytes:
    """Return the bytes of an entry bundle of 1 to 256 entries, each of at most 65,535 bytes.

    Raises: MalformedTilePath.
    """
    if not 1 <= len(entries) <= TILE_WIDTH or any(len(entry) > MAX_ENTRY_SIZE for entry in entries):
        reason = "a bundle holds 1 to 256 entries of at most 65535 bytes"
        raise MalformedTilePath(reason)
    return b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries)


def parse_entry_bundle(data: bytes, width: int = TILE_WIDTH) -> tuple[bytes, ...]:
    """Return the entries of a bundle of exactly that width. Raises: MalformedTilePath."""
    found: list[bytes] = []
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 2], "big")
        end = at + 2 + length
        if at + 2 > len(data) or end > len(data):
            reason = "the bundle ends inside an entry"
            raise MalformedTilePath(reason)
        found.append(data[at + 2 : end])
        at = end
    if len(found) != width:
        reason = f"expected {width} entries, got {len(found)}"
        raise MalformedTilePath(reason)
    return tuple(found)


def tile_holding(level: int, index: int, size: int) -> Tile:
    """Return the tile of the tree of `size` leaves that node (level, index) is computed from.

    Raises: MalformedTilePath when the tree has no such complete subtree.
    """
    if level < 0 or index < 0 or (index + 1) << level > size:
        reason = f"no complete subtree {index} at level {level} in a tree of size {size}"
        raise MalformedTilePath(reason)
    tile_level, height = divmod(level, TILE_HEIGHT)
    n = (index << height) // TILE_WIDTH
    return Tile(level=tile_level, n=n, width=min(TILE_WIDTH, (size >> (tile_level * TILE_HEIGHT)) - n * TILE_WIDTH))


def reader_over_tiles(size: int, fetch: Callable[[Tile], bytes]) -> HashReader:
    """Return a hash reader over the tiles of the tree of `size` leaves.

    Each tile is fetched at most once and stays in memory with the reader. The hashes are not trusted
    by themselves: compare the root built from them with a signed one.
    Raises (when read): MalformedTilePath for a missing subtree or a tile of the wrong length.
    """
    held: dict[Tile, tuple[bytes, ...]] = {}

    def read(level: int, index: int) -> bytes:
        tile = tile_holding(level, index, size)
        if tile not in held:
            held[tile] = parse_tile(fetch(tile), tile.width)
        height = level % TILE_HEIGHT
        first = (index << height) - tile.n * TILE_WIDTH
        nodes = list(held[tile][first : first + (1 << height)])
        while len(nodes) > 1:
            nodes = [node_hash(nodes[i], nodes[i + 1]) for i in range(0, len(nodes), 2)]
        return nodes[0]

    return read


def _path(kind: str, n: int, width: int) -> str:
    if n < 0 or not 1 <= width <= TILE_WIDTH:
        reason = f"number {n} or width {width} is out of range"
        raise MalformedTilePath(reason)
    groups = [f"{n % 1000:03d}"]
    rest = n // 1000
    while rest:
        groups.append(f"x{rest % 1000:03d}")
        rest //= 1000
    suffix = "" if width == TILE_WIDTH else f".p/{width}"
    return f"tile/{kind}/{'/'.join(reversed(groups))}{suffix}"
