"""`Idempotency-Key`: the same key and body of one token on one path get the same answer for 24 hours.

Guarantees: a write runs once; while it runs, a second one is told so (409, `Retry-After`); another body under the same
key is 409. The kept answer is sealed under a key made from token and Idempotency-Key, which only the caller has.
Answers that say nothing about the write (401, 403, 415, 429, 5xx) are not kept, so a retry runs. What happens if we
crash between the write and keeping its answer: the key stays taken for `STALE`, then a retry runs the (idempotent)
write again. A write that was slower than that leaves the key to the retry which has it now.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlmodel import Session, col

from api.database import Database
from api.errors import Problem
from api.models import IdempotencyRow
from vault.envelope import seal_small, unseal_small

KEPT = timedelta(hours=24)
STALE = timedelta(seconds=60)
MAX_KEY = 255
_NOT_KEPT = frozenset({401, 403, 415, 429})
_LABEL = "idempotency"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One keyed write: where its answer is kept, and the key that opens it."""

    tenant_id: int
    lookup: bytes
    digest: bytes
    secret: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """An answer as it was given."""

    status: int
    media_type: str
    body: bytes


def attempt_of(*, tenant_id: int, token: str, target: str, key: str, body: bytes) -> Attempt:
    """Returns the attempt for a token, a method with path and query, a key and a body.

    Raises:
        Problem: `invalid` for a key that is empty, too long or not printable ASCII.
    """
    if not 0 < len(key) <= MAX_KEY or not key.isascii() or not key.isprintable():
        raise Problem("invalid", f"Idempotency-Key is 1 to {MAX_KEY} printable ASCII characters")
    root = hmac.digest(token.encode(), f"{target}\n{key}".encode(), "sha256")
    return Attempt(
        tenant_id=tenant_id,
        lookup=hmac.digest(root, b"lookup", "sha256"),
        digest=hmac.digest(root, hashlib.sha256(body).digest(), "sha256"),
        secret=hmac.digest(root, b"seal", "sha256"),
    )


def begin(database: Database, attempt: Attempt, now: datetime) -> Kept | None:
    """Takes the key and returns None, or returns the answer kept under it.

    Raises:
        Problem: `idempotency-conflict` or `idempotency-in-progress`.
    """
    with database.transaction(attempt.tenant_id) as session:
        row = session.get(IdempotencyRow, (attempt.tenant_id, attempt.lookup), with_for_update=True)
        if row is not None and row.created_at + KEPT > now:
            if not hmac.compare_digest(row.request_digest, attempt.digest):
                raise Problem("idempotency-conflict")
            if row.status and row.body is not None:
                return _open(attempt, row.status, row.body)
            if row.created_at + STALE > now:
                raise Problem("idempotency-in-progress")
        if row is not None:
            session.delete(row)
            session.flush()
        if not _take(session, attempt, now):
            raise Problem("idempotency-in-progress")
    return None


def _take(session: Session, attempt: Attempt, now: datetime) -> bool:
    """Inserts the row unless another process was quicker."""
    values = {
        "tenant_id": attempt.tenant_id,
        "lookup": attempt.lookup,
        "request_digest": attempt.digest,
        "status": 0,
        "created_at": now,
    }
    insert = sa.insert(IdempotencyRow).values(**values)
    try:
        with session.begin_nested():
            session.execute(insert)
    except sa.exc.IntegrityError:
        return False
    return True


def finish(database: Database, attempt: Attempt, answer: Kept, begun: datetime) -> None:
    """Keeps the answer, or gives the key back where it says nothing about the write; `begun` is the time of `begin`."""
    mine = sa.and_(
        col(IdempotencyRow.tenant_id) == attempt.tenant_id,
        col(IdempotencyRow.lookup) == attempt.lookup,
        col(IdempotencyRow.created_at) == begun,
    )
    with database.transaction(attempt.tenant_id) as session:
        if answer.status >= 500 or answer.status in _NOT_KEPT:  # noqa: PLR2004 - a class of statuses
            session.execute(sa.delete(IdempotencyRow).where(mine))
            return
        plain = answer.media_type.encode() + b"\n" + answer.body
        sealed = seal_small(attempt.secret, plain, tenant="", label=_LABEL, name=attempt.lookup.hex())
        session.execute(sa.update(IdempotencyRow).where(mine).values(status=answer.status, body=sealed))


def _open(attempt: Attempt, status: int, sealed: bytes) -> Kept:
    plain = unseal_small(attempt.secret, sealed, tenant="", label=_LABEL, name=attempt.lookup.hex())
    media_type, _, body = plain.partition(b"\n")
    return Kept(status=status, media_type=media_type.decode(), body=body)


def expire(database: Database, tenant_id: int, now: datetime) -> None:
    """Deletes answers older than 24 hours."""
    old = (col(IdempotencyRow.tenant_id) == tenant_id) & (col(IdempotencyRow.created_at) < now - KEPT)
    with database.transaction(tenant_id) as session:
        session.execute(sa.delete(IdempotencyRow).where(old))
