"""What the benchmark writes: people, their texts and what is derived of each, the same for the same seed.

Each person says a few texts; each text has a summary, a cached answer and an embedding. Every one of them holds a word
of its own that nothing else holds (a canary), so that a hit names what was found. Names of people are canaries too.
Decides nothing about stores (see `places`) or scores (see `score`).
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

DIMENSIONS = 32
TEXTS = 2
"""Of a person in a place. mem0 gets more, see `places`."""
NEIGHBOURS = 3
_ALPHABET = "ABCDEFGHJKLMNPQRSTVWXYZ23456789"
_SENTENCES = (
    "my sister hides the spare key from the landlord",
    "the flat in the third floor, please ring twice",
    "I was ill in March and the bill is still open",
    "please send the refund to my mother's account",
    "we talked about the divorce and who keeps the dog",
)

Role = Literal["text", "summary", "cache", "joint", "identity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One text and what was made of it. `long` is for stores that compress long values."""

    name: str
    text: str
    summary: str
    cache: str
    long: str

    @property
    def vector(self) -> list[float]:
        """The text's embedding."""
        return vector_of(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody with an identifier that nobody else's data holds."""

    id: str
    said: tuple[Said, ...]

    @property
    def subject(self) -> str:
        """The identifier as a registry names people."""
        return f"user:{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One thing that lies in a place: where, whose, what it says, and of what it was made."""

    place: str
    store: str
    name: str
    role: Role
    people: tuple[str, ...]
    where: Mapping[str, Any]
    canaries: tuple[str, ...]
    vectors: tuple[tuple[float, ...], ...] = ()
    made_of: str | None = field(default=None)


def people(seed: int, place: str, *, texts: int = TEXTS) -> list[Person]:
    """Everybody of a place; the first is the one who asks to be forgotten. Identifiers are the same in every place."""
    names = random.Random(f"{seed}")
    words = random.Random(f"{seed} {place}")
    found = []
    for number in range(1 + NEIGHBOURS):
        person = f"u-{_word(names, 12)}"
        found.append(Person(id=person, said=tuple(_said(words, place, number, each) for each in range(texts))))
    return found


def joint_text(seed: int, place: str) -> tuple[str, str]:
    """A text that names two people, and its canary."""
    canary = _word(random.Random(f"{seed} {place} joint"), 14)
    return f"we two agreed on {canary} over dinner", canary


def vector_of(text: str) -> list[float]:
    """A vector that is this text's alone, exact in float32 and not of length one."""
    found: list[float] = []
    while len(found) < DIMENSIONS:
        digest = hashlib.sha256(f"{len(found)} {text}".encode()).digest()
        found += [struct.unpack_from("<h", digest, at)[0] / 4096 for at in range(0, 32, 2)]
    return found[:DIMENSIONS]


def embed(texts: Sequence[str]) -> list[list[float]]:
    """The vectors of texts, as an embedding model would return them."""
    return [vector_of(text) for text in texts]


def canary_in(text: str) -> str:
    """The last word of upper-case letters and digits in a text of the bed."""
    return next(word for word in reversed(text.split()) if len(word) == 14 and set(word) <= set(_ALPHABET))


def _said(words: random.Random, place: str, number: int, each: int) -> Said:
    sentence = _SENTENCES[(number + each) % len(_SENTENCES)]
    text = f"{sentence} {_word(words, 14)}"
    # Half of it words of its own: compressed it is still too long for a row, so the server puts it elsewhere.
    filling = " ".join(words.choice((words.choice(_SENTENCES), _word(words, 40))) for _ in range(450))
    return Said(
        name=f"{place}-{number}-{each}",
        text=text,
        summary=f"they said something private, see {_word(words, 14)}",
        cache=f"answered before, as to {_word(words, 14)}",
        long=f"{text} {filling}"[:19_000],
    )


def _word(source: random.Random, length: int) -> str:
    return "".join(source.choice(_ALPHABET) for _ in range(length))
