"""What a caller said of an artifact in free form, as it is sealed: written short, read in both forms there were.

Guarantees: pure; what `write` was given `read` returns, texts and integers apart. Each artifact has one such value, so
the names of the members are not in it: they stand in the order of `_MEMBERS`, which only ever grows at its end.

A value is MessagePack, an array without its last absent members; or JSON (`{`), as all were before, and as one that
holds an integer of more than 64 bits still is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from registry.keyed import canonical_json

_MEMBERS = (
    "locator", "scope", "activity", "versions", "source_ref", "purposes", "anonymisation", "after_action", "reason",
)  # fmt: skip
_JSON = b"{"
_encoder = msgspec.msgpack.Encoder(order="sorted")
_decode = msgspec.msgpack.Decoder(list[Any]).decode
_decode_json = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What a caller said of an artifact in free form, opened. None for what was forgotten."""

    locator: Mapping[str, Any] = field(repr=False)
    scope: Mapping[str, str] = field(default_factory=dict, repr=False)
    activity: Mapping[str, str] = field(default_factory=dict, repr=False)
    versions: Mapping[str, str] = field(default_factory=dict, repr=False)
    source_ref: str | None = field(default=None, repr=False)
    purposes: tuple[str, ...] = ()
    anonymisation: Mapping[str, str] = field(default_factory=dict, repr=False)
    after_action: str | None = field(default=None, repr=False)
    reason: str | None = field(default=None, repr=False)


def write(said: Mapping[str, Any]) -> bytes:
    """The bytes to seal of these members; empty ones are left out. Raises: UnicodeEncodeError."""
    values = [said.get(name) or None for name in _MEMBERS]
    while values and values[-1] is None:
        values.pop()
    try:
        return _encoder.encode(values)
    except OverflowError:
        return canonical_json({name: value for name, value in said.items() if value})


def read(opened: bytes) -> dict[str, Any]:
    """The members that are there, by name."""
    if opened.startswith(_JSON):
        return _decode_json(opened)
    return {name: value for name, value in zip(_MEMBERS, _decode(opened), strict=False) if value is not None}


def details_of(opened: bytes) -> Details:
    """The same as a value."""
    said = read(opened)
    return Details(**{**said, "purposes": tuple(said.get("purposes", ()))})
