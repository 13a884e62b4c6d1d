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
import json
import urllib.parse
from collections import Counter
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

Hits = Counter[tuple[int, str]]
"""(canary number, encoding) → occurrences."""


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
    escaped = json.dumps(text)[1:-1]
    return {
        "utf-8 lower": text.lower().encode(),
        "utf-8 upper": text.upper().encode(),
        "utf-16le": text.encode("utf-16-le"),
        "utf-16be": text.encode("utf-16-be"),
        "json": escaped.encode(),
        "json, not ascii": json.dumps(text, ensure_ascii=False)[1:-1].encode(),
        "json twice": json.dumps(escaped)[1:-1].encode(),
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
            forms[f"base64url+{shift}"] = piece.translate(bytes.maketrans(b"+/", b"-_"))
    return forms


class _Windows:
    """Needles of a minimum length, found through aligned integers: one set test per machine word of the stream.

    A needle of at least 2w-1 bytes holds a complete w-byte word at a multiple of w wherever it starts. The table maps
    each word a needle can show there to the needle and the word's offset in it, so each occurrence is met exactly once.
    """

    def __init__(self, width: int, code: Literal["Q", "I"]) -> None:
        self._width = width
        self._code: Literal["Q", "I"] = code
        self._table: dict[int, list[tuple[tuple[int, str], bytes, int]]] = {}

    def add(self, key: tuple[int, str], needle: bytes) -> None:
        for offset in range(self._width):
            word = memoryview(needle[offset : offset + self._width]).cast(self._code)[0]
            self._table.setdefault(word, []).append((key, needle, offset))

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
                for key, needle, offset in self._table.get(word, ()):
                    start = position * self._width - offset
                    if start >= 0 and start + len(needle) > fresh and buffer.startswith(needle, start):
                        hits[key] += 1


class Needles:
    """All forms of a list of canaries, ready to be counted in streams."""

    def __init__(self, canaries: Sequence[bytes]) -> None:
        self._long = _Windows(8, "Q")
        self._short = _Windows(4, "I")
        self._tiny: list[tuple[tuple[int, str], bytes]] = []
        self._longest = 0
        for number, canary in enumerate(canaries):
            for name, needle in encodings(canary).items():
                self._add((number, name), needle)

    def _add(self, key: tuple[int, str], needle: bytes) -> None:
        self._longest = max(self._longest, len(needle))
        if len(needle) >= _LONG:
            self._long.add(key, needle)
        elif len(needle) >= _SHORT:
            self._short.add(key, needle)
        else:
            self._tiny.append((key, needle))

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
