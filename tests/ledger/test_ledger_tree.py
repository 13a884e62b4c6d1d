"""The growing tree over stored tiles: how the leaves come makes no difference, and a tile that fails is told."""

from __future__ import annotations

import pytest

from ledger import merkle
from ledger.errors import LogForked
from ledger.tiles import TILE_WIDTH
from ledger.tree import Tree

LEAVES = [merkle.leaf_hash(number.to_bytes(4, "big")) for number in range(TILE_WIDTH * 9 + 7)]


def grown(*sizes: int) -> tuple[Tree, dict[str, bytes]]:
    """A tree that took its leaves in steps up to these sizes, and its tiles."""
    tiles: dict[str, bytes] = {}
    tree = Tree(put=tiles.__setitem__, get=tiles.__getitem__)
    for size in sizes:
        tree.append(LEAVES[tree.size : size])
    return tree, tiles


@pytest.mark.parametrize("steps", [(1, 255, 256, 257), (1000, 2000), (TILE_WIDTH * 9,)])
def test_leaves_in_any_steps_make_one_tree_and_the_same_tiles(steps: tuple[int, ...]) -> None:
    tree, tiles = grown(*steps, len(LEAVES))
    single, wanted = grown(*range(1, len(LEAVES) + 1))
    assert tiles == wanted
    assert len(tiles) == 9
    assert tree.root() == single.root() == merkle.root(LEAVES)
    assert tree.nodes() == single.nodes()
    assert [tree.read(level, 0) for level in range(11)] == [single.read(level, 0) for level in range(11)]


def test_a_tree_is_opened_from_its_tiles_and_its_tail() -> None:
    tree, tiles = grown(len(LEAVES))
    again = Tree(put=tiles.__setitem__, get=tiles.__getitem__)
    again.open(len(LEAVES), LEAVES[-7:])
    assert (again.size, again.root(), again.nodes()) == (tree.size, tree.root(), tree.nodes())


@pytest.mark.parametrize("size", [TILE_WIDTH, TILE_WIDTH * 9])
def test_one_tile_that_cannot_be_stored_fails_the_append(size: int) -> None:
    stored: list[str] = []

    def put(path: str, data: bytes) -> None:
        if path == "tile/0/000":
            raise LogForked("tile/0/000 is there with other hashes")
        stored.append(path)

    nothing: dict[str, bytes] = {}
    tree = Tree(put=put, get=nothing.__getitem__)
    with pytest.raises(LogForked):
        tree.append(LEAVES[:size])
    # Those that were under way are waited for: nothing is written behind the caller's back.
    assert len(stored) == size // TILE_WIDTH - 1
