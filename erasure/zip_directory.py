"""The list of files of a zip while it is written, as columns: some sixty bytes and a name for each instead of 700.

Guarantees: what `zipfile` puts in, it gets back when it writes the list at the end of the file. Not here: the files.
"""

from __future__ import annotations

import copy
import zipfile
from array import array
from collections.abc import Iterator
from typing import IO

from erasure.facts import Packed

_OWN = ("filename", "orig_filename", "CRC", "compress_size", "file_size", "header_offset", "_end_offset")
"""What one file has for itself; the rest many have in common."""


class Directory(list[zipfile.ZipInfo]):
    """A list to which `zipfile` appends, and over which it goes once; nobody else looks into it."""

    def __init__(self) -> None:
        super().__init__()
        self._alike: list[zipfile.ZipInfo] = []
        self._known: dict[tuple[object, ...], int] = {}
        self._kinds, self._names, self._checks = array("I"), Packed(), array("I")
        self._sizes = array("Q")
        """Of each: compressed, as it is, and where it begins."""

    def append(self, info: zipfile.ZipInfo) -> None:
        """One more file, which is written by now."""
        shared = tuple(getattr(info, name, None) for name in info.__slots__ if name not in _OWN)
        kind = self._known.setdefault(shared, len(self._alike))
        if kind == len(self._alike):
            self._alike.append(info)
        self._kinds.append(kind)
        self._names.append(info.filename)
        self._checks.append(info.CRC)
        self._sizes.extend((info.compress_size, info.file_size, info.header_offset))

    def __len__(self) -> int:
        return len(self._kinds)

    def __iter__(self) -> Iterator[zipfile.ZipInfo]:
        for place, kind in enumerate(self._kinds):
            info = copy.copy(self._alike[kind])
            info.filename = info.orig_filename = self._names[place]
            info.CRC = self._checks[place]
            info.compress_size, info.file_size, info.header_offset = self._sizes[3 * place : 3 * place + 3]
            yield info


def new_zip(out: IO[bytes]) -> zipfile.ZipFile:
    """A zip to write, however many files it gets. Whoever writes one of them calls `forget_name` then."""
    archive = zipfile.ZipFile(out, "w", allowZip64=True)
    archive.filelist = Directory()
    return archive


def forget_name(archive: zipfile.ZipFile) -> None:
    """Let go of the file that was written last: `zipfile` would keep it by its name, to warn of a second one."""
    archive.NameToInfo.clear()
