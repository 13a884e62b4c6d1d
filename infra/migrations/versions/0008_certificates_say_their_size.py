"""A certificate's row says how many bytes it has, or is refused.

The default that 0006 needed for rows which were there made a row that was put back without its size one of no bytes.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

TENANTED: dict[str, str] = {}
SHARED: tuple[str, ...] = ()


def upgrade() -> None:
    """Takes the default away."""
    with op.batch_alter_table("certificate", schema=None) as batch_op:
        batch_op.alter_column("size", existing_type=sa.BigInteger(), existing_nullable=False, server_default=None)
