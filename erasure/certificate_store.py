"""Keeps every issued certificate in the locked store as well, for the term of the log, and brings it back from there.

Guarantees: the table's bytes are the certificate; the object is written once, under the lock, after the table has it,
and read back before the row counts as stored. A crash or a store that is away leaves a row without `stored_at`, which
the next pass takes up. Its name carries its digest: a database that was restored issues a request's certificate anew,
and both stay. Certificates name nobody, so nothing in them has to end earlier. Not here: what they say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col

from erasure.errors import ErasureError
from erasure.models import CertificateRow, RequestRow
from ledger.errors import ObjectExists
from ledger.head import Transactions
from ledger.objects import ObjectStore

PREFIX = "certificate/"
NAME = re.compile(r"certificate/([A-Za-z0-9_-]{1,40})/([0-9]{4,})-(interim|final)-([0-9a-f]{16})\.json")
"""The name of a certificate's object: request, number, version, the first digits of its SHA-256."""


class CertificateDiffers(ErasureError):
    """Another object lies where this certificate belongs."""

    problem = "internal"

    def __init__(self, request_id: str, number: int) -> None:
        super().__init__(f"certificate {number} of {request_id} is another one in the object store")
        self.request_id = request_id
        self.number = number


class CertificateKey(NamedTuple):
    """Which certificate of a tenant, without what it says."""

    tenant_id: int
    request_id: str
    version: str
    number: int


_KEY = tuple(col(getattr(CertificateRow, name)) for name in CertificateKey._fields)


def newest_certificate(
    session: Session, tenant_id: int, request_id: str, version: str | None = None
) -> CertificateKey | None:
    """The newest certificate of a request, or the newest of a version.

    By its number alone: to sort certificates a database takes all of each in hand, and one may have 60 megabytes.
    """
    mine = sa.and_(col(CertificateRow.tenant_id) == tenant_id, col(CertificateRow.request_id) == request_id)
    query = sa.select(*_KEY).where(mine if version is None else sa.and_(mine, col(CertificateRow.version) == version))
    found = session.execute(query.order_by(col(CertificateRow.number).desc()).limit(1)).first()
    return None if found is None else CertificateKey._make(found)


def body_of(session: Session, key: CertificateKey) -> bytes:
    """The certificate as it was signed."""
    same = (column == value for column, value in zip(_KEY, key, strict=True))
    return bytes(session.execute(sa.select(col(CertificateRow.body)).where(*same)).scalar_one())


def name_of(key: CertificateKey | CertificateRow, body: bytes) -> str:
    """The name of a certificate's object below the log's prefix."""
    return f"{PREFIX}{key.request_id}/{key.number:04d}-{key.version}-{sha256(body).hexdigest()[:16]}.json"


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
            rows = session.execute(sa.select(*_KEY).where(due).order_by(col(CertificateRow.issued_at))).all()
        for row in rows:
            key = CertificateKey._make(row)
            self._store(key, log_id, now)
            with self.transactions(tenant_id) as session:
                stored = sa.update(CertificateRow).where(*(one == value for one, value in zip(_KEY, key, strict=True)))
                session.connection().execute(stored.values(stored_at=now))
        return len(rows)

    def _store(self, key: CertificateKey, log_id: str, now: datetime) -> None:
        """Write one and read it back; of a large one no two are in memory."""
        with self.transactions(key.tenant_id, write=False) as session:
            body = body_of(session, key)
        name, digest = f"{log_id}/{name_of(key, body)}", sha256(body).digest()
        with suppress(ObjectExists):  # after a crash, or by another process: the bytes decide
            self.locked.put(name, body, lock_until=self.lock_end(now))
        del body
        if sha256(self.locked.get(name)).digest() != digest:
            raise CertificateDiffers(key.request_id, key.number)

    def restore(self, tenant_id: int, log_id: str, now: datetime) -> Restored:
        """Bring back the certificates of requests that the tables know; names those of other requests.

        Of two with one number the younger comes back; the other stays where it is.
        """
        strange: list[str] = []
        newest: dict[tuple[str, str, int], CertificateRow] = {}
        for key in self.locked.list(f"{log_id}/{PREFIX}"):
            name = key.removeprefix(f"{log_id}/")
            row = self._row_of(tenant_id, name, self.locked.get(key), now)
            if row is None:
                strange.append(name)
                continue
            place = (row.request_id, row.version, row.number)
            if place not in newest or newest[place].issued_at < row.issued_at:
                newest[place] = row
        count = 0
        for (request_id, version, number), row in newest.items():
            with self.transactions(tenant_id) as session:
                if session.get(CertificateRow, (tenant_id, request_id, version, number)) is None:
                    session.add(row)
                    count += 1
        return Restored(count=count, strange=strange)

    def _row_of(self, tenant_id: int, name: str, body: bytes, now: datetime) -> CertificateRow | None:
        """The row of a stored certificate; None for what is none, or of a request that nobody knows."""
        found = NAME.fullmatch(name)
        if found is None or not _is_of(body, found[1], found[3]):
            return None
        with self.transactions(tenant_id, write=False) as session:
            if session.get(RequestRow, (tenant_id, found[1])) is None:
                return None
        return CertificateRow(
            tenant_id=tenant_id,
            request_id=found[1],
            version=found[3],
            number=int(found[2]),
            body=body,
            issued_at=datetime.fromisoformat(json.loads(body)["certificate"]["issued_at"]),
            stored_at=now,
        )


def _is_of(body: bytes, request_id: str, version: str) -> bool:
    try:
        said = json.loads(body)["certificate"]
        datetime.fromisoformat(said["issued_at"])
    except (ValueError, KeyError, TypeError):
        return False
    return bool(said.get("request") == request_id and said.get("version") == version)
