"""Writes the next revision from the models: `python -m infra.migrations.write_next WHAT`, for example `keys_of_parts`.

A revision that was once merged is history: it is never written again, and `tests/api/test_api_migrations.py` holds its
digest. The output names every table, column, policy and grant explicitly, so that it keeps its meaning when the models
move on. It is a draft: read it, and say how rows that exist get a value for a new column.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from alembic.autogenerate import produce_migrations, render_python_code
from alembic.autogenerate.api import AutogenContext
from alembic.migration import MigrationContext
from alembic.operations.ops import UpgradeOps

from infra.migrations.schema import METADATA, SHARED

VERSIONS = Path(__file__).with_name("versions")
FORM = '''"""{title}.

Drafted by `infra.migrations.write_next`.
"""

import sqlalchemy as sa
from alembic import op

from infra.migrations.schema import guard_tables

revision = "{revision}"
down_revision = "{before}"
branch_labels = None
depends_on = None

TENANTED = {tenanted}
SHARED: tuple[str, ...] = {shared}


def upgrade() -> None:
    """Makes what is new."""
    {body}
    guard_tables(TENANTED, SHARED)
'''


def plain_type(kind: str, item: Any, _context: AutogenContext) -> str | Literal[False]:
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


def source(connection: sa.Connection, revision: str, before: str, title: str) -> str:
    """The text of a revision that brings the schema behind `connection` to that of the models."""
    options = {"target_metadata": METADATA, "compare_type": True, "render_as_batch": True}
    context = MigrationContext.configure(connection, opts=options)
    there = set(sa.inspect(connection).get_table_names())
    script = produce_migrations(context, METADATA)
    assert isinstance(script.upgrade_ops, UpgradeOps)  # noqa: S101 - one script, one direction
    body = render_python_code(
        script.upgrade_ops, migration_context=context, render_item=plain_type, render_as_batch=True
    )
    return FORM.format(
        title=title,
        revision=revision,
        before=before,
        tenanted=repr({name: column for name, column in tenant_columns().items() if name not in there}),
        shared=repr(tuple(name for name in SHARED if name not in there)),
        body="\n".join(line for line in body.splitlines() if not line.strip().startswith("# ###")).strip(),
    )


def write(what: str) -> Path:
    """Write the next revision; returns its file."""
    # The program that runs revisions stands above this folder.
    from api import migrate  # noqa: PLC0415
    from api.database import Database  # noqa: PLC0415

    before = migrate.head()
    revision = f"{int(before) + 1:04d}"
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/schema.db")
        migrate.upgrade(database)
        with database.engine.connect() as connection:
            text = source(connection, revision, before, what.replace("_", " ").capitalize())
        database.close()
    target = VERSIONS / f"{revision}_{what}.py"
    target.write_text(text, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", str(target)], check=True)
    return target


if __name__ == "__main__":
    if len(sys.argv) != 2 or re.fullmatch(r"[a-z][a-z_]*", sys.argv[1]) is None:  # noqa: PLR2004 - the program and a word
        sys.exit("usage: python -m infra.migrations.write_next WHAT_IS_NEW")
    print(write(sys.argv[1]))
