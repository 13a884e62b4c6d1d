"""What `muniment doctor` looks at: can this installation keep its promises?

Guarantees: each finding says what was seen and what to do; "could not check" (`unknown`) is never `fine`. Nothing of
the data is changed: the stores are tried with probe objects of their own, and the clock with a file that has no name.
Does not decide exit codes or how anything is shown.
"""

from __future__ import annotations

import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx
import sqlalchemy as sa
from sqlmodel import col, select

from api import folder, migrate
from api.clock_check import AWS, bucket_time
from api.database import Database, DatabaseDamaged
from api.settings import Settings
from api.wiring import Services
from audit.silence import silences
from connectors.base import why_not_built
from ledger.batches import batch_digest, decode_batch
from ledger.entry import decode_header, uuid7_time
from ledger.errors import LedgerError, LockNotEnforced, MalformedHeader, ObjectMissing
from ledger.head import index_key
from ledger.models import LogLease, LogState
from ledger.objects import HotStore, ObjectStore, probe
from ledger.payload_names import is_ours
from ledger.recorders import beats, recorders_with_beats
from registry.acting import Acting
from registry.errors import RegistryError
from registry.journal import END, complete_snapshots, read_object, row_objects
from registry.models import RecorderRow, StoreRow, Tenant
from registry.stores import in_force
from vault.errors import VaultError

_OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_SKEW_WEAK, _SKEW_WRONG = timedelta(seconds=30), timedelta(minutes=5)
"""S3 refuses requests that are 15 minutes off; lock dates and legal dates suffer earlier."""
_ROOM_WRONG, _ROOM_WEAK = 100 * 1024**2, 1024**3
_IN_FLIGHT = timedelta(minutes=10)
"""A payload object this young may belong to a batch that is being written."""
_SNAPSHOT_AGE = timedelta(days=2)
_HEARD_SINCE = timedelta(days=30)
_SHOWN_RECORDERS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at: `fine`, `weak` by the operator's choice, `wrong`, or `unknown`: not checked."""

    what: str
    verdict: str
    detail: str


def fine(what: str, detail: str) -> Finding:
    """Returns what is as it should be."""
    return Finding(what=what, verdict="fine", detail=detail)


def wrong(what: str, detail: str) -> Finding:
    """Returns what breaks a promise."""
    return Finding(what=what, verdict="wrong", detail=detail)


def weak(what: str, detail: str) -> Finding:
    """Returns what works and protects less than it could."""
    return Finding(what=what, verdict="weak", detail=detail)


def unknown(what: str, detail: str) -> Finding:
    """Returns what could not be checked."""
    return Finding(what=what, verdict="unknown", detail=detail)


def folder_of(url: str) -> Path | None:
    """The folder of a `file://` address, None where it is a service."""
    parts = urlsplit(url)
    return Path(unquote(parts.netloc + parts.path)) if parts.scheme == "file" else None


def look_at_folders(chosen: Settings) -> Iterator[Finding]:
    """Data and key folders: there, closed to others, apart from each other."""
    if folder.is_rebuilding(chosen.data):
        yield wrong("data folder", f"a rebuild did not end: run muniment rebuild --data {chosen.data} again")
        return
    if not folder.is_initialised(chosen.data):
        yield unknown("data folder", f"{chosen.data} was never initialised: run muniment init --data {chosen.data}")
        return
    if chosen.data.stat().st_mode & _OPEN_TO_OTHERS:
        yield wrong("data folder", f"{chosen.data} is open to others: chmod 700 {chosen.data}")
    else:
        in_use = "in use" if folder.is_locked(chosen.data) else "not in use"
        yield fine("data folder", f"{chosen.data}, closed to others, {in_use} now")
    yield from _look_at_keys(chosen, chosen.key_folder)


def _look_at_keys(chosen: Settings, keys: Path) -> Iterator[Finding]:
    if not keys.is_dir():
        yield wrong("keys", f"{keys} is missing: bring it back from its own backup; without it nothing opens")
        return
    opened = [path for path in (keys, *keys.rglob("*")) if _is_open(path)]
    if opened:
        more = "" if len(opened) == 1 else f" and {len(opened) - 1} more"
        yield wrong("keys", f"{opened[0]}{more} open to others: chmod -R go= {keys}")
    elif keys.resolve().is_relative_to(chosen.data.resolve()):
        yield wrong("keys", f"{keys} lies in the data folder: a copy of the data would carry its keys; move it out")
    else:
        yield fine("keys", f"{keys}, closed to others; back it up apart from the data, for at most 30 days")
        beside = [place for place in _local_places(chosen) if place.stat().st_dev == keys.stat().st_dev]
        if beside:
            yield weak(
                "keys beside data",
                f"{keys} is on one device with {beside[0]}: a snapshot or backup of that volume carries both, and "
                "destroyed keys live on in it; put the keys on another volume (KMS) and keep them out of its backup",
            )
        else:
            yield fine("keys beside data", "on another device than the data")


def _is_open(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & _OPEN_TO_OTHERS)
    except FileNotFoundError:
        return False  # a draft of the serving process, which has its final name by now


def _local_places(chosen: Settings) -> list[Path]:
    places = [chosen.data, folder_of(chosen.objects), folder_of(chosen.hot)]
    return [place for place in places if place is not None and place.is_dir()]


def look_at_room(chosen: Settings) -> Iterator[Finding]:
    """Free disk space where we write."""
    keys = chosen.key_folder
    for place in {*_local_places(chosen), *([keys] if keys.is_dir() else [])}:
        free = shutil.disk_usage(place).free
        shown = f"{free // 1024**2} MiB free at {place}"
        if free < _ROOM_WRONG:
            yield wrong("disk", f"{shown}: writes will soon fail; make room")
        elif free < _ROOM_WEAK:
            yield weak("disk", f"{shown}: make room")
        else:
            yield fine("disk", shown)


def look_at_database(chosen: Settings) -> Iterator[Finding]:
    """Whether the database answers, has our schema and deletes what it is told to delete."""
    database = Database(chosen.database)
    try:
        database.ping()
        migrate.check(database)
        yield fine("schema", f"revision {migrate.head()}")
        if database.on_sqlite:
            with database.engine.connect() as connection:
                kept = connection.exec_driver_sql("PRAGMA secure_delete").scalar()
            if kept == 1:
                yield fine("secure delete", "SQLite overwrites what is deleted")
            else:
                yield wrong("secure delete", "SQLite leaves deleted bytes in its file: use a build with secure_delete")
    except (migrate.NewerSchema, migrate.OlderSchema, migrate.UnknownSchema) as error:
        yield wrong("schema", str(error))
    except DatabaseDamaged as error:
        yield wrong("database", str(error))
    except Exception as error:  # noqa: BLE001 - whatever a driver raises, it is a finding and not the end
        yield unknown("database", f"does not answer ({type(error).__name__}); check DATABASE_URL")
    finally:
        database.close()


def look_at_choices(chosen: Settings) -> Iterator[Finding]:
    """Settings that weaken a promise."""
    if chosen.approval == "single":
        yield weak("approval", "one person may create and approve a request; printed on every certificate")
    if chosen.anchor_list:
        yield fine("anchors", f"{len(chosen.anchor_list)} configured; see GET /v1/log/anchors for their state")
    else:
        yield weak("anchors", "none: the operator could rewrite the whole log unseen; set ANCHORS")
    if chosen.clock_offset or chosen.lock_unit != "day":
        yield wrong("clock", "CLOCK_OFFSET or LOCK_UNIT is set: for tests only")


def look_at_stores(services: Services) -> Iterator[Finding]:
    """Root key, and both object stores under attack."""
    versions = services.keks.root.versions()
    yield fine("root key", f"{services.keks.root.kind}, {len(versions)} version(s)")
    now = services.clock.now()
    yield from _attacked("object lock", services.locked, now, locked=True)
    yield from _attacked("unlocked store", services.hot, now, locked=False)
    yield from _replaced(services.hot, now)


def _attacked(what: str, store: ObjectStore, now: datetime, *, locked: bool) -> Iterator[Finding]:
    try:
        findings = probe(store, now, locked=locked)
    except LockNotEnforced as error:
        yield wrong(what, f"{error}; the record would not be tamper-evident on this store: use another one")
    except LedgerError as error:
        yield unknown(what, f"{type(error).__name__}: {error}; check its address, rights and credentials")
    else:
        broken = [line for line in findings if not line.kept]
        yield from (wrong(what, f"{line.check}: {line.detail}; use a store that keeps this") for line in broken)
        if not broken:
            yield fine(what, f"tried in {len(findings)} ways, kept its promises")


def _replaced(store: HotStore, now: datetime) -> Iterator[Finding]:
    """A replaced object must be gone: destroyed keys would live on in old versions."""
    key = f"probe/{now:%Y%m%dT%H%M%S}-replaced"
    try:
        store.replace(key, b"old")
        store.replace(key, b"new")
        info, data = store.head(key), store.get(key)
        store.delete(key)
    except LedgerError as error:
        yield unknown("unlocked store", f"{type(error).__name__}: {error}; check its address, rights and credentials")
        return
    if info.versions != 1 or info.hidden or data != b"new":
        yield wrong(
            "unlocked store",
            f"keeps {info.versions} versions of a replaced object, so destroyed keys survive in it: turn versioning "
            "off in a new bucket and set HOT_STORE",
        )
    else:
        yield fine("unlocked store", "keeps no older version of what is replaced")


def look_at_clock(services: Services) -> Iterator[Finding]:
    """Our clock against the object store's."""
    try:
        before = services.clock.now()
        theirs = _store_time(services.settings)
        skew = max(before - theirs, theirs - services.clock.now(), timedelta(0))
    except (OSError, httpx.HTTPError, ValueError, TypeError) as error:
        yield unknown("clock", f"the object store did not tell its time ({type(error).__name__}); compare it by hand")
        return
    shown = f"{skew.total_seconds():.0f} s away from the object store's"
    if skew > _SKEW_WRONG:
        yield wrong("clock", f"{shown}: lock dates and legal dates are wrong; set it (NTP)")
    elif skew > _SKEW_WEAK:
        yield weak("clock", f"{shown}: set it (NTP)")
    else:
        yield fine("clock", shown)


def _store_time(chosen: Settings) -> datetime:
    place = folder_of(chosen.objects)
    if place is not None:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
            file.flush()
            return datetime.fromtimestamp(Path(f"/proc/self/fd/{file.fileno()}").stat().st_mtime, UTC)
    return bucket_time(chosen.s3_endpoint_url or AWS)


def look_at_lease(services: Services) -> Iterator[Finding]:
    """Whether somebody who is alive may sequence."""
    with services.database.shared(write=False) as session:
        rows = list(session.exec(select(LogLease)))
    serving = folder.is_locked(services.settings.data)
    late = services.clock.now() - max((row.until for row in rows), default=services.clock.now())
    if not rows or not serving:
        yield fine("lease", "nothing serves this folder now" if not serving else "not taken yet")
    elif late > timedelta(seconds=30):
        yield wrong("lease", f"ran out {late.total_seconds():.0f} s ago while a process serves: restart that process")
    else:
        yield fine("lease", f"held, fencing number {max(row.fence for row in rows)}")


def look_at_tenant(services: Services, acting: Acting) -> Iterator[Finding]:
    """One tenant's log, rows for a rebuild, orphans, stores, and who answers for its data."""
    with services.database.transaction(acting.tenant_id, write=False) as session:
        state = session.get(LogState, acting.tenant_id)
        row = session.get(Tenant, acting.tenant_id)
        controller = "" if row is None else row.controller.get("name") or ""
        stores = list(in_force(session, acting.tenant_id).values())
        recorders = session.scalar(
            sa.select(sa.func.count()).select_from(RecorderRow).where(col(RecorderRow.tenant_id) == acting.tenant_id)
        )
    if state is not None and state.read_only is not None:
        yield wrong(f"{acting.tenant}: log", f"read-only: {state.read_only}; run muniment verify")
    if controller:
        yield fine(f"{acting.tenant}: controller", controller)
    else:
        yield weak(
            f"{acting.tenant}: controller",
            "nobody has said who it is: certificates and letters name the tenant and no contact; "
            "muniment controller set --name NAME --contact ADDRESS",
        )
    dead = sorted(store.name for store in stores if why_not_built(store.kind, store.config) is not None)
    if dead:
        yield weak(
            f"{acting.tenant}: stores",
            f"{', '.join(dead)}: of a kind this version cannot drive; copies there are never erased by it, and every "
            "certificate says so",
        )
    if recorders:
        yield _spools(f"{acting.tenant}: spools", recorders, stores)
    yield from _silence(services, acting)
    try:
        yield from _rows_for_rebuild(services, acting)
        yield from _orphans(services, acting)
    except (LedgerError, VaultError, RegistryError) as error:
        yield unknown(f"{acting.tenant}: stores of the record", f"{type(error).__name__}: {error}")


def _spools(what: str, recorders: int, stores: Sequence[StoreRow]) -> Finding:
    """Whether the folders are declared in which recorders keep what is not shipped yet; only agents know them."""
    known = sorted(store.name for store in stores if "spool" in store.name or "spool" in str(store.config))
    if known:
        return fine(what, f"declared: {', '.join(known)}; {recorders} recorder(s) have recorded")
    return weak(
        what,
        f"{recorders} recorder(s) have recorded, and no store is a spool: what waits in its folder to be shipped is "
        "personal data that no inventory and no certificate names. For each agent put "
        "«NAME-spool: {kind: files, config: {root: FOLDER}}» into a file: muniment stores apply FILE",
    )


def _silence(services: Services, acting: Acting) -> Iterator[Finding]:
    """Recorders that used to send heartbeats and do not now: what their agents do since may be missing."""
    now, what = services.clock.now(), f"{acting.tenant}: recorders"
    with services.database.transaction(acting.tenant_id, write=False) as session:
        names = recorders_with_beats(session, acting.tenant_id)
        heard = {name: beats(session, acting.tenant_id, name, since=now - _HEARD_SINCE, until=now) for name in names}
    quiet = [one for name, times in heard.items() for one in silences(name, times, now=now) if one.until is None]
    for one in quiet[:_SHOWN_RECORDERS]:
        yield weak(
            what,
            f"{one.recorder} is silent since {one.since:%Y-%m-%d %H:%M:%S} UTC, its heartbeats came every "
            f"{one.every.total_seconds():.0f} s: see whether its agent runs and its spool is shipped",
        )
    if len(quiet) > _SHOWN_RECORDERS:
        yield weak(what, f"{len(quiet) - _SHOWN_RECORDERS} more are silent")
    if names and not quiet:
        yield fine(what, f"{len(names)} with heartbeats, none is silent")


def _rows_for_rebuild(services: Services, acting: Acting) -> Iterator[Finding]:
    what = f"{acting.tenant}: rows for a rebuild"
    names = complete_snapshots(services.hot, acting.log_id)
    paths = row_objects(services.hot, acting.log_id)
    unread = 0
    for path in [*paths[-1_000:], *(f"{name}/{END}" for name in names)]:
        try:
            found = read_object(services.hot, services.keks, acting.log_id, path)
        except (RegistryError, VaultError):
            unread += 1
            continue
        newest = found.at if found is not None and path.endswith(END) else None
        if newest is not None and path.startswith(names[-1]):
            age = services.clock.now() - newest
            if age > _SNAPSHOT_AGE:
                yield weak(what, f"the registry's newest snapshot is {age.days} days old: is muniment serve running?")
            else:
                yield fine(what, f"{len(paths)} objects, the registry's snapshot is of {newest:%Y-%m-%d %H:%M} UTC")
    if unread:
        yield wrong(what, f"{unread} objects do not open with the keys of {services.settings.key_folder}: restore them")
    if not names:
        yield weak(what, "no snapshot of the registry yet: the service writes one within ten minutes of its start")


def _orphans(services: Services, acting: Acting) -> Iterator[Finding]:
    """Objects that no batch names: left by a crash between two writes. What may still be in flight does not count."""
    log_id, now = acting.log_id, services.clock.now()
    # Listed before the batches, so that whatever belongs to one is named by the time we look.
    listed = set(services.locked.list(f"{log_id}/payload/"))
    foreign = {key for key in listed if not is_ours(key.removeprefix(f"{log_id}/"))}
    payloads = {key for key in listed - foreign if _is_old(key, now)}
    indexes = set(services.hot.list(f"{log_id}/index/"))
    end = 0
    for key in services.locked.list(f"{log_id}/batch/"):
        data = services.locked.get(key)
        batch = decode_batch(data)
        end = batch.first + batch.count
        indexes.discard(f"{log_id}/{index_key(batch.first, batch_digest(data))}")
        for raw in batch.headers:
            for part in decode_header(raw).parts:
                payloads.discard(f"{log_id}/{part.object}")
    indexes = {key for key in indexes if int(key.rpartition("/")[2].partition("-")[0]) < end}
    what = f"{acting.tenant}: orphans"
    if foreign:
        yield weak(
            f"{acting.tenant}: foreign names",
            f"{len(foreign)} objects among the payload bear names that muniment does not write, {min(foreign)} first; "
            "it neither reads nor deletes them: find out who wrote them",
        )
    if not payloads and not indexes:
        yield fine(what, "none")
        return
    size = sum(_size(services.locked, key) for key in payloads)
    yield weak(
        what,
        f"{len(payloads)} payload objects ({size} bytes of ciphertext) and {len(indexes)} index objects that no batch "
        "names, left by crashes between two writes; harmless, to be deleted when their locks have ended",
    )


def _is_old(key: str, now: datetime) -> bool:
    try:
        return now - uuid7_time(key.rpartition("/")[2]) > _IN_FLIGHT
    except MalformedHeader:
        return True


def _size(store: ObjectStore, key: str) -> int:
    try:
        return store.head(key).size
    except ObjectMissing:
        return 0
