"""A signed certificate as a value whose long lists are read when somebody looks at them.

Guarantees: what is read is what the file says. A certificate of a hundred thousand copies has them in its bytes, once,
and not as values that take ten times the space: a line of a list is some sixty bytes here until it is looked at. The
file is trusted here; `erasure.report_check` is what checks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import msgspec

from erasure.signed_file import Readable

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_pieces = msgspec.json.Decoder(list[msgspec.Raw])
_line = msgspec.json.Decoder(dict[str, Any])
_NAMED = ("data_class", "store", "method")
_LONG = frozenset({"copies", "retained", "exceptions"})


class _Shown(msgspec.Struct):
    """Of an event, what a paper shows."""

    entry: str
    index: int
    header: str


class _Log(msgspec.Struct):
    checkpoint: str
    key: str
    proofs: list[_Shown]


class ReadLines(Sequence[Mapping[str, Any]]):
    """The lines of a certificate's list in their order."""

    def __init__(self, data: msgspec.Raw) -> None:
        self._pieces = _pieces.decode(data)

    def __len__(self) -> int:
        return len(self._pieces)

    @overload
    def __getitem__(self, place: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, place: slice) -> list[Mapping[str, Any]]: ...

    def __getitem__(self, place: int | slice) -> Mapping[str, Any] | list[Mapping[str, Any]]:
        if isinstance(place, slice):
            return [_line.decode(piece) for piece in self._pieces[place]]
        return _line.decode(self._pieces[place])

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return map(_line.decode, self._pieces)


def document_of(report: Readable) -> dict[str, Any]:
    """The signed file: its certificate, with `ReadLines`, and its signature. Of events only what a paper shows."""
    parts = _members.decode(report)
    certificate = {name: _member(name, value) for name, value in _members.decode(parts["certificate"]).items()}
    return {"certificate": certificate, "signature": msgspec.json.decode(parts["signature"])}


def _member(name: str, value: msgspec.Raw) -> Any:
    if name == "log":
        return msgspec.to_builtins(msgspec.json.decode(value, type=_Log))
    return ReadLines(value) if name in _LONG else msgspec.json.decode(value)


def numbered(copies: Iterable[Mapping[str, Any]], lines: Iterable[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """What a paper says of the copies that lines name, by their numbers."""
    wanted = {line["copy"] for line in lines}
    if not wanted:
        return {}
    return {copy["copy"]: {name: copy[name] for name in _NAMED} for copy in copies if copy["copy"] in wanted}
