from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.contract import Contract
from tests.connectors.langgraph_beds import PostgresMemories, SqliteMemories


@pytest.fixture
def sqlite_bed(tmp_path: Path) -> Iterator[SqliteMemories]:
    made = SqliteMemories(tmp_path)
    yield made
    made.close()


@pytest.fixture
def postgres_bed(server: Any) -> Iterator[PostgresMemories]:
    made = PostgresMemories(server)
    yield made
    made.close()


class TestSqliteStore(Contract):
    @pytest.fixture
    def bed(self, sqlite_bed: SqliteMemories) -> SqliteMemories:
        return sqlite_bed


@pytest.mark.postgres
class TestPostgresStore(Contract):
    @pytest.fixture
    def bed(self, postgres_bed: PostgresMemories) -> PostgresMemories:
        return postgres_bed
