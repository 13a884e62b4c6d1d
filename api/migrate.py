"""The schema of the database: which revision it is at, and bringing it to ours.

Guarantees: an older schema is brought up in one transaction or left as it was; a newer one is never touched, because
older code would write what it does not understand. Runs as the owner of the tables, before anything else opens them.
"""

from __future__ import annotations

import logging
from pathlib import Path

import sqlalchemy as sa
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from api.database import Database
from infra.migrations.schema import METADATA

FOLDER = Path(__file__).resolve().parents[1] / "infra" / "migrations"


class NewerSchema(Exception):
    """The database was written by a newer version of this program."""

    def __init__(self, found: str, known: str) -> None:
        super().__init__(
            f"the database has schema {found}, this version knows up to {known}: start the newer version again"
        )
        self.found = found
        self.known = known


class OlderSchema(Exception):
    """The database needs an upgrade before it may be served."""

    def __init__(self, found: str | None, known: str) -> None:
        advice = "run muniment init" if found is None else "start muniment serve with this version, which brings it up"
        super().__init__(f"the database has schema {found or 'none'}, this version needs {known}: {advice}")
        self.found = found
        self.known = known


class UnknownSchema(Exception):
    """The database holds tables of ours and does not say of which version."""

    def __init__(self) -> None:
        super().__init__(
            "the database holds tables of this program and does not say of which version (alembic_version has no row): "
            "it is damaged or half of a copy; check DATABASE_URL, bring a whole copy back, or run muniment rebuild"
        )


def _scripts() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    return ScriptDirectory.from_config(config)


def head() -> str:
    """The newest revision this version knows."""
    revision = _scripts().get_current_head()
    if revision is None:
        message = "no migrations are installed with this program"
        raise RuntimeError(message)
    return revision


def revisions() -> list[str]:
    """Every revision, oldest first."""
    return [script.revision for script in reversed(list(_scripts().walk_revisions()))]


def current(database: Database) -> str | None:
    """The revision the database is at, None when it is empty. Raises UnknownSchema."""
    with database.engine.connect() as connection:
        return _revision(connection)


def _revision(connection: sa.Connection) -> str | None:
    """Raises UnknownSchema where there are tables of ours and no revision: nothing may be guessed then."""
    found = MigrationContext.configure(connection).get_current_revision()
    if found is None and not METADATA.tables.keys().isdisjoint(sa.inspect(connection).get_table_names()):
        raise UnknownSchema
    return found


def check(database: Database) -> None:
    """Returns when the schema is exactly ours. Raises NewerSchema, OlderSchema or UnknownSchema."""
    found, known = current(database), head()
    if found == known:
        return
    if found is not None and found not in revisions():
        raise NewerSchema(found, known)
    raise OlderSchema(found, known)


def refuse_older(engine: sa.Engine) -> None:
    """Returns unless the schema is one of ours that a reader of this version cannot read. Raises OlderSchema."""
    with engine.connect() as connection:
        found = MigrationContext.configure(connection).get_current_revision()
    known = head()
    if found is not None and found != known and found in revisions():
        raise OlderSchema(found, known)


def upgrade(database: Database, revision: str = "head") -> bool:
    """Brings the schema to `revision`; returns whether anything was done.

    Two processes that start at once do it once: the second waits for the first one's lock, then finds it done.

    Raises:
        NewerSchema: the database is ahead of this program; nothing was changed.
        UnknownSchema: it does not say where it is; nothing was changed.
    """
    scripts = _scripts()
    with database.engine.begin() as connection:
        if not database.on_sqlite:
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(7236718493)"))
        found = _revision(connection)
        if found is not None and found not in revisions():
            raise NewerSchema(found, head())
        if found == (head() if revision == "head" else revision):
            return False
        logging.getLogger("alembic").setLevel(logging.WARNING)
        config = Config()
        config.set_main_option("script_location", str(FOLDER))
        config.attributes["connection"] = connection
        with EnvironmentContext(
            config,
            scripts,
            fn=lambda rev, _context: scripts._upgrade_revs(revision, rev),  # noqa: SLF001 - as alembic.command.upgrade
        ):
            scripts.run_env()
        return True
