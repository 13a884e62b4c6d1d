"""The vault's tables: what the database knows about keys, none of which opens anything by itself.

Every data key and part key stands here only wrapped, under a key-encryption key that is never in the database.
A destroyed key keeps its row as a tombstone without bytes, so that the same key is never made again.
Encodings and states are append-only. Row-level security is added by the migration from ``tenant_id``.
"""

from datetime import UTC, datetime
from enum import StrEnum

from sqlalchemy import BigInteger, Column, DateTime, Dialect, Index, Integer, LargeBinary, String, UniqueConstraint
from sqlalchemy.types import TypeDecorator
from sqlmodel import Field, SQLModel


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC instant on every database; naive values are refused when written."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the instant in UTC. Raises ValueError for a naive one, which is a fault of the program."""
        if value is None:
            return None
        if value.tzinfo is None:
            message = "a naive datetime was about to be stored in the vault"
            raise ValueError(message)
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the instant as aware UTC."""
        del dialect
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class KeyState(StrEnum):
    """What may be done with a key: seal and open, only open, nothing, nothing.

    ``lost`` is found by a restore: the row's key-encryption key was destroyed, so its bytes open nothing. Only a
    younger snapshot, wrapped under a later epoch, may bring such a key back.
    """

    LIVE = "live"
    DESTROYING = "destroying"
    DESTROYED = "destroyed"
    LOST = "lost"


OPENING = (KeyState.LIVE.value, KeyState.DESTROYING.value)
"""States of a key that still opens what it sealed."""


class DataKey(SQLModel, table=True):
    """One wrapped key of a subject, class, month and scope; a tombstone once destroyed (``wrapped`` is NULL)."""

    __tablename__ = "vault_data_key"
    __table_args__ = (
        UniqueConstraint("tenant_id", "subject_id", "data_class", "month", "scope", name="uq_vault_data_key_spec"),
        # Without the epoch, which a rotation changes in every row: the index stays as it is.
        Index("ix_vault_data_key_group", "tenant_id", "group_no"),
        Index("ix_vault_data_key_month", "tenant_id", "data_class", "month"),
        Index("ix_vault_data_key_destroyed", "tenant_id", "destroyed_at"),
    )

    tenant_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    key_id: str = Field(sa_column=Column(String(32), primary_key=True))
    subject_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    data_class: str = Field(sa_column=Column(String(128), nullable=False))
    month: str = Field(sa_column=Column(String(7), nullable=False))
    scope: str = Field(sa_column=Column(String(256), nullable=False))
    group_no: int = Field(sa_column=Column(Integer, nullable=False))
    epoch: int = Field(sa_column=Column(Integer, nullable=False))
    wrapped: bytes | None = Field(default=None, sa_column=Column(LargeBinary, nullable=True))
    created_at: datetime = Field(sa_column=Column(UtcDateTime, nullable=False))
    state: str = Field(sa_column=Column(String(16), nullable=False))
    destroyed_at: datetime | None = Field(default=None, sa_column=Column(UtcDateTime, nullable=True))
    request: str | None = Field(default=None, sa_column=Column(String(64), nullable=True))


class PartKey(SQLModel, table=True):
    """The wrapped derived key of one part that must outlive its data key, with the ground and the end of that.

    ``idx`` is the entry's place in the log, ``key_id`` the data key that went first; a joint part has more of them.
    """

    __tablename__ = "vault_part_key"
    __table_args__ = (
        Index("ix_vault_part_key_group", "tenant_id", "group_no"),
        Index("ix_vault_part_key_idx", "tenant_id", "idx", "part"),
        Index("ix_vault_part_key_data_key", "tenant_id", "key_id", "state"),
        Index("ix_vault_part_key_destroyed", "tenant_id", "destroyed_at"),
    )

    tenant_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    entry_id: str = Field(sa_column=Column(String(36), primary_key=True))
    part: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    idx: int = Field(sa_column=Column(BigInteger, nullable=False))
    key_id: str = Field(sa_column=Column(String(32), nullable=False))
    group_no: int = Field(sa_column=Column(Integer, nullable=False))
    epoch: int = Field(sa_column=Column(Integer, nullable=False))
    wrapped: bytes | None = Field(default=None, sa_column=Column(LargeBinary, nullable=True))
    ground: str = Field(sa_column=Column(String(128), nullable=False))
    until: datetime | None = Field(default=None, sa_column=Column(UtcDateTime, nullable=True))
    created_at: datetime = Field(sa_column=Column(UtcDateTime, nullable=False))
    state: str = Field(sa_column=Column(String(16), nullable=False))
    destroyed_at: datetime | None = Field(default=None, sa_column=Column(UtcDateTime, nullable=True))
    request: str | None = Field(default=None, sa_column=Column(String(64), nullable=True))


class KeyGroup(SQLModel, table=True):
    """About a thousand keys that share one key-encryption key, and the epoch of that key now in use."""

    __tablename__ = "vault_key_group"
    __table_args__ = (Index("ix_vault_key_group_size", "tenant_id", "size"),)

    tenant_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    group_no: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    epoch: int = Field(sa_column=Column(Integer, nullable=False))
    size: int = Field(sa_column=Column(Integer, nullable=False))


class RetiredKek(SQLModel, table=True):
    """A former epoch of a group: its key-encryption key is destroyed once ``destroy_after`` has passed."""

    __tablename__ = "vault_retired_kek"

    tenant_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    group_no: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    epoch: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    retired_at: datetime = Field(sa_column=Column(UtcDateTime, nullable=False))
    destroy_after: datetime = Field(sa_column=Column(UtcDateTime, nullable=False))
    destroyed_at: datetime | None = Field(default=None, sa_column=Column(UtcDateTime, nullable=True))


class CacheFence(SQLModel, table=True):
    """The one counter that grows with every destruction of keys, over all tenants. Of no tenant."""

    __tablename__ = "vault_cache_fence"

    name: str = Field(sa_column=Column(String(16), primary_key=True))
    counter: int = Field(sa_column=Column(BigInteger, nullable=False))


class KeyProcess(SQLModel, table=True):
    """A process that can hold keys, the fence counter up to which it emptied its caches, and when. Of no tenant."""

    __tablename__ = "vault_process"

    process_id: str = Field(sa_column=Column(String(32), primary_key=True))
    applied: int = Field(sa_column=Column(BigInteger, nullable=False))
    at: datetime = Field(sa_column=Column(UtcDateTime, nullable=False))


class KeyFence(SQLModel, table=True):
    """The mark that an incarnation is closed: no key of it is made or used for sealing any more."""

    __tablename__ = "vault_key_fence"

    tenant_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    subject_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    fenced_at: datetime = Field(sa_column=Column(UtcDateTime, nullable=False))
    request: str | None = Field(default=None, sa_column=Column(String(64), nullable=True))
