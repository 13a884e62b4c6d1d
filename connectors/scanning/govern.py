"""Folders in which the SDK's `govern` keeps threads of LangGraph, a file each, or the keys that seal them.

Guarantees: such a folder is one place, however many threads it has; its secret, locks and keys are never handed out as
files. Of a key only whose thread it is is used. Source: `connectors/thread_folder.py`.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from connectors.scanning.report import LIMIT, DryRun, Orphan, Place, Setting
from connectors.scanning.sqlite import scan_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from connectors.scanning.look import Found, Look

_SECRET_BYTES = 32
_LONGEST_KEY = 1 << 20


def is_thread_folder(folder: Path) -> bool:
    """Tell whether `govern` made this folder."""
    secret = folder / "secret"
    return (folder / "locks").is_dir() and secret.is_file() and secret.stat().st_size == _SECRET_BYTES


def scan_folder(folder: Path, look: Look, label: str) -> Iterator[Place]:
    """Yield the place of the threads' files and that of their keys, where there are any."""
    by_end: dict[str, list[Path]] = {".db": [], ".key": [], ".gone": []}
    for path in sorted(folder.iterdir()):
        if path.suffix in by_end and path.is_file() and not path.is_symlink():
            by_end[path.suffix].append(path)
    if by_end[".db"] or not by_end[".key"]:
        yield _files(folder, by_end[".db"], len(by_end[".gone"]), look, label)
    if by_end[".key"]:
        yield _keys(folder, by_end[".key"], len(by_end[".gone"]), look, label)


def _files(folder: Path, files: list[Path], gone: int, look: Look, label: str) -> Place:
    place = Place(
        what="langgraph-files", label=label, kind="langgraph", config={"folder": str(folder.resolve())},
        data_class="checkpoint", ages=look.ages(), threads=0,
    )  # fmt: skip
    sink = look.sink

    def hand_over(_: Place, found: Found) -> None:
        if sink is not None:
            sink(place, found)

    inner = replace(look, sink=None if sink is None else hand_over)
    items: Counter[str] = Counter()
    orphans: dict[str, Orphan] = {}
    for path in files:
        places, unread = scan_file(path, inner, f"{label}/{path.name}")
        place.unread += unread
        for each in places:
            _add(place, each)
            for orphan in each.orphans:
                known = orphans.get(orphan.what)
                orphans[orphan.what] = replace(orphan, count=orphan.count + (known.count if known else 0))
            if each.dry_run is not None:
                items.update({name: getattr(each.dry_run, name) for name in DryRun.__dataclass_fields__})
    place.orphans += orphans.values()
    if look.subject is not None:
        place.dry_run = DryRun(**items)
    place.settings.append(
        Setting(name="ttl", value="none", dangerous=True, why="a saver keeps every step of every thread for ever")
    )
    place.notes += [f"{len(files)} threads in a file each: erasing one rewrites nothing", *_refused(gone)]
    place.leaves.append("disk blocks, and copies of the folder")
    return place


def _add(place: Place, each: Place) -> None:
    """Add what one thread's file holds."""
    place.rows += each.rows
    place.bytes += each.bytes
    place.people.add_counts(dict(each.people.largest(LIMIT)))
    place.owner_fields.update(each.owner_fields)
    place.threads = (place.threads or 0) + (each.threads or 0)
    place.several += each.several
    place.nobody += each.nobody
    place.unread += each.unread
    for name, count in each.parts.items():
        place.parts[name] = place.parts.get(name, 0) + count
    place.ages.join(each.ages)


def _keys(folder: Path, files: list[Path], gone: int, look: Look, label: str) -> Place:
    place = Place(
        what="langgraph-keys", label=label, kind="langgraph", config={"keys": str(folder.resolve())},
        data_class="checkpoint", ages=look.ages(), threads=len(files), registrable=False,
        needs="the address of the saver's database as url, and this folder as keys",
    )  # fmt: skip
    theirs = shared = 0
    for path in files:
        place.rows += 1
        place.bytes += path.stat().st_size
        try:
            with path.open("rb") as stream:
                owners = [str(each) for each in json.loads(stream.read(_LONGEST_KEY))["owners"]]
        except (OSError, ValueError, KeyError, TypeError):
            place.unread.append("a key cannot be read: whose it is is not known")
            continue
        place.people.add(owners)
        place.several += len(set(owners)) > 1
        place.nobody += not owners
        mine = any(look.is_subject(each) for each in owners)
        theirs += mine
        shared += mine and not all(look.is_subject(each) for each in owners)
    place.parts["keys"] = place.rows
    if look.subject is not None:
        place.dry_run = DryRun(items=theirs, shared=shared)
    place.notes += _refused(gone)
    place.leaves.append("disk blocks, and copies of the folder: keep it out of the database's backups")
    return place


def _refused(gone: int) -> list[str]:
    return [f"{gone} threads were erased and are refused"] if gone else []
