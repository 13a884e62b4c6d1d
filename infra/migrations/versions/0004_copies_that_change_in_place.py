"""Copies that change in place: no index holds a copy's state, and pages of PostgreSQL leave room for its next version.

An erasure writes each copy three times (sent, answered, seen to be gone). With its state in an index every write made a
new entry in each index of the table; now it makes none. A plan is read by its owner, which the primary key leads with.
The index of artifacts no longer begins with the tenant: without statistics PostgreSQL took it for a copy by its number,
and read all copies of the tenant.
"""

from alembic import op

from infra.migrations.schema import on_postgres

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TENANTED: dict[str, str] = {}
SHARED: tuple[str, ...] = ()


def upgrade() -> None:
    """Takes one index away and turns the other. Rows that exist stay where they are; room is left on the pages of later ones."""
    op.drop_index("ix_copy_state", table_name="copy")
    op.drop_index("ix_copy_artifact", table_name="copy")
    op.create_index("ix_copy_artifact", "copy", ["artifact_id", "tenant_id"], unique=False)
    if on_postgres():
        op.execute("ALTER TABLE copy SET (fillfactor = 50)")
