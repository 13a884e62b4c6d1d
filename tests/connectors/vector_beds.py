"""What the beds of vector stores share: the vector of a text, and the forms in which files hold it."""

from __future__ import annotations

import hashlib
import math
import struct

DIMENSIONS = 24


def vector_of(text: str) -> list[float]:
    """A vector that is this text's alone, the same in every run."""
    found: list[float] = []
    block = 0
    while len(found) < DIMENSIONS:
        digest = hashlib.sha256(f"{block} {text}".encode()).digest()
        found += [struct.unpack_from("<h", digest, at)[0] / 32768 for at in range(0, 32, 2)]
        block += 1
    return found[:DIMENSIONS]


def raw(text: str) -> bytes:
    """The head of the text's vector as float32, as given."""
    return struct.pack("<8f", *vector_of(text)[:8])


def near(numbers: list[float], others: list[float]) -> bool:
    """Whether two vectors are the same but for float32's last digits."""
    return len(numbers) == len(others) and math.dist(numbers, others) < 1e-5
