"""SQL tables of the registry: tenants, tokens, classes, stores, artifacts, derivations, subjects, streams, runs.

Guarantees: no readable identifier of a person and no readable locator is in any column. Look-ups are HMACs under the
tenant's versioned look-up key (kept with the KEKs, outside the database); readable values are sealed under the
person's identity key, so that they go with that key. Surrogates are made by `registry.ids`, never by the database.
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
_KEYED = {"sqlite_with_rowid": False}
"""For small rows that are little but their key: SQLite keeps them once, in the key's own tree."""


class Tenant(SQLModel, table=True):
    """The isolation root."""

    __tablename__ = "tenant"
    id: int = Field(primary_key=True, sa_type=_big)
    name: str = Field(max_length=64, unique=True)
    log_id: str = Field(max_length=32)
    controller: dict[str, Any] = Field(default_factory=dict, sa_type=_json)
    created_at: datetime = Field(sa_type=Instant)


class Token(SQLModel, table=True):
    """A bearer token: only the SHA-256 of its 256 random bits is kept. It names a principal, one tenant, roles."""

    __tablename__ = "token"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    token_id: str = Field(primary_key=True, max_length=32)
    secret_hash: bytes = Field(sa_type=_bytes, unique=True)
    principal: str = Field(max_length=128)
    roles: list[str] = Field(sa_type=_json)
    stores: list[str] = Field(sa_type=_json)
    classes: list[str] = Field(sa_type=_json)
    created_at: datetime = Field(sa_type=Instant)
    revoked_at: datetime | None = Field(default=None, sa_type=Instant)


class DataClassRow(SQLModel, table=True):
    """One version of a data class; versions are never changed, the highest is in force unless `retired`."""

    __tablename__ = "data_class"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    name: str = Field(primary_key=True, max_length=64)
    version: int = Field(primary_key=True)
    spec: dict[str, Any] = Field(sa_type=_json)
    created_at: datetime = Field(sa_type=Instant)
    created_by: str = Field(max_length=128)
    retired: bool = False


class KindRow(SQLModel, table=True):
    """An entry kind that a platform team registered beside the shipped ones."""

    __tablename__ = "kind"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    name: str = Field(primary_key=True, max_length=64)
    description: str = ""
    created_at: datetime = Field(sa_type=Instant)


class StoreRow(SQLModel, table=True):
    """One version of a registered store; secrets stand in `config` only as `env:` or `file:` references."""

    __tablename__ = "store"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    name: str = Field(primary_key=True, max_length=64)
    version: int = Field(primary_key=True)
    kind: str = Field(max_length=32)
    config: dict[str, Any] = Field(sa_type=_json)
    about: dict[str, Any] = Field(default_factory=dict, sa_type=_json)
    created_at: datetime = Field(sa_type=Instant)
    created_by: str = Field(max_length=128)
    removed: bool = False


class Subject(SQLModel, table=True):
    """One incarnation of a person. `state`: live, fenced (an erasure is approved), erased, ended (nothing was left).

    `person_no` is set where several incarnations were found to be one person: the number of one of them, the same for
    all, so that chains of aliases never form. NULL: nobody else.
    """

    __tablename__ = "subject"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    subject_no: int = Field(primary_key=True, sa_type=_big)
    subject_id: str = Field(max_length=32)
    incarnation: int = 1
    state: str = Field(default="live", max_length=16)
    fenced_at: datetime | None = Field(default=None, sa_type=Instant)
    request_id: str | None = Field(default=None, max_length=40)
    erased_at: datetime | None = Field(default=None, sa_type=Instant)
    restricted_by: str | None = Field(default=None, max_length=40)
    person_no: int | None = Field(default=None, sa_type=_big)
    created_at: datetime = Field(sa_type=Instant)
    __table_args__ = (
        sa.UniqueConstraint("tenant_id", "subject_id"),
        sa.Index(
            "ix_subject_person",
            "tenant_id",
            "person_no",
            sqlite_where=sa.text("person_no IS NOT NULL"),
            postgresql_where=sa.text("person_no IS NOT NULL"),
        ),
    )


class SubjectIdentifier(SQLModel, table=True):
    """A name of a person as HMAC; `sealed` is the readable `type:value` under the identity key, NULL once erased."""

    __tablename__ = "subject_identifier"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    lookup: bytes = Field(primary_key=True, sa_type=_bytes)
    subject_no: int = Field(primary_key=True, sa_type=_big)
    key_version: int = 1
    type: str = Field(max_length=32)
    sealed: bytes | None = Field(default=None, sa_type=_bytes)
    __table_args__ = (sa.Index("ix_identifier_subject", "tenant_id", "subject_no"),)


class SubjectSet(SQLModel, table=True):
    """An interned set of subjects; set 0 is the empty one and has no row."""

    __tablename__ = "subject_set"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    set_id: int = Field(primary_key=True, sa_type=_big)
    digest: bytes = Field(sa_type=_bytes)
    size: int
    __table_args__ = (sa.UniqueConstraint("tenant_id", "digest"),)


class SubjectSetMember(SQLModel, table=True):
    """Membership, clustered by person: all sets of a person are one index range."""

    __tablename__ = "subject_set_member"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    subject_no: int = Field(primary_key=True, sa_type=_big)
    set_id: int = Field(primary_key=True, sa_type=_big)
    # The whole row, here and below: without statistics SQLite takes a key that covers a query over an index that
    # narrows it, and reads the tenant (tests/registry/test_registry_plans.py).
    __table_args__ = (sa.Index("ix_set_member_set", "tenant_id", "set_id", "subject_no"), _KEYED)


class Artifact(SQLModel, table=True):
    """One copy of data at one place in a store.

    `status`: live, erasing, erased, retained, quarantined, revoked. `request_id` names the request or sweep that
    removes or removed it. `anonymised`: its making was declared to take the people out, so those of its sources stop
    here; the declared basis is in `sealed`. `sealed` holds the locator and what else the caller said in free form
    (scope, source reference, run, model, versions), under the identity key of `holder_no` (0: nobody's).
    """

    __tablename__ = "artifact"
    # Wide columns first, then texts: PostgreSQL pads what stands between narrow ones.
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    id: int = Field(primary_key=True, sa_type=_big)
    holder_no: int = Field(default=0, sa_type=_big)
    set_id: int = Field(default=0, sa_type=_big)
    own_set_id: int = Field(default=0, sa_type=_big)
    created_at: datetime = Field(sa_type=Instant)
    observed_at: datetime | None = Field(default=None, sa_type=Instant)
    last_activity_at: datetime | None = Field(default=None, sa_type=Instant)
    confirmed_at: datetime | None = Field(default=None, sa_type=Instant)
    expires_at: datetime | None = Field(default=None, sa_type=Instant)
    ends_at: datetime | None = Field(default=None, sa_type=Instant)
    confidence: float | None = None
    class_version: int
    anonymised: bool = False
    given_id: str | None = Field(default=None, max_length=64)
    data_class: str = Field(max_length=64)
    store: str = Field(max_length=64)
    locator_hash: bytes = Field(sa_type=_bytes)
    sealed: bytes | None = Field(default=None, sa_type=_bytes)
    status: str = Field(default="live", max_length=16)
    activity: dict[str, Any] | None = Field(default=None, sa_type=_json)
    source_type: str | None = Field(default=None, max_length=64)
    verification: str | None = Field(default=None, max_length=64)
    digest: bytes | None = Field(default=None, sa_type=_bytes)
    registered_by: str = Field(max_length=32)
    request_id: str | None = Field(default=None, max_length=40)
    __table_args__ = (
        sa.UniqueConstraint("tenant_id", "store", "locator_hash"),
        sa.Index("ix_artifact_set", "tenant_id", "set_id"),
        sa.Index(
            "ix_artifact_erasing",
            "tenant_id",
            "id",
            sqlite_where=sa.text("status = 'erasing'"),
            postgresql_where=sa.text("status = 'erasing'"),
        ),
        sa.Index("ix_artifact_ends", "tenant_id", "ends_at"),
        sa.Index(
            "ix_artifact_given",
            "tenant_id",
            "given_id",
            unique=True,
            sqlite_where=sa.text("given_id IS NOT NULL"),
            postgresql_where=sa.text("given_id IS NOT NULL"),
        ),
    )


class Derivation(SQLModel, table=True):
    """Artifact `child` was made from a parent: an artifact (`a`) by id or an entry of the record (`e`) by index."""

    __tablename__ = "derivation"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    child: int = Field(primary_key=True, sa_type=_big)
    parent_kind: str = Field(primary_key=True, max_length=1)
    parent: int = Field(primary_key=True, sa_type=_big)
    __table_args__ = (sa.Index("ix_derivation_parent", "tenant_id", "parent_kind", "parent", "child"), _KEYED)


class ClaimedSource(SQLModel, table=True):
    """A derivation that another token than the item's own named (`registry.claims`): it ends nothing by itself."""

    __tablename__ = "claimed_source"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    child: int = Field(primary_key=True, sa_type=_big)
    parent_kind: str = Field(primary_key=True, max_length=1)
    parent: int = Field(primary_key=True, sa_type=_big)
    token_id: str = Field(max_length=32)
    at: datetime = Field(sa_type=Instant)


class ScopeKey(SQLModel, table=True):
    """`name=value` of an item's scope as HMAC, for selectors and named events. Kind `a` artifact, `s` stream."""

    __tablename__ = "scope_key"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    lookup: bytes = Field(primary_key=True, sa_type=_bytes)
    kind: str = Field(primary_key=True, max_length=1)
    item: int = Field(primary_key=True, sa_type=_big)
    __table_args__ = (sa.Index("ix_scope_item", "tenant_id", "kind", "item", "lookup"), _KEYED)


class RestrictionRow(SQLModel, table=True):
    """A person's data is kept and nothing else (GDPR Art. 18), under a request, until `ended_at`.

    None in `data_classes` or `scopes` (keyed look-ups) means «all». While any is in force, `Subject.restricted_by`
    names one of them.
    """

    __tablename__ = "restriction"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    request_id: str = Field(primary_key=True, max_length=40)
    subject_no: int = Field(primary_key=True, sa_type=_big)
    since: datetime = Field(sa_type=Instant)
    data_classes: list[str] | None = Field(default=None, sa_type=_json)
    scopes: list[str] | None = Field(default=None, sa_type=_json)
    ended_at: datetime | None = Field(default=None, sa_type=Instant)
    __table_args__ = (
        sa.Index(
            "ix_restriction_open",
            "tenant_id",
            "subject_no",
            sqlite_where=sa.text("ended_at IS NULL"),
            postgresql_where=sa.text("ended_at IS NULL"),
        ),
    )


class LimitedFence(SQLModel, table=True):
    """What was said before `at` within these classes or scopes is not taken in about a person any more.

    Set by an erasure that is limited to a scope: later words of the person are welcome, late ones are not.
    """

    __tablename__ = "limited_fence"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    request_id: str = Field(primary_key=True, max_length=40)
    subject_no: int = Field(primary_key=True, sa_type=_big)
    at: datetime = Field(sa_type=Instant)
    data_classes: list[str] | None = Field(default=None, sa_type=_json)
    scopes: list[str] | None = Field(default=None, sa_type=_json)
    __table_args__ = (sa.Index("ix_limited_fence_subject", "tenant_id", "subject_no"),)


class StreamRow(SQLModel, table=True):
    """A caller's stream name as HMAC, its random id in the record, its subjects and what was declared of it."""

    __tablename__ = "stream"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    stream_no: int = Field(primary_key=True, sa_type=_big)
    lookup: bytes = Field(sa_type=_bytes)
    stream_id: str = Field(max_length=32)
    sealed: bytes | None = Field(default=None, sa_type=_bytes)
    holder_no: int = Field(default=0, sa_type=_big)
    set_id: int = Field(default=0, sa_type=_big)
    data_class: str | None = Field(default=None, max_length=64)
    declared: dict[str, Any] = Field(default_factory=dict, sa_type=_json)
    machine: str | None = Field(default=None, max_length=64)
    phase: str | None = Field(default=None, max_length=64)
    phase_position: int = Field(default=-1, sa_type=_big)
    approvals: int = 0
    created_at: datetime = Field(sa_type=Instant)
    last_activity_at: datetime = Field(sa_type=Instant)
    __table_args__ = (
        sa.UniqueConstraint("tenant_id", "lookup"),
        sa.UniqueConstraint("tenant_id", "stream_id"),
        sa.Index("ix_stream_set", "tenant_id", "set_id"),
        sa.Index("ix_stream_activity", "tenant_id", "data_class", "last_activity_at"),
        sa.Index(
            "ix_stream_machine",
            "tenant_id",
            "machine",
            "phase",
            sqlite_where=sa.text("machine IS NOT NULL"),
            postgresql_where=sa.text("machine IS NOT NULL"),
        ),
    )


class RunRow(SQLModel, table=True):
    """One execution of an agent under its random id; the caller's name as HMAC."""

    __tablename__ = "run"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    run_no: int = Field(primary_key=True, sa_type=_big)
    lookup: bytes = Field(sa_type=_bytes)
    run_id: str = Field(max_length=32)
    sealed: bytes | None = Field(default=None, sa_type=_bytes)
    holder_no: int = Field(default=0, sa_type=_big)
    status: str | None = Field(default=None, max_length=32)
    declared: dict[str, Any] = Field(default_factory=dict, sa_type=_json)
    created_at: datetime = Field(sa_type=Instant)
    ended_at: datetime | None = Field(default=None, sa_type=Instant)
    __table_args__ = (sa.UniqueConstraint("tenant_id", "lookup"),)


class MachineRow(SQLModel, table=True):
    """One version of a declared state machine; versions are never changed, the highest is in force."""

    __tablename__ = "machine"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    name: str = Field(primary_key=True, max_length=64)
    version: int = Field(primary_key=True)
    spec: dict[str, Any] = Field(sa_type=_json)
    created_at: datetime = Field(sa_type=Instant)
    created_by: str = Field(max_length=128)


class MachineViolation(SQLModel, table=True):
    """An entry that the machine of its stream does not allow. It is stored like any other; this names it for audits."""

    __tablename__ = "machine_violation"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    idx: int = Field(primary_key=True, sa_type=_big)
    stream_no: int = Field(sa_type=_big)
    entry_id: str = Field(max_length=36)
    machine: str = Field(max_length=64)
    machine_version: int
    phase: str | None = Field(default=None, max_length=64)
    violation: str = Field(max_length=32)
    at: datetime = Field(sa_type=Instant)
    __table_args__ = (sa.Index("ix_machine_violation", "tenant_id", "machine", "idx"),)


class MemoryChange(SQLModel, table=True):
    """One change of a memory, before it stands in the record: `entries` are the ids it will have there.

    `detail` holds codes and dates; `sealed` the bodies of the entries under the memory's holder, NULL once recorded.
    """

    __tablename__ = "memory_change"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    id: int = Field(primary_key=True, sa_type=_big)
    artifact_id: int = Field(sa_type=_big)
    change: str = Field(max_length=16)
    by: str = Field(max_length=128)
    at: datetime = Field(sa_type=Instant)
    detail: dict[str, Any] = Field(default_factory=dict, sa_type=_json)
    holder_no: int = Field(default=0, sa_type=_big)
    sealed: bytes | None = Field(default=None, sa_type=_bytes)
    entries: list[str] = Field(default_factory=list, sa_type=_json)
    recorded: bool = False
    __table_args__ = (
        sa.Index("ix_memory_change_artifact", "tenant_id", "artifact_id", "id"),
        sa.Index(
            "ix_memory_change_open",
            "tenant_id",
            "id",
            sqlite_where=sa.text("recorded = 0"),
            postgresql_where=sa.text("recorded = false"),
        ),
    )


class RecorderRow(SQLModel, table=True):
    """A recorder's name as HMAC and its random id in headers."""

    __tablename__ = "recorder"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    lookup: bytes = Field(primary_key=True, sa_type=_bytes)
    recorder_id: str = Field(max_length=32)
    last_seq: int | None = Field(default=None, sa_type=_big)


class Tombstone(SQLModel, table=True):
    """HMAC(store, locator) of something erased, so that a copy revived by somebody else's backup is found."""

    __tablename__ = "tombstone"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    store: str = Field(primary_key=True, max_length=64)
    locator_hash: bytes = Field(primary_key=True, sa_type=_bytes)
    request_id: str = Field(max_length=40)
    at: datetime = Field(sa_type=Instant)
    artifact_id: int | None = Field(default=None, sa_type=_big)
    """What lay there, so that a revived copy is treated as the one that was erased."""


class PendingCone(SQLModel, table=True):
    """An artifact whose people grew by a late source and did not reach everything below it yet."""

    __tablename__ = "pending_cone"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    id: int = Field(primary_key=True, sa_type=_big)
    artifact_id: int = Field(sa_type=_big)
    at: datetime = Field(sa_type=Instant)


class Watermark(SQLModel, table=True):
    """How far a job of the registry has come; `details` are counts."""

    __tablename__ = "watermark"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    name: str = Field(primary_key=True, max_length=32)
    position: int = Field(default=0, sa_type=_big)
    details: dict[str, Any] = Field(default_factory=dict, sa_type=_json)
    at: datetime = Field(sa_type=Instant)


class ContentFinding(SQLModel, table=True):
    """What an inspection saw in the content of a class in a store: one kind of gap, in so many of so many items."""

    __tablename__ = "content_finding"
    tenant_id: int = Field(primary_key=True, sa_type=_big)
    data_class: str = Field(primary_key=True, max_length=64)
    store: str = Field(primary_key=True, max_length=64)
    gap: str = Field(primary_key=True, max_length=32)
    found: int
    looked_at: int
    at: datetime = Field(sa_type=Instant)
