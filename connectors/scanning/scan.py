"""Looks at a URL or a path and says what agents' data lies there, with no registration at all.

Guarantees: nothing is written, locked or left behind (see `scanning.opening`); no code of a store runs; every fault of
a store is a line of the report, never an end of the scan; memory does not grow with the store. What is not recognised
is named. Does not look into other machines' copies, backups or caches.

    found = scan("/srv/agent", now=now, deadline=600)
    found.verdict(), [place.what for place in found.places]
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import unquote, urlsplit

from connectors.base import Deadline
from connectors.errors import ConnectorError, DriverMissing, Timeout
from connectors.residue import MIN_CANARY, Needles
from connectors.scanning import chroma, files, git, govern, lance, qdrant, redis, sqlite
from connectors.scanning.advice import TARGETS, advise, not_built, nothing_at
from connectors.scanning.database import Unreadable
from connectors.scanning.look import Look, Sink
from connectors.scanning.opening import is_sqlite, open_postgres
from connectors.scanning.report import Place, Scan
from connectors.scanning.tables import postgres_settings, scan_tables

if TYPE_CHECKING:
    from datetime import datetime

PREFIXES = ("file", "files", "chroma", "lance", "lancedb", "qdrant", "git", "sqlite")
"""`chroma:dir` and the like are paths; what lies there is recognised, not believed."""
_MOST_FILES = 200_000
_BESIDE = ("-wal", "-shm", "-journal")
_QUIET = frozenset({".git", "__pycache__", ".venv", "node_modules"})
_PROGRAMS = ".venv, node_modules, __pycache__"


class TargetUnknown(ConnectorError):
    """A target is nothing that can be scanned here; `detail` says what can."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"cannot scan this: {detail}")
        self.detail = detail


def scan(
    target: str, *, now: datetime, deadline: float, owner_field: str | None = None, subject: str | None = None,
    sink: Sink | None = None,
) -> Scan:  # fmt: skip
    """Return what lies at a target. `subject` adds an erasure dry run; `sink` gets each item that can be registered.

    Raises: TargetUnknown, DriverMissing; StoreUnreachable is a line of the report.
    """
    look = Look(now=now, limit=Deadline("scan", deadline), owner_field=owner_field, subject=subject, sink=sink)
    found = Scan(target=_shown(target), at=now)
    scheme = target.partition(":")[0].lower() if ":" in target else ""
    if scheme.startswith(("postgresql", "postgres")):
        _postgres(target, look, found)
    elif scheme in {"redis", "rediss"}:
        try:
            found.places.append(redis.scan_redis(target, look))
        except Unreadable as error:
            found.unread.append(str(error))
    else:
        _path(_path_of(target, scheme), look, found)
    advise(found)
    return found


def _shown(target: str) -> str:
    """Return a target without what may be a secret."""
    try:
        parts = urlsplit(target)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(an address)"
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}" if parts.netloc else target


def _path_of(target: str, scheme: str) -> Path:
    if scheme in {"s3", "http", "https", "mongodb", "mysql", "neo4j", "bolt"}:
        raise TargetUnknown(not_built(scheme))
    text = target
    if scheme.partition("+")[0] in PREFIXES and not Path(target).exists():
        text = target.partition(":")[2]
        if text.startswith("//"):
            text = unquote(text[2:].partition("?")[0])
            # sqlite:////abs and file:///abs; sqlite:///rel is relative to here.
            text = text[1:] if scheme.startswith("sqlite") else text
    if "\0" in text or not text:
        _refuse()
    path = Path(text).expanduser()
    if not path.exists():
        raise TargetUnknown(nothing_at(path))
    return path


def _refuse() -> NoReturn:
    raise TargetUnknown(f"the path is empty or holds a zero byte; {TARGETS}")


def _postgres(url: str, look: Look, found: Scan) -> None:
    try:
        with open_postgres(url, look.limit) as db:
            rest = set(db.tables)
            config = {"url": url}
            found.places += list(sqlite.products(db, look, "database", config, rest))
            names = sorted(name for name in rest if not sqlite.is_bookkeeping_name(name))
            if names:
                place = scan_tables(db, look, "database", names, config)
                found.places.append(place)
            for place in found.places:
                tables = [name for name in place.parts if name in db.tables]
                postgres_settings(db, place, tables)
                place.leaves.append(
                    "dead rows until VACUUM, bytes until the page is reused, the write-ahead log after that"
                )
            if not db.tables:
                found.unread.append("the role sees no table that it may read")
    except Unreadable as error:
        found.unread.append(str(error))
    except ModuleNotFoundError:
        raise DriverMissing("sql", "psycopg[binary]") from None


@dataclass(slots=True, kw_only=True)
class _Seen:
    """What a walk through folders met."""

    plain: list[Path] = field(default_factory=list)
    databases: list[Path] = field(default_factory=list)
    lances: dict[Path, list[Path]] = field(default_factory=dict)
    qdrants: list[Path] = field(default_factory=list)
    gits: list[Path] = field(default_factory=list)
    governed: list[Path] = field(default_factory=list)
    segments: set[Path] = field(default_factory=set)
    unlisted: int = 0
    quiet: int = 0
    """Folders of programs, which are not looked into."""
    is_cut: bool = False
    all_files: int = 0


def _path(root: Path, look: Look, found: Scan) -> None:
    seen = _Seen()
    if root.is_file():
        _sort(root, seen)
        top = root.parent
    else:
        _walk(root, seen, look)
        top = root
    if seen.unlisted:
        found.unread.append(f"{seen.unlisted} folders could not be listed")
    if seen.is_cut:
        found.unread.append("the time limit was reached while folders were listed")
    if seen.quiet:
        found.notes.append(f"folders of programs that were not looked into ({_PROGRAMS}): {seen.quiet}")
    if seen.all_files > _MOST_FILES:
        found.unread.append(f"more than {_MOST_FILES} files: the others were not looked at")
    for path in seen.databases:
        places, unread = sqlite.scan_file(path, look, _label(path, root))
        found.places += places
        found.unread += unread
    found.places += _products(root, seen, look)
    if seen.plain:
        found.places.append(files.scan_files(top, seen.plain, look, _label(top, root) if root.is_dir() else root.name))
    if look.subject is not None:
        _raw(root, look, found)


def _products(root: Path, seen: _Seen, look: Look) -> Iterator[Place]:
    for folder in seen.qdrants:
        yield _qdrant(folder, look, _label(folder, root))
    for folder in seen.governed:
        yield from govern.scan_folder(folder, look, _label(folder, root))
    for folder, tables in seen.lances.items():
        yield lance.scan_database(folder, tables, look, _label(folder, root))
    for folder in seen.gits:
        yield git.scan_git(folder, look, _label(folder, root))


def _label(path: Path, root: Path) -> str:
    return path.name if path == root else str(path.relative_to(root))


def _walk(root: Path, seen: _Seen, look: Look) -> None:
    def unlisted(_: OSError) -> None:
        seen.unlisted += 1

    for name, folders, names in os.walk(root, followlinks=False, onerror=unlisted):
        folder = Path(name)
        folders.sort()
        if _is_whole(folder, seen):
            folders.clear()
            continue
        if qdrant.is_qdrant(folder):
            seen.qdrants.append(folder)
            folders.remove("collection")
            names[:] = [each for each in names if each not in qdrant.OWN_FILES]
        tables = [folder / each for each in folders if lance.is_table(folder / each)]
        if lance.is_table(folder):
            tables, folders[:] = [folder], []
            seen.lances[folder.parent if folder != root else folder] = tables
            continue
        if tables:
            seen.lances[folder] = tables
        skipped = {each.name for each in tables} | _QUIET
        if chroma.FILE in names:
            skipped |= {each for each in folders if (folder / each / "data_level0.bin").exists()}
        seen.quiet += sum(each in _QUIET and each != ".git" for each in folders)
        folders[:] = [each for each in folders if each not in skipped]
        for each in sorted(names):
            seen.all_files += 1
            if seen.all_files <= _MOST_FILES:
                _sort(folder / each, seen)
        if look.limit.is_over():
            seen.is_cut = True
            return


def _is_whole(folder: Path, seen: _Seen) -> bool:
    """Note a folder of which nothing is a file of its own, and tell whether it is one."""
    if govern.is_thread_folder(folder):
        seen.governed.append(folder)
        return True
    repository = git.git_folder(folder)
    if repository is not None:
        seen.gits.append(repository)
    return repository == folder


def _sort(path: Path, seen: _Seen) -> None:
    name = path.name
    if path.is_symlink() or not path.is_file():
        seen.plain.append(path)
    elif is_sqlite(path):
        seen.databases.append(path)
    elif not any(name.endswith(end) and is_sqlite(path.with_name(name.removesuffix(end))) for end in _BESIDE):
        seen.plain.append(path)


def _qdrant(folder: Path, look: Look, label: str) -> Place:
    home = next((each for each in (folder, folder.parent) if is_sqlite(each / qdrant.HISTORY)), None)
    place = Place(
        what="qdrant-local" if home is None else "mem0-qdrant", label=label,
        kind="qdrant" if home is None else "mem0", config={"path": str((home or folder).resolve())},
        data_class="memory", ages=look.ages(),
    )  # fmt: skip
    known = qdrant.collections_of(folder)
    if known is None:
        place.unread.append("meta.json cannot be read")
    lost = 0
    for each in sorted((folder / "collection").iterdir()):
        if (each / "storage.sqlite").is_file():
            sqlite.points_of(each / "storage.sqlite", look, place, each.name, label)
            lost += known is not None and each.name not in known
    place.orphan("collections that meta.json does not know", lost, "no client opens them any more")
    place.leaves.append("payload and vector in the process that has it open, until it opens it again")
    return place


def _raw(root: Path, look: Look, found: Scan) -> None:
    """Look for the person's name in the raw bytes of every file, in the encodings stores use."""
    wanted = look.bare().encode(errors="surrogateescape")
    if len(wanted) < MIN_CANARY:
        found.notes.append(f"the name is shorter than {MIN_CANARY} bytes: raw bytes were not searched for it")
        return
    needles = Needles([wanted])
    hits: Counter[str] = Counter()
    try:
        for path in _every_file(root):
            try:
                with path.open("rb") as stream:
                    for (_, encoding), count in needles.count(stream, look.limit).items():
                        hits[encoding] += count
                    found.bytes_read += stream.tell()
            except OSError:
                found.unread.append("a file could not be searched for the name")
    except Timeout:
        found.unread.append("the time limit was reached while raw bytes were searched")
    found.hits = dict(sorted(hits.items()))


def _every_file(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        yield from (each for end in _BESIDE if (each := root.with_name(root.name + end)).is_file())
        return
    for name, folders, names in os.walk(root, followlinks=False):
        folders.sort()
        for inner in sorted(names):
            path = Path(name) / inner
            if path.is_file() and not path.is_symlink():
                yield path
