"""Copies that change in place: no index holds a copy's state, and pages of PostgreSQL leave room for its next version.

An erasure writes each copy three times (sent, answered, seen to be gone). With its state in an index every write made a
new entry in each index of the table; now it makes none. A plan is read by its owner, which the primary key leads with.
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
    """Takes the index away. Rows that exist stay where they are; room is left on the pages of later ones."""
    op.drop_index("ix_copy_state", table_name="copy")
    if on_postgres():
        op.execute("ALTER TABLE copy SET (fillfactor = 50)")
