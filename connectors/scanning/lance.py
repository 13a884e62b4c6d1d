"""Lance tables (`*.lance`), read from their manifests: versions, deleted rows still there, tags. Source: §2.3.

Guarantees: a manifest is read by an own reader of its few protobuf fields, so this needs no driver. Whose rows they are
stands in the data files; those are read where the driver is installed (`muniment-server[lancedb]`), else it says so.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from connectors.scanning.database import Unreadable
from connectors.scanning.look import TIMES, Found, Look, time_of
from connectors.scanning.report import DryRun, Place, Setting

_FOOTER = struct.Struct("<QHH4s")
"""Offset of the manifest, version of the format, magic. Source: lance docs/format, "File Footer"."""
_MAGIC = b"LANC"
_LARGEST = 64 << 20
_BATCH = 4096
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_MANIFEST_FIELDS, _MANIFEST_FRAGMENTS = 1, 2
_FRAGMENT_FILES, _FRAGMENT_DELETION, _FRAGMENT_ROWS = 2, 3, 4
_DELETED_ROWS, _FIELD_NAME, _FILE_PATH = 4, 2, 1
"""Numbers of the fields. Source: lance protos/table.proto and file.proto."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One version of a table: its columns, files, rows in the files and how many of them are deleted."""

    columns: tuple[str, ...]
    files: frozenset[str]
    rows: int
    deleted: int
    fragments: int


def is_table(folder: Path) -> bool:
    """Tell whether a folder is a Lance table."""
    return folder.name.endswith(".lance") and (folder / "_versions").is_dir()


def scan_database(folder: Path, tables: list[Path], look: Look, label: str) -> Place:
    """Return what the Lance tables of a folder hold."""
    place = Place(
        what="lancedb", label=label, kind="lancedb", config={"path": str(folder.resolve())}, data_class="memory",
        ages=look.ages(),
    )  # fmt: skip
    for table in tables:
        name = table.name.removesuffix(".lance")
        place.bytes += sum(each.stat().st_size for each in table.rglob("*") if each.is_file() and not each.is_symlink())
        try:
            _table(table, name, look, place)
        except Unreadable as error:
            place.unread.append(f"table {name}: {error}")
    place.leaves.append("deleted rows in the data files: compaction passes over fragments with at most 10 % deleted")
    return place


def _table(table: Path, name: str, look: Look, place: Place) -> None:
    versions = sorted((table / "_versions").glob("*.manifest"), key=_version_of)
    if not versions:
        raise Unreadable("it has no version")
    newest = read_manifest(versions[-1])
    place.parts[name] = newest.rows - newest.deleted
    place.rows += newest.rows - newest.deleted
    place.orphan(f"deleted rows still in fragments of {name}", newest.deleted, "a delete only notes row numbers")
    older = _older(versions[:-1], newest, place, name)
    if len(versions) > 1:
        why = f"a reader can go back to them: {older} rows lie in files that only older versions use"
        place.settings.append(
            Setting(
                name=f"versions of {name}", value=str(len(versions)), dangerous=bool(older or newest.deleted), why=why
            )
        )
    tags = sorted((table / "_refs" / "tags").glob("*.json")) if (table / "_refs" / "tags").is_dir() else []
    if tags:
        why = "a tagged version cannot be cleaned up until the tag is removed"
        place.settings.append(Setting(name=f"tags of {name}", value=str(len(tags)), dangerous=True, why=why))
    _people(table, name, newest, look, place)


def _older(versions: list[Path], newest: Manifest, place: Place, name: str) -> int:
    """Rows in data files that older versions alone refer to."""
    gone: dict[str, int] = {}
    for each in versions:
        try:
            found = read_manifest(each)
        except Unreadable as error:
            place.unread.append(f"an older version of {name}: {error}")
            continue
        for path in found.files - newest.files:
            gone[path] = max(gone.get(path, 0), found.rows // max(1, found.fragments))
    place.orphan(f"data files of older versions of {name}", len(gone), "no row of today lies in them")
    return sum(gone.values())


def _version_of(path: Path) -> int:
    """Return a version from its file's name; newer writers count down from 2^64 - 1."""
    try:
        number = int(path.stem)
    except ValueError:
        return -1
    return (1 << 64) - 1 - number if number >= 1 << 63 else number


def read_manifest(path: Path) -> Manifest:
    """Return what a manifest says. Raises: Unreadable."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            if not _FOOTER.size < size <= _LARGEST:
                raise Unreadable("a manifest has an impossible size")
            stream.seek(0)
            data = stream.read()
        offset, _, _, magic = _FOOTER.unpack(data[-_FOOTER.size :])
        if magic != _MAGIC or offset + 4 > size:
            raise Unreadable("a manifest has no footer of Lance")
        (length,) = struct.unpack_from("<I", data, offset)
        return _manifest(data[offset + 4 : offset + 4 + length])
    except OSError as error:
        raise Unreadable((error.strerror or "could not be read").lower()) from None
    except (struct.error, IndexError, UnicodeError, ValueError):
        raise Unreadable("a manifest cannot be read") from None


def _manifest(data: bytes) -> Manifest:
    columns: list[str] = []
    files: set[str] = set()
    rows = deleted = fragments = 0
    for number, value in _fields(data):
        if number == _MANIFEST_FIELDS and isinstance(value, bytes):
            columns += [each.decode() for tag, each in _fields(value) if tag == _FIELD_NAME and isinstance(each, bytes)]
        elif number == _MANIFEST_FRAGMENTS and isinstance(value, bytes):
            fragments += 1
            for tag, each in _fields(value):
                if tag == _FRAGMENT_ROWS and isinstance(each, int):
                    rows += each
                elif tag == _FRAGMENT_FILES and isinstance(each, bytes):
                    files |= {
                        part.decode()
                        for inner, part in _fields(each)
                        if inner == _FILE_PATH and isinstance(part, bytes)
                    }
                elif tag == _FRAGMENT_DELETION and isinstance(each, bytes):
                    deleted += sum(
                        part for inner, part in _fields(each) if inner == _DELETED_ROWS and isinstance(part, int)
                    )
    return Manifest(columns=tuple(columns), files=frozenset(files), rows=rows, deleted=deleted, fragments=fragments)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each protobuf field; unknown ones too. Raises: IndexError, ValueError."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, value
        elif wire == _BYTES:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise ValueError("a field is longer than what holds it")
            yield number, data[at : at + length]
            at += length
        elif wire in {_EIGHT, _FOUR}:
            at += 8 if wire == _EIGHT else 4
        else:
            raise ValueError("unknown wire type")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
        if shift > 63:  # noqa: PLR2004 -- a varint has at most ten bytes
            raise ValueError("a number is too long")


def _people(table: Path, name: str, newest: Manifest, look: Look, place: Place) -> None:
    owner = look.owner_column({column.lower(): column for column in newest.columns})
    time = next((column for column in TIMES if column in newest.columns), None)
    key = "id" if "id" in newest.columns else None
    live = newest.rows - newest.deleted
    if owner is None:
        place.nobody += live
        place.ages.add(None, live)
        place.notes.append(f"table {name}: no column says whose its rows are")
        return
    try:
        lance: Any = import_module("lance")
    except ImportError:
        place.ages.add(None, live)
        place.notes.append(f"table {name}: column {owner} names people; counting them needs muniment-server[lancedb]")
        return
    wanted = [column for column in (owner, time, key) if column is not None]
    try:
        for batch in lance.dataset(str(table)).scanner(columns=wanted, batch_size=_BATCH).to_batches():
            for row in batch.to_pylist():
                _row(look, place, name, (owner, time, key), row)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 -- of damaged files the driver panics, which is no Exception
        place.unread.append(f"table {name}: the driver failed ({type(error).__name__})")


def _row(
    look: Look, place: Place, table: str, columns: tuple[str, str | None, str | None], row: dict[str, Any]
) -> None:
    owner_column, time, key = columns
    owner = look.owner_in({owner_column.lower(): row[owner_column]}) if look.owner_field is None else look.owner_in(row)
    at = time_of(row[time]) if time is not None else None
    place.ages.add(at)
    if owner is None:
        place.nobody += 1
    else:
        place.people.add([owner[1]])
        place.owner_fields[owner_column] += 1
    if look.subject is not None:
        before = place.dry_run or DryRun()
        place.dry_run = DryRun(items=before.items + (owner is not None and look.is_subject(owner[1])))
    if look.sink is not None and key is not None and isinstance(row[key], str | int):
        owners = ((owner_column, owner[1]),) if owner else ()
        look.sink(place, Found(locator={"collection": table, "id": row[key]}, owners=owners, at=at))
