"""Certificates in the tables: a row, and the signed bytes in pieces of a megabyte.

Guarantees: row and pieces are written in one transaction, and read as what was signed or not at all: pieces that do not
add up to the row's size, or a row of no bytes, are refused. However large a certificate is, a piece of it is in memory
at a time. The caller commits. Not here: what certificates say, and the locked store that has them too.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from typing import NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col

from erasure.errors import ErasureError
from erasure.models import CertificatePiece, CertificateRow
from erasure.signed_file import PIECE, SignedFile


class CertificateCut(ErasureError):
    """The tables do not hold all of a certificate."""

    problem = "internal"

    def __init__(self, key: CertificateKey, expected: int, got: int) -> None:
        super().__init__(f"certificate {key.number} of {key.request_id}: expected {expected} bytes, got {got}")
        self.key = key


class CertificateKey(NamedTuple):
    """Which certificate of a tenant, without what it says."""

    tenant_id: int
    request_id: str
    version: str
    number: int


_KEY = tuple(col(getattr(CertificateRow, name)) for name in CertificateKey._fields)
_PIECE_KEY = tuple(col(getattr(CertificatePiece, name)) for name in CertificateKey._fields)


def is_certificate(key: CertificateKey) -> sa.ColumnElement[bool]:
    """The condition for a certificate's row."""
    return sa.and_(*(column == value for column, value in zip(_KEY, key, strict=True)))


def newest_certificate(
    session: Session, tenant_id: int, request_id: str, version: str | None = None
) -> CertificateKey | None:
    """The newest certificate of a request, or the newest of a version."""
    mine = sa.and_(col(CertificateRow.tenant_id) == tenant_id, col(CertificateRow.request_id) == request_id)
    query = sa.select(*_KEY).where(mine if version is None else sa.and_(mine, col(CertificateRow.version) == version))
    found = session.execute(query.order_by(col(CertificateRow.number).desc()).limit(1)).first()
    return None if found is None else CertificateKey._make(found)


def certificates_where(session: Session, where: sa.ColumnElement[bool]) -> list[CertificateKey]:
    """The certificates of a condition, in the order in which they were issued."""
    query = sa.select(*_KEY).where(where).order_by(col(CertificateRow.issued_at), *_KEY)
    return [CertificateKey._make(row) for row in session.execute(query)]


def add_certificate(
    session: Session, key: CertificateKey, signed: SignedFile, issued_at: datetime, stored_at: datetime | None = None
) -> str:
    """Write a certificate, and return its SHA-256 in hexadecimal digits."""
    session.add(CertificateRow(**key._asdict(), size=signed.size, issued_at=issued_at, stored_at=stored_at))
    session.flush()
    digest = sha256()
    for n, piece in enumerate(signed.pieces()):
        digest.update(piece)
        session.connection().execute(sa.insert(CertificatePiece), {**key._asdict(), "n": n, "data": piece})
    return digest.hexdigest()


def holds_whole(session: Session, key: CertificateKey) -> bool:
    """Whether the tables hold a certificate, and all of its bytes."""
    if session.execute(sa.select(_KEY[0]).where(is_certificate(key))).first() is None:
        return False
    try:
        digest_of(session, key)
    except CertificateCut:
        return False
    return True


def remove_certificate(session: Session, key: CertificateKey) -> None:
    """Remove what there is of a certificate: of one that is cut, before it comes back whole."""
    pieces = (column == value for column, value in zip(_PIECE_KEY, key, strict=True))
    session.connection().execute(sa.delete(CertificatePiece).where(*pieces))
    session.connection().execute(sa.delete(CertificateRow).where(is_certificate(key)))


def open_certificate(session: Session, key: CertificateKey) -> SignedFile:
    """The certificate as it was signed, in a file of its own that outlives the session. Raises: CertificateCut."""
    return SignedFile.of(_pieces(session, key))


def digest_of(session: Session, key: CertificateKey) -> str:
    """The SHA-256 of a certificate's bytes, in hexadecimal digits. Raises: CertificateCut."""
    digest = sha256()
    for piece in _pieces(session, key):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(session: Session, key: CertificateKey) -> Iterator[bytes]:
    size = session.execute(sa.select(col(CertificateRow.size)).where(is_certificate(key))).scalar_one()
    query = sa.select(col(CertificatePiece.data)).where(
        *(column == value for column, value in zip(_PIECE_KEY, key, strict=True))
    )
    got = 0
    for n in range(-(-size // PIECE)):
        piece = session.execute(query.where(col(CertificatePiece.n) == n)).scalar()
        if piece is None:
            break
        got += len(piece)
        yield bytes(piece)
    if got != size or not size:
        raise CertificateCut(key, size, got)
