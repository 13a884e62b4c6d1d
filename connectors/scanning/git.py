"""A git repository used as memory (Letta's MemFS and the like): what its history keeps of files that are gone.

Guarantees: objects are read by an own reader of loose files and packs, so that no configuration, hook or filter of a
foreign repository runs and nothing in it changes. Source: git's gitformat-pack and gitrepository-layout.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from connectors.scanning.database import Unreadable
from connectors.scanning.report import DryRun, Place

if TYPE_CHECKING:
    from connectors.scanning.look import Look

_LARGEST = 64 << 20
_TYPES = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}
_OFFSET_DELTA, _REF_DELTA = 6, 7
_NAME = 20
_FANOUT = 8 + 256 * 4
_DEEPEST = 200
_LINKS = 10
_MOST = 2_000_000


def git_folder(folder: Path) -> Path | None:
    """Return the folder of the objects' repository, of a work tree or a bare one; None where there is none."""
    for each in (folder / ".git", folder):
        if (each / "HEAD").is_file() and (each / "objects").is_dir() and (each / "refs").is_dir():
            return each
    return None


class Objects:
    """Every object of a repository, by its 20-byte name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "objects"
        self._packed: dict[bytes, tuple[Path, int]] = {}
        self._packs: dict[Path, bytes] = {}
        for index in sorted((self._folder / "pack").glob("*.idx")) if (self._folder / "pack").is_dir() else []:
            self._read_index(index)
        self._loose: dict[bytes, Path] = {}
        for each in sorted(self._folder.glob("[0-9a-f][0-9a-f]/*")):
            try:
                name = bytes.fromhex(each.parent.name + each.name)
            except ValueError:
                continue
            if len(name) == _NAME:
                self._loose[name] = each

    def names(self) -> Iterator[bytes]:
        """Yield every object's name once."""
        yield from self._loose
        yield from (name for name in self._packed if name not in self._loose)

    def read(self, name: bytes) -> tuple[str, bytes]:
        """Return type and content. Raises: Unreadable."""
        try:
            if name in self._loose:
                data = _inflated(self._loose[name].read_bytes())
                head, _, body = data.partition(b"\0")
                return head.split(b" ", 1)[0].decode(), body
            if name in self._packed:
                return self._packed_at(*self._packed[name], 0)
        except (OSError, zlib.error, IndexError, ValueError, UnicodeError):
            raise Unreadable("an object is damaged") from None
        raise Unreadable("an object is missing")

    def _read_index(self, index: Path) -> None:
        data = index.read_bytes()
        if data[:8] != b"\xfftOc\x00\x00\x00\x02" or len(data) < _FANOUT:
            raise Unreadable("the index of a pack has another version")
        count = int.from_bytes(data[_FANOUT - 4 : _FANOUT], "big")
        offsets = _FANOUT + count * (_NAME + 4)
        if count > _MOST or len(data) < offsets + 4 * count:
            raise Unreadable("the index of a pack is damaged")
        pack = index.with_suffix(".pack")
        for number in range(count):
            name = data[_FANOUT + number * _NAME : _FANOUT + (number + 1) * _NAME]
            offset = int.from_bytes(data[offsets + 4 * number : offsets + 4 * number + 4], "big")
            if offset >> 31:
                place = offsets + 4 * count + 8 * (offset & 0x7FFFFFFF)
                offset = int.from_bytes(data[place : place + 8], "big")
            self._packed[name] = (pack, offset)

    def _packed_at(self, pack: Path, offset: int, depth: int) -> tuple[str, bytes]:
        if depth > _DEEPEST:
            raise Unreadable("a chain of deltas has no end")
        with pack.open("rb") as stream:
            stream.seek(offset)
            head = stream.read(64)
            byte, at = head[0], 1
            kind, size, shift = byte >> 4 & 7, byte & 15, 4
            while byte & 0x80:
                byte = head[at]
                size |= (byte & 0x7F) << shift
                at, shift = at + 1, shift + 7
            if size > _LARGEST:
                raise Unreadable("an object is too large")
            base: tuple[str, bytes] | None = None
            if kind == _OFFSET_DELTA:
                byte = head[at]
                back, at = byte & 0x7F, at + 1
                while byte & 0x80:
                    byte = head[at]
                    back, at = (back + 1 << 7) | byte & 0x7F, at + 1
                base = self._packed_at(pack, offset - back, depth + 1)
            elif kind == _REF_DELTA:
                base = self.read(head[at : at + _NAME])
                at += _NAME
            stream.seek(offset + at)
            data = _inflated_from(stream, size)
        if base is None:
            return _TYPES.get(kind, "unknown"), data
        return base[0], _patched(base[1], data)


def _inflated(data: bytes) -> bytes:
    found = zlib.decompressobj().decompress(data, _LARGEST)
    if len(found) >= _LARGEST:
        raise Unreadable("an object is too large")
    return found


def _inflated_from(stream: object, size: int) -> bytes:
    machine = zlib.decompressobj()
    found = bytearray()
    while not machine.eof and len(found) <= size:
        chunk = machine.unconsumed_tail or stream.read(65_536)  # type: ignore[attr-defined] # any open binary file
        if not chunk:
            break
        found += machine.decompress(chunk, size + 1 - len(found))
    if len(found) != size:
        raise Unreadable("an object has another size than it says")
    return bytes(found)


def _patched(base: bytes, delta: bytes) -> bytes:
    """Return what a delta makes of its base. Source: gitformat-pack, "Deltified representation"."""
    at = 0
    sizes = []
    for _ in range(2):
        value = shift = 0
        while True:
            byte = delta[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if not byte & 0x80:
                break
        sizes.append(value)
    if sizes[0] != len(base) or sizes[1] > _LARGEST:
        raise Unreadable("a delta has another base")
    found = bytearray()
    while at < len(delta):
        code = delta[at]
        at += 1
        if code & 0x80:
            start = length = 0
            for bit in range(7):
                if code >> bit & 1:
                    if bit < 4:  # noqa: PLR2004 -- four bytes of offset, then three of size
                        start |= delta[at] << 8 * bit
                    else:
                        length |= delta[at] << 8 * (bit - 4)
                    at += 1
            found += base[start : start + (length or 0x10000)]
        else:
            found += delta[at : at + code]
            at += code
    if len(found) != sizes[1]:
        raise Unreadable("a delta is damaged")
    return bytes(found)


def scan_git(folder: Path, look: Look, label: str) -> Place:
    """Return what a repository's history keeps."""
    place = Place(what="git", label=label, kind=None, ages=look.ages())
    place.leaves.append("every old text, in objects: a commit that removes a file removes nothing from the history")
    try:
        objects = Objects(folder)
        now = _files_of_today(folder, objects, place)
        _history(objects, now, look, place)
    except (Unreadable, OSError) as error:
        place.unread.append(str(error) if isinstance(error, Unreadable) else "the repository could not be read")
    _elsewhere(folder, place)
    return place


def _history(objects: Objects, today: set[bytes], look: Look, place: Place) -> None:
    asked = [0, 0, 0]
    counts = {"blobs of today": 0, "blobs of the history": 0, "commits": 0}
    text = look.text()
    wanted = None if text is None else text.encode()
    for name in objects.names():
        if look.limit.is_over():
            raise Unreadable("the time limit was reached")
        try:
            kind, data = objects.read(name)
        except Unreadable:
            asked[2] += 1
            continue
        if kind == "commit":
            counts["commits"] += 1
            place.ages.add(_time_of(data))
        elif kind == "blob":
            old = name not in today
            counts["blobs of the history" if old else "blobs of today"] += 1
            place.rows += 1
            place.bytes += len(data)
            asked[old] += wanted is not None and wanted in data
    place.parts.update(counts)
    place.nobody = 0
    place.orphan("old versions and removed files", counts["blobs of the history"], "no file of today has this content")
    if asked[2]:
        place.unread.append(f"{asked[2]} objects are damaged, missing or too large")
    if look.subject is not None:
        place.dry_run = DryRun(mentions=asked[0] + asked[1], unread=asked[2])
        if asked[1]:
            place.notes.append(
                f"{asked[1]} old versions hold the person's name; only rewriting the history removes them"
            )


def _files_of_today(folder: Path, objects: Objects, place: Place) -> set[bytes]:
    """Return the blobs of the commit that HEAD names."""
    commit = _head(folder)
    if commit is None:
        place.notes.append("HEAD names no commit yet")
        return set()
    waiting = [_line(objects.read(commit)[1], b"tree ")]
    found: set[bytes] = set()
    seen: set[bytes] = set()
    while waiting:
        tree = waiting.pop()
        if tree in seen:
            continue
        seen.add(tree)
        kind, data = objects.read(tree)
        if kind != "tree":
            raise Unreadable("a folder of the newest commit is no tree")
        for is_folder, name in _entries(data):
            if is_folder:
                waiting.append(name)
            else:
                found.add(name)
    return found


def _entries(data: bytes) -> Iterator[tuple[bool, bytes]]:
    at = 0
    while at < len(data):
        end = data.find(b"\0", at)
        if end < 0 or len(data) < end + 1 + _NAME:
            raise Unreadable("a folder is damaged")
        mode = data[at:end].split(b" ", 1)[0]
        name = data[end + 1 : end + 1 + _NAME]
        if mode != b"160000":  # a submodule's commit lies elsewhere
            yield mode in {b"40000", b"040000"}, name
        at = end + 1 + _NAME


def _line(commit: bytes, start: bytes) -> bytes:
    found = next((line for line in commit.split(b"\n\n", 1)[0].split(b"\n") if line.startswith(start)), None)
    try:
        return bytes.fromhex((found or b"")[len(start) :].decode())
    except ValueError:
        raise Unreadable("a commit is damaged") from None


def _time_of(commit: bytes) -> datetime | None:
    line = next((line for line in commit.split(b"\n") if line.startswith(b"committer ")), b"")
    try:
        return datetime.fromtimestamp(int(line.rsplit(b" ", 2)[1]), UTC)
    except (IndexError, ValueError, OverflowError, OSError):
        return None


def _head(folder: Path) -> bytes | None:
    name, packed = "HEAD", _packed_refs(folder)
    for _ in range(_LINKS):
        if ".." in name.split("/") or name.startswith("/"):
            raise Unreadable("HEAD leads out of the repository")
        path = folder / name
        text = path.read_text(errors="replace").strip() if path.is_file() else packed.get(name, "")
        if not text.startswith("ref: "):
            try:
                return bytes.fromhex(text) or None
            except ValueError:
                raise Unreadable("HEAD cannot be read") from None
        name = text.removeprefix("ref: ")
    raise Unreadable("HEAD goes round in circles")


def _packed_refs(folder: Path) -> dict[str, str]:
    path = folder / "packed-refs"
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    pairs = (line.split(" ", 1) for line in lines if line and line[0] not in "#^")
    return {pair[1]: pair[0] for pair in pairs if len(pair) > 1}


def _elsewhere(folder: Path, place: Place) -> None:
    try:
        config = (folder / "config").read_text(errors="replace") if (folder / "config").is_file() else ""
        remotes = config.count("[remote ")
        logs = folder / "logs"
        kept = sum(1 for each in logs.rglob("*") if each.is_file()) if logs.is_dir() else 0
    except OSError:
        return
    if remotes:
        place.leaves.append(f"{remotes} remotes and every clone, each with the whole history")
    if kept:
        place.leaves.append(f"{kept} reflogs, which keep commits that no branch has any more")
    if (folder / "objects" / "info" / "alternates").is_file():
        place.unread.append("objects borrowed from another repository were not looked at")
