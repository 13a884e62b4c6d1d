"""Folders of plain files: documents in JSON and JSON lines with their owners, everything else by size and age.

Guarantees: symbolic links are not followed, no file is read beyond `LARGEST`, and special files are not opened. A file
of lines is shared when its lines name several people.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from connectors.scanning.database import Unreadable
from connectors.scanning.look import Found, Look
from connectors.scanning.report import DryRun, Place
from connectors.scanning.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGEST = 64 << 20
"""Bytes of a JSON document beyond which it is not read as one; lines may be as many as they like."""
_LINE = 16 << 20
_CHUNK = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_DOCUMENTS = (".json", ".jsonl", ".ndjson")
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
        _file(root, path, look, place, threads=threads, asked=asked)
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


def _file(root: Path, path: Path, look: Look, place: Place, *, threads: Threads, asked: list[int]) -> None:
    owners: dict[tuple[str, str], int] = {}
    bad = [0]
    try:
        with os.fdopen(os.open(path, _READ), "rb") as stream:
            if path.suffix.lower() in _DOCUMENTS:
                for fields in _documents(stream, path, bad):
                    owner = look.owner_in(fields)
                    thread = next(
                        (str(fields[name]) for name in _THREADS if isinstance(fields.get(name), str | int)), None
                    )
                    if thread is not None:
                        threads.add(thread, owner)
                    if owner is not None:
                        owners[owner] = owners.get(owner, 0) + 1
            text = look.text()
            held = text is not None and _holds(stream, text.encode())
    except (OSError, Unreadable) as error:
        why = str(error) if isinstance(error, Unreadable) else (error.strerror or "could not be read").lower()
        place.unread.append(f"a {path.suffix} file: {why}")
        asked[3] += 1
        return
    if bad[0]:
        place.unread.append(f"a {path.suffix} file: {bad[0]} documents are not JSON")
    for (name, value), count in owners.items():
        place.people.add([value] * count)
        place.owner_fields[name] += count
    place.nobody += not owners
    asked[4] += len({value for _, value in owners}) > 1
    theirs = any(look.is_subject(value) for _, value in owners)
    asked[0] += theirs
    asked[1] += theirs and any(not look.is_subject(value) for _, value in owners)
    asked[2] += held and not theirs
    if look.sink is not None:
        _register(root, path, look, place, owners)


def _register(root: Path, path: Path, look: Look, place: Place, owners: dict[tuple[str, str], int]) -> None:
    if look.sink is None:
        return
    name = str(path.relative_to(root))
    at = datetime.fromtimestamp(path.lstat().st_mtime, UTC)
    if len(owners) > 1 and path.suffix.lower() != ".json":
        for field, value in owners:
            locator: dict[str, Any] = {"path": name, "lines": {"field": field, "value": value}}
            look.sink(place, Found(locator=locator, owners=((field, value),), at=at))
        return
    look.sink(place, Found(locator={"path": name}, owners=tuple(owners), at=at))


_THREADS = ("thread_id", "conversation_id", "session_id", "conversation", "stream")


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
