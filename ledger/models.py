"""SQL tables of the ledger: the log's head, a rebuildable index of entries, the outbox and the side-effect ledger.

Guarantees: everything here but `OutboxRow` and `ActionRow` can be rebuilt from the bucket's `batch/` objects.
Not here: any content, any identifier of a caller. Every table is keyed by tenant first; PostgreSQL adds row-level
security in the first migration. Tables are append-only in meaning: a new meaning is a new column (STYLE rule 31).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlmodel import Field, SQLModel

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(value: datetime) -> int:
    """Return the whole microseconds of an aware time since 1970. Raises: ValueError for a naive one."""
    if value.tzinfo is None:
        message = "a naive datetime reached the database; pass an aware UTC one"
        raise ValueError(message)
    since = value - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


class Instant(sa.types.TypeDecorator[datetime]):
    """An aware UTC instant as integer microseconds since 1970, so that both databases compare and sort it alike."""

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Microseconds since 1970; a naive datetime is refused."""
        del dialect
        return None if value is None else microseconds(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """The aware UTC datetime."""
        del dialect
        return None if value is None else _EPOCH + timedelta(microseconds=int(value))


class LogState(SQLModel, table=True):
    """The head of one tenant's log as this database knows it; the bucket is the arbiter."""

    __tablename__ = "log_state"
    tenant_id: int = Field(primary_key=True, sa_type=sa.BigInteger)
    log_id: str = Field(max_length=32)
    origin: str = Field(max_length=255)
    size: int = Field(default=0, sa_type=sa.BigInteger)
    batch_first: int | None = Field(default=None, sa_type=sa.BigInteger)
    batch_count: int = 0
    batch_digest: bytes = Field(default=b"", sa_type=sa.LargeBinary)
    previous: bytes = Field(default=b"\0" * 32, sa_type=sa.LargeBinary)
    frontier: bytes = Field(default=b"", sa_type=sa.LargeBinary)
    checkpoint_size: int = Field(default=0, sa_type=sa.BigInteger)
    checkpoint_digest: bytes = Field(default=b"", sa_type=sa.LargeBinary)
    checkpoint_at: datetime | None = Field(default=None, sa_type=Instant)
    fence: int = Field(default=0, sa_type=sa.BigInteger)
    outbox_counter: int = Field(default=0, sa_type=sa.BigInteger)
    read_only: str | None = None


class LogLease(SQLModel, table=True):
    """Who may sequence all logs of this database now; `fence` grows with every change of hands."""

    __tablename__ = "log_lease"
    name: str = Field(primary_key=True, max_length=32)
    owner: str = Field(max_length=64)
    until: datetime = Field(sa_type=Instant)
    fence: int = Field(sa_type=sa.BigInteger)


class StagedRow(SQLModel, table=True):
    """Sealed entries that a process without the lease hands to the one that has it, and what became of them.

    Nothing in it is acknowledged, so losing it loses nothing. `drafts` is emptied when `answer` is written; ids sort by
    the time of staging. Ciphertext is in the bucket already.
    """

    __tablename__ = "staged"
    tenant_id: int = Field(primary_key=True, sa_type=sa.BigInteger)
    staged_id: str = Field(primary_key=True, max_length=36)
    entries: int
    drafts: bytes = Field(sa_type=sa.LargeBinary)
    answer: bytes | None = Field(default=None, sa_type=sa.LargeBinary)
    at: datetime = Field(sa_type=Instant)
    answered_at: datetime | None = Field(default=None, sa_type=Instant)


class LogKnock(SQLModel, table=True):
    """Tells the lease holder which log has something to do, so that it need not ask every log. Of no tenant."""

    __tablename__ = "log_knock"
    knock_id: str = Field(primary_key=True, max_length=36)
    log_tenant: int = Field(sa_type=sa.BigInteger)
    wants: str = Field(max_length=16)


class LogStream(SQLModel, table=True):
    """A stream of the record under its random id, with the next position. The caller's name is in the registry."""

    __tablename__ = "log_stream"
    tenant_id: int = Field(primary_key=True, sa_type=sa.BigInteger)
    stream_no: int = Field(primary_key=True, sa_type=sa.BigInteger)
    stream_id: str = Field(max_length=32)
    position: int = Field(default=0, sa_type=sa.BigInteger)
    __table_args__ = (sa.UniqueConstraint("tenant_id", "stream_id"),)


class EntryRow(SQLModel, table=True):
    """Where an entry lies in the log. `digest` is keyed: it tells a repeat from an id conflict and nothing else."""

    __tablename__ = "entry"
    tenant_id: int = Field(primary_key=True, sa_type=sa.BigInteger)
    idx: int = Field(primary_key=True, sa_type=sa.BigInteger)
    entry_id: bytes = Field(sa_type=sa.LargeBinary)
    batch_first: int = Field(sa_type=sa.BigInteger)
    stream_no: int = Field(sa_type=sa.BigInteger)
    position: int = Field(sa_type=sa.BigInteger)
    kind: str = Field(max_length=64)
    data_class: str = Field(max_length=64)
    class_version: int
    run_no: int | None = Field(default=None, sa_type=sa.BigInteger)
    set_id: int = Field(default=0, sa_type=sa.BigInteger)
    at: datetime = Field(sa_type=Instant)
    received: datetime = Field(sa_type=Instant)
    digest: bytes = Field(sa_type=sa.LargeBinary)
    noncanonical: bool = False
    __table_args__ = (
        sa.UniqueConstraint("tenant_id", "entry_id"),
        sa.Index("ix_entry_stream", "tenant_id", "stream_no", "position"),
    )


class RecorderRange(SQLModel, table=True):
    """Numbers of a recorder that are in the log, without a hole from `first` to `last`."""

    __tablename__ = "recorder_range"
    tenant_id: int = Field(primary_key=True, sa_type=sa.BigInteger)
    recorder_id: str = Field(primary_key=True, max_length=64)
    first: int = Field(primary_key=True, sa_type=sa.BigInteger)
    last: int = Field(sa_type=sa.BigInteger)


class RecorderBeat(SQLModel, table=True):
    """A stream in which a recorder's heartbeats stand."""

    __tablename__ = "recorder_beat"
    tenant_id: int = Field(primary_key=True, sa_type=sa.BigInteger)
    recorder_id: str = Field(primary_key=True, max_length=64)
    stream_no: int = Field(primary_key=True, sa_type=sa.BigInteger)


class PartRef(SQLModel, table=True):
    """Which data keys seal which part of an entry. Several rows for one part: a joint part."""

    __tablename__ = "part_ref"
    tenant_id: int = Field(primary_key=True, sa_type=sa.BigInteger)
    idx: int = Field(primary_key=True, sa_type=sa.BigInteger)
    part: int = Field(primary_key=True)
    key_id: str = Field(primary_key=True, max_length=32)
    # Without a row id the key is the row: half the bytes of the largest table on SQLite.
    __table_args__ = (sa.Index("ix_part_ref_key", "tenant_id", "key_id", "idx", "part"), {"sqlite_with_rowid": False})


class PayloadRow(SQLModel, table=True):
    """A payload object and a batch that names it (-1: none does), until when it is locked, and what became of it.

    `dirty`: a key of its batch was destroyed since it was last looked into. `owner` is the run that is to delete it.
    `held`: a legal hold of ours lies on it in the store.
    """

    __tablename__ = "payload_object"
    tenant_id: int = Field(primary_key=True, sa_type=sa.BigInteger)
    name: str = Field(primary_key=True, max_length=64)
    batch_first: int = Field(primary_key=True, sa_type=sa.BigInteger)
    until: datetime | None = Field(default=None, sa_type=Instant)
    dirty: bool = False
    owner: str | None = Field(default=None, max_length=40)
    held: bool = False
    size: int | None = Field(default=None, sa_type=sa.BigInteger)
    deleted_at: datetime | None = Field(default=None, sa_type=Instant)
    __table_args__ = (
        sa.Index("ix_payload_batch", "tenant_id", "batch_first"),
        sa.Index("ix_payload_dirty", "tenant_id", "batch_first", "name",
                 sqlite_where=sa.text("dirty"), postgresql_where=sa.text("dirty")),
        sa.Index("ix_payload_owner", "tenant_id", "owner",
                 sqlite_where=sa.text("owner IS NOT NULL"), postgresql_where=sa.text("owner IS NOT NULL")),
        sa.Index("ix_payload_held", "tenant_id", "until",
                 sqlite_where=sa.text("held"), postgresql_where=sa.text("held")),
        {"sqlite_with_rowid": False},
    )  # fmt: skip


class PayloadWalk(SQLModel, table=True):
    """How far a folder of payload objects was listed (`what` is its name), or destroyed keys were looked at."""

    __tablename__ = "payload_walk"
    tenant_id: int = Field(primary_key=True, sa_type=sa.BigInteger)
    what: str = Field(primary_key=True, max_length=16)
    place: str = Field(default="", max_length=64)
    at: datetime | None = Field(default=None, sa_type=Instant)
    ended: bool = False


class OutboxRow(SQLModel, table=True):
    """An announcing event that shares its change's transaction and waits to be appended to the log."""

    __tablename__ = "outbox"
    tenant_id: int = Field(primary_key=True, sa_type=sa.BigInteger)
    n: int = Field(primary_key=True, sa_type=sa.BigInteger)
    entry_id: str = Field(max_length=36)
    kind: str = Field(max_length=64)
    body: bytes = Field(sa_type=sa.LargeBinary)
    at: datetime = Field(sa_type=Instant)
    idx: int | None = Field(default=None, sa_type=sa.BigInteger)
    __table_args__ = (sa.Index("ix_outbox_open", "tenant_id", "idx", "n"),)


class ActionRow(SQLModel, table=True):
    """A side effect: claimed before it is tried, with its outcome after. `lookup` is the keyed digest of its id."""

    __tablename__ = "action"
    tenant_id: int = Field(primary_key=True, sa_type=sa.BigInteger)
    lookup: bytes = Field(primary_key=True, sa_type=sa.LargeBinary)
    kind: str = Field(max_length=128)
    owner: str = Field(max_length=128)
    state: str = Field(max_length=16)
    lease_until: datetime = Field(sa_type=Instant)
    proposal_digest: str | None = Field(default=None, max_length=64)
    approval: str | None = None
    provider_ref: bytes | None = Field(default=None, sa_type=sa.LargeBinary)
    stream_no: int | None = Field(default=None, sa_type=sa.BigInteger)
    created_at: datetime = Field(sa_type=Instant)
    updated_at: datetime = Field(sa_type=Instant)
