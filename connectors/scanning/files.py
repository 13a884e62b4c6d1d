"""Folders of plain files: documents in JSON and JSON lines with their owners, everything else by size and age.

Guarantees: symbolic links are not followed, no file is read beyond `LARGEST`, and special files are not opened. A file
of lines is shared when its lines name several people.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from connectors.scanning.database import Unreadable
from connectors.scanning.look import Found, Look, name_of
from connectors.scanning.report import DryRun, Place
from connectors.scanning.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Sequence

Owner = tuple[str, Any]
"""A field and the value it holds, as it stands: a connector tells 42 from "42"."""
LARGEST = 64 << 20
"""Bytes of a JSON document beyond which it is not read as one; lines may be as many as they like."""
_LINE = 16 << 20
_CHUNK = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_DOCUMENTS = (".json", ".jsonl", ".ndjson")
_LINES = (".jsonl", ".ndjson")
_LINKS = "names of the same bytes elsewhere"


def scan_files(root: Path, paths: Sequence[Path], look: Look, label: str) -> Place:
    """Return what plain files hold; `root` is the folder a store would be registered with."""
    place = Place(what="files", label=label, kind="files", config={"root": str(root.resolve())}, ages=look.ages())
    threads = Threads(look)
    asked = [0, 0, 0, 0, 0]
    linked = 0
    for path in paths:
        try:
            facts = path.lstat()
        except OSError:
            place.unread.append("a file went away while it was looked at")
            continue
        if not stat.S_ISREG(facts.st_mode):
            place.notes.append("links and special files are not followed")
            continue
        place.rows += 1
        place.bytes += facts.st_size
        place.ages.add(datetime.fromtimestamp(facts.st_mtime, UTC))
        linked += facts.st_nlink > 1
        suffix = path.suffix.lower() or "(none)"
        place.parts[suffix] = place.parts.get(suffix, 0) + 1
        _file(_File(root=root, path=path, look=look, place=place), threads=threads, asked=asked)
    place.notes = list(dict.fromkeys(place.notes))
    place.orphan("files with other hard links", linked, f"removing one name leaves {_LINKS}")
    threads.sum_up(place, nobody=False)
    if not len(threads):
        place.threads = None
    if asked[4]:
        place.notes.append(f"files that several people share: {asked[4]}; of shared lines one person's can go alone")
    if look.subject is not None:
        place.dry_run = DryRun(items=asked[0], shared=asked[1], mentions=asked[2], unread=asked[3])
    place.leaves.append("disk blocks, snapshots and backups of the file system; other copies of a file")
    return place


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """One file that is looked at."""

    root: Path
    path: Path
    look: Look
    place: Place

    @property
    def has_lines(self) -> bool:
        """Tell whether each line is a document of its own."""
        return self.path.suffix.lower() in _LINES

    def hand_over(self, owners: Sequence[Owner], lines: Owner | None = None) -> None:
        """Give the file, or its lines with this field and value, to whoever registers it."""
        if self.look.sink is None:
            return
        more = {} if lines is None else {"lines": {"field": lines[0], "value": lines[1]}}
        locator = {"path": str(self.path.relative_to(self.root)), **more}
        at = datetime.fromtimestamp(self.path.lstat().st_mtime, UTC)
        named = tuple((field, str(value)) for field, value in owners)
        self.look.sink(self.place, Found(locator=locator, owners=named, at=at))


def _file(here: _File, *, threads: Threads, asked: list[int]) -> None:
    path, look, place = here.path, here.look, here.place
    owners: dict[Owner, list[int]] = {}
    bad, unnamed = [0], [0]
    try:
        with os.fdopen(os.open(path, _READ), "rb") as stream:
            if path.suffix.lower() in _DOCUMENTS:
                for fields in _documents(stream, path, bad):
                    found = look.owners_in(fields)
                    _note(fields, found, owners, threads)
                    if len(found) > 1 and here.has_lines:
                        unnamed[0] += not _register_joint(here, fields, found)
            text = look.text()
            held = text is not None and _holds(stream, text.encode())
    except (OSError, Unreadable) as error:
        why = str(error) if isinstance(error, Unreadable) else (error.strerror or "could not be read").lower()
        place.unread.append(f"a {path.suffix} file: {why}")
        asked[3] += 1
        return
    if bad[0]:
        place.unread.append(f"a {path.suffix} file: {bad[0]} documents are not JSON")
    if unnamed[0]:
        place.unread.append(
            f"a {path.suffix} file: {unnamed[0]} lines name several people and have no id to name them by"
        )
    values = {str(value) for _, value in owners}
    for (name, value), (alone, joint) in owners.items():
        place.people.add([str(value)] * (alone + joint))
        place.owner_fields[name] += alone + joint
    place.nobody += not owners
    asked[4] += len(values) > 1
    theirs = any(look.is_subject(value) for value in values)
    asked[0] += theirs
    asked[1] += theirs and any(not look.is_subject(value) for value in values)
    asked[2] += held and not theirs
    _register(here, owners)


def _note(fields: dict[str, Any], found: tuple[Owner, ...], owners: dict[Owner, list[int]], threads: Threads) -> None:
    """Count whom one document names, alone or with others, and its thread."""
    thread = next((str(fields[name]) for name in _THREADS if isinstance(fields.get(name), str | int)), None)
    named: list[tuple[str, str] | None] = [(field, str(value)) for field, value in found]
    for owner in (named or [None]) if thread is not None else ():
        threads.add(str(thread), owner)
    for each in found:
        owners.setdefault(each, [0, 0])[len(found) > 1] += 1


def _register(here: _File, owners: dict[Owner, list[int]]) -> None:
    """Hand over a document, or of a file of lines those of each person, which the connector takes one by one."""
    if not here.has_lines or not owners:
        here.hand_over(tuple(owners))
        return
    for owner, (alone, _) in owners.items():
        if alone:
            here.hand_over((owner,), owner)


def _register_joint(here: _File, fields: dict[str, Any], found: tuple[Owner, ...]) -> bool:
    """Hand over one line of several people by its id; False where it has none."""
    own = next((name for name in _IDS if name_of(fields.get(name)) is not None), None)
    if own is not None:
        here.hand_over(found, (own, fields[own]))
    return own is not None


_THREADS = ("thread_id", "conversation_id", "session_id", "conversation", "stream")
_IDS = ("id", "uuid", "uid", "message_id", "event_id", "key")


def _documents(stream: BinaryIO, path: Path, bad: list[int]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a document or of lines; what is no JSON is counted in `bad`."""
    if path.suffix.lower() == ".json":
        data = stream.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise Unreadable(f"larger than {LARGEST >> 20} MB, so it is not read as one document")
        pieces: Iterator[bytes] = iter([data])
    else:
        pieces = iter(lambda: stream.readline(_LINE), b"")
    for piece in pieces:
        if not piece.strip():
            continue
        try:
            found = msgspec.json.decode(piece)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            bad[0] += 1
            continue
        for each in found if isinstance(found, list) else [found]:
            if isinstance(each, dict):
                yield each


def _holds(stream: BinaryIO, wanted: bytes) -> bool:
    stream.seek(0)
    tail = b""
    while chunk := stream.read(_CHUNK):
        if wanted in tail + chunk:
            return True
        tail = chunk[-len(wanted) :]
    return False
