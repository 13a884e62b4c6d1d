"""SQL tables of what humans decide about registrations and people: repeats, merges, changes of scope.

Guarantees: codes, dates, keyed digests and numbers of ours only; what was said lies sealed under the keys of the people
it is about, and goes with the first of them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

from ledger.models import Instant


class ReviewRow(SQLModel, table=True):
    """A repeat of a registration that would change whose an item is, its class or its end: a human decides.

    `wanted` holds only codes, dates, keyed digests and numbers of ours. `decision`: accepted, refused, gone; NULL
    while nobody decided. `sealed`: what was said of a value that waits, then the reason, under the key of the item's
    holder.
    """

    __tablename__ = "registration_review"
    tenant_id: int = Field(primary_key=True, sa_type=sa.BigInteger)
    id: int = Field(primary_key=True, sa_type=sa.BigInteger)
    artifact_id: int = Field(sa_type=sa.BigInteger)
    wanted: dict[str, Any] = Field(sa_type=sa.JSON)
    token_id: str = Field(max_length=32)
    at: datetime = Field(sa_type=Instant)
    decision: str | None = Field(default=None, max_length=16)
    decided_by: str | None = Field(default=None, max_length=128)
    decided_at: datetime | None = Field(default=None, sa_type=Instant)
    sealed: bytes | None = Field(default=None, sa_type=sa.LargeBinary)
    __table_args__ = (sa.Index("ix_review_artifact", "tenant_id", "artifact_id"),)


class MergeRow(SQLModel, table=True):
    """Names said to be one person's, or to be told apart again. `state`: proposed, done, refused.

    `subjects` are the named incarnations, `people` everybody who is or would be one person with them, `shared` those
    that already belong to somebody with another name of the same type: a human says whose they are. `sealed`: reason
    and comment, under the keys of those they are about.
    """

    __tablename__ = "subject_merge"
    tenant_id: int = Field(primary_key=True, sa_type=sa.BigInteger)
    merge_id: str = Field(primary_key=True, max_length=36)
    kind: str = Field(max_length=8)
    state: str = Field(max_length=16)
    subjects: list[int] = Field(sa_type=sa.JSON)
    people: list[int] = Field(sa_type=sa.JSON)
    shared: list[int] = Field(default_factory=list, sa_type=sa.JSON)
    sealed: bytes | None = Field(default=None, sa_type=sa.LargeBinary)
    proposed_by: str = Field(max_length=128)
    proposed_at: datetime = Field(sa_type=Instant)
    decided_by: str | None = Field(default=None, max_length=128)
    decided_at: datetime | None = Field(default=None, sa_type=Instant)
    __table_args__ = (sa.Index("ix_merge_state", "tenant_id", "state"),)


class ScopeReviewRow(SQLModel, table=True):
    """A review of what somebody's data may be used for after a transfer, a merge or a change of role.

    `sealed`: what was said of it, under the keys of `subjects`.
    """

    __tablename__ = "scope_review"
    tenant_id: int = Field(primary_key=True, sa_type=sa.BigInteger)
    review_id: str = Field(primary_key=True, max_length=36)
    change: str = Field(max_length=16)
    subjects: list[int] = Field(sa_type=sa.JSON)
    sealed: bytes | None = Field(default=None, sa_type=sa.LargeBinary)
    owner: str = Field(max_length=128)
    opened_by: str = Field(max_length=128)
    opened_at: datetime = Field(sa_type=Instant)
    due_at: datetime = Field(sa_type=Instant)
    closed_at: datetime | None = Field(default=None, sa_type=Instant)
    closed_by: str | None = Field(default=None, max_length=128)


class ScopeReviewItem(SQLModel, table=True):
    """One copy on a scope review's list. `decision`: keep, quarantine, revoke; NULL while nobody decided."""

    __tablename__ = "scope_review_item"
    tenant_id: int = Field(primary_key=True, sa_type=sa.BigInteger)
    review_id: str = Field(primary_key=True, max_length=36)
    artifact_id: int = Field(primary_key=True, sa_type=sa.BigInteger)
    decision: str | None = Field(default=None, max_length=16)
    decided_by: str | None = Field(default=None, max_length=128)
    decided_at: datetime | None = Field(default=None, sa_type=Instant)
