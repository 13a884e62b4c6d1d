"""The first schema: every table, and on PostgreSQL the roles, grants and row-level security.

Written by `infra.migrations.write_first`; not edited by hand.
"""

import sqlalchemy as sa
from alembic import op

from infra.migrations.schema import create_roles, guard_tables, let_log_in

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TENANTED = {
    "action": "tenant_id",
    "artifact": "tenant_id",
    "certificate": "tenant_id",
    "connector_task": "tenant_id",
    "content_finding": "tenant_id",
    "copy": "tenant_id",
    "data_class": "tenant_id",
    "derivation": "tenant_id",
    "disposition": "tenant_id",
    "entry": "tenant_id",
    "hold": "tenant_id",
    "idempotency": "tenant_id",
    "kind": "tenant_id",
    "limited_fence": "tenant_id",
    "log_state": "tenant_id",
    "log_stream": "tenant_id",
    "machine": "tenant_id",
    "machine_violation": "tenant_id",
    "memory_change": "tenant_id",
    "outbox": "tenant_id",
    "part_ref": "tenant_id",
    "pending_cone": "tenant_id",
    "recorder": "tenant_id",
    "recorder_beat": "tenant_id",
    "recorder_range": "tenant_id",
    "registration_review": "tenant_id",
    "request": "tenant_id",
    "request_event": "tenant_id",
    "request_subject": "tenant_id",
    "restriction": "tenant_id",
    "retention_event": "tenant_id",
    "retention_hint": "tenant_id",
    "run": "tenant_id",
    "scope_key": "tenant_id",
    "scope_review": "tenant_id",
    "scope_review_item": "tenant_id",
    "staged": "tenant_id",
    "store": "tenant_id",
    "stream": "tenant_id",
    "subject": "tenant_id",
    "subject_identifier": "tenant_id",
    "subject_merge": "tenant_id",
    "subject_set": "tenant_id",
    "subject_set_member": "tenant_id",
    "sweep": "tenant_id",
    "tenant": "id",
    "token": "tenant_id",
    "tombstone": "tenant_id",
    "vault_data_key": "tenant_id",
    "vault_key_fence": "tenant_id",
    "vault_key_group": "tenant_id",
    "vault_part_key": "tenant_id",
    "vault_retired_kek": "tenant_id",
    "watermark": "tenant_id",
}
SHARED = ("log_knock", "log_lease", "tick", "vault_cache_fence", "vault_process")


def upgrade() -> None:  # noqa: PLR0915 - one statement a table
    """Makes everything."""
    create_roles()
    op.create_table(
        "action",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("lookup", sa.LargeBinary(), nullable=False),
        sa.Column("kind", sa.String(length=128), nullable=False),
        sa.Column("owner", sa.String(length=128), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("lease_until", sa.BigInteger(), nullable=False),
        sa.Column("proposal_digest", sa.String(length=64), nullable=True),
        sa.Column("approval", sa.String(), nullable=True),
        sa.Column("provider_ref", sa.LargeBinary(), nullable=True),
        sa.Column("stream_no", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "lookup"),
    )
    op.create_table(
        "artifact",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.BigInteger(), nullable=False),
        sa.Column("given_id", sa.String(length=64), nullable=True),
        sa.Column("data_class", sa.String(length=64), nullable=False),
        sa.Column("class_version", sa.Integer(), nullable=False),
        sa.Column("store", sa.String(length=64), nullable=False),
        sa.Column("locator_hash", sa.LargeBinary(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("holder_no", sa.BigInteger(), nullable=False),
        sa.Column("set_id", sa.BigInteger(), nullable=False),
        sa.Column("own_set_id", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("anonymised", sa.Boolean(), nullable=False),
        sa.Column("activity", sa.JSON(), nullable=True),
        sa.Column("source_type", sa.String(length=64), nullable=True),
        sa.Column("verification", sa.String(length=64), nullable=True),
        sa.Column("confidence", sa.Float(), nullable=True),
        sa.Column("digest", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("observed_at", sa.BigInteger(), nullable=True),
        sa.Column("last_activity_at", sa.BigInteger(), nullable=True),
        sa.Column("confirmed_at", sa.BigInteger(), nullable=True),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("ends_at", sa.BigInteger(), nullable=True),
        sa.Column("registered_by", sa.String(length=32), nullable=False),
        sa.Column("request_id", sa.String(length=40), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "id"),
        sa.UniqueConstraint("tenant_id", "store", "locator_hash"),
    )
    op.create_index("ix_artifact_ends", "artifact", ["tenant_id", "ends_at"], unique=False)
    op.create_index(
        "ix_artifact_erasing",
        "artifact",
        ["tenant_id", "id"],
        unique=False,
        sqlite_where=sa.text("status = 'erasing'"),
        postgresql_where=sa.text("status = 'erasing'"),
    )
    op.create_index(
        "ix_artifact_given",
        "artifact",
        ["tenant_id", "given_id"],
        unique=True,
        sqlite_where=sa.text("given_id IS NOT NULL"),
        postgresql_where=sa.text("given_id IS NOT NULL"),
    )
    op.create_index("ix_artifact_set", "artifact", ["tenant_id", "set_id"], unique=False)
    op.create_table(
        "certificate",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("request_id", sa.String(length=40), nullable=False),
        sa.Column("version", sa.String(length=8), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("issued_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "request_id", "version", "number"),
    )
    op.create_table(
        "connector_task",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("task_id", sa.String(length=40), nullable=False),
        sa.Column("owner", sa.String(length=40), nullable=False),
        sa.Column("store", sa.String(length=64), nullable=False),
        sa.Column("work", sa.String(length=8), nullable=False),
        sa.Column("level", sa.String(length=4), nullable=False),
        sa.Column("again", sa.Boolean(), nullable=False),
        sa.Column("copies", sa.JSON(), nullable=False),
        sa.Column("before", sa.JSON(), nullable=False),
        sa.Column("claims", sa.JSON(), nullable=False),
        sa.Column("claimed_by", sa.String(length=128), nullable=True),
        sa.Column("claimed_until", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("overdue_at", sa.BigInteger(), nullable=True),
        sa.Column("done_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "task_id"),
    )
    op.create_index("ix_connector_task_open", "connector_task", ["tenant_id", "done_at", "store"], unique=False)
    op.create_index("ix_connector_task_owner", "connector_task", ["tenant_id", "owner"], unique=False)
    op.create_table(
        "content_finding",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("data_class", sa.String(length=64), nullable=False),
        sa.Column("store", sa.String(length=64), nullable=False),
        sa.Column("gap", sa.String(length=32), nullable=False),
        sa.Column("found", sa.Integer(), nullable=False),
        sa.Column("looked_at", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "data_class", "store", "gap"),
    )
    op.create_table(
        "copy",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.String(length=40), nullable=False),
        sa.Column("copy_no", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("ref", sa.String(length=64), nullable=False),
        sa.Column("artifact_id", sa.BigInteger(), nullable=True),
        sa.Column("key_id", sa.String(length=32), nullable=True),
        sa.Column("entry_idx", sa.BigInteger(), nullable=True),
        sa.Column("data_class", sa.String(length=64), nullable=False),
        sa.Column("store", sa.String(length=64), nullable=False),
        sa.Column("action", sa.String(length=16), nullable=False),
        sa.Column("rule", sa.String(length=24), nullable=False),
        sa.Column("because", sa.JSON(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=True),
        sa.Column("path", sa.JSON(), nullable=False),
        sa.Column("collateral", sa.JSON(), nullable=True),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("required", sa.String(length=8), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("state", sa.String(length=24), nullable=False),
        sa.Column("level", sa.String(length=4), nullable=True),
        sa.Column("key_state", sa.String(length=16), nullable=True),
        sa.Column("method", sa.String(), nullable=True),
        sa.Column("detail", sa.String(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("verified_at", sa.BigInteger(), nullable=True),
        sa.Column("verified_how", sa.String(), nullable=True),
        sa.Column("residual_until", sa.String(), nullable=True),
        sa.Column("evidence", sa.String(length=36), nullable=True),
        sa.Column("verify_evidence", sa.String(length=36), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "owner", "copy_no"),
    )
    op.create_index("ix_copy_artifact", "copy", ["tenant_id", "artifact_id"], unique=False)
    op.create_index("ix_copy_state", "copy", ["tenant_id", "owner", "state"], unique=False)
    op.create_table(
        "data_class",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=128), nullable=False),
        sa.Column("retired", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "name", "version"),
    )
    op.create_table(
        "derivation",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("child", sa.BigInteger(), nullable=False),
        sa.Column("parent_kind", sa.String(length=1), nullable=False),
        sa.Column("parent", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "child", "parent_kind", "parent"),
    )
    op.create_index("ix_derivation_parent", "derivation", ["tenant_id", "parent_kind", "parent", "child"], unique=False)
    op.create_table(
        "disposition",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.BigInteger(), nullable=False),
        sa.Column("artifact_id", sa.BigInteger(), nullable=False),
        sa.Column("data_class", sa.String(length=64), nullable=False),
        sa.Column("rule", sa.String(length=24), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("kept_until", sa.BigInteger(), nullable=True),
        sa.Column("decided_by", sa.String(length=128), nullable=True),
        sa.Column("decided_at", sa.BigInteger(), nullable=True),
        sa.Column("entry_id", sa.String(length=36), nullable=True),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "id"),
    )
    op.create_index("ix_disposition_artifact", "disposition", ["tenant_id", "artifact_id"], unique=False)
    op.create_index("ix_disposition_state", "disposition", ["tenant_id", "state", "id"], unique=False)
    op.create_table(
        "entry",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("idx", sa.BigInteger(), nullable=False),
        sa.Column("entry_id", sa.LargeBinary(), nullable=False),
        sa.Column("batch_first", sa.BigInteger(), nullable=False),
        sa.Column("stream_no", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("data_class", sa.String(length=64), nullable=False),
        sa.Column("class_version", sa.Integer(), nullable=False),
        sa.Column("run_no", sa.BigInteger(), nullable=True),
        sa.Column("set_id", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("noncanonical", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "idx"),
        sa.UniqueConstraint("tenant_id", "entry_id"),
    )
    op.create_index("ix_entry_stream", "entry", ["tenant_id", "stream_no", "position"], unique=False)
    op.create_table(
        "hold",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("hold_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("subjects", sa.JSON(), nullable=False),
        sa.Column("data_classes", sa.JSON(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("artifacts", sa.JSON(), nullable=False),
        sa.Column("created_by", sa.String(length=128), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("released_by", sa.String(length=128), nullable=True),
        sa.Column("released_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "hold_id"),
    )
    op.create_table(
        "idempotency",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("lookup", sa.LargeBinary(), nullable=False),
        sa.Column("request_digest", sa.LargeBinary(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "lookup"),
    )
    op.create_index("ix_idempotency_age", "idempotency", ["tenant_id", "created_at"], unique=False)
    op.create_table(
        "kind",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("description", sa.String(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "name"),
    )
    op.create_table(
        "limited_fence",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("request_id", sa.String(length=40), nullable=False),
        sa.Column("subject_no", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("data_classes", sa.JSON(), nullable=True),
        sa.Column("scopes", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "request_id", "subject_no"),
    )
    op.create_index("ix_limited_fence_subject", "limited_fence", ["tenant_id", "subject_no"], unique=False)
    op.create_table(
        "log_knock",
        sa.Column("knock_id", sa.String(length=36), nullable=False),
        sa.Column("log_tenant", sa.BigInteger(), nullable=False),
        sa.Column("wants", sa.String(length=16), nullable=False),
        sa.PrimaryKeyConstraint("knock_id"),
    )
    op.create_table(
        "log_lease",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "log_state",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("log_id", sa.String(length=32), nullable=False),
        sa.Column("origin", sa.String(length=255), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("batch_first", sa.BigInteger(), nullable=True),
        sa.Column("batch_count", sa.Integer(), nullable=False),
        sa.Column("batch_digest", sa.LargeBinary(), nullable=False),
        sa.Column("previous", sa.LargeBinary(), nullable=False),
        sa.Column("frontier", sa.LargeBinary(), nullable=False),
        sa.Column("checkpoint_size", sa.BigInteger(), nullable=False),
        sa.Column("checkpoint_digest", sa.LargeBinary(), nullable=False),
        sa.Column("checkpoint_at", sa.BigInteger(), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("outbox_counter", sa.BigInteger(), nullable=False),
        sa.Column("read_only", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id"),
    )
    op.create_table(
        "log_stream",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("stream_no", sa.BigInteger(), nullable=False),
        sa.Column("stream_id", sa.String(length=32), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "stream_no"),
        sa.UniqueConstraint("tenant_id", "stream_id"),
    )
    op.create_table(
        "machine",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=128), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "name", "version"),
    )
    op.create_table(
        "machine_violation",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("idx", sa.BigInteger(), nullable=False),
        sa.Column("stream_no", sa.BigInteger(), nullable=False),
        sa.Column("entry_id", sa.String(length=36), nullable=False),
        sa.Column("machine", sa.String(length=64), nullable=False),
        sa.Column("machine_version", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(length=64), nullable=True),
        sa.Column("violation", sa.String(length=32), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "idx"),
    )
    op.create_index("ix_machine_violation", "machine_violation", ["tenant_id", "machine", "idx"], unique=False)
    op.create_table(
        "memory_change",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.BigInteger(), nullable=False),
        sa.Column("artifact_id", sa.BigInteger(), nullable=False),
        sa.Column("change", sa.String(length=16), nullable=False),
        sa.Column("by", sa.String(length=128), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.Column("holder_no", sa.BigInteger(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("entries", sa.JSON(), nullable=False),
        sa.Column("recorded", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "id"),
    )
    op.create_index("ix_memory_change_artifact", "memory_change", ["tenant_id", "artifact_id", "id"], unique=False)
    op.create_index(
        "ix_memory_change_open",
        "memory_change",
        ["tenant_id", "id"],
        unique=False,
        sqlite_where=sa.text("recorded = 0"),
        postgresql_where=sa.text("recorded = false"),
    )
    op.create_table(
        "outbox",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("entry_id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("idx", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "n"),
    )
    op.create_index("ix_outbox_open", "outbox", ["tenant_id", "idx", "n"], unique=False)
    op.create_table(
        "part_ref",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("idx", sa.BigInteger(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("key_id", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "idx", "part", "key_id"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_part_ref_key", "part_ref", ["tenant_id", "key_id", "idx", "part"], unique=False)
    op.create_table(
        "pending_cone",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.BigInteger(), nullable=False),
        sa.Column("artifact_id", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "id"),
    )
    op.create_table(
        "recorder",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("lookup", sa.LargeBinary(), nullable=False),
        sa.Column("recorder_id", sa.String(length=32), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "lookup"),
    )
    op.create_table(
        "recorder_beat",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("recorder_id", sa.String(length=64), nullable=False),
        sa.Column("stream_no", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "recorder_id", "stream_no"),
    )
    op.create_table(
        "recorder_range",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("recorder_id", sa.String(length=64), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "recorder_id", "first"),
    )
    op.create_table(
        "registration_review",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.BigInteger(), nullable=False),
        sa.Column("artifact_id", sa.BigInteger(), nullable=False),
        sa.Column("wanted", sa.JSON(), nullable=False),
        sa.Column("token_id", sa.String(length=32), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("decided_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "id"),
    )
    op.create_index("ix_review_artifact", "registration_review", ["tenant_id", "artifact_id"], unique=False)
    op.create_table(
        "request",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("request_id", sa.String(length=40), nullable=False),
        sa.Column("request_no", sa.BigInteger(), nullable=False),
        sa.Column("right", sa.String(length=16), nullable=False),
        sa.Column("regulation", sa.String(length=8), nullable=False),
        sa.Column("jurisdiction", sa.String(length=16), nullable=True),
        sa.Column("timezone", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("subjects", sa.JSON(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("acknowledge_by", sa.BigInteger(), nullable=True),
        sa.Column("extended_until", sa.BigInteger(), nullable=True),
        sa.Column("answered_at", sa.BigInteger(), nullable=True),
        sa.Column("created_by", sa.String(length=128), nullable=False),
        sa.Column("identity_by", sa.JSON(), nullable=False),
        sa.Column("approvals", sa.JSON(), nullable=False),
        sa.Column("plan_hash", sa.String(length=64), nullable=True),
        sa.Column("duplicate_of", sa.String(length=40), nullable=True),
        sa.Column("fence_at", sa.BigInteger(), nullable=True),
        sa.Column("step", sa.String(length=32), nullable=True),
        sa.Column("lease_owner", sa.String(length=64), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("completed_at", sa.BigInteger(), nullable=True),
        sa.Column("final_due_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "request_id"),
    )
    op.create_index("ix_request_state", "request", ["tenant_id", "state", "due_at"], unique=False)
    op.create_table(
        "request_event",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("request_id", sa.String(length=40), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("event", sa.String(length=64), nullable=False),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.Column("entry_id", sa.String(length=36), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "request_id", "n"),
    )
    op.create_table(
        "request_subject",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("lookup", sa.LargeBinary(), nullable=False),
        sa.Column("request_id", sa.String(length=40), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "lookup", "request_id"),
    )
    op.create_table(
        "restriction",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("request_id", sa.String(length=40), nullable=False),
        sa.Column("subject_no", sa.BigInteger(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("data_classes", sa.JSON(), nullable=True),
        sa.Column("scopes", sa.JSON(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "request_id", "subject_no"),
    )
    op.create_index(
        "ix_restriction_open",
        "restriction",
        ["tenant_id", "subject_no"],
        unique=False,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "retention_event",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("lookup", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("subject_no", sa.BigInteger(), nullable=True),
        sa.Column("recorded_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "id"),
    )
    op.create_index("ix_event_name", "retention_event", ["tenant_id", "name", "lookup"], unique=False)
    op.create_table(
        "retention_hint",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("data_class", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "data_class"),
    )
    op.create_table(
        "run",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("run_no", sa.BigInteger(), nullable=False),
        sa.Column("lookup", sa.LargeBinary(), nullable=False),
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("holder_no", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=True),
        sa.Column("declared", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "run_no"),
        sa.UniqueConstraint("tenant_id", "lookup"),
    )
    op.create_table(
        "scope_key",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("lookup", sa.LargeBinary(), nullable=False),
        sa.Column("kind", sa.String(length=1), nullable=False),
        sa.Column("item", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "lookup", "kind", "item"),
    )
    op.create_index("ix_scope_item", "scope_key", ["tenant_id", "kind", "item", "lookup"], unique=False)
    op.create_table(
        "scope_review",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("review_id", sa.String(length=36), nullable=False),
        sa.Column("change", sa.String(length=16), nullable=False),
        sa.Column("subjects", sa.JSON(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("owner", sa.String(length=128), nullable=False),
        sa.Column("opened_by", sa.String(length=128), nullable=False),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("closed_at", sa.BigInteger(), nullable=True),
        sa.Column("closed_by", sa.String(length=128), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "review_id"),
    )
    op.create_table(
        "scope_review_item",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("review_id", sa.String(length=36), nullable=False),
        sa.Column("artifact_id", sa.BigInteger(), nullable=False),
        sa.Column("decision", sa.String(length=16), nullable=True),
        sa.Column("decided_by", sa.String(length=128), nullable=True),
        sa.Column("decided_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "review_id", "artifact_id"),
    )
    op.create_table(
        "staged",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("staged_id", sa.String(length=36), nullable=False),
        sa.Column("entries", sa.Integer(), nullable=False),
        sa.Column("drafts", sa.LargeBinary(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("answered_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "staged_id"),
    )
    op.create_table(
        "store",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("about", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=128), nullable=False),
        sa.Column("removed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "name", "version"),
    )
    op.create_table(
        "stream",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("stream_no", sa.BigInteger(), nullable=False),
        sa.Column("lookup", sa.LargeBinary(), nullable=False),
        sa.Column("stream_id", sa.String(length=32), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("holder_no", sa.BigInteger(), nullable=False),
        sa.Column("set_id", sa.BigInteger(), nullable=False),
        sa.Column("data_class", sa.String(length=64), nullable=True),
        sa.Column("declared", sa.JSON(), nullable=False),
        sa.Column("machine", sa.String(length=64), nullable=True),
        sa.Column("phase", sa.String(length=64), nullable=True),
        sa.Column("phase_position", sa.BigInteger(), nullable=False),
        sa.Column("approvals", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_activity_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "stream_no"),
        sa.UniqueConstraint("tenant_id", "lookup"),
        sa.UniqueConstraint("tenant_id", "stream_id"),
    )
    op.create_index(
        "ix_stream_machine",
        "stream",
        ["tenant_id", "machine", "phase"],
        unique=False,
        sqlite_where=sa.text("machine IS NOT NULL"),
        postgresql_where=sa.text("machine IS NOT NULL"),
    )
    op.create_index("ix_stream_set", "stream", ["tenant_id", "set_id"], unique=False)
    op.create_table(
        "subject",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("subject_no", sa.BigInteger(), nullable=False),
        sa.Column("subject_id", sa.String(length=32), nullable=False),
        sa.Column("incarnation", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("fenced_at", sa.BigInteger(), nullable=True),
        sa.Column("request_id", sa.String(length=40), nullable=True),
        sa.Column("erased_at", sa.BigInteger(), nullable=True),
        sa.Column("restricted_by", sa.String(length=40), nullable=True),
        sa.Column("person_no", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "subject_no"),
        sa.UniqueConstraint("tenant_id", "subject_id"),
    )
    op.create_index(
        "ix_subject_person",
        "subject",
        ["tenant_id", "person_no"],
        unique=False,
        sqlite_where=sa.text("person_no IS NOT NULL"),
        postgresql_where=sa.text("person_no IS NOT NULL"),
    )
    op.create_table(
        "subject_identifier",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("lookup", sa.LargeBinary(), nullable=False),
        sa.Column("subject_no", sa.BigInteger(), nullable=False),
        sa.Column("key_version", sa.Integer(), nullable=False),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "lookup", "subject_no"),
    )
    op.create_index("ix_identifier_subject", "subject_identifier", ["tenant_id", "subject_no"], unique=False)
    op.create_table(
        "subject_merge",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("merge_id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("subjects", sa.JSON(), nullable=False),
        sa.Column("people", sa.JSON(), nullable=False),
        sa.Column("shared", sa.JSON(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("proposed_by", sa.String(length=128), nullable=False),
        sa.Column("proposed_at", sa.BigInteger(), nullable=False),
        sa.Column("decided_by", sa.String(length=128), nullable=True),
        sa.Column("decided_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "merge_id"),
    )
    op.create_index("ix_merge_state", "subject_merge", ["tenant_id", "state"], unique=False)
    op.create_table(
        "subject_set",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("set_id", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "set_id"),
        sa.UniqueConstraint("tenant_id", "digest"),
    )
    op.create_table(
        "subject_set_member",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("subject_no", sa.BigInteger(), nullable=False),
        sa.Column("set_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "subject_no", "set_id"),
    )
    op.create_index("ix_set_member_set", "subject_set_member", ["tenant_id", "set_id", "subject_no"], unique=False)
    op.create_table(
        "sweep",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("sweep_id", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=24), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("dry_run", sa.Boolean(), nullable=False),
        sa.Column("plan_hash", sa.String(length=64), nullable=True),
        sa.Column("counts", sa.JSON(), nullable=False),
        sa.Column("brake", sa.JSON(), nullable=True),
        sa.Column("created_by", sa.String(length=128), nullable=False),
        sa.Column("approved_by", sa.String(length=128), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("lease_owner", sa.String(length=64), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "sweep_id"),
    )
    op.create_index("ix_sweep_state", "sweep", ["tenant_id", "state", "created_at"], unique=False)
    op.create_table(
        "tenant",
        sa.Column("id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("log_id", sa.String(length=32), nullable=False),
        sa.Column("controller", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "tick",
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("fire_time", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("done_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("job", "fire_time"),
    )
    op.create_table(
        "token",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("token_id", sa.String(length=32), nullable=False),
        sa.Column("secret_hash", sa.LargeBinary(), nullable=False),
        sa.Column("principal", sa.String(length=128), nullable=False),
        sa.Column("roles", sa.JSON(), nullable=False),
        sa.Column("stores", sa.JSON(), nullable=False),
        sa.Column("classes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "token_id"),
        sa.UniqueConstraint("secret_hash"),
    )
    op.create_table(
        "tombstone",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("store", sa.String(length=64), nullable=False),
        sa.Column("locator_hash", sa.LargeBinary(), nullable=False),
        sa.Column("request_id", sa.String(length=40), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("artifact_id", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "store", "locator_hash"),
    )
    op.create_table(
        "vault_cache_fence",
        sa.Column("name", sa.String(length=16), nullable=False),
        sa.Column("counter", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "vault_data_key",
        sa.Column("tenant_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("key_id", sa.String(length=32), nullable=False),
        sa.Column("subject_id", sa.BigInteger(), nullable=False),
        sa.Column("data_class", sa.String(length=128), nullable=False),
        sa.Column("month", sa.String(length=7), nullable=False),
        sa.Column("scope", sa.String(length=256), nullable=False),
        sa.Column("group_no", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("wrapped", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("destroyed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("request", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "key_id"),
        sa.UniqueConstraint("tenant_id", "subject_id", "data_class", "month", "scope", name="uq_vault_data_key_spec"),
    )
    op.create_index("ix_vault_data_key_group", "vault_data_key", ["tenant_id", "group_no", "epoch"], unique=False)
    op.create_table(
        "vault_key_fence",
        sa.Column("tenant_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("subject_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("fenced_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("request", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "subject_id"),
    )
    op.create_table(
        "vault_key_group",
        sa.Column("tenant_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("group_no", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "group_no"),
    )
    op.create_index("ix_vault_key_group_size", "vault_key_group", ["tenant_id", "size"], unique=False)
    op.create_table(
        "vault_part_key",
        sa.Column("tenant_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("entry_id", sa.String(length=36), nullable=False),
        sa.Column("part", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("group_no", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("wrapped", sa.LargeBinary(), nullable=True),
        sa.Column("ground", sa.String(length=128), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("destroyed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("request", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "entry_id", "part"),
    )
    op.create_index("ix_vault_part_key_group", "vault_part_key", ["tenant_id", "group_no", "epoch"], unique=False)
    op.create_index("ix_vault_part_key_until", "vault_part_key", ["tenant_id", "until"], unique=False)
    op.create_table(
        "vault_process",
        sa.Column("process_id", sa.String(length=32), nullable=False),
        sa.Column("applied", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("process_id"),
    )
    op.create_table(
        "vault_retired_kek",
        sa.Column("tenant_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("group_no", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("retired_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("destroy_after", sa.DateTime(timezone=True), nullable=False),
        sa.Column("destroyed_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "group_no", "epoch"),
    )
    op.create_table(
        "watermark",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "name"),
    )
    guard_tables(TENANTED, SHARED)
    let_log_in(("tenant", "token"))
