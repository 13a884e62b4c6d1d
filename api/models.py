"""The tables of the HTTP layer: answers kept for `Idempotency-Key`.

Guarantees: the kept answer is sealed under a key made from the caller's token and key, neither of which is stored, so
nobody who has the database (and all our keys) can read it. Rows end after 24 hours (`api.idempotency`).
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

from ledger.models import Instant


class IdempotencyRow(SQLModel, table=True):
    """One answered write. `status` 0 means still being answered; `lookup` and `request_digest` are keyed."""

    __tablename__ = "idempotency"
    tenant_id: int = Field(primary_key=True, sa_type=sa.BigInteger)
    lookup: bytes = Field(primary_key=True, sa_type=sa.LargeBinary)
    request_digest: bytes = Field(sa_type=sa.LargeBinary)
    status: int = 0
    body: bytes | None = Field(default=None, sa_type=sa.LargeBinary)
    created_at: datetime = Field(sa_type=Instant)
    __table_args__ = (sa.Index("ix_idempotency_age", "tenant_id", "created_at"),)
