"""SQL tables of requests and of the work they cause: the truth about every copy.

Guarantees: what a person said (identifiers, notes) and what a plan captured (locators, canaries) is sealed under the
request's own key, which is destroyed when the footprint ends. A sweep of retention uses the same `CopyRow`s.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

from ledger.models import Instant

_big = sa.BigInteger
_bytes = sa.LargeBinary
_json = sa.JSON


class RequestRow(SQLModel, table=True):
    """A rights request. `request_no` is the vault's owner of the request key; `sealed` holds what the person said."""

    __tablename__ = "request"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    request_id: str = Field(primary_key=True, max_length=40)
    request_no: int = Field(sa_type=_big)
    right: str = Field(max_length=16)
    regulation: str = Field(max_length=8)
    jurisdiction: str | None = Field(default=None, max_length=16)
    timezone: str = Field(max_length=64)
    state: str = Field(max_length=32)
    subjects: list[int] = Field(default_factory=list, sa_type=_json)
    sealed: bytes | None = Field(default=None, sa_type=_bytes)
    received_at: datetime = Field(sa_type=Instant)
    due_at: datetime = Field(sa_type=Instant)
    acknowledge_by: datetime | None = Field(default=None, sa_type=Instant)
    extended_until: datetime | None = Field(default=None, sa_type=Instant)
    answered_at: datetime | None = Field(default=None, sa_type=Instant)
    created_by: str = Field(max_length=128)
    identity_by: list[str] = Field(default_factory=list, sa_type=_json)
    approvals: list[dict[str, Any]] = Field(default_factory=list, sa_type=_json)
    plan_hash: str | None = Field(default=None, max_length=64)
    duplicate_of: str | None = Field(default=None, max_length=40)
    fence_at: datetime | None = Field(default=None, sa_type=Instant)
    step: str | None = Field(default=None, max_length=32)
    lease_owner: str | None = Field(default=None, max_length=64)
    lease_until: datetime | None = Field(default=None, sa_type=Instant)
    details: dict[str, Any] = Field(default_factory=dict, sa_type=_json)
    created_at: datetime = Field(sa_type=Instant)
    completed_at: datetime | None = Field(default=None, sa_type=Instant)
    final_due_at: datetime | None = Field(default=None, sa_type=Instant)
    __table_args__ = (sa.Index("ix_request_state", "tenant_id", "state", "due_at"),)


class RequestSubject(SQLModel, table=True):
    """Which requests name a person: by keyed look-up only, so that the desk finds them before identity is verified."""

    __tablename__ = "request_subject"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    lookup: bytes = Field(primary_key=True, sa_type=_bytes)
    request_id: str = Field(primary_key=True, max_length=40)


class RequestEvent(SQLModel, table=True):
    """One line of a request's history. `entry_id` is its entry in the record."""

    __tablename__ = "request_event"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    request_id: str = Field(primary_key=True, max_length=40)
    n: int = Field(primary_key=True)
    at: datetime = Field(sa_type=Instant)
    event: str = Field(max_length=64)
    actor: str = Field(max_length=128)
    detail: dict[str, Any] = Field(default_factory=dict, sa_type=_json)
    entry_id: str | None = Field(default=None, max_length=36)


class CopyRow(SQLModel, table=True):
    """One line of a plan: an artifact, a key or an entry's part, with its action, its state and its evidence.

    `owner` is the request or the sweep. `state` is one of API.md §6. `sealed` is the capture (locator, identifiers,
    canaries) under the request key. `depth` orders the work: leaves (largest depth) first.

    No index holds what an execution changes, and pages leave room for a second version of each row: PostgreSQL then
    writes the change beside the row and touches no index. None but the primary key begins with the tenant: without
    statistics PostgreSQL may take any that does for a copy by its number, and then reads all of the tenant's.
    """

    __tablename__ = "copy"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    owner: str = Field(primary_key=True, max_length=40)
    copy_no: int = Field(primary_key=True)
    kind: str = Field(max_length=16)
    ref: str = Field(max_length=64)
    artifact_id: int | None = Field(default=None, sa_type=_big)
    key_id: str | None = Field(default=None, max_length=32)
    entry_idx: int | None = Field(default=None, sa_type=_big)
    data_class: str = Field(max_length=64)
    store: str = Field(max_length=64)
    action: str = Field(max_length=16)
    rule: str = Field(max_length=24)
    because: list[dict[str, Any]] = Field(default_factory=list, sa_type=_json)
    until: datetime | None = Field(default=None, sa_type=Instant)
    path: list[str] = Field(default_factory=list, sa_type=_json)
    collateral: dict[str, Any] | None = Field(default=None, sa_type=_json)
    depth: int = 0
    required: str = Field(max_length=8)
    sealed: bytes | None = Field(default=None, sa_type=_bytes)
    state: str = Field(default="pending", max_length=24)
    level: str | None = Field(default=None, max_length=4)
    key_state: str | None = Field(default=None, max_length=16)
    method: str | None = None
    detail: str | None = None
    attempts: int = 0
    started_at: datetime | None = Field(default=None, sa_type=Instant)
    finished_at: datetime | None = Field(default=None, sa_type=Instant)
    verified_at: datetime | None = Field(default=None, sa_type=Instant)
    verified_how: str | None = None
    residual_until: str | None = None
    evidence: str | None = Field(default=None, max_length=36)
    verify_evidence: str | None = Field(default=None, max_length=36)
    __table_args__ = (
        sa.Index("ix_copy_artifact", "artifact_id", "tenant_id"),
        {"postgresql_with": {"fillfactor": 50}},
    )


class ConnectorTask(SQLModel, table=True):
    """Work in a store that lies in an agent's process. Numbers of copies only: where they lie stays sealed with them.

    `claims` are digests of the claims that were handed out; `again` marks the look of the quiet period.
    """

    __tablename__ = "connector_task"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    task_id: str = Field(primary_key=True, max_length=40)
    owner: str = Field(max_length=40)
    store: str = Field(max_length=64)
    work: str = Field(max_length=8)
    level: str = Field(max_length=4)
    again: bool = False
    copies: list[int] = Field(default_factory=list, sa_type=_json)
    before: dict[str, str] = Field(default_factory=dict, sa_type=_json)
    claims: list[str] = Field(default_factory=list, sa_type=_json)
    claimed_by: str | None = Field(default=None, max_length=128)
    claimed_until: datetime | None = Field(default=None, sa_type=Instant)
    created_at: datetime = Field(sa_type=Instant)
    due_at: datetime = Field(sa_type=Instant)
    overdue_at: datetime | None = Field(default=None, sa_type=Instant)
    done_at: datetime | None = Field(default=None, sa_type=Instant)
    __table_args__ = (
        sa.Index("ix_connector_task_open", "tenant_id", "done_at", "store"),
        sa.Index("ix_connector_task_owner", "tenant_id", "owner"),
    )


class CertificateRow(SQLModel, table=True):
    """An issued certificate. Never changed; `final` supersedes `interim`. Its signed JSON lies in `CertificatePiece`s.

    `size`: how many bytes they have together. `stored_at`: when the locked store was seen to hold the same bytes.
    """

    __tablename__ = "certificate"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    request_id: str = Field(primary_key=True, max_length=40)
    version: str = Field(primary_key=True, max_length=8)
    number: int = Field(primary_key=True)
    size: int = Field(sa_type=_big)
    issued_at: datetime = Field(sa_type=Instant)
    stored_at: datetime | None = Field(default=None, sa_type=Instant)


class CertificatePiece(SQLModel, table=True):
    """The bytes of a certificate as they were sent, from `n` pieces on; written in the transaction of its row."""

    __tablename__ = "certificate_piece"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    request_id: str = Field(primary_key=True, max_length=40)
    version: str = Field(primary_key=True, max_length=8)
    number: int = Field(primary_key=True)
    n: int = Field(primary_key=True)
    data: bytes = Field(sa_type=_bytes)
