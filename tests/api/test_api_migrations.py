"""The schema comes up from nothing and from every revision, on both databases, and equals the models."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from api import migrate
from api.database import APP_ROLE, AUTH_ROLE, Database, NestedTransaction
from infra.migrations.schema import METADATA, SHARED
from infra.migrations.write_first import TARGET, source, tenant_columns
from registry.models import KindRow, Tenant, Token

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_database")
    database = Database(url)
    yield database
    database.close()


def differences(database: Database) -> list[object]:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, METADATA))


def test_from_empty_the_schema_is_that_of_the_models(empty: Database) -> None:
    assert migrate.current(empty) is None
    with pytest.raises(migrate.OlderSchema, match="muniment init"):
        migrate.check(empty)
    assert migrate.upgrade(empty)
    migrate.check(empty)
    assert differences(empty) == []
    assert not migrate.upgrade(empty)


def test_from_every_earlier_revision_the_schema_is_the_same(empty: Database) -> None:
    for revision in migrate.revisions():
        migrate.upgrade(empty, revision)
        assert migrate.current(empty) == revision
    migrate.upgrade(empty)
    assert migrate.current(empty) == migrate.head()
    assert differences(empty) == []


def test_a_newer_schema_is_refused_and_left_alone(empty: Database) -> None:
    migrate.upgrade(empty)
    with empty.engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    for act in (migrate.check, migrate.upgrade):
        with pytest.raises(migrate.NewerSchema, match=r"9999.*newer version"):
            act(empty)
    assert migrate.current(empty) == "9999"


def test_a_revision_that_fails_leaves_what_it_found(empty: Database) -> None:
    with empty.engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE tombstone (x INTEGER)"))
    with pytest.raises(sa.exc.DatabaseError):
        migrate.upgrade(empty)
    assert migrate.current(empty) is None
    assert sa.inspect(empty.engine).get_table_names() == ["tombstone"]


def test_the_first_revision_is_what_the_models_say() -> None:
    namespace: dict[str, object] = {}
    exec(compile(source(), "0001", "exec"), namespace)  # noqa: S102 - our own generated text
    written: dict[str, object] = {}
    exec(compile(TARGET.read_text(encoding="utf-8"), "0001", "exec"), written)  # noqa: S102 - as above
    assert written["TENANTED"] == namespace["TENANTED"] == tenant_columns()
    assert written["SHARED"] == SHARED


def test_every_table_is_a_tenants_or_named_as_shared() -> None:
    assert METADATA.tables.keys() == tenant_columns().keys() | set(SHARED)
    for name, column in tenant_columns().items():
        assert next(iter(METADATA.tables[name].primary_key.columns)).name == column


@pytest.fixture
def two_tenants(make_postgres_database: Callable[..., str]) -> Iterator[Database]:
    database = Database(make_postgres_database(_prepared))
    for number in (1, 2):
        with database.founding() as session:
            session.add(Tenant(id=number, name=f"t{number}", log_id="0" * 32, created_at=NOW))
            session.flush()
            session.add(KindRow(tenant_id=number, name=f"kind.{number}", created_at=NOW))
    yield database
    database.close()


def _prepared(url: str) -> None:
    database = Database(url)
    migrate.upgrade(database)
    database.close()


@pytest.mark.postgres
def test_a_query_that_forgets_the_tenant_sees_only_its_own(two_tenants: Database) -> None:
    with two_tenants.transaction(1, write=False) as session:
        assert session.scalars(sa.text("SELECT name FROM kind")).all() == ["kind.1"]
        assert session.scalars(sa.text("SELECT name FROM tenant")).all() == ["t1"]
    with two_tenants.shared() as session:
        assert session.scalars(sa.text("SELECT name FROM kind")).all() == []


@pytest.mark.postgres
def test_the_tenant_holds_after_a_commit_in_the_middle(two_tenants: Database) -> None:
    with two_tenants.transaction(2) as session:
        session.commit()
        assert session.scalars(sa.text("SELECT name FROM kind")).all() == ["kind.2"]
        assert session.scalar(sa.text("SELECT current_user")) == APP_ROLE


@pytest.mark.postgres
def test_a_row_of_another_tenant_can_be_neither_written_nor_changed(two_tenants: Database) -> None:
    with pytest.raises(sa.exc.ProgrammingError, match="row-level security"), two_tenants.transaction(1) as session:
        session.add(KindRow(tenant_id=2, name="kind.x", created_at=NOW))
    with two_tenants.transaction(1) as session:
        assert session.connection().execute(sa.text("UPDATE kind SET description = 'x' WHERE true")).rowcount == 1
        assert session.connection().execute(sa.text("DELETE FROM kind WHERE tenant_id = 2")).rowcount == 0


@pytest.mark.postgres
def test_the_log_in_role_reads_tenants_and_tokens_and_nothing_else(two_tenants: Database) -> None:
    with two_tenants.transaction(1) as session:
        session.add(
            Token(
                tenant_id=1, token_id="a", secret_hash=b"h", principal="p", roles=[], stores=[], classes=[],
                created_at=NOW,
            )
        )  # fmt: skip
    with two_tenants.unscoped() as session:
        assert session.scalar(sa.text("SELECT current_user")) == AUTH_ROLE
        assert session.scalars(sa.text("SELECT name FROM tenant ORDER BY name")).all() == ["t1", "t2"]
        assert session.scalars(sa.text("SELECT token_id FROM token")).all() == ["a"]
    for statement in ("SELECT * FROM kind", "DELETE FROM token", "UPDATE token SET roles = '[]'"):
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied"), two_tenants.unscoped() as session:
            session.execute(sa.text(statement))


@pytest.mark.postgres
def test_every_tenant_table_has_forced_security(two_tenants: Database) -> None:
    query = "SELECT relname FROM pg_class WHERE relrowsecurity AND relforcerowsecurity"
    with two_tenants.engine.connect() as connection:
        assert set(connection.scalars(sa.text(query))) == set(tenant_columns())
        owned = connection.scalar(
            sa.text("SELECT count(*) FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner WHERE r.rolname LIKE :name"),
            {"name": "muniment_%"},
        )
        assert owned == 0


def test_sqlite_is_opened_as_the_record_needs_it(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'a.db'}")
    migrate.upgrade(database)
    with database.transaction(1) as session:
        found = {
            name: session.scalar(sa.text(f"PRAGMA {name}"))
            for name in ("journal_mode", "synchronous", "secure_delete", "foreign_keys")
        }
    assert found == {"journal_mode": "wal", "synchronous": 2, "secure_delete": 1, "foreign_keys": 1}
    assert database.truncate_wal()
    assert (tmp_path / "a.db-wal").stat().st_size == 0
    database.close()


def test_a_write_inside_a_write_is_refused_instead_of_waiting_for_itself(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'a.db'}")
    with database.transaction(1), pytest.raises(NestedTransaction), database.transaction(1):
        pass
    database.close()


def test_a_failed_transaction_leaves_nothing(empty: Database) -> None:
    migrate.upgrade(empty)

    def write_and_fail() -> None:
        with empty.transaction(7) as session:
            session.add(KindRow(tenant_id=7, name="a.b", created_at=NOW))
            session.flush()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_and_fail()
    with empty.transaction(7, write=False) as session:
        assert session.get(KindRow, (7, "a.b")) is None
