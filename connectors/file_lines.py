"""Shared files of JSON lines: take some lines out, leave every other byte as it is.

Guarantees: readers see the old file or the new one, never a part; the kept lines are byte-equal and in order; bytes
that another process appended while the copy was made are carried over. Does not reach a process that keeps the old file
open and goes on writing to it: such a writer has to reopen by name.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from connectors.errors import BadLocator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from connectors.base import Deadline
    from connectors.file_tree import Place

LINE_LIMIT = 64 * 1024 * 1024
"""A longer line is not held in memory; the file is refused."""

_TEMPORARY = ".muniment-rewrite-"

Value = str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineKey:
    """Which lines of a file are meant: those whose JSON object has this value in this field, of the same type."""

    field: str
    value: Value

    def matches(self, document: object) -> bool:
        """Tell whether a parsed line is meant; 1, "1" and true are three different values."""
        if not isinstance(document, dict) or self.field not in document:
            return False
        found = document[self.field]
        return type(found) is type(self.value) and found == self.value

    def resembles(self, document: object) -> bool:
        """Tell whether a line has the value as another type: 42 where "42" was named, which may well be meant."""
        found = document.get(self.field) if isinstance(document, dict) else None
        is_value = isinstance(found, str | int) and not isinstance(found, bool)
        return is_value and type(found) is not type(self.value) and str(found) == str(self.value)

    def may_hide_in(self, line: bytes) -> bool:
        """Tell whether a line that is no JSON holds the value as text, so that nobody can say whose it is."""
        text = self.value if isinstance(self.value, str) else str(self.value)
        return text.encode() in line or json.dumps(text)[1:-1].encode() in line


def line_key(locator: Mapping[str, object]) -> LineKey | None:
    """Return the lines a locator names, None where it means the whole file. Raises: BadLocator."""
    rest = {name: value for name, value in locator.items() if name != "path"}
    if not rest:
        return None
    if set(rest) == {"lines"} and isinstance(rest["lines"], dict) and set(rest["lines"]) == {"field", "value"}:
        name, value = rest["lines"]["field"], rest["lines"]["value"]
    elif set(rest) == {"line_field", "line_value"}:
        name, value = rest["line_field"], rest["line_value"]
    else:
        raise BadLocator("a file locator is {path} or {path, lines: {field, value}}")
    if not isinstance(name, str) or not name or isinstance(value, bool) or not isinstance(value, Value) or value == "":
        raise BadLocator("lines are named by a field and a text or whole number")
    return LineKey(field=name, value=value)


def lines(stream: BinaryIO, deadline: Deadline) -> Iterator[bytes]:
    """Yield the lines with their ends. Raises: BadLocator for a line past LINE_LIMIT, Timeout."""
    for number, line in enumerate(iter(lambda: stream.readline(LINE_LIMIT), b"")):
        if len(line) >= LINE_LIMIT and not line.endswith(b"\n"):
            raise BadLocator("the file has a line too long to rewrite")
        if number % 1024 == 0:
            deadline.check()
        yield line


def parse(line: bytes) -> object:
    """Return a line's JSON document, None where it is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def named_values(stream: BinaryIO, deadline: Deadline) -> Iterator[tuple[str, Value]]:
    """Yield each field and value by which a line can be named, line by line. Raises: as `lines`."""
    for line in lines(stream, deadline):
        document = parse(line)
        for name, value in document.items() if isinstance(document, dict) else ():
            if name and isinstance(value, Value) and not isinstance(value, bool) and value != "":
                yield name, value


def matching(stream: BinaryIO, keys: Sequence[LineKey], deadline: Deadline) -> Iterator[tuple[LineKey, object, bytes]]:
    """Yield (key, document, line) for each line meant, (key, None, line) for one that may be: broken, another type."""
    for line in lines(stream, deadline):
        document = parse(line)
        for key in keys:
            if document is None:
                if key.may_hide_in(line):
                    yield key, None, line
            elif key.matches(document):
                yield key, document, line
            elif key.resembles(document):
                yield key, None, line


def rewrite(place: Place, drops: Callable[[bytes], bool], deadline: Deadline) -> int:
    """Replace the file by itself without the dropped lines and return how many went; owner and mode are kept.

    1. copy the kept lines to a new file beside it; 2. sync; 3. rename over the old name; 4. carry over what was
    appended to the old file meanwhile; 5. sync the folder. Before 3 a crash leaves the old file and a temporary one,
    which the next rewrite of the same folder removes; after 3 the new file is complete but for 4.

    Raises: BadLocator, Timeout.
    """
    lock(place, deadline)
    remove_leftovers(place)
    temporary = _TEMPORARY + secrets.token_hex(8)
    with place.open() as source:
        before = os.fstat(source.fileno())
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=place.folder)
        with os.fdopen(handle, "wb") as target:
            try:
                dropped = _copy(source, target, drops, deadline)  # 1
                os.fchown(handle, before.st_uid, before.st_gid)
                os.fchmod(handle, before.st_mode & 0o7777)
                target.flush()
                os.fsync(handle)  # 2
                os.rename(temporary, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)  # 3
            except BaseException:
                os.unlink(temporary, dir_fd=place.folder)
                raise
            dropped += _copy(source, target, drops, deadline)  # 4
            target.flush()
            os.fsync(handle)
    os.fsync(place.folder)  # 5
    return dropped


def _copy(source: BinaryIO, target: BinaryIO, drops: Callable[[bytes], bool], deadline: Deadline) -> int:
    dropped = 0
    for line in lines(source, deadline):
        if drops(line):
            dropped += 1
        else:
            target.write(line)
    return dropped


def lock(place: Place, deadline: Deadline) -> None:
    """Wait to be the only rewriter in the folder, until its descriptor is closed. Raises: Timeout."""
    while True:
        try:
            fcntl.flock(place.folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            deadline.check()
            time.sleep(0.02)
        else:
            return


def is_leftover(name: str) -> bool:
    """Tell whether a file is a temporary one of ours."""
    return name.startswith(_TEMPORARY)


def remove_leftovers(place: Place) -> int:
    """Delete temporary files that a crash left in a locked folder, for they hold lines; return how many."""
    with os.scandir(place.folder) as entries:
        names = [entry.name for entry in entries if is_leftover(entry.name)]
    for name in names:
        os.unlink(name, dir_fd=place.folder)
    return len(names)
