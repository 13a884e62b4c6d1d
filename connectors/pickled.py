"""Plain data out of a pickle, without building anything it names: no import, no call, no class.

Guarantees: the stream is read opcode by opcode; texts, numbers, lists and maps become themselves, a reference to a
class becomes its name (`Named`), and an object that would be made by calling one becomes `Made` with plain content.
What would run code in Python's own reader is data here. Bounded: a stream of more than `_LIMIT` opcodes is refused.
`write_pickle` writes such data back.

    >>> read_pickle(write_pickle({"a": [0.5, 1.0]}))
    {'a': [0.5, 1.0]}
"""

from __future__ import annotations

import io
import pickletools
import struct
from dataclasses import dataclass
from typing import Any

from connectors.serialized import Made

_LIMIT = 20_000_000
_FLOAT = b"G"
"""Opcode of a number of eight bytes."""
_OPCODES = {opcode.code: opcode for opcode in pickletools.opcodes}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": set}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_VALUES = frozenset({
    "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
    "BINSTRING", "SHORT_BINSTRING", "STRING",
})  # fmt: skip
_IGNORED = frozenset({"PROTO", "FRAME", "STOP"})


@dataclass(frozen=True, slots=True)
class Named:
    """A class or function that a pickle names; only its name."""

    name: str


class _Mark:
    """Where a group of values begins."""


def read_pickle(data: bytes) -> Any:
    """Return the plain data of a pickle. Raises: ValueError for what is none, or holds what has no plain form."""
    reader, stream = _Reader(), io.BytesIO(data)
    try:
        for _ in range(_LIMIT):
            code = stream.read(1)
            if code == _FLOAT:
                reader.stack += _floats(data, stream)
                continue
            opcode = _OPCODES[code.decode("latin-1")]
            reader.step(opcode.name, None if opcode.arg is None else opcode.arg.reader(stream))
            if opcode.name == "STOP":
                return reader.stack.pop()
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, struct.error):
        # Whatever an ill-formed stream raised, it is one and the same refusal.
        pass
    raise ValueError("a pickle that has no plain form")


def _floats(data: bytes, stream: io.BytesIO) -> tuple[float, ...]:
    """Read numbers that follow each other at once: a vector has hundreds."""
    start = stream.tell()
    count = 1
    while data[start + 9 * count - 1 : start + 9 * count] == _FLOAT:
        count += 1
    stream.seek(start + 9 * count - 1)
    numbers: tuple[float, ...] = struct.unpack_from(f">d{'xd' * (count - 1)}", data, start)
    return numbers


class _Reader:
    """The stack machine of the format, with calls left undone."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Do one opcode. Raises: ValueError, and what an ill-formed stack raises."""
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            stack.append(_Mark)
        elif name in {"MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"}:
            self.memo[len(self.memo) if name == "MEMOIZE" else int(argument)] = stack[-1]
        elif name in {"GET", "BINGET", "LONG_BINGET"}:
            stack.append(self.memo[int(argument)])
        elif name not in _IGNORED and not self._gather(name) and not self._make(name, argument):
            raise ValueError("a pickle that has no plain form")

    def _gather(self, name: str) -> bool:
        """Put values into the list, map, set or tuple that holds them."""
        stack = self.stack
        if name in _TUPLES:
            size = _TUPLES[name]
            stack[-size:] = [tuple(stack[-size:])]
        elif name in {"TUPLE", "LIST", "DICT", "FROZENSET"}:
            values = self._since_mark()
            pairs = dict(zip(values[::2], values[1::2], strict=True)) if name == "DICT" else None
            stack.append(pairs if pairs is not None else tuple(values) if name == "TUPLE" else list(values))
        elif name in {"APPENDS", "ADDITEMS"}:
            values = self._since_mark()
            _add(stack[-1], values)
        elif name == "APPEND":
            value = stack.pop()
            _add(stack[-1], [value])
        elif name == "SETITEMS":
            values = self._since_mark()
            stack[-1].update(zip(values[::2], values[1::2], strict=True))
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            stack[-1][key] = value
        else:
            return False
        return True

    def _make(self, name: str, argument: Any) -> bool:
        """Note what would be called, beside its plain arguments and state."""
        stack = self.stack
        if name == "GLOBAL":
            stack.append(Named(str(argument).replace(" ", ".")))
        elif name == "STACK_GLOBAL":
            last, module = stack.pop(), stack.pop()
            stack.append(Named(f"{module}.{last}"))
        elif name in {"REDUCE", "NEWOBJ", "NEWOBJ_EX"}:
            arguments = [stack.pop() for _ in range(2 if name == "NEWOBJ_EX" else 1)][::-1]
            called = stack.pop()
            stack.append(Made(name=called.name, content={"arguments": arguments}))
        elif name == "BUILD":
            state = stack.pop()
            if not isinstance(stack[-1], Made):
                return False
            stack[-1].content["state"] = state
        else:
            return False
        return True

    def _since_mark(self) -> list[Any]:
        place = len(self.stack) - 1
        while self.stack[place] is not _Mark:
            place -= 1
            if place < 0:
                raise ValueError("a pickle that has no plain form")
        values = self.stack[place + 1 :]
        del self.stack[place:]
        return values


def _add(group: Any, values: list[Any]) -> None:
    if isinstance(group, list):
        group.extend(values)
    elif isinstance(group, set):
        group.update(values)
    else:
        raise ValueError("a pickle that has no plain form")  # noqa: TRY004 -- one error for every ill-formed stream


def write_pickle(value: Any) -> bytes:
    """Return a pickle, protocol 4, of what `read_pickle` returned: plain data, and objects of classes by their names.

    An object is written as its class with its arguments and its state, the way classes without methods of their own for
    it are pickled. Raises: ValueError for anything else.
    """
    return b"\x80\x04" + _written(value) + b"."


def _written(value: Any) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, str):
        encoded = value.encode(errors="surrogatepass")
        return b"X" + struct.pack("<I", len(encoded)) + encoded
    if isinstance(value, float):
        return _FLOAT + struct.pack(">d", value)
    if isinstance(value, int):
        size = value.bit_length() // 8 + 1
        return b"\x8b" + struct.pack("<i", size) + value.to_bytes(size, "little", signed=True)
    if isinstance(value, bytes):
        return b"B" + struct.pack("<I", len(value)) + value
    if isinstance(value, Made):
        return _object(value)
    groups: dict[type, tuple[bytes, bytes]] = {list: (b"](", b"e"), tuple: (b"(", b"t"), set: (b"\x8f(", b"\x90")}
    if type(value) in groups:
        before, after = groups[type(value)]
        return before + b"".join(map(_written, value)) + after
    if isinstance(value, dict):
        return b"}(" + b"".join(_written(each) for pair in value.items() for each in pair) + b"u"
    raise ValueError("only what was read from a pickle is written")


def _object(value: Made) -> bytes:
    module, _, name = value.name.rpartition(".")
    arguments = value.content["arguments"]
    if len(arguments) != 1 or not isinstance(arguments[0], tuple):
        raise ValueError("only what was read from a pickle is written")
    made = _written(module) + _written(name) + b"\x93" + _written(arguments[0]) + b"\x81"
    return made + (_written(value.content["state"]) + b"b" if "state" in value.content else b"")
