"""Keeps every issued certificate in the locked store as well, for the term of the log, and brings it back from there.

Guarantees: the table's bytes are the certificate; the object is written once, under the lock, after the table has it,
and read back before the row counts as stored. A crash or a store that is away leaves a row without `stored_at`, which
the next pass takes up; what is cut or differs holds up no other, and every pass names the first of it. Its name carries
its digest: a database that was restored issues a request's certificate anew, and both stay. Certificates name nobody,
so nothing in them has to end earlier. A large one is written from its file and read in pieces. Not here: what they say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Protocol

import msgspec
import sqlalchemy as sa
from sqlmodel import Session, col

from erasure.certificate_rows import (
    CertificateCut,
    CertificateKey,
    add_certificate,
    certificates_where,
    holds_whole,
    is_certificate,
    open_certificate,
    remove_certificate,
)
from erasure.errors import ErasureError
from erasure.models import CertificateRow, RequestRow
from erasure.signed_file import SignedFile
from ledger.errors import ObjectExists
from ledger.head import Transactions
from ledger.objects import ObjectStore

PREFIX = "certificate/"
NAME = re.compile(r"certificate/([A-Za-z0-9_-]{1,40})/([0-9]{4,})-(interim|final)-([0-9a-f]{16})\.json")
"""The name of a certificate's object: request, number, version, the first digits of its SHA-256."""
_AT_ONCE = 8 << 20
"""Bytes asked of the store at once."""


class CertificateDiffers(ErasureError):
    """Another object lies where this certificate belongs."""

    problem = "internal"

    def __init__(self, request_id: str, number: int) -> None:
        super().__init__(f"certificate {number} of {request_id} is another one in the object store")
        self.request_id = request_id
        self.number = number


def name_of(key: CertificateKey, sha256: str) -> str:
    """The name of a certificate's object below the log's prefix."""
    return f"{PREFIX}{key.request_id}/{key.number:04d}-{key.version}-{sha256[:16]}.json"


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
        """Write what is not stored yet; returns how many.

        Raises: CertificateDiffers and CertificateCut, of the first that is broken, once all others are stored; and at
        once what the store raises.
        """
        due = (col(CertificateRow.tenant_id) == tenant_id) & col(CertificateRow.stored_at).is_(None)
        with self.transactions(tenant_id, write=False) as session:
            keys = certificates_where(session, due)
        broken: list[CertificateCut | CertificateDiffers] = []
        for key in keys:
            try:
                self._store(key, log_id, now)
            except (CertificateCut, CertificateDiffers) as error:
                broken.append(error)
                continue
            with self.transactions(tenant_id) as session:
                stored = sa.update(CertificateRow).where(is_certificate(key)).values(stored_at=now)
                session.connection().execute(stored)
        if broken:
            raise broken[0]
        return len(keys)

    def _store(self, key: CertificateKey, log_id: str, now: datetime) -> None:
        """Write one, and read it back in pieces."""
        with self.transactions(key.tenant_id, write=False) as session:
            signed = open_certificate(session, key)
        with signed:
            digest = signed.sha256()
            name = f"{log_id}/{name_of(key, digest)}"
            with suppress(ObjectExists):  # after a crash, or by another process: the bytes decide
                self.locked.put(name, signed.view(), lock_until=self.lock_end(now))
        if digest_in(self.locked, name) != digest:
            raise CertificateDiffers(key.request_id, key.number)

    def restore(self, tenant_id: int, log_id: str, now: datetime) -> Restored:
        """Bring back the certificates of requests that the tables know; names those of other requests.

        One that is cut in the tables comes back too. Of two with one number the younger does; the other stays where it
        is.
        """
        strange: list[str] = []
        by_place: dict[tuple[str, ...], list[str]] = {}
        for key in self.locked.list(f"{log_id}/{PREFIX}"):
            name = key.removeprefix(f"{log_id}/")
            found = NAME.fullmatch(name)
            if found is None or not self._is_known(tenant_id, found[1]):
                strange.append(name)
                continue
            by_place.setdefault(found.group(1, 3, 2), []).append(name)
        count = 0
        for (request_id, version, number), names in by_place.items():
            place = CertificateKey(tenant_id, request_id, version, int(number))
            unlike, is_back = self._bring_back(place, log_id, names, now)
            strange += unlike
            count += is_back
        return Restored(count=count, strange=strange)

    def open(self, session: Session, key: CertificateKey, log_id: str) -> SignedFile:
        """The certificate as the tables hold it; where they have not all of it, its object. Raises: CertificateCut."""
        try:
            return open_certificate(session, key)
        except CertificateCut:
            issued_at = session.get_one(CertificateRow, tuple(key)).issued_at
            place = f"{log_id}/{name_of(key, '')}".removesuffix(".json")
            for name in self.locked.list(place):
                signed = SignedFile.of(pieces_of(self.locked, name))
                if name == f"{log_id}/{name_of(key, signed.sha256())}" and _issued_at(signed, key) == issued_at:
                    return signed
                signed.close()
            raise

    def _is_known(self, tenant_id: int, request_id: str) -> bool:
        with self.transactions(tenant_id, write=False) as session:
            return session.get(RequestRow, (tenant_id, request_id)) is not None

    def _bring_back(
        self, key: CertificateKey, log_id: str, names: Sequence[str], now: datetime
    ) -> tuple[list[str], bool]:
        """Bring back the youngest of the objects of one place; which are no certificate of it, and whether one came."""
        unlike: list[str] = []
        with ExitStack() as stack:
            youngest: tuple[datetime, SignedFile] | None = None
            for name in names:
                signed = stack.enter_context(SignedFile.of(pieces_of(self.locked, f"{log_id}/{name}")))
                issued_at = _issued_at(signed, key)
                if issued_at is None:
                    unlike.append(name)
                elif youngest is None or youngest[0] < issued_at:
                    youngest = issued_at, signed
            if youngest is None:
                return unlike, False
            with self.transactions(key.tenant_id) as session:
                if holds_whole(session, key):
                    return unlike, False
                remove_certificate(session, key)
                add_certificate(session, key, youngest[1], youngest[0], stored_at=now)
        return unlike, True


def digest_in(store: Ranges, name: str) -> str:
    """The SHA-256 of an object read in pieces, in hexadecimal digits. Raises: what the store raises."""
    digest = sha256()
    for piece in pieces_of(store, name):
        digest.update(piece)
    return digest.hexdigest()


class Ranges(Protocol):
    """A store of objects, as far as reading them in ranges goes."""

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of a range, fewer at the end."""


def pieces_of(store: Ranges, name: str) -> Iterator[bytes]:
    """An object's bytes, some megabytes at a time. Raises: what the store raises."""
    offset = 0
    while piece := store.get(name, offset=offset, length=_AT_ONCE):
        yield piece
        offset += len(piece)
        if len(piece) < _AT_ONCE:
            return


class _Said(msgspec.Struct):
    """Of a certificate, what tells which one it is."""

    request: str
    version: str
    issued_at: str


class _Signed(msgspec.Struct):
    certificate: _Said


def _issued_at(signed: SignedFile, key: CertificateKey) -> datetime | None:
    """When a certificate was issued; None for what is none, or none of this request and version."""
    try:
        said = msgspec.json.decode(signed.view(), type=_Signed).certificate
        issued_at = datetime.fromisoformat(said.issued_at)
    except (ValueError, RecursionError):
        return None
    return issued_at if (said.request, said.version) == (key.request_id, key.version) else None
