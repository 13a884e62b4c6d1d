"""OpenLineage events out: one for each derivation and each erased copy, to a file or an HTTP endpoint. Off by default.

Guarantees: `OPENLINEAGE` is the operator's setting, never a tenant's; the file is only appended to, each event a line,
but for half a line that a crash left at its end: it is cut off, and its event comes again;
the endpoint is asked with a time limit, follows no redirect, and anything but 2xx leaves the watermark where it was, so
that the events are sent again. Nothing waits for the sink: it is fed by a job. No place, name or id of a caller leaves.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from sqlmodel import Session, col, select

from api.settings import SettingRefused
from erasure.models import CopyRow
from ledger.entry import Kind
from ledger.log import Log
from ledger.models import EntryRow
from registry.keyed import chunks
from registry.lineage_out import derivations_after, derivations_of, erasures_of, watermark
from registry.models import Tenant
from registry.playback import read_entries
from vault.vault import Vault

DERIVED, ERASED, LATE = "openlineage.derived", "openlineage.erased", "openlineage.late"
BATCH = 500
TIMEOUT_S = 10.0
_BLOCK = 65_536
_GONE = frozenset({"erased_logical", "erased_physical", "already_absent", "key_destroyed"})


class SinkFailed(Exception):
    """The sink did not take the events; they are sent again. The message holds no address."""


class Sink(Protocol):
    """Takes events."""

    def send(self, events: Sequence[dict[str, Any]]) -> None:
        """Take all of them. Raises: SinkFailed."""
        ...


class FileSink:
    """Appends each event as a line to a file that only its owner may read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, events: Sequence[dict[str, Any]]) -> None:
        """Append and sync."""
        left = memoryview(b"".join(json.dumps(event, sort_keys=True).encode() + b"\n" for event in events))
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                _cut_half_line(fd)
                while left:
                    left = left[os.write(fd, left) :]
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise SinkFailed(type(error).__name__) from error


def _cut_half_line(fd: int) -> None:
    """Cut off what stands behind the last whole line: the watermark did not move for it."""
    end = size = os.fstat(fd).st_size
    while end:
        start = max(end - _BLOCK, 0)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        end = start + newline + 1 if newline >= 0 else start
        if newline >= 0:
            break
    if end < size:
        os.ftruncate(fd, end)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_more: Any) -> None:
        return None


class HttpSink:
    """Posts each event to an OpenLineage endpoint."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))

    def send(self, events: Sequence[dict[str, Any]]) -> None:
        """Post them in order; stops at the first that is not taken."""
        for event in events:
            request = urllib.request.Request(  # noqa: S310 - the scheme was checked by `open_sink`
                self._url, json.dumps(event).encode(), {"Content-Type": "application/json"}, method="POST"
            )
            try:
                with self._opener.open(request, timeout=TIMEOUT_S):
                    pass
            except (urllib.error.URLError, OSError, ValueError) as error:
                raise SinkFailed(type(error).__name__) from error


def open_sink(setting: str | None) -> Sink | None:
    """The sink that `OPENLINEAGE` names, None where it is empty. Raises: SettingRefused."""
    if not setting:
        return None
    parts = urlsplit(setting)
    if parts.scheme == "file" and not parts.netloc and Path(parts.path).is_absolute():
        return FileSink(Path(parts.path))
    if parts.scheme in ("http", "https") and parts.hostname:
        return HttpSink(setting)
    raise SettingRefused("OPENLINEAGE", "expected file:///ABSOLUTE/PATH or http(s)://HOST/PATH")


class Feed:
    """Tells a sink what is new in a tenant."""

    def __init__(self, *, sink: Sink, transactions: Callable[..., Any], vault: Vault, log: Log) -> None:
        self._sink = sink
        self._transactions = transactions
        self._vault = vault
        self._log = log

    def run(self, tenant_id: int, now: datetime) -> int:
        """Send what is new, at most one batch of each kind; how many events. Raises: SinkFailed."""
        return self._late(tenant_id, now) + self._derived(tenant_id, now) + self._erased(tenant_id, now)

    def _derived(self, tenant_id: int, now: datetime) -> int:
        with self._transactions(tenant_id, write=False) as session:
            position = watermark(session, tenant_id, DERIVED, now).position
            events, following = derivations_after(
                session, tenant_id, log_id_of(session, tenant_id), position, limit=BATCH
            )
        if following == position:
            return 0
        self._sink.send(events)
        self._move(tenant_id, DERIVED, following, now)
        return len(events)

    def _late(self, tenant_id: int, now: datetime) -> int:
        with self._transactions(tenant_id, write=False) as session:
            waiting = list(watermark(session, tenant_id, LATE, now).details.get("waiting", []))[:BATCH]
            told = watermark(session, tenant_id, DERIVED, now).position
            known = [number for number in waiting if number <= told]
            events = derivations_of(session, tenant_id, log_id_of(session, tenant_id), known)
        if not waiting:
            return 0
        self._sink.send(events)
        with self._transactions(tenant_id) as session:
            mark = watermark(session, tenant_id, LATE, now)
            mark.details = {"waiting": [n for n in mark.details.get("waiting", []) if n not in set(waiting)]}
            mark.at = now
            session.add(mark)
        return len(events)

    def _erased(self, tenant_id: int, now: datetime) -> int:
        with self._transactions(tenant_id, write=False) as session:
            position = watermark(session, tenant_id, ERASED, now).position
            rows = session.exec(
                select(EntryRow)
                .where(
                    EntryRow.tenant_id == tenant_id,
                    EntryRow.kind == Kind.COPY_ERASED.value,
                    col(EntryRow.idx) > position,
                )
                .order_by(col(EntryRow.idx))
                .limit(BATCH)
            ).all()
            events = self._events_of(session, tenant_id, rows)
        if not rows:
            return 0
        self._sink.send(events)
        self._move(tenant_id, ERASED, rows[-1].idx, now)
        return len(events)

    def _events_of(self, session: Session, tenant_id: int, rows: Sequence[EntryRow]) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        log_id = log_id_of(session, tenant_id)
        for entry in read_entries(session, self._vault, self._log, tenant_id, rows):
            data = entry.parts[0].data if entry.parts else None
            if data is None:
                continue
            body = json.loads(data)
            numbers = [line["copy"] for line in body["copies"] if line["state"] in _GONE]
            artifact_ids: list[int] = []
            for chunk in chunks(numbers):
                copies = session.exec(
                    select(CopyRow.artifact_id).where(
                        CopyRow.tenant_id == tenant_id,
                        CopyRow.owner == body["owner"],
                        col(CopyRow.copy_no).in_(chunk),
                        col(CopyRow.artifact_id).is_not(None),
                    )
                )
                artifact_ids += [number for number in copies if number is not None]
            events += erasures_of(
                session, tenant_id, log_id, artifact_ids, request=body["owner"], at=entry.row.received
            )
        return events

    def _move(self, tenant_id: int, name: str, position: int, now: datetime) -> None:
        with self._transactions(tenant_id) as session:
            mark = watermark(session, tenant_id, name, now)
            mark.position, mark.at = position, now
            session.add(mark)


def log_id_of(session: Session, tenant_id: int) -> str:
    """The random id of a tenant's log, the only name of the tenant that leaves."""
    return session.get_one(Tenant, tenant_id).log_id


__all__ = ["DERIVED", "ERASED", "LATE", "Feed", "FileSink", "HttpSink", "Sink", "SinkFailed", "open_sink"]
