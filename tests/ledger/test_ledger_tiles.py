"""Tile paths and bytes: the published example, our vectors, and one spelling only."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import merkle, tiles
from ledger.errors import MalformedTilePath
from ledger.tiles import Tile

VECTORS = Path(__file__).resolve().parents[2].parent / "shared" / "reference" / "merkle_vectors.json"


@pytest.fixture(scope="module")
def vectors() -> dict[str, Any]:
    if not VECTORS.exists():
        if os.environ.get("CI") == "true":
            pytest.fail("the shared vectors are missing")
        pytest.skip("the shared vectors are not beside this checkout")
    loaded: dict[str, Any] = json.loads(VECTORS.read_text())
    return loaded


@pytest.fixture(scope="module")
def counter_reader() -> merkle.HashReader:
    return merkle.reader_of([merkle.leaf_hash(i.to_bytes(8, "big")) for i in range(70_000)])


def test_paths_match_the_vectors(vectors: dict[str, Any]) -> None:
    for n, path in vectors["tile_paths"]["index_to_path"].items():
        assert tiles.tile_path(0, int(n)) == f"tile/0/{path}"
        assert tiles.parse_tile_path(f"tile/0/{path}") == Tile(level=0, n=int(n))


def test_the_tiles_of_a_tree_match_the_vectors(vectors: dict[str, Any]) -> None:
    for size, levels in vectors["tiles_for_tree_size"].items():
        found = tiles.tiles_for(int(size))
        assert {tile.level for tile in found} == {level["level"] for level in levels}
        for level in levels:
            own = [tile for tile in found if tile.level == level["level"]]
            assert sum(tile.is_full for tile in own) == level["full_tiles"]
            assert [tile.width for tile in own if not tile.is_full] == [level["partial_width"]] * (
                level["partial_width"] > 0
            )
            assert own[-1].path == level["last_path"]


def test_tile_bytes_match_the_vectors(vectors: dict[str, Any], counter_reader: merkle.HashReader) -> None:
    for path, digest in vectors["counter_tree_ours"]["tile_sha256"].items():
        data = tiles.read_tile(tiles.parse_tile_path(path), counter_reader)
        assert sha256(data).hexdigest() == digest
    for path, digest in vectors["counter_tree_ours"]["entry_bundle_sha256"].items():
        first = tiles.parse_tile_path(path).n * 256
        bundle = tiles.entry_bundle([i.to_bytes(8, "big") for i in range(first, first + 256)])
        assert sha256(bundle).hexdigest() == digest


def test_roots_and_proofs_are_read_from_tiles_alone(counter_reader: merkle.HashReader) -> None:
    size = 66_000
    stored = {tile.path: tiles.read_tile(tile, counter_reader) for tile in tiles.tiles_for(size)}
    read = tiles.reader_over_tiles(size, lambda tile: stored[tile.path])
    assert merkle.root_of(size, read) == merkle.root_of(size, counter_reader)
    for index in (0, 255, 256, 65_535, 65_536, 65_999):
        proof = merkle.inclusion_proof(index, size, read)
        assert proof == merkle.inclusion_proof(index, size, counter_reader)
        merkle.verify_inclusion(index, size, read(0, index), proof, merkle.root_of(size, read))
    for size1 in (1, 256, 300, 65_536, 65_999):
        assert merkle.consistency_proof(size1, size, read) == merkle.consistency_proof(size1, size, counter_reader)
    assert merkle.frontier_of(size, read).root() == merkle.root_of(size, counter_reader)


def test_a_reader_over_tiles_fetches_each_tile_once(counter_reader: merkle.HashReader) -> None:
    fetched: list[str] = []

    def fetch(tile: Tile) -> bytes:
        fetched.append(tile.path)
        return tiles.read_tile(tile, counter_reader)

    read = tiles.reader_over_tiles(300, fetch)
    for index in range(300):
        read(0, index)
    assert fetched == ["tile/0/000", "tile/0/001.p/44"]


@pytest.mark.scenario("L11")
def test_a_tile_of_the_wrong_length_is_refused() -> None:
    read = tiles.reader_over_tiles(256, lambda tile: bytes(32 * (tile.width - 1)))
    with pytest.raises(MalformedTilePath):
        read(0, 0)
    with pytest.raises(MalformedTilePath):
        read(0, 256)


@pytest.mark.parametrize(
    "path",
    [
        "tile/0/1",
        "tile/0/0001",
        "tile/0/x000/001",
        "tile/00/001",
        "tile/64/001",
        "tile/-1/001",
        "tile/0/001.p/256",
        "tile/0/001.p/0",
        "tile/0/001.p/01",
        "tile/0/001.p/",
        "tile/0/001/",
        "/tile/0/001",
        "tile/0/001\n",
        "tile/0/../001",
        "tile/0/\u0661\u0661\u0661",
        "tile/entry/001",
        "",
    ],
)
def test_other_spellings_of_a_path_are_refused(path: str) -> None:
    with pytest.raises(MalformedTilePath):
        tiles.parse_tile_path(path)


@given(
    level=st.one_of(st.none(), st.integers(0, 63)),
    n=st.integers(0, 10**15),
    width=st.integers(1, 256),
)
def test_paths_read_back(level: int | None, n: int, width: int) -> None:
    tile = Tile(level=level, n=n, width=width)
    assert tiles.parse_tile_path(tile.path) == tile
    same = tiles.bundle_path(n, width) if level is None else tiles.tile_path(level, n, width)
    assert same == tile.path


@given(text=st.text(alphabet="tile/0123x.pnrs", max_size=30))
def test_whatever_parses_is_written_the_same(text: str) -> None:
    try:
        tile = tiles.parse_tile_path(text)
    except MalformedTilePath:
        return
    assert tile.path == text


def test_values_out_of_range_have_no_path() -> None:
    for level, n, width in ((-1, 0, 256), (64, 0, 256), (0, -1, 256), (0, 0, 0), (0, 0, 257)):
        with pytest.raises(MalformedTilePath):
            tiles.tile_path(level, n, width)


@given(sizes=st.lists(st.integers(0, 200_000), min_size=2, max_size=2).map(sorted))
def test_new_full_tiles_are_the_difference_of_two_trees(sizes: list[int]) -> None:
    old, new = sizes
    full_before = {tile for tile in tiles.tiles_for(old) if tile.is_full}
    full_after = {tile for tile in tiles.tiles_for(new) if tile.is_full}
    assert set(tiles.new_full_tiles(old, new)) == full_after - full_before


def test_a_tree_that_shrinks_has_no_new_tiles() -> None:
    with pytest.raises(MalformedTilePath):
        list(tiles.new_full_tiles(2, 1))


@given(entries=st.lists(st.binary(max_size=300), min_size=1, max_size=256))
def test_entry_bundles_read_back(entries: list[bytes]) -> None:
    assert list(tiles.parse_entry_bundle(tiles.entry_bundle(entries), len(entries))) == entries


def test_damaged_bundles_are_refused() -> None:
    bundle = tiles.entry_bundle([b"one", b"two"])
    for bad, width in ((bundle[:-1], 2), (bundle + b"\x00", 2), (bundle, 1), (bundle, 3), (b"", 1)):
        with pytest.raises(MalformedTilePath):
            tiles.parse_entry_bundle(bad, width)
    for entries in ([], [b"x"] * 257, [bytes(65_536)]):
        with pytest.raises(MalformedTilePath):
            tiles.entry_bundle(entries)


def test_tiles_hold_whole_hashes_only() -> None:
    for hashes in ([], [bytes(31)], [bytes(32)] * 257):
        with pytest.raises(MalformedTilePath):
            tiles.tile_bytes(hashes)
    with pytest.raises(MalformedTilePath):
        tiles.parse_tile(bytes(64), 3)
    with pytest.raises(MalformedTilePath):
        tiles.read_tile(Tile(level=None, n=0), merkle.reader_of([]))
