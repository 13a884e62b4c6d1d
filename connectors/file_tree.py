"""Files below one root folder, reached only through the root's own descriptor.

Guarantees: no name leads outside the root, also while somebody swaps folders for symbolic links, because each component
is opened relative to its parent and links are never followed. Decides nothing about what may be erased.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from connectors.errors import BadLocator, OutsideRoot, StoreUnreachable, WrongCredentials

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connectors.base import Deadline

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An open parent folder and a name in it; valid inside `FileTree.parent`."""

    folder: int
    name: str

    def stat(self) -> os.stat_result | None:
        """Return what lies at the name, links not followed; None where nothing does."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self) -> BinaryIO:
        """Return the file opened for reading; never a link, a folder or a pipe. Raises: BadLocator."""
        try:
            handle = os.open(self.name, _FILE, dir_fd=self.folder)
        except OSError as problem:
            if problem.errno == errno.ELOOP:
                raise BadLocator("the name is a symbolic link") from None
            raise
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise BadLocator("the name is not a regular file")
        return os.fdopen(handle, "rb")


def split(path: object) -> tuple[str, ...]:
    """Return the components of a relative path in its only spelling. Raises: BadLocator, OutsideRoot."""
    if not isinstance(path, str) or not path or "\0" in path:
        raise BadLocator("path is a relative file name")
    parts = tuple(path.split("/"))
    if path.startswith("/") or ".." in parts:
        raise OutsideRoot
    if "" in parts or "." in parts:
        # A second spelling of the same file would be a second artifact.
        raise BadLocator("path has empty or dot components")
    return parts


class FileTree:
    """The root folder, opened when first needed and checked to be the same folder ever after."""

    def __init__(self, root: str) -> None:
        self._path = root
        self._root: int | None = None

    def root(self) -> int:
        """Return the root's descriptor. Raises: StoreUnreachable, WrongCredentials."""
        if self._root is None:
            try:
                self._root = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except PermissionError:
                raise WrongCredentials("files", "the root folder may not be read") from None
            except OSError as problem:
                raise StoreUnreachable("files", f"the root folder cannot be opened ({_name(problem)})") from None
        return self._root

    def close(self) -> None:
        """Give up the root's descriptor."""
        if self._root is not None:
            os.close(self._root)
            self._root = None

    @contextmanager
    def parent(self, path: object) -> Iterator[Place | None]:
        """Give the place of a path, None where a folder on the way is missing. Raises: BadLocator, OutsideRoot."""
        *folders, name = split(path)
        here = os.dup(self.root())
        try:
            for folder in folders:
                try:
                    below = os.open(folder, _FOLDER, dir_fd=here)
                except FileNotFoundError:
                    self._still_there()
                    yield None
                    return
                except OSError as problem:
                    if problem.errno in {errno.ELOOP, errno.ENOTDIR}:
                        # O_NOFOLLOW with O_DIRECTORY answers ENOTDIR for a link; a file as folder is no place either.
                        raise OutsideRoot from None
                    raise
                os.close(here)
                here = below
            self._still_there()
            yield Place(folder=here, name=name)
        finally:
            os.close(here)

    def _still_there(self) -> None:
        """Refuse to conclude absence from a root that was moved, deleted or unmounted. Raises: StoreUnreachable."""
        opened = os.fstat(self.root())
        try:
            named = Path(self._path).stat()
        except OSError:
            raise StoreUnreachable("files", "the root folder is gone") from None
        if (opened.st_dev, opened.st_ino) != (named.st_dev, named.st_ino):
            raise StoreUnreachable("files", "the root is another folder now")

    def walk(self, deadline: Deadline) -> Iterator[tuple[str, os.stat_result, Place]]:
        """Yield every regular file as (relative path, stat, place); links are not followed. Raises: Timeout."""
        yield from self._walk("", os.dup(self.root()), deadline)

    def _walk(self, prefix: str, folder: int, deadline: Deadline) -> Iterator[tuple[str, os.stat_result, Place]]:
        try:
            with os.scandir(folder) as entries:
                names = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
            for name, is_folder in names:
                deadline.check()
                place = Place(folder=folder, name=name)
                if is_folder:
                    try:
                        below = os.open(name, _FOLDER, dir_fd=folder)
                    except FileNotFoundError:
                        continue
                    except PermissionError:
                        raise WrongCredentials("files", "a folder below the root may not be read") from None
                    yield from self._walk(f"{prefix}{name}/", below, deadline)
                elif (found := place.stat()) is not None and stat.S_ISREG(found.st_mode):
                    yield prefix + name, found, place
        finally:
            os.close(folder)


def _name(problem: OSError) -> str:
    return errno.errorcode.get(problem.errno or 0, "unknown")
