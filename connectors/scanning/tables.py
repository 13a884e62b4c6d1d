"""Tables of no product known here: rows, bytes, people by a column of a usual name, ages, rows without their parent.

Guarantees: one pass over each table, in batches whose sums are made by column, so that many small rows are as fast as
few large ones; memory does not grow with the table. A column is an owner's by its name alone (or as the caller says);
what a text says about somebody is only looked for when a person is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from connectors.scanning.database import Database, PostgresReader, SqliteReader, Table, Unreadable
from connectors.scanning.look import THREADS, TIMES, Found, Look, name_of, time_of
from connectors.scanning.report import LIMIT, DryRun, Place, Setting

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUMBERS = ("int", "real", "floa", "doub", "bool", "numeric", "dec", "timestamp", "date", "uuid", "serial")
_MINUTE = 60
_SQL = "sql"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Which columns of a table mean what."""

    owner: str | None
    thread: str | None
    time: str | None
    key: tuple[str, ...]


def scan_tables(db: Database, look: Look, label: str, names: Sequence[str], config: Mapping[str, Any]) -> Place:
    """Return what the named tables hold, as one place."""
    place = Place(
        what="sqlite" if isinstance(db, SqliteReader) else "postgresql",
        label=label, kind=_SQL, config=config, ages=look.ages(),
    )  # fmt: skip
    total = DryRun()
    seen: set[tuple[str, str]] = set()
    for name in names:
        table = db.tables[name]
        shape = _shape(table, look)
        place.parts[name] = 0
        try:
            total = _add(total, _table(db, look, place, table, shape=shape, seen=seen))
        except Unreadable as error:
            place.unread.append(f"table {name} after {place.parts[name]} rows: {error}")
        if shape.owner is None and place.parts[name]:
            place.notes.append(f"table {name}: no column says whose its {place.parts[name]} rows are")
        if not shape.key and place.parts[name]:
            place.notes.append(f"table {name}: no primary key, so its rows cannot be erased one by one")
    _pairs(place, seen)
    if isinstance(db, SqliteReader):
        _lost_children(db, place, set(names))
    if look.subject is not None:
        place.dry_run = total
    return place


def _add(one: DryRun, other: DryRun) -> DryRun:
    return DryRun(**{name: getattr(one, name) + getattr(other, name) for name in DryRun.__slots__})


def _shape(table: Table, look: Look) -> _Shape:
    first = {name: table.columns[name] for name in (*THREADS, *TIMES) if name in table.columns}
    return _Shape(
        owner=look.owner_column(table.columns),
        thread=next((first[name] for name in THREADS if name in first), None),
        time=next((first[name] for name in TIMES if name in first), None),
        key=table.key,
    )


def _table(
    db: Database, look: Look, place: Place, table: Table, *, shape: _Shape, seen: set[tuple[str, str]]
) -> DryRun:
    wide = [name for name, kind in table.types.items() if not kind.startswith(_NUMBERS)]
    size = " + ".join(db.length(db.quoted(name)) for name in wide) or "0"
    wanted = [db.quoted(name) if name is not None else "NULL" for name in (shape.owner, shape.time, shape.thread)]
    keys = [db.quoted(name) for name in shape.key] if look.sink is not None else []
    holds, values = "0", []
    if (text := look.text()) is not None and wide:
        holds = "CASE WHEN " + " OR ".join(db.holds(db.quoted(name), table.types[name]) for name in wide)
        holds, values = f"{holds} THEN 1 ELSE 0 END", [text] * len(wide)
    query = f"SELECT {', '.join([*wanted, size, holds, *keys])} FROM {db.from_(table.name)}"
    run = DryRun()
    for batch in _batched(db.rows(query, *values), 4000):
        owners, times, threads, sizes, mentions, *key = zip(*batch, strict=True)
        place.parts[table.name] += len(batch)
        place.rows += len(batch)
        place.bytes += sum(sizes)
        _ages(place, times)
        named = _owners(place, shape, owners)
        if shape.thread is not None and len(seen) < LIMIT:
            seen.update(zip(map(str, threads), named, strict=True))
        if look.subject is not None:
            run = _add(run, _asked(look, named, mentions))
        if look.sink is not None and shape.key and shape.owner is not None:
            _register(look, place, table, shape, (named, times, key))
    return run


def _batched(rows: Iterator[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    batch: list[tuple[Any, ...]] = []
    for row in rows:
        batch.append(row)
        if len(batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch


def _ages(place: Place, times: Sequence[Any]) -> None:
    """Count times by the minute: as fine as anybody reads, and far fewer than rows."""
    if times[0] is not None and isinstance(times[0], str):
        for text, count in Counter(each[:16] if isinstance(each, str) else each for each in times).items():
            place.ages.add(time_of(text), count)
        return
    for value, count in Counter(map(_minute, times)).items():
        place.ages.add(value, count)


def _minute(value: object) -> datetime | None:
    at = time_of(value)
    return None if at is None else datetime.fromtimestamp(at.timestamp() // _MINUTE * _MINUTE, UTC)


def _owners(place: Place, shape: _Shape, values: Sequence[Any]) -> list[str]:
    """Count the owners of a batch and return them as text, empty for nobody."""
    if shape.owner is None:
        place.nobody += len(values)
        return [""] * len(values)
    named = [value if type(value) is str and value and len(value) < 200 else name_of(value) or "" for value in values]  # noqa: PLR2004 -- quick for what is usual, name_of decides the rest
    counts = Counter(named)
    nobody = counts.pop("", 0)
    place.nobody += nobody
    place.owner_fields[shape.owner] += len(named) - nobody
    place.people.add(counts.elements())
    return named


def _asked(look: Look, named: Sequence[str], mentions: Sequence[Any]) -> DryRun:
    forms = look.forms()
    own = sum(name in forms for name in named)
    other = sum(1 for name, held in zip(named, mentions, strict=True) if held and name not in forms)
    return DryRun(items=own, mentions=other)


def _register(
    look: Look, place: Place, table: Table, shape: _Shape, found: tuple[Sequence[str], Sequence[Any], Sequence[Any]]
) -> None:
    named, times, columns = found
    for owner, at, values in zip(named, times, zip(*columns, strict=True), strict=True):
        if not all(isinstance(value, str | int) for value in values):
            values = tuple(value if isinstance(value, str | int) else str(value) for value in values)  # noqa: PLW2901 -- a key as JSON can say it
        owners = ((shape.owner or "", owner),) if owner else ()
        locator = {"table": table.name, "key": dict(zip(shape.key, values, strict=True))}
        if look.sink is not None:
            look.sink(place, Found(locator=locator, owners=owners, at=time_of(at)))


def _pairs(place: Place, seen: set[tuple[str, str]]) -> None:
    """Threads, and those that name more than one person."""
    if not seen:
        return
    people = Counter(thread for thread, name in seen if name)
    place.threads = len({thread for thread, _ in seen} - {"None"})
    place.several = sum(count > 1 for thread, count in people.items() if thread != "None")
    if len(seen) >= LIMIT:
        place.notes.append(f"more than {LIMIT} threads: what is said of threads holds for the first ones")


def _lost_children(db: SqliteReader, place: Place, names: set[str]) -> None:
    """Rows whose foreign key leads nowhere; SQLite checks keys only where a program asks for it."""
    for name in sorted(names):
        try:
            lost = Counter(str(row[2]) for row in db.rows(f"PRAGMA foreign_key_check({db.quoted(name)})"))
        except Unreadable as error:
            place.unread.append(f"foreign keys of {name}: {error}")
            continue
        for parent, count in sorted(lost.items()):
            why = "their parent was deleted while foreign keys were not enforced"
            place.orphan(f"rows of {name} without their {parent}", count, why)


def postgres_settings(db: PostgresReader, place: Place, tables: Sequence[str]) -> None:
    """Bytes on disk, dead rows and what keeps them."""
    try:
        place.bytes = 0
        dead = 0
        for name in tables:
            sizes = db.rows(
                "SELECT pg_total_relation_size(c.oid), coalesce(s.n_dead_tup, 0) FROM pg_class c"
                " JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid"
                " WHERE n.nspname = ? AND c.relname = ?",
                db.schemas[name], name.removeprefix(f"{db.schemas[name]}."),
            )  # fmt: skip
            for size, rows in sizes:
                place.bytes += int(size)
                dead += int(rows)
        if dead:
            why = "deleted rows lie in the tables' files until VACUUM, and their bytes until a page is used again"
            place.settings.append(Setting(name="dead rows", value=str(dead), dangerous=True, why=why))
        slots = db.count("SELECT count(*) FROM pg_replication_slots")
        if slots:
            why = "each keeps write-ahead log, and what was deleted is in it"
            place.settings.append(Setting(name="replication slots", value=str(slots), dangerous=True, why=why))
        vacuum = str(db.scalar("SELECT current_setting('autovacuum')"))
        why = "without it dead rows stay for ever" if vacuum == "off" else "frees dead rows now and then, not at once"
        place.settings.append(Setting(name="autovacuum", value=vacuum, dangerous=vacuum == "off", why=why))
    except Unreadable as error:
        place.unread.append(f"settings: {error}")
