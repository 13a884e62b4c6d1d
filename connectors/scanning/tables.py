"""Tables of no product known here: rows, bytes, people by a column of a usual name, ages, rows without their parent.

Guarantees: one pass over each table, in batches whose sums are made by column, so that many small rows are as fast as
few large ones; memory does not grow with the table. A column is an owner's by its name alone (or as the caller says);
what a text says about somebody is only looked for when a person is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from connectors.scanning.database import Database, PostgresReader, SqliteReader, Table, Unreadable
from connectors.scanning.look import THREADS, TIMES, Found, Look, name_of, time_of, unit_of
from connectors.scanning.report import LIMIT, DryRun, Place, Setting

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUMBERS = ("int", "real", "floa", "doub", "bool", "numeric", "dec", "timestamp", "date", "uuid", "serial")
_SQL = "sql"
_TEXTS = frozenset({str, bytes})


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
    wanted = [size, *(db.quoted(name) for name in (shape.owner, shape.time, shape.thread) if name is not None)]
    values: list[str] = []
    if (text := look.text()) is not None and wide:
        holds = " OR ".join(db.holds(db.quoted(name), table.types[name]) for name in wide)
        wanted.append(f"CASE WHEN {holds} THEN 1 ELSE 0 END")
        values = [text] * len(wide)
    if look.sink is not None:
        wanted += [db.quoted(name) for name in shape.key]
    run = DryRun()
    people = _Owners(place, shape.owner)
    for batch in db.batches(f"SELECT {', '.join(wanted)} FROM {db.from_(table.name)}", *values):
        columns = iter(zip(*batch, strict=True))
        place.parts[table.name] += len(batch)
        place.rows += len(batch)
        place.bytes += sum(next(columns))
        owners = next(columns) if shape.owner is not None else None
        times = next(columns) if shape.time is not None else None
        threads = next(columns) if shape.thread is not None else None
        held = next(columns) if values else None
        _ages(place, times, len(batch))
        people.add(owners, len(batch))
        if threads is not None and len(seen) < LIMIT:
            seen.update(zip((str(_plain(thread)) for thread in threads), people.named(owners, len(batch)), strict=True))
        if look.subject is not None:
            run = _add(run, _asked(look, people.named(owners, len(batch)), held))
        if look.sink is not None and shape.key and owners is not None:
            _register(look, place, table, shape, (people.named(owners, len(batch)), times, list(columns)))
    people.flush()
    return run


def _plain(value: object) -> str | int:
    """Return a value of a key or a thread as JSON can say it."""
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    return value if isinstance(value, str | int) else str(value)


def _ages(place: Place, times: Sequence[Any] | None, count: int) -> None:
    """Count times together: numbers by sorting them, texts by the hour."""
    if times is None:
        place.ages.add(None, count)
        return
    try:
        ordered = sorted(times)
        unit = unit_of(ordered[0], ordered[-1])
    except TypeError:
        unit = None
    else:
        if unit is not None:
            place.ages.add_sorted(ordered, unit)
            return
    for value, found in Counter([each[:13] if type(each) in _TEXTS else each for each in times]).items():
        place.ages.add(time_of(value), found)


class _Owners:
    """The owners of a table's rows, counted as the database gives them; a name is made of each different one once."""

    def __init__(self, place: Place, column: str | None) -> None:
        self._place = place
        self._column = column
        self._raw: Counter[Any] = Counter()
        self._names: dict[Any, str] = {}

    def add(self, values: Sequence[Any] | None, count: int) -> None:
        if values is None:
            self._place.nobody += count
            return
        self._raw.update(values)
        if len(self._raw) > LIMIT:
            self.flush()

    def flush(self) -> None:
        """Hand what was counted to the place."""
        told: Counter[str] = Counter()
        for value, found in self._raw.items():
            told[name_of(value) or ""] += found
        self._raw.clear()
        nobody = told.pop("", 0)
        self._place.nobody += nobody
        if self._column is not None:
            self._place.owner_fields[self._column] += told.total()
        self._place.people.add_counts(told)

    def named(self, values: Sequence[Any] | None, count: int) -> list[str]:
        """Return each row's owner as text, empty for nobody."""
        if values is None:
            return [""] * count
        if len(self._names) > LIMIT:
            self._names.clear()
        names = self._names
        for value in set(values) - names.keys():
            names[value] = name_of(value) or ""
        return [names[value] for value in values]


def _asked(look: Look, named: Sequence[str], mentions: Sequence[Any] | None) -> DryRun:
    forms = look.forms()
    own = sum(name in forms for name in named)
    other = sum(1 for name, held in zip(named, mentions or (), strict=False) if held and name not in forms)
    return DryRun(items=own, mentions=other)


def _register(
    look: Look, place: Place, table: Table, shape: _Shape, found: tuple[list[str], Sequence[Any] | None, list[Any]]
) -> None:
    named, times, columns = found
    times = times if times is not None else [None] * len(named)
    for owner, at, values in zip(named, times, zip(*columns, strict=True), strict=True):
        owners = ((shape.owner or "", owner),) if owner else ()
        locator = {"table": table.name, "key": dict(zip(shape.key, map(_plain, values), strict=True))}
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
    declared = found = 0
    for name in sorted(names):
        try:
            declared += sum(1 for _ in db.rows(f"PRAGMA foreign_key_list({db.quoted(name)})"))
            lost = Counter(str(row[2]) for row in db.rows(f"PRAGMA foreign_key_check({db.quoted(name)})"))
        except Unreadable as error:
            place.unread.append(f"foreign keys of {name}: {error}")
            continue
        for parent, count in sorted(lost.items()):
            why = "their parent was deleted while foreign keys were not enforced"
            place.orphan(f"rows of {name} without their {parent}", count, why)
            found += count
    if declared:
        why = "each program has to set PRAGMA foreign_keys for itself; without it a delete leaves what belongs to a row"
        value = "not enforced" if found else "not kept in the file"
        place.settings.append(Setting(name="foreign_keys", value=value, dangerous=found > 0, why=why))


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
