"""Keeps every issued certificate in the locked store as well, for the term of the log, and brings it back from there.

Guarantees: the table's bytes are the certificate; the object is written once, under the lock, after the table has it,
and read back before the row counts as stored. A crash or a store that is away leaves a row without `stored_at`, which
the next pass takes up. Certificates name nobody, so nothing in them has to end earlier. Not here: what they say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from sqlmodel import col, select

from erasure.errors import ErasureError
from erasure.models import CertificateRow, RequestRow
from ledger.errors import ObjectExists
from ledger.head import Transactions
from ledger.objects import ObjectStore

PREFIX = "certificate/"
_NAME = re.compile(r"certificate/([A-Za-z0-9_-]{1,40})/([0-9]{4,})-(interim|final)\.json")


class CertificateDiffers(ErasureError):
    """Another object lies where this certificate belongs."""

    problem = "internal"

    def __init__(self, request_id: str, number: int) -> None:
        super().__init__(f"certificate {number} of {request_id} is another one in the object store")
        self.request_id = request_id
        self.number = number


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a rebuild found: how many came back, and the names of those whose requests are not known any more."""

    count: int = 0
    strange: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateStore:
    """The certificates of every tenant; `lock_end` gives the end of the log's term."""

    locked: ObjectStore
    transactions: Transactions
    lock_end: Callable[[datetime], datetime]

    def store_due(self, tenant_id: int, log_id: str, now: datetime) -> int:
        """Write what is not stored yet; returns how many. Raises: CertificateDiffers, and what the store raises."""
        due = (col(CertificateRow.tenant_id) == tenant_id) & col(CertificateRow.stored_at).is_(None)
        with self.transactions(tenant_id, write=False) as session:
            rows = list(session.exec(select(CertificateRow).where(due).order_by(col(CertificateRow.issued_at))))
        for row in rows:
            key = f"{log_id}/{PREFIX}{row.request_id}/{row.number:04d}-{row.version}.json"
            with suppress(ObjectExists):  # after a crash, or by another process: the bytes decide
                self.locked.put(key, row.body, lock_until=self.lock_end(now))
            if self.locked.get(key) != row.body:
                raise CertificateDiffers(row.request_id, row.number)
            with self.transactions(tenant_id) as session:
                stored = session.get_one(CertificateRow, (tenant_id, row.request_id, row.version, row.number))
                stored.stored_at = now
                session.add(stored)
        return len(rows)

    def restore(self, tenant_id: int, log_id: str, now: datetime) -> Restored:
        """Bring back the certificates of requests that the tables know; names those of other requests."""
        count, strange = 0, []
        for key in self.locked.list(f"{log_id}/{PREFIX}"):
            name = key.removeprefix(f"{log_id}/")
            found = _NAME.fullmatch(name)
            if found is None:
                strange.append(name)
                continue
            request_id, number, version = found[1], int(found[2]), found[3]
            body = self.locked.get(key)
            with self.transactions(tenant_id) as session:
                if session.get(RequestRow, (tenant_id, request_id)) is None or not _is_of(body, request_id, version):
                    strange.append(name)
                    continue
                if session.get(CertificateRow, (tenant_id, request_id, version, number)) is None:
                    said = json.loads(body)["certificate"]
                    row = CertificateRow(
                        tenant_id=tenant_id,
                        request_id=request_id,
                        version=version,
                        number=number,
                        body=body,
                        issued_at=datetime.fromisoformat(said["issued_at"]),
                        stored_at=now,
                    )
                    session.add(row)
                    count += 1
        return Restored(count=count, strange=strange)


def _is_of(body: bytes, request_id: str, version: str) -> bool:
    try:
        said = json.loads(body)["certificate"]
        datetime.fromisoformat(said["issued_at"])
    except (ValueError, KeyError, TypeError):
        return False
    return bool(said.get("request") == request_id and said.get("version") == version)
