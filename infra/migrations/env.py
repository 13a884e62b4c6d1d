"""Alembic's entry point: runs the revisions on the connection that `api.migrate` hands over.

Guarantees: one transaction for all revisions, so that a failed upgrade leaves the schema it found (SQLite too: its DDL
is transactional when we begin ourselves). There is no configuration file and no offline mode.
"""

from alembic import context

from infra.migrations.schema import METADATA

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=METADATA,
    render_as_batch=connection.dialect.name == "sqlite",
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
