"""A signed certificate as a value whose copies are read when somebody looks at them.

Guarantees: what is read is what the file says. A certificate of a hundred thousand copies has them in its bytes, once,
and not as values that take ten times the space. The file is trusted here; `erasure.report_check` is what checks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import msgspec

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_pieces = msgspec.json.Decoder(list[msgspec.Raw])
_copy = msgspec.json.Decoder(dict[str, Any])


class Copies(Sequence[Mapping[str, Any]]):
    """The copies of a certificate in their order."""

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
            return [_copy.decode(piece) for piece in self._pieces[place]]
        return _copy.decode(self._pieces[place])

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return map(_copy.decode, self._pieces)


def document_of(report: bytes) -> dict[str, Any]:
    """The signed file: its certificate, with `Copies`, and its signature."""
    parts = _members.decode(report)
    certificate = {
        name: Copies(value) if name == "copies" else msgspec.json.decode(value)
        for name, value in _members.decode(parts["certificate"]).items()
    }
    return {"certificate": certificate, "signature": msgspec.json.decode(parts["signature"])}


def numbered(copies: Iterable[Mapping[str, Any]], lines: Iterable[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """The copies that lines name, by their numbers."""
    wanted = {line["copy"] for line in lines}
    return {copy["copy"]: copy for copy in copies if copy["copy"] in wanted} if wanted else {}
