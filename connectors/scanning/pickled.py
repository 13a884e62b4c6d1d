r"""Plain data out of a pickle, without importing, calling or building anything that it names.

Guarantees: an own reader of the format's opcodes, which has no way to run code: a class stays a name beside its state
(`connectors.serialized.Made`). Memory is bounded by the bytes given. What it does not know, or what does not add up, is
`NotPlain`, never a guess. Source: the opcodes in Python's pickletools, as protocols 2 to 5 write them.

    >>> plain_pickle(b"\x80\x04}\x94\x8c\x01a\x94K\x01s.")
    {'a': 1}
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

from connectors.serialized import Made

_FLOATS = re.compile(rb"(?:G.{8}){8,}", re.DOTALL)
"""A run of numbers, as vectors are written; kept as one value, because nobody here needs them one by one."""
_MARK = object()
_MOST = 1 << 20


class NotPlain(Exception):
    """The bytes are no pickle that can be read without running it."""


class Numbers:
    """A run of so many floating-point numbers."""

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        self.count = count


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise NotPlain("it ends too early")
        found = self.data[self.at : end]
        self.at = end
        return found

    def skip(self, count: int) -> None:
        self.take(count)

    def skip_top(self) -> None:
        self.pop()

    def drop(self) -> None:
        self.since_mark()

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def sized(self, form: str) -> bytes:
        return self.take(self.number(form))

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise NotPlain("it ends too early")
        found, self.at = self.data[self.at : end], end + 1
        return found

    def since_mark(self) -> list[Any]:
        for index in range(len(self.stack) - 1, -1, -1):
            if self.stack[index] is _MARK:
                found = self.stack[index + 1 :]
                del self.stack[index:]
                return found
        raise NotPlain("a mark is missing")

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise NotPlain("a value is missing")
        return self.stack.pop()

    def top(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise NotPlain("a value is missing")
        return self.stack[-1]

    def run(self) -> Any:
        steps = 0
        while True:
            opcode = self.take(1)
            if opcode == b".":
                return self.pop()
            if opcode == b"G":
                self._float()
                continue
            act = _OPCODES.get(opcode)
            if act is None:
                raise NotPlain("it holds an opcode that is not plain data")
            act(self)
            steps += 1
            if steps > _MOST:
                raise NotPlain("it is too long")

    def _float(self) -> None:
        if (run := _FLOATS.match(self.data, self.at - 1)) is not None:
            self.stack.append(Numbers(len(run.group()) // 9))
            self.at = run.end()
        else:
            self.stack.append(struct.unpack(">d", self.take(8))[0])


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _set_items(reader: _Reader, found: list[Any]) -> None:
    target = reader.top()
    if len(found) % 2:
        raise NotPlain("a mapping has half a pair")
    state = target if isinstance(target, dict) else None
    for name, value in zip(found[::2], found[1::2], strict=True):
        if state is not None and isinstance(name, str | int | float | bytes | None):
            state[name] = value


def _append(reader: _Reader, found: list[Any]) -> None:
    target = reader.top()
    if isinstance(target, list):
        target.extend(found)


def _made(reader: _Reader, count: int) -> None:
    """A call stays a name: the values for the call are its content."""
    values = [reader.pop() for _ in range(count)][::-1]
    name = reader.pop()
    reader.stack.append(Made(name=name.name if isinstance(name, Made) else "?", content=values))


def _build(reader: _Reader) -> None:
    state, target = reader.pop(), reader.pop()
    reader.stack.append(Made(name=target.name, content=state) if isinstance(target, Made) else target)


def _global(reader: _Reader) -> None:
    name, module = reader.pop(), reader.pop()
    reader.stack.append(Made(name=f"{module}.{name}", content=None))


def _integer(data: bytes) -> int | bool:
    if data in {b"00", b"01"}:
        return data == b"01"
    try:
        return int(data.rstrip(b"L"))
    except ValueError:
        raise NotPlain("a number cannot be read") from None


def _push(read: Callable[[_Reader], Any]) -> Callable[[_Reader], None]:
    return lambda reader: reader.stack.append(read(reader))


def _tuple(count: int) -> Callable[[_Reader], None]:
    return _push(lambda reader: tuple([reader.pop() for _ in range(count)][::-1]))


def _keep(number: Callable[[_Reader], int]) -> Callable[[_Reader], None]:
    def keep(reader: _Reader) -> None:
        reader.memo[number(reader)] = reader.top()

    return keep


def _recall(number: Callable[[_Reader], int]) -> Callable[[_Reader], None]:
    def recall(reader: _Reader) -> None:
        wanted = number(reader)
        if wanted not in reader.memo:
            raise NotPlain("it refers to nothing")
        reader.stack.append(reader.memo[wanted])

    return recall


def _long(form: str) -> Callable[[_Reader], None]:
    return _push(lambda reader: int.from_bytes(reader.sized(form), "little", signed=True))


_OPCODES: dict[bytes, Callable[[_Reader], None]] = {
    b"\x80": lambda reader: reader.skip(1),
    b"\x95": lambda reader: reader.skip(8),
    b"(": lambda reader: reader.stack.append(_MARK),
    b"N": _push(lambda _: None),
    b"\x88": _push(lambda _: True),
    b"\x89": _push(lambda _: False),
    b"I": _push(lambda reader: _integer(reader.line())),
    b"L": _push(lambda reader: _integer(reader.line())),
    b"J": _push(lambda reader: reader.number("<i")),
    b"K": _push(lambda reader: reader.number("<B")),
    b"M": _push(lambda reader: reader.number("<H")),
    b"\x8a": _long("<B"),
    b"\x8b": _long("<i"),
    b"X": _push(lambda reader: _text(reader.sized("<I"))),
    b"\x8c": _push(lambda reader: _text(reader.sized("<B"))),
    b"\x8d": _push(lambda reader: _text(reader.sized("<Q"))),
    b"B": _push(lambda reader: reader.sized("<I")),
    b"C": _push(lambda reader: reader.sized("<B")),
    b"\x8e": _push(lambda reader: reader.sized("<Q")),
    b"\x96": _push(lambda reader: reader.sized("<Q")),
    b"T": _push(lambda reader: reader.sized("<i")),
    b"U": _push(lambda reader: reader.sized("<B")),
    b"]": _push(lambda _: []),
    b"}": _push(lambda _: {}),
    b")": _push(lambda _: ()),
    b"\x8f": _push(lambda _: []),
    b"l": _push(lambda reader: reader.since_mark()),
    b"t": _push(lambda reader: tuple(reader.since_mark())),
    b"\x91": _push(lambda reader: reader.since_mark()),
    b"\x85": _tuple(1),
    b"\x86": _tuple(2),
    b"\x87": _tuple(3),
    b"a": lambda reader: _append(reader, [reader.pop()]),
    b"e": lambda reader: _append(reader, reader.since_mark()),
    b"\x90": lambda reader: _append(reader, reader.since_mark()),
    b"s": lambda reader: _set_items(reader, [reader.pop(), reader.pop()][::-1]),
    b"u": lambda reader: _set_items(reader, reader.since_mark()),
    b"0": lambda reader: reader.skip_top(),
    b"1": lambda reader: reader.drop(),
    b"2": _push(lambda reader: reader.top()),
    b"\x94": _keep(lambda reader: len(reader.memo)),
    b"q": _keep(lambda reader: reader.number("<B")),
    b"r": _keep(lambda reader: reader.number("<I")),
    b"h": _recall(lambda reader: reader.number("<B")),
    b"j": _recall(lambda reader: reader.number("<I")),
    b"c": _push(lambda reader: Made(name=f"{_text(reader.line())}.{_text(reader.line())}", content=None)),
    b"\x93": _global,
    b"R": lambda reader: _made(reader, 1),
    b"\x81": lambda reader: _made(reader, 1),
    b"\x92": lambda reader: _made(reader, 2),
    b"b": _build,
}


def plain_pickle(data: bytes) -> Any:
    """Return the plain content of a pickle. Raises: NotPlain."""
    try:
        return _Reader(data).run()
    except (UnicodeError, struct.error, RecursionError, MemoryError, OverflowError, TypeError, AttributeError):
        raise NotPlain("it cannot be read") from None
