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
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlmodel import Field, SQLModel, col

STRETCH = 1_000
"""Entries of a batch that one row of `PartPlaces` tells of at most. Changing it needs a revision that packs anew."""
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
    the time of staging. Ciphertext is in the bucket already. `row_digest` is keyed: over the drafts while they wait,
    then over the answer.
    """

    __tablename__ = "staged"
    tenant_id: int = Field(primary_key=True, sa_type=sa.BigInteger)
    staged_id: str = Field(primary_key=True, max_length=36)
    entries: int
    drafts: bytes = Field(sa_type=sa.LargeBinary)
    answer: bytes | None = Field(default=None, sa_type=sa.LargeBinary)
    at: datetime = Field(sa_type=Instant)
    answered_at: datetime | None = Field(default=None, sa_type=Instant)
    row_digest: bytes | None = Field(default=None, sa_type=sa.LargeBinary)


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


class PartPlaces(SQLModel, table=True):
    """The entries of one stretch of a batch of which a data key seals the part of this number.

    `places` is a JSON array of distances from `start`, in ascending order. A batch is cut into stretches of
    `STRETCH` entries from its own first one, so a row is written once, with its batch, and never changed. Several
    rows with one place: a joint part. `PartRef` is the same, a row for each part and key.
    """

    __tablename__ = "part_places"
    tenant_id: int = Field(primary_key=True, sa_type=sa.BigInteger)
    start: int = Field(primary_key=True, sa_type=sa.BigInteger)
    key_id: str = Field(primary_key=True, max_length=32)
    part: int = Field(primary_key=True)
    places: str = Field(sa_type=sa.Text)
    __table_args__ = (
        sa.Index("ix_part_places_key", "key_id", "tenant_id", "start", "part"),
        {"sqlite_with_rowid": False},
    )


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


class _EachPlace(sa.sql.functions.FunctionElement[int]):
    """A row for each number of a JSON array, in a column named `value`."""

    name = "each_place"
    inherit_cache = True


@compiles(_EachPlace, "sqlite")
def _on_sqlite(element: _EachPlace, compiler: SQLCompiler, **kw: Any) -> str:
    return f"json_each({compiler.process(element.clauses, **kw)})"


@compiles(_EachPlace, "postgresql")
def _on_postgresql(element: _EachPlace, compiler: SQLCompiler, **kw: Any) -> str:
    # As an array of its own: a fraction of what its functions for JSON take.
    array = f"CAST(translate({compiler.process(element.clauses, **kw)}, '[]', '{{}}') AS bigint[])"
    return f"LATERAL (SELECT unnest({array}) AS value)"


def _unpacked() -> sa.Subquery:
    each = _EachPlace(col(PartPlaces.places)).table_valued(sa.column("value", sa.BigInteger))
    place = sa.cast(each.c.value, sa.BigInteger)
    idx = (col(PartPlaces.start) + place).label("idx")
    # Without statistics SQLite takes the tenant for narrower than a key, and reads every row of the tenant, or every
    # entry before it unpacks. So the tenant comes out of what was unpacked, too: only the key is left to begin with.
    tenant = (col(PartPlaces.tenant_id) + place * 0).label("tenant_id")
    within: sa.Label[int] = col(PartPlaces.tenant_id).label("within")
    query = sa.select(tenant, within, col(PartPlaces.start), col(PartPlaces.part), col(PartPlaces.key_id), idx)
    return query.select_from(PartPlaces).join(each, sa.true()).subquery("part_ref")


class PartRef:
    """Which data keys seal which part of an entry: the rows of `PartPlaces` one by one, to read only.

    A question by key costs what the key seals, and says `tenant_id` beside it. One by index names the stretches to
    look in (`index.refs_of`, or `start` between the ends of a batch) and says `within`, which is the tenant too, and
    which the primary key serves.
    """

    tenant_id: int
    within: int
    start: int
    part: int
    key_id: str
    idx: int


_PLACES = _unpacked()
sa.orm.registry().map_imperatively(
    PartRef, _PLACES, primary_key=[_PLACES.c.tenant_id, _PLACES.c.idx, _PLACES.c.part, _PLACES.c.key_id]
)


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
    """A side effect: claimed before it is tried, with its outcome after. `lookup` is the keyed digest of its id.

    `row_digest` is keyed too, over everything else in the row; NULL in one from before rows had it.
    """

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
    row_digest: bytes | None = Field(default=None, sa_type=sa.LargeBinary)
