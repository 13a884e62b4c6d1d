"""Finds many byte strings in one pass with numpy: a hundred million bytes a second and more, however many they are.

Guarantees: each occurrence that `residue` asks for is met exactly once; memory is about 40 bytes for each string and a
fixed table, since a string is kept as eight of its bytes and made anew when they are met. Of each string those eight
are taken that the fewest others show at the same place, so texts that begin or end alike are told apart at once; they
are looked up without regard to case, and the string itself is compared as it is. Not needed: numpy is a driver like
others, and without it `residue_words` gives the same answers more slowly.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from connectors.residue import Hits, Key

WIDTH = 8
_PLACES = 5
"""Places of a string that are tried for the eight bytes that tell it apart."""
_BLOCK = 1 << 18
"""Bytes that are looked at together, so that what is computed of them stays in the processor's cache."""
_TABLES = ((0x9E3779B97F4A7C15, 8, 23), (0xC2B2AE3D27D4EB4F, 32, 25))
"""Of the two tables in turn: an odd factor, fields for each string, and the most bits of a field's number.

Multiplicative hashing: the upper bits of the product depend on all bytes. The first table is small enough for the
processor's cache and lets one other window in eight through, the second one of these in thirty-two.
"""
_LEAST_BITS = 12
_KEPT = 20_000
"""Windows whose strings are kept once they were met."""

_Whose = dict[tuple[int, int], dict[bytes, list[tuple["Key", bytes]]]]
"""(bytes before the window, length) → string in lower case → whose it is, and how it is written."""


class Grams:
    """Byte strings of at least `WIDTH` bytes, ready to be counted in buffers."""

    def __init__(
        self,
        strings: Iterable[tuple[int, Mapping[str, bytes]]],
        again: Callable[[int], Mapping[str, bytes]],
    ) -> None:
        self._again = again
        self._whose = lru_cache(maxsize=_KEPT)(self._strings_of)
        numbers, groups, spare = array("I"), array("I"), array("I")
        pieces = [bytearray() for _ in range(_PLACES)]
        for number, forms in strings:
            for group, folded in enumerate(_by_case(forms)):
                room = len(folded) - WIDTH
                numbers.append(number)
                groups.append(group)
                spare.append(room)
                for place, piece in enumerate(pieces):
                    start = room * place // (_PLACES - 1)
                    piece.extend(folded[start : start + WIDTH])
        places, words = _telling(pieces)
        order = np.argsort(words, kind="stable")
        starts = np.asarray(spare, dtype=np.int64) * places // (_PLACES - 1)
        self._numbers = np.asarray(numbers, dtype=np.uint32)[order]
        self._groups = np.asarray(groups, dtype=np.uint16)[order]
        self._starts = starts.astype(np.uint32)[order]
        self._words, firsts = np.unique(words[order], return_index=True)
        self._firsts = np.append(firsts, len(words)).astype(np.uint32)
        self._tables = [_Table(self._words, *each) for each in _TABLES]

    def find(self, buffer: bytes, fresh: int, hits: Hits) -> None:
        """Count occurrences that end after byte `fresh`."""
        if not len(self._words):
            return
        folded = buffer.lower()
        for start in range(0, len(folded) - WIDTH + 1, _BLOCK):
            for position, gram in self._met(folded, start):
                for (before, length), whose in self._whose(gram).items():
                    at = position - before
                    if at < 0 or at + length <= fresh:
                        continue
                    for key, form in whose.get(folded[at : at + length], ()):
                        if buffer.startswith(form, at):
                            hits[key] += 1

    def _met(self, folded: bytes, start: int) -> Iterator[tuple[int, int]]:
        """Yield (position, number of the window) for each known window that starts in a block."""
        size = min(_BLOCK + WIDTH - 1, len(folded) - start)
        for phase in range(min(WIDTH, size - WIDTH + 1)):
            count = (size - phase) // WIDTH
            words = np.frombuffer(folded, dtype="<u8", count=count, offset=start + phase)
            maybe = self._tables[0].places(words)
            maybe = maybe[self._tables[1].places(words[maybe])]
            if not len(maybe):
                continue
            found = words[maybe]
            grams = np.minimum(np.searchsorted(self._words, found), len(self._words) - 1)
            known = self._words[grams] == found
            positions = maybe[known] * WIDTH + (start + phase)
            yield from zip(positions.tolist(), grams[known].tolist(), strict=True)

    def _strings_of(self, gram: int) -> _Whose:
        found: _Whose = {}
        for row in range(int(self._firsts[gram]), int(self._firsts[gram + 1])):
            number = int(self._numbers[row])
            folded, named = list(_by_case(self._again(number)).items())[int(self._groups[row])]
            alike = found.setdefault((int(self._starts[row]), len(folded)), {}).setdefault(folded, [])
            alike += [((number, name), form) for name, form in named]
        return found


class _Table:
    """Tells of most words that are not known that they are not."""

    def __init__(self, known: NDArray[np.uint64], factor: int, sparse: int, most_bits: int) -> None:
        bits = min(max((len(known) * sparse).bit_length(), _LEAST_BITS), most_bits)
        self._factor, self._shift = np.uint64(factor), np.uint64(64 - bits)
        self._fields = np.zeros(1 << bits, dtype=np.bool_)
        self._fields[(known * self._factor) >> self._shift] = True

    def places(self, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return where words stand that may be known."""
        mixed = words * self._factor
        mixed >>= self._shift
        return np.flatnonzero(self._fields[mixed])


def _by_case(forms: Mapping[str, bytes]) -> dict[bytes, list[tuple[str, bytes]]]:
    """Return the forms by what they are in lower case."""
    found: dict[bytes, list[tuple[str, bytes]]] = {}
    for name, form in forms.items():
        found.setdefault(form.lower(), []).append((name, form))
    return found


def _telling(pieces: list[bytearray]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return, for each string, the place at which the fewest others show the same window, and that window."""
    windows = np.stack([np.frombuffer(piece, dtype="<u8") for piece in pieces])
    shown = np.empty(windows.shape, dtype=np.int64)
    for place, words in enumerate(windows):
        _, which, counts = np.unique(words, return_inverse=True, return_counts=True)
        shown[place] = counts[which]
    best = np.argmin(shown, axis=0)
    return best, windows[best, np.arange(windows.shape[1])]
