"""One tile that is damaged in any way costs nothing: the log starts, proves and is rebuilt, and the tile is back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle

import pytest

from ledger.checkpoint import parse_checkpoint, verify_note
from ledger.errors import ObjectMissing
from ledger.merkle import verify_consistency, verify_inclusion
from ledger.tiles import TILE_WIDTH, tile_bytes, tile_path
from tests.ledger.test_ledger_log import LOG_ID, NOW, TENANT, Bench, _verifier, bench, draft

__all__ = ["bench"]
Damage = Callable[[bytes, bytes], bytes | None]
"""From a tile and another one of the log to what lies in its place; None where nothing does."""

WAYS: dict[str, Damage] = {
    "first byte changed": lambda whole, _other: bytes([whole[0] ^ 1]) + whole[1:],
    "a byte in the middle changed": lambda whole, _other: whole[:4_111] + bytes([whole[4_111] ^ 0x80]) + whole[4_112:],
    "last byte changed": lambda whole, _other: whole[:-1] + bytes([whole[-1] ^ 1]),
    "two hashes exchanged": lambda whole, _other: whole[32:64] + whole[:32] + whole[64:],
    "a hash short": lambda whole, _other: whole[:-32],
    "a byte short": lambda whole, _other: whole[:-1],
    "a hash too long": lambda whole, _other: whole + bytes(32),
    "zeroes, as a disk leaves them": lambda whole, _other: bytes(len(whole)),
    "another tile": lambda _whole, other: other,
    "empty": lambda _whole, _other: b"",
    "gone": lambda _whole, _other: None,
}


def put(bench: Bench, key: str, data: bytes | None) -> None:
    bench.hot.delete(key)
    if data is not None:
        bench.hot.replace(key, data)


def there(bench: Bench, key: str) -> bytes | None:
    try:
        found: bytes = bench.hot.get(key)
    except ObjectMissing:
        return None
    return found


def require_proven(bench: Bench, note: bytes, indexes: Sequence[int]) -> None:
    """Each of these entries is proven under the checkpoint that was signed before."""
    signed = parse_checkpoint(verify_note(note, [_verifier(bench)]))
    for idx in indexes:
        proof = bench.log.proof(TENANT, idx, NOW)
        assert proof.checkpoint.encode() == note
        verify_inclusion(idx, signed.size, proof.leaf, proof.inclusion, signed.root)


def below(level: int, number: int) -> Sequence[int]:
    """The first and the last entry under a tile."""
    width = TILE_WIDTH ** (level + 1)
    return number * width, (number + 1) * width - 1


def suffer(
    bench: Bench, note: bytes, way: str, tile: tuple[int, int], other: tuple[int, int], *, rebuilds: bool
) -> None:
    """Damage a tile; the log proves as it runs, and started again, or rebuilt, it makes the tile again as well."""
    keys = [f"{LOG_ID}/{tile_path(*one)}" for one in (tile, other)]
    whole, another = (bench.hot.get(key) for key in keys)
    bad = WAYS[way](whole, another)
    assert bad != whole
    size = parse_checkpoint(verify_note(note, [_verifier(bench)])).size
    asked = [*below(*tile), *below(*other), size - 1]
    bench.reopen()
    assert bench.log.head(TENANT).size == size
    put(bench, keys[0], bad)
    require_proven(bench, note, asked)
    starts: list[Callable[[], object]] = [bench.reopen, bench.lose_database]
    for begin in starts[: 1 + rebuilds]:
        put(bench, keys[0], bad)
        begin()
        assert bench.log.publish(TENANT, NOW) == note, way
        require_proven(bench, note, asked)
        assert there(bench, keys[0]) == whole, (way, tile)
    assert [bench.hot.get(key) for key in keys] == [whole, another]


def grown(bench: Bench, size: int) -> bytes:
    for start in range(0, size, 7_000):
        bench.log.append(TENANT, [draft(number) for number in range(start, min(start + 7_000, size))], now=NOW)
    return bench.log.publish(TENANT, NOW)


def require_growing(bench: Bench, note: bytes, size: int) -> None:
    """The log goes on from the tree that was signed."""
    bench.log.append(TENANT, [draft(number) for number in range(size, size + TILE_WIDTH)], now=NOW)
    old, new = (
        parse_checkpoint(verify_note(one, [_verifier(bench)])) for one in (note, bench.log.publish(TENANT, NOW))
    )
    assert new.size == size + TILE_WIDTH
    verify_consistency(old.size, new.size, bench.log.consistency(TENANT, old.size, new.size), old.root, new.root)


@pytest.mark.parametrize("way", WAYS)
def test_a_tile_of_leaves_that_is_damaged_is_made_again(bench: Bench, way: str) -> None:
    note = grown(bench, 2 * TILE_WIDTH + 9)
    suffer(bench, note, way, (0, 1), (0, 0), rebuilds=True)
    require_growing(bench, note, 2 * TILE_WIDTH + 9)


@pytest.mark.slow
def test_any_tile_of_a_log_of_seventy_thousand_entries_is_made_again(bench: Bench) -> None:
    size = 70_000
    note = grown(bench, size)
    tiles = [(0, 0), (0, 255), (0, 256), (0, size // TILE_WIDTH - 1), (1, 0)]
    rebuilt = cycle(tiles)
    for way in WAYS:
        turn = next(rebuilt)
        for tile in tiles:
            suffer(bench, note, way, tile, (0, 100), rebuilds=tile == turn)
    require_growing(bench, note, size)


def test_a_tile_that_leads_to_another_root_is_the_one_that_is_replaced(bench: Bench) -> None:
    """A whole tile of other hashes, of the right form: what was signed decides, and not what the store gives."""
    size = 2 * TILE_WIDTH
    note = grown(bench, size)
    key = f"{LOG_ID}/{tile_path(0, 0)}"
    whole = bench.hot.get(key)
    put(bench, key, tile_bytes([bytes([number % 256]) * 32 for number in range(TILE_WIDTH)]))
    bench.reopen()
    require_proven(bench, note, [0, TILE_WIDTH - 1, size - 1])
    assert there(bench, key) == whole
