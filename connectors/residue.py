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
from collections import Counter
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import TYPE_CHECKING, BinaryIO, Literal, Protocol

from connectors.residue_words import Words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from connectors.base import Deadline

MIN_CANARY = 8
"""Shorter strings are found by chance, or in everybody's rows."""

_WHOLE = 96
_WINDOW = 48
_CHUNK = 1 << 20
_SHORTEST = 8
"""Forms below it are looked for one by one."""

_URL_SAFE = bytes.maketrans(b"+/", b"-_")
Key = tuple[int, str]
"""(canary number, encoding)."""
Hits = Counter[Key]
"""Whose form → occurrences."""


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


class _Search(Protocol):
    def find(self, buffer: bytes, fresh: int, hits: Hits) -> None:
        """Count occurrences that end after byte `fresh`; the earlier ones were counted with the bytes before."""


class Needles:
    """All forms of a list of canaries, ready to be counted in streams.

    `by` names how they are searched: "grams" with numpy, "words" without; both give the same answers.
    """

    def __init__(self, canaries: Sequence[bytes], *, by: Literal["grams", "words"] | None = None) -> None:
        same: dict[bytes, list[int]] = {}
        for number, canary in enumerate(canaries):
            same.setdefault(canary, []).append(number)
        self._canaries = list(same)
        self._numbers = list(same.values())
        self._tiny: list[tuple[Key, bytes]] = []
        self._longest = 0
        self._search = self._searching(by)

    def _searching(self, by: str | None) -> _Search:
        if by != "words":
            try:
                # Optional, and a tenth of a second to load: whoever looks for nothing does without it.
                from connectors.residue_grams import Grams
            except ModuleNotFoundError:
                if by is not None:
                    raise
            else:
                return Grams(self._forms(), self._forms_of)
        return Words(self._forms())

    def _forms(self) -> Iterator[tuple[int, dict[str, bytes]]]:
        """Yield the forms of each different canary that are searched together, and keep the others."""
        for number, canary in enumerate(self._canaries):
            forms = encodings(canary)
            self._longest = max(self._longest, *map(len, forms.values()), 0)
            self._tiny += [((number, name), form) for name, form in forms.items() if len(form) < _SHORTEST]
            yield number, _searched(forms)

    def _forms_of(self, number: int) -> dict[str, bytes]:
        return _searched(encodings(self._canaries[number]))

    def count(self, stream: BinaryIO, deadline: Deadline) -> Hits:
        """Return how often each form occurs in the stream, overlapping occurrences included. Raises: Timeout."""
        return self.count_chunks(iter(lambda: stream.read(_CHUNK), b""), deadline)

    def count_chunks(self, chunks: Iterable[bytes], deadline: Deadline) -> Hits:
        """Return the same for bytes that come in pieces of any size. Raises: Timeout."""
        found: Hits = Counter()
        buffer, fresh = b"", 0
        for block in _gathered(chunks, deadline):
            fresh = min(len(buffer), self._longest)
            buffer = buffer[len(buffer) - fresh :] + block
            self._search.find(buffer, fresh, found)
            for key, needle in self._tiny:
                found[key] += _count_from(buffer, needle, fresh)
        hits: Hits = Counter()
        for (number, name), times in found.items():
            hits.update({(one, name): times for one in self._numbers[number] if times})
        return hits


def _searched(forms: dict[str, bytes]) -> dict[str, bytes]:
    return {name: form for name, form in forms.items() if len(form) >= _SHORTEST}


def _gathered(chunks: Iterable[bytes], deadline: Deadline) -> Iterator[bytes]:
    """Yield the same bytes in pieces that are worth a look each. Raises: Timeout."""
    waiting: list[bytes] = []
    size = 0
    for chunk in chunks:
        deadline.check()
        waiting.append(chunk)
        size += len(chunk)
        if size >= _CHUNK:
            yield b"".join(waiting)
            waiting.clear()
            size = 0
    yield b"".join(waiting)


def _count_from(buffer: bytes, needle: bytes, fresh: int) -> int:
    """Count occurrences, overlapping ones too, that end after byte `fresh`."""
    found, start = 0, buffer.find(needle, max(0, fresh - len(needle) + 1))
    while start >= 0:
        found += 1
        start = buffer.find(needle, start + 1)
    return found
