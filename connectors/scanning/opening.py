"""Opens SQLite files and PostgreSQL databases for a scan without changing anything of theirs.

A SQLite file that lies alone is opened `immutable`: no lock, no log, no shared-memory file. One with a write-ahead log
or a rollback journal holds more than its pages say, and opening it would write beside it; then file and log are copied
into a private temporary folder and lose their names there as soon as they are open: they end with the process, however
that ends. A copy during which the file was checkpointed is taken again. What a process that was killed while it copied
left behind is removed by the next one that copies.

Does not promise a consistent picture of a file that is written to all the time: then it says so (`notes`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote

from connectors.scanning.database import PostgresReader, SqliteReader, Unreadable, _sqlite_words

if TYPE_CHECKING:
    from connectors.base import Deadline

MAGIC = b"SQLite format 3\0"
HEADER = 100
"""Bytes of a database file's header. Source: sqlite.org/fileformat2.html §1.3."""
_TRIES = 3
_CHUNK = 1 << 20
_PIECE = 64 << 20
_SPARE = 64 << 20
_MOST_TRUNKS = 100_000
_PREFIX = "muniment-scan-"
_LOCK = "lock"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


@dataclass(slots=True, kw_only=True)
class FileFacts:
    """What a SQLite file's own bytes say, read without SQLite."""

    page_size: int
    is_wal: bool
    auto_vacuum: bool
    free_pages: int
    free_with_data: int
    """Free pages that are not zeros: what was deleted lies there."""
    log_bytes: int
    journal_bytes: int
    pages_whole: bool = True


@dataclass(slots=True, kw_only=True)
class Opened:
    """A SQLite file that can be read."""

    reader: SqliteReader
    facts: FileFacts
    notes: list[str] = field(default_factory=list)


def is_sqlite(path: Path) -> bool:
    """Tell whether a file begins as SQLite files do."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


@contextmanager
def open_sqlite(path: Path, limit: Deadline) -> Iterator[Opened]:
    """Yield a reader of a file that is not changed. Raises: Unreadable."""
    facts = file_facts(path)
    before = _stamp(path)
    if not facts.log_bytes and not facts.journal_bytes:
        with _connected(path, "immutable=1", limit) as reader:
            opened = Opened(reader=reader, facts=facts)
            yield opened
            if _stamp(path) != before:
                opened.notes.append("the file was written to while it was read: numbers may not fit together")
        return
    _remove_left_behind()
    with _private_folder() as folder:
        copy = folder / "copy"
        note = _copy(path, copy, limit)
        # A journal is rolled back, in the copy only.
        with _connected(copy, "mode=rw", limit) as reader:
            shutil.rmtree(folder)  # everything is open since the first read
            opened = Opened(reader=reader, facts=facts)
            opened.notes += [note] if note else []
            yield opened


@contextmanager
def _private_folder() -> Iterator[Path]:
    """Yield a folder that no other scan takes for one that was left behind; gone at the end, if not before."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        # Locked before it has the name by which it is looked for.
        with (folder / "locking").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / "locking").rename(folder / _LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left_behind() -> None:
    """Remove the folders whose process ended without doing so: nobody holds their lock any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError), (folder / _LOCK).open("rb") as lock:  # somebody else's, or gone meanwhile
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)


@contextmanager
def _connected(path: Path, options: str, limit: Deadline) -> Iterator[SqliteReader]:
    try:
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?{options}", uri=True, isolation_level=None, check_same_thread=False
        )
    except sqlite3.Error as error:
        raise Unreadable(_sqlite_words(error, limit)) from None
    with closing(connection):
        try:
            reader = SqliteReader(connection, limit)
        except (sqlite3.Error, UnicodeError) as error:  # SQLite's own message may quote damaged bytes
            raise Unreadable(_sqlite_words(error, limit)) from None
        yield reader


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _copy(path: Path, copy: Path, limit: Deadline) -> str | None:
    """Copy file, log and journal; return a remark where they may not fit together. Raises: Unreadable."""
    beside = [Path(f"{path}{end}") for end in ("-wal", "-journal")]
    size = sum(_stamp(each)[0] for each in (path, *beside))
    if shutil.disk_usage(copy.parent).free < size + _SPARE:
        raise Unreadable("it has a write-ahead log, and there is no room for a private copy to read it with")
    for _ in range(_TRIES):
        before = _stamp(path)
        _copy_file(path, copy, limit)
        for each in beside:
            if each.exists():
                _copy_file(each, Path(f"{copy}{each.name[len(path.name) :]}"), limit)
        if _stamp(path) == before:
            return None
    return "the file was written to while it was copied: numbers may not fit together"


def _copy_file(source: Path, target: Path, limit: Deadline) -> None:
    try:
        with source.open("rb", buffering=0) as reading, os.fdopen(os.open(target, _NEW, 0o600), "wb", 0) as writing:
            while _copied(reading.fileno(), writing.fileno()):
                if limit.is_over():
                    raise Unreadable("the time limit was reached")
    except OSError as error:
        raise Unreadable(f"could not be copied: {(error.strerror or 'no reason given').lower()}") from None


def _copied(reading: int, writing: int) -> int:
    """Copy the next piece and return its size, 0 at the end; in the kernel where it can, which may share the blocks."""
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(reading, writing, _PIECE)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
    data = os.read(reading, _CHUNK)
    done = 0
    while done < len(data):
        done += os.write(writing, data[done:])
    return done


def file_facts(path: Path) -> FileFacts:
    """Return what header, free list and the files beside it say. Raises: Unreadable."""
    try:
        with path.open("rb") as stream:
            header = stream.read(HEADER)
            if len(header) < HEADER or not header.startswith(MAGIC):
                raise Unreadable("the file is no SQLite database, or is encrypted")
            size = int.from_bytes(header[16:18], "big")
            facts = FileFacts(
                page_size=65_536 if size == 1 else size,
                is_wal=header[18] == 2,  # noqa: PLR2004 -- write version of WAL, fileformat2 §1.3.3
                auto_vacuum=int.from_bytes(header[52:56], "big") != 0,
                free_pages=int.from_bytes(header[36:40], "big"),
                free_with_data=0,
                log_bytes=_stamp(Path(f"{path}-wal"))[0],
                journal_bytes=_live_journal(Path(f"{path}-journal")),
            )
            facts.free_with_data = _free_with_data(stream, int.from_bytes(header[32:36], "big"), facts)
            return facts
    except OSError as error:
        raise Unreadable((error.strerror or "could not be read").lower()) from None


def _live_journal(path: Path) -> int:
    """Return the size of a rollback journal that would be rolled back; an invalidated header is zeros."""
    try:
        with path.open("rb") as stream:
            return path.stat().st_size if any(stream.read(8)) else 0
    except OSError:
        return 0


def _free_with_data(stream: BinaryIO, trunk: int, facts: FileFacts) -> int:
    """Count free pages that hold something other than zeros. Source: sqlite.org/fileformat2.html §1.5."""
    size, seen, found = facts.page_size, set[int](), 0
    if size < 512 or size & (size - 1):  # noqa: PLR2004 -- least page size, fileformat2 §1.3.2
        return 0
    while trunk and trunk not in seen and len(seen) < _MOST_TRUNKS:
        seen.add(trunk)
        stream.seek((trunk - 1) * size)
        page = stream.read(size)
        if len(page) < size:
            facts.pages_whole = False
            break
        following, count = struct.unpack_from(">II", page)
        leaves = struct.unpack_from(f">{min(count, size // 4 - 2)}I", page, 8)
        # A trunk was an ordinary page once; what stands behind its list is from then.
        found += any(page[8 + 4 * len(leaves) :])
        for leaf in leaves:
            stream.seek((leaf - 1) * size if leaf else 0)
            found += any(stream.read(size)) if leaf else 0
        trunk = following
    return found


@contextmanager
def open_postgres(url: str, limit: Deadline) -> Iterator[PostgresReader]:
    """Yield a reader of one snapshot of a database. Raises: Unreadable."""
    import psycopg

    address = url.replace("postgresql+psycopg://", "postgresql://", 1)
    options = "-c default_transaction_read_only=on -c idle_in_transaction_session_timeout=600000"
    try:
        connection = psycopg.connect(
            address, connect_timeout=min(10, max(2, int(limit.left()))), options=options, autocommit=False,
            application_name="muniment scan",
        )  # fmt: skip
    except psycopg.Error as error:
        refused = (getattr(error, "sqlstate", None) or "").startswith("28") or "password" in str(error)
        raise Unreadable(
            "the server refused the credentials: give a role that may connect and read every table"
            if refused
            else "no server answers there: look at host, port and whether it runs"
        ) from None
    with closing(connection):
        try:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            connection.execute(f"SET statement_timeout = {max(1000, int(limit.left() * 1000))}".encode())
            connection.execute("SET lock_timeout = 5000")
            reader = PostgresReader(connection, limit, psycopg.Error)
        except psycopg.Error as error:
            state = getattr(error, "sqlstate", None) or type(error).__name__
            raise Unreadable(f"the server refused ({state})") from None
        yield reader
