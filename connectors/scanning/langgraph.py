"""LangGraph's savers and stores in SQLite and PostgreSQL, recognised by their tables. Source: store-recipes.md §1a.

Guarantees: no class of a checkpoint is built; owners come from the metadata, which is plain JSON also where the saver
encrypts. Orphans are found by anti-joins over the tables' own keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from connectors.scanning.database import Database, SqliteReader, Unreadable
from connectors.scanning.look import Found, Look, time_of
from connectors.scanning.report import DryRun, Names, Place, Setting
from connectors.scanning.threads import Threads, day_of_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

_TEN = 10
SAVER_TABLES = ("checkpoints", "writes", "checkpoint_writes", "checkpoint_blobs", "checkpoint_migrations")
STORE_TABLES = ("store", "store_vectors", "store_migrations", "vector_migrations")
_PEOPLE_FIRST = frozenset({"users", "user", "customers", "people", "members", "memories"})
_APP_THREADS = ("thread", "threads")


def is_saver(db: Database) -> bool:
    """Tell whether the tables are a saver's."""
    return "checkpoints" in db.tables and (
        db.tables["checkpoints"].has("thread_id", "checkpoint_ns", "checkpoint_id", "metadata")
        and ("writes" in db.tables or "checkpoint_writes" in db.tables)
    )


def is_store(db: Database) -> bool:
    """Tell whether the tables are a store's."""
    return "store" in db.tables and db.tables["store"].has("prefix", "key", "value")


def scan_saver(db: Database, look: Look, label: str, config: dict[str, Any]) -> Place:
    """Return what a saver's tables hold."""
    place = Place(
        what="langgraph-sqlite" if isinstance(db, SqliteReader) else "langgraph-postgres",
        label=label, kind="langgraph", config=config, data_class="checkpoint", ages=look.ages(),
    )  # fmt: skip
    threads = Threads(look)
    try:
        for thread, owner, at, size, mentions in _checkpoints(db, look, place):
            place.rows += 1
            place.bytes += size
            place.ages.add(at)
            if owner is not None:
                place.people.add([owner[1]])
                place.owner_fields[owner[0]] += 1
            threads.add(thread, owner, at=at, mentions=mentions)
    except Unreadable as error:
        place.unread.append(f"checkpoints after {place.rows} rows: {error}")
    place.parts["checkpoints"] = place.rows
    for table in SAVER_TABLES[1:4]:
        if table in db.tables:
            _rest(db, look, place, table, threads)
    _saver_orphans(db, place)
    _app_threads(db, place, threads)
    threads.sum_up(place)
    place.settings.append(
        Setting(name="ttl", value="none", dangerous=True, why="a saver keeps every step of every thread for ever")
    )
    if threads and place.rows / len(threads) > _TEN:
        growth = f"{place.rows / len(threads):.0f} checkpoints a thread, each with the whole conversation so far"
        place.notes.append(f"{growth}: the bytes grow with the square of its length; keep_latest would do")
    _hand_over(place, look, threads)
    return place


def _checkpoints(
    db: Database, look: Look, place: Place
) -> Iterator[tuple[str, tuple[str, str] | None, Any, int, bool]]:
    columns = db.tables["checkpoints"].types
    size = " + ".join(db.length(db.quoted(name)) for name in ("checkpoint", "metadata") if name in columns)
    holds, values = "0", []
    if (text := look.text()) is not None:
        names = [name for name in ("checkpoint", "metadata") if name in columns]
        holds = "CASE WHEN " + " OR ".join(db.holds(db.quoted(name), columns[name]) for name in names)
        holds, values = f"{holds} THEN 1 ELSE 0 END", [text] * len(names)
    query = f"SELECT thread_id, checkpoint_id, {db.text('metadata')}, {size}, {holds} FROM {db.from_('checkpoints')}"
    bad = 0
    for thread, checkpoint, metadata, bytes_, mentions in db.rows(query, *values):
        fields = fields_of(metadata)
        bad += fields is None and metadata is not None
        owner = look.owner_in(fields or {})
        yield str(thread), owner, day_of_checkpoint(checkpoint), int(bytes_ or 0), bool(mentions)
    if bad:
        place.unread.append(f"the metadata of {bad} checkpoints is no JSON: whose they are is not known")


def fields_of(text: object) -> dict[str, Any] | None:
    """Return a JSON object of a text column, None where it is none; nested `configurable` members count as its own."""
    if not isinstance(text, str | bytes):
        return None
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    inner = found.get("configurable")
    return {**inner, **found} if isinstance(inner, dict) else found


def _rest(db: Database, look: Look, place: Place, table: str, threads: Threads) -> None:
    """Rows and bytes of the tables beside the checkpoints, and which threads mention the person there."""
    found = db.tables[table]
    column = next((found.columns[name] for name in ("value", "blob") if name in found.columns), None)
    size = db.length(db.quoted(column)) if column is not None else "0"
    try:
        for count, total in db.rows(f"SELECT count(*), sum({size}) FROM {db.from_(table)}"):
            place.parts[table] = int(count)
            place.rows += int(count)
            place.bytes += int(total or 0)
        if (text := look.text()) is not None and column is not None:
            holds = db.holds(db.quoted(column), found.types[column])
            for (thread,) in db.rows(f"SELECT DISTINCT thread_id FROM {db.from_(table)} WHERE {holds}", text):
                threads.add(str(thread), None, mentions=True)
    except Unreadable as error:
        place.unread.append(f"{table}: {error}")


def _saver_orphans(db: Database, place: Place) -> None:
    writes = "writes" if "writes" in db.tables else "checkpoint_writes"
    checkpoints = db.from_("checkpoints")
    one = "c.thread_id = o.thread_id AND c.checkpoint_ns = o.checkpoint_ns"
    query = (
        f"SELECT count(*) FROM {db.from_(writes)} o WHERE NOT EXISTS"
        f" (SELECT 1 FROM {checkpoints} c WHERE {one} AND c.checkpoint_id = o.checkpoint_id)"
    )
    why = "no checkpoint leads there, so the saver never shows them and delete_thread's caller never hears of them"
    _count_orphans(db, place, "writes without checkpoints", query, why)
    if "checkpoint_blobs" in db.tables:
        version = "c.checkpoint->'channel_versions'->>o.channel = o.version"
        query = (
            f"SELECT count(*) FROM {db.from_('checkpoint_blobs')} o WHERE NOT EXISTS"
            f" (SELECT 1 FROM {checkpoints} c WHERE {one} AND {version})"
        )
        _count_orphans(db, place, "blobs that no checkpoint uses", query, "no checkpoint names this version")


def _count_orphans(db: Database, place: Place, what: str, query: str, why: str) -> None:
    try:
        place.orphan(what, db.count(query), why)
    except Unreadable as error:
        place.unread.append(f"{what}: {error}")


def _app_threads(db: Database, place: Place, threads: Threads) -> None:
    """Compare with the application's own table of threads: bodies that it forgot, and entries without a body."""
    table = next((db.tables[name] for name in _APP_THREADS if name in db.tables), None)
    column = None if table is None else table.columns.get("thread_id", table.columns.get("id"))
    if table is None or column is None:
        return
    listed = Names()
    try:
        for (name,) in db.rows(f"SELECT {db.text(db.quoted(column))} FROM {db.from_(table.name)}"):
            listed.add([str(name)])
    except Unreadable as error:
        place.unread.append(f"{table.name}: {error}")
        return
    if not (listed.complete and threads.complete):
        place.notes.append(f"too many threads to compare with the table {table.name}")
        return
    unknown = sum(1 for thread, _, _ in threads.items() if thread not in listed)
    why = f"the application's table {table.name} does not know them: it deletes its own row only"
    place.orphan("threads the application forgot", unknown, why)
    bodiless = sum(1 for name, _ in listed.largest(len(listed)) if name not in threads)
    if bodiless:
        place.notes.append(f"{bodiless} threads are listed in {table.name} and have no body: listed, not present")


def _hand_over(place: Place, look: Look, threads: Threads) -> None:
    if look.sink is None:
        return
    for thread, owners, at in threads.items():
        look.sink(place, Found(locator={"thread_id": thread}, owners=owners, at=at))


def scan_store(db: Database, look: Look, label: str, config: dict[str, Any]) -> Place:
    """Return what a store of long-term memories holds."""
    place = Place(
        what="langgraph-store", label=label, kind="langgraph_store", config=config, data_class="memory",
        ages=look.ages(),
    )  # fmt: skip
    try:
        _memories(db, look, place)
    except Unreadable as error:
        place.unread.append(f"store after {place.rows} rows: {error}")
    place.parts["store"] = place.rows
    if "store_vectors" in db.tables:
        _vectors(db, place)
    return place


def _memories(db: Database, look: Look, place: Place) -> None:
    columns = db.tables["store"].columns
    times = [name for name in ("created_at", "expires_at") if name in columns]
    value, rest = db.text("value"), "".join(f", {db.text(name)}" for name in times)
    expired = own = mentions = endless = 0
    wanted = look.text()
    for prefix, key, text, *when in db.rows(f"SELECT prefix, key, {value}{rest} FROM {db.from_('store')}"):
        at, ends = (time_of(dict(zip(times, when, strict=True)).get(name)) for name in ("created_at", "expires_at"))
        place.rows += 1
        place.bytes += len(text or "") + len(str(prefix)) + len(str(key))
        place.ages.add(at)
        expired += ends is not None and ends < look.now
        endless += ends is None
        labels = str(prefix).split(".")
        owner = look.owner_in(fields_of(text) or {}) or _label_owner(labels, look)
        if owner is None:
            place.nobody += 1
        else:
            place.people.add([owner[1]])
            place.owner_fields[owner[0]] += 1
            own += look.is_subject(owner[1])
        if wanted is not None and (owner is None or not look.is_subject(owner[1])):
            mentions += wanted in f"{prefix}\0{key}\0{text}"
        if look.sink is not None:
            locator = {"namespace": labels, "key": str(key)}
            look.sink(place, Found(locator=locator, owners=(owner,) if owner else (), at=at))
    if look.subject is not None:
        place.dry_run = DryRun(items=own, mentions=mentions)
    _store_settings(place, endless, expired)


def _label_owner(labels: list[str], look: Look) -> tuple[str, str] | None:
    """Return whom a namespace such as ("users", "alice") names."""
    names = look.owner_field is None and len(labels) > 1 and labels[0].lower() in _PEOPLE_FIRST
    return ("namespace", labels[1]) if names else None


def _store_settings(place: Place, endless: int, expired: int) -> None:
    if endless:
        why = "these memories never end by themselves"
        place.settings.append(Setting(name="ttl", value=f"missing on {endless} rows", dangerous=True, why=why))
    if expired:
        why = "the sweeper does not run: get and search still return what has expired"
        place.settings.append(Setting(name="expired", value=f"{expired} rows", dangerous=True, why=why))


def _vectors(db: Database, place: Place) -> None:
    try:
        place.parts["store_vectors"] = db.count(f"SELECT count(*) FROM {db.from_('store_vectors')}")
        query = (
            f"SELECT count(*) FROM {db.from_('store_vectors')} v WHERE NOT EXISTS"
            f" (SELECT 1 FROM {db.from_('store')} s WHERE s.prefix = v.prefix AND s.key = v.key)"
        )
        lost = db.count(query)
    except Unreadable as error:
        place.unread.append(f"store_vectors: {error}")
        return
    place.orphan("vectors without items", lost, "the store's delete left them: foreign keys are not enforced there")
    if isinstance(db, SqliteReader):
        why = "the library never sets PRAGMA foreign_keys, so ON DELETE CASCADE does nothing"
        value = "not enforced" if lost else "not kept in the file"
        place.settings.append(Setting(name="foreign_keys", value=value, dangerous=bool(lost), why=why))
