"""Reviews of record keys: a disposition names an artifact, or a key. Those that exist name artifacts."""

import sqlalchemy as sa
from alembic import op

from infra.migrations.schema import guard_tables

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TENANTED: dict[str, str] = {}
SHARED: tuple[str, ...] = ()


def upgrade() -> None:
    """Makes what is new."""
    with op.batch_alter_table("disposition", schema=None) as batch_op:
        batch_op.add_column(sa.Column("key_id", sa.String(length=32), nullable=True))
        batch_op.create_index("ix_disposition_key", ["tenant_id", "key_id"], unique=False)
    guard_tables(TENANTED, SHARED)
