"""The manifest of a package as JSON that a person can read, written in pieces: its long lists lie in files meanwhile.

Guarantees: the bytes are those of `json.dumps` with an indent of two, whatever is listed; of a list nothing is in
memory but its last megabyte. Its file has no name and ends with it, or with the process. Not here: what a manifest
says (`erasure.export`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from erasure.signed_file import PIECE, unnamed


def json_bytes(value: Any, *, depth: int = 0) -> bytes:
    """JSON that a person can read; `depth`: how many spaces it stands inside of something else."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    # A line break inside of a string is written as an escape.
    return (text.replace("\n", "\n" + " " * depth) if depth else text).encode()


class Listing(AbstractContextManager["Listing"]):
    """A member of a manifest that is a list, as it grows."""

    def __init__(self, folder: Path | None = None) -> None:
        """An empty one, whose file lies on the disk of a folder."""
        self._file = unnamed(folder)
        self._is_empty = True

    def append(self, item: Mapping[str, Any]) -> None:
        """One more."""
        self._file.write((b"[\n    " if self._is_empty else b",\n    ") + json_bytes(item, depth=4))
        self._is_empty = False

    def pieces(self) -> Iterator[bytes]:
        """The list's text, after which it may go on."""
        if self._is_empty:
            yield b"[]"
            return
        self._file.seek(0)
        while piece := self._file.read(PIECE):
            yield piece
        yield b"\n  ]"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def pieces(manifest: Mapping[str, Any]) -> Iterator[bytes]:
    """`json_bytes` of a manifest, whose members are JSON values and listings."""
    lead = b"{\n  "
    for name, value in manifest.items():
        yield lead + json_bytes(name) + b": "
        if isinstance(value, Listing):
            yield from value.pieces()
        else:
            yield json_bytes(value, depth=2)
        lead = b",\n  "
    yield b"\n}"
