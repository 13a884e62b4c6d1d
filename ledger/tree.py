"""The growing tree of one log: full tiles in a store, the tails of every level in memory.

Guarantees: a full tile is written once and an existing one must be equal, otherwise `LogForked`. A tile that is read is
compared with the level above it, up to the tails, which stand under the root; what the store gives in place of a tile
is never in a proof: it is made again from the leaves or from the tiles below it, or where these are damaged too from
the leaves alone, and where that does not lead to the same root it is RecordDamaged. What `open` reads is under the root
that its caller compares. Not here: batches, checkpoints, signatures. Source: RFC 6962 §2.1, c2sp.org/tlog-tiles.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import Enum, auto
from itertools import islice

from ledger.errors import BadProof, LogForked, MalformedTilePath, ObjectExists, ObjectMissing, RecordDamaged
from ledger.merkle import Frontier, root
from ledger.tiles import TILE_WIDTH, parse_tile, tile_bytes, tile_path

_TILE_HEIGHT = 8
_HELD_TILES = 256
_MANY, _TOGETHER = 4, 8
"""So many tiles are stored at once, and so many of them together."""
_LEAVES_AT_ONCE = 1 << 16


class Again(Enum):
    """What `open` makes again instead of reading it, for a store whose tiles do not lead to the right root."""

    NOTHING = auto()
    LEAVES = auto()
    """The newest tiles of leaves, from the leaves."""
    ABOVE = auto()
    """Those, and the newest tiles of each level above from the tiles below them: 256 are read for each."""
    EVERYTHING = auto()
    """The whole tree, from the leaves alone (`Tree.make_again`): every batch is read."""


class Tree:
    """A tree whose full tiles lie behind `put` (create, or accept an equal one) and `get`.

    `put_together`, if given, creates many and refuses with ObjectExists where one is there. `leaves` gives the leaf
    hashes of a tile by its number, from where the log really lies; `mend` replaces a tile that was lost or damaged.
    """

    def __init__(
        self,
        *,
        put: Callable[[str, bytes], None],
        get: Callable[[str], bytes],
        leaves: Callable[[int], Sequence[bytes]] | None = None,
        mend: Callable[[str, bytes], None] = lambda _path, _data: None,
        put_together: Callable[[Sequence[tuple[str, bytes]]], None] | None = None,
    ) -> None:
        self._put = put
        self._put_together = put_together
        self._get = get
        self._leaves = leaves
        self._mend = mend
        self._frontier = Frontier()
        self._tails: list[list[bytes]] = [[]]
        self._held: OrderedDict[str, tuple[bytes, ...]] = OrderedDict()
        self._is_made = False

    @property
    def size(self) -> int:
        """The number of leaves."""
        return self._frontier.size

    def open(self, size: int, tail: Sequence[bytes], *, again: Again = Again.NOTHING) -> None:
        """Take up the tree of `size` leaves; `tail` are the leaf hashes after its last full tile.

        Raises: BadProof when the tail does not fit the size, RecordDamaged for a tile that is none.
        """
        if len(tail) != size % TILE_WIDTH:
            reason = f"a tree of size {size} has {size % TILE_WIDTH} leaves after its last full tile, got {len(tail)}"
            raise BadProof(reason)
        # Of a tree that was open before nothing is known any more: its tiles may be why it is opened again.
        self._frontier, self._tails, self._held, self._is_made = Frontier(), [list(tail)], OrderedDict(), False
        if again is not Again.NOTHING and self._leaves is not None:
            self._make_again(size, 1 if again is Again.LEAVES else size.bit_length())
        level = 1
        while count := size >> (_TILE_HEIGHT * level):
            first = count - count % TILE_WIDTH
            self._tails.append([root(self._tile(level - 1, n)) for n in range(first, count)])
            level += 1
        nodes: list[bytes] = []
        start = 0
        for bit in reversed(range(size.bit_length())):
            if size >> bit & 1:
                nodes.append(self._node(size, bit, start >> bit))
                start += 1 << bit
        self._frontier = Frontier.from_nodes(size, nodes)

    def _make_again(self, size: int, levels: int) -> None:
        for level in range(levels):
            count = size >> (_TILE_HEIGHT * (level + 1))
            for number in range(count - count % TILE_WIDTH, count):
                self._held[tile_path(level, number)] = self._made(level, number)

    def make_again(self, size: int, leaves: Iterable[bytes]) -> None:
        """Take up the tree of these leaves, without a look at any tile; `mend` then compares them all with it.

        Raises: BadProof unless there are `size` leaves.
        """
        self._frontier, self._tails, self._held, self._is_made = Frontier(), [[]], OrderedDict(), True
        source = iter(leaves)
        while some := list(islice(source, _LEAVES_AT_ONCE)):
            self.grow(some)
        if self.size != size:
            reason = f"expected {size} leaves, got {self.size}"
            raise BadProof(reason)

    def append(self, leaves: Iterable[bytes]) -> None:
        """Add leaf hashes and store every tile that becomes full. Raises: LogForked, and what the store raises.

        After an error the tree is to be opened again.
        """
        self._put_all(self.grow(leaves))

    def grow(self, leaves: Iterable[bytes]) -> list[tuple[str, bytes]]:
        """Add leaf hashes; return the tiles that became full, which are not stored yet."""
        before = self.size
        rows = self._frontier.append_many(leaves)
        full: list[tuple[str, bytes]] = []
        for level in range(-(-len(rows) // _TILE_HEIGHT)):
            if level == len(self._tails):
                self._tails.append([])
            tail = self._tails[level]
            tail += rows[level * _TILE_HEIGHT]
            number = before >> (_TILE_HEIGHT * (level + 1))
            while len(tail) >= TILE_WIDTH:
                full.append((tile_path(level, number), tile_bytes(tail[:TILE_WIDTH])))
                del tail[:TILE_WIDTH]
                number += 1
        return full

    def restore(self, tiles: Sequence[tuple[str, bytes]]) -> None:
        """Store tiles that are under a signed root: whatever else lies in the place of one is replaced."""
        try:
            self._put_all(tiles)
        except LogForked:
            for path, data in tiles:
                self._mend_unless_equal(path, data)

    def _put_all(self, tiles: Sequence[tuple[str, bytes]]) -> None:
        """Store tiles, several at a time where there are many: each waits for its disk or its answer alone."""
        if len(tiles) < _MANY:
            for path, data in tiles:
                self._put(path, data)
            return
        if self._put_together is not None:
            # Where some are there, from before a crash, each is compared with what it should be.
            with suppress(ObjectExists):
                self._put_together(tiles)
                return
        with ThreadPoolExecutor(_TOGETHER) as pool:
            for done in [pool.submit(self._put, path, data) for path, data in tiles]:
                done.result()

    def mend(self) -> None:
        """Store what was made of the leaves, where something else lies; its caller found the right root by it."""
        if self._is_made:
            for level in reversed(range(len(self._tails))):
                for number in range(self.size >> (_TILE_HEIGHT * (level + 1))):
                    self._tile(level, number)
            return
        for path, hashes in self._held.items():
            self._mend_unless_equal(path, tile_bytes(hashes))

    def _mend_unless_equal(self, path: str, data: bytes) -> None:
        try:
            is_there = self._get(path) == data
        except ObjectMissing:
            is_there = False
        if not is_there:
            self._mend(path, data)

    def root(self) -> bytes:
        """Return the root over all leaves."""
        return self._frontier.root()

    def nodes(self) -> tuple[bytes, ...]:
        """Return the frontier's nodes, the largest subtree first."""
        return self._frontier.nodes()

    def read(self, level: int, index: int) -> bytes:
        """Return the root of complete subtree `index` at `level`. Raises: BadProof for none, RecordDamaged."""
        return self._node(self.size, level, index)

    def _node(self, size: int, level: int, index: int) -> bytes:
        tile_level, within = divmod(level, _TILE_HEIGHT)
        first = index << within
        count = size >> (_TILE_HEIGHT * tile_level)
        if first + (1 << within) > count:
            reason = f"no complete subtree {index} at level {level} in a tree of size {size}"
            raise BadProof(reason)
        number, offset = divmod(first, TILE_WIDTH)
        hashes = self._tile(tile_level, number) if number < count // TILE_WIDTH else self._tails[tile_level]
        return root(hashes[offset : offset + (1 << within)])

    def _tile(self, level: int, number: int) -> Sequence[bytes]:
        path = tile_path(level, number)
        held = self._held.get(path)
        if held is None:
            held = self._held[path] = self._checked(level, number, path)
            if len(self._held) > _HELD_TILES:
                self._held.popitem(last=False)
        return held

    def _above(self, level: int, number: int) -> bytes | None:
        """The hash of a full tile in the level above it, None while `open` does not know that level yet."""
        count = self.size >> (_TILE_HEIGHT * level)
        if number >= count:
            return None
        first = count - count % TILE_WIDTH
        if number >= first:
            return self._tails[level][number - first]
        return self._tile(level, number // TILE_WIDTH)[number % TILE_WIDTH]

    def _checked(self, level: int, number: int, path: str) -> tuple[bytes, ...]:
        above = self._above(level + 1, number)
        try:
            return self._loaded(path, above)
        except RecordDamaged:
            if above is None or self._leaves is None:
                raise
            made = self._made(level, number)
            if level and root(made) != above:
                # One below it is damaged as well, and is made again when it is read itself.
                made = self._of_leaves(level, number)
            if root(made) != above:
                raise
        self._mend(path, tile_bytes(made))
        return made

    def _made(self, level: int, number: int) -> tuple[bytes, ...]:
        """Make a tile from the leaves, or from the tiles below it as they are stored: its root proves it, or not."""
        if level == 0:
            return () if self._leaves is None else tuple(self._leaves(number))
        return tuple(root(self._stored_or_made(level - 1, number * TILE_WIDTH + n)) for n in range(TILE_WIDTH))

    def _of_leaves(self, level: int, number: int) -> tuple[bytes, ...]:
        if level == 0:
            return self._made(level, number)
        return tuple(root(self._of_leaves(level - 1, number * TILE_WIDTH + n)) for n in range(TILE_WIDTH))

    def _stored_or_made(self, level: int, number: int) -> tuple[bytes, ...]:
        path = tile_path(level, number)
        if path in self._held:
            return self._held[path]
        try:
            return self._loaded(path, None)
        except RecordDamaged:
            return self._made(level, number)

    def _loaded(self, path: str, above: bytes | None) -> tuple[bytes, ...]:
        try:
            hashes = parse_tile(self._get(path))
        except ObjectMissing as error:
            raise RecordDamaged("missing", f"{path} is gone from the unlocked store") from error
        except MalformedTilePath as error:
            raise RecordDamaged("altered", f"{path} in the unlocked store has not the length of a tile") from error
        if above is not None and root(hashes) != above:
            raise RecordDamaged("altered", f"{path} in the unlocked store is not the tile that the log wrote")
        return hashes


def require_equal(path: str, wanted: bytes, found: bytes) -> None:
    """Check that a tile that is already there is the one about to be written. Raises: LogForked."""
    if wanted != found:
        raise LogForked(f"tile {path} is there with other hashes")
