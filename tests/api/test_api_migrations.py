"""The schema comes up from nothing and from every revision, on both databases, and equals the models."""

import hashlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlmodel import Session, col

from api import migrate
from api.database import APP_ROLE, AUTH_ROLE, Database, NestedTransaction
from api.routes.operations import not_ready
from api.settings import load
from api.wiring import build
from erasure.certificate_rows import CertificateKey, add_certificate, open_certificate
from erasure.models import CertificatePiece, CertificateRow
from erasure.signed_file import PIECE, SignedFile
from infra.migrations.schema import METADATA, SHARED
from infra.migrations.write_next import VERSIONS, source, tenant_columns
from ledger import index
from ledger.index import IndexLine
from ledger.models import PartPlaces, PartRef
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
        assert unguarded(empty) == set(), "no revision leaves a table of a tenant open, not even the first"
    migrate.upgrade(empty)
    assert migrate.current(empty) == migrate.head()
    assert differences(empty) == []


def unguarded(database: Database) -> set[str]:
    """Tables of one tenant each that PostgreSQL would show to another one."""
    if database.on_sqlite:
        return set()
    query = "SELECT relname FROM pg_class WHERE relrowsecurity AND relforcerowsecurity"
    with database.engine.connect() as connection:
        made = set(sa.inspect(connection).get_table_names())
        return (made & tenant_columns().keys()) - set(connection.scalars(sa.text(query)))


def test_places_of_keys_are_packed_as_the_record_would_write_them(empty: Database) -> None:
    """Two tenants; batches of 1 and of 2,500 entries, a joint part; two entries and the last have no index row."""
    migrate.upgrade(empty, "0004")
    refs = [
        (tenant, idx, part, key_id)
        for tenant in (7, 8)
        for idx in range(2_502)
        for part, keys in enumerate((("a", "b") if idx == 9 else ("a",), ("s",)))
        for key_id in keys
    ]
    entries = [
        {"t": tenant, "i": idx, "id": f"{tenant}/{idx}".encode(), "b": 0 if idx == 0 else 1}
        for tenant in (7, 8)
        for idx in range(2_501)
        if idx not in {5, 6}
    ]
    with empty.engine.begin() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO entry (tenant_id, idx, entry_id, batch_first, stream_no, position, kind, data_class, "
                "class_version, set_id, at, received, digest, noncanonical) "
                "VALUES (:t, :i, :id, :b, 0, :i, 'note', 'chat', 1, 0, 0, 0, :id, false)"
            ),
            entries,
        )
        connection.execute(
            sa.text("INSERT INTO part_ref (tenant_id, idx, part, key_id) VALUES (:t, :i, :p, :k)"),
            [{"t": tenant, "i": idx, "p": part, "k": key_id} for tenant, idx, part, key_id in refs],
        )
    migrate.upgrade(empty)
    with Session(empty.engine) as session:
        unpacked = session.execute(
            sa.select(col(PartRef.tenant_id), col(PartRef.idx), col(PartRef.part), col(PartRef.key_id))
        )
        assert sorted(map(tuple, unpacked)) == sorted(refs)
        # Wherever an index row says in which batch an entry lies, its keys are found by its place.
        assert list(index.refs_of(session, 8, [2_500, 9, 0])) == [
            (0, 0, "a"), (0, 1, "s"), (9, 0, "a"), (9, 0, "b"), (9, 1, "s"), (2_500, 0, "a"), (2_500, 1, "s"),
        ]  # fmt: skip
        rows = session.execute(
            sa.select(col(PartPlaces.start), col(PartPlaces.key_id), col(PartPlaces.part), col(PartPlaces.places))
            .where(col(PartPlaces.tenant_id) == 7, col(PartPlaces.start).between(1, 2_500))
            .order_by(col(PartPlaces.start), col(PartPlaces.key_id))
        )
        lines = [
            IndexLine(entry_id="", class_version=1, stream_no=0, run_no=None, set_id=0, digest=b"", noncanonical=False,
                      key_ids=(("a", "b") if number == 8 else ("a",), ("s",)))
            for number in range(2_500)
        ]  # fmt: skip
        assert list(map(tuple, rows)) == index.pack_refs(1, lines)


def test_certificates_are_cut_into_pieces_that_are_what_they_were(empty: Database) -> None:
    """Two tenants; an interim one of less than a piece, a final one of a bit more than two, and one of exactly one."""
    migrate.upgrade(empty, "0005")
    bodies = {
        (7, "req_a", "interim", 1): b"small",
        (7, "req_a", "final", 2): bytes(range(256)) * (2 * PIECE // 256) + b"end",
        (8, "req_b", "interim", 1): b"x" * PIECE,
    }
    with empty.engine.begin() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO certificate (tenant_id, request_id, version, number, body, issued_at, stored_at) "
                "VALUES (:t, :r, :v, :n, :b, 0, NULL)"
            ),
            [{"t": t, "r": r, "v": v, "n": n, "b": body} for (t, r, v, n), body in bodies.items()],
        )
    migrate.upgrade(empty)
    assert unguarded(empty) == set()
    with Session(empty.engine) as session:
        for key, body in bodies.items():
            with open_certificate(session, CertificateKey(*key)) as signed:
                assert signed.read() == body
        pieces = session.execute(sa.select(col(CertificatePiece.tenant_id), col(CertificatePiece.n)))
        assert sorted(map(tuple, pieces)) == [(7, 0), (7, 0), (7, 1), (7, 2), (8, 0)]
    with pytest.raises(sa.exc.IntegrityError, match="size"), empty.engine.begin() as connection:
        connection.execute(
            sa.text("INSERT INTO certificate (tenant_id, request_id, version, number, issued_at) "
                    "VALUES (7, 'req_c', 'interim', 1, 0)")
        )  # fmt: skip


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
        connection.execute(sa.text("CREATE VIEW tombstone AS SELECT 1 AS x"))
    with pytest.raises(sa.exc.DatabaseError):
        migrate.upgrade(empty)
    assert migrate.current(empty) is None
    assert sa.inspect(empty.engine).get_table_names() == []


def test_tables_of_ours_without_a_revision_are_left_alone_and_those_of_others_are_no_matter(empty: Database) -> None:
    with empty.engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE somebody_elses (x INTEGER)"))
    migrate.upgrade(empty)
    with empty.engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM alembic_version"))
    for act in (migrate.current, migrate.check, migrate.upgrade):
        with pytest.raises(migrate.UnknownSchema, match="does not say of which version"):
            act(empty)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("DELETE FROM alembic_version", "does not say of which version"),
        ("UPDATE alembic_version SET version_num = '0001'", "brings it up"),
        ("UPDATE alembic_version SET version_num = '9999'", "9999"),
    ],
)
def test_readiness_names_a_schema_that_is_not_ours(tmp_path: Path, change: str, said: str) -> None:
    """A database that says nothing of its version made the call itself fail."""
    services = build(load(tmp_path / "data"))
    try:
        migrate.upgrade(services.database)
        assert "schema" not in not_ready(services)
        with services.database.engine.begin() as connection:
            connection.execute(sa.text(change))
        reasons = not_ready(services)
        assert set(reasons) == {"schema"}
        assert said in reasons["schema"]
    finally:
        services.database.close()
        services.telemetry.close()


REVISIONS = {
    "0001_first.py": "90c87768820ac2477ce0e87e895f959c920164b5cd9fb63d78d19ad427895b07",
    "0002_parts_payload_consents.py": "5f8b730aa148678c2c24218259a92ac04f49f32bd5f5baf7b2017ce7d7f4b753",
    "0003_reviews_of_record_keys.py": "a007f2b797c57c15ade6e9e1b8ea573483c7ebb0ad1b7827f76ab6e06b146d81",
    "0004_copies_that_change_in_place.py": "6312ec1c68b4bd0a3af74c8b3794a8095518126917602821f61593a1a9ce914a",
    "0005_places_of_keys.py": "0516519707fb980c380f839f37050d0d30467cb1b1d620c997ff886c68ffad97",
    "0006_certificates_in_pieces.py": "51b01baf797cc7009bf38f0707b2c727df9ec6d547b90fb633267e742bb7cbd9",
    "0007_digests_of_rows.py": "16aa98cb45c20731fa38064643d8521a6ea35fb666298c38b01c4af3671fb76d",
    "0008_certificates_say_their_size.py": "70ba1a6ed5f4b4d697fe563732e8a453bb2f03a31bd3663d131cece023b77ad3",
}
"""What was merged once is history: databases stand at it. A change of the models is a new revision."""


def test_revisions_are_never_written_again() -> None:
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in VERSIONS.glob("0*.py")}
    assert found == REVISIONS


def test_the_revisions_together_guard_every_table_of_the_models() -> None:
    tenanted: dict[str, str] = {}
    shared: set[str] = set()
    for file in sorted(VERSIONS.glob("0*.py")):
        written: dict[str, Any] = {}
        exec(compile(file.read_text(encoding="utf-8"), file.name, "exec"), written)  # noqa: S102 - our own text
        tenanted |= written["TENANTED"]
        tenanted = {table: column for table, column in tenanted.items() if table not in written.get("DROPPED", ())}
        shared |= set(written["SHARED"])
    assert tenanted == tenant_columns()
    assert shared == set(SHARED)


def test_a_draft_of_the_next_revision_says_what_the_models_have_more(empty: Database) -> None:
    migrate.upgrade(empty, "0001")
    with empty.engine.connect() as connection:
        drafted = source(connection, "0002", "0001", "Drafted")
    written: dict[str, Any] = {}
    exec(compile(drafted, "0002", "exec"), written)  # noqa: S102 - our own text
    assert {"payload_object", "consent"} <= written["TENANTED"].keys()
    assert "artifact" not in written["TENANTED"]


def test_rows_of_an_older_revision_stay_and_mean_the_same(empty: Database) -> None:
    migrate.upgrade(empty, "0001")
    place = bytes(range(32))
    with empty.engine.begin() as connection:
        found = sa.MetaData()
        for name in ("hold", "tombstone"):
            table = sa.Table(name, found, autoload_with=connection)
            row = {column.name: _some(column, place) for column in table.columns}
            connection.execute(sa.insert(table), [row])
    migrate.upgrade(empty)
    with empty.engine.connect() as connection:
        assert connection.execute(sa.text("SELECT locator_hash FROM tombstone")).scalar() == place[:16]
        entries = connection.execute(sa.text("SELECT entries FROM hold")).scalar()
    assert entries in ("[]", [])


def _some(column: sa.Column[Any], place: bytes) -> object:
    if column.name == "locator_hash":
        return place
    if isinstance(column.type, sa.JSON):
        return []
    return {int: 1, str: "x", bytes: b"x", bool: False, datetime: NOW}[column.type.python_type]


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
def test_a_certificate_and_its_pieces_are_their_tenants_alone(two_tenants: Database) -> None:
    body = bytes(range(256)) * (PIECE // 256 + 1)
    key = CertificateKey(1, "req_a", "interim", 1)
    with SignedFile.of([body]) as signed, two_tenants.transaction(1) as session:
        add_certificate(session, key, signed, NOW)
    with two_tenants.transaction(1, write=False) as session, open_certificate(session, key) as found:
        assert found.read() == body
    with two_tenants.transaction(2, write=False) as session:
        for table in (CertificateRow, CertificatePiece):
            assert session.scalar(sa.select(sa.func.count()).select_from(table)) == 0


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
