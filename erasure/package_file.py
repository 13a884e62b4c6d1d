"""The file of an export while it is written: a zip, and beside it what its manifest will say.

Guarantees: every file in it is listed with its size and digest as they were written, in a file too; of each copy some
bytes stay in memory, which say what became of it and where it lies here. While it is written it has no name: of a pass
that breaks off, by a crash too, nothing stays that no registry knows of. It gets its name whole. Not here: when it gets
one (`erasure.package_names`), and what goes into it (`erasure.exporting`, `erasure.exported_entries`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import zipfile
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from erasure.export import Tally
from erasure.manifest_file import Listing
from erasure.request import CopyState
from erasure.zip_directory import forget_name
from vault.durable import sync_folder

_BLOCK = 256 * 1024


class Fate(NamedTuple):
    """What became of a copy, why, and how its file ends if it has one of its own."""

    state: CopyState
    detail: str | None = None
    suffix: str | None = None


class Fates:
    """The fates of copies by their numbers: most have one of a few, so that each takes two bytes."""

    def __init__(self) -> None:
        self._alike: list[Fate] = []
        self._known: dict[Fate, int] = {}
        self._of = array("H")

    def settle(self, number: int, state: CopyState, detail: str | None = None, suffix: str | None = None) -> None:
        """Say what became of a copy; the last word holds."""
        fate = Fate(state, detail, suffix)
        if fate not in self._known:
            self._alike.append(fate)
            self._known[fate] = len(self._alike)
        if (missing := number + 1 - len(self._of)) > 0:
            self._of.extend([0] * missing)
        self._of[number] = self._known[fate]

    def get(self, number: int) -> Fate | None:
        """What became of a copy; None while nothing was said of it."""
        kind = self._of[number] if number < len(self._of) else 0
        return self._alike[kind - 1] if kind else None


def place_of(data_class: str, ref: str, suffix: str) -> str:
    """Where a copy of an artifact lies in a package."""
    return f"artifacts/{data_class}/{ref}.{suffix}"


@dataclass(slots=True)
class Package:
    """What was written so far: files with their digests, the fate of each copy, counts of entries."""

    zip: zipfile.ZipFile
    files: Listing
    fates: Fates = field(default_factory=Fates)
    entries: dict[str, Tally] = field(default_factory=dict)
    sources: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    decisions: int = 0
    places: set[str] = field(default_factory=set)
    """The files and folders at its top; a folder ends in a slash."""

    def add(self, path: str, data: bytes, at: datetime, **about: Any) -> None:
        """Write one whole file."""
        with self.open(path, at, **about) as out:
            out.write(data)

    def put(self, path: str, pieces: Iterable[bytes], at: datetime) -> None:
        """Write one file piece by piece."""
        with self.open(path, at) as out:
            for piece in pieces:
                out.write(piece)

    def open(self, path: str, at: datetime, **about: Any) -> _File:
        """Begin a file that is written in pieces."""
        top, slash, _ = path.partition("/")
        self.places.add(top + slash)
        info = zipfile.ZipInfo(path, date_time=at.timetuple()[:6])
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = 0o600 << 16
        return _File(self, path, self.zip.open(info, "w", force_zip64=True), about)


class _File:
    """One file of the zip with its digest."""

    def __init__(self, package: Package, path: str, out: Any, about: Mapping[str, Any]) -> None:
        self._package = package
        self._path = path
        self._out = out
        self._about = about
        self._digest = hashlib.sha256()
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._digest.update(data)
        self._size += len(data)
        self._out.write(data)

    def __exit__(self, *_: object) -> None:
        self._out.close()
        forget_name(self._package.zip)
        self._package.files.append(
            {"path": self._path, "bytes": self._size, "sha256": self._digest.hexdigest(), **self._about}
        )


def make_folder(folder: Path) -> None:
    """The folder of a tenant's packages, readable by this service alone; it is on the disk when this returns."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    sync_folder(folder.parent)
    sync_folder(folder.parent.parent)


def nameless_file(folder: Path) -> IO[bytes]:
    """A file on the disk of a folder, without a name in it; it ends when it is closed or its process does."""
    try:
        # Not by `tempfile`: its files can never be given a name.
        return os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600), "w+b")
    except OSError:  # a file system without such files
        return tempfile.TemporaryFile(dir=folder)


def digest_of(file: IO[bytes]) -> tuple[str, int]:
    """The SHA-256 of a whole file, in hex, and its size."""
    file.seek(0)
    digest = hashlib.sha256()
    while block := file.read(_BLOCK):
        digest.update(block)
    return digest.hexdigest(), file.tell()


def give_name(file: IO[bytes], path: Path) -> None:
    """Give a file of `nameless_file` its name: it leads to the whole file, or is not there, also after a power cut.

    Both are on the disk when this returns. What had the name before loses it.
    """
    path.unlink(missing_ok=True)
    file.flush()
    os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.link(f"/proc/self/fd/{file.fileno()}", path.name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:  # a file system without such files, or a system without /proc
        _copy(file, path)
    finally:
        os.close(folder)
    sync_folder(path.parent)


def _copy(file: IO[bytes], path: Path) -> None:
    """The same by a copy, under a name that `remove_unfinished` removes if the process dies here."""
    part = path.with_name(f".{path.name}.part")
    file.seek(0)
    handle = os.open(part, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    with os.fdopen(handle, "wb") as out:
        shutil.copyfileobj(file, out, _BLOCK)
        out.flush()
        os.fsync(out.fileno())
    part.rename(path)


def remove_unfinished(folder: Path) -> None:
    """Remove what processes that died left of packages under the names that a copy has, or had in earlier versions."""
    for file in folder.glob(".req_*.part"):
        file.unlink(missing_ok=True)
