"""Keys of single parts, payload objects and their end, consents, reviews of registrations, holds in stores.

The look-up of a place is its first 128 bits from now on. Part keys were never kept before this revision.
"""

import sqlalchemy as sa
from alembic import op

from infra.migrations.schema import guard_tables

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TENANTED = {
    "claimed_source": "tenant_id",
    "consent": "tenant_id",
    "key_hint": "tenant_id",
    "payload_object": "tenant_id",
    "payload_walk": "tenant_id",
    "retention_walk": "tenant_id",
    "store_hold": "tenant_id",
}
SHARED: tuple[str, ...] = ()


def upgrade() -> None:
    """Makes what is new."""
    op.create_table(
        "claimed_source",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("child", sa.BigInteger(), nullable=False),
        sa.Column("parent_kind", sa.String(length=1), nullable=False),
        sa.Column("parent", sa.BigInteger(), nullable=False),
        sa.Column("token_id", sa.String(length=32), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "child", "parent_kind", "parent"),
    )
    op.create_table(
        "consent",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("consent_id", sa.String(length=40), nullable=False),
        sa.Column("subject_no", sa.BigInteger(), nullable=False),
        sa.Column("data_classes", sa.JSON(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("given_at", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=True),
        sa.Column("withdrawn_at", sa.BigInteger(), nullable=True),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("recorded_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "consent_id"),
    )
    with op.batch_alter_table("consent", schema=None) as batch_op:
        batch_op.create_index("ix_consent_subject", ["tenant_id", "subject_no"], unique=False)

    op.create_table(
        "key_hint",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("key_id", sa.String(length=32), nullable=False),
        sa.Column("ends_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "key_id"),
    )
    with op.batch_alter_table("key_hint", schema=None) as batch_op:
        batch_op.create_index("ix_key_hint_ends", ["tenant_id", "ends_at", "key_id"], unique=False)

    op.create_table(
        "payload_object",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("batch_first", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=True),
        sa.Column("dirty", sa.Boolean(), nullable=False),
        sa.Column("owner", sa.String(length=40), nullable=True),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=True),
        sa.Column("deleted_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "name", "batch_first"),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("payload_object", schema=None) as batch_op:
        batch_op.create_index("ix_payload_batch", ["tenant_id", "batch_first"], unique=False)
        batch_op.create_index(
            "ix_payload_dirty",
            ["tenant_id", "batch_first", "name"],
            unique=False,
            sqlite_where=sa.text("dirty"),
            postgresql_where=sa.text("dirty"),
        )
        batch_op.create_index(
            "ix_payload_held",
            ["tenant_id", "until"],
            unique=False,
            sqlite_where=sa.text("held"),
            postgresql_where=sa.text("held"),
        )
        batch_op.create_index(
            "ix_payload_owner",
            ["tenant_id", "owner"],
            unique=False,
            sqlite_where=sa.text("owner IS NOT NULL"),
            postgresql_where=sa.text("owner IS NOT NULL"),
        )

    op.create_table(
        "payload_walk",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("what", sa.String(length=16), nullable=False),
        sa.Column("place", sa.String(length=64), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=True),
        sa.Column("ended", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "what"),
    )
    op.create_table(
        "retention_walk",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("what", sa.String(length=80), nullable=False),
        sa.Column("place", sa.String(length=64), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "what"),
    )
    op.create_table(
        "store_hold",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("artifact_id", sa.BigInteger(), nullable=False),
        sa.Column("store", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("detail", sa.String(length=256), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "artifact_id"),
    )
    with op.batch_alter_table("store_hold", schema=None) as batch_op:
        batch_op.create_index("ix_store_hold_at", ["tenant_id", "at"], unique=False)

    with op.batch_alter_table("certificate", schema=None) as batch_op:
        batch_op.add_column(sa.Column("stored_at", sa.BigInteger(), nullable=True))

    with op.batch_alter_table("hold", schema=None) as batch_op:
        batch_op.add_column(sa.Column("entries", sa.JSON(), nullable=False, server_default=sa.text("'[]'")))

    with op.batch_alter_table("registration_review", schema=None) as batch_op:
        batch_op.add_column(sa.Column("decision", sa.String(length=16), nullable=True))
        batch_op.add_column(sa.Column("decided_by", sa.String(length=128), nullable=True))
        batch_op.add_column(sa.Column("sealed", sa.LargeBinary(), nullable=True))

    with op.batch_alter_table("stream", schema=None) as batch_op:
        batch_op.create_index("ix_stream_activity", ["tenant_id", "data_class", "last_activity_at"], unique=False)

    with op.batch_alter_table("vault_data_key", schema=None) as batch_op:
        batch_op.create_index("ix_vault_data_key_destroyed", ["tenant_id", "destroyed_at"], unique=False)
        batch_op.create_index("ix_vault_data_key_month", ["tenant_id", "data_class", "month"], unique=False)

    with op.batch_alter_table("vault_part_key", schema=None) as batch_op:
        batch_op.add_column(sa.Column("idx", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
        batch_op.add_column(sa.Column("key_id", sa.String(length=32), nullable=False, server_default=sa.text("''")))
        batch_op.drop_index(batch_op.f("ix_vault_part_key_until"))
        batch_op.create_index("ix_vault_part_key_data_key", ["tenant_id", "key_id", "state"], unique=False)
        batch_op.create_index("ix_vault_part_key_destroyed", ["tenant_id", "destroyed_at"], unique=False)
        batch_op.create_index("ix_vault_part_key_idx", ["tenant_id", "idx", "part"], unique=False)
    for table in ("artifact", "tombstone"):
        op.execute(f"UPDATE {table} SET locator_hash = substr(locator_hash, 1, 16)")  # noqa: S608 - two names of ours
    guard_tables(TENANTED, SHARED)
