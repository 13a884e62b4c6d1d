"""`muniment doctor`: is this installation able to keep its promises? Reads the folder; nothing of the data is changed.

Guarantees: each finding says what is wrong and what to do; "could not check" is never "fine". Exit 0 sound, 1 a proven
fault, 2 something could not be checked. The lock of the object store is attacked with a probe object of its own.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click

from api import folder, migrate, settings
from api.commands.options import local, show
from api.database import Database
from api.wiring import Services, build
from ledger.errors import LedgerError, LockNotEnforced
from ledger.objects import probe

_OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_CODES = {"fine": 0, "weak": 0, "wrong": 1, "unknown": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at: `fine`, `weak` by the operator's choice, `wrong`, or `unknown`: not checked."""

    what: str
    verdict: str
    detail: str


def _fine(what: str, detail: str) -> Finding:
    return Finding(what=what, verdict="fine", detail=detail)


def _wrong(what: str, detail: str) -> Finding:
    return Finding(what=what, verdict="wrong", detail=detail)


def _weak(what: str, detail: str) -> Finding:
    return Finding(what=what, verdict="weak", detail=detail)


def _unknown(what: str, detail: str) -> Finding:
    return Finding(what=what, verdict="unknown", detail=detail)


def key_folder(chosen: settings.Settings) -> Path | None:
    """The key folder, None where keys are in a service."""
    parts = urlsplit(chosen.key_root)
    return Path(unquote(parts.netloc + parts.path)) if parts.scheme == "file" else None


def look_at_folders(chosen: settings.Settings) -> Iterator[Finding]:
    """Data and key folders: there, closed to others, apart from each other."""
    if not folder.is_initialised(chosen.data):
        yield _unknown("data folder", f"{chosen.data} was never initialised: run muniment init --data {chosen.data}")
        return
    yield _fine("data folder", f"{chosen.data}, {'in use' if folder.is_locked(chosen.data) else 'not in use'} now")
    keys = key_folder(chosen)
    if keys is None:
        return
    if not keys.is_dir():
        yield _wrong("keys", f"{keys} is missing: bring it back from its own backup; without it nothing opens")
        return
    if keys.stat().st_mode & _OPEN_TO_OTHERS:
        yield _wrong("keys", f"{keys} is open to others: chmod 700 {keys}")
    elif keys.resolve().is_relative_to(chosen.data.resolve()):
        yield _wrong("keys", f"{keys} lies in the data folder: a copy of the data would carry its keys; move it out")
    else:
        yield _fine("keys", f"{keys}, closed to others; back it up apart from the data, for at most 30 days")


def look_at_schema(chosen: settings.Settings) -> Iterator[Finding]:
    """Whether the database answers and has our schema."""
    database = Database(chosen.database)
    try:
        database.ping()
        migrate.check(database)
    except (migrate.NewerSchema, migrate.OlderSchema) as error:
        yield _wrong("schema", str(error))
    except Exception as error:  # noqa: BLE001 - whatever a driver raises, it is a finding and not the end
        yield _unknown("database", f"does not answer ({type(error).__name__}); check DATABASE_URL")
    else:
        yield _fine("schema", f"revision {migrate.head()}")
    finally:
        database.close()


def look_at_parts(services: Services) -> Iterator[Finding]:
    """Root key, object lock, tenants' logs."""
    versions = services.keks.root.versions()
    yield _fine("root key", f"{services.keks.root.kind}, {len(versions)} version(s)")
    try:
        findings = list(probe(services.locked, services.clock.now()))
    except LockNotEnforced as error:
        yield _wrong("object lock", f"{error}; the record would not be tamper-evident on this store")
    except LedgerError as error:
        yield _unknown("object store", f"{type(error).__name__}: {error}")
    else:
        wrong = [line for line in findings if not line.kept]
        yield from (_wrong("object lock", f"{line.check}: {line.detail}") for line in wrong)
        if not wrong:
            yield _fine("object lock", f"attacked in {len(findings)} ways, held")
    yield _fine("tenants", ", ".join(acting.tenant for acting in services.tenants()) or "none")


def look_at_choices(chosen: settings.Settings) -> Iterator[Finding]:
    """Settings that weaken a promise."""
    if chosen.approval == "single":
        yield _weak("approval", "one person may create and approve a request; printed on every certificate")
    if not chosen.anchor_list:
        yield _weak("anchors", "none: the operator could rewrite the whole log unseen; set ANCHORS")
    if chosen.clock_offset or chosen.lock_unit != "day":
        yield _wrong("clock", "CLOCK_OFFSET or LOCK_UNIT is set: for tests only")


def examine(chosen: settings.Settings) -> list[Finding]:
    """Every finding, in the order a reader wants."""
    found = list(look_at_folders(chosen))
    if any(finding.verdict != "fine" for finding in found):
        return found
    looks: list[Callable[[], Iterator[Finding]]] = [lambda: look_at_schema(chosen), lambda: look_at_choices(chosen)]
    for look in looks:
        found += list(look())
    if any(finding.what in ("schema", "database") and finding.verdict != "fine" for finding in found):
        return found
    services = build(chosen)
    try:
        found += list(look_at_parts(services))
    finally:
        services.close()
    return found


@click.command("doctor")
@local
def doctor(data: Path, tenant: str | None, *, as_json: bool) -> int:
    """Checks configuration, schema, keys and the object store's lock."""
    del tenant
    found = examine(settings.load(data))
    code = max((_CODES[finding.verdict] for finding in found), default=0)
    if any(finding.verdict == "wrong" for finding in found):
        code = 1
    verdict = {0: "sound", 1: "faulty", 2: "not fully checked"}[code]
    lines = [f"{finding.verdict:<8} {finding.what}: {finding.detail}" for finding in found]
    show(
        {"verdict": verdict, "findings": [asdict(finding) for finding in found]},
        as_json=as_json,
        lines=[*lines, verdict],
    )
    return code


COMMANDS = {"doctor": doctor}
