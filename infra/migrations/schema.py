"""What every migration needs to know: all tables' metadata, and who may see which rows on PostgreSQL.

Guarantees: `METADATA` holds every table of the service, because each package's models are imported here. A table with a
`tenant_id` is seen only under its tenant; `tenant` itself by its id. Tables without one are listed by name in `SHARED`;
a new table that is in neither group fails `tests/api/test_api_migrations.py`.
"""

import sqlalchemy as sa
from alembic import op
from sqlmodel import SQLModel

import api.models
import erasure.models
import ledger.models
import registry.models
import registry.review_models
import retention.models
import vault.models

PACKAGES = (
    api.models, erasure.models, ledger.models, registry.models, registry.review_models, retention.models, vault.models,
)  # fmt: skip
METADATA: sa.MetaData = SQLModel.metadata
APP_ROLE = "muniment_app"
AUTH_ROLE = "muniment_auth"
SHARED = ("log_knock", "log_lease", "tick", "vault_cache_fence", "vault_process")
"""Tables of no tenant: who leads, which log has something to do, which tick was taken, which process emptied its
caches. They hold no data of anybody."""

_ROLE = """
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
    CREATE ROLE {role} NOLOGIN;
  END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END $$
"""
_TENANT = "NULLIF(current_setting('muniment.tenant', true), '')::bigint"


def on_postgres() -> bool:
    """Returns whether this migration runs on PostgreSQL."""
    return op.get_bind().dialect.name == "postgresql"


def create_roles() -> None:
    """Makes the two roles that own nothing, once per cluster, and lets the migrating user take them."""
    if not on_postgres():
        return
    for role in (APP_ROLE, AUTH_ROLE):
        op.execute(_ROLE.format(role=role))
        op.execute(
            f"DO $$ BEGIN IF NOT pg_has_role(current_user, '{role}', 'MEMBER') THEN "
            f"EXECUTE format('GRANT {role} TO %I', current_user); END IF; END $$"
        )


def guard_tables(tenanted: dict[str, str], shared: tuple[str, ...]) -> None:
    """Puts row-level security on each table of `tenanted` (name → tenant column), and grants both groups.

    FORCE makes it hold for the owner of the tables too; only a superuser passes, and the service never stays one.
    """
    if not on_postgres():
        return
    for table, column in tenanted.items():
        op.execute(f'GRANT SELECT, INSERT, UPDATE, DELETE ON "{table}" TO {APP_ROLE}')
        op.execute(f'ALTER TABLE "{table}" ENABLE ROW LEVEL SECURITY')
        op.execute(f'ALTER TABLE "{table}" FORCE ROW LEVEL SECURITY')
        op.execute(
            f'CREATE POLICY tenant_only ON "{table}" TO {APP_ROLE} '
            f'USING ("{column}" = {_TENANT}) WITH CHECK ("{column}" = {_TENANT})'
        )
    for table in shared:
        op.execute(f'GRANT SELECT, INSERT, UPDATE, DELETE ON "{table}" TO {APP_ROLE}')


def let_log_in(tables: tuple[str, ...]) -> None:
    """Lets the log-in role read `tables` of every tenant, and nothing else of anybody."""
    if not on_postgres():
        return
    for table in tables:
        op.execute(f'GRANT SELECT ON "{table}" TO {AUTH_ROLE}')
        op.execute(f'CREATE POLICY log_in ON "{table}" FOR SELECT TO {AUTH_ROLE} USING (true)')
