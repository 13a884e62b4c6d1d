"""SQL tables of retention: named events, holds, runs of sweeps, dispositions; restrictions stand on subjects.

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
    entries: list[int] = Field(default_factory=list, sa_type=_json)
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
    lease_owner: str | None = Field(default=None, max_length=64)
    lease_until: datetime | None = Field(default=None, sa_type=Instant)
    __table_args__ = (sa.Index("ix_sweep_state", "tenant_id", "state", "created_at"),)


class DispositionRow(SQLModel, table=True):
    """An item whose class ends in a review, or that passes set aside: waits for a human, or was decided by one.

    `artifact_id` is 0 where it is a record key, which `key_id` then names.
    `state`: open, quarantined, erase (a run has it), extended, reclassified, released (it changed in quarantine), gone.
    `kept_until` is the end of an extension. `sealed` is the comment; of a quarantine that nobody decided, what the item
    was like.
    """

    __tablename__ = "disposition"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    id: int = Field(primary_key=True, sa_type=_big)
    artifact_id: int = Field(sa_type=_big)
    key_id: str | None = Field(default=None, max_length=32)
    data_class: str = Field(max_length=64)
    rule: str = Field(max_length=24)
    state: str = Field(default="open", max_length=16)
    opened_at: datetime = Field(sa_type=Instant)
    due_at: datetime = Field(sa_type=Instant)
    kept_until: datetime | None = Field(default=None, sa_type=Instant)
    decided_by: str | None = Field(default=None, max_length=128)
    decided_at: datetime | None = Field(default=None, sa_type=Instant)
    entry_id: str | None = Field(default=None, max_length=36)
    sealed: bytes | None = Field(default=None, sa_type=_bytes)
    __table_args__ = (
        sa.Index("ix_disposition_artifact", "tenant_id", "artifact_id"),
        sa.Index("ix_disposition_key", "tenant_id", "key_id"),
        sa.Index("ix_disposition_state", "tenant_id", "state", "id"),
    )


class StoreHoldRow(SQLModel, table=True):
    """A legal hold that was set in an artifact's store, on these versions and no other, or why it could not be.

    `state`: set, absent (nothing is there to be held), refused.
    """

    __tablename__ = "store_hold"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    artifact_id: int = Field(primary_key=True, sa_type=_big)
    store: str = Field(max_length=64)
    state: str = Field(max_length=16)
    versions: list[str] = Field(default_factory=list, sa_type=_json)
    detail: str = Field(max_length=256)
    at: datetime = Field(sa_type=Instant)
    __table_args__ = (sa.Index("ix_store_hold_at", "tenant_id", "at"),)


class ConsentRow(SQLModel, table=True):
    """What a person consented to: of which classes and scopes (none: all), until when, and when it was withdrawn.

    The words are sealed under the person's own key.
    """

    __tablename__ = "consent"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    consent_id: str = Field(primary_key=True, max_length=40)
    subject_no: int = Field(sa_type=_big)
    data_classes: list[str] = Field(default_factory=list, sa_type=_json)
    scopes: list[str] = Field(default_factory=list, sa_type=_json)
    given_at: datetime = Field(sa_type=Instant)
    until: datetime | None = Field(default=None, sa_type=Instant)
    withdrawn_at: datetime | None = Field(default=None, sa_type=Instant)
    sealed: bytes | None = Field(default=None, sa_type=_bytes)
    recorded_at: datetime = Field(sa_type=Instant)
    __table_args__ = (sa.Index("ix_consent_subject", "tenant_id", "subject_no"),)


class KeyHintRow(SQLModel, table=True):
    """When a record key's class ends it, as far as is known: of classes whose clock waits for an event or a consent.

    Written when the key's month is over and again when something happened; a hint by which sweeps find keys.
    """

    __tablename__ = "key_hint"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    key_id: str = Field(primary_key=True, max_length=32)
    ends_at: datetime = Field(sa_type=Instant)
    __table_args__ = (sa.Index("ix_key_hint_ends", "tenant_id", "ends_at", "key_id"),)


class WalkRow(SQLModel, table=True):
    """How far a walk of retention has come: over the months of a class's keys, over events, over new items."""

    __tablename__ = "retention_walk"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    what: str = Field(primary_key=True, max_length=80)
    place: str = Field(default="", max_length=64)
    at: datetime | None = Field(default=None, sa_type=Instant)


class HintRow(SQLModel, table=True):
    """The version of a class under which its items' end dates were last worked out, so that a change is seen once."""

    __tablename__ = "retention_hint"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    data_class: str = Field(primary_key=True, max_length=64)
    version: int


class TickRow(SQLModel, table=True):
    """A tick of a job is a unique (job, fire time): two schedulers do the work once."""

    __tablename__ = "tick"
    job: str = Field(primary_key=True, max_length=64)
    fire_time: datetime = Field(primary_key=True, sa_type=Instant)
    owner: str = Field(max_length=64)
    done_at: datetime | None = Field(default=None, sa_type=Instant)
