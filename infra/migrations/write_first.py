"""Writes `versions/0001_first.py` from the models: `python -m infra.migrations.write_first`.

Only until the first release: after it, revision 0001 is history and a change is a new revision. The output names every
table, column, policy and grant explicitly, so that it keeps its meaning when the models move on.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from alembic.autogenerate import produce_migrations, render_python_code
from alembic.autogenerate.api import AutogenContext
from alembic.migration import MigrationContext
from alembic.operations.ops import UpgradeOps

from infra.migrations.schema import METADATA, SHARED

TARGET = Path(__file__).with_name("versions") / "0001_first.py"
HEAD = '''"""The first schema: every table, and on PostgreSQL the roles, grants and row-level security.

Written by `infra.migrations.write_first`; not edited by hand.
"""

import sqlalchemy as sa
from alembic import op

from infra.migrations.schema import create_roles, guard_tables, let_log_in

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TENANTED = {tenanted}
SHARED = {shared}


def upgrade() -> None:  # noqa: PLR0915 - one statement a table
    """Makes everything."""
    create_roles()
    {body}
    guard_tables(TENANTED, SHARED)
    let_log_in(("tenant", "token"))
'''


def _plain_type(kind: str, item: Any, _context: AutogenContext) -> str | Literal[False]:
    """Renders our column types as what they are in the database, so that a revision does not depend on our code."""
    if kind != "type":
        return False
    while isinstance(item, sa.types.TypeDecorator):
        implementation = item.impl_instance
        if isinstance(implementation, sa.String) and getattr(item, "length", None) is not None:
            return f"sa.String(length={item.length})"
        item = implementation
    return f"sa.{item!r}"


def tenant_columns() -> dict[str, str]:
    """Every tenant table with the column that holds its tenant."""
    columns = {name: "tenant_id" for name, table in METADATA.tables.items() if "tenant_id" in table.columns}
    return dict(sorted((columns | {"tenant": "id"}).items()))


def source() -> str:
    """The text of revision 0001."""
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"target_metadata": METADATA})
        script = produce_migrations(context, METADATA)
    assert isinstance(script.upgrade_ops, UpgradeOps)  # noqa: S101 - one script, one direction
    body = render_python_code(script.upgrade_ops, migration_context=context, render_item=_plain_type)
    return HEAD.format(tenanted=repr(tenant_columns()), shared=repr(SHARED), body=_without_notes(body))


def _without_notes(body: str) -> str:
    return "\n".join(line for line in body.splitlines() if not line.strip().startswith("# ###")).strip()


if __name__ == "__main__":
    TARGET.write_text(source(), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", str(TARGET)], check=True)
