"""Find canaries in raw bytes, in every plain encoding a store may have given them, in bounded memory.

Guarantees: each occurrence of each known form in the stream is counted once, wherever chunk borders fall; time grows
with the bytes read and hardly with the number of canaries. Does not see through compression (PostgreSQL TOAST, Parquet,
gzip), encryption, or indexes that break text into tokens; no hit is no proof for stores that do that.

    wanted = Needles([b"mia.li@example.com"])
    with open(path, "rb") as stream:
        hits = wanted.count(stream, Deadline("residue", 30))   # {(0, "utf-8"): 1}
"""

from __future__ import annotations

import base64
import urllib.parse
from collections import Counter, defaultdict
from functools import cached_property
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import TYPE_CHECKING, BinaryIO, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from connectors.base import Deadline

MIN_CANARY = 8
"""Shorter strings are found by chance, or in everybody's rows."""

_WHOLE = 96
_WINDOW = 48
_CHUNK = 1 << 20
_BLOCK = 1 << 13
_LONG, _SHORT = 15, 7
"""Least length that holds an aligned window of 8 or 4 bytes wherever the needle starts: 2 * width - 1."""

_URL_SAFE = bytes.maketrans(b"+/", b"-_")
Hits = Counter[tuple[int, str]]
"""(canary number, encoding) → occurrences."""
Needle = tuple[tuple[int, str], bytes]
"""A form that is looked for, and whose it is: (canary number, encoding)."""


def samples(value: bytes) -> list[bytes]:
    """Return what of a value to look for later: all of it, or head, middle and tail of a long one.

    Windows are short because stores break long values over pages; three, because one may fall on a break.
    """
    if len(value) < MIN_CANARY:
        return []
    if len(value) <= _WHOLE:
        return [value]
    middle = (len(value) - _WINDOW) // 2
    starts = (0, middle, len(value) - _WINDOW)
    return list(dict.fromkeys(_whole_characters(value, start) for start in starts))


def _whole_characters(value: bytes, start: int) -> bytes:
    """Return a window that splits no UTF-8 character, so that it has the same text encodings as the whole value."""
    end = start + _WINDOW
    while start and start < end and value[start] & 0xC0 == 0x80:  # noqa: PLR2004 -- continuation bytes, RFC 3629 §3
        start += 1
    while end < len(value) and end > start and value[end] & 0xC0 == 0x80:  # noqa: PLR2004 -- as above
        end -= 1
    window = value[start:end]
    return window if len(window) >= MIN_CANARY else value[start : start + _WINDOW]


def encodings(canary: bytes) -> dict[str, bytes]:
    """Return every form of a canary that is looked for, by the form's name, each byte string once."""
    forms = {"utf-8": canary, "hex": canary.hex().encode(), "HEX": canary.hex().upper().encode()}
    forms |= _base64_forms(canary)
    try:
        text = canary.decode()
    except UnicodeDecodeError:
        forms["raw"] = forms.pop("utf-8")
    else:
        forms |= _text_forms(text)
    unique: dict[bytes, str] = {}
    for name, needle in forms.items():
        if needle:
            unique.setdefault(needle, name)
    return {name: needle for needle, name in unique.items()}


def _text_forms(text: str) -> dict[str, bytes]:
    escaped = encode_basestring_ascii(text)[1:-1]
    return {
        "utf-8 lower": text.lower().encode(),
        "utf-8 upper": text.upper().encode(),
        "utf-16le": text.encode("utf-16-le"),
        "utf-16be": text.encode("utf-16-be"),
        "json": escaped.encode(),
        "json, not ascii": encode_basestring(text)[1:-1].encode(),
        "json twice": encode_basestring_ascii(escaped)[1:-1].encode(),
        "url": urllib.parse.quote(text, safe="").encode(),
        "url plus": urllib.parse.quote_plus(text).encode(),
    }


def _base64_forms(canary: bytes) -> dict[str, bytes]:
    """Return the characters of base64 that do not depend on the neighbours, at all three alignments."""
    forms = {}
    for shift, start in ((0, 0), (1, 2), (2, 3)):
        whole = base64.b64encode(b"\0" * shift + canary)
        piece = whole[start : (shift + len(canary)) * 8 // 6]
        if len(piece) >= MIN_CANARY:
            forms[f"base64+{shift}"] = piece
            forms[f"base64url+{shift}"] = piece.translate(_URL_SAFE)
    return forms


class _Windows:
    """Needles of a minimum length, found through aligned integers: one set test per machine word of the stream.

    A piece of 2w-1 bytes holds a complete w-byte word at a multiple of w wherever it starts. The table maps each word
    that the piece of a needle can show there to the needle and the word's place in it, so each occurrence is met
    exactly once. Texts of one kind often begin or end alike: the piece is taken where they differ most, and the needles
    that show the same word all the same are looked up by what stands around it instead of one by one.
    """

    def __init__(self, width: int, code: Literal["Q", "I"], needles: Sequence[Needle]) -> None:
        self._width = width
        self._code: Literal["Q", "I"] = code
        self._needles: list[Needle] = []
        self._starts: list[int] = []
        forms: defaultdict[str, list[Needle]] = defaultdict(list)
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
    def _alike(self) -> dict[int, dict[tuple[int, int], dict[bytes, list[tuple[int, str]]]]]:
        """Word of several needles → (bytes before it, length) → needle → whose it is; made when one is met."""
        found: dict[int, dict[tuple[int, int], dict[bytes, list[tuple[int, str]]]]] = {}
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


class Needles:
    """All forms of a list of canaries, ready to be counted in streams."""

    def __init__(self, canaries: Sequence[bytes]) -> None:
        every = [
            ((number, name), needle)
            for number, canary in enumerate(canaries)
            for name, needle in encodings(canary).items()
        ]
        self._long = _Windows(8, "Q", [each for each in every if len(each[1]) >= _LONG])
        self._short = _Windows(4, "I", [each for each in every if _SHORT <= len(each[1]) < _LONG])
        self._tiny = [each for each in every if len(each[1]) < _SHORT]
        self._longest = max((len(needle) for _, needle in every), default=0)

    def count(self, stream: BinaryIO, deadline: Deadline) -> Hits:
        """Return how often each form occurs in the stream, overlapping occurrences included. Raises: Timeout."""
        return self.count_chunks(iter(lambda: stream.read(_CHUNK), b""), deadline)

    def count_chunks(self, chunks: Iterable[bytes], deadline: Deadline) -> Hits:
        """Return the same for bytes that come in pieces of any size. Raises: Timeout."""
        hits: Hits = Counter()
        tail = b""
        for chunk in chunks:
            deadline.check()
            buffer = tail + chunk
            self._long.find(buffer, len(tail), hits)
            self._short.find(buffer, len(tail), hits)
            for key, needle in self._tiny:
                hits[key] += _count_from(buffer, needle, len(tail))
            tail = buffer[max(0, len(buffer) - self._longest) :] if self._longest else b""
        return +hits


def _count_from(buffer: bytes, needle: bytes, fresh: int) -> int:
    """Count occurrences, overlapping ones too, that end after byte `fresh`."""
    found, start = 0, buffer.find(needle, max(0, fresh - len(needle) + 1))
    while start >= 0:
        found += 1
        start = buffer.find(needle, start + 1)
    return found
