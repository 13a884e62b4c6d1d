"""The work of `muniment rebuild`; what it guarantees is told there."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from api import folder, migrate
from api import settings as settings_module
from api.commands.options import CannotRun, progress, show
from api.settings import Settings
from api.verification import KnownLog, Verified, own_vkey, read_only, stores_of, verify_log
from api.wiring import Services, all_tables, build
from audit.findings import exit_code_of, finding_json
from audit.reader import Reader
from audit.verify import Options
from erasure.stopped_keys import stopped_keys
from ledger.batches import decode_batch
from ledger.models import LogState
from registry.decided import Rebuilt
from registry.errors import NothingToRebuild
from registry.rebuild import Rebuild
from vault.errors import KekUnknown, NotDecryptable

_LOG_ID = re.compile(r"[0-9a-f]{32}")
_EVERY_S = 0.5


class Refused(Exception):
    """There is something here that a rebuild would write over."""


def rebuild_folder(data: Path, *, as_json: bool) -> int:
    """Brings every tenant of the stores back and returns the exit code. Raises: CannotRun, Refused."""
    chosen = settings_module.load(data)
    with stores_of(chosen) as (bucket, hot):
        logs = sorted({name for reader in (bucket, hot) for name in _logs_in(reader)})
        if not logs:
            where = f"{_shown(chosen.objects)} or {_shown(chosen.hot)}"
            message = f"no log lies in {where}: check OBJECT_STORE and HOT_STORE"
            raise CannotRun(message)
        _require_keys(chosen, bucket, logs)
        folder.make(chosen.data)
        os.umask(0o077)
        with folder.lock(chosen.data):
            made, missing = _bring_back(chosen, logs)
            verified = _verify(chosen, bucket, hot, made)
            folder.mark_initialised(chosen.data)
            folder.mark_rebuilt(chosen.data)
    return _report(made, missing, verified, as_json=as_json)


def _bring_back(chosen: Settings, logs: list[str]) -> tuple[list[Rebuilt], list[str]]:
    made: list[Rebuilt] = []
    missing: list[str] = []
    services = build(chosen)
    try:
        migrate.upgrade(services.database)
        if not folder.is_rebuilding(chosen.data):
            _require_empty(services)
            folder.mark_rebuilding(chosen.data)
        services.lease.take(services.clock.now(), force=True)
        for number, log_id in enumerate(logs, start=1):
            click.echo(f"log {number} of {len(logs)}: {log_id}", err=True)
            try:
                made.append(_one(services, log_id))
            except NothingToRebuild as error:
                missing.append(f"{error}; {error.hint}")
    except (KekUnknown, NotDecryptable) as error:
        message = (
            f"the key folder {chosen.key_folder} is not the newest one of this data ({error}): bring back its "
            "newest copy and run muniment rebuild again; nothing is served until then"
        )
        raise CannotRun(message) from error
    finally:
        services.close()
    return made, missing


def _one(services: Services, log_id: str) -> Rebuilt:
    work = Rebuild(
        vault=services.vault,
        log=services.log,
        journal=services.journal,
        transactions=services.database.transaction,
        hot=services.hot,
        tables=all_tables,
        stopped=stopped_keys,
    )
    told: dict[str, int] = {}

    def tell(what: str, more: int) -> None:
        told[what] = told.get(what, 0) + more
        click.echo(f"  {told[what]} {what}", err=True)

    with _counting(services, log_id):
        made = work.run(log_id, services.clock.now(), grace=services.settings.kek_grace, progress=tell)
    found = services.certificates.restore(made.tenant_id, log_id, services.clock.now())
    made.certificates = found.count
    if found.strange:
        made.lost.append(
            f"the requests of {len(found.strange)} certificates; their signed JSON lies in the object store: "
            + ", ".join(f"{log_id}/{name}" for name in found.strange)
        )
    return made


@contextmanager
def _counting(services: Services, log_id: str) -> Iterator[None]:
    """Says on stderr how many entries are indexed, while they are."""
    stop, known = threading.Event(), _size_of(services, log_id)

    def count() -> None:
        said = -1
        while not stop.wait(_EVERY_S):
            done = _indexed(services, log_id)
            if done not in (said, 0):
                said = done
                click.echo(f"  {done} of {known} entries indexed", err=True)

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _indexed(services: Services, log_id: str) -> int:
    for acting in services.tenants():
        if acting.log_id == log_id:
            with services.database.transaction(acting.tenant_id, write=False) as session:
                state = session.get(LogState, acting.tenant_id)
                return 0 if state is None else state.size
    return 0


def _size_of(services: Services, log_id: str) -> int:
    return _entries_in(services.locked, log_id)


def _entries_in(bucket: Any, log_id: str) -> int:
    """The number of entries that the last batch ends with."""
    last = None
    for last in bucket.list(f"{log_id}/batch/"):  # noqa: B007 - the last one is what is wanted
        pass
    if last is None:
        return 0
    batch = decode_batch(bucket.get(last))
    return batch.first + batch.count


def _require_empty(services: Services) -> None:
    """Returns when the database holds no tenant. Raises Refused."""
    known = services.tenants()
    if known:
        message = (
            f"the database holds {len(known)} tenant(s) already ({', '.join(acting.tenant for acting in known[:5])}): "
            "a rebuild writes into an empty one only; move it away, or set DATABASE_URL to a new one"
        )
        raise Refused(message)


def _require_keys(chosen: Settings, bucket: Reader, logs: list[str]) -> None:
    """Returns when there is a key folder with keys in it. Raises CannotRun that says what is lost without."""
    keys = chosen.key_folder
    if any(keys.glob("kek/*/journal.key")):
        return
    entries = sum(_entries_in(bucket, log_id) for log_id in logs)
    message = (
        f"no keys in {keys}: bring the key folder back from its own backup. Without it this is lost for good: the "
        f"content of all {entries} entries of {len(logs)} log(s), every name of a person, stream and run, all classes, "
        "stores, tokens, requests and certificates, and the key that signs checkpoints. What remains are the headers: "
        "muniment verify --key with the log's public key shows that they are whole"
    )
    raise CannotRun(message)


def _logs_in(reader: Reader) -> Iterator[str]:
    """Yields the ids of the logs that have objects in a store, one look each."""
    after: str | None = None
    while (key := next(iter(reader.list("", after=after)), None)) is not None:
        top = key.partition("/")[0]
        if _LOG_ID.fullmatch(top):
            yield top
        # "~" sorts after every character of a key.
        after = f"{top}/~"


def _verify(chosen: Settings, bucket: Reader, hot: Reader, made: list[Rebuilt]) -> list[Verified]:
    done = []
    with read_only(chosen) as sessions:
        for one in made:
            if not one.entries:
                continue
            log = KnownLog(tenant_id=one.tenant_id, tenant=one.tenant, log_id=one.log_id, size=one.entries)
            own = own_vkey(chosen, log.origin)
            own_certificates = own_vkey(chosen, log.certificate_name)
            with progress(max(1, log.size), f"verify {one.tenant}") as bar:
                report = verify_log(
                    log,
                    bucket=bucket,
                    hot=hot,
                    keys=[] if own is None else [own],
                    certificate_keys=[] if own_certificates is None else [own_certificates],
                    options=Options(known_size=one.entries),
                    sessions=sessions,
                    progress=_moves(bar),
                    index=True,
                )
            done.append(Verified(log=log, report=report))
    return done


def _moves(bar: Any) -> Callable[[int], None]:
    at = 0

    def move(done: int) -> None:
        nonlocal at
        bar.update(done - at)
        at = done

    return move


def _report(made: list[Rebuilt], missing: list[str], verified: list[Verified], *, as_json: bool) -> int:
    verdicts = {one.log.log_id: one.report for one in verified}
    code = max((exit_code_of(report.verdict) for report in verdicts.values()), default=0)
    if missing or any(one.faults for one in made):
        code = 1
    lines: list[str] = []
    shown: list[dict[str, Any]] = []
    for one in made:
        report = verdicts.get(one.log_id)
        word = "empty" if report is None else report.verdict.value
        lines += _lines(one, word)
        findings = [] if report is None else [finding_json(finding) for finding in report.findings]
        at = None if one.snapshot_at is None else one.snapshot_at.isoformat()
        shown.append({**asdict(one), "snapshot_at": at, "verify": word, "findings": findings})
        lines += [f"  {finding['verdict']}: {finding['detail']}" for finding in findings[:20]]
    lines += [f"not rebuilt: {line}" for line in missing]
    word = {0: "rebuilt", 1: "faulty", 2: "not checked"}[code]
    show(
        {"verdict": word, "logs": shown, "not_rebuilt": missing},
        as_json=as_json,
        lines=[*lines, f"{word}: start it with muniment serve" if code == 0 else word],
    )
    return code


def _lines(one: Rebuilt, word: str) -> list[str]:
    at = "none" if one.snapshot_at is None else one.snapshot_at.isoformat(timespec="seconds")
    size, said = one.checkpoint_size, word.replace("_", " ")
    return [
        f"{one.tenant}: {one.entries} entries, {size} under the newest checkpoint, verified: {said}",
        f"  {one.keys} keys and {one.rows} rows from {one.objects} objects; the registry's snapshot is of {at}",
        f"  decided in the record: {one.destroyed} keys destroyed, {one.fenced} persons fenced, {one.holds} holds",
        f"  {one.certificates} certificates that the snapshot did not have, from the object store",
        *(f"  fault: {line}" for line in one.faults),
        *(f"  not back: {line}" for line in one.lost),
    ]


def _shown(url: str) -> str:
    """An address without what may be a secret in it."""
    return url.partition("?")[0]
