"""SQL tables of retention: named events, holds, restrictions are on subjects, runs of sweeps.

Guarantees: selectors are kept resolved (surrogates and HMACs), free text sealed. Not here: any decision; those are
made by `retention.decide` at the moment of use.
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


class EventRow(SQLModel, table=True):
    """A named event with one key (`role=role-14` as HMAC): the start of a clock."""

    __tablename__ = "retention_event"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    id: int = Field(primary_key=True, sa_type=_big)
    name: str = Field(max_length=64)
    lookup: bytes = Field(sa_type=_bytes)
    at: datetime = Field(sa_type=Instant)
    subject_no: int | None = Field(default=None, sa_type=_big)
    recorded_at: datetime = Field(sa_type=Instant)
    __table_args__ = (sa.Index("ix_event_name", "tenant_id", "name", "lookup"),)


class HoldRow(SQLModel, table=True):
    """A legal stop. Empty selector lists mean «not by this»; a hold with no selector at all is refused."""

    __tablename__ = "hold"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    hold_id: str = Field(primary_key=True, max_length=40)
    name: str = Field(max_length=128)
    sealed: bytes | None = Field(default=None, sa_type=_bytes)
    subjects: list[int] = Field(default_factory=list, sa_type=_json)
    data_classes: list[str] = Field(default_factory=list, sa_type=_json)
    scopes: list[str] = Field(default_factory=list, sa_type=_json)
    artifacts: list[int] = Field(default_factory=list, sa_type=_json)
    created_by: str = Field(max_length=128)
    created_at: datetime = Field(sa_type=Instant)
    released_by: str | None = Field(default=None, max_length=128)
    released_at: datetime | None = Field(default=None, sa_type=Instant)


class SweepRow(SQLModel, table=True):
    """One pass of retention.

    `state`: planned, awaiting_approval (the brake), executing, verifying, completed, stopped.
    """

    __tablename__ = "sweep"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    sweep_id: str = Field(primary_key=True, max_length=40)
    state: str = Field(max_length=24)
    at: datetime = Field(sa_type=Instant)
    dry_run: bool = False
    plan_hash: str | None = Field(default=None, max_length=64)
    counts: dict[str, Any] = Field(default_factory=dict, sa_type=_json)
    brake: dict[str, Any] | None = Field(default=None, sa_type=_json)
    created_by: str = Field(max_length=128)
    approved_by: str | None = Field(default=None, max_length=128)
    created_at: datetime = Field(sa_type=Instant)
    finished_at: datetime | None = Field(default=None, sa_type=Instant)


class TickRow(SQLModel, table=True):
    """A tick of a job is a unique (job, fire time): two schedulers do the work once."""

    __tablename__ = "tick"
    job: str = Field(primary_key=True, max_length=64)
    fire_time: datetime = Field(primary_key=True, sa_type=Instant)
    owner: str = Field(max_length=64)
    done_at: datetime | None = Field(default=None, sa_type=Instant)
