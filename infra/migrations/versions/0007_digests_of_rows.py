"""Rows that decide something while nothing in the record says the same bear a keyed digest: actions, staged entries.

Who could write to the database could make a failed action succeeded, and a succeeded one safe to be done again. Actions
from before have no digest, and cannot be given one here, where no key is: they are unknown until somebody who asked the
provider reports their outcome. A staged row from before is refused, and its entries are sent again.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TENANTED: dict[str, str] = {}
SHARED: tuple[str, ...] = ()


def upgrade() -> None:
    """Adds the two columns, empty."""
    for table in ("action", "staged"):
        op.add_column(table, sa.Column("row_digest", sa.LargeBinary(), nullable=True))
