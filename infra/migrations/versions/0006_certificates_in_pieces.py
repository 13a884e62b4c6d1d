"""Certificates in pieces: the signed bytes of a certificate as rows of a megabyte, instead of one value of any size.

A certificate of 100,000 copies has 60 megabytes, and whoever read or wrote it had them in memory two or three times.
Every certificate that exists is cut into pieces by the database itself, and its row keeps the number of its bytes.
"""

import sqlalchemy as sa
from alembic import op

from infra.migrations.schema import guard_tables, on_postgres

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TENANTED: dict[str, str] = {"certificate_piece": "tenant_id"}
SHARED: tuple[str, ...] = ()

_CUT = """
WITH RECURSIVE piece(n) AS (
    SELECT 0 UNION ALL
    SELECT n + 1 FROM piece WHERE (n + 1) * 1048576 < (SELECT max(length(body)) FROM certificate)
)
INSERT INTO certificate_piece (tenant_id, request_id, version, number, n, data)
SELECT c.tenant_id, c.request_id, c.version, c.number, piece.n, substr(c.body, piece.n * 1048576 + 1, 1048576)
FROM certificate c JOIN piece ON piece.n * 1048576 < length(c.body)
"""


def upgrade() -> None:
    """Cuts what is there into pieces, and takes the column away."""
    op.create_table(
        "certificate_piece",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("request_id", sa.String(length=40), nullable=False),
        sa.Column("version", sa.String(length=8), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "request_id", "version", "number", "n"),
    )
    if on_postgres():  # the policies let no owner read what is of tenants
        op.execute("ALTER TABLE certificate NO FORCE ROW LEVEL SECURITY")
    op.add_column("certificate", sa.Column("size", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
    op.execute(_CUT)
    op.execute("UPDATE certificate SET size = length(body)")
    op.drop_column("certificate", "body")
    if on_postgres():
        op.execute("ALTER TABLE certificate FORCE ROW LEVEL SECURITY")
    guard_tables(TENANTED, SHARED)
