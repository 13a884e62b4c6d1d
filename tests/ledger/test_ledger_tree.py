"""The growing tree over stored tiles: how the leaves come makes no difference, and a tile that fails is told."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from ledger import merkle
from ledger.errors import BadProof, LogForked, ObjectExists, ObjectMissing, RecordDamaged
from ledger.tiles import TILE_WIDTH
from ledger.tree import Again, Tree

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


SIZE = TILE_WIDTH * TILE_WIDTH + TILE_WIDTH * 3 + 5
MANY = [merkle.leaf_hash(number.to_bytes(4, "big")) for number in range(SIZE)]


def opened(tiles: dict[str, bytes], **more: Any) -> Tree:
    def get(path: str) -> bytes:
        if path not in tiles:
            raise ObjectMissing(path)
        return tiles[path]

    tree = Tree(put=tiles.__setitem__, get=get, **more)
    tree.open(SIZE, MANY[-5:])
    return tree


DAMAGE = pytest.mark.parametrize(
    ("damage", "state"),
    [
        (lambda tiles: tiles["tile/0/007"][:-1] + b"x", "altered"),
        (lambda tiles: tiles["tile/0/008"], "altered"),
        (lambda tiles: tiles["tile/0/007"][:-32], "altered"),
        (lambda _tiles: b"", "altered"),
        (lambda _tiles: None, "missing"),
    ],
)


def damaged_tiles(damage: Any) -> dict[str, bytes]:
    tiles: dict[str, bytes] = {}
    Tree(put=tiles.__setitem__, get=tiles.__getitem__).append(MANY)
    bad = damage(tiles)
    del tiles["tile/0/007"]
    return tiles if bad is None else tiles | {"tile/0/007": bad}


@DAMAGE
def test_no_proof_is_made_of_a_tile_that_was_exchanged_and_the_others_are_proven(damage: Any, state: str) -> None:
    """The unlocked store is anybody's who may write there: the proof that came of it was answered, and did not hold."""
    tree = opened(damaged_tiles(damage))
    with pytest.raises(RecordDamaged, match="tile/0/007") as damaged:
        merkle.inclusion_proof(7 * TILE_WIDTH + 3, SIZE, tree.read)
    assert damaged.value.state == state
    for index in (0, 8 * TILE_WIDTH, TILE_WIDTH * TILE_WIDTH + 9, SIZE - 1):
        proof = merkle.inclusion_proof(index, SIZE, tree.read)
        merkle.verify_inclusion(index, SIZE, MANY[index], proof, tree.root())


@DAMAGE
def test_a_tile_of_leaves_is_made_again_from_the_leaves_and_from_no_others(damage: Any, state: str) -> None:
    del state
    tiles = damaged_tiles(damage)
    index, mended = 7 * TILE_WIDTH + 3, dict[str, bytes]()

    def leaves(number: int) -> list[bytes]:
        return MANY[number * TILE_WIDTH : (number + 1) * TILE_WIDTH]

    tree = opened(tiles, leaves=leaves, mend=mended.__setitem__)
    merkle.verify_inclusion(index, SIZE, MANY[index], merkle.inclusion_proof(index, SIZE, tree.read), tree.root())
    assert mended == {"tile/0/007": b"".join(leaves(7))}
    wrong = opened(tiles, leaves=lambda number: leaves(number + 1), mend=mended.__setitem__)
    with pytest.raises(RecordDamaged, match="tile/0/007"):
        merkle.inclusion_proof(index, SIZE, wrong.read)


def test_an_upper_tile_that_was_exchanged_is_never_opened_as_the_same_tree() -> None:
    tiles: dict[str, bytes] = {}
    tree = Tree(put=tiles.__setitem__, get=tiles.__getitem__)
    tree.append(MANY)
    tiles["tile/1/000"] = tiles["tile/0/001"]
    assert opened(tiles).root() != tree.root()


@pytest.mark.parametrize("damage", [None, b"", b"x" * TILE_WIDTH * 32, b"x" * 31])
def test_an_upper_tile_is_made_again_from_those_below_it_where_that_gives_the_same_root(damage: bytes | None) -> None:
    """One damaged tile above the leaves stopped the log at the next start, though everything below it was there."""
    tiles: dict[str, bytes] = {}
    tree = Tree(put=tiles.__setitem__, get=tiles.__getitem__)
    tree.append(MANY)
    whole = dict(tiles)

    def get(path: str) -> bytes:
        if path not in tiles:
            raise ObjectMissing(path)
        return tiles[path]

    def leaves(number: int) -> list[bytes]:
        return MANY[number * TILE_WIDTH : (number + 1) * TILE_WIDTH]

    for lower in (None, "tile/0/007"):
        for path in filter(None, ("tile/1/000", lower)):
            tiles.pop(path)
            if damage is not None and path != lower:
                tiles[path] = damage
        again = Tree(put=tiles.__setitem__, get=get, leaves=leaves, mend=tiles.__setitem__)
        again.open(SIZE, MANY[-5:], again=Again.ABOVE)
        assert again.root() == tree.root()
        merkle.verify_inclusion(9, SIZE, MANY[9], merkle.inclusion_proof(9, SIZE, again.read), tree.root())
        again.mend()
        again.read(0, 7 * TILE_WIDTH)
        assert tiles == whole


def missing(tiles: dict[str, bytes]) -> Any:
    def get(path: str) -> bytes:
        if path not in tiles:
            raise ObjectMissing(path)
        return tiles[path]

    return get


def leaves_of(number: int) -> list[bytes]:
    return MANY[number * TILE_WIDTH : (number + 1) * TILE_WIDTH]


@pytest.mark.parametrize("damage", [b"x" * TILE_WIDTH * 32, b"x", None])
def test_an_upper_tile_and_one_below_it_that_are_both_damaged_are_made_again_of_the_leaves(
    damage: bytes | None,
) -> None:
    """Each was made of the other as it lay there, so both together were only named."""
    tiles: dict[str, bytes] = {}
    tree = Tree(put=tiles.__setitem__, get=tiles.__getitem__)
    tree.append(MANY)
    whole = dict(tiles)
    tiles |= dict.fromkeys(("tile/1/000", "tile/0/007"), b"y" * TILE_WIDTH * 32)
    if damage is None:
        del tiles["tile/0/200"]
    else:
        tiles["tile/0/200"] = damage
    again = Tree(put=tiles.__setitem__, get=missing(tiles), leaves=leaves_of, mend=tiles.__setitem__)
    # One after the other, as a start tries them: the second one failed where the first had come to another root.
    for how in (Again.NOTHING, Again.LEAVES, Again.ABOVE):
        with suppress(RecordDamaged):
            again.open(SIZE, MANY[-5:], again=how)
            assert again.root() != tree.root(), "what lies below is taken as it is"
    again.make_again(SIZE, iter(MANY))
    assert (again.size, again.root(), again.nodes()) == (SIZE, tree.root(), tree.nodes())
    again.mend()
    assert tiles == whole
    merkle.verify_inclusion(9, SIZE, MANY[9], merkle.inclusion_proof(9, SIZE, again.read), tree.root())


def test_a_tree_is_not_made_of_fewer_leaves_than_it_had() -> None:
    tree, _ = grown(10)
    with pytest.raises(BadProof, match="expected 11 leaves, got 10"):
        tree.make_again(11, iter(LEAVES[:10]))


def test_both_tiles_are_made_again_when_a_proof_asks_for_them_while_the_log_is_open() -> None:
    tiles: dict[str, bytes] = {}
    whole_tree = Tree(put=tiles.__setitem__, get=tiles.__getitem__)
    whole_tree.append(MANY)
    whole = dict(tiles)
    tree = Tree(put=tiles.__setitem__, get=missing(tiles), leaves=leaves_of, mend=tiles.__setitem__)
    tree.open(SIZE, MANY[-5:])
    for number in range(TILE_WIDTH + 3):  # so many are held that the upper one is let go of
        tree.read(0, number * TILE_WIDTH)
    tiles |= dict.fromkeys(("tile/1/000", "tile/0/000"), b"y" * TILE_WIDTH * 32)
    merkle.verify_inclusion(9, SIZE, MANY[9], merkle.inclusion_proof(9, SIZE, tree.read), whole_tree.root())
    assert tiles == whole


def test_tiles_under_a_signed_root_take_the_place_of_what_lies_there() -> None:
    tree, tiles = grown(len(LEAVES))
    whole = dict(tiles)
    tiles["tile/0/003"] = b"y" * TILE_WIDTH * 32
    del tiles["tile/0/004"]

    def put(path: str, data: bytes) -> None:
        if tiles.setdefault(path, data) != data:
            raise LogForked(f"tile {path} is there with other hashes")

    made = Tree(put=put, get=missing(tiles), mend=tiles.__setitem__)
    new = made.grow(LEAVES)
    assert made.root() == tree.root()
    with pytest.raises(LogForked):
        Tree(put=put, get=missing(tiles), mend=tiles.__setitem__).append(LEAVES)
    made.restore(new)
    assert tiles == whole


def test_many_full_tiles_are_created_together_unless_one_is_there_already() -> None:
    tiles: dict[str, bytes] = {}
    asked: list[int] = []

    def together(some: Sequence[tuple[str, bytes]]) -> None:
        asked.append(len(some))
        if any(path in tiles for path, _ in some):
            raise ObjectExists("tile")
        tiles.update(some)

    def put(path: str, data: bytes) -> None:
        assert tiles.setdefault(path, data) == data

    alone: dict[str, bytes] = {}
    Tree(put=alone.__setitem__, get=alone.__getitem__).append(MANY)
    Tree(put=put, get=tiles.__getitem__, put_together=together).append(MANY)
    assert tiles == alone
    assert asked == [len(alone)]
    # A crash left some of them.
    left = dict(sorted(alone.items())[::3])
    tiles = dict(left)
    Tree(put=put, get=tiles.__getitem__, put_together=together).append(MANY)
    assert tiles == alone
    Tree(put=put, get=tiles.__getitem__, put_together=together).append(MANY[: TILE_WIDTH * 2])
    assert len(asked) == 2, "few are put one after the other"
