"""DER as signed formats use it: definite lengths only, values told apart by one byte of tag.

Guarantees: pure; what is malformed raises ValueError or IndexError, which the caller turns into an error of its own.
Knows no type of value and no meaning. Source: X.690 §8 and §10.
"""

from __future__ import annotations

from collections.abc import Iterator

INTEGER, OCTETS, OID, SEQUENCE, SET, TIME = 0x02, 0x04, 0x06, 0x30, 0x31, 0x18
CONTEXT_0 = 0xA0
_LONG = 0x80


def items(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield tag, content and whole bytes of each value in a row. Raises: ValueError, IndexError."""
    at = 0
    while at < len(data):
        tag, size, start = data[at], data[at + 1], at + 2
        if size == _LONG:
            message = "a length is not given"
            raise ValueError(message)
        if size & _LONG:
            count = size & 0x7F
            size, start = int.from_bytes(data[start : start + count], "big"), start + count
        if start + size > len(data):
            message = "a value is longer than what holds it"
            raise ValueError(message)
        yield tag, data[start : start + size], data[at : start + size]
        at = start + size


def inside(data: bytes, tag: int) -> bytes:
    """Return the content of exactly one value of this tag. Raises: ValueError, IndexError."""
    ((found, content, _),) = items(data)
    if found != tag:
        message = f"expected a value of tag {tag:#x}, got {found:#x}"
        raise ValueError(message)
    return content


def two(data: bytes) -> tuple[bytes, bytes]:
    """Return the first two values in a row, whole. Raises: ValueError, IndexError; IndexError when there are fewer."""
    found = [whole for _, _, whole in items(data)]
    return found[0], found[1]


def der(tag: int, content: bytes) -> bytes:
    """Return one value of this tag."""
    if len(content) < _LONG:
        return bytes([tag, len(content)]) + content
    size = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes([tag, _LONG | len(size)]) + size + content


def integer(value: int) -> bytes:
    """Return a whole number that is not negative."""
    return der(INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big"))
