from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from connectors.base import Item, Level, Locator, Outcome, open_connector
from connectors.errors import BadLocator

pytestmark = pytest.mark.postgres

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
Run = Callable[..., list[Any]]


@pytest.fixture
def run(postgres_database: str) -> Run:
    """What the application does."""

    def run(statement: str, *values: object) -> list[Any]:
        uri = postgres_database.replace("postgresql+psycopg://", "postgresql://")
        with psycopg.connect(uri, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    return run


def refusal(url: str, locator: Locator) -> str:
    with open_connector("sql", {"url": url}, secrets=str) as connector, pytest.raises(BadLocator) as refused:
        connector.check_locator(locator)
    return str(refused.value)


@pytest.mark.parametrize(
    "table",
    ["no\0te", "public.no\0te", "\ud800", "public.\udfff", "pg_catalog.pg_class", "pg_toast.note", "passing", "seen"],
)
def test_what_is_no_table_of_the_application_is_refused_in_words(postgres_database: str, run: Run, table: str) -> None:
    run("CREATE VIEW seen AS SELECT 1 AS id")
    assert "there is no such table" in refusal(postgres_database, {"table": table, "key": {"id": "a"}})


def test_a_name_that_two_tables_answer_to_is_refused(postgres_database: str, run: Run) -> None:
    run('CREATE SCHEMA app; CREATE TABLE app.note (id text PRIMARY KEY); CREATE TABLE "app.note" (id text PRIMARY KEY)')
    assert "ambiguous" in refusal(postgres_database, {"table": "app.note", "key": {"id": "a"}})


def test_an_index_that_could_not_be_built_is_no_key(postgres_database: str, run: Run) -> None:
    run("CREATE TABLE note (id int PRIMARY KEY, label text)")
    run("INSERT INTO note VALUES (1, 'same'), (2, 'same')")
    with pytest.raises(psycopg.errors.UniqueViolation):
        run("CREATE UNIQUE INDEX CONCURRENTLY by_label ON note (label)")
    assert "not exactly one unique key" in refusal(postgres_database, {"table": "note", "key": {"label": "same"}})


def test_keys_are_read_as_the_server_holds_them(postgres_database: str, run: Run) -> None:
    run("CREATE TABLE note (b int, a int, c text UNIQUE DEFERRABLE, d text, e text, PRIMARY KEY (b, a))")
    run("CREATE UNIQUE INDEX ON note (d) INCLUDE (e)")
    run("CREATE UNIQUE INDEX ON note (e) WHERE c IS NULL")
    run("CREATE UNIQUE INDEX ON note (lower(e))")
    with open_connector("sql", {"url": postgres_database}, secrets=str) as connector:
        for key in ({"a": 1, "b": 2}, {"c": "x"}, {"d": "x"}):
            connector.check_locator({"table": "note", "key": key})
    for other in ({"a": 1}, {"e": "x"}, {"d": "x", "e": "x"}, {"c": "x", "d": "x"}):
        assert "not exactly one unique key" in refusal(postgres_database, {"table": "note", "key": other})


@pytest.mark.parametrize(
    ("action", "outcome", "detail"),
    [
        ("", Outcome.FAILED, "1 rows of rep.lies reference the row"),
        ("ON DELETE RESTRICT", Outcome.FAILED, "1 rows of rep.lies reference the row"),
        ("ON DELETE CASCADE", Outcome.ERASED, "1 rows of rep.lies by CASCADE"),
        ("ON DELETE SET NULL", Outcome.ERASED, "1 rows of rep.lies by SET NULL"),
        ("ON DELETE SET DEFAULT", Outcome.ERASED, "1 rows of rep.lies by SET DEFAULT"),
    ],
)
def test_rows_in_another_schema_that_point_at_a_row_by_two_columns_are_seen(
    postgres_database: str, run: Run, action: str, outcome: Outcome, detail: str
) -> None:
    run("CREATE TABLE note (team int, id int, PRIMARY KEY (team, id))")
    run("CREATE SCHEMA rep")
    run(
        "CREATE TABLE rep.lies (number int PRIMARY KEY, of_id int, of_team int,"
        f" FOREIGN KEY (of_team, of_id) REFERENCES note (team, id) {action})"
    )
    run("INSERT INTO note VALUES (1, 2), (2, 1)")
    run("INSERT INTO rep.lies VALUES (1, 2, 1)")
    item = Item(copy_id="a", locator={"table": "note", "key": {"team": 1, "id": 2}})
    with open_connector("sql", {"url": postgres_database}, secrets=str) as connector:
        (receipt,) = connector.erase([item], owner_identifiers=[], now=NOW, deadline=10)
    assert receipt.outcome is outcome
    assert detail in receipt.detail
    assert run("SELECT * FROM note ORDER BY team") == [(1, 2), (2, 1)][outcome is Outcome.ERASED :]


def test_looking_for_what_was_erased_marks_nothing_in_the_index(postgres_database: str, run: Run) -> None:
    # Whoever first walks an index to rows that are dead to everybody marks them in it, and every page of it is logged.
    run("CREATE TABLE note (id text PRIMARY KEY)")
    run("INSERT INTO note SELECT lpad(n::text, 60, '0') FROM generate_series(1, 5000) AS n")
    run("VACUUM ANALYZE note")
    keys = [f"{number:060d}" for number in range(1, 5001, 50)]
    items = [Item(copy_id=key, locator={"table": "note", "key": {"id": key}}) for key in keys]
    config = {"url": postgres_database}
    with open_connector("sql", config, secrets=str) as connector:
        receipts = connector.erase(items, owner_identifiers=[], now=NOW, deadline=10)
    assert {receipt.outcome for receipt in receipts} == {Outcome.ERASED}
    with open_connector("sql", config, secrets=str, read_only=True) as connector:
        findings = connector.verify(items, Level.L1, deadline=10)
    assert {(each.level, each.present) for each in findings} == {(Level.L1, False)}
    # The next who walks the index still has to fetch each row to see that it is dead; a bitmap would not say.
    plan = "EXPLAIN (ANALYZE, FORMAT json) SELECT id FROM note WHERE id = ANY (%s) ORDER BY id"
    (((walk,),),) = run(plan, keys)
    assert walk["Plan"]["Node Type"] == "Index Only Scan"
    assert walk["Plan"]["Heap Fetches"] == len(keys)
