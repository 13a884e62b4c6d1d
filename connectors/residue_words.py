"""Finds many byte strings in one pass without any driver: one set test per machine word of the stream.

Guarantees: each occurrence that `residue` asks for is met exactly once; time grows with the bytes read and hardly with
the number of strings. Memory is several hundred bytes for each of them: where numpy is installed, `residue_grams`
gives the same answers faster and with less.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from connectors.residue import Hits, Key

_BLOCK = 1 << 13
_LONG, _SHORT = 15, 7
"""Least length that holds an aligned window of 8 or 4 bytes wherever the needle starts: 2 * width - 1."""
_Needle = tuple["Key", bytes]
"""A form that is looked for, and whose it is."""


class Words:
    """Byte strings of at least seven bytes, ready to be counted in buffers."""

    def __init__(self, strings: Iterable[tuple[int, Mapping[str, bytes]]]) -> None:
        every = [((number, name), form) for number, forms in strings for name, form in forms.items()]
        self._long = _Windows(8, "Q", [each for each in every if len(each[1]) >= _LONG])
        self._short = _Windows(4, "I", [each for each in every if _SHORT <= len(each[1]) < _LONG])

    def find(self, buffer: bytes, fresh: int, hits: Hits) -> None:
        """Count occurrences that end after byte `fresh`."""
        self._long.find(buffer, fresh, hits)
        self._short.find(buffer, fresh, hits)


class _Windows:
    """Needles of a minimum length, found through aligned integers: one set test per machine word of the stream.

    A piece of 2w-1 bytes holds a complete w-byte word at a multiple of w wherever it starts. The table maps each word
    that the piece of a needle can show there to the needle and the word's place in it, so each occurrence is met
    exactly once. Texts of one kind often begin or end alike: the piece is taken where they differ most, and the needles
    that show the same word all the same are looked up by what stands around it instead of one by one.
    """

    def __init__(self, width: int, code: Literal["Q", "I"], needles: Sequence[_Needle]) -> None:
        self._width = width
        self._code: Literal["Q", "I"] = code
        self._needles: list[_Needle] = []
        self._starts: list[int] = []
        forms: defaultdict[str, list[_Needle]] = defaultdict(list)
        for each in needles:
            forms[each[0][1]].append(each)
        for group in forms.values():
            self._needles += group
            self._starts += _telling([needle for _, needle in group], width)
        slices = [
            needle[at : at + width]
            for (_, needle), start in zip(self._needles, self._starts, strict=True)
            for at in range(start, start + width)
        ]
        words = memoryview(b"".join(slices)).cast(code).tolist()
        self._table: dict[int, int] = dict(zip(words, range(len(words)), strict=True))
        """Word → number of the needle times the width, plus the word's place in its piece."""
        self._shared: set[int] = set()
        if len(self._table) < len(words):
            self._shared = {word for number, word in enumerate(words) if self._table[word] != number}
        self._words = words if self._shared else []

    @cached_property
    def _alike(self) -> dict[int, dict[tuple[int, int], dict[bytes, list[Key]]]]:
        """Word of several needles → (bytes before it, length) → needle → whose it is; made when one is met."""
        found: dict[int, dict[tuple[int, int], dict[bytes, list[Key]]]] = {}
        for number, word in enumerate(self._words):
            if word in self._shared:
                key, needle = self._needles[number // self._width]
                before = self._starts[number // self._width] + number % self._width
                alike = found.setdefault(word, {}).setdefault((before, len(needle)), {})
                alike.setdefault(needle, []).append(key)
        return found

    def find(self, buffer: bytes, fresh: int, hits: Hits) -> None:
        """Count occurrences that end after byte `fresh`; the earlier ones were counted with the chunk before."""
        if not self._table:
            return
        usable = len(buffer) // self._width * self._width
        words = memoryview(buffer)[:usable].cast(self._code)
        known = self._table.keys()
        for block in range(0, len(words), _BLOCK):
            part = words[block : block + _BLOCK]
            if known.isdisjoint(part):
                continue
            for position, word in enumerate(part, start=block):
                if (number := self._table.get(word)) is None:
                    continue
                at = position * self._width
                if word not in self._shared:
                    key, needle = self._needles[number // self._width]
                    start = at - self._starts[number // self._width] - number % self._width
                    if start >= 0 and start + len(needle) > fresh and buffer.startswith(needle, start):
                        hits[key] += 1
                    continue
                for (before, length), whose in self._alike[word].items():
                    start = at - before
                    if start >= 0 and start + length > fresh:
                        hits.update(whose.get(buffer[start : start + length], ()))


def _telling(needles: Sequence[bytes], width: int) -> list[int]:
    """Return where each needle's piece starts, so that the fewest of them look alike there."""
    spare = [len(needle) - (2 * width - 1) for needle in needles]
    best: tuple[int, list[int]] = (0, [])
    for quarter in range(5):
        starts = [room * quarter // 4 for room in spare]
        differing = min(
            len({needle[start + at : start + at + width] for needle, start in zip(needles, starts, strict=True)})
            for at in (0, width - 1)
        )
        best = max(best, (differing, starts))
        if differing * 10 >= len(needles) * 9:
            break
    return best[1]
