"""Setting named fields of one row: by key, for its owner, read again, or not at all; on both databases."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from connectors.base import Corrector, Item
from connectors.errors import BadLocator, ReadOnlyConnector
from connectors.sql import SqlConnector, open_store

ITEM = Item(copy_id="1", locator={"table": "person", "key": {"id": "a"}})
TABLE = "CREATE TABLE person (id TEXT PRIMARY KEY, owner TEXT, street TEXT, age INTEGER)"
ROWS = [("a", "email:ada@example.org", "Old Street 1", 30), ("b", "user:bob", "Old Street 1", 31)]


class Place:
    """A database with two people."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._run(TABLE)
        for row in ROWS:
            self._run("INSERT INTO person VALUES (%s, %s, %s, %s)", row)

    def _run(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        if self.url.startswith("sqlite"):
            with sqlite3.connect(self.url.removeprefix("sqlite:///")) as db:
                return db.execute(statement.replace("%s", "?"), values).fetchall()
        with psycopg.connect(self.url.replace("postgresql+psycopg", "postgresql")) as server:
            cursor = server.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def rows(self) -> list[tuple[Any, ...]]:
        return self._run("SELECT id, owner, street, age FROM person ORDER BY id")

    def open(self, *, read_only: bool = False, **config: Any) -> SqlConnector:
        return open_store({"url": self.url, "owner_field": "owner", **config}, read_only=read_only)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    url = f"sqlite:///{tmp_path}/people.db"
    if request.param == "postgres":
        url = request.getfixturevalue("make_postgres_database")()
    return Place(url)


def correct(place: Place, values: dict[str, Any], owner: str = "email:ada@example.org") -> tuple[bool, str]:
    with place.open() as connector:
        assert isinstance(connector, Corrector)
        result = connector.correct(ITEM, values, owner_identifiers=[owner], deadline=10)
    return result.corrected, result.detail


def test_named_fields_of_the_one_row_are_set_and_read_again(place: Place) -> None:
    assert correct(place, {"street": "New Street 2", "age": 29})[0]
    assert place.rows() == [("a", "email:ada@example.org", "New Street 2", 29), ROWS[1]]


def test_a_value_that_looks_like_sql_is_a_value(place: Place) -> None:
    assert correct(place, {"street": "'; DROP TABLE person; --"})[0]
    assert place.rows()[0][2] == "'; DROP TABLE person; --"
    assert len(place.rows()) == 2


def test_a_row_of_another_owner_is_left_alone(place: Place) -> None:
    assert correct(place, {"street": "x"}, owner="user:bob") == (False, "the row names another owner, or none")
    assert place.rows() == ROWS


def test_a_column_that_is_not_there_and_a_row_that_is_not_there_are_told(place: Place) -> None:
    with pytest.raises(BadLocator, match="no column"):
        correct(place, {"street; --": "x"})
    gone = Item(copy_id="1", locator={"table": "person", "key": {"id": "nobody"}})
    with place.open() as connector:
        result = connector.correct(gone, {"street": "x"}, owner_identifiers=[], deadline=10)
    assert (result.corrected, result.detail) == (False, "no row of this key")
    assert place.rows() == ROWS


def test_a_connector_that_reads_only_sets_nothing(place: Place) -> None:
    with place.open(read_only=True) as connector, pytest.raises(ReadOnlyConnector):
        connector.correct(ITEM, {"street": "x"}, owner_identifiers=["email:ada@example.org"], deadline=10)
    assert place.rows() == ROWS
